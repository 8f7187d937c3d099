r"""The columns to learn from, as a network declares them. No data is read.

A number with a declared range is scaled to mean 0 and standard deviation 1 under a uniform distribution over the range,
:math:`(x - \text{mid}) / (\text{width}/\sqrt{12})`; values outside the range are scaled by the same formula. Ranges may
be omitted if the network lets agents exchange counts, means and variances.
"""

from __future__ import annotations

import math
from typing import Annotated

from msgspec import Meta
from msgspec.structs import force_setattr

from elmesh.errors import ElmeshError
from elmesh.netconfig.names import check_label
from elmesh.netconfig.toml import CheckedStruct

__all__ = ["InputColumn", "check_range", "uniform_scale"]

# Larger numbers and narrower ranges are mistakes: their squares are not finite or not normal doubles.
_MAX_MAGNITUDE, _MIN_WIDTH = 1e100, 1e-100


class InputColumn(CheckedStruct, frozen=True):
    """A column of numbers, or of categories if they are given.

    The range of numbers is None if their scale is computed from exchanged statistics. Categories are sorted; any other
    value is encoded as none of them. ``missing`` adds a column that marks missing values.

    Examples
    --------
    >>> InputColumn("sex", categories=("m", "f"))
    InputColumn(name='sex', range=None, categories=('f', 'm'), missing=False)
    """

    name: str
    range: tuple[float, float] | None = None
    categories: Annotated[tuple[str, ...], Meta(min_length=1, max_length=1000)] | None = None
    missing: bool = False

    def __post_init__(self) -> None:
        CheckedStruct.__post_init__(self)
        check_label("A column's name", self.name)
        if self.range is not None:
            if self.categories is not None:
                raise ElmeshError(f'Column "{self.name}" has a range and categories; keep the one that applies.')
            force_setattr(self, "range", check_range(f'The range of column "{self.name}"', self.range))
        for category in self.categories or ():
            check_label(f'A category of column "{self.name}"', category)
        if self.categories is not None:
            if len(set(self.categories)) < len(self.categories):
                raise ElmeshError(f'Column "{self.name}" has a category twice; name each once.')
            force_setattr(self, "categories", tuple(sorted(self.categories)))

    @property
    def is_numeric(self) -> bool:
        """Whether the column holds numbers."""
        return self.categories is None


def check_range(what: str, ends: tuple[float, float]) -> tuple[float, float]:
    """Return the ends of a range, or raise if they are not finite or not in order."""
    low, high = ends
    if not (max(abs(low), abs(high)) <= _MAX_MAGNITUDE and high - low >= _MIN_WIDTH):
        raise ElmeshError(
            f"{what} is [{low!r}, {high!r}]; expected two finite numbers, the smaller first, such as [0.0, 100.0]."
        )
    return low + 0.0, high + 0.0  # adding zero turns -0.0 into 0.0, which would give a different digest


def uniform_scale(ends: tuple[float, float]) -> tuple[float, float]:
    """Return mean and standard deviation of the uniform distribution over a range."""
    low, high = ends
    return (low + high) / 2.0, (high - low) / math.sqrt(12.0)
