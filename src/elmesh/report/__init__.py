"""Figures from data, and HTML pages that need only a browser.

:mod:`~elmesh.report.page` lays out a page for any experiment. :mod:`~elmesh.report.curves` and
:mod:`~elmesh.report.site_plots` draw plots; :mod:`~elmesh.report.figures` has their style, arranges and saves them.
:mod:`~elmesh.report.site_study` describes what sites gain by learning together, and :mod:`~elmesh.report.site_report`
makes a figure and a page from it; :mod:`~elmesh.report.gains_report` is the page of a fit, with the sections of
:mod:`~elmesh.report.explanation_report`, :mod:`~elmesh.report.comparison_report` that of a comparison, and
:mod:`~elmesh.report.evaluation_report` that of an evaluation. :mod:`~elmesh.report.displays` has the same plots for
users of Python.
:mod:`~elmesh.report.wording` fills numbers into the texts of a page.
"""

from elmesh.report.comparison_report import comparison_page, comparison_table, site_table
from elmesh.report.curves import Curve, draw_curves
from elmesh.report.evaluation_report import evaluation_page
from elmesh.report.figures import STYLES, figure, save_figure
from elmesh.report.gains_report import gains_page, gains_table, page_without_gains
from elmesh.report.page import Claim, Figure, Page, Section, Table, Verdict, count_verdicts, render
from elmesh.report.site_report import draw_overview, study_page, study_table
from elmesh.report.site_study import SiteResult, SiteStudy, Training
from elmesh.report.wording import Wording

__all__ = [
    "STYLES", "Claim", "Curve", "Figure", "Page", "Section", "SiteResult", "SiteStudy", "Table", "Training", "Verdict",
    "Wording", "comparison_page", "comparison_table", "count_verdicts", "draw_curves", "draw_overview",
    "evaluation_page", "figure", "gains_page", "gains_table", "page_without_gains", "render", "save_figure",
    "site_table", "study_page", "study_table",
]  # fmt: skip
