"""Keys, requests and certificates: how an agent proves who it is.

An agent makes a private key, which never leaves its site, and a request that says its name and its hosts. An authority
signs the request; the certificate is good for both ends of a connection, and names the agent in its common name and
its hosts in the subject's alternative names. Everything is X.509 v3 with keys on the curve P-256, as any TLS takes.
"""

from __future__ import annotations

import contextlib
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from elmesh.errors import ElmeshError
from elmesh.netconfig.keys import make_key, need_cryptography, public_bytes, read_key, write_new
from elmesh.netconfig.names import check_name

# Only those who run a network need it, and all modules can be imported without.
with contextlib.suppress(ImportError):
    from cryptography import x509
    from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec, rsa
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

__all__ = [
    "Authority",
    "common_name",
    "make_authority",
    "make_key",
    "make_request",
    "request_name",
    "sign",
]

CA_KEY, CA_CERTIFICATE = "ca.key", "ca.pem"
# Clocks differ, and some are an hour off for half of the year.
_EARLIER = timedelta(hours=2)
_LONGEST_REQUEST = 64 * 2**10
_CURVES = ("secp256r1", "secp384r1")
_LEAST_BITS = 2048


@dataclass(frozen=True)
class Authority:
    """Who signs certificates.

    Attributes
    ----------
    certificate
        Its own, which everybody holds.
    key
        Its private key, which nobody else does.
    """

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey = field(repr=False)

    @classmethod
    def read(cls, folder: str | Path) -> Authority:
        """Read what :func:`make_authority` wrote.

        Parameters
        ----------
        folder
            The folder with ``ca.key`` and ``ca.pem``.
        """
        need_cryptography()
        folder = Path(folder)
        for name in (CA_KEY, CA_CERTIFICATE):
            if not (folder / name).is_file():
                raise ElmeshError(
                    f"{folder} has no file {name}; give the folder of the authority that elmesh network create made."
                )
        key = read_key(folder / CA_KEY)
        try:
            certificate = x509.load_pem_x509_certificate((folder / CA_CERTIFICATE).read_bytes())
        except ValueError:
            raise ElmeshError(f"{folder / CA_CERTIFICATE} holds no certificate; expected one in PEM.") from None
        same = public_bytes(key.public_key()) == public_bytes(certificate.public_key())
        if not isinstance(key, ec.EllipticCurvePrivateKey) or not same:
            raise ElmeshError(f"{folder / CA_KEY} is not the key of {folder / CA_CERTIFICATE}.")
        return cls(certificate, key)

    @property
    def pem(self) -> bytes:
        """Its certificate as a file holds it."""
        return self.certificate.public_bytes(serialization.Encoding.PEM)


def make_authority(folder: str | Path, network_name: str, years: int = 10, *, now: datetime | None = None) -> Authority:
    """Make an authority that may sign agents' certificates, and no other authority's.

    Parameters
    ----------
    folder
        Where ``ca.key`` (for this user's eyes only) and ``ca.pem`` go. It is made if need be.
    network_name
        The network whose authority it is.
    years
        For how long it is good.
    now
        From when on, if not from now.
    """
    need_cryptography()
    folder = Path(folder)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    check_name(network_name, "The network's name")
    now = now or datetime.now(UTC)
    key = make_key(folder / CA_KEY)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"{network_name} authority")])
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    certificate = (
        _builder(name, name, key.public_key(), now, timedelta(days=round(365.25 * years)))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(identifier, critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier), critical=False)
        .sign(key, hashes.SHA256())
    )
    authority = Authority(certificate, key)
    write_new(folder / CA_CERTIFICATE, authority.pem)
    return authority


def make_request(key: ec.EllipticCurvePrivateKey, name: str, hosts: Sequence[str]) -> bytes:
    """Ask for a certificate.

    Parameters
    ----------
    key
        The agent's private key.
    name
        The agent's name.
    hosts
        Names and numbers by which others reach it, as :attr:`~elmesh.netconfig.names.Address.hosts` has them.

    Returns
    -------
    bytes
        A request in PEM, to be sent to the authority. It holds no secret.
    """
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, check_name(name, "The name of an agent"))])
    request = (
        x509.CertificateSigningRequestBuilder()
        .subject_name(subject)
        .add_extension(_alternative_names(hosts), critical=False)
        .sign(key, hashes.SHA256())
    )
    return request.public_bytes(serialization.Encoding.PEM)


def request_name(request: bytes) -> str:
    """Say whose request it is, having seen that its sender holds the key.

    Parameters
    ----------
    request
        In PEM.
    """
    return check_name(common_name(_load(request).subject), "The common name in the request")


def sign(
    request: bytes,
    authority: Authority,
    days: int = 365,
    *,
    hosts: Sequence[str] | None = None,
    now: datetime | None = None,
) -> bytes:
    """Give an agent a certificate.

    Parameters
    ----------
    request
        What :func:`make_request` gave, or another request in PEM for a name that an agent may have.
    authority
        Who signs.
    days
        For how long it is good; not for longer than the authority itself.
    hosts
        Names and numbers by which others reach the agent; those of the request by default.
    now
        From when on, if not from now.

    Returns
    -------
    bytes
        The certificate in PEM.
    """
    asked = _load(request)
    now = now or datetime.now(UTC)
    if not now < authority.certificate.not_valid_after_utc:
        raise ElmeshError(
            f"The authority's own certificate ended on {authority.certificate.not_valid_after_utc:%Y-%m-%d}."
        )
    name = check_name(common_name(asked.subject), "The common name in the request")
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    length = min(timedelta(days=days), authority.certificate.not_valid_after_utc - now)
    signer = authority.certificate.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    certificate = (
        _builder(subject, authority.certificate.subject, asked.public_key(), now, length)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(
            x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH]), critical=False
        )
        .add_extension(_alternative_names(_hosts_of(asked) if hosts is None else hosts), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(asked.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(signer), critical=False)
        .sign(authority.key, hashes.SHA256())
    )
    return certificate.public_bytes(serialization.Encoding.PEM)


def common_name(subject: x509.Name) -> str:
    """Give the common name of a subject, empty unless there is exactly one."""
    found = [str(attribute.value) for attribute in subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
    return found[0] if len(found) == 1 else ""


def _load(request: bytes) -> x509.CertificateSigningRequest:
    """Read a request that was signed with the key it is for, which is a key to rely on."""
    need_cryptography()
    try:
        if len(request) > _LONGEST_REQUEST:
            raise ValueError
        asked = x509.load_pem_x509_csr(request)
        key = asked.public_key()
        valid = asked.is_signature_valid
    except (ValueError, UnsupportedAlgorithm, InvalidSignature):
        raise ElmeshError("This is no request for a certificate; expected a PEM file of one.") from None
    if not valid:
        raise ElmeshError("The request is not signed with the key that it is for; make it again.")
    if not _is_strong(key):
        raise ElmeshError("The request is for a key that is too weak or of another kind; use EC P-256 or RSA of 2048.")
    return asked


def _is_strong(key: object) -> bool:
    if isinstance(key, ec.EllipticCurvePublicKey):
        return key.curve.name in _CURVES
    return isinstance(key, rsa.RSAPublicKey) and key.key_size >= _LEAST_BITS


def _builder(
    subject: x509.Name, issuer: x509.Name, key: object, now: datetime, length: timedelta
) -> x509.CertificateBuilder:
    return x509.CertificateBuilder(
        issuer_name=issuer,
        subject_name=subject,
        public_key=key,  # type: ignore[arg-type]  # checked to be of a kind that certificates take
        serial_number=x509.random_serial_number(),
        not_valid_before=now - _EARLIER,
        not_valid_after=now + length,
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _hosts_of(asked: x509.CertificateSigningRequest) -> list[str]:
    try:
        found = asked.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (x509.ExtensionNotFound, ValueError):
        raise ElmeshError("The request names no hosts; make it with elmesh network csr.") from None
    return [*found.get_values_for_type(x509.DNSName), *map(str, found.get_values_for_type(x509.IPAddress))]


def _alternative_names(hosts: Sequence[str]) -> x509.SubjectAlternativeName:
    if not hosts:
        raise ElmeshError("A certificate must name a host at least.")
    return x509.SubjectAlternativeName([_alternative_name(host) for host in hosts])


def _alternative_name(host: str) -> x509.GeneralName:
    with contextlib.suppress(ValueError):
        return x509.IPAddress(ipaddress.ip_address(host))
    return x509.DNSName(host)
