r"""The algorithms as the paper prints them, Kronecker products and all.

Slow on purpose: each U step builds and solves the :math:`Lr \times Lr` systems (9) and (20). It is what the
package's solvers are timed against, and where a misprint can be put back to see what it does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elmesh.typing import FloatArray

__all__ = ["Agents", "alternate"]


def alternate(
    H: Sequence[FloatArray], T: Sequence[FloatArray], A: FloatArray, mu1: float, mu2: float
) -> tuple[FloatArray, FloatArray]:
    """Take one turn of Algorithm 1: U by (9), then every A_t by (11)."""
    r, L = A.shape[1], H[0].shape[1]
    matrix = mu1 * np.eye(L * r)
    right = np.zeros(L * r)
    for H_t, T_t, A_t in zip(H, T, A, strict=True):
        matrix += np.kron(A_t @ A_t.T, H_t.T @ H_t)
        right += _vec(H_t.T @ T_t @ A_t.T)
    U = _matrix(np.linalg.solve(matrix, right), L)
    gram = [U.T @ H_t.T @ H_t @ U + mu2 * np.eye(r) for H_t in H]
    return U, np.stack([np.linalg.solve(g, U.T @ H_t.T @ T_t) for g, H_t, T_t in zip(gram, H, T, strict=True)])


@dataclass
class Agents:
    """The agents of Algorithm 2, or of Algorithm 3 with ``first_order``, round by round.

    Parameters
    ----------
    H, T : sequences of arrays
        Hidden features and targets of each agent.
    edges : sequence of pairs
        Who is joined to whom.
    U, A : arrays of shape (m, L, r) and (m, r, d)
        The start.
    mu1, mu2, rho : float
        Penalties.
    P, Q : arrays of shape (m,)
        Proximal weights P_t = P[t] I and Q_t = Q[t] I.
    delta : float or None
        Constant of the rule for gamma; None for gamma = 1.
    first_order : bool
        Whether U is updated by (23) in place of (20).
    as_printed : bool
        Whether the multiplier's update has the printed minus, which goes with a Lagrangian of minus lambda'CU; the
        printed updates of U are those of plus lambda'CU.
    """

    H: Sequence[FloatArray]
    T: Sequence[FloatArray]
    edges: Sequence[tuple[int, int]]
    U: FloatArray
    A: FloatArray
    mu1: float
    mu2: float
    rho: float
    P: FloatArray
    Q: FloatArray
    delta: float | None = None
    first_order: bool = False
    as_printed: bool = False
    multiplier: FloatArray = field(init=False)

    def __post_init__(self) -> None:
        self.U, self.A = self.U.copy(), self.A.copy()
        self.multiplier = np.zeros((len(self.edges), *self.U.shape[1:]))

    def step(self) -> None:
        """Take one round: U, multiplier, A."""
        before = self._differences()
        self.U = np.stack([self._updated_U(t) for t in range(len(self.H))])
        after = self._differences()
        gamma = np.ones(len(self.edges))
        if self.delta is not None:
            change, apart = np.sum((after - before) ** 2, axis=(1, 2)), np.sum(after**2, axis=(1, 2))
            gamma = np.minimum(1.0, self.delta * change / np.where(apart > 0, apart, 1.0))
        ascent = self.rho * gamma[:, None, None] * after
        self.multiplier = self.multiplier - ascent if self.as_printed else self.multiplier + ascent
        self.A = np.stack([self._updated_A(t) for t in range(len(self.H))])

    def objective(self) -> float:
        """Return the sum (12) over agents."""
        m = len(self.H)
        fits = [np.sum((H @ U @ A - T) ** 2) for H, U, A, T in zip(self.H, self.U, self.A, self.T, strict=True)]
        return float(sum(fits) + self.mu1 / m * np.sum(self.U**2) + self.mu2 * np.sum(self.A**2)) / 2

    def _differences(self) -> FloatArray:
        """Return CU: U_i - U_j for every edge (i, j)."""
        return np.stack([self.U[i] - self.U[j] for i, j in self.edges])

    def _updated_U(self, t: int) -> FloatArray:
        H, T, A, U = self.H[t], self.T[t], self.A[t], self.U[t]
        L, m = H.shape[1], len(self.H)
        degree = sum(t in edge for edge in self.edges)
        others = sum((self.U[j if i == t else i] for i, j in self.edges if t in (i, j)), np.zeros_like(U))
        # C_t'lambda: the multiplier of each of the agent's edges, with the sign of its end.
        pull = sum(
            (lam if i == t else -lam for lam, (i, j) in zip(self.multiplier, self.edges, strict=True) if t in (i, j)),
            np.zeros_like(U),
        )
        right = H.T @ T @ A.T + self.rho * others - pull + self.P[t] * U
        weight = self.rho * degree + self.P[t]
        if self.first_order:
            right = right - H.T @ H @ U @ A @ A.T - self.mu1 / m * U
            return np.linalg.solve(weight * np.eye(L), right)
        matrix = np.kron(A @ A.T, H.T @ H) + (self.mu1 / m + weight) * np.eye(L * A.shape[0])
        return _matrix(np.linalg.solve(matrix, _vec(right)), L)

    def _updated_A(self, t: int) -> FloatArray:
        HU, A = self.H[t] @ self.U[t], self.A[t]
        gram = HU.T @ HU + (self.Q[t] + self.mu2) * np.eye(len(A))
        return np.linalg.solve(gram, HU.T @ self.T[t] + self.Q[t] * A)


def _vec(X: FloatArray) -> FloatArray:
    return X.ravel(order="F")


def _matrix(x: NDArray[np.floating[Any]], rows: int) -> FloatArray:
    return np.asarray(x.reshape(rows, -1, order="F"), dtype=np.float64)
