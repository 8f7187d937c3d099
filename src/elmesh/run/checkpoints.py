"""Checkpoints: what a run goes on from, in files that are whole or not there.

A folder holds ``checkpoint.json``, which names the newest complete checkpoint, and that checkpoint: a file a process,
in which every agent's arrays stand by themselves, so that any number of processes can go on from it. The document is
replaced in one step, once every process has its file on disk: whatever is killed at whatever moment, the folder holds
one good checkpoint, or none yet.

The files hold each agent's private coefficients and residuals: they are as confidential as the data, and only their
owner may read them.
"""

from __future__ import annotations

import json
import os
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elmesh.comm.communicator import Communicator, raise_on_all
from elmesh.comm.requests import Kept
from elmesh.data.statistics import Task
from elmesh.errors import ElmeshError
from elmesh.run.array_io import (
    DamagedError,
    Rows,
    below,
    digest_of,
    open_arrays,
    past_of,
    sync_folder,
    tensor,
    write_arrays,
)
from elmesh.run.base import Mark, Moment, Past
from elmesh.typing import FloatArray

__all__ = ["CheckpointWarning", "Checkpoints", "Crew", "Saved", "Wanted", "checkpointing", "chosen"]

Arrays = dict[str, FloatArray]

_FORMAT, _VERSION = "elmesh-checkpoint", 1
_DOCUMENT = "checkpoint.json"

_chosen: ContextVar[Wanted | None] = ContextVar("checkpoints", default=None)


class CheckpointWarning(UserWarning):
    """Something about a checkpoint that its owner should know."""


@dataclass(frozen=True)
class Wanted:
    """Checkpoints that were asked for: where, how often, and who is to be told the round of the newest."""

    folder: Path
    every: int
    tell: Callable[[int], None] | None = None


@contextmanager
def checkpointing(
    folder: str | os.PathLike[str], every: int = 10, tell: Callable[[int], None] | None = None
) -> Iterator[None]:
    """Have fits inside keep a checkpoint in a folder, and go on from the one that is there.

    Parameters
    ----------
    folder : path
        Made if need be. With several processes it is one that all of them see.
    every : int, default=10
        Rounds from one checkpoint to the next.
    tell : callable, optional
        Called with the round of each checkpoint once it is complete, and of the one that a fit goes on from.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> from elmesh import MultiTaskELMRegressor, run
    >>> X, y = np.arange(20.0).reshape(10, 2), np.arange(10.0)
    >>> with tempfile.TemporaryDirectory() as folder, run.checkpointing(folder, every=1):
    ...     first = MultiTaskELMRegressor(n_hidden=None, random_state=0).fit(X, y, tasks=list("aabbaabbab"))
    ...     again = MultiTaskELMRegressor(n_hidden=None, random_state=0).fit(X, y, tasks=list("aabbaabbab"))
    >>> bool((first.U_ == again.U_).all())  # it had only its last round to do once more
    True
    """
    if type(every) is bool or not isinstance(every, int) or every < 1:
        raise ElmeshError(f"every must be a whole number of at least 1; got {every!r}.")
    token = _chosen.set(Wanted(Path(folder), every, tell))
    try:
        yield
    finally:
        _chosen.reset(token)


def chosen() -> Wanted | None:
    """Return what checkpoints were asked for, if any were."""
    return _chosen.get()


@dataclass(frozen=True, eq=False)
class Saved:
    """What a checkpoint holds of the agents that were asked for."""

    kept: list[Kept]
    link: Mark
    past: Past

    def of(self, part: NDArray[np.intp]) -> Kept:
        """Return what a stack of some of the agents goes on from."""
        return Kept.stack([self.kept[k] for k in part.tolist()])


@dataclass(frozen=True, eq=False)
class Crew:
    """The agents of one process.

    Parameters
    ----------
    agents : sequence of int
        Which they are, in increasing order.
    labels : sequence
        The tasks that they have.
    tasks : sequence of Task
        The data of each.
    degree : sequence of int
        How many neighbours each has.
    parts : sequence of ndarray of int
        Places of those that are stacked, program by program.
    """

    agents: Sequence[int]
    labels: Sequence[object]
    tasks: Sequence[Task]
    degree: Sequence[int]
    parts: Sequence[NDArray[np.intp]]


class Checkpoints:
    """The checkpoints of one run.

    Parameters
    ----------
    wanted : Wanted
        Where and how often.
    fields : mapping
        What the run is of, by name, in plain JSON: a checkpoint with other fields is not gone on from.
    crew : Crew
        The agents of this process.
    together : Together
        The processes of the run.
    """

    def __init__(
        self,
        wanted: Wanted,
        fields: Mapping[str, Any],
        crew: Crew,
        communicator: Communicator,
    ) -> None:
        self._folder, self._every, self._tell, self._together = wanted.folder, wanted.every, wanted.tell, communicator
        # As JSON has it: tuples are lists.
        self._fields: dict[str, Any] = json.loads(json.dumps(dict(fields)))
        self._crew = crew
        self._data = [digest_of(task) for task in crew.tasks]
        self._rows, self._newest = Rows(), -1

    def latest(self, others: Sequence[int] = ()) -> Saved | None:
        """Return the newest checkpoint, or None if there is none yet; ``others`` are agents to know the link of too."""
        with raise_on_all(self._together):
            document = _read_document(self._folder / _DOCUMENT)
            if document is not None:
                self._check(document)
                saved = self._load(document, others)
        if document is None:
            return None
        self._have(int(document["round"]))
        return saved

    def _have(self, k: int) -> None:
        self._newest = k
        if self._tell is not None:
            self._tell(k)

    def keep(self, moment: Moment, past: Callable[[], Past]) -> None:
        """Write a checkpoint if it is time for one."""
        k = moment.report.round
        if k % self._every or k <= self._newest:
            return
        name, complaint = f"round-{k:08d}", None
        communicator, file = self._together, f"rank-{self._together.rank:04d}-of-{self._together.size:04d}.safetensors"
        try:
            (self._folder / name).mkdir(parents=True, exist_ok=True, mode=0o700)
            write_arrays(self._folder / name / file, self._arrays(moment, past()), self._labels())
        except OSError as error:
            complaint = f"rank {communicator.rank}: {(error.strerror or str(error)).lower()}"
        notes = communicator.allgather(
            {"file": f"{name}/{file}", "agents": list(self._crew.agents), "complaint": complaint}
        )
        complaints = [note["complaint"] for note in notes if note["complaint"] is not None]
        if not complaints and communicator.rank == 0:
            files = [{"file": note["file"], "agents": note["agents"]} for note in notes]
            try:
                self._publish({"round": k, "fields": self._fields, "files": files})
            except OSError as error:
                complaints = [f"rank 0: {(error.strerror or str(error)).lower()}"]
        # Nobody counts on it before it is there.
        complaints = communicator.allgather(complaints)[0]
        if complaints:
            if communicator.rank == 0:
                # Or a disk that is full would be fuller every time.
                with suppress(OSError, ElmeshError):
                    self._sweep()
            last = f"round {self._newest} is still there" if self._newest >= 0 else "there is none before it"
            warnings.warn(
                f"The checkpoint of round {k} could not be written to {self._folder} ({complaints[0]}); {last}.",
                CheckpointWarning,
                stacklevel=2,
            )
        else:
            self._have(k)

    def _publish(self, content: Mapping[str, Any]) -> None:
        """Name a checkpoint whose files are all there, and remove those before it."""
        document = {"format": _FORMAT, "format_version": _VERSION, **content}
        partial = self._folder / f".{_DOCUMENT}.{os.getpid()}.partial"
        with partial.open("w", encoding="utf-8") as stream:
            json.dump(document, stream, indent=1)
            stream.flush()
            os.fsync(stream.fileno())
        partial.replace(self._folder / _DOCUMENT)
        sync_folder(self._folder)
        self._sweep()

    def _sweep(self) -> None:
        """Remove all checkpoints but the one that the document names."""
        document = _read_document(self._folder / _DOCUMENT)
        current = None if document is None else Path(document["files"][0]["file"]).parent.name
        for old in self._folder.glob("round-????????"):
            if old.name != current:
                shutil.rmtree(old, ignore_errors=True)

    def _arrays(self, moment: Moment, past: Past) -> Arrays:
        """Name all arrays of this process's agents, and those that all have in common where the first agent is."""
        arrays: Arrays = {}
        mark, crew = moment.mark, self._crew
        for kept, part in zip(moment.report.kept, crew.parts, strict=True):
            alone = kept.split([crew.degree[k] for k in part.tolist()])
            for k, own in zip(part.tolist(), alone, strict=True):
                agent = crew.agents[k]
                arrays |= {f"{agent}/own/{name}": x for name, x in own.own.items()}
                arrays |= {f"{agent}/edges/{name}": x for name, x in own.edges.items()}
                arrays |= {f"{agent}/link/{name}": x for name, x in mark.own.get(agent, {}).items()}
        if crew.agents[0] == 0:
            arrays |= {f"common/{name}": x for name, x in moment.report.kept[0].common.items()}
            arrays |= {f"link/{name}": x for name, x in mark.common.items()}
            arrays |= {f"past/{name}": x for name, x in self._rows.of(past).items()}
        return arrays

    def _labels(self) -> dict[str, str]:
        return {f"{agent}/data": digest for agent, digest in zip(self._crew.agents, self._data, strict=True)}

    def _check(self, document: Mapping[str, Any]) -> None:
        fields = document["fields"]
        odd = next((name for name in self._fields if fields.get(name) != self._fields[name]), None)
        if odd is not None:
            raise ElmeshError(
                f"{self._folder} holds a checkpoint of another fit: its {odd} is {_short(fields.get(odd))}, and here "
                f"it is {_short(self._fields[odd])}; choose another folder, or empty that one to begin anew."
            )

    def _load(self, document: Mapping[str, Any], others: Sequence[int]) -> Saved:
        wanted = {*self._crew.agents, *others}
        common: Arrays = {}
        agents: dict[int, dict[str, Arrays]] = {a: {"own": {}, "edges": {}, "link": {}} for a in sorted(wanted)}
        digests: dict[int, str] = {}
        for entry in document["files"]:
            if not wanted & set(entry["agents"]) and 0 not in entry["agents"]:
                continue
            with _opened(self._folder / entry["file"]) as file:
                labels, names = file.metadata(), file.keys()
                # Arrays that are named after another agent would go unnoticed.
                if {f"sha256 {name}" for name in names} != {x for x in labels if x.startswith("sha256 ")}:
                    raise KeyError(entry["file"])
                for name in names:
                    head, _, rest = name.partition("/")
                    if head.isdecimal():
                        kind, _, rest = rest.partition("/")
                        if int(head) in wanted:
                            agents[int(head)][kind][rest] = tensor(file, name, labels)
                    else:
                        common[name] = tensor(file, name, labels)
                digests |= {a: labels[f"{a}/data"] for a in entry["agents"]}
        for agent, label, digest in zip(self._crew.agents, self._crew.labels, self._data, strict=True):
            if digests.get(agent) != digest:
                raise ElmeshError(
                    f"The data of task {label!r} are not those that the checkpoint in {self._folder} is of; choose "
                    "another folder, or empty that one to begin anew."
                )
        shared = below("common", common)
        kept = [Kept(agents[a]["own"], shared, agents[a]["edges"]) for a in self._crew.agents]
        mark = Mark({a: agents[a]["link"] for a in sorted(wanted)}, below("link", common))
        return Saved(kept, mark, past_of(below("past", common)))


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    try:
        with open_arrays(path) as file:
            yield file
    except DamagedError:
        raise ElmeshError(
            f"{path} is not there, or damaged, so there is no going on from its checkpoint; empty the folder to begin "
            "anew."
        ) from None


def _read_document(path: Path) -> dict[str, Any] | None:
    if not path.exists():
        return None
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        known = document["format"] == _FORMAT and document["format_version"] == _VERSION
        # Everything that is used later, looked at here.
        int(document["round"]), dict(document["fields"])
        for entry in document["files"]:
            inside = Path(entry["file"])
            if inside.is_absolute() or ".." in inside.parts:
                raise ValueError(entry)
        agents = sorted(agent for entry in document["files"] for agent in entry["agents"])
        known = known and bool(agents) and agents == list(range(len(agents)))
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError, IsADirectoryError):
        known = False
    if not known:
        raise ElmeshError(f"{path} is not a checkpoint as this elmesh writes it; choose another folder.")
    return dict(document)


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."
