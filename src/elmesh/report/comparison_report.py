"""A comparison of methods as an overview figure and as a page.

The page starts with the result (which sites gained, how much, how much traffic it took), then shows the figures, then
explains how to read them. Captions end with the values at the ends of the lines.
"""

from __future__ import annotations

from functools import partial

import matplotlib.figure
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.layout_engine import ConstrainedLayoutEngine

from elmesh.report.comparison import Comparison, MethodResult, format_megabytes
from elmesh.report.curves import Curve, draw_curves
from elmesh.report.figures import COLORS, SUPERSCRIPT, TEXT, figure
from elmesh.report.page import Figure, Page, Section, Table
from elmesh.report.site_plots import draw_bars, draw_errors, draw_graph, format_change

__all__ = ["comparison_page", "draw_overview"]

# Relative differences of objectives below this are rounding errors.
ROUNDING = 1e-10
GRAPH, ERRORS = "Communication graph", "Test error per site"
OBJECTIVE, TRAFFIC = "Objective against message rounds", "Objective against traffic"
GUIDE = (
    (
        GRAPH,
        "Dots are sites. Lines connect sites that can send messages to each other; 2-bit messages use only the fewest "
        "lines that connect all sites. Blue sites had a lower test error together than alone, magenta sites a higher "
        "one, and grey sites the same.",
        "fig-graph",
    ),
    (
        ERRORS,
        "The open circle is the test error of the site alone, the full circle its test error together with its "
        "neighbours; further left is better. The numbers on the right are the change in percentage points.",
        "fig-error",
    ),
    (
        OBJECTIVE,
        "The methods minimise the error on the training rows plus a penalty on large weights; lower is better. The "
        "dotted line is the final objective of the method with all data in one place. In a message round every site "
        "can send one message to each neighbour. One round of a method takes several message rounds, until its sums "
        "have passed through the graph. The figure shows how long the sites wait for each other.",
        "fig-objective",
    ),
    (
        TRAFFIC,
        "The same runs against the amount of data sent. A line begins where the sites have agreed on a start, and its "
        "last part is the traffic of the certificate. The height is the distance of the objective from the highest "
        "lower bound that any of the methods certified. Both scales are logarithmic: each step along a scale "
        "multiplies by the same factor.",
        "fig-bytes",
    ),
    (
        "Certified",
        "At the end the sites compute, with the same kind of sums, a lower bound on the objective for a shared layer "
        "of any rank, and whether a larger rank would help. The distance of the objective from the bound is partly "
        "what is left to gain, and partly because the bound is not tight. An iterative method computes the bound in a "
        "few passes, so it may be slightly too high. It is a statement about the objective, not about the test error.",
    ),
)


def draw_overview(comparison: Comparison) -> matplotlib.figure.Figure:
    """Return all plots in one figure, 1600 pixels wide at its own resolution."""
    size = (14.4, max(6.6, 2.0 + 0.26 * len(comparison.change)))
    layout = ConstrainedLayoutEngine(w_pad=0.16, h_pad=0.12)
    fig = matplotlib.figure.Figure(size, 1600 / size[0], layout=layout, facecolor=COLORS["surface"])
    headline = comparison.headline()
    fig.suptitle(headline, x=0.014, ha="left", fontsize=TEXT + 6, fontweight="bold", color=COLORS["ink"])
    left, middle, right = fig.subfigures(1, 3, width_ratios=[1.0, 1.0, 1.12], squeeze=False)[0]
    errors = left.subplots()
    graph, means = middle.subplots(2, 1, height_ratios=[2.2, 1])
    objective, traffic = right.subplots(2, 1)
    draw_errors(errors, *(comparison.method(name).errors for name in (comparison.alone, comparison.together)))
    draw_graph(graph, comparison.graph, comparison.change)
    graph.set_anchor("N")
    sent = {m.name: m.traffic if m.pooled else f"{m.traffic} MB" for m in comparison.methods}
    draw_bars(means, [(m.name, m.error, f"{m.error:.1f} %, {sent[m.name]}", m.color) for m in comparison.methods])
    _draw_objective(objective, comparison)
    _draw_traffic(traffic, comparison)
    titles = {
        errors: ERRORS, graph: GRAPH, means: "Mean test error and traffic", objective: OBJECTIVE, traffic: TRAFFIC,
    }  # fmt: skip
    for ax, title in titles.items():
        ax.set_title(title, loc="left", fontsize=TEXT + 1, color=COLORS["ink"], pad=10)
    return fig


def comparison_page(comparison: Comparison) -> Page:
    """Return a page with the figures ``fig-graph``, ``fig-error``, ``fig-objective`` and ``fig-bytes``."""
    notes = [f"{m.name}: {m.advice}" for m in comparison.methods if m.stop not in ("CONVERGED", "DIRECT")]
    certificates = [(m.name, m.certificate) for m in comparison.methods if m.certificate is not None]
    notes += [f"{name}: {certificate}." for name, certificate in certificates if not certificate.rank_sufficient]
    lead = (
        comparison.introduction,
        f"{comparison.site_summary()} {comparison.traffic_summary()}",
        comparison.draw_summary(),
    )
    settings, versions = (
        Table(caption, columns, list(items.items()), frozenset(columns))
        for caption, columns, items in (
            ("Settings, given and found", ("Setting", "Value"), comparison.settings),
            ("Software", ("Part", "Version"), comparison.versions),
        )
    )
    return Page(
        title="elmesh: learning together against learning alone",
        headline=comparison.headline(),
        lead=[text for text in lead if text],
        facts=_facts(comparison),
        sections=[
            Section("Results", figures=_figures(comparison)),
            Section("The methods compared", paragraphs=notes, tables=[comparison.table()]),
            Section("How to read the figures", terms=GUIDE),
            Section("The methods explained", terms=[(m.name, m.description) for m in comparison.methods]),
            Section("Settings and versions", tables=[settings, versions]),
        ],
        foot="All numbers on this page come from the run that wrote it. Times are from one run on one machine.",
    )


def _facts(comparison: Comparison) -> list[tuple[str, str]]:
    better, _, _ = comparison.site_counts
    names = (comparison.alone, comparison.together, comparison.pooled)
    alone, together, pooled = (comparison.method(name) for name in names)
    least = min([together, *comparison.senders], key=lambda method: method.bytes)
    more = "" if least is together else f"; {format_megabytes(together.bytes)} MB with {together.name}"
    errors = f"mean test error, alone → together; {pooled.error:.1f} % with all data in one place ({pooled.name})"
    distance = f"of the least objective of any rank, certified without pooling the data ({together.name})"
    return [
        (f"{better} of {len(alone.errors)}", f"sites did better together ({together.name}) than alone"),
        (f"{alone.error:.1f} % → {together.error:.1f} %", errors),
        *([(together.certified, distance)] if together.certificate is not None else []),
        (f"{format_megabytes(least.bytes)} MB", f"sent by all sites with {least.name}{more}; no row of data"),
    ]


def _figures(comparison: Comparison) -> list[Figure]:
    alone, together = comparison.method(comparison.alone), comparison.method(comparison.together)
    degrees = [degree for _, degree in comparison.graph.degree]
    few, many = min(degrees), max(degrees)
    better, same, worse = comparison.site_counts
    errors = Table(
        "Test error, %",
        ["Site", "Alone", "Together", "Change"],
        [
            [task, f"{alone.errors[task]:.1f}", f"{together.errors[task]:.1f}", format_change(change)]
            for task, change in comparison.change.items()
        ],
    )
    one_row = f"A site has {comparison.test_rows} test rows, so one row is {100 / comparison.test_rows:.1f} points."
    objective, above = _objective_ends(comparison), _bound_ends(comparison)
    return [
        Figure(
            id="fig-graph",
            title=GRAPH,
            caption=f"Each of the {len(degrees)} sites exchanges messages only with its neighbours "
            f"({few if few == many else f'{few} to {many}'} per site). Sums travel from neighbour to neighbour.",
            description=f"A graph of {len(degrees)} sites and {comparison.graph.number_of_edges()} links. The color of "
            f"a site shows whether it did better ({better}), the same ({same}) or worse ({worse}) together than alone.",
            drawing=figure(partial(draw_graph, graph=comparison.graph, change=comparison.change)),
        ),
        Figure(
            id="fig-error",
            title=f"{ERRORS}, alone and together",
            caption=f"{better} better, {same} the same, {worse} worse. {one_row}",
            description=f"The test error of each site alone ({alone.name}) and together ({together.name}). "
            f"{comparison.headline()}",
            drawing=figure(
                partial(draw_errors, alone=alone.errors, together=together.errors),
                size=(5.0, max(3.9, 1.5 + 0.24 * len(alone.errors))),
            ),
            values=errors,
        ),
        Figure(
            id="fig-objective",
            title=OBJECTIVE,
            caption=objective,
            description=f"The objective of each method that sends messages, against message rounds. {objective}",
            drawing=figure(partial(_draw_objective, comparison=comparison)),
        ),
        Figure(
            id="fig-bytes",
            title=TRAFFIC,
            caption=above,
            description="The distance of the objective of each method that sends messages from the certified bound, "
            f"against megabytes sent. {above}",
            drawing=figure(partial(_draw_traffic, comparison=comparison)),
        ),
    ]


def _draw_objective(ax: Axes, comparison: Comparison) -> None:
    curves = [
        Curve(m.name, m.history["exchanges"], m.history["objective"], m.color, m.dash) for m in comparison.senders
    ]
    level = _pooled_objective(comparison, comparison.method(comparison.together))
    levels = [] if level is None else [(comparison.pooled, level)]
    draw_curves(ax, curves, x_label="message rounds", y_label="objective", x_scale="log", y_scale="auto", levels=levels)


def _draw_traffic(ax: Axes, comparison: Comparison) -> None:
    # Rounding errors would stretch the scale.
    curves = [
        Curve(m.name, m.history["bytes"] / 1e6, 100 * above.where(above > ROUNDING), m.color, m.dash)
        for m, above in _above_bound(comparison)
    ]
    draw_curves(ax, curves, x_label="MB sent", y_label="% above the bound", x_scale="log", y_scale="log")


def _above_bound(comparison: Comparison) -> list[tuple[MethodResult, pd.Series[float]]]:
    """Return the relative distance of the objectives from the bound, for each method that sends and has a bound."""
    bounds = [(method, comparison.bound(method)) for method in comparison.senders]
    return [(m, m.history["objective"] / bound - 1) for m, bound in bounds if bound is not None and bound > 0]


def _pooled_objective(comparison: Comparison, method: MethodResult) -> float | None:
    """Return the final objective of the pooled method if it has the penalties of this method."""
    pooled = comparison.method(comparison.pooled)
    return pooled.last("objective") if pooled.penalties == method.penalties else None


def _objective_ends(comparison: Comparison) -> str:
    """Return the final objective of each method, its message rounds, and its distance from the pooled method."""
    parts = []
    for m in comparison.senders:
        value, level = m.last("objective"), _pooled_objective(comparison, m)
        if value is None:
            continue
        distance = ""
        if level and abs(value / level - 1) < ROUNDING:
            distance = f" (the same as {comparison.pooled})"
        elif level:
            distance = f" ({_format_number(100 * (value / level - 1), '+')} % from {comparison.pooled})"
        parts.append(f"{m.name} ends at {_format_number(value)}{distance} after {m.exchanges:,} message rounds")
    return "; ".join(parts) + "." if parts else "No method sent messages."


def _bound_ends(comparison: Comparison) -> str:
    """Return the final distance of each method from the bound, and the megabytes it sent."""
    parts = [
        f"{m.name} ends {_format_number(100 * max(float(above.iloc[-1]), 0.0))} % above the bound, with "
        f"{format_megabytes(m.bytes)} MB sent"
        for m, above in _above_bound(comparison)
    ]
    return "; ".join(parts) + "." if parts else "No method that sends messages has a bound."


def _format_number(value: float, sign: str = "") -> str:
    """Format a number with a few digits; very small and very large numbers have a power of ten.

    >>> _format_number(19.2), _format_number(-0.00029178, "+"), _format_number(0.146, "+"), _format_number(0.0)
    ('19.20', '−2.92 × 10⁻⁴', '+0.146', '0')
    """
    if value == 0:
        return "0"
    mantissa, power = f"{value:{sign}.2e}".split("e")
    if -3 < int(power) < 5:
        text = f"{value:{sign}#.{3 if sign else 4}g}".rstrip(".")
    else:
        text = f"{mantissa} × 10{str(int(power)).translate(SUPERSCRIPT)}"
    return text.replace("-", "\N{MINUS SIGN}")
