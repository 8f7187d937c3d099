"""Drive a solver's rounds: answer requests by the transport, and reports by the monitor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from elmesh.comm.transport import Transport
from elmesh.run.monitor import RunMonitor
from elmesh.run.result import RunResult
from elmesh.solvers.base import Program, RoundReport
from elmesh.solvers.state import SolverState

__all__ = ["Resume", "drive"]

#: From the states of a report to a program that resumes from them.
Resume = Callable[[tuple[SolverState, ...]], Program]


def drive(program: Program, transport: Transport, monitor: RunMonitor, resume: Resume | None = None) -> RunResult:
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
                return monitor.result(end.value)
            except np.linalg.LinAlgError:
                # Only numbers that have overflowed make these systems singular.
                result = monitor.diverged()
                if result is None:
                    raise
                return result
            if isinstance(request, RoundReport):
                verdict = monitor.decide(request, wait=resume is None)
                if verdict is None:
                    program.close()
                    result = monitor.diverged(request.solution)
                    if result is None:
                        raise TypeError("A run has diverged while metrics are pending.")
                    return result
                answer, rollback = verdict.decision, verdict.rollback
                if rollback is not None and resume is not None:
                    program.close()
                    transport.restore(rollback.comm)
                    program = resume(rollback.report.states)
                    next(program)  # the report that the answer is to
            elif monitor.affordable(request):
                answer = monitor.answer(request)
            else:
                program.close()
                return monitor.out_of_budget()
