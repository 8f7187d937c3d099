"""Cases in which learning together could hurt: how much worse than alone is elmesh with nothing set?

The error of a site is its squared error over the variance of its targets (for classes, the error rate), averaged over
the sites that count: all but the odd one. It is compared with the better of LocalELM and a linear model alone, whose
penalty is chosen; for identical sites, with a ridge on all rows in one place.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, KFold
from threadpoolctl import threadpool_limits

from benchmarks.arena import standard_error
from benchmarks.measure import machine
from benchmarks.rivals import CS, Rows, alone_elmesh, alone_linear, fit_elmesh, linear
from benchmarks.scores import short
from elmesh import LocalELM

SEEDS, GOAL = range(8), 1.05
SITES, INPUTS, ROWS, TEST_ROWS, NOISE = 12, 8, 40, 400, 0.5
ODD = "site-00"
NAMES = [f"site-{t:02d}" for t in range(SITES)]
Draw = tuple[Rows, Rows]
Predict = Callable[[Rows, Rows], np.ndarray]


def stack(sites: list[tuple[np.ndarray, np.ndarray]]) -> Rows:
    """Return the rows of all sites, given inputs and targets of each."""
    X, y = (np.concatenate(parts) for parts in zip(*sites, strict=True))
    return Rows(X=X, y=y, sites=np.repeat(NAMES, [len(targets) for _, targets in sites]))


def regression(rng: np.random.Generator, weights: np.ndarray, rows: list[int], noise: float = NOISE) -> Rows:
    """Draw sites with these weights, of shape (sites, inputs), and numbers of rows."""
    inputs = [rng.normal(size=(n, INPUTS)) for n in rows]
    return stack([(X, X @ w + noise * rng.normal(size=len(X))) for X, w in zip(inputs, weights, strict=True)])


def draw(rng: np.random.Generator, related: float, first: int = ROWS, others: int = ROWS, noise: float = NOISE) -> Draw:
    """Draw training and test rows of linear sites; this share of the variance of their weights is common to all."""
    common, own = rng.normal(size=INPUTS), rng.normal(size=(SITES, INPUTS))
    weights = (np.sqrt(related) * common + np.sqrt(1 - related) * own) / np.sqrt(INPUTS)
    sizes = [first, *[others] * (SITES - 1)]
    return regression(rng, weights, sizes, noise), regression(rng, weights, [TEST_ROWS] * SITES, noise)


def large_site(rng: np.random.Generator) -> Draw:
    return draw(rng, related=0.0, first=10_000, others=20)


def loud_site(rng: np.random.Generator) -> Draw:
    train, test = draw(rng, related=0.9)
    for rows in (train, test):
        rows.y[rows.sites == ODD] *= 100
    return train, test


def pure_noise(rng: np.random.Generator) -> Draw:
    train, test = draw(rng, related=0.0)
    for rows in (train, test):
        rows.y[:] = rng.normal(size=len(rows.y))
    return train, test


def outliers(rng: np.random.Generator) -> Draw:
    train, test = draw(rng, related=0.9)
    hit = rng.random(len(train.y)) < 0.05
    train.y[hit] += rng.choice([-100.0, 100.0], size=int(hit.sum())) * train.y.std()
    return train, test


def unrelated(rng: np.random.Generator) -> Draw:
    return draw(rng, related=0.0)


def identical(rng: np.random.Generator) -> Draw:
    return draw(rng, related=1.0)


def classes(rng: np.random.Generator, shares: np.ndarray, rows: int) -> Draw:
    """Draw sites with classes around centres that are mostly common; ``shares`` is of shape (sites, classes)."""
    n = shares.shape[1]
    centres = 1.5 * (rng.normal(size=(n, INPUTS)) + 0.3 * rng.normal(size=(SITES, n, INPUTS)))

    def sample(size: int) -> Rows:
        labels = [rng.choice(n, size=size, p=share) for share in shares]
        return stack([(c[y] + rng.normal(size=(size, INPUTS)), y) for c, y in zip(centres, labels, strict=True)])

    return sample(rows), sample(TEST_ROWS)


def imbalanced_classes(rng: np.random.Generator) -> Draw:
    share = np.linspace(6.0, 1.0, 10)
    return classes(rng, np.tile(share / share.sum(), (SITES, 1)), rows=100)


def missing_class(rng: np.random.Generator) -> Draw:
    shares = np.full((SITES, 3), 1 / 3)
    shares[0] = [0.5, 0.5, 0.0]
    return classes(rng, shares, rows=ROWS)


#: Cases by name, and whether the first site is left out of their errors.
CASES: dict[str, tuple[Callable[[np.random.Generator], Draw], bool]] = {
    "one site of 10,000 rows, eleven unrelated ones of 20": (large_site, True),
    "one site's targets times 100": (loud_site, True),
    "pure noise": (pure_noise, False),
    "5 % of training targets off by 100 standard deviations": (outliers, False),
    "ten classes, 6:1 imbalance": (imbalanced_classes, False),
    "unrelated sites": (unrelated, False),
    "identical sites": (identical, False),
    "one class missing at a site": (missing_class, False),
}


def together(train: Rows, new: Rows) -> np.ndarray:
    return np.asarray(fit_elmesh(train).predict(new.X, tasks=new.sites))


def alone_labels(train: Rows, new: Rows) -> np.ndarray:
    return np.asarray(fit_elmesh(train, LocalELM()).predict(new.X, tasks=new.sites))


def alone_logistic(train: Rows, new: Rows) -> np.ndarray:
    """Fit logistic regression at each site, with C chosen by accuracy; folds may lack a class with few rows."""
    predicted = np.empty_like(new.y)
    folds = KFold(5, shuffle=True, random_state=0)
    for site in NAMES:
        own = train.at(site)
        model = GridSearchCV(LogisticRegression(max_iter=500), {"C": CS}, cv=folds, scoring="accuracy")
        predicted[new.sites == site] = model.fit(own.X, own.y).predict(new.at(site).X)
    return predicted


def compared(name: str, train: Rows) -> dict[str, Predict]:
    """Return the methods of a case; the first is elmesh."""
    if train.classification:
        return {"elmesh": together, "LocalELM": alone_labels, "logistic alone": alone_logistic}
    if name == "identical sites":
        return {"elmesh": together, "pooled ridge": linear}
    return {"elmesh": together, "LocalELM": alone_elmesh, "ridge alone": alone_linear}


def error(new: Rows, predicted: np.ndarray, leave_out: bool) -> float:
    """Return the mean error of the sites that count."""
    wrong = (new.y != predicted) if new.classification else (new.y - predicted) ** 2
    sites = [new.sites == site for site in NAMES if not (leave_out and site == ODD)]
    return float(np.mean([wrong[s].mean() / (1.0 if new.classification else np.var(new.y[s])) for s in sites]))


def figures(name: str) -> dict[str, Any]:
    """Return the errors of one case over all seeds, and elmesh's over the better of the others."""
    make, leave_out = CASES[name]
    errors: dict[str, list[float]] = {}
    for seed in SEEDS:
        train, new = make(np.random.default_rng(seed))
        for method, predict in compared(name, train).items():
            errors.setdefault(method, []).append(error(new, predict(train, new), leave_out))
    means = {method: float(np.mean(values)) for method, values in errors.items()}
    other = min((method for method in means if method != "elmesh"), key=lambda method: means[method])
    gap = np.array(errors["elmesh"]) - np.array(errors[other])
    print(f"{name}: {means}", file=sys.stderr)
    return {
        "errors": means,
        "other": other,
        "ratio": means["elmesh"] / means[other],
        "standard_error": standard_error(gap) / means[other],
    }


def run(results: Path) -> dict[str, Any]:
    with threadpool_limits(1):
        cases = {name: figures(name) for name in CASES}
    return {
        "benchmark": "adversarial",
        "unit": "squared error over the variance of a site's targets, or error rate, averaged over sites and seeds",
        "seeds": len(SEEDS),
        "goal": GOAL,
        "machine": machine(),
        "cases": short(cases),
        "goals": {
            f"{name}: at most {GOAL} times the error of the better one": case["ratio"] <= GOAL
            for name, case in cases.items()
        },
    }
