"""The sections of a page that explain a model: which columns matter, their effects, and which tasks are alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd

from elmesh.estimators.explanation import Effect, Explanation, column_name
from elmesh.estimators.gains import format_error
from elmesh.report.displays import EffectDisplay, ImportanceDisplay, SiteMapDisplay
from elmesh.report.explanation_plots import MOST_CATEGORIES, most_different
from elmesh.report.figures import figure
from elmesh.report.page import Figure, Section, Table
from elmesh.report.wording import Wording

__all__ = ["explanation_sections"]

# Most columns of the first figure, tasks with a name in an effect and on the map.
_COLUMNS, _NAMED, _ON_MAP = 10, 4, 12


def explanation_sections(explanation: Explanation) -> list[Section]:
    """Return the sections, with the figures ``fig-importance``, ``fig-effect-1`` and more, and ``fig-map``."""
    wording = Wording("elmesh.report", "fit_columns")
    effects = [_effect(effect, k + 1, wording) for k, effect in enumerate(_shown_effects(explanation))]
    columns = wording.section(
        figures=[_importance(explanation, wording), *effects], sentence=explanation.columns_sentence(),
        rows=explanation.rows, n_rows=explanation.n_rows,
    )  # fmt: skip
    return [columns, _map(explanation)] if len(explanation.distances) > 1 else [columns]


def _importance(explanation: Explanation, wording: Wording) -> Figure:
    table, unit = explanation.importance.head(_COLUMNS), explanation.unit
    n, sentence = len(explanation.importance), explanation.columns_sentence()
    few = wording.text("few", shown=_COLUMNS, n=n) if n > _COLUMNS else ""
    overall = [
        f"{format_error(value, unit)} ± {format_error(2 * error, unit)}"
        for value, error in zip(table["importance"], table["standard_error"], strict=True)
    ]
    by_task = explanation.task_importance["importance"]
    rows = [["all rows", *overall]]
    for task in explanation.distances.index:
        rows.append([str(task), *(format_error(by_task.loc[task, column], unit) for column in table.index)])
    values = Table(wording.text("shuffled", few=few, unit=unit), ["Site", *map(column_name, table.index)], rows)
    drawing = figure(partial(ImportanceDisplay(explanation).plot, most=_COLUMNS), size=(5.4, 1.3 + 0.3 * len(table)))
    error = format_error(explanation.error, unit)
    return wording.figure("importance", drawing, values, few=few, sentence=sentence, unit=unit, error=error)


def _shown_effects(explanation: Explanation) -> list[Effect]:
    """Return the effects of the three most important columns, or of two if no more matter clearly."""
    known = list(dict.fromkeys(effect.column for effect in explanation.effects))
    clear = set(explanation.clear_columns)
    return [explanation.effect(column) for column in known[: 3 if set(known[:3]) <= clear else 2]]


def _effect(effect: Effect, number: int, wording: Wording) -> Figure:
    what, column = effect.predicted[0].upper() + effect.predicted[1:], column_name(effect.column)
    overall, n, n_tasks = effect.overall, len(effect.overall), len(effect.tasks.columns)
    named = most_different(effect, _NAMED)
    lines = differing = ""
    if n_tasks > 1:
        lines = wording.text("lines" if n_tasks > _NAMED + 1 else "all_lines") + " "
        differing = wording.text("differing", names=", ".join(map(str, named)))
    few = wording.text("categories", n=n) if effect.kind == "category" and n > MOST_CATEGORIES else ""
    low, high = int(np.argmin(overall)), int(np.argmax(overall))
    texts = _texts(overall.index)
    rows = [
        [text, *(f"{x:.4g}" for x in (mean, *own))]
        for text, mean, own in zip(texts, overall, effect.tasks[named].to_numpy().tolist(), strict=True)
    ]
    values = Table(
        wording.text("by_value", what=what, column=column),
        [column, "all rows", *map(str, named)],
        rows,
    )
    found = wording.figure(
        "effect", figure(EffectDisplay(effect).plot, size=(5.4, 4.0)), values, what=what, column=column,
        lines=lines, few=few, differing=differing, low=f"{overall.iloc[low]:.3g}", lowest=texts[low],
        high=f"{overall.iloc[high]:.3g}", highest=texts[high],
    )  # fmt: skip
    return replace(found, id=f"fig-effect-{number}")


def _texts(values: Sequence[object] | pd.Index) -> list[str]:
    """Return the values of a column as text."""

    def text(value: object) -> str:
        if value is None:
            return "missing"
        if isinstance(value, pd.Timestamp):
            return value.isoformat(" ").removesuffix(" 00:00:00")
        return f"{value:.6g}" if isinstance(value, float) else str(value)

    return [text(value) for value in values]


def _map(explanation: Explanation) -> Section:
    unit, n = explanation.distance_unit, len(explanation.distances)
    wording = Wording("elmesh.report", "fit_map", unit=unit, sentence=explanation.tasks_sentence())
    labels = list(explanation.distances.index)
    group = {task: str(k + 1) for k, members in enumerate(explanation.groups) for task in members}
    others = explanation.distances.to_numpy() + np.where(np.eye(n) > 0, np.inf, 0.0)
    far = explanation.mean_distances.loc[labels].to_numpy()
    rows = []
    for k in np.argsort(-far, kind="stable"):
        nearest = int(others[k].argmin())
        distances = [format_error(float(far[k]), unit), str(labels[nearest]), format_error(others[k, nearest], unit)]
        rows.append([str(labels[k]), *distances, group.get(labels[k], "–")])
    named = wording.text("named", shown=_ON_MAP) + " " if n > _ON_MAP else ""
    drawing = figure(partial(SiteMapDisplay(explanation).plot, labelled=_ON_MAP), size=(5.4, 4.4))
    shown = wording.figure(
        "map", drawing, wording.table("map", rows), share=100 * explanation.map_share, named=named,
        groups=wording.text("groups") if explanation.groups else "",
    )  # fmt: skip
    return wording.section(figures=[replace(shown, unfolded=True)])
