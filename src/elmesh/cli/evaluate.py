"""``elmesh evaluate``: the scores of a model on rows with known targets."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from elmesh.cli.console import (
    DecimalOption,
    DelimiterOption,
    EncodingOption,
    ForceOption,
    JsonOption,
    Output,
    QuietOption,
)
from elmesh.cli.folders import ReportOption, check_report_folder, numbered, write_report
from elmesh.cli.predict import load_model, note_unknown, predict_rows, read_rows, tasks_of
from elmesh.evaluation.scores import Group, evaluate_rows
from elmesh.tables import FILE_TASK, CSVFormat, TableSchema
from elmesh.text import count

__all__ = ["evaluate"]

_FORMATS = {"error_percent": ".2f", "r2": ".4f", "rmse": ".4g"}
_FORMATS |= {f"baseline_{name}": text for name, text in _FORMATS.items()}


def evaluate(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="Folder that elmesh fit saved.")],
    test: Annotated[
        str,
        typer.Argument(metavar="TEST", help="A CSV, .csv.gz or Parquet file, a folder, or DuckDB, with the targets."),
    ],
    out: ReportOption = None,
    delimiter: DelimiterOption = None,
    decimal: DecimalOption = None,
    encoding: EncodingOption = None,
    force: ForceOption = False,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Score a saved model per site, on rows that were not in training.

    Classification: the percentage of wrong rows. Regression: R2, and the root mean square error in the units of the
    target. Both are compared with a baseline that ignores the columns: it predicts the most frequent class, or the
    mean, of the training rows of the site; of all training rows if the site had fewer than five.

    The site with the largest error comes first. Of more than ten sites, those with fewer than five rows are one line
    (--json lists all). The last line is for all rows together, those of sites that were not in training included.

    A page with the errors, their intervals, and the calibration of the model is written into a folder.
    """
    output = Output(as_json, quiet)
    csv_format = CSVFormat(delimiter, decimal, encoding)
    folder = out
    if folder is None and not as_json:
        folder = next(path for path in numbered("elmesh-evaluate") if not path.exists())
    if folder is not None:
        check_report_folder(folder, force)
    with output.warnings_as_notes():
        estimator, schema = load_model(model)
        frame = read_rows(test, estimator, schema, csv_format)
        truth = schema.true_targets(frame)
        tasks = tasks_of(estimator, schema, frame)
        spread = probabilities = None
        if schema.kind == "regression" and estimator.model_.common is not None:
            predicted, spread = predict_rows(estimator, frame, tasks, return_std=True)
        else:
            predicted = predict_rows(estimator, frame, tasks)
        if schema.kind == "classification":
            probabilities = predict_rows(estimator, frame, tasks, "predict_proba")
            new = int((~np.isin(truth, estimator.classes_)).sum())
            if new:
                have, they = ("has", "it counts as an error") if new == 1 else ("have", "they count as errors")
                output.note(f"{count(new, 'row')} {have} a class that was not in training; {they}.")
        note_unknown(output, estimator, tasks)
        found = evaluate_rows(estimator, schema, tasks, truth, predicted, spread, probabilities)
        _print(output, schema, [*found.shown(), found.overall])
        output.print(found.sentence())
        results = {"command": "evaluate", **found.to_json()}
        if folder is not None:
            from elmesh.report import evaluation_page  # noqa: PLC0415 (slow: Matplotlib)

            page = write_report(folder, {**results, "notes": output.notes}, evaluation_page(found))
            output.print(f"Open {page} in a browser.")
        output.result(results)


def _print(output: Output, schema: TableSchema, lines: Sequence[Group]) -> None:
    several = len(schema.target_columns) > 1
    rows = [
        [line.name, *([target] if several else []), str(line.rows)]
        + ["-" if math.isnan(x) else f"{x:{_FORMATS[name]}}" for name, x in found.items() if name in _FORMATS]
        for line in lines
        for target, found in line.scores.items()
    ]
    if schema.kind == "classification":
        titles = ["error %", "error % of the baseline"]
    else:
        titles = ["R2", "RMSE", "RMSE of the baseline"]
    task = "site" if schema.task == FILE_TASK else schema.task
    output.table([task, *(["target"] if several else []), "rows", *titles], rows, left=1 + several)
