"""A comparison of methods as an overview figure and as a page.

The page starts with the result (which sites gained, how much, how much traffic it took), then shows the figures, then
explains how to read them. Captions end with the values at the ends of the lines. The words are in ``texts.toml``.
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
from elmesh.report.page import Page, Section
from elmesh.report.site_plots import draw_bars, draw_errors, draw_graph, format_change
from elmesh.report.wording import Wording

__all__ = ["comparison_page", "draw_overview"]

# Relative differences of objectives below this are rounding errors.
ROUNDING = 1e-10


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
        errors: "Test error per site", graph: "Communication graph", means: "Mean test error and traffic",
        objective: "Objective against message rounds", traffic: "Objective against traffic",
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
    settings, guide = (Wording("elmesh.report", name) for name in ("settings", "guide"))
    software = {"settings": comparison.settings, "versions": comparison.versions}
    return Page(
        title="elmesh: learning together against learning alone",
        headline=comparison.headline(),
        lead=[text for text in lead if text],
        facts=_facts(comparison),
        sections=[
            _results(comparison),
            Wording("elmesh.report", "methods").section(notes, tables=[comparison.table()]),
            guide.section(),
            Section("The methods explained", terms=[(m.name, m.description) for m in comparison.methods]),
            settings.section(tables=[settings.table(key, list(items.items())) for key, items in software.items()]),
        ],
        foot=Wording("elmesh.report", "lead").text("foot"),
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


def _results(comparison: Comparison) -> Section:
    alone, together = comparison.method(comparison.alone), comparison.method(comparison.together)
    better, same, worse = comparison.site_counts
    degrees = [degree for _, degree in comparison.graph.degree]
    few, many = min(degrees), max(degrees)
    wording = Wording(
        "elmesh.report", "results", sites=len(degrees), links=comparison.graph.number_of_edges(),
        neighbors=few if few == many else f"{few} to {many}", better=better, same=same, worse=worse, alone=alone.name,
        together=together.name, headline=comparison.headline(), rows=comparison.test_rows,
        one_row=100 / comparison.test_rows, objective=_objective_ends(comparison), above_bound=_bound_ends(comparison),
    )  # fmt: skip
    rows = [
        [task, f"{alone.errors[task]:.1f}", f"{together.errors[task]:.1f}", format_change(change)]
        for task, change in comparison.change.items()
    ]
    errors = figure(
        partial(draw_errors, alone=alone.errors, together=together.errors),
        size=(5.0, max(3.9, 1.5 + 0.24 * len(alone.errors))),
    )
    graph = figure(partial(draw_graph, graph=comparison.graph, change=comparison.change))
    figures = [
        wording.figure("graph", graph),
        wording.figure("error", errors, wording.table("errors", rows)),
        wording.figure("objective", figure(partial(_draw_objective, comparison=comparison))),
        wording.figure("bytes", figure(partial(_draw_traffic, comparison=comparison))),
    ]
    return wording.section(figures=figures)


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
