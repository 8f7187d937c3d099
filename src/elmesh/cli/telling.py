"""How ranks tell of a fit: one of them speaks for all, to the launcher or to whoever runs mpiexec.

To the launcher they speak in events, lines of JSON (see :mod:`elmesh.cli.events`); without one, as any command does.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from elmesh.cli.console import Output, plain
from elmesh.run import Progress

__all__ = ["Events", "Lines", "Silence", "rank_output"]

# Seconds from one word on progress to the next, for a launcher and for a reader.
_PACE, _READING = 0.05, 5.0


@dataclass(frozen=True)
class Lines(Output):
    """The rank that speaks for all where nobody launched them: to mpiexec, which is no terminal and takes no bar."""

    @contextmanager
    def progress(self, what: str) -> Iterator[Callable[[Progress], None]]:
        """Tell of rounds now and then."""
        last = time.monotonic()

        def show(step: Progress) -> None:
            nonlocal last
            now = time.monotonic()
            if not self.quiet and now - last >= _READING:
                last = now
                sys.stderr.write(f"{what}: round {step.round} of at most {step.max_iter}\n")
                sys.stderr.flush()

        yield show


@dataclass(frozen=True)
class Silence(Output):
    """A rank that others speak for."""

    def say(self, text: str) -> None:
        """Say nothing."""

    def note(self, text: str) -> None:
        """Remember it; the one that speaks mentions in the end what it has not noticed itself."""
        if text not in self.notes:
            self.notes.append(text)

    def result(self, data: dict[str, Any]) -> None:
        """Say nothing."""

    @contextmanager
    def progress(self, what: str) -> Iterator[Callable[[Progress], None]]:
        """Show nothing."""
        yield lambda step: None


@dataclass(frozen=True)
class Events(Output):
    """A rank that tells the launcher: the first, for long lines of two might get mixed up; and any, of a loss."""

    speaks: bool = True

    def tell(self, event: str, **content: Any) -> None:
        """Send an event, in one piece: other ranks' may come between."""
        sys.stdout.write(json.dumps({"event": event, **content}) + "\n")
        sys.stdout.flush()

    def say(self, text: str) -> None:
        """Tell a sentence for the summary."""
        if self.speaks:
            self.tell("say", text=text)

    def note(self, text: str) -> None:
        """Tell something worth a mention, once; or remember it, as :class:`Silence` does."""
        if text not in self.notes:
            self.notes.append(text)
            if self.speaks:
                self.tell("note", text=text)

    def result(self, data: dict[str, Any]) -> None:
        """Tell the result."""
        if self.speaks:
            self.tell("result", summary=plain({**data, "notes": []}))

    @contextmanager
    def progress(self, what: str) -> Iterator[Callable[[Progress], None]]:
        """Tell of rounds, at a pace that can be followed."""
        last = 0.0

        def show(step: Progress) -> None:
            nonlocal last
            now = time.monotonic()
            if self.speaks and (now - last >= _PACE or step.round == 0):
                last = now
                self.tell("round", round=step.round, max_iter=step.max_iter)

        yield show


def rank_output(rank: int, events: bool, as_json: bool, quiet: bool) -> Output:
    """Return how a rank speaks."""
    if events:
        return Events(as_json, quiet, speaks=rank == 0)
    return Lines(as_json, quiet) if rank == 0 else Silence(as_json, quiet)
