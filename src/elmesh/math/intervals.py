r"""Intervals of errors and of their differences, from the losses of rows and from the folds of a cross-validation.

The loss of a row is its squared error, whose mean is shown as its root, or whether its class is wrong.

Folds of a cross-validation have most of their training rows in common, so that their results are not independent and
the usual standard error of their mean is too small. With J results, the variance s2 among them, and n_test and n_train
rows in each, the corrected one is :math:`\sqrt{(1/J + n_{test}/n_{train})\,s^2}` (Nadeau and Bengio, 2003; for repeated
cross-validation Bouckaert and Frank, 2004), and the interval that of Student's t with J - 1 degrees of freedom.
"""

from __future__ import annotations

import numpy as np
from scipy.stats import norm
from scipy.stats import t as student

from elmesh.typing import FloatArray

__all__ = ["COVERAGE", "corrected_standard_error", "error_interval", "half_width", "paired_change"]

#: Probability that an interval contains what it is about.
COVERAGE = 0.95


def half_width(standard_error: float, n: float) -> float:
    """Return half of the interval of a mean of n values by Student's t; infinite for a single value."""
    return float(student.ppf(0.5 + COVERAGE / 2, n - 1)) * standard_error if n > 1 else np.inf


def corrected_standard_error(results: FloatArray, ratio: float) -> float:
    """Return the standard error of the mean over folds, given the test rows of a fold per training row.

    Examples
    --------
    >>> round(corrected_standard_error(np.array([1.0, 2.0, 3.0, 2.0]), 0.25), 4)
    0.5774
    """
    return float(np.sqrt((1 / len(results) + ratio) * np.var(results, ddof=1)))


def error_interval(losses: FloatArray, *, squared: bool) -> tuple[float, float]:
    """Return the interval of a root mean square, or of a share of wrong rows (Wilson's)."""
    n, mean = len(losses), float(np.mean(losses))
    if squared:
        half = half_width(float(np.std(losses, ddof=1)) / np.sqrt(n), n) if n > 1 else np.inf
        return float(np.sqrt(max(mean - half, 0.0))), float(np.sqrt(mean + half))
    z = float(norm.ppf(0.5 + COVERAGE / 2))
    middle = (mean + z**2 / (2 * n)) / (1 + z**2 / n)
    half = z / (1 + z**2 / n) * np.sqrt(mean * (1 - mean) / n + z**2 / (4 * n**2))
    return max(middle - half, 0.0), min(middle + half, 1.0)


def paired_change(
    before: FloatArray, after: FloatArray, *, squared: bool, weights: FloatArray | None = None
) -> tuple[float, float]:
    """Return the change of an error between two ways to predict the same rows, and half of its interval.

    With ``weights`` rows count so many times.
    """
    w = np.ones(len(before)) if weights is None else weights
    n, errors = float(w.sum()), [float(np.average(losses, weights=w)) for losses in (before, after)]
    difference = errors[1] - errors[0]
    if squared:
        errors = [float(np.sqrt(error)) for error in errors]
    half = np.inf
    if n > 1:
        deviation = float(np.sqrt(np.average((after - before - difference) ** 2, weights=w) / (n - 1)))
        # From mean squares to their roots.
        half = half_width(deviation / max(sum(errors), np.finfo(float).tiny) if squared else deviation, n)
        if not squared:
            # If no row of n differs, up to three in n may (the rule of three).
            half = max(half, 3.0 / n)
    return errors[1] - errors[0], half
