"""FedRep: a hub averages the bases that tasks have each taken a few gradient steps on."""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar

import numpy as np

from elmesh.checks import check_choice, check_count
from elmesh.comm.requests import Hub, Kept, Place, Program, State
from elmesh.data.statistics import Task
from elmesh.math.kernels import project, residual, square
from elmesh.solvers.altgdmin import AltGDmin, gradient, heads, orthonormal, sharpness, step_length
from elmesh.solvers.initialization import random_block
from elmesh.typing import FloatArray

__all__ = ["FedRep", "leading_subspace"]


# Share of the largest singular value below which moments say nothing of a direction.
_ROUNDING = 1e-10


class FedRep(AltGDmin):
    r"""Federated representation learning, its linear case (Collins, Hassani, Mokhtari and Shakkottai 2021).

    Tasks sit around a hub, the first of them. In a round every task, from the U that all hold alike,

    .. math::
        A_t &= \arg\min_A f_t(UA), \qquad f_t(W) = \tfrac12 |H_t W - T_t|^2 + \tfrac\mu2 |W|^2 \\
        U_t &= U - \eta\, \nabla_U f_t(U A_t), \text{ as many times as there are local steps},

    tells the hub U_t, and the hub sends back the orthonormal factor of the mean of all of them. The sum of all
    :math:`f_t` is the objective in ``history_``, and ``dual_residual`` how far U still goes, by length of step, beside
    the pull of the targets :math:`H_t'T_tA_t'`.

    Parameters
    ----------
    rank : int or "auto", default="auto"
        Number of columns of U; "auto" as for :class:`DMTLELM`.
    mu : float, default=1.0
        Penalty on the weights.
    step : float or "auto", default="auto"
        "auto" is one over a bound of the curvature of the mean of all :math:`f_t`, estimated at the start; a number
        multiplies it.
    local_steps : int, default=1
        Gradient steps on U a round, with A_t as it was found at the round's start. With more than one, tasks that
        differ pull the mean away from the optimum.
    init : {"moments", "random"}, default="moments"
        Start: the leading left singular vectors of all tasks' :math:`H_t'T_t`, or a block from the shared seed.
    max_iter : int, default=200
        Most rounds.
    tol : float, default=1e-2
        Stop when U still goes less than ``tol``, relative.
    runtime : {"stacked", "mpi"}, default="stacked"
        As for :class:`DMTLELM`.

    Notes
    -----
    A round sends L x r numbers from every task to the hub, and as many back. The start sends L x d up, once, and
    thereby :math:`H_t'T_t`: with ``init="random"`` nothing but bases is told, and r x r numbers for the step.

    Where it differs from the paper: the loss there has no penalty, all tasks take part in every round here, and for its
    start the paper has tasks send :math:`\sum_i y_i^2 x_i x_i'`, which is L x L. The subspace of
    :math:`\sum_t (H_t'T_t)(H_t'T_t)'` is the same where the paper's assumptions hold, closer to the truth with few
    rows, and takes L x d, the least that tells it.

    Examples
    --------
    >>> from elmesh import FedRep
    >>> FedRep(rank=4, local_steps=5).local_steps
    5
    """

    distributed: ClassVar[bool] = True
    graph: Any = "star"

    def __init__(
        self,
        rank: int | str = "auto",
        mu: float = 1.0,
        step: float | str = "auto",
        local_steps: int = 1,
        init: str = "moments",
        max_iter: int = 200,
        tol: float = 1e-2,
        runtime: str = "stacked",
    ) -> None:
        self.rank = rank
        self.mu = mu
        self.step = step
        self.local_steps = local_steps
        self.init = init
        self.max_iter = max_iter
        self.tol = tol
        self.runtime = runtime

    def check(self) -> None:
        """Check every parameter."""
        super().check()
        check_count("local_steps", self.local_steps)
        check_choice("init", self.init, ("moments", "random"))

    def program(self, task: Task, place: Place, rank: int, kept: Kept | None = None) -> Program:
        """Return the rounds of one agent, or of all agents stacked; U has no agent axis in either case."""
        mu, steps = self.mu, self.local_steps
        if kept:
            U, slope2 = kept.common["U"], kept.common.get("slope2")
            k, eta = int(kept.common["round"]), float(kept.common["eta"])
            A, R = heads(task, U, mu)
        else:
            U = random_block(task.V.shape[-2], rank, place.seed)
            if self.init == "moments":
                U = yield Hub(task.V @ task.sY, partial(leading_subspace, U))
            A, R = heads(task, U, mu)
            k, slope2 = 0, None
            eta = self._factor * float((yield Hub(sharpness(task, A, mu), _step_for_all)).item())
        while True:
            keep = Kept.of({}, {"U": U, "round": k, "eta": eta, "slope2": slope2})
            if (yield self._report(task, U, A, R, slope2, keep)) or k == self.max_iter:
                return State(U, A)
            own = U - eta * gradient(task, U, A, R, mu)
            for _ in range(steps - 1):
                own = own - eta * gradient(task, own, A, _residual(task, own, A), mu)
            before, U = U, (yield Hub(own, _mean_basis))
            k, slope2 = k + 1, square((U - before) / (steps * eta if eta > 0 else 1.0))
            A, R = heads(task, U, mu)


def leading_subspace(fill: FloatArray, moments: FloatArray) -> FloatArray:
    """Return as many leading left singular vectors of all moments as ``fill`` has columns.

    Parameters
    ----------
    fill : ndarray of shape (L, r)
        Where moments have fewer directions, the rest come from here.
    moments : ndarray of shape (m, L, d)
        The moments of all tasks.

    Returns
    -------
    ndarray of shape (L, r)
        Orthonormal columns.

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


def _step_for_all(sharpnesses: FloatArray) -> FloatArray:
    return step_length(np.linalg.eigvalsh(sharpnesses.mean(axis=0))[-1:, None])


def _mean_basis(bases: FloatArray) -> FloatArray:
    return orthonormal(bases.mean(axis=0))


def _residual(task: Task, U: FloatArray, A: FloatArray) -> FloatArray:
    return residual(task, project(task, U), A)
