r"""Federated ridge regression in one round: sums of products of features and targets, solved by every task.

.. math:: W = \Bigl(\sum_t H_t'H_t + \mu I\Bigr)^{-1} \sum_t H_t'T_t

is the ridge regression of all rows together, and the products are sums over all tasks: one exchange gives it exactly.
With a private part every task fits a ridge regression of its own to what W leaves of its targets,

.. math:: V_t = (H_t'H_t + \nu_t I)^{-1} H_t'(T_t - H_tW) .
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from elmesh.checks import check_flag, check_number
from elmesh.comm.requests import AllReduce, AllReduceResult, Request
from elmesh.data.statistics import Task
from elmesh.math.kernels import project, ridge
from elmesh.math.noise import own_penalty
from elmesh.solvers.base import Problem, Solution, Solver, Steps
from elmesh.solvers.state import PerAgent, SolverState

__all__ = ["FederatedRidge", "FederatedRidgeState"]


@dataclass(frozen=True, eq=False)
class FederatedRidgeState(SolverState):
    """The weights of each task."""

    A: PerAgent


@dataclass(repr=False, eq=False)
class FederatedRidge(Solver):
    r"""One ridge regression for all tasks by a single exchange of sums (arXiv 2601.08216), and private residuals.

    Every task sends :math:`H_t'H_t`, of which half is enough, and :math:`H_t'T_t`, once. Columns of targets mean the
    same at all tasks.

    Parameters
    ----------
    mu : float or "auto", default="auto"
        Penalty on the common weights. "auto": the one with the least generalised cross-validation over all rows, which
        follows from the same sums.
    private : bool, default=False
        Whether each task fits what the common weights leave by a ridge regression of its own. Nothing more is sent.
    private_mu : float or "auto", default="auto"
        Penalty on the private weights. "auto": at each task the one with its least generalised cross-validation.
    graph : str or networkx.Graph, default="star"
        As for :class:`DMTLELM`.
    message_bits : {2, 4, 8, 16, 32, 64, "auto"}, default=64
        Bits per number in messages, as for :class:`MeshELM`. Nothing is sent twice, so rounding errors stay.

    Examples
    --------
    >>> from elmesh import FederatedRidge
    >>> FederatedRidge(mu=2.0, private=True).private
    True
    """

    name: ClassVar[str] = "federated-ridge"
    summary: ClassVar[str] = "one ridge regression by a single exchange of sums (arXiv 2601.08216)"
    state_type = FederatedRidgeState
    iterative: ClassVar[bool] = False
    one_model: ClassVar[bool] = True
    requires: ClassVar[Set[type[Request]]] = frozenset({AllReduce})

    mu: float | str = "auto"
    private: bool = False
    private_mu: float | str = "auto"
    graph: Any = "star"
    message_bits: int | str = 64

    def check(self) -> None:
        """Check every parameter."""
        super().check()
        check_flag("private", self.private)
        if self.private_mu != "auto":
            check_number("private_mu", self.private_mu)

    def init_state(self, problem: Problem) -> Steps[FederatedRidgeState]:
        """Exchange the products, and solve."""
        task = problem.task
        whole = yield from _pooled(task)
        W = ridge(whole, float(own_penalty(whole)) if self.mu == "auto" else float(self.mu))
        A = np.broadcast_to(W, (*task.s.shape[:-1], *W.shape)).copy()
        if self.private:
            left = replace(task, Y=task.Y - project(task, W))
            own = own_penalty(left) if self.private_mu == "auto" else np.full(task.s.shape[:-1], float(self.private_mu))
            A += ridge(left, np.asarray(own)[..., None, None])
        return FederatedRidgeState(0, A)

    def solution(self, problem: Problem, state: FederatedRidgeState) -> Solution:
        """Return the weights, with the identity as basis."""
        return Solution(None, state.A)


def _pooled(task: Task) -> Steps[Task]:
    """Return the statistics of all tasks' rows together."""
    L = task.V.shape[-2]
    upper = np.triu_indices(L)
    gram = (task.V * task.s[..., None, :] ** 2) @ task.V.mT
    # Means that are taken off count as one row.
    exact = np.stack([np.asarray(task.rows) - 1.0, np.asarray(task.target_energy)], axis=-1)
    sums: AllReduceResult = yield AllReduce(gram[..., *upper][..., None], exact, "gram")
    moments: AllReduceResult = yield AllReduce(task.V @ task.sY, exact[..., :0], "moments")
    G = np.zeros((L, L))
    G[upper] = sums.value[:, 0]
    values, V = np.linalg.eigh(G + np.triu(G, 1).T)
    # Directions without features, or of the wrong sign by rounding, have no weights.
    kept = values > L * np.finfo(np.float64).eps * max(float(values[-1]), 0.0)
    s = np.sqrt(values[kept])
    Y = (V[:, kept].T @ moments.value) / s[:, None]
    rows, energy = sums.exact.tolist()
    return Task(V[:, kept], s, Y, np.asarray(max(energy - float(np.sum(Y**2)), 0.0)), np.asarray(rows))
