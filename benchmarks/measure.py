"""What the benchmarks share: the machine's name, honest timing, and problems of a given size."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_info

from elmesh import __version__
from elmesh.graph import make_topology
from elmesh.runtime import run_stacked
from elmesh.solvers import DMTLELM
from elmesh.statistics import Task


def machine() -> dict[str, Any]:
    """Say what this was measured on."""
    cpu = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        cpu = next((line.split(":")[1].strip() for line in info.read_text().splitlines() if "model name" in line), cpu)
    pools = [pool for pool in threadpool_info() if pool["user_api"] == "blas"]
    blas = f"{pools[0]['internal_api']} {pools[0]['version']}" if pools else "unknown"
    return {
        "cpu": cpu,
        "cores": os.cpu_count(),
        "blas": blas,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "elmesh": __version__,
    }


def seconds(work: Callable[[], Any]) -> float:
    """Time one call."""
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def interleaved(works: dict[str, Callable[[], float]], repeats: int) -> dict[str, float]:
    """Return the best of each measurement, taken in turns: noise only ever adds, and a noisy moment hits all alike."""
    taken: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(repeats):
        for name, work in works.items():
            taken[name].append(work())
    return {name: min(values) for name, values in taken.items()}


def random_task(m: int, L: int, N: int, d: int = 3, seed: int = 0) -> Task:
    """Stacked tasks of a given size; beyond fifty agents their V repeat, in memory of their own."""
    rng = np.random.default_rng(seed)
    q = min(N, L)
    V = np.empty((m, L, q))
    for t in range(m):
        V[t] = np.linalg.qr(rng.standard_normal((L, q)))[0] if t < 50 else V[t - 50]
    return Task(V, 0.1 + 5.0 * rng.random((m, q)), rng.standard_normal((m, q, d)), np.ones(m))


def round_seconds(
    task: Task, rank: int, rounds: int, solver: type[DMTLELM] = DMTLELM, graph: str = "ring"
) -> Callable[[], float]:
    """Return a measurement of one whole round as users run it: history, residuals and stopping included.

    A long run less a short one leaves out set-up and start.
    """
    topology = make_topology(graph, range(len(task.s)))

    def run(max_iter: int) -> float:
        made = solver(rank=rank, rho=1.0, init="ones", max_iter=max_iter, tol=0.0)
        begin = time.perf_counter()
        result = run_stacked(made, task, topology, 0)
        if result.n_iter != max_iter:
            raise RuntimeError(f"The run ended after {result.n_iter} of {max_iter} rounds: {result.stop.value}")
        return time.perf_counter() - begin

    return lambda: (run(1 + rounds) - run(1)) / rounds
