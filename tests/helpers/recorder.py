"""An agent whose calls to zenoh, and whose private state of every round, are recorded before they take effect.

Calls are written to a file, one JSON object per line, and states to a file of the same name with ``.npz`` at its end.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import zenoh

from elmesh.agent import NetworkAgent
from helpers.forked import run_command

_PLAIN = (str, bytes, bytearray, int, float, bool, list, tuple, dict, type(None))


class Recorder:
    """Writes calls to a file."""

    def __init__(self, path: Path) -> None:
        self._file, self._lock = open(path, "w"), threading.Lock()  # noqa: SIM115

    def note(self, what: str, on: list[str], args: tuple[Any, ...]) -> None:
        texts = [arg for arg in args if isinstance(arg, str)]
        data = [bytes(arg).hex() for arg in args if isinstance(arg, bytes | bytearray)]
        with self._lock:
            self._file.write(json.dumps({"call": what, "on": on, "texts": texts, "data": data}) + "\n")
            self._file.flush()


class Recorded:
    """An object of zenoh whose calls, and those of what they return, are recorded."""

    def __init__(self, inner: Any, recorder: Recorder, on: list[str]) -> None:
        self._inner, self._recorder, self._on = inner, recorder, on

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if not callable(found):
            return self._wrap(found, [*self._on, name])

        def call(*args: Any, **kwargs: Any) -> Any:
            # Handlers are called with objects of zenoh itself; they send nothing by them.
            self._recorder.note(name, self._on, (*args, *kwargs.values()))
            key = [arg for arg in args if isinstance(arg, str)]
            return self._wrap(found(*args, **kwargs), [*self._on, name, *key])

        return call

    def _wrap(self, value: Any, on: list[str]) -> Any:
        return value if isinstance(value, _PLAIN) else Recorded(value, self._recorder, on)


@contextmanager
def recorded(path: Path) -> Iterator[None]:
    """Record everything, in a process of its own."""
    recorder, open_session, save = Recorder(path), zenoh.open, NetworkAgent.save
    states: dict[str, np.ndarray] = {}

    def open_recorded(config: Any) -> Recorded:
        recorder.note("open", [], ())
        return Recorded(open_session(config), recorder, ["session"])

    def save_recorded(self: NetworkAgent, snapshot: Any, history: Any) -> None:
        (state,) = snapshot.report.states
        arrays = state.state_dict()
        for kind in ("agent", "shared", "edge"):
            for name, x in getattr(arrays, kind).items():
                states[f"{state.round}/{name}"] = np.array(x)
        save(self, snapshot, history)

    zenoh.open, NetworkAgent.save = open_recorded, save_recorded
    try:
        yield
    finally:
        np.savez(f"{path}.npz", **states)


def run_recorded(path: Path, *args: str) -> None:
    """Run ``elmesh`` in a new process as :func:`helpers.forked.run_command` does, and record it."""
    with recorded(path):
        run_command(*args)
