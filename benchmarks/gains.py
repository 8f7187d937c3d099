"""Are gains on rows left out those on new rows, and would local models be better where they say so?

On the tables of the arena: the error on rows left out of the training rows (``site_gains``) and on test rows, together
and alone; and the score if each site that is as good alone, or better by one or two standard errors, kept its local
model. Splits and scores are those of :mod:`benchmarks.arena`.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from benchmarks.arena import score, split
from benchmarks.measure import machine
from benchmarks.rivals import Rows, fit_elmesh, predict_elmesh
from benchmarks.scores import mean, short
from elmesh import LocalELM, MeshELM
from elmesh.arena import ARENA, load_arena

SPLITS = 4
# Standard errors by which alone is better.
THRESHOLDS = (0, 1, 2)


def error(new: Rows, predicted: np.ndarray) -> float:
    wrong = (predicted > 0.5) != new.y if new.classification else (predicted - new.y) ** 2
    return float(np.mean(wrong) if new.classification else np.sqrt(np.mean(wrong)))


def measure(name: str, seed: int) -> dict[str, Any]:
    train, new = split(load_arena(name), seed)
    begin = time.perf_counter()
    joint = fit_elmesh(train, MeshELM())
    middle = time.perf_counter()
    gains = joint.site_gains(train.X, train.y, tasks=train.sites)
    end = time.perf_counter()
    together, alone = predict_elmesh(joint, new), predict_elmesh(fit_elmesh(train, LocalELM()), new)
    table = gains.table
    deviation = (table["high"] - table["change"]) / 2
    switched = {}
    for k in THRESHOLDS:
        own = set(table.index[(table["change"] > k * deviation) & (table["rows"] >= 5)])
        switched[f"alone where better by {k} standard errors"] = score(
            new, np.where([site in own for site in new.sites], alone, together)
        )
    return {
        "left_out": {"together": gains.overall.together, "alone": gains.overall.alone},
        "new": {"together": error(new, together), "alone": error(new, alone)},
        "score": {"together": score(new, together), **switched},
        "cost": (end - middle) / (middle - begin),
    }


def run(results: Path) -> dict[str, Any]:
    with threadpool_limits(1, user_api="blas"):
        rows = {name: mean(measure(name, seed) for seed in range(SPLITS)) for name in ARENA}
    gained = [
        max(row["score"][name] for name in row["score"] if name != "together") - row["score"]["together"]
        for row in rows.values()
    ]
    return {
        "benchmark": "gains",
        "unit": "root mean square error, or share of wrong classes; R2 or area under the ROC curve",
        "machine": machine(),
        "settings": {"splits": SPLITS},
        "figures": short(rows),
        "goals": {"on no table local models chosen on rows left out are better by 0.001": max(gained) < 0.001},
    }
