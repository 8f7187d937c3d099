"""Start real ranks of MPI, and let many tests look at what one job has found."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from elmesh.cli.job import find_mpiexec
from elmesh.cli.placement import Placement
from elmesh.errors import ElmeshError

#: Seconds within which every job must have ended.
BOUND = 600
WORKER = Path(__file__).with_name("mpi_worker.py")


def _lacking() -> str:
    """Say what there is not, or nothing."""
    try:
        find_mpiexec()
    except ElmeshError as error:
        return str(error)
    return ""


needs_mpi = pytest.mark.skipif(bool(_lacking()), reason=_lacking() or "MPI is there")


@dataclass(frozen=True)
class Ended:
    """How a job ended, and what was said."""

    code: int
    out: str
    err: str


def run_ranks(n_ranks: int, *arguments: object, timeout: float = BOUND) -> Ended:
    """Run :mod:`mpi_worker` on so many ranks; whatever is left of them after the timeout is ended."""
    place = Placement.here(n_ranks)
    # The tests themselves may run under a scheduler, or under mpiexec.
    bare = {name: x for name, x in os.environ.items() if not name.startswith(("OMPI_", "PMIX_", "PRTE_"))}
    environ = place.variables(bare)
    command = [
        find_mpiexec(),
        *place.options(environ),
        sys.executable,
        "-m",
        "mpi4py",
        str(WORKER),
        *map(str, arguments),
    ]
    with subprocess.Popen(
        command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as job:
        try:
            out, err = job.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            # mpiexec passes it on to its ranks, which are in sessions of their own.
            job.send_signal(signal.SIGTERM)
            try:
                out, err = job.communicate(timeout=20)
            except subprocess.TimeoutExpired:
                os.killpg(job.pid, signal.SIGKILL)
                out, err = job.communicate()
            raise TimeoutError(f"{n_ranks} ranks took {timeout} seconds; they said:\n{out}{err}") from None
    return Ended(job.returncode, out, err)


def once(folder: Path, make: Callable[[Path], None]) -> Path:
    """Have a folder filled by the first of several processes that asks for it; one that failed fails for all."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        complaint = folder.with_suffix(".failed")
        if complaint.exists():
            pytest.fail(complaint.read_text())
        if not folder.exists():
            partial = folder.with_suffix(".partial")
            partial.mkdir()
            try:
                make(partial)
            except Exception as error:
                complaint.write_text(f"{type(error).__name__}: {error}")
                raise
            partial.rename(folder)
    return folder


@dataclass(frozen=True)
class Found:
    """What a part of a job found: arrays by name, and notes."""

    arrays: dict[str, np.ndarray]
    notes: dict[str, Any]

    @classmethod
    def load(cls, folder: Path, part: str) -> Found:
        with np.load(folder / f"{part}.npz", allow_pickle=False) as arrays:
            return cls(dict(arrays), json.loads((folder / f"{part}.json").read_text()))

    def save(self, folder: Path, part: str) -> None:
        np.savez(folder / f"{part}.npz", **self.arrays)
        (folder / f"{part}.json").write_text(json.dumps(self.notes))
