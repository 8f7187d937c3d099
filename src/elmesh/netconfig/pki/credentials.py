"""What an agent proves itself with, and verifies others by: its certificate and key, and the trusted authorities."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.hazmat.primitives.serialization import Encoding

from elmesh.errors import ElmeshError
from elmesh.netconfig.pki.csr import common_name
from elmesh.netconfig.pki.keys import public_bytes, read_key
from elmesh.netconfig.pki.verify import load_certificates, verify_chain

__all__ = ["CertificateCredentials"]

_PSS = padding.PSS(padding.MGF1(hashes.SHA256()), padding.PSS.DIGEST_LENGTH)


class CertificateCredentials:
    """The certificate of an agent with its key, and the authorities in a file.

    ``former`` is a file of authorities that are trusted for earlier times only; it need not exist. ``now`` returns the
    current time.
    """

    def __init__(
        self,
        key: Path,
        certificate: Path,
        authority: Path,
        former: Path | None = None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._key, self._certificate, self._authority, self._now = key, certificate, authority, now
        self._former = former

    @cached_property
    def chain(self) -> list[bytes]:
        """The certificate and any intermediate ones, each in DER."""
        return [one.public_bytes(Encoding.DER) for one in load_certificates(self._certificate)]

    @cached_property
    def _private_key(self) -> PrivateKeyTypes:
        return read_key(self._key)

    @cached_property
    def _roots(self) -> list[x509.Certificate]:
        return load_certificates(self._authority)

    @cached_property
    def _earlier_roots(self) -> list[x509.Certificate]:
        if self._former is None or not self._former.is_file():
            return self._roots
        return [*self._roots, *load_certificates(self._former)]

    def sign(self, data: bytes) -> bytes:
        """Sign with the key of the certificate."""
        key = self._private_key
        if isinstance(key, ec.EllipticCurvePrivateKey):
            return key.sign(data, ec.ECDSA(hashes.SHA256()))
        if isinstance(key, rsa.RSAPrivateKey):
            return key.sign(data, _PSS, hashes.SHA256())
        raise ElmeshError(f"The key {self._key} is of another type than EC or RSA.")

    def verify(
        self, name: str, chain: Sequence[bytes], data: bytes, signature: bytes, at: datetime | None = None
    ) -> bytes:
        """Return the public key of a certificate that has signed the data, if it is valid for a name; raise otherwise.

        It must be valid now, or ``at`` a time.
        """
        try:
            leaf, *intermediates = [x509.load_der_x509_certificate(one) for one in chain]
            key, found = leaf.public_key(), common_name(leaf.subject)
            if found != name:
                raise ElmeshError(f"the certificate is that of {found or 'no agent'!r}")
            roots = self._roots if at is None else self._earlier_roots
            verify_chain(leaf, intermediates, roots, at or self._now(), f"of {name}")
        except ElmeshError:
            raise
        except Exception:  # whatever a certificate from elsewhere makes a parser raise
            raise ElmeshError("its certificate cannot be read") from None
        try:
            if isinstance(key, ec.EllipticCurvePublicKey):
                key.verify(signature, data, ec.ECDSA(hashes.SHA256()))
            elif isinstance(key, rsa.RSAPublicKey):
                key.verify(signature, data, _PSS, hashes.SHA256())
            else:
                raise InvalidSignature
        except InvalidSignature:
            raise ElmeshError("they are not signed with the key of the certificate") from None
        return public_bytes(key)
