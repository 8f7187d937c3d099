"""One Parquet file: whole or by row groups, and which row groups hold which tasks.

A Parquet file is made of row groups, and says of most columns which values lie in each, so that the rows of a task are
found and read without the rest of the file.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from elmesh.errors import ElmeshError
from elmesh.tables.cells import label_of
from elmesh.tables.headers import check_header
from elmesh.tables.rows import task_labels

__all__ = ["parquet_tasks", "read_parquet"]


def read_parquet(path: Path, groups: Sequence[int] | None = None) -> pd.DataFrame:
    """Read a Parquet file; see :func:`elmesh.tables.read_table`.

    Parameters
    ----------
    path
        The file.
    groups
        Which row groups to read, none for the columns alone; by default all. The index says which row of the file
        each row is, whatever was left out.
    """
    with _opened(path) as file:
        sizes = [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)]
        chosen = range(len(sizes)) if groups is None else groups
        frame = _tidy(path, file.read_row_groups(list(chosen)))
    ends = np.cumsum([0, *sizes])
    rows = [np.arange(ends[i] + 1, ends[i + 1] + 1) for i in chosen]
    frame.index = pd.Index(np.concatenate([np.empty(0, dtype=np.int64), *rows]), name="row")
    return frame


def parquet_tasks(path: Path, task: str) -> dict[str, list[int]]:
    """Find the tasks in a Parquet file.

    Where the statistics of a row group say that it holds one task, they are believed; elsewhere the task column is
    read, and no other.

    Parameters
    ----------
    path
        The file.
    task
        The column that holds the task.

    Returns
    -------
    dict
        For each task the row groups that hold rows of it.
    """
    found: dict[str, list[int]] = {}
    start = 1
    with _opened(path) as file:
        for group in range(file.num_row_groups):
            only = _only_label(file, group, task)
            for label in [only] if only is not None else _read_labels(path, file, group, task, start):
                found.setdefault(label, []).append(group)
            start += file.metadata.row_group(group).num_rows
    return found


def _only_label(file: Any, group: int, task: str) -> str | None:
    """Give the one task of a row group, None if there are more or the statistics do not say."""
    kind = file.schema_arrow.field(task).type
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    # Statistics leave out the NaN among floats; and other types are not told in the words that their values are.
    if not (pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_large_string(kind)):
        return None
    chunks = file.metadata.row_group(group)
    chunk = next(chunks.column(i) for i in range(chunks.num_columns) if chunks.column(i).path_in_schema == task)
    known = chunk.statistics
    if known is None or not (known.has_min_max and known.has_null_count) or known.null_count or known.min != known.max:
        return None
    return label_of(known.min)


def _read_labels(path: Path, file: Any, group: int, task: str, start: int) -> list[str]:
    """Read the tasks of a row group whose first row is so many in the file."""
    values = file.read_row_group(group, columns=[task], use_pandas_metadata=False).column(task).to_pandas()
    frame = pd.DataFrame({task: values.array}, index=pd.RangeIndex(start, start + len(values), name="row"))
    # With the name of the file, for the user may have many.
    return sorted(set(task_labels(pd.concat({path.name: frame}, names=["file"]), task).tolist()))


def _tidy(path: Path, table: Any) -> pd.DataFrame:
    frame: pd.DataFrame = table.to_pandas()
    # pandas keeps an index in the file: one with a name is a column to the user, unless it only counts the rows.
    counts = isinstance(frame.index, pd.RangeIndex)
    named = [name for name in frame.index.names if name is not None and name not in frame.columns and not counts]
    frame = frame.reset_index(level=named).reset_index(drop=True)
    frame.columns = pd.Index([str(name) for name in frame.columns])
    check_header(path.name, list(frame.columns))
    return frame


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    try:
        with pq.ParquetFile(path) as file:
            yield file
    except (pa.ArrowException, OSError) as error:
        raise ElmeshError(f"{path.name} is not a readable Parquet file; write it again.") from error
