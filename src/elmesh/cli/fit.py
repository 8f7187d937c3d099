"""``elmesh fit``: from a table to a model in a folder."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd
import typer

from elmesh.cli.console import Output, check_model_folder
from elmesh.cli.errors import INTERRUPTED, check_option, fail
from elmesh.cli.fit_options import FitOptions, check_kind, with_options
from elmesh.cli.launch import launch
from elmesh.cli.model_report import write_model_report
from elmesh.cli.mpi_fit import check_output_folder, fit_on_rank
from elmesh.cli.signals import StopRequest, stop_on_interrupt
from elmesh.cli.summary import print_fit, summarize
from elmesh.errors import ElmeshError
from elmesh.run import LocalBackend, MPIBackend, Progress
from elmesh.run.placement import check_ranks
from elmesh.tables import ProblemKind, agree_targets, find_tasks, open_large, read_data, read_targets
from elmesh.tables.stream import SelectedStream, StreamStopped, TableStream
from elmesh.tables.task_column import warn_of_tasks

__all__ = ["fit", "fit_here", "read_table"]


@with_options(FitOptions)
def fit(options: FitOptions) -> None:
    """Fit the tasks of a table together and save the model.

    Numbers are standardised, and a missing number is replaced by the mean of the training rows, with a further column
    that marks it. Text is one-hot encoded, and missing text is a category of its own. A row without task or target, an
    infinite value and identifiers are errors. Dates become days and places in the year, the week and the day. In CSV,
    empty cells, NA, N/A, NaN and null are missing.

    At the end each task's error on rows left out is shown, alone, together and with one model of all rows, and the
    columns that predictions depend on most; a page about both, report.html, is in the folder of the model.

    Columns that only number the rows, from 0 or 1 and in order, and those that R and pandas write as names of rows, are
    left out with a note; --use keeps one.

    A note names columns that alone determine the target, and numbers that may be identifiers; --drop leaves them out.

    The delimiter (comma, semicolon or tab), the decimal separator and the encoding of CSV (UTF-8 or Windows-1252) are
    detected, with a note unless they are comma, point and UTF-8; --delimiter, --decimal and --encoding override this.

    The target is classes if it is text or true/false, or whole numbers of at most 20 different values that are at most
    5 % of the rows. Otherwise it is a quantity.

    Ctrl-C stops after the current round, or before the first one once variances are estimated, and saves the model so
    far; a second Ctrl-C aborts and saves nothing.

    With --runtime mpi each rank reads only its own tasks, from a folder with one file per task, a folder of partitions
    such as site=north, or Parquet; and the model of each task is saved in a folder of its own.
    """
    runtime = "local" if options.runtime == "stacked" else options.runtime  # as it was named in 0.4
    check_option("--runtime", runtime, "local", "mpi")
    output = Output(options.as_json, options.quiet)
    if options.solver == "dmtl-elm" and options.max_bytes is not None:
        output.note(
            "--max-bytes is an option of mesh-elm, the method of dmtl-elm in 0.4; it is used, with --parts shared."
        )
        options = replace(options, solver="mesh-elm", parts=options.parts or "shared")
    if runtime != "mpi":
        for name in ("ranks", "gather", "restarts"):
            if getattr(options, name) != getattr(FitOptions, name):  # it is given
                raise ElmeshError(f"--{name} is for --runtime mpi; give that as well, or leave it out.")
        summary, stopped = fit_here(options, output)
        output.result(summary)
        if stopped:
            raise typer.Exit(INTERRUPTED)
    elif options.ranks is not None:
        _start_ranks(options, output, options.ranks)
    elif options.restarts:
        raise ElmeshError("--restarts is for ranks that this command starts; give --ranks as well.")
    else:
        fit_on_rank(options)


def _start_ranks(options: FitOptions, output: Output, ranks: int) -> None:
    """Check what can be checked here, and launch the ranks."""
    check_output_folder(options)
    options.check_checkpoint()
    MPIBackend(mask=options.mask).check(options.make_solver())
    with output.warnings_as_notes():
        tasks = find_tasks(options.data, options.task, csv_format=options.csv_format)
    options.check_task()
    check_ranks(ranks, len(tasks))
    # Existing models are the ranks' own from now on: a rank may be lost when some models are saved already.
    ended = launch(replace(options, force=True).arguments(), ranks, output, restarts=options.restarts)
    if ended.summary is not None:
        print_fit(output, ended.summary)
        output.result(ended.summary)
    if ended.interrupted:
        raise typer.Exit(INTERRUPTED)


@dataclass
class _Reading:
    """Shows how a table is read in parts, and stops the reading when it is asked to."""

    show: Callable[[int, int, str], None]
    request: StopRequest
    total: int = 0
    done: int = 0
    began: float = 0.0

    def start(self, columns: Sequence[str], n_rows: int | None) -> None:
        self.total, self.done, self.began = n_rows or 0, 0, time.monotonic()

    def add(self, n_rows: int) -> None:
        if self.request.asked:
            raise StreamStopped
        self.done += n_rows
        speed = self.done / max(time.monotonic() - self.began, 1e-9)
        self.show(self.done, self.total, f"{self.done:,} of {self.total:,} rows, {speed:,.0f} per second")


@dataclass(frozen=True, eq=False)
class _Table:
    """A table to fit: in memory, or a stream with the names of its targets and weights."""

    X: Any
    y: Any
    sample_weight: Any
    kind: ProblemKind
    reason: str


def read_table(options: FitOptions, output: Output) -> _Table:
    """Read a table, or open it to be read in parts if it is large."""
    stream, given = open_large(options.data, file_task=options.task is None), check_kind(options.kind)
    if stream is None:
        frame = read_data(options.data, file_task=options.task is None, csv_format=options.csv_format)
        X = options.inputs(frame)
        warn_of_tasks(X[options.column], options.column)
        kind, reason, whole = agree_targets({"": frame}, options.target, given)
        y = read_targets(frame, options.target, kind, whole)
        return _Table(X, y if len(options.target) > 1 else y.iloc[:, 0], options.weights(frame), kind, reason)
    options.check_columns(pd.DataFrame(columns=stream.columns))
    output.note(f"{options.data} has {stream.n_rows:,} rows; it is read in parts.")
    kind, reason, _ = agree_targets(stream, options.target, given)
    kept = [name for name in stream.columns if name not in (options.drop or ())]
    beside = options.out.with_name(f"{options.out.name}.partial")
    stream.checkpoint = beside if options.checkpoint is None else options.checkpoint / "stream"
    return _Table(SelectedStream(stream, kept, options.column), list(options.target), options.weight, kind, reason)


def fit_here(options: FitOptions, output: Output) -> tuple[dict[str, Any], bool]:
    """Fit in this process, save the model and print the summary; return it, and whether Ctrl-C stopped the fit."""
    out = options.out
    check_model_folder(out, options.force)
    options.check_checkpoint()
    options.check_task()
    with output.warnings_as_notes():
        table = read_table(options, output)
        model = options.make_estimator(table.kind)
        options.note_unused(output)
        with stop_on_interrupt(output, "after this step") as request:
            with output.bar("Fitting") as show:

                def follow(step: Progress) -> bool:
                    show(step.round, step.max_iter, f"round {step.round} of at most {step.max_iter}")
                    return request.asked

                if isinstance(table.X, TableStream):
                    table.X.monitor = _Reading(show, request)
                run = options.run_config(output, follow, LocalBackend(mask=options.mask))
                try:
                    model.fit(table.X, table.y, sample_weight=table.sample_weight, run=run)
                except StreamStopped:
                    folder = table.X.checkpoint
                    again = "continues from there" if folder is not None and folder.exists() else "starts again"
                    fail(f"Stopped while the table was read; the same command {again}.", INTERRUPTED)
            model.save(out, overwrite=options.force)
        rows = int(model.sites_["rows"].sum())
        summary = summarize(model, rows) | {"model": str(out), "kind_reason": table.reason}
        gains = None if request.asked else write_model_report(model, out, summary, output)
        print_fit(output, summary, gains)
        if request.asked:
            output.note(f"Stopped by Ctrl-C after round {model.n_iter_}; the model so far is in {out}.")
    return summary, request.asked
