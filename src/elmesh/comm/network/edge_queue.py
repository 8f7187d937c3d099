"""One edge, seen from one end: sent messages that may be asked for again, and received ones in order.

Messages along an edge are numbered in either direction. Sent messages are buffered until the peer acknowledges that it
never needs them again; received ones are delivered in the order of numbers, whatever arrives twice, late, or out of
order. So an agent that was killed resumes from its last checkpoint, and its neighbours resend what it has missed since:
the numbers are the same, and so is everything that is computed from them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from elmesh.comm.network.wire import NO_VIEW, Kind, Message, WireError

__all__ = ["EdgeQueue", "SentMessage"]

# A peer resends at most what it has buffered, which is less than this; and the bytes that may wait to be delivered.
_MOST_AHEAD, _MOST_WAITING = 1024, 256 << 20


@dataclass(frozen=True, eq=False)
class SentMessage:
    """A sent message: its number, and all of it but the header."""

    number: int
    kind: Kind
    shape: tuple[int, int] = (0, 0)
    is_bytes: bool = False
    view: bytes = NO_VIEW
    body: bytes = b""


class EdgeQueue:
    """The queues of one edge.

    Attributes
    ----------
    sent, received : int
        Messages sent, and messages delivered, so far.
    acked : int
        Received messages that will never be asked for again: what follows from them is on disk.

    Examples
    --------
    >>> edge = EdgeQueue()
    >>> first = edge.push(SentMessage(0, Kind.VALUE))
    >>> first.number, [message.number for message in edge.since(0)]
    (0, [0])
    >>> edge.release(1)
    >>> edge.since(0)
    []
    """

    def __init__(self) -> None:
        self.sent = self.received = self.acked = 0
        self._buffer: dict[int, SentMessage] = {}
        self._arrived: dict[int, Message] = {}
        self.buffered_bytes = self._waiting = 0

    @property
    def buffered(self) -> int:
        """Number of sent messages that are buffered."""
        return len(self._buffer)

    def push(self, message: SentMessage) -> SentMessage:
        """Assign the next number to a message to send, and buffer it."""
        message = replace(message, number=self.sent)
        self._buffer[self.sent] = message
        self.buffered_bytes += len(message.body)
        self.sent += 1
        return message

    def since(self, number: int) -> list[SentMessage]:
        """Return the buffered messages from this number on."""
        return [message for n, message in self._buffer.items() if n >= number]

    def release(self, number: int) -> None:
        """Drop the buffered messages before this number: the peer never needs them again."""
        while self._buffer:
            first = next(iter(self._buffer))  # in the order of numbers
            if first >= number:
                return
            self.buffered_bytes -= len(self._buffer.pop(first).body)

    def put(self, message: Message) -> bool:
        """Store an arrived message; False if it is a duplicate, or too much for now. An impossible one is refused."""
        if message.number < self.received or message.number in self._arrived:
            return False
        if message.number > self.received + _MOST_AHEAD:
            raise WireError(f"its number is {message.number}, when {self.received} is due")
        if self._waiting > _MOST_WAITING and message.number != self.received:
            return False  # it will be asked for again
        self._arrived[message.number] = message
        self._waiting += len(message.body)
        return True

    @property
    def has_next(self) -> bool:
        """Whether the next message has arrived."""
        return self.received in self._arrived

    def pop(self) -> Message:
        """Deliver the next message, which has arrived."""
        message = self._arrived.pop(self.received)
        self._waiting -= len(message.body)
        self.received += 1
        return message

    def discard(self) -> None:
        """Drop what has arrived and was not delivered: it is of another run."""
        self._arrived, self._waiting = {}, 0

    def restore(self, sent: int, received: int, buffered: Sequence[SentMessage]) -> None:
        """Return to an earlier state; what has arrived since stays."""
        self.sent, self.received, self.acked = sent, received, received
        self._buffer = {message.number: message for message in buffered}
        self.buffered_bytes = sum(len(message.body) for message in buffered)
        self._arrived = {n: message for n, message in self._arrived.items() if n >= received}
        self._waiting = sum(len(message.body) for message in self._arrived.values())
