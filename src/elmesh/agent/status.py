"""The status file of an agent: its state for those who operate it, renewed every second.

Neighbours are not asked for it, and nothing of it leaves the site.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elmesh.errors import ElmeshError

if TYPE_CHECKING:
    from elmesh.agent.network_agent import NetworkAgent

__all__ = ["read_status", "status_file"]

_NAME, _VERSION = "status.json", 3
_ENDED = ("ended", "failed", "stopped")


@contextmanager
def status_file(agent: NetworkAgent) -> Iterator[None]:
    """Write an agent's status to its folder every second, and once more at the end, with the failure if it is one."""
    path, end = agent.identity.state / _NAME, threading.Event()

    def write() -> None:
        _write(path, {"version": _VERSION, "pid": os.getpid(), **agent.status()})

    def renew() -> None:
        while not end.wait(1.0):
            write()

    thread = threading.Thread(target=renew, name="elmesh-status", daemon=True)
    thread.start()
    try:
        with agent.record_failure():
            yield
    finally:
        end.set()
        thread.join()
        write()


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
    """Return the last status in an agent's folder, and whether it still runs; None if there is none."""
    path = folder / _NAME
    if not path.exists():
        return None
    try:
        status = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(status, dict) or status.get("version") != _VERSION:
            raise TypeError
        status["running"] = _is_running(int(status["pid"])) and status["phase"] not in _ENDED
    except (ValueError, TypeError, KeyError, OSError, RecursionError):
        raise ElmeshError(f"{path} is not a status file of this version of elmesh.") from None
    return status


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
