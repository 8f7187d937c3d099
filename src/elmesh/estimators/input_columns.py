"""The columns of the inputs as a user knows them, and the encoded columns that each became.

A column of a table may have become several columns of numbers: one per category, waves of a date, a mark of gaps. They
are permuted and set together, so that what is known about a column is known in the words of the table.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd

from elmesh.errors import ElmeshError
from elmesh.tables import TableSchema
from elmesh.tables.schema import CategoricalColumn, DateColumn, NumericColumn
from elmesh.text import listed
from elmesh.typing import FloatArray, IndexArray, Label

__all__ = ["InputColumn", "choose_columns", "input_columns"]

# Points of a grid, which lie between these quantiles; a column with no more different values has these.
_POINTS, _QUANTILES = 20, (0.05, 0.95)
_DAY = pd.Timedelta(days=1)


@dataclass(frozen=True, eq=False)
class InputColumn:
    """A column: its name, or its position in an array; what it holds; where its encoded columns are.

    ``source`` describes how a column of a table is encoded; None for a column of an array.
    """

    name: Label
    encoded: IndexArray
    source: NumericColumn | CategoricalColumn | DateColumn | None = None

    @property
    def kind(self) -> Literal["number", "category", "date"]:
        """What the column holds."""
        kinds: dict[type, Literal["category", "date"]] = {CategoricalColumn: "category", DateColumn: "date"}
        return kinds.get(type(self.source), "number")

    def grid(self, X: FloatArray) -> tuple[list[Any], FloatArray]:
        """Return values to compare, in the words of the table, and their encoded columns, given encoded rows.

        Of categories these are all. Of numbers and dates they are twenty between the 5 % and the 95 % quantile, or all
        different values if these are fewer.
        """
        source = self.source
        if isinstance(source, CategoricalColumn):
            values: list[Any] = [*source.categories, *([None] if source.missing else [])]
            return values, self._encode(pd.Series(values, dtype=object))
        if not len(self.encoded) or (source is not None and source.std == 0):
            return [], np.zeros((0, len(self.encoded)))
        known = X[:, self.encoded[0]]
        if source is not None and source.indicator:
            known = known[X[:, self.encoded[-1]] == 0]
        points = _points(known)
        if source is None:
            return points.tolist(), points[:, None]
        # Without the rounding errors of the encoding and back.
        numbers = np.array([float(f"{x:.12g}") for x in points * source.std + source.mean])
        if isinstance(source, DateColumn):
            dates = pd.Series(pd.Timestamp(0) + numbers * _DAY).dt.round("s" if "day" in source.cycles else "D")
            return dates.tolist(), self._encode(dates)
        return numbers.tolist(), self._encode(pd.Series(numbers))

    def _encode(self, values: pd.Series[Any]) -> FloatArray:
        if self.source is None:
            raise TypeError("A column of an array has no other form.")
        return np.column_stack(self.source.encode(pd.DataFrame({self.source.name: values})))


def _points(x: FloatArray) -> FloatArray:
    """Return the values of a grid for a column of numbers."""
    different = np.unique(x)
    if len(different) <= _POINTS:
        return different
    low, high = np.quantile(x, _QUANTILES)
    # Where nine tenths of all values are equal, the quantiles may be one value.
    return np.linspace(low, high, _POINTS) if low < high else np.linspace(different[0], different[-1], _POINTS)


def input_columns(table: TableSchema | None, names: Sequence[Label]) -> list[InputColumn]:
    """Return the columns of a table or, without one, of an array with these names."""
    if table is None:
        return [InputColumn(name, np.array([j])) for j, name in enumerate(names)]
    ends = np.cumsum([0, *(len(column.feature_names) for column in table.features)])
    return [
        InputColumn(column.name, np.arange(start, end), column)
        for column, start, end in zip(table.features, ends[:-1], ends[1:], strict=True)
    ]


def choose_columns(columns: Sequence[InputColumn], wanted: Label | Sequence[Label] | None) -> list[InputColumn]:
    """Return the columns of some names, all by default; raise if there is none of a name."""
    if wanted is None:
        return list(columns)
    names = [wanted] if isinstance(wanted, str | int | np.integer) else list(wanted)
    by_name = {column.name: column for column in columns}
    unknown = [name for name in names if name not in by_name]
    if unknown or not names:
        what = f"There is no column {unknown[0]!r}" if unknown else "columns is empty"
        raise ElmeshError(f"{what}; the model learned from {listed(by_name)}.")
    return [by_name[name] for name in dict.fromkeys(names)]
