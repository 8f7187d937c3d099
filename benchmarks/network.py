"""Agents over mutual TLS on one machine: rounds per second, the time to rejoin after kill -9, and memory.

Whole rounds are compared with bare messages of the same bytes over the same sessions, and with those and the
computation of all agents on these cores. All are measured in turns in the same processes: the slowest agent's time, the
best of several. Rejoining and memory are measured with `elmesh agent` as users run it.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.measure import machine
from elmesh.agent import read_status
from elmesh.comm.graph import make_topology
from elmesh.comm.network.wire import HEADER_BYTES
from elmesh.netconfig.columns import InputColumn
from elmesh.netconfig.config import AgentEntry, NetworkConfig
from elmesh.netconfig.layout import NetworkLayout

ROOT = Path(__file__).parent.parent
HIDDEN, RANK, ROWS = 300, 6, 100
AGENTS, ROUNDS, REPEATS = (5, 16), {5: 200, 16: 60}, 5
KILLS, LONG = 5, 10_000
PARAMETERS = {"mu1": 1.0, "mu2": 1.0, "rho": 10.0}


def config_for(m: int, rounds: int, **changes: Any) -> NetworkConfig:
    """Return a ring on loopback."""
    names = [f"s{i:02d}" for i in range(m)]
    sockets = [socket.socket() for _ in names]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    agents = tuple(AgentEntry(name, f"127.0.0.1:{port}") for name, port in zip(names, ports, strict=True))
    edges = tuple((names[i], names[j]) for i, j in make_topology("ring", names).edges.tolist())
    columns = tuple(InputColumn(f"x{j}", range=(-4.0, 4.0)) for j in range(5))
    fields = {"n_hidden": HIDDEN, "rank": RANK, "rounds": rounds, "parameters": PARAMETERS, "columns": columns}
    fields |= {"exchange": "basis", "solver": "dmtl-elm"}
    return NetworkConfig(name="bench", kind="classification", agents=agents, edges=edges, **(fields | changes))


def environ() -> dict[str, str]:
    return {**os.environ, "OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}


def speed(m: int) -> dict[str, Any]:
    """Measure rounds per second of m agents."""
    config = config_for(m, ROUNDS[m])
    size = HEADER_BYTES + 8 * HIDDEN * RANK
    with tempfile.TemporaryDirectory() as folder:
        NetworkLayout(Path(folder) / "net", config).write(days=2)
        settings = {"rounds": ROUNDS[m], "repeats": REPEATS, "rows": ROWS, "size": size, "out": folder}
        agents = [
            subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "benchmarks.network_worker",
                    f"{folder}/net/{n}/agent.toml",
                    json.dumps(settings),
                ],
                env=environ(),
                cwd=ROOT,
            )
            for n in config.agent_names
        ]
        for agent in agents:
            if agent.wait(900):
                raise RuntimeError("An agent of the benchmark failed.")
        taken = [json.loads(Path(folder, f"{name}.json").read_text()) for name in config.agent_names]
    slowest = {kind: np.max([agent[kind] for agent in taken], axis=0) for kind in taken[0]}
    best = {kind: float(values.min()) for kind, values in slowest.items()}
    return {
        "agents": m,
        "message_bytes": size,
        "seconds_a_round": best,
        "rounds_a_second": {kind: 1 / value for kind, value in best.items()},
        "exchange_of_bare": best["bare"] / best["exchange"],
        "full_of_bare": best["bare"] / best["full"],
        "full_of_computation_and_bare": best["computation_and_bare"] / best["full"],
    }


def table_of(name: str) -> pd.DataFrame:
    rng = np.random.default_rng(sum(name.encode()))
    X = rng.normal(size=(ROWS, 5))
    y = np.where(X @ [1.0, -1.0, 0.5, 0.2, 0.0] + 0.3 * rng.normal(size=ROWS) > 0, "high", "low")
    return pd.DataFrame(X, columns=[f"x{j}" for j in range(5)]).assign(y=y)


class Agents:
    """`elmesh agent`, one process each."""

    def __init__(self, folder: Path, config: NetworkConfig) -> None:
        self.folder, self.config = folder, config
        NetworkLayout(folder / "net", config).write(days=2)
        for name in config.agent_names:
            table_of(name).to_csv(folder / f"{name}.csv", index=False)
        self.processes = {name: self.start(name) for name in config.agent_names}

    def start(self, name: str) -> subprocess.Popen[bytes]:
        words = ["agent", f"net/{name}/agent.toml", "--data", f"{name}.csv", "--target", "y", "--out", f"{name}-model"]
        with open(self.folder / f"{name}.log", "a") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "elmesh", *words, "--log-json"],
                cwd=self.folder,
                env=environ(),
                stdout=subprocess.DEVNULL,
                stderr=log,
            )

    def round_of(self, name: str) -> int:
        status = read_status(self.folder / "net" / name / "state")
        if status is None or status["pid"] != self.processes[name].pid or status["round"] is None:
            return -1
        return int(status["round"])

    def until(self, name: str, number: int) -> None:
        while self.round_of(name) < number:
            if self.processes[name].poll() is not None:
                raise RuntimeError(f"{name} has ended: {(self.folder / f'{name}.log').read_text()[-500:]}")
            time.sleep(0.02)

    def memory(self, name: str) -> int:
        status = Path(f"/proc/{self.processes[name].pid}/status").read_text()
        return 1024 * int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmRSS")))

    def end(self) -> None:
        for process in self.processes.values():
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
            process.wait()


def rejoining() -> dict[str, Any]:
    """Kill an agent during a run, restart it, and measure the time until its first new round."""
    starts, rejoined = [], []
    with tempfile.TemporaryDirectory() as folder:
        agents = Agents(Path(folder), config_for(4, 100_000))
        victim, witness = agents.config.agent_names[1], agents.config.agent_names[0]
        try:
            for k in range(KILLS):
                agents.until(victim, 100 if k == 0 else 1)
                time.sleep(1.0)
                agents.processes[victim].kill()
                agents.processes[victim].wait()
                time.sleep(0.2)
                before = agents.round_of(witness)
                begun = time.time()
                agents.processes[victim] = agents.start(victim)
                agents.until(victim, before + 1)
                log = (Path(folder) / f"{victim}.log").read_text().splitlines()
                lines = [json.loads(line) for line in log if line.startswith("{")]
                opened, further = (
                    [datetime.fromisoformat(line["time"]).timestamp() for line in lines if line["event"] == event][-1]
                    for event in ("open", "rejoined")
                )
                starts.append(opened - begun)
                rejoined.append(further - opened)
        finally:
            agents.end()
    return {"kills": KILLS, "process_start": starts, "rejoined": rejoined, "longest": max(rejoined)}


def memory() -> dict[str, Any]:
    """Measure the resident memory of agents over ten thousand rounds."""
    with tempfile.TemporaryDirectory() as folder:
        config = config_for(3, LONG, n_hidden=100, rank=4)
        agents = Agents(Path(folder), config)
        name, seen = config.agent_names[0], []
        try:
            for number in range(1000, LONG, 1000):
                agents.until(name, number)
                seen.append([agents.round_of(name), agents.memory(name)])
        finally:
            agents.end()
    first, last = (statistics.mean(m for _, m in part) for part in (seen[1:4], seen[-3:]))
    return {"rounds": LONG, "resident": seen, "growth": last - first, "share": last / first - 1}


def run(results: Path) -> dict[str, Any]:
    figures = {"speed": [speed(m) for m in AGENTS], "rejoining": rejoining(), "memory": memory()}
    speeds = figures["speed"]
    return {
        "benchmark": "network",
        "unit": "seconds a round of the slowest agent, best of 5 in turns, mutual TLS on loopback; seconds; bytes",
        "machine": machine(),
        "figures": figures,
        "goals": {
            "the runtime's exchange: at least 0.7 of bare zenoh": all(s["exchange_of_bare"] >= 0.7 for s in speeds),
            "whole rounds: at least 0.7 of the same computation with bare zenoh": all(
                s["full_of_computation_and_bare"] >= 0.7 for s in speeds
            ),
            "rejoined in under 3 s": figures["rejoining"]["longest"] < 3.0,
            "memory grows by less than 2 % over 8,000 rounds": figures["memory"]["share"] < 0.02,
        },
    }
