"""What Table 1 shows: test error and running time of the eight methods."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from elmesh.paper.findings.finding import Finding
from elmesh.paper.findings.inference import Estimate, below, close, difference, not_above, worst
from elmesh.paper.protocol import DATA_SETS
from elmesh.paper.table1 import KRONECKER_RUNS, KRONECKER_STEPS
from elmesh.paper.trials import Numbers, Trials
from elmesh.report import Claim, Section, Table, Verdict

__all__ = ["PRINTED", "Cell", "conclude"]


@dataclass(frozen=True)
class Cell:
    """What the paper prints for a method: test error in per cent, and seconds."""

    error: float
    seconds: float


#: The paper's Table 1.
PRINTED: dict[str, dict[str, Cell]] = {
    "usps": {
        "Local ELM": Cell(4.26, 0.009),
        "MTFL": Cell(4.67, 0.10),
        "GO-MTL": Cell(6.30, 7.52),
        "MTL-ELM": Cell(3.49, 226.1),
        "DGSP": Cell(5.05, 0.03),
        "DNSP": Cell(4.47, 0.04),
        "DMTL-ELM": Cell(3.54, 184.2),
        "FO-DMTL-ELM": Cell(3.89, 22.5),
    },
    "mnist": {
        "Local ELM": Cell(6.58, 0.004),
        "MTFL": Cell(6.84, 0.20),
        "GO-MTL": Cell(9.76, 8.10),
        "MTL-ELM": Cell(5.90, 244.2),
        "DGSP": Cell(7.9, 0.04),
        "DNSP": Cell(7.35, 0.07),
        "DMTL-ELM": Cell(5.96, 192.6),
        "FO-DMTL-ELM": Cell(6.20, 19.7),
    },
}
PROPOSED = ("MTL-ELM", "DMTL-ELM", "FO-DMTL-ELM")
# Points of error that count as nothing.
NOTHING = 0.25
OTHERS = ("Local ELM", "MTFL", "GO-MTL", "DGSP", "DNSP")
# How far from the printed error still counts as the same, in points.
WITHIN = 0.8


def conclude(trials: Trials, runs: int) -> Finding:
    """Set errors and times beside the paper's."""
    cases = list(dict.fromkeys(trial.case for trial, _ in trials.done))
    claims: list[Claim] = []
    tables, numbers = [], {}
    for case in cases:
        found, title = trials.of(case), DATA_SETS[case].title
        tables.append(_table(found, case, runs))
        numbers[title] = {name: _numbers(found, name) for name in found[0]}
        for name, cell in PRINTED.get(case, {}).items():
            numbers[title][name]["paper"] = asdict(cell)
        if case in PRINTED:
            claims += _claims(found, case)
    section = Section(
        "Table 1: test error and running time",
        paragraphs=(
            f"Ten tasks of three digits, 90 rows to learn from and 45 to be tested on, L = 300, rank 6, 100 "
            f"iterations, star graph; means over {runs} draws. Parameters are the paper's: rho = 1, delta = 100, mu = "
            "sqrt(10) for USPS and sqrt(20) for MNIST, tau = 20 + d (first order: 30 + d), zeta = 40; 10 and 20 for "
            "Local ELM, DGSP and DNSP; MTFL gamma = 10, epsilon = 20; GO-MTL lambda = 10 (MNIST 100) on its basis, and "
            "1 on its codes, which the paper does not give. Rows “chosen” have parameters picked on training rows.",
            "What the paper leaves open is read as in the section on that; the reading was picked with the printed "
            "errors of Local ELM and DMTL-ELM in view, so that these agree says less than the order of methods does.",
            *(_tuned(trials.of(case), case) for case in cases if case in PRINTED),
            *(() if "digits" not in cases else ("What is not at hand is stood in for by digits, and not judged.",)),
        ),
        claims=claims,
        tables=tables,
    )
    return Finding(section, numbers)


def _errors(found: list[Numbers], name: str) -> list[float]:
    return [run[name]["error"] for run in found]


def _ratios(found: list[Numbers], name: str) -> list[float]:
    """Return the objective as a multiple of MTL-ELM's, run by run."""
    return [run[name]["objective"] / run["MTL-ELM"]["objective"] for run in found]


def _tuned(found: list[Numbers], case: str) -> str:
    """Say how DMTL-ELM fares when everybody chooses parameters on training rows."""
    gaps = _order("", found, "DMTL-ELM, chosen", ", chosen")
    return f"Not in the paper, {DATA_SETS[case].title} with parameters chosen on training rows: DMTL-ELM has " + (
        f"{Estimate.of(_errors(found, 'DMTL-ELM, chosen'))} %. {gaps.found}"
    )


def _order(statement: str, found: list[Numbers], name: str, setting: str) -> Claim:
    gaps = {rival: difference(_errors(found, name), _errors(found, rival + setting)) for rival in OTHERS}
    told = ", ".join(f"{gap.signed} to {rival}" for rival, gap in gaps.items())
    return Claim(statement, f"Difference in points: {told}.", worst([below(gap) for gap in gaps.values()]))


def _numbers(found: list[Numbers], name: str) -> dict[str, Any]:
    keys = [key for key in ("error", "seconds", "bytes", "rounds", "gap", "objective") if key in found[0][name]]
    numbers = {key: Estimate.of([run[name][key] for run in found]).to_json() for key in keys}
    printed = [run[name]["printed_seconds"] for run in found if "printed_seconds" in run[name]]
    return numbers | ({"printed_formula_seconds": Estimate.of(printed).to_json()} if printed else {})


def _claims(found: list[Numbers], case: str) -> list[Claim]:
    title, printed = DATA_SETS[case].title, PRINTED[case]
    claims = []
    for name in printed:
        error = Estimate.of(_errors(found, name))
        claims.append(
            Claim(
                f"{title}: {name} has a test error of {printed[name].error:.2f} %.",
                f"{error} %, {error.mean - printed[name].error:+.2f} points from it.",
                close(error, printed[name].error, WITHIN),
            )
        )
    for name in PROPOSED:
        claims.append(_order(f"{title}: {name} is better than all methods not proposed in the paper.", found, name, ""))
    alike = difference(_errors(found, "DMTL-ELM"), _errors(found, "MTL-ELM"))
    decayed = difference(_errors(found, "DMTL-ELM"), _errors(found, "FO-DMTL-ELM"))
    ratio = {name: Estimate.of(_ratios(found, name)) for name in ("DMTL-ELM", "FO-DMTL-ELM")}
    seconds = {name: Estimate.of([run[name]["seconds"] for run in found]).mean for name in printed}
    claims += [
        Claim(
            f"{title}: DMTL-ELM is almost as good as MTL-ELM.",
            f"Difference {alike.signed} points (in the paper "
            f"{printed['DMTL-ELM'].error - printed['MTL-ELM'].error:+.2f}); up to {NOTHING} counts as nothing.",
            not_above(alike, NOTHING),
        ),
        Claim(
            f"{title}: FO-DMTL-ELM is worse than DMTL-ELM after as many iterations.",
            f"DMTL-ELM less FO-DMTL-ELM: {decayed.signed} points.",
            below(decayed),
        ),
        Claim(
            f"{title}: with k = 100 DMTL-ELM has converged to the outputs of MTL-ELM, FO-DMTL-ELM has not.",
            f"The objective at the agents' mean U is {ratio['DMTL-ELM'].mean:.2f} and "
            f"{ratio['FO-DMTL-ELM'].mean:.2f} times MTL-ELM's; within 1 % counts as converged.",
            worst([close(ratio["DMTL-ELM"], 1.0, 0.01), below(Estimate(1.01 - ratio["FO-DMTL-ELM"].mean, 0.0, 2))]),
        ),
        Claim(
            f"{title}: Local ELM has the shortest running time.",
            f"Here the shortest is {min(seconds, key=lambda name: seconds[name])} with {min(seconds.values()):.3f} s; "
            f"Local ELM, with a hidden layer to compute and decompose, takes {seconds['Local ELM']:.3f} s.",
            Verdict.AGREES if seconds["Local ELM"] <= min(seconds.values()) else Verdict.DIFFERS,
        ),
    ]
    claims.append(_speed(found, title))
    return claims


def _speed(found: list[Numbers], title: str) -> Claim:
    own = {name: Estimate.of([run[name]["seconds"] for run in found]).mean for name in PROPOSED}
    formula = {
        name: Estimate.of([run[name]["printed_seconds"] for run in found if "printed_seconds" in run[name]]).mean
        for name in PROPOSED
    }
    return Claim(
        f"{title}: FO-DMTL-ELM is much faster than MTL-ELM and DMTL-ELM.",
        f"By the paper's formulas {formula['FO-DMTL-ELM']:.1f} s against {formula['MTL-ELM']:.0f} and "
        f"{formula['DMTL-ELM']:.0f} s. As solved here {own['FO-DMTL-ELM']:.2f} s against {own['MTL-ELM']:.2f} and "
        f"{own['DMTL-ELM']:.2f} s: an exact step need cost no more than a first-order one.",
        Verdict.AGREES
        if 2 * formula["FO-DMTL-ELM"] < min(formula["MTL-ELM"], formula["DMTL-ELM"])
        else Verdict.DIFFERS,
    )


def _table(found: list[Numbers], case: str, runs: int) -> Table:
    printed = PRINTED.get(case, {})
    rows = []
    for name in found[0]:
        cell, numbers = printed.get(name), _numbers(found, name)
        formula = numbers.get("printed_formula_seconds")
        above = f"{Estimate.of(_ratios(found, name)).mean:.2f}" if "objective" in numbers else "–"
        rows.append(
            [
                name,
                str(Estimate.of(_errors(found, name))),
                f"{cell.error:.2f}" if cell else "–",
                f"{numbers['seconds']['mean']:.3f}",
                f"{cell.seconds:g}" if cell else "–",
                f"{formula['mean']:.0f}"
                if formula and formula["mean"] >= 10
                else f"{formula['mean']:.1f}"
                if formula
                else "–",
                above,
                f"{numbers['gap']['mean']:.0e}" if "gap" in numbers and name != "MTL-ELM" else "–",
            ]
        )
    return Table(
        f"{DATA_SETS[case].title}, {runs} draws",
        ("", "test error, %", "paper", "seconds", "paper's seconds", "its formulas here, s", "objective", "gap"),
        rows,
        note=f"“Its formulas here”: the Kronecker systems (9) and (20) and the update (23) on this machine in the same "
        f"processes, timed over {KRONECKER_STEPS} iterations in each of {min(runs, KRONECKER_RUNS)} draws and scaled "
        "to 100. Objective: at the agents' mean U with A solved out, as a multiple of MTL-ELM's after 100 iterations. "
        "Gap: how far agents' U are from their mean. Neither shows in the test error. Seconds are those of the whole "
        "fit, calibration of probabilities included. Not in the paper: rows “chosen” (parameters picked on training "
        "rows), the spectral start, and automatic parameters with their own stopping rule.",
    )
