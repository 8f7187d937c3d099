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

import numpy as np

from elmesh.comm.requests import Place, Sum, Total
from elmesh.data.statistics import Task
from elmesh.math.certificate import USED, Findings, dual_bound, lacking, slack_of
from elmesh.math.kernels import correlation, square
from elmesh.solvers.initialization import random_block
from elmesh.typing import FloatArray

__all__ = ["certify_over_graph"]


# Vectors a pass, beside those of U in the first one, and most passes.
_WIDTH, _PASSES = 4, 16
# Passes end when the largest eigenvalue outside U has moved by no more than this share of lambda squared.
_SETTLED = 1e-3
# Share of a vector outside all others below which it is rounding.
_NEW = 1e-8


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
    strengths, directions = values[::-1].copy(), basis[:, used:] @ vectors[:, ::-1]
    return Findings(turn, lacking(values, lam, slack_of(tol)), strengths, directions, bound)


def _settled(answer: Sum) -> FloatArray:
    if answer.settle is None:
        raise TypeError("A sum came back without the numbers that were to be settled.")
    return answer.settle


def _in_use(gram: FloatArray) -> FloatArray:
    """Return the rotation of U, from its U'U, that makes columns orthogonal; only those in use, longest first."""
    values, vectors = np.linalg.eigh((gram + gram.T) / 2)
    used = values > USED**2 * float(values.max(initial=0.0))
    return np.ascontiguousarray(vectors[:, used][:, ::-1])


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
