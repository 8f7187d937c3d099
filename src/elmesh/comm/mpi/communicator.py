"""All processes of an MPI job, and what they say to each other outside of the algorithm: plain JSON, and a few sums."""

from __future__ import annotations

import atexit
import importlib
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elmesh.comm.mpi.failure_detector import RESTING, Heartbeat, Loss
from elmesh.errors import ElmeshError

__all__ = ["MPICommunicator", "in_mpi_job", "world_communicator"]

# What Open MPI and the launchers of other MPIs set for each process.
_SIGNS = ("OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK")


class MPICommunicator:
    """All processes of the job, seen from one of them.

    Parameters
    ----------
    comm : mpi4py communicator
        All of them.
    """

    def __init__(self, comm: Any) -> None:
        self.comm = comm
        self.rank, self.size = int(comm.Get_rank()), int(comm.Get_size())
        self._heart: Heartbeat | None = None
        if self.size > 1:
            self._heart = Heartbeat(self.rank, self.size, self.allgather)
            # Before MPI ends, which mpi4py sees to when Python does: who goes in peace says so.
            atexit.register(self._heart.stop)
            # A script that fails in one process would leave the others waiting for it.
            self._before, sys.excepthook = sys.excepthook, self._on_error

    def _on_error(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        self._before(kind, error, trace)
        sys.stderr.flush()
        self.abort(1)

    def at(self, k: int) -> None:
        """Say which round this process is in."""
        if self._heart is not None:
            self._heart.round = k

    @contextmanager
    def working(self) -> Iterator[None]:
        """Take silence for a sign of trouble inside; until the outermost such block ends."""
        outer = self._heart is not None and self._heart.round == RESTING
        if outer:
            self.at(-1)
        try:
            yield
        finally:
            if outer:
                self.at(RESTING)

    def on_loss(self, tell: Callable[[Loss], None]) -> None:
        """Have ``tell`` called with a :class:`Loss` when another process is lost, instead of a sentence on stderr."""
        if self._heart is not None:
            self._heart.tell = tell

    def allgather(self, notes: Any) -> list[Any]:
        """Return every process's notes, in the order of ranks."""
        own = np.frombuffer(json.dumps(notes).encode(), np.uint8)
        sizes = np.empty(self.size, np.int64)
        self.comm.Allgather(np.array([len(own)], np.int64), sizes)
        everything = np.empty(int(sizes.sum()), np.uint8)
        self.comm.Allgatherv(own, [everything, sizes])
        ends = np.cumsum(sizes).tolist()
        return [json.loads(bytes(everything[end - size : end])) for end, size in zip(ends, sizes.tolist(), strict=True)]

    def allreduce_sum(self, counts: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the sum of all processes' counts."""
        own = np.ascontiguousarray(counts, dtype=np.int64)
        communicator = np.empty_like(own)
        self.comm.Allreduce(own, communicator)
        return communicator

    def gather_bytes(self, data: bytes) -> list[bytes]:
        """Return every process's data at rank 0, and nothing elsewhere."""
        sizes = np.empty(self.size, np.int64)
        self.comm.Allgather(np.array([len(data)], np.int64), sizes)
        everything = np.empty(int(sizes.sum()) if self.rank == 0 else 0, np.uint8)
        self.comm.Gatherv(np.frombuffer(data, np.uint8), [everything, sizes] if self.rank == 0 else None)
        ends = np.cumsum(sizes).tolist() if self.rank == 0 else []
        return [bytes(everything[end - size : end]) for end, size in zip(ends, sizes.tolist(), strict=False)]

    def allreduce_max(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the largest of all processes' values, one by one."""
        communicator = np.empty_like(values)
        self.comm.Allreduce(values, communicator, _mpi().MAX)
        return communicator

    def broadcast(self, values: NDArray[np.float64], root: int) -> NDArray[np.float64]:
        """Return the array that one process has."""
        shape = np.zeros(1 + 8, np.int64)
        if self.rank == root:
            shape[0], shape[1 : 1 + values.ndim] = values.ndim, values.shape
        self.comm.Bcast(shape, root)
        if self.rank != root:
            values = np.empty(shape[1 : 1 + shape[0]])
        self.comm.Bcast(values, root)
        return values

    def abort(self, code: int) -> None:
        """End all processes at once; nobody has to look for a reason."""
        if self._heart is not None:
            self._heart.stop()
        self.comm.Abort(code)


def in_mpi_job() -> bool:
    """Say whether this process was started by mpiexec, or by a scheduler in its place."""
    return any(sign in os.environ for sign in _SIGNS)


@cache
def world_communicator() -> MPICommunicator:
    """Return all processes of the job that this one is part of; it may be the only one."""
    return MPICommunicator(_mpi().COMM_WORLD)


def _mpi() -> Any:
    try:
        return importlib.import_module("mpi4py.MPI")
    except (ImportError, RuntimeError) as error:
        raise ElmeshError(
            'runtime="mpi" needs MPI, which is not installed here; install it with: pip install "elmesh[mpi]"'
        ) from error
