"""Arrays on disk: safetensors files with a checksum per array, written completely or not at all, private to the owner.

One layout serves checkpoints of many agents and the checkpoint of a single agent of a network:

- ``agent/T/own/...``, ``agent/T/edge/...``: the solver's state of agent T;
- ``agent/T/comm/...``: the transport's state of agent T;
- ``shared/...``, ``comm/...``, ``history/...``: what all agents have in common, and the rounds so far.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy
from numpy.typing import NDArray

from elmesh.comm.transport import CommState
from elmesh.data.statistics import Statistics
from elmesh.files import atomic_write
from elmesh.run.monitor import RoundSnapshot
from elmesh.run.result import Progress, RunHistory
from elmesh.solvers.state import StateDict
from elmesh.typing import FloatArray, IndexArray

__all__ = [
    "Arrays",
    "DamagedError",
    "HistoryArrays",
    "SavedRun",
    "read_arrays",
    "snapshot_arrays",
    "task_digest",
    "write_arrays",
]

Arrays = dict[str, FloatArray]
_COLUMNS = ("round", "max_iter", "objective", "consensus_gap", "dual_residual", "exchanges", "bytes")


class DamagedError(Exception):
    """A file is missing, or not as it was written."""


def write_arrays(path: Path, arrays: Mapping[str, NDArray[Any]], labels: Mapping[str, str]) -> None:
    """Write arrays of doubles, or of bytes, and labels."""
    # ascontiguousarray would give a number an axis.
    plain = {
        name: np.asarray(x, dtype=np.uint8 if x.dtype == np.uint8 else np.float64, order="C")
        for name, x in arrays.items()
    }
    sums = {f"sha256 {name}": hashlib.sha256(x.data).hexdigest() for name, x in plain.items()}
    atomic_write(path, safetensors.numpy.save(plain, metadata={**labels, **sums}), mode=0o600)


def read_arrays(path: Path, prefixes: tuple[str, ...] = ("",)) -> tuple[Arrays, dict[str, str]]:
    """Return the arrays whose names begin with one of these, verified by their checksums, and the labels."""
    try:
        with safetensors.safe_open(path, framework="numpy") as file:
            labels, names = file.metadata(), file.keys()
            # An array under another agent's name would go unnoticed otherwise.
            if {f"sha256 {name}" for name in names} != {x for x in labels if x.startswith("sha256 ")}:
                raise DamagedError(path)
            arrays: Arrays = {name: file.get_tensor(name) for name in names if name.startswith(prefixes)}
    except (safetensors.SafetensorError, OSError, KeyError, TypeError):
        raise DamagedError(path) from None
    for name, x in arrays.items():
        if hashlib.sha256(np.ascontiguousarray(x).data).hexdigest() != labels[f"sha256 {name}"]:
            raise DamagedError(path)
    return arrays, labels


def task_digest(task: Statistics) -> str:
    """Return the SHA-256 of a task's data."""
    digest = hashlib.sha256()
    for x in task.arrays:
        digest.update(str(x.shape).encode())
        digest.update(np.ascontiguousarray(x).data)
    return digest.hexdigest()


class HistoryArrays:
    """A run's history as arrays; rows that were converted before are not converted again."""

    def __init__(self) -> None:
        self._numbers = array("d")

    def convert(self, history: RunHistory) -> Arrays:
        """Return the rounds so far, of a history that only ever gets longer."""
        for step in history.rows[len(self._numbers) // len(_COLUMNS) :]:
            self._numbers.extend(float(getattr(step, name)) for name in _COLUMNS)
        return {
            "rows": np.array(self._numbers).reshape(-1, len(_COLUMNS)),
            "floors": np.array(history.floors or ()),
            "ceiling": np.array(history.ceiling),
        }


def snapshot_arrays(
    snapshot: RoundSnapshot,
    agents: Sequence[int],
    degree: Sequence[int],
    batches: Sequence[IndexArray],
    history: Arrays | None,
) -> Arrays:
    """Return the arrays of a snapshot's agents, and with ``history`` those that all agents have in common."""
    arrays: Arrays = {}
    dicts = [state.state_dict() for state in snapshot.report.states]
    for state, batch in zip(dicts, batches, strict=True):
        for k, one in zip(batch.tolist(), state.split([degree[k] for k in batch.tolist()]), strict=True):
            head = f"agent/{agents[k]}"
            arrays |= {f"{head}/own/{name}": x for name, x in one.agent.items()}
            arrays |= {f"{head}/edge/{name}": x for name, x in one.edge.items()}
            arrays |= {f"{head}/comm/{name}": x for name, x in snapshot.comm.own.get(agents[k], {}).items()}
    if history is not None:
        arrays |= {f"shared/{name}": x for name, x in dicts[0].shared.items()}
        arrays |= {f"comm/{name}": x for name, x in snapshot.comm.common.items()}
        arrays |= {f"history/{name}": x for name, x in history.items()}
    return arrays


@dataclass(frozen=True, eq=False)
class SavedRun:
    """What a run resumes from: the state of each agent, the transport's, and the history."""

    states: dict[int, StateDict]
    comm: CommState
    history: RunHistory

    @classmethod
    def parse(cls, arrays: Mapping[str, FloatArray], agents: Collection[int], remote: Collection[int] = ()) -> SavedRun:
        """Return what was saved of these agents; of ``remote`` ones, the transport's state."""
        shared = _below("shared/", arrays)
        states = {
            t: StateDict(_below(f"agent/{t}/own/", arrays), shared, _below(f"agent/{t}/edge/", arrays)) for t in agents
        }
        comm = {t: _below(f"agent/{t}/comm/", arrays) for t in sorted({*agents, *remote})}
        return cls(states, CommState(comm, _below("comm/", arrays)), _history(_below("history/", arrays)))


def _below(prefix: str, arrays: Mapping[str, FloatArray]) -> Arrays:
    return {name.removeprefix(prefix): x for name, x in arrays.items() if name.startswith(prefix)}


def _history(arrays: Mapping[str, FloatArray]) -> RunHistory:
    floors = arrays["floors"].tolist()
    rows = tuple(
        Progress(int(k), int(most), objective, gap, dual, int(exchanges), int(sent))
        for k, most, objective, gap, dual, exchanges, sent in arrays["rows"].tolist()
    )
    return RunHistory(rows, (floors[0], floors[1], floors[2]) if floors else None, float(arrays["ceiling"]))
