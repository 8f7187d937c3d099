"""The wire format: a header of fixed size and raw little-endian numbers, checked before use.

A header carries the kind of message, the sender, the digest of its network file, its run, its epoch (which agents are
evicted), the number of the message along this edge, which messages the other way are acknowledged, and in a sum the
sender's view of all keys and totals. Nothing in a message is ever executed, and nothing is allocated by what a message
claims: only as much is read as has arrived.

=========== ====== ===========================================================================
field       bytes  meaning
=========== ====== ===========================================================================
magic       4      ``ELM3``
kind        1      see :class:`Kind`
dtype       1      0: little-endian doubles; 1: other bytes
reserved    2, 4   zero; the second one, after the columns, aligns the numbers of a value
epoch       4      which agents are evicted, as a number (see :func:`epoch_of`)
rows        4      of the value, 0 for none
columns     4      of the value, 0 for none
number      8      the message's number along this edge or, in a RESEND, the number wanted
acked       8      messages the other way before this number are never asked for again
run_id      8      a random number that the sender drew when it started this run
peer_run_id 8      the same of the receiver, as far as the sender knows it, or 0
sender      32     its name, padded with zeros
digest      32     SHA-256 of the network file
view        32     digest of all agents' keys and of all totals that the sender has received; zero outside of sums
=========== ====== ===========================================================================
"""

from __future__ import annotations

import hashlib
import math
import re
import struct
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache

import numpy as np

from elmesh.errors import ElmeshError
from elmesh.typing import FloatArray

__all__ = [
    "HEADER_BYTES",
    "NO_VIEW",
    "NUMBERED",
    "Kind",
    "Message",
    "WireError",
    "encode",
    "epoch_of",
    "eviction_body",
    "is_agent_name",
    "kind_of",
    "parse",
]

_HEADER = struct.Struct("<4sBBHIIIIQQQQ32s32s32s")
HEADER_BYTES = _HEADER.size
_MAGIC = b"ELM3"
_DOUBLES, _BYTES = 0, 1
#: The view of a message that belongs to no sum.
NO_VIEW = bytes(32)
# Larger numbers of messages do not occur.
_LARGEST = 1 << 60
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,31}")


class WireError(ElmeshError):
    """A message that is not valid; the text states why."""


class Kind(IntEnum):
    """The kind of a message."""

    #: A value for a neighbour: U_t.
    VALUE = 1
    #: A partial sum on its way to the root of the spanning tree, and the total on its way back.
    PARTIAL_SUM = 2
    TOTAL = 3
    #: Resend all messages from this number on.
    RESEND = 4
    #: The sender has its model saved; and the acknowledgement of that.
    DONE = 5
    ACK = 6
    #: The agents in the body are evicted.
    EVICTED = 7
    #: The sender ends without a result.
    FAILED = 8
    #: A request for the time, and the answer.
    PING = 9
    PONG = 10
    #: Lists with an entry of each agent, on their way to the root of the spanning tree, and the complete list on its
    #: way back: keys, run numbers, signatures.
    PARTIAL_LIST = 11
    LIST = 12


#: Kinds that carry a value and are numbered along an edge.
NUMBERED = (Kind.VALUE, Kind.PARTIAL_SUM, Kind.TOTAL, Kind.PARTIAL_LIST, Kind.LIST)
_KINDS = {int(kind): kind for kind in Kind}


def is_agent_name(text: object) -> bool:
    """Return whether something may be the name of an agent: 1 to 32 of a-z, 0-9, _ and -, the first alphanumeric.

    Examples
    --------
    >>> is_agent_name("north-2"), is_agent_name("North")
    (True, False)
    """
    return isinstance(text, str) and _NAME.fullmatch(text) is not None


@dataclass(eq=False, slots=True)
class Message:
    """A message with its header parsed and its body unread."""

    kind: Kind
    sender: str
    digest: bytes
    epoch: int
    number: int
    acked: int
    run_id: int
    peer_run_id: int
    rows: int
    columns: int
    is_bytes: bool
    view: bytes
    body: memoryview

    def check_shape(self, rows: int, columns: int, is_bytes: bool = False) -> None:
        """Raise unless the header declares this shape and type."""
        if self.is_bytes != is_bytes:
            raise WireError("it holds no doubles" if self.is_bytes else "it holds doubles, which are not due")
        if (self.rows, self.columns) != (rows, columns):
            raise WireError(f"it is {self.rows} x {self.columns}, not {rows} x {columns}")

    def matrix(self, rows: int, columns: int) -> tuple[FloatArray, float]:
        """Return its matrix of finite doubles, and the squared norm (infinite on overflow); raise if it has none."""
        self.check_shape(rows, columns)
        if len(self.body) != 8 * rows * columns:
            raise WireError(f"its body has {len(self.body)} bytes, not {8 * rows * columns}")
        numbers = np.frombuffer(self.body, "<f8").astype(np.float64, copy=False)
        square = float(np.vdot(numbers, numbers))
        # The squares of finite numbers may overflow; only then each number is checked.
        if not math.isfinite(square) and not np.isfinite(numbers).all():
            raise WireError("it has a value that is not a finite number")
        return numbers.reshape(rows, columns), square

    def evicted(self, names: Collection[str]) -> frozenset[str]:
        """Return the agents in its body, which must be some of these, and not its sender."""
        if len(self.body) > 64 * len(names):
            raise WireError("its list of evicted agents is too long")
        evicted = frozenset(bytes(self.body).decode("ascii", "replace").split("\n"))
        if not evicted or not evicted <= frozenset(names):
            raise WireError("its list of evicted agents has unknown names")
        if self.sender in evicted:
            raise WireError("its list of evicted agents includes its sender")
        if self.epoch != epoch_of(evicted):
            raise WireError("its epoch is not that of its list of evicted agents")
        return evicted


def eviction_body(evicted: Iterable[str]) -> bytes:
    """Return the body of a message of kind EVICTED."""
    return "\n".join(sorted(evicted)).encode()


def epoch_of(evicted: Iterable[str]) -> int:
    """Return the number of the epoch in which these agents are evicted; 0 if there are none.

    Examples
    --------
    >>> epoch_of([]), epoch_of(["west", "east"]) == epoch_of(["east", "west"])
    (0, True)
    """
    body = eviction_body(evicted)
    return (int.from_bytes(hashlib.sha256(body).digest()[:4], "little") or 1) if body else 0


def encode(
    kind: Kind,
    sender: str,
    digest: bytes,
    *,
    epoch: int = 0,
    number: int = 0,
    acked: int = 0,
    run_id: int = 0,
    peer_run_id: int = 0,
    shape: tuple[int, int] = (0, 0),
    is_bytes: bool = False,
    view: bytes = NO_VIEW,
    body: bytes = b"",
) -> bytes:
    """Return the bytes of a message.

    Examples
    --------
    >>> message = encode(Kind.RESEND, "north", bytes(32), number=7)
    >>> len(message) == HEADER_BYTES, parse(message).number
    (True, 7)
    """
    dtype = _BYTES if is_bytes else _DOUBLES
    numbers = number, acked, run_id, peer_run_id
    return _HEADER.pack(_MAGIC, kind, dtype, 0, epoch, *shape, 0, *numbers, sender.encode(), digest, view) + body


@lru_cache(maxsize=256)
def _sender(name: bytes) -> str:
    sender = name.rstrip(b"\0").decode("latin-1")
    if not is_agent_name(sender):  # and must not be printed in a log either
        raise WireError("its sender's name is not valid")
    return sender


def kind_of(data: bytes) -> Kind:
    """Return the kind of a message without parsing the rest; raise :class:`WireError` if it has none."""
    if data[:4] != _MAGIC or len(data) < HEADER_BYTES or data[4] not in _KINDS:
        raise WireError("it is not in the format of this version")
    return _KINDS[data[4]]


def parse(data: bytes) -> Message:
    """Parse a message's header; raise :class:`WireError` if it is not valid."""
    if len(data) < HEADER_BYTES:
        raise WireError(f"it has {len(data)} bytes, fewer than a header")
    magic, kind, dtype, reserved, epoch, *numbers, name, digest, view = _HEADER.unpack_from(data)
    rows, columns, spare, number, acked, run_id, peer_run_id = numbers
    if magic != _MAGIC:
        raise WireError("it is not in the format of this version")
    if kind not in _KINDS or dtype not in (_DOUBLES, _BYTES) or reserved or spare:
        raise WireError("its header has an unknown field")
    if number > _LARGEST or acked > _LARGEST:
        raise WireError("its number is too large")
    fields = epoch, number, acked, run_id, peer_run_id, rows, columns, dtype == _BYTES, view
    return Message(_KINDS[kind], _sender(name), digest, *fields, memoryview(data)[HEADER_BYTES:])
