"""Test error against bytes sent: every method with the same codec, at its best bits, with parameters chosen equally.

The setting of MeshELM, DNSP, DGSP and MTL-ELM in one place (of twelve), the bits per number of every method (2, 4 or 8)
and the round after which it stops are chosen on other draws than those on which methods are compared: those with the
fewest bytes whose mean test error is above that of MTL-ELM in one place by at most half of a margin of a quarter of a
point, or else with the least error. Where they are compared, the mean difference may be the whole margin, which is also
what counts as negligible in the reproduction of the paper. Local ELM and the methods that take many rounds (DMTL-ELM,
FedRep and Dif-AltGDmin) keep the settings, of twelve each, that cross-validation on training rows of two further draws
chose. Draws are of the same data sets, so that rows of some occur in others. The graph is a star, which the subspace
pursuits require and which suits the others. All methods but Local ELM, which sends nothing, use the inputs: a hidden
layer takes several times the bytes.

"DNSP by coefficients" is DNSP with messages that were made for few bytes (:mod:`benchmarks.dnsp_coefficients`), and may
have other bits to the hub than back. The ranks of DNSP and DGSP are their rounds, so that their twelve settings are
penalties.

Two accounts are kept, and methods are chosen in each of them: all bytes that are sent, and those without the numbers by
which a run is followed, which a run of a fixed number of rounds does not need. MeshELM has them from its sums, except
where weights are exchanged.

Exchanges of weights (``elmesh.solvers.hub_weights``) and the codec were developed on draws below 1000, with results of
earlier ways of choosing in view. All was fixed before anything was computed on the draws of the comparison. How often
MeshELM has the fewest bytes if the draws are drawn again shows how much this depends on them. After an interrupt the
run continues: finished methods are in bytes.jsonl until all are done.
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
from benchmarks.dnsp_coefficients import learn_by_coefficients
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
FIRST_DRAW, FIRST_CHOICE_DRAW, BITS = 2000, 100, (2, 4, 8)
# Times that draws are drawn again, with replacement.
RESAMPLES = 2000
# Points of error within which methods must come of MTL-ELM in one place: where they are chosen, and where compared.
CHOICE_MARGIN, MARGIN = 0.125, 0.25
MESH, SUMS, POOLED, LOCAL = "MeshELM", "MeshELM, start by sums", "MTL-ELM in one place", "Local ELM"
COEFFICIENTS = "DNSP by coefficients"
#: What is counted: all that is sent, and all but the numbers by which a run is followed.
ACCOUNTS = ("all", "without figures")
ACCOUNT_NAMES = {"all": "all bytes", "without figures": "without figures"}
Setting = dict[str, Any]
DEFAULT_RUN = RunConfig()
COLORS = ("#D55E00", "#E69F00", "#000000", "#0072B2", "#009E73", "#004488", "#CC79A7", "#8C6D31", "#56B4E9", "#999999")
#: Test error by bytes: one row per round of all bytes, those by which the run is followed, and the error.
Curve = list[tuple[int, int, float]]


def _grid(**values: tuple[Any, ...]) -> list[Setting]:
    return [dict(zip(values, point, strict=True)) for point in product(*values.values())]


def methods(name: str) -> dict[str, tuple[Callable[[Setting], Solver], list[Setting]]]:
    """Return for each method a function from a setting to a solver, and its twelve settings."""
    school = name == "school"
    mu = (20.0, 40.0, 80.0) if school else (4.0, 8.0, 12.0)
    few = (1, 2, 3, 4) if school else (6, 8, 10, 15)
    ridge = (1, 2, 3, 4, 5, 6, 8, 10, 15, 20, 30, 50) if school else (3, 5, 7, 10, 13, 16, 20, 25, 30, 40, 60, 100)
    pursuit = _grid(rank=(4 if school else 20,), mu=tuple(map(float, ridge)))
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
        "DNSP": (plain(DNSP), pursuit),
        "DGSP": (plain(DGSP), pursuit),
        COEFFICIENTS: (plain(DNSP), pursuit),
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


def curves_of(name: str, method: str, setting: Setting, bits: tuple[int, int], draws: list[Draw]) -> list[Curve]:
    """Return the curves of a method on some draws, with bits per number to the hub and back."""
    if method == COEFFICIENTS:
        own = {**setting, "bits": bits[0], "bits_back": bits[1]}
        return [learn_by_coefficients(draw, own) for draw in draws]
    solver = methods(name)[method][0](setting)
    if method not in (LOCAL, POOLED):
        solver = solver.set_params(message_bits=bits[0])
    return [learn(draw, solver, method == LOCAL) for draw in draws]


def choose(name: str, method: str) -> dict[str, tuple[Setting, tuple[int, int], int]]:
    """Return in each account setting, bits and round with the fewest bytes to the error in one place, or the best."""
    _, grid = methods(name)[method]
    pooled, _ = best_setting(name, POOLED)
    bar = pooled.mean() + CHOICE_MARGIN
    found: dict[str, list[tuple[float, float, Setting, tuple[int, int], int]]] = {account: [] for account in ACCOUNTS}
    pairs = [(up, back) for up in BITS for back in BITS if up == back or method == COEFFICIENTS]
    for setting, bits in product(grid, pairs):
        row = summarise(setting, curves_of(name, method, setting, bits, tuning_draws(name)))
        for account, k in product(ACCOUNTS, range(len(row["error"]))):
            # At the bar the fewest bytes count; above it the error.
            found[account].append((max(row["error"][k], bar), row["sent"][account][k], setting, bits, k))
    return {account: min(own, key=lambda one: one[:2])[2:] for account, own in found.items()}


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
    """Return the figures of one method in each account, or of MeshELM with default parameters, on one data set."""
    if method == "defaults":
        return default_against_alone(name, best_setting(name, LOCAL)[1])
    if method in (POOLED, LOCAL):
        chosen = dict.fromkeys(ACCOUNTS, (best_setting(name, method)[1], (64, 64), -1))
    else:
        chosen = choose(name, method)
    found: dict[str, Any] = {}
    for account, (setting, bits, k) in chosen.items():
        same = next((own for own in found.values() if (own["setting"], own["bits"]) == (setting, list(bits))), None)
        row = same or summarise(setting, curves_of(name, method, setting, bits, comparison_draws(name)))
        found[account] = {**row, "bits": list(bits), "round": k}
    return found


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
    verdicts = {name: {account: judge(rows, account) for account in ACCOUNTS} for name, rows in figures.items()}
    plot(figures, results / "bytes.png")
    return {
        "benchmark": "bytes",
        "unit": "bytes over all agents; test error in per cent, for School 100 minus the explained variance",
        "machine": machine(),
        "draws": {name: {"compared": DRAWS[name], "choice": CHOICE_DRAWS[name]} for name in NAMES},
        "margins": {"choice": CHOICE_MARGIN, "compared": MARGIN},
        "figures": figures,
        "verdicts": verdicts,
        "goals": goals(figures, verdicts),
    }


def goals(figures: dict[str, Any], verdicts: dict[str, Any]) -> dict[str, bool]:
    questions = {
        "the error in one place for the fewest bytes of all methods": "fewest_bytes",
        "no other method's curve below by more than a standard error": "lowest_everywhere",
    }
    met = {
        f"{name}, {ACCOUNT_NAMES[account]}: {words}": verdict[account][key]
        for words, key in questions.items()
        for name, verdict in verdicts.items()
        for account in ACCOUNTS
    }
    defaults = [rows["defaults"] for rows in figures.values()]
    for name, one in zip(figures, defaults, strict=True):
        not_worse = one["difference"] <= one["standard_error"]
        met[f"{name}: by default not worse than alone by more than a standard error"] = bool(not_worse)
    return {**met, "by default better than alone on the mean": float(np.mean([d["difference"] for d in defaults])) < 0}


def summarise(setting: Setting, runs: list[Curve]) -> dict[str, Any]:
    """Average runs round by round; a run that ended earlier keeps its last values."""
    longest = max(map(len, runs))
    points = np.array([[run[min(k, len(run) - 1)] for k in range(longest)] for run in runs])
    sent, followed = (points[:, :, k].mean(axis=0) for k in (0, 1))
    return {
        "setting": setting,
        "sent": {"all": sent.round().tolist(), "without figures": (sent - followed).round().tolist()},
        "error": points[:, :, 2].mean(axis=0).tolist(),
        "errors": points[:, :, 2].round(3).tolist(),
    }


def errors_at(row: dict[str, Any], k: int) -> np.ndarray:
    """Return the errors of a method after a round, one per draw; after the last one if there are fewer."""
    errors = np.array(row["errors"])
    return errors[:, min(k, errors.shape[1] - 1) if k >= 0 else -1]


def within(row: dict[str, Any], account: str, budget: float) -> np.ndarray | None:
    """Return the errors of a method, one per draw, within a budget of bytes; None before its first model."""
    k = int(np.searchsorted(row["sent"][account], budget, side="right")) - 1
    return errors_at(row, k) if k >= 0 else None


def ahead(rows: dict[str, Any], account: str, method: str, budgets: list[float]) -> list[float]:
    """Return the budgets at which a method beats both MeshELM and Local ELM by more than a standard error."""
    alone, found = errors_at(rows[LOCAL][account], -1), []
    for budget in budgets:
        theirs, ours = within(rows[method][account], account, budget), within(rows[MESH][account], account, budget)
        if theirs is None:
            continue
        # Before anything is sent, every agent has the model that it fitted alone.
        best = alone if ours is None or ours.mean() > alone.mean() else ours
        difference = theirs - best
        if difference.mean() < -_error_of_mean(difference):
            found.append(budget)
    return found


def _error_of_mean(values: np.ndarray) -> float:
    return float(values.std(ddof=1) / np.sqrt(len(values)))


def stopped(row: dict[str, Any], account: str, pooled: np.ndarray) -> dict[str, float]:
    """Return error, its paired difference from MTL-ELM in one place, and bytes, at the round that was chosen."""
    errors = errors_at(row, row["round"])
    return {
        "error": float(errors.mean()),
        "standard_error": _error_of_mean(errors),
        "above": float((errors - pooled).mean()),
        "above_standard_error": _error_of_mean(errors - pooled),
        "bytes": row["sent"][account][min(row["round"], len(row["error"]) - 1)],
    }


def resampled(rows: dict[str, Any], account: str, others: list[str], sent: dict[str, float]) -> float:
    """Return the share of resamples of the draws in which MeshELM reaches the error for the fewest bytes."""
    pooled = errors_at(rows[POOLED][account], -1)
    above = {m: errors_at(rows[m][account], rows[m][account]["round"]) - pooled for m in (MESH, *others)}
    rng, met = np.random.default_rng(0), 0
    for _ in range(RESAMPLES):
        draws = rng.integers(len(pooled), size=len(pooled))
        reached = {m for m, own in above.items() if own[draws].mean() <= MARGIN}
        met += MESH in reached and all(sent[MESH] < sent[m] for m in reached - {MESH})
    return met / RESAMPLES


def judge(rows: dict[str, Any], account: str) -> dict[str, Any]:
    """Return who reaches the error of MTL-ELM in one place, for how many bytes, in one account."""
    pooled = errors_at(rows[POOLED][account], -1)
    senders = [m for m in rows if m not in (POOLED, LOCAL, "defaults")]
    others = [m for m in senders if m not in (MESH, SUMS)]
    ends = {method: stopped(rows[method][account], account, pooled) for method in senders}
    reached = [method for method in senders if ends[method]["above"] <= MARGIN]
    sent = {method: end["bytes"] for method, end in ends.items()}
    budgets = sorted({n for method in senders for n in rows[method][account]["sent"][account] if n > 0})
    lower = {method: found for method in others if (found := ahead(rows, account, method, budgets))}
    return {
        "error_in_one_place": float(pooled.mean()),
        "fewest_bytes_in_resamples": resampled(rows, account, others, sent),
        "stopped": ends,
        "reached": reached,
        "fewest_bytes": MESH in reached and all(sent[MESH] < sent[m] for m in reached if m in others),
        "budgets_at_which_another_is_lower": {m: [min(b), max(b), len(b)] for m, b in lower.items()},
        "budgets": len(budgets),
        "lowest_everywhere": not lower,
    }


def plot(figures: dict[str, Any], path: Path) -> None:
    picture = Figure(figsize=(10, 4.6), layout="constrained")
    FigureCanvasAgg(picture)
    titles = {"usps": "USPS", "mnist": "MNIST", "school": "School"}
    for axes, (name, rows) in zip(picture.subplots(1, 3), figures.items(), strict=True):
        own = {method: row["all"] for method, row in rows.items() if method != "defaults"}
        for color, (method, row) in zip(COLORS, own.items(), strict=True):
            if method in (POOLED, LOCAL):
                axes.axhline(row["error"][-1], color=color, lw=1, ls="--" if method == POOLED else ":", label=method)
            else:
                sent, wide = np.array(row["sent"]["all"]) / 1e3, 2.5 if method == MESH else 1.2
                axes.step(sent, row["error"], where="post", color=color, lw=wide, label=method)
        low = min(min(row["error"]) for row in own.values())
        high = own[LOCAL]["error"][-1]
        axes.set(xscale="log", title=titles[name], xlabel="kB sent, over all agents",
                 ylim=(low - 0.3 * (high - low), high + 1.5 * (high - low)))  # fmt: skip
    picture.axes[0].set_ylabel("test error, %")
    picture.axes[2].set_ylabel("100 - explained variance, %")
    lines, names = picture.axes[0].get_legend_handles_labels()
    picture.legend(lines, names, frameon=False, ncols=5, loc="outside lower center")
    picture.savefig(path, dpi=130)
