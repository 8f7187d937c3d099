"""The tasks of a data set, found without reading it, so that each process reads only the rows of its own tasks.

The rows of a task are in one file, in a partition such as ``site=north``, or in some row groups of Parquet files. To
find them, only headers, first rows and, where these are not sufficient, the task column of Parquet files are read.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from elmesh.errors import ElmeshError
from elmesh.tables.access import FILE_TASK, find_column, task_labels
from elmesh.tables.columns import parse_label
from elmesh.tables.dataset import DataFile, common_columns, concat_files, find_files
from elmesh.tables.files import is_parquet
from elmesh.tables.parquet_file import find_row_groups
from elmesh.typing import StrPath

__all__ = ["TaskSource", "find_tasks"]

#: The row groups of a file that hold a task; None for the whole file.
RowGroups = tuple[int, ...] | None


@dataclass(frozen=True)
class TaskSource:
    """Location of the rows of a task."""

    task: str
    column: str  # the task column; FILE_TASK where each file is a task
    columns: tuple[str, ...]  # of the data set
    files: tuple[tuple[DataFile, RowGroups], ...]
    in_folder: bool  # whether the data set is a folder, so that the index names the file

    def read(self) -> pd.DataFrame:
        """Read the rows that :func:`read_data` returns for this task, with the same columns and index."""
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


def find_tasks(path: StrPath, task: str | None = None) -> dict[str, TaskSource]:
    r"""Find the tasks of a data set and the location of each.

    Parameters
    ----------
    path
        A folder with one CSV or Parquet file per task; a folder of partitions such as ``site=north``; or a Parquet
        file, or a folder of Parquet files, with the rows of many tasks.
    task
        The task column; by default each file is a task, named as the file without its suffix.

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
    files = find_files(path, file_task=task is None)
    heads = {file.name: file.read_head() for file in files}
    if path.is_file() and not is_parquet(path):
        raise ElmeshError(
            f"{path.name} is one CSV file, which cannot be read in parts; give a folder with one file per task, "
            "or write it as Parquet."
        )
    columns = common_columns(heads)
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
        return {parse_label(file.path.stem) or file.path.stem: None}
    if task in partition:
        label = parse_label(partition[task] or "")
        if label is None:
            raise ElmeshError(f'{file.name} is in a partition without a value of "{task}"; every row needs a task.')
        return {label: None}
    if not is_parquet(file.path):
        return {str(task_labels(concat_files({file.name: head}, list(head.columns)), task)[0]): None}
    tasks = find_row_groups(file.path, task)
    if not tasks:
        raise ElmeshError(f"{file.name} has a header but no rows.")
    return {label: tuple(row_groups) for label, row_groups in tasks.items()}
