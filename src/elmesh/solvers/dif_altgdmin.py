"""Dif-AltGDmin: agents descend on their own bases and average them with their neighbours', without a hub."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from elmesh.checks import check_count
from elmesh.comm.requests import NeighborMessages, NeighborSum, Request
from elmesh.math.kernels import orthonormal, square
from elmesh.solvers.altgdmin import AltGDmin, gradient, sharpness, solve_heads, step_length
from elmesh.solvers.base import AgentContext, Problem, RoundReport, Solution, Steps
from elmesh.solvers.initialization import random_block
from elmesh.solvers.state import PerAgent, PerEdge, SolverState
from elmesh.typing import FloatArray

__all__ = ["DifAltGDmin", "DifAltGDminState"]

# How closely averages of the start are to agree.
_PRECISION = 1e-6
# Keeps every direction of the block alive, so that U has full rank even where the moments do not.
_FLOOR = 1e-6


@dataclass(frozen=True, eq=False)
class DifAltGDminState(SolverState):
    """Each agent's basis, its best A and the residual there, its step, how far the basis moved, neighbours' weights."""

    U: PerAgent
    A: PerAgent
    R: PerAgent
    eta: PerAgent
    slope2: PerAgent | None
    weight: PerEdge


@dataclass(repr=False, eq=False)
class DifAltGDmin(AltGDmin):
    r"""Diffusion with alternating gradient descent and minimisation (Kang and Moothedath 2025, arXiv 2512.23161).

    Every task is an agent in a connected graph, with an orthonormal U_t of its own. In a round each of them

    .. math::
        A_t &= \arg\min_A f_t(U_t A), \qquad f_t(W) = \tfrac12 |H_t W - T_t|^2 + \tfrac\mu2 |W|^2
            && \text{(minimise)} \\
        \breve U_t &= U_t - \eta\, \nabla_U f_t(U_t A_t) && \text{(adapt)} \\
        \tilde U_t &= \textstyle\sum_j w_{tj} \breve U_j && \text{(combine)} \\
        U_t &= \text{the orthonormal factor of } \tilde U_t && \text{(project)}

    with weights :math:`w_{tj} = 1/(1 + \max(d_t, d_j))` for neighbours (Metropolis), the rest on itself. Agents begin
    with the leading subspace of :math:`\sum_t (H_t'T_t)(H_t'T_t)'`, found by power iterations with averages over the
    graph. The sum of all :math:`f_t` is the objective in ``history_``, and ``dual_residual`` how far the bases still
    move, divided by the step, relative to the force of the targets :math:`H_t'T_tA_t'`.

    Parameters
    ----------
    rank : int or "auto", default="auto"
        Number of columns of U; "auto" as for :class:`DMTLELM`.
    mu : float, default=1.0
        Penalty on the weights.
    graph : str or networkx.Graph, default="ring"
        As for :class:`DMTLELM`.
    step_scale : float, default=1.0
        Multiplies the step, which is one over the largest bound that any agent has for the curvature of its own
        :math:`f_t` at the start.
    mixing : int, default=1
        Exchanges of the combine step. With more of them agents agree more closely, for as many times the bytes.
    power_iterations : int, default=6
        Power iterations of the start.
    max_iter : int, default=200
        Most rounds.
    tol : float, default=1e-2
        Stop when agents are within ``tol`` of their mean and the bases move less than ``tol``, both relative.
    message_bits : {2, 4, 8, 16, 32, 64, "auto"}, default=64
        Bits per number in messages to neighbours, as for :class:`MeshELM`.

    Notes
    -----
    With a constant step, agents whose tasks differ do not end in agreement, nor quite at the optimum: each moves its
    own way as far as averaging moves it back. The larger the step and the longer the graph, the farther apart; smaller
    steps and more mixing bring them together. In the paper there is no such limit, because its targets are without
    noise and a basis that is right for one task is right for all.

    Differences from the paper: its loss has no penalty; its start leaves out targets that are large compared with the
    others, which a task's reduced rows do not allow; its averages at the start are many rounds of plain mixing, here
    as few as the graph allows, to a millionth. Its step is :math:`c/(n\sigma_{\max}^2)`, with the
    largest singular value of the true weights, on m times the gradient: one over the curvature of the mean of all
    :math:`f_t`, where features are uncorrelated and every agent has many tasks. An agent that has one task is more
    sharply curved than the mean, and on sparse graphs such steps may never settle, so the largest own curvature takes
    its place.

    Examples
    --------
    >>> from elmesh import DifAltGDmin
    >>> DifAltGDmin(rank=4, graph="star", mixing=3).mixing
    3
    """

    name: ClassVar[str] = "dif-altgdmin"
    summary: ClassVar[str] = "gradient steps on bases, averaged with the neighbours' (Kang, Moothedath 2025)"
    state_type = DifAltGDminState
    per_agent_basis: ClassVar[bool] = True
    requires: ClassVar[Set[type[Request]]] = frozenset({NeighborSum})

    rank: int | str = "auto"
    mu: float = 1.0
    graph: Any = "ring"
    step_scale: float = 1.0
    mixing: int = 1
    power_iterations: int = 6
    max_iter: int = 200
    tol: float = 1e-2
    message_bits: int | str = 64

    def check(self) -> None:
        """Check every parameter."""
        super().check()
        check_count("mixing", self.mixing)
        check_count("power_iterations", self.power_iterations)

    def init_state(self, problem: Problem) -> Steps[DifAltGDminState]:
        """Return the leading subspace, the step and the weights of averages."""
        task, context = problem.task, problem.context
        U = yield from _leading_subspace(problem, self.power_iterations)
        A, R = solve_heads(task, U, self.mu)
        own = np.asarray(np.linalg.eigvalsh(sharpness(task, A, self.mu))[..., -1:, None])
        largest = yield from _maximum(own, context)
        degrees: NeighborMessages = yield NeighborSum(context.degree[..., None, None], each=True, topic="degree")
        eta = float(self.step_scale) * step_length(largest)
        return DifAltGDminState(0, U, A, R, eta, None, _metropolis_weights(context, degrees))

    def step(self, problem: Problem, state: DifAltGDminState) -> Steps[DifAltGDminState]:
        """Adapt, combine and project."""
        eta = state.eta
        U = state.U - eta * gradient(problem.task, state.U, state.A, state.R, self.mu)
        for _ in range(self.mixing):
            messages: NeighborMessages = yield NeighborSum(U, each=True, topic="basis")
            U = U + messages.sum(state.weight * (messages.values - messages.own(U)), U)
        U = orthonormal(U)
        slope2 = square((U - state.U) / np.where(eta > 0, eta, 1.0))
        A, R = solve_heads(problem.task, U, self.mu)
        return replace(state, round=state.round + 1, U=U, A=A, R=R, slope2=slope2)

    def solution(self, problem: Problem, state: DifAltGDminState) -> Solution:
        """Return each agent's U and its best A."""
        return Solution(state.U, state.A, mu2=float(self.mu))

    def report(self, problem: Problem, state: DifAltGDminState) -> RoundReport:
        """Compare how far the bases moved with the force of the targets."""
        return self._report(problem.task, state.U, state.A, state.R, state.slope2, state)


def _metropolis_weights(context: AgentContext, degrees: NeighborMessages) -> FloatArray:
    """Return the weight of each neighbour in the mean; weights are symmetric, and sum to one with the agent's own."""
    return np.asarray(1.0 / (1.0 + np.maximum(degrees.own(context.degree[..., None, None]), degrees.values)))


def _average(x: FloatArray, context: AgentContext) -> Steps[FloatArray]:
    """Return the average of all agents' matrices."""
    degree = context.degree[..., None, None]
    for root in context.averaging_roots(_PRECISION):
        S = yield NeighborSum(x, topic="average")
        x = x - (degree * x - S) / root
    return x


def _maximum(x: FloatArray, context: AgentContext) -> Steps[FloatArray]:
    """Return the largest of all agents' matrices, entry by entry."""
    # An averaging schedule reaches all agents, so it has as many rounds as a maximum needs.
    for _ in context.averaging_roots(_PRECISION):
        messages: NeighborMessages = yield NeighborSum(x, each=True, topic="maximum")
        if messages.receiver is None:
            x = np.maximum(x, messages.values.max(axis=0))
        else:
            x = x.copy()
            np.maximum.at(x, messages.receiver, messages.values)
    return x


def _leading_subspace(problem: Problem, iterations: int) -> Steps[FloatArray]:
    r"""Return an orthonormal basis of the leading subspace of :math:`\sum_t (H_t'T_t)(H_t'T_t)'`."""
    M = problem.task.V @ problem.task.sY
    lead, L = M.shape[:-2], M.shape[-2]
    Q = np.broadcast_to(random_block(L, problem.rank, problem.context.seed), (*lead, L, problem.rank))
    for _ in range(iterations):
        MQ = yield from _average(M @ (M.mT @ Q), problem.context)
        size = np.vecdot(Q.reshape(*lead, -1), MQ.reshape(*lead, -1))[..., None, None]
        Q = orthonormal(MQ + _FLOOR * np.where(size > 0, size, 1.0) * Q)
    return Q
