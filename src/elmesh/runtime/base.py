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

from elmesh.solvers.requests import Heard, Hub, Neighbours, Program, Report, State

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
    DIVERGED = 'The run diverged and the last sound state is kept; use "auto" for rho, tau and zeta, or raise tau.'
    INTERRUPTED = "The fit was interrupted; the state after the last whole round is kept."
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
        A row a round: ``round``, ``objective``, ``consensus_gap``, ``dual_residual``, ``bytes``.
    stop : Stop
        Why it ended.
    n_iter : int
        Rounds of the method.
    n_exchanges : int
        Rounds of messages, those of the start included; to a hub and back is two.
    """

    state: State
    history: pd.DataFrame
    stop: Stop
    n_iter: int
    n_exchanges: int


class Link(Protocol):
    """How agents reach each other. A runtime is one of these."""

    @property
    def bytes_sent(self) -> int:
        """Bytes sent so far, over all agents."""

    @property
    def n_exchanges(self) -> int:
        """Rounds of messages so far."""

    def exchange(self, request: Neighbours) -> FloatArray | Heard:
        """Deliver a message to the neighbours and return theirs."""

    def consult(self, request: Hub) -> FloatArray:
        """Deliver a message to the hub and return its answer."""

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


def drive(program: Program, link: Link, *, max_iter: int, tol: float | None, start_energy: float) -> Result:
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

    Returns
    -------
    Result
    """
    observer = _observer.get()
    judge = _Judge(link, max_iter)
    rows: list[Progress] = []
    sound: State | None = None
    stop = Stop.COMPLETED if tol is None else Stop.MAX_ITER
    ceiling = _DIVERGED * start_energy
    answer: FloatArray | Heard | bool | None = None
    # An overflow on the way to divergence is reported once, by Stop.DIVERGED, not by a shower of warnings.
    with np.errstate(over="ignore", invalid="ignore"):
        while True:
            try:
                request = program.send(answer)
            except StopIteration as end:
                state: State = end.value
                break
            except np.linalg.LinAlgError:
                # Only numbers that have overflowed make these systems singular. Without a sound state it is no
                # divergence.
                if sound is None:
                    raise
                stop, state = Stop.DIVERGED, sound
                break
            if isinstance(request, Neighbours):
                answer = link.exchange(request)
                continue
            if isinstance(request, Hub):
                answer = link.consult(request)
                continue
            progress = judge.progress(request)
            if not rows:
                ceiling = max(ceiling, _DIVERGED * progress.objective)
            if not progress.objective <= ceiling or math.isnan(progress.consensus_gap):
                program.close()
                stop = Stop.DIVERGED
                state = sound if sound is not None else request.state
                break
            rows.append(progress)
            sound = request.state
            answer = tol is not None and progress.consensus_gap <= tol and progress.dual_residual <= tol
            if answer:
                stop = Stop.CONVERGED
            # Only the observer is shown the state: kept in every row, it would fill the memory.
            if observer is not None and observer(replace(progress, state=sound)) and not answer:
                answer, stop = True, Stop.INTERRUPTED
    if not rows:
        stop = Stop.DIRECT
    return Result(state, _history(rows), stop, rows[-1].round if rows else 0, link.n_exchanges)


class _Judge:
    """Turns reports into progress, with what the first one said as a floor for relative figures.

    Without the floor a problem whose solution is zero would never converge: residuals and what they are compared with
    vanish together.
    """

    def __init__(self, link: Link, max_iter: int) -> None:
        self._link, self._max_iter = link, max_iter
        self._floors: tuple[float, float, float] | None = None

    def progress(self, report: Report) -> Progress:
        own = np.stack([report.objective, *report.residual, *report.scale], axis=-1)
        objective, U_rest, A_rest, U_scale, A_scale = self._link.total(own).tolist()
        distance, size = self._link.consensus(report.state)
        if self._floors is None:
            self._floors = _FLOOR**2 * U_scale, _FLOOR**2 * A_scale, _FLOOR * size
        U_floor, A_floor, size_floor = self._floors
        dual = max(_ratio(U_rest, max(U_scale, U_floor)), _ratio(A_rest, max(A_scale, A_floor)))
        gap = _ratio(distance, max(size, size_floor))
        return Progress(report.round, self._max_iter, objective, gap, math.sqrt(dual), self._link.bytes_sent)


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole > 0 else 0.0 if part == 0 else math.inf


def _history(rows: list[Progress]) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "round": np.array([row.round for row in rows], dtype=np.int64),
            "objective": np.array([row.objective for row in rows], dtype=np.float64),
            "consensus_gap": np.array([row.consensus_gap for row in rows], dtype=np.float64),
            "dual_residual": np.array([row.dual_residual for row in rows], dtype=np.float64),
            "bytes": np.array([row.bytes for row in rows], dtype=np.int64),
        }
    )
