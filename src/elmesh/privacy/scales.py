r"""Centre and spread of columns whose ranges are not declared, from two histograms with noise.

1. *Powers of two.* Every value is counted in a bin by its sign and the power of two below its magnitude. The bins
   around the largest count give a window that holds most values, wherever it is.
2. *Equal bins.* Each column's window is divided into equal bins. The median and the deviation of what they hold above
   the noise are the centre and the spread; if noise hides much of it, of wider bins.

A row has one value per column, so that another row in its place takes one from a bin and adds one to another in each
column: for columns that count :math:`w_j` times, the squared sensitivity is :math:`2\sum_j w_j^2`. With few rows noise
would hide the window; :meth:`Histogram.suffices` shows it before anything is spent.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from elmesh.privacy.accounting import LEAST_SIGMA, with_margin
from elmesh.typing import FloatArray, IntArray

__all__ = ["Histogram", "Window", "equal_bins", "find_scale", "find_window", "power_bins"]

# Powers of two of magnitudes: from a millionth to a million million.
_LOWEST, _HIGHEST = -20, 40
_OCTAVES = _HIGHEST - _LOWEST
# A window has so many powers of two, which most columns have most of their values in; and bins of equal width.
_WINDOW, _BINS = 4, 32
_SHARE = 0.6
# Standard deviations of noise above which a window is taken for one, so that no other one is; and a bin for filled.
_CERTAIN, _FILLED, _FILLED_EQUAL = 4.5, 3.0, 2.5
# Bins of equal width are put together until those that are filled hold this share of the window.
_HELD, _MERGED = 0.75, (1, 2, 4, 8)
# The middle two thirds of values, which noise in bins far away does not reach, are one spread to either side; what lies
# outside makes the spread at most so many times as large.
_MIDDLE, _MOST_WIDER = (1 / 6, 1 / 2, 5 / 6), 3.0
# Counts are multiplied by this, so that noise of whole numbers is fine.
_UNIT = 1024


@dataclass(frozen=True)
class Histogram:
    """A histogram with noise of columns that count so many times.

    Parameters
    ----------
    weights : tuple of int
        How often a value of each column counts.
    per_site : int
        Standard deviation of the noise that each site adds to a bin, in units of the counts that are released.
    honest : int
        Number of sites whose noise no one else knows.
    """

    weights: tuple[int, ...]
    per_site: int
    honest: int

    @classmethod
    def make(cls, weights: tuple[int, ...], rho: float, honest: int) -> Histogram:
        """Return the histogram of a cost."""
        sigma = _UNIT * math.sqrt(_squared_sensitivity(weights) * with_margin(1.0) / (2 * rho))
        return cls(weights, max(math.ceil(sigma / math.sqrt(honest)), LEAST_SIGMA), honest)

    def cost(self, honest: int | None = None) -> float:
        """Return the cost with the noise of so many sites, by default that of all honest ones."""
        variance = (self.honest if honest is None else honest) * self.per_site**2
        return with_margin(_squared_sensitivity(self.weights) * _UNIT**2 / (2 * variance))

    def terms(self, counts: IntArray) -> IntArray:
        """Return what a site releases of its counts (columns, bins), without noise."""
        return np.asarray(counts * np.array(self.weights)[:, None] * _UNIT).ravel()

    def split(self, released: IntArray) -> FloatArray:
        """Return counts (columns, bins) from what was released."""
        return np.asarray(released.reshape(len(self.weights), -1) / (_UNIT * np.array(self.weights)[:, None]))

    def noise(self, sites: int) -> FloatArray:
        """Return the standard deviation of the noise of so many sites in the counts of each column."""
        return np.asarray(math.sqrt(sites) * self.per_site / (_UNIT * np.array(self.weights, dtype=np.float64)))

    def suffices(self, rows: float, sites: int) -> bool:
        """Return whether the windows of all columns can be found among so many rows."""
        window = self.noise(sites) * math.sqrt(2 * _WINDOW)
        return bool(np.all(_SHARE * rows >= _CERTAIN * window))


@dataclass(frozen=True)
class Window:
    """The range that holds most values of a column, and about how many."""

    low: float
    high: float
    held: float


def _squared_sensitivity(weights: tuple[int, ...]) -> float:
    return 2.0 * sum(weight**2 for weight in weights)


def power_bins(X: FloatArray) -> IntArray:
    """Return how many values of each column are in each bin: negative ones by falling magnitude, zero, positive ones.

    Missing values (NaN) count in no bin.

    Examples
    --------
    >>> np.flatnonzero(power_bins(np.array([[-1.5], [0.0], [1.5]]))[0]) - 60
    array([-21,   0,  21])
    """
    with np.errstate(divide="ignore"):
        power = np.clip(np.floor(np.log2(np.abs(X))), _LOWEST - 1, _HIGHEST - 1)
    place = np.sign(X) * np.where(power < _LOWEST, 0, power - _LOWEST + 1)
    return _count(place + _OCTAVES, 2 * _OCTAVES + 1)


def equal_bins(X: FloatArray, windows: Sequence[Window | None]) -> IntArray:
    """Return how many values of each column are in each of the equal bins of its window.

    The upper end of a window belongs to its last bin. Values outside, missing ones, and those of columns without a
    window count in no bin.

    Examples
    --------
    >>> X = np.array([[0.0, 5.0], [8.0, 5.0], [8.1, 5.0]])
    >>> equal_bins(X, [Window(-8.0, 8.0, 3.0), None]).sum(axis=1)
    array([2, 0])
    """
    low, high = np.array([(np.nan, np.nan) if one is None else (one.low, one.high) for one in windows]).T
    with np.errstate(over="ignore", invalid="ignore"):
        places = np.floor((X - low) / (high - low) * _BINS)
    return _count(np.where(high >= X, np.minimum(places, _BINS - 1), places), _BINS)


def _count(places: FloatArray, n: int) -> IntArray:
    """Return how many numbers of each column are 0, 1, ..., n - 1."""
    inside = (places >= 0) & (places < n)
    columns = [
        np.bincount(own[held].astype(np.int64), minlength=n) for own, held in zip(places.T, inside.T, strict=True)
    ]
    return np.stack(columns).astype(np.int64)


def find_window(counts: FloatArray, sigma: float) -> Window | None:
    """Return the window that holds most values of a column, from noisy counts of power bins; None if noise hides it."""
    negative, zero, positive = counts[:_OCTAVES][::-1], float(counts[_OCTAVES]), counts[_OCTAVES + 1 :]
    windows = np.convolve(positive + negative, np.ones(_WINDOW), "valid")
    first = int(np.argmax(windows))
    if windows[first] < _CERTAIN * sigma * math.sqrt(2 * _WINDOW):
        return None
    members = np.arange(first, first + _WINDOW)
    filled = [members[side[members] > _FILLED * sigma] for side in (positive, negative)]
    ends = []
    for sign, octaves in zip((1.0, -1.0), filled, strict=True):
        if len(octaves):
            ends += [sign * 2.0 ** (_LOWEST + octaves[0]), sign * 2.0 ** (_LOWEST + octaves[-1] + 1)]
    if not ends:
        return None
    held = float(windows[first])
    if zero > _FILLED * sigma:
        ends.append(0.0)
        held += zero
    return Window(min(ends), max(ends), held)


def find_scale(counts: FloatArray, window: Window, sigma: float) -> tuple[float, float]:
    """Return centre and spread of a column, from noisy counts of the equal bins of its window."""
    low, high = window.low, window.high
    for merged in _MERGED:
        together, n = counts.reshape(-1, merged).sum(axis=1), _BINS // merged
        weights = np.where(together > _FILLED_EQUAL * sigma * math.sqrt(merged), together, 0.0)
        if weights.sum() >= _HELD * window.held:
            width = (high - low) / n
            middles = low + width * (np.arange(n) + 0.5)
            weights = weights / weights.sum()
            below = np.concatenate([[0.0], np.cumsum(weights)])
            first, centre, last = np.interp(_MIDDLE, below, low + width * np.arange(n + 1)).tolist()
            half = (last - first) / 2
            # Values are spread within their bins.
            deviation = math.sqrt(float(weights @ (middles - centre) ** 2) + width**2 / 12.0)
            return centre, min(max(half, deviation), _MOST_WIDER * half)
    return (low + high) / 2, (high - low) / math.sqrt(12.0)
