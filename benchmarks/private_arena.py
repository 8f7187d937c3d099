"""What differential privacy costs: the tables of the arena at several epsilons, next to being alone.

Splits and scores are those of :mod:`benchmarks.arena`. A private fit takes the columns as they come, and their scales
in one of three ways:

- *usual*: the range that the middle 90 % of values of the table are in, rounded to two digits, is declared, as one who
  knows the field would declare it;
- *extremes*: the range of all values, rounded outwards to one digit, is declared, as in a data dictionary;
- *found*: nothing is declared, and scales are paid for.

Nobody colludes (k = 0), except where *colluders* are a third of all sites, the default. *No noise* is elmesh without
privacy. After an interrupt the run continues; ``ELMESH_ARENA_SPLITS`` makes it shorter.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from threadpoolctl import threadpool_limits

from benchmarks.arena import Record, divide, records, score, splits_asked, standard_error, standardized
from benchmarks.measure import machine
from benchmarks.rivals import ALONE, RIVALS, Rows, fit_elmesh, predict_elmesh
from benchmarks.scores import short
from elmesh import MeshELM, MultiTaskELMClassifier, MultiTaskELMRegressor, Privacy
from elmesh.arena import ARENA, ArenaTable, load_arena
from elmesh.errors import ElmeshError

EPSILONS, DELTA = (0.1, 0.3, 1.0, 3.0, 10.0), 1e-5
WAYS = ("usual", "extremes", "found")
OWN, NO_NOISE, COLLUDERS = "usual, epsilon 1", "no noise", "usual, epsilon 1, a third colludes"
# Tables with more training rows than this should lose at most so much.
MANY_ROWS, MOST_LOST = 2500, 0.02


def declared(values: np.ndarray, way: str) -> tuple[float, float]:
    """Return the range of a column that is declared."""
    low, high = np.nanquantile(values, (0.05, 0.95) if way == "usual" else (0.0, 1.0)).tolist()
    if low == high:  # most values are the same: a rare category
        low, high = float(np.nanmin(values)), float(np.nanmax(values))
    if low == high:
        return low - 0.5, low + 0.5
    unit = 10.0 ** (np.floor(np.log10(high - low)) - (way == "usual"))
    if way == "usual":
        return float(np.round(low / unit) * unit), float(np.round(high / unit) * unit)
    return float(np.floor(low / unit) * unit), float(np.ceil(high / unit) * unit)


def ranges(table: ArenaTable, way: str) -> dict[str, Any]:
    """Return the ranges of inputs and target, as arguments of :class:`Privacy`."""
    if way == "found":
        return {}
    X = pd.get_dummies(table.X, dtype=float).to_numpy()
    found: dict[str, Any] = {"input_range": [declared(column, way) for column in X.T]}
    return found if table.kind == "classification" else found | {"target_range": declared(table.y, way)}


def private(train: Rows, new: Rows, privacy: Privacy) -> float | None:
    """Return the score of a private fit; None if it is refused because noise would hide everything."""
    make = MultiTaskELMClassifier if train.classification else MultiTaskELMRegressor
    # A private fit must not find the classes from the rows; those of the arena are 0 and 1.
    declared_classes = {"shared_classes": [0, 1]} if train.classification else {}
    model = make(solver=MeshELM(privacy=privacy), random_state=0, **declared_classes)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            model.fit(train.X, train.y, tasks=train.sites)
        except ElmeshError:
            return None
        return score(new, predict_elmesh(model, new))


def compare(name: str, seed: int) -> Record:
    """Return the scores of one split: alone, without noise, and private in every way."""
    table = load_arena(name)
    train, new = divide(table, seed)
    usual, usual_new = standardized(train, new)
    scores = {method: score(usual_new, RIVALS[method](usual, usual_new)) for method in ALONE}
    scores[NO_NOISE] = score(usual_new, predict_elmesh(fit_elmesh(usual), usual_new))
    for way in WAYS:
        known = ranges(table, way)
        for epsilon in EPSILONS:
            privacy = Privacy(epsilon, DELTA, max_colluders=0, **known)
            scores[f"{way}, epsilon {epsilon:g}"] = private(train, new, privacy)
    scores[COLLUDERS] = private(train, new, Privacy(1.0, DELTA, **ranges(table, "usual")))
    sites = len(np.unique(train.sites))
    return {"table": name, "split": seed, "rows": len(train.y), "sites": sites, "scores": scores}


def summary(rows: list[Record]) -> Record:
    """Return means and standard errors of one table, and differences from the better one alone and from no noise."""
    made = [method for method in rows[0]["scores"] if all(row["scores"][method] is not None for row in rows)]
    scores = {method: np.array([row["scores"][method] for row in rows]) for method in made}
    alone = scores[max(ALONE, key=lambda method: scores[method].mean())]

    def difference(gain: np.ndarray) -> Record:
        return {"mean": float(gain.mean()), "standard_error": standard_error(gain)}

    gains = {method: difference(values - alone) for method, values in scores.items() if method not in ALONE}
    return {
        "rows": rows[0]["rows"],
        "sites": rows[0]["sites"],
        "scores": {method: difference(values) for method, values in scores.items()},
        "better alone": max(ALONE, key=lambda method: scores[method].mean()),
        "against alone": gains,
        "against no noise": difference(scores[OWN] - scores[NO_NOISE]),
    }


def not_below(one: Record, method: str = OWN) -> bool:
    """Return whether a table is better than alone, or level within a standard error; not if any fit is refused."""
    gain = one["against alone"].get(method)
    return gain is not None and bool(gain["mean"] >= -gain["standard_error"])


def run(results: Path) -> Record:
    path, n_splits = results / "private_arena.jsonl", splits_asked()
    with threadpool_limits(1):
        every = records(path, n_splits, compare)
    tables = {name: summary([row for row in every if row["table"] == name]) for name in ARENA}
    path.unlink()
    large = [one for one in tables.values() if one["rows"] > MANY_ROWS]
    level = {way: sum(not_below(one, f"{way}, epsilon 1") for one in tables.values()) for way in WAYS}
    return {
        "benchmark": "private_arena",
        "unit": "R2 or mean AUC over sites on rows not trained on",
        "splits": n_splits,
        "epsilons": list(EPSILONS),
        "delta": DELTA,
        "machine": machine(),
        "tables": short(tables),
        "not_below_alone": level,
        "goals": {
            "at epsilon 1 better than alone, or level within a standard error, on at least 10 of 12 tables": (
                level["usual"] >= 10
            ),
            f"at epsilon 1 at most {MOST_LOST} below no noise on tables with over {MANY_ROWS:,} training rows": all(
                one["against no noise"]["mean"] >= -MOST_LOST for one in large
            ),
        },
    }
