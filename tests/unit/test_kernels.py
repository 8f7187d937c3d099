"""Every update against the paper's Kronecker formula, and as a stationary point of its own subproblem."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elmesh.data.statistics import Reduced, Task
from elmesh.math.central_step import CentralUStep
from elmesh.math.kernels import (
    curvature,
    exact_U,
    first_order_U,
    fit,
    fit_gradient,
    orthonormal,
    project,
    residual,
    ridge,
    ridge_in_metric,
    solve_A,
)
from helpers.examples import examples
from helpers.problems import random_problem, ridge_of_rows

sizes = st.tuples(
    st.integers(0, 10_000),  # seed
    st.integers(1, 4),  # tasks
    st.integers(2, 9),  # L
    st.integers(1, 4),  # r
    st.integers(1, 3),  # d
    st.integers(3, 14),  # rows
)


def draw(size):
    seed, m, L, r, d, n = size
    problem = random_problem(seed, m, L, r, d, n)
    rng = np.random.default_rng(seed + 1)
    width = problem.task.Y.shape[-1]
    return problem, rng.normal(size=(m, L, r)), rng.normal(size=(m, r, width)), rng


def padded(T, width):
    return np.pad(T, ((0, 0), (0, width - T.shape[1])))


@given(sizes, st.floats(0.01, 100.0))
def test_the_exact_U_step_is_the_papers_kronecker_solution(size, c):
    problem, _, A, rng = draw(size)
    C = rng.normal(size=(*A.shape[:1], size[2], size[3]))
    U, HU, gradient = exact_U(problem.task, A, C, np.full((len(A), 1, 1), c))
    for t, (H, T) in enumerate(zip(problem.H, problem.T, strict=True)):
        matrix = np.kron(A[t] @ A[t].T, H.T @ H) + c * np.eye(U[t].size)
        right = (H.T @ padded(T, A.shape[-1]) @ A[t].T + C[t]).ravel(order="F")
        reference = np.linalg.solve(matrix, right).reshape(U[t].shape, order="F")
        np.testing.assert_allclose(U[t], reference, rtol=1e-10, atol=1e-10 * np.abs(reference).max())
        np.testing.assert_allclose(
            HU[t], project(problem.task.agent(t), U[t]), atol=1e-10 * (1 + np.abs(reference).max())
        )
    expected = fit_gradient(problem.task, residual(problem.task, HU, A), A)
    np.testing.assert_allclose(gradient, expected, atol=1e-8 * (1 + np.abs(expected).max() + np.abs(C).max()))


@given(sizes, st.floats(0.01, 100.0))
def test_the_exact_U_step_leaves_no_gradient(size, c):
    problem, _, A, rng = draw(size)
    C = rng.normal(size=(len(A), size[2], size[3]))
    U, *_ = exact_U(problem.task, A, C, np.full((len(A), 1, 1), c))
    for t, (H, T) in enumerate(zip(problem.H, problem.T, strict=True)):
        gradient = H.T @ (H @ U[t] @ A[t] - padded(T, A.shape[-1])) @ A[t].T + c * U[t] - C[t]
        assert np.abs(gradient).max() <= 1e-8 * (1 + np.abs(C[t]).max())


@given(sizes, st.floats(0.1, 100.0))
def test_the_first_order_step_minimises_the_linearised_problem(size, c):
    problem, U, A, rng = draw(size)
    C = rng.normal(size=U.shape)
    gradient = fit_gradient(problem.task, residual(problem.task, project(problem.task, U), A), A)
    stepped, HU = first_order_U(problem.task, gradient, C, np.full((len(A), 1, 1), c))
    for t, (H, T) in enumerate(zip(problem.H, problem.T, strict=True)):
        slope = H.T @ (H @ U[t] @ A[t] - padded(T, A.shape[-1])) @ A[t].T
        np.testing.assert_allclose(slope + c * stepped[t] - C[t], 0.0, atol=1e-8 * (1 + np.abs(slope).max()))
    np.testing.assert_allclose(HU, project(problem.task, stepped), atol=1e-10)


@given(sizes, st.floats(0.01, 10.0), st.floats(0.0, 10.0))
def test_the_A_step_leaves_no_gradient_and_is_equation_22(size, mu2, zeta):
    problem, U, A, _ = draw(size)
    solved = solve_A(problem.task, project(problem.task, U), A, mu2, zeta)
    for t, (H, T) in enumerate(zip(problem.H, problem.T, strict=True)):
        Z, wide = H @ U[t], padded(T, A.shape[-1])
        gradient = Z.T @ (Z @ solved[t] - wide) + mu2 * solved[t] + zeta * (solved[t] - A[t])
        assert np.abs(gradient).max() <= 1e-8 * (1 + np.abs(Z.T @ wide).max() + np.abs(Z.T @ Z).max())
        reference = np.linalg.solve(Z.T @ Z + (mu2 + zeta) * np.eye(U.shape[-1]), Z.T @ wide + zeta * A[t])
        np.testing.assert_allclose(solved[t], reference, rtol=1e-6, atol=1e-9)


@given(sizes, st.floats(0.01, 10.0))
def test_local_weights_are_equation_4(size, mu):
    problem, *_ = draw(size)
    beta = ridge(problem.task, mu)
    for t, (H, T) in enumerate(zip(problem.H, problem.T, strict=True)):
        reference = np.linalg.solve(H.T @ H + mu * np.eye(H.shape[1]), H.T @ T)
        np.testing.assert_allclose(beta[t, :, : T.shape[1]], reference, rtol=1e-8, atol=1e-10)
        assert not beta[t, :, T.shape[1] :].any()


@given(sizes)
def test_fit_and_its_gradient_are_those_of_the_rows(size):
    problem, U, A, rng = draw(size)
    R = residual(problem.task, project(problem.task, U), A)
    direction = rng.normal(size=U.shape)
    for t, (H, T) in enumerate(zip(problem.H, problem.T, strict=True)):
        rows = H @ U[t] @ A[t] - padded(T, A.shape[-1])
        np.testing.assert_allclose(fit(problem.task, R)[t], 0.5 * np.sum(rows**2), rtol=1e-9)
        gradient = problem.task.V[t] @ fit_gradient(problem.task, R, A)[t]
        # The fit is quadratic in U, so the central difference is exact up to rounding.
        wide = padded(T, A.shape[-1])
        plus, minus = (0.5 * np.sum((H @ (U[t] + h * direction[t]) @ A[t] - wide) ** 2) for h in (1, -1))
        np.testing.assert_allclose(np.vdot(gradient, direction[t]), (plus - minus) / 2, rtol=1e-8, atol=1e-8 * plus)


@given(sizes)
def test_curvature_bounds_the_kronecker_matrix(size):
    problem, _, A, _ = draw(size)
    bound = curvature(problem.task, A)
    for t, H in enumerate(problem.H):
        exact = np.linalg.eigvalsh(np.kron(A[t] @ A[t].T, H.T @ H))[-1]
        np.testing.assert_allclose(bound[t], exact, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(curvature(problem.task.agent(t), A[t]), bound[t], rtol=1e-12)


@examples(50)
@given(sizes, st.floats(0.01, 10.0))
def test_the_central_U_step_is_equation_9(size, mu1):
    problem, U, A, _ = draw(size)
    solved = CentralUStep(problem.task).solve(A, U[0], mu1)
    matrix = mu1 * np.eye(U[0].size)
    right = np.zeros(U[0].size)
    for t, (H, T) in enumerate(zip(problem.H, problem.T, strict=True)):
        matrix += np.kron(A[t] @ A[t].T, H.T @ H)
        right += (H.T @ padded(T, A.shape[-1]) @ A[t].T).ravel(order="F")
    reference = np.linalg.solve(matrix, right).reshape(U[0].shape, order="F")
    np.testing.assert_allclose(solved, reference, atol=1e-8 * (1 + np.abs(reference).max()))
    assert np.abs(matrix @ solved.ravel(order="F") - right).max() <= 1e-8 * (1 + np.abs(right).max())


@given(sizes)
def test_one_agent_and_a_stack_of_agents_are_the_same_computation(size):
    problem, U, A, rng = draw(size)
    C, c = rng.normal(size=U.shape), np.full((len(A), 1, 1), 0.7)
    stacked, *_ = exact_U(problem.task, A, C, c)
    for t in range(len(A)):
        alone, HU, _ = exact_U(problem.task.agent(t), A[t], C[t], c[t])
        np.testing.assert_allclose(alone, stacked[t], rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(
            solve_A(problem.task.agent(t), HU, A[t], 0.5, 0.1),
            solve_A(problem.task, project(problem.task, stacked), A, 0.5, 0.1)[t],
            rtol=1e-7,
            atol=1e-9,
        )


@given(st.integers(0, 10_000), st.integers(2, 40), st.integers(1, 8), st.integers(1, 3), st.booleans())
def test_reducing_keeps_the_means_and_the_gram_matrix(seed, n, L, d, centre):
    rng = np.random.default_rng(seed)
    H, T = rng.normal(size=(n, L)) + 3.0, rng.normal(size=(n, d)) - 1.0
    rows, reduced = np.hstack([H, T]), Reduced.from_rows(H, T, centre=centre)
    mean = rows.mean(axis=0) if centre else np.zeros(L + d)
    assert reduced.n_rows == n
    assert len(reduced.factor) == min(n, L + d)
    np.testing.assert_allclose(reduced.mean, mean, atol=1e-12)
    np.testing.assert_allclose(reduced.factor.T @ reduced.factor, (rows - mean).T @ (rows - mean), atol=1e-9 * n)
    task = Task.from_reduced(reduced)
    np.testing.assert_allclose(ridge(task, 0.3), ridge_of_rows(H - mean[:L], T - mean[L:], 0.3), atol=1e-8)
    np.testing.assert_allclose(task.target_energy, np.sum((T - mean[L:]) ** 2), rtol=1e-9)


def test_a_reduced_task_never_has_more_rows_than_columns():
    rng = np.random.default_rng(0)
    assert Reduced.from_rows(rng.normal(size=(500, 6)), rng.normal(size=(500, 2)), centre=True).factor.shape == (8, 8)


@pytest.mark.parametrize("outputs", [1, 3])
def test_padding_rows_and_outputs_changes_no_solution(outputs):
    alone = random_problem(3, m=1, L=8, d=outputs, n_max=6, unequal=False)
    beside = random_problem(4, m=1, L=8, d=4, n_max=20, unequal=False)
    both = Task.stack([alone.task.agent(0), beside.task.agent(0)])
    np.testing.assert_allclose(ridge(both, 0.5)[0, :, :outputs], ridge(alone.task, 0.5)[0], atol=1e-12)


@pytest.mark.parametrize("r", [2, 3])
def test_weights_that_overflow_give_nan_and_no_error(r):
    """Other agents wait for a message: a step that has overflown sends NaN, and all agents reject it."""
    problem = random_problem(5, m=2, L=6)
    A = np.full((2, r, problem.task.Y.shape[-1]), 1e200)
    C, c = np.ones((2, 6, r)), np.ones((2, 1, 1))
    with np.errstate(all="ignore"):  # as the driver does
        for task, A_t, C_t, c_t in ((problem.task, A, C, c), (problem.task.agent(1), A[1], C[1], c[1])):
            U, HU, gradient = exact_U(task, A_t, C_t, c_t)
            assert U.shape == C_t.shape
            assert HU.shape == gradient.shape == (*task.s.shape, r)
            for values in (U, HU, gradient, curvature(task, A_t)):
                assert np.isnan(values).all()
            assert curvature(task, A_t).shape == task.s.shape[:-1]


def test_an_A_step_without_a_solution_gives_nan_and_no_error():
    task = random_problem(6, m=2, L=5).task
    A = np.ones((2, 3, task.Y.shape[-1]))
    solved = solve_A(task, np.zeros((*task.s.shape, 3)), A, mu2=0.0, zeta=0.0)
    assert solved.shape == A.shape
    assert np.isnan(solved).all()


@given(st.integers(0, 10_000), st.integers(1, 4), st.integers(1, 6), st.integers(0, 5), st.floats(0.01, 100.0))
def test_the_orthonormal_factor_spans_X_and_leaves_a_triangular_one_with_a_positive_diagonal(seed, m, r, more, scale):
    X = scale * np.random.default_rng(seed).normal(size=(m, r + more, r))
    Q = orthonormal(X)
    assert Q.shape == X.shape
    np.testing.assert_allclose(Q.mT @ Q, np.broadcast_to(np.eye(r), (m, r, r)), atol=1e-12)
    triangular = Q.mT @ X
    np.testing.assert_allclose(Q @ triangular, X, atol=1e-12 * scale)
    np.testing.assert_allclose(np.tril(triangular, -1), 0.0, atol=1e-12 * scale)
    assert np.all(np.diagonal(triangular, axis1=-2, axis2=-1) > 0)
    for t in range(m):
        np.testing.assert_allclose(orthonormal(X[t]), Q[t], atol=1e-12)


def test_the_orthonormal_factor_of_zeros_is_the_first_unit_vectors():
    np.testing.assert_array_equal(orthonormal(np.zeros((4, 2))), np.eye(4, 2))


@examples(25)
@given(sizes, st.floats(0.01, 10.0), st.floats(0.01, 10.0))
def test_ridge_in_a_metric_solves_its_normal_equations(size, a, mu):
    seed, m, L, r, d, n = size
    problem, rng = random_problem(seed, m, L, r, d, n), np.random.default_rng(seed)
    Q, b = rng.normal(size=(L, r)), rng.uniform(0.1, 2.0, r)
    D = a * np.eye(L) + (Q * b) @ Q.T
    X = ridge_in_metric(problem.task, a, Q, b, mu)
    for t, (H, T) in enumerate(zip(problem.H, problem.T, strict=True)):
        W = np.linalg.solve(H.T @ H + mu * np.linalg.inv(D), H.T @ T)
        np.testing.assert_allclose((D @ X[t])[:, : T.shape[1]], W, atol=1e-7 * max(1.0, np.abs(W).max()))
