r"""Random effects: what a site's own weights take from its rows, and how likely that makes its targets.

A site's rows have features :math:`\Phi_t` in groups (the constant, the inputs, hidden units), and its own weights
:math:`V_t` have variance :math:`v_g` in group g, in units of the site's noise. So the targets around
:math:`\Phi_t W` have covariance :math:`\sigma_t^2 K_t` with

.. math:: K_t = I + \sum_g v_g B_{tg}, \qquad B_{tg} = \Phi_{tg}\Phi_{tg}' ,

and minimised over :math:`V_t` the fit is that of rows whitened by :math:`K_t^{-1/2}`. All of this is local to a site.
With the common weights uncertain, :math:`W \sim N(\bar W, \sigma^2 S)`, a site's expected -2 log likelihood is

.. math::
    \sum_c \bigl\{N_t\log\sigma_{tc}^2 + \log|K_t| + a_{tc}/\sigma_{tc}^2\bigr\}, \qquad
    a_{tc} = r_c'K_t^{-1}r_c + \sigma_c^2\,\mathrm{tr}(S\,\Phi_t'K_t^{-1}\Phi_t), \quad r = T_t - \Phi_t\bar W ,

with the site's own noise :math:`\sigma_{tc}^2 = \sigma_c^2/w_t`. Its log-weight has a normal prior of variance
:math:`\tau^2` and is at its best for given variances.

Sites are stacked, padded with zero rows, which change nothing. The padded size follows from a site's own number of rows
alone, so that its numbers do not depend on which sites it is stacked with.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

from elmesh.data.statistics import Task
from elmesh.typing import FloatArray, IndexArray

__all__ = [
    "Likelihood",
    "SiteBatch",
    "expected_likelihood",
    "padded_size",
    "site_batches",
    "site_evidence",
    "whiten",
]

# Matrices of at least this many rows are factorised one by one, which costs half as much as NumPy's stacked inverse.
_LARGE = 24
# Numbers per stack of sites, so that it fits the cache.
_BATCH = 1 << 20
# Newton steps for the weights of sites, and the change at which they end.
_WEIGHT_STEPS, _WEIGHT_CHANGE = 60, 1e-12


@dataclass(frozen=True, eq=False)
class SiteBatch:
    """Sites with the same padded number of rows n.

    Parameters
    ----------
    index : ndarray of int of shape (m,)
        Their places among all sites.
    Phi : ndarray of shape (m, n, p)
        Features.
    T : ndarray of shape (m, n, d)
        Targets.
    rest : ndarray of shape (m, d)
        Squared norms of the parts of the targets that no features explain.
    rows : ndarray of shape (m,)
        Numbers of rows before reduction and padding.
    groups : ndarray of int of shape (p,)
        The group of each feature, from 0.
    """

    index: IndexArray
    Phi: FloatArray
    T: FloatArray
    rest: FloatArray
    rows: FloatArray
    groups: IndexArray

    @cached_property
    def B(self) -> FloatArray:
        """The products of features of each group, of shape (m, G, n, n)."""
        parts = [self.Phi[..., self.groups == g] for g in range(int(self.groups.max()) + 1)]
        return np.stack([part @ part.mT for part in parts], axis=1)

    @cached_property
    def squares(self) -> FloatArray:
        """Squared norms of the targets, of shape (m, d)."""
        return np.asarray(np.sum(self.T**2, axis=-2) + self.rest)

    def covariance(self, v: FloatArray) -> FloatArray:
        """Return K of each site; v is of shape (G,), or (m, G) where each site has its own."""
        m, G, n, _ = self.B.shape
        K = (np.broadcast_to(v, (m, G))[:, None] @ self.B.reshape(m, G, n * n)).reshape(m, n, n)
        K[:, np.arange(n), np.arange(n)] += 1.0
        return np.asarray(K)


def padded_size(n: int) -> int:
    """Return the number of rows that a site of n rows is padded to: at most an eighth more.

    Examples
    --------
    >>> [padded_size(n) for n in (1, 7, 17, 100)]
    [1, 7, 18, 104]
    """
    step = max(1, 1 << max(n.bit_length() - 4, 0))
    return max(1, -(-n // step) * step)


def site_batches(task: Task, groups: IndexArray) -> list[SiteBatch]:
    """Return stacked tasks as sites in batches; rows are diag(s) V', which have the Gram matrix of all rows."""
    used = np.count_nonzero(task.s, axis=-1).tolist()
    sizes: dict[int, list[int]] = {}
    for t, n in enumerate(used):
        sizes.setdefault(padded_size(n), []).append(t)
    p, d = task.V.shape[-2], task.Y.shape[-1]
    rest = np.zeros((len(used), d)) if task.column_rest is None else task.column_rest
    batches = []
    for n, sites in sorted(sizes.items()):
        most = max(1, _BATCH // (n * max(n, p)))
        for start in range(0, len(sites), most):
            part = sites[start : start + most]
            Phi, T = np.zeros((len(part), n, p)), np.zeros((len(part), n, d))
            for k, t in enumerate(part):
                q = used[t]
                Phi[k, :q] = task.s[t, :q, None] * task.V[t, :, :q].T
                T[k, :q] = task.Y[t, :q]
            index = np.array(part, dtype=np.intp)
            batches.append(SiteBatch(index, Phi, T, rest[index], task.rows[index], groups))
    return batches


def whiten(batch: SiteBatch, v: FloatArray, *blocks: FloatArray) -> tuple[list[FloatArray], FloatArray]:
    """Return blocks of rows multiplied by the inverse Cholesky factor of K, and each site's log |K|."""
    L = np.linalg.cholesky(batch.covariance(v))
    widths = np.cumsum([block.shape[-1] for block in blocks])[:-1]
    X = np.concatenate(blocks, axis=-1)
    for k in range(len(X)):
        X[k] = scipy.linalg.solve_triangular(L[k], X[k], lower=True, check_finite=False)
    return np.split(X, widths, axis=-1), _log_determinant(L)


@dataclass(frozen=True, eq=False)
class Likelihood:
    """Expected -2 log likelihood of each site, its derivatives in log v and log sigma^2, and the sites' log-weights.

    ``value`` and ``log_weights`` are of shape (m,), ``gradient`` (m, G + d); ``hessian`` (m, G + d, G + d) approximates
    the second derivatives by the average information.
    """

    value: FloatArray
    gradient: FloatArray
    hessian: FloatArray
    log_weights: FloatArray


def expected_likelihood(
    batch: SiteBatch,
    R: FloatArray,
    M: FloatArray,
    v: FloatArray,
    s2: FloatArray,
    s2_prior: FloatArray,
    tau2: float,
    floor: FloatArray | float = 0.0,
) -> Likelihood:
    """Return the expected likelihood of each site of a batch.

    Parameters
    ----------
    batch : SiteBatch
        The sites.
    R : ndarray of shape (m, n, d)
        Residuals at the mean of W.
    M : ndarray of shape (m, n, n)
        Covariances of the common part of the rows, Phi S Phi'.
    v, s2 : ndarray of shape (G,), (d,)
        Variances of the private part in units of the noise, and of the noise.
    s2_prior : ndarray of shape (d,)
        The variance of noise in whose units S is.
    tau2 : float
        Prior variance of log-weights; 0 for sites with equal noise.
    floor : ndarray of shape (d,) or float
        Variance of noise that is added per row.
    """
    (m, G, n, _), d, rows = batch.B.shape, len(s2), batch.rows
    inverse, log_determinant = _inverse(batch.covariance(v))
    u, KM = inverse @ R, inverse @ M
    a = (
        np.sum(R * u, axis=-2)
        + batch.rest
        + rows[:, None] * floor
        + np.trace(KM, axis1=-2, axis2=-1)[:, None] * s2_prior
    )
    total = np.sum(a / s2, axis=-1)
    x = _best_log_weights(total, d * rows, tau2)
    w = np.exp(x)
    prior = x**2 / tau2 if tau2 > 0 else np.zeros(m)
    value = rows * (np.sum(np.log(s2)) - d * x) + d * log_determinant + w * total + prior

    # Derivatives in log v of log |K|, of the trace and of r'K^-1 r, per site and group (and column).
    B, KMK = batch.B.reshape(m, G, n * n), KM @ inverse
    of_determinant, of_trace = (v * (B @ X.reshape(m, n * n, 1))[..., 0] for X in (inverse, KMK))
    Bu = v[:, None, None] * (batch.B @ u[:, None])
    of_residual = np.sum(Bu * u[:, None], axis=-2)
    fall = w[:, None, None] * (of_residual / s2 + of_trace[..., None] * (s2_prior / s2))
    spread = w[:, None] * a / s2
    gradient = np.concatenate([d * of_determinant - fall.sum(axis=-1), rows[:, None] - spread], axis=-1)

    # The average information in log v, expected over W: its part at the mean of W, and a trace.
    vB = v[:, None, None] * batch.B
    left, right = KMK[:, None] @ vB, inverse[:, None] @ vB
    of_traces = left.reshape(m, G, n * n) @ right.mT.reshape(m, G, n * n).mT
    hessian = np.zeros((m, G + d, G + d))
    hessian[:, :G, :G] = (w * np.sum(s2_prior / s2))[:, None, None] * (of_traces + of_traces.mT) / 2
    for c in range(d):
        Z = Bu[..., c]
        hessian[:, :G, :G] += (w / s2[c])[:, None, None] * (Z @ inverse @ Z.mT)
    hessian[:, :G, G:] = fall
    hessian[:, G:, :G] = fall.mT
    hessian[:, np.arange(G, G + d), np.arange(G, G + d)] = spread
    return Likelihood(value, gradient, hessian, x)


def site_evidence(batch: SiteBatch, log_v: FloatArray, floor: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    r"""Return -2 log evidence of each site for weights of its own alone, its gradient and approximate Hessian in log v.

    With the noise profiled out it is :math:`\sum_c N_t\log q_c + d\log|K_t|`, :math:`q_c = T_c'K_t^{-1}T_c`, up to a
    constant. ``log_v`` is of shape (m, G); ``floor`` (m, d) is added to q. A column of zeros says nothing: it does not
    count, so that a site with fewer columns than others of its stack finds what it finds alone.
    """
    (m, G, n, _), v = batch.B.shape, np.exp(log_v)
    d = np.count_nonzero(batch.squares > 0, axis=-1)
    inverse, log_determinant = _inverse(batch.covariance(v))
    u = inverse @ batch.T
    q = np.where(batch.squares > 0, np.sum(batch.T * u, axis=-2) + batch.rest + floor, 1.0)
    value = batch.rows * np.sum(np.log(q), axis=-1) + d * log_determinant
    share = batch.rows[:, None] / q
    of_determinant = v * (batch.B.reshape(m, G, n * n) @ inverse.reshape(m, n * n, 1))[..., 0]
    Bu = v[..., None, None] * (batch.B @ u[:, None])
    of_residual = np.sum(Bu * u[:, None], axis=-2)
    gradient = d[:, None] * of_determinant - (of_residual @ share[..., None])[..., 0]
    hessian = np.zeros((m, G, G))
    for c in range(q.shape[-1]):
        Z = Bu[..., c]
        hessian += share[:, c, None, None] * (Z @ inverse @ Z.mT)
    # The noise follows the variances: what it takes off is the Schur complement of its own curvature.
    fall = of_residual * share[:, None]
    hessian -= (fall @ fall.mT) / batch.rows[:, None, None]
    return value, gradient, hessian


def _inverse(K: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return inverses and log determinants of symmetric positive definite matrices."""
    if K.shape[-1] < _LARGE:
        L = np.linalg.cholesky(K)
        return np.asarray(np.linalg.inv(K), dtype=np.float64), _log_determinant(L)
    inverse, logs = np.empty_like(K), np.empty(len(K))
    for k, matrix in enumerate(K):
        L, _ = scipy.linalg.lapack.dpotrf(matrix, lower=1)
        logs[k] = 2 * np.sum(np.log(np.diag(L)))
        lower, _ = scipy.linalg.lapack.dpotri(L, lower=1)
        inverse[k] = np.tril(lower) + np.tril(lower, -1).T
    return inverse, logs


def _log_determinant(L: NDArray[np.floating[Any]]) -> FloatArray:
    return np.asarray(2 * np.sum(np.log(np.diagonal(L, axis1=-2, axis2=-1)), axis=-1), dtype=np.float64)


def _best_log_weights(total: FloatArray, n: FloatArray, tau2: float) -> FloatArray:
    r"""Return the minimiser of :math:`-nx + e^x\,total + x^2/\tau^2` for each site, by damped Newton steps."""
    x, active = np.zeros_like(total), np.full(total.shape, tau2 > 0)
    for _ in range(_WEIGHT_STEPS):
        if not active.any():
            break
        grown = total * np.exp(x)
        step = np.clip((grown - n + 2 * x / tau2) / (grown + 2 / tau2), -1.0, 1.0)
        # Each site ends by itself, so that its weight does not depend on the others of its stack.
        x = np.where(active, x - step, x)
        active &= np.abs(step) > _WEIGHT_CHANGE
    return x
