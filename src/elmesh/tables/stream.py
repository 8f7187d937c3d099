"""Tables that are read in parts, any number of times, so that they may be larger than memory.

A part is a table of pandas, as :func:`elmesh.tables.read_data` would return these rows.
"""

from __future__ import annotations

import shutil
import tempfile
import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from elmesh.data.row_keys import place_keys
from elmesh.errors import ElmeshError
from elmesh.tables.access import FILE_TASK, check_column_names, check_same_columns, task_labels
from elmesh.tables.dataset import DataFile, find_files
from elmesh.tables.files import is_parquet
from elmesh.typing import StrPath

__all__ = [
    "ArrowStream",
    "ParquetStream",
    "SelectedStream",
    "StreamMonitor",
    "StreamStopped",
    "TableStream",
    "add_to_sample",
    "as_stream",
    "batches_to_pandas",
    "chunk_rows",
    "is_streamable",
]

# Cells in a part, and rows at most.
_CELLS, _MOST_ROWS = 1 << 23, 1 << 18
# Rows of a sample.
_SAMPLE = 20_000


def chunk_rows(n_columns: int) -> int:
    """Return how many rows of so many columns are read at a time."""
    return max(1, min(_MOST_ROWS, _CELLS // max(n_columns, 1)))


class StreamStopped(Exception):  # noqa: N818 (not an error: someone has asked for it)
    """The reading of a stream was stopped, by what is called for each part."""


class StreamMonitor(Protocol):
    """What follows the reading of a stream."""

    def start(self, columns: Sequence[str], n_rows: int | None) -> None:
        """Begin to read some columns, of so many rows if their number is known."""

    def add(self, n_rows: int) -> None:
        """Count a part of so many rows that was used; this may raise :class:`StreamStopped`."""


class TableStream(ABC):
    """A table that is read in parts."""

    #: The name of the table, for messages.
    name: str
    #: What follows the reading.
    monitor: StreamMonitor | None = None
    #: A folder in which a reading that is stopped is saved, so that the same fit goes on there.
    checkpoint: Path | None = None

    @property
    @abstractmethod
    def columns(self) -> list[str]:
        """The names of the columns."""

    @property
    @abstractmethod
    def n_rows(self) -> int | None:
        """The number of rows; None if it is not known before they are read."""

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """What distinguishes this table from another one, or from the same one after a change."""

    @abstractmethod
    def read(self, columns: Sequence[str]) -> Iterator[pd.DataFrame]:
        """Yield some columns of all rows, in parts, each with the numbers of its rows as index."""

    def chunks(self, columns: Sequence[str] | None = None) -> Iterator[pd.DataFrame]:
        """Yield all rows in parts, or some of their columns; raise if there are none."""
        empty, names = True, self.columns if columns is None else list(columns)
        if self.monitor is not None:
            self.monitor.start(names, self.n_rows)
        for frame in self.read(names):
            if not len(frame):
                continue
            empty = False
            yield frame
            if self.monitor is not None:
                self.monitor.add(len(frame))
        if empty:
            raise ElmeshError(f"{self.name} has columns but no rows.")

    def sample(self) -> pd.DataFrame:
        """Return some rows, drawn at random by their places: all of them if they are few."""
        kept, keys, place = pd.DataFrame(), np.zeros(0, dtype=np.uint64), 0
        for frame in self.chunks():
            kept, keys, place = add_to_sample(kept, keys, frame, place)
        return kept


def add_to_sample(kept: pd.DataFrame, keys: Any, frame: pd.DataFrame, place: int) -> tuple[pd.DataFrame, Any, int]:
    """Return a sample with rows of a further part that begins at a place, their keys, and the place after them."""
    new = place_keys(place, len(frame))
    chosen = np.flatnonzero(new <= (keys.max() if len(keys) >= _SAMPLE else np.uint64(2**64 - 1)))
    both, keys = pd.concat([kept, frame.iloc[chosen]]), np.concatenate([keys, new[chosen]])
    if len(keys) > _SAMPLE:
        least = np.sort(np.argpartition(keys, _SAMPLE)[:_SAMPLE])
        both, keys = both.iloc[least], keys[least]
    return both, keys, place + len(frame)


class ParquetStream(TableStream):
    """Parquet files: one, or all of a folder, partitioned or not.

    Parameters
    ----------
    path : path
        The file or the folder.
    file_task : bool
        Whether each file is a task, named as the file without its suffix; the column :data:`FILE_TASK` holds it.
    """

    def __init__(self, path: StrPath, *, file_task: bool = False) -> None:
        self.name, self._path = str(path), Path(path)
        self._files = find_files(self._path, file_task=file_task)

    @cached_property
    def columns(self) -> list[str]:
        """The names of the columns, which are the same in all files."""
        heads = {file.name: file.read_head() for file in self._files}
        names = {name: [str(column) for column in head.columns] for name, head in heads.items()}
        by_file = [FILE_TASK] if self._files[0].task is not None else []
        return check_same_columns("All files must have the same columns", names) + by_file

    @cached_property
    def n_rows(self) -> int:
        """The number of rows, from the ends of the files."""
        total = 0
        for file in self._files:
            with _readable(file):
                total += pq.read_metadata(file.path).num_rows
        return total

    @property
    def fingerprint(self) -> str:
        """Names, sizes and times of change of the files."""
        stats = [(file.name, file.path.stat()) for file in self._files]
        return repr([(name, stat.st_size, stat.st_mtime_ns) for name, stat in stats])

    def read(self, columns: Sequence[str]) -> Iterator[pd.DataFrame]:
        """Yield some columns of all rows, in parts."""
        for file in self._files:
            own = [name for name in columns if name not in (*dict(file.partition), FILE_TASK)]
            row = 1
            for frame in _read_parquet(file, own, chunk_rows(len(self.columns))):
                numbers: pd.Index[Any] = pd.RangeIndex(row, row + len(frame), name="row")
                row += len(frame)
                if self._path.is_dir():
                    numbers = pd.MultiIndex.from_product([[file.name], numbers], names=["file", "row"])
                whole = file.add_partition(frame.set_axis(numbers))
                yield (whole if file.task is None else whole.assign(**{FILE_TASK: file.task}))[list(columns)]


def _read_parquet(file: DataFile, columns: Sequence[str], rows: int) -> Iterator[pd.DataFrame]:
    """Yield parts of a Parquet file; text is read as codes of its different values, which most columns have few of."""
    with _readable(file):
        with pq.ParquetFile(file.path) as parquet:
            text = [field.name for field in parquet.schema_arrow if _is_text(field.type)]
        with pq.ParquetFile(file.path, read_dictionary=text) as parquet:
            sizes = [parquet.metadata.row_group(k).num_rows for k in range(parquet.num_row_groups)]
            for groups in _row_groups(sizes, rows):
                n = sum(sizes[k] for k in groups)
                # Parts of equal size: a small one at the end would cost as much as a large one.
                size = -(-n // -(-n // (rows + rows // 2))) if n else 1
                table = {"columns": list(columns), "use_pandas_metadata": False, "use_threads": False}
                if size >= n:
                    yield _to_pandas(parquet.read_row_groups(groups, **table), set(text))
                    continue
                for batch in parquet.iter_batches(size, groups, **table):
                    yield _to_pandas(pa.Table.from_batches([batch]), set(text))


@contextmanager
def _readable(file: DataFile) -> Iterator[None]:
    """Raise an error that names the file if it is damaged, or no Parquet file at all."""
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        raise ElmeshError(f"{file.name} is not a readable Parquet file; write it again.") from error


def _row_groups(sizes: Sequence[int], rows: int) -> Iterator[list[int]]:
    """Yield consecutive row groups, several at a time if they are small.

    Examples
    --------
    >>> list(_row_groups([4, 3, 9, 2], rows=8))
    [[0, 1], [2], [3]]
    """
    found: list[int] = []
    for k, n in enumerate(sizes):
        if found and sum(sizes[i] for i in found) + n > rows:
            yield found
            found = []
        found.append(k)
    if found:
        yield found


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def batches_to_pandas(batches: Iterable[pa.RecordBatch]) -> Iterator[pd.DataFrame]:
    """Yield batches as pandas has them, with the numbers of their rows as index."""
    row = 1
    for batch in batches:
        text = {field.name for field in batch.schema if _is_text(field.type)}
        frame = _to_pandas(pa.Table.from_batches([batch]), text)
        yield frame.set_axis(pd.RangeIndex(row, row + len(frame), name="row"))
        row += len(frame)


def _to_pandas(table: pa.Table, text: Set[str]) -> pd.DataFrame:
    """Return a table as pandas has it; equal texts of the columns ``text`` are one object, which takes less time."""
    names = list(table.schema.names)
    others = [name for name in names if name not in text]
    frame: pd.DataFrame = table.select(others).replace_schema_metadata().to_pandas()
    if len(others) == len(names):
        return frame
    columns: dict[str, Any] = {name: frame[name] for name in others}
    for name in text & set(names):
        values = table.column(name)
        encoded = (values if pa.types.is_dictionary(values.type) else values.dictionary_encode()).unify_dictionaries()
        encoded = encoded.combine_chunks()
        known = np.array([*encoded.dictionary.to_pylist(), None], dtype=object)
        # A missing value takes the last entry.
        columns[name] = known[encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False)]
    return pd.DataFrame({name: columns[name] for name in names}, copy=False)


class ArrowStream(TableStream):
    """Record batches of Arrow.

    A data set is read anew each time. A stream that can be read once is written to a temporary Parquet file first.

    Parameters
    ----------
    source : Arrow data set, record batch reader, or any object with the Arrow C stream interface
        The batches.
    """

    name = "The Arrow stream"

    def __init__(self, source: Any) -> None:
        self._source = source
        if not isinstance(source, ds.Dataset):
            folder = tempfile.mkdtemp(prefix="elmesh-")
            weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
            path = Path(folder) / "stream.parquet"
            reader = source if isinstance(source, pa.RecordBatchReader) else pa.RecordBatchReader.from_stream(source)
            with pq.ParquetWriter(path, reader.schema, compression="lz4") as writer:
                for batch in reader:
                    writer.write_batch(batch)
            self._source = ds.dataset(path)
        check_column_names(self.name, self.columns)

    @property
    def columns(self) -> list[str]:
        """The names of the columns."""
        return list(self._source.schema.names)

    @property
    def n_rows(self) -> int:
        """The number of rows."""
        return int(self._source.count_rows())

    @property
    def fingerprint(self) -> str:
        """The names and types of the columns, and the number of rows."""
        return f"{self._source.schema.to_string(show_schema_metadata=False)} {self.n_rows}"

    def read(self, columns: Sequence[str]) -> Iterator[pd.DataFrame]:
        """Yield some columns of all rows, in parts."""
        rows = chunk_rows(len(self.columns))
        yield from batches_to_pandas(self._source.to_batches(list(columns), batch_size=rows, batch_readahead=2))


@dataclass(eq=False)
class SelectedStream(TableStream):
    """Some columns of another stream.

    Parameters
    ----------
    source : TableStream
        The other stream.
    selected : list of str
        The columns.
    text : str or None
        A column whose values are read as labels of tasks, which are text however they are stored.
    """

    source: TableStream
    selected: list[str]
    text: str | None = None

    def __post_init__(self) -> None:
        self.name, self.monitor, self.checkpoint = self.source.name, self.source.monitor, self.source.checkpoint

    @property
    def columns(self) -> list[str]:
        """The names of the columns."""
        return self.selected

    @property
    def n_rows(self) -> int | None:
        """The number of rows."""
        return self.source.n_rows

    @property
    def fingerprint(self) -> str:
        """That of the other stream."""
        return self.source.fingerprint

    def read(self, columns: Sequence[str]) -> Iterator[pd.DataFrame]:
        """Yield some columns of all rows, in parts."""
        for frame in self.source.read(columns):
            if self.text is not None and self.text in columns:
                yield frame.assign(**{self.text: task_labels(frame, self.text)})
            else:
                yield frame


def as_stream(X: Any) -> TableStream | None:
    """Return what is read in parts: a stream, or an Arrow data set or stream; None for anything else.

    A table in memory is none, although it may have the interface of one.
    """
    if isinstance(X, TableStream):
        return X
    if isinstance(X, ds.Dataset | pa.RecordBatchReader):
        return ArrowStream(X)
    in_memory = hasattr(X, "shape") or hasattr(X, "to_pandas")
    return ArrowStream(X) if hasattr(X, "__arrow_c_stream__") and not in_memory else None


def is_streamable(path: Path) -> bool:
    """Return whether a file, or all files of a folder, can be read in parts."""
    return all(is_parquet(file.path) for file in find_files(path))
