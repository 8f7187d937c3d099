"""What every command shares: where its words go, how it fails, and how Ctrl-C stops it.

Standard output carries the result and nothing else: one JSON object with ``--json``. Notes, progress and errors
go to standard error. Bad input ends a command with code 2 and one sentence, Ctrl-C with 130.
"""

from __future__ import annotations

import functools
import json
import math
import os
import re
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, NoReturn

import numpy as np
import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from elmesh.errors import ElmeshError
from elmesh.run import Progress as Round

__all__ = [
    "BAD_INPUT",
    "INTERRUPTED",
    "ForceOption",
    "JsonOption",
    "Output",
    "QuietOption",
    "StopRequest",
    "check_writable",
    "complain",
    "fail",
    "guard",
    "plain",
    "stop_on_interrupt",
]

BAD_INPUT = 2
INTERRUPTED = 130

JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="No progress, notes or summary.")]
ForceOption = Annotated[bool, typer.Option("--force", "-f", help="Replace what is there already.")]


@dataclass(frozen=True)
class Output:
    """Where a command's words go.

    Attributes
    ----------
    json
        Whether standard output is for one JSON object only.
    quiet
        Whether to leave out whatever was not asked for.
    notes
        Those made so far; they are part of the JSON object.
    """

    json: bool = False
    quiet: bool = False
    notes: list[str] = field(default_factory=list)

    def say(self, text: str) -> None:
        """Tell a summary, unless JSON or quiet was asked for."""
        if not self.json and not self.quiet:
            _console(sys.stdout).print(_one_line(text), soft_wrap=True)

    def note(self, text: str) -> None:
        """Mention something on standard error, once."""
        if text in self.notes:
            return
        self.notes.append(text)
        if not self.quiet:
            _console(sys.stderr).print(f"note: {_one_line(text)}", soft_wrap=True)

    def table(self, head: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> None:
        """Show a table whose first ``left`` columns are text and the others numbers, unless it is JSON's turn."""
        if self.json:
            return
        table = Table(box=None, pad_edge=False, header_style="bold")
        for i, name in enumerate(head):
            table.add_column(name, justify="left" if i < left else "right", no_wrap=True)
        for row in rows:
            table.add_row(*map(_one_line, row))
        console = _console(sys.stdout)
        if not sys.stdout.isatty():  # a file or a pipe has no width to fit
            console.width = 10_000
        console.print(table)

    def result(self, data: dict[str, Any]) -> None:
        """Print the JSON object if it was asked for, with the notes."""
        if self.json:
            sys.stdout.write(json.dumps(plain({**data, "notes": self.notes}), allow_nan=False) + "\n")

    @contextmanager
    def warnings_as_notes(self) -> Iterator[None]:
        """Turn warnings meant for users into notes, and drop those meant for programmers."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            warnings.simplefilter("always", UserWarning)
            warnings.showwarning = lambda message, *_, **__: self.note(str(message))
            yield

    @contextmanager
    def bar(self, what: str) -> Iterator[Callable[[int, int, str], None]]:
        """Show a bar that moves when told how much of how much is done, with words; on a terminal only."""
        console = _console(sys.stderr)
        shown = sys.stderr.isatty() and not self.quiet
        columns = (TextColumn(what), BarColumn(), TextColumn("{task.fields[words]}"), TimeElapsedColumn())
        with Progress(*columns, console=console, transient=True, disable=not shown) as bar:
            job = bar.add_task(what, total=None, words="starting")
            yield lambda done, total, words: bar.update(job, total=total, completed=done, words=words)

    @contextmanager
    def progress(self, what: str) -> Iterator[Callable[[Round], None]]:
        """Show a bar that moves with the rounds of a fit."""
        with self.bar(what) as update:
            yield lambda step: update(step.round, step.max_iter, f"round {step.round} of at most {step.max_iter}")


@dataclass
class StopRequest:
    """Whether Ctrl-C was pressed."""

    asked: bool = False


@contextmanager
def stop_on_interrupt(output: Output, when: str = "after this round") -> Iterator[StopRequest]:
    """Have the first Ctrl-C recorded and the second abort.

    Parameters
    ----------
    output
        Says whether to acknowledge the first.
    when
        When it will stop, in the acknowledgement.
    """
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():  # only the main thread may handle signals
        yield request
        return

    def handle(*_: object) -> None:
        if request.asked:
            raise KeyboardInterrupt
        request.asked = True
        if not output.quiet:
            # Straight to the descriptor: the handler may have broken into a buffered write to the same stream.
            os.write(2, f"\nStopping {when}; press Ctrl-C again to abort.\n".encode())

    before = signal.signal(signal.SIGINT, handle)
    try:
        yield request
    finally:
        signal.signal(signal.SIGINT, before)


def guard(function: Callable[..., None]) -> Callable[..., None]:
    """Make a command end with a sentence and a code where it would end with a traceback.

    Parameters
    ----------
    function
        The command, as typer takes it.
    """

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> None:
        try:
            function(*args, **kwargs)
        except ElmeshError as error:
            fail(str(error))
        except BrokenPipeError:
            # The reader of our output has seen enough. Python flushes once more at exit, so give it a place to.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(1) from None
        except OSError as error:
            name = f" {error.filename}" if error.filename is not None else ""
            fail(f"Cannot read or write{name}: {(error.strerror or str(error)).lower()}.")
        except MemoryError:
            fail("There is not enough memory for this; use fewer hidden units or fewer rows.")
        except KeyboardInterrupt:
            fail("Aborted.", INTERRUPTED)

    return run


def fail(message: str, code: int = BAD_INPUT) -> NoReturn:
    """End the command with a sentence on standard error.

    Parameters
    ----------
    message
        The sentence.
    code
        The exit code.
    """
    complain(message)
    raise typer.Exit(code)


def complain(message: str) -> None:
    """Say on standard error what is wrong.

    Parameters
    ----------
    message
        The sentence.
    """
    sys.stderr.write(f"elmesh: {_one_line(message)}\n")


def check_writable(path: Path, force: bool) -> None:
    """Refuse an output path before the work, not after it.

    Parameters
    ----------
    path
        Where the output will go.
    force
        Whether something there may be replaced.
    """
    if os.path.lexists(path) and not force:
        raise ElmeshError(f"{path} exists; choose another name, or give --force to replace it.")
    above = next(folder for folder in path.absolute().parents if folder.exists())
    if not above.is_dir():
        raise ElmeshError(f"{path} cannot be written: {above} is a file, not a folder.")
    if not os.access(above, os.W_OK):
        raise ElmeshError(f"{path} cannot be written: no permission to write to {above}.")


def _console(stream: Any) -> Console:
    # Made anew each time, for the streams may be replaced; without markup, for task names may have brackets.
    return Console(file=stream, markup=False, highlight=False, emoji=False)


def _one_line(text: str) -> str:
    """Text from a user's file, made fit for a terminal."""
    return re.sub(r"[\x00-\x1f\x7f-\x9f]+", " ", text)


def plain(value: Any) -> Any:
    """Give what JSON can hold: no NumPy types, and null for what is not a finite number."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return str(value) if isinstance(value, Path) else value
