"""What a notebook shows of a fitted estimator below the diagram of scikit-learn: a table of its tasks."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from elmesh.text import count, more
from elmesh.typing import Label

if TYPE_CHECKING:
    from elmesh.estimators.base import MultiTaskELM

__all__ = ["task_table"]

# Most tasks in the table, and most values in a cell.
_MOST_TASKS, _MOST_VALUES = 20, 5


def task_table(estimator: MultiTaskELM) -> str:
    """Return a table of the tasks of a fitted estimator, as HTML; all names are escaped.

    It has what is known: rows and shares of the parts after a fit, the noise with a common part, or classes.
    """
    tasks = list(estimator.model_.heads)
    fit: pd.DataFrame = getattr(estimator, "sites_", pd.DataFrame())
    facts = [{"task": str(task), **_fit_facts(fit, task), **_model_facts(estimator, task)} for task in tasks]
    head = "".join(f"<th>{name}</th>" for name in facts[0])
    rows = ["".join(f"<td>{escape(cell)}</td>" for cell in one.values()) for one in facts[:_MOST_TASKS]]
    first = f": the first {_MOST_TASKS}" if len(tasks) > _MOST_TASKS else ""
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    return f"<table><caption>{count(len(tasks), 'task')}{first}</caption><tr>{head}</tr>{body}</table>"


def _fit_facts(fit: pd.DataFrame, task: Label) -> dict[str, str]:
    """Return what the fit found; dashes for a task that came later."""
    if task not in fit.index:
        return dict.fromkeys(fit.columns, "–")
    found = {str(name): float(x) for name, x in zip(fit.columns, fit.loc[task].to_numpy(), strict=True)}
    return {name: f"{x:,.0f}" if name == "rows" else f"{100 * x:.0f} %" for name, x in found.items()}


def _model_facts(estimator: MultiTaskELM, task: Label) -> dict[str, str]:
    """Return the classes of a task, or its noise in units of the targets."""
    model, head = estimator.model_, estimator.model_.heads[task]
    if head.classes is not None:
        return {"classes": _listed([str(name) for name in head.classes.tolist()])}
    if model.common is None:
        return {}
    noise = estimator._predictor().unit * np.sqrt(model.common.s2 * np.exp(-head.log_w))
    return {"noise": _listed([f"{x:.3g}" for x in noise])}


def _listed(words: list[str]) -> str:
    return ", ".join(words[:_MOST_VALUES]) + more(len(words), _MOST_VALUES)
