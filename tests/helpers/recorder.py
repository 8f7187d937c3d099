"""An agent whose calls to zenoh, messages and terms of sums, and whose private state of every round, are recorded.

All are recorded before they take effect: calls, messages before they are sealed and terms before they are masked in a
file, one JSON object per line, and states in a file of the same name with ``.npz`` at its end.
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
from elmesh.comm.masking import MaskedSums
from elmesh.comm.network.sealing import SealedSession
from elmesh.comm.network.wire import Message, parse
from elmesh.comm.requests import IntegerSum
from helpers.forked import ForkedNetwork, ForkedProcess, run_command

#: What is recorded within an agent, and no call to zenoh.
OWN = ("message", "no keys yet", "term")
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
    put, mask = SealedSession.put, MaskedSums.mask
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

    def put_recorded(self: SealedSession, to: str, data: bytes) -> None:
        # Until the receiver's keys are known, this agent's keys are sent in the place of a message.
        recorder.note("message" if self.keys_of(to) is not None else "no keys yet", [to], (data,))
        put(self, to, data)

    def mask_recorded(self: MaskedSums, request: IntegerSum) -> np.ndarray:
        masked = mask(self, request)
        recorder.note("term", [str(request.topic)], (request.value.astype("<i8").tobytes(), masked.tobytes()))
        return masked

    zenoh.open, NetworkAgent.save = open_recorded, save_recorded
    SealedSession.put, MaskedSums.mask = put_recorded, mask_recorded
    try:
        yield
    finally:
        np.savez(f"{path}.npz", **states)


def run_recorded(path: Path, *args: str) -> None:
    """Run ``elmesh`` in a new process as :func:`helpers.forked.run_command` does, and record it."""
    with recorded(path):
        run_command(*args)


class RecordedNetwork(ForkedNetwork):
    """Agents that record what they send before it is encrypted, and their private state."""

    def fork(self, name: str, *args: object) -> ForkedProcess:
        return ForkedProcess(self.calls_of(name), *args, target=run_recorded)

    def calls_of(self, name: str) -> Path:
        return self.folder / f"{name}.calls"

    def calls(self, name: str) -> list[dict]:
        return [json.loads(line) for line in self.calls_of(name).read_text().splitlines()]

    def sent(self, name: str) -> list[tuple[str, bytes]]:
        """Return all that an agent has given to zenoh: keys of zenoh, and frames."""
        puts = [call for call in self.calls(name) if call["data"] and call["call"] not in OWN]
        assert {(call["call"], *call["on"][:2]) for call in puts} == {("put", "session", "declare_publisher")}
        return [(call["on"][2], bytes.fromhex(data)) for call in puts for data in call["data"]]

    def recorded(self, name: str, *what: str) -> list[list[bytes]]:
        """Return the bytes of what was recorded within an agent."""
        return [[bytes.fromhex(x) for x in call["data"]] for call in self.calls(name) if call["call"] in what]

    def messages(self, name: str) -> list[Message]:
        """Return all messages that an agent has sealed."""
        return [parse(data) for (data,) in self.recorded(name, "message")]

    def terms(self, name: str) -> list[tuple[np.ndarray, bytes]]:
        """Return an agent's terms of sums, and what they were masked to."""
        return [(np.frombuffer(value, "<i8"), masked) for value, masked in self.recorded(name, "term")]

    def states(self, name: str) -> dict[str, np.ndarray]:
        return dict(np.load(f"{self.calls_of(name)}.npz"))
