r"""The shared part beside the common and the private one: :math:`T_t = \Phi_t(W + UA_t + V_t) + \text{noise}`.

Minimised over :math:`V_t`, the fit of :math:`UA_t` to what W leaves is the paper's problem with whitened rows
:math:`\sqrt{w_t}K_t^{-1/2}\Phi_t\,v^{1/2}`: in these units a direction costs as much as the private variance implies
that sites differ along it. Two questions are answered on rows left out within sites, a half of each site's at a time:

1. Is it worth while to look? The leading directions Z of one half's correlations with the residuals, with
   coefficients that vary among sites as much as their private weights do, must lower the error on the other half.
2. Which penalty? Along a path from the largest useful one, that with the least error on the other half; if it does not
   beat having no U by a standard error, there is no U.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from weakref import WeakKeyDictionary

import numpy as np

from elmesh.comm.integer_sums import sum_scaled, sum_wide
from elmesh.data.statistics import Task
from elmesh.math.kernels import orthonormal
from elmesh.math.random_effects import precision_times, whiten
from elmesh.solvers.base import Problem, Steps
from elmesh.solvers.initialization import random_block
from elmesh.solvers.mixed_effects import groups_of, private_weights
from elmesh.solvers.state import MixedEffects
from elmesh.typing import FloatArray

__all__ = ["choose_penalty", "starting_basis", "whitened_problem"]

# Passes of the power iteration.
_PASSES = 6
# The path of penalties: each is this share of the one before; most of them, and how many in a row may be worse.
_SHARE, _MOST, _PATIENCE = 0.7, 10, 2
# The gain of one site alone is its own standard error: the rounding of sums does not decide.
_ROUNDING = 1e-6
# Rows that a penalty is for grow by this factor from a half to all; noise in correlations grows as the root.
_ROWS = 2.0

#: From a problem, a penalty and a start of U to U and the coefficients A of the sites here.
LowRankFit = Callable[[Problem, float, FloatArray], Steps[tuple[FloatArray, FloatArray]]]

_whitened: WeakKeyDictionary[Problem, tuple[MixedEffects, Problem]] = WeakKeyDictionary()


def whitened_problem(problem: Problem, effects: MixedEffects) -> Problem:
    """Return the low-rank problem of what W leaves, in units of the private part; made once for a problem.

    Its tasks are rows as they are: variable projection and the certificate need no decomposition.
    """
    known = _whitened.get(problem)
    if known is None or known[0] is not effects:
        context = replace(problem.context, n_agents=max(problem.context.n_agents, 2))
        known = effects, Problem(_whitened_task(problem, effects), context, problem.rank)
        _whitened[problem] = known
    return known[1]


def _whitened_task(problem: Problem, effects: MixedEffects) -> Task:
    v, groups = np.exp(effects.log_v), groups_of(problem)
    root, (m, p, d) = np.sqrt(v)[groups], problem.shape
    # All processes pad to the same number of rows, so that products have the same bits in all of them.
    q = effects.size
    V, s, Y, rest, rows = np.zeros((m, p, q)), np.zeros((m, q)), np.zeros((m, q, d)), np.zeros(m), np.zeros(m)
    for batch in problem.sites:
        (X, R), _ = whiten(batch, v, batch.Phi, batch.T - batch.Phi @ effects.W)
        weight, n = np.exp(effects.log_w[batch.index] / 2)[:, None, None], X.shape[1]
        V[batch.index, :, :n] = (weight * X * _released(root, effects)).mT
        Y[batch.index, :n] = weight * R
        s[batch.index, :n] = 1.0
        rest[batch.index] = np.square(weight[:, 0, 0]) * batch.rest.sum(axis=-1)
        rows[batch.index] = batch.rows
    return Task(V, s, Y, rest, rows)


def _released(root: FloatArray, effects: MixedEffects) -> FloatArray:
    """Return the units of features, zero for those that have no shared weights."""
    return root if effects.released is None else root * effects.released


def starting_basis(problem: Problem, effects: MixedEffects, columns: int) -> Steps[tuple[FloatArray, float]]:
    """Return a start of U in the units of the whitened problem, and the norm of the correlations with what W leaves.

    It has the leading directions of the correlations, each as long as the coefficients along it are.
    """
    Z, norm = yield from _leading(_correlations(problem, effects), columns, problem.context.seed)
    A = _coefficients(problem, effects, Z)
    squares = yield from sum_wide(np.sum(A**2, axis=-1))
    return Z * squares**0.25, norm


def _coefficients(problem: Problem, effects: MixedEffects, Z: FloatArray) -> FloatArray:
    """Return each site's coefficients (m, r, d) along orthonormal Z, with the prior of private weights."""
    v, A = np.exp(effects.log_v), np.zeros((problem.shape[0], Z.shape[1], problem.shape[2]))
    U = np.sqrt(v)[groups_of(problem)][:, None] * Z
    for batch in problem.sites:
        (XU, R), _ = whiten(batch, v, batch.Phi @ U, batch.T - batch.Phi @ effects.W)
        A[batch.index] = np.linalg.solve(XU.mT @ XU + np.eye(U.shape[1]), XU.mT @ R)
    return A


@dataclass(frozen=True, eq=False)
class _Half:
    """One half of each site's rows to learn from, and the other half to be predicted."""

    train: Problem
    test: Problem
    effects: MixedEffects

    @property
    def root(self) -> FloatArray:
        """The root of the private variance of each feature, as a column."""
        return np.exp(self.effects.log_v / 2)[groups_of(self.train)][:, None]

    def errors(self, B: FloatArray) -> FloatArray:
        """Return each site's squared error on its left-out rows with shared weights B (m, p, d), V_t learnt here."""
        weights = self.effects.W + B + private_weights(self.train, self.effects, B)
        errors = np.zeros(len(B))
        for batch in self.test.sites:
            R = batch.T - batch.Phi @ weights[batch.index]
            errors[batch.index] = np.exp(self.effects.log_w[batch.index]) * np.sum(R**2, axis=(-2, -1))
        return errors


def choose_penalty(
    problem: Problem, effects: MixedEffects, fit: LowRankFit, columns: int
) -> Steps[tuple[float, FloatArray] | None]:
    """Return the penalty lambda of U A at which left-out rows are predicted best, with a start of U; None for no U."""
    if problem.halves is None or not np.any(effects.log_v > -np.inf):
        return None
    first, second = (replace(problem, data=half, halves=None) for half in problem.halves())
    halves = [_Half(first, second, effects), _Half(second, first, effects)]
    norms, starts, change = [], [], np.zeros(problem.shape[0])
    for half in halves:
        U, norm = yield from starting_basis(half.train, effects, columns)
        norms.append(norm)
        starts.append(U)
        if norm == 0:
            # To the precision of sums W leaves nothing.
            return None
        Z = orthonormal(U)
        B = half.root * (Z @ _coefficients(half.train, effects, Z))
        change += half.errors(B) - half.errors(np.zeros(problem.shape))
    (total,) = (yield from sum_wide(change[:, None])).tolist()
    return None if total >= 0 else (yield from _search(halves, norms, starts, fit))


def _correlations(problem: Problem, effects: MixedEffects) -> FloatArray:
    """Return each site's correlation of whitened features with what W leaves, of shape (m, p, d)."""
    v, E = np.exp(effects.log_v), np.zeros(problem.shape)
    root = _released(np.sqrt(v)[groups_of(problem)], effects)[:, None]
    for batch in problem.sites:
        KR = precision_times(batch, v, batch.T - batch.Phi @ effects.W)
        E[batch.index] = np.exp(effects.log_w[batch.index])[:, None, None] * (root * (batch.Phi.mT @ KR))
    return E


def _search(
    halves: list[_Half], norms: list[float], starts: list[FloatArray], fit: LowRankFit
) -> Steps[tuple[float, FloatArray] | None]:
    """Return the best penalty of the path for all rows, and U of a half at it."""
    shape, effects = halves[0].train.shape, halves[0].effects
    base = [half.errors(np.zeros(shape)) for half in halves]
    best, least, worse, error, start = None, 0.0, 0, 0.0, starts[0]
    for k in range(1, _MOST + 1):
        change = np.zeros(shape[0])
        for i, half in enumerate(halves):
            starts[i], A = yield from fit(whitened_problem(half.train, effects), _SHARE**k * norms[i], starts[i])
            change += half.errors(half.root * (starts[i] @ A)) - base[i]
        total, square = (yield from sum_wide(np.column_stack([change, change**2]))).tolist()
        if total < least:
            best, least, worse, error, start = k, total, 0, float(np.sqrt(square)), starts[0]
        else:
            worse += 1
            if worse >= _PATIENCE:
                break
    if best is None or -least <= (1.0 + _ROUNDING) * error:
        return None
    return float(_SHARE**best * np.mean(norms) * np.sqrt(_ROWS)), start


def _leading(E: FloatArray, columns: int, seed: int) -> Steps[tuple[FloatArray, float]]:
    """Return the leading directions of all sites' correlations side by side, and their operator norm."""
    Z = random_block(E.shape[-2], min(E.shape[-2], columns), seed)
    norm = 0.0
    for _ in range(_PASSES):
        (image,) = yield from sum_scaled([E @ (E.mT @ Z)])
        norm = float(np.sqrt(max(np.linalg.eigvalsh(Z.T @ image)[-1], 0.0)))
        if norm == 0:
            break
        Z = orthonormal(image)
    return Z, norm
