"""Time of MultiTaskELMClassifier.fit compared with the sum of its parts."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from threadpoolctl import threadpool_limits

from benchmarks.measure import interleaved, machine, seconds
from elmesh import MeshELM, MultiTaskELMClassifier
from elmesh.comm.graph import make_topology
from elmesh.data.features import HiddenLayer
from elmesh.data.statistics import Reduced, Task
from elmesh.datasets import load_digits_tasks
from elmesh.estimators.head import Head
from elmesh.math.calibration import fit_temperature, leave_one_out
from elmesh.run import run_local


def run(results: Path) -> dict[str, Any]:
    data = load_digits_tasks(seed=0)
    solver = MeshELM(common=False, private=False, rank=6, max_iter=100)
    labels = sorted(set(data.tasks_train.tolist()))
    rows = [np.flatnonzero(data.tasks_train == label) for label in labels]
    inputs = [data.X_train[index] for index in rows]
    targets = [(data.y_train[index][:, None] == np.unique(data.y_train[index])).astype(float) for index in rows]
    topology = make_topology("ring", labels)

    def whole() -> float:
        model = MultiTaskELMClassifier(n_hidden=300, solver=solver, random_state=0)
        return seconds(lambda: model.fit(data.X_train, data.y_train, tasks=data.tasks_train))

    parts: dict[str, float] = {}

    def sum_of_parts() -> float:
        layer = HiddenLayer(data.X_train.shape[1], 300, seed=0)
        hidden: list[np.ndarray] = []
        made: dict[str, Any] = {}
        parts["hidden_layer"] = seconds(lambda: hidden.extend(layer(X) for X in inputs))
        reduced: list[Reduced] = []
        parts["reduction"] = seconds(
            lambda: reduced.extend(Reduced.from_rows(H, T, centre=True) for H, T in zip(hidden, targets, strict=True))
        )
        parts["decomposition"] = seconds(
            lambda: made.update(task=Task.stack([Task.from_reduced(one) for one in reduced]))
        )
        parts["solver"] = seconds(lambda: made.update(solution=run_local(solver, made["task"], topology, 0).solution))

        def calibrate() -> None:
            solution = made["solution"]
            for t, (H, T, one) in enumerate(zip(hidden, targets, reduced, strict=True)):
                head = Head(solution.U, solution.A[t], one.mean[:300], one.mean[300:])
                features, scores = head.features(H), head.scores(H)
                fit_temperature(leave_one_out(features, head.A, scores, T, solution.mu2, True), T)

        parts["calibration"] = seconds(calibrate)
        return sum(parts.values())

    with threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        whole(), sum_of_parts()
        times = interleaved({"whole": whole, "parts": sum_of_parts}, repeats=9)
    overhead = times["whole"] / times["parts"] - 1
    return {
        "benchmark": "fit",
        "size": {"tasks": 10, "rows": 90, "hidden": 300, "rank": 6, "max_iter": 100},
        "unit": "seconds, best of 9 taken in turns, one BLAS thread",
        "machine": machine(),
        "figures": {**times, "overhead": overhead, "last_parts": parts},
        "goals": {"overhead of validation and bookkeeping under 20 %": overhead < 0.2},
    }
