"""Test error against bytes sent: every method with the same codec, at its best bits, with parameters chosen equally.

The setting of MeshELM, DNSP, DGSP and MTL-ELM in one place (of twelve), the bits per number of every method (4 or 8)
and the round after which it stops are chosen on other draws than those on which methods are compared: those with the
fewest bytes whose mean test error is within half a standard error of that of MTL-ELM in one place, or else with the
least error. Where they are compared, they reach it within one standard error. Local ELM and the methods that take many
rounds (DMTL-ELM, FedRep and Dif-AltGDmin) keep the settings, of twelve each, that cross-validation on training rows of
two further draws chose; the latter may have two bits as well, chosen on a quarter of the draws. Draws are of the same
data sets, so that rows of some occur in others. The graph is a star, which the subspace pursuits require and which
suits the others. All methods but Local ELM, which sends nothing, use the inputs: a hidden layer takes several times the
bytes.

Exchanges of weights (``elmesh.solvers.hub_weights``) were developed on draws 300 to 329, and the way of choosing had
been revised several times with results on draws below 540 in view. Both were fixed before anything was computed on the
draws of the comparison.

Bytes are all that is sent. The numbers by which a run is followed are part of it, and are also stated: MeshELM has them
from its sums, except where weights are exchanged. After an interrupt the run continues: finished methods are in
bytes.jsonl until all are done.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable
from functools import cache
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
from elmesh.run.result import Progress
from elmesh.solvers.base import Solution
from elmesh.solvers.hub_weights import WEIGHT_ROUNDS

# Draws of the comparison and of the choice; School has 139 tasks, and differs less between draws.
DRAWS = {"usps": 40, "mnist": 40, "school": 20}
CHOICE_DRAWS = {"usps": 40, "mnist": 40, "school": 10}
FIRST_DRAW, FIRST_CHOICE_DRAW, BITS = 600, 100, (4, 8)
# Standard errors within which methods must come of MTL-ELM in one place: where they are chosen, and where compared.
CHOICE_MARGIN, MARGIN = 0.5, 1.0
MESH, SUMS, POOLED, LOCAL = "MeshELM", "MeshELM, start by sums", "MTL-ELM in one place", "Local ELM"
Setting = dict[str, Any]
DEFAULT_RUN = RunConfig()
COLORS = ("#D55E00", "#E69F00", "#000000", "#0072B2", "#009E73", "#CC79A7", "#8C6D31", "#56B4E9", "#999999")
#: Test error by bytes: one row per round of all bytes, those by which the run is followed, and the error.
Curve = list[tuple[int, int, float]]


def _grid(**values: tuple[Any, ...]) -> list[Setting]:
    return [dict(zip(values, point, strict=True)) for point in product(*values.values())]


def methods(name: str) -> dict[str, tuple[Callable[[Setting], Solver], list[Setting]]]:
    """Return for each method a function from a setting to a solver, and its twelve settings."""
    school = name == "school"
    mu = (20.0, 40.0, 80.0) if school else (4.0, 8.0, 12.0)
    ridge = (1.0, 3.0, 10.0) if school else (3.0, 10.0, 30.0)
    few = (1, 2, 3, 4) if school else (6, 8, 10, 15)
    rounds = 20 if school else 40

    def mesh(start: str) -> Callable[[Setting], Solver]:
        own = {"graph": "star", "max_iter": 4, "tol": 0.0, "certify": False, "start": start}
        return lambda setting: MeshELM(
            common=False, private=False, rank=setting["rank"], mu1=setting["mu"], mu2=setting["mu"], **own
        )

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
        own = {"graph": "star", "max_iter": rounds, "tol": 0.0, "certify": False}
        return DMTLELM(rank=setting["rank"], mu1=setting["mu"], mu2=setting["mu"], **own)

    def plain(kind: type[Solver], **own: Any) -> Callable[[Setting], Solver]:
        return lambda setting: kind(**setting, **own)

    inputs = _grid(rank=few, mu=mu)
    kept: dict[str, list[Setting]] = {
        method: [dict(zip(("rank", "mu", "step_scale"), values, strict=False))]
        for method, values in {
            "usps": {"admm": (8, 8.0), "fedrep": (10, 10.0, 1.0), "dif": (8, 10.0, 4.0)},
            "mnist": {"admm": (8, 12.0), "fedrep": (8, 30.0, 4.0), "dif": (8, 10.0, 1.0)},
            "school": {"admm": (1, 40.0), "fedrep": (2, 10.0, 1.0), "dif": (2, 10.0, 1.0)},
        }[name].items()
    }
    alone = [{"mu": {"usps": 3.0, "mnist": 60.0, "school": 10.0}[name]}]
    return {
        MESH: (mesh("weights"), inputs),
        SUMS: (mesh("sums"), inputs),
        POOLED: (pooled, inputs),
        "DMTL-ELM": (admm, kept["admm"]),
        "DNSP": (plain(DNSP), _grid(rank=few, mu=ridge)),
        "DGSP": (plain(DGSP), _grid(rank=few, mu=ridge)),
        "FedRep": (plain(FedRep, max_iter=rounds, tol=0.0), kept["fedrep"]),
        "Dif-AltGDmin": (plain(DifAltGDmin, graph="star", max_iter=rounds, tol=0.0), kept["dif"]),
        LOCAL: (plain(LocalELM), alone),
    }


def fit(draw: Draw, solver: Solver, hidden: bool, config: RunConfig = DEFAULT_RUN) -> Solution:
    """Fit the training rows of a draw, with agents on a star."""
    task = draw.task(hidden=hidden)
    topology = make_topology("star", range(len(task.s))) if solver.distributed else None
    return run_local(solver, task, topology, draw.seed, config).solution


def learn(draw: Draw, solver: Solver, hidden: bool) -> Curve:
    """Return bytes sent, those of them by which the run is followed, and test error after every round."""
    score, task = draw.scorer(hidden=hidden), draw.task(hidden=hidden)
    points: Curve = []

    def note(progress: Progress) -> None:
        U = progress.solution.U if progress.solution is not None else None
        numbers, reports = 5 if isinstance(solver, DMTLELM) else 3, progress.round + 1
        if isinstance(solver, MeshELM):
            numbers, reports = 1, min(reports, 1 + WEIGHT_ROUNDS) if solver.start == "weights" else 0
        per_report = numbers + (U[0].size + 1 if U is not None and U.ndim == 3 else 0)
        points.append((progress.bytes, 16 * (len(task.s) - 1) * per_report * reports, score(progress.solution)))

    solution = fit(draw, solver, hidden, RunConfig(callback=note))
    return points or [(0, 0, score(solution))]


def test_error(draw: Draw, solver: Solver, hidden: bool) -> float:
    """Return the test error of the final models of a method."""
    return draw.scorer(hidden=hidden)(fit(draw, solver, hidden))


@cache
def tuning_draws(name: str) -> list[Draw]:
    return [make(name, FIRST_CHOICE_DRAW + k) for k in range(CHOICE_DRAWS[name])]


@cache
def comparison_draws(name: str) -> list[Draw]:
    return [make(name, FIRST_DRAW + k) for k in range(DRAWS[name])]


@cache
def best_setting(name: str, method: str) -> tuple[np.ndarray, Setting]:
    """Return the setting with the least error on other draws, with 64 bits, and its errors there."""
    build, grid = methods(name)[method]

    def errors(setting: Setting) -> np.ndarray:
        return np.array([test_error(draw, build(setting), method == LOCAL) for draw in tuning_draws(name)])

    return min(((errors(setting), setting) for setting in grid), key=lambda pair: float(pair[0].mean()))


def choose(name: str, method: str) -> tuple[Setting, int, int]:
    """Return setting, bits and round with the fewest bytes to the error in one place on other draws, or the best."""
    build, grid = methods(name)[method]
    # A single setting is that of an earlier table.
    few = len(grid) == 1
    pooled, _ = best_setting(name, POOLED)
    bar = pooled.mean() + CHOICE_MARGIN * pooled.std(ddof=1) / np.sqrt(len(pooled))
    draws = tuning_draws(name)[: CHOICE_DRAWS[name] // 4 if few else None]
    found: list[tuple[float, float, Setting, int, int]] = []
    for setting, bits in product(grid, (2, *BITS) if few else BITS):
        solver = build(setting).set_params(message_bits=bits)
        row = summarise(setting, [learn(draw, solver, method == LOCAL) for draw in draws])
        for k, (sent, error) in enumerate(zip(row["bytes"], row["error"], strict=True)):
            # At the bar the fewest bytes count; above it the error.
            found.append((max(error, bar), sent, setting, bits, k))
    *_, setting, bits, k = min(found, key=lambda one: one[:2])
    return setting, bits, k


def default_against_alone(name: str, alone: Setting) -> dict[str, Any]:
    """Compare MeshELM with default parameters and Local ELM with the chosen penalty."""
    draws = comparison_draws(name)
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


def measure(name: str, method: str) -> dict[str, Any]:
    """Return the figures of one method, or of MeshELM with default parameters, on one data set."""
    if method == "defaults":
        return default_against_alone(name, best_setting(name, LOCAL)[1])
    if method in (POOLED, LOCAL):
        setting, bits, k = best_setting(name, method)[1], 64, -1
        solver = methods(name)[method][0](setting)
    else:
        setting, bits, k = choose(name, method)
        solver = methods(name)[method][0](setting).set_params(message_bits=bits)
    curves = [learn(draw, solver, method == LOCAL) for draw in comparison_draws(name)]
    return {"bits": bits, "round": k, **summarise(setting, curves)}


def run(results: Path) -> dict[str, Any]:
    path = results / "bytes.jsonl"
    done = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    figures: dict[str, Any] = {name: {} for name in NAMES}
    for record in done:
        figures[record["data"]][record["method"]] = record["figures"]
    with threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in NAMES:
            for method in (*methods(name), "defaults"):
                if method in figures[name]:
                    continue
                figures[name][method] = measure(name, method)
                with path.open("a") as file:
                    file.write(json.dumps({"data": name, "method": method, "figures": figures[name][method]}) + "\n")
                print(f"  {name}: {method}", file=sys.stderr, flush=True)
    path.unlink()
    verdicts = {name: judge(rows) for name, rows in figures.items()}
    plot(figures, results / "bytes.png")
    return {
        "benchmark": "bytes",
        "unit": "bytes over all agents; test error in per cent, for School 100 minus the explained variance",
        "machine": machine(),
        "draws": {name: {"compared": DRAWS[name], "choice": CHOICE_DRAWS[name]} for name in NAMES},
        "figures": figures,
        "verdicts": verdicts,
        "goals": goals(figures, verdicts),
    }


def goals(figures: dict[str, Any], verdicts: dict[str, Any]) -> dict[str, bool]:
    questions = {
        "the error in one place for the fewest bytes of all methods": "fewest_bytes",
        "no other method's curve below by more than a standard error": "lowest_everywhere",
        "by default not worse than alone by more than a standard error": "not_worse",
    }
    mean = float(np.mean([rows["defaults"]["difference"] for rows in figures.values()]))
    met = {f"{name}: {words}": verdict[key] for words, key in questions.items() for name, verdict in verdicts.items()}
    return {**met, "by default better than alone on the mean": mean < 0}


def summarise(setting: Setting, runs: list[Curve]) -> dict[str, Any]:
    """Average runs round by round; a run that ended earlier keeps its last values."""
    longest = max(map(len, runs))
    points = np.array([[run[min(k, len(run) - 1)] for k in range(longest)] for run in runs])
    errors = points[:, :, 2]
    best = int(np.argmin(errors.mean(axis=0)))
    return {
        "setting": setting,
        "bytes": points[:, :, 0].mean(axis=0).round().tolist(),
        "followed": points[:, :, 1].mean(axis=0).round().tolist(),
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


def stopped(row: dict[str, Any]) -> dict[str, float]:
    """Return error and bytes at the round that was chosen."""
    k = min(row["round"], len(row["bytes"]) - 1)
    errors = np.array(row["errors"])[:, k]
    return {
        "error": float(errors.mean()),
        "standard_error": float(errors.std(ddof=1) / np.sqrt(len(errors))),
        "bytes": row["bytes"][k],
        "without_figures": row["bytes"][k] - row["followed"][k],
    }


def judge(rows: dict[str, Any]) -> dict[str, Any]:
    bar = rows[POOLED]["final_error"] + MARGIN * rows[POOLED]["final_standard_error"]
    senders = [m for m in rows if m not in (POOLED, LOCAL, "defaults")]
    others = [m for m in senders if m not in (MESH, SUMS)]
    ends = {method: stopped(rows[method]) for method in senders}
    reached = [method for method in senders if ends[method]["error"] <= bar]
    rivals = [ends[method] for method in reached if method in others]
    fewest = all(ends[MESH][key] < rival[key] for rival in rivals for key in ("bytes", "without_figures"))
    budgets = sorted({sent for method in senders for sent in rows[method]["bytes"] if sent > 0})
    lower = {method: found for method in others if (found := ahead(rows, method, budgets))}
    alone = rows["defaults"]
    return {
        "error_to_reach": bar,
        "stopped": ends,
        "reached": reached,
        "fewest_bytes": MESH in reached and fewest,
        "budgets_at_which_another_is_lower": {m: [min(b), max(b), len(b)] for m, b in lower.items()},
        "budgets": len(budgets),
        "lowest_everywhere": not lower,
        "not_worse": bool(alone["difference"] <= alone["standard_error"]),
    }


def plot(figures: dict[str, Any], path: Path) -> None:
    picture = Figure(figsize=(10, 4.6), layout="constrained")
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
    lines, names = picture.axes[0].get_legend_handles_labels()
    picture.legend(lines, names, frameon=False, ncols=5, loc="outside lower center")
    picture.savefig(path, dpi=130)
