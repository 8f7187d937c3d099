"""Columns as numbers or labels, by the types of all of their values.

CSV files contain only text, so text is classified by how it is written. The type of a column depends only on the set of
the types of its values; therefore parts of a column can be examined in different processes and the sets combined. A
reader that guesses a type from the first rows, or file by file, turns site ``007`` into 7 in one file and leaves it
text in the next.
"""

from __future__ import annotations

import datetime
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum, IntFlag, auto
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from elmesh.tables.dates import days_of, days_of_column
from elmesh.typing import FloatArray, IndexArray

__all__ = [
    "ColumnType",
    "Mask",
    "ParsedColumn",
    "ValueType",
    "concat_tables",
    "parse_column",
    "parse_dates",
    "parse_label",
    "to_labels",
]

Mask = NDArray[np.bool_]

# A code: a whole number with leading zeros.
_ZERO_PADDED = "[+-]?0[0-9]+"

_BOOLS = (bool, np.bool_)
_REAL = (int, float, Decimal, np.integer, np.floating)
_DATES = (datetime.date, datetime.time, datetime.timedelta, np.datetime64, np.timedelta64)

_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?|[+-]?(inf|infinity)", re.ASCII | re.IGNORECASE)
_DECIMAL_COMMA = re.compile(r"[+-]?\d+(,\d+)+(\.\d+)?|[+-]?\d+(\.\d{3})*,\d+", re.ASCII)
_DATE = re.compile(
    r"\d{4}-\d{1,2}-\d{1,2}([T ]\d{1,2}:\d{2}.*)?|\d{1,4}/\d{1,2}/\d{1,4}( \d{1,2}:\d{2}.*)?"
    r"|\d{1,2}\.\d{1,2}\.\d{4}( \d{1,2}:\d{2}.*)?|\d{1,2}:\d{2}(:\d{2}(\.\d+)?)?",
    re.ASCII,
)


class ColumnType(Enum):
    """Type of a column; the value is its description in messages."""

    NUMBER = "numbers"
    BOOLEAN = "true or false"
    TEXT = "text"
    DATE = "dates"
    OTHER = "values that are neither numbers nor text"


class ValueType(IntFlag):
    """Type of a value, or the set of the types of several values."""

    NUMBER = auto()
    BOOL = auto()
    DATE = auto()
    OTHER = auto()
    CATEGORICAL = auto()  # added to the type of each value of a column that the file declares categorical
    NUMBER_TEXT = auto()
    ZERO_PADDED_TEXT = auto()
    BOOL_TEXT = auto()
    DATE_TEXT = auto()
    DECIMAL_COMMA_TEXT = auto()  # a number with commas, such as 1,5 or 1,000
    TEXT = auto()

    @property
    def column_type(self) -> ColumnType:
        """Type of a column with values of these types."""
        if self & ~ValueType.CATEGORICAL == ValueType.DATE:
            return ColumnType.DATE
        if self & ValueType.CATEGORICAL:
            return ColumnType.TEXT
        if self & (ValueType.DATE | ValueType.OTHER):
            return ColumnType.OTHER
        for column_type, allowed in (
            (ColumnType.NUMBER, ValueType(0)),
            (ColumnType.BOOLEAN, ValueType.BOOL),
            (ColumnType.NUMBER, ValueType.NUMBER | ValueType.BOOL),
            (ColumnType.BOOLEAN, ValueType.BOOL_TEXT),
            (ColumnType.NUMBER, ValueType.NUMBER_TEXT | ValueType.BOOL_TEXT),
            (ColumnType.DATE, ValueType.DATE_TEXT),
        ):
            if not self & ~allowed:
                return column_type
        # Numbers and text together come from files of different types; every value can be read as text.
        return ColumnType.TEXT

    @property
    def has_decimal_commas(self) -> bool:
        """Whether these would be numbers if they were written without commas."""
        numeric = ValueType.NUMBER | ValueType.NUMBER_TEXT | ValueType.ZERO_PADDED_TEXT | ValueType.CATEGORICAL
        return self & ~numeric == ValueType.DECIMAL_COMMA_TEXT


def _value_type(value: Any) -> ValueType:
    """Return the type of a value that is not missing."""
    if isinstance(value, str):
        if value.lower() in ("true", "false"):
            return ValueType.BOOL_TEXT
        if not math.isnan(_parse_number(value)):
            return ValueType.ZERO_PADDED_TEXT if re.fullmatch(_ZERO_PADDED, value) else ValueType.NUMBER_TEXT
        if _DATE.fullmatch(value):
            return ValueType.DATE_TEXT
        return ValueType.DECIMAL_COMMA_TEXT if _DECIMAL_COMMA.fullmatch(value.strip()) else ValueType.TEXT
    by_class = ((_BOOLS, ValueType.BOOL), (_DATES, ValueType.DATE), (_REAL, ValueType.NUMBER))
    return next((found for classes, found in by_class if isinstance(value, classes)), ValueType.OTHER)


def _parse_number(value: Any) -> float:
    """Read a value as a number, true as 1 and false as 0; return NaN if it is not a number."""
    if isinstance(value, _BOOLS + _REAL):
        return float(value)
    text = str(value).strip()
    if _NUMBER.fullmatch(text):
        return float(text)
    return {"true": 1.0, "false": 0.0}.get(text.lower(), math.nan)


def parse_label(value: Any) -> str | None:
    """Read a value that is not missing as text without surrounding spaces; return None if the text is empty."""
    if isinstance(value, float | np.floating) and float(value).is_integer():
        return str(int(value))
    if isinstance(value, Decimal) and value.is_finite():
        value = int(value) if value == value.to_integral_value() else value.normalize()
    if isinstance(value, np.generic):
        value = value.item()
    return str(value).strip() or None


@dataclass(frozen=True, eq=False)
class ParsedColumn:
    """The values of a column; a column of dates is numbers of days."""

    numbers: FloatArray  # NaN where the value is missing or not a number
    not_numeric: Mask  # where there is a value that is not a number
    value_types: NDArray[np.int64]  # the ValueType of each value; 0 where it is missing

    @property
    def column_type(self) -> ColumnType:
        """Type of the column; a column with only missing values counts as numbers."""
        return ValueType(int(np.bitwise_or.reduce(self.value_types, initial=0))).column_type


def parse_column(column: pd.Series[Any]) -> ParsedColumn:
    """Parse a column value by value.

    Examples
    --------
    >>> import pandas as pd
    >>> parsed = parse_column(pd.Series(["1.5", None, "many"]))
    >>> parsed.numbers.tolist(), parsed.not_numeric.tolist(), parsed.column_type.name
    ([1.5, nan, nan], [False, False, True], 'TEXT')
    """
    if _is_real(column.dtype):
        numbers = column.to_numpy(dtype=np.float64, na_value=np.nan)
        of_all = ValueType.BOOL if pd.api.types.is_bool_dtype(column.dtype) else ValueType.NUMBER
        return ParsedColumn(numbers, np.zeros(len(numbers), dtype=np.bool_), np.where(np.isnan(numbers), 0, of_all))
    if pd.api.types.is_datetime64_any_dtype(column.dtype):
        days = days_of_column(column)
        return ParsedColumn(days, np.zeros(len(days), dtype=np.bool_), np.where(np.isnan(days), 0, ValueType.DATE))
    parsed = _parse_number_text(column)
    if parsed is not None:
        return parsed
    try:
        codes, values = _factorize(column)
    except TypeError:  # lists and dictionaries cannot be hashed
        present = column.notna().to_numpy()
        return ParsedColumn(np.full(len(column), np.nan), present, np.where(present, ValueType.OTHER, 0))
    categorical = ValueType.CATEGORICAL if isinstance(column.dtype, pd.CategoricalDtype) else ValueType(0)
    # A missing value has code -1 and so takes the last entry of each array.
    numbers = np.array([*map(_parse_number, values), np.nan])
    not_numeric = np.append(np.isnan(numbers[:-1]), False)
    value_types = np.array([*(_value_type(value) | categorical for value in values), 0], dtype=np.int64)
    if ValueType(int(np.bitwise_or.reduce(value_types))).column_type is ColumnType.DATE:
        numbers[:-1] = [days_of(value) for value in values]
        not_numeric[:-1] = np.isnan(numbers[:-1])
    return ParsedColumn(numbers[codes], not_numeric[codes], value_types[codes])


def parse_dates(column: pd.Series[Any]) -> FloatArray:
    """Return a column as days since 1970; NaN where there is no date, or no certain one."""
    if pd.api.types.is_datetime64_any_dtype(column.dtype):
        return days_of_column(column)
    codes, values = pd.factorize(column)
    # A missing value has code -1 and so takes the last entry.
    return np.array([*map(days_of, values), np.nan])[codes]


def _parse_number_text(column: pd.Series[Any]) -> ParsedColumn | None:
    """Parse a column of text whose values are all numbers in one Arrow call; return None for any other column."""
    try:
        text = pa.array(column, from_pandas=True)
        if not (pa.types.is_string(text.type) or pa.types.is_large_string(text.type)):
            return None
        numbers = np.asarray(pc.cast(text, pa.float64()).to_numpy(zero_copy_only=False), dtype=np.float64)
    except (pa.ArrowException, TypeError):
        return None
    missing = np.isnan(numbers)
    if int(missing.sum()) != text.null_count:  # Arrow reads "nan" as a number; here it is text
        return None
    padded = pc.fill_null(pc.match_substring_regex(text, f"^({_ZERO_PADDED})$"), False).to_numpy(zero_copy_only=False)
    value_types = np.where(padded, ValueType.ZERO_PADDED_TEXT, ValueType.NUMBER_TEXT)
    return ParsedColumn(numbers, np.zeros(len(numbers), dtype=np.bool_), np.where(missing, 0, value_types))


def _is_real(dtype: Any) -> bool:
    return pd.api.types.is_numeric_dtype(dtype) and not pd.api.types.is_complex_dtype(dtype)


def to_labels(column: pd.Series[Any]) -> NDArray[np.object_]:
    """Read a column as text, ``None`` where missing.

    Surrounding spaces are removed, an empty text counts as missing, and a whole number has no decimals, so that the
    number 7, however stored, and the text ``7`` are the same label.

    Examples
    --------
    >>> import pandas as pd
    >>> to_labels(pd.Series([7.0, None, 8.5])).tolist(), to_labels(pd.Series(["007", " a "])).tolist()
    (['7', None, '8.5'], ['007', 'a'])
    """
    codes, values = _factorize(column)
    # A missing value has code -1 and so takes the last entry.
    return np.array([*map(parse_label, values), None], dtype=np.object_)[codes]


def _factorize(column: pd.Series[Any]) -> tuple[IndexArray, list[Any]]:
    """Return for each row the position of its value among the distinct values (-1 if missing), and these."""
    codes, values = pd.factorize(column)
    if column.dtype == object and any(isinstance(value, int | float) and value in (0, 1) for value in values):
        # pandas treats True, 1 and 1.0 as one value and returns whichever comes first.
        pairs = column.map(lambda value: (isinstance(value, _BOOLS), value), na_action="ignore")
        codes, found = pd.factorize(pairs.to_numpy())
        return codes, [value for _, value in found]
    return codes, list(values)


def concat_tables(frames: Sequence[pd.DataFrame], names: Sequence[str]) -> pd.DataFrame:
    """Concatenate the named columns of one or more tables, and keep each value even where the column types differ."""
    names = list(names)
    # Selecting columns is slow for many small tables.
    tables = [frame if list(frame.columns) == names else frame[names] for frame in frames]
    types = zip(names, *(table.dtypes for table in tables), strict=True)
    mixed = {name: _concat_mixed([table[name] for table in tables]) for name, *found in types if len(set(found)) > 1}
    if not mixed:
        return pd.concat(tables, ignore_index=True)
    others = pd.concat([table.drop(columns=list(mixed)) for table in tables], ignore_index=True)
    return others.assign(**mixed)[names]


def _concat_mixed(columns: Sequence[pd.Series[Any]]) -> pd.Series[Any]:
    """Concatenate columns of different types."""
    whole: pd.Series[Any]
    if all(_is_real(column.dtype) and _fits_float(column) for column in columns):
        whole = pd.concat(columns, ignore_index=True)
        return whole
    whole = pd.concat([column.astype(object) for column in columns], ignore_index=True)
    value_types = parse_column(whole).value_types
    categorical = any(isinstance(column.dtype, pd.CategoricalDtype) for column in columns)
    if not categorical or (value_types[value_types != 0] == ValueType.DATE).all():
        return whole
    # A column that is categorical in one file is categorical in all, by label: True and 1 are one pandas category.
    return pd.Series(to_labels(whole), dtype="category")


def _fits_float(column: pd.Series[Any]) -> bool:
    """Whether pandas can convert a numeric column to float without loss."""
    if pd.api.types.is_integer_dtype(column.dtype):
        return not (column.max() >= 2**53 or column.min() <= -(2**53))
    return not pd.api.types.is_bool_dtype(column.dtype)
