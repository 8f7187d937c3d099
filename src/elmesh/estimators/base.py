"""What the classifier and the regressor share: from checked rows to a fitted model, and its saving."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from elmesh.comm.communicator import Communicator, raise_on_all
from elmesh.data.features import HiddenLayer
from elmesh.data.statistics import Reduced, Task
from elmesh.data.tasks import Groups, match_tasks
from elmesh.errors import ElmeshError
from elmesh.estimators.head import Head
from elmesh.estimators.model import MultiTaskModel
from elmesh.estimators.parameters import describe
from elmesh.math.blas import calm_blas
from elmesh.run import Result, Stop, Venue, assemble, check_alike, processes_of
from elmesh.solvers import Solver, make_solver
from elmesh.solvers.admm import ProximalADMM
from elmesh.text import row
from elmesh.typing import FloatArray
from elmesh.version import __version__

__all__ = ["FloatArray", "Label", "MultiTaskELM"]

Label = str | int

# What a fit leaves behind that is the same in every process.
_OF_ALL = ("history_", "n_iter_", "n_exchanges_", "stop_", "graph_", "certificate_", "traffic_", "penalties_")
# Above this, squares and the products of squares are no longer finite.
_LARGEST = 1e75


class MultiTaskELM(BaseEstimator):
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

    def _processes(self) -> Communicator:
        """Return the processes that the fit takes place in."""
        # Before its parameters are looked at: what is wrong with one process's solver is for all to know.
        communicator = processes_of(self.solver)
        with raise_on_all(communicator):
            make_solver(self.solver)
        return communicator

    def _assemble(self, communicator: Communicator, groups: Groups) -> Venue:
        """Agree with the other processes, if there are any, on what is fitted, and on who has which tasks."""
        solver = make_solver(self.solver)
        with raise_on_all(communicator):
            if not isinstance(self.fit_intercept, (bool, np.bool_)):
                raise ElmeshError(f"fit_intercept must be True or False; got {self.fit_intercept!r}.")
            seed = self._seed()
        names: list[str] | None = getattr(self, "feature_names_in_", np.array(None)).tolist()
        width: int = getattr(self, "n_features_in_", 0)
        self._fields: dict[str, Any] = {
            "version": __version__,
            "kind": self._kind,
            **_flat(describe(self)),
            "columns": width if names is None else names,
        }
        check_alike(communicator, self._fields)
        # Without a whole number each process would draw a seed of its own.
        self.seed_ = int(communicator.allgather(seed)[0])
        venue = assemble(communicator, solver, list(groups), self.seed_)
        self._fields |= {"seed": self.seed_, "tasks": venue.labels}
        return venue

    def _fit(
        self, X: FloatArray, groups: Groups, targets: Mapping[Label, FloatArray], venue: Venue
    ) -> dict[Label, Head]:
        """Learn from checked rows, set what every fit leaves behind, and return a head a task without classes."""
        solver = make_solver(self.solver)
        layer = HiddenLayer(X.shape[1], self.n_hidden, self.activation, self.weight_scale, self.seed_)
        labels, topology = venue.mine, venue.topology
        with raise_on_all(venue.communicator):
            _check_size(X, targets)
        longest = max(len(groups[t]) for t in labels)
        with calm_blas(longest, layer.width, min(longest, layer.width), always=venue.one_thread):
            reduced = [Reduced.from_rows(layer(X[groups[t]]), targets[t], centre=self.fit_intercept) for t in labels]
            tasks = [Task.from_reduced(task) for task in reduced]
        # A run may be gone on with for longer than was first asked.
        fields = {name: value for name, value in self._fields.items() if name != "solver__max_iter"}
        result = venue.run(solver, tasks, self.seed_, fields)
        if result.stop in (Stop.MAX_ITER, Stop.DIVERGED, Stop.BUDGET) and venue.communicator.rank == 0:
            warnings.warn(f"After {result.n_iter} rounds: {result.stop.value}", ConvergenceWarning, stacklevel=3)

        self._layer = layer
        self._penalty = solver.private_penalty if result.state.mu2 is None else result.state.mu2
        self.tasks_ = np.array(labels)
        self.history_ = result.history
        self.n_iter_ = result.n_iter
        self.n_exchanges_ = result.n_exchanges
        self.stop_ = result.stop
        self.graph_ = topology.to_networkx(venue.labels) if topology is not None else None
        self.certificate_ = result.state.certificate
        self.traffic_ = result.ledger.table(venue.labels) if topology is not None else None
        self.penalties_ = None if result.state.mu1 is None else (result.state.mu1, result.state.mu2)
        self.conditions_ = None
        if topology is not None and isinstance(solver, ProximalADMM) and solver.own_basis:
            stack = Task.stack(tasks)
            self.conditions_ = solver.margins(stack, result.state, venue.degree, topology.n_agents)
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
        if isinstance(alone.solver, Solver) and alone.solver.distributed:
            # A graph or weights given agent by agent speak of the other sites.
            own = alone.solver.get_params()
            kept = ("rank", "mu", "mu1", "mu2", "method", "message_bits")
            alone.solver = type(alone.solver)(**{name: own[name] for name in kept if name in own})
        alone._adopt(self.model_.for_task(task), self.n_features_in_, {})
        return alone

    def gather(self) -> Self | None:
        """Bring the models of all processes together, after a fit with ``runtime="mpi"``. All of them must call this.

        Returns
        -------
        estimator or None
            In the first process an estimator that holds every task, in the others None. A fit in one process gives
            itself.
        """
        check_is_fitted(self, "model_")
        models = [MultiTaskModel.from_bytes(data) for data in self._processes().gather_bytes(self.model_.to_bytes())]
        if not models:
            return None
        heads = {label: head for model in models for label, head in model.heads.items()}
        # A basis that all share is one again.
        first = heads[min(heads)].U
        shared = first is not None and all(
            np.array_equal(first, head.U) for head in heads.values() if head.U is not None
        )
        whole = {t: replace(heads[t], U=first) if shared else heads[t] for t in sorted(heads)}
        gathered: Self = clone(self)
        gathered._adopt(replace(self.model_, heads=whole), self.n_features_in_, self.extra_)
        for name in _OF_ALL:
            setattr(gathered, name, getattr(self, name))
        return gathered

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
        del self._layer, self._penalty, self._fields


def _check_size(X: FloatArray, targets: Mapping[Label, FloatArray]) -> None:
    largest = max(float(np.abs(X).max()), *(float(np.abs(T).max()) for T in targets.values()))
    if largest > _LARGEST:
        raise ElmeshError(
            f"The data hold numbers as large as {largest:.3g}, whose squares overflow; bring inputs and targets to "
            "a scale of one or so."
        )


def _flat(description: Mapping[str, Any]) -> dict[str, Any]:
    """Name a solver's parameters as scikit-learn does, beside the estimator's own."""
    solver = description["solver"]
    if not isinstance(solver, Mapping):
        return dict(description)
    own = {f"solver__{name}": value for name, value in solver["parameters"].items()}
    return {**description, "solver": solver["solver"], **own}
