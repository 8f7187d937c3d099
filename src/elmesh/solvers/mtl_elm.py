r"""MTL-ELM (Algorithm 1): all tasks in one place, alternating exact updates of U and of the A_t.

The U step solves :math:`\sum_t G_t U A_tA_t' + \mu_1 U = \sum_t H_t'T_tA_t'`, equation (8). Unlike a single agent's,
this sum has no common eigenvectors, so it is solved by conjugate gradients, with the one Kronecker product nearest to
it as preconditioner: :math:`\bar G U \sum_t A_tA_t' + \mu_1 U`, :math:`\bar G` the mean of the :math:`G_t`, which two
diagonalisations invert.
"""

from __future__ import annotations

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

from elmesh.kernels import fit_gradient, project, residual, ridge, solve_A, square
from elmesh.objective import agent_objective
from elmesh.solvers.agreement import random_block
from elmesh.solvers.base import SharedBasisSolver
from elmesh.solvers.requests import Place, Program, Report, State
from elmesh.statistics import Task

__all__ = ["MTLELM", "SharedU"]

FloatArray = NDArray[np.float64]


class MTLELM(SharedBasisSolver):
    r"""Multi-task ELM with all data in one place.

    .. math:: \min_{U, A}\; \sum_t \tfrac12 |H_t U A_t - T_t|^2 + \tfrac{\mu_1}{2}|U|^2 + \tfrac{\mu_2}{2}\sum_t |A_t|^2

    Parameters
    ----------
    rank : int or "auto", default="auto"
        Number of columns of U; "auto" as for :class:`DMTLELM`.
    mu1, mu2 : float, default=1.0
        Penalties on U and on the A_t.
    init : {"spectral", "random", "ones"}, default="spectral"
        Start; with the paper's ones, U never has more than one independent column.
    max_iter : int, default=200
        Most alternations.
    tol : float, default=1e-2
        Stop when the objective's gradient in U is within ``tol`` of the penalty's.

    Examples
    --------
    >>> from elmesh import MTLELM
    >>> MTLELM(rank=2, mu1=0.1).mu1
    0.1
    """

    def __init__(
        self,
        rank: int | str = "auto",
        mu1: float = 1.0,
        mu2: float = 1.0,
        init: str = "spectral",
        max_iter: int = 200,
        tol: float = 1e-2,
    ) -> None:
        self.rank = rank
        self.mu1 = mu1
        self.mu2 = mu2
        self.init = init
        self.max_iter = max_iter
        self.tol = tol

    def program(self, task: Task, place: Place, rank: int) -> Program:
        """Return the alternation over the stacked tasks."""
        mu1, mu2, m = self.mu1, self.mu2, len(task.s)
        L, d = task.V.shape[-2], task.Y.shape[-1]
        if self.init == "ones":
            U, A = np.ones((L, rank)), np.ones((m, rank, d))
        else:
            U = random_block(L, rank, place.seed)
            if self.init == "spectral":
                U = _leading_vectors(ridge(task, np.sqrt(mu1 * mu2)), U)
            A = solve_A(task, project(task, U), np.zeros(1), mu2, 0.0)
            if A.any():
                # At a stationary point mu1 |U|^2 = mu2 sum |A_t|^2, and alternation is slow to get there.
                U = (mu2 * float(np.sum(square(A))) / (mu1 * float(square(U)))) ** 0.25 * U
                A = solve_A(task, project(task, U), A, mu2, 0.0)
        shared = SharedU(task, mu1)
        HU = project(task, U)

        def report(k: int) -> Report:
            R = residual(task, HU, A)
            gradient = np.sum(task.V @ fit_gradient(task, R, A), axis=0) + mu1 * U
            objective = agent_objective(task, R, square(U), A, mu1, mu2, m)
            # U belongs to all: its gradient is spread evenly, so that sums over tasks are what they should be.
            even, nothing = np.full(m, 1.0 / m), np.zeros(m)
            return Report(
                k,
                State(U, A),
                objective,
                (float(square(gradient)) * even, nothing),
                (float(square(mu1 * U)) * even, even),
            )

        for k in range(1, self.max_iter + 1):
            if (yield report(k - 1)):
                return State(U, A)
            U = shared.solve(A, U)
            HU = project(task, U)
            A = solve_A(task, HU, A, mu2, 0.0)
        yield report(self.max_iter)
        return State(U, A)


def _leading_vectors(beta: FloatArray, fill: FloatArray) -> FloatArray:
    """Return the leading left singular vectors of all weights side by side, scaled by the roots of singular values."""
    L, rank = fill.shape
    left, values, _ = np.linalg.svd(np.moveaxis(beta, 0, 1).reshape(L, -1), full_matrices=False)
    k = min(rank, int(np.sum(values > 1e-3 * values[0])) if values[0] > 0 else 0)
    if k == 0:
        return fill
    # Directions that the weights do not have are filled from the seed, small, so that U has full rank.
    U = fill * np.sqrt(1e-3 * values[0])
    U[:, :k] = left[:, :k] * np.sqrt(values[:k])
    return np.asarray(U)


class SharedU:
    """The U step (9) of all tasks together."""

    def __init__(self, task: Task, mu1: float) -> None:
        self._task, self._mu1 = task, mu1
        scaled = task.V * task.s[..., None, :]
        mean = np.einsum("tlq,tkq->lk", scaled, scaled, optimize=True) / len(task.s)
        g, basis = scipy.linalg.eigh(mean)
        self._g, self._basis = np.maximum(g, 0.0), np.asarray(basis, dtype=np.float64)

    def solve(self, A: FloatArray, U: FloatArray, rtol: float = 1e-11, most: int = 2000) -> FloatArray:
        """Return U for the given A, starting from another U."""
        task, mu1, basis = self._task, self._mu1, self._basis
        AA = A @ A.mT
        e, E = np.linalg.eigh(AA.sum(axis=0))
        inverse = 1.0 / (self._g[:, None] * np.maximum(e, 0.0) + mu1)

        def apply(X: FloatArray) -> FloatArray:
            image: FloatArray = np.sum(task.V @ (task.s2 * (task.V.mT @ X) @ AA), axis=0) + mu1 * X
            return image

        def precondition(X: FloatArray) -> FloatArray:
            return np.asarray(basis @ (inverse * (basis.T @ X @ E)) @ E.T)

        right = np.sum(task.V @ (task.sY @ A.mT), axis=0)
        enough = rtol * float(np.linalg.norm(right))
        residual = right - apply(U)
        step = precondition(residual)
        direction, slope = step, float(np.vdot(residual, step))
        for _ in range(most):
            if np.linalg.norm(residual) <= enough:
                break
            image = apply(direction)
            length = slope / float(np.vdot(direction, image))
            U = U + length * direction
            residual = residual - length * image
            step = precondition(residual)
            slope, before = float(np.vdot(residual, step)), slope
            direction = step + (slope / before) * direction
        return U
