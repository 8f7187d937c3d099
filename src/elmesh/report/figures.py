"""Matplotlib figures from plain data.

Each ``draw_…`` function draws one idea into given axes, so that it can stand alone (:func:`figure`) or beside
others. Nothing here touches pyplot or its global state. Colours are those of :data:`COLOURS`, which people
with any common colour blindness tell apart. Lines carry their name at their end instead of in a legend.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from matplotlib.text import Text
from matplotlib.ticker import FuncFormatter, LogFormatterMathtext, LogLocator, MaxNLocator, NullFormatter
from numpy.typing import ArrayLike, NDArray
from sklearn.isotonic import isotonic_regression

__all__ = ["COLOURS", "Line", "draw_agents", "draw_bars", "draw_errors", "draw_lines", "figure"]

COLOURS = {
    "ink": "#1b1f24",
    "muted": "#59636f",
    "rule": "#dde2e8",
    "surface": "#fefefe",
    "blue": "#0069a8",
    "orange": "#b36200",
    "green": "#00785a",
    "magenta": "#b0307a",
}
# A figure is 5 inches wide: on a phone, about as many CSS pixels as it has points.
TEXT = 12.0


@dataclass(frozen=True)
class Line:
    """One curve: its name, its points, its colour (a key of `COLOURS`) and its dash pattern."""

    label: str
    x: ArrayLike
    y: ArrayLike
    colour: str
    dash: str = "-"


def figure(draw: Callable[[Axes], object], size: tuple[float, float] = (5.0, 3.9)) -> Figure:
    """Make a figure of one drawing.

    Parameters
    ----------
    draw : callable
        Draws into the axes it is given.
    size : pair of float
        Width and height in inches.

    Examples
    --------
    >>> import functools
    >>> errors = functools.partial(draw_errors, alone={"a": 5.0, "b": 4.0}, together={"a": 3.0, "b": 4.0})
    >>> len(figure(errors).axes)
    1
    """
    fig = Figure(figsize=size, layout="constrained")
    draw(fig.add_subplot())
    return fig


def draw_agents(ax: Axes, graph: Any, change: Mapping[str, float] | None = None) -> None:
    """Draw who sends to whom, each agent coloured by whether its error fell, rose or stayed.

    Agents stand on a circle, the first at the top, so that no name hides another; the hub of a star stands in
    the middle. Many names are turned to point outwards, very many are left out.

    Parameters
    ----------
    ax : Axes
    graph : networkx.Graph
        Nodes are the tasks' labels.
    change : mapping, optional
        Error together less error alone, a task; below zero is better.
    """
    change = change or {}
    turned = len(graph) > 12
    nodes, place = list(graph.nodes), _places(graph)
    points = np.array([place[node] for node in nodes])
    for a, b in graph.edges:
        (x0, y0), (x1, y1) = place[a], place[b]
        ax.plot([x0, x1], [y0, y1], color=COLOURS["muted"], linewidth=1.4, zorder=1)
    fill = [_verdict_colour(change.get(node, 0.0)) for node in nodes]
    area = float(np.clip(3200 / len(nodes), 30, 320))
    ax.scatter(points[:, 0], points[:, 1], s=area, c=fill, edgecolors=COLOURS["surface"], linewidths=2, zorder=2)
    for node, (x, y) in zip(nodes if len(nodes) <= 60 else [], points, strict=False):
        out = np.array([x, y]) if x or y else np.array([0.0, -1.0])
        _name_node(ax, str(node), (x, y), out, np.sqrt(area) / 2 + 5, turned=turned)
    ax.set_aspect("equal")
    ax.set_axis_off()
    # Room for the names outside the circle.
    room = 0.75 if turned else 0.25
    ax.set(xlim=(-1.15 - room, 1.15 + room), ylim=(-1 - room, 1 + room))
    if change:
        signs = [_sign(c) for c in change.values()]
        for x, sign, word in ((0.1, -1, "better"), (0.5, 0, "the same"), (0.9, 1, "worse")):
            ax.annotate(
                f"{signs.count(sign)} {word}", (x, 0.0), xycoords="axes fraction", xytext=(0, -12),
                textcoords="offset points", ha="center", va="top", fontsize=TEXT, color=_verdict_colour(sign),
            )  # fmt: skip


def draw_errors(ax: Axes, alone: Mapping[str, float], together: Mapping[str, float]) -> None:
    """Draw each task's error alone and together, joined; largest gain first, the mean at the foot.

    Parameters
    ----------
    ax : Axes
    alone, together : mapping
        Test error in per cent, a task; the same tasks in both.
    """
    order = sorted(alone, key=lambda task: (together[task] - alone[task], -alone[task], str(task)))
    rows = [(str(task), alone[task], together[task]) for task in order]
    rows.append(("mean", float(np.mean(list(alone.values()))), float(np.mean(list(together.values())))))
    for y, (_, a, b) in enumerate(rows):
        colour = _verdict_colour(b - a)
        same = _sign(b - a) == 0
        ax.plot([a, b], [y, y], color=colour, linewidth=3, solid_capstyle="butt", zorder=2)
        ring, dot = ((58, COLOURS["surface"], COLOURS["muted"]), (12 if same else 58, colour, colour))
        for x, (area, fill, edge) in ((a, ring), (b, dot)):
            # Not clipped: an error of nought lies on the edge.
            ax.scatter([x], [y], s=area, c=fill, edgecolors=edge, linewidths=1.8, zorder=3, clip_on=False)
        _beside(ax, signed(b - a), y, colour, data=True)

    _, a, b = rows[0]
    left, right = ("together", "alone") if b <= a else ("alone", "together")
    _label(ax, left, (min(a, b), 0), (6, 14), "right", "center")
    _label(ax, right, (max(a, b), 0), (-6, 14), "left", "center")
    _beside(ax, "change", -0.75, COLOURS["muted"], data=True)
    ax.axhline(len(rows) - 1.5, color=COLOURS["muted"], linewidth=0.8)
    _plain(ax, grid="x")
    ax.set_yticks(range(len(rows)), [name for name, _, _ in rows])
    ax.set_ylim(len(rows) - 0.4, -1.3)
    ax.set_xlim(0.0, 1.1 * max(1.0, *(max(a, b) for _, a, b in rows)))
    ax.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    ax.tick_params(axis="y", length=0, pad=9)
    ax.set_xlabel("test error, %", fontsize=TEXT, color=COLOURS["ink"])


def draw_bars(ax: Axes, bars: Sequence[tuple[str, float, str, str]]) -> None:
    """Draw one bar a row; what it stands for is written at its end, so there is no scale.

    Parameters
    ----------
    ax : Axes
    bars : sequence of (str, float, str, str)
        Name, length, what is written at the end of the bar, and colour (a key of `COLOURS`).
    """
    for y, (_, length, text, colour) in enumerate(bars):
        ax.barh(y, length, height=0.62, color=COLOURS[colour], zorder=2)
        _label(ax, text, (length, y), (5, 0), "left", "center")
    _plain(ax, grid="x")
    ax.spines["bottom"].set_visible(False)
    ax.set_xticks([])
    ax.set_yticks(range(len(bars)), [name for name, *_ in bars])
    ax.tick_params(axis="y", length=0)
    ax.set_ylim(len(bars) - 0.5, -0.5)
    # Four fifths more than the longest bar: the words at its end are inside the axes.
    ax.set_xlim(0.0, 1.8 * max(1e-9, *(length for _, length, *_ in bars)))


def draw_lines(ax: Axes, lines: Sequence[Line], *, y_label: str, reference: tuple[str, float] | None = None) -> None:
    """Draw curves against rounds on a logarithmic scale that shows round 0, and a level to compare with.

    Parameters
    ----------
    ax : Axes
    lines : sequence of Line
        Points that are not positive and finite are left out where the scale is logarithmic.
    y_label : str
    reference : (str, float), optional
        Name and height of a horizontal line; where it has the name of a curve that ends there, one label
        serves both.
    """
    data = [(line, np.asarray(line.x, dtype=float), np.asarray(line.y, dtype=float)) for line in lines]
    heights = np.concatenate([*(y for _, _, y in data), [reference[1]] if reference else []])
    heights = heights[np.isfinite(heights) & (heights > 0)]
    logarithmic = len(heights) > 0 and heights.max() > 4 * heights.min()
    last = max((float(x.max()) for _, x, _ in data if len(x)), default=1.0)

    names: dict[str, tuple[float, str]] = {}
    if reference:
        ax.axhline(reference[1], color=COLOURS["muted"], linewidth=1.2, linestyle=(0, (2, 2)), zorder=1)
        names[reference[0]] = (reference[1], COLOURS["muted"])
    for line, x, y in data:
        shown = np.isfinite(y) & ((y > 0) | (not logarithmic))
        if shown.any():
            colour = COLOURS[line.colour]
            ax.plot(x[shown], y[shown], color=colour, linestyle=line.dash, linewidth=2.2, zorder=3)
            ax.scatter(x[shown][-1:], y[shown][-1:], s=22, color=colour, zorder=4)
            names[line.label] = (float(y[shown][-1]), colour)

    _plain(ax, grid="y")
    ax.set_xscale("symlog", linthresh=1, linscale=0.5)
    ax.set_xlim(-0.05, max(last, 1.0) * 1.12)
    decades = 10 ** np.arange(np.floor(np.log10(max(last, 1.0))) + 1)
    ax.set_xticks([0, *decades], [f"{int(tick):,}" for tick in (0, *decades)])
    ax.xaxis.set_minor_locator(LogLocator(subs=list(range(2, 10))))
    ax.xaxis.set_minor_formatter(NullFormatter())
    ax.set_xlabel("round", fontsize=TEXT, color=COLOURS["ink"])
    ax.set_ylabel(y_label, fontsize=TEXT, color=COLOURS["ink"])
    _scale_heights(ax, heights, logarithmic)
    _name_ends(ax, names)


def signed(change: float) -> str:
    """Write a change in percentage points with its sign, one place after the point.

    Examples
    --------
    >>> signed(-2.22), signed(0.0), signed(0.5)
    ('−2.2', '0', '+0.5')
    """
    if abs(change) < 0.05:
        return "0"
    return f"{change:+.1f}".replace("-", "\N{MINUS SIGN}")


def _sign(change: float) -> int:
    return int(np.sign(round(change, 9)))


def _verdict_colour(change: float) -> str:
    return COLOURS[("muted", "magenta", "blue")[_sign(change)]]


def _places(graph: Any) -> dict[Any, tuple[float, float]]:
    """Put agents on a circle, clockwise from the top; the hub of a star in the middle."""
    hubs = [node for node, degree in graph.degree if degree == graph.number_of_edges() > 2]
    rim = [node for node in graph.nodes if node not in hubs]
    angles = np.pi / 2 - 2 * np.pi * np.arange(len(rim)) / max(1, len(rim))
    rounded = np.round(np.column_stack([np.cos(angles), np.sin(angles)]), 12).tolist()
    return {node: (x, y) for node, (x, y) in zip(rim, rounded, strict=True)} | dict.fromkeys(hubs, (0.0, 0.0))


def _name_node(
    ax: Axes, name: str, at: tuple[float, float], out: NDArray[np.float64], away: float, *, turned: bool
) -> None:
    side = "center" if abs(out[0]) < 0.2 and not turned else ("left" if out[0] >= 0 else "right")
    label = _label(ax, name, at, out * away, side, "center")
    if turned:
        angle = float(np.degrees(np.arctan2(out[1], out[0])))
        label.set(rotation=angle if out[0] >= 0 else angle + 180, rotation_mode="anchor", fontsize=TEXT - 2)


def _plain(ax: Axes, grid: str) -> None:
    ax.spines[["top", "right"]].set_visible(False)
    ax.spines[["left", "bottom"]].set_color(COLOURS["muted"])
    if grid == "x":
        ax.spines["left"].set_visible(False)
        ax.xaxis.grid(visible=True, color=COLOURS["rule"], linewidth=0.8)
    else:
        ax.yaxis.grid(visible=True, color=COLOURS["rule"], linewidth=0.8)
    ax.set_axisbelow(True)
    ax.tick_params(which="both", colors=COLOURS["muted"], labelcolor=COLOURS["ink"], labelsize=TEXT - 1)


def _label(ax: Axes, text: str, at: ArrayLike, offset: ArrayLike, ha: str, va: str) -> Text:
    x, y = np.asarray(at, float)
    dx, dy = np.asarray(offset, float)
    return ax.annotate(
        text, (x, y), xytext=(dx, dy), textcoords="offset points", ha=ha, va=va, fontsize=TEXT - 1,
        color=COLOURS["ink"], path_effects=[withStroke(linewidth=3, foreground=COLOURS["surface"])], zorder=5,
    )  # fmt: skip


def _scale_heights(ax: Axes, heights: np.ndarray[Any, Any], logarithmic: bool) -> None:
    if not len(heights):
        return
    low, high = float(heights.min()), float(heights.max())
    if not logarithmic:
        ax.set_ylim(low - 0.06 * (high - low or high), high + 0.06 * (high - low or high))
        ax.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
        return
    ax.set_yscale("log")
    ax.set_ylim(low * (low / high) ** 0.06, high * (high / low) ** 0.06)
    wide = high > 30 * low
    # Less than a decade and a half has too few powers of ten: write 1, 2 and 5 times each.
    ax.yaxis.set_major_locator(LogLocator(subs=(1.0,) if wide else (1.0, 2.0, 5.0), numticks=7))
    ax.yaxis.set_major_formatter(LogFormatterMathtext() if wide else FuncFormatter(lambda v, _: f"{v:,.6g}"))
    ax.yaxis.set_minor_formatter(NullFormatter())


def _name_ends(ax: Axes, names: Mapping[str, tuple[float, str]]) -> None:
    """Write each name to the right of the axes at its height, moved apart as little as keeps them legible."""
    if not names:
        return
    order = sorted(names, key=lambda name: names[name][0])
    pixels = ax.transData.transform([(1.0, names[name][0]) for name in order])[:, 1]
    box = ax.get_window_extent()
    step = 1.5 * TEXT / 72 * ax.figure.dpi / box.height
    even = step * np.arange(len(order))
    # Rising after even steps are taken off means no closer than a step: least squares under that condition.
    heights = isotonic_regression((pixels - box.y0) / box.height - even) + even
    for name, height in zip(order, heights, strict=True):
        _beside(ax, name, float(height), names[name][1], data=False)


def _beside(ax: Axes, text: str, y: float, colour: str, *, data: bool) -> None:
    ax.annotate(
        text, (1.0, y), xycoords=("axes fraction", "data" if data else "axes fraction"), xytext=(8, 0),
        textcoords="offset points", ha="left", va="center", fontsize=TEXT - 1, color=colour,
    )  # fmt: skip
