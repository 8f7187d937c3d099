r"""Numbers as integers, so that sums over agents are equal to the bit in any order and along any tree.

Two forms:

- *scaled*: a number x is the integer nearest to :math:`x\,2^e`, with an exponent e that all agents compute from a
  common bound on the sum of all terms, so that it cannot overflow;
- *wide*: a number is three integers (limbs), which represent any number below :math:`2^{80}` to an absolute precision
  of :math:`2^{-61}`; for the few numbers for which no bound is known beforehand.
"""

from __future__ import annotations

import math

import numpy as np

from elmesh.errors import ElmeshError
from elmesh.typing import FloatArray, IntArray

__all__ = ["LIMBS", "exponent_for", "from_scaled", "from_wide", "to_scaled", "to_wide"]

#: Integers per number of the wide form.
LIMBS = 3
# The limbs are multiples of these powers of two: 46 bits each, so that 2**17 of them can be added.
_HIGH, _MIDDLE, _LOW = 34, -13, -60
_LARGEST = 2.0**80
# Bits of a sum of scaled integers, its sign aside.
_BITS = 61
# Exponents whose power of two is a normal number.
_PLAIN = 1000


def exponent_for(bound: float) -> int:
    """Return the exponent of scaled integers whose sums are at most ``bound``.

    Examples
    --------
    >>> exponent_for(1.0), exponent_for(1000.0)
    (60, 51)
    """
    if not math.isfinite(bound):
        raise ElmeshError("A sum over all sites is not finite; scale inputs and targets to about one.")
    return _BITS - math.frexp(bound)[1] if bound > 0 else 0


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
    """Return three integers per number, along a new last axis.

    Examples
    --------
    >>> float(from_wide(to_wide(np.array([1e-9, -3.0])).sum(axis=0)))
    -2.999999999
    """
    if not np.all(np.abs(x) < _LARGEST):
        raise ElmeshError("A number that is summed over all sites is not finite or above 1e24; scale the data.")
    high = np.rint(np.ldexp(x, -_HIGH))
    rest = x - np.ldexp(high, _HIGH)
    middle = np.rint(np.ldexp(rest, -_MIDDLE))
    low = np.rint(np.ldexp(rest - np.ldexp(middle, _MIDDLE), -_LOW))
    return np.stack([high, middle, low], axis=-1).astype(np.int64)


def from_wide(limbs: IntArray) -> FloatArray:
    """Return the numbers that limbs along the last axis represent."""
    high, middle, low = np.moveaxis(limbs.astype(np.float64), -1, 0)
    return np.asarray(np.ldexp(high, _HIGH) + (np.ldexp(middle, _MIDDLE) + np.ldexp(low, _LOW)))[()]
