"""Which parameters the methods would choose by themselves: cross-validation on training rows.

The paper gives its rivals parameters in other people's notation, and does not give their rank. So that nobody is beaten
by a misreading, Table 1 has them, Local ELM and DMTL-ELM a second time with the parameters chosen here, which are
written down in :data:`elmesh.paper.methods.CHOSEN`.
"""

from __future__ import annotations

import numpy as np
from sklearn.model_selection import StratifiedKFold

from elmesh.datasets import TaskSplit
from elmesh.paper.methods import Method, score, tuned
from elmesh.paper.protocol import DATA_SETS, at_hand, draw
from elmesh.paper.table1 import HIDDEN
from elmesh.paper.trials import Numbers, Trial, repeat

__all__ = ["GRIDS", "MOST_RUNS", "candidate", "measure", "trials"]

NAME = "choice"
FOLDS = 3
#: Draws whose training rows are used, at most.
MOST_RUNS = 5

#: What each method can choose from.
GRIDS: dict[str, list[dict[str, float | int]]] = {
    "Local ELM": [{"mu": mu} for mu in (0.3, 1.0, 3.0, 10.0, 30.0, 100.0)],
    "MTFL": [{"mu": mu, "eps": eps} for mu in (0.1, 0.3, 1.0, 3.0, 10.0) for eps in (0.001, 0.01, 0.1)],
    # Of its two penalties only one combination matters: a factor can move from the basis to the codes.
    "GO-MTL": [{"rank": rank, "mu2": mu2} for rank in (6, 10, 15) for mu2 in (3.0, 10.0, 30.0)],
    "DGSP": [{"rank": rank, "mu": mu} for rank in (6, 10, 15, 20, 25) for mu in (1.0, 10.0, 30.0, 100.0)],
    "DNSP": [{"rank": rank, "mu": mu} for rank in (3, 6, 10, 15, 20) for mu in (1.0, 10.0, 30.0, 100.0)],
    "DMTL-ELM": [{"rank": rank, "mu1": mu, "mu2": mu} for rank in (6, 10, 15, 20) for mu in (1.0, 3.0, 10.0)],
}


def candidate(parameters: dict[str, float | int]) -> str:
    """Name a point of a grid.

    Examples
    --------
    >>> candidate({"rank": 6, "mu": 0.1})
    'rank = 6, mu = 0.1'
    """
    return ", ".join(f"{name} = {value:g}" for name, value in parameters.items())


def trials(runs: int, seed: int) -> list[Trial]:
    """Return a draw of each data set at hand a run, up to five."""
    return repeat(NAME, at_hand("usps", "mnist"), min(runs, MOST_RUNS), seed)


def measure(trial: Trial) -> Numbers:
    """Return the cross-validated error of every candidate on one draw's training rows."""
    data, split = DATA_SETS[trial.case], draw(trial.case, trial.seed)
    return {
        title: {candidate(point): _validated(tuned(title, data, point), split, trial.seed) for point in grid}
        for title, grid in GRIDS.items()
    }


def _validated(method: Method, split: TaskSplit, seed: int) -> float:
    X, y, tasks = split.X_train, split.y_train, split.tasks_train
    folds = StratifiedKFold(FOLDS, shuffle=True, random_state=seed % 2**32).split(X, np.char.add(tasks, y.astype(str)))
    parts = [TaskSplit(X[a], y[a], tasks[a], X[b], y[b], tasks[b]) for a, b in folds]
    return float(np.mean([score(method, part, HIDDEN, seed)["error"] for part in parts]))
