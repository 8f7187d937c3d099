"""From a solution with common and private weights to one head per task and the common part."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import pandas as pd

from elmesh.data.features import FeatureMap, Features
from elmesh.data.statistics import SiteRows
from elmesh.estimators.common import CommonPart
from elmesh.estimators.head import Head
from elmesh.math.random_effects import site_batches, whiten
from elmesh.math.site_average import whitened_by
from elmesh.solvers.base import Solution
from elmesh.solvers.state import MixedEffects
from elmesh.typing import FloatArray, Label

__all__ = ["heads_with_effects", "part_shares", "variance_table"]


def heads_with_effects(
    solution: Solution, layer: Features, sites: Sequence[SiteRows], labels: Sequence[Label]
) -> tuple[dict[Label, Head], CommonPart]:
    """Return the head of each task, without classes, and the common part."""
    effects, V, U = solution.effects, solution.V, solution.U
    if effects is None or V is None or U is None or not isinstance(layer, FeatureMap):
        raise TypeError("A solution with a common part lacks its private part, or features in groups.")
    d, own_v = effects.W.shape[1], effects.site_log_v
    heads = {
        t: Head(
            None,
            effects.W + V[k] + U @ solution.A[k],
            np.zeros(layer.width),
            np.zeros(d),
            X=X,
            log_w=float(effects.log_w[k]),
            shared=solution.A[k] if U.shape[1] else None,
            log_v=None if own_v is None else own_v[k],
            rows=sites[k].rows,
        )
        for k, (t, X) in enumerate(zip(labels, _whitened(effects, sites, layer), strict=True))
    }
    common = CommonPart(
        effects.W,
        np.zeros(d),
        effects.S,
        effects.log_c,
        effects.log_v,
        effects.s2,
        effects.tau2,
        temperature=effects.temperature or None,
        link=effects.link,
        shares=effects.shares,
        U=U if U.shape[1] else None,
        mu2=1.0 if solution.mu2 is None else solution.mu2,
        private=own_v is not None,
    )
    return heads, common


def _whitened(effects: MixedEffects, sites: Sequence[SiteRows], layer: FeatureMap) -> list[FloatArray]:
    """Return the whitened features of each site."""
    if effects.site_log_v is not None:
        return [
            whitened_by(site, layer.groups, np.exp(log_v), np.exp(log_w) * effects.S)
            for site, log_v, log_w in zip(sites, effects.site_log_v, effects.log_w, strict=True)
        ]
    found: dict[int, FloatArray] = {}
    for batch in site_batches(sites, layer.groups):
        (X,), _ = whiten(batch, np.exp(effects.log_v), batch.Phi)
        found |= {k: own[: len(sites[k].Phi)] for k, own in zip(batch.index.tolist(), X, strict=True)}
    return [found[k] for k in range(len(sites))]


def part_shares(site: SiteRows, head: Head, common: CommonPart, layer: FeatureMap) -> FloatArray:
    """Return the shares of the common, the shared and the private part in the squares of a task's fitted values."""
    parts = common.parts(head.A, head.log_w, layer.groups, np.arange(common.W.shape[1]))
    squares = np.array([np.sum((site.Phi @ part) ** 2) for part in parts])
    return np.asarray(squares / max(float(squares.sum()), np.finfo(float).tiny))


def variance_table(layer: FeatureMap, common: CommonPart, heads: Iterable[Head]) -> pd.DataFrame:
    """Return the variances of common and private weights, in units of the noise, a row per group of features.

    In a private fit each site has private variances of its own, and the table their geometric mean.
    """
    log_v = common.log_v
    if common.private:
        log_v = np.mean([head.log_v for head in heads if head.log_v is not None], axis=0)
    present = np.isin(np.arange(len(log_v)), layer.groups)
    names = np.array(layer.group_names, dtype=object)[present]
    table = {"common": np.exp(common.log_c)[present], "private": np.exp(log_v)[present]}
    return pd.DataFrame(table, index=list(names))
