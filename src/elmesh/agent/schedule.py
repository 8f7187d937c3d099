"""When a network learns again: at intervals, or at a time of the day.

Sites need not agree on a start: the moments of an interval are its multiples since 1970 in UTC, so that all agents with
the same interval have the same moments, whenever they were started. A moment that has passed is not made up for.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta, tzinfo

from elmesh.errors import ElmeshError

__all__ = ["Schedule", "make_schedule"]

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_INTERVAL = re.compile(r"([1-9][0-9]{0,5})([smhd])")
_TIME = re.compile(r"([01][0-9]|2[0-3]):([0-5][0-9])(Z?)")


@dataclass(frozen=True)
class Schedule:
    """An interval in seconds, or a time of the day."""

    seconds: int | None = None
    at: time | None = None
    zone: tzinfo | None = None  # None: that of this machine

    @classmethod
    def every(cls, text: str) -> Schedule:
        """Return the schedule of an interval.

        Examples
        --------
        >>> Schedule.every("24h").seconds
        86400
        """
        found = _INTERVAL.fullmatch(text)
        if not found:
            raise ElmeshError(f"--every is {text!r}; expected a number and s, m, h or d, such as 24h or 30m.")
        return cls(seconds=int(found[1]) * _UNITS[found[2]])

    @classmethod
    def daily(cls, text: str) -> Schedule:
        """Return the schedule of a time of the day, here or, with a Z, in UTC.

        Examples
        --------
        >>> Schedule.daily("02:00Z").at
        datetime.time(2, 0)
        """
        found = _TIME.fullmatch(text)
        if not found:
            raise ElmeshError(f"--at is {text!r}; expected a time such as 02:00, or 02:00Z in UTC.")
        return cls(at=time(int(found[1]), int(found[2])), zone=UTC if found[3] else None)

    def next_after(self, now: float) -> float:
        """Return the first moment of the schedule after a time, both in seconds since 1970.

        Examples
        --------
        >>> Schedule.every("1h").next_after(7_200.0)
        10800.0
        """
        if self.seconds is not None:
            return float((now // self.seconds + 1) * self.seconds)
        if self.at is None:
            raise TypeError("A schedule has an interval or a time.")
        # Without a zone, a time of the wall clock: the day on which clocks change has 23 or 25 hours.
        today = datetime.fromtimestamp(now, self.zone).date()
        moments = (datetime.combine(today + timedelta(days=k), self.at, self.zone).timestamp() for k in range(3))
        return next(moment for moment in moments if moment > now)


def make_schedule(every: str | None, at: str | None) -> Schedule | None:
    """Return the schedule of the options ``--every`` and ``--at``; None if neither is given."""
    if every is not None and at is not None:
        raise ElmeshError("Give --every or --at, not both.")
    if every is not None:
        return Schedule.every(every)
    return None if at is None else Schedule.daily(at)
