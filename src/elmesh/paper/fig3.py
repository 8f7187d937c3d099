"""Fig. 3: objective against iteration for MTL-ELM, DMTL-ELM and FO-DMTL-ELM in four settings, and a fifth panel.

The fifth panel is setting (c), where the paper's parameters are too weak for FO-DMTL-ELM, with automatic ones.
"""

from __future__ import annotations

import numpy as np

from elmesh.paper.convergence import PANELS, central, decentralised, problem, ring, run
from elmesh.paper.trials import Numbers, Trial, repeat
from elmesh.run import Result
from elmesh.solvers import Solver
from elmesh.solvers.admm import ProximalADMM

__all__ = ["AUTOMATIC", "CASES", "METHODS", "ROUNDS", "measure", "trials"]

NAME = "fig3"
ROUNDS = 1000
AUTOMATIC = "automatic"
CASES = (*PANELS, AUTOMATIC)
METHODS = ("MTL-ELM", "DMTL-ELM", "FO-DMTL-ELM")
# Iterations at the end over which a run that has converged no longer moves.
_TAIL = 100


def trials(runs: int, seed: int) -> list[Trial]:
    """Return every panel in every run."""
    return repeat(NAME, CASES, runs, seed)


def measure(trial: Trial) -> Numbers:
    """Run the three methods in one panel."""
    panel = PANELS["c" if trial.case == AUTOMATIC else trial.case]
    _, _, task = problem(panel, trial.seed)
    solvers: tuple[Solver, ...]
    if trial.case == AUTOMATIC:
        auto = decentralised(
            panel, ROUNDS, rho="auto", tau="auto", zeta="auto", gamma="auto", init="spectral", tol=1e-6
        )
        solvers = central(ROUNDS, init="spectral"), *auto
    else:
        solvers = central(ROUNDS), *decentralised(panel, ROUNDS)
    results = [run(solver, task, trial.seed) for solver in solvers]
    optimum = float(results[0].history["objective"].iloc[-1])
    numbers = {name: _summary(result, optimum) for name, result in zip(METHODS, results, strict=True)}
    for name, solver, result in zip(METHODS, solvers, results, strict=True):
        if isinstance(solver, ProximalADMM):
            margins = solver.margins(task, result.state, ring().degree.astype(np.float64))
            numbers[name] |= {"tau": float(margins.tau.min()), "required": float(margins.required.max())}
    if trial.run == 0:
        # One run is drawn; of the others only what is counted is kept.
        for name, result in zip(METHODS, results, strict=True):
            numbers[name]["objective"] = result.history["objective"].tolist()
    return numbers


def _summary(result: Result, optimum: float) -> Numbers:
    objective = result.history["objective"].to_numpy()
    tail = objective[-_TAIL:]
    early = np.flatnonzero(objective <= 1.01 * optimum)
    return {
        "stop": result.stop.name,
        "final": float(objective[-1] / optimum),
        # Largest swing of the objective over the last iterations, as a share of the optimum.
        "swing": float((tail.max() - tail.min()) / optimum),
        "gap": float(result.history["consensus_gap"].iloc[-1]),
        # First iteration within one per cent of MTL-ELM's objective.
        "reached": int(early[0]) if len(early) else None,
    }
