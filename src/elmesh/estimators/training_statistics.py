"""What a fitted estimator keeps of the rows it was fitted on, so that rows can be added and taken away.

The statistics of each site (:mod:`elmesh.data.site_statistics`) determine the fit, given the features, the scales and
the classes of the first one. They are as confidential as the rows. They are saved in a folder of their own beside the
model, which only its owner can read, and predictions need nothing of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from elmesh.data.site_statistics import KeyedRows, SiteStatistics
from elmesh.data.statistics import Moments
from elmesh.errors import ElmeshError
from elmesh.estimators.head import classes_from_json, classes_to_json
from elmesh.estimators.storage import Arrays, Parts, read_statistics
from elmesh.estimators.target_encoding import ClassEncoding, NumberEncoding, TargetEncoding
from elmesh.typing import FloatArray, Label

__all__ = ["TrainingStatistics"]


@dataclass(frozen=True, eq=False)
class TrainingStatistics:
    """The statistics of some tasks, and how their targets become numbers.

    Parameters
    ----------
    sites : dict
        The statistics of each task, sorted by task.
    encoding : TargetEncoding
        From targets to numbers.
    seed : int
        The seed of the fit.
    joint : bool
        Whether all that tasks have in common follows from these tasks, and may be learned again: not if others took
        part that are elsewhere, nor in a private fit, where a further release would cost privacy.
    y_ndim : int
        Number of dimensions of the targets.
    """

    sites: dict[Label, SiteStatistics]
    encoding: TargetEncoding
    seed: int
    joint: bool
    y_ndim: int = 1

    def for_task(self, task: Label) -> TrainingStatistics:
        """Return the statistics of one task."""
        return replace(self, sites={task: self.sites[task]}, encoding=self.encoding.for_task(task), joint=False)

    @classmethod
    def read(cls, folder: Path) -> TrainingStatistics:
        """Return the statistics of a saved model, from their folder."""
        content, arrays = read_statistics(folder)
        try:
            return cls.from_parts(content, arrays)
        except ElmeshError as error:
            raise ElmeshError(f"{folder} does not hold usable statistics: {error}") from error
        except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
            # The checksums are right, so another program wrote this.
            raise ElmeshError(f"{folder} does not describe statistics as elmesh saves them.") from error

    def to_parts(self) -> Parts:
        """Return plain JSON and arrays, of all sites side by side, for a file."""
        rows = [site.rows for site in self.sites.values()]
        arrays: Arrays = {
            "X": np.concatenate([own.X for own in rows]),
            "T": np.concatenate([own.T.ravel() for own in rows]),
            "weights": np.concatenate([own.weights for own in rows]),
            "keys": np.concatenate([own.keys for own in rows]),
        }
        described = []
        for k, (label, site) in enumerate(self.sites.items()):
            one: dict[str, Any] = {"label": label, "rows": len(site.rows), "targets": site.rows.T.shape[1]}
            if site.halves is not None:
                one |= {"bound": site.bound, "weights": [half.rows for half in site.halves]}
                upper = np.triu_indices(len(site.halves[0].sums))
                arrays[f"sums.{k}"] = np.stack([half.sums for half in site.halves])
                arrays[f"products.{k}"] = np.stack([half.products[upper] for half in site.halves])
                arrays[f"keys.{k}"] = site.keys
            described.append(one)
        content = {
            "seed": self.seed,
            "joint": self.joint,
            "y_ndim": self.y_ndim,
            "label_type": type(next(iter(self.sites))).__name__,
            "encoding": _encoding_to_json(self.encoding),
            "tasks": described,
        }
        return content, arrays

    @classmethod
    def from_parts(cls, content: Mapping[str, Any], arrays: Arrays) -> TrainingStatistics:
        """Return the statistics of their parts; raise if one is missing or of another shape."""
        sites: dict[Label, SiteStatistics] = {}
        X, T, weights, keys = (arrays[name] for name in ("X", "T", "weights", "keys"))
        row = number = 0
        for k, one in enumerate(content["tasks"]):
            n, d, label = int(one["rows"]), int(one["targets"]), one["label"]
            if type(label).__name__ != content["label_type"] or label in sites:
                raise ElmeshError(f"The task label {label!r} occurs twice, or is of another type than the rest.")
            own = slice(row, row + n)
            kept = KeyedRows(X[own], T[number : number + n * d].reshape(n, d), weights[own], keys[own])
            row, number, halves = row + n, number + n * d, None
            if "bound" in one:
                sums, products = arrays[f"sums.{k}"], arrays[f"products.{k}"]
                first, second = (_moments(*half) for half in zip(one["weights"], sums, products, strict=True))
                halves = first, second
            sites[label] = SiteStatistics.restore(kept, halves, arrays.get(f"keys.{k}"), one.get("bound"))
        if row != len(X) or number != len(T) or not sites:
            raise ElmeshError("The statistics are not those that their description has.")
        encoding = _encoding_from_json(content["encoding"])
        return cls(sites, encoding, int(content["seed"]), content["joint"] is True, int(content["y_ndim"]))


def _moments(rows: float, sums: FloatArray, upper: FloatArray) -> Moments:
    size = len(sums)
    products = np.zeros((size, size), order="F")
    products[np.triu_indices(size)] = upper
    return Moments(float(rows), sums, products)


def _encoding_to_json(encoding: TargetEncoding) -> dict[str, Any]:
    if isinstance(encoding, NumberEncoding):
        return {
            "mean": encoding.mean.tolist(),
            "scale": encoding.scale.tolist(),
            "usual": None if encoding.usual is None else encoding.usual.tolist(),
            "limits": [[label, *(_finite(end) for end in ends)] for label, ends in encoding.limits.items()],
        }
    if not isinstance(encoding, ClassEncoding):
        raise TypeError(f"Targets are encoded by {type(encoding).__name__}.")
    by_task = encoding.by_task
    return {
        "classes": classes_to_json(encoding.classes),
        "mean": encoding.mean.tolist(),
        "by_task": None if by_task is None else [[t, classes_to_json(own)] for t, own in by_task.items()],
        "class_weights": None if encoding.class_weights is None else encoding.class_weights.tolist(),
    }


def _encoding_from_json(fields: Mapping[str, Any]) -> TargetEncoding:
    def array(value: Any) -> FloatArray:
        return np.array([np.inf if x is None else x for x in value], dtype=np.float64)

    if "classes" in fields:
        by_task = fields["by_task"]
        return ClassEncoding(
            classes_from_json(fields["classes"]),
            array(fields["mean"]),
            None if by_task is None else {t: classes_from_json(own) for t, own in by_task},
            None if fields["class_weights"] is None else array(fields["class_weights"]),
        )
    limits = {t: (-array(_negative(low)), array(high)) for t, low, high in fields["limits"]}
    usual = None if fields["usual"] is None else array(fields["usual"])
    return NumberEncoding(array(fields["mean"]), array(fields["scale"]), limits, usual)


def _finite(values: FloatArray) -> list[float | None]:
    """Return numbers, None in place of infinite ones, which JSON has not."""
    return [x if np.isfinite(x) else None for x in values.tolist()]


def _negative(values: list[float | None]) -> list[float | None]:
    return [None if x is None else -x for x in values]
