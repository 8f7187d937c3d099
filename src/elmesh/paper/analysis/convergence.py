"""Analysis of Figs. 3 and 4: which runs converge, how fast, and whether to U and A of MTL-ELM."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import matplotlib.figure
import numpy as np
from numpy.typing import NDArray

from elmesh.paper.analysis.estimates import PACKAGE, Analysis, Results, estimate, values
from elmesh.paper.analysis.verdicts import combine, judge_count
from elmesh.paper.convergence import AUTOMATIC, CASES, METHODS, PANELS, ROUNDS, SAVED_ROUNDS
from elmesh.report import Claim, Curve, Wording, draw_curves, figure
from elmesh.trial_log import Numbers
from elmesh.typing import FloatArray

__all__ = ["analyze_fig3", "analyze_fig4"]

CENTRAL, EXACT, FIRST_ORDER = METHODS
DECENTRALIZED = (EXACT, FIRST_ORDER)
LINES = {CENTRAL: ("ink", ":"), EXACT: ("blue", "-"), FIRST_ORDER: ("orange", "--")}
# The objective of a settled run varies by at most this share of the optimum over its last hundred iterations.
SETTLED = 1e-3
# A distance from MTL-ELM below this counts as zero. With gamma = 1 agents reach rounding error.
SAME = 1e-6
EARLY = 3
# Iterations in the plots of single entries; later ones would only show jitter.
DRAWN = 60


def _claim(wording: Wording, key: str, *parts: NDArray[np.bool_], **numbers: object) -> Claim:
    """Return a claim about every run; a part of the claim is an array of whether each run confirms it."""
    counts = [int(np.sum(part)) for part in parts]
    return wording.claim(key, combine(judge_count(n, len(parts[0])) for n in counts), counts=counts, **numbers)


def analyze_fig3(results: Results, runs: int) -> Analysis:
    """Compare the panels with the text of the paper."""
    converged = {name: int(np.sum(_converged(results[AUTOMATIC], name))) for name in METHODS}
    wording = Wording(PACKAGE, "fig3", runs=runs, rounds=ROUNDS, converged=converged)
    section = wording.section(
        claims=_fig3_claims(results, wording),
        figures=[wording.figure("3", figure(*(_draw_objectives(results[case][0], case) for case in CASES)))],
        tables=[wording.table("all", _fig3_rows(results, runs))],
    )
    numbers = {
        case: {
            name: {"settled_runs": int(np.sum(_settled(results[case], name)))}
            | {key: estimate(results[case], name, key).to_json() for key in ("final", "swing", "gap")}
            for name in METHODS
        }
        for case in CASES
    }
    return Analysis(section, numbers)


def _settled(runs: Sequence[Numbers], name: str) -> NDArray[np.bool_]:
    return np.array([run["stop"] != "DIVERGED" and run["swing"] <= SETTLED for run in values(runs, name)])


def _converged(runs: Sequence[Numbers], name: str) -> NDArray[np.bool_]:
    return np.array([run["stop"] == "CONVERGED" and abs(run["final"] - 1) < 1e-4 for run in values(runs, name)])


def _reached(runs: Sequence[Numbers], name: str) -> FloatArray:
    """Return the iterations until one per cent from the optimum; infinity if it is not reached."""
    return np.array([np.inf if k is None else float(k) for k in values(runs, name, "reached")])


def _fig3_claims(results: Results, wording: Wording) -> list[Claim]:
    settled = {(case, name): _settled(results[case], name) for case in PANELS for name in METHODS}
    reached = {(case, name): _reached(results[case], name) for case in PANELS for name in METHODS}
    slowdown = {case: reached[case, EXACT] / np.maximum(1, reached[case, CENTRAL]) for case in PANELS}
    swings = {case: 100 * np.array(values(results[case], FIRST_ORDER, "swing")) for case in PANELS}
    diverged = values(results["c"], FIRST_ORDER, "stop").count("DIVERGED")
    met = [
        np.array([run["tau"] >= run["required"] for run in values(results[case], name)])
        for name in DECENTRALIZED
        for case in "ab"
    ]
    tau = [results[case][0][EXACT]["tau"] for case in "ab"]
    required = [results["a"][0][name]["required"] for name in DECENTRALIZED]
    medians = {case: np.median(slowdown[case]) for case in PANELS}
    claim = partial(_claim, wording)
    return [
        claim("central", *(slowdown[case] > 1 for case in PANELS), **medians),
        claim("exact", *(settled[case, EXACT] for case in PANELS)),
        claim("fails_c", ~settled["c", FIRST_ORDER], swing=np.median(swings["c"]), diverged=diverged),
        claim("settles_bd", settled["b", FIRST_ORDER], settled["d", FIRST_ORDER]),
        claim("settles_a", settled["a", FIRST_ORDER], swing=max(swings["a"])),
        claim("theorems", *met, tau=tau, required=required),
        claim("slower", reached["b", EXACT] > reached["a", EXACT]),
        claim("ahead", reached["b", FIRST_ORDER] < reached["b", EXACT]),
    ]


def _draw_objectives(run: Numbers, case: str) -> partial[None]:
    objectives = {name: run[name]["objective"] for name in METHODS}
    curves = [Curve(name, np.arange(len(y)), y, *LINES[name]) for name, y in objectives.items()]
    title = "as (c), automatic parameters"
    if case in PANELS:
        panel = PANELS[case]
        title = f"L = {panel.L}, N = {panel.N}, tau = {panel.weight} + d, zeta = {panel.weight}"
    draw = partial(draw_curves, x_label="iteration", y_label="objective", x_scale="rounds", y_scale="auto")
    return partial(draw, curves=curves, title=title)


def _fig3_rows(results: Results, runs: int) -> list[list[str]]:
    rows = []
    for case, name in ((case, name) for case in CASES for name in METHODS):
        if (case, name) == (AUTOMATIC, CENTRAL):
            continue
        own, automatic = results[case], case == AUTOMATIC
        count = int(np.sum((_converged if automatic else _settled)(own, name)))
        rows.append(
            [
                f"automatic {name}" if automatic else f"({case}) {name}",
                f"{count} of {runs}",
                f"{np.median(values(own, name, 'final')):.4f}",
                "–" if automatic else f"{np.max(values(own, name, 'swing')):.1e}",
                f"{np.max(values(own, name, 'gap')):.1e}",
            ]
        )
    return rows


def analyze_fig4(results: Results, runs: int) -> Analysis:
    """Compare the accuracies with the text of the paper."""
    found = results["a"]
    U, A = ({name: np.array(values(found, name, f"{key}_accuracy")) for name in DECENTRALIZED} for key in "UA")
    final, early = U[EXACT][:, -1], SAVED_ROUNDS.index(EARLY)
    final_A = [A[name][:, -1] for name in DECENTRALIZED]
    wording = Wording(PACKAGE, "fig4", runs=runs, rounds=ROUNDS, same=SAME, early=EARLY)
    claim = partial(_claim, wording)
    section = wording.section(
        claims=[
            claim("subspace", final < SAME, median=np.median(final), most=final.max()),
            claim("heads", *(own < SAME for own in final_A), medians=np.median(final_A, axis=1)),
            claim("early", U[FIRST_ORDER][:, early] < U[EXACT][:, early]),
            claim("late", final < U[FIRST_ORDER][:, -1]),
        ],
        figures=[wording.figure("4", _fig4(found[0], {"U": U, "A": A}))],
    )
    numbers = {
        name: {f"{key}_accuracy_at_{ROUNDS}": estimate(found, name, f"{key}_accuracy", -1).to_json() for key in "UA"}
        for name in DECENTRALIZED
    }
    return Analysis(section, numbers)


def _fig4(first: Numbers, accuracies: dict[str, dict[str, FloatArray]]) -> matplotlib.figure.Figure:
    def entries(key: str) -> list[Curve]:
        return [
            Curve(name, SAVED_ROUNDS[:DRAWN], entry, *LINES[name], thin=True)
            for name in DECENTRALIZED
            for entry in np.transpose(first[name][key][:DRAWN])
        ]

    def accuracy(key: str) -> partial[None]:
        curves = []
        for name in DECENTRALIZED:
            logs = np.log10(np.maximum(accuracies[key][name], 1e-17))
            mean, low, high = (10**log for log in (logs.mean(axis=0), logs.min(axis=0), logs.max(axis=0)))
            curves.append(Curve(name, SAVED_ROUNDS, mean, *LINES[name], band=(low, high)))
        return partial(draw, curves=curves, y_label=f"accuracy of {key}", x_scale="rounds", y_scale="log")

    draw = partial(draw_curves, x_label="iteration")
    # MTL-ELM has one A_t per agent: five lines with one label.
    optimal_A = [Curve("MTL-ELM", [0, DRAWN - 1], [a, a], "muted", ":", thin=True) for a in first["optimum"]["A"]]
    return figure(
        partial(draw, curves=entries("U"), y_label="U(1,1)", levels=[("MTL-ELM", first["optimum"]["U"])]),
        partial(draw, curves=[*optimal_A, *entries("A")], y_label="A(1,1)"),
        accuracy("U"),
        accuracy("A"),
    )
