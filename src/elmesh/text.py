"""Words for messages: counts, lists and row numbers in a sentence."""

from __future__ import annotations

import json
from collections.abc import Iterable
from itertools import islice
from typing import Any

__all__ = ["abbreviated", "count", "listed", "more", "row"]


def listed(items: Iterable[object], most: int = 10) -> str:
    """Name items in a sentence, at most so many of them.

    Examples
    --------
    >>> listed(["a", "b", "c", "d"], most=2)
    "'a', 'b' and 2 more"
    """
    items = list(items)
    return ", ".join(map(repr, islice(items, most))) + more(len(items), most)


def more(n: int, most: int = 10) -> str:
    """Return the end of a list of at most ``most`` out of n items."""
    return f" and {n - most} more" if n > most else ""


def count(n: int, noun: str) -> str:
    """Return a number with its noun: 1 row, 2 rows."""
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


def abbreviated(value: Any, most: int = 60) -> str:
    """Return plain JSON as text, cut after so many characters."""
    text = json.dumps(value)
    return text if len(text) <= most else f"{text[: most - 3]}..."


def row(i: int) -> str:
    """Name a row in a sentence."""
    return f"in row {i} (counting from 0)"
