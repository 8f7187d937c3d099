r"""Settings of the features of the default model, by predictions of rows left out in closed form.

Given variances, the prediction of a row by all others needs no fit (:mod:`elmesh.math.left_out`). The variances are
those of the first setting, taken over to the features of another one (:mod:`elmesh.solvers.warm_start`), so that a
setting costs one sum of a matrix and one pass over the rows. There is no shared part in this comparison: whether there
is one is decided in the fit of the setting that is taken.

Variances that were found with a row know a little of it. There are a few for all rows of all tasks, so this does not
matter; see :mod:`elmesh.estimators.gains` for tasks alone, where it does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from elmesh.comm.graph import Topology
from elmesh.data.features import FeatureMap
from elmesh.data.statistics import SiteRows
from elmesh.estimators.search_rows import SearchRows
from elmesh.estimators.sites import CLASS_NOISE
from elmesh.math.left_out import left_out_errors
from elmesh.math.random_effects import SiteBatch, site_batches
from elmesh.run.local_backend import LocalBackend
from elmesh.run.runner import agent_context
from elmesh.solvers import make_solver
from elmesh.solvers.integer_sums import run_in_one_place
from elmesh.solvers.mesh_elm import MeshELM
from elmesh.solvers.state import MixedEffects
from elmesh.solvers.variance_components import estimate_components
from elmesh.solvers.warm_start import effects_from, group_squares, variances_from
from elmesh.typing import FloatArray, IndexArray, Label

__all__ = ["FeatureScores"]


class FeatureScores:
    """Scores of settings of the features, or of the parts, of a model with a common or a private part.

    Parameters
    ----------
    rows : SearchRows
        The rows, and an estimator that was fitted on them.
    """

    def __init__(self, rows: SearchRows) -> None:
        model = rows.fitted.model_
        if model.common is None or not isinstance(model.layer, FeatureMap):
            raise TypeError("The rows were fitted without a common part.")
        self._rows, self._layer, common = rows, model.layer, model.common
        self._floor = CLASS_NOISE if model.kind == "classification" else 0.0
        # Where all tasks have all classes, variances are those of largest evidence.
        self._lacking = self._floor > 0 and any(not np.all(np.any(own.T > 0, axis=0)) for own in rows.by_task.values())
        log_w = np.array([model.heads[t].log_w for t in rows.groups])
        self._known = MixedEffects(common.log_c, common.log_v, common.tau2, common.W, common.S, common.s2, log_w)
        self._squares = group_squares(self._batches(self._layer, self._mapped(self._layer)))

    def scores(self, settings: Sequence[Mapping[str, Any]]) -> Iterator[tuple[int, FloatArray]]:
        """Yield the place of each setting and the losses of all rows."""
        for place, setting in enumerate(settings):
            yield place, self._rows.losses(self.predictions(setting))

    def predictions(self, setting: Mapping[str, Any]) -> dict[Label, FloatArray]:
        """Return the predictions of each task's rows, each by all others, of the targets as the fit has them."""
        rows, candidate = self._rows, self._rows.candidate(setting)
        solver = make_solver(candidate.solver)
        layer = rows.features(candidate, solver)
        if not isinstance(layer, FeatureMap) or not isinstance(solver, MeshELM):
            raise TypeError("The setting has no common and no private part.")
        mapped = self._mapped(layer)
        effects = self._effects(solver, layer, self._batches(layer, mapped))
        root, found = np.exp(effects.log_v / 2)[layer.groups], {}
        for (t, own), Phi, w in zip(rows.by_task.items(), mapped, np.exp(effects.log_w).tolist(), strict=True):
            errors = left_out_errors(Phi, own.T, Phi * root, effects.W, effects.S, w, row_weights=own.weights)
            found[t] = own.T - errors
        return found

    def _mapped(self, layer: FeatureMap) -> list[FloatArray]:
        """Return the features of each task's rows."""
        return [layer(own.X) for own in self._rows.by_task.values()]

    def _batches(self, layer: FeatureMap, mapped: Sequence[FloatArray]) -> list[SiteBatch]:
        own = zip(mapped, self._rows.by_task.values(), strict=True)
        return site_batches([SiteRows.from_rows(Phi, rows.T, rows.weights) for Phi, rows in own], layer.groups)

    def _effects(self, solver: MeshELM, layer: FeatureMap, batches: Sequence[SiteBatch]) -> MixedEffects:
        """Return the effects: at the variances that are known or, with other parts, by a search from the start."""
        fitted, sites = self._rows.fitted, self._rows.statistics.sites
        first = make_solver(fitted.solver).get_params(deep=False)
        parts: dict[str, Any] = {name: getattr(solver, name) is not False for name in ("common", "private")}
        same = all((first[name] is not False) == present for name, present in parts.items())
        most = fitted.most_features(solver, {t: site.n_rows for t, site in sites.items()}, LocalBackend())
        context = agent_context(Topology(1, np.empty((0, 2), dtype=np.intp)), fitted.seed_)
        if same and parts["common"] and most is None:
            start = variances_from(self._known, self._squares, _alike(layer, self._layer), group_squares(batches))
            return effects_from(batches, context, start, noise_floor=self._floor, classes=self._lacking)
        limits: dict[str, Any] = {"weigh": solver.weigh_sites, "noise_floor": self._floor, "most_features": most}
        return run_in_one_place(estimate_components(batches, context, **parts, classes=self._floor > 0, **limits))


def _alike(new: FeatureMap, old: FeatureMap) -> IndexArray:
    """Return for each group of features the old group that it resembles: of hidden units that of the nearest scale."""
    scales = np.log([layer.weight_scale for layer in old.layers])
    hidden = [
        2 + int(np.argmin(np.abs(scales - np.log(layer.weight_scale)))) if len(scales) else 1 for layer in new.layers
    ]
    return np.array([0, 1, *hidden])[: len(np.bincount(new.groups))]
