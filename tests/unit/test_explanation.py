"""What predictions depend on: importance, effects and distances, against independent references."""

from __future__ import annotations

import json
import warnings

import numpy as np
import pandas as pd
import pytest
from scipy.spatial.distance import squareform
from sklearn import config_context
from sklearn.inspection import partial_dependence, permutation_importance
from sklearn.metrics import log_loss, root_mean_squared_error

import elmesh
from elmesh import MTLELM, MultiTaskELMClassifier, MultiTaskELMRegressor
from elmesh.errors import ElmeshError
from elmesh.math.site_groups import find_groups


def visits(seed=0, rows=40):
    """A table with a number with gaps, words, dates and a column without meaning; the sites differ in the words."""
    rng = np.random.default_rng(seed)
    n = 3 * rows
    table = pd.DataFrame(
        {
            "site": np.repeat(["north", "south", "west"], rows),
            "age": np.where(rng.random(n) < 0.1, np.nan, rng.normal(50, 10, n)),
            "ward": rng.choice(["eye", "ear", None], n),
            "day": pd.Timestamp("2024-01-01") + pd.to_timedelta(rng.integers(0, 700, n), unit="D"),
            "noise": rng.normal(size=n),
        }
    )
    slope = np.where(table["site"] == "west", -3.0, 3.0)
    y = table["age"].fillna(50) / 5 + slope * (table["ward"] == "eye") + rng.normal(scale=0.3, size=n)
    return table, y.rename("stay")


@pytest.fixture(scope="module")
def fitted():
    table, y = visits()
    model = MultiTaskELMRegressor(task="site", n_hidden=20, random_state=0).fit(table, y)
    return model, table, y, model.explain(table, y)


# Importance


def test_importance_is_that_of_scikit_learn_where_there_is_one_site(fitted):
    model, table, y, _ = fitted
    own = table["site"] == "north"
    alone, rows, target = model.for_task("north"), table[own].drop(columns="site"), y[own]
    ours = alone.explain(rows, target, n_repeats=10).importance
    options = {"scoring": "neg_root_mean_squared_error", "n_repeats": 10, "random_state": 1}
    theirs = permutation_importance(alone, rows, target, **options)
    for name, mean, spread in zip(rows.columns, theirs.importances_mean, theirs.importances_std, strict=True):
        assert ours.loc[name, "importance"] == pytest.approx(mean, abs=5 * spread / np.sqrt(10) + 1e-12), name
    assert list(ours.index[:2]) == ["age", "ward"]


def test_importance_of_classes_is_the_increase_of_the_log_loss():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(120, 3))
    y = np.where(X[:, 1] + 0.5 * rng.normal(size=120) > 1.5, "rare", "usual")
    model = MultiTaskELMClassifier(n_hidden=20, random_state=0).fit(X, y)
    found = model.explain(X, y, n_repeats=10)
    assert found.unit == "log loss"
    assert found.error == pytest.approx(log_loss(y, model.predict_proba(X)))
    theirs = permutation_importance(model, X, y, scoring="neg_log_loss", n_repeats=10, random_state=1)
    for j, (mean, spread) in enumerate(zip(theirs.importances_mean, theirs.importances_std, strict=True)):
        assert found.importance.loc[j, "importance"] == pytest.approx(mean, abs=5 * spread / np.sqrt(10))
    assert found.clear_columns[0] == 1


def test_the_error_and_its_unit_are_those_of_the_predictions(fitted):
    model, table, y, found = fitted
    assert found.error == pytest.approx(root_mean_squared_error(y, model.predict(table)))
    assert (found.unit, found.distance_unit) == ("units of the target",) * 2
    assert (found.rows, found.n_rows, found.n_repeats) == (120, 120, 5)


def test_a_column_is_permuted_within_each_site():
    rng = np.random.default_rng(0)
    site = np.repeat([3, 5], 50)
    X = np.column_stack([rng.normal(size=100), rng.normal(size=100), 10.0 * (site == 5)])
    y = np.where(site == 3, X[:, 0], X[:, 1]) * 2 + X[:, 2]
    found = MultiTaskELMRegressor(n_hidden=None, random_state=0).fit(X, y, tasks=site).explain(X, y, tasks=site)
    by_task = found.task_importance["importance"]
    assert by_task[3, 0] > 1.0 > 0.1 > abs(by_task[3, 1])
    assert by_task[5, 1] > 1.0 > 0.1 > abs(by_task[5, 0])
    # The third column differs between sites and never within one; products of matrices may round.
    third = [by_task[3, 2], by_task[5, 2], found.importance.loc[2, "importance"]]
    assert third == pytest.approx([0.0, 0.0, 0.0], abs=1e-15)
    assert found.importance.index.name == "column"
    assert sorted(found.importance.index) == [0, 1, 2]


@pytest.mark.parametrize("classes", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_the_standard_error_is_the_spread_over_draws_of_the_rows(classes):
    rng = np.random.default_rng(0)

    def draw(n):
        X = rng.normal(size=(n, 2)) * np.where(rng.random((n, 1)) < 0.2, 2.0, 1.0)
        y = X[:, 0] + rng.normal(size=n)
        return X, np.where(y > 0, 1, 0) if classes else y

    kind = MultiTaskELMClassifier if classes else MultiTaskELMRegressor
    model = kind(n_hidden=None, clip=None, random_state=0).fit(*draw(200))
    found = [model.explain(*draw(100), columns=[0], random_state=k).importance.loc[0] for k in range(60)]
    spread = np.std([one["importance"] for one in found], ddof=1)
    assert np.mean([one["standard_error"] for one in found]) == pytest.approx(spread, rel=0.25)


def test_the_error_of_a_site_of_one_row_is_not_known():
    rng = np.random.default_rng(0)
    X, site = rng.normal(size=(41, 2)), np.array(["a"] * 20 + ["b"] * 20 + ["single"])
    model = MultiTaskELMRegressor(n_hidden=5, random_state=0).fit(X, X[:, 0], tasks=site)
    found = model.explain(X, X[:, 0], tasks=site)
    assert found.task_importance.loc["single", "importance"].tolist() == [0.0, 0.0]
    assert found.task_importance.loc["single", "standard_error"].isna().all()
    text = json.dumps(found.to_json(), allow_nan=False)
    assert json.loads(text)["tasks"][-1]["standard_error"] == [None, None]


def test_of_many_rows_some_are_drawn_and_count_for_the_others():
    rng = np.random.default_rng(0)
    small = [f"small {k}" for k in range(20)]
    site = np.repeat(["large", *small], [20_000, *[20] * 20])
    X = rng.normal(size=(len(site), 2))
    y = X[:, 0] + np.where(site == "large", 0.0, 10.0) + rng.normal(scale=np.where(site == "large", 0.1, 3.0))
    some = np.r_[0:60, 20_000:20_400]
    model = MultiTaskELMRegressor(n_hidden=None, random_state=0).fit(X[some], y[some], tasks=site[some])
    found = model.explain(X, y, tasks=site)
    # In proportion to the rows of a site, but at least 20.
    assert (found.rows, found.n_rows) == (round(3000 * 20_000 / 20_400) + 400, 20_400)
    assert found.error == pytest.approx(root_mean_squared_error(y, model.predict(X, tasks=site)), rel=0.02)
    effect = found.effect(0).overall
    exact = [model.predict(np.column_stack([np.full(len(X), v), X[:, 1]]), tasks=site).mean() for v in effect.index]
    np.testing.assert_allclose(effect, exact, atol=0.02)
    # A million rows are predicted with permuted columns at most.
    alone = model.for_task("large")
    assert alone.explain(X[:1000], y[:1000], n_repeats=1000).rows == 500


# Effects


def test_effects_are_mean_predictions_with_the_column_set(fitted):
    model, table, _, found = fitted
    assert {one.column: one.kind for one in found.effects} == {
        "age": "number", "ward": "category", "day": "date", "noise": "number",
    }  # fmt: skip
    for one in found.effects:
        for value in one.overall.index:
            predicted = pd.Series(model.predict(table.assign(**{one.column: value})))
            assert one.overall[value] == pytest.approx(predicted.mean(), rel=1e-9)
            by_site = predicted.groupby(table["site"]).mean()
            np.testing.assert_allclose(one.tasks.loc[[value]].iloc[0], by_site[one.tasks.columns], rtol=1e-9)
        assert (one.output, one.probability, one.predicted) == ("stay", False, "predicted stay")


def test_a_grid_is_all_categories_or_twenty_values_between_quantiles(fitted):
    _, table, _, found = fitted
    assert found.effect("ward").overall.index.tolist() == ["ear", "eye", None]
    age, day = found.effect("age").overall.index, found.effect("day").overall.index
    np.testing.assert_allclose(age, np.linspace(*table["age"].quantile([0.05, 0.95]), 20))
    assert len(day) == 20
    for end, share in ((0, 0.05), (-1, 0.95)):
        assert abs(day[end] - table["day"].quantile(share)) <= pd.Timedelta(hours=12)
    # A column of few values has these and no others, however rare.
    X = np.zeros((100, 2))
    X[:3, 0], X[:, 1] = 1.0, np.where(np.arange(100) < 95, 0.0, np.arange(100))
    X[95:, 1] = np.arange(5) / 7
    found = MultiTaskELMRegressor(n_hidden=5, random_state=0).fit(X, X.sum(axis=1)).explain(X, X.sum(axis=1))
    assert found.effect(0).overall.index.tolist() == [0.0, 1.0]
    assert found.effect(1).overall.index.tolist() == pytest.approx([0.0, *(np.arange(1, 5) / 7)])


def test_where_most_values_are_equal_the_grid_spans_all():
    x = np.where(np.arange(1000) < 30, np.linspace(1, 2, 1000), 0.0)
    model = MultiTaskELMRegressor(n_hidden=5, random_state=0).fit(x[:100, None], x[:100])
    values = model.explain(x[:, None], x).effect(0).overall.index
    assert (values[0], values[-1], len(values)) == (0.0, pytest.approx(x.max()), 20)


def test_the_effect_on_one_site_is_that_of_scikit_learn():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(80, 2))
    y = np.sin(X[:, 0]) + X[:, 1]
    model = MultiTaskELMRegressor(n_hidden=20, random_state=0).fit(X, y)
    ours = model.explain(X, y).effect(0).overall
    theirs = partial_dependence(model, X, [0], custom_values={0: ours.index.to_numpy()}, method="brute")
    np.testing.assert_allclose(ours, theirs["average"][0], rtol=1e-9)


@pytest.fixture(scope="module")
def classes():
    """Three classes, of which a site has two."""
    rng = np.random.default_rng(0)
    X, site = rng.normal(size=(150, 2)), np.repeat([1, 2, 3], 50)
    y = np.where(X[:, 0] > 0.7, "high", np.where(X[:, 0] < -0.7, "low", "middle"))
    y[(site == 1) & (y == "high")] = "middle"
    model = MultiTaskELMClassifier(n_hidden=20, random_state=0).fit(X, y, tasks=site)
    return model, X, y, site, model.explain(X, y, tasks=site)


def test_effects_on_classes_are_mean_probabilities(classes):
    model, X, _, site, found = classes
    for name in ("high", "low", "middle"):
        effect = found.effect(0, name)
        assert effect.predicted == f"probability of {name}"
        k = model.classes_.tolist().index(name)
        for value in effect.overall.index[::7]:
            predicted = model.predict_proba(np.column_stack([np.full(150, value), X[:, 1]]), tasks=site)[:, k]
            np.testing.assert_allclose(effect.tasks.loc[value], [predicted[site == t].mean() for t in (1, 2, 3)])
    assert not found.effect(0, "high").tasks[1].any()
    ranges = {one.output: np.ptp(one.overall) for one in found.effects if one.column == 0}
    assert found.effect().output == max(ranges, key=ranges.get)


def test_of_two_classes_the_effect_is_that_of_the_second():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 2))
    model = MultiTaskELMClassifier(n_hidden=5, random_state=0).fit(X, X[:, 0] > 0)
    effect = model.explain(X, X[:, 0] > 0).effect(0)
    assert effect.output == "True"
    assert effect.overall.iloc[-1] > effect.overall.iloc[0]


# Distances, maps and groups


def test_distances_between_linear_models_follow_from_their_weights():
    rng = np.random.default_rng(0)
    site = np.repeat(["a", "b", "c", "d"], 40)
    X = rng.normal(size=(160, 3)) + 1.0
    slopes = dict(zip("abcd", rng.normal(size=(4, 3)), strict=True))
    y = np.array([x @ slopes[t] for x, t in zip(X, site, strict=True)]) + 0.1 * rng.normal(size=160)
    model = MultiTaskELMRegressor(n_hidden=None, clip=None, random_state=0).fit(X, y, tasks=site)
    found = model.explain(X, y, tasks=site)
    corners = np.vstack([np.zeros(3), np.eye(3)])
    weights = {t: model.predict(corners, tasks=[t] * 4) for t in "abcd"}  # constant, and constant plus slopes
    second = np.column_stack([np.ones(160), X])
    second = second.T @ second / 160
    for a in "abcd":
        for b in "abcd":
            difference = weights[a] - weights[b]
            difference[1:] -= difference[0]
            expected = np.sqrt(difference @ second @ difference)
            assert found.distances.loc[a, b] == pytest.approx(expected, abs=1e-9)
    assert found.mean_distances.iloc[0] == pytest.approx(found.distances.to_numpy().sum(axis=1).max() / 3)
    # Of four sites three dimensions are exact, and the map shows two.
    assert 0.5 < found.map_share <= 1.0
    squares = squareform(found.distances) ** 2
    shown = np.sum((found.coordinates - found.coordinates.mean()).to_numpy() ** 2)
    assert shown == pytest.approx(found.map_share * squares.sum() / 4)


def test_distances_of_probabilities_are_those_of_either_of_two_classes():
    rng = np.random.default_rng(0)
    X, site = rng.normal(size=(120, 2)), np.repeat([0, 1], 60)
    y = np.where(X[:, 0] * np.where(site == 0, 1, -1) > 0, "yes", "no")
    model = MultiTaskELMClassifier(n_hidden=10, random_state=0).fit(X, y, tasks=site)
    found = model.explain(X, y, tasks=site)
    p, q = (model.predict_proba(X, tasks=[t] * 120)[:, 1] for t in (0, 1))
    assert found.distances.loc[0, 1] == pytest.approx(np.sqrt(np.mean((p - q) ** 2)))
    assert found.distance_unit == "probability"


def test_distances_of_several_classes_are_bounded_by_one(classes):
    model, X, _, _, found = classes
    p, q = (model.predict_proba(X, tasks=[t] * 150) for t in (1, 3))
    assert found.distances.loc[1, 3] == pytest.approx(np.sqrt(np.mean(np.sum((p - q) ** 2, axis=1) / 2)))


def sites_of(slopes, seed=0, rows=25):
    """Rows of sites with the given slopes of one column."""
    rng = np.random.default_rng(seed)
    site = np.repeat(np.arange(len(slopes)), rows)
    X = rng.normal(size=(len(site), 2))
    return X, np.asarray(slopes)[site] * X[:, 0] + 0.2 * rng.normal(size=len(site)), site


@pytest.mark.parametrize(("slopes", "n_groups"), [([2.0, -2.0] * 6, 2), ([1.0] * 12, 0), (np.linspace(-2, 2, 12), 0)])
def test_groups_of_sites_are_found_where_there_are_some(slopes, n_groups):
    X, y, site = sites_of(slopes)
    found = MultiTaskELMRegressor(n_hidden=None, random_state=0).fit(X, y, tasks=site).explain(X, y, tasks=site)
    assert len(found.groups) == n_groups
    if n_groups:
        assert found.groups == ((0, 2, 4, 6, 8, 10), (1, 3, 5, 7, 9, 11))
        assert "The sites form 2 groups: 0, 2, 4, 6, 8 and 10; 1, 3, 5, 7, 9 and 11." in found.sentence()
        assert [task["group"] for task in found.to_json()["tasks"]] == [0, 1] * 6
    else:
        assert found.to_json()["tasks"][0]["group"] is None


def test_sites_with_the_same_model_are_alike_and_have_no_groups():
    X, y, site = sites_of([1.0] * 6)
    model = MultiTaskELMRegressor(n_hidden=None, solver=elmesh.MeshELM(private=False), random_state=0)
    found = model.fit(X, y, tasks=site).explain(X, y, tasks=site)
    assert found.alike
    assert found.groups == ()
    assert found.sentence().endswith("All sites are predicted alike.")
    # Groups that differ by a hundredth of the predictions are of no use.
    X, _, site = sites_of([1.0] * 12)
    y = X[:, 0] * np.where(site % 2, 1.0, 1.01)
    model = MultiTaskELMRegressor(n_hidden=None, solver=elmesh.LocalELM(mu=1e-9), random_state=0)
    found = model.fit(X, y, tasks=site).explain(X, y, tasks=site)
    assert (found.alike, found.groups) == (True, ())
    assert find_groups(found.distances.to_numpy(), seed=0) is not None


# Every kind of model


def test_a_loaded_model_explains_the_same(fitted, tmp_path):
    model, table, y, found = fitted
    model.save(tmp_path / "model")
    again = elmesh.load(tmp_path / "model").explain(table, y)
    assert again.to_json() == found.to_json()
    assert model.explain(table, y, random_state=1).to_json() != found.to_json()


def test_a_model_of_standardised_targets_is_explained_in_the_units_of_its_table(fitted, tmp_path):
    model, table, y, found = fitted
    schema = model.table_.to_json()
    schema["target_columns"] = [{"name": "stay", "mean": 100.0, "std": 10.0}]
    model.save(tmp_path / "model", extra={"table": schema})
    other = elmesh.load(tmp_path / "model").explain(table, 100.0 + 10.0 * y)
    np.testing.assert_allclose(other.importance, 10 * found.importance)
    np.testing.assert_allclose(other.distances, 10 * found.distances, atol=1e-9)
    np.testing.assert_allclose(other.effect("age").overall, 100 + 10 * found.effect("age").overall)


def test_a_model_of_one_site_has_columns_and_no_map(fitted):
    model, table, y, _ = fitted
    own = table["site"] == "west"
    found = model.for_task("west").explain(table[own].drop(columns="site"), y[own])
    assert found.distances.shape == (1, 1)
    assert (found.groups, found.alike) == ((), True)
    assert found.sentence().startswith("Predictions depend most on age and ward: if the values of one of them are")
    assert "Task" not in found.sentence()
    assert found.effect("ward").overall["eye"] < found.effect("ward").overall["ear"]


@pytest.mark.parametrize("solver", [MTLELM(rank=2), "local-elm", "dmtl-elm"])
def test_a_model_without_a_common_part_is_explained_too(solver):
    X, y, site = sites_of([2.0, -2.0, 2.0])
    model = MultiTaskELMRegressor(n_hidden=20, solver=solver, random_state=0).fit(X, y, tasks=site)
    found = model.explain(X, y, tasks=site)
    assert found.importance.index[0] == 0
    assert found.mean_distances.index[0] == 1
    with pytest.raises(ElmeshError, match="not known"):
        model.explain(X, y, tasks=site + 1)


def test_a_site_that_is_not_known_is_explained_by_the_common_part():
    X, y, site = sites_of([1.0, 1.1, 0.9])
    model = MultiTaskELMRegressor(n_hidden=None, random_state=0).fit(X, y, tasks=site)
    found = model.explain(X, y, tasks=np.where(site == 2, 7, site))
    assert found.distances.index.tolist() == [0, 1, 7]
    effect = found.effect(0).tasks[7]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        rows = np.column_stack([np.full(25, effect.index[0]), X[site == 2][:, 1]])
        assert effect.iloc[0] == pytest.approx(model.predict(rows, tasks=[7] * 25).mean())


def test_several_targets_count_in_their_standard_deviations():
    rng = np.random.default_rng(0)
    X, site = rng.normal(size=(80, 3)), np.repeat([0, 1], 40)
    Y = np.column_stack([X[:, 0], 1e6 * X[:, 1]]) + rng.normal(size=(80, 2)) * [0.1, 1e5]
    model = MultiTaskELMRegressor(n_hidden=None, random_state=0).fit(X, Y, tasks=site)
    found = model.explain(X, Y, tasks=site)
    errors = (Y - model.predict(X, tasks=site)) / Y.std(axis=0)
    assert found.error == pytest.approx(np.sqrt(np.mean(errors**2)))
    assert found.unit == found.distance_unit == "standard deviations"
    assert found.importance.loc[0, "importance"] == pytest.approx(found.importance.loc[1, "importance"], rel=0.3)
    assert found.effect(1).output == "y1"
    assert np.ptp(found.effect(1, "y2").overall) > 1e6
    predicted = [model.predict(X, tasks=[t] * 80) / Y.std(axis=0) for t in (0, 1)]
    assert found.distances.loc[0, 1] == pytest.approx(np.sqrt(np.mean((predicted[0] - predicted[1]) ** 2)))
    with pytest.raises(ElmeshError, match=r"y has 1 column; the model predicts 2\."):
        model.explain(X, Y[:, 0], tasks=site)


# Words and errors


def test_the_sentence_names_what_matters_and_who_differs(fitted):
    found = fitted[-1]
    text = found.sentence()
    assert text.startswith(
        "Predictions depend most on age and ward: if the values of one of them are shuffled, the error"
    )
    assert "Site west differs most" in text
    assert "The sites form no clear groups." in text
    assert {"age", "ward"} <= set(found.clear_columns)


def test_columns_are_chosen_by_name_and_nothing_else_changes_their_importance(fitted):
    model, table, y, found = fitted
    some = model.explain(table, y, columns=["noise", "ward"])
    assert list(some.importance.index) == ["ward", "noise"]
    pd.testing.assert_frame_equal(some.importance, found.importance.loc[["ward", "noise"]])
    assert {one.column for one in some.effects} == {"ward", "noise"}
    assert list(model.explain(table, y, columns="day").importance.index) == ["day"]
    new = model.explain(*visits(seed=1), columns=["noise"])
    assert new.columns_sentence() == "Predictions do not clearly depend on any column."


def test_json_has_all_that_the_sentence_has(fitted):
    data = json.loads(json.dumps(fitted[-1].to_json(), allow_nan=False))
    assert data["sentence"] == fitted[-1].sentence()
    assert [one["column"] for one in data["columns"]] == list(fitted[-1].importance.index)
    assert [one["task"] for one in data["tasks"]] == ["north", "south", "west"]
    effects = {one["column"]: one for one in data["effects"]}
    assert effects["ward"]["values"] == ["ear", "eye", None]
    assert effects["day"]["values"][0].startswith("2024-")
    assert list(effects["age"]["tasks"]) == ["north", "south", "west"]


def test_what_cannot_be_explained_is_an_error_that_names_it(fitted, classes):
    model, table, y, found = fitted
    with pytest.raises(ElmeshError, match="There is no column 'wart'; the model learned from 'age', 'noise', 'ward'"):
        model.explain(table, y, columns=["wart"])
    with pytest.raises(ElmeshError, match="columns is empty"):
        model.explain(table, y, columns=[])
    with pytest.raises(ElmeshError, match="n_repeats must be"):
        model.explain(table, y, n_repeats=0)
    with pytest.raises(ElmeshError, match="random_state must be"):
        model.explain(table, y, random_state=None)
    with pytest.raises(ElmeshError, match="There is no effect of 'wart'"):
        found.effect("wart")
    model, X, labels, site, _ = classes
    with pytest.raises(ElmeshError, match="does not know the class 'other'"):
        model.explain(X, np.where(labels == "low", "other", labels), tasks=site)


# In notebooks


def test_a_notebook_shows_the_diagram_and_a_table_of_the_tasks_with_their_names_escaped():
    X, y, site = sites_of([1.0, -1.0])
    names = np.where(site == 0, "<script>alert(1)</script>", "a & b")
    model = MultiTaskELMRegressor(n_hidden=5, random_state=0)
    assert "<table><caption>" not in model._repr_html_()
    model.fit(X, y, tasks=names)
    for html in (model._repr_html_(), model._repr_mimebundle_()["text/html"]):
        diagram, table = html.split("<table><caption>")
        assert "sk-container" in diagram
        assert "<script>alert" not in html
        assert "<td>&lt;script&gt;alert(1)&lt;/script&gt;</td><td>25</td>" in table
        assert "<td>a &amp; b</td><td>25</td>" in table
    shares = model.part_shares(X, tasks=names)
    pd.testing.assert_frame_equal(model.sites_[shares.columns], shares, check_names=False)
    assert f"<td>{model.noise_['a & b'][0]:.3g}</td>" in table
    with config_context(display="text"):
        assert "text/html" not in model._repr_mimebundle_()


def test_the_table_of_a_notebook_has_what_is_known(tmp_path, classes):
    X, y, site = sites_of([1.0] * 25, rows=4)
    model = MultiTaskELMRegressor(n_hidden=5, random_state=0).fit(X, y, tasks=site)
    assert "25 tasks: the first 20" in model._repr_html_()
    model.for_task(3).save(tmp_path / "m")
    table = elmesh.load(tmp_path / "m")._repr_html_().split("<table>")[-1]
    assert table.startswith("<caption>1 task</caption><tr><th>task</th><th>noise</th></tr>")
    table = classes[0]._repr_html_().split("<table><caption>")[-1]
    assert "<td>low, middle</td>" in table
    assert "noise" not in table
