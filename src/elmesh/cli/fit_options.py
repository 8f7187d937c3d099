"""The options of ``elmesh fit``, and the estimator and the run that they describe; those of any table come first."""

from __future__ import annotations

import functools
import inspect
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any, TypeVar, cast, get_type_hints

import pandas as pd
import typer

from elmesh.cli.console import (
    DecimalOption,
    DelimiterOption,
    EncodingOption,
    ForceOption,
    JsonOption,
    Output,
    QuietOption,
    check_writable,
)
from elmesh.cli.errors import check_option
from elmesh.data.features import ACTIVATIONS
from elmesh.errors import ElmeshError
from elmesh.estimators.classifier import MultiTaskELMClassifier
from elmesh.estimators.regressor import MultiTaskELMRegressor
from elmesh.run import Backend, CheckpointConfig, Progress, RunConfig
from elmesh.solvers import Solver, make_solver, solver_classes
from elmesh.solvers.settings import part_parameters
from elmesh.solvers.traffic_estimate import TrafficEstimate
from elmesh.tables import FILE_TASK, CSVFormat, ProblemKind, find_column
from elmesh.tables.access import task_labels
from elmesh.tables.stream_stats import read_weights
from elmesh.typing import FloatArray

__all__ = [
    "ClassWeightOption",
    "FitOptions",
    "OutOption",
    "TableOptions",
    "WeightOption",
    "check_kind",
    "hidden_units",
    "weight_scales",
    "with_options",
]

OutOption = Annotated[Path, typer.Option(help="Folder to save the model in.")]
WeightOption = Annotated[
    str | None,
    typer.Option(metavar="COLUMN", help="Column with how often each row counts; it is no input.", show_default="once"),
]
ClassWeightOption = Annotated[
    str | None,
    typer.Option(
        metavar="balanced",
        help="With classes: rows of rare classes count more, so that all classes weigh the same.",
        show_default="all rows count the same",
    ),
]
_Options = TypeVar("_Options", bound="TableOptions")


# What belongs to the command that starts ranks, and to the output, and not to the fit.
_NOT_OF_THE_FIT = ("ranks", "restarts", "as_json", "quiet", "events")


@dataclass(frozen=True, kw_only=True)
class TableOptions:
    """The options that describe a table; None where an option is not given."""

    data: Annotated[
        str,
        typer.Argument(
            metavar="DATA",
            help="A CSV, .csv.gz or Parquet file, a folder with one such file for each site, or "
            "duckdb://FILE?table=NAME.",
        ),
    ]
    target: Annotated[list[str], typer.Option(metavar="COLUMN", help="Column to predict; several for a regression.")]
    task: Annotated[
        str | None,
        typer.Option(
            "--task",
            "--site",
            metavar="COLUMN",
            help="Column with the site of each row, the task to learn; without it, each file is a site.",
        ),
    ] = None
    kind: Annotated[
        str | None, typer.Option(metavar="classification|regression", help="Inferred from the target by default.")
    ] = None
    drop: Annotated[list[str] | None, typer.Option(metavar="COLUMN", help="Column to leave out; repeatable.")] = None
    use: Annotated[
        list[str] | None,
        typer.Option(metavar="COLUMN", help="Column to learn from even if it only numbers the rows; repeatable."),
    ] = None
    delimiter: DelimiterOption = None
    decimal: DecimalOption = None
    encoding: EncodingOption = None

    @property
    def column(self) -> str:
        """The column that holds the task."""
        return self.task or FILE_TASK

    @property
    def csv_format(self) -> CSVFormat:
        """How CSV files are written."""
        return CSVFormat(self.delimiter, self.decimal, self.encoding)

    def check_columns(self, frame: pd.DataFrame) -> None:
        """Raise if a column that is named is not there, or has two roles."""
        drop, use = self.drop or [], self.use or []
        for name in (self.column, *self.target, *drop, *use):
            find_column(frame, name)
        if self.column in self.target:
            raise ElmeshError(f'Column "{self.column}" is named as both task and target; they must differ.')
        for name in drop:
            if name == self.column or name in self.target:
                raise ElmeshError(f'Column "{name}" is named as task or target, and to be dropped as well.')
        for name in use:
            if name == self.column or name in (*self.target, *drop):
                raise ElmeshError(f'Column "{name}" is to be learned from, and named as task, target or to be dropped.')

    def inputs(self, frame: pd.DataFrame) -> pd.DataFrame:
        """Return a table without its targets and the columns to leave out; raise if a column has two roles."""
        self.check_columns(frame)
        # Labels are text, however a file stores them.
        rest = frame.drop(columns=[*self.target, *(self.drop or [])])
        return rest.assign(**{self.column: task_labels(frame, self.column)})

    def check_task(self) -> None:
        """Raise if the rows of a single file have no task."""
        if self.task is None and Path(self.data).is_file():
            raise ElmeshError(
                f"{self.data} is one file, so --task must name the column that holds the site; or give a folder with "
                "one file for each site."
            )


@dataclass(frozen=True, kw_only=True)
class FitOptions(TableOptions):
    """The options of ``elmesh fit``."""

    out: OutOption
    weight: WeightOption = None
    class_weight: ClassWeightOption = None
    solver: Annotated[str, typer.Option(metavar="NAME", help=f"One of {', '.join(solver_classes())}.")] = "mesh-elm"
    parts: Annotated[
        str | None,
        typer.Option(
            metavar="LIST",
            help="Parts of the weights of mesh-elm, separated by commas: common, the same in all tasks; private, each "
            "task's own; shared, a subspace that tasks share. shared alone is the paper's problem.",
            show_default="common,private,shared",
        ),
    ] = None
    rank: Annotated[
        int | None,
        typer.Option(
            help="Number of directions that the tasks share; with mesh-elm, 0 for no shared part.",
            show_default="chosen by the certificate",
        ),
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
    hidden: Annotated[
        str, typer.Option(metavar="NUMBER", help="Hidden units.", show_default="200, or 300 without groups of features")
    ] = "auto"
    weight_scale: Annotated[
        str | None,
        typer.Option(
            metavar="NUMBERS",
            help="Scale of the hidden weights; with mesh-elm several for several groups of units, separated by commas.",
            show_default="1,4, or by the number of columns",
        ),
    ] = None
    activation: Annotated[
        str, typer.Option(metavar="NAME", help=f"Activation of the hidden units: {', '.join(ACTIVATIONS)}.")
    ] = "sigmoid"
    mu: Annotated[
        float | None, typer.Option(help="Penalty on the weights.", show_default="from the estimated noise, or 1")
    ] = None
    message_bits: Annotated[
        str | None,
        typer.Option(
            metavar="BITS",
            help="Bits per number in messages: 32 or 64; with --parts shared also 2, 4, 8, 16 or auto. Fewer bits need "
            "fewer bytes and, with --parts shared, more rounds.",
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
    mask: Annotated[
        bool,
        typer.Option(
            "--mask",
            help="Mask all sums of the fit, so that no rank learns anything of another's rows but totals. Ranges and "
            "categories of columns are exchanged before, as they are. In one process: count the bytes of masked sums.",
        ),
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

    def check_columns(self, frame: pd.DataFrame) -> None:
        """Raise if a column that is named is not there, or has two roles."""
        super().check_columns(frame)
        if self.weight is None:
            return
        find_column(frame, self.weight)
        if self.weight in (self.column, *self.target, *(self.drop or []), *(self.use or [])):
            raise ElmeshError(f'Column "{self.weight}" has the weights of rows, and is named as something else too.')

    def inputs(self, frame: pd.DataFrame) -> pd.DataFrame:
        """Return a table without its targets, weights and the columns to leave out; raise if one has two roles."""
        X = super().inputs(frame)
        return X if self.weight is None else X.drop(columns=self.weight)

    def weights(self, frame: pd.DataFrame) -> FloatArray | None:
        """Return how often each row counts; None if all count once."""
        return None if self.weight is None else read_weights(frame, self.weight)

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
            penalties = {name: self.mu for name in ("mu", "mu1", "mu2") if name in known}
            if not penalties:
                raise ElmeshError(f"--mu has no meaning for {self.solver}; leave it out.")
            given |= penalties
        given |= self._parts(known)
        if given.get("graph") == "none":
            given["graph"] = None
        if given.get("message_bits", "").isdecimal():
            given["message_bits"] = int(given["message_bits"])
        return make_solver(solver.set_params(**given))

    def _parts(self, known: Mapping[str, Any]) -> dict[str, Any]:
        """Return the parameters of the solver that --parts means, given those that it has."""
        if self.parts is None:
            return {}
        if not {"common", "private"} <= known.keys():
            raise ElmeshError(f"--parts has no meaning for {self.solver}; leave it out.")
        given = part_parameters(self.parts)
        if "rank" in given and self.rank:
            raise ElmeshError(f"--rank {self.rank} is for the shared part; add shared to --parts, or leave it out.")
        if "rank" not in given and self.rank == 0:
            raise ElmeshError("--rank 0 means no shared part, which --parts asks for; leave one of them out.")
        return given

    def note_unused(self, output: Output) -> None:
        """Note an option that has no effect on this fit."""
        if self.message_bits not in (None, "32", "64") and self.make_solver().has_common_part:
            output.note(
                f"--message-bits {self.message_bits} is for --parts shared; here sums of matrices have 32 bits."
            )

    def make_estimator(self, kind: ProblemKind) -> MultiTaskELMClassifier | MultiTaskELMRegressor:
        """Return the estimator, which takes the table of :meth:`inputs`."""
        make: Any = MultiTaskELMClassifier if kind == "classification" else MultiTaskELMRegressor
        if self.class_weight is not None:
            check_option("--class-weight", self.class_weight, "balanced")
            if kind != "classification":
                raise ElmeshError("--class-weight is for classes, and the target is a quantity; leave it out.")
            make = functools.partial(make, class_weight=self.class_weight)
        estimator: MultiTaskELMClassifier | MultiTaskELMRegressor = make(
            hidden_units(self.hidden),
            weight_scale="auto" if self.weight_scale is None else weight_scales(self.weight_scale),
            activation=self.activation,
            task=self.column,
            column_types=dict.fromkeys(self.use, "number") if self.use else None,
            solver=self.make_solver(),
            random_state=self.seed,
        )
        return estimator

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

        def announce(estimate: TrafficEstimate) -> None:
            output.print(estimate.sentence(simulated=backend == "local" or getattr(backend, "in_one_place", False)))

        if self.checkpoint is None:
            return RunConfig(backend, callback, on_estimate=announce)
        pending = (self.checkpoint / "checkpoint.json").exists()

        def note_checkpoint(k: int) -> None:
            nonlocal pending
            if pending and k >= 0:
                output.note(f"Resuming from the checkpoint of round {k} in {self.checkpoint}.")
            pending = False
            on_checkpoint(k)

        return RunConfig(backend, callback, CheckpointConfig(self.checkpoint, self.every, note_checkpoint), announce)

    def arguments(self) -> list[str]:
        """Return the arguments of the same command for each rank, which reports events."""
        return ["fit", "--events", *self._words(), "--", self.data]  # a name may begin with a dash

    def command(self) -> str:
        """Return the command in full, without what is the default and without leave to replace files."""
        defaults = {_option(field.name): field.default for field in fields(self)}
        words = replace(self, force=False)._words(lambda name, value: value != defaults[name])
        rest = [*words, "--", self.data] if self.data.startswith("-") else [self.data, *words]
        return shlex.join(["elmesh", "fit", *rest])

    def _words(self, wanted: Callable[[str, Any], bool] = lambda name, value: True) -> list[str]:
        """Return the options that are wanted and have a value, as words of a command."""
        words: list[str] = []
        for name, value in self.by_option().items():
            if name == "--data" or value is None or value is False or not wanted(name, value):
                continue
            items = value if isinstance(value, list) else [value]
            words += [name] if value is True else [word for item in items for word in (name, str(item))]
        return words


def hidden_units(text: str) -> int | str:
    """Return a number of hidden units, or "auto"."""
    if text != "auto" and not text.isdecimal():
        raise ElmeshError(f'--hidden must be a whole number or "auto"; got {text!r}.')
    return text if text == "auto" else int(text)


def weight_scales(text: str) -> float | tuple[float, ...]:
    """Return a scale of weights, or several that are separated by commas.

    Examples
    --------
    >>> weight_scales("0.3"), weight_scales("1,4")
    (0.3, (1.0, 4.0))
    """
    try:
        found = tuple(float(part) for part in text.split(","))
    except ValueError:
        raise ElmeshError(f"--weight-scale must be numbers that are separated by commas; got {text!r}.") from None
    return found[0] if len(found) == 1 else found


def with_options(cls: type[_Options]) -> Callable[[Callable[[_Options], None]], Callable[..., None]]:
    """Return what turns a function of the options into a command: each is a parameter of its own."""

    def decorate(function: Callable[[_Options], None]) -> Callable[..., None]:
        @functools.wraps(function)
        def command(**options: Any) -> None:
            function(cls(**options))

        signature, hints = inspect.signature(cls), get_type_hints(cls, include_extras=True)
        options = [option.replace(annotation=hints[name]) for name, option in signature.parameters.items()]
        # typer takes the parameters of a command from this attribute, which types of functions do not declare.
        vars(command)["__signature__"] = signature.replace(parameters=options)
        command.__annotations__ = {}
        return command

    return decorate


def check_kind(kind: str | None) -> ProblemKind | None:
    """Return the value of --kind, if it is given."""
    if kind is not None:
        check_option("--kind", kind, "classification", "regression")
    return cast("ProblemKind | None", kind)


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"
