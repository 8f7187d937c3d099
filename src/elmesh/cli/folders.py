"""Folders with the results of a command: ``report.html``, a page for people, and ``results.json``, the same numbers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from elmesh.cli.console import check_writable, plain
from elmesh.errors import ElmeshError
from elmesh.files import atomic_write

if TYPE_CHECKING:
    from elmesh.report import Page

__all__ = ["RESULTS", "ReportOption", "check_report_folder", "numbered", "write_report"]

REPORT, RESULTS = "report.html", "results.json"
ReportOption = Annotated[
    Path | None,
    typer.Option(
        "--out",
        help=f"Folder for {REPORT} and {RESULTS}.",
        show_default="a new one named after the command; none with --json",
    ),
]


def numbered(name: str) -> Iterator[Path]:
    """Yield the names of folders: the name itself, then with -2, -3 and so on."""
    yield from (Path(name if n == 1 else f"{name}-{n}") for n in count(1))


def check_report_folder(path: Path, force: bool) -> None:
    """Raise if a folder exists and its files may not be replaced, or if it cannot be written: before the work."""
    check_writable(path, force)
    if path.exists() and not path.is_dir():
        raise ElmeshError(f"{path} is a file; choose another name for the folder.")


def write_report(folder: Path, results: dict[str, Any], page: Page) -> Path:
    """Write the results and their page into a folder, and return the page; other files in it are kept."""
    from elmesh.report import render  # noqa: PLC0415 (slow: Matplotlib)

    folder.mkdir(parents=True, exist_ok=True)
    atomic_write(folder / REPORT, render(page).encode())
    text = json.dumps(plain(results), indent=1, ensure_ascii=False, allow_nan=False)
    atomic_write(folder / RESULTS, f"{text}\n".encode())
    return folder / REPORT
