"""Analysis of Figs. 5 and 6: test error against hidden units and against traffic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from elmesh.paper.analysis.estimates import (
    Analysis,
    Estimate,
    Results,
    combine,
    difference,
    judge,
    judge_below_zero,
    judge_not_above,
    values,
)  # fmt: skip
from elmesh.paper.classification import FIG5_HIDDEN, FIG6_HIDDEN, FIG6_ROUNDS, SPECTRAL_ROUNDS, paper_ratio
from elmesh.paper.protocol import DATASETS
from elmesh.paper.trials import Numbers
from elmesh.report import STYLES, Claim, Curve, Figure, Section, Table, draw_curves, figure, panels
from elmesh.typing import FloatArray

__all__ = ["NEGLIGIBLE", "analyze_fig5", "analyze_fig6"]

ON_HIDDEN = ("Local ELM", "MTL-ELM", "DMTL-ELM", "FO-DMTL-ELM")
ON_INPUTS = ("MTFL", "GO-MTL", "DGSP", "DNSP")
#: A difference of test errors, in points, that counts as negligible.
NEGLIGIBLE = 0.25
# Start, rounds k and hidden units L.
Setting = tuple[str, int, int]
SETTINGS: list[Setting] = [
    *(("random", k, L) for k in FIG6_ROUNDS for L in FIG6_HIDDEN),
    *(("spectral", k, FIG6_HIDDEN[-1]) for k in SPECTRAL_ROUNDS),
]


@dataclass(frozen=True)
class Point:
    """Test errors of DMTL-ELM in one setting, and its traffic relative to DNSP by the formula and in bytes."""

    errors: list[float]
    formula_ratio: float
    byte_ratio: float

    @property
    def error(self) -> Estimate:
        """The estimate of the test error."""
        return Estimate.of(self.errors)


def _fallback_note(case: str) -> list[str]:
    """Return a paragraph if another data set was used instead of USPS."""
    title = DATASETS[case].title
    return [] if case == "usps" else [f"USPS is not available. The results are for {title}, so no claim is judged."]


def analyze_fig5(results: Results, runs: int) -> Analysis:
    """Compare the curves with the text of the paper."""
    ((case, found),) = results.items()
    title = DATASETS[case].title
    errors = {name: _errors(found, name) for name in (*ON_HIDDEN, *ON_INPUTS)}
    curves = {name: [Estimate.of(column) for column in rows.T] for name, rows in errors.items()}
    section = Section(
        "Figure 5: test error and hidden units",
        paragraphs=(
            f"{title}, ten tasks of three digits, 90 training and 45 test rows; the paper's parameters for this figure "
            "(tau = 10 + d, zeta = 30; first order tau = 20 + d), rank 6, 100 iterations, star graph. Means over "
            f"{runs} draws with 95 % intervals. MTFL, GO-MTL, DGSP and DNSP use the inputs and do not depend on L.",
            *_fallback_note(case),
        ),
        claims=_fig5_claims(errors) if case == "usps" else (),
        figures=[_fig5(curves, title)],
        tables=[
            Table(
                "Test error in per cent, mean ± half of a 95 % interval",
                ("", *(f"L = {L}" for L in FIG5_HIDDEN)),
                [[name, *map(str, estimates)] for name, estimates in curves.items()],
            )
        ],
    )
    numbers = {
        name: {f"L={L}": estimate.to_json() for L, estimate in zip(FIG5_HIDDEN, estimates, strict=True)}
        if name in ON_HIDDEN
        else estimates[0].to_json()
        for name, estimates in curves.items()
    }
    return Analysis(section, {"data": title, "error": numbers})


def _errors(runs: Sequence[Numbers], name: str) -> FloatArray:
    """Return the errors of a method: one row per run, one column per number of hidden units."""
    errors = np.array(values(runs, name))
    return errors if name in ON_HIDDEN else np.tile(errors[:, None], len(FIG5_HIDDEN))


def _fig5_claims(errors: dict[str, FloatArray]) -> list[Claim]:
    def gaps(name: str, other: str, least: int = 0) -> dict[int, Estimate]:
        columns = zip(FIG5_HIDDEN, errors[name].T, errors[other].T, strict=True)
        return {L: difference(a, b) for L, a, b in columns if least <= L}

    def listed(estimates: dict[int, Estimate]) -> str:
        return ", ".join(f"{gap.mean:+.2f} at L = {L}" for L, gap in estimates.items())

    claims = []
    for name in ON_HIDDEN[1:]:
        mean = difference(errors[name].mean(axis=1), errors["Local ELM"].mean(axis=1))
        claims.append(
            Claim(
                f"{name} has a lower test error than Local ELM.",
                f"Difference in points: {listed(gaps(name, 'Local ELM'))}; mean {mean.signed}.",
                judge_below_zero(mean),
            )
        )
    for name, least in (("MTL-ELM", 150), ("DMTL-ELM", 150), ("FO-DMTL-ELM", 200)):
        for other in ("MTFL", "DNSP"):
            found = gaps(name, other, least)
            claims.append(
                Claim(
                    f"{name} has a lower test error than {other} for L of at least {least}.",
                    f"Difference in points: {listed(found)}.",
                    combine(map(judge_below_zero, found.values())),
                )
            )
    growth = {name: difference(errors[name][:, -1], errors[name][:, 0]) for name in ON_HIDDEN}
    loss, first_order = gaps("DMTL-ELM", "MTL-ELM")[300], gaps("DMTL-ELM", "FO-DMTL-ELM")[300]
    return [
        *claims,
        Claim(
            "All methods with a hidden layer improve with L.",
            "Change from L = 50 to 300 in points: "
            f"{', '.join(f'{name} {gap.mean:+.2f}' for name, gap in growth.items())}.",
            combine(map(judge_below_zero, growth.values())),
        ),
        Claim(
            "DMTL-ELM loses almost nothing compared with MTL-ELM.",
            f"Difference at L = 300: {loss.signed} points; up to {NEGLIGIBLE} counts as negligible.",
            judge_not_above(loss, NEGLIGIBLE),
        ),
        Claim(
            "FO-DMTL-ELM is worse than DMTL-ELM after the same number of iterations.",
            f"DMTL-ELM minus FO-DMTL-ELM at L = 300: {first_order.signed} points.",
            judge_below_zero(first_order),
        ),
    ]


def _fig5(curves: dict[str, list[Estimate]], title: str) -> Figure:
    def band(name: str, end: str) -> list[float] | None:
        estimates = curves[name]
        return [getattr(e, end) for e in estimates] if name in ON_HIDDEN and estimates[0].runs > 1 else None

    lines = [
        Curve(name, FIG5_HIDDEN, [e.mean for e in estimates], **style, low=band(name, "low"), high=band(name, "high"))
        for (name, estimates), style in zip(curves.items(), STYLES, strict=True)
    ]
    draw = partial(draw_curves, curves=lines, x_label="hidden units L", y_label="test error, %")
    return Figure(
        "fig-5",
        f"Test error on {title}",
        "Bands are 95 % intervals of the mean over draws. The table contains the intervals of all methods.",
        "Eight curves of test error against the number of hidden units.",
        figure(draw, size=(7.5, 5.2)),
    )


def analyze_fig6(results: Results, runs: int) -> Analysis:
    """Compare the points with the text of the paper."""
    ((case, found),) = results.items()
    data = DATASETS[case]
    points = {setting: _point(found, setting, data.components) for setting in SETTINGS}
    dnsp = values(found, "DNSP", "error")
    rows = [["DNSP", str(Estimate.of(dnsp)), "1", "1"]]
    for (init, k, L), p in points.items():
        name = f"{init} start, k = {k}, L = {L}"
        rows.append([name, str(p.error), f"{p.formula_ratio:.1f}", f"{p.byte_ratio:.1f}"])
    first, last = points["spectral", SPECTRAL_ROUNDS[0], 300], points["random", FIG6_ROUNDS[-1], 300]
    section = Section(
        "Figure 6: test error and communication",
        paragraphs=(
            f"{data.title}, star graph, the parameters of Fig. 5. DMTL-ELM runs for k rounds with L hidden units. Its "
            "traffic is compared with that of DNSP, by the paper's formula 2kL / ((r + 1)n) and in bytes on the wire, "
            "including the start.",
            f"Not in the paper: the spectral start. After {SPECTRAL_ROUNDS[0]} round with L = 300 the error is "
            f"{first.error} % with {first.byte_ratio:.1f} times the bytes of DNSP, including the start. "
            f"{FIG6_ROUNDS[-1]} rounds from a random start give {last.error} % with {last.byte_ratio:.0f} times the "
            "bytes.",
            *_fallback_note(case),
        ),
        claims=_fig6_claims(points, dnsp) if case == "usps" else (),
        figures=[_fig6(points, Estimate.of(dnsp).mean)],
        tables=[
            Table(
                f"DMTL-ELM, {runs} draws",
                ("", "test error, %", "ratio by formula", "ratio in bytes"),
                rows,
                note="Bytes differ from the formula because the messages of DNSP contain one column per class, and "
                "because of the start.",
            )
        ],
    )
    numbers = {
        "data": data.title,
        "DNSP": {"error": Estimate.of(dnsp).to_json(), "bytes": found[0]["DNSP"]["bytes"]},
        "DMTL-ELM": [
            {
                "start": init, "rounds": k, "hidden": L, "error": point.error.to_json(),
                "ratio_by_formula": point.formula_ratio, "ratio_in_bytes": point.byte_ratio,
            }
            for (init, k, L), point in points.items()
        ],
    }  # fmt: skip
    return Analysis(section, numbers)


def _point(runs: Sequence[Numbers], setting: Setting, n_inputs: int) -> Point:
    init, k, L = setting
    cells = values(runs, init, f"{L}", f"{k}")
    return Point(values(cells, "error"), paper_ratio(k, L, n_inputs), cells[0]["bytes"] / runs[0]["DNSP"]["bytes"])


def _fig6_claims(points: dict[Setting, Point], dnsp: list[float]) -> list[Claim]:
    def gap(k: int, L: int, other: list[float]) -> Estimate:
        return difference(points["random", k, L].errors, other)

    random = [point for (init, _, _), point in points.items() if init == "random"]
    ratios, formula = [point.byte_ratio for point in random], [point.formula_ratio for point in random]
    few = {L: gap(25, L, dnsp) for L in FIG6_HIDDEN}
    cheaper = gap(50, 300, points["random", 100, 200].errors)
    longer, wider = (gap(100, 300, points["random", k, L].errors) for k, L in ((25, 300), (100, 100)))
    return [
        Claim(
            "DNSP sends less than DMTL-ELM in every setting: the ratio is above 1.",
            f"By the paper's formula {min(formula):.0f} to {max(formula):.0f} times, in bytes {min(ratios):.0f} to "
            f"{max(ratios):.0f} times.",
            judge(min(ratios) > 1),
        ),
        Claim(
            "With k = 25 DMTL-ELM is not as good as DNSP for any L.",
            f"DMTL-ELM minus DNSP ({Estimate.of(dnsp)}): "
            + ", ".join(f"{estimate.mean:+.2f} at L = {L}" for L, estimate in few.items())
            + " points.",
            combine(judge_below_zero(difference(dnsp, points["random", 25, L].errors)) for L in FIG6_HIDDEN),
        ),
        *(
            Claim(
                f"With k = {k} and enough hidden units DMTL-ELM is better than DNSP.",
                f"With L = 300: {points['random', k, 300].error} %, {gap(k, 300, dnsp).signed} points.",
                judge_below_zero(gap(k, 300, dnsp)),
            )
            for k in (50, 100)
        ),
        Claim(
            "More rounds and more hidden units cost more and give a smaller error: a trade-off.",
            f"From k = 25 to 100 at L = 300 {longer.signed} points, from L = 100 to 300 at k = 100 {wider.signed}.",
            combine([judge_below_zero(longer), judge_below_zero(wider)]),
        ),
        Claim(
            "DMTL-ELM sends 2kL / ((r + 1)n) times as much as DNSP.",
            f"In bytes it is {np.median(np.divide(ratios, formula)):.2f} times that (median): each task sends one "
            "column per class to the hub of DNSP, and U is sent in both directions.",
            judge(np.allclose(ratios, formula, rtol=0.1)),
        ),
        Claim(
            "k = 50 with L = 300 is better than “k = 50 with L = 200”, at smaller cost. (This must be a misprint, "
            "because at the same k the cost grows with L. It is interpreted as k = 100 with L = 200.)",
            f"k = 50, L = 300 sends {50 * 300 / (100 * 200):.2f} of the data of k = 100, L = 200; its error is "
            f"{cheaper.signed} points.",
            judge_below_zero(cheaper),
        ),
    ]


def _fig6(points: dict[Setting, Point], dnsp: float) -> Figure:
    groups = {f"k = {k}": [points["random", k, L] for L in FIG6_HIDDEN] for k in FIG6_ROUNDS}
    groups["spectral"] = [points["spectral", k, 300] for k in SPECTRAL_ROUNDS]

    def plot(ratio: str, label: str) -> partial[None]:
        curves = [
            Curve(name, [getattr(p, ratio) for p in group], [p.error.mean for p in group], **style)
            for (name, group), style in zip(groups.items(), STYLES, strict=False)
        ]
        return partial(
            draw_curves, curves=curves, x_label=label, y_label="test error, %", x_scale="log", levels=[("DNSP", dnsp)]
        )

    return Figure(
        "fig-6",
        "Test error against traffic, as a multiple of that of DNSP",
        "The points of a curve are L = 100, 150, 200, 250, 300 from a random start, and k = 1, 2, 5, 10, 25 at L = 300 "
        "after the spectral start, whose messages count in bytes but not in the formula.",
        "Two panels of test error against the traffic relative to DNSP: by formula and in bytes.",
        panels([plot("formula_ratio", "ratio by the paper's formula"), plot("byte_ratio", "ratio of bytes sent")]),
    )
