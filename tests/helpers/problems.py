"""Random problems for the tests: hidden features and targets of several related tasks, reduced and stacked."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from elmesh.data.statistics import Reduced, Task

FloatArray = NDArray[np.float64]


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
