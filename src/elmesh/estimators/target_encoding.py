"""From targets as they are given to columns of numbers that a fit takes, and back.

Numbers are limited, so that a misplaced decimal point does not spoil a task, and scaled. Classes become indicators.
What is found from the rows of a fit stays as it is when rows are added or taken away later.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elmesh.comm.communicator import merge_by_task
from elmesh.data.row_keys import KeyArray, place_keys
from elmesh.data.tasks import one_hot, regression_targets
from elmesh.errors import ElmeshError
from elmesh.estimators.rows import ColumnMoments, TrainingRows, common_moments
from elmesh.math.class_link import predicted_classes
from elmesh.run.backend import Backend
from elmesh.text import listed
from elmesh.typing import FloatArray, Label

__all__ = ["ClassEncoding", "NumberEncoding", "TargetEncoding", "find_limits", "number_moments", "weighted"]

# Targets further from the median of their task than this many robust standard deviations count as that far.
_LIMIT = 10.0
# From the median absolute deviation to the standard deviation of a normal distribution.
_ROBUST = 1.4826
# Most targets of a task from which its median is found.
_SAMPLE = 4096
# What sums of targets may be off by, as a share of the rows.
_ROUNDING = 1e-10


class TargetEncoding(ABC):
    """From the targets of a task to columns of numbers."""

    @abstractmethod
    def encode(self, task: Label, y: NDArray[Any]) -> FloatArray:
        """Return targets of shape (n, d); raise if they are not of the kind that the fit had."""

    @abstractmethod
    def plain(self, task: Label, y: NDArray[Any]) -> FloatArray:
        """Return targets less their common mean, in their units and without limits."""

    @abstractmethod
    def decode(self, task: Label, T: FloatArray) -> FloatArray:
        """Return limited targets, or indicators of all classes, from encoded ones."""

    @abstractmethod
    def for_task(self, task: Label) -> TargetEncoding:
        """Return the encoding without what is of other tasks."""

    @property
    @abstractmethod
    def unit(self) -> FloatArray:
        """What encoded targets are multiplied by, for the units of the targets."""

    def with_task(self, task: Label, y: NDArray[Any]) -> TargetEncoding:
        """Return the encoding with a task that it does not know yet, from its first rows."""
        return self

    def row_weights(self, y: NDArray[Any]) -> FloatArray | None:
        """Return what the weight of each row is multiplied by; None for nothing."""
        return None

    def mean_target(self, task: Label, sums: FloatArray, weight: float) -> tuple[FloatArray, float]:
        """Return the mean of a task's targets and its weight, from the sums of encoded targets and of weights."""
        return self.decode(task, (sums / weight)[None])[0], weight


@dataclass(frozen=True, eq=False)
class NumberEncoding(TargetEncoding):
    """Numbers, limited and scaled.

    Parameters
    ----------
    mean, scale : ndarray of shape (d,)
        A target less the mean is divided by the scale.
    limits : dict
        Least and largest target of each task; empty for no limits.
    usual : ndarray of shape (d,) or None
        The robust standard deviation of targets at the median task, for limits of tasks that come later.
    """

    mean: FloatArray
    scale: FloatArray
    limits: dict[Label, tuple[FloatArray, FloatArray]] = field(default_factory=dict)
    usual: FloatArray | None = None

    def encode(self, task: Label, y: NDArray[Any]) -> FloatArray:
        """Return limited, scaled targets."""
        T = _numbers(y)
        if T.shape[1] != len(self.mean):
            raise ElmeshError(f"y has {T.shape[1]} columns; the model predicts {len(self.mean)}.")
        return (self.limited(task, T) - self.mean) / self.scale

    def decode(self, task: Label, T: FloatArray) -> FloatArray:
        """Return limited targets."""
        return T * self.scale + self.mean

    def plain(self, task: Label, y: NDArray[Any]) -> FloatArray:
        """Return targets less their mean."""
        return _numbers(y) - self.mean

    def limited(self, task: Label, T: FloatArray) -> FloatArray:
        """Return targets within the limits of their task, or within those that they have themselves if it is new."""
        if self.usual is None:
            return T
        low, high = self.limits.get(task) or _limits(T, np.ones(len(T)), self.usual)
        return np.clip(T, low, high)

    def for_task(self, task: Label) -> NumberEncoding:
        """Return the encoding without the limits of other tasks."""
        return replace(self, limits={t: ends for t, ends in self.limits.items() if t == task})

    @property
    def unit(self) -> FloatArray:
        """The scale."""
        return self.scale

    def with_task(self, task: Label, y: NDArray[Any]) -> NumberEncoding:
        """Return the encoding with limits of a task that it does not know yet, from its first rows."""
        if self.usual is None or task in self.limits:
            return self
        T = _numbers(y)
        return replace(self, limits={**self.limits, task: _limits(T, np.ones(len(T)), self.usual)})


@dataclass(frozen=True, eq=False)
class ClassEncoding(TargetEncoding):
    """Indicators of classes.

    Parameters
    ----------
    classes : ndarray
        All classes, sorted.
    mean : ndarray of shape (d,)
        The common share of each class, which is subtracted; zeros if classes are not shared.
    by_task : dict or None
        The classes of each task, where those of different tasks have nothing in common; None if they are shared.
    class_weights : ndarray of shape (d,) or None
        How often a row of each class counts.
    """

    classes: NDArray[Any]
    mean: FloatArray
    by_task: dict[Label, NDArray[Any]] | None = None
    class_weights: FloatArray | None = None

    def encode(self, task: Label, y: NDArray[Any]) -> FloatArray:
        """Return indicators, less the common shares of classes."""
        targets, found = one_hot(y, {task: np.arange(len(y))})
        if self.by_task is not None and task not in self.by_task:
            raise ElmeshError(f"The model has no task {task!r}, and its tasks have no classes in common; fit it again.")
        every = self.classes if self.by_task is None else self.by_task[task]
        unknown = [name for name in found[task].tolist() if name not in set(every.tolist())]
        if unknown:
            raise ElmeshError(f"The model does not know the class {unknown[0]!r}; it knows {listed(every.tolist())}.")
        wide = np.zeros((len(y), len(every)))
        wide[:, np.searchsorted(every, found[task])] = targets[task]
        return wide - (self.mean if self.by_task is None else 0.0)

    def decode(self, task: Label, T: FloatArray) -> FloatArray:
        """Return indicators of all classes."""
        if self.by_task is None:
            return T + self.mean
        wide = np.zeros((len(T), len(self.classes)))
        wide[:, np.searchsorted(self.classes, self.by_task[task])] = T
        return wide

    def plain(self, task: Label, y: NDArray[Any]) -> FloatArray:
        """Return indicators, less the common shares of classes."""
        return self.encode(task, y)

    def for_task(self, task: Label) -> ClassEncoding:
        """Return the encoding without the classes of other tasks."""
        return self if self.by_task is None else replace(self, by_task={task: self.by_task[task]})

    @property
    def unit(self) -> FloatArray:
        """Ones: indicators have no unit."""
        return np.ones(1)

    def present(self, task: Label, sums: FloatArray, weight: float) -> NDArray[Any]:
        """Return the classes of a task, from the sums of its encoded targets and of the weights of its rows."""
        every = self.classes if self.by_task is None else self.by_task[task]
        counts = sums + (weight * self.mean if self.by_task is None else 0.0)
        # Sums are rounded.
        return np.asarray(every[counts > _ROUNDING * weight])

    def predicted(
        self, task: Label, sums: FloatArray, weight: float, *, common: bool, shares: FloatArray | None = None
    ) -> NDArray[Any]:
        """Return the classes that a task predicts: its own and, with a common part, those that it may lack by chance.

        Which ones these are: :func:`elmesh.math.class_link.predicted_classes`, by ``shares`` of all rows or, if they
        are not given, by those that are subtracted.

        Examples
        --------
        >>> encoding = ClassEncoding(np.array(["a", "b", "c"]), np.array([0.5, 0.3, 0.2]))
        >>> for n in (4, 100):  # half of the rows have class a, and half have class b
        ...     print(encoding.predicted("leeds", n * np.array([0.0, 0.2, -0.2]), n, common=True))
        ['a' 'b' 'c']
        ['a' 'b']
        """
        own = self.present(task, sums, weight)
        if self.by_task is not None or (not common and len(own) > 1):
            return own
        common_shares = self.mean if shares is None else shares
        return np.asarray(self.classes[predicted_classes(np.isin(self.classes, own), common_shares, weight)])

    def mean_target(self, task: Label, sums: FloatArray, weight: float) -> tuple[FloatArray, float]:
        """Return the shares of a task's classes and its weight, both without the weights of classes."""
        shares, weight = super().mean_target(task, sums, weight)
        if self.class_weights is None:
            return shares, weight
        counts = weight * shares / self.class_weights
        return counts / counts.sum(), float(counts.sum())

    def row_weights(self, y: NDArray[Any]) -> FloatArray | None:
        """Return the weights of the classes of rows."""
        return None if self.class_weights is None else self.class_weights[np.searchsorted(self.classes, y)]


def weighted(encoding: TargetEncoding, y: NDArray[Any], weights: FloatArray) -> FloatArray:
    """Return weights of rows times those of their classes."""
    by_class = encoding.row_weights(y)
    return weights if by_class is None else weights * by_class


def _numbers(y: NDArray[Any]) -> FloatArray:
    return regression_targets(y, {"": np.arange(len(y))})[""]


def number_moments(rows: TrainingRows, encoding: NumberEncoding) -> dict[Label, ColumnMoments]:
    """Return the moments of the limited targets of each task."""
    return ColumnMoments.by_task(
        (t, encoding.limited(t, _numbers(chunk.y[index])), chunk.weights[index])
        for chunk in rows.chunks(inputs=False)
        for t, index in chunk.groups.items()
    )


def find_limits(rows: TrainingRows, backend: Backend) -> NumberEncoding:
    """Return limits of targets: some robust standard deviations about the median of each task.

    The robust deviation is a task's own or that of the median task, whichever is larger, so that the few rows of a
    small task do not limit it. Declared scales count as one; where sums are masked no process knows that of the median
    task, and the standard deviation over all rows takes its place.
    """
    parts = ((t, chunk.y[i], chunk.weights[i]) for chunk in rows.chunks(inputs=False) for t, i in chunk.groups.items())
    samples = _sample_targets(parts)
    own = {t: _robust_spread(T, w) for t, (T, w) in samples.items()}
    d = len(next(iter(own.values())))
    none = NumberEncoding(np.zeros(d), np.ones(d))
    usual = np.ones(d)
    if backend.masked and not backend.scales_targets:
        _, usual = common_moments(backend, number_moments(rows, none))
    elif not backend.scales_targets:
        every = merge_by_task(backend.communicator, {t: spread.tolist() for t, spread in own.items()})
        usual = np.median(list(every.values()), axis=0)
    limits = {t: _limits(T, w, usual) for t, (T, w) in samples.items()}
    return NumberEncoding(none.mean, none.scale, limits, usual)


def _limits(T: FloatArray, weights: FloatArray, usual: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the least and the largest target that count as they are."""
    middle, own = _weighted_median(T, weights), _robust_spread(T, weights)
    # Where half of all targets are equal there is no scale to measure others by.
    most = np.where(usual > 0, _LIMIT * np.maximum(own, usual), np.inf)
    return middle - most, middle + most


def _robust_spread(T: FloatArray, weights: FloatArray) -> FloatArray:
    return _ROBUST * _weighted_median(np.abs(T - _weighted_median(T, weights)), weights)


def _weighted_median(T: FloatArray, weights: FloatArray) -> FloatArray:
    """Return the median of each column of rows that count several times, the mean of the two in the middle if even.

    Examples
    --------
    >>> _weighted_median(np.array([[1.0], [2.0], [9.0]]), np.array([1.0, 1.0, 2.0])).tolist()
    [5.5]
    """
    order = np.argsort(T, axis=0, kind="stable")
    values, reached = np.take_along_axis(T, order, axis=0), np.cumsum(weights[order], axis=0)
    half, last = reached[-1] / 2, len(T) - 1
    lower = np.argmax(reached >= half, axis=0)
    upper = np.where(np.take_along_axis(reached, lower[None], axis=0)[0] == half, np.minimum(lower + 1, last), lower)
    columns = np.arange(T.shape[1])
    return np.asarray((values[lower, columns] + values[upper, columns]) / 2)


def _sample_targets(
    parts: Iterable[tuple[Label, NDArray[Any], FloatArray]],
) -> dict[Label, tuple[FloatArray, FloatArray]]:
    """Return some targets of each task with their weights: all of them, or those at places drawn at random."""
    samples: dict[Label, tuple[FloatArray, FloatArray]] = {}
    places: dict[Label, KeyArray] = {}
    counts: dict[Label, int] = {}
    for t, y, own in parts:
        T, weights, n = _numbers(y), own, counts.get(t, 0)
        drawn = place_keys(n, len(T))
        counts[t] = n + len(T)
        if t in samples:
            T, weights = np.concatenate([samples[t][0], T]), np.concatenate([samples[t][1], weights])
            drawn = np.concatenate([places[t], drawn])
        least = np.arange(len(T)) if len(T) <= _SAMPLE else np.sort(np.argpartition(drawn, _SAMPLE)[:_SAMPLE])
        samples[t], places[t] = (T[least], weights[least]), drawn[least]
    return samples
