"""Features in groups: what each group holds, its scale, limits for outliers, and descriptions in JSON."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elmesh import LocalELM, MeshELM, MultiTaskELMRegressor
from elmesh.data.features import ACTIVATIONS, FeatureMap, HiddenLayer, features_from_json
from elmesh.errors import ElmeshError


@st.composite
def feature_maps(draw):
    """Maps of all kinds, and rows for them."""
    rng = np.random.default_rng(draw(st.integers(0, 10**6)))
    n = draw(st.integers(1, 4))
    activation = draw(st.sampled_from(ACTIVATIONS))
    widths = draw(st.lists(st.integers(1, 5), max_size=3))
    layers = tuple(HiddenLayer(n, width, activation, 1.0 + k, seed=k) for k, width in enumerate(widths))
    limit = rng.uniform(0.5, 2.0, n) if draw(st.booleans()) else None
    direct = draw(st.booleans()) or not layers
    made = FeatureMap(rng.normal(size=n), limit, layers, draw(st.booleans()), direct)
    return made, 3 * rng.normal(size=(draw(st.integers(1, 6)), n))


@given(feature_maps())
def test_each_group_holds_its_features_divided_by_the_root_of_their_number(drawn):
    features, X = drawn
    Phi, groups = features(X), features.groups
    assert Phi.shape == (len(X), features.width)
    assert len(features.group_names) == 2 + len(features.layers)
    assert np.all(np.diff(groups) >= 0)
    Z = X - features.mean
    if features.limit is not None:
        Z = np.minimum(np.maximum(Z, -features.limit), features.limit)
    np.testing.assert_array_equal(Phi[:, groups == 0], np.ones((len(X), int(features.constant))))
    links = Z / np.sqrt(features.n_inputs) if features.direct_links else np.zeros((len(X), 0))
    np.testing.assert_allclose(Phi[:, groups == 1], links, rtol=1e-14)
    for k, layer in enumerate(features.layers):
        middle = 0.5 if layer.activation == "sigmoid" else 0.0
        np.testing.assert_allclose(
            np.sqrt(layer.width) * Phi[:, groups == 2 + k], layer(Z) - middle, rtol=1e-12, atol=1e-14
        )


@given(feature_maps())
def test_a_description_in_json_gives_the_same_features_to_the_bit(drawn):
    features, X = drawn
    again = features_from_json(json.loads(json.dumps(features.to_json())))
    assert isinstance(again, FeatureMap)
    assert again(X).tobytes() == features(X).tobytes()
    assert again.groups.tolist() == features.groups.tolist()


@given(feature_maps())
def test_an_outlier_changes_no_feature_beyond_its_limit(drawn):
    features, X = drawn
    if features.limit is None:
        return
    far, limit = np.full_like(X, 1e9), features.mean + features.limit
    np.testing.assert_allclose(features(far), features(np.tile(limit, (len(X), 1))), rtol=1e-12)


def test_a_hidden_layer_s_description_is_not_taken_for_a_map_s():
    layer = HiddenLayer(3, 4)
    assert features_from_json(layer.to_json()) == layer


def test_the_seed_is_that_of_the_first_hidden_units():
    assert FeatureMap(np.zeros(2), None, (HiddenLayer(2, 3, seed=7), HiddenLayer(2, 3, seed=8))).seed == 7
    assert FeatureMap(np.zeros(2)).seed == 0


FIELDS = FeatureMap(np.zeros(2), np.ones(2), (HiddenLayer(2, 3),)).to_json()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"mean": [0.0, float("nan")]}, "mean of a feature map must hold one finite number per input"),
        ({"limit": [1.0]}, "limit of a feature map must hold one finite number per input"),
        ({"mean": [0.0], "limit": None}, "different numbers of inputs"),
        ({"layers": {}}, "exactly the fields"),
        ({"constant": 1}, "constant of a feature map must be True or False"),
        ({"direct_links": "yes"}, "direct_links of a feature map must be True or False"),
        ({"layers": [], "constant": False, "direct_links": False}, "needs direct links"),
        ({"more": 1}, "exactly the fields"),
    ],
)
def test_a_description_that_is_wrong_is_refused(change, message):
    with pytest.raises(ElmeshError, match=message):
        features_from_json({**FIELDS, **change})


def test_a_table_of_another_width_is_refused():
    with pytest.raises(ElmeshError, match="take a table of 2 columns"):
        FeatureMap(np.zeros(2))(np.zeros((1, 3)))


# From the parameters of an estimator ---------------------------------------------------------------------------------


def fitted_features(solver=None, scale=(1.0, 2.0, 0.5), shift=0.0, **parameters):
    rng = np.random.default_rng(0)
    X = shift + rng.normal(size=(40, 3)) * scale
    model = MultiTaskELMRegressor(random_state=5, solver=solver or MeshELM(), **parameters)
    return X, model.fit(X, rng.normal(size=40), tasks=np.repeat([1, 2, 3, 4], 10)).model_.layer


def test_means_and_limits_are_those_of_the_rows_of_all_tasks():
    X, features = fitted_features(n_hidden=9, shift=100.0)
    np.testing.assert_allclose(features.mean, X.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(features.limit, 3 * X.std(axis=0), rtol=1e-12)
    assert fitted_features(n_hidden=9, clip=None)[1].limit is None
    X, narrow = fitted_features(n_hidden=9, clip=1.5)
    np.testing.assert_allclose(narrow.limit, 1.5 * X.std(axis=0), rtol=1e-12)


def test_hidden_units_are_shared_out_over_the_scales_with_seeds_of_their_own():
    _, features = fitted_features(n_hidden=9)
    assert [(layer.n_hidden, layer.weight_scale) for layer in features.layers] == [(5, 1.0), (4, 4.0)]
    assert features.seed == 5
    # Layers of one shape would have the same units if they had the same seed.
    _, equal = fitted_features(n_hidden=8)
    first, second = (layer.weights[1] / layer.weight_scale for layer in equal.layers)
    assert np.all(first != second)
    _, three = fitted_features(n_hidden=9, weight_scale=[0.5, 1.0, 2.0])
    assert [layer.width for layer in three.layers] == [3, 3, 3]
    _, one = fitted_features(n_hidden=9, weight_scale=0.7)
    assert [(layer.width, layer.weight_scale) for layer in one.layers] == [(9, 0.7)]


def test_without_hidden_units_the_inputs_are_the_features():
    _, features = fitted_features(n_hidden=None)
    assert (features.layers, features.direct_links, features.groups.tolist()) == ((), True, [0, 1, 1, 1])
    _, hidden = fitted_features(n_hidden=4, direct_links=False)
    assert hidden.groups.tolist() == [0, 2, 2, 3, 3]
    _, without = fitted_features(n_hidden=4, fit_intercept=False)
    assert 0 not in without.groups


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"n_hidden": 1, "weight_scale": [1.0, 2.0]}, "weight_scale has 2 values; give one or more, and at most"),
        ({"n_hidden": 4, "weight_scale": []}, "weight_scale has 0 values"),
        ({"n_hidden": 4, "weight_scale": [1.0, -1.0]}, "weight_scale"),
        ({"n_hidden": 4, "clip": 0.0}, "clip"),
        ({"n_hidden": 4, "direct_links": "some"}, "direct_links"),
        ({"n_hidden": 4, "clip": 2.0, "solver": LocalELM(mu=1.0)}, "clip is for solvers that weigh groups"),
    ],
)
def test_parameters_that_make_no_features_are_refused(parameters, message):
    with pytest.raises(ElmeshError, match=message):
        fitted_features(**parameters)
