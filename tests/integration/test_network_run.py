"""A network computes the same bits as MPI: by agents in threads, from Python scripts, and by the command."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from elmesh import load
from elmesh.agent import NetworkAgent
from elmesh.errors import ElmeshError
from elmesh.netconfig.columns import InputColumn
from elmesh.netconfig.config import NetworkConfig
from elmesh.netconfig.identity import Identity
from elmesh.netconfig.layout import NetworkLayout
from helpers.forked import ForkedNetwork, ForkedProcess, run_script
from helpers.network import BASIS, LIMIT, ROOT, LocalNetwork, make_config, rows_of
from helpers.thread_agents import DeclaredLocal, fit_agent, fit_all_parts, fit_parts, run_agents

SUMS = {"exchange": "sums", "solver": "mesh-elm", "rank": "auto", "rounds": 200}
# The agents scale columns by their ranges: by these, to the same numbers.
UNSCALED = tuple(InputColumn(f"x{j}", range=(-float(np.sqrt(3.0)), float(np.sqrt(3.0)))) for j in range(4))
SCRIPTED = {"graph": "path", "weight_scale": 0.5, "columns": UNSCALED}
CASES = {
    "ring": ("ring", {}),
    "star, first order": ("star", {"solver": "fo-dmtl-elm"}),
    "path, the paper's gamma": ("path", {"parameters": BASIS | {"gamma": "paper"}}),
    "complete, proximal": ("complete", {"parameters": BASIS | {"tau": "20 + d", "zeta": 40.0, "proximal": "standard"}}),
    "ring, sums": ("ring", SUMS | {"parameters": {}}),
    "star, sums of 16 bits": ("star", SUMS | {"parameters": {"message_bits": 16}}),
    "path, sums of 32 bits": ("path", SUMS | {"parameters": {"message_bits": 32}}),
}
_PARTS = SUMS | {"parameters": {"common": "auto", "private": "auto"}}
# Networks that learn a common, a shared and a private part.
PARTS = {
    "regression": ("ring", _PARTS | {"kind": "regression", "target_range": (-6.0, 6.0)}),
    "classes": ("star", _PARTS | {"classes": ("high", "low", "medium")}),
    "classes, given penalties": (
        "path",
        _PARTS | {"classes": ("high", "low"), "parameters": _PARTS["parameters"] | {"mu1": 1.0, "mu2": 1.0}},
    ),
}
# Run by one process with mpi4py, which is an MPI job of one rank.
REFERENCE = """
import sys
import numpy as np
from helpers.thread_agents import fit_all
from elmesh.netconfig.config import NetworkConfig
from elmesh.run import MPIBackend, RunConfig
for file, out in zip(sys.argv[1::2], sys.argv[2::2]):
    config = NetworkConfig.read(file)
    model = fit_all(config, RunConfig(backend=MPIBackend(mask=config.exchange == "sums")))
    U = model.U_ if model.U_.ndim == 3 else [model.U_] * len(config.agent_names)
    found = {f"U.{n}": U[k] for k, n in enumerate(config.agent_names)} | {f"A.{n}": A for n, A in model.A_.items()}
    np.savez(out, certified=model.certificate_ is not None, **found)
"""


# The same for the parts, from the identity of one agent of each network.
PARTS_REFERENCE = """
import sys
import numpy as np
from helpers.thread_agents import DeclaredMPI, fit_all_parts
from elmesh.netconfig.identity import Identity
for file, out in zip(sys.argv[1::2], sys.argv[2::2]):
    found = fit_all_parts(Identity.read(file), DeclaredMPI(mask=True))
    np.savez(out, **{f"{name}/{part}": x for name, parts in found.items() for part, x in parts.items()})
"""


def environment() -> dict[str, str]:
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests")])
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return os.environ | root | {"PYTHONPATH": paths, "OPENBLAS_NUM_THREADS": "1"}


def mpi_results(folder: Path, program: str, files: dict[str, Path]) -> dict[str, dict[str, np.ndarray]]:
    """Fit the networks of files under MPI, in one job."""
    words = [str(word) for k, file in enumerate(files.values()) for word in (file, folder / f"{k}.npz")]
    subprocess.run(
        [sys.executable, "-c", program, *words], check=True, cwd=folder, env=environment(), timeout=3 * LIMIT
    )
    return {name: dict(np.load(folder / f"{k}.npz")) for k, name in enumerate(files)}


def written(folder: Path, configs: dict[str, NetworkConfig]) -> dict[str, Path]:
    """Write network files, and return their paths."""
    files = {name: folder / f"{k}.toml" for k, name in enumerate(configs)}
    for name, config in configs.items():
        files[name].write_text(config.to_toml())
    return files


@dataclass
class Reference:
    """The configs of all cases, and their results under MPI."""

    configs: dict
    found: dict


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    pytest.importorskip("mpi4py", reason="mpi4py is not installed")
    configs = {name: make_config(graph=graph, **changes) for name, (graph, changes) in CASES.items()}
    configs["script"] = make_config(("a", "b", "c"), **SCRIPTED)
    configs["script, sums"] = make_config(("a", "b", "c"), **SCRIPTED, **SUMS, parameters={})
    folder = tmp_path_factory.mktemp("mpi")
    return Reference(configs, mpi_results(folder, REFERENCE, written(folder, configs)))


@pytest.fixture(scope="module")
def parts_reference(tmp_path_factory):
    pytest.importorskip("mpi4py", reason="mpi4py is not installed")
    folder = tmp_path_factory.mktemp("mpi-parts")
    configs = {name: make_config(graph=graph, **changes) for name, (graph, changes) in PARTS.items()}
    files = {}
    for name, config in configs.items():
        NetworkLayout(folder / name, config).write(days=2)
        files[name] = folder / name / config.agent_names[0] / "agent.toml"
    return Reference(configs, mpi_results(folder, PARTS_REFERENCE, files))


@pytest.mark.parametrize("case", CASES)
def test_agents_compute_the_same_bits_as_mpi(tmp_path, reference, case):
    models = run_agents(reference.configs[case], tmp_path / "net", fit_agent)
    found = reference.found[case]
    for name, model in models.items():
        assert np.array_equal(model.U_, found[f"U.{name}"]), name
        assert np.array_equal(model.A_[name], found[f"A.{name}"]), name
        assert (model.certificate_ is not None) == found["certified"]


@pytest.mark.parametrize("case", ["script", "script, sums"])
def test_scripts_compute_the_same_bits_as_mpi(tmp_path, reference, case):
    network = LocalNetwork(tmp_path, reference.configs[case])
    net = tmp_path / "net"
    processes = {}
    for name, agent in network.agents.items():
        files = (net / name / "agent.toml", net / f"{name}.csv", agent.out, net / f"{name}.out")
        processes[name] = ForkedProcess(*map(str, files), target=run_script)
    try:
        for name, process in processes.items():
            assert process.wait(LIMIT) == 0, name
            assert (net / f"{name}.out").read_text().split(maxsplit=1)[1] == "[] []"
    finally:
        for process in processes.values():
            process.kill()
            process.wait()
    found = reference.found[case]
    for name, agent in network.agents.items():
        weights = agent.weights()
        assert np.array_equal(weights["U.0"], found[f"U.{name}"])
        assert np.array_equal(weights["A.0"], found[f"A.{name}"])
        frame = rows_of(name)
        model = load(agent.out)
        assert model.score(frame.drop(columns="y"), frame["y"], tasks=[name] * len(frame)) > 0.8
        assert not (agent.folder / "state" / "run.json").exists()


def test_the_command_computes_the_same_bits_as_mpi(tmp_path, reference):
    with ForkedNetwork(tmp_path, reference.configs["script"]) as network:
        network.start_all()
        assert set(network.wait().values()) == {0}, network.logs()
        for name, agent in network.agents.items():
            assert network.result(name)["stop"] == "COMPLETED"
            weights = agent.weights()
            assert np.array_equal(weights["U.0"], reference.found["script"][f"U.{name}"])
            assert np.array_equal(weights["A.0"], reference.found["script"][f"A.{name}"])


@pytest.mark.parametrize("case", PARTS)
def test_all_parts_have_the_bits_of_one_process_and_of_mpi(tmp_path, parts_reference, case):
    config, mpi = parts_reference.configs[case], parts_reference.found[case]
    found = run_agents(config, tmp_path / "net", fit_parts)
    file = tmp_path / "net" / config.agent_names[0] / "agent.toml"
    local = fit_all_parts(Identity.read(file), DeclaredLocal(mask=True))
    for name, parts in found.items():
        for part, value in parts.items():
            assert np.array_equal(value, local[name][part]), (name, part)
            assert np.array_equal(value, mpi[f"{name}/{part}"]), (name, part)
    if "given" in case:
        assert parts["U"].shape[1] > 0


def test_classes_that_are_not_declared_have_no_common_part_and_the_log_says_so(tmp_path):
    config = make_config(("a", "b"), "path", **_PARTS)
    events = []
    NetworkLayout(tmp_path / "net", config).write(days=2)

    def fit(name):
        rows_of(name).to_csv(tmp_path / f"{name}.csv", index=False)
        with NetworkAgent(tmp_path / "net" / name / "agent.toml", log=lambda event, **_: events.append(event)) as agent:
            agent.fit(tmp_path / f"{name}.csv", "y", tmp_path / f"{name}-model")

    threads = [threading.Thread(target=fit, args=(name,), daemon=True) for name in ("a", "b")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT)
    assert events.count("undeclared classes") == 2
    assert load(tmp_path / "a-model").model_.common is None


def test_a_class_that_is_not_declared_is_an_error_at_its_agent(tmp_path):
    config = make_config(("a", "b"), "path", **_PARTS, classes=("high", "medium"))
    with pytest.raises(ElmeshError, match="class 'low', which is not among the declared classes 'high', 'medium'"):
        run_agents(config, tmp_path / "net", fit_parts)
