"""The two estimators: scikit-learn on the outside, a solver and a runtime on the inside.

A fit is: rows to tasks, the shared hidden layer, each task reduced by itself, the solver run over all of them, and a
head a task put together from what came out.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, MultiOutputMixin, RegressorMixin, clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import accuracy_score, r2_score
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d, validate_data

from elmesh.calibration import fit_temperature, probabilities
from elmesh.errors import ElmeshError
from elmesh.features import HiddenLayer
from elmesh.graph import make_topology
from elmesh.head import Head
from elmesh.labels import row
from elmesh.model import MultiTaskModel
from elmesh.parameters import describe, restore
from elmesh.runtime import Result, Stop, run_stacked
from elmesh.solvers import Solver, make_solver
from elmesh.solvers.admm import ProximalADMM
from elmesh.statistics import Reduced, Task
from elmesh.tasks import Groups, check_task_sizes, group_rows, match_tasks, one_hot, regression_targets
from elmesh.threads import calm_blas

__all__ = ["MultiTaskELMClassifier", "MultiTaskELMRegressor", "load"]

FloatArray = NDArray[np.float64]
Label = str | int

# Above this, squares and the products of squares are no longer finite.
_LARGEST = 1e75


class _MultiTaskELM(BaseEstimator):  # type: ignore[misc]  # scikit-learn is untyped
    """What the classifier and the regressor share."""

    # With metadata routing switched on, `tasks` goes wherever it is needed without further requests.
    __metadata_request__fit: ClassVar = {"tasks": True}
    __metadata_request__predict: ClassVar = {"tasks": True}
    __metadata_request__score: ClassVar = {"tasks": True}

    _kind: Literal["classification", "regression"]

    def __init__(
        self,
        n_hidden: int | None = 300,
        *,
        activation: str = "sigmoid",
        weight_scale: float = 1.0,
        solver: str | Solver = "dmtl-elm",
        fit_intercept: bool = True,
        random_state: Any = None,
    ) -> None:
        self.n_hidden = n_hidden
        self.activation = activation
        self.weight_scale = weight_scale
        self.solver = solver
        self.fit_intercept = fit_intercept
        self.random_state = random_state

    def _fit(self, X: FloatArray, groups: Groups, targets: Mapping[Label, FloatArray]) -> dict[Label, Head]:
        """Learn from checked rows, set what every fit leaves behind, and return a head a task without classes."""
        solver = make_solver(self.solver)
        if not isinstance(self.fit_intercept, (bool, np.bool_)):
            raise ElmeshError(f"fit_intercept must be True or False; got {self.fit_intercept!r}.")
        self.seed_ = self._seed()
        layer = HiddenLayer(X.shape[1], self.n_hidden, self.activation, self.weight_scale, self.seed_)
        labels = list(groups)
        largest = max(float(np.abs(X).max()), *(float(np.abs(T).max()) for T in targets.values()))
        if largest > _LARGEST:
            raise ElmeshError(
                f"The data hold numbers as large as {largest:.3g}, whose squares overflow; bring inputs and targets to "
                "a scale of one or so."
            )
        longest = max(map(len, groups.values()))
        with calm_blas(longest, layer.width, min(longest, layer.width)):
            reduced = [Reduced.from_rows(layer(X[groups[t]]), targets[t], centre=self.fit_intercept) for t in labels]
            stacked = Task.stack([Task.from_reduced(task) for task in reduced])

        topology = make_topology(solver.graph, labels, self.seed_) if isinstance(solver, ProximalADMM) else None
        result = run_stacked(solver, stacked, topology, self.seed_)
        if result.stop in (Stop.MAX_ITER, Stop.DIVERGED):
            warnings.warn(f"After {result.n_iter} rounds: {result.stop.value}", ConvergenceWarning, stacklevel=3)

        self._layer = layer
        self.tasks_ = np.array(labels)
        self.history_ = result.history
        self.n_iter_ = result.n_iter
        self.n_exchanges_ = result.n_exchanges
        self.stop_ = result.stop
        self.graph_ = topology.to_networkx(labels) if topology is not None else None
        self.conditions_ = None
        if topology is not None and isinstance(solver, ProximalADMM):
            self.conditions_ = solver.margins(stacked, result.state, topology.degree.astype(np.float64))
        U = result.state.U
        self.U_ = U[0] if U is not None and U.ndim == 3 and len(U) == 1 else U
        self.A_ = {t: result.state.A[k, :, : targets[t].shape[1]].copy() for k, t in enumerate(labels)}
        return {
            t: Head(self._basis(k, result), self.A_[t], r.mean[: r.width], r.mean[r.width :])
            for k, (t, r) in enumerate(zip(labels, reduced, strict=True))
        }

    @staticmethod
    def _basis(k: int, result: Result) -> FloatArray | None:
        U = result.state.U
        return U if U is None or U.ndim == 2 else U[k]

    def set_params(self, **params: Any) -> Self:
        """Set parameters; ``solver__rank`` and the like also when the solver was given by its short name."""
        if (
            isinstance(self.solver, str)
            and "solver" not in params
            and any(key.startswith("solver__") for key in params)
        ):
            self.solver = make_solver(self.solver)
        super().set_params(**params)
        return self

    def _seed(self) -> int:
        """Return an integer ``random_state`` as it is: sites that agree on it share the hidden layer."""
        if isinstance(self.random_state, (int, np.integer)) and not isinstance(self.random_state, bool):
            seed = int(self.random_state)
            if not 0 <= seed < 2**64:
                raise ElmeshError(f"random_state is {seed}; it must be a whole number from 0 to 2**64 - 1, or None.")
            return seed
        return int(check_random_state(self.random_state).randint(2**31 - 1))

    def _read(self, X: ArrayLike, y: ArrayLike) -> tuple[FloatArray, NDArray[Any]]:
        """Check inputs, and of targets what :mod:`elmesh.tasks` leaves open: it can say in which row they are wrong."""
        inputs = {"dtype": np.float64, "ensure_all_finite": False, "ensure_min_samples": 2}
        targets = {"dtype": None, "ensure_all_finite": False, "ensure_2d": False}
        X_checked, y_checked = validate_data(self, X, y, validate_separately=(inputs, targets))
        return self._finite(X_checked), y_checked

    def _finite(self, X: FloatArray) -> FloatArray:
        bad = ~np.isfinite(X)
        if bad.any():
            i, j = np.argwhere(bad)[0].tolist()
            column = repr(self.feature_names_in_[j]) if hasattr(self, "feature_names_in_") else j
            raise ElmeshError(
                f"X is NaN or infinite {row(i)}, column {column}; fill it in, for instance with an imputer in a "
                "pipeline, or leave the row out."
            )
        return X

    def _scores(self, X: ArrayLike, tasks: object) -> tuple[Groups, dict[Label, FloatArray]]:
        check_is_fitted(self, "model_")
        checked = self._finite(validate_data(self, X, reset=False, dtype=np.float64, ensure_all_finite=False))
        groups = match_tasks(tasks, len(checked), list(self.model_.heads))
        return groups, self.model_.scores(checked, groups)

    def for_task(self, task: Label) -> Self:
        """Return an estimator that holds one task's own model and nothing of the others.

        Parameters
        ----------
        task : str or int
            A task the estimator was fitted on.

        Returns
        -------
        estimator
            Fitted; its ``predict`` needs no ``tasks``.
        """
        check_is_fitted(self, "model_")
        alone: Self = clone(self)
        if isinstance(alone.solver, ProximalADMM):
            # A graph or weights given agent by agent speak of the other sites.
            alone.solver = type(alone.solver)(rank=alone.solver.rank, mu1=alone.solver.mu1, mu2=alone.solver.mu2)
        alone._adopt(self.model_.for_task(task), self.n_features_in_, {})
        return alone

    def save(
        self, path: str | os.PathLike[str], *, overwrite: bool = False, extra: Mapping[str, Any] | None = None
    ) -> None:
        """Write the fitted model to a folder: ``model.json`` and ``weights.safetensors``.

        Parameters
        ----------
        path : path-like
            A folder that does not exist yet.
        overwrite : bool, default=False
            Replace a model that is already there.
        extra : mapping, optional
            Anything JSON can hold, kept with the model and given back as ``extra_`` by :func:`elmesh.load`.
        """
        check_is_fitted(self, "model_")
        kept = self.extra_ if extra is None else dict(extra)
        self.model_.save(Path(path), overwrite=overwrite, estimator=describe(self), extra=kept)

    def _adopt(self, model: MultiTaskModel, n_features: int, extra: dict[str, Any]) -> None:
        """Become fitted from a model alone."""
        self.model_ = model
        self.extra_ = extra
        self.tasks_ = np.array(list(model.heads))
        self.n_features_in_ = n_features
        if model.feature_names is not None:
            self.feature_names_in_ = np.array(model.feature_names, dtype=object)
        heads = list(model.heads.values())
        self.A_ = {t: head.A for t, head in model.heads.items()}
        shared = all(head.U is heads[0].U for head in heads)
        self.U_ = heads[0].U if shared else np.stack([head.U for head in heads if head.U is not None])
        self.seed_ = model.layer.seed

    def _remember(self, heads: dict[Label, Head], y_ndim: int) -> None:
        names = tuple(self.feature_names_in_) if hasattr(self, "feature_names_in_") else None
        self.model_ = MultiTaskModel(self._kind, self._layer, heads, names, y_ndim)
        self.extra_ = {}
        del self._layer


class MultiTaskELMClassifier(ClassifierMixin, _MultiTaskELM):  # type: ignore[misc]
    r"""Classify rows of many related tasks, each with its own classes, learned together.

    Parameters
    ----------
    n_hidden : int or None, default=300
        Random hidden units, the same for every task. None: the inputs themselves.
    activation : {"sigmoid", "tanh", "relu", "sine", "none"}, default="sigmoid"
        Activation of the hidden units.
    weight_scale : float, default=1.0
        Hidden weights and biases are uniform in [-weight_scale, weight_scale). Inputs should be of size one or so.
    solver : str or solver, default="dmtl-elm"
        "local-elm", "mtl-elm", "dmtl-elm", "fo-dmtl-elm", or an object such as ``DMTLELM(rank=6, graph="star")``.
    fit_intercept : bool, default=True
        Each task takes its own means off its hidden features and targets and keeps them to itself. False is the
        paper's.
    random_state : int, RandomState or None, default=None
        Seed of the hidden layer, of the start and of the "random" graph. An integer is the seed that other machines
        need.

    Attributes
    ----------
    classes_ : ndarray
        All classes of all tasks.
    task_classes_ : dict
        Each task's classes.
    tasks_ : ndarray
        The tasks, sorted.
    U_ : ndarray of shape (L, r) or (m, L, r)
        The basis: one shared by all, or each agent's. None for Local ELM.
    A_ : dict
        Each task's private coefficients.
    history_ : DataFrame
        A row a round: ``round``, ``objective``, ``consensus_gap``, ``dual_residual``, ``bytes`` (cumulative, all
        agents).
    n_iter_, n_exchanges_ : int
        Rounds of the method; rounds of messages, those of the start included.
    stop_ : Stop
        Why the fit ended; ``stop_.value`` says what to do about it.
    graph_ : networkx.Graph or None
        Who talked to whom.
    conditions_ : Margins or None
        By how much each agent meets the condition of its convergence theorem (sufficient, not necessary).

    Examples
    --------
    >>> import numpy as np
    >>> from elmesh import DMTLELM, MultiTaskELMClassifier
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(120, 4))
    >>> y = np.where(X[:, 0] + X[:, 1] > 0, "high", "low")
    >>> site = np.repeat(["north", "south", "west"], 40)
    >>> model = MultiTaskELMClassifier(n_hidden=50, solver=DMTLELM(graph="star"), random_state=0)
    >>> model.fit(X, y, tasks=site).score(X, y, tasks=site) > 0.95
    True
    >>> model.for_task("south").predict(X[40:42]).tolist() == y[40:42].tolist()
    True
    """

    _kind = "classification"
    __metadata_request__predict_proba: ClassVar = {"tasks": True}
    __metadata_request__decision_function: ClassVar = {"tasks": True}

    def fit(self, X: ArrayLike, y: ArrayLike, tasks: object = None) -> Self:
        """Learn all tasks together.

        Parameters
        ----------
        X : array or frame of shape (n_samples, n_features)
            Inputs.
        y : array-like of shape (n_samples,)
            Class of each row.
        tasks : array-like of shape (n_samples,), optional
            Task of each row, as text or whole numbers. Without it all rows are one task.

        Returns
        -------
        self
        """
        X_checked, y_checked = self._read(X, y)
        labels = column_or_1d(y_checked, warn=True)
        groups = group_rows(tasks, len(X_checked))
        check_task_sizes(groups)
        infinite = np.isinf(labels) if labels.dtype.kind == "f" else np.zeros(1, dtype=bool)
        if infinite.any():
            raise ElmeshError(f"y is infinite {row(int(np.argmax(infinite)))}; give a class or leave the row out.")
        targets, classes = one_hot(labels, groups)
        check_classification_targets(labels)
        heads = self._fit(X_checked, groups, targets)
        self.task_classes_ = classes
        self.classes_ = np.unique(np.concatenate(list(classes.values())))
        for t, head in heads.items():
            H = self._layer(X_checked[groups[t]])
            temperature = fit_temperature(H, head, targets[t], self._private_penalty(), self.fit_intercept)
            heads[t] = replace(head, classes=classes[t], temperature=temperature)
        self._remember(heads, 1)
        return self

    def _private_penalty(self) -> float:
        """Return the ridge penalty that a task's own coefficients were fitted with."""
        solver = make_solver(self.solver)
        return float(getattr(solver, "mu2", getattr(solver, "mu", 0.0)))

    def _per_class(
        self, X: ArrayLike, tasks: object, fill: float, turn: Callable[[FloatArray, Head], FloatArray]
    ) -> FloatArray:
        groups, scores = self._scores(X, tasks)
        table = np.full((sum(map(len, groups.values())), len(self.classes_)), fill)
        for t, rows in groups.items():
            head = self.model_.heads[t]
            columns = np.searchsorted(self.classes_, self.task_classes_[t])
            table[rows[:, None], columns] = turn(scores[t], head)
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

        They are a softmax of the scores over one temperature a task, so they rise and fall with the scores. The
        temperature minimises the log loss of the training rows, each scored by coefficients that were fitted without it
        (the exact leave-one-out of a ridge regression on the shared features), which keeps small tasks from being sure.
        """
        return self._per_class(X, tasks, 0.0, lambda scores, head: probabilities(scores, head.temperature))

    def score(self, X: ArrayLike, y: ArrayLike, tasks: object = None, sample_weight: ArrayLike | None = None) -> float:
        """Return the share of rows classified correctly."""
        return float(accuracy_score(y, self.predict(X, tasks), sample_weight=sample_weight))

    def _adopt(self, model: MultiTaskModel, n_features: int, extra: dict[str, Any]) -> None:
        super()._adopt(model, n_features, extra)
        self.task_classes_ = {t: head.classes for t, head in model.heads.items() if head.classes is not None}
        self.classes_ = np.unique(np.concatenate(list(self.task_classes_.values())))


class MultiTaskELMRegressor(MultiOutputMixin, RegressorMixin, _MultiTaskELM):  # type: ignore[misc]
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

    def fit(self, X: ArrayLike, y: ArrayLike, tasks: object = None) -> Self:
        """Learn all tasks together.

        Parameters
        ----------
        X : array or frame of shape (n_samples, n_features)
            Inputs.
        y : array-like of shape (n_samples,) or (n_samples, n_outputs)
            Numbers to predict.
        tasks : array-like of shape (n_samples,), optional
            Task of each row, as text or whole numbers. Without it all rows are one task.

        Returns
        -------
        self
        """
        X_checked, y_checked = self._read(X, y)
        groups = group_rows(tasks, len(X_checked))
        check_task_sizes(groups)
        targets = regression_targets(y_checked, groups)
        scale = _common_scale(targets) if self.fit_intercept else np.ones(next(iter(targets.values())).shape[1])
        self.target_scale_ = scale
        heads = self._fit(X_checked, groups, {t: T / scale for t, T in targets.items()})
        self.A_ = {t: A * scale for t, A in self.A_.items()}
        heads = {t: replace(head, A=self.A_[t], t_mean=head.t_mean * scale) for t, head in heads.items()}
        self._remember(heads, y_checked.ndim)
        return self

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


def _common_scale(targets: Mapping[Label, FloatArray]) -> FloatArray:
    """Return the root mean square of each output about its tasks' means, one for outputs that never vary."""
    n = sum(map(len, targets.values()))
    with np.errstate(over="ignore"):
        total = sum(np.sum((T - T.mean(axis=0)) ** 2, axis=0) for T in targets.values())
    scale = np.sqrt(np.asarray(total) / n)
    return np.where((scale > 0) & np.isfinite(scale), scale, 1.0)


def load(path: str | os.PathLike[str]) -> MultiTaskELMClassifier | MultiTaskELMRegressor:
    """Read a model that :meth:`MultiTaskELMClassifier.save` wrote.

    Parameters
    ----------
    path : path-like
        The folder.

    Returns
    -------
    estimator
        Fitted; its predictions are identical to the bit to those of the estimator that was saved.

    Raises
    ------
    ElmeshError
        If the folder is missing, cut short, altered, or of a newer version.
    """
    model, description, extra = MultiTaskModel.load(Path(path))
    kind = MultiTaskELMClassifier if model.kind == "classification" else MultiTaskELMRegressor
    try:
        estimator = kind(**restore(description))
    except (TypeError, LookupError, AttributeError) as error:
        raise ElmeshError(f"The model in {path} describes an estimator that this version does not know.") from error
    estimator._adopt(model, model.layer.n_inputs, extra)
    return estimator
