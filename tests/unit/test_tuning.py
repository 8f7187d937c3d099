"""Settings by rows left out: scores are those of refits without the rows, and searches those of scikit-learn."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import sklearn
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import log_softmax
from sklearn.base import clone
from sklearn.linear_model import Ridge
from sklearn.metrics import log_loss
from sklearn.model_selection import StratifiedKFold, cross_val_score
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from elmesh import (
    DMTLELM,
    MTFL,
    MTLELM,
    ElmeshError,
    LocalELM,
    MeshELM,
    MultiTaskELMClassifier,
    MultiTaskELMClassifierCV,
    MultiTaskELMRegressor,
    MultiTaskELMRegressorCV,
    Privacy,
)
from elmesh.comm.requests import HubReduce
from elmesh.estimators.feature_scores import FeatureScores
from elmesh.estimators.penalty_scores import PenaltyScores, fold_numbers
from elmesh.estimators.search import Candidate, Search, search_settings
from elmesh.estimators.search_rows import SearchRows
from elmesh.math.calibration import fit_temperature, ridge_path_left_out
from elmesh.math.evidence import Totals, negative_evidence
from elmesh.solvers.integer_sums import run_in_one_place
from elmesh.solvers.settings import with_settings
from elmesh.solvers.state import MixedEffects
from elmesh.solvers.warm_start import effects_from, group_squares, variances_from
from helpers.examples import examples
from helpers.marks import one_of
from helpers.mixed import MixedProblem, log_variances, make_problem, only_context
from helpers.sklearn_checks import AT_THE_LIMITS, run_check, some_checks

PAPER = MeshELM(common=False, private=False, graph=None)
QUICK = MeshELM(rank=0, certify=False, graph=None)
SITES = ("ash", "birch", "cedar")
NOTHING = np.zeros((0, 0))
START = MixedEffects(np.zeros(4), np.zeros(4), 0.3, NOTHING, NOTHING, np.ones(1), np.zeros(3))


def rows(seed=0, n=14, noise=0.1):
    """Rows of three sites with a common bend and a slope of their own."""
    rng = np.random.default_rng(seed)
    X, site = rng.normal(size=(3 * n, 2)), np.repeat(SITES, n)
    slope = dict(zip(SITES, rng.normal(size=3), strict=True))
    y = np.sin(2 * X[:, 0]) + np.array([slope[s] for s in site]) * X[:, 1] + noise * rng.normal(size=len(X))
    return X, y, site


def classes(seed=0, n=30, noise=0.1):
    X, y, site = rows(seed, n, noise)
    return X, np.where(y > 0.5, "high", np.where(y < -0.5, "low", "middle")), site


def fitted_rows(estimator, X, y, site, weights=None):
    return SearchRows.of(estimator.fit(X, y, tasks=site, sample_weight=weights))


def in_kept_order(data, X, *arrays):
    """Rows in the order in which an estimator keeps them."""
    places = {tuple(row): i for i, row in enumerate(X.tolist())}
    order = np.array([places[tuple(row)] for own in data.by_task.values() for row in own.X.tolist()])
    return [array[order] for array in (X, *arrays)]


# ----------------------------------------------------------------------------------------- rows left out, by themselves


def dense_predictions(problem, effects):
    """Predictions of all rows, each by the Gaussian posterior of all others at these variances."""
    C, T = problem.covariance(effects.log_c, effects.log_v, effects.log_w), np.vstack(problem.T)
    keep = [np.arange(len(T)) != i for i in range(len(T))]
    return np.array([C[i, k] @ np.linalg.solve(C[np.ix_(k, k)], T[k]) for i, k in enumerate(keep)])


@pytest.mark.parametrize(
    ("n_hidden", "n"),
    one_of(2, [6, 11], [5, 25]),  # fewer rows per task than features, and more
)
def test_scores_of_features_are_the_errors_of_the_dense_model_without_each_row(n_hidden, n):
    X, y, site = rows(n=n)
    estimator = MultiTaskELMRegressor(n_hidden=6, solver=QUICK, random_state=0)
    data = fitted_rows(clone(estimator), X, y, site)
    scores, (X, y, site) = FeatureScores(data), in_kept_order(data, X, y, site)
    first = estimator.fit(X, y, tasks=site)
    other = clone(estimator).set_params(n_hidden=n_hidden).fit(X, y, tasks=site)
    model, scale = first.model_, first.target_scale_
    old, new = (
        MixedProblem([e.model_.layer(X[site == s]) for s in SITES], [(y[site == s, None] - model.common.t_mean) / scale
                     for s in SITES], e.model_.layer.groups) for e in (first, other)
    )  # fmt: skip
    common, log_w = model.common, np.array([model.heads[s].log_w for s in SITES])
    known = MixedEffects(common.log_c, common.log_v, common.tau2, common.W, common.S, common.s2, log_w)
    start = variances_from(known, group_squares(old.batches()), np.arange(4), group_squares(new.batches()))
    effects = effects_from(new.batches(), only_context(), start)
    expected = dense_predictions(new, effects)
    found = scores.predictions({"n_hidden": n_hidden})
    np.testing.assert_allclose(np.concatenate([found[s] for s in SITES]), expected, rtol=1e-6, atol=1e-8)
    (place, losses), *_ = scores.scores([{"n_hidden": n_hidden}])
    assert place == 0
    np.testing.assert_allclose(losses, (y - model.common.t_mean - scale * expected[:, 0]) ** 2, rtol=1e-5, atol=1e-9)


@examples(15)
@given(st.integers(0, 10**6))
def test_effects_from_a_start_are_the_posterior_of_the_common_weights(seed):
    problem = make_problem(seed, [4, 9, 6], widths=(1, 2, 4), d=2)
    log_v, log_w = log_variances(seed, 3), np.random.default_rng(seed).uniform(-1, 1, 3)
    nothing = np.zeros((0, 0))
    start = MixedEffects(np.array([np.log(1e6), 0.0, 0.0]), log_v, 0.3, nothing, nothing, np.ones(2), log_w)
    found = effects_from(problem.batches(), only_context(), start, noise_floor=0.2)
    totals = problem.totals(log_v, log_w)
    squares = totals.squares + 0.2 * np.sum(np.vstack(problem.T) ** 2, axis=0)
    S = np.linalg.inv(np.diag(np.exp(-found.log_c)[problem.groups]) + totals.Q)
    np.testing.assert_allclose(found.S, S, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(found.W, S @ totals.b, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(found.s2, (squares - np.sum(totals.b * found.W, axis=0)) / totals.rows, rtol=1e-6)
    np.testing.assert_array_equal(found.log_v, log_v)
    # The evidence is at its maximum, as far as it matters: not lower than with variances a little larger or smaller.
    whole = Totals(totals.Q, totals.b, squares, totals.rows)
    best, _ = negative_evidence(whole, problem.groups, found.log_c)
    for g, step in itertools.product((1, 2), (-0.5, 0.5)):
        assert negative_evidence(whole, problem.groups, found.log_c + step * (np.arange(3) == g))[0] > best - 0.05


def test_variances_follow_the_size_of_features_so_that_predictions_stay():
    problem = make_problem(3, [5, 8], widths=(1, 2, 4))
    larger = MixedProblem([Phi * [1, 1, 1, 5, 5, 5, 5] for Phi in problem.Phi], problem.T, problem.groups)
    nothing, squares = np.zeros((0, 0)), [group_squares(p.batches()) for p in (problem, larger)]
    start = MixedEffects(np.array([9.0, 5.0, 6.0]), np.array([-1.0, -2.0, 0.3]), 0.3, nothing, nothing, np.ones(1),
                         np.zeros(2))  # fmt: skip
    moved = variances_from(start, squares[0], np.arange(3), squares[1])
    np.testing.assert_allclose(moved.log_v - start.log_v, [0, 0, -2 * np.log(5)], atol=1e-12)
    one, two = (effects_from(p.batches(), only_context(), s) for p, s in ((problem, start), (larger, moved)))
    np.testing.assert_allclose(larger.Phi[0] @ two.W, problem.Phi[0] @ one.W, rtol=0.01, atol=0.01)


def test_groups_that_were_of_no_use_have_a_little_variance_and_absent_ones_none():
    problem = make_problem(3, [5, 8], widths=(1, 2, 4))
    nothing, squares = np.zeros((0, 0)), group_squares(problem.batches())
    log_v = np.array([-1.0, -25.0, np.log(1e-300)])
    start = MixedEffects(np.array([9.0, -25.0, 1.0]), log_v, 0.3, nothing, nothing, np.ones(1), np.zeros(2))
    moved = variances_from(start, squares, np.arange(3), squares)
    np.testing.assert_allclose(np.exp(moved.log_v[1]) * squares[1], 0.003)
    assert moved.log_c[1] == 0.0
    assert moved.log_v[2] == log_v[2]
    assert (moved.log_c[0], moved.log_v[0]) == (9.0, -1.0)


def test_only_sums_run_in_one_place():
    def steps():
        yield HubReduce(np.zeros((1, 1)), lambda x: x)

    with pytest.raises(TypeError, match="HubReduce is not a sum"):
        run_in_one_place(steps())


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["regression", pytest.param("classification", marks=pytest.mark.slow)])
def test_the_winner_is_that_of_full_fits_with_variances_of_their_own(kind):
    make = MultiTaskELMRegressor if kind == "regression" else MultiTaskELMClassifier
    settings = [{"n_hidden": n, "weight_scale": scale} for n in (4, 60) for scale in (0.3, 3.0)]
    for seed in range(2):
        X, y, site = (rows if kind == "regression" else classes)(seed, n=40, noise=0.4)
        estimator = make(solver=QUICK, random_state=seed)
        cold = []
        for setting in settings:
            own = FeatureScores(fitted_rows(clone(estimator).set_params(**setting), X, y, site))
            cold.append(next(own.scores([{}]))[1].mean())
        for first in (settings[0], settings[-1]):  # variances of features that cannot follow the data, and that can
            scores = FeatureScores(fitted_rows(clone(estimator).set_params(**first), X, y, site))
            assert np.argmin([losses.mean() for _, losses in scores.scores(settings)]) == np.argmin(cold)


def test_classes_that_some_tasks_lack_have_the_common_variances_of_a_fit():
    X, y, site = classes(1, n=40, noise=0.3)
    keep = ~((site == "ash") & (y == "low")) & ~((site == "birch") & (y == "high"))
    X, y, site = X[keep], y[keep], site[keep]
    data = fitted_rows(MultiTaskELMClassifier(n_hidden=20, solver=QUICK, random_state=0), X, y, site)
    found = FeatureScores(data).predictions({})
    fitted = data.fitted.model_
    problem = MixedProblem([fitted.layer(data.by_task[s].X) for s in SITES], [data.by_task[s].T for s in SITES],
                           fitted.layer.groups)  # fmt: skip
    log_w = np.array([fitted.heads[s].log_w for s in SITES])
    dense = dense_predictions(problem, dataclasses.replace(START, log_c=fitted.common.log_c, log_v=fitted.common.log_v,
                              log_w=log_w))  # fmt: skip
    own = np.isin(data.fitted.classes_, ["high", "middle"])
    expected = dense[: (site == "ash").sum()][:, own]
    assert np.sqrt(np.mean((found["ash"][:, own] - expected) ** 2)) < 0.1 * expected.std()
    # A class that a task does not have is not predicted there.
    (y,) = in_kept_order(data, X, y)[1:]
    scores = np.concatenate([found[s] for s in SITES]) + fitted.common.t_mean
    scores[np.ix_(site == "ash", ~own)] = -1e3
    scores[site == "birch", 0] = -1e3
    truth = (y[:, None] == data.fitted.classes_).astype(float)
    logs = log_softmax(scores / fit_temperature(scores, truth), axis=1)
    np.testing.assert_allclose(data.losses(found), -np.sum(truth * logs, axis=1))


def test_several_outputs_count_in_units_of_their_deviations():
    X, y, site = rows(n=20)
    both = np.column_stack([y, 1000 * np.cos(X[:, 1])])
    data = fitted_rows(MultiTaskELMRegressor(n_hidden=20, solver=QUICK, random_state=0), X, both, site)
    predictions = FeatureScores(data).predictions({})
    X, both, site = in_kept_order(data, X, both, site)
    encoding = data.statistics.encoding
    errors = both - encoding.mean - np.concatenate([predictions[s] for s in SITES]) * encoding.scale
    np.testing.assert_allclose(data.losses(predictions), np.mean((errors / both.std(axis=0)) ** 2, axis=1))
    model = MultiTaskELMRegressorCV(n_hidden=[5, 20], weight_scale=1.0, random_state=0).fit(X, both, tasks=site)
    assert model.predict(X, tasks=site).shape == both.shape


def test_the_loss_of_the_fitted_setting_is_the_error_on_rows_left_out_that_gains_have():
    X, y, site = rows(1)
    data = fitted_rows(MultiTaskELMRegressor(n_hidden=20, solver=QUICK, random_state=0), X, y, site)
    loss = next(FeatureScores(data).scores([{}]))[1].mean()
    together = data.fitted.site_gains(X, y, tasks=site).overall.together
    assert np.sqrt(loss) == pytest.approx(together, rel=0.02)  # common variances are found once more


# -------------------------------------------------------------------------------------------------- the paper's problem


@examples(20)
@given(st.integers(0, 10**6), st.booleans(), st.sampled_from([5, 12]))
def test_a_ridge_path_left_out_is_that_of_refits_without_the_row(seed, centre, n):
    rng = np.random.default_rng(seed)
    H, T, penalties = rng.normal(size=(n, 7)), rng.normal(size=(n, 2)), [0.1, 1.0, 30.0]
    weights = rng.choice([0.5, 1.0, 3.0], n)
    found = ridge_path_left_out(H, T, penalties, centre, weights)
    for k, mu in enumerate(penalties):
        for i in range(n):
            rest = weights - np.minimum(weights, 1.0) * (np.arange(n) == i)  # one copy of the row is left out
            model = Ridge(mu, fit_intercept=centre).fit(H, T, sample_weight=rest)
            np.testing.assert_allclose(found[k, i], model.predict(H[i : i + 1])[0], rtol=1e-7, atol=1e-8)


def test_folds_have_equal_shares_of_every_class_of_every_task():
    _, y, site = classes()
    groups = {s: np.flatnonzero(site == s) for s in SITES}
    strata = {s: (y[rows][:, None] == np.unique(y)).astype(float) for s, rows in groups.items()}
    folds = fold_numbers(groups, strata, 3, seed=1)
    for s in SITES:
        for name in np.unique(y):
            sizes = np.bincount(folds[(site == s) & (y == name)], minlength=3)
            assert sizes.max() - sizes.min() <= 1
    assert (fold_numbers(groups, strata, 3, seed=2) != folds).any()


def separate_losses(estimator, X, y, site, folds):
    """Log losses of rows left out of separate fits, at the best temperature of all."""
    names, scores = np.unique(y), np.empty((len(y), 3))
    for k in range(folds.max() + 1):
        left = folds == k
        scores[left] = (
            clone(estimator).fit(X[~left], y[~left], tasks=site[~left]).decision_function(X[left], site[left])
        )
    truth = (y[:, None] == names).astype(float)
    return -np.sum(truth * log_softmax(scores / fit_temperature(scores, truth), axis=1), axis=1)


def test_scores_along_the_path_are_those_of_separate_fits_of_each_fold():
    X, y, site = classes(2)
    estimator = MultiTaskELMClassifier(n_hidden=15, solver=MeshELM(common=False, private=False, rank=3, graph=None,
                                       mu1=1.0, mu2=1.0, certify=False), random_state=0)  # fmt: skip
    data = fitted_rows(clone(estimator), X, y, site)
    settings = [{"rank": rank, "mu": mu} for rank in (1, 3) for mu in (1.0, 3.0, 10.0, 20.0)]
    found = dict(PenaltyScores(data, estimator.solver, 3).scores(settings))
    X, y, site = in_kept_order(data, X, y, site)
    strata = {s: (y[rows][:, None] == np.unique(y)).astype(float) for s, rows in data.groups.items()}
    folds = fold_numbers(data.groups, strata, 3, seed=0)
    assert len(found) >= 6
    for place, losses in found.items():
        solver = with_settings(estimator.solver.set_params(tol=1e-3), settings[place])
        expected = separate_losses(clone(estimator).set_params(solver=solver), X, y, site, folds)
        assert losses.mean() == pytest.approx(expected.mean(), rel=0.02)


@pytest.mark.parametrize("intercept", [True, False])
def test_scores_alone_are_those_of_refits_without_each_row(intercept):
    X, y, site = rows(n=8)
    estimator = MultiTaskELMRegressor(n_hidden=5, solver=LocalELM(mu=1.0), fit_intercept=intercept, random_state=0)
    data = fitted_rows(estimator, X, y, site)
    found = dict(PenaltyScores(data, estimator.solver, 5).scores([{"mu": 0.1}, {"mu": 2.0}]))
    X, y, site = in_kept_order(data, X, y, site)
    for place, mu in enumerate((0.1, 2.0)):
        for i in range(len(y)):
            own = (site == site[i]) & (np.arange(len(y)) != i)
            H = data.fitted.model_.layer(X)
            model = Ridge(mu, fit_intercept=intercept).fit(H[own], y[own])
            assert found[place][i] == pytest.approx((y[i] - model.predict(H[i : i + 1])[0]) ** 2, rel=1e-6, abs=1e-12)


def test_the_automatic_penalty_is_that_of_a_fit_of_all_rows():
    X, y, site = rows(n=15)
    estimator = MultiTaskELMRegressor(n_hidden=12, solver=PAPER, random_state=0)
    data = fitted_rows(estimator, X, y, site)
    lam = data.fitted.penalties_[0]
    found = dict(PenaltyScores(data, PAPER, 4).scores([{"mu": "auto"}, {"mu": 3 * lam}]))
    again = dict(PenaltyScores(data, PAPER, 4).scores([{"mu": lam}, {"mu": 3 * lam}]))
    np.testing.assert_array_equal(found[0], again[0])
    model = MultiTaskELMRegressorCV(n_hidden=12, solver=PAPER, random_state=0).fit(X, y, tasks=site)
    assert model.cv_results_["param_mu"].tolist() == ["auto", *(float(f"{k * lam:.2g}") for k in (0.1, 0.3, 3.0, 10.0))]
    assert model.default_index_ == 0


def test_a_path_ends_at_the_first_penalty_that_is_worse_by_a_percent():
    X, y, site = rows(0, n=20)
    penalties = [100.0, 30.0, 10.0, 3.0, 1.0, 0.3, 0.1, 0.03, 0.01]
    model = MultiTaskELMRegressorCV(n_hidden=40, solver=PAPER, mu=penalties, rank=2, random_state=0)
    model.fit(X, y, tasks=site)
    scores = model.cv_results_["mean_test_score"]
    known = np.flatnonzero(~np.isnan(scores))
    assert 3 <= len(known) < len(penalties)
    assert known.tolist() == list(range(len(known)))  # from large to small
    best = np.minimum.accumulate(-scores[known])
    assert (-scores[known][1:] > 1.01 * best[:-1]).tolist() == [False] * (len(known) - 2) + [True]
    assert model.best_params_ == {"mu": penalties[int(np.nanargmax(scores))]}


# ------------------------------------------------------------------------------------------------- rows that count more


@pytest.mark.parametrize(
    ("solver", "grid"),
    [("mesh-elm", {"n_hidden": [5, 9], "weight_scale": [1.0]}), (LocalELM(mu=1.0), {"n_hidden": [9], "mu": [0.3, 3]})],
)
def test_a_row_that_counts_twice_is_two_rows_and_one_that_counts_zero_times_is_none(solver, grid):
    X, y, site = rows(3, noise=0.3)
    times = np.random.default_rng(0).choice([0, 1, 2], len(y))
    estimator, repeated = MultiTaskELMRegressor(solver=solver, random_state=0), np.repeat(np.arange(len(y)), times)
    one = search_settings(estimator, grid, X, y, site, sample_weight=times)
    two = search_settings(estimator, grid, X[repeated], y[repeated], site[repeated])
    for place in (0, 1):
        np.testing.assert_allclose(one.loss(place), two.loss(place), rtol=1e-4)
    np.testing.assert_allclose(one.difference(1, 0), two.difference(1, 0), rtol=1e-3)
    assert one.loss(0)[0] != pytest.approx(search_settings(estimator, grid, X, y, site).loss(0)[0], rel=1e-3)


def test_weights_count_in_the_folds_of_the_papers_problem():
    X, y, site = rows(4, noise=0.3)
    weights = np.random.default_rng(0).choice([0.5, 1.0, 4.0], len(y))
    solver = with_settings(PAPER, {"rank": 1, "mu": 1.0}).set_params(certify=False, tol=1e-4)
    estimator = MultiTaskELMRegressor(n_hidden=6, solver=solver, fit_intercept=False, random_state=0)
    data = fitted_rows(clone(estimator), X, y, site, weights)
    ((_, losses),) = PenaltyScores(data, solver, 3).scores([{"mu": 1.0}])
    X, y, site, weights = in_kept_order(data, X, y, site, weights)
    np.testing.assert_array_equal(data.weights, weights)
    folds = fold_numbers(data.groups, {s: np.zeros((len(own), 1)) for s, own in data.groups.items()}, 3, seed=0)
    expected = np.empty_like(losses)
    for k in range(3):
        left = folds == k
        model = clone(estimator).fit(X[~left], y[~left], tasks=site[~left], sample_weight=weights[~left])
        expected[left] = (y[left] - model.predict(X[left], site[left])) ** 2
    assert np.average(losses, weights=weights) == pytest.approx(np.average(expected, weights=weights), rel=0.02)


def test_weights_of_classes_count_in_scores():
    X, y, site = classes(1, n=20, noise=0.3)
    grid = {"n_hidden": [8], "weight_scale": [1.0]}
    class_weight = {"high": 3.0, "middle": 1.0, "low": 1.0}
    found = search_settings(MultiTaskELMClassifier(class_weight=class_weight, random_state=0), grid, X, y, site)
    weights = np.where(y == "high", 3.0, 1.0)
    given = search_settings(MultiTaskELMClassifier(random_state=0), grid, X, y, site, sample_weight=weights)
    assert found.loss(0) == pytest.approx(given.loss(0), rel=0.01)  # means of inputs are over rows that count once
    model = MultiTaskELMClassifierCV(8, weight_scale=1.0, class_weight=class_weight, random_state=0)
    assert -model.fit(X, y, tasks=site).best_score_ == pytest.approx(found.loss(0)[0])
    assert model.best_estimator_.class_weight == class_weight
    data = SearchRows.of(model.best_estimator_)
    layer = data.features(model.best_estimator_, model.best_estimator_.solver_for(X, y, site))
    np.testing.assert_allclose(layer.mean, model.best_estimator_.model_.layer.mean, atol=1e-12)


def test_of_a_task_with_very_many_rows_a_sample_decides_and_stands_for_all_of_them(monkeypatch):
    monkeypatch.setattr("elmesh.data.site_statistics.KEPT", 16)
    X, y, site = rows(5, n=14)
    X, y, site = (np.concatenate([a, b]) for a, b in zip((X, y, site), [a[:14] for a in rows(6, n=14)], strict=True))
    data = fitted_rows(MultiTaskELMRegressor(n_hidden=5, solver=QUICK, random_state=0), X, y, site)
    assert [len(own) for own in data.by_task.values()] == [16, 14, 14]
    by_task = {s: data.weights[places] for s, places in data.groups.items()}
    assert by_task["ash"].sum() / by_task["birch"].sum() == pytest.approx(2.0)
    assert data.weights.sum() == pytest.approx(44.0)  # no narrower intervals than those of the rows that were predicted
    (_, losses), *_ = FeatureScores(data).scores([{}])
    assert len(losses) == 44


# ----------------------------------------------------------------------------------------------------------- the choice


def search(losses, default=0):
    return Search(tuple(Candidate({"n_hidden": k}, loss) for k, loss in enumerate(losses)), default, seed=0)


def test_the_default_stays_unless_another_setting_is_clearly_better_by_something_that_matters():
    rng = np.random.default_rng(0)
    noise = rng.normal(size=400)
    noise -= noise.mean()
    base = 1.0 + 0.1 * rng.normal(size=400)
    clear, lucky, tiny = base - 0.1 + 0.1 * noise, base - 0.006 + 0.3 * noise, base - 0.001
    assert search([base, base + 0.1, clear]).best == 2
    assert search([base, lucky]).best == 0  # less than a standard error
    assert search([base, tiny]).best == 0  # a tenth of a percent
    assert search([base, lucky]).least == 1
    assert search([base, lucky], default=None).best == 1
    assert search([base, None, clear]).best == 2
    assert search([None, lucky]).best == 1
    change, error = search([base, clear]).difference(1, 0)
    assert change == pytest.approx(np.mean(clear - base))
    assert error == pytest.approx(np.std(clear - base, ddof=1) / 20)


def test_a_callback_sees_every_candidate_and_can_end_the_search():
    X, y, site = rows()
    seen = []

    def stop(found):
        seen.append(sum(candidate.losses is not None for candidate in found.candidates))
        return len(seen) == 2

    grid = {"n_hidden": [5, 10, 20, 200], "weight_scale": [1.0]}
    found = search_settings(MultiTaskELMRegressor(random_state=0), grid, X, y, site, callback=stop)
    assert seen == [1, 2]
    assert [candidate.losses is None for candidate in found.candidates] == [False, False, True, True]
    assert found.best in (0, 1)
    assert found.default is None  # the default has two scales


def test_the_default_comes_first_and_is_recognised_by_its_value():
    X, y, site = rows()
    for grid, first in (
        ({"n_hidden": [50, 200], "weight_scale": [0.3, (1.0, 4.0)]}, {"n_hidden": 200, "weight_scale": (1.0, 4.0)}),
        ({"n_hidden": [50, "auto"], "weight_scale": ["auto"]}, {"n_hidden": "auto", "weight_scale": "auto"}),
        ({"n_hidden": [50], "parts": ["common", "common,private,shared"], "weight_scale": ["auto"]}, None),
    ):
        found = search_settings(MultiTaskELMRegressor(random_state=0), grid, X, y, site, callback=lambda _: True)
        assert found.default == (None if first is None else 0)
        assert first is None or found.candidates[0].setting == first


# ----------------------------------------------------------------------------------------------------------- estimators


SMALL = {"n_hidden": [8, 30], "weight_scale": 1.0, "random_state": 0}
TINY = {"n_hidden": [4, 8], "weight_scale": 1.0, "solver": QUICK, "random_state": 0}


ALONE = {"n_hidden": 20, "solver": LocalELM(mu=1.0), "mu": [0.1, 1.0], "random_state": 0}


@pytest.mark.thorough
@parametrize_with_checks([MultiTaskELMRegressorCV(**ALONE), MultiTaskELMClassifierCV(**ALONE)])
def test_the_checks_of_scikit_learn_pass(estimator, check):
    run_check(estimator, check)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("estimator", "check"),
    [
        *some_checks(MultiTaskELMRegressorCV(**TINY), AT_THE_LIMITS),
        *some_checks(MultiTaskELMClassifierCV(**TINY), AT_THE_LIMITS),
    ],
)
def test_the_checks_of_scikit_learn_with_data_at_the_limits_pass(estimator, check):
    check(clone(estimator))


@pytest.mark.slow
@parametrize_with_checks(
    [
        MultiTaskELMRegressorCV(**TINY),
        MultiTaskELMClassifierCV(**TINY),
        MultiTaskELMRegressorCV(n_hidden=20, solver=PAPER, mu=[0.1, 1.0], random_state=0),
    ]
)
def test_the_checks_of_scikit_learn_pass_with_other_parameters(estimator, check):
    run_check(estimator, check)


@pytest.mark.parametrize(
    ("tuned", "plain", "solver"),
    [
        (MultiTaskELMRegressorCV, MultiTaskELMRegressor, "mesh-elm"),
        (MultiTaskELMClassifierCV, MultiTaskELMClassifier, "mesh-elm"),
        (MultiTaskELMRegressorCV, MultiTaskELMRegressor, PAPER),
        (MultiTaskELMClassifierCV, MultiTaskELMClassifier, MTLELM(rank=2)),
        (MultiTaskELMRegressorCV, MultiTaskELMRegressor, LocalELM(mu=1.0)),
    ],
)
def test_after_a_fit_it_is_the_best_estimator_to_the_bit(tuned, plain, solver):
    X, y, site = rows(0, n=25) if plain is MultiTaskELMRegressor else classes()
    grid = {"n_hidden": [3, 40], "weight_scale": 1.5} if solver == "mesh-elm" else {"n_hidden": 15, "mu": [0.3, 3.0]}
    model = tuned(**grid, solver=solver, random_state=3).fit(X, y, tasks=site)
    alone = plain(n_hidden=grid["n_hidden"], weight_scale=grid.get("weight_scale", "auto"), solver=solver,
                  random_state=3)  # fmt: skip
    if "mu" in grid:
        alone.set_params(solver=with_settings(solver, model.best_params_))
    else:
        alone.set_params(**model.best_params_)
    alone.fit(X, y, tasks=site)
    np.testing.assert_array_equal(model.predict(X, tasks=site), alone.predict(X, tasks=site))
    assert model.score(X, y, tasks=site) == alone.score(X, y, tasks=site)
    assert isinstance(model.best_estimator_, plain)
    results = pd.DataFrame(model.cv_results_)
    assert len(results) == 2
    assert model.best_score_ == results["mean_test_score"][model.best_index_]
    assert results["params"][model.best_index_] == model.best_params_
    assert results["rank_test_score"].tolist() == results["mean_test_score"].rank(ascending=False).tolist()
    assert (results["standard_error"] > 0).all()
    if plain is MultiTaskELMClassifier:
        np.testing.assert_array_equal(model.predict_proba(X, tasks=site), alone.predict_proba(X, tasks=site))
        np.testing.assert_array_equal(model.decision_function(X, tasks=site), alone.decision_function(X, tasks=site))
        assert log_loss(y, model.predict_proba(X, tasks=site)) < np.log(3)


def test_settings_that_fit_the_data_are_found():
    X, y, site = rows(n=40)
    model = MultiTaskELMRegressorCV(n_hidden=[3, 200], random_state=0).fit(X, y, tasks=site)
    assert model.default_index_ == 0
    assert model.best_params_["n_hidden"] == 200
    gains = pd.DataFrame(model.cv_results_).groupby("param_n_hidden")["gain"].max()
    assert gains[3] < 0


def test_the_parts_of_the_weights_can_be_chosen():
    X, y, site = rows(n=30)
    y = y + 3.0 * np.select([site == s for s in SITES], [-1.0, 0.0, 1.0]) * X[:, 0]  # nothing in common
    parts = ["common,private,shared", "common", "private"]
    model = MultiTaskELMRegressorCV(n_hidden=30, weight_scale=1.0, parts=parts, random_state=0).fit(X, y, tasks=site)
    scores = dict(zip(parts, model.cv_results_["mean_test_score"], strict=True))
    assert scores["common"] < scores["private"]
    assert model.best_params_["parts"] != "common"
    only = MultiTaskELMRegressorCV(n_hidden=30, weight_scale=1.0, parts="common", random_state=0).fit(X, y, tasks=site)
    assert only.best_estimator_.solver.private is False
    assert only.best_score_ == pytest.approx(scores["common"], rel=0.05)


def test_a_limit_of_features_holds_in_scores_too():
    X, y, site = rows(n=10)
    limited = MeshELM(rank=0, rows_per_feature=4.0)
    scores = {}
    for solver in (limited, MeshELM(rank=0)):
        model = MultiTaskELMRegressorCV([5, 40], weight_scale=1.0, solver=solver, random_state=0).fit(X, y, tasks=site)
        scores[solver.rows_per_feature] = model.best_score_
        few = np.count_nonzero(np.any(model.best_estimator_.W_ != 0, axis=1)) < len(model.best_estimator_.W_)
        assert few == (solver is limited)
    assert scores[4.0] < scores[0.0]


def test_tables_with_a_task_column_work_in_cross_validation_and_clones_have_equal_parameters():
    X, y, site = rows(n=20)
    table = pd.DataFrame(X, columns=["a", "b"]).assign(site=site, ward=np.where(X[:, 0] > 0, "east", "west"))
    model = MultiTaskELMRegressorCV(task="site", **SMALL | {"n_hidden": [4, 8]})
    folds = list(StratifiedKFold(2, shuffle=True, random_state=0).split(table, site))
    scores = cross_val_score(model, table, y, cv=folds, scoring="neg_mean_absolute_error")
    expected = [-np.mean(np.abs(y[b] - clone(model).fit(table.iloc[a], y[a]).predict(table.iloc[b]))) for a, b in folds]
    np.testing.assert_allclose(scores, expected)
    copy = clone(model.fit(table, y))
    assert not hasattr(copy, "best_estimator_")
    assert copy.get_params() == model.get_params()
    assert model.best_estimator_.table_ is not None


def test_tasks_go_through_a_pipeline():
    X, y, site = rows()
    with sklearn.config_context(enable_metadata_routing=True):
        pipeline = Pipeline([("scale", StandardScaler()), ("model", MultiTaskELMRegressorCV(**SMALL))])
        pipeline.fit(X, y, tasks=site)
        found = pipeline.predict(X, tasks=site)
    scaled = (X - X.mean(axis=0)) / X.std(axis=0)
    np.testing.assert_allclose(found, MultiTaskELMRegressorCV(**SMALL).fit(scaled, y, tasks=site).predict(scaled, site))


def test_a_seed_that_is_drawn_is_kept_for_the_best_estimator():
    X, y, site = rows()
    model = MultiTaskELMRegressorCV(n_hidden=[4, 40], weight_scale=1.0).fit(X, y, tasks=site)
    again = MultiTaskELMRegressor(
        n_hidden=model.best_params_["n_hidden"], weight_scale=1.0, random_state=model.best_estimator_.seed_
    )
    np.testing.assert_array_equal(again.fit(X, y, tasks=site).predict(X, site), model.predict(X, site))


def test_classes_that_no_two_tasks_share_are_the_papers_problem():
    X, y, site = classes()
    y = np.char.add(np.char.add(site, "-"), y.astype(str))
    model = MultiTaskELMClassifierCV(n_hidden=20, random_state=0).fit(X, y, tasks=site)
    assert model.cv_results_["param_mu"][0] == "auto"
    assert len(model.cv_results_["params"]) == 5
    assert model.best_estimator_.W_ is None
    assert model.score(X, y, tasks=site) > 0.6


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"solver": MTFL()}, "Settings of mtfl cannot be chosen in this way"),
        ({"solver": MeshELM(privacy=Privacy(epsilon=1.0))}, "private fit"),
        ({"rank": [1, 2]}, "rank is chosen for the shared part alone"),
        ({"mu": [1.0, 2.0]}, "mu is chosen for the shared part alone"),
        ({"solver": LocalELM()}, "local-elm finds its penalties by evidence"),
        ({"solver": DMTLELM(), "parts": ["common", "private"]}, "parts has no meaning for dmtl-elm"),
        ({"n_hidden": []}, "n_hidden has no candidates"),
        ({"n_hidden": (5, 10)}, "n_hidden must be a whole number"),
        ({"parts": ["common", "shared"]}, "another problem"),
        ({"parts": ["own"]}, "some of common, private, shared"),
        ({"cv": 1}, "cv must be"),
    ],
)
def test_what_cannot_be_chosen_is_an_error_that_states_why(parameters, message):
    X, y, site = rows(n=6)
    with pytest.raises(ElmeshError, match=message):
        MultiTaskELMRegressorCV(random_state=0, **parameters).fit(X, y, tasks=site)


def test_a_stream_is_refused():
    table = pa.table({"a": [1.0, 2.0], "y": [1.0, 2.0]})
    with pytest.raises(ElmeshError, match="rows in memory, not by a stream"):
        MultiTaskELMRegressorCV().fit(table.to_reader(), "y")
