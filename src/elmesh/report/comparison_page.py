"""A comparison of methods as one picture and as a page.

The page says first what a reader came for (who gained, by how much, what it cost in messages), then shows it,
then explains how to read it. Captions end with the numbers that the lines end at.
"""

from __future__ import annotations

from functools import partial

import matplotlib.figure
import numpy as np
from matplotlib.axes import Axes
from matplotlib.layout_engine import ConstrainedLayoutEngine

from elmesh.report.comparison import Comparison, Method, megabytes
from elmesh.report.curves import Curve, draw_curves
from elmesh.report.figures import draw_agents, draw_bars, draw_errors, signed
from elmesh.report.page import Fact, Figure, Page, Section, Table
from elmesh.report.sheet import figure
from elmesh.report.style import COLOURS, TEXT

__all__ = ["overview", "page_of"]

ROUNDING = 1e-10
RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")

READING = (
    (
        "Who talks to whom",
        "A dot is a site, a line is a pair of sites that send each other their copy of U every round. Blue "
        "sites had a lower test error together than alone, magenta ones a higher, grey ones the same.",
        "fig-graph",
    ),
    (
        "Test error at each site",
        "The open circle is the site's test error when it learns alone, the full one when it learns with its "
        "neighbours; further left is better. The numbers at the right are the change in percentage points.",
        "fig-error",
    ),
    (
        "Objective",
        "What the methods minimise: how badly the training rows are fitted, plus a penalty on large weights; "
        "lower is better. The dotted line is where the method with all data in one place ended. A method "
        "whose copies of U do not agree yet can lie below it.",
        "fig-objective",
    ),
    (
        "Consensus gap",
        "How far the sites' copies of U are from their mean, relative to its size; 0 is full agreement, and is "
        "left out. The scale is logarithmic: every step down the axis divides the gap by the same factor.",
        "fig-consensus",
    ),
)


def overview(comparison: Comparison) -> matplotlib.figure.Figure:
    """Draw everything in one picture.

    Parameters
    ----------
    comparison : Comparison

    Returns
    -------
    matplotlib.figure.Figure
        1600 pixels wide at its own resolution.
    """
    size = (14.4, max(6.6, 2.0 + 0.26 * len(comparison.change)))
    layout = ConstrainedLayoutEngine(w_pad=0.16, h_pad=0.12)
    fig = matplotlib.figure.Figure(size, 1600 / size[0], layout=layout, facecolor=COLOURS["surface"])
    headline = comparison.headline()
    fig.suptitle(headline, x=0.014, ha="left", fontsize=TEXT + 6, fontweight="bold", color=COLOURS["ink"])
    left, middle, right = fig.subfigures(1, 3, width_ratios=[1.0, 1.0, 1.12], squeeze=False)[0]
    errors = left.subplots()
    graph, means = middle.subplots(2, 1, height_ratios=[2.2, 1])
    objective, consensus = right.subplots(2, 1)
    _draw_errors(errors, comparison)
    draw_agents(graph, comparison.graph, comparison.change)
    graph.set_anchor("N")
    draw_bars(means, [(m.name, m.error, _bar_text(m), m.colour) for m in comparison.methods])
    _draw_objective(objective, comparison)
    _draw_consensus(consensus, comparison)
    for ax, title in (
        (errors, "Test error at each site"),
        (graph, "Who talks to whom"),
        (means, "Mean test error, and what was sent"),
        (objective, "Objective against rounds"),
        (consensus, "How far the sites are from agreeing"),
    ):
        ax.set_title(title, loc="left", fontsize=TEXT + 1, color=COLOURS["ink"], pad=10)
    return fig


def page_of(comparison: Comparison) -> Page:
    """Lay a comparison out as a page.

    Parameters
    ----------
    comparison : Comparison

    Returns
    -------
    Page
        With the figures ``fig-graph``, ``fig-error``, ``fig-objective`` and ``fig-consensus``.
    """
    better, _, _ = comparison.verdict
    names = (comparison.alone, comparison.together, comparison.pooled)
    alone, together, pooled = (comparison.method(name) for name in names)
    notes = [f"{m.name}: {m.advice}" for m in comparison.methods if m.ending not in ("CONVERGED", "DIRECT")]
    settings = Table(
        "What the run was told", ["Setting", "Value"], list(comparison.settings.items()), frozenset({"Value"})
    )
    versions = Table("What it ran on", ["Part", "Version"], list(comparison.versions.items()), frozenset({"Version"}))
    return Page(
        title="elmesh: learning together against learning alone",
        headline=comparison.headline(),
        lead=[
            text
            for text in (comparison.story, f"{comparison.others()} {comparison.traffic()}", comparison.repeated())
            if text
        ],
        facts=[
            Fact(f"{better} of {len(alone.errors)}", f"sites did better together ({together.name}) than alone"),
            Fact(f"{alone.error:.1f} % → {together.error:.1f} %", "mean test error, alone → together"),
            Fact(f"{pooled.error:.1f} %", f"mean test error with all data in one place ({pooled.name})"),
            Fact(f"{megabytes(together.bytes)} MB", "sent by all sites together; no row of data"),
        ],
        sections=[
            Section("What happened", figures=_figures(comparison)),
            Section("The methods side by side", paragraphs=notes, tables=[comparison.table()]),
            Section("How to read the figures", terms=READING),
            Section("What the methods are", terms=[(m.name, m.meaning) for m in comparison.methods]),
            Section("Settings and versions", tables=[settings, versions]),
        ],
        foot="Every number on this page was computed by the run that wrote it. "
        "Times are those of one run on one machine.",
    )


def _figures(comparison: Comparison) -> list[Figure]:
    alone, together = comparison.method(comparison.alone), comparison.method(comparison.together)
    degrees = [degree for _, degree in comparison.graph.degree]
    few, many = min(degrees), max(degrees)
    neighbours = f"{few}" if few == many else f"{few} to {many}"
    links = comparison.graph.number_of_edges()
    better, same, worse = comparison.verdict
    errors = Table(
        "Test error, %",
        ["Site", "Alone", "Together", "Change"],
        [
            [task, f"{alone.errors[task]:.1f}", f"{together.errors[task]:.1f}", signed(change)]
            for task, change in comparison.change.items()
        ],
    )
    one_row = f"A site has {comparison.test_rows} test rows, so one row is {100 / comparison.test_rows:.1f} points."
    objective, consensus = _ends(comparison, "objective"), _ends(comparison, "consensus_gap")
    return [
        Figure(
            id="fig-graph",
            title="Who talks to whom",
            caption=f"Each of the {len(degrees)} sites sends its U to its neighbours ({neighbours} each) and "
            "to nobody else.",
            description=f"A graph of {len(degrees)} sites and {links} links, each site coloured by whether "
            f"it did better ({better}), as well ({same}) or worse ({worse}) together than alone.",
            drawing=figure(partial(draw_agents, graph=comparison.graph, change=comparison.change)),
        ),
        Figure(
            id="fig-error",
            title="Test error at each site, alone and together",
            caption=f"{better} better, {same} the same, {worse} worse. {one_row}",
            description=f"For each site, its test error alone ({alone.name}) and together ({together.name}). "
            f"{comparison.headline()}",
            drawing=figure(
                partial(_draw_errors, comparison=comparison), (5.0, max(3.9, 1.5 + 0.24 * len(alone.errors)))
            ),
            numbers=errors,
        ),
        Figure(
            id="fig-objective",
            title="Objective against rounds",
            caption=objective,
            description=f"The objective of each iterative method, round by round. {objective}",
            drawing=figure(partial(_draw_objective, comparison=comparison)),
        ),
        Figure(
            id="fig-consensus",
            title="How far the sites are from agreeing, against rounds",
            caption=consensus,
            description=f"The consensus gap of each method that sends messages, round by round. {consensus}",
            drawing=figure(partial(_draw_consensus, comparison=comparison)),
        ),
    ]


def _bar_text(method: Method) -> str:
    sent = "all data" if method.pooled else f"{megabytes(method.bytes)} MB"
    return f"{method.error:.1f} %, {sent}"


def _draw_errors(ax: Axes, comparison: Comparison) -> None:
    alone, together = comparison.method(comparison.alone), comparison.method(comparison.together)
    draw_errors(ax, alone.errors, together.errors)


def _draw_objective(ax: Axes, comparison: Comparison) -> None:
    level = comparison.method(comparison.pooled).last("objective")
    levels = [] if level is None else [(comparison.pooled, level)]
    curves = _curves(comparison, "objective")
    draw_curves(ax, curves, x_label="round", y_label="objective", x_scale="rounds", y_scale="auto", levels=levels)


def _draw_consensus(ax: Axes, comparison: Comparison) -> None:
    curves = _curves(comparison, "consensus_gap")
    draw_curves(ax, curves, x_label="round", y_label="consensus gap", x_scale="rounds", y_scale="auto")


def _curves(comparison: Comparison, column: str) -> list[Curve]:
    """Return the curves to draw: methods with rounds; for the consensus gap, those that send messages."""
    methods = [m for m in comparison.methods if len(m.history) > 1 and (column == "objective" or m.bytes > 0)]
    # Agreement to the last digit is nought but for rounding, which would stretch the scale and say nothing.
    least = ROUNDING if column == "consensus_gap" else -np.inf
    return [
        Curve(m.name, m.history["round"], m.history[column].where(m.history[column] > least), m.colour, m.dash)
        for m in methods
    ]


def _ends(comparison: Comparison, column: str) -> str:
    """Say where each line ends, and for the objective how far from the method to match."""
    level = comparison.method(comparison.pooled).last("objective") if column == "objective" else None
    parts = []
    for curve in _curves(comparison, column):
        value = comparison.method(curve.label).last(column)
        if value is not None:
            away = ""
            if level and curve.label != comparison.pooled:
                away = f" ({_number(100 * (value / level - 1), '+')} % from {comparison.pooled})"
            parts.append(f"{curve.label} ends at {_number(value)}{away}")
    return "; ".join(parts) + "." if parts else "No method has rounds to draw."


def _number(value: float, sign: str = "") -> str:
    """Write a number with a few digits, very small and very large ones as powers of ten.

    >>> _number(19.2), _number(-0.00029178, "+"), _number(0.146, "+"), _number(0.0)
    ('19.20', '−2.92 × 10⁻⁴', '+0.146', '0')
    """
    if value == 0:
        return "0"
    mantissa, power = f"{value:{sign}.2e}".split("e")
    if -3 < int(power) < 5:
        text = f"{value:{sign}#.{3 if sign else 4}g}".rstrip(".")
    else:
        text = f"{mantissa} × 10{str(int(power)).translate(RAISED)}"
    return text.replace("-", "\N{MINUS SIGN}")
