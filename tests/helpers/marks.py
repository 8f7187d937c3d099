"""Marks that several test files share."""

from __future__ import annotations

import os

import pytest

needs_data = pytest.mark.skipif(
    not os.environ.get("ELMESH_DATA"),
    reason="ELMESH_DATA names no folder with usps.npz, school.npz, kang_digits.npz",
)
