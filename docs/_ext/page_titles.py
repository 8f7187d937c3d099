"""Links whose text is a file name, as Markdown readers see them, get the title of the page on the site."""

from __future__ import annotations

import posixpath
import re

from docutils import nodes
from sphinx.application import Sphinx


def show_titles(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """Replace the text ``model.md`` of a link by the title of that page."""
    for link in doctree.findall(nodes.reference):
        if not link.get("internal") or not re.fullmatch(r"[\w/-]+\.md", link.astext()):
            continue
        path = link.get("refuri", "").partition("#")[0].removesuffix(".html")
        target = posixpath.normpath(posixpath.join(posixpath.dirname(docname), path)) if path else docname
        if target in app.env.titles:
            link[:] = [nodes.Text(app.env.titles[target].astext())]


def setup(app: Sphinx) -> dict[str, bool]:
    """Change links once all pages are known."""
    app.connect("doctree-resolved", show_titles)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
