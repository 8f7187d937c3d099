"""Analysis of Figs. 5 and 6: test error against hidden units and against traffic."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np

from elmesh.paper.analysis.estimates import PACKAGE, Analysis, Estimate, Results, difference, values
from elmesh.paper.analysis.verdicts import NEGLIGIBLE, combine, judge, judge_below_zero, judge_not_above
from elmesh.paper.classification import FIG5_HIDDEN, FIG6_HIDDEN, FIG6_ROUNDS, SPECTRAL_ROUNDS, paper_ratio
from elmesh.paper.protocol import DATASETS
from elmesh.report import STYLES, Claim, Curve, Wording, draw_curves, figure
from elmesh.typing import FloatArray

__all__ = ["analyze_fig5", "analyze_fig6"]

ON_HIDDEN = ("Local ELM", "MTL-ELM", "DMTL-ELM", "FO-DMTL-ELM")
ON_INPUTS = ("MTFL", "GO-MTL", "DGSP", "DNSP")
# The widest layer of both figures.
WIDEST = FIG6_HIDDEN[-1]
# Start, rounds k and hidden units L.
Setting = tuple[str, int, int]
SETTINGS: list[Setting] = [
    *(("random", k, L) for k in FIG6_ROUNDS for L in FIG6_HIDDEN),
    *(("spectral", k, WIDEST) for k in SPECTRAL_ROUNDS),
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


def _fallback_note(case: str, wording: Wording) -> list[str]:
    """Return a paragraph if another data set was used instead of USPS."""
    return [] if case == "usps" else [wording.text("fallback")]


def _list_gaps(gaps: Mapping[int, Estimate]) -> str:
    return ", ".join(f"{gap.mean:+.2f} at L = {L}" for L, gap in gaps.items())


def analyze_fig5(results: Results, runs: int) -> Analysis:
    """Compare the curves with the text of the paper."""
    ((case, found),) = results.items()
    data = DATASETS[case].title
    # One row per run, one column per number of hidden units.
    errors = {name: np.array(values(found, name)) for name in ON_HIDDEN}
    errors |= {name: np.tile(np.array(values(found, name))[:, None], len(FIG5_HIDDEN)) for name in ON_INPUTS}
    curves = {name: [Estimate.of(column) for column in rows.T] for name, rows in errors.items()}
    lines = []
    for (name, own), style in zip(curves.items(), STYLES, strict=True):
        band = ([e.low for e in own], [e.high for e in own]) if name in ON_HIDDEN and runs > 1 else None
        lines.append(Curve(name, FIG5_HIDDEN, [e.mean for e in own], *style, band=band))
    draw = partial(draw_curves, curves=lines, x_label="hidden units L", y_label="test error, %")
    wording = Wording(PACKAGE, "fig5", data=data, runs=runs, negligible=NEGLIGIBLE)
    section = wording.section(
        _fallback_note(case, wording),
        claims=_fig5_claims(errors, wording) if case == "usps" else (),
        figures=[wording.figure("5", figure(draw, size=(7.5, 5.2)))],
        tables=[wording.table("errors", [[name, *map(str, own)] for name, own in curves.items()])],
    )
    numbers = {
        name: {f"L={L}": e.to_json() for L, e in zip(FIG5_HIDDEN, own, strict=True)}
        if name in ON_HIDDEN
        else own[0].to_json()
        for name, own in curves.items()
    }
    return Analysis(section, {"data": data, "error": numbers})


def _fig5_claims(errors: dict[str, FloatArray], wording: Wording) -> list[Claim]:
    def gaps(name: str, other: str, least: int = 0) -> dict[int, Estimate]:
        columns = zip(FIG5_HIDDEN, errors[name].T, errors[other].T, strict=True)
        return {L: difference(a, b) for L, a, b in columns if least <= L}

    claims = []
    for name in ON_HIDDEN[1:]:
        mean = difference(errors[name].mean(axis=1), errors["Local ELM"].mean(axis=1))
        listed = _list_gaps(gaps(name, "Local ELM"))
        claims.append(wording.claim("local", judge_below_zero(mean), name=name, gaps=listed, mean=mean))
    for name, least in (("MTL-ELM", 150), ("DMTL-ELM", 150), ("FO-DMTL-ELM", 200)):
        for other in ("MTFL", "DNSP"):
            found = gaps(name, other, least)
            verdict = combine(map(judge_below_zero, found.values()))
            claims.append(wording.claim("rival", verdict, name=name, other=other, least=least, gaps=_list_gaps(found)))
    growth = {name: difference(errors[name][:, -1], errors[name][:, 0]) for name in ON_HIDDEN}
    changes = ", ".join(f"{name} {gap.mean:+.2f}" for name, gap in growth.items())
    loss, first_order = (gaps("DMTL-ELM", other)[WIDEST] for other in ("MTL-ELM", "FO-DMTL-ELM"))
    return [
        *claims,
        wording.claim("growth", combine(map(judge_below_zero, growth.values())), changes=changes),
        wording.claim("loss", judge_not_above(loss, NEGLIGIBLE), gap=loss),
        wording.claim("first_order", judge_below_zero(first_order), gap=first_order),
    ]


def analyze_fig6(results: Results, runs: int) -> Analysis:
    """Compare the points with the text of the paper."""
    ((case, found),) = results.items()
    data, points = DATASETS[case], {}
    for init, k, L in SETTINGS:
        cells = values(found, init, f"{L}", f"{k}")
        ratios = paper_ratio(k, L, data.components), cells[0]["bytes"] / found[0]["DNSP"]["bytes"]
        points[init, k, L] = Point(values(cells, "error"), *ratios)
    errors = values(found, "DNSP", "error")
    dnsp = Estimate.of(errors)
    rows = [["DNSP", str(dnsp), "1", "1"]]
    for (init, k, L), p in points.items():
        name = f"{init} start, k = {k}, L = {L}"
        rows.append([name, str(p.error), f"{p.formula_ratio:.1f}", f"{p.byte_ratio:.1f}"])
    first, last = points["spectral", SPECTRAL_ROUNDS[0], WIDEST], points["random", FIG6_ROUNDS[-1], WIDEST]
    wording = Wording(PACKAGE, "fig6", data=data.title, runs=runs, dnsp=dnsp, spectral=first, random=last)
    plots = [
        _draw_points(points, dnsp.mean, "formula_ratio", "ratio by the paper's formula"),
        _draw_points(points, dnsp.mean, "byte_ratio", "ratio of bytes sent"),
    ]
    section = wording.section(
        _fallback_note(case, wording),
        claims=_fig6_claims(points, errors, wording) if case == "usps" else (),
        figures=[wording.figure("6", figure(*plots))],
        tables=[wording.table("points", rows)],
    )
    numbers = {
        "data": data.title,
        "DNSP": {"error": dnsp.to_json(), "bytes": found[0]["DNSP"]["bytes"]},
        "DMTL-ELM": [
            {
                "start": init, "rounds": k, "hidden": L, "error": point.error.to_json(),
                "ratio_by_formula": point.formula_ratio, "ratio_in_bytes": point.byte_ratio,
            }
            for (init, k, L), point in points.items()
        ],
    }  # fmt: skip
    return Analysis(section, numbers)


def _fig6_claims(points: dict[Setting, Point], dnsp: list[float], wording: Wording) -> list[Claim]:
    errors = {(k, L): point.errors for (init, k, L), point in points.items() if init == "random"}
    random = [points["random", k, L] for k, L in errors]
    sent, formula = [point.byte_ratio for point in random], [point.formula_ratio for point in random]
    few = {L: difference(errors[25, L], dnsp) for L in FIG6_HIDDEN}
    more = [judge_below_zero(difference(dnsp, errors[25, L])) for L in FIG6_HIDDEN]
    enough = {k: difference(errors[k, 300], dnsp) for k in (50, 100)}
    longer, wider = (difference(errors[100, 300], errors[setting]) for setting in ((25, 300), (100, 100)))
    cheaper = difference(errors[50, 300], errors[100, 200])
    ends = {"formula": (min(formula), max(formula)), "sent": (min(sent), max(sent))}
    claim, same = wording.claim, judge(np.allclose(sent, formula, rtol=0.1))
    return [
        claim("above_one", judge(min(sent) > 1), **ends),
        claim("few_rounds", combine(more), gaps=_list_gaps(few)),
        *(
            claim("enough", judge_below_zero(gap), k=k, error=points["random", k, 300].error, gap=gap)
            for k, gap in enough.items()
        ),
        claim("trade_off", combine(map(judge_below_zero, (longer, wider))), longer=longer, wider=wider),
        claim("formula", same, median=np.median(np.divide(sent, formula))),
        claim("cheaper", judge_below_zero(cheaper), gap=cheaper),
    ]


def _draw_points(points: dict[Setting, Point], dnsp: float, ratio: str, label: str) -> partial[None]:
    groups = {f"k = {k}": [points["random", k, L] for L in FIG6_HIDDEN] for k in FIG6_ROUNDS}
    groups["spectral"] = [points["spectral", k, WIDEST] for k in SPECTRAL_ROUNDS]
    curves = [
        Curve(name, [getattr(p, ratio) for p in group], [p.error.mean for p in group], *style)
        for (name, group), style in zip(groups.items(), STYLES, strict=False)
    ]
    levels = [("DNSP", dnsp)]
    return partial(draw_curves, curves=curves, x_label=label, y_label="test error, %", x_scale="log", levels=levels)
