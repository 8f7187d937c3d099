"""What a solver is: its parameters, what it requires of a transport, and its rounds.

A solver is four generators over a frozen state, which yield requests (:mod:`elmesh.comm.requests`) and are sent their
results; they do no input or output and know nothing of where they run:

- ``init_state(problem)`` returns the state before the first round;
- ``step(problem, state)`` returns the state after the next round, or the same round if there is no step to take;
- ``on_converged(problem, state)`` may go on from a state within the tolerance, as ``step`` does;
- ``finish(problem, state, decision)`` returns the solution.

:func:`rounds` runs them, and resumes from a state. Subclassing :class:`Solver` registers a solver by its short name.
"""

from __future__ import annotations

import re
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping, Sequence, Set
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property, partial
from inspect import signature
from types import MappingProxyType
from typing import Any, ClassVar, TypeVar

import numpy as np
from sklearn.base import BaseEstimator

from elmesh.checks import check_choice, check_count, check_flag, check_number
from elmesh.comm.codec import BITS
from elmesh.comm.requests import Request
from elmesh.data.statistics import SiteRows, Statistics, Task
from elmesh.errors import ElmeshError, RankWarning
from elmesh.math.central_step import CentralUStep
from elmesh.math.certificate import Certificate
from elmesh.math.hidden_network import NetworkRows
from elmesh.math.random_effects import SiteBatch, site_batches
from elmesh.privacy.budget import Privacy
from elmesh.privacy.release import Mechanism
from elmesh.solvers.state import MixedEffects, SolverState
from elmesh.typing import FloatArray, IndexArray, IntArray

__all__ = [
    "EXACT_A",
    "MESSAGE_BITS",
    "AgentContext",
    "Decision",
    "Fallback",
    "GroupedFeatures",
    "LowRankSolver",
    "PrivateTotals",
    "Problem",
    "Program",
    "RoundReport",
    "Solution",
    "Solver",
    "Steps",
    "make_solver",
    "rounds",
    "solver_classes",
]

T = TypeVar("T")
#: Bits per number that ``message_bits`` may be.
MESSAGE_BITS = (*BITS, "auto")
#: Halves of the rows of sites: all first ones, and all second ones.
Halves = tuple[Sequence[SiteRows], Sequence[SiteRows]]
#: A generator that yields requests, is sent their results, and returns a T.
Steps = Generator["Request | Fallback", Any, T]


@dataclass(frozen=True, eq=False)
class AgentContext:
    """What an agent knows of the network: public facts about the graph, and its own place in it.

    Parameters
    ----------
    n_agents : int
        Number of agents m.
    agent : ndarray of shape (...)
        The agent's number, from 0.
    degree : ndarray of shape (...)
        Number of the agent's neighbours.
    laplacian_scale : float
        Geometric mean of the extreme non-zero eigenvalues of the graph's Laplacian.
    averaging_roots : callable
        From a precision to an averaging schedule (:meth:`elmesh.comm.graph.Topology.averaging_roots`).
    seed : int
        The seed that all agents share.
    fewest_terms : int
        Of how many agents a sum over some of them must have terms (:func:`elmesh.comm.row_counts.fewest_terms`).
    """

    n_agents: int
    agent: IndexArray
    degree: FloatArray
    laplacian_scale: float
    averaging_roots: Callable[[float], tuple[float, ...]]
    seed: int
    fewest_terms: int


@dataclass(frozen=True, eq=False)
class PrivateTotals:
    """What the sites here release of their rows, before noise is added, where a fit is private.

    Parameters
    ----------
    mechanism : Mechanism
        How totals are released.
    features : ndarray of int of shape (q,)
        The features that have common weights.
    units : ndarray of shape (q,)
        What these features are multiplied by in the totals.
    terms : ndarray of int of shape (m, k)
        The totals of each site.
    """

    mechanism: Mechanism
    features: IndexArray
    units: FloatArray
    terms: IntArray


@dataclass(frozen=True, eq=False)
class Problem:
    """The data of one agent, or of many, their context, and the number of columns of U.

    ``data`` is a task, or several with a leading axis; where features come in groups, the rows of each site.
    ``groups`` is the group of each feature: 0 is the constant, others follow. None where features have no groups.
    ``noise_floor`` is the least variance of noise, as a share of that of the targets. ``halves`` returns the two halves
    of each site's rows, for what is decided on rows left out. ``classes``: whether targets are indicators of classes,
    less the common share of each class where there is a common part. ``private``: what sites release, where a fit is
    private. ``most_features``: most features of the common and the shared part; None for no limit. ``subtracted``:
    what is subtracted from the indicators of each class, if classes are shared. ``start``: U of an earlier fit, with a
    leading axis for several agents; solvers whose agents have a U of their own start from it.
    """

    data: Task | Sequence[SiteRows]
    context: AgentContext
    rank: int
    groups: IndexArray | None = None
    noise_floor: float = 0.0
    halves: Callable[[], Halves] | None = None
    classes: bool = False
    private: PrivateTotals | None = None
    most_features: int | None = None
    subtracted: FloatArray | None = None
    start: FloatArray | None = None

    @property
    def task(self) -> Task:
        """The decomposed task, or stack of tasks."""
        if not isinstance(self.data, Task):
            raise TypeError("This problem has features in groups; its data are in sites.")
        return self.data

    @cached_property
    def sites(self) -> list[SiteBatch]:
        """The sites in batches; without groups all features are in one, which is not the constant's."""
        if isinstance(self.data, Task):
            raise TypeError("This problem has no features in groups; its data are in task.")
        groups = np.ones(self.data[0].width, dtype=np.intp) if self.groups is None else self.groups
        return site_batches(self.data, groups)

    @cached_property
    def network_rows(self) -> list[NetworkRows]:
        """The rows of sites, in batches, for a solver that trains a hidden layer."""
        if isinstance(self.data, Task) or any(site.weights is None for site in self.data):
            raise TypeError("This problem has statistics of rows; a solver that trains a hidden layer needs the rows.")
        outputs = np.array([site.outputs for site in self.data])
        # Many short steps: few batches cost less than much padding.
        batches = site_batches(self.data, self.sites[0].groups, lambda n: 1 << (n - 1).bit_length())
        return [NetworkRows.from_batch(batch, outputs[batch.index], classes=self.classes) for batch in batches]

    @property
    def shape(self) -> tuple[int, int, int]:
        """Numbers of sites here, of features and of columns of the targets."""
        return sum(len(batch.index) for batch in self.sites), *self.sites[0].Phi.shape[-1:], self.sites[0].T.shape[-1]

    @cached_property
    def central_step(self) -> CentralUStep:
        """The U step of all tasks together, decomposed once."""
        return CentralUStep(self.task)


@dataclass(frozen=True, eq=False)
class GroupedFeatures:
    """What is known of features in groups, beside the statistics of each task.

    Parameters
    ----------
    groups : ndarray of int of shape (p,)
        The group of each feature: 0 is the constant, others follow.
    noise_floor : float
        The least variance of noise, as a share of that of the targets.
    halves : callable or None
        Returns the two halves of each site's rows: all first ones, and all second ones. They are made when they are
        needed, because they take as much memory as all else.
    classes : bool
        Whether targets are indicators of classes; where there is a common part, those that all sites share, less the
        common share of each class.
    private : PrivateTotals or None
        What sites release, where a fit is private.
    most_features : int or None
        Most features of the common and the shared part; None for no limit.
    subtracted : ndarray of shape (d,) or None
        What is subtracted from the indicators of each class, if classes are shared.
    """

    groups: IndexArray
    noise_floor: float = 0.0
    halves: Callable[[], Halves] | None = None
    classes: bool = False
    private: PrivateTotals | None = None
    most_features: int | None = None
    subtracted: FloatArray | None = None

    def problem(self, sites: Sequence[SiteRows], context: AgentContext, rank: int) -> Problem:
        """Return the problem of all sites of this process."""
        fields = self.noise_floor, self.halves, self.classes, self.private, self.most_features, self.subtracted
        return Problem(sites, context, rank, self.groups, *fields)


@dataclass(frozen=True, eq=False)
class Solution:
    """The variables: the basis U (``None``: the identity), the private A, and the multiplier C'lambda of ADMM.

    ``rho``, ``tau``, ``zeta``, ``mu1`` and ``mu2`` are the values in use; ``mu2`` is the penalty of the ridge
    regression that A_t is for given U, and None if A_t is a Lasso. ``certificate`` is that of a finished run.
    ``W`` and ``V`` are the common and the private weights where a method has them, and ``effects`` their variances.
    ``prior`` holds the root of the prior variance of each agent's weights, for methods that weigh groups of features.
    ``hidden`` are the weights of a trained hidden layer, on which A_t are the weights of the outputs.
    """

    U: FloatArray | None
    A: FloatArray
    dual: FloatArray | None = None
    rho: float = 0.0
    tau: FloatArray | float = 0.0
    zeta: FloatArray | float = 0.0
    mu1: float | None = None
    mu2: float | None = None
    certificate: Certificate | None = None
    W: FloatArray | None = None
    V: FloatArray | None = None
    effects: MixedEffects | None = None
    prior: FloatArray | None = None
    hidden: FloatArray | None = None


@dataclass(frozen=True, eq=False)
class Fallback:
    """A solution before the first round, for a run that may not send what is needed to get there.

    The monitor answers None.
    """

    solution: Solution


class Decision(IntEnum):
    """The answer to a :class:`RoundReport`; false as long as the run goes on."""

    CONTINUE = 0
    #: The tolerance is met.
    CONVERGED = 1
    #: The user, or a limit, ends the run.
    HALT = 2


#: Totals of a report in which every A_t is the best for its U: the residual in A is zero at every agent.
EXACT_A: FloatArray = np.array([np.nan, np.nan, 0.0, np.nan, 1.0])


@dataclass(frozen=True, eq=False)
class RoundReport:
    """Where the agents are after a round. The answer is a :class:`Decision`.

    Parameters
    ----------
    solution : Solution
        The variables.
    objective : ndarray of shape (...)
        Each agent's share of the objective.
    residual, scale : pair of ndarrays of shape (...)
        Squared norms of the Lagrangian's gradient in U and in A, and what they are compared with.
    states : tuple of SolverState
        What to resume from, one per batch of agents.
    totals : ndarray of shape (5,) or None
        The sums of these five numbers over all agents that every agent knows, equal to the bit; NaN for the others,
        which are summed to follow the run. None if none is known.
    """

    solution: Solution
    objective: FloatArray
    residual: tuple[FloatArray, FloatArray]
    scale: tuple[FloatArray, FloatArray]
    states: tuple[SolverState, ...]
    totals: FloatArray | None = None

    @property
    def round(self) -> int:
        """Rounds done."""
        return self.states[0].round


Program = Generator[Request | Fallback | RoundReport, Any, Solution]

_registry: dict[str, type[Solver]] = {}
_COMMON_CHECKS: dict[str, Callable[[str, Any], None]] = {
    "mu": check_number,
    "mu1": check_number,
    "mu2": check_number,
    "max_iter": check_count,
    "tol": partial(check_number, zero=True),
    "certify": check_flag,
    "message_bits": partial(check_choice, choices=MESSAGE_BITS),
}


class Solver(BaseEstimator, ABC):
    """Base of all solvers: a method with its parameters.

    A subclass is registered under ``name``, by default its class name in lower case with hyphens, unless it is declared
    with ``abstract=True``.
    """

    #: Short name, as in ``solver="dmtl-elm"`` and on the command line.
    name: ClassVar[str]
    #: One line for lists of solvers.
    summary: ClassVar[str] = ""
    #: The class of the solver's states.
    state_type: ClassVar[type[SolverState]] = SolverState
    #: Whether every agent has a U of its own, which only messages bring into agreement.
    per_agent_basis: ClassVar[bool] = False
    #: Whether messages between neighbours are the agents' U and nothing else.
    sends_only_basis: ClassVar[bool] = False
    #: The least number of columns of U that may be asked for.
    least_rank: ClassVar[int] = 1
    #: Whether all tasks have the same weights but for a private part, so that columns of targets mean the same.
    one_model: ClassVar[bool] = False
    #: Whether a hidden layer is trained, for which a site's rows are needed and not their products alone.
    learns_features: ClassVar[bool] = False
    #: Whether there are rounds; if not, the initial state is the solution.
    iterative: ClassVar[bool] = True
    #: The graph of agents; None where the method has none.
    graph: Any = None
    #: Most rounds; None for a method that takes one round per column of U.
    max_iter: int | None = None
    #: What relative residuals must fall below; None for a method without a tolerance.
    tol: float | None = None
    #: Bits per number of messages, and bytes that all agents together may send.
    message_bits: int | str = 64
    max_bytes: float | None = None
    #: Least number of rows for each feature of which totals are summed; 0 for no limit.
    rows_per_feature: float = 0.0
    #: Differential privacy of what leaves a site; None for none.
    privacy: Privacy | None = None

    def __init_subclass__(cls, *, abstract: bool = False, **options: Any) -> None:
        super().__init_subclass__(**options)
        if abstract:
            return
        if "name" not in cls.__dict__:
            cls.name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", cls.__name__).lower()
        known = _registry.get(cls.name)
        # The same class again, as when a notebook's cell is run once more, takes the place of the old one.
        if known is not None and (known.__module__, known.__qualname__) != (cls.__module__, cls.__qualname__):
            raise ElmeshError(
                f"There is a solver {cls.name!r} already ({known.__module__}.{known.__qualname__}); give the class "
                f"{cls.__qualname__} another name."
            )
        _registry[cls.name] = cls

    @property
    def requires(self) -> Set[type[Request]]:
        """Kinds of request that agents make; a class attribute where they do not depend on parameters.

        With all data in one place sums need no message, and need not be listed.
        """
        return frozenset()

    @property
    def pooled(self) -> bool:
        """Whether all tasks' data must be in one place; a class attribute where it does not depend on parameters."""
        return False

    @property
    def grouped_features(self) -> bool:
        """Whether features come in groups with a constant among them, instead of features centred in each task."""
        return False

    @property
    def learns_from_halves(self) -> bool:
        """Whether something is decided on halves of each task's rows."""
        return False

    @property
    def has_common_part(self) -> bool:
        """Whether weights have a part that all tasks share, so that columns of targets mean the same everywhere."""
        return False

    def least_start(self, width: int, outputs: int, rank: int, n_agents: int) -> float:
        """Return how many numbers a start over a graph certainly takes, beside sums of matrices; 0 if unknown."""
        return 0.0

    @property
    def matrix_sums(self) -> int:
        """How many sums of a matrix of all features a fit takes."""
        return 0

    def check(self) -> None:
        """Raise :class:`~elmesh.errors.ElmeshError` if a parameter is invalid.

        Parameters that many solvers have are checked here by their names; a subclass checks its others.
        """
        defaults = signature(type(self)).parameters
        for name, value in self.get_params(deep=False).items():
            automatic = isinstance(value, str) and value == "auto" == defaults[name].default
            if name == "rank" and not automatic:
                check_count(name, value, least=self.least_rank)
            elif name in _COMMON_CHECKS and not automatic:
                _COMMON_CHECKS[name](name, value)
        if self.requires and self.graph is None and not self.pooled:
            raise ElmeshError(f"graph must be a name such as 'ring', or a networkx graph; {self.name} needs one.")

    @abstractmethod
    def init_state(self, problem: Problem) -> Steps[Any]:
        """Return the state before the first round."""

    def step(self, problem: Problem, state: Any) -> Steps[Any]:
        """Return the state after the next round; a state of the same round ends the run."""
        yield from ()
        return state

    def on_converged(self, problem: Problem, state: Any) -> Steps[Any]:
        """Return a state to go on from after all; a state of the same round ends the run."""
        yield from ()
        return state

    def finish(self, problem: Problem, state: Any, decision: Decision) -> Steps[Solution]:
        """Return the solution."""
        yield from ()
        return self.complete(problem, state)

    def complete(self, problem: Problem, state: Any) -> Solution:
        """Return the solution with all that agents find by themselves, for a run that may send no more."""
        return self.solution(problem, state)

    @abstractmethod
    def solution(self, problem: Problem, state: Any) -> Solution:
        """Return the variables of a state."""

    def report(self, problem: Problem, state: Any) -> RoundReport:
        """Return where the agents are; every iterative solver has one."""
        raise TypeError(f"{type(self).__name__} takes rounds but does not report on them.")

    def without_common_targets(self) -> Solver:
        """Return the solver to use where targets of different tasks have nothing in common but their features."""
        return self

    @property
    def distributed(self) -> bool:
        """Whether tasks are agents of a graph."""
        return self.graph is not None

    def directions(self, task: Statistics) -> int:
        """Return how many directions of U a task, or all tasks of a stack together, can use."""
        return 0

    def rank_for(self, outputs: int, width: int, directions: int) -> int:
        """Return the number of columns of U.

        ``outputs`` is the largest number of target columns, ``width`` the number of features, and ``directions`` the
        sum of all tasks' :meth:`directions`.
        """
        return 0

    def resolve_rank(self, data: Task | Sequence[SiteRows]) -> int:
        """Return the number of columns of U for stacked tasks, or for sites."""
        parts: Sequence[Statistics] = [data] if isinstance(data, Task) else data
        outputs = max(part.outputs for part in parts)
        return self.rank_for(outputs, parts[0].width, sum(self.directions(part) for part in parts))

    def for_one_task(self) -> Solver:
        """Return a copy without parameters that refer to other tasks: graphs over their labels, numbers per agent."""
        defaults = signature(type(self)).parameters
        plain = (str, bool, int, float, np.generic, type(None))
        own = self.get_params(deep=False).items()
        return type(self)(**{name: x if isinstance(x, plain) else defaults[name].default for name, x in own})


class LowRankSolver(Solver, abstract=True):
    """A solver whose output weights are U A_t with a basis U of few columns."""

    rank: int | str
    #: What spans no more directions than are useful, for the warning.
    spanned_by: ClassVar[str] = "all targets together"

    def directions(self, task: Statistics) -> int:
        """Return how many directions the targets span."""
        return task.directions

    def rank_for(self, outputs: int, width: int, directions: int) -> int:
        """Return the rank: the given one, at most what the data can use; "auto" is two per target column."""
        usable = max(1, min(width, directions))
        if self.rank == "auto":
            return min(2 * outputs, usable)
        rank = int(self.rank)
        if rank > usable:
            warnings.warn(
                f"rank={rank} is more than these data can use: {self.spanned_by} span {usable} directions, so "
                f"rank {usable} is used.",
                RankWarning,
                stacklevel=4,
            )
        return min(rank, usable)


def rounds(solver: Solver, problem: Problem, state: SolverState | None = None) -> Program:
    """Run a solver's rounds, from the start or from a state.

    Resumed from a state, it makes the same report again and goes on, to the bit as it would have without interruption.
    """
    now = (yield from solver.init_state(problem)) if state is None else state
    decision, limit = Decision.CONTINUE, problem.rank if solver.max_iter is None else solver.max_iter
    while solver.iterative:
        decision = yield solver.report(problem, now)
        before = now
        if decision is Decision.CONTINUE and now.round < limit:
            now = yield from solver.step(problem, now)
        elif decision is not Decision.HALT:
            now = yield from solver.on_converged(problem, now)
        if now.round == before.round:
            break
    return (yield from solver.finish(problem, now, decision))


def solver_classes() -> Mapping[str, type[Solver]]:
    """Return all registered solvers by short name, those of scripts and other packages included."""
    return MappingProxyType(_registry)


def make_solver(solver: str | Solver) -> Solver:
    """Return a solver with checked parameters, from itself or from its short name."""
    names = ", ".join(_registry)
    if isinstance(solver, str):
        if solver not in _registry:
            raise ElmeshError(f"The solver {solver!r} is unknown; use one of {names}.")
        return _registry[solver]()
    if not isinstance(solver, Solver):
        raise ElmeshError(
            f"solver must be a name ({names}) or a solver such as MeshELM(), not {type(solver).__name__}."
        )
    solver.check()
    return solver
