"""``elmesh predict``: from a model and new rows to a table of predictions."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import pandas as pd
import typer

import elmesh
from elmesh.cli.console import ForceOption, JsonOption, Output, QuietOption, check_writable
from elmesh.errors import ElmeshError
from elmesh.tables import FILE_TASK, TableSchema, check_table_name, read_data, write_table

__all__ = ["load_model", "predict", "read_rows"]


def load_model(path: Path) -> tuple[Any, TableSchema]:
    """Return an estimator that ``elmesh fit`` saved, and the schema of its table."""
    model = elmesh.load(path)
    if "table" not in model.extra_:
        raise ElmeshError(
            f"The model in {path} was not made by elmesh fit, so it has no description of its table; use elmesh.load "
            "in Python."
        )
    schema = TableSchema.from_json(model.extra_["table"])
    kind = "classification" if hasattr(model, "classes_") else "regression"
    if schema.kind != kind or len(schema.feature_names) != model.n_features_in_:
        raise ElmeshError(f"The model in {path} and its table description do not match; fit the model again.")
    return model, schema


def read_rows(path: Path, model: Any, schema: TableSchema) -> pd.DataFrame:
    """Return the rows of a file or folder, with their tasks.

    If tasks are the names of files, a model of one task takes any single file as that task's.
    """
    by_file = schema.task == FILE_TASK
    if by_file and len(model.tasks_) == 1 and path.is_file():
        return read_data(path).assign(**{FILE_TASK: str(model.tasks_[0])})
    return read_data(path, file_task=by_file)


def predict(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="Folder that elmesh fit saved.")],
    new: Annotated[Path, typer.Argument(metavar="NEW", help="A CSV or Parquet file, or a folder as for elmesh fit.")],
    out: Annotated[
        Path | None, typer.Option(help="CSV or Parquet file to write; without it, CSV on standard output.")
    ] = None,
    proba: Annotated[bool, typer.Option("--proba", help="Add the probability of each class.")] = False,
    force: ForceOption = False,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Predict new rows with a saved model.

    The columns are read as in training: a missing number is replaced by the training mean, and a category that was not
    in training counts as none of the known ones and is noted. The target may be missing. Rows keep their order.
    """
    output = Output(as_json, quiet)
    if out is not None:
        check_table_name(out)
        check_writable(out, force)
        if out.exists() and new.exists() and out.samefile(new):
            raise ElmeshError(f"{out} is the table to predict; write the predictions to another file.")
    with output.warnings_as_notes():
        estimator, schema = load_model(model)
        if proba and schema.kind == "regression":
            raise ElmeshError("--proba is for classification, and this model is a regression; leave it out.")
        table = _predictions(estimator, schema, read_rows(new, estimator, schema), proba)
        data = {"command": "predict", "kind": schema.kind, "rows": len(table)}
        if out is not None:
            write_table(table, out, force=force)
            output.print(f"{len(table)} predictions in {out}.")
            output.result(data | {"out": str(out)})
        elif as_json:
            output.result(data | {"predictions": table.to_dict("list")})
        else:
            table.to_csv(sys.stdout, index=False)


def _predictions(model: Any, schema: TableSchema, frame: pd.DataFrame, proba: bool) -> pd.DataFrame:
    """Return the task, the prediction (one per target) and with ``proba`` the probabilities of every row."""
    X, tasks = schema.encode(frame)
    predicted = schema.in_units(model.predict(X, tasks=tasks))
    columns: dict[str, Any] = {"prediction": predicted}
    if predicted.ndim > 1:
        names = [f"prediction_{target.name}" for target in schema.target_columns]
        columns = dict(zip(names, predicted.T, strict=True))
    if proba:
        names = [f"probability_{label}" for label in model.classes_]
        columns |= dict(zip(names, model.predict_proba(X, tasks=tasks).T, strict=True))
    named = schema.task != FILE_TASK and schema.task not in columns
    return pd.DataFrame({schema.task if named else "task": tasks} | columns)
