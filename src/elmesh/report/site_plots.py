"""Plots of sites: the change of their errors by learning together, and the parts of each site's predictions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator, PercentFormatter

from elmesh.estimators.gains import SiteGains
from elmesh.report.figures import COLORS, TEXT, clean_axes, label_margin, label_point, literal
from elmesh.report.site_study import Change

__all__ = [
    "PARTS",
    "DrawnSite",
    "Interval",
    "Points",
    "draw_changes",
    "draw_errors",
    "draw_points",
    "draw_shares",
    "drawn_tasks",
    "site_label",
]

#: The parts of a prediction and their colors.
PARTS = (("common", "blue"), ("shared", "green"), ("private", "orange"))
# A part with at least this share has its percentage written on it.
_LABELLED = 0.1
# Changes of more per cent are drawn at the edge: a site with a tiny error must not hide all others.
_MOST = 120.0
# Longest name of a site, in characters: others leave no room for the plot.
_LONGEST = 20


class DrawnSite(Protocol):
    """A site in a plot: its name, its rows, its errors, one or several, and the shares of its parts."""

    @property
    def name(self) -> str:
        """The name."""

    @property
    def rows(self) -> int:
        """Number of training rows."""

    @property
    def alone(self) -> float | Sequence[float]:
        """The error alone, or that of each draw."""

    @property
    def together(self) -> float | Sequence[float]:
        """The error together, or that of each draw."""

    @property
    def change(self) -> Change:
        """The error together less that alone."""

    @property
    def shares(self) -> tuple[float, float, float]:
        """Shares of the common, the shared and the private part."""


@dataclass(frozen=True)
class Interval:
    """A row of a plot of changes: its label, the change and its interval, whether it is clear, and text beside it."""

    label: str
    change: Change
    text: str


@dataclass(frozen=True)
class _Task:
    """A task of a fit, as the plots take it."""

    name: str
    rows: int
    alone: float
    together: float
    change: Change
    shares: tuple[float, float, float]


def drawn_tasks(gains: SiteGains, most: int) -> list[DrawnSite]:
    """Return the tasks of a fit for a plot, the largest gain first; of more than ``most`` the largest and smallest."""
    changes = [Change(one.change, one.low, one.high) for one in gains.tasks]
    tasks = [
        _Task(str(one.task), one.rows, one.alone, one.together, change, one.shares)
        for one, change in zip(gains.tasks, changes, strict=True)
    ]
    order: list[DrawnSite] = sorted(tasks, key=_relative_change)
    return order if len(order) <= most else [*order[: most // 2], *order[-(most // 2) :]]


def draw_errors(
    ax: Axes, sites: Sequence[DrawnSite], unit: str, write: Callable[[float], str] = lambda error: f"{error:.2f}"
) -> None:
    """Draw the change of each site's error by learning together, in per cent of its error alone; largest gain first.

    The bar is the interval of the change; its color states whether the change is clear. Errors are on the right, as
    ``write`` formats them.
    """
    rows = []
    for site in sorted(sites, key=_relative_change):
        alone, together = float(np.mean(site.alone)), float(np.mean(site.together))
        text = f"{write(alone)} → {write(together)}"
        rows.append(Interval(site_label(site.name, site.rows), site.change.relative_to(alone), text))
    draw_changes(ax, rows, "change of the error by learning together", unit)


def draw_changes(ax: Axes, rows: Sequence[Interval], x_label: str, heading: str) -> None:
    """Draw changes of errors in per cent, from top to bottom, with their intervals; texts are on the right."""
    ends = [0.0]
    for y, row in enumerate(rows):
        middle, low, high = np.clip([row.change.mean, row.change.low, row.change.high], -_MOST, _MOST)
        color = COLORS[("muted", "magenta", "blue")[row.change.clear]]
        if np.isfinite(row.change.high):
            interval = [low, high]
            ax.plot(interval, [y, y], color=color, linewidth=2.2, marker="|", markersize=9, zorder=2)
            ends += interval
        ax.scatter([middle], [y], s=58, c=color, zorder=3)
        ends.append(middle)
        label_margin(ax, row.text, y, color)
    ax.axvline(0.0, color=COLORS["ink"], linewidth=1.2, zorder=1)
    label_point(ax, "better", (0.0, -0.8), (-8, 0), "right", "center")
    label_point(ax, "worse", (0.0, -0.8), (8, 0), "left", "center")
    label_margin(ax, heading, -0.8, COLORS["muted"])
    _label_rows(ax, [row.label for row in rows])
    # Room for the word on either side of zero.
    spread = max(ends) - min(ends) or 1.0
    ax.set_xlim(min(*ends, -0.3 * spread) - 0.05 * spread, max(*ends, 0.25 * spread) + 0.05 * spread)
    ax.xaxis.set_major_locator(MaxNLocator(4))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g} %".replace("-", "\N{MINUS SIGN}")))
    ax.set_xlabel(x_label, fontsize=TEXT, color=COLORS["ink"])


@dataclass(frozen=True)
class Points:
    """One value for each row of a plot, NaN where there is none, with its intervals or without."""

    name: str
    color: str  # a key of COLORS
    marker: str  # of Matplotlib
    values: Sequence[float]
    intervals: Sequence[tuple[float, float]] = ()


# Characters that look like the markers of points.
_SIGNS = {"o": "\N{BLACK CIRCLE}", "s": "\N{BLACK SQUARE}", "^": "\N{BLACK UP-POINTING TRIANGLE}"}


def draw_points(ax: Axes, labels: Sequence[str], series: Sequence[Points], x_label: str) -> None:
    """Draw values of several kinds in one row for each label, from top to bottom; their names are above."""
    _label_rows(ax, labels)
    for k, points in enumerate(series):
        color, n = COLORS[points.color], len(series)
        rows = np.arange(len(labels)) + 0.5 * (k + 0.5) / n - 0.25  # a little apart, so that none hides another
        for y, interval in zip(rows, points.intervals, strict=False):
            ax.plot(interval, [y, y], color=color, linewidth=2.0, alpha=0.6, zorder=2)
        ax.scatter(points.values, rows, s=40, c=color, marker=points.marker, zorder=3)
        name = f"{_SIGNS[points.marker]} {points.name}"
        label_point(ax, name, (0.0, k - 0.6 - n), (4, 0), "left", "center").set_color(color)
    ax.set_ylim(len(labels) - 0.4, -1.4 - len(series))
    ax.set_xlim(left=0.0)
    ax.xaxis.set_major_locator(MaxNLocator(5))
    ax.set_xlabel(x_label, fontsize=TEXT, color=COLORS["ink"])


def draw_shares(ax: Axes, sites: Sequence[DrawnSite]) -> None:
    """Draw one bar per site: the shares of the common, the shared and the private part; largest common part first."""
    order = sorted(sites, key=lambda site: -site.shares[0])
    for y, site in enumerate(order):
        start = 0.0
        for (_, color), share in zip(PARTS, site.shares, strict=True):
            ax.barh(y, share, left=start, height=0.72, color=COLORS[color], zorder=2)
            if share >= _LABELLED:
                ax.text(
                    start + share / 2, y, f"{100 * share:.0f} %", ha="center", va="center", fontsize=TEXT - 2,
                    color=COLORS["surface"], zorder=3,
                )  # fmt: skip
            start += share
    for x, (name, color) in zip((0.0, 0.42, 1.0), PARTS, strict=True):
        side = {0.0: "left", 1.0: "right"}.get(x, "center")
        ax.text(
            x, -0.95, f"\N{BLACK SQUARE} {name}", ha=side, va="center", fontsize=TEXT - 1, color=COLORS[color],
        )  # fmt: skip
    _label_rows(ax, [site_label(site.name, site.rows) for site in order])
    ax.set_xlim(0.0, 1.0)
    ax.xaxis.set_major_locator(MaxNLocator(4))
    ax.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0, symbol=" %"))
    ax.set_xlabel("share of the prediction", fontsize=TEXT, color=COLORS["ink"])


def _relative_change(site: DrawnSite) -> float:
    return site.change.relative_to(float(np.mean(site.alone))).mean


def site_label(name: str, rows: int) -> str:
    """Return the name of a site, shortened, with its number of rows."""
    return f"{literal(name, _LONGEST)} ({rows})"


def _label_rows(ax: Axes, labels: Sequence[str]) -> None:
    """Label the rows of a plot, from top to bottom, below a line of room for words."""
    clean_axes(ax, grid="x")
    ax.set_yticks(range(len(labels)), labels)
    ax.tick_params(axis="y", length=0, pad=7)
    ax.set_ylim(len(labels) - 0.4, -1.4)
