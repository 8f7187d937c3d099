"""FedRep: a hub averages the bases that tasks have each taken a few gradient steps on."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

import numpy as np

from elmesh.checks import check_choice, check_count
from elmesh.comm.requests import HubReduce, Request
from elmesh.math.kernels import orthonormal, project, residual, square
from elmesh.solvers.altgdmin import AltGDmin, gradient, sharpness, solve_heads, step_length
from elmesh.solvers.base import Problem, RoundReport, Solution, Steps
from elmesh.solvers.initialization import random_block
from elmesh.solvers.state import PerAgent, SolverState
from elmesh.typing import FloatArray

__all__ = ["FedRep", "FedRepState", "leading_subspace"]

# Share of the largest singular value below which moments do not determine a direction.
_ROUNDING = 1e-10


@dataclass(frozen=True, eq=False)
class FedRepState(SolverState):
    """The basis, each task's best A and the residual there, the step, and the square of how far the basis moved."""

    U: FloatArray
    A: PerAgent
    R: PerAgent
    eta: float
    slope2: FloatArray | None


@dataclass(repr=False, eq=False)
class FedRep(AltGDmin):
    r"""Federated representation learning, its linear case (Collins, Hassani, Mokhtari and Shakkottai 2021).

    The first task is the hub of a star. In a round every task, from the common U, computes

    .. math::
        A_t &= \arg\min_A f_t(UA), \qquad f_t(W) = \tfrac12 |H_t W - T_t|^2 + \tfrac\mu2 |W|^2 \\
        U_t &= U - \eta\, \nabla_U f_t(U A_t), \text{ as many times as there are local steps},

    and sends U_t to the hub, which sends back the mean of all of them; its orthonormal factor is the next U. The sum of
    all :math:`f_t` is the objective in ``history_``, and ``dual_residual`` how far U still moves, divided by the step,
    relative to the force of the targets :math:`H_t'T_tA_t'`.

    Parameters
    ----------
    rank : int or "auto", default="auto"
        Number of columns of U; "auto" as for :class:`DMTLELM`.
    mu : float, default=1.0
        Penalty on the weights.
    step_scale : float, default=1.0
        Multiplies the step, which is one over a bound of the curvature of the mean of all :math:`f_t` at the start.
    local_steps : int, default=1
        Gradient steps on U per round, with A_t as it was at the round's start. With more than one, tasks that differ
        move the mean away from the optimum.
    init : {"moments", "random"}, default="moments"
        Start: the leading left singular vectors of all tasks' :math:`H_t'T_t`, or a block from the shared seed.
    max_iter : int, default=200
        Most rounds.
    tol : float, default=1e-2
        Stop when U moves less than ``tol``, relative.
    message_bits : {2, 4, 8, 16, 32, 64, "auto"}, default=64
        Bits per number in messages to the hub and back, as for :class:`MeshELM`.

    Notes
    -----
    A round sends L x r numbers from every task to the hub, and as many back. The start sends L x d numbers, once, which
    are :math:`H_t'T_t`: with ``init="random"`` nothing but bases is sent, and r x r numbers for the step.

    Differences from the paper: its loss has no penalty, all tasks take part in every round here, and for its start the
    paper has tasks send :math:`\sum_i y_i^2 x_i x_i'`, which is L x L. The subspace of
    :math:`\sum_t (H_t'T_t)(H_t'T_t)'` is the same where the paper's assumptions hold, closer to the truth with few
    rows, and takes L x d numbers.

    Examples
    --------
    >>> from elmesh import FedRep
    >>> FedRep(rank=4, local_steps=5).local_steps
    5
    """

    name: ClassVar[str] = "fedrep"
    summary: ClassVar[str] = "a hub averages the bases that tasks improved (Collins et al. 2021, linear)"
    state_type = FedRepState
    requires: ClassVar[Set[type[Request]]] = frozenset({HubReduce})
    graph = "star"

    rank: int | str = "auto"
    mu: float = 1.0
    step_scale: float = 1.0
    local_steps: int = 1
    init: str = "moments"
    max_iter: int = 200
    tol: float = 1e-2
    message_bits: int | str = 64

    def check(self) -> None:
        """Check every parameter."""
        super().check()
        check_count("local_steps", self.local_steps)
        check_choice("init", self.init, ("moments", "random"))

    def init_state(self, problem: Problem) -> Steps[FedRepState]:
        """Return the start and the step."""
        task = problem.task
        U = random_block(task.V.shape[-2], problem.rank, problem.context.seed)
        if self.init == "moments":
            U = orthonormal((yield HubReduce(task.V @ task.sY, partial(leading_subspace, U), "moments")))
        A, R = solve_heads(task, U, self.mu)
        length = yield HubReduce(sharpness(task, A, self.mu), _common_step_length, "sharpness")
        return FedRepState(0, U, A, R, float(self.step_scale) * float(length.item()), None)

    def step(self, problem: Problem, state: FedRepState) -> Steps[FedRepState]:
        """Take local steps, and average them at the hub."""
        task, eta, mu, A, R = problem.task, state.eta, self.mu, state.A, state.R
        own = state.U - eta * gradient(task, state.U, A, R, mu)
        for _ in range(self.local_steps - 1):
            own = own - eta * gradient(task, own, A, residual(task, project(task, own), A), mu)
        U = orthonormal((yield HubReduce(own, _mean, "basis")))
        slope2 = square((U - state.U) / (self.local_steps * eta if eta > 0 else 1.0))
        A, R = solve_heads(task, U, mu)
        return replace(state, round=state.round + 1, U=U, A=A, R=R, slope2=slope2)

    def solution(self, problem: Problem, state: FedRepState) -> Solution:
        """Return U and each task's best A."""
        return Solution(state.U, state.A, mu2=float(self.mu))

    def report(self, problem: Problem, state: FedRepState) -> RoundReport:
        """Compare how far U moved with the force of the targets."""
        return self._report(problem.task, state.U, state.A, state.R, state.slope2, state)


def leading_subspace(fill: FloatArray, moments: FloatArray) -> FloatArray:
    """Return as many leading left singular vectors of all tasks' moments (m, L, d) as ``fill`` has columns.

    If moments have fewer directions, the rest come from ``fill``.

    Examples
    --------
    >>> U = leading_subspace(np.eye(3)[:, :2], np.array([[[0.0], [0.0], [2.0]], [[0.0], [0.0], [-1.0]]]))
    >>> np.abs(U)
    array([[0., 1.],
           [0., 0.],
           [1., 0.]])
    """
    L, rank = fill.shape
    left, values, _ = np.linalg.svd(np.moveaxis(moments, 0, 1).reshape(L, -1), full_matrices=False)
    k = min(rank, int(np.sum(values > _ROUNDING * values[0])))
    left = left[:, :k] * np.sign(left[np.argmax(np.abs(left[:, :k]), axis=0), np.arange(k)])
    return orthonormal(np.hstack([left, fill[:, : rank - k]]))


def _common_step_length(sharpnesses: FloatArray) -> FloatArray:
    return step_length(np.linalg.eigvalsh(sharpnesses.mean(axis=0))[-1:, None])


def _mean(bases: FloatArray) -> FloatArray:
    return np.asarray(bases.mean(axis=0))
