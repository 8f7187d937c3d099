"""A study of sites as an overview figure and as a page.

The page starts with who gains and how clear that is, then shows what each site's predictions are made of; how the
training went comes last. The words are in ``texts.toml``.
"""

from __future__ import annotations

from functools import partial

import matplotlib.figure
import numpy as np
from matplotlib.layout_engine import ConstrainedLayoutEngine

from elmesh.report.figures import COLORS, TEXT, figure
from elmesh.report.page import Page, Section, Table
from elmesh.report.site_plots import draw_errors, draw_shares
from elmesh.report.site_study import SiteResult, SiteStudy, format_signed
from elmesh.report.wording import Wording
from elmesh.text import data_size

__all__ = ["draw_overview", "study_page", "study_table"]

_TITLES = (
    "Error on new rows, alone → together (in brackets: training rows)",
    "What the predictions are made of",
)


def draw_overview(study: SiteStudy) -> matplotlib.figure.Figure:
    """Return both plots in one figure, 1600 pixels wide at its own resolution."""
    size = (14.4, max(6.2, 2.2 + 0.34 * len(study.sites)))
    layout = ConstrainedLayoutEngine(w_pad=0.16, h_pad=0.12)
    fig = matplotlib.figure.Figure(size, 1600 / size[0], layout=layout, facecolor=COLORS["surface"])
    fig.suptitle(study.headline(), x=0.014, ha="left", fontsize=TEXT + 5, fontweight="bold", color=COLORS["ink"])
    errors, shares = fig.subplots(1, 2)
    draw_errors(errors, study.sites, study.unit)
    draw_shares(shares, study.sites)
    for ax, title in zip((errors, shares), _TITLES, strict=True):
        ax.set_title(title, loc="left", fontsize=TEXT + 1, color=COLORS["ink"], pad=10)
    return fig


def study_table(study: SiteStudy) -> Table:
    """Return the errors of every site, largest gain first, and their mean."""
    order = sorted(study.sites, key=lambda site: site.change.mean)
    rows = [
        [
            site.name,
            *(f"{np.mean(errors):.2f}" for errors in (site.alone, site.together)),
            str(site.change),
            _VERDICTS[site.change.clear] if study.n_draws > 1 else "–",
            f"{site.rows:,}",
            f"{np.mean(site.pooled):.2f}",
            f"{100 * site.covered:.0f} %",
        ]
        for site in order
    ]
    change = study.mean("together") - study.mean("alone")
    alone, together, pooled = (f"{study.mean(method):.2f}" for method in ("alone", "together", "pooled"))
    covered = 100 * float(np.mean([site.covered for site in study.sites]))
    rows.append(["mean", alone, together, format_signed(change), "", "", pooled, f"{covered:.0f} %"])
    return Wording("elmesh.report", "gains").table("errors", rows, unit=study.unit, draws=study.n_draws)


_VERDICTS = {-1: "better", 0: "undecided", 1: "worse"}


def study_page(study: SiteStudy) -> Page:
    """Return a page with the figures ``fig-errors`` and ``fig-shares``."""
    settings = Wording("elmesh.report", "settings")
    software = {"settings": study.settings, "versions": study.versions}
    return Page(
        title="elmesh: what sites gain by learning together",
        headline=study.headline(),
        lead=[f"{study.site_summary()} {study.pooled_summary()}", study.introduction],
        facts=_facts(study),
        sections=[
            _gains(study),
            _parts(study),
            Wording("elmesh.report", "guide").section(),
            _training(study),
            settings.section(tables=[settings.table(key, list(items.items())) for key, items in software.items()]),
        ],
        foot=Wording("elmesh.report", "lead").text("foot"),
    )


def _facts(study: SiteStudy) -> list[tuple[str, str]]:
    wording = Wording("elmesh.report", "facts", unit=study.unit, draws=study.n_draws)
    better, worse, n = len(study.clear(-1)), len(study.clear(1)), len(study.sites)
    covered = 100 * float(np.mean([site.covered for site in study.sites]))
    return [
        (f"{better} of {n}", wording.text("better")),
        (f"{worse} of {n}", wording.text("worse")),
        (f"{study.mean('alone'):.2f} → {study.mean('together'):.2f}", wording.text("error", x=study.mean("pooled"))),
        (f"{covered:.0f} %", wording.text("covered")),
    ]


def _gains(study: SiteStudy) -> Section:
    wording = Wording(
        "elmesh.report", "gains", unit=study.unit, draws=study.n_draws, headline=study.headline(),
        summary=study.site_summary(),
    )  # fmt: skip
    height = 1.5 + 0.3 * len(study.sites)
    drawing = figure(partial(draw_errors, sites=study.sites, unit=study.unit), size=(5.4, height))
    return wording.section(figures=[wording.figure("errors", drawing)], tables=[study_table(study)])


def _parts(study: SiteStudy) -> Section:
    wording = Wording("elmesh.report", "parts", summary=study.parts_summary())
    drawing = figure(partial(draw_shares, sites=study.sites), size=(5.4, 1.5 + 0.3 * len(study.sites)))
    rows = [[site.name, *_percentages(site)] for site in sorted(study.sites, key=lambda site: -site.shares[0])]
    return wording.section(figures=[wording.figure("shares", drawing, wording.table("shares", rows))])


def _percentages(site: SiteResult) -> list[str]:
    return [f"{100 * share:.1f}" for share in site.shares]


def _training(study: SiteStudy) -> Section:
    training = study.training
    wording = Wording("elmesh.report", "training", training=training)
    notes = [study.traffic_summary()]
    if training.stop not in ("CONVERGED", "DIRECT"):
        notes.append(f"{training.stop}: {training.advice}")
    if training.certificate is not None:
        text = str(training.certificate)
        notes.append(wording.text("certificate", certificate=text[0].upper() + text[1:]))
    rows = [
        ["Seconds", f"{training.seconds:.1f}"],
        ["Rounds of the method", f"{training.rounds:,}"],
        ["Message rounds", f"{training.exchanges:,}"],
        ["Sent by all sites", data_size(training.bytes)],
        ["Columns of the shared part", f"{training.rank}"],
    ]
    return wording.section(notes, tables=[wording.table("training", rows)])
