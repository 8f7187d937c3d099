"""Regression: one output or several, in whatever units."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import MultiOutputMixin, RegressorMixin
from sklearn.metrics import r2_score

from elmesh.comm.communicator import Communicator, merge_by_task, raise_on_all
from elmesh.data.tasks import check_task_sizes, group_rows, regression_targets
from elmesh.estimators.base import MultiTaskELM
from elmesh.run.config import RunConfig
from elmesh.typing import FloatArray, Label

__all__ = ["MultiTaskELMRegressor"]


class MultiTaskELMRegressor(MultiOutputMixin, RegressorMixin, MultiTaskELM):
    """Predict numbers for rows of many related tasks, learned together.

    The parameters and attributes are those of :class:`MultiTaskELMClassifier`, without the classes and with
    ``target_scale_``: with ``fit_intercept``, each output is divided by its root mean square within tasks while
    learning, so that predictions scale with the targets, and ``history_`` is in such units. Without it, as in the
    paper, the penalties act on the targets as they are given.

    Examples
    --------
    >>> import numpy as np
    >>> from elmesh import MultiTaskELMRegressor
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(90, 3))
    >>> y = X @ [1.0, -2.0, 0.5]
    >>> model = MultiTaskELMRegressor(n_hidden=60, weight_scale=0.5, random_state=0)
    >>> model.fit(X, y, tasks=np.repeat([1, 2, 3], 30)).score(X, y, tasks=np.repeat([1, 2, 3], 30)) > 0.9
    True
    """

    _kind = "regression"

    def fit(self, X: ArrayLike, y: ArrayLike, tasks: object = None, *, run: RunConfig | None = None) -> Self:
        """Learn all tasks together.

        Parameters
        ----------
        X : array or frame of shape (n_samples, n_features)
            Inputs.
        y : array-like of shape (n_samples,) or (n_samples, n_outputs)
            Numbers to predict.
        tasks : array-like of shape (n_samples,), optional
            Task of each row, as text or whole numbers. Without it all rows are one task.
        run : RunConfig, optional
            Where the fit runs, its callback and its checkpoints; by default in this process.

        Returns
        -------
        self
        """
        config, backend = self._backend(run)
        with raise_on_all(backend.communicator):
            X_checked, y_checked = self._read(X, y)
            groups = group_rows(tasks, len(X_checked))
            check_task_sizes(groups)
            targets = regression_targets(y_checked, groups)
        context = self._agree(config, backend, groups)
        own = context.assignment.own
        targets = {t: targets[t] for t in own}
        scale = np.ones(targets[own[0]].shape[1])
        if self.fit_intercept and not backend.scales_targets:
            scale = _common_scale(backend.communicator, targets)
        self.target_scale_ = scale
        fitted = self._fit(X_checked, groups, {t: T / scale for t, T in targets.items()}, context, backend)
        self.A_ = {t: A * scale for t, A in self.A_.items()}
        heads = {t: replace(head, A=self.A_[t], t_mean=head.t_mean * scale) for t, head in fitted.heads.items()}
        self._set_model(fitted.layer, heads, y_checked.ndim)
        return self

    def summary(self) -> dict[str, Any]:
        """Return the facts about a fit in plain JSON."""
        return {**super().summary(), "classes": None}

    def predict(self, X: ArrayLike, tasks: object = None) -> FloatArray:
        """Return predictions, of the shape that ``y`` had."""
        groups, scores = self._scores(X, tasks)
        width = next(iter(self.model_.heads.values())).A.shape[1]
        table = np.empty((sum(map(len, groups.values())), width))
        for t, rows in groups.items():
            table[rows] = scores[t]
        return table[:, 0] if self.model_.y_ndim == 1 else table

    def score(self, X: ArrayLike, y: ArrayLike, tasks: object = None, sample_weight: ArrayLike | None = None) -> float:
        """Return the coefficient of determination over all rows."""
        return float(r2_score(y, self.predict(X, tasks), sample_weight=sample_weight))


def _common_scale(communicator: Communicator, targets: Mapping[Label, FloatArray]) -> FloatArray:
    """Return the root mean square of each output about its tasks' means, one for outputs that never vary."""
    with np.errstate(over="ignore"):
        own = {t: (len(T), np.sum((T - T.mean(axis=0)) ** 2, axis=0).tolist()) for t, T in targets.items()}
        everybody = merge_by_task(communicator, own).values()
        n, total = sum(rows for rows, _ in everybody), sum(np.array(squares) for _, squares in everybody)
    scale = np.sqrt(np.asarray(total) / n)
    return np.where((scale > 0) & np.isfinite(scale), scale, 1.0)
