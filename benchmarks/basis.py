"""What neighbours can infer about a site from the U that they receive: membership, labels, rows; and defences.

The attacks are in :mod:`benchmarks.attacks`, the sites in :mod:`benchmarks.eavesdrop`, how well an attack did in
:mod:`benchmarks.scores`. Only digits that come with scikit-learn and random numbers are used.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from threadpoolctl import threadpool_limits

from benchmarks import attacks
from benchmarks.defended import alone, defences
from benchmarks.eavesdrop import RANKS, SITES, VICTIM, WRONG, Run, admm, digits
from benchmarks.measure import machine
from benchmarks.rebuilt import STARTS, rows
from benchmarks.scores import (
    Row,
    best_read,
    by_size,
    known,
    leverage,
    luck,
    mean,
    membership,
    read,
    short,
    side_by_side,
)

SEEDS = range(5)
ROUNDS = (1, 3, 10, 30, 100, 300)
# Rows a site and hidden units, from few rows to many.
FEW_TO_MANY = ((50, 300), (25, 100), (50, 100), (90, 100), (150, 100), (300, 100), (300, 30))


def exactness(run: Run, G: np.ndarray) -> np.ndarray:
    """Return the relative error of every round's gradient."""
    H, T = run.case.centred, run.case.T[VICTIM] - run.case.T[VICTIM].mean(axis=0)
    errors = []
    for k, seen in enumerate(G):
        U, A = run.sent[k + 1, VICTIM], run.solutions[k].A[VICTIM]
        true = H.T @ (H @ (U @ A) - T) @ A.T
        errors.append(np.linalg.norm(seen - true) / np.linalg.norm(true))
    return np.array(errors)


def copied_model(run: Run, G: np.ndarray, k: int) -> float:
    """Return how well the site's outputs on fresh rows are known after round k, as a correlation, but for the sign."""
    case, U, A = run.case, run.sent[k, VICTIM], run.solutions[k].A[VICTIM]
    weights = np.linalg.svd(G[k - 1])[2][0]
    theirs, ours = (case.H_fresh @ (U @ W) for W in (A[:, 0] - A[:, -1], weights))
    return abs(float(np.corrcoef(theirs, ours)[0, 1]))


def attacked(N: int, L: int, classes: int, seed: int, rounds: tuple[int, ...] = ROUNDS) -> Row:
    """Attack one draw of the digits in every way there is, on a ring."""
    case = digits(N, L, classes, seed)
    run = admm(case, RANKS[classes], rounds[-1])
    U, mu2 = run.sent[:, VICTIM], float(run.solver.mu2)
    (G, noise), (G_one, _) = known(run, run.received_all), known(run, run.received_one)
    V = attacks.directions(case.centred.T)[0][:, : min(N - 1, L)]
    spans = [attacks.span_of(G[:k], noise) for k in rounds]
    errors, errors_one = exactness(run, G), exactness(run, G_one)
    solution, y = run.solutions[-1], case.y[VICTIM]
    first = attacks.first_targets(case.centred, U[0], U[1], G_one[0], mu2, noise, classes - 1)
    late = attacks.late_targets(case.centred, U[-1], G[-1], mu2)
    AA, A = attacks.weights_square(U[-1], G[-1], mu2), run.solutions[-2].A[VICTIM]
    guessed = {
        name: case.outputs(site, solution.U[site] @ solution.A[site], case.H[VICTIM]).argmax(axis=1) == y
        for name, site in (("neighbour's model", 0), ("site's own model", VICTIM))
    }
    return {
        "gradient_error": {"all": errors.max(), "one, first": errors_one[0], "one, later": np.median(errors_one[1:])},
        "rank": [Q.shape[1] for Q in spans],
        "rank_there_is": V.shape[1],
        "outside": [float(np.linalg.norm(Q - V @ (V.T @ Q), 2)) for Q in spans],
        "auc": [by_size(case, side_by_side(G[:k]), Q) for k, Q in zip(rounds, spans, strict=True)],
        "auc_one": [by_size(case, side_by_side(G_one[:k])) for k in rounds],
        "auc_last": membership(case, attacks.directions(U[-1])[0]),
        "auc_leverage": leverage(case),
        "auc_luck": luck(case),
        "labels_first": read(case, first),
        "labels_late": read(case, late),
        "labels_by": {name: {"all": r.mean(), "wrong": r[case.wrong[VICTIM]].mean()} for name, r in guessed.items()},
        "majority": float(np.bincount(y).max() / len(y)),
        "AA_error": float(np.linalg.norm(AA - A @ A.T) / np.linalg.norm(A @ A.T)),
        "model": [copied_model(run, G, k) for k in rounds] if classes == 2 else [],
        "test_error": [case.error(run.solutions[k]) for k in rounds],
    }  # fmt: skip


def hindsight(row: Row) -> Row:
    """Choose what is left to choose, on the mean over draws."""
    best = {name: best_read(row[name]) for name in ("labels_first", "labels_late")}
    lucky = {name: [max(values) for values in row[name]] for name in ("auc", "auc_one")}
    return {**row, **best, **lucky, "auc_luck": max(row["auc_luck"])}


def views(classes: int, sizes: Iterable[tuple[int, int]]) -> list[Row]:
    rows = []
    for N, L in sizes:
        print(f"  {classes} classes, {N} rows, {L} units", file=sys.stderr)
        rows.append({"rows": N, "units": L, **hindsight(mean(attacked(N, L, classes, seed) for seed in SEEDS))})
    return rows


def by_rank() -> list[Row]:
    """See what the rank changes, for ten classes and for two."""
    rows, rounds, (N, L) = [], (1, 3, 10, 30, 100), (90, 100)
    for classes, rank in ((2, 1), (2, 2), (2, 4), (10, 2), (10, 6), (10, 12)):
        draws = []
        for seed in SEEDS:
            case = digits(N, L, classes, seed)
            run = admm(case, rank, rounds[-1])
            G, noise = known(run, run.received_all)
            spans = [attacks.span_of(G[:k], noise) for k in rounds]
            draws.append(
                {
                    "rank": [Q.shape[1] for Q in spans],
                    "auc": [by_size(case, side_by_side(G[:k]), Q) for k, Q in zip(rounds, spans, strict=True)],
                    "error": case.error(run.solutions[-1]),
                }
            )
        row = mean(draws)
        row["auc"] = [max(values) for values in row["auc"]]
        rows.append({"rows": N, "units": L, "classes": classes, "columns": rank, "rounds": list(rounds), **row})
    return rows


def plot(found: list[Row], shown: dict[str, np.ndarray], path: Path) -> None:
    picture = Figure(figsize=(12, 4.2), layout="constrained")
    FigureCanvasAgg(picture)
    left, right = picture.subfigures(1, 2, width_ratios=(1, 1.2))
    axes = left.subplots()
    colours = ("#000000", "#D55E00", "#E69F00", "#009E73", "#0072B2", "#56B4E9", "#CC79A7")
    for colour, row in zip(colours, found, strict=True):
        label = f"{row['rows']} rows, {row['units']} units"
        axes.semilogx(ROUNDS, row["auc"], "o-", color=colour, label=label, lw=1, ms=3)
    axes.axhline(0.5, color="black", lw=0.8, ls=":")
    axes.set(xlabel="rounds seen", ylabel="AUC", ylim=(0.45, 1.02), title="Is this row one of the site's?")
    axes.legend(frameon=False, fontsize=8)
    count = 9
    grid = right.subplots(len(shown), count)
    for line, (name, images) in zip(grid, shown.items(), strict=True):
        for cell, image in zip(line, images[:count], strict=True):
            cell.imshow(image.reshape(8, 8), cmap="gray_r", vmin=-8 / (16 / np.sqrt(12)), vmax=8 / (16 / np.sqrt(12)))
            cell.set(xticks=[], yticks=[])
        line[0].set_ylabel(name.replace(" after", "\nafter").replace(" in", "\nin").replace(" of", "\nof"),
                           rotation=0, ha="right", va="center", fontsize=8)  # fmt: skip
    right.suptitle("What are the site's rows?")
    picture.savefig(path, dpi=110)


def run(results: Path) -> dict[str, Any]:
    with threadpool_limits(1, user_api="blas"):
        two = views(2, FEW_TO_MANY)
        ten = views(10, ((50, 300), (90, 100), (300, 100), (300, 30)))
        rebuilt, shown = rows()
        figures = {
            "two classes": two,
            "ten classes": ten,
            "by rank": by_rank(),
            "rows": rebuilt,
            "defences": defences(SEEDS),
            "alone": [{"rows": N, "units": L, "error": alone(N, L, SEEDS)} for N, L in ((50, 100), (300, 100))],
        }
    plot(two, shown, results / "basis.png")
    return {
        "benchmark": "basis",
        "unit": "AUC of telling rows of a site from fresh ones; shares of labels; counts of rows; test error in %",
        "machine": machine(),
        "settings": {
            "rounds": list(ROUNDS),
            "draws": len(SEEDS),
            "sites": SITES,
            "wrong": WRONG,
            "starts": STARTS,
            "columns": {str(classes): rank for classes, rank in RANKS.items()},
        },
        "figures": short(figures),
        "goals": {},
    }  # fmt: skip
