"""The common part with differential privacy: one total with noise, and everything else at home.

Sites release products of few features with each other and with the targets, once, with noise
(:mod:`elmesh.privacy.release`). All find the same common weights from that, and how uncertain these are
(:mod:`elmesh.math.noisy_ridge`). Each site then finds its own weights beside them, by itself
(:mod:`elmesh.math.site_average`): nothing more leaves it. There is no shared part, and no weights of sites.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from elmesh.comm.requests import NoisySum
from elmesh.data.statistics import Task
from elmesh.math.evidence import spread_rows, spread_square
from elmesh.math.noisy_ridge import fit_noisy_ridge
from elmesh.math.site_average import ASSUMED_VARIANCES, average_site
from elmesh.solvers.base import Problem, Steps
from elmesh.solvers.state import MixedEffects
from elmesh.typing import FloatArray, IndexArray

__all__ = ["private_features", "release_common", "site_weights"]

# Hidden units with common weights: of the first group, and of each other. Every feature adds noise to all.
_FIRST_UNITS, _OTHER_UNITS = 6, 2
# The constant in the totals: smaller than one, as it counts in the length of every row.
_CONSTANT = 0.3
# Variance of weights that there are not.
_ABSENT = 1e-300


def private_features(groups: IndexArray) -> tuple[IndexArray, FloatArray]:
    """Return the features that have common weights in a private fit, and what they are multiplied by in the totals.

    The constant, the inputs, and of hidden units the first ones of each group, as large together as the whole group.

    Examples
    --------
    >>> private_features(np.array([0, 1, 1, 2, 2, 2, 2]))
    (array([0, 1, 2, 3, 4, 5, 6]), array([0.3, 1. , 1. , 1. , 1. , 1. , 1. ]))
    """
    chosen, units = [], []
    for g in range(int(groups.max()) + 1):
        own = np.flatnonzero(groups == g)
        if g >= 2:
            own = own[: _FIRST_UNITS if g == 2 else _OTHER_UNITS]
        unit = _CONSTANT if g == 0 else np.sqrt(np.count_nonzero(groups == g) / max(len(own), 1))
        chosen.append(own)
        units.append(np.full(len(own), unit))
    return np.concatenate(chosen), np.concatenate(units)


def release_common(problem: Problem) -> Steps[MixedEffects]:
    """Release the sites' totals, and return the common weights that follow from their sum."""
    private, groups = problem.private, problem.groups
    if private is None or groups is None:
        raise TypeError("A private fit has no totals to release.")
    mechanism, features, p = private.mechanism, private.features, len(groups)
    total = yield NoisySum(private.terms, mechanism.sigma, mechanism.cost())
    G, b = mechanism.split(total)
    ridge = fit_noisy_ridge(G, b, *mechanism.noise(problem.context.n_agents), groups[features])
    # From the units of the totals to those of the features and the targets.
    W = spread_rows(mechanism.spread * private.units[:, None] * ridge.W, features, p)
    S = spread_square(private.units[:, None] * ridge.S * private.units, features, p)
    log_c = np.full(int(groups.max()) + 1, np.log(_ABSENT))
    for g, variance in ridge.variances.items():
        log_c[g] = np.log(variance / ridge.s2)
    n_sites, d = len(private.terms), W.shape[1]
    return MixedEffects(
        log_c=log_c,
        # Of sites that are not here nothing is known but what is assumed of all.
        log_v=np.log(np.where(np.arange(len(log_c)) == 0, *ASSUMED_VARIANCES)),
        tau2=0.0,
        W=W,
        S=S / ridge.s2,
        s2=np.full(d, ridge.s2 * mechanism.spread**2),
        log_w=np.zeros(n_sites),
        site_log_v=np.full((n_sites, len(log_c)), np.log(_ABSENT)),
    )


def site_weights(problem: Problem, effects: MixedEffects) -> tuple[FloatArray, MixedEffects]:
    """Return the private weights V of each site, and the effects with each site's noise and variances.

    A site's weights follow from its own rows and what was released; no site learns anything of another's.
    """
    if problem.groups is None or isinstance(problem.data, Task):
        raise TypeError("A private fit needs features in groups.")
    s2 = float(effects.s2[0])
    V, log_w, log_v = np.zeros(problem.shape), effects.log_w.copy(), np.zeros((len(effects.log_w), len(effects.log_c)))
    for k, site in enumerate(problem.data):
        # A site with fewer columns than others has zeros in the rest.
        W = effects.W[:, : site.outputs]
        own = average_site(site, problem.groups, W, s2 * effects.S, problem.noise_floor, classes=problem.classes)
        V[k, :, : site.outputs] = own.weights - W
        log_w[k] = np.log(s2 / own.s2)
        log_v[k] = np.log(np.maximum(own.v / own.s2, _ABSENT))
    return V, replace(effects, log_w=log_w, site_log_v=log_v)
