"""The summary at the end of ``elmesh fit`` and ``elmesh agent``."""

from __future__ import annotations

import math
from typing import Any

from elmesh.cli.console import Output
from elmesh.math.certificate import Certificate
from elmesh.tables import TableSchema
from elmesh.text import count

__all__ = ["print_fit", "print_result", "summarize"]


def summarize(model: Any, schema: TableSchema, rows: int) -> dict[str, Any]:
    """Return the facts about a fit of a table with so many rows, in plain JSON."""
    return {
        "command": "fit",
        **model.summary(),
        "targets": [target.name for target in schema.target_columns],
        "rows": rows,
        "columns": schema.feature_names,
    }


def print_fit(output: Output, summary: dict[str, Any]) -> None:
    """Print the summary of ``elmesh fit``."""
    output.print(f"{problem(summary)}: {summary['kind_reason']}.")
    tasks, columns = len(summary["tasks"]), len(summary["columns"])
    output.print(f"{count(summary['rows'], 'row')} of {count(tasks, 'task')}, {count(columns, 'encoded column')}.")
    if tasks == 1:
        output.print("With one task there is no other to learn with; --task names the column that tells sites apart.")
    print_result(output, summary)


def print_result(output: Output, summary: dict[str, Any], sender: str = "") -> None:
    """Print what the solver did, the certificate and the folder of the model."""
    penalty = "" if summary["penalties"] is None else f", penalty {math.sqrt(math.prod(summary['penalties'])):.3g}"
    without = "all data in one place" if summary["pooled"] else "nothing sent"
    sent = f"{summary['bytes'] / 1e6:.3g} MB sent{sender}" if summary["bytes"] else without
    # Other reasons to stop come with a warning of their own, and a network has a fixed number of rounds.
    explained = ("CONVERGED", "DIRECT") if sender else ("CONVERGED", "DIRECT", "COMPLETED")
    advice = f" {summary['advice']}" if summary["stop"] in explained else ""
    rank = "" if summary["rank"] is None else f" of rank {summary['rank']}"
    output.print(f"{summary['solver']}{rank}{penalty}: {count(summary['rounds'], 'round')}, {sent}.{advice}")
    if summary["certificate"] is not None:
        output.print(f"Certified {Certificate(**summary['certificate'])}.")
    output.print(f"Saved in {summary['model']}.")


def problem(summary: dict[str, Any]) -> str:
    """Return the kind of problem, with the number of classes."""
    classes = f" of {len(summary['classes'])} classes" if summary["classes"] is not None else ""
    return f"{summary['kind'].capitalize()}{classes}"
