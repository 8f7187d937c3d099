"""Sites as they come: unknown, tiny, with one class, with wild inputs; and the parts of the weights that they share."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from sklearn.base import clone

import elmesh
from elmesh import LocalELM, MeshELM, MultiTaskELMClassifier, MultiTaskELMRegressor
from elmesh.data.features import FeatureMap, HiddenLayer
from elmesh.errors import ElmeshError, UnknownSiteWarning
from helpers.marks import one_of

SITES = ("aix", "bonn", "cork", "dijon", "essen")
KINDS = ("classification", "regression")
COLOURS = np.array(["amber", "blue", "cyan"])


def rows(kind, n=24, seed=0):
    """Rows of five sites whose slopes are alike and whose intercepts differ."""
    rng = np.random.default_rng(seed)
    tasks = np.repeat(SITES, n)
    X = rng.normal(size=(len(tasks), 3))
    y = X[:, 0] - 0.5 * X[:, 1] + 0.3 * X[:, 2] ** 2 + np.repeat(rng.normal(size=5), n) + 0.2 * rng.normal(size=len(X))
    return X, COLOURS[np.digitize(y, [-0.5, 0.8])] if kind == "classification" else y, tasks


def make(kind, **parameters):
    estimator = MultiTaskELMClassifier if kind == "classification" else MultiTaskELMRegressor
    return estimator(**{"n_hidden": 20, "random_state": 0, **parameters})


@pytest.fixture(scope="module")
def fitted():
    """Models of the rows above with nothing set, each fitted once for tests that do not change it."""
    return {kind: make(kind).fit(*rows(kind)) for kind in KINDS}


def table(model, X, tasks):
    """Probabilities, or predictions."""
    return model.predict_proba(X, tasks) if isinstance(model, MultiTaskELMClassifier) else model.predict(X, tasks)


def refusal(call, *args, **kwargs):
    """The one message with which a call refuses its arguments."""
    with pytest.raises(ElmeshError) as caught:
        call(*args, **kwargs)
    return str(caught.value)


# -------------------------------------------------------------------------------------------------------- unknown sites


@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_an_unknown_site_are_predicted_by_the_common_part_without_a_warning_beside_known_ones(fitted, kind):
    X, y, tasks = rows(kind)
    model = fitted[kind]
    sites = np.where(np.arange(len(X)) % 2, tasks, "fulda")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = table(model, X, sites)
    known = sites != "fulda"
    np.testing.assert_array_equal(found[known], table(model, X[known], sites[known]))
    Phi = model.model_.layer(X[~known])
    scores = Phi @ model.W_ + model.model_.common.t_mean
    if kind == "regression":
        np.testing.assert_allclose(found[~known], scores[:, 0], rtol=1e-12)
    else:
        assert model.predict(X, sites)[~known].tolist() == COLOURS[scores.argmax(axis=1)].tolist()
        np.testing.assert_allclose(found[~known].sum(axis=1), 1.0)
    assert model.score(X, y, sites) > 0.3


@pytest.mark.parametrize("kind", KINDS)
def test_a_warning_says_that_all_rows_are_of_unknown_sites(fitted, kind):
    X, _, _ = rows(kind)
    model = fitted[kind]
    with pytest.warns(
        UnknownSiteWarning, match=r"Tasks 'fulda', 'gent' are not known; .*what the tasks have in common"
    ):
        model.predict(X[:2], ["fulda", "gent"])


def test_a_warning_says_that_labels_are_of_another_type():
    X, y, tasks = rows("regression")
    numbers = np.array([SITES.index(t) for t in tasks])
    model = make("regression").fit(X, y, numbers)
    with pytest.warns(UnknownSiteWarning, match="give the labels as they were then"):
        model.predict(X, [str(t) for t in numbers])


@pytest.mark.parametrize(
    ("kind", "parameters"),
    one_of(2, KINDS, [{"unknown_site": "error"}, {"solver": LocalELM()}, {"solver": "dmtl-elm"}]),
)
def test_an_unknown_site_is_an_error_on_request_and_where_there_is_no_common_part(kind, parameters):
    X, y, tasks = rows(kind)
    model = make(kind, **parameters).fit(X, y, tasks)
    assert "Task 'fulda' is not known" in refusal(model.predict, X[:2], ["fulda", "aix"])


def test_unknown_site_is_checked():
    X, y, tasks = rows("regression")
    assert "unknown_site" in refusal(make("regression", unknown_site="guess").fit, X, y, tasks)


def test_the_deviation_of_an_unknown_site_is_larger_than_that_of_a_known_one_and_covers_new_rows():
    X, y, tasks = rows("regression", n=60)
    fresh, truth, sites = rows("regression", n=60, seed=0)
    keep = tasks != "essen"
    model = make("regression").fit(X[keep], y[keep], tasks[keep])
    mine = sites == "essen"
    with pytest.warns(UnknownSiteWarning):
        mean, deviation = model.predict(fresh[mine], sites[mine], return_std=True)
    _, known = model.predict(fresh[mine], ["aix"] * mine.sum(), return_std=True)
    assert (deviation > known).all()
    # The intercepts of sites differ by about one, their noise is 0.2: nearly all rows are within three deviations.
    assert np.mean(np.abs(mean - truth[mine]) < 3 * deviation) > 0.95


def test_deviations_need_a_common_or_a_private_part():
    X, y, tasks = rows("regression")
    model = make("regression", solver=MeshELM(common=False, private=False)).fit(X, y, tasks)
    assert "standard deviation" in refusal(model.predict, X, tasks, return_std=True)


# ------------------------------------------------------------------------------------------- sites with little in them


@pytest.mark.parametrize(("kind", "solver"), one_of(2, KINDS, ["mesh-elm", MeshELM(rank=2, mu1=0.1, mu2=0.1)]))
def test_a_site_of_one_row_takes_part(kind, solver):
    X, y, tasks = rows(kind)
    keep = np.flatnonzero((tasks != "cork") | (np.arange(len(X)) == np.flatnonzero(tasks == "cork")[0]))
    model = make(kind, solver=solver).fit(X[keep], y[keep], tasks[keep])
    others = tasks != "cork"
    assert model.score(X[others], y[others], tasks[others]) > 0.7
    # Its own row moves it from the others' mean; what is common carries it to its other rows.
    assert model.score(X[~others], y[~others], tasks[~others]) > 0.4


def test_a_site_of_one_row_is_too_small_for_the_papers_problem():
    X, y, tasks = rows("regression")
    keep = np.flatnonzero((tasks != "cork") | (np.arange(len(X)) == np.flatnonzero(tasks == "cork")[0]))
    model = make("regression", solver=MeshELM(common=False, private=False))
    assert "at least 2 rows" in refusal(model.fit, X[keep], y[keep], tasks[keep])


def test_a_site_of_one_class_chooses_among_all_classes():
    X, _, tasks = rows("classification")
    y = np.where(X[:, 0] > 0.5 * X[:, 1], "cyan", "amber")
    mine = tasks == "cork"
    keep = ~mine
    keep[np.flatnonzero(mine & (y == "cyan"))[:2]] = True
    model = make("classification").fit(X[keep], y[keep], tasks[keep])
    assert model.task_classes_["cork"].tolist() == ["amber", "cyan"]
    shares = model.predict_proba(X[mine], tasks[mine])
    np.testing.assert_allclose(shares.sum(axis=1), 1.0)
    assert (shares > 0).all()
    # It has seen two rows of cyan alone, and yet knows amber from the other sites.
    assert model.score(X[mine], y[mine], tasks[mine]) > 0.8


def test_a_class_that_a_site_lacks_is_impossible_there():
    X, y, tasks = rows("classification")
    y[(tasks == "cork") & (y == "amber")] = "blue"
    model = make("classification").fit(X, y, tasks)
    assert model.task_classes_["cork"].tolist() == ["blue", "cyan"]
    mine = tasks == "cork"
    assert (model.predict_proba(X[mine], tasks[mine])[:, 0] == 0).all()
    assert (model.decision_function(X[mine], tasks[mine])[:, 0] == -np.inf).all()
    assert (model.predict_proba(X[~mine], tasks[~mine])[:, 0] > 0).all()


def test_one_class_in_all_is_an_error():
    X, _, tasks = rows("classification")
    assert "two classes" in refusal(make("classification").fit, X, ["blue"] * len(X), tasks)


@pytest.mark.parametrize("solver", ["mesh-elm", "local-elm"])
def test_a_site_whose_target_never_changes_is_predicted_and_does_not_spoil_the_others(solver):
    X, y, tasks = rows("regression", n=40)
    mine = tasks == "cork"
    before = make("regression", solver=solver).fit(X, y, tasks).predict(X[~mine], tasks[~mine])
    y = np.where(mine, 5.0, y)
    model = make("regression", solver=solver).fit(X, y, tasks)
    np.testing.assert_allclose(model.predict(X[mine], tasks[mine]), 5.0, atol=0.25)
    assert np.sqrt(np.mean((model.predict(X[~mine], tasks[~mine]) - before) ** 2)) < 0.25 * y[~mine].std()


def test_one_of_two_outputs_may_be_the_same_everywhere():
    X, y, tasks = rows("regression")
    model = make("regression").fit(X, np.column_stack([y, np.full_like(y, 3.0)]), tasks)
    found, deviation = model.predict(X, tasks, return_std=True)
    np.testing.assert_allclose(found[:, 1], 3.0, atol=1e-9)
    assert (deviation[:, 1] < 1e-3).all()
    assert np.corrcoef(found[:, 0], y)[0, 1] > 0.9


@pytest.mark.parametrize("kind", KINDS)
def test_targets_without_noise_are_fitted(kind):
    X, _, tasks = rows(kind)
    y = X[:, 0] + 2.0 if kind == "regression" else COLOURS[(X[:, 0] > 0).astype(int)]
    model = make(kind, clip=None).fit(X, y, tasks)
    assert model.score(X, y, tasks) > (1 - 1e-6 if kind == "regression" else 0.9)


# ---------------------------------------------------------------------------------------------------- classes in common


def test_classes_are_shared_if_two_sites_have_one_and_on_request(fitted):
    X, y, tasks = rows("classification")
    apart = np.array([f"{t} {c}" for t, c in zip(tasks, y, strict=True)])
    shared = fitted["classification"]
    named = make("classification", shared_classes=True).fit(X, y, tasks)
    np.testing.assert_array_equal(shared.predict_proba(X, tasks), named.predict_proba(X, tasks))
    assert shared.W_.shape[1] == 3
    other = make("classification", shared_classes=False).fit(X, y, tasks)
    for model in (make("classification").fit(X, apart, tasks), other):
        # Without common classes there is nothing common: U is what sites share, as in the paper.
        assert model.W_ is None
        assert model.model_.common is None
        assert isinstance(model.model_.layer, HiddenLayer)
    paper = make("classification", solver=MeshELM(common=False, private=False))
    same = paper.fit(X, y, tasks)
    np.testing.assert_array_equal(same.predict_proba(X, tasks), other.predict_proba(X, tasks))


def test_with_classes_that_are_not_shared_each_site_needs_two():
    X, y, tasks = rows("classification")
    keep = (tasks != "cork") | (y == "blue")
    model = make("classification", shared_classes=False)
    assert "task 'cork' has 'blue'" in refusal(model.fit, X[keep], y[keep], tasks[keep])


@pytest.mark.parametrize("part", [{"common": True}, {"private": True}])
def test_parts_that_need_common_classes_are_refused_without_them(part):
    X, y, tasks = rows("classification")
    model = make("classification", shared_classes=False, solver=MeshELM(**part))
    assert "shared_classes=True" in refusal(model.fit, X, y, tasks)


def test_shared_classes_is_checked():
    X, y, tasks = rows("classification")
    assert "shared_classes" in refusal(make("classification", shared_classes="some").fit, X, y, tasks)


# ----------------------------------------------------------------------------------------------------------- features


@pytest.mark.parametrize("kind", KINDS)
def test_an_input_beyond_the_limit_changes_a_prediction_no_more_than_the_limit_does(fitted, kind):
    X, _, _ = rows(kind)
    model = fitted[kind]
    mean, spread = X.mean(axis=0), X.std(axis=0)
    for side in (-1, 1):
        at_limit, beyond = np.tile(mean, (3, 1)), np.tile(mean, (3, 1))
        at_limit[range(3), range(3)] += side * 3.0 * spread
        beyond[range(3), range(3)] += side * np.array([3.1, 50.0, 1e6]) * spread
        sites = ["aix", "bonn", "elsewhere"]
        np.testing.assert_allclose(table(model, beyond, sites), table(model, at_limit, sites), atol=1e-9)


def test_without_clip_an_outlying_input_is_extrapolated_and_a_given_limit_is_kept():
    X, y, tasks = rows("regression")
    far = np.array([[1e4, 0.0, 0.0]])
    assert abs(make("regression", clip=None).fit(X, y, tasks).predict(far, ["aix"])[0]) > 100
    limited = make("regression", clip=1.5).fit(X, y, tasks)
    at_limit = X.mean(axis=0) * [0, 1, 1] + np.array([X[:, 0].mean() + 1.5 * X[:, 0].std(), 0, 0])
    far[0, 1:] = at_limit[1:]
    np.testing.assert_allclose(limited.predict(far, ["aix"]), limited.predict([at_limit], ["aix"]), atol=1e-9)
    for wrong in (0.0, -1.0, "much"):
        assert "clip" in refusal(make("regression", clip=wrong).fit, X, y, tasks)


@pytest.mark.parametrize(("kind", "solver"), one_of(2, KINDS, ["mesh-elm", "local-elm"]))
def test_without_hidden_units_the_features_are_the_constant_and_the_inputs(kind, solver):
    X, y, tasks = rows(kind)
    model = make(kind, n_hidden=None, solver=solver).fit(X, y, tasks)
    assert model.model_.layer.groups.tolist() == [0, 1, 1, 1]
    assert model.score(X, y, tasks) > 0.6
    # Even if direct links are switched off: there is nothing else.
    again = clone(model).set_params(direct_links=False).fit(X, y, tasks)
    np.testing.assert_array_equal(table(again, X, tasks), table(model, X, tasks))


@pytest.mark.parametrize(
    ("weight_scale", "widths"),
    [
        ("auto", {1.0: 10, 4.0: 10}),
        pytest.param(2.0, {2.0: 20}, marks=pytest.mark.slow),
        ((0.5, 1.0, 8.0), {0.5: 7, 1.0: 7, 8.0: 6}),
        pytest.param([3], {3.0: 20}, marks=pytest.mark.slow),
    ],
)
def test_hidden_units_are_divided_among_the_scales_of_weights(weight_scale, widths, tmp_path):
    X, y, tasks = rows("regression")
    model = make("regression", weight_scale=weight_scale).fit(X, y, tasks)
    layers = model.model_.layer.layers
    assert {layer.weight_scale: layer.width for layer in layers} == widths
    assert len({layer.seed for layer in layers}) == len(layers)
    for layer in layers:
        weights, _ = layer.weights
        assert np.abs(weights).max() <= layer.weight_scale
        assert np.abs(weights).max() > 0.8 * layer.weight_scale
    names = [f"hidden, weight scale {scale:g}" for scale in widths]
    assert model.variances_.index.tolist() == ["constant", "inputs", *names]
    model.save(tmp_path / "model")
    loaded = elmesh.load(tmp_path / "model")
    np.testing.assert_array_equal(loaded.predict(X, tasks), model.predict(X, tasks))
    np.testing.assert_array_equal(clone(loaded).fit(X, y, tasks).predict(X, tasks), model.predict(X, tasks))


@pytest.mark.parametrize("weight_scale", [(), (1.0, -1.0), tuple(range(1, 22)), "large"])
def test_scales_of_weights_are_checked(weight_scale):
    X, y, tasks = rows("regression")
    assert "weight_scale" in refusal(make("regression", weight_scale=weight_scale).fit, X, y, tasks)


def test_without_direct_links_and_intercept_the_features_are_the_hidden_units():
    X, y, tasks = rows("regression")
    model = make("regression", direct_links=False).fit(X, y, tasks)
    assert model.model_.layer.groups.tolist() == [0] + [2] * 10 + [3] * 10
    assert model.variances_.index.tolist() == ["constant", "hidden, weight scale 1", "hidden, weight scale 4"]
    plain = make("regression", direct_links=False, fit_intercept=False).fit(X, y, tasks)
    assert plain.model_.layer.width == 20
    assert plain.score(X, y, tasks) > 0.5


@pytest.mark.parametrize("parameters", [{"clip": 3.0}, {"direct_links": True}])
def test_what_only_groups_of_features_have_is_refused_by_solvers_without_them(parameters):
    X, y, tasks = rows("regression")
    model = make("regression", solver="dmtl-elm", **parameters)
    assert next(iter(parameters)) in refusal(model.fit, X, y, tasks)


# -------------------------------------------------------------------------------------------- the parts of the weights


def planted(seed, m=20, n=15, p=30, rank=1, n_new=60):
    """Sites whose slopes are multiples of one direction, without a common part; rows to learn from, and new ones."""
    rng = np.random.default_rng(seed)
    basis = np.linalg.qr(rng.normal(size=(p, rank)))[0]
    X = rng.normal(size=(m, n + n_new, p))
    slopes = np.sqrt(p / rank) * rng.normal(size=(m, rank)) @ basis.T
    y = np.einsum("tnp,tp->tn", X, slopes) + rng.normal(size=(m, n + n_new))
    parts = [(X[:, rows].reshape(-1, p), y[:, rows].ravel()) for rows in (slice(n), slice(n, None))]
    return [(*part, np.repeat(np.arange(m), len(part[1]) // m)) for part in parts], basis


@pytest.mark.thorough
@pytest.mark.parametrize("seed", one_of(2, range(2)))
def test_a_true_shared_subspace_is_found_and_improves_the_predictions_of_new_rows(seed):
    (train, new), basis = planted(seed)
    model = MultiTaskELMRegressor(n_hidden=None, random_state=0).fit(*train)
    without = MultiTaskELMRegressor(n_hidden=None, solver=MeshELM(rank=0), random_state=0).fit(*train)
    assert model.U_.shape[1] > 0
    assert without.U_.shape == (31, 0)
    assert model.score(*new) > without.score(*new) + 0.2
    # The true direction is within the span of U, as far as rows allow, and most of what sites share is along it.
    shared = np.hstack([model.U_ @ A for A in model.A_.values()])[1:]
    assert np.linalg.norm(basis.T @ shared) ** 2 > 0.9 * np.linalg.norm(shared) ** 2


@pytest.mark.parametrize("seed", one_of(3, range(4)))
def test_noise_alone_calls_for_no_shared_part(seed):
    rng = np.random.default_rng(seed)
    X, y = rng.normal(size=(240, 8)), rng.normal(size=240)
    model = make("regression").fit(X, y, np.repeat(np.arange(12), 20))
    assert model.U_.shape == (29, 0)
    assert {A.shape for A in model.A_.values()} == {(0, 1)}
    assert model.certificate_.gap < 1e-9


@pytest.mark.parametrize("kind", [pytest.param("classification", marks=pytest.mark.slow), "regression"])
def test_a_given_rank_and_penalties_give_a_shared_part_beside_the_others(kind):
    X, y, tasks = rows(kind)
    model = make(kind, solver=MeshELM(rank=2, mu1=0.2, mu2=0.05, tol=1e-6)).fit(X, y, tasks)
    assert model.U_.shape == (24, 2)
    # The solution depends on the product of the penalties alone.
    assert model.penalties_ == pytest.approx((0.1, 0.1))
    assert all(np.abs(part).max() > 0 for part in (model.W_, *model.V_.values()))
    for t in SITES:
        head = model.model_.heads[t]
        weights = model.W_ + model.U_ @ model.A_[t] + model.V_[t]
        if kind == "classification":
            weights = weights[:, np.isin(model.classes_, model.task_classes_[t])]
        np.testing.assert_allclose(head.A, weights, atol=1e-12)


@pytest.mark.parametrize(
    ("kind", "solver"), one_of(2, KINDS, [MeshELM(), MeshELM(mu1=0.3, mu2=0.3, tol=1e-3), MeshELM(rank=0)])
)
def test_the_objective_is_that_of_all_parts_by_hand(kind, solver):
    r"""sum_t w_t/2 {|T_t - Phi_t (W + U A_t + V_t)|^2 + |V_t|^2_{1/v}} + |W|^2_{1/c}/2 + mu1/2 |U|^2 + mu2/2 |A|^2."""
    X, y, tasks = rows(kind)
    model = make(kind, solver=solver).fit(X, y, tasks)
    layer, common = model.model_.layer, model.model_.common
    scale = model.target_scale_ if kind == "regression" else 1.0
    T = y[:, None] if kind == "regression" else (y[:, None] == COLOURS).astype(float)
    T, Phi = (T - common.t_mean) / scale, layer(X)
    c, v = (np.exp(log)[layer.groups][:, None] for log in (common.log_c, common.log_v))
    mu1, mu2 = model.penalties_
    # U is in units of the features; its penalty is in units of the private part.
    value = 0.5 * np.sum((model.W_ / scale) ** 2 / c) + mu1 / 2 * np.sum(model.U_**2 / v)
    for t in SITES:
        A, V = model.A_[t] / scale, model.V_[t] / scale
        residual = T[tasks == t] - Phi[tasks == t] @ (model.W_ / scale + model.U_ @ A + V)
        weight = np.exp(model.model_.heads[t].log_w)
        value += weight / 2 * (np.sum(residual**2) + np.sum(V**2 / v)) + mu2 / 2 * np.sum(A**2)
    assert model.history_["objective"].iloc[-1] == pytest.approx(value, rel=1e-9)
    assert model.certificate_.lower_bound <= value * (1 + 1e-12)
    assert model.certificate_.gap < 0.05


def test_rank_zero_needs_another_part():
    X, y, tasks = rows("regression")
    model = make("regression", solver=MeshELM(rank=0, common=False, private=False))
    assert "leaves no weights" in refusal(model.fit, X, y, tasks)


@pytest.mark.parametrize(("kind", "graph"), one_of(2, KINDS, ["ring", "star", None]))
def test_with_both_parts_switched_off_the_features_and_the_problem_are_the_papers(kind, graph):
    X, y, tasks = rows(kind)
    solver = MeshELM(common=False, private=False, rank=2, mu1=0.3, mu2=0.4, graph=graph, tol=1e-8)
    model = make(kind, solver=solver).fit(X, y, tasks)
    assert not isinstance(model.model_.layer, FeatureMap)
    assert model.model_.layer == HiddenLayer(3, 20, "sigmoid", 1.0, 0)
    assert (model.W_, model.V_, model.variances_, model.noise_) == (None, None, None, None)
    for t, head in model.model_.heads.items():
        H = model.model_.layer(X[tasks == t])
        np.testing.assert_allclose(head.h_mean, H.mean(axis=0), atol=1e-12)
        # Given U, a site's coefficients are its ridge regression on centred features.
        Z = (H - H.mean(axis=0)) @ model.U_
        own = y[tasks == t]
        T = own[:, None] if kind == "regression" else (own[:, None] == model.task_classes_[t]).astype(float)
        expected = np.linalg.solve(Z.T @ Z + 0.4 * np.eye(2), Z.T @ (T - T.mean(axis=0)))
        np.testing.assert_allclose(model.A_[t], expected, atol=1e-6)


@pytest.mark.parametrize("parameter", ["common", "private"])
def test_switches_of_parts_are_checked(parameter):
    X, y, tasks = rows("regression")
    assert parameter in refusal(make("regression", solver=MeshELM(**{parameter: "yes"})).fit, X, y, tasks)
