"""What a fitted estimator reports and saves: its facts, its card and its folder; and the models of many processes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.utils.validation import check_is_fitted

from elmesh.data.features import FeatureMap, Features
from elmesh.errors import ElmeshError
from elmesh.estimators.card import model_card
from elmesh.estimators.common import CommonPart
from elmesh.estimators.effects import variance_table
from elmesh.estimators.gains import SiteGains
from elmesh.estimators.head import Head
from elmesh.estimators.model import MultiTaskModel
from elmesh.estimators.notebook import task_table
from elmesh.estimators.parameters import describe
from elmesh.estimators.updates import UpdateMethods
from elmesh.privacy.report import PrivacyReport
from elmesh.run.config import RunConfig
from elmesh.run.resolve_backend import resolve_backend
from elmesh.solvers import make_solver
from elmesh.tables import TableSchema
from elmesh.typing import FloatArray, Label, StrPath

__all__ = ["FittedMethods"]

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


class FittedMethods(UpdateMethods):
    """What a fitted estimator reports and saves."""

    _kind: Literal["classification", "regression"]
    model_: MultiTaskModel
    privacy_: PrivacyReport | None
    U_: FloatArray | None
    W_: FloatArray | None
    variances_: pd.DataFrame | None
    noise_: dict[Label, FloatArray] | None

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
        # Statistics stay in the processes that have the rows.
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
        # A run that ended before its first round has no history, and may have sent something all the same.
        sent = 0 if self.traffic_ is None else int(self.traffic_["bytes"].sum())
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
            "bytes": int(history["bytes"].iloc[-1]) if len(history) else sent,
            "objective": float(history["objective"].iloc[-1]) if len(history) else None,
            "stop": self.stop_.name,
            "advice": self.stop_.value,
        }

    def _repr_html_inner(self) -> str:
        """Return the diagram of scikit-learn and, if the estimator is fitted, a table of its tasks."""
        diagram: str = super()._repr_html_inner()
        return diagram + task_table(self) if hasattr(self, "model_") else diagram

    def _repr_mimebundle_(self, **options: Any) -> dict[str, str]:
        """Return what notebooks show."""
        bundle: dict[str, str] = super()._repr_mimebundle_(**options)
        return {**bundle, "text/html": self._repr_html_inner()} if "text/html" in bundle else bundle

    def save(
        self,
        path: StrPath,
        *,
        overwrite: bool = False,
        extra: Mapping[str, Any] | None = None,
        statistics: bool = True,
    ) -> None:
        """Write the fitted model to a folder: ``model.json`` and ``weights.safetensors``, and a card, ``README.md``.

        Parameters
        ----------
        path : path-like
            A folder that does not exist yet.
        overwrite : bool, default=False
            Replace a model that is already there.
        extra : mapping, optional
            Plain JSON that is saved with the model; :func:`elmesh.load` returns it as ``extra_``.
        statistics : bool, default=True
            Whether to save in ``statistics/`` what :meth:`partial_fit` and :meth:`forget` need of the rows. Only the
            owner of the folder can read it; it contains rows, and predictions do not need it.
        """
        check_is_fitted(self, "model_")
        content = self.extra_ if extra is None else dict(extra)
        if self.table_ is not None:
            content = {"table": self.table_.to_json(), **content}
        table = None
        with suppress(ElmeshError):  # a program may save other content under this name
            table = TableSchema.from_json(content.get("table"))
        kept = self._statistics() if statistics else None
        card = self._card(table=table, statistics=kept is not None)
        parts = None if kept is None else kept.to_parts()
        self.model_.save(
            Path(path), overwrite=overwrite, estimator=describe(self), extra=content, card=card, statistics=parts
        )

    def model_card(
        self, gains: SiteGains | None = None, table: TableSchema | None = None, notes: Sequence[str] = ()
    ) -> str:
        """Return what is to be known about the model, in Markdown: what it predicts, and how confidential it is.

        With ``gains`` (:meth:`site_gains`) it states the errors on rows left out. ``table`` describes the columns, if
        the estimator was fitted on an array that was made from a table; ``notes`` are what is to be checked about it.
        """
        check_is_fitted(self, "model_")
        return self._card(gains, table, notes, statistics=self._statistics() is not None)

    def _card(
        self,
        gains: SiteGains | None = None,
        table: TableSchema | None = None,
        notes: Sequence[str] = (),
        *,
        statistics: bool,
    ) -> str:
        privacy: PrivacyReport | None = getattr(self, "privacy_", None)
        of = self.model_, table or self.table_, describe(self)
        return model_card(*of, privacy, gains, notes, statistics=statistics)

    def _adopt(self, model: MultiTaskModel, n_features: int, extra: dict[str, Any]) -> None:
        """Become fitted from a model alone; the columns of a table are found by their names then."""
        self.model_ = model
        self.extra_ = extra
        self.statistics_ = None
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

    def _set_effects(self, layer: Features, heads: Mapping[Label, Head], common: CommonPart) -> None:
        """Set what is known of the common part and of the noise of each task."""
        self.W_ = common.W
        if isinstance(layer, FeatureMap):
            self.variances_ = variance_table(layer, common, heads.values())
        self.noise_ = {t: np.sqrt(common.s2 * np.exp(-head.log_w)) for t, head in heads.items()}
