r"""Evidence for the variances of the common part, from totals over all sites.

With whitened rows (:mod:`elmesh.math.random_effects`) the totals are :math:`Q = \sum_t w_t\Phi_t'K_t^{-1}\Phi_t`,
:math:`b = \sum_t w_t\Phi_t'K_t^{-1}T_t` and :math:`\theta_c = \sum_t w_t T_{tc}'K_t^{-1}T_{tc}`. Common weights have
prior variance :math:`c_g` in group g, in units of the noise, and

.. math::
    S = (1/c + Q)^{-1}, \qquad W = Sb, \qquad q_c = \theta_c - b_c'Sb_c, \qquad \sigma_c^2 = q_c/N , \\
    -2\log\text{evidence} = \sum_c N\log q_c + d\,\bigl(\textstyle\sum_i\log c_i - \log|S|\bigr) + \text{const} .

It needs no more than the totals, so every site finds the same maximum by itself.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.linalg
import scipy.optimize

from elmesh.typing import FloatArray, IndexArray

__all__ = [
    "HYPERPRIOR",
    "Totals",
    "as_probable",
    "common_draws",
    "common_part",
    "maximize_evidence",
    "negative_evidence",
    "spread_rows",
    "spread_square",
]

#: Precision of the hyperprior on log-variances: nearly flat (standard deviation 30), so that a direction in which the
#: evidence does not change stays where it is.
HYPERPRIOR = 1.0 / 900.0
_LOG_BOUND = 25.0
# Least q, as a share of the squares of the targets.
_LEAST_SHARE = 1e-12
# By how much -2 log evidence may differ at two maxima of agents that round differently, and by how much for each row.
_LEVEL, _LEVEL_PER_ROW = 1.0, 1e-3
# Steps of the search end when the evidence changes by this many times the precision of doubles, or are this many.
_FACTR, _MOST_STEPS = 1e7, 60


@dataclass(frozen=True, eq=False)
class Totals:
    """Sums over all sites: Q (p, p), b (p, d), the targets' squares (d,), and the number of rows."""

    Q: FloatArray
    b: FloatArray
    squares: FloatArray
    rows: float


def maximize_evidence(
    totals: Totals, groups: IndexArray, log_c: FloatArray, free: IndexArray, factr: float = _FACTR
) -> FloatArray:
    """Return the logarithms of the common variances at which the evidence is largest; only ``free`` groups change.

    The search ends when the evidence changes by ``factr`` times the precision of doubles, as a share of itself.
    """
    if len(free) == 0:
        return log_c

    def at(x: FloatArray) -> FloatArray:
        full = log_c.copy()
        full[free] = x
        return full

    def loss(x: FloatArray) -> tuple[float, FloatArray]:
        value, gradient = negative_evidence(totals, groups, at(x))
        return value + HYPERPRIOR * float(x @ x), gradient[free] + 2 * HYPERPRIOR * x

    best, _, _ = scipy.optimize.fmin_l_bfgs_b(
        loss, log_c[free], bounds=[(-_LOG_BOUND, _LOG_BOUND)] * len(free), factr=factr, maxiter=_MOST_STEPS
    )
    return at(np.asarray(best, dtype=np.float64))


def as_probable(totals: Totals, groups: IndexArray, own: FloatArray, other: FloatArray) -> bool:
    """Return whether other common variances make the totals about as probable as an agent's own maximum does.

    Where a direction hardly changes the evidence, or the targets have no noise, rounding decides where the maximum is.
    """
    if not np.all(np.abs(other[other != own]) <= _LOG_BOUND):
        return False
    values = []
    for log_c in (own, other):
        value, _ = negative_evidence(totals, groups, log_c)
        values.append(value + HYPERPRIOR * float(log_c @ log_c))
    return bool(values[1] <= values[0] + _LEVEL + _LEVEL_PER_ROW * totals.rows)


def negative_evidence(totals: Totals, groups: IndexArray, log_c: FloatArray) -> tuple[float, FloatArray]:
    """Return -2 log evidence, up to a constant, and its derivatives in the groups' log c."""
    c, d, N = np.exp(log_c)[groups], totals.b.shape[1], totals.rows
    L = _cholesky(totals, c)
    W, q = _mean(totals, L)
    half = scipy.linalg.lapack.dtrtri(L, lower=1)[0]
    value = N * float(np.sum(np.log(q))) + d * float(np.sum(np.log(c)) + 2 * np.sum(np.log(np.diag(L))))
    by_feature = d * (1.0 - np.sum(half**2, axis=0) / c) - np.sum(W**2 * (N / q), axis=1) / c
    return value, np.bincount(groups, by_feature, minlength=len(log_c)).astype(np.float64)


def common_part(totals: Totals, groups: IndexArray, log_c: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return the posterior mean W, its covariance S in units of the noise, and the variance of the noise."""
    L = _cholesky(totals, np.exp(log_c)[groups])
    W, q = _mean(totals, L)
    half = scipy.linalg.lapack.dtrtri(L, lower=1)[0]
    # One memory layout before and after a checkpoint, as BLAS rounds differently by layout.
    return np.ascontiguousarray(W), np.ascontiguousarray(half.T @ half), q / totals.rows


def common_draws(totals: Totals, groups: IndexArray, log_c: FloatArray, noise: FloatArray) -> FloatArray:
    """Return draws of W about its mean, in units of the noise, from independent draws (p, k) of variance one."""
    L = _cholesky(totals, np.exp(log_c)[groups])
    return np.asarray(scipy.linalg.solve_triangular(L, noise, lower=True, trans=1, check_finite=False))


def spread_rows(X: FloatArray, features: IndexArray | None, p: int) -> FloatArray:
    """Return rows of some features among those of all p features, the others being zero."""
    if features is None:
        return X
    whole = np.zeros((p, X.shape[1]))
    whole[features] = X
    return whole


def spread_square(S: FloatArray, features: IndexArray | None, p: int) -> FloatArray:
    """Return a square matrix of some features as one of all p features, the rest being zero."""
    return S if features is None else spread_rows(spread_rows(S, features, p).T, features, p)


def _cholesky(totals: Totals, c: FloatArray) -> FloatArray:
    return np.asarray(scipy.linalg.cholesky(totals.Q + np.diag(1.0 / c), lower=True, check_finite=False))


def _mean(totals: Totals, L: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return W, and q of each column; targets without noise keep a tiny share of their squares.

    A column of zeros has no unit: its noise is a tiny share of one.
    """
    W = scipy.linalg.cho_solve((L, True), totals.b, check_finite=False)
    least = _LEAST_SHARE * np.where(totals.squares > 0, totals.squares, totals.rows)
    return W, np.maximum(totals.squares - np.sum(totals.b * W, axis=0), least)
