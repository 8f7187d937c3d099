r"""The objective, and the conditions of the convergence theorems.

The problem is

.. math:: \min_{U, A}\; \sum_t \tfrac12 |H_t U A_t - T_t|^2 + \tfrac{\mu_1}{2}|U|^2 + \tfrac{\mu_2}{2}\sum_t |A_t|^2 ,

equation (6); each agent's share of it, equation (12), carries :math:`\mu_1/m` of the penalty on its own U.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from elmesh.data.statistics import Task
from elmesh.math.kernels import fit, project, residual, solve_A, square
from elmesh.typing import FloatArray

__all__ = ["Margins", "agent_objective", "objective", "objective_of_U", "theorem_margins"]


def agent_objective(
    task: Task, R: FloatArray, U2: FloatArray, A: FloatArray, mu1: float, mu2: float, n_agents: int
) -> FloatArray:
    """Return F_t(U_t, A_t), an agent's share of the objective (12), from its residual R and the square of its U."""
    return fit(task, R) + mu1 / (2 * n_agents) * U2 + mu2 / 2 * square(A)


def objective(task: Task, U: FloatArray, A: FloatArray, mu1: float, mu2: float) -> float:
    """Return the objective (6) for one U shared by all tasks of a stack."""
    fits = fit(task, residual(task, project(task, U), A))
    return float(np.sum(fits) + mu1 / 2 * square(U) + mu2 / 2 * np.sum(square(A)))


def objective_of_U(task: Task, U: FloatArray, mu1: float, mu2: float) -> float:
    """Return the objective (6) at a shared U with every A_t at its best."""
    return objective(task, U, solve_A(task, project(task, U), np.zeros(1), mu2, 0.0), mu1, mu2)


@dataclass(frozen=True, eq=False)
class Margins:
    """By how much each agent meets (positive) or misses (negative) its theorem's condition on tau.

    Parameters
    ----------
    tau : ndarray of shape (m,)
        The proximal weight in use, in the sense of the prox-linear P_t = tau I - rho C_t'C_t.
    required : ndarray of shape (m,)
        The smallest tau for which the theorem promises convergence.
    dual_step : bool
        Whether the multiplier's step also follows the theorems' rule (``gamma="paper"``).
    """

    tau: FloatArray
    required: FloatArray
    dual_step: bool

    @property
    def margin(self) -> FloatArray:
        """``tau - required``, agent by agent."""
        return self.tau - self.required

    @property
    def hold(self) -> bool:
        """Whether the theorem applies to this run."""
        return self.dual_step and bool(np.all(self.margin >= 0))

    def __repr__(self) -> str:
        met = int(np.sum(self.margin >= 0))
        rule = "" if self.dual_step else "; gamma does not follow the theorem's rule"
        return (
            f"<the theorem {'applies' if self.hold else 'does not apply'}: {met} of {len(self.tau)} agents meet its "
            f"condition on tau, smallest margin {self.margin.min():.4g}{rule}>"
        )


def theorem_margins(
    tau: FloatArray,
    rho: float,
    degree: FloatArray,
    delta: float,
    mu1: float,
    lipschitz: FloatArray | float,
    dual_step: bool,
    n_agents: int | None = None,
) -> Margins:
    r"""Compare tau with Theorem 1 (``lipschitz`` = 0) or Theorem 2 (``lipschitz`` = L_t).

    Required is :math:`L_t + \rho m (\delta + \tfrac12) \sigma_{t,\max} - \tfrac{\sigma}{2}`, where
    :math:`\sigma_{t,\max}` is the agent's degree and :math:`\sigma = \mu_1/m` the strong convexity of its penalty on U.
    The condition is sufficient, not necessary. ``n_agents`` is m where ``degree`` is not of all agents.
    """
    m = n_agents or len(degree)
    required = lipschitz + rho * m * (delta + 0.5) * degree - mu1 / (2 * m)
    return Margins(np.broadcast_to(tau, required.shape).copy(), required, dual_step)
