"""The ridge that knows its noise: against dense densities, finite differences, and simulated releases."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import check_grad
from scipy.stats import multivariate_normal

import elmesh.math.noisy_ridge as module
from elmesh.math.noisy_ridge import fit_noisy_ridge

seeds = st.integers(0, 10**6)


def problem(seed: int, p: int = 6, d: int = 2, rows: int = 400):
    rng = np.random.default_rng(seed)
    groups = np.sort(np.concatenate([[0], rng.integers(1, 4, size=p - 1)]))
    Z = rng.normal(size=(rows, p)) * rng.uniform(0.1, 0.6, size=p)
    W = 0.5 * rng.normal(size=(p, d))
    return Z, Z @ W + 0.5 * rng.normal(size=(rows, d)), W, groups


def members_of(groups):
    return np.array([groups == g for g in np.setdiff1d(groups, [0])])


@given(seeds)
def test_the_evidence_is_the_density_of_the_noisy_correlations(seed):
    Z, Y, _, groups = problem(seed)
    G, b, nu2 = Z.T @ Z, Z.T @ Y, 3.0
    members, rng = members_of(groups), np.random.default_rng(seed)

    def density(theta):
        c = module._prior(theta, members)
        covariance = G @ np.diag(c) @ G + np.exp(theta[-1]) * G + nu2 * np.eye(len(G))
        return -2 * sum(multivariate_normal(cov=covariance).logpdf(column) for column in b.T)

    first, second = rng.normal(size=(2, len(members) + 1))
    values = [module._negative_evidence(theta, G, b, nu2, members)[0] for theta in (first, second)]
    assert values[0] - values[1] == pytest.approx(density(first) - density(second), rel=1e-6, abs=1e-6)


@given(seeds)
def test_its_gradient_is_that_of_finite_differences(seed):
    Z, Y, _, groups = problem(seed)
    members = members_of(groups)
    arguments = Z.T @ Z, Z.T @ Y, 3.0, members
    theta = np.random.default_rng(seed).normal(size=len(members) + 1)
    error = check_grad(
        lambda x: module._negative_evidence(x, *arguments)[0],
        lambda x: module._negative_evidence(x, *arguments)[1],
        theta,
    )
    assert error < 1e-3 * max(1.0, np.linalg.norm(module._negative_evidence(theta, *arguments)[1]))


@given(seeds)
def test_the_posterior_is_that_of_a_dense_linear_model(seed):
    Z, Y, _, groups = problem(seed)
    G, b, nu2, members = Z.T @ Z, Z.T @ Y, 3.0, members_of(groups)
    theta = np.random.default_rng(seed).normal(size=len(members) + 1)
    W, S = module._posterior(theta, *np.linalg.eigh(G), b, nu2, members)
    noise = np.linalg.inv(np.exp(theta[-1]) * G + nu2 * np.eye(len(G)))
    expected = np.linalg.inv(G @ noise @ G + np.diag(1 / module._prior(theta, members)))
    np.testing.assert_allclose(S, expected, rtol=1e-6, atol=1e-10)
    np.testing.assert_allclose(W, expected @ G @ noise @ b, rtol=1e-6, atol=1e-10)


@given(seeds)
def test_without_noise_it_is_as_good_as_least_squares(seed):
    Z, Y, W, groups = problem(seed, rows=4000)
    found = fit_noisy_ridge(Z.T @ Z, Z.T @ Y, 1e-9, 1e-9, groups)
    exact = np.linalg.lstsq(Z, Y)[0]
    assert np.linalg.norm(Z @ (found.W - W)) <= 1.2 * np.linalg.norm(Z @ (exact - W))


def test_with_nothing_but_noise_the_weights_stay_at_their_prior():
    rng = np.random.default_rng(0)
    groups = np.array([0, 1, 1, 1, 2, 2])
    found = fit_noisy_ridge(symmetric_noise(rng, 6, 1e3), 1e3 * rng.normal(size=(6, 1)), 1e3, 1e3, groups)
    prior = np.array([found.variances[g] for g in groups])
    np.testing.assert_allclose(found.W, 0.0, atol=1e-3)
    np.testing.assert_allclose(found.S, np.diag(prior), rtol=1e-3, atol=1e-3)


def symmetric_noise(rng: np.random.Generator, p: int, sigma: float) -> np.ndarray:
    E = np.triu(rng.normal(size=(p, p)), 1) / np.sqrt(2)
    return sigma * (E + E.T + np.diag(rng.normal(size=p)))


def test_eigenvalues_are_freed_of_what_noise_adds_to_them():
    """On average over many matrices, as random matrix theory has it."""
    true, p = np.array([0.0] * 56 + [30.0, 60.0, 100.0, 400.0]), 60
    found = []
    for seed in range(30):
        rng = np.random.default_rng(seed)
        noisy = np.diag(true) + symmetric_noise(rng, p, 2.0)
        found.append(module._without_noise(np.linalg.eigvalsh(noisy), 2.0)[-4:])
    np.testing.assert_allclose(np.mean(found, axis=0), true[-4:], rtol=0.04)
    hidden = module._without_noise(np.linalg.eigvalsh(symmetric_noise(np.random.default_rng(0), p, 2.0)), 2.0)
    assert np.count_nonzero(hidden) <= 1


@pytest.mark.parametrize("sigma", [3.0, 30.0])
def test_the_stated_uncertainty_is_that_of_many_releases(sigma):
    """The squared error in units of the covariance is about one per weight."""
    ratios = []
    for seed in range(40):
        Z, Y, W, groups = problem(seed, rows=1000)
        rng = np.random.default_rng(seed + 10**6)
        G, b = Z.T @ Z + symmetric_noise(rng, 6, sigma), Z.T @ Y + sigma * rng.normal(size=W.shape)
        found = fit_noisy_ridge(G, b, sigma, sigma, groups)
        error = found.W - W
        ratios.append(np.sum(error * np.linalg.solve(found.S, error)) / error.size)
    assert 0.5 < np.median(ratios) < 2.0


def test_a_matrix_that_noise_has_made_indefinite_is_no_problem():
    found = fit_noisy_ridge(np.diag([-5.0, 4.0, 100.0]), np.ones((3, 1)), 5.0, 5.0, np.array([0, 1, 1]))
    assert np.all(np.isfinite(found.W))
    assert np.all(np.linalg.eigvalsh(found.S) > 0)


def test_features_without_a_constant_are_possible():
    Z, Y, _, _ = problem(0)
    found = fit_noisy_ridge(Z.T @ Z, Z.T @ Y, 1.0, 1.0, np.ones(6, dtype=int))
    assert list(found.variances) == [1]
