"""Words for messages: counts, sizes, lists and row numbers in a sentence."""

from __future__ import annotations

import json
import unicodedata
from bisect import bisect_right
from collections.abc import Iterable
from itertools import accumulate, islice
from typing import Any

__all__ = ["abbreviated", "count", "data_size", "duration", "listed", "more", "row", "shortened"]


def listed(items: Iterable[object], most: int = 10) -> str:
    """Name items in a sentence, at most so many of them; long names are cut.

    Examples
    --------
    >>> listed(["a", "b", "c", "d"], most=2)
    "'a', 'b' and 2 more"
    """
    items = list(items)
    named = (repr(shortened(item) if isinstance(item, str) else item) for item in islice(items, most))
    return ", ".join(named) + more(len(items), most)


def shortened(text: str, most: int = 60) -> str:
    """Return a text of at most so many characters, wide ones counted twice; an ellipsis stands for what is cut.

    Examples
    --------
    >>> shortened("north"), shortened("northumberland", most=6), shortened("東京都", most=5)
    ('north', 'north…', '東京…')
    """
    ends = list(accumulate(2 if unicodedata.east_asian_width(character) in "WF" else 1 for character in text))
    if not ends or ends[-1] <= most:
        return text
    return f"{text[: bisect_right(ends, most - 1)]}…"


def more(n: int, most: int = 10) -> str:
    """Return the end of a list of at most ``most`` out of n items."""
    return f" and {n - most} more" if n > most else ""


def count(n: int, noun: str) -> str:
    """Return a number with its noun: 1 row, 2 rows."""
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


def data_size(n_bytes: float) -> str:
    """Return a number of bytes with three digits and a decimal unit.

    Examples
    --------
    >>> [data_size(n) for n in (1, 28_800, 143_600_000, 7_400_000_000)]
    ['1 byte', '28.8 kB', '144 MB', '7.4 GB']
    """
    if n_bytes < 1000:
        return count(round(n_bytes), "byte")
    units = ("kB", "MB", "GB", "TB")
    # 999.5 kB is written as 1 MB, because three digits of it are 1000 kB.
    power = next((i for i in range(len(units)) if n_bytes < 999.5 * 1000 ** (i + 1)), len(units) - 1)
    size = n_bytes / 1000 ** (power + 1)
    return f"{size:,.0f} {units[power]}" if size >= 100 else f"{size:.3g} {units[power]}"


def duration(seconds: float) -> str:
    """Return a time span in its two largest units.

    Examples
    --------
    >>> [duration(s) for s in (0.4, 59, 61, 7_260, 200_000)]
    ['0 s', '59 s', '1 min 1 s', '2 h 1 min', '2 d 7 h']
    """
    parts: list[str] = []
    rest = round(seconds)
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1)):
        number, rest = divmod(rest, size)
        if number or (unit == "s" and not parts):
            parts.append(f"{number} {unit}")
        elif parts:
            break
    return " ".join(parts[:2])


def abbreviated(value: Any, most: int = 60) -> str:
    """Return plain JSON as text, cut after so many characters."""
    text = json.dumps(value)
    return text if len(text) <= most else f"{text[: most - 3]}..."


def row(i: int) -> str:
    """Name a row in a sentence."""
    return f"in row {i} (counting from 0)"
