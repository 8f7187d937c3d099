"""Test error against bytes sent: MeshELM with quantised messages and other methods, with parameters chosen equally.

Every method has twelve settings, chosen by five-fold cross-validation on the training rows of the first two draws; test
rows are not used for it. Then the methods are fitted on ten draws, and the models are tested after every round of
messages. The graph is a star, which the subspace pursuits require and which suits the others. The other methods use the
inputs, as in the paper, which also reduces their bytes; MeshELM chooses between the inputs and the hidden layer. The
other methods send doubles, as their authors do; the results also state their bytes in single precision.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from threadpoolctl import threadpool_limits

from benchmarks.data import NAMES, Draw, make
from benchmarks.measure import machine
from elmesh import DGSP, DMTLELM, DNSP, DifAltGDmin, FedRep, LocalELM, MeshELM, Solver
from elmesh.comm.graph import make_topology
from elmesh.run import RunConfig, run_local
from elmesh.solvers.base import Solution

SEEDS, CHOOSE_ON, FOLDS = range(10), 2, 5
MESH, POOLED, LOCAL = "MeshELM", "MeshELM in one place", "Local ELM"
Setting = dict[str, Any]
DEFAULT_RUN = RunConfig()
COLORS = ("#D55E00", "#000000", "#0072B2", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#999999")


def _grid(**values: tuple[Any, ...]) -> list[Setting]:
    grid = [dict(zip(values, point, strict=True)) for point in product(*values.values())]
    assert len(grid) == 12, len(grid)
    return grid


def methods(name: str) -> dict[str, tuple[Callable[[Setting], Solver], list[Setting]]]:
    """Return for each method a function from a setting to a solver, and its twelve settings."""
    school = name == "school"
    mu = (20.0, 40.0, 80.0) if school else (4.0, 8.0, 12.0)
    ridge = (1.0, 3.0, 10.0) if school else (3.0, 10.0, 30.0)
    few = (1, 2, 3, 4) if school else (6, 8, 10, 15)
    ranks = (1, 2) if school else (8, 12)

    def mesh(setting: Setting) -> Solver:
        own = {"graph": "star", "message_bits": "auto", "max_iter": 15, "tol": 0.0, "certify": False}
        return MeshELM(common=False, private=False, rank=setting["rank"], mu1=setting["mu"], mu2=setting["mu"], **own)

    def pooled(setting: Setting) -> Solver:
        return MeshELM(
            common=False,
            private=False,
            rank=setting["rank"],
            mu1=setting["mu"],
            mu2=setting["mu"],
            graph=None,
            certify=False,
        )

    def admm(setting: Setting) -> Solver:
        own = {"graph": "star", "max_iter": 30 if school else 100, "tol": 0.0, "certify": False}
        return DMTLELM(rank=setting["rank"], mu1=setting["mu"], mu2=setting["mu"], **own)

    def plain(kind: type[Solver], **own: Any) -> Callable[[Setting], Solver]:
        return lambda setting: kind(**{k: v for k, v in setting.items() if k != "hidden"}, **own)

    shared = _grid(hidden=(True, False), rank=ranks, mu=mu)
    gradient = _grid(rank=few[1:3], mu=ridge, step_scale=(1.0, 4.0))
    penalties = (0.1, 0.3, 1.0, 2.0, 3.0, 5.0, 10.0, 20.0, 30.0, 60.0, 100.0, 300.0)
    return {
        MESH: (mesh, shared),
        POOLED: (pooled, shared),
        "DMTL-ELM": (admm, shared),
        "DNSP": (plain(DNSP), _grid(rank=few, mu=ridge)),
        "DGSP": (plain(DGSP), _grid(rank=few, mu=ridge)),
        "FedRep": (plain(FedRep, max_iter=100, tol=0.0), gradient),
        "Dif-AltGDmin": (plain(DifAltGDmin, graph="star", max_iter=100, tol=0.0), gradient),
        LOCAL: (plain(LocalELM), _grid(mu=penalties)),
    }


def fit(draw: Draw, solver: Solver, hidden: bool, config: RunConfig = DEFAULT_RUN) -> Solution:
    """Fit the training rows of a draw, with agents on a star."""
    task = draw.task(hidden=hidden)
    topology = make_topology("star", range(len(task.s))) if solver.distributed else None
    return run_local(solver, task, topology, draw.seed, config).solution


def learn(draw: Draw, solver: Solver, hidden: bool) -> list[tuple[int, float]]:
    """Return bytes sent and test error after every round."""
    score = draw.scorer(hidden=hidden)
    points: list[tuple[int, float]] = []
    config = RunConfig(callback=lambda progress: points.append((progress.bytes, score(progress.solution))))
    solution = fit(draw, solver, hidden, config)
    return points or [(0, score(solution))]


def test_error(draw: Draw, solver: Solver, hidden: bool) -> float:
    """Return the test error of the final models of a method."""
    return draw.scorer(hidden=hidden)(fit(draw, solver, hidden))


def on_hidden(method: str, setting: Setting) -> bool:
    return bool(setting.get("hidden", method == LOCAL))


def choose(name: str, method: str) -> Setting:
    """Return the setting with the least error in cross-validation on training rows."""
    build, grid = methods(name)[method]
    folds = [fold for seed in range(CHOOSE_ON) for fold in make(name, seed).folds(FOLDS)]

    def error(setting: Setting) -> float:
        return float(np.mean([test_error(fold, build(setting), on_hidden(method, setting)) for fold in folds]))

    return min(grid, key=error)


def default_against_alone(name: str, alone: Setting) -> dict[str, Any]:
    """Compare MeshELM with default parameters and Local ELM with the chosen penalty."""
    draws = [make(name, seed) for seed in SEEDS]
    together = np.array(
        [test_error(draw, MeshELM(common=False, private=False, graph="star", certify=False), True) for draw in draws]
    )
    apart = np.array([test_error(draw, LocalELM(**alone), True) for draw in draws])
    difference = together - apart
    return {
        "default_error": float(together.mean()),
        "alone_error": float(apart.mean()),
        "difference": float(difference.mean()),
        "standard_error": float(difference.std(ddof=1) / np.sqrt(len(difference))),
    }


def run(results: Path) -> dict[str, Any]:
    figures: dict[str, Any] = {}
    with threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in NAMES:
            rows: dict[str, Any] = {}
            for method, (build, _) in methods(name).items():
                print(f"  {name}: {method}", file=sys.stderr)
                setting = choose(name, method)
                runs = [learn(make(name, seed), build(setting), on_hidden(method, setting)) for seed in SEEDS]
                rows[method] = summarise(setting, runs)
            rows["defaults"] = default_against_alone(name, rows[LOCAL]["setting"])
            figures[name] = rows
    verdicts = {name: judge(rows) for name, rows in figures.items()}
    plot(figures, results / "bytes.png")
    return {
        "benchmark": "bytes",
        "unit": "bytes over all agents; test error in per cent, for School 100 minus the explained variance",
        "machine": machine(),
        "figures": figures,
        "verdicts": verdicts,
        "goals": goals(figures, verdicts),
    }


def goals(figures: dict[str, Any], verdicts: dict[str, Any]) -> dict[str, bool]:
    questions = {
        "the error in one place at fewer bytes than DNSP's best": "fewer_bytes_than_dnsp",
        "no other method's curve below by more than a standard error": "lowest_everywhere",
        "by default not worse than alone by more than a standard error": "not_worse",
    }
    mean = float(np.mean([rows["defaults"]["difference"] for rows in figures.values()]))
    met = {f"{name}: {words}": verdict[key] for words, key in questions.items() for name, verdict in verdicts.items()}
    return {**met, "by default better than alone on the mean": mean < 0}


def summarise(setting: Setting, runs: list[list[tuple[int, float]]]) -> dict[str, Any]:
    """Average runs round by round; a run that ended earlier keeps its last values."""
    longest = max(map(len, runs))
    points = np.array([[run[min(k, len(run) - 1)] for k in range(longest)] for run in runs])
    errors = points[:, :, 1]
    best = int(np.argmin(errors.mean(axis=0)))
    return {
        "setting": setting,
        "bytes": points[:, :, 0].mean(axis=0).round().tolist(),
        "error": errors.mean(axis=0).tolist(),
        "errors": errors.round(3).tolist(),
        "final_error": float(errors[:, -1].mean()),
        "final_standard_error": float(errors[:, -1].std(ddof=1) / np.sqrt(len(runs))),
        "best_error": float(errors[:, best].mean()),
        "bytes_at_best": float(points[:, best, 0].mean()),
    }


def at(row: dict[str, Any], budget: float) -> np.ndarray | None:
    """Return the errors of a method, one per draw, within a budget of bytes; None before its first model."""
    k = int(np.searchsorted(row["bytes"], budget, side="right")) - 1
    return np.array(row["errors"])[:, k] if k >= 0 else None


def ahead(rows: dict[str, Any], method: str, budgets: list[float]) -> list[float]:
    """Return the budgets at which a method beats both MeshELM and Local ELM by more than a standard error."""
    alone, found = np.array(rows[LOCAL]["errors"])[:, -1], []
    for budget in budgets:
        theirs, ours = at(rows[method], budget), at(rows[MESH], budget)
        if theirs is None:
            continue
        # Before anything is sent, every agent has the model that it fitted alone.
        best = alone if ours is None or ours.mean() > alone.mean() else ours
        difference = theirs - best
        if difference.mean() < -difference.std(ddof=1) / np.sqrt(len(difference)):
            found.append(budget)
    return found


def judge(rows: dict[str, Any]) -> dict[str, Any]:
    ours, pooled, dnsp = rows[MESH], rows[POOLED], rows["DNSP"]
    bar = pooled["final_error"] + pooled["final_standard_error"]
    # The first round after which the error stays below the bar: a single dip is chance.
    above = [k for k, error in enumerate(ours["error"]) if error > bar]
    first = above[-1] + 1 if above else 0
    enough = ours["bytes"][first] if first < len(ours["bytes"]) else None
    others = [m for m in rows if m not in (MESH, POOLED, LOCAL, "defaults")]
    budgets = sorted({sent for method in (MESH, *others) for sent in rows[method]["bytes"] if sent > 0})
    lower = {method: found for method in others if (found := ahead(rows, method, budgets))}
    alone = rows["defaults"]
    return {
        "error_to_reach": bar,
        "bytes_to_reach_it": enough,
        "dnsp_bytes_at_its_best": dnsp["bytes_at_best"],
        "dnsp_best_error": dnsp["best_error"],
        "dnsp_bytes_in_single_precision": dnsp["bytes_at_best"] / 2,
        "fewer_bytes_than_dnsp": enough is not None and bool(enough < dnsp["bytes_at_best"]),
        "budgets_at_which_another_is_lower": {m: [min(b), max(b), len(b)] for m, b in lower.items()},
        "budgets": len(budgets),
        "lowest_everywhere": not lower,
        "not_worse": bool(alone["difference"] <= alone["standard_error"]),
    }


def plot(figures: dict[str, Any], path: Path) -> None:
    picture = Figure(figsize=(13, 4.2), layout="constrained")
    FigureCanvasAgg(picture)
    titles = {"usps": "USPS", "mnist": "MNIST", "school": "School"}
    for axes, (name, rows) in zip(picture.subplots(1, 3), figures.items(), strict=True):
        for color, (method, row) in zip(COLORS, ((k, v) for k, v in rows.items() if k != "defaults"), strict=True):
            if method in (POOLED, LOCAL):
                axes.axhline(row["final_error"], color=color, lw=1, ls="--" if method == POOLED else ":", label=method)
            else:
                wide = 2.5 if method == MESH else 1.2
                axes.step(np.array(row["bytes"]) / 1e3, row["error"], where="post", color=color, lw=wide, label=method)
        low = min(row["best_error"] for method, row in rows.items() if method != "defaults")
        high = rows[LOCAL]["final_error"]
        axes.set(xscale="log", title=titles[name], xlabel="kB sent, over all agents",
                 ylim=(low - 0.3 * (high - low), high + 1.5 * (high - low)))  # fmt: skip
    picture.axes[0].set_ylabel("test error, %")
    picture.axes[2].set_ylabel("100 - explained variance, %")
    picture.axes[0].legend(frameon=False, fontsize=8)
    picture.savefig(path, dpi=110)
