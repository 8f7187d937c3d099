"""Attacks that take totals over sites apart, as pure functions.

Masks leave totals over all sites. A total by itself cannot be taken apart, but totals of the same sites at several
points of a known nonlinear function can: each point is a set of equations for what the sites have.

- :func:`fit_grams`: totals of whitened Gram matrices at a few private variances v, as a fit with common and private
  parts releases them;
- :func:`steer_basis`: totals of gradients at many U, as a fit with a shared part releases them, where the attacker
  chooses the U.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import linear_sum_assignment

#: Bits of a total, as messages have them.
BITS = 46


def rounded(total: np.ndarray) -> np.ndarray:
    """Return a total as it is released: whole multiples of a power of two."""
    unit = 2.0 ** (np.ceil(np.log2(np.abs(total).max())) - BITS)
    return np.rint(total / unit) * unit


def whitened(G: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Return Phi'K^-1 Phi = (G^-1 + V)^-1 from G = Phi'Phi, of shape (..., p, p)."""
    return np.linalg.solve(np.eye(len(v)) + G * v, G)


def matched_error(found: np.ndarray, true: np.ndarray) -> float:
    """Return the median relative error of what was found of each site, in the order that fits best."""
    errors = np.array([[np.linalg.norm(a - b) / np.linalg.norm(b) for b in true] for a in found])
    return float(np.median(errors[linear_sum_assignment(errors)]))


# Totals at several v.


def fit_grams(totals: Sequence[np.ndarray], v: np.ndarray, starts: Sequence[np.ndarray]) -> tuple[np.ndarray, float]:
    """Return the Gram matrices (h, p, p) of h sites that fit totals at several v best, and the relative misfit.

    Parameters
    ----------
    totals : sequence of ndarray of shape (p, p)
        Totals of whitened Gram matrices over the sites.
    v : ndarray of shape (k, p)
        The variances at which they were taken.
    starts : sequence of ndarray of shape (h, p, p)
        Where the search begins: Gram matrices of similar sites.
    """
    best, least = starts[0], np.inf
    scale = np.linalg.norm(totals)
    for start in starts:
        found, misfit = _levenberg_marquardt(start, totals, v)
        if misfit < least:
            best, least = found, misfit
    return best, float(np.sqrt(least) / scale)


def _levenberg_marquardt(G: np.ndarray, totals: Sequence[np.ndarray], v: np.ndarray) -> tuple[np.ndarray, float]:
    damping, (r, J) = 1e-3, _misfit(G, totals, v)
    value, upper = float(r @ r), np.triu_indices(G.shape[-1])
    for _ in range(400):
        A = J.T @ J
        step = np.linalg.solve(A + damping * np.diag(np.diag(A) + 1e-300), -J.T @ r).reshape(len(G), -1)
        trial = G.copy()
        trial[:, *upper] += step
        trial = np.triu(trial) + np.triu(trial, 1).mT
        r_new, J_new = _misfit(trial, totals, v)
        if np.isfinite(r_new).all() and r_new @ r_new < value:
            G, r, J, value, damping = trial, r_new, J_new, float(r_new @ r_new), max(damping * 0.3, 1e-16)
        else:
            damping *= 4
        if damping > 1e14 or value == 0:
            break
    return G, value


def _misfit(G: np.ndarray, totals: Sequence[np.ndarray], v: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the residuals of all totals, and their derivatives in the upper triangles of all G."""
    p = G.shape[-1]
    i, j = np.triu_indices(p)
    residuals, slopes = [], []
    for total, at in zip(totals, v, strict=True):
        M = np.linalg.inv(np.eye(p) + G * at)
        residuals.append(((M @ G).sum(axis=0) - total)[i, j])
        # With Q = (G^-1 + V)^-1 the change is dQ = M dG M'.
        both = M[:, i][:, :, i] * M[:, j][:, :, j] + (i != j) * M[:, i][:, :, j] * M[:, j][:, :, i]
        slopes.append(np.concatenate(list(both), axis=1))
    return np.concatenate(residuals), np.concatenate(slopes)


# Totals of gradients at many U.


@dataclass(frozen=True, eq=False)
class Steered:
    """What steering finds: the correlations of each site up to their sign (p, h), and the rounds that it takes."""

    correlations: np.ndarray
    rounds: int


def gradient_total(sites: Sequence[tuple[np.ndarray, np.ndarray]], u: np.ndarray, mu: float) -> np.ndarray:
    """Return the total over sites (G, c) of the gradient at a U of one column u, each with its best coefficient."""
    total = np.zeros(len(u))
    for G, c in sites:
        a = (u @ c) / (u @ G @ u + mu)
        total += (G @ u * a - c) * a
    return total


def steer_basis(
    release: Callable[[np.ndarray], np.ndarray], p: int, h: int, mu: float, length: float, seed: int = 0
) -> Steered:
    r"""Return the correlations :math:`c_t = \Phi_t'R_t` of h < p sites, from totals of gradients at chosen u.

    Expanded in the length of u, a total is :math:`-\sum_t c_tc_t'u/\mu + \ldots`, and its next term is the gradient of
    :math:`\sum_t (c_t\cdot u)^2\,u'G_tu / 2\mu^2`. With y orthogonal to all :math:`c_t`, second differences of that
    along y are :math:`\sum_t (c_t\cdot x)^2\,y'G_ty`: for two y two matrices of which all :math:`c_t`, once these
    are made orthonormal by the first term, are eigenvectors.

    Parameters
    ----------
    release : callable
        From u to the total.
    p, h : int
        Features and sites.
    mu : float
        The penalty on coefficients.
    length : float
        The length of the shortest u; for u up to five times as long the expansion must converge.
    """
    rng, rounds = np.random.default_rng(seed), 0
    lengths = length * np.arange(1, 6)
    powers = lengths[:, None] ** (1, 3, 5, 7, 9)

    def expand(u: np.ndarray) -> tuple[np.ndarray, float]:
        """Return the linear term at u, and the quartic form."""
        nonlocal rounds
        rounds += len(lengths)
        size = float(np.linalg.norm(u))
        terms = np.linalg.solve(powers, np.array([release(x * u / size) for x in lengths]))
        return -mu * terms[0] * size, float(u @ terms[1]) * size**3 * mu**2 / 2

    linear = np.array([expand(u)[0] for u in np.eye(p)])
    values, vectors = np.linalg.eigh((linear + linear.T) / 2)
    inside, outside, root = vectors[:, -h:], vectors[:, :-h], np.sqrt(np.maximum(values[-h:], 1e-300))
    unit = inside / root

    def differences(y: np.ndarray) -> np.ndarray:
        def form(x: np.ndarray) -> float:
            return (expand(x + y)[1] + expand(x - y)[1] - 2 * expand(x)[1]) / 2

        own = [form(x) for x in unit.T]
        found = np.diag(own)
        for i in range(h):
            for j in range(i):
                found[i, j] = found[j, i] = (form(unit[:, i] + unit[:, j]) - own[i] - own[j]) / 2
        return found

    first, second = (differences(outside @ rng.standard_normal(p - h)) for _ in range(2))
    return Steered((inside * root) @ np.linalg.eigh(first + 0.37 * second)[1], rounds)
