"""``elmesh fit``: from a table to a model in a folder."""

from __future__ import annotations

import math
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from elmesh import MultiTaskELMClassifier, MultiTaskELMRegressor
from elmesh.certificate import Certificate
from elmesh.cli.console import (
    INTERRUPTED,
    ForceOption,
    JsonOption,
    Output,
    QuietOption,
    check_writable,
    stop_on_interrupt,
)
from elmesh.errors import ElmeshError
from elmesh.labels import count
from elmesh.runtime import watch
from elmesh.solvers import SOLVERS, Solver, make_solver
from elmesh.tables import FILE_TASK, Kind, TableSchema, fit_schema, infer_kind, read_data

__all__ = ["build_solver", "fit", "weight_scale"]


def weight_scale(n_columns: int) -> float:
    """Give the size of hidden weights that keeps the sigmoid where it bends.

    Weights uniform in [-1, 1) have variance 1/3, so a hidden unit adds up n standardised columns to a variance of
    n/3. Beyond about 1 the sigmoid flattens out and the units all say 0 or 1; this factor brings it back to 1.

    Parameters
    ----------
    n_columns
        Number of columns of the encoded table.

    Examples
    --------
    >>> weight_scale(2), weight_scale(12)
    (1.0, 0.5)
    """
    return 1.0 / math.sqrt(max(1.0, n_columns / 3.0))


def build_solver(name: str, mu: float | None, **options: object) -> Solver:
    """Make a solver from what was asked for on the command line.

    Parameters
    ----------
    name
        Its short name.
    mu
        Its penalty or penalties, if asked for.
    **options
        Other parameters by name, None where not asked for.

    Examples
    --------
    >>> build_solver("mtl-elm", 0.5, rank=3, graph=None)
    MTLELM(mu1=0.5, mu2=0.5, rank=3)
    """
    solver = make_solver(name)
    known = solver.get_params()
    if mu is not None:
        options |= {key: mu for key in ("mu", "mu1", "mu2") if key in known}
    asked = {key: value for key, value in options.items() if value is not None}
    for key in asked:
        if key not in known:
            raise ElmeshError(f"--{key.replace('_', '-')} has no meaning for {name}; leave it out.")
    return make_solver(solver.set_params(**asked))


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
    force: ForceOption = False,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Learn the tasks of a table together and save the model.

    Numbers are standardised and a missing one takes the median of the training rows, with a further column that
    says so; text is one-hot, and missing is a category of its own. A row without its task or target, an infinite
    value, dates and identifiers are errors. In CSV, empty cells, NA, N/A, NaN and null are missing.

    The target is taken as classes if it is text or true/false, or whole numbers of at most 20 different values
    that are at most 5 % of the rows, and as a quantity otherwise.

    Ctrl-C stops after the current round and saves the model so far; a second one aborts.
    """
    output = Output(as_json, quiet)
    check_writable(out, force)
    _check_replaceable(out)
    if task is None and data.is_file():
        raise ElmeshError(
            f"{data} is one file, so --task must name the column that holds the task; or give a folder with one "
            "file for each task."
        )
    with output.warnings_as_notes():
        frame = read_data(data, file_task=task is None)
        chosen, reason = _choose_kind(kind) or infer_kind(frame, target)
        schema = fit_schema(frame, task or FILE_TASK, target, chosen, drop=drop or [])
        X, tasks = schema.encode(frame)
        estimator = MultiTaskELMClassifier if chosen == "classification" else MultiTaskELMRegressor
        model = estimator(
            hidden,
            weight_scale=weight_scale(X.shape[1]),
            solver=build_solver(
                solver,
                mu,
                rank=rank,
                graph=graph,
                message_bits=_bits(message_bits),
                max_bytes=max_bytes,
                max_iter=max_iter,
                tol=tol,
            ),
            random_state=seed,
        )
        with stop_on_interrupt(output) as request:
            with output.progress("Fitting") as show, watch(lambda step: show(step) or request.asked):
                model.fit(X, schema.targets(frame), tasks=tasks)
            model.save(out, overwrite=force, extra={"table": schema.to_json()})
        summary = _summary(model, schema, solver, len(X)) | {"model": str(out), "kind_reason": reason}
        _tell(output, summary)
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


def _choose_kind(kind: str | None) -> tuple[Kind, str] | None:
    if kind is None:
        return None
    if kind not in ("classification", "regression"):
        raise ElmeshError(f'--kind must be classification or regression, not "{kind}".')
    return ("classification" if kind == "classification" else "regression"), "as asked"


def _summary(model: Any, schema: TableSchema, solver: str, rows: int) -> dict[str, Any]:
    history = model.history_
    return {
        "command": "fit",
        "kind": schema.kind,
        "targets": [target.name for target in schema.target_columns],
        "classes": list(model.classes_) if schema.kind == "classification" else None,
        "tasks": list(model.tasks_),
        "rows": rows,
        "columns": schema.columns,
        "solver": solver,
        "rank": int(model.U_.shape[-1]) if "rank" in model.solver.get_params() else None,
        "penalties": None if model.penalties_ is None else list(model.penalties_),
        "certificate": None if model.certificate_ is None else asdict(model.certificate_),
        "rounds": int(model.n_iter_),
        "exchanges": int(model.n_exchanges_),
        "pooled": model.solver.pooled,
        "bytes": int(history["bytes"].iloc[-1]) if len(history) else 0,
        "objective": float(history["objective"].iloc[-1]) if len(history) else None,
        "stop": model.stop_.name,
        "advice": model.stop_.value,
    }


def _tell(output: Output, summary: dict[str, Any]) -> None:
    classes = f" of {len(summary['classes'])} classes" if summary["classes"] is not None else ""
    output.say(f"{summary['kind'].capitalize()}{classes}: {summary['kind_reason']}.")
    tasks, columns = len(summary["tasks"]), len(summary["columns"])
    output.say(f"{count(summary['rows'], 'row')} of {count(tasks, 'task')}, {count(columns, 'column')} once encoded.")
    if tasks == 1:
        output.say("With one task there is nobody to learn with; --task names the column that tells sites apart.")
    penalty = "" if summary["penalties"] is None else f", penalty {math.sqrt(math.prod(summary['penalties'])):.3g}"
    nothing = "all data in one place" if summary["pooled"] else "nothing sent"
    sent = f"{summary['bytes'] / 1e6:.3g} MB sent" if summary["bytes"] else nothing
    # The other ways to end come with a warning of their own.
    advice = f" {summary['advice']}" if summary["stop"] in ("CONVERGED", "DIRECT", "COMPLETED") else ""
    rank = "" if summary["rank"] is None else f" of rank {summary['rank']}"
    output.say(f"{summary['solver']}{rank}{penalty}: {count(summary['rounds'], 'round')}, {sent}.{advice}")
    if summary["certificate"] is not None:
        output.say(f"Certified {Certificate(**summary['certificate'])}.")
    output.say(f"Saved in {summary['model']}.")
