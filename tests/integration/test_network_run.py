"""A network computes the same bits as MPI: by agents in threads, from Python scripts, and by the command."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from elmesh import load
from elmesh.agent import NetworkAgent
from elmesh.errors import ElmeshError
from elmesh.netconfig.columns import InputColumn
from elmesh.netconfig.config import NetworkConfig
from elmesh.netconfig.identity import Identity
from elmesh.netconfig.layout import NetworkLayout
from elmesh.run import MPIBackend, RunConfig
from helpers.forked import ForkedNetwork, ForkedProcess, run_script
from helpers.network import BASIS, LIMIT, NAMES, LocalNetwork, make_config, rows_of
from helpers.thread_agents import DeclaredLocal, DeclaredMPI, fit_agent, fit_all, fit_all_parts, fit_parts, run_agents

SUMS = {"exchange": "sums", "solver": "mesh-elm", "rank": "auto", "rounds": 200}
# The agents scale columns by their ranges: by these, to the same numbers.
UNSCALED = tuple(InputColumn(f"x{j}", range=(-float(np.sqrt(3.0)), float(np.sqrt(3.0)))) for j in range(4))
SCRIPTED = {"weight_scale": 0.5, "columns": UNSCALED}
_PARTS = SUMS | {"parameters": {"common": "auto", "private": "auto"}}
THREE = ("a", "b", "c")
# Of each case: the names of the agents, the graph, and the fields of the network file.
CASES = {
    "ring": (NAMES, "ring", {}),
    "star, first order": (NAMES, "star", {"solver": "fo-dmtl-elm"}),
    "path, the paper's gamma": (NAMES, "path", {"parameters": BASIS | {"gamma": "paper"}}),
    "complete, proximal": (
        NAMES,
        "complete",
        {"parameters": BASIS | {"tau": "20 + d", "zeta": 40.0, "proximal": "standard"}},
    ),
    "ring, sums": (NAMES, "ring", SUMS | {"parameters": {}}),
    "star, sums of 16 bits": (NAMES, "star", SUMS | {"parameters": {"message_bits": 16}}),
    "path, sums of 32 bits": (NAMES, "path", SUMS | {"parameters": {"message_bits": 32}}),
}
SCRIPTS = {
    "script": (THREE, "path", SCRIPTED),
    "script, sums": (THREE, "path", SCRIPTED | SUMS | {"parameters": {}}),
}
# Networks that learn a common, a shared and a private part.
PARTS = {
    "regression": (THREE, "ring", _PARTS | {"kind": "regression", "target_range": (-6.0, 6.0)}),
    "classes": (NAMES, "star", _PARTS | {"classes": ("high", "low", "medium")}),
    "classes, given penalties": (
        THREE,
        "path",
        _PARTS | {"classes": ("high", "low"), "parameters": _PARTS["parameters"] | {"mu1": 1.0, "mu2": 1.0}},
    ),
}
SLOW = (
    *("star, first order", "path, the paper's gamma", "complete, proximal"),
    *("star, sums of 16 bits", "path, sums of 32 bits", "classes"),
)


def run_mpi(files: dict[str, str]) -> None:
    """Fit networks in a process with mpi4py, which is an MPI job of one rank, and write the results.

    They are all weights from a network file, and the parts from the identity of one agent.
    """
    os.environ |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    for file, out in files.items():
        if file.endswith("agent.toml"):
            parts = fit_all_parts(Identity.read(file), DeclaredMPI(mask=True))
            np.savez(out, **{f"{name}/{part}": x for name, found in parts.items() for part, x in found.items()})
            continue
        config = NetworkConfig.read(file)
        model = fit_all(config, RunConfig(backend=MPIBackend(mask=config.exchange == "sums")))
        U = model.U_ if model.U_.ndim == 3 else [model.U_] * len(config.agent_names)
        found = {f"U.{n}": U[k] for k, n in enumerate(config.agent_names)} | {f"A.{n}": A for n, A in model.A_.items()}
        np.savez(out, certified=model.certificate_ is not None, **found)
    from mpi4py import MPI  # importing it starts MPI

    MPI.Finalize()


def marked(cases: Iterable[str]) -> list[Any]:
    """Return cases as parameters."""
    return [pytest.param(case, marks=pytest.mark.slow if case in SLOW else ()) for case in cases]


class Reference:
    """The configs of all cases, and their results under MPI: of all slow cases in one job, and of all others."""

    def __init__(self, folder: Path) -> None:
        cases = CASES | SCRIPTS | PARTS
        self.configs = {name: make_config(names, graph, **fields) for name, (names, graph, fields) in cases.items()}
        self._folder, self._found = folder, {}

    def found(self, case: str) -> dict[str, np.ndarray]:
        """Return the result of a case."""
        if case not in self._found:
            self._run([name for name in self.configs if (name in SLOW) == (case in SLOW)])
        return self._found[case]

    def _run(self, cases: list[str]) -> None:
        outs = {case: self._folder / f"{case}.npz" for case in cases}
        job = ForkedProcess({str(self._written(case)): str(out) for case, out in outs.items()}, target=run_mpi)
        assert job.wait(3 * LIMIT) == 0
        self._found |= {case: dict(np.load(out)) for case, out in outs.items()}

    def _written(self, case: str) -> Path:
        """Write the files of a network; return the one that the job reads."""
        layout = NetworkLayout(self._folder / case, self.configs[case])
        layout.write(days=2)
        return layout.folder / layout.names[0] / "agent.toml" if case in PARTS else layout.network_file


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    pytest.importorskip("mpi4py", reason="mpi4py is not installed")
    return Reference(tmp_path_factory.mktemp("mpi"))


@pytest.mark.parametrize("case", marked(CASES))
def test_agents_compute_the_same_bits_as_mpi(tmp_path, reference, case):
    models = run_agents(reference.configs[case], tmp_path / "net", fit_agent)
    found = reference.found(case)
    for name, model in models.items():
        assert np.array_equal(model.U_, found[f"U.{name}"]), name
        assert np.array_equal(model.A_[name], found[f"A.{name}"]), name
        assert (model.certificate_ is not None) == found["certified"]


# The command, in the next test, runs the network of the first script.
@pytest.mark.parametrize("case", [pytest.param("script", marks=pytest.mark.slow), "script, sums"])
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
    found = reference.found(case)
    for name, agent in network.agents.items():
        weights = agent.weights()
        assert np.array_equal(weights["U.0"], found[f"U.{name}"])
        assert np.array_equal(weights["A.0"], found[f"A.{name}"])
        frame = rows_of(name)
        model = load(agent.out)
        assert model.score(frame.drop(columns="y"), frame["y"], tasks=[name] * len(frame)) > 0.8
        assert not (agent.folder / "state" / "run.json").exists()


def test_the_command_computes_the_same_bits_as_mpi(tmp_path, reference):
    found = reference.found("script")
    with ForkedNetwork(tmp_path, reference.configs["script"]) as network:
        network.start_all()
        assert set(network.wait().values()) == {0}, network.logs()
        for name, agent in network.agents.items():
            assert network.result(name)["stop"] == "COMPLETED"
            weights = agent.weights()
            assert np.array_equal(weights["U.0"], found[f"U.{name}"])
            assert np.array_equal(weights["A.0"], found[f"A.{name}"])


@pytest.mark.parametrize("case", marked(PARTS))
def test_all_parts_have_the_bits_of_one_process_and_of_mpi(tmp_path, reference, case):
    config, mpi = reference.configs[case], reference.found(case)
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
