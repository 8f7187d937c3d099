"""MTL-ELM (Algorithm 1): all tasks in one place, alternating updates of U and of the A_t."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from elmesh.kernels import fit_gradient, project, residual, ridge, solve_A, square
from elmesh.objective import agent_objective
from elmesh.solvers.agreement import random_block
from elmesh.solvers.base import SharedBasisSolver
from elmesh.solvers.requests import Place, Program, Report, State
from elmesh.solvers.shared_basis import SharedU, leading_vectors
from elmesh.statistics import Task

__all__ = ["MTLELM"]

FloatArray = NDArray[np.float64]


class MTLELM(SharedBasisSolver):
    r"""Multi-task ELM with all data in one place.

    .. math:: \min_{U, A}\; \sum_t \tfrac12 |H_t U A_t - T_t|^2 + \tfrac{\mu_1}{2}|U|^2 + \tfrac{\mu_2}{2}\sum_t |A_t|^2

    Parameters
    ----------
    rank : int or "auto", default="auto"
        Number of columns of U; "auto" as for :class:`DMTLELM`.
    mu1, mu2 : float, default=1.0
        Penalties on U and on the A_t.
    init : {"spectral", "random", "ones"}, default="spectral"
        Start; with the paper's ones, U never has more than one independent column.
    max_iter : int, default=200
        Most alternations.
    tol : float, default=1e-2
        Stop when the objective's gradient in U is within ``tol`` of the penalty's.

    Examples
    --------
    >>> from elmesh import MTLELM
    >>> MTLELM(rank=2, mu1=0.1).mu1
    0.1
    """

    pooled: ClassVar[bool] = True

    def __init__(
        self,
        rank: int | str = "auto",
        mu1: float = 1.0,
        mu2: float = 1.0,
        init: str = "spectral",
        max_iter: int = 200,
        tol: float = 1e-2,
    ) -> None:
        self.rank = rank
        self.mu1 = mu1
        self.mu2 = mu2
        self.init = init
        self.max_iter = max_iter
        self.tol = tol

    def program(self, task: Task, place: Place, rank: int) -> Program:
        """Return the alternation over the stacked tasks."""
        mu1, mu2, m = self.mu1, self.mu2, len(task.s)
        L, d = task.V.shape[-2], task.Y.shape[-1]
        if self.init == "ones":
            U, A = np.ones((L, rank)), np.ones((m, rank, d))
        else:
            U = random_block(L, rank, place.seed)
            if self.init == "spectral":
                U = leading_vectors(ridge(task, np.sqrt(mu1 * mu2)), U)
            A = solve_A(task, project(task, U), np.zeros(1), mu2, 0.0)
            if A.any():
                # At a stationary point mu1 |U|^2 = mu2 sum |A_t|^2, and alternation is slow to get there.
                U = (mu2 * float(np.sum(square(A))) / (mu1 * float(square(U)))) ** 0.25 * U
                A = solve_A(task, project(task, U), A, mu2, 0.0)
        shared = SharedU(task, mu1)
        HU = project(task, U)

        def report(k: int) -> Report:
            R = residual(task, HU, A)
            gradient = np.sum(task.V @ fit_gradient(task, R, A), axis=0) + mu1 * U
            objective = agent_objective(task, R, square(U), A, mu1, mu2, m)
            # U belongs to all: its gradient is spread evenly, so that sums over tasks are what they should be.
            even, nothing = np.full(m, 1.0 / m), np.zeros(m)
            return Report(
                k,
                State(U, A),
                objective,
                (float(square(gradient)) * even, nothing),
                (float(square(mu1 * U)) * even, even),
            )

        for k in range(1, self.max_iter + 1):
            if (yield report(k - 1)):
                return State(U, A)
            # Three digits of what is left to do: the path is that of exact steps, in a third of their time or less.
            U = shared.solve(A, U, reduction=1e-3)
            HU = project(task, U)
            A = solve_A(task, HU, A, mu2, 0.0)
        yield report(self.max_iter)
        return State(U, A)
