"""``elmesh predict``: from a model and new rows to a table of predictions."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from statistics import NormalDist
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import typer
from pandas.api.types import is_numeric_dtype

import elmesh
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
from elmesh.errors import ElmeshError, UnknownSiteWarning
from elmesh.estimators.inputs import labels_of_column
from elmesh.tables import FILE_TASK, CSVFormat, TableSchema, check_table_name, find_column, read_data, write_table
from elmesh.text import count, listed

__all__ = ["load_model", "note_unknown", "predict", "predict_rows", "read_rows", "tasks_of"]


def load_model(path: Path) -> tuple[Any, TableSchema]:
    """Return an estimator that was fitted on a table, and the schema of the table."""
    model = elmesh.load(path)
    if model.table_ is None:
        raise ElmeshError(
            f"The model in {path} was fitted on an array, so it has no description of a table; use elmesh.load in "
            "Python."
        )
    return model, model.table_


def read_rows(path: str, model: Any, schema: TableSchema, csv_format: CSVFormat) -> pd.DataFrame:
    """Return the rows of a file or folder, with their tasks.

    If tasks are the names of files, a model of one task takes any single file as that task's.
    """
    by_file = schema.task == FILE_TASK
    if by_file and len(model.tasks_) == 1 and Path(path).is_file():
        return read_data(path, csv_format=csv_format).assign(**{FILE_TASK: str(model.tasks_[0])})
    return read_data(path, file_task=by_file, csv_format=csv_format)


def tasks_of(model: Any, schema: TableSchema, frame: pd.DataFrame) -> npt.NDArray[Any]:
    """Return the task of each row of a table, of the type of the model's own."""
    return labels_of_column(frame, schema.task, model.tasks_.tolist())


def predict_rows(
    model: Any, frame: pd.DataFrame, tasks: npt.NDArray[Any], method: str = "predict", **options: Any
) -> Any:
    """Predict rows of a table; commands count rows of unknown tasks themselves."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnknownSiteWarning)
        return getattr(model, method)(frame, tasks=tasks, **options)


def note_unknown(output: Output, model: Any, tasks: npt.NDArray[Any]) -> None:
    """Note how many rows are of sites that the model does not know, and which these are."""
    unknown = tasks[~np.isin(tasks, model.tasks_)]
    if n := len(unknown):
        names, were = listed(np.unique(unknown).tolist()), "was" if len(set(unknown.tolist())) == 1 else "were"
        output.note(
            f"{n} of {count(len(tasks), 'row')} {'is' if n == 1 else 'are'} of {names}, which {were} not in training; "
            f"{'it is' if n == 1 else 'they are'} predicted by what all sites have in common."
        )
        known = {str(task).casefold(): task for task in model.tasks_.tolist()}
        alike = [known[name.casefold()] for name in map(str, np.unique(unknown).tolist()) if name.casefold() in known]
        if alike:
            output.note(f"Some of them differ in case alone from {listed(alike)}, which the model knows.")


def predict(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="Folder that elmesh fit saved.")],
    new: Annotated[
        str, typer.Argument(metavar="NEW", help="A CSV, .csv.gz or Parquet file, a folder, or DuckDB, as for fit.")
    ],
    out: Annotated[
        Path | None, typer.Option(help="CSV or Parquet file to write; without it, CSV on standard output.")
    ] = None,
    proba: Annotated[bool, typer.Option("--proba", help="Add the probability of each class.")] = False,
    interval: Annotated[
        float | None,
        typer.Option(
            metavar="SHARE",
            help="With a regression: add the ends of an interval that holds this share of new rows, such as 0.9.",
            show_default="none",
        ),
    ] = None,
    identifiers: Annotated[
        list[str] | None,
        typer.Option("--id", metavar="COLUMN", help="Column of the table to keep beside its predictions; repeatable."),
    ] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Keep all columns of the table.")] = False,
    delimiter: DelimiterOption = None,
    decimal: DecimalOption = None,
    encoding: EncodingOption = None,
    force: ForceOption = False,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Predict new rows with a saved model.

    The columns are read as in training: a missing number is replaced by the training mean, and a category that was not
    in training counts as none of the known ones and is noted. The target may be missing. Rows keep their order; --id
    and --keep copy columns of the table beside the predictions.

    Rows of a task that was not in training are predicted by what all tasks have in common; a column known_site then
    marks them. Models without a common part refuse them.
    """
    output = Output(as_json, quiet)
    csv_format = CSVFormat(delimiter, decimal, encoding)
    if out is not None:
        check_table_name(out)
        check_writable(out, force)
        if out.exists() and Path(new).exists() and out.samefile(new):
            raise ElmeshError(f"{out} is the table to predict; write the predictions to another file.")
    with output.warnings_as_notes():
        estimator, schema = load_model(model)
        if proba and schema.kind == "regression":
            raise ElmeshError("--proba is for classification, and this model is a regression; leave it out.")
        if interval is not None:
            _check_interval(interval, estimator, schema)
        rows = read_rows(new, estimator, schema, csv_format)
        kept = _kept_columns(rows, schema, identifiers or (), keep)
        table, tasks = _predictions(estimator, schema, rows, kept, proba, interval)
        note_unknown(output, estimator, tasks)
        known = np.isin(tasks, estimator.tasks_)
        data = {"command": "predict", "kind": schema.kind, "rows": len(table), "unknown_rows": int(np.sum(~known))}
        if out is not None:
            write_table(table, out, force=force)
            output.print(f"{len(table)} predictions in {out}.")
            output.result(data | {"out": str(out)})
        elif as_json:
            output.result(data | {"predictions": _to_json(table, kept)})
        else:
            table.to_csv(sys.stdout, index=False)


def _check_interval(share: float, model: Any, schema: TableSchema) -> None:
    if schema.kind == "classification":
        raise ElmeshError("--interval is for a regression, and this model is a classification; use --proba instead.")
    if not 0 < share < 1:
        raise ElmeshError(f"--interval must be above 0 and below 1, such as 0.9; got {share:g}.")
    if model.model_.common is None:
        raise ElmeshError(
            "This model has no intervals, because it has no common part; fit it with "
            "--solver mesh-elm, or leave --interval out."
        )


def _kept_columns(frame: pd.DataFrame, schema: TableSchema, identifiers: Sequence[str], keep: bool) -> list[str]:
    """Return the columns of a table to keep beside its predictions; the task is among these anyway."""
    for name in identifiers:
        find_column(frame, name)
    names = [str(name) for name in frame.columns] if keep else list(dict.fromkeys(identifiers))
    return [name for name in names if name not in (schema.task, FILE_TASK)]


def _to_json(table: pd.DataFrame, kept: Sequence[str]) -> dict[str, list[Any]]:
    """Return the columns of a table of predictions; kept columns are text unless they are numbers or true and false."""
    texts = {name: table[name].map(str, na_action="ignore") for name in kept if not is_numeric_dtype(table[name])}
    filled = table.assign(**texts).astype(object)
    return {str(name): column.where(column.notna(), None).tolist() for name, column in filled.items()}


def _predictions(
    model: Any, schema: TableSchema, frame: pd.DataFrame, kept: Sequence[str], proba: bool, interval: float | None
) -> tuple[pd.DataFrame, npt.NDArray[Any]]:
    """Return a table and the task of each row.

    The table has the task, the kept columns and the prediction of each row (one per target), with ``proba`` the
    probabilities, and with ``interval`` the ends of the interval that holds this share of new rows.
    """
    tasks = tasks_of(model, schema, frame)
    ends = []
    if interval is None:
        predicted = predict_rows(model, frame, tasks)
    else:
        predicted, std = predict_rows(model, frame, tasks, return_std=True)
        width = NormalDist().inv_cdf((1 + interval) / 2) * std
        ends = [("lower", predicted - width), ("upper", predicted + width)]
    columns: dict[str, Any] = {}
    for name, values in [("prediction", predicted), *ends]:
        if values.ndim == 1:
            columns[name] = values
        else:
            names = [f"{name}_{target.name}" for target in schema.target_columns]
            columns |= dict(zip(names, values.T, strict=True))
    if proba:
        names = [f"probability_{label}" for label in model.classes_]
        columns |= dict(zip(names, predict_rows(model, frame, tasks, "predict_proba").T, strict=True))
    known = np.isin(tasks, model.tasks_)
    if not known.all():
        columns["known_site"] = known
    named = schema.task != FILE_TASK and schema.task not in columns
    first = schema.task if named else "task"
    for name in kept:
        if name in (first, *columns):
            raise ElmeshError(
                f'The table has a column "{name}", which is also the name of a column of predictions; rename it, or '
                "keep other columns with --id."
            )
    columns = {name: frame[name].reset_index(drop=True) for name in kept} | columns
    return pd.DataFrame({first: tasks} | columns), tasks
