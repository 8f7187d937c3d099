"""Errors of rows left out are those of a fit without them, at the same variances."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elmesh.math.left_out import left_out_errors
from helpers.examples import examples
from helpers.mixed import log_variances, make_problem


def dense_errors(problem, t, log_c, log_v, log_w):
    """Errors of the rows of a site, each by the Gaussian posterior of all other rows of all sites."""
    C, T = problem.covariance(log_c, log_v, log_w), np.vstack(problem.T)
    start = int(problem.rows[:t].sum())
    errors = []
    for i in range(start, start + len(problem.T[t])):
        rest = np.arange(len(T)) != i
        errors.append(T[i] - C[i, rest] @ np.linalg.solve(C[np.ix_(rest, rest)], T[rest]))
    return np.array(errors)


@examples(25)
@given(st.integers(0, 10**6), st.integers(0, 2))
def test_errors_together_are_those_of_the_dense_model_without_the_row(seed, t):
    problem = make_problem(seed, [3, 14, 6], widths=(1, 2, 5), d=2)
    log_c, log_v = log_variances(seed, 3), log_variances(seed + 1, 3)
    log_w = np.random.default_rng(seed).uniform(-1, 1, 3)
    totals = problem.totals(log_v, log_w)
    S = np.linalg.inv(np.diag(1 / np.exp(log_c)[problem.groups]) + totals.Q)
    Phi = problem.Phi[t]
    B = Phi * np.exp(log_v / 2)[problem.groups]
    found = left_out_errors(Phi, problem.T[t], B, S @ totals.b, S, float(np.exp(log_w[t])))
    np.testing.assert_allclose(found, dense_errors(problem, t, log_c, log_v, log_w), rtol=1e-6, atol=1e-9)


@examples(25)
@given(st.integers(0, 10**6), st.sampled_from([4, 12]))
def test_errors_alone_are_those_of_a_ridge_regression_without_the_row(seed, n):
    rng = np.random.default_rng(seed)
    Phi, T = rng.normal(size=(n, 6)), rng.normal(size=(n, 2))
    root = np.exp(rng.uniform(-2, 2, 6))
    found = left_out_errors(Phi, T, Phi * root)
    for i in range(n):
        rest = np.arange(n) != i
        W = np.linalg.solve(np.diag(root**-2.0) + Phi[rest].T @ Phi[rest], Phi[rest].T @ T[rest])
        np.testing.assert_allclose(found[i], T[i] - Phi[i] @ W, rtol=1e-7, atol=1e-9)


def test_without_own_weights_only_the_common_ones_count():
    rng = np.random.default_rng(0)
    Phi, T = rng.normal(size=(9, 3)), rng.normal(size=(9, 1))
    S = np.linalg.inv(np.eye(3) + Phi.T @ Phi)
    found = left_out_errors(Phi, T, np.zeros((9, 0)), S @ Phi.T @ T, S)
    np.testing.assert_allclose(found, left_out_errors(Phi, T, Phi), rtol=1e-9)


@pytest.mark.parametrize("scale", [0.0, 1e-160, 1e8])
def test_extreme_rows_do_no_harm(scale):
    Phi = np.full((3, 2), scale)
    assert np.isfinite(left_out_errors(Phi, np.ones((3, 1)), Phi)).all()
