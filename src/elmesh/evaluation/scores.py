"""The scores of a model on rows with known targets, per site, and how well its uncertainty is stated.

Errors are compared with a baseline that ignores the columns: the mean, or the most frequent class, of the site's
training rows.
For a regression, 90 % of the targets should be within the intervals that are to hold 90 %; for classes, of rows with a
probability of about 0.8, about 80 % should be of that class.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import roc_auc_score

from elmesh.math.calibration import log_losses
from elmesh.math.intervals import error_interval
from elmesh.tables import TableSchema
from elmesh.text import count, listed
from elmesh.typing import FloatArray

__all__ = ["Bin", "Evaluation", "Group", "Scores", "evaluate_rows"]

Scores = dict[str, float]
#: Shares of targets that intervals should hold.
LEVELS = (0.5, 0.8, 0.9, 0.95)
# Fewest rows of which an error has an interval; most bins of probabilities, and fewest rows in each.
_FEWEST, _BINS, _IN_BIN = 5, 10, 30
# Sites with fewer rows are shown in one line, if there are more sites than this.
_FEW_ROWS, _FEW_SITES = 5, 10


@dataclass(frozen=True)
class Group:
    """Rows that are scored together, such as those of a site: scores by target.

    Scores are ``error_percent``, or ``r2`` and ``rmse``, those of the baseline, and the interval of the error,
    ``error_low`` and ``error_high``.
    """

    name: str
    rows: int
    scores: dict[str, Scores]

    def error(self, target: str, of: str = "") -> float:
        """Return the error of a target; that of the baseline with "baseline_"."""
        found = self.scores[target]
        return found.get(f"{of}error_percent", found.get(f"{of}rmse", math.nan))

    def to_json(self) -> dict[str, Any]:
        """Return the scores of a single target, or those of several by name."""
        several = len(self.scores) > 1
        return {"rows": self.rows, **({"targets": self.scores} if several else next(iter(self.scores.values())))}


@dataclass(frozen=True)
class Bin:
    """Rows of about the same probability: its mean, and how often it came true, with the interval."""

    rows: int
    probability: float
    share: float
    low: float
    high: float


@dataclass(frozen=True)
class ClassScores:
    """How rows of a class were predicted: their number, the shares observed and predicted, and the rows found.

    ``predicted`` is the mean probability of the class over all rows, NaN for a class that the model does not know;
    ``found`` is the number of its rows that were predicted to be of it, and ``named`` that of all rows that were.
    """

    name: Any
    rows: int
    observed: float
    predicted: float
    found: int
    named: int


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Scores of all rows and of each site, and the calibration of the model.

    ``coverage`` has for each target the share within the intervals that should hold 50, 80, 90 and 95 % of them;
    ``confusion`` the number of rows by true class and predicted class.
    """

    kind: str
    overall: Group
    sites: tuple[Group, ...]
    small: Group | None  # sites of few rows, together
    unknown_rows: int
    truth: NDArray[Any]
    predicted: NDArray[Any]
    coverage: dict[str, dict[float, float]] = field(default_factory=dict)
    bins: tuple[Bin, ...] = ()
    classes: tuple[Any, ...] = ()
    confusion: NDArray[np.int64] | None = None
    by_class: tuple[ClassScores, ...] = ()
    probability_scores: Scores = field(default_factory=dict)

    @property
    def targets(self) -> list[str]:
        """Names of the targets."""
        return list(self.overall.scores)

    def shown(self) -> list[Group]:
        """Return sites, the largest error first; those of few rows, if there are many sites, as one at the end."""
        few = self.small is not None
        order = sorted(self.sites, key=lambda site: -site.error(self.targets[0]))
        return [site for site in order if not few or site.rows >= _FEW_ROWS] + ([self.small] if self.small else [])

    def better(self, target: str) -> int:
        """Return how many sites have a smaller error than their baseline."""
        return sum(site.error(target) < site.error(target, "baseline_") for site in self.sites)

    def sentence(self) -> str:
        """Return the error, that of the baseline, and how many sites are better than their baseline."""
        parts = []
        for target in self.targets:
            error, base = (self.overall.error(target, of) for of in ("", "baseline_"))
            if self.kind == "classification":
                text = (
                    f"{error:.3g} % of {count(self.overall.rows, 'row')} are wrong; with the baseline {base:.3g} % are"
                )
            else:
                text = f"the root mean square error of {target} is {error:,.3g}; that of the baseline is {base:,.3g}"
            parts.append(f"{text}. The model is better at {self.better(target)} of {count(len(self.sites), 'site')}")
        missed = [one for one in self.by_class if one.rows and not one.found]
        if missed:
            names, n = listed([one.name for one in missed]), sum(one.rows for one in missed)
            parts.append(f"no row is rightly predicted to be {names}, which {n} {'is' if n == 1 else 'are'}")
        if self.unknown_rows:
            parts.append(f"{self.unknown_rows} of the rows are of sites that the model does not know")
        return " ".join(f"{text[0].upper()}{text[1:]}." for text in parts)

    def to_json(self) -> dict[str, Any]:
        """Return all numbers and the sentence."""
        confusion = None if self.confusion is None else {"classes": list(self.classes), "rows": self.confusion.tolist()}
        return {
            "sentence": self.sentence(),
            "kind": self.kind,
            "unknown_rows": self.unknown_rows,
            **self.overall.to_json(),
            **self.probability_scores,
            "coverage": {
                target: {f"{p:g}": share for p, share in own.items()} for target, own in self.coverage.items()
            },
            "reliability": [vars(one) for one in self.bins],
            "by_class": [vars(one) for one in self.by_class],
            "confusion": confusion,
            "tasks": {site.name: site.to_json() for site in self.sites},
        }


def evaluate_rows(
    model: Any,
    schema: TableSchema,
    tasks: NDArray[Any],
    truth: NDArray[Any],
    predicted: NDArray[Any],
    spread: FloatArray | None = None,
    probabilities: FloatArray | None = None,
) -> Evaluation:
    """Score predictions of rows, in the units of the table.

    ``spread`` has the standard deviations of a regression with a common part, ``probabilities`` those of classes.
    """
    constants = _baseline(model, schema, tasks)

    def score(name: str, rows: NDArray[np.bool_]) -> Group:
        return Group(name, int(rows.sum()), _scores(schema, truth[rows], predicted[rows], constants[rows]))

    known = [task for task in model.tasks_ if (tasks == task).any()]
    sites = tuple(score(str(task), tasks == task) for task in known)
    few = [task for task, site in zip(known, sites, strict=True) if site.rows < _FEW_ROWS]
    small = None
    if len(few) > 1 and len(sites) > _FEW_SITES:
        small = score(f"{len(few)} with fewer than {_FEW_ROWS} rows", np.isin(tasks, few))
    more: dict[str, Any] = {}
    if probabilities is not None:
        more = _calibration(model.classes_, truth, predicted, probabilities)
    elif spread is not None:
        names = [target.name for target in schema.target_columns]
        wide = (abs(truth - predicted) / spread).reshape(len(truth), -1).T
        more = {"coverage": {name: _coverage(own) for name, own in zip(names, wide, strict=True)}}
    overall = score("all", np.ones(len(truth), dtype=np.bool_))
    unknown = int(np.sum(~np.isin(tasks, model.tasks_)))
    return Evaluation(schema.kind, overall, sites, small, unknown, truth, predicted, **more)


def _baseline(model: Any, schema: TableSchema, tasks: NDArray[Any]) -> NDArray[Any]:
    """Return for each row the most frequent class or the mean of the training rows of its site.

    They are those of all training rows for sites with few rows, for unknown ones, and for models that have a common
    part and no statistics of their rows.
    """
    parts = {task: (head.t_mean, head.classes) for task, head in model.model_.heads.items()}
    common, classes = model.model_.common, getattr(model, "classes_", None)
    if common is not None:
        # Means of classes are of all that were declared, also in the model of a task that lacks some of them.
        classes = classes if model.model_.classes is None else model.model_.classes
        means = model.target_means(_FEWEST)
        parts |= dict.fromkeys(tasks.tolist(), (means.pop(None, common.t_mean), classes))
        parts |= {task: (mean, classes) for task, mean in means.items()}
    constants = {task: mean if classes is None else classes[np.argmax(mean)] for task, (mean, classes) in parts.items()}
    return schema.in_units(np.array([constants[task] for task in tasks.tolist()]))


def _scores(
    schema: TableSchema, truth: NDArray[Any], predicted: NDArray[Any], constants: NDArray[Any]
) -> dict[str, Scores]:
    """Return the scores of each target; ``r2`` is NaN if all true values are equal."""
    shape = (len(truth), len(schema.target_columns))
    columns = zip(*(values.reshape(shape).T for values in (truth, predicted, constants)), strict=True)
    squared, found = schema.kind == "regression", {}
    for target, (y, guess, constant) in zip(schema.target_columns, columns, strict=True):
        losses, base = ((y - x) ** 2 if squared else (y != x).astype(np.float64) for x in (guess, constant))
        ends = error_interval(losses, squared=squared) if len(y) >= _FEWEST else (math.nan, math.nan)
        if squared:
            variation = float(np.sum((y - y.mean()) ** 2))
            own = {
                "r2": 1.0 - float(losses.sum()) / variation if variation > 0 else math.nan,
                "rmse": math.sqrt(float(losses.mean())),
                "baseline_rmse": math.sqrt(float(base.mean())),
            }
        else:
            own = {"error_percent": 100 * float(losses.mean()), "baseline_error_percent": 100 * float(base.mean())}
            ends = (100 * ends[0], 100 * ends[1])
        found[target.name] = own | dict(zip(("error_low", "error_high"), ends, strict=True))
    return found


def _coverage(deviations: FloatArray) -> dict[float, float]:
    """Return the share of targets within each interval, given their distances in standard deviations."""
    return {p: float(np.mean(deviations <= NormalDist().inv_cdf((1 + p) / 2))) for p in LEVELS}


def _calibration(
    classes: NDArray[Any], truth: NDArray[Any], predicted: NDArray[Any], probabilities: FloatArray
) -> dict[str, Any]:
    """Return what is known of probabilities: log loss, area under the ROC curve, bins, and confused classes."""
    known = np.isin(truth, classes)
    codes = np.searchsorted(classes, np.where(known, truth, classes[0]))
    of_truth = np.where(known, probabilities[np.arange(len(truth)), codes], 0.0)
    found = {"log_loss": float(log_losses(of_truth).mean())}
    chosen, true = probabilities.max(axis=1), predicted == truth
    if len(classes) == 2:
        chosen, true = probabilities[:, 1], truth == classes[1]
        if known.all() and 0 < true.mean() < 1:
            found["auc"] = float(roc_auc_score(true, chosen))
    every = np.unique(np.concatenate([classes, truth]))
    confusion = np.zeros((len(every), len(every)), dtype=np.int64)
    np.add.at(confusion, (np.searchsorted(every, truth), np.searchsorted(every, predicted)), 1)
    return {
        "probability_scores": found,
        "bins": _bins(chosen, true.astype(np.float64)),
        "classes": tuple(every.tolist()),
        "confusion": confusion,
        "by_class": tuple(
            ClassScores(
                name,
                int(confusion[k].sum()),
                float(confusion[k].sum() / len(truth)),
                float(probabilities[:, classes == name].mean()) if name in classes else math.nan,
                int(confusion[k, k]),
                int(confusion[:, k].sum()),
            )
            for k, name in enumerate(every.tolist())
        ),
    }


def _bins(probabilities: FloatArray, true: FloatArray) -> tuple[Bin, ...]:
    """Return bins of about equally many rows, in order of their probability."""
    n = max(1, min(_BINS, len(true) // _IN_BIN))
    parts: Sequence[NDArray[np.intp]] = np.array_split(np.argsort(probabilities, kind="stable"), n)
    return tuple(
        Bin(
            len(rows),
            float(probabilities[rows].mean()),
            float(true[rows].mean()),
            *error_interval(true[rows], squared=False),
        )
        for rows in parts
    )
