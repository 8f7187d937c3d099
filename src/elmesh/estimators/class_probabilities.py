"""How the scores of a fit become probabilities at each site: by its own rows, or as at the others.

The solver finds a link (:mod:`elmesh.math.class_link`) over the sites with few rows
(:mod:`elmesh.solvers.class_scale`). Sites with many rows have one of their own, and so have all if none is found.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from elmesh.data.features import FeatureMap
from elmesh.data.site_statistics import SiteStatistics
from elmesh.estimators.common import CommonPart
from elmesh.estimators.head import Head
from elmesh.estimators.target_encoding import ClassEncoding
from elmesh.math.calibration import leave_one_out_ridge
from elmesh.math.class_link import LinkRows, best_link, without_absent
from elmesh.run.backend import Backend
from elmesh.typing import FloatArray, IndexArray, Label

__all__ = ["USUAL_TEMPERATURE", "has_many_rows", "own_link", "shares_of_classes", "usual_link"]

#: The temperature at which the softmax of scores near one half is the score itself; for tasks without information.
USUAL_TEMPERATURE = 0.5


def shares_of_classes(common: CommonPart | None, encoding: ClassEncoding) -> FloatArray:
    """Return the shares of classes among the rows of all tasks, or what is subtracted if they are not known."""
    return encoding.mean if common is None or common.shares is None else common.shares


def has_many_rows(site: SiteStatistics, layer: FeatureMap) -> bool:
    """Return whether a site has more rows than features and classes: enough for probabilities of its own.

    It has no part in the search over sites (:mod:`elmesh.solvers.class_scale`).
    """
    return bool(site.weight > layer.width + site.rows.T.shape[1])


def own_link(
    site: SiteStatistics, head: Head, common: CommonPart, layer: FeatureMap, columns: IndexArray, shares: FloatArray
) -> tuple[float, FloatArray]:
    """Return temperature, slopes and offsets by a site's own rows, each scored without itself.

    ``columns`` are those of the classes that it predicts.
    """
    Phi, T, weights = layer(site.rows.X), site.rows.T + common.t_mean, site.row_weights
    features = common.prior_features(Phi, layer.groups, head)
    scores = leave_one_out_ridge(features, Phi @ head.A + common.t_mean, T, 1.0, False, weights)
    counts = np.ones(len(Phi)) if weights is None else weights
    rows = LinkRows(scores[:, columns], np.argmax(T[:, columns], axis=1), counts, columns)
    return best_link(rows, shares, USUAL_TEMPERATURE)


def usual_link(
    found: Mapping[Label, tuple[float, FloatArray]], tasks: Sequence[Label], shares: FloatArray, backend: Backend
) -> tuple[float, FloatArray]:
    """Return the geometric means of the temperatures and of the slopes of tasks, and the means of their offsets.

    If so few tasks have a link that the sum would be that of one or two honest ones, nothing is summed but their
    number. An agent of a network, whose run is over, sums nothing: the usual link is its own. ``shares`` are those of
    the classes.
    """
    d = len(shares)
    m, n = backend.sum_after_run({t: np.array([1.0, float(t in found)]) for t in tasks}).tolist()
    if not n or n < backend.fewest_terms(round(m)):
        return USUAL_TEMPERATURE, without_absent(np.stack([np.ones(d), np.zeros(d)]), shares, USUAL_TEMPERATURE)
    terms = {t: np.zeros(1 + 2 * d) for t in tasks}
    for t, (temperature, link) in found.items():
        terms[t] = np.concatenate([[np.log(temperature)], np.log(link[0]), link[1]])
    logs, slopes, offsets = np.split(backend.sum_after_run(terms) / n, [1, 1 + d])
    temperature = float(np.exp(logs[0]))
    return temperature, without_absent(np.stack([np.exp(slopes), offsets]), shares, temperature)
