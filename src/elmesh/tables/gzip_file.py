"""Bytes of a file, unpacked if its name ends in ``.gz``.

A small archive can unpack to any size. So an archive may unpack to 100 times its size, or to 100 MB if that is more:
far more than tables of text do.
"""

from __future__ import annotations

import gzip
import io
import zlib
from pathlib import Path
from typing import Any, BinaryIO, cast

from elmesh.errors import ElmeshError

__all__ = ["is_gzip", "open_bytes"]

_MAX_RATIO = 100
_ALWAYS_ALLOWED = 100_000_000


def is_gzip(path: Path) -> bool:
    """Return whether a file is compressed by its name."""
    return path.suffix.lower() == ".gz"


def open_bytes(path: Path) -> BinaryIO:
    """Open a file to read its bytes, unpacked if it is compressed; reading too many of these raises an error."""
    if not is_gzip(path):
        return path.open("rb")
    return cast("BinaryIO", io.BufferedReader(_UnpackedFile(path)))


class _UnpackedFile(io.RawIOBase):
    """The bytes in an archive, up to its limit."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stream = gzip.GzipFile(path)
        self._left = max(_ALWAYS_ALLOWED, _MAX_RATIO * path.stat().st_size)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            n = self._stream.readinto(buffer)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise ElmeshError(
                f"{self._path.name} is damaged or not a gzip file; compress it again, or give the file without .gz."
            ) from error
        self._left -= n
        if self._left < 0:
            raise ElmeshError(
                f"{self._path.name} unpacks to more than {_MAX_RATIO} times its size, too much for a table; if it is "
                "one, unpack it and give the file without .gz."
            )
        return n

    def close(self) -> None:
        self._stream.close()
        super().close()
