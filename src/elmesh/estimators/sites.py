"""What a fitted estimator knows of its sites: each one's own model, its parts, its gain, and sites that come later."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from sklearn.base import clone
from sklearn.utils.validation import check_consistent_length, check_is_fitted

from elmesh.data.features import FeatureMap, Features
from elmesh.data.labels import plain_type
from elmesh.data.site_statistics import SiteStatistics
from elmesh.data.statistics import SiteRows
from elmesh.data.tasks import Groups, group_rows, match_tasks
from elmesh.errors import ElmeshError
from elmesh.estimators.gains import GainRows, SiteGains, measure_gains
from elmesh.estimators.head import Head
from elmesh.estimators.inputs import InputReader, array_rows, check_weights
from elmesh.estimators.learning_curve import LearningCurve, measure_curve
from elmesh.estimators.model import MultiTaskModel
from elmesh.estimators.reduction import collect_statistics, keyed_rows
from elmesh.estimators.rows import ArrayRows
from elmesh.estimators.target_encoding import TargetEncoding, weighted
from elmesh.estimators.training_statistics import TrainingStatistics
from elmesh.math.blas import limit_blas_threads
from elmesh.run.config import RunConfig
from elmesh.solvers import Solver
from elmesh.text import count, listed, row
from elmesh.typing import FloatArray, Label

__all__ = ["CLASS_NOISE", "SiteMethods"]

#: Least noise of 0/1 targets, as a share of their variance: features that are smooth cannot follow a step any closer.
CLASS_NOISE = 0.1


class SiteMethods(InputReader):
    """The sites, or tasks, of a fitted estimator."""

    unknown_site: str
    tasks_: NDArray[Any]
    statistics_: TrainingStatistics | None
    # Where the statistics of a model are that was read from a file, until they are needed.
    _statistics_path: Path | None

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

    def add_site(self, name: Label, X: ArrayLike, y: ArrayLike, *, sample_weight: ArrayLike | None = None) -> Self:
        """Add a site to a fitted model, from its own rows alone.

        The common part and the basis of the shared part stay as they are, and no other site takes part: the site finds
        its noise, its coefficients and its private weights.

        Parameters
        ----------
        name : str or int
            The task label of the site, of the type of the others.
        X : array or frame of shape (n_samples, n_features)
            Its inputs.
        y : array-like of shape (n_samples,) or (n_samples, n_outputs)
            Its targets; classes must be some of the model's.
        sample_weight : array-like of shape (n_samples,), optional
            How often each row counts.

        Returns
        -------
        self
        """
        check_is_fitted(self, "model_")
        label = self._label(name)
        if label in self.model_.heads:
            raise ElmeshError(f"The model has a site {name!r} already; choose another name, or use partial_fit.")
        rows = self._new_rows(X, y, np.full(_length(X), label), sample_weight)
        statistics = self._statistics()
        known = statistics or self._without_rows()
        encoding = known.encoding.with_task(label, rows.whole.y)
        (site,) = collect_statistics(rows, self.model_.layer, encoding, known.seed).values()
        known = replace(known, sites=dict(sorted({**known.sites, label: site}.items())), encoding=encoding)
        self._set_heads({**self.model_.heads, label: self._own_head(site, encoding)})
        self.statistics_ = None if statistics is None else known
        return self

    def partial_fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        tasks: object = None,
        *,
        sample_weight: ArrayLike | None = None,
        run: RunConfig | None = None,
    ) -> Self:
        """Learn from further rows as well; without a fit before, this is one.

        Only statistics of the earlier rows are needed, not the rows. The result is that of a fit of all rows with the
        features, scales, categories and classes of the first one. Where the rows of other tasks are elsewhere (a site
        of a network), and after a private fit, what tasks have in common stays as it is, and only the tasks' own parts
        are learned again.

        Parameters
        ----------
        X : array or frame of shape (n_samples, n_features)
            Inputs of the further rows.
        y : array-like of shape (n_samples,) or (n_samples, n_outputs)
            Their targets.
        tasks : array-like of shape (n_samples,), optional
            Their tasks, of which some may be new.
        sample_weight : array-like of shape (n_samples,), optional
            How often each row counts.
        run : RunConfig, optional
            Callback and checkpoints of the fit.

        Returns
        -------
        self
        """
        if not hasattr(self, "model_"):
            return self.fit(X, y, tasks, sample_weight=sample_weight, run=run)
        statistics = self._needed_statistics()
        rows = self._new_rows(X, y, tasks, sample_weight)
        new = [label for label in rows.sizes if label not in statistics.sites]
        if new and not statistics.joint:
            raise ElmeshError(
                f"The model has no task {new[0]!r}, and what tasks have in common is not learned again here; use "
                "add_site for a new one."
            )
        encoding = statistics.encoding
        for label in new:
            encoding = encoding.with_task(label, rows.whole.y[rows.whole.groups[label]])
        into = {label: site.copy() for label, site in statistics.sites.items()}
        sites = collect_statistics(rows, self.model_.layer, encoding, statistics.seed, into=into)
        self._learn_again(replace(statistics, sites=sites, encoding=encoding), list(rows.sizes), run)
        return self

    def forget(
        self,
        X: ArrayLike,
        y: ArrayLike,
        tasks: object = None,
        *,
        sample_weight: ArrayLike | None = None,
        run: RunConfig | None = None,
    ) -> Self:
        """Learn again as if some rows had never been there.

        The result is that of a fit of the other rows with the features, scales, categories and classes of the first
        one, in which the rows may have had a part. A task that has no rows left is no longer in the model. Where the
        rows of other tasks are elsewhere, and after a private fit, only the tasks' own parts are learned again: what
        tasks have in common still follows from the rows, too.

        Parameters
        ----------
        X : array or frame of shape (n_samples, n_features)
            Inputs of rows that the model was learned from.
        y : array-like of shape (n_samples,) or (n_samples, n_outputs)
            Their targets.
        tasks : array-like of shape (n_samples,), optional
            Their tasks.
        sample_weight : array-like of shape (n_samples,), optional
            The weights that they had.
        run : RunConfig, optional
            Callback and checkpoints of the fit.

        Returns
        -------
        self
        """
        statistics = self._needed_statistics()
        rows = self._new_rows(X, y, tasks, sample_weight)
        unknown = [label for label in rows.sizes if label not in statistics.sites]
        if unknown:
            raise ElmeshError(f"The model has no task {unknown[0]!r}; it has {listed(list(statistics.sites))}.")
        sites, layer = dict(statistics.sites), self.model_.layer
        for label, places in rows.whole.groups.items():
            old, site = keyed_rows(rows.whole, statistics.encoding, label, statistics.seed), sites[label].copy()
            missing = site.missing(old)
            if len(missing):
                raise ElmeshError(
                    f"{count(len(missing), 'row')} of task {label!r} {'is' if len(missing) == 1 else 'are'} not among "
                    f"those that the model was learned from, the first {row(int(places[missing[0]]))}; nothing was "
                    "changed. Give the rows as they were then: same columns, values, targets and weights."
                )
            site.remove(layer, old)
            sites[label] = site
        left = {label: site for label, site in sites.items() if site.n_rows}
        if not left:
            raise ElmeshError("No rows would be left; nothing was changed. Delete the model instead.")
        self._learn_again(replace(statistics, sites=left), [label for label in rows.sizes if label in left], run)
        return self

    def _learn_again(
        self, statistics: TrainingStatistics, changed: Sequence[Label], run: RunConfig | None = None
    ) -> None:
        """Learn from changed statistics: everything, or the own parts of the tasks that have changed."""
        if statistics.joint:
            self._relearn(statistics, self.model_.layer, run)
            return
        heads = {label: head for label, head in self.model_.heads.items() if label in statistics.sites}
        heads |= {label: self._own_head(statistics.sites[label], statistics.encoding) for label in changed}
        self._set_heads(heads)
        self.statistics_ = statistics

    def _own_head(self, site: SiteStatistics, encoding: TargetEncoding) -> Head:
        """Return the head of a task from its statistics, all that is common held fixed."""
        common, layer = self.model_.common, self.model_.layer
        if common is None or not isinstance(layer, FeatureMap):
            raise ElmeshError(
                "This model has no common part, beside which the part of one site could be learned; fit it again, with "
                "mesh-elm's defaults."
            )
        rows = SiteRows.from_reduced(site.reduced(layer, centre=False))
        unit = encoding.unit
        rows = replace(rows, T=rows.T * unit, rest=rows.rest * unit**2)
        return self._finish_head(common.head(rows, layer.groups), site, encoding)

    def _set_heads(self, heads: Mapping[Label, Head]) -> None:
        self.model_ = replace(self.model_, heads=dict(sorted(heads.items())))
        self.tasks_ = np.array(list(self.model_.heads))

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
        check_consistent_length(checked, targets)
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
        path: Path | None = getattr(self, "_statistics_path", None)
        if path is not None:
            self.statistics_, self._statistics_path = TrainingStatistics.read(path), None
        statistics: TrainingStatistics | None = getattr(self, "statistics_", None)
        return statistics

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
            ``table``, a DataFrame, and a sentence on how many rows the site wants.
        """
        check_is_fitted(self, "model_")
        rows, _ = self._encode(X, tasks=[])
        encoding = (self._statistics() or self._without_rows()).encoding
        label: Label = "" if isinstance(next(iter(self.model_.heads)), str) else -1
        T = encoding.encode(label, self._in_fitted_units(y)) * encoding.unit
        return measure_curve(self.model_, rows, T)

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
            more than 2,048 rows.
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
            return measure_gains(self.model_, rows, floor, pooled=pooled)

    def _kept_rows(self, layer: FeatureMap) -> dict[Label, GainRows]:
        """Return the rows that are kept of each task."""
        statistics = self._needed_statistics()
        unit = statistics.encoding.unit
        return {t: GainRows.of_site(statistics.sites[t], layer, unit) for t in self.model_.heads}

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

    @abstractmethod
    def _model_encoding(self) -> TargetEncoding:
        """Return the encoding of targets that follows from the model."""

    @abstractmethod
    def _finish_head(self, head: Head, site: SiteStatistics, encoding: TargetEncoding) -> Head:
        """Complete the head of a task."""

    @abstractmethod
    def _relearn(self, statistics: TrainingStatistics, layer: Features, run: RunConfig | None) -> None:
        """Fit from statistics."""

    @abstractmethod
    def fit(
        self,
        X: Any,
        y: Any,
        tasks: object = None,
        *,
        sample_weight: ArrayLike | None = None,
        run: RunConfig | None = None,
    ) -> Self:
        """Learn all tasks together."""


def _length(X: Any) -> int:
    return int(X.shape[0]) if hasattr(X, "shape") else len(X)
