"""Verify that the agents of a network accept a certificate.

The other end of a connection would refuse an invalid certificate without an explanation. The checks here give a reason:
the dates, the chain of signatures up to an authority, and the permitted uses.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.types import PublicKeyTypes
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID
from cryptography.x509.verification import ExtensionPolicy, PolicyBuilder, Store, VerificationError

from elmesh.errors import ElmeshError
from elmesh.netconfig.pki.csr import common_name
from elmesh.netconfig.pki.keys import public_bytes

__all__ = [
    "MAX_AUTHORITIES",
    "check_authorities",
    "check_owner",
    "fingerprint",
    "has_fingerprint",
    "key_fingerprint",
    "load_certificates",
    "parse_certificates",
    "to_pem",
    "verify_certificate",
    "verify_chain",
]

_MAX_BYTES = 2**20
#: Authorities that a file may hold.
MAX_AUTHORITIES = 8
# Hexadecimal digits of a fingerprint that people compare: 128 bits.
_DIGITS = 32


def load_certificates(path: Path) -> list[x509.Certificate]:
    """Load the certificates of a PEM file, at least one."""
    with path.open("rb") as file:
        return parse_certificates(file.read(_MAX_BYTES), str(path))


def parse_certificates(data: bytes, source: str) -> list[x509.Certificate]:
    """Return the certificates in PEM data, at least one; ``source`` names the data in errors."""
    try:
        return x509.load_pem_x509_certificates(data)
    except ValueError:
        raise ElmeshError(f"{source} holds no certificate; expected one in PEM.") from None


def to_pem(certificates: Sequence[x509.Certificate]) -> bytes:
    """Return certificates in PEM, and nothing else that was in their file."""
    return b"".join(one.public_bytes(Encoding.PEM) for one in certificates)


def fingerprint(certificate: x509.Certificate) -> str:
    """Return the first half of the SHA-256 of a certificate, in groups of four digits, for people to compare."""
    return _grouped(certificate.public_bytes(Encoding.DER))


def key_fingerprint(key: PublicKeyTypes) -> str:
    """Return that of a public key, by which the keeper of an authority knows that a request is a site's own."""
    return _grouped(public_bytes(key))


def _grouped(data: bytes) -> str:
    text = hashlib.sha256(data).hexdigest()[:_DIGITS]
    return " ".join(text[k : k + 4] for k in range(0, _DIGITS, 4))


def has_fingerprint(certificate: x509.Certificate, given: str) -> bool:
    """Return whether a certificate has the fingerprint that a person has typed, in any grouping."""
    digits = "".join(given.replace(":", " ").split()).lower()
    return digits == fingerprint(certificate).replace(" ", "")


def check_owner(leaf: x509.Certificate, key: PublicKeyTypes, agent: str, certificate: str, key_file: str) -> None:
    """Raise unless a certificate is that of a public key and of an agent; the last two are the names in errors."""
    if public_bytes(leaf.public_key()) != public_bytes(key):
        raise ElmeshError(
            f"{certificate} is not the certificate of {key_file}; use a certificate and a key that were made for each "
            "other."
        )
    name = common_name(leaf.subject)
    if name != agent:
        raise ElmeshError(
            f"{certificate} is the certificate of {name or 'no agent'!r}, not of agent {agent}; each agent needs its "
            "own."
        )


def verify_certificate(certificate: Path, authority: Path, now: datetime) -> None:
    """Raise if other agents would refuse a certificate, in a file with any intermediate ones, at a time."""
    leaf, *intermediates = load_certificates(certificate)
    verify_chain(leaf, intermediates, load_certificates(authority), now, str(certificate), str(authority))


def verify_chain(
    leaf: x509.Certificate,
    intermediates: Sequence[x509.Certificate],
    roots: Sequence[x509.Certificate],
    now: datetime,
    certificate: str = "certificate.pem",
    authority: str = "ca.pem",
) -> None:
    """Raise if agents that trust some authorities would refuse a certificate at a time.

    ``certificate`` and ``authority`` are the names of both in errors.
    """
    _check_dates(leaf, certificate, now)
    if len(roots) == 1:
        _check_dates(roots[0], authority, now)
    # Certificates of authorities must satisfy the rules of the web PKI; those of agents are checked below.
    policy = PolicyBuilder().store(Store(list(roots))).time(now)
    policy = policy.extension_policies(
        ca_policy=ExtensionPolicy.webpki_defaults_ca(), ee_policy=ExtensionPolicy.permit_all()
    )
    try:
        policy.build_client_verifier().verify(leaf, list(intermediates))
    except VerificationError:
        raise ElmeshError(
            f"{certificate} was not issued by the authority in {authority}; have that authority sign it, or copy the "
            "certificate of the right authority there."
        ) from None
    _check_uses(leaf, certificate)


def _check_dates(certificate: x509.Certificate, name: str, now: datetime) -> None:
    start, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if now > end:
        raise ElmeshError(f"The certificate {name} expired on {end:%Y-%m-%d %H:%M} UTC; get a new one.")
    if now < start:
        raise ElmeshError(
            f"The certificate {name} is not valid before {start:%Y-%m-%d %H:%M} UTC, and the clock of this machine "
            f"shows {now:%Y-%m-%d %H:%M}; correct the clock, or wait."
        )


def _check_uses(leaf: x509.Certificate, name: str) -> None:
    """Raise unless TLS accepts the certificate from an agent that both listens and connects."""
    extensions = leaf.extensions
    with contextlib.suppress(x509.ExtensionNotFound):
        allowed = extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
        if not {ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH} <= set(allowed):
            raise ElmeshError(
                f"{name} is not valid for both ends of a connection; ask the authority for one with clientAuth and "
                "serverAuth."
            )
    try:
        extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except x509.ExtensionNotFound:
        raise ElmeshError(
            f"{name} names no hosts (it has no subject alternative name); ask the authority for one with the host of "
            "the agent's address."
        ) from None


def check_authorities(found: list[x509.Certificate], source: str) -> list[x509.Certificate]:
    """Return certificates that are all of authorities, of which one is valid now; raise otherwise."""
    if len(found) > MAX_AUTHORITIES or not all(map(_is_authority, found)):
        raise ElmeshError(f"{source} holds what is no certificate of an authority.")
    if all(one.not_valid_after_utc < datetime.now(UTC) for one in found):
        raise ElmeshError(f"{source} expired on {found[0].not_valid_after_utc:%Y-%m-%d}; ask for a new one.")
    return found


def _is_authority(certificate: x509.Certificate) -> bool:
    try:
        return certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except (x509.ExtensionNotFound, ValueError):
        return False
