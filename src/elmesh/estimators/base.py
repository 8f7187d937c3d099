"""What the classifier and the regressor share: from checked rows to a fitted model, and its saving."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from elmesh.checks import check_choice, check_flag
from elmesh.comm.communicator import Communicator, raise_on_all
from elmesh.data.features import FeatureMap, Features
from elmesh.data.statistics import SiteRows, Statistics, Task
from elmesh.data.tasks import Groups
from elmesh.errors import ElmeshError
from elmesh.estimators.card import model_card
from elmesh.estimators.common import CommonPart
from elmesh.estimators.effects import heads_with_effects, variance_table
from elmesh.estimators.features import make_features
from elmesh.estimators.gains import SiteGains
from elmesh.estimators.head import Head
from elmesh.estimators.model import MultiTaskModel
from elmesh.estimators.parameters import describe
from elmesh.estimators.private_fit import PrivateFit, start_private_fit
from elmesh.estimators.reduction import reduce_tasks
from elmesh.estimators.sites import CLASS_NOISE, SiteMethods
from elmesh.math.blas import limit_blas_threads
from elmesh.privacy.report import PrivacyReport
from elmesh.run.backend import Backend, FitContext, check_consistent, resolve_backend
from elmesh.run.config import RunConfig
from elmesh.run.result import RunResult, StopReason
from elmesh.solvers import Solver, make_solver
from elmesh.solvers.admm import ProximalADMM
from elmesh.solvers.base import GroupedFeatures, Solution
from elmesh.tables import TableSchema
from elmesh.typing import FloatArray, Label, StrPath
from elmesh.version import __version__

__all__ = ["Fitted", "MultiTaskELM", "check_size"]

# Attributes of a fit that are the same in every process.
_GLOBAL_ATTRIBUTES = (
    "history_",
    "n_iter_",
    "n_exchanges_",
    "stop_",
    "graph_",
    "certificate_",
    "traffic_",
    "penalties_",
    "variances_",
    "privacy_",
)
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


class MultiTaskELM(SiteMethods):
    """What the classifier and the regressor share."""

    # With metadata routing switched on, `tasks` goes wherever it is needed without further requests.
    __metadata_request__fit: ClassVar = {"tasks": True, "run": True}
    __metadata_request__predict: ClassVar = {"tasks": True}
    __metadata_request__score: ClassVar = {"tasks": True}

    _kind: Literal["classification", "regression"]
    model_: MultiTaskModel

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

    def solver_for(self, X: Any, y: Any, tasks: object = None) -> Solver:
        """Return the solver that a fit of these rows uses."""
        return make_solver(self.solver)

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

    def _assign(
        self, config: RunConfig, backend: Backend, groups: Groups, solver: Solver, fields: Mapping[str, Any]
    ) -> FitContext:
        """Agree with the other processes, if any, on who has which tasks."""
        assignment = backend.assign(solver, list(groups), fields["seed"])
        return FitContext(solver, assignment, fields["seed"], {**fields, "tasks": assignment.labels}, config)

    def _fit(
        self,
        X: FloatArray,
        groups: Groups,
        targets: Mapping[Label, FloatArray],
        context: FitContext,
        backend: Backend,
        private: PrivateFit | None = None,
    ) -> Fitted:
        """Learn from checked rows and set the attributes of every fit; heads are without classes."""
        solver, labels = context.solver, context.assignment.own
        self.privacy_: PrivacyReport | None = None
        moments = None if private is None else private.scales.inputs
        own_groups = {t: groups[t] for t in labels}
        layer = make_features(self, solver, X, own_groups, context.seed, backend, moments)
        grouped = isinstance(layer, FeatureMap)
        centre = self.fit_intercept and not grouped
        longest = max(len(groups[t]) for t in labels)
        with limit_blas_threads(longest, layer.width, min(longest, layer.width), always=backend.one_thread):
            reduced, halves = reduce_tasks(solver, layer, X, own_groups, targets, centre, context.seed)
            make = SiteRows.from_reduced if grouped else Task.from_reduced
            tasks: list[Statistics] = [make(task) for task in reduced]
        if isinstance(layer, FeatureMap):
            floor = CLASS_NOISE if self._kind == "classification" else 0.0
            classes = self._kind == "classification" and solver.has_common_part
            totals, self.privacy_ = (None, None) if private is None else private.totals(layer, X, own_groups, targets)
            most = self.most_features(solver, own_groups, backend)
            features = GroupedFeatures(layer.groups, floor, halves, classes, totals, most)
            context = replace(context, features=features)
        # A run may be resumed for longer than was first asked.
        fields = {name: value for name, value in context.fields.items() if name != "solver__max_iter"}
        result = backend.run(replace(context, fields=fields), tasks)
        failed = (StopReason.MAX_ITER, StopReason.DIVERGED, StopReason.BUDGET)
        if result.stop in failed and backend.communicator.rank == 0:
            warnings.warn(f"After {result.n_iter} rounds: {result.stop.value}", ConvergenceWarning, stacklevel=3)

        self._set_run(result, context, tasks)
        solution = result.solution
        U = solution.U
        self.U_ = U[0] if U is not None and U.ndim == 3 and len(U) == 1 else U
        self.A_ = {t: solution.A[k, :, : targets[t].shape[1]].copy() for k, t in enumerate(labels)}
        self.W_: FloatArray | None = None
        self.V_: dict[Label, FloatArray] | None = None
        self.variances_: pd.DataFrame | None = None
        self.noise_: dict[Label, FloatArray] | None = None
        if solution.effects is not None:
            return self._with_effects(solution, layer, [task for task in tasks if isinstance(task, SiteRows)], labels)
        bases = [U[k] if U is not None and U.ndim == 3 else U for k in range(len(labels))]
        heads = {
            t: Head(basis, self.A_[t], r.mean[: r.width], r.mean[r.width :])
            for t, basis, r in zip(labels, bases, reduced, strict=True)
        }
        prior = solution.prior
        by_task = None if prior is None else {t: prior[k] for k, t in enumerate(labels)}
        return Fitted(layer, heads, solution.mu2, prior=by_task)

    @staticmethod
    def most_features(solver: Solver, groups: Groups, backend: Backend) -> int | None:
        """Return how many features the common part may have; None for no limit."""
        least = solver.rows_per_feature
        if not least or solver.privacy is not None:
            return None
        return int(backend.sure_rows({t: len(rows) for t, rows in groups.items()}) / least)

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
        self,
        X: FloatArray,
        groups: Groups,
        targets: Mapping[Label, FloatArray],
        context: FitContext,
        backend: Backend,
    ) -> PrivateFit | None:
        """Return the start of a private fit; None if the fit is not private."""
        privacy, assignment = context.solver.privacy, context.assignment
        if privacy is None:
            return None
        own = {t: X[groups[t]] for t in assignment.own}
        classes = self._kind == "classification"
        return start_private_fit(privacy, backend, len(assignment.labels), own, targets, classes=classes)

    def _with_effects(self, solution: Solution, layer: Features, sites: list[SiteRows], labels: list[Label]) -> Fitted:
        """Return a fit with a common and a private part, and set what is known of them."""
        heads, common = heads_with_effects(solution, layer, sites, labels)
        if solution.V is None:
            raise TypeError("A solution with a common part lacks its private part.")
        self.V_ = {t: solution.V[k] for k, t in enumerate(labels)}
        self._set_effects(layer, heads, common)
        return Fitted(layer, heads, 1.0, common)

    def _set_effects(self, layer: Features, heads: Mapping[Label, Head], common: CommonPart) -> None:
        """Set what is known of the common part and of the noise of each task."""
        self.W_ = common.W
        if isinstance(layer, FeatureMap):
            self.variances_ = variance_table(layer, common, heads.values())
        self.noise_ = {t: np.sqrt(common.s2 * np.exp(-head.log_w)) for t, head in heads.items()}

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

    def gather(self, run: RunConfig) -> Self | None:
        """Bring the models of all processes together, after a fit with ``run``. All processes must call this.

        Parameters
        ----------
        run : RunConfig
            The configuration of the fit.

        Returns
        -------
        estimator or None
            At rank 0 an estimator with all tasks, at the others None.
        """
        check_is_fitted(self, "model_")
        communicator = resolve_backend(run.backend).communicator
        models = [MultiTaskModel.from_bytes(data) for data in communicator.gather_bytes(self.model_.to_bytes())]
        if not models:
            return None
        heads = {label: head for model in models for label, head in model.heads.items()}
        # A basis that all share is stored once.
        first = heads[min(heads)].U
        shared = first is not None and all(
            np.array_equal(first, head.U) for head in heads.values() if head.U is not None
        )
        whole = {t: replace(heads[t], U=first) if shared else heads[t] for t in sorted(heads)}
        gathered: Self = clone(self)
        gathered._adopt(replace(self.model_, heads=whole), self.n_features_in_, self.extra_)
        gathered._read_as(self)
        for name in _GLOBAL_ATTRIBUTES:
            setattr(gathered, name, getattr(self, name))
        return gathered

    def summary(self) -> dict[str, Any]:
        """Return the facts about a fit in plain JSON: solver, rank, penalties, certificate, rounds, bytes and more."""
        check_is_fitted(self, "history_")
        solver, history = make_solver(self.solver), self.history_
        rank = None if self.U_ is None or "rank" not in solver.get_params() else int(self.U_.shape[-1])
        variances: pd.DataFrame | None = getattr(self, "variances_", None)
        noise: dict[Label, FloatArray] | None = getattr(self, "noise_", None)
        if self.model_.common is not None:
            rank = 0 if self.model_.common.U is None else int(self.model_.common.U.shape[1])
        absent = "not called for" if solver.learns_from_halves else "not asked for"
        if solver.privacy is not None:
            absent = "not private"
        return {
            "kind": self._kind,
            "classes": self.classes_.tolist() if hasattr(self, "classes_") else None,
            "tasks": self.tasks_.tolist(),
            "solver": solver.name,
            "rank": rank,
            # Without a shared part there is no penalty on it.
            "penalties": None
            if self.penalties_ is None or (variances is not None and not rank)
            else list(self.penalties_),
            "shared_part": None if variances is None else "kept" if rank else absent,
            "variances": None if variances is None else variances.to_dict(),
            "noise": None if noise is None else {str(t): own.tolist() for t, own in noise.items()},
            "certificate": None if self.certificate_ is None else asdict(self.certificate_),
            "privacy": None if self.privacy_ is None else self.privacy_.to_json(),
            "rounds": int(self.n_iter_),
            "exchanges": int(self.n_exchanges_),
            "pooled": solver.pooled,
            "bytes": int(history["bytes"].iloc[-1]) if len(history) else 0,
            "objective": float(history["objective"].iloc[-1]) if len(history) else None,
            "stop": self.stop_.name,
            "advice": self.stop_.value,
        }

    def save(self, path: StrPath, *, overwrite: bool = False, extra: Mapping[str, Any] | None = None) -> None:
        """Write the fitted model to a folder: ``model.json`` and ``weights.safetensors``, and a card, ``README.md``.

        Parameters
        ----------
        path : path-like
            A folder that does not exist yet.
        overwrite : bool, default=False
            Replace a model that is already there.
        extra : mapping, optional
            Plain JSON that is saved with the model; :func:`elmesh.load` returns it as ``extra_``.
        """
        check_is_fitted(self, "model_")
        content = self.extra_ if extra is None else dict(extra)
        if self.table_ is not None:
            content = {"table": self.table_.to_json(), **content}
        table = None
        with suppress(ElmeshError):  # a program may save other content under this name
            table = TableSchema.from_json(content.get("table"))
        card = self.model_card(table=table)
        self.model_.save(Path(path), overwrite=overwrite, estimator=describe(self), extra=content, card=card)

    def model_card(self, gains: SiteGains | None = None, table: TableSchema | None = None) -> str:
        """Return what is to be known about the model, in Markdown: what it predicts, and how confidential it is.

        With ``gains`` (:meth:`site_gains`) it states the errors on rows left out. ``table`` describes the columns, if
        the estimator was fitted on an array that was made from a table.
        """
        check_is_fitted(self, "model_")
        privacy: PrivacyReport | None = getattr(self, "privacy_", None)
        return model_card(self.model_, table or self.table_, describe(self), privacy, gains)

    def _adopt(self, model: MultiTaskModel, n_features: int, extra: dict[str, Any]) -> None:
        """Become fitted from a model alone; the columns of a table are found by their names then."""
        self.model_ = model
        self.extra_ = extra
        self.tasks_ = np.array(list(model.heads))
        self.n_features_in_ = n_features
        if model.feature_names is not None:
            self.feature_names_in_ = np.array(model.feature_names, dtype=object)
        self._read_by_name(None if "table" not in extra else TableSchema.from_json(extra["table"]))
        self.seed_ = model.layer.seed
        if model.common is not None:
            p, d = model.common.W.shape
            self._set_effects(model.layer, model.heads, model.common)
            self.U_ = np.zeros((p, 0)) if model.common.U is None else model.common.U
            none = np.zeros((0, d))
            self.A_ = {t: none if head.shared is None else head.shared for t, head in model.heads.items()}
            return
        heads = list(model.heads.values())
        self.A_ = {t: head.A for t, head in model.heads.items()}
        shared = all(head.U is heads[0].U for head in heads)
        self.U_ = heads[0].U if shared else np.stack([head.U for head in heads if head.U is not None])

    def _set_model(
        self,
        layer: Features,
        heads: dict[Label, Head],
        y_ndim: int,
        common: CommonPart | None = None,
        classes: NDArray[Any] | None = None,
    ) -> None:
        names = tuple(self.feature_names_in_) if hasattr(self, "feature_names_in_") else None
        if self.table_ is not None:
            names = tuple(self.table_.feature_names)
        self.model_ = MultiTaskModel(self._kind, layer, heads, names, y_ndim, common, classes)
        self.extra_ = {}


def check_size(X: FloatArray, targets: Mapping[Label, FloatArray]) -> None:
    """Raise if inputs or targets are so large that their squares overflow."""
    largest = max(float(np.abs(X).max()), *(float(np.abs(T).max()) for T in targets.values()))
    if largest > _LARGEST:
        raise ElmeshError(
            f"The data contain numbers as large as {largest:.3g}, whose squares overflow; scale inputs and targets to "
            "about one."
        )


def _flat(description: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters of the estimator and of its solver, named as scikit-learn names them."""
    solver = description["solver"]
    own = {f"solver__{name}": value for name, value in solver.get("parameters", {}).items()}
    return {**description, "solver": solver["solver"], **own}
