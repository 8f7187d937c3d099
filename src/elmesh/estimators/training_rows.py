"""The rows of a fit as an estimator reads them, and what predictions of rows that were left out lose."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import log_softmax

from elmesh.data.tasks import Groups
from elmesh.estimators.base import MultiTaskELM
from elmesh.math.calibration import fit_temperature
from elmesh.solvers import make_solver
from elmesh.solvers.settings import with_settings
from elmesh.typing import FloatArray, Label

__all__ = ["SOLVER_SETTINGS", "TrainingRows", "with_setting"]

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
class TrainingRows:
    """The rows of a fit, of all tasks.

    Parameters
    ----------
    fitted : MultiTaskELM
        An estimator that was fitted on them.
    X : ndarray of shape (n, n_features)
        Inputs as numbers.
    y : ndarray
        Targets as they were given.
    groups : dict
        The rows of each task.
    """

    fitted: MultiTaskELM
    X: FloatArray
    y: NDArray[Any]
    groups: Groups

    @classmethod
    def of(cls, fitted: MultiTaskELM, X: ArrayLike, y: ArrayLike, tasks: object) -> TrainingRows:
        """Read the rows that an estimator was fitted on."""
        checked, groups = fitted.read_training_rows(X, tasks)
        return cls(fitted, checked, np.asarray(y), groups)

    def candidate(self, setting: Mapping[str, Any]) -> MultiTaskELM:
        """Return the estimator with another setting; what is known of the rows stays."""
        return with_setting(copy.copy(self.fitted), setting)

    @cached_property
    def scale(self) -> FloatArray:
        """What targets are divided by while learning."""
        ones = np.ones(next(iter(self.targets.values())).shape[1])
        return np.asarray(getattr(self.fitted, "target_scale_", ones))

    @cached_property
    def targets(self) -> Mapping[Label, FloatArray]:
        """The targets of each task: numbers, or indicators of all classes."""
        return self.fitted.training_targets(self.y, self.groups)[0]

    def columns(self, task: Label) -> slice | NDArray[np.intp]:
        """Return the columns of targets that a task's predictions have: those of its classes."""
        own: dict[Label, NDArray[Any]] | None = getattr(self.fitted, "task_classes_", None)
        return slice(None) if own is None else np.searchsorted(self.fitted.classes_, own[task])

    def losses(self, predictions: Mapping[Label, FloatArray]) -> FloatArray:
        """Return the loss of each row: the mean square of its errors, or its log loss at the best temperature of all.

        Several outputs count in units of their standard deviations. ``predictions`` have the task's own columns.
        """
        every = np.concatenate(list(self.targets.values()))
        truth, found = np.empty_like(every), np.full_like(every, _NEVER)
        for t, rows in self.groups.items():
            truth[rows] = self.targets[t]
            found[rows[:, None], np.arange(every.shape[1])[self.columns(t)]] = predictions[t]
        if not hasattr(self.fitted, "task_classes_"):
            spread = every.std(axis=0) if every.shape[1] > 1 else np.ones(1)
            return np.asarray(np.mean(((truth - found) / np.where(spread > 0, spread, 1.0)) ** 2, axis=1))
        logs = log_softmax(found / fit_temperature(found, truth), axis=1)
        return np.asarray(-np.sum(truth * logs, axis=1))
