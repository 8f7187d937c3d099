"""What a single value is: a number, a category, a date, or nothing one could learn from.

Text is told by how it is written, for a CSV file has nothing else. What a column is follows from which sorts of
value it holds and from nothing more, so that the parts of a column may be looked at in different places and what was
found put together.
"""

from __future__ import annotations

import datetime
import math
import re
from decimal import Decimal
from enum import Enum, IntFlag, auto
from typing import Any

import numpy as np

__all__ = ["LEADING_ZERO", "TRUTHS", "Nature", "Sort", "label_of", "number_of", "sort_of"]

LEADING_ZERO = "[+-]?0[0-9]+"
"""How a code looks: a whole number with leading zeros."""

TRUTHS = (bool, np.bool_)

_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?|[+-]?(inf|infinity)", re.ASCII | re.IGNORECASE)
_DECIMAL_COMMA = re.compile(r"[+-]?\d+(,\d+)+(\.\d+)?|[+-]?\d+(\.\d{3})*,\d+", re.ASCII)
_DATE = re.compile(
    r"\d{4}-\d{1,2}-\d{1,2}([T ]\d{1,2}:\d{2}.*)?|\d{1,4}/\d{1,2}/\d{1,4}( \d{1,2}:\d{2}.*)?"
    r"|\d{1,2}\.\d{1,2}\.\d{4}( \d{1,2}:\d{2}.*)?|\d{1,2}:\d{2}(:\d{2}(\.\d+)?)?",
    re.ASCII,
)
_DATES = (datetime.date, datetime.time, datetime.timedelta, np.datetime64, np.timedelta64)


class Nature(Enum):
    """What the values of a column are."""

    NUMBER = "numbers"
    BOOLEAN = "true or false"
    TEXT = "text"
    DATE = "dates"
    OTHER = "values that are neither numbers nor text"


class Sort(IntFlag):
    """What a single value is, by its type or, for text, by how it is written; a column holds a set of them."""

    NUMBER = auto()
    TRUTH = auto()
    DATE = auto()
    OTHER = auto()
    CATEGORY = auto()  # one of a column that the file calls categorical, besides what it is itself
    NUMERAL = auto()
    CODE = auto()  # a whole number with leading zeros
    TRUE_OR_FALSE = auto()
    CALENDAR = auto()
    COMMA = auto()  # a number with commas in it, such as 1,5
    WORD = auto()

    @property
    def nature(self) -> Nature:
        """What a column of these is.

        Examples
        --------
        >>> (Sort.NUMERAL | Sort.TRUE_OR_FALSE).nature, (Sort.NUMERAL | Sort.CODE).nature
        (<Nature.NUMBER: 'numbers'>, <Nature.TEXT: 'text'>)
        """
        if self & ~Sort.CATEGORY == Sort.DATE:
            return Nature.DATE
        if self & Sort.CATEGORY:
            return Nature.TEXT
        if self & (Sort.DATE | Sort.OTHER):
            return Nature.OTHER
        for found, sorts in (
            (Nature.NUMBER, Sort(0)),
            (Nature.BOOLEAN, Sort.TRUTH),
            (Nature.NUMBER, Sort.NUMBER | Sort.TRUTH),
            (Nature.BOOLEAN, Sort.TRUE_OR_FALSE),
            (Nature.NUMBER, Sort.NUMERAL | Sort.TRUE_OR_FALSE),
            (Nature.DATE, Sort.CALENDAR),
        ):
            if not self & ~sorts:
                return found
        # Text among numbers comes of files that differ; their text is what they have in common.
        return Nature.TEXT

    @property
    def spoilt(self) -> bool:
        """Whether these would be numbers but for commas, as in ``1,5`` or ``1,000``."""
        return bool(self & Sort.COMMA) and not self & ~(
            Sort.COMMA | Sort.CATEGORY | Sort.NUMBER | Sort.NUMERAL | Sort.CODE
        )


def sort_of(value: Any) -> Sort:
    """Say what a value is.

    Examples
    --------
    >>> sort_of("007").name, sort_of("1,5").name, sort_of(7).name
    ('CODE', 'COMMA', 'NUMBER')
    """
    if isinstance(value, str):
        if value.lower() in ("true", "false"):
            return Sort.TRUE_OR_FALSE
        if not math.isnan(number_of(value)):
            return Sort.CODE if re.fullmatch(LEADING_ZERO, value) else Sort.NUMERAL
        if _DATE.fullmatch(value):
            return Sort.CALENDAR
        return Sort.COMMA if _DECIMAL_COMMA.fullmatch(value.strip()) else Sort.WORD
    for sort, types in ((Sort.TRUTH, TRUTHS), (Sort.NUMBER, (int, float, Decimal)), (Sort.DATE, _DATES)):
        if isinstance(value, types):
            return sort
    return Sort.NUMBER if isinstance(value, np.number) and not np.iscomplexobj(value) else Sort.OTHER


def number_of(value: Any) -> float:
    """Read a value as a number, 1 and 0 for true and false; NaN if it is none.

    Examples
    --------
    >>> number_of("1.5"), number_of(" true "), number_of("1_000")
    (1.5, 1.0, nan)
    """
    if isinstance(value, bool | int | float | Decimal | np.number | np.bool_):
        return float(value)
    text = str(value).strip()
    if _NUMBER.fullmatch(text):
        return float(text)
    return {"true": 1.0, "false": 0.0}.get(text.lower(), math.nan)


def label_of(value: Any) -> str | None:
    """Read a value that is not missing as text; None if there is nothing in it.

    Examples
    --------
    >>> label_of(7.0), label_of(" 7 "), label_of(" ")
    ('7', '7', None)
    """
    if isinstance(value, float | np.floating) and float(value).is_integer():
        return str(int(value))
    if isinstance(value, Decimal) and value.is_finite():
        value = int(value) if value == value.to_integral_value() else value.normalize()
    if isinstance(value, np.generic):
        value = value.item()
    return str(value).strip() or None
