"""The report page: its texts follow from the numbers, and a browser shows all of it."""

from __future__ import annotations

import html
import itertools
import json
import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from scipy.stats import ttest_rel

from elmesh import MultiTaskELMRegressor
from elmesh.estimators.gains import SiteGains, TaskGain
from elmesh.math.certificate import Certificate
from elmesh.report import (
    STYLES,
    Claim,
    Curve,
    Figure,
    Page,
    Section,
    SiteResult,
    SiteStudy,
    Table,
    Training,
    Verdict,
    draw_curves,
    draw_overview,
    figure,
    gains_page,
    render,
    study_page,
    study_table,
)
from elmesh.report.explanation_report import explanation_sections
from elmesh.report.figures import COLORS, to_svg
from elmesh.report.site_plots import draw_errors, draw_shares
from helpers.browser import Browser
from helpers.pages import Reader, measure, needs_browser
from helpers.pictures import assert_legible
from helpers.quick_pages import not_drawn

FIGURES = ("fig-errors", "fig-shares")
NOISE = np.array([-0.01, 0.02, 0.0, -0.01])


def site(name, change, spread=1.0, pooled=0.0, rows=40, shares=(0.8, 0.05, 0.15), draws=4):
    """A site whose error changes by `change` on average, with noise of `spread` times 0.01 among draws."""
    alone = 2.0 + np.zeros(draws)
    together = alone + change + spread * np.resize(NOISE, draws)
    return SiteResult(name, rows, alone.tolist(), (alone + pooled).tolist(), together.tolist(), shares, 0.9)


def study(changes=(-0.5, -0.2, 0.0, 0.1), name="site-{:02d}", spread=1.0, draws=4, gap=0.004, shared_draws=3, **more):
    """A study as a run would give it, written by hand: `changes` are those of the sites' errors together."""
    sites = [
        site(name.format(t + 1), change, spread, draws=draws, rows=10 * (t + 1), **more)
        for t, change in enumerate(changes)
    ]
    certificate = Certificate(gap, True, 2, 10.04, 10.0)
    training = Training(1.5, 7, 1_250, 16_900_000, "CONVERGED", "Fine.", 2, certificate)
    return SiteStudy("Sites hold rows.", "days", sites, training, shared_draws, {"Seed": "7"}, {"elmesh": "0.1.0"})


@pytest.fixture(scope="module")
def page():
    return render(study_page(study()))


def text_of(result):
    """The text of the page of a study, without its drawings."""
    with not_drawn():
        return Reader(render(study_page(result))).text()


# Texts


@pytest.mark.parametrize(
    ("changes", "better", "moved"),
    [
        ((-0.5, -0.2, 0.0, 0.1), "2 of 4", "fell from 2.00 to 1.85 days"),
        ((0.2, 0.2, 0.0, 0.0), "0 of 4", "rose from 2.00 to 2.10 days"),
        ((-0.1, 0.1), "1 of 2", "stayed at 2.00 days"),
    ],
)
def test_the_headline_follows_the_numbers_in_either_direction(changes, better, moved):
    expected = f"{better} sites clearly predict better together than alone; the mean error {moved}."
    assert study(changes).headline() == expected


def test_a_change_is_clear_exactly_if_a_paired_t_test_rejects_at_five_per_cent():
    rng = np.random.default_rng(0)
    verdicts = set()
    for _ in range(200):
        alone = rng.normal(2.0, 0.1, 6)
        one = SiteResult("a", 9, alone, alone, alone + rng.normal(-0.03, 0.05, 6), (1.0, 0.0, 0.0), 0.9)
        test = ttest_rel(one.together, one.alone)
        expected = 0 if test.pvalue > 0.05 else int(np.sign(test.statistic))
        assert one.change.clear == expected
        interval = test.confidence_interval(0.95)
        assert (one.change.low, one.change.high) == pytest.approx((interval.low, interval.high))
        verdicts.add(expected)
    assert {-1, 0} <= verdicts


def test_the_summary_names_who_gains_most_who_loses_and_who_is_undecided():
    text = study().site_summary()
    assert "site-01, with 10 training rows, gains most: its error is 1.50 days together instead of 2.00 alone." in text
    assert "Clearly worse together than alone: site-04." in text
    assert "For site-03 the 4 draws do not decide." in text
    assert "No site is clearly worse" in study((-0.5, 0.0)).site_summary()


def test_one_draw_gives_no_verdict():
    result = study(draws=1)
    assert "predicted better together than alone in the one draw" in result.headline()
    assert [row[4] for row in study_table(result).rows[:-1]] == ["–"] * 4
    assert [entry["change_interval"] for entry in result.to_json()["by_site"]] == [None] * 4
    assert "do not decide" not in result.site_summary()


def test_sites_for_which_pooling_is_better_are_named():
    sites = [site("a", -0.1, pooled=-0.5), site("b", -0.1, pooled=1.0)]
    text = replace(study(), sites=sites).pooled_summary()
    assert "It is clearly better than learning together at a." in text
    assert "It is worst for b: 3.00 instead of 1.90 days." in text
    assert "At no site is it clearly better" in replace(study(), sites=sites[1:]).pooled_summary()


@pytest.mark.parametrize(
    ("found", "words"), [(3, "in 3 of 4 draws; in the others it is zero"), (0, "in none of 4 draws")]
)
def test_the_page_states_in_how_many_draws_a_shared_part_was_found(found, words):
    assert words in text_of(study(shared_draws=found))


def test_who_gains_comes_before_the_parts_and_the_training_comes_after_both(page):
    text = Reader(page).text()
    order = [study().headline(), "Who gains, and how", "What the predictions are made of", "How the training went"]
    places = [text.index(words) for words in order]
    assert places == sorted(places)
    assert "certificate" not in text[: text.index("How the training went")].lower()
    assert "16.9 MB in all, in 1,250 message rounds" in text
    assert "Training objective within 0.4 % of the optimum over all ranks; rank 2 is enough. This is" in text
    assert "not about new rows" in text


def test_a_fit_that_did_not_converge_is_pointed_out_with_advice(page):
    result = study()
    failed = replace(result, training=replace(result.training, stop="MAX_ITER", advice="Give it more rounds."))
    assert "MAX_ITER: Give it more rounds." in text_of(failed)
    assert "Fine." not in Reader(page).text()


def test_the_page_has_every_number_of_the_table(page):
    text = Reader(page).text()
    for row in study_table(study()).rows:
        assert " ".join(cell for cell in row if cell) in text
    assert "Sites hold rows." in text
    assert "Seed 7" in text
    assert "elmesh 0.1.0" in text


def test_without_a_certificate_the_page_has_none():
    result = study()
    result = replace(result, training=replace(result.training, certificate=None))
    assert "Certificate" not in text_of(result)
    assert result.to_json()["training"]["certificate"] is None


def test_json_holds_the_same_numbers_as_the_table():
    result = study()
    data = json.loads(json.dumps(result.to_json(), allow_nan=False))
    assert data["sites"] == {"better": 2, "undecided": 1, "worse": 1}
    by_name = {entry["name"]: entry for entry in data["by_site"]}
    *rows, means = study_table(result).rows
    for name, alone, together, *_ in rows:
        assert (f"{by_name[name]['alone']:.2f}", f"{by_name[name]['together']:.2f}") == (alone, together)
    assert [f"{data['errors'][method]:.2f}" for method in ("alone", "together", "pooled")] == [*means[1:3], means[6]]


# Structure of the page


def test_every_figure_is_there_once_and_no_id_is_used_twice(page):
    tags = Reader(page).tags
    figures = [attributes["id"] for tag, attributes in tags if tag == "figure"]
    ids = [attributes["id"] for _, attributes in tags if "id" in attributes]
    assert figures == list(FIGURES)
    assert len(ids) == len(set(ids))
    for _, attributes in tags:
        for name in ("href", "xlink:href"):
            if attributes.get(name, "").startswith("#"):
                assert attributes[name][1:] in ids


def test_every_drawing_has_a_title_and_a_description_that_it_is_labelled_by(page):
    tags = Reader(page).tags
    ids = {attributes.get("id"): tag for tag, attributes in tags}
    drawings = [attributes for tag, attributes in tags if tag == "svg"]
    assert len(drawings) == len(FIGURES)
    for attributes in drawings:
        assert attributes["role"] == "img"
        assert [ids[name] for name in attributes["aria-labelledby"].split()] == ["title", "desc"]


def test_the_page_refers_to_no_other_resource(page):
    for _tag, attributes in Reader(page).tags:
        for name in ("src", "href", "xlink:href", "srcset", "action", "data"):
            assert attributes.get(name, "#").startswith(("#", "data:"))
    assert not re.search(r"@import|url\((?!#)", page)
    assert "default-src 'none'" in page


@pytest.mark.thorough
def test_names_that_look_like_markup_are_shown_unchanged():
    bad = "<script>alert(1)</script>&{}"
    text = render(study_page(study(changes=(-0.1, 0.0, 0.1), name=bad)))
    reader = Reader(text)
    assert not [tag for tag, _ in reader.tags if tag == "script"]
    assert bad.format(2) in reader.text()
    assert html.escape(bad.format(2), quote=False) in text


def test_any_experiment_can_have_a_page():
    drawing = figure(lambda ax: draw_shares(ax, [site("a", 0.0), site("b", 0.0)]))
    table = Table("Speed", ["Size", "Time"], [["10", "0.5"]])
    section = Section(
        "Growth", ["It is flat."], [Figure("fig-x", "Bars", "Two.", "Two bars.", drawing)], [table], [("a", "b")]
    )
    reader = Reader(render(Page("T", "H", ["L"], [("3", "things")], [section], "F")))
    assert "Growth It is flat. Bars Two. Speed Size Time 10 0.5 a b F" in re.sub(r"Bars Two bars. ", "", reader.text())


def claims_page():
    """A page of three sections: claims, a table wider than a phone with a broad drawing, and neither."""
    bad = "<b>50 % & more</b>"
    claims = [Claim(f"Says {bad} {i}", f"Found {bad} {i}", verdict) for i, verdict in enumerate(Verdict)]
    claims.append(Claim("It falls.", "It fell.", Verdict.AGREES))
    wide = Table(
        "Wide", ["Method", *(f"Column {i}" for i in range(12))], [["A"] + ["12.34 ± 0.56"] * 12], note=f"Not {bad}"
    )
    curve = Curve("a", [1, 2], [1, 2])
    broad = figure(*[lambda ax: draw_curves(ax, [curve], x_label="x", y_label="y")] * 2)
    narrow = figure(lambda ax: draw_curves(ax, [curve], x_label="x", y_label="y"))
    sections = [
        Section("First: it <falls>", ["Words."], claims=claims),
        Section(
            "Second",
            figures=[Figure("fig-b", "B", "C", "D", broad), Figure("fig-n", "B", "C", "D", narrow)],
            tables=[wide],
        ),
        Section("Third"),
    ]
    return Page("T", "H", ["L"], sections=sections, contents=True)


@pytest.fixture(scope="module")
def claims():
    return render(claims_page())


def test_claims_follow_the_paragraphs_with_their_verdict_in_words_and_a_sign(claims):
    reader = Reader(claims)
    found = re.search(r"Words\. Statement in the paper Result here Verdict (.*?) Second", reader.text()).group(1)
    bad = "<b>50 % & more</b>"
    verdicts = ("✓ agrees", "≠ differs", "? could not be determined")
    rows = [f"Says {bad} {i} Found {bad} {i} {verdict}" for i, verdict in enumerate(verdicts)]
    assert re.sub(r" +", " ", found) == " ".join([*rows, "It falls. It fell. ✓ agrees"])
    assert not [tag for tag, _ in reader.tags if tag == "b"]


def test_each_verdict_has_its_own_appearance(claims):
    used = {attributes["class"] for tag, attributes in Reader(claims).tags if "badge" in attributes.get("class", "")}
    assert used == {"badge agrees", "badge differs", "badge undetermined"}
    rules = {re.search(rf"\.{name.replace(' ', '.')} {{(.*?)}}", claims).group(1) for name in used}
    assert len(rules) == 3


def test_the_contents_link_to_every_section_and_count_its_verdicts(claims, page):
    tags = Reader(claims).tags
    links = [attributes["href"] for tag, attributes in tags if tag == "a"]
    assert links == [f"#{attributes['id']}" for tag, attributes in tags if tag == "section"]
    assert len(set(links)) == 3
    nav = Reader(re.search(r"<nav.*?</nav>", claims, re.DOTALL).group()).text()
    expected = "First: it <falls> ✓ 2 agree ≠ 1 differs ? 1 could not be determined Second Third"
    assert " ".join(nav.split()) == expected
    assert "<nav" not in page


def test_a_note_follows_its_table_unchanged(claims):
    assert re.search(r"</table>\s*</div>\s*<p class=\"note\">Not &lt;b&gt;50\N{NO-BREAK SPACE}% &amp; more", claims)
    assert claims.count('class="note"') == 1


def test_only_a_figure_of_panels_takes_the_whole_width(claims):
    tags = Reader(claims).tags
    figures = {attributes["id"]: attributes.get("class") for tag, attributes in tags if tag == "figure"}
    assert figures == {"fig-b": "wide", "fig-n": None}


# The page of a fit

FIT_FIGURES = ("fig-errors", "fig-shares", "fig-importance", "fig-effect-1", "fig-effect-2", "fig-effect-3", "fig-map")
SUMMARY = {"targets": ["y"], "kind": "regression", "rows": 360, "columns": ["x"], "solver": "mesh-elm", "rounds": 1,
           "certificate": None, "privacy": None}  # fmt: skip


@pytest.fixture(scope="module")
def explained():
    """An explanation of a fit whose columns, categories and tasks have names that look like markup."""
    rng = np.random.default_rng(0)
    n = 180
    table = pd.DataFrame(
        {
            "<b>a number</b>": rng.normal(size=n),
            "<i>{words}</i>": rng.choice(["<u>one</u>", "{two}", None], n),
            "when": pd.Timestamp("2024-01-01") + pd.to_timedelta(rng.integers(0, 99, n), unit="D"),
            "site": np.repeat([f"<s>a long name {k}</s>" for k in range(12)], 15),
        }
    )
    days = (table["when"] - table["when"].min()).dt.days / 30
    y = table["<b>a number</b>"] + 2 * (table["<i>{words}</i>"] == "{two}") + days + 0.1 * rng.normal(size=n)
    model = MultiTaskELMRegressor(task="site", n_hidden=10, random_state=0).fit(table, y.rename("<p>target</p>"))
    return model.explain(table, y)


@pytest.fixture(scope="module")
def fit_page(explained):
    def gain(name, change):
        return TaskGain(name, 30, 1.0, 1.0 + change, 1.2, change - 0.2, change + 0.2, (0.7, 0.1, 0.2))

    tasks = tuple(gain(f"a site with a long name {k}", 0.1 * k - 0.5) for k in range(12))
    gains = SiteGains(tasks, gain("all rows", -0.1), "units of the target")
    return render(gains_page(gains, SUMMARY, explained))


def test_the_page_of_a_fit_explains_after_who_gains_and_before_the_training(fit_page, explained):
    reader = Reader(fit_page)
    titles = ["Who gains", "What the predictions depend on", "Which sites are predicted alike", "How to read this page",
              "About the fit"]  # fmt: skip
    text = reader.text()
    assert [text.index(title) for title in titles] == sorted(text.index(title) for title in titles)
    figures = [attributes["id"] for tag, attributes in reader.tags if tag == "figure"]
    assert figures == list(FIT_FIGURES)
    ids = [attributes["id"] for _, attributes in reader.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert "These are rows of the training table" in text
    for sentence in (explained.columns_sentence(), explained.tasks_sentence()):
        # In the text, and in the alternative text of its figure.
        assert text.count(sentence) == 2


def test_the_drawings_of_an_explanation_are_described_in_words(fit_page, explained):
    descriptions = re.findall(r"<desc[^>]*>(.*?)</desc>", fit_page)
    effect = explained.effect("when").overall
    assert len(descriptions) == len(FIT_FIGURES)
    (found,) = [text for text in descriptions if "Mean prediction by when" in text]
    assert f"lowest, {effect.iloc[0]:.3g}, at {effect.index[0].date()}" in found
    assert f"highest, {effect.iloc[-1]:.3g}, at {effect.index[-1].date()}" in found


def test_names_in_an_explanation_are_shown_unchanged(fit_page):
    reader = Reader(fit_page)
    assert not [tag for tag, _ in reader.tags if tag in ("b", "i", "u", "s")]
    for name in ("<b>a number</b>", "<i>{words}</i>", "<u>one</u>", "{two}", "<s>a long name 3</s>", "<p>target</p>"):
        assert name in reader.text()


def test_a_table_has_the_importance_of_every_column_at_every_task(fit_page, explained):
    figure = fit_page[fit_page.index('id="fig-importance"') :]
    rows = re.findall(r"<tr>(.*?)</tr>", figure[: figure.index("</figure>")])
    cells = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row) for row in rows]
    assert [html.unescape(name) for name in cells[0]] == ["Site", *explained.importance.index]
    assert [html.unescape(row[0]) for row in cells[1:]] == ["all rows", *explained.distances.index]
    value, error = explained.importance.iloc[0]
    assert cells[1][1] == f"{value:.3g} ± {2 * error:.3g}"
    assert cells[2][1] == f"{explained.task_importance['importance'].iloc[0]:,.3g}"


def test_an_explanation_of_one_task_has_no_map():
    X = np.random.default_rng(0).normal(size=(40, 2))
    found = MultiTaskELMRegressor(n_hidden=5, random_state=0).fit(X, X[:, 0]).explain(X, X[:, 0])
    (section,) = explanation_sections(found)
    assert [figure.id for figure in section.figures] == ["fig-importance", "fig-effect-1", "fig-effect-2"]
    assert "In color" not in section.figures[1].caption


# Drawings


@pytest.mark.thorough
def test_the_same_figure_gives_the_same_svg_with_colors_that_a_page_can_change(page):
    curves = [Curve(f"{i}", [0, 1], [i, i + 1], *style) for i, style in enumerate(STYLES)]

    def draw():
        eight = figure(lambda ax: draw_curves(ax, curves, x_label="x", y_label="y"))
        return "".join(to_svg(fig, prefix="x", title="a", description="b") for fig in (draw_overview(study()), eight))

    svg = draw()
    assert svg == draw()
    left = re.sub(r"var\(--[a-z]+, #[0-9a-f]{6}\)", "", svg)
    assert not re.findall(r"#[0-9a-f]{6}\b", left)
    for name in COLORS:
        assert f"var(--{name}, {COLORS[name]})" in svg
        assert len(re.findall(rf"--{name}: #", page)) == 2  # for light, and for dark


def test_sites_are_sorted_by_gain_and_labelled_with_their_rows_and_errors():
    sites = [site("a", 0.0), site("b", -0.5, rows=6), site("c", 0.2)]
    (ax,) = figure(lambda ax: draw_errors(ax, sites, "days")).axes
    assert [label.get_text() for label in ax.get_yticklabels()] == ["b (6)", "a (40)", "c (40)"]
    intervals = [line.get_xdata() for line in ax.lines if len(line.get_ydata()) == 2 and line.get_marker() == "|"]
    assert intervals[0] == pytest.approx([50 * sites[1].change.low, 50 * sites[1].change.high])
    assert {"2.00 → 1.50", "2.00 → 2.20", "better", "worse"} <= {text.get_text() for text in ax.texts}


def test_a_change_has_the_color_of_its_verdict():
    sites = [site("a", -0.5), site("b", 0.0), site("c", 0.5)]
    (ax,) = figure(lambda ax: draw_errors(ax, sites, "days")).axes
    colors = [line.get_color() for line in ax.lines if line.get_marker() == "|"]
    assert colors == [COLORS["blue"], COLORS["muted"], COLORS["magenta"]]


def test_bars_of_shares_fill_the_width_with_the_largest_common_part_first():
    sites = [site("a", 0.0, shares=(0.3, 0.2, 0.5)), site("b", 0.0, shares=(0.9, 0.0, 0.1))]
    (ax,) = figure(lambda ax: draw_shares(ax, sites)).axes
    assert [label.get_text() for label in ax.get_yticklabels()] == ["b (40)", "a (40)"]
    bars = [(bar.get_x(), bar.get_width()) for bar in ax.patches]
    assert np.array(bars) == pytest.approx(np.array([(0, 0.9), (0.9, 0), (0.9, 0.1), (0, 0.3), (0.3, 0.2), (0.5, 0.5)]))
    assert {"90 %", "30 %", "50 %"} <= {text.get_text() for text in ax.texts}


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("n_sites", "scale"),
    [
        (5, 1.0),
        *(pytest.param(*one, marks=pytest.mark.slow) for one in itertools.product([2, 12, 24], [-1.0, 0.0, 1.0])),
    ],
)
def test_no_two_texts_of_a_drawing_overlap_and_none_is_cut_off(n_sites, scale):
    result = study([scale * (0.1 + t / n_sites) for t in range(n_sites)])
    drawings = [figure.drawing for section in study_page(result).sections for figure in section.figures]
    for fig in [draw_overview(result), *drawings]:
        assert_legible(fig)


# In a browser


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with Browser(tmp_path_factory.mktemp("profile")) as browser:
        yield browser


@pytest.mark.thorough
@needs_browser
@pytest.mark.parametrize("width", [400, 1280])
def test_the_page_of_a_fit_stays_inside_the_window(browser, fit_page, tmp_path, width):
    inner, scroll, boxes = measure(browser, fit_page, tmp_path, width)
    assert scroll <= inner
    for name in FIT_FIGURES:
        assert boxes[f"{name} figure"][2] <= inner
        assert min(boxes[f"{name} svg"][:2]) > 100
    # Nothing is left empty beside a figure: two share a row, or the text is beside it.
    halves = [boxes[f"{name} figure"][0] for name in FIT_FIGURES[:-1]]
    if width == 1280:
        assert max(halves) < 0.5 * inner < boxes["fig-map figure"][0]
        assert boxes["fig-map svg"][0] < 0.6 * boxes["fig-map figure"][0]


@pytest.mark.thorough
@needs_browser
def test_a_script_in_the_page_is_refused_with_a_message_on_the_console(browser, page, tmp_path):
    path = tmp_path / "report.html"
    path.write_text(page.replace("</body>", "<script>document.title = 'ran'</script></body>"), encoding="utf-8")
    browser.load(path.as_uri())
    assert browser.console
    assert browser.value("document.title") not in ("", "ran")


@pytest.mark.thorough
@needs_browser
@pytest.mark.parametrize("width", [500, 1200])
def test_a_table_or_a_drawing_that_is_too_wide_scrolls_within_itself(browser, claims, tmp_path, width):
    inner, scroll, boxes = measure(browser, claims, tmp_path, width)
    assert scroll <= inner
    assert boxes["undefined table"][0] > inner  # the last table, the wide one
    if width == 500:
        assert boxes["fig-b svg"][0] > inner
    assert boxes["fig-b figure"][2] <= inner


@pytest.mark.thorough
@needs_browser
@pytest.mark.parametrize("width", [500, 1200])
def test_a_browser_shows_every_figure_in_its_size_inside_the_window_without_a_message(browser, page, tmp_path, width):
    inner, scroll, boxes = measure(browser, page, tmp_path, width)
    assert scroll <= inner
    for name in FIGURES:
        for part in ("figure", "svg"):
            wide, high, right = boxes[f"{name} {part}"]
            assert wide > 300
            assert high > 200
            assert right <= inner
