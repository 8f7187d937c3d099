"""Figures from plot functions, as files and as SVG elements, and the style that all plots share.

A plot function draws into the axes it is given. Nothing here uses pyplot or its global state. Readers with any common
color blindness can distinguish :data:`COLORS`; pairs that are harder to distinguish also differ in dash and marker
(:data:`STYLES`). Lines are labelled at their ends, so no plot needs a legend.
"""

from __future__ import annotations

import io
import re
import string
import warnings
from collections.abc import Callable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.patheffects import withStroke
from matplotlib.text import Text
from matplotlib.ticker import FuncFormatter, LogFormatterMathtext, LogLocator, MaxNLocator, NullFormatter
from matplotlib.transforms import Affine2D
from numpy.typing import ArrayLike
from sklearn.isotonic import isotonic_regression

from elmesh.files import atomic_write
from elmesh.text import shortened
from elmesh.typing import FloatArray, StrPath

__all__ = [
    "COLORS", "STYLES", "SUPERSCRIPT", "TEXT", "PlotFunction", "clean_axes", "figure", "label_ends", "label_margin",
    "label_point", "label_points", "literal", "save_figure", "set_range", "to_svg",
]  # fmt: skip

COLORS = {
    "ink": "#1b1f24", "muted": "#59636f", "rule": "#dde2e8", "surface": "#fefefe",
    "blue": "#0069a8", "orange": "#b36200", "green": "#00785a", "magenta": "#b0307a",
    "violet": "#5a2ee0", "red": "#6b0f12", "olive": "#5a5600",
}  # fmt: skip
#: Font size in points. A figure is 5 inches wide: on a phone it has about as many CSS pixels as points.
TEXT = 12.0
SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
PlotFunction = Callable[[Axes], object]


#: Color, dash and marker of each curve of a plot, for ``Curve(label, x, y, *style)``.
STYLES = (
    ("blue", "-", "o"), ("orange", "--", "s"), ("green", "-", "^"), ("magenta", "-.", "D"),
    ("ink", ":", "X"), ("violet", "--", "v"), ("olive", "-.", "P"), ("red", ":", "*"),
)  # fmt: skip


def clean_axes(ax: Axes, grid: str) -> None:
    """Remove the frame, and draw grid lines for the axis ``grid`` ("x" or "y") only."""
    ax.spines[["top", "right"]].set_visible(False)
    ax.spines[["left", "bottom"]].set_color(COLORS["muted"])
    if grid == "x":
        ax.spines["left"].set_visible(False)
    (ax.xaxis if grid == "x" else ax.yaxis).grid(visible=True, color=COLORS["rule"], linewidth=0.8)
    ax.set_axisbelow(True)
    ax.tick_params(which="both", colors=COLORS["muted"], labelcolor=COLORS["ink"], labelsize=TEXT - 1)


def set_range(ax: Axes, axis_name: str, low: float, high: float, *, logarithmic: bool, margin: float = 0.06) -> None:
    """Set the range of the axis "x" or "y", with a margin (a share of the range) at both ends and few round ticks."""
    axis = ax.xaxis if axis_name == "x" else ax.yaxis
    if not logarithmic:
        spread = high - low or abs(high) or 1.0
        ax.set(**{f"{axis_name}lim": (low - margin * spread, high + margin * spread)})
        axis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
        return
    factor = max(high / low, 2.0) ** margin
    ax.set(**{f"{axis_name}scale": "log", f"{axis_name}lim": (low / factor, high * factor)})
    wide = high > 100 * low
    # Fewer than two decades have too few powers of ten: use 1, 2 and 5 times each.
    axis.set_major_locator(LogLocator(subs=(1.0,) if wide else (1.0, 2.0, 5.0), numticks=7))
    powers = wide and (high > 1e4 or low < 1e-3)
    axis.set_major_formatter(LogFormatterMathtext() if powers else FuncFormatter(lambda v, _: f"{v:,.6g}"))
    axis.set_minor_formatter(NullFormatter())


def label_point(ax: Axes, text: str, at: ArrayLike, offset: ArrayLike, ha: str, va: str) -> Text:
    """Write inside the axes, ``offset`` points away from a point in data coordinates, legible over lines."""
    x, y = np.asarray(at, float)
    dx, dy = np.asarray(offset, float)
    return ax.annotate(
        text, (x, y), xytext=(dx, dy), textcoords="offset points", ha=ha, va=va, fontsize=TEXT - 1,
        color=COLORS["ink"], path_effects=[withStroke(linewidth=3, foreground=COLORS["surface"])], zorder=5,
    )  # fmt: skip


def label_margin(ax: Axes, text: str, y: float, color: str) -> None:
    """Write to the right of the axes at the height ``y`` in data coordinates."""
    ax.annotate(
        text, (1.0, y), xycoords=("axes fraction", "data"), xytext=(8, 0), textcoords="offset points",
        ha="left", va="center", fontsize=TEXT - 1, color=color,
    )  # fmt: skip


def label_ends(ax: Axes, labels: Mapping[str, tuple[float, str]]) -> None:
    """Write labels (text to height in data coordinates and color) to the right of the axes, without overlaps.

    Positions are computed whenever the figure is drawn, because only then the size of the axes is known.
    """
    order = sorted(labels, key=lambda text: labels[text][0])
    ends = [labels[text][0] for text in order]
    for i, text in enumerate(order):
        color = labels[text][1]
        ax.annotate(
            text, (0.0, 0.0), xycoords=_label_position(ax, ends, i, 17), ha="left", va="center", fontsize=TEXT - 1,
            color=color, annotation_clip=False,
        )  # fmt: skip
        # A separate annotation, because Matplotlib counts an arrow as part of the bounding box of its text.
        ax.annotate(
            "", (1.0, ends[i]), xycoords=("axes fraction", "data"), xytext=(0.0, 0.0),
            textcoords=_label_position(ax, ends, i, 15), annotation_clip=False,
            arrowprops={"arrowstyle": "-", "color": color, "linewidth": 0.9, "shrinkA": 0, "shrinkB": 2},
        )  # fmt: skip


def _label_position(ax: Axes, ends: list[float], i: int, offset: float) -> Callable[[Any], Affine2D]:
    """Return a function that gives Matplotlib the position of label ``i`` at each drawing."""

    def transform(_: Any) -> Affine2D:
        point = ax.figure.dpi / 72
        heights = ax.transData.transform([(1.0, end) for end in ends])[:, 1]
        return Affine2D().translate(
            ax.bbox.x1 + offset * point, _spread(heights, ax.bbox, 1.35 * (TEXT - 1) * point)[i]
        )

    return transform


def label_points(ax: Axes, labels: Sequence[tuple[str, float, float]], points: FloatArray) -> None:
    """Write labels (text and point in data coordinates) beside their points, clear of each other and of all points.

    Positions are computed whenever the figure is drawn, because only then the size of the axes is known.
    """
    places = _free_places(ax, labels, points)
    for i, (text, _, _) in enumerate(labels):
        ax.annotate(
            text, (0.0, 0.0), xycoords=lambda renderer, i=i: Affine2D().translate(*places(renderer)[i]), ha="center",
            va="center", fontsize=TEXT - 1, color=COLORS["ink"], annotation_clip=False, zorder=5,
        )  # fmt: skip


# Beside a point first, then above and below it, then at its corners.
_SIDES = np.array([(1, 0), (-1, 0), (0, 1), (0, -1), (1, 1), (-1, 1), (1, -1), (-1, -1)])


def _free_places(
    ax: Axes, labels: Sequence[tuple[str, float, float]], points: FloatArray
) -> Callable[[Any], list[FloatArray]]:
    """Return a function that gives the centres of labels at each drawing, one after the other the least crowded."""
    font = FontProperties(size=TEXT - 1)
    known: dict[tuple[Any, ...], list[FloatArray]] = {}

    def places(renderer: Any) -> list[FloatArray]:
        marks, box = ax.transData.transform(points), ax.bbox
        key = (marks.tobytes(), box.bounds)
        if key in known:
            return known[key]
        found: list[FloatArray] = []
        halves: list[FloatArray] = []
        gap = 5 * ax.figure.dpi / 72
        for text, x, y in labels:
            width, height, _ = renderer.get_text_width_height_descent(text.replace(r"\$", "$"), font, False)
            half = np.array([width / 2 + 2, height / 2 + 1])
            tried = ax.transData.transform((x, y)) + np.concatenate([(half + r * gap) * _SIDES for r in (1, 2.5, 4)])
            crowding = 20.0 * np.sum(np.all(np.abs(marks - tried[:, None]) < half, axis=2), axis=1)
            crowding += 10 * np.sum(
                np.maximum(box.min - tried + half, 0) + np.maximum(tried + half - box.max, 0), axis=1
            )
            for other, size in zip(found, halves, strict=True):
                crowding += 10 * np.prod(np.maximum(half + size - np.abs(tried - other), 0.0), axis=1)
            found.append(tried[np.argmin(crowding)])
            halves.append(half)
        known[key] = found
        return found

    return places


def literal(text: object, most: int = 24) -> str:
    r"""Return a name from the data as plots show it: cut if it is long, its dollar signs no mathematics.

    Examples
    --------
    >>> print(literal("a site with a very long name indeed"), literal("$5 and $10"))
    a site with a very long… \$5 and \$10
    """
    return shortened(" ".join(str(text).split()), most).replace("$", r"\$")


def _spread(heights: FloatArray, box: Any, step: float) -> FloatArray:
    """Move increasing heights at least ``step`` apart, within the box if they fit, with the least squared change.

    Heights are at least a step apart if they still increase after ``step * index`` is subtracted: isotonic regression.
    """
    even = step * np.arange(len(heights))
    slack = max(0.0, box.height - even[-1])
    middle = box.y0 + (box.height - even[-1]) / 2
    moved: FloatArray = isotonic_regression(heights - even, y_min=middle - slack / 2, y_max=middle + slack / 2) + even
    return moved


def figure(*draws: PlotFunction, size: tuple[float, float] = (5.0, 3.9)) -> Figure:
    """Return a figure of one plot of a size in inches, or of several in two columns.

    Several plots are arranged row by row; each has a letter and is 5 by 3.5 inches.
    """
    if len(draws) == 1:
        fig = Figure(size, layout="constrained")
        draws[0](fig.add_subplot())
        return fig
    rows = -(-len(draws) // 2)
    fig = Figure((10.0, 3.5 * rows), layout=ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.1))
    for i, draw in enumerate(draws):
        ax = fig.add_subplot(rows, 2, i + 1)
        draw(ax)
        height = ax.transAxes + ax.titleOffsetTrans  # type: ignore[attr-defined]  # missing in Matplotlib's stubs
        ax.annotate(
            f"({string.ascii_lowercase[i]})", (0.0, 1.0), xycoords=height, xytext=(-7, 0),
            textcoords="offset points", ha="right", fontsize=TEXT + 1, fontweight="bold", color=COLORS["ink"],
        )  # fmt: skip
    return fig


def save_figure(fig: Figure, path: StrPath) -> tuple[Path, Path]:
    """Write a figure as PNG and as SVG, and return the two files; the same figure gives the same bytes.

    ``path`` has no suffix. Its folder is created. Text in the SVG is text that can be searched and edited.
    """
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    # The suffix is appended, because the name itself may contain a dot.
    png, svg = (Path(f"{path}.{suffix}") for suffix in ("png", "svg"))
    for target, metadata in ((png, {"Software": None}), (svg, {"Date": None, "Creator": None})):
        buffer = io.BytesIO()
        with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "elmesh"}):
            fig.savefig(buffer, format=target.suffix[1:], dpi=150, facecolor=COLORS["surface"], metadata=metadata)
        atomic_write(target, buffer.getvalue())
    return png, svg


def to_svg(fig: Figure, *, prefix: str, title: str, description: str) -> str:
    """Return a figure as an ``<svg>`` element for a page; the same figure gives the same text.

    The element has no size of its own. Colors are CSS variables named after the keys of
    :data:`COLORS`, so that one figure serves light and dark pages. Text is outlines, which do not
    depend on fonts. ``prefix`` precedes every id, so that the figures of a page share none; ``title`` and
    ``description`` are for screen readers.
    """
    buffer = io.StringIO()
    with mpl.rc_context({"svg.fonttype": "path", "svg.hashsalt": prefix}), warnings.catch_warnings():
        # A letter that no font has is a box in the drawing; the tables of the page have all names as text.
        warnings.filterwarnings("ignore", "Glyph .* missing from font")
        fig.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :].strip()
    # The style element would apply to the whole page; the page has a style sheet with the same rules.
    text = re.sub(r"<metadata>.*?</metadata>|<defs>\s*<style.*?</style>\s*</defs>", "", text, flags=re.DOTALL)
    text = re.sub(r'\b(id="|xlink:href="#|url\(#)', rf"\g<1>{prefix}-", text)
    for name, color in COLORS.items():
        text = text.replace(color, f"var(--{name}, {color})")
    head, body = text.split(">", 1)
    head = re.sub(r'\s(?:width|height|version)="[^"]*"', "", head)
    return (
        f'{head} role="img" aria-labelledby="{prefix}-title {prefix}-description">'
        f'<title id="{prefix}-title">{escape(title)}</title>'
        f'<desc id="{prefix}-description">{escape(description)}</desc>{body}'
    )
