"""One table per site, concatenated.

Estimators take one table and the task of each row. Users often have one table per task instead; `stack_tasks`
concatenates them, and refuses tables whose columns differ.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from elmesh.data.labels import label_type
from elmesh.errors import ElmeshError
from elmesh.text import count, listed, more
from elmesh.typing import Label

__all__ = ["stack_tasks"]


def stack_tasks(tables: Mapping[Any, tuple[Any, Any]]) -> tuple[Any, NDArray[Any], NDArray[Any]]:
    """Concatenate one table per task, in the form that estimators take.

    Parameters
    ----------
    tables : dict
        Task label to the pair ``(X, y)`` of that task: ``X`` of shape (rows, columns), a pandas or polars
        frame or an array, with the same columns in every task; ``y`` with one target per row.

    Returns
    -------
    X : frame or ndarray
        All rows; a frame where frames were given.
    y : ndarray
        All targets.
    tasks : ndarray
        The label of each row.

    Examples
    --------
    >>> X, y, tasks = stack_tasks({"leeds": ([[1, 2], [3, 4]], [0, 1]), "york": ([[5, 6]], [1])})
    >>> X.shape, y, tasks
    ((3, 2), array([0, 1, 1]), array(['leeds', 'leeds', 'york'], dtype='<U5'))
    """
    if not isinstance(tables, Mapping) or not tables:
        raise ElmeshError("stack_tasks needs a dict with at least one task: label to the pair (X, y).")
    plain = label_type(list(tables))
    Xs: dict[Label, Any] = {}
    ys: dict[Label, NDArray[Any]] = {}
    for key, pair in tables.items():
        label = plain(key)
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise ElmeshError(f"Task {label!r} must be given as the pair (X, y).")
        Xs[label] = pair[0] if _is_frame(pair[0]) else np.asarray(pair[0])
        ys[label] = np.asarray(pair[1])
        _check_table(label, Xs[label], ys[label])
    _check_same_columns(Xs)
    _check_same_targets(ys)
    labels = np.repeat(np.array(list(Xs)), [len(X) for X in Xs.values()])
    return _concatenate(list(Xs.values())), np.concatenate(list(ys.values())), labels


def _is_polars(X: object) -> bool:
    # by name, as polars need not be installed
    return type(X).__module__.split(".")[0] == "polars" and type(X).__name__ == "DataFrame"


def _is_frame(X: object) -> bool:
    return isinstance(X, pd.DataFrame) or _is_polars(X)


def _form(X: object) -> str:
    return "polars frame" if _is_polars(X) else "pandas frame" if _is_frame(X) else "plain array"


def _concatenate(Xs: list[Any]) -> Any:
    if isinstance(Xs[0], pd.DataFrame):
        return pd.concat(Xs, ignore_index=True)
    if _is_polars(Xs[0]):
        import polars  # noqa: PLC0415  (installed, because a frame was made with it)

        return polars.concat(Xs, how="vertical_relaxed")
    return np.concatenate(Xs)


def _check_table(label: Label, X: Any, y: NDArray[Any]) -> None:
    if len(X.shape) != 2:
        raise ElmeshError(f"X of task {label!r} has shape {X.shape}; it must be a table of rows and columns.")
    if len(X) == 0:
        raise ElmeshError(f"Task {label!r} has no rows; give it data or leave it out.")
    if y.ndim not in (1, 2):
        raise ElmeshError(f"y of task {label!r} has shape {y.shape}; it must hold one target per row.")
    if len(X) != len(y):
        raise ElmeshError(f"Task {label!r} has {count(len(X), 'row')} in X but {len(y)} in y; give the same rows.")


def _check_same_columns(Xs: Mapping[Label, Any]) -> None:
    first, reference = next(iter(Xs.items()))
    for label, X in Xs.items():
        if _form(X) != _form(reference):
            raise ElmeshError(
                f"Task {first!r} is given as a {_form(reference)} and task {label!r} as a {_form(X)}; give "
                "all tasks in the same form, so that their columns can be compared."
            )
        if _is_frame(X) and list(X.columns) != list(reference.columns):
            difference = _difference(first, list(reference.columns), label, list(X.columns))
            raise ElmeshError(f"Tasks {first!r} and {label!r} differ in their columns: {difference}.")
    widths = {label: X.shape[1] for label, X in Xs.items()}
    if len(set(widths.values())) > 1:
        odd = [label for label in widths if widths[label] != widths[first]]
        others = ", ".join(f"task {label!r} has {widths[label]}" for label in islice(odd, 10)) + more(len(odd))
        raise ElmeshError(
            f"Tasks differ in width: task {first!r} has {count(widths[first], 'column')}, but {others}; every "
            "task needs the same input columns."
        )


def _difference(a: Label, columns_a: list[Any], b: Label, columns_b: list[Any]) -> str:
    """Describe how two lists of column names differ."""
    only_a = [name for name in columns_a if name not in columns_b]
    only_b = [name for name in columns_b if name not in columns_a]
    if only_a or only_b:
        parts = [f"only {t!r} has {listed(names)}" for t, names in ((a, only_a), (b, only_b)) if names]
        return f"{', '.join(parts)}; every task needs the same input columns"
    if len(columns_a) != len(columns_b):
        return f"{a!r} has {len(columns_a)} and {b!r} has {len(columns_b)}, as some names occur more than once"
    i = next(i for i in range(len(columns_a)) if columns_a[i] != columns_b[i])
    return (
        f"they have another order, column {i} (counting from 0) is {columns_a[i]!r} in {a!r} and "
        f"{columns_b[i]!r} in {b!r}; put them in one order"
    )


def _check_same_targets(ys: Mapping[Label, NDArray[Any]]) -> None:
    """Refuse what NumPy would silently convert: text with numbers, one column with several."""
    first, reference = next(iter(ys.items()))
    for label, y in ys.items():
        if _is_text(y) != _is_text(reference):
            text, other = (label, first) if _is_text(y) else (first, label)
            raise ElmeshError(f"y is text in task {text!r} but not in task {other!r}; use one type for all.")
        if y.shape[1:] != reference.shape[1:]:
            raise ElmeshError(
                f"y has shape {reference.shape} in task {first!r} but {y.shape} in task {label!r}; every "
                "task needs the same number of targets."
            )


def _is_text(y: NDArray[Any]) -> bool:
    return y.dtype.kind in "UT" or (y.dtype.kind == "O" and any(isinstance(v, str) for v in y.ravel()))
