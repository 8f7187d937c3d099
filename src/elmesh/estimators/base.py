"""What the classifier and the regressor share: from checked rows to a fitted model, and its saving."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from elmesh.checks import check_flag
from elmesh.comm.communicator import raise_on_all
from elmesh.data.features import HiddenLayer
from elmesh.data.statistics import Reduced, Task
from elmesh.data.tasks import Groups, match_tasks
from elmesh.errors import ElmeshError
from elmesh.estimators.head import Head
from elmesh.estimators.model import MultiTaskModel
from elmesh.estimators.parameters import describe
from elmesh.math.blas import limit_blas_threads
from elmesh.run.backend import Backend, FitContext, check_consistent, resolve_backend
from elmesh.run.config import RunConfig
from elmesh.run.result import StopReason
from elmesh.solvers import Solver, make_solver
from elmesh.solvers.admm import ProximalADMM
from elmesh.text import row
from elmesh.typing import FloatArray, Label, StrPath
from elmesh.version import __version__

__all__ = ["Fitted", "MultiTaskELM"]

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
)
# Above this, squares and the products of squares are no longer finite.
_LARGEST = 1e75


@dataclass(frozen=True, eq=False)
class Fitted:
    """What a fit produced: the hidden layer, one head per task, and the ridge penalty of A_t (None: a Lasso)."""

    layer: HiddenLayer
    heads: dict[Label, Head]
    penalty: float | None


class MultiTaskELM(BaseEstimator):
    """What the classifier and the regressor share."""

    # With metadata routing switched on, `tasks` goes wherever it is needed without further requests.
    __metadata_request__fit: ClassVar = {"tasks": True, "run": True}
    __metadata_request__predict: ClassVar = {"tasks": True}
    __metadata_request__score: ClassVar = {"tasks": True}

    _kind: Literal["classification", "regression"]

    def __init__(
        self,
        n_hidden: int | None = 300,
        *,
        activation: str = "sigmoid",
        weight_scale: float = 1.0,
        solver: str | Solver = "mesh-elm",
        fit_intercept: bool = True,
        random_state: Any = None,
    ) -> None:
        self.n_hidden = n_hidden
        self.activation = activation
        self.weight_scale = weight_scale
        self.solver = solver
        self.fit_intercept = fit_intercept
        self.random_state = random_state

    def _backend(self, run: RunConfig | None) -> tuple[RunConfig, Backend]:
        """Return where the fit runs, having checked that the solver can run there."""
        config = run or RunConfig()
        backend = resolve_backend(config.backend)
        with raise_on_all(backend.communicator):
            backend.check(make_solver(self.solver))
        return config, backend

    def _agree(self, config: RunConfig, backend: Backend, groups: Groups) -> FitContext:
        """Agree with the other processes, if any, on what is fitted, and on who has which tasks."""
        solver, communicator = make_solver(self.solver), backend.communicator
        with raise_on_all(communicator):
            check_flag("fit_intercept", self.fit_intercept)
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
        seed = int(communicator.allgather(seed)[0])
        assignment = backend.assign(solver, list(groups), seed)
        fields |= {"seed": seed, "tasks": assignment.labels}
        return FitContext(solver, assignment, seed, fields, config)

    def _fit(
        self, X: FloatArray, groups: Groups, targets: Mapping[Label, FloatArray], context: FitContext, backend: Backend
    ) -> Fitted:
        """Learn from checked rows and set the attributes of every fit; heads are without classes."""
        solver, labels = context.solver, context.assignment.own
        layer = HiddenLayer(X.shape[1], self.n_hidden, self.activation, self.weight_scale, context.seed)
        with raise_on_all(backend.communicator):
            _check_size(X, targets)
        longest = max(len(groups[t]) for t in labels)
        with limit_blas_threads(longest, layer.width, min(longest, layer.width), always=backend.one_thread):
            reduced = [Reduced.from_rows(layer(X[groups[t]]), targets[t], centre=self.fit_intercept) for t in labels]
            tasks = [Task.from_reduced(task) for task in reduced]
        # A run may be resumed for longer than was first asked.
        fields = {name: value for name, value in context.fields.items() if name != "solver__max_iter"}
        result = backend.run(replace(context, fields=fields), tasks)
        failed = (StopReason.MAX_ITER, StopReason.DIVERGED, StopReason.BUDGET)
        if result.stop in failed and backend.communicator.rank == 0:
            warnings.warn(f"After {result.n_iter} rounds: {result.stop.value}", ConvergenceWarning, stacklevel=3)

        solution, topology, everything = result.solution, context.assignment.topology, context.assignment.labels
        self.seed_ = context.seed
        self.tasks_ = np.array(labels)
        self.history_ = result.history
        self.n_iter_ = result.n_iter
        self.n_exchanges_ = result.n_exchanges
        self.stop_ = result.stop
        self.graph_ = topology.to_networkx(everything) if topology is not None else None
        self.certificate_ = solution.certificate
        self.traffic_ = result.traffic.table(everything) if topology is not None else None
        self.penalties_ = None if solution.mu1 is None else (solution.mu1, solution.mu2)
        self.conditions_ = None
        if topology is not None and isinstance(solver, ProximalADMM):
            degree = context.assignment.degree
            self.conditions_ = solver.margins(Task.stack(tasks), solution, degree, topology.n_agents)
        U = solution.U
        self.U_ = U[0] if U is not None and U.ndim == 3 and len(U) == 1 else U
        self.A_ = {t: solution.A[k, :, : targets[t].shape[1]].copy() for k, t in enumerate(labels)}
        bases = [U[k] if U is not None and U.ndim == 3 else U for k in range(len(labels))]
        heads = {
            t: Head(basis, self.A_[t], r.mean[: r.width], r.mean[r.width :])
            for t, basis, r in zip(labels, bases, reduced, strict=True)
        }
        return Fitted(layer, heads, solution.mu2)

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

    def _read(self, X: ArrayLike, y: ArrayLike) -> tuple[FloatArray, NDArray[Any]]:
        """Check inputs; :mod:`elmesh.data.tasks` checks targets, and names the row that is wrong."""
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
        if isinstance(alone.solver, Solver):
            alone.solver = alone.solver.for_one_task()
        alone._adopt(self.model_.for_task(task), self.n_features_in_, {})
        return alone

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
        for name in _GLOBAL_ATTRIBUTES:
            setattr(gathered, name, getattr(self, name))
        return gathered

    def summary(self) -> dict[str, Any]:
        """Return the facts about a fit in plain JSON: solver, rank, penalties, certificate, rounds, bytes and more."""
        check_is_fitted(self, "history_")
        solver, history = make_solver(self.solver), self.history_
        rank = None if self.U_ is None or "rank" not in solver.get_params() else int(self.U_.shape[-1])
        return {
            "kind": self._kind,
            "classes": self.classes_.tolist() if hasattr(self, "classes_") else None,
            "tasks": self.tasks_.tolist(),
            "solver": solver.name,
            "rank": rank,
            "penalties": None if self.penalties_ is None else list(self.penalties_),
            "certificate": None if self.certificate_ is None else asdict(self.certificate_),
            "rounds": int(self.n_iter_),
            "exchanges": int(self.n_exchanges_),
            "pooled": solver.pooled,
            "bytes": int(history["bytes"].iloc[-1]) if len(history) else 0,
            "objective": float(history["objective"].iloc[-1]) if len(history) else None,
            "stop": self.stop_.name,
            "advice": self.stop_.value,
        }

    def save(self, path: StrPath, *, overwrite: bool = False, extra: Mapping[str, Any] | None = None) -> None:
        """Write the fitted model to a folder: ``model.json`` and ``weights.safetensors``.

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
        self.model_.save(Path(path), overwrite=overwrite, estimator=describe(self), extra=content)

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

    def _set_model(self, layer: HiddenLayer, heads: dict[Label, Head], y_ndim: int) -> None:
        names = tuple(self.feature_names_in_) if hasattr(self, "feature_names_in_") else None
        self.model_ = MultiTaskModel(self._kind, layer, heads, names, y_ndim)
        self.extra_ = {}


def _check_size(X: FloatArray, targets: Mapping[Label, FloatArray]) -> None:
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
