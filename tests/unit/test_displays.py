"""Displays: the conventions of scikit-learn, and drawings that show their data and can be read."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

import elmesh
from elmesh import (
    ConvergenceDisplay,
    EffectDisplay,
    ImportanceDisplay,
    MultiTaskELMClassifier,
    MultiTaskELMRegressor,
    SiteGainDisplay,
    SiteMapDisplay,
)
from elmesh.errors import ElmeshError
from elmesh.estimators.explanation import Effect
from elmesh.report import gains_page
from elmesh.report.figures import COLORS, figure, to_svg
from helpers.marks import one_of
from helpers.pictures import assert_legible


@pytest.fixture(scope="module")
def fitted():
    rng = np.random.default_rng(0)
    n = 160
    table = pd.DataFrame(
        {
            "site": np.repeat([f"site {k}" for k in range(8)], 20),
            "age": rng.normal(50, 10, n),
            "ward": rng.choice(["eye", "ear"], n),
            "day": pd.Timestamp("2024-01-01") + pd.to_timedelta(rng.integers(0, 700, n), unit="D"),
        }
    )
    level = np.repeat(np.linspace(0, 3, 8), 20)
    y = table["age"] / 5 + 2 * (table["ward"] == "eye") + level + rng.normal(scale=0.3, size=n)
    model = MultiTaskELMRegressor(task="site", n_hidden=20, random_state=0).fit(table, y.rename("stay"))
    return model, table, y, model.explain(table, y)


@pytest.fixture
def pyplot():
    """pyplot without figures, before and after."""
    plt.switch_backend("agg")
    plt.close("all")
    yield plt
    plt.close("all")


DISPLAYS = [SiteGainDisplay, ImportanceDisplay, SiteMapDisplay, EffectDisplay]


@pytest.mark.parametrize("display", DISPLAYS)
def test_a_display_of_an_estimator_makes_a_figure_only_without_axes(display, fitted, pyplot):
    model, table, y, _ = fitted
    new = display.from_estimator(model, table, y)
    assert isinstance(new, display)
    assert pyplot.get_fignums() == [new.figure_.number]
    assert new.figure_.axes == [new.ax_]
    pyplot.close("all")
    ax = Figure().add_subplot()
    given = display.from_estimator(model, table, y, ax=ax)
    assert (given.ax_, given.figure_) == (ax, ax.figure)
    assert given.plot(ax=Figure().add_subplot()) is given
    assert pyplot.get_fignums() == []


def test_rows_of_an_array_are_displayed_with_their_tasks(pyplot):
    X, site = np.random.default_rng(0).normal(size=(60, 2)), np.repeat([1, 2, 3], 20)
    model = MultiTaskELMRegressor(n_hidden=5, random_state=0).fit(X, X[:, 1], tasks=site)
    ax = EffectDisplay.from_estimator(model, X, X[:, 1], site, column=1).ax_
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("column 1", "predicted y")
    labels = [text.get_text() for text in SiteMapDisplay.from_estimator(model, X, X[:, 1], tasks=site).ax_.texts]
    assert sorted(labels) == ["1", "2", "3"]


def test_the_page_has_the_drawings_of_the_displays(fitted):
    model, table, y, _ = fitted
    gains, found = model.site_gains(table, y), model.explain(table, y, columns=["age"])
    summary = {"targets": ["stay"], "kind": "regression", "rows": 160, "columns": ["x"], "solver": "mesh-elm",
               "rounds": 1, "certificate": None, "privacy": None}  # fmt: skip
    figures = {f.id: f for section in gains_page(gains, summary, found).sections for f in section.figures}
    displays = {
        "fig-errors": SiteGainDisplay(gains),
        "fig-importance": ImportanceDisplay(found),
        "fig-effect-1": EffectDisplay(found.effect("age")),
        "fig-map": SiteMapDisplay(found),
    }
    for name, display in displays.items():
        drawing = figure(display.plot, size=tuple(figures[name].drawing.get_size_inches()))
        same = {"prefix": "x", "title": "", "description": ""}
        assert to_svg(drawing, **same) == to_svg(figures[name].drawing, **same), name


def test_displays_are_names_of_the_package_and_cost_nothing_until_they_are_used():
    names = {"ConvergenceDisplay", *(display.__name__ for display in DISPLAYS)}
    assert names <= set(elmesh.__all__)
    code = "import sys, elmesh; print('matplotlib' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


# What is drawn


def test_bars_are_the_importances_with_two_standard_errors(fitted):
    found = fitted[-1]
    ax = ImportanceDisplay(found).plot(Figure().add_subplot()).ax_
    values, errors = found.importance["importance"], found.importance["standard_error"]
    assert [label.get_text() for label in ax.get_yticklabels()] == list(values.index)
    assert [bar.get_width() for bar in ax.patches] == pytest.approx(values.clip(0).tolist())
    for line, value, error in zip(ax.lines, values, errors, strict=True):
        assert line.get_xdata() == pytest.approx(np.maximum([value - 2 * error, value + 2 * error], 0))
    assert len(ImportanceDisplay(found).plot(Figure().add_subplot(), most=2).ax_.patches) == 2


def test_an_effect_has_a_line_for_all_rows_and_each_task_and_labels_those_that_differ_most(fitted):
    effect = fitted[-1].effect("age")
    ax = EffectDisplay(effect).plot(Figure().add_subplot()).ax_
    lines = {line.get_color(): line for line in ax.lines if len(line.get_xdata()) == len(effect.overall)}
    np.testing.assert_allclose(lines[COLORS["ink"]].get_ydata(), effect.overall)
    drawn = [line.get_ydata() for line in ax.lines if len(line.get_xdata()) == len(effect.overall)]
    assert len(drawn) == 9
    for task in effect.tasks:
        assert any(np.allclose(line, effect.tasks[task]) for line in drawn)
    labels = {text.get_text() for text in ax.texts} - {""}
    far = (effect.tasks.sub(effect.overall, axis=0) ** 2).mean().nlargest(4).index
    assert labels == {"all rows", "other sites", *far}
    grey = [line for line in ax.lines if line.get_color() == COLORS["muted"]]
    assert len(grey) == 4
    assert all(line.get_linewidth() < 1.5 for line in grey)


@pytest.mark.parametrize(("n_tasks", "thin"), [(104, 100), (105, 51), (404, 100)])
def test_of_hundreds_of_tasks_an_even_part_is_drawn_and_those_that_differ_most(n_tasks, thin):
    tasks = pd.DataFrame({k: [k / n_tasks, 1.0] for k in range(n_tasks)}, index=[0.0, 1.0])
    tasks[[3, 50]] += 9.0  # these differ most, then the first and the last
    effect = Effect("x", "number", "y", False, pd.Series([0.5, 1.0], index=tasks.index), tasks)
    ax = EffectDisplay(effect).plot(Figure().add_subplot()).ax_
    grey = [line.get_ydata()[0] * n_tasks for line in ax.lines if line.get_color() == COLORS["muted"]]
    assert len(grey) == thin
    assert min(grey) < 5
    assert max(grey) > n_tasks - 8
    assert {"3", "50"} < {text.get_text() for text in ax.texts}


def test_a_task_has_the_same_color_in_the_effects_of_all_columns(fitted):
    found = fitted[-1]

    def colors(column):
        ax = EffectDisplay(found.effect(column)).plot(Figure().add_subplot(), labelled=2).ax_
        return {text.get_text(): to_hex(text.get_color()) for text in ax.texts if text.get_text().startswith("site")}

    age, ward = colors("age"), colors("ward")
    shared = age.keys() & ward.keys()
    assert shared
    assert all(age[name] == ward[name] for name in shared)


def test_categories_are_in_the_order_of_the_mean_and_dates_have_dates(fitted):
    found = fitted[-1]
    fig = figure(EffectDisplay(found.effect("ward")).plot)
    assert [label.get_text() for label in fig.axes[0].get_xticklabels()] == ["ear", "eye"]
    assert_legible(fig)
    fig = figure(EffectDisplay(found.effect("day")).plot)
    assert_legible(fig)
    ticks = [label.get_text() for label in fig.axes[0].get_xticklabels()]
    assert any(text in ("2024", "2025") for text in ticks)


def many_categories(n):
    index = pd.Index([f"a long category {k}" for k in range(n - 1)] + [None], name="kind", dtype=object)
    overall = pd.Series(np.arange(n)[::-1].astype(float), index=index)
    return Effect("kind", "category", "y", False, overall, pd.DataFrame({t: overall + t for t in range(3)}))


def test_of_many_categories_the_lowest_and_the_highest_are_drawn():
    fig = figure(EffectDisplay(many_categories(30)).plot)
    names = [label.get_text() for label in fig.axes[0].get_xticklabels()]
    assert len(names) == 12
    assert (names[0], names[-1]) == ("missing", "a long category 0")
    assert_legible(fig)


def test_one_task_that_is_far_above_the_others_is_drawn_to_scale():
    index = pd.Index([0.0, 1.0], name="x")
    tasks = pd.DataFrame({"small": [1.0, 2.0], "large": [5e5, 1e6]}, index=index)
    effect = Effect("x", "number", "y", False, tasks.mean(axis=1), tasks)
    ax = EffectDisplay(effect).plot(Figure().add_subplot()).ax_
    assert ax.get_ylim()[1] > 1e6
    assert "large" in [text.get_text() for text in ax.texts]


def test_the_map_has_a_point_per_task_with_the_color_of_its_group():
    rng = np.random.default_rng(0)
    site = np.repeat(np.arange(30), 12)
    X = rng.normal(size=(360, 2))
    y = np.where(site % 3 > 0, 2.0, -2.0) * X[:, 0] + 0.1 * rng.normal(size=360)
    found = MultiTaskELMRegressor(n_hidden=None, random_state=0).fit(X, y, tasks=site).explain(X, y, tasks=site)
    assert [len(group) for group in found.groups] == [10, 20]
    fig = figure(SiteMapDisplay(found).plot)
    (ax,) = fig.axes
    assert [len(points.get_offsets()) for points in ax.collections] == [10, 20]
    np.testing.assert_allclose(ax.collections[0].get_offsets(), found.coordinates.iloc[::3])
    assert to_hex(ax.collections[0].get_facecolor()[0]) != to_hex(ax.collections[1].get_facecolor()[0])
    assert [text.get_text() for text in ax.texts] == [str(task) for task in found.mean_distances.index[:12]]
    FigureCanvasAgg(fig).draw()
    x, y = ax.transData.transform([(1.0, 1.0), (0.0, 0.0)]).T
    assert x[0] - x[1] == pytest.approx(y[0] - y[1])


@pytest.mark.parametrize("seed", one_of(3, range(4)))
def test_the_names_on_a_map_do_not_overlap(seed, fitted):
    found = fitted[-1]
    rng = np.random.default_rng(seed)
    places = pd.DataFrame(rng.normal(size=(8, 2)), index=found.coordinates.index, columns=["x", "y"])
    assert_legible(figure(SiteMapDisplay(replace(found, coordinates=places)).plot))


def test_names_with_dollar_signs_and_long_names_are_drawn_as_text():
    rng = np.random.default_rng(0)
    site = np.repeat(["$5 or $\\frac", "a name that is much longer than any plot is wide, " * 2, "c"], 20)
    table = pd.DataFrame({"site": site, "$x$": rng.normal(size=60), "y_{": rng.normal(size=60)})
    y = (table["$x$"] + rng.normal(size=60)).rename("$y$")
    model = MultiTaskELMRegressor(task="site", n_hidden=5, random_state=0).fit(table, y)
    found, gains = model.explain(table, y), model.site_gains(table, y)
    displays = [ImportanceDisplay(found), EffectDisplay(found.effect()), SiteMapDisplay(found), SiteGainDisplay(gains)]
    for display in displays:
        assert_legible(figure(display.plot, size=(5.4, 4.0)))


def test_probabilities_are_named_after_their_class(pyplot):
    X = np.random.default_rng(0).normal(size=(60, 2))
    y = np.where(X[:, 0] > 0, "ill", "well")
    model = MultiTaskELMClassifier(n_hidden=5, random_state=0).fit(X, y, tasks=[0, 1, 2] * 20)
    options = {"tasks": [0, 1, 2] * 20, "column": 0}
    assert EffectDisplay.from_estimator(model, X, y, **options).ax_.get_ylabel() == "probability of well"
    assert EffectDisplay.from_estimator(model, X, y, output="ill", **options).ax_.get_ylabel() == "probability of ill"


def test_gains_of_many_tasks_are_the_largest_and_the_smallest(fitted):
    model, table, y, _ = fitted
    gains = model.site_gains(table, y)
    ax = SiteGainDisplay(gains).plot(Figure().add_subplot(), most=4).ax_
    order = (gains.table["change"] / gains.table["alone"]).sort_values(kind="stable").index
    names = [label.get_text().removesuffix(" (20)") for label in ax.get_yticklabels()]
    assert names == [*order[:2], *order[-2:]]


# The rounds of a fit


def test_the_rounds_of_a_fit_are_drawn_by_rounds_exchanges_or_bytes(pyplot):
    X = np.random.default_rng(0).normal(size=(60, 3))
    model = MultiTaskELMRegressor(n_hidden=5, solver="dmtl-elm", random_state=0)
    model.fit(X, X[:, 0] + 0.1 * X[:, 1] ** 2, tasks=[0, 1, 2] * 20)
    for by in ("round", "exchanges", "bytes"):
        display = ConvergenceDisplay.from_estimator(model, quantity="dual_residual", by=by)
        line = display.ax_.lines[0]
        drawn = model.history_[np.isfinite(model.history_["dual_residual"])]
        np.testing.assert_allclose(line.get_ydata()[-len(drawn) :], drawn["dual_residual"])
        np.testing.assert_allclose(line.get_xdata()[-len(drawn) :], drawn[by])
        assert (display.ax_.get_xlabel(), display.ax_.get_ylabel()) == (by, "dual residual")
    with pytest.raises(ElmeshError, match="quantity must be one of objective"):
        ConvergenceDisplay(model.history_).plot(quantity="loss")
    with pytest.raises(ElmeshError, match="by must be one of round"):
        ConvergenceDisplay(model.history_).plot(by="seconds")


def test_a_fit_without_rounds_or_history_has_none_to_draw(fitted):
    X = np.random.default_rng(0).normal(size=(20, 2))
    model = MultiTaskELMRegressor(n_hidden=5, solver="local-elm", random_state=0).fit(X, X[:, 0])
    with pytest.raises(ElmeshError, match="took no rounds"):
        ConvergenceDisplay.from_estimator(model)
    with pytest.raises(ElmeshError, match="has no history"):
        ConvergenceDisplay.from_estimator(fitted[0].for_task("site 1"))
