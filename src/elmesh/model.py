"""What fit produces: the shared hidden layer, and for each task the little that its predictions need.

Task t scores a row x by ``(h(x) - mean h) U_t A_t + mean t``: ``U_t`` is what the tasks agreed on, ``A_t`` and the
means are its own. A task's head can be taken out alone (`MultiTaskModel.for_task`), so that a site carries away
nothing of the others. Models are saved as safetensors and JSON (`elmesh.storage`), never as pickle.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from elmesh.errors import ElmeshError
from elmesh.features import HiddenLayer
from elmesh.labels import KINDS, Label, listed
from elmesh.storage import Tensors, read_folder, write_folder
from elmesh.tasks import Groups

__all__ = ["Head", "MultiTaskModel"]

Floats = NDArray[np.float64]

_CLASS_TYPES: dict[str, tuple[type, ...]] = {
    "b": (bool,),
    "i": (int,),
    "u": (int,),
    "f": (float,),
    "U": (str,),
}
_CLASS_DTYPES = ("bool", "object", *(f"{s}int{n}" for s in ("", "u") for n in (8, 16, 32, 64)))
_CLASS_DTYPES += ("float16", "float32", "float64")


@dataclass(frozen=True, eq=False)
class Head:
    """What one task's predictions need.

    Parameters
    ----------
    U : ndarray of shape (L, r) or None
        What the tasks agreed on; None stands for the identity, where a task learned alone.
    A : ndarray of shape (r, d)
        The task's own weights; (L, d) where U is None.
    h_mean : ndarray of shape (L,)
        Mean of the task's hidden features, zeros for a model without intercept.
    t_mean : ndarray of shape (d,)
        Mean of the task's targets, zeros for a model without intercept.
    classes : ndarray of shape (d,) or None
        The task's classes in the order of the outputs; None for regression.
    temperature : float or None
        What scores are divided by on the way to probabilities.

    Examples
    --------
    >>> head = Head(None, [[2.0], [1.0]], h_mean=[0.0, 0.0], t_mean=[10.0])
    >>> head.scores(np.array([[1.0, 1.0]]))
    array([[13.]])
    """

    U: Floats | None
    A: Floats
    h_mean: Floats
    t_mean: Floats
    classes: NDArray[Any] | None = None
    temperature: float | None = None

    def __post_init__(self) -> None:
        settle = object.__setattr__
        for name in ("U", "A", "h_mean", "t_mean"):
            if (value := getattr(self, name)) is not None:
                # One memory layout before saving and after loading: BLAS rounds differently by layout.
                settle(self, name, np.ascontiguousarray(value, dtype=np.float64))
                if not np.isfinite(getattr(self, name)).all():
                    raise ElmeshError(f"{name} holds NaN or infinite values.")
        L, d = self.h_mean.size, self.t_mean.size
        r = L if self.U is None else self.U.shape[-1]
        shapes = [
            self.A.shape,
            self.h_mean.shape,
            self.t_mean.shape,
            (L, r) if self.U is None else self.U.shape,
        ]
        if shapes != [(r, d), (L,), (d,), (L, r)]:
            raise ElmeshError(f"The shapes of A, h_mean, t_mean and U do not belong together: {shapes}.")
        if self.classes is not None:
            settle(self, "classes", _checked_classes(np.asarray(self.classes), d))
        if self.temperature is not None:
            settle(self, "temperature", float(self.temperature))
            if not (math.isfinite(self.temperature) and self.temperature > 0):
                raise ElmeshError(f"temperature is {self.temperature!r}; it must be a finite number above 0.")

    def scores(self, H: Floats) -> Floats:
        """Score rows of hidden features, one column an output.

        Parameters
        ----------
        H : ndarray of shape (n_rows, L)
            Hidden features.

        Returns
        -------
        ndarray of shape (n_rows, d)
            For classification, one column a class of the task.
        """
        centred = H - self.h_mean
        projected = centred if self.U is None else centred @ self.U
        return np.asarray(projected @ self.A + self.t_mean)


@dataclass(frozen=True, eq=False)
class MultiTaskModel:
    """A fitted model: a hidden layer that all tasks share, and a head a task.

    Parameters
    ----------
    kind : {"classification", "regression"}
        What the heads' outputs are.
    layer : HiddenLayer
        From inputs to hidden features.
    heads : dict
        Task label to `Head`, in the order of the tasks.
    feature_names : tuple of str or None, default=None
        Names of the input columns, where they had names.
    y_ndim : {1, 2}, default=1
        Number of dimensions that predictions have.

    Examples
    --------
    >>> head = Head(None, [[2.0], [1.0]], h_mean=[0.0, 0.0], t_mean=[10.0])
    >>> model = MultiTaskModel("regression", HiddenLayer(2, None), {"leeds": head})
    >>> model.scores([[1.0, 1.0]], {"leeds": np.array([0])})
    {'leeds': array([[13.]])}
    """

    kind: Literal["classification", "regression"]
    layer: HiddenLayer
    heads: dict[Label, Head]
    feature_names: tuple[str, ...] | None = None
    y_ndim: int = 1

    def __post_init__(self) -> None:
        if self.kind not in ("classification", "regression"):
            raise ElmeshError(f"kind is {self.kind!r}; it must be 'classification' or 'regression'.")
        if not self.heads or len({type(label) for label in self.heads}) > 1:
            raise ElmeshError("A model needs at least one task, and labels of one type.")
        if type(next(iter(self.heads))) not in KINDS:
            raise ElmeshError(f"Task labels must be text or whole numbers, not {next(iter(self.heads))!r}.")
        if type(self.y_ndim) is not int or self.y_ndim not in (1, 2):
            raise ElmeshError(f"y_ndim is {self.y_ndim!r}; it must be 1 or 2.")
        for label, head in self.heads.items():
            if head.h_mean.size != self.layer.width:
                raise ElmeshError(
                    f"The head of task {label!r} takes {head.h_mean.size} features, but the hidden layer gives "
                    f"{self.layer.width}."
                )
            if (head.classes is None) != (self.kind == "regression"):
                raise ElmeshError(
                    f"Task {label!r} must have classes for classification and none for regression."
                )
            if self.kind == "regression" and self.y_ndim == 1 and head.t_mean.size != 1:
                raise ElmeshError(
                    f"Task {label!r} has {head.t_mean.size} outputs, but predictions have one dimension."
                )
        if self.feature_names is not None and (
            len(self.feature_names) != self.layer.n_inputs
            or not all(isinstance(name, str) for name in self.feature_names)
        ):
            raise ElmeshError(f"feature_names must name the {self.layer.n_inputs} input columns.")

    def scores(self, X: ArrayLike, groups: Groups) -> dict[Label, Floats]:
        """Score the rows of each task with the task's own head.

        Parameters
        ----------
        X : array-like of shape (n_rows, n_inputs)
            Finite numbers.
        groups : dict
            Task label to row numbers, as `elmesh.tasks.match_tasks` gives it.

        Returns
        -------
        dict
            Task label to an array of shape (rows of the task, outputs of the task).
        """
        X = np.asarray(X, dtype=np.float64)
        return {label: self._head(label).scores(self.layer(X[rows])) for label, rows in groups.items()}

    def for_task(self, label: Label) -> MultiTaskModel:
        """Take out one task's model.

        Parameters
        ----------
        label : str, int or bool
            The task.

        Returns
        -------
        MultiTaskModel
            With that head alone, in memory of its own: nothing of another task is reachable from it.
        """
        head = self._head(label)
        arrays = {
            f.name: v.copy() for f in fields(head) if isinstance(v := getattr(head, f.name), np.ndarray)
        }
        return replace(self, heads={label: replace(head, **arrays)})

    def save(
        self,
        path: str | os.PathLike[str],
        *,
        estimator: Mapping[str, Any],
        extra: Mapping[str, Any] | None = None,
        overwrite: bool = False,
    ) -> None:
        """Save the model as a folder with ``model.json`` and ``weights.safetensors``.

        Parameters
        ----------
        path : str or path
            The folder to make.
        estimator, extra : dict
            What else to keep; only what JSON can hold. Tuples come back as lists.
        overwrite : bool, default=False
            Whether an elmesh model at that path may be replaced. Nothing else ever is.
        """
        content, tensors = _to_parts(self)
        content |= {"estimator": dict(estimator), "extra": dict(extra or {})}
        write_folder(path, content, tensors, overwrite=overwrite)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> tuple[MultiTaskModel, dict[str, Any], dict[str, Any]]:
        """Load a model that `save` wrote.

        Parameters
        ----------
        path : str or path
            The folder.

        Returns
        -------
        model : MultiTaskModel
            Its predictions are the saved model's to the bit.
        estimator, extra : dict
            What was kept with it.
        """
        content, tensors = read_folder(path)
        try:
            model = _from_parts(content, tensors)
            estimator, extra = content["estimator"], content["extra"]
            if not isinstance(estimator, dict) or not isinstance(extra, dict):
                raise ElmeshError("estimator and extra must be dicts.")
        except ElmeshError as error:
            raise ElmeshError(f"{os.fspath(path)} does not hold a usable model: {error}") from error
        except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
            # the checksums were right, so somebody wrote this on purpose or with another program
            raise ElmeshError(
                f"{os.fspath(path)} does not describe a model that elmesh can have saved."
            ) from error
        return model, estimator, extra

    def _head(self, label: Label) -> Head:
        if label not in self.heads:
            raise ElmeshError(f"Task {label!r} is not known; the model was fitted with {listed(self.heads)}.")
        return self.heads[label]


def _checked_classes(classes: NDArray[Any], d: int) -> NDArray[Any]:
    """Check that classes can be saved and told apart."""
    if classes.dtype.kind != "O":
        classes = classes.astype(classes.dtype.newbyteorder("="))
    elif not all(type(c) is str for c in classes):
        raise ElmeshError("Classes that are not numbers must be text.")
    if classes.dtype.kind != "U" and classes.dtype.name not in _CLASS_DTYPES:
        raise ElmeshError(f"Classes of type {classes.dtype} cannot be kept; use text or numbers.")
    if classes.dtype.kind == "f" and not np.isfinite(classes).all():
        raise ElmeshError("Classes hold NaN or infinite values.")
    if classes.shape != (d,) or not np.array_equal(classes, np.unique(classes)):
        raise ElmeshError(f"Classes must be {d} sorted values without repeats, one an output.")
    return classes


def _to_parts(model: MultiTaskModel) -> tuple[dict[str, Any], Tensors]:
    """Take a model apart into what JSON holds and what safetensors holds."""
    tensors: Tensors = {}
    projections: dict[tuple[tuple[int, ...], bytes], int] = {}  # tasks that agree exactly share one stored U
    tasks = []
    for i, (label, head) in enumerate(model.heads.items()):
        shared = None
        if head.U is not None:
            key = (head.U.shape, hashlib.sha256(head.U.data).digest())
            shared = projections.setdefault(key, len(projections))
            tensors[f"U.{shared}"] = head.U
        tensors |= {f"A.{i}": head.A, f"h_mean.{i}": head.h_mean, f"t_mean.{i}": head.t_mean}
        tasks.append(
            {
                "label": label,
                "U": shared,
                "shape": list(head.A.shape),
                "classes": None if head.classes is None else _classes_to_json(head.classes),
                "temperature": head.temperature,
            }
        )
    names = model.feature_names
    content = {
        "kind": model.kind,
        "layer": model.layer.to_json(),
        "y_ndim": model.y_ndim,
        "feature_names": None if names is None else list(names),
        "label_type": type(next(iter(model.heads))).__name__,
        "tasks": tasks,
    }
    return content, tensors


def _from_parts(content: Mapping[str, Any], tensors: Tensors) -> MultiTaskModel:
    """Put a model together again, and see that no part is missing, left over or of another shape."""
    layer = HiddenLayer.from_json(content["layer"])
    label_type = {kind.__name__: kind for kind in KINDS}[content["label_type"]]
    expected: dict[str, tuple[int, ...]] = {}
    for i, task in enumerate(content["tasks"]):
        r, d = task["shape"]
        if task["U"] is not None:
            expected[f"U.{task['U']}"] = (layer.width, r)
        expected |= {f"A.{i}": (r, d), f"h_mean.{i}": (layer.width,), f"t_mean.{i}": (d,)}
    if expected != {name: tensor.shape for name, tensor in tensors.items()}:
        raise ElmeshError("the weights are not those that model.json describes.")
    heads: dict[Label, Head] = {}
    for i, task in enumerate(content["tasks"]):
        label = task["label"]
        if type(label) is not label_type or label in heads:
            raise ElmeshError(f"the task label {label!r} occurs twice or is of another type than the rest.")
        heads[label] = Head(
            U=None if task["U"] is None else tensors[f"U.{task['U']}"],
            A=tensors[f"A.{i}"],
            h_mean=tensors[f"h_mean.{i}"],
            t_mean=tensors[f"t_mean.{i}"],
            classes=None if task["classes"] is None else _classes_from_json(task["classes"]),
            temperature=task["temperature"],
        )
    names = content["feature_names"]
    return MultiTaskModel(
        kind=content["kind"],
        layer=layer,
        heads=heads,
        feature_names=None if names is None else tuple(names),
        y_ndim=content["y_ndim"],
    )


def _classes_to_json(classes: NDArray[Any]) -> dict[str, Any]:
    dtype = f"U{classes.dtype.itemsize // 4}" if classes.dtype.kind == "U" else classes.dtype.name
    return {"dtype": dtype, "values": classes.tolist()}


def _classes_from_json(described: Mapping[str, Any]) -> NDArray[Any]:
    name, values = described["dtype"], described["values"]
    if name not in _CLASS_DTYPES and not (name[:1] == "U" and name[1:].isdecimal()):
        raise ElmeshError(f"classes of type {name!r} are not known.")
    dtype = np.dtype(name)
    if any(type(value) not in _CLASS_TYPES.get(dtype.kind, (str,)) for value in values):
        raise ElmeshError(f"classes are not all of the type {name!r}.")
    if dtype.kind == "U" and dtype.itemsize // 4 > max([1, *map(len, values)]):
        dtype = np.dtype(f"U{max([1, *map(len, values)])}")
    return np.array(values, dtype=dtype)
