"""Files and folders that are written completely or not at all.

The data of a file go to a temporary file beside the target, reach the disk, and then take the target's name in one
step. After a crash at any moment the target holds its old content or its new content, never a part of it.
"""

from __future__ import annotations

import ctypes
import errno
import os
import sys
from pathlib import Path

__all__ = ["atomic_write", "exchange_folders", "replace_folder", "sync_folder"]

# Some file systems refuse to open or to sync a folder, and Windows always does. The write itself is complete by then.
_FOLDER_NOT_SYNCABLE = {errno.EACCES, errno.EISDIR, errno.EBADF, errno.EINVAL}


def atomic_write(path: Path, data: bytes, *, mode: int = 0o666) -> None:
    """Write a file completely or leave the old one in place.

    Parameters
    ----------
    path : Path
        The file to create or to replace. Its folder must exist.
    data : bytes
        The whole content.
    mode : int, default=0o666
        Permissions of the new file before the umask is applied. Use ``0o600`` for a file that only its owner may read.

    Raises
    ------
    OSError
        If the file could not be written; its ``filename`` is ``path``. The temporary file is removed.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     atomic_write(Path(folder) / "note.txt", b"text")
    ...     print((Path(folder) / "note.txt").read_bytes())
    b'text'
    """
    # The process id keeps two processes apart. A leftover of a killed process with the same id is removed.
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        partial.unlink(missing_ok=True)
        with open(partial, "xb", opener=lambda name, flags: os.open(name, flags, mode)) as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        partial.replace(path)
        sync_folder(path.parent)
    except OSError as error:
        # On a full disk the partial file would take the last free space.
        partial.unlink(missing_ok=True)
        raise OSError(error.errno, error.strerror, str(path)) from error
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def sync_folder(path: Path) -> None:
    """Flush a folder's list of files to the disk, where the file system supports it."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        if error.errno not in _FOLDER_NOT_SYNCABLE:
            raise


def replace_folder(new: Path, target: Path) -> None:
    """Move a folder to its place; a folder that was there takes the place of ``new``.

    Where the system cannot exchange folders in one step, the old one is complete beside its place for a moment.
    """
    if not target.exists():
        new.rename(target)
    elif not exchange_folders(new, target):
        old = new.with_suffix(".old")
        target.rename(old)
        try:
            new.rename(target)
        except BaseException:
            old.rename(target)
            raise
        old.rename(new)
    sync_folder(target.parent)


def exchange_folders(a: Path, b: Path) -> bool:
    """Exchange two folders in one step; return whether the system could."""
    if sys.platform != "linux":
        return False
    try:
        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):
        return False
    here, swap = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    return bool(renameat2(here, os.fsencode(a), here, os.fsencode(b), swap) == 0)
