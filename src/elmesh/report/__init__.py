"""What a run looked like: figures from data, and a page that needs nothing but a browser.

:mod:`~elmesh.report.figures` and :mod:`~elmesh.report.curves` draw, :mod:`~elmesh.report.sheet` makes figures
of drawings and files of figures, and :mod:`~elmesh.report.page` lays out, whatever the experiment.
:mod:`~elmesh.report.comparison` puts a comparison of methods into numbers and words, and
:mod:`~elmesh.report.comparison_page` makes a picture and a page of it.
"""

from elmesh.report.claims import Claim, Verdict
from elmesh.report.comparison import Comparison, Method
from elmesh.report.comparison_page import overview, page_of
from elmesh.report.curves import Curve, draw_curves
from elmesh.report.page import Fact, Figure, Page, Section, Table, render, tally
from elmesh.report.sheet import figure, panels, save
from elmesh.report.style import STYLES

__all__ = [
    "STYLES",
    "Claim",
    "Comparison",
    "Curve",
    "Fact",
    "Figure",
    "Method",
    "Page",
    "Section",
    "Table",
    "Verdict",
    "draw_curves",
    "figure",
    "overview",
    "page_of",
    "panels",
    "render",
    "save",
    "tally",
]
