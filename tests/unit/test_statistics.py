"""The rows of a site: fewer of them with the same Gram matrix, or the rows themselves."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elmesh.data.statistics import Reduced, SiteRows
from elmesh.math.random_effects import site_batches

seeds = st.integers(0, 10**6)


def drawn_rows(seed, n, p, d):
    """Features of which some may depend on others, and targets that they explain in part."""
    rng = np.random.default_rng(seed)
    Phi = rng.normal(size=(n, p))
    if p > 1 and seed % 3 == 0:
        Phi[:, -1] = Phi[:, 0]
    return Phi, Phi @ rng.normal(size=(p, d)) + rng.normal(size=(n, d))


@given(seeds, st.integers(1, 40), st.integers(1, 8), st.integers(1, 3))
def test_products_of_features_and_targets_are_those_of_all_rows(seed, n, p, d):
    Phi, T = drawn_rows(seed, n, p, d)
    site = SiteRows.from_rows(Phi, T)
    np.testing.assert_allclose(site.Phi.T @ site.Phi, Phi.T @ Phi, atol=1e-10)
    np.testing.assert_allclose(site.Phi.T @ site.T, Phi.T @ T, atol=1e-10)
    np.testing.assert_allclose(np.sum(site.T**2, axis=0) + site.rest, np.sum(T**2, axis=0), rtol=1e-10)
    assert site.target_energy == pytest.approx(np.sum(T**2), rel=1e-10)
    assert site.rows == n
    assert (site.width, site.outputs) == (p, d)


@given(seeds, st.integers(1, 8), st.integers(1, 3), st.data())
def test_few_rows_stay_as_they_are(seed, p, d, data):
    """Up to as many as features and targets together: leave-one-out needs single rows."""
    Phi, T = drawn_rows(seed, data.draw(st.integers(1, p + d)), p, d)
    site = SiteRows.from_rows(Phi, T)
    np.testing.assert_array_equal(site.Phi, Phi)
    np.testing.assert_array_equal(site.T, T)
    assert site.rest.tolist() == [0.0] * d


@given(seeds, st.integers(1, 8), st.integers(1, 3), st.integers(1, 30))
def test_many_rows_become_as_many_as_features(seed, p, d, more):
    Phi, T = drawn_rows(3 * seed + 1, p + d + more, p, d)
    site = SiteRows.from_rows(Phi, T)
    assert site.Phi.shape == (p, p)
    assert site.T.shape == (p, d)
    # What no features explain is the residual of least squares.
    weights = np.linalg.lstsq(Phi, T, rcond=None)[0]
    np.testing.assert_allclose(site.rest, np.sum((T - Phi @ weights) ** 2, axis=0), rtol=1e-8)


def test_a_site_may_have_no_rows():
    site = SiteRows.from_rows(np.zeros((0, 3)), np.zeros((0, 2)))
    assert (site.rows, site.width, site.outputs, site.directions, site.target_energy) == (0.0, 3, 2, 0, 0.0)
    assert site.rest.tolist() == [0.0, 0.0]
    (batch,) = site_batches([site], np.array([0, 1, 1]))
    assert batch.rows.tolist() == [0.0]
    assert not batch.Phi.any()
    assert not batch.T.any()


def test_a_site_is_made_of_reduced_rows_too():
    Phi, T = drawn_rows(1, 50, 4, 2)
    direct, reduced = SiteRows.from_rows(Phi, T), SiteRows.from_reduced(Reduced.from_rows(Phi, T, centre=False))
    for one, other in zip(direct.arrays, reduced.arrays, strict=True):
        np.testing.assert_array_equal(one, other)
    assert direct.Phi.flags.c_contiguous
    assert direct.T.flags.c_contiguous


def test_directions_are_those_that_the_targets_span():
    rng = np.random.default_rng(0)
    Phi, column = rng.normal(size=(20, 5)), rng.normal(size=(20, 1))
    explained = Phi @ np.ones((5, 1))
    assert SiteRows.from_rows(Phi, np.hstack([column, 2 * column])).directions == 1
    assert SiteRows.from_rows(Phi, np.hstack([column, explained])).directions == 2
    assert SiteRows.from_rows(Phi, np.zeros((20, 2))).directions == 0


def test_all_numbers_are_in_the_digest():
    site = SiteRows.from_rows(*drawn_rows(1, 50, 4, 2))
    assert {array.tobytes() for array in site.arrays} == {
        site.Phi.tobytes(),
        site.T.tobytes(),
        site.rest.tobytes(),
        np.array(50.0).tobytes(),
    }
