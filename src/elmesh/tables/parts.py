"""The files a data set is made of: one, those of a folder, or those of a folder partitioned in Hive style.

A partitioned data set keeps the values of some columns in the names of folders, as in
``data/site=north/year=2024/part-0.parquet``. They are columns like any other here, and text, as in a CSV file.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from urllib.parse import unquote

import pandas as pd

from elmesh.errors import ElmeshError
from elmesh.tables.columns import joined
from elmesh.tables.csv_file import read_csv
from elmesh.tables.files import SUFFIXES, TableWarning, check_readable, is_parquet, read_table
from elmesh.tables.headers import FILE_TASK, check_header, odd_column
from elmesh.tables.parquet_file import read_parquet

__all__ = ["Part", "check_alike", "find_parts", "join_parts", "partition_error", "read_data", "told_of_task"]

_NO_VALUE = "__HIVE_DEFAULT_PARTITION__"


@dataclass(frozen=True)
class Part:
    """A file of a data set.

    Attributes
    ----------
    path
        The file.
    name
        What it is called in errors.
    keys
        The columns that the folders it is in stand for, with their values; None where missing.
    """

    path: Path
    name: str
    keys: tuple[tuple[str, str | None], ...] = ()

    def start(self) -> pd.DataFrame:
        """Read the header, and of CSV the first row."""
        check_readable(self.path)
        return self._with_keys(read_parquet(self.path, ()) if is_parquet(self.path) else read_csv(self.path, 1))

    def read(self, groups: Sequence[int] | None = None) -> pd.DataFrame:
        """Read all of it, or some row groups of a Parquet file."""
        return self._with_keys(read_table(self.path) if groups is None else read_parquet(self.path, groups))

    def _with_keys(self, frame: pd.DataFrame) -> pd.DataFrame:
        if not self.keys:
            return frame
        # What the folder says counts, as it does for other readers, also where the file has the column as well.
        names = [name for name, _ in self.keys]
        kept = [str(name) for name in frame.columns if name not in names]
        check_header(self.name, [*kept, *names])
        values = {name: pd.Series(value, index=frame.index, dtype=object) for name, value in self.keys}
        return frame[kept].assign(**values)


def find_parts(path: Path) -> list[Part]:
    """Find the files of a data set, in order.

    Parameters
    ----------
    path
        A file, or a folder of files or of partitions.
    """
    if not path.is_dir():
        if not path.exists() and not path.suffix:
            raise ElmeshError(f"There is no file or folder {path}.")
        return [Part(path, path.name)]
    entries = sorted(entry for entry in path.iterdir() if not entry.name.startswith("."))
    files = [entry for entry in entries if entry.is_file() and entry.suffix.lower() in SUFFIXES]
    parts = [Part(file, file.name) for file in files]
    ignored = [entry.name for entry in entries if entry not in files]
    if not parts:
        ignored = []
        parts = list(_partitions(path, path, (), ignored))
    if not parts:
        raise ElmeshError(f"The folder {path} holds no file that ends in {', '.join(SUFFIXES)}.")
    if len({is_parquet(part.path) for part in parts}) > 1:
        raise ElmeshError(f"The folder {path} holds both CSV and Parquet files; keep one kind.")
    for one, other in pairwise(files):
        if one.stem == other.stem:
            raise ElmeshError(
                f"{one.name} and {other.name} in the folder {path} differ only in their ending; keep one for each task."
            )
    if ignored:
        warnings.warn(
            f"Left out of the folder {path}, for they are not tables: {', '.join(ignored)}.",
            TableWarning,
            stacklevel=3,
        )
    return parts


def _partitions(
    root: Path, folder: Path, keys: tuple[tuple[str, str | None], ...], ignored: list[str]
) -> Iterator[Part]:
    # Names that begin so are for the programs that write such folders, as _SUCCESS is.
    for entry in sorted(entry for entry in folder.iterdir() if not entry.name.startswith((".", "_"))):
        name = entry.relative_to(root).as_posix()
        if entry.is_dir() and "=" in entry.name:
            key, value = map(unquote, entry.name.split("=", 1))
            yield from _partitions(root, entry, (*keys, (key, None if value == _NO_VALUE else value)), ignored)
        elif entry.is_file() and entry.suffix.lower() in SUFFIXES:
            yield Part(entry, name, keys)
        else:
            ignored.append(name)


def partition_error(path: Path, part: Part) -> ElmeshError:
    """Make the error to raise where a file is taken for a task in a folder that is partitioned."""
    names = [name for name, _ in part.keys]
    return ElmeshError(
        f"The folder {path} is partitioned by {', '.join(names)}, so its files are no tasks; name the column that "
        f"holds the task, as in --task {names[0]}."
    )


def check_alike(headers: Mapping[str, Sequence[str]]) -> None:
    """Refuse files that differ in their columns.

    Parameters
    ----------
    headers
        The columns of each file by its name.
    """
    odd = odd_column(headers)
    if odd:
        raise ElmeshError(
            f'Files of a folder must have the same columns, but {odd.has} has a column "{odd.name}" and '
            f"{odd.lacks} does not."
        )


def join_parts(frames: Mapping[str, pd.DataFrame], columns: Sequence[str]) -> pd.DataFrame:
    """Put the tables of several files under each other; the index is the file and the line or row in it.

    Parameters
    ----------
    frames
        The tables by the names of their files.
    columns
        The columns, in the order to have them in.
    """
    index = pd.concat({name: frame[[]] for name, frame in frames.items()}, names=["file"]).index
    return joined(list(frames.values()), columns).set_axis(index)


@contextmanager
def told_of_task(part: Part, told: bool = True) -> Iterator[None]:
    """Have errors about a file name the task it is, if it is one."""
    try:
        yield
    except ElmeshError as error:
        raise ElmeshError(f'Task "{part.path.stem}": {error}') if told else error from None


def read_data(path: str | Path, *, file_task: bool = False) -> pd.DataFrame:
    """Read a file, or every table in a folder as one.

    Parameters
    ----------
    path
        A file as for :func:`read_table`, or a folder of such files, all of the same columns; or a folder of partitions
        such as ``site=north``, each a folder of such files, where ``site`` becomes a column.
    file_task
        Whether each file is a task, named as the file without its suffix; the tasks go to column
        :data:`FILE_TASK`.

    Returns
    -------
    pandas.DataFrame
        As from :func:`read_table`; for a folder the index is the file and the line or row in it.
    """
    path = Path(path)
    parts = find_parts(path)
    if file_task and parts[0].keys:
        raise partition_error(path, parts[0])
    frames = {}
    for part in parts:
        with told_of_task(part, file_task and path.is_dir()):
            frames[part.name] = part.read()
    check_alike({name: list(frame.columns) for name, frame in frames.items()})
    first = frames[parts[0].name]
    frame = join_parts(frames, list(first.columns)) if path.is_dir() else first
    if not file_task:
        return frame
    stems = [part.path.stem for part in parts for _ in range(len(frames[part.name]))]
    return frame.assign(**{FILE_TASK: stems})
