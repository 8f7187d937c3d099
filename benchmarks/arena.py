"""Twelve real tables with sites in them: elmesh with nothing set, against what a user would pick instead.

Every split takes the table's share of each site's rows (of each class) for training. All methods get the same inputs:
words as dummies, gaps filled by medians, columns standardised, both by training rows. Scores are on the other rows: R2
over all of them, or for two classes the mean over sites of the area under the ROC curve. Times are CPU times of fit and
prediction on one thread, and are compared within one run.

After an interrupt the run continues: finished splits are in arena.jsonl until all are done. The environment variable
``ELMESH_ARENA_SPLITS`` makes it shorter.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn.metrics import log_loss, r2_score, roc_auc_score
from threadpoolctl import threadpool_limits

from benchmarks.measure import machine
from benchmarks.rivals import ALONE, REGRESSION_ONLY, RIVALS, Rows, covered, fit_elmesh, predict_elmesh
from benchmarks.scores import short
from elmesh.arena import ARENA, ArenaTable, load_arena
from elmesh.math.intervals import corrected_standard_error, half_width

SPLITS = 10
# Splits that were not looked at while the defaults were chosen; the tables were.
FIRST = 1000
OWN = "elmesh"
# What a score may be lower and still count as good.
MARGIN = 0.01
BOOSTING, SLOPES, LOGISTIC = "gradient boosting and site", "mixed model, slopes", "pooled linear and site"
INTERCEPTS = "mixed model, intercepts"
TIMED = (BOOSTING, INTERCEPTS, SLOPES)
Record = dict[str, Any]


def divide(table: ArenaTable, seed: int) -> tuple[Rows, Rows]:
    """Return training and test rows, words as dummies and gaps filled by the medians of the training rows."""
    rng, train = np.random.default_rng(seed), np.zeros(len(table.y), dtype=bool)
    groups = pd.Series(table.sites)
    keys = [groups] if table.kind == "regression" else [groups, pd.Series(table.y)]
    for rows in pd.Series(np.arange(len(train))).groupby(keys).indices.values():
        train[rng.permutation(rows)[: max(2, round(table.share * len(rows)))]] = True
    X = pd.get_dummies(table.X, dtype=float)
    Z = X.fillna(X[train].median()).to_numpy()
    y = table.y if table.kind == "regression" else (table.y == "yes").astype(int)
    rows = Rows(X=Z, y=y, sites=table.sites)
    return rows.take(train), rows.take(~train)


def standardized(train: Rows, new: Rows) -> tuple[Rows, Rows]:
    """Return the same rows with columns standardised by the training rows."""
    mean, spread = train.X.mean(axis=0), train.X.std(axis=0, ddof=1) + 1e-9
    first, second = (replace(rows, X=(rows.X - mean) / spread) for rows in (train, new))
    return first, second


def split(table: ArenaTable, seed: int) -> tuple[Rows, Rows]:
    """Return training and test rows, prepared by the training rows alone."""
    return standardized(*divide(table, seed))


def score(new: Rows, predicted: np.ndarray) -> float:
    """Return R2, or the mean over sites of the area under the ROC curve."""
    if not new.classification:
        return float(r2_score(new.y, predicted))
    sites = [new.sites == site for site in np.unique(new.sites)]
    return float(np.mean([roc_auc_score(new.y[s], predicted[s]) for s in sites if 0 < new.y[s].mean() < 1]))


def described(name: str, seed: int, train: Rows, new: Rows) -> Record:
    """Return what is known of a split beside its scores."""
    sizes = {"training_rows": len(train), "test_rows": len(new), "sites": len(np.unique(train.sites))}
    return {"table": name, "split": seed, **sizes}


def compare(name: str, seed: int) -> Record:
    """Return the figures of all methods on one split of a table."""
    train, new = split(load_arena(name), seed)
    record = {**described(name, seed, train, new), "scores": {}, "seconds": {}}
    predictions = {}

    def keep(method: str, begin: float, predicted: np.ndarray) -> None:
        record["seconds"][method] = time.process_time() - begin
        record["scores"][method], predictions[method] = score(new, predicted), predicted

    begin = time.process_time()
    model = fit_elmesh(train)
    keep(OWN, begin, predict_elmesh(model, new))
    for method, run_rival in RIVALS.items():
        if train.classification and method in REGRESSION_ONLY:
            continue
        begin = time.process_time()
        try:
            keep(method, begin, run_rival(train, new))
        except (ValueError, ArithmeticError, np.linalg.LinAlgError) as error:  # no figure of this method here
            print(f"{name}, split {seed}, {method}: {error}", file=sys.stderr)
    record["bytes"] = int(model.traffic_.groupby("sender")["bytes"].sum().max())
    if train.classification:
        record["log_loss"] = {method: float(log_loss(new.y, p)) for method, p in predictions.items()}
    else:
        record["coverage"] = covered(model, new)
    return record


def records(path: Path, n_splits: int, compare: Callable[[str, int], Record]) -> list[Record]:
    """Return the figures of all tables and splits; those that are done already are read."""
    return logged(path, [(name, seed) for seed in range(FIRST, FIRST + n_splits) for name in ARENA], compare)


def logged(path: Path, cases: Sequence[tuple[str, int]], compare: Callable[[str, int], Record]) -> list[Record]:
    """Return the figures of tables and splits; those that are done already are read from a log."""
    done = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    known = {(record["table"], record["split"]) for record in done}
    for name, seed in cases:
        if (name, seed) in known:
            continue
        record = compare(name, seed)
        done.append(record)
        with path.open("a") as file:
            file.write(json.dumps(record) + "\n")
        print(f"{name} {seed}: {record['scores']}", file=sys.stderr)
    return [record for record in done if (record["table"], record["split"]) in cases]


def splits_asked() -> int:
    """Return the number of splits: ten, unless the environment variable says otherwise."""
    return int(os.environ.get("ELMESH_ARENA_SPLITS", SPLITS))


def standard_error(values: np.ndarray) -> float:
    return float(np.std(values, ddof=1) / np.sqrt(len(values))) if len(values) > 1 else float("nan")


def paired(rows: list[Record], other: str, gain: np.ndarray) -> Record:
    """Return a mean difference, its standard error, corrected for overlapping splits, and its 95 % interval.

    Splits of a table have many of their rows in common, so that the standard error over splits is too small
    (:mod:`elmesh.math.intervals`).
    """
    ratio = rows[0]["test_rows"] / rows[0]["training_rows"]
    mean, error = float(gain.mean()), corrected_standard_error(gain, ratio) if len(gain) > 1 else float("nan")
    half = half_width(error, len(gain))
    return {
        "other": other, "mean": mean, "over_splits": standard_error(gain), "standard_error": error,
        "low": mean - half, "high": mean + half,
    }  # fmt: skip


def verdict(difference: Record) -> str:
    """Return "best" or "below" if the interval of a difference does not contain zero, and "level" if it does."""
    return "best" if difference["low"] > 0 else "below" if difference["high"] < 0 else "level"


def within(tables: dict[str, Record]) -> bool:
    """Return whether no interval of a difference from the best other method reaches further down than the margin."""
    return all(table["best_other"]["low"] >= -MARGIN for table in tables.values())


def summary(rows: list[Record]) -> Record:
    """Return means and standard errors of one table, and the differences from the best other and from alone."""
    methods = [method for method in rows[0]["scores"] if all(method in row["scores"] for row in rows)]
    scores = {method: np.array([row["scores"][method] for row in rows]) for method in methods}
    means = {method: float(values.mean()) for method, values in scores.items()}

    def difference(others: list[str]) -> Record:
        other = max(others, key=lambda method: means[method])
        return paired(rows, other, scores[OWN] - scores[other])

    best = difference([method for method in methods if method != OWN])
    result = {
        **{key: rows[0][key] for key in ("sites", "training_rows", "test_rows")},
        "scores": {m: {"mean": means[m], "standard_error": standard_error(v)} for m, v in scores.items()},
        "best_other": best,
        "verdict": verdict(best),
        "alone": difference([method for method in ALONE if method in methods]),
        "seconds": {m: float(np.mean([row["seconds"][m] for row in rows])) for m in methods},
        "bytes": float(np.mean([row["bytes"] for row in rows])),
    }
    if "log_loss" in rows[0]:
        losses = pd.DataFrame([row["log_loss"] for row in rows])
        more = (losses[OWN] - losses[LOGISTIC]).to_numpy()
        result["log_loss"] = losses.mean().to_dict()
        result["log_loss_above_logistic"] = paired(rows, LOGISTIC, more)
    else:
        result["coverage"] = float(np.mean([row["coverage"] for row in rows]))
    return result


def ratios(tables: dict[str, Record], other: str) -> Record:
    """Return elmesh's time over another's: median over tables, and worst."""
    values = {name: t["seconds"][OWN] / t["seconds"][other] for name, t in tables.items() if other in t["seconds"]}
    worst = max(values, key=lambda name: values[name])
    return {"median": float(np.median(list(values.values()))), "worst": values[worst], "worst_table": worst}


def run(results: Path) -> Record:
    path, n_splits = results / "arena.jsonl", splits_asked()
    with threadpool_limits(1):
        every = records(path, n_splits, compare)
    tables = {name: summary([row for row in every if row["table"] == name]) for name in ARENA}
    path.unlink()
    verdicts = [table["verdict"] for table in tables.values()]
    ahead = sum(table["best_other"]["mean"] > 0 for table in tables.values())
    covered = [table["coverage"] for table in tables.values() if "coverage" in table]
    losses = [table["log_loss_above_logistic"] for table in tables.values() if "log_loss" in table]
    time_ratios = {method: ratios(tables, method) for method in TIMED}
    below = [n for n, t in tables.items() if verdict(t["alone"]) == "below"]
    return {
        "benchmark": "arena",
        "unit": "R2 or mean AUC over sites on rows not trained on; CPU seconds on one thread; bytes sent by one site",
        "splits": n_splits,
        "machine": machine(),
        "tables": short(tables),
        "seconds_ratio": short(time_ratios),
        "goals": {
            "clearly below the best other method on no table": "below" not in verdicts,
            f"at most {MARGIN:g} below the best other method on every table, with 95 % confidence": within(tables),
            "the highest mean on at least eleven tables": ahead >= len(ARENA) - 1,
            "nowhere clearly below alone": not below,
            "90 % intervals contain 87 to 93 % of the targets of every table": all(0.87 <= c <= 0.93 for c in covered),
            "log loss not above that of pooled logistic regression with site intercepts, but for a standard error": all(
                loss["mean"] <= loss["standard_error"] for loss in losses
            ),
            "at most 3 MB sent by one site on any table": all(t["bytes"] <= 3e6 for t in tables.values()),
            "time at most twice that of gradient boosting, as a median": time_ratios[BOOSTING]["median"] <= 2,
            "time at most six times that of gradient boosting on any table": time_ratios[BOOSTING]["worst"] <= 6,
            "time below that of a mixed model with slopes on every table": time_ratios[SLOPES]["worst"] < 1,
            "time below that of a mixed model with intercepts on every table": time_ratios[INTERCEPTS]["worst"] < 1,
        },
    }
