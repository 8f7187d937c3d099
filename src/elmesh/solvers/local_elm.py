"""Local ELM (equation (4)): every task by itself."""

from __future__ import annotations

from elmesh.checks import check_number
from elmesh.comm.requests import Kept, Place, Program, State
from elmesh.data.statistics import Task
from elmesh.math.kernels import ridge
from elmesh.solvers.base import Solver

__all__ = ["LocalELM"]


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

    def __init__(self, mu: float = 1.0) -> None:
        self.mu = mu

    def check(self) -> None:
        """Check the penalty."""
        check_number("mu", self.mu)

    def program(self, task: Task, place: Place, rank: int, kept: Kept | None = None) -> Program:
        """Solve at once; there is nothing to ask of anybody, to report or to go on from."""
        yield from ()
        return State(None, ridge(task, self.mu))
