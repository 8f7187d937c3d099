"""Agents in lockstep, each a generator of its own: a runner of a few lines, independent of those in the package.

:func:`run_peers` gives every agent its own rows and nothing of the others', and answers their requests. What a stack of
agents computes in one array, these must compute apart.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from elmesh.comm.allreduce import GOSSIP_PRECISION
from elmesh.comm.graph import Topology, make_topology
from elmesh.comm.local import LocalTransport
from elmesh.comm.requests import (
    AllReduce,
    AllReduceResult,
    HubReduce,
    IntegerSum,
    NeighborMessages,
    NeighborSum,
    Request,
)
from elmesh.data.statistics import Reduced, Task
from elmesh.run.monitor import RunMonitor
from elmesh.run.runner import agent_context
from elmesh.solvers import Solver
from elmesh.solvers.base import Decision, Problem, Program, RoundReport, Solution, rounds
from helpers import problems

Round = list[Request | RoundReport]


def own_tasks(H: Sequence[np.ndarray], T: Sequence[np.ndarray]) -> list[Task]:
    """Each agent's own rows and outputs, without the padding that a stack adds."""
    return [Task.from_reduced(Reduced.from_rows(h, t, centre=False)) for h, t in zip(H, T, strict=True)]


def exact_sums(requests: Sequence[AllReduce]) -> list[AllReduceResult]:
    """Sum over all agents, in their order; all receive the same to the bit."""
    value = np.zeros(requests[0].value.shape[-2:])
    exact = np.zeros(requests[0].exact.shape[-1])
    for request in requests:
        # A group of agents has its own axis in front.
        value = value + request.value.sum(axis=tuple(range(request.value.ndim - 2)))
        exact = exact + request.exact.sum(axis=tuple(range(request.exact.ndim - 1)))
    broadcast = requests[0].broadcast
    return [AllReduceResult(value.copy(), exact.copy(), request.average, broadcast) for request in requests]


def gossip_sums(topology: Topology) -> Callable[[Sequence[AllReduce]], list[AllReduceResult]]:
    """Return sums that come from real gossip between neighbours, so that agents' values differ by its rounding.

    Exact numbers are equal everywhere, as :class:`AllReduce` promises.
    """

    def sums(requests: Sequence[AllReduce]) -> list[AllReduceResult]:
        exact = np.stack([request.exact for request in requests]).sum(axis=0)
        means = gossip(np.stack([request.value for request in requests]))
        averages: list[np.ndarray | None] = [None] * len(requests)
        if requests[0].average is not None:
            averages = list(gossip(np.stack([request.average for request in requests])))
        first, m = requests[0].broadcast, len(requests)
        return [AllReduceResult(m * mean, exact, average, first) for mean, average in zip(means, averages, strict=True)]

    def gossip(values: np.ndarray) -> np.ndarray:
        x = values.reshape(len(values), values[0].size)
        for root in topology.averaging_roots(GOSSIP_PRECISION):
            x = x - (topology.degree[:, None] * x - topology.adjacency @ x) / root
        return np.asarray(x).reshape(values.shape)

    return sums


def reduced_at_hub(requests: Sequence[HubReduce]) -> np.ndarray:
    """Pad and stack all agents' values, and apply the first agent's function."""
    values = [value for request in requests for value in request.value.reshape(-1, *request.value.shape[-2:])]
    widest = max(value.shape[1] for value in values)
    return requests[0].function(np.stack([np.pad(value, ((0, 0), (0, widest - value.shape[1]))) for value in values]))


def from_neighbors(requests: Sequence[NeighborSum], topology: Topology) -> list[np.ndarray | NeighborMessages]:
    """Give each agent the values of its neighbours, and nothing of the others."""
    answers: list[np.ndarray | NeighborMessages] = []
    for t, request in enumerate(requests):
        received = [requests[j].value for j in topology.neighbors(t)]
        values = np.stack(received) if received else np.zeros((0, *request.value.shape))
        answers.append(NeighborMessages(values) if request.each else values.sum(axis=0))
    return answers


def never_stop(reports: Sequence[RoundReport]) -> Decision:
    """Let the rounds run out."""
    return Decision.CONTINUE


def lockstep(
    programs: Sequence[Program],
    topology: Topology | None = None,
    *,
    decide: Callable[[Sequence[RoundReport]], Decision] = never_stop,
    allreduce: Callable[[Sequence[AllReduce]], list[AllReduceResult]] = exact_sums,
) -> tuple[list[Solution], list[Round]]:
    """Drive programs side by side; return their solutions, and their requests, round after round.

    Whenever one of them makes a request, all must make one of the same kind, and all must end together.

    Parameters
    ----------
    programs : sequence of generators
        One per agent in the order of agents; or per group of agents, if they ask for no neighbours.
    topology : Topology or None
        The graph; only :class:`NeighborSum` needs it.
    decide : callable
        The decision on all agents' reports, the same for all.
    allreduce : callable
        From all agents' :class:`AllReduce` to one result per agent, in their order.

    Returns
    -------
    solutions : list of Solution
        One per program.
    requests : list of lists of requests
        The request of each program, step by step (reports included).
    """
    steps: list[Round] = []
    answers: list[Any] = [None] * len(programs)
    while True:
        requests, solutions = [], []
        for program, answer in zip(programs, answers, strict=True):
            try:
                requests.append(program.send(answer))
            except StopIteration as end:
                solutions.append(end.value)
        if solutions:
            assert not requests, f"{len(solutions)} agents have ended and {len(requests)} continue"
            return solutions, steps
        kinds = {type(request) for request in requests}
        assert len(kinds) == 1, f"agents make different requests at the same time: {kinds}"
        steps.append(requests)
        first = requests[0]
        if isinstance(first, RoundReport):
            assert len({report.round for report in requests}) == 1
            answers = [decide(requests)] * len(programs)
        elif isinstance(first, AllReduce):
            for name in ("topic", "fine_columns"):
                assert len({getattr(request, name) for request in requests}) == 1, f"agents differ in {name}"
            assert len({(request.value.shape[-2:], request.exact.shape[-1]) for request in requests}) == 1
            answers = list(allreduce(requests))
        elif isinstance(first, IntegerSum):
            assert len({request.value.shape for request in requests}) == 1
            answers = [np.sum([request.value for request in requests], axis=0)] * len(programs)
        elif isinstance(first, HubReduce):
            answers = [reduced_at_hub(requests)] * len(programs)
        else:
            assert topology is not None, "a request to neighbours needs a graph"
            answers = list(from_neighbors(requests, topology))


def peer_program(
    solver: Solver, task: Task, topology: Topology, agent: int | None, rank: int, seed: int = 0
) -> Program:
    """The rounds of one agent, or with ``agent=None`` of all agents stacked."""
    chosen = None if agent is None else np.asarray(agent, dtype=np.intp)
    return rounds(solver, Problem(task, agent_context(topology, seed, chosen), rank))


def run_peers(
    solver: Solver,
    task: Task | Sequence[Task],
    topology: Topology,
    seed: int = 0,
    rank: int | None = None,
    *,
    decide: Callable[[Sequence[RoundReport]], Decision] = never_stop,
    allreduce: Callable[[Sequence[AllReduce]], list[AllReduceResult]] = exact_sums,
) -> tuple[list[Solution], list[Round]]:
    """Run a solver as one generator per agent; return each agent's solution, and all requests.

    ``task`` is a stack, of which every agent gets its own part (padding included), or one task per agent (see
    :func:`own_tasks`); with a stack ``rank`` may be left to the solver. See :func:`lockstep`.
    """
    if isinstance(task, Task):
        rank = solver.resolve_rank(task) if rank is None else rank
        tasks = [task.agent(t) for t in range(topology.n_agents)]
    else:
        tasks = list(task)
    assert rank is not None, "with one task per agent, give the rank"
    programs = [peer_program(solver, own, topology, t, rank, seed) for t, own in enumerate(tasks)]
    return lockstep(programs, topology, decide=decide, allreduce=allreduce)


def requests_of(
    solver: Solver, problem: problems.Problem, graph: str, seed: int = 0, tol: float = 1e-2
) -> list[Request | RoundReport]:
    """Run a solver on stacked agents and return all its requests, in order."""
    topology = make_topology(graph, range(len(problem.H)), seed)
    program = peer_program(solver, problem.task, topology, None, solver.resolve_rank(problem.task), seed)
    requests = []

    def recording() -> Program:
        answer = None
        while True:
            try:
                request = program.send(answer)
            except StopIteration as end:
                return end.value
            requests.append(request)
            answer = yield request

    transport = LocalTransport(topology, solver.message_bits)
    RunMonitor(transport, solver.max_iter or 0, tol, zero_objective=1e300).drive(recording())
    return requests
