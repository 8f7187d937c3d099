"""Centre and spread of columns by histograms with noise."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elmesh.privacy.accounting import rho_for
from elmesh.privacy.scales import Histogram, Window, equal_bins, find_scale, find_window, power_bins

SITES = 10


def release(histogram: Histogram, counts: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    terms = histogram.terms(counts)
    return histogram.split(terms + np.rint(math.sqrt(SITES) * histogram.per_site * rng.normal(size=len(terms))))


def search(X: np.ndarray, rho: float, seed: int) -> list[tuple[float, float] | None]:
    rng, histogram = np.random.default_rng(seed), Histogram.make((1,) * X.shape[1], rho, SITES)
    sigma = histogram.noise(SITES)
    windows = [find_window(own, s) for own, s in zip(release(histogram, power_bins(X), rng), sigma, strict=True)]
    equal = release(histogram, equal_bins(X, windows), rng)
    return [None if w is None else find_scale(own, w, s) for own, w, s in zip(equal, windows, sigma, strict=True)]


@pytest.mark.parametrize(
    ("centre", "spread"), [(0.0, 1.0), (0.0, 1e-3), (485.0, 48.0), (-3e6, 1e6), (1e9, 2e8), (2.0, 0.3)]
)
def test_the_scale_is_found_wherever_it_is(centre, spread):
    X = centre + spread * np.random.default_rng(0).normal(size=(5000, 1))
    for seed in range(20):
        ((found, width),) = search(X, 0.1 * rho_for(1.0, 1e-5), seed)
        assert abs(found - centre) < 0.5 * spread
        assert 0.5 < width / spread < 2.0


def test_an_offset_that_is_large_against_the_spread_costs_precision_and_no_more():
    X = 1975 + 5 * np.random.default_rng(0).normal(size=(5000, 1))
    for seed in range(20):
        ((found, width),) = search(X, 0.1 * rho_for(1.0, 1e-5), seed)
        assert abs(found - 1975) < 40
        assert 5 < width < 100


def test_with_noise_alone_no_window_is_found():
    none = 0
    for seed in range(200):
        rng, histogram = np.random.default_rng(seed), Histogram.make((1,), 0.01, SITES)
        none += find_window(rng.normal(size=121) * histogram.noise(SITES)[0], histogram.noise(SITES)[0]) is None
    assert none >= 199


@given(st.integers(0, 10**6), st.integers(1, 6))
def test_one_row_changes_the_counts_by_no_more_than_is_paid_for(seed, columns):
    rng = np.random.default_rng(seed)
    weights = tuple(rng.integers(1, 4, size=columns).tolist())
    histogram = Histogram.make(weights, 0.01, 7)
    rest = rng.normal(size=(20, columns))
    rows = rng.normal(size=(2, columns)) * 10.0 ** rng.integers(-9, 9, size=(2, columns))
    rows[rng.random(size=rows.shape) < 0.2] = np.nan
    windows = [Window(-1.0, 1.0, 10.0) if rng.random() < 0.8 else None for _ in range(columns)]
    for count in (power_bins, lambda X: equal_bins(X, windows)):
        one, other = (histogram.terms(count(np.vstack([rest, row]))) for row in rows)
        squared = np.sum(((one - other) / (math.sqrt(7) * histogram.per_site)) ** 2)
        assert squared / 2 <= histogram.cost()


@given(st.floats(1e-5, 1.0), st.integers(1, 20), st.integers(1, 30))
def test_the_cost_is_what_was_asked_for(rho, columns, honest):
    histogram = Histogram.make((1,) * columns, rho, honest)
    assert histogram.cost() <= rho * (1 + 1e-9)
    assert histogram.cost(1) == pytest.approx(honest * histogram.cost())
    if histogram.per_site > 10_000:
        assert histogram.cost() > 0.999 * rho


def test_columns_that_count_more_often_have_less_noise():
    histogram = Histogram.make((1, 3), 0.01, SITES)
    first, second = histogram.noise(SITES)
    assert first == pytest.approx(3 * second)
    counts = np.arange(10).reshape(2, 5)
    np.testing.assert_array_equal(histogram.split(histogram.terms(counts)), counts)


def test_every_value_counts_once_and_missing_ones_do_not():
    X = np.array([[0.0], [1e-30], [-1e-30], [1e300], [-1e300], [1.0], [-1.0], [np.nan]])
    counts = power_bins(X)
    assert counts.sum() == 7
    assert counts[0, 60] == 3  # zero, and what is as good as zero
    assert (counts[0, 0], counts[0, -1]) == (1, 1)


def test_values_of_a_column_without_a_window_count_in_no_bin():
    X = np.array([[0.0], [1.0], [-1.0], [1e300], [np.nan]])
    assert not equal_bins(X, [None]).any()
    counts = equal_bins(np.hstack([X, X]), [None, Window(-2.0, 2.0, 3.0)])
    assert counts.sum(axis=1).tolist() == [0, 3]


def test_both_ends_of_a_window_are_in_its_end_bins_and_values_outside_in_none():
    X = np.array([-8.0, 0.0, np.nextafter(-8.0, -9.0), np.nextafter(0.0, 1.0), -9.0, 1.0, np.inf, -np.inf, np.nan])
    (counts,) = equal_bins(X[:, None], [Window(-8.0, 0.0, 3.0)])
    assert np.flatnonzero(counts).tolist() == [0, 31]
    assert counts.sum() == 2
    # A value below the end whose place is rounded to that of the end.
    high = 3.0
    (counts,) = equal_bins(np.array([[np.nextafter(high, 0.0)]]), [Window(-1e12, high, 1.0)])
    assert counts[31] == 1


def test_zeros_count_in_the_scale_of_a_column_without_positive_values():
    rng = np.random.default_rng(0)
    X = np.where(rng.random((5000, 1)) < 0.7, 0.0, -rng.uniform(2.0, 8.0, size=(5000, 1)))
    for seed in range(20):
        ((found, _),) = search(X, 0.1 * rho_for(1.0, 1e-5), seed)
        assert abs(found) < 0.5


def test_whether_rows_suffice_depends_on_their_number_and_on_that_of_the_columns():
    few, many = Histogram.make((1,), 0.0036, SITES), Histogram.make((1,) * 30, 0.0036, SITES)
    assert not few.suffices(100, SITES)
    assert few.suffices(2000, SITES)
    assert not many.suffices(1000, SITES)
    assert many.suffices(20_000, SITES)
