"""Errors and warnings about tables that name the file, the column and the row as the user sees them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from elmesh.errors import ElmeshError

__all__ = [
    "TableWarning",
    "check_column_names",
    "check_same_columns",
    "describe_row",
    "infinite_error",
    "missing_error",
    "number_rows",
]


class TableWarning(UserWarning):
    """A property of a table that is handled by a documented rule and that the user should know."""


def number_rows(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a table with numbered rows in its index, which a table from a file already has."""
    if frame.index.names[-1] in ("line", "row"):
        return frame
    return frame.set_axis(pd.RangeIndex(1, len(frame) + 1, name="row"))


def describe_row(frame: pd.DataFrame, position: int) -> str:
    """Name the row at a position, as in ``row 2`` or ``line 3 of north.csv``."""
    index = number_rows(frame).index
    key: Any = index[position]
    return f"{index.name} {key}" if index.nlevels == 1 else f"{index.names[1]} {key[1]} of {key[0]}"


def infinite_error(column: str, row: str) -> ElmeshError:
    """Return the error about an infinite value in a row."""
    return ElmeshError(
        f'Column "{column}" has an infinite value at {row}; correct it, or leave the cell empty if it is missing.'
    )


def missing_error(count: int, role: str, column: str, row: str) -> ElmeshError:
    """Return the error about rows without a required value, of which the first is named."""
    rows, first = ("1 row has", "at") if count == 1 else (f"{count} rows have", "the first at")
    return ElmeshError(f'{rows} no {role} in column "{column}", {first} {row}; fill it in or remove those rows.')


def check_column_names(table: str, names: Sequence[str]) -> None:
    """Raise if a column of the table has no name, or two columns have the same name."""
    if "" in names:
        raise ElmeshError(
            f"{table}: column {names.index('') + 1} has no name in the header; name it, or leave it out of the file "
            "(pandas writes its index like this unless index=False is given)."
        )
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise ElmeshError(f'{table}: the header has the column "{repeated[0]}" more than once; rename one.')


def check_same_columns(rule: str, tables: Mapping[str, Sequence[str]]) -> None:
    """Raise if the tables, given by name with their columns, differ in columns; the order does not matter."""
    first, columns = next(iter(tables.items()), ("", ()))
    for table, others in tables.items():
        for name in sorted(set(columns) ^ set(others)):
            has, lacks = (table, first) if name in others else (first, table)
            raise ElmeshError(f'{rule}, but {has} has a column "{name}" and {lacks} does not.')
