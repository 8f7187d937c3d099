"""How much the paper's open choices change."""

from __future__ import annotations

from elmesh.paper.findings.finding import Finding
from elmesh.paper.findings.inference import Estimate, difference
from elmesh.paper.findings.table1 import PRINTED
from elmesh.paper.protocol import DATA_SETS
from elmesh.paper.readings import READINGS
from elmesh.paper.trials import Trials
from elmesh.report import Section, Table

__all__ = ["conclude"]

METHODS = ("Local ELM", "DMTL-ELM", "FO-DMTL-ELM", "DNSP")


def conclude(trials: Trials, runs: int) -> Finding:
    """Tabulate the errors under each reading of the protocol."""
    cases = list(dict.fromkeys(trial.case for trial, _ in trials.done))
    tables, numbers = [], {}
    for case in cases:
        found, title = trials.of(case), DATA_SETS[case].title
        names = [name for name in READINGS if name in found[0]]
        estimates = {
            name: {method: Estimate.of([run[name][method] for run in found]) for method in METHODS} for name in names
        }
        gains = {
            name: difference([run[name]["DMTL-ELM"] for run in found], [run[name]["Local ELM"] for run in found])
            for name in names
        }
        rows = [[name, *(str(estimates[name][method]) for method in METHODS), gains[name].signed] for name in names]
        if case in PRINTED:
            cells = PRINTED[case]
            gain = cells["DMTL-ELM"].error - cells["Local ELM"].error
            printed = [f"{cells[method].error:.2f}" for method in METHODS]
            rows.insert(0, ["printed in the paper", *printed, f"{gain:+.2f}"])
        leak = difference(*([run[name]["DMTL-ELM"] for run in found] for name in ("PCA on test rows too", "as read")))
        tables.append(
            Table(
                f"{title}: test error in per cent, {len(found)} draws",
                ("reading", *METHODS, "DMTL-ELM less Local ELM"),
                rows,
                note=f"Fitting PCA on the test rows too changes DMTL-ELM by {leak.signed} points.",
            )
        )
        numbers[title] = {
            name: {method: estimate.to_json() for method, estimate in row.items()} for name, row in estimates.items()
        }
    section = Section(
        "What the paper leaves open",
        paragraphs=(
            "The paper does not say which part of USPS its rows come from, how principal components are scaled, "
            "whether PCA saw the test rows, what r is, nor whether methods on the inputs have an intercept. Each row "
            "of the tables changes one of these and nothing else. “As read” is what all other experiments use: pixels "
            "in [0, 1], components as they come, PCA on training rows, rank 6, an intercept for methods on the inputs, "
            "and for USPS rows of its training part. It was picked with the printed errors in view, for all methods at "
            "once.",
        ),
        tables=tables,
    )
    return Finding(section, numbers)
