"""Agents on ranks: rounds per second compared with exchange and computation alone, and a cost model fitted to them.

Every job of mpiexec measures whole rounds and their parts in turns, best of several; more ranks than cores share them
and yield while they wait, as with `elmesh fit --runtime mpi`. The model (:mod:`benchmarks.cost`) is fitted to the parts
and to messages of 8 bytes to 2 MB. It is then validated on whole rounds that were not used for the fit, the largest
that fit this machine, and predicts 1,000 agents on 100 nodes.

Names of fields in the result are those of earlier results; "varpro" is MeshELM.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.cost import PAIRS, Layout, Model, Problem, Wire, counts, work_counts
from benchmarks.measure import machine
from elmesh.cli.job import find_mpiexec
from elmesh.cli.placement import Placement

ROOT = Path(__file__).parent.parent
REPEATS, TIMEOUT = 5, 1800
AGENTS = (2, 4, 8, 16)
SMALL, LARGE = Problem(300, 6, 100, 3), Problem(2000, 20, 200, 10)
#: Rounds per measurement: enough for the clock, few enough to avoid noise.
ROUNDS = {SMALL: {"admm": 100, "varpro": 40}, LARGE: {"admm": 20, "varpro": 20}}
#: Bytes of a value, and how often it is sent in one measurement.
BYTES = {8: 100, 512: 100, 8192: 100, 65_536: 40, 524_288: 10, 2_097_152: 5}
SEVERAL, GRAPHS = 8, ("ring", "star", "grid")
#: Agents, ranks, the size of a task, and rounds: the largest that fit this machine.
LARGEST = (
    (64, 64, SMALL, {"admm": 10, "varpro": 10}),
    (1000, 8, Problem(100, 4, 50, 3), {"admm": 10, "varpro": 10}),
)
#: Assumed, not measured: seconds of latency, and bytes per second in and out of a node.
WIRES = {
    "shared memory": Wire(),
    "10 Gb Ethernet": Wire(30e-6, 1.25e9),
    "InfiniBand HDR": Wire(2e-6, 25e9),
}
NODES, ON_NODE = 100, 10
GROWTH = (10, 30, 100, 300, 1000, 3000, 10_000)


def job(ranks: int, plan: dict[str, Any]) -> dict[str, Any]:
    """Run one mpiexec and return what rank 0 prints."""
    placement = Placement.here(ranks)
    with tempfile.TemporaryDirectory() as folder:
        environ = placement.variables(os.environ) | dict.fromkeys(placement.folders, folder)
        start = [find_mpiexec(), *placement.options(environ), sys.executable, "-m", "benchmarks.mpi_worker"]
        done = subprocess.run(
            [*start, json.dumps(plan)],
            check=False,
            cwd=ROOT,
            env=environ,
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
        )
    if done.returncode:
        raise RuntimeError(f"mpiexec ended with {done.returncode}:\n{done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def plan_of(measure: str, problem: Problem, agents: int, **more: Any) -> dict[str, Any]:
    return {"measure": measure, "size": {**vars(problem), "agents": agents}, "repeats": REPEATS, **more}


def pairs_of(rounds: int) -> float:
    """Return the mean number of pairs in the memory of the quasi-Newton method, from step 2 on."""
    return float(np.mean([min(k, PAIRS) for k in range(1, 1 + rounds)]))


def measure_rounds() -> list[dict[str, Any]]:
    """Measure whole rounds and their parts, and all agents in one process."""
    rows = []
    for problem, rounds in ROUNDS.items():
        for agents in AGENTS:
            print(f"  L = {problem.hidden}, {agents} agents", file=sys.stderr)
            options = {"graph": "ring", "rounds": rounds}
            spread = job(agents, plan_of("parts", problem, agents, **options))
            alone = job(1, plan_of("stacked", problem, agents, **options))
            rows += [row_of(problem, agents, way, spread[way], alone[way]) for way in rounds]
    return rows


def row_of(
    problem: Problem, agents: int, way: str, spread: dict[str, float], alone: dict[str, float]
) -> dict[str, Any]:
    exchange = spread["requests"] * spread["exchange"]
    allowed = exchange + spread["computation"]
    seconds = {
        "full": spread["full"],
        "exchange": exchange,
        "computation": spread["computation"],
        "figures": spread["figures"],
        "stacked": alone["full"],
    }
    return {
        **vars(problem),
        "agents": agents,
        "way": way,
        "rounds_a_second": {name: 1 / value for name, value in seconds.items()} | {"allowed": 1 / allowed},
        "of_what_is_allowed": allowed / spread["full"],
        "seconds": seconds,
        "requests_a_round": spread["requests"],
        "stacked_computation": alone["computation"],
    }


def measure_messages() -> list[dict[str, Any]]:
    """Measure exchanges, sums and metrics with values of several sizes, with one agent per rank and with several."""
    rows = []
    for ranks in AGENTS:
        print(f"  messages between {ranks} ranks", file=sys.stderr)
        for each, sizes in ((1, BYTES), (SEVERAL, {size: n for size, n in BYTES.items() if size <= 65_536})):
            found = job(ranks, plan_of("messages", SMALL, each * ranks, graphs=["ring", "star"], bytes=sizes))
            for name, value in found.items():
                graph, kind, size = name.split()
                about = {"ranks": ranks, "agents": each * ranks, "graph": graph, "kind": kind, "bytes": int(size)}
                rows.append({**about, "seconds": value})
    return rows


def fit_model(rounds: list[dict[str, Any]], messages: list[dict[str, Any]], cores: int) -> Model:
    """Fit the constants to parts of rounds, and to messages."""
    layouts: dict[tuple[str, int, int], Layout] = {}

    def layout(graph: str, agents: int, ranks: int) -> Layout:
        return layouts.setdefault((graph, agents, ranks), Layout.of(graph, agents, ranks, cores))

    rows: dict[str, list[tuple[np.ndarray, float]]] = {"work": [], "neighbours": [], "sum": [], "figures": []}
    for row in rounds:
        problem, way, m, requests = problem_of(row), row["way"], row["agents"], row["requests_a_round"]
        spread, alone = layout("ring", m, m), layout("ring", m, 1)
        pairs = pairs_of(ROUNDS[problem][way])
        for where, seconds in ((spread, row["seconds"]["computation"]), (alone, row["stacked_computation"])):
            rows["work"].append((work_counts(way, problem, where, requests, pairs), seconds))
        kind, size = ("neighbours", problem.block) if way == "admm" else ("sum", 0)
        rows[kind].append((counts(kind, spread, problem.block), row["seconds"]["exchange"] / requests))
        rows["figures"].append((counts("figures", spread, size), row["seconds"]["figures"]))
    for row in messages:
        where = layout(row["graph"], row["agents"], row["ranks"])
        rows[row["kind"]].append((counts(row["kind"], where, row["bytes"]), row["seconds"]))
    return Model.fitted(rows)


def problem_of(row: dict[str, Any]) -> Problem:
    return Problem(*(row[name] for name in ("hidden", "rank", "rows", "outputs")))


def add_predictions(model: Model, rounds: list[dict[str, Any]], cores: int) -> None:
    """Add the model's prediction to every measured round."""
    for row in rounds:
        problem, way = problem_of(row), row["way"]
        options = {"requests": row["requests_a_round"], "pairs": pairs_of(ROUNDS[problem][way])}
        row["predicted"] = model.round(way, problem, Layout.of("ring", row["agents"], row["agents"], cores), **options)


def check_largest(model: Model, cores: int) -> list[dict[str, Any]]:
    """Measure the largest runs that are possible here, and predict them."""
    rows = []
    for agents, ranks, problem, rounds in LARGEST:
        for graph in GRAPHS:
            print(f"  {agents} agents on {ranks} ranks, {graph}", file=sys.stderr)
            where = Layout.of(graph, agents, ranks, cores)
            found = job(ranks, plan_of("rounds", problem, agents, graph=graph, rounds=rounds) | {"repeats": 3})
            for way, one in found.items():
                options = {"requests": one["requests"], "pairs": pairs_of(rounds[way])}
                predicted = model.round(way, problem, where, **options)
                rows.append(
                    {"graph": graph, "agents": agents, "ranks": ranks, **vars(problem), "way": way}
                    | {"seconds": one["full"], "predicted": predicted}
                    | {"predicted_over_measured": predicted["full"] / one["full"]}
                )
    return rows


def predict(model: Model) -> list[dict[str, Any]]:
    """Predict a thousand agents on a hundred nodes, with one process per agent or one per node."""
    rows = []
    for graph in GRAPHS:
        for processes in (NODES * ON_NODE, NODES):
            where = Layout.of(graph, NODES * ON_NODE, processes, ON_NODE, NODES)
            for problem in (SMALL, LARGE):
                for way in ("admm", "varpro"):
                    about = {"graph": graph, "agents": NODES * ON_NODE, "processes": processes, "nodes": NODES}
                    seconds = {name: model.round(way, problem, where, wire) for name, wire in WIRES.items()}
                    rows.append({**about, **vars(problem), "way": way, "seconds": seconds})
    return rows


def grow(model: Model) -> list[dict[str, Any]]:
    """Predict how a round grows with agents and nodes, with ten small agents on each node."""
    rows = []
    for graph in GRAPHS:
        for agents in GROWTH:
            where = Layout.of(graph, agents, agents, ON_NODE, -(-agents // ON_NODE))
            for way in ("admm", "varpro"):
                seconds = {name: model.round(way, SMALL, where, wire)["full"] for name, wire in WIRES.items()}
                rows.append({"graph": graph, "agents": agents, "way": way, "seconds": seconds})
    return rows


def run(results: Path) -> dict[str, Any]:
    cores = Placement.here(1).cores
    rounds, messages = measure_rounds(), measure_messages()
    model = fit_model(rounds, messages, cores)
    add_predictions(model, rounds, cores)
    largest = check_largest(model, cores)
    shares = {way: min(row["of_what_is_allowed"] for row in rounds if row["way"] == way) for way in ("admm", "varpro")}
    return {
        "benchmark": "mpi",
        "unit": f"seconds per round, best of {REPEATS} taken in turns; one BLAS thread per rank",
        "machine": machine() | {"cores_for_ranks": cores},
        "figures": {"rounds": rounds, "least_share_of_what_is_allowed": shares, "messages": messages},
        "model": model.described(),
        "largest": largest,
        "assumed": {
            name: {"latency": wire.latency, "bandwidth": wire.bandwidth if math.isfinite(wire.bandwidth) else None}
            for name, wire in WIRES.items()
        },
        "predictions": predict(model),
        "growth": grow(model),
        "goals": {
            f"{name}: at least half of the rate that exchange and computation allow together": shares[way] >= 0.5
            for way, name in (("admm", "DMTL-ELM"), ("varpro", "MeshELM"))
        },
    }
