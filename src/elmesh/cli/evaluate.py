"""``elmesh evaluate``: the scores of a model on rows with known targets."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
import typer

from elmesh.cli.console import DecimalOption, DelimiterOption, EncodingOption, JsonOption, Output, QuietOption
from elmesh.cli.predict import load_model, note_unknown, predict_rows, read_rows, tasks_of
from elmesh.tables import FILE_TASK, CSVFormat, TableSchema
from elmesh.text import count

__all__ = ["evaluate"]

Scores = dict[str, float]
_FORMATS = {"error_percent": ".2f", "r2": ".4f", "rmse": ".4g"}
_FORMATS |= {f"baseline_{name}": text for name, text in _FORMATS.items()}
# Tasks with fewer rows are shown in one line, if there are more tasks than this.
_FEW_ROWS, _FEW_TASKS = 5, 10


@dataclass(frozen=True)
class _Line:
    """A line of the results: a task, several small tasks, or all rows."""

    name: str
    rows: int
    scores: dict[str, Scores]  # by target

    @property
    def error(self) -> float:
        """The error of the first target, by which lines are sorted."""
        first = next(iter(self.scores.values()))
        return first.get("error_percent", first.get("rmse", math.nan))


def evaluate(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="Folder that elmesh fit saved.")],
    test: Annotated[
        Path, typer.Argument(metavar="TEST", help="A CSV, .csv.gz or Parquet file, or a folder, with the targets.")
    ],
    delimiter: DelimiterOption = None,
    decimal: DecimalOption = None,
    encoding: EncodingOption = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Score a saved model per task, on rows that were not in training.

    Classification: the percentage of wrong rows. Regression: R2, and the root mean square error in the units of the
    target. Both are compared with a baseline that ignores the columns: it predicts the most frequent class, or the
    mean. If the model has a common part, these are of all training rows, otherwise of the training rows of the task.

    The task with the largest error comes first. Of more than ten tasks, those with fewer than five rows are one line
    (--json lists all). The last line is for all rows together, those of tasks that were not in training included.
    """
    output = Output(as_json, quiet)
    csv_format = CSVFormat(delimiter, decimal, encoding)
    with output.warnings_as_notes():
        estimator, schema = load_model(model)
        frame = read_rows(test, estimator, schema, csv_format)
        truth = schema.in_units(schema.targets(frame))
        tasks = tasks_of(estimator, schema, frame)
        predicted = predict_rows(estimator, frame, tasks)
        known = np.isin(tasks, estimator.tasks_)
        note_unknown(output, estimator, known)
        if schema.kind == "classification":
            new = int((~np.isin(truth, estimator.classes_)).sum())
            if new:
                have, they = ("has", "it counts as an error") if new == 1 else ("have", "they count as errors")
                output.note(f"{count(new, 'row')} {have} a class that was not in training; {they}.")
        baseline = _baseline(estimator, schema, tasks)

        def score(name: str, rows: npt.NDArray[np.bool_]) -> _Line:
            return _Line(name, int(rows.sum()), _scores(schema, truth[rows], predicted[rows], baseline[rows]))

        by_task = {str(task): score(str(task), tasks == task) for task in estimator.tasks_ if (tasks == task).any()}
        overall = score("all", np.ones(len(frame), dtype=np.bool_))
        few = [name for name, line in by_task.items() if line.rows < _FEW_ROWS] if len(by_task) > _FEW_TASKS else []
        lines = [line for name, line in by_task.items() if name not in few or len(few) == 1]
        lines.sort(key=lambda line: -line.error)
        if len(few) > 1:
            lines.append(score(f"{len(few)} with fewer than {_FEW_ROWS} rows", np.isin(tasks, few)))
        _print(output, schema, [*lines, overall], of_task=estimator.model_.common is None)
        output.result(
            {
                "command": "evaluate",
                "kind": schema.kind,
                "rows": len(frame),
                "unknown_rows": int(np.sum(~known)),
                **_flat(overall.scores),
                "tasks": {task: {"rows": line.rows, **_flat(line.scores)} for task, line in by_task.items()},
            }
        )


def _baseline(model: Any, schema: TableSchema, tasks: npt.NDArray[np.str_]) -> npt.NDArray[Any]:
    """Return for each row the most frequent class or the mean of the training rows that the model knows.

    These are all of them if the model has a common part, and otherwise those of the row's task.
    """
    parts = {task: (head.t_mean, head.classes) for task, head in model.model_.heads.items()}
    common = model.model_.common
    if common is not None:
        parts |= {task: (common.t_mean, getattr(model, "classes_", None)) for task in set(tasks.tolist()) - set(parts)}
    constants = {task: mean if classes is None else classes[np.argmax(mean)] for task, (mean, classes) in parts.items()}
    return schema.in_units(np.array([constants[task] for task in tasks.tolist()]))


def _scores(
    schema: TableSchema, truth: npt.NDArray[Any], predicted: npt.NDArray[Any], baseline: npt.NDArray[Any]
) -> dict[str, Scores]:
    """Return the scores of each target: ``error_percent``, or ``r2`` and ``rmse``; and those of the baseline.

    ``r2`` is NaN if all true values are equal.
    """
    if schema.kind == "classification":
        errors = [100.0 * float(np.mean(truth != guess)) for guess in (predicted, baseline)]
        return {
            schema.target_columns[0].name: dict(zip(("error_percent", "baseline_error_percent"), errors, strict=True))
        }
    shape = (len(truth), len(schema.target_columns))
    found = {}
    columns = zip(*(values.reshape(shape).T for values in (truth, predicted, baseline)), strict=True)
    for target, (y, guess, mean) in zip(schema.target_columns, columns, strict=True):
        squares, spread = float(np.sum((y - guess) ** 2)), float(np.sum((y - y.mean()) ** 2))
        found[target.name] = {
            "r2": 1.0 - squares / spread if spread > 0 else math.nan,
            "rmse": math.sqrt(squares / len(y)),
            "baseline_rmse": math.sqrt(float(np.mean((y - mean) ** 2))),
        }
    return found


def _flat(found: dict[str, Scores]) -> dict[str, Any]:
    """Return the scores of a single target, or those of several by name."""
    return dict(next(iter(found.values()))) if len(found) == 1 else {"targets": found}


def _print(output: Output, schema: TableSchema, lines: Sequence[_Line], *, of_task: bool) -> None:
    several = len(schema.target_columns) > 1
    rows = [
        [line.name, *([target] if several else []), str(line.rows), *map(_format, found.items())]
        for line in lines
        for target, found in line.scores.items()
    ]
    own = "the task's " if of_task else ""
    if schema.kind == "classification":
        titles = ["error %", f"error % of {own}most frequent class"]
    else:
        titles = ["R2", "RMSE", f"RMSE of {own}training mean"]
    task = "task" if schema.task == FILE_TASK else schema.task
    output.table([task, *(["target"] if several else []), "rows", *titles], rows, left=1 + several)


def _format(score: tuple[str, float]) -> str:
    name, value = score
    return "-" if math.isnan(value) else f"{value:{_FORMATS[name]}}"
