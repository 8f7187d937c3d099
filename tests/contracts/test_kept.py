"""Programs that are stopped after a report and taken up again, and agents that leave a stack or join one.

Requests are compared to the bit, with everything in them. So are the answers a program gets: they come from the
functions below, or from what was recorded.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import pytest
from elmesh.run.local import StackedLink, place_of
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load, save

from elmesh.comm.graph import Topology, make_topology
from elmesh.comm.requests import Answer, Heard, Hub, Kept, Neighbours, Program, Report, Request, State, Total
from elmesh.data.statistics import Task
from elmesh.math.kernels import curvature
from elmesh.solvers import (
    DGSP,
    DMTLELM,
    DNSP,
    FODMTLELM,
    GOMTL,
    MTFL,
    MTLELM,
    DifAltGDmin,
    FedRep,
    LocalELM,
    Solver,
    TraceNorm,
)
from elmesh.solvers.altgdmin import sharpness
from helpers.peers import exact_sums
from helpers.problems import random_problem

seeds = st.integers(0, 10**6)
few = settings(max_examples=3)
admm = partial(DMTLELM, method="admm")

DISTRIBUTED = {
    "dmtl-elm": partial(DMTLELM, max_iter=12),
    "dmtl-elm of a given rank": partial(DMTLELM, rank=2, mu1=0.3, mu2=0.7, tol=1e-6, max_iter=45, init="random"),
    "dmtl-elm that grows": partial(DMTLELM, mu1=0.1, mu2=0.1, max_iter=60),
    "dmtl-elm without a certificate": partial(DMTLELM, rank=1, certify=False, max_iter=5),
    "admm": partial(admm, rank=2, max_iter=6),
    "admm by numbers": partial(
        admm, rank=2, mu1=0.5, mu2=2.0, rho=1.5, tau="2 + d", zeta=0.5, gamma=0.9, max_iter=5, init="ones"
    ),
    "admm by the paper's rule": partial(admm, rank=2, gamma="paper", proximal="standard", tau=3.0, max_iter=6),
    "fo-dmtl-elm": partial(FODMTLELM, rank=2, max_iter=6),
    "fo-dmtl-elm by the paper's rule": partial(FODMTLELM, rank=2, gamma="paper", rho=0.5, max_iter=6, init="random"),
    "dgsp": partial(DGSP, rank=4),
    "dgsp until nothing is left": partial(DGSP, rank=40),
    "dnsp": partial(DNSP, rank=40, mu=0.1),
    "fedrep": partial(FedRep, rank=2, max_iter=4),
    "fedrep from anywhere": partial(FedRep, rank=2, local_steps=3, init="random", step=0.5, max_iter=4),
    "dif-altgdmin": partial(DifAltGDmin, rank=2, max_iter=4),
    "dif-altgdmin that mixes": partial(DifAltGDmin, rank=2, mixing=2, step=0.5, max_iter=4),
}
POOLED = {
    "mtl-elm": partial(MTLELM, max_iter=40),
    "mtl-elm of a given rank": partial(MTLELM, rank=2, mu1=0.5, mu2=0.2, tol=1e-6, max_iter=40),
    "mtl-elm by alternation": partial(MTLELM, rank=2, method="alternating", max_iter=5),
    "mtl-elm by alternation from ones": partial(MTLELM, rank=2, mu1=1.0, method="alternating", init="ones", max_iter=5),
    "mtfl": partial(MTFL, max_iter=5),
    "go-mtl": partial(GOMTL, rank=3, mu2=0.1, max_iter=5),
    "go-mtl without codes": partial(GOMTL, rank=2, mu2=1e6, init="random", max_iter=3),
    "trace-norm": partial(TraceNorm, mu1=0.1, max_iter=12),
}
GRAPHS = ("ring", "star", "path", "random")


# Driving -------------------------------------------------------------------------------------------------------------


def make(solver: Solver, task: Task, topology: Topology, kept: Kept | None = None) -> Program:
    solver.check()
    return solver.program(task, place_of(topology, 3), most_rank(solver, task), kept)


def most_rank(solver: Solver, task: Task) -> int:
    """The rank asked for, within what the features allow, and no warning."""
    if getattr(solver, "rank", "auto") == "auto":
        return solver.resolve_rank(task)
    return min(int(solver.rank), int(task.V.shape[-2]))


def told_to_stack(request: Request, topology: Topology) -> object:
    """Answer a stack of all agents: neighbours one after another, totals in the order of agents."""
    if isinstance(request, Neighbours):
        hearer, speaker = topology.ends
        heard = Heard(request.value[speaker], hearer)
        return heard if request.each else heard.total(heard.values, request.value)
    if isinstance(request, Total):
        return exact_sums([request])[0]
    assert isinstance(request, Hub)
    return request.function(request.value)


def play(program: Program, answered: Callable[[Request], object]) -> tuple[list[Request], list[object], State]:
    """Run a program to its end; return all it asked, all it was told, and what it returned."""
    requests: list[Request] = []
    answers: list[object] = []
    seen: list[tuple[Kept, Kept]] = []
    answer = None
    while True:
        try:
            request = program.send(answer)
        except StopIteration as end:
            for kept, copy in seen:
                assert_same(kept, copy, "what was kept is written to")
            return requests, answers, end.value
        if isinstance(request, Report):
            seen += [(kept, each_array(np.copy, kept)) for kept in request.kept]
        answer = answered(request)
        requests.append(request)
        answers.append(answer)


def going_on(topology: Topology, verdicts: dict[int, Answer] | None = None) -> Callable[[Request], object]:
    """Answer everything; reports by their round, and "go on" where nothing else is said."""

    def answered(request: Request) -> object:
        if isinstance(request, Report):
            return (verdicts or {}).get(request.round, Answer.GO_ON)
        return told_to_stack(request, topology)

    return answered


def replaying(answers: list[object]) -> Callable[[Request], object]:
    rest = iter(answers)
    return lambda _: next(rest)


def reports_in(requests: list[Request]) -> Iterator[tuple[int, Kept]]:
    """Where the reports are, and what each of them keeps."""
    for i, request in enumerate(requests):
        if isinstance(request, Report):
            (kept,) = request.kept
            yield i, kept


# Bits ----------------------------------------------------------------------------------------------------------------


def each_array(change: Callable[[np.ndarray], np.ndarray], kept: Kept) -> Kept:
    parts = ({name: change(x) for name, x in part.items()} for part in (kept.own, kept.common, kept.edges))
    return Kept(*parts)


def written_and_read(kept: Kept) -> Kept:
    """What a file gives back."""
    parts = []
    for part in (kept.own, kept.common, kept.edges):
        for name, x in part.items():
            assert type(x) is np.ndarray, name
            assert x.dtype == np.float64, name
            # The same numbers in another order would go another way through a product, and round otherwise.
            assert x.flags.c_contiguous, name
        parts.append(load(save({name: np.ascontiguousarray(x).reshape(x.shape) for name, x in part.items()})))
    return Kept(*parts)


def assert_same(found: object, wanted: object, where: str) -> None:
    """Compare to the bit, field by field."""
    if isinstance(wanted, np.ndarray | float):
        assert np.shape(found) == np.shape(wanted), where
        assert np.asarray(found).dtype == np.asarray(wanted).dtype, where
        assert np.asarray(found).tobytes() == np.asarray(wanted).tobytes(), where
        return
    assert type(found) is type(wanted), where
    if dataclasses.is_dataclass(wanted):
        for field in dataclasses.fields(wanted):
            name = field.name
            assert_same(getattr(found, name), getattr(wanted, name), f"{where}, {type(wanted).__name__}.{name}")
    elif isinstance(wanted, dict):
        assert found.keys() == wanted.keys(), where
        for key in wanted:
            assert_same(found[key], wanted[key], f"{where} {key}")
    elif isinstance(wanted, list | tuple):
        assert len(found) == len(wanted), where
        for i, (a, b) in enumerate(zip(found, wanted, strict=True)):
            assert_same(a, b, f"{where} {i}")
    elif isinstance(wanted, partial):
        assert_same((found.func, found.args), (wanted.func, wanted.args), where)
    else:
        assert found == wanted, where


def as_many(seed: int, graph: str = "ring") -> tuple[Task, Topology]:
    """Tasks of unequal rows and outputs over a graph."""
    rng = np.random.default_rng(seed)
    m = int(rng.integers(1, 6))
    problem = random_problem(seed, m=m, L=int(rng.integers(2, 14)), d=int(rng.integers(1, 4)), n_max=15)
    return problem.task, make_topology(graph, range(m), 3)


# Taken up again ------------------------------------------------------------------------------------------------------


def assert_taken_up_anywhere(
    solver: Solver, task: Task, topology: Topology, answered: Callable[[Request], object] | None = None
) -> None:
    requests, answers, state = play(make(solver, task, topology), answered or going_on(topology))
    assert any(isinstance(request, Report) for request in requests)
    for i, kept in reports_in(requests):
        again = play(make(solver, task, topology, written_and_read(kept)), replaying(answers[i:]))
        assert_same(again, (requests[i:], answers[i:], state), f"from request {i}")


@pytest.mark.parametrize("name", DISTRIBUTED)
@given(seed=seeds, graph=st.sampled_from(GRAPHS))
@few
def test_agents_taken_up_after_any_report_go_on_to_the_bit(name, seed, graph):
    solver = DISTRIBUTED[name]()
    assert_taken_up_anywhere(solver, *as_many(seed, solver.graph if solver.graph == "star" else graph))


@pytest.mark.slow
@pytest.mark.parametrize("name", POOLED)
@given(seed=seeds)
@few
def test_tasks_in_one_place_taken_up_after_any_report_go_on_to_the_bit(name, seed):
    task, _ = as_many(seed)
    assert_taken_up_anywhere(POOLED[name](), task, make_topology("ring", [0]))


@pytest.mark.parametrize("bits", [2, "auto"])
@given(seed=seeds, graph=st.sampled_from(GRAPHS))
@few
def test_coarse_messages_are_gone_on_with_to_the_bit(bits, seed, graph):
    task, topology = as_many(seed, graph)
    link = StackedLink(topology, bits)

    def coarsely(request: Request) -> object:
        return Answer.GO_ON if isinstance(request, Report) else link.add_up(request)

    assert_taken_up_anywhere(DMTLELM(message_bits=bits, max_iter=30, tol=1e-4), task, topology, coarsely)


@given(seed=seeds)
@few
def test_agents_whose_sums_differ_by_rounding_go_on_to_the_bit(seed):
    """What comes back of a U is not what A was solved at; so A is kept, and not solved for again."""
    task, topology = as_many(seed)

    def roughly(request: Request) -> object:
        answer = going_on(topology)(request)
        if isinstance(request, Total) and request.same is not None:
            answer = dataclasses.replace(answer, same=request.same * (1 + 1e-9))
        return answer

    assert_taken_up_anywhere(DMTLELM(rank=2, tol=1e-4, max_iter=12), task, topology, roughly)


def test_an_agent_s_own_care_is_gone_on_with(monkeypatch):
    """Every few rounds agents look back at whether they have come closer; here some have not, and double their care."""
    monkeypatch.setattr("elmesh.solvers.weights._WINDOW", 3)
    task, topology = random_problem(2, m=5).task, make_topology("path", range(5))
    solver = admm(rank=2, mu1=0.1, mu2=0.1, max_iter=20, certify=False)
    requests, _, _ = play(make(solver, task, topology), going_on(topology))
    factors = [kept.own["factor"] for _, kept in reports_in(requests)]
    assert np.any(factors[-1] > factors[0])
    assert_taken_up_anywhere(solver, task, topology)


@pytest.mark.parametrize("name", [*DISTRIBUTED, *POOLED])
@given(seed=seeds, verdict=st.sampled_from([Answer.GO_ON, Answer.SETTLED, Answer.HALT]), data=st.data())
@few
def test_the_answer_after_taking_up_decides_whatever_it_was_before(name, seed, verdict, data):
    """A run that was told to end, or to go on, is taken up and told otherwise."""
    solver = {**DISTRIBUTED, **POOLED}[name]()
    task, topology = as_many(seed, "star")
    topology = make_topology("ring", [0]) if solver.pooled else topology
    straight, answers, state = play(make(solver, task, topology), going_on(topology))
    found = list(reports_in(straight))
    i, kept = found[data.draw(st.integers(0, len(found) - 1))]
    k = straight[i].round
    wanted = play(make(solver, task, topology), going_on(topology, {k: verdict}))
    again = play(make(solver, task, topology, kept), going_on(topology, {k: verdict}))
    before = next(j for j, request in enumerate(wanted[0]) if isinstance(request, Report) and request.round == k)
    assert_same(again, (wanted[0][before:], wanted[1][before:], wanted[2]), f"told {verdict.name} in round {k}")
    if verdict == Answer.HALT:
        stopped = again[0][0]
        ended = play(make(solver, task, topology, *stopped.kept), going_on(topology))
        assert_same(ended, (straight[i:], answers[i:], state), "told to go on after all")


def test_a_method_without_rounds_keeps_nothing():
    task, topology = as_many(1)
    requests, _, _ = play(make(LocalELM(), task, topology), going_on(topology))
    assert requests == []


# Apart and together --------------------------------------------------------------------------------------------------


def of_agent(x: object, t: int, degrees: np.ndarray) -> object:
    """What agent t alone would say where a stack of agents says ``x``."""
    match x:
        case Neighbours():
            return Neighbours(x.value[t], x.each)
        case Hub():
            return Hub(x.value[t], x.function)
        case Total():
            return dataclasses.replace(x, value=x.value[t], numbers=x.numbers[t])
        case Report():
            pairs = [tuple(part[t] for part in pair) for pair in (x.residual, x.scale)]
            kept = tuple(part.split(degrees)[t] for part in x.kept)
            return Report(x.round, of_agent(x.state, t, degrees), x.objective[t], *pairs, kept)
        case State():
            U = x.U if x.U is None or x.U.ndim == 2 else x.U[t]
            tau, zeta = (part[t] if np.ndim(part) else part for part in (x.tau, x.zeta))
            dual = None if x.dual is None else x.dual[t]
            return dataclasses.replace(x, U=U, A=x.A[t], dual=dual, tau=tau, zeta=zeta)
        case _:
            return x


def heard_by(t: int, request: Request, answer: object) -> object:
    """What agent t alone would hear where a stack of agents hears ``answer``."""
    if isinstance(answer, Heard):
        return Heard(answer.values[answer.hearer == t])
    return answer[t] if isinstance(request, Neighbours) else answer


def numbers_as_arrays(x: object) -> object:
    """A number of an agent alone is a float of NumPy's or an array without axes; they are the same to a reader."""
    match x:
        case Report():
            pairs = [tuple(np.asarray(part) for part in pair) for pair in (x.residual, x.scale)]
            return Report(x.round, numbers_as_arrays(x.state), np.asarray(x.objective), *pairs, x.kept)
        case State():
            return dataclasses.replace(x, tau=np.asarray(x.tau), zeta=np.asarray(x.zeta))
        case _:
            return x


def assert_apart_as_together(solver: Solver, task: Task, topology: Topology, which: int) -> None:
    """Run all agents stacked and, from the start and from one of the reports on, each of them alone."""
    requests, answers, state = play(make(solver, task, topology), going_on(topology))
    degrees, rank = topology.degree, most_rank(solver, task)
    found = list(reports_in(requests))
    for i, kept in ((0, None), found[which % len(found)]):
        alone = [None] * topology.n_agents if kept is None else kept.split(degrees)
        for t, mine in enumerate(alone):
            program = solver.program(task.agent(t), place_of(topology, 3, t), rank, mine)
            heard = [heard_by(t, *pair) for pair in zip(requests[i:], answers[i:], strict=True)]
            said, _, end = play(program, replaying(heard))
            for found, all_said in zip(said, requests[i:], strict=True):
                wanted = numbers_as_arrays(of_agent(all_said, t, degrees))
                assert_same(numbers_as_arrays(found), wanted, f"agent {t} from request {i}")
            assert_same(numbers_as_arrays(end), numbers_as_arrays(of_agent(state, t, degrees)), f"agent {t}")
        if kept is not None:
            assert_same(Kept.stack(alone), kept, f"joined again from request {i}")


def random_stack(seed: int, m: int, L: int, q: int, d: int) -> Task:
    """Tasks of one shape, and of any scale; some singular values may be nothing but padding."""
    rng = np.random.default_rng(seed)
    V = np.linalg.qr(rng.standard_normal((m, L, q)))[0]
    s = np.sort(rng.uniform(0.1, 5.0, (m, q)))[:, ::-1] * (rng.random((m, q)) > 0.1)
    Y = rng.standard_normal((m, q, d)) * np.exp(rng.normal())
    return Task(np.ascontiguousarray(V), s, Y, rng.uniform(0, 1, m), np.full(m, q + 5.0))


@pytest.mark.parametrize("name", DISTRIBUTED)
@given(seed=seeds, m=st.integers(2, 5), L=st.integers(1, 40), q=st.integers(1, 40), d=st.integers(1, 4), data=st.data())
@few
def test_agents_of_a_stack_compute_to_the_bit_what_each_computes_alone(name, seed, m, L, q, d, data):
    solver = DISTRIBUTED[name]()
    if getattr(solver, "rank", "auto") != "auto":
        solver.set_params(rank=data.draw(st.integers(1, L), label="rank"))
    graph = "star" if solver.graph == "star" else data.draw(st.sampled_from(GRAPHS), label="graph")
    assert_apart_as_together(solver, random_stack(seed, m, L, min(q, L), d), make_topology(graph, range(m), 3), seed)


@pytest.mark.parametrize("name", DISTRIBUTED)
def test_large_agents_of_a_stack_compute_to_the_bit_what_each_computes_alone(name):
    solver = DISTRIBUTED[name]()
    solver.set_params(rank=6, **({"max_iter": 2} if hasattr(solver, "max_iter") and solver.max_iter else {}))
    assert_apart_as_together(solver, random_stack(5, 3, 300, 120, 4), make_topology("star", range(3)), 1)


def test_a_number_of_an_agent_alone_is_squared_as_those_of_a_stack_are():
    """NumPy raises a single number to a power by another function than an array, and rounds it otherwise at times."""
    task = random_stack(1, 1500, 2, 1, 1)
    A = np.random.default_rng(1).standard_normal((1500, 1, 1))
    for own in (curvature, partial(sharpness, mu=0.1)):
        together = own(task, A)
        for t in range(1500):
            assert_same(own(task.agent(t), A[t]), together[t, ...], f"agent {t}")
    solver = DISTRIBUTED["admm by numbers"]().set_params(rank=1)
    assert_apart_as_together(solver, random_stack(4, 4, 4, 2, 3), make_topology("path", range(4)), 0)


@given(seed=seeds, m=st.integers(2, 21), shape=st.sampled_from([(1, 1), (2, 1), (1, 3), (5, 2)]))
def test_what_neighbours_say_is_added_up_one_after_another(seed, m, shape):
    """However many agents hear it at once: the hub of a star has all the others."""
    topology = make_topology("star", range(m))
    hearer, speaker = topology.ends
    values = np.random.default_rng(seed).standard_normal((m, *shape)) * 10.0 ** np.arange(m)[:, None, None]
    heard = Heard(values[speaker], hearer)
    together = heard.total(heard.values, values)
    for t in range(m):
        alone = Heard(heard.values[hearer == t])
        wanted = np.zeros(shape)
        for j in topology.neighbors(t):
            wanted = wanted + values[j]
        assert_same(alone.total(alone.values, values[t]), wanted, f"agent {t} alone")
        assert_same(together[t], wanted, f"agent {t} in a stack")


def test_an_agent_that_hears_nobody_adds_up_to_nothing():
    none = np.zeros((0, 2, 2))
    heard = Heard(none, np.zeros(0, dtype=np.intp))
    assert_same(heard.total(none, np.ones((3, 2, 2))), np.zeros((3, 2, 2)), "a stack")
    assert_same(Heard(none).total(none, np.ones((2, 2))), np.zeros((2, 2)), "alone")
