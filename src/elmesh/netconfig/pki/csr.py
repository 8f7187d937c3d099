"""Certificate signing requests: made by an agent, and checked by the authority before it signs."""

from __future__ import annotations

import contextlib
import ipaddress
from collections.abc import Sequence

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.x509.oid import NameOID

from elmesh.errors import ElmeshError
from elmesh.netconfig.names import check_name

__all__ = ["alternative_names", "common_name", "host_names", "load_request", "make_request", "make_subject"]

_MAX_BYTES = 64 * 2**10
_CURVES = ("secp256r1", "secp384r1")
_MIN_RSA_BITS = 2048


def make_request(key: PrivateKeyTypes, name: str, hosts: Sequence[str]) -> bytes:
    """Return a request for a certificate, in PEM, for host names and IP addresses; it contains no secret."""
    if not isinstance(key, ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey) or not _is_strong(key.public_key()):
        raise ElmeshError("The key is too weak or of another type; use EC P-256 or RSA with 2048 bits.")
    request = (
        x509.CertificateSigningRequestBuilder()
        .subject_name(make_subject(check_name("The name of an agent", name)))
        .add_extension(alternative_names(hosts), critical=False)
        .sign(key, hashes.SHA256())
    )
    return request.public_bytes(serialization.Encoding.PEM)


def load_request(data: bytes) -> tuple[str, x509.CertificateSigningRequest]:
    """Load a request in PEM, signed with the key that it contains; return the agent's name and the request."""
    try:
        if len(data) > _MAX_BYTES:
            raise ValueError
        request = x509.load_pem_x509_csr(data)
        key = request.public_key()
        valid = request.is_signature_valid
    except (ValueError, UnsupportedAlgorithm, InvalidSignature):
        raise ElmeshError("This is not a request for a certificate; expected a request in PEM.") from None
    if not valid:
        raise ElmeshError("The request is not signed with the key that it contains; make it again.")
    if not _is_strong(key):
        raise ElmeshError("The key of the request is too weak or of another type; use EC P-256 or RSA with 2048 bits.")
    return check_name("The common name in the request", common_name(request.subject)), request


def make_subject(name: str) -> x509.Name:
    """Return a subject that consists of a common name."""
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def common_name(subject: x509.Name) -> str:
    """Return the common name of a subject, empty unless there is exactly one."""
    found = [str(attribute.value) for attribute in subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
    return found[0] if len(found) == 1 else ""


def host_names(extensions: x509.Extensions) -> list[str]:
    """Return the host names and IP addresses in the subject alternative names."""
    try:
        found = extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    return [*found.get_values_for_type(x509.DNSName), *map(str, found.get_values_for_type(x509.IPAddress))]


def alternative_names(hosts: Sequence[str]) -> x509.SubjectAlternativeName:
    """Return hosts as subject alternative names."""
    return x509.SubjectAlternativeName([_alternative_name(host) for host in hosts])


def _alternative_name(host: str) -> x509.GeneralName:
    with contextlib.suppress(ValueError):
        return x509.IPAddress(ipaddress.ip_address(host))
    return x509.DNSName(host)


def _is_strong(key: object) -> bool:
    if isinstance(key, ec.EllipticCurvePublicKey):
        return key.curve.name in _CURVES
    return isinstance(key, rsa.RSAPublicKey) and key.key_size >= _MIN_RSA_BITS
