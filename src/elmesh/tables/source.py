"""A table by its address: a file, a folder, or a table of DuckDB; read as a whole, or in parts if it is large."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from elmesh.errors import ElmeshError
from elmesh.tables.csv_format import DETECT, CSVFormat
from elmesh.tables.dataset import read_files
from elmesh.tables.duckdb_source import DuckDBStream, is_duckdb
from elmesh.tables.stream import ParquetStream, TableStream, is_streamable
from elmesh.typing import StrPath

__all__ = ["open_large", "read_data"]

# Tables of more cells than this are read in parts.
_LARGE = 20_000_000


def read_data(source: StrPath, *, file_task: bool = False, csv_format: CSVFormat = DETECT) -> pd.DataFrame:
    """Read a file, all tables of a folder as one, or a table of DuckDB.

    Parameters
    ----------
    source
        A file as for :func:`read_table`, or a folder of such files, all with the same columns; or a folder of
        partitions such as ``site=north``, each a folder of such files, where ``site`` becomes a column; or
        ``duckdb://FILE?table=NAME``.
    file_task
        Whether each file is a task, named as the file without its suffix; the column :data:`FILE_TASK` holds it.
    csv_format
        How CSV files are written; by default detected in each file.

    Returns
    -------
    pandas.DataFrame
        As from :func:`read_table`; for a folder the index is the file and the line or row in it.
    """
    if is_duckdb(source):
        return pd.concat(list(_duckdb(str(source), file_task=file_task).chunks()))
    return read_files(Path(source), file_task=file_task, csv_format=csv_format)


def open_large(source: StrPath, *, file_task: bool = False) -> TableStream | None:
    """Return a table that is too large to be read as a whole; None if it is small, or can be read only as a whole."""
    stream: TableStream
    if is_duckdb(source):
        stream = _duckdb(str(source), file_task=file_task)
    elif Path(source).exists() and is_streamable(Path(source)):
        stream = ParquetStream(source, file_task=file_task)
    else:
        return None
    return stream if (stream.n_rows or 0) * len(stream.columns) > _LARGE else None


def _duckdb(source: str, *, file_task: bool) -> DuckDBStream:
    if file_task:
        raise ElmeshError(f"{source} is one table, so --task must name the column that holds the task.")
    return DuckDBStream(source)
