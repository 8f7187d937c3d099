"""Probabilities: their leave-one-out scores against refits without each row, their temperature against a grid."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.special import log_softmax
from sklearn.linear_model import Lasso

from elmesh import DGSP, DMTLELM, DNSP, GOMTL, MTFL, MTLELM, LocalELM, MeshELM, MultiTaskELMClassifier
from elmesh.data.tasks import group_rows, one_hot
from elmesh.estimators.head import Head
from elmesh.math.calibration import fit_temperature, leave_one_out_lasso, leave_one_out_ridge, probabilities
from helpers.marks import one_of


def ridge(Z, T, penalty):
    return np.linalg.solve(Z.T @ Z + penalty * np.eye(Z.shape[1]), Z.T @ T)


def refit_without_each_row(H, T, penalty, intercept):
    """Score every row by a ridge regression that never saw it, its means included; no closed form."""
    scores = np.empty_like(T)
    for i in range(len(H)):
        rest = np.arange(len(H)) != i
        h_mean, t_mean = (H[rest].mean(axis=0), T[rest].mean(axis=0)) if intercept else (0.0, 0.0)
        A = ridge(H[rest] - h_mean, T[rest] - t_mean, penalty)
        scores[i] = (H[i] - h_mean) @ A + t_mean
    return scores


def lasso(Z, T, penalty, intercept):
    """The Lasso with its penalty on the sum of squares, output by output; scikit-learn's is on their mean."""
    model = Lasso(alpha=penalty / len(Z), fit_intercept=intercept, tol=1e-12, max_iter=100_000).fit(Z, T)
    return model.coef_.T, model.intercept_


def refit_lasso_without_each_row(Z, T, penalty, intercept):
    """Score every row by a Lasso that never saw it, and say where that uses the same features as with the row."""
    A, _ = lasso(Z, T, penalty, intercept)
    scores, same = np.empty_like(T), np.empty(T.shape, dtype=bool)
    for i in range(len(Z)):
        rest = np.arange(len(Z)) != i
        A_rest, constant = lasso(Z[rest], T[rest], penalty, intercept)
        scores[i] = Z[i] @ A_rest + constant
        same[i] = (np.sign(A_rest) == np.sign(A)).all(axis=0)
    return scores, same


def problem(seed, n, width, n_classes=3, signal=1.0):
    rng = np.random.default_rng(seed)
    H = rng.normal(size=(n, width)) + rng.normal(size=width)
    y = np.argmax(signal * H @ rng.normal(size=(width, n_classes)) + rng.normal(size=(n, n_classes)), axis=1)
    y[:n_classes] = np.arange(n_classes)  # every class occurs
    targets, _ = one_hot(y, group_rows(None, n))
    return H, targets["all"]


def fitted_head(H, T, penalty, intercept, U=None):
    h_mean, t_mean = (H.mean(axis=0), T.mean(axis=0)) if intercept else (np.zeros(H.shape[1]), np.zeros(T.shape[1]))
    Z = (H - h_mean) if U is None else (H - h_mean) @ U
    return Head(U, ridge(Z, T - t_mean, penalty), h_mean, t_mean)


def temperature_of(H, head, T, penalty, intercept):
    """The temperature of a head, from leave-one-out scores."""
    return fit_temperature(leave_one_out_ridge(head.features(H), head.scores(H), T, penalty, intercept), T)


def log_loss(scores, T, temperatures):
    """The mean log loss of all rows, for one temperature or for each of several."""
    scaled = scores / np.asarray(temperatures)[..., None, None]
    return -np.mean(np.sum(T * log_softmax(scaled, axis=-1), axis=-1), axis=-1)


# ------------------------------------------------------------------------------------------------------ leave one out


@pytest.mark.parametrize("intercept", [False, True])
@given(
    seed=st.integers(0, 1000),
    n=st.integers(3, 25),
    width=st.integers(1, 25),
    penalty=st.sampled_from([1e-2, 1.0, 30.0]),
)
def test_leave_one_out_scores_are_those_of_a_refit_without_the_row(intercept, seed, n, width, penalty):
    H, T = problem(seed, n, width)
    head = fitted_head(H, T, penalty, intercept)
    scores = leave_one_out_ridge(H - head.h_mean, head.scores(H), T, penalty, intercept)
    np.testing.assert_allclose(scores, refit_without_each_row(H, T, penalty, intercept), atol=1e-8, rtol=1e-8)


@pytest.mark.parametrize(("n", "width"), [(6, 40), (40, 6), (12, 12), (2, 5)])
@pytest.mark.parametrize("intercept", [False, True])
def test_scores_are_the_same_with_fewer_or_more_rows_than_features(n, width, intercept):
    H, T = problem(1, n, width, n_classes=2)
    head = fitted_head(H, T, 0.5, intercept)
    scores = leave_one_out_ridge(H - head.h_mean, head.scores(H), T, 0.5, intercept)
    np.testing.assert_allclose(scores, refit_without_each_row(H, T, 0.5, intercept), atol=1e-10)


def test_a_row_with_full_leverage_has_a_finite_score():
    H, T = problem(0, 5, 50)
    head = fitted_head(H, T, 1e-12, intercept=False)
    assert np.isfinite(leave_one_out_ridge(H, head.scores(H), T, 1e-12, intercept=False)).all()


@pytest.mark.thorough
@pytest.mark.parametrize(("penalty", "intercept"), one_of(2, [0.3, 3.0], [False, True]))
def test_of_a_lasso_they_are_those_of_a_refit_wherever_it_uses_the_same_features(penalty, intercept):
    held, apart, naive = [], [], []
    for seed in range(10):
        Z, T = problem(seed, 30, 6)
        Z = Z - Z.mean(axis=0) if intercept else Z
        A, constant = lasso(Z, T, penalty, intercept)
        scores = leave_one_out_lasso(Z, A, Z @ A + constant, T, intercept)
        expected, same = refit_lasso_without_each_row(Z, T, penalty, intercept)
        np.testing.assert_allclose(scores[same], expected[same], atol=1e-5)
        held.append(same.mean())
        apart.append(np.mean((scores - expected) ** 2))
        naive.append(np.mean((Z @ A + constant - expected) ** 2))
    assert np.mean(held) > 0.6
    # And over all rows they are far nearer to it than the scores of a fit with the row.
    assert np.mean(apart) < 0.15 * np.mean(naive)


@pytest.mark.parametrize("intercept", [False, True])
def test_a_lasso_that_uses_no_feature_or_dependent_ones_has_scores_too(intercept):
    Z, T = problem(0, 12, 3)
    Z = Z - Z.mean(axis=0)
    mean = T.mean(axis=0) if intercept else np.zeros(3)
    scores = leave_one_out_lasso(Z, np.zeros((3, 3)), np.tile(mean, (12, 1)), T, intercept)
    rest = (T.sum(axis=0) - T) / 11 if intercept else np.zeros_like(T)
    np.testing.assert_allclose(scores, rest, atol=1e-12)
    A, constant = lasso(Z, T, 0.1, intercept)
    doubled = leave_one_out_lasso(np.hstack([Z, Z]), np.vstack([A, A]) / 2, Z @ A + constant, T, intercept)
    np.testing.assert_allclose(doubled, leave_one_out_lasso(Z, A, Z @ A + constant, T, intercept), atol=1e-9)


# -------------------------------------------------------------------------------------------------------- temperature


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("case", "intercept", "shared"),
    one_of(2, [(30, 5, 3.0), (30, 5, 0.0), (12, 40, 1.0), (200, 8, 1.0)], [False, True], [False, True]),
)
def test_the_temperature_minimises_the_log_loss_of_rows_left_out(case, intercept, shared):
    n, width, signal = case
    H, T = problem(3, n, width, signal=signal)
    U = np.random.default_rng(4).normal(size=(width, 4)) if shared else None
    head = fitted_head(H, T, 0.7, intercept, U)
    temperature = temperature_of(H, head, T, 0.7, intercept)
    scores = refit_without_each_row(H if U is None else H @ U, T, 0.7, intercept)
    grid = np.geomspace(1e-2, 1e1, 3001)
    losses = log_loss(scores, T, grid)
    assert log_loss(scores, T, temperature) <= losses.min() + 1e-7
    best = grid[int(np.argmin(losses))]
    assert temperature == pytest.approx(best, rel=5e-3)


def test_separable_classes_get_a_lower_temperature_than_random_ones():
    temperatures = []
    for signal in (10.0, 0.0):
        H, T = problem(7, 60, 4, signal=signal)
        temperatures.append(temperature_of(H, fitted_head(H, T, 1.0, True), T, 1.0, True))
    assert temperatures[0] < 0.5 * temperatures[1]


@pytest.mark.thorough
def test_leaving_rows_out_gives_better_probabilities_of_new_rows_than_the_training_scores_would():
    """On tasks of few rows, over many draws: the purpose of leave-one-out scores."""
    gains = []
    for seed in range(40):
        H, T = problem(seed, 60, 15, signal=1.0)
        (H, H_new), (T, T_new) = np.split(H, [20]), np.split(T, [20])
        if (T.sum(axis=0) == 0).any():
            continue
        head = fitted_head(H, T, 1.0, intercept=True)
        temperature = temperature_of(H, head, T, 1.0, intercept=True)
        grid = np.geomspace(1e-2, 1e1, 500)
        naive = grid[int(np.argmin(log_loss(head.scores(H), T, grid)))]
        gains.append(log_loss(head.scores(H_new), T_new, naive) - log_loss(head.scores(H_new), T_new, temperature))
    assert len(gains) > 20
    assert np.mean(gains) > 4 * np.std(gains) / np.sqrt(len(gains))


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("solver_and_tolerance", "fit_intercept"),
    one_of(
        2,
        [
            (LocalELM(mu=0.3), 1e-6),
            (MeshELM(common=False, private=False, rank=3, mu2=0.3, graph=None), 1e-6),
            (MTLELM(rank=3, mu2=0.3), 1e-6),
            (MTFL(mu=0.3), 1e-6),
            (DGSP(rank=3, mu=0.3), 1e-6),
            (DNSP(rank=3, mu=0.3), 1e-6),
            (MeshELM(common=False, private=False, rank=3, mu2=0.3), 1e-6),
            (DMTLELM(rank=3, mu2=0.3, tol=1e-6, max_iter=10_000), 1e-6),
            # Stopped earlier, A is approximately that of a refit, and so are its leave-one-out scores.
            (DMTLELM(rank=3, mu2=0.3), 1e-3),
        ],
        [True, False],
    ),
)
def test_every_solvers_temperature_agrees_with_refits_of_the_private_coefficients(solver_and_tolerance, fit_intercept):
    """The estimator, end to end: U as it came out of the fit, A refitted without each row, by brute force."""
    solver, within = solver_and_tolerance
    rng = np.random.default_rng(0)
    tasks = np.repeat(["a", "b", "c"], [15, 20, 40])
    X = rng.normal(size=(75, 4))
    y = np.argmax(X[:, :3] + 0.5 * rng.normal(size=(75, 3)), axis=1)
    model = MultiTaskELMClassifier(n_hidden=12, solver=solver, fit_intercept=fit_intercept, random_state=0)
    model.fit(X, y, tasks=tasks)
    targets, _ = one_hot(y, group_rows(tasks, len(y)))
    for task, head in model.model_.heads.items():
        H = model.model_.layer(X[tasks == task])
        features = H if head.U is None else H @ head.U
        scores = refit_without_each_row(features, targets[task], 0.3, fit_intercept)
        best = log_loss(scores, targets[task], np.geomspace(1e-2, 1e1, 2001)).min()
        assert log_loss(scores, targets[task], head.temperature) == pytest.approx(best, abs=within)


@pytest.mark.thorough
@pytest.mark.parametrize("fit_intercept", [pytest.param(False, marks=pytest.mark.slow), True])
def test_the_temperature_of_sparse_codes_agrees_with_refits_of_them(fit_intercept):
    """As above, with a Lasso: near the best temperature, since leaving out a row may change the features in use."""
    rng = np.random.default_rng(0)
    tasks = np.repeat(["a", "b", "c"], [15, 20, 40])
    X = rng.normal(size=(75, 4))
    y = np.argmax(X[:, :3] + 0.5 * rng.normal(size=(75, 3)), axis=1)
    solver = GOMTL(rank=3, mu2=0.3)
    model = MultiTaskELMClassifier(n_hidden=12, solver=solver, fit_intercept=fit_intercept, random_state=0)
    model.fit(X, y, tasks=tasks)
    targets, _ = one_hot(y, group_rows(tasks, len(y)))
    for task, head in model.model_.heads.items():
        Z, T = model.model_.layer(X[tasks == task]) @ head.U, targets[task]
        scores, _ = refit_lasso_without_each_row(Z, T, 0.3, fit_intercept)
        best = log_loss(scores, T, np.geomspace(1e-2, 1e1, 2001)).min()
        assert log_loss(scores, T, head.temperature) == pytest.approx(best, abs=5e-3)


# ------------------------------------------------------------------------------------------------------ probabilities

score_tables = arrays(np.float64, st.tuples(st.integers(1, 6), st.integers(2, 6)), elements=st.floats(-1e3, 1e3))


@given(scores=score_tables, temperature=st.floats(1e-2, 1e1))
def test_probabilities_sum_to_one_and_rise_with_the_scores(scores, temperature):
    shares = probabilities(scores, temperature)
    assert shares.shape == scores.shape
    assert ((shares >= 0) & (shares <= 1)).all()
    np.testing.assert_allclose(shares.sum(axis=1), 1.0, rtol=1e-12)
    for row, share in zip(scores, shares, strict=True):
        assert (np.diff(share[np.argsort(row, kind="stable")]) >= -1e-15).all()


@given(scores=score_tables, by=st.floats(-100, 100))
def test_a_constant_added_to_all_scores_of_a_row_changes_no_probability(scores, by):
    np.testing.assert_allclose(probabilities(scores + by, 0.5), probabilities(scores, 0.5), atol=1e-10)


def test_a_higher_temperature_makes_probabilities_more_equal():
    scores = np.array([[0.9, 0.1, 0.0]])
    sharp, dull = probabilities(scores, 0.1), probabilities(scores, 10.0)
    assert sharp[0, 0] > 0.99
    assert np.ptp(dull) < 0.04


def test_without_a_temperature_it_is_one():
    scores = np.array([[0.3, 0.1]])
    np.testing.assert_array_equal(probabilities(scores, None), probabilities(scores, 1.0))
