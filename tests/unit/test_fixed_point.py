"""Numbers as integers: their precision, sums in any order, and what is refused."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elmesh.comm.fixed_point import LIMBS, TOTAL_BITS, exponent_for, from_scaled, from_wide, to_scaled, to_wide
from elmesh.errors import ElmeshError

numbers = st.floats(-1e20, 1e20, allow_nan=False) | st.floats(-1.0, 1.0) | st.floats(-1e-12, 1e-12)
several = st.lists(numbers, min_size=1, max_size=40).map(np.array)


def exact_sum(values):
    return sum((Fraction(x) for x in values.tolist()), Fraction(0))


@given(several)
def test_a_wide_number_comes_back_to_its_absolute_and_relative_precision(x):
    error = np.abs(from_wide(to_wide(x)) - x)
    # The first term is that of the lowest limb, the second that of a double.
    assert np.all(error <= 2.0**-71 + 2.0**-53 * np.abs(x))


@given(several)
def test_numbers_with_no_bits_below_the_lowest_limb_come_back_unchanged(x):
    whole = np.ldexp(np.rint(np.ldexp(x, 70)), -70)
    assert from_wide(to_wide(whole)).tobytes() == (whole + 0.0).tobytes()


@given(several, st.randoms(use_true_random=False))
def test_wide_sums_are_the_same_in_any_order_and_within_rounding_of_the_exact_sum(x, random):
    order = random.sample(range(len(x)), len(x))
    limbs = to_wide(x)
    total = limbs.sum(axis=0)
    in_order = np.zeros(LIMBS, np.int64)
    for k in order:
        in_order += limbs[k]
    assert in_order.tobytes() == total.tobytes()
    exact = exact_sum(x)
    assert abs(Fraction(float(from_wide(total))) - exact) <= Fraction(len(x), 2**71) + abs(exact) * Fraction(1, 2**51)


@given(several)
def test_terms_that_cancel_leave_what_is_small(x):
    # In doubles the small number would be lost beside the large ones.
    small = 2.0**-50
    total = to_wide(np.concatenate([x, [small], -x])).sum(axis=0)
    assert float(from_wide(total)) == small


@given(several, st.floats(1.0, 1e6))
def test_scaled_numbers_are_as_precise_as_their_bound_allows_and_cannot_overflow(x, slack):
    bound = float(np.sum(np.abs(x))) * slack
    e = exponent_for(bound)
    n = to_scaled(x, e)
    assert abs(sum(n.tolist())) <= 2**46 + len(x)  # Python's integers do not overflow
    assert np.all(np.abs(from_scaled(n, e) - x) <= 2.0**-46 * bound + 2.0**-53 * np.abs(x))


@given(several, st.randoms(use_true_random=False))
def test_scaled_sums_are_the_same_in_any_order_and_within_rounding_of_the_exact_sum(x, random):
    bound = float(np.sum(np.abs(x)))
    e = exponent_for(bound)
    total = to_scaled(x, e).sum()
    shuffled = random.sample(x.tolist(), len(x))
    assert sum(to_scaled(np.array([value]), e)[0] for value in shuffled) == total
    exact = exact_sum(x)
    error = abs(Fraction(float(from_scaled(np.array(total), e))) - exact)
    assert error <= Fraction(bound) * Fraction(len(x), 2**46) + abs(exact) * Fraction(1, 2**52)


@given(st.integers(-1000, 1000), st.floats(1.0, 2.0, exclude_max=True))
def test_a_bound_uses_all_bits(power, mantissa):
    # One bit is left for rounding: the bound itself is between 2**45 and 2**46, and totals are below 2**47.
    bound = float(np.ldexp(mantissa, power))
    assert 2**45 <= to_scaled(np.array([bound]), exponent_for(bound))[0] <= 2 ** (TOTAL_BITS - 1)


def test_a_bound_of_zero_is_for_zeros():
    assert from_scaled(to_scaled(np.zeros(2), exponent_for(0.0)), exponent_for(0.0)).tolist() == [0.0, 0.0]


@pytest.mark.parametrize("bound", [np.inf, np.nan])
def test_a_bound_that_is_not_finite_is_refused(bound):
    with pytest.raises(ElmeshError, match="not finite; scale inputs and targets"):
        exponent_for(bound)


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan, 2.0**80, -(2.0**80)])
def test_a_number_beyond_the_limbs_is_refused(value):
    with pytest.raises(ElmeshError, match="not finite or above 1e24; scale the data"):
        to_wide(np.array([1.0, value]))


@pytest.mark.parametrize(
    "value",
    # The largest number; those that fill one limb, the others being small; and negative ones.
    [float(np.nextafter(2.0**80, 0)), 2.0**49 - 2.0**19, 2.0**-11 - 2.0**-41, 2.0**-41 - 2.0**-70, -(2.0**49), -0.3],
)
def test_a_hundred_thousand_sites_with_the_same_number_do_not_overflow(value):
    n = 100_000
    total = n * to_wide(np.array(value))
    assert [int(limb) * n for limb in to_wide(np.array(value))] == total.tolist()  # Python's integers do not overflow
    assert np.all(np.abs(total) < 2**TOTAL_BITS)
    assert float(from_wide(total)) == pytest.approx(n * value, rel=1e-14)


def test_limbs_of_opposite_sign_do_not_hide_a_small_number():
    # 1 as 2**20 - (2**20 - 1), and a number below the precision of doubles beside these.
    total = to_wide(np.array([2.0**60, 2.0**-60])).sum(axis=0) - np.array([0, 1 << 40, 0, 0, 0])
    assert float(from_wide(total)) == 2.0**-60
