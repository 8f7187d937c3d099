r"""The columns to learn from, as a network declares them: nobody's data is looked at.

A number with a declared range becomes one of mean 0 and standard deviation 1 if it is spread evenly over the range,
:math:`(x - \text{mid}) / (\text{width}/\sqrt{12})`; what lies outside the range is scaled the same way. Where the
network allows agents to exchange counts, means and variances, ranges may be left out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from elmesh.errors import ElmeshError
from elmesh.netconfig.names import check_text
from elmesh.tables.schema import CategoricalColumn, NumericColumn

__all__ = ["CategoricalInput", "Input", "NumericInput", "check_range", "scale_of"]

# A number this large or a range this narrow is a slip, and beyond them its square is no longer a double.
_LARGEST, _NARROWEST = 1e100, 1e-100
_MOST_CATEGORIES = 1000


@dataclass(frozen=True)
class NumericInput:
    """A column of numbers.

    Attributes
    ----------
    name
        The column.
    least, most
        Its declared range; both None where its scale is found from statistics.
    missing
        Whether a further column says which values are missing. A missing value counts as the middle either way.

    Examples
    --------
    >>> column = NumericInput("age", 0.0, 120.0, False).column()
    >>> column.mean, round(column.std, 2)
    (60.0, 34.64)
    """

    name: str
    least: float | None
    most: float | None
    missing: bool

    def __post_init__(self) -> None:
        check_text(self.name, "A column's name")
        _check_flag(self.missing, self.name)
        if self.least is not None or self.most is not None:
            least, most = check_range((self.least, self.most), f'The range of column "{self.name}"')
            object.__setattr__(self, "least", least)  # the frozen dataclass's one moment to make whole numbers floats
            object.__setattr__(self, "most", most)

    @property
    def range(self) -> tuple[float, float] | None:
        """The declared range, None if there is none."""
        return None if self.least is None or self.most is None else (self.least, self.most)

    def column(self, statistics: tuple[float, float] | None = None) -> NumericColumn:
        """Say how it becomes numbers, by its range, or by a mean and a standard deviation if it has none."""
        if self.range is not None:
            mean, std = scale_of(self.range)
        elif statistics is not None:
            mean, std = map(float, statistics)
            if not (math.isfinite(mean) and math.isfinite(std) and std >= 0):
                raise ElmeshError(f'The statistics of column "{self.name}" are not finite; look at its values.')
        else:
            raise ElmeshError(
                f'Column "{self.name}" has no range in the network file, so its mean and standard deviation must be '
                "exchanged first; or declare one, such as range = [0.0, 100.0]."
            )
        return NumericColumn(self.name, mean, std, mean, self.missing)

    def content(self) -> dict[str, Any]:
        """Give it in plain JSON."""
        return {"name": self.name, "range": self.range, "missing": self.missing}


@dataclass(frozen=True)
class CategoricalInput:
    """A column of categories.

    Attributes
    ----------
    name
        The column.
    categories
        All there are, sorted. Any other counts as none of them.
    missing
        Whether missing is a category too.

    Examples
    --------
    >>> CategoricalInput("sex", ("m", "f"), True).column().outputs
    ['sex = f', 'sex = m', 'sex is missing']
    """

    name: str
    categories: tuple[str, ...]
    missing: bool

    def __post_init__(self) -> None:
        check_text(self.name, "A column's name")
        _check_flag(self.missing, self.name)
        known = tuple(sorted(check_text(text, f'A category of column "{self.name}"') for text in self.categories))
        if not 1 <= len(known) <= _MOST_CATEGORIES:
            raise ElmeshError(f'Column "{self.name}" has {len(known)} categories; expected 1 to {_MOST_CATEGORIES}.')
        if len(set(known)) < len(known):
            raise ElmeshError(f'Column "{self.name}" has a category twice; name each once.')
        object.__setattr__(self, "categories", known)

    def column(self) -> CategoricalColumn:
        """Say how it becomes numbers."""
        return CategoricalColumn(self.name, self.categories, self.missing)

    def content(self) -> dict[str, Any]:
        """Give it in plain JSON."""
        return {"name": self.name, "categories": list(self.categories), "missing": self.missing}


Input = NumericInput | CategoricalInput


def check_range(ends: tuple[object, object], what: str) -> tuple[float, float]:
    """Give the ends of a range as floats, or say what is wrong with them.

    Parameters
    ----------
    ends
        The least and the most.
    what
        What the range is called in errors.
    """
    least, most = map(_finite, ends)
    if least is None or most is None or not most - least >= _NARROWEST:
        raise ElmeshError(
            f"{what} is [{ends[0]!r}, {ends[1]!r}]; expected two finite numbers, the smaller first, such as "
            "[0.0, 100.0]."
        )
    return least, most


def scale_of(ends: tuple[float, float]) -> tuple[float, float]:
    """Give the mean and the standard deviation of what is spread evenly over a range.

    Examples
    --------
    >>> scale_of((0.0, 144.0**0.5))[0]
    6.0
    """
    least, most = ends
    return (least + most) / 2.0, (most - least) / math.sqrt(12.0)


def _finite(value: object) -> float | None:
    """Read a number of a size that somebody may mean; True is none."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= _LARGEST:
        return None
    return float(value) + 0.0  # no -0, which would be another file of the same content


def _check_flag(value: object, name: str) -> None:
    if not isinstance(value, bool):
        raise ElmeshError(f'missing of column "{name}" is {value!r}; expected true or false.')
