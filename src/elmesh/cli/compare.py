"""``elmesh compare``: elmesh, each site alone and other methods on one table, in nested cross-validation."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

import elmesh
from elmesh.cli.console import ForceOption, JsonOption, Output, QuietOption
from elmesh.cli.errors import INTERRUPTED, fail
from elmesh.cli.fit_options import TableOptions, check_kind, with_options
from elmesh.cli.folders import RESULTS, ReportOption, check_report_folder, numbered, write_report
from elmesh.errors import ElmeshError
from elmesh.evaluation.comparison import Comparison
from elmesh.evaluation.rivals import METHODS, OWN
from elmesh.tables import read_data
from elmesh.trial_log import OtherTrialsError

__all__ = ["compare"]

LOG = "folds.jsonl"
_OTHERS = ", ".join(name for name in METHODS if name != OWN)
# Most sites that are listed.
_MOST_SITES = 15


@dataclass(frozen=True, kw_only=True)
class CompareOptions(TableOptions):
    """The options of ``elmesh compare``."""

    out: ReportOption = None
    methods: Annotated[
        str | None,
        typer.Option(
            metavar="LIST",
            help=f"Methods to compare with, separated by commas: {_OTHERS}.",
            show_default="all",
        ),
    ] = None
    folds: Annotated[int, typer.Option(min=2, help="Outer folds.")] = 5
    repeats: Annotated[
        int | None,
        typer.Option(min=1, help="How often rows are divided into folds.", show_default="3 below 2,000 rows, else 1"),
    ] = None
    seed: Annotated[int, typer.Option(min=0, help="Seed of the folds.")] = 0
    force: ForceOption = False
    as_json: JsonOption = False
    quiet: QuietOption = False


@with_options(CompareOptions)
def compare(options: CompareOptions) -> None:
    """Compare elmesh with each site alone, and with other methods, on a table.

    Should you use elmesh for this table at all? Rows are divided into folds within each site; every fold is predicted
    by methods that were fitted, and tuned by cross-validation, on the other folds. Compared are elmesh (all sites
    together, each alone, and one model for all), gradient boosting (each site alone, and all rows pooled with the site
    as a category), a linear model of all rows with an intercept per site and, for numbers, linear mixed models.

    The first line is the conclusion. A difference is clear if its 95 % interval does not contain zero; its standard
    error allows for the training rows that folds have in common (Nadeau and Bengio).

    The comparison takes minutes. After Ctrl-C the same command continues with what is not finished yet.
    """
    output = Output(options.as_json, options.quiet)
    if len(options.target) > 1:
        raise ElmeshError(f"compare takes one target; got {', '.join(options.target)}.")
    options.check_task()
    if options.out is not None:
        check_report_folder(options.out, options.force or _unfinished(options.out))
    with output.warnings_as_notes():
        found, folder = _compare(options, output)
        for note in found.notes:
            output.note(note)
        results = {"command": "compare", **found.to_json()}
        from elmesh.report import comparison_page, comparison_table, site_table  # noqa: PLC0415 (slow: Matplotlib)

        output.print(found.sentence())
        if not options.quiet:
            sites = [site_table(found)] if len(found.by_site) <= _MOST_SITES else []
            for table in (comparison_table(found), *sites):
                output.print("")
                output.table(table.columns, table.rows)
        if folder is not None:
            page = write_report(folder, {**results, "notes": output.notes}, comparison_page(found))
            output.print("")
            output.print(f"Open {page} in a browser.")
        output.result(results)


def _compare(options: CompareOptions, output: Output) -> tuple[Comparison, Path | None]:
    """Run the comparison, and return it with the folder that it is to be saved in."""
    frame = read_data(options.data, file_task=options.task is None, csv_format=options.csv_format)
    X = options.inputs(frame)
    kind, methods = check_kind(options.kind), None
    if options.methods is not None:
        methods = [name.strip() for name in options.methods.split(",")]
    for folder in _folders(options):
        if folder is not None and options.force:
            for name in (LOG, RESULTS):
                (folder / name).unlink(missing_ok=True)
        try:
            with output.bar("Comparing") as show:
                return elmesh.compare(
                    X,
                    frame[options.target],
                    task=options.column,
                    kind=kind,
                    column_types=dict.fromkeys(options.use or (), "number"),
                    methods=methods,
                    folds=options.folds,
                    repeats=options.repeats,
                    seed=options.seed,
                    log=None if folder is None else folder / LOG,
                    callback=show,
                ), folder
        except OtherTrialsError:
            if options.out is not None:
                raise
        except KeyboardInterrupt:
            saved = f" Finished fits are in {folder}; the same command continues." if folder is not None else ""
            fail(f"Stopped.{saved}", INTERRUPTED)
    raise AssertionError("there is always another folder")


def _folders(options: CompareOptions) -> Iterator[Path | None]:
    """Yield the folder that is given; or those that may be written, of which one may be of another comparison."""
    if options.out is not None or options.as_json:
        yield options.out
    else:
        yield from (path for path in numbered("elmesh-compare") if not path.exists() or _unfinished(path))


def _unfinished(folder: Path) -> bool:
    """Return whether a folder has a comparison that was interrupted."""
    return (folder / LOG).is_file() and not (folder / RESULTS).exists()
