"""The page of a fit: who gains by learning together, what predictions depend on; the training comes last."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from elmesh.estimators.explanation import Explanation
from elmesh.estimators.gains import FEWEST_ROWS, WRONG, SiteGains, TaskGain, format_error
from elmesh.math.certificate import Certificate
from elmesh.report.displays import SiteGainDisplay
from elmesh.report.explanation_report import explanation_sections
from elmesh.report.figures import figure
from elmesh.report.page import Page, Section, Table
from elmesh.report.site_plots import draw_shares, drawn_tasks
from elmesh.report.wording import Wording
from elmesh.text import listed

__all__ = ["gains_page", "gains_table", "page_without_gains"]

# Most tasks in a figure.
_MOST = 24


def _format_change(one: TaskGain, unit: str) -> str:
    sign = "+" if one.change > 0 else "\N{MINUS SIGN}" if one.change < 0 else ""
    # Shares differ by points, which are not per cent of an error.
    factor, points = (100.0, " points") if unit == WRONG else (1.0, "")
    half = factor * (one.high - one.change)
    known = one.rows >= FEWEST_ROWS and half < float("inf")
    around = f" ± {half:,.3g}" if known else ""
    return f"{sign}{factor * abs(one.change):,.3g}{around}{points}"


def gains_table(gains: SiteGains) -> Table:
    """Return the errors of every task, the largest gain first, and of all rows."""
    order = sorted(gains.tasks, key=lambda one: one.change / max(one.alone, 1e-300))
    rows = [_row(one, gains.unit) for one in order]
    rows.append(_row(gains.overall, gains.unit))
    return Wording("elmesh.report", "fit_gains").table("errors", rows, unit=gains.unit)


def _row(one: TaskGain, unit: str) -> list[str]:
    errors = [format_error(error, unit) for error in one.errors]
    return [str(one.task), one.verdict, *errors[:2], _format_change(one, unit), errors[2], f"{one.rows:,}"]


def gains_page(
    gains: SiteGains, summary: Mapping[str, Any], explanation: Explanation | None = None, notes: Sequence[str] = ()
) -> Page:
    """Return the page of a fit, with the figures ``fig-errors`` and ``fig-shares``, and those of an explanation.

    ``summary`` has the facts about the fit, as the command prints them, and ``notes`` what was noted about the table.
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
        title="elmesh: what sites gain by learning together",
        headline=gains.overall_sentence(),
        lead=[gains.sites_sentence(), *_advice(gains, wording), wording.text("how")],
        facts=facts,
        notes=notes,
        sections=[
            _gains(gains),
            *([] if explanation is None else explanation_sections(explanation)),
            Wording("elmesh.report", "fit_guide").section(),
            _training(summary),
        ],
        foot=wording.text("foot"),
    )


def _advice(gains: SiteGains, wording: Wording) -> list[str]:
    """Return what sites that are clearly better alone can do."""
    worse = [str(one.task) for one in gains.tasks if one.verdict == "better alone"]
    return [wording.text("better_alone", names=listed(worse))] if worse else []


def page_without_gains(summary: Mapping[str, Any], explanation: Explanation, notes: Sequence[str] = ()) -> Page:
    """Return the page of a fit of which gains are not measured: what predictions depend on, and facts about the fit."""
    wording = Wording("elmesh.report", "fit")
    return Page(
        title="elmesh: what predictions depend on",
        headline=f"{explanation.columns_sentence().partition(':')[0].rstrip('.')}.",
        lead=[wording.text("one_task" if len(summary["tasks"]) == 1 else "no_gains")],
        notes=notes,
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
