"""Regression: one output or several, in whatever units."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import MultiOutputMixin, RegressorMixin
from sklearn.metrics import r2_score

from elmesh.comm.communicator import merge_by_task, raise_on_all
from elmesh.data.tasks import Groups, check_task_sizes, group_rows, regression_targets
from elmesh.errors import ElmeshError
from elmesh.estimators.base import MultiTaskELM, check_size
from elmesh.estimators.features import common_moments
from elmesh.estimators.head import Head
from elmesh.run.backend import Backend, LocalBackend
from elmesh.run.config import RunConfig
from elmesh.solvers import make_solver
from elmesh.text import count
from elmesh.typing import FloatArray, Label

__all__ = ["MultiTaskELMRegressor"]


# Targets further from the median of their task than this many robust standard deviations count as that far.
_TARGET_LIMIT = 10.0
# From the median absolute deviation to the standard deviation of a normal distribution.
_ROBUST = 1.4826


class MultiTaskELMRegressor(MultiOutputMixin, RegressorMixin, MultiTaskELM):
    """Predict numbers for rows of many related tasks, learned together.

    The parameters and attributes are those of :class:`MultiTaskELMClassifier`, without the classes and with
    ``target_scale_``: with ``fit_intercept``, each output is divided by its root mean square within tasks while
    learning, so that predictions scale with the targets, and ``history_`` is in such units. Without it, as in the
    paper, the penalties act on the targets as they are given. Unless ``clip`` is None, a training target further than
    ten robust standard deviations from the median of its task counts as that far: a misplaced decimal point must not
    spoil a task.

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
        X_checked, y_checked, groups = self._read(X, y, tasks, backend)
        with raise_on_all(backend.communicator):
            grouped = make_solver(self.solver).grouped_features
            check_task_sizes(groups, 1 if grouped else 2)
            targets = regression_targets(y_checked, groups)
            check_size(X_checked, targets)
        fields = self._check_consistent(backend.communicator)
        context = self._assign(config, backend, groups, make_solver(self.solver), fields)
        own = context.assignment.own
        targets = {t: targets[t] for t in own}
        private = self._start_private(X_checked, groups, targets, context, backend)
        if grouped and self.clip is not None and private is None:
            targets = _limited(targets, backend)
        scale = np.ones(targets[own[0]].shape[1])
        mean = np.zeros_like(scale)
        if private is not None:
            mean, scale = private.scales.targets
        elif self.fit_intercept and not backend.scales_targets:
            if grouped:
                mean, spread = common_moments(backend, targets)
                scale = np.where((spread > 0) & np.isfinite(spread), spread, 1.0)
            else:
                scale = _common_scale(backend, targets)
        self.target_scale_ = scale
        scaled = {t: (T - mean) / scale for t, T in targets.items()}
        fitted = self._fit(X_checked, groups, scaled, context, backend, private)
        self.A_ = {t: A * scale for t, A in self.A_.items()}
        weights = {t: head.A * scale for t, head in fitted.heads.items()}
        heads = {
            t: replace(
                head,
                A=weights[t],
                t_mean=head.t_mean * scale + mean,
                shared=None if head.shared is None else head.shared * scale,
            )
            for t, head in fitted.heads.items()
        }
        common = fitted.common
        if common is not None and self.V_ is not None and self.noise_ is not None:
            # The basis U has no unit of the targets: coefficients in it have.
            common = replace(common, W=common.W * scale, t_mean=mean, s2=common.s2 * scale**2)
            self.W_, self.V_ = common.W, {t: V * scale for t, V in self.V_.items()}
            self.noise_ = {t: noise * scale for t, noise in self.noise_.items()}
        self._set_model(fitted.layer, heads, y_checked.ndim, common)
        return self

    def training_targets(
        self, y: NDArray[Any], groups: Groups
    ) -> tuple[Mapping[Label, FloatArray], Mapping[Label, FloatArray]]:
        """Return the targets of each task, as they are and as they were learned from."""
        targets = regression_targets(y, groups)
        is_limited = self.clip is not None and make_solver(self.solver).privacy is None
        return targets, _limited(dict(targets), LocalBackend()) if is_limited else targets

    def _new_targets(self, y: NDArray[Any], n_rows: int) -> tuple[FloatArray, Callable[[Head], Head]]:
        targets = regression_targets(y, group_rows(None, n_rows))["all"]
        width = next(iter(self.model_.heads.values())).A.shape[1]
        if targets.shape[1] != width:
            raise ElmeshError(f"y has {count(targets.shape[1], 'column')}; the model predicts {width}.")
        return targets, lambda head: head

    def summary(self) -> dict[str, Any]:
        """Return the facts about a fit in plain JSON."""
        return {**super().summary(), "classes": None}

    def predict(
        self, X: ArrayLike, tasks: object = None, return_std: bool = False
    ) -> FloatArray | tuple[FloatArray, FloatArray]:
        """Return predictions, of the shape that ``y`` had.

        Parameters
        ----------
        X : array or frame of shape (n_samples, n_features)
            Inputs.
        tasks : array-like of shape (n_samples,), optional
            Task of each row.
        return_std : bool, default=False
            Whether to return the standard deviation of each prediction as well: of the common and the private weights,
            and of the task's noise.
        """
        checked, groups = self._rows(X, tasks)
        predictions = self._in_order(groups, self.model_.scores(checked, groups))
        if self.table_ is not None:
            predictions = self.table_.in_units(predictions)
        if not return_std:
            return predictions
        deviations = np.sqrt(self._in_order(groups, self.model_.variances(checked, groups)))
        return predictions, deviations if self.table_ is None else deviations * self.table_.target_units

    def _in_order(self, groups: Groups, values: Mapping[Label, FloatArray]) -> FloatArray:
        """Return values of all rows in their order, of the shape that ``y`` had."""
        width = next(iter(self.model_.heads.values())).A.shape[1]
        table = np.empty((sum(map(len, groups.values())), width))
        for t, rows in groups.items():
            table[rows] = values[t]
        return table[:, 0] if self.model_.y_ndim == 1 else table

    def score(self, X: ArrayLike, y: ArrayLike, tasks: object = None, sample_weight: ArrayLike | None = None) -> float:
        """Return the coefficient of determination over all rows."""
        return float(r2_score(y, self.predict(X, tasks), sample_weight=sample_weight))


def _limited(targets: dict[Label, FloatArray], backend: Backend) -> dict[Label, FloatArray]:
    """Return targets limited to some robust standard deviations about the median of their task.

    The robust deviation is a task's own or that of the median task, whichever is larger, so that the few rows of a
    small task do not limit it. Declared scales count as one; where sums are masked no process knows that of the median
    task, and the standard deviation over all rows takes its place.
    """
    middle = {t: np.median(T, axis=0) for t, T in targets.items()}
    own = {t: _ROBUST * np.median(np.abs(T - middle[t]), axis=0) for t, T in targets.items()}
    usual = np.ones(len(next(iter(own.values()))))
    if backend.masked and not backend.scales_targets:
        _, usual = common_moments(backend, targets)
    elif not backend.scales_targets:
        every = merge_by_task(backend.communicator, {t: spread.tolist() for t, spread in own.items()})
        usual = np.median(list(every.values()), axis=0)
    limited = {}
    for t, T in targets.items():
        # Where half of all targets are equal there is no scale to measure others by.
        most = np.where(usual > 0, _TARGET_LIMIT * np.maximum(own[t], usual), np.inf)
        limited[t] = np.clip(T, middle[t] - most, middle[t] + most)
    return limited


def _common_scale(backend: Backend, targets: Mapping[Label, FloatArray]) -> FloatArray:
    """Return the root mean square of each output about its tasks' means, one for outputs that never vary."""
    with np.errstate(over="ignore"):
        own = {t: np.array([len(T), *np.sum((T - T.mean(axis=0)) ** 2, axis=0)]) for t, T in targets.items()}
        n, *total = backend.sum_over_tasks(own).tolist()
    scale = np.sqrt(np.asarray(total) / n)
    return np.where((scale > 0) & np.isfinite(scale), scale, 1.0)
