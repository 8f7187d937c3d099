"""What a fitted estimator knows of its sites: each one's own model, its parts, its gain, and sites that come later."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from sklearn.base import clone
from sklearn.utils.validation import check_is_fitted

from elmesh.checks import check_count
from elmesh.data.features import FeatureMap
from elmesh.data.labels import plain_type
from elmesh.data.tasks import Groups, check_length, group_rows, match_tasks
from elmesh.errors import ElmeshError
from elmesh.estimators.dependence import Predictor, explain_model
from elmesh.estimators.explanation import Explanation
from elmesh.estimators.gains import GainRows, SiteGains, measure_gains
from elmesh.estimators.input_columns import choose_columns, input_columns
from elmesh.estimators.inputs import InputReader, array_rows, check_weights
from elmesh.estimators.learning_curve import LearningCurve, measure_curve
from elmesh.estimators.model import MultiTaskModel
from elmesh.estimators.rows import ArrayRows
from elmesh.estimators.storage import document_digest
from elmesh.estimators.target_encoding import TargetEncoding, weighted
from elmesh.estimators.training_statistics import TrainingStatistics
from elmesh.files import atomic_write
from elmesh.math.blas import limit_blas_threads
from elmesh.solvers import Solver
from elmesh.text import count, listed
from elmesh.typing import FloatArray, Label, StrPath

if TYPE_CHECKING:
    from onnx import ModelProto

__all__ = ["CLASS_NOISE", "SiteMethods"]

#: Least noise of 0/1 targets, as a share of their variance: features that are smooth cannot follow a step any closer.
CLASS_NOISE = 0.1


class SiteMethods(InputReader):
    """The sites, or tasks, of a fitted estimator."""

    unknown_site: str
    tasks_: NDArray[Any]
    statistics_: TrainingStatistics | None
    # Where the statistics of a model are that was read from a file, until they are needed.
    _statistics_source: tuple[Path, str] | None

    @abstractmethod
    def _adopt(self, model: MultiTaskModel, n_features: int, extra: dict[str, Any]) -> None:
        """Become fitted from a model alone."""

    def _scores(self, X: ArrayLike, tasks: object) -> tuple[Groups, dict[Label, FloatArray]]:
        checked, groups = self._rows(X, tasks)
        return groups, self.model_.scores(checked, groups)

    def _rows(self, X: ArrayLike, tasks: object) -> tuple[FloatArray, Groups]:
        """Return checked rows to predict, and those of each task."""
        check_is_fitted(self, "model_")
        allowed = self.unknown_site == "common" and self.model_.common is not None
        known = list(self.model_.heads)
        checked, labels = self._encode(X, tasks)
        groups = match_tasks(labels, len(checked), known, allow_unknown=allowed)
        return checked, groups

    def for_task(self, task: Label) -> Self:
        """Return an estimator with one task's own model and nothing of the others.

        Parameters
        ----------
        task : str or int
            A task that the estimator was fitted on.

        Returns
        -------
        estimator
            Fitted; its ``predict`` needs no ``tasks``.
        """
        check_is_fitted(self, "model_")
        alone: Self = clone(self)
        alone.unknown_site = "error"
        if isinstance(alone.solver, Solver):
            alone.solver = alone.solver.for_one_task()
        alone._adopt(self.model_.for_task(task), self.n_features_in_, {})
        alone._read_as(self)
        return alone

    def to_onnx(
        self,
        site: Label | None = None,
        path: StrPath | None = None,
        *,
        common: bool = False,
        return_std: bool = False,
        overwrite: bool = False,
    ) -> ModelProto:
        """Return one site's model as an ONNX model, which other programs and languages run without elmesh.

        A model of a table has an input of shape (rows, 1) per column: numbers as doubles and days since 1970 for dates,
        NaN where missing; text for categories, "" where missing. A model of an array has one input, ``X``. Outputs are
        ``prediction``, or ``label`` and ``probabilities`` of the site's classes. Apart from what all sites share,
        nothing of another site is in it. It is as confidential as the site's rows.

        Parameters
        ----------
        site : str, int or None, default=None
            A site that the estimator was fitted on; not needed if there is only one.
        path : path-like or None, default=None
            A file to write.
        common : bool, default=False
            Export what all sites have in common, for a site that was not in the fit; then ``site`` must be None.
        return_std : bool, default=False
            Add the output ``std``, the standard deviation of a regression's predictions. It contains the posterior
            covariance of the weights, which reveals more about the site's rows.
        overwrite : bool, default=False
            Whether to replace a file.

        Returns
        -------
        onnx.ModelProto

        Examples
        --------
        >>> from elmesh import MultiTaskELMRegressor
        >>> rng = np.random.default_rng(0)
        >>> X, site = rng.normal(size=(60, 2)), np.repeat(["north", "south"], 30)
        >>> model = MultiTaskELMRegressor(random_state=0).fit(X, X[:, 0], tasks=site)
        >>> [output.name for output in model.to_onnx("north").graph.output]
        ['prediction']
        """
        from elmesh.estimators.onnx_export import export_site  # noqa: PLC0415  (onnx is part of an extra)

        check_is_fitted(self, "model_")
        known = list(self.model_.heads)
        if common and site is not None:
            raise ElmeshError(f"site is {site!r} and common is True; give one of them.")
        if site is None and not common:
            if len(known) > 1:
                raise ElmeshError(
                    f"The model holds {count(len(known), 'task')} ({listed(known)}); name one with site=, or set "
                    "common=True for what all have in common."
                )
            (site,) = known
        if path is not None and not overwrite and os.path.lexists(path):
            raise ElmeshError(f"{os.fspath(path)} exists already; choose another path, or set overwrite=True.")
        model = export_site(self.model_, self.table_, site, return_std=return_std)
        if path is not None:
            try:
                Path(path).parent.mkdir(parents=True, exist_ok=True)
                atomic_write(Path(path), model.SerializeToString(deterministic=True))
            except OSError as error:
                raise ElmeshError(f"{os.fspath(path)} could not be written: {error.strerror}.") from error
        return model

    def _label(self, name: Any) -> Label:
        """Return the label of a task; raise if it is of another type than those of the model."""
        plain = plain_type(type(name))
        if plain is None or not isinstance(plain(name), type(next(iter(self.model_.heads)))):
            raise ElmeshError(f"The site {name!r} is of another type than the labels of the model's tasks.")
        return plain(name)

    def _new_rows(self, X: ArrayLike, y: ArrayLike, tasks: object, sample_weight: ArrayLike | None) -> ArrayRows:
        """Return further rows, or some of the rows of the fit."""
        check_is_fitted(self, "model_")
        checked, labels = self._encode(X, tasks)
        targets = self._in_fitted_units(y)
        check_length(targets, len(checked))
        if labels is None and len(self.model_.heads) > 1:
            raise ElmeshError("The model has several tasks; give that of each row with tasks=, or in its column.")
        groups = group_rows(labels, len(checked))
        if labels is None:
            groups = {next(iter(self.model_.heads)): groups["all"]}
        groups = {self._label(label): rows for label, rows in groups.items()}
        weights = None if sample_weight is None else check_weights(sample_weight, checked)
        return array_rows(checked, targets, groups, weights)

    def _statistics(self) -> TrainingStatistics | None:
        """Return what is kept of the rows of the fit, read from the model's folder if need be; None if nothing is."""
        source: tuple[Path, str] | None = getattr(self, "_statistics_source", None)
        if source is not None:
            folder, digest = source
            if not folder.is_dir() or document_digest(folder.parent) != digest:
                raise ElmeshError(
                    f"{folder.parent} does not hold the model any more that was loaded from it, so that its statistics "
                    "are not those of this model; load it again."
                )
            self.statistics_, self._statistics_source = TrainingStatistics.read(folder), None
        statistics: TrainingStatistics | None = getattr(self, "statistics_", None)
        return statistics

    def target_means(self, least_rows: int = 1) -> dict[Label | None, FloatArray]:
        """Return the mean target of each task with so many training rows, or the shares of its classes.

        Those of all rows are that of None. Targets are those that the fit had, within their limits; shares are in the
        order of ``classes_``, and weights of classes do not change them. A model that was saved without statistics
        knows none.
        """
        statistics = self._statistics()
        if statistics is None:
            return {}
        encoding, sites = statistics.encoding, statistics.sites
        found = {t: encoding.mean_target(t, site.target_sums, site.weight) for t, site in sites.items()}
        weights = [weight for _, weight in found.values()]
        every = np.average([mean for mean, _ in found.values()], axis=0, weights=weights)
        return {None: every} | {t: mean for t, (mean, _) in found.items() if sites[t].n_rows >= least_rows}

    def _needed_statistics(self) -> TrainingStatistics:
        check_is_fitted(self, "model_")
        statistics = self._statistics()
        if statistics is None:
            raise ElmeshError(
                "This model has no statistics of the rows that it was learned from: it was made by an earlier version, "
                "for one task alone, or saved without them. Fit it again from its rows."
            )
        return statistics

    def site_learning_curve(self, X: ArrayLike, y: ArrayLike) -> LearningCurve:
        """Return the error of a new site by the number of its rows that it has learned from.

        Half of the rows are predicted, and some of the others learned from, in twenty draws. The common part and the
        basis of the shared part stay as they are.

        Parameters
        ----------
        X : array or frame of shape (n_samples, n_features)
            Inputs of the site, at least four rows.
        y : array-like of shape (n_samples,) or (n_samples, n_outputs)
            Its targets.

        Returns
        -------
        LearningCurve
            ``table``, a DataFrame, and a sentence on how many rows the site needs.
        """
        check_is_fitted(self, "model_")
        rows, _ = self._encode(X, tasks=[])
        encoding = (self._statistics() or self._without_rows()).encoding
        label: Label = "" if isinstance(next(iter(self.model_.heads)), str) else -1
        targets = self._in_fitted_units(y)
        T, truth = encoding.encode(label, targets) * encoding.unit, encoding.plain(label, targets)
        return measure_curve(self.model_, rows, T, truth)

    def part_shares(self, X: ArrayLike, tasks: object = None) -> pd.DataFrame:
        """Return how much of each task's predictions is common to all tasks, shared by some, and its own.

        Parameters
        ----------
        X : array or frame of shape (n_samples, n_features)
            Inputs; the shares are over these rows.
        tasks : array-like of shape (n_samples,), optional
            Task of each row. A task that the model does not know has the common part only.

        Returns
        -------
        DataFrame
            One row per task. The columns ``common``, ``shared`` and ``private`` add up to 1: each is the mean square of
            its part of the predictions, about the common mean of the targets, divided by the sum of the three.

        Examples
        --------
        >>> from elmesh import MultiTaskELMRegressor
        >>> rng = np.random.default_rng(0)
        >>> X, site = rng.normal(size=(90, 2)), np.repeat(["north", "south", "west"], 30)
        >>> y = X[:, 0] * np.where(site == "west", -1.0, 1.0)
        >>> shares = MultiTaskELMRegressor(random_state=0).fit(X, y, tasks=site).part_shares(X, tasks=site)
        >>> bool(shares.loc["west", "private"] > shares.loc["north", "private"])
        True
        """
        checked, groups = self._rows(X, tasks)
        shares = self.model_.part_shares(checked, groups)
        return pd.DataFrame.from_dict(shares, orient="index", columns=["common", "shared", "private"])

    def site_gains(
        self,
        X: ArrayLike | None = None,
        y: ArrayLike | None = None,
        tasks: object = None,
        *,
        sample_weight: ArrayLike | None = None,
        pooled: bool = True,
    ) -> SiteGains:
        """Return what each task gains by learning together, from the rows that the estimator was fitted on.

        Each row is predicted by weights without it, in closed form: of the fit of all tasks, of a fit of its task
        alone, and of one model of all rows. Variances are those of all rows, and any shared part stays as it is.

        Parameters
        ----------
        X : array or frame of shape (n_samples, n_features), optional
            The inputs of the fit. By default the rows that the estimator has kept of it: all, or a sample of tasks with
            many rows.
        y : array-like of shape (n_samples,) or (n_samples, n_outputs), optional
            Its targets.
        tasks : array-like of shape (n_samples,), optional
            The task of each row.
        sample_weight : array-like of shape (n_samples,), optional
            The weights of the fit.
        pooled : bool, default=True
            Whether to compare with one model of all rows; not of use where other tasks' rows are elsewhere.

        Returns
        -------
        SiteGains
            Errors with intervals, a sentence, and ``table``, a DataFrame.

        Examples
        --------
        >>> from elmesh import MultiTaskELMRegressor
        >>> rng = np.random.default_rng(0)
        >>> X, site = rng.normal(size=(120, 5)), np.repeat(np.arange(12), 10)
        >>> y = X @ np.ones(5) + rng.normal(size=120)
        >>> gains = MultiTaskELMRegressor(random_state=0).fit(X, y, tasks=site).site_gains()
        >>> bool(gains.overall.together < gains.overall.alone)
        True
        """
        check_is_fitted(self, "model_")
        layer = self.model_.layer
        if not isinstance(layer, FeatureMap):
            raise ElmeshError("Gains are known of models with a common part; fit with mesh-elm's defaults.")
        rows = self._kept_rows(layer) if X is None else self._given_rows(X, y, tasks, sample_weight)
        floor = CLASS_NOISE if self._kind == "classification" else 0.0
        longest = max(len(own.X) for own in rows.values())
        with limit_blas_threads(longest, layer.width, min(longest, layer.width)):
            gains = measure_gains(self.model_, rows, floor, pooled=pooled)
        units = 1.0 if self.table_ is None or self._kind == "classification" else self.table_.target_units
        return gains.in_units(units) if isinstance(units, float) else gains

    def _kept_rows(self, layer: FeatureMap) -> dict[Label, GainRows]:
        """Return the rows that are kept of each task."""
        statistics = self._needed_statistics()
        unit = statistics.encoding.unit
        tasks = self.model_.heads
        return {t: GainRows.of_site(statistics.sites[t], layer, unit, len(tasks)) for t in tasks}

    def _given_rows(
        self, X: ArrayLike, y: ArrayLike | None, tasks: object, sample_weight: ArrayLike | None
    ) -> dict[Label, GainRows]:
        """Return the rows of the fit, as they are given."""
        if y is None:
            raise ElmeshError("y is missing; give the targets of the rows in X.")
        whole = self._new_rows(X, y, tasks, sample_weight).whole
        match_tasks(list(whole.groups), len(whole.groups), list(self.model_.heads))
        encoding = (self._statistics() or self._without_rows()).encoding
        found = {}
        for label, index in whole.groups.items():
            truth = encoding.plain(label, whole.y[index])
            T = encoding.encode(label, whole.y[index]) * encoding.unit
            weights = weighted(encoding, whole.y[index], whole.weights[index])
            found[label] = GainRows(whole.X[index], T, truth, weights, None, len(index))
        return found

    def _without_rows(self) -> TrainingStatistics:
        """Return statistics of no rows, with the encoding of targets that follows from the model."""
        return TrainingStatistics({}, self._model_encoding(), self.model_.layer.seed, joint=False)

    def explain(
        self,
        X: ArrayLike | None = None,
        y: ArrayLike | None = None,
        tasks: object = None,
        *,
        columns: Label | Sequence[Label] | None = None,
        n_repeats: int = 5,
        random_state: int = 0,
    ) -> Explanation:
        """Return what the predictions depend on, at each task, and which tasks are predicted alike.

        Everything follows from predictions of the given rows, by any solver. Importances of training rows contain what
        the model has learned by heart; those of other rows do not.

        Parameters
        ----------
        X : array or frame of shape (n_samples, n_features), optional
            Inputs, by default those that the estimator has kept of its fit. About 3,000 rows are drawn, at least 20 of
            each task; fewer where there are hundreds of columns.
        y : array-like of shape (n_samples,) or (n_samples, n_outputs), optional
            Their targets.
        tasks : array-like of shape (n_samples,), optional
            Task of each row.
        columns : sequence of str or int, optional
            The columns to explain, by their names in the table, or their positions in an array; all by default.
        n_repeats : int, default=5
            How often each column is permuted.
        random_state : int, default=0
            Seed of all that is drawn.

        Returns
        -------
        Explanation
            ``importance`` of each column, ``task_importance``, ``effects`` of the eight most important columns,
            ``distances`` between tasks with a map and ``groups``, and a sentence.

        Examples
        --------
        >>> from elmesh import MultiTaskELMRegressor
        >>> rng = np.random.default_rng(0)
        >>> X, site = rng.normal(size=(90, 3)), np.repeat(["north", "south", "west"], 30)
        >>> y = X[:, 1] * np.where(site == "west", -2.0, 2.0) + 0.1 * rng.normal(size=90)
        >>> why = MultiTaskELMRegressor(random_state=0).fit(X, y, tasks=site).explain()
        >>> why.clear_columns[0], why.mean_distances.index[0]
        (1, 'west')
        """
        check_count("n_repeats", n_repeats)
        check_count("random_state", random_state, least=0)
        predictor = self._predictor()
        if X is None:
            statistics = self._needed_statistics()
            parts = {t: site.rows for t, site in statistics.sites.items()}
            ends = np.cumsum([len(rows) for rows in parts.values()])
            groups = dict(zip(parts, np.split(np.arange(ends[-1]), ends[:-1]), strict=True))
            checked = np.concatenate([rows.X for rows in parts.values()])
            decoded = {t: statistics.encoding.decode(t, rows.T) for t, rows in parts.items()}
            targets = {t: T * predictor.unit + predictor.mean for t, T in decoded.items()}
        elif y is None:
            raise ElmeshError("y is missing; give the targets of the rows in X.")
        else:
            checked, groups = self._rows(X, tasks)
            targets = self._true_targets(np.asarray(y), groups)
        names = getattr(self, "feature_names_in_", np.arange(checked.shape[1])).tolist()
        chosen = choose_columns(input_columns(self.table_, names), columns)
        with limit_blas_threads(always=True):
            return explain_model(predictor, checked, groups, targets, chosen, int(n_repeats), int(random_state))

    @abstractmethod
    def _true_targets(self, y: NDArray[Any], groups: Groups) -> dict[Label, FloatArray]:
        """Return the targets of each task: numbers, or indicators of all classes."""

    @abstractmethod
    def _predictor(self) -> Predictor:
        """Return the model, and how its scores become what users see."""

    @abstractmethod
    def _model_encoding(self) -> TargetEncoding:
        """Return the encoding of targets that follows from the model."""
