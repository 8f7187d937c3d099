r"""Effects at variances that are known from similar features: one sum of a matrix, in one place, without a search.

Settings of the features are compared by rows left out, and for that variances need not be found again. Those of other
features are taken over such that each group keeps its share of the predictions: with :math:`e_g` the mean square of the
features of group g, :math:`v_g e_g` and :math:`c_g e_g` stay the same. At these private variances one sum gives the
common variances of largest evidence and W, as a round of :mod:`elmesh.solvers.variance_components` does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from elmesh.math.evidence import Totals, common_part, maximize_evidence
from elmesh.math.random_effects import SiteBatch, whiten
from elmesh.solvers.base import AgentContext
from elmesh.solvers.class_scale import choose_class_scale
from elmesh.solvers.integer_sums import run_in_one_place
from elmesh.solvers.state import MixedEffects
from elmesh.solvers.variance_components import FIRST_COMMON
from elmesh.typing import FloatArray, IndexArray

__all__ = ["effects_from", "group_squares", "variances_from"]

# The search for common variances ends when the evidence changes by a few parts in a hundred thousand: predictions of
# rows left out are the same to more digits than matter.
_FACTR = 1e11
# Least share of a group's private weights in the variance of predictions, in units of the noise; variances that are as
# good as none.
_LEAST_PRIVATE, _ABSENT = 0.003, 1e-100


def group_squares(batches: Sequence[SiteBatch]) -> FloatArray:
    """Return the mean over all rows of the sum of squares of the features of each group."""
    by_feature = np.sum([np.sum(batch.Phi**2, axis=(0, 1)) for batch in batches], axis=0)
    return np.bincount(batches[0].groups, by_feature) / float(sum(batch.rows.sum() for batch in batches))


def variances_from(known: MixedEffects, squares: FloatArray, like: IndexArray, new: FloatArray) -> MixedEffects:
    """Return the effects with variances for other features, of which nothing else is known yet.

    Where features of no use had hardly any variance, others may be of use. So private variances are not below a little,
    and the search for common ones starts no lower than that of a fit: evidence may have a second maximum at zero.

    Parameters
    ----------
    known : MixedEffects
        Effects of the features with these ``squares``, by group.
    like : ndarray of int of shape (G,)
        For each group of the new features the one of the old features that it resembles.
    new : ndarray of shape (G,)
        The mean squares of the new features.
    """
    both = (squares[like] > 0) & (new > 0)
    unit = np.log(np.where(new > 0, new, 1.0))
    change = np.where(both, np.log(np.where(both, squares[like], 1.0)) - unit, 0.0)
    log_c = np.maximum(known.log_c[like] + change, np.log(FIRST_COMMON))
    log_v = known.log_v[like] + change
    # Without a private part it stays absent.
    log_v = np.where(log_v > np.log(_ABSENT), np.maximum(log_v, np.log(_LEAST_PRIVATE) - unit), log_v)
    return replace(known, log_c=log_c, log_v=log_v)


def effects_from(
    batches: Sequence[SiteBatch],
    context: AgentContext,
    start: MixedEffects,
    *,
    noise_floor: float = 0.0,
    classes: bool = False,
) -> MixedEffects:
    """Return the effects at the private variances and the noise of a start, with common variances at their best."""
    groups, rows = batches[0].groups, float(sum(batch.rows.sum() for batch in batches))
    squares = np.sum([batch.squares.sum(axis=0) for batch in batches], axis=0)
    totals = _totals(batches, np.exp(start.log_v), np.exp(start.log_w), rows)
    totals = replace(totals, squares=totals.squares + noise_floor * squares)
    free = np.intersect1d(np.arange(1, len(start.log_c)), groups)
    log_c = maximize_evidence(totals, groups, start.log_c, free, _FACTR)
    W, S, s2 = common_part(totals, groups, log_c)
    effects = replace(start, log_c=log_c, W=W, S=S, s2=s2)
    if not classes:
        return effects
    return run_in_one_place(choose_class_scale(batches, context, effects, totals))


def _totals(batches: Sequence[SiteBatch], v: FloatArray, w: FloatArray, rows: float) -> Totals:
    """Return the whitened totals over all sites, which are all here."""
    p, d = batches[0].Phi.shape[-1], batches[0].T.shape[-1]
    Q, b, squares = np.zeros((p, p)), np.zeros((p, d)), np.zeros(d)
    for batch in batches:
        (X, Y), _ = whiten(batch, v, batch.Phi, batch.T)
        root = np.sqrt(w[batch.index])[:, None, None]
        X, Y = (root * X).reshape(-1, p), (root * Y).reshape(-1, d)
        Q += X.T @ X
        b += X.T @ Y
        squares += np.sum(Y**2, axis=0) + w[batch.index] @ batch.rest
    return Totals(Q, b, squares, rows)
