"""The output of a rank: rank 0 prints for all, as events for the launcher, or as text for whoever runs mpiexec.

Events are lines of JSON (see :mod:`elmesh.cli.events`).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from elmesh.cli.console import Output, at_intervals, plain
from elmesh.run import Progress

__all__ = ["EventOutput", "LineOutput", "NullOutput", "rank_output"]

# Seconds between reports of progress, to a launcher and to a reader.
_EVENT_INTERVAL, _LINE_INTERVAL = 0.05, 5.0


@dataclass(frozen=True)
class LineOutput(Output):
    """Rank 0 without a launcher: its output goes through mpiexec, which cannot show a progress bar."""

    @contextmanager
    def progress(self, title: str) -> Iterator[Callable[[Progress], None]]:
        """Print a line about the rounds at intervals."""

        def show(step: Progress) -> None:
            sys.stderr.write(f"{title}: round {step.round} of at most {step.max_iter}\n")
            sys.stderr.flush()

        yield (lambda step: None) if self.quiet else at_intervals(show, _LINE_INTERVAL)


@dataclass(frozen=True)
class NullOutput(Output):
    """A rank other than 0: it prints nothing, and collects notes for rank 0."""

    def print(self, text: str) -> None:
        """Print nothing."""

    def note(self, text: str) -> None:
        """Collect a note, which rank 0 prints in the end unless it has it already."""
        if text not in self.notes:
            self.notes.append(text)

    def result(self, data: dict[str, Any]) -> None:
        """Print nothing."""

    @contextmanager
    def progress(self, title: str) -> Iterator[Callable[[Progress], None]]:
        """Show nothing."""
        yield lambda step: None


@dataclass(frozen=True)
class EventOutput(NullOutput):
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

    def note(self, text: str) -> None:
        """Report a note, once."""
        if self.reports and text not in self.notes:
            self.emit("note", text=text)
        super().note(text)

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


def rank_output(rank: int, events: bool, as_json: bool, quiet: bool) -> Output:
    """Return the output of a rank."""
    if events:
        return EventOutput(as_json, quiet, reports=rank == 0)
    return LineOutput(as_json, quiet) if rank == 0 else NullOutput(as_json, quiet)
