"""An agent whose every call to zenoh, and every round's private state, is written down before it takes effect.

``python recorder.py FILE agent ...`` runs ``elmesh agent ...`` and writes FILE (a JSON object a line) and FILE.npz.
"""

from __future__ import annotations

import atexit
import json
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import zenoh

from elmesh.agent.network_agent import Site
from elmesh.cli import main

_PLAIN = (str, bytes, bytearray, int, float, bool, list, tuple, dict, type(None))


class Recorder:
    """Writes down calls."""

    def __init__(self, path: Path) -> None:
        self._file, self._lock = open(path, "w"), threading.Lock()  # noqa: SIM115

    def note(self, what: str, on: list[str], args: tuple[Any, ...]) -> None:
        texts = [arg if isinstance(arg, str) else None for arg in args]
        data = [bytes(arg).hex() for arg in args if isinstance(arg, bytes | bytearray)]
        line = {"call": what, "on": on, "texts": [text for text in texts if text is not None], "data": data}
        with self._lock:
            self._file.write(json.dumps(line) + "\n")
            self._file.flush()


class Recorded:
    """Anything of zenoh's: whatever is called on it, or on what that returns, is written down."""

    def __init__(self, inner: Any, recorder: Recorder, on: list[str]) -> None:
        self._inner, self._recorder, self._on = inner, recorder, on

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if not callable(found):
            return self._wrap(found, [*self._on, name])

        def call(*args: Any, **kwargs: Any) -> Any:
            # Handlers are given what is zenoh's own; they send nothing by it.
            self._recorder.note(name, self._on, (*args, *kwargs.values()))
            key = [arg for arg in args if isinstance(arg, str)]
            return self._wrap(found(*args, **kwargs), [*self._on, name, *key])

        return call

    def _wrap(self, value: Any, on: list[str]) -> Any:
        return value if isinstance(value, _PLAIN) else Recorded(value, self._recorder, on)


def record(path: Path) -> None:
    """Have everything written down from now on."""
    recorder, opened, keep = Recorder(path), zenoh.open, Site._keep
    states: dict[str, np.ndarray] = {}

    def open_recorded(config: Any) -> Recorded:
        recorder.note("open", [], ())
        return Recorded(opened(config), recorder, ["session"])

    def keep_recorded(self: Site, moment: Any, past: Any) -> None:
        state, k = moment.report.state, moment.report.round
        for name in ("U", "A", "dual"):
            if getattr(state, name) is not None:
                states[f"{k}/{name}"] = np.array(getattr(state, name))
        (kept,) = moment.report.kept
        for kind in ("own", "common", "edges"):
            states.update({f"{k}/{kind}/{name}": np.array(x) for name, x in getattr(kept, kind).items()})
        keep(self, moment, past)

    zenoh.open, Site._keep = open_recorded, keep_recorded
    atexit.register(lambda: np.savez(f"{path}.npz", **states))


if __name__ == "__main__":
    record(Path(sys.argv[1]))
    sys.argv = ["elmesh", *sys.argv[2:]]
    sys.exit(main())
