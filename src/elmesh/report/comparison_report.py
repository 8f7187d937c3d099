"""The page of a comparison: which method to use, how sure that is, and what holds at each site."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import pandas as pd
from matplotlib.axes import Axes

from elmesh.estimators.gains import WRONG, format_error
from elmesh.evaluation.comparison import Comparison
from elmesh.evaluation.rivals import METHODS, OWN
from elmesh.report.figures import STYLES, figure
from elmesh.report.page import Page, Section, Table
from elmesh.report.site_plots import Interval, Points, draw_changes, draw_points, site_label
from elmesh.report.site_study import Change
from elmesh.report.wording import Wording
from elmesh.text import count

__all__ = ["comparison_page", "comparison_table", "site_table"]

# Most sites in a figure.
_MOST = 16
_VERDICTS = {-1: "clearly better", 0: "not clear", 1: "clearly worse"}
_MEASURES = {"log_loss": "Log loss", "auc": "AUC"}
_ALONE = "elmesh-alone"


def comparison_table(found: Comparison) -> Table:
    """Return the scores of each method, the least error first."""
    measures = {key: title for key, title in _MEASURES.items() if key in found.scores}
    rows = []
    for name, row in found.table.sort_values("error", kind="stable").iterrows():
        sign = "+" if row["error_difference"] >= 0 else "\N{MINUS SIGN}"
        change, deviation = (format_error(abs(row[f"error_{x}"]), found.unit) for x in ("difference", "standard_error"))
        against = [f"{sign}{change} ± {deviation}", _VERDICTS[found.clear(str(name))]]
        place = "in one place" if row["needs_all_rows"] else "at sites"
        sites = f"{row['sites_better']} / {row['sites_worse']}"
        rows.append([
            row["title"], place, found.format(str(name)), *(["–", "–"] if name == OWN else against),
            *(f"{row[measure]:.3f}" for measure in measures), f"{row['sites_best']}", "–" if name == OWN else sites,
            f"{row['seconds']:.2g}",
        ])  # fmt: skip
    table = Wording("elmesh.report", "compare_errors").table("methods", rows, unit=found.unit)
    k = list(table.columns).index("Best at")
    return replace(table, columns=[*table.columns[:k], *measures.values(), *table.columns[k:]])


def site_table(found: Comparison) -> Table:
    """Return the errors of every site: alone, together, and by the best other method there; most rows first."""
    rivals = [name for name in found.methods if name not in (OWN, _ALONE)]
    rows = []
    for site, row in found.by_site.sort_values("rows", ascending=False, kind="stable").iterrows():
        errors = [format_error(row[name], found.unit) if name in found.methods else "–" for name in (_ALONE, OWN)]
        best = min(rivals, key=row.to_dict().__getitem__, default=None)
        other = ["–", "–"] if best is None else [METHODS[best].title, format_error(row[best], found.unit)]
        clearly = METHODS[row["best"]].title if row["clearly_best"] else "–"
        rows.append([str(site), f"{row['rows']:,}", *errors, *other, clearly])
    return Wording("elmesh.report", "compare_errors").table("sites", rows, unit=found.unit)


def comparison_page(found: Comparison) -> Page:
    """Return the page, with the figures ``fig-methods`` and ``fig-sites``."""
    wording = Wording("elmesh.report", "compare", unit=found.unit)
    near, far = (found.best_other(pooled=pooled) for pooled in (False, True))
    facts = [(found.format(OWN), wording.text("facts_own"))]
    for name, key in ((near, "facts_near"), (far, "facts_far")):
        if name is not None:
            facts.append((found.format(name), wording.text(key, title=METHODS[name].title)))
    beaten = sum(found.by_site["clearly_best"] & (found.by_site["best"] != OWN))
    facts.append((f"{beaten} of {len(found.by_site)}", wording.text("facts_sites")))
    lead = [wording.text("lead", rows=f"{len(found.losses):,}", sites=count(len(found.by_site), "site"))]
    if "log_loss" in found.scores:
        lead.insert(0, wording.text("log_loss", sentence=found.sentence("log_loss")))
    return Page(
        title="elmesh: comparison with other methods",
        headline=found.sentence(),
        lead=[*lead, *found.notes],
        facts=facts,
        sections=[
            _errors(found),
            Wording("elmesh.report", "compare_how", folds=found.folds, repeats=count(found.repeats, "time")).section(),
        ],
        foot=wording.text("foot"),
    )


def _errors(found: Comparison) -> Section:
    sites = found.by_site.sort_values("rows", ascending=False, kind="stable")
    few = ""
    wording = Wording("elmesh.report", "compare_errors", unit=found.unit, headline=found.sentence())
    if len(sites) > _MOST:
        few, sites = wording.text("few", shown=_MOST, n=len(sites)), sites[:_MOST]
    best = found.best_other(pooled=True) or found.best_other(pooled=False)
    shown = [name for name in dict.fromkeys((OWN, _ALONE, best)) if name is not None and name in found.methods]
    height = 1.9 + 0.34 * max(len(found.methods), len(sites) + len(shown))
    methods = figure(partial(_draw_methods, found=found), size=(5.4, height))
    by_site = figure(partial(_draw_sites, sites=sites, shown=shown, unit=found.unit), size=(5.4, height))
    return wording.section(
        figures=[
            wording.figure("methods", methods),
            wording.figure("sites", by_site, site_table(found), few=few),
        ],
        tables=[comparison_table(found)],
    )


def _draw_methods(ax: Axes, found: Comparison) -> None:
    own, rows = float(found.scores["error"][OWN].mean()), []
    for name, row in found.table.sort_values("error", kind="stable").iterrows():
        change = Change(row["error_difference"], row["error_low"], row["error_high"]).relative_to(own)
        rows.append(Interval(row["title"], change, found.format(str(name))))
    draw_changes(ax, rows, "difference from elmesh together", "error")


def _draw_sites(ax: Axes, sites: pd.DataFrame, shown: Sequence[str], unit: str) -> None:
    factor, label = (100.0, "wrong rows, %") if unit == WRONG else (1.0, f"error ({unit})")
    series = [
        Points(METHODS[name].title, color, marker, (factor * sites[name]).tolist())
        for name, (color, _, marker) in zip(shown, STYLES, strict=False)
    ]
    draw_points(ax, [site_label(str(site), rows) for site, rows in sites["rows"].items()], series, label)
