"""Comparison with other methods: what is trained on is never predicted, and the conclusion follows from the numbers."""

from __future__ import annotations

import json
import warnings
from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.linear_model import RidgeCV
from sklearn.preprocessing import StandardScaler
from statsmodels.regression.mixed_linear_model import MixedLM

import elmesh
from elmesh import LocalELM, MultiTaskELMClassifier, MultiTaskELMRegressor
from elmesh.errors import ElmeshError
from elmesh.evaluation import rivals
from elmesh.evaluation.comparison import Comparison
from elmesh.evaluation.rivals import METHODS, Method, boosting
from elmesh.evaluation.rows import Inputs, Rows, encoded, fold_numbers, read_rows
from elmesh.math.intervals import corrected_standard_error
from elmesh.trial_log import OtherTrialsError

CHEAP = ["elmesh-alone", "linear-pooled"]


def table(n=90, sites=3, seed=0):
    """Rows of sites of equal size, with a number of their own in the first column."""
    rng = np.random.default_rng(seed)
    X = np.c_[np.arange(n), rng.normal(size=(n, 2))]
    site = np.array([f"s{k % sites}" for k in range(n)])
    return X, X[:, 1] + 0.3 * rng.normal(size=n), site


def frame(n=150, seed=0):
    """The same with words, dates and gaps, and a class of three."""
    rng = np.random.default_rng(seed)
    X = pd.DataFrame(
        {
            "site": np.array(["a", "b", "c"])[np.arange(n) % 3],
            "dose": np.where(rng.random(n) < 0.1, np.nan, rng.normal(size=n)),
            "ward": rng.choice(np.array(["east", "west", None], dtype=object), n),
            "day": pd.Timestamp("2024-01-01") + pd.to_timedelta(rng.integers(0, 700, n), unit="D"),
        }
    )
    score = X["dose"].fillna(0.0) + (X["ward"] == "east") + 0.2 * rng.normal(size=n)
    return X, score, pd.cut(score, [-9.0, 0.0, 1.0, 9.0], labels=["low", "middle", "high"]).astype(str)


@pytest.fixture
def methods():
    """The methods, to be changed; restored afterwards in their order, which tables of comparisons have."""
    before = dict(METHODS)
    yield METHODS
    METHODS.clear()
    METHODS.update(before)


@pytest.fixture
def spy(methods):
    """A method that records what it was given, and predicts means or shares of classes; so does elmesh, to be fast."""
    seen = []

    def predict(train, new):
        return rivals.class_shares(train, new) if train.classification else np.full(len(new), train.y.mean())

    def record(train, new):
        seen.append((train, new))
        return predict(train, new)

    methods["elmesh"] = Method("elmesh together", predict, "use it")
    methods["spy"] = Method("spy", record, "use it")
    return seen


def with_boosting(methods, candidates):
    """Change the methods that boost, so that they choose from these settings."""
    for name, predict in {
        "boosting-alone": rivals.alone(partial(boosting, candidates=candidates)),
        "boosting-pooled": partial(rivals.boosting_and_site, candidates=candidates),
    }.items():
        methods[name] = replace(methods[name], predict=predict)


@pytest.fixture
def few_trees(methods, monkeypatch):
    """Boosting that is fast, and still chooses."""
    monkeypatch.setattr(rivals, "MOST_TREES", 25)
    with_boosting(methods, [{"learning_rate": rate, "max_leaf_nodes": 4, "min_samples_leaf": 5} for rate in (0.1, 0.2)])


@pytest.fixture
def few_settings(methods, monkeypatch):
    """Methods that have little or nothing to choose, to be fast."""
    with_boosting(methods, [{"max_iter": 25, "max_leaf_nodes": 4, "min_samples_leaf": 5}])
    monkeypatch.setattr(rivals, "CS", [0.1, 1.0])


# Folds


@given(st.lists(st.integers(1, 12), min_size=1, max_size=6), st.integers(2, 7), st.integers(0, 99), st.booleans())
def test_folds_are_spread_evenly_over_rows_sites_and_the_classes_of_a_site(sizes, folds, seed, classes):
    sites = np.repeat([f"s{k}" for k in range(len(sizes))], sizes)
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 2, len(sites)) if classes else rng.normal(size=len(sites))
    rows = Rows(X=np.zeros((len(sites), 1)), sites=sites, y=y)
    found = fold_numbers(rows, folds, seed)

    def even(some, most=1):
        counts = np.bincount(found[some], minlength=folds)
        return counts.max() - counts.min() <= most

    assert even(slice(None), 2 if classes else 1)
    for site in set(sites):
        assert even(sites == site)
        assert not classes or all(even((sites == site) & (y == k)) for k in (0, 1))
        if np.sum(sites == site) > 1:  # some row is left to train on
            assert len(set(found[sites == site])) > 1
    np.testing.assert_array_equal(found, fold_numbers(rows, folds, seed))


def test_a_class_that_is_rare_at_every_site_is_in_all_training_rows():
    site, y = np.repeat(["a", "b", "c"], 30), (np.arange(90) % 30 == 29).astype(int)
    for seed in range(10):
        folds = fold_numbers(Rows(X=np.zeros((90, 1)), sites=site, y=y), 5, seed)
        assert len(set(folds[y == 1])) == 3


def test_folds_are_shuffled_by_their_seed():
    X, y, site = table()
    rows = Rows(X=X, sites=site, y=y)
    assert any(fold_numbers(rows, 3, seed).tolist() != fold_numbers(rows, 3, 0).tolist() for seed in (1, 2))
    assert fold_numbers(rows, 3, 0)[site == "s0"].tolist() != sorted(fold_numbers(rows, 3, 0)[site == "s0"])


@pytest.mark.parametrize("classes", [False, True])
def test_no_row_is_trained_on_and_predicted_and_each_is_predicted_once_per_repeat(spy, classes):
    X, y, site = table()
    elmesh.compare(X, np.where(y > 0, "yes", "no") if classes else y, site, methods=["spy"], folds=4, repeats=2)
    assert len(spy) == 8
    predicted = []
    for train, new in spy:
        own, others = train.X[:, 0].tolist(), new.X[:, 0].tolist()
        assert not set(own) & set(others)
        assert sorted(own + others) == list(range(90))
        assert isinstance(new, Inputs)
        assert not hasattr(new, "y")  # a method cannot see what it is to predict
        predicted += others
    assert sorted(predicted) == sorted([*range(90)] * 2)
    assert {tuple(sorted(new.X[:, 0])) for _, new in spy[:4]} != {tuple(sorted(new.X[:, 0])) for _, new in spy[4:]}


def test_the_choice_of_boosting_sees_training_rows_only_and_never_fits_what_it_judges_by(monkeypatch):
    monkeypatch.setattr(rivals, "MOST_TREES", 50)
    calls = []

    class Spy(rivals.HistGradientBoostingRegressor):
        def fit(self, X, y):
            calls.append(("fit", set(X[:, 0]), set(X[:, 0])))
            return super().fit(X, y)

        def predict(self, X):
            calls.append(("predict", calls[-1][1], set(X[:, 0])))
            return super().predict(X)

    monkeypatch.setattr(rivals, "HistGradientBoostingRegressor", Spy)
    X, y, site = table()
    rows = Rows(X=X, sites=site, y=y)
    train, new = rows.take(np.arange(90) < 60), rows.take(np.arange(90) >= 60)
    candidates = [{"learning_rate": rate, "max_leaf_nodes": 4, "min_samples_leaf": 5} for rate in (0.1, 0.3)]
    boosting(train, new.inputs(), candidates)
    *inner, (_, fitted, _), (last, _, predicted) = calls
    assert (last, fitted, predicted) == ("predict", set(range(60)), set(range(60, 90)))
    assert len(inner) > 6
    for kind, own, seen in inner:
        assert seen <= set(range(60))
        assert kind == "fit" or not own & seen
    left_out = [seen for kind, _, seen in inner if kind == "predict"][:3]
    assert set.union(*left_out) == set(range(60))


@pytest.mark.thorough
def test_targets_of_rows_to_predict_change_no_prediction(tmp_path, few_trees):
    X, y, site = table(60)
    X, predictions = X[:, 1:2], []
    elmesh.compare(X, y, site, folds=2, repeats=1, log=tmp_path / "0")
    tested = fold_numbers(Rows(X=X, sites=site, y=y), 2, (0, 0)) == 0
    elmesh.compare(X, np.where(tested, 5.0 - y, y), site, folds=2, repeats=1, log=tmp_path / "1")
    for name in ("0", "1"):
        lines = [json.loads(line) for line in (tmp_path / name).read_text().splitlines()[1:]]
        first = {x["trial"]["case"]: x["numbers"]["predicted"] for x in lines if x["trial"]["run"] == 0}
        assert set(first) == set(METHODS)
        predictions.append(first)
    assert predictions[0] == predictions[1]


def test_the_only_row_of_a_site_is_trained_on_and_not_predicted(spy):
    X, y, site = table()
    site = np.where(np.arange(90) == 7, "single", site)
    found = elmesh.compare(X, y, site, methods=["spy"], folds=3, repeats=1)
    assert all(7 in train.X[:, 0] for train, _ in spy)
    assert "single" not in found.by_site.index
    assert found.notes == ("1 site of a single row: trained on, and not predicted.",)


# Methods


@pytest.mark.thorough
def test_errors_are_those_of_the_estimators_on_each_fold():
    X, y, site = table()
    found = elmesh.compare(X, y, site, methods=[*CHEAP, "mixed-intercepts"], folds=2, repeats=1)
    fold = fold_numbers(Rows(X=X, sites=site, y=y), 2, (0, 0))
    for k in range(2):
        train, new = fold != k, fold == k
        own = MultiTaskELMRegressor(random_state=0).fit(X[train], y[train], tasks=site[train])
        alone = MultiTaskELMRegressor(solver=LocalELM(), random_state=0).fit(X[train], y[train], tasks=site[train])
        scaler = StandardScaler().fit(X[train])
        Z, Z_new = (np.c_[np.ones(s.sum()), scaler.transform(X[s])] for s in (train, new))
        dummies, dummies_new = (site[s][:, None] == np.unique(site) for s in (train, new))
        ridge = RidgeCV(np.logspace(-3, 4, 15)).fit(np.c_[Z[:, 1:], dummies], y[train])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            mixed = MixedLM(y[train], Z, groups=site[train]).fit(method=["powell"])
        effects = np.array([mixed.random_effects[name].iloc[0] for name in site[new]])
        expected = {
            "elmesh": own.predict(X[new], tasks=site[new]),
            "elmesh-alone": alone.predict(X[new], tasks=site[new]),
            "linear-pooled": ridge.predict(np.c_[Z_new[:, 1:], dummies_new]),
            "mixed-intercepts": Z_new @ mixed.fe_params + effects,
        }
        for name, predicted in expected.items():
            error = np.sqrt(np.mean((predicted - y[new]) ** 2))
            assert found.scores["error"].loc[k, name] == pytest.approx(error, rel=2e-3)


@pytest.mark.thorough
@pytest.mark.parametrize("target", [1, 2])
def test_every_method_takes_words_dates_gaps_and_classes(target, few_settings):
    X, *targets = frame()
    found = elmesh.compare(X, targets[target - 1], task="site", folds=2, repeats=1)
    wanted = [name for name, method in METHODS.items() if target == 1 or not method.regression_only]
    assert found.methods == wanted
    assert found.notes == ()
    base = np.std(targets[0]) if target == 1 else 1 - targets[1].value_counts(normalize=True).max()
    assert (found.table["error"] < base).all()


def test_what_a_linear_model_gets_is_scaled_and_filled_by_training_rows_alone():
    rng = np.random.default_rng(0)
    X = np.c_[rng.normal(5.0, 3.0, size=40), rng.integers(0, 3, 40)]
    X[::7, 0] = np.nan
    X[:30, 1] = np.minimum(X[:30, 1], 1)  # the third category is among new rows alone
    rows = Rows(X=X, sites=np.repeat(["a", "b"], 20), y=rng.normal(size=40), categorical=(1,))
    new = rows.take(np.arange(40) >= 30).inputs()
    shifted = Inputs(X=new.X + np.array([100.0, 0.0]), sites=new.sites, categorical=(1,))
    train, first = encoded(rows.take(np.arange(40) < 30), new)
    _, second = encoded(rows.take(np.arange(40) < 30), shifted)
    assert train.X.shape == (30, 4)  # the number, where it is missing, and two categories
    np.testing.assert_allclose(train.X[:, :2].mean(axis=0), 0.0, atol=1e-12)
    np.testing.assert_allclose(train.X[:, 0].std(), 1.0)
    scale = np.nanstd(X[:30, 0]) * np.sqrt(np.mean(~np.isnan(X[:30, 0])))
    gaps = np.isnan(new.X[:, 0])
    np.testing.assert_allclose((second.X - first.X)[:, 0], np.where(gaps, 0.0, 100.0 / scale))
    assert first.X[new.X[:, 1] == 2][:, 2:].sum() == 0.0


def test_boosting_chooses_what_is_best_on_rows_left_out(monkeypatch):
    monkeypatch.setattr(rivals, "MOST_TREES", 50)
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 2))
    rows = Rows(X=X, sites=np.repeat(["a", "b"], 150), y=np.sign(X[:, 0]) * np.sign(X[:, 1]))
    train, new = rows.take(np.arange(300) % 3 > 0), rows.take(np.arange(300) % 3 == 0)
    stumps = {"learning_rate": 0.1, "max_leaf_nodes": 2, "min_samples_leaf": 5}  # cannot see a product
    trees = {**stumps, "max_leaf_nodes": 8}

    def error(candidates):
        return np.mean((boosting(train, new.inputs(), candidates) - new.y) ** 2)

    assert error([stumps, {**stumps, "learning_rate": 0.2}]) > 0.8
    assert error([stumps, trees]) == error([trees, stumps]) < 0.3
    few = rows.take(np.arange(300) < 9)  # too few to split
    np.testing.assert_allclose(boosting(few, new.inputs(), [stumps, trees]), few.y.mean())


@pytest.mark.parametrize("classes", [False, True])
def test_boosting_takes_more_sites_than_it_takes_categories(classes):
    rng = np.random.default_rng(0)
    site = np.repeat(np.arange(300), 4)
    level = rng.normal(size=300)[site] + 0.1 * rng.normal(size=1200)
    rows = Rows(X=rng.normal(size=(1200, 1)), sites=site, y=(level > 0).astype(int) if classes else level)
    train, new = rows.take(np.arange(1200) % 4 > 0), rows.take(np.arange(1200) % 4 == 0)
    predicted = rivals.boosting_and_site(train, new.inputs())
    if classes:
        assert np.mean(predicted.argmax(axis=1) == new.y) > 0.8
    else:
        assert np.corrcoef(predicted, new.y)[0, 1] > 0.8


def test_what_boosting_gets_of_very_many_sites_has_nothing_of_a_training_rows_own_target():
    rng = np.random.default_rng(0)
    rows = Rows(X=np.zeros((900, 0)), sites=np.repeat(np.arange(300), 3), y=rng.normal(size=900))
    train, new = rivals.with_site_codes(rows, rows.inputs())
    # The targets are noise: without its own, the mean of a site is no guide to a row.
    assert abs(np.corrcoef(train.X[:, 0], rows.y)[0, 1]) < 0.1
    assert np.corrcoef(new.X[:, 0], rows.y)[0, 1] > 0.4
    assert train.categorical == ()


def test_trees_are_added_until_they_bring_no_gain(monkeypatch):
    fits = []

    class Spy(rivals.HistGradientBoostingRegressor):
        def fit(self, X, y):
            fits.append(self.max_iter)
            return super().fit(X, y)

    monkeypatch.setattr(rivals, "HistGradientBoostingRegressor", Spy)
    X, _, site = table()
    noise = np.random.default_rng(1).normal(size=90)
    candidates = [{"learning_rate": rate, "max_leaf_nodes": 4, "min_samples_leaf": 5} for rate in (0.1, 0.2)]
    rows = Rows(X=X[:, 1:], sites=site, y=noise)
    boosting(rows, rows.inputs(), candidates)
    # The fewest trees are the best of noise: two further steps of each candidate, in three folds, and the last fit.
    assert fits == [25] * 3 + [50] * 3 + [75] * 3 + [25] * 3 + [50] * 3 + [75] * 3 + [25]


@pytest.mark.thorough
def test_a_site_with_one_class_alone_predicts_it_and_holds_others_for_possible(few_trees):
    X, y, site = table()
    labels = np.where(site == "s0", 0, (y > 0).astype(int))
    rows = Rows(X=X[:, 1:], sites=site, y=labels)
    new = rows.inputs()
    own = site == "s0"
    for name in ("elmesh-alone", "boosting-alone"):
        predicted = METHODS[name].predict(rows, new)
        np.testing.assert_allclose(predicted.sum(axis=1), 1.0)
        np.testing.assert_allclose(predicted[own, 1], 0.5 / 31)
        assert np.mean(predicted[~own].argmax(axis=1) == labels[~own]) > 0.8
    expected = MultiTaskELMClassifier(solver=LocalELM(), random_state=0)
    expected.fit(X[~own, 1:], labels[~own], tasks=site[~own])
    found = METHODS["elmesh-alone"].predict(rows, new)[~own]
    np.testing.assert_allclose(found, expected.predict_proba(X[~own, 1:], tasks=site[~own]))


def test_a_class_of_one_row_is_not_learned_by_the_linear_model_and_has_probability_zero(few_settings):
    X, y, site = table()
    labels = (y > 0).astype(int)
    labels[5] = 2
    rows = Rows(X=X[:, 1:], sites=site, y=labels, n_classes=3)
    predicted = rivals.linear(rows, rows.inputs())
    assert predicted.shape == (90, 3)
    assert (predicted[:, 2] == 0).all()
    assert np.mean(predicted.argmax(axis=1) == labels) > 0.8


def test_column_types_are_those_of_the_whole_table_and_row_numbers_are_left_out():
    X, y, _ = frame()
    rows = X.assign(number=np.arange(len(X)))
    with pytest.warns(UserWarning, match='only number the rows: "number"'):
        read = read_rows(rows, y, None, "site", None, None)
    assert read.types == {"dose": "number", "ward": "category", "day": "date"}
    assert list(read.table) == ["dose", "ward", "day"]
    assert read.X.shape[1] == 1 + 5 + 1  # the date has a year and a week
    assert np.isnan(read.X[:, 0]).sum() == X["dose"].isna().sum()
    kept = read_rows(rows, y, None, "site", None, {"number": "number"})
    assert "number" in kept.types


# What is refused, left out, or continued


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"methods": ["best"]}, "There is no method 'best'; there are elmesh, elmesh-alone"),
        ({"methods": ["elmesh"]}, "Name a method besides elmesh"),
        ({"folds": 1}, "folds must be a whole number of at least 2"),
        ({"repeats": 0}, "repeats must be a whole number of at least 1"),
        ({"folds": 50}, "90 rows to predict, too few for 50 folds"),
        ({"tasks": ["a"] * 90}, "All rows are of one site"),
        ({"y": np.ones((90, 2))}, "takes one target for each of 90 rows; got 2"),
        ({"y": np.ones(90), "kind": "regression"}, "nothing to learn"),
        (
            {"kind": "classification", "methods": ["mixed-slopes"], "y": np.arange(90) % 2},
            "mixed-slopes is for numbers",
        ),
    ],
)
def test_what_cannot_be_compared_is_one_sentence(change, message):
    X, y, site = table()
    given = {"X": X, "y": y, "tasks": site, "methods": CHEAP} | change
    with pytest.raises(ElmeshError, match=message):
        elmesh.compare(**given)


def test_without_statsmodels_mixed_models_are_left_out_with_the_command_that_installs_it(monkeypatch, methods, spy):
    monkeypatch.setattr(rivals, "find_spec", lambda name: None)
    for name in set(METHODS) - {"elmesh", "spy", "mixed-slopes"}:
        del methods[name]
    X, y, site = table()
    found = elmesh.compare(X, y, site, folds=2, repeats=1)
    assert found.methods == ["elmesh", "spy"]
    assert 'pip install "elmesh[compare]"' in found.notes[0]
    with pytest.raises(
        ElmeshError, match=r'mixed-slopes needs the package statsmodels; pip install "elmesh\[compare\]"'
    ):
        elmesh.compare(X, y, site, methods=["mixed-slopes"], folds=2)


@pytest.mark.parametrize("predicted", [np.nan, ArithmeticError("REML did not converge")])
def test_a_method_that_fails_in_a_fold_is_left_out_with_the_reason(methods, spy, predicted):
    def predict(train, new):
        if len(spy) < 2:
            return np.zeros(len(new))
        if isinstance(predicted, Exception):
            raise predicted
        return np.full(len(new), predicted)

    methods["bad"] = Method("a bad method", predict, "use it")
    X, y, site = table()
    found = elmesh.compare(X, y, site, methods=["bad", "spy"], folds=3, repeats=1)
    assert found.methods == ["elmesh", "spy"]
    reason = "REML did not converge" if isinstance(predicted, Exception) else "its predictions are not finite"
    assert found.notes == (f"Left out: a bad method, fold 2 of 3: {reason}.",)
    with pytest.raises(ElmeshError, match=r"No method besides elmesh could be fitted\. Left out: a bad method, fold 1"):
        elmesh.compare(X, y, site, methods=["bad"], folds=3, repeats=1)


def test_an_error_of_elmesh_itself_is_raised():
    X, y, site = table()
    X[3, 1] = np.nan
    with pytest.raises(ElmeshError, match="elmesh cannot be fitted without one of the folds: X is NaN"):
        elmesh.compare(X, y, site, methods=CHEAP, folds=2)


def same(one: Comparison, other: Comparison) -> bool:
    """Whether two comparisons are equal to the bit, except times."""
    drop = {"columns": "seconds"}
    return one.table.drop(**drop).equals(other.table.drop(**drop)) and one.by_site.equals(other.by_site)


def test_after_an_interrupt_only_what_is_missing_is_fitted_and_the_result_is_the_same(spy, tmp_path):
    X, y, site = table()
    options = {"methods": ["spy"], "folds": 3, "repeats": 1}

    def interrupt(done, total, text):
        if done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        elmesh.compare(X, y, site, **options, log=tmp_path / "log", callback=interrupt)
    assert len(spy) == 1
    # A crash may cut the last line short.
    (tmp_path / "log").write_text((tmp_path / "log").read_text() + '{"trial": {"exp')
    found = elmesh.compare(X, y, site, **options, log=tmp_path / "log")
    assert len(spy) == 3
    assert same(found, elmesh.compare(X, y, site, **options))
    # More folds of the same comparison are added.
    elmesh.compare(X, y, site, **options | {"repeats": 2}, log=tmp_path / "log")
    assert len(spy) == 3 + 3 + 3


@pytest.mark.parametrize(
    ("change", "named"),
    [({"seed": 1}, "seed"), ({"folds": 4}, "number of folds"), ({"y": np.sin(np.arange(90.0))}, "table")],
)
def test_a_log_of_another_comparison_is_refused(spy, tmp_path, change, named):
    X, y, site = table()
    given = {"X": X, "y": y, "tasks": site, "methods": ["spy"], "folds": 3, "log": tmp_path / "log", "repeats": 1}
    elmesh.compare(**given)
    before = (tmp_path / "log").read_bytes()
    with pytest.raises(OtherTrialsError, match=f"another {named}"):
        elmesh.compare(**given | change)
    assert (tmp_path / "log").read_bytes() == before


@pytest.mark.parametrize("numbers", [{}, {"predicted": [1.0], "seconds": 1.0}, {"predicted": "x", "seconds": 1.0}])
def test_a_log_with_other_numbers_than_predictions_is_refused(spy, tmp_path, numbers):
    X, y, site = table()
    given = {"X": X, "y": y, "tasks": site, "methods": ["spy"], "folds": 3, "log": tmp_path / "log", "repeats": 1}
    elmesh.compare(**given)
    head, first, *rest = (tmp_path / "log").read_text().splitlines()
    bad = json.dumps({**json.loads(first), "numbers": numbers})
    (tmp_path / "log").write_text("\n".join([head, bad, *rest]) + "\n")
    with pytest.raises(ElmeshError, match="log of finished fits is damaged"):
        elmesh.compare(**given)


# Results


def made(kind="regression", sites=3, **errors) -> Comparison:
    """A comparison whose methods have these errors in six folds, with a noise that is theirs: {name: (mean, noise)}."""
    rng = np.random.default_rng(0)
    noise = rng.normal(size=6)
    noise -= noise.mean()
    names = [name.replace("_", "-") for name in errors]
    scores = pd.DataFrame(
        {name: mean + spread * noise for name, (mean, spread) in zip(names, errors.values(), strict=True)}
    )
    rows = rng.random((20 * sites, 1)) ** 2 * np.array([mean for mean, _ in errors.values()])
    index = pd.Index(np.repeat([f"s{k}" for k in range(sites)], 20), name="site")
    losses = pd.DataFrame(rows, columns=names, index=index)
    unit = "units of the target" if kind == "regression" else "share of wrong classes"
    measures = {"error": scores} if kind == "regression" else {"error": scores, "log_loss": 2 * scores}
    return Comparison(kind, unit, measures, losses, dict.fromkeys(names, 0.5), 3, 2, 0.5)


CLEAR, VAGUE = 0.01, 3.0
SENTENCES = {
    "better than all": (
        {"elmesh": (1.0, 0), "elmesh_alone": (2.0, CLEAR), "boosting_pooled": (1.5, CLEAR)},
        "Use elmesh: it is clearly better than every other method (error 1; next: gradient boosting pooled, 1.5).",
    ),
    "better than alone, pooled undecided": (
        {"elmesh": (1.0, 0), "elmesh_alone": (2.0, CLEAR), "linear_pooled": (0.9, VAGUE), "mixed_slopes": (3.0, CLEAR)},
        "Use elmesh: it is clearly better than elmesh alone (error 1 instead of 2), and no method that needs all "
        "rows in one place is clearly better than elmesh (best: linear model pooled, 0.9).",
    ),
    "pooled better, alone worse": (
        {"elmesh": (1.0, 0), "elmesh_alone": (2.0, CLEAR), "boosting_pooled": (0.5, CLEAR)},
        "Gradient boosting pooled is clearly better than elmesh (error 0.5 instead of 1): use it if rows may be "
        "pooled; if they must stay at their sites, elmesh is clearly better than elmesh alone (error 1 instead "
        "of 2).",
    ),
    "pooled better, alone undecided": (
        {"elmesh": (1.0, 0), "boosting_alone": (0.9, VAGUE), "boosting_pooled": (0.5, CLEAR)},
        "Gradient boosting pooled is clearly better than elmesh (error 0.5 instead of 1): use it if rows may be "
        "pooled; if they must stay at their sites, elmesh is not clearly better than gradient boosting alone "
        "(error 1 and 0.9; clearly better at 0 and worse at 3 of 3 sites).",
    ),
    "both better": (
        {"elmesh": (1.0, 0), "elmesh_common": (0.8, CLEAR), "mixed_intercepts": (0.5, CLEAR)},
        "Mixed model with intercepts is clearly better than elmesh (error 0.5 instead of 1): use it if rows may "
        "be pooled; if they must stay at their sites, one elmesh model for all sites is clearly better than "
        "elmesh (error 0.8 instead of 1): fit it with --parts common.",
    ),
    "alone better": (
        {"elmesh": (1.0, 0), "elmesh_alone": (0.5, CLEAR), "boosting_pooled": (0.8, VAGUE)},
        "Elmesh alone is clearly better than elmesh (error 0.5 instead of 1): fit each site by itself, with "
        "--solver local-elm.",
    ),
    "nothing clear": (
        {"elmesh": (1.0, 0), "elmesh_alone": (1.1, VAGUE), "boosting_pooled": (0.9, VAGUE)},
        "Elmesh is not clearly better than elmesh alone (error 1 and 1.1; clearly better at 3 and worse at 0 of "
        "3 sites), and no method that needs all rows in one place is clearly better than elmesh (best: gradient "
        "boosting pooled, 0.9).",
    ),
    "alone undecided, pooled worse": (
        {"elmesh": (1.0, 0), "elmesh_alone": (1.1, VAGUE), "linear_pooled": (3.0, CLEAR)},
        "Elmesh is not clearly better than elmesh alone (error 1 and 1.1; clearly better at 3 and worse at 0 of "
        "3 sites), and every method that needs all rows in one place is clearly worse (best: linear model "
        "pooled, 3).",
    ),
    "alone only": (
        {"elmesh": (1.0, 0), "elmesh_alone": (1.1, VAGUE), "elmesh_common": (2.0, CLEAR)},
        "Elmesh is not clearly better than elmesh alone (error 1 and 1.1; clearly better at 3 and worse at 0 of "
        "3 sites).",
    ),
    "pooled only": (
        {"elmesh": (1.0, 0), "linear_pooled": (0.9, VAGUE)},
        "No method that needs all rows in one place is clearly better than elmesh (best: linear model pooled, 0.9).",
    ),
    "a clear one before a lower one": (
        {"elmesh": (1.0, 0), "boosting_pooled": (0.4, VAGUE), "linear_pooled": (0.5, CLEAR)},
        "Linear model pooled is clearly better than elmesh (error 0.5 instead of 1): use it if rows may be pooled.",
    ),
}


@pytest.mark.parametrize("case", SENTENCES)
def test_the_conclusion_follows_the_numbers_in_every_case(case):
    errors, expected = SENTENCES[case]
    assert made(**errors).sentence() == expected


def test_classes_have_a_conclusion_by_log_loss_too():
    found = made("classification", elmesh=(0.2, 0), linear_pooled=(0.1, 1e-3))
    assert "(error 10 % instead of 20 %)" in found.sentence()
    assert "(log loss 0.200 instead of 0.400)" in found.sentence("log_loss")
    with pytest.raises(ElmeshError, match='must be "error"'):
        found.sentence("auc")
    with pytest.raises(ElmeshError, match='must be "error"'):
        made(elmesh=(1.0, 0), linear_pooled=(1.1, 0.1)).sentence("log_loss")


def test_the_table_has_differences_from_elmesh_with_their_corrected_standard_errors():
    found = made(elmesh=(1.0, 0.2), elmesh_alone=(1.5, 0.9))
    change = found.scores["error"]["elmesh-alone"] - found.scores["error"]["elmesh"]
    row = found.table.loc["elmesh-alone"]
    assert row["error_difference"] == pytest.approx(0.5)
    assert row["error_standard_error"] == pytest.approx(corrected_standard_error(change.to_numpy(), 0.5))
    quantile = 2.570581835636314  # of Student's t with five degrees of freedom
    assert row["error_high"] - row["error_difference"] == pytest.approx(quantile * row["error_standard_error"])
    assert row["error_difference"] - row["error_low"] == pytest.approx(quantile * row["error_standard_error"])


def test_losses_are_means_over_repeats_and_scores_are_of_each_fold(spy, tmp_path):
    X, y, site = table(91)  # folds of unequal size
    found = elmesh.compare(X, y, site, methods=["spy"], folds=3, repeats=2, log=tmp_path / "log")
    lines = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()[1:]]
    squares, errors, ratios = np.zeros(91), [], []
    for (train, new), line in zip(spy, [x for x in lines if x["trial"]["case"] == "spy"], strict=True):
        rows = new.X[:, 0].astype(int)
        loss = (np.array(line["numbers"]["predicted"]) - y[rows]) ** 2
        squares[rows] += loss / 2
        errors.append(np.sqrt(loss.mean()))
        ratios.append(len(rows) / len(train))
    np.testing.assert_allclose(found.losses["spy"], squares)
    np.testing.assert_allclose(found.scores["error"]["spy"], errors)
    assert found.ratio == pytest.approx(np.mean(ratios))
    assert found.ratio == pytest.approx(1 / 2, rel=0.01)
    assert found.by_site.loc["s1", "spy"] == pytest.approx(np.sqrt(squares[site == "s1"].mean()))


def test_a_method_is_best_at_a_site_if_it_is_clearly_better_than_every_other():
    rng = np.random.default_rng(0)
    base = rng.random(30)
    columns = {"elmesh": base.copy(), "elmesh-alone": base + 0.2, "linear-pooled": base + 0.1}
    columns["linear-pooled"][10:20] -= 0.15  # clearly the best at the second site
    columns["elmesh-alone"][20:] = base[20:] - 0.1 * (-1.0) ** np.arange(10)  # not clear at the third
    site = np.repeat(["a", "b", "c"], 10)
    losses = pd.DataFrame(columns, index=pd.Index(site, name="site"))
    # A site of four rows has no clear best.
    losses = pd.concat([losses, losses[:4].set_axis(["d"] * 4)])
    losses.index.name = "site"
    found = made(elmesh=(1.0, 0), elmesh_alone=(1.5, 0.1), linear_pooled=(1.0, 0.1))
    found = Comparison(found.kind, found.unit, found.scores, losses, found.seconds, 3, 2, 0.5)
    assert found.by_site["best"].to_dict()["b"] == "linear-pooled"
    assert found.by_site["clearly_best"].tolist() == [True, True, False, False]
    assert found.by_site.loc["a", "elmesh"] == pytest.approx(np.sqrt(base[:10].mean()))
    assert found.by_site["rows"].tolist() == [10, 10, 10, 4]
    counts = found.table[["sites_best", "sites_better", "sites_worse"]]
    assert counts.loc["elmesh"].tolist() == [1, 0, 0]
    assert counts.loc["linear-pooled"].tolist() == [1, 1, 2]
    assert counts.loc["elmesh-alone"].tolist() == [0, 0, 2]


def test_json_has_every_number_of_the_tables_and_no_number_that_is_not_finite(spy):
    X, _, site = table()
    labels = np.where(np.arange(90) < 87, "no", "yes")  # two folds lack a class
    found = elmesh.compare(X, labels, site, methods=["spy"], folds=5, repeats=1)
    assert found.scores["auc"].isna().to_numpy().sum() == 4
    data = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert data["sentence"] == found.sentence()
    assert [row["method"] for row in data["methods"]] == ["elmesh", "spy"]
    assert data["methods"][1]["log_loss"] == found.table.loc["spy", "log_loss"]
    assert [row["site"] for row in data["by_site"]] == ["s0", "s1", "s2"]
    assert data["by_site"][0]["rows"] == 30
    assert (data["rows"], data["folds"], data["repeats"]) == (90, 5, 1)


def test_small_tables_are_divided_three_times_and_large_ones_once(spy, monkeypatch):
    X, y, site = table()
    assert elmesh.compare(X, y, site, methods=["spy"], folds=2).repeats == 3
    monkeypatch.setattr("elmesh.evaluation.compare.SMALL", 90)
    assert elmesh.compare(X, y, site, methods=["spy"], folds=2).repeats == 1
