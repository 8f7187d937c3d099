"""Intervals of errors and of their changes, against formulas and other libraries."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest, ttest_1samp, ttest_rel

from elmesh.math.intervals import corrected_standard_error, error_interval, half_width, paired_change

RESULTS = st.lists(st.floats(-10, 10), min_size=2, max_size=20)


@given(RESULTS, st.integers(2, 10))
def test_the_corrected_standard_error_is_that_of_nadeau_and_bengio(results, folds):
    J, mean = len(results), sum(results) / len(results)
    variance = sum((x - mean) ** 2 for x in results) / (J - 1)
    # A fold has one part of the rows to test on and the others to train on.
    expected = ((1 / J + 1 / (folds - 1)) * variance) ** 0.5
    assert corrected_standard_error(np.array(results), 1 / (folds - 1)) == pytest.approx(expected, abs=1e-12)


def test_without_rows_in_common_the_interval_is_that_of_a_t_test():
    results = np.random.default_rng(0).normal(size=9)
    interval = ttest_1samp(results, 0.0).confidence_interval(0.95)
    half = half_width(corrected_standard_error(results, 0.0), 9)
    assert (results.mean() - half, results.mean() + half) == pytest.approx((interval.low, interval.high))
    assert half_width(1.0, 1) == np.inf


@pytest.mark.parametrize(("wrong", "n"), [(0, 12), (3, 12), (12, 12), (40, 200)])
def test_the_interval_of_a_share_is_that_of_wilson(wrong, n):
    losses = np.r_[np.ones(wrong), np.zeros(n - wrong)]
    expected = binomtest(wrong, n).proportion_ci(0.95, method="wilson")
    assert error_interval(losses, squared=False) == pytest.approx((expected.low, expected.high), abs=1e-12)


def test_the_interval_of_a_root_mean_square_is_the_root_of_that_of_the_mean():
    squares = np.random.default_rng(0).normal(size=40) ** 2
    interval = ttest_1samp(squares, 0.0).confidence_interval(0.95)
    assert error_interval(squares, squared=True) == pytest.approx((interval.low**0.5, interval.high**0.5))
    few = np.array([0.0, 9.0])
    assert error_interval(few, squared=True)[0] == 0.0  # not the root of a negative number


def test_a_change_of_shares_has_the_interval_of_a_paired_test_and_at_least_three_rows_in_n():
    rng = np.random.default_rng(0)
    before, after = (rng.random((2, 200)) < [[0.5], [0.3]]).astype(float)
    change, half = paired_change(before, after, squared=False)
    interval = ttest_rel(after, before).confidence_interval(0.95)
    assert (change - half, change + half) == pytest.approx((interval.low, interval.high))
    assert paired_change(before, before, squared=False) == (0.0, 3 / 200)


def test_a_change_of_root_mean_squares_covers_the_truth_about_as_often_as_it_should():
    rng, inside = np.random.default_rng(0), 0
    for _ in range(400):
        noise, more = rng.normal(size=(2, 60))
        change, half = paired_change(noise**2, (noise + 0.5 * more) ** 2, squared=True)
        inside += abs(change - (1.25**0.5 - 1)) <= half
    assert 0.91 < inside / 400 < 0.98
    assert paired_change(np.ones(1), np.zeros(1), squared=True) == (-1.0, np.inf)
