"""What a fitted estimator knows of its sites: each one's own model, its parts, its gain, and sites that come later."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Self

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from sklearn.base import clone
from sklearn.utils.validation import check_is_fitted

from elmesh.data.features import FeatureMap
from elmesh.data.labels import plain_type
from elmesh.data.tasks import Groups, match_tasks
from elmesh.errors import ElmeshError
from elmesh.estimators.gains import SiteGains, measure_gains
from elmesh.estimators.head import Head
from elmesh.estimators.inputs import InputReader
from elmesh.estimators.learning_curve import LearningCurve, measure_curve
from elmesh.estimators.model import MultiTaskModel
from elmesh.math.blas import limit_blas_threads
from elmesh.solvers import Solver
from elmesh.typing import FloatArray, Label

__all__ = ["CLASS_NOISE", "SiteMethods"]

#: Least noise of 0/1 targets, as a share of their variance: features that are smooth cannot follow a step any closer.
CLASS_NOISE = 0.1


class SiteMethods(InputReader):
    """The sites, or tasks, of a fitted estimator."""

    unknown_site: str
    tasks_: NDArray[Any]

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

    def add_site(self, name: Label, X: ArrayLike, y: ArrayLike) -> Self:
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
            Its targets.

        Returns
        -------
        self
        """
        check_is_fitted(self, "model_")
        model, plain = self.model_, plain_type(type(name))
        if model.common is None or not isinstance(model.layer, FeatureMap):
            raise ElmeshError("A site can be added to a model with a common part; fit with mesh-elm's defaults.")
        if plain is None or not isinstance(plain(name), type(next(iter(model.heads)))):
            raise ElmeshError(f"The site {name!r} is of another type than the labels of the model's tasks.")
        if plain(name) in model.heads:
            raise ElmeshError(f"The model has a site {name!r} already; choose another name.")
        rows, _ = self._encode(X, tasks=[])
        T, finish = self._new_targets(np.asarray(y), len(rows))
        head = finish(model.common.head(model.layer(rows), T, model.layer.groups))
        self.model_ = replace(model, heads={**model.heads, plain(name): head})
        self.tasks_ = np.array(list(self.model_.heads))
        return self

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
        T, _ = self._new_targets(np.asarray(y), len(rows))
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

    def site_gains(self, X: ArrayLike, y: ArrayLike, tasks: object = None, *, pooled: bool = True) -> SiteGains:
        """Return what each task gains by learning together, from the rows that the estimator was fitted on.

        Each row is predicted by weights without it, in closed form: of the fit of all tasks, of a fit of its task
        alone, and of one model of all rows. Variances are those of all rows, and any shared part stays as it is.

        Parameters
        ----------
        X : array or frame of shape (n_samples, n_features)
            The inputs of the fit.
        y : array-like of shape (n_samples,) or (n_samples, n_outputs)
            Its targets.
        tasks : array-like of shape (n_samples,), optional
            The task of each row.
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
        >>> model = MultiTaskELMRegressor(random_state=0).fit(X, y, tasks=site)
        >>> gains = model.site_gains(X, y, tasks=site)
        >>> bool(gains.overall.together < gains.overall.alone)
        True
        """
        checked, groups = self.read_training_rows(X, tasks)
        targets, learned = self.training_targets(np.asarray(y), groups)
        floor = CLASS_NOISE if self._kind == "classification" else 0.0
        longest, width = max(len(rows) for rows in groups.values()), self.model_.layer.width
        with limit_blas_threads(longest, width, min(longest, width)):
            return measure_gains(self.model_, checked, groups, targets, learned, floor, pooled=pooled)

    def read_training_rows(self, X: ArrayLike, tasks: object = None) -> tuple[FloatArray, Groups]:
        """Return the inputs of the fit as numbers, and the rows of each task."""
        check_is_fitted(self, "model_")
        checked, labels = self._encode(X, tasks)
        return checked, match_tasks(labels, len(checked), list(self.model_.heads))

    @abstractmethod
    def training_targets(
        self, y: NDArray[Any], groups: Groups
    ) -> tuple[Mapping[Label, FloatArray], Mapping[Label, FloatArray]]:
        """Return the targets of each task, as they are and as they were learned from."""

    @abstractmethod
    def _new_targets(self, y: NDArray[Any], n_rows: int) -> tuple[FloatArray, Callable[[Head], Head]]:
        """Return the targets of a new site, and what completes its head."""
