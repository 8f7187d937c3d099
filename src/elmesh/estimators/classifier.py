"""Classification: each task with its own classes, scores turned into probabilities."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import column_or_1d

from elmesh.checks import check_choice, check_number
from elmesh.comm.communicator import Communicator, raise_on_all
from elmesh.data.features import FeatureMap, Features, TrainedLayer
from elmesh.data.site_statistics import SiteStatistics
from elmesh.data.tasks import Groups, check_task_sizes, check_two_classes, one_hot
from elmesh.errors import ElmeshError
from elmesh.estimators.base import Fitted, MultiTaskELM, check_size
from elmesh.estimators.class_probabilities import (
    USUAL_TEMPERATURE,
    has_many_rows,
    own_link,
    shares_of_classes,
    usual_link,
)
from elmesh.estimators.dependence import Predictor
from elmesh.estimators.head import Head
from elmesh.estimators.model import MultiTaskModel
from elmesh.estimators.private_fit import PrivateFit
from elmesh.estimators.rows import Chunk, ColumnMoments, TrainingRows, common_moments
from elmesh.estimators.target_encoding import ClassEncoding, TargetEncoding, weighted
from elmesh.estimators.training_statistics import TrainingStatistics
from elmesh.math.blas import limit_blas_threads
from elmesh.math.calibration import fit_temperature, leave_one_out, probabilities
from elmesh.run.backend import Backend, FitContext
from elmesh.run.config import RunConfig
from elmesh.solvers import Solver, make_solver
from elmesh.solvers.base import PrivateTotals
from elmesh.text import listed, row
from elmesh.typing import FloatArray, Label

__all__ = ["MultiTaskELMClassifier"]


@dataclass(frozen=True, eq=False)
class _Classes:
    """The classes of each task here, those of all tasks, and whether tasks share them."""

    by_task: dict[Label, NDArray[Any]]
    every: NDArray[Any] = field(default_factory=lambda: np.zeros(0))
    shared: bool = False


class MultiTaskELMClassifier(ClassifierMixin, MultiTaskELM):
    r"""Classify rows of many related tasks, each with its own classes, learned together.

    Parameters
    ----------
    n_hidden : int, "auto" or None, default="auto"
        Random hidden units, the same for every task, in total over all scales of weights. "auto": 200 for solvers that
        weigh groups of features (mesh-elm and local-elm by default), 300 for the others. None: the inputs themselves.
    task : str or None, default=None
        The column of a table that has the task of each row, and is no input then. None: tasks are given to ``fit`` and
        ``predict``, or all rows are one task.
    column_types : mapping or None, default=None
        Types of columns of a table that are not to be inferred: "number", "category" or "date".
    scale : {"auto", "columns", "common"} or None, default="auto"
        How arrays of numbers are scaled, for solvers that weigh groups of features: each column by its own standard
        deviation, all columns by the same number, or not at all. "auto": by the same number, unless their standard
        deviations differ more than a hundredfold. Columns of a table are standardised in any case.
    activation : {"sigmoid", "tanh", "relu", "sine", "none"}, default="sigmoid"
        Activation of the hidden units.
    weight_scale : float, sequence of float or "auto", default="auto"
        Hidden weights and biases are uniform in [-weight_scale, weight_scale); several values make several groups of
        hidden units. "auto": 1 and 4 for solvers that weigh groups; for the others 1, and less with many columns of a
        table.
    direct_links : bool or "auto", default="auto"
        Whether the inputs are features beside the hidden units; "auto" for solvers that weigh groups of features.
    clip : float, "auto" or None, default="auto"
        Inputs are limited to so many standard deviations from their common mean, so that an outlier cannot run away;
        "auto": 3 for solvers that weigh groups of features. None: no limit.
    solver : str or Solver, default="mesh-elm"
        A short name of :func:`elmesh.solvers.solver_classes`, or an object such as ``MeshELM(rank=6, graph="star")``.
    fit_intercept : bool, default=True
        Whether there is a constant among the features; for solvers that do not weigh groups each task subtracts its own
        means from its hidden features and targets instead. False is the paper's.
    shared_classes : bool, "auto" or sequence, default="auto"
        Whether a class of the same name at two tasks is the same class, so that tasks can have common weights for it.
        "auto": if a class occurs at two tasks. A sequence gives all classes: for a private fit, which must not find
        them from the rows, and where no process knows them all.
    class_weight : dict, "balanced" or None, default=None
        How often a row of each class counts, times its own weight. "balanced": all classes count the same, over the
        rows of all tasks. A class that is not in the dict counts once.
    unknown_site : {"common", "error"}, default="common"
        How rows of a task that was not in the fit are predicted: by the common part, or not at all.
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
    W_, V_ : ndarray of shape (p, d) and dict, or None
        The common weights, and each task's private ones, for a solver with such parts.
    variances_ : DataFrame or None
        Variances of the common and the private weights in units of the noise, a row per group of features.
    noise_ : dict or None
        Each task's standard deviation of noise, a number per output.
    sites_ : DataFrame
        A row per task: ``rows``, and how much of its fitted values is ``common``, ``shared`` and ``private``.
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
        ``messages`` and ``bytes`` from each ``sender`` to each ``receiver``; ``metric_bytes`` are those by which the
        run is followed.
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

    def __init__(
        self,
        n_hidden: int | str | None = "auto",
        *,
        task: str | None = None,
        column_types: Mapping[str, str] | None = None,
        scale: str | None = "auto",
        activation: str = "sigmoid",
        weight_scale: float | Sequence[float] | str = "auto",
        direct_links: bool | str = "auto",
        clip: float | str | None = "auto",
        solver: str | Solver = "mesh-elm",
        fit_intercept: bool = True,
        shared_classes: bool | str | Sequence[Any] = "auto",
        class_weight: Mapping[Any, float] | str | None = None,
        unknown_site: str = "common",
        random_state: Any = None,
    ) -> None:
        super().__init__(
            n_hidden,
            task=task,
            column_types=column_types,
            scale=scale,
            activation=activation,
            weight_scale=weight_scale,
            direct_links=direct_links,
            clip=clip,
            solver=solver,
            fit_intercept=fit_intercept,
            unknown_site=unknown_site,
            random_state=random_state,
        )
        self.shared_classes = shared_classes
        self.class_weight = class_weight

    __metadata_request__predict_proba: ClassVar = {"tasks": True}
    __metadata_request__decision_function: ClassVar = {"tasks": True}

    def _check_targets(self, rows: TrainingRows, backend: Backend) -> tuple[Solver, _Classes]:
        with raise_on_all(backend.communicator):
            by_task: dict[Label, NDArray[Any]] = {}
            for chunk in rows.chunks(inputs=False):
                labels = chunk.y
                infinite = np.isinf(labels) if labels.dtype.kind == "f" else np.zeros(1, dtype=bool)
                if infinite.any():
                    place = row(int(np.argmax(infinite)))
                    raise ElmeshError(f"y is infinite {place}; give a class or leave the row out.")
                for t, own in one_hot(labels, chunk.groups)[1].items():
                    by_task[t] = np.union1d(by_task[t], own) if t in by_task else own
                check_size(chunk.X)
                check_classification_targets(labels)
            self._check_shared_classes(by_task)
            self._check_private_classes()
            return make_solver(self.solver), _Classes(dict(sorted(by_task.items())))

    def _agree_on_classes(
        self, solver: Solver, found: _Classes, rows: TrainingRows, backend: Backend
    ) -> tuple[Solver, _Classes]:
        # Where a fit is private, no process learns which classes another one has.
        every = found.by_task if self._is_private else _classes_of_all(found.by_task, backend.communicator)
        shared = self._shared(every)
        if not shared:
            solver = solver.without_common_targets()
        with raise_on_all(backend.communicator):
            check_task_sizes(rows.sizes, 1 if solver.grouped_features else 2)
            if solver.has_common_part and not shared:
                raise ElmeshError(
                    "A common or a private part is for classes that tasks share, and here no class is at two tasks or "
                    'shared_classes is False; set shared_classes=True, or leave common and private at "auto".'
                )
            if solver.one_model and any(own.tolist() != next(iter(every.values())).tolist() for own in every.values()):
                raise ElmeshError(
                    f"{solver.name} fits one model for all tasks, so that all of them must have the same classes; "
                    "leave out tasks that lack one, or use another solver, such as mesh-elm."
                )
            if self._declared is None or not solver.has_common_part:
                check_two_classes(every, shared and solver.has_common_part)
        names = [name for values in every.values() for name in values.tolist()]
        kind = next(iter(found.by_task.values())).dtype
        # The width of text is that of the classes here, and others may be longer.
        classes = np.unique(np.array(self._declared or names, dtype=np.str_ if kind.kind == "U" else kind))
        return solver, _Classes(found.by_task, classes, shared and solver.has_common_part)

    def _shape_targets(self, y: NDArray[Any]) -> NDArray[Any]:
        return np.asarray(column_or_1d(y, warn=True))

    def _plain_encoding(self, chunk: Chunk, found: _Classes) -> ClassEncoding:
        classes = found.every
        if found.shared:
            return ClassEncoding(classes, np.zeros(len(classes)))
        return ClassEncoding(classes, np.zeros(len(classes)), dict(found.by_task))

    def _find_encoding(
        self, rows: TrainingRows, found: _Classes, context: FitContext, backend: Backend, private: PrivateFit | None
    ) -> ClassEncoding:
        encoding = self._plain_encoding(next(rows.chunks(inputs=False)), found)
        encoding = replace(encoding, class_weights=self._class_weights(rows, found, backend))
        if not found.shared:
            return encoding
        n = len(found.every)
        if backend.scales_targets or private is not None:
            return replace(encoding, mean=np.full(n, 1.0 / n))
        parts = (
            (t, encoding.encode(t, chunk.y[index]), weighted(encoding, chunk.y[index], chunk.weights[index]))
            for chunk in rows.chunks(inputs=False)
            for t, index in chunk.groups.items()
        )
        mean, _ = common_moments(backend, ColumnMoments.by_task(parts))
        return replace(encoding, mean=mean)

    def _class_weights(self, rows: TrainingRows, found: _Classes, backend: Backend) -> FloatArray | None:
        """Return how often a row of each class counts; None if all count once."""
        given, names = self.class_weight, found.every.tolist()
        if given is None:
            return None
        if self._is_private:
            raise ElmeshError("A private fit takes no weights of classes: the budget is for rows that count once.")
        if isinstance(given, Mapping):
            unknown = [name for name in given if name not in set(names)]
            if unknown:
                raise ElmeshError(
                    f"class_weight has {unknown[0]!r}, which is no class; the classes are {listed(names)}."
                )
            for name, weight in given.items():
                check_number(f"class_weight[{name!r}]", weight)
            return np.array([float(given.get(name, 1.0)) for name in names])
        check_choice("class_weight", given, ("balanced",))
        counts: dict[Label, FloatArray] = {t: np.zeros(len(names)) for t in rows.sizes}
        for chunk in rows.chunks(inputs=False):
            for t, index in chunk.groups.items():
                place = np.searchsorted(found.every, chunk.y[index])
                counts[t] += np.bincount(place, chunk.weights[index], minlength=len(names))
        total = backend.sum_over_tasks(counts)
        return np.asarray(total.sum() / (len(names) * np.maximum(total, 1e-300)))

    def _learn(
        self,
        layer: Features,
        statistics: TrainingStatistics,
        context: FitContext,
        backend: Backend,
        totals: PrivateTotals | None = None,
    ) -> None:
        encoding = statistics.encoding
        if not isinstance(encoding, ClassEncoding):
            raise TypeError("The statistics are of numbers.")
        mean = encoding.mean if encoding.by_task is None else None
        fitted = self._solve(layer, statistics.sites, context, backend, totals, mean)
        sums = {t: (site.target_sums, site.weight) for t, site in statistics.sites.items()}
        own = {t: encoding.present(t, *of) for t, of in sums.items()}
        self.classes_ = encoding.classes
        common, shares = fitted.common is not None, shares_of_classes(fitted.common, encoding)
        self.task_classes_ = {t: encoding.predicted(t, *of, common=common, shares=shares) for t, of in sums.items()}
        with limit_blas_threads(always=True) if backend.one_thread else nullcontext():
            if encoding.by_task is None and common:
                self._finish_shared(fitted, statistics.sites, own, encoding, shares, backend)
                return
            # Where classes are shared but nothing else is, each task has a column for every class, less its mean.
            shared = encoding.by_task is None
            heads = {}
            for t, head in fitted.heads.items():
                site, offset = statistics.sites[t], encoding.mean if shared else np.zeros(head.A.shape[1])
                columns = np.searchsorted(self.classes_, self.task_classes_[t]) if shared else np.arange(len(offset))
                A, t_mean = head.A[:, columns], (head.t_mean + offset)[columns]
                if isinstance(fitted.layer, TrainedLayer):
                    # Trained by the log loss of these scores.
                    heads[t] = replace(head, A=A, t_mean=t_mean, classes=self.task_classes_[t], temperature=1.0)
                    continue
                features, T = head.features(fitted.layer(site.rows.X)), (site.rows.T + offset)[:, columns]
                scores, centred = features @ A + t_mean, self.fit_intercept
                if fitted.prior is not None:
                    features, centred = features * fitted.prior[t], False
                weights = site.row_weights
                scores = leave_one_out(features, A, scores, T, fitted.penalty, centred, weights)
                temperature = fit_temperature(scores, T, weights) if len(own[t]) > 1 else USUAL_TEMPERATURE
                heads[t] = replace(head, A=A, t_mean=t_mean, classes=self.task_classes_[t], temperature=temperature)
        self._set_model(fitted.layer, heads, 1)

    @property
    def _declared(self) -> list[Any] | None:
        """The classes of all tasks, if they are given."""
        given = self.shared_classes
        return None if isinstance(given, (bool, str)) else sorted(np.asarray(given).tolist())

    @property
    def _is_private(self) -> bool:
        return make_solver(self.solver).privacy is not None

    def _check_private_classes(self) -> None:
        """Raise unless the classes of a private fit are declared: which ones occur follows from the rows."""
        if self._is_private and self._declared is None:
            raise ElmeshError(
                f"A private fit needs the names of all classes, and shared_classes is {self.shared_classes!r}; which "
                "classes there are must not be found from the rows, because the budget does not pay for that. Declare "
                'them from what is known anyway, such as shared_classes=["no", "yes"].'
            )

    def _check_shared_classes(self, classes: Mapping[Label, NDArray[Any]]) -> None:
        """Raise unless ``shared_classes`` is a choice, or at least two classes and all those of the tasks here."""
        declared = self._declared
        if declared is None:
            check_choice("shared_classes", self.shared_classes, (True, False, "auto"))
            return
        if len(set(declared)) < len(declared) or len(declared) < 2:
            raise ElmeshError('shared_classes must be True, False, "auto", or two or more different classes.')
        for label, own in classes.items():
            unknown = [name for name in own.tolist() if name not in set(declared)]
            if unknown:
                raise ElmeshError(
                    f"Task {label!r} has the class {unknown[0]!r}, which is not among the declared classes "
                    f"{listed(declared)}; declare it, or correct the rows."
                )

    def _shared(self, classes: Mapping[Label, NDArray[Any]]) -> bool:
        """Return whether a class of the same name at two tasks is the same class; ``classes`` are those of all."""
        if self._declared is not None or self.shared_classes != "auto":
            return self._declared is not None or bool(self.shared_classes)
        names = [name for values in classes.values() for name in values.tolist()]
        return len(names) > len(set(names)) or len(classes) == 1

    def _finish_shared(
        self,
        fitted: Fitted,
        sites: Mapping[Label, SiteStatistics],
        classes: Mapping[Label, NDArray[Any]],
        encoding: ClassEncoding,
        shares: FloatArray,
        backend: Backend,
    ) -> None:
        """Complete the heads of tasks whose classes have the same names, with one column of targets per class."""
        common, layer, mean = fitted.common, fitted.layer, encoding.mean
        if common is None or not isinstance(layer, FeatureMap):
            raise TypeError("A fit of shared classes lacks its common part.")
        columns = {t: np.searchsorted(self.classes_, own) for t, own in self.task_classes_.items()}
        common, found = replace(common, t_mean=mean), {}
        if not self._is_private:
            for t, head in fitted.heads.items():
                if len(classes[t]) > 1 and (common.temperature is None or has_many_rows(sites[t], layer)):
                    found[t] = own_link(sites[t], head, common, layer, columns[t], shares)
            if common.temperature is None:
                temperature, link = usual_link(found, list(sites), shares, backend)
                common = replace(common, temperature=temperature, link=link, links_at_home=True)
        common = replace(common, temperature=common.temperature or USUAL_TEMPERATURE)
        heads = {}
        for t, head in fitted.heads.items():
            own, of_task = found.get(t, (common.temperature, common.link))
            heads[t] = replace(
                head,
                A=head.A[:, columns[t]],
                t_mean=mean[columns[t]],
                classes=self.task_classes_[t],
                temperature=own,
                link=None if of_task is None else of_task[:, columns[t]],
            )
        self._set_model(layer, heads, 1, common, self.classes_)

    def _model_encoding(self) -> ClassEncoding:
        model = self.model_
        if model.common is None or model.classes is None:
            return ClassEncoding(self.classes_, np.zeros(len(self.classes_)), dict(self.task_classes_))
        return ClassEncoding(model.classes, model.common.t_mean)

    @property
    def _every_class(self) -> NDArray[Any]:
        return self.classes_ if self.model_.classes is None else self.model_.classes

    def _predictor(self) -> Predictor:
        return Predictor(self.model_, [str(name) for name in self._every_class.tolist()], self._every_class)

    def _true_targets(self, y: NDArray[Any], groups: Groups) -> dict[Label, FloatArray]:
        every = self._every_class
        indicators, labels = ClassEncoding(every, np.zeros(len(every))), self._shape_targets(y)
        return {t: indicators.encode(t, labels[rows]) for t, rows in groups.items()}

    def _finish_head(self, head: Head, site: SiteStatistics, encoding: TargetEncoding) -> Head:
        if not isinstance(encoding, ClassEncoding):
            raise TypeError("The statistics are of numbers.")
        common = self.model_.common
        sums, shares = (site.target_sums, site.weight), shares_of_classes(common, encoding)
        own = encoding.predicted("", *sums, common=common is not None, shares=shares)
        chosen = np.searchsorted(encoding.classes, own)
        temperature, link, layer = None if common is None else common.temperature, head.link, self.model_.layer
        if common is not None and link is not None and isinstance(layer, FeatureMap):
            one_class = len(encoding.present("", *sums)) == 1
            if not one_class and (common.links_at_home or has_many_rows(site, layer)):
                temperature, link = own_link(site, head, common, layer, chosen, shares)
        return replace(
            head,
            A=head.A[:, chosen],
            t_mean=head.t_mean[chosen],
            classes=encoding.classes[chosen],
            temperature=temperature,
            link=None if link is None else link[:, chosen],
        )

    def _set_heads(self, heads: Mapping[Label, Head]) -> None:
        super()._set_heads(heads)
        self.task_classes_ = {t: head.classes for t, head in self.model_.heads.items() if head.classes is not None}

    def partial_fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        tasks: object = None,
        *,
        classes: Sequence[Any] | None = None,
        sample_weight: ArrayLike | None = None,
        run: RunConfig | None = None,
    ) -> Self:
        """Learn from further rows as well; without a fit before, this is one.

        ``classes`` are all classes that any rows will have, for the first call, as in scikit-learn; classes that the
        first call does not know are an error later. All else is as in :meth:`MultiTaskELMRegressor.partial_fit`.
        """
        if hasattr(self, "model_") or classes is None or self._declared is not None:
            return super().partial_fit(X, y, tasks, sample_weight=sample_weight, run=run)
        given, self.shared_classes = self.shared_classes, list(classes)
        try:
            return self.fit(X, y, tasks, sample_weight=sample_weight, run=run)
        finally:
            self.shared_classes = given

    def _per_class(
        self, X: ArrayLike, tasks: object, fill: float, transform: Callable[[FloatArray, float | None], FloatArray]
    ) -> FloatArray:
        groups, scores = self._scores(X, tasks)
        table = np.full((sum(map(len, groups.values())), len(self.classes_)), fill)
        for t, rows in groups.items():
            head = self.model_.heads.get(t, self.model_.common)
            columns = np.searchsorted(self.classes_, self.task_classes_.get(t, self.classes_))
            table[rows[:, None], columns] = transform(scores[t], None if head is None else head.temperature)
        return table

    def decision_function(self, X: ArrayLike, tasks: object = None) -> FloatArray:
        """Return the score of each class, minus infinity for classes the row's task does not have.

        The class with the highest score is the most probable one. With two classes in all, one column: the score of the
        second less that of the first.
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

        They are a softmax of the scores, divided by a temperature. Where classes are common to the tasks and there is a
        common part, each class has an offset as well, so that on average probabilities are as large as the class is
        frequent, and a slope by its share. All of this minimises the log loss of the training rows, each scored by
        coefficients that were fitted without it (the exact leave-one-out of a ridge regression on the shared features;
        for GO-MTL that of a Lasso, exact if it uses the same features without the row). So small tasks are not
        overconfident.
        """
        return self._per_class(X, tasks, 0.0, probabilities)

    def score(self, X: ArrayLike, y: ArrayLike, tasks: object = None, sample_weight: ArrayLike | None = None) -> float:
        """Return the share of rows classified correctly."""
        from sklearn.metrics import accuracy_score  # noqa: PLC0415 (slow to import)

        return float(accuracy_score(y, self.predict(X, tasks), sample_weight=sample_weight))

    def summary(self) -> dict[str, Any]:
        """Return the facts about a fit in plain JSON, with the classes."""
        return {**super().summary(), "classes": self.classes_.tolist()}

    def _adopt(self, model: MultiTaskModel, n_features: int, extra: dict[str, Any]) -> None:
        super()._adopt(model, n_features, extra)
        self.task_classes_ = {t: head.classes for t, head in model.heads.items() if head.classes is not None}
        own = np.unique(np.concatenate(list(self.task_classes_.values())))
        # A model of one task is that of its own classes; other tasks' are part of a model for tasks that are not known.
        self.classes_ = own if model.classes is None or len(model.heads) == 1 else model.classes


def _classes_of_all(classes: Mapping[Label, NDArray[Any]], communicator: Communicator) -> dict[Label, NDArray[Any]]:
    """Return the classes of the tasks of all processes; several processes may have the same task."""
    own = [[label, values.tolist()] for label, values in classes.items()]
    # As objects: NumPy would turn large whole numbers into others.
    return {label: np.array(values, dtype=object) for part in communicator.allgather(own) for label, values in part}
