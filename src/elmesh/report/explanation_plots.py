"""Plots of an explanation: which columns matter, how predictions change with one, and which tasks are alike."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
from matplotlib.ticker import MaxNLocator

from elmesh.estimators.explanation import Effect, Explanation, column_name
from elmesh.estimators.gains import format_error
from elmesh.report.curves import Curve, draw_curves
from elmesh.report.figures import COLORS, STYLES, TEXT, clean_axes, label_margin, label_points, literal
from elmesh.typing import Label

__all__ = ["MOST_CATEGORIES", "draw_effect", "draw_importance", "draw_site_map", "most_different"]

# Most categories in a plot, and of how many characters in all they are beside each other.
MOST_CATEGORIES, _IN_A_ROW = 12, 30
# Most thin lines: more are one shade, and would take most of the time and size of a page.
_MOST_OTHERS = 100
# Lines of the all-rows mean and of tasks without a name of their own.
_ALL, _OTHERS = ("ink", "-", None), ("muted", "-", None)


def draw_importance(ax: Axes, explanation: Explanation, most: int = 10) -> None:
    """Draw a bar per column, the most important first, with two standard errors to either side."""
    table = explanation.importance.head(most)
    for y, (value, error) in enumerate(zip(table["importance"], table["standard_error"], strict=True)):
        ax.barh(y, max(value, 0.0), height=0.66, color=COLORS["blue"], zorder=2)
        interval = np.maximum([value - 2 * error, value + 2 * error], 0.0)
        ax.plot(interval, [y, y], color=COLORS["ink"], linewidth=1.4, zorder=3)
        label_margin(ax, format_error(max(value, 0.0), explanation.unit), y, COLORS["muted"])
    clean_axes(ax, grid="x")
    ax.set_yticks(range(len(table)), [literal(column_name(name)) for name in table.index])
    ax.tick_params(axis="y", length=0, pad=7)
    ax.set_ylim(len(table) - 0.4, -0.6)
    ax.set_xlim(left=0.0)
    ax.xaxis.set_major_locator(MaxNLocator(5))
    ax.set_xlabel("increase of the error if shuffled", fontsize=TEXT, color=COLORS["ink"])


def most_different(effect: Effect, most: int) -> list[Label]:
    """Return the tasks whose mean predictions differ most from those of all rows, the most different first."""
    squares = (effect.tasks.sub(effect.overall, axis=0) ** 2).mean()
    order = np.argsort(-squares.to_numpy(), kind="stable")
    return [effect.tasks.columns[k] for k in order[:most]]


def draw_effect(ax: Axes, effect: Effect, labelled: int = 4) -> None:
    """Draw the mean prediction by the value of a column: all rows, and a line per task.

    The tasks that differ most have a color and a label, and the others are thin and grey; of more than a hundred, an
    even part is drawn. Categories are in the order of the mean prediction; of many, those with the lowest and the
    highest are drawn.
    """
    overall, tasks = effect.overall, effect.tasks
    if effect.kind == "category":
        order = np.argsort(overall.to_numpy(), kind="stable")
        if len(order) > MOST_CATEGORIES:
            half = MOST_CATEGORIES // 2
            order = np.concatenate([order[:half], order[-half:]])
        overall, tasks = overall.iloc[order], tasks.iloc[order]
    x = _places(effect, overall)
    # A single task is the mean of all rows.
    names = most_different(effect, labelled if len(tasks.columns) > labelled + 1 else len(tasks.columns))
    others = [task for task in tasks.columns if task not in names]
    others = others[:: -(-len(others) // _MOST_OTHERS) or 1]
    curves = [Curve("other sites", x, tasks[task], *_OTHERS, thin=True) for task in others]
    curves.append(Curve("all rows", x, overall, *_ALL))
    if len(tasks.columns) > 1:
        styles = _task_styles(list(tasks.columns), names)
        curves += [Curve(literal(task, 16), x, tasks[task], *styles[task]) for task in names]
    draw_curves(
        ax, curves, x_label=literal(column_name(effect.column)), y_label=literal(effect.predicted, 36), cut=False
    )
    _label_values(ax, effect, overall, x)


def _task_styles(tasks: Sequence[Label], names: Sequence[Label]) -> dict[Label, tuple[str, str, str]]:
    """Return a style for each named task, in every plot the same unless two of them would have one."""
    free = [style for style in STYLES if style[0] != _ALL[0]]
    found: dict[Label, tuple[str, str, str]] = {}
    for task in sorted(names, key=tasks.index):
        k = tasks.index(task)
        order = [free[(k + j) % len(free)] for j in range(len(free))]
        found[task] = next((style for style in order if style not in found.values()), order[0])
    return found


def _places(effect: Effect, overall: pd.Series[float]) -> list[float]:
    """Return where the values of a column are along the axis."""
    if effect.kind == "date":
        return [(value - pd.Timestamp(0)) / pd.Timedelta(days=1) for value in overall.index]
    return [float(value) for value in (overall.index if effect.kind == "number" else range(len(overall)))]


def _label_values(ax: Axes, effect: Effect, overall: pd.Series[float], x: Sequence[float]) -> None:
    """Label the axis with dates or categories; numbers have their labels."""
    if effect.kind == "date":
        locator = AutoDateLocator(maxticks=6)  # type: ignore[no-untyped-call]  # missing in Matplotlib's stubs
        ax.xaxis.set_major_locator(locator)
        ax.xaxis.set_major_formatter(ConciseDateFormatter(locator))  # type: ignore[no-untyped-call]  # as above
    if effect.kind == "category":
        names = ["missing" if value is None else literal(value, 18) for value in overall.index]
        ax.set_xticks(x, names)
        ax.set_xlim(-0.3, len(x) - 0.7)
        if sum(map(len, names)) > _IN_A_ROW:
            ax.tick_params(axis="x", labelrotation=90)


def draw_site_map(ax: Axes, explanation: Explanation, labelled: int = 12) -> None:
    """Draw the map of the tasks: those beside each other are predicted alike. Groups differ in color and marker."""
    places, far = explanation.coordinates, explanation.mean_distances
    groups = explanation.groups or (tuple(places.index),)
    for k, members in enumerate(groups):
        color, _, marker = STYLES[k % len(STYLES)]
        own = places.loc[list(members)]
        ax.scatter(own["x"], own["y"], s=44 if len(places) <= 40 else 24, c=COLORS[color], marker=marker, zorder=3)
    clean_axes(ax, grid="y")
    ax.xaxis.grid(visible=True, color=COLORS["rule"], linewidth=0.8)
    ax.margins(0.18, 0.1)
    ax.set_aspect("equal", adjustable="datalim")
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_locator(MaxNLocator(5))
    ax.set_xlabel(f"distance, {explanation.distance_unit}", fontsize=TEXT, color=COLORS["ink"])
    labels = [(literal(task, 18), *places.loc[task]) for task in far.index[:labelled]]
    label_points(ax, labels, places.to_numpy())
