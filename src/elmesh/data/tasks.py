"""Rows to tasks: from ``(X, y, tasks)`` to one array per task, with all checks of labels and targets.

Rows with the same label form a task, in their order. Other modules rely on plain Python labels of one type, sorted, and
on targets of shape (rows, outputs) for each task.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from elmesh.data.labels import KINDS, is_missing, label_type, plain_type, values_of
from elmesh.errors import ElmeshError, UnknownSiteWarning
from elmesh.text import count, listed, more, row
from elmesh.typing import Label

__all__ = [
    "Groups",
    "check_length",
    "check_task_sizes",
    "check_two_classes",
    "group_rows",
    "match_tasks",
    "one_hot",
    "regression_targets",
]

Groups = dict[Label, NDArray[np.intp]]


def group_rows(tasks: object, n_rows: int) -> Groups:
    """Return the rows of each task, in increasing order; labels are sorted.

    ``tasks`` has one label per row: a list, an array, or a pandas or polars column. None: all rows are one task, "all".

    Examples
    --------
    >>> group_rows(["leeds", "york", "leeds"], 3)
    {'leeds': array([0, 2]), 'york': array([1])}
    """
    if tasks is None:
        return {"all": np.arange(n_rows, dtype=np.intp)}
    values = values_of(tasks)
    if len(values) != n_rows:
        raise ElmeshError(
            f"tasks has {count(len(values), 'label')} but the data have {count(n_rows, 'row')}; give one label per row."
        )
    plain = label_type(values)
    labels = sorted(map(plain, set(values)))
    place = {label: k for k, label in enumerate(labels)}
    codes = np.fromiter((place[value] for value in values), dtype=np.intp, count=n_rows)
    order = np.argsort(codes, kind="stable")
    ends = np.cumsum(np.bincount(codes, minlength=len(labels)))
    return dict(zip(labels, np.split(order, ends[:-1]), strict=False))


def match_tasks(tasks: object, n_rows: int, known: Collection[Label], *, allow_unknown: bool = False) -> Groups:
    """Return the rows of each task that occurs; raise if a model with the ``known`` tasks lacks one.

    ``tasks`` may be None if a single task is known. With ``allow_unknown`` other tasks may occur; there is a warning if
    no row is of a known task, or if labels are of another type.

    Examples
    --------
    >>> match_tasks(["york", "york"], 2, known=["leeds", "york"])
    {'york': array([0, 1])}
    """
    if tasks is None:
        if len(known) == 1:
            return dict.fromkeys(known, np.arange(n_rows, dtype=np.intp))
        raise ElmeshError(
            f"The model holds {count(len(known), 'task')} ({listed(known)}), so tasks must name that of each row."
        )
    groups = group_rows(tasks, n_rows)
    # By type as well: True equals 1 in Python, but not for users.
    known_types = set(map(type, known))
    known_labels = set(known)
    unknown = [label for label in groups if type(label) not in known_types or label not in known_labels]
    if not unknown:
        return groups
    what = f"Task {unknown[0]!r} is" if len(unknown) == 1 else f"Tasks {listed(unknown)} are"
    message = f"{what} not known; the model was fitted with {listed(known)}"
    other_type = type(unknown[0]) not in known_types and bool(known_types)
    if other_type:
        given, fitted = KINDS[type(unknown[0])], KINDS[next(iter(known_types))]
        message += f", which are {fitted} while these are {given}: give the labels as they were then"
    if not allow_unknown:
        raise ElmeshError(f"{message}.")
    if other_type or len(unknown) == len(groups):
        warnings.warn(
            f"{message}. All these rows are predicted by what the tasks have in common.",
            UnknownSiteWarning,
            stacklevel=4,
        )
    return groups


def check_task_sizes(sizes: Mapping[Label, int], minimum: int = 2) -> None:
    """Raise if a task has too few rows to learn from."""
    if not sizes:
        raise ElmeshError("There are no rows, so there are no tasks; at least one task with data is needed.")
    small = [label for label, rows in sizes.items() if rows < minimum]
    if not small:
        return
    # "one sample" is what scikit-learn's checks look for in this message
    words = {0: "no rows", 1: "only one row (one sample)"}
    few = {label: sizes[label] for label in small[:10]}
    found = ", ".join(f"task {label!r} has {words.get(n, f'only {n} rows')}" for label, n in few.items())
    raise ElmeshError(
        f"Each task needs at least {count(minimum, 'row')}, but {found}{more(len(small))}; give more rows or "
        "leave the task out."
    )


def one_hot(y: ArrayLike, groups: Groups) -> tuple[dict[Label, NDArray[np.float64]], dict[Label, NDArray[Any]]]:
    """Return 0/1 targets of each task over its own classes, and these classes, sorted.

    Class labels are numbers, text, or True and False. Column j of a task's targets stands for its class j.

    Examples
    --------
    >>> targets, classes = one_hot(["cat", "dog", "cat"], group_rows(None, 3))
    >>> classes["all"]
    array(['cat', 'dog'], dtype='<U3')
    >>> targets["all"]
    array([[1., 0.],
           [0., 1.],
           [1., 0.]])
    """
    values = _class_labels(np.asarray(y))
    check_length(values, sum(map(len, groups.values())))
    targets: dict[Label, NDArray[np.float64]] = {}
    classes: dict[Label, NDArray[Any]] = {}
    for label, rows in groups.items():
        classes[label], codes = np.unique(values[rows], return_inverse=True)
        targets[label] = np.zeros((len(rows), len(classes[label])))
        targets[label][np.arange(len(rows)), codes] = 1.0
    return targets, classes


def check_two_classes(classes: Mapping[Label, NDArray[Any]], together: bool) -> None:
    """Raise if a task, or all tasks ``together``, have one class alone."""
    single = {label: found.tolist() for label, found in classes.items() if len(found) < 2}
    every = {name for found in classes.values() for name in found.tolist()}
    if together and len(every) > 1:
        return
    if len(every) == 1:
        raise ElmeshError(
            f"All rows have the class {every.pop()!r}: nothing to learn. At least two classes are needed, not one "
            "class alone; choose another target, or add rows of another class."
        )
    if single:
        tasks = [f"task {label!r} has {listed(found) or 'none'}" for label, found in single.items()]
        raise ElmeshError(
            "Each task needs at least two classes, not one class alone, but "
            f"{', '.join(tasks[:10])}{more(len(tasks))}; give rows of another class or leave the task out."
        )


def regression_targets(y: ArrayLike, groups: Groups) -> dict[Label, NDArray[np.float64]]:
    """Return the numeric targets of each task, of shape (rows of the task, n_outputs); one output if y has one axis.

    Examples
    --------
    >>> regression_targets([1.0, 2.0, 4.0], group_rows([7, 8, 7], 3))
    {7: array([[1.], [4.]]), 8: array([[2.]])}
    """
    values = np.asarray(y)
    if values.ndim not in (1, 2) or (values.ndim == 2 and values.shape[1] == 0):
        raise ElmeshError(f"y has shape {values.shape}; give one number per row, or several.")
    check_length(values, sum(map(len, groups.values())))
    numbers = _numbers(values if values.ndim == 2 else values[:, np.newaxis])
    bad = ~np.isfinite(numbers).all(axis=1)
    if bad.any():
        raise ElmeshError(f"y is NaN or infinite {row(int(np.argmax(bad)))}; leave that row out or fill it in.")
    return {label: numbers[rows] for label, rows in groups.items()}


def _class_labels(values: NDArray[Any]) -> NDArray[Any]:
    """Check that class labels have one sortable type and none is missing."""
    if values.ndim != 1:
        raise ElmeshError(f"y has shape {values.shape}; classification needs one class label per row.")
    if values.dtype.kind in "iubU":
        return values
    if values.dtype.kind not in "fOT":
        raise ElmeshError(f"y holds values of type {values.dtype}; use text or numbers as class labels.")
    missing = next((i for i, value in enumerate(values) if is_missing(value)), None)
    if missing is not None:
        raise ElmeshError(f"The class is missing {row(missing)}; fill it in or leave the row out.")
    if values.dtype.kind == "f":
        return values
    # An object column is text in pandas, or numbers that lost their type.
    kinds = {float if issubclass(kind, (float, np.floating)) else plain_type(kind) for kind in map(type, values)}
    if kinds == {str}:
        return values.astype(object)
    if len(kinds) == 1 and None not in kinds:
        return np.array(values.tolist())
    raise ElmeshError("y mixes types of class label, such as text and numbers; use one type for all.")


def _numbers(values: NDArray[Any]) -> NDArray[np.float64]:
    """Convert targets to float64; text is never converted."""
    if values.dtype.kind in "biuf":
        return values.astype(np.float64)
    if values.dtype.kind not in "OUST":
        raise ElmeshError(f"y holds values of type {values.dtype}; regression needs real numbers.")
    numbers = np.empty(values.shape)
    for i, j in np.ndindex(*values.shape):
        value: Any = values[i, j]
        try:
            if isinstance(value, (str, bytes)):
                raise TypeError
            numbers[i, j] = np.nan if is_missing(value) else value
        except (TypeError, ValueError, OverflowError):
            raise ElmeshError(
                f"y is {str(value)!r} {row(i)}, which is not a number; regression needs numbers, so convert it, "
                "or use classification where it names a class."
            ) from None
    return numbers


def check_length(values: NDArray[Any], n_rows: int) -> None:
    """Raise unless there is one target per row.

    >>> check_length(np.zeros(2), 3)
    Traceback (most recent call last):
    elmesh.errors.ElmeshError: y has 2 values for 3 rows; give one per row.
    """
    if len(values) != n_rows:
        raise ElmeshError(f"y has {count(len(values), 'value')} for {count(n_rows, 'row')}; give one per row.")
