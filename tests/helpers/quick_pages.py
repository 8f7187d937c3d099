"""Pages without drawings: Matplotlib would take most of the time of a command."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from matplotlib.figure import Figure

from elmesh.report import figures

_PAGES = ("comparison_report", "evaluation_report", "explanation_report", "gains_report", "site_report")


@contextmanager
def drawn() -> Iterator[None]:
    """Draw the figures of pages here."""
    with pytest.MonkeyPatch.context() as patch:
        for module in _PAGES:
            patch.setattr(f"elmesh.report.{module}.figure", figures.figure)
        patch.setattr("elmesh.report.page.to_svg", figures.to_svg)
        yield


@contextmanager
def not_drawn() -> Iterator[None]:
    """Leave the drawings of pages empty here."""
    with pytest.MonkeyPatch.context() as patch:
        for module in _PAGES:
            patch.setattr(f"elmesh.report.{module}.figure", lambda *_, **__: Figure())
        patch.setattr("elmesh.report.page.to_svg", lambda fig, *, prefix, **_: f'<svg id="{prefix}"></svg>')
        yield


@pytest.fixture(scope="module", autouse=True)
def quick_pages() -> Iterator[None]:
    """Leave the drawings of pages empty, also in the fixtures of a module."""
    with not_drawn():
        yield


@pytest.fixture(autouse=True)
def drawings(request: pytest.FixtureRequest) -> Iterator[None]:
    """Draw them in tests with the mark ``drawings``."""
    if request.node.get_closest_marker("drawings") is None:
        yield
        return
    with drawn():
        yield
