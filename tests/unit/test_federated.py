"""Federated ridge and FedAvg, each against the same computation on rows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elmesh import FedAvg, FederatedRidge, MultiTaskELMClassifier
from elmesh.errors import ElmeshError
from elmesh.run import StopReason
from elmesh.solvers import make_solver
from helpers.examples import examples
from helpers.problems import random_problem, ridge_of_rows, solve

seeds = st.integers(0, 10**6)


def pooled_problem(seed: int, m: int = 4, d: int = 2):
    return random_problem(seed, m=m, L=7, d=d, unequal=False)


@examples(10)
@given(seeds, st.sampled_from(["star", "ring", "path", "random"]), st.floats(1e-2, 1e2))
def test_federated_ridge_is_the_ridge_regression_of_all_rows(seed, graph, mu):
    problem = pooled_problem(seed)
    H, T = np.vstack(problem.H), np.vstack(problem.T)
    # Rows of the root of mu times the identity: the penalty as least squares.
    rows, targets = np.vstack([H, np.sqrt(mu) * np.eye(7)]), np.vstack([T, np.zeros((7, T.shape[1]))])
    expected = np.linalg.lstsq(rows, targets, rcond=None)[0]
    result = solve(FederatedRidge(mu=mu, graph=graph), problem, graph)
    for found in result.solution.A:
        np.testing.assert_allclose(found, expected, atol=1e-8 * max(1.0, np.abs(expected).max()))
    assert result.stop is StopReason.DIRECT


def test_the_automatic_penalty_has_the_least_cross_validation_over_all_rows():
    problem = pooled_problem(3)
    H, T = np.vstack(problem.H), np.vstack(problem.T)
    n = len(H) - 4  # means that are taken off count as one row per task

    def score(mu):
        hat = H @ np.linalg.solve(H.T @ H + mu * np.eye(7), H.T)
        return np.sum((T - hat @ T) ** 2) / (n - np.trace(hat)) ** 2

    tried = 10.0 ** np.arange(-6.0, 1.01, 0.25) * np.linalg.norm(H, 2) ** 2
    best = min(tried, key=score)
    found = solve(FederatedRidge(), problem, "star").solution.A[0]
    np.testing.assert_allclose(found, ridge_of_rows(H, T, best), atol=1e-9)


def test_a_private_part_is_each_tasks_ridge_regression_of_what_is_left():
    problem = pooled_problem(5)
    W = solve(FederatedRidge(mu=2.0), problem, "star").solution.A[0]
    found = solve(FederatedRidge(mu=2.0, private=True), problem, "star")
    for H, T, A in zip(problem.H, problem.T, found.solution.A, strict=True):
        scores = {}
        for mu in 10.0 ** np.arange(-6.0, 1.01, 0.25) * np.linalg.norm(H, 2) ** 2:
            V = ridge_of_rows(H, T - H @ W, mu)
            free = len(H) - np.trace(H @ np.linalg.solve(H.T @ H + mu * np.eye(7), H.T))
            scores[mu] = np.sum((T - H @ (W + V)) ** 2) / free**2 if free >= 0.3 * len(H) else np.inf
        least = ridge_of_rows(H, T - H @ W, min(scores, key=lambda mu: scores[mu]))
        np.testing.assert_allclose(A, W + least, atol=1e-8)
    assert found.traffic.total == solve(FederatedRidge(mu=2.0), problem, "star").traffic.total


def test_federated_ridge_sends_half_a_gram_matrix_and_the_correlations_once():
    problem = pooled_problem(0, m=5, d=3)
    # Two more numbers: rows and the squares of targets.
    assert solve(FederatedRidge(mu=1.0), problem, "star").traffic.total == 2 * 4 * 8 * (7 * 8 // 2 + 7 * 3 + 2)


@examples(10)
@given(seeds, st.integers(1, 4), st.floats(0.1, 1.0))
def test_federated_averaging_takes_the_steps_of_a_loop_over_rows(seed, local_steps, scale):
    problem, mu = pooled_problem(seed), 0.7
    solver = FedAvg(mu=mu, local_steps=local_steps, step_scale=scale, max_iter=4, tol=0.0)
    found = solve(solver, problem, "star").solution.A[0]
    N = sum(map(len, problem.H))
    eta = scale / (max(np.linalg.norm(H, 2) ** 2 / len(H) for H in problem.H) + mu / N)
    W = np.zeros_like(found)
    for _ in range(4):
        mean = np.zeros_like(W)
        for H, T in zip(problem.H, problem.T, strict=True):
            own = W
            for _ in range(local_steps):
                own = own - eta * (H.T @ (H @ own - T) / len(H) + mu / N * own)
            mean += len(H) / N * own
        W = mean
    np.testing.assert_allclose(found, W, atol=1e-10)


def test_with_one_local_step_federated_averaging_is_gradient_descent_on_all_rows_and_ends_at_their_ridge():
    problem, mu = pooled_problem(1), 0.7
    H, T, N = np.vstack(problem.H), np.vstack(problem.T), sum(map(len, problem.H))
    short = solve(FedAvg(mu=mu, local_steps=1, max_iter=3, tol=0.0), problem, "star").solution.A[0]
    eta = 1 / (max(np.linalg.norm(h, 2) ** 2 / len(h) for h in problem.H) + mu / N)
    W = np.zeros_like(short)
    for _ in range(3):
        W = W - eta * (H.T @ (H @ W - T) + mu * W) / N
    np.testing.assert_allclose(short, W, atol=1e-12)
    result = solve(FedAvg(mu=mu, local_steps=1, max_iter=20_000, tol=1e-9), problem, "star")
    np.testing.assert_allclose(result.solution.A[0], ridge_of_rows(H, T, mu), atol=1e-6)
    assert result.stop is StopReason.CONVERGED
    best = 0.5 * np.sum((H @ ridge_of_rows(H, T, mu) - T) ** 2) + mu / 2 * np.sum(ridge_of_rows(H, T, mu) ** 2)
    assert result.history["objective"].iloc[-1] == pytest.approx(best, rel=1e-9)


@pytest.mark.parametrize("solver", [FederatedRidge(), FedAvg()])
def test_one_model_needs_the_same_classes_at_all_tasks(solver):
    X, tasks = np.random.default_rng(0).normal(size=(60, 3)), np.repeat([0, 1, 2], 20)
    y = (X[:, 0] > 0).astype(int)
    model = MultiTaskELMClassifier(None, solver=solver)
    assert model.fit(X, y, tasks=tasks).score(X, y, tasks=tasks) > 0.8
    y[tasks == 2] += 1
    with pytest.raises(
        ElmeshError, match="fits one model for all tasks, so that all of them must have the same classes"
    ):
        model.fit(X, y, tasks=tasks)


@pytest.mark.parametrize(
    ("solver", "message"),
    [
        (FederatedRidge(mu=-1.0), "mu must be"),
        (FederatedRidge(private=1), "private must be True or False"),
        (FedAvg(local_steps=0), "local_steps must be"),
        (FedAvg(step_scale=0.0), "step_scale must be"),
    ],
)
def test_invalid_parameters_are_refused(solver, message):
    with pytest.raises(ElmeshError, match=message):
        make_solver(solver)
