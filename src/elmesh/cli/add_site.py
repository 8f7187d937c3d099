"""``elmesh add-site``: a new site in a saved model, from its own rows alone."""

from __future__ import annotations

from typing import Annotated

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
)
from elmesh.cli.predict import load_model
from elmesh.cli.update import ChangedOption, ModelArgument, check_changed_folder, save_changed, site_label
from elmesh.errors import ElmeshError
from elmesh.estimators.gains import format_error
from elmesh.tables import CSVFormat, read_data
from elmesh.tables.columns import to_labels
from elmesh.text import count, listed
from elmesh.typing import Label

__all__ = ["add_site"]

# Fewest rows of which a learning curve is made.
_FEWEST = 4


def add_site(
    model: ModelArgument,
    rows: Annotated[str, typer.Argument(metavar="ROWS", help="The rows of the site: a CSV, .csv.gz or Parquet file.")],
    site: Annotated[str, typer.Option(help="Name of the site.")],
    out: ChangedOption = None,
    delimiter: DelimiterOption = None,
    decimal: DecimalOption = None,
    encoding: EncodingOption = None,
    force: ForceOption = False,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Add a site to a saved model, from its own rows alone.

    What all sites have in common stays as it is, and no other site takes part: the new one finds its own part, and its
    noise. The columns are read as in training; the target must be there, a column with the site need not.

    A learning curve shows the error on further rows of the site by the number of rows it has learned from.

    The model is replaced at once when all is done; with --out it is kept.
    """
    output = Output(as_json, quiet)
    out = check_changed_folder(model, out, force)
    with output.warnings_as_notes():
        estimator, schema = load_model(model)
        frame = read_data(rows, csv_format=CSVFormat(delimiter, decimal, encoding))
        name = site_label(site, estimator.tasks_.tolist())
        _check_site_column(frame, schema.task, name)
        y = schema.true_targets(frame)
        curve = None
        if estimator.model_.common is not None and len(frame) >= _FEWEST:
            curve = estimator.site_learning_curve(frame, y)
        estimator.add_site(name, frame, y)
        summary = save_changed(estimator, out, output)
        unit = 1.0
        if curve is not None:
            if schema.kind == "regression" and len(schema.target_columns) == 1:
                unit = float(schema.target_columns[0].std)
            lines = [
                [str(n), format_error(unit * error, curve.unit)]
                for n, error in zip(curve.rows, curve.errors, strict=True)
            ]
            if not quiet:
                output.table(["rows learned from", f"error on further rows ({curve.unit})"], lines)
            output.print(curve.sentence())
        output.print(
            f"{site} is in the model with {count(len(frame), 'row')}, beside "
            f"{count(len(estimator.tasks_) - 1, 'site')}; "
            f"{'the model is replaced' if out == model else f'saved in {out}'}."
        )
        output.result(
            summary
            | {"command": "add-site", "site": name, "rows": len(frame)}
            | {"curve": None if curve is None else curve.to_json()}
        )


def _check_site_column(frame: pd.DataFrame, column: str, name: Label) -> None:
    """Raise if the table has a column of sites, and it names another one."""
    if column not in frame.columns:
        return
    others = sorted({str(found) for found in to_labels(frame[column]) if found is not None} - {str(name)})
    if others:
        raise ElmeshError(
            f'All rows are to be of {name!r}, but column "{column}" has {listed(others)}, too; give a table with the '
            "rows of the new site alone, or one without the column."
        )
