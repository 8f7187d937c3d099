r"""What predictions depend on, from predictions alone, for any solver.

**Importance.** The values of a column are permuted within each task: the column keeps its distribution there, but no
longer belongs to its row. The importance is the increase of the error, as a mean over permutations: of the root mean
square or, for classes, of the log loss, in which rows of a rare class count, while the share of wrong classes may miss
them. With the mean increase :math:`a_i` of the loss of row i by the values of other rows, and the mean increase
:math:`b_i` of other rows' losses by the value of row i, the standard error follows from the variance of
:math:`a_i + b_i` over rows (Hájek's projection): it includes the choice of rows and that of permutations.

**Effects.** The mean prediction over the rows of a task, with the column set to the same value in all of them.

**Distances.** Two tasks' models predict the same rows, of all tasks; their distance is the root mean square of the
differences. For probabilities, squares are summed over the classes and halved: with two classes this is the distance of
the probabilities of either class.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.spatial.distance import pdist, squareform

from elmesh.data.tasks import Groups
from elmesh.errors import ElmeshError
from elmesh.estimators.explanation import ALIKE, LOG_LOSS, PROBABILITY, Effect, Explanation
from elmesh.estimators.gains import OF_SEVERAL, OF_TARGET
from elmesh.estimators.head import Head
from elmesh.estimators.input_columns import InputColumn
from elmesh.estimators.model import MultiTaskModel
from elmesh.math.calibration import probabilities
from elmesh.math.site_groups import classical_scaling, find_groups
from elmesh.text import count
from elmesh.typing import FloatArray, IndexArray, Label

__all__ = ["Predictor", "explain_model"]

# Most rows that are drawn, fewest of a task (all, if it has fewer), and most rows that are predicted with permuted
# columns, by which fewer are drawn where there are many columns: down to the last number.
_MOST_ROWS, _FEWEST_OF_TASK, _MOST_PREDICTED, _FEWEST_ROWS = 3000, 20, 1_000_000, 300
# Most columns whose effects are computed.
_MOST_EFFECTS = 8
# Most rows that all tasks predict for distances, and numbers in their predictions.
_COMMON_ROWS, _MOST_NUMBERS = 1000, 10_000_000


@dataclass(frozen=True, eq=False)
class Predictor:
    """A model, and how its scores become what users see.

    Parameters
    ----------
    model : MultiTaskModel
        The model.
    names : sequence of str
        The targets, or the classes.
    classes : ndarray or None
        All classes; None for regression.
    mean, unit : ndarray or float
        A score of 0 is ``mean`` and one of 1 is larger by ``unit``, for each target.
    """

    model: MultiTaskModel
    names: Sequence[str]
    classes: NDArray[Any] | None
    mean: FloatArray | float = 0.0
    unit: FloatArray | float = 1.0

    def __call__(self, Phi: FloatArray, task: Label) -> FloatArray:
        """Return the predictions of a task's model from features: targets, or probabilities of all classes."""
        head = self.model.heads.get(task, self.model.common)
        if head is None:
            raise TypeError("A task that the model does not know was let through.")
        scores = head.scores(Phi)
        if self.classes is None:
            return np.asarray(scores * self.unit + self.mean)
        found = np.zeros((len(Phi), len(self.classes)))
        own = head.classes if isinstance(head, Head) and head.classes is not None else self.classes
        found[:, np.searchsorted(self.classes, own)] = probabilities(scores, head.temperature)
        return found


@dataclass(frozen=True, eq=False)
class _Rows:
    """Rows that were drawn, those of a task beside each other, and how they are predicted."""

    predictor: Predictor
    X: FloatArray
    T: FloatArray
    tasks: Mapping[Label, slice]
    weights: FloatArray  # how many rows each stands for

    @cached_property
    def scale(self) -> FloatArray:
        """What errors of several targets are divided by: their standard deviations."""
        deviations = np.std(self.T, axis=0)
        several = self.predictor.classes is None and len(deviations) > 1
        return np.where((deviations > 0) & several, deviations, 1.0)

    def predict(self, X: FloatArray) -> FloatArray:
        """Return the predictions of as many rows, each by the model of its task."""
        Phi = self.predictor.model.layer(X)
        return np.concatenate([self.predictor(Phi[rows], task) for task, rows in self.tasks.items()])

    def losses(self, X: FloatArray) -> FloatArray:
        """Return the loss of each row: the mean square of its errors, or minus the log-probability of its class."""
        predicted = self.predict(X)
        if self.predictor.classes is None:
            return np.asarray(np.mean(((predicted - self.T) / self.scale) ** 2, axis=1))
        return np.asarray(-np.log(np.maximum(np.sum(predicted * self.T, axis=1), np.finfo(float).eps)))

    def with_values(self, column: InputColumn, values: FloatArray) -> FloatArray:
        """Return the rows with other values of a column, encoded."""
        X = self.X.copy()
        X[:, column.encoded] = values
        return X


def explain_model(
    predictor: Predictor, X: FloatArray, groups: Groups, targets: Mapping[Label, FloatArray],
    columns: Sequence[InputColumn], n_repeats: int, seed: int,
) -> Explanation:  # fmt: skip
    """Return the explanation of a model from encoded rows.

    Parameters
    ----------
    predictor : Predictor
        The model.
    X, groups, targets
        Encoded rows, those of each task, and their targets; of classes 0 and 1.
    columns : sequence of InputColumn
        What to explain.
    n_repeats, seed : int
        Permutations of each column, and the seed of all that is drawn.
    """
    d, is_classes = len(predictor.names), predictor.classes is not None
    width = max(T.shape[1] for T in targets.values())
    if width != d:
        raise ElmeshError(f"y has {count(width, 'column')}; the model predicts {d}.")
    rng = np.random.default_rng(seed)
    affordable = max(_FEWEST_ROWS, _MOST_PREDICTED // (n_repeats * len(columns)))
    rows = _draw(predictor, X, groups, targets, min(_MOST_ROWS, affordable), rng)
    base = rows.losses(rows.X)
    importance, by_task = _importance(rows, base, columns, n_repeats, rng)
    by_name = {column.name: column for column in columns}
    most = [by_name[name] for name in importance.index[:_MOST_EFFECTS]]
    distances, spread = _distances(rows, rng)
    D = distances.to_numpy()
    coordinates, squares = classical_scaling(D)
    plane = np.zeros((len(D), 2))
    plane[:, : coordinates.shape[1]] = coordinates[:, :2]
    group = None if D.max() <= ALIKE * spread else find_groups(D, seed)
    of_targets = OF_SEVERAL if d > 1 else OF_TARGET
    mean = float(np.average(base, weights=rows.weights))
    return Explanation(
        importance=importance,
        task_importance=by_task,
        effects=tuple(effect for column in most for effect in _effects(rows, column)),
        distances=distances,
        coordinates=pd.DataFrame(plane, index=distances.index, columns=["x", "y"]),
        map_share=float(squares[:2].sum() / squares.sum()) if len(squares) else 1.0,
        groups=() if group is None else tuple(tuple(distances.index[group == k]) for k in range(group.max() + 1)),
        error=mean if is_classes else float(np.sqrt(mean)),
        unit=LOG_LOSS if is_classes else of_targets,
        distance_unit=PROBABILITY if is_classes else of_targets,
        spread=spread,
        rows=len(rows.X),
        n_rows=len(X),
        n_repeats=n_repeats,
    )


def _draw(
    predictor: Predictor, X: FloatArray, groups: Groups, targets: Mapping[Label, FloatArray], most: int,
    rng: np.random.Generator,
) -> _Rows:  # fmt: skip
    """Return about so many rows, of each task in proportion but at least some."""
    found, T, weights, tasks, start = [], [], [], {}, 0
    for task, rows in groups.items():
        n = min(len(rows), max(_FEWEST_OF_TASK, round(most * len(rows) / len(X))))
        chosen = np.sort(rng.choice(len(rows), n, replace=False))
        found.append(rows[chosen])
        T.append(targets[task][chosen])
        weights.append(np.full(n, len(rows) / n))
        tasks[task] = slice(start, start := start + n)
    return _Rows(predictor, X[np.concatenate(found)], np.concatenate(T), tasks, np.concatenate(weights))


def _importance(
    rows: _Rows, base: FloatArray, columns: Sequence[InputColumn], n_repeats: int, rng: np.random.Generator
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the importance of each column, the largest first; and for each task."""
    # The same permutations for all columns, so that columns differ by nothing else.
    orders = [
        np.concatenate([own.start + rng.permutation(own.stop - own.start) for own in rows.tasks.values()])
        for _ in range(n_repeats)
    ]
    found = []
    squared = rows.predictor.classes is None
    for column in columns:
        losses = np.array([rows.losses(rows.with_values(column, rows.X[order][:, column.encoded])) for order in orders])
        given = np.empty_like(losses)
        for own, order, loss in zip(given, orders, losses, strict=True):
            own[order] = loss - base
        parts = [slice(None), *rows.tasks.values()]
        found.append([_increase(base[p], losses[:, p], given[:, p], rows.weights[p], squared) for p in parts])
    values = np.array(found)  # columns, all rows and tasks, importance and standard error
    names, fields = [column.name for column in columns], ["importance", "standard_error"]
    order = np.argsort(-values[:, 0, 0], kind="stable")
    index = pd.Index([names[j] for j in order], name="column")
    overall = pd.DataFrame(values[order, 0], index=index, columns=fields)
    both = pd.MultiIndex.from_product([list(rows.tasks), index], names=["task", "column"])
    return overall, pd.DataFrame(values[order, 1:].swapaxes(0, 1).reshape(-1, 2), index=both, columns=fields)


def _increase(
    base: FloatArray, losses: FloatArray, given: FloatArray, weights: FloatArray, squared: bool
) -> tuple[float, float]:
    """Return the mean increase of the error, and its standard error; NaN of a single row.

    ``losses`` are those of each permutation; ``given`` what the value of each row adds to the loss of another one.
    """
    n, w, tiny = len(base), weights / weights.sum(), np.finfo(float).tiny
    before, after = float(w @ base), losses @ w
    slopes = (1.0, 1.0)
    if squared:  # from mean squares to their roots
        before, after = float(np.sqrt(before)), np.sqrt(after)
        slopes = (0.5 / max(before, tiny), 0.5 / max(float(after.mean()), tiny))
    increase = float(after.mean()) - before
    if n < 2:
        return increase, float("nan")
    influence = slopes[1] * (losses.mean(axis=0) + given.mean(axis=0)) - slopes[0] * base
    return increase, float(np.sqrt(n / (n - 1) * np.sum((w * (influence - w @ influence)) ** 2)))


def _effects(rows: _Rows, column: InputColumn) -> list[Effect]:
    """Return the effects of a column on each output; none if the model does not use the column."""
    values, encoded = column.grid(rows.X)
    if not values:
        return []
    tables = np.empty((len(values), 1 + len(rows.tasks), len(rows.predictor.names)))
    for k, value in enumerate(encoded):
        predicted = rows.predict(rows.with_values(column, value))
        tables[k, 0] = np.average(predicted, axis=0, weights=rows.weights)
        tables[k, 1:] = [predicted[own].mean(axis=0) for own in rows.tasks.values()]
    index = pd.Index(values, name=column.name, dtype=object if column.kind == "category" else None)
    return [
        Effect(
            column.name,
            column.kind,
            name,
            rows.predictor.classes is not None,
            pd.Series(tables[:, 0, j], index=index, name=name),
            pd.DataFrame(tables[:, 1:, j], index=index, columns=list(rows.tasks)),
        )
        for j, name in enumerate(rows.predictor.names)
    ]


def _distances(rows: _Rows, rng: np.random.Generator) -> tuple[pd.DataFrame, float]:
    """Return the distances between the predictions of tasks for the same rows, and the spread of all predictions."""
    labels, width = list(rows.tasks), len(rows.predictor.names)
    most = min(len(rows.X), _COMMON_ROWS, max(1, _MOST_NUMBERS // (len(labels) * width)))
    chosen: IndexArray = np.sort(rng.choice(len(rows.X), most, replace=False))
    Phi = rows.predictor.model.layer(rows.X[chosen])
    predicted = np.stack([rows.predictor(Phi, task) for task in labels]) / rows.scale
    parts = most * (width if rows.predictor.classes is None else 2)
    spread = float(np.sqrt(np.mean(np.sum((predicted - predicted.mean(axis=(0, 1))) ** 2, axis=(1, 2))) / parts))
    found = squareform(pdist(predicted.reshape(len(labels), -1)) / np.sqrt(parts))
    index = pd.Index(labels, name="task")
    return pd.DataFrame(found, index=index, columns=index), spread
