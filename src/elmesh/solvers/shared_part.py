r"""The shared part beside the common and the private one: :math:`T_t = \Phi_t(W + UA_t + V_t) + \text{noise}`.

Minimised over :math:`V_t`, the fit of :math:`UA_t` to what W leaves is the paper's problem with whitened rows
:math:`\sqrt{w_t}K_t^{-1/2}\Phi_t\,v^{1/2}`: in these units a direction costs as much as the private part says that
sites differ along it. Two questions are answered on rows left out within sites, a half of each site's at a time:

1. Is there anything to share? The leading directions Z of one half's correlations :math:`E_t` with the residuals must
   meet those of the other half: :math:`\sum_t\langle Z'E_t, Z'E_t^{\text{out}}\rangle` above its standard error.
2. Which penalty? Along a path from the largest useful one, that with the least error on the other half; if it does not
   beat having no U by a standard error, there is no U.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from weakref import WeakKeyDictionary

import numpy as np

from elmesh.data.statistics import Reduced, Task
from elmesh.math.kernels import orthonormal
from elmesh.math.random_effects import site_batches, whiten
from elmesh.solvers.base import Problem, Steps
from elmesh.solvers.initialization import random_block
from elmesh.solvers.integer_sums import sum_scaled, sum_wide
from elmesh.solvers.mixed_effects import groups_of
from elmesh.solvers.state import MixedEffects
from elmesh.typing import FloatArray

__all__ = ["choose_penalty", "whitened_problem"]

# Vectors and passes of the power iteration.
_WIDTH, _PASSES = 2, 6
# The path of penalties: each is this share of the one before; most of them, and how many in a row may be worse.
_SHARE, _MOST, _PATIENCE = 0.7, 10, 2
# Rows that a penalty is for grow by this factor from a half to all; noise in correlations grows as the root.
_ROWS = 2.0

#: From a problem, a penalty and a start of U to U and the coefficients A of the sites here.
LowRankFit = Callable[[Problem, float, FloatArray | None], Steps[tuple[FloatArray, FloatArray]]]

_whitened: WeakKeyDictionary[Problem, tuple[MixedEffects, Problem]] = WeakKeyDictionary()


def whitened_problem(problem: Problem, effects: MixedEffects) -> Problem:
    """Return the low-rank problem of what W leaves, in units of the private part; made once for a problem."""
    known = _whitened.get(problem)
    if known is None or known[0] is not effects:
        task = _whitened_task(problem, problem.task, effects)
        context = replace(problem.context, n_agents=max(problem.context.n_agents, 2))
        known = effects, replace(problem, task=task, context=context, groups=None, halves=None)
        _whitened[problem] = known
    return known[1]


def _whitened_task(problem: Problem, task: Task, effects: MixedEffects) -> Task:
    v, groups = np.exp(effects.log_v), groups_of(problem)
    root, found = np.sqrt(v)[groups], {}
    for batch in site_batches(task, groups):
        (X, R), _ = whiten(batch, v, batch.Phi, batch.T - batch.Phi @ effects.W)
        for k, t in enumerate(batch.index.tolist()):
            weight = np.exp(effects.log_w[t] / 2)
            rows = weight * np.hstack([X[k] * root, R[k]])
            one = Task.from_reduced(
                Reduced(max(1, int(batch.rows[k])), np.zeros(rows.shape[1]), rows, len(root), False)
            )
            found[t] = replace(one, rest=one.rest + weight**2 * np.sum(batch.rest[k]))
    return Task.stack([found[t] for t in range(len(found))], effects.size)


@dataclass(frozen=True, eq=False)
class _Half:
    """One half of each site's rows to learn from, and the other half to be predicted."""

    problem: Problem
    effects: MixedEffects
    train: Task
    test: Task

    def whitened(self, task: Task) -> Problem:
        return whitened_problem(replace(self.problem, task=task), self.effects)

    def correlations(self, task: Task) -> FloatArray:
        """Return each site's correlation of whitened features with what W leaves, of shape (m, p, d)."""
        v, groups, W = np.exp(self.effects.log_v), groups_of(self.problem), self.effects.W
        root, E = np.sqrt(v)[groups][:, None], np.zeros((len(task.s), *W.shape))
        for batch in site_batches(task, groups):
            (X, R), _ = whiten(batch, v, batch.Phi, batch.T - batch.Phi @ W)
            E[batch.index] = np.exp(self.effects.log_w[batch.index])[:, None, None] * (root * (X.mT @ R))
        return E

    def errors(self, B: FloatArray) -> FloatArray:
        """Return each site's squared error on its left-out rows with shared weights B (m, p, d), V_t learnt here."""
        v, groups, W = np.exp(self.effects.log_v), groups_of(self.problem), self.effects.W
        weights = np.zeros_like(B)
        for batch in site_batches(self.train, groups):
            shared = B[batch.index]
            (X, R), _ = whiten(batch, v, batch.Phi, batch.T - batch.Phi @ (W + shared))
            weights[batch.index] = W + shared + v[groups][:, None] * (X.mT @ R)
        errors = np.zeros(len(B))
        for batch in site_batches(self.test, groups):
            R = batch.T - batch.Phi @ weights[batch.index]
            errors[batch.index] = np.exp(self.effects.log_w[batch.index]) * np.sum(R**2, axis=(-2, -1))
        return errors


def choose_penalty(problem: Problem, effects: MixedEffects, fit: LowRankFit) -> Steps[float | None]:
    """Return the penalty lambda of U A at which left-out rows are predicted best, or None for no U."""
    if problem.halves is None or not np.any(effects.log_v > -np.inf):
        return None
    halves = [_Half(problem, effects, *pair) for pair in (problem.halves, problem.halves[::-1])]
    norms, agreement = [], np.zeros(len(problem.task.s))
    for half in halves:
        inside, outside = half.correlations(half.train), half.correlations(half.test)
        Z, norm = yield from _leading(inside, problem.context.seed)
        agreement += np.sum((inside.mT @ Z) * (outside.mT @ Z), axis=(-2, -1))
        norms.append(norm)
    if min(norms) == 0:
        # To the precision of sums W leaves nothing.
        return None
    total, square = (yield from sum_wide(_scaled_moments(agreement, norms))).tolist()
    if not total > np.sqrt(square):
        return None
    return (yield from _search(halves, norms, fit))


def _search(halves: list[_Half], norms: list[float], fit: LowRankFit) -> Steps[float | None]:
    """Return the best penalty of the path for all rows."""
    m, p, d = len(halves[0].effects.log_w), *halves[0].effects.W.shape
    root = np.exp(halves[0].effects.log_v / 2)[groups_of(halves[0].problem)]
    base = [half.errors(np.zeros((m, p, d))) for half in halves]
    starts: list[FloatArray | None] = [None] * len(halves)
    best, least, worse = None, 0.0, 0
    for k in range(1, _MOST + 1):
        change = np.zeros(m)
        for i, half in enumerate(halves):
            U, A = yield from fit(half.whitened(half.train), _SHARE**k * norms[i], starts[i])
            starts[i] = U
            change += half.errors(root[:, None] * (U @ A)) - base[i]
        total, square = (yield from sum_wide(np.column_stack([change, change**2]))).tolist()
        if total < least:
            best, least, worse, error = k, total, 0, np.sqrt(square)
        else:
            worse += 1
            if worse >= _PATIENCE:
                break
    if best is None or -least <= error:
        return None
    return float(_SHARE**best * np.mean(norms) * np.sqrt(_ROWS))


def _leading(E: FloatArray, seed: int) -> Steps[tuple[FloatArray, float]]:
    """Return the leading directions of all sites' correlations side by side, and their operator norm."""
    Z = random_block(E.shape[-2], min(E.shape[-2], _WIDTH), seed)
    norm = 0.0
    for _ in range(_PASSES):
        (image,) = yield from sum_scaled([E @ (E.mT @ Z)])
        norm = float(np.sqrt(max(np.linalg.eigvalsh(Z.T @ image)[-1], 0.0)))
        if norm == 0:
            break
        Z = orthonormal(image)
    return Z, norm


def _scaled_moments(agreement: FloatArray, norms: list[float]) -> FloatArray:
    """Return each site's agreement and its square, in units in which neither overflows."""
    unit = float(np.prod(norms))
    return np.column_stack([agreement / unit, (agreement / unit) ** 2])
