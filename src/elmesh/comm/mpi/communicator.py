"""The communicator of an MPI job: JSON, bytes and a few numbers, outside of the algorithm."""

from __future__ import annotations

import atexit
import importlib
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from elmesh.comm.communicator import Communicator
from elmesh.comm.mpi.failure_detector import IDLE, FailureDetector, RankFailure
from elmesh.errors import ElmeshError
from elmesh.typing import FloatArray

if TYPE_CHECKING:
    from elmesh.comm.mpi.masks import MaskedRanks

__all__ = ["MPICommunicator", "mpi_module", "world_communicator"]


class MPICommunicator(Communicator):
    """All processes of an MPI job, given by a communicator of mpi4py, with a failure detector."""

    def __init__(self, comm: Any) -> None:
        self.comm = comm
        self.rank, self.size = int(comm.Get_rank()), int(comm.Get_size())
        self._detector: FailureDetector | None = None
        if self.size > 1:
            self._detector = FailureDetector(self.rank, self.size, self.allgather)
            # Before mpi4py finalises MPI at exit, so that a normal end is not taken for a failure.
            atexit.register(self._detector.stop)
            # A script that fails in one process would leave the others waiting for it.
            self._excepthook, sys.excepthook = sys.excepthook, self._abort_on_error

    def mask(self) -> MaskedRanks:
        """Exchange keys for masked sums with all processes, and return these sums."""
        from elmesh.comm.mpi.masks import MaskedRanks  # noqa: PLC0415  (needs cryptography, an optional dependency)

        return MaskedRanks(self)

    def _abort_on_error(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        self._excepthook(kind, error, trace)
        sys.stderr.flush()
        self.abort(1)

    def set_round(self, k: int) -> None:
        """Set the round that heartbeats carry."""
        if self._detector is not None:
            self._detector.round = k

    @contextmanager
    def monitored(self) -> Iterator[None]:
        """Have the failure detector act on missed heartbeats inside (until the outermost such block ends)."""
        outer = self._detector is not None and self._detector.round == IDLE
        if outer:
            self.set_round(-1)
        try:
            yield
        finally:
            if outer:
                self.set_round(IDLE)

    def on_failure(self, callback: Callable[[RankFailure], None]) -> None:
        """Call ``callback`` when another rank is lost, instead of printing a sentence on stderr."""
        if self._detector is not None:
            self._detector.on_failure = callback

    def allgather(self, content: Any) -> list[Any]:
        """Return the JSON content of every process, in the order of ranks."""
        data = json.dumps(content).encode()
        sizes = self._sizes(data)
        gathered = np.empty(int(sizes.sum()), np.uint8)
        self.comm.Allgatherv(np.frombuffer(data, np.uint8), [gathered, sizes])
        return [json.loads(part) for part in _split(gathered, sizes)]

    def _sizes(self, data: bytes) -> NDArray[np.int64]:
        sizes = np.empty(self.size, np.int64)
        self.comm.Allgather(np.array([len(data)], np.int64), sizes)
        return sizes

    def allreduce_sum(self, integers: NDArray[Any]) -> NDArray[Any]:
        """Return the sum of integers of any width over all processes; they wrap around."""
        own = np.ascontiguousarray(integers)
        total = np.empty_like(own)
        self.comm.Allreduce(own, total)
        return total

    def allreduce_max(self, values: FloatArray) -> FloatArray:
        """Return the largest value over all processes, entry by entry."""
        largest = np.empty_like(values)
        self.comm.Allreduce(values, largest, mpi_module().MAX)
        return largest

    def gather_bytes(self, data: bytes, root: int = 0) -> list[bytes]:
        """Return the bytes of every process at one of them, and an empty list at the others."""
        sizes, here = self._sizes(data), self.rank == root
        gathered = np.empty(int(sizes.sum()) if here else 0, np.uint8)
        self.comm.Gatherv(np.frombuffer(data, np.uint8), [gathered, sizes] if here else None, root)
        return _split(gathered, sizes) if here else []

    def broadcast(self, values: FloatArray, root: int) -> FloatArray:
        """Return the array of one process."""
        shape = np.zeros(1 + 8, np.int64)
        if self.rank == root:
            shape[0], shape[1 : 1 + values.ndim] = values.ndim, values.shape
        self.comm.Bcast(shape, root)
        if self.rank != root:
            values = np.empty(shape[1 : 1 + shape[0]])
        self.comm.Bcast(values, root)
        return values

    def broadcast_bytes(self, data: bytes, root: int) -> bytes:
        """Return the bytes of one process."""
        size = np.array([len(data)])
        self.comm.Bcast(size, root)
        buffer = bytearray(data if self.rank == root else int(size[0]))
        self.comm.Bcast(buffer, root)
        return bytes(buffer)

    def abort(self, code: int) -> None:
        """End all processes at once."""
        if self._detector is not None:
            self._detector.stop()
        self.comm.Abort(code)


def _split(data: NDArray[np.uint8], sizes: NDArray[np.int64]) -> list[bytes]:
    return [part.tobytes() for part in np.split(data, np.cumsum(sizes)[:-1])]


@cache
def world_communicator() -> MPICommunicator:
    """Return the communicator of the MPI job that this process is part of; it may be the only one."""
    return MPICommunicator(mpi_module().COMM_WORLD)


def mpi_module() -> Any:
    """Return ``mpi4py.MPI``, or raise an error that states what to install."""
    try:
        return importlib.import_module("mpi4py.MPI")
    except (ImportError, RuntimeError) as error:
        raise ElmeshError(
            'The backend "mpi" needs MPI, which is not installed; run pip install "elmesh[mpi]".'
        ) from error
