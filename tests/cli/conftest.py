"""Commands run in a folder of their own, and write pages without drawings unless a test asks for them."""

from __future__ import annotations

import pytest
from matplotlib.figure import Figure


@pytest.fixture(autouse=True)
def in_a_new_folder(tmp_path_factory, monkeypatch) -> None:
    """Some commands write folders where they run."""
    monkeypatch.chdir(tmp_path_factory.mktemp("here"))


@pytest.fixture
def drawings() -> None:
    """Draw the figures of pages in this test."""


@pytest.fixture(autouse=True)
def quick_pages(request, monkeypatch) -> None:
    """Leave the drawings of pages empty: Matplotlib would take most of the time of a command.

    Fixtures of a module have drawings, because they are made before this one.
    """
    if "drawings" in request.fixturenames:
        return
    for module in ("comparison_report", "evaluation_report", "explanation_report", "gains_report"):
        monkeypatch.setattr(f"elmesh.report.{module}.figure", lambda *_, **__: Figure())
    monkeypatch.setattr("elmesh.report.page.to_svg", lambda fig, *, prefix, **_: f'<svg id="{prefix}"></svg>')
