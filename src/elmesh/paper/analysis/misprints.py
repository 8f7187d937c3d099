"""Analysis of the three misprints."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import matplotlib.figure
import numpy as np

from elmesh.paper.analysis.estimates import PACKAGE, Analysis, Estimate, Results, estimate, values
from elmesh.paper.misprints import GAMMAS, METHODS, SIGN_ROUNDS, START_HIDDEN, STARTS
from elmesh.report import STYLES, Curve, Wording, draw_curves, figure

__all__ = ["analyze_misprints"]


def analyze_misprints(results: Results, runs: int) -> Analysis:
    """Compare each misprint with its correction."""
    start, sign, gamma = (results[case] for case in ("start", "sign", "gamma"))
    errors = {(m, name): estimate(start, f"{m}, {name}", "error") for m in METHODS for name in STARTS}
    printed, corrected = (values(sign, name, "objective", -1) for name in ("as printed", "ascent"))
    gaps = {rule: values(gamma, rule, "gap", -1) for rule in GAMMAS}
    wording = Wording(
        PACKAGE, "misprints", runs=runs, hidden=START_HIDDEN, sign_rounds=SIGN_ROUNDS, printed=np.median(printed),
        corrected=np.median(corrected), gap=np.median(gaps["paper"]), largest_gap=max(gaps["paper"]),
        gap_of_one=np.median(gaps["auto"]),
    )  # fmt: skip
    starts = []
    for method in METHODS:
        ones, random, one = (errors[method, name] for name in ("ones", "random", "rank one"))
        broken = [k for k in values(start, f"{method}, ones", "broken") if k is not None]
        when = f", after {np.median(broken):.0f} iterations (median)" if broken else ""
        starts.append(
            wording.text("start", method=method, ones=ones, random=random, one=one, broken=len(broken), when=when)
        )
    names = [f"{method}, {name}" for name in ("ones", "random") for method in METHODS]
    styles = [(color, dash) for color, dash, _ in STYLES]
    drawings = {
        "start": _draw("second singular value / first", names, [start[0][name]["second"] for name in names], styles),
        "sign": _draw(
            "objective", ["as printed", "consistent"], [sign[0][name]["objective"] for name in ("as printed", "ascent")]
        ),
        "gamma": _draw("consensus gap", ["the paper's rule", "gamma = 1"], [gamma[0][rule]["gap"] for rule in GAMMAS]),
    }
    section = wording.section(
        figures=[wording.figure(id, drawing) for id, drawing in drawings.items()], starts=" ".join(starts)
    )
    numbers = {
        "start": {f"{method}, {name}": {"error": e.to_json()} for (method, name), e in errors.items()},
        "sign": {
            "as printed, log10": Estimate.of(np.log10(printed)).to_json(),
            "consistent": Estimate.of(corrected).to_json(),
        },
        "gamma": {rule: Estimate.of(own).to_json() for rule, own in gaps.items()},
    }
    return Analysis(section, numbers)


def _draw(
    y_label: str,
    names: Sequence[str],
    histories: Sequence[Sequence[float]],
    styles: Sequence[tuple[str, str]] = (("magenta", "-"), ("blue", "-")),
) -> matplotlib.figure.Figure:
    """Draw histories of the first run against iterations."""
    curves = [
        Curve(name, np.arange(len(y)), np.maximum(y, 1e-18), *style)
        for name, y, style in zip(names, histories, styles, strict=False)
    ]
    return figure(
        partial(draw_curves, curves=curves, x_label="iteration", y_label=y_label, x_scale="rounds", y_scale="log")
    )
