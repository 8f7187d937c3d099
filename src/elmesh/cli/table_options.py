"""The options of a table that a command fits, and a command whose options are the fields of a dataclass."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Annotated, Any, TypeVar, cast, get_type_hints

import pandas as pd
import typer

from elmesh.cli.console import DecimalOption, DelimiterOption, EncodingOption
from elmesh.cli.errors import check_option
from elmesh.errors import ElmeshError
from elmesh.tables import FILE_TASK, CSVFormat, ProblemKind, agree_targets, find_column, read_data, read_targets
from elmesh.tables.access import task_labels

__all__ = ["TableData", "TableOptions", "check_kind", "with_options"]

Options = TypeVar("Options", bound="TableOptions")


@dataclass(frozen=True)
class TableData:
    """A table: inputs with the task of each row, targets, the kind of problem and the reason for it."""

    X: pd.DataFrame
    y: pd.DataFrame
    kind: ProblemKind
    reason: str

    @property
    def targets(self) -> pd.DataFrame | pd.Series:
        """The targets, a single one as a column."""
        return self.y if self.y.shape[1] > 1 else self.y.iloc[:, 0]


@dataclass(frozen=True)
class TableOptions:
    """The options of a table that is fitted; None where an option is not given."""

    data: Annotated[
        Path,
        typer.Argument(
            metavar="DATA", help="A CSV, .csv.gz or Parquet file, or a folder with one such file for each task."
        ),
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
    use: Annotated[
        list[str] | None,
        typer.Option(metavar="COLUMN", help="Column to learn from even if it only numbers the rows; repeatable."),
    ] = None
    delimiter: DelimiterOption = None
    decimal: DecimalOption = None
    encoding: EncodingOption = None

    def read(self) -> TableData:
        """Read the table, and find what kind of problem it is."""
        frame = read_data(self.data, file_task=self.task is None, csv_format=self.csv_format)
        X = self.inputs(frame)
        kind, reason, whole = agree_targets({"": frame}, self.target, check_kind(self.kind))
        return TableData(X, read_targets(frame, self.target, kind, whole), kind, reason)

    @property
    def column(self) -> str:
        """The column that holds the task."""
        return self.task or FILE_TASK

    @property
    def csv_format(self) -> CSVFormat:
        """How CSV files are written."""
        return CSVFormat(self.delimiter, self.decimal, self.encoding)

    def inputs(self, frame: pd.DataFrame) -> pd.DataFrame:
        """Return a table without its targets and the columns to leave out; raise if a column has two roles."""
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
        # Labels are text, however a file stores them.
        return frame.drop(columns=[*self.target, *drop]).assign(**{self.column: task_labels(frame, self.column)})

    def check_task(self) -> None:
        """Raise if the rows of a single file have no task."""
        if self.task is None and self.data.is_file():
            raise ElmeshError(
                f"{self.data} is one file, so --task must name the column that holds the task; or give a folder with "
                "one file for each task."
            )


def with_options(function: Callable[[Options], None]) -> Callable[..., None]:
    """Return a function of the options as a command is: each is a parameter of its own."""
    make = get_type_hints(function)["options"]

    @functools.wraps(function)
    def command(**options: Any) -> None:
        function(make(**options))

    hints = get_type_hints(make, include_extras=True)
    parameters = [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if field.default is MISSING else field.default,
            annotation=hints[field.name],
        )
        for field in fields(make)
    ]
    # typer takes the parameters of a command from this attribute, which functions may have but types do not declare.
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {}
    return command


def check_kind(kind: str | None) -> ProblemKind | None:
    """Return the value of --kind, if it is given."""
    if kind is not None:
        check_option("--kind", kind, "classification", "regression")
    return cast("ProblemKind | None", kind)
