"""Marks that several test files share."""

from __future__ import annotations

import os
from collections.abc import Iterable
from itertools import product
from typing import Any

import pytest

needs_data = pytest.mark.skipif(
    not os.environ.get("ELMESH_DATA"),
    reason="ELMESH_DATA names no folder with usps.npz, school.npz, kang_digits.npz",
)


def one_of(n: int, *values: Iterable[Any]) -> list[Any]:
    """Return all combinations of values as parameters; `make test` takes one of ``n``, `make test-all` all of them.

    They are on diagonals, so that every value is taken if another list has at least ``n``.
    """
    places = product(*(enumerate(some) for some in values))
    return [
        pytest.param(*(x for _, x in one), marks=pytest.mark.slow if sum(k for k, _ in one) % n else ())
        for one in places
    ]
