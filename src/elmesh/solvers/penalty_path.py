r"""The paper's problem along a path of penalties, for the choice among them: all tasks in one place, decomposed once.

Penalties go from large to small, and U of each is the start of the next. Where a large penalty has made columns of U
vanish, f is flat along them: a small share of the first start brings them back, or all of it if U has vanished. Steps
end when one lowers the objective by less than a small share of it: predictions hardly change then, and the penalty that
is chosen is fitted to the end.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from elmesh.data.statistics import Task
from elmesh.solvers.base import AgentContext, Problem
from elmesh.solvers.initialization import initialize
from elmesh.solvers.integer_sums import run_in_one_place
from elmesh.solvers.variable_projection import rough_fit
from elmesh.typing import FloatArray

__all__ = ["automatic_penalty", "penalty_path"]

# Share of the first start that every later one contains, most steps per penalty, and the share of the objective by
# which a step must lower it for another one.
_REVIVAL, _MOST_STEPS, _SETTLED = 0.05, 200, 3e-4


def automatic_penalty(task: Task, context: AgentContext, rank: int) -> float:
    """Return the penalty that "auto" stands for."""
    return run_in_one_place(initialize(Problem(task, context, rank), "auto", "auto", "spectral")).mu2


def penalty_path(
    task: Task, context: AgentContext, rank: int, penalties: Sequence[float]
) -> Iterator[tuple[FloatArray, FloatArray]]:
    """Yield U and all A_t at each of the penalties, which decrease; each is the penalty of U and of the A_t."""
    problem = Problem(task, context, rank)
    start = U = run_in_one_place(initialize(problem, 1.0, 1.0, "spectral")).U
    for mu in penalties:
        U, A = run_in_one_place(rough_fit(problem, mu, U, _MOST_STEPS, _SETTLED))
        yield U, A
        vanished = np.linalg.norm(U) <= _REVIVAL * np.linalg.norm(start)
        U = start if vanished else U + _REVIVAL * start
