"""Estimates from repeated runs, verdicts from estimates, and the form of an analysis.

All methods run on the same draws, so differences are paired. A verdict needs a 95 % interval that decides.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.stats import t as student

from elmesh.paper.trials import Numbers
from elmesh.report import Section, Verdict
from elmesh.typing import FloatArray

__all__ = [
    "Analysis", "Estimate", "Results", "combine", "difference", "judge", "judge_below_zero", "judge_close",
    "judge_count", "judge_not_above", "values",
]  # fmt: skip

#: The numbers of all runs by case, such as a data set.
Results = Mapping[str, Sequence[Numbers]]


@dataclass(frozen=True, eq=False)
class Analysis:
    """The result of an experiment: a section of the report, and all numbers as JSON."""

    section: Section
    numbers: dict[str, Any]


@dataclass(frozen=True)
class Estimate:
    """Mean and standard deviation of a number over runs.

    >>> estimate = Estimate.of([1.0, 2.0, 3.0])
    >>> str(estimate), estimate.signed
    ('2.00 ± 2.48', '+2.00 ± 2.48')
    """

    mean: float
    sd: float
    runs: int

    @classmethod
    def of(cls, values: Sequence[float] | FloatArray) -> Estimate:
        """Estimate from one value per run."""
        sd = float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
        return cls(float(np.mean(values)), sd, len(values))

    @property
    def half_width(self) -> float:
        """Half of the width of the 95 % interval; infinite for a single run."""
        if self.runs < 2:
            return math.inf
        return float(student.ppf(0.975, self.runs - 1)) * self.sd / math.sqrt(self.runs)

    @property
    def low(self) -> float:
        """Lower end of the interval."""
        return self.mean - self.half_width

    @property
    def high(self) -> float:
        """Upper end of the interval."""
        return self.mean + self.half_width

    def __str__(self) -> str:
        return f"{self.mean:.2f}" + (f" ± {self.half_width:.2f}" if self.runs > 1 else "")

    @property
    def signed(self) -> str:
        """The estimate of a difference, with its sign."""
        return f"{self.mean:+.2f}" + (f" ± {self.half_width:.2f}" if self.runs > 1 else "")

    def to_json(self) -> dict[str, Any]:
        """Return the entry of results.json."""
        return {"mean": self.mean, "sd": self.sd, "runs": self.runs}


def values(runs: Iterable[Numbers], *keys: str) -> list[Any]:
    """Return the value under nested keys, one per run.

    >>> values([{"DNSP": {"error": 3.0}}, {"DNSP": {"error": 4.0}}], "DNSP", "error")
    [3.0, 4.0]
    """
    found: list[Any] = list(runs)
    for key in keys:
        found = [item[key] for item in found]
    return found


def difference(a: Sequence[float] | FloatArray, b: Sequence[float] | FloatArray) -> Estimate:
    """Estimate a - b from paired runs."""
    return Estimate.of([x - y for x, y in zip(a, b, strict=True)])


def judge(condition: bool) -> Verdict:
    """Judge a claim that does not depend on random draws."""
    return Verdict.AGREES if condition else Verdict.DIFFERS


def judge_below_zero(estimate: Estimate) -> Verdict:
    """Judge the claim that a number is below zero."""
    if estimate.high < 0:
        return Verdict.AGREES
    return Verdict.DIFFERS if estimate.low > 0 else Verdict.UNDETERMINED


def judge_not_above(estimate: Estimate, limit: float) -> Verdict:
    """Judge the claim that a number is below a limit."""
    return judge_below_zero(Estimate(estimate.mean - limit, estimate.sd, estimate.runs))


def judge_close(estimate: Estimate, expected: float, tolerance: float) -> Verdict:
    """Judge the claim that a number has an expected value, within a tolerance."""
    low, high = expected - tolerance, expected + tolerance
    if low <= estimate.low and estimate.high <= high:
        return Verdict.AGREES
    return Verdict.DIFFERS if estimate.low > high or estimate.high < low else Verdict.UNDETERMINED


def judge_count(confirming: int, runs: int) -> Verdict:
    """Judge a claim about every run: it agrees if 95 % of the runs confirm it, and differs if fewer than half do."""
    if runs < 2:
        return Verdict.UNDETERMINED
    if confirming >= 0.95 * runs:
        return Verdict.AGREES
    return Verdict.DIFFERS if confirming < runs / 2 else Verdict.UNDETERMINED


def combine(verdicts: Iterable[Verdict]) -> Verdict:
    """Judge a claim of several parts: it agrees if all parts do, and differs if one does."""
    found = set(verdicts)
    if Verdict.DIFFERS in found:
        return Verdict.DIFFERS
    return Verdict.AGREES if found == {Verdict.AGREES} else Verdict.UNDETERMINED
