r"""The sufficient statistics of a task.

Two steps, neither of which loses anything that the methods use:

1. :class:`Reduced` keeps the means of the hidden features H and of the targets T, and a triangular factor of the
   centred :math:`[H\;T]`, with at most L + d rows.
2. :class:`Task` is the thin singular value decomposition :math:`H = P\,\mathrm{diag}(s)\,V'` with the targets in the
   same basis, :math:`Y = P'T`. In it every update is a pair of thin products. Tasks of unequal size are stacked with
   zero padding, which changes no solution.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import scipy.linalg

from elmesh.errors import ElmeshError
from elmesh.typing import FloatArray

__all__ = ["Reduced", "Task"]


@dataclass(frozen=True, eq=False)
class Reduced:
    """A task's rows, reduced to at most L + d rows with the same Gram matrix.

    Parameters
    ----------
    n_rows : int
        The number of rows.
    mean : ndarray of shape (L + d,)
        Means of features and targets; zeros without an intercept.
    factor : ndarray of shape (k, L + d)
        Rows with the same Gram matrix as the centred data.
    width : int
        L, where features end and targets begin.
    centred : bool
        Whether the means were taken off.
    """

    n_rows: int
    mean: FloatArray
    factor: FloatArray
    width: int
    centred: bool

    @classmethod
    def from_rows(cls, H: FloatArray, T: FloatArray, *, centre: bool) -> Reduced:
        """Reduce the hidden features H (N x L) and targets T (N x d) of one task."""
        if len(H) == 0 or len(H) != len(T):
            raise ElmeshError(f"A task needs as many targets as rows, and at least one; got {len(H)} and {len(T)}.")
        rows = np.hstack([H, T])
        mean = rows.mean(axis=0) if centre else np.zeros(rows.shape[1])
        return cls(len(H), mean, _triangular(rows - mean if centre else rows), H.shape[1], centre)


def _triangular(rows: FloatArray) -> FloatArray:
    if rows.shape[0] <= rows.shape[1]:
        return rows
    factor = scipy.linalg.qr(rows, mode="r", check_finite=False)[0]
    return np.asarray(factor[: rows.shape[1]], dtype=np.float64)


@dataclass(frozen=True, eq=False)
class Task:
    r"""One task, or several stacked along a leading agent axis.

    Parameters
    ----------
    V : ndarray of shape (..., L, q)
        Right singular vectors of the hidden features H; q = min(N, L), zero-padded where tasks differ.
    s : ndarray of shape (..., q)
        Singular values of H.
    Y : ndarray of shape (..., q, d)
        Targets in the basis of the left singular vectors.
    rest : ndarray of shape (...)
        Squared norm of the part of the targets outside the column space of H.
    rows : ndarray of shape (...)
        Degrees of freedom of the residuals: the number of rows, less one for an intercept.
    column_rest : ndarray of shape (..., d), optional
        ``rest`` by column of the targets.
    """

    V: FloatArray
    s: FloatArray
    Y: FloatArray
    rest: FloatArray
    rows: FloatArray
    column_rest: FloatArray | None = None

    @classmethod
    def from_reduced(cls, reduced: Reduced) -> Task:
        """Decompose one task."""
        H, T = reduced.factor[:, : reduced.width], reduced.factor[:, reduced.width :]
        P, s, Vt = scipy.linalg.svd(H, full_matrices=False, check_finite=False)
        Y = P.T @ T
        squares, rows = (T - P @ Y) ** 2, max(1, reduced.n_rows - reduced.centred)
        V = np.ascontiguousarray(Vt.T)
        return cls(V, s, Y, np.asarray(np.sum(squares)), np.asarray(float(rows)), squares.sum(axis=0))

    @classmethod
    def stack(cls, tasks: Sequence[Task], least: int = 0) -> Task:
        """Stack single tasks of equal width, padding with zeros where they differ in rows or outputs.

        ``least`` is the least number of rows, to which tasks with fewer are padded.
        """
        m, L = len(tasks), tasks[0].V.shape[0]
        q = max(least, *(task.s.size for task in tasks))
        d = max(task.Y.shape[1] for task in tasks)
        V, s, Y = np.zeros((m, L, q)), np.zeros((m, q)), np.zeros((m, q, d))
        for t, task in enumerate(tasks):
            k = task.s.size
            V[t, :, :k], s[t, :k], Y[t, :k, : task.Y.shape[1]] = task.V, task.s, task.Y
        rest, rows = np.array([(float(task.rest), float(task.rows)) for task in tasks]).T
        column_rest = np.zeros((m, d))
        for t, task in enumerate(tasks):
            column_rest[t, : task.Y.shape[1]] = 0.0 if task.column_rest is None else task.column_rest
        return cls(V, s, Y, rest, rows, column_rest)

    def agent(self, t: int) -> Task:
        """Return agent t of a stack, padding included."""
        column_rest = None if self.column_rest is None else self.column_rest[t]
        return Task(self.V[t], self.s[t], self.Y[t], self.rest[t], self.rows[t], column_rest)

    def agents(self, start: int, stop: int) -> Task:
        """Return some consecutive agents of a stack."""
        part = slice(start, stop)
        column_rest = None if self.column_rest is None else self.column_rest[part]
        return Task(self.V[part], self.s[part], self.Y[part], self.rest[part], self.rows[part], column_rest)

    @cached_property
    def s_column(self) -> FloatArray:
        """Singular values of H, as a column."""
        return self.s[..., :, None]

    @cached_property
    def s2(self) -> FloatArray:
        """Eigenvalues of H'H, as a column."""
        return self.s_column**2

    @cached_property
    def sY(self) -> FloatArray:
        """V' times H'T."""
        return self.s_column * self.Y

    @property
    def target_energy(self) -> FloatArray:
        """Squared norm of the targets: twice the objective at zero weights."""
        energy: FloatArray = np.sum(self.Y**2, axis=(-2, -1)) + self.rest
        return energy
