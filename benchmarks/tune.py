"""Settings chosen on rows left out against scikit-learn's grid search over the same settings.

On tables of the arena, with the splits and scores of :mod:`benchmarks.arena`: the score on test rows and the CPU time
of ``MultiTaskELMRegressorCV`` (or the classifier) and of ``GridSearchCV`` with five folds within sites, both with the
final fit and on one thread; and the score with default settings. One case of the paper's problem: penalties and ranks
on USPS. On all tables of the arena: what the choice of settings gains over the default.

After an interrupt the run continues: finished splits are in tune.jsonl until all are done.
"""

from __future__ import annotations

import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn.model_selection import GridSearchCV
from threadpoolctl import threadpool_limits

from benchmarks.arena import FIRST, logged, score, split, standard_error
from benchmarks.data import make
from benchmarks.measure import machine
from benchmarks.rivals import Rows
from benchmarks.scores import short
from elmesh import (
    MeshELM,
    MultiTaskELMClassifier,
    MultiTaskELMClassifierCV,
    MultiTaskELMRegressor,
    MultiTaskELMRegressorCV,
)
from elmesh.arena import ARENA, load_arena
from elmesh.data.tasks import group_rows
from elmesh.estimators.penalty_scores import fold_numbers

# Tables that are searched by both; on the others only tuned and default settings are compared.
SEARCHED = ("nlschools", "cigar", "crime", "diamonds", "males", "baseball", "verbagg", "hedonic")
SPLITS, SEARCHES, FOLDS = 3, 3, 5
GRID = {"n_hidden": [200, 400], "weight_scale": [(1.0, 4.0), 0.3, (0.3, 1.0, 3.0)]}
PAPER, DRAWS = "usps, paper's problem", range(6000, 6003)
RANKS, PENALTIES = (3, 6, 12), (100.0, 30.0, 10.0, 3.0, 1.0, 0.3)
Record = dict[str, Any]


def timed(model: Any, X: Any, y: np.ndarray) -> tuple[Any, float]:
    """Fit a model, and return it with the CPU time."""
    begin = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(X, y)
    return model, time.process_time() - begin


def folds(sites: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return folds with equal shares of every site; sites may have fewer rows than there are folds."""
    groups = group_rows(sites, len(sites))
    found = fold_numbers(groups, {site: np.zeros((len(rows), 1)) for site, rows in groups.items()}, FOLDS, seed=0)
    return [(np.flatnonzero(found != k), np.flatnonzero(found == k)) for k in range(FOLDS)]


def compare_table(name: str, seed: int) -> Record:
    """Return scores and times of all methods on one split of a table."""
    train, new = split(load_arena(name), seed)

    def frame(rows: Rows) -> pd.DataFrame:
        return pd.DataFrame(rows.X).add_prefix("x").assign(site=rows.sites)

    def scored(model: Any) -> float:
        return score(new, model.predict_proba(frame(new))[:, 1] if train.classification else model.predict(frame(new)))

    plain, tuned, scoring = MultiTaskELMRegressor, MultiTaskELMRegressorCV, "neg_mean_squared_error"
    if train.classification:
        plain, tuned, scoring = MultiTaskELMClassifier, MultiTaskELMClassifierCV, "neg_log_loss"
    base = plain(task="site", random_state=0)
    default, _ = timed(base, frame(train), train.y)
    chosen, seconds = timed(tuned(task="site", random_state=0), frame(train), train.y)
    record: Record = {
        "table": name, "split": seed, "scores": {"default": scored(default), "tuned": scored(chosen)},
        "seconds": {"tuned": seconds}, "setting": str(chosen.best_params_), "kept": chosen.best_index_ == 0,
    }  # fmt: skip
    if name in SEARCHED and seed < FIRST + SEARCHES:
        search = GridSearchCV(plain(task="site", random_state=0), GRID, cv=folds(train.sites), scoring=scoring)
        search, record["seconds"]["grid search"] = timed(search, frame(train), train.y)
        record["scores"]["grid search"] = scored(search)
    return record


def compare_paper(name: str, seed: int) -> Record:
    """Return the same for penalties and ranks of the paper's problem."""
    draw = make("usps", seed)
    train, new = (pd.DataFrame(X).add_prefix("x").assign(site=t) for X, t in
                  ((draw.X, draw.tasks), (draw.X_test, draw.tasks_test)))  # fmt: skip

    def solver(**settings: Any) -> MeshELM:
        return MeshELM(common=False, private=False, graph=None, **settings)

    common = {"task": "site", "random_state": seed}
    default, _ = timed(MultiTaskELMClassifier(solver=solver(), **common), train, draw.y)
    chosen, seconds = timed(
        MultiTaskELMClassifierCV(solver=solver(), rank=list(RANKS), mu=list(PENALTIES), **common), train, draw.y
    )
    grid = {"solver": [solver(rank=rank, mu1=mu, mu2=mu) for rank in RANKS for mu in PENALTIES]}
    keys = np.char.add(draw.tasks.astype(str), np.char.add("/", draw.y.astype(str)))
    # By accuracy: temperatures do not know that U was fitted to the same rows, so that small penalties have large log
    # losses whatever they predict.
    search = GridSearchCV(MultiTaskELMClassifier(**common), grid, cv=folds(keys), scoring="accuracy")
    search, slow = timed(search, train, draw.y)
    return {
        "table": name, "split": seed, "setting": str(chosen.best_params_), "kept": False,
        "scores": {"default": default.score(new, draw.y_test), "tuned": chosen.score(new, draw.y_test),
                   "grid search": search.score(new, draw.y_test)},
        "seconds": {"tuned": seconds, "grid search": slow},
    }  # fmt: skip


def compare(name: str, seed: int) -> Record:
    """Return the figures of one case and split."""
    return compare_paper(name, seed) if name == PAPER else compare_table(name, seed)


def figure(values: list[float]) -> Record:
    return {"mean": float(np.mean(values)), "standard_error": standard_error(np.array(values))}


def summary(rows: list[Record]) -> Record:
    """Return the figures of one case."""
    both = [row for row in rows if "grid search" in row["scores"]]
    result: Record = {
        "over_default": figure([row["scores"]["tuned"] - row["scores"]["default"] for row in rows]),
        "default": figure([row["scores"]["default"] for row in rows]),
        "other_setting": sum(not row["kept"] for row in rows),
        "splits": len(rows),
    }
    if both:
        totals = {name: sum(row["seconds"][name] for row in both) for name in ("tuned", "grid search")}
        result |= {
            "scores": {name: figure([row["scores"][name] for row in both]) for name in both[0]["scores"]},
            "over_grid_search": figure([row["scores"]["tuned"] - row["scores"]["grid search"] for row in both]),
            "grid_search_over_default": figure(
                [row["scores"]["grid search"] - row["scores"]["default"] for row in both]
            ),
            "seconds_ratio": totals["tuned"] / totals["grid search"],
            "searches": len(both),
        }
    return result


def run(results: Path) -> Record:
    path = results / "tune.jsonl"
    with threadpool_limits(1):
        splits = range(FIRST, FIRST + SPLITS)
        every = logged(path, [*((PAPER, k) for k in DRAWS), *((t, k) for k in splits for t in ARENA)], compare)
    cases = {name: summary([row for row in every if row["table"] == name]) for name in (*ARENA, PAPER)}
    path.unlink()
    searched = {name: case for name, case in cases.items() if "seconds_ratio" in case}
    tables = [cases[name]["over_default"] for name in ARENA]
    ratios = [case["seconds_ratio"] for case in searched.values()]
    behind = [case["over_grid_search"] for case in searched.values()]
    return {
        "benchmark": "tune",
        "unit": "R2, mean AUC over sites (verbagg) or accuracy (usps) on new rows; CPU seconds on one thread",
        "machine": machine(),
        "grid": {name: [str(value) for value in values] for name, values in GRID.items()},
        "paper_grid": {"rank": list(RANKS), "mu": list(PENALTIES)},
        "folds": FOLDS,
        "cases": short(cases),
        "median_seconds_ratio": float(np.median(ratios)),
        "goals": {
            "score of grid search reached on every case, within a standard error": all(
                one["mean"] >= -one["standard_error"] for one in behind
            ),
            "time at most a tenth of grid search's on every case": max(ratios) <= 0.1,
            "time at most a tenth of grid search's, as a median": float(np.median(ratios)) <= 0.1,
            "on no table below the default by more than a standard error": all(
                one["mean"] >= -one["standard_error"] for one in tables
            ),
        },
    }
