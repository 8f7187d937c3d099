"""Trials, and the log file of their results.

A trial is one random draw of one case of an experiment. Every finished trial is a line of the log, so that what was
interrupted continues where it stopped. A log of another experiment, or another version of the software, is refused.
"""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from elmesh.errors import ElmeshError
from elmesh.files import atomic_write

__all__ = ["Numbers", "OtherTrialsError", "Trial", "TrialLog", "code_fingerprint", "software_versions"]

Numbers = dict[str, Any]

# Code that presents, requests, runs or saves trials does not change their numbers.
_NOT_FINGERPRINTED = (
    "cli", "report", "tables", "files.py", "trial_log.py", "paper/analysis", "paper/reproduction.py", "paper/trials.py",
)  # fmt: skip


class OtherTrialsError(ElmeshError):
    """A log has trials that must not be combined with new ones."""


@dataclass(frozen=True)
class Trial:
    """One run (counted from 0) of one case of an experiment, such as a data set, with its random seed."""

    experiment: str
    case: str
    run: int
    seed: int


class TrialLog:
    """Finished trials on disk: a header line, then one line of JSON per trial.

    The file is created if it does not exist, and with ``fresh`` it is started again. A log of another seed, of another
    version of the software, or of anything else that ``about`` names, is refused, because its numbers must not be
    combined with new ones.
    """

    def __init__(
        self,
        path: Path,
        seed: int,
        about: Mapping[str, Any] | None = None,
        *,
        fresh: bool = False,
        fingerprint: str | None = None,
    ) -> None:
        self._path = path
        header = {
            "elmesh": fingerprint or code_fingerprint(),
            "versions": software_versions(),
            "seed": seed,
            **(about or {}),
        }
        self._done: dict[Trial, Numbers] = {}
        if path.exists() and not fresh:
            first, *rest = path.read_text(encoding="utf-8").splitlines() or [""]
            self._check_header(_parse_header(first), header)
            # A line that a crash cut short is dropped, so its trial runs again.
            self._done = dict(filter(None, map(_parse_trial, rest)))
        lines = [json.dumps(header), *(_trial_line(trial, numbers) for trial, numbers in self._done.items())]
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic_write(path, "".join(f"{line}\n" for line in lines).encode())

    def _check_header(self, found: Numbers, expected: Numbers) -> None:
        remedy = "choose another folder, or use --force to start again"
        if set(found) != set(expected):
            raise OtherTrialsError(f"{self._path} has no valid header of a trial log; {remedy}.")
        names = {"elmesh": "version of elmesh", "versions": "version of NumPy, SciPy or scikit-learn"}
        for key, value in expected.items():
            if found[key] != value:
                raise OtherTrialsError(f"{self._path} contains trials of another {names.get(key, key)}; {remedy}.")

    def __contains__(self, trial: Trial) -> bool:
        return trial in self._done

    def __getitem__(self, trial: Trial) -> Numbers:
        return self._done[trial]

    def __setitem__(self, trial: Trial, numbers: Numbers) -> None:
        line = _trial_line(trial, numbers)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")
        # Parsed again, so that a resumed evaluation uses exactly the same numbers.
        self._done[trial] = json.loads(line)["numbers"]


def _trial_line(trial: Trial, numbers: Numbers) -> str:
    return json.dumps({"trial": asdict(trial), "numbers": numbers})


def _parse_header(line: str) -> Numbers:
    try:
        return dict(json.loads(line))
    except (TypeError, ValueError):
        return {}


def _parse_trial(line: str) -> tuple[Trial, Numbers] | None:
    try:
        entry = json.loads(line)
        return Trial(**entry["trial"]), dict(entry["numbers"])
    except (KeyError, TypeError, ValueError):
        return None


def software_versions() -> dict[str, str]:
    """Return the versions of Python and of the numerical libraries."""
    return {"python": platform.python_version()} | {name: version(name) for name in ("numpy", "scipy", "scikit-learn")}


def code_fingerprint(package: Path = Path(__file__).parent) -> str:
    """Return a digest of the code that computes numbers, so that trials of different code are not combined."""
    skipped = [package / name for name in _NOT_FINGERPRINTED]
    digest = hashlib.sha256()
    for file in sorted(package.rglob("*.py")):
        if not any(file.is_relative_to(path) for path in skipped):
            digest.update(file.read_bytes())
    return digest.hexdigest()[:16]
