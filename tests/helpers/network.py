"""Networks for tests: real agents in processes of their own, on loopback, with real certificates."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import numpy as np
import pandas as pd
import pytest
import safetensors.numpy

from elmesh.comm.graph import make_topology

pytest.importorskip("zenoh", reason="eclipse-zenoh is not installed")
pytest.importorskip("cryptography", reason="cryptography is not installed")
pytest.importorskip("msgspec", reason="msgspec is not installed")

import msgspec.structs

from elmesh.agent.status import read_status
from elmesh.netconfig.columns import InputColumn
from elmesh.netconfig.config import AgentEntry, NetworkConfig
from elmesh.netconfig.layout import NetworkLayout

ROOT = Path(__file__).parents[2]
NAMES = ("east", "north", "south", "west")
BASIS = {"mu1": 1.0, "mu2": 1.0, "rho": 1.0}
#: Fields of a network whose sites exchange sums, without a shared part.
SUMS_REGRESSION = {
    "exchange": "sums",
    "solver": "mesh-elm",
    "rank": 0,
    "kind": "regression",
    "target_range": (-10.0, 10.0),
    "parameters": {"common": "auto", "private": "auto"},
}
#: Fields of a private network.
PRIVATE_REGRESSION = {
    "exchange": "sums",
    "solver": "mesh-elm",
    "rank": "auto",
    "kind": "regression",
    "target_range": (-4.0, 4.0),
    "parameters": {"common": "auto", "private": "auto"},
    "epsilon": 1.0,
}
P = 4
#: Seconds after which a test gives up waiting for something that takes a second or two on an idle machine.
LIMIT = 180.0


def free_ports(count: int) -> list[int]:
    """Return different ports that are free, none of which is returned again.

    They are below the range from which systems take the ports of outgoing connections: between here and its use, no
    connection takes one. Workers that run tests in parallel have a range each.
    """
    ports: list[int] = []
    while len(ports) < count:
        port = next(_PORTS)
        with contextlib.suppress(OSError), socket.socket() as trial:
            trial.bind(("127.0.0.1", port))
            ports.append(port)
    return ports


def _ports() -> Iterator[int]:
    low, size, workers = 10_000, 2_750, 8
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % workers
    for k in itertools.count(os.getpid() * 97):
        yield low + size * worker + k % size


_PORTS = _ports()


def make_config(names=NAMES, graph="ring", **changes) -> NetworkConfig:
    """Return a small config on loopback: classification of four columns."""
    topology = make_topology(graph, list(names))
    edges = tuple((names[i], names[j]) for i, j in topology.edges.tolist())
    ports = free_ports(len(names))
    agents = tuple(AgentEntry(name, f"127.0.0.1:{port}") for name, port in zip(names, ports, strict=True))
    columns = tuple(InputColumn(f"x{j}", range=(-4.0, 4.0)) for j in range(P))
    fields = {
        "kind": "classification",
        "exchange": "basis",
        "solver": "dmtl-elm",
        "fewest_sites": min(3, len(names)),
        "rounds": 40,
        "n_hidden": 30,
        "rank": 3,
        "parameters": BASIS,
        "columns": columns,
    }
    return NetworkConfig(name="test", agents=agents, edges=edges, **(fields | changes))


def with_ports(config: NetworkConfig, ports: list[int]) -> NetworkConfig:
    """Return the same network at other ports of this machine."""
    agents = tuple(AgentEntry(a.name, f"127.0.0.1:{port}") for a, port in zip(config.agents, ports, strict=True))
    return msgspec.structs.replace(config, agents=agents)


def rows_of(name: str, n: int = 50, kind: str = "classification") -> pd.DataFrame:
    """Return an agent's rows, always the same for a name; related to the others', but different."""
    seed = sum(name.encode())
    rng, common = np.random.default_rng(seed), np.random.default_rng(3)
    X = rng.normal(size=(n + seed % 7, P)).round(6)
    z = X @ (common.normal(size=P) + 0.3 * rng.normal(size=P))
    numbers = np.clip(z + 0.3 * rng.normal(size=len(z)), -10, 10).round(6)
    y = np.where(z > 0, "high", "low") if kind == "classification" else numbers
    return pd.DataFrame(X, columns=[f"x{j}" for j in range(P)]).assign(y=y)


@dataclass
class Agent:
    """One agent's process and its output."""

    name: str
    folder: Path
    process: subprocess.Popen | None = None
    starts: int = 0
    extra: list[str] = field(default_factory=list)

    @property
    def out(self) -> Path:
        return self.folder.parent / f"{self.name}-model"

    @property
    def errors(self) -> str:
        path = self.folder.parent / f"{self.name}.err"
        return path.read_text() if path.exists() else ""

    def events(self, kind: str | None = None) -> list[dict]:
        lines = [json.loads(line) for line in self.errors.splitlines() if line.startswith("{")]
        return [line for line in lines if kind is None or line["event"] == kind]

    def weights(self) -> dict[str, np.ndarray]:
        return safetensors.numpy.load_file(self.out / "weights.safetensors")

    @property
    def status(self) -> dict | None:
        return read_status(self.folder / "state")


class LocalNetwork:
    """A network in a folder, with one process per agent; leaving the context ends every agent."""

    def __init__(self, folder: Path, config: NetworkConfig, data: dict[str, pd.DataFrame] | None = None) -> None:
        NetworkLayout(folder / "net", config).write(days=30)
        for name in config.agent_names:
            frame = rows_of(name, kind=config.kind) if data is None else data[name]
            frame.to_csv(folder / "net" / f"{name}.csv", index=False)
        self._use(folder, config)

    def _use(self, folder: Path, config: NetworkConfig) -> None:
        """Use the files of a network."""
        self.folder, self.config = folder, config
        self.agents = {name: Agent(name, folder / "net" / name) for name in config.agent_names}

    @classmethod
    def copy_of(cls, other: LocalNetwork, folder: Path) -> Self:
        """Return a network that goes on in a folder of its own where another one has ended."""
        shutil.copytree(other.folder, folder, dirs_exist_ok=True)
        network = cls.__new__(cls)
        network._use(folder, other.config)
        return network

    def __enter__(self) -> LocalNetwork:
        return self

    def __exit__(self, *_: object) -> None:
        for agent in self.agents.values():
            if agent.process is not None and agent.process.poll() is None:
                agent.process.send_signal(signal.SIGCONT)
                agent.process.kill()
                agent.process.wait()

    def command(self, name: str, *more: str) -> list[str]:
        agent = self.agents[name]
        return [
            *(sys.executable, "-m", "elmesh", "agent", str(agent.folder / "agent.toml")),
            *("--data", str(self.folder / "net" / f"{name}.csv"), "--target", "y", "--out", str(agent.out)),
            *("--log-json", "--json", *more),
        ]

    def start(self, name: str, *more: str, env: dict[str, str] | None = None, before: tuple[str, ...] = ()) -> Agent:
        """Start an agent; without options, with those of its last start."""
        agent = self.agents[name]
        agent.extra = list(more) or agent.extra
        environ = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OPENBLAS_NUM_THREADS": "1", **(env or {})}
        with (
            open(self.folder / "net" / f"{name}.err", "a") as errors,
            open(self.folder / "net" / f"{name}.out", "w") as output,
        ):
            agent.process = subprocess.Popen(
                [*before, *self.command(name, *agent.extra)], stdout=output, stderr=errors, env=environ, cwd=self.folder
            )
        agent.starts += 1
        return agent

    def start_all(self, *more: str) -> None:
        for name in self.config.agent_names:
            self.start(name, *more)

    def kill(self, name: str) -> None:
        """Kill an agent with SIGKILL."""
        process = self.agents[name].process
        process.kill()
        process.wait()

    def wait(self, *names: str, seconds: float = LIMIT) -> dict[str, int]:
        """Wait for agents to end; return their exit codes."""
        end = time.monotonic() + seconds
        codes = {}
        for name in names or self.config.agent_names:
            try:
                codes[name] = self.agents[name].process.wait(max(end - time.monotonic(), 0.1))
            except subprocess.TimeoutExpired:
                raise AssertionError(f"{name} has not ended:\n{self.logs()}") from None
        return codes

    def until_round(self, name: str, number: int) -> None:
        """Wait until an agent has reached a round, by its status."""
        self.until(lambda: self.round_of(name) >= number)

    def round_of(self, name: str) -> int:
        """Return the last round of an agent's process, -1 before the first."""
        status = self.agents[name].status
        if status is None or status["round"] is None or status["pid"] != self.agents[name].process.pid:
            return -1
        return status["round"]

    def until(self, condition: Callable[[], object], seconds: float = LIMIT) -> None:
        """Wait until something is true."""
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, self.logs()
            time.sleep(0.02)

    def until_event(self, name: str, kind: str, count: int = 1) -> dict:
        """Wait until an agent has logged so many events of a kind; return the last."""
        self.until(lambda: len(self.agents[name].events(kind)) >= count)
        return self.agents[name].events(kind)[-1]

    def logs(self) -> str:
        """Return the end of each agent's log."""
        return "\n".join(f"{name}: {agent.errors[-1500:]}" for name, agent in self.agents.items())

    def result(self, name: str) -> dict:
        return json.loads((self.folder / "net" / f"{name}.out").read_text())

    def weights(self) -> dict[str, dict[str, np.ndarray]]:
        return {name: agent.weights() for name, agent in self.agents.items() if agent.out.exists()}


def equal_weights(ours: dict, theirs: dict) -> bool:
    """Return whether all weights of all agents are equal to the bit."""
    return ours.keys() == theirs.keys() and all(
        ours[n].keys() == theirs[n].keys() and all(np.array_equal(ours[n][k], theirs[n][k]) for k in ours[n])
        for n in ours
    )


def copy_agent(network: LocalNetwork, name: str, to: Path) -> Path:
    """Copy an agent's folder, for a session that pretends to be it."""
    shutil.copytree(network.agents[name].folder, to)
    return to
