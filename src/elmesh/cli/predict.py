"""``elmesh predict``: a model from ``elmesh fit`` and new rows, to a table of predictions."""

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

__all__ = ["open_model", "predict", "predictions", "read_rows"]


def open_model(path: Path) -> tuple[Any, TableSchema]:
    """Load a model that ``elmesh fit`` made.

    Parameters
    ----------
    path
        Its folder.

    Returns
    -------
    tuple
        The estimator, and how a table becomes its input.
    """
    model = elmesh.load(path)
    if "table" not in model.extra_:
        raise ElmeshError(
            f"The model in {path} was not made by elmesh fit, so it does not say how to read a table; use "
            "elmesh.load in Python."
        )
    schema = TableSchema.from_json(model.extra_["table"])
    kind = "classification" if hasattr(model, "classes_") else "regression"
    if schema.kind != kind or len(schema.feature_names) != model.n_features_in_:
        raise ElmeshError(f"The model in {path} and its table description do not match; fit the model again.")
    return model, schema


def read_rows(path: Path, model: Any, schema: TableSchema) -> pd.DataFrame:
    """Read rows for a model, each with its task.

    Parameters
    ----------
    path
        A file or a folder.
    model, schema
        The estimator, and how a table becomes its input. Where files are named after tasks, a model of one task takes
        any single file for that task's.
    """
    by_file = schema.task == FILE_TASK
    if by_file and len(model.tasks_) == 1 and path.is_file():
        return read_data(path).assign(**{FILE_TASK: str(model.tasks_[0])})
    return read_data(path, file_task=by_file)


def predictions(model: Any, schema: TableSchema, frame: pd.DataFrame, proba: bool = False) -> pd.DataFrame:
    """Predict every row of a table, in its order.

    Parameters
    ----------
    model
        A fitted estimator.
    schema
        How the table becomes its input.
    frame
        The rows.
    proba
        Whether to add a column of probabilities for each class.

    Returns
    -------
    pandas.DataFrame
        The task, ``prediction`` (or one ``prediction_<target>`` for each of several) and
        ``probability_<class>``.
    """
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


def predict(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="Folder that elmesh fit saved.")],
    new: Annotated[
        Path, typer.Argument(metavar="NEW", help="A CSV or Parquet file, or a folder as elmesh fit takes it.")
    ],
    out: Annotated[
        Path | None,
        typer.Option(help="CSV or Parquet file to write; without it, CSV on standard output."),
    ] = None,
    proba: Annotated[bool, typer.Option("--proba", help="Add the probability of each class.")] = False,
    force: ForceOption = False,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Predict new rows with a saved model.

    The columns are read as in training: a missing number takes the training mean, a category that training
    never had counts as none of the known ones and is noted. The target need not be there. Rows keep their order.
    """
    output = Output(as_json, quiet)
    if out is not None:
        check_table_name(out)
        check_writable(out, force)
        if out.exists() and new.exists() and out.samefile(new):
            raise ElmeshError(f"{out} is the table to predict; write the predictions to another file.")
    with output.warnings_as_notes():
        estimator, schema = open_model(model)
        if proba and schema.kind == "regression":
            raise ElmeshError("--proba is for classification, and this model is a regression; leave it out.")
        frame = read_rows(new, estimator, schema)
        table = predictions(estimator, schema, frame, proba)
        data = {"command": "predict", "kind": schema.kind, "rows": len(table)}
        if out is not None:
            write_table(table, out, force=force)
            output.say(f"{len(table)} predictions in {out}.")
            output.result(data | {"out": str(out)})
        elif as_json:
            output.result(data | {"predictions": table.to_dict("list")})
        else:
            table.to_csv(sys.stdout, index=False)
