"""Run a solver on the agents of this process, over any transport."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from elmesh.comm.graph import Topology
from elmesh.comm.transport import Transport
from elmesh.data.statistics import Statistics
from elmesh.run.array_io import SavedRun
from elmesh.run.batches import join_programs, join_solutions
from elmesh.run.monitor import RoundSnapshot, RunMonitor
from elmesh.run.result import Progress, RunHistory, RunResult
from elmesh.solvers.base import AgentContext, Problem, Program, Solution, Solver, rounds
from elmesh.solvers.local_elm import solve_alone
from elmesh.solvers.state import SolverState, StateDict
from elmesh.typing import IndexArray

__all__ = ["LocalAgents", "SnapshotStore", "agent_context", "run_solver"]


@dataclass(frozen=True, eq=False)
class LocalAgents:
    """The agents of one process."""

    agents: Sequence[int]  # their numbers, increasing
    labels: Sequence[object]  # of their tasks
    tasks: Sequence[Statistics]
    degree: Sequence[int]  # numbers of neighbours
    batches: Sequence[IndexArray]  # places of agents that are computed together
    problems: Sequence[Problem]  # one per batch


class SnapshotStore(Protocol):
    """Where a run's snapshots are saved, and what it resumes from."""

    def latest(self, remote: Sequence[int] = ()) -> SavedRun | None:
        """Return the newest saved run, if any."""

    def save(self, snapshot: RoundSnapshot, history: Callable[[], RunHistory]) -> None:
        """Save a snapshot if it is time to."""


def agent_context(
    topology: Topology, seed: int, agents: IndexArray | None = None, fewest_terms: int = 1
) -> AgentContext:
    """Return what all agents, or some of them, know of the graph; a sum must have terms of so many agents."""
    chosen = np.arange(topology.n_agents) if agents is None else np.asarray(agents, dtype=np.intp)
    low, high = topology.spread
    return AgentContext(
        topology.n_agents,
        chosen,
        topology.degree.astype(np.float64)[chosen],
        float(np.sqrt(low * high)),
        topology.averaging_roots,
        seed,
        fewest_terms,
    )


def run_solver(
    solver: Solver,
    agents: LocalAgents,
    transport: Transport,
    *,
    zero_objective: float,
    threads: AbstractContextManager[object],
    callback: Callable[[Progress], bool | None] | None = None,
    store: SnapshotStore | None = None,
    lookahead: bool = False,
    alone: bool = False,
) -> RunResult:
    """Run a solver on the agents of this process; return their solution, and what is the same in every process.

    ``zero_objective`` is the objective at zero weights, over all agents, and ``threads`` limits BLAS threads. With
    ``lookahead`` rounds continue while metrics are pending. With ``alone`` nothing is sent, and each task has a
    solution of its own.
    """
    rank = agents.problems[0].rank

    def program(states: Sequence[SolverState | None]) -> Program:
        own = zip(agents.problems, states, strict=True)
        return join_programs([rounds(solver, problem, state) for problem, state in own], agents.batches)

    def complete(states: Sequence[SolverState]) -> Solution:
        own = zip(agents.problems, states, strict=True)
        return join_solutions([solver.complete(problem, state) for problem, state in own], agents.batches, None)

    saved = None if store is None else store.latest(transport.remote_senders)
    states: Sequence[SolverState | None] = [None] * len(agents.batches)
    if saved is not None:
        transport.restore(saved.comm)
        each = [[saved.states[agents.agents[k]] for k in batch.tolist()] for batch in agents.batches]
        states = [solver.state_type.load_state_dict(StateDict.stack(own)) for own in each]
    monitor = RunMonitor(
        transport,
        # A method without a limit takes one round per column of U, or none.
        max_iter=rank if solver.max_iter is None else solver.max_iter,
        # Agents with a U of their own that see only their own metrics would stop at different rounds: they take all.
        tol=solver.tol if transport.global_metrics or not solver.per_agent_basis else None,
        zero_objective=zero_objective,
        alone=lambda: join_solutions([solve_alone(problem) for problem in agents.problems], agents.batches, None),
        complete=complete,
        max_bytes=solver.max_bytes,
        history=None if saved is None else saved.history,
        callback=callback,
        save=None if store is None else store.save,
    )
    with threads:
        if alone:
            return monitor.without_messages()
        return monitor.drive(program(states), program if lookahead else None)
