"""What all processes together know of a table that none of them holds whole.

Each process has the rows of some tasks. They tell each other, and nobody else:

- the labels of their tasks and the names of the columns;
- of each column and task its :class:`~elmesh.tables.facts.Facts`: counts, what sorts of value there are, mean, sum of
  squared deviations, smallest and largest number (which of a task with one row are its value);
- of each column of text its categories, and of a classification target its classes, unless there are too many to be
  either: then only that there are;
- of a target of whole numbers the different ones, if they are few;
- of each column of numbers how many lie up to points that close in on its median (see :mod:`elmesh.tables.medians`);
- before an error that points at a cell, where the first such cell is and what it says.

No row and no other value leaves a process. Everybody merges what was told in the same order, that of the tasks'
labels, and so comes to the same end, to the bit, however the tasks are spread over processes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import starmap
from operator import add
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from elmesh.comm.communicator import Communicator, merge_by_task, raise_on_all
from elmesh.errors import ElmeshError
from elmesh.tables.columns import Flags, joined, labels, numbers
from elmesh.tables.facts import Facts, summarise
from elmesh.tables.headers import odd_column
from elmesh.tables.medians import medians
from elmesh.tables.rows import where

__all__ = ["Different", "Shares", "Spot", "Survey"]


@dataclass(frozen=True, eq=False)
class Shares:
    """The rows a process holds.

    Attributes
    ----------
    tasks
        Their labels, sorted.
    frame
        A table with all of the rows.
    order
        Which rows to take from it, so that task follows task.
    starts
        Where each task starts among these.
    origins
        The tables it was put together from, each with a name that tells its rows apart from those of other tables,
        other processes' included.
    """

    tasks: tuple[str, ...]
    frame: pd.DataFrame
    order: npt.NDArray[np.intp]
    starts: npt.NDArray[np.intp]
    origins: Mapping[str, pd.DataFrame]

    @classmethod
    def split(cls, frame: pd.DataFrame, tasks: npt.NDArray[np.str_]) -> Shares:
        """Take one table with the task of each row."""
        codes, found = pd.factorize(tasks.astype(object), sort=True)
        order = np.argsort(codes, kind="stable")
        starts = np.searchsorted(codes[order], np.arange(len(found)))
        return cls(tuple(map(str, found)), frame, order, starts, {"": frame})

    @classmethod
    def of(cls, frames: Mapping[str, pd.DataFrame]) -> Shares:
        """Take a table for each task."""
        tasks = tuple(sorted(frames))
        for task in tasks:
            if not len(frames[task]):
                raise ElmeshError(f'Task "{task}" has no rows; leave it out.')
        headers = {task: [str(name) for name in frames[task].columns] for task in tasks}
        _check_columns(headers)
        origins = {task: frames[task] for task in tasks}
        whole = joined(list(origins.values()), headers[tasks[0]]) if tasks else pd.DataFrame()
        ends = np.cumsum([0, *map(len, origins.values())])
        return cls(tasks, whole, np.arange(ends[-1]), ends[:-1], origins)

    def column(self, name: str) -> pd.Series[Any]:
        """Give a column, of no rows if there are no tasks."""
        return self.frame[name] if self.tasks else pd.Series(dtype=np.float64)

    def first(self, name: str, flags: Flags) -> list[Any] | None:
        """Point at the first cell of a column that is flagged, by a note that sorts as the rows of all processes do."""
        if not flags.any():
            return None
        row = int(np.argmax(flags))
        text = str(self.frame[name].iloc[row])
        for origin, frame in self.origins.items():
            if row < len(frame):
                return [origin, row, where(frame, row), text]
            row -= len(frame)
        return None


@dataclass(frozen=True)
class Spot:
    """A cell to point at: where it is, and what it says."""

    where: str
    text: str


@dataclass(frozen=True)
class Different:
    """The different values of a column.

    Attributes
    ----------
    values
        All of them, sorted; none of them if there are more than it takes.
    count
        How many they are in words, such as ``51`` or ``more than 50``.
    too_many
        Whether there are more than it takes.
    missing
        How many rows have none.
    """

    values: tuple[Any, ...]
    count: str
    too_many: bool
    missing: int


@dataclass(frozen=True, eq=False)
class Survey:
    """What is known of a table over all processes. Every method is called by all of them, or by none.

    Attributes
    ----------
    shares
        The rows of this process.
    together
        The processes.
    facts
        The facts of each column over all tasks, in the order that the first task has the columns in.
    """

    shares: Shares
    communicator: Communicator
    facts: dict[str, Facts]

    @classmethod
    def take(cls, shares: Shares, communicator: Communicator, leave_out: Collection[str] = ()) -> Survey:
        """Look at all columns but those left out."""
        headers = merge_by_task(
            communicator, {task: [str(name) for name in shares.frame.columns] for task in shares.tasks[:1]}
        )
        if not headers:
            raise ElmeshError("There are no tasks; give one at least.")
        _check_columns(headers)
        columns = [name for name in next(iter(headers.values())) if name not in leave_out]
        own: dict[str, list[list[int | float]]] = {task: [] for task in shares.tasks}
        with raise_on_all(communicator):
            for name in columns if own else ():
                found = summarise(shares.column(name), shares.order, shares.starts)
                for notes, facts in zip(own.values(), found, strict=True):
                    notes.append(list(vars(facts).values()))
        by_column = zip(*merge_by_task(communicator, own).values(), strict=True)
        return cls(
            shares,
            communicator,
            {name: reduce(add, starmap(Facts, notes)) for name, notes in zip(columns, by_column, strict=True)},
        )

    def first(self, name: str, flagged: Callable[[pd.Series[Any]], Flags]) -> Spot:
        """Find the first cell of a column that is flagged; somebody must have one."""
        own = self.shares.first(name, flagged(self.shares.column(name)))
        found = min(note for note in self.communicator.allgather(own) if note is not None)
        return Spot(*found[2:])

    def labels(self, names: Sequence[str], limit: int) -> dict[str, Different]:
        """Find the different values of columns as text, if they are at most so many."""
        own = [labels(self.shares.column(name)) for name in names]
        found = self._different([set(values) - {None} for values in own], limit)
        missing = self.communicator.allreduce_sum(np.array([pd.isna(values).sum() for values in own], dtype=np.int64))
        return {name: Different(*different, int(n)) for name, different, n in zip(names, found, missing, strict=True)}

    def numbers(self, name: str, limit: int) -> Different:
        """Find the different numbers of a column, if they are at most so many."""
        own = numbers(self.shares.column(name))[0]
        different = self._different([set(np.unique(own[np.isfinite(own)]).tolist())], limit)[0]
        return Different(*different, self.facts[name].missing)

    def _different(self, own: Sequence[set[Any]], limit: int) -> list[tuple[tuple[Any, ...], str, bool]]:
        alone = self.communicator.size == 1  # nothing leaves, so they can be counted to the last
        notes = [None if len(values) > limit and not alone else sorted(values) for values in own]
        found = []
        for told in zip(*self.communicator.allgather(notes), strict=True):
            union = {value for values in told if values is not None for value in values}
            too_many = len(union) > limit or None in told
            # How many a process told of depends on which tasks it has, and no message should.
            count = f"more than {limit}" if too_many and not alone else str(len(union))
            found.append((() if too_many else tuple(sorted(union)), count, too_many))
        return found

    def medians(self, names: Sequence[str]) -> dict[str, float]:
        """Find the medians of columns of numbers, each of which has one at least."""
        facts = [self.facts[name] for name in names]
        own = [numbers(self.shares.column(name))[0] for name in names]
        found = medians(
            [values[~np.isnan(values)] for values in own],
            np.array([fact.numbers for fact in facts], dtype=np.int64),
            np.array([fact.least for fact in facts], dtype=np.float64),
            np.array([fact.most for fact in facts], dtype=np.float64),
            self.communicator,
        )
        return dict(zip(names, found.tolist(), strict=True))


def _check_columns(headers: Mapping[str, Sequence[str]]) -> None:
    odd = odd_column(headers)
    if odd:
        raise ElmeshError(
            f'Every task must have the same columns, but task "{odd.has}" has a column "{odd.name}" and task '
            f'"{odd.lacks}" does not.'
        )
