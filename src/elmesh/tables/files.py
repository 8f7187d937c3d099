"""One file to a table and back, CSV or Parquet by its name."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pandas as pd

from elmesh.errors import ElmeshError
from elmesh.tables.csv_file import read_csv
from elmesh.tables.parquet_file import read_parquet

__all__ = ["SUFFIXES", "TableWarning", "check_readable", "check_table_name", "is_parquet", "read_table", "write_table"]

SUFFIXES = (".csv", ".tsv", ".parquet")
"""How the names of tables end."""


class TableWarning(UserWarning):
    """Something about a table that is handled by a stated rule, and worth a note."""


def read_table(path: str | Path) -> pd.DataFrame:
    r"""Read one CSV or Parquet file.

    Parameters
    ----------
    path
        A ``.csv``, ``.tsv`` or ``.parquet`` file. CSV is UTF-8 with a header; commas, semicolons and tabs are
        told apart by the header. The cells named in :data:`~elmesh.tables.MISSING` are missing.

    Returns
    -------
    pandas.DataFrame
        Columns of a CSV file are text, as written; those of Parquet keep their types. The index, named
        ``line`` or ``row``, says where in the file a row starts.

    Raises
    ------
    ElmeshError
        If the file is empty, has no rows, a row of another width than the header, a column without a name or
        two of one name, is not UTF-8, or is of another kind.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "a.csv"
    ...     _ = path.write_text("site;dose\n007;1.5\n")
    ...     frame = read_table(path)
    >>> frame.to_dict("list"), frame.index.tolist()
    ({'site': ['007'], 'dose': ['1.5']}, [2])
    """
    path = Path(path)
    check_readable(path)
    frame = read_parquet(path) if is_parquet(path) else read_csv(path)
    if frame.empty:
        raise ElmeshError(f"{path.name} has a header but no rows.")
    return frame


def is_parquet(path: Path) -> bool:
    """Tell by its name whether a file is Parquet."""
    return path.suffix.lower() == ".parquet"


def check_readable(path: Path) -> None:
    """Refuse a file that no table can be in.

    Parameters
    ----------
    path
        The file.
    """
    if path.suffix.lower() not in SUFFIXES:
        raise ElmeshError(
            f"{path.name} is neither CSV nor Parquet by its name; expected one that ends in {', '.join(SUFFIXES)}."
        )
    if path.is_dir():
        raise ElmeshError(f"{path} is a folder; expected a file.")
    if not path.exists():
        raise ElmeshError(f"There is no file {path}.")
    if path.stat().st_size == 0:
        raise ElmeshError(f"{path.name} is empty; expected a header and rows.")


def check_table_name(path: Path) -> None:
    """Refuse a file that no table is written to.

    Parameters
    ----------
    path
        The file.
    """
    if path.suffix.lower() not in SUFFIXES:
        raise ElmeshError(f"Cannot write {path.name}; expected a name that ends in {', '.join(SUFFIXES)}.")
    if path.is_dir():
        raise ElmeshError(f"Cannot write {path}; it is a folder.")


def write_table(frame: pd.DataFrame, path: str | Path, *, force: bool = False) -> None:
    """Write a table without its index, as CSV or Parquet by the suffix, whole or not at all.

    Parameters
    ----------
    frame
        The table.
    path
        A ``.csv``, ``.tsv`` or ``.parquet`` file; its folder is made if need be.
    force
        Whether an existing file may be replaced.
    """
    path = Path(path)
    check_table_name(path)
    if path.exists() and not force:
        raise ElmeshError(f"{path} exists; choose another name, or give --force to replace it.")
    path.parent.mkdir(parents=True, exist_ok=True)
    with _replacing(path) as partial:
        if is_parquet(path):
            frame.to_parquet(partial, index=False)
        else:
            frame.to_csv(partial, index=False, sep="\t" if path.suffix.lower() == ".tsv" else ",")


@contextmanager
def _replacing(path: Path) -> Iterator[Path]:
    """Name a file to write to, which takes the place of ``path`` only once it is complete."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        yield partial
        partial.replace(path)
    except OSError as error:  # the user knows the file by its proper name
        raise OSError(error.errno, error.strerror, str(path)) from error
    finally:
        partial.unlink(missing_ok=True)
