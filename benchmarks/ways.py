"""Which way agents should agree: four of them from the same start, and how near the optimum each is after 100 rounds.

The package has the one that wins. The others are here, each with the best of several settings in hindsight:

- *adaptive ADMM*: exact U steps, multipliers, and a weight of agreement that doubles or halves until what neighbours
  disagree by and what their U moves by are in balance; over-relaxed or not, and with A held back or not.
- *gradient tracking* on the objective with A solved out: every agent steps along its idea of the mean gradient, and
  both U and that idea are averaged with the neighbours'.
- *exact local steps and mixing*: every agent minimises its own share, corrected by the mean gradient, and the results
  are averaged over the whole graph by Chebyshev's schedule.
- *sums*: gradients added up over the graph, the same quasi-Newton step everywhere (:mod:`elmesh.solvers.varpro`).
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from benchmarks.data import Draw, make
from benchmarks.measure import machine
from benchmarks.optimum import optimum
from elmesh.comm.allreduce import StackedSums
from elmesh.comm.graph import Topology, make_topology
from elmesh.comm.traffic import Ledger
from elmesh.data.statistics import Task
from elmesh.math.kernels import correlation, exact_U, fit_gradient, project, residual, solve_A, square
from elmesh.math.objective import objective_of_U
from elmesh.run import run_stacked, watch
from elmesh.solvers import DMTLELM

ROUNDS, RANK, SEEDS = 100, 16, range(3)
#: The agents' U after each round of messages, and how many rounds it took to get there.
Path_ = Iterator[tuple[int, np.ndarray]]


def gradients(task: Task, U: np.ndarray, mu1: float, mu2: float) -> tuple[np.ndarray, np.ndarray]:
    """Return each agent's share of the gradient with its A solved out, and that A."""
    HU = project(task, U)
    A = solve_A(task, HU, np.zeros(1), mu2, 0.0)
    return task.V @ fit_gradient(task, residual(task, HU, A), A) + mu1 / len(U) * U, A


def neighbours(graph: Topology, X: np.ndarray) -> np.ndarray:
    """Return the sum of each agent's neighbours' values."""
    return np.asarray(graph.adjacency @ X.reshape(len(X), -1)).reshape(X.shape)


def adaptive_admm(
    task: Task, graph: Topology, U: np.ndarray, mu1: float, mu2: float, rho: float, relax: float, care: float
) -> Path_:
    m, d = len(U), graph.degree[:, None, None].astype(float)
    grip = np.minimum(d, np.sqrt(np.prod(graph.spread)))
    _, A = gradients(task, U, mu1, mu2)
    dual, S = np.zeros_like(U), neighbours(graph, U)
    for k in range(1, ROUNDS + 1):
        new, _, _ = exact_U(task, A, rho * (S + d * U) - dual, mu1 / m + 2 * rho * d)
        new = relax * new + (1 - relax) * U
        S = neighbours(graph, new)
        apart = d * new - S
        dual = dual + rho * apart
        moved, U = new - U, new
        HU = project(task, U)
        pull = square(correlation(task, residual(task, HU, A)))[:, None, None]
        A = solve_A(task, HU, A, mu2, care * pull / (rho * grip))
        disagree, moves = float(np.sqrt(np.sum(square(apart)))), float(np.sqrt(np.sum(square(d * moved))))
        if k % 5 == 0:
            rho *= 2.0 if disagree > 5 * moves else 0.5 if moves > 5 * disagree else 1.0
        yield 1, U


def gradient_tracking(task: Task, graph: Topology, U: np.ndarray, mu1: float, mu2: float, step: float) -> Path_:
    m = len(U)
    low, high = graph.spread

    def mix(X: np.ndarray) -> np.ndarray:
        return X - 2 / (low + high) * (graph.degree[:, None, None] * X - neighbours(graph, X))

    g, A = gradients(task, U, mu1, mu2)
    y = m * g
    curvature = float(np.mean(square(project(task, U) @ A) / square(U))) * m + mu1
    for _ in range(ROUNDS):
        U = mix(U - step / curvature * y)
        new, _ = gradients(task, U, mu1, mu2)
        y, g = mix(y) + m * (new - g), new
        yield 1, U


def local_steps(task: Task, graph: Topology, U: np.ndarray, mu1: float, mu2: float, weight: float) -> Path_:
    m, rounds = len(U), len(graph.averaging_roots(1e-10))
    for _ in range(ROUNDS // (2 * rounds)):
        g, A = gradients(task, U, mu1, mu2)
        mean = g.mean(axis=0)
        curvature = float(np.mean(square(project(task, U) @ A) / square(U)))
        c = weight * curvature + mu1 / m
        own, _, _ = exact_U(task, A, weight * curvature * U - (mean - g), np.asarray(c))
        U = np.broadcast_to(own.mean(axis=0), U.shape).copy()
        yield 2 * rounds, U


WAYS: dict[str, tuple[Callable[..., Path_], list[dict[str, float]]]] = {
    "adaptive ADMM": (
        adaptive_admm,
        [{"rho": 10.0**k, "relax": a, "care": c} for k in (-1, 0, 1, 2) for a in (1.0, 1.5) for c in (0.0, 1.0, 10.0)],
    ),
    "gradient tracking": (gradient_tracking, [{"step": s} for s in (0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0)]),
    "exact local steps and mixing": (local_steps, [{"weight": w} for w in (0.1, 0.3, 1.0, 3.0, 10.0, 30.0)]),
}


def compare(draw: Draw, name: str) -> dict[str, Any]:
    """Run all ways on one draw and one graph; the start is the same for all, and its rounds count."""
    task, graph = draw.task(), make_topology(name, range(10))
    seen: list[tuple[int, np.ndarray]] = []
    with watch(lambda progress: seen.append((progress.exchanges, progress.state.U))):
        result = run_stacked(DMTLELM(rank=RANK, graph=name, tol=1e-6, certify=False), task, graph, draw.seed)
    mu1, mu2 = result.state.mu1 or 0.0, result.state.mu2 or 0.0
    best, _ = optimum(task, mu1, mu2)
    above = lambda U: objective_of_U(task, U if U.ndim == 2 else U.mean(axis=0), mu1, mu2) / best - 1  # noqa: E731
    # The first look at the gradient is the method's own, not the start's.
    start = seen[0][0] - StackedSums(graph, 64, Ledger(graph)).rounds
    ends: dict[str, Any] = {"sums": {"above": above([U for e, U in seen if e <= ROUNDS][-1]), "apart": 0.0}}
    first = np.broadcast_to(seen[0][1], (10, *seen[0][1].shape)).copy()
    for way, (make_path, grid) in WAYS.items():
        tried = []
        for settings in grid:
            spent, U = start, first
            with np.errstate(all="ignore"):
                for cost, moved in make_path(task, graph, first, mu1, mu2, **settings):
                    if spent + cost > ROUNDS or not np.isfinite(moved).all():
                        break
                    spent, U = spent + cost, moved
                apart = float(np.sqrt(np.mean(square(U - U.mean(axis=0)))) / np.sqrt(square(U.mean(axis=0))))
                tried.append({"above": above(U), "apart": apart, "settings": settings})
        # A way that has not come to agree has not found a model for all: the best of those within 1 %, if any are.
        agreed = [end for end in tried if end["apart"] <= 1e-2] or tried
        ends[way] = min(agreed, key=lambda end: end["above"] if np.isfinite(end["above"]) else np.inf)
    return {"data": draw.name, "seed": draw.seed, "graph": name, "ends": ends}


def run(results: Path) -> dict[str, Any]:
    rows = []
    with threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in ("usps", "mnist"):
            for seed in SEEDS:
                print(f"  {name} {seed}", file=sys.stderr)
                rows += [compare(make(name, seed), graph) for graph in ("star", "ring")]

    def median(graph: str, way: str, what: str) -> float:
        return float(np.median([row["ends"][way][what] for row in rows if row["graph"] == graph]))

    figures = {
        graph: {
            way: {"above_optimum": median(graph, way, "above"), "apart": median(graph, way, "apart")}
            for way in ("sums", *WAYS)
        }
        for graph in ("star", "ring")
    }
    return {
        "benchmark": "ways",
        "unit": f"objective at the mean U above the optimum, relative, after {ROUNDS} rounds of messages; medians",
        "machine": machine(),
        "figures": figures,
        "runs": rows,
        "goals": {
            "sums win on both graphs": all(
                min(ways, key=lambda way: ways[way]["above_optimum"]) == "sums" for ways in figures.values()
            )
        },
    }
