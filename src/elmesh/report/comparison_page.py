"""A comparison of methods as one picture and as a page.

The page says first what a reader came for (who gained, by how much, what it cost in messages), then shows it,
then explains how to read it. Captions end with the numbers that the lines end at.
"""

from __future__ import annotations

from functools import partial

import matplotlib.figure
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.layout_engine import ConstrainedLayoutEngine

from elmesh.report.comparison import Comparison, Method, megabytes
from elmesh.report.curves import Curve, draw_curves
from elmesh.report.figures import draw_agents, draw_bars, draw_errors, signed
from elmesh.report.page import Fact, Figure, Page, Section, Table
from elmesh.report.sheet import figure
from elmesh.report.style import COLOURS, TEXT

__all__ = ["overview", "page_of"]

# Shares of an objective below this are rounding.
ROUNDING = 1e-10
RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")

READING = (
    (
        "Who talks to whom",
        "A dot is a site, a line is a pair of sites that can send each other messages; coarse ones go along as many "
        "of the lines as join all sites, and no more. Blue sites had a lower test error together than alone, magenta "
        "ones a higher, grey ones the same.",
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
        "lower is better. The dotted line is where the method with all data in one place ended. In a round of messages "
        "every site can tell its neighbours something once; one round of a method takes several, until what is told "
        "has come round. This is about waiting.",
        "fig-objective",
    ),
    (
        "What was sent",
        "The same runs against all that the sites sent: a line begins where they have agreed on a start, and its last "
        "stretch is what the certificate took. Height is how far the objective is above the highest bound that any of "
        "the methods certified. Both scales are logarithmic: every step divides or multiplies by the same factor.",
        "fig-bytes",
    ),
    (
        "Certified",
        "In the end the sites work out, by sums as before, a bound that no shared layer of any rank can get below, and "
        "whether a larger rank would help. How far the objective is above it is partly what is left to gain and partly "
        "that the bound is not the highest there is; a few passes find it, which may leave it a little too "
        "high. It is about the objective, not about the test error.",
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
    objective, sent = right.subplots(2, 1)
    _draw_errors(errors, comparison)
    draw_agents(graph, comparison.graph, comparison.change)
    graph.set_anchor("N")
    draw_bars(means, [(m.name, m.error, _bar_text(m), m.colour) for m in comparison.methods])
    _draw_objective(objective, comparison)
    _draw_bytes(sent, comparison)
    for ax, title in (
        (errors, "Test error at each site"),
        (graph, "Who talks to whom"),
        (means, "Mean test error, and what was sent"),
        (objective, "Objective against rounds of messages"),
        (sent, "Objective against what was sent"),
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
        With the figures ``fig-graph``, ``fig-error``, ``fig-objective`` and ``fig-bytes``.
    """
    notes = [f"{m.name}: {m.advice}" for m in comparison.methods if m.ending not in ("CONVERGED", "DIRECT")]
    certificates = [(m.name, m.certificate) for m in comparison.methods if m.certificate is not None]
    notes += [f"{name}: {certificate}." for name, certificate in certificates if not certificate.rank_sufficient]
    settings = Table(
        "What the run was told and what it found",
        ["Setting", "Value"],
        list(comparison.settings.items()),
        frozenset({"Value"}),
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
        facts=_facts(comparison),
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


def _facts(comparison: Comparison) -> list[Fact]:
    better, _, _ = comparison.verdict
    names = (comparison.alone, comparison.together, comparison.pooled)
    alone, together, pooled = (comparison.method(name) for name in names)
    least = min([together, *comparison.senders], key=lambda method: method.bytes)
    more = "" if least is together else f", {megabytes(together.bytes)} MB by {together.name}"
    errors = f"mean test error, alone → together; {pooled.error:.1f} % with all data in one place ({pooled.name})"
    close = f"of the least objective of any rank: certified without pooling ({together.name})"
    return [
        Fact(f"{better} of {len(alone.errors)}", f"sites did better together ({together.name}) than alone"),
        Fact(f"{alone.error:.1f} % → {together.error:.1f} %", errors),
        *([Fact(together.certified, close)] if together.certificate is not None else []),
        Fact(f"{megabytes(least.bytes)} MB", f"sent by all sites together ({least.name}){more}; no row of data"),
    ]


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
    objective, above = _objective_ends(comparison), _above_ends(comparison)
    return [
        Figure(
            id="fig-graph",
            title="Who talks to whom",
            caption=f"Each of the {len(degrees)} sites talks to its neighbours ({neighbours} each) and "
            "to nobody else; sums go round from neighbour to neighbour.",
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
            title="Objective against rounds of messages",
            caption=objective,
            description=f"The objective of each method that sends messages, against rounds of messages. {objective}",
            drawing=figure(partial(_draw_objective, comparison=comparison)),
        ),
        Figure(
            id="fig-bytes",
            title="Objective against what was sent",
            caption=above,
            description="How far the objective of each method that sends messages is above the certified bound, "
            f"against megabytes sent. {above}",
            drawing=figure(partial(_draw_bytes, comparison=comparison)),
        ),
    ]


def _bar_text(method: Method) -> str:
    sent = "all data" if method.pooled else f"{megabytes(method.bytes)} MB"
    return f"{method.error:.1f} %, {sent}"


def _draw_errors(ax: Axes, comparison: Comparison) -> None:
    alone, together = comparison.method(comparison.alone), comparison.method(comparison.together)
    draw_errors(ax, alone.errors, together.errors)


def _draw_objective(ax: Axes, comparison: Comparison) -> None:
    curves = [
        Curve(m.name, m.history["exchanges"], m.history["objective"], m.colour, m.dash) for m in comparison.senders
    ]
    level = _level(comparison, comparison.method(comparison.together))
    levels = [] if level is None else [(comparison.pooled, level)]
    draw_curves(
        ax, curves, x_label="rounds of messages", y_label="objective", x_scale="log", y_scale="auto", levels=levels
    )


def _draw_bytes(ax: Axes, comparison: Comparison) -> None:
    # Rounding would stretch the scale and say nothing.
    curves = [
        Curve(m.name, m.history["bytes"] / 1e6, 100 * above.where(above > ROUNDING), m.colour, m.dash)
        for m, above in _above(comparison)
    ]
    draw_curves(ax, curves, x_label="MB sent", y_label="% above the bound", x_scale="log", y_scale="log")


def _above(comparison: Comparison) -> list[tuple[Method, pd.Series[float]]]:
    """Return by what share the objectives of methods that send messages are above the bound, where there is one."""
    bounds = [(method, comparison.bound(method)) for method in comparison.senders]
    return [(m, m.history["objective"] / bound - 1) for m, bound in bounds if bound is not None and bound > 0]


def _level(comparison: Comparison, method: Method) -> float | None:
    """Return where the pooled method ended, if the method's objective can be compared with it."""
    pooled = comparison.method(comparison.pooled)
    return pooled.last("objective") if pooled.penalties == method.penalties else None


def _objective_ends(comparison: Comparison) -> str:
    """Say where each line ends, after how many rounds of messages, and how far from the method to match."""
    parts = []
    for m in comparison.senders:
        value, level = m.last("objective"), _level(comparison, m)
        if value is None:
            continue
        away = ""
        if level and abs(value / level - 1) < ROUNDING:
            away = f" (the same as {comparison.pooled})"
        elif level:
            away = f" ({_number(100 * (value / level - 1), '+')} % from {comparison.pooled})"
        parts.append(f"{m.name} ends at {_number(value)}{away} after {m.exchanges:,} rounds of messages")
    return "; ".join(parts) + "." if parts else "No method sent messages."


def _above_ends(comparison: Comparison) -> str:
    """Say how far above the bound each line ends, and for how many megabytes."""
    parts = [
        f"{m.name} ends {_number(100 * max(float(above.iloc[-1]), 0.0))} % above the bound, for {megabytes(m.bytes)} MB"
        for m, above in _above(comparison)
    ]
    return "; ".join(parts) + "." if parts else "No method that sends messages has a bound."


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
