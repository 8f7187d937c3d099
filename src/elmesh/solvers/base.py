"""What every solver shares: its parameters as a scikit-learn estimator, their checks, and the rank."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from numbers import Integral, Real
from typing import Any, ClassVar

from sklearn.base import BaseEstimator

from elmesh.errors import ElmeshError, RankWarning
from elmesh.solvers.requests import Place, Program
from elmesh.statistics import Task

__all__ = ["LowRankSolver", "SharedBasisSolver", "Solver", "check_choice", "check_count", "check_number"]


class Solver(BaseEstimator, ABC):
    """A method, with its parameters. It says what to run; a runtime runs it."""

    #: Whether all tasks' data must be in one place.
    pooled: ClassVar[bool] = False
    #: Whether tasks are agents that talk to each other, along ``graph``.
    distributed: ClassVar[bool] = False
    graph: Any = None
    #: Most rounds, and what residuals must fall below; None for a method that knows itself when it is done.
    max_iter: int | None = None
    tol: float | None = None

    @abstractmethod
    def check(self) -> None:
        """Raise :class:`~elmesh.errors.ElmeshError` if a parameter makes no sense."""

    @abstractmethod
    def program(self, task: Task, place: Place, rank: int) -> Program:
        """Return the algorithm for one agent, or for all of them stacked in ``task``."""

    def resolve_rank(self, task: Task) -> int:
        """Return the number of columns U will have."""
        return 0

    @property
    def private_penalty(self) -> float | None:
        """The penalty of the ridge regression that A_t is, given U; None if it is a Lasso. Mostly it is called mu."""
        return float(self.mu)


class LowRankSolver(Solver):
    """A solver whose output weights are U A_t with a basis U of few columns that the tasks share."""

    rank: int | str

    def check(self) -> None:
        """Check the rank."""
        if self.rank != "auto":
            check_count("rank", self.rank)

    def usable_rank(self, task: Task) -> tuple[int, str]:
        """Return how many columns of U can be of use, and what it is that spans no more directions."""
        return task.usable_rank, "all targets together"

    def resolve_rank(self, task: Task) -> int:
        """Return the rank: what was asked, at most what the data can use; "auto" is two a target column."""
        usable, source = self.usable_rank(task)
        if self.rank == "auto":
            return min(2 * int(task.Y.shape[-1]), usable)
        rank = int(self.rank)
        if rank > usable:
            warnings.warn(
                f"rank={rank} is more than these data can use: {source} span {usable} directions, so "
                f"rank {usable} is used.",
                RankWarning,
                stacklevel=4,
            )
        return min(rank, usable)


class SharedBasisSolver(LowRankSolver):
    """A solver of problem (6): it alternates between U and the A_t, with a penalty on each, until they settle."""

    mu1: float
    mu2: float
    init: str
    max_iter: int
    tol: float

    def check(self) -> None:
        """Check the parameters that all such solvers have."""
        super().check()
        check_number("mu1", self.mu1)
        check_number("mu2", self.mu2)
        check_choice("init", self.init, ("spectral", "random", "ones"))
        check_count("max_iter", self.max_iter)
        check_number("tol", self.tol, zero=True)

    @property
    def private_penalty(self) -> float | None:
        """The penalty on A_t."""
        return float(self.mu2)


def check_number(name: str, value: Any, *, zero: bool = False) -> None:
    """Raise unless ``value`` is a finite number above zero (or zero, where allowed)."""
    wanted = "zero or more" if zero else "more than zero"
    good = type(value) is not bool and isinstance(value, Real) and float(value) < float("inf")
    if not good or float(value) < 0 or (float(value) == 0 and not zero):
        raise ElmeshError(f"{name} must be a finite number, {wanted}; got {value!r}.")


def check_count(name: str, value: Any) -> None:
    """Raise unless ``value`` is a whole number of at least one."""
    if type(value) is bool or not isinstance(value, Integral) or int(value) < 1:
        raise ElmeshError(f"{name} must be a whole number of at least 1; got {value!r}.")


def check_choice(name: str, value: Any, choices: tuple[str, ...]) -> None:
    """Raise unless ``value`` is one of the choices."""
    if not isinstance(value, str) or value not in choices:
        raise ElmeshError(f"{name} must be one of {', '.join(choices)}; got {value!r}.")
