"""What the paper leaves open and what it changes: the pool of rows, the scale, PCA, the rank, an intercept.

One of them is changed at a time.
"""

from __future__ import annotations

from dataclasses import replace

from elmesh.paper.methods import TABLE_WEIGHTS, graph_methods, local, on_inputs, score
from elmesh.paper.protocol import AS_READ, DATA_SETS, SCALINGS, Reading, at_hand, draw
from elmesh.paper.table1 import HIDDEN
from elmesh.paper.trials import Numbers, Trial, repeat

__all__ = ["MOST_RUNS", "READINGS", "measure", "trials"]

NAME = "readings"
#: Draws at most: there are ten readings, and differences between them are paired.
MOST_RUNS = 30

#: Name for people to reading.
READINGS: dict[str, Reading] = {
    "as read": AS_READ,
    "rows from all of USPS": replace(AS_READ, pool="all"),
    "PCA on test rows too": replace(AS_READ, pca_rows="all"),
    **{scaling: replace(AS_READ, scaling=scaling) for scaling in SCALINGS if scaling != AS_READ.scaling},
    "rank 3": replace(AS_READ, rank=3),
    "rank 10": replace(AS_READ, rank=10),
    "rivals without intercept": replace(AS_READ, rivals_intercept=False),
}


def trials(runs: int, seed: int) -> list[Trial]:
    """Return a draw of each data set at hand a run, up to thirty."""
    return repeat(NAME, at_hand("usps", "mnist"), min(runs, MOST_RUNS), seed)


def measure(trial: Trial) -> Numbers:
    """Test the methods on one draw under every reading that concerns the data set and the method."""
    numbers: Numbers = {}
    for name, reading in READINGS.items():
        if reading.pool == AS_READ.pool or trial.case == "usps":
            numbers[name] = _errors(trial, reading, numbers)
    return numbers


def _errors(trial: Trial, reading: Reading, known: Numbers) -> Numbers:
    data, split = DATA_SETS[trial.case], draw(trial.case, trial.seed, reading)
    rival = replace(on_inputs(data)["DNSP"], intercept=reading.rivals_intercept)
    methods = [rival]
    if reading.rivals_intercept:
        methods = [local(data), *graph_methods(data, TABLE_WEIGHTS), rival]
    for method in methods:
        if "rank" in method.solver.get_params():
            method.solver.set_params(rank=reading.rank)
    errors = {method.title: score(method, split, HIDDEN, trial.seed)["error"] for method in methods}
    # What a reading does not concern is as it was.
    return {**known.get("as read", {}), **errors}
