r"""MTFL (Argyriou, Evgeniou, Pontil 2008): all tasks in one place, with features they learn to share.

Over the weights :math:`W = [W_1 \dots W_m]` and a metric D, positive semidefinite with trace at most one,

.. math:: \min_{W, D}\; \sum_t \tfrac12 |H_t W_t - T_t|^2
          + \tfrac\mu2 \sum_t \langle W_t, D^{-1} W_t\rangle + \tfrac{\mu\epsilon}2 \operatorname{tr} D^{-1}.

For given D every task is a ridge regression in the metric :math:`D^{-1}`. For given W the best D is
:math:`S/\operatorname{tr} S` with :math:`S = (WW' + \epsilon I)^{1/2}`, which leaves a smooth and convex function of W,

.. math:: F(W) = \sum_t \tfrac12 |H_t W_t - T_t|^2 + \tfrac\mu2 (\operatorname{tr} S)^2:

a penalty on the square of the trace norm. Alternating the two never increases F. All of W together has few columns, so
D is a multiple of the identity plus a matrix of low rank, and no L x L matrix is ever decomposed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from elmesh.checks import check_number
from elmesh.data.statistics import Task
from elmesh.math.kernels import correlation, fit, project, ridge_in_metric, square
from elmesh.solvers.base import Problem, RoundReport, Solution, Solver, Steps
from elmesh.solvers.state import PerAgent, SolverState
from elmesh.typing import FloatArray

__all__ = ["MTFL", "MTFLState", "Metric"]


@dataclass(frozen=True, eq=False)
class Metric:
    """A metric D = a I + Q diag(b) Q', Q with orthonormal columns."""

    a: float
    Q: FloatArray
    b: FloatArray

    @property
    def _root_b(self) -> FloatArray:
        """Q' D^(1/2) Q less root a, without cancellation."""
        return np.asarray(self.b / (np.sqrt(self.a + self.b) + np.sqrt(self.a)))

    @property
    def root(self) -> FloatArray:
        """Its symmetric root, which does not depend on signs or on an order."""
        return np.asarray((self.Q * self._root_b) @ self.Q.T + np.sqrt(self.a) * np.eye(len(self.Q)))

    def times(self, X: FloatArray) -> FloatArray:
        """Return D X."""
        return np.asarray(self.a * X + self.Q @ (self.b[:, None] * (self.Q.T @ X)))

    def root_times(self, X: FloatArray) -> FloatArray:
        """Return D^(1/2) X."""
        return np.asarray(np.sqrt(self.a) * X + self.Q @ (self._root_b[:, None] * (self.Q.T @ X)))


@dataclass(frozen=True, eq=False)
class MTFLState(SolverState):
    """The metric D, the weights W that are best in it, their coefficients A in its root, and the best metric for W.

    ``trace`` is that of S, and ``pull`` every :math:`D^{-1}W_t` for the best metric.
    """

    D: Metric
    W: PerAgent
    A: PerAgent
    best: Metric
    trace: float
    pull: PerAgent


@dataclass(repr=False, eq=False)
class MTFL(Solver):
    r"""Multi-task feature learning with all data in one place.

    Tasks share a metric D: directions that many tasks use cost each of them less. The fitted ``U_`` is the root of D
    (L x L), so that a task's private coefficients are a ridge regression with penalty ``mu`` on the features
    :math:`H_t D^{1/2}`.

    Parameters
    ----------
    mu : float, default=1.0
        Penalty on the square of the trace norm of all tasks' weights.
    eps : float, default=1e-3
        What is added to :math:`WW'` before its root is taken, in the units of squared weights. The smaller, the fewer
        directions are shared and the more rounds it takes; with a very large one there is nothing to share, and every
        task is a ridge regression with penalty ``mu`` times L.
    max_iter : int, default=500
        Most alternations.
    tol : float, default=1e-2
        Stop when the objective's gradient in W is within ``tol`` of the penalty's.

    Examples
    --------
    >>> from elmesh import MTFL
    >>> MTFL(mu=10.0, eps=20.0).eps
    20.0
    """

    name: ClassVar[str] = "mtfl"
    summary: ClassVar[str] = "a metric that all tasks share (Argyriou, Evgeniou, Pontil 2008)"
    state_type = MTFLState
    pooled: ClassVar[bool] = True

    mu: float = 1.0
    eps: float = 1e-3
    max_iter: int = 500
    tol: float = 1e-2

    def check(self) -> None:
        """Check every parameter."""
        super().check()
        check_number("eps", self.eps)

    def rank_for(self, outputs: int, width: int, directions: int) -> int:
        """Return the number of columns of D's root."""
        return width

    def init_state(self, problem: Problem) -> Steps[MTFLState]:
        """Return a metric without preferred directions."""
        yield from ()
        L = problem.task.V.shape[-2]
        return self._state(problem, 0, Metric(1.0 / L, np.zeros((L, 0)), np.zeros(0)))

    def step(self, problem: Problem, state: MTFLState) -> Steps[MTFLState]:
        """Take the best metric for the weights, and fit every task in it."""
        yield from ()
        return self._state(problem, state.round + 1, state.best)

    def _state(self, problem: Problem, k: int, D: Metric) -> MTFLState:
        W, A = _ridge_in(D, problem.task, self.mu)
        return MTFLState(k, D, W, A, *_best_metric(W, self.eps))

    def solution(self, problem: Problem, state: MTFLState) -> Solution:
        """Return the root of the metric, and every task's weights in it."""
        return Solution(state.D.root, state.A, mu2=float(self.mu))

    def report(self, problem: Problem, state: MTFLState) -> RoundReport:
        """Compare the gradient of F with that of the penalty."""
        task, mu, m = problem.task, self.mu, len(problem.task.s)
        R = project(task, state.W) - task.Y
        gradient = task.V @ correlation(task, R) + mu * state.pull
        return RoundReport(
            self.solution(problem, state),
            fit(task, R) + mu / (2 * m) * state.trace**2,
            (square(gradient), np.zeros(m)),
            (square(mu * state.pull), np.ones(m)),
            (state,),
        )


def _ridge_in(D: Metric, task: Task, mu: float) -> tuple[FloatArray, FloatArray]:
    r"""Return every task's ridge regression in the metric :math:`D^{-1}`, and it in the basis :math:`D^{1/2}`."""
    X = ridge_in_metric(task, D.a, D.Q, D.b, mu)
    return D.times(X), D.root_times(X)


def _best_metric(W: FloatArray, eps: float) -> tuple[Metric, float, FloatArray]:
    r"""Return the best D for W, the trace of :math:`S = (WW' + \epsilon I)^{1/2}`, and every :math:`D^{-1}W_t`."""
    m, L, d = W.shape
    Q, sigma, right = np.linalg.svd(np.moveaxis(W, 0, 1).reshape(L, m * d), full_matrices=False)
    root = np.hypot(sigma, np.sqrt(eps))
    trace = float(root.sum() + (L - len(sigma)) * np.sqrt(eps))
    pull = trace * (Q * (sigma / root)) @ right
    D = Metric(float(np.sqrt(eps)) / trace, Q, sigma**2 / (root + np.sqrt(eps)) / trace)
    return D, trace, np.ascontiguousarray(np.moveaxis(pull.reshape(L, m, d), 1, 0))
