"""A fit on many ranks, as its user sees it: one command that tells what happens and goes on after a loss.

The command starts mpiexec and shows what the ranks tell as if the fit ran here. Ctrl-C is passed on to them, a rank
that is lost is named, and with restarts left the job is started again where it was.
"""

from __future__ import annotations

import math
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any, NoReturn

import typer

from elmesh.cli.console import INTERRUPTED, Output, complain, fail
from elmesh.cli.events import Lost, Told
from elmesh.cli.job import Job, find_mpiexec
from elmesh.cli.placement import Placement
from elmesh.errors import ElmeshError
from elmesh.text import count

__all__ = ["LOST", "Ended", "launch"]

# The exit code where ranks were lost, or mpiexec failed, and no restart was left.
LOST = 3

_TICK = 0.1  # seconds between looks at what signals have asked for
_GRACE = 2.0  # seconds for mpiexec to end by itself after an error or a loss
_FINISH = 30.0  # the same after the result: by then all is saved, and a rank can only hang
_SHOWN = 20  # lines of what mpiexec said, where nobody else said what was wrong


@dataclass(frozen=True)
class Ended:
    """A job that ended well.

    Attributes
    ----------
    summary
        What the ranks gave as the result; None only if they were stopped before there was one.
    interrupted
        Whether Ctrl-C was pressed.
    lost
        The losses on the way, each of which cost a restart.
    """

    summary: dict[str, Any] | None
    interrupted: bool
    lost: tuple[Lost, ...] = ()


def launch(
    arguments: Sequence[str],
    ranks: int,
    output: Output,
    *,
    restarts: int = 0,
    program: Sequence[str] = (sys.executable, "-m", "elmesh"),
) -> Ended:
    """Run a command on many ranks and show what they tell.

    It ends as a command does where the job ends badly: with a sentence and an exit code, :data:`LOST` for a loss.

    Parameters
    ----------
    arguments
        What follows the program.
    ranks
        How many processes run it.
    output
        Where words go; nothing is printed on standard output but what the ranks say for it.
    restarts
        How many times to start again after a loss; the same command is to go on from its last checkpoint.
    program
        What each rank runs.
    """
    if "OMPI_COMM_WORLD_RANK" in os.environ:
        raise ElmeshError("This runs under mpiexec already, which says how many ranks there are; leave out --ranks.")
    mpiexec = find_mpiexec()
    place = Placement.here(ranks)
    output.say(place.words)
    losses: list[Lost] = []
    variables = place.variables(os.environ)
    command = [mpiexec, *place.options(variables), *program, *arguments]
    with _signals(output) as wish, output.bar("Fitting") as show:
        while True:
            told = Told(output, show, checkpoint=losses[-1].checkpoint if losses else None)
            with Job(command, variables, place.folders) as job:
                _follow(job, told, wish)
                if wish.code is None:
                    told.take_all(job.end())
            loss = _loss(job, told, wish)
            if loss is None or wish.stop or wish.code is not None or len(losses) == restarts:
                break
            if loss.rank is None and not told.anything:  # mpiexec cannot start it, nor would it the next time
                break
            losses.append(loss)
            kept = loss.checkpoint
            how = "starting over" if kept is None else f"going on from the checkpoint of round {kept}"
            output.note(f"{loss}; {how} (restart {len(losses)} of {restarts}).")
    if wish.code is not None:
        _leave(wish.code)
    if told.error is not None:
        fail(*told.error)
    if loss is not None:
        _give_up(loss, job.errors, len(losses))
    if job.code != 0:
        output.note("mpiexec did not end well, but after the result; nothing is missing.")
    return Ended(told.summary, wish.stop, tuple(losses))


@dataclass
class _Wish:
    """What signals have asked for: to stop after the round, or to leave at once with an exit code."""

    stop: bool = False
    code: int | None = None


@contextmanager
def _signals(output: Output) -> Iterator[_Wish]:
    """Have the first Ctrl-C ask the ranks to stop, and a second one, SIGTERM or SIGHUP end them.

    The handlers only take notes: an exception out of nowhere could leave ranks behind.
    """
    wish = _Wish()
    if threading.current_thread() is not threading.main_thread():  # only the main thread may handle signals
        yield wish
        return

    def handle(number: int, _: FrameType | None) -> None:
        if number != signal.SIGINT or wish.stop:
            wish.code = wish.code or 128 + number
            return
        wish.stop = True
        if not output.quiet:
            # Straight to the descriptor: the handler may have broken into a buffered write to the same stream.
            os.write(2, b"\nStopping after this round; press Ctrl-C again to abort.\n")

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    for number, handler in before.items():
        if number != signal.SIGHUP or handler is not signal.SIG_IGN:  # as nohup asks
            signal.signal(number, handle)
    try:
        yield wish
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _follow(job: Job, told: Told, wish: _Wish) -> None:
    """Go along with a job until it ends or has to be ended."""
    passed_on = False
    settled_at = math.inf
    while job.code is None and wish.code is None:
        told.take_all(job.read(_TICK))
        # Before the first round a rank may not know the signal yet, and would die of it.
        if wish.stop and not passed_on and told.round is not None:
            job.ask_to_stop()
            passed_on = True
        if told.settled:
            settled_at = min(settled_at, time.monotonic())
            if time.monotonic() > settled_at + (_GRACE if told.summary is None else _FINISH):
                return


def _loss(job: Job, told: Told, wish: _Wish) -> Lost | None:
    """Say what was lost, if anything was and no error explains it."""
    if told.error is not None or told.summary is not None or (wish.stop and job.code == 0):
        return None
    if told.lost is not None:
        return told.lost
    dead = re.search(r"process rank (\d+) with PID \d+ on node \S+ exited on\s+signal", "\n".join(job.errors))
    if dead is not None:
        return Lost(int(dead[1]), told.round, "died", told.checkpoint)
    if not job.code:
        how = "ended without a result" if job.code == 0 else "cannot be ended"
    else:
        how = f"ended with code {job.code}" if job.code > 0 else f"was ended by signal {-job.code}"
    return Lost(None, told.round, how, told.checkpoint)


def _give_up(loss: Lost, errors: Sequence[str], restarts: int) -> NoReturn:
    """End the command after a loss: who, when, and what is left of the work."""
    words = str(loss) if restarts == 0 else f"{loss}, after {count(restarts, 'restart')}"
    if loss.checkpoint is not None:
        words += f"; the checkpoint of round {loss.checkpoint} is good, and the same command goes on from it"
    elif loss.round is not None:
        words += "; nothing was kept, for there was no checkpoint yet"
    complain(f"{words}.")
    if loss.rank is None:
        sys.stderr.write("".join(f"{line}\n" for line in errors[-_SHOWN:]))
    raise typer.Exit(LOST)


def _leave(code: int) -> NoReturn:
    """End the command as signals have asked, once the ranks have ended."""
    if code == 128 + signal.SIGHUP:  # nobody is there to read
        raise typer.Exit(code)
    fail("Aborted." if code == INTERRUPTED else "Terminated.", code)
