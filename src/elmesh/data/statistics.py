r"""The sufficient statistics of a task.

None of these steps loses anything that the methods use:

1. :class:`Reduced` keeps the means of the hidden features H and of the targets T, and a triangular factor of the
   centred :math:`[H\;T]`, with at most L + d rows.
2. For methods with a common or a private part, :class:`SiteRows` takes features and targets apart.
3. For all others, :class:`Task` is the thin singular value decomposition :math:`H = P\,\mathrm{diag}(s)\,V'` with the
   targets in the same basis, :math:`Y = P'T`. In it every update is a pair of thin products. Tasks of unequal size are
   stacked with zero padding, which changes no solution.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import scipy.linalg
from scipy.linalg.blas import dsyrk

from elmesh.errors import ElmeshError
from elmesh.typing import FloatArray

__all__ = ["Moments", "Reduced", "SiteRows", "Statistics", "Task"]

# Shares of the trace that are added to the diagonal of products before they are factorised: rounding moves eigenvalues
# by about the first, and by more after rows were subtracted.
_RIDGES = (1e-15, 1e-14, 1e-13, 1e-12, 1e-11)


@dataclass(frozen=True, eq=False)
class Reduced:
    """A task's rows, reduced to at most L + d rows with the same Gram matrix.

    Parameters
    ----------
    n_rows : float
        The number of rows: the sum of their weights.
    mean : ndarray of shape (L + d,)
        Means of features and targets; zeros without an intercept.
    factor : ndarray of shape (k, L + d)
        Rows with the same Gram matrix as the centred data.
    width : int
        L, where features end and targets begin.
    centred : bool
        Whether the means were taken off.
    weights : ndarray of shape (k,) or None
        If ``factor`` has the rows themselves, each times the root of its weight, their weights; else None.
    """

    n_rows: float
    mean: FloatArray
    factor: FloatArray
    width: int
    centred: bool
    weights: FloatArray | None = None

    @classmethod
    def from_rows(cls, H: FloatArray, T: FloatArray, *, centre: bool, weights: FloatArray | None = None) -> Reduced:
        """Reduce the hidden features H (N x L) and targets T (N x d) of one task; a row may count several times."""
        if len(H) == 0 or len(H) != len(T):
            raise ElmeshError(f"A task needs as many targets as rows, and at least one; got {len(H)} and {len(T)}.")
        rows = np.hstack([H, T])
        w = np.ones(len(H)) if weights is None else weights
        mean = np.average(rows, axis=0, weights=weights) if centre else np.zeros(rows.shape[1])
        rows = rows - mean if centre else rows
        if weights is not None:
            rows = np.sqrt(w)[:, None] * rows
        few = rows.shape[0] <= rows.shape[1]
        return cls(
            float(w.sum()), mean, rows if few else _triangular(rows), H.shape[1], centre, weights=w if few else None
        )

    @classmethod
    def from_moments(cls, moments: Moments, width: int, *, centre: bool) -> Reduced:
        """Reduce rows of which only the moments are known."""
        mean = moments.sums / moments.rows if centre else np.zeros_like(moments.sums)
        gram = moments.products - moments.rows * np.outer(mean, mean) if centre else moments.products
        return cls(moments.rows, mean, _cholesky(gram), width, centre)


@dataclass(frozen=True, eq=False)
class Moments:
    """Sums over rows of features and targets side by side, which can be added and subtracted.

    Parameters
    ----------
    rows : float
        The sum of the weights of the rows.
    sums : ndarray of shape (p + d,)
        Weighted sums.
    products : ndarray of shape (p + d, p + d)
        Weighted sums of products, above and on the diagonal; zeros below.
    """

    rows: float
    sums: FloatArray
    products: FloatArray

    @classmethod
    def zero(cls, size: int) -> Moments:
        """Return the moments of no rows."""
        return cls(0.0, np.zeros(size), np.zeros((size, size), order="F"))

    def with_rows(self, rows: FloatArray, weights: FloatArray | None = None, sign: float = 1.0) -> Moments:
        """Return the moments with further rows of features and targets or, with sign -1, without some rows."""
        if not len(rows):
            return self
        n, sums = (float(len(rows)), rows.sum(axis=0)) if weights is None else (float(weights.sum()), weights @ rows)
        if weights is not None:
            rows = np.sqrt(weights)[:, None] * rows
        # Half of the product is computed, and added at once.
        products = dsyrk(sign, rows.T, beta=1.0, c=self.products)
        return Moments(self.rows + sign * n, self.sums + sign * sums, products)

    def __add__(self, other: Moments) -> Moments:
        return Moments(self.rows + other.rows, self.sums + other.sums, self.products + other.products)


def _triangular(rows: FloatArray) -> FloatArray:
    factor = scipy.linalg.qr(rows, mode="r", check_finite=False)[0]
    return np.asarray(factor[: rows.shape[1]], dtype=np.float64)


def _cholesky(gram: FloatArray) -> FloatArray:
    """Return a triangular factor of products; what rounding makes negative counts as almost zero."""
    diagonal, scale = np.arange(len(gram)), float(np.trace(gram))
    for ridge in _RIDGES:
        padded = gram.copy()
        padded[diagonal, diagonal] += ridge * scale
        factor, failed = scipy.linalg.lapack.dpotrf(padded, lower=0)
        if not failed:
            return np.asarray(factor, dtype=np.float64, order="C")
    raise ElmeshError("The sums over the rows of a task are not those of any rows; fit the model again.")


@dataclass(frozen=True, eq=False)
class SiteRows:
    """The rows of one site, or fewer rows with the same Gram matrix.

    Parameters
    ----------
    Phi : ndarray of shape (n, p)
        Features.
    T : ndarray of shape (n, d)
        Targets.
    rest : ndarray of shape (d,)
        Squared norms of the parts of the targets that no features explain.
    rows : float
        The number of rows before reduction: the sum of their weights.
    weights : ndarray of shape (n,) or None
        If these are the rows themselves, each times the root of its weight, their weights; else None.
    """

    Phi: FloatArray
    T: FloatArray
    rest: FloatArray
    rows: float
    weights: FloatArray | None = None

    @classmethod
    def from_reduced(cls, reduced: Reduced) -> SiteRows:
        """Take features and targets apart; a triangular factor has no features in its last rows."""
        p, factor = reduced.width, reduced.factor
        n = p if reduced.weights is None else len(factor)
        Phi, T = (np.ascontiguousarray(part) for part in (factor[:n, :p], factor[:n, p:]))
        return cls(Phi, T, np.sum(factor[n:, p:] ** 2, axis=0), reduced.n_rows, reduced.weights)

    @classmethod
    def from_rows(cls, Phi: FloatArray, T: FloatArray, weights: FloatArray | None = None) -> SiteRows:
        """Reduce features (N x p) and targets (N x d); there may be no rows."""
        if len(Phi) == 0:
            return cls(Phi, T, np.zeros(T.shape[1]), 0.0, np.zeros(0))
        return cls.from_reduced(Reduced.from_rows(Phi, T, centre=False, weights=weights))

    @property
    def width(self) -> int:
        """Number of features."""
        return int(self.Phi.shape[1])

    @property
    def outputs(self) -> int:
        """Number of columns of the targets."""
        return int(self.T.shape[1])

    @property
    def directions(self) -> int:
        """How many directions the targets span."""
        return int(np.linalg.matrix_rank(self.T)) if len(self.T) else 0

    @property
    def target_energy(self) -> float:
        """Squared norm of the targets."""
        return float(np.sum(self.T**2) + np.sum(self.rest))

    @property
    def arrays(self) -> tuple[FloatArray, ...]:
        """All numbers, for a digest."""
        return self.Phi, self.T, self.rest, np.asarray(self.rows), *(() if self.weights is None else (self.weights,))


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
    """

    V: FloatArray
    s: FloatArray
    Y: FloatArray
    rest: FloatArray
    rows: FloatArray

    @classmethod
    def from_reduced(cls, reduced: Reduced) -> Task:
        """Decompose one task."""
        H, T = reduced.factor[:, : reduced.width], reduced.factor[:, reduced.width :]
        P, s, Vt = scipy.linalg.svd(H, full_matrices=False, check_finite=False)
        Y = P.T @ T
        rest, rows = np.sum((T - P @ Y) ** 2), max(1, reduced.n_rows - reduced.centred)
        V = np.ascontiguousarray(Vt.T)
        return cls(V, s, Y, np.asarray(rest), np.asarray(float(rows)))

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
        return cls(V, s, Y, rest, rows)

    def agent(self, t: int) -> Task:
        """Return agent t of a stack, padding included."""
        return Task(self.V[t], self.s[t], self.Y[t], self.rest[t], self.rows[t])

    def agents(self, start: int, stop: int) -> Task:
        """Return some consecutive agents of a stack."""
        part = slice(start, stop)
        return Task(self.V[part], self.s[part], self.Y[part], self.rest[part], self.rows[part])

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
    def width(self) -> int:
        """Number of features."""
        return int(self.V.shape[-2])

    @property
    def outputs(self) -> int:
        """Number of columns of the targets."""
        return int(self.Y.shape[-1])

    @property
    def directions(self) -> int:
        """How many directions the targets span, of all tasks of a stack together."""
        return int(np.sum(np.linalg.matrix_rank(self.Y)))

    @property
    def arrays(self) -> tuple[FloatArray, ...]:
        """All numbers, for a digest."""
        return self.V, self.s, self.Y, np.asarray(self.rest), np.asarray(self.rows)

    @property
    def target_energy(self) -> FloatArray:
        """Squared norm of the targets: twice the objective at zero weights."""
        energy: FloatArray = np.sum(self.Y**2, axis=(-2, -1)) + self.rest
        return energy


#: The statistics of one task: of rows where features come in groups, else decomposed.
Statistics = Task | SiteRows
