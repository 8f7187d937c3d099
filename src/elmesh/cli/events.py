"""What ranks tell the command that started them: lines of JSON on standard output, an event each.

========== =============================== ==========================================================
event      with                            means
========== =============================== ==========================================================
note       text                            something worth a mention
say        text                            a sentence for the summary
round      round, max_iter                 progress; the first says that all ranks know SIGUSR1
checkpoint round                           that round can be gone on from
result     summary                         the end: everything is saved
error      text, code                      the end: a sentence for the user and the exit code
lost       rank, round, how, checkpoint    the end: a rank "died" or "hangs", as another has seen it
========== =============================== ==========================================================

A round less than 0 is none: before the first, or no checkpoint.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from elmesh.cli.console import BAD_INPUT, Output

__all__ = ["Lost", "Told"]


@dataclass(frozen=True)
class Lost:
    """The loss of a rank, or of the whole job.

    Attributes
    ----------
    rank
        Which; None if it is not known.
    round
        In which round; None before the first.
    how
        "died", "hangs", or how mpiexec ended.
    checkpoint
        The round of the last checkpoint, if there is one.
    """

    rank: int | None
    round: int | None
    how: str
    checkpoint: int | None = None

    def __str__(self) -> str:
        who = "mpiexec" if self.rank is None else f"Rank {self.rank}"
        how = "stopped answering" if self.how == "hangs" else self.how
        return f"{who} {how} {'before the first round' if self.round is None else f'in round {self.round}'}"


class Told:
    """What the ranks have told in one run of the job.

    Parameters
    ----------
    output
        Where their notes and sentences go.
    show
        Moves the progress bar.
    checkpoint
        The round of the last checkpoint before this run, if there is one.

    Attributes
    ----------
    anything
        Whether they have told anything.
    round
        The last round; None before the first.
    checkpoint
        The round of the last checkpoint, if there is one.
    summary
        The result, told when everything is saved.
    error
        A sentence on what was wrong and the exit code: the first that was told.
    lost
        The first loss that was told.
    """

    def __init__(self, output: Output, show: Callable[[int, int, str], None], checkpoint: int | None) -> None:
        self.anything = False
        self.round: int | None = None
        self.checkpoint = checkpoint
        self.summary: dict[str, Any] | None = None
        self.error: tuple[str, int] | None = None
        self.lost: Lost | None = None
        self._output, self._show = output, show

    @property
    def settled(self) -> bool:
        """Whether it is known how the job ends."""
        return (self.summary, self.error, self.lost) != (None, None, None)

    def take_all(self, lines: Sequence[str]) -> None:
        """Act on what the ranks say; what is no event goes to standard error as it is.

        Parameters
        ----------
        lines
            Of their standard output.
        """
        for line in lines:
            if self._take(_event(line)):
                self.anything = True
            else:
                sys.stderr.write(line + "\n")

    def _take(self, event: object) -> bool:
        match event:
            case {"event": "note", "text": str(text)}:
                _make_way()
                self._output.note(text)
            case {"event": "say", "text": str(text)}:
                _make_way()
                self._output.say(text)
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
                kept = _round(rest.get("checkpoint"))
                self.lost = self.lost or Lost(rank, _round(done), how, self.checkpoint if kept is None else kept)
            case _:
                return False
        return True


def _round(number: object) -> int | None:
    """Give a round as it is told: less than 0, or nothing, if there is none."""
    return number if isinstance(number, int) and number >= 0 else None


def _event(line: str) -> object:
    """Read a line, if it is JSON."""
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def _make_way() -> None:
    """Clear the line of a terminal that a bar stands on, before words that would be appended to it."""
    terminal = getattr(sys.stderr, "rich_proxied_file", sys.stderr)
    if terminal.isatty():
        terminal.write("\r\x1b[2K")
        terminal.flush()
