"""Task labels: text, whole numbers, or True and False, all of one type.

A column of labels may be a list, an array, or a pandas, polars or Arrow column. The result is plain Python values, so
that ``3`` from a NumPy array, from a file and from a saved model are the same task.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from elmesh.errors import ElmeshError
from elmesh.text import row
from elmesh.typing import Label

__all__ = [
    "KINDS",
    "is_missing",
    "label_type",
    "plain_type",
    "values_of",
]

#: The types of label, for messages.
KINDS: dict[type, str] = {str: "text", int: "whole numbers", bool: "True and False"}


def values_of(tasks: object) -> list[Any]:
    """Return a column as a list of plain Python values."""
    shape = getattr(tasks, "shape", None)
    if shape is not None and len(shape) != 1:
        raise ElmeshError(f"tasks has shape {tuple(shape)}; give one column with one label per row.")
    if isinstance(tasks, (str, bytes)):
        raise ElmeshError(f"tasks is the text {tasks!r}; give one label per row, such as the values of that column.")
    if isinstance(tasks, (Mapping, set, frozenset)) or not isinstance(tasks, Iterable):
        raise ElmeshError(f"tasks is of type {type(tasks).__name__}; give one label per row, as a list or an array.")
    if getattr(getattr(tasks, "dtype", None), "kind", None) in ("M", "m"):
        # NumPy would silently turn nanoseconds into whole numbers
        raise ElmeshError("tasks holds dates or times; use text or whole numbers as task labels.")
    for method in ("to_list", "tolist", "to_pylist"):  # pandas and polars, NumPy, Arrow
        if hasattr(tasks, method):
            return list(getattr(tasks, method)())
    return list(tasks)


def label_type(values: Sequence[Any]) -> Callable[[Any], Label]:
    """Return the plain type that all labels have, or raise an error that names the first row with another."""
    found = {kind: plain_type(kind) for kind in set(map(type, values))}
    if None in found.values():
        _refuse(values)
    plain = {kind for kind in found.values() if kind is not None}
    if len(plain) > 1:
        first = [next(i for i, value in enumerate(values) if found[type(value)] is kind) for kind in plain]
        examples = " and ".join(f"{values[i]!r} {row(i)}" for i in sorted(first))
        raise ElmeshError(f"tasks mixes types of label: {examples}; use only text or only whole numbers.")
    return plain.pop() if plain else str


def plain_type(kind: type) -> type[str] | type[int] | None:
    """Return the plain type (str, int or bool) of a type of value, None if there is none."""
    if issubclass(kind, str):
        return str
    if issubclass(kind, (bool, np.bool_)):
        return bool
    return int if issubclass(kind, (int, np.integer)) else None


def is_missing(value: object) -> bool:
    """Return whether a value is None, NaN, or missing in pandas."""
    if isinstance(value, (float, np.floating)):
        return bool(np.isnan(value))
    return value is None or value is pd.NA or value is pd.NaT


def _refuse(values: Sequence[Any]) -> None:
    strange = [i for i, value in enumerate(values) if plain_type(type(value)) is None]
    missing = next((i for i in strange if is_missing(values[i])), None)
    if missing is not None:
        raise ElmeshError(f"The task label is missing {row(missing)}; give every row a task or leave the row out.")
    i = strange[0]
    if isinstance(values[i], (float, np.floating)):
        raise ElmeshError(f"The task label {values[i]} {row(i)} is a float; use text or whole numbers as labels.")
    kind = type(values[i]).__name__
    raise ElmeshError(f"The task label {row(i)} is of type {kind}; use text or whole numbers as labels.")
