"""Errands: what a neighbour asks for is done by a thread of its own, so that nobody who computes is kept from it.

However often the same is asked for, it is done once, as it was asked for last: whoever asks without end fills nothing.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

__all__ = ["Errands"]

# Seconds to wait for an errand that may be stuck in a link that does not close.
_STUCK = 2.0


class Errands:
    """Errands for neighbours.

    Parameters
    ----------
    failed : callable
        Is told of what an errand raises; the next one is run all the same.
    """

    def __init__(self, failed: Callable[[Exception], None]) -> None:
        self._failed = failed
        self._queue: queue.SimpleQueue[tuple[str, str] | Callable[[], None] | None] = queue.SimpleQueue()
        self._due: dict[tuple[str, str], Callable[[], None]] = {}
        self._lock = threading.Lock()
        self._runner = threading.Thread(target=self._run, name="elmesh-errands", daemon=True)
        self._runner.start()

    def soon(self, what: str, name: str, errand: Callable[[], None]) -> None:
        """Have something done for a neighbour: once, and as it asked last, however often it asks until then."""
        with self._lock:
            waits = (what, name) in self._due
            self._due[what, name] = errand
        if not waits:
            self._queue.put((what, name))

    def wait(self) -> None:
        """Wait until all errands so far are done, but not for long."""
        done = threading.Event()
        self._queue.put(done.set)
        done.wait(_STUCK)

    def close(self) -> None:
        """Run no more errands."""
        self._queue.put(None)
        self._runner.join(timeout=_STUCK)

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            if isinstance(item, tuple):
                with self._lock:
                    errand = self._due.pop(item)
            else:
                errand = item
            try:
                errand()
            except Exception as error:  # the carrier may be closing; whoever waits will ask again
                self._failed(error)
