r"""Quantised messages: differences in 2 to 16 bits per number, or in single precision.

Both ends of a channel keep the receiver's present value. A message encodes the difference between that and the new
value, rounded; both ends add the same rounded difference. So rounding errors do not accumulate over rounds: they are
part of the next difference (error feedback), and a sequence of values that converges has the same limit with any
number of bits. Nothing is random, and both ends compute the same numbers, to the bit.

A message is one byte for the number of bits (0: no change); up to 32 bits, two bytes for a power of two that scales
all of it; up to 16 bits, one scale per column in single precision; then the numbers, packed. The levels of a column
are spread evenly over its range; with 2 or 4 bits, over that part of it, of a few parts, which loses least: of a normal
distribution about two standard deviations, and all of it once a few large numbers are left of earlier messages. Zero is
a level, so that zeros stay zeros; but with 2 bits a column has four levels without zero where they lose less than three
with zero, and then its scale has a minus sign. A single number is sent as it is, which takes one byte more than two
bits and a scale.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from elmesh.errors import ElmeshError
from elmesh.typing import FloatArray

__all__ = ["BITS", "DeltaChannel", "decode", "encode", "message_size", "most_bytes"]


#: Bits per number that a message may have.
BITS = (2, 4, 8, 16, 32, 64)
# The scales that are tried with few bits, as shares of the largest number; with more bits it is the largest number. The
# scale is the outermost level or, of four levels without zero, minus the end of the range.
_PARTS, _FEW_BITS = 0.85 ** np.arange(14), (2, 4)
# Numbers below this share of the scale are rounding errors: which of two levels they are nearer to means nothing.
_NOTHING = 2.0**-40
# With "auto", the fewest bits whose error is within this share of the difference; but the numbers of a message need not
# take fewer bytes than its scales and its other _OVERHEAD bytes.
_ERROR, _OVERHEAD = 0.4, 19
*_COARSE, _FINEST = BITS[:4]


def encode(difference: FloatArray, bits: int) -> bytes:
    """Encode a matrix as a message.

    Examples
    --------
    >>> message = encode(np.array([[1.0], [-1.0], [0.25], [0.0]]), 2)
    >>> len(message)  # number of bits, power, one scale, four numbers of two bits
    8
    >>> decode(message, (4, 1)).ravel()
    array([ 1., -1.,  0.,  0.])
    >>> decode(encode(np.array([[7.0], [0.0], [-3.4]]), 4), (3, 1)).ravel()
    array([ 7.,  0., -3.])
    """
    if bits == 0:
        return b"\x00"
    head = bytes([bits])
    if bits == 64:
        return head + np.ascontiguousarray(difference, "<f8").tobytes()
    # Single precision ends at 1e38; features and targets of any scale may exceed that.
    power = int(np.frexp(np.abs(difference).max(initial=0.0))[1])
    head += power.to_bytes(2, "little", signed=True)
    reduced = np.ldexp(difference, -power)
    if bits == 32:
        return head + np.ascontiguousarray(reduced, "<f4").tobytes()
    scale = _scale(reduced, bits)
    codes = _to_codes(np.where(np.abs(reduced) < _NOTHING * np.abs(scale), 0.0, reduced), scale, bits)
    return head + scale.astype("<f4").tobytes() + _pack(codes.ravel(), bits)


def decode(message: bytes, shape: tuple[int, int]) -> FloatArray:
    """Decode a message of a matrix of known shape; raise if it is not one."""
    rows, columns = shape
    bits = message[0] if message else -1
    if bits not in (0, *BITS) or len(message) != message_size(shape, bits):
        raise ElmeshError(
            f"A message of {len(message)} bytes with {bits} bits per number is not a {rows} x {columns} matrix."
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
    least = -1 if bits == 2 else 0
    if not np.all((scale >= least) & (scale <= 1)):
        raise ElmeshError(
            f"A message of {len(message)} bytes has scales outside [{least}, 1]; a valid message has none."
        )
    codes = _unpack(body[4 * columns :], bits, rows * columns).reshape(shape).astype(np.float64)
    return np.asarray(np.ldexp(_from_codes(codes, scale, bits), power))


def message_size(shape: tuple[int, int], bits: int) -> int:
    """Return the bytes of a message of a matrix of this shape."""
    rows, columns = shape
    if bits in (0, 64):
        return 1 + rows * columns * bits // 8
    return 3 + (4 * columns if bits < 32 else 0) + (rows * columns * bits + 7) // 8


def most_bytes(shape: tuple[int, ...], bits: int | str) -> int:
    """Return the bytes of the longest message that a channel of so many bits sends of a finite matrix."""
    rows, columns = shape[-2:]
    if rows * columns == 1:
        return message_size((rows, columns), 64)
    return message_size((rows, columns), _FINEST if bits == "auto" else int(bits))


class DeltaChannel:
    """One direction of communication on one topic: the receiver's present value, kept at both ends.

    Parameters
    ----------
    bits : int or "auto"
        Bits per number.

    Examples
    --------
    >>> channel, value = DeltaChannel(2), np.array([[1.0], [0.3], [-0.7]])
    >>> for _ in range(20):
    ...     message = channel.encode(value)  # the error shrinks with every message
    >>> bool(np.abs(channel.value - value).max() < 1e-6)
    True
    """

    def __init__(self, bits: int | str) -> None:
        self._bits = bits
        self.value: FloatArray = np.zeros((0, 0))
        self._previous = self.value

    def encode(self, value: FloatArray, skip_below: float = 0.0) -> bytes:
        """Return the message that brings the receiver to ``value``, as near as its bits allow."""
        self._fit(value.shape)
        difference = value - self.value
        message = encode(difference, self._choose_bits(difference, skip_below))
        self.decode(message, value.shape)
        return message

    def decode(self, message: bytes, shape: tuple[int, ...]) -> FloatArray:
        """Apply a message, and return the new value."""
        self._fit(shape)
        with np.errstate(invalid="ignore"):
            self._previous, self.value = self.value, self.value + decode(message, (shape[0], shape[1]))
        return self.value

    def revert(self) -> None:
        """Undo the last message, at both ends."""
        self.value = self._previous

    def rotate(self, matrix: FloatArray) -> None:
        """Multiply the value by a matrix from the right, at both ends."""
        if self.value.shape[1] == len(matrix):
            self.value = self.value @ matrix

    def state_dict(self) -> dict[str, FloatArray]:
        """Return what to resume from."""
        return {"value": self.value, "previous": self._previous}

    def load_state_dict(self, arrays: Mapping[str, FloatArray]) -> None:
        """Resume from :meth:`state_dict`."""
        self.value, self._previous = arrays["value"], arrays["previous"]

    def _fit(self, shape: tuple[int, ...]) -> None:
        if self.value.shape != shape or not np.isfinite(self.value).all():
            self.value = np.zeros(shape)

    def _choose_bits(self, difference: FloatArray, skip_below: float) -> int:
        if not np.isfinite(difference).all():
            return 64  # so that the receiver sees it too
        size = float(np.linalg.norm(difference))
        if not difference.any() or 0 < size <= skip_below:
            return 0
        if difference.size == 1:
            return 64
        if self._bits != "auto":
            return int(self._bits)
        rows, columns = difference.shape
        overhead = 4 * columns + _OVERHEAD
        for bits in (b for b in _COARSE if rows * columns * b >= 8 * overhead):
            error = difference - decode(encode(difference, bits), (rows, columns))
            if float(np.linalg.norm(error)) <= _ERROR * size:
                return bits
        return _FINEST


def _scale(difference: FloatArray, bits: int) -> NDArray[np.float32]:
    """Return the scale of each column; with few bits that with the least squared error."""
    largest = np.asarray(np.abs(difference).max(axis=0, initial=0.0), dtype=np.float32)
    if bits not in _FEW_BITS:
        return largest
    scales = (_PARTS[:, None] * largest).astype(np.float32)
    if bits == 2:
        scales = np.concatenate([scales, -scales])
    levels = _from_codes(_to_codes(difference, scales[:, None], bits), scales[:, None], bits)
    best = np.argmin(np.sum((levels - difference) ** 2, axis=1), axis=0)
    return np.asarray(np.take_along_axis(scales, best[None], axis=0)[0])


def _to_codes(x: FloatArray, scale: NDArray[np.float32], bits: int) -> FloatArray:
    """Return the codes of the levels nearest to numbers."""
    half, unit = 2 ** (bits - 1), np.where(scale != 0, np.abs(scale), 1.0).astype(np.float64)
    with_zero = np.clip(np.rint(x / unit * (half - 1)), 1 - half, half - 1)
    if bits > 2:
        return np.asarray(with_zero + half)
    return np.asarray(np.where(scale < 0, np.clip(np.floor(x / unit * half), -half, half - 1), with_zero) + half)


def _from_codes(codes: FloatArray, scale: NDArray[np.floating], bits: int) -> FloatArray:
    """Return the levels of codes."""
    half, unit = 2 ** (bits - 1), np.abs(scale).astype(np.float64)
    shares = (codes - half) / (half - 1)
    return np.asarray(np.where((scale < 0) & (bits == 2), (codes - half + 0.5) / half, shares) * unit)


def _pack(codes: FloatArray, bits: int) -> bytes:
    if bits == 16:
        return codes.astype("<u2").tobytes()
    shifts = _shifts(bits)
    padded = np.zeros((-(-codes.size // shifts.size), shifts.size), np.uint8)
    padded.flat[: codes.size] = codes
    packed: NDArray[np.uint8] = np.bitwise_or.reduce(padded << shifts, axis=1)
    return packed.tobytes()


def _unpack(body: memoryview, bits: int, count: int) -> NDArray[np.integer]:
    if bits == 16:
        return np.frombuffer(body, "<u2")
    packed = np.frombuffer(body, np.uint8)
    return np.asarray((packed[:, None] >> _shifts(bits)) & (2**bits - 1)).ravel()[:count]


def _shifts(bits: int) -> NDArray[np.uint8]:
    """Return where in a byte the numbers of a few bits begin."""
    return np.arange(0, 8, bits, dtype=np.uint8)
