"""MTL-ELM (Algorithm 1): all tasks in one place, exact updates of U and of the A_t in turn."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from elmesh.checks import check_choice
from elmesh.math.certificate import certify
from elmesh.math.kernels import fit_gradient, project, residual, solve_A, square
from elmesh.math.objective import agent_objective
from elmesh.solvers.base import Decision, LowRankSolver, Problem, RoundReport, Solution, Steps
from elmesh.solvers.initialization import INITS, initialize, ones_A
from elmesh.solvers.state import PerAgent, SolverState
from elmesh.typing import FloatArray

__all__ = ["MTLELM", "CentralState"]


@dataclass(frozen=True, eq=False)
class CentralState(SolverState):
    """U, the A_t and the penalties."""

    U: FloatArray
    A: PerAgent
    mu1: float
    mu2: float


@dataclass(repr=False, eq=False)
class MTLELM(LowRankSolver):
    r"""Multi-task ELM with all data in one place, Algorithm 1 of the paper.

    .. math:: \min_{U, A}\; \sum_t \tfrac12 |H_t U A_t - T_t|^2 + \tfrac{\mu_1}{2}|U|^2 + \tfrac{\mu_2}{2}\sum_t |A_t|^2

    :class:`MeshELM` with ``graph=None`` reaches the same optimum in a fraction of the time.

    Parameters
    ----------
    rank : int or "auto", default="auto"
        Number of columns of U; "auto" is two for each column of the widest target.
    mu1, mu2 : float or "auto", default="auto"
        Penalties on U and on the A_t; "auto" as for :class:`MeshELM`.
    init : {"spectral", "random", "seed", "ones"}, default="spectral"
        Start, as for :class:`DMTLELM`.
    max_iter : int, default=1000
        Most alternations.
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

    name: ClassVar[str] = "mtl-elm"
    summary: ClassVar[str] = "the paper's Algorithm 1: alternating exact steps, all data in one place"
    state_type = CentralState
    pooled: ClassVar[bool] = True

    rank: int | str = "auto"
    mu1: float | str = "auto"
    mu2: float | str = "auto"
    init: str = "spectral"
    max_iter: int = 1000
    tol: float = 1e-2
    certify: bool = True

    def check(self) -> None:
        """Check every parameter."""
        super().check()
        check_choice("init", self.init, INITS)

    def init_state(self, problem: Problem) -> Steps[CentralState]:
        """Return the start, balanced between U and A unless it is the paper's ones."""
        task = problem.task
        start = yield from initialize(problem, self.mu1, self.mu2, self.init)
        U, mu1, mu2 = start.U, start.mu1, start.mu2
        if self.init == "ones":
            return CentralState(0, U, ones_A(task, problem.rank), mu1, mu2)
        A = solve_A(task, project(task, U), np.zeros(1), mu2, 0.0)
        if A.any():
            # At a stationary point mu1 |U|^2 = mu2 sum |A_t|^2, and alternation is slow to get there.
            U = (mu2 * float(np.sum(square(A))) / (mu1 * float(square(U)))) ** 0.25 * U
            A = solve_A(task, project(task, U), A, mu2, 0.0)
        return CentralState(0, U, A, mu1, mu2)

    def step(self, problem: Problem, state: CentralState) -> Steps[CentralState]:
        """Update U for given A (9), and A for given U (11)."""
        yield from ()
        U = problem.central_step.solve(state.A, state.U, state.mu1)
        A = solve_A(problem.task, project(problem.task, U), state.A, state.mu2, 0.0)
        return replace(state, round=state.round + 1, U=U, A=A)

    def finish(self, problem: Problem, state: CentralState, decision: Decision) -> Steps[Solution]:
        """Return the solution with its certificate."""
        yield from ()
        solution = self.solution(problem, state)
        if not self.certify:
            return solution
        return replace(solution, certificate=certify(problem.task, state.U, state.mu1, state.mu2))

    def solution(self, problem: Problem, state: CentralState) -> Solution:
        """Return U and the A_t."""
        return Solution(state.U, state.A, mu1=state.mu1, mu2=state.mu2)

    def report(self, problem: Problem, state: CentralState) -> RoundReport:
        """Compare the objective's gradient in U with that of the penalty."""
        task, U, A, mu1, mu2 = problem.task, state.U, state.A, state.mu1, state.mu2
        m = len(task.s)
        R = residual(task, project(task, U), A)
        gradient = np.sum(task.V @ fit_gradient(task, R, A), axis=0) + mu1 * U
        # U belongs to all: its gradient is spread evenly, so that sums over tasks are right.
        even = np.full(m, 1.0 / m)
        return RoundReport(
            self.solution(problem, state),
            agent_objective(task, R, square(U), A, mu1, mu2, m),
            (float(square(gradient)) * even, np.zeros(m)),
            (float(square(mu1 * U)) * even, even),
            (state,),
        )
