"""What every solver shares: its parameters as a scikit-learn estimator, their checks, and the rank."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from typing import Any, ClassVar

import numpy as np
from sklearn.base import BaseEstimator

from elmesh.checks import check_choice, check_count, check_flag, check_number
from elmesh.comm.requests import Kept, Place, Program
from elmesh.data.statistics import Task
from elmesh.errors import RankWarning
from elmesh.solvers.varpro import varpro

__all__ = ["LowRankSolver", "SharedBasisSolver", "Solver"]

# Columns that an automatic rank begins with. Too many cost bytes, too few a certificate more.
_BEGIN = 16


class Solver(BaseEstimator, ABC):
    """A method, with its parameters. It says what to run; a runtime runs it."""

    #: Whether all tasks' data must be in one place.
    pooled: ClassVar[bool] = False
    #: Whether tasks are agents that talk to each other, along ``graph``.
    distributed: ClassVar[bool] = False
    graph: Any = None
    #: Where the agents run: "stacked", all in this process, or "mpi".
    runtime: str = "stacked"
    #: Most rounds, and what residuals must fall below; None for a method that knows itself when it is done.
    max_iter: int | None = None
    tol: float | None = None
    #: Bits a number of what is added up over all agents, and bytes that all agents together may send.
    message_bits: int | str = 64
    max_bytes: float | None = None

    @abstractmethod
    def check(self) -> None:
        """Raise :class:`~elmesh.errors.ElmeshError` if a parameter makes no sense."""

    @abstractmethod
    def program(self, task: Task, place: Place, rank: int, kept: Kept | None = None) -> Program:
        """Return the algorithm for one agent, or for all of them stacked in ``task``.

        With ``kept`` it begins with the report that this came with, and goes on from there to the bit as if it had
        never been stopped.
        """

    def directions(self, task: Task) -> int:
        """Return how many directions of U a task can use, or all tasks of a stack together."""
        return 0

    def rank_for(self, outputs: int, width: int, directions: int) -> int:
        """Return the number of columns U will have.

        Parameters
        ----------
        outputs : int
            Target columns of the task that has most of them.
        width : int
            Number of features L.
        directions : int
            Sum of all tasks' :meth:`directions`.
        """
        return 0

    def resolve_rank(self, task: Task) -> int:
        """Return the number of columns U will have for stacked tasks."""
        return self.rank_for(int(task.Y.shape[-1]), int(task.V.shape[-2]), self.directions(task))

    @property
    def own_basis(self) -> bool:
        """Whether every agent holds a U of its own, which only its neighbours' bring into line."""
        return False

    @property
    def private_penalty(self) -> float | None:
        """The penalty of the ridge regression that A_t is, given U; None if it is a Lasso. Mostly it is called mu.

        A state that says what it was (``mu2``) knows better: it may have been chosen on the way.
        """
        return float(self.mu)


class LowRankSolver(Solver):
    """A solver whose output weights are U A_t with a basis U of few columns that the tasks share."""

    rank: int | str

    def check(self) -> None:
        """Check the rank."""
        if self.rank != "auto":
            check_count("rank", self.rank)
        check_choice("runtime", self.runtime, ("stacked", "mpi"))

    #: What spans no more directions than can be of use.
    spanning: ClassVar[str] = "all targets together"

    def directions(self, task: Task) -> int:
        """Return how many directions the targets have."""
        return int(np.sum(np.linalg.matrix_rank(task.Y)))

    def rank_for(self, outputs: int, width: int, directions: int) -> int:
        """Return the rank: what was asked, at most what the data can use; "auto" is two a target column."""
        usable = max(1, min(width, directions))
        if self.rank == "auto":
            return min(2 * outputs, usable)
        rank = int(self.rank)
        if rank > usable:
            warnings.warn(
                f"rank={rank} is more than these data can use: {self.spanning} span {usable} directions, so "
                f"rank {usable} is used.",
                RankWarning,
                stacklevel=4,
            )
        return min(rank, usable)


class SharedBasisSolver(LowRankSolver):
    """A solver of problem (6), with a penalty on U and one on the A_t."""

    mu1: float | str
    mu2: float | str
    init: str
    max_iter: int
    tol: float
    certify: bool

    def check(self) -> None:
        """Check the parameters that all such solvers have."""
        super().check()
        for name in ("mu1", "mu2"):
            if getattr(self, name) != "auto":
                check_number(name, getattr(self, name))
        check_flag("certify", self.certify)
        check_choice("init", self.init, ("spectral", "random", "seed", "ones"))
        check_count("max_iter", self.max_iter)
        check_number("tol", self.tol, zero=True)

    @property
    def grows(self) -> bool:
        """Whether the certificate decides about an automatic rank."""
        return False

    def by_projection(self, task: Task, place: Place, rank: int, kept: Kept | None) -> Program:
        """Return the steps of variable projection with this solver's parameters."""
        return varpro(
            task,
            place,
            rank=rank,
            grow=self.rank == "auto",
            mu1=self.mu1,
            mu2=self.mu2,
            init=self.init,
            max_iter=self.max_iter,
            tol=self.tol,
            certify=self.certify,
            kept=kept,
        )

    def rank_for(self, outputs: int, width: int, directions: int) -> int:
        """Return the rank to begin with; an automatic one that grows begins with a moderate number of columns."""
        if self.rank == "auto" and self.grows:
            return min(max(_BEGIN, 2 * outputs), max(1, min(width, directions)))
        return super().rank_for(outputs, width, directions)
