r"""The certificate over a graph: the norm of all residuals' correlation, by sums of L-vectors alone.

With :math:`E_t = H_t'R_t` the wanted norm is that of :math:`M = \sum_t E_tE_t'`, and the missing directions are the
eigenvectors of M outside U whose eigenvalues exceed :math:`\mu_1\mu_2`. A pass multiplies a few vectors by M, which is
one sum over all agents; the vectors so far span a Krylov space, in which the eigenvalues are computed. They approach
those of M from below, until they no longer change; so over a graph the certificate is an estimate, by default a very
close one. With all tasks in one place it is exact.

Agents whose sums differ by rounding must send the same vectors. So the numbers that a choice of basis depends on are
made equal to the bit first.
"""

from __future__ import annotations

import numpy as np

from elmesh.comm.requests import AllReduce, AllReduceResult
from elmesh.math.certificate import USED_SHARE, CertificateData, count_missing, dual_bound, slack_for
from elmesh.math.kernels import correlation, square
from elmesh.solvers.base import Problem, Steps
from elmesh.solvers.initialization import random_block
from elmesh.typing import FloatArray

__all__ = ["certificate_over_graph"]

# Vectors per pass, beside those of U in the first one, and most passes.
_WIDTH, _PASSES = 4, 16
# Passes end when the largest eigenvalue outside U has changed by at most this share of lambda squared.
_SETTLED = 1e-3
# Share of a vector outside all others below which it is rounding.
_NEW = 1e-8


def certificate_over_graph(
    problem: Problem, U: FloatArray, R: FloatArray, mu1: float, mu2: float, tol: float, common: float = 0.0
) -> Steps[CertificateData]:
    """Return what the certificate needs; U is the same at all agents, R each agent's residual with A_t at its best.

    ``common`` is the square of common weights in units of their prior, where they are at their best beside U A_t: there
    it is also the square of the residuals' total correlation, by which the dual is less.
    """
    task = problem.task
    lam, L, r = float(np.sqrt(mu1 * mu2)), len(U), U.shape[1]
    no_numbers = np.zeros((*task.s.shape[:-1], 0))
    no_value = np.zeros((*task.s.shape[:-1], L, 0))
    own = np.stack([square(R), np.sum(R * task.Y, axis=(-2, -1)), np.asarray(task.rest)], axis=-1)
    result: AllReduceResult = yield AllReduce(no_value, own, "columns", broadcast=(U.T @ U).ravel())
    rotation, (R2, RY, rest) = _used(_broadcast(result).reshape(r, r)), result.exact.tolist()
    used = rotation.shape[1]

    E = task.V @ correlation(task, R)
    columns = _outside(U[:, :0], U @ rotation)
    block = np.hstack([columns, _outside(columns, random_block(L, min(L, _WIDTH), problem.context.seed))])
    basis, image = block[:, :0], block[:, :0]
    inner, agreed = basis.T @ image, list[float]()
    for k in range(_PASSES):
        top = np.array([np.linalg.eigvalsh(inner[used:, used:])[-1] if len(inner) > used else 0.0])
        request = AllReduce(
            E @ (E.mT @ block), no_numbers, f"certificate {k}", fine_columns=block.shape[1], broadcast=top
        )
        result = yield request
        basis, image = np.hstack([basis, block]), np.hstack([image, result.value])
        inner = (basis.T @ image + image.T @ basis) / 2
        agreed.append(float(_broadcast(result)[0]))
        # One pass late: the eigenvalue of the pass before is the one that is equal to the bit.
        if k > 1 and agreed[-1] - agreed[-2] <= _SETTLED * lam**2:
            break
        block = _outside(basis, result.value[:, used:] if k == 0 else result.value)
    n = len(inner)
    final = _broadcast((yield AllReduce(no_value, no_numbers, "certificate", broadcast=inner.ravel()))).reshape(n, n)
    values, vectors = np.linalg.eigh(final[used:, used:])
    norm2 = max(float(np.linalg.eigvalsh(final)[-1]), 0.0)
    bound = dual_bound(float(np.sqrt(norm2)), lam, R2 + common, RY - common, rest)
    eigenvalues, directions = values[::-1].copy(), basis[:, used:] @ vectors[:, ::-1]
    return CertificateData(rotation, count_missing(values, lam, slack_for(tol)), eigenvalues, directions, bound)


def _broadcast(result: AllReduceResult) -> FloatArray:
    if result.broadcast is None:
        raise TypeError("The result of a sum lacks the numbers that were to be broadcast.")
    return result.broadcast


def _used(gram: FloatArray) -> FloatArray:
    """Return the rotation of U, from its U'U, that makes columns orthogonal; only used ones, longest first."""
    values, vectors = np.linalg.eigh((gram + gram.T) / 2)
    used = values > USED_SHARE**2 * float(values.max(initial=0.0))
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
