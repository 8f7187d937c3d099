"""Looking for a site's rows themselves: how many are found, by the way in which messages were seen."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from benchmarks import attacks
from benchmarks.defended import halved, single
from benchmarks.eavesdrop import VICTIM, Case, Run, admm, digits, gaussian
from benchmarks.scores import Row, known

NEAR = (0.3, 1e-2, 1e-6)
STARTS = 100


def rebuild(
    case: Case, Q: np.ndarray, starts: np.ndarray, columns: int = 0, target: np.ndarray | None = None
) -> tuple[np.ndarray, Row]:
    """Look for the site's rows from so many starts; the mean is guessed and then solved for, if no row is known.

    Returns what the search ended at, and how many rows some end (and some start) is near to, in standard deviations of
    a column, and what share of ends is near to some row. Where fewer directions are left outside the span than a row
    has unknowns, there is nothing to go by.
    """
    X, (L, q) = case.X[VICTIM], Q.shape
    found = starts
    if L - q > X.shape[1] - columns:
        if target is None:
            guess = case.H[0].mean(axis=0)
            tried = attacks.search_rows(case.layer, Q, guess, starts[:30], columns)
            target = attacks.search_mean(case.layer, Q, guess, tried)
        found = attacks.search_rows(case.layer, Q, target, starts, columns).X
    before, after = attacks.apart(X, starts), attacks.apart(X, found)
    return found, {
        "rank": q,
        "near": {f"{within:g}": int((after.min(axis=1) <= within).sum()) for within in NEAR},
        "hits": float(np.mean(after.min(axis=0) <= NEAR[1])),
        "before": int((before.min(axis=1) <= NEAR[0]).sum()),
    }


def own_rows(case: Case) -> np.ndarray:
    """Return where a search begins: at rows of the site's neighbours, moved a little once all have been used."""
    rows = np.vstack([case.X[0], case.X[2]])
    more = np.tile(rows, (-(-STARTS // len(rows)), 1))[:STARTS]
    more[len(rows) :] += 0.3 * np.random.default_rng(0).standard_normal(more[len(rows) :].shape)
    return more


def rows() -> tuple[list[Row], dict[str, np.ndarray]]:
    """Rebuild rows; beside the counts, return pictures of the first few digits and of what was found next to them."""
    table: list[Row] = []
    shown: dict[str, np.ndarray] = {}

    def note(name: str, case: Case, rounds: int | None, Q: np.ndarray, **more: Any) -> np.ndarray:
        target = case.H[VICTIM][0] if "one row known" in more.get("view", "") else None
        starts = more.pop("starts", own_rows(case))
        found, row = rebuild(case, Q, starts, more.get("columns_known", 0), target)
        sizes = {"columns": case.layer.n_inputs, "rows": len(case.X[VICTIM]), "units": len(Q), "rounds": rounds}
        table.append({"data": name, **sizes, **row, **more})
        print(f"  {table[-1]}", file=sys.stderr)
        return found

    def attack(case: Case, rank: int, rounds: int, perturb: Any = None) -> tuple[Run, np.ndarray, float]:
        run = admm(case, rank, rounds, perturb)
        return run, *known(run, run.received_all)

    case = digits(50, 300, 10)
    _, G, noise = attack(case, 12, 300)
    shown["rows of the site"] = case.X[VICTIM]
    for k in (3, 10, 30, 300):
        found = note("digits, ten classes", case, k, attacks.span_of(G[:k], noise))
        if k < 300:
            shown[f"found after {k} rounds"] = nearest(found, case.X[VICTIM])
    # Numbers have 24 or 11 bits then, doubles 53.
    for view, perturb, bits in (("single precision", single, 24), ("half precision", halved, 11)):
        _, G, noise = attack(case, 12, 100, perturb)
        found = note("digits, ten classes", case, 100, attacks.span_of(G, noise * 2.0 ** (53 - bits) / 10), view=view)
        shown[f"100 rounds in {view}"] = nearest(found, case.X[VICTIM])
    few = digits(25, 300, 10)
    run, _, noise = attack(few, 12, 100)
    for view in ("one neighbour", "one neighbour, one row known"):
        note("digits, ten classes", few, 100, attacks.span_of(known(run, run.received_one)[0], noise), view=view)
    for N, L, rounds in ((200, 300, 300), (300, 100, 300)):
        case = digits(N, L, 10)
        _, G, noise = attack(case, 12, rounds)
        note("digits, ten classes", case, rounds, attacks.span_of(G, noise))
    case = digits(50, 300, 2)
    _, G, noise = attack(case, 4, 300)
    for k in (30, 100, 300):
        note("digits, two classes", case, k, attacks.span_of(G[:k], noise))
    for p in (5, 16, 64):
        case = gaussian(p, 40, 300)
        _, G, noise = attack(case, 4, 300)
        Q = attacks.span_of(G, noise)
        note("normal", case, 300, Q)
        if p == 64:
            half = case.X[VICTIM].copy()
            half[:, p // 2 :] = np.random.default_rng(0).standard_normal((len(half), p // 2))
            note("normal", case, 300, Q, starts=half, columns_known=p // 2)
    return table, shown


def nearest(found: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Return for each row what was found next to it."""
    return found[attacks.apart(rows, found).argmin(axis=1)]
