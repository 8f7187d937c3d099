r"""From scores to probabilities of classes: a slope and an offset for each class, and one temperature.

Scores s of a fit to indicators are near the probabilities of classes, and so is their scale: those of a rare class vary
little. A softmax of the scores alone takes a small score for a small disadvantage, and makes a rare class several times
too probable. So the probabilities are

.. math:: \mathrm{softmax}\big((g \circ s + c)/\tau\big) , \qquad g_k = 1/\sqrt{d\,q_k} ,

with slopes g by the shares q of the d classes, which with two classes, whose scores add up to one, are ones.
The temperature :math:`\tau` and the offsets c minimise the log loss of rows that are scored by weights fitted without
them. In :math:`a = 1/\tau` and :math:`b = c/\tau` it is convex, and at its minimum every class is as frequent as its
mean probability, but for the normal prior of variance 1 on b. The terms of a site are few numbers, so sites can sum
them, and take the same Newton steps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_softmax

from elmesh.typing import FloatArray, IndexArray

__all__ = [
    "LinkRows", "LinkSearch", "best_link", "class_shares", "class_slopes", "linked", "predicted_classes",
    "without_absent",
]  # fmt: skip

#: Least and largest inverse temperature.
INVERSE_TEMPERATURES = (0.25, 64.0)
# A class with a smaller share has none; and the share below which slopes grow no further.
_NONE, _LEAST_SHARE = 1e-10, 1e-3
# How near to one half what is subtracted must not be, if shares are to follow from squares.
_NEAR_HALF = 1e-3
# The largest probability at which a class that is missing in the rows of a task is taken to be absent.
_CHANCE = 0.01
# Most evaluations of the loss, and the decrease in nats at which the search ends.
_MOST, _SETTLED = 30, 1e-6


def class_slopes(counts: FloatArray) -> FloatArray:
    """Return the slope of each class, from the numbers of rows of the classes or their shares.

    Examples
    --------
    >>> class_slopes(np.array([50, 48, 2])).round(2), class_slopes(np.array([90, 10]))
    (array([0.82, 0.83, 4.08]), array([1., 1.]))
    """
    if len(counts) < 3:
        return np.ones(len(counts))
    shares = counts / max(float(np.sum(counts)), 1.0)
    return np.asarray(1.0 / np.sqrt(len(counts) * np.maximum(shares, _LEAST_SHARE)))


def class_shares(squares: FloatArray, subtracted: FloatArray) -> FloatArray:
    """Return the shares of classes, from the mean squares of their indicators less what is subtracted from these.

    A share of q has the mean square q(1 - s)^2 + (1 - q)s^2. If s is one half, that is the same for any q; then s,
    which is the share itself or half of two classes, is returned.

    Examples
    --------
    >>> s, q = np.full(3, 1 / 3), np.array([0.7, 0.3, 0.0])
    >>> class_shares(q * (1 - s) ** 2 + (1 - q) * s**2, s).round(6)
    array([0.7, 0.3, 0. ])
    """
    factor = 1.0 - 2.0 * subtracted
    known = np.abs(factor) > _NEAR_HALF
    found = np.where(known, (squares - subtracted**2) / np.where(known, factor, 1.0), subtracted)
    found = np.maximum(found, 0.0)
    return np.asarray(found / found.sum())


def predicted_classes(present: NDArray[np.bool_], shares: FloatArray, weight: float) -> NDArray[np.bool_]:
    """Return which classes a task predicts: those of its rows, and those that so many rows may lack by chance.

    A class with the common share q is missing among n rows with the probability (1 - q)^n. If that is small, the task
    is taken not to have the class. A task whose rows have one class alone predicts any, as an unknown task does.

    Examples
    --------
    >>> shares = np.array([0.5, 0.3, 0.2])
    >>> for n in (4, 100):
    ...     print(predicted_classes(np.array([True, True, False]), shares, n))
    [ True  True  True]
    [ True  True False]
    """
    if np.count_nonzero(present) == 1:
        return np.ones_like(present)
    return np.asarray(present | ((shares > _NONE) & ((1.0 - shares) ** weight > _CHANCE)))


def linked(scores: FloatArray, link: FloatArray | None) -> FloatArray:
    """Return scores times the slopes, plus the offsets, which are the two rows of a link; None leaves them alone."""
    return scores if link is None else scores * link[0] + link[1]


def without_absent(link: FloatArray, shares: FloatArray, temperature: float) -> FloatArray:
    """Return a link by which classes that have no rows anywhere have hardly any probability.

    They are declared only: no row decides about their offsets.

    Examples
    --------
    >>> without_absent(np.array([[1.0, 1.0, 1.0], [0.2, -0.2, 0.0]]), np.array([0.6, 0.4, 0.0]), 0.5).round(1)
    array([[  1. ,   1. ,   1. ],
           [  0.2,  -0.2, -11.5]])
    """
    return np.stack([link[0], np.where(shares <= _NONE, temperature * np.log(_NONE), link[1])])


@dataclass(frozen=True, eq=False)
class LinkRows:
    """Rows of a task, scored without themselves.

    Parameters
    ----------
    scores : ndarray of shape (n, k)
        Scores of the classes that the task predicts.
    truth : ndarray of int of shape (n,)
        The column of each row's class.
    weights : ndarray of shape (n,)
        How often each row counts.
    columns : ndarray of int of shape (k,)
        The places of these classes among all.
    """

    scores: FloatArray
    truth: IndexArray
    weights: FloatArray
    columns: IndexArray

    def counts(self, n_classes: int) -> FloatArray:
        """Return the number of rows of each class."""
        return np.asarray(np.bincount(self.columns[self.truth], self.weights, minlength=n_classes), dtype=np.float64)

    def terms(self, slope: FloatArray, x: FloatArray) -> FloatArray:
        """Return the log loss at (a, b), its gradient, and the upper triangle of its second derivatives."""
        a, b, w, n = x[0], x[1:][self.columns], self.weights, len(self.scores)
        Z = self.scores * slope[self.columns]
        logs = log_softmax(a * Z + b, axis=1)
        P, rows = np.exp(logs), np.arange(n)
        excess = P.copy()
        excess[rows, self.truth] -= 1.0
        mean = np.sum(P * Z, axis=1)
        wP = w[:, None] * P
        gradient, hessian = np.zeros(len(x)), np.zeros((len(x), len(x)))
        at = 1 + self.columns
        gradient[0], gradient[at] = np.sum(w * np.sum(excess * Z, axis=1)), w @ excess
        hessian[0, 0] = np.sum(w * (np.sum(P * Z**2, axis=1) - mean**2))
        hessian[0, at] = np.sum(wP * (Z - mean[:, None]), axis=0)
        hessian[np.ix_(at, at)] = np.diag(wP.sum(axis=0)) - wP.T @ P
        loss = -float(w @ logs[rows, self.truth])
        return np.concatenate([[loss], gradient, hessian[np.triu_indices(len(x))]])


def _step_within(gradient: FloatArray, hessian: FloatArray, a: float) -> FloatArray:
    """Return the step to the minimum of the second-order model whose inverse temperature is within its limits.

    Where all rows are nearly certain, the loss is a straight line in the inverse temperature, which then goes to a
    limit.
    """
    of_offsets, of_a = (np.linalg.solve(hessian[1:, 1:], -column) for column in (gradient[1:], hessian[1:, 0]))
    # The model along the inverse temperature, with offsets at their best.
    slope, curvature = gradient[0] + hessian[0, 1:] @ of_offsets, hessian[0, 0] + hessian[0, 1:] @ of_a
    low, high = (limit - a for limit in INVERSE_TEMPERATURES)
    if curvature * (high - low) > abs(slope) * _NONE:
        change = min(max(-slope / curvature, low), high)
    else:
        end = low if slope > 0 else high
        change = end if -slope * end > _SETTLED else 0.0
    return np.concatenate([[change], of_offsets + change * of_a])


class LinkSearch:
    """Newton's method on the sum of the terms of all tasks.

    ``x`` is where terms are wanted next, until ``done``; ``advance`` takes their sum. The inverse temperature stays
    within limits, and a step that raises the loss is halved.
    """

    def __init__(self, n_classes: int, temperature: float = 0.5) -> None:
        self.x, self.done = np.zeros(1 + n_classes), False
        self.x[0] = 1.0 / temperature
        self._best, self._value, self._left = self.x, np.inf, _MOST

    @staticmethod
    def size(n_classes: int) -> int:
        """Return the number of terms of a task."""
        return 1 + (1 + n_classes) + (1 + n_classes) * (2 + n_classes) // 2

    def advance(self, total: FloatArray) -> None:
        """Take the sum of the terms at ``x``."""
        n = len(self.x)
        # Summed without rounding, so that all agents compare the same numbers and end at the same time.
        value = math.fsum([float(total[0]), *(0.5 * self.x[1:] ** 2).tolist()])
        self._left -= 1
        if not value <= self._value:
            self.x, self.done = (self.x + self._best) / 2, self._left <= 0
            return
        self.done = self._left <= 0 or self._value - value <= _SETTLED
        self._best, self._value = self.x, value
        gradient, hessian = total[1 : 1 + n].copy(), np.zeros((n, n))
        hessian[np.triu_indices(n)] = total[1 + n :]
        hessian = np.triu(hessian, 1).T + hessian
        gradient[1:] += self.x[1:]
        hessian[1:, 1:] += np.eye(n - 1)
        self.x = self.x + _step_within(gradient, hessian, self.x[0])
        self.x[0] = min(max(self.x[0], INVERSE_TEMPERATURES[0]), INVERSE_TEMPERATURES[1])

    @property
    def found(self) -> tuple[float, FloatArray]:
        """The best temperature and offsets so far."""
        temperature = 1.0 / float(self._best[0])
        return temperature, temperature * self._best[1:]


def best_link(rows: LinkRows, shares: FloatArray, temperature: float) -> tuple[float, FloatArray]:
    """Return the temperature, slopes and offsets of one task alone; ``shares`` are those of the classes it lacks."""
    counts, n_classes = rows.counts(len(shares)), len(shares)
    slope = class_slopes(np.where(counts > 0, counts / counts.sum(), shares))
    search = LinkSearch(n_classes, temperature)
    while not search.done:
        search.advance(rows.terms(slope, search.x))
    temperature, offset = search.found
    return temperature, np.stack([slope, offset])
