"""What ``elmesh fit`` says in the end."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

from elmesh.cli.console import Output
from elmesh.math.certificate import Certificate
from elmesh.tables import TableSchema
from elmesh.text import count

__all__ = ["summarise", "tell_summary"]


def summarise(model: Any, schema: TableSchema, solver: str, rows: int) -> dict[str, Any]:
    """Return what there is to say of a fit of so many rows, in plain words and numbers."""
    history = model.history_
    return {
        "command": "fit",
        "kind": schema.kind,
        "targets": [target.name for target in schema.target_columns],
        "classes": list(model.classes_) if schema.kind == "classification" else None,
        "tasks": list(model.tasks_),
        "rows": rows,
        "columns": schema.feature_names,
        "solver": solver,
        "rank": int(model.U_.shape[-1]) if "rank" in model.solver.get_params() else None,
        "penalties": None if model.penalties_ is None else list(model.penalties_),
        "certificate": None if model.certificate_ is None else asdict(model.certificate_),
        "rounds": int(model.n_iter_),
        "exchanges": int(model.n_exchanges_),
        "pooled": model.solver.pooled,
        "bytes": int(history["bytes"].iloc[-1]) if len(history) else 0,
        "objective": float(history["objective"].iloc[-1]) if len(history) else None,
        "stop": model.stop_.name,
        "advice": model.stop_.value,
    }


def tell_summary(output: Output, summary: dict[str, Any]) -> None:
    """Say it."""
    classes = f" of {len(summary['classes'])} classes" if summary["classes"] is not None else ""
    output.say(f"{summary['kind'].capitalize()}{classes}: {summary['kind_reason']}.")
    tasks, columns = len(summary["tasks"]), len(summary["columns"])
    output.say(f"{count(summary['rows'], 'row')} of {count(tasks, 'task')}, {count(columns, 'column')} once encoded.")
    if tasks == 1:
        output.say("With one task there is nobody to learn with; --task names the column that tells sites apart.")
    penalty = "" if summary["penalties"] is None else f", penalty {math.sqrt(math.prod(summary['penalties'])):.3g}"
    nothing = "all data in one place" if summary["pooled"] else "nothing sent"
    sent = f"{summary['bytes'] / 1e6:.3g} MB sent" if summary["bytes"] else nothing
    # The other ways to end come with a warning of their own.
    advice = f" {summary['advice']}" if summary["stop"] in ("CONVERGED", "DIRECT", "COMPLETED") else ""
    rank = "" if summary["rank"] is None else f" of rank {summary['rank']}"
    output.say(f"{summary['solver']}{rank}{penalty}: {count(summary['rounds'], 'round')}, {sent}.{advice}")
    if summary["certificate"] is not None:
        output.say(f"Certified {Certificate(**summary['certificate'])}.")
    output.say(f"Saved in {summary['model']}.")
