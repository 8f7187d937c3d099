"""Verify that the agents of a network accept a certificate.

The other end of a connection would refuse an invalid certificate without an explanation. The checks here give a reason:
the dates, the chain of signatures up to an authority, and the permitted uses.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID
from cryptography.x509.verification import ExtensionPolicy, PolicyBuilder, Store, VerificationError

from elmesh.errors import ElmeshError

__all__ = ["load_certificates", "verify_certificate", "verify_chain"]

_MAX_BYTES = 2**20


def load_certificates(path: Path) -> list[x509.Certificate]:
    """Load the certificates of a PEM file, at least one."""
    with path.open("rb") as file:
        data = file.read(_MAX_BYTES)
    try:
        return x509.load_pem_x509_certificates(data)
    except ValueError:
        raise ElmeshError(f"{path} holds no certificate; expected one in PEM.") from None


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
