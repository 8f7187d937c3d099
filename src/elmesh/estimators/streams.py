"""Rows to learn from that are read in parts, and where such a reading stopped.

A table that is larger than memory is read a few times: for the types and scales of its columns, for its targets, for
the limits of its inputs, and for the sums of products that determine the fit.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from queue import Queue
from typing import Any, TypeVar

import numpy as np
import pandas as pd

from elmesh.data.features import Features, features_from_json
from elmesh.data.tasks import Groups
from elmesh.errors import ElmeshError
from elmesh.estimators.rows import Chunk, TrainingRows
from elmesh.estimators.storage import read_statistics, remove_parts, write_parts
from elmesh.estimators.training_statistics import TrainingStatistics
from elmesh.tables import ProblemKind, TableSchema, agree_targets, fit_stream_inputs, read_targets
from elmesh.tables.access import find_column, task_codes
from elmesh.tables.stream import TableStream
from elmesh.tables.stream_stats import read_weights
from elmesh.typing import IndexArray, Label
from elmesh.version import __version__

__all__ = ["StreamCheckpoint", "StreamState", "StreamedRows"]

_T = TypeVar("_T")


@dataclass(frozen=True, eq=False)
class StreamedRows(TrainingRows):
    """Rows of a stream.

    Parameters
    ----------
    stream : TableStream
        The table.
    schema : TableSchema
        How its columns become numbers.
    task, weight : str or None
        The columns with the task and the weight of each row.
    counts : dict
        The number of rows of each task.
    drawn : DataFrame or None
        Some rows, drawn at random; None after a restart, when they are no longer needed.
    """

    stream: TableStream
    schema: TableSchema
    task: str | None
    weight: str | None
    counts: dict[Label, int]
    drawn: pd.DataFrame | None = None

    @classmethod
    def scan(
        cls,
        stream: TableStream,
        targets: Sequence[str],
        kind: ProblemKind,
        *,
        task: str | None,
        weight: str | None,
        types: Mapping[str, str] | None = None,
    ) -> StreamedRows:
        """Read a table once, and find how its columns become numbers."""
        head = pd.DataFrame(columns=stream.columns)
        for name in (task, weight):
            if name is not None:
                find_column(head, name)
        _, _, whole = agree_targets(stream, targets, kind)
        schema, sizes, sample = fit_stream_inputs(stream, targets, kind, whole, task=task, types=types, weight=weight)
        rows = cls(stream, schema, task, weight, {}, sample)
        return replace(rows, counts={rows.label(name): n for name, n in sizes.items()})

    def label(self, name: str) -> Label:
        """Return the label of a task: a whole number if the column of tasks has such."""
        return int(name) if self._has_whole_labels else name

    @property
    def _has_whole_labels(self) -> bool:
        if self.task is None:
            return False
        known = self.__dict__.get("_whole")
        if known is None:
            column = next(self.stream.read([self.task]))[self.task]
            known = pd.api.types.is_integer_dtype(column.dtype)
            self.__dict__["_whole"] = known
        return bool(known)

    @property
    def n_inputs(self) -> int:
        """Number of inputs."""
        return len(self.schema.feature_names)

    @property
    def sizes(self) -> dict[Label, int]:
        """The number of rows of each task, sorted by task."""
        return dict(sorted(self.counts.items()))

    def of_tasks(self, tasks: Sequence[Label]) -> StreamedRows:
        """Return all rows: a stream is read by one process."""
        return self

    def chunks(self, *, inputs: bool = True, skip: int = 0) -> Iterator[Chunk]:
        """Yield all rows in parts, with or without their inputs, but for some parts at the beginning."""
        targets = [target.name for target in self.schema.target_columns]
        features = [column.name for column in self.schema.features] if inputs else []
        columns = [*features, *targets, *(name for name in (self.task, self.weight) if name is not None)]
        frames = islice(self.stream.chunks(columns), skip, None)
        yield from _ahead(self._chunk(frame, targets, inputs) for frame in frames)

    def sample(self) -> Iterator[Chunk]:
        """Yield some rows, drawn at random: all of them if they are few."""
        targets = [target.name for target in self.schema.target_columns]
        if self.drawn is not None:
            yield self._chunk(self.drawn, targets, inputs=True)

    def _chunk(self, frame: pd.DataFrame, targets: Sequence[str], inputs: bool) -> Chunk:
        weights = read_weights(frame, self.weight)
        if not weights.all():
            # A row that does not count is not there.
            frame, weights = frame[weights > 0], weights[weights > 0]
        y = read_targets(frame, targets, self.schema.kind, self.schema.whole_labels).to_numpy()
        X = self.schema.encode_features(frame) if inputs else np.zeros((len(frame), 0))
        return Chunk(X, y[:, 0] if len(targets) == 1 else y, self._groups(frame), weights)

    def _groups(self, frame: pd.DataFrame) -> Groups:
        """Return the rows of each task."""
        if self.task is None or not len(frame):
            return {"all": np.arange(len(frame))} if len(frame) else {}
        codes, names = task_codes(frame, self.task)
        order: IndexArray = np.argsort(codes.astype(np.int32), kind="stable")
        ends = np.searchsorted(codes[order], np.arange(1, len(names)))
        parts = np.split(order, ends)
        return dict(sorted((self.label(name), rows) for name, rows in zip(names, parts, strict=True)))


def _ahead(items: Iterator[_T]) -> Iterator[_T]:
    """Yield items, the next one of which is made by another thread meanwhile."""
    queue: Queue[tuple[_T | None, BaseException | None]] = Queue(maxsize=1)
    ended = threading.Event()

    def produce() -> None:
        try:
            for item in items:
                queue.put((item, None))
                if ended.is_set():
                    return
            queue.put((None, StopIteration()))
        except BaseException as error:  # raised again where the items are used
            queue.put((None, error))

    thread = threading.Thread(target=produce, daemon=True)
    thread.start()
    try:
        while True:
            item, error = queue.get()
            if isinstance(error, StopIteration):
                return
            if error is not None:
                raise error
            if item is not None:
                yield item
    finally:
        ended.set()
        while thread.is_alive():
            if not queue.empty():
                queue.get()
            thread.join(0.01)


@dataclass(frozen=True)
class StreamCheckpoint:
    """Where the reading of a stream stopped: a folder of which only the owner can read the files.

    Parameters
    ----------
    folder : Path
        The folder.
    fit : str
        A digest of what is fitted, on which table.
    """

    folder: Path
    fit: str

    @classmethod
    def of_fit(cls, folder: Path, stream: TableStream, fields: Mapping[str, Any]) -> StreamCheckpoint:
        """Return the checkpoint of a fit of a stream, as ``fields`` describe it."""
        text = json.dumps({"version": __version__, "stream": stream.fingerprint, **fields}, sort_keys=True)
        return cls(folder, hashlib.sha256(text.encode()).hexdigest())

    def save(self, rows: StreamedRows, layer: Features, statistics: TrainingStatistics, n_chunks: int) -> None:
        """Save the statistics of all parts so far."""
        content, arrays = statistics.to_parts()
        about = {
            "fit": self.fit,
            "chunks": n_chunks,
            "table": rows.schema.to_json(),
            "layer": layer.to_json(),
            "counts": [[label, n] for label, n in rows.counts.items()],
        }
        write_parts(self.folder, {**content, **about}, arrays)

    def clear(self) -> None:
        """Remove the checkpoint of a fit that is done."""
        remove_parts(self.folder)

    def load(self, stream: TableStream, task: str | None, weight: str | None) -> StreamState | None:
        """Return where the reading stopped; None if it is of another fit, or there is none."""
        if not self.folder.is_dir():
            return None
        content, arrays = read_statistics(self.folder, of_model=False)
        if content.get("fit") != self.fit:
            raise ElmeshError(
                f"The checkpoint in {self.folder} is of another fit, or the table has changed since; delete it, or "
                "choose another folder."
            )
        try:
            schema = TableSchema.from_json(content["table"])
            counts = {label: int(n) for label, n in content["counts"]}
            rows = StreamedRows(stream, schema, task, weight, counts)
            layer, statistics = features_from_json(content["layer"]), TrainingStatistics.from_parts(content, arrays)
            return StreamState(rows, layer, statistics, int(content["chunks"]))
        except (LookupError, TypeError, ValueError) as error:
            raise ElmeshError(f"The checkpoint in {self.folder} is damaged; delete it, and start again.") from error


@dataclass(frozen=True, eq=False)
class StreamState:
    """Where the reading of a stream stopped."""

    rows: StreamedRows
    layer: Features
    statistics: TrainingStatistics
    n_chunks: int
