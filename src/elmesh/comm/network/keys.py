"""The keys of an agent for one run, and how others know that they are its own.

From one secret seed, drawn when a run starts, an agent derives an X25519 key for agreement on secrets with others, an
Ed25519 key for signatures, its run number, and the key of its noise. Its *key bundle* has the public keys, a commitment
to the run number, the number of the agent's rows, rounded down to one digit, and the end of its log of releases, signed
with the key of its certificate. So whoever trusts the authority that signed the certificate knows whose keys they are,
also of agents that are no neighbours, and can tell later whether that log was replaced. Keys last for one run, and are
erased with its checkpoint: who obtains a key later cannot read what was sent before.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Annotated, Protocol

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

from elmesh.comm.masking import MaskSecret, commitment_of
from elmesh.comm.network.wire import WireError
from elmesh.comm.row_counts import round_down
from elmesh.errors import ElmeshError

__all__ = ["MAX_BUNDLE_BYTES", "Credentials", "PublicKeys", "RunKeys", "make_bundle", "open_bundle"]

#: Bytes of the largest key bundle: a few certificates of at most 2 kB each.
MAX_BUNDLE_BYTES = 8192
_Key = Annotated[bytes, msgspec.Meta(min_length=32, max_length=32)]


class Credentials(Protocol):
    """The certificate of an agent, its key, and the authorities that are trusted."""

    @property
    def chain(self) -> list[bytes]:
        """The certificate and any intermediate ones, each in DER."""

    @property
    def former_chains(self) -> list[list[bytes]]:
        """The same of certificates that the agent had before."""

    def sign(self, data: bytes) -> bytes:
        """Sign with the key of the certificate."""

    def verify(
        self, name: str, chain: Sequence[bytes], data: bytes, signature: bytes, at: datetime | None = None
    ) -> bytes:
        """Return the public key of a certificate that has signed the data, if it is valid for a name; raise otherwise.

        It must be valid now, or ``at`` a time.
        """


@dataclass(frozen=True)
class RunKeys:
    """The secrets of one run, all derived from ``seed``."""

    seed: bytes = field(repr=False)

    @cached_property
    def mask(self) -> MaskSecret:
        """The key for agreement on masks, and the run number."""
        return MaskSecret.from_seed(self.seed)

    @cached_property
    def signing(self) -> Ed25519PrivateKey:
        """The key for signatures."""
        return Ed25519PrivateKey.from_private_bytes(self._derive(b"signing"))

    def noise(self, epoch: bytes) -> bytes:
        """Return the key of this agent's noise while some agents are evicted."""
        return self._derive(b"noise " + epoch)

    def without(self, epoch: bytes) -> RunKeys:
        """Return the keys for sums without agents that were evicted: others know no run number of them yet."""
        return RunKeys(self._derive(b"without " + epoch))

    def _derive(self, label: bytes) -> bytes:
        return HKDFExpand(hashes.SHA256(), 32, b"elmesh " + label).derive(self.seed)


class _Content(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What an agent signs."""

    name: str
    network: _Key
    run_id: int
    rows: Annotated[int, msgspec.Meta(ge=0, le=10**12)]
    agreement: _Key
    signing: _Key
    commitment: _Key
    log_lines: Annotated[int, msgspec.Meta(ge=0, le=10**12)]
    log_end: _Key


class _Bundle(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    content: bytes
    chain: Annotated[list[bytes], msgspec.Meta(min_length=1, max_length=8)]
    signature: bytes


# Made here: msgspec prepares a type when it is first used, and two threads that receive bundles must not do so at once,
# which crashes the process (msgspec 0.22).
_DECODE_CONTENT, _DECODE_BUNDLE = msgspec.msgpack.Decoder(_Content).decode, msgspec.msgpack.Decoder(_Bundle).decode


@dataclass(frozen=True)
class PublicKeys:
    """The verified keys of an agent for one run, that of its certificate, and about how many rows it has at least.

    ``log_lines`` and ``log_end`` are the length of its log of releases, and the digest of its last line.
    """

    name: str
    run_id: int
    rows: int
    agreement: bytes
    signing: bytes
    commitment: bytes
    certificate: bytes
    log_lines: int = 0
    log_end: bytes = bytes(32)

    def check_signature(self, data: bytes, signature: bytes) -> None:
        """Raise unless the agent has signed the data in this run."""
        try:
            Ed25519PublicKey.from_public_bytes(self.signing).verify(signature, data)
        except (InvalidSignature, ValueError):
            raise WireError(f"a signature is not that of {self.name}") from None

    @property
    def digest(self) -> bytes:
        """SHA-256 of all of it."""
        keys = self.certificate, self.agreement, self.signing, self.commitment, self.log_end
        parts = [hashlib.sha256(part).digest() for part in (self.name.encode(), *keys)]
        numbers = [number.to_bytes(8, "little") for number in (self.run_id, self.rows, self.log_lines)]
        return hashlib.sha256(b"".join([*parts, *numbers])).digest()


def make_bundle(
    name: str,
    network: bytes,
    run_id: int,
    keys: RunKeys,
    credentials: Credentials,
    rows: int = 0,
    log: tuple[int, bytes] = (0, bytes(32)),
) -> bytes:
    """Return an agent's key bundle.

    ``network`` is the digest of the network file, ``rows`` the agent's number of rows, and ``log`` the number of lines
    of its log and the digest of the last one.
    """
    signing = keys.signing.public_key().public_bytes_raw()
    public = keys.mask.public, signing, commitment_of(keys.mask.number)
    fields = _Content(name, network, run_id, round_down(rows), *public, *log)
    content = msgspec.msgpack.encode(fields)
    return msgspec.msgpack.encode(_Bundle(content, credentials.chain, credentials.sign(content)))


def open_bundle(data: bytes, network: bytes, credentials: Credentials) -> PublicKeys:
    """Return the keys in a bundle; raise :class:`WireError` unless they are signed by the agent that it names."""
    try:
        if len(data) > MAX_BUNDLE_BYTES:
            raise WireError("its key bundle is too large")
        bundle = _DECODE_BUNDLE(data)
        content = _DECODE_CONTENT(bundle.content)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise WireError("its key bundle is not valid") from None
    if content.network != network:
        raise WireError("its keys are for another network file")
    if not 0 < content.run_id < 1 << 63:
        raise WireError("its key bundle is not valid")
    try:
        certificate = credentials.verify(content.name, bundle.chain, bundle.content, bundle.signature)
    except ElmeshError as error:
        raise WireError(f"the keys of {content.name[:40]!r} are not valid ({str(error).rstrip('.')})") from None
    keys = content.agreement, content.signing, content.commitment, certificate
    return PublicKeys(content.name, content.run_id, content.rows, *keys, content.log_lines, content.log_end)
