"""The privacy that a fit promises, as its user states it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from elmesh.checks import check_count, check_number
from elmesh.errors import ElmeshError
from elmesh.typing import FloatArray

__all__ = ["Privacy", "uniform_scale"]

# Above this epsilon there is no privacy to speak of; a larger delta allows to publish single rows.
_MOST_EPSILON, _MOST_DELTA = 100.0, 0.01
# Ranges of values must be within this, and wider than its inverse.
_LARGEST = 1e100


@dataclass(frozen=True)
class Privacy:
    """Differential privacy of single rows: what leaves a site changes little if one of its rows is another one.

    For any two tables of a site that differ in one row, and any set of outcomes, the probability of an outcome in the
    set is at most ``exp(epsilon)`` times that with the other table, plus ``delta``. It holds for all that a fit lets
    leave a site, against whoever receives it and against ``max_colluders`` other sites together. It does not hold for
    a site's own model, which is learnt from the site's rows without noise and belongs to the site.

    Parameters
    ----------
    epsilon : float, default=1.0
        How much the probability of an outcome may change, as a logarithm.
    delta : float, default=1e-5
        The probability that is left out of this; well below one in the number of rows.
    max_colluders : int or None, default=None
        Other sites that may put together what they know; None: a third of all sites. Each site adds as much noise as
        makes the promise true without that of the colluders.
    input_range : pair of float, sequence of pairs, or None, default=None
        The usual range of the inputs: one for all columns, or one per column. Values may lie outside. None: centre and
        spread of each column are found privately, at the cost of a part of the budget.
    target_range : pair of float, sequence of pairs, or None, default=None
        The usual range of the targets, likewise; classes need none.

    Examples
    --------
    >>> from elmesh import MeshELM, Privacy
    >>> solver = MeshELM(privacy=Privacy(epsilon=1.0, delta=1e-5, input_range=(-2, 2), target_range=(0, 100)))
    """

    epsilon: float = 1.0
    delta: float = 1e-5
    max_colluders: int | None = None
    input_range: Any = None
    target_range: Any = None

    def check(self) -> None:
        """Raise if a field is not valid."""
        check_number("epsilon", self.epsilon)
        check_number("delta", self.delta)
        if self.epsilon > _MOST_EPSILON:
            raise ElmeshError(f"epsilon is {self.epsilon:g}; above {_MOST_EPSILON:g} nothing is protected any more.")
        if self.delta > _MOST_DELTA:
            raise ElmeshError(
                f"delta is {self.delta:g}; it must be at most {_MOST_DELTA:g}, and well below one in the number of "
                "rows, such as 1e-5."
            )
        if self.max_colluders is not None:
            check_count("max_colluders", self.max_colluders, least=0)
        for name in ("input_range", "target_range"):
            if getattr(self, name) is not None:
                _pairs(name, getattr(self, name))

    def colluders(self, n_sites: int) -> int:
        """Return how many of so many sites may collude.

        Examples
        --------
        >>> Privacy().colluders(10), Privacy(max_colluders=0).colluders(10)
        (3, 0)
        """
        k = n_sites // 3 if self.max_colluders is None else self.max_colluders
        if k > max(n_sites - 2, 0):
            raise ElmeshError(
                f"max_colluders is {k}, and there are {n_sites} sites; at least two sites must not collude, or there "
                "is nothing to hide in a sum."
            )
        return k

    def input_scale(self, n_columns: int) -> tuple[FloatArray, FloatArray] | None:
        """Return centre and spread of each input by the declared ranges; None if there are none."""
        return _scale("input_range", self.input_range, n_columns)

    def target_scale(self, n_columns: int) -> tuple[FloatArray, FloatArray] | None:
        """Return centre and spread of each target by the declared ranges; None if there are none."""
        return _scale("target_range", self.target_range, n_columns)


def uniform_scale(low: FloatArray, high: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return mean and standard deviation of the uniform distributions over ranges."""
    return (low + high) / 2.0, (high - low) / math.sqrt(12.0)


def _scale(name: str, given: Any, n_columns: int) -> tuple[FloatArray, FloatArray] | None:
    if given is None:
        return None
    pairs = _pairs(name, given)
    if len(pairs) not in (1, n_columns):
        raise ElmeshError(f"{name} has {len(pairs)} ranges for {n_columns} columns; give one for each, or one for all.")
    low, high = np.broadcast_to(pairs, (n_columns, 2)).T
    return uniform_scale(low, high)


def _pairs(name: str, given: Any) -> FloatArray:
    """Return ranges as an array of pairs."""
    try:
        pairs = np.atleast_2d(np.asarray(given, dtype=np.float64))
    except (ValueError, TypeError):
        pairs = np.empty((0, 0))
    widths = pairs[:, 1] - pairs[:, 0] if pairs.ndim == 2 and pairs.shape[1:] == (2,) and len(pairs) else np.zeros(1)
    if not (np.all(np.abs(pairs) <= _LARGEST) and np.all(widths >= 1.0 / _LARGEST)):
        raise ElmeshError(
            f"{name} must be a range such as (0, 100), or one for each column, the smaller end first; got {given!r}."
        )
    return pairs
