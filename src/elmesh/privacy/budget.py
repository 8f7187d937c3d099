"""The privacy that a fit promises, as its user states it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from elmesh.checks import check_count, check_number
from elmesh.comm.row_counts import check_colluders, colluding_sites
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
    leave a site, against whoever receives it and against ``max_colluders`` other sites together.

    What counts as a neighbouring table:

    - One row is replaced by another, inputs and target; no row is added or removed. So the number of rows of a site is
      public, as are the names of sites and columns, and declared ranges and classes.
    - The unit is the row, not the person and not the site: of someone with k rows, the promise is about k times as
      weak in epsilon, and weaker in delta.
    - Rows are valid ones: inputs and targets are finite numbers of at most 1e75, and labels are among the declared
      classes (``shared_classes=[...]``, or ``classes`` in a network file). A table with another row is refused, and
      that it is refused can be seen. In a network inputs may be missing or of an unknown category.

    What is not private, and is to be kept as confidential as the rows:

    - a site's own model and its predictions: it is learnt from the site's rows without noise, and belongs to the site;
    - models that are gathered (``gather``, ``--gather``), which contain the models of all sites;
    - a model that was fitted in one process, and what it is saved to: it contains the models of all sites as well. Of
      it the common part alone, ``W_``, may be published.

    A fit counts what it releases itself. Further fits of the same rows cost their epsilon again: the log of a network's
    site counts all of its runs, and in one process it is up to the user.

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
        k = colluding_sites(n_sites) if self.max_colluders is None else self.max_colluders
        check_colluders(k, n_sites)
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
