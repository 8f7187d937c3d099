"""Collectives between the processes of one fit, outside of the algorithm: setup, agreement and errors.

Contents are plain JSON or bytes, so that nothing another process sends is ever executed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from elmesh.errors import ElmeshError

__all__ = ["SERIAL", "Communicator", "merge_by_task", "raise_on_all"]

_T = TypeVar("_T")


class Communicator:
    """All processes of a fit, seen from one of them; by itself, of a process that works alone.

    Every method is collective: all processes call it, or none.
    """

    #: Number of the calling process, from 0, and number of processes.
    rank, size = 0, 1

    def allgather(self, content: Any) -> list[Any]:
        """Return the JSON content of every process, in the order of ranks."""
        return [content]

    def gather_bytes(self, data: bytes, root: int = 0) -> list[bytes]:
        """Return the bytes of every process at one of them, and an empty list at the others."""
        return [data]


#: A process that works alone.
SERIAL = Communicator()


@contextmanager
def raise_on_all(communicator: Communicator) -> Iterator[None]:
    """Raise an error of one process in all of them, with the message of the lowest rank that has one.

    Examples
    --------
    >>> with raise_on_all(SERIAL):
    ...     pass
    """
    if communicator.size == 1:
        yield
        return
    message: str | None = None
    try:
        yield
    except (ValueError, TypeError, OSError) as error:
        message = str(error)
    first = next((text for text in communicator.allgather(message) if text is not None), None)
    if first is not None:
        raise ElmeshError(first)


def merge_by_task(communicator: Communicator, own: dict[Any, _T]) -> dict[Any, _T]:
    """Return one dict of what all processes know of their own tasks, sorted by task.

    Examples
    --------
    >>> merge_by_task(SERIAL, {"york": 2, "leeds": 1})
    {'leeds': 1, 'york': 2}
    """
    # Pairs, because JSON allows only text as keys.
    pairs = [pair for part in communicator.allgather([[task, value] for task, value in own.items()]) for pair in part]
    return dict(sorted(pairs, key=lambda pair: pair[0]))
