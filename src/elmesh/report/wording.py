"""The words of a page: templates in ``texts.toml`` of a package, which numbers computed elsewhere fill in.

A place such as ``{runs}`` or ``{loss.mean:+.2f}`` has the syntax of :meth:`str.format`; line breaks count as spaces.
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import Any

import matplotlib.figure

from elmesh.report.page import Claim, Figure, Section, Table, Verdict

__all__ = ["Wording"]


@cache
def _load_texts(package: str) -> dict[str, Any]:
    return tomllib.loads(files(package).joinpath("texts.toml").read_text(encoding="utf-8"))


class Wording:
    """The texts of one section.

    Parameters
    ----------
    package : str
        The package that contains ``texts.toml``.
    name : str
        The table of the section in this file.
    **values : object
        Values that all texts of the section may refer to. Every method takes further ones.

    Examples
    --------
    >>> wording = Wording("elmesh.report", "lead", runs=5)
    >>> wording.fill("The mean over {runs} draws is {mean:.1f} %.", mean=2.04)
    'The mean over 5 draws is 2.0 %.'
    """

    def __init__(self, package: str, name: str, **values: object) -> None:
        self._texts = _load_texts(package)[name]
        self._values = values

    def fill(self, template: str, **values: object) -> str:
        """Return a template with its places filled."""
        return " ".join(template.split()).format_map(self._values | values)

    def text(self, key: str, **values: object) -> str:
        """Return the text under a key."""
        return self.fill(self._texts[key], **values)

    def claim(self, key: str, verdict: Verdict, **values: object) -> Claim:
        """Return a claim with its verdict."""
        entry = self._texts["claims"][key]
        return Claim(self.fill(entry["paper"], **values), self.fill(entry["here"], **values), verdict)

    def figure(self, id: str, drawing: matplotlib.figure.Figure, values: Table | None = None, **more: object) -> Figure:
        """Return a figure; ``values`` is the table folded below it."""
        entry = self._texts["figures"][id]
        title, caption, description = (self.fill(entry[key], **more) for key in ("title", "caption", "description"))
        return Figure(f"fig-{id}", title, caption, description, drawing, values)

    def table(self, key: str, rows: Sequence[Sequence[str]], **values: object) -> Table:
        """Return a table."""
        entry = self._texts["tables"][key]
        columns = [self.fill(column, **values) for column in entry["columns"]]
        texts = {name: self.fill(entry.get(name, ""), **values) for name in ("caption", "note")}
        return Table(columns=columns, rows=rows, text_columns=frozenset(entry.get("text_columns", ())), **texts)

    def section(
        self,
        paragraphs: Sequence[str] = (),
        *,
        claims: Sequence[Claim] = (),
        figures: Sequence[Figure] = (),
        tables: Sequence[Table] = (),
        **values: object,
    ) -> Section:
        """Return the section with its parts; ``paragraphs`` follow those of the file."""
        own = [self.fill(paragraph, **values) for paragraph in self._texts.get("paragraphs", ())]
        terms = [
            (self.fill(name), self.fill(text, **values), *link) for name, text, *link in self._texts.get("terms", ())
        ]
        return Section(self.text("title"), [*own, *paragraphs], figures, tables, terms, claims)
