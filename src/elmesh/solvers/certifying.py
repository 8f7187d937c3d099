r"""The certificate over a graph: the norm of all residuals' correlation, by sums of L-vectors alone.

With :math:`E_t = H_t'R_t` the norm wanted is that of :math:`M = \sum_t E_tE_t'`, and the directions that U lacks are
the eigenvectors of M outside U whose eigenvalues exceed :math:`\mu_1\mu_2`. A pass multiplies a few vectors by M, which
is one sum over all agents; the vectors so far span a Krylov space, in which the eigenvalues are found. They approach
those of M from below, until they no longer move; so over a graph the certificate is an estimate, by default a very
close one. With all tasks in one place it is exact.

Agents whose sums differ by rounding must send the same vectors. So what a choice of basis hangs on is agreed on first,
to the bit.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from elmesh.certificate import SLACK, USED, Certificate, directions_in_use, dual_bound, judge, lacking
from elmesh.kernels import correlation, square
from elmesh.solvers.opening import random_block
from elmesh.solvers.requests import Place, Sum, Total
from elmesh.statistics import Task

__all__ = ["Findings", "certify_over_graph", "find_in_one_place"]

FloatArray = NDArray[np.float64]

# Vectors a pass, beside those of U in the first one, and most passes.
_WIDTH, _PASSES = 4, 16
# Passes end when the largest eigenvalue outside U has moved by no more than this share of lambda squared.
_SETTLED = 1e-3
# The least slack there is, for tolerances next to nothing.
_FINEST = 1e-4
# Share of a vector outside all others below which it is rounding.
_NEW = 1e-8


@dataclass(frozen=True, eq=False)
class Findings:
    """What the certificate says, and what to do about it; the same at every agent.

    Parameters
    ----------
    turn : ndarray of shape (r, used)
        The rotation that makes the columns of U orthogonal, longest first, without those that carry nothing.
    lacking : int
        Directions outside U that would lower the objective.
    strengths, directions : ndarray of shape (n,), (L, n)
        Squared correlations outside U, largest first, and where they point.
    bound : float
        What no U can undercut.
    """

    turn: FloatArray
    lacking: int
    strengths: FloatArray
    directions: FloatArray
    bound: float

    @property
    def used(self) -> int:
        """Directions of U that carry something."""
        return int(self.turn.shape[1])

    def change(self, rank: int) -> bool:
        """Say whether U should have other than ``rank`` columns."""
        return self.lacking > 0 or self.used != rank

    def certificate(self, objective: float) -> Certificate:
        """Return the certificate of a U with this objective."""
        return judge(objective, self.bound, self.used, self.lacking)


def find_in_one_place(task: Task, U: FloatArray, R: FloatArray, mu1: float, mu2: float, tol: float) -> Findings:
    """Find what the certificate needs with all tasks at hand; R is their residuals with A_t at its best."""
    lam = float(np.sqrt(mu1 * mu2))
    E = np.moveaxis(task.V @ correlation(task, R), 0, 1).reshape(len(U), -1)
    turn = directions_in_use(U, E, lam)
    own = _outside(np.zeros((len(U), 0)), U @ turn)
    vectors, values, _ = np.linalg.svd(E - own @ (own.T @ E), full_matrices=False)
    R2, RY, rest = float(np.sum(square(R))), float(np.sum(R * task.Y)), float(np.sum(task.rest))
    bound = dual_bound(float(np.linalg.norm(E, 2)), lam, R2, RY, rest)
    return Findings(turn, lacking(values**2, lam, _slack(tol)), values**2, vectors, bound)


def certify_over_graph(
    task: Task, place: Place, U: FloatArray, R: FloatArray, mu1: float, mu2: float, tol: float
) -> Generator[Total, Sum, Findings]:
    """Find what the certificate needs; U is the same at all agents, R each one's residual with A_t at its best."""
    lam, L, r = float(np.sqrt(mu1 * mu2)), len(U), U.shape[1]
    silent = np.zeros((*task.s.shape[:-1], 0))
    nothing = np.zeros((*task.s.shape[:-1], L, 0))
    own = np.stack([square(R), np.sum(R * task.Y, axis=(-2, -1)), np.asarray(task.rest)], axis=-1)
    agreed = yield Total(nothing, own, "columns", settle=(U.T @ U).ravel())
    turn, (R2, RY, rest) = _in_use(_settled(agreed).reshape(r, r)), agreed.numbers.tolist()
    used = turn.shape[1]

    E = task.V @ correlation(task, R)
    columns = _outside(np.zeros((L, 0)), U @ turn)
    block = np.hstack([columns, _outside(columns, random_block(L, min(L, _WIDTH), place.seed))])
    basis, image = block[:, :0], block[:, :0]
    inner, before = np.zeros((0, 0)), -np.inf
    for k in range(_PASSES):
        top = np.array([np.linalg.eigvalsh(inner[used:, used:])[-1] if len(inner) > used else 0.0])
        answer = yield Total(E @ (E.mT @ block), silent, f"certificate {k}", fine=block.shape[1], settle=top)
        basis, image = np.hstack([basis, block]), np.hstack([image, answer.value])
        inner = (basis.T @ image + image.T @ basis) / 2
        last, before = before, float(_settled(answer)[0])
        # One pass late, for it is the one before that all have agreed on.
        if k > 1 and before - last <= _SETTLED * lam**2:
            break
        block = _outside(basis, answer.value[:, used:] if k == 0 else answer.value)
    n = len(inner)
    final = _settled((yield Total(nothing, silent, "findings", settle=inner.ravel()))).reshape(n, n)
    values, vectors = np.linalg.eigh(final[used:, used:])
    norm2 = max(float(np.linalg.eigvalsh(final)[-1]), 0.0)
    bound = dual_bound(float(np.sqrt(norm2)), lam, R2, RY, rest)
    return Findings(turn, lacking(values, lam, _slack(tol)), values[::-1], basis[:, used:] @ vectors[:, ::-1], bound)


def _slack(tol: float) -> float:
    """Return how much a correlation may exceed lambda where gradients have been brought below a tolerance."""
    return min(max(tol, _FINEST), SLACK)


def _settled(answer: Sum) -> FloatArray:
    if answer.settle is None:
        raise TypeError("A sum came back without the numbers that were to be settled.")
    return answer.settle


def _in_use(gram: FloatArray) -> FloatArray:
    """Return the rotation of U, from its U'U, that makes columns orthogonal; only those in use, longest first."""
    values, vectors = np.linalg.eigh((gram + gram.T) / 2)
    used = values > USED**2 * float(values.max(initial=0.0))
    return np.asarray(vectors[:, used][:, ::-1])


def _outside(basis: FloatArray, block: FloatArray) -> FloatArray:
    """Return orthonormal columns for what a block adds to a basis, and zeros for columns that add nothing."""
    found = np.zeros_like(block)
    for j in range(block.shape[1]):
        x = block[:, j]
        size = float(np.linalg.norm(x))
        for _ in range(2):  # twice, for rounding
            x = x - basis @ (basis.T @ x)
            x = x - found @ (found.T @ x)
        if float(np.linalg.norm(x)) > _NEW * size:
            x = x / np.linalg.norm(x)
            x = x - basis @ (basis.T @ x)
            found[:, j] = x / np.linalg.norm(x)
    return found
