"""Pages of the reference, one per public object, from the lists of public names (``__all__``).

An object that several modules export has one page, under the first of `MODULES` that exports it.
"""

from __future__ import annotations

import importlib
import inspect
import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sphinx.application import Sphinx

#: Public modules in the order of the reference, with the title of their page.
MODULES = {
    "elmesh": "Estimators, solvers and displays",
    "elmesh.datasets": "Data sets",
    "elmesh.arena": "Public tables with sites in them",
    "elmesh.run": "Where and how a fit runs",
    "elmesh.agent": "Agents of a network",
    "elmesh.privacy": "Differential privacy",
    "elmesh.errors": "Errors and warnings",
    "elmesh.comm.network.errors": "Errors of a network",
    "elmesh.tables": "Tables",
    "elmesh.report": "Figures and pages",
    "elmesh.solvers": "Registered solvers",
    "elmesh.solvers.base": "A solver of one's own: base classes",
    "elmesh.solvers.state": "A solver of one's own: state",
    "elmesh.comm.requests": "A solver of one's own: requests",
}


def public_pages() -> dict[str, list[tuple[str, str]]]:
    """Return for every public module its names, each with the full name under which it has a page."""
    pages: dict[int, str] = {}
    found: dict[str, list[tuple[str, str]]] = {}
    for module in MODULES:
        namespace = importlib.import_module(module)
        found[module] = []
        for name in sorted(namespace.__all__, key=str.lower):
            value = getattr(namespace, name)
            full = f"{module}.{name}"
            if inspect.isclass(value) or inspect.isroutine(value):
                full = pages.setdefault(id(value), full)
            found[module].append((name, full))
    return found


def write_pages(folder: Path) -> None:
    """Write one page per module, which lists its names, and from which autosummary makes those of the names."""
    folder.mkdir(parents=True, exist_ok=True)
    for module, names in public_pages().items():
        own = [name for name, full in names if full == f"{module}.{name}"]
        others = [full for name, full in names if full != f"{module}.{name}"]
        title = f"{module}: {MODULES[module][0].lower() + MODULES[module][1:]}"
        lines = [title, "=" * len(title), "", f".. automodule:: {module}", "   :no-members:", ""]
        if own:
            lines += [".. currentmodule:: " + module, "", ".. autosummary::", "   :toctree: generated", ""]
            lines += [f"   {name}" for name in own] + [""]
        if others:
            lines += ["Also exported here: " + ", ".join(f":py:obj:`{full}`" for full in others) + ".", ""]
        page = folder / f"{module}.rst"
        text = "\n".join(lines)
        if not page.exists() or page.read_text(encoding="utf-8") != text:
            page.write_text(text, encoding="utf-8")


def skip_member(app: Sphinx, what: str, name: str, member: object, skip: bool, options: object) -> bool | None:
    """Leave out scikit-learn's methods for metadata routing, whose text links to its own pages."""
    return True if name == "get_metadata_routing" or re.fullmatch(r"set_\w+_request", name) else None


def setup(app: Sphinx) -> dict[str, bool]:
    """Write the pages before autosummary looks for them."""
    app.connect("autodoc-skip-member", skip_member)
    write_pages(Path(app.srcdir) / "reference" / "api")
    return {"parallel_read_safe": True, "parallel_write_safe": True}
