"""One edge, seen from one of its ends: what was said along it and may be asked for again, and what has come.

Messages along an edge are numbered in either direction. What was said is kept until the other end has said that it will
never need it again; what comes is taken in the order of numbers, whatever came twice, late, or out of turn. So an agent
that was killed goes on from what it last kept, and its neighbours tell it what it has missed since: the numbers are the
same, and so is everything that follows from them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from elmesh.comm.network.wire import Kind, Message, WireError

__all__ = ["Edge", "Said"]

# A neighbour says again at most what it has kept, which is less than this; and what may wait to be taken, in bytes.
_AHEAD, _WAITING = 1024, 256 << 20


@dataclass(frozen=True, eq=False)
class Said:
    """A message as it was said: its number, and all of it but the header."""

    number: int
    kind: Kind
    shape: tuple[int, int]
    coarse: bool
    body: bytes


class Edge:
    """The book-keeping of one edge.

    Attributes
    ----------
    said, heard : int
        Messages said, and messages taken, so far.
    settled : int
        Messages heard that will never be asked for again: what they led to is on disk.

    Examples
    --------
    >>> edge = Edge()
    >>> first = edge.say(Kind.VALUE, (0, 0), False, b"")
    >>> first.number, [said.number for said in edge.since(0)]
    (0, [0])
    >>> edge.release(1)
    >>> edge.since(0)
    []
    """

    def __init__(self) -> None:
        self.said = self.heard = self.settled = 0
        self._kept: dict[int, Said] = {}
        self._come: dict[int, Message] = {}
        self._size = self._waiting = 0

    @property
    def kept(self) -> int:
        """How many messages that were said are kept."""
        return len(self._kept)

    @property
    def kept_bytes(self) -> int:
        """Bytes of what was said and is kept."""
        return self._size

    def say(self, kind: Kind, shape: tuple[int, int], coarse: bool, body: bytes) -> Said:
        """Give a message its number, and keep it."""
        said = Said(self.said, kind, shape, coarse, body)
        self._kept[self.said] = said
        self._size += len(body)
        self.said += 1
        return said

    def since(self, number: int) -> list[Said]:
        """Return what was said from this number on and is kept."""
        return [said for n, said in self._kept.items() if n >= number]

    def release(self, number: int) -> None:
        """Forget what was said before this number: the other end has it for good."""
        # In the order of numbers, so that only what goes is looked at.
        while self._kept:
            first = next(iter(self._kept))
            if first >= number:
                return
            self._size -= len(self._kept.pop(first).body)

    def take_in(self, message: Message) -> bool:
        """Take in what has come; False if it is known already, or too much for now. One that cannot be is refused."""
        if message.number < self.heard or message.number in self._come:
            return False
        if message.number > self.heard + _AHEAD:
            raise WireError(f"its number is {message.number}, when {self.heard} is due")
        if self._waiting > _WAITING and message.number != self.heard:
            return False  # it will be asked for again
        self._come[message.number] = message
        self._waiting += len(message.body)
        return True

    @property
    def has_next(self) -> bool:
        """Whether the next message is there."""
        return self.heard in self._come

    def take(self) -> Message:
        """Take the next message, which is there."""
        message = self._come.pop(self.heard)
        self._waiting -= len(message.body)
        self.heard += 1
        return message

    def forget(self) -> None:
        """Drop what has come and was not taken: it is of another run than what comes now."""
        self._come, self._waiting = {}, 0

    def restore(self, said: int, heard: int, kept: Sequence[Said]) -> None:
        """Be again as it was when these were taken; what has come since is still there."""
        self.said, self.heard, self.settled = said, heard, heard
        self._kept = {message.number: message for message in kept}
        self._size = sum(len(message.body) for message in kept)
        self._come = {n: message for n, message in self._come.items() if n >= heard}
        self._waiting = sum(len(message.body) for message in self._come.values())
