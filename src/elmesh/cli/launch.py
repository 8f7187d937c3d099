"""Launch a fit on many ranks: start mpiexec, show the events of the ranks, and restart after a failure.

Ctrl-C is passed on to the ranks. If a rank is lost and restarts are left, the job is started again, and resumes from
its last checkpoint.
"""

from __future__ import annotations

import math
import os
import re
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn

import typer

from elmesh.cli.console import Output
from elmesh.cli.errors import INTERRUPTED, LOST, fail, print_error
from elmesh.cli.events import EventReader, JobFailure
from elmesh.cli.job import Job, find_mpiexec
from elmesh.cli.placement import Placement
from elmesh.cli.signals import handle_signals, print_stopping
from elmesh.errors import ElmeshError
from elmesh.text import count

__all__ = ["LaunchResult", "LaunchTiming", "launch"]

_LAST_LINES = 20  # of standard error, where no event explains the end


@dataclass(frozen=True)
class LaunchTiming:
    """Timing of the launcher, in seconds."""

    poll: float = 0.1  # between checks for signals
    grace: float = 2.0  # for mpiexec to end by itself after an error or a failure
    finish: float = 30.0  # the same after the result, when everything is saved


@dataclass(frozen=True)
class LaunchResult:
    """How a job ended."""

    summary: dict[str, Any] | None  # None only if the ranks were stopped before there was a result
    interrupted: bool  # by Ctrl-C
    failures: tuple[JobFailure, ...] = ()  # each followed by a restart


def launch(
    arguments: Sequence[str],
    ranks: int,
    output: Output,
    *,
    restarts: int = 0,
    program: Sequence[str] = (sys.executable, "-m", "elmesh"),
    timing: LaunchTiming | None = None,
) -> LaunchResult:
    """Run a command on many ranks and show their events.

    If the job fails, the command ends with a sentence and an exit code, :data:`~elmesh.cli.errors.LOST` after the loss
    of a rank and all restarts.
    """
    if "OMPI_COMM_WORLD_RANK" in os.environ:
        raise ElmeshError("This runs under mpiexec already, which sets the number of ranks; leave out --ranks.")
    mpiexec = find_mpiexec()
    place = Placement.here(ranks)
    output.print(place.description)
    failures: list[JobFailure] = []
    variables = place.variables(os.environ)
    command = [mpiexec, *place.options(variables), *program, *arguments]
    with _signals(output) as asked, output.bar("Fitting") as show:
        while True:
            events = EventReader(output, show, checkpoint=failures[-1].checkpoint if failures else None)
            with Job(command, variables, place.folders) as job:
                _follow(job, events, asked, timing or LaunchTiming())
                if asked.code is None:
                    events.read(job.end())
            failure = _failure(job, events, asked)
            if failure is None or asked.stop or asked.code is not None or len(failures) == restarts:
                break
            if failure.rank is None and not events.started:  # mpiexec cannot start it, now or later
                break
            failures.append(failure)
            last = failure.checkpoint
            how = "starting again" if last is None else f"resuming from the checkpoint of round {last}"
            output.note(f"{failure}; {how} (restart {len(failures)} of {restarts}).")
    if asked.code == 128 + signal.SIGHUP:  # the terminal is closed
        raise typer.Exit(asked.code)
    if asked.code is not None:
        fail("Aborted." if asked.code == INTERRUPTED else "Terminated.", asked.code)
    if events.error is not None:
        fail(*events.error)
    if failure is not None:
        _give_up(failure, job.errors, len(failures))
    if job.code != 0:
        output.note("mpiexec reported an error, but only after the result; nothing is missing.")
    return LaunchResult(events.summary, asked.stop, tuple(failures))


@dataclass
class _Asked:
    """What signals have asked for: to stop after the round, or to exit at once with a code."""

    stop: bool = False
    code: int | None = None


@contextmanager
def _signals(output: Output) -> Iterator[_Asked]:
    """Record signals: the first Ctrl-C asks the ranks to stop; a second one, SIGTERM or SIGHUP ends them.

    The handler raises no exception, which could leave ranks behind.
    """
    asked = _Asked()

    def handle(number: int, _: object) -> None:
        if number != signal.SIGINT or asked.stop:
            asked.code = asked.code or 128 + number
            return
        asked.stop = True
        print_stopping(output)

    with handle_signals(handle, signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        yield asked


def _follow(job: Job, events: EventReader, asked: _Asked, timing: LaunchTiming) -> None:
    """Handle the events of a job until it ends or has to be ended."""
    passed_on = False
    ended_at = math.inf
    while job.code is None and asked.code is None:
        events.read(job.read(timing.poll))
        # Before the first round a rank may have no handler yet, and the signal would end it.
        if asked.stop and not passed_on and events.round is not None:
            job.request_stop()
            passed_on = True
        if events.ended:
            ended_at = min(ended_at, time.monotonic())
            if time.monotonic() > ended_at + (timing.grace if events.summary is None else timing.finish):
                return


def _failure(job: Job, events: EventReader, asked: _Asked) -> JobFailure | None:
    """Return the failure of a job, if there is one that no error explains."""
    if events.error is not None or events.summary is not None or (asked.stop and job.code == 0):
        return None
    if events.failure is not None:
        return events.failure
    dead = re.search(r"process rank (\d+) with PID \d+ on node \S+ exited on\s+signal", "\n".join(job.errors))
    if dead is not None:
        return JobFailure(int(dead[1]), events.round, "died", events.checkpoint)
    if not job.code:
        how = "ended without a result" if job.code == 0 else "cannot be ended"
    else:
        how = f"ended with code {job.code}" if job.code > 0 else f"was ended by signal {-job.code}"
    return JobFailure(None, events.round, how, events.checkpoint)


def _give_up(failure: JobFailure, errors: Sequence[str], restarts: int) -> NoReturn:
    """End the command after a failure, with what can be resumed."""
    text = str(failure) if restarts == 0 else f"{failure}, after {count(restarts, 'restart')}"
    if failure.checkpoint is not None:
        text += f"; the same command resumes from the checkpoint of round {failure.checkpoint}"
    elif failure.round is not None:
        text += "; nothing is saved, because there was no checkpoint yet"
    print_error(f"{text}.")
    if failure.rank is None:
        sys.stderr.write("".join(f"{line}\n" for line in errors[-_LAST_LINES:]))
    raise typer.Exit(LOST)
