"""The paper's formulas, compared with the solvers of the package and with their equations."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from elmesh import DMTLELM, FODMTLELM, MTLELM
from elmesh.comm.graph import GRAPH_NAMES, Topology, make_topology
from elmesh.data.statistics import Task
from elmesh.math.central_step import CentralUStep
from elmesh.math.objective import agent_objective, objective
from elmesh.paper.reference_formulas import ReferenceADMM, alternating_step
from elmesh.run import RunConfig, run_local
from elmesh.solvers.base import Solution
from helpers.examples import examples
from helpers.marks import one_of
from helpers.problems import Problem, figure_three, random_problem, usable_rank

ROUNDS = 5


def states(solver, task: Task, topology: Topology | None, seed: int = 0) -> list[Solution]:
    """The variables at the start and after every round."""
    seen: list[Solution] = []
    run_local(solver, task, topology, seed, RunConfig(callback=lambda progress: seen.append(progress.solution)))
    return seen


def even(seed: int, m: int, L: int, d: int) -> Problem:
    """Tasks with as many outputs each, for which the printed formulas are written."""
    return random_problem(seed, m=m, L=L, r=2, d=d, n_max=8, unequal=False)


# Algorithm 1


@given(
    seed=st.integers(0, 10**6),
    m=st.integers(2, 5),
    L=st.integers(3, 6),
    r=st.integers(1, 3),
    d=st.integers(1, 3),
    mu1=st.floats(0.05, 5),
    mu2=st.floats(0.05, 5),
)
@examples(40)
def test_an_alternating_step_solves_its_two_equations_and_lowers_the_objective(seed, m, L, r, d, mu1, mu2):
    problem = even(seed, m, L, d)
    H, T = problem.H, problem.T
    A = np.random.default_rng(seed).normal(size=(m, r, d))
    before = np.inf
    for _ in range(4):
        U, A_new = alternating_step(H, T, A, mu1, mu2)
        # (8), the gradient in U for the A it was given.
        terms = [h.T @ (h @ U @ a - t) @ a.T for h, t, a in zip(H, T, A, strict=True)]
        assert_allclose(sum(terms) + mu1 * U, 0, atol=1e-9 * max(np.abs(term).max() for term in terms) + 1e-12)
        # (10), the gradient in A for the U that came of it.
        for h, t, a in zip(H, T, A_new, strict=True):
            assert_allclose(U.T @ h.T @ (h @ U @ a - t) + mu2 * a, 0, atol=1e-9 * (1 + np.abs(U.T @ h.T @ t).max()))
        between = objective(problem.task, U, A, mu1, mu2)
        after = objective(problem.task, U, A_new, mu1, mu2)
        assert after <= between * (1 + 1e-12) <= before * (1 + 1e-12) ** 2
        before, A = after, A_new


@given(st.integers(0, 10**6), st.integers(2, 5), st.integers(3, 6), st.integers(1, 3))
@examples(40)
def test_the_package_solves_the_system_9_without_building_it(seed, m, L, r):
    problem = even(seed, m, L, 2)
    A = np.random.default_rng(seed).normal(size=(m, r, 2))
    U, _ = alternating_step(problem.H, problem.T, A, 0.7, 0.3)
    assert_allclose(CentralUStep(problem.task).solve(A, np.zeros((L, r)), 0.7), U, atol=1e-9 * np.abs(U).max())


@pytest.mark.parametrize("seed", one_of(3, range(3)))
def test_mtl_elm_takes_the_steps_of_the_formulas(seed):
    problem = random_problem(seed, m=3, L=6, d=2, unequal=False)
    solver = MTLELM(rank=3, mu1=0.5, mu2=0.8, init="random", max_iter=20, tol=0.0)
    path = states(solver, problem.task, None, seed)
    A = path[0].A
    for state in path[1:]:
        U, A_next = alternating_step(problem.H, problem.T, A, 0.5, 0.8)
        assert_allclose(state.U, U, atol=1e-8 * np.abs(U).max())
        assert_allclose(state.A, A_next, atol=1e-8 * np.abs(A_next).max())
        A = state.A


def test_mtl_elm_from_the_printed_start_follows_the_printed_path():
    problem = figure_three(1)
    solver = MTLELM(rank=2, mu1=2.0, mu2=2.0, init="ones", max_iter=40, tol=0.0)
    path = states(solver, problem.task, None)
    A = np.ones((5, 2, 1))
    for state in path[1:]:
        U, A = alternating_step(problem.H, problem.T, A, 2.0, 2.0)
        printed = objective(problem.task, U, A, 2.0, 2.0)
        assert objective(problem.task, np.asarray(state.U), state.A, 2.0, 2.0) == pytest.approx(printed, rel=1e-9)
    assert_allclose(path[-1].U, U, atol=1e-6 * np.abs(U).max())


# Algorithms 2 and 3


@dataclass(frozen=True)
class Setting:
    """A problem, a graph and parameters of both."""

    problem: Problem
    topology: Topology
    parameters: dict
    first_order: bool
    P: np.ndarray
    Q: np.ndarray
    delta: float | None


@st.composite
def drawn(draw) -> Setting:
    m, L = draw(st.integers(2, 5)), draw(st.integers(3, 6))
    problem = even(draw(st.integers(0, 10**6)), m, L, draw(st.integers(1, 2)))
    r = draw(st.integers(1, min(3, usable_rank(problem))))
    topology = make_topology(draw(st.sampled_from(sorted(set(GRAPH_NAMES)))), range(m))
    rho, zeta = draw(st.floats(0.2, 3)), draw(st.floats(0, 4))
    offset, gamma = draw(st.floats(0.5, 20)), draw(st.sampled_from(["paper", "auto"]))
    proximal, by_text = draw(st.sampled_from(["linear", "standard"])), draw(st.booleans())
    degree = topology.degree.astype(float)
    if by_text:
        offset, rho = float(draw(st.integers(1, 20))), min(rho, 1.0)
        tau, value = f"{offset:g} + d", offset + degree
    else:
        tau = value = offset + rho * degree
    parameters = {
        "rank": r, "mu1": draw(st.floats(0.1, 4)), "mu2": draw(st.floats(0.1, 4)), "rho": rho, "tau": tau, "zeta": zeta,
        "gamma": gamma, "delta": draw(st.floats(0.1, 20)), "proximal": proximal, "max_iter": ROUNDS, "tol": 0.0,
        "init": draw(st.sampled_from(["ones", "ones", "random", "spectral"])),
    }  # fmt: skip
    return Setting(
        problem,
        topology,
        parameters,
        draw(st.booleans()),
        value - rho * degree if proximal == "linear" else np.broadcast_to(value, (m,)),
        np.full(m, zeta),
        parameters["delta"] if gamma == "paper" else None,
    )


def reference(setting: Setting, start: Solution, **changes) -> ReferenceADMM:
    problem, own = setting.problem, setting.parameters
    edges = [tuple(edge) for edge in setting.topology.edges.tolist()]
    return ReferenceADMM(
        problem.H, problem.T, edges, np.asarray(start.U), start.A, own["mu1"], own["mu2"], own["rho"], setting.P,
        setting.Q, delta=setting.delta, first_order=setting.first_order, **changes,
    )  # fmt: skip


@pytest.mark.thorough
@given(drawn())
@examples(60)
def test_the_formulas_give_the_rounds_of_the_package(setting):
    solver = FODMTLELM(**setting.parameters) if setting.first_order else DMTLELM(**setting.parameters)
    path = states(solver, setting.problem.task, setting.topology)
    assume(len(path) == ROUNDS + 1)  # a first-order run may leave through the top
    start = path[0]
    if setting.parameters["init"] == "ones":
        assert (np.asarray(start.U) == 1).all()
        assert (start.A == 1).all()
    agents = reference(setting, start)
    for k, state in enumerate(path):
        if k:
            agents.step()
        size = max(1.0, np.abs(agents.U).max(), np.abs(agents.A).max())
        assert_allclose(state.U, agents.U, atol=1e-9 * size, rtol=1e-9)
        assert_allclose(state.A, agents.A, atol=1e-9 * size, rtol=1e-9)
        # C'lambda is what an agent of the package keeps.
        pulls = np.zeros_like(agents.U)
        for lam, (i, j) in zip(agents.multiplier, agents.edges, strict=True):
            pulls[i] += lam
            pulls[j] -= lam
        assert_allclose(state.dual, pulls, atol=1e-8 * size * max(1.0, setting.parameters["rho"]))


@given(drawn())
@examples(40)
def test_the_printed_objective_is_the_sum_of_the_agents_shares(setting):
    solver = DMTLELM(**setting.parameters | {"max_iter": 1})
    start = states(solver, setting.problem.task, setting.topology)[0]
    agents, task, own = reference(setting, start), setting.problem.task, setting.parameters
    U, A, m = agents.U, agents.A, len(agents.H)
    fits = [h @ u @ a - t for h, u, a, t in zip(agents.H, U, A, agents.T, strict=True)]
    by_hand = sum(
        (fit**2).sum() / 2 + own["mu1"] / (2 * m) * (u**2).sum() + own["mu2"] / 2 * (a**2).sum()
        for fit, u, a in zip(fits, U, A, strict=True)
    )
    assert agents.objective() == pytest.approx(by_hand, rel=1e-12)
    R = task.s_column * (task.V.mT @ U) @ A - task.Y
    shares = agent_objective(task, R, np.sum(U**2, axis=(1, 2)), A, own["mu1"], own["mu2"], m)
    assert agents.objective() == pytest.approx(float(shares.sum()), rel=1e-9)


@given(drawn())
@examples(40)
def test_an_exact_step_solves_its_equation_and_does_not_change_the_start(setting):
    setting = replace(setting, first_order=False)
    rng = np.random.default_rng(0)
    m, L, r, d = len(setting.problem.H), setting.problem.H[0].shape[1], setting.parameters["rank"], 1
    problem = even(3, m, L, d)
    setting = replace(setting, problem=problem)
    U, A = rng.normal(size=(m, L, r)), rng.normal(size=(m, r, d))
    agents = reference(setting, Solution(U.copy(), A.copy()))
    agents.multiplier = rng.normal(size=agents.multiplier.shape)
    multiplier = agents.multiplier.copy()
    start = agents.U
    agents.step()
    assert_allclose(start, U)
    own, edges = setting.parameters, agents.edges
    for t, (h, target) in enumerate(zip(problem.H, problem.T, strict=True)):
        gradient = h.T @ (h @ agents.U[t] @ A[t] - target) @ A[t].T + own["mu1"] / m * agents.U[t]
        gradient += setting.P[t] * (agents.U[t] - U[t])
        for lam, (i, j) in zip(multiplier, edges, strict=True):
            if t in (i, j):
                other = j if t == i else i
                gradient += (lam if t == i else -lam) + own["rho"] * (agents.U[t] - U[other])
        assert_allclose(gradient, 0, atol=1e-8 * (1 + np.abs(agents.U).max() * (1 + np.abs(h.T @ h).max())))


@pytest.mark.parametrize("seed", one_of(3, range(3)))
def test_the_printed_sign_drives_agents_apart_and_the_other_brings_them_together(seed):
    problem, ring = figure_three(seed), make_topology("ring", range(5))
    edges = [tuple(edge) for edge in ring.edges.tolist()]
    rng = np.random.default_rng(seed)
    U, A = np.broadcast_to(rng.uniform(-1, 1, (5, 2)), (5, 5, 2)), rng.uniform(-1, 1, (5, 2, 1))
    weights = np.ones(5)
    ends = {}
    for printed_sign in (True, False):
        agents = ReferenceADMM(
            problem.H, problem.T, edges, U, A, 2.0, 2.0, 1.0, weights, weights, printed_sign=printed_sign
        )
        start = agents.objective()
        for _ in range(100):
            agents.step()
        gap = np.linalg.norm(agents.U - agents.U.mean(axis=0)) / np.linalg.norm(agents.U.mean(axis=0))
        ends[printed_sign] = agents.objective() / start, gap
    assert ends[True][0] > 1e6
    assert ends[True][1] > 1
    assert ends[False][0] < 1
    assert ends[False][1] < 1e-3
