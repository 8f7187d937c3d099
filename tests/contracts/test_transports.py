"""One suite of invariants for every transport: one process, real MPI ranks, agents of a network.

The invariants are in :mod:`helpers.transports`. Messages of a network go through memory here, and through TLS in the
integration tests; those of MPI ranks are checked in ``tests/integration/test_mpi.py``, whose job does many things.
"""

from __future__ import annotations

import pytest

from helpers.transports import CHECKS, check_local, check_local_masked, check_network

RUNS = {"local": check_local, "local, masked": check_local_masked, "network": check_network}


@pytest.mark.parametrize("name", CHECKS)
@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)
def test_a_transport_in_memory_has_the_invariant(name, run):
    assert len(set(run(CHECKS[name]))) == 1
