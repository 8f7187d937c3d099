"""What a backend is: where a fit runs, which tasks there are, and which process has which."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from elmesh.comm.communicator import Communicator, merge_by_task
from elmesh.comm.graph import Topology
from elmesh.comm.integer_sums import run_sums, sum_wide
from elmesh.comm.requests import AllReduce, HubReduce, IntegerSum, NeighborSum, NoisySum, Request, Topic
from elmesh.comm.row_counts import fewest_terms, round_down, sure_rows
from elmesh.data.statistics import SiteRows, Statistics, Task
from elmesh.errors import ElmeshError
from elmesh.privacy.discrete_gaussian import NoiseSource
from elmesh.privacy.report import ReleasedTotal
from elmesh.run.checkpoints import CheckpointStore
from elmesh.run.config import RunConfig
from elmesh.run.result import RunResult
from elmesh.run.runner import LocalAgents
from elmesh.solvers.base import AgentContext, GroupedFeatures, Problem, Solver
from elmesh.text import abbreviated
from elmesh.typing import FloatArray, IndexArray, IntArray, Label

__all__ = [
    "Assignment",
    "Backend",
    "FitContext",
    "check_consistent",
    "checkpoint_store",
    "decomposed",
    "make_problem",
    "rows_of",
]


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
    are given where they come in groups. With ``alone`` nothing is sent.
    """

    solver: Solver
    assignment: Assignment
    seed: int
    fields: Mapping[str, Any]
    config: RunConfig
    features: GroupedFeatures | None = None
    alone: bool = False


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
    def colluders(self) -> int | None:
        """How many sites may collude; None if nothing is stated."""
        return None

    def fewest_terms(self, n_tasks: int) -> int:
        """Return of how many of so many tasks a sum over some of them must have terms: of one, if it is not masked."""
        return fewest_terms(n_tasks, self.colluders) if self.masked else 1

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
        """Return the sum of one array per task over the tasks of all processes, outside of a run."""
        if self.masked:
            own = np.stack([np.ravel(value) for value in values.values()])
            total = run_sums(sum_wide(own, Topic.STATISTICS), self._sum_integers)
            return total.reshape(next(iter(values.values())).shape)
        every = merge_by_task(self.communicator, {task: value.tolist() for task, value in values.items()})
        return np.asarray(np.sum([np.asarray(value, dtype=np.float64) for value in every.values()], axis=0))

    def sum_after_run(self, values: Mapping[Label, FloatArray]) -> FloatArray:
        """Return the sum of one array per task over the tasks of all processes that are still connected."""
        return self.sum_over_tasks(values)

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
        """Return a sum over all processes, outside of a run."""
        raise TypeError(f"In {self.description} there are sums within a run only.")

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


def check_consistent(communicator: Communicator, fields: Mapping[str, Any]) -> None:
    """Raise, in all processes, if one of them differs in a field; the message names the rank and the field.

    Examples
    --------
    >>> from elmesh.comm.communicator import SERIAL
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


def make_problem(
    features: GroupedFeatures | None, tasks: Sequence[Statistics], context: AgentContext, rank: int
) -> Problem:
    """Return the problem of tasks, stacked; of sites where features come in groups."""
    if features is None:
        return Problem(Task.stack(decomposed(tasks)), context, rank)
    return features.problem(rows_of(tasks), context, rank)


def decomposed(tasks: Sequence[Statistics]) -> list[Task]:
    """Return statistics as those of tasks, which all of them are."""
    return [task for task in tasks if isinstance(task, Task)]


def rows_of(tasks: Sequence[Statistics]) -> list[SiteRows]:
    """Return statistics as rows of sites, which all of them are."""
    return [task for task in tasks if isinstance(task, SiteRows)]


def checkpoint_store(
    config: RunConfig, fields: Mapping[str, Any], agents: LocalAgents, communicator: Communicator
) -> CheckpointStore | None:
    """Return where a run saves its checkpoints, if it is to have any."""
    return None if config.checkpoint is None else CheckpointStore(config.checkpoint, fields, agents, communicator)
