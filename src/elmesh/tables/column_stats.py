"""Statistics of one column that can be added over tasks.

The statistics of a task are the same to the bit whichever other tasks are computed with it. They are added task by
task, in the order of labels, by the formula of Chan, Golub and LeVeque for means and squared deviations. So the sum
does not depend on which process holds which task.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from elmesh.tables.columns import Mask, parse_column
from elmesh.tables.values import ColumnType, ValueType
from elmesh.typing import IndexArray

__all__ = ["ColumnStats", "column_stats"]

_LARGEST = sys.float_info.max


@dataclass(frozen=True)
class ColumnStats:
    """Statistics of a column; the last four are of its finite numbers, and 0 if there are none."""

    n_rows: int
    n_missing: int
    n_not_numeric: int
    n_infinite: int
    n_finite: int
    n_fractional: int  # finite, but not whole
    n_large: int  # finite, and 2^53 or more in size, where a double does not represent every whole number
    value_types: int  # the union of the ValueType of all values
    mean: float  # this and the next are the largest double if they overflow
    squares: float  # the sum of squared deviations from the mean
    min: float
    max: float

    @property
    def column_type(self) -> ColumnType:
        """Type of the column."""
        return ValueType(self.value_types).column_type

    @property
    def scale(self) -> tuple[float, float] | None:
        """Mean and standard deviation; None if a double cannot represent them or the latter is 0."""
        if not self.n_finite or not math.isfinite(self.mean) or not 0 < self.squares < _LARGEST:
            return None
        return self.mean, math.sqrt(self.squares / self.n_finite)

    def __add__(self, other: ColumnStats) -> ColumnStats:
        if not (self.n_finite and other.n_finite):
            some = self if self.n_finite else other
            moments = some.mean, some.squares, some.min, some.max
        else:
            n, difference = self.n_finite + other.n_finite, other.mean - self.mean
            moments = (
                self.mean + difference * (other.n_finite / n),
                self.squares + other.squares + difference * difference * (self.n_finite * other.n_finite / n),
                min(self.min, other.min),
                max(self.max, other.max),
            )
        return ColumnStats(
            self.n_rows + other.n_rows,
            self.n_missing + other.n_missing,
            self.n_not_numeric + other.n_not_numeric,
            self.n_infinite + other.n_infinite,
            self.n_finite + other.n_finite,
            self.n_fractional + other.n_fractional,
            self.n_large + other.n_large,
            self.value_types | other.value_types,
            *moments,
        )


def column_stats(column: pd.Series[Any], starts: IndexArray) -> list[ColumnStats]:
    """Return the statistics of a column for each task, given the first row of each; every task has a row."""
    parsed = parse_column(column)
    values = parsed.numbers + 0.0  # turns -0 into 0, so that min and max do not depend on the order of rows
    finite = np.isfinite(values)

    def count(mask: Mask) -> NDArray[np.int64]:
        return np.add.reduceat(mask.astype(np.int64), starts)

    n_rows = np.diff(starts, append=len(values))
    n_finite = count(finite)
    # Other rows count as 0 instead of being removed, so that every task keeps its rows.
    with np.errstate(over="ignore", invalid="ignore"):
        means = np.add.reduceat(np.where(finite, values, 0.0), starts) / np.maximum(n_finite, 1)
        deviations = np.where(finite, values - np.repeat(means, n_rows), 0.0)
        squares = np.add.reduceat(deviations * deviations, starts)
        fractional = finite & (values != np.round(values))
    by_field = (
        n_rows,
        count(parsed.value_types == 0),
        count(parsed.not_numeric),
        count(np.isinf(values)),
        n_finite,
        count(fractional),
        count(finite & (np.abs(values) >= 2.0**53)),
        np.bitwise_or.reduceat(parsed.value_types, starts),
        np.where(np.isfinite(means), means, _LARGEST),
        np.where(np.isfinite(squares), squares, _LARGEST),
        np.where(n_finite, np.minimum.reduceat(np.where(finite, values, np.inf), starts), 0.0),
        np.where(n_finite, np.maximum.reduceat(np.where(finite, values, -np.inf), starts), 0.0),
    )
    return [ColumnStats(*fields) for fields in zip(*(field.tolist() for field in by_field), strict=True)]
