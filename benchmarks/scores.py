"""How well an attack did: what the benchmarks of privacy have in common.

Whatever has a choice in it that an attacker would have to make (how many directions to believe in, which singular
values to leave out) is tried in a few ways, and the best is taken in hindsight, after the mean over draws. So the
figures are what a lucky attacker gets.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from benchmarks import attacks
from benchmarks.eavesdrop import VICTIM, Case, Run

CUTS = (1e-12, 1e-3, 1e-2, 3e-2, 1e-1)
SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
Row = dict[str, Any]


def mean(rows: Iterable[Row]) -> Row:
    """Average the numbers of several draws, lists and dicts of them element by element."""
    rows = list(rows)

    def one(values: list[Any]) -> Any:
        if isinstance(values[0], dict):
            return {key: one([value[key] for value in values]) for key in values[0]}
        if isinstance(values[0], (list, tuple, np.ndarray)):
            return [one(list(items)) for items in zip(*values, strict=True)]
        return values[0] if isinstance(values[0], str) else float(np.mean(values))

    return {key: one([row[key] for row in rows]) for key in rows[0]}


def short(value: Any) -> Any:
    """Cut numbers to four digits; what there is none of is None."""
    if isinstance(value, dict):
        return {key: short(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [short(item) for item in value]
    if isinstance(value, (float, np.floating)):
        return float(f"{value:.4g}") if np.isfinite(value) else None
    return value


def known(run: Run, received: np.ndarray) -> tuple[np.ndarray, float]:
    """Return the gradients that somebody works out, and how exactly their numbers are known."""
    U, rho = run.sent[:, VICTIM], float(run.solver.rho)
    return (
        attacks.gradients(U, received, rho, run.degree, run.share),
        attacks.rounding(U, rho, run.degree, run.share),
    )


def membership(case: Case, Q: np.ndarray) -> float:
    """Return the AUC for one candidate at a time; the attacker takes its own rows' mean for the site's."""
    guess = case.H[0].mean(axis=0)
    return attacks.auc(*(attacks.alone_scores(Q, H, guess) for H in (case.H[VICTIM], case.H_fresh)))


def by_size(case: Case, columns: np.ndarray, *spans: np.ndarray) -> list[float]:
    """Return the AUC with the strongest 1, 2, 3, 4, 6, 8, 12 ... directions of what was seen, and with other spans."""
    Q, _ = attacks.directions(columns)
    return [membership(case, span) for span in (*(Q[:, :size] for size in SIZES), *spans)]


def luck(case: Case) -> list[float]:
    """Return the same for random directions, which tell nothing."""
    return by_size(case, np.random.default_rng(0).standard_normal((len(case.H[0][0]), 400)))


def leverage(case: Case) -> float:
    """Return the AUC by leverage, for an attacker who has all of H'H and the mean; with few rows there is none."""
    H = case.centred
    if len(H) <= 2 * H.shape[1]:
        return float("nan")
    near = np.linalg.inv(H.T @ H)
    both = (np.einsum("ij,jk,ik->i", X, near, X) for X in (H, case.H_fresh - case.H[VICTIM].mean(axis=0)))
    return attacks.auc(*both)


def side_by_side(G: np.ndarray) -> np.ndarray:
    """Return the columns of gradients (K, L, r), of shape (L, K r)."""
    return G.transpose(1, 0, 2).reshape(G.shape[1], -1)


def read(case: Case, HTM: np.ndarray) -> dict[str, list[float]]:
    """Return, for each cut-off, what share of labels is read right, and of the wrong ones among them."""
    y, wrong = case.y[VICTIM], case.wrong[VICTIM]
    right = [attacks.read_labels(attacks.spread_targets(case.centred, HTM, cut), y) == y for cut in CUTS]
    return {"all": [float(r.mean()) for r in right], "wrong": [float(r[wrong].mean()) for r in right]}


def best_read(row: Row) -> dict[str, float]:
    """Return what the best cut-off reads."""
    k = int(np.argmax(row["all"]))
    return {name: values[k] for name, values in row.items()}
