"""Drive an agent's algorithm: answer its requests, watch its progress, decide when to stop.

What differs between runtimes is the :class:`~elmesh.run.base.Link`: how a message gets to the neighbours and how
numbers are summed over agents. Everything else is here, once.

Where agents wait for nobody but their neighbours, a run does not wait for everybody's figures either: it goes on, and
if the figures turn out to be those of its end, it goes back to the report that they are of.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace

import numpy as np
import pandas as pd

from elmesh.comm.requests import Answer, Heard, Hub, Kept, Neighbours, Program, Report, State, Sum, Total
from elmesh.errors import ElmeshError
from elmesh.run.base import Figures, Link, Mark, Moment, Past, Progress, Result, Stop
from elmesh.typing import FloatArray

__all__ = ["drive", "watch"]


# A run whose objective exceeds that of zero weights (or of its start) this many times over will not come back.
_DIVERGED = 1e6
# Share of the start's figures below which relative ones are no longer relative.
_FLOOR = 1e-2

_observer: ContextVar[Callable[[Progress], bool | None] | None] = ContextVar("observer", default=None)


@contextmanager
def watch(callback: Callable[[Progress], bool | None]) -> Iterator[None]:
    """Have ``callback`` called after every round of the fits inside; if it returns True, the fit stops there.

    Examples
    --------
    >>> import numpy as np
    >>> from elmesh import MultiTaskELMRegressor, run
    >>> X, y = np.arange(20.0).reshape(10, 2), np.arange(10.0)
    >>> rounds = []
    >>> with run.watch(lambda progress: rounds.append(progress.round)):
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
    take_up: Callable[[tuple[Kept, ...]], Program] | None = None,
    past: Past | None = None,
    keep: Callable[[Moment, Callable[[], Past]], None] | None = None,
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
    take_up : callable or None
        Return a program that goes on from what a report kept. Without it every round waits for its figures.
    past : Past or None
        The rounds before the program's first report, if it was taken up from there.
    keep : callable or None
        Called with every moment that was sound, and what gives the rounds before it.

    Returns
    -------
    Result
    """
    course = _Course(link, max_iter, tol, start_energy, max_bytes, past, keep)
    answer: FloatArray | Heard | Sum | Answer | None = None
    # An overflow on the way to divergence is reported once, by Stop.DIVERGED, not by a shower of warnings.
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        while True:
            try:
                request = program.send(answer)
            except StopIteration as end:
                return course.result(end.value)
            except np.linalg.LinAlgError:
                # Only numbers that have overflowed make these systems singular. Without a sound state it is no
                # divergence.
                if course.sound is None or course.ahead:
                    raise
                return course.diverged(course.sound)
            if isinstance(request, Report):
                verdict = course.hear(request, wait=take_up is None)
                if verdict is None:
                    program.close()
                    return course.diverged(request.state)
                answer, moment = verdict
                if moment is not None and take_up is not None:
                    program.close()
                    link.rewind(moment.mark)
                    program = take_up(moment.report.kept)
                    next(program)  # the report that has its answer by now
            elif course.affordable(request):
                answer = course.relay(request)
            else:
                program.close()
                return course.spent()


class _Course:
    """How a run goes: turns reports into progress, and progress into whether to go on.

    What the first report said is a floor for relative figures. Without it a problem whose solution is zero would never
    converge: residuals and what they are compared with vanish together.
    """

    def __init__(
        self,
        link: Link,
        max_iter: int,
        tol: float | None,
        start_energy: float,
        max_bytes: float | None,
        past: Past | None,
        keep: Callable[[Moment, Callable[[], Past]], None] | None,
    ) -> None:
        past = past or Past(ceiling=_DIVERGED * start_energy)
        self._link, self._max_iter, self._tol = link, max_iter, tol
        self._max_bytes = math.inf if max_bytes is None else max_bytes
        self._ceiling, self._floors, self._rows = past.ceiling, past.floors, list(past.rows)
        self._stop = Stop.DIRECT
        self._observer = _observer.get()
        self._keep = keep
        self._moments: deque[Moment] = deque()
        # Whether everybody has waited for everybody since the last report.
        self._in_step = True
        self._enough = False
        self.sound: State | None = None

    @property
    def ahead(self) -> bool:
        """Whether there are rounds whose figures are not known yet."""
        return bool(self._moments)

    def relay(self, request: Neighbours | Hub | Total) -> FloatArray | Heard | Sum:
        """Answer a request."""
        if isinstance(request, Neighbours):
            return self._link.exchange(request)
        self._in_step = True
        return self._link.consult(request) if isinstance(request, Hub) else self._link.add_up(request)

    def hear(self, report: Report, wait: bool) -> tuple[Answer, Moment | None] | None:
        """Answer a report, or an earlier one whose figures have come, which is given then; None if it diverged."""
        link, moments = self._link, self._moments
        known = [moment.following.advance() for moment in moments]
        following = link.follow(report, self._enough)
        mark = Mark() if wait and self._keep is None else link.mark()
        moments.append(Moment(report, mark, link.n_exchanges, following))
        known.append(None)
        # Nothing is gained by going on where everybody waits for everybody, and nothing can be where it ends.
        wait = wait or self._in_step or report.round >= self._max_iter or self._max_bytes < math.inf
        self._in_step = False
        while moments:
            figures = known.pop(0)
            while figures is None and wait:
                figures = moments[0].following.advance()
            if figures is None:
                break
            moment = moments.popleft()
            verdict = self._judge(moment, figures)
            if verdict is None or verdict != Answer.GO_ON:
                self._forget()
                earlier = None if moment.report is report else moment
                if verdict is None and earlier is not None:
                    link.rewind(earlier.mark)  # what was said since counts for nothing
                return None if verdict is None else (verdict, earlier)
        return Answer.GO_ON, None

    def _forget(self) -> None:
        """See what is on its way to its end, for others wait for it, and do without it."""
        for moment in self._moments:
            while moment.following.advance() is None:
                pass
        self._moments.clear()
        self._in_step = True

    def _judge(self, moment: Moment, figures: Figures) -> Answer | None:
        """Answer a report by its figures; None if the run has diverged."""
        report = moment.report
        progress = self._progress(moment, figures)
        if not self._rows:
            self._ceiling = max(self._ceiling, _DIVERGED * progress.objective)
        if not progress.objective <= self._ceiling or math.isnan(progress.consensus_gap):
            return None
        self._rows.append(progress)
        self.sound = report.state
        tol = self._tol
        settled = tol is not None and progress.consensus_gap <= tol and progress.dual_residual <= tol
        # Only the observer is shown the state: kept in every row, it would fill the memory.
        if self._observer is not None and self._observer(replace(progress, state=report.state)):
            self._enough = True
        if self._keep is not None:
            self._keep(moment, lambda: Past(tuple(self._rows[:-1]), self._floors, self._ceiling))
        if figures.halt or (self._enough and self._link.alone):
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
        return self._link.books().total + self._link.most_bytes(request) <= self._max_bytes

    def spent(self) -> Result:
        """Return the last sound state, the next request being more than ``max_bytes`` allows for."""
        self._forget()
        if self.sound is None:
            raise ElmeshError(
                f"max_bytes={self._max_bytes:,.0f} is not enough to agree on a start, which has taken "
                f"{self._link.books().total:,} bytes already; raise it, or lower message_bits or rank."
            )
        if self._stop is not Stop.CONVERGED:
            self._stop = Stop.BUDGET
        return self.result(self.sound)

    def _progress(self, moment: Moment, figures: Figures) -> Progress:
        (U_rest, A_rest), (U_scale, A_scale), size = figures.residual, figures.scale, figures.size
        if self._floors is None:
            self._floors = _FLOOR**2 * U_scale, _FLOOR**2 * A_scale, _FLOOR * size
        U_floor, A_floor, size_floor = self._floors
        dual = max(_ratio(U_rest, max(U_scale, U_floor)), _ratio(A_rest, max(A_scale, A_floor)))
        gap = _ratio(figures.distance, max(size, size_floor))
        sent = moment.exchanges, figures.bytes
        return Progress(moment.report.round, self._max_iter, figures.objective, gap, math.sqrt(dual), *sent)

    def result(self, state: State) -> Result:
        """Return what a run that came to its end produced."""
        rows, ledger = self._rows, self._link.books()
        if self._stop is Stop.MAX_ITER and rows[-1].round < self._max_iter:
            self._stop = Stop.SETTLED
        if rows:
            rows[-1] = replace(rows[-1], exchanges=self._link.n_exchanges, bytes=ledger.total)
        n_iter = rows[-1].round if rows else 0
        return Result(state, _history(rows), self._stop, n_iter, self._link.n_exchanges, ledger)

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
