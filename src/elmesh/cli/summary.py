"""The summary at the end of ``elmesh fit`` and ``elmesh agent``."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from elmesh.cli.console import Output
from elmesh.estimators.gains import SiteGains, format_error
from elmesh.math.certificate import Certificate
from elmesh.solvers import make_solver
from elmesh.text import count, data_size, listed

if TYPE_CHECKING:
    from elmesh.report import Table

__all__ = ["print_fit", "print_gains", "print_own_gain", "print_result", "summarize"]

# A group of features whose weights have less variance than this, in units of the noise, does not matter; weights with
# more than the other are as good as unpenalised.
_MATTERS, _FREE = 0.01, 1e5
# Most tasks that are listed.
_MOST_TASKS = 15


def summarize(model: Any, rows: int) -> dict[str, Any]:
    """Return the facts about a model of a table with so many rows, in plain JSON; of a loaded one there are fewer."""
    table = model.table_
    facts = {"rounds": None, "certificate": None, "privacy": None}
    if hasattr(model, "history_"):
        facts = model.summary()
    return {
        "command": "fit",
        "kind": table.kind,
        "tasks": model.tasks_.tolist(),
        "solver": make_solver(model.solver).name,
        **facts,
        "targets": [target.name for target in table.target_columns],
        "rows": rows,
        "columns": table.feature_names,
        "gains": None,
        "explanation": None,
        "report": None,
    }


def print_fit(output: Output, summary: dict[str, Any], gains: tuple[SiteGains, Table] | None = None) -> None:
    """Print the summary of ``elmesh fit``: who gains comes first, and how the training went last."""
    output.print(f"{problem(summary)}: {summary['kind_reason']}.")
    tasks, columns = len(summary["tasks"]), len(summary["columns"])
    output.print(
        f"{count(summary['rows'], 'row')} of {count(tasks, 'site')}; {count(columns, 'number')} per row after encoding."
    )
    if tasks == 1:
        output.print("With one site there is no other to learn with; --task names the column with the sites.")
    if gains is not None:
        print_gains(output, *gains)
    if summary["explanation"] is not None:
        output.print(summary["explanation"]["sentence"])
    print_result(output, summary)
    if summary["report"] is not None:
        errors = "the errors of every site, and " if gains is not None else ""
        output.print(f"Open {summary['report']} in a browser for {errors}what predictions depend on.")


def print_gains(output: Output, gains: SiteGains, table: Table) -> None:
    """Print who gains by learning together; the table too, if it is short."""
    if len(gains.tasks) <= _MOST_TASKS and not output.quiet:
        output.table(table.columns, table.rows, left=2)
        output.print(f"Errors are of rows left out ({gains.unit}); pooled is one model for all sites.")
    output.print(gains.sentence())
    worse = [str(one.task) for one in gains.tasks if one.verdict == "better alone"]
    if worse:
        output.print(
            f"Of {listed(worse)}: check that columns have the same units and meaning as elsewhere; a site that differs "
            "so much learns better alone, from a table of its own rows."
        )


def print_own_gain(output: Output, gains: dict[str, Any]) -> None:
    """Print what one site of a network gains."""
    unit = gains["unit"]
    alone, together = (format_error(gains["overall"][name], unit) for name in ("alone", "together"))
    output.print(f"On rows of this site left out the error is {alone} alone and {together} together ({unit}).")
    output.print(gains["sentence"])


def print_result(output: Output, summary: dict[str, Any], sender: str = "") -> None:
    """Print what the solver did, the certificate and the folder of the model."""
    penalty = "" if summary["penalties"] is None else f", penalty {math.sqrt(math.prod(summary['penalties'])):.3g}"
    without = "all data in one place" if summary["pooled"] else "nothing sent"
    sent = f"{data_size(summary['bytes'])} sent{sender}" if summary["bytes"] else without
    # Other reasons to stop come with a warning of their own, and a network has a fixed number of rounds.
    explained = ("CONVERGED", "DIRECT") if sender else ("CONVERGED", "DIRECT", "COMPLETED")
    advice = f" {summary['advice']}" if summary["stop"] in explained else ""
    rank = "" if summary["rank"] is None or summary["variances"] is not None else f" of rank {summary['rank']}"
    output.print(f"{summary['solver']}{rank}{penalty}: {count(summary['rounds'], 'round')}, {sent}.{advice}")
    for line in _parts(summary):
        output.print(line)
    privacy = summary["privacy"]
    if privacy is not None:
        output.print(privacy["promise"])
        output.print(privacy["model"])
    if summary["certificate"] is not None:
        found = Certificate(**summary["certificate"])
        output.print(f"{'Certified' if found.proven else 'Estimated over the graph'}: {found}.")
        output.print("The certificate is about the fit to the training rows, not about new rows.")
    output.print(f"Saved in {summary['model']}.")


def _parts(summary: dict[str, Any]) -> Iterator[str]:
    """Yield what the weights consist of: a line on the common, the private and the shared part."""
    if summary["variances"] is None:
        return
    unit = "variances of weights in units of the noise"
    yield f"Common to all sites: {_groups(summary['variances']['common'])} ({unit})."
    yield f"Different at each site: {_groups(summary['variances']['private'])}."
    yield {
        "kept": f"Shared part of rank {summary['rank']}.",
        "not called for": "No shared part: it did not lower the error on rows left out.",
        "not asked for": "No shared part, as asked.",
        "not private": "No shared part: it would take many releases, each of which costs privacy.",
    }[summary["shared_part"]]


def _groups(variances: dict[str, float]) -> str:
    """Return the groups of features whose weights matter, with their variances."""
    found = {name.replace("hidden, ", "hidden units of "): x for name, x in variances.items() if x >= _MATTERS}
    # The variance of the common constant is not estimated.
    words = [name if x >= _FREE else f"{name} {x:.2g}" for name, x in found.items()]
    return "; ".join(words) or "nothing that matters"


def problem(summary: dict[str, Any]) -> str:
    """Return the kind of problem, with the number of classes."""
    classes = f" of {len(summary['classes'])} classes" if summary["classes"] is not None else ""
    return f"{summary['kind'].capitalize()}{classes}"
