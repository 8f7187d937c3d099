"""The run monitor: drives a solver's rounds, turns reports into metrics, and metrics into decisions.

Where agents wait for their neighbours only, a run does not wait for global metrics either: it continues, and if the
metrics of an earlier round turn out to end the run, it is rolled back to that round.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from elmesh.comm.requests import (
    AllReduceResult,
    HubReduce,
    IntegerSum,
    NeighborMessages,
    NeighborSum,
    NoisySum,
    Request,
)
from elmesh.comm.transport import CommState, LocalMetrics, PendingMetrics, RoundMetrics, Transport
from elmesh.run.result import Progress, RunHistory, RunResult, StopReason
from elmesh.solvers.base import Decision, Fallback, Program, RoundReport, Solution
from elmesh.solvers.state import SolverState
from elmesh.typing import FloatArray, IntArray

__all__ = ["RoundSnapshot", "RunMonitor", "local_metrics"]

# A run whose objective exceeds that of zero weights (or of its start) by this factor has diverged.
_DIVERGED = 1e6
# Share of the first round's scales below which residuals are no longer relative.
_FLOOR = 1e-2


@dataclass(frozen=True, eq=False)
class RoundSnapshot:
    """A report, the transport's state (empty if not needed), rounds of messages so far, and pending metrics."""

    report: RoundReport
    comm: CommState
    exchanges: int
    pending: PendingMetrics


#: Called with every sound snapshot, and a function that gives the history before it.
SaveSnapshot = Callable[[RoundSnapshot, Callable[[], RunHistory]], None]
#: From the states of a report to a program that resumes from them.
Resume = Callable[[tuple[SolverState, ...]], Program]


class RunMonitor:
    """Monitors one run: answers requests by the transport, and reports by decisions.

    Parameters
    ----------
    transport, max_iter, max_bytes
        How agents reach each other; most rounds; and what all agents together may send.
    tol : float or None
        What consensus gap and dual residual must fall below; None for a method that ends by itself.
    zero_objective : float
        Objective at zero weights, the yardstick for divergence.
    alone : callable or None
        Returns the solution of each task by itself, for a run that may not send enough for a common one.
    complete : callable or None
        From the states of a report to its solution with all that agents find by themselves, for a run that may send
        no more.
    history : RunHistory or None
        The rounds before the first report, if the run is resumed.
    callback, save : callable or None
        Called after every round, with the progress (the run ends if it returns True) and with the snapshot.
    """

    def __init__(
        self,
        transport: Transport,
        max_iter: int,
        tol: float | None,
        zero_objective: float,
        max_bytes: float | None = None,
        alone: Callable[[], Solution] | None = None,
        complete: Callable[[tuple[SolverState, ...]], Solution] | None = None,
        history: RunHistory | None = None,
        callback: Callable[[Progress], bool | None] | None = None,
        save: SaveSnapshot | None = None,
    ) -> None:
        history = history or RunHistory(ceiling=_DIVERGED * zero_objective)
        self._transport, self._max_iter, self._tol = transport, max_iter, tol
        self._max_bytes = math.inf if max_bytes is None else max_bytes
        self._ceiling, self._floors, self._rows = history.ceiling, history.floors, list(history.rows)
        self._stop = StopReason.DIRECT
        self._callback, self._save, self._alone, self._complete = callback, save, alone, complete
        self._pending: deque[RoundSnapshot] = deque()
        # Whether all processes have synchronised since the last report.
        self._synchronised = True
        self._halt = False
        self._sound: RoundReport | None = None
        self._fallback: Solution | None = None

    def drive(self, program: Program, resume: Resume | None = None) -> RunResult:
        """Run a program to its end.

        With ``resume`` the run continues while metrics are pending, and is rolled back if they end it; without it every
        round waits for its metrics.
        """
        answer: Any = None
        # An overflow on the way to divergence is reported once, as StopReason.DIVERGED, and not by many warnings.
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            while True:
                try:
                    request = program.send(answer)
                except StopIteration as end:
                    return self._result(end.value)
                except np.linalg.LinAlgError:
                    # Only numbers that have overflowed make these systems singular.
                    if self._sound is None or self._pending:
                        raise
                    return self._result(self._completed(self._sound), StopReason.DIVERGED)
                if isinstance(request, Fallback):
                    self._fallback, answer = request.solution, None
                    continue
                if not self._affordable(request):
                    program.close()
                    return self._out_of_budget()
                if isinstance(request, RoundReport):
                    answer, rollback = self._decide(request, wait=resume is None)
                    if answer is None:
                        program.close()
                        return self._result(self._completed(self._sound or request), StopReason.DIVERGED)
                    if rollback is not None and resume is not None:
                        program.close()
                        self._restore(rollback)
                        program = resume(rollback.report.states)
                        next(program)  # the report that the answer is to
                else:
                    answer = self._answer(request)

    def _answer(self, request: Request) -> FloatArray | IntArray | NeighborMessages | AllReduceResult:
        if isinstance(request, NeighborSum):
            return self._transport.neighbor_sum(request)
        self._synchronised = True
        if isinstance(request, HubReduce):
            return self._transport.reduce_at_hub(request)
        if isinstance(request, IntegerSum):
            return self._transport.integer_sum(request)
        if isinstance(request, NoisySum):
            return self._transport.noisy_sum(request)
        return self._transport.allreduce(request)

    def _decide(self, report: RoundReport, wait: bool) -> tuple[Decision | None, RoundSnapshot | None]:
        """Decide on a report, or on an earlier round, which is returned too, whose metrics are complete.

        The decision is None if the run has diverged. With ``wait`` the metrics of this report are waited for.
        """
        transport, pending = self._transport, self._pending
        known = [next(snapshot.pending) for snapshot in pending]
        local = local_metrics(report)
        # A run that resumes from this round makes its report again, so what that sends is not part of the state.
        comm = CommState() if wait and self._save is None else transport.state()
        transport.record_metrics(local)
        started = transport.start_metrics(local, self._halt)
        pending.append(RoundSnapshot(report, comm, transport.n_exchanges, started))
        known.append(None)
        # Nothing is gained by continuing if all processes synchronise anyway, and nothing can be at the end.
        wait = wait or self._synchronised or report.round >= self._max_iter or self._max_bytes < math.inf
        self._synchronised = False
        while pending:
            metrics = known.pop(0)
            while metrics is None and wait:
                metrics = next(pending[0].pending)
            if metrics is None:
                break
            snapshot = pending.popleft()
            decision = self._judge(snapshot, metrics)
            if decision is not Decision.CONTINUE:
                self._complete_pending()
                earlier = None if snapshot.report is report else snapshot
                if decision is None and earlier is not None:
                    self._restore(earlier)
                return decision, earlier
        return Decision.CONTINUE, None

    def _restore(self, snapshot: RoundSnapshot) -> None:
        """Return to a round: later messages do not count."""
        self._transport.restore(snapshot.comm)
        self._transport.record_metrics(local_metrics(snapshot.report))

    def _complete_pending(self) -> None:
        """Complete pending reductions, for which other processes wait, and discard them."""
        for snapshot in self._pending:
            while next(snapshot.pending) is None:
                pass
        self._pending.clear()
        self._synchronised = True

    def _judge(self, snapshot: RoundSnapshot, metrics: RoundMetrics) -> Decision | None:
        """Decide by the metrics of a round; None if the run has diverged."""
        solution, progress = snapshot.report.solution, self._progress(snapshot, metrics)
        if not self._rows:
            self._ceiling = max(self._ceiling, _DIVERGED * progress.objective)
        if not progress.objective <= self._ceiling or math.isnan(progress.consensus_gap):
            return None
        self._rows.append(progress)
        self._sound = snapshot.report
        # Only the callback receives the variables: in every row they would fill the memory.
        if self._callback is not None and self._callback(replace(progress, solution=solution)):
            self._halt = True
        if self._save is not None:
            self._save(snapshot, lambda: RunHistory(tuple(self._rows[:-1]), self._floors, self._ceiling))
        if metrics.halt or (self._halt and self._transport.single_process):
            self._stop = StopReason.INTERRUPTED
            return Decision.HALT
        tol = self._tol
        if tol is not None and progress.consensus_gap <= tol and progress.dual_residual <= tol:
            self._stop = StopReason.CONVERGED
            return Decision.CONVERGED
        self._stop = StopReason.COMPLETED if tol is None else StopReason.MAX_ITER
        return Decision.CONTINUE

    def _progress(self, snapshot: RoundSnapshot, metrics: RoundMetrics) -> Progress:
        (U_residual, A_residual), (U_scale, A_scale) = metrics.residual, metrics.scale
        if self._floors is None:
            self._floors = _FLOOR**2 * U_scale, _FLOOR**2 * A_scale, _FLOOR * metrics.size
        U_floor, A_floor, size_floor = self._floors
        dual = max(_ratio(U_residual, max(U_scale, U_floor)), _ratio(A_residual, max(A_scale, A_floor)))
        gap = _ratio(metrics.distance, max(metrics.size, size_floor))
        sent = snapshot.exchanges, metrics.bytes
        return Progress(snapshot.report.round, self._max_iter, metrics.objective, gap, math.sqrt(dual), *sent)

    def _affordable(self, request: Request | RoundReport) -> bool:
        """Return whether what is left of ``max_bytes`` allows for a request, or for the metrics of a report."""
        if self._max_bytes == math.inf:
            return True
        transport = self._transport
        if isinstance(request, RoundReport):
            most = transport.metrics_bytes(local_metrics(request))
        else:
            most = transport.max_request_bytes(request)
        return transport.traffic().total + most <= self._max_bytes

    def _completed(self, report: RoundReport) -> Solution:
        """Return the solution of a report with all that agents find without a message."""
        return report.solution if self._complete is None else self._complete(report.states)

    def _out_of_budget(self) -> RunResult:
        """Return the last sound variables, or each task's own: the next request might exceed ``max_bytes``."""
        self._complete_pending()
        if self._sound is None and self._fallback is not None:
            return self._result(self._fallback, StopReason.BUDGET)
        if self._sound is None and self._alone is not None:
            return self._result(self._alone(), StopReason.ALONE)
        if self._sound is None:
            raise TypeError("A run with a limit on bytes needs solutions of each task by itself.")
        stop = self._stop if self._stop is StopReason.CONVERGED else StopReason.BUDGET
        return self._result(self._completed(self._sound), stop)

    def without_messages(self) -> RunResult:
        """Return each task's own variables, without a run."""
        return self._out_of_budget()

    def _result(self, solution: Solution, stop: StopReason | None = None) -> RunResult:
        """Return what a run produced that ended for a reason, by default for that of the last round."""
        rows, traffic = self._rows, self._transport.traffic()
        stop = stop or self._stop
        if stop is StopReason.MAX_ITER and rows[-1].round < self._max_iter:
            stop = StopReason.SETTLED
        if rows:
            rows[-1] = replace(rows[-1], exchanges=self._transport.n_exchanges, bytes=traffic.total)
        history, n_iter = RunHistory(tuple(rows)).table(), rows[-1].round if rows else 0
        return RunResult(solution, history, stop, n_iter, self._transport.n_exchanges, traffic)


def local_metrics(report: RoundReport) -> LocalMetrics:
    """Return what the agents of a report contribute to a round's metrics."""
    values = np.stack([report.objective, *report.residual, *report.scale], axis=-1)
    U = report.solution.U
    return LocalMetrics(report.round, values, U if U is not None and U.ndim == 3 else None, report.totals)


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole > 0 else 0.0 if part == 0 else math.inf
