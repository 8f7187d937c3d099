"""Backends: where a fit runs, which tasks there are, and which process has which."""

from __future__ import annotations

import hashlib
import json
import sys
import traceback
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from elmesh.comm.communicator import SERIAL, Communicator, merge_by_task
from elmesh.comm.graph import Topology, make_topology
from elmesh.comm.integer_sums import run_sums, sum_wide
from elmesh.comm.local import LocalTransport
from elmesh.comm.mpi import MPICommunicator, MPITransport, world_communicator
from elmesh.comm.requests import AllReduce, HubReduce, IntegerSum, NeighborSum, NoisySum, Request, Topic
from elmesh.comm.row_counts import round_down, sure_rows
from elmesh.data.statistics import SiteRows, Statistics, Task
from elmesh.errors import ElmeshError
from elmesh.math.blas import limit_blas_threads
from elmesh.privacy.discrete_gaussian import NoiseSource
from elmesh.privacy.report import ReleasedTotal
from elmesh.run.batches import cache_batches, shape_batches
from elmesh.run.checkpoints import CheckpointStore
from elmesh.run.config import RunConfig
from elmesh.run.placement import place_agents
from elmesh.run.result import RunResult
from elmesh.run.runner import LocalAgents, agent_context, run_solver
from elmesh.solvers.base import AgentContext, GroupedFeatures, Problem, Solver
from elmesh.text import abbreviated
from elmesh.typing import FloatArray, IndexArray, IntArray, Label

if TYPE_CHECKING:
    from elmesh.comm.mpi.masks import MaskedRanks

__all__ = [
    "Assignment",
    "Backend",
    "FitContext",
    "LocalBackend",
    "MPIBackend",
    "check_consistent",
    "make_problem",
    "resolve_backend",
    "run_local",
]

_DEFAULT = RunConfig()


@dataclass(frozen=True, eq=False)
class Assignment:
    """The tasks of a fit, and who has which."""

    labels: list[Label]  # all tasks, sorted
    own: list[Label]  # those of this process, sorted
    topology: Topology | None  # the graph of agents; None where tasks are not agents of a graph
    ranks: IndexArray  # the process of each task
    rank: int = 0  # this process

    @property
    def degree(self) -> FloatArray:
        """Number of neighbours of each agent of this process."""
        if self.topology is None:
            return np.zeros(len(self.own))
        return np.asarray(self.topology.degree[self.ranks == self.rank], dtype=np.float64)


@dataclass(frozen=True, eq=False)
class FitContext:
    """One fit: the solver, who has which tasks, the seed, and what is fitted.

    ``fields`` describe what is fitted, in plain JSON, for checks between processes and for checkpoints; ``features``
    are given where they come in groups.
    """

    solver: Solver
    assignment: Assignment
    seed: int
    fields: Mapping[str, Any]
    config: RunConfig
    features: GroupedFeatures | None = None


class Backend(ABC):
    """Where a fit runs, seen from one process."""

    #: For messages.
    description: str
    #: Whether all tasks are in this process.
    in_one_place: ClassVar[bool] = False
    #: Whether targets are scaled by declared ranges, before the fit.
    scales_targets: ClassVar[bool] = False
    #: Whether BLAS must use one thread, so that results do not depend on the number of cores.
    one_thread: ClassVar[bool] = True

    @property
    @abstractmethod
    def communicator(self) -> Communicator:
        """The processes that take part."""

    @property
    def masked(self) -> bool:
        """Whether sums are masked; then nothing else is exchanged."""
        return False

    @property
    def most_rows(self) -> int | None:
        """Most rows of any task, if that is declared; None if rows may be counted."""
        return None

    @property
    def released(self) -> tuple[ReleasedTotal, ...]:
        """Totals that were released with noise before the fit."""
        return ()

    @property
    def provides(self) -> Set[type[Request]]:
        """Kinds of request that the transport answers."""
        sums = frozenset({AllReduce, IntegerSum, NoisySum})
        return sums if self.masked else sums | {NeighborSum, HubReduce}

    def sum_over_tasks(self, values: Mapping[Label, FloatArray]) -> FloatArray:
        """Return the sum of one array per task over the tasks of all processes, before a fit."""
        if self.masked:
            own = np.stack([np.ravel(value) for value in values.values()])
            total = run_sums(sum_wide(own, Topic.STATISTICS), self._sum_integers)
            return total.reshape(next(iter(values.values())).shape)
        every = merge_by_task(self.communicator, {task: value.tolist() for task, value in values.items()})
        return np.asarray(np.sum([np.asarray(value, dtype=np.float64) for value in every.values()], axis=0))

    def sure_rows(self, rows: Mapping[Label, int]) -> int:
        """Return how many rows tasks that do not collude have at least, from the number of each task here."""
        return sure_rows(list(merge_by_task(self.communicator, {t: round_down(n) for t, n in rows.items()}).values()))

    def noisy_sum_over_tasks(self, values: Mapping[Label, IntArray], sigma: IntArray, rho: float) -> IntArray:
        """Return the sum of integers over the tasks of all processes, each with noise of its own, before a fit.

        ``sigma`` is the standard deviation of the noise that each task adds, and ``rho`` what the sum costs.
        """
        noise = NoiseSource.fresh()
        terms = [value + noise.draw(repr(task).encode(), sigma) for task, value in values.items()]
        return self._sum_integers(IntegerSum(np.sum(terms, axis=0), Topic.PRIVATE, rho=rho))

    def _sum_integers(self, request: IntegerSum) -> IntArray:
        """Return a sum over all processes, before a fit."""
        return request.value

    def check(self, solver: Solver) -> None:
        """Raise if a solver requires what this backend does not provide."""
        if solver.pooled and not self.in_one_place:
            raise ElmeshError(
                f"{solver.name} needs all data in one place, which {self.description} does not offer; use a solver "
                "whose tasks exchange messages, such as mesh-elm."
            )
        missing = sorted(request.__name__ for request in set(solver.requires) - set(self.provides))
        if missing:
            raise ElmeshError(
                f"{solver.name} requires {' and '.join(missing)}, which {self.description} does not provide; use "
                "another solver, such as mesh-elm."
            )

    @abstractmethod
    def assign(self, solver: Solver, labels: Sequence[Label], seed: int) -> Assignment:
        """Return which tasks there are and who has which; ``labels`` are those that this process has rows of."""

    @abstractmethod
    def run(self, fit: FitContext, tasks: Sequence[Statistics]) -> RunResult:
        """Run a fit's solver on this process's tasks, in their order."""


class LocalBackend(Backend):
    """All agents in this process.

    Parameters
    ----------
    mask : bool, default=False
        Whether the simulated communication is that of masked sums: the same numbers as with masks, and their traffic.
    """

    description = "a single process"
    in_one_place: ClassVar[bool] = True
    communicator: Communicator = SERIAL
    one_thread: ClassVar[bool] = False

    def __init__(self, mask: bool = False) -> None:
        self._mask = mask

    @property
    def masked(self) -> bool:
        """Whether sums are masked."""
        return self._mask

    def assign(self, solver: Solver, labels: Sequence[Label], seed: int) -> Assignment:
        """Return all tasks."""
        topology = make_topology(solver.graph, labels, seed) if solver.distributed else None
        return Assignment(list(labels), list(labels), topology, np.zeros(len(labels), dtype=np.intp))

    def run(self, fit: FitContext, tasks: Sequence[Statistics]) -> RunResult:
        """Run a solver on all tasks, stacked."""
        assignment, fields = fit.assignment, {**fit.fields, "backend": "local"}
        return run_local(
            fit.solver,
            _rows_of(tasks) if fit.features else Task.stack(_decomposed(tasks)),
            assignment.topology,
            fit.seed,
            fit.config,
            assignment.labels,
            fields,
            fit.features,
            self._mask,
        )


def run_local(
    solver: Solver,
    data: Task | Sequence[SiteRows],
    topology: Topology | None,
    seed: int,
    config: RunConfig = _DEFAULT,
    labels: Sequence[Label] | None = None,
    fields: Mapping[str, Any] | None = None,
    features: GroupedFeatures | None = None,
    masked: bool = False,
) -> RunResult:
    """Run a solver on all tasks in this process.

    Parameters
    ----------
    solver : Solver
        What to run.
    data : Task or sequence of SiteRows
        All tasks, stacked; where features come in groups, the rows of all sites.
    topology : Topology or None
        The graph of agents; None for all tasks in one place.
    seed : int
        The seed that agents share.
    config : RunConfig
        Callback and checkpoints.
    labels : sequence, optional
        The tasks' labels, for messages.
    fields : mapping, optional
        What the run is of, in plain JSON, for checkpoints.
    features : GroupedFeatures, optional
        Where features come in groups.
    masked : bool
        Whether sums are masked.
    """
    single = [data.agent(t) for t in range(len(data.s))] if isinstance(data, Task) else data
    m, rank, width = len(single), solver.resolve_rank(data), single[0].width
    graph = topology or Topology(1, np.empty((0, 2), dtype=np.intp))
    batches = [np.arange(m)]
    if isinstance(data, Task) and solver.per_agent_basis:
        batches = cache_batches(data)
    contexts = [agent_context(graph, seed, batch if topology else None) for batch in batches]
    if isinstance(data, Task):
        parts = [data.agents(batch[0], batch[-1] + 1) for batch in batches]
        problems = [Problem(part, context, rank) for part, context in zip(parts, contexts, strict=True)]
        longest = data.s.shape[-1]
    else:
        given = features or GroupedFeatures(np.ones(width, dtype=np.intp))
        problems = [given.problem(data, contexts[0], rank)]
        longest = max(len(site.Phi) for site in data)
    degree = topology.degree.tolist() if topology else [0] * m
    agents = LocalAgents(range(m), labels or range(m), single, degree, batches, problems)
    return run_solver(
        solver,
        agents,
        LocalTransport(graph, solver.message_bits, masked and topology is not None, NoiseSource.fresh()),
        zero_objective=float(np.sum([task.target_energy for task in single])) / 2,
        threads=limit_blas_threads(width, longest, max(rank, 1)),
        callback=config.callback,
        store=_store(config, {**(fields or {}), "rank": rank}, agents, SERIAL),
    )


class MPIBackend(Backend):
    """Agents spread over the processes of an MPI job.

    Parameters
    ----------
    world : MPICommunicator, optional
        The processes; by default all of the job.
    mask : bool, default=False
        Whether sums are masked, so that no process learns anything of another's rows but totals. Labels of tasks and
        names of classes are exchanged as they are.
    """

    def __init__(self, world: MPICommunicator | None = None, mask: bool = False) -> None:
        self._given, self._mask = world, mask
        self._masks: MaskedRanks | None = None
        self.description = "an MPI job with masked sums" if mask else "an MPI job"

    @property
    def masked(self) -> bool:
        """Whether sums are masked."""
        return self._mask

    def _sum_integers(self, request: IntegerSum) -> IntArray:
        """Return a sum over all processes, before a fit."""
        if not self._mask:
            return self.communicator.allreduce_sum(request.value)
        self._masks = self._masks or self.communicator.mask()
        return self._masks.sum(request)

    @property
    def communicator(self) -> MPICommunicator:
        """The processes that take part; MPI starts when they are first needed."""
        return self._given or world_communicator()

    def assign(self, solver: Solver, labels: Sequence[Label], seed: int) -> Assignment:
        """Place agents: each process has its own tasks, or all have all and share them out."""
        world = self.communicator
        by_rank = world.allgather(list(labels))
        if len({type(label) for part in by_rank for label in part}) > 1:
            raise ElmeshError(
                "Ranks have different types of task labels: some have text and some have numbers; use one of them."
            )
        holders: dict[Label, list[int]] = {}
        for rank, part in enumerate(by_rank):
            for label in part:
                holders.setdefault(label, []).append(rank)
        everything = sorted(holders)
        topology = make_topology(solver.graph, everything, seed) if solver.distributed else None
        if world.size == 1:
            ranks = np.zeros(len(everything), dtype=np.intp)
        elif all(len(found) == world.size for found in holders.values()):
            # Rank 0 decides, so that the result does not depend on what each process has installed.
            placed = place_agents(topology or make_topology("path", everything), world.size)
            ranks = np.array(world.allgather(placed.tolist())[0], dtype=np.intp)
        else:
            ranks = _ranks_of(holders, everything, world.size)
        own = [label for label, rank in zip(everything, ranks.tolist(), strict=True) if rank == world.rank]
        return Assignment(everything, own, topology, ranks, world.rank)

    def run(self, fit: FitContext, tasks: Sequence[Statistics]) -> RunResult:
        """Run a solver on this process's tasks, together with the other processes."""
        world, solver, assignment = self.communicator, fit.solver, fit.assignment
        topology = assignment.topology
        if topology is None:  # tasks that exchange no messages
            topology = make_topology("path", assignment.labels)
        rank = self._agree_on_rank(solver, dict(zip(assignment.own, tasks, strict=True)))
        noise = NoiseSource.fresh()
        transport = MPITransport(world, topology, assignment.ranks, solver.message_bits, self._mask, noise)
        # The numbers of sites do not depend on how many are in a batch; those of tasks that are stacked do.
        batches = [np.arange(len(tasks))] if fit.features else shape_batches(_decomposed(tasks))
        problems = [
            make_problem(
                fit.features,
                [tasks[k] for k in batch.tolist()],
                agent_context(topology, fit.seed, transport.agents[batch]),
                rank,
            )
            for batch in batches
        ]
        numbers = transport.agents.tolist()
        degree = topology.degree[transport.agents].tolist()
        agents = LocalAgents(numbers, assignment.own, tasks, degree, batches, problems)
        energy = self._energy(dict(zip(assignment.own, tasks, strict=True))) if solver.privacy is None else 0.0
        with _abort_on_error(world), world.monitored():
            return run_solver(
                solver,
                agents,
                transport,
                zero_objective=energy / 2,
                threads=limit_blas_threads(always=True),
                callback=fit.config.callback,
                store=_store(fit.config, {**fit.fields, "backend": "mpi", "rank": rank}, agents, world),
                lookahead=True,
            )

    def _energy(self, tasks: Mapping[Label, Statistics]) -> float:
        """Return the squared norm of all tasks' targets."""
        energies = {t: np.array([float(task.target_energy)]) for t, task in tasks.items()}
        return float(self.sum_over_tasks(energies)[0])

    def _agree_on_rank(self, solver: Solver, tasks: Mapping[Label, Statistics]) -> int:
        """Return the number of columns of U, from what all tasks together can use; only rank 0 warns."""
        if solver.privacy is not None:
            return 0
        outputs = max(self.communicator.allgather(max(task.outputs for task in tasks.values())))
        own = {label: np.array([float(solver.directions(task))]) for label, task in tasks.items()}
        directions = round(float(self.sum_over_tasks(own)[0]))
        with warnings.catch_warnings():
            if self.communicator.rank:
                warnings.simplefilter("ignore")
            return solver.rank_for(outputs, next(iter(tasks.values())).width, directions)


def resolve_backend(backend: str | Backend) -> Backend:
    """Return a backend from itself or from its name."""
    if isinstance(backend, Backend):
        return backend
    if backend == "local":
        return LocalBackend()
    if backend == "mpi":
        return MPIBackend()
    raise ElmeshError(f'backend must be "local", "mpi" or a Backend; got {backend!r}.')


def check_consistent(communicator: Communicator, fields: Mapping[str, Any]) -> None:
    """Raise, in all processes, if one of them differs in a field; the message names the rank and the field.

    Examples
    --------
    >>> check_consistent(SERIAL, {"seed": 0})
    """
    text = json.dumps(fields, sort_keys=True)
    digests = communicator.allgather(hashlib.sha256(text.encode()).hexdigest())
    if len(set(digests)) == 1:
        return
    by_rank: list[dict[str, Any]] = communicator.allgather(json.loads(text))
    usual = max(digests, key=digests.count)
    rank = next(rank for rank, digest in enumerate(digests) if digest != usual)
    other = digests.index(usual)
    name = next(name for name in by_rank[other] if by_rank[rank].get(name) != by_rank[other][name])
    raise ElmeshError(
        f"Rank {rank} differs from rank {other} in {name}: {abbreviated(by_rank[rank].get(name))} and "
        f"{abbreviated(by_rank[other][name])}; start all ranks with the same data columns, parameters and version."
    )


def _ranks_of(holders: Mapping[Label, Sequence[int]], labels: Sequence[Label], size: int) -> IndexArray:
    """Return the process of each task where every process has its own; raise if one has none or two have the same."""
    twice = next((label for label in labels if len(holders[label]) > 1), None)
    if twice is not None:
        first, second = holders[twice][:2]
        raise ElmeshError(
            f"Task {twice!r} is on ranks {first} and {second}; give each rank the rows of its own tasks, or all "
            "ranks all rows."
        )
    ranks = np.array([holders[label][0] for label in labels], dtype=np.intp)
    idle = sorted(set(range(size)) - set(ranks.tolist()))
    if idle:
        raise ElmeshError(f"Rank {idle[0]} has no tasks; each rank needs at least one of its own.")
    return ranks


def make_problem(
    features: GroupedFeatures | None, tasks: Sequence[Statistics], context: AgentContext, rank: int
) -> Problem:
    """Return the problem of tasks, stacked; of sites where features come in groups."""
    if features is None:
        return Problem(Task.stack(_decomposed(tasks)), context, rank)
    return features.problem(_rows_of(tasks), context, rank)


def _decomposed(tasks: Sequence[Statistics]) -> list[Task]:
    return [task for task in tasks if isinstance(task, Task)]


def _rows_of(tasks: Sequence[Statistics]) -> list[SiteRows]:
    return [task for task in tasks if isinstance(task, SiteRows)]


def _store(
    config: RunConfig, fields: Mapping[str, Any], agents: LocalAgents, communicator: Communicator
) -> CheckpointStore | None:
    return None if config.checkpoint is None else CheckpointStore(config.checkpoint, fields, agents, communicator)


@contextmanager
def _abort_on_error(world: MPICommunicator) -> Iterator[None]:
    """End the whole job if this process alone fails within a run: the others would wait for it endlessly."""
    try:
        yield
    except ElmeshError:
        raise  # what is wrong with the fit itself is raised in all processes
    except BaseException:
        if world.size > 1:
            traceback.print_exc(file=sys.stderr)
            sys.stderr.write(f"elmesh: rank {world.rank} failed, so all ranks end.\n")
            sys.stderr.flush()
            world.abort(1)
        raise
