"""Analysis of Table 1, of the variants of the protocol, and of the parameters chosen by cross-validation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from elmesh.paper import classification
from elmesh.paper.analysis.estimates import PACKAGE, Analysis, Estimate, Results, difference, estimate, values
from elmesh.paper.analysis.verdicts import NEGLIGIBLE, combine, judge, judge_below_zero, judge_close, judge_not_above
from elmesh.paper.classification import BASELINE, GRIDS, PROPOSED, VARIANT_METHODS, VARIANTS, format_parameters
from elmesh.paper.methods import RIVALS, tuned_parameters
from elmesh.paper.protocol import DATASETS
from elmesh.report import Claim, Verdict, Wording
from elmesh.trial_log import Numbers

__all__ = ["OTHERS", "PRINTED", "TOLERANCE", "analyze_table1", "analyze_tuning", "analyze_variants"]


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
#: A test error within this distance of the printed one counts as the same, in points.
TOLERANCE = 0.8


def analyze_table1(results: Results, runs: int) -> Analysis:
    """Compare errors and times with those of the paper."""
    timed = {"formula_rounds": classification.FORMULA_ROUNDS, "formula_runs": min(runs, classification.FORMULA_RUNS)}
    wording = Wording(PACKAGE, "table1", runs=runs, negligible=NEGLIGIBLE, **timed)
    chosen, claims, tables = [], [], []
    numbers: dict[str, Any] = {}
    for case, found in results.items():
        data, printed = DATASETS[case].title, PRINTED.get(case, {})
        numbers[data] = own = {name: _numbers(found, name) for name in found[0]}
        tables.append(wording.table("methods", _rows(found, own, printed), data=data))
        for name, cell in printed.items():
            own[name]["paper"] = asdict(cell)
        if printed:
            gaps = _gaps_to_others(found, "DMTL-ELM, chosen", ", chosen")
            error = estimate(found, "DMTL-ELM, chosen", "error")
            chosen.append(wording.text("chosen", data=data, error=error, gaps=_list_gaps(gaps)))
            claims += _claims(found, printed, data, wording)
    if "digits" in results:
        chosen.append(wording.text("fallback"))
    return Analysis(wording.section(chosen, claims=claims, tables=tables), numbers)


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


def _claims(runs: Sequence[Numbers], printed: dict[str, Cell], data: str, wording: Wording) -> list[Claim]:
    claims = []

    def claim(key: str, *verdicts: Verdict, **numbers: object) -> None:
        claims.append(wording.claim(key, combine(verdicts), data=data, **numbers))

    for name, cell in printed.items():
        error = estimate(runs, name, "error")
        verdict = judge_close(error, cell.error, TOLERANCE)
        claim("error", verdict, name=name, printed=cell.error, error=error, gap=error.mean - cell.error)
    for name in PROPOSED:
        gaps = _gaps_to_others(runs, name)
        claim("best", *map(judge_below_zero, gaps.values()), name=name, gaps=_list_gaps(gaps))

    loss, first_order = (_difference(runs, "DMTL-ELM", other) for other in ("MTL-ELM", "FO-DMTL-ELM"))
    printed_loss = printed["DMTL-ELM"].error - printed["MTL-ELM"].error
    claim("loss", judge_not_above(loss, NEGLIGIBLE), gap=loss, printed=printed_loss)
    claim("first_order", judge_below_zero(first_order), gap=first_order)
    exact, linear = (_objective_ratio(runs, name) for name in PROPOSED[1:])
    claim("converged", judge_close(exact, 1.0, 0.01), judge(linear.mean > 1.01), exact=exact, first_order=linear)

    seconds = {name: estimate(runs, name, "seconds").mean for name in printed}
    timed = runs[: classification.FORMULA_RUNS]
    formula = {name: estimate(timed, name, "printed_seconds").mean for name in PROPOSED}
    fastest = min(seconds, key=lambda name: seconds[name])
    claim("fastest", judge(fastest == "Local ELM"), fastest=fastest, least=seconds[fastest], seconds=seconds)
    much_faster = 2 * formula["FO-DMTL-ELM"] < min(formula["MTL-ELM"], formula["DMTL-ELM"])
    claim("faster", judge(much_faster), formula=formula, seconds=seconds)
    return claims


def _rows(runs: Sequence[Numbers], numbers: dict[str, Any], printed: dict[str, Cell]) -> list[list[str]]:
    rows = []
    for name, own in numbers.items():
        cell, formula = printed.get(name), own.get("printed_formula_seconds", {}).get("mean")
        rows.append(
            [
                name,
                str(estimate(runs, name, "error")),
                f"{cell.error:.2f}" if cell else "–",
                f"{own['seconds']['mean']:.3f}",
                f"{cell.seconds:g}" if cell else "–",
                f"{formula:.{0 if formula >= 10 else 1}f}" if formula else "–",
                f"{_objective_ratio(runs, name).mean:.2f}" if "objective" in own else "–",
                f"{own['gap']['mean']:.0e}" if "gap" in own and name != "MTL-ELM" else "–",
            ]
        )
    return rows


def analyze_variants(results: Results, runs: int) -> Analysis:
    """Tabulate the errors in each variant of the protocol."""
    wording = Wording(PACKAGE, "readings", runs=runs)
    tables, numbers = [], {}
    for case, found in results.items():
        data, printed, rows = DATASETS[case].title, PRINTED.get(case), []
        if printed:
            gap = printed["DMTL-ELM"].error - printed["Local ELM"].error
            errors = [f"{printed[method].error:.2f}" for method in VARIANT_METHODS]
            rows.append(["printed in the paper", *errors, f"{gap:+.2f}"])
        variants = [name for name in VARIANTS if name in found[0]]
        own = {name: {method: estimate(found, name, method) for method in VARIANT_METHODS} for name in variants}
        for name in variants:
            gain = difference(values(found, name, "DMTL-ELM"), values(found, name, "Local ELM"))
            rows.append([name, *map(str, own[name].values()), gain.signed])
        leak = difference(*(values(found, name, "DMTL-ELM") for name in ("PCA on test rows too", BASELINE)))
        tables.append(wording.table("variants", rows, data=data, leak=leak))
        numbers[data] = {name: {method: e.to_json() for method, e in row.items()} for name, row in own.items()}
    return Analysis(wording.section(tables=tables), numbers)


def analyze_tuning(results: Results, runs: int) -> Analysis:
    """Compare the parameters in use with the best ones."""
    wording = Wording(PACKAGE, "choice", runs=runs, folds=classification.FOLDS)
    rows: list[list[str]] = []
    numbers: dict[str, Any] = {}
    for case, found in results.items():
        data = DATASETS[case].title
        numbers[data] = {}
        for name, grid in GRIDS.items():
            own = {point: estimate(found, name, point) for point in map(format_parameters, grid)}
            best = min((e.mean, point) for point, e in own.items())[1]
            used = format_parameters(tuned_parameters(case)[name])
            rows.append([f"{data}, {name}", best, f"{own[best].mean:.2f}", used, f"{own[used].mean:.2f}"])
            numbers[data][name] = {point: e.to_json() for point, e in own.items()}
    return Analysis(wording.section(tables=[wording.table("best", rows)]), numbers)
