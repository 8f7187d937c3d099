"""A number per row that follows from its content and a seed, and has nothing else to do with it.

Where some rows are drawn, or divided, it is by their keys: so the order of rows does not matter, nor the parts in which
they were read, and a row that comes later or is taken away does not move the others.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from elmesh.typing import FloatArray

__all__ = ["KeyArray", "place_keys", "row_keys"]

KeyArray = NDArray[np.uint64]
# Bits at the end of a double that do not count.
_LAST_BITS = np.uint64(20)
# Rows whose bits are mixed at a time, so that they fit the cache.
_BLOCK = 2048


def place_keys(first: int, n: int) -> KeyArray:
    """Return a number for each of n consecutive places that has nothing to do with their order.

    It is the finalizer of the hash function murmur3. The places with the smallest numbers are a random sample.
    """
    x = np.arange(first, first + n, dtype=np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
        x = (x ^ (x >> np.uint64(33))) * np.uint64(factor)
    return np.asarray(x ^ (x >> np.uint64(33)))


def row_keys(rows: FloatArray, seed: int) -> KeyArray:
    """Return the key of each row.

    The last digits do not count: targets in other units, which are scaled with other rounding, give the same number.

    Examples
    --------
    >>> rows = np.array([[1.0, 2.0], [3.0, 4.0]])
    >>> bool(np.all(row_keys(rows, 7)[::-1] == row_keys(rows[::-1], 7)))
    True
    """
    factors = np.random.PCG64(np.random.SeedSequence((seed, 2))).random_raw(rows.shape[1] + 1) | np.uint64(1)
    keys = np.empty(len(rows), dtype=np.uint64)
    for start in range(0, len(rows), _BLOCK):
        # Adding zero makes the two zeros one.
        bits = np.ascontiguousarray(rows[start : start + _BLOCK] + 0.0).view(np.uint64)
        bits += np.uint64(1) << (_LAST_BITS - np.uint64(1))
        bits >>= _LAST_BITS
        bits ^= bits >> np.uint64(29)
        bits *= factors[:-1]
        bits ^= bits >> np.uint64(32)
        keys[start : start + _BLOCK] = bits.sum(axis=1, dtype=np.uint64)
    keys *= factors[-1]
    return np.asarray(keys ^ (keys >> np.uint64(32)))
