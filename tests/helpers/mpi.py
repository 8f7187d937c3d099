"""Start real MPI ranks, and let many tests examine what one job has found."""

from __future__ import annotations

import fcntl
import importlib.util
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers import forked_ranks

#: Seconds within which every job must have ended.
TIME_LIMIT = 600
#: Seconds within which forked ranks must have ended after their job.
FORK_LIMIT = 60
#: What makes ranks that wait for others sleep: they share the cores with all tests.
IDLE_RANKS_SLEEP = {
    "OMPI_MCA_mpi_yield_when_idle": "1",
    "OMPI_MCA_threads_pthreads_yield_strategy": "nanosleep",
    "OMPI_MCA_threads_pthreads_nanosleep_time": "20000",
}
WORKER = Path(__file__).with_name("mpi_worker.py")

MPIEXEC = shutil.which("mpiexec", path=str(Path(sys.executable).parent)) or shutil.which("mpiexec")
needs_mpi = pytest.mark.skipif(
    MPIEXEC is None or importlib.util.find_spec("mpi4py") is None, reason='needs MPI: pip install "elmesh[mpi]"'
)


@dataclass(frozen=True)
class FinishedJob:
    """The exit code and the output of a job."""

    code: int
    out: str
    err: str


def run_ranks(
    n_ranks: int, *arguments: object, timeout: float = TIME_LIMIT, program: Path = WORKER, forked: bool = False
) -> FinishedJob:
    """Run :mod:`mpi_worker`, or another program, on so many ranks; end those that remain after the timeout.

    Ranks that are forked start at once (see :mod:`helpers.forked_ranks`).
    """
    if not forked:
        return _run(n_ranks, ["-m", "mpi4py", program, *arguments], timeout)
    with forked_program(n_ranks, program) as start:
        return _run(n_ranks, [*start, *arguments], timeout)


#: What ranks of a program need besides what agents need.
_MODULES = {
    "mpi_worker": ("dp_accounting", "elmesh.comm.mpi.masks", "helpers.mpi_cases", "helpers.transports"),
    "rank_worker": ("elmesh.cli.fit", "elmesh.cli.mpi_fit", "elmesh.tables", "pyarrow.dataset"),
}


@contextmanager
def forked_program(n_ranks: int, program: Path) -> Iterator[list[str]]:
    """Yield arguments of Python that run a program on a forked rank, in one job of so many ranks."""
    from helpers.forked import ForkedProcess  # tests without forked ranks do not need what agents need

    with tempfile.TemporaryDirectory(prefix="ranks-") as folder, socket.socket(socket.AF_UNIX) as server:
        server.bind(f"{folder}/socket")
        server.listen(n_ranks)
        process = ForkedProcess(server, n_ranks, _MODULES.get(program.stem, ()), target=forked_ranks.fork_ranks)
        server.close()
        try:
            yield ["-S", forked_ranks.__file__, f"{folder}/socket", str(program)]
            with suppress(subprocess.TimeoutExpired):
                process.wait(FORK_LIMIT)
        finally:
            process.kill()


def _run(n_ranks: int, program: Sequence[object], timeout: float) -> FinishedJob:
    """Run Python with some arguments on so many ranks."""
    # The tests themselves may run under a scheduler, or under mpiexec.
    environ = {name: x for name, x in os.environ.items() if not name.startswith(("OMPI_", "PMIX_", "PRTE_"))}
    environ |= {
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
        **IDLE_RANKS_SLEEP,
    }
    start = [str(MPIEXEC), "-n", str(n_ranks), "--bind-to", "none"]
    command = [*start, sys.executable, *map(str, program)]
    with subprocess.Popen(
        command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as job:
        try:
            out, err = job.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            # mpiexec forwards the signal to its ranks, which are in sessions of their own.
            job.send_signal(signal.SIGTERM)
            try:
                out, err = job.communicate(timeout=20)
            except subprocess.TimeoutExpired:
                os.killpg(job.pid, signal.SIGKILL)
                out, err = job.communicate()
            raise TimeoutError(f"{n_ranks} ranks took {timeout} seconds; their output:\n{out}{err}") from None
    return FinishedJob(job.returncode, out, err)


def job_folder(tmp_path_factory: pytest.TempPathFactory, name: str, make: Callable[[Path], None]) -> Path:
    """Return a folder that the first test process to ask for it fills; if that fails, it fails in all of them."""
    base = tmp_path_factory.getbasetemp()
    # Workers of pytest-xdist have a folder each, side by side.
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / name
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        error_file = folder.with_suffix(".failed")
        if error_file.exists():
            pytest.fail(error_file.read_text())
        if not folder.exists():
            partial = folder.with_suffix(".partial")
            partial.mkdir()
            try:
                make(partial)
            except Exception as error:
                error_file.write_text(f"{type(error).__name__}: {error}")
                raise
            partial.rename(folder)
    return folder


@dataclass(frozen=True)
class Findings:
    """What a part of a job found: arrays by name, and notes in JSON."""

    arrays: dict[str, np.ndarray]
    notes: dict[str, Any]

    @classmethod
    def load(cls, folder: Path, part: str) -> Findings:
        with np.load(folder / f"{part}.npz", allow_pickle=False) as arrays:
            return cls(dict(arrays), json.loads((folder / f"{part}.json").read_text()))

    def save(self, folder: Path, part: str) -> None:
        np.savez(folder / f"{part}.npz", **self.arrays)
        (folder / f"{part}.json").write_text(json.dumps(self.notes))

    def add(self, name: str, findings: Findings) -> None:
        """Add the findings about one thing under its name."""
        self.arrays.update({f"{name}/{key}": x for key, x in findings.arrays.items()})
        self.notes[name] = findings.notes

    def of(self, name: str) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Return the arrays and the notes about one thing."""
        arrays = {key.rpartition("/")[2]: x for key, x in self.arrays.items() if key.rpartition("/")[0] == name}
        return arrays, self.notes[name]
