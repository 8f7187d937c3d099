"""What the classifier and the regressor share: from checked rows to a fitted model, and its saving."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from elmesh.errors import ElmeshError
from elmesh.features import HiddenLayer
from elmesh.graph import make_topology
from elmesh.head import Head
from elmesh.labels import row
from elmesh.model import MultiTaskModel
from elmesh.parameters import describe
from elmesh.runtime import Result, Stop, run_stacked
from elmesh.solvers import Solver, make_solver
from elmesh.solvers.admm import ProximalADMM
from elmesh.statistics import Reduced, Task
from elmesh.tasks import Groups, match_tasks
from elmesh.threads import calm_blas

__all__ = ["FloatArray", "Label", "MultiTaskELM"]

FloatArray = NDArray[np.float64]
Label = str | int

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

        topology = make_topology(solver.graph, labels, self.seed_) if solver.distributed else None
        result = run_stacked(solver, stacked, topology, self.seed_)
        if result.stop in (Stop.MAX_ITER, Stop.DIVERGED, Stop.BUDGET):
            warnings.warn(f"After {result.n_iter} rounds: {result.stop.value}", ConvergenceWarning, stacklevel=3)

        self._layer = layer
        self._penalty = solver.private_penalty if result.state.mu2 is None else result.state.mu2
        self.tasks_ = np.array(labels)
        self.history_ = result.history
        self.n_iter_ = result.n_iter
        self.n_exchanges_ = result.n_exchanges
        self.stop_ = result.stop
        self.graph_ = topology.to_networkx(labels) if topology is not None else None
        self.certificate_ = result.state.certificate
        self.traffic_ = result.ledger.table(labels) if topology is not None else None
        self.penalties_ = None if result.state.mu1 is None else (result.state.mu1, result.state.mu2)
        self.conditions_ = None
        if topology is not None and isinstance(solver, ProximalADMM) and solver.own_basis:
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
        if isinstance(alone.solver, Solver) and alone.solver.distributed:
            # A graph or weights given agent by agent speak of the other sites.
            own = alone.solver.get_params()
            kept = ("rank", "mu", "mu1", "mu2", "method", "message_bits")
            alone.solver = type(alone.solver)(**{name: own[name] for name in kept if name in own})
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
        del self._layer, self._penalty
