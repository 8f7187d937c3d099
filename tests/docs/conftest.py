"""Commands and scripts of the docs write pages without drawings unless a test asks for them."""

from __future__ import annotations

from helpers.quick_pages import drawings, quick_pages

__all__ = ["drawings", "quick_pages"]
