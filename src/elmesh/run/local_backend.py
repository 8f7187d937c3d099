"""All agents in one process, whose communication is simulated and counted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from elmesh.comm.communicator import SERIAL, Communicator
from elmesh.comm.graph import Topology, make_topology
from elmesh.comm.local import LocalTransport
from elmesh.comm.requests import IntegerSum
from elmesh.comm.row_counts import fewest_terms
from elmesh.data.statistics import SiteRows, Statistics, Task
from elmesh.math.blas import limit_blas_threads
from elmesh.privacy.discrete_gaussian import NoiseSource
from elmesh.run.backend import Assignment, Backend, FitContext, checkpoint_store, decomposed, rows_of
from elmesh.run.batches import cache_batches
from elmesh.run.config import RunConfig
from elmesh.run.result import RunResult
from elmesh.run.runner import LocalAgents, agent_context, run_solver
from elmesh.solvers.base import GroupedFeatures, Problem, Solver
from elmesh.typing import IntArray, Label

__all__ = ["LocalBackend", "run_local"]

_DEFAULT = RunConfig()


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

    def _sum_integers(self, request: IntegerSum) -> IntArray:
        """Return a sum over all tasks, which are in this process."""
        return request.value

    def assign(self, solver: Solver, labels: Sequence[Label], seed: int) -> Assignment:
        """Return all tasks."""
        topology = make_topology(solver.graph, labels, seed) if solver.distributed else None
        return Assignment(list(labels), list(labels), topology, np.zeros(len(labels), dtype=np.intp))

    def run(self, fit: FitContext, tasks: Sequence[Statistics]) -> RunResult:
        """Run a solver on all tasks, stacked."""
        assignment, fields = fit.assignment, {**fit.fields, "backend": "local"}
        return run_local(
            fit.solver,
            rows_of(tasks) if fit.features else Task.stack(decomposed(tasks)),
            assignment.topology,
            fit.seed,
            fit.config,
            assignment.labels,
            fields,
            fit.features,
            # Without a message no keys are exchanged either.
            self._mask and not fit.alone,
            alone=fit.alone,
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
    *,
    alone: bool = False,
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
    alone : bool
        Whether each task has a solution of its own, and nothing is sent.
    """
    single = [data.agent(t) for t in range(len(data.s))] if isinstance(data, Task) else data
    m, rank, width = len(single), solver.resolve_rank(data), single[0].width
    graph = topology or Topology(1, np.empty((0, 2), dtype=np.intp))
    batches = [np.arange(m)]
    if isinstance(data, Task) and solver.per_agent_basis:
        batches = cache_batches(data)
    fewest = fewest_terms(graph.n_agents) if masked else 1
    contexts = [agent_context(graph, seed, batch if topology else None, fewest) for batch in batches]
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
        alone=alone,
        store=checkpoint_store(config, {**(fields or {}), "rank": rank}, agents, SERIAL),
    )
