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
from dataclasses import dataclass
from typing import Any

import numpy as np

from elmesh.comm.graph import Topology
from elmesh.data.features import FeatureMap
from elmesh.data.statistics import SiteRows
from elmesh.estimators.base import MultiTaskELM
from elmesh.estimators.features import make_features
from elmesh.estimators.sites import CLASS_NOISE
from elmesh.estimators.training_rows import TrainingRows
from elmesh.math.left_out import left_out_errors
from elmesh.math.random_effects import SiteBatch, precision, site_batches
from elmesh.run.backend import LocalBackend
from elmesh.run.runner import agent_context
from elmesh.solvers import make_solver
from elmesh.solvers.class_scale import left_out_scores
from elmesh.solvers.integer_sums import run_in_one_place
from elmesh.solvers.mesh_elm import MeshELM
from elmesh.solvers.state import MixedEffects
from elmesh.solvers.variance_components import estimate_components
from elmesh.solvers.warm_start import effects_from, group_squares, variances_from
from elmesh.typing import FloatArray, IndexArray, Label

__all__ = ["FeatureScores"]


@dataclass(frozen=True, eq=False)
class _Data:
    """The data of all tasks with some features, in the units of learning."""

    layer: FeatureMap
    targets: list[FloatArray]
    sites: list[SiteRows]
    batches: list[SiteBatch]


class FeatureScores:
    """Scores of settings of the features, or of the parts, of a model with a common or a private part.

    Parameters
    ----------
    rows : TrainingRows
        The rows, and an estimator that was fitted on them.
    """

    def __init__(self, rows: TrainingRows) -> None:
        model = rows.fitted.model_
        if model.common is None or not isinstance(model.layer, FeatureMap):
            raise TypeError("The rows were fitted without a common part.")
        self._rows, self._layer, common = rows, model.layer, model.common
        # By the limit of inputs, which is one of targets too.
        self._learned: dict[Any, Mapping[Label, FloatArray]] = {}
        self._mean, self._floor = common.t_mean, CLASS_NOISE if model.kind == "classification" else 0.0
        # Where all tasks have all classes, variances are those of largest evidence.
        self._lacking = self._floor > 0 and any(not T.any(axis=0).all() for T in rows.targets.values())
        log_w = np.array([model.heads[t].log_w for t in rows.groups])
        self._known = MixedEffects(common.log_c, common.log_v, common.tau2, common.W, common.S, common.s2, log_w)
        self._squares = group_squares(self._data(rows.fitted, self._layer).batches)

    def scores(self, settings: Sequence[Mapping[str, Any]]) -> Iterator[tuple[int, FloatArray]]:
        """Yield the place of each setting and the losses of all rows."""
        for place, setting in enumerate(settings):
            yield place, self._rows.losses(self.predictions(setting))

    def predictions(self, setting: Mapping[str, Any]) -> dict[Label, FloatArray]:
        """Return the predictions of each task's rows, each by all others, in the units of the targets."""
        rows, candidate = self._rows, self._rows.candidate(setting)
        solver = make_solver(candidate.solver)
        layer = make_features(candidate, solver, rows.X, rows.groups, rows.fitted.seed_, LocalBackend())
        if not isinstance(layer, FeatureMap) or not isinstance(solver, MeshELM):
            raise TypeError("The setting has no common and no private part.")
        data = self._data(candidate, layer)
        errors = self._errors(data, self._effects(candidate, solver, data))
        return {
            t: (self._mean + rows.scale * (T - error))[:, rows.columns(t)]
            for t, T, error in zip(rows.groups, data.targets, errors, strict=True)
        }

    def _data(self, candidate: MultiTaskELM, layer: FeatureMap) -> _Data:
        rows = self._rows
        if candidate.clip not in self._learned:
            self._learned[candidate.clip] = candidate.training_targets(rows.y, rows.groups)[1]
        learned = self._learned[candidate.clip]
        targets = [(learned[t] - self._mean) / rows.scale for t in rows.groups]
        own = zip(rows.groups.values(), targets, strict=True)
        sites = [SiteRows.from_rows(layer(rows.X[index]), T) for index, T in own]
        return _Data(layer, targets, sites, site_batches(sites, layer.groups))

    def _effects(self, candidate: MultiTaskELM, solver: MeshELM, data: _Data) -> MixedEffects:
        """Return the effects: at the variances that are known or, with other parts, by a search from the start."""
        rows, layer, batches = self._rows, data.layer, data.batches
        first = make_solver(rows.fitted.solver).get_params(deep=False)
        parts = {name: getattr(solver, name) is not False for name in ("common", "private")}
        same = all((first[name] is not False) == present for name, present in parts.items())
        most = candidate.most_features(solver, rows.groups, LocalBackend())
        if same and parts["common"] and most is None:
            start = variances_from(self._known, self._squares, _alike(layer, self._layer), group_squares(batches))
            return effects_from(batches, start, noise_floor=self._floor, classes=self._lacking)
        context = agent_context(Topology(1, np.empty((0, 2), dtype=np.intp)), rows.fitted.seed_)
        limits: dict[str, Any] = {"weigh": solver.weigh_sites, "noise_floor": self._floor, "most_features": most}
        return run_in_one_place(estimate_components(batches, context, **parts, classes=self._floor > 0, **limits))

    def _errors(self, data: _Data, effects: MixedEffects) -> list[FloatArray]:
        """Return the errors of each task's rows, in the units of learning."""
        errors = list(data.targets)
        # Of many rows the statistics are fewer rows with the same products.
        whole = [len(site.T) == len(T) for site, T in zip(data.sites, data.targets, strict=True)]
        v, root = np.exp(effects.log_v), np.exp(effects.log_v / 2)[data.layer.groups]
        for batch in data.batches:
            places = [(k, t) for k, t in enumerate(batch.index.tolist()) if whole[t]]
            scores = left_out_scores(batch, precision(batch, v), effects) if places else batch.T
            for k, t in places:
                errors[t] = data.targets[t] - scores[k, : len(data.targets[t])]
        for t, index in enumerate(self._rows.groups.values()):
            if not whole[t]:
                Phi, w = data.layer(self._rows.X[index]), float(np.exp(effects.log_w[t]))
                errors[t] = left_out_errors(Phi, data.targets[t], Phi * root, effects.W, effects.S, w)
        return errors


def _alike(new: FeatureMap, old: FeatureMap) -> IndexArray:
    """Return for each group of features the old group that it resembles: of hidden units that of the nearest scale."""
    scales = np.log([layer.weight_scale for layer in old.layers])
    hidden = [
        2 + int(np.argmin(np.abs(scales - np.log(layer.weight_scale)))) if len(scales) else 1 for layer in new.layers
    ]
    return np.array([0, 1, *hidden])[: len(np.bincount(new.groups))]
