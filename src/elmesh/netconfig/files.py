"""Files that are read with a limit on their size, and written only if they do not exist."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from elmesh.errors import ElmeshError
from elmesh.files import atomic_write, sync_folder
from elmesh.text import data_size

__all__ = ["create_file", "read_text"]

# How disks that have no links, such as those of memory sticks and of some network shares, refuse to make one.
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)


def read_text(path: Path, what: str, max_bytes: int) -> str:
    """Read a UTF-8 file of limited size; ``what`` names its kind in errors, such as ``network file``."""
    if not path.is_file():
        raise ElmeshError(f"There is no {what} {path}.")
    with path.open("rb") as file:
        data = file.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise ElmeshError(f"{path} has more than {data_size(max_bytes)}, too much for {_article(what)} {what}.")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        raise ElmeshError(f"{path} is not {_article(what)} {what}: it is not UTF-8 text.") from None


def create_file(path: Path, data: bytes, mode: int = 0o644) -> None:
    """Write a new file completely or not at all, with its permissions set before its content; raise if it exists."""
    if os.path.lexists(path):
        raise ElmeshError(f"{path} exists already and is not overwritten.")
    partial = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        atomic_write(partial, data, mode=mode)
        try:
            # A link, unlike a new name, does not replace a file that came in between.
            os.link(partial, path)
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            _create_in_place(path, data, mode)
        sync_folder(path.parent)
    except FileExistsError:
        raise ElmeshError(f"{path} exists already and is not overwritten.") from None
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error
    finally:
        partial.unlink(missing_ok=True)


def _create_in_place(path: Path, data: bytes, mode: int) -> None:
    """Write a new file where a disk has no links, and remove it if that fails."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        path.unlink(missing_ok=True)
        raise


def _article(noun: str) -> str:
    return "an" if noun[0] in "aeio" else "a"
