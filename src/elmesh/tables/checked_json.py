"""Dataclasses from the JSON of an untrusted file.

A model folder may come from anywhere. So each value is checked by the type of its field, and an error names the value
that is not as expected.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import is_dataclass
from types import MappingProxyType
from typing import Any, get_args, get_origin, get_type_hints

from elmesh.errors import ElmeshError

__all__ = ["damaged_error", "read_json"]


def damaged_error(path: str, problem: str) -> ElmeshError:
    """Return the error about the value at a path."""
    return ElmeshError(f"The table description in the model is damaged: {path} {problem}. Fit the model again.")


def read_json(kind: Any, value: object, path: str, names: Mapping[str, str] = MappingProxyType({})) -> Any:
    """Return a JSON value as a type: a dataclass, a tuple of one type, a Literal of two, bool, float or str.

    A text must not be empty, a number must be finite, and an object has exactly the fields of the dataclass. ``names``
    maps fields to their names in JSON where these differ.

    Examples
    --------
    >>> read_json(tuple[float, ...], [1, 2.5], "means")
    (1.0, 2.5)
    """
    if get_origin(kind) is tuple:
        if not isinstance(value, list):
            raise damaged_error(path, "is not a list")
        return tuple(read_json(get_args(kind)[0], item, f"{path}[{i}]", names) for i, item in enumerate(value))
    if isinstance(kind, type) and is_dataclass(kind):
        return kind(*_read_fields(kind, value, path, names))
    if kind is float:
        try:
            number = float(value) if isinstance(value, int | float) and not isinstance(value, bool) else math.nan
        except OverflowError:
            number = math.inf
        if not math.isfinite(number):
            raise damaged_error(path, "is not a finite number")
        return number
    if get_args(kind):
        if value not in get_args(kind):
            raise damaged_error(path, f"is neither {' nor '.join(get_args(kind))}")
    elif not isinstance(value, kind) or value == "":
        raise damaged_error(path, "is neither true nor false" if kind is bool else "is not a text")
    return value


def _read_fields(kind: Any, value: object, path: str, names: Mapping[str, str]) -> list[Any]:
    if not isinstance(value, dict):
        raise damaged_error(path, "is not an object")
    types = {names.get(field, field): kind for field, kind in get_type_hints(kind).items()}
    for key in types:
        if key not in value:
            raise damaged_error(f"{path}.{key}", "is missing")
    if len(value) > len(types):
        raise damaged_error(path, "has unknown values")
    return [read_json(kind, value[key], f"{path}.{key}", names) for key, kind in types.items()]
