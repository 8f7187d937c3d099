"""``elmesh sample``: small tables to try the other commands with."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import pandas as pd
import typer

from elmesh.cli.console import ForceOption, JsonOption, Output, QuietOption, check_writable
from elmesh.datasets import simulate_visits
from elmesh.errors import ElmeshError
from elmesh.tables import write_table
from elmesh.text import count

__all__ = ["sample"]


def sample(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder to write.")],
    seed: Annotated[int, typer.Option(help="Seed of the patients.", min=0)] = 0,
    force: ForceOption = False,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Write small tables of simulated patients, to try the other commands with.

    Eight clinics of unequal size predict days in hospital, or complications, which are rare. The tables have words,
    dates and gaps; one clinic has nine patients, and one treats patients of another kind. No row is a real patient.

    Writes visits.csv (past patients of all clinics), new-visits.csv (later ones of the same clinics), truro.csv (a
    clinic that comes later), and sites/ with one file per clinic, for networks and many machines.
    """
    output = Output(as_json, quiet)
    if folder.exists() and not folder.is_dir():
        raise ElmeshError(f"{folder} is a file; choose another name for the folder.")
    train, new, later = simulate_visits(seed=seed)
    tables = {"visits.csv": train, "new-visits.csv": new, "truro.csv": later.drop(columns="clinic")}
    for name, own in train.groupby("clinic"):
        tables[f"sites/{str(name).lower()}.csv"] = own.drop(columns="clinic")
    if not _has(folder, tables):
        check_writable(folder, force)
        (folder / "sites").mkdir(parents=True, exist_ok=True)
        for name, table in tables.items():
            write_table(table, folder / name, force=force)
    clinics = train["clinic"].nunique()
    output.print(f"{count(len(train), 'row')} of {count(clinics, 'clinic')} in {folder / 'visits.csv'}. Try:")
    output.print("")
    output.print(f"elmesh fit {folder / 'visits.csv'} --task clinic --target days --drop complication --out model/")
    output.print(f"elmesh evaluate model/ {folder / 'new-visits.csv'}")
    output.print(f"elmesh add-site model/ {folder / 'truro.csv'} --site Truro")
    files = [str(folder / name) for name in tables]
    output.result({"command": "sample", "files": files, "rows": len(train), "clinics": clinics})


def _has(folder: Path, tables: Mapping[str, pd.DataFrame]) -> bool:
    """Return whether a folder has these tables already, as the command writes them."""
    if not all((folder / name).is_file() for name in tables):
        return False
    with TemporaryDirectory() as place:
        for name, table in tables.items():
            write_table(table, Path(place) / Path(name).name, force=True)
            if (Path(place) / Path(name).name).read_bytes() != (folder / name).read_bytes():
                return False
    return True
