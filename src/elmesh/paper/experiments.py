"""All experiments by name, in the order of the report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from elmesh.paper import choices, classification, convergence, misprints
from elmesh.paper.analysis import Analysis
from elmesh.paper.analysis import choices as choices_analysis
from elmesh.paper.analysis import convergence as convergence_analysis
from elmesh.paper.analysis.fig5_fig6 import analyze_fig5, analyze_fig6
from elmesh.paper.analysis.misprints import analyze_misprints
from elmesh.paper.analysis.table1 import analyze_table1
from elmesh.paper.protocol import available_datasets, fallback_dataset
from elmesh.paper.trials import Numbers, Trial, TrialResults, make_trials

__all__ = ["EXPERIMENTS", "Experiment"]


@dataclass(frozen=True)
class Experiment:
    """An experiment: how a trial is measured, how the results are analyzed, and what it runs on."""

    measure: Callable[[Trial], Numbers]
    analyze: Callable[[TrialResults, int], Analysis]  # from all results and the number of runs
    cases: Callable[[], Sequence[str]]  # the cases of every run, which can depend on the available data sets
    datasets: tuple[str, ...] = ()  # the data sets that the paper uses
    max_runs: int | None = None  # more runs are not needed

    def trials(self, name: str, runs: int, seed: int) -> list[Trial]:
        """Return all trials of up to ``runs`` runs."""
        return make_trials(name, self.cases(), min(runs, self.max_runs or runs), seed)


BOTH = ("usps", "mnist")
EXPERIMENTS = {
    "fig3": Experiment(convergence.measure_fig3, convergence_analysis.analyze_fig3, lambda: convergence.CASES),
    "fig4": Experiment(convergence.measure_fig4, convergence_analysis.analyze_fig4, lambda: ["a"]),
    "table1": Experiment(
        classification.measure_table1, analyze_table1, lambda: list(dict.fromkeys(map(fallback_dataset, BOTH))), BOTH
    ),
    "fig5": Experiment(classification.measure_fig5, analyze_fig5, lambda: [fallback_dataset("usps")], ("usps",)),
    "fig6": Experiment(classification.measure_fig6, analyze_fig6, lambda: [fallback_dataset("usps")], ("usps",)),
    "misprints": Experiment(misprints.measure_misprint, analyze_misprints, lambda: misprints.CASES),
    # Differences between variants are paired, so that 30 draws decide.
    "readings": Experiment(
        choices.measure_variants, choices_analysis.analyze_variants, lambda: available_datasets(*BOTH), BOTH, 30
    ),
    "choice": Experiment(
        choices.measure_tuning, choices_analysis.analyze_tuning, lambda: available_datasets(*BOTH), BOTH, 5
    ),
}
