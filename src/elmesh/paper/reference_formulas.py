r"""Reference implementation of the algorithms, with the formulas as the paper prints them.

Every U step builds and solves the :math:`Lr \times Lr` Kronecker systems (9) and (20), which is slow. The package's
solvers are timed against it, and it shows the effect of a misprint.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elmesh.typing import FloatArray

__all__ = ["ReferenceADMM", "alternating_step"]


def alternating_step(
    H: Sequence[FloatArray], T: Sequence[FloatArray], A: FloatArray, mu1: float, mu2: float
) -> tuple[FloatArray, FloatArray]:
    """Return U by (9), then all A_t by (11): one iteration of Algorithm 1."""
    r, L = A.shape[1], H[0].shape[1]
    matrix = mu1 * np.eye(L * r)
    right = np.zeros(L * r)
    for H_t, T_t, A_t in zip(H, T, A, strict=True):
        matrix += np.kron(A_t @ A_t.T, H_t.T @ H_t)
        right += _vec(H_t.T @ T_t @ A_t.T)
    U = _unvec(np.linalg.solve(matrix, right), L)
    gram = [U.T @ H_t.T @ H_t @ U + mu2 * np.eye(r) for H_t in H]
    return U, np.stack([np.linalg.solve(g, U.T @ H_t.T @ T_t) for g, H_t, T_t in zip(gram, H, T, strict=True)])


@dataclass
class ReferenceADMM:
    """The agents of Algorithm 2, or of Algorithm 3 with ``first_order``, round by round."""

    H: Sequence[FloatArray]  # hidden features per agent
    T: Sequence[FloatArray]  # targets per agent
    edges: Sequence[tuple[int, int]]
    U: FloatArray  # the start, of shape (m, L, r)
    A: FloatArray  # the start, of shape (m, r, d)
    mu1: float
    mu2: float
    rho: float
    P: FloatArray  # proximal weights P_t = P[t] I
    Q: FloatArray  # proximal weights Q_t = Q[t] I
    delta: float | None = None  # constant of the rule for gamma; None for gamma = 1
    first_order: bool = False  # whether to update U by (23) instead of (20)
    #: Whether to update the multiplier with the printed minus, which belongs to a Lagrangian with minus lambda'CU. The
    #: printed updates of U belong to plus lambda'CU.
    printed_sign: bool = False
    multiplier: FloatArray = field(init=False)

    def __post_init__(self) -> None:
        self.U, self.A = self.U.copy(), self.A.copy()
        self.multiplier = np.zeros((len(self.edges), *self.U.shape[1:]))

    def step(self) -> None:
        """Run one round: U, multiplier, A."""
        before = self._edge_differences()
        self.U = np.stack([self._updated_U(t) for t in range(len(self.H))])
        after = self._edge_differences()
        gamma = np.ones(len(self.edges))
        if self.delta is not None:
            change, gap = np.sum((after - before) ** 2, axis=(1, 2)), np.sum(after**2, axis=(1, 2))
            gamma = np.minimum(1.0, self.delta * change / np.where(gap > 0, gap, 1.0))
        ascent = self.rho * gamma[:, None, None] * after
        self.multiplier = self.multiplier - ascent if self.printed_sign else self.multiplier + ascent
        self.A = np.stack([self._updated_A(t) for t in range(len(self.H))])

    def objective(self) -> float:
        """Return the sum (12) over agents."""
        m = len(self.H)
        fits = [np.sum((H @ U @ A - T) ** 2) for H, U, A, T in zip(self.H, self.U, self.A, self.T, strict=True)]
        return float(sum(fits) + self.mu1 / m * np.sum(self.U**2) + self.mu2 * np.sum(self.A**2)) / 2

    def _edge_differences(self) -> FloatArray:
        """Return CU: U_i - U_j for every edge (i, j)."""
        return np.stack([self.U[i] - self.U[j] for i, j in self.edges])

    def _updated_U(self, t: int) -> FloatArray:
        H, T, A, U = self.H[t], self.T[t], self.A[t], self.U[t]
        L, m = H.shape[1], len(self.H)
        degree = sum(t in edge for edge in self.edges)
        neighbor_sum = sum((self.U[j if i == t else i] for i, j in self.edges if t in (i, j)), np.zeros_like(U))
        # C_t'lambda: the multipliers of the agent's edges, with the signs of its ends.
        dual = sum(
            (lam if i == t else -lam for lam, (i, j) in zip(self.multiplier, self.edges, strict=True) if t in (i, j)),
            np.zeros_like(U),
        )
        right = H.T @ T @ A.T + self.rho * neighbor_sum - dual + self.P[t] * U
        weight = self.rho * degree + self.P[t]
        if self.first_order:
            right = right - H.T @ H @ U @ A @ A.T - self.mu1 / m * U
            return np.linalg.solve(weight * np.eye(L), right)
        matrix = np.kron(A @ A.T, H.T @ H) + (self.mu1 / m + weight) * np.eye(L * A.shape[0])
        return _unvec(np.linalg.solve(matrix, _vec(right)), L)

    def _updated_A(self, t: int) -> FloatArray:
        HU, A = self.H[t] @ self.U[t], self.A[t]
        gram = HU.T @ HU + (self.Q[t] + self.mu2) * np.eye(len(A))
        return np.linalg.solve(gram, HU.T @ self.T[t] + self.Q[t] * A)


def _vec(X: FloatArray) -> FloatArray:
    return X.ravel(order="F")


def _unvec(x: NDArray[np.floating[Any]], rows: int) -> FloatArray:
    return np.asarray(x.reshape(rows, -1, order="F"), dtype=np.float64)
