"""Curves: values against rounds, sizes or ratios, with bands, and names at their ends.

A curve that runs away must not flatten the others: the scale is theirs, and it leaves through the top, where
it is named together with the power of ten that it reached.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator, NullFormatter
from numpy.typing import ArrayLike, NDArray

from elmesh.report.style import COLOURS, TEXT, name_ends, plain, scale

__all__ = ["Curve", "draw_curves"]

Array = NDArray[np.float64]

# A curve that ends this many times above all that the others reach has run away.
AWAY = 100.0
# On a scale of its own choice, values that differ by no more than this factor are drawn evenly spaced.
EVEN = 4.0
FEW = 15
# Markers that fill little of their square, made larger.
SIZES: dict[str | None, float] = {"*": 11.0, "P": 8.5, "X": 8.5}
# Points from one row of names above the axes to the next.
ROW = 1.35 * TEXT
RAISED = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")


@dataclass(frozen=True, eq=False)
class Curve:
    """One curve.

    Parameters
    ----------
    label : str
        Written at its end; curves of one label are a group, and it is written once.
    x, y : array_like
        Its points; those not finite are left out, but for a `y` of infinity, which is running away.
    colour : str
        A key of :data:`~elmesh.report.style.COLOURS`.
    dash : str
        A line style of Matplotlib.
    low, high : array_like, optional
        A band around it, such as a 95 % interval.
    marker : str, optional
        A marker of Matplotlib at its points, or at some of them where they are many.
    quiet : bool, default=False
        Thin, for one of many.
    """

    label: str
    x: ArrayLike
    y: ArrayLike
    colour: str = "blue"
    dash: str = "-"
    low: ArrayLike | None = None
    high: ArrayLike | None = None
    marker: str | None = None
    quiet: bool = False

    def points(self) -> tuple[Array, Array]:
        """Return the points that there are, those at infinity included."""
        x, y = np.asarray(self.x, dtype=float), np.asarray(self.y, dtype=float)
        there = np.isfinite(x) & (np.isfinite(y) | (y == np.inf))
        return x[there], y[there]

    def band(self) -> tuple[Array, Array, Array] | None:
        """Return `x`, `low` and `high`, or None."""
        if self.low is None or self.high is None:
            return None
        return np.asarray(self.x, dtype=float), np.asarray(self.low, dtype=float), np.asarray(self.high, dtype=float)

    def heights(self) -> Array:
        """Return all finite heights of the curve and its band."""
        band = self.band()
        heights: Array = np.concatenate([np.asarray(self.y, dtype=float), *(band[1:] if band else ())])
        return heights[np.isfinite(heights)]


def draw_curves(
    ax: Axes,
    curves: Sequence[Curve],
    *,
    x_label: str,
    y_label: str,
    x_scale: Literal["linear", "log", "rounds"] = "linear",
    y_scale: Literal["linear", "log", "auto"] = "linear",
    title: str = "",
    levels: Sequence[tuple[str, float]] = (),
) -> None:
    """Draw curves, and levels to compare them with.

    Parameters
    ----------
    ax : Axes
    curves : sequence of Curve
    x_label, y_label : str
    x_scale : {"linear", "log", "rounds"}
        ``"rounds"`` is a logarithmic scale that shows round 0.
    y_scale : {"linear", "log", "auto"}
        ``"auto"`` is logarithmic where values differ by more than a factor of 4 and none is negative. On a
        logarithmic scale, values that are not positive are left out.
    title : str
    levels : sequence of (str, float)
        Names and heights of horizontal lines; where one has the name of a curve, one label serves both.

    Examples
    --------
    >>> from elmesh.report.sheet import figure
    >>> curve = Curve("DMTL-ELM", [50, 100, 200], [9.0, 6.0, 5.0], low=[8.5, 5.5, 4.6], high=[9.5, 6.5, 5.4])
    >>> fig = figure(lambda ax: draw_curves(ax, [curve], x_label="hidden units", y_label="test error, %"))
    >>> fig.axes[0].get_xlabel()
    'hidden units'
    """
    away = _run_away(curves, levels)
    stay = [curve for curve in curves if curve not in away]
    heights = np.concatenate([*(curve.heights() for curve in stay), [height for _, height in levels]])
    logarithmic = y_scale == "log" or (y_scale == "auto" and _far_apart(heights))
    plain(ax, grid="y")
    _scale_x(ax, curves, x_scale)
    _scale_y(ax, heights, logarithmic)
    ax.set_xlabel(x_label, fontsize=TEXT, color=COLOURS["ink"])
    ax.set_ylabel(y_label, fontsize=TEXT, color=COLOURS["ink"])

    ends: dict[str, list[float]] = {}
    for _, height in levels:
        ax.axhline(height, color=COLOURS["muted"], linewidth=1.2, linestyle=(0, (2, 2)), zorder=1)
    for curve in curves:
        x, y = curve.points()
        shown = ((y > 0) | (not logarithmic)) & (np.isfinite(y) | (curve in away))
        if shown.any():
            _draw(ax, curve, x[shown], y[shown])
            if curve in stay:
                ends.setdefault(curve.label, []).append(float(y[shown][-1]))
    names = {name: (height, COLOURS["muted"]) for name, height in levels}
    colours = {curve.label: COLOURS[curve.colour] for curve in curves}
    name_ends(ax, names | {name: (float(np.median(end)), colours[name]) for name, end in ends.items()})
    rows = _name_exits(ax, away)
    if title:
        pad = 10 + rows * ROW + 4 * (rows > 0)
        ax.set_title(title, loc="left", fontsize=TEXT + 1, color=COLOURS["ink"], pad=pad)


def _run_away(curves: Sequence[Curve], levels: Sequence[tuple[str, float]]) -> list[Curve]:
    """Return the curves that end far above their start and above all that the others reach."""
    reach = max((abs(height) for _, height in levels), default=0.0)
    away: list[Curve] = []
    for curve in sorted((curve for curve in curves if curve.points()[1].size), key=lambda curve: curve.points()[1][-1]):
        _, y = curve.points()
        if 0 < reach < y[-1] / AWAY and y[-1] > y[0]:
            away.append(curve)
        else:
            reach = max(reach, float(np.abs(curve.heights()).max(initial=0.0)))
    return away


def _far_apart(heights: Array) -> bool:
    positive = heights[heights > 0]
    return len(positive) > 0 and bool(heights.min() >= 0) and bool(positive.max() > EVEN * positive.min())


def _draw(ax: Axes, curve: Curve, x: Array, y: Array) -> None:
    colour, band = COLOURS[curve.colour], curve.band()
    if band is not None:
        ax.fill_between(*band, color=colour, alpha=0.13, linewidth=0, zorder=2)
        if len(x) == 1:  # a band has no width there
            ax.vlines(*band, color=colour, linewidth=1.4, zorder=2)
    # Past a million times the top of the axes it is out of sight, and pixels would overflow.
    y = np.minimum(y, 1e6 * abs(ax.get_ylim()[1]))
    if curve.quiet:
        ax.plot(x, y, color=colour, linestyle=curve.dash, linewidth=1.0, alpha=0.75, zorder=2.5)
        return
    ax.plot(
        x, y, color=colour, linestyle=curve.dash, linewidth=2.0, zorder=3,
        marker=curve.marker, markersize=SIZES.get(curve.marker, 6.5), markeredgecolor=COLOURS["surface"],
        markeredgewidth=0.7, markevery=None if len(x) <= FEW else 0.15,
    )  # fmt: skip
    if curve.marker is None:
        ax.scatter(x[-1:], y[-1:], s=22, color=colour, zorder=4)
    # A curve that ends early is led to its name at the edge; outside the axes there is nothing to see.
    ax.plot([x[-1], ax.get_xlim()[1]], [y[-1], y[-1]], color=colour, linestyle=(0, (1, 3)), linewidth=1.0, zorder=2)


def _scale_x(ax: Axes, curves: Sequence[Curve], kind: str) -> None:
    x = np.unique(np.concatenate([[], *(curve.points()[0] for curve in curves)]))
    if kind == "rounds":
        last = max(1.0, float(x.max(initial=1.0)))
        ax.set_xscale("symlog", linthresh=1, linscale=0.5)
        ax.set_xlim(-0.05, last * 1.12)
        decades = 10 ** np.arange(np.floor(np.log10(last)) + 1)
        ax.set_xticks([0, *decades], [f"{int(tick):,}" for tick in (0, *decades)])
        ax.xaxis.set_minor_locator(LogLocator(subs=list(range(2, 10))))
        ax.xaxis.set_minor_formatter(NullFormatter())
        return
    x = x[(x > 0) | (kind != "log")]
    if len(x):
        scale(ax, "x", float(x[0]), float(x[-1]), logarithmic=kind == "log", room=0.03)
        # A few sizes that were tried are better ticks than round numbers between them.
        if kind == "linear" and 1 < len(x) <= 8 and np.diff(x).min() > 0.1 * (x[-1] - x[0]):
            ax.set_xticks(x, [f"{tick:,.6g}" for tick in x])


def _scale_y(ax: Axes, heights: Array, logarithmic: bool) -> None:
    heights = heights[(heights > 0) | (not logarithmic)]
    if len(heights):
        low, high = float(heights.min()), float(heights.max())
        scale(ax, "y", low, high, logarithmic=logarithmic)
        if not logarithmic and 0 <= low < high / EVEN:
            ax.set_ylim(bottom=0.0)


def _name_exits(ax: Axes, away: Sequence[Curve]) -> int:
    """Name each curve that leaves, above the place where it does; return how many rows of names there are."""
    groups: dict[str, Curve] = {}
    for curve in away:
        groups.setdefault(curve.label, curve)
    for row, curve in enumerate(groups.values()):
        x, y = curve.points()
        at, colour = _exit(ax, x, y), COLOURS[curve.colour]
        last = np.log10(y[np.isfinite(y)].max(initial=1.0))
        reached = f"past 10{str(int(last)).translate(RAISED)}" if last >= 1 else "without end"
        ax.plot([at], [1.0], "^", color=colour, markersize=8, transform=ax.transAxes, clip_on=False, zorder=4)
        # Far to the right there is no room for words: they begin at the left.
        ax.annotate(
            f"{curve.label} rises {reached}", (at if at < 0.4 else 0.0, 1.0), xycoords="axes fraction",
            xytext=(-4, 6 + row * ROW), textcoords="offset points", ha="left", va="bottom", fontsize=TEXT - 1,
            color=colour,
        )  # fmt: skip
    return len(groups)


def _exit(ax: Axes, x: Array, y: Array) -> float:
    """Return where a curve leaves through the top for good, from 0 at the left of the axes to 1 at the right."""
    top = ax.get_ylim()[1]
    below = np.flatnonzero(y <= top)
    i = int(below[-1]) if len(below) else -1
    ends = np.clip([i, i + 1], 0, len(x) - 1)
    shown = np.column_stack([x[ends], np.minimum(y[ends], 1e6 * abs(top))])
    (x0, y0), (x1, y1) = ax.transAxes.inverted().transform(ax.transData.transform(shown))
    part = (1 - y0) / (y1 - y0) if y1 > y0 else 0.0
    return float(np.clip(x0 + part * (x1 - x0), 0.0, 1.0))
