"""How an agent stands, for whoever looks after it: a file in its own folder, renewed every second.

Nothing is asked of neighbours for it, and nothing of it leaves the site.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import threading
import time
from pathlib import Path
from typing import Any

from elmesh.errors import ElmeshError
from elmesh.run.base import Progress

__all__ = ["STATUS", "Phase", "StatusFile", "read_status"]

STATUS = "status.json"
_VERSION = 1


class Phase:
    """What an agent is doing, in one word."""

    STARTING, FITTING, STAYING, ENDED, FAILED, STOPPED = "starting", "fitting", "staying", "ended", "failed", "stopped"


class StatusFile:
    """The file, and what it says.

    Parameters
    ----------
    folder : path
        The agent's folder for what it keeps.
    look : callable
        Gives what there is to say of the post and the journal.
    every : float
        Seconds from one renewal to the next.
    """

    def __init__(self, folder: Path, look: Any, every: float = 1.0) -> None:
        self._path, self._look, self._every = folder / STATUS, look, every
        self.phase, self.problem, self.progress = Phase.STARTING, None, None
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._renew, name="elmesh-status", daemon=True)
        self._thread.start()

    phase: str
    problem: str | None
    progress: Progress | None

    def say(self) -> dict[str, Any]:
        """Return how the agent stands."""
        step = self.progress
        return {
            "version": _VERSION,
            "pid": os.getpid(),
            "time": time.time(),
            "phase": self.phase,
            "problem": self.problem,
            "round": None if step is None else step.round,
            "rounds": None if step is None else step.max_iter,
            "objective": None if step is None else _finite(step.objective),
            "consensus_gap": None if step is None else _finite(step.consensus_gap),
            "residual": None if step is None else _finite(step.dual_residual),
            **self._look(),
        }

    def write(self) -> None:
        """Renew the file; what cannot be written is not worth a failure."""
        partial, data = self._path.with_name(f".{STATUS}.partial"), json.dumps(self.say()).encode()
        try:
            partial.touch(mode=0o600)
            partial.write_bytes(data)
            partial.replace(self._path)
        except OSError:
            # A disk without room for a new file lets the old one be written over, and that is when it matters.
            with contextlib.suppress(OSError), open(self._path, "r+b") as file:
                file.write(data)
                file.truncate()

    def close(self) -> None:
        """Write it once more, and no more."""
        self._end.set()
        self._thread.join()
        self.write()

    def _renew(self) -> None:
        while not self._end.wait(self._every):
            self.write()


def read_status(folder: Path) -> dict[str, Any] | None:
    """Return what an agent last said of itself, and whether it still runs; None if it never has."""
    path = folder / STATUS
    if not path.exists():
        return None
    try:
        status = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(status, dict) or status.get("version") != _VERSION:
            raise TypeError
        status["running"] = _runs(int(status["pid"])) and status["phase"] not in (
            Phase.ENDED,
            Phase.FAILED,
            Phase.STOPPED,
        )
    except (ValueError, TypeError, KeyError, OSError, RecursionError):
        raise ElmeshError(f"{path} is not a status as this elmesh writes it.") from None
    return status


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def _finite(x: float) -> float | None:
    return x if math.isfinite(x) else None
