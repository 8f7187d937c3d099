"""A network ends where MPI ends, to the bit: by sites in threads, and by real agents in processes of their own."""

import os
import subprocess
import sys
from dataclasses import dataclass

import msgspec.structs
import numpy as np
import pytest

from elmesh.netconfig.columns import InputColumn
from helpers.network import BASIS, ROOT, Trial, make_config, rows_of
from helpers.sites import fitted, together

SUMS = {"exchange": "sums", "rank": "auto", "rounds": 200}
CASES = {
    "ring": ("ring", {}),
    "star, first order": ("star", {"solver": "fo-dmtl-elm"}),
    "path, the paper's gamma": ("path", {"parameters": BASIS | {"gamma": "paper"}}),
    "complete, proximal": ("complete", {"parameters": BASIS | {"tau": "20 + d", "zeta": 40.0, "proximal": "standard"}}),
    "ring, sums": ("ring", SUMS | {"parameters": {}}),
    "star, sums of 4 bits": ("star", SUMS | {"parameters": {"message_bits": 4}}),
    "path, sums of few bits": ("path", SUMS | {"parameters": {"message_bits": "auto"}}),
    "ring, sums by ADMM": ("ring", SUMS | {"rank": 3, "rounds": 30, "parameters": {"method": "admm"}}),
}
REFERENCE = """
import sys, warnings
import numpy as np
sys.path.insert(0, sys.argv[1])
from helpers.network import rows_of
from helpers.sites import estimator
from elmesh.netconfig.config import NetworkConfig
warnings.simplefilter("ignore")
for file, out in zip(sys.argv[2::2], sys.argv[3::2]):
    config = NetworkConfig.read(file)
    frames = {name: rows_of(name, kind=config.kind) for name in config.agent_names}
    X = np.concatenate([frame.drop(columns="y").to_numpy() for frame in frames.values()])
    y = np.concatenate([frame["y"].to_numpy() for frame in frames.values()])
    tasks = np.concatenate([[name] * len(frame) for name, frame in frames.items()])
    model = estimator(config)
    tol = model.solver.tol if config.exchange == "sums" and not model.solver.own_basis else 0.0
    model.solver.set_params(runtime="mpi", tol=tol)
    model.fit(X, y, tasks=tasks)
    U = model.U_ if model.U_.ndim == 3 else [model.U_] * len(config.agent_names)
    found = {f"U.{n}": U[k] for k, n in enumerate(config.agent_names)} | {f"A.{n}": A for n, A in model.A_.items()}
    np.savez(out, certified=model.certificate_ is not None, **found)
"""


@dataclass
class Reference:
    """What MPI makes of the configs of all cases, in one job."""

    configs: dict
    found: dict


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    pytest.importorskip("mpi4py", reason="mpi4py is not installed")
    folder = tmp_path_factory.mktemp("mpi")
    configs = {name: make_config(graph=graph, **changes) for name, (graph, changes) in CASES.items()}
    words = []
    for k, config in enumerate(configs.values()):
        (folder / f"{k}.toml").write_text(config.to_toml())
        words += [str(folder / f"{k}.toml"), str(folder / f"{k}.npz")]
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "PYTHONPATH": str(ROOT / "src")}
    subprocess.run(
        [sys.executable, "-c", REFERENCE, str(ROOT / "tests"), *words],
        check=True,
        cwd=folder,
        env=os.environ | root | {"OPENBLAS_NUM_THREADS": "1"},
        timeout=300,
    )
    return Reference(configs, {name: dict(np.load(folder / f"{k}.npz")) for k, name in enumerate(configs)})


@pytest.mark.parametrize("case", CASES)
def test_sites_end_where_mpi_ends_to_the_bit(tmp_path, reference, case):
    models = together(reference.configs[case], tmp_path / "net", fitted)
    found = reference.found[case]
    for name, model in models.items():
        assert np.array_equal(model.U_, found[f"U.{name}"]), name
        assert np.array_equal(model.A_[name], found[f"A.{name}"]), name
        assert (model.certificate_ is not None) == found["certified"]


def test_real_agents_end_with_the_same_bits_as_sites_in_one_process(tmp_path):
    # The command scales columns by their declared ranges: here they are such that it changes nothing.
    half = float(np.sqrt(3.0))
    config = make_config(("a", "b", "c"), graph="path", weight_scale=0.5)
    columns = tuple(InputColumn(column.name, range=(-half, half)) for column in config.columns)
    config = msgspec.structs.replace(config, columns=columns)
    with Trial(tmp_path / "processes", config) as trial:
        trial.start_all()
        assert set(trial.wait().values()) == {0}
        weights = trial.weights()
        assert all(trial.result(name)["stop"] == "COMPLETED" for name in config.agent_names)
    models = together(make_config(("a", "b", "c"), graph="path", weight_scale=0.5), tmp_path / "threads", fitted)
    for name, model in models.items():
        assert len(rows_of(name)) >= 50
        assert np.array_equal(weights[name]["U.0"], model.U_)
        assert np.array_equal(weights[name]["A.0"], model.A_[name])
