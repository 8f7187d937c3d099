"""What a column holds, decided from all of its values at once.

A CSV file has only text, and a guess from the first rows, or file by file, loses things: a site ``007``
becomes 7 in one file and stays text in the next. So columns are read as text and interpreted here, once, with
one rule for every file format.
"""

from __future__ import annotations

import datetime
import re
from decimal import Decimal
from enum import Enum
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["Floats", "Nature", "distinct", "is_decimal_comma", "labels", "nature", "numbers"]

Floats = npt.NDArray[np.float64]

_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?|[+-]?(inf|infinity)", re.ASCII | re.IGNORECASE)
_LEADING_ZERO = "[+-]?0[0-9]+"
_DECIMAL_COMMA = re.compile(r"[+-]?\d+(,\d+)+(\.\d+)?|[+-]?\d+(\.\d{3})*,\d+", re.ASCII)
_DATE = re.compile(
    r"\d{4}-\d{1,2}-\d{1,2}([T ]\d{1,2}:\d{2}.*)?|\d{1,4}/\d{1,2}/\d{1,4}( \d{1,2}:\d{2}.*)?"
    r"|\d{1,2}\.\d{1,2}\.\d{4}( \d{1,2}:\d{2}.*)?|\d{1,2}:\d{2}(:\d{2}(\.\d+)?)?",
    re.ASCII,
)


class Nature(Enum):
    """What the values of a column are."""

    NUMBER = "numbers"
    BOOLEAN = "true or false"
    TEXT = "text"
    DATE = "dates"
    OTHER = "values that are neither numbers nor text"


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
    return codes, list(values)


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
    typed = _nature_of_type(column.dtype)
    if typed is not None:
        return typed
    if _clean_numbers(column) is not None:
        coded = pc.match_substring_regex(pa.array(column, from_pandas=True), f"^({_LEADING_ZERO})$")
        return Nature.TEXT if pc.any(coded).as_py() else Nature.NUMBER
    try:
        values = distinct(column)[1]
    except TypeError:  # lists and dictionaries cannot be hashed
        return Nature.OTHER
    return _nature_of_objects(values)


def _nature_of_type(dtype: Any) -> Nature | None:
    """Tell by the type alone, where it can be told."""
    kinds = pd.api.types
    if isinstance(dtype, pd.CategoricalDtype):
        return Nature.DATE if _nature_of_type(dtype.categories.dtype) is Nature.DATE else Nature.TEXT
    if kinds.is_bool_dtype(dtype):
        return Nature.BOOLEAN
    if kinds.is_datetime64_any_dtype(dtype) or kinds.is_timedelta64_dtype(dtype):
        return Nature.DATE
    return Nature.NUMBER if _is_real(dtype) else None


def _nature_of_objects(values: list[Any]) -> Nature:
    def all_are(*types: type) -> bool:
        return all(isinstance(value, types) for value in values)

    if not values:
        return Nature.NUMBER
    if all_are(str):
        return _nature_of_text(values)
    if all_are(bool, np.bool_):
        return Nature.BOOLEAN
    if all_are(int, float, Decimal, np.number):
        return Nature.NUMBER
    if all_are(datetime.date, datetime.time, datetime.timedelta, np.datetime64):
        return Nature.DATE
    # Text among numbers comes of frames put together by hand; their text is what they have in common.
    return Nature.TEXT if all_are(str, bool, int, float, Decimal, np.number) else Nature.OTHER


def _nature_of_text(values: list[str]) -> Nature:
    if all(value.lower() in ("true", "false") for value in values):
        return Nature.BOOLEAN
    if not _parse(values)[1].any():
        return Nature.TEXT if any(re.fullmatch(_LEADING_ZERO, value) for value in values) else Nature.NUMBER
    if all(_DATE.fullmatch(value) for value in values):
        return Nature.DATE
    return Nature.TEXT


def is_decimal_comma(values: list[Any]) -> bool:
    """Tell whether values are numbers spoilt by commas, such as ``1,5`` or ``1,000``."""
    text = [str(value).strip() for value in values]
    commas = [bool(_DECIMAL_COMMA.fullmatch(value)) for value in text]
    return any(commas) and all(c or _NUMBER.fullmatch(value) for c, value in zip(commas, text, strict=True))


def numbers(column: pd.Series[Any]) -> tuple[Floats, npt.NDArray[np.bool_]]:
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
    if _is_real(column.dtype):
        values = column.to_numpy(dtype=np.float64, na_value=np.nan)
        return values, np.zeros(len(values), dtype=np.bool_)
    clean = _clean_numbers(column)
    if clean is not None:
        return clean, np.zeros(len(clean), dtype=np.bool_)
    codes, found = distinct(column)
    parsed, wrong = _parse(found)
    # Code -1, a missing value, picks the last entry.
    return np.append(parsed, np.nan)[codes], np.append(wrong, False)[codes]


def _clean_numbers(column: pd.Series[Any]) -> Floats | None:
    """Read the common case, a column of text that is all numbers, at the speed of Arrow; None for any other."""
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


def _parse(values: list[Any]) -> tuple[Floats, npt.NDArray[np.bool_]]:
    """Read distinct values as numbers, and say which of them are none."""
    parsed = np.array([_parse_one(value) for value in values], dtype=np.float64)
    return parsed, np.isnan(parsed)


def _parse_one(value: Any) -> float:
    if isinstance(value, bool | int | float | Decimal | np.number | np.bool_):
        return float(value)
    text = str(value).strip()
    if _NUMBER.fullmatch(text):
        return float(text)
    return {"true": 1.0, "false": 0.0}.get(text.lower(), np.nan)


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
    text[:-1] = [_label(value) for value in values]
    return text[codes]


def _label(value: Any) -> str | None:
    if isinstance(value, float | np.floating) and float(value).is_integer():
        return str(int(value))
    if isinstance(value, np.generic):
        value = value.item()
    return str(value).strip() or None
