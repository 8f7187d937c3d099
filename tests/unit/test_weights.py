"""Weights of rows and of classes: a row that counts twice is as good as two."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.utils.class_weight import compute_class_weight

from elmesh import (
    DMTLELM,
    MTLELM,
    ElmeshError,
    LocalELM,
    MeshELM,
    MultiTaskELMClassifier,
    MultiTaskELMRegressor,
    Privacy,
)
from elmesh.math.calibration import fit_temperature, leave_one_out_lasso, leave_one_out_ridge
from elmesh.math.left_out import left_out_errors
from helpers.marks import one_of

seeds = st.integers(0, 10**6)


def tables(seed=0, sites=4, rows=14, classes=None):
    """Inputs, targets with noise, sites, and whole weights of which some are zero."""
    rng = np.random.default_rng(seed)
    n = sites * rows
    X, site = rng.normal(size=(n, 3)), np.repeat([f"s{t}" for t in range(sites)], rows)
    y = X @ [1.0, -1.0, 0.5] + 0.3 * np.repeat(rng.normal(size=sites), rows) + rng.normal(size=n)
    y = y if classes is None else np.digitize(y, np.linspace(-1, 1, classes - 1))
    # Every site keeps a row, and every class.
    weights = rng.integers(0, 4, size=n).astype(float)
    weights[::rows] = 1.0
    return X, y, site, weights


def repeated(weights, *arrays):
    again = np.repeat(np.arange(len(weights)), weights.astype(int))
    return [array[again] for array in arrays]


SOLVERS = {
    "three parts": MeshELM(),
    "no shared part": MeshELM(rank=0),
    "alone by evidence": LocalELM(),
    "alone": LocalELM(mu=0.5),
    "ADMM": DMTLELM(rank=2, mu1=0.5, mu2=0.5, max_iter=15, tol=0.0),
    "one place": MTLELM(rank=2, mu1=0.5, mu2=0.5, tol=1e-10, max_iter=3000),
}


@pytest.mark.parametrize(("kind", "solver"), one_of(2, [MultiTaskELMRegressor, MultiTaskELMClassifier], SOLVERS))
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning", "ignore::elmesh.errors.RankWarning")
def test_whole_weights_are_repeated_rows(kind, solver):
    X, y, site, weights = tables(1, classes=None if kind is MultiTaskELMRegressor else 3)
    model = kind(n_hidden=15, solver=SOLVERS[solver], random_state=0)
    weighted = kind(**model.get_params(deep=False)).fit(X, y, tasks=site, sample_weight=weights)
    again = model.fit(*repeated(weights, X, y), tasks=repeated(weights, site)[0])
    predict = "predict" if kind is MultiTaskELMRegressor else "predict_proba"
    found, expected = (getattr(one, predict)(X, tasks=site) for one in (weighted, again))
    np.testing.assert_allclose(found, expected, atol=1e-5)
    if weighted.variances_ is not None:
        np.testing.assert_allclose(np.log(weighted.variances_), np.log(again.variances_), atol=1e-4)
        for t, noise in again.noise_.items():
            np.testing.assert_allclose(weighted.noise_[t], noise, rtol=1e-5)


def test_means_and_scales_of_a_table_count_rows_by_their_weights():
    X, y, site, weights = tables(2)
    table = pd.DataFrame(X, columns=["a", "b", "c"]).assign(site=site, word=np.where(X[:, 0] > 0, "up", "down"))
    table.loc[::5, "b"] = np.nan
    one = MultiTaskELMRegressor(n_hidden=10, task="site", random_state=0).fit(table, y, sample_weight=weights)
    again = np.repeat(np.arange(len(y)), weights.astype(int))
    other = MultiTaskELMRegressor(n_hidden=10, task="site", random_state=0)
    other.fit(table.iloc[again].reset_index(drop=True), y[again])
    assert [c.name for c in one.table_.numeric] == ["a", "b", "c"]
    for column, same in zip(one.table_.numeric, other.table_.numeric, strict=True):
        assert (column.mean, column.std) == pytest.approx((same.mean, same.std), rel=1e-12)
    np.testing.assert_allclose(one.predict(table), other.predict(table), atol=1e-6)


def test_deviations_and_gains_are_those_of_repeated_rows():
    X, y, site, weights = tables(3, rows=10)
    weights = np.maximum(weights, 1.0)
    model = MultiTaskELMRegressor(n_hidden=8, solver=MeshELM(rank=0), random_state=0)
    again = repeated(weights, X, y, site)
    other = MultiTaskELMRegressor(n_hidden=8, solver=MeshELM(rank=0), random_state=0)
    other.fit(again[0], again[1], tasks=again[2])
    model.fit(X, y, tasks=site, sample_weight=weights)
    for one, same in zip(*(m.predict(X, tasks=site, return_std=True) for m in (model, other)), strict=True):
        np.testing.assert_allclose(one, same, rtol=1e-6, atol=1e-8)
    gains, expected = model.site_gains(), other.site_gains()
    assert [one.together for one in gains.tasks] == pytest.approx([one.together for one in expected.tasks], rel=1e-6)
    assert gains.overall.pooled == pytest.approx(expected.overall.pooled, rel=1e-6)
    given = model.site_gains(X, y, tasks=site, sample_weight=weights)
    assert given.overall.together == pytest.approx(gains.overall.together, rel=1e-10)


@given(seeds)
def test_leaving_out_one_copy_is_leaving_out_one_of_repeated_rows(seed):
    rng = np.random.default_rng(seed)
    n, weights = 9, rng.integers(1, 4, size=9).astype(float)
    Phi, T, features = rng.normal(size=(n, 4)), rng.normal(size=(n, 2)), rng.normal(size=(n, 3))
    S = np.diag(rng.uniform(0.01, 0.05, size=4))
    again, first = np.repeat(np.arange(n), weights.astype(int)), np.cumsum(weights).astype(int) - weights.astype(int)
    W = rng.normal(size=(4, 2))
    for width in (2, 12):  # more rows than columns of B, and fewer
        B = Phi @ rng.normal(size=(4, width))
        expected = left_out_errors(Phi[again], T[again], B[again], W, S, 0.7)[first]
        np.testing.assert_allclose(left_out_errors(Phi, T, B, W, S, 0.7, row_weights=weights), expected, atol=1e-9)
    centred = features - np.average(features, axis=0, weights=weights)
    scores, A = centred @ rng.normal(size=(3, 2)), np.array([[1.0, 0.0], [1.0, 1.0], [0.0, 1.0]])
    ridge = leave_one_out_ridge(centred[again], scores[again], T[again], 0.5, True)[first]
    np.testing.assert_allclose(leave_one_out_ridge(centred, scores, T, 0.5, True, weights), ridge, atol=1e-9)
    wide = np.hstack([centred, rng.normal(size=(n, 30))])
    ridge = leave_one_out_ridge(wide[again], scores[again], T[again], 0.5, False)[first]
    np.testing.assert_allclose(leave_one_out_ridge(wide, scores, T, 0.5, False, weights), ridge, atol=1e-9)
    lasso = leave_one_out_lasso(centred[again], A, scores[again], T[again], True)[first]
    np.testing.assert_allclose(leave_one_out_lasso(centred, A, scores, T, True, weights), lasso, atol=1e-9)
    classes = np.eye(2)[rng.integers(0, 2, size=n)]
    expected = fit_temperature(scores[again], classes[again])
    assert fit_temperature(scores, classes, weights) == pytest.approx(expected, rel=1e-4)


def test_leaving_out_a_light_row_leaves_out_all_of_it():
    """Of a row with weight one half no whole copy can be left out: the error is that of a fit without it."""
    rng = np.random.default_rng(0)
    Phi, T, weights = rng.normal(size=(8, 3)), rng.normal(size=(8, 1)), np.full(8, 0.5)
    found = left_out_errors(Phi, T, Phi, row_weights=weights)
    for i in range(8):
        others = np.arange(8) != i
        F, t = np.sqrt(0.5) * Phi[others], np.sqrt(0.5) * T[others]
        w = np.linalg.solve(F.T @ F + np.eye(3), F.T @ t)
        np.testing.assert_allclose(found[i], T[i] - Phi[i] @ w, atol=1e-10)


def test_a_target_that_counts_often_moves_the_limits_of_its_task():
    """The median of targets is that of repeated rows."""
    X, y, site, _ = tables(4)
    y[0] = 1e4
    heavy = np.where(np.arange(len(y)) == 0, 100.0, 1.0)
    light = MultiTaskELMRegressor(n_hidden=5, random_state=0).fit(X, y, tasks=site)
    loud = MultiTaskELMRegressor(n_hidden=5, random_state=0).fit(X, y, tasks=site, sample_weight=heavy)
    assert light.statistics_.encoding.limits["s0"][1] < 1e3 < loud.statistics_.encoding.limits["s0"][1]


@pytest.mark.parametrize("shared", [True, False])
def test_balanced_classes_count_the_same(shared):
    X, y, site, _ = tables(5, classes=3)
    names = np.array(["low", "middle", "high"])[y]
    values = np.unique(names)
    if not shared:
        names = np.char.add(names, site)
        values = np.unique(names)
    own = np.random.default_rng(0).uniform(0.5, 2.0, size=len(y))
    by_hand = compute_class_weight("balanced", classes=values, y=names, sample_weight=own)
    given = dict(zip(values.tolist(), by_hand.tolist(), strict=True))
    for class_weight in ("balanced", given):
        model = MultiTaskELMClassifier(8, class_weight=class_weight, shared_classes=shared, random_state=0)
        model.fit(X, names, tasks=site, sample_weight=own)
        for t, statistics in model.statistics_.sites.items():
            rows = statistics.rows
            found = dict(zip(map(bytes, rows.X), rows.weights, strict=True))
            expected = own * by_hand[np.searchsorted(values, names)]
            assert found == pytest.approx({bytes(X[i]): expected[i] for i in np.flatnonzero(site == t)}, rel=1e-12)
        # All classes count the same.
        np.testing.assert_allclose(model.statistics_.encoding.mean, 1 / 3 if shared else 0.0, atol=1e-12)


def test_a_rare_class_is_found_more_often_if_it_counts_more():
    rng = np.random.default_rng(0)
    X, site = rng.normal(size=(400, 2)), np.repeat(["a", "b"], 200)
    y = np.where(X[:, 0] + rng.normal(size=400) > 2.2, "ill", "well")
    assert 5 < np.sum(y == "ill") < 60
    plain, balanced = (
        MultiTaskELMClassifier(n_hidden=20, class_weight=weight, random_state=0).fit(X, y, tasks=site)
        for weight in (None, "balanced")
    )
    found = [np.mean(m.predict(X, tasks=site)[y == "ill"] == "ill") for m in (plain, balanced)]
    assert found[1] > found[0] + 0.2


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (np.full(56, -1.0), "below zero"),
        (np.zeros(56), "some above it"),
        (np.ones(5), "inconsistent"),
        (np.ones((56, 2)), "must be 1D"),
        (np.full(56, np.nan), "NaN"),
    ],
)
def test_weights_that_make_no_sense_are_refused(weights, message):
    X, y, site, _ = tables()
    with pytest.raises(ValueError, match=message):
        MultiTaskELMRegressor(random_state=0).fit(X, y, tasks=site, sample_weight=weights)


@pytest.mark.parametrize(
    ("class_weight", "message"),
    [({7: 1.0}, "no class"), ({0: -1.0}, "class_weight"), ("even", "class_weight must be one of balanced")],
)
def test_class_weights_that_make_no_sense_are_refused(class_weight, message):
    X, y, site, _ = tables(classes=2)
    with pytest.raises(ElmeshError, match=message):
        MultiTaskELMClassifier(class_weight=class_weight, random_state=0).fit(X, y, tasks=site)


def test_a_private_fit_takes_no_weights():
    X, y, site, weights = tables(rows=60)
    solver = MeshELM(privacy=Privacy(epsilon=5.0, input_range=(-2, 2), target_range=(-3, 3)))
    with pytest.raises(ElmeshError, match="no weights of rows"):
        MultiTaskELMRegressor(solver=solver, random_state=0).fit(X, y, tasks=site, sample_weight=weights + 1)
    solver = MeshELM(privacy=Privacy(epsilon=5.0, input_range=(-2, 2)))
    model = MultiTaskELMClassifier(solver=solver, shared_classes=[0, 1], class_weight="balanced", random_state=0)
    with pytest.raises(ElmeshError, match="no weights of classes"):
        model.fit(X, (y > 0).astype(int), tasks=site)
