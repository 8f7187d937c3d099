"""A page that needs nothing but a browser: a headline, then sections of text, figures and tables, to HTML.

All text is escaped by the template; a figure is drawn as SVG inside the page, and the page forbids itself any
request to elsewhere. What is on a page is data (:class:`Page`), so that every experiment can have one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.resources import files

import matplotlib.figure
from jinja2 import Environment, StrictUndefined

from elmesh.report.svg import to_svg

__all__ = ["Fact", "Figure", "Page", "Section", "Table", "render"]


@dataclass(frozen=True)
class Fact:
    """A number worth large type, and what it is."""

    value: str
    meaning: str


@dataclass(frozen=True)
class Table:
    """Rows of text; columns after the first are numbers unless named in `words`."""

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    words: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Figure:
    """A drawing with its name (``id="fig-…"``), heading, caption, and words for those who cannot see it.

    `numbers` is a table of what is drawn, folded under the figure.
    """

    id: str
    title: str
    caption: str
    description: str
    drawing: matplotlib.figure.Figure
    numbers: Table | None = None


@dataclass(frozen=True)
class Section:
    """A heading, then paragraphs, figures, tables and explained terms, in this order.

    A term is a pair of its name and its explanation, or a triple with the id that it links to.
    """

    title: str
    paragraphs: Sequence[str] = ()
    figures: Sequence[Figure] = ()
    tables: Sequence[Table] = ()
    terms: Sequence[tuple[str, str] | tuple[str, str, str]] = ()


@dataclass(frozen=True)
class Page:
    """All that a page says, top to bottom."""

    title: str
    headline: str
    lead: Sequence[str]
    facts: Sequence[Fact] = ()
    sections: Sequence[Section] = field(default_factory=tuple)
    foot: str = ""


def render(page: Page) -> str:
    """Turn a page into HTML.

    Parameters
    ----------
    page : Page

    Returns
    -------
    str
        A whole document, of its own style and figures, that loads nothing.

    Examples
    --------
    >>> html = render(Page("A run", "Nothing was lost", ["3 < 4."]))
    >>> "<h1>Nothing was lost</h1>" in html, "3 &lt; 4." in html
    (True, True)
    """
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {"svg": _svg, "unbroken": _unbroken}
    template = files("elmesh.report").joinpath("template.html").read_text(encoding="utf-8")
    return environment.from_string(template).render(page=page)


def _unbroken(text: str) -> str:
    """Keep a number and its unit on one line."""
    return re.sub(r"(?<=\d) (?=%|MB|×)|(?<=×) (?=\d)", "\N{NO-BREAK SPACE}", text)


def _svg(figure: Figure) -> str:
    return to_svg(figure.drawing, prefix=figure.id, title=figure.title, description=figure.description)
