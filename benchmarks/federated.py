"""What would be picked today where rows may not be pooled, judged on the tables of the arena by score and by bytes.

- federated ridge: one exchange of sums, as a solver of the package on the inputs (with an intercept per site);
- the same with a private ridge regression of each site on what it leaves;
- federated averaging (FedAvg) of a linear model, as a solver of the package on the inputs, its penalty chosen on rows
  left out;
- FedAvg of a network with one hidden layer; and FedPer, the same with an output layer of each site's own, which is
  never averaged (Arivazhagan et al. 2019); both as solvers of the package.

A round of networks is ten steps of gradient descent with momentum at each site. Their step, weight decay and number of
rounds are chosen by the loss on a fifth of each site's training rows, left out; then they are fitted to all of them.

Splits and scores are those of the arena. After an interrupt the run continues: finished splits are in federated.jsonl
until all are done. ``ELMESH_ARENA_SPLITS`` makes it shorter.
"""

from __future__ import annotations

import time
import warnings
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import log_softmax
from threadpoolctl import threadpool_limits

from benchmarks.arena import Record, records, score, split, splits_asked, standard_error
from benchmarks.measure import machine
from benchmarks.scores import short
from elmesh import (
    FedAvg,
    FedAvgNetwork,
    FederatedRidge,
    FedPer,
    MeshELM,
    MultiTaskELMClassifier,
    MultiTaskELMRegressor,
    Solver,
)
from elmesh.arena import ARENA, load_arena
from elmesh.data.features import TrainedLayer
from elmesh.evaluation.rows import Inputs, Rows
from elmesh.run import RunConfig, StopReason
from elmesh.run.result import Progress
from elmesh.solvers.network_averaging import NetworkAveraging

__all__ = ["FEDERATED"]

# Bits per number in messages of networks.
BITS = 8
# Rounds at most, between two looks at rows left out, and after the best look until the search ends.
MOST_ROUNDS, CHECK_EVERY, PATIENCE = 300, 5, 60
STEPS, DECAYS, PENALTIES = (0.03, 0.1, 0.3), (0.0, 0.03), (1.0, 10.0, 100.0)


def _left_out(rows: Rows) -> np.ndarray:
    """Return the rows that choices are made on: a fifth of each site's, at least one, of sites with more than two."""
    rng, left = np.random.default_rng(0), np.zeros(len(rows), dtype=bool)
    for name in np.unique(rows.sites):
        own = rng.permutation(np.flatnonzero(rows.sites == name))
        left[own[: max(len(own) // 5, len(own) > 2)]] = True
    return left


@dataclass
class _Watch:
    """Evaluates a run on rows left out, every few rounds, and ends it when the best round is long past."""

    layer: TrainedLayer
    rows: Rows
    sites: list[np.ndarray]
    classes: np.ndarray | None
    scale: float
    mean: float
    best: tuple[float, int] = (np.inf, 0)

    def __post_init__(self) -> None:
        self.Phi = self.layer.base(self.rows.X)

    def __call__(self, progress: Progress) -> bool:
        if progress.round % CHECK_EVERY or progress.solution is None or progress.solution.hidden is None:
            return False
        Z = np.tanh(self.Phi @ progress.solution.hidden)
        H = np.hstack([np.ones((len(Z), 1)), Z])
        total = 0.0
        for index, A in zip(self.sites, progress.solution.A, strict=True):
            F, y = H[index] @ A, self.rows.y[index]
            if self.classes is None:
                total += float(np.sum((F[:, 0] * self.scale + self.mean - y) ** 2))
            else:
                total -= float(np.sum(log_softmax(F, axis=1)[np.arange(len(y)), np.searchsorted(self.classes, y)]))
        self.best = min(self.best, (total if np.isfinite(total) else np.inf, progress.round))
        return progress.round >= self.best[1] + PATIENCE


def network(train: Rows, new: Inputs, kind: type[NetworkAveraging]) -> tuple[np.ndarray, float]:
    """Fit a network with the step, decay and number of rounds that are best on rows left out."""
    left = _left_out(train)
    kept, rest = train.take(~left), train.take(left)
    probe = fit(kept, kind(max_iter=1))
    layer = probe.model_.layer
    assert isinstance(layer, TrainedLayer)
    sites = [np.flatnonzero(rest.sites == name) for name in probe.tasks_]
    head = next(iter(probe.model_.heads.values()))
    found = {}
    for step, decay in product(STEPS, DECAYS):
        scale = 1.0 if train.classification else float(probe.target_scale_[0])
        watch = _Watch(layer, rest, sites, probe.classes_ if train.classification else None, scale, head.t_mean[0])
        fit(kept, kind(step_size=step, decay=decay, max_iter=MOST_ROUNDS), callback=watch)
        found[step, decay] = watch.best
    step, decay = min(found, key=lambda way: found[way])
    rounds = max(found[step, decay][1], 1)
    while True:
        model = fit(train, kind(step_size=step, decay=decay, max_iter=rounds, message_bits=BITS))
        objective = model.history_["objective"]
        # A step that is too long for all rows is halved until none diverges.
        if model.stop_ is not StopReason.DIVERGED and objective.iloc[-1] <= objective.iloc[0]:
            return predict(model, new)
        step /= 2


def fit(train: Rows, made: Solver, hidden: str | None = "auto", callback: Any = None) -> Any:
    """Return the estimator of a solver, fitted to rows."""
    make = MultiTaskELMClassifier if train.classification else MultiTaskELMRegressor
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = make(hidden, solver=made, random_state=0)
        return model.fit(train.X, train.y, tasks=train.sites, run=RunConfig(callback=callback))


def predict(model: Any, new: Inputs) -> tuple[np.ndarray, float]:
    """Return predictions, and the bytes that a site sends on average."""
    sent = float(model.traffic_["bytes"].sum()) / len(model.tasks_)
    if isinstance(model, MultiTaskELMClassifier):
        return np.asarray(model.predict_proba(new.X, tasks=new.sites)[:, 1]), sent
    return np.asarray(model.predict(new.X, tasks=new.sites)), sent


def solver(train: Rows, new: Inputs, made: Solver, hidden: str | None = None) -> tuple[np.ndarray, float]:
    """Fit a solver of the package; return predictions and the bytes that a site sends on average."""
    return predict(fit(train, made, hidden), new)


def fed_avg(train: Rows, new: Inputs) -> tuple[np.ndarray, float]:
    """Fit FedAvg of a linear model with the penalty that is best on rows left out."""
    left = _left_out(train)
    kept, rest = train.take(~left), train.take(left)

    def loss(mu: float) -> float:
        predicted, _ = solver(kept, rest, FedAvg(mu=mu))
        return float(np.mean((predicted - rest.y) ** 2))

    return solver(train, new, FedAvg(mu=min(PENALTIES, key=loss)))


OWN = "elmesh"
#: From training rows and new inputs to predictions and the bytes that a site sends on average.
FEDERATED = {
    OWN: lambda train, new: solver(train, new, MeshELM(), "auto"),
    "federated ridge": lambda train, new: solver(train, new, FederatedRidge()),
    "federated ridge, private residual": lambda train, new: solver(train, new, FederatedRidge(private=True)),
    "FedAvg, linear": fed_avg,
    "FedAvg, network": lambda train, new: network(train, new, FedAvgNetwork),
    "FedPer, network": lambda train, new: network(train, new, FedPer),
}


def compare(name: str, seed: int) -> Record:
    """Return the figures of all methods on one split of a table."""
    train, new = split(load_arena(name), seed)
    record: Record = {"table": name, "split": seed, "scores": {}, "bytes": {}, "seconds": {}}
    for method, fit in FEDERATED.items():
        begin = time.process_time()
        predicted, record["bytes"][method] = fit(train, new)
        record["seconds"][method] = time.process_time() - begin
        record["scores"][method] = score(new, predicted)
    return record


def summary(rows: list[Record]) -> Record:
    """Return means of one table, and the difference between elmesh and the best other method."""
    scores = {method: np.array([row["scores"][method] for row in rows]) for method in FEDERATED}
    other = max((method for method in FEDERATED if method != OWN), key=lambda method: scores[method].mean())
    gain = scores[OWN] - scores[other]
    mean = float(gain.mean())
    error = standard_error(gain)
    return {
        "scores": {m: {"mean": float(v.mean()), "standard_error": standard_error(v)} for m, v in scores.items()},
        "best_other": {"other": other, "mean": mean, "standard_error": error},
        "verdict": "level" if abs(mean) <= error else "best" if mean > 0 else "below",
        "bytes": {m: float(np.mean([row["bytes"][m] for row in rows])) for m in FEDERATED},
        "seconds": {m: float(np.mean([row["seconds"][m] for row in rows])) for m in FEDERATED},
    }


def run(results: Path) -> Record:
    path, n_splits = results / "federated.jsonl", splits_asked()
    with threadpool_limits(1):
        every = records(path, n_splits, compare)
    tables = {name: summary([row for row in every if row["table"] == name]) for name in ARENA}
    path.unlink()
    return {
        "benchmark": "federated",
        "unit": "R2 or mean AUC over sites on rows not trained on; bytes that a site sends on average; CPU seconds",
        "splits": n_splits,
        "machine": machine(),
        "tables": short(tables),
        "goals": {
            "best or level among methods that pool no rows, on all twelve tables": all(
                table["verdict"] != "below" for table in tables.values()
            )
        },
    }
