"""What the scripts that write pages share: committed results, Markdown tables, and blocks between markers."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"

#: Titles of the data sets.
DATASETS = {"usps": "USPS", "mnist": "MNIST", "school": "School"}


def load(path: Path) -> dict[str, Any]:
    """Read a JSON file."""
    result: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return result


def table(head: list[str], rows: list[list[str]]) -> list[str]:
    """Return the lines of a Markdown table."""
    return ["| " + " | ".join(head) + " |", "|" + "---|" * len(head), *("| " + " | ".join(row) + " |" for row in rows)]


def fill(text: str, name: str, block: str) -> str:
    """Replace the block of this name, which is between two markers."""
    marked = re.compile(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.DOTALL)
    if not marked.search(text):
        raise SystemExit(f"The page has no markers <!-- {name} --> and <!-- /{name} -->.")
    return marked.sub(lambda found: f"{found[1]}{block}\n{found[2]}", text)


def missed_goals(*results: dict[str, Any]) -> list[str]:
    """Return the goals that were not met, as a list in Markdown."""
    missed = [f"- {goal}" for result in results for goal, met in result["goals"].items() if not met]
    return missed or ["None."]
