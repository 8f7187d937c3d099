"""The rows that settings are chosen by, and what predictions of rows that were left out lose.

These are the rows that an estimator keeps of its fit: all rows of a task or, of very many, a sample. A row that counts
several times does so in fits, in the mean loss and in its standard error.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_softmax

from elmesh.data.features import Features
from elmesh.data.site_statistics import KeyedRows
from elmesh.data.tasks import Groups
from elmesh.estimators.base import MultiTaskELM
from elmesh.estimators.features import make_features
from elmesh.estimators.inputs import array_rows
from elmesh.estimators.rows import ArrayRows
from elmesh.estimators.target_encoding import ClassEncoding, TargetEncoding
from elmesh.estimators.training_statistics import TrainingStatistics
from elmesh.math.calibration import fit_temperature
from elmesh.run.local_backend import LocalBackend
from elmesh.solvers import Solver, make_solver
from elmesh.solvers.settings import with_settings
from elmesh.typing import FloatArray, Label

__all__ = ["SOLVER_SETTINGS", "SearchRows", "with_setting"]

#: Settings that are the solver's; all others are parameters of the estimator.
SOLVER_SETTINGS = ("parts", "rank", "mu")
# The score of a class that a task does not have: no temperature makes it probable.
_NEVER = -1e3


def with_setting(estimator: MultiTaskELM, setting: Mapping[str, Any]) -> MultiTaskELM:
    """Set an estimator's parameters, and those of a copy of its solver, and return it."""
    features = {name: value for name, value in setting.items() if name not in SOLVER_SETTINGS}
    solver = make_solver(estimator.solver)
    if len(features) < len(setting):
        solver = with_settings(solver, setting)
    return estimator.set_params(**features, solver=solver)


@dataclass(frozen=True, eq=False)
class SearchRows:
    """The rows of all tasks, with targets and weights as the fit has them.

    Parameters
    ----------
    fitted : MultiTaskELM
        An estimator that was fitted on them.
    statistics : TrainingStatistics
        What it has kept of them.
    """

    fitted: MultiTaskELM
    statistics: TrainingStatistics

    @classmethod
    def of(cls, fitted: MultiTaskELM) -> SearchRows:
        """Return the rows that an estimator was fitted on."""
        if fitted.statistics_ is None:
            raise TypeError("The estimator was not fitted on rows.")
        return cls(fitted, fitted.statistics_)

    @cached_property
    def by_task(self) -> dict[Label, KeyedRows]:
        """The rows of each task."""
        return {t: site.rows for t, site in self.statistics.sites.items()}

    @cached_property
    def groups(self) -> Groups:
        """The places of each task's rows among all rows."""
        ends = np.cumsum([len(rows) for rows in self.by_task.values()])
        return dict(zip(self.by_task, np.split(np.arange(ends[-1]), ends[:-1]), strict=True))

    @cached_property
    def weights(self) -> FloatArray:
        """How often each row counts; those of a sample stand for all rows of their task, and add up to no more."""
        sites = self.statistics.sites.values()
        kept, every = (sum(own) for own in zip(*((s.rows.weights.sum(), s.weight) for s in sites), strict=True))
        return np.asarray(np.concatenate([site.row_weights for site in sites]) * (kept / every))

    @property
    def _encoding(self) -> TargetEncoding:
        return self.statistics.encoding

    @cached_property
    def _truth(self) -> FloatArray:
        """The targets of all rows: numbers, or indicators of all classes."""
        return np.concatenate([self._encoding.decode(t, own.T) for t, own in self.by_task.items()])

    @cached_property
    def _whole(self) -> ArrayRows:
        X, weights, encoding = np.concatenate([own.X for own in self.by_task.values()]), self.weights, self._encoding
        if isinstance(encoding, ClassEncoding) and encoding.class_weights is not None:
            # Features do not depend on targets, nor on the weights of classes.
            weights = weights / encoding.class_weights[np.argmax(self._truth, axis=1)]
        return array_rows(X, np.empty(len(X)), self.groups, weights)

    def candidate(self, setting: Mapping[str, Any]) -> MultiTaskELM:
        """Return the estimator with another setting; what is known of the rows stays."""
        return with_setting(copy.copy(self.fitted), setting)

    def features(self, candidate: MultiTaskELM, solver: Solver) -> Features:
        """Return the features of a candidate."""
        return make_features(candidate, solver, self._whole, self.fitted.seed_, LocalBackend())

    def losses(self, predictions: Mapping[Label, FloatArray]) -> FloatArray:
        """Return the loss of each row: the mean square of its errors, or its log loss at the best temperature of all.

        ``predictions`` are those of the targets as the fit has them. Several outputs count in units of their standard
        deviations.
        """
        truth = self._truth
        found = np.concatenate([self._encoding.decode(t, predictions[t]) for t in self.by_task])
        classes: dict[Label, NDArray[Any]] | None = getattr(self.fitted, "task_classes_", None)
        if classes is None:
            spread = np.ones(1)
            if truth.shape[1] > 1:
                mean = np.average(truth, axis=0, weights=self.weights)
                spread = np.sqrt(np.average((truth - mean) ** 2, axis=0, weights=self.weights))
            return np.asarray(np.mean(((truth - found) / np.where(spread > 0, spread, 1.0)) ** 2, axis=1))
        for t, places in self.groups.items():
            found[np.ix_(places, ~np.isin(self.fitted.classes_, classes[t]))] = _NEVER
        logs = log_softmax(found / fit_temperature(found, truth, self.weights), axis=1)
        return np.asarray(-np.sum(truth * logs, axis=1))
