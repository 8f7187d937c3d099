"""Statistics of a table that is read in parts: those of the parts are added."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from elmesh.errors import ElmeshError
from elmesh.tables.access import finite_numbers, require_complete, task_codes
from elmesh.tables.columns import Mask
from elmesh.tables.stats import MOST_VALUES, ColumnStats, LocalRows, TableRows
from elmesh.tables.stream import TableStream, add_to_sample
from elmesh.typing import FloatArray

__all__ = ["StreamedTable", "read_weights"]

# The task of all rows, where there is one.
_ALL = "all"


def read_weights(frame: pd.DataFrame, name: str | None) -> FloatArray:
    """Return the weight of each row from a column, one for all rows if there is none; raise if one is negative."""
    if name is None:
        return np.ones(len(frame))
    weights = require_complete(frame, name, finite_numbers(frame, name), "weight")
    if np.any(weights < 0):
        raise ElmeshError(f'The column "{name}" of weights has {weights.min():g}; weights must not be negative.')
    return weights


@dataclass(frozen=True, eq=False)
class StreamedTable(TableRows):
    """The rows of a stream; ``drawn`` are some of them, with all columns."""

    stream: TableStream
    stats: dict[str, dict[str, ColumnStats]]
    drawn: pd.DataFrame
    sampled: LocalRows

    @classmethod
    def scan(cls, stream: TableStream, task: str | None = None, weight: str | None = None) -> StreamedTable:
        """Read all rows once. The columns of the task and of the weight, if any, have no statistics."""
        stats: dict[str, dict[str, ColumnStats]] = {}
        kept, keys, place = pd.DataFrame(), np.zeros(0, dtype=np.uint64), 0
        names = [name for name in stream.columns if name not in (task, weight)]
        for frame in stream.chunks():
            codes, labels = (np.zeros(len(frame), dtype=np.intp), [_ALL]) if task is None else task_codes(frame, task)
            weights = None if weight is None else read_weights(frame, weight)
            rows = LocalRows.from_codes(frame[names], codes, labels, weights=weights)
            for label, columns in rows.stats.items():
                known = stats.get(label)
                stats[label] = columns if known is None else {name: known[name] + columns[name] for name in names}
            kept, keys, place = add_to_sample(kept, keys, frame, place)
        codes, labels = (np.zeros(len(kept), dtype=np.intp), [_ALL]) if task is None else task_codes(kept, task)
        sample = LocalRows.from_codes(kept[names], codes, labels)
        return cls(stream, dict(sorted(stats.items())), kept, sample)

    def first_cell(self, name: str, select: Callable[[pd.Series[Any]], Mask]) -> list[Any] | None:
        """Return the first selected cell of a column: a key to sort by, its row in words, and its text."""
        for frame in self.stream.chunks([name]):
            found = LocalRows.from_table(frame, np.full(len(frame), _ALL)).first_cell(name, select)
            if found is not None:
                return found
        return None

    def distinct(
        self, names: Sequence[str], convert: Callable[[pd.Series[Any]], NDArray[Any]]
    ) -> dict[str, tuple[int, dict[Any, int]]]:
        """Return the number of missing values, and how often each value occurs, at most about a hundred thousand."""
        missing, values = dict.fromkeys(names, 0), {name: Counter[Any]() for name in names}
        if not names:
            return {}
        for frame in self.stream.chunks(names):
            for name in names:
                found = convert(frame[name])
                absent = pd.isna(found)
                missing[name] += int(absent.sum())
                if len(values[name]) < MOST_VALUES:
                    values[name].update(found[~absent].tolist())
        return {name: (missing[name], dict(values[name])) for name in names}

    @property
    def sample(self) -> LocalRows:
        """Some of the rows."""
        return self.sampled
