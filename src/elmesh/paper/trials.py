"""Trials and the log file of their results.

A trial is one random draw of one case of an experiment. Its numbers depend on its seed alone. Every finished trial is a
line of the log, so that an interrupted evaluation continues where it stopped.
"""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

import elmesh
from elmesh.errors import ElmeshError
from elmesh.files import atomic_write

__all__ = ["Numbers", "Trial", "TrialLog", "TrialResults", "code_fingerprint", "make_trials", "software_versions"]

Numbers = dict[str, Any]

# Code that presents, requests, runs or saves trials does not change their numbers.
_NOT_FINGERPRINTED = (
    "cli", "report", "tables", "files.py", "paper/analysis", "paper/experiments.py", "paper/parallel.py",
    "paper/reproduction.py", "paper/trials.py",
)  # fmt: skip


@dataclass(frozen=True)
class Trial:
    """One run (counted from 0) of one case of an experiment, such as a data set, with its random seed."""

    experiment: str
    case: str
    run: int
    seed: int


@dataclass(frozen=True)
class TrialResults:
    """Finished trials with their numbers, in order."""

    done: Sequence[tuple[Trial, Numbers]]

    @property
    def cases(self) -> list[str]:
        """The cases, in the order of their first trials."""
        return list(dict.fromkeys(trial.case for trial, _ in self.done))

    def of(self, case: str) -> list[Numbers]:
        """Return the numbers of one case, one entry per run."""
        return [numbers for trial, numbers in self.done if trial.case == case]


def make_trials(experiment: str, cases: Sequence[str], runs: int, seed: int) -> list[Trial]:
    """Return every case in every run, run by run; all cases of a run have the same seed."""
    seeds = [int(np.random.SeedSequence((seed, run)).generate_state(1)[0]) for run in range(runs)]
    return [Trial(experiment, case, run, run_seed) for run, run_seed in enumerate(seeds) for case in cases]


class TrialLog:
    """Finished trials on disk: a header line, then one line of JSON per trial.

    The file is created if it does not exist, and with ``fresh`` it is started again. A log of another seed or of
    another version of the software is refused, because its numbers must not be combined with new ones.
    """

    def __init__(self, path: Path, seed: int, *, fresh: bool = False, fingerprint: str | None = None) -> None:
        self._path = path
        header = {"elmesh": fingerprint or code_fingerprint(), "versions": software_versions(), "seed": seed}
        self._done: dict[Trial, Numbers] = {}
        if path.exists() and not fresh:
            first, *rest = path.read_text(encoding="utf-8").splitlines() or [""]
            self._check_header(_parse(first), header)
            # A line that a crash cut short is dropped, so its trial runs again.
            self._done = dict(filter(None, map(_parse_trial, rest)))
        lines = [json.dumps(header), *(_trial_line(trial, numbers) for trial, numbers in self._done.items())]
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic_write(path, "".join(f"{line}\n" for line in lines).encode())

    def _check_header(self, found: Numbers, expected: Numbers) -> None:
        remedy = "choose another folder, or use --force to start again"
        if set(found) != set(expected):
            raise ElmeshError(f"{self._path} has no valid header of a trial log; {remedy}.")
        names = {"elmesh": "version of elmesh", "versions": "version of NumPy, SciPy or scikit-learn", "seed": "seed"}
        for key, name in names.items():
            if found[key] != expected[key]:
                raise ElmeshError(f"{self._path} contains trials of another {name}; {remedy}.")

    def __contains__(self, trial: Trial) -> bool:
        return trial in self._done

    def __getitem__(self, trial: Trial) -> Numbers:
        return self._done[trial]

    def add(self, trial: Trial, numbers: Numbers) -> None:
        """Append a finished trial."""
        line = _trial_line(trial, numbers)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")
        # Parsed again, so that a resumed evaluation uses exactly the same numbers.
        self._done[trial] = json.loads(line)["numbers"]


def _trial_line(trial: Trial, numbers: Numbers) -> str:
    return json.dumps({"trial": asdict(trial), "numbers": numbers})


def _parse(line: str) -> Numbers:
    try:
        value = json.loads(line)
    except json.JSONDecodeError:
        return {}
    return value if isinstance(value, dict) else {}


def _parse_trial(line: str) -> tuple[Trial, Numbers] | None:
    try:
        entry = _parse(line)
        return Trial(**entry["trial"]), dict(entry["numbers"])
    except (KeyError, TypeError, ValueError):
        return None


def software_versions() -> dict[str, str]:
    """Return the versions of Python and of the numerical libraries."""
    return {"python": platform.python_version()} | {name: version(name) for name in ("numpy", "scipy", "scikit-learn")}


def code_fingerprint(package: Path = Path(elmesh.__file__).parent) -> str:
    """Return a digest of the code that computes numbers, so that trials of different code are not combined."""
    skipped = [package / name for name in _NOT_FINGERPRINTED]
    digest = hashlib.sha256()
    for file in sorted(package.rglob("*.py")):
        if not any(file.is_relative_to(path) for path in skipped):
            digest.update(file.read_bytes())
    return digest.hexdigest()[:16]
