"""What a column holds, decided from all of its values at once.

A CSV file has only text, and a guess from the first rows, or file by file, loses things: a site ``007``
becomes 7 in one file and stays text in the next. So columns are read as text and interpreted here, once, with
one rule for every file format.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from elmesh.tables.cells import LEADING_ZERO, TRUTHS, Nature, Sort, label_of, number_of, sort_of

__all__ = ["Cells", "Flags", "Floats", "distinct", "joined", "labels", "nature", "numbers", "read_cells"]

Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Cells:
    """A column value by value.

    Attributes
    ----------
    numbers
        NaN where the value is missing, or no number.
    wrong
        Where there is something that is not a number.
    sorts
        The :class:`Sort` of each value, 0 where it is missing.
    """

    numbers: Floats
    wrong: Flags
    sorts: npt.NDArray[np.int64]


def _is_real(dtype: Any) -> bool:
    kinds = pd.api.types
    return bool(kinds.is_numeric_dtype(dtype) and not kinds.is_complex_dtype(dtype))


def distinct(column: pd.Series[Any]) -> tuple[npt.NDArray[np.intp], list[Any]]:
    """Code each row by its value.

    Parameters
    ----------
    column
        Any column whose values can be hashed.

    Returns
    -------
    tuple
        For each row the place of its value in the list, -1 where it is missing; and the list.

    Examples
    --------
    >>> import pandas as pd
    >>> codes, values = distinct(pd.Series(["b", None, "a", "b"]))
    >>> codes.tolist(), values
    ([0, -1, 1, 0], ['b', 'a'])
    """
    codes, values = pd.factorize(column)
    if column.dtype == object and any(isinstance(value, int | float) and value in (0, 1) for value in values):
        # To pandas True, 1 and 1.0 are one value; which of them it would give depends on the rows around.
        pairs = column.map(lambda value: (isinstance(value, TRUTHS), value), na_action="ignore")
        codes, found = pd.factorize(pairs.to_numpy())
        return codes, [value for _, value in found]
    return codes, list(values)


def joined(frames: Sequence[pd.DataFrame], columns: Sequence[str]) -> pd.DataFrame:
    """Put tables under each other, so that a column is what its parts are even where their types differ.

    Parameters
    ----------
    frames
        One table or more.
    columns
        The columns to take from each.

    Examples
    --------
    >>> import pandas as pd
    >>> joined([pd.DataFrame({"x": [True]}), pd.DataFrame({"x": [2]})], ["x"])["x"].tolist()
    [True, 2]
    """
    names = list(columns)
    # To take columns out of a table is what would take the time, were there many tables.
    tables = [frame if list(frame.columns) == names else frame[names] for frame in frames]
    types = zip(names, *(table.dtypes for table in tables), strict=True)
    unlike = {name: _join_unlike([table[name] for table in tables]) for name, *kinds in types if len(set(kinds)) > 1}
    if not unlike:
        return pd.concat(tables, ignore_index=True)
    alike = pd.concat([table.drop(columns=list(unlike)) for table in tables], ignore_index=True)
    return alike.assign(**unlike)[names]


def _join_unlike(columns: Sequence[pd.Series[Any]]) -> pd.Series[Any]:
    whole: pd.Series[Any]
    if all(_is_real(column.dtype) and _fits_float(column) for column in columns):
        whole = pd.concat(columns, ignore_index=True)
        return whole
    whole = pd.concat([column.astype(object) for column in columns], ignore_index=True)
    sorts = _sorts(whole, None)
    categorical = any(isinstance(column.dtype, pd.CategoricalDtype) for column in columns)
    if not categorical or (sorts[sorts != 0] == Sort.DATE).all():
        return whole
    # What is a category in one file is one in all, by its label: pandas has no categories both True and 1.
    return pd.Series(labels(whole), dtype="category")


def _fits_float(column: pd.Series[Any]) -> bool:
    """Whether pandas may turn a column of numbers into floats."""
    kinds = pd.api.types
    if kinds.is_integer_dtype(column.dtype):
        return not (column.max() >= 2**53 or column.min() <= -(2**53))
    return not kinds.is_bool_dtype(column.dtype)


def nature(column: pd.Series[Any]) -> Nature:
    """Say what a column holds.

    Whole numbers written with leading zeros are text, for they are codes. A column of missing values only
    counts as numbers.

    Examples
    --------
    >>> import pandas as pd
    >>> nature(pd.Series(["1", "2.5", None])), nature(pd.Series(["007", "12"]))
    (<Nature.NUMBER: 'numbers'>, <Nature.TEXT: 'text'>)
    """
    return Sort(int(np.bitwise_or.reduce(_sorts(column, _clean_numbers(column)), initial=0))).nature


def read_cells(column: pd.Series[Any]) -> Cells:
    """Read a column value by value.

    Examples
    --------
    >>> import pandas as pd
    >>> cells = read_cells(pd.Series(["1.5", None, "many"]))
    >>> cells.numbers.tolist(), cells.wrong.tolist(), [Sort(sort).name for sort in cells.sorts[[0, 2]]]
    ([1.5, nan, nan], [False, False, True], ['NUMERAL', 'WORD'])
    """
    clean = _clean_numbers(column)
    sorts = _sorts(column, clean)
    if (sorts & Sort.OTHER).any():
        return Cells(np.full(len(column), np.nan), sorts != 0, sorts)
    return Cells(*_numbers(column, clean), sorts)


def _sorts(column: pd.Series[Any], clean: Floats | None) -> npt.NDArray[np.int64]:
    typed = _sort_of_type(column.dtype)
    if typed is not None:
        return np.where(column.isna(), 0, int(typed))
    if clean is not None:
        coded = pc.match_substring_regex(pa.array(column, from_pandas=True), f"^({LEADING_ZERO})$")
        sort = np.where(pc.fill_null(coded, False).to_numpy(zero_copy_only=False), int(Sort.CODE), int(Sort.NUMERAL))
        return np.where(np.isnan(clean), 0, sort)
    try:
        codes, values = distinct(column)
    except TypeError:  # lists and dictionaries cannot be hashed
        return np.where(column.isna(), 0, int(Sort.OTHER))
    categorical = Sort.CATEGORY if isinstance(column.dtype, pd.CategoricalDtype) else Sort(0)
    # Code -1, a missing value, picks the last entry.
    return np.array([*(int(sort_of(value) | categorical) for value in values), 0], dtype=np.int64)[codes]


def _sort_of_type(dtype: Any) -> Sort | None:
    """Tell by the type alone, where it can be told."""
    kinds = pd.api.types
    if isinstance(dtype, pd.CategoricalDtype):
        return None
    if kinds.is_bool_dtype(dtype):
        return Sort.TRUTH
    if kinds.is_datetime64_any_dtype(dtype) or kinds.is_timedelta64_dtype(dtype):
        return Sort.DATE
    return Sort.NUMBER if _is_real(dtype) else None


def numbers(column: pd.Series[Any]) -> tuple[Floats, Flags]:
    """Read a column as numbers.

    Parameters
    ----------
    column
        Numbers, booleans (1 and 0) or text.

    Returns
    -------
    tuple
        The numbers, NaN where missing, and a mask of the rows that hold something that is not a number.

    Examples
    --------
    >>> import pandas as pd
    >>> values, wrong = numbers(pd.Series(["1.5", None, "many"]))
    >>> values.tolist(), wrong.tolist()
    ([1.5, nan, nan], [False, False, True])
    """
    return _numbers(column, _clean_numbers(column))


def _numbers(column: pd.Series[Any], clean: Floats | None) -> tuple[Floats, Flags]:
    if clean is not None:
        return clean, np.zeros(len(clean), dtype=np.bool_)
    codes, found = distinct(column)
    parsed, wrong = _parse(found)
    # Code -1, a missing value, picks the last entry.
    return np.append(parsed, np.nan)[codes], np.append(wrong, False)[codes]


def _clean_numbers(column: pd.Series[Any]) -> Floats | None:
    """Read the common cases, numbers by type and text that is all numbers, in one go; None for any other."""
    if _is_real(column.dtype):
        return column.to_numpy(dtype=np.float64, na_value=np.nan)
    try:
        text = pa.array(column, from_pandas=True)
        if not (pa.types.is_string(text.type) or pa.types.is_large_string(text.type)):
            return None
        values = pc.cast(text, pa.float64())
    except (pa.ArrowException, TypeError):
        return None
    floats = np.asarray(values.to_numpy(zero_copy_only=False), dtype=np.float64)
    # Arrow reads the word "nan" as a number; here it is a word.
    return floats if int(np.isnan(floats).sum()) == text.null_count else None


def _parse(values: list[Any]) -> tuple[Floats, Flags]:
    """Read distinct values as numbers, and say which of them are none."""
    parsed = np.array([number_of(value) for value in values], dtype=np.float64)
    return parsed, np.isnan(parsed)


def labels(column: pd.Series[Any]) -> npt.NDArray[np.object_]:
    """Read a column as text, ``None`` where missing.

    Spaces around a value are taken off, an empty text counts as missing, and a whole number has no decimals,
    so that the number 7, however stored, and the text ``7`` are one label.

    Examples
    --------
    >>> import pandas as pd
    >>> labels(pd.Series([7.0, None, 8.5])).tolist(), labels(pd.Series(["007", " a "])).tolist()
    (['7', None, '8.5'], ['007', 'a'])
    """
    codes, values = distinct(column)
    text = np.empty(len(values) + 1, dtype=np.object_)  # the last stays None: code -1, a missing value
    text[:-1] = [label_of(value) for value in values]
    return text[codes]
