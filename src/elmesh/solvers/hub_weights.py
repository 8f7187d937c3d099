r"""Exchanges of weights with a hub: the first U of the paper's problem, and rounds that improve it for few bytes.

Every task sends weights :math:`B_t` of L x d numbers, and the hub of a star sends back
:math:`U = QD^{1/2}`, the leading singular vectors and values of all of them. At first the weights are each task's own
ridge regression. After that they are the best ones in the metric of U,

.. math:: \min_{B_t}\; \tfrac12|H_tB_t - T_t|^2 + \tfrac{\mu_2}2 \langle B_t, (UU' + \epsilon I)^{-1}B_t\rangle .

This is iteratively reweighted least squares for the trace norm of all weights B together (Mohan and Fazel 2012), which
is what the penalties on U and A amount to: :math:`UU'` is a multiple of :math:`(BB')^{1/2}`. With
:math:`\epsilon = 0` weights would stay in the span of U; half of the smallest eigenvalue of :math:`U'U` lets them leave
it. The hub sees the weights of each task.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from elmesh.comm.requests import HubReduce
from elmesh.math.kernels import orthonormal, ridge_in_metric
from elmesh.solvers.base import Problem, Steps
from elmesh.solvers.initialization import Start, initialize, own_weights, random_block
from elmesh.typing import FloatArray

__all__ = ["WEIGHT_ROUNDS", "exchange_own_weights", "exchange_weights"]

#: Rounds that exchange weights after a start from weights, before steps by sums. Each lowers the error of the start for
#: a fraction of a step's bytes, the later ones by little.
WEIGHT_ROUNDS = 3

# Singular values of weights, as a share of the largest, below which a column of U has another direction in its place.
_FLOOR = 1e-6
# Epsilon as a share of the smallest eigenvalue of U'U.
_EPSILON = 0.5
# What quantised messages encode differences of.
_TOPIC = "weights"


def exchange_own_weights(problem: Problem, mu1: float | str, mu2: float | str) -> Steps[Start]:
    """Agree on automatic penalties, and on a first U by one exchange of each task's ridge regression."""
    start = yield from initialize(problem, mu1, mu2, "seed")
    U = yield HubReduce(own_weights(problem.task), partial(_leading, start.U), _TOPIC, problem.rank)
    return Start(_balance(start) * U, start.mu1, start.mu2)


def exchange_weights(problem: Problem, now: Start) -> Steps[FloatArray]:
    """Return the next U: that of the weights which are best in the metric of the present one."""
    U, scale = now.U, _balance(now)
    epsilon = _EPSILON * max(float(np.linalg.eigvalsh(U.T @ U)[0]), 0.0)
    X = ridge_in_metric(problem.task, epsilon, U, np.ones(U.shape[1]), now.mu2)
    L, rank = U.shape
    block = random_block(L, rank, problem.context.seed)
    U = yield HubReduce(epsilon * X + U @ (U.T @ X), partial(_leading_beside, block, U / scale), _TOPIC, rank)
    return np.asarray(scale * U)


def _balance(start: Start) -> float:
    """Return the factor of U that balances its penalty with that of A: mu1 |U|^2 = mu2 |A|^2."""
    return float((start.mu2 / start.mu1) ** 0.25)


def _leading(block: FloatArray, weights: FloatArray) -> FloatArray:
    """Return U = Q D^(1/2), with the leading singular vectors Q and values D of all tasks' weights (m, L, d)."""
    L, rank = block.shape
    Q, D, _ = np.linalg.svd(np.hstack([*weights, np.zeros((L, rank))]), full_matrices=False)
    Q, D = Q[:, :rank], D[:rank]
    # Weights of few directions leave the rest of U to a block that is not zero.
    small = _FLOOR * D[0] >= D
    Q = orthonormal(np.where(small, block, Q * np.sign(Q[np.argmax(np.abs(Q), axis=0), np.arange(rank)])))
    return np.asarray(Q * np.sqrt(np.where(small, _FLOOR * D[0] if D[0] > 0 else 1.0, D)))


def _leading_beside(block: FloatArray, before: FloatArray, weights: FloatArray) -> FloatArray:
    """Return the same U with its columns rotated towards those before, so that few bits encode the difference."""
    U = _leading(block, weights)
    left, _, right = np.linalg.svd(U.T @ before)
    return np.asarray(U @ (left @ right))
