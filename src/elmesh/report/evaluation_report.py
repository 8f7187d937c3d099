"""The page of an evaluation: the errors of a model at each site, and whether its uncertainty can be trusted."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import cycle
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray

from elmesh.evaluation.scores import Evaluation, Group
from elmesh.report.figures import COLORS, TEXT, clean_axes, figure, set_range
from elmesh.report.page import Figure, Page, Section, Table
from elmesh.report.site_plots import Points, draw_points, site_label
from elmesh.report.wording import Wording

__all__ = ["evaluation_page"]

# Most sites in a figure, most rows in a scatter plot, and most classes in a table.
_MOST_SITES, _MOST_ROWS, _MOST_CLASSES = 16, 1000, 12
_PROBABILITY = ("predicted probability", "share that came true")


def evaluation_page(found: Evaluation) -> Page:
    """Return the page: figures ``fig-sites`` and ``fig-truth`` of each target, or ``fig-reliability`` of classes."""
    wording = Wording("elmesh.report", "evaluate")
    first = found.targets[0]
    facts = [
        (_format(found.overall.error(first, of), found), wording.text(f"facts_{of}{found.kind}", target=first))
        for of in ("", "baseline_")
    ]
    facts.append((f"{found.better(first)} of {len(found.sites)}", wording.text("facts_better")))
    if found.coverage:
        facts.append((f"{100 * found.coverage[first][0.9]:.0f} %", wording.text("facts_coverage")))
    facts += [(f"{x:.3f}", wording.text(f"facts_{name}")) for name, x in found.probability_scores.items()]
    return Page(
        title="elmesh: evaluation of a model",
        headline=found.sentence(),
        lead=[wording.text("lead")],
        facts=facts,
        sections=[_errors(found), _calibration(found), Wording("elmesh.report", "evaluate_guide").section()],
        foot=wording.text("foot"),
    )


def _format(error: float, found: Evaluation) -> str:
    if math.isnan(error):
        return "–"
    return f"{error:.3g} %" if found.kind == "classification" else f"{error:,.4g}"


def _errors(found: Evaluation) -> Section:
    groups, figures = found.shown(), list[Figure]()
    shown = groups[:_MOST_SITES]
    few = Wording("elmesh.report", "evaluate_errors").text("few", shown=len(shown))
    size = (5.4, 2.6 + 0.34 * max(len(shown), 5))
    folded = len(groups) > len(shown)
    for k, target in enumerate(found.targets):
        wording = Wording(
            "elmesh.report", "evaluate_errors", target=target, few=few if folded else "", headline=found.sentence()
        )
        sites = figure(partial(_draw_sites, shown=shown, target=target, kind=found.kind), size=size)
        pair = [wording.figure("sites", sites, _table(found, [target]) if folded else None)]
        if found.kind == "regression":
            truth, predicted = (x.reshape(len(x), -1)[:, k] for x in (found.truth, found.predicted))
            drawing = figure(partial(_draw_truth, truth=truth, predicted=predicted), size=size)
            pair.append(wording.figure("truth", drawing))
        else:
            drawing = figure(partial(_draw_reliability, found=found), size=size)
            rows = [[f"{one.probability:.2f}", f"{one.rows:,}", f"{one.share:.2f}", f"{one.low:.2f} to {one.high:.2f}"]
                    for one in found.bins]  # fmt: skip
            pair.append(wording.figure("reliability", drawing, wording.table("reliability", rows)))
        figures += [replace(one, id=f"{one.id}-{k + 1}") if k else one for one in pair]
    return wording.section(figures=figures, tables=[] if folded else [_table(found, found.targets)])


def _table(found: Evaluation, targets: Sequence[str]) -> Table:
    """Return the scores of sites, the largest error first, those of few rows as one, and of all rows."""
    groups = [*found.shown(), found.overall]
    rows = [_row(group, target, found) for group in groups for target in targets]
    wording = Wording("elmesh.report", "evaluate_errors")
    if len(targets) == 1:
        return wording.table(found.kind, rows)
    return wording.table("several", [[own[0], target, *own[1:]] for own, target in zip(rows, cycle(targets))])


def _row(group: Group, target: str, found: Evaluation) -> list[str]:
    scores = group.scores[target]
    low, high = (_format(scores[f"error_{end}"], found) for end in ("low", "high"))
    interval = "–" if low == high == "–" else f"{low} to {high}"
    r2 = [] if "r2" not in scores else ["–" if math.isnan(scores["r2"]) else f"{scores['r2']:.3f}"]
    errors = [_format(group.error(target, of), found) for of in ("", "baseline_")]
    return [group.name, f"{group.rows:,}", errors[0], interval, errors[1], *r2]


def _calibration(found: Evaluation) -> Section:
    wording = Wording("elmesh.report", "evaluate_calibration")
    if found.kind == "regression":
        rows = [[target, *(f"{100 * share:.1f} %" for share in own.values())] for target, own in found.coverage.items()]
        tables = [wording.table("coverage", rows)] if rows else []
        return wording.section([] if rows else [wording.text("no_intervals")], tables=tables)
    by_class = [
        [
            str(one.name), f"{one.rows:,}", f"{100 * one.observed:.1f} %",
            "–" if math.isnan(one.predicted) else f"{100 * one.predicted:.1f} %",
            f"{one.found:,} of {one.rows:,}", f"{one.found:,} of {one.named:,}",
        ]
        for one in found.by_class
    ]  # fmt: skip
    if found.confusion is None or len(found.classes) > _MOST_CLASSES:
        return wording.section([wording.text("many_classes")], tables=[wording.table("classes", by_class)])
    rows = [[str(name), *(f"{n:,}" for n in own)] for name, own in zip(found.classes, found.confusion, strict=True)]
    confused = Table(wording.text("confusion"), ["True class", *map(str, found.classes)], rows)
    return wording.section(tables=[wording.table("classes", by_class), confused])


def _draw_sites(ax: Axes, shown: Sequence[Group], target: str, kind: str) -> None:
    ends = [(group.scores[target]["error_low"], group.scores[target]["error_high"]) for group in shown]
    series = [
        Points("the model, with its 95 % interval", "blue", "o", [group.error(target) for group in shown], ends),
        Points("baseline", "orange", "s", [group.error(target, "baseline_") for group in shown]),
    ]
    unit = "wrong rows, %" if kind == "classification" else f"root mean square error of {target}"
    draw_points(ax, [site_label(group.name, group.rows) for group in shown], series, unit)


def _draw_truth(ax: Axes, truth: NDArray[Any], predicted: NDArray[Any]) -> None:
    some = np.linspace(0, len(truth) - 1, min(len(truth), _MOST_ROWS)).astype(int)
    _draw_line(ax, [*truth, *predicted], "predicted", "true")
    ax.scatter(predicted[some], truth[some], s=16, c=COLORS["blue"], alpha=0.5, linewidths=0, zorder=2)


def _draw_reliability(ax: Axes, found: Evaluation) -> None:
    _draw_line(ax, [x for one in found.bins for x in (one.probability, one.low, one.high)], *_PROBABILITY)
    for one in found.bins:
        ax.plot([one.probability] * 2, [one.low, one.high], color=COLORS["blue"], linewidth=2.0, alpha=0.6, zorder=2)
    points = [(one.probability, one.share) for one in found.bins]
    ax.plot(*zip(*points, strict=True), color=COLORS["blue"], marker="o", markersize=7, linewidth=1.2, zorder=3)


def _draw_line(ax: Axes, values: Sequence[float], x_label: str, y_label: str) -> None:
    """Draw axes that contain all values, and the line on which both are equal."""
    low, high = float(np.min(values)), float(np.max(values))
    clean_axes(ax, grid="y")
    for axis in ("x", "y"):
        set_range(ax, axis, low, high, logarithmic=False)
    ax.plot([low, high], [low, high], color=COLORS["muted"], linewidth=1.2, zorder=1)
    ax.set_xlabel(x_label, fontsize=TEXT, color=COLORS["ink"])
    ax.set_ylabel(y_label, fontsize=TEXT, color=COLORS["ink"])
