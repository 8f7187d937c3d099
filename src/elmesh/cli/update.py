"""``elmesh update`` and ``elmesh forget``: rows that come later, and rows that must go, without the other rows."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

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
    check_model_folder,
)
from elmesh.cli.model_report import measure_gains, write_model_report
from elmesh.cli.predict import load_model, read_rows, tasks_of
from elmesh.cli.summary import print_gains, summarize
from elmesh.errors import ElmeshError
from elmesh.estimators.storage import CARD
from elmesh.files import atomic_write
from elmesh.tables import CSVFormat, read_data
from elmesh.tables.stream_stats import read_weights
from elmesh.text import count
from elmesh.typing import Label

__all__ = ["ChangedOption", "ModelArgument", "check_changed_folder", "forget", "save_changed", "site_label", "update"]

ModelArgument = Annotated[Path, typer.Argument(metavar="MODEL", help="Folder that elmesh fit or elmesh agent saved.")]
ChangedOption = Annotated[
    Path | None, typer.Option(help="Folder to save the changed model in.", show_default="the model itself is replaced")
]
_WeightOption = Annotated[
    str | None, typer.Option(metavar="COLUMN", help="Column with how often each row counts.", show_default="once")
]
_SiteOption = Annotated[
    str | None, typer.Option(help="The site of all rows.", show_default="as the column of sites has it")
]
_OWN = "What this site has in common with others was learned with them, and stays as it is."


def update(
    model: ModelArgument,
    rows: Annotated[str, typer.Argument(metavar="ROWS", help="Further rows: as for elmesh fit, with the targets.")],
    site: _SiteOption = None,
    out: ChangedOption = None,
    weight: _WeightOption = None,
    again: Annotated[
        bool, typer.Option("--again", help="Although the model has learned from all of these rows already.")
    ] = False,
    delimiter: DelimiterOption = None,
    decimal: DecimalOption = None,
    encoding: EncodingOption = None,
    force: ForceOption = False,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Learn from further rows as well, without the earlier ones.

    The model's folder has statistics of the rows that it was learned from; those of further rows are added. The result
    is that of a fit of all rows with the hidden units, the scales of columns, the categories and the classes of the
    first one. Tasks may be new.

    The model of a site in a network changes its own part alone: what it has in common with other sites stays as it is.
    So does that of a fit with differential privacy.

    The model is replaced at once when all is done, its page and its card too; with --out it is kept, and the changed
    one is saved in another folder.
    """
    output = Output(as_json, quiet)
    out = check_changed_folder(model, out, force)
    with output.warnings_as_notes():
        estimator, given = _read(model, rows, CSVFormat(delimiter, decimal, encoding), site, weight)
        n, known = len(given["X"]), estimator.count_known_rows(**given)
        if known == n and not again:
            raise ElmeshError(
                f"The model has learned from all {count(n, 'row')} already, so that they would count twice; give "
                "--again if that is meant."
            )
        if known:
            output.note(
                f"{known} of {count(n, 'row')} {'is' if known == 1 else 'are'} equal to rows that the model "
                "has learned from, and count again; elmesh forget takes them away."
            )
        with output.bar("Learning") as show:
            show(0, 1, count(n, "further row"))
            estimator.partial_fit(**given)
        _finish("update", f"{count(n, 'row')} added", estimator, model, out, output, n)


def forget(
    model: ModelArgument,
    rows: Annotated[
        str, typer.Argument(metavar="ROWS", help="Rows that the model was learned from: same columns and values.")
    ],
    site: _SiteOption = None,
    out: ChangedOption = None,
    weight: _WeightOption = None,
    delimiter: DelimiterOption = None,
    decimal: DecimalOption = None,
    encoding: EncodingOption = None,
    force: ForceOption = False,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Learn again as if some rows had never been there, without the other rows.

    The result is that of a fit of the other rows with the hidden units, the scales of columns, the categories and the
    classes of the first one, to which the rows may have contributed; fit again to be rid of that too. A row that the
    model was not learned from is an error, and nothing is changed then. A task that has no rows left is no longer in
    the model.

    The model of a site in a network changes its own part alone: what it has in common with other sites still follows
    from the rows as well. So does that of a fit with differential privacy, which bounds what it reveals about any row.

    The model is replaced at once when all is done, its page and its card too. Copies that were made of it, and models
    of other sites, are not changed.
    """
    output = Output(as_json, quiet)
    out = check_changed_folder(model, out, force)
    with output.warnings_as_notes():
        estimator, given = _read(model, rows, CSVFormat(delimiter, decimal, encoding), site, weight)
        n, before = len(given["X"]), set(estimator.tasks_.tolist())
        with output.bar("Learning") as show:
            show(0, 1, f"without {count(n, 'row')}")
            estimator.forget(**given)
        for task in sorted(before - set(estimator.tasks_.tolist())):
            output.note(f"No rows of {task} are left; it is no longer in the model.")
        _finish("forget", f"{count(n, 'row')} forgotten", estimator, model, out, output, n)


def check_changed_folder(model: Path, out: Path | None, force: bool) -> Path:
    """Return the folder of a changed model, having checked that it can be written: by default that of the model."""
    same = out is None or (out.exists() and model.exists() and out.samefile(model))
    if out is None or same:
        check_model_folder(model, force=True)
        return model
    check_model_folder(out, force)
    return out


def _read(
    model: Path, rows: str, csv_format: CSVFormat, site: str | None, weight: str | None
) -> tuple[Any, dict[str, Any]]:
    """Return the estimator, and the rows as its methods take them."""
    estimator, schema = load_model(model)
    if site is None:
        frame = read_rows(rows, estimator, schema, csv_format)
        tasks = tasks_of(estimator, schema, frame)
    else:
        frame = read_data(rows, csv_format=csv_format)
        tasks = np.full(len(frame), site_label(site, estimator.tasks_.tolist()))
    weights = None if weight is None else read_weights(frame, weight)
    return estimator, {"X": frame, "y": schema.true_targets(frame), "tasks": tasks, "sample_weight": weights}


def site_label(site: str, known: list[Label]) -> Label:
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


def _finish(command: str, done: str, estimator: Any, model: Path, out: Path, output: Output, rows: int) -> None:
    """Save a changed model, and report."""
    summary = save_changed(estimator, out, output)
    output.print(
        f"{done}; the model is of {count(summary['rows'], 'row')} of {count(len(estimator.tasks_), 'site')} now, and "
        f"{'replaced' if out == model else f'saved in {out}'}."
    )
    output.result(summary | {"command": command, "changed_rows": rows})


def save_changed(estimator: Any, out: Path, output: Output) -> dict[str, Any]:
    """Save a changed model with its page and its card, print who gains, and return the summary."""
    estimator.save(out, overwrite=True)
    statistics = estimator.statistics_
    rows = 0 if statistics is None else sum(site.n_rows for site in statistics.sites.values())
    summary = summarize(estimator, rows) | {"model": str(out)}
    if statistics is None:  # of a model of an earlier version
        return summary
    if statistics.joint:
        found = write_model_report(estimator, out, summary, output)
        if found is not None:
            print_gains(output, *found)
        return summary
    gains = measure_gains(estimator, output, pooled=False)
    if gains is not None:
        atomic_write(out / CARD, estimator.model_card(gains).encode())
        summary["gains"] = gains.to_json()
        output.print(gains.sentence())
    output.print(_OWN)
    return summary
