r"""Classes as targets: how far the common part may go, and how sure scores are, by leave-one-out log loss.

A site that lacks a class has zeros in its column, whatever its rows, and evidence that takes these for numbers holds
the common weights too small. So, where sites lack classes, all common variances are multiplied by one factor
:math:`\kappa`, chosen by the log loss of rows that are scored by weights fitted without them, at the best temperature.
By the same scores it is then found how scores become probabilities (:mod:`elmesh.math.class_link`). With
:math:`S = (1/\kappa c + Q)^{-1}` and residuals R at :math:`W = Sb`, a row's score without itself is

.. math:: T_i - \frac{(K_t^{-1}R)_i}{(K_t^{-1})_{ii} - w_t\,(K_t^{-1}\Phi_t S\Phi_t'K_t^{-1})_{ii}} ,

exactly, for given variances; of a row with weight n one copy is left out. Q and b are those of the last sum, so all
that is summed is one number for each factor and temperature, and a few numbers for each class. Sites with more rows
than features keep no single rows and have no part in the choice. If those that have are so few that a sum would be
that of one or two honest sites (:func:`elmesh.comm.row_counts.fewest_terms`), nothing is summed but their number, and
nothing is chosen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_softmax

from elmesh.comm.integer_sums import sum_scaled, sum_wide
from elmesh.comm.requests import Topic
from elmesh.math.class_link import LinkRows, LinkSearch, class_slopes, predicted_classes, without_absent
from elmesh.math.evidence import Totals, common_part, spread_rows, spread_square
from elmesh.math.random_effects import SiteBatch, precision
from elmesh.solvers.base import AgentContext, Steps
from elmesh.solvers.integer_sums import from_first
from elmesh.solvers.state import MixedEffects
from elmesh.typing import FloatArray

__all__ = ["choose_class_scale", "find_link", "left_out_scores"]

# Factors of the common variances, none of which makes them smaller, and temperatures.
_FACTORS = 3.0 ** np.arange(6)
_TEMPERATURES = 2.0 ** np.arange(-6.0, 2.01, 0.25)
# The gain of one site alone is its own standard error: the rounding of sums does not decide.
_ROUNDING = 1e-6
# Least share of a row's precision that is left when others are given.
_LEAST = 1e-9
# How much rounding may make of a step of the search: relative to it, and of numbers below one.
_SAME = 1e-6


def choose_class_scale(
    batches: Sequence[SiteBatch],
    context: AgentContext,
    effects: MixedEffects,
    totals: Totals,
    subtracted: FloatArray | None = None,
) -> Steps[MixedEffects]:
    """Return the effects with common variances and a temperature of least leave-one-out log loss.

    With what was ``subtracted`` from the indicators of classes, and with their shares, there are slopes and offsets of
    classes as well.
    """
    groups, m = batches[0].groups, sum(len(batch.index) for batch in batches)
    features, p = effects.features, len(groups)
    of = groups if features is None else groups[features]
    known = [_known(batch) for batch in batches]
    present = [np.any(batch.T > 0, axis=1) for batch in batches]
    takes_part = [own & (np.sum(here, axis=1) > 1) for own, here in zip(known, present, strict=True)]
    lacks = [own & ~np.all(here, axis=1) for own, here in zip(known, present, strict=True)]
    counts = np.column_stack([np.concatenate(takes_part), np.concatenate(lacks)]).astype(np.float64)
    taking_part, incomplete = (yield from sum_wide(counts)).tolist()
    if taking_part < max(context.fewest_terms, 1):
        return effects
    factors, candidates = _FACTORS if incomplete else _FACTORS[:1], []
    for factor in factors:
        log_c = effects.log_c.copy()
        log_c[1:] += np.log(factor)
        W, S, s2 = common_part(totals, of, log_c)
        W, S = spread_rows(W, features, p), spread_square(S, features, p)
        candidates.append(replace(effects, log_c=log_c, W=W, S=S, s2=s2))
    losses = np.zeros((m, len(factors), len(_TEMPERATURES)))
    for own, batch in zip(known, batches, strict=True):
        inverse = precision(batch, np.exp(effects.log_v))
        for k, one in enumerate(candidates):
            scores = left_out_scores(batch, inverse, one)
            for j in np.flatnonzero(own).tolist():
                losses[batch.index[j], k] = _losses(scores[j], batch.T[j], batch.weights[j])
    total = (yield from sum_wide(losses.reshape(m, -1))).reshape(losses.shape[1:])
    best, at = int(np.argmin(total.min(axis=1))), np.argmin(total, axis=1)
    gain = losses[:, 0, at[0]] - losses[:, best, at[best]]
    gained, square = (yield from sum_wide(np.column_stack([gain, gain**2]))).tolist()
    if gained <= (1.0 + _ROUNDING) * np.sqrt(square) + _ROUNDING:
        # Not more than a standard error, with sites as units.
        best = 0
    chosen, temperature = candidates[best], float(_TEMPERATURES[at[best]])
    if subtracted is None or effects.shares is None:
        return replace(chosen, temperature=temperature)
    shares, rows = effects.shares, []
    for own, batch in zip(known, batches, strict=True):
        scores = left_out_scores(batch, precision(batch, np.exp(effects.log_v)), chosen) + subtracted
        rows += [(int(batch.index[j]), _link_rows(scores[j], batch, j, shares)) for j in np.flatnonzero(own).tolist()]
    temperature, link = yield from find_link(rows, context, m, shares, temperature)
    return replace(chosen, temperature=temperature, link=link)


def find_link(
    rows: Sequence[tuple[int, LinkRows]], context: AgentContext, n_sites: int, shares: FloatArray, temperature: float
) -> Steps[tuple[float, FloatArray]]:
    """Return the temperature, slopes and offsets of all sites, from the places and the rows of the sites here.

    ``shares`` are those of the classes among the rows of all sites, of which some may have no part in the search. Every
    agent searches, by the same totals; only what rounding makes of them is the first agent's.
    """
    d, slope = len(shares), class_slopes(shares)
    search = LinkSearch(d, temperature)
    while not search.done:
        terms = np.zeros((n_sites, LinkSearch.size(d)))
        for place, own in rows:
            terms[place] = own.terms(slope, search.x)
        (total,) = yield from sum_scaled([terms], Topic.NUMBERS)
        search.advance(total)
        if not search.done:
            search.x = yield from from_first(context, search.x, _SAME * (1.0 + np.abs(search.x)))
    temperature, offset = search.found
    return temperature, without_absent(np.stack([slope, offset]), shares, temperature)


def left_out_scores(batch: SiteBatch, inverse: FloatArray, effects: MixedEffects) -> FloatArray:
    """Return each row's score by weights that were fitted without it, of shape (m, n, d); ``inverse`` is K^-1.

    Scores of padding, and of sites without single rows, are zero.
    """
    P = inverse @ batch.Phi
    common = np.sum((P @ effects.S) * P, axis=-1) * np.exp(effects.log_w[batch.index])[:, None]
    own = np.diagonal(inverse, axis1=-2, axis2=-1)
    left = np.maximum(own - common, _LEAST * own)
    w = np.where(batch.weights > 0, batch.weights, 1.0)
    # The leverage of a row is that of its copies together.
    left = 1.0 - np.minimum(1.0 / w, 1.0) * (1.0 - left)
    errors = inverse @ (batch.T - batch.Phi @ effects.W) / left[..., None]
    return np.asarray(np.where(batch.weights > 0, 1.0, 0.0)[..., None] * (batch.T - errors) / np.sqrt(w)[..., None])


def _link_rows(scores: FloatArray, batch: SiteBatch, j: int, shares: FloatArray) -> LinkRows:
    """Return the rows of a site of a batch, scored without themselves among the classes that the site predicts."""
    rows = batch.weights[j] > 0
    w = batch.weights[j][rows]
    T = batch.T[j][rows] / np.sqrt(w)[:, None]
    columns = np.flatnonzero(predicted_classes((T > 0).any(axis=0), shares, float(batch.rows[j])))
    return LinkRows(scores[rows][:, columns], np.argmax(T[:, columns], axis=1), w, columns)


def _known(batch: SiteBatch) -> NDArray[np.bool_]:
    """Return which sites have all of their rows, which do not count more often than there are features and targets."""
    few = batch.rows <= batch.Phi.shape[-1] + batch.T.shape[-1]
    return np.asarray(np.any(batch.weights > 0, axis=1) & few)


def _losses(scores: FloatArray, T: FloatArray, weights: FloatArray) -> FloatArray:
    """Return a site's log loss at each temperature; zeros for a site with one class.

    Targets are indicators of classes less the common share of each, times the root of the row's weight; columns of
    classes that the site lacks are left out.
    """
    rows = weights > 0
    w = weights[rows]
    T, scores = T[rows] / np.sqrt(w)[:, None], scores[rows]
    own = np.flatnonzero((T > 0).any(axis=0))
    if len(own) < 2:
        return np.zeros(len(_TEMPERATURES))
    T, share = T[:, own], 1.0 - T[:, own].max(axis=0)
    logs = log_softmax((scores[:, own] + share) / _TEMPERATURES[:, None, None], axis=2)
    of_truth = np.take_along_axis(logs, np.argmax(T, axis=1)[None, :, None], axis=2)[..., 0]
    return np.array([-(w @ of_rows) for of_rows in of_truth])
