"""Dif-AltGDmin: agents descend on their own bases and mix them with their neighbours', without a hub."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, ClassVar

import numpy as np

from elmesh.checks import check_count
from elmesh.comm.requests import Heard, Kept, Neighbours, Place, Program, State
from elmesh.data.statistics import Task
from elmesh.math.kernels import square
from elmesh.solvers.altgdmin import AltGDmin, gradient, heads, orthonormal, sharpness, step_length
from elmesh.solvers.initialization import random_block
from elmesh.typing import FloatArray

__all__ = ["DifAltGDmin"]


# How closely averages of the start are to agree.
_ROUGH = 1e-6
# Keeps every direction of the block alive, so that U has full rank even where the moments do not.
_FLOOR = 1e-6


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
    go, by length of step, beside the pull of the targets :math:`H_t'T_tA_t'`.

    Parameters
    ----------
    rank : int or "auto", default="auto"
        Number of columns of U; "auto" as for :class:`DMTLELM`.
    mu : float, default=1.0
        Penalty on the weights.
    graph : str or networkx.Graph, default="ring"
        As for :class:`DMTLELM`.
    step : float or "auto", default="auto"
        "auto" is one over the largest bound that any agent has for the curvature of its own :math:`f_t` at the start; a
        number multiplies it.
    mixing : int, default=1
        Exchanges of the combine step. With more of them agents agree more closely, for as many times the bytes.
    power_iterations : int, default=6
        Power iterations of the start.
    max_iter : int, default=200
        Most rounds.
    tol : float, default=1e-2
        Stop when agents are within ``tol`` of their mean and the bases still go less than ``tol``, both relative.
    runtime : {"stacked", "mpi"}, default="stacked"
        As for :class:`DMTLELM`.

    Notes
    -----
    With a step that stays, agents whose tasks differ do not end in agreement, nor quite at the optimum: each pulls its
    own way as strongly as the neighbours pull back. The larger the step and the longer the graph, the farther apart;
    smaller steps and more mixing bring them together. In the paper there is no such limit, because its targets are
    without noise and a basis that is right for one task is right for all.

    Where it differs from the paper: the loss there has no penalty; its start leaves out targets that are large beside
    the others, of which a task's reduced rows know nothing any more; its averages at the start are many rounds of plain
    mixing, and here as few as the graph allows, to a millionth. Its step is :math:`c/(n\sigma_{\max}^2)`, with the
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

    distributed: ClassVar[bool] = True

    def __init__(
        self,
        rank: int | str = "auto",
        mu: float = 1.0,
        graph: Any = "ring",
        step: float | str = "auto",
        mixing: int = 1,
        power_iterations: int = 6,
        max_iter: int = 200,
        tol: float = 1e-2,
        runtime: str = "stacked",
    ) -> None:
        self.rank = rank
        self.mu = mu
        self.graph = graph
        self.step = step
        self.mixing = mixing
        self.power_iterations = power_iterations
        self.max_iter = max_iter
        self.tol = tol
        self.runtime = runtime

    def check(self) -> None:
        """Check every parameter."""
        super().check()
        check_count("mixing", self.mixing)
        check_count("power_iterations", self.power_iterations)

    def program(self, task: Task, place: Place, rank: int, kept: Kept | None = None) -> Program:
        """Return the rounds of one agent, or of all agents stacked."""
        mu = self.mu
        if kept:
            k, U, eta, slope2 = int(kept.common["round"]), kept.own["U"], kept.own["eta"], kept.own.get("slope2")
            weight = kept.edges["weight"]
            A, R = heads(task, U, mu)
        else:
            U = yield from _leading_subspace(task, place, rank, self.power_iterations)
            A, R = heads(task, U, mu)
            own = np.asarray(np.linalg.eigvalsh(sharpness(task, A, mu))[..., -1:, None])
            largest = yield from _largest(own, place)
            k, eta, slope2 = 0, self._factor * step_length(largest), None
            weight = _metropolis(place, (yield Neighbours(place.degree[..., None, None], each=True)))
        while True:
            keep = Kept.of({"U": U, "eta": eta, "slope2": slope2}, {"round": k}, {"weight": weight})
            if (yield self._report(task, U, A, R, slope2, keep)) or k == self.max_iter:
                return State(U, A)
            before = U
            U = U - eta * gradient(task, U, A, R, mu)
            for _ in range(self.mixing):
                heard: Heard = yield Neighbours(U, each=True)
                U = U + heard.total(weight * (heard.values - heard.mine(U)), U)
            U = orthonormal(U)
            k, slope2 = k + 1, square((U - before) / np.where(eta > 0, eta, 1.0))
            A, R = heads(task, U, mu)


def _metropolis(place: Place, degrees: Heard) -> FloatArray:
    """Return the weight of each neighbour in the mean; weights are symmetric, and with one's own sum to one."""
    return np.asarray(1.0 / (1.0 + np.maximum(degrees.mine(place.degree[..., None, None]), degrees.values)))


def _average(x: FloatArray, place: Place) -> Generator[Neighbours, Any, FloatArray]:
    """Replace every agent's matrix by the average of all of them."""
    degree = place.degree[..., None, None]
    for root in place.roots(_ROUGH):
        heard = yield Neighbours(x)
        x = x - (degree * x - heard) / root
    return x


def _largest(x: FloatArray, place: Place) -> Generator[Neighbours, Any, FloatArray]:
    """Replace every agent's matrix by the largest of all of them, entry by entry."""
    # Averages have come from everywhere, so as many rounds as they take are enough for any news to get around.
    for _ in place.roots(_ROUGH):
        heard = yield Neighbours(x, each=True)
        if heard.hearer is None:
            x = np.maximum(x, heard.values.max(axis=0))
        else:
            x = x.copy()
            np.maximum.at(x, heard.hearer, heard.values)
    return x


def _leading_subspace(task: Task, place: Place, rank: int, iterations: int) -> Generator[Neighbours, Any, FloatArray]:
    r"""Return an orthonormal basis of the leading subspace of :math:`\sum_t (H_t'T_t)(H_t'T_t)'`."""
    M = task.V @ task.sY
    lead, L = M.shape[:-2], M.shape[-2]
    Q = np.broadcast_to(random_block(L, rank, place.seed), (*lead, L, rank))
    for _ in range(iterations):
        MQ = yield from _average(M @ (M.mT @ Q), place)
        size = np.vecdot(Q.reshape(*lead, -1), MQ.reshape(*lead, -1))[..., None, None]
        Q = orthonormal(MQ + _FLOOR * np.where(size > 0, size, 1.0) * Q)
    return Q
