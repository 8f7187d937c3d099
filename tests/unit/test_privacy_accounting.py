"""What releases with Gaussian noise cost: against other accountants, and against the definition of privacy."""

from __future__ import annotations

import math

import dp_accounting
import numpy as np
import opendp.prelude as dp
import pytest
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm

from elmesh.privacy.accounting import epsilon_of, rho_for, with_margin
from elmesh.privacy.report import PrivacyReport, ReleasedTotal

epsilons, deltas = st.floats(0.01, 20.0), st.floats(1e-9, 1e-3)


@given(epsilons, deltas)
def test_epsilon_and_cost_are_inverse_to_each_other(epsilon, delta):
    assert epsilon_of(rho_for(epsilon, delta), delta) == pytest.approx(epsilon, rel=1e-6)


@given(st.floats(0.01, 5.0), deltas)
def test_delta_is_that_of_two_gaussians_at_a_distance(epsilon, delta):
    """Integrated over the outcomes at which the densities differ by more than epsilon allows."""
    mu = math.sqrt(2 * rho_for(epsilon, delta))
    # The loss is above epsilon beyond this point.
    point = epsilon / mu + mu / 2
    assert norm.sf(point - mu) - math.exp(epsilon) * norm.sf(point) == pytest.approx(delta, rel=1e-5)


@pytest.mark.parametrize("costs", [(0.01,), (0.01, 0.02, 0.0059)])
def test_costs_add_up_as_another_accountant_finds(costs):
    """By convolution of the distributions of the privacy loss."""
    accountant = PLDAccountant()
    for rho in costs:
        accountant.compose(dp_accounting.GaussianDpEvent(1 / math.sqrt(2 * rho)))
    assert accountant.get_epsilon(1e-5) == pytest.approx(epsilon_of(sum(costs), 1e-5), rel=1e-4)


def test_bounds_by_renyi_divergence_are_above_and_not_far():
    rho = rho_for(1.0, 1e-5)
    accountant = RdpAccountant()
    accountant.compose(dp_accounting.GaussianDpEvent(1 / math.sqrt(2 * rho)))
    assert 1.0 < accountant.get_epsilon(1e-5) < 1.15


def test_opendp_states_a_larger_epsilon_for_the_same_noise_of_integers():
    """It converts from zero-concentrated differential privacy, which loses a tenth."""
    dp.enable_features("contrib")
    unit, sigma = 2.0**20, 1 / math.sqrt(2 * rho_for(1.0, 1e-5))
    integers = dp.vector_domain(dp.atom_domain(T=int)), dp.l2_distance(T=float)
    mechanism = dp.m.make_gaussian(*integers, sigma * unit)
    assert mechanism.map(unit) == pytest.approx(rho_for(1.0, 1e-5), rel=1e-6)
    assert 1.05 < dp.c.make_zCDP_to_approxDP(mechanism).map(unit).epsilon(1e-5) < 1.15


def test_no_cost_has_no_epsilon_and_a_huge_one_an_infinite():
    assert epsilon_of(0.0, 1e-5) == 0.0
    assert epsilon_of(1e12, 1e-5) == math.inf


@given(st.integers(100, 5000), st.integers(0, 5000))
def test_the_margin_covers_that_noise_is_of_integers(sigma, shift):
    """The exact delta of the discrete Gaussian is below that of the stated epsilon."""
    shift = min(shift, 4 * sigma)
    rho = with_margin(shift**2 / (2 * sigma**2))
    z = np.arange(-12 * sigma, 12 * sigma + shift + 1)
    p, q = (np.exp(-((z - s) ** 2) / (2 * sigma**2)) for s in (0, shift))
    p, q = p / p.sum(), q / q.sum()
    for epsilon in (0.1, 1.0):
        delta = float(np.sum(np.maximum(p - math.exp(epsilon) * q, 0.0)))
        if delta > 1e-12:
            assert epsilon_of(rho, delta) >= epsilon * (1 - 1e-9)


def test_a_report_gives_epsilon_for_other_numbers_of_colluders():
    releases = (ReleasedTotal("a", 3, 0.01), ReleasedTotal("b", 4, 0.02))
    report = PrivacyReport.of(releases, 1e-5, 12, 4, "declared")
    assert report.epsilon == pytest.approx(epsilon_of(0.03, 1e-5))
    # Noise of twelve sites in place of eight, and of two.
    assert report.epsilon_without_colluders == pytest.approx(epsilon_of(0.03 * 8 / 12, 1e-5))
    assert report.epsilon_all_but_two == pytest.approx(epsilon_of(0.03 * 8 / 2, 1e-5))
    assert report.epsilon_without_colluders < report.epsilon < report.epsilon_all_but_two
    assert "4 colluding sites of 12" in report.sentence()
    assert "is not private" in report.to_json()["model"]
