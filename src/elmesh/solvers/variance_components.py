r"""Variances by evidence: how much of the weights is common, how much is private, and the noise of each site.

The model is :math:`T_t = \Phi_t(W + V_t) + \text{noise}` (:mod:`elmesh.math.random_effects`,
:mod:`elmesh.math.evidence`). Its variances are estimated by expectation-maximisation with W latent:

1. at the present private variances, one sum over all sites of a p x p matrix and a p x d one; every site then finds the
   common variances, W and its uncertainty by itself;
2. with W held at its posterior, the private variances and the sites' noise, by Newton steps of which each sums a few
   numbers over all sites.

Few matrix sums are enough, and more would give sites away: totals at many variances separate the sites' terms. So would
totals of nearly as many features as there are rows: they determine single rows. Where that matters, only some of the
features have common weights, and only their totals are summed; private weights have all features.

All sums are of integers (:mod:`elmesh.comm.fixed_point`), so they are equal to the bit for any graph and any number of
processes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from elmesh.comm.fixed_point import from_scaled, scaled_exponent, to_scaled
from elmesh.comm.integer_sums import sum_wide
from elmesh.comm.requests import IntegerSum, Topic
from elmesh.data.features import uniform
from elmesh.math.class_link import class_shares
from elmesh.math.evidence import (
    HYPERPRIOR,
    Totals,
    as_probable,
    common_draws,
    common_part,
    maximize_evidence,
    spread_rows,
    spread_square,
)
from elmesh.math.random_effects import SiteBatch, expected_likelihood, padded_size, whiten
from elmesh.solvers.base import AgentContext, Steps
from elmesh.solvers.class_scale import choose_class_scale
from elmesh.solvers.integer_sums import from_first
from elmesh.solvers.state import MixedEffects
from elmesh.typing import FloatArray, IndexArray

__all__ = [
    "FIRST_COMMON",
    "FIRST_SPREAD",
    "MATRIX_SUMS",
    "estimate_components",
    "matrix_bits",
    "matrix_sums",
    "released_features",
]

#: Sums of a p x p matrix, with a common and a private part.
MATRIX_SUMS = 3
# Where the search starts: variances relative to the noise, and the prior variance of log-noise among sites.
_FIRST_CONSTANT, _FIRST_PRIVATE, FIRST_COMMON, FIRST_SPREAD = 0.3, 0.1, 1.0, 0.25
# Prior variance of the common constant: as good as unpenalised; and of weights that there are not.
_CONSTANT, _ABSENT = 1e6, 1e-300
# Most that rounding moves an eigenvalue of totals, in units of the integers and of the root of sites times features.
_ROUNDING = 2.0
# Targets that never vary have at least this mean square.
_LEAST_SQUARES = 1e-12
# Newton steps per round, the expected fall of -2 log likelihood at which they end, and the longest step in
# log-variances.
_STEPS, _SETTLED, _LONGEST = 12, 0.1, 2.5
_LEAST_LOG, _LARGEST_LOG = -25.0, 12.0
# Log-variances that machines compute from the same totals differ by less.
_SAME = 0.1
# Draws of the common part, for the approximate Hessian.
_DRAWS = 4
# Levenberg-Marquardt damping.
_DAMPING, _EASE, _TIGHTEN, _MOST_DAMPING = 1e-3, 0.2, 8.0, 1e6
# Least curvature that is damped, as a share of the largest.
_LEAST_CURVED = 1e-12


def estimate_components(
    batches: Sequence[SiteBatch],
    context: AgentContext,
    *,
    common: bool,
    private: bool,
    weigh: bool = True,
    noise_floor: float = 0.0,
    classes: bool = False,
    subtracted: FloatArray | None = None,
    most_features: int | None = None,
    bits: int = 64,
) -> Steps[MixedEffects]:
    """Estimate all variances over the sites of all processes.

    With ``weigh`` each site has a noise of its own, otherwise all have the same. At most ``most_features`` have common
    weights (:func:`released_features`); None for no limit. ``bits`` are those of each number in a sum of matrices.

    ``noise_floor`` is the least variance of noise as a share of the targets': classes are known for certain, but a
    model that takes their indicators for numbers without noise interpolates them. With ``classes`` the common variances
    and how scores become probabilities are then chosen by log loss (:mod:`elmesh.solvers.class_scale`);
    ``subtracted`` is what was subtracted from the indicators of classes that all sites share.
    """
    groups = batches[0].groups
    sites, p, d = _Sites(batches, context, bits), len(groups), batches[0].T.shape[-1]
    G = int(groups.max()) + 1
    log_c = np.log(np.full(G, FIRST_COMMON) if common else np.full(G, _ABSENT))
    log_v = np.log(np.full(G, _FIRST_PRIVATE) if private else np.full(G, _ABSENT))
    if common:
        log_c[0] = np.log(_CONSTANT)
    if private:
        log_v[0] = np.log(_FIRST_CONSTANT)
    own = [np.column_stack([batch.rows, np.sum(batch.T**2, axis=-2) + batch.rest, _sizes(batch)]) for batch in batches]
    total = yield from sum_wide(np.concatenate(own))
    n, squares, sizes = float(total[0]), total[1 : 1 + d], total[1 + d :]
    sites.floor, sites.count = noise_floor * squares / n, float(sizes.sum())
    size = min(1 << int(np.flatnonzero(sizes)[-1]), _most_rows(batches[0]))
    W, S, s2 = np.zeros((p, d)), np.zeros((p, p)), np.maximum(squares, _LEAST_SQUARES * n) / n
    # Without private weights all sites have the same noise.
    spread = FIRST_SPREAD if private and weigh else 0.0
    released = None if most_features is None else released_features(groups, most_features)
    now = MixedEffects(log_c, log_v, spread, W, S, s2, np.zeros(sites.m), size, released=released)
    features = now.features
    if not common:
        for _ in range(MATRIX_SUMS - 1):
            now = yield from sites.maximize(now, np.zeros((p, 0)))
        return now
    of = groups if features is None else groups[features]
    free = np.intersect1d(np.arange(1, G), of)
    now.log_c[np.setdiff1d(np.arange(1, G), of)] = np.log(_ABSENT)
    noise = np.sign(uniform((context.seed, 3), p * _DRAWS)).reshape(p, _DRAWS)[: len(of)]
    for k in range(MATRIX_SUMS):
        totals = yield from sites.totals(np.exp(now.log_v), np.exp(now.log_w), n, features)
        own_log_c = maximize_evidence(totals, of, now.log_c, free)
        log_c = yield from from_first(context, own_log_c, _SAME, partial(as_probable, totals, of, own_log_c))
        W, S, s2 = common_part(totals, of, log_c)
        now = replace(now, log_c=log_c, W=spread_rows(W, features, p), S=spread_square(S, features, p), s2=s2)
        if k == MATRIX_SUMS - 1 or not private:
            break
        draws = common_draws(totals, of, log_c, noise)
        now = yield from sites.maximize(now, spread_rows(draws, features, p))
    if not classes:
        return now
    if subtracted is not None:
        now = replace(now, shares=class_shares(squares / n, subtracted))
    return (yield from choose_class_scale(batches, context, now, totals, subtracted))


def matrix_sums(*, common: bool, private: bool) -> int:
    """Return how many sums of a p x p matrix an estimate takes."""
    return 0 if not common else MATRIX_SUMS if private else 1


def matrix_bits(message_bits: int | str) -> int:
    """Return the bits of each number in sums of matrices: 64, or 32 with fewer bits per number.

    With 16 bits the rounding of the terms is larger than the least eigenvalues of the totals.
    """
    return 64 if message_bits == 64 else 32


def released_features(groups: IndexArray, most: int) -> FloatArray:
    """Return which features may have common weights, if there may be at most so many: ones and zeros.

    The constant always may. So may the inputs, if there are not too many of them: some of them would not do, but each
    hidden unit is a combination of all. Of hidden units as many as are left may, the first ones of each group, in equal
    parts.

    Examples
    --------
    >>> groups = np.array([0, 1, 1, 2, 2, 2, 3, 3, 3])
    >>> released_features(groups, most=5)
    array([1., 1., 1., 1., 0., 0., 1., 0., 0.])
    >>> released_features(groups, most=2)
    array([1., 0., 0., 0., 0., 0., 1., 0., 0.])
    """
    chosen: NDArray[np.bool_] = groups == 0
    if np.count_nonzero(groups <= 1) <= most:
        chosen |= groups == 1
    hidden = sorted([np.flatnonzero(groups == g) for g in range(2, int(groups.max()) + 1)], key=len)
    left = max(most - int(chosen.sum()), 0)
    for k, own in enumerate(hidden):
        # What smaller groups have left is shared among those that follow.
        part = min(len(own), left // (len(hidden) - k))
        chosen[own[:part]] = True
        left -= part
    return chosen.astype(np.float64)


def _sizes(batch: SiteBatch) -> FloatArray:
    """Return ones in the column of the least power of two that no part of a site's rows exceeds when padded."""
    most = _most_rows(batch)
    sizes = [padded_size(min(int(rows), most)) for rows in batch.rows]
    columns = np.arange((most - 1).bit_length() + 1)
    return np.array([columns == (size - 1).bit_length() for size in sizes], dtype=np.float64)


def _most_rows(batch: SiteBatch) -> int:
    """Return the padded number of rows that no site exceeds: more rows than features and targets are reduced."""
    return padded_size(batch.Phi.shape[-1] + batch.T.shape[-1])


class _Sites:
    """The sites of one process, and sums over those of all processes."""

    def __init__(self, batches: Sequence[SiteBatch], context: AgentContext, bits: int = 64) -> None:
        self._batches, self._context, self._bits = batches, context, bits
        self._index = np.concatenate([batch.index for batch in batches])
        self.m, self.floor = len(self._index), np.zeros(batches[0].T.shape[-1])
        #: Number of sites of all processes.
        self.count = float(self.m)
        # Whitening shortens every column, so that these bound all entries of a site's totals.
        squares = [np.max(np.sum(batch.Phi**2, axis=-2), axis=-1) for batch in batches]
        energy = [np.max(np.sum(batch.T**2, axis=-2) + batch.rest, axis=-1) for batch in batches]
        self._bounds = np.stack([self._ordered(squares), self._ordered(energy)], axis=-1)

    def _ordered(self, values: Sequence[FloatArray]) -> FloatArray:
        """Return values of all sites in their order, from those of each batch."""
        joined = np.concatenate(list(values))
        ordered = np.empty_like(joined)
        ordered[self._index] = joined
        return ordered

    def totals(self, v: FloatArray, w: FloatArray, rows: float, features: IndexArray | None) -> Steps[Totals]:
        """Return the whitened totals over all sites, of some features or of all."""
        p = self._batches[0].Phi.shape[-1] if features is None else len(features)
        d = self._batches[0].T.shape[-1]
        if self._bits == 64:
            unit = np.ones(p), np.ones(d)
            largest, energy = (yield from sum_wide(w[:, None] * self._bounds)).tolist()
        else:
            unit, largest, energy = (yield from self._units(v, w, features)), 1.0, 1.0
        bounds = largest, np.sqrt(largest * energy), energy
        exponents = [scaled_exponent(bound, self._bits) for bound in bounds]
        upper = np.triu_indices(p)
        Q, b, squares = np.zeros((p, p), np.int64), np.zeros((p, d), np.int64), np.zeros(d, np.int64)
        for batch in self._batches:
            X, Y, own = self._whitened(batch, v, w, features)
            if self._bits != 64:
                X, Y, own = X / unit[0], Y / unit[1], own / unit[1] ** 2
            for k in range(len(X)):
                # One by one: NumPy computes half of a product of a matrix with its own transpose.
                Q += to_scaled(X[k].T @ X[k], exponents[0])
                b += to_scaled(X[k].T @ Y[k], exponents[1])
                squares += to_scaled(own[k], exponents[2])
        sums = [Q[upper], b.ravel(), squares]
        total = yield IntegerSum(np.concatenate(sums), Topic.MATRIX, self._bits)
        ends = np.cumsum([part.size for part in sums])[:-1]
        found = [from_scaled(part, e) for part, e in zip(np.split(total, ends), exponents, strict=True)]
        whole = np.zeros((p, p))
        whole[upper] = found[0]
        whole = whole + np.triu(whole, 1).T
        # The integers nearest to each site's numbers: without this a singular matrix could have a negative eigenvalue.
        whole[np.arange(p), np.arange(p)] += _ROUNDING * np.sqrt(p * self.count) * 2.0 ** -exponents[0]
        if self._bits != 64:
            whole, found[1] = whole * np.outer(unit[0], unit[0]), found[1] * np.outer(*unit).ravel()
            found[2] = found[2] * unit[1] ** 2
        return Totals(whole, found[1].reshape(p, d), found[2] + rows * self.floor, rows)

    def _whitened(
        self, batch: SiteBatch, v: FloatArray, w: FloatArray, features: IndexArray | None
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return whitened features and targets of a batch, times the roots of the weights, and the targets' squares."""
        (X, Y), _ = whiten(batch, v, batch.Phi, batch.T)
        root = np.sqrt(w[batch.index])[:, None, None]
        X, Y = root * (X if features is None else X[..., features]), root * Y
        return X, Y, np.sum(Y**2, axis=-2) + w[batch.index][:, None] * batch.rest

    def _units(self, v: FloatArray, w: FloatArray, features: IndexArray | None) -> Steps[tuple[FloatArray, FloatArray]]:
        """Return the roots of the diagonals of the totals.

        In these units no entry of a total is above one, so that few bits serve features of any size.
        """
        squares = []
        for batch in self._batches:
            X, _, own = self._whitened(batch, v, w, features)
            squares.append(np.hstack([np.sum(X**2, axis=-2), own]))
        total = np.sqrt((yield from sum_wide(self._ordered(squares))))
        unit = np.where(total > 0, total, 1.0)
        d = self._batches[0].T.shape[-1]
        return unit[:-d], unit[-d:]

    def maximize(self, now: MixedEffects, draws: FloatArray) -> Steps[MixedEffects]:
        """Return the effects with private variances, noise and weights at the maximum of the expected likelihood.

        ``draws`` (p, k) are draws of W about its mean.
        """
        W, S, prior = now.W, now.S, now.s2
        known = [
            (batch, batch.T - batch.Phi @ W, batch.Phi @ S @ batch.Phi.mT, batch.Phi @ draws) for batch in self._batches
        ]
        G, d = len(now.log_v), len(prior)
        rows, columns = np.triu_indices(G + d)

        def evaluate(theta: FloatArray) -> Steps[tuple[float, FloatArray, FloatArray, FloatArray]]:
            v, s2 = np.exp(theta[:G]), np.exp(theta[G:])
            parts = [
                expected_likelihood(batch, R, M, Z, v, s2, prior, now.tau2, self.floor) for batch, R, M, Z in known
            ]
            own = [np.column_stack([part.value, part.gradient, part.hessian[:, rows, columns]]) for part in parts]
            total = yield from sum_wide(np.concatenate(own))
            hessian = np.zeros((G + d, G + d))
            hessian[rows, columns] = hessian[columns, rows] = total[1 + G + d :]
            gradient = total[1 : 1 + G + d].copy()
            gradient[:G] += 2 * HYPERPRIOR * theta[:G]
            hessian[np.arange(G), np.arange(G)] += 2 * HYPERPRIOR
            value = float(total[0]) + HYPERPRIOR * float(theta[:G] @ theta[:G])
            return value, gradient, hessian, self._ordered([part.log_weights for part in parts])

        theta, damping = np.concatenate([now.log_v, np.log(prior)]), _DAMPING
        value, gradient, hessian, log_w = yield from evaluate(theta)
        for _ in range(_STEPS):
            # A variance that falls towards zero changes less and less per unit of its logarithm.
            curved = hessian + np.diag(np.maximum(gradient, 0.0) * (np.arange(G + d) < G))
            diagonal = np.diag(curved)
            # Of a column that does not vary, nothing follows for its noise.
            damped = curved + damping * np.diag(np.maximum(diagonal, _LEAST_CURVED * float(np.max(diagonal))))
            step = -np.linalg.solve(damped, gradient)
            if -float(gradient @ step) / 2 <= _SETTLED:
                break
            trial = theta + np.clip(step, -_LONGEST, _LONGEST)
            trial[:G] = np.clip(trial[:G], _LEAST_LOG, _LARGEST_LOG)
            found = yield from evaluate(trial)
            if found[0] < value:
                theta = trial
                value, gradient, hessian, log_w = found
                damping *= _EASE
            else:
                damping *= _TIGHTEN
                if damping > _MOST_DAMPING:
                    break
        theta = yield from from_first(self._context, theta, _SAME)
        if now.tau2 == 0:
            return replace(now, log_v=theta[:G], s2=np.exp(theta[G:]))
        n_rows = self._ordered([batch.rows for batch in self._batches])
        spread = log_w**2 + 1.0 / (d * n_rows / 2 + 1.0 / now.tau2)
        total, m = (yield from sum_wide(np.column_stack([spread, np.ones(self.m)]))).tolist()
        return replace(now, log_v=theta[:G], s2=np.exp(theta[G:]), log_w=log_w, tau2=max(total / m, 1e-6))
