"""Many single agents in lockstep: a runtime of a few lines, independent of those in the package.

:func:`run_peers` makes one generator an agent, each with its own rows and nothing of the others, and passes their
requests on: to neighbours, to a hub, or into a sum over all. What a stack of agents computes in one array, these must
compute apart.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from elmesh.run.local import StackedLink, place_of

from elmesh.comm.allreduce import PRECISION
from elmesh.comm.graph import Topology, make_topology
from elmesh.comm.requests import Answer, Heard, Hub, Neighbours, Program, Report, Request, State, Sum, Total
from elmesh.data.statistics import Reduced, Task
from elmesh.run.driver import drive
from elmesh.solvers import Solver
from helpers.problems import Problem

Round = list[Request]


def own_tasks(H: Sequence[np.ndarray], T: Sequence[np.ndarray]) -> list[Task]:
    """Each agent's own rows and outputs, without the padding that a stack adds."""
    return [Task.from_reduced(Reduced.from_rows(h, t, centre=False)) for h, t in zip(H, T, strict=True)]


def exact_sums(totals: Sequence[Total]) -> list[Sum]:
    """Add up what all agents say, in the order of agents; everybody hears the same, to the bit."""
    value = np.zeros(totals[0].value.shape[-2:])
    numbers = np.zeros(totals[0].numbers.shape[-1])
    for total in totals:
        # A group of agents has its own axis in front.
        value = value + total.value.sum(axis=tuple(range(total.value.ndim - 2)))
        numbers = numbers + total.numbers.sum(axis=tuple(range(total.numbers.ndim - 1)))
    return [Sum(value.copy(), numbers.copy(), total.same, totals[0].settle) for total in totals]


def at_the_hub(hubs: Sequence[Hub]) -> np.ndarray:
    """Pad and stack what all agents tell, and let the first agent's own function answer."""
    values = [value for hub in hubs for value in hub.value.reshape(-1, *hub.value.shape[-2:])]
    widest = max(value.shape[1] for value in values)
    return hubs[0].function(np.stack([np.pad(value, ((0, 0), (0, widest - value.shape[1]))) for value in values]))


def from_neighbours(requests: Sequence[Neighbours], topology: Topology) -> list[np.ndarray | Heard]:
    """Tell each agent what its neighbours say, and nothing of the others."""
    answers: list[np.ndarray | Heard] = []
    for t, request in enumerate(requests):
        heard = [requests[j].value for j in topology.neighbors(t)]
        values = np.stack(heard) if heard else np.zeros((0, *request.value.shape))
        answers.append(Heard(values) if request.each else values.sum(axis=0))
    return answers


def go_on(reports: Sequence[Report]) -> Answer:
    """Never stop: the rounds run out."""
    return Answer.GO_ON


def lockstep(
    programs: Sequence[Program],
    topology: Topology | None = None,
    *,
    verdict: Callable[[Sequence[Report]], Answer] = go_on,
    add_up: Callable[[Sequence[Total]], list[Sum]] = exact_sums,
) -> tuple[list[State], list[Round]]:
    """Drive programs side by side; return their states, and what they said, round after round.

    Whenever one of them asks something, all must ask the same kind of thing, and all must end together.

    Parameters
    ----------
    programs : sequence of generators
        One an agent in the order of agents; or of groups of agents, if they ask for no neighbours.
    topology : Topology or None
        Who hears whom; only :class:`Neighbours` needs it.
    verdict : callable
        The answer to all agents' reports, the same for all.
    add_up : callable
        From all agents' :class:`Total` to one :class:`Sum` an agent, in their order; exact and alike unless said
        otherwise.

    Returns
    -------
    states : list of State
        One a program.
    told : list of lists of requests
        For every request, what each program said (reports included).
    """
    told: list[Round] = []
    answers: list[object] = [None] * len(programs)
    while True:
        requests, states = [], []
        for program, answer in zip(programs, answers, strict=True):
            try:
                requests.append(program.send(answer))
            except StopIteration as end:
                states.append(end.value)
        if states:
            assert not requests, f"{len(states)} agents have ended and {len(requests)} go on"
            return states, told
        kinds = {type(request) for request in requests}
        assert len(kinds) == 1, f"agents ask for different things at the same time: {kinds}"
        told.append(requests)
        first = requests[0]
        if isinstance(first, Report):
            assert len({report.round for report in requests}) == 1
            answers = [verdict(requests)] * len(programs)
        elif isinstance(first, Total):
            for name in ("topic", "fine"):
                assert len({getattr(total, name) for total in requests}) == 1, f"agents differ in {name}"
            assert len({(total.value.shape[-2:], total.numbers.shape[-1]) for total in requests}) == 1
            answers = list(add_up(requests))
        elif isinstance(first, Hub):
            answers = [at_the_hub(requests)] * len(programs)
        else:
            assert topology is not None, "neighbours are asked for, and there is no graph"
            answers = list(from_neighbours(requests, topology))


def run_peers(
    solver: Solver,
    task: Task | Sequence[Task],
    topology: Topology,
    seed: int = 0,
    rank: int | None = None,
    *,
    verdict: Callable[[Sequence[Report]], Answer] = go_on,
    add_up: Callable[[Sequence[Total]], list[Sum]] = exact_sums,
) -> tuple[list[State], list[Round]]:
    """Run a solver as one generator an agent; return each agent's state, and all they said.

    ``task`` is a stack, of which every agent gets its own part (padding included), or a task an agent (see
    :func:`own_tasks`); with a stack ``rank`` may be left to the solver. The run ends when its rounds do, or when
    ``verdict`` says so. See :func:`lockstep`.
    """
    if isinstance(task, Task):
        rank = solver.resolve_rank(task) if rank is None else rank
        tasks = [task.agent(t) for t in range(topology.n_agents)]
    else:
        tasks = list(task)
    assert rank is not None, "with one task an agent, say the rank"
    programs = [solver.program(own, place_of(topology, seed, t), rank) for t, own in enumerate(tasks)]
    return lockstep(programs, topology, verdict=verdict, add_up=add_up)


def mixed_sums(topology: Topology) -> Callable[[Sequence[Total]], list[Sum]]:
    """Return sums that really come about by neighbours' mixing, so that agents' values differ by its rounding.

    The numbers beside them are exact and alike, as :class:`Total` promises.
    """

    def add_up(totals: Sequence[Total]) -> list[Sum]:
        numbers = np.stack([total.numbers for total in totals]).sum(axis=0)
        means = mixed(np.stack([total.value for total in totals]))
        alike: list[np.ndarray | None] = [None] * len(totals)
        if totals[0].same is not None:
            alike = list(mixed(np.stack([total.same for total in totals])))
        first = totals[0].settle
        return [Sum(len(totals) * mean, numbers, same, first) for mean, same in zip(means, alike, strict=True)]

    def mixed(values: np.ndarray) -> np.ndarray:
        x = values.reshape(len(values), values[0].size)
        for root in topology.averaging_roots(PRECISION):
            x = x - (topology.degree[:, None] * x - topology.adjacency @ x) / root
        return np.asarray(x).reshape(values.shape)

    return add_up


def requests_of(solver: Solver, problem: Problem, graph: str, seed: int = 0, tol: float = 1e-2) -> list[Request]:
    """Drive a solver and return everything it asked for, in order."""
    topology = make_topology(graph, range(len(problem.H)), seed)
    program = solver.program(problem.task, place_of(topology, seed), solver.resolve_rank(problem.task))
    told = []

    def listening():
        answer = None
        while True:
            try:
                request = program.send(answer)
            except StopIteration as end:
                return end.value
            told.append(request)
            answer = yield request

    link = StackedLink(topology, solver.message_bits)
    drive(listening(), link, max_iter=solver.max_iter, tol=tol, start_energy=1e300)
    return told
