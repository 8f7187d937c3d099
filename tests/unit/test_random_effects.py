"""Random effects of sites: whitening, expected likelihood and evidence, from rows and by brute force."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest
import scipy.optimize
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import multivariate_normal

from elmesh import LocalELM
from elmesh.math.evidence import HYPERPRIOR
from elmesh.math.random_effects import (
    expected_likelihood,
    padded_size,
    precision,
    precision_times,
    site_batches,
    site_evidence,
    whiten,
)
from helpers.examples import examples
from helpers.mixed import (
    MixedProblem,
    central_difference,
    digest,
    log_variances,
    make_problem,
    mixed_problems,
    solve_mixed,
)

seeds = st.integers(0, 10**6)
WIDE = (1, 3, 30)


@st.composite
def uncertain_weights(draw):
    """A problem, a mean and a covariance of its common weights, and variances."""
    problem = draw(mixed_problems())
    rng = np.random.default_rng(draw(seeds))
    p, d = problem.Phi[0].shape[1], problem.T[0].shape[1]
    half = rng.normal(size=(p, p)) / p
    W, S = rng.normal(size=(p, d)), half @ half.T
    log_v, log_s2 = rng.uniform(-3, 2, problem.n_groups), rng.uniform(-1, 1, d)
    return problem, W, S, log_v, log_s2, np.exp(rng.uniform(-1, 1, d))


def draws_of(S, k, seed=0):
    """Draws of a vector with covariance S."""
    values, vectors = np.linalg.eigh(S)
    root = vectors * np.sqrt(np.maximum(values, 0.0))
    return root @ np.random.default_rng(seed).choice([-1.0, 1.0], size=(len(S), k))


def at_all_sites(problem, W, S, log_v, log_s2, prior, tau2, floor=0.0, n_draws=3):
    """The expected likelihood of all sites, in their order, by field."""
    found, draws = {}, draws_of(S, n_draws)
    for batch in problem.batches():
        R, M = batch.T - batch.Phi @ W, batch.Phi @ S @ batch.Phi.mT
        Z = batch.Phi @ draws
        part = expected_likelihood(batch, R, M, Z, np.exp(log_v), np.exp(log_s2), prior, tau2, floor)
        for k, t in enumerate(batch.index.tolist()):
            found[t] = {field.name: getattr(part, field.name)[k] for field in fields(part)}
    return {name: np.array([found[t][name] for t in range(len(found))]) for name in found[0]}


def brute_force(problem, t, W, S, log_v, s2, prior, floor):
    """Each column's -2 log density, expected over W ~ N(W, prior S): its value at the mean, and a trace.

    Noise of variance ``floor`` per row adds its expected squares.
    """
    K, Phi, T = problem.private_covariance(t, log_v), problem.Phi[t], problem.T[t]
    total, n = 0.0, len(T)
    for c in range(T.shape[1]):
        normal = multivariate_normal(np.zeros(n), s2[c] * K)
        at_mean = -2 * normal.logpdf((T - Phi @ W)[:, c]) - n * np.log(2 * np.pi)
        spread = prior[c] * np.trace(np.linalg.solve(K, Phi @ S @ Phi.T))
        total += at_mean + (spread + n * floor) / s2[c]
    return float(total)


# Sites in batches ----------------------------------------------------------------------------------------------------


@given(st.integers(0, 5000))
def test_padding_adds_at_most_an_eighth_and_never_takes_away(n):
    assert max(n, 1) <= padded_size(n) <= max(1, n + n / 8)
    assert padded_size(padded_size(n)) == padded_size(n)


@given(mixed_problems())
def test_batches_hold_every_site_once_with_the_products_of_its_rows(problem):
    batches = problem.batches()
    assert sorted(np.concatenate([batch.index for batch in batches]).tolist()) == list(range(len(problem.T)))
    for batch in batches:
        for k, t in enumerate(batch.index.tolist()):
            Phi, T = problem.Phi[t], problem.T[t]
            np.testing.assert_allclose(batch.Phi[k].T @ batch.Phi[k], Phi.T @ Phi, atol=1e-11)
            np.testing.assert_allclose(batch.Phi[k].T @ batch.T[k], Phi.T @ T, atol=1e-11)
            np.testing.assert_allclose(
                np.sum(batch.T[k] ** 2, axis=0) + batch.rest[k], np.sum(T**2, axis=0), atol=1e-11
            )
            assert batch.rows[k] == len(T)


@given(mixed_problems(), seeds)
def test_whitened_products_are_those_with_the_inverse_covariance_of_all_rows(problem, seed):
    log_v = log_variances(seed, problem.n_groups)
    for batch in problem.batches():
        (X, Y), logs = whiten(batch, np.exp(log_v), batch.Phi, batch.T)
        for k, t in enumerate(batch.index.tolist()):
            K, Phi, T = problem.private_covariance(t, log_v), problem.Phi[t], problem.T[t]
            np.testing.assert_allclose(X[k].T @ X[k], Phi.T @ np.linalg.solve(K, Phi), atol=1e-9)
            np.testing.assert_allclose(X[k].T @ Y[k], Phi.T @ np.linalg.solve(K, T), atol=1e-9)
            squares = np.sum(T * np.linalg.solve(K, T), axis=0)
            np.testing.assert_allclose(np.sum(Y[k] ** 2, axis=0) + batch.rest[k], squares, atol=1e-9)
            assert logs[k] == pytest.approx(np.linalg.slogdet(K)[1], abs=1e-9)


def assert_precisions(problem, log_v):
    """K^-1 and its products are those of each site's rows; rows that pad a site have the identity."""
    for batch in problem.batches():
        n, R = batch.Phi.shape[1], np.random.default_rng(0).normal(size=(*batch.Phi.shape[:2], 3))
        inverse, product = precision(batch, np.exp(log_v)), precision_times(batch, np.exp(log_v), R)
        for k, t in enumerate(batch.index.tolist()):
            site, K = problem.sites[t].Phi, np.eye(n)
            own = len(site)
            K[:own, :own] += site @ np.diag(np.exp(log_v)[problem.groups]) @ site.T
            np.testing.assert_allclose(inverse[k], np.linalg.inv(K), rtol=1e-8, atol=1e-10)
            np.testing.assert_allclose(product[k], np.linalg.solve(K, R[k]), rtol=1e-8, atol=1e-10)


@given(mixed_problems(), seeds)
def test_precisions_are_inverse_covariances(problem, seed):
    assert_precisions(problem, log_variances(seed, problem.n_groups))


def test_precisions_of_sites_on_both_sides_of_a_block_are_inverse_covariances():
    problem = sizes_around_a_block(0)
    assert any(batch.Phi.shape[1] > len(problem.sites[batch.index[0]].Phi) for batch in problem.batches())
    assert_precisions(problem, np.array([-1.0, 0.3, 1.0]))


def test_numbers_at_other_variances_in_between_change_nothing():
    """A factorisation is kept as long as the variances are the same, also if their array is written to."""
    problem = sizes_around_a_block(1)
    for batch, fresh in zip(problem.batches(), problem.batches(), strict=True):
        v, others = np.array([0.5, 1.0, 2.0]), np.array([3.0, 0.1, 0.2])
        expected = digest(precision_times(fresh, others, fresh.T), *whiten(fresh, others, fresh.Phi)[0])
        first = digest(precision_times(batch, v, batch.T), *whiten(batch, v, batch.Phi)[0])
        v[:] = others
        assert digest(precision_times(batch, v, batch.T), *whiten(batch, v, batch.Phi)[0]) == expected != first


# Expected likelihood -------------------------------------------------------------------------------------------------


@given(uncertain_weights(), st.sampled_from([0.0, 0.3]))
def test_the_expected_likelihood_is_that_of_brute_force(drawn, floor):
    problem, W, S, log_v, log_s2, prior = drawn
    found = at_all_sites(*drawn, tau2=0.0, floor=floor)
    for t in range(len(problem.T)):
        expected = brute_force(problem, t, W, S, log_v, np.exp(log_s2), prior, floor)
        assert found["value"][t] == pytest.approx(expected, rel=1e-8, abs=1e-8)
    assert found["log_weights"].tolist() == [0.0] * len(problem.T)


@given(uncertain_weights(), st.floats(-3, 1), st.sampled_from([0.0, 0.3]))
def test_weights_of_sites_are_the_best_for_given_variances(drawn, log_tau2, floor):
    problem, W, S, log_v, log_s2, prior = drawn
    tau2 = float(np.exp(log_tau2))
    found = at_all_sites(*drawn, tau2=tau2, floor=floor)
    for t in range(len(problem.T)):

        def loss(x, t=t):
            value = brute_force(problem, t, W, S, log_v, np.exp(log_s2 - x), prior, floor)
            return value + x**2 / tau2

        x = found["log_weights"][t]
        assert found["value"][t] == pytest.approx(loss(x), rel=1e-8, abs=1e-8)
        # The loss is convex in x, so it is at its least where its slope is zero.
        slope = (loss(x + 1e-4) - loss(x - 1e-4)) / 2e-4
        assert slope == pytest.approx(0.0, abs=1e-5 * (1 + abs(loss(x))))


@given(uncertain_weights(), st.sampled_from([0.0, 0.05, 2.0]), st.sampled_from([0.0, 0.3]))
def test_the_gradient_of_the_expected_likelihood_is_that_of_finite_differences(drawn, tau2, floor):
    problem, W, S, log_v, log_s2, prior = drawn
    G = problem.n_groups

    def value(x):
        return at_all_sites(problem, W, S, x[:G], x[G:], prior, tau2, floor)["value"]

    found = at_all_sites(*drawn, tau2=tau2, floor=floor)
    expected = central_difference(value, np.concatenate([log_v, log_s2]), 1e-4).T
    np.testing.assert_allclose(found["gradient"], expected, rtol=1e-5, atol=1e-5 * (1 + np.abs(found["value"]).max()))


@given(
    uncertain_weights(),
    st.sampled_from([0.0, 0.5]),
    st.sampled_from([0.0, 0.3]),
    st.sampled_from([0.0, 1.0]),
    st.integers(0, 4),
)
def test_the_approximate_hessian_is_symmetric_and_positive_semidefinite(drawn, tau2, floor, residual, n_draws):
    problem, W, S, *rest = drawn
    # Without residuals all that is left is the uncertainty of the common weights.
    T = [Phi @ W + residual * (T - Phi @ W) for Phi, T in zip(problem.Phi, problem.T, strict=True)]
    fitted = MixedProblem(problem.Phi, T, problem.groups)
    hessian = at_all_sites(fitted, W, S, *rest, tau2=tau2, floor=floor, n_draws=n_draws)["hessian"]
    np.testing.assert_allclose(hessian, hessian.mT, rtol=1e-9, atol=1e-12 * np.abs(hessian).max())
    lowest = np.linalg.eigvalsh(hessian)[:, 0]
    assert np.all(lowest >= -1e-10 * np.linalg.norm(hessian, axis=(-2, -1)))


@given(uncertain_weights())
@examples(40)
def test_with_many_draws_the_approximate_hessian_is_the_average_information(drawn):
    problem, W, S, log_v, log_s2, prior = drawn
    found = at_all_sites(*drawn, tau2=0.0, n_draws=2_000)["hessian"]
    G, s2 = problem.n_groups, np.exp(log_s2)
    for t, (Phi, T) in enumerate(zip(problem.Phi, problem.T, strict=True)):
        inverse = np.linalg.inv(problem.private_covariance(t, log_v))
        parts = [np.exp(log_v[g]) * Phi[:, problem.groups == g] @ Phi[:, problem.groups == g].T for g in range(G)]
        R, M = T - Phi @ W, Phi @ S @ Phi.T
        expected = np.zeros((G, G))
        for i, j in np.ndindex(G, G):
            middle = inverse @ parts[i] @ inverse @ parts[j] @ inverse
            for c in range(T.shape[1]):
                expected[i, j] += (R[:, c] @ middle @ R[:, c] + prior[c] * np.trace(middle @ M)) / s2[c]
        expected = (expected + expected.T) / 2
        np.testing.assert_allclose(found[t, :G, :G], expected, atol=0.2 * np.abs(expected).max() + 1e-12)


def test_the_curvature_in_log_noise_is_exact():
    problem = make_problem(2, [5, 12, 1], d=2)
    W, S, prior = np.zeros((6, 2)), 0.1 * np.eye(6), np.array([0.5, 2.0])
    log_v, log_s2, G = np.array([-1.0, 0.5, 0.0]), np.array([0.3, -0.4]), 3

    def gradient(x):
        return at_all_sites(problem, W, S, log_v, x, prior, 0.0, 0.1)["gradient"][:, G:]

    expected = central_difference(gradient, log_s2, 1e-5)
    hessian = at_all_sites(problem, W, S, log_v, log_s2, prior, 0.0, 0.1, n_draws=0)["hessian"][:, G:, G:]
    np.testing.assert_allclose(hessian, np.moveaxis(expected, 0, 1), rtol=1e-6, atol=1e-8)


# Evidence of a site by itself ----------------------------------------------------------------------------------------


def dense_site_evidence(problem, t, log_v, floor):
    """-2 log density of a site's targets at the best variance of noise of each column, whose squares gain a floor."""
    K, T, n = problem.private_covariance(t, log_v), problem.T[t], len(problem.T[t])
    total = 0.0
    for c in range(T.shape[1]):
        q = float(T[:, c] @ np.linalg.solve(K, T[:, c])) + floor[c]
        density = -2 * multivariate_normal(np.zeros(n), q / n * K).logpdf(T[:, c]) + n * floor[c] / q
        total += density - n * (np.log(2 * np.pi / n) + 1)
    return total


@st.composite
def sites_with_variances(draw):
    """A problem, and log-variances and floors of each site."""
    problem, seed = draw(mixed_problems()), draw(seeds)
    rng = np.random.default_rng(seed)
    m, d = len(problem.T), problem.T[0].shape[1]
    return problem, rng.uniform(-3, 2, (m, problem.n_groups)), rng.uniform(0.01, 0.5, (m, d))


def evidence_of_sites(problem, log_v, floor):
    found = {}
    for batch in problem.batches():
        parts = site_evidence(batch, log_v[batch.index], floor[batch.index])
        found |= {t: [part[k] for part in parts] for k, t in enumerate(batch.index.tolist())}
    return [np.array([found[t][i] for t in range(len(found))]) for i in range(3)]


@given(sites_with_variances())
def test_the_evidence_of_a_site_is_the_density_of_its_rows(drawn):
    problem, log_v, floor = drawn
    value, _, _ = evidence_of_sites(*drawn)
    expected = [dense_site_evidence(problem, t, log_v[t], floor[t]) for t in range(len(log_v))]
    np.testing.assert_allclose(value, expected, rtol=1e-8, atol=1e-8)


@given(sites_with_variances())
def test_the_gradient_of_a_site_s_evidence_is_that_of_finite_differences(drawn):
    problem, log_v, floor = drawn
    value, gradient, _ = evidence_of_sites(*drawn)
    for g in range(problem.n_groups):
        step = 1e-4 * (np.arange(problem.n_groups) == g)
        up, down = (evidence_of_sites(problem, log_v + sign * step, floor)[0] for sign in (1, -1))
        np.testing.assert_allclose(gradient[:, g], (up - down) / 2e-4, rtol=1e-5, atol=1e-5 * (1 + np.abs(value).max()))


@given(sites_with_variances())
def test_the_approximate_hessian_of_a_site_s_evidence_is_symmetric_and_positive_semidefinite(drawn):
    _, _, hessian = evidence_of_sites(*drawn)
    np.testing.assert_allclose(hessian, hessian.mT, rtol=1e-9, atol=1e-12 * np.abs(hessian).max())
    assert np.all(np.linalg.eigvalsh(hessian)[:, 0] >= -1e-10 * np.linalg.norm(hessian, axis=(-2, -1)))


def above_the_least(problem, noise_floor=0.0):
    """By how much each task's -2 log evidence at the variances of LocalELM is above the least nearby."""
    prior = solve_mixed(LocalELM(), problem, noise_floor=noise_floor).solution.prior
    excess = []
    for t, T in enumerate(problem.T):
        log_v = 2 * np.log([prior[t, problem.groups == g][0] for g in range(3)])
        floor = (noise_floor + 1e-9) * np.sum(T**2, axis=0)[None] + np.finfo(float).tiny

        def loss(x, t=t, constant=log_v[0], floor=floor):
            value, gradient, _ = evidence_of_sites(problem.site(t), np.array([[constant, *x]]), floor)
            return value[0] + HYPERPRIOR * float(x @ x), gradient[0, 1:] + 2 * HYPERPRIOR * x

        best = scipy.optimize.minimize(loss, log_v[1:], jac=True, bounds=[(-16, 16)] * 2, method="L-BFGS-B")
        excess.append(loss(log_v[1:])[0] - best.fun)
    return np.array(excess)


# Far less than what data can tell, in units of -2 log evidence.
STATIONARY = 0.02


@examples(40)
@given(seeds, st.lists(st.integers(7, 20), min_size=1, max_size=3), st.integers(1, 2), st.sampled_from([0.0, 0.1]))
def test_local_elm_is_at_a_stationary_point_of_the_evidence_of_each_task(seed, rows, d, noise_floor):
    assert np.all(above_the_least(make_problem(seed, rows, widths=(1, 2, 3), d=d), noise_floor) <= STATIONARY)


def test_local_elm_is_at_a_stationary_point_where_tasks_have_fewer_rows_than_features():
    # All variances may grow together here, with noise that falls: a direction in which the evidence hardly changes.
    assert np.all(above_the_least(make_problem(1, [5] * 12, widths=(1, 2, 3), d=2)) <= STATIONARY)


@given(mixed_problems())
def test_local_elm_is_a_ridge_regression_with_the_variances_it_found(problem):
    solution = solve_mixed(LocalELM(), problem).solution
    for t, (Phi, T) in enumerate(zip(problem.Phi, problem.T, strict=True)):
        precision = 1 / solution.prior[t] ** 2
        expected = np.linalg.solve(Phi.T @ Phi + np.diag(precision), Phi.T @ T)
        np.testing.assert_allclose(solution.A[t], expected, rtol=1e-5, atol=1e-7 * (1 + np.abs(expected).max()))


# Bits ----------------------------------------------------------------------------------------------------------------


def sizes_around_a_block(seed):
    """Sites on both sides of the sizes at which other kernels take over, some of equal padded size."""
    return make_problem(seed, [1, 5, 5, 23, 24, 25, 25, 40, 41, 33], widths=WIDE, d=2)


@pytest.mark.parametrize("seed", [0, 1])
def test_a_site_s_numbers_do_not_depend_on_the_others_in_its_stack(seed):
    problem = sizes_around_a_block(seed)
    W, S, log_v = np.ones((34, 2)) / 3, 0.2 * np.eye(34), np.array([-1.0, 0.3, 1.0])
    arguments = W, S, log_v, np.array([0.1, -0.5]), np.array([0.7, 0.9]), 0.4, 0.05
    together = at_all_sites(problem, *arguments)
    floor = np.full((len(problem.T), 2), 0.1)
    log_vs = np.tile(log_v, (len(problem.T), 1))
    evidence = evidence_of_sites(problem, log_vs, floor)
    white = {}
    for batch in problem.batches():
        (X, Y), logs = whiten(batch, np.exp(log_v), batch.Phi, batch.T)
        white |= {t: digest(X[k], Y[k], logs[k]) for k, t in enumerate(batch.index.tolist())}
    assert len(problem.batches()) < len(problem.T)
    for t in range(len(problem.T)):
        alone = problem.site(t)
        for name, values in at_all_sites(alone, *arguments).items():
            assert digest(values[0]) == digest(together[name][t]), name
        for values, own in zip(evidence, evidence_of_sites(alone, log_vs[:1], floor[:1]), strict=True):
            assert digest(own[0]) == digest(values[t])
        (batch,) = alone.batches()
        (X, Y), logs = whiten(batch, np.exp(log_v), batch.Phi, batch.T)
        assert digest(X[0], Y[0], logs[0]) == white[t]


@pytest.mark.parametrize("seed", [0, 1])
def test_local_elm_of_many_tasks_is_that_of_each_to_the_bit(seed):
    problem = sizes_around_a_block(seed)
    together = solve_mixed(LocalELM(), problem).solution
    for t in range(len(problem.T)):
        alone = solve_mixed(LocalELM(), problem.site(t)).solution
        assert digest(alone.A[0]) == digest(together.A[t])
        assert digest(alone.prior[0]) == digest(together.prior[t])


def test_large_stacks_are_split_without_a_change_of_bits(monkeypatch):
    problem = sizes_around_a_block(3)
    whole = solve_mixed(LocalELM(), problem).solution.A
    monkeypatch.setattr("elmesh.math.random_effects._BATCH", 1)
    assert all(len(batch.index) == 1 for batch in site_batches(problem.sites, problem.groups))
    assert digest(solve_mixed(LocalELM(), problem).solution.A) == digest(whole)
