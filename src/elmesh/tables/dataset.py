"""Data sets of one or more files: a file, a folder of files, or a Hive-partitioned folder.

A partitioned data set stores the values of some columns in the names of folders, as in
``data/site=north/year=2024/part-0.parquet``. These columns are text, like the columns of a CSV file.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from urllib.parse import unquote

import pandas as pd
import pyarrow as pa
from pyarrow import fs
from pyarrow.dataset import HivePartitioning, get_partition_keys

from elmesh.errors import ElmeshError
from elmesh.tables.access import FILE_TASK, TableWarning, check_column_names, check_same_columns
from elmesh.tables.columns import concat_tables
from elmesh.tables.csv_file import read_csv
from elmesh.tables.files import SUFFIXES, check_readable, is_parquet, is_table, read_table
from elmesh.tables.parquet_file import read_parquet
from elmesh.text import more
from elmesh.typing import StrPath

__all__ = ["DataFile", "common_columns", "concat_files", "find_files", "read_data"]


@dataclass(frozen=True)
class DataFile:
    """A file of a data set."""

    path: Path
    name: str  # in messages
    partition: tuple[tuple[str, str | None], ...] = ()  # columns from the names of its folders, with their values
    task: str | None = None  # where each file of a folder is a task; error messages begin with it

    def read(self, row_groups: Sequence[int] | None = None) -> pd.DataFrame:
        """Read the file, or some row groups of a Parquet file."""
        with _prefix_task(self.task):
            frame = read_table(self.path) if row_groups is None else read_parquet(self.path, row_groups)
            return self._add_partition(frame)

    def read_head(self) -> pd.DataFrame:
        """Read the header, and the first row of a CSV file."""
        with _prefix_task(self.task):
            check_readable(self.path)
            frame = read_parquet(self.path, ()) if is_parquet(self.path) else read_csv(self.path, 1)
            return self._add_partition(frame)

    def _add_partition(self, frame: pd.DataFrame) -> pd.DataFrame:
        """Add the columns of the partition; they replace columns of the same name in the file."""
        added = {name: pd.Series(value, index=frame.index, dtype=object) for name, value in self.partition}
        return frame.drop(columns=list(added), errors="ignore").assign(**added) if added else frame


@contextmanager
def _prefix_task(task: str | None) -> Iterator[None]:
    """Begin the message of an error with the task, if there is one."""
    try:
        yield
    except ElmeshError as error:
        raise error if task is None else ElmeshError(f'Task "{task}": {error}') from None


def find_files(path: Path, *, file_task: bool = False) -> list[DataFile]:
    """Return the files of a data set in the order of their names; with ``file_task`` each file is a task."""
    if not path.is_dir():
        if not path.exists() and not path.suffix:
            raise ElmeshError(f"There is no file or folder {path}.")
        return [DataFile(path, path.name)]
    entries = sorted(Path(entry.name) for entry in path.iterdir() if not entry.name.startswith("."))
    files = [entry for entry in entries if is_table(entry) and (path / entry).is_file()]
    partitioned = not files
    if partitioned:
        entries = _list_partitions(path)
        files = [entry for entry in entries if is_table(entry) and all("=" in name for name in entry.parent.parts)]
    if not files:
        raise ElmeshError(f"The folder {path} holds no file that ends in {', '.join(SUFFIXES)}.")
    if len(set(map(is_parquet, files))) > 1:
        raise ElmeshError(f"The folder {path} holds both CSV and Parquet files; keep one kind.")
    for one, other in pairwise(files):
        if not partitioned and one.stem == other.stem:
            raise ElmeshError(
                f"{one} and {other} in the folder {path} differ only in their ending; keep one file per task."
            )
    ignored = sorted(set(entries) - set(files))
    if ignored:
        names = ", ".join(entry.as_posix() for entry in ignored[:10]) + more(len(ignored))
        message = f"Left out of the folder {path} because they are not tables: {names}."
        warnings.warn(message, TableWarning, stacklevel=3)
    found = [DataFile(path / file, file.as_posix(), _parse_partition(file)) for file in files]
    if file_task and partitioned:
        columns = [column for column, _ in found[0].partition]
        raise ElmeshError(
            f"The folder {path} is partitioned by {', '.join(columns)}, so its files are not tasks; name the column "
            f"that holds the task, as in --task {columns[0]}."
        )
    return [replace(file, task=file.path.stem) for file in found] if file_task else found


def _list_partitions(root: Path) -> list[Path]:
    """List all files below a folder, except those whose names mark them as internal to the program that wrote them."""
    infos = fs.LocalFileSystem().get_file_info(fs.FileSelector(str(root), recursive=True))
    files = sorted(Path(info.path).relative_to(root) for info in infos if info.is_file)
    return [file for file in files if not any(name.startswith((".", "_")) for name in file.parts)]


def _parse_partition(file: Path) -> tuple[tuple[str, str | None], ...]:
    """Return the columns that the names of the folders of a file give, with their values."""
    columns = [unquote(folder.partition("=")[0]) for folder in file.parent.parts]
    check_column_names(file.as_posix(), columns)
    # Arrow would infer numbers, and turn 007 into 7, if it were not given a schema.
    partitioning = HivePartitioning(pa.schema([(column, pa.string()) for column in columns]))
    try:
        values = get_partition_keys(partitioning.parse(f"{file.parent.as_posix()}/"))
    except pa.ArrowInvalid as error:
        raise ElmeshError(f"{file.as_posix()}: the name of a folder is not UTF-8 text; rename it.") from error
    return tuple((column, values[column]) for column in columns)


def common_columns(frames: Mapping[str, pd.DataFrame]) -> list[str]:
    """Return the columns of the first file; raise if another file has other columns."""
    columns = {name: list(frame.columns) for name, frame in frames.items()}
    check_same_columns("Files of a folder must have the same columns", columns)
    return next(iter(columns.values()))


def concat_files(frames: Mapping[str, pd.DataFrame], columns: Sequence[str]) -> pd.DataFrame:
    """Concatenate the tables of files, given by name; the index is the file and the line or row in it."""
    index = pd.concat({name: frame[[]] for name, frame in frames.items()}, names=["file"]).index
    return concat_tables(list(frames.values()), columns).set_axis(index)


def read_data(path: StrPath, *, file_task: bool = False) -> pd.DataFrame:
    """Read a file, or all tables of a folder as one.

    Parameters
    ----------
    path
        A file as for :func:`read_table`, or a folder of such files, all with the same columns; or a folder of
        partitions such as ``site=north``, each a folder of such files, where ``site`` becomes a column.
    file_task
        Whether each file is a task, named as the file without its suffix; the column :data:`FILE_TASK` holds it.

    Returns
    -------
    pandas.DataFrame
        As from :func:`read_table`; for a folder the index is the file and the line or row in it.
    """
    path = Path(path)
    files = find_files(path, file_task=file_task)
    frames = {file.name: file.read() for file in files}
    columns = common_columns(frames)
    frame = concat_files(frames, columns) if path.is_dir() else frames[files[0].name]
    if not file_task:
        return frame
    return frame.assign(**{FILE_TASK: [file.path.stem for file in files for _ in range(len(frames[file.name]))]})
