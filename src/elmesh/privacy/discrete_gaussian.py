r"""Discrete Gaussian noise from a secret seed, without the rounding of floating-point numbers.

A whole number z has probability proportional to :math:`\exp(-z^2/2\sigma^2)`, for a whole number :math:`\sigma`. It is
composed of x = 0, 1, 2, ... with probability proportional to :math:`\exp(-x^2/2)`, of y, uniform below
:math:`\sigma`, and of a sign:

.. math:: |z| = \sigma x + y \quad\text{accepted with probability}\quad \exp\bigl(-y(y + 2\sigma x)/2\sigma^2\bigr) .

Both signs of zero would count it twice, so that one of them is rejected. Random bits come from ChaCha20 under a key
that is derived from the seed for one use. Decisions are made by 64 random bits and doubles; if these do not settle one,
which happens once in :math:`10^{13}` times, by 192 further bits and a hundred decimal digits.

Noise of doubles can be recognised by its last bits, which depend on what it was added to (Mironov 2012). Here both are
whole numbers, added modulo a power of two: which sums are possible does not depend on the data, and their
probabilities are exactly those of the formula.
"""

from __future__ import annotations

import secrets
from decimal import Decimal, localcontext
from functools import cache

import numpy as np
from numpy.typing import NDArray

from elmesh.errors import ElmeshError
from elmesh.typing import IntArray

__all__ = ["NoiseSource", "discrete_gaussian"]

Words = NDArray[np.uint64]
# Relative error of a probability in doubles, with room to spare.
_ERROR = 2.0**-44
# Values of x beyond this have a probability below 2**-256.
_MOST_X = 20
_DIGITS, _MORE_BITS = 100, 192


class NoiseSource:
    """Noise from a secret seed: the same for the same label, and independent for different ones."""

    def __init__(self, seed: bytes) -> None:
        self._seed = seed

    @classmethod
    def fresh(cls) -> NoiseSource:
        """Return a source with a new seed, from the randomness of the operating system."""
        return cls(secrets.token_bytes(32))

    def draw(self, label: bytes, sigma: IntArray) -> IntArray:
        """Return independent discrete Gaussian numbers with these standard deviations, for one use."""
        return discrete_gaussian(_Bits(self._seed, label), sigma)


class _Bits:
    """A stream of random bits under a key of its own."""

    def __init__(self, seed: bytes, label: bytes) -> None:
        try:
            from cryptography.hazmat.primitives import hashes  # noqa: PLC0415  (part of an extra)
            from cryptography.hazmat.primitives.ciphers import Cipher, algorithms  # noqa: PLC0415  (as above)
            from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand  # noqa: PLC0415  (as above)
        except ImportError as error:
            raise ElmeshError(
                "Differential privacy needs the package cryptography, which is not installed; run pip install "
                '"elmesh[network]".'
            ) from error
        key = HKDFExpand(hashes.SHA256(), 32, b"elmesh noise " + label).derive(seed)
        # The key is used for this stream alone, so that the nonce may be zero.
        self._cipher = Cipher(algorithms.ChaCha20(key, bytes(16)), mode=None).encryptor()

    def words(self, n: int) -> Words:
        """Return the next n words of 64 bits."""
        return np.frombuffer(self._cipher.update(bytes(8 * n)), "<u8")

    def extend(self, word: int) -> int:
        """Return a number whose first 64 bits are a word, and whose others are random."""
        return (word << _MORE_BITS) | int.from_bytes(self._cipher.update(bytes(_MORE_BITS // 8)), "little")


def discrete_gaussian(bits: _Bits, sigma: IntArray) -> IntArray:
    """Return one number for each of these standard deviations, all of them at least one."""
    result, open_ = np.zeros(len(sigma), np.int64), np.arange(len(sigma))
    while len(open_):
        # Words are taken in one order whatever is accepted, four for each number that is still open.
        for_x, for_y, to_accept, for_sign = bits.words(4 * len(open_)).reshape(4, -1)
        s = sigma[open_].astype(np.uint64)
        x, y = _half_gaussian(bits, for_x), (for_y % s).astype(np.int64)
        whole = _MOST // s * s  # words from here on would favour small y
        negative = (for_sign & np.uint64(1)).astype(bool)
        z = sigma[open_] * x + y
        accepted = (for_y < whole) & ~(negative & (z == 0)) & _accept(bits, to_accept, x, y, sigma[open_])
        result[open_[accepted]] = np.where(negative, -z, z)[accepted]
        open_ = open_[~accepted]
    return result


_MOST = np.uint64(2**64 - 1)


def _half_gaussian(bits: _Bits, words: Words) -> IntArray:
    """Return x for each word: the number of cumulative probabilities that the word does not stay below."""
    exact = _cumulative()
    first = np.array([c >> _MORE_BITS for c in exact], dtype=np.uint64)
    x = np.searchsorted(first, words, side="right").astype(np.int64)
    for k in np.flatnonzero(np.isin(words, first)).tolist():
        number = bits.extend(int(words[k]))
        x[k] = sum(c <= number for c in exact)
    return x


@cache
def _cumulative() -> tuple[int, ...]:
    """Return the probabilities of x being at most 0, 1, 2, ... as whole numbers of 256 bits."""
    with localcontext() as context:
        context.prec = _DIGITS
        weights = [(Decimal(-x * x) / 2).exp() for x in range(_MOST_X + 1)]
        total = sum(weights, Decimal(0))
        scale = Decimal(2 ** (64 + _MORE_BITS))
        return tuple(int(sum(weights[: x + 1], Decimal(0)) / total * scale) for x in range(_MOST_X))


def _accept(bits: _Bits, words: Words, x: IntArray, y: IntArray, sigma: IntArray) -> NDArray[np.bool_]:
    """Return whether to accept each x and y."""
    share = y / sigma
    probability = np.exp(-share * (share + 2.0 * x) / 2.0)
    drawn = words.astype(np.float64) * 2.0**-64
    accepted = np.asarray(drawn < probability)
    for k in np.flatnonzero(np.abs(drawn - probability) <= _ERROR).tolist():
        accepted[k] = _accept_exactly(bits.extend(int(words[k])), int(x[k]), int(y[k]), int(sigma[k]))
    return accepted


def _accept_exactly(number: int, x: int, y: int, sigma: int) -> bool:
    """Return whether a number of 256 bits is below the probability of acceptance."""
    with localcontext() as context:
        context.prec = _DIGITS
        exponent = Decimal(-y * (y + 2 * sigma * x)) / (2 * sigma * sigma)
        return Decimal(number) < exponent.exp() * Decimal(2 ** (64 + _MORE_BITS))
