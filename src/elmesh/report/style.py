"""What all drawings share: colours, plain axes, scales with few ticks, and names where the eye already is.

Colours are those of :data:`COLOURS`; people with any common colour blindness tell them apart, the less easily
told pairs by dash and marker too (:data:`STYLES`). Lines carry their name at their end instead of in a legend.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypedDict

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patheffects import withStroke
from matplotlib.text import Text
from matplotlib.ticker import FuncFormatter, LogFormatterMathtext, LogLocator, MaxNLocator, NullFormatter
from matplotlib.transforms import Affine2D
from numpy.typing import ArrayLike, NDArray
from sklearn.isotonic import isotonic_regression

__all__ = ["COLOURS", "STYLES", "TEXT", "Style", "beside", "label", "name_ends", "plain", "scale"]

COLOURS = {
    "ink": "#1b1f24",
    "muted": "#59636f",
    "rule": "#dde2e8",
    "surface": "#fefefe",
    "blue": "#0069a8",
    "orange": "#b36200",
    "green": "#00785a",
    "magenta": "#b0307a",
    "violet": "#5a2ee0",
    "red": "#6b0f12",
    "olive": "#5a5600",
}
# A figure is 5 inches wide: on a phone, about as many CSS pixels as it has points.
TEXT = 12.0


class Style(TypedDict):
    """How a curve is told from others; ``Curve(label, x, y, **style)`` takes one."""

    colour: str
    dash: str
    marker: str


STYLES: tuple[Style, ...] = (
    {"colour": "blue", "dash": "-", "marker": "o"},
    {"colour": "orange", "dash": "--", "marker": "s"},
    {"colour": "green", "dash": "-", "marker": "^"},
    {"colour": "magenta", "dash": "-.", "marker": "D"},
    {"colour": "ink", "dash": ":", "marker": "X"},
    {"colour": "violet", "dash": "--", "marker": "v"},
    {"colour": "olive", "dash": "-.", "marker": "P"},
    {"colour": "red", "dash": ":", "marker": "*"},
)


def plain(ax: Axes, grid: str) -> None:
    """Take from axes what says nothing; `grid` names the axis whose values are read, ``"x"`` or ``"y"``."""
    ax.spines[["top", "right"]].set_visible(False)
    ax.spines[["left", "bottom"]].set_color(COLOURS["muted"])
    if grid == "x":
        ax.spines["left"].set_visible(False)
        ax.xaxis.grid(visible=True, color=COLOURS["rule"], linewidth=0.8)
    else:
        ax.yaxis.grid(visible=True, color=COLOURS["rule"], linewidth=0.8)
    ax.set_axisbelow(True)
    ax.tick_params(which="both", colors=COLOURS["muted"], labelcolor=COLOURS["ink"], labelsize=TEXT - 1)


def scale(ax: Axes, name: str, low: float, high: float, *, logarithmic: bool, room: float = 0.06) -> None:
    """Give an axis the range from `low` to `high` with a little room at both ends, and few round ticks.

    Parameters
    ----------
    ax : Axes
    name : str
        Of the axis, ``"x"`` or ``"y"``.
    low, high : float
        Least and greatest value; above zero where `logarithmic`.
    logarithmic : bool
    room : float, default=0.06
        At each end, as a part of the range.
    """
    axis = ax.xaxis if name == "x" else ax.yaxis
    if not logarithmic:
        spread = high - low or abs(high) or 1.0
        ax.set(**{f"{name}lim": (low - room * spread, high + room * spread)})
        axis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
        return
    factor = max(high / low, 2.0) ** room
    ax.set(**{f"{name}scale": "log", f"{name}lim": (low / factor, high * factor)})
    wide = high > 100 * low
    # Less than two decades have too few powers of ten: write 1, 2 and 5 times each.
    axis.set_major_locator(LogLocator(subs=(1.0,) if wide else (1.0, 2.0, 5.0), numticks=7))
    powers = wide and (high > 1e4 or low < 1e-3)
    axis.set_major_formatter(LogFormatterMathtext() if powers else FuncFormatter(lambda v, _: f"{v:,.6g}"))
    axis.set_minor_formatter(NullFormatter())


def label(ax: Axes, text: str, at: ArrayLike, offset: ArrayLike, ha: str, va: str) -> Text:
    """Write inside the axes, `offset` points away from a place in data, readable over lines."""
    x, y = np.asarray(at, float)
    dx, dy = np.asarray(offset, float)
    return ax.annotate(
        text, (x, y), xytext=(dx, dy), textcoords="offset points", ha=ha, va=va, fontsize=TEXT - 1,
        color=COLOURS["ink"], path_effects=[withStroke(linewidth=3, foreground=COLOURS["surface"])], zorder=5,
    )  # fmt: skip


def beside(ax: Axes, text: str, y: float, colour: str) -> None:
    """Write to the right of the axes at a height in data."""
    ax.annotate(
        text, (1.0, y), xycoords=("axes fraction", "data"), xytext=(8, 0), textcoords="offset points",
        ha="left", va="center", fontsize=TEXT - 1, color=colour,
    )  # fmt: skip


def name_ends(ax: Axes, names: Mapping[str, tuple[float, str]]) -> None:
    """Write each name to the right of the axes at its height, moved apart as little as keeps them legible.

    Where they stand is found when the figure is drawn: only then is the size of the axes known.

    Parameters
    ----------
    ax : Axes
        With its scales and limits set.
    names : mapping
        Name to its height in data and its colour.
    """
    order = sorted(names, key=lambda name: names[name][0])
    ends = [names[name][0] for name in order]
    for i, name in enumerate(order):
        colour = names[name][1]
        ax.annotate(
            name, (0.0, 0.0), xycoords=_place(ax, ends, i, 17), ha="left", va="center", fontsize=TEXT - 1, color=colour,
            annotation_clip=False,
        )  # fmt: skip
        # A text of its own would count the leader as part of its box.
        ax.annotate(
            "", (1.0, ends[i]), xycoords=("axes fraction", "data"), xytext=(0.0, 0.0),
            textcoords=_place(ax, ends, i, 15), annotation_clip=False,
            arrowprops={"arrowstyle": "-", "color": colour, "linewidth": 0.9, "shrinkA": 0, "shrinkB": 2},
        )  # fmt: skip


def _place(ax: Axes, ends: list[float], i: int, away: float) -> Callable[[Any], Affine2D]:
    """Return what Matplotlib asks, each time it draws, for where the name of end `i` stands."""

    def transform(_: Any) -> Affine2D:
        point = ax.figure.dpi / 72
        heights = _apart(ax.transData.transform([(1.0, end) for end in ends])[:, 1], ax.bbox, 1.35 * (TEXT - 1) * point)
        return Affine2D().translate(ax.bbox.x1 + away * point, heights[i])

    return transform


def _apart(heights: NDArray[np.float64], box: Any, step: float) -> NDArray[np.float64]:
    """Move rising heights at least a step apart, within the box if they fit, by as little as that needs.

    Rising after even steps are taken off means no closer than a step: least squares under that condition.
    """
    even = step * np.arange(len(heights))
    slack = max(0.0, box.height - even[-1])
    middle = box.y0 + (box.height - even[-1]) / 2
    bounds = {"y_min": middle - slack / 2, "y_max": middle + slack / 2}
    moved: NDArray[np.float64] = isotonic_regression(heights - even, **bounds) + even
    return moved
