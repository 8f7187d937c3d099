"""A fitted model: the hidden layer that all tasks share, and one head per task.

A head can be extracted alone, so that a site's model contains nothing of the others. Models are saved as safetensors
and JSON, never as pickle; :mod:`elmesh.estimators.storage` writes and reads the files.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import safetensors.numpy
from numpy.typing import ArrayLike, NDArray

from elmesh.data.features import FeatureMap, Features, features_from_json
from elmesh.data.labels import KINDS, plain_type
from elmesh.data.tasks import Groups
from elmesh.errors import ElmeshError
from elmesh.estimators.common import CommonPart
from elmesh.estimators.head import Head, classes_from_json, classes_to_json
from elmesh.estimators.storage import Parts, Tensors, read_folder, write_folder
from elmesh.text import listed
from elmesh.typing import FloatArray, Label, StrPath

__all__ = ["Head", "MultiTaskModel"]

_COMMON = ("W", "t_mean", "S", "log_c", "log_v", "s2")


@dataclass(frozen=True, eq=False)
class MultiTaskModel:
    """A fitted model: a hidden layer that all tasks share, and one head per task.

    Parameters
    ----------
    kind : {"classification", "regression"}
        The kind of the heads' outputs.
    layer : HiddenLayer or FeatureMap
        From inputs to features.
    heads : dict
        Task label to `Head`, in the order of the tasks.
    feature_names : tuple of str or None, default=None
        Names of the input columns, where they had names.
    y_ndim : {1, 2}, default=1
        Number of dimensions that predictions have.
    common : CommonPart or None, default=None
        What all tasks share, where the method has such a part.
    classes : ndarray or None, default=None
        The classes of the columns of the common part; None for regression.

    Examples
    --------
    >>> from elmesh.data.features import HiddenLayer
    >>> head = Head(None, np.array([[2.0], [1.0]]), h_mean=np.zeros(2), t_mean=np.array([10.0]))
    >>> model = MultiTaskModel("regression", HiddenLayer(2, None), {"leeds": head})
    >>> model.scores([[1.0, 1.0]], {"leeds": np.array([0])})
    {'leeds': array([[13.]])}
    """

    kind: Literal["classification", "regression"]
    layer: Features
    heads: dict[Label, Head]
    feature_names: tuple[str, ...] | None = None
    y_ndim: int = 1
    common: CommonPart | None = None
    classes: NDArray[Any] | None = None

    def __post_init__(self) -> None:
        if self.kind not in ("classification", "regression"):
            raise ElmeshError(f"kind is {self.kind!r}; it must be 'classification' or 'regression'.")
        types = {type(label) for label in self.heads}
        if len(types) != 1 or not types <= KINDS.keys():
            raise ElmeshError("A model needs at least one task, and labels that are all text or all whole numbers.")
        if type(self.y_ndim) is not int or self.y_ndim not in (1, 2):
            raise ElmeshError(f"y_ndim is {self.y_ndim!r}; it must be 1 or 2.")
        names, width = self.feature_names, self.layer.width
        if names is not None and (
            len(names) != self.layer.n_inputs or not all(isinstance(name, str) for name in names)
        ):
            raise ElmeshError(f"feature_names must name the {self.layer.n_inputs} input columns.")
        for label, head in self.heads.items():
            n_features, n_outputs = head.h_mean.size, head.t_mean.size
            if n_features != width:
                raise ElmeshError(f"Task {label!r} takes {n_features} features; the hidden layer gives {width}.")
            if (head.classes is None) != (self.kind == "regression"):
                raise ElmeshError(f"Task {label!r} must have classes in classification, and none in regression.")
            if self.kind == "regression" and self.y_ndim == 1 and n_outputs != 1:
                raise ElmeshError(f"Task {label!r} has {n_outputs} outputs; predictions have one dimension.")

    def scores(self, X: ArrayLike, groups: Groups) -> dict[Label, FloatArray]:
        """Return the scores of each task's rows by its own head, of shape (rows of the task, outputs of the task).

        Rows of a task that the model does not know are scored by the common part, if there is one.
        """
        X = np.asarray(X, dtype=np.float64)
        found = {}
        for label, rows in groups.items():
            unknown = self.common is not None and label not in self.heads
            head = self.common if unknown and self.common is not None else self.heads[self._known(label)]
            found[label] = head.scores(self.layer(X[rows]))
        return found

    def variances(self, X: ArrayLike, groups: Groups) -> dict[Label, FloatArray]:
        """Return the predictive variances of each task's rows, of the shape of :meth:`scores`."""
        if self.common is None or not isinstance(self.layer, FeatureMap):
            raise ElmeshError(
                "The standard deviation of predictions needs a common or a private part; fit with mesh-elm's defaults."
            )
        X, found = np.asarray(X, dtype=np.float64), {}
        for label, rows in groups.items():
            found[label] = self.common.variance(self.layer(X[rows]), self.layer.groups, self.heads.get(label))
        return found

    def part_shares(self, X: ArrayLike, groups: Groups) -> dict[Label, FloatArray]:
        """Return the shares of the common, the shared and the private part in each task's predictions.

        A share is the mean square of a part over the rows, about the common mean of the targets; the three add up to 1.
        """
        if self.common is None or not isinstance(self.layer, FeatureMap):
            raise ElmeshError("Only a model with a common part has parts; fit with mesh-elm's defaults.")
        X, found = np.asarray(X, dtype=np.float64), {}
        for label, rows in groups.items():
            head = self.heads.get(label)
            parts: tuple[FloatArray, ...] = (self.common.W,)
            if head is not None:
                columns = np.arange(self.common.W.shape[1])
                if self.classes is not None and head.classes is not None:
                    columns = np.searchsorted(self.classes, head.classes)
                parts = self.common.parts(head.A, head.log_w, self.layer.groups, columns)
            Phi = self.layer(X[rows])
            squares = np.zeros(3)
            squares[: len(parts)] = [np.sum((Phi @ part) ** 2) for part in parts]
            found[label] = squares / squares.sum()
        return found

    def for_task(self, label: Label) -> MultiTaskModel:
        """Return one task's model, in its own memory: nothing of another task is reachable from it."""
        label = self._known(label)
        head, common, classes = self.heads[label].copy(), self.common, self.classes
        if common is not None and classes is not None and head.classes is not None:
            # Classes that only other tasks have are theirs.
            own = np.searchsorted(classes, head.classes)
            common, classes = common.columns(own), classes[own]
            head = replace(head, shared=None if head.shared is None else head.shared[:, own])
        return replace(self, heads={label: head}, common=common, classes=classes)

    def save(
        self,
        path: StrPath,
        *,
        estimator: Mapping[str, Any],
        extra: Mapping[str, Any] | None = None,
        overwrite: bool = False,
        card: str | None = None,
        statistics: Parts | None = None,
    ) -> None:
        """Save the model, and plain JSON with it, as a folder with ``model.json`` and ``weights.safetensors``.

        ``card`` is the text of a ``README.md`` beside them, and ``statistics`` what is kept of the rows.
        """
        content, tensors = _to_parts(self)
        content |= {"estimator": dict(estimator), "extra": dict(extra or {})}
        write_folder(path, content, tensors, overwrite=overwrite, card=card, statistics=statistics)

    @classmethod
    def load(cls, path: StrPath) -> tuple[MultiTaskModel, dict[str, Any], dict[str, Any]]:
        """Return a saved model, whose predictions are the same to the bit, and the JSON that was saved with it."""
        content, tensors = read_folder(path)
        try:
            model = _from_parts(content, tensors)
            estimator, extra = content["estimator"], content["extra"]
            if not isinstance(estimator, dict) or not isinstance(extra, dict):
                raise TypeError
        except ElmeshError as error:
            raise ElmeshError(f"{os.fspath(path)} does not hold a usable model: {error}") from error
        except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
            # The checksums are right, so another program wrote this.
            raise ElmeshError(f"{os.fspath(path)} does not describe a model as elmesh saves it.") from error
        return model, estimator, extra

    def to_bytes(self) -> bytes:
        """Return the model as bytes, to be sent to another process."""
        content, tensors = _to_parts(self)
        text = json.dumps(content).encode()
        return len(text).to_bytes(8, "little") + text + safetensors.numpy.save(tensors)

    @classmethod
    def from_bytes(cls, data: bytes) -> MultiTaskModel:
        """Return the model of :meth:`to_bytes`."""
        end = 8 + int.from_bytes(data[:8], "little")
        return _from_parts(json.loads(data[8:end]), safetensors.numpy.load(data[end:]))

    def _known(self, label: Any) -> Label:
        """Return the plain label of a task, or raise if there is no such task."""
        plain = plain_type(type(label))
        key = None if plain is None else plain(label)
        if key is None or key not in self.heads or type(key) is not type(next(iter(self.heads))):
            raise ElmeshError(f"Task {label!r} is not known; the model was fitted with {listed(self.heads)}.")
        return key


def _to_parts(model: MultiTaskModel) -> tuple[dict[str, Any], Tensors]:
    """Return what is saved as JSON, and what as safetensors."""
    tensors: Tensors = {}
    stored: dict[tuple[tuple[int, ...], bytes], int] = {}  # tasks whose U is the same share one copy of it
    tasks: list[dict[str, Any]] = []
    for i, (label, head) in enumerate(model.heads.items()):
        shared = None
        if head.U is not None:
            shared = stored.setdefault((head.U.shape, hashlib.sha256(head.U.data).digest()), len(stored))
            tensors[f"U.{shared}"] = head.U
        tensors |= {f"A.{i}": head.A, f"h_mean.{i}": head.h_mean, f"t_mean.{i}": head.t_mean}
        if head.link is not None:
            tensors[f"link.{i}"] = head.link
        if head.X is not None:
            tensors[f"X.{i}"] = head.X
        if head.shared is not None:
            tensors[f"shared.{i}"] = head.shared
        if head.log_v is not None:
            tensors[f"log_v.{i}"] = head.log_v
        tasks.append(
            {
                "label": label,
                "U": shared,
                "shape": list(head.A.shape),
                "classes": None if head.classes is None else classes_to_json(head.classes),
                "temperature": head.temperature,
                **({"link": True} if head.link is not None else {}),
                **({"features": len(head.X), "log_w": head.log_w} if head.X is not None else {}),
                **({"shared": list(head.shared.shape)} if head.shared is not None else {}),
                **({"groups": len(head.log_v)} if head.log_v is not None else {}),
                **({"rows": head.rows} if head.rows is not None else {}),
            }
        )
    content = {
        "kind": model.kind,
        "layer": model.layer.to_json(),
        "y_ndim": model.y_ndim,
        "feature_names": None if model.feature_names is None else list(model.feature_names),
        "label_type": type(next(iter(model.heads))).__name__,
        "tasks": tasks,
    }
    if model.common is not None:
        tensors |= {f"common.{name}": getattr(model.common, name) for name in _COMMON}
        tensors |= {
            f"common.{name}": value
            for name in ("U", "link", "shares")
            if (value := getattr(model.common, name)) is not None
        }
        content["common"] = {
            "outputs": model.common.W.shape[1],
            "groups": model.common.log_c.size,
            "tau2": model.common.tau2,
            "temperature": model.common.temperature,
            **{name: True for name in ("link", "shares") if getattr(model.common, name) is not None},
            **({"links_at_home": True} if model.common.links_at_home else {}),
            "rank": None if model.common.U is None else model.common.U.shape[1],
            "mu2": model.common.mu2,
            **({"private": True} if model.common.private else {}),
            "classes": None if model.classes is None else classes_to_json(model.classes),
        }
    return content, tensors


def _from_parts(content: Mapping[str, Any], tensors: Tensors) -> MultiTaskModel:
    """Return the model of its parts; raise if one is missing, left over or of another shape."""
    layer = features_from_json(content["layer"])
    expected: dict[str, tuple[int, ...]] = {}
    heads: dict[Label, Head] = {}
    for i, task in enumerate(content["tasks"]):
        r, d = task["shape"]
        expected |= {f"A.{i}": (r, d), f"h_mean.{i}": (layer.width,), f"t_mean.{i}": (d,)}
        if task["U"] is not None:
            expected[f"U.{task['U']}"] = (layer.width, r)
        if task.get("link"):
            expected[f"link.{i}"] = (2, d)
        if "features" in task:
            expected[f"X.{i}"] = (task["features"], layer.width)
        if "shared" in task:
            expected[f"shared.{i}"] = tuple(task["shared"])
        if "groups" in task:
            expected[f"log_v.{i}"] = (task["groups"],)
    common = content.get("common")
    if common is not None:
        p, d, G = layer.width, common["outputs"], common["groups"]
        shapes = {"W": (p, d), "t_mean": (d,), "S": (p, p), "log_c": (G,), "log_v": (G,), "s2": (d,)}
        given = {"link": common.get("link"), "shares": common.get("shares"), "U": common["rank"] is not None}
        sizes = {"link": (2, d), "shares": (d,), "U": (p, common["rank"])}
        shapes |= {name: sizes[name] for name, is_there in given.items() if is_there}
        expected |= {f"common.{name}": shape for name, shape in shapes.items()}
    if expected != {name: tensor.shape for name, tensor in tensors.items()}:
        raise ElmeshError("The weights are not those that model.json describes.")
    for i, task in enumerate(content["tasks"]):
        label: Any = task["label"]
        if type(label).__name__ != content["label_type"] or label in heads:
            raise ElmeshError(f"The task label {label!r} occurs twice, or is of another type than the rest.")
        heads[label] = Head(
            U=None if task["U"] is None else tensors[f"U.{task['U']}"],
            A=tensors[f"A.{i}"],
            h_mean=tensors[f"h_mean.{i}"],
            t_mean=tensors[f"t_mean.{i}"],
            classes=None if task["classes"] is None else classes_from_json(task["classes"]),
            temperature=task["temperature"],
            link=tensors.get(f"link.{i}"),
            X=tensors.get(f"X.{i}"),
            log_w=task.get("log_w", 0.0),
            shared=tensors.get(f"shared.{i}"),
            log_v=tensors.get(f"log_v.{i}"),
            rows=task.get("rows"),
        )
    names = content["feature_names"]
    return MultiTaskModel(
        kind=content["kind"],
        layer=layer,
        heads=heads,
        feature_names=None if names is None else tuple(names),
        y_ndim=content["y_ndim"],
        common=None
        if common is None
        else CommonPart(
            **{name: tensors[f"common.{name}"] for name in _COMMON},
            tau2=float(common["tau2"]),
            temperature=common["temperature"],
            link=tensors.get("common.link"),
            shares=tensors.get("common.shares"),
            links_at_home=common.get("links_at_home") is True,
            U=tensors.get("common.U"),
            mu2=float(common["mu2"]),
            private=common.get("private") is True,
        ),
        classes=None if common is None or common["classes"] is None else classes_from_json(common["classes"]),
    )
