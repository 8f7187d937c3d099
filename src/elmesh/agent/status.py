"""The status file of an agent: its state for those who operate it, renewed every second.

A process that was killed leaves its last status behind. So a status is believed only while its process holds a lock,
which is seen from other containers as well, and an agent whose status has not been renewed for a while hangs, or its
disk does.

Neighbours are not asked for it, and nothing of it leaves the site.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from elmesh.agent.checkpoint import is_locked, lock_folder
from elmesh.errors import ElmeshError

__all__ = ["RENEWED", "read_status", "seconds_left", "status_file"]

_NAME, _LOCK, _VERSION = "status.json", "status.lock", 5
#: Seconds after which a status that is renewed every second counts as old.
RENEWED = 15.0
_ENDED = ("ended", "failed", "stopped")


@contextmanager
def status_file(folder: Path, status: Callable[[], dict[str, Any]]) -> Iterator[None]:
    """Write an agent's status to its folder every second, and once more at the end."""
    path, end, lock = folder / _NAME, threading.Event(), lock_folder(folder, _LOCK)

    def write() -> None:
        _write(path, {"version": _VERSION, "pid": os.getpid(), **status()})

    def renew() -> None:
        while not end.wait(1.0):
            write()

    thread = threading.Thread(target=renew, name="elmesh-status", daemon=True)
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join()
        write()
        os.close(lock)


def _write(path: Path, status: dict[str, Any]) -> None:
    """Replace the file without waiting for the disk; a failure to write it is ignored."""
    partial, data = path.with_name(f".{_NAME}.partial"), json.dumps(status).encode()
    try:
        partial.touch(mode=0o600)
        partial.write_bytes(data)
        partial.replace(path)
    except OSError:
        # A disk without space for a new file allows the old one to be overwritten, and then it matters most.
        with contextlib.suppress(OSError), open(path, "r+b") as file:
            file.write(data)
            file.truncate()


def read_status(folder: Path) -> dict[str, Any] | None:
    """Return the last status in an agent's folder, whether it still runs, and its age in seconds; None if none."""
    path = folder / _NAME
    if not path.exists():
        return None
    try:
        status = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(status, dict) or status.get("version") != _VERSION:
            raise TypeError
        status["running"] = is_locked(folder, _LOCK) and status["phase"] not in _ENDED
        status["age"] = max(time.time() - float(status["time"]), 0.0)
    except (ValueError, TypeError, KeyError, OSError, RecursionError):
        raise ElmeshError(f"{path} is not a status file of this version of elmesh.") from None
    return status


def seconds_left(started: tuple[float, int], now: tuple[float, int], rounds: int) -> float | None:
    """Return the seconds until a run has done all its rounds, at its pace so far; None before its second round.

    ``started`` and ``now`` are pairs of a time and the round that it had reached. A run that converges ends earlier.

    Examples
    --------
    >>> seconds_left((100.0, 0), (110.0, 20), rounds=50)
    15.0
    """
    elapsed, done = now[0] - started[0], now[1] - started[1]
    return elapsed / done * max(rounds - now[1], 0) if done > 0 else None
