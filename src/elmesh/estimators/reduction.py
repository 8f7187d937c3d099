"""From the rows of all tasks to their statistics, and to those of halves of their rows."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from elmesh.data.features import Features
from elmesh.data.statistics import Reduced, SiteRows
from elmesh.data.tasks import Groups
from elmesh.solvers import Solver
from elmesh.typing import FloatArray, Label

__all__ = ["reduce_tasks"]

Halves = tuple[SiteRows, SiteRows]
# Bits at the end of a double that do not count in the hash of a row.
_LAST_BITS = np.uint64(20)


def reduce_tasks(
    solver: Solver,
    layer: Features,
    X: FloatArray,
    groups: Groups,
    targets: Mapping[Label, FloatArray],
    centre: bool,
    seed: int,
) -> tuple[list[Reduced], list[Halves] | None]:
    """Reduce the rows of each task, and halves of them where the solver decides by rows left out.

    The features of one task at a time are in memory.
    """
    reduced, halves = [], []
    for t, index in groups.items():
        rows, T = X[index], targets[t]
        Phi = layer(rows)
        reduced.append(Reduced.from_rows(Phi, T, centre=centre))
        if solver.learns_from_halves:
            halves.append(_halves(Phi, T, _row_hashes(np.hstack([rows, T]), seed)))
    return reduced, halves or None


def _halves(Phi: FloatArray, T: FloatArray, hashes: NDArray[np.uint64]) -> tuple[SiteRows, SiteRows]:
    """Return the statistics of two halves of a site's rows; the second one of a single row is empty.

    A row's half depends on its hash, so on its content alone: the order of rows does not matter.
    """
    order, middle = np.argsort(hashes, kind="stable"), (len(Phi) + 1) // 2
    first, second = (SiteRows.from_rows(Phi[rows], T[rows]) for rows in (order[:middle], order[middle:]))
    return first, second


def _row_hashes(rows: FloatArray, seed: int) -> NDArray[np.uint64]:
    """Return a number per row that depends on its content and the seed, and has nothing else to do with it.

    The last digits do not count: targets in other units, which are scaled with other rounding, give the same number.
    """
    # Adding zero makes the two zeros one.
    bits = np.ascontiguousarray(rows + 0.0).view(np.uint64)
    bits = (bits + (np.uint64(1) << (_LAST_BITS - np.uint64(1)))) >> _LAST_BITS
    factors = np.random.PCG64(np.random.SeedSequence((seed, 2))).random_raw(rows.shape[1] + 1) | np.uint64(1)
    mixed = (bits ^ (bits >> np.uint64(29))) * factors[:-1]
    total = np.sum(mixed ^ (mixed >> np.uint64(32)), axis=1, dtype=np.uint64) * factors[-1]
    return np.asarray(total ^ (total >> np.uint64(32)))
