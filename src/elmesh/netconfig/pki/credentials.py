"""What an agent proves itself with, and verifies others by: its certificate and key, and the trusted authorities."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.serialization import Encoding

from elmesh.errors import ElmeshError
from elmesh.netconfig.pki.csr import common_name
from elmesh.netconfig.pki.keys import public_bytes, read_key
from elmesh.netconfig.pki.revocation import Revocations
from elmesh.netconfig.pki.verify import load_certificates, verify_chain

__all__ = ["CertificateCredentials"]

_PSS = padding.PSS(padding.MGF1(hashes.SHA256()), padding.PSS.DIGEST_LENGTH)


class CertificateCredentials:
    """The certificate of an agent with its key, and the authorities in a file, as they are now.

    ``former`` is a file of authorities that are trusted for earlier times only, and ``former_certificates`` one of
    certificates that the agent had before; they need not exist. ``now`` returns the current time.
    """

    def __init__(
        self,
        key: Path,
        certificate: Path,
        authority: Path,
        former: Path | None = None,
        former_certificates: Path | None = None,
        revocations: Revocations | None = None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        # All at once, because files may be replaced while the agent runs.
        self._private_key, self._key, self._now = read_key(key), key, now
        #: The certificate and any intermediate ones, each in DER.
        self.chain = [one.public_bytes(Encoding.DER) for one in load_certificates(certificate)]
        self._roots, self._earlier_roots = load_certificates(authority), _load(former)
        own = [one.public_bytes(Encoding.DER) for one in _load(former_certificates)]
        #: The same of certificates that the agent had before.
        self.former_chains = [[one, *(other for other in own if other != one)] for one in own]
        self._revocations = revocations or Revocations()

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
            roots = self._roots if at is None else [*self._roots, *self._earlier_roots]
            verify_chain(leaf, intermediates, roots, at or self._now(), f"of {name}")
            for one in (leaf, *intermediates) if at is None else ():
                self._revocations.check(one, "its certificate", self._now())
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


def _load(path: Path | None) -> list[x509.Certificate]:
    return [] if path is None or not path.is_file() else load_certificates(path)
