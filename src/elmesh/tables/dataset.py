"""Data sets of one or more files: a file, a folder of files, or a Hive-partitioned folder.

A partitioned data set stores the values of some columns in the names of folders, as in
``data/site=north/year=2024/part-0.parquet``. These columns are text, like the columns of a CSV file.

The rows of a task are in one file, in a partition such as ``site=north``, or in some row groups of Parquet files. They
are found without reading the data set: only headers, first rows and, where these are not sufficient, the task column of
Parquet files are read. So each process reads only the rows of its own tasks.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import unquote

import numpy as np
import pandas as pd
import pyarrow as pa
from pyarrow import fs
from pyarrow.dataset import HivePartitioning, get_partition_keys

from elmesh.errors import ElmeshError
from elmesh.tables.access import (
    FILE_TASK,
    TableWarning,
    check_column_names,
    check_same_columns,
    find_column,
    task_labels,
)
from elmesh.tables.columns import concat_tables, parse_label
from elmesh.tables.csv_file import read_csv
from elmesh.tables.csv_format import DETECT, CSVFormat
from elmesh.tables.files import SUFFIXES, check_readable, is_parquet, is_table, read_table, table_stem
from elmesh.tables.parquet_file import find_row_groups, read_parquet
from elmesh.text import more
from elmesh.typing import StrPath

__all__ = ["DataFile", "TaskSource", "concat_files", "find_files", "find_tasks", "read_files"]

#: The row groups of a file that hold a task; None for the whole file.
RowGroups = tuple[int, ...] | None


@dataclass(frozen=True)
class DataFile:
    """A file of a data set."""

    path: Path
    name: str  # in messages
    partition: tuple[tuple[str, str | None], ...] = ()  # columns from the names of its folders, with their values
    csv_format: CSVFormat = DETECT
    task: str | None = None  # where each file of a folder is a task; error messages begin with it

    def read(self, row_groups: Sequence[int] | None = None) -> pd.DataFrame:
        """Read the file, or some row groups of a Parquet file."""
        with _prefix_task(self.task):
            if row_groups is None:
                return self.add_partition(read_table(self.path, self.csv_format))
            return self.add_partition(read_parquet(self.path, row_groups))

    def read_head(self) -> pd.DataFrame:
        """Read the header, and the first row of a CSV file."""
        with _prefix_task(self.task):
            check_readable(self.path)
            frame = read_parquet(self.path, ()) if is_parquet(self.path) else read_csv(self.path, 1, self.csv_format)
            return self.add_partition(frame)

    def add_partition(self, frame: pd.DataFrame) -> pd.DataFrame:
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


def find_files(path: Path, csv_format: CSVFormat = DETECT, *, file_task: bool = False) -> list[DataFile]:
    """Return the files of a data set in the order of their names; with ``file_task`` each file is a task."""
    if not path.is_dir():
        if not path.exists() and not path.suffix:
            raise ElmeshError(f"There is no file or folder {path}; check the name.")
        return [DataFile(path, path.name, csv_format=csv_format)]
    entries = sorted(Path(entry.name) for entry in path.iterdir() if not entry.name.startswith("."))
    files = [entry for entry in entries if is_table(entry) and (path / entry).is_file()]
    partitioned = not files
    if partitioned:
        entries = _list_partitions(path)
        files = [entry for entry in entries if is_table(entry) and all("=" in name for name in entry.parent.parts)]
    if not files:
        raise ElmeshError(f"The folder {path} holds no file that ends in {', '.join(SUFFIXES)}; give one that does.")
    if len(set(map(is_parquet, files))) > 1:
        raise ElmeshError(f"The folder {path} holds both CSV and Parquet files; keep one kind.")
    by_stem: dict[str, Path] = {}
    for file in files if not partitioned else ():
        other = by_stem.setdefault(table_stem(file), file)
        if other != file:
            raise ElmeshError(
                f"{other} and {file} in the folder {path} differ only in their ending; keep one file per task."
            )
    ignored = sorted(set(entries) - set(files))
    if ignored:
        names = ", ".join(entry.as_posix() for entry in ignored[:10]) + more(len(ignored))
        message = f"Left out of the folder {path} because they are not tables: {names}."
        warnings.warn(message, TableWarning, stacklevel=3)
    found = [DataFile(path / file, file.as_posix(), _parse_partition(file), csv_format) for file in files]
    if file_task and partitioned:
        columns = [column for column, _ in found[0].partition]
        raise ElmeshError(
            f"The folder {path} is partitioned by {', '.join(columns)}, so its files are not tasks; name the column "
            f"that holds the task, as in --task {columns[0]}."
        )
    return [replace(file, task=table_stem(file.path)) for file in found] if file_task else found


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


def _common_columns(frames: Mapping[str, pd.DataFrame]) -> list[str]:
    columns = {name: list(frame.columns) for name, frame in frames.items()}
    return check_same_columns("Files of a folder must have the same columns", columns)


def concat_files(frames: Mapping[str, pd.DataFrame], columns: Sequence[str]) -> pd.DataFrame:
    """Concatenate the tables of files, given by name; the index is the file and the line or row in it."""
    index = pd.concat({name: frame[[]] for name, frame in frames.items()}, names=["file"]).index
    return concat_tables(list(frames.values()), columns).set_axis(index)


def read_files(path: Path, *, file_task: bool = False, csv_format: CSVFormat = DETECT) -> pd.DataFrame:
    """Read a file, or all tables of a folder as one; with ``file_task`` each file is a task."""
    files = find_files(path, csv_format, file_task=file_task)
    frames = {file.name: file.read() for file in files}
    columns = _common_columns(frames)
    frame = concat_files(frames, columns) if path.is_dir() else frames[files[0].name]
    if not file_task:
        return frame
    return frame.assign(**{FILE_TASK: [table_stem(file.path) for file in files for _ in range(len(frames[file.name]))]})


@dataclass(frozen=True)
class TaskSource:
    """Location of the rows of a task."""

    task: str
    column: str  # the task column; FILE_TASK where each file is a task
    columns: tuple[str, ...]  # of the data set
    files: tuple[tuple[DataFile, RowGroups], ...]
    in_folder: bool  # whether the data set is a folder, so that the index names the file

    def read(self) -> pd.DataFrame:
        """Read the rows that :func:`read_files` returns for this task, with the same columns and index."""
        frames = {file.name: file.read(row_groups) for file, row_groups in self.files}
        frame = concat_files(frames, self.columns) if self.in_folder else next(iter(frames.values()))
        if self.column == FILE_TASK:
            return frame.assign(**{FILE_TASK: self.task})
        tasks = task_labels(frame, self.column)
        own = tasks == self.task
        if any(row_groups is None for _, row_groups in self.files) and not own.all():
            first = int(np.argmin(own))
            file, line = frame.index[first]
            raise ElmeshError(
                f'{file}, line {line}: the task is "{tasks[first]}", but the file begins with "{self.task}"; '
                "keep one file per task, or all of them in Parquet."
            )
        rows: pd.DataFrame = frame.loc[own]
        return rows


def find_tasks(path: StrPath, task: str | None = None, *, csv_format: CSVFormat = DETECT) -> dict[str, TaskSource]:
    r"""Find the tasks of a data set and the location of each.

    Parameters
    ----------
    path
        A folder with one CSV or Parquet file per task; a folder of partitions such as ``site=north``; or a Parquet
        file, or a folder of Parquet files, with the rows of many tasks.
    task
        The task column; by default each file is a task, named as the file without its suffix.
    csv_format
        How CSV files are written; by default detected in each file.

    Returns
    -------
    dict
        The source of each task by its label, sorted.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for site in ("north", "south"):
    ...         _ = (Path(folder) / f"{site}.csv").write_text("dose,y\n1.5,2\n")
    ...     sources = find_tasks(folder)
    ...     frame = sources["south"].read()
    >>> list(sources), frame.to_dict("list")
    (['north', 'south'], {'dose': ['1.5'], 'y': ['2'], '(file)': ['south']})
    """
    path = Path(path)
    files = find_files(path, csv_format, file_task=task is None)
    heads = {file.name: file.read_head() for file in files}
    if path.is_file() and not is_parquet(path):
        raise ElmeshError(
            f"{path.name} is one CSV file, which cannot be read in parts; give a folder with one file per task, "
            "or write it as Parquet."
        )
    columns = _common_columns(heads)
    if task is not None:
        find_column(heads[files[0].name], task)
    tasks_of = {file: _tasks_in(file, task, heads[file.name]) for file in files}
    located: dict[str, list[tuple[DataFile, RowGroups]]] = {}
    for file, tasks in tasks_of.items():
        for label, row_groups in tasks.items():
            located.setdefault(label, []).append((file, row_groups))
    if task is None or (not files[0].partition and all(len(tasks) == 1 for tasks in tasks_of.values())):
        # Each file holds one task, so a second file of the same task is probably an old copy.
        for label, places in located.items():
            if len(places) > 1:
                names = " and ".join(file.name for file, _ in places[:2])
                raise ElmeshError(f'Task "{label}" has two files, {names}; keep one file per task.')
    return {
        label: TaskSource(label, task or FILE_TASK, tuple(columns), tuple(located[label]), path.is_dir())
        for label in sorted(located)
    }


def _tasks_in(file: DataFile, task: str | None, head: pd.DataFrame) -> dict[str, RowGroups]:
    """Return the tasks in a file, each with its row groups."""
    partition = dict(file.partition)
    if task is None:
        stem = table_stem(file.path)
        return {parse_label(stem) or stem: None}
    if task in partition:
        label = parse_label(partition[task] or "")
        if label is None:
            raise ElmeshError(f'{file.name} is in a partition without a value of "{task}"; every row needs a task.')
        return {label: None}
    if not is_parquet(file.path):
        return {str(task_labels(concat_files({file.name: head}, list(head.columns)), task)[0]): None}
    tasks = find_row_groups(file.path, task)
    if not tasks:
        raise ElmeshError(f"{file.name} has a header but no rows; add some, or leave the file out.")
    return {label: tuple(row_groups) for label, row_groups in tasks.items()}
