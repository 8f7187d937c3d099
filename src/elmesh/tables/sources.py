"""The tasks of a data set, found without reading it, so that each process reads the rows of its own tasks alone.

A task's rows are in a file of its own, in the folder of a partition such as ``site=north``, or in some row groups of
one or more Parquet files. Only headers, first rows and, where it cannot be told from those, the task column of Parquet
files are read to find them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from elmesh.errors import ElmeshError
from elmesh.tables.cells import label_of
from elmesh.tables.files import is_parquet
from elmesh.tables.headers import FILE_TASK
from elmesh.tables.parquet_file import parquet_tasks
from elmesh.tables.parts import Part, check_alike, find_parts, join_parts, partition_error, told_of_task
from elmesh.tables.rows import find_column, task_labels

__all__ = ["Source", "find_tasks"]


@dataclass(frozen=True)
class Piece:
    """Where some rows of a task are: a file, or the row groups of it that hold some."""

    part: Part
    groups: tuple[int, ...] | None


@dataclass(frozen=True)
class Source:
    """Where the rows of a task are.

    Attributes
    ----------
    task
        Its label.
    column
        The column that says so; :data:`FILE_TASK` where the file does.
    columns
        The columns of the table.
    pieces
        The files, or parts of files.
    in_folder
        Whether they are those of a folder, so that rows are told by file as well.
    """

    task: str
    column: str
    columns: tuple[str, ...]
    pieces: tuple[Piece, ...]
    in_folder: bool

    def read(self) -> pd.DataFrame:
        """Read the rows of the task, and no others that can be told apart without reading them.

        Returns
        -------
        pandas.DataFrame
            The rows that :func:`read_data` gives for this task, with the same columns and index.

        Raises
        ------
        ElmeshError
            If a file cannot be read, or its rows are not all of one task where the first row promised it.
        """
        by_file = self.column == FILE_TASK
        frames = {}
        for piece in self.pieces:
            with told_of_task(piece.part, by_file and self.in_folder):
                frames[piece.part.name] = piece.part.read(piece.groups)
        # A file alone is read in the order of its own columns.
        frame = join_parts(frames, self.columns) if self.in_folder else next(iter(frames.values()))
        if by_file:
            return frame.assign(**{FILE_TASK: self.task})
        tasks = task_labels(frame, self.column)
        ours = tasks == self.task
        if any(piece.groups is None for piece in self.pieces) and not ours.all():
            first = int(np.argmin(ours))
            file, line = frame.index[first]
            raise ElmeshError(
                f'{file}, line {line}: the task is "{tasks[first]}", but the file begins with "{self.task}"; '
                "keep a file for each task, or all of them in Parquet."
            )
        rows: pd.DataFrame = frame.loc[ours]
        return rows


def find_tasks(path: str | Path, task: str | None = None) -> dict[str, Source]:
    r"""Find the tasks of a data set, and where each of them is.

    Parameters
    ----------
    path
        A folder with a CSV or Parquet file for each task; a folder of partitions such as ``site=north``; or a Parquet
        file, or a folder of them, with the rows of many tasks.
    task
        The column that holds the task; by default each file is a task, named as the file without its suffix.

    Returns
    -------
    dict
        The source of each task by its label, sorted.

    Raises
    ------
    ElmeshError
        If there is nothing to read, a file cannot be read or has other columns than the first, a task has two files,
        a row has no task, or all tasks are in one CSV file, which cannot be read in parts.

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
    parts = find_parts(path)
    if task is None and parts[0].keys:
        raise partition_error(path, parts[0])
    starts = {}
    for part in parts:
        with told_of_task(part, task is None and path.is_dir()):
            starts[part.name] = part.start()
    if path.is_file() and not is_parquet(path):
        raise ElmeshError(
            f"{path.name} is one CSV file, which cannot be read in parts; give a folder with a file for each task, "
            "or write it as Parquet."
        )
    columns = [str(name) for name in starts[parts[0].name].columns]
    check_alike({name: list(start.columns) for name, start in starts.items()})
    if task is not None:
        find_column(starts[parts[0].name], task)
    held = {part: _tasks_in(part, task, starts[part.name]) for part in parts}
    if task is None or (not parts[0].keys and all(len(groups) == 1 for groups in held.values())):
        _check_one_file_each(held)
    pieces: dict[str, list[Piece]] = {}
    for part, found in held.items():
        for label, groups in found.items():
            pieces.setdefault(label, []).append(Piece(part, groups))
    return {
        label: Source(label, task or FILE_TASK, tuple(columns), tuple(pieces[label]), path.is_dir())
        for label in sorted(pieces)
    }


def _tasks_in(part: Part, task: str | None, start: pd.DataFrame) -> dict[str, tuple[int, ...] | None]:
    """Find the tasks of a file, each with the row groups it is in; None stands for all of the file."""
    if task is None:
        return {label_of(part.path.stem) or part.path.stem: None}
    if task in dict(part.keys):
        label = label_of(dict(part.keys)[task] or "")
        if label is None:
            raise ElmeshError(f'{part.name} is in a partition without a value of "{task}"; every row needs a task.')
        return {label: None}
    if not is_parquet(part.path):
        with_name = pd.concat({part.name: start}, names=["file"])
        return {str(task_labels(with_name, task)[0]): None}
    tasks = parquet_tasks(part.path, task)
    if not tasks:
        raise ElmeshError(f"{part.name} has a header but no rows.")
    return {label: tuple(groups) for label, groups in tasks.items()}


def _check_one_file_each(held: Mapping[Part, Mapping[str, object]]) -> None:
    """Refuse two files for one task, which look like one left over; files of many tasks each are another matter."""
    files: dict[str, str] = {}
    for part, found in held.items():
        for label in found:
            if label in files:
                raise ElmeshError(
                    f'Task "{label}" has two files, {files[label]} and {part.name}; keep one file for each task.'
                )
            files[label] = part.name
