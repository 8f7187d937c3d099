"""Run experiments into a folder: trials, numbers, figures, and a page.

A folder remembers its trials (``trials.jsonl``) and which experiments it has (``results.json``), so that it can be
gone on with after an interrupt, with more runs, or with another experiment.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import elmesh
from elmesh.errors import ElmeshError
from elmesh.paper.experiments import EXPERIMENTS
from elmesh.paper.findings.finding import Finding
from elmesh.paper.protocol import DATA_SETS, why_missing
from elmesh.paper.trials import Journal, Trial, run_trials, versions
from elmesh.report import Claim, Fact, Page, Verdict, render, save, tally

__all__ = ["Reproduction", "reproduce"]

JOURNAL, RESULTS, PAGE = "trials.jsonl", "results.json", "report.html"


@dataclass(frozen=True, eq=False)
class Reproduction:
    """What was found, by experiment.

    Parameters
    ----------
    findings : mapping
        Name of each experiment to what came of it.
    runs : mapping
        Name of each experiment to its number of runs.
    seed : int
        What all randomness came from.
    missing : mapping
        Data sets that were not at hand, and how to get them.
    """

    findings: Mapping[str, Finding]
    runs: Mapping[str, int]
    seed: int
    missing: Mapping[str, str]

    @property
    def claims(self) -> list[Claim]:
        """All statements, with their verdicts."""
        return [claim for finding in self.findings.values() for claim in finding.section.claims]

    def to_json(self) -> dict[str, Any]:
        """Return what ``results.json`` holds."""
        experiments = {
            name: {
                "title": finding.section.title,
                "runs": self.runs[name],
                "claims": [
                    {"statement": claim.statement, "found": claim.found, "verdict": claim.verdict.value}
                    for claim in finding.section.claims
                ],
                "tables": [
                    {
                        "caption": t.caption,
                        "columns": list(t.columns),
                        "rows": [list(r) for r in t.rows],
                        "note": t.note,
                    }
                    for t in finding.section.tables
                ],
                "figures": [figure.id for figure in finding.section.figures],
                "paragraphs": list(finding.section.paragraphs),
                "terms": [list(term) for term in finding.section.terms],
                "numbers": finding.numbers,
            }
            for name, finding in self.findings.items()
        }
        return {
            "elmesh": elmesh.__version__,
            "versions": versions(),
            "seed": self.seed,
            "missing": dict(self.missing),
            "experiments": experiments,
        }

    def page(self) -> Page:
        """Return the report."""
        counts = {verdict: sum(claim.verdict is verdict for claim in self.claims) for verdict in Verdict}
        named = ", ".join(f"{name} {number}" for name, number in versions().items())
        return Page(
            title="elmesh: the paper, reproduced",
            headline="Decentralized Multi-Task Learning Based on Extreme Learning Machines, reproduced",
            lead=[
                "Every figure and table of the paper's evaluation, run again, beside what the paper says of it. A "
                "verdict is given where a 95 % interval over random draws decides; a statement about single runs "
                "agrees if 95 % of them bear it out, and differs if fewer than half do. Else it could not be "
                "determined.",
                *(f"{DATA_SETS[name].title} is missing. {reason}" for name, reason in self.missing.items()),
            ],
            facts=[
                Fact(str(counts[Verdict.AGREES]), "statements agree"),
                Fact(str(counts[Verdict.DIFFERS]), "differ"),
                Fact(str(counts[Verdict.UNDETERMINED]), "could not be determined"),
            ],
            sections=[finding.section for finding in self.findings.values()],
            foot=f"Seed {self.seed}; "
            + ", ".join(f"{name} {runs} runs" for name, runs in self.runs.items())
            + f"; elmesh {elmesh.__version__}, {named}. Every number is in {RESULTS}, every trial in {JOURNAL}.",
            contents=True,
        )

    def summary(self, name: str) -> str:
        """Say in a few words what came of an experiment."""
        finding = self.findings[name]
        return ", ".join(tally(finding.section.claims).values()) or "nothing to judge"


def reproduce(
    wanted: Mapping[str, int],
    seed: int,
    folder: Path,
    *,
    fresh: bool = False,
    advance: Callable[[str, int, int], object] = lambda name, done, total: None,
    stopping: Callable[[], bool] = lambda: False,
) -> Reproduction:
    """Run experiments, and write everything into a folder.

    Parameters
    ----------
    wanted : mapping
        Name of each experiment to its number of runs. Experiments that the folder has already are kept in the report.
    seed : int
        What all randomness comes from.
    folder : Path
        Made if it is not there; one that holds other things is refused.
    fresh : bool
        Whether to forget trials that the folder has.
    advance : callable
        Told the experiment, how many trials of it are done, and of how many.
    stopping : callable
        Whether to stop early; finished trials are kept and :class:`KeyboardInterrupt` is raised.

    Returns
    -------
    Reproduction
    """
    if folder.exists() and not fresh and not (folder / JOURNAL).exists() and any(folder.iterdir()):
        raise ElmeshError(f"{folder} holds other things than a reproduction; choose another name for the folder.")
    journal = Journal(folder / JOURNAL, seed, fresh=fresh)
    runs = {name: n for name, n in ({} if fresh else _known(folder / RESULTS)).items() if name in EXPERIMENTS} | dict(
        wanted
    )
    findings = {}
    for name in (name for name in EXPERIMENTS if name in runs):
        experiment = EXPERIMENTS[name]
        trials = experiment.trials(runs[name], seed)
        done = sum(trial in journal for trial in trials)

        def step(trial: Trial, name: str = name, total: int = len(trials)) -> None:
            nonlocal done
            done += 1
            advance(name, done, total)

        advance(name, done, len(trials))
        finished = run_trials(trials, experiment.measure, journal, advance=step, stopping=stopping)
        runs[name] = len({trial.run for trial in trials})  # some stop at fewer than were asked for
        findings[name] = experiment.conclude(finished, runs[name])
    needed = dict.fromkeys(name for experiment in findings for name in EXPERIMENTS[experiment].data)
    missing = {name: reason for name in needed if (reason := why_missing(name))}
    reproduction = Reproduction(findings, {name: runs[name] for name in findings}, seed, missing)
    _write(reproduction, folder)
    return reproduction


def _write(reproduction: Reproduction, folder: Path) -> None:
    for finding in reproduction.findings.values():
        for figure in finding.section.figures:
            save(figure.drawing, folder / figure.id)
    text = json.dumps(reproduction.to_json(), indent=1, ensure_ascii=False, allow_nan=False)
    (folder / RESULTS).write_text(text + "\n", encoding="utf-8")
    (folder / PAGE).write_text(render(reproduction.page()), encoding="utf-8")


def _known(path: Path) -> dict[str, int]:
    """Return the experiments that a folder's results have, with their numbers of runs."""
    try:
        experiments = json.loads(path.read_text(encoding="utf-8"))["experiments"]
        return {str(name): int(entry["runs"]) for name, entry in experiments.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}
