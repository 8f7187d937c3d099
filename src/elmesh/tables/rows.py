"""Columns of a table as asked for, with complaints that name the column and the line.

Everything a user can get wrong about single cells (a column that is not there, text among numbers, infinite
or missing values) is said here, the same for training, prediction and evaluation.
"""

from __future__ import annotations

from difflib import get_close_matches
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pandas as pd

from elmesh.errors import ElmeshError
from elmesh.tables.cells import Nature
from elmesh.tables.columns import Floats, labels, nature, numbers
from elmesh.tables.headers import FILE_TASK

__all__ = [
    "complete",
    "find_column",
    "finite_numbers",
    "infinite_error",
    "missing_error",
    "task_labels",
    "where",
]

_Values = TypeVar("_Values", bound=npt.NDArray[Any])


def where(frame: pd.DataFrame, position: int) -> str:
    """Name a row as the user sees it: a line of a file where the table came from one.

    Parameters
    ----------
    frame
        A table; :func:`elmesh.tables.read_table` keeps the line numbers in its index.
    position
        Place of the row in the table, from 0.

    Examples
    --------
    >>> import pandas as pd
    >>> where(pd.DataFrame({"a": [1, 2]}), 1)
    'row 2'
    """
    names = list(frame.index.names)
    key: Any = frame.index[position]
    if names in (["line"], ["row"]):
        return f"{names[0]} {key}"
    if names in (["file", "line"], ["file", "row"]):
        return f"{names[1]} {key[1]} of {key[0]}"
    return f"row {position + 1}"


def find_column(frame: pd.DataFrame, name: str) -> pd.Series[Any]:
    """Give a column, or say which ones there are.

    Parameters
    ----------
    frame
        A table.
    name
        The column, which must be there.
    """
    if name in frame.columns:
        return frame[name]
    names = [str(column) for column in frame.columns if column != FILE_TASK]
    by_case = {candidate.lower(): candidate for candidate in names}
    close = [by_case[match] for match in get_close_matches(name.lower(), by_case, n=3)]
    quoted = " or ".join(f'"{match}"' for match in close)
    listed = ", ".join(names[:12]) + (f" and {len(names) - 12} more" if len(names) > 12 else "")
    hint = f"did you mean {quoted}?" if close else f"the columns are {listed}."
    raise ElmeshError(f'There is no column "{name}" in the table; {hint}')


def finite_numbers(frame: pd.DataFrame, name: str) -> Floats:
    """Read a column that must be numbers, NaN where missing.

    Parameters
    ----------
    frame
        A table.
    name
        The column.
    """
    column = find_column(frame, name)
    try:
        values, wrong = numbers(column)
    except TypeError as error:  # lists and the like
        raise ElmeshError(f'Column "{name}" must hold numbers, but it holds {Nature.OTHER.value}.') from error
    if wrong.any():
        if nature(column) is Nature.DATE:
            raise ElmeshError(f'Column "{name}" must hold numbers, but it holds dates or times.')
        first = int(np.argmax(wrong))
        raise ElmeshError(
            f'Column "{name}" must hold numbers, but {where(frame, first)} has "{column.iloc[first]}"; '
            "correct it, or leave the cell empty if the value is missing."
        )
    infinite = np.isinf(values)
    if infinite.any():
        raise infinite_error(name, where(frame, int(np.argmax(infinite))))
    return values


def infinite_error(name: str, place: str) -> ElmeshError:
    """Make the error to raise about an infinite value in a column, at the place told."""
    return ElmeshError(
        f'Column "{name}" has an infinite value at {place}; correct it, '
        "or leave the cell empty if the value is missing."
    )


def complete(frame: pd.DataFrame, name: str, values: _Values, role: str) -> _Values:
    """Give the values back, or say where the first is missing.

    Parameters
    ----------
    frame, name
        The table and the column the values come from.
    values
        Numbers or text, NaN or ``None`` where missing.
    role
        What the column is for, as in "3 rows have no target".
    """
    missing = np.asarray(pd.isna(values))
    if missing.any():
        raise missing_error(int(missing.sum()), role, name, where(frame, int(np.argmax(missing))))
    return values


def missing_error(count: int, role: str, name: str, place: str) -> ElmeshError:
    """Make the error to raise about rows without a value that they need, the first at the place told."""
    rows, first = ("1 row has", "at") if count == 1 else (f"{count} rows have", "the first at")
    return ElmeshError(f'{rows} no {role} in column "{name}", {first} {place}; fill it in or remove those rows.')


def task_labels(frame: pd.DataFrame, name: str) -> npt.NDArray[np.str_]:
    """Read the tasks, always as text.

    Parameters
    ----------
    frame
        A table.
    name
        The column that holds the task of each row.
    """
    column = find_column(frame, name)
    if nature(column) is Nature.OTHER:
        raise ElmeshError(f'The task column "{name}" holds {Nature.OTHER.value}.')
    return complete(frame, name, labels(column), "task").astype(np.str_)
