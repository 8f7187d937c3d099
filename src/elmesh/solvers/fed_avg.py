r"""Federated averaging of one linear model: local gradient steps, averaged at a hub by numbers of rows.

From common weights W every task takes a few gradient steps on

.. math:: f_t(W) = \tfrac1{2n_t}|H_tW - T_t|^2 + \tfrac{\mu}{2N}|W|^2 ,

with :math:`n_t` rows of N (less one where the task has an intercept of its own), and the hub replaces W by
:math:`\sum_t \tfrac{n_t}{N} W_t`. The mean of all :math:`f_t` by
rows is the objective of ridge regression on all rows, divided by N: with one local step a round is a step of gradient
descent on it. More local steps save rounds, and end where tasks that differ pull alike, which is not its minimum.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from elmesh.checks import check_count, check_number
from elmesh.comm.requests import HubReduce, Request
from elmesh.data.statistics import Task
from elmesh.math.kernels import correlation, fit, project, residual, square
from elmesh.solvers.base import EXACT_A, Problem, RoundReport, Solution, Solver, Steps
from elmesh.solvers.initialization import even_shares
from elmesh.solvers.state import PerAgent, SolverState
from elmesh.typing import FloatArray

__all__ = ["FedAvg", "FedAvgState"]


@dataclass(frozen=True, eq=False)
class FedAvgState(SolverState):
    """The common weights, each task's share of all rows, all rows, the step, and the square of how far W moved."""

    W: FloatArray
    share: PerAgent
    rows: float
    eta: float
    slope2: float


@dataclass(repr=False, eq=False)
class FedAvg(Solver):
    r"""Federated averaging (McMahan et al. 2017) of one linear model, with all tasks in every round.

    Columns of targets mean the same at all tasks. The first task is the hub of a star. ``dual_residual`` is how far W
    moves in a round, divided by the length of its steps, relative to the force of the targets.

    Parameters
    ----------
    mu : float, default=1.0
        Penalty on the weights.
    local_steps : int, default=5
        Gradient steps of each task per round.
    step_scale : float, default=1.0
        Multiplies the step, which is one over the largest curvature of any task.
    max_iter : int, default=200
        Most rounds.
    tol : float, default=1e-3
        Stop when W moves less than ``tol``, relative.
    message_bits : {2, 4, 8, 16, 32, 64, "auto"}, default=64
        Bits per number in messages to the hub and back, as for :class:`MeshELM`.

    Examples
    --------
    >>> from elmesh import FedAvg
    >>> FedAvg(local_steps=1).local_steps
    1
    """

    name: ClassVar[str] = "fed-avg"
    summary: ClassVar[str] = "a hub averages linear models after local steps (McMahan et al. 2017)"
    state_type = FedAvgState
    one_model: ClassVar[bool] = True
    requires: ClassVar[Set[type[Request]]] = frozenset({HubReduce})
    graph = "star"

    mu: float = 1.0
    local_steps: int = 5
    step_scale: float = 1.0
    max_iter: int = 200
    tol: float = 1e-3
    message_bits: int | str = 64

    def check(self) -> None:
        """Check every parameter."""
        super().check()
        check_count("local_steps", self.local_steps)
        check_number("step_scale", self.step_scale)

    def init_state(self, problem: Problem) -> Steps[FedAvgState]:
        """Agree on the number of rows and on the step."""
        task = problem.task
        rows = np.asarray(task.rows, dtype=np.float64)[..., None, None]
        (total,) = (yield HubReduce(rows, _sum, "rows")).ravel().tolist()
        curvature = np.square(task.s.max(axis=-1))[..., None, None] / rows
        (largest,) = (yield HubReduce(curvature, _largest, "curvature")).ravel().tolist()
        eta = float(self.step_scale) / (largest + self.mu / total)
        W = np.zeros((task.V.shape[-2], task.Y.shape[-1]))
        return FedAvgState(0, W, rows / total, total, eta, np.inf)

    def step(self, problem: Problem, state: FedAvgState) -> Steps[FedAvgState]:
        """Take local steps, and average them at the hub by numbers of rows."""
        task, W = problem.task, np.broadcast_to(state.W, (*problem.task.s.shape[:-1], *state.W.shape))
        for _ in range(self.local_steps):
            W = W - state.eta * self._gradient(task, W, state)
        moved = yield HubReduce(state.share * (W - state.W), _sum, "change")
        slope2 = float(square(moved)) / (self.local_steps * state.eta) ** 2
        return replace(state, round=state.round + 1, W=state.W + moved, slope2=slope2)

    def _gradient(self, task: Task, W: FloatArray, state: FedAvgState) -> FloatArray:
        R = residual(task, project(task, W), np.eye(W.shape[-1]))
        return np.asarray(task.V @ correlation(task, R) / (state.share * state.rows) + self.mu / state.rows * W)

    def solution(self, problem: Problem, state: FedAvgState) -> Solution:
        """Return the common weights for every task, with the identity as basis."""
        return Solution(None, np.broadcast_to(state.W, (*problem.task.s.shape[:-1], *state.W.shape)).copy())

    def report(self, problem: Problem, state: FedAvgState) -> RoundReport:
        """Compare how far W moved with the force of the targets."""
        task, even = problem.task, even_shares(problem.task.s.shape[:-1], problem.context)
        objective = fit(task, residual(task, project(task, state.W), np.eye(state.W.shape[-1])))
        objective = objective + self.mu / 2 * float(square(state.W)) * even
        force = square(task.sY) / state.rows**2
        left = force if state.slope2 == np.inf else state.slope2 * even
        totals = EXACT_A if state.slope2 == np.inf else np.array([np.nan, state.slope2, 0.0, np.nan, 1.0])
        return RoundReport(
            self.solution(problem, state), objective, (left, 0.0 * even), (force, even), (state,), totals
        )


def _sum(values: FloatArray) -> FloatArray:
    return np.asarray(values.sum(axis=0))


def _largest(values: FloatArray) -> FloatArray:
    return np.asarray(values.max(axis=0))
