r"""The common and the private part: :math:`T_t = \Phi_t(W + V_t) + \text{noise}`, with variances by evidence.

Given the variances the problem is convex,

.. math::
    \min_{W, V}\; \sum_t \tfrac{w_t}{2}\bigl(|T_t - \Phi_t(W + V_t)|^2 + |V_t|^2_{1/v}\bigr) + \tfrac12|W|^2_{1/c} ,

and solved at once: W from totals over all sites, :math:`V_t = v\,\Phi_t'K_t^{-1}(T_t - \Phi_tW)` by each site alone.
With the whitened residuals :math:`R_t`, the dual value :math:`\sum_t \{\langle R_t, Y_t\rangle - \tfrac12|R_t|^2\} -
\tfrac12|\sum_t X_t'R_t|_c^2` bounds the objective from below.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from elmesh.math.random_effects import SiteBatch, site_batches, whiten
from elmesh.solvers.base import Problem, Steps
from elmesh.solvers.initialization import even_shares
from elmesh.solvers.integer_sums import sum_scaled
from elmesh.solvers.state import MixedEffects
from elmesh.solvers.variance_components import estimate_components
from elmesh.typing import FloatArray, IndexArray

__all__ = [
    "common_penalty",
    "effects_bound",
    "estimate_effects",
    "groups_of",
    "objective_shares",
    "private_weights",
    "refit_common",
]


def groups_of(problem: Problem) -> IndexArray:
    """Return the group of each feature; without groups all features are in one, which is not the constant's."""
    return np.ones(problem.task.V.shape[-2], dtype=np.intp) if problem.groups is None else problem.groups


def estimate_effects(problem: Problem, *, common: bool, private: bool) -> Steps[MixedEffects]:
    """Estimate the variances and W."""
    groups = groups_of(problem)
    batches = site_batches(problem.task, groups)
    found = yield from estimate_components(
        batches, groups, problem.context, common=common, private=private, noise_floor=problem.noise_floor
    )
    return found


def _whitened(
    problem: Problem, effects: MixedEffects
) -> Iterator[tuple[SiteBatch, FloatArray, FloatArray, FloatArray]]:
    """Yield each batch with its weighted, whitened features, targets and residuals."""
    v = np.exp(effects.log_v)
    for batch in site_batches(problem.task, groups_of(problem)):
        (X, Y), _ = whiten(batch, v, batch.Phi, batch.T)
        root = np.exp(effects.log_w[batch.index] / 2)[:, None, None]
        X, Y = root * X, root * Y
        yield batch, X, Y, Y - X @ effects.W


def objective_shares(problem: Problem, effects: MixedEffects) -> FloatArray:
    """Return each site's share of the objective."""
    shares = 0.5 * common_penalty(problem, effects) * even_shares(problem.task, problem.context)
    for batch, _, _, R in _whitened(problem, effects):
        rest = np.exp(effects.log_w[batch.index]) * batch.rest.sum(axis=-1)
        shares[batch.index] += 0.5 * (np.sum(R**2, axis=(-2, -1)) + rest)
    return shares


def effects_bound(problem: Problem, effects: MixedEffects) -> Steps[float]:
    """Return the dual value at the residuals, which no W and V can undercut."""
    m, d = len(problem.task.s), problem.task.Y.shape[-1]
    values, E = np.zeros((m, 1)), np.zeros((m, problem.task.V.shape[-2], d))
    for batch, X, Y, R in _whitened(problem, effects):
        squares, rest = np.sum(R**2, axis=(-2, -1)), np.exp(effects.log_w[batch.index]) * batch.rest.sum(axis=-1)
        values[batch.index, 0] = np.sum(R * Y, axis=(-2, -1)) - squares / 2 + rest / 2
        E[batch.index] = X.mT @ R
    total, gradient = yield from sum_scaled([values, E])
    c = np.exp(effects.log_c)[groups_of(problem)]
    return float(total[0] - 0.5 * np.sum(c[:, None] * gradient**2))


def refit_common(problem: Problem, effects: MixedEffects, shared: FloatArray) -> Steps[MixedEffects]:
    """Return the effects with W at its best for given shared weights of each site, of shape (m, p, d)."""
    E = np.zeros_like(shared)
    for batch, X, _, R in _whitened(problem, effects):
        E[batch.index] = X.mT @ (R - X @ shared[batch.index])
    (gradient,) = yield from sum_scaled([E])
    c = np.exp(effects.log_c)[groups_of(problem)][:, None]
    return replace(effects, W=effects.W + effects.S @ (gradient - effects.W / c))


def common_penalty(problem: Problem, effects: MixedEffects) -> float:
    """Return the square of W in the units of its prior."""
    return float(np.sum(effects.W**2 / np.exp(effects.log_c)[groups_of(problem)][:, None]))


def private_weights(problem: Problem, effects: MixedEffects, shared: FloatArray | None = None) -> FloatArray:
    """Return V of each site, of shape (m, p, d), beside its ``shared`` weights."""
    v, groups = np.exp(effects.log_v), groups_of(problem)
    V = np.zeros((len(problem.task.s), len(groups), problem.task.Y.shape[-1]))
    for batch in site_batches(problem.task, groups):
        weights = effects.W if shared is None else effects.W + shared[batch.index]
        (X, R), _ = whiten(batch, v, batch.Phi, batch.T - batch.Phi @ weights)
        V[batch.index] = v[groups][:, None] * (X.mT @ R)
    return V
