"""Statistics of a table whose rows are distributed over processes.

Each process holds the rows of some tasks. The processes exchange:

- the labels of their tasks and the names of the columns;
- for each task and column its :class:`ColumnStats`: counts, types, mean, sum of squared deviations, smallest and
  largest number (for a task with one row, these are its value);
- the categories of each column of text and the classes of a classification target, unless there are too many: then
  only this fact;
- the different values of a target of whole numbers, if they are few;
- before an error that names a cell, the first such cell;
- what :mod:`elmesh.tables.leaks` lists.

No other value and no row leaves a process. The statistics of a task do not depend on the other tasks of its process,
and all processes add them task by task, in the order of labels, by the formula of Chan, Golub and LeVeque for means and
squared deviations. So the result is the same to the bit for any distribution of tasks over processes.
"""

from __future__ import annotations

import math
import sys
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import reduce
from operator import add
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from elmesh.comm.communicator import Communicator, merge_by_task
from elmesh.errors import ElmeshError
from elmesh.tables.access import check_same_columns, describe_row, number_rows
from elmesh.tables.columns import ColumnType, Mask, ValueType, concat_tables, parse_column
from elmesh.typing import FloatArray, IndexArray

__all__ = ["MOST_VALUES", "ColumnStats", "DistinctValues", "LocalRows", "TableRows", "TableStats", "column_stats"]

#: Most different values of a column that are counted.
MOST_VALUES = 100_000
_LARGEST = sys.float_info.max


@dataclass(frozen=True)
class ColumnStats:
    """Statistics of a column; the last ones, from the mean on, are of its finite numbers, and 0 if there are none.

    Rows may count several times: the last three are the sum of their weights, and the weighted mean and squares.
    """

    n_rows: int
    n_missing: int
    n_not_numeric: int
    n_infinite: int
    n_finite: int
    n_fractional: int  # finite, but not whole
    n_not_increasing: int  # not above the value of the row before, which is of the same task
    n_large: int  # finite, and 2^53 or more in size, where a double does not represent every whole number
    value_types: int  # the union of the ValueType of all values
    mean: float  # this and the next are the largest double if they overflow
    squares: float  # the sum of squared deviations from the mean
    min: float
    max: float
    weight: float
    weighted_mean: float
    weighted_squares: float

    @property
    def column_type(self) -> ColumnType:
        """Type of the column."""
        return ValueType(self.value_types).column_type

    @property
    def scale(self) -> tuple[float, float] | None:
        """Mean and standard deviation; None if a double cannot represent them or the latter is 0."""
        if not self.n_finite or not math.isfinite(self.weighted_mean) or not 0 < self.weighted_squares < _LARGEST:
            return None
        return self.weighted_mean, math.sqrt(self.weighted_squares / self.weight)

    @property
    def numbers_rows(self) -> bool:
        """Whether the values are 0, 1, 2, ... or 1, 2, 3, ... over all rows, and increase within each task.

        They are these numbers if they have their smallest and largest value, their mean and their variance.
        """
        n = self.n_rows
        if self.column_type is not ColumnType.NUMBER or self.n_finite < n or self.n_fractional or self.n_not_increasing:
            return False
        if self.min not in (0.0, 1.0) or self.max != self.min + n - 1:
            return False
        return math.isclose(self.mean, (self.min + self.max) / 2, rel_tol=1e-9) and math.isclose(
            self.squares, n * (n * n - 1) / 12, rel_tol=1e-9
        )

    def __add__(self, other: ColumnStats) -> ColumnStats:
        if not (self.n_finite and other.n_finite):
            some = self if self.n_finite else other
            moments: tuple[float, ...] = tuple(vars(some).values())[_FIRST_MOMENT:]
        else:
            _, *plain = _merge((self.n_finite, self.mean, self.squares), (other.n_finite, other.mean, other.squares))
            weighted = _merge(
                (self.weight, self.weighted_mean, self.weighted_squares),
                (other.weight, other.weighted_mean, other.weighted_squares),
            )
            moments = *plain, min(self.min, other.min), max(self.max, other.max), *weighted
        counts = (n + getattr(other, name) for name, n in vars(self).items() if name.startswith("n_"))
        merged: list[Any] = [*counts, self.value_types | other.value_types, *moments]
        return ColumnStats(*merged)


# The place of the mean among the fields.
_FIRST_MOMENT = [field.name for field in fields(ColumnStats)].index("mean")


def _merge(one: tuple[float, float, float], other: tuple[float, float, float]) -> tuple[float, float, float]:
    """Return the number, the mean and the squared deviations of two parts together."""
    (m, mean, squares), (n, other_mean, other_squares) = one, other
    total, difference = m + n, other_mean - mean
    between = difference * difference * (m * n / total)
    return total, mean + difference * (n / total), squares + other_squares + between


def column_stats(column: pd.Series[Any], starts: IndexArray, weights: FloatArray | None = None) -> list[ColumnStats]:
    """Return the statistics of a column for each task, given the first row of each; every task has a row."""
    parsed = parse_column(column)
    values = parsed.numbers + 0.0  # turns -0 into 0, so that min and max do not depend on the order of rows
    finite = np.isfinite(values)
    n_rows = np.diff(starts, append=len(values))

    def count(mask: Mask) -> NDArray[np.int64]:
        return np.add.reduceat(mask.astype(np.int64), starts) if mask.any() else np.zeros(len(n_rows), dtype=np.int64)

    n_finite = count(finite)
    # Other rows count as 0 instead of being removed, so that every task keeps its rows.
    numbers = values if finite.all() else np.where(finite, values, 0.0)
    means, squares = _moments(numbers, finite, n_finite.astype(np.float64), starts, n_rows)
    fractional = numbers != np.rint(numbers)
    weighted = n_finite.astype(np.float64), means, squares
    if weights is not None:
        own = np.add.reduceat(np.where(finite, weights, 0.0), starts)
        weighted = own, *_moments(numbers, finite, own, starts, n_rows, weights)
    not_increasing = np.append(False, ~(values[1:] > values[:-1]))
    not_increasing[starts] = False
    by_field = (
        n_rows,
        count(parsed.value_types == 0),
        count(parsed.not_numeric),
        count(np.isinf(values)),
        n_finite,
        count(fractional),
        count(not_increasing),
        count(np.abs(numbers) >= 2.0**53),
        np.bitwise_or.reduceat(parsed.value_types, starts),
        *(np.where(np.isfinite(moment), moment, _LARGEST) for moment in (means, squares)),
        *_extremes(values, finite, n_finite, starts),
        *(np.where(np.isfinite(moment), moment, _LARGEST) for moment in weighted),
    )
    return [ColumnStats(*found) for found in zip(*(field.tolist() for field in by_field), strict=True)]


def _extremes(
    values: FloatArray, finite: Mask, n_finite: NDArray[np.int64], starts: IndexArray
) -> tuple[FloatArray, FloatArray]:
    """Return the least and the largest finite number of each task, 0 if there is none."""
    low, high = (values, values) if finite.all() else (np.where(finite, values, end) for end in (np.inf, -np.inf))
    least, largest = np.minimum.reduceat(low, starts), np.maximum.reduceat(high, starts)
    return np.where(n_finite, least, 0.0), np.where(n_finite, largest, 0.0)


def _moments(
    numbers: FloatArray,
    finite: Mask,
    total: FloatArray,
    starts: IndexArray,
    n_rows: IndexArray,
    weights: FloatArray | None = None,
) -> tuple[FloatArray, FloatArray]:
    """Return the means of each task and the sums of squared deviations, given the total of its weights."""
    with np.errstate(over="ignore", invalid="ignore"):
        means = np.add.reduceat(numbers if weights is None else weights * numbers, starts)
        means /= np.where(total > 0, total, 1.0)
        squares = numbers - np.repeat(means, n_rows)
        squares *= squares
        if weights is not None:
            squares *= weights
        if not finite.all():
            squares[~finite] = 0.0
        return means, np.add.reduceat(squares, starts)


class TableRows(ABC):
    """The rows of one process, and the statistics of each of its tasks by column."""

    #: By task, and by column.
    stats: dict[str, dict[str, ColumnStats]]

    @abstractmethod
    def first_cell(self, name: str, select: Callable[[pd.Series[Any]], Mask]) -> list[Any] | None:
        """Return the first selected cell of a column: a key to sort by, its row in words, and its text."""

    @abstractmethod
    def distinct(
        self, names: Sequence[str], convert: Callable[[pd.Series[Any]], NDArray[Any]]
    ) -> dict[str, tuple[int, dict[Any, int]]]:
        """Return the number of missing values, and how often each different value of columns occurs."""

    @property
    @abstractmethod
    def sample(self) -> LocalRows:
        """All rows, or some of them if there are very many."""


@dataclass(frozen=True, eq=False)
class LocalRows(TableRows):
    """Rows in memory."""

    tables: tuple[pd.DataFrame, ...]  # with the index of their files
    frame: pd.DataFrame  # all of them, sorted by task
    stats: dict[str, dict[str, ColumnStats]]

    @classmethod
    def concat(cls, frames: Mapping[str, pd.DataFrame], exclude: Collection[str] = ()) -> LocalRows:
        """Concatenate one table per task, given by label; compute no statistics of the excluded columns."""
        if not frames:
            return cls((), pd.DataFrame(), {})
        tables = {task: frames[task] for task in sorted(frames)}
        for task, table in tables.items():
            if not len(table):
                raise ElmeshError(f'Task "{task}" has no rows; leave it out.')
        names = _common_columns({task: [str(name) for name in table.columns] for task, table in tables.items()})
        frame = concat_tables(list(tables.values()), names)
        starts = np.cumsum([0, *map(len, tables.values())])[:-1]
        return cls(tuple(tables.values()), frame, _task_stats(frame, list(tables), starts, exclude))

    @classmethod
    def from_table(
        cls,
        frame: pd.DataFrame,
        tasks: NDArray[np.str_],
        exclude: Collection[str] = (),
        weights: FloatArray | None = None,
    ) -> LocalRows:
        """Take one table, given the task of each row; compute no statistics of the excluded columns."""
        codes, names = pd.factorize(tasks, sort=True)
        return cls.from_codes(frame, codes, [str(name) for name in names], exclude, weights)

    @classmethod
    def from_codes(
        cls,
        frame: pd.DataFrame,
        codes: IndexArray,
        names: Sequence[str],
        exclude: Collection[str] = (),
        weights: FloatArray | None = None,
    ) -> LocalRows:
        """Take one table, given the place of each row's task among the names of tasks, each of which has a row."""
        order = np.argsort(codes.astype(np.int32), kind="stable")
        starts = np.searchsorted(codes[order], np.arange(len(names)))
        table = number_rows(frame).iloc[order]
        by_task = table.reset_index(drop=True)
        own = None if weights is None else weights[order]
        return cls((table,), by_task, _task_stats(by_task, list(names), starts, exclude, own))

    def column(self, name: str) -> pd.Series[Any]:
        """Return a column, without rows if there are no tasks."""
        return self.frame[name] if self.stats else pd.Series(dtype=np.float64)

    def first_cell(self, name: str, select: Callable[[pd.Series[Any]], Mask]) -> list[Any] | None:
        """Return the first selected cell of a column: a key to sort by, its row in words, and its text."""
        column = self.column(name)
        selected = column[select(column)]
        if not len(selected):
            return None
        rows = pd.concat([number_rows(table)[[]] for table in self.tables]).iloc[selected.index]
        cells = selected.set_axis(rows.index).sort_index(kind="stable").to_frame()
        # Cells of several processes sort by the file, if there is one, and the number of the row.
        key = cells.index[:1].to_frame().to_numpy(dtype=object)[0].tolist()
        return [key, describe_row(cells, 0), str(cells.iloc[0, 0])]

    def distinct(
        self, names: Sequence[str], convert: Callable[[pd.Series[Any]], NDArray[Any]]
    ) -> dict[str, tuple[int, dict[Any, int]]]:
        """Return the number of missing values, and how often each different value of columns occurs."""
        found = {}
        for name in names:
            values = convert(self.column(name))
            missing = pd.isna(values)
            found[name] = int(missing.sum()), dict(Counter(values[~missing].tolist()))
        return found

    @property
    def sample(self) -> LocalRows:
        """All rows."""
        return self


def _task_stats(
    frame: pd.DataFrame,
    tasks: list[str],
    starts: IndexArray,
    exclude: Collection[str],
    weights: FloatArray | None = None,
) -> dict[str, dict[str, ColumnStats]]:
    names = [str(name) for name in frame.columns if name not in exclude]
    by_column = {name: column_stats(frame[name], starts, weights) for name in names}
    return {task: {name: by_column[name][i] for name in names} for i, task in enumerate(tasks)}


def _common_columns(columns: Mapping[str, Collection[str]]) -> list[str]:
    tables = {f'task "{task}"': list(names) for task, names in columns.items()}
    return check_same_columns("Every task must have the same columns", tables)


@dataclass(frozen=True)
class DistinctValues:
    """The different values of a column."""

    values: tuple[Any, ...]  # sorted; empty if there are too many
    too_many: bool
    count: str  # for messages, such as "51" or "more than 50"
    n_missing: int
    frequent: tuple[Any, ...] = ()  # the most frequent ones, sorted, if there are too many and all rows are here


@dataclass(frozen=True, eq=False)
class TableStats:
    """Statistics of a table over all processes. Every method is collective."""

    rows: TableRows
    communicator: Communicator
    columns: dict[str, ColumnStats]  # over all tasks, in the order of the columns of the first task

    @classmethod
    def gather(cls, rows: TableRows, communicator: Communicator) -> TableStats:
        """Combine the statistics of the tasks of all processes."""
        own = {
            task: {name: list(vars(stats).values()) for name, stats in columns.items()}
            for task, columns in rows.stats.items()
        }
        by_task = merge_by_task(communicator, own)
        if not by_task:
            raise ElmeshError("There are no tasks; give at least one.")
        names = _common_columns(by_task)
        merged = {name: reduce(add, (ColumnStats(*task[name]) for task in by_task.values())) for name in names}
        return cls(rows, communicator, merged)

    @property
    def n_sampled(self) -> int:
        """The number of rows, or of those in the sample if they are not all in memory."""
        if self.rows.sample is self.rows:
            return next(iter(self.columns.values())).n_rows
        return len(self.rows.sample.frame)

    def first_cell(self, name: str, select: Callable[[pd.Series[Any]], Mask]) -> tuple[str, str]:
        """Return the row, in words, and the text of the first selected cell of a column; there must be one."""
        own = self.rows.first_cell(name, select)
        _, row, text = min(cell for cell in self.communicator.allgather(own) if cell is not None)
        return row, text

    def distinct(
        self, limits: Mapping[str, int], convert: Callable[[pd.Series[Any]], NDArray[Any]]
    ) -> dict[str, DistinctValues]:
        """Return the different values of columns.

        Parameters
        ----------
        limits
            How many values of each column a process may send; it sends none if there are more.
        convert
            Conversion of a column to labels or numbers, ``None`` or NaN where missing.
        """
        serial = self.communicator.size == 1  # nothing is sent, so all values can be counted
        own: list[tuple[int, list[Any] | None]] = []
        frequent: dict[str, tuple[Any, ...]] = {}
        for name, (n_missing, values) in self.rows.distinct(list(limits), convert).items():
            own.append((n_missing, sorted(values) if serial or len(values) <= limits[name] else None))
            if serial and limits[name] < len(values) < MOST_VALUES:
                order = sorted(values, key=lambda value: (-values[value], value))
                frequent[name] = tuple(sorted(order[: limits[name]]))
        by_column = zip(*self.communicator.allgather(own), strict=True)
        found = {}
        for (name, limit), column in zip(limits.items(), by_column, strict=True):
            union = {value for _, values in column for value in values or ()}
            too_many = len(union) > limit or any(values is None for _, values in column)
            # The number of values that were sent depends on the distribution of tasks, and messages must not.
            count = f"more than {limit}" if too_many and not serial else str(len(union))
            n_missing = sum(n for n, _ in column)
            different = () if too_many else tuple(sorted(union))
            found[name] = DistinctValues(different, too_many, count, n_missing, frequent.get(name, ()))
        return found
