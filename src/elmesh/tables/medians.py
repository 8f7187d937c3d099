"""Exact medians of numbers that no process holds all of.

A double and the integer its bits spell are in the same order once the negative ones are turned around. So the k-th
smallest number is found by halving an interval of integers: everybody counts its own numbers up to the middle, the
counts are added, and the half that holds the k-th is kept. After at most 64 rounds of counts nothing is left to halve.
Nobody tells a number; what the counts tell is the median itself, and how many numbers a process has up to each point
that was asked about.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from elmesh.comm.communicator import SERIAL, Communicator
from elmesh.tables.columns import Floats

__all__ = ["medians"]

Integers = NDArray[np.int64]

_NOT_SIGN = np.int64(2**63 - 1)


def medians(
    values: Sequence[Floats], count: Integers, least: Floats, most: Floats, communicator: Communicator = SERIAL
) -> Floats:
    """Find the median of each column over all processes.

    Parameters
    ----------
    values
        This process's numbers of each column, finite; the same columns in the same order everywhere.
    count
        How many numbers of each column there are over all processes; at least one.
    least, most
        The smallest and the largest of each column over all processes.
    together
        The processes.

    Returns
    -------
    numpy.ndarray
        For each column what :func:`numpy.median` gives for the numbers of all processes, to the bit (with 0 for -0).

    Examples
    --------
    >>> import numpy as np
    >>> column = np.array([5.0, -1.0, 2.0, 3.0])
    >>> medians([column], np.array([4]), np.array([-1.0]), np.array([5.0])).tolist()
    [2.5]
    """
    own = [np.sort(_to_integers(column)) for column in values]
    # The two in the middle, which are the same one where the count is odd.
    rank = np.stack([(count - 1) // 2, count // 2], axis=1)
    low, high = (np.repeat(_to_integers(edge)[:, None], 2, axis=1) for edge in (least, most))
    while (low < high).any():
        middle = (low & high) + ((low ^ high) >> 1)  # halfway, rounded down; low + high could overflow
        upto = [np.searchsorted(column, points, side="right") for column, points in zip(own, middle, strict=True)]
        above = communicator.allreduce_sum(np.array(upto, dtype=np.int64)) > rank
        low, high = np.where(above, low, middle + 1), np.where(above, middle, high)
    with np.errstate(over="ignore"):
        lower, upper = _to_floats(low).T
        found: Floats = np.where(lower == upper, lower, (lower + upper) / 2.0)
    return found


def _to_integers(values: Floats) -> Integers:
    """Give integers in the order of the numbers."""
    bits = (values + 0.0).view(np.int64)  # -0 becomes 0, for they are one number
    return np.where(bits < 0, bits ^ _NOT_SIGN, bits)


def _to_floats(integers: Integers) -> Floats:
    bits = np.where(integers < 0, integers ^ _NOT_SIGN, integers)
    return np.ascontiguousarray(bits).view(np.float64)
