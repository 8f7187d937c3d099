r"""Where the rounds of proximal ADMM begin: each agent's copy of the common start, and the weight of agreement."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass

import numpy as np

from elmesh.comm.requests import Kept, Place, Sum, Total
from elmesh.data.statistics import Task
from elmesh.math.kernels import fit_gradient, project, residual, solve_A, square
from elmesh.solvers.initialization import opening, plain_A
from elmesh.typing import FloatArray

__all__ = ["Start", "auto_rho", "begin", "wide"]


# The two constants of the automatic rho, chosen on random problems of the kinds in tests/test_solvers.py.
_RHO_SHARE = 0.1
_RHO_HETEROGENEITY = 10.0


def wide(x: FloatArray | float) -> FloatArray:
    """Let a number an agent act on matrices an agent."""
    return np.asarray(x, dtype=np.float64)[..., None, None]


@dataclass(frozen=True, eq=False)
class Start:
    """Where the rounds begin."""

    U: FloatArray
    A: FloatArray
    rho: float
    mu1: float
    mu2: float

    @classmethod
    def of(cls, kept: Kept) -> Start:
        """Return where rounds begin that have been kept: where they were."""
        rho, mu1, mu2 = (float(kept.common[name]) for name in ("rho", "mu1", "mu2"))
        return cls(kept.own["U"], kept.own["A"], rho, mu1, mu2)


def begin(
    task: Task, place: Place, rank: int, mu1: float | str, mu2: float | str, init: str, rho: float | str
) -> Generator[Total, Sum, Start]:
    """Agree on a start, on penalties and on rho, a number or "auto" (see :func:`auto_rho`)."""
    start = yield from opening(task, place, rank, mu1, mu2, init)
    mu1, mu2 = start.mu1, start.mu2
    lead = task.s.shape[:-1]
    U = np.broadcast_to(start.U, (*lead, *start.U.shape)).copy()
    HU = project(task, U)
    A = plain_A(task, rank) if init == "ones" else solve_A(task, HU, np.zeros(1), mu2, 0.0)
    as_it_is = init in ("ones", "seed")
    if as_it_is and not isinstance(rho, str):
        return Start(U, A, float(rho), mu1, mu2)

    # Three sums over all tasks say how U and A are balanced, how curved the fit is, and how much tasks differ.
    gradient = fit_gradient(task, residual(task, HU, A), A)
    sums = np.stack([square(A), square(HU @ A), square(gradient)], axis=-1)
    answer = yield Total(np.zeros((*lead, 1, 0)), sums, "rho")
    A2, fit2, gradient2 = (answer.numbers / place.n_agents).tolist()
    U2, balance = float(square(start.U)), 1.0
    if not as_it_is and A2 > 0:
        # At a stationary point mu1 |U|^2 = mu2 sum |A_t|^2; starting there makes the curvature below meaningful.
        balance = (mu2 * place.n_agents * A2 / (mu1 * U2)) ** 0.25
        U = balance * U
        A = solve_A(task, balance * HU, np.zeros(1), mu2, 0.0)
    if not isinstance(rho, str):
        return Start(U, A, float(rho), mu1, mu2)
    curvature = fit2 / (balance**2 * U2)
    heterogeneity = np.sqrt(gradient2 / U2) / balance**2
    return Start(U, A, auto_rho(curvature, heterogeneity, place.grip, mu1 / place.n_agents), mu1, mu2)


def auto_rho(curvature: float, heterogeneity: float, grip: float, floor: float) -> float:
    r"""Return the weight of agreement.

    ``curvature`` is the mean of :math:`|H_t U A_t|^2 / |U|^2`, the fit's second derivative along U; ``heterogeneity``
    the root mean square of :math:`|\nabla f_t|/|U|`, the pull that multipliers will have to balance. Too small a rho
    never agrees and too large a one crawls; both scale with these, and inversely with how firmly the graph holds
    agents.
    """
    return max(_RHO_SHARE * float(np.hypot(curvature, _RHO_HETEROGENEITY * heterogeneity)) / grip, floor)
