r"""Proximal weights: read from the user, or chosen and guarded automatically.

A weight may be one number, one number an agent, or text such as "20 + d" (20 plus the agent's degree, as the paper
writes
:math:`\tau_t = 20 + d_t`).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np

from elmesh.checks import check_number
from elmesh.comm.requests import Kept, Place
from elmesh.data.statistics import Task
from elmesh.errors import ElmeshError
from elmesh.math.kernels import correlation, square
from elmesh.solvers.admm_start import wide
from elmesh.typing import FloatArray

__all__ = ["Caution", "always", "check_weight", "per_agent"]


_OFFSET = re.compile(r"\s*(\d+(?:\.\d*)?)\s*\+\s*d\s*")
_WINDOW = 100  # rounds between two looks at whether the disagreement fell
_HOLD = 0.1  # share of rho's grip that A's feedback may use
_SETTLED = 1e-18  # square of the relative disagreement below which there is nothing left to guard


def check_weight(name: str, value: Any, *, zero: bool, degrees: bool) -> None:
    """Raise unless ``value`` is "auto", a number, one number an agent or, with ``degrees``, text like "20 + d"."""
    if isinstance(value, str):
        if value == "auto" or (degrees and _OFFSET.fullmatch(value)):
            return
        choices = '"auto", a number, or one number an agent' + (', or text like "20 + d"' if degrees else "")
        raise ElmeshError(f"{name} must be {choices}; got {value!r}.")
    for number in np.asarray(value, dtype=object).ravel():
        check_number(name, number, zero=zero)


def per_agent(value: Any, place: Place) -> FloatArray:
    """Read a weight that passed :func:`check_weight` and is not "auto"."""
    if isinstance(value, str):
        offset = _OFFSET.fullmatch(value)
        return wide(float(offset[1]) + place.degree if offset else np.nan)
    numbers = np.asarray(value, dtype=np.float64)
    if numbers.ndim and numbers.shape != (place.n_agents,):
        raise ElmeshError(
            f"A weight with one value an agent has {numbers.size} values, but there are {place.n_agents} agents."
        )
    return wide(numbers[place.number] if numbers.ndim else np.full(np.shape(place.degree), numbers))


def always(weight: FloatArray) -> Callable[..., FloatArray]:
    """Return a rule that answers the same weight whatever it is asked."""
    return lambda *_: weight


class Caution:
    r"""The automatic zeta: :math:`\zeta_t = k_t |E_t|^2`, with :math:`E_t = H_t'(H_t U_t A_t - T_t)`.

    The factor starts at :math:`k_t = 1/(0.1\,\rho\,\min(d_t, g))`, g the grip of the graph, and an agent doubles it
    when over a window of rounds its disagreement with its neighbours has not fallen.
    """

    def __init__(self, task: Task, place: Place, rho: float, kept: Kept | None = None) -> None:
        self._task = task
        if kept:
            self._factor, self._before, self._worst = (kept.own[name] for name in ("factor", "before", "worst"))
            return
        hold = _HOLD * rho * np.minimum(place.degree, place.grip)
        # An agent without neighbours has nobody to disagree with, and needs no care.
        self._factor = np.where(hold > 0, 1.0 / np.where(hold > 0, hold, 1.0), 0.0)
        self._before = np.full(np.shape(hold), np.inf)
        self._worst = np.zeros(np.shape(hold))

    @property
    def own(self) -> dict[str, FloatArray]:
        """What to go on from: the factor, and the largest disagreement in the window before and in this one."""
        return {"factor": self._factor, "before": self._before, "worst": self._worst}

    def __call__(self, k: int, R: FloatArray, gap2: FloatArray, U2: FloatArray) -> FloatArray:
        """Return zeta after U step k, which left the residual R and a disagreement; squares are an agent's own."""
        self._worst = np.maximum(self._worst, gap2 / np.where(U2 > 0, U2, 1.0))
        if (k + 1) % _WINDOW == 0:
            stuck = (self._worst >= self._before) & (self._worst > _SETTLED)
            self._factor = np.where(stuck, 2.0, 1.0) * self._factor
            self._before, self._worst = self._worst, np.zeros_like(self._worst)
        return wide(self._factor * square(correlation(self._task, R)))
