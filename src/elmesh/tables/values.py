"""Types of single values, and the type of a column that holds them.

CSV files contain only text, so text is classified by how it is written. The type of a column depends only on the set
of value types in it; therefore parts of a column can be examined in different processes and the sets combined.
"""

from __future__ import annotations

import datetime
import math
import re
from decimal import Decimal
from enum import Enum, IntFlag, auto
from typing import Any

import numpy as np

__all__ = ["BOOLS", "ZERO_PADDED", "ColumnType", "ValueType", "parse_label", "parse_number", "value_type"]

#: Pattern of a code: a whole number with leading zeros.
ZERO_PADDED = "[+-]?0[0-9]+"

BOOLS = (bool, np.bool_)
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


def value_type(value: Any) -> ValueType:
    """Return the type of a value that is not missing."""
    if isinstance(value, str):
        if value.lower() in ("true", "false"):
            return ValueType.BOOL_TEXT
        if not math.isnan(parse_number(value)):
            return ValueType.ZERO_PADDED_TEXT if re.fullmatch(ZERO_PADDED, value) else ValueType.NUMBER_TEXT
        if _DATE.fullmatch(value):
            return ValueType.DATE_TEXT
        return ValueType.DECIMAL_COMMA_TEXT if _DECIMAL_COMMA.fullmatch(value.strip()) else ValueType.TEXT
    by_class = ((BOOLS, ValueType.BOOL), (_DATES, ValueType.DATE), (_REAL, ValueType.NUMBER))
    return next((found for classes, found in by_class if isinstance(value, classes)), ValueType.OTHER)


def parse_number(value: Any) -> float:
    """Read a value as a number, true as 1 and false as 0; return NaN if it is not a number."""
    if isinstance(value, BOOLS + _REAL):
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
