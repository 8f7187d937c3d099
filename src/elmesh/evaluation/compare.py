"""Nested cross-validation of elmesh and other methods on one table.

Rows are divided into folds within each site. Each fold is predicted by methods that were fitted on the others, the
training rows; what a method has to choose, it chooses by cross-validation within these.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from sklearn.metrics import roc_auc_score
from threadpoolctl import threadpool_limits

from elmesh.checks import check_count
from elmesh.errors import ElmeshError
from elmesh.estimators.gains import OF_TARGET, WRONG
from elmesh.evaluation.comparison import Comparison
from elmesh.evaluation.rivals import METHODS, OWN, losses
from elmesh.evaluation.rows import Rows, fold_numbers, read_rows
from elmesh.tables import ProblemKind
from elmesh.text import count
from elmesh.trial_log import Numbers, Trial, TrialLog
from elmesh.typing import FloatArray, StrPath

__all__ = ["compare"]

#: Tables of fewer rows are divided into folds so many times.
SMALL, REPEATS = 2000, 3
_INSTALL = 'pip install "elmesh[compare]"'


def compare(
    X: ArrayLike,
    y: ArrayLike,
    tasks: object = None,
    *,
    task: str | None = None,
    kind: ProblemKind | None = None,
    column_types: Mapping[str, str] | None = None,
    methods: Sequence[str] | None = None,
    folds: int = 5,
    repeats: int | None = None,
    seed: int = 0,
    log: StrPath | None = None,
    callback: Callable[[int, int, str], object] = lambda done, total, text: None,
) -> Comparison:
    """Compare elmesh with each site alone, and with other methods, on rows that nothing was fitted or tuned on.

    Parameters
    ----------
    X : array or frame of shape (n_samples, n_features)
        Inputs.
    y : array-like of shape (n_samples,)
        Numbers or classes to predict.
    tasks : array-like of shape (n_samples,), optional
        The site of each row.
    task : str, optional
        The column of X that has the site of each row.
    kind : str, optional
        "regression" or "classification"; by default as :func:`elmesh.tables.infer_kind` chooses.
    column_types : mapping, optional
        Types of columns that are not to be inferred: "number", "category" or "date".
    methods : sequence of str, optional
        Names of other methods, of :data:`elmesh.evaluation.rivals.METHODS`; by default all of the kind.
    folds : int, default=5
        Outer folds.
    repeats : int, optional
        How often rows are divided into folds; by default 3 times below 2,000 rows, otherwise once.
    seed : int, default=0
        Seed of the folds.
    log : path-like, optional
        A file that keeps what is finished: after an interrupt the same call continues.
    callback : callable, optional
        Called with the number of finished fits, that of all, and a text.

    Returns
    -------
    Comparison
        ``sentence()``, the conclusion; ``table``, a row per method; ``by_site``; ``to_json()``.

    Examples
    --------
    >>> import elmesh
    >>> rng = np.random.default_rng(0)
    >>> X, site = rng.normal(size=(120, 5)), np.repeat(np.arange(12), 10)
    >>> y = X @ np.ones(5) + rng.normal(size=120)
    >>> found = elmesh.compare(X, y, tasks=site, methods=["elmesh-alone", "linear-pooled"], folds=3, repeats=1)
    >>> found.table.index.tolist()
    ['elmesh', 'elmesh-alone', 'linear-pooled']
    >>> bool(found.table.loc["elmesh-alone", "error_difference"] > 0)
    True
    """
    check_count("folds", folds, 2)
    check_count("seed", seed, 0)
    rows = read_rows(X, y, tasks, task, kind, column_types)
    names, notes = _choose_methods(methods, classification=rows.classification)
    used, note = _used(rows, folds)
    repeats = (REPEATS if len(rows) < SMALL else 1) if repeats is None else repeats
    check_count("repeats", repeats)
    tests = []
    for repeat in range(repeats):
        number = np.full(len(rows), -1)
        number[used] = fold_numbers(rows.take(used), folds, (seed, repeat))
        tests += [number == k for k in range(folds)]
    done: dict[Trial, Numbers] | TrialLog = {}
    if log is not None:
        done = TrialLog(Path(log), seed, {"table": rows.digest(), "number of folds": folds})
    found: dict[str, list[FloatArray]] = {name: [] for name in names}
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for k, test in enumerate(tests):
        for i, name in enumerate(names):
            where = f"{METHODS[name].title}, fold {k + 1} of {len(tests)}"
            callback(k * len(names) + i, len(tests) * len(names), where)
            trial = Trial("compare", name, k, seed)
            if name not in found:
                continue
            if trial not in done:
                done[trial] = _measure(name, rows.take(~test), rows.take(test))
            if "failed" in done[trial]:
                notes.append(f"Left out: {where}: {done[trial]['failed']}.")
                del found[name]
                continue
            found[name].append(_predictions(done[trial], rows, test))
            seconds[name].append(float(done[trial]["seconds"]))
    if len(found) < 2:
        raise ElmeshError(f"No method besides elmesh could be fitted. {' '.join(notes)}")
    callback(1, 1, "")
    times = {name: float(np.mean(seconds[name])) for name in found}
    return _conclude(rows, used, tests, found, times, repeats, (*note, *notes))


def _conclude(
    rows: Rows,
    used: NDArray[np.bool_],
    tests: Sequence[NDArray[np.bool_]],
    found: Mapping[str, Sequence[FloatArray]],
    seconds: Mapping[str, float],
    repeats: int,
    notes: tuple[str, ...],
) -> Comparison:
    """Return the comparison of predictions for each fold."""
    scores: dict[str, dict[str, list[float]]] = {}
    by_row = {name: np.zeros(len(rows)) for name in found}
    for name, predictions in found.items():
        for test, predicted in zip(tests, predictions, strict=True):
            own, figures = _score(predicted, rows.y[test], classification=rows.classification)
            by_row[name][test] += own / repeats
            for measure, figure in figures.items():
                scores.setdefault(measure, {}).setdefault(name, []).append(figure)
    return Comparison(
        kind="classification" if rows.classification else "regression",
        unit=WRONG if rows.classification else OF_TARGET,
        scores={measure: pd.DataFrame(figures) for measure, figures in scores.items()},
        losses=pd.DataFrame(by_row)[used].set_index(pd.Index(rows.sites[used], name="site")),
        seconds=seconds,
        folds=len(tests) // repeats,
        repeats=repeats,
        ratio=float(np.mean([test.sum() / (~test).sum() for test in tests])),
        notes=notes,
    )


def _used(rows: Rows, folds: int) -> tuple[NDArray[np.bool_], list[str]]:
    """Return which rows are predicted, and a note on others: the only row of a site is always trained on."""
    names, counts = np.unique(rows.sites, return_counts=True)
    if len(names) < 2:
        raise ElmeshError("All rows are of one site; a comparison needs two sites or more.")
    used = ~np.isin(rows.sites, names[counts < 2])
    if used.sum() < 2 * folds:
        raise ElmeshError(f"There are {used.sum()} rows to predict, too few for {folds} folds; give fewer folds.")
    single = int((counts < 2).sum())
    note = f"{count(single, 'site')} of a single row: trained on, and not predicted."
    return used, [note] if single else []


def _choose_methods(methods: Sequence[str] | None, *, classification: bool) -> tuple[list[str], list[str]]:
    """Return the names of methods, elmesh first, and notes on those that are left out."""
    for name in methods or ():
        if name not in METHODS:
            raise ElmeshError(f"There is no method {name!r}; there are {', '.join(METHODS)}.")
        if classification and METHODS[name].regression_only:
            raise ElmeshError(f"{name} is for numbers, and the target is classes; leave it out.")
        if not METHODS[name].installed:
            raise ElmeshError(f"{name} needs the package {METHODS[name].package}; {_INSTALL}.")
    wanted = methods or [name for name, method in METHODS.items() if not (classification and method.regression_only)]
    missing = [name for name in wanted if not METHODS[name].installed]
    chosen = [name for name in METHODS if name == OWN or (name in wanted and name not in missing)]
    if len(chosen) < 2:
        raise ElmeshError(f"Name a method besides elmesh: {', '.join(name for name in METHODS if name != OWN)}.")
    note = f"Left out: {' and '.join(missing)}. To compare with mixed models: {_INSTALL}."
    return chosen, [note] if missing else []


def _measure(name: str, train: Rows, new: Rows) -> Numbers:
    """Return the predictions of a method for new rows, or why it has none, and its CPU time."""
    begin = time.process_time()
    try:
        with threadpool_limits(1):
            predicted = METHODS[name].predict(train, new.inputs())
        if not np.isfinite(predicted).all():
            raise ArithmeticError("its predictions are not finite")
    except (ValueError, ArithmeticError) as error:
        if name == OWN:
            raise ElmeshError(f"elmesh cannot be fitted without one of the folds: {error}") from error
        return {"failed": " ".join(str(error).rstrip(".").split())[:200]}
    return {"predicted": predicted.tolist(), "seconds": time.process_time() - begin}


def _predictions(result: Numbers, rows: Rows, test: NDArray[np.bool_]) -> FloatArray:
    """Return the predictions in a log, which may come from anywhere."""
    shape = (int(test.sum()), rows.n_classes) if rows.classification else (int(test.sum()),)
    try:
        predicted = np.array(result["predicted"], dtype=np.float64)
        if predicted.shape == shape and np.isfinite([float(result["seconds"]), *predicted.flat]).all():
            return predicted
    except (KeyError, TypeError, ValueError):
        pass
    raise ElmeshError("The log of finished fits is damaged; choose another folder, or use --force to start again.")


def _score(predicted: FloatArray, y: NDArray[Any], *, classification: bool) -> tuple[FloatArray, dict[str, float]]:
    """Return the loss of each row, and the figures of a fold."""
    own = losses(predicted, y)
    if not classification:
        return own, {"error": float(np.sqrt(own.mean()))}
    wrong = (np.argmax(predicted, axis=1) != y).astype(np.float64)
    figures = {"error": float(wrong.mean()), "log_loss": float(own.mean())}
    if predicted.shape[1] == 2:
        figures["auc"] = float(roc_auc_score(y, predicted[:, 1])) if len(np.unique(y)) == 2 else np.nan
    return wrong, figures
