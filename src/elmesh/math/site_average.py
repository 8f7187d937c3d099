r"""A site's own weights beside common ones that are uncertain: an average over how much the site may differ.

With common weights :math:`W \sim N(\bar W, S)`, known up to the noise of their release, a site's rows are

.. math:: T_t = \Phi_t(W + V_t) + \text{noise}, \qquad V_t \sim N(0, v), \qquad
          \mathrm{cov}\,T_t = \Phi_t(S + v)\Phi_t' + s^2 .

How large v and :math:`s^2` are, no site may ask the others: that would have to be paid for. A site has few rows to find
out by itself, so that it does not choose them but averages over a grid of values, each weighed by its evidence and a
broad prior. The grid is in units of the variance of what W leaves of the site's targets, so that it fits any unit of
the targets, and features of a group are measured by their mean square. There are three variances: of the constant,
of the inputs with the smooth hidden units, and of the others.

The mean of the weights is the average; for the uncertainty of predictions the means of the variances stand.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import numpy as np

from elmesh.data.statistics import SiteRows
from elmesh.typing import FloatArray, IndexArray

__all__ = ["ASSUMED_VARIANCES", "SiteAverage", "average_site", "whitened_by"]

# The grid: variances of the three parts, and of the noise, in units of the variance of what W leaves. The largest of
# the constant leaves it free.
_CONSTANT = (0.01, 0.1, 0.6, 4.0, 1e6)
_SMOOTH = (0.002, 0.02, 0.2, 2.0)
_ROUGH = (0.0005, 0.005, 0.05, 0.5, 5.0)
_NOISE = np.array([0.0005, 0.002, 0.005, 0.012, 0.03, 0.07, 0.15, 0.3, 0.5, 0.75, 1.0])
# The prior: logarithms are normal about these, with this standard deviation.
_CENTRES, _NOISE_CENTRE, _SPREAD = (0.15, 0.03, 0.03), 0.3, 3.0
#: Variances of private weights that the prior is about: of the constant and of others, in units of the noise.
ASSUMED_VARIANCES = (_CENTRES[0] / _NOISE_CENTRE, _CENTRES[1] / _NOISE_CENTRE)
# In means of variances larger ones count as this.
_MOST_VARIANCE = 10.0
# Targets are far from zero if their mean square is more than so many times their variance.
_MOST_OFFSET = 100.0
# Directions of rows with less than this share of the largest eigenvalue count as noise alone.
_LEAST = 1e-9
# Targets that W leaves nothing of, and features that are zero, have a mean square of at least this.
_TINY = 1e-12


@dataclass(frozen=True, eq=False)
class SiteAverage:
    """A site's weights W + V (p, d), the variance of its noise, and the variance of V by group of features."""

    weights: FloatArray
    s2: float
    v: FloatArray


def average_site(
    site: SiteRows, groups: IndexArray, W: FloatArray, S: FloatArray, noise_floor: float = 0.0, *, classes: bool = False
) -> SiteAverage:
    """Return a site's weights, averaged over how much it may differ from the others.

    Parameters
    ----------
    site : SiteRows
        Its rows.
    groups : ndarray of int of shape (p,)
        The group of each feature: 0 is the constant, 1 the inputs, 2 the smooth hidden units, then others.
    W, S : ndarray of shape (p, d) and (p, p)
        Mean and covariance of the common weights.
    noise_floor : float
        Least variance of noise, in units of the variance of what W leaves.
    classes : bool
        Whether targets are indicators of classes, whose sum is known: one of them follows from the others.
    """
    Phi, d = site.Phi, W.shape[1]
    R = site.T - Phi @ W
    n, n_groups = site.rows, int(groups.max()) + 1
    unit = _unit(site, groups, R)
    # Mean squares of the features of each group; a group of zeros has no variance to speak of.
    squares = np.array([float(np.sum(Phi[:, groups == g] ** 2)) / n for g in range(n_groups)])
    part = np.minimum(np.array([0, 1, 1, *np.full(max(n_groups - 3, 0), 2)])[:n_groups], 2)
    scale = np.where(squares > _TINY, unit / np.maximum(squares, _TINY), 0.0)
    scale[0] = unit
    kernels = [_kernel(Phi, np.where(part[groups] == k, scale[groups], 0.0)) for k in range(3)]
    kernels.append(Phi @ S @ Phi.T)
    Z, kernels, own, outside = _reduced(R, kernels)
    rest = float(np.sum(site.rest)) + max(float(np.sum(R**2)) - float(np.sum(own**2)), 0.0)
    # Rows of a reduced table that no features reach, and directions of the others, are noise alone.
    outside += round(n) - len(R)

    noise = unit * _NOISE[min(noise_floor, _NOISE[-1]) <= _NOISE]
    points = np.array(list(product(_CONSTANT, _SMOOTH, _ROUGH)))
    prior = -0.5 * np.sum((np.log(points / _CENTRES) / _SPREAD) ** 2, axis=1)
    of_noise = -0.5 * (np.log(noise / unit / _NOISE_CENTRE) / _SPREAD) ** 2
    evidence, solved = np.empty((len(points), len(noise))), np.empty((len(points), len(noise), *own.shape))
    for k, point in enumerate(points):
        K = kernels[3] + sum(x * kernel for x, kernel in zip(point, kernels[:3], strict=True))
        eigenvalues, Q = np.linalg.eigh(K)
        total = np.maximum(eigenvalues, 0.0)[:, None] + noise
        y = Q.T @ own
        fits = np.sum((y**2).sum(axis=1)[:, None] / total, axis=0) + rest / noise
        determinant = np.sum(np.log(total), axis=0) + outside * np.log(noise)
        evidence[k] = -0.5 * (fits + d * determinant)
        solved[k] = np.einsum("ij,jc,jk->kic", Q, y, 1.0 / total)
    independent = (d - 1) / d if classes and d > 1 else 1.0
    log_weights = independent * evidence + prior[:, None] + of_noise
    weights = np.exp(log_weights - log_weights.max())
    weights /= weights.sum()
    by_point = np.einsum("kj,kjic->kic", weights, solved)
    # V = v Phi' K^-1 R for each point, and W moves by S Phi' K^-1 R.
    beyond = np.einsum("kv,kic->vic", points, by_point)
    V = np.zeros_like(W)
    for k in range(3):
        v = np.where(part[groups] == k, scale[groups], 0.0)
        V += v[:, None] * (Phi.T @ (Z @ beyond[k]))
    moved = S @ (Phi.T @ (Z @ by_point.sum(axis=0)))
    # A tiny chance of a huge variance must not count as a huge one.
    mean = np.sum(weights, axis=1) @ np.minimum(points, _MOST_VARIANCE)
    v_groups = np.array([mean[part[g]] * scale[g] for g in range(n_groups)])
    return SiteAverage(W + V + moved, float(np.sum(weights, axis=0) @ noise), v_groups)


def _unit(site: SiteRows, groups: IndexArray, R: FloatArray) -> float:
    """Return the mean square of what W leaves of the targets or, if these are far from zero, their variance."""
    n, d, constant = site.rows, R.shape[1], site.Phi[:, groups == 0]
    squares = float(np.sum(R**2)) + float(np.sum(site.rest))
    if constant.shape[1] == 1 and n > 1:
        # Of a reduced table, too: the constant's products with itself and with the targets are those of all rows.
        variance = (squares - float(np.sum((constant.T @ R) ** 2)) / n) / (n - 1)
        if squares > _MOST_OFFSET * n * variance:
            squares = n * variance
    return max(float(squares / (n * d)), _TINY)


def _kernel(Phi: FloatArray, v: FloatArray) -> FloatArray:
    return np.asarray((Phi * v) @ Phi.T)


def _reduced(R: FloatArray, kernels: list[FloatArray]) -> tuple[FloatArray, list[FloatArray], FloatArray, int]:
    """Return a basis of the directions of rows that any kernel reaches, kernels and residuals in it, and the rest."""
    eigenvalues, Q = np.linalg.eigh(sum(kernels[1:], kernels[0]))
    reached = eigenvalues > _LEAST * max(float(eigenvalues[-1]), _TINY)
    Z = Q[:, reached]
    return Z, [Z.T @ kernel @ Z for kernel in kernels], Z.T @ R, int(np.sum(~reached))


def whitened_by(site: SiteRows, groups: IndexArray, v: FloatArray, S: FloatArray) -> FloatArray:
    """Return the site's features multiplied by K^(-1/2), for the uncertainty of predictions.

    K is the covariance of the site's targets, with private weights of variance v by group and common ones of covariance
    S; all are in units of the site's noise.
    """
    K = _kernel(site.Phi, v[groups]) + site.Phi @ S @ site.Phi.T
    K[np.arange(len(K)), np.arange(len(K))] += 1.0
    return np.asarray(np.linalg.solve(np.linalg.cholesky(K), site.Phi))
