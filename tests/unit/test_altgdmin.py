"""Dif-AltGDmin and FedRep: their papers' rounds agent by agent, optimality, and their messages."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy.linalg import subspace_angles

import elmesh
from elmesh import (
    DifAltGDmin,
    FedRep,
    LocalELM,
    MultiTaskELMClassifier,
    MultiTaskELMRegressor,
)
from elmesh.comm.graph import GRAPH_NAMES, make_topology
from elmesh.errors import ElmeshError
from elmesh.math.kernels import orthonormal
from elmesh.run import StopReason
from elmesh.solvers import make_solver
from elmesh.solvers.fedrep import leading_subspace
from helpers.examples import examples
from helpers.marks import one_of
from helpers.peers import own_tasks, run_peers
from helpers.problems import followed, random_problem, ridge_of_rows, solve, stack, task_weights, usable_rank

AGENTS = [DifAltGDmin, FedRep]


def run(solver, problem, graph=None):
    return solve(solver, problem, graph or solver.graph)


def planted(seed=0, m=8, L=12, r=3, d=2, n=40):
    """Tasks without noise whose weights lie in the same r dimensions, on features with scales of 0.5 to 1.5."""
    rng = np.random.default_rng(seed)
    basis = np.linalg.qr(rng.normal(size=(L, r)))[0]
    H = [rng.normal(size=(n, L)) * rng.uniform(0.5, 1.5, size=L) for _ in range(m)]
    return stack(H, [h @ basis @ rng.normal(size=(r, d)) for h in H]), basis


# -------------------------------------------------------------------------------- the rounds, agent by agent with rows


def first_basis(problem, rank):
    """The leading left singular vectors of all moments, and how clear-cut they are."""
    left, values, _ = np.linalg.svd(np.hstack([H.T @ T for H, T in zip(problem.H, problem.T, strict=True)]))
    values = np.append(values, 0.0)
    return left[:, :rank], values[rank - 1] / values[0], 1 - values[rank] / values[rank - 1]


def sharpnesses(problem, U, mu):
    """A bound of each task's curvature in every direction."""
    for H, T in zip(problem.H, problem.T, strict=True):
        A = ridge_of_rows(H @ U, T, mu)
        yield (np.linalg.norm(H, 2) ** 2 + mu) * A @ A.T


def first_step(problem, U, mu):
    """One over the bound of the mean's curvature."""
    return len(problem.H) / np.linalg.norm(sum(sharpnesses(problem, U, mu)), 2)


def slope(H, T, U, A, mu):
    return H.T @ (H @ U @ A - T) @ A.T + mu * U @ A @ A.T


def reference_fedrep(problem, U, rounds, mu, factor, local_steps):
    eta = factor * first_step(problem, U, mu)
    for _ in range(rounds):
        sent = []
        for H, T in zip(problem.H, problem.T, strict=True):
            A, own = ridge_of_rows(H @ U, T, mu), U
            for _ in range(local_steps):
                own = own - eta * slope(H, T, own, A, mu)
            sent.append(own)
        U = np.linalg.qr(sum(sent) / len(sent))[0]
    return [U @ ridge_of_rows(H @ U, T, mu) for H, T in zip(problem.H, problem.T, strict=True)]


def reference_diffusion(problem, U, rounds, mu, factor, mixing, graph):
    m, eta = len(problem.H), factor / max(np.linalg.norm(own, 2) for own in sharpnesses(problem, U, mu))
    mixed = nx.to_numpy_array(graph, nodelist=range(m))
    degree = mixed.sum(axis=1)
    for i, j in graph.edges:
        mixed[i, j] = mixed[j, i] = 1 / (1 + max(degree[i], degree[j]))
    mixed += np.diag(1 - mixed.sum(axis=1))
    bases = [U] * m
    for _ in range(rounds):
        for t, (H, T) in enumerate(zip(problem.H, problem.T, strict=True)):
            bases[t] = bases[t] - eta * slope(H, T, bases[t], ridge_of_rows(H @ bases[t], T, mu), mu)
        for _ in range(mixing):
            bases = [sum(w * U for w, U in zip(row, bases, strict=True)) for row in mixed]
        for t, U in enumerate(bases):
            Q, R = np.linalg.qr(U)
            bases[t] = Q * np.sign(np.diag(R))
    return [U @ ridge_of_rows(H @ U, T, mu) for U, H, T in zip(bases, problem.H, problem.T, strict=True)]


def assert_close(found, expected):
    size = max(np.abs(w).max() for w in expected)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6 * size)


SHAPES = {
    "seed": st.integers(0, 10_000),
    "m": st.integers(1, 6),
    "d": st.integers(1, 3),
    "rank": st.integers(1, 4),
    "mu": st.floats(0.05, 10.0),
    "rounds": st.integers(1, 6),
}


@examples(40)
@given(**SHAPES, factor=st.floats(0.2, 2.0), local_steps=st.integers(1, 3))
def test_the_rounds_of_fedrep_are_those_of_a_loop_over_tasks(seed, m, d, rank, mu, rounds, factor, local_steps):
    problem = random_problem(seed, m=m, L=9, d=d)
    rank = min(rank, usable_rank(problem))
    U, size, gap = first_basis(problem, rank)
    assume(size > 1e-4)
    assume(gap > 1e-3)
    solver = FedRep(rank, mu, step_scale=factor, local_steps=local_steps, max_iter=rounds, tol=0.0)
    expected = reference_fedrep(problem, U, rounds, mu, factor, local_steps)
    assert_close(task_weights(problem, run(solver, problem).solution), expected)


@pytest.mark.thorough
@examples(40)
@given(**SHAPES, factor=st.floats(0.2, 2.0), mixing=st.integers(1, 3), graph=st.sampled_from(GRAPH_NAMES))
def test_the_rounds_of_dif_altgdmin_are_those_of_a_loop_over_agents(
    seed, m, d, rank, mu, rounds, factor, mixing, graph
):
    problem = random_problem(seed, m=m, L=9, d=d)
    rank = min(rank, usable_rank(problem))
    U, size, gap = first_basis(problem, rank)
    assume(size > 1e-3)
    assume(gap > 0.1)
    topology = make_topology(graph, range(m))
    # Power iterations leave the ratio of neighbouring singular values to twice their number.
    made = DifAltGDmin(
        rank, mu, graph, step_scale=factor, mixing=mixing, power_iterations=150, max_iter=rounds, tol=0.0
    )  # fmt: skip
    # Agents whose bases are turned within their span mix as before: the start is compared up to that.
    start = run(DifAltGDmin(rank, mu, graph, power_iterations=150, max_iter=1, tol=2.0), problem).solution.U[0]
    assert subspace_angles(start, U).max() < 1e-4
    expected = reference_diffusion(problem, start, rounds, mu, factor, mixing, topology.to_networkx(range(m)))
    found = task_weights(problem, run(made, problem).solution)
    size = max(np.abs(w).max() for w in expected)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-4 * size)


def test_on_the_complete_graph_with_equal_weights_diffusion_is_fedrep():
    problem = random_problem(3, m=5, d=2)
    shared = {"rank": 3, "mu": 0.5, "max_iter": 20, "tol": 0.0}
    agents = run(DifAltGDmin(**shared, graph="complete", power_iterations=200), problem)
    U = first_basis(problem, 3)[0]
    largest = max(np.linalg.norm(own, 2) for own in sharpnesses(problem, U, 0.5))
    hub = run(FedRep(**shared, step_scale=1 / (largest * first_step(problem, U, 0.5))), problem)
    assert agents.history["consensus_gap"].max() < 1e-5
    np.testing.assert_allclose(agents.history["objective"], hub.history["objective"], rtol=1e-6)
    np.testing.assert_allclose(agents.history["dual_residual"], hub.history["dual_residual"], atol=1e-4)


# ------------------------------------------------------------------------------------------------- what they arrive at


@pytest.mark.parametrize("seed", one_of(3, range(3)))
@pytest.mark.parametrize("init", ["moments", "random"])
def test_fedrep_recovers_a_planted_subspace(seed, init):
    problem, basis = planted(seed)
    result = run(FedRep(rank=3, mu=1e-9, init=init, max_iter=3000, tol=1e-9), problem)
    assert result.stop is StopReason.CONVERGED
    assert subspace_angles(result.solution.U, basis).max() < 1e-6


@pytest.mark.thorough
@pytest.mark.parametrize("graph", one_of(3, GRAPH_NAMES))
def test_dif_altgdmin_recovers_a_planted_subspace_at_every_agent(graph):
    problem, basis = planted(1)
    result = run(DifAltGDmin(rank=3, mu=1e-9, graph=graph, max_iter=3000, tol=1e-9), problem)
    assert result.stop is StopReason.CONVERGED
    # Without noise a basis that is right for one task is right for all, so a constant step does no harm.
    for U in result.solution.U:
        assert subspace_angles(U, basis).max() < 1e-6


def test_fedrep_ends_where_the_gradient_of_the_sum_vanishes():
    problem = random_problem(4, m=5)
    solution = run(FedRep(rank=2, mu=0.7, step_scale=2.0, max_iter=20_000, tol=1e-9), problem).solution
    pairs = list(zip(problem.H, problem.T, solution.A, strict=True))
    slopes = [slope(H, T, solution.U, A[:, : T.shape[1]], 0.7) for H, T, A in pairs]
    assert np.linalg.norm(sum(slopes)) < 1e-6 * sum(np.linalg.norm(s) for s in slopes)
    for H, T, A in pairs:
        np.testing.assert_allclose(A[:, : T.shape[1]], ridge_of_rows(H @ solution.U, T, 0.7), atol=1e-10)


@pytest.mark.thorough
def test_more_mixing_and_smaller_steps_bring_diffusing_agents_together():
    problem = random_problem(4, m=8)
    shared = {"rank": 2, "max_iter": 150, "tol": 0.0}
    gaps = [
        run(DifAltGDmin(**shared, **more), problem).history["consensus_gap"].iloc[-1]
        for more in ({}, {"step_scale": 0.25}, {"mixing": 4}, {"mixing": 4, "step_scale": 0.25})
    ]
    assert gaps[0] > 2 * max(gaps[1:3])
    assert min(gaps[1:3]) > 2 * gaps[3] > 0


@pytest.mark.thorough
@examples(30)
@given(
    st.integers(0, 10_000),
    st.sampled_from(["moments", "random"]),
    st.floats(1e-3, 100.0),
    st.floats(-3.0, 3.0),
    st.floats(-3.0, 3.0),
)
def test_the_automatic_step_lowers_the_objective_by_what_its_bound_promises(seed, init, mu, h, t):
    problem = random_problem(seed, h_scale=10.0**h, t_scale=10.0**t)
    solver = FedRep(rank=min(3, usable_rank(problem)), mu=mu, init=init, max_iter=1, tol=0.0)
    history = run(solver, problem).history["objective"]
    start = run(solver.set_params(tol=2.0), problem)  # which stops before the first round
    U, eta = start.solution.U, first_step(problem, start.solution.U, mu)
    triples = zip(problem.H, problem.T, start.solution.A, strict=True)
    total = sum(slope(H, T, U, A[:, : T.shape[1]], mu) for H, T, A in triples)
    promised = eta / (2 * len(problem.H)) * np.sum(total**2)
    assert history[1] <= history[0] - promised + 1e-9 * history[0]


@pytest.mark.thorough
@examples(60)
@given(
    st.integers(0, 10_000),
    st.sampled_from(AGENTS),
    st.integers(1, 12),
    st.integers(1, 6),
    st.floats(-3.0, 3.0),
    st.floats(-3.0, 3.0),
    st.floats(-3.0, 3.0),
    st.floats(0.1, 100.0),
    st.booleans(),
)
def test_harsh_problems_and_steps_leave_orthonormal_bases_and_heads_at_their_best(
    seed, solver, m, rank, h, t, mu, step, noise
):
    problem = random_problem(seed, m=m, L=8, h_scale=10.0**h, t_scale=10.0**t, planted=not noise)
    rank, mu = min(rank, usable_rank(problem)), 10.0**mu
    result = run(solver(rank=rank, mu=mu, step_scale=step, max_iter=15, tol=0.0), problem)
    U = np.broadcast_to(result.solution.U, (m, 8, rank))
    np.testing.assert_allclose(U.mT @ U, np.broadcast_to(np.eye(rank), (m, rank, rank)), atol=1e-12)
    energy = np.sum(problem.task.target_energy) / 2
    assert result.stop is StopReason.MAX_ITER
    assert result.history["objective"].max() <= energy * (1 + 1e-9)
    by_hand = sum(
        0.5 * np.sum((H @ W - T) ** 2) + mu / 2 * np.sum(W**2)
        for H, T, W in zip(problem.H, problem.T, task_weights(problem, result.solution), strict=True)
    )
    assert result.history["objective"].iloc[-1] == pytest.approx(by_hand, rel=1e-8, abs=1e-10 * energy)


def test_moments_that_span_too_little_are_filled_up_from_the_seed():
    rng = np.random.default_rng(0)
    moments = rng.normal(size=(7, 2)) @ rng.normal(size=(4, 2, 3))
    fill = orthonormal(rng.normal(size=(7, 5)))
    U = leading_subspace(fill, moments)
    np.testing.assert_allclose(U.T @ U, np.eye(5), atol=1e-12)
    assert subspace_angles(U[:, :2], moments[0]).max() < 1e-10
    np.testing.assert_allclose(leading_subspace(fill, np.zeros((4, 7, 3))), fill, atol=1e-12)


# ------------------------------------------------------------------------------------------ messages, and single agents


@pytest.mark.parametrize("graph", ["ring", "star", "random"])
@pytest.mark.parametrize("mixing", [1, 3])
def test_diffusing_agents_send_a_basis_to_every_neighbour_and_the_start_is_counted(graph, mixing):
    problem = random_problem(0, m=6, L=12)
    topology = make_topology(graph, range(6))
    result = run(DifAltGDmin(3, 1.0, graph, mixing=mixing, power_iterations=4, max_iter=5, tol=0.0), problem)
    averaging, ways = len(topology.averaging_roots(1e-6)), 2 * len(topology.edges)
    start = 4 * averaging * 12 * 3 + averaging + 1
    expected = [8 * ways * (start + k * mixing * 12 * 3) + (k + 1) * followed(6, 12 * 3) for k in range(6)]
    assert result.history["bytes"].tolist() == expected
    assert result.n_exchanges == 5 * averaging + 1 + 5 * mixing


@pytest.mark.parametrize("init", ["moments", "random"])
def test_fedrep_sends_a_basis_to_the_hub_and_one_back_and_the_start_is_counted(init):
    problem = random_problem(2, m=6, L=12, d=4)
    outputs = [T.shape[1] for T in problem.T]
    assert len(set(outputs)) > 1
    result = run(FedRep(rank=3, init=init, local_steps=2, max_iter=5, tol=0.0), problem)
    moments = sum(outputs[1:]) * 12 + 5 * 12 * 3 if init == "moments" else 0
    step = 5 * (3 * 3 + 1)
    expected = [8 * (moments + step + k * 5 * 2 * 12 * 3) + (k + 1) * followed(6) for k in range(6)]
    assert result.history["bytes"].tolist() == expected
    assert result.n_exchanges == 2 * ((init == "moments") + 1 + 5)


@pytest.mark.parametrize("solver", AGENTS)
def test_one_task_alone_sends_nothing_and_ends_at_its_own_ridge_regression(solver):
    problem = random_problem(0, m=1, d=2, unequal=False)
    result = run(solver(rank=2, mu=0.5, max_iter=20_000, tol=1e-8), problem)
    assert result.history["bytes"].max() == 0
    assert result.stop is StopReason.CONVERGED
    # Two columns are enough for two outputs, whatever they are.
    (found,), (H,), (T,) = task_weights(problem, result.solution), problem.H, problem.T
    np.testing.assert_allclose(found, ridge_of_rows(H, T, 0.5), atol=1e-6)


def test_fedrep_on_a_graph_without_a_hub_is_refused():
    with pytest.raises(ElmeshError, match="no hub: its first agent must be a neighbour of all others"):
        run(FedRep(rank=2), random_problem(0), "ring")


@pytest.mark.parametrize(
    ("solver", "graph"),
    [
        (DifAltGDmin(max_iter=25, mixing=2), "ring"),
        (DifAltGDmin(max_iter=25), "star"),
        (DifAltGDmin(max_iter=25), "random"),
        (FedRep(max_iter=25, local_steps=2), "star"),
        (FedRep(max_iter=25, init="random"), "star"),
    ],
)
def test_one_generator_per_agent_gives_what_the_stack_gives(solver, graph):
    """Agents that hold their own rows and outputs only, without any padding."""
    problem = random_problem(2, m=6, d=3)
    topology = make_topology(graph, range(6))
    stacked = run(solver.set_params(rank=3, tol=0.0), problem, graph).solution
    solutions, _ = run_peers(solver, own_tasks(problem.H, problem.T), topology, rank=3)
    for t, solution in enumerate(solutions):
        np.testing.assert_allclose(solution.U, stacked.U if stacked.U.ndim == 2 else stacked.U[t], atol=1e-8)
        np.testing.assert_allclose(solution.A, stacked.A[t][:, : problem.T[t].shape[1]], atol=1e-8)


def test_tasks_with_few_noisy_rows_learn_from_each_other():
    rng = np.random.default_rng(1)
    basis = np.linalg.qr(rng.normal(size=(20, 2)))[0]
    truth = [basis @ rng.normal(size=(2, 1)) for _ in range(30)]
    H = [rng.normal(size=(15, 20)) for _ in truth]
    problem = stack(H, [h @ w + 0.3 * rng.normal(size=(15, 1)) for h, w in zip(H, truth, strict=True)])

    def error(found):
        return float(np.mean([np.sum((b - w) ** 2) for b, w in zip(found, truth, strict=True)]))

    alone = min(error(solve(LocalELM(mu=mu), problem).solution.A) for mu in 10.0 ** np.arange(-3, 4, 0.5))
    for solver in (FedRep(rank=2), DifAltGDmin(rank=2, graph="complete")):
        assert error(task_weights(problem, run(solver, problem).solution)) < 0.7 * alone


# ------------------------------------------------------------------------------------------- what both have in common


@pytest.mark.parametrize("solver", AGENTS)
def test_targets_of_zero_are_learned_at_once(solver):
    problem = random_problem(0)
    result = run(solver(), stack(problem.H, [np.zeros_like(T) for T in problem.T]))
    assert (result.stop, result.n_iter) == (StopReason.CONVERGED, 0)
    assert not result.solution.A.any()
    assert np.isfinite(result.solution.U).all()


@pytest.mark.parametrize("solver", [FedRep(rank=3), DifAltGDmin(rank=3, graph="complete")])
def test_another_order_of_tasks_gives_the_same_models(solver):
    problem = random_problem(11, m=5)
    order = [3, 0, 4, 2, 1]
    moved = stack([problem.H[t] for t in order], [problem.T[t] for t in order])
    solver.set_params(max_iter=30, tol=0.0)
    one, other = (task_weights(p, run(solver, p).solution) for p in (problem, moved))
    for k, t in enumerate(order):
        np.testing.assert_allclose(other[k], one[t], atol=1e-5)


@pytest.mark.parametrize(
    ("solver", "message"),
    [
        (DifAltGDmin(rank=0), "rank must be a whole number of at least 1"),
        (DifAltGDmin(mu=0.0), "mu must be a finite number, more than zero"),
        (DifAltGDmin(step_scale="auto"), "step_scale must be a finite number, more than zero; got 'auto'"),
        (DifAltGDmin(step_scale=0.0), "step_scale must be a finite number, more than zero"),
        (DifAltGDmin(mixing=0), "mixing must be a whole number"),
        (DifAltGDmin(power_iterations=0.5), "power_iterations must be a whole number"),
        (DifAltGDmin(max_iter=0), "max_iter must be a whole number"),
        (DifAltGDmin(tol=-1.0), "tol must be a finite number, zero or more"),
        (FedRep(mu=float("nan")), "mu must be"),
        (FedRep(step_scale=-1.0), "step_scale must be a finite number, more than zero"),
        (FedRep(local_steps=0), "local_steps must be a whole number"),
        (FedRep(init="ones"), "init must be one of moments, random; got 'ones'"),
    ],
)
def test_an_invalid_parameter_is_refused_by_name(solver, message):
    with pytest.raises(ElmeshError, match=message):
        make_solver(solver)


def rows(seed=0, m=4, n=25):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(m * n, 5))
    tasks = np.repeat([f"site {t}" for t in range(m)], n)
    slopes = np.repeat(rng.normal(size=(m, 2)), n, axis=0)
    return X, np.sum(X[:, :2] * slopes, axis=1) + 0.1 * rng.normal(size=m * n), tasks


@pytest.mark.parametrize(
    ("kind", "hidden", "name"),
    one_of(3, ["regression", "classification"], [None, 30], ["dif-altgdmin", "fedrep"]),
)
def test_an_estimator_learns_with_it_and_is_loaded_from_its_folder(kind, hidden, name, tmp_path):
    X, y, tasks = rows()
    solver = make_solver(name).set_params(tol=0.1)
    if kind == "regression":
        model = MultiTaskELMRegressor(hidden, solver=solver, weight_scale=0.5, random_state=0)
    else:
        model = MultiTaskELMClassifier(hidden, solver=solver, weight_scale=0.5, random_state=0)
        y = np.where(y > 0, "high", "low")
    model.fit(X, y, tasks)
    assert model.stop_ is StopReason.CONVERGED
    assert len(model.graph_) == 4
    assert model.U_.shape[-2] == (hidden or 5)
    assert model.score(X, y, tasks) > 0.8
    model.save(tmp_path / "model")
    loaded = elmesh.load(tmp_path / "model")
    assert repr(loaded.solver) == repr(solver)
    np.testing.assert_array_equal(loaded.predict(X, tasks), model.predict(X, tasks))
    alone = loaded.for_task("site 2")
    np.testing.assert_array_equal(alone.predict(X[50:75]), model.predict(X, tasks)[50:75])
