"""Analysis of the three misprints."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from elmesh.paper.analysis.estimates import Analysis, Estimate, Results, values
from elmesh.paper.misprints import GAMMAS, METHODS, SIGN_ROUNDS, START_HIDDEN, STARTS
from elmesh.paper.trials import Numbers
from elmesh.report import STYLES, Curve, Figure, Section, draw_curves, figure

__all__ = ["analyze_misprints"]


def analyze_misprints(results: Results, runs: int) -> Analysis:
    """Compare each misprint with its correction."""
    start, sign, gamma = (results[case] for case in ("start", "sign", "gamma"))
    names = [f"{method}, {name}" for method in METHODS for name in STARTS]
    errors = {name: Estimate.of(values(start, name, "error")) for name in names}
    printed, corrected = ([run[name]["objective"][-1] for run in sign] for name in ("as printed", "ascent"))
    gaps = {rule: [run[rule]["gap"][-1] for run in gamma] for rule in GAMMAS}
    section = Section(
        "Three misprints",
        paragraphs=(
            "What does not work as printed, or only by rounding errors, and its effect. All other sections use the "
            "corrected form, with the paper's rule for gamma in the paper's own experiments.",
        ),
        terms=[
            ("The start: U and A of ones", _describe_start(start, errors)),
            (
                "The sign: lambda - rho gamma CU, where (13) and (18) to (23) have + lambda'CU",
                f"Together they push neighbours apart: after {SIGN_ROUNDS} rounds the objective is "
                f"{np.median(printed):.0e} (median), compared with {np.median(corrected):.2f} with consistent signs.",
            ),
            (
                "The rule: gamma = min(1, delta |C dU|^2 / |CU|^2)",
                "gamma goes to zero when U slows down before neighbours agree: after 1000 rounds their relative "
                f"distance is {np.median(gaps['paper']):.0e} (median, at most {max(gaps['paper']):.0e}), compared with "
                f"{np.median(gaps['auto']):.0e} with gamma = 1, which is the default of this package.",
            ),
        ],
        figures=_figures(start[0], sign[0], gamma[0]),
    )
    numbers = {
        "start": {name: {"error": estimate.to_json()} for name, estimate in errors.items()},
        "sign": {
            "as printed, log10": Estimate.of(np.log10(printed)).to_json(),
            "consistent": Estimate.of(corrected).to_json(),
        },
        "gamma": {rule: Estimate.of(own).to_json() for rule, own in gaps.items()},
    }
    return Analysis(section, numbers)


def _describe_start(start: Sequence[Numbers], errors: dict[str, Estimate]) -> str:
    sentences = []
    for method in METHODS:
        ones, random, one = (errors[f"{method}, {name}"] for name in ("ones", "random", "rank one"))
        broken = [k for k in values(start, f"{method}, ones", "broken") if k is not None]
        when = f", after {np.median(broken):.0f} iterations (median)" if broken else ""
        sentences.append(
            f"The error of {method} is {ones} % from ones, {random} % from a random start and {one} % at rank one; the "
            f"columns became different in {len(broken)} of {len(start)} runs{when}."
        )
    return (
        "In exact arithmetic all columns of U have the same update in every iteration, so U has rank one for any r. On "
        "a computer rounding errors make the columns different if the problem has more than one direction, and the run "
        "recovers. If it has only one, as in Figs. 3 and 4, the columns stay the same and nothing is lost. On the "
        f"bundled digits with L = {START_HIDDEN} and 100 iterations: {' '.join(sentences)} A start that depends on "
        "rounding errors is not reliable. In this package U starts from a seeded random block or the spectral start."
    )


def _figures(start: Numbers, sign: Numbers, gamma: Numbers) -> list[Figure]:
    def curve(label: str, y: Sequence[float], color: str, dash: str = "-") -> Curve:
        return Curve(label, np.arange(len(y)), np.maximum(y, 1e-18), color, dash)

    names = [f"{method}, {name}" for name in ("ones", "random") for method in METHODS]
    starts = [
        curve(name, start[name]["second"], style["color"], style["dash"])
        for name, style in zip(names, STYLES, strict=False)
    ]
    signs = [
        curve("as printed", sign["as printed"]["objective"], "magenta"),
        curve("consistent", sign["ascent"]["objective"], "blue"),
    ]
    rules = [
        curve("the paper's rule", gamma["paper"]["gap"], "magenta"),
        curve("gamma = 1", gamma["auto"]["gap"], "blue"),
    ]
    draw = partial(draw_curves, x_label="iteration", x_scale="rounds", y_scale="log")
    return [
        Figure(
            "fig-start", "The start",
            "Second singular value of U relative to the first. From ones it is rounding error at first.",
            "Curves of the second singular value of U against iterations, from ones and from a random start.",
            figure(partial(draw, curves=starts, y_label="second singular value / first")),
        ),
        Figure(
            "fig-sign", "The sign", "Algorithm 2 with the printed minus and with a plus.",
            "Two curves of the objective against iterations; the printed one leaves through the top.",
            figure(partial(draw, curves=signs, y_label="objective")),
        ),
        Figure(
            "fig-gamma", "The rule for gamma", "Distance between agents, relative to their mean.",
            "Two curves of the consensus gap against iterations; the one of the paper's rule stops falling.",
            figure(partial(draw, curves=rules, y_label="consensus gap")),
        ),
    ]  # fmt: skip
