"""Values out of JSON that nobody vouches for.

A model folder may come from anywhere, so each value is taken by name and type, and whatever is not exactly as
expected is an error that says which one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from elmesh.errors import ElmeshError

__all__ = ["Fields", "unique"]


@dataclass(frozen=True)
class Fields:
    """One JSON object, read field by field.

    Attributes
    ----------
    data
        Its fields.
    path
        What it is called in errors.

    Examples
    --------
    >>> Fields.of({"name": "dose", "mean": 2}, "column").number("mean")
    2.0
    >>> Fields.of({"name": "dose", "mean": "2"}, "column").number("mean")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    elmesh.errors.ElmeshError: ... column.mean is not a finite number. Fit the model again.
    """

    data: dict[str, Any]
    path: str

    @classmethod
    def of(cls, data: object, path: str) -> Fields:
        """Take a JSON object, and nothing else."""
        if not isinstance(data, dict):
            raise cls({}, path).error("", "is not an object")
        return cls(data, path)

    def error(self, name: str, problem: str) -> ElmeshError:
        """Make the error to raise about a field."""
        place = f"{self.path}.{name}" if name else self.path
        return ElmeshError(f"The table description in the model is damaged: {place} {problem}. Fit the model again.")

    def only(self, *names: str) -> None:
        """Insist on these fields and no others."""
        for name in names:
            if name not in self.data:
                raise self.error(name, "is not there")
        if len(self.data) > len(names):
            raise self.error("", "has fields that are not known")

    def text(self, name: str) -> str:
        """Take a text that is not empty."""
        return self._text(name, self.data.get(name))

    def texts(self, name: str) -> tuple[str, ...]:
        """Take a list of texts, no two alike."""
        return unique(tuple(self._text(name, value) for value in self._list(name)), self, name)

    def number(self, name: str, least: float = -math.inf) -> float:
        """Take a finite number, not below ``least``."""
        value = self.data.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.error(name, "is not a finite number")
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if not math.isfinite(number) or number < least:
            raise self.error(name, "is not a finite number" if math.isinf(least) else f"is not {least:g} or more")
        return number

    def flag(self, name: str) -> bool:
        """Take true or false."""
        value = self.data.get(name)
        if not isinstance(value, bool):
            raise self.error(name, "is neither true nor false")
        return value

    def objects(self, name: str) -> list[Fields]:
        """Take a list of objects."""
        return [Fields.of(value, f"{self.path}.{name}[{i}]") for i, value in enumerate(self._list(name))]

    def _list(self, name: str) -> list[Any]:
        value = self.data.get(name)
        if not isinstance(value, list):
            raise self.error(name, "is not a list")
        return value

    def _text(self, name: str, value: object) -> str:
        if not isinstance(value, str) or not value:
            raise self.error(name, "is not a text")
        return value


def unique(names: tuple[str, ...], fields: Fields, name: str) -> tuple[str, ...]:
    """Give the names back if no two are alike."""
    if len(set(names)) < len(names):
        raise fields.error(name, "names one thing twice")
    return names
