r"""Masks: every party hides its term of a sum, and only the total over all parties comes out.

Each pair of partners (:mod:`elmesh.comm.partners`) has a secret key, from which both compute the same stream of
pseudo-random words for every sum. One of the two adds the stream to its term and the other subtracts it, modulo
:math:`2^{64}` (or :math:`2^{32}`, :math:`2^{16}`):

.. math:: \tilde x_i = x_i + \sum_{j>i} s_{ij} - \sum_{j<i} s_{ij} , \qquad \sum_i \tilde x_i = \sum_i x_i .

A term with its masks is a one-time pad: to whoever lacks one of its streams it is uniformly random. So

- a stream is used once. Its key is derived by HKDF-SHA256 from the X25519 secret of the pair, both parties' fresh
  256-bit run numbers, the parties that were evicted, and for each sum its topic, counter, size and bits; the words are
  AES-256 in counter mode under that key, which is used for nothing else;
- the key of a stream also depends on the *view*, a digest of all public keys and of all totals so far. Parties that
  were sent different totals have different streams from then on, which do not cancel;
- every message ends with words of 64 zero bits, and totals of 64-bit integers have at least 16 unused high bits
  (:mod:`elmesh.comm.fixed_point`). Where a mask is missing or does not cancel these are random, and the sum is refused.

All of the cryptography is that of the package ``cryptography``.
"""

from __future__ import annotations

import hashlib
import secrets
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elmesh.comm.fixed_point import TOTAL_BITS
from elmesh.comm.partners import draw_partners
from elmesh.comm.requests import IntegerSum
from elmesh.comm.transport import CHECK_BITS
from elmesh.errors import ElmeshError
from elmesh.typing import FloatArray, IntArray

try:
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF, HKDFExpand
except ImportError as error:
    raise ElmeshError(
        'Masked sums need the package cryptography, which is not installed; run pip install "elmesh[network]".'
    ) from error

__all__ = [
    "MaskError",
    "MaskSecret",
    "MaskedSums",
    "PairwiseMasks",
    "commitment_of",
    "number_digest",
]

#: Unsigned integers of 16, 32 or 64 bits.
Words = NDArray[Any]
# Streams are of little-endian words.
_BIG_ENDIAN = sys.byteorder == "big"


class MaskError(ElmeshError):
    """A total that masks do not cancel in."""


@dataclass(frozen=True)
class MaskSecret:
    """What one party keeps to itself: its key for agreement on masks, and its run number until it is revealed."""

    key: X25519PrivateKey = field(repr=False)
    number: bytes = field(repr=False)

    @classmethod
    def from_seed(cls, seed: bytes) -> MaskSecret:
        """Derive both from a secret seed of 32 bytes."""
        return cls(X25519PrivateKey.from_private_bytes(_derive(seed, b"agreement")), _derive(seed, b"run number"))

    @classmethod
    def generate(cls) -> MaskSecret:
        """Draw both from the randomness of the operating system."""
        return cls.from_seed(secrets.token_bytes(32))

    @cached_property
    def public(self) -> bytes:
        """The public key, 32 bytes."""
        return self.key.public_key().public_bytes_raw()

    def agree(self, public: bytes, number: bytes, context: bytes) -> bytes:
        """Return the secret key that is shared with the holder of a public key and a run number, in a context."""
        try:
            shared = self.key.exchange(X25519PublicKey.from_public_bytes(public))
        except ValueError:
            # A point of low order gives the same secret with every key.
            raise ElmeshError("its key for agreement is not valid") from None
        salt, pair = (b"".join(sorted(both)) for both in ([self.number, number], [self.public, public]))
        return HKDF(hashes.SHA256(), 32, salt, b"elmesh mask " + pair + context).derive(shared)


def _derive(seed: bytes, label: bytes) -> bytes:
    return HKDFExpand(hashes.SHA256(), 32, b"elmesh " + label).derive(seed)


def commitment_of(number: bytes) -> bytes:
    """Return the commitment to a run number: it reveals nothing of it, and fits no other."""
    return hashlib.sha256(b"elmesh commitment" + number).digest()


def number_digest(numbers: Sequence[bytes]) -> bytes:
    """Return the hash of all parties' run numbers, in their order."""
    return hashlib.sha256(b"elmesh run numbers" + b"".join(numbers)).digest()


def _within(integers: IntArray, bound: int) -> bool:
    """Return whether all integers are below a bound in magnitude."""
    return not len(integers) or (int(integers.max()) < bound and int(integers.min()) > -bound)


class PairwiseMasks:
    """The masks of party ``me``: one secret key for each of its partners, by their numbers."""

    def __init__(self, me: int, keys: Mapping[int, bytes]) -> None:
        self._me, self._keys = me, dict(keys)

    @classmethod
    def agree(
        cls, me: int, secret: MaskSecret, public: Sequence[bytes], numbers: Sequence[bytes], context: bytes
    ) -> PairwiseMasks:
        """Agree with all partners, from the public keys and the run numbers of all parties."""
        partners = draw_partners(len(public), number_digest(numbers))[me]
        return cls(me, {j: secret.agree(public[j], numbers[j], context) for j in partners})

    @property
    def partners(self) -> list[int]:
        """The parties that this one shares masks with."""
        return sorted(self._keys)

    def add(self, words: Words, label: bytes) -> Words:
        """Return words with all masks of a sum, which is identified by its label."""
        total = words.copy()
        # Memory that is allocated anew for every stream would take longer than the cipher.
        zeros, stream = np.zeros_like(words), np.empty_like(words)
        for j, key in self._keys.items():
            self.stream(key, label, zeros.data.cast("B"), stream.data.cast("B"))
            if _BIG_ENDIAN:
                stream.byteswap(inplace=True)
            if j > self._me:
                total += stream
            else:
                total -= stream
        return total

    @staticmethod
    def stream(key: bytes, label: bytes, zeros: memoryview, out: memoryview) -> None:
        """Write pseudo-random bytes under a key that is derived for one label; ``zeros`` has as many zero bytes."""
        once = HKDFExpand(hashes.SHA256(), 32, label).derive(key)
        # The key is used for this stream alone, so that the counter may start at zero.
        Cipher(algorithms.AES(once), modes.CTR(bytes(16))).encryptor().update_into(zeros, out)


class MaskedSums:
    """The masked sums of one party, one after another.

    Attributes
    ----------
    counter : int
        Sums so far.
    view : bytes
        Digest of what ``view`` was at the start (all public keys), and of all totals so far.
    """

    def __init__(self, masks: PairwiseMasks, view: bytes) -> None:
        self._masks, self.counter, self.view = masks, 0, view

    def label(self, request: IntegerSum) -> bytes:
        """Return what identifies the next sum."""
        text = f"{request.topic} {self.counter} {len(request.value)} {request.bits} "
        return b"elmesh sum " + text.encode() + self.view

    def mask(self, request: IntegerSum) -> Words:
        """Return this party's term of the next sum with its masks, and zero words to check the total by."""
        largest = 1 << (TOTAL_BITS if request.bits == 64 else request.bits - 1)
        if not _within(request.value, largest):
            raise MaskError(f"A term of a sum is not within its bound of {largest}; scale inputs and targets.")
        padded = np.zeros(len(request.value) + CHECK_BITS // request.bits, f"u{request.bits // 8}")
        padded[: len(request.value)] = request.value.astype(padded.dtype)
        return self._masks.add(padded, self.label(request))

    def unmask(self, total: Words, request: IntegerSum) -> IntArray:
        """Return the total of all parties' terms, and go on to the next sum; raise if a mask has not cancelled."""
        k = len(request.value)
        signed = total.view(np.dtype(f"i{request.bits // 8}"))[:k].astype(np.int64)
        within = request.bits < 64 or _within(signed, 1 << TOTAL_BITS)
        if total[k:].any() or not within:
            raise MaskError(
                "The masks of a sum do not cancel: a site has left out a mask, has other keys, or was sent other "
                "totals. No model is made of it; start again with --fresh at every site, and compare their keys."
            )
        digest = hashlib.sha256(self.label(request))
        digest.update(total.astype(total.dtype.newbyteorder("<"), copy=False).data)
        self.view = digest.digest()
        self.counter += 1
        return signed

    def state_dict(self) -> dict[str, FloatArray]:
        """Return what to resume from."""
        view = np.frombuffer(self.view, np.uint8).astype(np.float64)
        return {"mask/counter": np.array(float(self.counter)), "mask/view": view}

    def load_state_dict(self, arrays: Mapping[str, FloatArray]) -> None:
        """Resume from :meth:`state_dict`."""
        self.counter = int(arrays["mask/counter"])
        self.view = arrays["mask/view"].astype(np.uint8).tobytes()
