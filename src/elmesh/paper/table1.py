"""Table 1: test error and running time of the eight methods on USPS and MNIST.

Beside the paper's parameters there are rows for what this package adds (spectral start, automatic parameters), and the
time that the paper's own formulas take for the same work on the same draw.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import numpy as np

from elmesh.data.features import HiddenLayer
from elmesh.data.tasks import group_rows, one_hot
from elmesh.datasets import TaskSplit
from elmesh.math.objective import objective_of_U
from elmesh.paper.methods import (
    RANK,
    ROUNDS,
    TABLE_WEIGHTS,
    Method,
    central,
    chosen,
    fit,
    graph_methods,
    local,
    on_inputs,
    score,
    test,
)
from elmesh.paper.printed import Agents, alternate
from elmesh.paper.protocol import DATA_SETS, DataSet, draw, reduced, stand_in
from elmesh.paper.trials import Numbers, Trial, repeat
from elmesh.solvers import DMTLELM

__all__ = ["HIDDEN", "KRONECKER_RUNS", "KRONECKER_STEPS", "measure", "trials"]

NAME = "table1"
HIDDEN = 300
#: The paper's formulas are timed in the first runs only, on a few iterations each; times for all are scaled up.
KRONECKER_RUNS, KRONECKER_STEPS = 2, 2


def trials(runs: int, seed: int) -> list[Trial]:
    """Return a draw of each data set a run."""
    names = dict.fromkeys([stand_in("usps"), stand_in("mnist")])
    return repeat(NAME, list(names), runs, seed)


def measure(trial: Trial) -> Numbers:
    """Test every method on one draw."""
    data, split = DATA_SETS[trial.case], draw(trial.case, trial.seed)
    simple = (local(data), *on_inputs(data).values(), *chosen(trial.case))
    numbers = {method.title: score(method, split, HIDDEN, trial.seed) for method in simple}
    task, root = reduced(split, HIDDEN, trial.seed), math.sqrt(data.penalty)
    for method in (central(data), *graph_methods(data, TABLE_WEIGHTS), *_own(data)):
        model, seconds = fit(method, split, HIDDEN, trial.seed)
        U = np.asarray(model.U_)
        U = U if U.ndim == 2 else U.mean(axis=0)
        numbers[method.title] = test(model, seconds, split) | {
            # A low test error is no evidence of agreement nor of an optimum.
            "objective": objective_of_U(task, U, root, root),
            "gap": float(model.history_["consensus_gap"].iloc[-1]),
        }
    if trial.run < KRONECKER_RUNS:
        for title, seconds in _printed_seconds(data, split, trial.seed).items():
            numbers[title]["printed_seconds"] = seconds * ROUNDS / KRONECKER_STEPS
    return numbers


def _own(data: DataSet) -> list[Method]:
    """Return what is not in the paper: the spectral start with its parameters, and automatic parameters."""
    root = math.sqrt(data.penalty)
    spectral = graph_methods(data, TABLE_WEIGHTS, init="spectral")[0].solver
    automatic = DMTLELM(RANK, root, root, graph="star", method="admm", certify=False)
    return [
        Method("DMTL-ELM, spectral start", spectral),
        Method("DMTL-ELM, automatic", automatic),
    ]


def _printed_seconds(data: DataSet, split: TaskSplit, seed: int) -> dict[str, float]:
    """Time a few iterations of the algorithms as printed, from the start that the solvers have."""
    H_all = HiddenLayer(split.X_train.shape[1], HIDDEN, seed=seed)(split.X_train)
    groups = group_rows(split.tasks_train, len(H_all))
    targets, _ = one_hot(split.y_train, groups)
    H, T = [H_all[groups[t]] for t in groups], [targets[t] for t in groups]
    m, d, root = len(H), T[0].shape[1], math.sqrt(data.penalty)
    rng = np.random.default_rng(seed)
    U, A = rng.uniform(-1, 1, (HIDDEN, RANK)) / HIDDEN, rng.uniform(-1, 1, (m, RANK, d))
    star = [(0, t) for t in range(1, m)]
    degree = np.array([m - 1] + [1] * (m - 1))

    def agents(tau: int, first_order: bool) -> Agents:
        P, Q = tau + degree, np.full(m, TABLE_WEIGHTS.zeta)
        start = np.broadcast_to(U, (m, *U.shape))
        return Agents(H, T, star, start, A, root, root, 1.0, P, Q, delta=100.0, first_order=first_order)

    exact, first_order = agents(TABLE_WEIGHTS.tau, False), agents(TABLE_WEIGHTS.tau_first_order, True)
    return {
        "MTL-ELM": _seconds(lambda: alternate(H, T, A, root, root)),
        "DMTL-ELM": _seconds(exact.step),
        "FO-DMTL-ELM": _seconds(first_order.step),
    }


def _seconds(step: Callable[[], object]) -> float:
    start = time.perf_counter()
    for _ in range(KRONECKER_STEPS):
        step()
    return time.perf_counter() - start
