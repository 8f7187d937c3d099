"""Estimates from repeated runs, and the form of an analysis, whose words are in ``texts.toml``.

All methods run on the same draws, so differences are paired.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from scipy.stats import t as student

from elmesh.report import Section
from elmesh.trial_log import Numbers
from elmesh.typing import FloatArray

__all__ = ["PACKAGE", "Analysis", "Estimate", "Results", "difference", "estimate", "values"]

#: The package whose ``texts.toml`` has the words of the report.
PACKAGE = "elmesh.paper.analysis"
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

    @property
    def signed(self) -> str:
        """The estimate of a difference, with its sign."""
        return f"{self.mean:+.2f}" + (f" ± {self.half_width:.2f}" if self.runs > 1 else "")

    def __str__(self) -> str:
        return self.signed.removeprefix("+")

    def to_json(self) -> dict[str, Any]:
        """Return the entry of results.json."""
        return asdict(self)


def values(runs: Iterable[Numbers], *keys: str | int) -> list[Any]:
    """Return the value under nested keys or indices, one per run.

    >>> values([{"DNSP": {"error": 3.0}}, {"DNSP": {"error": 4.0}}], "DNSP", "error")
    [3.0, 4.0]
    """
    found: list[Any] = list(runs)
    for key in keys:
        found = [item[key] for item in found]
    return found


def estimate(runs: Iterable[Numbers], *keys: str | int) -> Estimate:
    """Estimate the value under nested keys."""
    return Estimate.of(values(runs, *keys))


def difference(a: Sequence[float] | FloatArray, b: Sequence[float] | FloatArray) -> Estimate:
    """Estimate a - b from paired runs."""
    return Estimate.of([x - y for x, y in zip(a, b, strict=True)])
