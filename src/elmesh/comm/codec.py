r"""Coarse messages: what a value has changed by, in two to sixteen bits a number, or in single precision.

Both ends of a channel keep what the receiver knows so far. A message tells the difference between that and the value,
rounded; both add the same rounded difference, so the error does not add up over rounds but is told with the next
message. Where values settle, what the receiver knows settles on them: coarse messages have the same fixed point as
exact ones. Nothing is random, and both ends compute the same numbers, to the bit.

A message is one byte for the number of bits (0: nothing to tell); for up to 32 bits, two for a power of two that all of
it is to be multiplied with; for up to sixteen bits a scale in single precision a column; and the numbers, packed. A
column's levels are spread evenly over its range; with two or four bits, over the part of it that loses least of a
normal distribution.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from elmesh.errors import ElmeshError
from elmesh.typing import FloatArray

__all__ = ["BITS", "Channel", "decode", "encode", "message_size"]


#: Bits a number that a message may have.
BITS = (2, 4, 8, 16, 32, 64)
# Half of the range that loses least of a normal distribution, in standard deviations. With more bits all of it is told.
_RANGE = {2: 1.991, 4: 2.682}
# With "auto", the fewest bits whose error is within this share of what is told; but a message is not made coarser than
# pays beside its scales and the few bytes that go with it.
_ERROR, _BESIDE = 0.4, 19


def encode(difference: FloatArray, bits: int) -> bytes:
    """Write a matrix as a message.

    Examples
    --------
    >>> message = encode(np.array([[1.0], [-1.0], [0.5], [0.0]]), 2)
    >>> len(message)  # how many bits, one scale, four numbers of two bits
    8
    >>> decode(message, (4, 1)).ravel()
    array([ 0.75, -0.75,  0.75,  0.25])
    """
    if bits == 0:
        return b"\x00"
    head = bytes([bits])
    if bits == 64:
        return head + np.ascontiguousarray(difference, "<f8").tobytes()
    # Single precision ends at 1e38, and what features and targets of any scale make does not.
    power = int(np.frexp(np.abs(difference).max(initial=0.0))[1])
    head += power.to_bytes(2, "little", signed=True)
    reduced = np.ldexp(difference, -power)
    if bits == 32:
        return head + np.ascontiguousarray(reduced, "<f4").tobytes()
    scale = _scale(reduced, bits)
    half = 2 ** (bits - 1)
    levels = np.floor(reduced * (half / np.where(scale > 0, scale, 1.0).astype(np.float64)))
    codes = (np.clip(levels, -half, half - 1) + half).astype(np.uint16)
    return head + scale.astype("<f4").tobytes() + _pack(codes.ravel(), bits)


def decode(message: bytes, shape: tuple[int, int]) -> FloatArray:
    """Read a message of a matrix of known shape; raise if it is not one."""
    rows, columns = shape
    bits = message[0] if message else -1
    if bits not in (0, *BITS) or len(message) != message_size(shape, bits):
        raise ElmeshError(
            f"A message of {len(message)} bytes, marked as of {bits} bits, is not that of a {rows} x {columns} matrix."
        )
    body = memoryview(message)[1:]
    if bits == 0:
        return np.zeros(shape)
    if bits == 64:
        return np.frombuffer(body, "<f8").astype(np.float64).reshape(shape)
    power, body = int.from_bytes(body[:2], "little", signed=True), body[2:]
    if bits == 32:
        return np.asarray(np.ldexp(np.frombuffer(body, "<f4").astype(np.float64), power).reshape(shape))
    scale = np.frombuffer(body[: 4 * columns], "<f4").astype(np.float64)
    if not np.all((scale >= 0) & (scale <= 1)):
        raise ElmeshError(
            f"A message of {len(message)} bytes has scales that no honest one has: they are from 0 to 1, before all "
            "of it is multiplied with a power of two."
        )
    half = 2 ** (bits - 1)
    codes = _unpack(body[4 * columns :], bits, rows * columns).reshape(shape).astype(np.float64)
    return np.asarray(np.ldexp((codes - half + 0.5) * (scale / half), power))


def message_size(shape: tuple[int, int], bits: int) -> int:
    """Return the bytes of a message of a matrix of this shape."""
    rows, columns = shape
    if bits in (0, 64):
        return 1 + rows * columns * bits // 8
    return 3 + (4 * columns if bits < 32 else 0) + (rows * columns * bits + 7) // 8


class Channel:
    """One direction of a conversation about one topic: what the receiver knows, at either end.

    Parameters
    ----------
    bits : int or "auto"
        Bits a number.

    Examples
    --------
    >>> channel, value = Channel(2), np.array([[1.0], [0.3], [-0.7]])
    >>> for _ in range(20):
    ...     message = channel.tell(value)  # again and again: what is left is told more and more finely
    >>> bool(np.abs(channel.known - value).max() < 1e-6)
    True
    """

    def __init__(self, bits: int | str) -> None:
        self._bits = bits
        self.known: FloatArray = np.zeros((0, 0))
        self._before = self.known

    def tell(self, value: FloatArray, ignore: float = 0.0) -> bytes:
        """Return the message that brings the receiver up to ``value``, as near as its bits allow."""
        self._fit(value.shape)
        difference = value - self.known
        message = encode(difference, self._choose(difference, ignore))
        self.hear(message, value.shape)
        return message

    def hear(self, message: bytes, shape: tuple[int, ...]) -> FloatArray:
        """Take in a message, and return the value as it is now known."""
        self._fit(shape)
        with np.errstate(invalid="ignore"):
            self._before, self.known = self.known, self.known + decode(message, (shape[0], shape[1]))
        return self.known

    def undo(self) -> None:
        """Forget the last message, at both ends."""
        self.known = self._before

    def turn(self, matrix: FloatArray) -> None:
        """Multiply what is known from the right, at both ends."""
        if self.known.shape[1] == len(matrix):
            self.known = self.known @ matrix

    def kept(self) -> dict[str, FloatArray]:
        """Return what there is to remember."""
        return {"known": self.known, "before": self._before}

    def take_up(self, known: FloatArray, before: FloatArray) -> None:
        """Be again as it was when these were kept."""
        self.known, self._before = known, before

    def _fit(self, shape: tuple[int, ...]) -> None:
        if self.known.shape != shape or not np.isfinite(self.known).all():
            self.known = np.zeros(shape)

    def _choose(self, difference: FloatArray, ignore: float) -> int:
        if not np.isfinite(difference).all():
            return 64  # whoever hears it is to see it
        size = float(np.linalg.norm(difference))
        if not difference.any() or 0 < size <= ignore:
            return 0
        if self._bits != "auto":
            return int(self._bits)
        rows, columns = difference.shape
        beside = 4 * columns + _BESIDE
        for bits in (b for b in BITS[:3] if rows * columns * b >= 8 * beside):
            error = difference - decode(encode(difference, bits), (difference.shape[0], difference.shape[1]))
            if float(np.linalg.norm(error)) <= _ERROR * size:
                return bits
        return BITS[3]


def _scale(difference: FloatArray, bits: int) -> NDArray[np.float32]:
    largest = np.abs(difference).max(axis=0, initial=0.0)
    if bits in _RANGE and len(difference):
        largest = np.minimum(largest, _RANGE[bits] * np.sqrt(np.mean(difference**2, axis=0)))
    return np.asarray(largest, dtype=np.float32)


def _pack(codes: NDArray[np.uint16], bits: int) -> bytes:
    if bits == 16:
        return codes.astype("<u2").tobytes()
    per_byte = 8 // bits
    padded = np.zeros(-(-codes.size // per_byte) * per_byte, np.uint8)
    padded[: codes.size] = codes
    shifts = np.arange(per_byte, dtype=np.uint8) * bits
    packed: NDArray[np.uint8] = np.bitwise_or.reduce(padded.reshape(-1, per_byte) << shifts, axis=1).astype(np.uint8)
    return packed.tobytes()


def _unpack(body: memoryview, bits: int, count: int) -> NDArray[np.integer]:
    if bits == 16:
        return np.frombuffer(body, "<u2")
    packed = np.frombuffer(body, np.uint8)
    shifts = np.arange(8 // bits, dtype=np.uint8) * bits
    return np.asarray((packed[:, None] >> shifts) & (2**bits - 1)).ravel()[:count]
