r"""The weights of proximal ADMM: given by the user, or automatic.

A weight is one number, one number per agent, or text such as "20 + d" (20 plus the agent's degree, as the paper writes
:math:`\tau_t = 20 + d_t`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from elmesh.checks import check_number
from elmesh.data.statistics import Task
from elmesh.errors import ElmeshError
from elmesh.math.kernels import correlation, square
from elmesh.solvers.base import AgentContext
from elmesh.solvers.state import PerAgent
from elmesh.typing import FloatArray

__all__ = ["AdaptiveZeta", "auto_rho", "check_weight", "per_agent", "per_matrix"]

_DEGREE_PLUS = re.compile(r"\s*(\d+(?:\.\d*)?)\s*\+\s*d\s*")
_WINDOW = 100  # rounds between two checks of whether the disagreement decreased
_FEEDBACK = 0.1  # share of the coupling by rho that A's feedback may use
_NEGLIGIBLE = 1e-18  # square of the relative disagreement below which there is nothing to guard
# The constants of the automatic rho, chosen on random problems of the kinds in tests/unit/test_solvers.py.
_RHO_SHARE, _RHO_HETEROGENEITY = 0.1, 10.0


def per_matrix(x: FloatArray | float) -> FloatArray:
    """Add two axes, so that one number per agent multiplies one matrix per agent."""
    return np.asarray(x, dtype=np.float64)[..., None, None]


def check_weight(name: str, value: Any, *, zero: bool, degrees: bool) -> None:
    """Raise unless ``value`` is "auto", a number, one number per agent or, with ``degrees``, text like "20 + d"."""
    if isinstance(value, str):
        if value == "auto" or (degrees and _DEGREE_PLUS.fullmatch(value)):
            return
        choices = '"auto", a number, or one number per agent' + (', or text like "20 + d"' if degrees else "")
        raise ElmeshError(f"{name} must be {choices}; got {value!r}.")
    for number in np.asarray(value, dtype=object).ravel():
        check_number(name, number, zero=zero)


def per_agent(value: Any, context: AgentContext) -> FloatArray:
    """Return the weight of each agent, from one that passed :func:`check_weight` and is not "auto"."""
    if isinstance(value, str):
        offset = _DEGREE_PLUS.fullmatch(value)
        return per_matrix(float(offset[1]) + context.degree if offset else np.nan)
    numbers = np.asarray(value, dtype=np.float64)
    if numbers.ndim and numbers.shape != (context.n_agents,):
        raise ElmeshError(
            f"A weight with one value per agent has {numbers.size} values, but there are {context.n_agents} agents."
        )
    return per_matrix(numbers[context.agent] if numbers.ndim else np.full(np.shape(context.degree), numbers))


def auto_rho(curvature: float, heterogeneity: float, laplacian_scale: float, least: float) -> float:
    r"""Return the penalty parameter of consensus.

    ``curvature`` is the mean of :math:`|H_t U A_t|^2 / |U|^2`, the fit's second derivative along U; ``heterogeneity``
    the root mean square of :math:`|\nabla f_t|/|U|`, the force that multipliers have to balance. A rho that is too
    small never reaches consensus and one that is too large is slow; both scale with these, and inversely with the
    eigenvalues of the graph's Laplacian.
    """
    return max(_RHO_SHARE * float(np.hypot(curvature, _RHO_HETEROGENEITY * heterogeneity)) / laplacian_scale, least)


@dataclass(frozen=True, eq=False)
class AdaptiveZeta:
    r"""The automatic zeta: :math:`\zeta_t = k_t |E_t|^2`, with :math:`E_t = H_t'(H_t U_t A_t - T_t)`.

    The factor starts at :math:`k_t = 1/(0.1\,\rho\,\min(d_t, g))`, g the scale of the graph's Laplacian, and an agent
    doubles it when over a window of rounds its disagreement with its neighbours has not decreased. ``before`` and
    ``worst`` are the largest disagreement in the last window and in this one.
    """

    factor: PerAgent
    before: PerAgent
    worst: PerAgent

    @classmethod
    def start(cls, context: AgentContext, rho: float) -> AdaptiveZeta:
        """Return the rule before the first round."""
        hold = _FEEDBACK * rho * np.minimum(context.degree, context.laplacian_scale)
        # An agent without neighbours needs no care.
        factor = np.where(hold > 0, 1.0 / np.where(hold > 0, hold, 1.0), 0.0)
        return cls(factor, np.full(np.shape(hold), np.inf), np.zeros(np.shape(hold)))

    def update(self, k: int, gap2: FloatArray, U2: FloatArray) -> AdaptiveZeta:
        """Return the rule after U step k, from the squares of an agent's disagreement and of its U."""
        worst = np.maximum(self.worst, gap2 / np.where(U2 > 0, U2, 1.0))
        if (k + 1) % _WINDOW:
            return replace(self, worst=worst)
        stuck = (worst >= self.before) & (worst > _NEGLIGIBLE)
        return AdaptiveZeta(np.where(stuck, 2.0, 1.0) * self.factor, worst, np.zeros_like(worst))

    def zeta(self, task: Task, R: FloatArray) -> FloatArray:
        """Return zeta for the residual R."""
        return per_matrix(self.factor * square(correlation(task, R)))
