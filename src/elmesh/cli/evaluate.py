"""``elmesh evaluate``: the scores of a model on rows with known targets."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
import typer

from elmesh.cli.console import JsonOption, Output, QuietOption
from elmesh.cli.predict import load_model, read_rows
from elmesh.tables import FILE_TASK, TableSchema

__all__ = ["evaluate"]

Scores = dict[str, float]
_COLUMNS = {"error_percent": ("error %", ".2f"), "r2": ("R2", ".4f"), "rmse": ("RMSE", ".4g")}


def evaluate(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="Folder that elmesh fit saved.")],
    test: Annotated[Path, typer.Argument(metavar="TEST", help="A CSV or Parquet file, or a folder, with the targets.")],
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Score a saved model per task, on rows that were not in training.

    Classification: the percentage of wrong rows. Regression: R2, and the root mean square error in the units of the
    target. The last line is for all rows together.
    """
    output = Output(as_json, quiet)
    with output.warnings_as_notes():
        estimator, schema = load_model(model)
        frame = read_rows(test, estimator, schema)
        truth = schema.in_units(schema.targets(frame))
        X, tasks = schema.encode(frame)
        predicted = schema.in_units(estimator.predict(X, tasks=tasks))
        if schema.kind == "classification":
            new = int((~np.isin(truth, estimator.classes_)).sum())
            if new:
                output.note(f"{new} rows have a class that was not in training; they count as errors.")
        groups = {str(task): tasks == task for task in estimator.tasks_ if (tasks == task).any()}
        by_task = {
            task: (int(rows.sum()), _scores(schema, truth[rows], predicted[rows])) for task, rows in groups.items()
        }
        overall = _scores(schema, truth, predicted)
        _print(output, schema, [*by_task.items(), ("all", (len(X), overall))])
        output.result(
            {
                "command": "evaluate",
                "kind": schema.kind,
                "rows": len(X),
                **_flat(overall),
                "tasks": {task: {"rows": rows, **_flat(found)} for task, (rows, found) in by_task.items()},
            }
        )


def _scores(schema: TableSchema, truth: npt.NDArray[Any], predicted: npt.NDArray[Any]) -> dict[str, Scores]:
    """Return ``error_percent``, or ``r2`` and ``rmse``, of each target; ``r2`` is NaN if all true values are equal."""
    if schema.kind == "classification":
        return {schema.target_columns[0].name: {"error_percent": 100.0 * float(np.mean(truth != predicted))}}
    shape = (len(truth), len(schema.target_columns))
    found = {}
    for target, y, guess in zip(schema.target_columns, truth.reshape(shape).T, predicted.reshape(shape).T, strict=True):
        squares, spread = float(np.sum((y - guess) ** 2)), float(np.sum((y - y.mean()) ** 2))
        r2 = 1.0 - squares / spread if spread > 0 else math.nan
        found[target.name] = {"r2": r2, "rmse": math.sqrt(squares / len(y))}
    return found


def _flat(found: dict[str, Scores]) -> dict[str, Any]:
    """Return the scores of a single target, or those of several by name."""
    return dict(next(iter(found.values()))) if len(found) == 1 else {"targets": found}


def _print(output: Output, schema: TableSchema, lines: Sequence[tuple[str, tuple[int, dict[str, Scores]]]]) -> None:
    several = len(schema.target_columns) > 1
    rows = [
        [name, *([target] if several else []), str(count), *(_format(key, value) for key, value in found.items())]
        for name, (count, by_target) in lines
        for target, found in by_target.items()
    ]
    titles = [_COLUMNS[key][0] for key in next(iter(lines[-1][1][1].values()))]
    task = "task" if schema.task == FILE_TASK else schema.task
    output.table([task, *(["target"] if several else []), "rows", *titles], rows, left=1 + several)


def _format(name: str, value: float) -> str:
    return "-" if math.isnan(value) else f"{value:{_COLUMNS[name][1]}}"
