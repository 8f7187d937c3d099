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

from elmesh.comm.integer_sums import sum_scaled
from elmesh.math.evidence import spread_rows
from elmesh.math.random_effects import SiteBatch, expected_likelihood, precision_times
from elmesh.solvers.base import Problem, Steps
from elmesh.solvers.initialization import even_shares
from elmesh.solvers.state import MixedEffects
from elmesh.solvers.variance_components import FIRST_SPREAD, estimate_components
from elmesh.typing import FloatArray, IndexArray

__all__ = [
    "common_penalty",
    "effects_bound",
    "estimate_effects",
    "groups_of",
    "objective_shares",
    "private_weights",
    "refit_common",
    "with_site_noise",
]


def groups_of(problem: Problem) -> IndexArray:
    """Return the group of each feature."""
    return problem.sites[0].groups


def estimate_effects(
    problem: Problem, *, common: bool, private: bool, weigh: bool = True, bits: int = 64
) -> Steps[MixedEffects]:
    """Estimate the variances and W; ``bits`` are those of each number in a sum of matrices."""
    effects = yield from estimate_components(
        problem.sites,
        problem.context,
        common=common,
        private=private,
        weigh=weigh,
        noise_floor=problem.noise_floor,
        classes=problem.classes,
        subtracted=problem.subtracted,
        most_features=problem.most_features,
        bits=bits,
    )
    for batch in problem.sites:
        batch.release()
    return effects


def _residuals(
    problem: Problem, effects: MixedEffects, shared: FloatArray | None = None
) -> Iterator[tuple[SiteBatch, FloatArray, FloatArray]]:
    """Yield each batch with its residuals R beside the common and any shared weights, and K^-1 R."""
    v = np.exp(effects.log_v)
    for batch in problem.sites:
        weights = effects.W if shared is None else effects.W + shared[batch.index]
        R = batch.T - batch.Phi @ weights
        yield batch, R, precision_times(batch, v, R)


def objective_shares(problem: Problem, effects: MixedEffects) -> FloatArray:
    """Return each site's share of the objective."""
    shares = 0.5 * common_penalty(problem, effects) * even_shares(problem.shape[:1], problem.context)
    for batch, R, KR in _residuals(problem, effects):
        squares = np.sum(R * KR, axis=(-2, -1)) + batch.rest.sum(axis=-1)
        shares[batch.index] += 0.5 * np.exp(effects.log_w[batch.index]) * squares
    return shares


def effects_bound(problem: Problem, effects: MixedEffects) -> Steps[float]:
    """Return the dual value at the residuals, which no W and V can undercut."""
    values, E = np.zeros((problem.shape[0], 1)), np.zeros(problem.shape)
    for batch, R, KR in _residuals(problem, effects):
        w = np.exp(effects.log_w[batch.index])
        products = np.sum((batch.T - R / 2) * KR, axis=(-2, -1)) + batch.rest.sum(axis=-1) / 2
        values[batch.index, 0] = w * products
        E[batch.index] = w[:, None, None] * (batch.Phi.mT @ KR)
    features = effects.features
    total, gradient = yield from sum_scaled([values, E if features is None else E[:, features]])
    c = np.exp(effects.log_c)[groups_of(problem)]
    c = c if features is None else c[features]
    return float(total[0] - 0.5 * np.sum(c[:, None] * gradient**2))


def refit_common(problem: Problem, effects: MixedEffects, shared: FloatArray) -> Steps[MixedEffects]:
    """Return the effects with W at its best for given shared weights of each site, of shape (m, p, d)."""
    E = np.zeros_like(shared)
    for batch, _, KR in _residuals(problem, effects, shared):
        E[batch.index] = np.exp(effects.log_w[batch.index])[:, None, None] * (batch.Phi.mT @ KR)
    features = effects.features
    (gradient,) = yield from sum_scaled([E if features is None else E[:, features]])
    c = np.exp(effects.log_c)[groups_of(problem)][:, None]
    return replace(effects, W=effects.W + effects.S @ (spread_rows(gradient, features, len(c)) - effects.W / c))


def common_penalty(problem: Problem, effects: MixedEffects) -> float:
    """Return the square of W in the units of its prior."""
    return float(np.sum(effects.W**2 / np.exp(effects.log_c)[groups_of(problem)][:, None]))


def private_weights(problem: Problem, effects: MixedEffects, shared: FloatArray | None = None) -> FloatArray:
    """Return V of each site, of shape (m, p, d), beside its ``shared`` weights."""
    v, V = np.exp(effects.log_v)[groups_of(problem)][:, None], np.zeros(problem.shape)
    for batch, _, KR in _residuals(problem, effects, shared):
        V[batch.index] = v * (batch.Phi.mT @ KR)
    return V


def with_site_noise(problem: Problem, effects: MixedEffects) -> MixedEffects:
    """Return the effects with each site's own noise, found from its rows alone: for intervals, not for weights."""
    log_w, v = effects.log_w.copy(), np.exp(effects.log_v)
    for batch, R, _ in _residuals(problem, effects):
        covariance, none = batch.Phi @ effects.S @ batch.Phi.mT, np.zeros((*batch.Phi.shape[:2], 0))
        floor = problem.noise_floor * batch.squares / batch.rows[:, None]
        found = expected_likelihood(batch, R, covariance, none, v, effects.s2, effects.s2, FIRST_SPREAD, floor)
        log_w[batch.index] = found.log_weights
    return replace(effects, log_w=log_w, tau2=FIRST_SPREAD)
