"""What a runtime is, and what a run gives: the :class:`Link` that runtimes differ by, and all that passes over it.

:mod:`elmesh.run.driver` does the driving, once for all of them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

import pandas as pd

from elmesh.comm.requests import Heard, Hub, Neighbours, Report, State, Sum, Total
from elmesh.comm.traffic import Ledger
from elmesh.typing import FloatArray

__all__ = ["Figures", "Following", "Link", "Mark", "Moment", "Past", "Progress", "Result", "Stop"]


class Stop(Enum):
    """Why a fit ended; the value says what to do about it."""

    CONVERGED = "The residuals fell below tol."
    MAX_ITER = "The rounds ran out before the residuals fell below tol; raise max_iter, or tol if this is good enough."
    DIVERGED = (
        "The run diverged and the last sound state is kept; leave rho, tau and zeta at their defaults, or raise tau."
    )
    INTERRUPTED = "The fit was interrupted; the state after the last whole round is kept."
    SETTLED = "No step lowers the objective any further; this is as near as rounding allows."
    BUDGET = "Another round might have taken more than max_bytes; raise it, or lower message_bits or rank."
    DIRECT = "The method has no rounds; its solution is exact."
    COMPLETED = "The method took all its rounds, or ran out of directions to add; it has no tolerance to meet."

    def __str__(self) -> str:
        return f"{self.name}: {self.value}"


@dataclass(frozen=True)
class Progress:
    """Where a fit stands after a round; ``state`` holds the variables of the agents that this process runs."""

    round: int
    max_iter: int
    objective: float
    consensus_gap: float
    dual_residual: float
    exchanges: int
    bytes: int
    state: State | None = field(default=None, repr=False, compare=False)


@dataclass(frozen=True, eq=False)
class Result:
    """What a run produced.

    Parameters
    ----------
    state : State
        The last sound state.
    history : DataFrame
        A row a round: ``round``, ``objective``, ``consensus_gap``, ``dual_residual``, and so far ``exchanges`` (rounds
        of messages, those of the start included) and ``bytes`` (over all agents). What follows the last round is in
        its row.
    stop : Stop
        Why it ended.
    n_iter : int
        Rounds of the method.
    n_exchanges : int
        Rounds of messages, those of the start included; to a hub and back is two.
    ledger : Ledger
        Bytes along every edge.
    """

    state: State
    history: pd.DataFrame
    stop: Stop
    n_iter: int
    n_exchanges: int
    ledger: Ledger


@dataclass(frozen=True)
class Figures:
    """What a run is followed by, of one round and over all agents.

    Parameters
    ----------
    objective : float
        Its value.
    residual, scale : tuple of float
        As in :class:`~elmesh.comm.requests.Report`, added up.
    distance, size : float
        Root mean square distance of agents' U from their mean, and the norm of the mean.
    bytes : int
        Sent so far.
    halt : bool
        Whether a process other than this one wants to stop.
    """

    objective: float
    residual: tuple[float, float]
    scale: tuple[float, float]
    distance: float
    size: float
    bytes: int
    halt: bool = False


class Following(Protocol):
    """Figures on their way."""

    def advance(self) -> Figures | None:
        """Go a step further, waiting for what the last one has started; return the figures once they are there."""


class Link(Protocol):
    """How agents reach each other. A runtime is one of these."""

    @property
    def n_exchanges(self) -> int:
        """Rounds of messages so far."""

    @property
    def alone(self) -> bool:
        """Whether there is no other process."""

    def exchange(self, request: Neighbours) -> FloatArray | Heard:
        """Deliver a message to the neighbours and return theirs."""

    def consult(self, request: Hub) -> FloatArray:
        """Deliver a message to the hub and return its answer."""

    def add_up(self, request: Total) -> Sum:
        """Add up over all agents, by messages between neighbours."""

    def follow(self, report: Report, halt: bool) -> Following:
        """Set out to find a round's figures; ``halt`` says that this process wants to stop."""

    def most_bytes(self, request: Neighbours | Hub | Total) -> int:
        """Return what a request takes at most, over all agents."""

    def books(self) -> Ledger:
        """Return the bytes along every edge so far. All processes must ask."""

    def mark(self) -> Mark:
        """Return where the link stands, to go back to."""

    def rewind(self, mark: Mark) -> None:
        """Go back to where :meth:`mark` was taken."""


@dataclass(frozen=True, eq=False)
class Mark:
    """Where a link stands: what each agent has said and heard, and what all have in common."""

    own: dict[int, dict[str, FloatArray]] = field(default_factory=dict)
    common: dict[str, FloatArray] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Moment:
    """A report, and where its run stood: the link's mark (empty if it is not needed), and rounds of messages so far."""

    report: Report
    mark: Mark
    exchanges: int
    following: Following


@dataclass(frozen=True)
class Past:
    """What a run knows of its rounds so far: their rows, and what relative figures and divergence are told by."""

    rows: tuple[Progress, ...] = ()
    floors: tuple[float, float, float] | None = None
    ceiling: float = 0.0
