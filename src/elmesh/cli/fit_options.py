"""The options of ``elmesh fit``, and the estimator and the run that they describe."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from elmesh.cli.console import ForceOption, JsonOption, Output, QuietOption, check_writable
from elmesh.cli.errors import check_option
from elmesh.data.features import weight_scale
from elmesh.errors import ElmeshError
from elmesh.estimators.classifier import MultiTaskELMClassifier
from elmesh.estimators.regressor import MultiTaskELMRegressor
from elmesh.run import Backend, CheckpointConfig, Progress, RunConfig
from elmesh.solvers import Solver, make_solver, solver_classes
from elmesh.tables import FILE_TASK, ProblemKind

__all__ = ["FitOptions", "check_kind", "with_options"]


# What belongs to the command that starts ranks, and to the output, and not to the fit.
_NOT_OF_THE_FIT = ("ranks", "restarts", "as_json", "quiet", "events")


@dataclass(frozen=True)
class FitOptions:
    """The options of ``elmesh fit``; None where an option is not given."""

    data: Annotated[
        Path,
        typer.Argument(metavar="DATA", help="A CSV or Parquet file, or a folder with one such file for each task."),
    ]
    target: Annotated[list[str], typer.Option(metavar="COLUMN", help="Column to predict; several for a regression.")]
    out: Annotated[Path, typer.Option(help="Folder to save the model in.")]
    task: Annotated[
        str | None,
        typer.Option(metavar="COLUMN", help="Column with the task of each row; without it, the task is the file."),
    ] = None
    kind: Annotated[
        str | None, typer.Option(metavar="classification|regression", help="Inferred from the target by default.")
    ] = None
    drop: Annotated[list[str] | None, typer.Option(metavar="COLUMN", help="Column to leave out; repeatable.")] = None
    solver: Annotated[str, typer.Option(metavar="NAME", help=f"One of {', '.join(solver_classes())}.")] = "mesh-elm"
    rank: Annotated[
        int | None,
        typer.Option(help="Number of directions that the tasks share.", show_default="chosen by the certificate"),
    ] = None
    graph: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Communication graph: ring, path, star, complete, random or grid. With mesh-elm also none: all data "
            "in one place.",
            show_default="ring",
        ),
    ] = None
    hidden: Annotated[int, typer.Option(help="Hidden units.")] = 300
    mu: Annotated[
        float | None, typer.Option(help="Penalty on the weights.", show_default="from the estimated noise, or 1")
    ] = None
    message_bits: Annotated[
        str | None,
        typer.Option(
            metavar="BITS",
            help="Bits per number in messages: 2, 4, 8, 16, 32, 64 or auto. Fewer bits need fewer bytes and more "
            "rounds.",
            show_default="64",
        ),
    ] = None
    max_bytes: Annotated[
        float | None, typer.Option(help="Stop before all sites together send more.", show_default="no limit")
    ] = None
    max_iter: Annotated[int | None, typer.Option(help="Maximum number of rounds.", show_default="the solver's")] = None
    tol: Annotated[float | None, typer.Option(help="Tolerance to stop at.", show_default="the solver's")] = None
    seed: Annotated[int, typer.Option(help="Seed of the hidden weights.")] = 0
    runtime: Annotated[
        str, typer.Option(metavar="local|mpi", help="Where tasks run: all in this process, or spread over MPI ranks.")
    ] = "local"
    ranks: Annotated[
        int | None,
        typer.Option(help="With --runtime mpi: the number of ranks to start.", show_default="those of mpiexec, or one"),
    ] = None
    gather: Annotated[
        bool, typer.Option("--gather", help="With --runtime mpi: save one model of all tasks, not one per task.")
    ] = False
    checkpoint: Annotated[
        Path | None,
        typer.Option(help="Folder for checkpoints, from which the same command resumes.", show_default="none"),
    ] = None
    every: Annotated[int, typer.Option(help="Rounds between checkpoints.", min=1)] = 10
    restarts: Annotated[
        int, typer.Option(help="With --ranks: how often to restart after the loss of a rank.", min=0)
    ] = 0
    force: ForceOption = False
    as_json: JsonOption = False
    quiet: QuietOption = False
    events: Annotated[bool, typer.Option("--events", hidden=True)] = False

    @property
    def column(self) -> str:
        """The column that holds the task."""
        return self.task or FILE_TASK

    def make_solver(self) -> Solver:
        """Return the solver; ``mu`` is for all its penalties, and the graph "none" means all data in one place."""
        solver = make_solver(self.solver)
        known = solver.get_params()
        names = ("rank", "graph", "message_bits", "max_bytes", "max_iter", "tol")
        given = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        for name in given:
            if name not in known:
                raise ElmeshError(f"{_option(name)} has no meaning for {self.solver}; leave it out.")
        if self.mu is not None:
            given |= {name: self.mu for name in ("mu", "mu1", "mu2") if name in known}
        if given.get("graph") == "none":
            given["graph"] = None
        if given.get("message_bits", "").isdecimal():
            given["message_bits"] = int(given["message_bits"])
        return make_solver(solver.set_params(**given))

    def make_estimator(self, kind: ProblemKind, n_columns: int) -> MultiTaskELMClassifier | MultiTaskELMRegressor:
        """Return the estimator for so many encoded columns."""
        make = MultiTaskELMClassifier if kind == "classification" else MultiTaskELMRegressor
        return make(
            self.hidden, weight_scale=weight_scale(n_columns), solver=self.make_solver(), random_state=self.seed
        )

    def check_task(self) -> None:
        """Raise if the rows of a single file have no task."""
        if self.task is None and self.data.is_file():
            raise ElmeshError(
                f"{self.data} is one file, so --task must name the column that holds the task; or give a folder with "
                "one file for each task."
            )

    def check_checkpoint(self) -> None:
        """Raise if the folder for checkpoints cannot be written: before the work."""
        if self.checkpoint is not None:
            check_writable(self.checkpoint / "checkpoint.json", force=True)

    def by_option(self) -> dict[str, Any]:
        """Return the values that describe the fit by the names of the options, in plain JSON."""
        values = {_option(f.name): getattr(self, f.name) for f in fields(self) if f.name not in _NOT_OF_THE_FIT}
        return {name: str(value) if isinstance(value, Path) else value for name, value in values.items()}

    def run_config(
        self,
        output: Output,
        callback: Callable[[Progress], bool | None],
        backend: str | Backend = "local",
        on_checkpoint: Callable[[int], None] = lambda k: None,
    ) -> RunConfig:
        """Return how the fit runs; the first checkpoint of a resumed fit is noted."""
        if self.checkpoint is None:
            return RunConfig(backend, callback)
        pending = (self.checkpoint / "checkpoint.json").exists()

        def note_checkpoint(k: int) -> None:
            nonlocal pending
            if pending and k >= 0:
                output.note(f"Resuming from the checkpoint of round {k} in {self.checkpoint}.")
            pending = False
            on_checkpoint(k)

        return RunConfig(backend, callback, CheckpointConfig(self.checkpoint, self.every, note_checkpoint))

    def arguments(self) -> list[str]:
        """Return the arguments of the same command for each rank, which reports events."""
        words = ["fit", "--events"]
        for name, value in self.by_option().items():
            if value is True:
                words.append(name)
            elif name != "--data" and value is not None and value is not False:
                words += [
                    word for item in (value if isinstance(value, list) else [value]) for word in (name, str(item))
                ]
        return [*words, "--", str(self.data)]  # a name may begin with a dash


def with_options(function: Callable[[FitOptions], None]) -> Callable[..., None]:
    """Return a function of the options as a command is: each is a parameter of its own."""

    @functools.wraps(function)
    def command(**options: Any) -> None:
        function(FitOptions(**options))

    command.__signature__ = inspect.signature(FitOptions, eval_str=True)  # type: ignore[attr-defined]  # typer reads it
    command.__annotations__ = {}
    return command


def check_kind(kind: str | None) -> ProblemKind | None:
    """Return the value of --kind, if it is given."""
    if kind is not None:
        check_option("--kind", kind, "classification", "regression")
    return cast("ProblemKind | None", kind)


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"
