"""Write the measurements of benchmarks/results/tune.json into docs/tuning.md."""

from __future__ import annotations

import sys
from typing import Any

from pages import RESULTS, ROOT, fill, load, table

PAGE = ROOT / "docs" / "tuning.md"


def signed(figure: dict[str, Any]) -> str:
    return f"{figure['mean']:+.4f} ± {figure['standard_error']:.4f}"


def clearly(cases: dict[str, dict[str, Any]], sign: int) -> list[str]:
    """Return the cases in which tuned settings are better (1) or worse (-1) than the default by two standard errors."""
    found = {name: case["over_default"] for name, case in cases.items()}
    return [name for name, one in found.items() if sign * one["mean"] > 2 * one["standard_error"]]


def named(names: list[str]) -> str:
    return f"{len(names)} ({', '.join(names)})" if names else "none"


def beyond(cases: dict[str, dict[str, Any]], name: str) -> str:
    """Return the cases in which a difference is below zero by more than a standard error, with their figures."""
    found = {case: one[name] for case, one in cases.items() if one[name]["mean"] < -one[name]["standard_error"]}
    return ", ".join(f"{case} ({signed(one)})" for case, one in found.items()) or "none"


def block(result: dict[str, Any]) -> str:
    """Return the measurements as Markdown."""
    cases, machine = result["cases"], result["machine"]
    searched = {name: case for name, case in cases.items() if "seconds_ratio" in case}
    better, worse = clearly(cases, 1), clearly(cases, -1)
    slow = [f"{name} ({case['seconds_ratio']:.3f})" for name, case in searched.items() if case["seconds_ratio"] > 0.1]
    missed = [goal for goal, met in result["goals"].items() if not met]
    first = next(iter(searched.values()))
    lines = [
        *table(
            ["case", "default", "tuned", "grid search", "tuned less grid search", "time, tuned / grid search"],
            [
                [
                    name,
                    *(f"{case['scores'][method]['mean']:.4f}" for method in ("default", "tuned", "grid search")),
                    signed(case["over_grid_search"]),
                    f"{case['seconds_ratio']:.3f}",
                ]
                for name, case in searched.items()
            ],
        ),
        "",
        f"Scores on new rows (R2; verbagg: area under the ROC curve; usps: accuracy), means over {first['searches']} "
        "splits with the standard error of the paired difference. CPU time on one thread, both with the final fit; the "
        f"median ratio is {result['median_seconds_ratio']:.3f}. Grid search has {result['folds']} folds within sites. "
        "The settings that are tried and the rule that keeps the default were chosen with these tables in view: rows "
        "are held out, tables are not. Splits have rows in common, so that standard errors over splits are too small, "
        "by a factor of about two to four ([arena.md](arena.md)).",
        "",
        "Gain of tuned settings over the default on new rows, and how often another setting was taken:",
        "",
        *table(
            ["case", "default", "gain by tuning", "another setting taken"],
            [
                [
                    name,
                    f"{case['default']['mean']:.4f}",
                    signed(case["over_default"]),
                    f"{case['other_setting']} of {case['splits']}",
                ]
                for name, case in cases.items()
            ],
        ),
        "",
        f"Of {len(cases)} cases tuning is better than the default by more than two standard errors on {named(better)}, "
        f"and worse on {named(worse)}.",
        "",
        f"Goals not reached: {'; '.join(missed) or 'none'}.",
        "",
        f"- Below the score of grid search by more than a standard error: {beyond(searched, 'over_grid_search')}.",
        f"- More than a tenth of the time of grid search: {', '.join(slow) or 'none'}.",
        f"- Below the default by more than a standard error: {beyond(cases, 'over_default')}.",
        "",
        f"Measured with version {machine['elmesh']} on {machine['cpu']}, {machine['cores']} cores.",
    ]
    return "\n".join(lines)


def filled(text: str) -> str:
    """Return the page with the committed measurements."""
    return fill(text, "tuning", block(load(RESULTS / "tune.json")))


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    print(f"{PAGE.name} is up to date.", file=sys.stderr)
