"""One suite of invariants for every transport: one process, real MPI ranks, agents of a network.

The invariants are in :mod:`helpers.transports`. Messages of a network go through memory here, and through TLS in the
integration tests.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from helpers.mpi import Findings, job_folder, needs_mpi, run_ranks
from helpers.transports import CHECKS, check_local, check_network

N_RANKS = 3


@pytest.mark.parametrize("name", CHECKS)
@pytest.mark.parametrize("run", [check_local, check_network], ids=["local", "network"])
def test_a_transport_in_memory_has_the_invariant(name, run):
    assert len(set(run(CHECKS[name]))) == 1


@pytest.fixture(scope="module")
def ranks(tmp_path_factory) -> Findings:
    def make(folder: Path) -> None:
        job = run_ranks(N_RANKS, folder, "transports")
        if job.code:
            raise RuntimeError(f"The job ended with code {job.code}; its output:\n{job.out}{job.err}")

    return Findings.load(job_folder(tmp_path_factory, "transport-job", make), "transports")


@pytest.mark.thorough
@needs_mpi
@pytest.mark.parametrize("placement", ["even", "scattered"])
@pytest.mark.parametrize("name", CHECKS)
def test_mpi_ranks_have_the_invariant(ranks, name, placement):
    found = ranks.notes[f"{name}/{placement}"]
    assert [error for error, _ in found] == [""] * N_RANKS
    assert len({result for _, result in found}) == 1
