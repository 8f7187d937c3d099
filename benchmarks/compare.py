"""`elmesh compare` with its defaults on the tables of `elmesh sample`: days in hospital, and complications."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import elmesh
from benchmarks.measure import machine
from benchmarks.scores import short
from elmesh.datasets import simulate_visits

TARGETS = ("days", "complication")


def compare(target: str) -> dict[str, Any]:
    train, _, _ = simulate_visits(seed=0)

    def show(done: int, total: int, text: str) -> None:
        print(f"{target}: {done} of {total}, {text}", file=sys.stderr)

    X = train.drop(columns=list(TARGETS))
    found = elmesh.compare(X, train[target], task="clinic", callback=show)
    sentences = {measure: found.sentence(measure) for measure in found.scores if measure != "auc"}
    return {**short(found.to_json()), "sentences": sentences}


def run(results: Path) -> dict[str, Any]:
    return {
        "benchmark": "compare",
        "unit": "root mean square error in days, or share of wrong rows; seconds of CPU time per fold",
        "machine": machine(),
        "targets": {target: compare(target) for target in TARGETS},
        "goals": {},
    }
