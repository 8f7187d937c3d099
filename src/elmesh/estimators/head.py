"""The head of one task: all that its predictions need, and nothing of any other task.

A head scores a row of hidden features h by ``(h - mean h) U A + mean t``: ``U`` is shared by the tasks, ``A`` and the
means are the task's own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elmesh.errors import ElmeshError
from elmesh.math.class_link import linked
from elmesh.typing import FloatArray

__all__ = ["Head", "classes_from_json", "classes_to_json"]


_INTEGERS = [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]

# From the dtype of class labels to their type in JSON. Text is "str" in NumPy arrays and "object" in pandas.
_CLASS_TYPES: dict[str, type] = {
    "bool": bool,
    **dict.fromkeys(_INTEGERS, int),
    **dict.fromkeys(["float16", "float32", "float64"], float),
    **dict.fromkeys(["str", "object"], str),
}


@dataclass(frozen=True, eq=False)
class Head:
    """All that one task's predictions need.

    Parameters
    ----------
    U : ndarray of shape (L, r) or None
        The basis that tasks share; None is the identity, where a task learned alone.
    A : ndarray of shape (r, d)
        The task's own weights; (L, d) where U is None.
    h_mean : ndarray of shape (L,)
        Mean of the task's hidden features; zeros for a model without intercept.
    t_mean : ndarray of shape (d,)
        Mean of the task's targets; zeros for a model without intercept.
    classes : ndarray of shape (d,) or None
        The task's classes, sorted, in the order of the outputs; None for regression.
    temperature : float or None
        Scores are divided by it before the softmax.
    link : ndarray of shape (2, d) or None
        What linear scores are multiplied by, and what is added then (:mod:`elmesh.math.class_link`); None for nothing.
    X : ndarray of shape (n, L) or None
        Whitened features, for the uncertainty of predictions (:mod:`elmesh.estimators.common`).
    log_w : float
        Log-precision of the task's noise relative to the common one.
    shared : ndarray of shape (r, d) or None
        Coefficients in the basis of a shared part; what they add to the weights is part of A.
    log_v : ndarray of shape (G,) or None
        Log-variances of the task's private weights by group, in units of its noise, where each task has its own.
    rows : float or None
        The number of rows that the task was learned from; None where it is not known.

    Examples
    --------
    >>> head = Head(None, np.array([[2.0], [1.0]]), h_mean=np.zeros(2), t_mean=np.array([10.0]))
    >>> head.scores(np.array([[1.0, 1.0]]))
    array([[13.]])
    """

    U: FloatArray | None
    A: FloatArray
    h_mean: FloatArray
    t_mean: FloatArray
    classes: NDArray[Any] | None = None
    temperature: float | None = None
    link: FloatArray | None = None
    X: FloatArray | None = None
    log_w: float = 0.0
    shared: FloatArray | None = None
    log_v: FloatArray | None = None
    rows: float | None = None

    def __post_init__(self) -> None:
        assign = object.__setattr__
        for name in ("U", "A", "h_mean", "t_mean", "link", "X", "shared", "log_v"):
            if getattr(self, name) is not None:
                # One memory layout before saving and after loading, as BLAS rounds differently by layout.
                value = np.ascontiguousarray(getattr(self, name), dtype=np.float64)
                if not np.isfinite(value).all():
                    raise ElmeshError(f"{name} holds NaN or infinite values.")
                assign(self, name, value)
        L, d = self.h_mean.size, self.t_mean.size
        r = L if self.U is None else self.U.shape[-1]
        shapes = [
            (L, r) if self.U is None else self.U.shape,
            self.A.shape,
            self.h_mean.shape,
            self.t_mean.shape,
        ]
        if self.X is not None and (self.X.ndim != 2 or self.X.shape[1] != L):
            raise ElmeshError(f"X has shape {self.X.shape}; it must have {L} columns.")
        if isinstance(self.log_w, (bool, str)) or not math.isfinite(self.log_w):
            raise ElmeshError(f"log_w is {self.log_w!r}; it must be a finite number.")
        if self.rows is not None and (isinstance(self.rows, (bool, str)) or not 0 <= self.rows < math.inf):
            raise ElmeshError(f"rows is {self.rows!r}; it must be a finite number, zero or more.")
        assign(self, "log_w", float(self.log_w))
        if shapes != [(L, r), (r, d), (L,), (d,)] or 0 in (L, d):
            raise ElmeshError(f"The shapes of U, A, h_mean and t_mean do not match: {shapes}.")
        if self.link is not None and self.link.shape != (2, d):
            raise ElmeshError(f"link has shape {self.link.shape}; it must have shape (2, {d}).")
        if self.classes is not None:
            assign(self, "classes", _checked(np.asarray(self.classes), d))
        if self.temperature is not None:
            if isinstance(self.temperature, (bool, str)) or not 0 < self.temperature < math.inf:
                raise ElmeshError(f"temperature is {self.temperature!r}; it must be a finite number above 0.")
            assign(self, "temperature", float(self.temperature))

    def scores(self, H: FloatArray) -> FloatArray:
        """Return the scores (n_rows, d) of rows of hidden features (n_rows, L), one column per output or class."""
        return linked(self.features(H) @ self.A + self.t_mean, self.link)

    def features(self, H: FloatArray) -> FloatArray:
        """Return the centred hidden features in the basis U."""
        centred = H - self.h_mean
        return centred if self.U is None else centred @ self.U

    def copy(self) -> Head:
        """Return a copy in its own memory; the arrays may be views of arrays of all tasks."""
        return deepcopy(self)


def _checked(classes: NDArray[Any], d: int) -> NDArray[Any]:
    """Check that classes can be saved and are distinct, and return them in the form they have after loading."""
    if classes.dtype.kind == "U":
        classes = np.array(classes.tolist(), dtype=np.str_)  # as wide as this task's classes, not as all tasks'
    elif classes.dtype.kind == "O":
        if not all(isinstance(value, str) for value in classes):
            raise ElmeshError("Classes must be numbers or text of one type.")
    elif classes.dtype.name not in _CLASS_TYPES:
        raise ElmeshError(f"Classes of type {classes.dtype} cannot be saved; use text or numbers.")
    else:
        classes = classes.astype(classes.dtype.name)
    if classes.dtype.kind == "f" and not np.isfinite(classes).all():
        raise ElmeshError("Classes hold NaN or infinite values.")
    if classes.shape != (d,) or not np.array_equal(classes, np.unique(classes)):
        raise ElmeshError(f"Classes must be {d} sorted values without repeats, one per output.")
    return classes


def classes_to_json(classes: NDArray[Any]) -> dict[str, Any]:
    """Describe a head's classes in what JSON can hold.

    Examples
    --------
    >>> classes_to_json(np.array([2, 5], dtype=np.int8))
    {'dtype': 'int8', 'values': [2, 5]}
    """
    return {"dtype": "str" if classes.dtype.kind == "U" else classes.dtype.name, "values": classes.tolist()}


def classes_from_json(described: Mapping[str, Any]) -> NDArray[Any]:
    """Make the classes that `classes_to_json` described."""
    name, values = described["dtype"], described["values"]
    expected = _CLASS_TYPES.get(name)
    if expected is None or any(type(value) is not expected for value in values):
        raise ElmeshError(f"Classes are not of the type {name!r} that they should have.")
    return np.array(values, dtype=name)
