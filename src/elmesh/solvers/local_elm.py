"""Local ELM (equation (4)): every task by itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from elmesh.math.kernels import ridge
from elmesh.solvers.base import Problem, Solution, Solver, Steps
from elmesh.solvers.state import PerAgent, SolverState

__all__ = ["LocalELM", "LocalState"]


@dataclass(frozen=True, eq=False)
class LocalState(SolverState):
    """The weights of each task."""

    A: PerAgent


@dataclass(repr=False, eq=False)
class LocalELM(Solver):
    r"""Ridge regression on the hidden features of each task, :math:`\beta_t = (H_t'H_t + \mu I)^{-1}H_t'T_t`.

    Parameters
    ----------
    mu : float, default=1.0
        Penalty on the weights.

    Examples
    --------
    >>> from elmesh import LocalELM
    >>> LocalELM(mu=10.0).mu
    10.0
    """

    name: ClassVar[str] = "local-elm"
    summary: ClassVar[str] = "each task alone, by ridge regression"
    state_type = LocalState
    iterative: ClassVar[bool] = False

    mu: float = 1.0

    def init_state(self, problem: Problem) -> Steps[LocalState]:
        """Solve at once."""
        yield from ()
        return LocalState(0, ridge(problem.task, self.mu))

    def solution(self, problem: Problem, state: LocalState) -> Solution:
        """Return the weights, with the identity as basis."""
        return Solution(None, state.A, mu2=float(self.mu))
