"""The statistics of a site: rows are added and taken away, and divided by what is in a row, not by where it is."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elmesh.data.features import FeatureMap, HiddenLayer
from elmesh.data.row_keys import row_keys
from elmesh.data.site_statistics import KEPT, KeyedRows, SiteStatistics
from elmesh.data.statistics import SiteRows
from helpers.mixed import digest

seeds = st.integers(0, 10**6)
LAYER = FeatureMap(np.zeros(3), None, (HiddenLayer(3, 4, seed=3),))


class Constant:
    """Features: a constant, the inputs, and so many zeros that rows stay as they are."""

    width = 204

    def __call__(self, X):
        return np.column_stack([np.ones(len(X)), X, np.zeros((len(X), self.width - 1 - X.shape[1]))])


def keyed(X, y, weights=None, seed=0):
    """Rows with their keys."""
    T = y[:, None] if y.ndim == 1 else y
    return KeyedRows(X, T, np.ones(len(X)) if weights is None else weights, row_keys(np.hstack([X, T]), seed))


def site_of(rows, layer=LAYER, parts=1):
    """The statistics of rows that are added in parts."""
    site = SiteStatistics(rows.X.shape[1], rows.T.shape[1])
    for part in np.array_split(np.arange(len(rows)), parts):
        site.add(layer, rows[part])
    return site


def halves_of(X, y, seed=0):
    """The rows (inputs and target) of the two halves of one task, and their statistics."""
    pair = site_of(keyed(X, y, seed=seed), Constant()).divided(Constant())
    return [np.hstack([half.Phi[:, 1 : 1 + X.shape[1]], half.T]) for half in pair], pair


def table(seed, n, columns=3):
    """Rows of small whole numbers, of which many are equal, or of real numbers."""
    rng = np.random.default_rng(seed)
    X = rng.integers(-1, 2, size=(n, columns)).astype(float) if seed % 2 else rng.normal(size=(n, columns))
    return X, X[:, 0] + (0.0 if seed % 2 else rng.normal(size=n))


@given(seeds, st.integers(1, 60))
def test_halves_have_equal_sizes_up_to_one_and_together_all_rows(seed, n):
    X, y = table(seed, n)
    (first, second), statistics = halves_of(X, y)
    assert len(first) - len(second) == n % 2
    assert [half.rows for half in statistics] == [len(first), len(second)]
    found, expected = np.vstack([first, second]), np.column_stack([X, y])
    np.testing.assert_array_equal(found[np.lexsort(found.T)], expected[np.lexsort(expected.T)])


@given(seeds, st.integers(1, 60))
def test_the_order_of_rows_does_not_matter(seed, n):
    X, y = table(seed, n)
    order = np.random.default_rng(seed).permutation(n)
    for one, other in zip(halves_of(X, y)[1], halves_of(X[order], y[order])[1], strict=True):
        assert digest(*one.arrays) == digest(*other.arrays)


@pytest.mark.parametrize("n", [2, 7, 50])
def test_equal_rows_are_divided_too(n):
    (first, second), _ = halves_of(np.ones((n, 3)), np.ones(n))
    assert (len(first), len(second)) == ((n + 1) // 2, n // 2)


def test_the_second_half_of_one_row_is_empty():
    (first, second), (_, empty) = halves_of(np.ones((1, 3)), np.ones(1))
    assert (len(first), len(second)) == (1, 0)
    assert empty.rows == 0.0


def test_the_two_zeros_are_one():
    X, y = table(0, 30)
    X[:20, 1] = 0.0
    negative = X.copy()
    negative[:20:2, 1] = -0.0
    for one, other in zip(halves_of(X, y)[0], halves_of(negative, y)[0], strict=True):
        np.testing.assert_array_equal(one, other)


@given(seeds, st.integers(0, 2**64 - 2))
def test_another_seed_gives_other_halves(table_seed, seed):
    X, y = table(2 * table_seed, 40)
    firsts = [{row.tobytes() for row in halves_of(X, y, one)[0][0]} for one in (seed, seed + 1)]
    # Of 20 rows about 10 are in both.
    assert 1 <= len(firsts[0] & firsts[1]) <= 19


def test_every_input_and_the_target_count():
    """Rows that differ in one of them only are in halves of their own."""
    for column in range(4):
        rows = np.zeros((64, 4))
        rows[:, column] = np.arange(64)
        (first, _), _ = halves_of(rows[:, :3], rows[:, 3])
        chosen = np.sort(first[:, column])
        assert not np.array_equal(chosen, np.arange(32))
        assert not np.array_equal(chosen, np.arange(32, 64))


@pytest.mark.parametrize("kind", ["whole numbers", "classes", "small steps"])
def test_halves_have_nothing_to_do_with_what_is_in_a_row(kind):
    """Over many seeds the mean of the first half is as far from that of all rows as chance has it."""
    n = 400
    column = {
        "whole numbers": np.arange(n, dtype=float),
        "classes": np.repeat([0.0, 1.0], n // 2),
        "small steps": 1.0 + 1e-9 * np.arange(n),
    }[kind]
    X = np.column_stack([np.random.default_rng(0).normal(size=n) if kind == "classes" else np.zeros(n), column])
    deviations = []
    for seed in range(60):
        (first, _), _ = halves_of(X, np.zeros(n), seed)
        # A half of all rows without replacement: its mean has a quarter of the variance that 100 rows have.
        deviations.append((first[:, 1].mean() - column.mean()) / (column.std() * np.sqrt(1 / (n - 1))))
    assert abs(np.mean(deviations)) < 4 / np.sqrt(60)
    assert 0.6 < np.std(deviations) < 1.4


def drawn(seed, n, d=1):
    """Rows of real numbers, with targets that depend on them."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 3))
    return keyed(X, X @ rng.normal(size=(3, d)) + rng.normal(size=(n, d)), rng.integers(1, 4, size=n).astype(float))


def gram(site, layer=LAYER):
    """All products of features and targets, from what a fit takes."""
    rows = SiteRows.from_reduced(site.reduced(layer, centre=False))
    block = np.hstack([rows.Phi, rows.T])
    products = block.T @ block
    products[-len(rows.rest) :, -len(rows.rest) :] += np.diag(rows.rest)
    return products


def products_of(rows, layer=LAYER):
    """The same from the rows themselves; of the targets only their squares."""
    block = np.sqrt(rows.weights)[:, None] * np.hstack([layer(rows.X), rows.T])
    products, d = block.T @ block, rows.T.shape[1]
    return products, d


@pytest.mark.parametrize("n", [1, 30, KEPT, KEPT + 1, KEPT + 700])
@given(seed=seeds, parts=st.integers(1, 5))
def test_products_are_those_of_all_rows_in_whatever_parts_they_come(n, seed, parts):
    rows = drawn(seed, n, d=2)
    site = site_of(rows, parts=parts)
    expected, d = products_of(rows)
    found = gram(site)
    np.testing.assert_allclose(found[:-d], expected[:-d], atol=1e-8 * n)
    np.testing.assert_allclose(np.diag(found), np.diag(expected), atol=1e-8 * n)
    assert (site.n_rows, site.weight) == (n, rows.weights.sum())
    assert site.is_complete == (n <= KEPT)
    np.testing.assert_allclose(site.target_sums, rows.weights @ rows.T, atol=1e-8)
    np.testing.assert_array_equal(site.keys, np.sort(rows.keys))


@given(seeds, st.integers(2, 60), st.data())
def test_a_site_is_to_the_bit_as_if_rows_that_were_taken_away_had_never_been_there(seed, n, data):
    rows = drawn(seed, n)
    gone = np.array(data.draw(st.lists(st.integers(0, n - 1), unique=True, min_size=1, max_size=n - 1)))
    site, left = site_of(rows), np.delete(np.arange(n), gone)
    assert not len(site.missing(rows[gone]))
    site.remove(LAYER, rows[gone])
    expected = site_of(rows[left], parts=2)
    for one, other in zip((site.reduced, site.divided), (expected.reduced, expected.divided), strict=True):
        if one == site.reduced:
            assert digest(one(LAYER, centre=False).factor) == digest(other(LAYER, centre=False).factor)
        else:
            for half, same in zip(one(LAYER), other(LAYER), strict=True):
                assert digest(*half.arrays) == digest(*same.arrays)


@given(seeds, st.integers(1, 400))
def test_taking_rows_away_from_many_leaves_the_products_of_the_others(seed, k):
    rows = drawn(seed, KEPT + 500)
    site = site_of(rows)
    before = site.copy()
    gone = np.random.default_rng(seed).permutation(len(rows))[:k]
    assert not len(site.missing(rows[gone]))
    site.remove(LAYER, rows[gone])
    left = rows[np.delete(np.arange(len(rows)), gone)]
    expected, d = products_of(left)
    np.testing.assert_allclose(gram(site)[:-d], expected[:-d], atol=1e-7)
    np.testing.assert_array_equal(site.keys, np.sort(left.keys))
    assert set(site.rows.keys.tolist()) <= set(left.keys.tolist())
    for half, same in zip(site.divided(LAYER), site_of(left).divided(LAYER), strict=True):
        np.testing.assert_allclose(half.Phi.T @ half.Phi, same.Phi.T @ same.Phi, atol=1e-7)
    # The statistics that were copied are as before.
    np.testing.assert_array_equal(before.keys, np.sort(rows.keys))


@pytest.mark.parametrize("n", [40, KEPT + 40])
def test_rows_that_are_not_there_are_found(n):
    rows = drawn(1, n)
    site, other = site_of(rows), drawn(2, 3)
    assert site.missing(other).tolist() == [0, 1, 2]
    # A row that is there once cannot be taken away twice.
    assert site.missing(rows[np.array([5, 7, 5])]).tolist() == [2]
    site.remove(LAYER, rows[np.array([5])])
    assert site.missing(rows[np.array([4, 5])]).tolist() == [1]


def test_a_row_is_found_with_the_weight_that_it_had():
    rows = drawn(1, 10)
    heavier = KeyedRows(rows.X, rows.T, rows.weights + 1.0, rows.keys)
    assert len(site_of(rows).missing(heavier)) == 10


@given(seeds, st.integers(1, 40))
def test_weights_are_repeated_rows(seed, n):
    rows = drawn(seed, n)
    again = np.repeat(np.arange(n), rows.weights.astype(int))
    repeated = keyed(rows.X[again], rows.T[again])
    one, other = site_of(rows, Constant()), site_of(repeated, Constant())
    pairs = zip(one.divided(Constant()), other.divided(Constant()), strict=True)
    for half, same in pairs:
        assert half.rows == same.rows
        np.testing.assert_allclose(half.Phi.T @ half.Phi, same.Phi.T @ same.Phi, atol=1e-10)
        np.testing.assert_allclose(half.Phi.T @ half.T, same.Phi.T @ same.T, atol=1e-10)


def test_kept_rows_are_a_sample_that_does_not_depend_on_order_or_parts():
    rows = drawn(3, 2 * KEPT)
    shuffled = rows[np.random.default_rng(0).permutation(len(rows))]
    one, other = site_of(rows, parts=3), site_of(shuffled, parts=7)
    np.testing.assert_array_equal(one.rows.keys, other.rows.keys)
    assert len(one.rows) == KEPT
    # Each kept row stands for two.
    assert one.row_weights.sum() == pytest.approx(one.weight)
    assert abs(one.rows.X.mean()) < 5 * np.std(rows.X) / np.sqrt(3 * KEPT)


def test_a_centred_site_of_many_rows_has_the_means_of_all():
    rows = drawn(4, KEPT + 100)
    reduced = site_of(rows).reduced(LAYER, centre=True)
    block = np.hstack([LAYER(rows.X), rows.T])
    mean = np.average(block, axis=0, weights=rows.weights)
    np.testing.assert_allclose(reduced.mean, mean, atol=1e-10)
    centred = np.sqrt(rows.weights)[:, None] * (block - mean)
    np.testing.assert_allclose(reduced.factor.T @ reduced.factor, centred.T @ centred, atol=1e-7)
    assert reduced.weights is None
