"""How close Dif-AltGDmin comes to its optimum, by its step and by its exchanges per round: the method, or the code?

The optimum is that of one basis for all agents, by L-BFGS from the start of the method; it is a local one, and others
from random starts are stated. Two objectives are compared with it: that of the agents' common directions (the leading
eigenvectors of the sum of their projections), and that of each agent with its own basis, which may be below the optimum
because the bases differ.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import minimize
from threadpoolctl import threadpool_limits

from benchmarks.data import make
from benchmarks.measure import machine
from elmesh import DifAltGDmin
from elmesh.comm.graph import make_topology
from elmesh.data.statistics import Task
from elmesh.math.kernels import fit, orthonormal, square
from elmesh.run import RunConfig, run_local
from elmesh.run.result import Progress
from elmesh.solvers.altgdmin import gradient, solve_heads
from elmesh.solvers.fedrep import leading_subspace
from elmesh.solvers.initialization import random_block

RANK, MU, DRAWS = 8, 10.0, 3
#: Rounds after which runs are looked at; those with several exchanges per round have the first three.
MARKS = (200, 2000, 5000, 20_000)
#: Graph, exchanges per round, and the scale of the step.
WAYS = (
    *(("star", mixing, scale) for mixing, scale in ((1, 1.0), (1, 0.25), (1, 0.0625), (10, 1.0), (30, 1.0), (30, 4.0))),
    *(("ring", mixing, 1.0) for mixing in (1, 30)),
)


def objective(task: Task, U: np.ndarray) -> float:
    A, R = solve_heads(task, U, MU)
    return float(np.sum(fit(task, R) + MU / 2 * square(A)))


def optimum(task: Task, start: np.ndarray) -> float:
    """Return the least objective that L-BFGS finds from a start, over orthonormal bases."""

    def value(x: np.ndarray) -> tuple[float, np.ndarray]:
        Q, T = np.linalg.qr(x.reshape(start.shape))
        A, R = solve_heads(task, Q, MU)
        g = gradient(task, Q, A, R, MU).sum(axis=0)
        return objective(task, Q), ((g - Q @ (Q.T @ g)) @ np.linalg.inv(T).T).ravel()

    options = {"maxiter": 5000, "maxfun": 20_000, "ftol": 1e-15, "gtol": 1e-9, "maxcor": 30}
    return float(minimize(value, start.ravel(), jac=True, method="L-BFGS-B", options=options).fun)


def follow(task: Task, graph: str, mixing: int, scale: float, best: float) -> list[dict[str, float]]:
    """Return how far above the optimum a run is after some rounds."""
    found: list[dict[str, float]] = []

    def note(progress: Progress) -> None:
        if progress.round in MARKS and progress.solution is not None and progress.solution.U is not None:
            U = progress.solution.U
            common = np.linalg.eigh(np.sum(U @ U.mT, axis=0))[1][:, -RANK:]
            found.append(
                {
                    "round": progress.round,
                    "common": objective(task, common) / best - 1,
                    "own": objective(task, U) / best - 1,
                    "apart": progress.consensus_gap,
                }
            )

    rounds = MARKS[-1] if mixing == 1 else MARKS[2]
    solver = DifAltGDmin(RANK, MU, graph, scale, mixing, max_iter=rounds, tol=0.0)
    run_local(solver, task, make_topology(graph, range(len(task.s))), 0, RunConfig(callback=note))
    return found


def run(results: Path) -> dict[str, Any]:
    others, every = [], []
    with threadpool_limits(1):
        for seed in range(DRAWS):
            task = make("usps", seed).task(hidden=False)
            L = task.V.shape[-2]
            best = optimum(task, leading_subspace(random_block(L, RANK, seed), task.V @ task.sY))
            starts = [orthonormal(np.random.default_rng(k).normal(size=(L, RANK))) for k in range(5)]
            others.append(min(optimum(task, start) / best - 1 for start in starts))
            every.append([follow(task, *way, best) for way in WAYS])
            print(f"  draw {seed}", file=sys.stderr, flush=True)
    rows = [
        {"graph": graph, "mixing": mixing, "step_scale": scale, "rounds": mean_of([draw[k] for draw in every])}
        for k, (graph, mixing, scale) in enumerate(WAYS)
    ]
    last = {(row["graph"], row["mixing"], row["step_scale"]): row["rounds"][-1]["common"] for row in rows}
    return {
        "benchmark": "diffusion",
        "unit": "share of the objective above the optimum on USPS, means over draws, rank 8, mu 10, ten agents",
        "machine": machine(),
        "draws": DRAWS,
        "other_optima": others,
        "rows": rows,
        "goals": {"more exchanges per round bring the agents to the optimum": last["star", 30, 1.0] < 1e-3},
    }


def mean_of(runs: list[list[dict[str, float]]]) -> list[dict[str, float]]:
    """Return the means over draws at each mark, and the largest of the shares above the optimum."""
    return [
        {key: float(np.mean([one[key] for one in same])) for key in same[0]}
        | {"worst": max(one["common"] for one in same)}
        for same in zip(*runs, strict=True)
    ]
