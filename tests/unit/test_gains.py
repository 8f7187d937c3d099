"""What tasks gain by learning together, on rows left out."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from elmesh import LocalELM, MeshELM, MultiTaskELMClassifier, MultiTaskELMRegressor, Privacy
from elmesh.data.statistics import SiteRows
from elmesh.datasets import simulate_clinics
from elmesh.errors import ElmeshError
from elmesh.estimators.gains import WRONG, SiteGains, TaskGain
from elmesh.math.random_effects import site_batches
from elmesh.report import gains_page, gains_table, render
from elmesh.solvers.local_elm import local_variances, local_weights


@pytest.fixture(scope="module")
def clinics():
    return simulate_clinics(seed=0, n_test=400)


@pytest.fixture(scope="module")
def fitted(clinics):
    model = MultiTaskELMRegressor(random_state=0).fit(clinics.X_train, clinics.y_train, tasks=clinics.tasks_train)
    return model, model.site_gains(clinics.X_train, clinics.y_train, tasks=clinics.tasks_train)


def rms(errors):
    return float(np.sqrt(np.mean(np.square(errors))))


def test_errors_on_rows_left_out_are_those_on_new_rows(fitted, clinics):
    model, gains = fitted
    alone = MultiTaskELMRegressor(solver=LocalELM(), random_state=0)
    alone.fit(clinics.X_train, clinics.y_train, tasks=clinics.tasks_train)
    pooled = MultiTaskELMRegressor(solver=MeshELM(private=False, graph=None), random_state=0)
    pooled.fit(clinics.X_train, clinics.y_train, tasks=clinics.tasks_train)
    found = {"together": model, "alone": alone, "pooled": pooled}
    for name, fit in found.items():
        # Each task counts as often as it has training rows.
        errors = clinics.y_test - fit.predict(clinics.X_test, tasks=clinics.tasks_test)
        by_task = pd.Series(errors**2).groupby(clinics.tasks_test).mean()
        rows = pd.Series(clinics.tasks_train).value_counts()[by_task.index]
        expected = np.sqrt(np.average(by_task, weights=rows))
        assert getattr(gains.overall, name) == pytest.approx(expected, rel=0.12), name
    assert gains.overall.together < gains.overall.alone
    assert gains.overall.together < gains.overall.pooled


def test_who_has_few_rows_gains_and_who_differs_has_a_private_part(fitted):
    table = fitted[1].table
    assert list(table.columns) == [
        "rows", "alone", "together", "pooled", "change", "low", "high", "common", "shared", "private",
        "verdict",
    ]  # fmt: skip
    np.testing.assert_allclose(table[["common", "shared", "private"]].sum(axis=1), 1.0)
    np.testing.assert_allclose(table["change"], table["together"] - table["alone"])
    assert (table["low"] < table["change"]).all()
    assert (table["change"] < table["high"]).all()
    assert table.loc["Fir", "change"] < table.loc["Beech", "change"] < 0
    # Of six rows nothing is known for certain.
    assert table.loc["Rowan", "low"] < 0 < table.loc["Rowan", "high"]
    assert table.loc["Larch", "private"] > table.loc["Beech", "private"]


def test_the_interval_contains_the_change_in_most_draws():
    """Sites that learn together gain nothing where all is noise: a clear verdict is rare then."""
    clear = []
    for seed in range(5):
        rng = np.random.default_rng(seed)
        X, sites = rng.normal(size=(240, 3)), np.repeat(np.arange(8), 30)
        y = rng.normal(size=240)
        gains = MultiTaskELMRegressor(20, random_state=0).fit(X, y, tasks=sites).site_gains(X, y, tasks=sites)
        clear += [one.clear == 1 for one in gains.tasks]
    assert np.mean(clear) < 0.1


def test_classes_are_counted_as_right_or_wrong():
    rng = np.random.default_rng(0)
    sites = np.repeat(["a", "b", "c", "d", "e", "f"], 25)
    X = rng.normal(size=(150, 4))
    y = np.where(X @ [2.0, -1.0, 1.0, 0.0] + 0.3 * rng.normal(size=150) > 0, "high", "low")
    model = MultiTaskELMClassifier(20, random_state=0).fit(X, y, tasks=sites)
    gains = model.site_gains(X, y, tasks=sites)
    assert gains.unit == WRONG
    assert 0.0 < gains.overall.together < 0.2
    for one in gains.tasks:
        assert (one.alone * 25) % 1 == pytest.approx(0.0, abs=1e-9)
    new = rng.normal(size=(4000, 4))
    truth = np.where(new @ [2.0, -1.0, 1.0, 0.0] + 0.3 * rng.normal(size=4000) > 0, "high", "low")
    wrong = np.mean(model.predict(new, tasks=np.resize(["a", "b", "c", "d", "e", "f"], 4000)) != truth)
    assert gains.overall.together == pytest.approx(wrong, abs=0.06)


def test_classes_that_a_site_lacks_are_not_chosen_there():
    rng = np.random.default_rng(1)
    sites = np.repeat([0, 1, 2], 20)
    X = rng.normal(size=(60, 2))
    y = np.where(X[:, 0] > 0.6, 2, np.where(X[:, 0] > 0, 1, 0))
    y[sites == 0] = np.minimum(y[sites == 0], 1)
    gains = MultiTaskELMClassifier(20, random_state=0).fit(X, y, tasks=sites).site_gains(X, y, tasks=sites)
    assert gains.overall.together < 0.4


def test_several_targets_count_in_their_standard_deviations():
    rng = np.random.default_rng(0)
    X, sites = rng.normal(size=(80, 3)), np.repeat([0, 1, 2, 3], 20)
    Y = np.column_stack([X @ [1.0, 1.0, 0.0], 1e6 * (X @ [0.0, 1.0, 1.0])]) + rng.normal(size=(80, 2)) * [0.1, 1e5]
    model = MultiTaskELMRegressor(20, random_state=0).fit(X, Y, tasks=sites)
    gains = model.site_gains(X, Y, tasks=sites)
    assert gains.unit == "standard deviations"
    assert 0.02 < gains.overall.together < 0.4


def test_a_shared_part_and_private_fits_have_gains_too(clinics):
    rng = np.random.default_rng(0)
    X, sites = rng.normal(size=(200, 4)), np.repeat(np.arange(10), 20)
    y = (X @ [1.0, 0.5, -0.5, 0.2]) * rng.normal(size=10)[sites] + 0.1 * rng.normal(size=200)
    shared = MultiTaskELMRegressor(20, solver=MeshELM(rank=1, mu1=1.0, mu2=1.0), random_state=0).fit(X, y, tasks=sites)
    assert shared.model_.common.U is not None
    gains = shared.site_gains(X, y, tasks=sites)
    assert rms(y - shared.predict(X, tasks=sites)) < gains.overall.together < np.std(y)
    privacy = Privacy(epsilon=5.0, delta=1e-5, input_range=(-2, 2), target_range=(3, 13))
    private = MultiTaskELMRegressor(20, solver=MeshELM(privacy=privacy), random_state=0)
    private.fit(clinics.X_train, clinics.y_train, tasks=clinics.tasks_train)
    gains = private.site_gains(clinics.X_train, clinics.y_train, tasks=clinics.tasks_train)
    assert gains.overall.together < gains.overall.alone


def test_a_task_of_one_row_has_no_interval():
    rng = np.random.default_rng(0)
    X, sites = rng.normal(size=(41, 2)), np.array(["a"] * 20 + ["b"] * 20 + ["single"])
    y = X[:, 0] + 0.1 * rng.normal(size=41)
    gains = MultiTaskELMRegressor(20, random_state=0).fit(X, y, tasks=sites).site_gains(X, y, tasks=sites)
    single = next(one for one in gains.tasks if one.task == "single")
    assert (single.rows, single.clear) == (1, 0)
    assert json.loads(json.dumps(gains.to_json()))["tasks"][-1]["change_interval"] is None


def test_a_table_of_any_columns_is_taken_as_in_fit():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {"x": rng.normal(size=60), "word": np.resize(["a", "b"], 60), "site": np.resize([1, 2, 3], 60)}
    )
    y = frame["x"] + (frame["word"] == "a") + 0.1 * rng.normal(size=60)
    gains = MultiTaskELMRegressor(20, task="site", random_state=0).fit(frame, y).site_gains(frame, y)
    assert [one.task for one in gains.tasks] == [1, 2, 3]
    assert gains.overall.together < 0.4


def test_a_site_of_a_network_compares_with_itself_alone(fitted, clinics):
    model, gains = fitted
    own = clinics.tasks_train == "Rowan"
    one = model.for_task("Rowan").site_gains(clinics.X_train[own], clinics.y_train[own], pooled=False)
    rowan = next(found for found in gains.tasks if found.task == "Rowan")
    assert (one.overall.pooled, one.tasks[0].pooled) == (None, None)
    assert one.overall.together == pytest.approx(rowan.together, rel=1e-9)
    assert one.overall.alone == pytest.approx(rowan.alone, rel=1e-9)
    assert one.sentence() == "There are too few rows to tell whether learning together is better than alone."
    tenfold = one.in_units(10.0)
    assert tenfold.overall.change == pytest.approx(10 * one.overall.change)
    assert tenfold.tasks[0].high == pytest.approx(10 * one.tasks[0].high)
    assert gains_table(one).rows[0][-2] == "–"


def test_what_cannot_be_measured_is_refused(fitted, clinics):
    model, _ = fitted
    with pytest.raises(ElmeshError, match="Task 'nowhere' is not known"):
        model.site_gains(clinics.X_train[:2], clinics.y_train[:2], tasks=["nowhere"] * 2)
    local = MultiTaskELMRegressor(solver=LocalELM(), random_state=0)
    local.fit(clinics.X_train, clinics.y_train, tasks=clinics.tasks_train)
    with pytest.raises(ElmeshError, match="models with a common part"):
        local.site_gains(clinics.X_train, clinics.y_train, tasks=clinics.tasks_train)


# Sentences and pages.


def one(task, change, half):
    return TaskGain(task, 30, 1.0, 1.0 + change, 1.2, change - half, change + half, (0.7, 0.1, 0.2))


@pytest.mark.parametrize(
    ("change", "half", "verdict"),
    [
        (-0.1, 0.05, "gains"),
        (0.1, 0.05, "better alone"),
        (-0.02, 0.05, "as good alone"),
        (-0.06, 0.07, "too few rows to tell"),  # the interval is narrow, and reaches further than a tenth
        (0.04, 0.07, "too few rows to tell"),
        (-0.1, 0.2, "too few rows to tell"),
        (-0.1, np.inf, "too few rows to tell"),
    ],
)
def test_a_verdict_is_clear_or_the_rows_are_enough_to_see_no_difference_or_too_few(change, half, verdict):
    assert one("t", change, half).verdict == verdict


def test_tasks_that_are_as_good_alone_are_counted():
    tasks = (one("a", -0.5, 0.1), one("b", 0.01, 0.05))
    text = SiteGains(tasks, tasks[0], "units of the target").sites_sentence()
    assert text == "1 of 2 sites clearly gains by learning together; 1 is as good alone; none is clearly better alone."


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ([-0.5, -0.4], "2 of 2 sites clearly gain by learning together; none is clearly better alone."),
        ([-0.5, 0.4], "1 of 2 sites clearly gains by learning together; clearly better alone: 't1'."),
        (
            [0.1, 0.0],
            "None of 2 sites clearly gains by learning together; 2 have too few rows to tell; none is clearly better "
            "alone.",
        ),
        ([0.5] * 6, "None of 6 sites clearly gains by learning together; clearly better alone: 6 sites."),
    ],
)
def test_the_sentence_follows_from_the_numbers(changes, sentence):
    tasks = tuple(one(f"t{k}", change, 0.2) for k, change in enumerate(changes))
    gains = SiteGains(tasks, tasks[0], "units of the target")
    assert gains.sites_sentence() == sentence
    assert gains.sentence() == f"{gains.overall_sentence()} {sentence}"


@pytest.mark.parametrize(
    ("change", "pooled", "sentence"),
    [
        (-0.5, 1.2, "Over all rows learning together lowers the error clearly, from 1 to 0.5."),
        (0.5, None, "Over all rows learning together raises the error clearly, from 1 to 1.5."),
        (
            -0.05,
            0.9,
            "Over all rows the errors together and alone do not differ clearly (0.95 and 1); one model for all sites "
            "is as good (0.9).",
        ),
    ],
)
def test_the_sentence_on_all_rows_names_one_model_for_all_if_it_is_as_good(change, pooled, sentence):
    overall = replace(one("all rows", change, 0.2), pooled=pooled)
    assert SiteGains((overall, overall), overall, "units of the target").overall_sentence() == sentence


def test_of_few_rows_nothing_is_clear():
    few = TaskGain("t", 4, 1.0, 0.5, None, -0.6, -0.4, (1.0, 0.0, 0.0))
    assert (few.clear, few.verdict) == (0, "too few rows to tell")


def test_classes_that_both_predict_alike_may_still_differ_on_further_rows():
    """Of nine rows without a difference, three in nine further ones might differ."""
    rng = np.random.default_rng(0)
    X, sites = rng.normal(size=(69, 2)), np.array(["large"] * 60 + ["small"] * 9)
    y = np.where(X[:, 0] > -5, "no", "yes")
    y[:4] = "yes"
    gains = MultiTaskELMClassifier(20, random_state=0).fit(X, y, tasks=sites).site_gains(X, y, tasks=sites)
    small = gains.tasks[1]
    assert small.high - small.change >= 3 / 9
    assert small.verdict == "too few rows to tell"


SUMMARY = {
    "targets": ["y"], "kind": "regression", "rows": 90, "columns": ["a", "b"], "solver": "mesh-elm", "rounds": 3,
    "certificate": None, "privacy": None,
}  # fmt: skip


@pytest.mark.parametrize("n", [2, 30])
def test_the_page_has_all_tasks_and_escapes_their_names(n):
    tasks = tuple(one(f"<b>{k}</b>", -0.1 + 0.01 * k, 0.05) for k in range(n))
    html = render(gains_page(SiteGains(tasks, tasks[0], "units of the target"), SUMMARY))
    assert "<b>0</b>" not in html
    assert html.count("&lt;b&gt;1&lt;/b&gt;") >= 2
    assert ("The figure shows 24 of 30 sites" in html) == (n == 30)
    assert all(f"&lt;b&gt;{k}&lt;/b&gt;" in html for k in range(n))


@pytest.mark.parametrize("privacy", [None, {"promise": "Epsilon 1.", "model": "The model is not private."}])
def test_the_page_says_how_confidential_the_model_is(privacy):
    tasks = (one("a", -0.1, 0.05), one("b", 0.0, 0.05))
    html = render(gains_page(SiteGains(tasks, tasks[0], "units of the target"), SUMMARY | {"privacy": privacy}))
    assert ("keep it as confidential as they are" in html) == (privacy is None)
    assert ("Epsilon 1. The model is not private." in html) == (privacy is not None)


def test_the_table_has_the_largest_gain_first_and_all_rows_last():
    tasks = (one("a", 0.1, 0.05), one("b", -0.2, 0.5), one("c", -0.1, 0.05))
    rows = gains_table(SiteGains(tasks, one("all rows", -0.05, np.inf), WRONG)).rows
    assert [row[0] for row in rows] == ["b", "c", "a", "all rows"]
    assert [row[1] for row in rows] == ["too few rows to tell", "gains", "better alone", "too few rows to tell"]
    assert rows[1][4] == "\N{MINUS SIGN}10 ± 5 points"
    assert rows[3][4] == "\N{MINUS SIGN}5 points"


def test_the_page_shows_what_is_to_be_checked_about_the_table_and_who_should_learn_alone():
    tasks = (one("a", 0.1, 0.05), one("b", -0.2, 0.05))
    gains = SiteGains(tasks, tasks[1], "units of the target")
    html = render(gains_page(gains, SUMMARY, notes=['Column "tax" alone <determines> the target.']))
    assert "Check these first" in html
    assert "Column &#34;tax&#34; alone &lt;determines&gt; the target." in html
    assert "Of &#39;a&#39;: first check that columns have the same units" in html
    assert "Check these first" not in render(gains_page(SiteGains(tasks[1:], tasks[1], "units"), SUMMARY))


def test_gains_do_not_depend_on_the_order_of_rows_nor_on_whether_rows_are_given_or_kept(clinics):
    rng = np.random.default_rng(0)
    model = MultiTaskELMRegressor(20, random_state=0)
    model.fit(clinics.X_train, clinics.y_train, tasks=clinics.tasks_train)
    kept = model.site_gains()
    order = rng.permutation(len(clinics.y_train))
    given = model.site_gains(clinics.X_train[order], clinics.y_train[order], tasks=clinics.tasks_train[order])
    for name in ("alone", "together", "pooled", "low", "high"):
        np.testing.assert_allclose(given.table[name], kept.table[name], rtol=1e-6)


def test_a_small_task_alone_leaves_out_each_row_by_itself(clinics):
    """Against a fit of the task without each row in turn, with variances found anew."""
    model = MultiTaskELMRegressor(20, random_state=0)
    model.fit(clinics.X_train, clinics.y_train, tasks=clinics.tasks_train)
    own = clinics.tasks_train == "Fir"
    X, y = model.model_.layer(clinics.X_train[own]), clinics.y_train[own]
    found = next(one for one in model.site_gains().tasks if one.task == "Fir").alone
    T, errors = (y - clinics.y_train.mean())[:, None], []
    for row in range(len(y)):
        rest = np.arange(len(y)) != row
        (batch,) = site_batches([SiteRows.from_rows(X[rest], T[rest], np.ones(rest.sum()))], model.model_.layer.groups)
        (W,) = local_weights(batch, local_variances(batch, 0.0))
        errors.append((T[row] - X[row] @ W).item())
    assert found == pytest.approx(rms(np.array(errors)), rel=0.02)
