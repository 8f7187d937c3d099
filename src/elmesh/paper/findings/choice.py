"""Which parameters the methods choose on training rows, and whether those are the ones in use."""

from __future__ import annotations

from elmesh.paper.choice import FOLDS, GRIDS, candidate
from elmesh.paper.findings.finding import Finding
from elmesh.paper.findings.inference import Estimate
from elmesh.paper.methods import CHOSEN
from elmesh.paper.protocol import DATA_SETS
from elmesh.paper.trials import Trials
from elmesh.report import Section, Table

__all__ = ["conclude"]


def conclude(trials: Trials, runs: int) -> Finding:
    """Find the best candidates, and set those in use beside them."""
    cases = list(dict.fromkeys(trial.case for trial, _ in trials.done))
    rows, numbers = [], {}
    for case in cases:
        found, title = trials.of(case), DATA_SETS[case].title
        means = {
            name: {candidate(point): Estimate.of([run[name][candidate(point)] for run in found]) for point in grid}
            for name, grid in GRIDS.items()
        }
        for name, estimates in means.items():
            best = min((estimate.mean, point) for point, estimate in estimates.items())[1]
            used = candidate(CHOSEN[case][name])
            rows.append([f"{title}, {name}", best, f"{estimates[best].mean:.2f}", used, f"{estimates[used].mean:.2f}"])
        numbers[title] = {
            name: {point: estimate.to_json() for point, estimate in estimates.items()}
            for name, estimates in means.items()
        }
    section = Section(
        "Parameters chosen on training rows",
        paragraphs=(
            f"Error in per cent by {FOLDS}-fold cross-validation on the training rows of {len(trials.of(cases[0]))} "
            "draws; no draw's own test rows are looked at, though draws share one pool of pictures. “In use” is what "
            "Table 1 takes for its rows “chosen”.",
        ),
        tables=[
            Table("Best and in use", ("", "best", "error", "in use", "its error"), rows, frozenset({"best", "in use"}))
        ],
    )
    return Finding(section, numbers)
