"""Estimators that choose their settings by rows left out, and then are the best of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, MultiOutputMixin, RegressorMixin
from sklearn.utils.validation import check_is_fitted

from elmesh.estimators.base import MultiTaskELM
from elmesh.estimators.classifier import MultiTaskELMClassifier
from elmesh.estimators.regressor import MultiTaskELMRegressor
from elmesh.estimators.search import Search, search_settings
from elmesh.estimators.search_rows import SOLVER_SETTINGS, with_setting
from elmesh.solvers import Solver
from elmesh.typing import FloatArray

__all__ = ["MultiTaskELMClassifierCV", "MultiTaskELMRegressorCV"]

# Settings of which lists of candidates may be given.
_SETTINGS = ("n_hidden", "weight_scale", "activation", "direct_links", "clip", *SOLVER_SETTINGS)


@dataclass(repr=False, eq=False)
class TunedELM(BaseEstimator):
    """What both estimators share: the search, and the best estimator behind their methods."""

    __metadata_request__fit: ClassVar = {"tasks": True}
    __metadata_request__predict: ClassVar = {"tasks": True}
    __metadata_request__score: ClassVar = {"tasks": True}

    _kind: ClassVar[Literal["classification", "regression"]]
    _estimator: ClassVar[type[MultiTaskELM]]

    n_hidden: Any = "auto"
    _: KW_ONLY
    weight_scale: Any = "auto"
    activation: Any = "sigmoid"
    direct_links: Any = "auto"
    clip: Any = "auto"
    parts: str | list[str] | None = None
    rank: int | str | list[int] | None = None
    mu: float | str | list[float] | None = None
    cv: int = 5
    task: str | None = None
    column_types: Mapping[str, str] | None = None
    scale: str | None = "auto"
    solver: str | Solver = "mesh-elm"
    fit_intercept: bool = True
    unknown_site: str = "common"
    random_state: Any = None

    def fit(self, X: ArrayLike, y: ArrayLike, tasks: object = None, *, sample_weight: ArrayLike | None = None) -> Self:
        """Choose settings on rows left out, and fit all rows with them.

        Parameters
        ----------
        X : array or frame of shape (n_samples, n_features)
            Inputs.
        y : array-like of shape (n_samples,) or (n_samples, n_outputs)
            Targets.
        tasks : array-like of shape (n_samples,), optional
            Task of each row, as text or whole numbers. Without it all rows are one task.
        sample_weight : array-like of shape (n_samples,), optional
            How often each row counts, in fits and in scores.

        Returns
        -------
        self
        """
        own = self.get_params(deep=False)
        lists = {name: own[name] for name in _SETTINGS if isinstance(own[name], (list, np.ndarray))}
        single = {name: own[name] for name in SOLVER_SETTINGS if name not in lists and own[name] is not None}
        names = self._estimator().get_params(deep=False)
        base = self._estimator(**{name: own[name] for name in names if name not in lists})
        options: dict[str, Any] = {"sample_weight": sample_weight, "n_folds": self.cv}
        search = search_settings(with_setting(base, single), lists, X, y, tasks, **options)
        self._set_search(search)
        chosen = {**self.best_params_, "random_state": search.seed}
        self.best_estimator_ = with_setting(base, chosen).fit(X, y, tasks, sample_weight=sample_weight)
        for name in ("n_features_in_", "feature_names_in_", "classes_"):
            if hasattr(self.best_estimator_, name):
                setattr(self, name, getattr(self.best_estimator_, name))
        return self

    def _set_search(self, search: Search) -> None:
        """Set what was tried, as scikit-learn's searches do."""
        places = range(len(search.candidates))
        losses = np.array([search.loss(place) for place in places])
        settings = [candidate.setting for candidate in search.candidates]
        self.cv_results_: dict[str, Any] = {
            "params": settings,
            **{f"param_{name}": _objects([setting[name] for setting in settings]) for name in settings[0]},
            "mean_test_score": -losses[:, 0],
            "standard_error": losses[:, 1],
            "rank_test_score": 1 + np.argsort(np.argsort(losses[:, 0], kind="stable"), kind="stable"),
            "seconds": np.array([candidate.seconds for candidate in search.candidates]),
        }
        if search.default is not None:
            changes = np.array([search.difference(place, search.default) for place in places])
            self.cv_results_ |= {"gain": 0.0 - changes[:, 0], "gain_standard_error": changes[:, 1]}
        self.best_index_ = search.best
        self.default_index_ = search.default
        self.best_params_ = dict(settings[search.best])
        self.best_score_ = float(self.cv_results_["mean_test_score"][search.best])

    @property
    def _best(self) -> Any:
        check_is_fitted(self, "best_estimator_")
        return self.best_estimator_

    def predict(self, X: ArrayLike, tasks: object = None) -> NDArray[Any]:
        """Return the predictions of the best estimator."""
        found: NDArray[Any] = self._best.predict(X, tasks)
        return found


def _objects(values: Sequence[Any]) -> NDArray[Any]:
    """Return values, of which some may be tuples, as an array of objects."""
    found = np.empty(len(values), dtype=object)
    found[:] = list(values)
    return found


@dataclass(repr=False, eq=False)
class MultiTaskELMRegressorCV(MultiOutputMixin, RegressorMixin, TunedELM):
    """:class:`MultiTaskELMRegressor` with settings that are chosen on rows left out.

    Each of the settings is one value or a list of candidates, of which all combinations are tried. With the default
    solver each row is predicted by all others in closed form, at variances that are taken over from the default
    setting; no fit is repeated. For the paper's problem (``MeshELM(common=False, private=False)``, ``MTLELM``,
    ``DMTLELM``, ``FODMTLELM``) rows are left out in folds within tasks, along a path of penalties; with
    ``LocalELM(mu=...)`` one at a time. The default setting, if it is among the candidates, stays unless another one is
    better by more than a standard error and by one percent of the loss.

    Parameters
    ----------
    n_hidden, weight_scale : value or list, default="auto"
        As for the estimator. "auto": 200 and 400 hidden units, each with weight scales (1, 4), 0.3 and (0.3, 1, 3);
        with solvers that do not weigh groups of features, the estimator's own. A tuple of scales is one candidate.
    activation, direct_links, clip : value or list
        As for the estimator, whose default is the default.
    parts : str, list or None, default=None
        Parts of the weights of mesh-elm: "common", "private" or "common,private,shared" (what ``None`` has), and so on.
    rank, mu : number, list or None, default=None
        Rank and penalty of the paper's problem; ``mu`` also of ``LocalELM``. None: the solver's own and, where its
        penalties are automatic, others from a tenth to ten times as large.
    cv : int, default=5
        Folds of each task's rows, for the paper's problem. Elsewhere rows are left out one at a time.
    task, column_types, scale, solver, fit_intercept, unknown_site, random_state
        As for the estimator.

    Attributes
    ----------
    best_estimator_ : MultiTaskELMRegressor
        Fitted on all rows with the best setting; further methods are its own: ``for_task``, ``save``...
    best_params_ : dict
        The setting.
    best_score_ : float
        Its score on rows left out: minus the mean square error (several outputs in units of their standard
        deviations), or minus the log loss.
    best_index_, default_index_ : int, int or None
        Its place among the candidates, and that of the default setting.
    cv_results_ : dict of arrays
        One entry per candidate: ``params``, ``param_<name>``, ``mean_test_score``, ``standard_error``,
        ``rank_test_score``, ``seconds``; if the default is among them, the paired ``gain`` over it and
        ``gain_standard_error``. NaN for penalties that were not tried, because a larger one was worse than the best by
        a percent.

    Examples
    --------
    >>> import numpy as np
    >>> from elmesh import MultiTaskELMRegressorCV
    >>> rng = np.random.default_rng(0)
    >>> X, site = rng.normal(size=(120, 3)), np.repeat([1, 2, 3], 40)
    >>> y = np.sin(3 * X[:, 0]) + 0.1 * rng.normal(size=120)
    >>> model = MultiTaskELMRegressorCV(n_hidden=[5, 100], weight_scale=2.0, random_state=0)
    >>> model.fit(X, y, tasks=site).best_params_
    {'n_hidden': 100}
    """

    _kind: ClassVar = "regression"
    _estimator: ClassVar = MultiTaskELMRegressor

    def score(self, X: ArrayLike, y: ArrayLike, tasks: object = None, sample_weight: ArrayLike | None = None) -> float:
        """Return the coefficient of determination of the best estimator."""
        return float(self._best.score(X, y, tasks, sample_weight))


@dataclass(repr=False, eq=False, kw_only=True)
class MultiTaskELMClassifierCV(ClassifierMixin, TunedELM):
    """:class:`MultiTaskELMClassifier` with settings that are chosen by log loss on rows left out.

    The parameters and attributes are those of :class:`MultiTaskELMRegressorCV`, with ``shared_classes`` and
    ``class_weight`` of the estimator and with ``classes_``. A row counts in scores as often as its class does.

    Examples
    --------
    >>> import numpy as np
    >>> from elmesh import MultiTaskELMClassifierCV
    >>> rng = np.random.default_rng(0)
    >>> X, site = rng.normal(size=(120, 3)), np.repeat([1, 2, 3], 40)
    >>> y = np.where(X[:, 0] ** 2 > 0.5, "far", "near")
    >>> model = MultiTaskELMClassifierCV(n_hidden=[2, 100], weight_scale=2.0, random_state=0)
    >>> model.fit(X, y, tasks=site).best_params_
    {'n_hidden': 100}
    """

    __metadata_request__predict_proba: ClassVar = {"tasks": True}
    __metadata_request__decision_function: ClassVar = {"tasks": True}

    _kind: ClassVar = "classification"
    _estimator: ClassVar = MultiTaskELMClassifier
    shared_classes: bool | str | Sequence[Any] = "auto"
    class_weight: Mapping[Any, float] | str | None = None

    def predict_proba(self, X: ArrayLike, tasks: object = None) -> FloatArray:
        """Return the class probabilities of the best estimator."""
        found: FloatArray = self._best.predict_proba(X, tasks)
        return found

    def decision_function(self, X: ArrayLike, tasks: object = None) -> FloatArray:
        """Return the scores of the best estimator."""
        found: FloatArray = self._best.decision_function(X, tasks)
        return found

    def score(self, X: ArrayLike, y: ArrayLike, tasks: object = None, sample_weight: ArrayLike | None = None) -> float:
        """Return the share of rows that the best estimator classifies correctly."""
        return float(self._best.score(X, y, tasks, sample_weight))
