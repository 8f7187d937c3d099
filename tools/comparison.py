"""Write the measured part of docs/compare.md from the benchmark `compare`."""

from __future__ import annotations

import sys
from typing import Any

from elmesh.estimators.gains import format_error
from pages import RESULTS, ROOT, fill, load, table

PAGE = ROOT / "docs" / "compare.md"
TITLES = {"days": "Days in hospital", "complication": "Complications, at about one patient in ten"}


def methods(found: dict[str, Any]) -> list[str]:
    measures = [name for name in ("log_loss", "auc") if name in found["methods"][0]]
    rows = []
    for one in sorted(found["methods"], key=lambda row: row["error"]):
        error, change, deviation = (
            format_error(abs(one[key]), found["unit"]) for key in ("error", "error_difference", "error_standard_error")
        )
        sign = "−" if one["error_difference"] < 0 else "+"
        against = "" if one["method"] == "elmesh" else f"{sign}{change} ± {deviation}"
        place = "in one place" if one["needs_all_rows"] else "at sites"
        scores = [f"{one[name]:.3f}" for name in measures]
        sites = "" if one["method"] == "elmesh" else f"{one['sites_better']} / {one['sites_worse']}"
        rows.append([one["title"], place, error, against, *scores, sites, f"{one['seconds']:.2g}"])
    titles = [{"log_loss": "log loss", "auc": "AUC"}[name] for name in measures]
    head = ["method", "rows", "error", "difference from elmesh ± standard error", *titles]
    return table([*head, "sites at which it is clearly better / worse", "seconds"], rows)


def block() -> str:
    result = load(RESULTS / "compare.json")
    machine = result["machine"]
    lines = [
        f"Results of `python -m benchmarks compare` (`make arena`), which is the command above with its defaults, on "
        f"{machine['cpu']}; `tools/comparison.py` writes this part.",
        "",
    ]
    for target, found in result["targets"].items():
        lines += [f"**{TITLES[target]}** ({found['unit']}): {found['sentences']['error']}", ""]
        if "log_loss" in found["sentences"]:
            lines += [f"By log loss: {found['sentences']['log_loss']}", ""]
        lines += [*methods(found), ""]
    return "\n".join(lines[:-1])


if __name__ == "__main__":
    PAGE.write_text(fill(PAGE.read_text(encoding="utf-8"), "compare", block()), encoding="utf-8")
    print(f"{PAGE.name} is up to date.", file=sys.stderr)
