"""What would be picked today where rows may not be pooled, judged on the tables of the arena by score and by bytes.

- federated ridge: one exchange of sums, as a solver of the package: on the inputs, and on the features of elmesh;
- the same on the inputs with a private ridge regression of each site on what it leaves; its penalty, and whether the
  intercept of a site is its own mean or is pulled towards the common one, are chosen on rows left out;
- federated averaging (FedAvg) of a linear model on the inputs, its penalty chosen on rows left out;
- FedAvg of a network with one hidden layer, of the targets or of what the means of sites leave of them, whichever is
  better on rows left out; the same with a private ridge regression on the network's hidden units of what it leaves, of
  which nothing is sent; and FedPer, a network with an output layer of each site's own, which is never averaged
  (Arivazhagan et al. 2019).

Linear models have an intercept per site. A round of networks is ten steps of gradient descent with momentum at each
site. Rows left out are a fifth of each site's training rows; step, weight decay and number of rounds of networks are
chosen on them as well, and then all methods are fitted to all training rows. Messages of other methods have the fewest
bits per number that cost them no score: 16 for sums over the inputs, 32 over many features, and 8 where rounding errors
feed back.

Splits and scores are those of the arena. After an interrupt the run continues: finished splits are in federated.jsonl
until all are done. ``ELMESH_ARENA_SPLITS`` makes it shorter.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import log_softmax
from threadpoolctl import threadpool_limits

from benchmarks.arena import (
    MARGIN,
    Record,
    described,
    paired,
    records,
    score,
    split,
    splits_asked,
    standard_error,
    verdict,
    within,
)
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

# Bits per number in messages: of sums of matrices, sent once or a few times, and of what is sent every round.
MATRIX_BITS, SUM_BITS, BITS = 32, 16, 8
# Rounds at most, between two looks at rows left out, and after the best look until the search ends.
MOST_ROUNDS, CHECK_EVERY, PATIENCE = 1000, 5, 60
STEPS, DECAYS, PENALTIES = (0.01, 0.03, 0.1, 0.3), (0.0, 0.03), (1.0, 10.0, 100.0)
#: From training rows and new inputs to predictions and the bytes that a site sends on average.
Way = Callable[[Rows, Inputs], tuple[np.ndarray, float]]
PRIVATE_PENALTIES = (1.0, 3.0, 10.0, 30.0, 100.0, 300.0)


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
    (step, decay), (_, rounds) = _best_way(train.take(~left), train.take(left), kind)
    return predict(_fit_network(train, kind, step, decay, rounds), new)


@dataclass
class CentredNetwork:
    """A network for the targets, or for what the mean of each site leaves of them."""

    model: Any
    means: SiteMeans | None

    def predict(self, new: Inputs) -> np.ndarray:
        predicted, _ = predict(self.model, new)
        return predicted if self.means is None else predicted + self.means.of(new.sites)

    def units(self, X: np.ndarray) -> np.ndarray:
        return np.asarray(self.model.model_.layer(X))

    @property
    def sent(self) -> float:
        return float(self.model.traffic_["bytes"].sum()) / len(self.model.tasks_)


@cache
def _choose_network(name: str, seed: int, kind: type[NetworkAveraging]) -> tuple[bool, float, float, int]:
    """Return whether targets are less the means of sites, step, decay and rounds: the best on rows left out.

    Means of sites stay at home. A class has no mean.
    """
    train, _ = split(load_arena(name), seed)
    left = _left_out(train)
    kept, rest = train.take(~left), train.take(left)
    way, (plain, rounds) = _best_way(kept, rest, kind)
    if train.classification:
        return False, *way, rounds
    inner = SiteMeans(kept)
    inner_way, (centred, inner_rounds) = _best_way(inner.less(kept), inner.less(rest), kind)
    return (False, *way, rounds) if centred >= plain else (True, *inner_way, inner_rounds)


def _centred_network(
    train: Rows, kind: type[NetworkAveraging], centred: bool, step: float, decay: float, rounds: int
) -> CentredNetwork:
    means = SiteMeans(train) if centred else None
    return CentredNetwork(_fit_network(train if means is None else means.less(train), kind, step, decay, rounds), means)


def network_and_site(name: str, seed: int, train: Rows, new: Inputs) -> tuple[np.ndarray, float]:
    """Fit a network to targets, or to what the means of sites leave of them: whichever is better on rows left out."""
    found = _centred_network(train, FedAvgNetwork, *_choose_network(name, seed, FedAvgNetwork))
    return found.predict(new), found.sent


def network_and_residual(name: str, seed: int, train: Rows, new: Inputs) -> tuple[np.ndarray, float]:
    """Fit the same network, and at each site a ridge regression of what it leaves on its hidden units.

    The penalty is that with the least error on rows left out; none of them may be.
    """
    way = _choose_network(name, seed, FedAvgNetwork)
    found = _centred_network(train, FedAvgNetwork, *way)
    if train.classification:
        return found.predict(new), found.sent
    left = _left_out(train)
    kept, rest = train.take(~left), train.take(left)
    inner = _centred_network(kept, FedAvgNetwork, *way)
    losses = {mu: np.mean((_with_residual(inner, kept, rest, mu) - rest.y) ** 2) for mu in (*PRIVATE_PENALTIES, np.inf)}
    return _with_residual(found, train, new, min(losses, key=lambda mu: losses[mu])), found.sent


def _with_residual(found: CentredNetwork, train: Rows, new: Inputs, mu: float) -> np.ndarray:
    """Return predictions of a network and a private ridge regression, with an intercept, of what it leaves."""
    predicted = found.predict(new)
    if np.isinf(mu):
        return predicted
    left_over, Z, Z_new = train.y - found.predict(train), found.units(train.X), found.units(new.X)
    for name in np.unique(new.sites):
        own, at = train.sites == name, new.sites == name
        z, y = Z[own].mean(axis=0), left_over[own].mean()
        H = Z[own] - z
        A = np.linalg.solve(H.T @ H + mu * np.eye(H.shape[1]), H.T @ (left_over[own] - y))
        # The mean of what is left is shrunk like a coefficient.
        predicted[at] += (Z_new[at] - z) @ A + y * own.sum() / (own.sum() + mu)
    return predicted


class SiteMeans:
    """The mean target of each site's rows."""

    def __init__(self, rows: Rows) -> None:
        self._means = {name: float(rows.y[rows.sites == name].mean()) for name in np.unique(rows.sites)}

    def of(self, sites: np.ndarray) -> np.ndarray:
        return np.array([self._means[name] for name in sites])

    def less(self, rows: Rows) -> Rows:
        """Return rows whose targets are less the mean of their site."""
        return replace(rows, y=rows.y - self.of(rows.sites))


def _best_way(kept: Rows, rest: Rows, kind: type[NetworkAveraging]) -> tuple[tuple[float, float], tuple[float, int]]:
    """Return step and decay with the least loss on rows left out, and this loss with its round."""
    probe = fit(kept, kind(max_iter=1))
    layer = probe.model_.layer
    assert isinstance(layer, TrainedLayer)
    sites = [np.flatnonzero(rest.sites == name) for name in probe.tasks_]
    head = next(iter(probe.model_.heads.values()))
    found = {}
    for step, decay in product(STEPS, DECAYS):
        scale = 1.0 if kept.classification else float(probe.target_scale_[0])
        watch = _Watch(layer, rest, sites, probe.classes_ if kept.classification else None, scale, head.t_mean[0])
        fit(kept, kind(step_size=step, decay=decay, max_iter=MOST_ROUNDS), callback=watch)
        found[step, decay] = watch.best
    way = min(found, key=lambda way: found[way])
    return way, found[way]


def _fit_network(train: Rows, kind: type[NetworkAveraging], step: float, decay: float, rounds: int) -> Any:
    while True:
        model = fit(train, kind(step_size=step, decay=decay, max_iter=max(rounds, 1), message_bits=BITS))
        objective = model.history_["objective"]
        # A step that is too long for all rows is halved until none diverges.
        if model.stop_ is not StopReason.DIVERGED and objective.iloc[-1] <= objective.iloc[0]:
            return model
        step /= 2


def fit(
    train: Rows, made: Solver, hidden: str | None = "auto", callback: Any = None, fit_intercept: bool = True
) -> Any:
    """Return the estimator of a solver, fitted to rows."""
    make = MultiTaskELMClassifier if train.classification else MultiTaskELMRegressor
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = make(hidden, solver=made, random_state=0, fit_intercept=fit_intercept)
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


def least(train: Rows, ways: list[Way]) -> Way:
    """Return the way to fit rows with the least squared error on rows left out."""
    left = _left_out(train)
    kept, rest = train.take(~left), train.take(left)
    return min(ways, key=lambda way: float(np.mean((way(kept, rest)[0] - rest.y) ** 2)))


def private_residual(train: Rows, new: Inputs) -> tuple[np.ndarray, float]:
    """Fit federated ridge with private residuals: penalties and intercepts that are best on rows left out."""

    def with_means(mu: float | str) -> Way:
        made = FederatedRidge(private=True, private_mu=mu, message_bits=SUM_BITS)
        return lambda train, new: solver(train, new, made)

    def with_constant(mu: float) -> Way:
        made = FederatedRidge(private=True, private_mu=mu, message_bits=SUM_BITS)
        return lambda train, new: predict(fit(_constant(train), made, None, fit_intercept=False), _constant(new))

    own: list[Way] = [with_means("auto")]
    ways = own + [make(mu) for mu in PRIVATE_PENALTIES for make in (with_means, with_constant)]
    return least(train, ways)(train, new)


def _constant(rows: Any) -> Any:
    """Return rows with a column of ones."""
    return replace(rows, X=np.hstack([rows.X, np.ones((len(rows.X), 1))]))


def fed_avg(train: Rows, new: Inputs) -> tuple[np.ndarray, float]:
    """Fit FedAvg of a linear model with the penalty that is best on rows left out."""

    def way(mu: float) -> Way:
        return lambda train, new: solver(train, new, FedAvg(mu=mu, message_bits=BITS))

    return least(train, [way(mu) for mu in PENALTIES])(train, new)


OWN = "elmesh"
RIDGE, WIDE_RIDGE = FederatedRidge(message_bits=SUM_BITS), FederatedRidge(message_bits=MATRIX_BITS)
FEDERATED: dict[str, Way] = {
    OWN: lambda train, new: solver(train, new, MeshELM(), "auto"),
    "elmesh, 32 bits": lambda train, new: solver(train, new, MeshELM(message_bits=MATRIX_BITS), "auto"),
    "federated ridge": lambda train, new: solver(train, new, RIDGE),
    "federated ridge, elmesh's features": lambda train, new: solver(train, new, WIDE_RIDGE, "auto"),
    "federated ridge, private residual": private_residual,
    "FedAvg, linear": fed_avg,
    "FedPer, network": lambda train, new: network(train, new, FedPer),
}
#: Methods whose choices are shared, and which take the name of the table and the split for that.
SHARED = {"FedAvg, network": network_and_site, "FedAvg, network, private residual": network_and_residual}
METHODS = [*FEDERATED, *SHARED]
OTHERS = [method for method in METHODS if not method.startswith(OWN)]


def compare(name: str, seed: int) -> Record:
    """Return the figures of all methods on one split of a table."""
    train, new = split(load_arena(name), seed)
    record = {**described(name, seed, train, new), "scores": {}, "bytes": {}, "seconds": {}}
    ways = FEDERATED | {method: partial(way, name, seed) for method, way in SHARED.items()}
    for method, fit in ways.items():
        begin = time.process_time()
        predicted, record["bytes"][method] = fit(train, new)
        record["seconds"][method] = time.process_time() - begin
        record["scores"][method] = score(new, predicted)
    return record


def summary(rows: list[Record]) -> Record:
    """Return means of one table, and the difference between elmesh and the best other method."""
    scores = {method: np.array([row["scores"][method] for row in rows]) for method in METHODS}
    other = max(OTHERS, key=lambda method: scores[method].mean())
    best = paired(rows, other, scores[OWN] - scores[other])
    return {
        "scores": {m: {"mean": float(v.mean()), "standard_error": standard_error(v)} for m, v in scores.items()},
        "best_other": best,
        "verdict": verdict(best),
        "bytes": {m: float(np.mean([row["bytes"][m] for row in rows])) for m in METHODS},
        "seconds": {m: float(np.mean([row["seconds"][m] for row in rows])) for m in METHODS},
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
            "clearly below the best other method that pools no rows on no table": all(
                table["verdict"] != "below" for table in tables.values()
            ),
            f"at most {MARGIN:g} below the best of them on every table, with 95 % confidence": within(tables),
        },
    }
