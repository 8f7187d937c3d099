"""The trace norm: optimality conditions, equality with MTL-ELM at a sufficient rank, and its singular value step."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy.optimize import minimize

import elmesh
from elmesh import LocalELM, MultiTaskELMClassifier, MultiTaskELMRegressor, TraceNorm
from elmesh.errors import ElmeshError
from elmesh.math.objective import objective
from elmesh.run import StopReason
from elmesh.solvers import make_solver
from elmesh.solvers.trace_norm import shrink
from helpers.examples import examples
from helpers.problems import random_problem, ridge_of_rows, solve, stack, task_weights


def trace_norm_value(problem, B, lam):
    fits = sum(0.5 * np.sum((H @ b - T) ** 2) for H, T, b in zip(problem.H, problem.T, B, strict=True))
    return fits + lam * np.linalg.norm(np.hstack(B), "nuc")


@pytest.mark.thorough
@examples(40)
@given(
    st.integers(0, 10_000),
    st.integers(1, 6),
    st.integers(1, 3),
    st.integers(3, 14),
    st.floats(-2.0, 1.0),
    st.floats(-1.0, 1.0),
    st.booleans(),
)
def test_at_the_end_the_trace_norm_s_optimality_conditions_hold(seed, m, d, L, log_mu, tilt, noise):
    problem = random_problem(seed, m=m, L=L, d=d, planted=not noise)
    mu1, mu2 = 10 ** (log_mu + tilt), 10 ** (log_mu - tilt)
    lam = 10**log_mu
    result = solve(TraceNorm(mu1, mu2, max_iter=100_000, tol=1e-6), problem)
    assert result.stop is StopReason.CONVERGED
    B = task_weights(problem, result.solution)
    pull = np.hstack([H.T @ (T - H @ b) for H, T, b in zip(problem.H, problem.T, B, strict=True)])
    # The force of the fit is lam times a subgradient of the norm: of norm one at most, and aligned with B.
    assert np.linalg.norm(pull, 2) <= lam * (1 + 1e-4)
    joined = np.hstack(B)
    norm = np.linalg.norm(joined, "nuc")
    assert np.sum(pull * joined) == pytest.approx(lam * norm, rel=1e-4, abs=1e-9)
    assert result.history["objective"].iloc[-1] == pytest.approx(trace_norm_value(problem, B, lam), rel=1e-9)


@pytest.mark.thorough
@examples(25)
@given(st.integers(0, 10_000), st.integers(1, 5), st.floats(-1.0, 1.0), st.integers(1, 12))
def test_it_is_never_behind_plain_proximal_gradient_in_the_end_and_begins_like_it(seed, m, log_lam, rounds):
    problem = random_problem(seed, m=m, L=8)
    lam, ell = 10**log_lam, max(np.linalg.norm(H, 2) ** 2 for H in problem.H)
    ends = np.cumsum([T.shape[1] for T in problem.T])[:-1]
    B = np.zeros((8, sum(T.shape[1] for T in problem.T)))
    path = [B]
    for _ in range(300):
        parts = np.split(B, ends, axis=1)
        moved = [b - H.T @ (H @ b - T) / ell for b, H, T in zip(parts, problem.H, problem.T, strict=True)]
        left, values, right = np.linalg.svd(np.hstack(moved), full_matrices=False)
        B = (left * np.maximum(values - lam / ell, 0.0)) @ right
        path.append(B)
    one = solve(TraceNorm(lam, lam, max_iter=1, tol=0.0), problem).solution
    np.testing.assert_allclose(np.hstack(task_weights(problem, one)), path[1], atol=1e-10 * (1 + np.abs(path[1]).max()))
    best = solve(TraceNorm(lam, lam, max_iter=20_000, tol=1e-7), problem).history["objective"].iloc[-1]
    for reached in (path[rounds], path[-1]):
        assert best <= trace_norm_value(problem, np.split(reached, ends, axis=1), lam) * (1 + 1e-9)


@pytest.mark.parametrize("rounds", [1, 2, 9])
@pytest.mark.parametrize(("mu1", "mu2"), [(1.0, 1.0), (0.02, 5.0), (3.0, 0.1)])
def test_in_every_round_the_reported_objective_is_that_of_mtl_elm_at_U_and_A(mu1, mu2, rounds):
    problem = random_problem(5, m=5, d=3)
    result = solve(TraceNorm(mu1, mu2, max_iter=rounds, tol=0.0), problem)
    U, A = result.solution.U, result.solution.A
    reported = result.history["objective"].iloc[-1]
    assert objective(problem.task, U, A, mu1, mu2) == pytest.approx(reported, rel=1e-12)
    joined = np.hstack(task_weights(problem, result.solution))
    assert mu1 * np.sum(U**2) == pytest.approx(np.sqrt(mu1 * mu2) * np.linalg.norm(joined, "nuc"), rel=1e-9)
    np.testing.assert_allclose(mu1 * U.T @ U, mu2 * np.sum(A @ A.mT, axis=0), atol=1e-9 * np.sum(U**2))
    for a, T in zip(A, problem.T, strict=True):
        assert np.abs(a[:, T.shape[1] :]).max(initial=0.0) < 1e-15


def test_its_least_value_is_that_of_mtl_elm_with_enough_columns_and_the_coefficients_are_ridge_regressions():
    problem = random_problem(7, m=5, L=10)
    convex = solve(TraceNorm(0.5, 2.0, max_iter=20_000, tol=1e-8), problem)

    def factored(u):
        """The objective (6) with every A_t at its best, and its gradient in U."""
        U = u.reshape(10, -1)
        value, gradient = 0.25 * np.sum(U**2), 0.5 * U
        for H, T in zip(problem.H, problem.T, strict=True):
            A = ridge_of_rows(H @ U, T, 2.0)
            value += 0.5 * np.sum((H @ U @ A - T) ** 2) + np.sum(A**2)
            gradient = gradient + H.T @ (H @ U @ A - T) @ A.T
        return value, gradient.ravel()

    start = np.random.default_rng(0).normal(size=100)  # ten columns: as many as there can be
    options = {"maxiter": 5000, "maxfun": 20_000, "ftol": 1e-15, "gtol": 1e-9}
    least = minimize(factored, start, jac=True, method="L-BFGS-B", options=options).fun
    assert convex.history["objective"].iloc[-1] == pytest.approx(least, rel=1e-8)
    for H, T, A in zip(problem.H, problem.T, convex.solution.A, strict=True):
        np.testing.assert_allclose(A[:, : T.shape[1]], ridge_of_rows(H @ convex.solution.U, T, 2.0), atol=1e-5)


def test_one_column_of_weights_has_its_own_norm_for_trace_norm():
    problem = random_problem(6, m=1, L=6, d=1, unequal=False)
    (H,), (T,) = problem.H, problem.T
    (b,) = task_weights(problem, solve(TraceNorm(0.5, 0.5, max_iter=50_000, tol=1e-9), problem).solution)
    np.testing.assert_allclose(b, ridge_of_rows(H, T, 0.5 / np.linalg.norm(b)), rtol=1e-6)


def test_weights_vanish_when_the_penalty_reaches_the_largest_singular_value_of_the_moments_and_not_before():
    problem = random_problem(3, m=4)
    edge = np.linalg.norm(np.hstack([H.T @ T for H, T in zip(problem.H, problem.T, strict=True)]), 2)
    gone = solve(TraceNorm(edge * 1.0001, edge * 1.0001), problem)
    assert gone.solution.U.shape == (12, 0)
    assert (gone.stop, gone.n_iter) == (StopReason.CONVERGED, 1)
    assert gone.history["objective"].iloc[-1] == pytest.approx(np.sum(problem.task.target_energy) / 2, rel=1e-12)
    assert solve(TraceNorm(edge * 0.999, edge * 0.999), problem).solution.U.shape == (12, 1)


@pytest.mark.thorough
@given(
    st.integers(0, 10_000),
    st.sampled_from([(3, 20), (20, 3), (7, 7), (90, 120), (120, 90)]),
    st.floats(-8.0, 0.5),
    st.integers(1, 3),
)
def test_shrinking_agrees_with_a_singular_value_decomposition(seed, shape, log_threshold, rank):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(shape[0], rank)) @ rng.normal(size=(rank, shape[1])) + 1e-3 * rng.normal(size=shape)
    left, values, right = np.linalg.svd(X, full_matrices=False)
    threshold = 10**log_threshold * values[0]
    assume(np.abs(values - threshold).min() > 1e-7 * values[0])
    found = shrink(X, threshold)
    assert len(found.sizes) == np.sum(values > threshold)
    expected = (left * np.maximum(values - threshold, 0.0)) @ right
    np.testing.assert_allclose((found.left * found.sizes) @ found.right.T, expected, atol=1e-10 * values[0])
    for basis in (found.left, found.right):
        np.testing.assert_allclose(basis.T @ basis, np.eye(len(found.sizes)), atol=1e-7)


def test_tasks_with_few_noisy_rows_learn_from_each_other():
    rng = np.random.default_rng(1)
    basis = np.linalg.qr(rng.normal(size=(20, 2)))[0]
    truth = [basis @ rng.normal(size=(2, 1)) for _ in range(30)]
    H = [rng.normal(size=(15, 20)) for _ in truth]
    problem = stack(H, [h @ w + 0.3 * rng.normal(size=(15, 1)) for h, w in zip(H, truth, strict=True)])

    def error(found):
        return float(np.mean([np.sum((b - w) ** 2) for b, w in zip(found, truth, strict=True)]))

    alone = min(error(solve(LocalELM(mu=mu), problem).solution.A) for mu in 10.0 ** np.arange(-3, 4, 0.5))
    assert error(task_weights(problem, solve(TraceNorm(5.0, 5.0), problem).solution)) < 0.7 * alone


def test_targets_of_zero_are_learned_at_once():
    problem = random_problem(0)
    result = solve(TraceNorm(), stack(problem.H, [np.zeros_like(T) for T in problem.T]))
    assert (result.stop, result.n_iter) == (StopReason.CONVERGED, 0)
    assert not result.solution.A.any()
    assert np.isfinite(result.solution.U).all()


def test_another_order_of_tasks_gives_the_same_models():
    problem = random_problem(11, m=5)
    order = [3, 0, 4, 2, 1]
    moved = stack([problem.H[t] for t in order], [problem.T[t] for t in order])
    solver = TraceNorm(max_iter=30, tol=0.0)
    one, other = (task_weights(p, solve(solver, p).solution) for p in (problem, moved))
    for k, t in enumerate(order):
        np.testing.assert_allclose(other[k], one[t], atol=1e-5)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"mu1": 0.0}, "mu1 must be a finite number, more than zero"),
        ({"mu2": "small"}, "mu2 must be"),
        ({"max_iter": 0}, "max_iter must be a whole number"),
        ({"tol": -1.0}, "tol must be a finite number, zero or more"),
    ],
)
def test_an_invalid_parameter_is_refused_by_name(parameters, message):
    with pytest.raises(ElmeshError, match=message):
        make_solver(TraceNorm(**parameters))


@pytest.mark.parametrize("hidden", [None, 30])
@pytest.mark.parametrize("kind", ["regression", "classification"])
def test_an_estimator_learns_with_it_and_is_loaded_from_its_folder(kind, hidden, tmp_path):
    rng = np.random.default_rng(0)
    X, tasks = rng.normal(size=(100, 5)), np.repeat([f"site {t}" for t in range(4)], 25)
    y = np.sum(X[:, :2] * np.repeat(rng.normal(size=(4, 2)), 25, axis=0), axis=1) + 0.1 * rng.normal(size=100)
    solver = TraceNorm(tol=0.1)
    if kind == "regression":
        model = MultiTaskELMRegressor(hidden, solver=solver, weight_scale=0.5, random_state=0)
    else:
        model = MultiTaskELMClassifier(hidden, solver=solver, weight_scale=0.5, random_state=0)
        y = np.where(y > 0, "high", "low")
    model.fit(X, y, tasks)
    assert model.stop_ is StopReason.CONVERGED
    assert model.graph_ is None
    assert model.U_.shape[-2] == (hidden or 5)
    assert model.score(X, y, tasks) > 0.8
    model.save(tmp_path / "model")
    loaded = elmesh.load(tmp_path / "model")
    assert repr(loaded.solver) == repr(solver)
    np.testing.assert_array_equal(loaded.predict(X, tasks), model.predict(X, tasks))
