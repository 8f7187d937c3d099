"""``elmesh fit``: from a table to a model in a folder."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pandas as pd
import typer

from elmesh.cli.console import Output, check_model_folder
from elmesh.cli.errors import INTERRUPTED, check_option
from elmesh.cli.fit_options import FitOptions, TableOptions, check_kind, with_options
from elmesh.cli.launch import launch
from elmesh.cli.mpi_fit import check_output_folder, fit_on_rank
from elmesh.cli.signals import stop_on_interrupt
from elmesh.cli.summary import print_fit, summarize
from elmesh.errors import ElmeshError
from elmesh.estimators.explanation import Explanation
from elmesh.estimators.gains import SiteGains
from elmesh.estimators.storage import CARD, REPORT
from elmesh.files import atomic_write
from elmesh.run import LocalBackend, MPIBackend
from elmesh.run.placement import check_ranks
from elmesh.tables import ProblemKind, agree_targets, find_tasks, read_data, read_targets

__all__ = ["fit", "fit_here", "read_rows"]

# Most numbers in the features of all rows for which gains are measured.
_MOST_NUMBERS = 200_000_000


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
    if options.solver == "dmtl-elm" and (options.message_bits is not None or options.max_bytes is not None):
        output.note(
            "--message-bits and --max-bytes are options of mesh-elm, the method of dmtl-elm in 0.4; it is used, with "
            "--parts shared."
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


def _measure_gains(model: Any, X: pd.DataFrame, y: pd.DataFrame, output: Output) -> SiteGains | None:
    """Return what each task gains; None if that cannot be measured."""
    fitted = model.model_
    if fitted.common is None or len(fitted.heads) < 2:
        return None
    if len(X) * fitted.layer.width > _MOST_NUMBERS:
        output.note(
            "The table is too large to measure what each task gains here; leave rows out of it, and use elmesh "
            "evaluate on them."
        )
        return None
    with output.bar("Measuring gains") as show:
        show(0, 1, "rows left out of each task")
        gains: SiteGains = model.site_gains(X, y if y.shape[1] > 1 else y.iloc[:, 0])
        show(1, 1, "")
    return gains


def _explain(model: Any, X: pd.DataFrame, y: pd.DataFrame, output: Output) -> Explanation:
    """Return what the predictions of the training rows depend on."""
    with output.bar("Explaining") as show:
        show(0, 1, "columns shuffled")
        found: Explanation = model.explain(X, y if y.shape[1] > 1 else y.iloc[:, 0])
        show(1, 1, "")
    return found


def read_rows(options: TableOptions) -> tuple[pd.DataFrame, pd.DataFrame, ProblemKind, str]:
    """Return the inputs and the targets of a table, the kind of problem that it is, and the reason for it."""
    frame = read_data(options.data, file_task=options.task is None, csv_format=options.csv_format)
    X = options.inputs(frame)
    kind, reason, whole = agree_targets({"": frame}, options.target, check_kind(options.kind))
    return X, read_targets(frame, options.target, kind, whole), kind, reason


def fit_here(options: FitOptions, output: Output) -> tuple[dict[str, Any], bool]:
    """Fit in this process, save the model and print the summary; return it, and whether Ctrl-C stopped the fit."""
    out = options.out
    check_model_folder(out, options.force)
    options.check_checkpoint()
    options.check_task()
    with output.warnings_as_notes():
        X, y, kind, reason = read_rows(options)
        model = options.make_estimator(kind)
        options.note_unused(output)
        with stop_on_interrupt(output) as request:
            with output.progress("Fitting") as show:
                backend = LocalBackend(mask=options.mask)
                run = options.run_config(output, lambda step: show(step) or request.asked, backend)
                model.fit(X, y if len(options.target) > 1 else y.iloc[:, 0], run=run)
            model.save(out, overwrite=options.force)
        summary = summarize(model, len(X)) | {"model": str(out), "kind_reason": reason}
        gains = None if request.asked else _measure_gains(model, X, y, output)
        explanation = None if request.asked else _explain(model, X, y, output)
        if explanation is not None:
            summary["explanation"] = explanation.to_json()
        if gains is None:
            print_fit(output, summary)
        else:
            # Matplotlib takes a second to import, for which errors in the table and --help should not wait.
            from elmesh.report import gains_page, gains_table, render  # noqa: PLC0415

            atomic_write(out / REPORT, render(gains_page(gains, summary, explanation)).encode())
            atomic_write(out / CARD, model.model_card(gains).encode())
            summary |= {"gains": gains.to_json(), "report": str(out / REPORT)}
            print_fit(output, summary, (gains, gains_table(gains)))
        if request.asked:
            output.note(f"Stopped by Ctrl-C after round {model.n_iter_}; the model so far is in {out}.")
    return summary, request.asked
