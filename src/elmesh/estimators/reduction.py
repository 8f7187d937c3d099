"""From rows in parts to the statistics of each site."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np

from elmesh.data.features import Features
from elmesh.data.row_keys import row_keys
from elmesh.data.site_statistics import KeyedRows, SiteStatistics
from elmesh.estimators.rows import Chunk, TrainingRows
from elmesh.estimators.target_encoding import TargetEncoding, weighted
from elmesh.math.blas import limit_blas_threads
from elmesh.tables.stream import StreamStopped
from elmesh.typing import Label

__all__ = ["collect_statistics", "keyed_rows"]

# Features of fewer numbers than this are computed by one thread.
_SMALL = 4_000_000
# Parts between which statistics are saved.
_SAVED_EVERY = 100


def keyed_rows(chunk: Chunk, encoding: TargetEncoding, task: Label, seed: int) -> KeyedRows:
    """Return the rows of a task in a chunk, as its statistics take them."""
    index = chunk.groups[task]
    y, X = chunk.y[index], np.ascontiguousarray(chunk.X[index])
    T = encoding.encode(task, y)
    return KeyedRows(X, T, weighted(encoding, y, chunk.weights[index]), row_keys(np.hstack([X, T]), seed))


def collect_statistics(
    rows: TrainingRows,
    layer: Features,
    encoding: TargetEncoding,
    seed: int,
    *,
    into: Mapping[Label, SiteStatistics] | None = None,
    one_thread: bool = False,
    skip: int = 0,
    save: Callable[[dict[Label, SiteStatistics], int], None] | None = None,
) -> dict[Label, SiteStatistics]:
    """Return the statistics of each site, added to those that it has.

    The features of a part of one site at a time and thread are in memory. Sites are divided among threads, each of
    which adds the parts of a site in their order, so that results do not depend on the number of threads.

    Parameters
    ----------
    rows : TrainingRows
        The rows.
    layer : Features
        From inputs to features.
    encoding : TargetEncoding
        From targets to numbers.
    seed : int
        Of the keys of rows.
    into : mapping, optional
        Statistics to add to; these are changed.
    one_thread : bool
        Whether to use one thread, and one of BLAS.
    skip : int
        How many parts at the beginning were added before.
    save : callable, optional
        Called with the statistics of so many parts, now and then and when the reading is stopped.
    """
    found, n_chunks = dict(into or {}), skip
    with _workers(rows, layer.width, one_thread=one_thread) as run:
        chunks = rows.chunks(skip=skip)
        while True:
            try:
                chunk = next(chunks, None)
            except StreamStopped:
                if save is not None:
                    save(found, n_chunks)
                raise
            if chunk is None:
                break

            def add(task: Label, chunk: Chunk = chunk) -> None:
                new = keyed_rows(chunk, encoding, task, seed)
                found.setdefault(task, SiteStatistics(new.X.shape[1], new.T.shape[1])).add(layer, new)

            run(add, list(chunk.groups))
            n_chunks += 1
            if save is not None and n_chunks % _SAVED_EVERY == 0:
                save(found, n_chunks)
    return dict(sorted(found.items()))


@contextmanager
def _workers(
    rows: TrainingRows, width: int, *, one_thread: bool
) -> Iterator[Callable[[Callable[[Label], None], list[Label]], object]]:
    """Yield a function that calls another one for each task, in one thread or several."""
    sizes = rows.sizes
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if one_thread or len(sizes) < cores or cores == 1 or sum(sizes.values()) * width < _SMALL:
        longest = max(sizes.values(), default=1)
        with limit_blas_threads(longest, width, min(longest, width), always=one_thread):
            yield lambda add, tasks: deque(map(add, tasks), maxlen=0)
        return
    with limit_blas_threads(always=True), ThreadPoolExecutor(cores) as pool:
        yield lambda add, tasks: deque(pool.map(add, tasks), maxlen=0)
