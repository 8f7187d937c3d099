"""The report page: its texts follow from the numbers, and a browser shows all of it."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from dataclasses import replace
from html.parser import HTMLParser

import networkx as nx
import numpy as np
import pandas as pd
import pytest

from elmesh.math.certificate import Certificate
from elmesh.report import (
    STYLES,
    Claim,
    Comparison,
    Curve,
    Figure,
    MethodResult,
    Page,
    Section,
    Table,
    Verdict,
    comparison_page,
    draw_curves,
    draw_overview,
    figure,
    render,
)
from elmesh.report.figures import COLORS, to_svg
from elmesh.report.site_plots import draw_bars, draw_errors, draw_graph
from helpers.pictures import assert_legible

FIGURES = ("fig-graph", "fig-error", "fig-objective", "fig-bytes")
ROW = 100 / 45


def history(rounds, speed, end, start=70.0, a_round=288_000):
    k = np.arange(rounds + 1)
    return pd.DataFrame(
        {
            "round": k,
            "objective": end + (start - end) * np.exp(-speed * k),
            "consensus_gap": 0.0,
            "exchanges": 50 + 2 * k,
            "bytes": 1_000_000 + k * a_round,
        }
    )


def certificate(history, bound, rank=6):
    end = history["objective"].iloc[-1]
    return Certificate(end / bound - 1, rank >= 6, 6, end, bound)


def comparison(
    changes=(-2, -1, -1, 0, 0, 1, -3, 0, -1, 1),
    kind=nx.cycle_graph,
    name="site-{:02d}",
    bounds=(39.0, 39.5, 39.8),
    penalties=((2.0, 2.0),) * 3,
):
    """A comparison as a run would give it, written by hand: `changes` are test rows lost by learning together."""
    tasks = [name.format(t) for t in range(1, len(changes) + 1)]
    alone = {task: ROW * (3 + t % 3) for t, task in enumerate(tasks)}
    together = {task: alone[task] + ROW * change for task, change in zip(tasks, changes, strict=True)}
    nothing = history(0, 1.0, 1.0).iloc[:0]
    one = history(60, 0.2, 40.0).assign(exchanges=0, bytes=0)
    two, three = history(300, 0.03, 40.1), history(600, 0.01, 41.0, a_round=6_000)
    own = [
        {"certificate": certificate(h, bound), "rank": 6, "penalties": pair}
        for h, bound, pair in zip((one, two, three), bounds, penalties, strict=True)
    ]
    return Comparison(
        introduction="Sites hold digits.",
        methods=[
            MethodResult("Local ELM", "Alone. Always.", alone, 0.01, 0, 0, 0, "DIRECT", "Exact.", nothing),
            MethodResult(
                "MTL-ELM", "Pooled. Once.", together, 0.4, 60, 0, 0, "CONVERGED", "Fine.", one, True,
                color="green", dash=":", **own[0],
            ),
            MethodResult(
                "DMTL-ELM", "Talks. A lot.", together, 0.9, 300, 650, 87_400_000, "CONVERGED", "Fine.", two,
                color="blue", **own[1],
            ),
            MethodResult(
                "DMTL-ELM, 2 bits", "Talks. More.", alone, 1.9, 600, 1_250, 4_600_000, "MAX_ITER",
                "Give it more rounds.", three, color="orange", dash="--", **own[2],
            ),
        ],
        alone="Local ELM",
        together="DMTL-ELM",
        pooled="MTL-ELM",
        graph=nx.relabel_nodes(kind(len(tasks)), dict(enumerate(tasks))),
        shape=(300, 6),
        test_rows=45,
        settings={"Seed": "7"},
        versions={"elmesh": "0.1.0"},
    )  # fmt: skip


class Reader(HTMLParser):
    """All tags with their attributes, and all text that is shown."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.words, self.hidden = [], [], 0
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        self.hidden += tag in ("style", "script")

    def handle_endtag(self, tag):
        self.hidden -= tag in ("style", "script")

    def handle_data(self, data):
        if not self.hidden:
            self.words.append(data)

    def text(self):
        return re.sub(r"\s+", " ", " ".join(self.words).replace("\N{NO-BREAK SPACE}", " "))


@pytest.fixture(scope="module")
def page():
    return render(comparison_page(comparison()))


# Texts


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ((-1, -1, 0, 1), "2 of 4 sites did better together than alone; the mean test error fell from 8.3 % to 7.8 %."),
        ((1, 2, 0, 1), "0 of 4 sites did better together than alone; the mean test error rose from 8.3 % to 10.6 %."),
        ((-1, 1, 0, 0), "1 of 4 sites did better together than alone; the mean test error stayed at 8.3 %."),
    ],
)
def test_the_headline_follows_the_numbers_in_either_direction(changes, words):
    assert comparison(changes).headline() == words


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ((-1, -1), "2 sites improved, none got worse, none is unchanged."),
        ((-1, 0, 1), "1 site improved, 1 got worse, 1 is unchanged."),
        ((0, 0, 1, 1), "No site improved, 2 got worse, 2 are unchanged."),
    ],
)
def test_sites_that_improved_got_worse_or_are_unchanged_are_counted(changes, words):
    assert comparison(changes).site_summary() == words


def test_the_page_states_the_headline_and_the_traffic_and_counts_the_start_separately(page):
    text = Reader(page).text()
    assert f"{comparison().headline()} Sites hold digits." in text
    assert (
        "gradients for the shared layer U (300 × 6 numbers): 86.4 MB in 300 rounds including the certificate, and 1 MB "
        "before the first round to agree on a start." in text
    )
    assert "DMTL-ELM, 2 bits: 4.6 MB in total instead of 87.4 MB, in 1,250 message rounds instead of 650." in text


def test_a_method_that_did_not_converge_is_pointed_out_with_advice(page):
    text = Reader(page).text()
    assert "DMTL-ELM, 2 bits: Give it more rounds." in text
    assert "DMTL-ELM: Fine." not in text


def test_a_rank_that_is_too_small_is_pointed_out_with_a_sufficient_one(page):
    result = comparison()
    methods = [
        replace(m, rank=4, certificate=certificate(m.history, 39.0, rank=4)) if m.name == "DMTL-ELM" else m
        for m in result.methods
    ]
    notes = "\n".join(comparison_page(replace(result, methods=methods)).sections[1].paragraphs)
    assert re.search(r"DMTL-ELM: within [\d.]+ % of the optimum over all ranks; the rank is too small, try 6\.", notes)
    assert "too small" not in Reader(page).text()


def test_the_page_has_every_number_of_the_table_and_explains_every_method(page):
    result, text = comparison(), Reader(page).text()
    for row in result.table().rows:
        assert " ".join(row) in text
    for method in result.methods:
        assert method.description in text
    assert "Seed 7" in text
    assert "elmesh 0.1.0" in text


def test_captions_give_the_final_values_and_their_distance_from_the_pooled_method():
    result = comparison()
    captions = {f.id: f.caption for f in comparison_page(result).sections[0].figures}
    level, end = (result.method(name).history["objective"].iloc[-1] for name in ("MTL-ELM", "DMTL-ELM, 2 bits"))
    away = f"DMTL-ELM, 2 bits ends at {end:.2f} (+{100 * (end / level - 1):.2f} % from MTL-ELM) after 1,250 message"
    assert away in captions["fig-objective"]
    # All three have bounds for the same problem, and the highest is used.
    above = f"DMTL-ELM, 2 bits ends {100 * (end / 39.8 - 1):.3f} % above the bound, with 4.6 MB sent"
    assert above in captions["fig-bytes"]


def test_objectives_and_bounds_of_different_penalties_are_not_compared():
    result = comparison(penalties=((2.0, 2.0), (2.0, 2.0), (2.1, 2.1)), bounds=(39.0, 39.5, 37.0))
    captions = {f.id: f.caption for f in comparison_page(result).sections[0].figures}
    exact, coarse = captions["fig-objective"].split("; ")
    assert "% from MTL-ELM" in exact
    assert "MTL-ELM)" not in coarse
    end = result.method("DMTL-ELM, 2 bits").last("objective")
    assert f"DMTL-ELM, 2 bits ends {100 * (end / 37 - 1):.2f} % above" in captions["fig-bytes"]


def test_an_objective_equal_to_the_pooled_one_up_to_rounding_is_called_the_same():
    result = comparison()
    ends = result.method("MTL-ELM").history["objective"].iloc[-1] * (1 + 1e-14)
    methods = [
        replace(m, history=m.history.assign(objective=ends)) if m.name == "DMTL-ELM" else m for m in result.methods
    ]
    figures = {f.id: f for f in comparison_page(replace(result, methods=methods)).sections[0].figures}
    assert "DMTL-ELM ends at 40.00 (the same as MTL-ELM) after 650 message rounds" in figures["fig-objective"].caption


def test_without_a_certificate_no_result_is_called_certified():
    result = comparison()
    result = replace(result, methods=[replace(m, certificate=None) for m in result.methods])
    assert [row[-1] for row in result.table().rows] == ["–"] * 4
    assert "certificate" not in result.traffic_summary()
    page = comparison_page(result)
    assert not [meaning for _, meaning in page.facts if "certified" in meaning]
    assert page.sections[0].figures[3].caption == "No method that sends messages has a bound."
    assert [method["certificate"] for method in result.to_json()["methods"]] == [None] * 4


def test_json_holds_the_same_numbers_as_the_table():
    result = comparison()
    data = json.loads(json.dumps(result.to_json(), allow_nan=False))
    assert data["sites"] == {"better": 5, "same": 3, "worse": 2}
    for method, row in zip(data["methods"], result.table().rows, strict=True):
        assert method["name"] == row[0]
        mean = np.mean(list(method["test_error_percent_by_task"].values()))
        assert f"{mean:.2f}" == f"{method['test_error_percent']:.2f}" == row[1]
        gap = method["certificate"] and method["certificate"]["gap"]
        assert row[-1] == ("–" if gap is None else f"within {100 * gap:.2g} %")
    assert [method["rank"] for method in data["methods"]] == [None, 6, 6, 6]
    assert data["methods"][0]["objective"] is None
    assert len(data["graph"]) == 10


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
    text = render(comparison_page(comparison(changes=(-1, 0, 1), name=bad)))
    reader = Reader(text)
    assert not [tag for tag, _ in reader.tags if tag == "script"]
    assert bad.format(2) in reader.text()
    assert html.escape(bad.format(2), quote=False) in text


def test_any_experiment_can_have_a_page():
    drawing = figure(lambda ax: draw_bars(ax, [("a", 1.0, "one", "blue"), ("b", 2.0, "two", "orange")]))
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


# Drawings


@pytest.mark.thorough
def test_the_same_figure_gives_the_same_svg_with_colors_that_a_page_can_change(page):
    curves = [Curve(f"{i}", [0, 1], [i, i + 1], *style) for i, style in enumerate(STYLES)]

    def draw():
        eight = figure(lambda ax: draw_curves(ax, curves, x_label="x", y_label="y"))
        return "".join(
            to_svg(fig, prefix="x", title="a", description="b") for fig in (draw_overview(comparison()), eight)
        )

    svg = draw()
    assert svg == draw()
    left = re.sub(r"var\(--[a-z]+, #[0-9a-f]{6}\)", "", svg)
    assert not re.findall(r"#[0-9a-f]{6}\b", left)
    for name in COLORS:
        assert f"var(--{name}, {COLORS[name]})" in svg
        assert len(re.findall(rf"--{name}: #", page)) == 2  # for light, and for dark


def test_sites_are_sorted_by_gain_with_the_mean_last():
    alone, together = {"a": 4.0, "b": 6.0, "c": 2.0}, {"a": 4.0, "b": 1.0, "c": 3.0}
    fig = figure(lambda ax: draw_errors(ax, alone, together))
    (ax,) = fig.axes
    assert [label.get_text() for label in ax.get_yticklabels()] == ["b", "a", "c", "mean"]
    assert [line.get_xdata().tolist() for line in ax.lines[:4]] == [[6, 1], [4, 4], [2, 3], [4, pytest.approx(8 / 3)]]
    text = {text.get_text() for text in ax.texts}
    assert {"−5.0", "0", "+1.0", "−1.3", "alone", "together"} <= text


def test_a_bound_reached_up_to_rounding_does_not_stretch_the_scale():
    result = comparison()
    met = result.method("DMTL-ELM").last("objective") * (1 - 1e-13)
    fig = comparison_page(comparison(bounds=(met, met, met))).sections[0].figures[3].drawing
    low, high = fig.axes[0].get_ylim()
    assert low > 1e-6
    assert high > 50
    assert {"DMTL-ELM", "DMTL-ELM, 2 bits"} <= {text.get_text() for text in fig.axes[0].texts}


def test_traffic_is_drawn_in_megabytes_for_the_methods_that_send():
    result = comparison()
    (ax,) = comparison_page(result).sections[0].figures[3].drawing.axes
    ends = {line.get_xdata()[-1] for line in ax.lines if len(line.get_xdata()) > 2}
    assert ends == {result.method(name).bytes / 1e6 for name in ("DMTL-ELM", "DMTL-ELM, 2 bits")}


@pytest.mark.thorough
@pytest.mark.parametrize(("kind", "n_tasks"), [("ring", 2), ("ring", 10), ("star", 10), ("ring", 24), ("star", 40)])
def test_no_two_texts_of_a_drawing_overlap_and_none_is_cut_off(kind, n_tasks):
    make = nx.cycle_graph if kind == "ring" else lambda n: nx.star_graph(n - 1)
    result = comparison([(-2, -1, 0, 1)[t % 4] for t in range(n_tasks)], make)
    for fig in [draw_overview(result), *(f.drawing for f in comparison_page(result).sections[0].figures)]:
        assert_legible(fig)


def test_lines_between_sites_are_the_edges_of_the_graph():
    graph = nx.star_graph(5)
    fig = figure(lambda ax: draw_graph(ax, graph, dict.fromkeys(graph, -1.0)))
    nodes = fig.axes[0].collections[0].get_offsets()
    ends = {frozenset(map(tuple, np.round(line.get_xydata(), 9))) for line in fig.axes[0].lines}
    assert ends == {frozenset({tuple(np.round(nodes[0], 9)), tuple(np.round(nodes[i], 9))}) for i in range(1, 6)}


# In a browser

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
needs_browser = pytest.mark.skipif(BROWSER is None, reason="no Chromium or Chrome on the path")
PROBE = """<script>addEventListener("load", () => {
  const boxes = {};
  for (const part of document.querySelectorAll("figure, figure svg, h1, table")) {
    const box = part.getBoundingClientRect();
    boxes[part.closest("figure")?.id + " " + part.tagName.toLowerCase()] = [box.width, box.height, box.right];
  }
  document.body.dataset.boxes = JSON.stringify([innerWidth, document.documentElement.scrollWidth, boxes]);
});</script>"""


def browse(path, tmp_path, width=1200):
    """Open a page; return the document as the browser has it, and what it wrote to the console."""
    flags = (
        "headless no-sandbox disable-gpu disable-quic no-first-run disable-background-networking "
        "disable-component-update disable-sync enable-logging=stderr v=0 dump-dom"
    )
    done = subprocess.run(
        [
            BROWSER,
            *(f"--{flag}" for flag in flags.split()),
            f"--user-data-dir={tmp_path / 'profile'}",
            f"--window-size={width},900",
            path.as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


@pytest.mark.thorough
@needs_browser
def test_a_browser_opens_the_page_without_a_message_on_the_console(page, tmp_path):
    path = tmp_path / "report.html"
    path.write_text(page, encoding="utf-8")
    document, console = browse(path, tmp_path)
    assert console == []
    for name in FIGURES:
        assert f'<figure id="{name}"' in document


@pytest.mark.thorough
@needs_browser
def test_a_script_in_the_page_is_refused_with_a_message_on_the_console(page, tmp_path):
    path = tmp_path / "report.html"
    path.write_text(page.replace("</body>", "<script>document.title = 'ran'</script></body>"), encoding="utf-8")
    document, console = browse(path, tmp_path)
    assert console
    assert "<title>ran</title>" not in document


def measure(page, tmp_path, width):
    """Open a page; return the width of the window and of what can be scrolled to, and the boxes of its parts."""
    path = tmp_path / "report.html"
    policy = re.search(r'<meta http-equiv="Content-Security-Policy".*?>', page).group()
    path.write_text(page.replace(policy, "").replace("</body>", f"{PROBE}</body>"), encoding="utf-8")
    document, console = browse(path, tmp_path, width)
    assert console == []
    return json.loads(html.unescape(re.search(r'data-boxes="([^"]*)"', document).group(1)))


@pytest.mark.thorough
@needs_browser
@pytest.mark.parametrize("width", [500, 1200])
def test_a_table_or_a_drawing_that_is_too_wide_scrolls_within_itself(claims, tmp_path, width):
    inner, scroll, boxes = measure(claims, tmp_path, width)
    assert scroll <= inner
    assert boxes["undefined table"][0] > inner  # the last table, the wide one
    if width == 500:
        assert boxes["fig-b svg"][0] > inner
    assert boxes["fig-b figure"][2] <= inner


@pytest.mark.thorough
@needs_browser
@pytest.mark.parametrize("width", [500, 1200])
def test_every_figure_has_its_size_in_a_browser_and_stays_inside_the_window(page, tmp_path, width):
    inner, scroll, boxes = measure(page, tmp_path, width)
    assert scroll <= inner
    for name in FIGURES:
        for part in ("figure", "svg"):
            wide, high, right = boxes[f"{name} {part}"]
            assert wide > 300
            assert high > 200
            assert right <= inner
