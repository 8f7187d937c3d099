"""Analysis of what the paper leaves open, and of the parameters chosen by cross-validation."""

from __future__ import annotations

from typing import Any

from elmesh.paper.analysis import Analysis
from elmesh.paper.analysis.estimates import Estimate, difference, values
from elmesh.paper.analysis.table1 import PRINTED
from elmesh.paper.choices import BASELINE, FOLDS, GRIDS, METHODS, VARIANTS, format_parameters
from elmesh.paper.methods import tuned_parameters
from elmesh.paper.protocol import DATASETS
from elmesh.paper.trials import Numbers, TrialResults
from elmesh.report import Section, Table

__all__ = ["analyze_tuning", "analyze_variants"]


def analyze_variants(results: TrialResults, runs: int) -> Analysis:
    """Tabulate the errors in each variant of the protocol."""
    section = Section(
        "What the paper leaves open",
        paragraphs=(
            "The paper does not state which part of USPS it uses, how principal components are scaled, whether PCA "
            "included the test rows, the value of r, and whether methods on the inputs have an intercept. Each row of "
            "the tables changes one of these. “As read” is the choice of all other experiments: pixels in [0, 1], "
            "components without scaling, PCA on training rows, rank 6, an intercept for methods on the inputs, and the "
            "training part of USPS. It was made with the printed errors in view, for all methods together.",
        ),
        tables=[_variants_table(results.of(case), case) for case in results.cases],
    )
    numbers: dict[str, Any] = {}
    for case in results.cases:
        found = results.of(case)
        numbers[DATASETS[case].title] = {
            name: {method: Estimate.of(values(found, name, method)).to_json() for method in METHODS}
            for name in VARIANTS
            if name in found[0]
        }
    return Analysis(section, numbers)


def _variants_table(runs: list[Numbers], case: str) -> Table:
    rows = []
    for name in VARIANTS:
        if name in runs[0]:
            gain = difference(values(runs, name, "DMTL-ELM"), values(runs, name, "Local ELM"))
            errors = [str(Estimate.of(values(runs, name, method))) for method in METHODS]
            rows.append([name, *errors, gain.signed])
    if cells := PRINTED.get(case):
        gap = cells["DMTL-ELM"].error - cells["Local ELM"].error
        rows.insert(0, ["printed in the paper", *(f"{cells[method].error:.2f}" for method in METHODS), f"{gap:+.2f}"])
    leak = difference(*(values(runs, name, "DMTL-ELM") for name in ("PCA on test rows too", BASELINE)))
    return Table(
        f"{DATASETS[case].title}: test error in per cent, {len(runs)} draws",
        ("variant", *METHODS, "DMTL-ELM minus Local ELM"),
        rows,
        note=f"PCA on the test rows too changes the error of DMTL-ELM by {leak.signed} points.",
    )


def analyze_tuning(results: TrialResults, runs: int) -> Analysis:
    """Compare the parameters in use with the best ones."""
    rows, numbers = [], {}
    for case in results.cases:
        found, title = results.of(case), DATASETS[case].title
        estimates = {
            name: {(p := format_parameters(point)): Estimate.of(values(found, name, p)) for point in grid}
            for name, grid in GRIDS.items()
        }
        for name, own in estimates.items():
            best = min((estimate.mean, point) for point, estimate in own.items())[1]
            used = format_parameters(tuned_parameters(case)[name])
            rows.append([f"{title}, {name}", best, f"{own[best].mean:.2f}", used, f"{own[used].mean:.2f}"])
        numbers[title] = {
            name: {point: estimate.to_json() for point, estimate in own.items()} for name, own in estimates.items()
        }
    section = Section(
        "Parameters chosen on training rows",
        paragraphs=(
            f"Error in per cent by {FOLDS}-fold cross-validation on the training rows of {runs} draws. The test rows "
            "of a draw are not used, but all draws share one pool of images. “In use” are the parameters of the rows "
            "“chosen” in Table 1.",
        ),
        tables=[
            Table("Best and in use", ("", "best", "error", "in use", "its error"), rows, frozenset({"best", "in use"}))
        ],
    )
    return Analysis(section, numbers)
