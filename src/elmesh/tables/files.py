"""Tables from and to single files, CSV or Parquet by the suffix."""

from __future__ import annotations

import gzip
import io
from pathlib import Path

import pandas as pd

from elmesh.errors import ElmeshError
from elmesh.files import atomic_write
from elmesh.tables.csv_file import read_csv
from elmesh.tables.csv_format import DETECT, CSVFormat
from elmesh.tables.gzip_file import is_gzip
from elmesh.tables.parquet_file import read_parquet
from elmesh.typing import StrPath

__all__ = [
    "SUFFIXES",
    "check_readable",
    "check_table_name",
    "is_parquet",
    "is_table",
    "read_table",
    "table_stem",
    "write_table",
]

#: Suffixes of table files.
SUFFIXES = (".csv", ".tsv", ".parquet", ".csv.gz", ".tsv.gz")


def is_table(path: Path) -> bool:
    """Return whether a file has the suffix of a table."""
    return table_suffix(path) in SUFFIXES


def table_suffix(path: Path) -> str:
    """Return the suffix of a file in lower case, such as ``.csv`` or ``.csv.gz``."""
    return Path(path.stem).suffix.lower() + ".gz" if is_gzip(path) else path.suffix.lower()


def table_stem(path: Path) -> str:
    """Return the name of a file without its suffix, ``north`` for ``north.csv`` and for ``north.csv.gz``."""
    return Path(path.stem).stem if is_gzip(path) else path.stem


def is_parquet(path: Path) -> bool:
    """Return whether a file has the suffix of Parquet."""
    return path.suffix.lower() == ".parquet"


def read_table(path: StrPath, csv_format: CSVFormat = DETECT) -> pd.DataFrame:
    r"""Read one CSV or Parquet file.

    Parameters
    ----------
    path
        A ``.csv``, ``.tsv`` or ``.parquet`` file, or CSV compressed with gzip (``.csv.gz``). CSV has a
        header. Empty cells, NA, N/A, NaN, nan, NULL and null are missing.
    csv_format
        How a CSV file is written. By default this is detected, with a warning unless the delimiter is a comma, numbers
        have decimal points and the encoding is UTF-8.

    Returns
    -------
    pandas.DataFrame
        Columns of a CSV file are text; those of Parquet keep their types. The index, named ``line`` or ``row``, is the
        position of each row in the file.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "a.csv"
    ...     _ = path.write_text("site,dose\n007,1.5\n")
    ...     frame = read_table(path)
    >>> frame.to_dict("list"), frame.index.tolist()
    ({'site': ['007'], 'dose': ['1.5']}, [2])
    """
    path = Path(path)
    check_readable(path)
    frame = read_parquet(path) if is_parquet(path) else read_csv(path, csv_format=csv_format)
    if frame.empty:
        raise ElmeshError(f"{path.name} has a header but no rows; add some, or leave the file out.")
    return frame


def check_readable(path: Path) -> None:
    """Raise if a path is not a file that can hold a table."""
    if not is_table(path):
        raise ElmeshError(
            f"{path.name} is neither CSV nor Parquet by its name; expected one that ends in {', '.join(SUFFIXES)}."
        )
    if path.is_dir():
        raise ElmeshError(f"{path} is a folder; expected a file.")
    if not path.exists():
        raise ElmeshError(f"There is no file {path}; check the name.")
    if path.stat().st_size == 0:
        raise ElmeshError(f"{path.name} is empty; expected a header and rows.")


def check_table_name(path: Path) -> None:
    """Raise if no table can be written to a path, because of its suffix or because it is a folder."""
    if not is_table(path):
        raise ElmeshError(f"Cannot write {path.name}; expected a name that ends in {', '.join(SUFFIXES)}.")
    if path.is_dir():
        raise ElmeshError(f"Cannot write {path}; it is a folder.")


def write_table(frame: pd.DataFrame, path: StrPath, *, force: bool = False) -> None:
    """Write a table without its index to a CSV or Parquet file; on failure nothing is written or replaced.

    The folder is created if necessary. An existing file is replaced only with ``force``.
    """
    path = Path(path)
    check_table_name(path)
    if path.exists() and not force:
        raise ElmeshError(f"{path} exists; choose another name, or give --force to replace it.")
    buffer = io.BytesIO()
    if is_parquet(path):
        frame.to_parquet(buffer, index=False)
    else:
        frame.to_csv(buffer, index=False, sep="\t" if table_suffix(path).startswith(".tsv") else ",")
    path.parent.mkdir(parents=True, exist_ok=True)
    data = buffer.getvalue()
    atomic_write(path, gzip.compress(data, mtime=0) if is_gzip(path) else data)
