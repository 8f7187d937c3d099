"""Commands run in a folder of their own, and write pages without drawings unless a test asks for them."""

from __future__ import annotations

import pytest

from helpers.quick_pages import drawings, quick_pages

__all__ = ["drawings", "quick_pages"]


@pytest.fixture(autouse=True)
def in_a_new_folder(tmp_path_factory, monkeypatch) -> None:
    """Some commands write folders where they run."""
    monkeypatch.chdir(tmp_path_factory.mktemp("here"))
