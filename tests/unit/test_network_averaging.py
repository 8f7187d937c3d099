"""Federated averaging of networks: gradients by finite differences, rounds by a loop over rows, what is sent."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import log_softmax

import elmesh
from elmesh import FedAvgNetwork, FedPer, MultiTaskELMClassifier, MultiTaskELMRegressor, RunConfig
from elmesh.comm.graph import make_topology
from elmesh.data.features import FeatureMap, TrainedLayer, features_from_json
from elmesh.data.statistics import SiteRows
from elmesh.errors import ElmeshError
from elmesh.math.hidden_network import NetworkRows, network_loss
from elmesh.run import StopReason, run_local
from elmesh.solvers import make_solver
from elmesh.solvers.base import GroupedFeatures
from helpers.examples import examples

seeds = st.integers(0, 10**6)
SOLVERS = [FedAvgNetwork, FedPer]
INPUTS, CLASSES = 3, 3


def sites_of(seed: int, *, classes: bool, sizes=(7, 12, 4)) -> list[SiteRows]:
    """Rows of sites: a constant and inputs, as features in groups are scaled."""
    rng = np.random.default_rng(seed)
    sites = []
    for n in sizes:
        Phi = np.hstack([np.ones((n, 1)), rng.normal(size=(n, INPUTS)) / np.sqrt(INPUTS)])
        T = np.eye(CLASSES)[rng.integers(0, CLASSES, n)] if classes else rng.normal(size=(n, 2))
        sites.append(SiteRows(Phi, T, np.zeros(T.shape[1]), float(n), np.ones(n)))
    return sites


def run(solver, sites: list[SiteRows], *, classes: bool, seed: int = 5, callback=None):
    features = GroupedFeatures(np.repeat([0, 1], [1, INPUTS]), classes=classes)
    topology = make_topology("star", range(len(sites)))
    return run_local(solver, sites, topology, seed, RunConfig(callback=callback), features=features)


def start_of(solver, sites: list[SiteRows], *, classes: bool, seed: int = 5):
    """The network before the first round."""
    seen = []
    run(solver, sites, classes=classes, seed=seed, callback=lambda progress: seen.append(progress.solution))
    return seen[0]


def loss_of_rows(Phi, T, B, C, *, classes: bool) -> float:
    """The mean loss of rows, one after the other."""
    total = 0.0
    for x, t in zip(Phi, T, strict=True):
        f = np.concatenate([[1.0], np.tanh(x @ B)]) @ C
        total += -float(t @ log_softmax(f)) if classes else 0.5 * float(np.sum((f - t) ** 2))
    return total / len(Phi)


def numerical_gradient(function, x: np.ndarray) -> np.ndarray:
    h, slope = 1e-6, np.zeros_like(x)
    for index in np.ndindex(x.shape):
        step = np.zeros_like(x)
        step[index] = h
        slope[index] = (function(x + step) - function(x - step)) / (2 * h)
    return slope


# --- The loss ---------------------------------------------------------------------------------------------------------


def padded_rows(seed: int, *, classes: bool) -> NetworkRows:
    """Three sites of unequal rows; the last one lacks the last column of targets, and some rows count twice."""
    rng = np.random.default_rng(seed)
    Phi, w = rng.normal(size=(3, 6, 4)), rng.integers(1, 3, size=(3, 6, 1)).astype(float)
    w[1, 4:] = w[2, 2:] = 0.0
    columns = np.ones((3, 1, CLASSES), dtype=bool)
    columns[2, 0, -1] = False
    T = rng.normal(size=(3, 6, CLASSES)) * columns
    if classes:
        T = np.eye(CLASSES)[rng.integers(0, [[CLASSES], [CLASSES], [CLASSES - 1]], size=(3, 6))]
    total = w.sum(axis=1, keepdims=True)
    return NetworkRows(np.arange(3), Phi, T * (w > 0), w / total, total[:, 0, 0], columns, True, classes)


@examples(6)
@given(seeds, st.booleans(), st.booleans())
def test_loss_and_gradient_are_those_of_single_rows_and_finite_differences(seed, classes, constant):
    rows = replace(padded_rows(seed, classes=classes), constant=constant)
    rng = np.random.default_rng(seed + 1)
    B, C = rng.normal(size=(3, 4, 2)), rng.normal(size=(3, 2 + constant, CLASSES))
    loss, (slope_B, slope_C) = network_loss(rows, B, C)
    for t, k in enumerate((CLASSES, CLASSES, CLASSES - 1)):
        count = np.round(rows.share[t, :, 0] * rows.n_rows[t]).astype(int)
        Phi, T = (np.repeat(x[t], count, axis=0) for x in (rows.Phi, rows.T[..., :k]))
        head = C[t, :, :k] if constant else np.vstack([np.zeros((1, k)), C[t, :, :k]])
        assert loss[t] == pytest.approx(loss_of_rows(Phi, T, B[t], head, classes=classes))
    # Columns that a site lacks have no effect.
    assert not slope_C[2, :, -1].any()
    numerical = numerical_gradient(lambda x: network_loss(rows, x, C)[0].sum(), B)
    np.testing.assert_allclose(slope_B, numerical, atol=1e-7)
    numerical = numerical_gradient(lambda x: network_loss(rows, B, x)[0].sum(), C)
    np.testing.assert_allclose(slope_C, numerical, atol=1e-7)


# --- The rounds -------------------------------------------------------------------------------------------------------


def by_hand(solver, sites, B, C, n_rounds: int, *, classes: bool):
    """Rounds as the paper has them, with numerical gradients of the loss of rows."""
    N, heads = sum(len(site.Phi) for site in sites), [C] * len(sites)
    for _ in range(n_rounds):
        mean_B, mean_C, own_heads = np.zeros_like(B), np.zeros_like(C), []
        for site, head in zip(sites, heads, strict=True):
            Phi = site.Phi * np.sqrt([1.0, *[INPUTS] * INPUTS])
            b, c, vb, vc = B, head, np.zeros_like(B), np.zeros_like(C)
            for _ in range(solver.local_steps):
                gb = numerical_gradient(lambda x, c=c, P=Phi, s=site: loss_of_rows(P, s.T, x, c, classes=classes), b)
                gc = numerical_gradient(lambda x, b=b, P=Phi, s=site: loss_of_rows(P, s.T, b, x, classes=classes), c)
                vb = solver.momentum * vb + gb + solver.decay * b
                vc = solver.momentum * vc + gc + solver.decay * c
                b, c = b - solver.step_size * vb, c - solver.step_size * vc
            share = len(Phi) / N
            mean_B, mean_C = mean_B + share * b, mean_C + share * c
            own_heads.append(c)
        B, heads = mean_B, own_heads if solver.private_heads else [mean_C] * len(sites)
    return B, heads


@pytest.mark.parametrize("classes", [False, True])
@pytest.mark.parametrize("cls", SOLVERS)
def test_rounds_are_those_of_a_loop_over_rows(cls, classes):
    solver = cls(n_units=2, step_size=0.2, momentum=0.5, decay=0.1, local_steps=2, max_iter=2)
    sites = sites_of(1, classes=classes)
    start = start_of(solver, sites, classes=classes)
    units = np.sqrt([1.0, *[INPUTS] * INPUTS])[:, None]
    B, heads = by_hand(solver, sites, start.hidden / units, start.A[0], 2, classes=classes)
    found = run(solver, sites, classes=classes)
    np.testing.assert_allclose(found.solution.hidden, units * B, atol=1e-7)
    for own, head in zip(found.solution.A, heads, strict=True):
        np.testing.assert_allclose(own, head, atol=1e-7)
    assert found.stop is StopReason.COMPLETED
    total = sum(
        len(site.Phi) * loss_of_rows(site.Phi * units.T, site.T, B, head, classes=classes)
        for site, head in zip(sites, heads, strict=True)
    )
    assert found.history["objective"].iloc[-1] == pytest.approx(total, rel=1e-6)


def test_all_sites_start_from_the_same_network_which_the_seed_determines():
    sites, solver = sites_of(0, classes=False), FedPer(n_units=4, max_iter=1)
    one, same, other = (start_of(solver, sites, classes=False, seed=seed) for seed in (3, 3, 4))
    assert all(np.array_equal(head, one.A[0]) for head in one.A)
    np.testing.assert_array_equal(one.hidden, same.hidden)
    assert not np.array_equal(one.hidden, other.hidden)


def test_what_is_sent_is_the_hidden_layer_and_the_head_only_if_it_is_common():
    sites, m = sites_of(0, classes=False), 3
    p, h, d, n_rounds = 1 + INPUTS, 5, 2, 4
    for cls, size in ((FedPer, p * h), (FedAvgNetwork, p * h + (1 + h) * d)):
        traffic = run(cls(n_units=h, max_iter=n_rounds), sites, classes=False).traffic
        messages = traffic.total - traffic.table(range(m))["metric_bytes"].sum()
        # To the hub and back, in doubles; first the numbers of rows.
        assert messages == 2 * (m - 1) * 8 * (1 + n_rounds * size)


def test_few_bits_take_fewer_bytes_and_change_little():
    sites = sites_of(2, classes=False, sizes=(30, 30, 30))
    full, coarse = (run(FedPer(max_iter=40, message_bits=bits), sites, classes=False) for bits in (64, 8))
    assert coarse.traffic.total < 0.3 * full.traffic.total
    np.testing.assert_allclose(coarse.history["objective"].iloc[-1], full.history["objective"].iloc[-1], rtol=0.02)


def test_statistics_in_place_of_rows_are_refused():
    sites = [SiteRows.from_rows(site.Phi, site.T) for site in sites_of(0, classes=False, sizes=(20, 30))]
    with pytest.raises(TypeError, match="needs the rows"):
        run(FedPer(), sites, classes=False)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"n_units": 0}, "n_units must be"),
        ({"step_size": 0.0}, "step_size must be"),
        ({"decay": -1.0}, "decay must be"),
        ({"momentum": 1.0}, "momentum must be below 1"),
        ({"local_steps": 0}, "local_steps must be"),
    ],
)
@pytest.mark.parametrize("cls", SOLVERS)
def test_invalid_parameters_are_refused(cls, parameters, message):
    with pytest.raises(ElmeshError, match=message):
        make_solver(cls(**parameters))


# --- Estimators -------------------------------------------------------------------------------------------------------


def table(n: int = 90) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    X, sites = 5 + 2 * rng.normal(size=(n, 2)), np.array(["ash", "beech", "cedar"])[np.arange(n) % 3]
    return X, 100 + 10 * np.sin(X[:, 0]) * np.where(sites == "cedar", -1.0, 1.0), sites


def test_a_site_that_is_different_needs_a_head_of_its_own():
    X, y, sites = table(300)
    common, personal = (
        MultiTaskELMRegressor(solver=cls(), random_state=0).fit(X, y, sites).score(X, y, sites) for cls in SOLVERS
    )
    assert personal > 0.8
    assert personal > common + 0.3


def test_hidden_units_can_be_trained_on_top_of_random_ones_and_without_an_intercept():
    X, y, sites = table()
    model = MultiTaskELMRegressor(n_hidden=20, solver=FedPer(n_units=4), fit_intercept=False, random_state=0)
    layer = model.fit(X, y, sites).model_.layer
    assert isinstance(layer, TrainedLayer)
    assert layer.base.width == 22
    assert layer.width == 4
    model = MultiTaskELMRegressor(solver=FedPer(n_units=4), random_state=0).fit(X, y, sites)
    assert (model.model_.layer.base.width, model.model_.layer.width) == (3, 5)


@pytest.mark.parametrize("cls", SOLVERS)
def test_a_row_of_weight_two_counts_as_two_rows(cls):
    X, y, sites = table(30)
    weights = np.where(np.arange(30) % 4 == 0, 2.0, 1.0)
    solver = cls(max_iter=5)
    weighted = MultiTaskELMRegressor(solver=solver, clip=None, random_state=0).fit(X, y, sites, sample_weight=weights)
    again = np.repeat(np.arange(30), weights.astype(int))
    repeated = MultiTaskELMRegressor(solver=solver, clip=None, random_state=0).fit(X[again], y[again], sites[again])
    np.testing.assert_allclose(weighted.predict(X, sites), repeated.predict(X, sites), rtol=1e-8)


def test_probabilities_are_the_softmax_that_was_trained_and_sites_may_differ_in_classes():
    X, y, sites = table(300)
    labels = np.digitize(y, [97.0, 103.0])
    keep = ~((sites == "ash") & (labels == 2))
    X, labels, sites = X[keep], labels[keep], sites[keep]
    model = MultiTaskELMClassifier(solver=FedPer(), random_state=0).fit(X, labels, sites)
    assert model.score(X, labels, sites) > 0.75
    shares = model.predict_proba(X, sites)
    assert not shares[sites == "ash", 2].any()
    own = sites == "beech"
    scores = model.model_.layer(X[own]) @ model.A_["beech"]
    np.testing.assert_allclose(np.log(shares[own]), log_softmax(scores, axis=1))
    with pytest.raises(ElmeshError, match="all of them must have the same classes"):
        MultiTaskELMClassifier(solver=FedAvgNetwork()).fit(X, labels, sites)


def test_a_trained_layer_is_saved_and_read_to_the_bit_and_a_damaged_one_is_refused(tmp_path):
    X, y, sites = table()
    model = MultiTaskELMRegressor(solver=FedAvgNetwork(max_iter=3), random_state=0).fit(X, y, sites)
    model.save(tmp_path / "model")
    loaded = elmesh.load(tmp_path / "model")
    np.testing.assert_array_equal(loaded.predict(X, sites), model.predict(X, sites))
    fields = model.model_.layer.to_json()
    assert np.array_equal(features_from_json(fields)(X), model.model_.layer(X))
    for broken in ({**fields, "B": fields["B"][1:]}, {**fields, "more": 1}, {**fields, "base": 3}):
        with pytest.raises(ElmeshError):
            features_from_json(broken)
    with pytest.raises(ElmeshError, match="finite"):
        TrainedLayer(FeatureMap(np.zeros(1)), np.full((2, 1), np.nan))


def test_later_rows_are_learned_as_if_they_had_been_there():
    X, y, sites = table()
    model = MultiTaskELMRegressor(solver=FedPer(max_iter=5), random_state=0).fit(X[:60], y[:60], sites[:60])
    base = model.model_.layer.base
    model.partial_fit(X[60:], y[60:], sites[60:])
    assert model.sites_["rows"].tolist() == [30, 30, 30]
    np.testing.assert_array_equal(model.model_.layer.base.mean, base.mean)
    assert model.n_iter_ == 5


def test_of_many_rows_a_sample_stands_for_all():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(5000, 1))
    sites = np.where(np.arange(5000) < 4900, "large", "small")
    y = np.abs(X[:, 0]) + 0.1 * rng.normal(size=5000)
    model = MultiTaskELMRegressor(solver=FedAvgNetwork(max_iter=20), random_state=0)
    assert model.fit(X, y, sites, run=RunConfig()).score(X, y, sites) > 0.9
    assert model.sites_["rows"].tolist() == [4900, 100]
