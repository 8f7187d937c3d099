r"""Numbers as integers, so that sums over agents are equal to the bit in any order and along any tree.

Two forms:

- *scaled*: a number x is the integer nearest to :math:`x\,2^e`, with an exponent e that all agents compute from a
  common bound on the sum of all terms, so that it cannot overflow;
- *wide*: a number is five integers (limbs), which represent any number below :math:`2^{80}` to an absolute precision
  of :math:`2^{-71}`; for the few numbers for which no bound is known beforehand.

In both forms a total is below :math:`2^{47}`: of a 64-bit integer, 16 high bits beside the sign are not used. A total
that is not below it has not come from terms within their bounds (:mod:`elmesh.comm.masking`).
"""

from __future__ import annotations

import math

import numpy as np

from elmesh.errors import ElmeshError
from elmesh.typing import FloatArray, IntArray

__all__ = ["LIMBS", "TOTAL_BITS", "exponent_for", "from_scaled", "from_wide", "scaled_exponent", "to_scaled", "to_wide"]

#: Every total of integers is below this power of two, its sign aside.
TOTAL_BITS = 47
# Bits of a limb, so that 2**17 of them can be added; and the powers of two that limbs are multiples of.
_WIDTH = 30
_HALF = 1 << (_WIDTH - 1)
_POWERS = (50, 20, -10, -40, -70)
#: Integers per number of the wide form.
LIMBS = len(_POWERS)
_LARGEST = 2.0**80
# Bits of a sum of scaled integers, its sign aside: one less than of a total, for the rounding of terms.
_BITS = TOTAL_BITS - 1
# Exponents whose power of two is a normal number.
_PLAIN = 1000


def exponent_for(bound: float, bits: int = _BITS) -> int:
    """Return the exponent of scaled integers whose sums are at most ``bound``, with so many bits beside the sign.

    Examples
    --------
    >>> exponent_for(1.0), exponent_for(1000.0)
    (45, 36)
    """
    if not math.isfinite(bound):
        raise ElmeshError("A sum over all sites is not finite; scale inputs and targets to about one.")
    return bits - math.frexp(bound)[1] if bound > 0 else 0


def scaled_exponent(bound: float, bits: int) -> int:
    """Return the exponent of scaled integers whose totals, of so many bits, are at most ``bound``."""
    # With fewer bits all of them are used, but for one of the sign and one for the rounding of terms.
    return exponent_for(bound) if bits == 64 else exponent_for(bound, bits - 2)


def to_scaled(x: FloatArray, exponent: int) -> IntArray:
    """Return the nearest integers to numbers times a power of two.

    Examples
    --------
    >>> to_scaled(np.array([0.5, -1.25]), 2)
    array([ 2, -5])
    """
    # A product is faster than ldexp, and as exact as long as its factor is a number.
    scaled = x * 2.0**exponent if abs(exponent) < _PLAIN else np.ldexp(x, exponent)
    return np.rint(scaled).astype(np.int64)


def from_scaled(n: IntArray, exponent: int) -> FloatArray:
    """Return the numbers that scaled integers represent."""
    return np.asarray(np.ldexp(n.astype(np.float64), -exponent))


def to_wide(x: FloatArray) -> IntArray:
    """Return the limbs of each number, along a new last axis.

    Examples
    --------
    >>> float(from_wide(to_wide(np.array([1e-9, -3.0])).sum(axis=0)))
    -2.999999999
    """
    if not np.all(np.abs(x) < _LARGEST):
        raise ElmeshError("A number that is summed over all sites is not finite or above 1e24; scale the data.")
    limbs, rest = [], x
    for power in _POWERS:
        limbs.append(np.rint(np.ldexp(rest, -power)))
        rest = rest - np.ldexp(limbs[-1], power)
    return np.stack(limbs, axis=-1).astype(np.int64)


def from_wide(limbs: IntArray) -> FloatArray:
    """Return the numbers that limbs along the last axis represent."""
    parts = [limbs[..., k] for k in range(LIMBS)]
    for k in range(LIMBS - 1, 0, -1):
        # What exceeds a limb belongs to the one above it: otherwise large limbs of opposite sign hide the small ones.
        carry = (parts[k] + _HALF) >> _WIDTH
        parts[k], parts[k - 1] = parts[k] - (carry << _WIDTH), parts[k - 1] + carry
    total = np.zeros(limbs.shape[:-1])
    for part, power in zip(reversed(parts), reversed(_POWERS), strict=True):
        total = np.ldexp(part.astype(np.float64), power) + total
    return np.asarray(total)[()]
