"""Dates and times as numbers: days since 1970, and where in the year, in the week and in the day they are.

Text is read as a date if it is written as 2024-03-31 (also 2024/03/31, with a time after it) or as 31.03.2024. Which
of its numbers is the day is not certain in 03/04/2024: such text is not read.
"""

from __future__ import annotations

import datetime
import math
import re
from typing import Any

import numpy as np
import pandas as pd

from elmesh.typing import FloatArray

__all__ = ["CYCLES", "CYCLE_STARTS", "choose_cycles", "cycle_angles", "days_of", "days_of_column"]

#: Length of each cycle in days, and its name.
CYCLES = {"year": 365.2425, "week": 7.0, "day": 1.0}
#: A day, since 1970, at which each cycle starts: a new year, a Monday, any day.
CYCLE_STARTS = {"year": 0.0, "week": 4.0, "day": 0.0}
# Days that a column spans before a cycle is looked for.
_LEAST_SPAN = {"year": 365.0, "week": 21.0}
_SECONDS = 86400.0
_TIME = r"(?:[T ](\d{1,2}):(\d{2})(?::(\d{2})(?:\.\d+)?)?(?:Z|[+-]\d{2}:?\d{2})?)?"
_FORMS = (
    (re.compile(r"(\d{4})-(\d{1,2})-(\d{1,2})" + _TIME, re.ASCII), (0, 1, 2)),
    (re.compile(r"(\d{4})/(\d{1,2})/(\d{1,2})" + _TIME, re.ASCII), (0, 1, 2)),
    (re.compile(r"(\d{1,2})\.(\d{1,2})\.(\d{4})" + _TIME, re.ASCII), (2, 1, 0)),
)
# Dates of tables have no time zone; where there is one, it is left out.
_EPOCH = datetime.datetime(1970, 1, 1)


def days_of(value: Any) -> float:
    """Return a date or time as days since 1970; NaN if it is none, or its form is ambiguous.

    Examples
    --------
    >>> days_of("1970-01-02"), days_of("03.01.1970 12:00"), days_of("03/04/2024")
    (1.0, 2.5, nan)
    """
    if isinstance(value, str):
        return _days_of_text(value.strip())
    if isinstance(value, np.datetime64 | datetime.date):
        stamp = pd.Timestamp(value)
        return math.nan if pd.isna(stamp) else (stamp.tz_localize(None) - pd.Timestamp(0)).total_seconds() / _SECONDS
    return math.nan


def days_of_column(column: pd.Series[Any]) -> FloatArray:
    """Return a column of the type datetime64 as days since 1970, NaN where missing."""
    local = column.dt.tz_localize(None) if column.dt.tz is not None else column
    return np.asarray(
        (local - pd.Timestamp(0)).dt.total_seconds().to_numpy(dtype=np.float64, na_value=np.nan) / _SECONDS
    )


def _days_of_text(text: str) -> float:
    for form, (year, month, day) in _FORMS:
        match = form.fullmatch(text)
        if match is not None:
            parts = [int(part or 0) for part in match.groups()]
            hour, minute, second = parts[3:]
            try:
                stamp = datetime.datetime(parts[year], parts[month], parts[day], hour, minute, second)
            except ValueError:
                return math.nan
            return (stamp - _EPOCH).total_seconds() / _SECONDS
    return math.nan


def choose_cycles(first: float, last: float, *, has_times: bool) -> tuple[str, ...]:
    """Return the cycles that a column of dates between two days may have."""
    found = [name for name, least in _LEAST_SPAN.items() if last - first >= least]
    return (*found, *(["day"] if has_times else []))


def cycle_angles(days: FloatArray, cycle: str) -> FloatArray:
    """Return where in a cycle dates are, as angles: 0 at the start of a year, of a Monday, of a day."""
    return np.asarray(2.0 * np.pi * (days - CYCLE_STARTS[cycle]) / CYCLES[cycle])
