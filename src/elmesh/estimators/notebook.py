"""What a notebook shows of a fitted estimator below the diagram of scikit-learn: a table of its tasks."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from elmesh.text import count, more
from elmesh.typing import FloatArray, Label

if TYPE_CHECKING:
    from elmesh.estimators.base import MultiTaskELM

__all__ = ["task_table"]

# Most tasks in the table, and most classes that are named.
_MOST_TASKS, _MOST_CLASSES = 20, 5


def task_table(estimator: MultiTaskELM) -> str:
    """Return a table of the tasks of a fitted estimator, as HTML; all names are escaped.

    It has what is known: the rows and the shares of the parts after a fit; the noise with a common part; classes.
    """
    tasks = list(estimator.model_.heads)
    known: pd.DataFrame = getattr(estimator, "sites_", pd.DataFrame())
    columns = {name: [_known(known, task, name) for task in tasks[:_MOST_TASKS]] for name in known.columns}
    columns |= _noise(estimator, tasks[:_MOST_TASKS])
    if estimator.model_.kind == "classification":
        columns["classes"] = [_classes(estimator, task) for task in tasks[:_MOST_TASKS]]
    head = "".join(f"<th>{escape(name)}</th>" for name in ("task", *columns))
    lines = [
        f"<tr><th>{escape(str(task))}</th>{''.join(f'<td>{escape(cell)}</td>' for cell in cells)}</tr>"
        for task, *cells in zip(tasks[:_MOST_TASKS], *columns.values(), strict=True)
    ]
    caption = f"{count(len(tasks), 'task')}{': the first ' + str(_MOST_TASKS) if len(tasks) > _MOST_TASKS else ''}"
    return f"<table><caption>{caption}</caption><tr>{head}</tr>{''.join(lines)}</table>"


def _known(table: pd.DataFrame, task: Label, name: str) -> str:
    """Return a fact of the fit; a dash of a task that came later."""
    if task not in table.index:
        return "–"
    value = float(table[name].to_numpy()[list(table.index).index(task)])
    return f"{value:,.0f}" if name == "rows" else f"{100 * value:.0f} %"


def _noise(estimator: MultiTaskELM, tasks: list[Label]) -> dict[str, list[str]]:
    """Return the standard deviation of each task's noise, in units of the targets."""
    model = estimator.model_
    if model.common is None or model.kind == "classification":
        return {}
    unit = estimator._outputs().unit * np.sqrt(model.common.s2)
    return {"noise": [_numbers(unit * np.exp(-model.heads[task].log_w / 2)) for task in tasks]}


def _numbers(values: FloatArray) -> str:
    return ", ".join(f"{value:.3g}" for value in values[:_MOST_CLASSES]) + more(len(values), _MOST_CLASSES)


def _classes(estimator: MultiTaskELM, task: Label) -> str:
    classes = estimator.model_.heads[task].classes
    names = [] if classes is None else classes.tolist()
    return ", ".join(map(str, names[:_MOST_CLASSES])) + more(len(names), _MOST_CLASSES)
