"""Curves: values against rounds, sizes or ratios, with bands, labelled at their ends.

A curve that diverges must not flatten the others: the y axis fits the others, and the diverging curve is labelled above
the axes where it leaves them, with the power of ten that it reaches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator, NullFormatter
from numpy.typing import ArrayLike

from elmesh.report.figures import COLORS, SUPERSCRIPT, TEXT, clean_axes, label_ends, set_range
from elmesh.typing import FloatArray

__all__ = ["Curve", "draw_curves"]

# A curve that ends this many times above the maximum of the others diverges.
DIVERGED = 100.0
# On an automatic y axis, values within this factor of each other get a linear scale.
LINEAR_RANGE = 4.0
# Curves with more points have markers at some of them only.
MAX_MARKERS = 15
# Markers that fill little of their square are drawn larger.
MARKER_SIZES: dict[str | None, float] = {"*": 11.0, "P": 8.5, "X": 8.5}
# Points from one row of labels above the axes to the next.
LABEL_ROW = 1.35 * TEXT
# Factor beyond the top of the axes at which values are cut off, because pixel coordinates would overflow.
OUT_OF_SIGHT = 1e6


@dataclass(frozen=True, eq=False)
class Curve:
    """One curve."""

    label: str  # at its end; curves with the same label share one
    x: ArrayLike
    y: ArrayLike  # points that are not finite are left out; infinity counts as divergence
    color: str = "blue"  # a key of COLORS
    dash: str = "-"  # a line style of Matplotlib
    marker: str | None = None  # of Matplotlib
    band: tuple[ArrayLike, ArrayLike] | None = None  # lower and upper ends, such as those of a 95 % interval
    thin: bool = False  # for one of many

    def points(self) -> tuple[FloatArray, FloatArray]:
        """Return the points, including those at infinity and without those that are missing."""
        x, y = np.asarray(self.x, dtype=float), np.asarray(self.y, dtype=float)
        valid = np.isfinite(x) & (np.isfinite(y) | (y == np.inf))
        return x[valid], y[valid]

    def heights(self) -> FloatArray:
        """Return all finite heights of the curve and its band."""
        heights: FloatArray = np.concatenate([np.asarray(y, dtype=float) for y in (self.y, *(self.band or ()))])
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
    cut: bool = True,
) -> None:
    """Draw curves, and horizontal levels (label and height) to compare them with.

    With ``cut`` a curve that diverges leaves the axes.

    The x scale "rounds" is logarithmic and includes round 0. The y scale "auto" is logarithmic if values differ by more
    than a factor of 4 and none is negative; a logarithmic scale leaves out values that are not positive.
    """
    diverging = _diverging(curves, levels) if cut else []
    others = [curve for curve in curves if curve not in diverging]
    heights = np.concatenate([*(curve.heights() for curve in others), [height for _, height in levels]])
    logarithmic = y_scale == "log" or (y_scale == "auto" and _wide_range(heights))
    clean_axes(ax, grid="y")
    _set_x_range(ax, curves, x_scale)
    _set_y_range(ax, heights, logarithmic)
    ax.set_xlabel(x_label, fontsize=TEXT, color=COLORS["ink"])
    ax.set_ylabel(y_label, fontsize=TEXT, color=COLORS["ink"])

    for _, height in levels:
        ax.axhline(height, color=COLORS["muted"], linewidth=1.2, linestyle=(0, (2, 2)), zorder=1)
    ends: dict[str, list[float]] = {}
    # Many thin curves are a shade, in which single ones can still be seen.
    alpha = float(np.clip(15 / max(1, sum(curve.thin for curve in curves)), 0.25, 0.75))
    for curve in curves:
        x, y = curve.points()
        shown = ((y > 0) | (not logarithmic)) & (np.isfinite(y) | (curve in diverging))
        if shown.any():
            _draw(ax, curve, x[shown], y[shown], alpha)
            if curve in others:
                ends.setdefault(curve.label, []).append(float(y[shown][-1]))
    labels = {label: (height, COLORS["muted"]) for label, height in levels}
    colors = {curve.label: COLORS[curve.color] for curve in curves}
    label_ends(ax, labels | {label: (float(np.median(end)), colors[label]) for label, end in ends.items()})
    rows = _label_diverging(ax, diverging)
    if title:
        pad = 10 + rows * LABEL_ROW + 4 * (rows > 0)
        ax.set_title(title, loc="left", fontsize=TEXT + 1, color=COLORS["ink"], pad=pad)


def _diverging(curves: Sequence[Curve], levels: Sequence[tuple[str, float]]) -> list[Curve]:
    """Return the curves that end far above their start and above the maximum of all others."""
    maximum = max((abs(height) for _, height in levels), default=0.0)
    diverging: list[Curve] = []
    for curve in sorted((curve for curve in curves if curve.points()[1].size), key=lambda curve: curve.points()[1][-1]):
        _, y = curve.points()
        if 0 < maximum < y[-1] / DIVERGED and y[-1] > y[0]:
            diverging.append(curve)
        else:
            maximum = max(maximum, float(np.abs(curve.heights()).max(initial=0.0)))
    return diverging


def _wide_range(heights: FloatArray) -> bool:
    positive = heights[heights > 0]
    return len(positive) > 0 and bool(heights.min() >= 0) and bool(positive.max() > LINEAR_RANGE * positive.min())


def _draw(ax: Axes, curve: Curve, x: FloatArray, y: FloatArray, alpha: float) -> None:
    color = COLORS[curve.color]
    if curve.band is not None:
        x_band, low, high = (np.asarray(values, dtype=float) for values in (curve.x, *curve.band))
        ax.fill_between(x_band, low, high, color=color, alpha=0.13, linewidth=0, zorder=2)
    y = np.minimum(y, OUT_OF_SIGHT * abs(ax.get_ylim()[1]))
    if curve.thin:
        ax.plot(x, y, color=color, linestyle=curve.dash, linewidth=1.0, alpha=alpha, zorder=2.5)
        return
    ax.plot(
        x, y, color=color, linestyle=curve.dash, linewidth=2.0, zorder=3,
        marker=curve.marker, markersize=MARKER_SIZES.get(curve.marker, 6.5), markeredgecolor=COLORS["surface"],
        markeredgewidth=0.7, markevery=None if len(x) <= MAX_MARKERS else 0.15,
    )  # fmt: skip
    if curve.marker is None:
        ax.scatter(x[-1:], y[-1:], s=22, color=color, zorder=4)
    # A dotted line leads from the end of a short curve to its label at the edge.
    ax.plot([x[-1], ax.get_xlim()[1]], [y[-1], y[-1]], color=color, linestyle=(0, (1, 3)), linewidth=1.0, zorder=2)


def _set_x_range(ax: Axes, curves: Sequence[Curve], scale: str) -> None:
    x = np.unique(np.concatenate([[], *(curve.points()[0] for curve in curves)]))
    if scale == "rounds":
        last = max(1.0, float(x.max(initial=1.0)))
        ax.set_xscale("symlog", linthresh=1, linscale=0.5)
        ax.set_xlim(-0.05, last * 1.12)
        decades = 10 ** np.arange(np.floor(np.log10(last)) + 1)
        ax.set_xticks([0, *decades], [f"{int(tick):,}" for tick in (0, *decades)])
        ax.xaxis.set_minor_locator(LogLocator(subs=list(range(2, 10))))
        ax.xaxis.set_minor_formatter(NullFormatter())
        return
    x = x[(x > 0) | (scale != "log")]
    if len(x):
        set_range(ax, "x", float(x[0]), float(x[-1]), logarithmic=scale == "log", margin=0.03)
        # If there are only a few values of x, they are better ticks than round numbers.
        if scale == "linear" and 1 < len(x) <= 8 and np.diff(x).min() > 0.1 * (x[-1] - x[0]):
            ax.set_xticks(x, [f"{tick:,.6g}" for tick in x])


def _set_y_range(ax: Axes, heights: FloatArray, logarithmic: bool) -> None:
    heights = heights[(heights > 0) | (not logarithmic)]
    if len(heights):
        low, high = float(heights.min()), float(heights.max())
        set_range(ax, "y", low, high, logarithmic=logarithmic)
        if not logarithmic and 0 <= low < high / LINEAR_RANGE:
            ax.set_ylim(bottom=0.0)


def _label_diverging(ax: Axes, diverging: Sequence[Curve]) -> int:
    """Label each diverging group above the point where it leaves the axes; return the number of label rows."""
    groups: dict[str, Curve] = {}
    for curve in diverging:
        groups.setdefault(curve.label, curve)
    for row, curve in enumerate(groups.values()):
        x, y = curve.points()
        exit_x, color = _exit_position(ax, x, y), COLORS[curve.color]
        last = np.log10(y[np.isfinite(y)].max(initial=1.0))
        reached = f"above 10{str(int(last)).translate(SUPERSCRIPT)}" if last >= 1 else "to infinity"
        ax.plot([exit_x], [1.0], "^", color=color, markersize=8, transform=ax.transAxes, clip_on=False, zorder=4)
        # Text that started far to the right would be cut off, so it starts at the left.
        ax.annotate(
            f"{curve.label} rises {reached}", (exit_x if exit_x < 0.4 else 0.0, 1.0), xycoords="axes fraction",
            xytext=(-4, 6 + row * LABEL_ROW), textcoords="offset points", ha="left", va="bottom", fontsize=TEXT - 1,
            color=color,
        )  # fmt: skip
    return len(groups)


def _exit_position(ax: Axes, x: FloatArray, y: FloatArray) -> float:
    """Return where a curve finally leaves through the top, as a fraction of the width of the axes."""
    top = ax.get_ylim()[1]
    below = np.flatnonzero(y <= top)
    i = int(below[-1]) if len(below) else -1
    ends = np.clip([i, i + 1], 0, len(x) - 1)
    shown = np.column_stack([x[ends], np.minimum(y[ends], OUT_OF_SIGHT * abs(top))])
    (x0, y0), (x1, y1) = ax.transAxes.inverted().transform(ax.transData.transform(shown))
    part = (1 - y0) / (y1 - y0) if y1 > y0 else 0.0
    return float(np.clip(x0 + part * (x1 - x0), 0.0, 1.0))
