"""One suite of invariants for every registered solver: a new solver is covered without an edit.

Requests and states are compared to the bit, with everything in them. Answers come from the functions below, or from a
recording.
"""

from __future__ import annotations

import dataclasses
import json
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load, save
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.estimator_checks import parametrize_with_checks

import elmesh
from elmesh import MultiTaskELMClassifier, MultiTaskELMRegressor, RunConfig
from elmesh.comm.graph import Topology, make_topology
from elmesh.comm.local import LocalTransport
from elmesh.comm.requests import AllReduce, HubReduce, IntegerSum, NeighborMessages, NeighborSum, Request
from elmesh.data.statistics import SiteRows, Task
from elmesh.math.kernels import curvature
from elmesh.run import RunResult, StopReason, resolve_backend, run_local
from elmesh.run.runner import agent_context
from elmesh.solvers import Solver, make_solver, solver_classes
from elmesh.solvers.altgdmin import sharpness
from elmesh.solvers.base import Decision, GroupedFeatures, Problem, Program, RoundReport, Solution, rounds
from elmesh.solvers.state import SolverState, StateDict
from helpers.examples import examples
from helpers.marks import one_of
from helpers.peers import exact_sums
from helpers.problems import random_problem, solve
from helpers.sklearn_checks import AT_THE_LIMITS, run_check, some_checks

# Solvers that other tests of the same process may define are left out.
CLASSES = {name: cls for name, cls in solver_classes().items() if cls.__module__.startswith("elmesh.")}
MOST_ROUNDS = 12
#: Parameters other than the defaults that take other ways through a solver.
VARIANTS: dict[str, dict[str, dict[str, Any]]] = {
    "mesh-elm": {
        "of a given rank": {"rank": 2, "mu1": 0.3, "mu2": 0.7, "tol": 1e-6, "max_iter": 45},
        "that grows": {"mu1": 0.1, "mu2": 0.1, "max_iter": 60},
        "without a certificate": {"rank": 1, "certify": False, "max_iter": 5},
        "in one place": {"graph": None, "max_iter": 40},
    },
    "local-elm": {"with a given penalty": {"mu": 1.0}},
    "mtl-elm": {"from ones": {"rank": 2, "mu1": 1.0, "init": "ones", "max_iter": 5}},
    "dmtl-elm": {
        "by numbers": {
            "rank": 2,
            "mu1": 0.5,
            "mu2": 2.0,
            "rho": 1.5,
            "tau": "2 + d",
            "zeta": 0.5,
            "gamma": 0.9,
            "init": "ones",
            "max_iter": 5,
        },
        "by the paper's rule": {"rank": 2, "gamma": "paper", "proximal": "standard", "tau": 3.0, "max_iter": 6},
        "that sends only U": {
            "rank": 2,
            "mu1": 1.0,
            "mu2": 1.0,
            "rho": 1.0,
            "init": "seed",
            "certify": False,
            "max_iter": 5,
        },
    },
    "fo-dmtl-elm": {"by the paper's rule": {"rank": 2, "gamma": "paper", "rho": 0.5, "init": "random", "max_iter": 6}},
    "go-mtl": {"without codes": {"rank": 2, "mu2": 1e6, "init": "random", "max_iter": 3}},
    "dgsp": {"until no direction is left": {"rank": 40}},
    "dnsp": {"until no direction is left": {"rank": 40, "mu": 0.1}},
    "fedrep": {
        "with local steps": {"rank": 2, "local_steps": 3, "init": "random", "step_scale": 0.5, "max_iter": 4},
    },
    "fed-avg": {"with four bits": {"local_steps": 2, "message_bits": 4, "max_iter": 5}},
    "federated-ridge": {"with a private part": {"mu": 1.0, "private": True}},
    "dif-altgdmin": {"that mixes": {"rank": 2, "mixing": 2, "step_scale": 0.5, "max_iter": 4}},
}
GRAPHS = ("ring", "star", "path", "random")
seeds = st.integers(0, 10**6)
few = examples(3)


def quick(cls: type[Solver]) -> Solver:
    """A solver with its defaults and a few rounds."""
    return cls().set_params(**({"max_iter": MOST_ROUNDS} if "max_iter" in cls().get_params() else {}))


#: Solvers that train a hidden layer, for which they need rows.
TRAINED = {name: partial(quick, cls) for name, cls in CLASSES.items() if cls.learns_features}


def cases() -> dict[str, Callable[[], Solver]]:
    made: dict[str, Callable[[], Solver]] = {}
    for name, cls in CLASSES.items():
        if name in TRAINED:
            continue
        made[name] = partial(quick, cls)
        made |= {f"{name} {variant}": partial(cls, **p) for variant, p in VARIANTS.get(name, {}).items()}
    return made


CASES = cases()
#: All solvers, for tests of estimators.
ALL = {**CASES, **TRAINED}
#: Solvers that weigh groups of features, with the ways that they take only there.
GROUPED: dict[str, Callable[[], Solver]] = {
    "local-elm": elmesh.LocalELM,
    "mesh-elm": partial(elmesh.MeshELM, max_iter=MOST_ROUNDS),
    "mesh-elm with a shared part": partial(elmesh.MeshELM, rank=2, mu1=0.1, mu2=0.1, max_iter=MOST_ROUNDS),
    "mesh-elm without a certificate": partial(elmesh.MeshELM, rank=1, mu1=0.1, mu2=0.1, max_iter=5, certify=False),
    "mesh-elm with a common part": partial(elmesh.MeshELM, private=False),
    "mesh-elm with a private part": partial(elmesh.MeshELM, common=False, mu1=0.1, mu2=0.1, max_iter=MOST_ROUNDS),
    "mesh-elm without U": partial(elmesh.MeshELM, rank=0),
    **TRAINED,
    "fed-per with decay": partial(elmesh.FedPer, n_units=3, decay=0.1, max_iter=5),
}
#: Solvers that take tasks whose features have no groups; a local ELM needs a penalty there.
PLAIN = [case for case in CASES if case != "local-elm"]
ITERATIVE = [case for case, make in CASES.items() if make().iterative]
#: Solvers whose agents may be in different processes.
DISTRIBUTED = [case for case in ITERATIVE if not CASES[case]().pooled]


#: Cases with other parameters than the defaults that take ways of their own through most of a solver.
OTHER_WAYS = (
    "mesh-elm of a given rank",
    "mesh-elm in one place",
    "dmtl-elm by numbers",
    "dmtl-elm that sends only U",
    "fo-dmtl-elm by the paper's rule",
    "fedrep with local steps",
    "fed-avg with four bits",
    "federated-ridge with a private part",
    "dif-altgdmin that mixes",
)


def for_each(names: Iterable[str], others: pytest.MarkDecorator = pytest.mark.thorough) -> pytest.MarkDecorator:
    """Run a test for each case; of those with other parameters than the defaults, `make test` takes some.

    `make quick` takes none, nor do tests that are about more than the solver, where all of them are slow.
    """
    marks = {name: () if name in CLASSES else others if name in OTHER_WAYS else pytest.mark.slow for name in names}
    return pytest.mark.parametrize("case", [pytest.param(name, marks=marks[name]) for name in names])


for_each_solver = pytest.mark.parametrize("cls", CLASSES.values(), ids=list(CLASSES))
for_each_case = for_each(CASES)
for_each_plain_case = for_each(PLAIN)
for_each_iterative_case = for_each(ITERATIVE)
for_each_distributed_case = for_each(DISTRIBUTED)
for_each_iterative_solver = for_each(ITERATIVE, pytest.mark.slow)
for_each_distributed_solver = for_each(DISTRIBUTED, pytest.mark.slow)


# --- Running a solver by hand -----------------------------------------------------------------------------------------


def unequal_tasks(seed: int, graph: str = "ring") -> tuple[Task, Topology]:
    """Tasks of unequal rows and outputs over a graph."""
    rng = np.random.default_rng(seed)
    m = int(rng.integers(1, 6))
    problem = random_problem(seed, m=m, L=int(rng.integers(2, 14)), d=int(rng.integers(1, 4)), n_max=15)
    return problem.task, make_topology(graph, range(m), 3)


def graph_of(solver: Solver, graph: str) -> str:
    """The graph of a test, unless the solver has a graph that is not a parameter."""
    return solver.graph if solver.graph is not None and "graph" not in solver.get_params() else graph


def usable_rank(solver: Solver, data: Task | list[SiteRows]) -> int:
    """The rank that the solver asks for, within what the features allow, without a warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return solver.resolve_rank(data)


def program_of(
    solver: Solver, task: Task, topology: Topology, state: SolverState | None = None, agent: int | None = None
) -> Program:
    """The rounds of all agents stacked, or of one of them."""
    chosen = None if agent is None else np.asarray(agent, dtype=np.intp)
    own = task if agent is None else task.agent(agent)
    return rounds(solver, Problem(own, agent_context(topology, 3, chosen), usable_rank(solver, task)), state)


@dataclasses.dataclass(frozen=True, eq=False)
class GroupedSites:
    """Sites whose features come in groups: a constant, inputs and products of them."""

    groups: np.ndarray
    sites: list[SiteRows]
    topology: Topology
    halves: list[tuple[SiteRows, SiteRows]] | None = None
    classes: bool = False

    def features(self, places: Iterable[int]) -> GroupedFeatures:
        """What is known of the features of some sites."""
        pairs = None if self.halves is None else [self.halves[k] for k in places]
        halves = None if pairs is None else lambda: ([one for one, _ in pairs], [two for _, two in pairs])
        return GroupedFeatures(self.groups, 0.1 if self.classes else 0.0, halves, self.classes)

    def program(self, solver: Solver, state: SolverState | None = None, agents: Iterable[int] | None = None) -> Program:
        """The rounds of a process with some of the sites, with all of them by default."""
        places = list(range(len(self.sites)) if agents is None else agents)
        context = agent_context(self.topology, 3, np.array(places, dtype=np.intp))
        own, rank = [self.sites[k] for k in places], usable_rank(solver, self.sites)
        return rounds(solver, self.features(places).problem(own, context, rank), state)


def grouped_sites(
    seed: int, graph: str = "ring", *, outputs: int = 2, classes: bool = False, rows: bool = False
) -> GroupedSites:
    """Sites of unequal sizes, one of them of one row; weights have all three parts, or targets are their classes.

    With ``rows`` they are the rows themselves, and not reduced.
    """
    rng = np.random.default_rng(seed)
    m = int(rng.integers(2, 6))
    common, basis = rng.normal(size=(10, outputs)), rng.normal(size=(10, 1))
    sites, halves = [], []
    for n in [1 if t == 1 else int(rng.integers(5, 40)) for t in range(m)]:
        Z = rng.normal(size=(n, 3))
        Phi = np.hstack(
            [np.ones((n, 1)), Z / np.sqrt(3), Z**2 / np.sqrt(6), Z[:, [0, 0, 1]] * Z[:, [1, 2, 2]] / np.sqrt(6)]
        )
        weights = common + basis @ rng.normal(size=(1, outputs)) + 0.3 * rng.normal(size=(10, outputs))
        T = Phi @ weights + 0.3 * rng.normal(size=(n, outputs))
        if classes:
            T = np.eye(outputs)[np.argmax(T, axis=1)] - (0 if rows else 1 / outputs)
        if rows:
            sites.append(SiteRows(Phi, T, np.zeros(outputs), float(n), np.ones(n)))
            continue
        middle = (n + 1) // 2
        whole, first, second = (
            SiteRows.from_rows(Phi[part], T[part]) for part in (slice(None), slice(middle), slice(middle, None))
        )
        sites.append(whole)
        halves.append((first, second))
    groups = np.repeat([0, 1, 2], [1, 3, 6])
    return GroupedSites(groups, sites, make_topology(graph, range(m), 3), None if rows else halves, classes)


def grouped_for(solver: Solver, seed: int, graph: str = "ring", *, classes: bool = False) -> GroupedSites:
    """Sites for a solver, with the graph that it needs."""
    return grouped_sites(seed, graph_of(solver, graph), classes=classes, rows=solver.learns_features)


def play_apart(programs: list[Program]) -> list[Solution]:
    """Run agents in lockstep, each by itself; their integers are added, or a hub computes a function of all values."""
    replies: list[object] = [None] * len(programs)
    solutions: list[Solution] = []
    while not solutions:
        requests = []
        for program, reply in zip(programs, replies, strict=True):
            try:
                requests.append(program.send(reply))
            except StopIteration as end:
                solutions.append(end.value)
        assert not (solutions and requests), "some agents ended before the others"
        if requests and isinstance(requests[0], RoundReport):
            replies = [Decision.CONTINUE] * len(programs)
        elif requests and isinstance(requests[0], HubReduce):
            replies = [requests[0].function(np.concatenate([one.value for one in requests]))] * len(programs)
        elif requests:
            assert {type(request) for request in requests} == {IntegerSum}
            replies = [np.sum([request.value for request in requests], axis=0)] * len(programs)
    return solutions


def answer_stack(request: Request, topology: Topology) -> object:
    """Answer a stack of all agents: neighbours in increasing order, sums in the order of agents."""
    if isinstance(request, NeighborSum):
        receiver, sender = topology.ends
        messages = NeighborMessages(request.value[sender], receiver)
        return messages if request.each else messages.sum(messages.values, request.value)
    if isinstance(request, AllReduce):
        return exact_sums([request])[0]
    if isinstance(request, IntegerSum):
        return request.value
    return request.function(request.value)


Recording = tuple[list[Request | RoundReport], list[object], Solution]


def play(program: Program, answer: Callable[[Request | RoundReport], object]) -> Recording:
    """Run a program to its end; return its requests, their answers, and the solution."""
    requests: list[Request | RoundReport] = []
    answers: list[object] = []
    seen: list[tuple[StateDict, StateDict]] = []
    reply = None
    while True:
        try:
            request = program.send(reply)
        except StopIteration as end:
            for state, copy in seen:
                assert_same(state, copy, "a later round changed the arrays of an earlier state")
            return requests, answers, end.value
        if isinstance(request, RoundReport):
            arrays = [state.state_dict() for state in request.states]
            seen += [(state, each_array(np.copy, state)) for state in arrays]
        reply = answer(request)
        requests.append(request)
        answers.append(reply)


def continuing(topology: Topology, decisions: Mapping[int, Decision] | None = None) -> Callable[[Any], object]:
    """Answer everything; reports by their round, and "continue" by default."""

    def answer(request: Request | RoundReport) -> object:
        if isinstance(request, RoundReport):
            return (decisions or {}).get(request.round, Decision.CONTINUE)
        return answer_stack(request, topology)

    return answer


def replaying(answers: list[object]) -> Callable[[Any], object]:
    rest = iter(answers)
    return lambda _: next(rest)


def some_of(reports: Iterable[tuple[int, SolverState]]) -> list[tuple[int, SolverState]]:
    """The first of all reports, the last, and a few between them."""
    found = list(reports)
    assert found
    return [found[k] for k in sorted({*np.linspace(0, len(found) - 1, 5, dtype=int).tolist()})]


def reports_in(requests: list[Request | RoundReport]) -> Iterator[tuple[int, SolverState]]:
    """The positions of reports, and the state of each."""
    for i, request in enumerate(requests):
        if isinstance(request, RoundReport):
            (state,) = request.states
            yield i, state


# --- Comparing to the bit ---------------------------------------------------------------------------------------------


def each_array(change: Callable[[np.ndarray], np.ndarray], state: StateDict) -> StateDict:
    parts = (state.agent, state.shared, state.edge)
    return StateDict(*({name: change(x) for name, x in part.items()} for part in parts))


def written_and_read(state: SolverState) -> SolverState:
    """A state as it is after a file was written and read."""
    arrays, parts = state.state_dict(), []
    for part in (arrays.agent, arrays.shared, arrays.edge):
        for name, x in part.items():
            assert type(x) is np.ndarray, name
            assert x.dtype == np.float64, name
            # In another memory layout, products would be rounded differently.
            assert x.flags.c_contiguous, name
        parts.append(load(save({name: np.ascontiguousarray(x).reshape(x.shape) for name, x in part.items()})))
    return type(state).load_state_dict(StateDict(*parts))


def assert_same(found: object, expected: object, where: str) -> None:
    """Compare to the bit, field by field."""
    if isinstance(expected, np.ndarray | float):
        assert np.shape(found) == np.shape(expected), where
        assert np.asarray(found).dtype == np.asarray(expected).dtype, where
        assert np.asarray(found).tobytes() == np.asarray(expected).tobytes(), where
        return
    assert type(found) is type(expected), where
    if dataclasses.is_dataclass(expected):
        for field in dataclasses.fields(expected):
            name = field.name
            assert_same(getattr(found, name), getattr(expected, name), f"{where}, {type(expected).__name__}.{name}")
    elif isinstance(expected, dict):
        assert found.keys() == expected.keys(), where
        for key in expected:
            assert_same(found[key], expected[key], f"{where} {key}")
    elif isinstance(expected, list | tuple):
        assert len(found) == len(expected), where
        for i, (a, b) in enumerate(zip(found, expected, strict=True)):
            assert_same(a, b, f"{where} {i}")
    elif isinstance(expected, partial):
        assert_same((found.func, found.args), (expected.func, expected.args), where)
    else:
        assert found == expected, where


# --- Resuming ---------------------------------------------------------------------------------------------------------


def assert_resumes_anywhere(
    solver: Solver, task: Task, topology: Topology, answer: Callable[[Any], object] | None = None
) -> None:
    requests, answers, solution = play(program_of(solver, task, topology), answer or continuing(topology))
    for i, state in some_of(reports_in(requests)):
        again = play(program_of(solver, task, topology, written_and_read(state)), replaying(answers[i:]))
        assert_same(again, (requests[i:], answers[i:], solution), f"from request {i}")


@for_each_iterative_case
@given(seed=seeds, graph=st.sampled_from(GRAPHS))
@few
def test_resuming_from_any_state_gives_the_same_bits(case, seed, graph):
    solver = CASES[case]()
    task, topology = unequal_tasks(seed, graph_of(solver, graph))
    assert_resumes_anywhere(solver, task, make_topology("ring", [0]) if solver.pooled else topology)


@pytest.mark.thorough
@pytest.mark.parametrize("bits", [2, pytest.param("auto", marks=pytest.mark.slow)])
@given(seed=seeds, graph=st.sampled_from(GRAPHS))
@few
def test_resuming_with_quantised_messages_gives_the_same_bits(bits, seed, graph):
    task, topology = unequal_tasks(seed, graph)
    transport = LocalTransport(topology, bits)

    def answer(request: Request | RoundReport) -> object:
        return Decision.CONTINUE if isinstance(request, RoundReport) else transport.allreduce(request)

    assert_resumes_anywhere(elmesh.MeshELM(message_bits=bits, max_iter=30, tol=1e-4), task, topology, answer)


@given(seed=seeds)
@few
def test_resuming_agents_whose_sums_differ_by_rounding_gives_the_same_bits(seed):
    """The averaged U is not the one that A was solved for, so A is part of the state."""
    task, topology = unequal_tasks(seed)

    def answer(request: Request | RoundReport) -> object:
        result = continuing(topology)(request)
        if isinstance(request, AllReduce) and request.average is not None:
            result = dataclasses.replace(result, average=request.average * (1 + 1e-9))
        return result

    assert_resumes_anywhere(elmesh.MeshELM(rank=2, tol=1e-4, max_iter=12), task, topology, answer)


@pytest.mark.thorough
@for_each_iterative_solver
@given(seed=seeds, decision=st.sampled_from(list(Decision)), data=st.data())
@few
def test_the_decision_after_resuming_counts_whatever_it_was_before(case, seed, decision, data):
    """A run that was to end, or to continue, is resumed and receives another decision."""
    solver = CASES[case]()
    task, topology = unequal_tasks(seed, "star")
    topology = make_topology("ring", [0]) if solver.pooled else topology
    straight, answers, solution = play(program_of(solver, task, topology), continuing(topology))
    found = list(reports_in(straight))
    i, state = found[data.draw(st.integers(0, len(found) - 1))]
    k = straight[i].round
    expected = play(program_of(solver, task, topology), continuing(topology, {k: decision}))
    again = play(program_of(solver, task, topology, state), continuing(topology, {k: decision}))
    before = next(j for j, request in enumerate(expected[0]) if isinstance(request, RoundReport) and request.round == k)
    assert_same(again, (expected[0][before:], expected[1][before:], expected[2]), f"{decision.name} in round {k}")
    if decision is Decision.HALT:
        resumed = play(program_of(solver, task, topology, *again[0][0].states), continuing(topology))
        assert_same(resumed, (straight[i:], answers[i:], solution), "continued after a halt")


@pytest.mark.parametrize("case", [case for case in PLAIN if case not in ITERATIVE])
def test_a_solver_without_rounds_makes_no_report(case):
    task, topology = unequal_tasks(1)
    requests, _, _ = play(program_of(CASES[case](), task, topology), continuing(topology))
    assert not any(isinstance(request, RoundReport) for request in requests)


@pytest.mark.parametrize("case", [case for case, make in GROUPED.items() if not make().iterative])
def test_with_features_in_groups_a_solver_without_rounds_makes_no_report(case):
    grouped = grouped_sites(1)
    requests, _, _ = play(grouped.program(GROUPED[case]()), continuing(grouped.topology))
    assert not any(isinstance(request, RoundReport) for request in requests)


# --- One agent, and a stack of agents ---------------------------------------------------------------------------------


def of_agent(x: object, t: int, degrees: np.ndarray) -> object:
    """The request, report or solution of agent t alone, from that of a stack of agents."""
    match x:
        case NeighborSum():
            return dataclasses.replace(x, value=x.value[t])
        case HubReduce():
            return dataclasses.replace(x, value=x.value[t])
        case AllReduce():
            return dataclasses.replace(x, value=x.value[t], exact=x.exact[t])
        case RoundReport():
            pairs = [tuple(part[t] for part in pair) for pair in (x.residual, x.scale)]
            states = [state.state_dict().split(degrees)[t] for state in x.states]
            return x.round, of_agent(x.solution, t, degrees), x.objective[t], *pairs, states
        case Solution():
            U = x.U if x.U is None or x.U.ndim == 2 else x.U[t]
            tau, zeta = (np.asarray(part[t] if np.ndim(part) else part) for part in (x.tau, x.zeta))
            dual = None if x.dual is None else x.dual[t]
            return dataclasses.replace(x, U=U, A=x.A[t], dual=dual, tau=tau, zeta=zeta)
        case _:
            return x


def comparable(x: object) -> object:
    """An agent's own request, report or solution in the form of :func:`of_agent`; its numbers as arrays."""
    match x:
        case RoundReport():
            states = [state.state_dict() for state in x.states]
            return x.round, comparable(x.solution), x.objective, x.residual, x.scale, states
        case Solution():
            return dataclasses.replace(x, tau=np.asarray(x.tau), zeta=np.asarray(x.zeta))
        case _:
            return x


def numbers_as_arrays(x: object) -> object:
    """A number of a single agent may be a NumPy float or an array without axes."""
    if isinstance(x, tuple):
        return tuple(numbers_as_arrays(item) for item in x)
    return np.asarray(x) if isinstance(x, float | np.floating) else x


def received_by(t: int, request: Request | RoundReport, answer: object) -> object:
    """The answer to agent t alone, from that to a stack of agents."""
    if isinstance(answer, NeighborMessages):
        return NeighborMessages(answer.values[answer.receiver == t])
    return answer[t] if isinstance(request, NeighborSum) else answer


def assert_stack_computes_as_agents_alone(solver: Solver, task: Task, topology: Topology, which: int) -> None:
    """Run all agents stacked and, from the start and from one of the states, each of them alone."""
    requests, answers, solution = play(program_of(solver, task, topology), continuing(topology))
    degrees = topology.degree
    found = list(reports_in(requests))
    for i, state in ((0, None), found[which % len(found)]):
        alone = [None] * topology.n_agents if state is None else state.state_dict().split(degrees)
        for t, own in enumerate(alone):
            resumed = None if own is None else type(state).load_state_dict(own)
            received = [received_by(t, *pair) for pair in zip(requests[i:], answers[i:], strict=True)]
            made, _, end = play(program_of(solver, task, topology, resumed, agent=t), replaying(received))
            for own_request, request in zip(made, requests[i:], strict=True):
                expected = numbers_as_arrays(of_agent(request, t, degrees))
                assert_same(numbers_as_arrays(comparable(own_request)), expected, f"agent {t} from request {i}")
            assert_same(comparable(end), of_agent(solution, t, degrees), f"agent {t}")
        if state is not None:
            assert_same(StateDict.stack(alone), state.state_dict(), f"stacked again from request {i}")


def random_stack(seed: int, m: int, L: int, q: int, d: int) -> Task:
    """Tasks of one shape and any scale; some singular values may be padding."""
    rng = np.random.default_rng(seed)
    V = np.linalg.qr(rng.standard_normal((m, L, q)))[0]
    s = np.sort(rng.uniform(0.1, 5.0, (m, q)))[:, ::-1] * (rng.random((m, q)) > 0.1)
    Y = rng.standard_normal((m, q, d)) * np.exp(rng.normal())
    return Task(np.ascontiguousarray(V), s, Y, rng.uniform(0, 1, m), np.full(m, q + 5.0))


@for_each_distributed_case
@given(seed=seeds, m=st.integers(2, 5), L=st.integers(1, 40), q=st.integers(1, 40), d=st.integers(1, 4), data=st.data())
@few
def test_a_stack_computes_the_bits_of_an_agent_alone(case, seed, m, L, q, d, data):
    solver = CASES[case]()
    if getattr(solver, "rank", "auto") != "auto":
        solver.set_params(rank=data.draw(st.integers(1, L), label="rank"))
    graph = graph_of(solver, data.draw(st.sampled_from(GRAPHS), label="graph"))
    topology = make_topology(graph, range(m), 3)
    assert_stack_computes_as_agents_alone(solver, random_stack(seed, m, L, min(q, L), d), topology, seed)


@pytest.mark.thorough
@for_each_distributed_solver
def test_a_stack_of_large_agents_computes_the_bits_of_an_agent_alone(case):
    solver = CASES[case]()
    wanted = {"rank": 6, "max_iter": 2}
    solver.set_params(**{name: x for name, x in wanted.items() if name in solver.get_params()})
    topology = make_topology("star", range(3))
    assert_stack_computes_as_agents_alone(solver, random_stack(5, 3, 300, 120, 4), topology, 1)


def test_a_number_of_an_agent_alone_is_squared_like_those_of_a_stack():
    """NumPy raises a scalar to a power by another function than an array, which may round differently."""
    task = random_stack(1, 1500, 2, 1, 1)
    A = np.random.default_rng(1).standard_normal((1500, 1, 1))
    for function in (curvature, partial(sharpness, mu=0.1)):
        together = function(task, A)
        for t in range(1500):
            assert_same(function(task.agent(t), A[t]), together[t, ...], f"agent {t}")
    solver = CASES["dmtl-elm by numbers"]().set_params(rank=1)
    assert_stack_computes_as_agents_alone(solver, random_stack(4, 4, 4, 2, 3), make_topology("path", range(4)), 0)


@given(seed=seeds, m=st.integers(2, 21), shape=st.sampled_from([(1, 1), (2, 1), (1, 3), (5, 2)]))
def test_messages_of_neighbours_are_added_one_after_another(seed, m, shape):
    """However many agents receive them at once: the hub of a star receives from all others."""
    topology = make_topology("star", range(m))
    receiver, sender = topology.ends
    values = np.random.default_rng(seed).standard_normal((m, *shape)) * 10.0 ** np.arange(m)[:, None, None]
    messages = NeighborMessages(values[sender], receiver)
    together = messages.sum(messages.values, values)
    for t in range(m):
        alone = NeighborMessages(messages.values[receiver == t])
        expected = np.zeros(shape)
        for j in topology.neighbors(t):
            expected = expected + values[j]
        assert_same(alone.sum(alone.values, values[t]), expected, f"agent {t} alone")
        assert_same(together[t], expected, f"agent {t} in a stack")


def test_an_agent_without_neighbours_has_the_sum_zero():
    none = np.zeros((0, 2, 2))
    messages = NeighborMessages(none, np.zeros(0, dtype=np.intp))
    assert_same(messages.sum(none, np.ones((3, 2, 2))), np.zeros((3, 2, 2)), "a stack")
    assert_same(NeighborMessages(none).sum(none, np.ones((2, 2))), np.zeros((2, 2)), "alone")


# --- Features in groups -----------------------------------------------------------------------------------------------

#: Cases that are close to others.
NEAR_OTHERS = ("mesh-elm without a certificate", "mesh-elm with a private part")


def for_each_grouped(names: Iterable[str] = GROUPED) -> pytest.MarkDecorator:
    """Run a test for each case of features in groups; `make test` leaves out those that are close to others."""
    marks = {name: pytest.mark.slow if name in NEAR_OTHERS else () for name in names}
    return pytest.mark.parametrize("case", [pytest.param(name, marks=marks[name]) for name in names])


# Some of these cases have few rounds on purpose; other reasons for the warning are errors.
within_few_rounds = pytest.mark.filterwarnings(
    r"ignore:After \d+ rounds. Not converged within max_iter:sklearn.exceptions.ConvergenceWarning"
)


@for_each_grouped()
@given(seed=seeds, graph=st.sampled_from(GRAPHS), classes=st.booleans())
@few
def test_with_features_in_groups_agents_apart_compute_the_bits_of_their_stack(case, seed, graph, classes):
    solver = GROUPED[case]()
    grouped = grouped_for(solver, seed, graph, classes=classes)
    _, _, together = play(grouped.program(solver), continuing(grouped.topology))
    apart = play_apart([grouped.program(solver, agents=[t]) for t in range(len(grouped.sites))])
    for t, own in enumerate(apart):
        for name in ("A", "V", "prior"):
            whole = getattr(together, name)
            assert_same(getattr(own, name), None if whole is None else whole[t : t + 1], f"{name} of agent {t}")
        for name in ("U", "W", "mu1", "mu2", "certificate", "hidden"):
            assert_same(getattr(own, name), getattr(together, name), f"{name} of agent {t}")
        if together.effects is not None:
            expected = dataclasses.replace(together.effects, log_w=together.effects.log_w[t : t + 1])
            assert_same(own.effects, expected, f"effects of agent {t}")


@for_each_grouped([case for case, make in GROUPED.items() if make().iterative])
@given(seed=seeds, graph=st.sampled_from(GRAPHS), classes=st.booleans())
@few
def test_with_features_in_groups_resuming_from_any_state_gives_the_same_bits(case, seed, graph, classes):
    solver = GROUPED[case]()
    grouped = grouped_for(solver, seed, graph, classes=classes)
    requests, answers, solution = play(grouped.program(solver), continuing(grouped.topology))
    for i, state in some_of(reports_in(requests)):
        again = play(grouped.program(solver, written_and_read(state)), replaying(answers[i:]))
        assert_same(again, (requests[i:], answers[i:], solution), f"from request {i}")


@given(seed=seeds)
@few
def test_columns_that_pad_a_task_do_not_change_what_it_finds_alone(seed):
    """Tasks with fewer outputs than others of their stack."""
    narrow, wide = grouped_sites(seed, outputs=1), grouped_sites(seed + 1, outputs=3)
    solver = elmesh.LocalELM()
    mixed = GroupedSites(narrow.groups, [narrow.sites[0], wide.sites[0]], make_topology("path", [0, 1]))
    _, _, together = play(mixed.program(solver), continuing(mixed.topology))
    _, _, alone = play(narrow.program(solver, agents=[0]), continuing(narrow.topology))
    np.testing.assert_allclose(together.A[0, :, :1], alone.A[0], rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(together.prior[0], alone.prior[0], rtol=1e-6)


# --- Declarations -----------------------------------------------------------------------------------------------------


@for_each_solver
def test_a_solver_is_registered_under_its_name_with_a_summary_and_a_docstring(cls):
    assert solver_classes()[cls.name] is cls
    assert type(make_solver(cls.name)) is cls
    assert cls.summary
    assert "Examples" in cls.__doc__
    if "Parameters\n" in cls.__doc__:
        missing = [name for name in cls().get_params() if name not in cls.__doc__]
        assert not missing


@for_each_case
def test_a_solver_requires_exactly_the_requests_that_it_makes(case):
    solver, requests = CASES[case](), []
    task, topology = random_problem(1, m=4, d=2).task, make_topology(graph_of(solver, "ring"), range(4))
    if solver.pooled:
        topology = make_topology("ring", [0])
    if case in PLAIN:
        requests, _, _ = play(program_of(solver, task, topology), continuing(topology))
    made = {type(request) for request in requests if not isinstance(request, RoundReport)}
    if solver.grouped_features:
        grouped = grouped_sites(1)
        others, _, _ = play(grouped.program(solver), continuing(grouped.topology))
        made |= {type(request) for request in others if not isinstance(request, RoundReport)}
    if solver.pooled:
        # One agent with all tasks answers its own sums, and sends nothing.
        assert made <= {AllReduce, IntegerSum}
    else:
        assert made == set(solver.requires)
    if solver.sends_only_basis and AllReduce not in solver.requires:
        widths = {request.value.shape[-2:] for request in requests if isinstance(request, NeighborSum)}
        assert widths == {(task.V.shape[-2], 2)}


@for_each_case
def test_a_solver_has_a_graph_exactly_if_its_agents_exchange_messages(case):
    solver = CASES[case]()
    assert solver.distributed == (solver.graph is not None)
    assert solver.distributed == bool(solver.requires and not solver.pooled)
    if "graph" in solver.get_params() and not solver.pooled:
        none = clone(solver).set_params(graph=None)
        # Without a graph a solver has all data in one place, or is refused.
        if not none.pooled:
            with pytest.raises(elmesh.ElmeshError, match="graph must be"):
                make_solver(none)


@for_each_case
def test_the_local_backend_provides_all_that_a_solver_requires(case):
    resolve_backend("local").check(CASES[case]())


@for_each_case
def test_parameters_can_be_read_set_and_cloned(case):
    solver = CASES[case]()
    solver.check()
    parameters = solver.get_params()
    copy = clone(solver)
    assert type(copy) is type(solver)
    assert copy.get_params() == parameters
    assert type(solver)().set_params(**parameters).get_params() == parameters
    assert type(solver).__name__ in repr(solver)
    with pytest.raises(ValueError, match="Invalid parameter 'unheard_of'"):
        solver.set_params(unheard_of=1)


@for_each_solver
def test_common_parameters_are_checked(cls):
    wrong = {
        "rank": cls.least_rank - 1,
        "mu": 0.0,
        "mu1": -1.0,
        "mu2": float("nan"),
        "max_iter": 0,
        "tol": -1.0,
        "certify": "yes",
    }
    for name, value in wrong.items():
        if name in cls().get_params():
            with pytest.raises(elmesh.ElmeshError, match=f"^{name} must be"):
                make_solver(cls(**{name: value}))


# --- Runs -------------------------------------------------------------------------------------------------------------


def assert_finite(solver: Solver, result: RunResult, rank: int) -> None:
    """The metrics and the variables of a run are finite, and it sends exactly if it is over a graph."""
    assert np.isfinite(result.history.drop(columns="dual_residual").to_numpy()).all()
    # The residual of a start may be unknown.
    assert np.isfinite(result.history["dual_residual"].iloc[1:]).all()
    assert (result.history["objective"] >= 0).all()
    solution = result.solution
    assert np.isfinite(solution.A).all()
    assert solution.U is None or np.isfinite(solution.U).all()
    assert solution.U is None or solution.U.ndim == (3 if solver.per_agent_basis else 2)
    assert len(result.history) == (result.n_iter + 1 if solver.iterative else 0)
    assert result.n_iter <= (solver.max_iter or rank)
    assert result.stop not in (StopReason.DIVERGED, StopReason.INTERRUPTED)
    sends = solver.distributed
    assert (result.traffic.total > 0) == sends
    assert (result.n_exchanges > 0) == sends


@pytest.mark.thorough
@for_each_plain_case
def test_a_run_reports_finite_metrics_and_ends_with_finite_variables(case):
    solver, problem = CASES[case](), random_problem(3, m=5, d=2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = solve(solver, problem, graph_of(solver, "ring") if solver.distributed else None)
    assert_finite(solver, result, usable_rank(solver, problem.task))


@pytest.mark.thorough
@pytest.mark.parametrize(("case", "classes"), one_of(2, GROUPED, [False, True]))
def test_with_features_in_groups_a_run_reports_finite_metrics_and_ends_with_finite_variables(case, classes):
    solver = GROUPED[case]()
    grouped = grouped_for(solver, 3, classes=classes)
    topology, features = grouped.topology if solver.distributed else None, grouped.features(range(len(grouped.sites)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = run_local(solver, grouped.sites, topology, 0, features=features)
    assert_finite(solver, result, usable_rank(solver, grouped.sites))
    for name in ("W", "V", "prior"):
        part = getattr(result.solution, name)
        assert part is None or np.isfinite(part).all(), name


@for_each_iterative_case
def test_a_callback_sees_the_objective_of_every_round(case):
    solver, problem = CASES[case](), random_problem(3, m=4, d=2, unequal=False)
    seen: list[float] = []
    graph = graph_of(solver, "ring") if solver.distributed else None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = solve(solver, problem, graph, callback=lambda progress: seen.append(progress.objective))
    assert seen == result.history["objective"].tolist()


def rows(kind: str, *, one_model: bool = False) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Four tasks of unequal size; classes differ between tasks, unless a solver fits one model for all."""
    rng = np.random.default_rng(0)
    tasks = np.repeat(["aix", "bonn", "cork", "dijon"], [18, 25, 12, 30])
    X = rng.normal(size=(len(tasks), 4))
    y = np.tanh(X[:, 0]) + X[:, 1] * (tasks == "bonn") + 0.1 * rng.normal(size=len(X))
    if kind == "classification":
        y = np.digitize(y, [-0.4, 0.4])
        y[(tasks == "cork") & (y == 2) & (not one_model)] = 1
        y = np.array(["ash", "beech", "cedar"])[y]
    return X, y, tasks


KINDS = {"classification": MultiTaskELMClassifier, "regression": MultiTaskELMRegressor}


@pytest.mark.parametrize(
    ("kind", "case"),
    [
        *one_of(2, KINDS, CLASSES),
        *(pytest.param(kind, case, marks=pytest.mark.slow) for kind in KINDS for case in CASES if case not in CLASSES),
    ],
)
def test_a_fit_is_deterministic_and_its_model_is_saved_loaded_and_predicts_to_the_bit(kind, case, tmp_path):
    solver = ALL[case]()
    X, y, tasks = rows(kind, one_model=solver.one_model)
    model = KINDS[kind](n_hidden=15, solver=solver, random_state=3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        warnings.simplefilter("ignore", elmesh.errors.RankWarning)
        model.fit(X, y, tasks)
        again = clone(model).fit(X, y, tasks, run=RunConfig(callback=lambda _: None))
    np.testing.assert_array_equal(again.predict(X, tasks), model.predict(X, tasks))
    np.testing.assert_array_equal(again.U_, model.U_)
    assert again.history_.equals(model.history_)
    assert again.certificate_ == model.certificate_
    for t in model.tasks_:
        np.testing.assert_array_equal(again.A_[t], model.A_[t])

    summary = model.summary()
    assert json.loads(json.dumps(summary, allow_nan=False)) == summary
    assert summary["solver"] == model.solver.name
    assert summary["pooled"] == model.solver.pooled
    assert summary["tasks"] == ["aix", "bonn", "cork", "dijon"]
    assert summary["rounds"] == model.n_iter_

    model.save(tmp_path / "model")
    loaded = elmesh.load(tmp_path / "model")
    assert type(loaded.solver) is type(model.solver)
    assert loaded.solver.get_params() == model.solver.get_params()
    np.testing.assert_array_equal(loaded.predict(X, tasks), model.predict(X, tasks))
    np.testing.assert_array_equal(loaded.U_, model.U_)
    if kind == "classification":
        np.testing.assert_array_equal(loaded.predict_proba(X, tasks), model.predict_proba(X, tasks))
    alone = loaded.for_task("bonn")
    assert alone.solver.get_params() == model.solver.get_params()
    np.testing.assert_array_equal(alone.predict(X[tasks == "bonn"]), model.predict(X, tasks)[tasks == "bonn"])


#: Cases with a basis of a given rank, which take many rounds to a small tolerance.
LONG = ("mesh-elm with a shared part", "mesh-elm without a certificate")


@pytest.mark.parametrize(
    ("kind", "case"),
    [
        *one_of(2, KINDS, [case for case in GROUPED if case not in LONG]),
        *(pytest.param(kind, case, marks=pytest.mark.slow) for kind in KINDS for case in LONG),
    ],
)
def test_the_order_of_rows_and_the_names_of_tasks_do_not_matter_to_features_in_groups(kind, case):
    X, y, tasks = rows(kind, one_model=GROUPED[case]().one_model)
    order = np.random.default_rng(1).permutation(len(X))
    # The other names sort the other way round, so that agents have other numbers.
    renamed = np.array([f"{9 - 'abcd'.index(t[0])} {t}" for t in tasks])
    solver = GROUPED[case]()
    if "tol" in solver.get_params():
        solver.set_params(tol=1e-6, max_iter=2000)
    model = KINDS[kind](n_hidden=15, solver=solver, random_state=3).fit(X, y, tasks)
    again = clone(model).fit(X[order], y[order], renamed[order])
    if kind == "regression":
        np.testing.assert_allclose(again.predict(X, renamed), model.predict(X, tasks), atol=1e-5)
    else:
        np.testing.assert_allclose(again.predict_proba(X, renamed), model.predict_proba(X, tasks), atol=1e-5)


@within_few_rounds
@pytest.mark.parametrize(("kind", "case"), one_of(4, KINDS, GROUPED))
def test_a_seed_determines_features_in_groups_and_another_seed_gives_others(kind, case):
    X, y, tasks = rows(kind, one_model=GROUPED[case]().one_model)
    one, same, other = (
        KINDS[kind](n_hidden=15, solver=GROUPED[case](), random_state=seed).fit(X, y, tasks) for seed in (3, 3, 4)
    )
    table = "predict" if kind == "regression" else "predict_proba"
    np.testing.assert_array_equal(getattr(same, table)(X, tasks), getattr(one, table)(X, tasks))
    assert (getattr(other, table)(X, tasks) != getattr(one, table)(X, tasks)).any()


@within_few_rounds
@pytest.mark.parametrize(("kind", "case"), one_of(2, KINDS, GROUPED))
def test_a_model_of_features_in_groups_is_saved_and_loaded_to_the_bit(kind, case, tmp_path):
    X, y, tasks = rows(kind, one_model=GROUPED[case]().one_model)
    model = KINDS[kind](n_hidden=15, solver=GROUPED[case](), random_state=3).fit(X, y, tasks)
    model.save(tmp_path / "model")
    loaded = elmesh.load(tmp_path / "model")
    sites = np.append(tasks[1:], "elsewhere") if model.model_.common is not None else tasks
    table = "predict" if kind == "regression" else "predict_proba"
    np.testing.assert_array_equal(getattr(loaded, table)(X, sites), getattr(model, table)(X, sites))
    np.testing.assert_array_equal(loaded.U_, model.U_)
    for t in model.tasks_:
        np.testing.assert_array_equal(loaded.A_[t], model.A_[t])
    if model.model_.common is not None:
        np.testing.assert_array_equal(loaded.W_, model.W_)
        if kind == "regression":
            np.testing.assert_array_equal(loaded.predict(X, sites, True)[1], model.predict(X, sites, True)[1])


@pytest.mark.thorough
@for_each([*ITERATIVE, *TRAINED], pytest.mark.slow)
def test_a_fit_resumes_from_a_checkpoint_to_the_same_bits(case, tmp_path: Path):
    X, y, tasks = rows("regression")
    model = MultiTaskELMRegressor(n_hidden=15, solver=ALL[case](), random_state=3)
    checkpoint = elmesh.CheckpointConfig(tmp_path, every=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        whole = clone(model).fit(X, y, tasks)
        half = max(1, whole.n_iter_ // 2)
        run = RunConfig(callback=lambda progress: progress.round == half, checkpoint=checkpoint)
        stopped = clone(model).fit(X, y, tasks, run=run)
        resumed = clone(model).fit(X, y, tasks, run=RunConfig(checkpoint=checkpoint))
    assert stopped.n_iter_ == min(half, whole.n_iter_)
    assert resumed.history_.equals(whole.history_)
    np.testing.assert_array_equal(resumed.predict(X, tasks), whole.predict(X, tasks))
    assert resumed.certificate_ == whole.certificate_
    assert (resumed.traffic_ is None) == (whole.traffic_ is None)
    assert resumed.traffic_ is None or resumed.traffic_.equals(whole.traffic_)


def test_all_tasks_in_one_place_and_one_task_on_a_graph_give_the_same_solution():
    problem = random_problem(4, m=1, d=2, unequal=False)
    alone = solve(elmesh.MeshELM(tol=1e-8), problem, "ring").solution
    central = run_local(elmesh.MeshELM(graph=None, tol=1e-8), problem.task, None, 0).solution
    np.testing.assert_allclose(alone.U @ alone.A[0], central.U @ central.A[0], rtol=1e-9)


# Some checks set no seed, and a method may need more rounds from some seeds: it is fixed, and tol is large.
ESTIMATORS = {
    name: estimator(
        n_hidden=20,
        solver=cls().set_params(**({"tol": 0.1} if "tol" in cls().get_params() else {})),
        random_state=0,
    )
    for (name, cls), estimator in zip(
        CLASSES.items(), [MultiTaskELMRegressor, MultiTaskELMClassifier] * 100, strict=False
    )
}
# A method of one place, and one of each task alone; tests/unit/test_estimators.py has the default, of a graph, with all
# checks. These are the ones whose outcome a solver decides.
CHECKED_ALWAYS = ("mtl-elm", "local-elm")
DECIDED_BY_SOLVERS = (
    *AT_THE_LIMITS,
    "check_classifiers_train",
    "check_dict_unchanged",
    "check_estimators_dtypes",
    "check_estimators_pickle",
    "check_methods_sample_order_invariance",
    "check_methods_subset_invariance",
    "check_regressors_int",
    "check_regressors_train",
)


@pytest.mark.parametrize(
    ("estimator", "check"),
    [one for name in CHECKED_ALWAYS for one in some_checks(ESTIMATORS[name], DECIDED_BY_SOLVERS)],
)
@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore::elmesh.errors.RankWarning", "ignore::sklearn.exceptions.ConvergenceWarning")
def test_the_checks_of_scikit_learn_that_solvers_decide_pass(estimator, check):
    check(clone(estimator))


@parametrize_with_checks(list(ESTIMATORS.values()))
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::elmesh.errors.RankWarning", "ignore::sklearn.exceptions.ConvergenceWarning")
def test_the_checks_of_scikit_learn_pass_with_every_method(estimator, check):
    run_check(estimator, check)
