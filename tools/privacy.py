"""Write the measured part of docs/privacy.md and its figure, from the benchmarks `private_arena` and `audit`."""

from __future__ import annotations

import sys
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from pages import RESULTS, ROOT, fill, load, missed_goals, table

PAGE = ROOT / "docs" / "privacy.md"
FIGURE = ROOT / "docs" / "images" / "privacy-curves.png"
WAYS = {"usual": "#0072B2", "found": "#009E73", "extremes": "#D55E00"}
Row = dict[str, Any]


def signed(figure: Row | None) -> str:
    return "refused" if figure is None else f"{figure['mean']:+.4f} ± {figure['standard_error']:.4f}"


def curves_section(result: Row) -> list[str]:
    tables, level = result["tables"], result["not_below_alone"]
    large = {name: one for name, one in tables.items() if one["rows"] > 2500}
    worst = min(one["against no noise"]["mean"] for one in large.values())
    head = ["table", "training rows", "sites", "alone", "epsilon 0.3", "**epsilon 1**", "epsilon 3", "a third colludes"]
    keys = [f"usual, epsilon {epsilon}" for epsilon in ("0.3", "1", "3")] + ["usual, epsilon 1, a third colludes"]
    rows = [
        [
            name, f"{one['rows']:,}", str(one["sites"]), f"{one['scores'][one['better alone']]['mean']:.4f}",
            *(signed(one["against alone"].get(key)) for key in keys), signed(one["against alone"]["no noise"]),
        ]
        for name, one in tables.items()
    ]  # fmt: skip
    ways = [
        [name, *(signed(one["against alone"].get(f"{way}, epsilon 1")) for way in WAYS)] for name, one in tables.items()
    ]
    return [
        "### What it costs in accuracy",
        "",
        f"The twelve tables of [arena.md](arena.md), {result['splits']} splits each, scores on rows not trained on "
        "(R2; verbagg: area under the ROC curve). *Alone* is the better of two models of each site by itself. Other "
        "columns are differences from it, with the standard error over splits: of fits at several epsilons (delta "
        f"{result['delta']:g}, nobody colludes), of one against a third of the sites at epsilon 1, and of elmesh "
        "without noise. What a private fit fixes (the number of hidden units, the limits of rows) was chosen with "
        "scores on these tables in view: rows are held out, tables are not. Splits have rows in common, so that "
        "standard errors over splits are too small, by a factor of about two to four ([arena.md](arena.md)).",
        "",
        *table([*head, "no noise"], rows),
        "",
        f"At epsilon 1, {level['usual']} of {len(tables)} tables are better than alone or level with it within a "
        "standard error. On tables with over 2,500 training rows the score is at most "
        f"{-worst:.3f} below that without noise.",
        "",
        "Here the usual range of each column was declared: where the middle 90 % of its values are, rounded to two "
        "digits. Other ways, at epsilon 1: no range is declared and scales are *found*, paid for with a part of the "
        "budget; or the *extremes* of all values are declared, which are wider than what most rows need. Where noise "
        "would hide the scales, a fit is refused before anything is released.",
        "",
        *table(["table", "usual ranges declared", "found", "extremes declared"], ways),
        "",
        f"Better than alone or level with it: {level['usual']}, {level['found']} and {level['extremes']} of "
        f"{len(tables)} tables. Ranges were read off the same tables, which favours declared ones a little.",
        "",
        "![Score against epsilon for each table](images/privacy-curves.png)",
        "",
    ]


def audit_section(result: Row) -> list[str]:
    figures, settings = result["figures"], result["settings"]
    rows = [
        [name, f"{one['runs']:,}", f"{one['by definition']:.2f}", f"{one['gaussian']:.2f}"]
        for name, one in figures.items()
    ]
    return [
        "### Whether it holds: an audit",
        "",
        "Private fits were run again and again on two tables that differ in one row, up to the total that leaves the "
        f"{settings['sites']} sites. The two rows are those, of all extreme ones tried, whose totals are furthest "
        f"apart: their exact epsilon is {settings['epsilon_of_the_pair']:.4f} of {settings['epsilon']:g} stated. The "
        "best test of the two tables gives a lower bound on epsilon, at a confidence of 95 %: by the definition of "
        "differential privacy, and by the error rates that are possible for Gaussian noise. Mechanisms that were "
        "broken on purpose are found out.",
        "",
        *table(["mechanism", "fits per table", "epsilon is at least (definition)", "(Gaussian)"], rows),
        "",
    ]


def draw(result: Row) -> Figure:
    tables, epsilons = result["tables"], result["epsilons"]
    picture = Figure(figsize=(12, 8), layout="constrained")
    FigureCanvasAgg(picture)
    for axes, (name, one) in zip(picture.subplots(3, 4).flat, tables.items(), strict=True):
        scores = one["scores"]
        for way, colour in WAYS.items():
            known = [epsilon for epsilon in epsilons if f"{way}, epsilon {epsilon:g}" in scores]
            values = [scores[f"{way}, epsilon {epsilon:g}"] for epsilon in known]
            label = {"usual": "usual ranges declared", "found": "scales found", "extremes": "extremes declared"}[way]
            axes.errorbar(
                known, [v["mean"] for v in values], [v["standard_error"] for v in values], fmt="o-", color=colour,
                lw=1.2, ms=3, label=label,
            )  # fmt: skip
        axes.axhline(scores["no noise"]["mean"], color="black", lw=1, ls=":", label="no noise")
        axes.axhline(scores[one["better alone"]]["mean"], color="#888888", lw=1.2, ls="--", label="alone")
        axes.set_xscale("log")
        axes.set_title(f"{name}: {one['rows']:,} rows, {one['sites']} sites", fontsize=10)
        axes.tick_params(labelsize=8)
        axes.set_xlabel("epsilon", fontsize=8)
    handles, labels = axes.get_legend_handles_labels()
    picture.legend(handles, labels, loc="outside upper center", ncols=5, frameon=False)
    return picture


def section() -> str:
    private, audit = (load(RESULTS / f"{name}.json") for name in ("private_arena", "audit"))
    parts = [
        *curves_section(private),
        *audit_section(audit),
        "### Goals not reached",
        "",
        *missed_goals(private, audit),
    ]
    return "\n".join(parts)


def filled(text: str) -> str:
    """Return the page with the section written from the committed results."""
    return fill(text, "measured", section())


if __name__ == "__main__":
    draw(load(RESULTS / "private_arena.json")).savefig(FIGURE, dpi=90)
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    print(f"{PAGE.name} is up to date.", file=sys.stderr)
