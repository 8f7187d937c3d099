"""An HTML page that needs only a browser: a headline, then sections of text, claims, figures and tables.

The content of a page is data (:class:`Page`). The template escapes all text and embeds figures as SVG; its content
security policy forbids all requests.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache
from importlib.resources import files

import matplotlib.figure
from jinja2 import Environment, StrictUndefined, Template

from elmesh.report.figures import to_svg

__all__ = ["Claim", "Figure", "Page", "Section", "Table", "Verdict", "count_verdicts", "render"]

# Figures wider than this, in inches, take the whole width of the page.
WIDE = 7.0


class Verdict(Enum):
    """Whether a result confirms a claim; the value is the wording in reports."""

    AGREES = "agrees"
    DIFFERS = "differs"
    UNDETERMINED = "could not be determined"


# Readers who cannot see the color of a verdict see its sign.
SIGNS = {Verdict.AGREES: "✓", Verdict.DIFFERS: "≠", Verdict.UNDETERMINED: "?"}
PLURALS = {Verdict.AGREES: "agree", Verdict.DIFFERS: "differ"}


@dataclass(frozen=True)
class Claim:
    """A statement of the paper, the result here, and the verdict."""

    statement: str
    found: str
    verdict: Verdict


@dataclass(frozen=True)
class Table:
    """Rows of text; columns after the first are numbers, except those in ``text_columns``."""

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    text_columns: frozenset[str] = frozenset()
    note: str = ""


@dataclass(frozen=True)
class Figure:
    """A drawing with its id (``fig-…``), heading, caption, and a description for readers who cannot see it.

    ``values`` is an optional table of the data in the figure, folded below it unless it is ``unfolded``.
    """

    id: str
    title: str
    caption: str
    description: str
    drawing: matplotlib.figure.Figure
    values: Table | None = None
    unfolded: bool = False

    @property
    def wide(self) -> bool:
        """Whether the figure takes the whole width of the page."""
        return bool(self.drawing.get_figwidth() > WIDE)

    @property
    def svg(self) -> str:
        """The drawing as an SVG element."""
        return to_svg(self.drawing, prefix=self.id, title=self.title, description=self.description)


@dataclass(frozen=True)
class Section:
    """A heading, then paragraphs, claims, figures, tables and explained terms, in this order.

    A term is a pair of its name and its explanation, or a triple with the id that it links to.
    """

    title: str
    paragraphs: Sequence[str] = ()
    figures: Sequence[Figure] = ()
    tables: Sequence[Table] = ()
    terms: Sequence[Sequence[str]] = ()
    claims: Sequence[Claim] = ()

    @property
    def id(self) -> str:
        """The id that links refer to, from the title.

        >>> Section("Figure 3: (a) and (b)").id
        'section-figure-3-a-and-b'
        """
        return "-".join(["section", *re.findall(r"\w+", self.title.lower())])


@dataclass(frozen=True)
class Page:
    """The content of a page, top to bottom; ``contents`` adds a table of contents with the verdicts per section.

    A fact is a number, shown in large type, and its meaning. Notes are what a reader should check before all else.
    """

    title: str
    headline: str
    lead: Sequence[str]
    facts: Sequence[tuple[str, str]] = ()
    sections: Sequence[Section] = ()
    foot: str = ""
    contents: bool = False
    notes: Sequence[str] = ()


def render(page: Page) -> str:
    """Return a page as an HTML document that loads nothing.

    >>> html = render(Page("A run", "No rows were lost", ["3 < 4."]))
    >>> "<h1>No rows were lost</h1>" in html, "3 &lt; 4." in html
    (True, True)
    """
    return _template().render(page=page, count_verdicts=count_verdicts, signs=SIGNS)


@cache
def _template() -> Template:
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters["keep_units"] = _keep_units
    return environment.from_string((files("elmesh.report") / "template.html").read_text(encoding="utf-8"))


def count_verdicts(claims: Iterable[Claim]) -> dict[Verdict, str]:
    """Count claims by verdict, in words; verdicts without claims are left out.

    >>> claims = [Claim("It falls.", "It fell.", Verdict.AGREES)] * 3 + [Claim("To 1.", "To 2.", Verdict.DIFFERS)]
    >>> ", ".join(count_verdicts(claims).values())
    '3 agree, 1 differs'
    """
    counts = Counter(claim.verdict for claim in claims)
    return {
        verdict: f"{n} {verdict.value if n == 1 else PLURALS.get(verdict, verdict.value)}"
        for verdict in Verdict
        if (n := counts[verdict])
    }


def _keep_units(text: str) -> str:
    """Put no-break spaces between numbers and their units."""
    return re.sub(r"(?<=\d) (?=%|[kMGT]B|×)|(?<=×) (?=\d)", "\N{NO-BREAK SPACE}", text)
