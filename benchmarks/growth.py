"""Time of one agent's round, and memory, against the number of agents, hidden units, rows and columns of U."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from benchmarks.measure import machine

BASE = {"agents": 10, "hidden": 300, "rows": 90, "rank": 6}
SWEEPS = {
    "agents": [10, 100, 1000, 10_000],
    "hidden": [100, 300, 1000, 2000],
    "rows": [50, 200, 1000, 5000],
    "rank": [2, 6, 15, 30],
}
LABELS = {"agents": "agents m", "hidden": "hidden units L", "rows": "rows per task N", "rank": "rank r"}

# Each size runs in a new process, so that the peak memory is that of this size alone.
WORKER = """
import json, sys
from threadpoolctl import threadpool_limits
from benchmarks.measure import random_task, round_seconds
size = json.loads(sys.argv[1])
with threadpool_limits(1):
    task = random_task(size["agents"], size["hidden"], size["rows"])
    work = round_seconds(task, size["rank"], size["rounds"])
    work()
    times = [work() for _ in range(size["repeats"])]
status = dict(line.split(":", 1) for line in open("/proc/self/status").read().splitlines())
peak = int(status["VmHWM"].split()[0]) * 1024
print(json.dumps({"seconds": times, "peak": peak, "data": task.V.nbytes}))
"""


def measure(size: dict[str, int]) -> dict[str, float]:
    # About half a second per measurement: a round of one agent takes 0.1 ms at the base size.
    cost = 1e-4 * size["hidden"] / 300 * min(size["rows"], size["hidden"]) / 90 * max(1.0, size["rank"] / 6)
    rounds = max(3, int(0.5 / (cost * size["agents"])))
    argument = json.dumps({**size, "rounds": rounds, "repeats": 5 if size["agents"] < 10_000 else 3})
    out = subprocess.run([sys.executable, "-c", WORKER, argument], capture_output=True, text=True, check=True).stdout
    result = json.loads(out)
    return {
        "agent_round_seconds": float(np.median(result["seconds"])) / size["agents"],
        "peak_bytes": result["peak"],
        "data_bytes": result["data"],
    }


def run(results: Path) -> dict[str, Any]:
    figures: dict[str, list[dict[str, float]]] = {}
    for name, values in SWEEPS.items():
        figures[name] = []
        for value in values:
            print(f"  {LABELS[name]} = {value}", file=sys.stderr)
            figures[name].append({name: value, **measure({**BASE, name: value})})
    costs = [row["agent_round_seconds"] for row in figures["agents"]]
    plot(figures, results / "growth.png")
    flatness = max(costs) / min(costs)
    return {
        "benchmark": "growth",
        "base": BASE,
        "unit": "seconds for one agent's share of a round, one BLAS thread; peak memory of the process",
        "machine": machine(),
        "figures": figures,
        "flatness_in_agents": flatness,
        "goals": {"cost of an agent's round flat within 1.5 from 10 to 10,000 agents": flatness <= 1.5},
    }


def plot(figures: dict[str, list[dict[str, float]]], path: Path) -> None:
    figure = Figure(figsize=(13, 3.4), layout="constrained")
    FigureCanvasAgg(figure)
    for axes, (name, rows) in zip(figure.subplots(1, 4), figures.items(), strict=True):
        x = [row[name] for row in rows]
        axes.loglog(x, [row["agent_round_seconds"] * 1e6 for row in rows], "o-", color="#0072B2")
        axes.set_xlabel(LABELS[name])
        axes.set_ylabel("µs per round and agent", color="#0072B2")
        axes.set_ylim(10, 1e5)
        memory = axes.twinx()
        memory.loglog(x, [row["peak_bytes"] / 2**20 for row in rows], "s--", color="#D55E00", alpha=0.8)
        memory.set_ylabel("peak memory, MiB", color="#D55E00")
        memory.set_ylim(50, 2e4)
        # The axes share x, and drawing on the second one has replaced the ticks.
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_xticks(x, [f"{value:,}" for value in x])
    figure.savefig(path, dpi=110)
