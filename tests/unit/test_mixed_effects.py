"""Common and private parts: against Gaussian processes and ridge regressions, certified, equal to the bit, saved."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import Kernel
from sklearn.linear_model import Ridge

import elmesh
from elmesh import LocalELM, MeshELM, MultiTaskELMClassifier, MultiTaskELMRegressor
from elmesh.comm.graph import make_topology
from elmesh.errors import ElmeshError
from elmesh.run.runner import agent_context
from elmesh.solvers.base import Problem
from elmesh.solvers.mixed_effects import effects_bound, objective_shares, private_weights
from helpers.examples import examples
from helpers.mixed import digest, make_problem, mixed_problems, run_steps, solve_mixed

pytestmark = pytest.mark.thorough

GRAPHS = ("ring", "star", "path", None)


def tables(seed=0, outputs=1, sites=("a", "b", "c", "d")):
    """Rows of sites with slopes, intercepts and noise of their own."""
    rng = np.random.default_rng(seed)
    X, y, site = [], [], []
    for name, rows, noise in zip(sites, (12, 20, 28, 36), (0.2, 1.5, 0.3, 1.0), strict=True):
        x = rng.normal(size=(rows, 3))
        weights = np.array([[1.0, -2.0, 0.5]] * outputs).T + 0.4 * rng.normal(size=(3, outputs))
        curve = np.sin(2 * x[:, :1]) + rng.normal(size=outputs)
        X.append(x)
        y.append(x @ weights + curve + noise * rng.normal(size=(rows, outputs)))
        site += [name] * rows
    y = np.vstack(y)
    return np.vstack(X), y[:, 0] if outputs == 1 else y, np.array(site)


def fitted(X, y, site, n_hidden=24, **solver):
    return MultiTaskELMRegressor(n_hidden, solver=MeshELM(**solver), random_state=0).fit(X, y, tasks=site)


# Gaussian processes --------------------------------------------------------------------------------------------------


class SiteKernel(Kernel):
    """The covariance of the common and the private part, in units of the noise; rows are a site's number and inputs."""

    def __init__(self, features, c, v, w):
        self.features, self.c, self.v, self.w = features, c, v, w

    def __call__(self, X, Y=None, eval_gradient=False):
        Y = X if Y is None else Y
        left, right = self.features(X[:, 1:]), self.features(Y[:, 1:])
        same = X[:, :1] == Y[:, 0]
        return left * self.c @ right.T + same * (left * self.v @ right.T) / self.w[X[:, 0].astype(int)][:, None]

    def diag(self, X):
        return np.diag(self(X))

    def is_stationary(self):
        return False


def gaussian_process(model, X, y, site, X_new, site_new):
    """Exact predictions and standard deviations at the variances of a fitted model; other sites are one more."""
    common, layer, names = model.model_.common, model.model_.layer, list(model.model_.heads)
    w = np.exp([*(head.log_w for head in model.model_.heads.values()), 0.0])
    c, v = np.exp(common.log_c)[layer.groups], np.exp(common.log_v)[layer.groups]

    def rows(X, site):
        return np.column_stack([[names.index(t) if t in names else len(names) for t in site], X])

    train, new = rows(X, site), rows(X_new, site_new)
    noise, noise_new = (1 / w[table[:, 0].astype(int)] for table in (train, new))
    process = GaussianProcessRegressor(SiteKernel(layer, c, v, w), alpha=noise, optimizer=None)
    y = np.reshape(y, (len(X), -1)) - common.t_mean
    mean, deviation = process.fit(train, y).predict(new, return_std=True)
    # The logarithm of a site's noise is uncertain, the less so the more rows it has: the mean of the noise is larger.
    n_rows = np.array([np.sum(site == t) for t in site_new])
    uncertain = 1 / (1 / common.tau2 + n_rows * len(common.s2) / 2) if common.tau2 else np.zeros(len(new))
    noise_new = noise_new * np.exp(uncertain / 2)
    variance = (deviation.reshape(len(new), -1)[:, :1] ** 2 + noise_new[:, None]) * common.s2
    return mean.reshape(len(new), -1) + common.t_mean, np.sqrt(variance)


@pytest.mark.parametrize("outputs", [1, 2])
@pytest.mark.parametrize("solver", [{}, {"private": False}, {"common": False}], ids=["both", "common", "private"])
def test_predictions_and_deviations_are_those_of_a_gaussian_process(outputs, solver):
    X, y, site = tables(outputs=outputs)
    X_new = np.random.default_rng(9).normal(size=(40, 3))
    site_new = np.array(["a", "c", "d", "elsewhere"])[np.arange(40) % 4]
    model = fitted(X, y, site, rank=0, **solver)
    if not solver:
        noise = np.array([model.noise_[t][0] for t in "abcd"])
        assert noise.max() > 1.5 * noise.min(), "sites have equal noise, so that nothing is tested"
    expected = gaussian_process(model, X, y, site, X_new, site_new)
    found = model.predict(X_new, tasks=site_new, return_std=True)
    for value, exact in zip(found, expected, strict=True):
        np.testing.assert_allclose(value.reshape(exact.shape), exact, rtol=1e-8, atol=1e-8 * np.std(y))


# Parts switched off --------------------------------------------------------------------------------------------------


def test_without_a_private_part_it_is_a_pooled_ridge_regression():
    X, y, site = tables()
    model = fitted(X, y, site, private=False)
    common, layer = model.model_.common, model.model_.layer
    root = np.exp(common.log_c / 2)[layer.groups]
    ridge = Ridge(1.0, fit_intercept=False, solver="svd").fit(layer(X) * root, y - y.mean())
    expected = ridge.predict(layer(X) * root) + y.mean()
    np.testing.assert_allclose(model.predict(X, tasks=site), expected, rtol=0, atol=1e-8 * np.std(y))
    np.testing.assert_allclose(model.predict(X, tasks=site[::-1]), model.predict(X, tasks=site), rtol=1e-12)
    assert all(np.all(np.abs(V) < 1e-100) for V in model.V_.values())


def test_without_a_common_part_it_is_a_ridge_regression_of_each_site():
    X, y, site = tables()
    model = fitted(X, y, site, common=False)
    layer = model.model_.layer
    root = np.exp(model.model_.common.log_v / 2)[layer.groups]
    for t in "abcd":
        own = site == t
        ridge = Ridge(1.0, fit_intercept=False, solver="svd").fit(layer(X[own]) * root, y[own] - y.mean())
        expected = ridge.predict(layer(X[own]) * root) + y.mean()
        np.testing.assert_allclose(model.predict(X[own], tasks=site[own]), expected, rtol=0, atol=1e-8 * np.std(y))
    assert np.all(np.abs(model.W_) < 1e-100)


def test_with_both_parts_off_there_is_no_common_part():
    X, y, site = tables()
    model = fitted(X, y, site, common=False, private=False)
    assert model.W_ is None
    assert model.model_.common is None
    with pytest.raises(ElmeshError, match="needs a common or a private part"):
        model.predict(X, tasks=site, return_std=True)


@pytest.mark.parametrize("outputs", [1, 2])
def test_a_target_that_never_varies_is_predicted_exactly(outputs):
    X, y, site = tables(outputs=2)
    y[:, -1] = 5.0
    y = y if outputs == 2 else y[:, 1]
    predicted = fitted(X, y, site).predict(X, tasks=site).reshape(len(X), -1)
    np.testing.assert_allclose(predicted[:, -1], 5.0, rtol=1e-12)


# Certificates --------------------------------------------------------------------------------------------------------


def least_objective(problem, effects):
    """The least objective over W and V: half of T'C^-1 T, by the dense covariance of all rows."""
    C, T = problem.covariance(effects.log_c, effects.log_v, effects.log_w), np.vstack(problem.T)
    return 0.5 * float(np.sum(T * np.linalg.solve(C, T)))


def objective_at(problem, effects, V):
    """The objective at W and V, from rows."""
    c, v = (np.exp(log)[problem.groups][:, None] for log in (effects.log_c, effects.log_v))
    total = 0.5 * np.sum(effects.W**2 / c)
    for t, (Phi, T) in enumerate(zip(problem.Phi, problem.T, strict=True)):
        squares = np.sum((T - Phi @ (effects.W + V[t])) ** 2) + np.sum(V[t] ** 2 / v)
        total += 0.5 * np.exp(effects.log_w[t]) * squares
    return float(total)


@examples(40)
@given(mixed_problems(), st.sampled_from([(True, True), (True, False), (False, True)]))
def test_the_certificate_is_tight_and_true(problem, parts):
    common, private = parts
    solution = solve_mixed(MeshELM(common=common, private=private), problem, "path").solution
    made, least = solution.certificate, least_objective(problem, solution.effects)
    # Objectives that are tiny beside the targets have the rounding of these.
    room = 1e-13 * sum(np.sum(T**2) for T in problem.T)
    assert made.gap <= 1e-9
    assert made.lower_bound <= made.objective + room
    assert made.lower_bound <= least * (1 + 1e-9) + room
    assert made.objective == pytest.approx(least, rel=1e-8, abs=room)
    if private and common:
        exact = objective_at(problem, solution.effects, solution.V)
        assert made.objective == pytest.approx(exact, rel=1e-8, abs=room)


@examples(40)
@given(mixed_problems(), st.floats(-3, 1), st.integers(0, 10**6))
def test_a_w_that_is_not_the_best_is_promised_no_more_than_the_truth(problem, log_distance, seed):
    effects = solve_mixed(MeshELM(), problem).solution.effects
    away = 10**log_distance * np.random.default_rng(seed).normal(size=effects.W.shape)
    moved = replace(effects, W=effects.W + away)
    given_ = Problem(
        problem.sites, agent_context(make_topology("ring", range(len(problem.T)), 0), 0), 1, problem.groups
    )
    value, bound = float(np.sum(objective_shares(given_, moved))), run_steps(effects_bound(given_, moved))
    least = least_objective(problem, effects)
    room = 1e-13 * sum(np.sum(T**2) for T in problem.T)
    assert value == pytest.approx(objective_at(problem, moved, private_weights(given_, moved)), rel=1e-8, abs=room)
    assert bound <= least * (1 + 1e-9) + room
    assert value >= least * (1 - 1e-9) - room
    assert value > bound


# Bits ----------------------------------------------------------------------------------------------------------------


def bits(solution, order):
    """All that a solution holds, by name, its sites in a given order."""
    effects = solution.effects
    parts = {name: getattr(effects, name) for name in ("log_c", "log_v", "W", "S", "s2")}
    parts |= {"log_w": effects.log_w[order], "V": solution.V[order], "tau2": np.array(effects.tau2)}
    return {name: digest(value) for name, value in parts.items()} | {"certificate": solution.certificate}


def test_a_fit_is_the_same_to_the_bit_over_every_graph_and_in_every_order_of_sites():
    rows = [6, 9, 30, 4, 12, 7, 1, 26, 9]
    problem = make_problem(7, rows, widths=(1, 3, 12), d=2)
    everything = np.arange(len(rows))
    expected = bits(solve_mixed(MeshELM(), problem, "ring").solution, everything)
    for graph in GRAPHS:
        assert bits(solve_mixed(MeshELM(), problem, graph).solution, everything) == expected, graph
    for seed in range(3):
        order = np.random.default_rng(seed).permutation(len(rows))
        found = solve_mixed(MeshELM(), problem.in_order(order), "star").solution
        assert bits(found, np.argsort(order)) == expected


@pytest.mark.parametrize("bits_per_number", [4, 64])
def test_estimators_predict_the_same_bits_over_every_graph(bits_per_number):
    X, y, site = tables(outputs=2)
    # In one place nothing is sent, and nothing is rounded.
    graphs = GRAPHS if bits_per_number == 64 else [graph for graph in GRAPHS if graph]
    models = [fitted(X, y, site, graph=graph, message_bits=bits_per_number) for graph in graphs]
    expected = digest(*models[0].predict(X, tasks=site, return_std=True))
    for model in models[1:]:
        assert digest(*model.predict(X, tasks=site, return_std=True)) == expected
        assert model.variances_.equals(models[0].variances_)
        assert digest(model.W_) == digest(models[0].W_)


def test_bits_of_messages_change_nothing_in_one_place():
    X, y, site = tables()
    exact, coarse = (fitted(X, y, site, graph=None, message_bits=bits) for bits in (64, 4))
    assert digest(coarse.predict(X, tasks=site)) == digest(exact.predict(X, tasks=site))


@pytest.mark.parametrize("outputs", [1, 2])
def test_sums_of_matrices_in_32_bits_take_half_the_bytes_and_hardly_change_predictions(outputs):
    X, y, site = tables(outputs=outputs)
    exact, coded, coarse = (fitted(X, y, site, graph="ring", message_bits=bits) for bits in (64, 32, 4))
    expected, found = (model.predict(X, tasks=site) for model in (exact, coded))
    np.testing.assert_allclose(found, expected, atol=1e-2 * np.std(expected))
    assert digest(coarse.predict(X, tasks=site)) == digest(found)
    sent, less = (int(model.traffic_["bytes"].sum()) for model in (exact, coded))
    assert sent / 2 < less < sent


# Model files ---------------------------------------------------------------------------------------------------------


def classes_of(y):
    return np.where(y > np.quantile(y, 0.66), "high", np.where(y > np.quantile(y, 0.33), "middle", "low"))


def classifier():
    """A classifier, and its rows: site a has one class, site b two, the others three."""
    X, y, site = tables()
    labels = classes_of(y)
    keep = ~((site == "b") & (labels == "high")) & ~((site == "a") & (labels != labels[0]))
    X, labels, site = X[keep], labels[keep], site[keep]
    return MultiTaskELMClassifier(24, random_state=0).fit(X, labels, tasks=site), X, labels, site


def test_a_saved_regressor_predicts_the_same_bits(tmp_path):
    X, y, site = tables(outputs=2)
    model = fitted(X, y, site)
    model.save(tmp_path / "model")
    loaded = elmesh.load(tmp_path / "model")
    new = np.array(["a", "d", "elsewhere"])[np.arange(len(X)) % 3]
    for tasks in (site, new):
        found, expected = (one.predict(X, tasks=tasks, return_std=True) for one in (loaded, model))
        assert digest(*found) == digest(*expected)
    assert loaded.model_.layer.to_json() == model.model_.layer.to_json()


def test_a_saved_classifier_predicts_the_same_bits(tmp_path):
    model, X, _, site = classifier()
    model.save(tmp_path / "model")
    loaded = elmesh.load(tmp_path / "model")
    new = np.array(["a", "b", "elsewhere"])[np.arange(len(X)) % 3]
    for tasks in (site, new):
        assert loaded.predict(X, tasks=tasks).tolist() == model.predict(X, tasks=tasks).tolist()
        assert digest(loaded.predict_proba(X, tasks=tasks)) == digest(model.predict_proba(X, tasks=tasks))
    for one in (model, loaded):
        assert one.classes_.tolist() == ["high", "low", "middle"]
        # A site with one class, and a site that is not known, choose among all.
        assert [len(one.task_classes_[t]) for t in "abcd"] == [3, 2, 3, 3]
        assert np.all(one.predict_proba(X[:1], tasks=["b"])[:, 0] == 0)
        assert np.all(one.predict_proba(X[:2], tasks=["a", "elsewhere"]) > 0)


@pytest.mark.parametrize("kind", ["regressor", "classifier"])
def test_a_site_s_own_model_holds_nothing_of_the_others_but_the_common_part(kind, tmp_path):
    if kind == "regressor":
        X, y, site = tables(sites=("alpha", "beta", "gamma", "delta"))
        model = fitted(X, y, site)
    else:
        X, y, site = tables(sites=("alpha", "beta", "gamma", "delta"))
        model = MultiTaskELMClassifier(24, random_state=0).fit(X, classes_of(y), tasks=site)
    own = site == "beta"
    alone = model.for_task("beta")
    assert alone.tasks_.tolist() == ["beta"]
    np.testing.assert_array_equal(alone.predict(X[own]), model.predict(X[own], tasks=site[own]))
    alone.save(tmp_path / "alone")
    saved = b"".join(path.read_bytes() for path in sorted((tmp_path / "alone").iterdir()))
    common, head = model.model_.common, model.model_.heads["beta"]
    for part in (common.W, common.S, head.A, head.X):
        assert part.tobytes() in saved
    for name in ("alpha", "gamma", "delta"):
        other = model.model_.heads[name]
        assert name.encode() not in saved
        for part in (other.A, other.X, *other.X):
            assert part.tobytes() not in saved
    loaded = elmesh.load(tmp_path / "alone")
    others = ["alpha"] * int(own.sum())
    # A site's own model is for its own rows.
    with pytest.raises(ElmeshError, match="'alpha' is not known"):
        loaded.predict(X[own], tasks=others)


def test_local_elm_has_neither_a_common_part_nor_deviations():
    X, y, site = tables()
    model = MultiTaskELMRegressor(12, solver=LocalELM(), random_state=0).fit(X, y, tasks=site)
    assert model.model_.common is None
    with pytest.raises(ElmeshError, match="needs a common or a private part"):
        model.predict(X, tasks=site, return_std=True)


@pytest.mark.parametrize("rank", [1, 3])
def test_a_rank_that_would_be_ignored_is_refused(rank):
    with pytest.raises(ElmeshError, match=rf"rank={rank} has no meaning .*; leave rank at \"auto\""):
        MeshELM(common=True, private=False, rank=rank).check()
    MeshELM(common=True, private=True, rank=rank).check()
    MeshELM(rank=rank).check()
