"""The page of a fit: who gains by learning together, what predictions depend on; the training comes last."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from elmesh.estimators.explanation import Explanation
from elmesh.estimators.gains import SiteGains, TaskGain, format_error
from elmesh.math.certificate import Certificate
from elmesh.report.displays import SiteGainDisplay
from elmesh.report.explanation_report import explanation_sections
from elmesh.report.figures import figure
from elmesh.report.page import Page, Section, Table
from elmesh.report.site_plots import draw_shares, drawn_tasks
from elmesh.report.wording import Wording

__all__ = ["gains_page", "gains_table", "page_without_gains"]

# Most tasks in a figure.
_MOST = 24


def _format_change(one: TaskGain, unit: str) -> str:
    sign = "+" if one.change > 0 else "\N{MINUS SIGN}" if one.change < 0 else ""
    text = f"{sign}{format_error(abs(one.change), unit)}"
    half = one.high - one.change
    return f"{text} ± {format_error(half, unit)}" if half < float("inf") else text


def gains_table(gains: SiteGains) -> Table:
    """Return the errors of every task, the largest gain first, and of all rows."""
    order = sorted(gains.tasks, key=lambda one: one.change / max(one.alone, 1e-300))
    rows = [_row(one, gains.unit) for one in order]
    rows.append(_row(gains.overall, gains.unit))
    return Wording("elmesh.report", "fit_gains").table("errors", rows, unit=gains.unit)


def _row(one: TaskGain, unit: str) -> list[str]:
    errors = [format_error(error, unit) for error in one.errors]
    return [str(one.task), f"{one.rows:,}", *errors[:2], _format_change(one, unit), one.verdict, errors[2]]


def gains_page(gains: SiteGains, summary: Mapping[str, Any], explanation: Explanation | None = None) -> Page:
    """Return the page of a fit, with the figures ``fig-errors`` and ``fig-shares``, and those of an explanation.

    ``summary`` has the facts about the fit, as the command prints them.
    """
    unit = gains.unit
    names = ("alone", "together", "pooled")
    errors = {name: format_error(x, unit) for name, x in zip(names, gains.overall.errors, strict=True)}
    wording = Wording("elmesh.report", "fit", unit=unit, **errors)
    n = len(gains.tasks)
    found = [one.verdict for one in gains.tasks]
    kinds = {"gains": "better", "better alone": "worse", "as good alone": "same", "too few rows to tell": "unknown"}
    facts = [(f"{found.count(verdict)} of {n}", wording.text(f"facts_{key}")) for verdict, key in kinds.items()]
    facts.append((f"{errors['alone']} → {errors['together']}", wording.text("facts_error")))
    return Page(
        title="elmesh: what tasks gain by learning together",
        headline=gains.sentence(),
        lead=[wording.text("lead"), wording.text("how")],
        facts=facts,
        sections=[
            _gains(gains),
            *([] if explanation is None else explanation_sections(explanation)),
            Wording("elmesh.report", "fit_guide").section(),
            _training(summary),
        ],
        foot=wording.text("foot"),
    )


def page_without_gains(summary: Mapping[str, Any], explanation: Explanation) -> Page:
    """Return the page of a fit of which gains are not measured: what predictions depend on, and facts about the fit."""
    wording = Wording("elmesh.report", "fit")
    return Page(
        title="elmesh: what predictions depend on",
        headline=f"{explanation.columns_sentence().partition(':')[0].rstrip('.')}.",
        lead=[wording.text("one_task" if len(summary["tasks"]) == 1 else "no_gains")],
        facts=[],
        sections=[*explanation_sections(explanation), _training(summary)],
        foot=wording.text("foot_without_gains"),
    )


def _gains(gains: SiteGains) -> Section:
    n = len(gains.tasks)
    wording = Wording("elmesh.report", "fit_gains", unit=gains.unit, headline=gains.sentence())
    few = wording.text("few", shown=_MOST, n=n) if n > _MOST else ""
    size = (5.4, 1.5 + 0.3 * min(_MOST, n))
    errors = figure(partial(SiteGainDisplay(gains).plot, most=_MOST), size=size)
    shares = figure(partial(draw_shares, sites=drawn_tasks(gains, _MOST)), size=size)
    order: Sequence[TaskGain] = sorted(gains.tasks, key=lambda one: -one.shares[0])
    rows = [[str(one.task), *(f"{100 * share:.1f}" for share in one.shares)] for one in order]
    figures = [
        wording.figure("errors", errors, few=few),
        wording.figure("shares", shares, wording.table("shares", rows), few=few),
    ]
    return wording.section(figures=figures, tables=[gains_table(gains)])


def _training(summary: Mapping[str, Any]) -> Section:
    wording = Wording("elmesh.report", "fit_training")
    rows = [
        ["Predicts", ", ".join(summary["targets"])],
        ["Kind", summary["kind"]],
        ["Rows", f"{summary['rows']:,}"],
        ["Encoded columns", f"{len(summary['columns']):,}"],
        ["Method", summary["solver"]],
    ]
    if summary["rounds"]:
        rows.append(["Rounds", f"{summary['rounds']:,}"])
    if summary["certificate"] is not None:
        text = str(Certificate(**summary["certificate"]))
        rows.append(["Certificate of the fit to the training rows", text[0].upper() + text[1:]])
    privacy = summary["privacy"]
    confidential = wording.text("confidential") if privacy is None else f"{privacy['promise']} {privacy['model']}"
    return wording.section([confidential], tables=[wording.table("training", rows)])
