"""What a site releases: whole numbers, and how much one row can change them, whatever the row."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize

from elmesh.errors import ElmeshError
from elmesh.privacy.accounting import rho_for, with_margin
from elmesh.privacy.release import Mechanism, make_mechanism, squared_sensitivity
from helpers.examples import examples

seeds = st.integers(0, 10**6)


def mechanism_of(p: int, d: int, classes: bool = False) -> Mechanism:
    return make_mechanism(p, d, rho_for(1.0, 1e-5), 1000, 6, classes=classes)


def loss(mechanism: Mechanism, one: np.ndarray, other: np.ndarray) -> float:
    """The cost of telling two tables apart: squared changes in units of the noise of all honest sites, halved."""
    sigma = mechanism.sigma * math.sqrt(mechanism.honest)
    return float(np.sum(((one - other) / sigma) ** 2)) / 2


# Adversarial rows.


def extreme_row(rng: np.random.Generator, p: int, d: int) -> tuple[np.ndarray, np.ndarray]:
    """A row that is as bad as rows can be: huge, tiny, zero, aligned with an axis, or with huge targets."""
    phi = rng.normal(size=p) * 10.0 ** rng.integers(-8, 9)
    if rng.random() < 0.3:
        phi = phi * (rng.random(p) < 0.2)
    t = rng.normal(size=d) * 10.0 ** rng.integers(-6, 7)
    return phi, t


@examples(200)
@given(seeds, st.integers(1, 12), st.integers(1, 4), st.booleans())
def test_no_row_in_the_place_of_another_costs_more_than_is_stated(seed, p, d, classes):
    rng = np.random.default_rng(seed)
    classes = classes and d > 1
    mechanism = mechanism_of(p, d, classes)
    rest = rng.normal(size=(5, p)), rng.normal(size=(5, d))
    rows = [extreme_row(rng, p, d) for _ in range(2)]
    if seed % 3 == 0:
        rows[1] = -rows[0][0], rows[0][1]  # the same products of features, and opposite ones with targets
    one, other = (mechanism.totals(np.vstack([rest[0], phi]), np.vstack([rest[1], t])) for phi, t in rows)
    assert loss(mechanism, one, other) * with_margin(1.0) <= mechanism.cost() * (1 + 1e-12)


def test_the_worst_pair_of_rows_comes_close_to_the_stated_cost():
    """So the bound is not only true but tight: noise is not wasted."""
    mechanism, rng = mechanism_of(3, 1), np.random.default_rng(0)

    def found(x: np.ndarray) -> float:
        return -loss(mechanism, *(mechanism.totals(part[None, :3], part[None, 3:]) for part in x.reshape(2, 4)))

    worst = max(-minimize(found, 3 * rng.normal(size=8), method="Nelder-Mead").fun for _ in range(8))
    assert 0.97 * mechanism.cost() <= worst * with_margin(1.0) <= mechanism.cost()


@given(seeds, st.integers(1, 8), st.integers(1, 3))
def test_the_formula_bounds_every_pair_of_vectors(seed, p, d):
    rng = np.random.default_rng(seed)
    R, B = rng.uniform(0.1, 3.0, size=2)
    z, w = (v / np.linalg.norm(v) * R * rng.uniform() ** 0.2 for v in rng.normal(size=(2, p)))
    y, x = (v / np.linalg.norm(v) * B * rng.uniform() ** 0.2 for v in rng.normal(size=(2, d)))
    change = np.sum((np.outer(z, z) - np.outer(w, w)) ** 2) + np.sum((np.outer(z, y) - np.outer(w, x)) ** 2)
    assert change <= squared_sensitivity(R, B) * (1 + 1e-12)


@pytest.mark.parametrize(("R", "B"), [(1.0, 0.3), (1.0, math.sqrt(2)), (1.0, 3.0), (2.0, 1.0)])
def test_the_formula_is_attained(R, B):
    """By rows at the angle of the proof."""
    q = -min(B * B / 2, R * R)
    cosine = q / (R * R)
    z, w = R * np.array([1.0, 0.0]), R * np.array([cosine, math.sqrt(1 - cosine**2)])
    change = np.sum((np.outer(z, z) - np.outer(w, w)) ** 2) + np.sum((z * B - w * B) ** 2)
    assert change == pytest.approx(squared_sensitivity(R, B))


# What is released.


@given(seeds, st.integers(1, 12), st.integers(1, 4))
def test_totals_are_those_of_rows_of_equal_length(seed, p, d):
    rng = np.random.default_rng(seed)
    mechanism = mechanism_of(p, d)
    Phi, T = rng.normal(size=(40, p)), 0.5 * rng.normal(size=(40, d))
    norms = np.linalg.norm(Phi, axis=1, keepdims=True)
    unit, targets = Phi / norms, T / norms
    limit = 2.0 * math.sqrt(d)
    targets = targets * np.minimum(1.0, limit / np.linalg.norm(targets, axis=1, keepdims=True))
    G, b = mechanism.split(mechanism.totals(Phi, T))
    # Rounding: half a unit in each number of a row.
    np.testing.assert_allclose(G, unit.T @ unit, atol=40 * 3 / mechanism.length)
    np.testing.assert_allclose(b, unit.T @ targets, atol=40 * 3 * limit / mechanism.length)


def test_a_linear_model_of_the_rows_is_one_of_the_totals():
    """Rows far out count as much as others, and weigh with what they are."""
    rng = np.random.default_rng(0)
    Phi = np.column_stack([np.ones(500), rng.normal(size=(500, 3)) * 10.0 ** rng.integers(-1, 2, size=(500, 1))])
    W = np.array([[0.1], [0.2], [-0.1], [0.05]])
    mechanism = mechanism_of(4, 1)
    G, b = mechanism.split(mechanism.totals(Phi, Phi @ W))
    np.testing.assert_allclose(np.linalg.solve(G, b), W, atol=1e-3)


def test_totals_are_additive_and_whole():
    rng = np.random.default_rng(0)
    mechanism = mechanism_of(6, 2)
    Phi, T = rng.normal(size=(30, 6)), rng.normal(size=(30, 2))
    parts = mechanism.totals(Phi[:11], T[:11]) + mechanism.totals(Phi[11:], T[11:])
    np.testing.assert_array_equal(mechanism.totals(Phi, T), parts)
    assert parts.dtype == np.int64


def test_rows_of_zeros_and_no_rows_are_zero():
    mechanism = mechanism_of(3, 1)
    assert not mechanism.totals(np.zeros((4, 3)), np.ones((4, 1))).any()
    assert not mechanism.totals(np.zeros((0, 3)), np.zeros((0, 1))).any()


def test_a_row_that_is_not_finite_is_refused():
    with np.errstate(all="ignore"), pytest.raises(ElmeshError, match="infinite"):
        mechanism_of(2, 1).totals(np.array([[np.inf, 1.0]]), np.ones((1, 1)))


def test_indicators_of_classes_are_not_limited_in_rows_of_usual_length():
    mechanism = mechanism_of(3, 4, classes=True)
    T = np.eye(4) - 0.25
    _, Y = mechanism.rows(np.eye(4, 3) + 1.0, T * np.linalg.norm(np.eye(4, 3) + 1.0, axis=1, keepdims=True))
    np.testing.assert_allclose(np.linalg.norm(Y, axis=1) / mechanism.length, 1 / 1.25, rtol=2e-2)


# The noise.


@given(st.floats(0.01, 20.0), st.integers(1, 40), st.integers(1, 5), st.integers(1, 50))
def test_the_cost_is_what_was_asked_for_and_no_more(epsilon, p, d, honest):
    rho = rho_for(epsilon, 1e-5)
    mechanism = make_mechanism(p, d, rho, 10_000, honest)
    assert mechanism.cost() <= rho * (1 + 1e-9)
    if min(mechanism.per_site) > 10_000:
        assert mechanism.cost() >= 0.998 * rho
    # With the noise of fewer sites it costs more, in proportion.
    assert mechanism.cost(1) == pytest.approx(honest * mechanism.cost(), rel=1e-9)


def test_each_number_has_the_noise_of_its_kind():
    mechanism = mechanism_of(3, 2)
    diagonal, beside, targets = mechanism.per_site
    expected = [diagonal, beside, beside, diagonal, beside, diagonal, *[targets] * 6]
    assert mechanism.sigma.tolist() == expected
    assert beside == pytest.approx(diagonal / math.sqrt(2), rel=1e-3)


@given(st.floats(1e-4, 1.0), st.floats(10.0, 1e12))
def test_totals_and_their_noise_stay_within_their_bound(rho, most_rows):
    try:
        mechanism = make_mechanism(10, 1, rho, most_rows, 5)
    except ElmeshError as error:
        assert "too large for 64-bit integers" in str(error)  # noqa: PT017
        assert most_rows > 1e9
        return
    noise = 12 * math.sqrt(5) * max(mechanism.per_site)
    assert most_rows * mechanism.length**2 + noise < 2**47
