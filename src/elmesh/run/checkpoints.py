"""Checkpoints: what a run resumes from, in files that are complete or absent.

A folder holds ``checkpoint.json``, which names the newest complete checkpoint, and that checkpoint: one file per
process, in which every agent's arrays stand by themselves, so that any number of processes can resume from it. The
document is replaced in one step, once every process has its file on disk: whatever is killed at whatever moment, the
folder holds one good checkpoint, or none yet.

The files hold each agent's private coefficients and residuals: they are as confidential as the data, and only their
owner may read them.
"""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from elmesh.comm.communicator import Communicator, raise_on_all
from elmesh.errors import ElmeshError
from elmesh.files import atomic_write
from elmesh.run.array_io import (
    Arrays,
    DamagedError,
    HistoryArrays,
    SavedRun,
    read_arrays,
    snapshot_arrays,
    task_digest,
    write_arrays,
)
from elmesh.run.config import CheckpointConfig
from elmesh.run.monitor import RoundSnapshot
from elmesh.run.result import RunHistory
from elmesh.run.runner import LocalAgents
from elmesh.text import abbreviated

__all__ = ["CheckpointStore", "CheckpointWarning"]

_FORMAT, _VERSION = "elmesh-checkpoint", 2
_DOCUMENT = "checkpoint.json"


class CheckpointWarning(UserWarning):
    """A checkpoint could not be written."""


class CheckpointStore:
    """The checkpoints of one run, seen from the process of some of its agents.

    ``fields`` describe the run in plain JSON: a checkpoint with other fields is refused.
    """

    def __init__(
        self, config: CheckpointConfig, fields: Mapping[str, Any], agents: LocalAgents, communicator: Communicator
    ) -> None:
        self._config, self._folder, self._agents, self._communicator = config, config.path, agents, communicator
        # As JSON reads it back: tuples are lists.
        self._fields: dict[str, Any] = json.loads(json.dumps(dict(fields)))
        self._digests = [task_digest(task) for task in agents.tasks]
        self._history, self._newest = HistoryArrays(), -1

    def latest(self, remote: Sequence[int] = ()) -> SavedRun | None:
        """Return the newest checkpoint, or None if there is none; of ``remote`` agents, the transport's state too."""
        with raise_on_all(self._communicator):
            document = _read_document(self._folder / _DOCUMENT)
            if document is not None:
                self._check_fields(document)
                saved = self._load(document, remote)
        if document is None:
            return None
        self._completed(int(document["round"]))
        return saved

    def _completed(self, k: int) -> None:
        self._newest = k
        if self._config.callback is not None:
            self._config.callback(k)

    def save(self, snapshot: RoundSnapshot, history: Callable[[], RunHistory]) -> None:
        """Write a checkpoint if one is due."""
        k = snapshot.report.round
        if k % self._config.every or k <= self._newest:
            return
        communicator, agents, error = self._communicator, self._agents, None
        name = f"round-{k:08d}"
        file = f"{name}/rank-{communicator.rank:04d}-of-{communicator.size:04d}.safetensors"
        common = self._history.convert(history()) if agents.agents[0] == 0 else None
        labels = {f"{agent}/data": digest for agent, digest in zip(agents.agents, self._digests, strict=True)}
        try:
            (self._folder / name).mkdir(parents=True, exist_ok=True, mode=0o700)
            arrays = snapshot_arrays(snapshot, agents.agents, agents.degree, agents.batches, common)
            write_arrays(self._folder / file, arrays, labels)
        except OSError as problem:
            error = f"rank {communicator.rank}: {_reason(problem)}"
        parts = communicator.allgather({"file": file, "agents": list(agents.agents), "error": error})
        errors = [part["error"] for part in parts if part["error"] is not None]
        if not errors and communicator.rank == 0:
            files = [{"file": part["file"], "agents": part["agents"]} for part in parts]
            content = {"round": k, "fields": self._fields, "files": files}
            document = {"format": _FORMAT, "format_version": _VERSION, **content}
            try:
                # Now that its files are complete, the document names this checkpoint.
                atomic_write(self._folder / _DOCUMENT, json.dumps(document, indent=1).encode(), mode=0o600)
                self._remove_old()
            except OSError as problem:
                errors = [f"rank 0: {_reason(problem)}"]
        # No process relies on the checkpoint before it is complete.
        errors = communicator.allgather(errors)[0]
        if not errors:
            self._completed(k)
            return
        if communicator.rank == 0:
            # Otherwise every attempt would leave more on a full disk.
            with suppress(OSError, ElmeshError):
                self._remove_old()
        last = f"round {self._newest} is still there" if self._newest >= 0 else "there is none before it"
        warnings.warn(
            f"The checkpoint of round {k} could not be written to {self._folder} ({errors[0]}); {last}.",
            CheckpointWarning,
            stacklevel=2,
        )

    def _remove_old(self) -> None:
        """Remove all checkpoints but the one that the document names."""
        document = _read_document(self._folder / _DOCUMENT)
        current = None if document is None else Path(document["files"][0]["file"]).parent.name
        for old in self._folder.glob("round-????????"):
            if old.name != current:
                shutil.rmtree(old, ignore_errors=True)

    def _check_fields(self, document: Mapping[str, Any]) -> None:
        fields = document["fields"]
        odd = next((name for name in self._fields if fields.get(name) != self._fields[name]), None)
        if odd is not None:
            theirs, ours = abbreviated(fields.get(odd)), abbreviated(self._fields[odd])
            raise ElmeshError(
                f"{self._folder} holds a checkpoint of another fit: its {odd} is {theirs}, but this fit's is {ours}; "
                "choose another folder, or empty that one to start again."
            )

    def _load(self, document: Mapping[str, Any], remote: Sequence[int]) -> SavedRun:
        agents = self._agents
        wanted = {*agents.agents, *remote}
        prefixes = (*(f"agent/{t}/" for t in wanted), "shared/", "comm/", "history/")
        arrays: Arrays = {}
        digests: dict[int, str] = {}
        for entry in document["files"]:
            if not wanted & set(entry["agents"]) and 0 not in entry["agents"]:
                continue
            path = self._folder / entry["file"]
            try:
                found, labels = read_arrays(path, prefixes)
                digests |= {t: labels[f"{t}/data"] for t in entry["agents"]}
            except (DamagedError, KeyError):
                raise ElmeshError(
                    f"{path} is missing or damaged, so its checkpoint cannot be resumed; empty the folder to start "
                    "again."
                ) from None
            arrays |= found
        for t, label, digest in zip(agents.agents, agents.labels, self._digests, strict=True):
            if digests.get(t) != digest:
                raise ElmeshError(
                    f"The data of task {label!r} differ from those of the checkpoint in {self._folder}; choose "
                    "another folder, or empty that one to start again."
                )
        return SavedRun.parse(arrays, agents.agents, remote)


def _read_document(path: Path) -> dict[str, Any] | None:
    if not path.exists():
        return None
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        known = document["format"] == _FORMAT
        version = int(document["format_version"])
        # Everything that is used later is checked here.
        int(document["round"]), dict(document["fields"])
        for entry in document["files"]:
            inside = Path(entry["file"])
            if inside.is_absolute() or ".." in inside.parts:
                raise ValueError(entry)
        agents = sorted(agent for entry in document["files"] for agent in entry["agents"])
        known = known and bool(agents) and agents == list(range(len(agents)))
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError, IsADirectoryError):
        known, version = False, 0
    if not known:
        raise ElmeshError(f"{path} is not a checkpoint of elmesh; choose another folder.")
    if version != _VERSION:
        raise ElmeshError(
            f"{path} is a checkpoint of another version of elmesh, which this one cannot resume; finish the fit with "
            "that version, or empty the folder to start again."
        )
    return dict(document)


def _reason(error: OSError) -> str:
    return (error.strerror or str(error)).lower()
