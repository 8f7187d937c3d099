"""An empirical audit of differential privacy: can anybody tell two tables that differ in one row apart?

Private fits are run many times on two neighbouring tables, up to the total that leaves the sites. The auditor knows
both tables and everything about the mechanism, and uses the best test of two Gaussians: the component of a total along
the difference of the two expected ones. How often that errs gives a lower bound on epsilon, at a confidence of 95 %:

- for the stated delta, by the definition of differential privacy, with a threshold chosen on half of the runs and
  errors counted on the other half (Clopper and Pearson);
- by the error rates that a Gaussian mechanism of some epsilon cannot go below, which is sharper.

A mechanism that keeps its promise stays below the stated epsilon. Mechanisms that are broken on purpose must not.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from itertools import product
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from scipy.stats import beta, norm

from benchmarks.measure import machine
from benchmarks.scores import short
from elmesh import MeshELM, MultiTaskELMRegressor, Privacy
from elmesh.comm.local import LocalTransport
from elmesh.comm.requests import IntegerSum
from elmesh.privacy.accounting import epsilon_of
from elmesh.privacy.discrete_gaussian import NoiseSource
from elmesh.privacy.release import Mechanism

RUNS, CONFIDENCE = 10_000, 0.95
EPSILON, DELTA = 1.0, 1e-5
SITES, ROWS, COLUMNS = 3, 12, 3


class Captured(Exception):  # noqa: N818  (ends a fit that has released what is looked at)
    """A total that has left the sites."""

    def __init__(self, total: np.ndarray) -> None:
        self.total = total


@contextmanager
def capturing() -> Iterator[None]:
    """End every fit with the first total that leaves the sites."""

    def integer_sum(self: LocalTransport, request: IntegerSum) -> np.ndarray:
        raise Captured(request.value)

    with mock.patch.object(LocalTransport, "integer_sum", integer_sum):
        yield


def table(row: np.ndarray, target: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return a table whose first row is the one in question."""
    rng = np.random.default_rng(0)
    X, y = rng.uniform(-1, 1, (SITES * ROWS, COLUMNS)), rng.uniform(-1, 1, SITES * ROWS)
    X[0], y[0] = row, target
    return X, y, np.repeat(np.arange(SITES), ROWS)


def release(row: np.ndarray, target: float) -> np.ndarray:
    """Return the total that one fit releases."""
    privacy = Privacy(EPSILON, DELTA, max_colluders=0, input_range=(-1, 1), target_range=(-1, 1))
    model = MultiTaskELMRegressor(4, solver=MeshELM(privacy=privacy), random_state=0)
    X, y, sites = table(row, target)
    try:
        with capturing(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model.fit(X, y, sites)
    except Captured as captured:
        return captured.total
    raise RuntimeError("The fit has released nothing.")


def expected(row: np.ndarray, target: float) -> np.ndarray:
    """Return the same without noise."""
    with mock.patch.object(NoiseSource, "draw", lambda self, label, sigma: np.zeros_like(sigma)):
        return release(row, target)


Pair = tuple[tuple[np.ndarray, float], tuple[np.ndarray, float]]


def worst_pair(sigma: np.ndarray) -> tuple[Pair, float]:
    """Return the pair of extreme rows whose totals are furthest apart, and their distance in units of the noise."""
    rows = [(np.array(x), y) for x in product((-50.0, 0.0, 50.0), repeat=COLUMNS) for y in (-50.0, 50.0)]
    totals = np.array([expected(*row) for row in rows]) / sigma
    distance = np.linalg.norm(totals[:, None] - totals[None], axis=-1)
    i, j = np.unravel_index(int(np.argmax(distance)), distance.shape)
    return (rows[i], rows[j]), float(distance[i, j])


def noise_of_all(monitor: list[np.ndarray] | None = None) -> np.ndarray:
    """Return the standard deviation of the noise in each number of a total."""
    found: list[np.ndarray] = [] if monitor is None else monitor

    def draw(self: NoiseSource, label: bytes, sigma: np.ndarray) -> np.ndarray:
        found.append(sigma)
        return np.zeros_like(sigma)

    with mock.patch.object(NoiseSource, "draw", draw):
        release(np.zeros(COLUMNS), 0.0)
    return np.sqrt(np.sum(np.array(found, dtype=np.float64) ** 2, axis=0))


# Lower bounds on epsilon.


def upper_rate(errors: np.ndarray, runs: int, confidence: float) -> np.ndarray:
    """Return upper confidence bounds on the probability of an error (Clopper and Pearson)."""
    return np.where(errors == runs, 1.0, beta.ppf(confidence, errors + 1, np.maximum(runs - errors, 1)))


def bounds(scores: np.ndarray, others: np.ndarray, delta: float, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Return lower bounds on epsilon from scores with one table and with the other: by definition, and for Gaussians.

    The threshold is the one with the largest bound on the first half of the scores; the bound is that of the rest.
    """
    half = len(scores) // 2
    thresholds = np.quantile(np.concatenate([scores[:half], others[:half]]), np.linspace(0.005, 0.995, 199))
    first = _bounds(scores[:half], others[:half], thresholds, delta, confidence)
    chosen = [thresholds[[int(np.argmax(found))]] for found in first]
    by_definition, gaussian = (
        float(_bounds(scores[half:], others[half:], at, delta, confidence)[k][0]) for k, at in enumerate(chosen)
    )
    return max(by_definition, 0.0), epsilon_of(max(gaussian, 0.0) ** 2 / 2, delta)


def _bounds(
    scores: np.ndarray, others: np.ndarray, thresholds: np.ndarray, delta: float, confidence: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return lower bounds on epsilon, and on the distance of two Gaussians, at each threshold.

    Both error rates that enter have half of what the confidence leaves.
    """
    runs, each = len(scores), 1 - (1 - confidence) / 2
    missed = np.sum(scores[:, None] <= thresholds, axis=0)
    alarmed = np.sum(others[:, None] > thresholds, axis=0)
    found = []
    # Either table may be the one that is looked for.
    for one, two in ((missed, alarmed), (runs - alarmed, runs - missed)):
        m, a = upper_rate(one, runs, each), upper_rate(two, runs, each)
        found.append((np.log(np.maximum(1 - m - delta, 1e-300) / a), norm.isf(a) - norm.ppf(m)))
    return np.maximum(found[0][0], found[1][0]), np.maximum(found[0][1], found[1][1])


def audit(pair: Pair, sigma: np.ndarray, runs: int) -> tuple[float, float]:
    """Return the lower bounds on epsilon that so many fits of each table give."""
    first, second = pair
    direction = (expected(*first) - expected(*second)) / sigma**2
    one, two = (np.array([release(*row) @ direction for _ in range(runs)], dtype=np.float64) for row in pair)
    return bounds(one, two, DELTA)


# Mechanisms that are broken on purpose.


def _half_noise() -> Any:
    draw = NoiseSource.draw
    return mock.patch.object(NoiseSource, "draw", lambda self, label, sigma: draw(self, label, sigma // 2))


def _targets_not_limited() -> Any:
    rows = Mechanism.rows

    def wider(self: Mechanism, Phi: np.ndarray, T: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        Z, Y = rows(self, Phi, T)
        norms = np.maximum(np.linalg.norm(Phi, axis=1, keepdims=True), 1e-12)
        return Z, np.rint(np.clip(T / norms, -8, 8) * self.length / (self.limit * self.spread) + 0 * Y)

    return mock.patch.object(Mechanism, "rows", wider)


def _one_site_adds_noise() -> Any:
    draw = NoiseSource.draw

    def only_first(self: NoiseSource, label: bytes, sigma: np.ndarray) -> np.ndarray:
        return draw(self, label, sigma) if label.startswith(b"0 ") else np.zeros_like(sigma)

    return mock.patch.object(NoiseSource, "draw", only_first)


def _same_noise() -> Any:
    return mock.patch.object(NoiseSource, "fresh", classmethod(lambda cls: cls(bytes(32))))


BROKEN: dict[str, Callable[[], Any]] = {
    "noise of half the size": _half_noise,
    "targets that are not limited": _targets_not_limited,
    "noise of one site in place of three": _one_site_adds_noise,
    "the same noise in every run": _same_noise,
}


def run(results: Path) -> dict[str, Any]:
    sigma = noise_of_all()
    _, distance = worst_pair(sigma)
    figures: dict[str, Any] = {}
    ways: dict[str, Callable[[], Any]] = {"as it is": nullcontext, **BROKEN}
    for name, broken in ways.items():
        runs = RUNS if name == "as it is" else RUNS // 2
        with broken():
            by_definition, gaussian = audit(worst_pair(sigma)[0], sigma, runs)
        figures[name] = {"runs": runs, "by definition": by_definition, "gaussian": gaussian}
    whole, broken_ones = figures["as it is"], [figures[name] for name in BROKEN]
    return {
        "benchmark": "audit",
        "unit": "lower bound on epsilon, at a confidence of 95 %",
        "machine": machine(),
        "settings": {
            "epsilon": EPSILON,
            "delta": DELTA,
            "sites": SITES,
            "distance": distance,
            "epsilon_of_the_pair": epsilon_of(distance**2 / 2, DELTA),
        },
        "figures": short(figures),
        "goals": {
            "the lower bound on epsilon stays below the stated one": max(whole["by definition"], whole["gaussian"])
            < EPSILON,
            "every mechanism broken on purpose is found": all(one["gaussian"] > EPSILON for one in broken_ones),
        },
    }
