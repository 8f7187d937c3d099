"""The pages of a comparison and an evaluation: their texts follow from the numbers, and a browser shows all of it."""

from __future__ import annotations

from functools import cache

import numpy as np
import pandas as pd
import pytest

from elmesh.evaluation.comparison import Comparison
from elmesh.evaluation.scores import Bin, ClassScores, Evaluation, Group
from elmesh.report import comparison_page, comparison_table, evaluation_page, render, site_table
from elmesh.report.figures import COLORS
from helpers.browser import Browser
from helpers.marks import one_of
from helpers.pages import Reader, measure, needs_browser
from helpers.pictures import assert_legible
from helpers.quick_pages import not_drawn

ERRORS = {"elmesh": 1.0, "elmesh-alone": 1.2, "elmesh-common": 1.01, "boosting-alone": 2.5, "boosting-pooled": 0.8,
          "linear-pooled": 1.3, "mixed-intercepts": 1.31, "mixed-slopes": 1.29}  # fmt: skip


def comparison(sites=8, kind="regression", name="site-{:02d}", notes=()):
    rng = np.random.default_rng(0)
    noise = rng.normal(size=(6, 1)) * 0.01
    methods = [method for method in ERRORS if kind == "regression" or not method.startswith("mixed")]
    means = np.array([ERRORS[method] for method in methods])
    scale = 1.0 if kind == "regression" else 0.1
    scores = pd.DataFrame(scale * means * (1 + noise), columns=methods)
    measures = {"error": scores}
    if kind == "classification":
        measures |= {"log_loss": 4 * scores, "auc": 1 - 2 * scores}
    rows = np.repeat(np.arange(sites), 10 + np.arange(sites))
    losses = rng.random((len(rows), 1)) * scale * means
    index = pd.Index([name.format(k) for k in rows], name="site")
    unit = "units of the target" if kind == "regression" else "share of wrong classes"
    frame = pd.DataFrame(losses, columns=methods, index=index)
    return Comparison(kind, unit, measures, frame, dict.fromkeys(methods, 1.5), 3, 2, 0.5, tuple(notes))


def evaluation(sites=8, kind="regression", name="site-{:02d}", unknown=0, targets=("days",)):
    rng = np.random.default_rng(0)

    def group(label, rows, error):
        ends = {"error_low": 0.9 * error, "error_high": 1.1 * error} if rows >= 5 else {}
        own = {"error_low": np.nan, "error_high": np.nan} | ends
        own |= (
            {"r2": 0.5, "rmse": error, "baseline_rmse": 2.0}
            if kind == "regression"
            else {"error_percent": 10 * error, "baseline_error_percent": 20.0}
        )
        return Group(label, rows, dict.fromkeys(targets, own))

    groups = tuple(group(name.format(k), 3 + 2 * k, 1.0 + 0.2 * k) for k in range(sites))
    truth = rng.normal(size=(200, len(targets))).squeeze()
    more = {"coverage": {target: {0.5: 0.48, 0.8: 0.81, 0.9: 0.88, 0.95: 0.96} for target in targets}}
    if kind == "classification":
        bins = tuple(Bin(20, x, x + 0.05, x - 0.1, x + 0.15) for x in (0.2, 0.5, 0.8))
        more = {"bins": bins, "classes": ("no", "yes"), "confusion": np.array([[90, 10], [20, 80]]),
                "by_class": (ClassScores("no", 100, 0.5, 0.52, 90, 110), ClassScores("yes", 100, 0.5, 0.48, 80, 90)),
                "probability_scores": {"log_loss": 0.4, "auc": 0.9}}  # fmt: skip
    small = group("2 with fewer than 5 rows", 7, 1.1) if sites > 10 else None
    return Evaluation(kind, group("all", 200, 1.3), groups, small, unknown, truth, truth + 0.1, **more)


PAGES = {
    "comparison": lambda: comparison_page(comparison(notes=["2 sites of a single row."])),
    "comparison of classes": lambda: comparison_page(comparison(kind="classification")),
    "evaluation": lambda: evaluation_page(evaluation(unknown=3)),
    "evaluation of classes": lambda: evaluation_page(evaluation(kind="classification")),
    "evaluation of two targets": lambda: evaluation_page(evaluation(targets=("days", "cost"))),
}


@cache
def rendered(name):
    return render(PAGES[name]())


def text_of(page):
    """The text of a page, without its drawings."""
    with not_drawn():
        return Reader(render(page())).text()


@pytest.mark.parametrize("name", one_of(3, PAGES))
def test_ids_are_unique_links_lead_somewhere_and_drawings_have_text_alternatives(name):
    tags = Reader(rendered(name)).tags
    ids = [attributes["id"] for _, attributes in tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert len([tag for tag, _ in tags if tag == "figure"]) >= 2
    for tag, attributes in tags:
        for name in ("href", "xlink:href"):
            if attributes.get(name, "").startswith("#"):
                assert attributes[name][1:] in ids
        if tag == "svg":
            assert attributes["role"] == "img"
            assert set(attributes["aria-labelledby"].split()) <= set(ids)


def test_the_page_of_a_comparison_starts_with_the_conclusion_and_has_the_numbers():
    found = comparison(notes=["2 sites of a single row."])
    text = text_of(lambda: comparison_page(found))
    assert text.index(found.sentence()) < 100
    assert "2 sites of a single row." in text
    for table in (comparison_table(found), site_table(found)):
        for row in table.rows:
            assert " ".join(row) in text
    assert "Nadeau and Bengio" in text


def test_methods_are_sorted_by_error_with_what_they_need_and_their_verdict():
    rows = comparison_table(comparison()).rows
    assert [row[0] for row in rows[:3]] == [
        "gradient boosting pooled",
        "elmesh together",
        "one elmesh model for all sites",
    ]
    assert [row[1] for row in rows[:3]] == ["in one place", "at sites", "at sites"]
    assert [row[4] for row in rows[:2]] == ["clearly better", "–"]
    assert rows[-1][4] == "clearly worse"
    assert rows[0][3].startswith("−0.2 ± 0.00")
    classes = comparison_table(comparison(kind="classification"))
    assert classes.columns[5:7] == ["Log loss", "AUC"]
    assert classes.rows[0][2:7:4] == ["8.01 %", "0.840"]


def test_a_site_has_its_errors_alone_together_and_by_the_best_other_method():
    found = comparison(sites=2)
    site, rows, alone, together, other, error, best = site_table(found).rows[0]
    assert (site, rows, other) == ("site-01", "11", "gradient boosting pooled")
    values = [found.by_site.loc["site-01", name] for name in ("elmesh-alone", "elmesh", "boosting-pooled")]
    assert [alone, together, error] == [f"{x:.3g}" for x in values]
    assert best == "gradient boosting pooled"


def test_the_picture_of_methods_has_their_intervals_and_colors():
    (section, _) = comparison_page(comparison()).sections
    (ax,) = section.figures[0].drawing.axes
    labels = [label.get_text() for label in ax.get_yticklabels()]
    colors = [line.get_color() for line in ax.lines if line.get_marker() == "|"]
    assert dict(zip(labels, colors, strict=True))["gradient boosting pooled"] == COLORS["blue"]
    assert dict(zip(labels, colors, strict=True))["gradient boosting alone"] == COLORS["magenta"]
    assert dict(zip(labels, colors, strict=True))["elmesh together"] == COLORS["muted"]


@pytest.mark.parametrize(
    ("found", "sentence"),
    [
        (
            evaluation(unknown=3),
            "The root mean square error of days is 1.3; that of the baseline is 2. The model is better at 5 of 8 "
            "sites. 3 of the rows are of sites that the model does not know.",
        ),
        (
            evaluation(kind="classification", sites=1),
            "13 % of 200 rows are wrong; with the baseline 20 % are. The model is better at 1 of 1 site.",
        ),
        (
            evaluation(targets=("days", "cost"), sites=6),
            "The root mean square error of days is 1.3; that of the baseline is 2. The model is better at 5 of 6 "
            "sites. The root mean square error of cost is 1.3; that of the baseline is 2. The model is better at 5 "
            "of 6 sites.",
        ),
    ],
)
def test_the_sentence_of_an_evaluation(found, sentence):
    assert found.sentence() == sentence
    assert evaluation_page(found).headline == sentence


def test_sites_are_sorted_by_error_and_small_ones_of_many_are_one_line():
    names = [group.name for group in evaluation(sites=12).shown()]
    assert names == [f"site-{k:02d}" for k in range(11, 0, -1)] + ["2 with fewer than 5 rows"]
    text = text_of(lambda: evaluation_page(evaluation(sites=30)))
    assert "The figure shows the 16 largest errors; the values below it are of all sites." in text
    assert "2 with fewer than 5 rows 7 1.1 0.99 to 1.21 2 0.500" in text
    assert "site-00 3 1 – 2" in text_of(lambda: evaluation_page(evaluation(sites=3)))


def test_an_evaluation_has_its_calibration():
    assert "days 48.0 % 81.0 % 88.0 % 96.0 %" in text_of(lambda: evaluation_page(evaluation()))
    text = text_of(lambda: evaluation_page(evaluation(kind="classification")))
    assert "True class no yes no 90 10 yes 20 80" in text
    assert "0.50 20 0.55 0.40 to 0.65" in text
    assert "0.400 log loss" in text or "log loss of the probabilities 0.400" in text


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("sites", "kind"),
    [(5, "classification"), *one_of(9, [1, 2, 16, 60], ["regression", "classification"])],
)
def test_no_labels_overlap_and_none_is_cut_off(sites, kind):
    name = "a clinic of some town {:02d}"
    pages = [evaluation_page(evaluation(sites=sites, kind=kind, name=name))]
    pages += [comparison_page(comparison(sites=sites, kind=kind, name=name))] if sites > 1 else []
    for figure in [figure for page in pages for section in page.sections for figure in section.figures]:
        assert_legible(figure.drawing)


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with Browser(tmp_path_factory.mktemp("profile")) as browser:
        yield browser


@pytest.mark.thorough
@needs_browser
@pytest.mark.parametrize(("name", "width"), one_of(3, PAGES, [400, 1280]))
def test_a_browser_shows_the_page_inside_the_window_without_a_message(browser, name, tmp_path, width):
    inner, scroll, boxes = measure(browser, rendered(name), tmp_path, width)
    assert scroll <= inner
    figures = [name for name in boxes if name.endswith(" figure")]
    assert len(figures) >= 2
    for name in figures:
        assert boxes[name][2] <= inner
        assert min(boxes[name.replace("figure", "svg")][:2]) > 100
    if width == 1280:  # two beside each other
        assert boxes[figures[0]][0] < 0.55 * inner


def test_names_that_look_like_markup_are_shown_unchanged():
    bad = "<script>alert(1)</script>&{}"
    for page in (comparison_page(comparison(2, name=bad)), evaluation_page(evaluation(2, name=bad))):
        reader = Reader(render(page))
        assert not [tag for tag, _ in reader.tags if tag == "script"]
        assert bad.format(1) in reader.text()
