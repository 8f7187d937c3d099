"""The wire format: a header of fixed size and raw little-endian numbers, checked before anything is made of it.

A message says what kind it is, who says it, which network file and which run that agent goes by, in which epoch (which
agents are gone), its number among the messages along this edge, and which messages the other way need not be kept any
longer. For proximal ADMM the number of a value is its round. Nothing in a message is ever executed, and nothing is
allocated by what a message claims: what is read is as long as what has come.

=========== ====== ===========================================================================
field       bytes  meaning
=========== ====== ===========================================================================
magic       4      ``ELM1``
kind        1      see :class:`Kind`
dtype       1      0: little-endian doubles; 1: bytes of a coarse channel
reserved    2, 4   zero; the second one, behind the columns, keeps the numbers of a value in step with memory
epoch       4      which agents are gone, as a number (see :func:`epoch_of`)
rows        4      of the value, 0 for none
columns     4      of the value, 0 for none
number      8      which message along this edge it is, or, for a request, which one is wanted
settled     8      messages the other way before this one will never be asked for again
life        8      a random number that the sender drew when it began this run
yours       8      the same of the hearer, as far as the sender knows it, or 0
sender      32     its name, padded with zeros
digest      32     SHA-256 of the network file
=========== ====== ===========================================================================
"""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache

import numpy as np

from elmesh.errors import ElmeshError
from elmesh.netconfig.names import is_name
from elmesh.typing import FloatArray

__all__ = ["HEADER_BYTES", "Kind", "Message", "WireError", "doubles", "encode", "epoch_of", "list_of", "parse"]


_HEADER = struct.Struct("<4sBBHIIIIQQQQ32s32s")
HEADER_BYTES = _HEADER.size
_MAGIC = b"ELM1"
_DOUBLES, _COARSE = 0, 1
# What a seat, an epoch or a round will never reach; a header that says so is not one of ours.
_LARGEST = 1 << 60


class WireError(ElmeshError):
    """A message that is not as it must be; the text says in what."""


class Kind(IntEnum):
    """What a message is."""

    #: A value for a neighbour: U_t.
    VALUE = 1
    #: A partial sum on its way to the root of the spanning tree, and the sum on its way back.
    INWARDS = 2
    OUTWARDS = 3
    #: Please say again what you have said from this number on.
    WANT = 4
    #: I have all that I need and my model is saved; and: I have heard that you have.
    DONE = 5
    HEARD = 6
    #: These agents are gone for good.
    GONE = 7
    #: I end without a result.
    FAILED = 8
    #: What time do you have? And: this.
    ASK = 9
    CLOCK = 10


#: Kinds that carry a value and are counted along an edge.
CARRIES = (Kind.VALUE, Kind.INWARDS, Kind.OUTWARDS)


@dataclass(eq=False, slots=True)
class Message:
    """A message, its header read and its body not yet looked into."""

    kind: Kind
    sender: str
    digest: bytes
    epoch: int
    number: int
    settled: int
    life: int
    yours: int
    rows: int
    columns: int
    coarse: bool
    body: memoryview

    def value(self, rows: int, columns: int, beside: int = 0) -> FloatArray:
        """Return its numbers, which must be finite doubles: a matrix of this shape, and so many numbers beside it."""
        return self.value_and_square(rows, columns, beside)[0]

    def value_and_square(self, rows: int, columns: int, beside: int = 0) -> tuple[FloatArray, float]:
        """Return its numbers as :meth:`value` does, and the sum of their squares, infinite if that overflows."""
        if self.coarse:
            raise WireError("it is not of double precision")
        if (self.rows, self.columns) != (rows, columns):
            raise WireError(f"it is of {self.rows} x {self.columns}, not {rows} x {columns}")
        _check_length(self.body, rows * columns + beside)
        return _finite(self.body)

    def gone(self, names: Collection[str]) -> frozenset[str]:
        """Return the agents that it says are gone, which must be some of these, and not who says it."""
        if len(self.body) > 64 * len(names):
            raise WireError("its list of agents that are gone is too long")
        told = frozenset(bytes(self.body).decode("ascii", "replace").split("\n"))
        if not told or not told <= frozenset(names):
            raise WireError("it says of agents that nobody knows that they are gone")
        if self.sender in told:
            raise WireError("it says of itself that it is gone")
        if self.epoch != epoch_of(told):
            raise WireError("its epoch is not that of the agents that it says are gone")
        return told


def list_of(gone: Collection[str]) -> bytes:
    """Return the body of a message that says which agents are gone."""
    return "\n".join(sorted(gone)).encode()


def _check_length(body: bytes | memoryview, count: int) -> None:
    if len(body) != 8 * count:
        raise WireError(f"its body has {len(body)} bytes, not {8 * count}")


def doubles(body: bytes | memoryview, count: int) -> FloatArray:
    """Read so many finite doubles, or raise.

    Examples
    --------
    >>> doubles(np.array([1.5, 2.0], "<f8").tobytes(), 2)
    array([1.5, 2. ])
    """
    _check_length(body, count)
    return _finite(body)[0]


def _finite(body: bytes | memoryview) -> tuple[FloatArray, float]:
    """Read doubles that must be finite; return them and the sum of their squares."""
    numbers = np.frombuffer(body, "<f8").astype(np.float64, copy=False)
    square = float(np.vdot(numbers, numbers))
    # The squares of finite numbers may overflow; then, and only then, one has to look closer.
    if not math.isfinite(square) and not np.isfinite(numbers).all():
        raise WireError("it has a value that is not a finite number")
    return numbers, square


def epoch_of(gone: Iterable[str]) -> int:
    """Return the number of the epoch in which these agents are gone; 0 if none is.

    Examples
    --------
    >>> epoch_of([]), epoch_of(["west", "east"]) == epoch_of(["east", "west"])
    (0, True)
    """
    names = sorted(gone)
    if not names:
        return 0
    return int.from_bytes(hashlib.sha256("\n".join(names).encode()).digest()[:4], "little") or 1


def encode(
    kind: Kind,
    sender: str,
    digest: bytes,
    *,
    epoch: int = 0,
    number: int = 0,
    settled: int = 0,
    life: int = 0,
    yours: int = 0,
    shape: tuple[int, int] = (0, 0),
    coarse: bool = False,
    body: bytes = b"",
) -> bytes:
    """Write a message.

    Examples
    --------
    >>> message = encode(Kind.WANT, "north", bytes(32), number=7)
    >>> len(message) == HEADER_BYTES, parse(message).number
    (True, 7)
    """
    dtype = _COARSE if coarse else _DOUBLES
    numbers = number, settled, life, yours
    return _HEADER.pack(_MAGIC, kind, dtype, 0, epoch, *shape, 0, *numbers, sender.encode(), digest) + body


@lru_cache(maxsize=256)
def _sender(name: bytes) -> str:
    sender = name.rstrip(b"\0").decode("latin-1")
    if not is_name(sender):  # and so not to be repeated in a log either
        raise WireError("its sender's name is none that an agent can have")
    return sender


def parse(data: bytes) -> Message:
    """Read a message's header; raise :class:`WireError` if it is none."""
    if len(data) < HEADER_BYTES:
        raise WireError(f"it has {len(data)} bytes, fewer than a header")
    magic, kind, dtype, reserved, epoch, *numbers, name, digest = _HEADER.unpack_from(data)
    rows, columns, spare, number, settled, life, yours = numbers
    if magic != _MAGIC:
        raise WireError("it is not in the format of this version")
    if kind not in _KINDS or dtype not in (_DOUBLES, _COARSE) or reserved or spare:
        raise WireError("its header has a field that is not known")
    if number > _LARGEST or settled > _LARGEST:
        raise WireError("its number is out of all proportion")
    return Message(
        _KINDS[kind],
        _sender(name),
        digest,
        epoch,
        number,
        settled,
        life,
        yours,
        rows,
        columns,
        dtype == _COARSE,
        memoryview(data)[HEADER_BYTES:],
    )


_KINDS = {int(kind): kind for kind in Kind}
