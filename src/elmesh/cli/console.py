"""Output of the commands.

Standard output carries only the result: with ``--json`` a single JSON object. Notes, progress and errors go to standard
error.
"""

from __future__ import annotations

import json
import math
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from elmesh.cli.errors import one_line
from elmesh.errors import ElmeshError
from elmesh.text import shortened

if TYPE_CHECKING:
    from elmesh.run.result import Progress as RoundProgress

__all__ = [
    "AgentArgument",
    "DecimalOption",
    "DelimiterOption",
    "EncodingOption",
    "ForceOption",
    "JsonOption",
    "LogJsonOption",
    "Output",
    "QuietOption",
    "at_intervals",
    "check_model_folder",
    "check_writable",
    "make_console",
    "make_table",
    "plain",
]

JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="No progress, notes or summary.")]
LogJsonOption = Annotated[bool, typer.Option("--log-json", help="Log one JSON object per line.")]
AgentArgument = Annotated[Path, typer.Argument(metavar="AGENT", help="The agent's file, agent.toml.")]
DelimiterOption = Annotated[
    str | None,
    typer.Option(
        metavar="CHARACTER", help="Between columns of CSV: comma, semicolon, tab or another.", show_default="detected"
    ),
]
DecimalOption = Annotated[
    str | None,
    typer.Option(metavar="point|comma", help="Decimal separator of numbers in CSV.", show_default="detected"),
]
EncodingOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAME", help="Encoding of CSV, such as utf-8, windows-1252 or latin-1.", show_default="detected"
    ),
]
ForceOption = Annotated[bool, typer.Option("--force", "-f", help="Replace existing files.")]
# Most characters of a cell in a table.
_WIDEST = 150


@dataclass(frozen=True)
class Output:
    """The output of a command: as JSON or as text, with or without a summary; notes are part of the JSON object."""

    json: bool = False
    quiet: bool = False
    notes: list[str] = field(default_factory=list)

    def print(self, text: str) -> None:
        """Print a line of the summary, unless JSON or quiet was asked for."""
        if not self.json and not self.quiet:
            make_console(sys.stdout).print(one_line(text), soft_wrap=True)

    def note(self, text: str) -> None:
        """Show a note, once."""
        if text not in self.notes:
            self.notes.append(text)
            self.show_note(text)

    def show_note(self, text: str) -> None:
        """Print a note on standard error."""
        if not self.quiet:
            make_console(sys.stderr).print(f"note: {one_line(text)}", soft_wrap=True)

    def caution(self, text: str) -> None:
        """Show a note that must be seen, whatever was asked for."""
        self.notes.append(text)
        sys.stderr.write(f"elmesh: {one_line(text)}\n")

    def table(self, head: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> None:
        """Print a table whose first ``left`` columns are text and the others numbers, unless JSON was asked for."""
        if self.json:
            return
        console = make_console(sys.stdout)
        if not sys.stdout.isatty():  # a file or a pipe has no width
            console.width = 10_000
        console.print(make_table(head, rows, left))

    def result(self, data: dict[str, Any]) -> None:
        """Print the JSON object, with the notes, if it was asked for."""
        if self.json:
            sys.stdout.write(json.dumps(plain({**data, "notes": self.notes}), allow_nan=False) + "\n")

    @contextmanager
    def warnings_as_notes(self) -> Iterator[None]:
        """Turn warnings for users into notes, and drop those for programmers."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            warnings.simplefilter("always", UserWarning)
            warnings.showwarning = lambda message, *_, **__: self.note(str(message))
            yield

    @contextmanager
    def bar(self, title: str) -> Iterator[Callable[[int, int, str], None]]:
        """Show a progress bar, on a terminal only; yield a function of the amount done, the total, and a text."""
        shown = sys.stderr.isatty() and not self.quiet
        columns = (TextColumn(title), BarColumn(), TextColumn("{task.fields[text]}"), TimeElapsedColumn())
        with Progress(*columns, console=make_console(sys.stderr), transient=True, disable=not shown) as bar:
            task = bar.add_task(title, total=None, text="starting")
            yield lambda done, total, text: bar.update(task, total=total, completed=done, text=text)

    @contextmanager
    def progress(self, title: str) -> Iterator[Callable[[RoundProgress], None]]:
        """Show a progress bar of the rounds of a fit."""
        with self.bar(title) as update:
            yield lambda step: update(step.round, step.max_iter, f"round {step.round} of at most {step.max_iter}")


def at_intervals(
    show: Callable[[RoundProgress], None], seconds: float, *, first: bool = False
) -> Callable[[RoundProgress], None]:
    """Return a function that shows progress only if so many seconds have passed, and with ``first`` at once."""
    last = -math.inf if first else time.monotonic()

    def show_if_due(step: RoundProgress) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= seconds:
            last = now
            show(step)

    return show_if_due


def make_console(stream: Any) -> Console:
    """Return a console without markup, because task names may contain brackets."""
    # A new one each time, because the streams may be replaced.
    return Console(file=stream, markup=False, highlight=False, emoji=False)


def make_table(head: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> Table:
    """Return a table whose first ``left`` columns are text and the others numbers."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for i, name in enumerate(head):
        table.add_column(name, justify="left" if i < left else "right", no_wrap=True)
    for row in rows:
        table.add_row(*(shortened(one_line(cell), _WIDEST) for cell in row))
    return table


def check_writable(path: Path, force: bool) -> None:
    """Raise if an output path exists and may not be replaced, or cannot be written: before the work."""
    if os.path.lexists(path) and not force:
        raise ElmeshError(f"{path} exists; choose another name, or give --force to replace it.")
    above = next(folder for folder in path.absolute().parents if folder.exists())
    if not above.is_dir():
        raise ElmeshError(f"{path} cannot be written: {above} is a file, not a folder.")
    if not os.access(above, os.W_OK):
        raise ElmeshError(f"{path} cannot be written: no permission to write to {above}.")


def check_model_folder(path: Path, force: bool) -> None:
    """Raise if a model cannot be saved in a folder: not even ``force`` replaces what is not a model."""
    if path.exists() and not (path.is_dir() and (not any(path.iterdir()) or (path / "model.json").is_file())):
        raise ElmeshError(f"{path} exists and is not an elmesh model, so it is not replaced; choose another name.")
    check_writable(path, force)


def plain(value: Any) -> Any:
    """Return plain JSON: no NumPy types, text for times and paths, and null for numbers that are not finite."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, datetime):
        return value.isoformat()
    return str(value) if isinstance(value, Path) else value
