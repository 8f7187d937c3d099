r"""What methods that hold all tasks in one place share: where U starts, and the U step for given A_t.

The U step solves :math:`\sum_t G_t U A_tA_t' + \mu_1 U = \sum_t H_t'T_tA_t'`, equation (8). Unlike a single agent's,
this sum has no common eigenvectors, so it is solved by conjugate gradients, with the one Kronecker product nearest to
it as preconditioner: :math:`\bar G U \sum_t A_tA_t' + \mu_1 U`, :math:`\bar G` the mean of the :math:`G_t`, which two
diagonalisations invert.
"""

from __future__ import annotations

import numpy as np
import scipy.linalg

from elmesh.data.statistics import Task
from elmesh.typing import FloatArray

__all__ = ["SharedU", "leading_vectors"]


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


class SharedU:
    """The U step (9) of all tasks together."""

    def __init__(self, task: Task, mu1: float) -> None:
        self._task, self._mu1 = task, mu1
        scaled = task.V * task.s[..., None, :]
        mean = np.einsum("tlq,tkq->lk", scaled, scaled, optimize=True) / len(task.s)
        g, basis = scipy.linalg.eigh(mean)
        self._g, self._basis = np.maximum(g, 0.0), np.asarray(basis, dtype=np.float64)

    def solve(
        self, A: FloatArray, U: FloatArray, rtol: float = 1e-11, reduction: float = 0.0, most: int = 2000
    ) -> FloatArray:
        """Return U for the given A, starting from another U.

        It ends when the residual is ``rtol`` of the right-hand side, or ``reduction`` of what it was at the start, or
        after ``most`` steps.
        """
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
        enough = max(enough, reduction * float(np.linalg.norm(residual)))
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
