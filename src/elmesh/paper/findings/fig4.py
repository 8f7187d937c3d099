"""What Fig. 4 shows: whether agents come to MTL-ELM's U and A."""

from __future__ import annotations

from functools import partial

import numpy as np

from elmesh.paper.fig4 import METHODS, ROUNDS, SHOWN
from elmesh.paper.findings.finding import Finding
from elmesh.paper.findings.inference import Estimate, counted, worst
from elmesh.paper.trials import Numbers, Trials
from elmesh.report import Claim, Curve, Figure, Section, draw_curves, panels

__all__ = ["conclude"]

COLOURS = dict(zip(METHODS, ("blue", "orange"), strict=True))
EXACT, FIRST_ORDER = METHODS
KEYS = ("U_accuracy", "A_accuracy")
# How near to MTL-ELM counts as there. With gamma = 1 agents come to rounding error.
SAME = 1e-6
EARLY = 3
# Iterations whose evolution is drawn; after that, jitter is a blot.
DRAWN = 60


def conclude(trials: Trials, runs: int) -> Finding:
    """Compare the accuracies with what the text says of them."""
    found = trials.of("a")
    final = {name: [run[name]["U_accuracy"][-1] for run in found] for name in METHODS}
    early = {name: [run[name]["U_accuracy"][SHOWN.index(EARLY)] for run in found] for name in METHODS}
    faster = sum(fo < ex for fo, ex in zip(early[FIRST_ORDER], early[EXACT], strict=True))
    better = sum(ex < fo for fo, ex in zip(final[FIRST_ORDER], final[EXACT], strict=True))
    claims = [
        Claim(
            "DMTL-ELM brings all agents to the one subspace U* of MTL-ELM.",
            f"At k = {ROUNDS} agents are {np.median(final[EXACT]):.1e} (median, largest {max(final[EXACT]):.1e}) from "
            "it, root mean square over entries. What is left then stays: the rule for gamma has frozen it (see the "
            f"misprints below). Within {SAME:g} counts as there.",
            counted(sum(value < SAME for value in final[EXACT]), runs),
        ),
        Claim(
            "The A_t converge to those of MTL-ELM.",
            "They are "
            + " and ".join(
                f"{np.median([run[name]['A_accuracy'][-1] for run in found]):.1e} ({name})" for name in METHODS
            )
            + " from them at the end (medians).",
            worst([counted(sum(run[name]["A_accuracy"][-1] < SAME for run in found), runs) for name in METHODS]),
        ),
        Claim(
            "At first FO-DMTL-ELM gains accuracy faster than DMTL-ELM.",
            f"More accurate at k = {EARLY} in {faster} of {runs}.",
            counted(faster, runs),
        ),
        Claim(
            "For large k DMTL-ELM is the more accurate.",
            f"At k = {ROUNDS} in {better} of {runs}. FO-DMTL-ELM goes on jittering where its tau is too small for the "
            "problem drawn; where it is not, the jitter keeps gamma at work until agents agree, and it ends nearer.",
            counted(better, runs),
        ),
    ]
    numbers = {
        name: {f"{key}_at_{ROUNDS}": Estimate.of([run[name][key][-1] for run in found]).to_json() for key in KEYS}
        for name in METHODS
    }
    section = Section(
        "Figure 4: agents against MTL-ELM",
        paragraphs=(
            "The setting of Fig. 3 (a). Above, the entry (1, 1) of every agent's U and A over the first iterations in "
            f"the first random problem, with MTL-ELM's at k = {ROUNDS} dotted; below, the paper's accuracies, the root "
            f"mean square distance of all entries from MTL-ELM's, as the geometric mean over {runs} random problems.",
        ),
        claims=claims,
        figures=[_figure(found)],
    )
    return Finding(section, numbers)


def _figure(found: list[Numbers]) -> Figure:
    first = found[0]

    def entries(which: str) -> list[Curve]:
        return [
            Curve(name, SHOWN[:DRAWN], values, COLOURS[name], "-" if name == EXACT else "--", quiet=True)
            for name in METHODS
            for values in np.transpose(first[name][which][:DRAWN])
        ]

    def accuracy(key: str) -> list[Curve]:
        curves = []
        for name in METHODS:
            logs = np.log10(np.maximum([run[name][key] for run in found], 1e-17))
            curves.append(
                Curve(
                    name, SHOWN, 10 ** logs.mean(axis=0), COLOURS[name], "-" if name == EXACT else "--",
                    low=10 ** logs.min(axis=0), high=10 ** logs.max(axis=0),
                )
            )  # fmt: skip
        return curves

    # Five dotted lines would be a thicket: A is shown for every agent, MTL-ELM's A_t as levels without names.
    best_A = [Curve("MTL-ELM", [0, DRAWN - 1], [a, a], "muted", ":", quiet=True) for a in first["optimum"]["A"]]
    evolution = partial(draw_curves, x_label="iteration")
    accuracies = partial(draw_curves, x_label="iteration", x_scale="rounds", y_scale="log")
    return Figure(
        "fig-4",
        "Evolution and accuracy",
        "Bands are the range over all random problems.",
        "Four panels: entry (1, 1) of U and of A for five agents, and the two accuracies, against iterations.",
        panels(
            [
                partial(evolution, curves=entries("U"), y_label="U(1,1)", levels=[("MTL-ELM", first["optimum"]["U"])]),
                partial(evolution, curves=[*best_A, *entries("A")], y_label="A(1,1)"),
                partial(accuracies, curves=accuracy("U_accuracy"), y_label="accuracy of U"),
                partial(accuracies, curves=accuracy("A_accuracy"), y_label="accuracy of A"),
            ]
        ),
    )
