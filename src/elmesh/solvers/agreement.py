r"""How agents agree before the rounds begin: averages over the graph, the start, and the weight of agreement.

Everything is neighbour exchange. An average takes as many rounds as the graph needs (2 on a star, 5 on a ring of ten);
the spectral start is orthogonal iteration on L x r blocks with such averages. No row and no weight is told, but the
first block that a neighbour hears is the agent's own, before it is averaged: it tells of the span of its weights.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elmesh.features import uniform
from elmesh.kernels import fit_gradient, project, residual, ridge, solve_A, square
from elmesh.solvers.requests import Neighbours, Place
from elmesh.statistics import Task

__all__ = ["Start", "average", "begin", "random_block", "wide"]

FloatArray = NDArray[np.float64]

# How closely averages are to agree: while the start is being found, and for what is then relied on.
_ROUGH, _FINE = 1e-6, 1e-10
# Orthogonal iterations of the spectral start. Its purpose is a good start, not the exact singular vectors.
_ITERATIONS = 6
# Keeps every direction of the block alive, so that U has full rank even where the tasks' weights do not.
_FLOOR = 1e-6
# The two constants of the automatic rho, chosen on random problems of the kinds in tests/test_solvers.py.
_RHO_SHARE = 0.1
_RHO_HETEROGENEITY = 10.0


def wide(x: FloatArray | float) -> FloatArray:
    """Let a number an agent act on matrices an agent."""
    return np.asarray(x, dtype=np.float64)[..., None, None]


def average(x: FloatArray, place: Place, precision: float) -> Generator[Neighbours, Any, FloatArray]:
    """Replace every agent's matrix by the average of all of them."""
    degree = wide(place.degree)
    for root in place.roots(precision):
        heard = yield Neighbours(x)
        x = x - (degree * x - heard) / root
    return x


def random_block(L: int, r: int, seed: int) -> FloatArray:
    """Return an orthonormal L x r block that every agent can derive from the shared seed."""
    # The hidden layer is drawn from the plain seed: a second stream of the same seed must not repeat it.
    Q, R = np.linalg.qr(uniform((seed, 1), L * r).reshape(L, r))
    block: FloatArray = Q * np.sign(np.diag(R))
    return block


@dataclass(frozen=True, eq=False)
class Start:
    """Where the rounds begin."""

    U: FloatArray
    A: FloatArray
    rho: float


def begin(
    task: Task, place: Place, rank: int, mu1: float, mu2: float, init: str, rho: float | str
) -> Generator[Neighbours, Any, Start]:
    """Agree on a start and on rho.

    ``init`` is "spectral", "random" or "ones"; ``rho`` a number, or "auto" (see :func:`auto_rho`).
    """
    lead, L, d = task.s.shape[:-1], task.V.shape[-2], task.Y.shape[-1]
    if init == "ones":
        U, A = np.ones((*lead, L, rank)), np.ones((*lead, rank, d))
        HU = project(task, U)
    else:
        if init == "spectral":
            U = yield from _spectral(task, place, rank, np.sqrt(mu1 * mu2))
        else:
            U = np.broadcast_to(random_block(L, rank, place.seed), (*lead, L, rank)).copy()
        HU = project(task, U)
        A = solve_A(task, HU, np.zeros(1), mu2, 0.0)

    # Three sums over all tasks say how U and A are balanced, how curved the fit is, and how much tasks differ.
    gradient = fit_gradient(task, residual(task, HU, A), A)
    sums = np.stack([square(A), square(HU @ A), square(gradient)], axis=-1)[..., None, :]
    balance = 1.0
    if init != "ones" or rho == "auto":
        sums = yield from average(sums, place, _FINE)
    # Agents hold the same averages and the same U, up to the precision asked; stacked ones may take the first's.
    A2, fit2, gradient2 = sums.reshape(-1, 3)[0].tolist()
    U2 = float(square(U).reshape(-1)[0])
    if init != "ones" and A2 > 0:
        # At a stationary point mu1 |U|^2 = mu2 sum |A_t|^2; starting there makes the curvature below meaningful.
        balance = (mu2 * place.n_agents * A2 / (mu1 * U2)) ** 0.25
        U = balance * U
        A = solve_A(task, balance * HU, np.zeros(1), mu2, 0.0)
    if not isinstance(rho, str):
        return Start(U, A, float(rho))
    curvature = fit2 / (balance**2 * U2)
    heterogeneity = np.sqrt(gradient2 / U2) / balance**2
    return Start(U, A, auto_rho(curvature, heterogeneity, place.grip, mu1 / place.n_agents))


def auto_rho(curvature: float, heterogeneity: float, grip: float, floor: float) -> float:
    r"""Return the weight of agreement.

    ``curvature`` is the mean of :math:`|H_t U A_t|^2 / |U|^2`, the fit's second derivative along U; ``heterogeneity``
    the root mean square of :math:`|\nabla f_t|/|U|`, the pull that multipliers will have to balance. Too small a rho
    never agrees and too large a one crawls; both scale with these, and inversely with how firmly the graph holds
    agents.
    """
    return max(_RHO_SHARE * float(np.hypot(curvature, _RHO_HETEROGENEITY * heterogeneity)) / grip, floor)


def _spectral(task: Task, place: Place, rank: int, mu: float) -> Generator[Neighbours, Any, FloatArray]:
    r"""Return the leading left singular vectors of all tasks' own weights, scaled by the roots of singular values.

    With :math:`M = \sum_t \beta_t\beta_t'` the iteration is :math:`Q \leftarrow \mathrm{orth}((M + \epsilon I) Q)`,
    and in the end :math:`U = Q (Q'MQ)^{1/4}`: a function of matrices without arbitrary signs or orders, so agents
    whose averages differ by rounding get the same U up to rounding.
    """
    beta = ridge(task, mu)
    lead, L = beta.shape[:-2], beta.shape[-2]
    Q = np.broadcast_to(random_block(L, rank, place.seed), (*lead, L, rank))
    for _ in range(_ITERATIONS):
        MQ = yield from average(beta @ (beta.mT @ Q), place, _ROUGH)
        small = Q.mT @ MQ
        size = np.trace(small, axis1=-2, axis2=-1)[..., None, None]
        shifted = MQ + _FLOOR * np.where(size > 0, size, 1.0) * Q
        Q, R = np.linalg.qr(shifted)
        Q = Q * np.sign(np.diagonal(R, axis1=-2, axis2=-1))[..., None, :]
    MQ = yield from average(beta @ (beta.mT @ Q), place, _ROUGH)
    small = Q.mT @ MQ
    values, vectors = np.linalg.eigh((small + small.mT) / 2)
    largest = np.where(values[..., -1:] > 0, values[..., -1:], 1.0)
    root = (vectors * np.maximum(values, _FLOOR * largest)[..., None, :] ** 0.25) @ vectors.mT
    U = yield from average(Q @ root, place, _FINE)
    return U
