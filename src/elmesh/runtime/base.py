"""Drive an agent's algorithm: answer its requests, watch its progress, decide when to stop.

What differs between runtimes is the :class:`Link`: how a message gets to the neighbours and how numbers are summed
over agents. Everything else is here, once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Protocol

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from elmesh.errors import ElmeshError
from elmesh.runtime.ledger import Ledger
from elmesh.solvers.requests import Answer, Heard, Hub, Neighbours, Program, Report, State, Sum, Total

__all__ = ["Link", "Progress", "Result", "Stop", "drive", "watch"]

FloatArray = NDArray[np.float64]

# A run whose objective exceeds that of zero weights (or of its start) this many times over will not come back.
_DIVERGED = 1e6
# Share of the start's figures below which relative ones are no longer relative.
_FLOOR = 1e-2


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


class Link(Protocol):
    """How agents reach each other. A runtime is one of these."""

    @property
    def bytes_sent(self) -> int:
        """Bytes sent so far, over all agents."""

    @property
    def n_exchanges(self) -> int:
        """Rounds of messages so far."""

    @property
    def ledger(self) -> Ledger:
        """Bytes along every edge so far."""

    def exchange(self, request: Neighbours) -> FloatArray | Heard:
        """Deliver a message to the neighbours and return theirs."""

    def consult(self, request: Hub) -> FloatArray:
        """Deliver a message to the hub and return its answer."""

    def add_up(self, request: Total) -> Sum:
        """Add up over all agents, by messages between neighbours."""

    def most_bytes(self, request: Neighbours | Hub | Total) -> int:
        """Return what a request takes at most, over all agents."""

    def total(self, values: FloatArray) -> FloatArray:
        """Sum the leading agent axis over all agents."""

    def consensus(self, state: State) -> tuple[float, float]:
        """Return the root mean square distance of agents' U from their mean, and the norm of the mean."""


_observer: ContextVar[Callable[[Progress], bool | None] | None] = ContextVar("observer", default=None)


@contextmanager
def watch(callback: Callable[[Progress], bool | None]) -> Iterator[None]:
    """Have ``callback`` called after every round of the fits inside; if it returns True, the fit stops there.

    Examples
    --------
    >>> import numpy as np
    >>> from elmesh import MultiTaskELMRegressor, runtime
    >>> X, y = np.arange(20.0).reshape(10, 2), np.arange(10.0)
    >>> rounds = []
    >>> with runtime.watch(lambda progress: rounds.append(progress.round)):
    ...     model = MultiTaskELMRegressor(n_hidden=None, random_state=0).fit(X, y, tasks=list("aabbaabbab"))
    >>> rounds == model.history_["round"].tolist()
    True
    """
    token = _observer.set(callback)
    try:
        yield
    finally:
        _observer.reset(token)


def drive(
    program: Program,
    link: Link,
    *,
    max_iter: int,
    tol: float | None,
    start_energy: float,
    max_bytes: float | None = None,
) -> Result:
    """Run an algorithm to its end.

    Parameters
    ----------
    program : generator
        The algorithm.
    link : Link
        The runtime.
    max_iter : int
        Most rounds, for progress.
    tol : float or None
        What consensus gap and dual residual must fall below; None for a method that knows itself when it is done.
    start_energy : float
        Objective at zero weights, the yardstick for divergence.
    max_bytes : float or None
        What all agents together may send; the run ends with its last round before a message that might exceed it.

    Returns
    -------
    Result
    """
    course = _Course(link, max_iter, tol, start_energy, max_bytes)
    answer: FloatArray | Heard | Sum | Answer | None = None
    # An overflow on the way to divergence is reported once, by Stop.DIVERGED, not by a shower of warnings.
    with np.errstate(over="ignore", invalid="ignore"):
        while True:
            try:
                request = program.send(answer)
            except StopIteration as end:
                return course.result(end.value)
            except np.linalg.LinAlgError:
                # Only numbers that have overflowed make these systems singular. Without a sound state it is no
                # divergence.
                if course.sound is None:
                    raise
                return course.diverged(course.sound)
            if isinstance(request, Report):
                verdict = course.judge(request)
                if verdict is None:
                    program.close()
                    return course.diverged(request.state)
                answer = verdict
            elif course.affordable(request):
                answer = _relay(link, request)
            else:
                program.close()
                return course.spent()


def _relay(link: Link, request: Neighbours | Hub | Total) -> FloatArray | Heard | Sum:
    if isinstance(request, Neighbours):
        return link.exchange(request)
    return link.consult(request) if isinstance(request, Hub) else link.add_up(request)


class _Course:
    """How a run goes: turns reports into progress, and progress into whether to go on.

    What the first report said is a floor for relative figures. Without it a problem whose solution is zero would never
    converge: residuals and what they are compared with vanish together.
    """

    def __init__(
        self, link: Link, max_iter: int, tol: float | None, start_energy: float, max_bytes: float | None
    ) -> None:
        self._link, self._max_iter, self._tol = link, max_iter, tol
        self._max_bytes = math.inf if max_bytes is None else max_bytes
        self._ceiling = _DIVERGED * start_energy
        self._floors: tuple[float, float, float] | None = None
        self._rows: list[Progress] = []
        self._stop = Stop.DIRECT
        self._observer = _observer.get()
        self.sound: State | None = None

    def judge(self, report: Report) -> Answer | None:
        """Answer a report; None if the run has diverged."""
        progress = self._progress(report)
        if not self._rows:
            self._ceiling = max(self._ceiling, _DIVERGED * progress.objective)
        if not progress.objective <= self._ceiling or math.isnan(progress.consensus_gap):
            return None
        self._rows.append(progress)
        self.sound = report.state
        tol = self._tol
        settled = tol is not None and progress.consensus_gap <= tol and progress.dual_residual <= tol
        # Only the observer is shown the state: kept in every row, it would fill the memory.
        enough = self._observer is not None and self._observer(replace(progress, state=report.state))
        if enough:
            self._stop = Stop.INTERRUPTED
            return Answer.HALT
        if settled:
            self._stop = Stop.CONVERGED
            return Answer.SETTLED
        self._stop = Stop.COMPLETED if tol is None else Stop.MAX_ITER
        return Answer.GO_ON

    def affordable(self, request: Neighbours | Hub | Total) -> bool:
        """Say whether what is left of ``max_bytes`` allows for a request, whatever it turns out to take."""
        if self._max_bytes == math.inf:
            return True
        return self._link.bytes_sent + self._link.most_bytes(request) <= self._max_bytes

    def spent(self) -> Result:
        """Return the last sound state, the next request being more than ``max_bytes`` allows for."""
        if self.sound is None:
            raise ElmeshError(
                f"max_bytes={self._max_bytes:,.0f} is not enough to agree on a start, which has taken "
                f"{self._link.bytes_sent:,} bytes already; raise it, or lower message_bits or rank."
            )
        if self._stop is not Stop.CONVERGED:
            self._stop = Stop.BUDGET
        return self.result(self.sound)

    def _progress(self, report: Report) -> Progress:
        link = self._link
        own = np.stack([report.objective, *report.residual, *report.scale], axis=-1)
        objective, U_rest, A_rest, U_scale, A_scale = link.total(own).tolist()
        distance, size = link.consensus(report.state)
        if self._floors is None:
            self._floors = _FLOOR**2 * U_scale, _FLOOR**2 * A_scale, _FLOOR * size
        U_floor, A_floor, size_floor = self._floors
        dual = max(_ratio(U_rest, max(U_scale, U_floor)), _ratio(A_rest, max(A_scale, A_floor)))
        gap = _ratio(distance, max(size, size_floor))
        sent = link.n_exchanges, link.bytes_sent
        return Progress(report.round, self._max_iter, objective, gap, math.sqrt(dual), *sent)

    def result(self, state: State) -> Result:
        """Return what a run that came to its end produced."""
        rows = self._rows
        if self._stop is Stop.MAX_ITER and rows[-1].round < self._max_iter:
            self._stop = Stop.SETTLED
        if rows:
            rows[-1] = replace(rows[-1], exchanges=self._link.n_exchanges, bytes=self._link.bytes_sent)
        n_iter = rows[-1].round if rows else 0
        return Result(state, _history(rows), self._stop, n_iter, self._link.n_exchanges, self._link.ledger)

    def diverged(self, state: State) -> Result:
        """Return the last sound state, or the given one if there was none."""
        self._stop = Stop.DIVERGED
        return self.result(state if self.sound is None else self.sound)


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole > 0 else 0.0 if part == 0 else math.inf


def _history(rows: list[Progress]) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "round": np.array([row.round for row in rows], dtype=np.int64),
            "objective": np.array([row.objective for row in rows], dtype=np.float64),
            "consensus_gap": np.array([row.consensus_gap for row in rows], dtype=np.float64),
            "dual_residual": np.array([row.dual_residual for row in rows], dtype=np.float64),
            "exchanges": np.array([row.exchanges for row in rows], dtype=np.int64),
            "bytes": np.array([row.bytes for row in rows], dtype=np.int64),
        }
    )
