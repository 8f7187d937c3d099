"""Did it help, and whom? The errors of each task alone, together and pooled, on rows that were left out.

Each row is predicted by weights that were fitted without it: by the fit of all tasks together; by one model of all
rows, in which tasks do not differ; and by a fit of its task alone. The first two have a few variances, which one row
hardly moves, so that the errors follow from one fit in closed form (:mod:`elmesh.math.left_out`). Not so alone, where
each task has variances of its own: there these are found again without the row, and up to a tenth of the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from elmesh.data.features import FeatureMap
from elmesh.data.statistics import SiteRows
from elmesh.data.tasks import Groups
from elmesh.errors import ElmeshError
from elmesh.estimators.common import CommonPart
from elmesh.estimators.head import Head
from elmesh.estimators.model import MultiTaskModel
from elmesh.math.intervals import paired_change
from elmesh.math.left_out import left_out_errors
from elmesh.math.random_effects import site_batches
from elmesh.run import RunConfig, run_local
from elmesh.solvers.base import GroupedFeatures
from elmesh.solvers.local_elm import local_variances, local_weights
from elmesh.solvers.mesh_elm import MeshELM
from elmesh.solvers.state import MixedEffects
from elmesh.text import count, listed
from elmesh.typing import FloatArray, IndexArray, Label

__all__ = ["SiteGains", "TaskGain", "format_error", "measure_gains"]

# Most names that a sentence lists.
_MOST_NAMES = 5
# An interval of more than this share of the error to either side says nothing.
_WIDE = 0.1
# Fewest rows of which an interval is known well enough.
_FEWEST = 5
# Parts of a task's rows that are left out together where each task is alone.
_PARTS = 10
# The change of -2 log evidence at which their search ends.
_SETTLED = 0.1
# Features and targets of a task.
Rows = tuple[FloatArray, FloatArray]


@dataclass(frozen=True)
class TaskGain:
    """What one task gains by learning together.

    Parameters
    ----------
    task, rows
        The task, and its number of rows.
    alone, together, pooled : float
        The error on rows left out: root mean square, or the share of wrong classes. ``pooled`` is None where the rows
        of other tasks are not here.
    low, high : float
        The interval of the error together less the error alone.
    shares : tuple of float
        How much of the predictions is common, shared and private.
    """

    task: Label
    rows: int
    alone: float
    together: float
    pooled: float | None
    low: float
    high: float
    shares: tuple[float, float, float]

    @property
    def errors(self) -> tuple[float, float, float | None]:
        """The errors alone, together and pooled."""
        return self.alone, self.together, self.pooled

    @property
    def change(self) -> float:
        """The error together less the error alone; below zero is a gain."""
        return self.together - self.alone

    @property
    def clear(self) -> int:
        """-1 for a clear gain, 1 for a clear loss, 0 if neither is clear, or if there are fewer than five rows."""
        if self.rows < _FEWEST:
            return 0
        return -1 if self.high < 0 else int(self.low > 0)

    @property
    def verdict(self) -> str:
        """In words: "gains", "better alone", "as good alone" or, if the interval is wide, "too few rows to tell"."""
        if self.clear:
            return "gains" if self.clear < 0 else "better alone"
        wide = self.rows < _FEWEST or self.high - self.low > 2 * _WIDE * self.alone
        return "too few rows to tell" if wide else "as good alone"

    def to_json(self) -> dict[str, Any]:
        """Return all numbers; an interval that is not known is null."""
        interval = [self.low, self.high]
        return {
            "task": self.task,
            "rows": self.rows,
            "alone": self.alone,
            "together": self.together,
            "pooled": self.pooled,
            "change": self.change,
            "change_interval": interval if np.isfinite(interval).all() else None,
            "clear": self.clear,
            "verdict": self.verdict,
            "shares": dict(zip(("common", "shared", "private"), self.shares, strict=True)),
        }


@dataclass(frozen=True)
class SiteGains:
    """What each task gains by learning together, and all rows; ``unit`` is that of the errors."""

    tasks: tuple[TaskGain, ...]
    overall: TaskGain
    unit: str

    def in_units(self, unit: float) -> SiteGains:
        """Return the same with errors of a single quantity multiplied by its unit."""

        def multiplied(one: TaskGain) -> TaskGain:
            pooled = None if one.pooled is None else unit * one.pooled
            low, high = unit * one.low, unit * one.high
            return replace(one, alone=unit * one.alone, together=unit * one.together, pooled=pooled, low=low, high=high)

        if self.unit != OF_TARGET:
            return self
        return SiteGains(tuple(map(multiplied, self.tasks)), multiplied(self.overall), self.unit)

    def clear(self, sign: int) -> list[TaskGain]:
        """Return the tasks that clearly gain (-1), clearly lose (1), or neither (0)."""
        return [task for task in self.tasks if task.clear == sign]

    def sentence(self) -> str:
        """Return who gains, in one plain sentence.

        Examples
        --------
        >>> none = (1.0, 0.0, 0.0)
        >>> north = TaskGain("north", 50, 2.0, 1.5, 1.8, -0.8, -0.2, none)
        >>> south = TaskGain("south", 9, 2.0, 1.9, 1.8, -0.8, 0.6, none)
        >>> SiteGains((north, south), north, "").sentence()
        '1 of 2 tasks clearly gains by learning together; 1 has too few rows to tell; none is clearly better alone.'
        """
        if len(self.tasks) == 1:
            return _SENTENCES[self.tasks[0].verdict]
        n, found = len(self.tasks), [one.verdict for one in self.tasks]
        gaining, same, unknown = (found.count(one) for one in ("gains", "as good alone", "too few rows to tell"))
        verb = "gain" if gaining > 1 else "gains"
        parts = [f"{gaining or 'None'} of {count(n, 'task')} clearly {verb} by learning together"]
        if same:
            parts.append(f"{same} {'is' if same == 1 else 'are'} as good alone")
        if unknown:
            parts.append(f"{unknown} {'has' if unknown == 1 else 'have'} too few rows to tell")
        worse = [one.task for one in self.tasks if one.verdict == "better alone"]
        names = listed(worse) if len(worse) <= _MOST_NAMES else f"{len(worse)} tasks"
        parts.append(f"clearly better alone: {names}" if worse else "none is clearly better alone")
        return f"{'; '.join(parts)}."

    @property
    def table(self) -> pd.DataFrame:
        """The numbers, a row per task."""
        rows = [one.to_json() for one in self.tasks]
        fields = ("rows", "alone", "together", "pooled", "change")
        table = pd.DataFrame([[row[name] for name in fields] for row in rows], columns=list(fields))
        table["low"], table["high"] = [one.low for one in self.tasks], [one.high for one in self.tasks]
        for k, name in enumerate(("common", "shared", "private")):
            table[name] = [one.shares[k] for one in self.tasks]
        table.index = pd.Index([one.task for one in self.tasks], name="task")
        return table

    def to_json(self) -> dict[str, Any]:
        """Return all numbers, and the sentence."""
        return {
            "sentence": self.sentence(),
            "unit": self.unit,
            "overall": {name: value for name, value in self.overall.to_json().items() if name != "task"},
            "tasks": [task.to_json() for task in self.tasks],
        }


# The sentence on a single task.
_SENTENCES = {
    "gains": "Learning together is clearly better than alone.",
    "better alone": "Learning alone is clearly better than together.",
    "as good alone": "Learning together is as good as alone.",
    "too few rows to tell": "There are too few rows to tell whether learning together is better than alone.",
}
#: The units of errors: of classes, of one quantity, and of several.
WRONG, OF_TARGET, OF_SEVERAL = "share of wrong classes", "units of the target", "standard deviations"


def format_error(error: float | None, unit: str) -> str:
    """Return an error as text, a dash if it is not known.

    Examples
    --------
    >>> format_error(0.0312345, "units of the target"), format_error(0.125, WRONG)
    ('0.0312', '12.5 %')
    """
    if error is None:
        return "–"
    return f"{100 * error:.3g} %" if unit == WRONG else f"{error:,.3g}"


def measure_gains(
    model: MultiTaskModel,
    X: FloatArray,
    groups: Groups,
    targets: Mapping[Label, FloatArray],
    learned: Mapping[Label, FloatArray],
    noise_floor: float,
    *,
    pooled: bool,
) -> SiteGains:
    """Return what each task gains, from the rows of the fit; and errors of one model of all rows, if they are here.

    Parameters
    ----------
    model : MultiTaskModel
        The fit of all tasks.
    X, groups
        All inputs, and the rows of each task.
    targets, learned : mapping of ndarray
        Targets of each task: the true ones, and as they were learned from.
    noise_floor : float
        Least variance of noise, as a share of the targets'.
    """
    common, layer = model.common, model.layer
    if common is None or not isinstance(layer, FeatureMap):
        raise ElmeshError("Gains are known of models with a common part; fit with mesh-elm's defaults.")
    labels = list(groups)
    rows = [(layer(X[groups[t]]), learned[t] - common.t_mean) for t in labels]
    alone = _errors_alone(rows, layer.groups, noise_floor)
    whole = _pooled_fit(rows, layer.groups, noise_floor) if pooled else None
    shares = model.part_shares(X, groups)
    several = model.kind == "regression" and common.W.shape[1] > 1
    scale = np.std(np.concatenate(list(targets.values())), axis=0) if several else np.ones(common.W.shape[1])
    scale = np.where(scale > 0, scale, 1.0)
    found, every, squared = [], [], model.kind == "regression"
    for k, t in enumerate(labels):
        (Phi, T), head = rows[k], model.heads[t]
        errors = [alone[k], _errors_together(Phi, T, common, head, layer)]
        if whole is not None:
            errors.append(left_out_errors(Phi, T, np.zeros((len(Phi), 0)), whole.W, whole.S))
        # Predictions are compared with the true targets.
        losses = [_losses((error + targets[t] - learned[t]) / scale, targets[t], model, head) for error in errors]
        found.append(_gain(t, losses, shares[t], squared=squared))
        every.append(losses)
    unit = OF_SEVERAL if several else OF_TARGET
    of_all = np.average([shares[t] for t in labels], axis=0, weights=[len(groups[t]) for t in labels])
    overall = _gain("all rows", [np.concatenate(one) for one in zip(*every, strict=True)], of_all, squared=squared)
    return SiteGains(tuple(found), overall, unit if squared else WRONG)


def _errors_alone(rows: Sequence[Rows], groups: IndexArray, noise_floor: float) -> list[FloatArray]:
    """Return errors of rows left out of the fit of their task alone, in up to ten parts."""
    sites = [SiteRows.from_rows(*own) for own in rows]
    start = np.empty((len(sites), int(groups.max()) + 1))
    for batch in site_batches(sites, groups):
        start[batch.index] = local_variances(batch, noise_floor, settled=_SETTLED)
    errors = [T.copy() for _, T in rows]
    parts = [np.random.default_rng(0).permutation(len(T)) % _PARTS for _, T in rows]
    for k in range(_PARTS):
        # A task of one row is left without any: then nothing is predicted but the mean of all.
        found = [t for t, part in enumerate(parts) if np.any(part == k) and np.any(part != k)]
        rest = [SiteRows.from_rows(*(x[parts[t] != k] for x in rows[t])) for t in found]
        for batch in site_batches(rest, groups) if rest else ():
            own = [found[j] for j in batch.index.tolist()]
            weights = local_weights(batch, local_variances(batch, noise_floor, start[own], _SETTLED))
            for t, W in zip(own, weights, strict=True):
                left_out = parts[t] == k
                errors[t][left_out] -= rows[t][0][left_out] @ W
    return errors


def _pooled_fit(rows: Sequence[Rows], groups: IndexArray, noise_floor: float) -> MixedEffects:
    """Return the weights of one model of all rows, and their covariance."""
    sites = [SiteRows.from_rows(*own) for own in rows]
    features = GroupedFeatures(groups, noise_floor)
    solver = MeshELM(private=False, graph=None, certify=False)
    effects = run_local(solver, sites, None, 0, RunConfig(), features=features).solution.effects
    if effects is None:
        raise TypeError("A fit of all rows lacks its common part.")
    return effects


def _errors_together(Phi: FloatArray, T: FloatArray, common: CommonPart, head: Head, layer: FeatureMap) -> FloatArray:
    """Return errors of rows left out of the fit of all tasks; the basis U, if any, stays as it is."""
    w = float(np.exp(head.log_w))
    if head.log_v is not None:  # a private fit: W is known up to the noise of its release, and does not depend on a row
        covariance = np.diag(np.exp(head.log_v)[layer.groups]) + w * common.S
        values, vectors = np.linalg.eigh(covariance)
        return left_out_errors(Phi, T, Phi @ (vectors * np.sqrt(np.maximum(values, 0.0))), common.W)
    B = Phi * np.exp(common.log_v / 2)[layer.groups]
    if common.U is not None:
        B = np.hstack([B, np.sqrt(w / common.mu2) * (Phi @ common.U)])
    return left_out_errors(Phi, T, B, common.W, common.S, w)


def _losses(errors: FloatArray, T: FloatArray, model: MultiTaskModel, head: Head) -> FloatArray:
    """Return the loss of each row: its mean square, or whether its class is wrong."""
    if model.kind == "regression":
        return np.asarray(np.mean(errors**2, axis=1))
    columns = np.arange(T.shape[1])
    if model.classes is not None and head.classes is not None:
        columns = np.searchsorted(model.classes, head.classes)
    chosen = columns[np.argmax((T - errors)[:, columns], axis=1)]
    return np.asarray(chosen != np.argmax(T, axis=1), dtype=np.float64)


def _gain(task: Label, losses: Sequence[FloatArray], shares: FloatArray, *, squared: bool) -> TaskGain:
    """Return the gain of a task from the losses of its rows alone, together and, if they are known, pooled."""
    errors = [float(np.sqrt(one.mean())) if squared else float(one.mean()) for one in losses]
    alone, together = errors[:2]
    pooled = errors[2] if len(errors) > 2 else None
    change, half = paired_change(losses[0], losses[1], squared=squared)
    common, shared, private = shares.tolist()
    return TaskGain(
        task, len(losses[0]), alone, together, pooled, change - half, change + half, (common, shared, private)
    )
