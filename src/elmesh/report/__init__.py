"""Figures from data, and HTML pages that need only a browser.

:mod:`~elmesh.report.page` lays out a page for any experiment. :mod:`~elmesh.report.curves` and
:mod:`~elmesh.report.site_plots` draw plots; :mod:`~elmesh.report.figures` has their style, arranges and saves them.
:mod:`~elmesh.report.comparison` describes a comparison of methods, and :mod:`~elmesh.report.comparison_report` makes a
figure and a page from it. :mod:`~elmesh.report.wording` fills numbers into the texts of a page.
"""

from elmesh.report.comparison import Comparison, MethodResult
from elmesh.report.comparison_report import comparison_page, draw_overview
from elmesh.report.curves import Curve, draw_curves
from elmesh.report.figures import STYLES, figure, save_figure
from elmesh.report.page import Claim, Figure, Page, Section, Table, Verdict, count_verdicts, render
from elmesh.report.wording import Wording

__all__ = [
    "STYLES", "Claim", "Comparison", "Curve", "Figure", "MethodResult", "Page", "Section", "Table", "Verdict",
    "Wording", "comparison_page", "count_verdicts", "draw_curves", "draw_overview", "figure", "render", "save_figure",
]  # fmt: skip
