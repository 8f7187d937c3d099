"""One rank of a job: ``mpiexec -n 3 python mpi_worker.py FOLDER few PART ...``. Rank 0 writes what was found.

The amount is ``few`` or ``all``: what `make test` examines, or everything (see :mod:`helpers.mpi_cases`).
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import sys
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import elmesh.estimators.base
from elmesh import CheckpointConfig, MeshELM, MultiTaskELMClassifier, MultiTaskELMRegressor, RunConfig
from elmesh.comm.fixed_point import LIMBS, to_scaled, to_wide
from elmesh.comm.graph import Topology
from elmesh.comm.mpi import MPICommunicator, MPITransport, world_communicator
from elmesh.comm.mpi.communicator import mpi_module
from elmesh.data.statistics import Statistics
from elmesh.errors import ElmeshError
from elmesh.run import CheckpointWarning, MPIBackend, RunResult
from elmesh.run.backend import Assignment, FitContext
from helpers.mpi import Findings
from helpers.mpi_cases import (
    CASES,
    CHAIN,
    DATA,
    ENDING_ROUNDS,
    FEW_CASES,
    FEW_CHAIN,
    FEW_FITS,
    FEW_HALTED,
    FEW_SITES,
    FITS,
    HALTED,
    HALTS_AT,
    PRIVATE,
    RECORDED,
    SEED,
    SITES,
    Case,
    check_placements,
    names,
    placed,
    placements,
    rows_of,
    site_placements,
    ways,
)
from helpers.parts import found_parts, gathered_parts, known_noise
from helpers.transports import CHECKS, Member

warnings.simplefilter("ignore")
amount = sys.argv[2]
world = world_communicator()
comm = world.comm
last = world.rank == world.size - 1


@contextmanager
def each_for_itself() -> Iterator[None]:
    """Make a job of one rank of every rank."""
    global world, comm, last  # noqa: PLW0603  (the rank is a process)
    before = world, comm, last
    world = MPICommunicator(mpi_module().COMM_SELF)
    comm, last = world.comm, True
    try:
        yield
    finally:
        world, comm, last = before


# Runs of solvers -----------------------------------------------------------------------------------------------------


def run(
    case: Case, placement: str = "even", config: RunConfig | None = None, **changes: object
) -> tuple[RunResult, np.ndarray]:
    """Run a case; return its result and the agents of this rank."""
    ranks = placed(case.topology, placement, world.size)
    own = np.flatnonzero(ranks == world.rank)
    solver = case.make()
    solver.set_params(**{name: x for name, x in changes.items() if name in solver.get_params()})
    solver.check()
    assignment = Assignment(list(range(len(ranks))), own.tolist(), case.topology, ranks, world.rank)
    fields = {"solver": repr(solver), "seed": SEED}
    fit = FitContext(solver, assignment, SEED, fields, config or RunConfig(), case.features)
    return MPIBackend(world).run(fit, [case.tasks[agent] for agent in own]), own


def collected(case: Case, result: RunResult, own: np.ndarray) -> Findings:
    """Bring everything that a run produced to all ranks, agents in their order."""
    solution, m = result.solution, case.topology.n_agents
    per_agent: dict[int, list[Any]] = {}
    for k, agent in enumerate(own.tolist()):
        width = case.tasks[agent].outputs
        U = solution.U if solution.U.ndim == 2 else solution.U[k]
        assert not solution.A[k, :, width:].any(), "padding of the outputs has weights"
        weights = [np.broadcast_to(x, len(own))[k] for x in (solution.tau, solution.zeta)]
        V = np.zeros((0, width)) if solution.V is None else solution.V[k]
        per_agent[agent] = [U, solution.A[k, :, :width], np.array(weights), V]
    arrays = {"history": result.history.to_numpy(), "traffic": result.traffic.counts()}
    arrays |= {} if solution.W is None else {"W": solution.W}
    notes = {
        "stop": result.stop.name,
        "n_iter": result.n_iter,
        "n_exchanges": result.n_exchanges,
        "penalties": [solution.rho, solution.mu1, solution.mu2],
        "certificate": solution.certificate and {name: float(x) for name, x in asdict(solution.certificate).items()},
    }
    common = json.dumps(notes) + "".join(hashlib.sha256(x.tobytes()).hexdigest() for x in arrays.values())
    notes["equal"] = len(set(comm.allgather(common))) == 1
    all_agents = {agent: parts for theirs in comm.allgather(per_agent) for agent, parts in theirs.items()}
    U, A, weights, V = zip(*(all_agents[agent] for agent in range(m)), strict=True)
    notes["shared"] = solution.U.ndim == 2
    own_arrays = {"U": np.stack(U), "A": np.hstack(A), "weights": np.stack(weights), "V": np.hstack(V)}
    return Findings({**arrays, **own_arrays}, notes)


def solvers(folder: Path, share: slice = slice(None)) -> Findings:
    """Run every case, or a share of them, with every placement of its agents."""
    findings = Findings({}, {})
    for name in names(amount, FEW_CASES, CASES)[share]:
        for placement in placements(amount, name, world.size):
            findings.add(f"{name}/{placement}", collected(CASES[name], *run(CASES[name], placement)))
    return findings


def alone(folder: Path) -> Findings:
    """Run every case, and the end of the chain, on one rank: each rank has a share of them."""
    own, share = folder.parent / "1", slice(world.rank, None, world.size)
    with each_for_itself():
        found = [part(own, share) for part in (solvers, chain)]
    by_rank = comm.gather(found)
    if by_rank is not None:
        own.mkdir()
        for name, parts in zip(("solvers", "chain"), zip(*by_rank, strict=True), strict=True):
            whole = Findings({}, {})
            for part in parts:
                whole.arrays.update(part.arrays)
                whole.notes.update(part.notes)
            whole.save(own, name)
    return Findings({}, {})


def halting(folder: Path) -> Findings:
    """Let the last rank alone ask to stop; then run again for as many rounds as that took."""
    findings = Findings({}, {})
    config = RunConfig(callback=lambda progress: last and progress.round == HALTS_AT)
    for name in names(amount, FEW_HALTED, HALTED):
        case = CASES[name]
        result, own = run(case, config=config)
        findings.add(f"{name}/halted", collected(case, result, own))
        again = run(case, max_iter=result.n_iter, certify=False, tol=0.0)
        findings.add(f"{name}/limited", collected(case, *again))
    return findings


# Checkpoints ---------------------------------------------------------------------------------------------------------


def interrupt_at(k: int | None) -> Callable[[Any], None]:
    """Return a callback that makes a run fail in all processes in a round."""

    def callback(progress: Any) -> None:
        if progress.round == k:
            raise ElmeshError("Interrupted.")

    return callback


def chain(folder: Path, share: slice = slice(None)) -> Findings:
    """Resume where the job before this one was interrupted, and be interrupted as well, unless this is the last."""
    findings = Findings({}, {})
    for number, name in list(enumerate(names(amount, FEW_CHAIN, CHAIN)))[share]:
        case, saved = CASES[name], []
        checkpoint = CheckpointConfig(folder.parent / "chain" / str(number), every=2, callback=saved.append)
        config = RunConfig(callback=interrupt_at(ENDING_ROUNDS[world.size]), checkpoint=checkpoint)
        try:
            found = collected(case, *run(case, "scattered", config))
        except ElmeshError as error:
            found = Findings({}, {"error": str(error)})
        findings.add(name, Findings(found.arrays, {**found.notes, "saved": saved}))
    return findings


def full_disk(folder: Path) -> Findings:
    """Let the last rank's disk be full from a round on, then resume from what is there."""
    findings, case, saved = Findings({}, {}), CASES["admm, random"], []
    sync, full = os.fsync, False

    def callback(progress: Any) -> None:
        nonlocal full
        full = last and progress.round >= 6

    def failing_sync(descriptor: int) -> None:
        if full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        sync(descriptor)

    os.fsync = failing_sync
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", CheckpointWarning)
            checkpoint = CheckpointConfig(folder / "full", every=3, callback=saved.append)
            findings.add(
                "full", collected(case, *run(case, config=RunConfig(callback=callback, checkpoint=checkpoint)))
            )
    finally:
        os.fsync = sync
    messages = [str(warning.message).replace(str(folder), "FOLDER") for warning in caught]
    findings.notes["warnings"] = comm.allgather(messages)
    findings.notes["saved"] = comm.allgather(saved)
    checkpoint = CheckpointConfig(folder / "full", every=1000, callback=saved.append)
    findings.add("resumed", collected(case, *run(case, config=RunConfig(checkpoint=checkpoint))))
    findings.notes["resumed from"] = saved[-1]
    return findings


# Estimators ----------------------------------------------------------------------------------------------------------

MPI = RunConfig(backend="mpi")


def fitted(name: str, own: bool, config: RunConfig = MPI, **changes: object) -> tuple[Any, dict[str, np.ndarray]]:
    """Fit on all rows, or on those of this rank's own tasks."""
    kind, make = FITS[name]
    X, y, tasks = DATA[kind]()
    rows = rows_of(tasks, world.rank, world.size) if own else slice(None)
    estimator = make().set_params(**changes)
    estimator.fit(X[rows], y[rows], tasks=tasks[rows], run=config)
    here = np.isin(tasks, estimator.tasks_)
    predictions = {"rows": np.flatnonzero(here), "predicted": estimator.predict(X[here], tasks=tasks[here])}
    if kind == "classifier":
        predictions["classes"] = np.isin(["ant", "bee", "cat"], estimator.classes_)
        predictions["proba"] = estimator.predict_proba(X[here], tasks=tasks[here])
    return estimator, predictions


def estimators(folder: Path) -> Findings:
    findings = Findings({}, {})
    for name in names(amount, FEW_FITS, FITS):
        for way in ways(amount, name):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                estimator, predictions = fitted(name, way == "own rows")
            counts = comm.allgather(len([w for w in caught if "rounds" in str(w.message)]))
            whole = estimator.gather(MPI)
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
            for rank, theirs in enumerate(comm.allgather(predictions)):
                findings.add(f"{name}/{way}/{rank}", Findings({k: np.asarray(x) for k, x in theirs.items()}, {}))
            findings.notes[f"{name}/{way}"] = notes
    drawn, _ = fitted("regressor, dgsp", own=True, random_state=None)
    findings.notes["drawn seed"] = comm.allgather(drawn.seed_)
    generator, _ = fitted("regressor, dgsp", own=True, random_state=np.random.RandomState(world.rank))
    findings.notes["generator of each rank"] = comm.allgather(generator.seed_)
    return findings


def parts(folder: Path) -> Findings:
    """Fit the default solver, where every rank has its own sites or all rows."""
    findings = Findings({}, {})
    for name in names(amount, FEW_SITES, SITES):
        data, make, _ = SITES[name]
        X, y, sites = data()
        labels = np.unique(sites)
        own = {
            "scattered": labels[world.rank :: world.size],
            "uneven": labels[world.rank : world.rank + 1 if world.rank < world.size - 1 else None],
            "all rows": labels,
        }
        for placement in site_placements(amount, name):
            rows = np.isin(sites, own[placement])
            with known_noise():
                model = make().fit(X[rows], y[rows], tasks=sites[rows], run=MPI)
            found = found_parts(model)
            same = found["U"].tobytes() + found["W"].tobytes() + found["history"].tobytes()
            V = {t: x for part in comm.allgather(model.V_) for t, x in part.items()}
            noise = {t: x for part in comm.allgather(model.noise_) for t, x in part.items()}
            found |= {"V": np.stack([V[t] for t in labels]), "noise": np.stack([noise[t] for t in labels])}
            whole = model.gather(MPI)
            if whole is not None:
                found |= gathered_parts(whole, X, sites)
            notes = {"equal": len(set(comm.allgather(hashlib.sha256(same).hexdigest()))) == 1}
            findings.add(f"{name}/{placement}", Findings(found, notes))
    return findings


# Errors --------------------------------------------------------------------------------------------------------------


def regressor(inside: dict[str, Any] | None = None, **changes: Any) -> MultiTaskELMRegressor:
    """Return an estimator of the paper's problem, which takes rounds and needs two rows per task."""
    solver = MeshELM(common=False, private=False, **(inside or {}))
    return MultiTaskELMRegressor(**{"n_hidden": 10, "random_state": 0, "solver": solver, **changes})


def classifier() -> MultiTaskELMClassifier:
    return MultiTaskELMClassifier(n_hidden=10, random_state=0, solver=MeshELM(common=False, private=False))


def invalid_fits(folder: Path) -> dict[str, Callable[[], object]]:
    """Return fits that must fail, by name; each of three ranks calls them in turn."""
    X, y, tasks = DATA["regressor"]()
    rank, odd = world.rank, world.rank == 1
    rows = rows_of(tasks, rank, world.size)
    own = X[rows], y[rows], tasks[rows]
    names = ["a", "b", "c", "z" if odd else "d"]

    def fit(
        estimator: Any = None, X: Any = own[0], y: Any = own[1], tasks: Any = own[2], config: RunConfig = MPI
    ) -> None:
        (estimator or regressor()).fit(X, y, tasks=tasks, run=config)

    def with_one(x: float) -> np.ndarray:
        return np.where((np.arange(own[0].size).reshape(own[0].shape) == 5) & odd, x, own[0])

    def other_version() -> None:
        before = elmesh.estimators.base.__version__
        elmesh.estimators.base.__version__ = "0.0.1" if odd else before
        try:
            fit()
        finally:
            elmesh.estimators.base.__version__ = before

    def checkpointed(name: str, callback: Callable[[Any], None] | None = None) -> RunConfig:
        checkpoint = CheckpointConfig(folder / "invalid" / name, every=1)
        return RunConfig(backend="mpi", callback=callback, checkpoint=checkpoint)

    def prepare(name: str, change: Callable[[Path], object]) -> None:
        whole, copy = folder / "invalid" / "whole", folder / "invalid" / name
        if not comm.bcast(whole.exists()):
            with suppress(ElmeshError):
                fit(config=checkpointed("whole", interrupt_at(2)))
        if rank == 0:
            shutil.copytree(whole, copy)
            change(copy)
        comm.Barrier()

    def keep(where: Path) -> None:
        pass

    def remove(where: Path) -> None:
        next(where.glob("round-*/rank-0001*")).unlink()

    def damage(where: Path) -> None:
        file = next(where.glob("round-*/rank-0001*"))
        data = bytearray(file.read_bytes())
        data[-20] ^= 1
        file.write_bytes(data)

    def checkpoint_of(name: str, change: Callable[[Path], object] = keep, X: Any = own[0], **changes: Any) -> None:
        prepare(name, change)
        fit(regressor(**changes), X=X, config=checkpointed(name))

    shared = tasks == tasks[0]
    with_shared = rows | shared if rank < 2 else rows & ~shared
    return {
        "two ranks have a task": lambda: fit(None, X[with_shared], y[with_shared], tasks[with_shared]),
        "a rank has no rows": lambda: fit(None, *(x[: 0 if odd else None] for x in own)),
        "a rank has no tasks": lambda: MPIBackend(world).assign(MeshELM(), [] if odd else [f"task {rank}"], 0),
        "labels of two types": lambda: fit(None, tasks=np.arange(len(own[0])) // 6 if odd else own[2]),
        "more ranks than tasks": lambda: fit(None, X, y, np.where(tasks == tasks[0], "here", "there")),
        "another seed": lambda: fit(regressor(random_state=7 if odd else 0)),
        "another rank": lambda: fit(regressor(inside={"rank": 3 if odd else 2})),
        "another width": lambda: fit(regressor(n_hidden=11 if odd else 10)),
        "another intercept": lambda: fit(regressor(fit_intercept=not odd)),
        "other columns": lambda: fit(X=pd.DataFrame(own[0], columns=names)),
        "fewer columns": lambda: fit(X=own[0][:, : 3 if odd else 4]),
        "another version": other_version,
        "another estimator": lambda: fit(classifier() if odd else regressor(), y=np.round(own[1][:, 0])),
        "not a number": lambda: fit(X=with_one(np.nan)),
        "too large a number": lambda: fit(X=with_one(1e200)),
        "a task with a single row": lambda: fit(tasks=np.where((np.arange(len(own[2])) == 0) & odd, "single", own[2])),
        "an invalid seed": lambda: fit(regressor(random_state=-1 if odd else 0)),
        "an invalid rank": lambda: fit(regressor(inside={"rank": -1 if odd else 2})),
        "an invalid intercept": lambda: fit(regressor(fit_intercept="yes" if odd else True)),
        "an unknown backend": lambda: fit(config=RunConfig(backend="nonsense")),
        "a solver that needs all data": lambda: fit(regressor(solver="trace-norm")),
        "an unknown activation": lambda: fit(regressor(activation="nonsense")),
        "a checkpoint of another seed": lambda: checkpoint_of("seed", random_state=1),
        "a checkpoint of another rank": lambda: checkpoint_of("rank", inside={"rank": 2}),
        "a checkpoint of other data": lambda: checkpoint_of("data", X=with_one(0.125)),
        "a checkpoint without a file": lambda: checkpoint_of("missing", remove),
        "a checkpoint with a damaged file": lambda: checkpoint_of("damaged", damage),
        "an invalid checkpoint": lambda: checkpoint_of("none", lambda x: (x / "checkpoint.json").write_text("{")),
    }


def errors(folder: Path) -> Findings:
    notes: dict[str, Any] = {}
    for name, call in invalid_fits(folder).items():
        message = "no error"
        try:
            call()
        except Exception as error:
            message = f"{type(error).__name__}: {error}".replace(str(folder), "FOLDER")
        notes[name] = comm.allgather(message)
    # After all that, ranks are still in step.
    estimator, _ = fitted("regressor, mesh", own=True)
    return Findings({}, {**notes, "after": estimator.stop_.name})


# Transports ----------------------------------------------------------------------------------------------------------


def transports(folder: Path) -> Findings:
    """Run the checks of :mod:`helpers.transports` with every placement; note errors, and what must be equal."""
    notes: dict[str, Any] = {}
    for name, check in CHECKS.items():
        for placement in check_placements(amount, name):

            def open_(topology: Topology, bits: int | str, placement: str = placement) -> Member:
                ranks = placed(topology, placement, world.size)
                transport = MPITransport(world, topology, ranks, bits)
                return Member(transport, topology, transport.agents)

            error, result = "", b""
            try:
                result = check(open_)
            except AssertionError:
                error = traceback.format_exc()
            notes[f"{name}/{placement}"] = comm.allgather((error, result.hex()))
    return Findings({}, notes)


# Messages ------------------------------------------------------------------------------------------------------------


class Recorder:
    """A communicator that records every byte that this process passes to MPI."""

    # Methods whose first argument is sent. A method in none of these lists is refused.
    SENDS = (
        "Send",
        "Isend",
        "Allgather",
        "Iallgather",
        "Allgatherv",
        "Iallgatherv",
        "Gatherv",
        "Allreduce",
        "Iallreduce",
    )
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
            return lambda buffer, *rest: PersistentMessage(method(buffer, *rest), buffer, self._log)
        if name not in self.SILENT:
            raise NotImplementedError(f"The recorder does not know what {name} sends.")
        return method


class PersistentMessage:
    """A persistent message, whose buffer is recorded each time it is started."""

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


def rows_in(arrays: Iterable[np.ndarray]) -> set[bytes]:
    """Return every two adjacent numbers of a row, as they would be sent."""
    both = _adjacent([np.atleast_2d(x) for x in arrays])
    # Two equal numbers, such as zeros, do not identify where they are from.
    return _each(both[both[:, 0] != both[:, 1]])


def pairs(arrays: Iterable[np.ndarray]) -> set[bytes]:
    """Return every two adjacent numbers of a row or of a column."""
    return rows_in([table for x in arrays for table in (np.atleast_2d(x), np.atleast_2d(x).T)])


def integers(arrays: Iterable[np.ndarray]) -> set[bytes]:
    """Return every two adjacent numbers of a row or of a column as integers, as sums of integers would send them."""
    tables = [np.atleast_2d(np.asarray(x, dtype=np.float64)) for x in arrays]
    both = _adjacent([table for x in tables for table in (x, x.T)])
    wide = np.concatenate([to_wide(x).reshape(-1, LIMBS) for x in tables])
    found = {limbs[1:].tobytes() for limbs in wide if limbs[1] and limbs[2]}
    for exponent in range(20, 80):
        sizes = np.abs(np.ldexp(both, exponent))
        # Larger ones do not fit; small integers may be anything.
        usable = np.all((sizes < 2.0**62) & (sizes > 2.0**16), axis=1)
        found |= _each(to_scaled(both[usable], exponent))
    return found


def _adjacent(tables: Sequence[np.ndarray]) -> np.ndarray:
    """Return every two adjacent numbers of all rows of tables."""
    both = [np.stack([x[:, :-1], x[:, 1:]], axis=-1).reshape(-1, 2) for x in tables]
    return np.concatenate([np.empty((0, 2)), *both], dtype="<f8")


def _each(numbers: np.ndarray) -> set[bytes]:
    """Return the bytes of each row of two numbers."""
    return set(np.ascontiguousarray(numbers).view("V16").ravel().tolist())


def texts(values: np.ndarray) -> set[bytes]:
    """Return numbers as text, without those of a few digits, which may be anything."""
    return {text.encode() for text in map(repr, np.ravel(values).tolist()) if len(text) > 12}


def privacy(folder: Path) -> Findings:
    """Search for private numbers in all that a fit passes to MPI; note how many of each kind are there."""
    X, y, tasks = DATA["regressor"]()
    notes: dict[str, Any] = {}
    for name in RECORDED:
        rows = rows_of(tasks, world.rank, world.size)
        if name == "mesh with three parts":
            # Ranks add up integers of their own tasks before they send them: with one task each, nothing is hidden.
            rows = tasks == np.unique(tasks)[-1 - world.rank]
        log: list[bytes] = []
        seen: dict[str, list[Any]] = {"sums": [], "integers": [], "tasks": []}
        with recorded(log, seen):
            config = RunConfig(backend=RecordingBackend(world, seen["tasks"]))
            estimator = FITS[f"regressor, {name}"][1]().fit(X[rows], y[rows], tasks=tasks[rows], run=config)
        own, scale = estimator.tasks_, estimator.target_scale_
        H = estimator.model_.layer(X[rows])
        heads = [estimator.model_.heads[t] for t in own]
        A = [estimator.A_[t] for t in own]
        private = {
            "X": [X[rows]],
            "H": [H, *(H[tasks[rows] == t] - H[tasks[rows] == t].mean(axis=0) for t in own)],
            "y": [y[rows], y[rows] / scale],
            "A": A + [x / scale for x in A],
        }
        # The statistics that a run is given: decomposed rows, or with features in groups the rows.
        for part in ("V", "s", "Y") if estimator.V_ is None else ("Phi", "T"):
            private[part] = [getattr(task, part) for task in seen["tasks"]]
        if estimator.V_ is None:
            private["means"] = [mean for head in heads for mean in (head.h_mean, head.t_mean)]
            private["weights"] = [head.U @ head.A for head in heads]
            public = {"U": [head.U for head in heads], "columns": [heads[0].U.T], "sums": seen["sums"]}
        else:
            private["y"].append((y[rows] - heads[0].t_mean) / scale)
            private["private part"] = [x for t in own for x in (estimator.V_[t], estimator.V_[t] / scale)]
            private["weights"] = [x for head in heads for x in (head.A, head.A / scale)]
            private["whitened rows"] = [head.X for head in heads]
            public = {"integers": seen["integers"]}
        sent = b"|".join(log)
        windows = set(np.ndarray(len(sent) - 15, "V16", sent, strides=(1,)).tolist())

        def seen_of(
            values: list[np.ndarray], parts: Callable[..., set[bytes]], within: set[bytes] = windows
        ) -> list[int]:
            wanted = parts(values)
            return [len(wanted & within), len(wanted)]

        notes[name] = comm.allgather(
            {
                "bytes": len(sent),
                "private": {what: seen_of(values, pairs) for what, values in private.items()},
                "as integers": {what: seen_of(values, integers) for what, values in private.items()},
                "public": {what: seen_of(values, rows_in) for what, values in public.items()},
                "as text": {what: sum(t in sent for x in values for t in texts(x)) for what, values in private.items()},
            }
        )
    return Findings({}, notes)


def beside_the_release(folder: Path) -> Findings:
    """Record what ranks exchange in private fits of two tables that have nothing in common, but for the release."""
    X, y, tasks = DATA["regressor"]()
    rows, rng, found = rows_of(tasks, world.rank, world.size), np.random.default_rng(5), []
    for masked in (False, True):
        for inputs, targets in ((X, y), (rng.normal(size=X.shape), rng.normal(size=y.shape))):
            log: list[bytes] = []
            seen: dict[str, list[Any]] = {"sums": [], "integers": []}
            with recorded(log, seen):
                model = MultiTaskELMRegressor(12, solver=PRIVATE, random_state=0)
                config = RunConfig(backend=MPIBackend(world, mask=masked))
                model.fit(inputs[rows], targets[rows], tasks=tasks[rows], run=config)
            released = [value.tobytes() for value in seen["integers"]]
            # Masks and keys are other ones every time.
            rest = [data for data in log if masked or not any(value in data for value in released)]
            found.append({"releases": len(released), "rest": [len(x) if masked else x.hex() for x in rest]})
    return Findings({}, {"found": comm.allgather(found)})


class RecordingBackend(MPIBackend):
    """A backend that records the tasks that a run is given."""

    def __init__(self, world: Any, tasks: list[Statistics]) -> None:
        super().__init__(world)
        self._tasks = tasks

    def run(self, fit: FitContext, tasks: Sequence[Statistics]) -> RunResult:
        self._tasks.extend(tasks)
        return super().run(fit, tasks)


@contextmanager
def recorded(log: list[bytes], seen: dict[str, list[Any]]) -> Iterator[None]:
    """Record all that is passed to MPI, and the sums that it returns."""
    allreduce, integer_sum = MPITransport.allreduce, MPITransport.integer_sum

    def recording(self: MPITransport, request: Any) -> Any:
        result = allreduce(self, request)
        seen["sums"].append(result.value)
        return result

    def recording_integers(self: MPITransport, request: Any) -> Any:
        # Their bits, as if they were numbers of the other kind.
        seen["integers"].append(request.value.view(np.float64))
        return integer_sum(self, request)

    world.comm, MPITransport.allreduce, MPITransport.integer_sum = Recorder(comm, log), recording, recording_integers
    try:
        yield
    finally:
        world.comm, MPITransport.allreduce, MPITransport.integer_sum = comm, allreduce, integer_sum


# A rank that fails alone ---------------------------------------------------------------------------------------------


def failing(folder: Path) -> Findings:
    def callback(progress: Any) -> None:
        if last and progress.round == 3:
            raise RuntimeError("An error of one rank.")

    run(CASES["admm, ring"], config=RunConfig(callback=callback))
    return Findings({}, {})


_ALL = (
    solvers,
    halting,
    chain,
    alone,
    full_disk,
    estimators,
    parts,
    errors,
    transports,
    privacy,
    beside_the_release,
    failing,
)
PARTS = {part.__name__: part for part in _ALL}


def main() -> None:
    folder = Path(sys.argv[1])
    for name in sys.argv[3:]:
        findings = PARTS[name](folder)
        if world.rank == 0:
            findings.save(folder, name)


if __name__ == "__main__":
    main()
