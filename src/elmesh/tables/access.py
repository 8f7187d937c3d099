"""Access to the columns of a table, with errors that name the column and the row.

Training, prediction and evaluation use these functions, so that all of them report a missing column, text among
numbers, and infinite or missing values in the same way.
"""

from __future__ import annotations

from difflib import get_close_matches
from typing import Any, TypeVar

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from elmesh.errors import ElmeshError
from elmesh.tables.columns import parse_column, to_labels
from elmesh.tables.errors import describe_row, infinite_error, missing_error
from elmesh.tables.values import ColumnType
from elmesh.text import more
from elmesh.typing import FloatArray

__all__ = ["FILE_TASK", "find_column", "finite_numbers", "require_complete", "task_labels"]

#: The task column where each file is a task; its value is the name of the file without the suffix.
FILE_TASK = "(file)"

_Values = TypeVar("_Values", bound=NDArray[Any])


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
    parsed = parse_column(column)
    if parsed.not_numeric.any():
        if parsed.column_type is ColumnType.DATE:
            raise ElmeshError(f'Column "{name}" must hold numbers, but it holds dates or times.')
        first = int(np.argmax(parsed.not_numeric))
        raise ElmeshError(
            f'Column "{name}" must hold numbers, but {describe_row(frame, first)} has "{column.iloc[first]}"; '
            "correct it, or leave the cell empty if the value is missing."
        )
    infinite = np.isinf(parsed.numbers)
    if infinite.any():
        raise infinite_error(name, describe_row(frame, int(np.argmax(infinite))))
    return parsed.numbers


def require_complete(frame: pd.DataFrame, name: str, values: _Values, role: str) -> _Values:
    """Return the values of a column (the role is "task" or "target"), or raise an error about the missing ones."""
    missing = np.asarray(pd.isna(values))
    if missing.any():
        raise missing_error(int(missing.sum()), role, name, describe_row(frame, int(np.argmax(missing))))
    return values


def task_labels(frame: pd.DataFrame, name: str) -> NDArray[np.str_]:
    """Return the task of each row as text, from the task column of a table."""
    column = find_column(frame, name)
    if parse_column(column).column_type is ColumnType.OTHER:
        raise ElmeshError(f'The task column "{name}" holds {ColumnType.OTHER.value}.')
    return require_complete(frame, name, to_labels(column), "task").astype(np.str_)
