"""Networks for tests: real agents in processes of their own, on loopback, with real certificates."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

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
P = 4


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens at, all different."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


def make_config(names=NAMES, graph="ring", **changes) -> NetworkConfig:
    """A small config on loopback: classification of four columns."""
    topology = make_topology(graph, list(names))
    edges = tuple((names[i], names[j]) for i, j in topology.edges.tolist())
    ports = free_ports(len(names))
    agents = tuple(AgentEntry(name, f"127.0.0.1:{port}") for name, port in zip(names, ports, strict=True))
    columns = tuple(InputColumn(f"x{j}", range=(-4.0, 4.0)) for j in range(P))
    fields = {
        "kind": "classification",
        "rounds": 40,
        "n_hidden": 30,
        "rank": 3,
        "parameters": BASIS,
        "columns": columns,
    }
    return NetworkConfig(name="test", agents=agents, edges=edges, **(fields | changes))


def with_ports(config: NetworkConfig, ports: list[int]) -> NetworkConfig:
    """The same network at other ports of this machine."""
    agents = tuple(AgentEntry(a.name, f"127.0.0.1:{port}") for a, port in zip(config.agents, ports, strict=True))
    return msgspec.structs.replace(config, agents=agents)


def rows_of(name: str, n: int = 50, kind: str = "classification") -> pd.DataFrame:
    """An agent's rows, always the same for a name; related to the others', and not the same."""
    seed = sum(name.encode())
    rng, common = np.random.default_rng(seed), np.random.default_rng(3)
    X = rng.normal(size=(n + seed % 7, P)).round(6)
    z = X @ (common.normal(size=P) + 0.3 * rng.normal(size=P))
    y = np.where(z > 0, "high", "low") if kind == "classification" else np.clip(z, -10, 10).round(6)
    return pd.DataFrame(X, columns=[f"x{j}" for j in range(P)]).assign(y=y)


@dataclass
class Agent:
    """One agent's process, and what it has said."""

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


class Trial:
    """A network in a folder; leaving it ends every agent."""

    def __init__(self, folder: Path, config: NetworkConfig, data: dict[str, pd.DataFrame] | None = None) -> None:
        self.folder, self.config = folder, config
        NetworkLayout(folder / "net", config).write("", days=30, keys=True, force=False)
        self.agents = {}
        for name in config.agent_names:
            frame = rows_of(name, kind=config.kind) if data is None else data[name]
            frame.to_csv(folder / "net" / f"{name}.csv", index=False)
            self.agents[name] = Agent(name, folder / "net" / name)

    def __enter__(self) -> Trial:
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
        """Start an agent, or start it again with what it was started with."""
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
        """kill -9."""
        process = self.agents[name].process
        process.kill()
        process.wait()

    def wait(self, *names: str, seconds: float = 120) -> dict[str, int]:
        """Wait for agents to end; return their exit codes."""
        end = time.monotonic() + seconds
        codes = {}
        for name in names or self.config.agent_names:
            try:
                codes[name] = self.agents[name].process.wait(max(end - time.monotonic(), 0.1))
            except subprocess.TimeoutExpired:
                raise AssertionError(
                    f"{name} has not ended:\n" + "\n".join(f"{n}: {a.errors[-1500:]}" for n, a in self.agents.items())
                ) from None
        return codes

    def until_round(self, name: str, number: int, seconds: float = 60) -> int:
        """Wait until an agent has got so far, by its status."""
        return self.until(lambda: self.round_of(name) >= number, seconds) and self.round_of(name)

    def round_of(self, name: str) -> int:
        said = self.agents[name].status
        if said is None or said["round"] is None or said["pid"] != self.agents[name].process.pid:
            return -1
        return said["round"]

    def until(self, condition, seconds: float = 60) -> bool:
        end = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > end:
                raise AssertionError("\n".join(f"{n}: {a.errors[-1500:]}" for n, a in self.agents.items()))
            time.sleep(0.05)
        return True

    def result(self, name: str) -> dict:
        return json.loads((self.folder / "net" / f"{name}.out").read_text())

    def weights(self) -> dict[str, dict[str, np.ndarray]]:
        return {name: agent.weights() for name, agent in self.agents.items() if agent.out.exists()}


def undisturbed(
    folder: Path, config: NetworkConfig, data: dict[str, pd.DataFrame] | None = None
) -> dict[str, dict[str, np.ndarray]]:
    """Run a network to its end undisturbed; every agent's weights. Ports are new ones, which changes no bit."""
    folder.mkdir()
    with Trial(folder, with_ports(config, free_ports(len(config.agents))), data) as trial:
        trial.start_all()
        codes = trial.wait()
        assert set(codes.values()) == {0}, {name: agent.errors for name, agent in trial.agents.items()}
        return trial.weights()


def same(ours: dict, theirs: dict) -> bool:
    """Whether all weights of all agents are the same to the bit."""
    return ours.keys() == theirs.keys() and all(
        ours[n].keys() == theirs[n].keys() and all(np.array_equal(ours[n][k], theirs[n][k]) for k in ours[n])
        for n in ours
    )


def copy_agent(trial: Trial, name: str, to: Path) -> Path:
    """Copy an agent's folder, for somebody who pretends to be it."""
    shutil.copytree(trial.agents[name].folder, to)
    return to
