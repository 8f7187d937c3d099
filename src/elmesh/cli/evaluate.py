"""``elmesh evaluate``: how well a model from ``elmesh fit`` does on rows whose targets are known."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
import typer

from elmesh.cli.console import JsonOption, Output, QuietOption
from elmesh.cli.predict import open_model, read_rows
from elmesh.tables import FILE_TASK, TableSchema

__all__ = ["evaluate", "scores"]

Scores = dict[str, float]


def scores(truth: npt.NDArray[Any], predicted: npt.NDArray[Any], kind: str) -> Scores:
    """Score predictions.

    Parameters
    ----------
    truth, predicted
        Classes or numbers, one for each row.
    kind
        ``"classification"`` or ``"regression"``.

    Returns
    -------
    dict
        ``error_percent``, or ``r2`` and ``rmse``; ``r2`` is NaN where all of ``truth`` is one value.

    Examples
    --------
    >>> scores(np.array(["a", "b"]), np.array(["a", "a"]), "classification")
    {'error_percent': 50.0}
    >>> scores(np.array([1.0, 3.0]), np.array([1.0, 1.0]), "regression")["r2"]
    -1.0
    """
    if kind == "classification":
        return {"error_percent": 100.0 * float(np.mean(truth != predicted))}
    squares = float(np.sum((truth - predicted) ** 2))
    spread = float(np.sum((truth - truth.mean()) ** 2))
    return {"r2": 1.0 - squares / spread if spread > 0 else math.nan, "rmse": math.sqrt(squares / len(truth))}


def evaluate(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="Folder that elmesh fit saved.")],
    test: Annotated[Path, typer.Argument(metavar="TEST", help="A CSV or Parquet file, or a folder, with the targets.")],
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Score a saved model, task by task, on rows it has not seen.

    Classification: the share of rows in error. Regression: R2 and the root mean square error in the target's
    units. The last line is over all rows together.
    """
    output = Output(as_json, quiet)
    with output.warnings_as_notes():
        estimator, schema = open_model(model)
        frame = read_rows(test, estimator, schema)
        truth = schema.in_units(schema.targets(frame))
        X, tasks = schema.encode(frame)
        predicted = schema.in_units(estimator.predict(X, tasks=tasks))
        if schema.kind == "classification":
            new = int((~np.isin(truth, estimator.classes_)).sum())
            if new:
                output.note(f"{new} rows have a class that training never had; they count as errors.")
        groups = {str(task): tasks == task for task in estimator.tasks_ if (tasks == task).any()}
        found = {task: _by_target(schema, truth[rows], predicted[rows]) for task, rows in groups.items()}
        overall = _by_target(schema, truth, predicted)
        _show(output, schema, {task: (int(groups[task].sum()), found[task]) for task in found}, len(X), overall)
        output.result(
            {
                "command": "evaluate",
                "kind": schema.kind,
                "rows": len(X),
                **_flat(overall),
                "tasks": {task: {"rows": int(groups[task].sum()), **_flat(found[task])} for task in found},
            }
        )


def _by_target(schema: TableSchema, truth: npt.NDArray[Any], predicted: npt.NDArray[Any]) -> dict[str, Scores]:
    """Scores of each target."""
    if truth.ndim == 1:
        return {schema.target_columns[0].name: scores(truth, predicted, schema.kind)}
    return {
        target.name: scores(truth[:, i], predicted[:, i], schema.kind) for i, target in enumerate(schema.target_columns)
    }


def _flat(found: dict[str, Scores]) -> dict[str, Any]:
    """Give the one target's scores, or those of several by name."""
    return dict(next(iter(found.values()))) if len(found) == 1 else {"targets": found}


def _show(
    output: Output,
    schema: TableSchema,
    tasks: dict[str, tuple[int, dict[str, Scores]]],
    rows: int,
    overall: dict[str, Scores],
) -> None:
    several = len(schema.target_columns) > 1
    figures = {"error_percent": "error %", "r2": "R2", "rmse": "RMSE"}
    lines = [
        [name, *([target] if several else []), str(count), *(_figure(key, value) for key, value in found.items())]
        for name, (count, by_target) in [*tasks.items(), ("all", (rows, overall))]
        for target, found in by_target.items()
    ]
    heads = [figures[key] for key in next(iter(overall.values()))]
    task = "task" if schema.task == FILE_TASK else schema.task
    output.table([task, *(["target"] if several else []), "rows", *heads], lines, left=1 + several)


def _figure(name: str, value: float) -> str:
    if math.isnan(value):
        return "-"
    return {"error_percent": f"{value:.2f}", "r2": f"{value:.4f}"}.get(name, f"{value:.4g}")
