"""Curves and the figures made of them: legible whatever the data, and the same each time."""

from __future__ import annotations

import itertools
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.backends.backend_agg import FigureCanvasAgg
from PIL import Image

from elmesh.report import STYLES, Curve, draw_curves, figure, save_figure
from elmesh.report.figures import COLORS, to_svg
from helpers.examples import examples
from helpers.marks import one_of
from helpers.pictures import assert_legible

METHODS = ("DMTL-ELM", "FO-DMTL-ELM", "MTL-ELM", "Local ELM", "DNSP", "DGSP", "GO-MTL", "MTFL")
SIZES = np.array([50, 100, 150, 200, 250, 300])
ROUNDS = np.arange(301)


def drawer(curves, **options):
    return lambda ax: draw_curves(ax, curves, **{"x_label": "x", "y_label": "y", **options})


def draw(curves, **options):
    fig = figure(drawer(curves, **options))
    FigureCanvasAgg(fig)
    fig.draw_without_rendering()
    return fig


def words(fig):
    return [text.get_text() for text in fig.axes[0].texts if text.get_text()]


def eight(end=5.0, apart=0.05):
    curves = []
    for i, (name, style) in enumerate(zip(METHODS, STYLES, strict=True)):
        y = end + apart * i + 6 * np.exp(-(SIZES - 50) / (40 + 5 * i))
        curves.append(Curve(name, SIZES, y, *style, band=(y - 0.4, y + 0.4)))
    return curves


def falling(label, colour="green", end=4.0):
    return Curve(label, ROUNDS, end + (70 - end) * np.exp(-0.1 * ROUNDS), colour)


def rising(label, rate=0.08, start=20):
    return Curve(label, ROUNDS, 70 * np.exp(rate * np.maximum(0, ROUNDS - start)), "orange", "--")


# Names


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("curves", "options"),
    [
        pytest.param(eight(), {}, marks=pytest.mark.slow, id="eight"),
        pytest.param(eight(apart=0.0), {"levels": [("level", 5.0)]}, id="all-at-one-height"),
        pytest.param(eight(apart=1.5), {"title": "USPS"}, marks=pytest.mark.slow, id="spread"),
        pytest.param([falling("MTL-ELM"), falling("DMTL-ELM"), rising("FO-DMTL-ELM")],
                     {"y_scale": "log", "title": "L = 10"}, marks=pytest.mark.slow, id="one-diverges"),
        pytest.param([falling("MTL-ELM"), rising("A", 0.09), rising("B", 0.1, 200)],
                     {"x_scale": "rounds", "title": "L = 10"}, marks=pytest.mark.slow, id="two-diverge"),
        pytest.param([Curve("gap", ROUNDS, np.exp(-0.15 * ROUNDS)), Curve("none", [0, 9], [1, 0.5])],
                     {"y_scale": "log"}, marks=pytest.mark.slow, id="twenty-decades"),
        pytest.param([Curve("k = 25", [0.1, 1, 10, 48], [7, 6, 5, 5]), Curve("DNSP", [1], [6])],
                     {"x_scale": "log"}, marks=pytest.mark.slow, id="ratios"),
    ],
)  # fmt: skip
def test_no_two_texts_overlap_and_none_is_cut_off_alone_or_in_panels(curves, options):
    assert_legible(figure(drawer(curves, **options)))
    assert_legible(figure(*[drawer(curves, **options)] * 3))


@pytest.mark.thorough
@examples(40)
@given(st.lists(st.floats(0.5, 1.5), min_size=1, max_size=9))
def test_labels_are_in_the_order_of_the_ends_within_the_height_of_the_axes(ends):
    fig = draw([Curve(f"line {i}", [0, 1, 2], [3, 2, end]) for i, end in enumerate(ends)])
    box = fig.axes[0].bbox
    places = [text.get_window_extent() for text in fig.axes[0].texts if text.get_text()]
    heights = {text: (place.y0 + place.y1) / 2 for text, place in zip(words(fig), places, strict=True)}
    order = sorted(heights, key=heights.get)
    assert order == [f"line {i}" for i in sorted(range(len(ends)), key=lambda i: ends[i])]
    assert all(low.y1 <= high.y0 + 1 for low, high in itertools.pairwise(sorted(places, key=lambda p: p.y0)))
    assert box.y0 - 1 <= min(heights.values())
    assert max(heights.values()) <= box.y1 + 1


def test_a_label_with_enough_space_is_at_the_height_of_its_end():
    fig = draw([Curve("low", [0, 1], [0, 1]), Curve("high", [0, 1], [0, 9])])
    ax = fig.axes[0]
    for text in ax.texts:
        if text.get_text():
            box = text.get_window_extent()
            wanted = ax.transData.transform((1, {"low": 1, "high": 9}[text.get_text()]))[1]
            assert (box.y0 + box.y1) / 2 == pytest.approx(wanted, abs=2)


def test_curves_with_the_same_label_are_labelled_once():
    agents = [Curve("DMTL-ELM", ROUNDS, a * np.exp(-ROUNDS / 50), thin=True) for a in (-2, -1, 1, 2, 3)]
    fig = draw(agents, levels=[("MTL-ELM", 0.0)])
    assert words(fig) == ["MTL-ELM", "DMTL-ELM"]
    assert sum(len(line.get_xdata()) == len(ROUNDS) for line in fig.axes[0].lines) == 5


def test_a_level_with_the_name_of_a_curve_shares_its_label():
    assert words(draw([Curve("MTL-ELM", [0, 1], [3, 2])], levels=[("MTL-ELM", 2.0), ("other", 2.5)])) == [
        "MTL-ELM",
        "other",
    ]


def test_a_curve_without_any_point_to_draw_is_left_out():
    curves = [Curve("none", [0, 1], [np.nan, np.nan]), Curve("some", [0, 1, 9], [9, 1, 0.1], "orange")]
    assert words(draw(curves)) == ["some"]
    assert words(draw([*curves, Curve("zero", [0, 1], [0, 0])], y_scale="log")) == ["some"]


def test_a_single_curve_to_infinity_is_drawn_as_far_as_it_is_finite():
    fig = draw([Curve("alone", [0, 1, 2], [1, 50, np.inf])], y_scale="log")
    assert words(fig) == ["alone"]
    assert fig.axes[0].lines[0].get_ydata().tolist() == [1, 50]


def test_without_curves_the_axes_are_empty():
    assert words(draw([])) == []


# Scales


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("scales", "end"), one_of(5, [("rounds", "auto"), ("rounds", "log"), ("linear", "linear")], [np.inf, 1e300, 1e12])
)
def test_a_diverging_curve_does_not_change_the_scale_and_is_labelled_at_the_top(scales, end):
    x_scale, y_scale = scales
    stay = [falling("MTL-ELM"), falling("DMTL-ELM", "blue", 4.1)]
    y = 70 * np.exp(0.01 * np.maximum(0, ROUNDS - 20))
    y[200:] = np.geomspace(y[199], min(end, 1e300), 101)
    y[300] = end
    away = Curve("FO-DMTL-ELM", ROUNDS, y, "orange")
    with_it, without = (draw(c, x_scale=x_scale, y_scale=y_scale) for c in ([*stay, away], stay))
    assert with_it.axes[0].get_ylim() == without.axes[0].get_ylim()
    assert with_it.axes[0].get_yscale() == without.axes[0].get_yscale()
    (label,) = set(words(with_it)) - {"MTL-ELM", "DMTL-ELM"}
    assert re.fullmatch(r"FO-DMTL-ELM rises above 10[⁰¹²³⁴⁵⁶⁷⁸⁹]+", label)
    (text,) = [text for text in with_it.axes[0].texts if text.get_text() == label]
    assert text.get_window_extent().y0 >= with_it.axes[0].bbox.y1


@pytest.mark.thorough
@pytest.mark.parametrize("start", one_of(3, [100, 0, 280]))
def test_the_label_of_a_diverging_curve_takes_no_space_from_the_axes(start):
    stay = falling("DMTL-ELM")
    wide, wider = (draw(c).axes[0].bbox.width for c in ([stay, rising("FO-DMTL-ELM", 0.5, start)], [stay]))
    assert wide > 0.95 * wider


def test_the_marker_of_a_diverging_curve_is_where_it_crosses_the_top():
    away = Curve("away", [0, 1, 2, 3], [1, 1, 10, 1e6])
    ax = draw([Curve("stays", [0, 3], [1, 4]), away], y_scale="log").axes[0]
    (sign,) = [line for line in ax.lines if line.get_marker() == "^"]
    x, y = ax.transData.inverted().transform(ax.transAxes.transform(sign.get_xydata()))[0]
    assert y == pytest.approx(ax.get_ylim()[1])
    assert x == pytest.approx(1 + np.log10(y))


@pytest.mark.thorough
@pytest.mark.parametrize(
    "curves",
    [
        pytest.param([falling("a"), Curve("peak", ROUNDS, 1e6 * np.exp(-0.1 * (ROUNDS - 50) ** 2) + 4)],
                     id="comes-back"),
        pytest.param([Curve(f"{rate}", ROUNDS, np.r_[1e-13, 0.2 * np.exp(-rate * ROUNDS[1:])]) for rate in (0.1, 0.0)],
                     marks=pytest.mark.slow, id="gap-from-rounding"),
        pytest.param([falling("a"), Curve("high", ROUNDS, 1e6 - ROUNDS)],
                     marks=pytest.mark.slow, id="high-but-falling"),
        pytest.param([rising("alone")], id="alone"),
    ],
)  # fmt: skip
def test_a_curve_that_does_not_diverge_from_others_is_shown_completely(curves):
    low, high = draw(curves, y_scale="log").axes[0].get_ylim()
    for curve in curves:
        assert low < np.min(curve.y)
        assert np.max(curve.y) < high


def test_the_scale_includes_bands_and_levels():
    curve = Curve("a", [1, 2], [5, 6], band=([3, np.nan], [9, np.nan]))
    low, high = draw([curve], levels=[("far", 12.0)]).axes[0].get_ylim()
    assert low < 3
    assert high > 12


@pytest.mark.parametrize(
    ("values", "kind"), [([1, 3.9], "linear"), ([1, 4.1], "log"), ([-1, 100], "linear"), ([0, 1, 100], "log")]
)
def test_an_automatic_scale_is_logarithmic_for_a_wide_range_without_negative_values(values, kind):
    assert draw([Curve("a", range(len(values)), values)], y_scale="auto").axes[0].get_yscale() == kind


def test_a_few_sizes_are_the_ticks():
    labels = [label.get_text() for label in draw(eight()).axes[0].get_xticklabels()]
    assert labels == ["50", "100", "150", "200", "250", "300"]


def test_the_axis_of_rounds_includes_round_0():
    ax = draw([falling("a")], x_scale="rounds").axes[0]
    assert ax.get_xlim()[0] < 0
    assert [label.get_text() for label in ax.get_xticklabels()] == ["0", "1", "10", "100"]


# Styles


def luminance(colour):
    rgb = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)


# Machado, Oliveira and Fernandes (2009), complete protanopia and deuteranopia, on linear RGB.
EYES = (
    np.eye(3),
    np.array([[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]),
    np.array([[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]),
)


def lab(linear):
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    x, y, z = np.cbrt(np.maximum(to_xyz @ np.clip(linear, 0, 1) / [0.9505, 1.0, 1.089], 0.008856))
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def palettes():
    from importlib.resources import files

    css = files("elmesh.report").joinpath("template.html").read_text(encoding="utf-8")
    found = re.findall(r"--([a-z]+): (#[0-9a-f]{6})", css)
    light, dark = dict(found[: len(COLORS) + 1]), dict(found[len(COLORS) + 1 :])
    return light, dark


def test_a_light_page_has_the_colors_of_the_figures():
    light, dark = palettes()
    names = set(COLORS) - {"surface"}  # a drawing's is a shade off white, so as not to be taken for text's
    assert {name: light[name] for name in names} == {name: COLORS[name] for name in names}
    assert set(light) == set(dark)


@pytest.mark.parametrize("palette", palettes(), ids=["light", "dark"])
def test_the_eight_styles_are_distinct_for_any_color_vision_and_their_labels_are_legible(palette):
    colours = [luminance(palette[color]) for color, _, _ in STYLES]
    weights = np.array([0.2126, 0.7152, 0.0722])
    ground = weights @ luminance(palette["surface"])
    for colour in colours:
        low, high = sorted((weights @ colour, ground))
        assert (high + 0.05) / (low + 0.05) >= 4.49
    for (a, left), (b, right) in itertools.combinations(zip(STYLES, colours, strict=True), 2):
        assert min(np.linalg.norm(lab(eye @ left) - lab(eye @ right)) for eye in EYES) > 12
        assert a[2] != b[2]  # the markers
    assert len(STYLES) == len({color for color, _, _ in STYLES}) == 8


# Figures and files


def test_panels_have_letters_in_reading_order_and_fill_rows_first():
    fig = figure(*[drawer([falling("a")])] * 5)
    letters = [next(t.get_text() for t in ax.texts if t.get_text().startswith("(")) for ax in fig.axes]
    assert letters == ["(a)", "(b)", "(c)", "(d)", "(e)"]
    FigureCanvasAgg(fig)
    fig.draw_without_rendering()
    places = [(round(-ax.bbox.y1), round(ax.bbox.x0)) for ax in fig.axes]
    assert places == sorted(places)
    assert len({y for y, _ in places}) == 3


@pytest.mark.thorough
def test_a_figure_is_saved_as_png_and_svg_the_same_each_time(tmp_path):
    def written(name):
        return save_figure(
            figure(drawer(eight(), title="USPS & <MNIST>"), drawer([falling("a")])), tmp_path / "new" / name
        )

    png, svg = written("fig5.v2")
    assert (png.name, svg.name) == ("fig5.v2.png", "fig5.v2.svg")
    for one, other in zip((png, svg), written("again"), strict=True):
        assert one.read_bytes() == other.read_bytes()
    assert sorted(path.name for path in png.parent.iterdir()) == [
        "again.png",
        "again.svg",
        "fig5.v2.png",
        "fig5.v2.svg",
    ]
    with Image.open(png) as image:
        assert image.size == (1500, 525)
    text = svg.read_text(encoding="utf-8")
    assert "USPS &amp; &lt;MNIST&gt;" in text
    assert all(f">{name}</text>" in text for name in METHODS)
    assert "<dc:date>" not in text


def test_a_figure_that_cannot_be_drawn_leaves_the_old_files_unchanged(tmp_path):
    def fail(ax):
        ax.set_title("$\\nonsense$")

    png, svg = save_figure(figure(drawer([falling("a")])), tmp_path / "x")
    before = png.read_bytes(), svg.read_bytes()
    with pytest.raises(ValueError, match="nonsense"):
        save_figure(figure(fail), tmp_path / "x")
    assert (png.read_bytes(), svg.read_bytes()) == before
    assert len(list(tmp_path.iterdir())) == 2


def test_labels_are_escaped_in_a_page():
    svg = to_svg(draw([Curve("<script>", [0, 1], [1, 2])]), prefix="x", title="<b>", description="&")
    assert "<script>" not in svg
    assert "&lt;b&gt;" in svg
