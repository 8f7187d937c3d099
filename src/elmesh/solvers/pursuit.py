r"""Subspace pursuit on a star: the rounds that DGSP and DNSP share (Wang, Kolar and Srebro, arXiv 1603.02185).

Task t keeps :math:`W_t = U A_t`, with an orthonormal U that all tasks hold alike and that grows by a column a round:

.. math::
    A_t &= \arg\min_A f_t(UA), \qquad f_t(W) = \tfrac12 |H_t W - T_t|^2 + \tfrac\mu2 |W|^2 \\
    G_t &= \text{a direction of descent of } f_t \text{ at } W_t \text{, with the sign of its gradient} \\
    u &= \text{the leading left singular vector of } [G_1 \dots G_m], \text{ orthonormalised against } U

The G_t go to the hub and u comes back. U being orthonormal, :math:`|U A_t| = |A_t|`: the A step is a ridge regression
on W within the span of U, each round adds to the span, and the objective :math:`\sum_t f_t` never rises.

The paper's loss has no penalty. Here f_t takes its place throughout, in the refit and in the directions, so both
methods end at each task's own ridge regression once no direction is left.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

import numpy as np
import scipy.linalg

from elmesh.checks import check_number
from elmesh.comm.requests import Hub, Kept, Place, Program, Report, State
from elmesh.data.statistics import Task
from elmesh.math.kernels import fit, project, residual, solve_A, square
from elmesh.solvers.base import LowRankSolver
from elmesh.typing import FloatArray

__all__ = ["Compass", "SubspacePursuit", "new_direction"]

#: From W and the residual R (in the task's basis) to the direction G.
Compass = Callable[[FloatArray, FloatArray], FloatArray]

# Share of its first direction below which a task's direction is rounding.
_ROUNDING = 1e-12
# Share of a unit vector outside U below which it is not relied on as a new direction.
_INSIDE = 1e-6


class SubspacePursuit(LowRankSolver):
    """Base of DGSP and DNSP; they differ in the direction alone."""

    distributed: ClassVar[bool] = True
    graph: Any = "star"

    mu: float

    def __init__(self, rank: int | str = "auto", mu: float = 1.0, runtime: str = "stacked") -> None:
        self.rank = rank
        self.mu = mu
        self.runtime = runtime

    def check(self) -> None:
        """Check the rank and the penalty."""
        super().check()
        check_number("mu", self.mu)

    @abstractmethod
    def compass(self, task: Task) -> Compass:
        """Return what points each task the way at a given W."""

    def program(self, task: Task, place: Place, rank: int, kept: Kept | None = None) -> Program:
        """Return the rounds of one agent, or of all agents stacked; U has no agent axis in either case."""
        mu, (L, d), lead = self.mu, (task.V.shape[-2], task.Y.shape[-1]), task.s.shape[:-1]
        direction = self.compass(task)
        if kept:
            k, U, A, HU = int(kept.common["round"]), kept.common["U"], kept.own["A"], kept.own["HU"]
        else:
            k, U, A, HU = 0, np.zeros((L, 0)), np.zeros((*lead, 0, d)), np.zeros((*task.s.shape, 0))
        R = residual(task, HU, A)
        G = direction(U @ A, R)
        first = kept.own["first"] if kept else square(G)

        def report(k: int) -> Report:
            objective = fit(task, R) + mu / 2 * square(A)
            keep = Kept.of({"A": A, "HU": HU, "first": first}, {"U": U, "round": k})
            # A is exact. What is left to do in U is the next direction, beside the first.
            return Report(k, State(U, A), objective, (square(G), np.zeros(lead)), (first, np.ones(lead)), (keep,))

        # A round that found no new column is the last.
        while not (yield report(k)) and k == U.shape[1] < rank:
            # A task that is where it wants to be says so, and not in which direction its rounding errors point.
            told = np.where((square(G) > _ROUNDING**2 * first)[..., None, None], G, 0.0)
            u = yield Hub(told, partial(new_direction, U))
            k += 1
            if u.any():
                U = np.column_stack([U, u])
                HU = np.concatenate([HU, project(task, u[:, None])], axis=-1)
                A = solve_A(task, HU, np.zeros(1), mu, 0.0)
                R = residual(task, HU, A)
                G = direction(U @ A, R)
        return State(U, A)


def new_direction(U: FloatArray, directions: FloatArray) -> FloatArray:
    """Return the leading left singular vector of all directions, orthonormalised against U; zero if there is none.

    Parameters
    ----------
    U : ndarray of shape (L, k)
        Orthonormal columns.
    directions : ndarray of shape (m, L, d)
        The directions of all tasks.

    Returns
    -------
    ndarray of shape (L,)
        A unit vector whose largest entry is positive, or zeros.

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
        # Newton directions may agree most on what U has already. What they have beyond it still moves on.
        beyond = _outside(U, G)
        if np.linalg.norm(beyond) <= _ROUNDING * np.linalg.norm(G):
            return np.zeros(len(U))
        u = _outside(U, _leading(beyond))
    u /= np.linalg.norm(u)
    u = _outside(U, u)  # once more, for rounding: twice is enough
    u *= np.sign(u[np.argmax(np.abs(u))]) / np.linalg.norm(u)
    return np.asarray(u)


def _outside(U: FloatArray, X: FloatArray) -> FloatArray:
    return np.asarray(X - U @ (U.T @ X))


def _leading(G: FloatArray) -> FloatArray:
    """Return the leading left singular vector, from the smaller of the two Gram matrices.

    The gap between the first two squares is no smaller, relative to the first, than that between the values
    themselves: for the leading vector alone nothing is lost by squaring.
    """
    tall = G.shape[0] > G.shape[1]
    gram = G.T @ G if tall else G @ G.T
    last = len(gram) - 1
    vector = scipy.linalg.eigh(gram, subset_by_index=(last, last), check_finite=False)[1][:, 0]
    u = G @ vector if tall else vector
    return np.asarray(u / np.linalg.norm(u), dtype=np.float64)
