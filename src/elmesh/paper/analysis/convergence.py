"""Analysis of Figs. 3 and 4: which runs converge, how fast, and whether to U and A of MTL-ELM."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from elmesh.paper.analysis.estimates import Analysis, Estimate, Results, combine, judge_count, values
from elmesh.paper.convergence import AUTOMATIC, CASES, METHODS, PANELS, ROUNDS, SAVED_ROUNDS
from elmesh.paper.trials import Numbers
from elmesh.report import Claim, Curve, Figure, Section, Table, draw_curves, panels
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


def analyze_fig3(results: Results, runs: int) -> Analysis:
    """Compare the panels with the text of the paper."""
    section = Section(
        "Figure 3: convergence",
        paragraphs=(
            "Objective against iterations for five agents on a ring, with random features and targets and the paper's "
            f"start, parameters and rule for gamma, on {runs} random problems. The figure shows the first one.",
            "Panels: (a) L = 5, N = 10, tau = 1 + d, zeta = 1; (b) the same with tau = 2 + d, zeta = 2; (c) L = 10, N "
            "= 100, tau = 1 + d, zeta = 1; (d) the same with tau = 2 + d, zeta = 2; (e) the problem of (c) with the "
            "automatic parameters and the spectral start of this package. In (e) DMTL-ELM converges to the objective "
            f"of MTL-ELM in {_converged(results, EXACT)} of {runs} runs, and FO-DMTL-ELM in "
            f"{_converged(results, FIRST_ORDER)}.",
        ),
        claims=_fig3_claims(results, runs),
        figures=[_fig3(results)],
        tables=[_fig3_table(results, runs)],
    )
    numbers = {
        case: {
            name: {"settled_runs": _settled(results[case], name)}
            | {key: Estimate.of(values(results[case], name, key)).to_json() for key in ("final", "swing", "gap")}
            for name in METHODS
        }
        for case in CASES
    }
    return Analysis(section, numbers)


def _settled(runs: Sequence[Numbers], name: str) -> int:
    return sum(run["stop"] != "DIVERGED" and run["swing"] <= SETTLED for run in values(runs, name))


def _converged(results: Results, name: str) -> int:
    return sum(run["stop"] == "CONVERGED" and abs(run["final"] - 1) < 1e-4 for run in values(results[AUTOMATIC], name))


def _reached(runs: Sequence[Numbers], name: str) -> FloatArray:
    """Return the iterations until one per cent from the optimum; infinity if it is not reached."""
    return np.array([np.inf if k is None else float(k) for k in values(runs, name, "reached")])


def _fig3_claims(results: Results, runs: int) -> list[Claim]:
    settled = {(case, name): _settled(results[case], name) for case in PANELS for name in METHODS}
    reached = {(case, name): _reached(results[case], name) for case in PANELS for name in METHODS}
    swings = {case: values(results[case], FIRST_ORDER, "swing") for case in PANELS}
    slowdown = {case: reached[case, EXACT] / np.maximum(1, reached[case, CENTRAL]) for case in PANELS}
    slower = int(np.sum(reached["b", EXACT] > reached["a", EXACT]))
    ahead = int(np.sum(reached["b", FIRST_ORDER] < reached["b", EXACT]))
    failures = runs - settled["c", FIRST_ORDER]
    diverged = sum(stop == "DIVERGED" for stop in values(results["c"], FIRST_ORDER, "stop"))
    tau_a, tau_b = (results[case][0][EXACT]["tau"] for case in "ab")
    required = [results["a"][0][name]["required"] for name in DECENTRALIZED]
    met = [
        sum(run["tau"] >= run["required"] for run in values(results[case], name))
        for name in DECENTRALIZED
        for case in "ab"
    ]
    return [
        Claim(
            "MTL-ELM, as a central method, converges fastest.",
            "Iterations to within 1 % of its final objective: DMTL-ELM needs "
            + ", ".join(f"{np.median(slowdown[case]):.0f} times as many in ({case})" for case in PANELS)
            + " (medians).",
            combine(judge_count(int(np.sum(slowdown[case] > 1)), runs) for case in PANELS),
        ),
        Claim(
            "DMTL-ELM converges in all four settings.",
            f"Number of runs out of {runs} in which its objective settles: "
            + ", ".join(f"{settled[case, EXACT]} in ({case})" for case in PANELS)
            + ". That does not mean that all agents have the same U: see Fig. 4.",
            combine(judge_count(settled[case, EXACT], runs) for case in PANELS),
        ),
        Claim(
            "FO-DMTL-ELM does not converge in (c).",
            f"It does not settle in {failures} of {runs} runs. Over the last 100 iterations its objective varies by "
            f"{100 * np.median(swings['c']):.0f} % of that of MTL-ELM (median), and it diverges in {diverged} runs.",
            judge_count(failures, runs),
        ),
        Claim(
            "FO-DMTL-ELM converges in (b) and, with jitter, in (d).",
            f"It settles in {settled['b', FIRST_ORDER]} and {settled['d', FIRST_ORDER]} of {runs} runs.",
            combine(judge_count(settled[case, FIRST_ORDER], runs) for case in "bd"),
        ),
        Claim(
            "FO-DMTL-ELM also converges in (a), with jitter: its parameters are close to those that Theorem 2 "
            "requires.",
            f"It settles in {settled['a', FIRST_ORDER]} of {runs} runs; in the others its objective still varies by up "
            f"to {100 * max(swings['a']):.0f} %. Convergence depends on the random problem.",
            judge_count(settled["a", FIRST_ORDER], runs),
        ),
        Claim(
            "In (a) and (b) the conditions of Theorems 1 and 2 are satisfied.",
            f"tau is {tau_a:.0f} and {tau_b:.0f}; Theorem 1 requires {required[0]:.1f}, Theorem 2 {required[1]:.1f}. "
            "The conditions are sufficient and not necessary, so convergence is no evidence that they hold.",
            combine(judge_count(count, runs) for count in met),
        ),
        Claim(
            "Larger tau and zeta make DMTL-ELM slower: (b) compared with (a).",
            f"It comes within 1 % of the objective of MTL-ELM later in {slower} of {runs} runs.",
            judge_count(slower, runs),
        ),
        Claim(
            "In (b) the objective of FO-DMTL-ELM falls faster than that of DMTL-ELM.",
            f"It comes within 1 % of the objective of MTL-ELM earlier in {ahead} of {runs} runs.",
            judge_count(ahead, runs),
        ),
    ]


def _fig3(results: Results) -> Figure:
    def plot(case: str) -> partial[None]:
        objectives = {name: results[case][0][name]["objective"] for name in METHODS}
        curves = [Curve(name, np.arange(len(y)), y, *LINES[name]) for name, y in objectives.items()]
        return partial(
            draw_curves, curves=curves, x_label="iteration", y_label="objective", x_scale="rounds", y_scale="auto",
            title=_title(case),
        )  # fmt: skip

    return Figure(
        "fig-3",
        "Objective against iterations",
        "MTL-ELM falls first, and DMTL-ELM follows. FO-DMTL-ELM oscillates where tau is too small for it, and "
        "converges with automatic parameters.",
        f"Five panels of the objective against up to {ROUNDS} iterations for MTL-ELM, DMTL-ELM and FO-DMTL-ELM.",
        panels([plot(case) for case in CASES]),
    )


def _title(case: str) -> str:
    if case == AUTOMATIC:
        return "as (c), automatic parameters"
    panel = PANELS[case]
    return f"L = {panel.L}, N = {panel.N}, tau = {panel.weight} + d, zeta = {panel.weight}"


def _fig3_table(results: Results, runs: int) -> Table:
    rows = []
    for case, name in ((case, name) for case in CASES for name in METHODS):
        own = results[case]
        final, gap = values(own, name, "final"), values(own, name, "gap")
        if case in PANELS:
            title, count, swing = f"({case}) {name}", _settled(own, name), f"{np.max(values(own, name, 'swing')):.1e}"
        elif name != CENTRAL:
            title, count, swing = f"automatic {name}", _converged(results, name), "–"
        else:
            continue
        rows.append([title, f"{count} of {runs}", f"{np.median(final):.4f}", swing, f"{np.max(gap):.1e}"])
    return Table(
        "All runs",
        ("", "settled", "final objective, median", "largest variation", "largest consensus gap"),
        rows,
        note=f"Final objective: after {ROUNDS} iterations, as a multiple of that of MTL-ELM. Variation: highest minus "
        "lowest objective over the last 100 iterations, relative to that of MTL-ELM. Settled: a variation of at most "
        "0.1 %, or with automatic parameters, that the solver stopped by its own tolerance. Consensus gap: relative "
        "distance of the agents' U from their mean.",
    )


def analyze_fig4(results: Results, runs: int) -> Analysis:
    """Compare the accuracies with the text of the paper."""
    found = results["a"]
    U, A = (
        {name: np.array(values(found, name, key)) for name in DECENTRALIZED} for key in ("U_accuracy", "A_accuracy")
    )
    final = U[EXACT][:, -1]
    early = SAVED_ROUNDS.index(EARLY)
    faster = int(np.sum(U[FIRST_ORDER][:, early] < U[EXACT][:, early]))
    better = int(np.sum(final < U[FIRST_ORDER][:, -1]))
    claims = [
        Claim(
            "DMTL-ELM brings all agents to the subspace U* of MTL-ELM.",
            f"After {ROUNDS} iterations the root mean square distance from it is {np.median(final):.1e} (median, at "
            f"most {final.max():.1e}), and it no longer falls, because the rule for gamma has stopped the multipliers "
            f"(see the section on misprints). A distance below {SAME:g} counts as zero.",
            judge_count(int(np.sum(final < SAME)), runs),
        ),
        Claim(
            "The A_t converge to those of MTL-ELM.",
            "Their final distance from them is "
            + " and ".join(f"{np.median(A[name][:, -1]):.1e} ({name})" for name in DECENTRALIZED)
            + " (medians).",
            combine(judge_count(int(np.sum(A[name][:, -1] < SAME)), runs) for name in DECENTRALIZED),
        ),
        Claim(
            "At first FO-DMTL-ELM gains accuracy faster than DMTL-ELM.",
            f"It is more accurate after {EARLY} iterations in {faster} of {runs} runs.",
            judge_count(faster, runs),
        ),
        Claim(
            "For large k DMTL-ELM is more accurate.",
            f"This holds after {ROUNDS} iterations in {better} of {runs} runs. FO-DMTL-ELM oscillates if its tau is "
            "too small for the random problem. If it is large enough, small oscillations keep gamma above zero until "
            "the agents agree, and FO-DMTL-ELM ends closer to MTL-ELM.",
            judge_count(better, runs),
        ),
    ]
    section = Section(
        "Figure 4: agents compared with MTL-ELM",
        paragraphs=(
            "The setting of Fig. 3 (a). Top: the entry (1, 1) of every agent's U and A in the first iterations of the "
            f"first random problem; dotted, that of MTL-ELM after {ROUNDS} iterations. Bottom: the paper's accuracies, "
            f"the root mean square distance of all entries from those of MTL-ELM, as the geometric mean over {runs} "
            "random problems.",
        ),
        claims=claims,
        figures=[_fig4(found[0], {"U": U, "A": A})],
    )
    numbers = {
        name: {
            f"{key}_accuracy_at_{ROUNDS}": Estimate.of(accuracy[name][:, -1]).to_json()
            for key, accuracy in (("U", U), ("A", A))
        }
        for name in DECENTRALIZED
    }
    return Analysis(section, numbers)


def _fig4(first: Numbers, accuracies: dict[str, dict[str, FloatArray]]) -> Figure:
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
            curves.append(Curve(name, SAVED_ROUNDS, mean, *LINES[name], low=low, high=high))
        return partial(
            draw_curves, curves=curves, x_label="iteration", y_label=f"accuracy of {key}", x_scale="rounds",
            y_scale="log",
        )  # fmt: skip

    # MTL-ELM has one A_t per agent: five lines with one label.
    optimal_A = [Curve("MTL-ELM", [0, DRAWN - 1], [a, a], "muted", ":", thin=True) for a in first["optimum"]["A"]]
    evolution = partial(draw_curves, x_label="iteration")
    return Figure(
        "fig-4",
        "Evolution and accuracy",
        "Bands are the range over all random problems.",
        "Four panels: entry (1, 1) of U and of A for five agents, and the two accuracies, against iterations.",
        panels(
            [
                partial(evolution, curves=entries("U"), y_label="U(1,1)", levels=[("MTL-ELM", first["optimum"]["U"])]),
                partial(evolution, curves=[*optimal_A, *entries("A")], y_label="A(1,1)"),
                accuracy("U"),
                accuracy("A"),
            ]
        ),
    )
