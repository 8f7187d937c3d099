r"""Limited-memory BFGS: a step from the last changes of the gradient.

The memory holds the last pairs of a step s and the change y of the gradient along it. The two-loop recursion applies
the inverse Hessian that they imply to a gradient, starting from an initial Hessian, here :math:`X \mapsto X W` with a
small matrix W. No product of the size of U squared is ever formed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from elmesh.typing import FloatArray

__all__ = ["LBFGSMemory"]

_MOST_PAIRS = 30
# A pair with at most this share of the curvature that its norms allow is rounding, or not convex.
_LEAST_CURVATURE = 1e-8


@dataclass(frozen=True, eq=False)
class LBFGSMemory:
    """Steps and changes of the gradient, oldest first.

    Examples
    --------
    >>> memory = LBFGSMemory().add(np.array([[1.0], [0.0]]), np.array([[4.0], [0.0]]))  # second derivative 4
    >>> memory.step(np.array([[8.0], [4.0]]), np.eye(1)).ravel()
    array([-2., -1.])
    """

    s: tuple[FloatArray, ...] = ()
    y: tuple[FloatArray, ...] = ()

    def add(self, s: FloatArray, y: FloatArray) -> LBFGSMemory:
        """Return the memory with one more pair, unless the function is not convex along s."""
        curvature = float(np.vdot(s, y))
        if not curvature > _LEAST_CURVATURE * float(np.linalg.norm(s)) * float(np.linalg.norm(y)):
            return self
        return LBFGSMemory((*self.s, s)[-_MOST_PAIRS:], (*self.y, y)[-_MOST_PAIRS:])

    def rotate(self, matrix: FloatArray) -> LBFGSMemory:
        """Return the memory with all pairs multiplied from the right: U has other columns since."""
        rotated = LBFGSMemory()
        for s, y in zip(self.s, self.y, strict=True):
            rotated = rotated.add(s @ matrix, y @ matrix)
        return rotated

    def step(self, gradient: FloatArray, hessian: FloatArray) -> FloatArray:
        """Return the quasi-Newton step; ``hessian`` is W."""
        pairs = [(s, y, float(np.vdot(s, y))) for s, y in zip(self.s, self.y, strict=True)]
        q, alphas = gradient.copy(), []
        for s, y, curvature in reversed(pairs):
            alphas.append(float(np.vdot(s, q)) / curvature)
            q -= alphas[-1] * y
        scale = 1.0
        if pairs:
            _, y, curvature = pairs[-1]
            scale = curvature / float(np.vdot(y, np.linalg.solve(hessian, y.T).T))
        q = np.asarray(scale * np.linalg.solve(hessian, q.T).T, dtype=np.float64)
        for (s, y, curvature), alpha in zip(pairs, reversed(alphas), strict=True):
            q += (alpha - float(np.vdot(y, q)) / curvature) * s
        return np.ascontiguousarray(-q)
