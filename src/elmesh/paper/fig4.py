"""Fig. 4: how one entry of every agent's U and A evolves, and how far all of U and A are from MTL-ELM's.

The accuracies are the paper's: the root mean square distance of all agents' entries from those of MTL-ELM at k = 1000.
"""

from __future__ import annotations

import numpy as np

from elmesh.comm.requests import State
from elmesh.data.statistics import Task
from elmesh.paper.convergence import PANELS, central, decentralised, problem, run
from elmesh.paper.trials import Numbers, Trial, repeat
from elmesh.run import Progress, watch
from elmesh.solvers import Solver
from elmesh.typing import FloatArray

__all__ = ["METHODS", "ROUNDS", "SHOWN", "measure", "trials"]


NAME = "fig4"
ROUNDS = 1000
METHODS = ("DMTL-ELM", "FO-DMTL-ELM")
#: The rounds that are kept: all at first, then ever fewer.
SHOWN = np.unique(np.concatenate([np.arange(101), np.geomspace(100, ROUNDS, 101).astype(int)])).tolist()


def trials(runs: int, seed: int) -> list[Trial]:
    """Return setting (a) of Fig. 3 in every run."""
    return repeat(NAME, ["a"], runs, seed)


def measure(trial: Trial) -> Numbers:
    """Follow U and A of both methods on one problem."""
    panel = PANELS[trial.case]
    _, _, task = problem(panel, trial.seed)
    optimum = run(central(ROUNDS), task, trial.seed).state
    U_best, A_best = np.asarray(optimum.U), optimum.A
    numbers: Numbers = {"optimum": {"U": float(U_best[0, 0]), "A": A_best[:, 0, 0].tolist()}}
    for name, solver in zip(METHODS, decentralised(panel, ROUNDS), strict=True):
        U, A = _path(solver, task, trial.seed)
        shown = np.minimum(SHOWN, len(U) - 1)  # a run that diverges ends early
        numbers[name] = {
            "U_accuracy": np.sqrt(np.mean((U - U_best) ** 2, axis=(1, 2, 3)))[shown].tolist(),
            "A_accuracy": np.sqrt(np.mean((A - A_best) ** 2, axis=(1, 2, 3)))[shown].tolist(),
        }
        if trial.run == 0:
            numbers[name] |= {"U": U[shown, :, 0, 0].tolist(), "A": A[shown, :, 0, 0].tolist()}
    return numbers


def _path(solver: Solver, task: Task, seed: int) -> tuple[FloatArray, FloatArray]:
    """Return U and A of all agents after every round, from the start on."""
    states: list[State] = []

    def note(progress: Progress) -> None:
        if progress.state is not None:
            states.append(progress.state)

    with watch(note):
        run(solver, task, seed)
    return np.stack([np.asarray(state.U) for state in states]), np.stack([state.A for state in states])
