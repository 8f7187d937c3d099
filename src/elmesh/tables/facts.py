"""What is told of a task's column: counts, mean, spread and extremes, which add up over tasks.

The facts of a task are the same to the bit whichever other tasks are summarised along with it. Facts are added one
task after another in the order of labels, means and squared deviations by the formula of Chan, Golub and LeVeque, so
that the sum does not depend on who holds which task either.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from elmesh.tables.cells import Nature, Sort
from elmesh.tables.columns import read_cells

__all__ = ["Facts", "summarise"]

LARGEST = sys.float_info.max


@dataclass(frozen=True)
class Facts:
    """What is told of a column.

    Attributes
    ----------
    rows, missing, wrong, infinite
        How many rows there are, and how many of them hold nothing, something that is not a number, or an infinite
        number.
    sorts
        The :class:`~elmesh.tables.cells.Sort` of all its values.
    uneven, large
        How many numbers are not whole, and how many are 2^53 or more, where a double no longer holds every whole
        number.
    numbers
        How many finite numbers there are; the rest is about these, and 0 where there are none.
    mean, squares
        Their mean, and the sum of their squared deviations from it; the largest double where it is larger still.
    least, most
        The smallest and the largest.
    """

    rows: int
    missing: int
    wrong: int
    infinite: int
    sorts: int
    uneven: int
    large: int
    numbers: int
    mean: float
    squares: float
    least: float
    most: float

    @property
    def nature(self) -> Nature:
        """What the column holds."""
        return Sort(self.sorts).nature

    @property
    def scale(self) -> tuple[float, float] | None:
        """The mean and standard deviation of the numbers, None where a double cannot hold them or the latter is 0."""
        if not self.numbers or not math.isfinite(self.mean) or not 0 < self.squares < LARGEST:
            return None
        return self.mean, math.sqrt(self.squares / self.numbers)

    def __add__(self, other: Facts) -> Facts:
        if not (self.numbers and other.numbers):
            some = self if self.numbers else other
            moments = some.mean, some.squares, some.least, some.most
        else:
            n, apart = self.numbers + other.numbers, other.mean - self.mean
            moments = (
                self.mean + apart * (other.numbers / n),
                self.squares + other.squares + apart * apart * (self.numbers * other.numbers / n),
                min(self.least, other.least),
                max(self.most, other.most),
            )
        return Facts(
            self.rows + other.rows,
            self.missing + other.missing,
            self.wrong + other.wrong,
            self.infinite + other.infinite,
            self.sorts | other.sorts,
            self.uneven + other.uneven,
            self.large + other.large,
            self.numbers + other.numbers,
            *moments,
        )


def summarise(column: pd.Series[Any], order: NDArray[np.intp], starts: NDArray[np.intp]) -> list[Facts]:
    """Find the facts of each task's part of a column.

    Parameters
    ----------
    column
        The values of all tasks.
    order
        Which rows to take, so that task follows task.
    starts
        Where each task starts among these; every task has a row at least.

    Examples
    --------
    >>> import numpy as np
    >>> import pandas as pd
    >>> column = pd.Series(["x", "1", "3", None, "5"])
    >>> first, second = summarise(column, np.array([1, 2, 0, 3, 4]), np.array([0, 2]))
    >>> first.mean, first.squares, second.wrong, second.missing
    (2.0, 2.0, 1, 1)
    >>> (first + second).mean, (first + second).nature
    (3.0, <Nature.TEXT: 'text'>)
    """
    cells = read_cells(column)
    sorts = cells.sorts[order]
    values = cells.numbers[order] + 0.0  # no -0, which would make the extremes depend on the order of rows
    known = np.isfinite(values)

    def count(flags: NDArray[np.bool_]) -> NDArray[np.int64]:
        return np.add.reduceat(flags.astype(np.int64), starts)

    rows = np.diff(starts, append=len(values))
    numbers = count(known)
    some = np.maximum(numbers, 1)
    # Rows left out count as 0 in the sums rather than being taken out, so that every task keeps its rows.
    with np.errstate(over="ignore", invalid="ignore"):
        means = np.add.reduceat(np.where(known, values, 0.0), starts) / some
        apart = np.where(known, values - np.repeat(means, rows), 0.0)
        squares = np.add.reduceat(apart * apart, starts)
        uneven = count(known & (values != np.round(values)))
    found = (
        rows,
        count(sorts == 0),
        count(cells.wrong[order]),
        count(np.isinf(values)),
        np.bitwise_or.reduceat(sorts, starts),
        uneven,
        count(known & (np.abs(values) >= 2.0**53)),
        numbers,
        np.where(np.isfinite(means), means, LARGEST),
        np.where(np.isfinite(squares), squares, LARGEST),
        np.where(numbers, np.minimum.reduceat(np.where(known, values, np.inf), starts), 0.0),
        np.where(numbers, np.maximum.reduceat(np.where(known, values, -np.inf), starts), 0.0),
    )
    return [Facts(*task) for task in zip(*(fact.tolist() for fact in found), strict=True)]
