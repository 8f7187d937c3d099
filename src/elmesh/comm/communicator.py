"""How processes that work on one fit compare notes: what a fit in one process and one on many machines have in common.

Notes are plain JSON, so that nothing that another process says is ever executed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from elmesh.errors import ElmeshError

__all__ = ["ALONE", "Together", "all_or_none", "merged"]

_T = TypeVar("_T")


class Together(Protocol):
    """All processes of a fit, seen from one of them. Every method is called by all of them, or by none."""

    @property
    def rank(self) -> int:
        """Which process this is, from 0."""

    @property
    def size(self) -> int:
        """How many there are."""

    def gather(self, notes: Any) -> list[Any]:
        """Return every process's notes, this one's included, in the order of ranks."""

    def add(self, counts: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the sum of all processes' counts."""

    def collect(self, data: bytes) -> list[bytes]:
        """Return every process's data at the first one, and nothing at the others."""


class _Alone:
    """One process."""

    rank, size = 0, 1

    def gather(self, notes: Any) -> list[Any]:
        return [notes]

    def add(self, counts: NDArray[np.int64]) -> NDArray[np.int64]:
        return counts

    def collect(self, data: bytes) -> list[bytes]:
        return [data]


#: A process that is by itself.
ALONE: Together = _Alone()


@contextmanager
def all_or_none(together: Together) -> Iterator[None]:
    """Have an error of one process end all of them alike, with the message of the first that has one.

    Examples
    --------
    >>> with all_or_none(ALONE):
    ...     pass
    """
    complaint: str | None = None
    try:
        yield
    except (ValueError, TypeError, OSError) as error:
        if together.size == 1:
            raise
        complaint = str(error)
    if together.size == 1:
        return
    complaints = [(rank, text) for rank, text in enumerate(together.gather(complaint)) if text is not None]
    if complaints:
        raise ElmeshError(complaints[0][1])


def merged(together: Together, own: dict[Any, _T]) -> dict[Any, _T]:
    """Return the notes of all processes about their own tasks as one dict, sorted by task.

    Examples
    --------
    >>> merged(ALONE, {"york": 2, "leeds": 1})
    {'leeds': 1, 'york': 2}
    """
    # Pairs, for JSON has text alone as keys.
    pairs = [pair for notes in together.gather([[task, value] for task, value in own.items()]) for pair in notes]
    return dict(sorted(pairs, key=lambda pair: pair[0]))
