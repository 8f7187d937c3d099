"""The default solver on MPI ranks: common, shared and private weights have the bits of one process."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest

from helpers.mpi import Findings, job_folder, needs_mpi, run_ranks
from helpers.mpi_cases import SITES
from helpers.parts import found_parts, gathered_parts, known_noise

pytestmark = needs_mpi

RANKS = (1, 2, 3)


@pytest.fixture(scope="module")
def jobs(tmp_path_factory) -> Path:
    """A folder with what every job has found, in folders named after its number of ranks."""

    def run_all(folder: Path) -> None:
        for n in RANKS:
            (folder / str(n)).mkdir()
            job = run_ranks(n, folder / str(n), "parts")
            if job.code:
                raise RuntimeError(f"{n} ranks ended with code {job.code}; their output:\n{job.out}{job.err}")

    return job_folder(tmp_path_factory, "mpi-parts", run_all)


@cache
def one_process(name: str) -> dict[str, np.ndarray]:
    data, make, _ = SITES[name]
    X, y, sites = data()
    with known_noise():
        model = make().fit(X, y, tasks=sites)
    labels = np.unique(sites)
    own = {"V": np.stack([model.V_[t] for t in labels]), "noise": np.stack([model.noise_[t] for t in labels])}
    return found_parts(model) | own | gathered_parts(model, X, sites)


@cache
def findings(folder: Path, n_ranks: int) -> Findings:
    return Findings.load(folder / str(n_ranks), "parts")


def test_some_fits_keep_a_shared_part_and_some_have_none():
    ranks = {name: one_process(name)["U"].shape[1] for name in SITES}
    assert ranks["regression"] > 0
    assert ranks["classes with a shared part"] > 0
    assert ranks["no shared part"] == 0


@pytest.mark.parametrize("n_ranks", RANKS)
@pytest.mark.parametrize(("name", "placement"), [(name, how) for name, case in SITES.items() for how in case[2]])
def test_every_part_has_the_bits_of_one_process(jobs, name, placement, n_ranks):
    arrays, notes = findings(jobs, n_ranks).of(f"{name}/{placement}")
    assert notes["equal"]
    expected = one_process(name)
    assert arrays.keys() == expected.keys()
    for what, value in expected.items():
        assert np.array_equal(arrays[what], value), what
