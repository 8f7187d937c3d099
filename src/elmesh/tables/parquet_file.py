"""Reader of Parquet files, whole or by row groups, and search for the row groups that hold each task.

The file's metadata states for most columns the smallest and the largest value in each row group. So most tasks are
found, and all tasks are read, without reading the row groups of other tasks.
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
from elmesh.tables.access import check_column_names, task_labels
from elmesh.tables.columns import parse_label

__all__ = ["find_row_groups", "read_parquet"]


def read_parquet(path: Path, row_groups: Sequence[int] | None = None) -> pd.DataFrame:
    """Read a Parquet file, or some of its row groups; the index is the number of each row in the file."""
    with _open(path) as file:
        sizes = [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)]
        wanted = range(len(sizes)) if row_groups is None else row_groups
        frame: pd.DataFrame = file.read_row_groups(list(wanted)).to_pandas()
    # A named pandas index is a column of the table, unless it only counts the rows.
    named = [name for name in frame.index.names if name is not None and name not in frame.columns]
    frame = frame.reset_index(level=[] if isinstance(frame.index, pd.RangeIndex) else named).reset_index(drop=True)
    frame.columns = frame.columns.map(str)
    check_column_names(path.name, list(frame.columns))
    ends = np.cumsum([0, *sizes])
    rows = [np.arange(ends[i] + 1, ends[i + 1] + 1) for i in wanted]
    frame.index = pd.Index(np.concatenate([np.empty(0, dtype=np.int64), *rows]), name="row")
    return frame


def find_row_groups(path: Path, task: str) -> dict[str, list[int]]:
    """Return for each task the row groups that hold rows of it.

    The task column, and no other, is read in row groups whose metadata does not show that they hold a single task.
    """
    found: dict[str, list[int]] = {}
    start = 1
    with _open(path) as file:
        for group in range(file.num_row_groups):
            single = _single_label(file, group, task)
            for label in [single] if single is not None else _read_labels(path, file, group, task, start):
                found.setdefault(label, []).append(group)
            start += file.metadata.row_group(group).num_rows
    return found


def _single_label(file: pq.ParquetFile, group: int, task: str) -> str | None:
    """Return the task of a row group from its statistics, None if they do not show a single one."""
    dtype = file.schema_arrow.field(task).type
    dtype = dtype.value_type if pa.types.is_dictionary(dtype) else dtype
    # Statistics ignore NaN among floats, and give values of other types in another form than the rows do.
    if not (pa.types.is_integer(dtype) or pa.types.is_string(dtype) or pa.types.is_large_string(dtype)):
        return None
    metadata = file.metadata.row_group(group)
    chunks = map(metadata.column, range(metadata.num_columns))
    stats = next(chunk.statistics for chunk in chunks if chunk.path_in_schema == task)
    if stats is None or not (stats.has_min_max and stats.has_null_count) or stats.null_count or stats.min != stats.max:
        return None
    return parse_label(stats.min)


def _read_labels(path: Path, file: pq.ParquetFile, group: int, task: str, start: int) -> list[str]:
    """Read the tasks of a row group whose first row has this number in the file."""
    values = file.read_row_group(group, columns=[task], use_pandas_metadata=False).column(task).to_pandas()
    index = pd.MultiIndex.from_product([[path.name], range(start, start + len(values))], names=["file", "row"])
    return sorted(set(task_labels(pd.DataFrame({task: values.array}, index=index), task).tolist()))


@contextmanager
def _open(path: Path) -> Iterator[Any]:
    try:
        with pq.ParquetFile(path) as file:
            yield file
    except (pa.ArrowException, OSError) as error:
        raise ElmeshError(f"{path.name} is not a readable Parquet file; write it again.") from error
