"""The setting of the convergence experiments: five agents on a ring, random features and targets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from elmesh.comm.graph import Topology, make_topology
from elmesh.data.statistics import Reduced, Task
from elmesh.run import Result
from elmesh.run.local import run_stacked
from elmesh.solvers import DMTLELM, FODMTLELM, MTLELM, Solver
from elmesh.typing import FloatArray

__all__ = ["AGENTS", "PANELS", "PENALTY", "RANK", "Panel", "central", "decentralised", "problem", "run"]


AGENTS, RANK, PENALTY = 5, 2, 2.0
DELTA, RHO = 10.0, 1.0


@dataclass(frozen=True)
class Panel:
    """A panel of Fig. 3: L hidden units, N rows an agent, tau = weight + d_t and zeta = weight."""

    L: int
    N: int
    weight: int


PANELS = {"a": Panel(5, 10, 1), "b": Panel(5, 10, 2), "c": Panel(10, 100, 1), "d": Panel(10, 100, 2)}


def problem(panel: Panel, seed: int) -> tuple[list[FloatArray], list[FloatArray], Task]:
    """Draw H and T uniform in (0, 1), the columns of all H together of length one; return them, and as one stack."""
    rng = np.random.default_rng(seed)
    H = rng.uniform(size=(AGENTS, panel.N, panel.L))
    H /= np.linalg.norm(H.reshape(-1, panel.L), axis=0)
    T = rng.uniform(size=(AGENTS, panel.N, 1))
    tasks = [Task.from_reduced(Reduced.from_rows(h, t, centre=False)) for h, t in zip(H, T, strict=True)]
    return list(H), list(T), Task.stack(tasks)


def ring() -> Topology:
    """Return the graph that stands for Fig. 2 (a), which the paper draws and does not describe: a ring."""
    return make_topology("ring", range(AGENTS))


def central(rounds: int, init: str = "ones") -> MTLELM:
    """Return MTL-ELM as the convergence experiments run it."""
    return MTLELM(RANK, PENALTY, PENALTY, method="alternating", init=init, max_iter=rounds, tol=0.0, certify=False)


def decentralised(panel: Panel, rounds: int, **changes: Any) -> tuple[DMTLELM, FODMTLELM]:
    """Return DMTL-ELM and FO-DMTL-ELM with the panel's parameters, or with some changed."""
    parameters: dict[str, Any] = {
        "rank": RANK, "mu1": PENALTY, "mu2": PENALTY, "graph": "ring", "rho": RHO, "tau": f"{panel.weight} + d",
        "zeta": float(panel.weight), "gamma": "paper", "delta": DELTA, "init": "ones", "max_iter": rounds, "tol": 0.0,
        "certify": False,
    }  # fmt: skip
    parameters |= changes
    return DMTLELM(method="admm", **parameters), FODMTLELM(**parameters)


def run(solver: Solver, task: Task, seed: int) -> Result:
    """Run a solver in this setting."""
    return run_stacked(solver, task, None if isinstance(solver, MTLELM) else ring(), seed)
