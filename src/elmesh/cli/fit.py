"""``elmesh fit``: from a table to a model in a folder."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from elmesh.cli.among_ranks import check_out, fit_among_ranks
from elmesh.cli.console import (
    INTERRUPTED,
    ForceOption,
    JsonOption,
    Output,
    QuietOption,
    check_writable,
    stop_on_interrupt,
)
from elmesh.cli.launch import launch
from elmesh.cli.summary import summarise, tell_summary
from elmesh.cli.wish import Wish
from elmesh.errors import ElmeshError
from elmesh.run import watch
from elmesh.run.placement import check_ranks
from elmesh.solvers import SOLVERS
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
        typer.Option(metavar="COLUMN", help="Column that says a row's task; without it, the file's name."),
    ] = None,
    kind: Annotated[
        str | None, typer.Option(metavar="classification|regression", help="By default told by the target.")
    ] = None,
    drop: Annotated[list[str] | None, typer.Option(metavar="COLUMN", help="Column to leave out; repeatable.")] = None,
    solver: Annotated[
        str,
        typer.Option(metavar="NAME", help=f"One of {', '.join(SOLVERS)}."),
    ] = "dmtl-elm",
    rank: Annotated[
        int | None, typer.Option(help="Directions the tasks share.", show_default="as many as it takes, by certificate")
    ] = None,
    graph: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Who talks to whom: ring, path, star, complete, random or grid.",
            show_default="ring",
        ),
    ] = None,
    hidden: Annotated[int, typer.Option(help="Hidden units.")] = 300,
    mu: Annotated[
        float | None, typer.Option(help="Penalty on the weights.", show_default="by the strength of noise, or 1")
    ] = None,
    message_bits: Annotated[
        str | None,
        typer.Option(
            metavar="BITS",
            help="Bits a number in messages: 2, 4, 8, 16, 32, 64 or auto. Fewer take fewer bytes and more rounds.",
            show_default="64",
        ),
    ] = None,
    max_bytes: Annotated[
        float | None, typer.Option(help="Stop before all sites together have sent more.", show_default="no limit")
    ] = None,
    max_iter: Annotated[int | None, typer.Option(help="Most rounds.", show_default="by the solver")] = None,
    tol: Annotated[float | None, typer.Option(help="Residual to stop at.", show_default="by the solver")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the hidden weights.")] = 0,
    runtime: Annotated[
        str, typer.Option(metavar="stacked|mpi", help="Where tasks run: all in this process, or spread over MPI ranks.")
    ] = "stacked",
    ranks: Annotated[
        int | None,
        typer.Option(help="With --runtime mpi: start so many ranks.", show_default="those of mpiexec, or one"),
    ] = None,
    gather: Annotated[
        bool, typer.Option("--gather", help="With --runtime mpi: save one model of all tasks, not one for each.")
    ] = False,
    checkpoint: Annotated[
        Path | None,
        typer.Option(help="Folder to keep a checkpoint in; the same command goes on from it.", show_default="none"),
    ] = None,
    every: Annotated[int, typer.Option(help="Rounds from one checkpoint to the next.", min=1)] = 10,
    restarts: Annotated[
        int, typer.Option(help="With --ranks: start again so often after the loss of a rank.", min=0)
    ] = 0,
    force: ForceOption = False,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
    events: Annotated[bool, typer.Option("--events", hidden=True)] = False,
) -> None:
    """Learn the tasks of a table together and save the model.

    Numbers are standardised and a missing one takes the mean of the training rows, with a further column that
    says so; text is one-hot, and missing is a category of its own. A row without its task or target, an infinite
    value, dates and identifiers are errors. In CSV, empty cells, NA, N/A, NaN and null are missing.

    The target is taken as classes if it is text or true/false, or whole numbers of at most 20 different values
    that are at most 5 % of the rows, and as a quantity otherwise.

    Ctrl-C stops after the current round and saves the model so far; a second one aborts.

    With --runtime mpi each rank reads only its own tasks, from a folder with a file for each, a folder of partitions
    such as site=north, or Parquet; and each task's model is saved in a folder of its own.
    """
    wish = Wish(
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
            "message_bits": _bits(message_bits),
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
        _check_one_process(runtime, ranks, gather, restarts)
        _fit_here(wish, Output(as_json, quiet))
    elif ranks is not None:
        _start_ranks(wish, Output(as_json, quiet), ranks, restarts)
    elif restarts:
        raise ElmeshError("--restarts is for ranks that this command starts; give --ranks as well.")
    else:
        fit_among_ranks(wish, events=events, as_json=as_json, quiet=quiet)


def _check_one_process(runtime: str, ranks: int | None, gather: bool, restarts: int) -> None:
    if runtime != "stacked":
        raise ElmeshError(f'--runtime must be stacked or mpi, not "{runtime}".')
    asked = {"ranks": ranks is not None, "gather": gather, "restarts": restarts > 0}
    odd = next((name for name, given in asked.items() if given), None)
    if odd is not None:
        raise ElmeshError(f"--{odd} is for --runtime mpi; give that as well, or leave it out.")


def _start_ranks(wish: Wish, output: Output, ranks: int, restarts: int) -> None:
    """Become the launcher of ranks that fit, having seen to it that they can."""
    check_out(wish)
    wish.check_checkpoint()
    wish.make_solver()
    with output.warnings_as_notes():
        tasks = find_tasks(wish.data, wish.task)
    wish.check_task()
    check_ranks(ranks, len(tasks))
    # What is in the way now is the ranks' own: a loss may have come when some models were saved already.
    ended = launch(replace(wish, force=True).arguments(), ranks, output, restarts=restarts)
    if ended.summary is not None:
        tell_summary(output, ended.summary)
        output.result(ended.summary)
    if ended.interrupted:
        raise typer.Exit(INTERRUPTED)


def _fit_here(wish: Wish, output: Output) -> None:
    """Fit in this process."""
    out = wish.out
    check_writable(out, wish.force)
    _check_replaceable(out)
    wish.check_checkpoint()
    wish.check_task()
    with output.warnings_as_notes():
        frame = read_data(wish.data, file_task=wish.task is None)
        asked = wish.check_kind()
        chosen, reason = (asked, "as asked") if asked is not None else infer_kind(frame, wish.target)
        schema = fit_schema(frame, wish.column, wish.target, chosen, drop=wish.drop)
        X, tasks = schema.encode(frame)
        model = wish.make_estimator(chosen, X.shape[1])
        with stop_on_interrupt(output) as request:
            with (
                output.progress("Fitting") as show,
                wish.keeping(output),
                watch(lambda step: show(step) or request.asked),
            ):
                model.fit(X, schema.targets(frame), tasks=tasks)
            model.save(out, overwrite=wish.force, extra={"table": schema.to_json()})
        summary = summarise(model, schema, wish.solver, len(X)) | {"model": str(out), "kind_reason": reason}
        tell_summary(output, summary)
        if request.asked:
            output.note(f"Stopped by Ctrl-C after round {model.n_iter_}; the model so far is in {out}.")
        output.result(summary)
    if request.asked:
        raise typer.Exit(INTERRUPTED)


def _bits(text: str | None) -> int | str | None:
    """Read a number of bits; the solver says which are right."""
    return int(text) if text is not None and text.isdecimal() else text


def _check_replaceable(out: Path) -> None:
    """Refuse what saving would refuse, before the work and not after it."""
    if out.exists() and not (out.is_dir() and (not any(out.iterdir()) or (out / "model.json").is_file())):
        raise ElmeshError(f"{out} is not an elmesh model, so it is not replaced; choose another name.")
