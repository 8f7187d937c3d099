"""Rows that come later, rows that must go, and sites that come later: a model changes without its rows at hand."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils.validation import check_is_fitted

from elmesh.data.features import FeatureMap, Features
from elmesh.data.site_statistics import SiteStatistics
from elmesh.data.statistics import SiteRows
from elmesh.errors import ElmeshError
from elmesh.estimators.common import NO_COMMON_PART
from elmesh.estimators.head import Head
from elmesh.estimators.reduction import collect_statistics, keyed_rows
from elmesh.estimators.sites import SiteMethods
from elmesh.estimators.target_encoding import TargetEncoding
from elmesh.estimators.training_statistics import TrainingStatistics
from elmesh.run.config import RunConfig
from elmesh.text import count, listed, row
from elmesh.typing import Label

__all__ = ["UpdateMethods"]


class UpdateMethods(SiteMethods):
    """How a fitted estimator changes with its rows and its sites."""

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
        if self.model_.common is None:
            raise ElmeshError(NO_COMMON_PART)
        label = self._label(name)
        if label in self.model_.heads:
            raise ElmeshError(
                f"The model has a site {name!r} already; choose another name, or add its rows with partial_fit "
                "(elmesh update)."
            )
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
                f"The model has no task {new[0]!r}, and what tasks have in common is not learned again here; add it as "
                "a new site (add_site, elmesh add-site)."
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

    def count_known_rows(
        self, X: ArrayLike, y: ArrayLike, tasks: object = None, *, sample_weight: ArrayLike | None = None
    ) -> int:
        """Return how many rows are equal to rows that the model was learned from.

        Parameters
        ----------
        X, y, tasks, sample_weight
            The rows, as for :meth:`partial_fit`.

        Returns
        -------
        int
        """
        return int(self.known_rows(X, y, tasks, sample_weight=sample_weight).sum())

    def known_rows(
        self, X: ArrayLike, y: ArrayLike, tasks: object = None, *, sample_weight: ArrayLike | None = None
    ) -> NDArray[np.bool_]:
        """Return which rows are equal to rows that the model was learned from; of several copies, as many as it has.

        Parameters
        ----------
        X, y, tasks, sample_weight
            The rows, as for :meth:`partial_fit`.

        Returns
        -------
        array of bool of shape (n_samples,)
        """
        statistics = self._needed_statistics()
        rows = self._new_rows(X, y, tasks, sample_weight)
        known = np.zeros(len(rows.whole.y), dtype=bool)
        for label, site in statistics.sites.items():
            if label in rows.sizes:
                own = keyed_rows(rows.whole, statistics.encoding, label, statistics.seed)
                places = rows.whole.groups[label]
                known[places] = True
                known[places[site.missing(own)]] = False
        return known

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
            raise ElmeshError(NO_COMMON_PART)
        rows = SiteRows.from_reduced(site.reduced(layer, centre=False))
        unit = encoding.unit
        rows = replace(rows, T=rows.T * unit, rest=rows.rest * unit**2)
        return self._finish_head(common.head(rows, layer.groups), site, encoding)

    def _set_heads(self, heads: Mapping[Label, Head]) -> None:
        self.model_ = replace(self.model_, heads=dict(sorted(heads.items())))
        self.tasks_ = np.array(list(self.model_.heads))

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
