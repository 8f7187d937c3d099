"""Rows to learn from, in parts that fit into memory, and figures over all of them.

An array in memory is one part. A table that is larger than memory is many (:mod:`elmesh.estimators.streams`). Figures
are gathered for each task by itself, so that they do not depend on which tasks a process has.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elmesh.data.tasks import Groups
from elmesh.run.backend import Backend
from elmesh.typing import FloatArray, Label

__all__ = ["ArrayRows", "Chunk", "ColumnMoments", "TrainingRows", "common_moments"]


@dataclass(frozen=True, eq=False)
class Chunk:
    """Some rows.

    Parameters
    ----------
    X : ndarray of shape (n, k)
        Inputs; without columns if only targets were asked for.
    y : ndarray
        Targets, as they were given.
    groups : dict
        The rows of each task.
    weights : ndarray of shape (n,)
        How often each row counts.
    """

    X: FloatArray
    y: NDArray[Any]
    groups: Groups
    weights: FloatArray


class TrainingRows(ABC):
    """Rows to learn from; their parts can be read any number of times."""

    @property
    @abstractmethod
    def n_inputs(self) -> int:
        """Number of inputs."""

    @property
    @abstractmethod
    def sizes(self) -> dict[Label, int]:
        """The number of rows of each task, sorted by task."""

    @abstractmethod
    def chunks(self, *, inputs: bool = True, skip: int = 0) -> Iterator[Chunk]:
        """Yield all rows in parts, with or without their inputs, but for some parts at the beginning."""

    @abstractmethod
    def sample(self) -> Iterator[Chunk]:
        """Yield all rows in parts, or some of them if there are very many."""

    @abstractmethod
    def of_tasks(self, tasks: Sequence[Label]) -> TrainingRows:
        """Return the rows of some tasks."""


@dataclass(frozen=True, eq=False)
class ArrayRows(TrainingRows):
    """Rows in memory."""

    whole: Chunk

    @property
    def n_inputs(self) -> int:
        """Number of inputs."""
        return int(self.whole.X.shape[1])

    @property
    def sizes(self) -> dict[Label, int]:
        """The number of rows of each task, sorted by task."""
        return {label: len(rows) for label, rows in self.whole.groups.items()}

    def chunks(self, *, inputs: bool = True, skip: int = 0) -> Iterator[Chunk]:
        """Yield all rows at once."""
        if not skip:
            yield self.whole

    def sample(self) -> Iterator[Chunk]:
        """Yield all rows at once."""
        yield self.whole

    def of_tasks(self, tasks: Sequence[Label]) -> ArrayRows:
        """Return the rows of some tasks."""
        return ArrayRows(replace(self.whole, groups={label: self.whole.groups[label] for label in tasks}))


@dataclass(frozen=True, eq=False)
class ColumnMoments:
    """Weights of rows, and weighted means and squared deviations of columns; those of two parts can be added."""

    weight: float
    mean: FloatArray
    squares: FloatArray

    @classmethod
    def of_rows(cls, X: FloatArray, weights: FloatArray) -> ColumnMoments:
        """Return the moments of rows, of which there is at least one."""
        total = float(weights.sum())
        mean = np.asarray(weights @ X) / total
        return cls(total, mean, np.asarray(weights @ (X - mean) ** 2))

    def __add__(self, other: ColumnMoments) -> ColumnMoments:
        """Return the moments of the rows of both, by the formula of Chan, Golub and LeVeque."""
        total, difference = self.weight + other.weight, other.mean - self.mean
        share = other.weight / total
        return ColumnMoments(
            total,
            self.mean + share * difference,
            self.squares + other.squares + self.weight * share * difference**2,
        )

    @staticmethod
    def by_task(parts: Iterable[tuple[Label, FloatArray, FloatArray]]) -> dict[Label, ColumnMoments]:
        """Return the moments of each task from parts of its rows: task, values and weights."""
        found: dict[Label, ColumnMoments] = {}
        for label, X, weights in parts:
            own = ColumnMoments.of_rows(X, weights)
            found[label] = found[label] + own if label in found else own
        return found


def common_moments(backend: Backend, moments: Mapping[Label, ColumnMoments]) -> tuple[FloatArray, FloatArray]:
    """Return the mean and the standard deviation of each column over the rows of all tasks of all processes."""
    sums = {t: np.array([own.weight, *(own.weight * own.mean)]) for t, own in moments.items()}
    total, *weighted = backend.sum_over_tasks(sums).tolist()
    mean = np.asarray(weighted) / total
    about = {t: own.squares + own.weight * (own.mean - mean) ** 2 for t, own in moments.items()}
    return mean, np.sqrt(backend.sum_over_tasks(about) / total)
