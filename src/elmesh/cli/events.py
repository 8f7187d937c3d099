"""The output of ranks, and the events by which they report to the command that launched them.

Rank 0 prints for all ranks: as events for the launcher, or as text for whoever runs mpiexec. An event is a line of JSON
on standard output.

========== =============================== ==========================================================
event      with                            meaning
========== =============================== ==========================================================
note       text                            a note
line       text                            a line of the summary
round      round, max_iter                 progress; from the first on, all ranks handle SIGUSR1
checkpoint round                           a fit can resume from that round
result     summary                         the end: everything is saved
error      text, code                      the end: a sentence for the user and the exit code
lost       rank, round, how, checkpoint    the end: a rank "died" or "hangs", detected by another rank
========== =============================== ==========================================================

A negative round stands for none: before the first, or no checkpoint.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from elmesh.cli.console import Output, at_intervals, plain
from elmesh.cli.errors import BAD_INPUT

if TYPE_CHECKING:
    from elmesh.run.result import Progress

__all__ = ["EventOutput", "EventReader", "JobFailure", "rank_output"]

# Seconds between reports of progress, to a launcher and to a reader.
_EVENT_INTERVAL, _LINE_INTERVAL = 0.05, 5.0


@dataclass(frozen=True)
class JobFailure:
    """The loss of a rank (None: of mpiexec) in a round (None: before the first).

    ``how`` is "died", "hangs" or how mpiexec ended, and ``checkpoint`` the round of the last checkpoint, if any.
    """

    rank: int | None
    round: int | None
    how: str
    checkpoint: int | None = None

    def __str__(self) -> str:
        who = "mpiexec" if self.rank is None else f"Rank {self.rank}"
        how = "stopped responding" if self.how == "hangs" else self.how
        return f"{who} {how} {'before the first round' if self.round is None else f'in round {self.round}'}"


class EventReader:
    """The events of one run of the job: its last round and checkpoint, its result, the first error and failure.

    ``show`` updates the progress bar, and ``checkpoint`` is the last one before this run.
    """

    def __init__(self, output: Output, show: Callable[[int, int, str], None], checkpoint: int | None) -> None:
        self.started = False  # whether there was any event
        self.round: int | None = None
        self.checkpoint = checkpoint
        self.summary: dict[str, Any] | None = None
        self.error: tuple[str, int] | None = None
        self.failure: JobFailure | None = None
        self._output, self._show = output, show

    @property
    def ended(self) -> bool:
        """Whether it is known how the job ends."""
        return (self.summary, self.error, self.failure) != (None, None, None)

    def read(self, lines: Sequence[str]) -> None:
        """Handle lines of the ranks' standard output; a line that is not an event goes to standard error."""
        for line in lines:
            if self._handle(_parse(line)):
                self.started = True
            else:
                sys.stderr.write(line + "\n")

    def _handle(self, event: object) -> bool:
        match event:
            case {"event": "note", "text": str(text)}:
                _clear_bar()
                self._output.note(text)
            case {"event": "line", "text": str(text)}:
                _clear_bar()
                self._output.print(text)
            case {"event": "round", "round": int(done), "max_iter": int(total)}:
                self.round = done
                self._show(done, total, f"round {done} of at most {total}")
            case {"event": "checkpoint", "round": int(done)}:
                self.checkpoint = _round(done)
            case {"event": "result", "summary": dict(summary)}:
                self.summary = summary
            case {"event": "error", "text": str(text), **rest}:
                code = rest.get("code", BAD_INPUT)
                self.error = self.error or (text, code if isinstance(code, int) else BAD_INPUT)
            case {"event": "lost", "rank": int(rank), "round": int(done), "how": str(how), **rest}:
                last = _round(rest.get("checkpoint"))
                failure = JobFailure(rank, _round(done), how, self.checkpoint if last is None else last)
                self.failure = self.failure or failure
            case _:
                return False
        return True


def _round(number: object) -> int | None:
    """Return the round of an event, None if it is negative or missing."""
    return number if isinstance(number, int) and number >= 0 else None


def _parse(line: str) -> object:
    """Return the content of a line, None if it is not JSON."""
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def _clear_bar() -> None:
    """Clear the line of a progress bar on a terminal, before text that would be appended to it."""
    terminal = getattr(sys.stderr, "rich_proxied_file", sys.stderr)
    if terminal.isatty():
        terminal.write("\r\x1b[2K")
        terminal.flush()


@dataclass(frozen=True)
class EventOutput(Output):
    """A rank with a launcher. Rank 0 reports everything, because long lines of two ranks might mix; any a loss."""

    reports: bool = True

    def emit(self, event: str, **content: Any) -> None:
        """Write an event as one line: those of other ranks may come between."""
        sys.stdout.write(json.dumps({"event": event, **content}) + "\n")
        sys.stdout.flush()

    def print(self, text: str) -> None:
        """Report a line of the summary."""
        if self.reports:
            self.emit("line", text=text)

    def show_note(self, text: str) -> None:
        """Report a note."""
        if self.reports:
            self.emit("note", text=text)

    def result(self, data: dict[str, Any]) -> None:
        """Report the result."""
        if self.reports:
            self.emit("result", summary=plain({**data, "notes": []}))

    @contextmanager
    def progress(self, title: str) -> Iterator[Callable[[Progress], None]]:
        """Report the first round, and further ones at intervals."""

        def show(step: Progress) -> None:
            self.emit("round", round=step.round, max_iter=step.max_iter)

        yield at_intervals(show, _EVENT_INTERVAL, first=True) if self.reports else (lambda step: None)


class _LineOutput(Output):
    """Rank 0 without a launcher: its output goes through mpiexec, which cannot show a progress bar."""

    @contextmanager
    def progress(self, title: str) -> Iterator[Callable[[Progress], None]]:
        def show(step: Progress) -> None:
            sys.stderr.write(f"{title}: round {step.round} of at most {step.max_iter}\n")
            sys.stderr.flush()

        yield (lambda step: None) if self.quiet else at_intervals(show, _LINE_INTERVAL)


def rank_output(rank: int, events: bool, as_json: bool, quiet: bool) -> Output:
    """Return the output of a rank; those other than 0 print nothing, and collect notes for rank 0."""
    if events:
        return EventOutput(reports=rank == 0)
    return _LineOutput(as_json, quiet) if rank == 0 else Output(json=False, quiet=True)
