"""A site's weights beside uncertain common ones: against a grid of dense Gaussian processes."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import elmesh.math.site_average as module
from elmesh.data.statistics import SiteRows
from elmesh.estimators.common import CommonPart
from elmesh.math.site_average import average_site, whitened_by
from helpers.examples import examples

seeds = st.integers(0, 10**6)
GROUPS = np.array([0, 1, 1, 2, 2, 2, 3, 3])


def site_of(seed: int, n: int, d: int = 1):
    rng = np.random.default_rng(seed)
    Phi = np.column_stack([np.ones(n), rng.normal(size=(n, 7)) * [1, 1, 0.2, 0.2, 0.2, 0.5, 0.5]])
    W = np.where(GROUPS[:, None] < 3, rng.normal(size=(8, d)), 0.0)
    T = Phi @ (W + 0.3 * rng.normal(size=(8, d))) + 0.3 * rng.normal(size=(n, d))
    root = rng.normal(size=(8, 8)) * (GROUPS < 3)
    return Phi, T, W, 0.01 * root.T @ root


def dense_average(Phi, T, W, S, noise_floor=0.0, shrink=1.0):
    """The same by dense Gaussian densities: weights, noise and variances."""
    R, (n, d) = T - Phi @ W, T.shape
    unit = np.mean(R**2)
    variance = np.sum((R - R.mean(axis=0)) ** 2) / (n - 1) / d if n > 1 else np.inf
    if unit > 100 * variance:
        unit = variance
    squares = np.array([np.sum(Phi[:, g == GROUPS] ** 2) / n for g in range(4)])
    scale = unit / squares
    scale[0] = unit
    part = np.array([0, 1, 1, 2])
    points, results = [], []
    for point in product(module._CONSTANT, module._SMOOTH, module._ROUGH):
        v = (np.array(point)[part] * scale)[GROUPS]
        P = S + np.diag(v)
        for s in module._NOISE[noise_floor <= module._NOISE]:
            K = Phi @ P @ Phi.T + unit * s * np.eye(n)
            density = -0.5 * sum(np.linalg.slogdet(K)[1] + r @ np.linalg.solve(K, r) for r in R.T)
            prior = -0.5 * np.sum((np.log(np.array(point) / module._CENTRES) / module._SPREAD) ** 2)
            prior += -0.5 * (np.log(s / module._NOISE_CENTRE) / module._SPREAD) ** 2
            points.append(shrink * density + prior)
            results.append(
                (W + P @ Phi.T @ np.linalg.solve(K, R), unit * s, np.minimum(np.array(point), 10)[part] * scale)
            )
    weights = np.exp(np.array(points) - max(points))
    weights /= weights.sum()
    return [sum(w * result[k] for w, result in zip(weights, results, strict=True)) for k in range(3)]


@examples(6)
@given(seeds, st.sampled_from([1, 2, 5, 12]), st.sampled_from([1, 2]))
def test_it_is_the_average_of_dense_gaussian_processes(seed, n, d):
    Phi, T, W, S = site_of(seed, n, d)
    expected = dense_average(Phi, T, W, S)
    found = average_site(SiteRows.from_rows(Phi, T), GROUPS, W, S)
    np.testing.assert_allclose(found.weights, expected[0], rtol=1e-4, atol=1e-6)
    assert found.s2 == pytest.approx(expected[1], rel=1e-4)
    np.testing.assert_allclose(found.v, expected[2], rtol=1e-4)


def test_classes_count_one_column_less_and_have_a_floor_of_noise():
    Phi, T, W, S = site_of(3, 9, 2)
    expected = dense_average(Phi, T, W, S, noise_floor=0.1, shrink=0.5)
    found = average_site(SiteRows.from_rows(Phi, T), GROUPS, W, S, 0.1, classes=True)
    np.testing.assert_allclose(found.weights, expected[0], rtol=1e-4, atol=1e-6)


@examples(20)
@given(seeds)
def test_a_table_of_many_rows_may_be_reduced_before(seed):
    Phi, T, W, S = site_of(seed, 60)
    reduced = SiteRows.from_rows(Phi, T)
    assert len(reduced.Phi) < 60
    whole = SiteRows(Phi, T, np.zeros(1), 60.0)
    found, expected = (average_site(site, GROUPS, W, S) for site in (reduced, whole))
    np.testing.assert_allclose(found.weights, expected.weights, rtol=1e-6, atol=1e-8)
    assert found.s2 == pytest.approx(expected.s2)


@given(seeds, st.floats(-4, 4))
def test_it_does_not_depend_on_the_unit_of_the_targets(seed, power):
    Phi, T, W, S = site_of(seed, 8)
    unit = 10.0**power
    found = average_site(SiteRows.from_rows(Phi, unit * T), GROUPS, unit * W, unit**2 * S)
    expected = average_site(SiteRows.from_rows(Phi, T), GROUPS, W, S)
    np.testing.assert_allclose(found.weights, unit * expected.weights, rtol=1e-5, atol=1e-8 * unit)
    assert found.s2 == pytest.approx(unit**2 * expected.s2, rel=1e-6)


def test_targets_far_from_zero_are_predicted_as_well_as_others():
    """Where the scale of the targets is not known the constant is left free."""
    Phi, T, W, S = site_of(0, 30)
    near, far = (average_site(SiteRows.from_rows(Phi, T + c), GROUPS, 0 * W, 0 * S) for c in (0.0, 1e4))
    errors = [np.std(T + c - Phi @ found.weights) for c, found in ((0.0, near), (1e4, far))]
    assert errors[1] < 1.3 * errors[0]


def test_common_weights_that_are_certain_help_a_small_site_and_uncertain_ones_hardly_matter():
    rng = np.random.default_rng(1)
    Phi, W = np.column_stack([np.ones(1000), rng.normal(size=(1000, 7))]), np.zeros((8, 1))
    W[1] = 2.0
    T = Phi @ W + 0.3 * rng.normal(size=(1000, 1))
    site, new = SiteRows.from_rows(Phi[:3], T[:3]), (Phi[3:], T[3:])
    wrong = -3.0 * W

    def error(W, S):
        return float(np.mean((new[1] - new[0] @ average_site(site, GROUPS, W, S).weights) ** 2))

    certain, none = 1e-6 * np.eye(8), np.zeros((8, 8))
    assert error(W, certain) < 0.3 < error(0 * W, none)
    uncertain = error(wrong, 100.0 * np.diag(np.arange(8) == 1))
    assert uncertain < 0.3 * error(wrong, certain)


def test_the_uncertainty_is_that_of_a_dense_gaussian_process():
    Phi, T, W, S = site_of(5, 10)
    site = SiteRows.from_rows(Phi, T)
    common = CommonPart(W, np.zeros(1), S / 0.2, np.zeros(4), np.zeros(4), np.array([0.2]), 0.0, private=True)
    head = common.head(site, GROUPS)
    s2, v = 0.2 * np.exp(-head.log_w), np.exp(head.log_v)[GROUPS]
    P = S + np.diag(v * s2)
    new = np.random.default_rng(0).normal(size=(4, 8))
    K = Phi @ P @ Phi.T + s2 * np.eye(10)
    cross = new @ P @ Phi.T
    expected = np.diag(new @ P @ new.T - cross @ np.linalg.solve(K, cross.T)) + s2
    np.testing.assert_allclose(common.variance(new, GROUPS, head)[:, 0], expected, rtol=1e-8)
    average = average_site(site, GROUPS, W, S)
    np.testing.assert_allclose(head.A, average.weights, rtol=1e-10)
    X = whitened_by(site, GROUPS, average.v / average.s2, S / average.s2)
    np.testing.assert_allclose(head.X, X)
    # Features times a root of the prior covariance have its products.
    root = common.prior_features(new, GROUPS, head)
    np.testing.assert_allclose(root @ root.T, new @ P @ new.T / s2, rtol=1e-8)
