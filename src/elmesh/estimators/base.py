"""What the classifier and the regressor share: from checked rows to a fitted model, and its saving."""

from __future__ import annotations

import copy
import warnings
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, Self

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state

from elmesh.checks import check_choice, check_flag
from elmesh.comm.communicator import Communicator, raise_on_all
from elmesh.comm.transport import key_bytes
from elmesh.data.features import FeatureMap, Features, TrainedLayer
from elmesh.data.site_statistics import SiteStatistics
from elmesh.data.statistics import SiteRows, Statistics, Task
from elmesh.errors import ElmeshError
from elmesh.estimators.common import CommonPart
from elmesh.estimators.effects import heads_with_effects, part_shares
from elmesh.estimators.features import make_features
from elmesh.estimators.fitted_estimator import FittedMethods
from elmesh.estimators.head import Head
from elmesh.estimators.model import MultiTaskModel
from elmesh.estimators.parameters import describe
from elmesh.estimators.private_fit import PrivateFit, start_private_fit
from elmesh.estimators.reduction import collect_statistics
from elmesh.estimators.rows import ArrayRows, Chunk, TrainingRows
from elmesh.estimators.sites import CLASS_NOISE
from elmesh.estimators.streams import StreamCheckpoint, StreamedRows, StreamState
from elmesh.estimators.target_encoding import ClassEncoding, TargetEncoding
from elmesh.estimators.training_statistics import TrainingStatistics
from elmesh.math.blas import limit_blas_threads
from elmesh.privacy.report import PrivacyReport
from elmesh.run.backend import Backend, FitContext, check_consistent
from elmesh.run.config import RunConfig
from elmesh.run.local_backend import LocalBackend
from elmesh.run.resolve_backend import resolve_backend
from elmesh.run.result import RunResult, StopReason
from elmesh.solvers import Solver, make_solver
from elmesh.solvers.admm import ProximalADMM
from elmesh.solvers.base import GroupedFeatures, Halves, PrivateTotals, Solution
from elmesh.solvers.traffic_estimate import estimate_traffic
from elmesh.tables.stream import TableStream, as_stream
from elmesh.text import data_size
from elmesh.typing import FloatArray, Label
from elmesh.version import __version__

__all__ = ["Fitted", "MultiTaskELM", "check_size"]

# Above this, squares and the products of squares are no longer finite.
_LARGEST = 1e75


@dataclass(frozen=True, eq=False)
class Fitted:
    """What a fit produced: features, one head per task, the ridge penalty of A_t (None: a Lasso), the common part.

    ``prior`` is the root of the prior variance of each feature's weight, where penalties differ.
    """

    layer: Features
    heads: dict[Label, Head]
    penalty: float | None
    common: CommonPart | None = None
    prior: dict[Label, FloatArray] | None = None


@dataclass(frozen=True, eq=False)
class _Prepared:
    """What is found from rows before they are reduced to statistics."""

    rows: TrainingRows
    layer: Features
    encoding: TargetEncoding
    context: FitContext
    private: PrivateFit | None


class MultiTaskELM(FittedMethods):
    """What the classifier and the regressor share."""

    # With metadata routing switched on, `tasks` goes wherever it is needed without further requests.
    __metadata_request__fit: ClassVar = {"tasks": True, "run": True}
    __metadata_request__predict: ClassVar = {"tasks": True}
    __metadata_request__score: ClassVar = {"tasks": True}

    _kind: Literal["classification", "regression"]
    model_: MultiTaskModel
    privacy_: PrivacyReport | None

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
        unknown_site: str = "common",
        random_state: Any = None,
    ) -> None:
        self.n_hidden = n_hidden
        self.task = task
        self.column_types = column_types
        self.scale = scale
        self.activation = activation
        self.weight_scale = weight_scale
        self.direct_links = direct_links
        self.clip = clip
        self.solver = solver
        self.fit_intercept = fit_intercept
        self.unknown_site = unknown_site
        self.random_state = random_state

    def solver_for(
        self, X: ArrayLike, y: ArrayLike, tasks: object = None, sample_weight: ArrayLike | None = None
    ) -> Solver:
        """Return the solver that a fit of these rows uses: without a common part where tasks share no class."""
        backend, reader = LocalBackend(), copy.copy(self)
        rows = reader._read(X, y, tasks, sample_weight, backend)
        solver, _ = reader._agree_on_classes(*reader._check_targets(rows, backend), rows, backend)
        return solver

    def _backend(self, run: RunConfig | None) -> tuple[RunConfig, Backend]:
        """Return where the fit runs, having checked that the solver can run there."""
        config = run or RunConfig()
        backend = resolve_backend(config.backend)
        with raise_on_all(backend.communicator):
            backend.check(make_solver(self.solver))
        return config, backend

    def _check_consistent(self, communicator: Communicator) -> dict[str, Any]:
        """Return what describes the fit, the seed included; raise if processes differ in it.

        Comes before any other exchange: processes that fit different things would exchange different things.
        """
        with raise_on_all(communicator):
            check_flag("fit_intercept", self.fit_intercept)
            check_choice("unknown_site", self.unknown_site, ("common", "error"))
            seed = self._seed()
        names: list[str] | None = getattr(self, "feature_names_in_", np.array(None)).tolist()
        width: int = getattr(self, "n_features_in_", 0)
        fields: dict[str, Any] = {
            "version": __version__,
            "kind": self._kind,
            **_flat(describe(self)),
            "columns": width if names is None else names,
        }
        check_consistent(communicator, fields)
        # Without an integer each process would draw a seed of its own.
        return fields | {"seed": int(communicator.allgather(seed)[0])}

    def fit(
        self,
        X: Any,
        y: Any,
        tasks: object = None,
        *,
        sample_weight: ArrayLike | None = None,
        run: RunConfig | None = None,
    ) -> Self:
        """Learn all tasks together.

        Parameters
        ----------
        X : array or table of shape (n_samples, n_features), or a stream of tables
            Inputs. Of a stream (:class:`~elmesh.tables.TableStream`, an Arrow stream or data set), parts are in memory
            at a time.
        y : array-like of shape (n_samples,) or (n_samples, n_outputs), or the names of columns
            Numbers to predict, or the class of each row. Of a stream, the column that has them, or several.
        tasks : array-like of shape (n_samples,), optional
            Task of each row, as text or whole numbers. Without it all rows are one task, unless ``task`` names a column
            of X.
        sample_weight : array-like of shape (n_samples,), optional
            How often each row counts: a row with weight 2 is as good as two rows, one with weight 0 as none. Of a
            stream, the name of the column that has them.
        run : RunConfig, optional
            Where the fit runs, its callback and its checkpoints; by default in this process.

        Returns
        -------
        self
        """
        config, backend = self._backend(run)
        stream = as_stream(X)
        if stream is not None:
            return self._fit_stream(stream, y, tasks, sample_weight, config, backend)
        self._fit_rows(self._read(X, y, tasks, sample_weight, backend), config, backend)
        return self

    def _prepare(self, rows: TrainingRows, config: RunConfig, backend: Backend) -> _Prepared:
        """Return what is found from rows before they are reduced to statistics, agreed on with other processes."""
        solver, classes = self._check_targets(rows, backend)
        fields = self._check_consistent(backend.communicator)
        solver, classes = self._agree_on_classes(solver, classes, rows, backend)
        assignment = backend.assign(solver, list(rows.sizes), fields["seed"])
        context = FitContext(solver, assignment, fields["seed"], {**fields, "tasks": assignment.labels}, config)
        rows = rows.of_tasks(assignment.own)
        private = self._start_private(rows, classes, context, backend)
        encoding = self._find_encoding(rows, classes, context, backend, private)
        moments = None if private is None else private.scales.inputs
        layer = make_features(self, solver, rows, context.seed, backend, moments)
        return _Prepared(rows, layer, encoding, context, private)

    def _fit_rows(self, rows: ArrayRows, config: RunConfig, backend: Backend) -> None:
        """Learn from rows in memory."""
        prepared = self._prepare(rows, config, backend)
        rows, layer, encoding, context, private = (
            rows.of_tasks(list(prepared.rows.sizes)),
            prepared.layer,
            prepared.encoding,
            prepared.context,
            prepared.private,
        )
        sites = collect_statistics(rows, layer, encoding, context.seed, one_thread=backend.one_thread)
        totals, self.privacy_ = None, None
        if private is not None and isinstance(layer, FeatureMap):
            whole = rows.whole
            targets = {t: encoding.encode(t, whole.y[index]) for t, index in whole.groups.items()}
            totals, self.privacy_ = private.totals(layer, whole.X, whole.groups, targets)
        joint = backend.in_one_place and private is None
        statistics = TrainingStatistics(sites, encoding, context.seed, joint, rows.whole.y.ndim)
        self._learn(layer, statistics, context, backend, totals)
        self.statistics_, self._statistics_source = statistics, None

    def _fit_stream(
        self, stream: TableStream, y: Any, tasks: object, sample_weight: Any, config: RunConfig, backend: Backend
    ) -> Self:
        """Learn from a table that is read in parts; with a checkpoint, go on where an earlier reading stopped."""
        targets, weight = self._check_stream(stream, y, tasks, sample_weight, backend)
        checkpoint = state = None
        folder = config.checkpoint.path / "stream" if config.checkpoint is not None else stream.checkpoint
        if folder is not None:
            described = {"kind": self._kind, "targets": targets, "weight": weight, **_flat(describe(self))}
            checkpoint = StreamCheckpoint.of_fit(folder, stream, described)
            state = checkpoint.load(stream, self.task, weight)
        if state is None:
            types = self.column_types
            rows = StreamedRows.scan(stream, targets, self._kind, task=self.task, weight=weight, types=types)
            self._set_table(rows.schema)
            found = self._prepare(rows, config, backend)
            ndim = 1 if len(targets) == 1 else 2
            statistics = TrainingStatistics({}, found.encoding, found.context.seed, joint=True, y_ndim=ndim)
            state = StreamState(rows, found.layer, statistics, 0)
        self._set_table(state.rows.schema)
        kept, layer, statistics = checkpoint, state.layer, state.statistics

        def save(sites: dict[Label, SiteStatistics], n_chunks: int) -> None:
            if kept is not None and sites:
                kept.save(state.rows, layer, replace(statistics, sites=sites), n_chunks)

        sites = collect_statistics(
            state.rows,
            layer,
            statistics.encoding,
            statistics.seed,
            into=statistics.sites,
            skip=state.n_chunks,
            save=save,
        )
        self._relearn(replace(statistics, sites=sites), layer, config)
        if checkpoint is not None:
            checkpoint.clear()
        return self

    @abstractmethod
    def _check_targets(self, rows: TrainingRows, backend: Backend) -> tuple[Solver, Any]:
        """Check the targets; return the solver, and what is found of classes."""

    def _agree_on_classes(self, solver: Solver, found: Any, rows: TrainingRows, backend: Backend) -> tuple[Solver, Any]:
        """Agree with the other processes on classes; return the solver for them, and the classes."""
        return solver, found

    @abstractmethod
    def _plain_encoding(self, chunk: Chunk, found: Any) -> TargetEncoding:
        """Return the encoding of targets as they are, for a private fit, which scales them itself."""

    @abstractmethod
    def _find_encoding(
        self, rows: TrainingRows, found: Any, context: FitContext, backend: Backend, private: PrivateFit | None
    ) -> TargetEncoding:
        """Return how targets become numbers."""

    @abstractmethod
    def _learn(
        self,
        layer: Features,
        statistics: TrainingStatistics,
        context: FitContext,
        backend: Backend,
        totals: PrivateTotals | None = None,
    ) -> None:
        """Learn from statistics, and become fitted."""

    def _relearn(self, statistics: TrainingStatistics, layer: Features, run: RunConfig | None) -> None:
        config, backend = self._backend(run)
        if not backend.in_one_place:
            raise ElmeshError("Rows are added and taken away in one process; leave the backend at its default.")
        solver = make_solver(self.solver)
        layer = layer.base if isinstance(layer, TrainedLayer) else layer
        if isinstance(statistics.encoding, ClassEncoding) and statistics.encoding.by_task is not None:
            solver = solver.without_common_targets()
        fields = self._check_consistent(backend.communicator) | {"seed": statistics.seed}
        assignment = backend.assign(solver, list(statistics.sites), statistics.seed)
        fields |= {"tasks": assignment.labels}
        context = FitContext(solver, assignment, statistics.seed, fields, config)
        self.privacy_ = None
        self._learn(layer, statistics, context, backend)
        self.statistics_, self._statistics_source = statistics, None

    def _solve(
        self,
        layer: Features,
        sites: Mapping[Label, SiteStatistics],
        context: FitContext,
        backend: Backend,
        totals: PrivateTotals | None = None,
        subtracted: FloatArray | None = None,
    ) -> Fitted:
        """Learn from the statistics of each task and set the attributes of every fit; heads are without classes.

        ``subtracted`` is what was subtracted from the indicators of classes, if tasks share them.
        """
        solver, labels = context.solver, context.assignment.own
        index = pd.Index(labels, name="task")
        self.sites_ = pd.DataFrame({"rows": [sites[t].n_rows for t in labels]}, index=index)
        grouped = isinstance(layer, FeatureMap)
        centre = self.fit_intercept and not grouped
        longest = max(sites[t].n_rows for t in labels)
        with limit_blas_threads(longest, layer.width, min(longest, layer.width), always=backend.one_thread):
            means, tasks = _reduce(solver, layer, [sites[t] for t in labels], centre=centre)

        def halves() -> Halves:
            pairs = [sites[t].divided(layer) for t in labels]
            return [first for first, _ in pairs], [second for _, second in pairs]

        if isinstance(layer, FeatureMap):
            classes = self._kind == "classification"
            floor = CLASS_NOISE if classes else 0.0
            common = classes and (solver.has_common_part or solver.learns_features)
            most = self.most_features(solver, {t: sites[t].n_rows for t in labels}, backend)
            own = halves if solver.learns_from_halves else None
            features = GroupedFeatures(layer.groups, floor, own, common, totals, most, subtracted)
            context = replace(context, features=features)
        needed = self._traffic_beyond_limit(context, layer, tasks, backend)
        context = replace(context, alone=needed > 0)
        # A run may be resumed for longer than was first asked.
        fields = {name: value for name, value in context.fields.items() if name != "solver__max_iter"}
        result = backend.run(replace(context, fields=fields), tasks)
        failed = (StopReason.MAX_ITER, StopReason.DIVERGED, StopReason.BUDGET, StopReason.ALONE)
        if result.stop in failed and backend.communicator.rank == 0:
            need = f" The start takes at least {data_size(needed)}." if needed else ""
            warnings.warn(f"After {result.n_iter} rounds: {result.stop.value}{need}", ConvergenceWarning, stacklevel=4)

        self._set_run(result, context, tasks)
        solution = result.solution
        U = solution.U
        self.U_ = U[0] if U is not None and U.ndim == 3 and len(U) == 1 else U
        widths = {t: sites[t].rows.T.shape[1] for t in labels}
        self.A_ = {t: solution.A[k, :, : widths[t]].copy() for k, t in enumerate(labels)}
        self.W_ = None
        self.V_: dict[Label, FloatArray] | None = None
        self.variances_ = None
        self.noise_ = None
        if solution.effects is not None:
            return self._with_effects(solution, layer, [task for task in tasks if isinstance(task, SiteRows)], labels)
        if solution.hidden is not None and isinstance(layer, FeatureMap):
            return _with_trained_layer(solution.hidden, layer, self.A_, sites)
        bases = [U[k] if U is not None and U.ndim == 3 else U for k in range(len(labels))]
        heads = {
            t: Head(basis, self.A_[t], mean[: layer.width], mean[layer.width :], rows=sites[t].weight)
            for t, basis, mean in zip(labels, bases, means, strict=True)
        }
        prior = solution.prior
        by_task = None if prior is None else {t: prior[k] for k, t in enumerate(labels)}
        return Fitted(layer, heads, solution.mu2, prior=by_task)

    @staticmethod
    def most_features(solver: Solver, sizes: Mapping[Label, int], backend: Backend) -> int | None:
        """Return how many features the common part may have; None for no limit."""
        least = solver.rows_per_feature
        if not least or solver.privacy is not None:
            return None
        return int(backend.sure_rows(sizes) / least)

    @staticmethod
    def _traffic_beyond_limit(
        context: FitContext, layer: Features, tasks: Sequence[Statistics], backend: Backend
    ) -> float:
        """Announce how much will be sent; return the bytes of the start if they are more than may be sent, else 0."""
        topology, announce, limit = context.assignment.topology, context.config.on_estimate, context.solver.max_bytes
        if topology is None or (announce is None and limit is None):
            return 0.0
        width = layer.width
        if context.features is not None and context.features.most_features is not None:
            width = min(width, context.features.most_features)
        outputs = max(task.outputs for task in tasks)
        directions = [context.solver.directions(task) for task in tasks]
        rank = context.solver.rank_for(outputs, layer.width, sum(directions))
        found = estimate_traffic(context.solver, width, outputs, rank, topology, varied=min(directions) > 0)
        if found is not None and announce is not None:
            announce(found)
        if limit is None:
            return 0.0
        start = (0.0 if found is None else found.least) + (key_bytes(topology) if backend.masked else 0)
        most = max(backend.communicator.allgather(float(start)))
        return most if most > limit else 0.0

    def _set_run(self, result: RunResult, context: FitContext, tasks: Sequence[Statistics]) -> None:
        """Set what is known of a run."""
        solution, topology, everything = result.solution, context.assignment.topology, context.assignment.labels
        self.seed_ = context.seed
        self.tasks_ = np.array(context.assignment.own)
        self.history_ = result.history
        self.n_iter_ = result.n_iter
        self.n_exchanges_ = result.n_exchanges
        self.stop_ = result.stop
        self.graph_ = topology.to_networkx(everything) if topology is not None else None
        self.certificate_ = solution.certificate
        self.traffic_ = result.traffic.table(everything) if topology is not None else None
        self.penalties_ = None if solution.mu1 is None else (solution.mu1, solution.mu2)
        self.conditions_ = None
        if topology is not None and isinstance(context.solver, ProximalADMM):
            degree = context.assignment.degree
            stacked = Task.stack([task for task in tasks if isinstance(task, Task)])
            self.conditions_ = context.solver.margins(stacked, solution, degree, topology.n_agents)

    def _start_private(
        self, rows: TrainingRows, classes: NDArray[Any] | None, context: FitContext, backend: Backend
    ) -> PrivateFit | None:
        """Return the start of a private fit; None if the fit is not private."""
        privacy, assignment = context.solver.privacy, context.assignment
        if privacy is None:
            return None
        whole = _in_memory(rows)
        if not np.all(whole.weights == 1.0):
            raise ElmeshError("A private fit takes no weights of rows: the budget is for rows that count once.")
        plain = self._plain_encoding(whole, classes)
        own = {t: (whole.X[index], plain.encode(t, whole.y[index])) for t, index in whole.groups.items()}
        inputs, targets = ({t: pair[k] for t, pair in own.items()} for k in (0, 1))
        is_class = self._kind == "classification"
        return start_private_fit(privacy, backend, len(assignment.labels), inputs, targets, classes=is_class)

    def _with_effects(self, solution: Solution, layer: Features, sites: list[SiteRows], labels: list[Label]) -> Fitted:
        """Return a fit with a common and a private part, and set what is known of them."""
        heads, common = heads_with_effects(solution, layer, sites, labels)
        if solution.V is None:
            raise TypeError("A solution with a common part lacks its private part.")
        self.V_ = {t: solution.V[k] for k, t in enumerate(labels)}
        if isinstance(layer, FeatureMap):
            shares = [part_shares(site, heads[t], common, layer) for t, site in zip(labels, sites, strict=True)]
            self.sites_[["common", "shared", "private"]] = np.array(shares)
        self._set_effects(layer, heads, common)
        return Fitted(layer, heads, 1.0, common)

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
        """Return an integer ``random_state`` unchanged: sites with the same one share the hidden layer."""
        if isinstance(self.random_state, (int, np.integer)) and not isinstance(self.random_state, bool):
            seed = int(self.random_state)
            if not 0 <= seed < 2**64:
                raise ElmeshError(f"random_state is {seed}; it must be a whole number from 0 to 2**64 - 1, or None.")
            return seed
        return int(check_random_state(self.random_state).randint(2**31 - 1))


def _reduce(
    solver: Solver, layer: Features, sites: Sequence[SiteStatistics], *, centre: bool
) -> tuple[list[FloatArray], list[Statistics]]:
    """Return the means of features and targets of each task, and its statistics as the solver takes them."""
    if solver.learns_features:
        return [], [site.unreduced(layer) for site in sites]
    make = SiteRows.from_reduced if isinstance(layer, FeatureMap) else Task.from_reduced
    means, tasks = [], list[Statistics]()
    for site in sites:
        reduced = site.reduced(layer, centre=centre)
        means.append(reduced.mean)
        tasks.append(make(reduced))
    return means, tasks


def _with_trained_layer(
    B: FloatArray, layer: FeatureMap, A: Mapping[Label, FloatArray], sites: Mapping[Label, SiteStatistics]
) -> Fitted:
    """Return a fit whose heads take the units of a hidden layer with weights B."""
    trained = TrainedLayer(layer, B)
    zeros = np.zeros(trained.width)
    heads = {t: Head(None, own, zeros, np.zeros(own.shape[1]), rows=sites[t].weight) for t, own in A.items()}
    return Fitted(trained, heads, None)


def check_size(*arrays: FloatArray) -> None:
    """Raise if inputs or targets are so large that their squares overflow."""
    largest = max(float(np.abs(array).max(initial=0.0)) for array in arrays)
    if largest > _LARGEST:
        raise ElmeshError(
            f"The data contain numbers as large as {largest:.3g}, whose squares overflow; scale inputs and targets to "
            "about one."
        )


def _in_memory(rows: TrainingRows) -> Chunk:
    """Return all rows; raise if they are read in parts."""
    if not isinstance(rows, ArrayRows):
        raise ElmeshError("A private fit takes a table in memory, not a stream; give a DataFrame or an array.")
    return rows.whole


def _flat(description: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters of the estimator and of its solver, named as scikit-learn names them."""
    solver = description["solver"]
    own = {f"solver__{name}": value for name, value in solver.get("parameters", {}).items()}
    return {**description, "solver": solver["solver"], **own}
