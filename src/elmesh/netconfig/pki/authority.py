"""The certificate authority of a network, which signs the certificates of its agents."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import CertificatePublicKeyTypes
from cryptography.x509.oid import ExtendedKeyUsageOID

from elmesh.errors import ElmeshError
from elmesh.netconfig.files import create_file
from elmesh.netconfig.names import check_name
from elmesh.netconfig.pki.csr import alternative_names, common_name, host_names, load_request, make_subject
from elmesh.netconfig.pki.keys import make_key, public_bytes, read_key
from elmesh.netconfig.pki.verify import load_certificates

__all__ = [
    "CA_CERTIFICATE",
    "CA_KEY",
    "ISSUED",
    "Authority",
    "issued_certificates",
    "make_authority",
    "record_issued",
    "sign",
]

CA_KEY, CA_CERTIFICATE = "ca.key", "ca.pem"
#: Folder of all certificates that the authority has signed, by which they can be revoked.
ISSUED = "issued"
# Certificates start in the past, because clocks differ and some are an hour off for half of the year.
_BACKDATED = timedelta(hours=2)


@dataclass(frozen=True)
class Authority:
    """An authority: its certificate, which all agents have, and its private key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey = field(repr=False)

    @classmethod
    def read(cls, folder: Path) -> Authority:
        """Read an authority from the folder that :func:`make_authority` wrote."""
        key_file, certificate_file = folder / CA_KEY, folder / CA_CERTIFICATE
        for path in (key_file, certificate_file):
            if not path.is_file():
                raise ElmeshError(
                    f"{folder} has no file {path.name}; give the authority's folder that elmesh network create made."
                )
        key = read_key(key_file)
        certificate = load_certificates(certificate_file)[0]
        same = public_bytes(key.public_key()) == public_bytes(certificate.public_key())
        if not isinstance(key, ec.EllipticCurvePrivateKey) or not same:
            raise ElmeshError(f"{key_file} is not the key of {certificate_file}.")
        return cls(certificate, key)

    @property
    def pem(self) -> bytes:
        """The certificate in PEM."""
        return self.certificate.public_bytes(serialization.Encoding.PEM)


def make_authority(folder: Path, network_name: str, years: int = 10, *, now: datetime | None = None) -> Authority:
    """Make an authority that can sign the certificates of agents, but not of other authorities.

    Its files in the folder are ``ca.key``, which only this user can read, and ``ca.pem``. The validity starts ``now``.
    """
    check_name("The network's name", network_name)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    key = make_key(folder / CA_KEY)
    subject = make_subject(f"{network_name} authority")
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    validity = timedelta(days=round(365.25 * years))
    certificate = (
        _builder(subject, subject, key.public_key(), now or datetime.now(UTC), validity)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(is_authority=True), critical=True)
        .add_extension(identifier, critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier), critical=False)
        .sign(key, hashes.SHA256())
    )
    authority = Authority(certificate, key)
    create_file(folder / CA_CERTIFICATE, authority.pem)
    return authority


def sign(
    request: bytes,
    authority: Authority,
    days: int = 365,
    *,
    hosts: Sequence[str] | None = None,
    now: datetime | None = None,
) -> bytes:
    """Return a certificate, in PEM, for the agent that made a request.

    Parameters
    ----------
    request
        A request in PEM; extensions that it asks for are ignored.
    authority
        The authority that signs.
    days, now
        The validity and its start; it ends no later than that of the authority.
    hosts
        Host names and IP addresses of the agent; those of the request by default.
    """
    name, asked = load_request(request)
    now = now or datetime.now(UTC)
    end = authority.certificate.not_valid_after_utc
    if now >= end:
        raise ElmeshError(f"The authority's own certificate expired on {end:%Y-%m-%d}; make a new authority.")
    issuer_key = authority.certificate.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    both_ends = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH])
    key = asked.public_key()
    certificate = (
        _builder(make_subject(name), authority.certificate.subject, key, now, min(timedelta(days=days), end - now))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(is_authority=False), critical=True)
        .add_extension(both_ends, critical=False)
        .add_extension(alternative_names(_requested_hosts(asked) if hosts is None else hosts), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(issuer_key), critical=False)
        .sign(authority.key, hashes.SHA256())
    )
    return certificate.public_bytes(serialization.Encoding.PEM)


def record_issued(folder: Path, certificate: bytes) -> None:
    """Add a certificate to the record of the authority in a folder."""
    record = folder / ISSUED
    record.mkdir(exist_ok=True, mode=0o700)
    leaf = x509.load_pem_x509_certificate(certificate)
    create_file(record / f"{common_name(leaf.subject)}-{leaf.serial_number:x}.pem", certificate)


def issued_certificates(folder: Path) -> list[x509.Certificate]:
    """Return all certificates in the record of the authority in a folder.

    An empty file is what a full disk left of a certificate that was not handed out.
    """
    return [load_certificates(path)[0] for path in sorted((folder / ISSUED).glob("*.pem")) if path.stat().st_size]


def _requested_hosts(request: x509.CertificateSigningRequest) -> list[str]:
    try:
        hosts = host_names(request.extensions)
    except ValueError:
        hosts = []
    if not hosts:
        raise ElmeshError("The request names no hosts; make it with elmesh network csr.")
    return hosts


def _builder(
    subject: x509.Name, issuer: x509.Name, key: CertificatePublicKeyTypes, now: datetime, validity: timedelta
) -> x509.CertificateBuilder:
    return x509.CertificateBuilder(
        issuer_name=issuer,
        subject_name=subject,
        public_key=key,
        serial_number=x509.random_serial_number(),
        not_valid_before=now - _BACKDATED,
        not_valid_after=now + validity,
    )


def _key_usage(*, is_authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not is_authority,
        key_cert_sign=is_authority,
        crl_sign=is_authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
