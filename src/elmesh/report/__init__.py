"""What a run looked like: figures from data, and a page that needs nothing but a browser.

:mod:`~elmesh.report.figures` draws and :mod:`~elmesh.report.page` lays out, whatever the experiment.
:mod:`~elmesh.report.comparison` puts a comparison of methods into numbers and words, and
:mod:`~elmesh.report.comparison_page` makes a picture and a page of it.
"""

from elmesh.report.comparison import Comparison, Method
from elmesh.report.comparison_page import overview, page_of
from elmesh.report.page import Fact, Figure, Page, Section, Table, render

__all__ = [
    "Comparison",
    "Fact",
    "Figure",
    "Method",
    "Page",
    "Section",
    "Table",
    "overview",
    "page_of",
    "render",
]
