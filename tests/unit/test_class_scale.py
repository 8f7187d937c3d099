"""Common variances and temperature of classes: against refits of the dense Gaussian process without each row."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import softmax

from elmesh import MeshELM
from elmesh.comm.fixed_point import LIMBS, from_wide
from elmesh.comm.graph import make_topology
from elmesh.math.evidence import common_part
from elmesh.math.random_effects import precision, site_batches
from elmesh.run.runner import agent_context
from elmesh.solvers.base import Decision, Problem, rounds
from elmesh.solvers.class_scale import choose_class_scale, left_out_scores
from elmesh.solvers.state import MixedEffects
from elmesh.solvers.variance_components import estimate_components
from elmesh.typing import FloatArray
from helpers.marks import one_of
from helpers.mixed import MixedProblem, digest, log_variances, make_problem, mixed_problems, only_context, run_steps
from helpers.peers import lockstep

seeds = st.integers(0, 10**6)
FACTORS = [3.0**k for k in range(6)]
TEMPERATURES = np.array([2.0 ** (k / 4) for k in range(-24, 9)])
WIDE = (1, 3, 26)


def effects_of(problem, log_c, log_v, log_w):
    """The posterior of the common weights at given variances."""
    W, S, s2 = common_part(problem.totals(log_v, log_w), problem.groups, log_c)
    return MixedEffects(log_c, log_v, 0.25, W, S, s2, log_w)


def dense_left_out(problem, log_c, log_v, log_w, chosen=None):
    """Scores of each site's rows, each predicted by a Gaussian process of all other rows of all sites.

    ``chosen`` are the sites whose rows are left out; the scores of others are None.
    """
    C, T, ends = problem.covariance(log_c, log_v, log_w), np.vstack(problem.T), np.cumsum(problem.rows).astype(int)
    scores = []
    for t, end in enumerate(ends.tolist()):
        if chosen is not None and t not in chosen:
            scores.append(None)
            continue
        own = []
        for i in range(end - len(problem.T[t]), end):
            others = np.arange(len(T)) != i
            own.append(C[i, others] @ np.linalg.solve(C[np.ix_(others, others)], T[others]))
        scores.append(np.array(own))
    return scores


def keeps_rows(problem, t):
    """Whether a site has its rows as they are, because they are not more than features and targets together."""
    return len(problem.T[t]) <= problem.Phi[t].shape[1] + problem.T[t].shape[1]


def assert_left_out_scores_are_those_of_refits(problem, log_c, log_v, log_w):
    effects, checked = effects_of(problem, log_c, log_v, log_w), 0
    expected = dense_left_out(problem, log_c, log_v, log_w)
    for batch in problem.batches():
        found = left_out_scores(batch, precision(batch, np.exp(log_v)), effects)
        for k, t in enumerate(batch.index.tolist()):
            if keeps_rows(problem, t):
                np.testing.assert_allclose(found[k, : len(expected[t])], expected[t], rtol=1e-8, atol=1e-8)
                checked += 1
    return checked


@given(mixed_problems(), seeds)
def test_scores_of_rows_left_out_are_those_of_refits_without_them(problem, seed):
    G, m = problem.n_groups, len(problem.T)
    variances = log_variances(seed, G), log_variances(seed + 1, G), log_variances(seed + 2, m) / 3
    assert_left_out_scores_are_those_of_refits(problem, *variances)


def test_scores_of_large_and_padded_sites_are_those_of_refits():
    problem = make_problem(3, [17, 25, 1, 29, 60, 17], widths=WIDE, d=2)
    assert any(batch.Phi.shape[1] > len(problem.T[batch.index[0]]) for batch in problem.batches()), "none is padded"
    log_w = np.array([0.5, -0.4, 0.2, 0.0, -0.3, 0.9])
    checked = assert_left_out_scores_are_those_of_refits(problem, np.array([9.0, 0.5, -1.0]), np.zeros(3), log_w)
    assert checked == 5


def test_a_row_that_nothing_else_predicts_has_a_finite_score():
    """At a site of one row a huge common variance leaves nothing of its precision."""
    problem = make_problem(0, [1], widths=(1, 2))
    for size in (10.0, 25.0):
        effects = effects_of(problem, np.full(2, size), np.full(2, -700.0), np.zeros(1))
        (batch,) = problem.batches()
        assert np.isfinite(left_out_scores(batch, precision(batch, np.exp(effects.log_v)), effects)).all()


# The choice ----------------------------------------------------------------------------------------------------------


def class_problem(seed, rows, widths=WIDE, d=2, flips=0.1, one_class=()):
    """Sites that choose among classes by common and private weights; some rows have any class instead."""
    Phi, rng = make_problem(seed, rows, widths, d).Phi, np.random.default_rng(seed)
    W, labels = 3 * rng.normal(size=(sum(widths), d)), []
    for t, features in enumerate(Phi):
        own = np.argmax(features @ (W + rng.normal(size=W.shape)), axis=1)
        own = np.where(rng.random(len(own)) < flips, rng.integers(d, size=len(own)), own)
        labels.append(np.zeros_like(own) if t in one_class else own)
    share = np.bincount(np.concatenate(labels), minlength=d) / sum(rows)
    groups = np.repeat(np.arange(len(widths)), widths)
    return MixedProblem(Phi, [np.eye(d)[own] - share for own in labels], groups), labels


@dataclass(frozen=True)
class Choice:
    """A factor, a temperature and their loss; and by how many standard errors the best factor is better than one.

    ``losses`` are those of all factors (rows) and temperatures; ``gains`` are each site's by the best factor.
    """

    factor: float
    temperature: float
    loss: float
    best: float
    significance: float
    losses: FloatArray
    gains: FloatArray


def n_lacking(problem, labels):
    """The number of sites that have their rows as they are and lack a class."""
    d = problem.T[0].shape[1]
    return sum(keeps_rows(problem, t) and len(set(own.tolist())) < d for t, own in enumerate(labels))


def choice_by_hand(problem, labels, log_c, log_v, log_w, factors=None):
    """The choice from refits without each row: classes that a site lacks are impossible there.

    There are factors other than one only if a site lacks a class, or if they are given.
    """
    chosen = [t for t, own in enumerate(labels) if keeps_rows(problem, t) and len(set(own.tolist())) > 1]
    if factors is None:
        factors = FACTORS if n_lacking(problem, labels) else FACTORS[:1]
    share = -np.min(np.vstack(problem.T), axis=0)
    losses = np.zeros((len(labels), len(factors), len(TEMPERATURES)))
    for k, factor in enumerate(factors):
        grown = log_c + np.where(np.arange(len(log_c)) > 0, np.log(factor), 0.0)
        scores = dense_left_out(problem, grown, log_v, log_w, chosen)
        for t in chosen:
            present, column = np.unique(labels[t], return_inverse=True)
            chances = softmax((scores[t] + share)[:, present] / TEMPERATURES[:, None, None], axis=2)
            losses[t, k] = -np.sum(np.log(chances[:, np.arange(len(column)), column]), axis=1)
    total = losses.sum(axis=0)
    k, j = np.unravel_index(np.argmin(total), total.shape)
    at_one = int(np.argmin(total[0]))
    gain = losses[:, 0, at_one] - losses[:, k, j]
    significance = gain.sum() / np.sqrt(np.sum(gain**2)) if k else 0.0
    best = FACTORS[k]
    # The gain of one site alone is its own standard error, which rounding must not turn into more.
    k, j = (k, j) if significance > 1 + 1e-6 and gain.sum() > 2e-6 else (0, at_one)
    return Choice(FACTORS[k], TEMPERATURES[j], total[k, j], best, significance, total, gain)


def choose(problem, log_c, log_v, log_w, requests=None):
    effects = effects_of(problem, log_c, log_v, log_w)
    return run_steps(
        choose_class_scale(problem.batches(), only_context(), effects, problem.totals(log_v, log_w)), requests
    )


def assert_chosen(problem, labels, log_c, log_v, log_w):
    """The sums and the choice are those of refits, and W, S and s2 belong to its variances."""
    requests = []
    found = choose(problem, log_c, log_v, log_w, requests)
    expected = choice_by_hand(problem, labels, log_c, log_v, log_w)
    sites, losses, gained = (from_wide(request.value.reshape(-1, LIMBS)) for request in requests)
    taking_part = sum(keeps_rows(problem, t) and len(set(own.tolist())) > 1 for t, own in enumerate(labels))
    assert sites.tolist() == [taking_part, n_lacking(problem, labels)]
    np.testing.assert_allclose(losses, expected.losses.ravel(), rtol=1e-6)
    np.testing.assert_allclose(gained, [expected.gains.sum(), np.sum(expected.gains**2)], rtol=1e-6, atol=1e-9)
    assert found.log_c[0] == log_c[0], "the constant has no part in the factor"
    np.testing.assert_allclose(found.log_c[1:], log_c[1:] + np.log(expected.factor), rtol=1e-12)
    assert found.temperature == pytest.approx(expected.temperature, rel=1e-12)
    posterior = effects_of(problem, found.log_c, log_v, log_w)
    for name in ("W", "S", "s2"):
        np.testing.assert_allclose(getattr(found, name), getattr(posterior, name), rtol=1e-9, atol=1e-12)
    assert found.log_v is log_v
    assert found.log_w is log_w
    return expected


ROWS = (9, 12, 6, 11, 1, 15, 8, 35, 13, 10, 18, 12)
SPREAD = np.random.default_rng(0).normal(size=12) / 3


@pytest.mark.thorough
@pytest.mark.parametrize(("seed", "d"), one_of(2, range(2), [2, 3]))
def test_common_variances_that_are_too_small_grow_by_the_factor_of_least_loss(seed, d):
    problem, labels = class_problem(seed, ROWS, d=d, one_class=(2,))
    expected = assert_chosen(problem, labels, np.array([9.0, -5.0, -5.0]), np.full(3, -3.0), SPREAD)
    assert expected.factor > 1.0


@pytest.mark.thorough
@pytest.mark.parametrize("seed", one_of(2, range(2)))
def test_common_variances_never_become_smaller(seed):
    """Not even where smaller ones do better: with many features and doubtful classes."""
    problem, labels = class_problem(seed, [15] * 12, widths=(1, 3, 100), flips=0.3)
    log_v = np.full(3, -3.0)
    expected = assert_chosen(problem, labels, np.array([9.0, 6.0, 6.0]), log_v, SPREAD)
    assert expected.factor == 1.0
    smaller = choice_by_hand(problem, labels, np.array([9.0, -3.0, -3.0]), log_v, SPREAD)
    assert smaller.loss < expected.loss - 2


@pytest.mark.thorough
@pytest.mark.parametrize(("seed", "enough"), [(0, False), (4, False), (12, False), (7, True), (9, True), (11, True)])
def test_a_factor_is_chosen_if_it_is_better_by_more_than_a_standard_error(seed, enough):
    problem, labels = class_problem(seed, (10, 12, 9, 11, 1), flips=0.6)
    expected = assert_chosen(problem, labels, np.array([9.0, -3.0, -3.0]), np.full(3, -3.0), SPREAD[:5])
    assert expected.best > 1.0
    least, most = (1.2, 1.8) if enough else (0.6, 0.8)
    assert least < expected.significance < most
    assert (expected.factor > 1.0) == enough


def test_one_site_alone_never_changes_the_variances():
    problem, labels = class_problem(0, (25, 9), flips=0.0, one_class=(1,))
    expected = assert_chosen(problem, labels, np.array([9.0, -5.0, -5.0]), np.full(3, -3.0), np.zeros(2))
    assert expected.best > 1.0
    assert expected.significance == pytest.approx(1.0)


COMPLETE = (11, 15, 10, 13, 19, 11, 16, 12, 23, 14)


@pytest.mark.thorough
@pytest.mark.parametrize("lacking", [(), (35,)], ids=["none lacks a class", "one with reduced rows does"])
def test_where_no_site_lacks_a_class_the_variances_stay(lacking):
    """Though larger ones would do better by far."""
    problem, labels = class_problem(4, (*COMPLETE, *lacking), one_class=(10,))
    assert all(len(set(own.tolist())) == 2 for own in labels[:10])
    variances = np.array([9.0, -5.0, -5.0]), np.full(3, -3.0), SPREAD[: len(labels)]
    assert assert_chosen(problem, labels, *variances).factor == 1.0
    assert choice_by_hand(problem, labels, *variances, FACTORS).significance > 2


@pytest.mark.parametrize("seed", one_of(3, range(6)))
def test_sites_with_reduced_rows_do_not_count_as_lacking_a_class(seed):
    """Reduced to as many rows as features, targets have signs of their own."""
    problem, labels = class_problem(seed, (4, 3, 40, 50, 60, 30), widths=(1, 1), flips=0.8)
    assert_chosen(problem, labels, np.array([9.0, 0.0]), np.full(2, -3.0), np.zeros(6))


@pytest.mark.thorough
def test_a_site_that_lacks_one_of_three_classes_is_enough_for_a_factor():
    problem, labels = class_problem(2, COMPLETE, d=3)
    kept = labels[0] != 2
    assert len(set(labels[0][kept].tolist())) == 2
    rows = [kept, *(np.ones(len(own), dtype=bool) for own in labels[1:])]
    parts = (
        [part[chosen] for part, chosen in zip(parts, rows, strict=True)] for parts in (problem.Phi, problem.T, labels)
    )
    Phi, T, labels = parts
    assert all(len(set(own.tolist())) == 3 for own in labels[1:])
    problem = MixedProblem(Phi, T, problem.groups)
    assert assert_chosen(problem, labels, np.array([9.0, -5.0, -5.0]), np.full(3, -3.0), SPREAD[:10]).factor > 1.0


def test_sites_with_one_class_or_with_reduced_rows_have_no_part_in_the_losses():
    problem, labels = class_problem(5, (10, 11, 12, 9, 80, 13), widths=(1, 2, 9), one_class=(5,), flips=0.3)
    assert [keeps_rows(problem, t) for t in range(6)] == [True, True, True, True, False, True]
    expected = assert_chosen(problem, labels, np.array([9.0, -4.0, -4.0]), np.full(3, -3.0), np.zeros(6))
    assert expected.losses.shape == (6, 33)
    assert not expected.gains[4:].any()


@pytest.mark.parametrize(("rows", "one_class"), [((12, 9, 1), (0, 1)), ((30, 40), ()), ((30, 9), (1,))])
def test_without_a_site_that_takes_part_the_effects_stay_and_there_is_no_temperature(rows, one_class):
    problem, _ = class_problem(1, rows, widths=(1, 2, 9), one_class=one_class)
    log_c, log_v, log_w = np.array([9.0, -4.0, -4.0]), np.full(3, -3.0), np.zeros(len(rows))
    effects = effects_of(problem, log_c, log_v, log_w)
    found = run_steps(choose_class_scale(problem.batches(), only_context(), effects, problem.totals(log_v, log_w)))
    assert found is effects
    assert found.temperature == 0.0


def test_a_site_keeps_its_rows_up_to_as_many_as_features_and_classes():
    for rows, takes_part in ((14, True), (15, False)):
        problem, _ = class_problem(1, (rows,), widths=(1, 2, 9), d=2)
        found = choose(problem, np.array([9.0, 0.0, 0.0]), np.full(3, -3.0), np.zeros(1))
        assert (found.temperature > 0) == takes_part


# Messages ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("parts", [[[t] for t in range(12)], [[1, 4], [0, 2, 6, 7, 9], [3, 5, 8, 10, 11]]])
def test_processes_choose_the_same_bits_however_sites_are_spread(parts):
    problem, _ = class_problem(0, ROWS, one_class=(2,))
    log_c, log_v = np.array([9.0, -5.0, -5.0]), np.full(3, -3.0)
    effects, totals = effects_of(problem, log_c, log_v, SPREAD), problem.totals(log_v, SPREAD)
    (expected,) = lockstep([choose_class_scale(problem.batches(), only_context(), effects, totals)])[0]
    assert expected.temperature > 0
    assert expected.log_c[1] > log_c[1]
    programs = [
        choose_class_scale(
            site_batches([problem.sites[t] for t in part], problem.groups),
            only_context(),
            replace(effects, log_w=SPREAD[part]),
            totals,
        )
        for part in parts
    ]
    for found in lockstep(programs)[0]:
        assert found.temperature == expected.temperature
        for name in ("log_c", "W", "S", "s2"):
            assert digest(getattr(found, name)) == digest(getattr(expected, name)), name


@pytest.mark.thorough
@pytest.mark.parametrize("parts", [[[t] for t in range(12)], [[1, 4], [0, 2, 6, 7, 9], [3, 5, 8, 10, 11]]])
def test_fits_of_classes_find_the_same_bits_however_sites_are_spread(parts):
    problem, _ = class_problem(0, ROWS, one_class=(2,))
    topology = make_topology("ring", range(12), 0)

    def fit(parts):
        programs = [
            rounds(
                MeshELM(),
                Problem(
                    [problem.sites[t] for t in part],
                    agent_context(topology, 0, np.array(part)),
                    1,
                    problem.groups,
                    noise_floor=0.1,
                    classes=True,
                ),
            )
            for part in parts
        ]
        return lockstep(programs, decide=lambda _: Decision.CONVERGED)[0]

    (expected,) = fit([list(range(12))])
    assert expected.effects.temperature > 0
    for part, found in zip(parts, fit(parts), strict=True):
        assert digest(found.W, found.V) == digest(expected.W, expected.V[part])
        assert found.effects.temperature == expected.effects.temperature
        assert found.certificate == expected.certificate


# Within an estimate of variances -------------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize("private", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_an_estimate_for_classes_is_one_for_numbers_with_the_choice_after_it(private):
    problem, labels = class_problem(2, ROWS)

    def estimate(**options):
        steps = estimate_components(problem.batches(), only_context(), private=private, noise_floor=0.1, **options)
        return run_steps(steps)

    plain, found = estimate(common=True), estimate(common=True, classes=True)
    assert plain.temperature == 0.0
    expected = choice_by_hand(problem, labels, plain.log_c, plain.log_v, plain.log_w)
    np.testing.assert_allclose(found.log_c[1:] - plain.log_c[1:], np.log(expected.factor), atol=1e-12)
    assert found.temperature == pytest.approx(expected.temperature)
    assert digest(found.log_v, found.log_w) == digest(plain.log_v, plain.log_w)


def test_without_a_common_part_nothing_is_chosen():
    problem, _ = class_problem(2, ROWS)
    steps = estimate_components(problem.batches(), only_context(), common=False, private=True, classes=True)
    assert run_steps(steps).temperature == 0.0
