"""A number per row that follows from its content and a seed, and has nothing else to do with it.

Where some rows are drawn, or divided, it is by their keys: so the order of rows does not matter, nor the parts in which
they were read, and a row that comes later or is taken away does not move the others.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from elmesh.typing import FloatArray

__all__ = ["KeyArray", "row_keys"]

KeyArray = NDArray[np.uint64]
# Bits at the end of a double that do not count.
_LAST_BITS = np.uint64(20)


def row_keys(rows: FloatArray, seed: int) -> KeyArray:
    """Return the key of each row.

    The last digits do not count: targets in other units, which are scaled with other rounding, give the same number.

    Examples
    --------
    >>> rows = np.array([[1.0, 2.0], [3.0, 4.0]])
    >>> bool(np.all(row_keys(rows, 7)[::-1] == row_keys(rows[::-1], 7)))
    True
    """
    # Adding zero makes the two zeros one.
    bits = np.ascontiguousarray(rows + 0.0).view(np.uint64)
    bits = (bits + (np.uint64(1) << (_LAST_BITS - np.uint64(1)))) >> _LAST_BITS
    factors = np.random.PCG64(np.random.SeedSequence((seed, 2))).random_raw(rows.shape[1] + 1) | np.uint64(1)
    mixed = (bits ^ (bits >> np.uint64(29))) * factors[:-1]
    total = np.sum(mixed ^ (mixed >> np.uint64(32)), axis=1, dtype=np.uint64) * factors[-1]
    return np.asarray(total ^ (total >> np.uint64(32)))
