"""All experiments by name, and the folder with their trials, numbers, figures and report.

The folder keeps its trials (``trials.jsonl``) and the list of its experiments (``results.json``), so that a later run
can continue after an interrupt, add runs, or add an experiment.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import elmesh
from elmesh.errors import ElmeshError
from elmesh.files import atomic_write
from elmesh.paper import classification as measures
from elmesh.paper import convergence, misprints
from elmesh.paper.analysis.convergence import analyze_fig3, analyze_fig4
from elmesh.paper.analysis.estimates import Analysis, Results
from elmesh.paper.analysis.fig5_fig6 import analyze_fig5, analyze_fig6
from elmesh.paper.analysis.leak import analyze_leak
from elmesh.paper.analysis.misprints import analyze_misprints
from elmesh.paper.analysis.table1 import analyze_table1, analyze_tuning, analyze_variants
from elmesh.paper.protocol import DISJOINT, IMAGES, INDEPENDENT, KANG, list_cases, missing_data
from elmesh.paper.trials import make_trials, run_trials
from elmesh.report import Page, Verdict, count_verdicts, render, save_figure
from elmesh.trial_log import Numbers, Trial, TrialLog, software_versions

__all__ = ["EXPERIMENTS", "PAGE", "Experiment", "Reproduction", "reproduce"]

LOG, RESULTS, PAGE = "trials.jsonl", "results.json", "report.html"
#: How claims are judged.
RULES = (
    "A claim about means gets a verdict if an interval over random draws decides it. Intervals have a level of 95 %, ± "
    "is half of one; n intervals that are judged or shown together hold at once (Bonferroni: each has the level 1 - "
    "0.05 / n). A claim about single runs agrees if 95 % of the runs confirm it, and differs if fewer than half do. "
    "Otherwise it could not be determined. A claim states its tolerance, if it has one."
)


@dataclass(frozen=True)
class Experiment:
    """An experiment: how a trial is measured, how the results are analyzed, and what it runs on."""

    measure: Callable[[Trial], Numbers]
    analyze: Callable[[Results, int], Analysis]  # from all results and the number of runs
    cases: Callable[[], Sequence[str]]  # the cases of every run, which can depend on the available data sets
    datasets: tuple[str, ...] = ()  # the data sets that the paper uses
    max_runs: int | None = None  # more runs are not needed

    def trials(self, name: str, runs: int, seed: int) -> list[Trial]:
        """Return all trials of up to ``runs`` runs."""
        return make_trials(name, self.cases(), min(runs, self.max_runs or runs), seed)


USPS, BOTH = ("usps",), ("usps", "mnist")
EXPERIMENTS = {
    "fig3": Experiment(convergence.measure_fig3, analyze_fig3, lambda: convergence.CASES),
    "fig4": Experiment(convergence.measure_fig4, analyze_fig4, lambda: ["a"]),
    "table1": Experiment(measures.measure_table1, analyze_table1, lambda: list_cases(*BOTH), BOTH),
    "leak": Experiment(measures.measure_leak, analyze_leak, lambda: list_cases(*BOTH, drawings=(INDEPENDENT,)), BOTH),
    "fig5": Experiment(measures.measure_fig5, analyze_fig5, lambda: list_cases(*USPS), USPS),
    "fig6": Experiment(measures.measure_fig6, analyze_fig6, lambda: list_cases(*USPS), USPS),
    "misprints": Experiment(misprints.measure_misprint, analyze_misprints, lambda: misprints.CASES),
    # Differences between variants are paired, so that 30 draws decide.
    "variants": Experiment(
        measures.measure_variants, analyze_variants, lambda: list_cases(*BOTH, drawings=(INDEPENDENT,)), BOTH, 30
    ),
    # Chosen without the leak.
    "tuning": Experiment(
        measures.measure_tuning, analyze_tuning, lambda: list_cases(*BOTH, drawings=(DISJOINT,)), BOTH, 10
    ),
}


@dataclass(frozen=True, eq=False)
class Reproduction:
    """The analyses of all experiments of a folder."""

    analyses: Mapping[str, Analysis]  # by experiment
    runs: Mapping[str, int]  # by experiment
    seed: int
    missing: Mapping[str, str]  # data sets that are not available, and how to get them

    @property
    def protocol(self) -> dict[str, Any]:
        """Name and description of the data and the ways of drawing from them."""
        if KANG in self.missing:
            return {
                "name": IMAGES,
                "drawings": [DISJOINT],
                "text": "The digits that the paper cites are missing, so Figs. 5 and 6 and Table 1 are those of images "
                "of other releases, with principal components of the training rows of each draw, where no row is used "
                "twice.",
            }
        return {
            "name": KANG,
            "drawings": [INDEPENDENT, DISJOINT],
            "text": f"Figs. 5 and 6 and Table 1 follow the protocol “{KANG}”: the digits of the release that the paper "
            "cites, 2,000 rows of USPS and of MNIST, already reduced to 64 and 87 principal components. The paper does "
            "not state how tasks draw their rows. Claims are judged with independent draws of every task, where test "
            "rows of a task can be training rows of another; the results with no row used twice are beside them.",
        }

    def verdicts(self, name: str) -> str:
        """Count the verdicts of an experiment, in words."""
        return ", ".join(count_verdicts(self.analyses[name].section.claims).values()) or "no claims"

    def to_json(self) -> dict[str, Any]:
        """Return the content of ``results.json``."""
        experiments = {}
        for name, analysis in self.analyses.items():
            section = analysis.section
            experiments[name] = {
                "title": section.title,
                "runs": self.runs[name],
                "claims": [asdict(claim) | {"verdict": claim.verdict.value} for claim in section.claims],
                "tables": [
                    {"caption": t.caption, "columns": list(t.columns), "rows": list(map(list, t.rows)), "note": t.note}
                    for t in section.tables
                ],
                "figures": [figure.id for figure in section.figures],
                "paragraphs": list(section.paragraphs),
                "terms": list(map(list, section.terms)),
                "numbers": analysis.numbers,
            }
        return {
            "elmesh": elmesh.__version__,
            "versions": software_versions(),
            "seed": self.seed,
            "protocol": self.protocol,
            "missing": dict(self.missing),
            "rules": RULES,
            "experiments": experiments,
        }

    def page(self) -> Page:
        """Return the report."""
        claims = [claim for analysis in self.analyses.values() for claim in analysis.section.claims]
        counts = Counter(claim.verdict for claim in claims)
        words = {Verdict.AGREES: "claims agree", Verdict.DIFFERS: "differ"}
        software = ", ".join(f"{name} {number}" for name, number in software_versions().items())
        runs = ", ".join(f"{name} {count} runs" for name, count in self.runs.items())
        return Page(
            title="elmesh: reproduction of the paper",
            headline="Decentralized Multi-Task Learning Based on Extreme Learning Machines, reproduced",
            lead=[
                "All figures and tables of the paper's evaluation, with the paper's claims about them. "
                f"{self.protocol['text']} {RULES}",
                *(f"{name} is missing. {reason}" for name, reason in self.missing.items()),
            ],
            facts=[(str(counts[verdict]), words.get(verdict, verdict.value)) for verdict in Verdict],
            sections=[analysis.section for analysis in self.analyses.values()],
            foot=f"Seed {self.seed}; {runs}; elmesh {elmesh.__version__}, {software}. All numbers are in {RESULTS}, "
            f"all trials in {LOG}.",
            contents=True,
        )


def reproduce(
    wanted: Mapping[str, int],
    seed: int,
    folder: Path,
    *,
    fresh: bool = False,
    on_progress: Callable[[str, int, int], object] = lambda name, done, total: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> Reproduction:
    """Run experiments (name to number of runs), and write everything into a folder.

    Other experiments of the folder stay in the report; with ``fresh`` its trials are discarded. A folder with other
    files is refused. ``on_progress`` receives an experiment, the number of its finished trials, and that of all its
    trials. If ``should_stop`` returns True, running trials are finished and saved, and :class:`KeyboardInterrupt` is
    raised.
    """
    if folder.exists() and not fresh and not (folder / LOG).exists() and any(folder.iterdir()):
        raise ElmeshError(f"{folder} contains other files than a reproduction; choose another folder.")
    log = TrialLog(folder / LOG, seed, fresh=fresh)
    runs = ({} if fresh else _runs_in(folder / RESULTS)) | dict(wanted)
    analyses = {}
    for name, experiment in EXPERIMENTS.items():
        if name not in runs:
            continue
        trials = experiment.trials(name, runs[name], seed)

        def report(trial: Trial | None = None, name: str = name, trials: list[Trial] = trials) -> None:
            on_progress(name, sum(trial in log for trial in trials), len(trials))

        report()
        results: dict[str, list[Numbers]] = {}
        done = run_trials(trials, experiment.measure, log, on_trial=report, should_stop=should_stop)
        for trial, numbers in done.items():
            results.setdefault(trial.case, []).append(numbers)
        runs[name] = len({trial.run for trial in trials})  # can be fewer than requested
        analyses[name] = experiment.analyze(results, runs[name])
    missing = missing_data(*dict.fromkeys(dataset for name in analyses for dataset in EXPERIMENTS[name].datasets))
    reproduction = Reproduction(analyses, {name: runs[name] for name in analyses}, seed, missing)
    for analysis in analyses.values():
        for figure in analysis.section.figures:
            save_figure(figure.drawing, folder / figure.id)
    text = json.dumps(reproduction.to_json(), indent=1, ensure_ascii=False, allow_nan=False)
    atomic_write(folder / RESULTS, f"{text}\n".encode())
    atomic_write(folder / PAGE, render(reproduction.page()).encode())
    return reproduction


def _runs_in(path: Path) -> dict[str, int]:
    """Return the number of runs of each experiment in a results file; nothing if it is damaged or missing."""
    try:
        experiments = json.loads(path.read_text(encoding="utf-8"))["experiments"]
        return {str(name): int(entry["runs"]) for name, entry in experiments.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}
