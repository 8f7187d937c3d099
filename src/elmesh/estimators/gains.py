"""Did it help, and whom? The errors of each task alone, together and pooled, on rows that were left out.

Each row is predicted by weights that were fitted without it: by the fit of all tasks together; by one model of all
rows, in which tasks do not differ; and by a fit of its task alone. The first two have a few variances, which one row
hardly moves, so that the errors follow from one fit in closed form (:mod:`elmesh.math.left_out`). Not so alone, where
each task has variances of its own: there these are found again without the row and, in tasks with many rows, up to a
tenth of the others. Of a task with very many rows a sample is predicted, and variances are those of all rows,
alone as well.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from elmesh.data.features import FeatureMap
from elmesh.data.row_keys import row_keys
from elmesh.data.site_statistics import SiteStatistics
from elmesh.data.statistics import SiteRows
from elmesh.errors import ElmeshError
from elmesh.estimators.common import CommonPart
from elmesh.estimators.head import Head
from elmesh.estimators.model import MultiTaskModel
from elmesh.math.class_link import linked
from elmesh.math.intervals import paired_change
from elmesh.math.left_out import FittedRows, left_out_errors
from elmesh.math.random_effects import site_batches
from elmesh.run import RunConfig, run_local
from elmesh.solvers.base import GroupedFeatures
from elmesh.solvers.local_elm import local_variances, local_weights
from elmesh.solvers.mesh_elm import MeshELM
from elmesh.solvers.state import MixedEffects
from elmesh.text import count, listed
from elmesh.typing import FloatArray, IndexArray, Label

__all__ = ["FEWEST_ROWS", "WRONG", "GainRows", "SiteGains", "TaskGain", "format_error", "measure_gains"]

# Most names that a sentence lists.
_MOST_NAMES = 5
# An interval that reaches further than this share of the error to either side is too wide for a statement.
_WIDE = 0.1
#: Fewest rows of which an interval is known well enough.
FEWEST_ROWS = 5
# Most numbers in the features of all rows that are predicted, and fewest rows of a task.
_MOST_NUMBERS, _FEWEST_SAMPLED = 20_000_000, 200
# Parts of a task's rows that are left out together where each task is alone, and divisions into such parts, over which
# errors are averaged: the variances of a task depend on which rows are left out with a row. In a small task each row is
# left out by itself.
_PARTS, _DIVISIONS = 10, 5
# Of many tasks there are fewer divisions, so that there are no more fits than this.
_MOST_FITS = 20_000
# The change of -2 log evidence at which their search ends.
_SETTLED = 0.1


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
        if self.rows < FEWEST_ROWS:
            return 0
        return -1 if self.high < 0 else int(self.low > 0)

    @property
    def verdict(self) -> str:
        """In words: "gains", "better alone", "as good alone" or, if the interval is wide, "too few rows to tell"."""
        if self.clear:
            return "gains" if self.clear < 0 else "better alone"
        wide = self.rows < FEWEST_ROWS or max(-self.low, self.high) > _WIDE * self.alone
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
        """Return whether it helped, and whom, in plain words.

        Examples
        --------
        >>> none = (1.0, 0.0, 0.0)
        >>> north = TaskGain("north", 50, 2.0, 1.5, 1.8, -0.8, -0.2, none)
        >>> south = TaskGain("south", 9, 2.0, 1.9, 1.8, -0.8, 0.6, none)
        >>> gains = SiteGains((north, south), north, "")
        >>> gains.overall_sentence()
        'Over all rows learning together lowers the error clearly, from 2 to 1.5.'
        >>> gains.sites_sentence()
        '1 of 2 sites clearly gains by learning together; 1 has too few rows to tell; none is clearly better alone.'
        """
        if len(self.tasks) == 1:
            return _SENTENCES[self.tasks[0].verdict]
        return f"{self.overall_sentence()} {self.sites_sentence()}"

    def overall_sentence(self) -> str:
        """Return what learning together does to the error over all rows, and whether one model for all is as good."""
        one = self.overall
        alone, together, pooled = (format_error(error, self.unit) for error in one.errors)
        text = {
            -1: f"Over all rows learning together lowers the error clearly, from {alone} to {together}",
            0: f"Over all rows the errors together and alone do not differ clearly ({together} and {alone})",
            1: f"Over all rows learning together raises the error clearly, from {alone} to {together}",
        }[one.clear]
        if one.pooled is not None and one.pooled <= one.together:
            text += f"; one model for all sites is as good ({pooled})"
        return f"{text}."

    def sites_sentence(self) -> str:
        """Return how many sites gain, are as good alone, or are better alone."""
        n, found = len(self.tasks), [one.verdict for one in self.tasks]
        gaining, same, unknown = (found.count(one) for one in ("gains", "as good alone", "too few rows to tell"))
        verb = "gain" if gaining > 1 else "gains"
        parts = [f"{gaining or 'None'} of {count(n, 'site')} clearly {verb} by learning together"]
        if same:
            parts.append(f"{same} {'is' if same == 1 else 'are'} as good alone")
        if unknown:
            parts.append(f"{unknown} {'has' if unknown == 1 else 'have'} too few rows to tell")
        worse = [one.task for one in self.tasks if one.verdict == "better alone"]
        names = listed(worse) if len(worse) <= _MOST_NAMES else f"{len(worse)} sites"
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
        table["verdict"] = [one.verdict for one in self.tasks]
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


@dataclass(frozen=True, eq=False)
class GainRows:
    """Rows of a task that are predicted without themselves.

    Parameters
    ----------
    X : ndarray of shape (n, k)
        Inputs.
    T : ndarray of shape (n, d)
        Targets as they were learned from, less the common mean.
    truth : ndarray of shape (n, d)
        The true targets, less the common mean.
    weights : ndarray of shape (n,)
        How often each row counts.
    every : SiteRows or None
        All rows of the task, reduced, if these are some of them.
    n_rows : int
        Number of all rows.
    """

    X: FloatArray
    T: FloatArray
    truth: FloatArray
    weights: FloatArray
    every: SiteRows | None
    n_rows: int

    @classmethod
    def of_site(cls, site: SiteStatistics, layer: FeatureMap, scale: FloatArray, n_sites: int) -> GainRows:
        """Return the rows that are kept of one of so many sites, or some of them; ``scale`` is the unit of targets."""
        # They are in the order of their keys, which are random.
        rows = site.rows[: max(_FEWEST_SAMPLED, _MOST_NUMBERS // (n_sites * layer.width))]
        T, every = rows.T * scale, None
        if len(rows) < site.n_rows:
            whole = SiteRows.from_reduced(site.reduced(layer, centre=False))
            every = replace(whole, T=whole.T * scale, rest=whole.rest * scale**2)
        return cls(rows.X, T, T, rows.weights, every, site.n_rows)


@dataclass(frozen=True, eq=False)
class _Mapped:
    """Rows of a task with their features."""

    rows: GainRows
    Phi: FloatArray

    @cached_property
    def site(self) -> SiteRows:
        """All rows of the task, reduced."""
        return self.rows.every or SiteRows.from_rows(self.Phi, self.rows.T, self.rows.weights)

    def without(self, left_out: NDArray[np.bool_]) -> SiteRows:
        """Return the other rows, reduced."""
        return SiteRows.from_rows(self.Phi[~left_out], self.rows.T[~left_out], self.rows.weights[~left_out])

    def left_out_errors(
        self, root: FloatArray, W: FloatArray | None = None, S: FloatArray | None = None, weight: float = 1.0
    ) -> FloatArray:
        """Return the errors of rows without themselves, for a root (p, q) of the prior covariance of own weights."""
        among = None
        if self.rows.every is not None:
            every = self.rows.every
            among = FittedRows(every.Phi, every.T, every.Phi @ root)
        return left_out_errors(
            self.Phi, self.rows.T, self.Phi @ root, W, S, weight, row_weights=self.rows.weights, among=among
        )


def measure_gains(
    model: MultiTaskModel, rows: Mapping[Label, GainRows], noise_floor: float, *, pooled: bool
) -> SiteGains:
    """Return what each task gains, from the rows of the fit; and errors of one model of all rows, if they are here.

    Parameters
    ----------
    model : MultiTaskModel
        The fit of all tasks.
    rows : mapping of GainRows
        The rows of each task.
    noise_floor : float
        Least variance of noise, as a share of the targets'.
    pooled : bool
        Whether to compare with one model of all rows.
    """
    common, layer = model.common, model.layer
    if common is None or not isinstance(layer, FeatureMap):
        raise ElmeshError("Gains are known of models with a common part; fit with mesh-elm's defaults.")
    labels = list(rows)
    mapped = [_Mapped(rows[t], layer(rows[t].X)) for t in labels]
    alone = _errors_alone(mapped, layer.groups, noise_floor)
    whole = _pooled_fit(mapped, layer.groups, noise_floor) if pooled else None
    several = model.kind == "regression" and common.W.shape[1] > 1
    scale = np.std(np.concatenate([one.truth for one in rows.values()]), axis=0) if several else np.ones(1)
    scale = np.where(scale > 0, scale, 1.0)
    found, every, squared = [], [], model.kind == "regression"
    shares = {t: model.part_shares(one.X, {t: np.arange(len(one.X))})[t] for t, one in rows.items()}
    for k, t in enumerate(labels):
        one, head = mapped[k], model.heads[t]
        errors = [alone[k], _errors_together(one, common, head, layer)[None]]
        if whole is not None:
            errors.append(one.left_out_errors(np.zeros((layer.width, 0)), whole.W, whole.S)[None])
        truth = one.rows.truth
        # Predictions are compared with the true targets.
        target, clipped = truth + common.t_mean, truth - one.rows.T
        # How scores become probabilities was found for the model of all tasks.
        losses = [
            np.mean([_losses((error + clipped) / scale, target, model, head, link) for error in divisions], axis=0)
            for divisions, link in zip(errors, (None, head.link, None), strict=False)
        ]
        found.append(_gain(t, one.rows.n_rows, losses, one.rows.weights, shares[t], squared=squared))
        every.append(losses)
    unit = OF_SEVERAL if several else OF_TARGET
    # Kept rows of a large task stand for all of its rows.
    weights = [one.weights * (one.n_rows / len(one.weights)) for one in rows.values()]
    of_all = np.average([shares[t] for t in labels], axis=0, weights=[own.sum() for own in weights])
    losses = [np.concatenate(one) for one in zip(*every, strict=True)]
    n_rows = sum(one.n_rows for one in rows.values())
    overall = _gain("all rows", n_rows, losses, np.concatenate(weights), of_all, squared=squared)
    return SiteGains(tuple(found), overall, unit if squared else WRONG)


def _errors_alone(tasks: Sequence[_Mapped], groups: IndexArray, noise_floor: float) -> list[FloatArray]:
    """Return errors (R, n, d) of rows left out of the fit of their task alone, in R divisions into up to ten parts."""
    n_divisions = min(_DIVISIONS, max(1, _MOST_FITS // (_PARTS * len(tasks))))
    parts = [_divisions(one.rows, n_divisions) for one in tasks]
    errors = [np.repeat(one.rows.T[None], len(own), axis=0) for one, own in zip(tasks, parts, strict=True)]
    sampled = [t for t, own in enumerate(parts) if not len(own)]
    for batch in site_batches([tasks[t].site for t in sampled], groups) if sampled else ():
        found = local_variances(batch, noise_floor, settled=_SETTLED)
        for j, log_v in zip(batch.index.tolist(), found, strict=True):
            t = sampled[j]
            errors[t] = tasks[t].left_out_errors(np.diag(np.exp(log_v / 2)[groups]))[None]
    for r, k in product(range(n_divisions), range(_PARTS * n_divisions)):
        left_out = {t: own[r] == k for t, own in enumerate(parts) if r < len(own)}
        # A task of one row is left without any: then nothing is predicted but the mean of all.
        some = [t for t, rows in left_out.items() if rows.any() and not rows.all()]
        rest = [tasks[t].without(left_out[t]) for t in some]
        for batch in site_batches(rest, groups) if rest else ():
            members = [some[j] for j in batch.index.tolist()]
            # From variances of all rows the search would end near these, which have seen the rows left out.
            weights = local_weights(batch, local_variances(batch, noise_floor, settled=_SETTLED))
            for t, W in zip(members, weights, strict=True):
                errors[t][r, left_out[t]] -= tasks[t].Phi[left_out[t]] @ W
    return errors


def _divisions(rows: GainRows, n_divisions: int) -> IndexArray:
    """Return the part of every row in each division (R, n): none of a sample, one where each row is left out by itself.

    Rows are divided by their content, so that their order does not matter.
    """
    n = len(rows.X)
    if rows.every is not None:
        return np.empty((0, n), dtype=np.intp)
    if n <= _PARTS * n_divisions:
        return np.arange(n, dtype=np.intp)[None]
    content = np.hstack([rows.X, rows.truth])
    keys = [row_keys(content, seed) for seed in range(n_divisions)]
    return np.array([np.argsort(np.argsort(own, kind="stable")) % _PARTS for own in keys], dtype=np.intp)


def _pooled_fit(tasks: Sequence[_Mapped], groups: IndexArray, noise_floor: float) -> MixedEffects:
    """Return the weights of one model of all rows, and their covariance."""
    features = GroupedFeatures(groups, noise_floor)
    solver = MeshELM(private=False, graph=None, certify=False)
    sites = [one.site for one in tasks]
    effects = run_local(solver, sites, None, 0, RunConfig(), features=features).solution.effects
    if effects is None:
        raise TypeError("A fit of all rows lacks its common part.")
    return effects


def _errors_together(task: _Mapped, common: CommonPart, head: Head, layer: FeatureMap) -> FloatArray:
    """Return errors of rows left out of the fit of all tasks; the basis U, if any, stays as it is."""
    w = float(np.exp(head.log_w))
    if head.log_v is not None:  # a private fit: W is known up to the noise of its release, and does not depend on a row
        covariance = np.diag(np.exp(head.log_v)[layer.groups]) + w * common.S
        values, vectors = np.linalg.eigh(covariance)
        return task.left_out_errors(vectors * np.sqrt(np.maximum(values, 0.0)), common.W)
    root = np.diag(np.exp(common.log_v / 2)[layer.groups])
    if common.U is not None:
        root = np.hstack([root, np.sqrt(w / common.mu2) * common.U])
    return task.left_out_errors(root, common.W, common.S, w)


def _losses(
    errors: FloatArray, T: FloatArray, model: MultiTaskModel, head: Head, link: FloatArray | None
) -> FloatArray:
    """Return the loss of each row: its mean square, or whether its class is wrong."""
    if model.kind == "regression":
        return np.asarray(np.mean(errors**2, axis=1))
    columns = np.arange(T.shape[1])
    if model.classes is not None and head.classes is not None:
        columns = np.searchsorted(model.classes, head.classes)
    chosen = columns[np.argmax(linked((T - errors)[:, columns], link), axis=1)]
    return np.asarray(chosen != np.argmax(T, axis=1), dtype=np.float64)


def _gain(
    task: Label, n_rows: int, losses: Sequence[FloatArray], weights: FloatArray, shares: FloatArray, *, squared: bool
) -> TaskGain:
    """Return the gain of a task from the losses of its rows alone, together and, if they are known, pooled."""
    means = [float(np.average(one, weights=weights)) for one in losses]
    errors = [float(np.sqrt(mean)) if squared else mean for mean in means]
    alone, together = errors[:2]
    pooled = errors[2] if len(errors) > 2 else None
    # Rows that stand for others do not make the interval narrower.
    counted = weights * min(1.0, len(weights) / n_rows)
    change, half = paired_change(losses[0], losses[1], squared=squared, weights=counted)
    common, shared, private = shares.tolist()
    return TaskGain(task, n_rows, alone, together, pooled, change - half, change + half, (common, shared, private))
