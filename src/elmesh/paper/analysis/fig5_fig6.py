"""Analysis of Figs. 5 and 6: test error against hidden units and against traffic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from elmesh.paper.analysis.estimates import (
    PACKAGE,
    Analysis,
    Estimate,
    Results,
    at_once,
    beside,
    by_dataset,
    difference,
    values,
)
from elmesh.paper.analysis.verdicts import NEGLIGIBLE, combine, judge, judge_below_zero, judge_not_above
from elmesh.paper.classification import FIG5_HIDDEN, FIG6_HIDDEN, FIG6_ROUNDS, SPECTRAL_ROUNDS, paper_ratio
from elmesh.paper.protocol import DATASETS
from elmesh.report import STYLES, Claim, Curve, Wording, draw_curves, figure
from elmesh.typing import FloatArray

__all__ = ["analyze_fig5", "analyze_fig6"]

ON_HIDDEN = ("Local ELM", "MTL-ELM", "DMTL-ELM", "FO-DMTL-ELM")
ON_INPUTS = ("MTFL", "GO-MTL", "DGSP", "DNSP")
CHOSEN = tuple(f"{name}, chosen" for name in ON_INPUTS)
# The widest layer of both figures.
WIDEST = FIG6_HIDDEN[-1]
# Traffic within this share of the paper's formula counts as equal to it.
SAME_TRAFFIC = 0.1
# Start, rounds k and hidden units L.
Setting = tuple[str, int, int]
SETTINGS: list[Setting] = [
    *(("random", k, L) for k in FIG6_ROUNDS for L in FIG6_HIDDEN),
    *(("spectral", k, WIDEST) for k in SPECTRAL_ROUNDS),
]


@dataclass(frozen=True)
class Point:
    """Test errors of DMTL-ELM in one setting, and its traffic relative to DNSP.

    Traffic is counted by the formula, in bytes of messages of the method, and in all bytes.
    """

    errors: list[float]
    formula_ratio: float
    byte_ratio: float
    whole_ratio: float

    @property
    def error(self) -> Estimate:
        """The estimate of the test error."""
        return Estimate.of(self.errors)


def _judge(case: str, claims: Mapping[str, Sequence[Claim]], wording: Wording) -> tuple[list[Claim], list[str]]:
    """Return the claims and a count of their verdicts, or no claim if another data set was used instead of USPS."""
    if case != "usps":
        return [], [wording.text("fallback")]
    judged, counts = beside(claims)
    return judged, [wording.text("beside", n=len(judged), counts=counts)] if counts else []


def _list_gaps(gaps: Mapping[int, Estimate]) -> str:
    return ", ".join(f"{gap.signed} at L = {L}" for L, gap in gaps.items())


def analyze_fig5(results: Results, runs: int) -> Analysis:
    """Compare the curves with the text of the paper."""
    ((case, found),) = by_dataset(results).items()
    data = DATASETS[case].title
    wording = Wording(PACKAGE, "fig5", data=data, runs=runs, negligible=NEGLIGIBLE)
    claims, tables, numbers, draws = {}, [], {}, []
    for protocol, own in found.items():
        # One row per run, one column per number of hidden units; methods on the inputs have one column.
        errors = {name: np.array(values(own, name)) for name in ON_HIDDEN}
        single = {name: np.array(values(own, name)) for name in (*ON_INPUTS, *CHOSEN)}
        columns = errors | {name: column[:, None] for name, column in single.items()}
        cells = {(name, i): Estimate.of(column) for name, rows in columns.items() for i, column in enumerate(rows.T)}
        cells = at_once(cells, len(found))
        sizes = range(len(FIG5_HIDDEN))
        curves = {name: [cells[name, i if name in ON_HIDDEN else 0] for i in sizes] for name in columns}
        lines = []
        shown = {name: curve for name, curve in curves.items() if name not in CHOSEN}
        for (name, curve), style in zip(shown.items(), STYLES, strict=True):
            band = ([e.low for e in curve], [e.high for e in curve]) if name in ON_HIDDEN and runs > 1 else None
            lines.append(Curve(name, FIG5_HIDDEN, [e.mean for e in curve], *style, band=band))
        draw = partial(draw_curves, x_label="hidden units L", y_label="test error, %", title=protocol)
        draws.append(partial(draw, curves=lines))
        claims[protocol] = _fig5_claims(errors, single, wording, len(found))
        table = [[name, *map(str, curve)] for name, curve in curves.items()]
        tables.append(wording.table("errors", table, protocol=protocol, n=len(cells) * len(found)))
        numbers[protocol] = {
            name: {f"L={L}": e.to_json() for L, e in zip(FIG5_HIDDEN, curve, strict=True)}
            if name in ON_HIDDEN
            else curve[0].to_json()
            for name, curve in curves.items()
        }
    judged, notes = _judge(case, claims, wording)
    drawing = figure(*draws, size=(7.5, 5.2))
    section = wording.section(notes, claims=judged, figures=[wording.figure("5", drawing)], tables=tables)
    return Analysis(section, {"data": data, "error": numbers})


def _fig5_claims(
    errors: dict[str, FloatArray], single: dict[str, FloatArray], wording: Wording, n_protocols: int
) -> list[Claim]:
    sizes = {L: column for column, L in enumerate(FIG5_HIDDEN)}
    to_local = at_once(
        {
            (name, L): difference(errors[name][:, column], errors["Local ELM"][:, column])
            for name in ON_HIDDEN[1:]
            for L, column in sizes.items()
        },
        n_protocols,
    )
    claims = []
    for name in ON_HIDDEN[1:]:
        found = {L: to_local[name, L] for L in sizes}
        verdict = combine(map(judge_below_zero, found.values()))
        texts = {"name": name, "gaps": _list_gaps(found), "n": n_protocols * len(to_local)}
        claims.append(wording.claim("local", verdict, **texts))
    gaps = at_once(
        {
            (name, other, least, L): difference(errors[name][:, sizes[L]], single[other])
            for name, least in (("MTL-ELM", 150), ("DMTL-ELM", 150), ("FO-DMTL-ELM", 200))
            for other in ("MTFL", "DNSP", "MTFL, chosen", "DNSP, chosen")
            for L in FIG5_HIDDEN
            if least <= L
        },
        n_protocols,
    )
    for name, other, least in dict.fromkeys(key[:3] for key in gaps):
        if other in CHOSEN:
            continue
        found, full = (
            {L: gap for (*same, L), gap in gaps.items() if same == [name, rival, least]}
            for rival in (other, f"{other}, chosen")
        )
        verdict = combine(map(judge_below_zero, (*found.values(), *full.values())))
        texts = {"name": name, "other": other, "least": least, "n": n_protocols * len(gaps)}
        claims.append(wording.claim("rival", verdict, gaps=_list_gaps(found), full=_list_gaps(full), **texts))
    growth = at_once({name: difference(errors[name][:, -1], errors[name][:, 0]) for name in ON_HIDDEN}, n_protocols)
    changes = ", ".join(f"{name} {gap.signed}" for name, gap in growth.items())
    last = at_once(
        {other: difference(errors["DMTL-ELM"][:, -1], errors[other][:, -1]) for other in ("MTL-ELM", "FO-DMTL-ELM")},
        n_protocols,
    )
    loss, first_order = last.values()
    verdict = combine(map(judge_below_zero, growth.values()))
    return [
        *claims,
        wording.claim("growth", verdict, changes=changes, n=n_protocols * len(growth)),
        wording.claim("loss", judge_not_above(loss, NEGLIGIBLE), gap=loss),
        wording.claim("first_order", judge_below_zero(first_order), gap=first_order),
    ]


def analyze_fig6(results: Results, runs: int) -> Analysis:
    """Compare the points with the text of the paper."""
    ((case, found),) = by_dataset(results).items()
    data = DATASETS[case]
    points: dict[str, dict[Setting, Point]] = {protocol: {} for protocol in found}
    for protocol, own in found.items():
        for init, k, L in SETTINGS:
            cells = values(own, init, f"{L}", f"{k}")
            formula, sent = paper_ratio(k, L, data.components), own[0]["DNSP"]
            ratios = (cells[0][account] / sent[account] for account in ("bytes", "all_bytes"))
            points[protocol][init, k, L] = Point(values(cells, "error"), formula, *ratios)
    dnsp = {protocol: values(own, "DNSP", "error") for protocol, own in found.items()}
    errors: dict[tuple[str, Setting | None], Estimate] = {(p, None): Estimate.of(dnsp[p]) for p in found}
    errors |= {(p, setting): point.error for p in found for setting, point in points[p].items()}
    errors = at_once(errors)
    (first, top), *_ = points.items()
    rows = [["DNSP", *(str(errors[p, None]) for p in found), "1", "1", "1"]]
    for (init, k, L), point in top.items():
        name = f"{init} start, k = {k}, L = {L}"
        own_errors = (str(errors[p, (init, k, L)]) for p in found)
        traffic = (point.formula_ratio, point.byte_ratio, point.whole_ratio)
        rows.append([name, *own_errors, *(f"{ratio:.1f}" for ratio in traffic)])
    spectral, random = ("spectral", SPECTRAL_ROUNDS[0], WIDEST), ("random", FIG6_ROUNDS[-1], WIDEST)
    wording = Wording(
        PACKAGE, "fig6", data=data.title, runs=runs, same=SAME_TRAFFIC, first=first, n=len(errors),
        spectral=top[spectral], spectral_error=errors[first, spectral], random=top[random],
        random_error=errors[first, random],
    )  # fmt: skip
    plots = [
        _draw_points(own, float(np.mean(dnsp[p])), ratio, label, p)
        for p, own in points.items()
        for ratio, label in (("formula_ratio", "ratio by the paper's formula"), ("byte_ratio", "ratio of bytes sent"))
    ]
    claims = {p: _fig6_claims(own, dnsp[p], wording, len(found)) for p, own in points.items()}
    judged, notes = _judge(case, claims, wording)
    table = wording.table("points", rows)
    section = wording.section(
        notes,
        claims=judged,
        figures=[wording.figure("6", figure(*plots))],
        tables=[replace(table, columns=["", *(f"{p}, error in %" for p in found), *table.columns[1:]])],
    )
    numbers = {
        "data": data.title,
        "DNSP": {
            p: {"error": Estimate.of(dnsp[p]).to_json(), **{k: found[p][0]["DNSP"][k] for k in ("bytes", "all_bytes")}}
            for p in found
        },
        "DMTL-ELM": [
            {
                "protocol": p, "start": init, "rounds": k, "hidden": L, "error": point.error.to_json(),
                "ratio_by_formula": point.formula_ratio, "ratio_in_bytes": point.byte_ratio,
                "ratio_in_all_bytes": point.whole_ratio,
            }
            for p, own in points.items()
            for (init, k, L), point in own.items()
        ],
    }  # fmt: skip
    return Analysis(section, numbers)


def _fig6_claims(points: dict[Setting, Point], dnsp: list[float], wording: Wording, n_protocols: int) -> list[Claim]:
    errors = {(k, L): point.errors for (init, k, L), point in points.items() if init == "random"}
    random = [points["random", k, L] for k, L in errors]
    sent, whole, formula = ([getattr(p, f"{by}_ratio") for p in random] for by in ("byte", "whole", "formula"))
    few = at_once({L: difference(errors[25, L], dnsp) for L in FIG6_HIDDEN}, n_protocols)
    worse = [judge_below_zero(replace(gap, mean=-gap.mean)) for gap in few.values()]
    enough = at_once({k: difference(errors[k, 300], dnsp) for k in (50, 100)}, n_protocols)
    changes = {setting: difference(errors[100, 300], errors[setting]) for setting in ((25, 300), (100, 100))}
    longer, wider = at_once(changes, n_protocols).values()
    cheaper = replace(difference(errors[50, 300], errors[100, 200]), at_once=n_protocols)
    ends = {"formula": (min(formula), max(formula)), "sent": (min(sent), max(sent)), "whole": (min(whole), max(whole))}
    claim, same = wording.claim, judge(np.allclose(sent, formula, rtol=SAME_TRAFFIC))
    return [
        claim("above_one", judge(min(sent) > 1), **ends),
        claim("few_rounds", combine(worse), gaps=_list_gaps(few), dnsp=np.mean(dnsp), n=n_protocols * len(few)),
        *(
            claim("enough", judge_below_zero(gap), k=k, error=np.mean(errors[k, 300]), gap=gap)
            for k, gap in enough.items()
        ),
        claim("trade_off", combine(map(judge_below_zero, (longer, wider))), longer=longer, wider=wider),
        claim("formula", same, median=np.median(np.divide(sent, formula)), whole=np.median(np.divide(whole, formula))),
        claim("cheaper", judge_below_zero(cheaper), gap=cheaper),
    ]


def _draw_points(points: dict[Setting, Point], dnsp: float, ratio: str, label: str, title: str) -> partial[None]:
    groups = {f"k = {k}": [points["random", k, L] for L in FIG6_HIDDEN] for k in FIG6_ROUNDS}
    groups["spectral"] = [points["spectral", k, WIDEST] for k in SPECTRAL_ROUNDS]
    curves = [
        Curve(name, [getattr(p, ratio) for p in group], [p.error.mean for p in group], *style)
        for (name, group), style in zip(groups.items(), STYLES, strict=False)
    ]
    levels = [("DNSP", dnsp)]
    draw = partial(draw_curves, x_label=label, y_label="test error, %", x_scale="log", title=title)
    return partial(draw, curves=curves, levels=levels)
