r"""Trace-norm regularisation at the centre, by FISTA: the convex problem behind U and the A_t.

Over the weights of all tasks side by side, :math:`B = [B_1 \dots B_m]`,

.. math:: \min_B\; F(B) = \sum_t \tfrac12 |H_t B_t - T_t|^2 + \lambda |B|_* , \qquad \lambda = \sqrt{\mu_1 \mu_2} .

Because :math:`\lambda|B|_*` is the least :math:`\tfrac{\mu_1}2|U|^2 + \tfrac{\mu_2}2|A|^2` with :math:`UA = B`, this is
problem (6) of :class:`~elmesh.solvers.mtl_elm.MTLELM` with as many columns of U as it takes. FISTA (Beck and Teboulle
2009), :math:`\ell` the largest :math:`|H_t|^2`, is

.. math::
    B^{k+1} &= \operatorname{shrink}_{\lambda/\ell}\bigl(Y^k - \nabla f(Y^k)/\ell\bigr) \\
    Y^{k+1} &= B^{k+1} + \beta_k (B^{k+1} - B^k),

with :math:`\beta_k` back at zero whenever the step points away from where the last one went (O'Donoghue and Candès
2015). Shrinking takes :math:`\lambda/\ell` off the singular values, and those below vanish.

Two things make a round cheap. The fit's gradient is affine, so that at Y it follows from those at the last two B, one
product with the features a round serves the step and the report. And singular values come from the smaller Gram matrix:
what squaring loses is far below the threshold.
"""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import numpy as np
import scipy.linalg

from elmesh.checks import check_count, check_number
from elmesh.comm.requests import Kept, Place, Program, Report, State
from elmesh.data.statistics import Task
from elmesh.math.kernels import square
from elmesh.solvers.base import Solver
from elmesh.typing import FloatArray

__all__ = ["TraceNorm", "shrink"]


# Share of the largest singular value that a threshold must exceed for its neighbourhood to be known from squares.
_SQUARES = 1e-4
# Up to this size all eigenvectors are found sooner than some of them.
_SMALL = 80


class TraceNorm(Solver):
    r"""Multi-task ELM with a penalty on the trace norm of all weights, with all data in one place.

    .. math:: \min_B\; \sum_t \tfrac12 |H_t B_t - T_t|^2 + \sqrt{\mu_1\mu_2}\, |[B_1 \dots B_m]|_*

    It is convex, has no rank to choose, and its least value is that of :class:`MTLELM` with a rank that is enough. With
    :math:`B = P \Sigma Q'`, the fitted ``U_`` is :math:`(\mu_2/\mu_1)^{1/4} P \Sigma^{1/2}` and all A_t side by side
    are :math:`(\mu_1/\mu_2)^{1/4} \Sigma^{1/2} Q'`, where the objective of :class:`MTLELM` is the one above.

    Parameters
    ----------
    mu1, mu2 : float, default=1.0
        Penalties on U and on the A_t; only their product matters to the weights.
    max_iter : int, default=2000
        Most rounds.
    tol : float, default=1e-2
        Stop when the last step, by length of step, is within ``tol`` of the penalty's pull, which is
        :math:`\sqrt{\mu_1\mu_2}` times the root of the rank of B.

    Notes
    -----
    A round's step has a fixed length, one over the largest :math:`|H_t|^2`: there is no line search, since the fit is
    quadratic and the bound is attained.

    Examples
    --------
    >>> from elmesh import TraceNorm
    >>> TraceNorm(mu1=0.1).mu1
    0.1
    """

    pooled: ClassVar[bool] = True
    max_iter: int
    tol: float

    def __init__(self, mu1: float = 1.0, mu2: float = 1.0, max_iter: int = 2000, tol: float = 1e-2) -> None:
        self.mu1 = mu1
        self.mu2 = mu2
        self.max_iter = max_iter
        self.tol = tol

    def check(self) -> None:
        """Check every parameter."""
        check_number("mu1", self.mu1)
        check_number("mu2", self.mu2)
        check_count("max_iter", self.max_iter)
        check_number("tol", self.tol, zero=True)

    @property
    def private_penalty(self) -> float | None:
        """The penalty on A_t: at the optimum it is a ridge regression on the features that U makes."""
        return float(self.mu2)

    def resolve_rank(self, task: Task) -> int:
        """Return the most columns that U can have."""
        m, _, d = task.Y.shape
        return int(min(task.V.shape[-2], m * d))

    def program(self, task: Task, place: Place, rank: int, kept: Kept | None = None) -> Program:
        """Return the rounds over the stacked tasks, from zero weights."""
        m, _, d = task.Y.shape
        ell, lam = float(task.s.max(initial=0.0)) ** 2 or 1.0, float(np.sqrt(self.mu1 * self.mu2))
        balance, even = (self.mu2 / self.mu1) ** 0.25, np.full(m, 1.0 / m)
        smooth = _Fit(task)
        if kept:
            factors = Factors(*(kept.common[name] for name in Factors._fields))
            k, momentum, step2 = int(kept.common["round"]), float(kept.common["momentum"]), float(kept.common["step2"])
            Y, GY = kept.common["Y"], kept.common["GY"]
            B = factors.product
            fits, G = smooth(B)
        else:
            B = np.zeros((m * d, task.V.shape[-2]))
            fits, G = smooth(B)
            factors, k, momentum, step2 = shrink(B, 1.0), 0, 1.0, float(np.vdot(G, G))
            Y, GY = B, G  # where the next step begins, and the gradient there
        while True:
            left, sizes, right = factors
            roots = np.sqrt(sizes)
            A = (left * (roots / balance)).reshape(m, d, -1).mT
            state = State(right * (balance * roots), np.ascontiguousarray(A))
            keep = {"round": k, "momentum": momentum, "step2": step2, "Y": Y, "GY": GY, **factors._asdict()}
            report = Report(
                k,
                state,
                # B belongs to all: what concerns it is spread evenly, so that sums over tasks are what they should be.
                fits + lam * sizes.sum() * even,
                (step2 * even, np.zeros(m)),
                (lam**2 * max(1, len(sizes)) * even, even),
                (Kept.of({}, keep),),
            )
            if (yield report) or k == self.max_iter:
                return state
            before, G_before, Y_before = B, G, Y
            factors = shrink(Y - GY / ell, lam / ell)
            B = factors.product
            fits, G = smooth(B)
            moved, overshoot = B - before, Y_before - B
            step = ell * overshoot
            k, step2 = k + 1, float(np.vdot(step, step))
            if np.vdot(overshoot, moved) > 0:
                momentum, Y, GY = 1.0, B, G
            else:
                momentum, beta = _next(momentum)
                Y, GY = B + beta * moved, G + beta * (G - G_before)


class _Fit:
    """The fit of stacked weights and its gradient. Weights are rows here: their products with features are faster."""

    def __init__(self, task: Task) -> None:
        self._V, self._s, self._rest = task.V, task.s[:, None, :], task.rest
        self._Y = np.ascontiguousarray(task.Y.mT)

    def __call__(self, B: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return every task's fit, and the gradient in B, of shape (m d, L) as B is."""
        m, d, _ = self._Y.shape
        R = self._s * (B.reshape(m, d, -1) @ self._V) - self._Y
        gradient = (self._s * R) @ self._V.mT
        return 0.5 * (square(R) + self._rest), gradient.reshape(B.shape)


class Factors(NamedTuple):
    """A matrix as ``left @ diag(sizes) @ right.T``, with orthonormal columns and positive sizes."""

    left: FloatArray
    sizes: FloatArray
    right: FloatArray

    @property
    def product(self) -> FloatArray:
        """The matrix."""
        return np.asarray(self.left @ (self.right * self.sizes).T)


def shrink(X: FloatArray, threshold: float) -> Factors:
    """Take ``threshold`` off the singular values of X, and drop those that it reaches.

    Parameters
    ----------
    X : ndarray of shape (n, p)
        Any matrix.
    threshold : float
        More than zero.

    Returns
    -------
    Factors
        With as many columns as there are singular values above the threshold.

    Examples
    --------
    >>> left, sizes, right = shrink(np.diag([3.0, 0.5, 2.0]), 1.0)
    >>> (left * sizes) @ right.T
    array([[2., 0., 0.],
           [0., 0., 0.],
           [0., 0., 1.]])
    """
    if X.shape[0] > X.shape[1]:
        right, sizes, left = shrink(X.T, threshold)
        return Factors(left, sizes, right)
    gram = X @ X.T
    if threshold < _SQUARES * np.sqrt(np.trace(gram)):
        left, values, right = np.linalg.svd(X, full_matrices=False)
        keep = values > threshold
        return _ordered(left[:, keep], values[keep] - threshold, right[keep].T)
    if len(gram) <= _SMALL:
        squares, vectors = np.linalg.eigh(gram)
        vectors = vectors[:, squares > threshold**2]
    else:
        vectors = scipy.linalg.eigh(gram, subset_by_value=(threshold**2, np.inf), check_finite=False)[1]
    right = X.T @ vectors
    # Their norms are the singular values, to more digits than the roots of what eigh gave.
    values = np.linalg.norm(right, axis=0)
    keep = values > threshold
    return _ordered(vectors[:, keep], values[keep] - threshold, right[:, keep] / values[keep])


def _ordered(left: FloatArray, sizes: FloatArray, right: FloatArray) -> Factors:
    """Lay factors out row by row, as they are read back from a file: a product in another order rounds otherwise."""
    return Factors(np.ascontiguousarray(left), sizes, np.ascontiguousarray(right))


def _next(momentum: float) -> tuple[float, float]:
    """Return Nesterov's next momentum, and how far to go on beyond the point reached."""
    following = (1.0 + np.sqrt(1.0 + 4.0 * momentum**2)) / 2.0
    return following, (momentum - 1.0) / following
