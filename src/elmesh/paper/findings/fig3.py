"""What Fig. 3 shows: which runs converge, and how fast."""

from __future__ import annotations

from functools import partial

import numpy as np

from elmesh.paper.convergence import PANELS
from elmesh.paper.fig3 import AUTOMATIC, CASES, METHODS, ROUNDS
from elmesh.paper.findings.finding import Finding
from elmesh.paper.findings.inference import Estimate, counted, worst
from elmesh.paper.trials import Numbers, Trials
from elmesh.report import STYLES, Claim, Curve, Figure, Section, Table, draw_curves, panels

__all__ = ["conclude"]

# An objective that swings by more than this share over its last hundred iterations has not converged.
SETTLED = 1e-3
FIRST_ORDER, EXACT = "FO-DMTL-ELM", "DMTL-ELM"


def conclude(trials: Trials, runs: int) -> Finding:
    """Compare the panels with what the text says of them."""
    found = {case: trials.of(case) for case in CASES}
    settled = {case: {name: _count(found[case], name) for name in METHODS} for case in CASES}
    section = Section(
        "Figure 3: convergence",
        paragraphs=(
            "Objective against iteration for five agents on a ring, random features and targets, the paper's start, "
            f"parameters and rule for gamma; {runs} random problems, of which the first is drawn.",
            "Panels: (a) L = 5, N = 10, tau = 1 + d, zeta = 1; (b) the same with tau = 2 + d, zeta = 2; (c) L = 10, "
            "N = 100, tau = 1 + d, zeta = 1; (d) the same with tau = 2 + d, zeta = 2; (e) the problem of (c) with the "
            "automatic parameters and the spectral start of this package, where DMTL-ELM converges in "
            f"{_converged(found, EXACT)} and FO-DMTL-ELM in {_converged(found, FIRST_ORDER)} of {runs}, to MTL-ELM's "
            "objective.",
        ),
        claims=_claims(found, settled, runs),
        figures=[_figure(found)],
        tables=[_table(found, settled, runs)],
    )
    numbers = {
        case: {
            name: {
                "settled_runs": settled[case][name],
                **{
                    key: Estimate.of([run[name][key] for run in found[case]]).to_json()
                    for key in ("final", "swing", "gap")
                },
            }
            for name in METHODS
        }
        for case in CASES
    }
    return Finding(section, numbers)


def _count(found: list[Numbers], name: str) -> int:
    return sum(run[name]["stop"] != "DIVERGED" and run[name]["swing"] <= SETTLED for run in found)


def _claims(found: dict[str, list[Numbers]], settled: dict[str, dict[str, int]], runs: int) -> list[Claim]:
    swings = {case: [run[FIRST_ORDER]["swing"] for run in found[case]] for case in PANELS}
    speed = {case: [_reached(run[EXACT]) / max(1, _reached(run["MTL-ELM"])) for run in found[case]] for case in PANELS}
    slower = [_reached(b[EXACT]) > _reached(a[EXACT]) for a, b in zip(found["a"], found["b"], strict=True)]
    ahead = [_reached(run[FIRST_ORDER]) < _reached(run[EXACT]) for run in found["b"]]
    failures = runs - settled["c"][FIRST_ORDER]
    return [
        Claim(
            "MTL-ELM, being central, converges fastest.",
            "Iterations to within 1 % of its objective: DMTL-ELM took "
            + ", ".join(f"{np.median(speed[case]):.0f} times as many in ({case})" for case in PANELS)
            + " (medians).",
            worst([counted(sum(ratio > 1 for ratio in speed[case]), runs) for case in PANELS]),
        ),
        Claim(
            "DMTL-ELM converges in all four settings.",
            f"Its objective settles in {', '.join(f'{settled[case][EXACT]} of {runs} in ({case})' for case in PANELS)}"
            ". Whether agents then hold the same U is another matter: see Fig. 4.",
            worst([counted(settled[case][EXACT], runs) for case in PANELS]),
        ),
        Claim(
            "FO-DMTL-ELM does not converge in (c).",
            f"It fails to settle in {failures} of {runs}: over the last 100 iterations its objective swings by "
            f"{100 * np.median(swings['c']):.0f} % of MTL-ELM's (median), and it blows up in "
            f"{sum(run[FIRST_ORDER]['stop'] == 'DIVERGED' for run in found['c'])}.",
            counted(failures, runs),
        ),
        Claim(
            "FO-DMTL-ELM converges in (b) and, with jitter, in (d).",
            f"It settles in {settled['b'][FIRST_ORDER]} and {settled['d'][FIRST_ORDER]} of {runs}.",
            worst([counted(settled[case][FIRST_ORDER], runs) for case in "bd"]),
        ),
        Claim(
            "FO-DMTL-ELM converges in (a) too, with jitter: its parameters are close to what Theorem 2 requires.",
            f"It settles in {settled['a'][FIRST_ORDER]} of {runs}; in the others its objective swings on by up to "
            f"{100 * max(swings['a']):.0f} %. Whether it converges depends on the problem drawn.",
            counted(settled["a"][FIRST_ORDER], runs),
        ),
        Claim(
            "In (a) and (b) the conditions of Theorems 1 and 2 are satisfied.",
            f"tau is {found['a'][0][EXACT]['tau']:.0f} and {found['b'][0][EXACT]['tau']:.0f}; Theorem 1 asks for "
            f"{found['a'][0][EXACT]['required']:.1f}, Theorem 2 for {found['a'][0][FIRST_ORDER]['required']:.1f}. The "
            "conditions are sufficient and not necessary: that runs converge is no evidence for them.",
            worst(
                [
                    counted(sum(run[name]["tau"] >= run[name]["required"] for run in found[case]), runs)
                    for name in (EXACT, FIRST_ORDER)
                    for case in "ab"
                ]
            ),
        ),
        Claim(
            "Larger tau and zeta make DMTL-ELM slower: (b) against (a).",
            f"Later within 1 % of MTL-ELM's objective in {sum(slower)} of {runs}.",
            counted(sum(slower), runs),
        ),
        Claim(
            "In (b) FO-DMTL-ELM falls faster than DMTL-ELM.",
            f"Sooner within 1 % of MTL-ELM's objective in {sum(ahead)} of {runs}.",
            counted(sum(ahead), runs),
        ),
    ]


def _converged(found: dict[str, list[Numbers]], name: str) -> int:
    return sum(run[name]["stop"] == "CONVERGED" and abs(run[name]["final"] - 1) < 1e-4 for run in found[AUTOMATIC])


def _reached(summary: Numbers) -> float:
    return float("inf") if summary["reached"] is None else float(summary["reached"])


def _figure(found: dict[str, list[Numbers]]) -> Figure:
    def curves(case: str) -> list[Curve]:
        styles = [STYLES[4], STYLES[0], STYLES[1]]
        return [
            Curve(name, np.arange(len(y := found[case][0][name]["objective"])), y, style["colour"], style["dash"])
            for name, style in zip(METHODS, styles, strict=True)
        ]

    draws = [
        partial(
            draw_curves, curves=curves(case), x_label="iteration", y_label="objective", x_scale="rounds",
            y_scale="auto", title=_title(case),
        )
        for case in CASES
    ]  # fmt: skip
    return Figure(
        "fig-3",
        "Objective with iterations",
        "MTL-ELM falls first, DMTL-ELM follows; FO-DMTL-ELM swings on where tau is too small for it, and converges "
        "with automatic parameters.",
        f"Five panels of the objective against up to {ROUNDS} iterations for MTL-ELM, DMTL-ELM and FO-DMTL-ELM.",
        panels(draws),
    )


def _title(case: str) -> str:
    if case == AUTOMATIC:
        return "as (c), automatic parameters"
    panel = PANELS[case]
    return f"L = {panel.L}, N = {panel.N}, tau = {panel.weight} + d, zeta = {panel.weight}"


def _table(found: dict[str, list[Numbers]], settled: dict[str, dict[str, int]], runs: int) -> Table:
    rows = [
        [
            f"({case}) {name}" if case in PANELS else f"automatic {name}",
            f"{settled[case][name] if case in PANELS else _converged(found, name)} of {runs}",
            f"{np.median([run[name]['final'] for run in found[case]]):.4f}",
            f"{np.max([run[name]['swing'] for run in found[case]]):.1e}" if case in PANELS else "–",
            f"{np.max([run[name]['gap'] for run in found[case]]):.1e}",
        ]
        for case in CASES
        for name in METHODS
        if case in PANELS or name != "MTL-ELM"
    ]
    return Table(
        "All runs",
        ("", "settled", "final objective, median", "largest swing", "largest consensus gap"),
        rows,
        note=f"Final objective: that of iteration {ROUNDS}, as a multiple of MTL-ELM's. Swing: highest less lowest "
        "objective over the last 100 iterations, as a share of MTL-ELM's; settled means at most 0.1 % (with "
        "automatic parameters: that the solver stopped by its own tolerance). Consensus gap: how far agents' U are "
        "from their mean, as a share of it.",
    )
