"""Shared by the benchmarks: a description of the machine, timing, and problems of a given size."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_info

from elmesh import DMTLELM, MeshELM, __version__
from elmesh.comm.allreduce import GOSSIP_PRECISION
from elmesh.comm.graph import Topology, make_topology
from elmesh.comm.requests import AllReduceResult
from elmesh.data.statistics import Reduced, Task
from elmesh.run import run_local
from elmesh.run.runner import agent_context
from elmesh.solvers.admm import ProximalADMM
from elmesh.solvers.base import Decision, Problem, RoundReport, Solution, rounds


def machine() -> dict[str, Any]:
    """Describe the machine and the software."""
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
    """Return the smallest of several times per measurement, taken in turns, so that noise affects all of them."""
    taken: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(repeats):
        for name, work in works.items():
            taken[name].append(work())
    return {name: min(values) for name, values in taken.items()}


def random_task(m: int, L: int, N: int, d: int = 3, seed: int = 0) -> Task:
    """Return stacked tasks of a given size; beyond fifty agents the V repeat, each in its own memory."""
    rng = np.random.default_rng(seed)
    q = min(N, L)
    V = np.empty((m, L, q))
    for t in range(m):
        V[t] = np.linalg.qr(rng.standard_normal((L, q)))[0] if t < 50 else V[t - 50]
    return Task(V, 0.1 + 5.0 * rng.random((m, q)), rng.standard_normal((m, q, d)), np.ones(m), np.full(m, float(N)))


def round_seconds(
    task: Task, rank: int, n_rounds: int, solver: type[ProximalADMM] = DMTLELM, graph: str = "ring"
) -> Callable[[], float]:
    """Return a function that times one round of ADMM, including history, residuals and stopping rule.

    The difference between a long and a short run excludes set-up and start.
    """
    topology = make_topology(graph, range(len(task.s)))

    def run(max_iter: int) -> float:
        made = solver(rank, 1.0, 1.0, rho=1.0, init="ones", max_iter=max_iter, tol=0.0, certify=False)
        begin = time.perf_counter()
        result = run_local(made, task, topology, 0)
        if result.n_iter != max_iter:
            raise RuntimeError(f"The run ended after {result.n_iter} of {max_iter} rounds: {result.stop.value}")
        return time.perf_counter() - begin

    return lambda: (run(1 + n_rounds) - run(1)) / n_rounds


def harsh_problem(seed: int) -> tuple[Task, dict[str, Any]]:
    """Draw a problem of 2 to 100 agents with features and targets on scales of 1e-3 to 1e3, and settings for it.

    Tasks differ in rows, outputs and scale; some share a basis and some are noise. Ranks go from 1 to 20 or are
    automatic, penalties from 1e-3 to 1e3 or are automatic, and messages have every possible number of bits.
    """
    rng = np.random.default_rng(seed)
    m, L = int(np.exp(rng.uniform(np.log(2), np.log(101)))), int(rng.integers(5, 60))
    r, most = int(rng.integers(1, min(L, 20) + 1)), int(rng.integers(5, 60))
    W, b, basis = rng.uniform(-1, 1, (5, L)), rng.uniform(-1, 1, L), rng.normal(size=(L, r))
    h_scale, t_scale, planted = 10 ** rng.uniform(-3, 3), 10 ** rng.uniform(-3, 3), rng.random() < 0.7
    tasks = []
    for _ in range(m):
        n, d = int(rng.integers(max(3, most // 3), most + 1)), int(rng.integers(1, 4))
        H = 1 / (1 + np.exp(-(rng.normal(size=(n, 5)) @ W + b)))
        T = rng.normal(size=(n, d)) + (H @ basis @ rng.normal(size=(r, d)) if planted else 0.0)
        H = h_scale * np.exp(0.3 * rng.normal()) * H
        tasks.append(Task.from_reduced(Reduced.from_rows(H, t_scale * T, centre=bool(rng.random() < 0.5))))
    settings: dict[str, Any] = {
        "rank": "auto" if rng.random() < 0.5 else int(rng.integers(1, 21)),
        "mu1": "auto" if rng.random() < 0.5 else float(10 ** rng.uniform(-3, 3)),
        "mu2": "auto" if rng.random() < 0.5 else float(10 ** rng.uniform(-3, 3)),
        "message_bits": (64, 32, 16, 8, 4, 2, "auto")[seed % 7],
    }
    return Task.stack(tasks), settings


def run_peers(solver: MeshELM, task: Task, topology: Topology, seed: int) -> list[Solution]:
    """Run one generator per agent, with sums mixed between neighbours, until all have converged or rounds run out."""
    rank, m = solver.resolve_rank(task), topology.n_agents
    contexts = [agent_context(topology, seed, np.asarray(t)) for t in range(m)]
    programs = [rounds(solver, Problem(task.agent(t), context, rank)) for t, context in enumerate(contexts)]
    answers: list[Any] = [None] * m
    while True:
        requests: list[Any] = []
        solutions: list[Solution] = []
        for program, answer in zip(programs, answers, strict=True):
            try:
                requests.append(program.send(answer))
            except StopIteration as end:
                solutions.append(end.value)
        if solutions:
            return solutions
        if isinstance(requests[0], RoundReport):
            residual = sum(float(np.sum(request.residual[0])) for request in requests)
            scale = sum(float(np.sum(request.scale[0])) for request in requests)
            answers = [Decision.CONVERGED if residual <= solver.tol**2 * scale else Decision.CONTINUE] * m
            continue
        exact = np.stack([request.exact for request in requests]).sum(axis=0)
        sums = m * mix(topology, np.stack([request.value for request in requests]))
        averages = [None] * m
        if requests[0].average is not None:
            averages = list(mix(topology, np.stack([request.average for request in requests])))
        root = requests[0].broadcast
        answers = [AllReduceResult(value, exact, average, root) for value, average in zip(sums, averages, strict=True)]


def mix(topology: Topology, values: np.ndarray) -> np.ndarray:
    """Average the agents' values as gossip does, by repeated mixing with the neighbours' values."""
    x = values.reshape(len(values), -1)
    for root in topology.averaging_roots(GOSSIP_PRECISION):
        x = x - (topology.degree[:, None] * x - topology.adjacency @ x) / root
    return np.asarray(x).reshape(values.shape)
