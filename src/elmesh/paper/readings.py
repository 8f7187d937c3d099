"""What the paper leaves open and what it changes: where USPS rows come from, how inputs are scaled, what PCA sees.

One reading is changed at a time.
"""

from __future__ import annotations

from dataclasses import replace

from elmesh.paper.methods import TABLE_WEIGHTS, central, graph_methods, local, on_inputs, score
from elmesh.paper.protocol import AS_READ, DATA_SETS, SCALINGS, Reading, at_hand, draw
from elmesh.paper.table1 import HIDDEN
from elmesh.paper.trials import Numbers, Trial, repeat

__all__ = ["MOST_RUNS", "READINGS", "measure", "trials"]

NAME = "readings"
#: Draws at most: there are eight readings, and differences between them are paired.
MOST_RUNS = 30

#: Name for people to reading.
READINGS: dict[str, Reading] = {
    "as read": AS_READ,
    "rows from all of USPS": replace(AS_READ, pool="all"),
    "PCA on test rows too": replace(AS_READ, pca_rows="all"),
    **{scaling: replace(AS_READ, scaling=scaling) for scaling in SCALINGS if scaling != AS_READ.scaling},
}


def trials(runs: int, seed: int) -> list[Trial]:
    """Return a draw of each data set at hand a run, up to thirty."""
    return repeat(NAME, at_hand("usps", "mnist"), min(runs, MOST_RUNS), seed)


def measure(trial: Trial) -> Numbers:
    """Test the methods on one draw under every reading that concerns the data set."""
    data = DATA_SETS[trial.case]
    dnsp = on_inputs(data)[-1]
    methods = (local(data), central(data), *graph_methods(data, TABLE_WEIGHTS), dnsp)
    numbers: Numbers = {}
    for name, reading in READINGS.items():
        if reading.pool != AS_READ.pool and trial.case != "usps":
            continue
        split = draw(trial.case, trial.seed, reading)
        numbers[name] = {method.title: score(method, split, HIDDEN, trial.seed)["error"] for method in methods}
    return numbers
