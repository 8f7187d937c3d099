"""The page about differential privacy, and the audit: bounds are bounds, and broken mechanisms are found."""

from __future__ import annotations

import re

import numpy as np
import pytest
from benchmarks.audit import BROKEN, DELTA, audit, bounds, expected, noise_of_all, release, worst_pair
from benchmarks.private_arena import declared

import pages
import privacy
from elmesh.privacy.accounting import epsilon_of, rho_for

TEXT = privacy.PAGE.read_text(encoding="utf-8")
ARENA, AUDIT = (pages.load(pages.RESULTS / f"{name}.json") for name in ("private_arena", "audit"))


# The audit.


@pytest.mark.parametrize(
    "epsilon", [pytest.param(0.5, marks=pytest.mark.slow), 1.0, pytest.param(4.0, marks=pytest.mark.slow)]
)
def test_lower_bounds_are_below_the_true_epsilon_and_not_far(epsilon):
    rng, mu = np.random.default_rng(0), np.sqrt(2 * rho_for(epsilon, DELTA))
    found = np.array([bounds(rng.normal(mu, 1, 20_000), rng.normal(0, 1, 20_000), DELTA) for _ in range(40)])
    # At a confidence of 95 % a bound may be above in a few of forty times.
    assert np.mean(found[:, 0] > epsilon) <= 0.15
    assert np.mean(found[:, 1] > epsilon) <= 0.15
    assert np.median(found[:, 1]) > 0.5 * epsilon


def test_equal_tables_have_no_bound_above_zero_to_speak_of():
    rng = np.random.default_rng(0)
    assert max(bounds(rng.normal(size=5000), rng.normal(size=5000), DELTA)) < 0.1


@pytest.fixture(scope="module")
def worst():
    return worst_pair(noise_of_all())


def test_the_worst_pair_of_rows_has_nearly_the_stated_epsilon_and_no_more(worst):
    _, distance = worst
    assert 0.95 < epsilon_of(distance**2 / 2, DELTA) <= 1.0


def test_what_is_released_is_the_total_with_noise_of_the_stated_size():
    row, sigma = (np.ones(3), 1.0), noise_of_all()
    noise = (np.array([release(*row) for _ in range(30)]) - expected(*row)) / sigma
    assert np.var(noise) == pytest.approx(1.0, rel=5 * np.sqrt(2 / noise.size))


@pytest.mark.parametrize(
    ("name", "runs"),
    [("the same noise in every run", 20), pytest.param("targets that are not limited", 2000, marks=pytest.mark.slow)],
    ids=["same", "wide"],
)
def test_a_broken_mechanism_is_found(worst, name, runs):
    sigma = noise_of_all()
    with BROKEN[name]():
        # The pair does not depend on the noise.
        pair, _ = worst if "noise" in name else worst_pair(sigma)
        assert max(audit(pair, sigma, runs)) > 1.0


def test_the_committed_audit_found_every_broken_mechanism_and_no_fault_in_the_real_one():
    assert AUDIT["figures"].keys() == {"as it is", *BROKEN}
    assert max(AUDIT["figures"]["as it is"][kind] for kind in ("by definition", "gaussian")) < 1.0
    assert all(AUDIT["figures"][name]["gaussian"] > 1.0 for name in BROKEN)


# The arena.


def test_declared_ranges_hold_most_values_or_all_of_them():
    values = np.random.default_rng(0).lognormal(size=1000)
    low, high = declared(values, "usual")
    assert 0.85 < np.mean((values >= low) & (values <= high)) < 0.95
    low, high = declared(values, "extremes")
    assert low <= values.min() < values.max() <= high
    assert declared(np.array([0.0] * 99 + [1.0]), "usual") == (0.0, 1.0)


def test_goals_follow_from_the_figures():
    counted = 0
    for one in ARENA["tables"].values():
        gain = one["against alone"]["usual, epsilon 1"]
        counted += gain["mean"] >= -gain["standard_error"]
    assert ARENA["not_below_alone"]["usual"] == counted
    assert next(iter(ARENA["goals"].values())) == (counted >= 10)


def test_the_page_is_what_the_committed_runs_give():
    assert privacy.filled(TEXT) == TEXT
    shown = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", TEXT)
    assert [(privacy.PAGE.parent / picture).is_file() for picture in shown] == [True]


def test_the_readme_states_how_many_tables_are_not_below_alone():
    text = " ".join((pages.ROOT / "README.md").read_text(encoding="utf-8").split())
    assert f"on {ARENA['not_below_alone']['usual']} of 12 real tables" in text
