"""Verdicts on claims. A claim about means needs an interval that decides, a claim about every run a count."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from elmesh.paper.analysis.estimates import Estimate
from elmesh.report import Verdict

__all__ = ["NEGLIGIBLE", "combine", "judge", "judge_below_zero", "judge_count", "judge_not_above", "judge_zero"]

#: A difference of test errors, in points, that counts as negligible.
NEGLIGIBLE = 0.25


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
    return judge_below_zero(replace(estimate, mean=estimate.mean - limit))


def judge_zero(estimate: Estimate, tolerance: float) -> Verdict:
    """Judge the claim that a number is zero: its interval must contain zero, and end within a tolerance of it."""
    if not estimate.low <= 0 <= estimate.high:
        return Verdict.DIFFERS
    return Verdict.AGREES if max(-estimate.low, estimate.high) <= tolerance else Verdict.UNDETERMINED


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
