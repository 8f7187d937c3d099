"""A worker thread for peer requests, so that they never block the solver.

Requests are coalesced: however often a peer asks for the same, it is done once, as it was asked for last.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

__all__ = ["Worker"]

# Seconds to wait for a job that may be stuck in a link that does not close.
_STUCK = 2.0


class Worker:
    """Runs jobs for peers one after another; ``on_error`` is called with what a job raises."""

    def __init__(self, on_error: Callable[[Exception], None]) -> None:
        self._on_error = on_error
        self._queue: queue.SimpleQueue[tuple[str, str] | Callable[[], None] | None] = queue.SimpleQueue()
        self._jobs: dict[tuple[str, str], Callable[[], None]] = {}
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="elmesh-worker", daemon=True)
        self._thread.start()

    def submit(self, what: str, peer: str, job: Callable[[], None]) -> None:
        """Run a job soon; it replaces a waiting one of the same kind for the same peer."""
        with self._lock:
            waiting = (what, peer) in self._jobs
            self._jobs[what, peer] = job
        if not waiting:
            self._queue.put((what, peer))

    def flush(self) -> None:
        """Wait until all jobs so far are done, but not for long."""
        done = threading.Event()
        self._queue.put(done.set)
        done.wait(_STUCK)

    def close(self) -> None:
        """Run no more jobs."""
        self._queue.put(None)
        self._thread.join(timeout=_STUCK)

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            if isinstance(item, tuple):
                with self._lock:
                    job = self._jobs.pop(item)
            else:
                job = item
            try:
                job()
            except Exception as error:  # the session may be closing; the peer will ask again
                self._on_error(error)
