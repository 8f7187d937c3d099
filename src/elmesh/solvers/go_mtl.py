r"""GO-MTL (Kumar, Daumé 2012): all tasks in one place, each a sparse mixture of a few shared columns.

.. math:: \min_{U, A}\; \sum_t \tfrac12 |H_t U A_t - T_t|^2 + \tfrac{\mu_1}{2}|U|^2 + \mu_2\sum_t |A_t|_1

Tasks that use the same columns of U form a group, and groups may overlap. A round has three parts, none of which
increases the objective:

- Scale. Multiplying a column of U and dividing its codes by the same number leaves the fit as it is, and the penalties
  are least where :math:`\mu_1|u_j|^2 = \mu_2\sum_t|a_{tj}|_1`. Alternation alone is slow to get there.
- U, by a few steps of conjugate gradients from where it was: as good for the rounds to come as the exact solution.
- The codes, by scikit-learn's coordinate descent for the Lasso, for all tasks and outputs in one call.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from scipy.sparse import csc_array
from sklearn.exceptions import ConvergenceWarning

from elmesh.checks import check_choice
from elmesh.data.statistics import Task
from elmesh.math.central_step import leading_vectors
from elmesh.math.kernels import fit, fit_gradient, project, residual, ridge, solve_A, square
from elmesh.solvers.base import LowRankSolver, Problem, RoundReport, Solution, Steps
from elmesh.solvers.initialization import random_block
from elmesh.solvers.state import PerAgent, SolverState
from elmesh.typing import FloatArray

__all__ = ["GOMTL", "GOMTLState", "lasso_codes"]


# Steps of conjugate gradients per round. Exact U steps take as many rounds and many times as long.
_CG_STEPS = 5
# How closely the Lasso is solved (its duality gap, as a share of the targets' square), and its most sweeps.
_GAP, _SWEEPS = 1e-12, 10_000


@dataclass(frozen=True, eq=False)
class GOMTLState(SolverState):
    """U and the codes."""

    U: FloatArray
    A: PerAgent


@dataclass(repr=False, eq=False)
class GOMTL(LowRankSolver):
    r"""Grouping and overlap in multi-task learning, with all data in one place.

    Every output of a task has a sparse code of its own: which columns of U it uses, and how.

    Parameters
    ----------
    rank : int or "auto", default="auto"
        Number of columns of U; "auto" as for :class:`DMTLELM`. Columns that no code uses become zero.
    mu1 : float, default=1.0
        Penalty on U, on its square.
    mu2 : float, default=1.0
        Penalty on the codes, on their absolute values. The larger, the sparser; too large, and all are zero.
    init : {"spectral", "random"}, default="spectral"
        Start: leading singular vectors of all tasks' own weights, or a block from the seed.
    max_iter : int, default=500
        Most rounds.
    tol : float, default=1e-2
        Stop when the objective's gradient in U is within ``tol`` of the penalty's, and its subgradient in the codes
        within ``tol`` of the pull of the targets.

    Notes
    -----
    Probabilities rest on scores of rows left out. For codes that are a Lasso's these are exact as long as leaving out a
    row does not change which columns a code uses, and an approximation where it does.

    Examples
    --------
    >>> from elmesh import GOMTL
    >>> GOMTL(rank=4, mu2=0.1).mu2
    0.1
    """

    name: ClassVar[str] = "go-mtl"
    summary: ClassVar[str] = "a shared basis, each task a sparse combination of it (Kumar, Daumé 2012)"
    state_type = GOMTLState
    pooled: ClassVar[bool] = True

    rank: int | str = "auto"
    mu1: float = 1.0
    mu2: float = 1.0
    init: str = "spectral"
    max_iter: int = 500
    tol: float = 1e-2

    def check(self) -> None:
        """Check every parameter."""
        super().check()
        # From ones all columns would stay equal for ever, and a Lasso cannot choose between them.
        check_choice("init", self.init, ("spectral", "random"))

    def init_state(self, problem: Problem) -> Steps[GOMTLState]:
        """Return the start and its codes."""
        yield from ()
        task, mu1, mu2 = problem.task, self.mu1, self.mu2
        U = random_block(task.V.shape[-2], problem.rank, problem.context.seed)
        if self.init == "spectral":
            U = leading_vectors(ridge(task, np.sqrt(mu1 * mu2)), U)
        A = solve_A(task, project(task, U), np.zeros(1), mu2, 0.0)
        U, A = _balanced(U, A, mu1, mu2)
        return GOMTLState(0, U, lasso_codes(task, project(task, U), A, mu2))

    def step(self, problem: Problem, state: GOMTLState) -> Steps[GOMTLState]:
        """Balance, update U, and update the codes."""
        yield from ()
        task = problem.task
        U, A = _balanced(state.U, state.A, self.mu1, self.mu2)
        U = problem.central_step.solve(A, U, self.mu1, max_iter=_CG_STEPS)
        A = lasso_codes(task, project(task, U), A, self.mu2)
        if not A.any():
            # Without codes the basis is zero too, and there is nothing to iterate on.
            U = np.zeros_like(U)
        return GOMTLState(state.round + 1, U, A)

    def solution(self, problem: Problem, state: GOMTLState) -> Solution:
        """Return U and the codes, which are a Lasso's."""
        return Solution(state.U, state.A)

    def report(self, problem: Problem, state: GOMTLState) -> RoundReport:
        """Compare the gradient in U with that of the penalty, and the subgradient in A with the targets' force."""
        task, U, A, mu1, mu2 = problem.task, state.U, state.A, self.mu1, self.mu2
        HU = project(task, U)
        R = residual(task, HU, A)
        in_U = np.sum(task.V @ fit_gradient(task, R, A), axis=0) + mu1 * U
        slope = HU.mT @ R
        in_A = np.where(A != 0, slope + mu2 * np.sign(A), np.maximum(np.abs(slope) - mu2, 0.0))
        # U belongs to all: its norms are spread evenly, so that sums over tasks are right.
        even = np.full(len(task.s), 1.0 / len(task.s))
        penalties = mu1 / 2 * float(square(U)) * even + mu2 * np.abs(A).sum(axis=(-2, -1))
        return RoundReport(
            self.solution(problem, state),
            fit(task, R) + penalties,
            (float(square(in_U)) * even, square(in_A)),
            (float(square(mu1 * U)) * even, square(HU.mT @ task.Y)),
            (state,),
        )


def _balanced(U: FloatArray, A: FloatArray, mu1: float, mu2: float) -> tuple[FloatArray, FloatArray]:
    """Scale each column of U and its codes to where their penalties are least; a column that none uses is zero."""
    size, use = np.sum(U**2, axis=0), np.sum(np.abs(A), axis=(0, 2))
    scale = np.cbrt(mu2 * use / (mu1 * np.where(size > 0, size, 1.0)))
    return U * scale, A / np.where(scale > 0, scale, 1.0)[:, None]


def lasso_codes(task: Task, HU: FloatArray, A: FloatArray, mu2: float) -> FloatArray:
    r"""Return the codes that minimise :math:`\tfrac12|H_tUA_t - T_t|^2 + \mu_2|A_t|_1`, starting from others.

    All tasks and outputs together are one Lasso, with a block for each on the diagonal of its design. HU (m, q, r) are
    the features in the basis U, and A (m, r, d) the codes to start from.

    Examples
    --------
    >>> from elmesh.data.statistics import Reduced, Task
    >>> one = Task.stack([Task.from_reduced(Reduced.from_rows(np.eye(2), np.array([[3.0], [-0.5]]), centre=False))])
    >>> lasso_codes(one, project(one, np.eye(2)), np.zeros((1, 2, 1)), 1.0)[0, :, 0]
    array([ 2., -0.])
    """
    from sklearn.linear_model import lasso_path  # noqa: PLC0415 (slow to import, and no other solver needs it)

    Q, X = np.linalg.qr(HU)
    Y = Q.mT @ task.Y
    (m, k, r), d = X.shape, Y.shape[-1]
    blocks = np.broadcast_to(X.mT[:, None], (m, d, r, k)).ravel()
    rows = np.broadcast_to(np.arange(m * d * k, dtype=np.int32).reshape(m * d, 1, k), (m * d, r, k)).ravel()
    columns = np.arange(0, blocks.size + 1, k, dtype=np.int32)
    design = csc_array((blocks, rows, columns), shape=(m * d * k, m * d * r))
    with warnings.catch_warnings():
        # If the sweeps run out, the next round continues from here, and reports the residual.
        warnings.simplefilter("ignore", ConvergenceWarning)
        _, found, _ = lasso_path(
            design,
            Y.mT.reshape(-1),
            alphas=[mu2 / Y.size],  # scikit-learn divides the fit by the number of rows
            coef_init=A.mT.flatten(),  # a copy: the descent works in place
            tol=_GAP,
            max_iter=_SWEEPS,
            precompute=False,
            check_input=False,  # which would take longer than the descent
        )
    return np.ascontiguousarray(found.reshape(m, d, r).mT)
