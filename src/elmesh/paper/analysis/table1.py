"""Analysis of Table 1, of the variants of the protocol, and of the parameters chosen by cross-validation."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from elmesh.paper import classification
from elmesh.paper.analysis.estimates import (
    PACKAGE,
    Analysis,
    Estimate,
    Results,
    at_once,
    beside,
    by_dataset,
    difference,
    estimate,
    values,
)
from elmesh.paper.analysis.verdicts import NEGLIGIBLE, combine, judge_below_zero, judge_not_above, judge_zero
from elmesh.paper.classification import GRIDS, PROPOSED, VARIANT_METHODS, format_parameters
from elmesh.paper.methods import RIVALS, tuned_parameters
from elmesh.paper.protocol import DATASETS, IMAGES, parse_case
from elmesh.report import Claim, Table, Verdict, Wording
from elmesh.trial_log import Numbers

__all__ = [
    "OTHERS", "PRINTED", "TOLERANCE", "analyze_table1", "analyze_tuning", "analyze_variants", "distance_from_printed",
]  # fmt: skip


@dataclass(frozen=True)
class Cell:
    """Test error in per cent and seconds of a method in the paper's table."""

    error: float
    seconds: float


#: Table 1 of the paper.
PRINTED: dict[str, dict[str, Cell]] = {
    "usps": {
        "Local ELM": Cell(4.26, 0.009), "MTFL": Cell(4.67, 0.10), "GO-MTL": Cell(6.30, 7.52),
        "MTL-ELM": Cell(3.49, 226.1), "DGSP": Cell(5.05, 0.03), "DNSP": Cell(4.47, 0.04),
        "DMTL-ELM": Cell(3.54, 184.2), "FO-DMTL-ELM": Cell(3.89, 22.5),
    },
    "mnist": {
        "Local ELM": Cell(6.58, 0.004), "MTFL": Cell(6.84, 0.20), "GO-MTL": Cell(9.76, 8.10),
        "MTL-ELM": Cell(5.90, 244.2), "DGSP": Cell(7.9, 0.04), "DNSP": Cell(7.35, 0.07),
        "DMTL-ELM": Cell(5.96, 192.6), "FO-DMTL-ELM": Cell(6.20, 19.7),
    },
}  # fmt: skip
OTHERS = ("Local ELM", *RIVALS)
#: The end of the names of methods with parameters chosen by cross-validation.
CHOSEN = ", chosen"
#: Runs that a printed error is the mean of.
PRINTED_RUNS = 100
#: The interval of the difference from a printed error must end within this distance of 0, in points.
TOLERANCE = 0.8
#: FO-DMTL-ELM counts as much faster if it takes at most this share of the others' time.
MUCH_FASTER = 0.5
#: An objective counts as converged up to this multiple of that of MTL-ELM.
CONVERGED = 1.01


def analyze_table1(results: Results, runs: int) -> Analysis:
    """Compare errors and times with those of the paper."""
    limits = {"tolerance": TOLERANCE, "negligible": NEGLIGIBLE, "faster": MUCH_FASTER, "converged": CONVERGED}
    timed = {"formula_rounds": classification.FORMULA_ROUNDS, "formula_runs": min(runs, classification.FORMULA_RUNS)}
    wording = Wording(PACKAGE, "table1", runs=runs, printed_runs=PRINTED_RUNS, **limits, **timed)
    more, claims, tables = [], [], []
    numbers: dict[str, Any] = {}
    for case, found in by_dataset(results).items():
        data, printed = DATASETS[case].title, PRINTED.get(case, {})
        numbers[data] = {p: {name: _numbers(own, name) for name in own[0]} for p, own in found.items()}
        tables.append(_table(found, numbers[data], printed, wording, data, len(results)))
        if not printed:
            more.append(wording.text("fallback"))
            continue
        for own in numbers[data].values():
            for name, cell in printed.items():
                own[name]["paper"] = asdict(cell)
        for protocol, own in found.items():
            gaps = at_once(_gaps_to_others(own, "DMTL-ELM, chosen", CHOSEN), len(results))
            error = estimate(own, "DMTL-ELM, chosen", "error").mean
            texts = {"data": data, "protocol": protocol, "gaps": _list_gaps(gaps), "n": len(gaps) * len(results)}
            more.append(wording.text("chosen", error=error, **texts))
        judged, counts = beside(
            {protocol: _claims(own, printed, data, wording, len(results)) for protocol, own in found.items()}
        )
        claims += judged
        if counts:
            more.append(wording.text("beside", data=data, n=len(judged), counts=counts))
    return Analysis(wording.section(more, claims=claims, tables=tables), numbers)


def _objective_ratio(runs: Sequence[Numbers], name: str) -> Estimate:
    """Estimate the objective as a multiple of that of MTL-ELM."""
    return Estimate.of([run[name]["objective"] / run["MTL-ELM"]["objective"] for run in runs])


def _numbers(runs: Sequence[Numbers], name: str) -> dict[str, Any]:
    numbers = {}
    for key in ("error", "seconds", "bytes", "rounds", "gap", "objective", "printed_seconds"):
        if found := [run[name][key] for run in runs if key in run[name]]:
            title = "printed_formula_seconds" if key == "printed_seconds" else key
            numbers[title] = Estimate.of(found).to_json()
    return numbers


def _difference(runs: Sequence[Numbers], name: str, other: str) -> Estimate:
    return difference(values(runs, name, "error"), values(runs, other, "error"))


def _gaps_to_others(runs: Sequence[Numbers], name: str, suffix: str = "") -> dict[str, Estimate]:
    """Estimate the differences of errors to all methods that the paper did not propose."""
    return {other: _difference(runs, name, other + suffix) for other in OTHERS}


def _list_gaps(gaps: dict[str, Estimate]) -> str:
    return ", ".join(f"{gap.signed} to {other}" for other, gap in gaps.items())


def distance_from_printed(error: Estimate, printed: float) -> Estimate:
    """Estimate the difference from a printed mean, which has the same spread and another number of runs."""
    return replace(error, mean=error.mean - printed, sd=error.sd * math.sqrt(1 + error.runs / PRINTED_RUNS))


def _claims(
    runs: Sequence[Numbers], printed: dict[str, Cell], data: str, wording: Wording, n_cases: int
) -> list[Claim]:
    claims = []

    def claim(key: str, *verdicts: Verdict, **numbers: object) -> None:
        claims.append(wording.claim(key, combine(verdicts), data=data, **numbers))

    errors = at_once({name: estimate(runs, name, "error") for name in printed}, n_cases)
    for name, cell in printed.items():
        gap = distance_from_printed(errors[name], cell.error)
        verdict = judge_zero(gap, TOLERANCE)
        claim("error", verdict, name=name, printed=cell.error, error=errors[name].mean, gap=gap)
    for name in PROPOSED:
        # A rival with a wrongly interpreted parameter is no rival.
        chosen = name + CHOSEN if name + CHOSEN in runs[0] else name
        every = {"": _gaps_to_others(runs, name), CHOSEN: _gaps_to_others(runs, chosen, CHOSEN)}
        n = n_cases * len(PROPOSED) * sum(map(len, every.values()))
        gaps, full = (at_once(found, n // len(found)) for found in every.values())
        texts = {"gaps": _list_gaps(gaps), "full": _list_gaps(full), "whose": "both" if chosen != name else "theirs"}
        claim("best", *map(judge_below_zero, (*gaps.values(), *full.values())), name=name, n=n, **texts)

    ratios = {f"ratio of {name}": _objective_ratio(runs, name) for name in PROPOSED[1:]}
    single = {"loss": _difference(runs, "DMTL-ELM", "MTL-ELM"), "first": _difference(runs, "DMTL-ELM", "FO-DMTL-ELM")}
    loss, first_order, exact, linear = at_once(single | ratios, n_cases).values()
    printed_loss = printed["DMTL-ELM"].error - printed["MTL-ELM"].error
    claim("loss", judge_not_above(loss, NEGLIGIBLE), gap=loss, printed=printed_loss)
    claim("first_order", judge_below_zero(first_order), gap=first_order)
    above = judge_below_zero(replace(linear, mean=CONVERGED - linear.mean))
    claim("converged", judge_not_above(exact, CONVERGED), above, exact=exact, first_order=linear)

    seconds = {name: estimate(runs, name, "seconds").mean for name in printed}
    timed = runs[: classification.FORMULA_RUNS]
    formula = {name: estimate(timed, name, "printed_seconds").mean for name in PROPOSED}
    fastest = min(seconds, key=lambda name: seconds[name])
    own = values(runs, "Local ELM", "seconds")
    slower = at_once({n: difference(own, values(runs, n, "seconds")) for n in printed if n != "Local ELM"}, n_cases)
    n, verdict = n_cases * len(slower), combine(map(judge_below_zero, slower.values()))
    claim("fastest", verdict, fastest=fastest, least=seconds[fastest], seconds=seconds, n=n)
    first = values(timed, "FO-DMTL-ELM", "printed_seconds")
    ratios = {
        name: Estimate.of([a / b for a, b in zip(first, values(timed, name, "printed_seconds"), strict=True)])
        for name in PROPOSED[:2]
    }
    ratios = at_once(ratios, n_cases)
    verdicts = [judge_not_above(ratio, MUCH_FASTER) for ratio in ratios.values()]
    claim("faster", *verdicts, formula=formula, seconds=seconds, ratios=ratios, n=n_cases * len(ratios))
    return claims


def _table(
    found: Mapping[str, Sequence[Numbers]],
    numbers: Mapping[str, Any],
    printed: dict[str, Cell],
    wording: Wording,
    data: str,
    n_cases: int,
) -> Table:
    """Return the errors of all protocols side by side, and times and objectives of the first."""
    (first, runs), *_ = found.items()
    errors = {
        protocol: at_once({name: estimate(own, name, "error") for name in own[0]}, n_cases)
        for protocol, own in found.items()
    }
    rows = []
    for name in dict.fromkeys([*printed, *numbers[first]]):  # in the order of the paper
        own = numbers[first][name]
        cell, formula = printed.get(name), own.get("printed_formula_seconds", {}).get("mean")
        rows.append(
            [
                name,
                f"{cell.error:.2f}" if cell else "–",
                *(str(errors[protocol][name]) for protocol in found),
                f"{own['seconds']['mean']:.3f}",
                f"{cell.seconds:g}" if cell else "–",
                f"{formula:.{0 if formula >= 10 else 1}f}" if formula else "–",
                f"{_objective_ratio(runs, name).mean:.2f}" if "objective" in own else "–",
                f"{own['gap']['mean']:.0e}" if "gap" in own and name != "MTL-ELM" else "–",
            ]
        )
    table = wording.table("methods", rows, data=data, first=first, n=len(rows) * n_cases)
    return replace(table, columns=[*table.columns[:2], *found, *table.columns[2:]])


def analyze_variants(results: Results, runs: int) -> Analysis:
    """Tabulate the errors in each variant of the protocol."""
    wording = Wording(PACKAGE, "variants", runs=runs)
    tables, numbers, more = [], {}, []
    for case, found in results.items():
        name, protocol = parse_case(case)
        data, printed, rows = DATASETS[name].title, PRINTED.get(name), []
        if printed:
            gap = printed["DMTL-ELM"].error - printed["Local ELM"].error
            errors = [f"{printed[method].error:.2f}" for method in VARIANT_METHODS]
            rows.append(["printed in the paper", *errors, f"{gap:+.2f}"])
        own = {v: {method: estimate(found, v, method) for method in VARIANT_METHODS} for v in found[0]}
        gain = {v: difference(values(found, v, "DMTL-ELM"), values(found, v, "Local ELM")) for v in own}
        flat = at_once({(v, m): e for v in own for m, e in [*own[v].items(), ("gain", gain[v])]}, len(results))
        rows += [[v, *(str(flat[v, m]) for m in VARIANT_METHODS), flat[v, "gain"].signed] for v in own]
        tables.append(wording.table("variants", rows, data=data, n=len(flat) * len(results)))
        numbers[data] = {v: {method: e.to_json() for method, e in row.items()} for v, row in own.items()}
        if IMAGES not in own and protocol != IMAGES:
            more.append(wording.text("no_images", data=data))
    return Analysis(wording.section(more, tables=tables), numbers)


def analyze_tuning(results: Results, runs: int) -> Analysis:
    """Compare the parameters in use with the best ones."""
    wording = Wording(PACKAGE, "tuning", runs=runs, folds=classification.FOLDS)
    rows: list[list[str]] = []
    numbers: dict[str, Any] = {}
    for case, found in results.items():
        dataset, _ = parse_case(case)
        data = DATASETS[dataset].title
        numbers[data] = {}
        for name, grid in GRIDS.items():
            own = {point: estimate(found, name, point) for point in map(format_parameters, grid)}
            best = min((e.mean, point) for point, e in own.items())[1]
            used = format_parameters(tuned_parameters(dataset)[name])
            rows.append([f"{data}, {name}", best, f"{own[best].mean:.2f}", used, f"{own[used].mean:.2f}"])
            numbers[data][name] = {point: e.to_json() for point, e in own.items()}
    return Analysis(wording.section(tables=[wording.table("best", rows)]), numbers)
