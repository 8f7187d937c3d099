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

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

from elmesh.data.statistics import SiteRows
from elmesh.typing import FloatArray, IndexArray

__all__ = [
    "Likelihood",
    "SiteBatch",
    "expected_likelihood",
    "padded_size",
    "precision",
    "precision_times",
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
    weights : ndarray of shape (m, n)
        The weights of single rows; zero for padding, and for all rows of a site that has fewer rows with the same
        products.
    """

    index: IndexArray
    Phi: FloatArray
    T: FloatArray
    rest: FloatArray
    rows: FloatArray
    groups: IndexArray
    weights: FloatArray

    @cached_property
    def B(self) -> FloatArray:
        """The products of features of each group, of shape (m, G, n, n)."""
        parts = [self.Phi[..., self.groups == g] for g in range(int(self.groups.max()) + 1)]
        return np.stack([part @ part.mT for part in parts], axis=1)

    def release(self) -> None:
        """Free the memory of the products of features of each group; they are made again if they are needed."""
        self.__dict__.pop("B", None)

    @cached_property
    def squares(self) -> FloatArray:
        """Squared norms of the targets, of shape (m, d)."""
        return np.asarray(np.sum(self.T**2, axis=-2) + self.rest)

    def covariance(self, v: FloatArray) -> FloatArray:
        """Return K of each site for one of many v, of shape (G,), or (m, G) where each site has its own."""
        m, G, n, _ = self.B.shape
        K = (np.broadcast_to(v, (m, G))[:, None] @ self.B.reshape(m, G, n * n)).reshape(m, n, n)
        K[:, np.arange(n), np.arange(n)] += 1.0
        return np.asarray(K)

    def cholesky(self, v: FloatArray) -> FloatArray:
        """Return the lower Cholesky factor of K of each site; that of the last v is kept, as many sums use the same."""
        known: tuple[FloatArray, FloatArray] | None = self.__dict__.get("_last_cholesky")
        if known is None or not np.array_equal(known[0], v):
            # Without the products of each group, which take several times the memory and pay for many v only.
            root = np.sqrt(v)[..., self.groups] * (self.groups >= 0)
            scaled = self.Phi * root.reshape(-1, 1, len(self.groups))
            K, n = scaled @ scaled.mT, self.Phi.shape[1]
            K[:, np.arange(n), np.arange(n)] += 1.0
            known = v.copy(), np.asarray(np.linalg.cholesky(K), dtype=np.float64)
            self.__dict__["_last_cholesky"] = known
        return known[1]


def padded_size(n: int) -> int:
    """Return the number of rows that a site of n rows is padded to: at most an eighth more.

    Examples
    --------
    >>> [padded_size(n) for n in (1, 7, 17, 100)]
    [1, 7, 18, 104]
    """
    step = max(1, 1 << max(n.bit_length() - 4, 0))
    return max(1, -(-n // step) * step)


def site_batches(
    sites: Sequence[SiteRows], groups: IndexArray, padded: Callable[[int], int] = padded_size
) -> list[SiteBatch]:
    """Return sites in batches of the same padded number of rows; a site with fewer columns has zeros in the others."""
    sizes: dict[int, list[int]] = {}
    for t, site in enumerate(sites):
        # Reduced rows are as many as features.
        n = len(site.Phi) if site.weights is None else padded(len(site.Phi))
        sizes.setdefault(n, []).append(t)
    p, d = sites[0].width, max(site.outputs for site in sites)
    batches = []
    for n, places in sorted(sizes.items()):
        most = max(1, _BATCH // (n * max(n, p)))
        for start in range(0, len(places), most):
            part = places[start : start + most]
            Phi, T, rest = np.zeros((len(part), n, p)), np.zeros((len(part), n, d)), np.zeros((len(part), d))
            weights = np.zeros((len(part), n))
            for k, t in enumerate(part):
                site = sites[t]
                Phi[k, : len(site.Phi)], T[k, : len(site.T), : site.outputs] = site.Phi, site.T
                rest[k, : site.outputs] = site.rest
                if site.weights is not None:
                    weights[k, : len(site.Phi)] = site.weights
            rows = np.array([sites[t].rows for t in part])
            batches.append(SiteBatch(np.array(part, dtype=np.intp), Phi, T, rest, rows, groups, weights))
    return batches


def whiten(batch: SiteBatch, v: FloatArray, *blocks: FloatArray) -> tuple[list[FloatArray], FloatArray]:
    """Return blocks of rows multiplied by the inverse Cholesky factor of K, and each site's log |K|."""
    L = batch.cholesky(v)
    widths = np.cumsum([block.shape[-1] for block in blocks])[:-1]
    X = np.concatenate(blocks, axis=-1)
    for k in range(len(X)):
        # In LAPACK's order of columns the factor is its own transpose.
        X[k] = scipy.linalg.lapack.dtrtrs(L[k].T, X[k], lower=0, trans=1)[0]
    return np.split(X, widths, axis=-1), _log_determinant(L)


def precision(batch: SiteBatch, v: FloatArray) -> FloatArray:
    """Return K^-1 of each site."""
    return _inverse(batch.covariance(v))[0]


def precision_times(batch: SiteBatch, v: FloatArray, R: FloatArray) -> FloatArray:
    """Return K^-1 R of each site, for R of shape (m, n, d); costs much less than whitened features."""
    L, result = batch.cholesky(v), np.empty_like(R)
    for k in range(len(R)):
        result[k] = scipy.linalg.lapack.dpotrs(L[k].T, R[k], lower=0)[0]
    return result


@dataclass(frozen=True, eq=False)
class Likelihood:
    """Expected -2 log likelihood of each site, its derivatives in log v and log sigma^2, and the sites' log-weights.

    ``value`` and ``log_weights`` are of shape (m,), ``gradient`` (m, G + d); ``hessian`` (m, G + d, G + d) approximates
    the second derivatives by the average information, which is positive semidefinite.
    """

    value: FloatArray
    gradient: FloatArray
    hessian: FloatArray
    log_weights: FloatArray


def expected_likelihood(
    batch: SiteBatch,
    R: FloatArray,
    M: FloatArray,
    draws: FloatArray,
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
    draws : ndarray of shape (m, n, k)
        Draws of the common part of the rows, of covariance M; only the approximate Hessian uses them, which exactly
        would cost several times as much as all else.
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
    trace = np.trace(KM, axis1=-2, axis2=-1)
    a = np.sum(R * u, axis=-2) + batch.rest + rows[:, None] * floor + trace[:, None] * s2_prior
    total = np.sum(a / s2, axis=-1)
    x = _best_log_weights(total, d * rows, tau2)
    w = np.exp(x)
    prior = x**2 / tau2 if tau2 > 0 else np.zeros(m)
    value = rows * (np.sum(np.log(s2)) - d * x) + d * log_determinant + w * total + prior

    # Derivatives in log v of log |K|, of the trace and of r'K^-1 r, per site and group (and column).
    B, KMK = batch.B.reshape(m, G, n * n), KM @ inverse
    of_determinant, of_trace = (v * (B @ X.reshape(m, n * n, 1))[..., 0] for X in (inverse, KMK))
    # Residuals and draws side by side.
    U = np.concatenate([u, inverse @ draws], axis=-1)
    BU = v[:, None, None] * (batch.B @ U[:, None])
    of_residual = np.sum(BU[..., :d] * u[:, None], axis=-2)
    falls = w[:, None] * (np.sum(of_residual / s2, axis=-1) + of_trace * np.sum(s2_prior / s2))
    spread = w[:, None] * a / s2
    gradient = np.concatenate([d * of_determinant - falls, rows[:, None] - spread], axis=-1)

    # The average information, expected over W: that of the residuals at its mean, and the mean over the draws.
    k = draws.shape[-1]
    drawn = np.sum(BU[..., d:] * U[:, None, :, d:], axis=(-2, -1)) / max(k, 1)
    share = s2_prior / s2
    by_vector = w[:, None] * np.concatenate([1.0 / s2, np.full(k, np.sum(share) / max(k, 1))])
    Z = np.moveaxis(BU, -1, 1)
    KZ = Z @ inverse[:, None]
    hessian = np.zeros((m, G + d, G + d))
    hessian[:, :G, :G] = np.sum(by_vector[..., None, None] * (KZ @ Z.mT), axis=1)
    fall = w[:, None, None] * (of_residual / s2 + drawn[..., None] * share)
    hessian[:, :G, G:] = fall
    hessian[:, G:, :G] = fall.mT
    # Where the draws have more than their covariance, so has their product with themselves.
    more = np.sum(draws * U[..., d:], axis=(-2, -1)) / max(k, 1) - trace
    hessian[:, np.arange(G, G + d), np.arange(G, G + d)] = spread + w[:, None] * np.maximum(more, 0.0)[:, None] * share
    return Likelihood(value, gradient, hessian, x)


def site_evidence(batch: SiteBatch, log_v: FloatArray, floor: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    r"""Return -2 log evidence of each site for weights of its own alone, its gradient and approximate Hessian in log v.

    With the noise profiled out it is :math:`\sum_c N_t\log q_c + d\log|K_t|`, :math:`q_c = T_c'K_t^{-1}T_c`, up to a
    constant. ``log_v`` is of shape (m, G); ``floor`` (m, d) is added to q. A column of zeros does not count,
    so that a site with fewer columns than others of its stack finds what it finds alone.
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
    inverse, logs, diagonal = np.empty_like(K), np.empty(len(K)), np.arange(K.shape[-1])
    for k, matrix in enumerate(K):
        L, _ = scipy.linalg.lapack.dpotrf(matrix, lower=1)
        logs[k] = 2 * np.sum(np.log(np.diag(L)))
        lower, _ = scipy.linalg.lapack.dpotri(L, lower=1, overwrite_c=1)
        # Above the diagonal it is zero, as the factor was.
        np.add(lower, lower.T, out=inverse[k])
        inverse[k, diagonal, diagonal] /= 2
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
