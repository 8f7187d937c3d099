"""What networks give up by weighing all sites the same, on the tables of the arena.

Both fits are those of networks (no shared part, at most one feature per twenty sure rows); one has a noise of its own
for each site, by which its rows are weighed. Splits and scores are those of :mod:`benchmarks.arena`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from benchmarks.arena import score, split, standard_error
from benchmarks.measure import machine
from benchmarks.rivals import fit_elmesh, predict_elmesh
from benchmarks.scores import short
from elmesh import MeshELM
from elmesh.arena import ARENA, load_arena
from elmesh.netconfig.exchange import ROWS_PER_FEATURE

SPLITS = 4


def compare(name: str) -> dict[str, Any]:
    scores: dict[bool, list[float]] = {True: [], False: []}
    for seed in range(SPLITS):
        train, new = split(load_arena(name), seed)
        for weigh, found in scores.items():
            solver = MeshELM(rank=0, rows_per_feature=ROWS_PER_FEATURE, weigh_sites=weigh)
            found.append(score(new, predict_elmesh(fit_elmesh(train, solver), new)))
    lost = np.subtract(scores[True], scores[False])
    return {
        "table": name, "weighed": float(np.mean(scores[True])), "alike": float(np.mean(scores[False])),
        "lost": float(lost.mean()), "standard_error": standard_error(lost),
    }  # fmt: skip


def run(results: Path) -> dict[str, Any]:
    with threadpool_limits(1, user_api="blas"):
        rows = [compare(name) for name in ARENA]
    return {
        "benchmark": "site_weights",
        "unit": "R2 (verbagg: area under the ROC curve) on rows not trained on",
        "machine": machine(),
        "settings": {"splits": SPLITS, "rows_per_feature": ROWS_PER_FEATURE},
        "figures": {"tables": short(rows), "most_lost": short(max(row["lost"] for row in rows))},
        "goals": {},
    }
