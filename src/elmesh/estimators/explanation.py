"""What the predictions of a fitted model depend on, at each task, and which tasks are predicted alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd

from elmesh.errors import ElmeshError
from elmesh.estimators.gains import format_error
from elmesh.text import listed
from elmesh.typing import Label

__all__ = ["ALIKE", "LOG_LOSS", "PROBABILITY", "Effect", "Explanation", "column_name"]

#: The units of errors of classes, and of distances of their probabilities.
LOG_LOSS, PROBABILITY = "log loss", "probability"
#: Tasks whose predictions differ by less than this share of the spread of all predictions are predicted alike.
ALIKE = 0.05
# Most columns that a sentence names, of at least this share of the largest importance.
_MOST_NAMES, _LEAST_SHARE = 3, 0.1
# An importance of fewer standard errors is not clear.
_CLEAR = 2.0


@dataclass(frozen=True, eq=False)
class Effect:
    """The mean prediction by the value of a column, all else as it is in the rows (partial dependence).

    Parameters
    ----------
    column, kind
        The column, and what it holds.
    output : str
        The target or the class.
    probability : bool
        Whether predictions are probabilities of the class.
    overall : Series
        The mean over all rows, by the values of the column; None is a missing category.
    tasks : DataFrame
        The mean over the rows of each task, a column each, predicted by the model of the task.
    """

    column: Label
    kind: Literal["number", "category", "date"]
    output: str
    probability: bool
    overall: pd.Series[float]
    tasks: pd.DataFrame

    @property
    def predicted(self) -> str:
        """What is predicted, in words."""
        return f"{'probability of' if self.probability else 'predicted'} {self.output}"

    def to_json(self) -> dict[str, Any]:
        """Return all numbers; dates as text."""
        values = [value.isoformat() if isinstance(value, pd.Timestamp) else value for value in self.overall.index]
        by_task = {str(task): line.tolist() for task, line in self.tasks.items()}
        names = {"column": self.column, "kind": self.kind, "output": self.output}
        return {**names, "values": values, "overall": self.overall.tolist(), "tasks": by_task}


@dataclass(frozen=True, eq=False)
class Explanation:
    """Why a model predicts as it does.

    Parameters
    ----------
    importance : DataFrame
        A row per column, the most important first: ``importance``, the increase of the error when the values of the
        column are permuted within each task, and its ``standard_error``.
    task_importance : DataFrame
        The same for each task: the index has ``task`` and ``column``.
    effects : tuple of Effect
        Of the most important columns, one per output or class.
    distances : DataFrame
        Root mean square of the differences between the predictions of two tasks' models for the same rows.
    coordinates : DataFrame
        ``x`` and ``y`` of each task on a map of these distances.
    map_share : float
        Share of the squared distances that the map shows.
    groups : tuple of tuple
        Groups of tasks; none if the distances show none.
    error : float
        The error of the rows as they are.
    unit, distance_unit : str
        Of errors and importances, and of distances.
    spread : float
        Standard deviation of the predictions, in the unit of distances.
    rows, n_rows, n_repeats : int
        Rows that were drawn, of how many; permutations of each column.
    """

    importance: pd.DataFrame
    task_importance: pd.DataFrame
    effects: tuple[Effect, ...]
    distances: pd.DataFrame
    coordinates: pd.DataFrame
    map_share: float
    groups: tuple[tuple[Label, ...], ...]
    error: float
    unit: str
    distance_unit: str
    spread: float
    rows: int
    n_rows: int
    n_repeats: int

    def effect(self, column: Label | None = None, output: str | None = None) -> Effect:
        """Return the effect of a column, by default of the most important one.

        With several targets or classes, ``output`` names one; by default it is the first target, the second of two
        classes, or of more the class whose probability changes most.
        """
        chosen = self.effects[0].column if column is None and self.effects else column
        found = [one for one in self.effects if one.column == chosen and output in (None, one.output)]
        if not found:
            known = dict.fromkeys((one.column, one.output) for one in self.effects)
            raise ElmeshError(
                f"There is no effect of {chosen!r} on {output or 'the predictions'}; known are {listed(known)}. Name "
                "others with columns=."
            )
        if self.distance_unit != PROBABILITY:
            return found[0]
        return found[-1] if len(found) == 2 else max(found, key=lambda one: float(np.ptp(one.overall)))

    @property
    def mean_distances(self) -> pd.Series[float]:
        """The mean distance of each task from the others, the largest first."""
        n = max(len(self.distances) - 1, 1)
        return (self.distances.sum(axis=1) / n).sort_values(ascending=False, kind="stable")

    @property
    def alike(self) -> bool:
        """Whether all tasks are predicted alike."""
        return bool(self.distances.to_numpy().max(initial=0.0) <= ALIKE * self.spread)

    @property
    def clear_columns(self) -> list[Label]:
        """Columns whose importance is above zero by two standard errors, the most important first."""
        clear = self.importance["importance"] > _CLEAR * self.importance["standard_error"].fillna(np.inf)
        return list(self.importance.index[clear])

    def sentence(self) -> str:
        """Return what predictions depend on, which task differs most and which groups there are, in plain words."""
        return " ".join([self.columns_sentence(), *([self.tasks_sentence()] if len(self.distances) > 1 else [])])

    def columns_sentence(self) -> str:
        """Return which columns matter most."""
        values = self.importance["importance"]
        names = [name for name in self.clear_columns if values[name] >= _LEAST_SHARE * values.iloc[0]][:_MOST_NAMES]
        if not names:
            return "Predictions do not clearly depend on any column."
        columns, rises = (
            _joined(list(map(column_name, names))),
            [format_error(values[name], self.unit) for name in names],
        )
        whose = "its values" if len(names) == 1 else "the values of one of them"
        return (
            f"Predictions depend most on {columns}: if {whose} are shuffled, the error on the training rows, "
            f"{format_error(self.error, self.unit)}, rises by {_joined(rises)} ({self.unit})."
        )

    def tasks_sentence(self) -> str:
        """Return which task differs most, and the groups."""
        if self.alike:
            return "All sites are predicted alike."
        far = self.mean_distances
        text = (
            f"Site {far.index[0]} differs most: its predictions differ from those of the other sites by "
            f"{format_error(far.iloc[0], self.distance_unit)} on average ({self.distance_unit})."
        )
        if not self.groups:
            return f"{text} The sites form no clear groups."
        return f"{text} The sites form {len(self.groups)} groups: {'; '.join(map(_members, self.groups))}."

    def to_json(self) -> dict[str, Any]:
        """Return the sentence and all numbers but the distances of pairs; what is not known is null."""
        group = {task: k for k, members in enumerate(self.groups) for task in members}
        far, by_task = self.mean_distances, {task: self.task_importance.loc[task] for task in self.distances.index}
        tasks = [
            {
                "task": task,
                **{name: [_plain(x) for x in own[name]] for name in own.columns},
                "mean_distance": float(far[task]),
                "map": self.coordinates.loc[task].tolist(),
                "group": group.get(task),
            }
            for task, own in by_task.items()
        ]
        return {
            "sentence": self.sentence(),
            "unit": self.unit,
            "distance_unit": self.distance_unit,
            "error": self.error,
            "rows": self.rows,
            "of_rows": self.n_rows,
            "repeats": self.n_repeats,
            "columns": [
                {"column": name, **{key: _plain(x) for key, x in line.items()}}
                for name, line in self.importance.to_dict("index").items()
            ],
            "tasks": tasks,
            "map_share": self.map_share,
            "effects": [effect.to_json() for effect in self.effects],
        }


def column_name(name: Label) -> str:
    """Return the name of a column as text; of a column of an array, which has a position alone, with the noun.

    >>> column_name("age"), column_name(3)
    ('age', 'column 3')
    """
    return name if isinstance(name, str) else f"column {name}"


def _plain(x: float) -> float | None:
    return float(x) if np.isfinite(x) else None


def _joined(words: Sequence[object]) -> str:
    """Return words as a list in a sentence.

    >>> _joined(["a", "b", "c"])
    'a, b and c'
    """
    texts = list(map(str, words))
    return texts[0] if len(texts) == 1 else f"{', '.join(texts[:-1])} and {texts[-1]}"


def _members(group: Sequence[Label]) -> str:
    return _joined(group) if len(group) <= 2 * _MOST_NAMES else f"{len(group)} sites such as {group[0]}"
