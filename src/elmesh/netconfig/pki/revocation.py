"""Lists of revoked certificates (X.509 CRL), signed by the authority: what they name is refused though not expired.

A file may hold one list per authority. While the authority is replaced, a site may not trust all of them yet: those of
authorities that it does not trust count for nothing. A file without a list of a trusted authority is an error and never
ignored, and so is one that cannot be read. A list that is past its next update still counts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import Encoding

from elmesh.errors import ElmeshError
from elmesh.netconfig.pki.authority import Authority

__all__ = ["Revocations", "is_signed_by", "lists_to_pem", "load_lists", "make_list"]

_MAX_BYTES = 2**20
_BLOCK = re.compile(rb"-----BEGIN X509 CRL-----.+?-----END X509 CRL-----\n?", re.DOTALL)


def make_list(authority: Authority, revoked: Mapping[int, datetime], days: int, number: int, now: datetime) -> bytes:
    """Return a list in PEM, of serial numbers and when each was revoked; the next one is due after so many days."""
    identifier = authority.certificate.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    builder = (
        x509.CertificateRevocationListBuilder()
        .issuer_name(authority.certificate.subject)
        .last_update(now)
        .next_update(now + timedelta(days=days))
        .add_extension(x509.CRLNumber(number), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier), critical=False)
    )
    for serial, time in sorted(revoked.items()):
        entry = x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(time).build()
        builder = builder.add_revoked_certificate(entry)
    return builder.sign(authority.key, hashes.SHA256()).public_bytes(Encoding.PEM)


@dataclass(frozen=True)
class Revocations:
    """The lists of all trusted authorities, verified."""

    lists: tuple[x509.CertificateRevocationList, ...] = ()

    @classmethod
    def read(cls, path: Path, authorities: Sequence[x509.Certificate]) -> Revocations:
        """Read the lists of a file that these authorities have signed; raise if there is none in a file that exists."""
        lists = load_lists(path)
        signed = [one for one in lists if any(is_signed_by(one, authority) for authority in authorities)]
        if lists and not signed:
            raise ElmeshError(
                f"{path} was not signed by an authority that this agent trusts; get revoked.pem from the keeper of the "
                "network's authority. If the authority was replaced, first: elmesh network trust."
            )
        return cls(tuple(signed))

    @property
    def next_update(self) -> datetime | None:
        """When the first of the lists is due to be replaced; None if there is none."""
        return min((one.next_update_utc for one in self.lists if one.next_update_utc is not None), default=None)

    def time_of(self, certificate: x509.Certificate) -> datetime | None:
        """Return when a certificate was revoked, None if it was not."""
        for one in self.lists:
            entry = one.get_revoked_certificate_by_serial_number(certificate.serial_number)
            if entry is not None and one.issuer == certificate.issuer:
                return entry.revocation_date_utc
        return None

    def check(self, certificate: x509.Certificate, what: str, at: datetime | None = None) -> None:
        """Raise if a certificate, named ``what`` in the error, is revoked now or was at a time."""
        time = self.time_of(certificate)
        if time is not None and time <= (at or datetime.now(UTC)):
            raise ElmeshError(f"{what} was revoked by the authority on {time:%Y-%m-%d %H:%M} UTC.")


def load_lists(path: Path) -> list[x509.CertificateRevocationList]:
    """Load the lists of a file, in PEM, none if it does not exist."""
    if not path.exists():
        return []
    with path.open("rb") as file:
        data = file.read(_MAX_BYTES + 1)
    blocks = _BLOCK.findall(data)
    try:
        if not blocks or len(data) > _MAX_BYTES:
            raise ValueError
        return [x509.load_pem_x509_crl(block) for block in blocks]
    except (ValueError, UnsupportedAlgorithm):
        raise ElmeshError(
            f"{path} is no list of revoked certificates; expected X.509 lists in PEM: get it again from the keeper of "
            "the network's authority."
        ) from None


def is_signed_by(one: x509.CertificateRevocationList, authority: x509.Certificate) -> bool:
    """Return whether an authority has signed a list."""
    key: Any = authority.public_key()  # of any kind; one that cannot sign is a TypeError
    try:
        return one.issuer == authority.subject and bool(one.is_signature_valid(key))
    except (InvalidSignature, UnsupportedAlgorithm, TypeError, ValueError):
        return False


def lists_to_pem(lists: Sequence[x509.CertificateRevocationList]) -> bytes:
    """Return lists in PEM."""
    return b"".join(one.public_bytes(Encoding.PEM) for one in lists)
