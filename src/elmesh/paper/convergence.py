"""Figs. 3 and 4: convergence of five agents on a ring, with random features and targets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from elmesh import MTLELM
from elmesh.comm.graph import Topology, make_topology
from elmesh.paper.methods import admm, record_rounds
from elmesh.paper.protocol import stack_tasks
from elmesh.run import run_local
from elmesh.solvers.admm import ProximalADMM
from elmesh.solvers.base import Solution
from elmesh.trial_log import Numbers, Trial
from elmesh.typing import FloatArray

__all__ = [
    "AGENTS", "AUTOMATIC", "CASES", "METHODS", "PANELS", "PENALTY", "RANK", "RHO", "ROUNDS", "SAVED_ROUNDS", "Panel",
    "central", "decentralized", "make_problem", "measure_fig3", "measure_fig4", "ring", "summarize",
]  # fmt: skip

AGENTS, RANK, PENALTY, RHO = 5, 2, 2.0, 1.0
ROUNDS = 1000
METHODS = ("MTL-ELM", "DMTL-ELM", "FO-DMTL-ELM")


@dataclass(frozen=True)
class Panel:
    """A panel of Fig. 3: L hidden units, N rows per agent, tau = weight + d_t and zeta = weight."""

    L: int
    N: int
    weight: int


PANELS = {"a": Panel(5, 10, 1), "b": Panel(5, 10, 2), "c": Panel(10, 100, 1), "d": Panel(10, 100, 2)}
#: A fifth panel: setting (c), where the paper's parameters are too small for FO-DMTL-ELM, with automatic parameters.
AUTOMATIC = "automatic"
CASES = (*PANELS, AUTOMATIC)
#: The rounds that Fig. 4 shows: all at first, and later fewer and fewer.
SAVED_ROUNDS = np.unique(np.concatenate([np.arange(101), np.geomspace(100, ROUNDS, 101).astype(int)])).tolist()
# Number of last iterations in which the objective of a converged run does not change.
TAIL = 100


def make_problem(panel: Panel, seed: int) -> tuple[list[FloatArray], list[FloatArray]]:
    """Draw H and T uniformly in (0, 1); the columns of all H together have length one."""
    rng = np.random.default_rng(seed)
    H = rng.uniform(size=(AGENTS, panel.N, panel.L))
    H /= np.linalg.norm(H.reshape(-1, panel.L), axis=0)
    return list(H), list(rng.uniform(size=(AGENTS, panel.N, 1)))


def ring() -> Topology:
    """Return the graph of Fig. 2 (a), which the paper draws but does not describe."""
    return make_topology("ring", range(AGENTS))


def central(rounds: int, init: str = "ones") -> MTLELM:
    """Return MTL-ELM in this setting."""
    return MTLELM(RANK, PENALTY, PENALTY, init=init, max_iter=rounds, tol=0.0, certify=False)


def decentralized(panel: Panel, rounds: int, **changes: Any) -> list[ProximalADMM]:
    """Return DMTL-ELM and FO-DMTL-ELM with the parameters of a panel, some of them changed."""
    parameters: dict[str, Any] = {
        "graph": "ring", "rho": RHO, "tau": f"{panel.weight} + d", "zeta": float(panel.weight), "delta": 10.0,
        "init": "ones", **changes,
    }  # fmt: skip
    return [admm(RANK, PENALTY, rounds=rounds, first_order=order, **parameters) for order in (False, True)]


def measure_fig3(trial: Trial, rounds: int = ROUNDS) -> Numbers:
    """Run the three methods in one panel of Fig. 3."""
    automatic = trial.case == AUTOMATIC
    panel = PANELS["c" if automatic else trial.case]
    changes = {"rho": "auto", "tau": "auto", "zeta": "auto", "gamma": "auto", "init": "spectral", "tol": 1e-6}
    graph_solvers = decentralized(panel, rounds, **(changes if automatic else {}))
    solvers = [central(rounds, "spectral" if automatic else "ones"), *graph_solvers]
    task, topology = stack_tasks(*make_problem(panel, trial.seed)), ring()
    results = [run_local(solver, task, topology if k else None, trial.seed) for k, solver in enumerate(solvers)]
    optimum = float(results[0].history["objective"].iloc[-1])
    numbers: Numbers = {}
    for name, solver, result in zip(METHODS, solvers, results, strict=True):
        objective = result.history["objective"].to_numpy()
        numbers[name] = {
            "stop": result.stop.name,
            "gap": float(result.history["consensus_gap"].iloc[-1]),
            **summarize(objective, optimum),
        }
        if isinstance(solver, ProximalADMM):  # what Theorems 1 and 2 require
            margins = solver.margins(task, result.solution, topology.degree.astype(np.float64), AGENTS)
            numbers[name] |= {"tau": float(margins.tau.min()), "required": float(margins.required.max())}
        if trial.run == 0:  # only the first run is drawn
            numbers[name]["objective"] = objective.tolist()
    return numbers


def summarize(objective: FloatArray, optimum: float) -> Numbers:
    """Return what the analysis of Fig. 3 needs of the objectives of a run."""
    tail = objective[-TAIL:]
    close = np.flatnonzero(objective <= 1.01 * optimum)
    return {
        "final": float(objective[-1] / optimum),
        # Range of the objective over the last iterations, relative to the optimum.
        "swing": float((tail.max() - tail.min()) / optimum),
        # First iteration within one per cent of the optimum.
        "reached": int(close[0]) if len(close) else None,
    }


def measure_fig4(trial: Trial, saved_rounds: Sequence[int] = SAVED_ROUNDS) -> Numbers:
    """Record U and A of both decentralized methods: all distances from MTL-ELM, and in the first run one entry.

    The accuracies are those of the paper: the root mean square distance of all agents' entries from those of MTL-ELM in
    the last round.
    """
    panel, rounds = PANELS[trial.case], saved_rounds[-1]
    task = stack_tasks(*make_problem(panel, trial.seed))
    optimum = run_local(central(rounds), task, None, trial.seed).solution
    U_best, A_best = np.asarray(optimum.U), optimum.A
    numbers: Numbers = {"optimum": {"U": float(U_best[0, 0]), "A": A_best[:, 0, 0].tolist()}}
    for name, solver in zip(METHODS[1:], decentralized(panel, rounds), strict=True):
        states: list[Solution] = []
        run_local(solver, task, ring(), trial.seed, record_rounds(states))
        saved = [states[min(k, len(states) - 1)] for k in saved_rounds]  # a run that diverges ends early
        U, A = np.stack([np.asarray(state.U) for state in saved]), np.stack([state.A for state in saved])
        numbers[name] = {
            "U_accuracy": np.sqrt(np.mean((U - U_best) ** 2, axis=(1, 2, 3))).tolist(),
            "A_accuracy": np.sqrt(np.mean((A - A_best) ** 2, axis=(1, 2, 3))).tolist(),
        }
        if trial.run == 0:
            numbers[name] |= {"U": U[:, :, 0, 0].tolist(), "A": A[:, :, 0, 0].tolist()}
    return numbers
