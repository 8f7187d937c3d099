r"""Federated averaging of a network with one hidden layer: local gradient steps, averaged at a hub.

From common hidden weights B and its head :math:`C_t`, every site takes a few steps of gradient descent with momentum on

.. math:: f_t(B, C) = \ell_t(B, C) + \tfrac{\delta}{2}\bigl(|B|^2 + |C|^2\bigr) ,

with the loss :math:`\ell_t` of :mod:`elmesh.math.hidden_network`. The hub replaces B by the mean over sites by numbers
of rows, :math:`\sum_t \tfrac{n_t}{N} B_t`. Heads are averaged as well (:class:`~elmesh.FedAvgNetwork`), or stay at
their sites (:class:`~elmesh.FedPer`).
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from elmesh.checks import check_count, check_number
from elmesh.comm.requests import HubReduce, Request
from elmesh.data.features import uniform
from elmesh.errors import ElmeshError
from elmesh.math.hidden_network import feature_units, network_loss
from elmesh.math.kernels import square
from elmesh.solvers.base import Problem, RoundReport, Solution, Solver, Steps
from elmesh.solvers.initialization import even_shares
from elmesh.solvers.state import PerAgent, SolverState
from elmesh.typing import FloatArray

__all__ = ["NetworkAveraging", "NetworkState"]


@dataclass(frozen=True, eq=False)
class NetworkState(SolverState):
    """The common hidden weights, each site's head and share of all rows, and the square of how far averages moved."""

    B: FloatArray
    C: PerAgent
    share: PerAgent
    moved2: float


@dataclass(repr=False, eq=False)
class NetworkAveraging(Solver, abstract=True):
    """Federated averaging of a network with one hidden layer; a subclass states whether heads are averaged."""

    state_type = NetworkState
    learns_features: ClassVar[bool] = True
    grouped_features: ClassVar[bool] = True
    requires: ClassVar[Set[type[Request]]] = frozenset({HubReduce})
    graph = "star"
    #: Whether each site has a head of its own.
    private_heads: ClassVar[bool] = False

    n_units: int = 16
    step_size: float = 0.1
    momentum: float = 0.9
    decay: float = 0.0
    local_steps: int = 10
    max_iter: int = 100
    message_bits: int | str = 64

    def check(self) -> None:
        """Check every parameter."""
        super().check()
        check_count("n_units", self.n_units)
        check_count("local_steps", self.local_steps)
        check_number("step_size", self.step_size)
        check_number("decay", self.decay, zero=True)
        check_number("momentum", self.momentum, zero=True)
        if self.momentum >= 1:
            raise ElmeshError(f"momentum must be below 1; got {self.momentum!r}.")

    def init_state(self, problem: Problem) -> Steps[NetworkState]:
        """Agree on the number of rows; all sites draw the same network from the seed that they share."""
        m, p, d = problem.shape
        n = np.zeros((m, 1, 1))
        for rows in problem.network_rows:
            n[rows.index, 0, 0] = rows.n_rows
        (total,) = (yield HubReduce(n, _sum, "rows")).ravel().tolist()
        constant, h = problem.network_rows[0].constant, self.n_units
        # Uniform in [-1, 1) has the variance 1/3.
        numbers = np.sqrt(3.0) * uniform((problem.context.seed, 2), (p + d) * h)
        B = numbers[: p * h].reshape(p, h) / np.sqrt(max(1, p - constant))
        C = numbers[p * h :].reshape(h, d) / np.sqrt(h)
        if constant:
            B[problem.groups == 0] = 0.0
            C = np.vstack([np.zeros((1, d)), C])
        return NetworkState(0, B, np.repeat(C[None], m, axis=0), n / total, np.inf)

    def step(self, problem: Problem, state: NetworkState) -> Steps[NetworkState]:
        """Take local steps, and average them at the hub by numbers of rows."""
        B, C = np.repeat(state.B[None], len(state.C), axis=0), state.C.copy()
        for rows in problem.network_rows:
            weights: tuple[FloatArray, ...] = B[rows.index], C[rows.index]
            velocity: tuple[FloatArray, ...] = tuple(np.zeros_like(x) for x in weights)
            for _ in range(self.local_steps):
                _, gradient = network_loss(rows, *weights)
                pairs = zip(velocity, gradient, weights, strict=True)
                velocity = tuple(self.momentum * v + g + self.decay * x for v, g, x in pairs)
                weights = tuple(x - self.step_size * v for x, v in zip(weights, velocity, strict=True))
            B[rows.index], C[rows.index] = weights
        changes = [B - state.B] if self.private_heads else [B - state.B, C - state.C]
        sent = np.concatenate([change.reshape(len(B), -1, 1) for change in changes], axis=1)
        moved = yield HubReduce(state.share * sent, _sum, "change")
        size = state.B.size
        if not self.private_heads:
            C = state.C + moved[size:].reshape(state.C.shape[1:])
        B_next = state.B + moved[:size].reshape(state.B.shape)
        return replace(state, round=state.round + 1, B=B_next, C=C, moved2=float(square(moved)))

    def solution(self, problem: Problem, state: NetworkState) -> Solution:
        """Return the heads, and the hidden weights for features as they are given."""
        return Solution(None, state.C, hidden=feature_units(problem.sites[0].groups)[:, None] * state.B)

    def report(self, problem: Problem, state: NetworkState) -> RoundReport:
        """Report the loss, and how far the averages moved compared with their size."""
        m = len(state.C)
        objective, size2 = np.zeros(m), float(square(state.B))
        for rows in problem.network_rows:
            loss, _ = network_loss(rows, state.B[None], state.C[rows.index])
            objective[rows.index] = rows.n_rows * loss
        even = even_shares((m,), problem.context)
        moved2 = size2 if state.moved2 == np.inf else state.moved2
        # All agents know how far averages moved; the losses are summed.
        totals = np.array([np.nan, moved2, 0.0, size2, 1.0])
        residual, scale = (moved2 * even, 0.0 * even), (size2 * even, even)
        return RoundReport(self.solution(problem, state), objective, residual, scale, (state,), totals)


def _sum(values: FloatArray) -> FloatArray:
    return np.asarray(values.sum(axis=0))
