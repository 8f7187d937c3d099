"""Masked terms on disk: an agent that is restarted sends the bytes again that it has sent before.

The file has one record after another: the number of the sum, the digest of what identifies it, the length and the
SHA-256 of the term, and the term. A record whose writing was interrupted is at the end of the file, and is cut off: its
term was not sent.
"""

from __future__ import annotations

import hashlib
import os
import struct
import threading
from pathlib import Path

from elmesh.files import atomic_write, sync_folder

__all__ = ["TermSpool"]

_HEAD = struct.Struct("<Q32sQ32s")
# Bytes of terms that are not needed any more at which the file is emptied or written anew.
_MOST_OLD = 16 << 20


class TermSpool:
    """The masked terms of one run, in a file that only its owner can read; it is made by the first term."""

    def __init__(self, path: Path) -> None:
        self._path, self._descriptor, self._size = path, -1, 0
        self._lock = threading.Lock()
        #: Where each term is: its number, its place and its length, by what identifies it.
        self._places: dict[bytes, tuple[int, int, int]] = {}
        if path.exists():
            self._open()
            self._read()

    def _open(self) -> None:
        is_new = not self._path.exists()
        self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        if is_new:
            sync_folder(self._path.parent)

    def _read(self) -> None:
        """Find the complete records."""
        data, place = self._path.read_bytes(), 0
        while place + _HEAD.size <= len(data):
            number, label, length, digest = _HEAD.unpack_from(data, place)
            start = place + _HEAD.size
            term = data[start : start + length]
            if len(term) < length or hashlib.sha256(term).digest() != digest:
                break
            self._places[label] = number, start, length
            place = start + length
        os.ftruncate(self._descriptor, place)
        self._size = place

    def get(self, label: bytes) -> bytes | None:
        """Return the term of a sum, if it is here."""
        with self._lock:
            found = self._places.get(label)
            return None if found is None else os.pread(self._descriptor, found[2], found[1])

    def put(self, number: int, label: bytes, term: bytes, digest: bytes) -> None:
        """Add the term of a sum, whose SHA-256 is given; it is on disk when this returns.

        After an error the file is as it was.
        """
        with self._lock:
            if self._descriptor < 0:
                self._open()
            head = _HEAD.pack(number, label, len(term), digest)
            size = len(head) + len(term)
            try:
                written = os.pwritev(self._descriptor, [head, term], self._size)
                while written < size:
                    rest = (head + term)[written:]
                    written += os.pwrite(self._descriptor, rest, self._size + written)
                os.fdatasync(self._descriptor)
            except OSError:
                os.ftruncate(self._descriptor, self._size)
                raise
            self._places[label] = number, self._size + _HEAD.size, len(term)
            self._size += size

    def forget(self, before: int) -> None:
        """Give up the space of terms before a number, once it is worth while; may be called from another thread."""
        with self._lock:
            if sum(length for number, _, length in self._places.values() if number < before) < _MOST_OLD:
                return
            kept = [(start - _HEAD.size, _HEAD.size + n) for k, start, n in self._places.values() if k >= before]
            records = b"".join(os.pread(self._descriptor, size, start) for start, size in kept)
            try:
                atomic_write(self._path, records, mode=0o600)
            except OSError:
                return  # a full disk is no problem here: the file just stays as it is
            os.close(self._descriptor)
            self._descriptor, self._places = -1, {}
            self._open()
            self._read()

    def close(self) -> None:
        """Release the file."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
