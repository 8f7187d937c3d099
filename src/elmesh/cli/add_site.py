"""``elmesh add-site``: a new site in a saved model, from its own rows alone."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from elmesh.cli.console import (
    DecimalOption,
    DelimiterOption,
    EncodingOption,
    ForceOption,
    JsonOption,
    Output,
    QuietOption,
    check_model_folder,
)
from elmesh.cli.predict import load_model
from elmesh.errors import ElmeshError
from elmesh.estimators.gains import format_error
from elmesh.tables import CSVFormat, read_data
from elmesh.text import count
from elmesh.typing import Label

__all__ = ["add_site"]

# Fewest rows of which a learning curve is made.
_FEWEST = 4


def add_site(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="Folder that elmesh fit saved.")],
    rows: Annotated[Path, typer.Argument(metavar="ROWS", help="The rows of the site: a CSV, .csv.gz or Parquet file.")],
    site: Annotated[str, typer.Option(help="Name of the site.")],
    out: Annotated[Path, typer.Option(help="Folder to save the model with the site in.")],
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
    """
    output = Output(as_json, quiet)
    check_model_folder(out, force)
    if out.exists() and model.exists() and out.samefile(model):
        raise ElmeshError(f"{out} is the model itself; save the model with the site in another folder.")
    with output.warnings_as_notes():
        estimator, schema = load_model(model)
        frame = read_data(rows, csv_format=CSVFormat(delimiter, decimal, encoding))
        name = _label(site, estimator.tasks_.tolist())
        y = schema.targets(frame)
        curve = None
        if estimator.model_.common is not None and len(frame) >= _FEWEST:
            curve = estimator.site_learning_curve(frame, y)
        estimator.add_site(name, frame, y)
        estimator.save(out, overwrite=force)
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
            f"{count(len(estimator.tasks_) - 1, 'task')}; saved in {out}."
        )
        output.result(
            {
                "command": "add-site",
                "site": name,
                "rows": len(frame),
                "tasks": estimator.tasks_.tolist(),
                "curve": None if curve is None else curve.to_json(),
                "model": str(out),
            }
        )


def _label(site: str, known: list[Label]) -> Label:
    """Return the name of a site as tables have it, as a whole number if those of the model are."""
    site = site.strip()
    if not site:
        raise ElmeshError("--site is empty; give the name that rows of the site will have.")
    if not isinstance(known[0], int):
        return site
    try:
        return int(site)
    except ValueError:
        raise ElmeshError(f"--site is {site!r}; the sites of this model are whole numbers.") from None
