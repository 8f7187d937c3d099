"""A page that needs nothing but a browser: a headline, then sections of text, claims, figures and tables.

All text is escaped by the template; a figure is drawn as SVG inside the page, and the page forbids itself any
request to elsewhere. What is on a page is data (:class:`Page`), so that every experiment can have one.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from importlib.resources import files

import matplotlib.figure
from jinja2 import Environment, StrictUndefined

from elmesh.report.claims import Claim, Verdict
from elmesh.report.svg import to_svg

__all__ = ["Fact", "Figure", "Page", "Section", "Table", "render", "tally"]

# A verdict has a sign and words besides its colour. The words: of one claim, and of several.
SIGNS = {Verdict.AGREES: "✓", Verdict.DIFFERS: "≠", Verdict.UNDETERMINED: "?"}
WORDS = {
    Verdict.AGREES: ("agrees", "agree"),
    Verdict.DIFFERS: ("differs", "differ"),
    Verdict.UNDETERMINED: ("could not be determined",) * 2,
}
# Inches from which a drawing takes the whole width of the page.
BROAD = 7.0


@dataclass(frozen=True)
class Fact:
    """A number worth large type, and what it is."""

    value: str
    meaning: str


@dataclass(frozen=True)
class Table:
    """Rows of text; columns after the first are numbers unless named in `words`. `note` stands under it."""

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    words: frozenset[str] = frozenset()
    note: str = ""


@dataclass(frozen=True)
class Figure:
    """A drawing with its name (``id="fig-…"``), heading, caption, and words for those who cannot see it.

    `numbers` is a table of what is drawn, folded under the figure. A drawing of more than 7 inches, such as
    one of panels, takes the whole width of the page.
    """

    id: str
    title: str
    caption: str
    description: str
    drawing: matplotlib.figure.Figure
    numbers: Table | None = None


@dataclass(frozen=True)
class Section:
    """A heading, then paragraphs, claims, figures, tables and explained terms, in this order.

    A term is a pair of its name and its explanation, or a triple with the id that it links to.
    """

    title: str
    paragraphs: Sequence[str] = ()
    figures: Sequence[Figure] = ()
    tables: Sequence[Table] = ()
    terms: Sequence[tuple[str, str] | tuple[str, str, str]] = ()
    claims: Sequence[Claim] = ()


@dataclass(frozen=True)
class Page:
    """All that a page says, top to bottom; with `contents`, a list of its sections and what they found."""

    title: str
    headline: str
    lead: Sequence[str]
    facts: Sequence[Fact] = ()
    sections: Sequence[Section] = field(default_factory=tuple)
    foot: str = ""
    contents: bool = False


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
    environment.filters |= {"svg": _svg, "unbroken": _unbroken, "broad": _broad}
    template = files("elmesh.report").joinpath("template.html").read_text(encoding="utf-8")
    sections = list(zip(_ids(page.sections), page.sections, strict=True))
    parts = {"page": page, "sections": sections, "tally": tally, "signs": SIGNS}
    return environment.from_string(template).render(parts)


def tally(claims: Iterable[Claim]) -> dict[Verdict, str]:
    """Count claims by verdict, in words; a verdict that none has is left out.

    Parameters
    ----------
    claims : iterable of Claim

    Returns
    -------
    dict
        Verdict to its count and the word that goes with it.

    Examples
    --------
    >>> claims = [Claim("It falls.", "It fell.", Verdict.AGREES)] * 3 + [Claim("To 1.", "To 2.", Verdict.DIFFERS)]
    >>> ", ".join(tally(claims).values())
    '3 agree, 1 differs'
    """
    counts = Counter(claim.verdict for claim in claims)
    return {
        verdict: f"{counts[verdict]} {WORDS[verdict][counts[verdict] > 1]}" for verdict in Verdict if counts[verdict]
    }


def _unbroken(text: str) -> str:
    """Keep a number and its unit on one line."""
    return re.sub(r"(?<=\d) (?=%|MB|×)|(?<=×) (?=\d)", "\N{NO-BREAK SPACE}", text)


def _ids(sections: Sequence[Section]) -> list[str]:
    """Name sections by their titles, so that a link to one lasts; a title that comes again gets its number.

    >>> _ids([Section("Figure 3: (a) and (b)"), Section("Data"), Section("Data"), Section("μ")])
    ['section-figure-3-a-and-b', 'section-data', 'section-data-2', 'section-μ']
    """
    slugs = ["-".join(["section", *re.findall(r"\w+", section.title.lower())]) for section in sections]
    return [slug if slugs.index(slug) == i else f"{slug}-{slugs[: i + 1].count(slug)}" for i, slug in enumerate(slugs)]


def _broad(figure: Figure) -> bool:
    return bool(figure.drawing.get_figwidth() > BROAD)


def _svg(figure: Figure) -> str:
    return to_svg(figure.drawing, prefix=figure.id, title=figure.title, description=figure.description)
