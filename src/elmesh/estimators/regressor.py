"""Regression: one output or several, in whatever units."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import MultiOutputMixin, RegressorMixin

from elmesh.comm.communicator import raise_on_all
from elmesh.data.features import Features
from elmesh.data.site_statistics import SiteStatistics
from elmesh.data.tasks import Groups, check_task_sizes, regression_targets
from elmesh.estimators.base import MultiTaskELM, check_size
from elmesh.estimators.dependence import Predictor
from elmesh.estimators.head import Head
from elmesh.estimators.private_fit import PrivateFit
from elmesh.estimators.rows import Chunk, ColumnMoments, TrainingRows, common_moments
from elmesh.estimators.target_encoding import NumberEncoding, TargetEncoding, find_limits, number_moments
from elmesh.estimators.training_statistics import TrainingStatistics
from elmesh.run.backend import Backend, FitContext
from elmesh.solvers import Solver, make_solver
from elmesh.solvers.base import PrivateTotals
from elmesh.typing import FloatArray, Label

__all__ = ["MultiTaskELMRegressor"]


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

    def _check_targets(self, rows: TrainingRows, backend: Backend) -> tuple[Solver, None]:
        with raise_on_all(backend.communicator):
            solver = make_solver(self.solver)
            check_task_sizes(rows.sizes, 1 if solver.grouped_features else 2)
            for chunk in rows.chunks(inputs=False):
                check_size(chunk.X, *regression_targets(chunk.y, chunk.groups).values())
            return solver, None

    def _plain_encoding(self, chunk: Chunk, found: None) -> NumberEncoding:
        d = 1 if chunk.y.ndim == 1 else chunk.y.shape[1]
        return NumberEncoding(np.zeros(d), np.ones(d))

    def _find_encoding(
        self, rows: TrainingRows, found: None, context: FitContext, backend: Backend, private: PrivateFit | None
    ) -> NumberEncoding:
        encoding = self._plain_encoding(next(rows.chunks(inputs=False)), found)
        if private is not None:
            mean, scale = private.scales.targets
            return replace(encoding, mean=mean, scale=scale)
        grouped = context.solver.grouped_features
        if grouped and self.clip is not None:
            encoding = find_limits(rows, backend)
        if not self.fit_intercept or backend.scales_targets:
            return encoding
        moments = number_moments(rows, encoding)
        if grouped:
            mean, spread = common_moments(backend, moments)
            return replace(encoding, mean=mean, scale=_positive(spread))
        return replace(encoding, scale=_common_scale(backend, moments))

    def _learn(
        self,
        layer: Features,
        statistics: TrainingStatistics,
        context: FitContext,
        backend: Backend,
        totals: PrivateTotals | None = None,
    ) -> None:
        fitted, encoding = self._solve(layer, statistics.sites, context, backend, totals), statistics.encoding
        if not isinstance(encoding, NumberEncoding):
            raise TypeError("The statistics are of classes.")
        mean, scale = encoding.mean, encoding.scale
        self.target_scale_ = scale
        self.A_ = {t: A * scale for t, A in self.A_.items()}
        heads = {
            t: replace(
                head,
                A=head.A * scale,
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
        self._set_model(fitted.layer, heads, statistics.y_ndim, common)

    def _model_encoding(self) -> NumberEncoding:
        head, common = next(iter(self.model_.heads.values())), self.model_.common
        mean = np.zeros(head.A.shape[1]) if common is None else common.t_mean
        return NumberEncoding(mean, np.ones(len(mean)))

    def _finish_head(self, head: Head, site: SiteStatistics, encoding: TargetEncoding) -> Head:
        return head

    def _predictor(self) -> Predictor:
        if self.table_ is not None:
            columns = self.table_.target_columns
            mean, unit = np.array([column.mean for column in columns]), np.array([column.std for column in columns])
            return Predictor(self.model_, [column.name for column in columns], None, mean, unit)
        d = next(iter(self.model_.heads.values())).t_mean.size
        return Predictor(self.model_, ["y"] if d == 1 else [f"y{k + 1}" for k in range(d)], None)

    def _true_targets(self, y: NDArray[Any], groups: Groups) -> dict[Label, FloatArray]:
        return regression_targets(y, groups)

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
        from sklearn.metrics import r2_score  # noqa: PLC0415 (slow to import)

        return float(r2_score(y, self.predict(X, tasks), sample_weight=sample_weight))


def _positive(scale: FloatArray) -> FloatArray:
    """Return scales, one for targets that never vary."""
    return np.where((scale > 0) & np.isfinite(scale), scale, 1.0)


def _common_scale(backend: Backend, moments: Mapping[Label, ColumnMoments]) -> FloatArray:
    """Return the root mean square of each output about its tasks' means."""
    with np.errstate(over="ignore"):
        own = {t: np.array([one.weight, *one.squares]) for t, one in moments.items()}
        n, *total = backend.sum_over_tasks(own).tolist()
    return _positive(np.sqrt(np.asarray(total) / n))
