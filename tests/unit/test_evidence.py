"""The evidence of common variances, from totals, against the dense Gaussian density of all rows."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.linalg
import scipy.optimize
from hypothesis import given
from hypothesis import strategies as st

from elmesh.math.evidence import (
    HYPERPRIOR,
    Totals,
    as_probable,
    common_draws,
    common_part,
    maximize_evidence,
    negative_evidence,
)
from helpers.mixed import central_difference, log_variances, make_problem, mixed_problems

seeds = st.integers(0, 10**6)


def dense_noise(problem, log_c, log_v, log_w):
    """The variance of the noise of each column at which the density of its targets is largest."""
    C, T = problem.covariance(log_c, log_v, log_w), np.vstack(problem.T)
    return np.sum(T * np.linalg.solve(C, T), axis=0) / len(T)


def draws(problem, seed):
    """Variances of common and private weights, and weights of sites."""
    G, m = problem.n_groups, len(problem.T)
    return log_variances(seed, G), log_variances(seed + 1, G), log_variances(seed + 2, m) / 3


@given(mixed_problems(), seeds)
def test_the_evidence_is_the_density_of_all_rows_with_the_common_weights_integrated_out(problem, seed):
    log_c, log_v, log_w = draws(problem, seed)
    value, _ = negative_evidence(problem.totals(log_v, log_w), problem.groups, log_c)
    s2, N, d = dense_noise(problem, log_c, log_v, log_w), problem.rows.sum(), problem.T[0].shape[1]
    # What does not depend on the common variances is left out of the value.
    determinants = sum(np.linalg.slogdet(problem.private_covariance(t, log_v))[1] for t in range(len(problem.T)))
    left_out = d * (N * np.log(2 * np.pi / N) + N + determinants - problem.rows @ log_w)
    density = problem.minus_twice_log_density(log_c, log_v, log_w, s2)
    assert value + left_out == pytest.approx(density, rel=1e-8, abs=1e-7)


@given(mixed_problems(), seeds)
def test_the_gradient_of_the_evidence_is_that_of_finite_differences(problem, seed):
    log_c, log_v, log_w = draws(problem, seed)
    totals = problem.totals(log_v, log_w)
    value, gradient = negative_evidence(totals, problem.groups, log_c)
    expected = central_difference(lambda x: negative_evidence(totals, problem.groups, x)[0], log_c, 1e-4)
    np.testing.assert_allclose(gradient, expected, rtol=1e-5, atol=1e-6 * (1 + abs(value)))
    empty = np.bincount(problem.groups, minlength=problem.n_groups) == 0
    assert np.all(gradient[empty] == 0.0)


@given(mixed_problems(), seeds)
def test_the_common_part_is_the_posterior_of_the_dense_model(problem, seed):
    log_c, log_v, log_w = draws(problem, seed)
    W, S, s2 = common_part(problem.totals(log_v, log_w), problem.groups, log_c)
    # Conditioning the joint Gaussian of weights and targets, in units of the noise.
    C, Phi, T = problem.covariance(log_c, log_v, log_w), np.vstack(problem.Phi), np.vstack(problem.T)
    prior = np.diag(np.exp(log_c)[problem.groups])
    np.testing.assert_allclose(W, prior @ Phi.T @ np.linalg.solve(C, T), rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(S, prior - prior @ Phi.T @ np.linalg.solve(C, Phi @ prior), rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(s2, dense_noise(problem, log_c, log_v, log_w), rtol=1e-8)


@given(mixed_problems(), seeds)
def test_draws_of_the_common_part_have_its_covariance(problem, seed):
    log_c, log_v, log_w = draws(problem, seed)
    totals, p = problem.totals(log_v, log_w), len(problem.groups)
    _, S, _ = common_part(totals, problem.groups, log_c)
    # Draws are a linear function of noise of variance one, so the columns of the identity give the covariance.
    columns = common_draws(totals, problem.groups, log_c, np.eye(p))
    np.testing.assert_allclose(columns @ columns.T, S, rtol=1e-8, atol=1e-10)
    signs = np.random.default_rng(seed).choice([-1.0, 1.0], size=(p, 20_000))
    drawn = common_draws(totals, problem.groups, log_c, signs)
    np.testing.assert_allclose(drawn, columns @ signs, rtol=1e-8, atol=1e-10)
    scale = np.sqrt(np.outer(np.diag(S), np.diag(S)))
    np.testing.assert_allclose(drawn @ drawn.T / 20_000 / scale, S / scale, atol=6 * np.sqrt(2 / 20_000))


@given(mixed_problems(), seeds)
def test_the_maximum_is_a_maximum_of_the_penalised_evidence_and_leaves_other_groups_alone(problem, seed):
    log_c, log_v, log_w = draws(problem, seed)
    totals, free = problem.totals(log_v, log_w), np.arange(1, problem.n_groups)
    best = maximize_evidence(totals, problem.groups, log_c, free)
    assert best[0] == log_c[0]

    def loss(x):
        return negative_evidence(totals, problem.groups, x)[0] + HYPERPRIOR * float(x[free] @ x[free])

    assert loss(best) <= loss(log_c)
    # A search without gradients, from there and from elsewhere, finds nothing better nearby.
    for k in free:
        for step in (-0.3, 0.3):
            moved = best.copy()
            moved[k] = np.clip(moved[k] + step, -25.0, 25.0)
            assert loss(best) <= loss(moved) + 1e-6 * (1 + abs(loss(best)))


def test_a_group_without_effect_stays_where_it_is():
    # The evidence does not change with the variance of an empty group: only its hyperprior does.
    problem = make_problem(3, [8, 9, 10], widths=(1, 0, 2))
    totals = problem.totals(np.zeros(3), np.zeros(3))
    best = maximize_evidence(totals, problem.groups, np.array([10.0, 0.0, 0.0]), np.array([1, 2]))
    assert best[1] == pytest.approx(0.0, abs=1e-6)
    assert best[2] != 0.0


def test_nothing_free_leaves_all_as_it_is():
    totals = Totals(np.eye(2), np.ones((2, 1)), np.array([3.0]), 5.0)
    log_c = np.array([1.0, -2.0])
    assert maximize_evidence(totals, np.array([0, 1]), log_c, np.arange(0)) is log_c


def test_targets_without_noise_give_a_tiny_positive_variance():
    problem = make_problem(5, [4, 5], widths=(1, 2), noise=0.0)
    T = [Phi @ np.ones((3, 1)) for Phi in problem.Phi]
    exact = type(problem)(problem.Phi, T, problem.groups)
    totals = exact.totals(np.full(2, -40.0), np.zeros(2))
    W, S, s2 = common_part(totals, exact.groups, np.full(2, 25.0))
    assert 0 < s2[0] < 1e-6
    np.testing.assert_allclose(W, 1.0, rtol=1e-6)
    assert np.all(scipy.linalg.eigvalsh(S) > 0)
    value, gradient = negative_evidence(totals, exact.groups, np.full(2, 25.0))
    assert np.isfinite(value)
    assert np.isfinite(gradient).all()


@pytest.mark.parametrize("noise", [0.0, 0.5])
def test_variances_that_rounding_alone_makes_different_are_as_probable_and_others_are_not(noise):
    """Totals of targets without noise, as they are on machines that round differently."""
    rng = np.random.default_rng(0)
    Phi = np.hstack([np.ones((240, 1)), rng.normal(size=(240, 1)), np.tanh(rng.normal(size=(240, 30)))])
    T = 1.8 * Phi[:, 1:2] + 32 + noise * rng.normal(size=(240, 1))
    groups, free = np.array([0, 1, *[2] * 15, *[3] * 15]), np.array([1, 2, 3])
    start = np.array([13.8, 0.0, 0.0, 0.0])

    def totals(scale):
        Q, b = Phi.T @ Phi, Phi.T @ T
        return Totals(Q * (1 + scale * rng.normal(size=Q.shape)), b * (1 + scale), np.sum(T**2, axis=0), 240.0)

    exact = totals(0.0)
    own = maximize_evidence(exact, groups, start, free)
    for _ in range(5):
        other = maximize_evidence(totals(1e-16), groups, start, free)
        assert as_probable(exact, groups, own, other)
    far = own.copy()
    far[1] -= 8.0
    assert as_probable(exact, groups, own, own)
    assert not as_probable(exact, groups, own, far)
