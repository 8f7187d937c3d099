"""Digits in the paper's protocol: ten sites with three of ten classes each, with and without class names in common.

Without names in common a class of one site has nothing to do with one of another: there is no common part, and MeshELM
is the paper's problem with automatic penalties. With names, what a "4" looks like is learnt from all sites that have
one.
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from benchmarks.arena import standard_error
from benchmarks.measure import machine
from benchmarks.scores import short
from elmesh import LocalELM, MultiTaskELMClassifier
from elmesh.paper.protocol import IMAGES, PROTOCOLS, draw_tasks, missing_reason

# Draws that nothing was chosen on.
DRAWS = range(5000, 5024)
ALONE, NAMELESS, NAMED = "LocalELM", "MeshELM, names not shared", "MeshELM, names shared"
METHODS: dict[str, dict[str, Any]] = {
    ALONE: {"solver": LocalELM()},
    NAMELESS: {"shared_classes": False},
    NAMED: {},
}
# Shared names should lower the error by a fifth.
GOAL = 0.8


def errors(name: str) -> dict[str, np.ndarray]:
    """Return the test errors of all draws, in percent."""
    found: dict[str, list[float]] = {method: [] for method in METHODS}
    for seed in DRAWS:
        draw = draw_tasks(name, seed, PROTOCOLS[IMAGES])
        for method, parameters in METHODS.items():
            model = MultiTaskELMClassifier(random_state=seed, **parameters)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                model.fit(draw.X_train, draw.y_train, tasks=draw.tasks_train)
            found[method].append(100 * (1 - model.score(draw.X_test, draw.y_test, tasks=draw.tasks_test)))
        print(f"{name} {seed}: { ({method: values[-1] for method, values in found.items()}) }", file=sys.stderr)
    return {method: np.array(values) for method, values in found.items()}


def run(results: Path) -> dict[str, Any]:
    figures, goals = {}, {}
    for name in [name for name in ("usps", "mnist") if not missing_reason(name, IMAGES)] or ["digits"]:
        with threadpool_limits(1):
            found = errors(name)
        change = found[NAMED] - found[NAMELESS]
        figures[name] = {
            "errors": {m: {"mean": e.mean(), "standard_error": standard_error(e)} for m, e in found.items()},
            "change": {"mean": change.mean(), "standard_error": standard_error(change)},
        }
        ratio = found[NAMED].mean() / found[NAMELESS].mean()
        goals[f"{name}: shared names lower the error by a fifth"] = bool(ratio <= GOAL)
    return {
        "benchmark": "digits",
        "unit": "test error in percent",
        "draws": len(DRAWS),
        "machine": machine(),
        "figures": short(figures),
        "goals": goals,
    }
