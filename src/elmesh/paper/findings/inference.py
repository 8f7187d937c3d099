"""From repeated measurements to an estimate, and from an estimate to a verdict.

Methods are compared on the same draws, so differences are paired. A verdict is given where a 95 % interval decides,
and withheld where it does not.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.stats import t as student

from elmesh.report import Verdict

__all__ = ["Estimate", "below", "close", "counted", "difference", "not_above", "worst"]


@dataclass(frozen=True)
class Estimate:
    """Mean and standard deviation of a number over runs.

    Examples
    --------
    >>> estimate = Estimate.of([1.0, 2.0, 3.0])
    >>> estimate.mean, estimate.sd, estimate.runs
    (2.0, 1.0, 3)
    >>> str(estimate)
    '2.00 ± 2.48'
    """

    mean: float
    sd: float
    runs: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Estimate:
        """Estimate from one value a run."""
        sd = float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
        return cls(float(np.mean(values)), sd, len(values))

    @property
    def half(self) -> float:
        """Half of the width of the 95 % interval; infinite for a single run, which says nothing about others."""
        if self.runs < 2:
            return math.inf
        return float(student.ppf(0.975, self.runs - 1)) * self.sd / math.sqrt(self.runs)

    @property
    def low(self) -> float:
        """Lower end of the interval."""
        return self.mean - self.half

    @property
    def high(self) -> float:
        """Upper end of the interval."""
        return self.mean + self.half

    def __str__(self) -> str:
        return f"{self.mean:.2f}" if self.runs < 2 else f"{self.mean:.2f} ± {self.half:.2f}"

    @property
    def signed(self) -> str:
        """Say it as a difference, with its sign.

        Examples
        --------
        >>> Estimate(0.25, 0.5, 1).signed
        '+0.25'
        """
        return f"{self.mean:+.2f}" if self.runs < 2 else f"{self.mean:+.2f} ± {self.half:.2f}"

    def to_json(self) -> dict[str, Any]:
        """Return it as results.json has it."""
        return {"mean": self.mean, "sd": self.sd, "runs": self.runs}


def difference(a: Sequence[float], b: Sequence[float]) -> Estimate:
    """Estimate a - b from runs that had the same draws."""
    return Estimate.of([x - y for x, y in zip(a, b, strict=True)])


def below(gap: Estimate) -> Verdict:
    """Judge a statement that a difference is below zero.

    Examples
    --------
    >>> below(Estimate(-1.0, 0.5, 10)).value, below(Estimate(-1.0, 5.0, 10)).value
    ('agrees', 'could not be determined')
    """
    if gap.high < 0:
        return Verdict.AGREES
    return Verdict.DIFFERS if gap.low > 0 else Verdict.UNDETERMINED


def close(found: Estimate, printed: float, within: float) -> Verdict:
    """Judge a statement that a number is what was printed, give or take something.

    Examples
    --------
    >>> close(Estimate(3.6, 0.5, 100), 3.5, 0.8).value, close(Estimate(9.0, 0.5, 100), 3.5, 0.8).value
    ('agrees', 'differs')
    """
    if printed - within <= found.low and found.high <= printed + within:
        return Verdict.AGREES
    return Verdict.DIFFERS if found.low > printed + within or found.high < printed - within else Verdict.UNDETERMINED


def not_above(gap: Estimate, most: float) -> Verdict:
    """Judge a statement that a difference is next to nothing, or in favour.

    Examples
    --------
    >>> not_above(Estimate(0.1, 0.2, 100), 0.25).value
    'agrees'
    """
    return below(Estimate(gap.mean - most, gap.sd, gap.runs))


def counted(yes: int, runs: int) -> Verdict:
    """Judge a statement about every run: it agrees if 95 % bear it out, and differs if fewer than half do.

    Examples
    --------
    >>> [counted(yes, 100).value for yes in (99, 73, 30)]
    ['agrees', 'could not be determined', 'differs']
    """
    if runs < 2:
        return Verdict.UNDETERMINED
    return Verdict.AGREES if yes >= 0.95 * runs else Verdict.DIFFERS if yes < runs / 2 else Verdict.UNDETERMINED


def worst(verdicts: Sequence[Verdict]) -> Verdict:
    """Judge a statement that has several parts: it agrees if all do, and differs if one does."""
    if Verdict.DIFFERS in verdicts:
        return Verdict.DIFFERS
    return Verdict.UNDETERMINED if Verdict.UNDETERMINED in verdicts or not verdicts else Verdict.AGREES
