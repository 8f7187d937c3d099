"""All experiments by name: what each runs, and what is made of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from elmesh.paper import choice, fig3, fig4, fig5, fig6, misprints, readings, table1
from elmesh.paper.findings import choice as choice_finding
from elmesh.paper.findings import fig3 as fig3_finding
from elmesh.paper.findings import fig4 as fig4_finding
from elmesh.paper.findings import fig5 as fig5_finding
from elmesh.paper.findings import fig6 as fig6_finding
from elmesh.paper.findings import misprints as misprints_finding
from elmesh.paper.findings import readings as readings_finding
from elmesh.paper.findings import table1 as table1_finding
from elmesh.paper.findings.finding import Finding
from elmesh.paper.trials import Numbers, Trial, Trials

__all__ = ["EXPERIMENTS", "Experiment"]


@dataclass(frozen=True)
class Experiment:
    """What an experiment runs, how a trial is measured, what is concluded from all, and the data sets it needs."""

    trials: Callable[[int, int], list[Trial]]
    measure: Callable[[Trial], Numbers]
    conclude: Callable[[Trials, int], Finding]
    data: tuple[str, ...] = ()


#: In the order of the report.
EXPERIMENTS = {
    "fig3": Experiment(fig3.trials, fig3.measure, fig3_finding.conclude),
    "fig4": Experiment(fig4.trials, fig4.measure, fig4_finding.conclude),
    "table1": Experiment(table1.trials, table1.measure, table1_finding.conclude, ("usps", "mnist")),
    "fig5": Experiment(fig5.trials, fig5.measure, fig5_finding.conclude, ("usps",)),
    "fig6": Experiment(fig6.trials, fig6.measure, fig6_finding.conclude, ("usps",)),
    "misprints": Experiment(misprints.trials, misprints.measure, misprints_finding.conclude),
    "readings": Experiment(readings.trials, readings.measure, readings_finding.conclude, ("usps", "mnist")),
    "choice": Experiment(choice.trials, choice.measure, choice_finding.conclude, ("usps", "mnist")),
}
