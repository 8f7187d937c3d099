"""Access to the columns of a table, and errors that name the file, the column and the row as the user sees them.

Training, prediction and evaluation use these functions, so that all of them report a missing column, text among
numbers, and infinite or missing values in the same way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any, TypeVar

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from elmesh.errors import ElmeshError
from elmesh.tables.columns import ColumnType, parse_column, parse_dates, to_labels
from elmesh.text import more
from elmesh.typing import FloatArray

__all__ = [
    "FILE_TASK", "TableWarning", "check_column_names", "check_same_columns", "date_numbers", "describe_row",
    "find_column", "finite_numbers", "infinite_error", "missing_error", "number_rows", "require_complete",
    "task_codes", "task_labels",
]  # fmt: skip

#: The task column where each file is a task; its value is the name of the file without the suffix.
FILE_TASK = "(file)"

_Values = TypeVar("_Values", bound=NDArray[Any])


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


def find_column(frame: pd.DataFrame, name: str) -> pd.Series[Any]:
    """Return a column of a table, or raise an error that lists similar names."""
    if name in frame.columns:
        return frame[name]
    names = [str(column) for column in frame.columns if column != FILE_TASK]
    by_lower = {candidate.lower(): candidate for candidate in names}
    close = [by_lower[match] for match in get_close_matches(name.lower(), by_lower, n=3)]
    quoted = " or ".join(f'"{match}"' for match in close)
    hint = f"did you mean {quoted}?" if close else f"the columns are {', '.join(names[:12])}{more(len(names), 12)}."
    raise ElmeshError(f'There is no column "{name}" in the table; {hint}')


def finite_numbers(frame: pd.DataFrame, name: str) -> FloatArray:
    """Return a column as numbers, NaN where missing, or raise an error that names a row without a finite number."""
    column = find_column(frame, name)
    if column.dtype == np.float64:
        numbers = column.to_numpy()
        if not np.isinf(numbers).any():
            return numbers
    parsed = parse_column(column)
    if parsed.column_type is ColumnType.DATE:
        raise ElmeshError(f'Column "{name}" must hold numbers, but it holds dates or times; give it as numbers.')
    if parsed.not_numeric.any():
        first = int(np.argmax(parsed.not_numeric))
        raise ElmeshError(
            f'Column "{name}" must hold numbers, but {describe_row(frame, first)} has "{column.iloc[first]}"; '
            "correct it, or leave the cell empty if the value is missing."
        )
    infinite = np.isinf(parsed.numbers)
    if infinite.any():
        raise infinite_error(name, describe_row(frame, int(np.argmax(infinite))))
    return parsed.numbers


def date_numbers(frame: pd.DataFrame, name: str) -> FloatArray:
    """Return a column of dates as days since 1970, NaN where missing, or raise an error that names another value."""
    column = find_column(frame, name)
    days = parse_dates(column)
    wrong = column.notna().to_numpy() & np.isnan(days)
    if wrong.any():
        first = int(np.argmax(wrong))
        raise ElmeshError(
            f'Column "{name}" must hold dates such as 2024-03-31, but {describe_row(frame, first)} has '
            f'"{column.iloc[first]}"; correct it, or leave the cell empty if the value is missing.'
        )
    return days


def require_complete(frame: pd.DataFrame, name: str, values: _Values, role: str) -> _Values:
    """Return the values of a column (the role is "task" or "target"), or raise an error about the missing ones."""
    missing = np.asarray(pd.isna(values))
    if missing.any():
        raise missing_error(int(missing.sum()), role, name, describe_row(frame, int(np.argmax(missing))))
    return values


def task_codes(frame: pd.DataFrame, name: str) -> tuple[NDArray[np.intp], list[str]]:
    """Return for each row the place of its task among all tasks of the table, and these as text, sorted."""
    column = find_column(frame, name)
    found, values = pd.factorize(column)
    distinct = pd.Series(values)
    if (found < 0).any() or parse_column(distinct).column_type is ColumnType.OTHER:
        task_labels(frame, name)  # raises the error that names a row
    # Values that differ may be the same label, as 7 and "7" are.
    labels = require_complete(frame, name, to_labels(distinct), "task")
    names, places = np.unique(labels.astype(np.str_), return_inverse=True)
    return places[found].astype(np.intp), names.tolist()


def task_labels(frame: pd.DataFrame, name: str) -> NDArray[np.str_]:
    """Return the task of each row as text, from the task column of a table."""
    column = find_column(frame, name)
    if parse_column(column).column_type is ColumnType.OTHER:
        raise ElmeshError(f'The task column "{name}" holds {ColumnType.OTHER.value}.')
    return require_complete(frame, name, to_labels(column), "task").astype(np.str_)


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


def check_same_columns(rule: str, tables: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the columns of the first table; raise if another one, given by name, has others in any order."""
    first, columns = next(iter(tables.items()))
    for table, others in tables.items():
        for name in sorted(set(columns) ^ set(others)):
            has, lacks = (table, first) if name in others else (first, table)
            raise ElmeshError(f'{rule}, but {has} has a column "{name}" and {lacks} does not.')
    return list(columns)
