"""MTL-ELM: all tasks in one place; by variable projection, or by the paper's Algorithm 1."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import numpy as np

from elmesh.checks import check_choice
from elmesh.comm.requests import Answer, Kept, Place, Program, Report, State
from elmesh.data.statistics import Task
from elmesh.math.central_step import SharedU
from elmesh.math.certificate import certify
from elmesh.math.kernels import fit_gradient, project, residual, solve_A, square
from elmesh.math.objective import agent_objective
from elmesh.solvers.base import SharedBasisSolver
from elmesh.solvers.initialization import opening, plain_A

__all__ = ["MTLELM"]


class MTLELM(SharedBasisSolver):
    r"""Multi-task ELM with all data in one place.

    .. math:: \min_{U, A}\; \sum_t \tfrac12 |H_t U A_t - T_t|^2 + \tfrac{\mu_1}{2}|U|^2 + \tfrac{\mu_2}{2}\sum_t |A_t|^2

    Parameters
    ----------
    rank : int or "auto", default="auto"
        Number of columns of U; "auto" as for :class:`DMTLELM`, and two for each column of the widest target with
        ``method="alternating"``.
    mu1, mu2 : float or "auto", default="auto"
        Penalties on U and on the A_t; "auto" as for :class:`DMTLELM`.
    method : {"varpro", "alternating"}, default="varpro"
        "varpro": A_t solved out, quasi-Newton steps in U. "alternating": the paper's, exact updates of U and of the A_t
        in turn, which takes many times as long.
    init : {"spectral", "random", "seed", "ones"}, default="spectral"
        Start; with the paper's ones, U has one independent column but for rounding.
    max_iter : int, default=1000
        Most steps or alternations.
    tol : float, default=1e-2
        Stop when the objective's gradient in U is within ``tol`` of the penalty's.
    certify : bool, default=True
        Whether to bound, in the end, how far the objective is from the best of any rank.

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
        mu1: float | str = "auto",
        mu2: float | str = "auto",
        method: str = "varpro",
        init: str = "spectral",
        max_iter: int = 1000,
        tol: float = 1e-2,
        certify: bool = True,
    ) -> None:
        self.rank = rank
        self.mu1 = mu1
        self.mu2 = mu2
        self.method = method
        self.init = init
        self.max_iter = max_iter
        self.tol = tol
        self.certify = certify

    @property
    def grows(self) -> bool:
        """Whether the certificate decides about an automatic rank."""
        return self.method == "varpro"

    def check(self) -> None:
        """Check every parameter."""
        check_choice("method", self.method, ("varpro", "alternating"))
        super().check()

    def program(self, task: Task, place: Place, rank: int, kept: Kept | None = None) -> Program:
        """Return the steps over the stacked tasks."""
        if self.method == "alternating":
            return self._alternate(task, place, rank, kept)
        return self.by_projection(task, place, rank, kept)

    def _alternate(self, task: Task, place: Place, rank: int, kept: Kept | None) -> Program:
        m = len(task.s)
        if kept:
            U, A, k = kept.common["U"], kept.own["A"], int(kept.common["round"])
            mu1, mu2 = float(kept.common["mu1"]), float(kept.common["mu2"])
        else:
            start = yield from opening(task, place, rank, self.mu1, self.mu2, self.init)
            U, A, k = start.U, plain_A(task, rank), 0
            mu1, mu2 = start.mu1, start.mu2
            if self.init != "ones":
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
                State(U, A, mu1=mu1, mu2=mu2),
                objective,
                (float(square(gradient)) * even, nothing),
                (float(square(mu1 * U)) * even, even),
                (Kept.of({"A": A}, {"U": U, "round": k, "mu1": mu1, "mu2": mu2}),),
            )

        while (yield report(k)) == Answer.GO_ON and k < self.max_iter:
            k += 1
            # Three digits of what is left to do: the path is that of exact steps, in a third of their time or less.
            U = shared.solve(A, U, reduction=1e-3)
            HU = project(task, U)
            A = solve_A(task, HU, A, mu2, 0.0)
        state = State(U, A, mu1=mu1, mu2=mu2)
        return replace(state, certificate=certify(task, U, mu1, mu2)) if self.certify else state
