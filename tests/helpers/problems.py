"""Random problems for the tests: hidden features and targets of several related tasks, and how to solve them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from elmesh import RunConfig, Solver
from elmesh.comm.graph import make_topology
from elmesh.data.statistics import Reduced, Task
from elmesh.run import Progress, RunResult, run_local
from elmesh.solvers.base import Solution
from elmesh.typing import FloatArray


@dataclass(frozen=True, eq=False)
class Problem:
    H: list[FloatArray]
    T: list[FloatArray]
    task: Task


def stack(H: list[FloatArray], T: list[FloatArray]) -> Problem:
    tasks = [Task.from_reduced(Reduced.from_rows(h, t, centre=False)) for h, t in zip(H, T, strict=True)]
    return Problem(H, T, Task.stack(tasks))


def random_problem(
    seed: int,
    m: int = 4,
    L: int = 12,
    r: int = 3,
    d: int = 2,
    n_max: int = 20,
    *,
    unequal: bool = True,
    planted: bool = True,
    h_scale: float = 1.0,
    t_scale: float = 1.0,
) -> Problem:
    """Sigmoid features of random inputs, centred by task; targets from a shared basis plus noise, or noise alone."""
    rng = np.random.default_rng(seed)
    W, b, basis = rng.uniform(-1, 1, (5, L)), rng.uniform(-1, 1, L), rng.normal(size=(L, r))
    Hs, Ts = [], []
    for _ in range(m):
        n = int(rng.integers(max(3, n_max // 3), n_max + 1)) if unequal else n_max
        k = int(rng.integers(1, d + 1)) if unequal else d
        H = 1 / (1 + np.exp(-(rng.normal(size=(n, 5)) @ W + b)))
        T = 0.3 * rng.normal(size=(n, k))
        T = T + H @ basis @ rng.normal(size=(r, k)) if planted else T / 0.3
        H, T = h_scale * np.exp(0.3 * rng.normal()) * H, t_scale * T
        Hs.append(H - H.mean(axis=0))
        Ts.append(T - T.mean(axis=0))
    return stack(Hs, Ts)


def figure_three(seed: int = 0, L: int = 5, n: int = 10, m: int = 5) -> Problem:
    """The paper's convergence setting: H and T uniform in (0, 1), the columns of all H together of norm one."""
    rng = np.random.default_rng(seed)
    H = rng.uniform(size=(m, n, L))
    H /= np.linalg.norm(H.reshape(-1, L), axis=0)
    return stack(list(H), list(rng.uniform(size=(m, n, 1))))


def solve(
    solver: Solver,
    problem: Problem,
    graph: object = None,
    seed: int = 0,
    callback: Callable[[Progress], bool | None] | None = None,
) -> RunResult:
    """Run a solver in this process: over a graph of all tasks, or without one with all tasks in one place."""
    topology = None if graph is None else make_topology(graph, range(len(problem.H)), seed)
    return run_local(solver, problem.task, topology, seed, RunConfig(callback=callback))


def task_weights(problem: Problem, solution: Solution) -> list[FloatArray]:
    """Each task's weights U A_t, without the columns that pad tasks with few outputs."""
    U = solution.U
    bases = [None if U is None else U if U.ndim == 2 else U[t] for t in range(len(problem.H))]
    own = [A[:, : T.shape[1]] for A, T in zip(solution.A, problem.T, strict=True)]
    return [A if basis is None else basis @ A for basis, A in zip(bases, own, strict=True)]


def ridge_of_rows(H: FloatArray, T: FloatArray, mu: float) -> FloatArray:
    """Ridge regression from its normal equations."""
    return np.linalg.solve(H.T @ H + mu * np.eye(H.shape[1]), H.T @ T)


def usable_rank(problem: Problem) -> int:
    """The largest rank of U that can be of use: the number of directions that all tasks' targets span."""
    directions = int(np.sum(np.linalg.matrix_rank(problem.task.Y)))
    return max(1, min(int(problem.task.V.shape[-2]), directions))


def followed(m: int, basis: int = 0, numbers: int = 3) -> int:
    """The bytes of the numbers by which a round is followed, along a tree of m agents and back.

    They are three where every A_t is exact, and five of ADMM; where each agent has a U of its own, of ``basis``
    numbers, also the mean and the distance from it.
    """
    return 2 * (m - 1) * 8 * (numbers + (basis + 1 if basis else 0))
