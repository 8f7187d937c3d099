r"""The U step of methods that hold all tasks in one place, equation (9).

For given A_t it solves :math:`\sum_t G_t U A_tA_t' + \mu_1 U = \sum_t H_t'T_tA_t'`. Unlike a single agent's, this
operator has no common eigenvectors, so it is solved by conjugate gradients, preconditioned by the nearest single
Kronecker product: :math:`\bar G U \sum_t A_tA_t' + \mu_1 U`, :math:`\bar G` the mean of the :math:`G_t`, which two
diagonalisations invert.
"""

from __future__ import annotations

import numpy as np
import scipy.linalg

from elmesh.data.statistics import Task
from elmesh.typing import FloatArray

__all__ = ["CentralUStep", "leading_vectors"]


def leading_vectors(beta: FloatArray, fill: FloatArray) -> FloatArray:
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


class CentralUStep:
    """The U step of all tasks together."""

    def __init__(self, task: Task) -> None:
        self._task = task
        scaled = task.V * task.s[..., None, :]
        mean = np.einsum("tlq,tkq->lk", scaled, scaled, optimize=True) / len(task.s)
        g, basis = scipy.linalg.eigh(mean)
        self._g, self._basis = np.maximum(g, 0.0), np.asarray(basis, dtype=np.float64)

    def solve(self, A: FloatArray, U: FloatArray, mu1: float, rtol: float = 1e-11, max_iter: int = 2000) -> FloatArray:
        """Return U for given A, starting from another U, to a residual of ``rtol`` times the right-hand side."""
        task, basis = self._task, self._basis
        AA = A @ A.mT
        e, E = np.linalg.eigh(AA.sum(axis=0))
        inverse = 1.0 / (self._g[:, None] * np.maximum(e, 0.0) + mu1)

        def apply(X: FloatArray) -> FloatArray:
            image: FloatArray = np.sum(task.V @ (task.s2 * (task.V.mT @ X) @ AA), axis=0) + mu1 * X
            return image

        def precondition(X: FloatArray) -> FloatArray:
            return np.asarray(basis @ (inverse * (basis.T @ X @ E)) @ E.T)

        right = np.sum(task.V @ (task.sY @ A.mT), axis=0)
        tolerance = rtol * float(np.linalg.norm(right))
        residual = right - apply(U)
        z = precondition(residual)
        direction, rz = z, float(np.vdot(residual, z))
        for _ in range(max_iter):
            if np.linalg.norm(residual) <= tolerance:
                break
            image = apply(direction)
            alpha = rz / float(np.vdot(direction, image))
            U = U + alpha * direction
            residual = residual - alpha * image
            z = precondition(residual)
            rz, previous = float(np.vdot(residual, z)), rz
            direction = z + (rz / previous) * direction
        return U
