"""Checked values of a JSON object from an untrusted file.

A model folder may come from anywhere. So each value is checked by name and type, and an error names the value that is
not as expected.
"""

from __future__ import annotations

import math
from typing import Any

from elmesh.errors import ElmeshError

__all__ = ["check_unique", "damaged_error", "read_object", "read_value"]


def damaged_error(path: str, problem: str) -> ElmeshError:
    """Return the error about the value at a path."""
    return ElmeshError(f"The table description in the model is damaged: {path} {problem}. Fit the model again.")


def read_object(data: object, path: str, **types: type) -> list[Any]:
    """Return the values of a JSON object that has exactly the given names, each of its type.

    Examples
    --------
    >>> read_object({"name": "dose", "mean": 2}, "column", name=str, mean=float)
    ['dose', 2.0]
    """
    if not isinstance(data, dict):
        raise damaged_error(path, "is not an object")
    for name in types:
        if name not in data:
            raise damaged_error(f"{path}.{name}", "is missing")
    if len(data) > len(types):
        raise damaged_error(path, "has unknown values")
    return [read_value(data[name], f"{path}.{name}", expected) for name, expected in types.items()]


def read_value(value: object, path: str, expected: type) -> Any:
    """Return a text that is not empty, a finite number, true or false, or a list."""
    if expected is float:
        try:
            number = float(value) if isinstance(value, int | float) and not isinstance(value, bool) else math.nan
        except OverflowError:
            number = math.inf
        if not math.isfinite(number):
            raise damaged_error(path, "is not a finite number")
        return number
    if not isinstance(value, expected) or value == "":
        problems = {str: "is not a text", bool: "is neither true nor false", list: "is not a list"}
        raise damaged_error(path, problems[expected])
    return value


def check_unique(names: tuple[str, ...], path: str) -> tuple[str, ...]:
    """Return the names if they are all different."""
    if len(set(names)) < len(names):
        raise damaged_error(path, "has a name twice")
    return names
