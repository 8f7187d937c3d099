"""Classification: each task with its own classes, scores turned into probabilities."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import ClassifierMixin
from sklearn.metrics import accuracy_score
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import column_or_1d

from elmesh.comm.communicator import raise_on_all
from elmesh.data.tasks import check_task_sizes, group_rows, one_hot
from elmesh.errors import ElmeshError
from elmesh.estimators.base import MultiTaskELM
from elmesh.estimators.head import Head
from elmesh.estimators.model import MultiTaskModel
from elmesh.math.blas import limit_blas_threads
from elmesh.math.calibration import fit_temperature, leave_one_out, probabilities
from elmesh.run.config import RunConfig
from elmesh.text import row
from elmesh.typing import FloatArray

__all__ = ["MultiTaskELMClassifier"]


class MultiTaskELMClassifier(ClassifierMixin, MultiTaskELM):
    r"""Classify rows of many related tasks, each with its own classes, learned together.

    Parameters
    ----------
    n_hidden : int or None, default=300
        Random hidden units, the same for every task. None: the inputs themselves.
    activation : {"sigmoid", "tanh", "relu", "sine", "none"}, default="sigmoid"
        Activation of the hidden units.
    weight_scale : float, default=1.0
        Hidden weights and biases are uniform in [-weight_scale, weight_scale). Inputs should be of order one.
    solver : str or Solver, default="mesh-elm"
        A short name of :func:`elmesh.solvers.solver_classes`, or an object such as ``MeshELM(rank=6, graph="star")``.
    fit_intercept : bool, default=True
        Each task subtracts its own means from its hidden features and targets; they are never sent. False is the
        paper's.
    random_state : int, RandomState or None, default=None
        Seed of the hidden layer, of the start and of the "random" graph. Machines with the same integer have the same.

    Attributes
    ----------
    classes_ : ndarray
        All classes of all tasks.
    task_classes_ : dict
        Each task's classes.
    tasks_ : ndarray
        The tasks, sorted.
    U_ : ndarray of shape (L, r) or (m, L, r)
        The basis: one shared by all tasks, or one per agent. None for Local ELM.
    A_ : dict
        Each task's private coefficients.
    history_ : DataFrame
        A row per round: ``round``, ``objective``, ``consensus_gap``, ``dual_residual``, and so far ``exchanges``
        (rounds of messages) and ``bytes`` (of all agents).
    n_iter_, n_exchanges_ : int
        Rounds of the method; rounds of messages, those of the start included.
    stop_ : StopReason
        Why the fit ended; ``stop_.value`` is advice on it.
    graph_ : networkx.Graph or None
        The graph of agents.
    certificate_ : Certificate or None
        How far the objective is from the best of any rank: ``gap``, ``rank_sufficient``, ``suggested_rank``. For
        solvers with a parameter ``certify``, unless it is False or the fit was interrupted.
    penalties_ : tuple of float or None
        mu1 and mu2 in use.
    traffic_ : DataFrame or None
        ``messages`` and ``bytes`` from each ``sender`` to each ``receiver``.
    conditions_ : Margins or None
        By how much each agent of an ADMM run meets the condition of its convergence theorem (sufficient, not
        necessary).

    Examples
    --------
    >>> import numpy as np
    >>> from elmesh import MeshELM, MultiTaskELMClassifier
    >>> rng = np.random.default_rng(0)
    >>> X, X_new = rng.normal(size=(2, 120, 4))
    >>> y, y_new = (np.where(x[:, 0] + x[:, 1] > 0, "high", "low") for x in (X, X_new))
    >>> site = np.repeat(["north", "south", "west"], 40)
    >>> model = MultiTaskELMClassifier(n_hidden=50, solver=MeshELM(graph="star"), random_state=0)
    >>> model.fit(X, y, tasks=site).score(X_new, y_new, tasks=site) > 0.9
    True
    >>> model.for_task("south").predict(X[40:42]).tolist() == y[40:42].tolist()
    True
    """

    _kind = "classification"
    __metadata_request__predict_proba: ClassVar = {"tasks": True}
    __metadata_request__decision_function: ClassVar = {"tasks": True}

    def fit(self, X: ArrayLike, y: ArrayLike, tasks: object = None, *, run: RunConfig | None = None) -> Self:
        """Learn all tasks together.

        Parameters
        ----------
        X : array or frame of shape (n_samples, n_features)
            Inputs.
        y : array-like of shape (n_samples,)
            Class of each row.
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
            labels = column_or_1d(y_checked, warn=True)
            groups = group_rows(tasks, len(X_checked))
            check_task_sizes(groups)
            infinite = np.isinf(labels) if labels.dtype.kind == "f" else np.zeros(1, dtype=bool)
            if infinite.any():
                raise ElmeshError(f"y is infinite {row(int(np.argmax(infinite)))}; give a class or leave the row out.")
            targets, classes = one_hot(labels, groups)
            check_classification_targets(labels)
        context = self._agree(config, backend, groups)
        fitted = self._fit(X_checked, groups, targets, context, backend)
        self.task_classes_ = {t: classes[t] for t in context.assignment.own}
        self.classes_ = np.unique(np.concatenate(list(self.task_classes_.values())))
        heads = {}
        with limit_blas_threads(always=True) if backend.one_thread else nullcontext():
            for t, head in fitted.heads.items():
                features = head.features(fitted.layer(X_checked[groups[t]]))
                scores = leave_one_out(
                    features, head.A, features @ head.A + head.t_mean, targets[t], fitted.penalty, self.fit_intercept
                )
                heads[t] = replace(head, classes=classes[t], temperature=fit_temperature(scores, targets[t]))
        self._set_model(fitted.layer, heads, 1)
        return self

    def _per_class(
        self, X: ArrayLike, tasks: object, fill: float, transform: Callable[[FloatArray, Head], FloatArray]
    ) -> FloatArray:
        groups, scores = self._scores(X, tasks)
        table = np.full((sum(map(len, groups.values())), len(self.classes_)), fill)
        for t, rows in groups.items():
            head = self.model_.heads[t]
            columns = np.searchsorted(self.classes_, self.task_classes_[t])
            table[rows[:, None], columns] = transform(scores[t], head)
        return table

    def decision_function(self, X: ArrayLike, tasks: object = None) -> FloatArray:
        """Return the score of each class, minus infinity for classes the row's task does not have.

        With two classes in all, one column: the score of the second less that of the first.
        """
        table = self._per_class(X, tasks, -np.inf, lambda scores, _: scores)
        return table[:, 1] - table[:, 0] if len(self.classes_) == 2 else table

    def predict(self, X: ArrayLike, tasks: object = None) -> NDArray[Any]:
        """Return the class with the highest score among the classes of the row's task."""
        table = self._per_class(X, tasks, -np.inf, lambda scores, _: scores)
        winners: NDArray[Any] = self.classes_[np.argmax(table, axis=1)]
        return winners

    def predict_proba(self, X: ArrayLike, tasks: object = None) -> FloatArray:
        """Return class probabilities; zero for classes the row's task does not have.

        They are a softmax of the scores with one temperature per task. The temperature minimises the log loss of the
        training rows, each scored by coefficients that were fitted without it (the exact leave-one-out of a ridge
        regression on the shared features; for GO-MTL that of a Lasso, exact if it uses the same features without the
        row). So small tasks are not overconfident.
        """
        return self._per_class(X, tasks, 0.0, lambda scores, head: probabilities(scores, head.temperature))

    def score(self, X: ArrayLike, y: ArrayLike, tasks: object = None, sample_weight: ArrayLike | None = None) -> float:
        """Return the share of rows classified correctly."""
        return float(accuracy_score(y, self.predict(X, tasks), sample_weight=sample_weight))

    def summary(self) -> dict[str, Any]:
        """Return the facts about a fit in plain JSON, with the classes."""
        return {**super().summary(), "classes": self.classes_.tolist()}

    def _adopt(self, model: MultiTaskModel, n_features: int, extra: dict[str, Any]) -> None:
        super()._adopt(model, n_features, extra)
        self.task_classes_ = {t: head.classes for t, head in model.heads.items() if head.classes is not None}
        self.classes_ = np.unique(np.concatenate(list(self.task_classes_.values())))
