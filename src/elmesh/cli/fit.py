"""``elmesh fit``: from a table to a model in a folder."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from elmesh.cli.console import ForceOption, JsonOption, Output, QuietOption, check_model_folder
from elmesh.cli.errors import INTERRUPTED, check_option
from elmesh.cli.fit_options import FitOptions, check_kind
from elmesh.cli.launch import launch
from elmesh.cli.mpi_fit import check_output_folder, fit_on_rank
from elmesh.cli.signals import stop_on_interrupt
from elmesh.cli.summary import print_fit, summarize
from elmesh.errors import ElmeshError
from elmesh.run import MPIBackend
from elmesh.run.placement import check_ranks
from elmesh.solvers import solver_classes
from elmesh.tables import find_tasks, fit_schema, infer_kind, read_data

__all__ = ["fit"]


def fit(
    data: Annotated[
        Path,
        typer.Argument(metavar="DATA", help="A CSV or Parquet file, or a folder with one such file for each task."),
    ],
    target: Annotated[list[str], typer.Option(metavar="COLUMN", help="Column to predict; several for a regression.")],
    out: Annotated[Path, typer.Option(help="Folder to save the model in.")],
    task: Annotated[
        str | None,
        typer.Option(metavar="COLUMN", help="Column with the task of each row; without it, the task is the file."),
    ] = None,
    kind: Annotated[
        str | None, typer.Option(metavar="classification|regression", help="Inferred from the target by default.")
    ] = None,
    drop: Annotated[list[str] | None, typer.Option(metavar="COLUMN", help="Column to leave out; repeatable.")] = None,
    solver: Annotated[str, typer.Option(metavar="NAME", help=f"One of {', '.join(solver_classes())}.")] = "mesh-elm",
    rank: Annotated[
        int | None,
        typer.Option(help="Number of directions that the tasks share.", show_default="chosen by the certificate"),
    ] = None,
    graph: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Communication graph: ring, path, star, complete, random or grid. With mesh-elm also none: all data "
            "in one place.",
            show_default="ring",
        ),
    ] = None,
    hidden: Annotated[int, typer.Option(help="Hidden units.")] = 300,
    mu: Annotated[
        float | None, typer.Option(help="Penalty on the weights.", show_default="from the estimated noise, or 1")
    ] = None,
    message_bits: Annotated[
        str | None,
        typer.Option(
            metavar="BITS",
            help="Bits per number in messages: 2, 4, 8, 16, 32, 64 or auto. Fewer bits need fewer bytes and more "
            "rounds.",
            show_default="64",
        ),
    ] = None,
    max_bytes: Annotated[
        float | None, typer.Option(help="Stop before all sites together send more.", show_default="no limit")
    ] = None,
    max_iter: Annotated[int | None, typer.Option(help="Maximum number of rounds.", show_default="the solver's")] = None,
    tol: Annotated[float | None, typer.Option(help="Tolerance to stop at.", show_default="the solver's")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the hidden weights.")] = 0,
    runtime: Annotated[
        str, typer.Option(metavar="local|mpi", help="Where tasks run: all in this process, or spread over MPI ranks.")
    ] = "local",
    ranks: Annotated[
        int | None,
        typer.Option(help="With --runtime mpi: the number of ranks to start.", show_default="those of mpiexec, or one"),
    ] = None,
    gather: Annotated[
        bool, typer.Option("--gather", help="With --runtime mpi: save one model of all tasks, not one per task.")
    ] = False,
    checkpoint: Annotated[
        Path | None,
        typer.Option(help="Folder for checkpoints, from which the same command resumes.", show_default="none"),
    ] = None,
    every: Annotated[int, typer.Option(help="Rounds between checkpoints.", min=1)] = 10,
    restarts: Annotated[
        int, typer.Option(help="With --ranks: how often to restart after the loss of a rank.", min=0)
    ] = 0,
    force: ForceOption = False,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
    events: Annotated[bool, typer.Option("--events", hidden=True)] = False,
) -> None:
    """Fit the tasks of a table together and save the model.

    Numbers are standardised, and a missing number is replaced by the mean of the training rows, with a further column
    that marks it. Text is one-hot encoded, and missing text is a category of its own. A row without task or target, an
    infinite value, dates and identifiers are errors. In CSV, empty cells, NA, N/A, NaN and null are missing.

    The target is classes if it is text or true/false, or whole numbers of at most 20 different values that are at most
    5 % of the rows. Otherwise it is a quantity.

    Ctrl-C stops after the current round and saves the model so far; a second Ctrl-C aborts.

    With --runtime mpi each rank reads only its own tasks, from a folder with one file per task, a folder of partitions
    such as site=north, or Parquet; and the model of each task is saved in a folder of its own.
    """
    runtime = "local" if runtime == "stacked" else runtime  # as it was named in 0.4
    check_option("--runtime", runtime, "local", "mpi")
    output = Output(as_json, quiet)
    if solver == "dmtl-elm" and (message_bits is not None or max_bytes is not None):
        output.note(
            "--message-bits and --max-bytes are options of mesh-elm, the method of dmtl-elm in 0.4; it is used."
        )
        solver = "mesh-elm"
    options = FitOptions(
        data=data,
        target=target,
        out=out,
        task=task,
        kind=kind,
        drop=drop or [],
        solver=solver,
        mu=mu,
        parameters={
            "rank": rank,
            "graph": graph,
            "message_bits": int(message_bits)
            if message_bits is not None and message_bits.isdecimal()
            else message_bits,
            "max_bytes": max_bytes,
            "max_iter": max_iter,
            "tol": tol,
        },
        hidden=hidden,
        seed=seed,
        force=force,
        runtime=runtime,
        gather=gather,
        checkpoint=checkpoint,
        every=every,
    )
    if runtime != "mpi":
        for name, given in {"ranks": ranks is not None, "gather": gather, "restarts": restarts > 0}.items():
            if given:
                raise ElmeshError(f"--{name} is for --runtime mpi; give that as well, or leave it out.")
        _fit_here(options, output)
    elif ranks is not None:
        _start_ranks(options, output, ranks, restarts)
    elif restarts:
        raise ElmeshError("--restarts is for ranks that this command starts; give --ranks as well.")
    else:
        fit_on_rank(options, events=events, as_json=as_json, quiet=quiet)


def _start_ranks(options: FitOptions, output: Output, ranks: int, restarts: int) -> None:
    """Check what can be checked here, and launch the ranks."""
    check_output_folder(options)
    options.check_checkpoint()
    MPIBackend().check(options.make_solver())
    with output.warnings_as_notes():
        tasks = find_tasks(options.data, options.task)
    options.check_task()
    check_ranks(ranks, len(tasks))
    # Existing models are the ranks' own from now on: a rank may be lost when some models are saved already.
    ended = launch(replace(options, force=True).arguments(), ranks, output, restarts=restarts)
    if ended.summary is not None:
        print_fit(output, ended.summary)
        output.result(ended.summary)
    if ended.interrupted:
        raise typer.Exit(INTERRUPTED)


def _fit_here(options: FitOptions, output: Output) -> None:
    """Fit in this process."""
    out = options.out
    check_model_folder(out, options.force)
    options.check_checkpoint()
    options.check_task()
    with output.warnings_as_notes():
        frame = read_data(options.data, file_task=options.task is None)
        given = check_kind(options.kind)
        kind, reason = (given, "as asked") if given is not None else infer_kind(frame, options.target)
        schema = fit_schema(frame, options.column, options.target, kind, drop=options.drop)
        X, tasks = schema.encode(frame)
        model = options.make_estimator(kind, X.shape[1])
        with stop_on_interrupt(output) as request:
            with output.progress("Fitting") as show:
                run = options.run_config(output, lambda step: show(step) or request.asked)
                model.fit(X, schema.targets(frame), tasks=tasks, run=run)
            model.save(out, overwrite=options.force, extra={"table": schema.to_json()})
        summary = summarize(model, schema, len(X)) | {"model": str(out), "kind_reason": reason}
        print_fit(output, summary)
        if request.asked:
            output.note(f"Stopped by Ctrl-C after round {model.n_iter_}; the model so far is in {out}.")
        output.result(summary)
    if request.asked:
        raise typer.Exit(INTERRUPTED)
