"""Whether a certificate is one that this network's agents will take, and if not, why.

What the other end of a connection would refuse without a word is said here in a sentence: the dates, the chain of
signatures up to an authority, and what the certificate may be used for.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from elmesh.errors import ElmeshError

with contextlib.suppress(ImportError):
    from cryptography import x509
    from cryptography.x509.oid import ExtendedKeyUsageOID
    from cryptography.x509.verification import ExtensionPolicy, PolicyBuilder, Store, VerificationError

__all__ = ["check_chain", "load_certificates"]

_MOST_BYTES = 2**20


def load_certificates(path: Path) -> list[x509.Certificate]:
    """Read the certificates of a PEM file, one at least.

    Parameters
    ----------
    path
        The file.
    """
    with path.open("rb") as file:
        data = file.read(_MOST_BYTES)
    try:
        return x509.load_pem_x509_certificates(data)
    except ValueError:
        raise ElmeshError(f"{path} holds no certificate; expected one in PEM.") from None


def check_chain(
    leaf: x509.Certificate, between: Sequence[x509.Certificate], certificate: Path, authority: Path, now: datetime
) -> None:
    """Refuse a certificate that others would refuse.

    Parameters
    ----------
    leaf, between
        An agent's certificate, and any between it and the authority's.
    certificate, authority
        The files of the agent's certificate and of the authorities'.
    now
        When it must be good.
    """
    _check_dates(leaf, certificate, now)
    roots = load_certificates(authority)
    for root in roots if len(roots) == 1 else []:
        _check_dates(root, authority, now)
    # Of the authorities everything is held against the rules of the web; of agents' certificates what matters is below.
    policy = PolicyBuilder().store(Store(roots)).time(now)
    policy = policy.extension_policies(
        ca_policy=ExtensionPolicy.webpki_defaults_ca(), ee_policy=ExtensionPolicy.permit_all()
    )
    try:
        policy.build_client_verifier().verify(leaf, list(between))
    except VerificationError:
        raise ElmeshError(
            f"{certificate} was not issued by the authority in {authority}; get it signed by that one, or put the "
            "certificate of the right authority there."
        ) from None
    _check_uses(leaf, certificate)


def _check_dates(found: x509.Certificate, path: Path, now: datetime) -> None:
    start, end = found.not_valid_before_utc, found.not_valid_after_utc
    if now > end:
        raise ElmeshError(f"The certificate {path} expired on {end:%Y-%m-%d %H:%M} UTC; get a new one.")
    if now < start:
        raise ElmeshError(
            f"The certificate {path} is not valid before {start:%Y-%m-%d %H:%M} UTC, and it is {now:%Y-%m-%d %H:%M} "
            "here; set this machine's clock right, or wait."
        )


def _check_uses(leaf: x509.Certificate, path: Path) -> None:
    """Insist on what TLS needs of an agent that both listens and connects."""
    extensions = leaf.extensions
    with contextlib.suppress(x509.ExtensionNotFound):
        allowed = extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
        if not {ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH} <= set(allowed):
            raise ElmeshError(
                f"{path} may not be used for both ends of a connection; ask the authority for one with clientAuth and "
                "serverAuth."
            )
    try:
        extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except x509.ExtensionNotFound:
        raise ElmeshError(
            f"{path} names no hosts (it has no subject alternative name); ask the authority for one that has the host "
            "of the agent's address."
        ) from None
