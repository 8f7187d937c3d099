"""One rank of a job: ``mpiexec -n 3 python mpi_worker.py FOLDER PART ...``. The first rank writes what was found."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from elmesh.comm.mpi.tree_allreduce import TreeSums
from elmesh.run.mpi import run_mpi

import elmesh.estimators.base
from elmesh import MultiTaskELMClassifier, MultiTaskELMRegressor
from elmesh.comm.mpi import world_communicator
from elmesh.errors import ElmeshError
from elmesh.run import CheckpointWarning, Result, assemble, checkpointing, watch
from elmesh.run.backend import Processes
from elmesh.solvers import DMTLELM
from helpers.mpi import Found
from helpers.mpi_cases import (
    CASES,
    CHAIN,
    DATA,
    ENDING_ROUNDS,
    FITS,
    HALTED,
    HALTS_AT,
    SEED,
    Case,
    placed,
    placements,
    rows_of,
)

warnings.simplefilter("ignore")
world = world_communicator()
comm = world.comm
last = world.rank == world.size - 1


# Runs of solvers -----------------------------------------------------------------------------------------------------


def run(case: Case, placement: str = "even", **changes: object) -> tuple[Result, np.ndarray]:
    ranks = placed(case, placement, world.size)
    mine = np.flatnonzero(ranks == world.rank)
    solver = case.make()
    solver.set_params(**{name: x for name, x in changes.items() if name in solver.get_params()})
    solver.check()
    tasks = [case.tasks[agent] for agent in mine]
    fields = {"solver": repr(solver), "seed": SEED}
    result = run_mpi(solver, tasks, case.topology, ranks, SEED, world, labels=mine.tolist(), fields=fields)
    return result, mine


def collected(case: Case, result: Result, mine: np.ndarray) -> Found:
    """Bring everything that a run produced to the first rank, agents in their order."""
    state, m = result.state, case.topology.n_agents
    own: dict[int, list[Any]] = {}
    for k, agent in enumerate(mine.tolist()):
        width = case.tasks[agent].Y.shape[1]
        U = state.U if state.U.ndim == 2 else state.U[k]
        assert not state.A[k, :, width:].any(), "outputs that a task does not have got weights"
        weights = [np.broadcast_to(x, len(mine))[k] for x in (state.tau, state.zeta)]
        own[agent] = [U, state.A[k, :, :width], np.array(weights)]
    arrays = {"history": result.history.to_numpy(), "traffic": result.ledger.counts()}
    notes = {
        "stop": result.stop.name,
        "n_iter": result.n_iter,
        "n_exchanges": result.n_exchanges,
        "penalties": [state.rho, state.mu1, state.mu2],
        "certificate": state.certificate and {name: float(x) for name, x in asdict(state.certificate).items()},
    }
    said = json.dumps(notes) + "".join(hashlib.sha256(x.tobytes()).hexdigest() for x in arrays.values())
    notes["alike"] = len(set(comm.allgather(said))) == 1
    everybody = {agent: parts for theirs in comm.allgather(own) for agent, parts in theirs.items()}
    U, A, weights = zip(*(everybody[agent] for agent in range(m)), strict=True)
    notes["shared"] = state.U.ndim == 2
    return Found({**arrays, "U": np.stack(U), "A": np.hstack(A), "weights": np.stack(weights)}, notes)


class Collection:
    """What was found about many things, by name."""

    def __init__(self) -> None:
        self.found = Found({}, {})

    def add(self, name: str, found: Found) -> None:
        self.found.arrays.update({f"{name}/{key}": x for key, x in found.arrays.items()})
        self.found.notes[name] = found.notes


def solvers(folder: Path) -> Found:
    """Run every case, its agents spread in every way."""
    everything = Collection()
    for name, case in CASES.items():
        for placement in placements(name, world.size):
            everything.add(f"{name}/{placement}", collected(case, *run(case, placement)))
    return everything.found


def halting(folder: Path) -> Found:
    """Let the last rank alone want to stop; and run once more for as many rounds as that took."""
    everything = Collection()
    for name in HALTED:
        case = CASES[name]
        with watch(lambda progress: last and progress.round == HALTS_AT):
            result, mine = run(case)
        everything.add(f"{name}/halted", collected(case, result, mine))
        again = run(case, max_iter=result.n_iter, certify=False, tol=0.0)
        everything.add(f"{name}/limited", collected(case, *again))
    return everything.found


# Checkpoints ---------------------------------------------------------------------------------------------------------


@contextmanager
def interrupted(at: int | None) -> Iterator[None]:
    """Have a run fail in all processes once it is in a round."""

    def callback(progress: Any) -> None:
        if progress.round == at:
            raise ElmeshError("Interrupted.")

    with watch(callback):
        yield


def chain(folder: Path) -> Found:
    """Go on where the job before this one was interrupted, and be interrupted in turn; the last one is not."""
    everything = Collection()
    at = ENDING_ROUNDS[world.size]
    for number, name in enumerate(CHAIN):
        case, told = CASES[name], []
        with checkpointing(folder.parent / "chain" / str(number), every=2, tell=told.append), interrupted(at):
            try:
                found = collected(case, *run(case, "scattered"))
            except ElmeshError as error:
                found = Found({}, {"error": str(error)})
        everything.add(name, Found(found.arrays, {**found.notes, "told": told}))
    return everything.found


def full_disk(folder: Path) -> Found:
    """Let the last rank's disk be full from a round on, and go on from what there is after that."""
    everything = Collection()
    name = "admm, ring"
    case, told = CASES[name], []
    sync, full = os.fsync, False

    def callback(progress: Any) -> None:
        nonlocal full
        full = last and progress.round >= 6

    def fails(descriptor: int) -> None:
        if full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        sync(descriptor)

    os.fsync = fails
    try:
        with (
            warnings.catch_warnings(record=True) as caught,
            checkpointing(folder / "full", every=3, tell=told.append),
            watch(callback),
        ):
            warnings.simplefilter("always", CheckpointWarning)
            everything.add("full", collected(case, *run(case)))
    finally:
        os.fsync = sync
    said = [str(warning.message).replace(str(folder), "FOLDER") for warning in caught]
    everything.found.notes["warnings"] = comm.allgather(said)
    everything.found.notes["told"] = comm.allgather(told)
    with checkpointing(folder / "full", every=1000, tell=told.append):
        everything.add("after", collected(case, *run(case)))
    everything.found.notes["from"] = told[-1]
    return everything.found


# Estimators ----------------------------------------------------------------------------------------------------------


def fitted(name: str, own: bool, **changes: object) -> tuple[Any, dict[str, np.ndarray]]:
    """Fit on all rows, or on those of this rank's own tasks."""
    kind, make = FITS[name]
    X, y, tasks = DATA[kind]()
    rows = rows_of(tasks, world.rank, world.size) if own else slice(None)
    estimator = make().set_params(**changes)
    estimator.fit(X[rows], y[rows], tasks=tasks[rows])
    here = np.isin(tasks, estimator.tasks_)
    said = {"rows": np.flatnonzero(here), "predicted": estimator.predict(X[here], tasks=tasks[here])}
    if kind == "classifier":
        said["classes"] = np.isin(["ant", "bee", "cat"], estimator.classes_)
        said["proba"] = estimator.predict_proba(X[here], tasks=tasks[here])
    return estimator, said


def estimators(folder: Path) -> Found:
    everything = Collection()
    for name in FITS:
        for way in ("all rows", "own rows"):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                estimator, said = fitted(name, way == "own rows")
            counts = comm.allgather(len([w for w in caught if "rounds" in str(w.message)]))
            whole = estimator.gather()
            if whole is not None:
                whole.save(folder / f"{name}, {way}")
            notes = {
                "tasks": comm.allgather(estimator.tasks_.tolist()),
                "gathered": comm.allgather(whole is not None),
                "seeds": comm.allgather(estimator.seed_),
                "warnings": counts,
                "histories": len(set(comm.allgather(estimator.history_.to_json()))),
                "stop": estimator.stop_.name,
                "n_iter": estimator.n_iter_,
                "graph": [list(edge) for edge in estimator.graph_.edges],
                "whole": None if whole is None else [whole.n_iter_, whole.stop_.name, whole.tasks_.tolist()],
                "conditions": [
                    c and [c.tau.tolist(), c.required.tolist()] for c in comm.allgather(estimator.conditions_)
                ],
            }
            for rank, theirs in enumerate(comm.allgather(said)):
                everything.add(f"{name}/{way}/{rank}", Found({k: np.asarray(x) for k, x in theirs.items()}, {}))
            everything.found.notes[f"{name}/{way}"] = notes
    with_any_seed, _ = fitted("regressor, varpro", own=True, random_state=None)
    everything.found.notes["any seed"] = comm.allgather(with_any_seed.seed_)
    with_own_state, _ = fitted("regressor, varpro", own=True, random_state=np.random.RandomState(world.rank))
    everything.found.notes["own state"] = comm.allgather(with_own_state.seed_)
    return everything.found


# What goes wrong -----------------------------------------------------------------------------------------------------


def regressor(**changes: Any) -> MultiTaskELMRegressor:
    solver = changes.pop("solver", None) or DMTLELM(runtime="mpi", **changes.pop("inside", {}))
    return MultiTaskELMRegressor(**{"n_hidden": 10, "random_state": 0, "solver": solver, **changes})


def wrongs(folder: Path) -> dict[str, Callable[[], object]]:
    """Fits that cannot be, by name; each of three ranks calls them in turn."""
    import pandas as pd

    X, y, tasks = DATA["regressor"]()
    rank, odd = world.rank, world.rank == 1
    rows = rows_of(tasks, rank, world.size)
    mine = X[rows], y[rows], tasks[rows]
    names = ["a", "b", "c", "z" if odd else "d"]

    def fit(estimator: Any = None, X: Any = mine[0], y: Any = mine[1], tasks: Any = mine[2]) -> None:
        (estimator or regressor()).fit(X, y, tasks=tasks)

    def spoilt(x: float) -> np.ndarray:
        return np.where((np.arange(mine[0].size).reshape(mine[0].shape) == 5) & odd, x, mine[0])

    def other_version() -> None:
        before = elmesh.estimators.base.__version__
        elmesh.estimators.base.__version__ = "0.0.1" if odd else before
        try:
            fit()
        finally:
            elmesh.estimators.base.__version__ = before

    def checkpointed(name: str, **changes: Any) -> None:
        with checkpointing(folder / "wrong" / name, every=1):
            fit(regressor(**changes))

    def prepared(name: str, spoil: Callable[[Path], object]) -> None:
        with interrupted(2), suppress(ElmeshError):
            checkpointed(name)
        if rank == 0:
            spoil(folder / "wrong" / name)
        comm.Barrier()

    def remove(where: Path) -> None:
        next(where.glob("round-*/rank-0001*")).unlink()

    def damage(where: Path) -> None:
        file = next(where.glob("round-*/rank-0001*"))
        data = bytearray(file.read_bytes())
        data[-20] ^= 1
        file.write_bytes(data)

    def spoilt_checkpoint(name: str, spoil: Callable[[Path], object], **changes: Any) -> None:
        prepared(name, spoil)
        checkpointed(name, **changes)

    def another_task() -> None:
        prepared("data", lambda _: None)
        with checkpointing(folder / "wrong" / "data", every=1):
            fit(X=spoilt(0.125))

    shared = tasks == tasks[0]
    with_shared = rows | shared if rank < 2 else rows & ~shared
    return {
        "two ranks have a task": lambda: fit(None, X[with_shared], y[with_shared], tasks[with_shared]),
        "a rank has no rows": lambda: fit(None, *(x[: 0 if odd else None] for x in mine)),
        "a rank has no tasks": lambda: assemble(world, DMTLELM(), [] if odd else [f"task {rank}"], 0),
        "labels of two kinds": lambda: fit(None, tasks=np.arange(len(mine[0])) // 6 if odd else mine[2]),
        "more ranks than tasks": lambda: fit(None, X, y, np.where(tasks == tasks[0], "here", "there")),
        "another seed": lambda: fit(regressor(random_state=7 if odd else 0)),
        "another rank": lambda: fit(regressor(inside={"rank": 3 if odd else 2})),
        "another width": lambda: fit(regressor(n_hidden=11 if odd else 10)),
        "another intercept": lambda: fit(regressor(fit_intercept=not odd)),
        "other columns": lambda: fit(X=pd.DataFrame(mine[0], columns=names)),
        "fewer columns": lambda: fit(X=mine[0][:, : 3 if odd else 4]),
        "another version": other_version,
        "another estimator": lambda: fit(classifier() if odd else regressor(), y=np.round(mine[1][:, 0])),
        "not a number": lambda: fit(X=spoilt(np.nan)),
        "too large a number": lambda: fit(X=spoilt(1e200)),
        "a row alone": lambda: fit(tasks=np.where((np.arange(len(mine[2])) == 0) & odd, "alone", mine[2])),
        "a seed that is none": lambda: fit(regressor(random_state=-1 if odd else 0)),
        "a parameter that makes no sense": lambda: fit(regressor(inside={"rank": -1 if odd else 2})),
        "an intercept that makes no sense": lambda: fit(regressor(fit_intercept="yes" if odd else True)),
        "no such runtime": lambda: fit(regressor(solver=DMTLELM(runtime="nonsense"))),
        "no such activation": lambda: fit(regressor(activation="nonsense")),
        "too few bytes": lambda: fit(regressor(inside={"max_bytes": 1000.0})),
        "a checkpoint of another seed": lambda: spoilt_checkpoint("seed", lambda _: None, random_state=1),
        "a checkpoint of another rank": lambda: spoilt_checkpoint("rank", lambda _: None, inside={"rank": 2}),
        "a checkpoint of other data": another_task,
        "a checkpoint without a file": lambda: spoilt_checkpoint("missing", remove),
        "a checkpoint with a damaged file": lambda: spoilt_checkpoint("damaged", damage),
        "a checkpoint that is none": lambda: spoilt_checkpoint(
            "none", lambda x: (x / "checkpoint.json").write_text("{")
        ),
    }


def classifier() -> MultiTaskELMClassifier:
    return MultiTaskELMClassifier(n_hidden=10, random_state=0, solver=DMTLELM(runtime="mpi"))


def errors(folder: Path) -> Found:
    notes: dict[str, Any] = {}
    for name, call in wrongs(folder).items():
        said = "nothing"
        try:
            call()
        except Exception as error:
            said = f"{type(error).__name__}: {error}".replace(str(folder), "FOLDER")
        notes[name] = comm.allgather(said)
    # After all that nobody is out of step.
    estimator, _ = fitted("regressor, varpro", own=True)
    return Found({}, {**notes, "after": estimator.stop_.name})


# What crosses --------------------------------------------------------------------------------------------------------


class Recorder:
    """A communicator that keeps every byte that this process gives to MPI."""

    # Which argument goes out. What is not here or below may not be used: nobody would know what it sends.
    SENDS = ("Send", "Isend", "Allgather", "Allgatherv", "Iallgatherv", "Gatherv", "Allreduce", "Iallreduce")
    PERSISTENT = ("Send_init", "Neighbor_alltoallv_init")
    SILENT = ("Get_rank", "Get_size", "Recv", "Recv_init", "Probe")

    def __init__(self, comm: Any, log: list[bytes]) -> None:
        self._comm, self._log = comm, log

    def Bcast(self, buffer: Any, root: int = 0) -> None:
        if root == self._comm.Get_rank():
            self._log.append(_bytes(buffer))
        self._comm.Bcast(buffer, root)

    def Create_dist_graph_adjacent(self, *arguments: Any, **more: Any) -> Recorder:
        return Recorder(self._comm.Create_dist_graph_adjacent(*arguments, **more), self._log)

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._comm, name)
        if name in self.SENDS:
            return lambda buffer, *rest: (self._log.append(_bytes(buffer)), method(buffer, *rest))[1]
        if name in self.PERSISTENT:
            return lambda buffer, *rest: Started(method(buffer, *rest), buffer, self._log)
        if name not in self.SILENT:
            raise NotImplementedError(f"The recorder does not know what {name} sends.")
        return method


class Started:
    """A persistent message, whose buffer counts each time it is started."""

    def __init__(self, message: Any, buffer: Any, log: list[bytes]) -> None:
        self._message, self._buffer, self._log = message, buffer, log

    def Start(self) -> None:
        self._log.append(_bytes(self._buffer))
        self._message.Start()

    def Wait(self) -> None:
        self._message.Wait()


def _bytes(buffer: Any) -> bytes:
    data = buffer[0] if isinstance(buffer, (list, tuple)) else buffer
    return bytes(data) if isinstance(data, (bytes, bytearray)) else np.ascontiguousarray(data).tobytes()


def rows_in(values: np.ndarray) -> set[bytes]:
    """Return every two numbers that are beside each other in a row, as they would be sent."""
    table = np.atleast_2d(np.asarray(values, dtype="<f8"))
    both = np.stack([table[:, :-1], table[:, 1:]], axis=-1).reshape(-1, 2)
    # Two zeros, or the same number twice, say nothing about where they are from.
    return {pair.tobytes() for pair in both if pair[0] != pair[1]}


def pairs(values: np.ndarray) -> set[bytes]:
    """Return every two numbers that are beside each other in a row or in a column."""
    return rows_in(values) | rows_in(np.atleast_2d(values).T)


def texts(values: np.ndarray) -> set[bytes]:
    """Return numbers as they are in notes, but for those of a few digits, which may be anything."""
    return {text.encode() for text in map(repr, np.ravel(values).tolist()) if len(text) > 12}


def privacy(folder: Path) -> Found:
    """Look for what is private in all that a fit gives to MPI; the classes of numbers found are noted."""
    X, y, tasks = DATA["regressor"]()
    rows = rows_of(tasks, world.rank, world.size)
    notes: dict[str, Any] = {}
    for name in ("varpro", "varpro in 2 bits", "admm", "dgsp"):
        log: list[bytes] = []
        seen: dict[str, list[np.ndarray]] = {"sums": []}
        with recorded(log, seen):
            estimator, _ = fitted(f"regressor, {name}", own=True)
        H = estimator.model_.layer(X[rows])
        heads = [estimator.model_.heads[t] for t in estimator.tasks_]
        scaled = y[rows] / estimator.target_scale_
        private = {
            "X": [X[rows]],
            "H": [H, *(H[tasks[rows] == t] - H[tasks[rows] == t].mean(axis=0) for t in estimator.tasks_)],
            "y": [y[rows], scaled],
            "A": [head.A for head in heads] + [head.A / estimator.target_scale_ for head in heads],
            "means": [mean for head in heads for mean in (head.h_mean, head.t_mean)],
            "V": [task.V for task in seen["tasks"]],
            "s": [task.s for task in seen["tasks"]],
            "Y": [task.Y for task in seen["tasks"]],
            "weights": [head.U @ head.A for head in heads],
        }
        public = {"U": [head.U for head in heads], "columns": [heads[0].U.T], "sums": seen["sums"]}
        sent = b"|".join(log)
        windows = {sent[k : k + 16] for k in range(len(sent) - 15)}

        def seen_of(
            values: list[np.ndarray], parts: Callable[..., set[bytes]], within: set[bytes] = windows
        ) -> list[int]:
            wanted = set().union(*map(parts, values))
            return [len(wanted & within), len(wanted)]

        notes[name] = comm.allgather(
            {
                "bytes": len(sent),
                "private": {what: seen_of(values, pairs) for what, values in private.items()},
                "public": {what: seen_of(values, rows_in) for what, values in public.items()},
                "told": {what: sum(t in sent for x in values for t in texts(x)) for what, values in private.items()},
            }
        )
    return Found({}, notes)


@contextmanager
def recorded(log: list[bytes], seen: dict[str, Any]) -> Iterator[None]:
    """Keep all that is given to MPI, the tasks that a run is of, and the sums that it was told."""
    run, add_up = Processes.run, TreeSums.add_up

    def running(self: Processes, solver: Any, tasks: Any, *rest: Any) -> Result:
        seen["tasks"] = list(tasks)
        return run(self, solver, tasks, *rest)

    def adding(self: TreeSums, request: Any) -> Any:
        total = add_up(self, request)
        seen["sums"].append(total.value)
        return total

    world.comm, Processes.run, TreeSums.add_up = Recorder(comm, log), running, adding
    try:
        yield
    finally:
        world.comm, Processes.run, TreeSums.add_up = comm, run, add_up


# A rank that fails alone ---------------------------------------------------------------------------------------------


def failing(folder: Path) -> Found:
    def callback(progress: Any) -> None:
        if last and progress.round == 3:
            raise RuntimeError("A slip of one rank.")

    with watch(callback):
        run(CASES["admm, ring"])
    return Found({}, {})


PARTS = {part.__name__: part for part in (solvers, halting, chain, full_disk, estimators, errors, privacy, failing)}


def main() -> None:
    folder = Path(sys.argv[1])
    for name in sys.argv[2:]:
        found = PARTS[name](folder)
        if world.rank == 0:
            found.save(folder, name)


if __name__ == "__main__":
    main()
