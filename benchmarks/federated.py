"""What would be picked today where rows may not be pooled, judged on the tables of the arena by score and by bytes.

- federated ridge: one exchange of sums, as a solver of the package on the inputs (with an intercept per site);
- the same with a private ridge regression of each site on what it leaves;
- federated averaging (FedAvg) of a linear model, as a solver of the package on the inputs, its penalty chosen on rows
  left out;
- FedAvg of a network with one hidden layer; and FedPer, the same with an output layer of each site's own, which is
  never averaged (Arivazhagan et al. 2019).

Solvers receive a site's sufficient statistics and never its rows, which networks need: so those are here. A round of
theirs is ten steps of gradient descent with momentum at each site. Their step, weight decay and number of rounds are
chosen by the loss on a fifth of each site's training rows, left out; then they are fitted to all of them, with a step
of which none of the sites diverges. A round sends the averaged parameters in single precision to a hub and back.

Splits and scores are those of the arena. After an interrupt the run continues: finished splits are in federated.jsonl
until all are done. ``ELMESH_ARENA_SPLITS`` makes it shorter.
"""

from __future__ import annotations

import time
import warnings
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from benchmarks.arena import Record, records, score, split, splits_asked, standard_error
from benchmarks.measure import machine
from benchmarks.scores import short
from elmesh import FedAvg, FederatedRidge, MeshELM, MultiTaskELMClassifier, MultiTaskELMRegressor, Solver
from elmesh.arena import ARENA, load_arena
from elmesh.evaluation.rows import Inputs, Rows

__all__ = ["FEDERATED", "Network", "average_networks", "loss_gradient"]

HIDDEN, LOCAL_STEPS, MOMENTUM = 16, 10, 0.9
# Rounds at most, between two looks at rows left out, and after the best look until the search ends.
MOST_ROUNDS, CHECK_EVERY, PATIENCE = 300, 5, 60
STEPS, DECAYS, PENALTIES = (0.03, 0.1, 0.3), (0.0, 0.03), (1.0, 10.0, 100.0)


@dataclass(frozen=True)
class Network:
    """Parameters with a leading axis of sites: inputs to hidden units, and hidden units to the output."""

    W: np.ndarray  # (m, p, h)
    b: np.ndarray  # (m, 1, h)
    v: np.ndarray  # (m, h, 1)
    c: np.ndarray  # (m, 1, 1)

    @classmethod
    def start(cls, m: int, p: int, seed: int = 0) -> Network:
        rng = np.random.default_rng(seed)
        W, v = rng.normal(size=(p, HIDDEN)) / np.sqrt(p), rng.normal(size=(HIDDEN, 1)) / np.sqrt(HIDDEN)
        return cls(*(np.repeat(x[None], m, axis=0) for x in (W, np.zeros((1, HIDDEN)), v, np.zeros((1, 1)))))

    def parts(self) -> tuple[np.ndarray, ...]:
        return self.W, self.b, self.v, self.c

    def __call__(self, X: np.ndarray) -> np.ndarray:
        return np.tanh(X @ self.W + self.b) @ self.v + self.c


def loss_gradient(
    net: Network, X: np.ndarray, y: np.ndarray, w: np.ndarray, classes: bool
) -> tuple[np.ndarray, Network]:
    """Return each site's mean loss and its gradient; X (m, n, p), y and weights w (m, n, 1), zero for padding.

    The loss of numbers is half the squared error, that of classes 0 and 1 the log loss.
    """
    Z = np.tanh(X @ net.W + net.b)
    out = Z @ net.v + net.c
    share = w / w.sum(axis=1, keepdims=True)
    loss = np.logaddexp(0.0, out) - y * out if classes else 0.5 * (out - y) ** 2
    error = share * ((1 / (1 + np.exp(-out)) if classes else out) - y)
    back = (error @ net.v.mT) * (1 - Z**2)
    gradient = Network(X.mT @ back, back.sum(axis=1, keepdims=True), Z.mT @ error, error.sum(axis=1, keepdims=True))
    return np.sum(share * loss, axis=(1, 2)), gradient


def average_networks(net: Network, n: np.ndarray, private_head: bool) -> Network:
    """Replace parameters by their mean over sites, by numbers of rows; with a private head, of the first layer only."""
    share = (n / n.sum())[:, None, None]
    mean = [np.repeat(np.sum(share * x, axis=0, keepdims=True), len(n), axis=0) for x in net.parts()]
    return Network(*mean[:2], net.v, net.c) if private_head else Network(*mean)


@dataclass(frozen=True)
class _Sites:
    """Rows of all sites, padded to the same number."""

    X: np.ndarray
    y: np.ndarray
    w: np.ndarray

    @classmethod
    def of(cls, rows: Rows, names: np.ndarray, keep: np.ndarray) -> _Sites:
        index = [np.flatnonzero((rows.sites == name) & keep) for name in names]
        n = max(1, *map(len, index))
        X, y, w = np.zeros((len(names), n, rows.X.shape[1])), np.zeros((len(names), n, 1)), np.zeros((len(names), n, 1))
        for k, own in enumerate(index):
            X[k, : len(own)], y[k, : len(own), 0], w[k, : len(own)] = rows.X[own], rows.y[own], 1.0
        return cls(X, y, w)


def _train(
    sites: _Sites, step: float, decay: float, rounds: int, private: bool, classes: bool, left: _Sites | None = None
) -> Any:
    """Return the network after so many rounds; with rows left out, the least loss on them and its round instead."""
    net, n = Network.start(len(sites.X), sites.X.shape[-1]), sites.w.sum(axis=(1, 2))
    best = np.inf, 0
    for k in range(1, rounds + 1):
        speed = [np.zeros_like(x) for x in net.parts()]
        for _ in range(LOCAL_STEPS):
            _, g = loss_gradient(net, sites.X, sites.y, sites.w, classes)
            pairs = zip(net.parts(), g.parts(), speed, strict=True)
            speed = [MOMENTUM * v + d + decay * x for x, d, v in pairs]
            net = Network(*(x - step * v for x, v in zip(net.parts(), speed, strict=True)))
        net = average_networks(net, n, private)
        if left is not None and k % CHECK_EVERY == 0:
            counts = left.w.sum(axis=(1, 2))
            loss, _ = loss_gradient(net, left.X, left.y, np.maximum(left.w, 1e-300), classes)
            best = min(best, (float(np.sum(loss * counts) / counts.sum()), k))
            if k >= best[1] + PATIENCE:
                break
    return net if left is None else best


def _settled(sites: _Sites, step: float, decay: float, rounds: int, private: bool, classes: bool) -> Network:
    """Return the network after so many rounds; steps that are too long for all rows are halved until none diverges."""
    n = sites.w.sum(axis=(1, 2))
    at_first, _ = loss_gradient(Network.start(len(sites.X), sites.X.shape[-1]), sites.X, sites.y, sites.w, classes)
    while True:
        net = _train(sites, step, decay, rounds, private, classes)
        loss, _ = loss_gradient(net, sites.X, sites.y, sites.w, classes)
        if float(np.sum(n * loss)) <= float(np.sum(n * at_first)):
            return net
        step /= 2


def _left_out(rows: Rows) -> np.ndarray:
    """Return the rows that choices are made on: a fifth of each site's, at least one, of sites with more than two."""
    rng, left = np.random.default_rng(0), np.zeros(len(rows), dtype=bool)
    for name in np.unique(rows.sites):
        own = rng.permutation(np.flatnonzero(rows.sites == name))
        left[own[: max(len(own) // 5, len(own) > 2)]] = True
    return left


def network(train: Rows, new: Inputs, *, private: bool) -> tuple[np.ndarray, float]:
    """Fit FedAvg or FedPer; return predictions and the bytes that a site sends on average."""
    names, classes = np.unique(train.sites), train.classification
    mean, scale = (0.0, 1.0) if classes else (float(train.y.mean()), float(train.y.std()))
    rows = replace(train, y=(train.y - mean) / scale)
    left = _left_out(rows)
    kept, rest, whole = (_Sites.of(rows, names, keep) for keep in (~left, left, left | ~left))
    with np.errstate(over="ignore", invalid="ignore"):
        found = {way: _train(kept, *way, MOST_ROUNDS, private, classes, rest) for way in product(STEPS, DECAYS)}
        way = min(found, key=lambda way: found[way])
        rounds = max(found[way][1], 1)
        net = _settled(whole, *way, rounds, private, classes)
    predicted = np.empty(len(new))
    for k, name in enumerate(names):
        own = new.sites == name
        predicted[own] = Network(*(x[k : k + 1] for x in net.parts()))(new.X[None, own])[0, :, 0]
    sent = sum(x[0].size for x in (net.parts()[:2] if private else net.parts()))
    # To the hub and back, for all sites but the hub.
    total = 2 * (len(names) - 1) * 4 * sent * rounds
    return (1 / (1 + np.exp(-predicted)) if classes else mean + scale * predicted), total / len(names)


def solver(train: Rows, new: Inputs, made: Solver, hidden: str | None = None) -> tuple[np.ndarray, float]:
    """Fit a solver of the package; return predictions and the bytes that a site sends on average."""
    make = MultiTaskELMClassifier if train.classification else MultiTaskELMRegressor
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = make(hidden, solver=made, random_state=0).fit(train.X, train.y, tasks=train.sites)
        sent = float(model.traffic_["bytes"].sum()) / len(model.tasks_)
        if train.classification:
            return np.asarray(model.predict_proba(new.X, tasks=new.sites)[:, 1]), sent
        return np.asarray(model.predict(new.X, tasks=new.sites)), sent


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
    "FedAvg, network": lambda train, new: network(train, new, private=False),
    "FedPer, network": lambda train, new: network(train, new, private=True),
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
