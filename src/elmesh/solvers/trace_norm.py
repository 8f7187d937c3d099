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
2015). Shrinking subtracts :math:`\lambda/\ell` from the singular values, and those below vanish.

Two things make a round cheap. The fit's gradient is affine, so that at Y it follows from those at the last two B: one
product with the features per round serves the step and the report. And singular values come from the smaller Gram
matrix: what squaring loses is far below the threshold.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import scipy.linalg

from elmesh.data.statistics import Statistics, Task
from elmesh.math.kernels import square
from elmesh.solvers.base import Problem, RoundReport, Solution, Solver, Steps
from elmesh.solvers.state import PerAgent, SolverState
from elmesh.typing import FloatArray

__all__ = ["Factors", "TraceNorm", "TraceNormState", "shrink"]


# Share of the largest singular value that a threshold must exceed for its neighbourhood to be known from squares.
_SQUARES = 1e-4
# Up to this size all eigenvectors are found sooner than some of them.
_SMALL = 80


@dataclass(frozen=True, eq=False)
class Factors:
    """A matrix as ``left @ diag(sizes) @ right.T``, with orthonormal columns and positive sizes."""

    left: FloatArray
    sizes: FloatArray
    right: FloatArray

    @property
    def product(self) -> FloatArray:
        """The matrix."""
        return np.asarray(self.left @ (self.right * self.sizes).T)


@dataclass(frozen=True, eq=False)
class TraceNormState(SolverState):
    """The weights B and their factors, the fits and the gradient G there, and where the next step begins.

    ``Y`` is that point and ``GY`` the gradient of the fit there; ``step2`` is the square of the last step.
    """

    factors: Factors
    B: FloatArray
    fits: PerAgent
    G: FloatArray
    Y: FloatArray
    GY: FloatArray
    momentum: float
    step2: float


@dataclass(repr=False, eq=False)
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

    name: ClassVar[str] = "trace-norm"
    summary: ClassVar[str] = "the convex problem behind U and the A_t, by FISTA"
    state_type = TraceNormState
    pooled: ClassVar[bool] = True

    mu1: float = 1.0
    mu2: float = 1.0
    max_iter: int = 2000
    tol: float = 1e-2

    def directions(self, task: Statistics) -> int:
        """Return the number of columns of all weights side by side."""
        return (len(task.s) if isinstance(task, Task) else 1) * task.outputs

    def rank_for(self, outputs: int, width: int, directions: int) -> int:
        """Return the most columns that U can have."""
        return min(width, directions)

    @property
    def _lambda(self) -> float:
        return float(np.sqrt(self.mu1 * self.mu2))

    def init_state(self, problem: Problem) -> Steps[TraceNormState]:
        """Return zero weights."""
        yield from ()
        m, _, d = problem.task.Y.shape
        B = np.zeros((m * d, problem.task.V.shape[-2]))
        fits, G = _fit_and_gradient(problem.task, B)
        return TraceNormState(0, shrink(B, 1.0), B, fits, G, B, G, 1.0, float(np.vdot(G, G)))

    def step(self, problem: Problem, state: TraceNormState) -> Steps[TraceNormState]:
        """Take a proximal gradient step from Y, and extrapolate."""
        yield from ()
        task = problem.task
        ell = float(task.s.max(initial=0.0)) ** 2 or 1.0
        factors = shrink(state.Y - state.GY / ell, self._lambda / ell)
        B = factors.product
        fits, G = _fit_and_gradient(task, B)
        moved, overshoot = B - state.B, state.Y - B
        step = ell * overshoot
        step2 = float(np.vdot(step, step))
        if np.vdot(overshoot, moved) > 0:
            return TraceNormState(state.round + 1, factors, B, fits, G, B, G, 1.0, step2)
        momentum, beta = _next_momentum(state.momentum)
        Y, GY = B + beta * moved, G + beta * (G - state.G)
        return TraceNormState(state.round + 1, factors, B, fits, G, Y, GY, momentum, step2)

    def solution(self, problem: Problem, state: TraceNormState) -> Solution:
        """Return U and A with the least penalties whose product is B."""
        m, _, d = problem.task.Y.shape
        balance, factors = (self.mu2 / self.mu1) ** 0.25, state.factors
        roots = np.sqrt(factors.sizes)
        A = (factors.left * (roots / balance)).reshape(m, d, -1).mT
        return Solution(factors.right * (balance * roots), np.ascontiguousarray(A), mu2=float(self.mu2))

    def report(self, problem: Problem, state: TraceNormState) -> RoundReport:
        """Compare the last step with the penalty."""
        m, sizes, lam = len(problem.task.s), state.factors.sizes, self._lambda
        # B belongs to all: its norms are spread evenly, so that sums over tasks are right.
        even = np.full(m, 1.0 / m)
        return RoundReport(
            self.solution(problem, state),
            state.fits + lam * sizes.sum() * even,
            (state.step2 * even, np.zeros(m)),
            (lam**2 * max(1, len(sizes)) * even, even),
            (state,),
        )


def _fit_and_gradient(task: Task, B: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return every task's fit, and the gradient in B; weights are rows of B, which makes products faster."""
    Y = task.Y.mT
    s, (m, d, _) = task.s[:, None, :], Y.shape
    R = s * (B.reshape(m, d, -1) @ task.V) - Y
    gradient = (s * R) @ task.V.mT
    return 0.5 * (square(R) + task.rest), gradient.reshape(B.shape)


def shrink(X: FloatArray, threshold: float) -> Factors:
    """Subtract a positive threshold from the singular values of X, and drop those below it.

    Examples
    --------
    >>> shrink(np.diag([3.0, 0.5, 2.0]), 1.0).product
    array([[2., 0., 0.],
           [0., 0., 0.],
           [0., 0., 1.]])
    """
    if X.shape[0] > X.shape[1]:
        transposed = shrink(X.T, threshold)
        return Factors(transposed.right, transposed.sizes, transposed.left)
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
    """Return factors in row-major order, as after reading a file: products round differently by layout."""
    return Factors(np.ascontiguousarray(left), sizes, np.ascontiguousarray(right))


def _next_momentum(momentum: float) -> tuple[float, float]:
    """Return Nesterov's next momentum, and how far to go on beyond the point reached."""
    following = (1.0 + np.sqrt(1.0 + 4.0 * momentum**2)) / 2.0
    return following, (momentum - 1.0) / following
