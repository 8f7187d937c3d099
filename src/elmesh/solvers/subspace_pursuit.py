r"""Subspace pursuit on a star: DGSP and DNSP (Wang, Kolar and Srebro, arXiv 1603.02185).

Task t has :math:`W_t = U A_t`, with an orthonormal U that is the same for all tasks and grows by one column per
round:

.. math::
    A_t &= \arg\min_A f_t(UA), \qquad f_t(W) = \tfrac12 |H_t W - T_t|^2 + \tfrac\mu2 |W|^2 \\
    G_t &= \text{a direction of descent of } f_t \text{ at } W_t \text{, with the sign of its gradient} \\
    u &= \text{the leading left singular vector of } [G_1 \dots G_m], \text{ orthonormalised against } U

The G_t go to the hub and u comes back. Because U is orthonormal, :math:`|U A_t| = |A_t|`: the A step is a ridge
regression on W within the span of U, each round adds to the span, and the objective :math:`\sum_t f_t` never increases.

The paper's loss has no penalty. Here f_t takes its place throughout, in the refit and in the directions, so both
methods end at each task's own ridge regression once no direction is left.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Set
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np
import scipy.linalg

from elmesh.comm.requests import HubReduce, Request
from elmesh.data.statistics import Statistics, Task
from elmesh.math.kernels import correlation, fit, project, residual, ridge, solve_A, square
from elmesh.solvers.base import EXACT_A, LowRankSolver, Problem, RoundReport, Solution, Steps
from elmesh.solvers.state import PerAgent, SolverState
from elmesh.typing import FloatArray

__all__ = ["DGSP", "DNSP", "PursuitState", "SubspacePursuit", "new_direction"]

# Share of its first direction below which a task's direction is rounding.
_ROUNDING = 1e-12
# Share of a unit vector outside U below which it is not used as a new direction.
_INSIDE = 1e-6


@dataclass(frozen=True, eq=False)
class PursuitState(SolverState):
    """The basis, each task's coefficients and features in it, its direction G, and the square of its first one."""

    U: FloatArray
    A: PerAgent
    HU: PerAgent
    G: PerAgent
    first: PerAgent


@dataclass(repr=False, eq=False)
class SubspacePursuit(LowRankSolver, abstract=True):
    """Base of DGSP and DNSP, which differ in the direction."""

    state_type = PursuitState
    requires: ClassVar[Set[type[Request]]] = frozenset({HubReduce})
    graph = "star"

    rank: int | str = "auto"
    mu: float = 1.0
    message_bits: int | str = 64

    @abstractmethod
    def direction(self, task: Task, W: FloatArray, R: FloatArray) -> FloatArray:
        """Return each task's direction G at W, with the residual R in the task's basis."""

    def init_state(self, problem: Problem) -> Steps[PursuitState]:
        """Return a basis without columns."""
        yield from ()
        task, lead = problem.task, problem.task.s.shape[:-1]
        U, A = np.zeros((task.V.shape[-2], 0)), np.zeros((*lead, 0, task.Y.shape[-1]))
        HU = np.zeros((*task.s.shape, 0))
        G = self.direction(task, U @ A, residual(task, HU, A))
        return PursuitState(0, U, A, HU, G, square(G))

    def step(self, problem: Problem, state: PursuitState) -> Steps[PursuitState]:
        """Add a column to U and refit; a round that found no new column is the last."""
        task, U, G = problem.task, state.U, state.G
        if state.round > U.shape[1]:
            return state
        # A task that has converged sends zeros, and not the direction of its rounding errors.
        sent = np.where((square(G) > _ROUNDING**2 * state.first)[..., None, None], G, 0.0)
        u = yield HubReduce(sent, partial(new_direction, U))
        if self.message_bits != 64:
            u = _orthonormal_to(U, u)
        if not u.any():
            return PursuitState(state.round + 1, U, state.A, state.HU, G, state.first)
        U = np.column_stack([U, u])
        HU = np.concatenate([state.HU, project(task, u[:, None])], axis=-1)
        A = solve_A(task, HU, np.zeros(1), self.mu, 0.0)
        G = self.direction(task, U @ A, residual(task, HU, A))
        return PursuitState(state.round + 1, U, A, HU, G, state.first)

    def solution(self, problem: Problem, state: PursuitState) -> Solution:
        """Return U and the A_t."""
        return Solution(state.U, state.A, mu2=float(self.mu))

    def report(self, problem: Problem, state: PursuitState) -> RoundReport:
        """Compare the directions with the first ones; A is exact."""
        lead = problem.task.s.shape[:-1]
        objective = fit(problem.task, residual(problem.task, state.HU, state.A)) + self.mu / 2 * square(state.A)
        residuals, scale = (square(state.G), np.zeros(lead)), (state.first, np.ones(lead))
        return RoundReport(self.solution(problem, state), objective, residuals, scale, (state,), EXACT_A)


class DGSP(SubspacePursuit):
    r"""Distributed gradient subspace pursuit (Wang, Kolar and Srebro 2016).

    The first task is the hub of a star. In each of ``rank`` rounds every task sends its gradient

    .. math:: G_t = H_t'(H_t W_t - T_t) + \mu W_t, \qquad W_t = U A_t,

    the hub sends back the leading left singular vector of all of them, and every task adds it to U as a new column and
    refits its A_t. Each A_t minimises :math:`\tfrac12|H_t U A_t - T_t|^2 + \tfrac\mu2|A_t|^2`; the sum of these is the
    objective in ``history_``, and ``dual_residual`` the size of the gradients relative to the first.

    Parameters
    ----------
    rank : int or "auto", default="auto"
        Number of rounds, and of columns of U unless gradients vanish before. "auto" is two for each column of the
        widest target, as far as the features can use them.
    mu : float, default=1.0
        Penalty on the weights.
    message_bits : {2, 4, 8, 16, 32, 64, "auto"}, default=64
        Bits per number in messages to the hub and back, as for :class:`MeshELM`.

    Notes
    -----
    A task sends the hub L x d numbers per round, in the first :math:`H_t'T_t`: less private than :class:`DMTLELM`,
    whose messages are bases alone.

    Examples
    --------
    >>> from elmesh import DGSP
    >>> DGSP(rank=6).rank
    6
    """

    name: ClassVar[str] = "dgsp"
    summary: ClassVar[str] = "a hub extends a shared basis along gradients (Wang, Kolar, Srebro 2016)"
    spanned_by: ClassVar[str] = "the features of all tasks together"

    def directions(self, task: Statistics) -> int:
        """Return the number of dimensions of the features, in which gradients lie."""
        if not isinstance(task, Task):
            raise TypeError("Subspace pursuit has no features in groups.")
        tiny = task.V.shape[-2] * np.finfo(np.float64).eps * task.s.max(axis=-1, keepdims=True)
        return int(np.sum(task.s > tiny))

    def direction(self, task: Task, W: FloatArray, R: FloatArray) -> FloatArray:
        """Return the gradient of each task's objective."""
        return np.asarray(task.V @ correlation(task, R) + self.mu * W)


class DNSP(SubspacePursuit):
    r"""Distributed Newton subspace pursuit (Wang, Kolar and Srebro 2016).

    As :class:`DGSP`, with the Newton direction of each task's objective in place of its gradient,

    .. math:: G_t = (H_t'H_t + \mu I)^{-1}\bigl(H_t'(H_t W_t - T_t) + \mu W_t\bigr) = W_t - \beta_t ,

    where :math:`\beta_t` is the task's own ridge regression, the end of Newton's step on a quadratic. U never leaves
    the span of all :math:`\beta_t`, and after as many rounds as that has dimensions every task is at its own ridge
    regression. Tasks learn from each other by the rounds that are left out.

    Parameters
    ----------
    rank : int or "auto", default="auto"
        Number of rounds, and of columns of U unless directions vanish before. "auto" is two for each column of the
        widest target, as far as the data can use them.
    mu : float, default=1.0
        Penalty on the weights.
    message_bits : {2, 4, 8, 16, 32, 64, "auto"}, default=64
        Bits per number in messages to the hub and back, as for :class:`MeshELM`.

    Notes
    -----
    A task sends the hub L x d numbers per round, in the first :math:`\beta_t` itself: less private than
    :class:`DMTLELM`, whose messages are bases alone.

    Examples
    --------
    >>> from elmesh import DNSP
    >>> DNSP(mu=0.5).mu
    0.5
    """

    name: ClassVar[str] = "dnsp"
    summary: ClassVar[str] = "a hub extends a shared basis along Newton directions (Wang, Kolar, Srebro 2016)"

    def direction(self, task: Task, W: FloatArray, R: FloatArray) -> FloatArray:
        """Return the Newton direction of each task's objective."""
        return np.asarray(W - ridge(task, self.mu))


def new_direction(U: FloatArray, directions: FloatArray) -> FloatArray:
    """Return the leading left singular vector of all tasks' directions (m, L, d), orthonormalised against U.

    It is a unit vector whose largest entry is positive, or zero if U has all directions.

    Examples
    --------
    >>> U = np.array([[1.0], [0.0], [0.0]])
    >>> u = new_direction(U, np.array([[[3.0], [-3.0], [-4.0]], [[0.0], [0.0], [0.0]]]))
    >>> float(U[:, 0] @ u) == 0.0, u[1:]
    (True, array([0.6, 0.8]))
    """
    G = np.moveaxis(directions, 0, 1).reshape(len(U), -1)
    largest = np.abs(G).max(initial=0.0)
    if largest == 0:
        return np.zeros(len(U))
    G = G / largest  # squares of what is left neither overflow nor vanish
    u = _outside(U, _leading(G))
    if np.linalg.norm(u) <= _INSIDE:
        # Newton directions may agree most on what U has already; the rest of them still gives a new one.
        beyond = _outside(U, G)
        if np.linalg.norm(beyond) <= _ROUNDING * np.linalg.norm(G):
            return np.zeros(len(U))
        u = _outside(U, _leading(beyond))
    u = _orthonormal_to(U, u / np.linalg.norm(u))  # once more, for rounding: twice is enough
    return np.asarray(u * np.sign(u[np.argmax(np.abs(u))]))


def _orthonormal_to(U: FloatArray, u: FloatArray) -> FloatArray:
    """Return the unit vector of what of u is outside of U; zero if that is rounding."""
    u = _outside(U, u)
    norm = float(np.linalg.norm(u))
    return u / norm if norm > _INSIDE else np.zeros_like(u)


def _outside(U: FloatArray, X: FloatArray) -> FloatArray:
    return np.asarray(X - U @ (U.T @ X))


def _leading(G: FloatArray) -> FloatArray:
    """Return the leading left singular vector, from the smaller of the two Gram matrices."""
    # Relative to the first, the gap between two squares is no smaller than that between the values: squaring is safe.
    tall = G.shape[0] > G.shape[1]
    gram = G.T @ G if tall else G @ G.T
    last = len(gram) - 1
    vector = scipy.linalg.eigh(gram, subset_by_index=(last, last), check_finite=False)[1][:, 0]
    u = G @ vector if tall else vector
    return np.asarray(u / np.linalg.norm(u), dtype=np.float64)
