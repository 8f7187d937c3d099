"""How a table becomes numbers, fixed by the training data and kept with the model.

The rule for the columns to learn from:

- a number is standardised by the training mean and standard deviation; a missing one takes the training
  median, and where the training data had any missing in that column, a further column says which were;
- a category is one-hot; missing is a category of its own if the training data had it; a category never seen
  in training is all zeros, and said in a note;
- an infinite value is an error.

Regression targets are standardised too, and predictions are given back in the user's units.
"""

from __future__ import annotations

import warnings
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pandas as pd

from elmesh.errors import ElmeshError
from elmesh.tables.columns import Floats, labels
from elmesh.tables.fields import Fields, unique
from elmesh.tables.files import TableWarning
from elmesh.tables.rows import complete, find_column, finite_numbers, task_labels, where

__all__ = ["CategoricalColumn", "Kind", "NumericColumn", "TableSchema", "TargetColumn"]

Kind = Literal["classification", "regression"]

_VERSION = 1


@dataclass(frozen=True)
class NumericColumn:
    """A column of numbers, and what the training data says about it.

    Attributes
    ----------
    name
        The column.
    mean, std, median
        Over the training rows that have a value. A ``std`` of 0 stands for a column of one value, which only
        says whether it is missing.
    indicator
        Whether a further column says which values are missing.
    """

    name: str
    mean: float
    std: float
    median: float
    indicator: bool

    @property
    def outputs(self) -> list[str]:
        """Names of the columns it becomes."""
        return [self.name] * (self.std > 0) + [f"{self.name} is missing"] * self.indicator

    def encode(self, frame: pd.DataFrame) -> list[Floats]:
        """Give the columns it becomes."""
        values = finite_numbers(frame, self.name)
        missing = np.isnan(values)
        parts = []
        if self.std > 0:
            parts.append((np.where(missing, self.median, values) - self.mean) / self.std)
        if self.indicator:
            parts.append(missing.astype(np.float64))
        return parts

    @classmethod
    def from_json(cls, fields: Fields) -> NumericColumn:
        """Read a column's description."""
        fields.only("name", "mean", "std", "median", "indicator")
        return cls(
            fields.text("name"),
            fields.number("mean"),
            fields.number("std", least=0.0),
            fields.number("median"),
            fields.flag("indicator"),
        )


@dataclass(frozen=True)
class CategoricalColumn:
    """A column of categories.

    Attributes
    ----------
    name
        The column.
    categories
        Those of the training data, sorted.
    missing
        Whether missing is a category too.
    """

    name: str
    categories: tuple[str, ...]
    missing: bool

    @property
    def outputs(self) -> list[str]:
        """Names of the columns it becomes."""
        names = [f"{self.name} = {category}" for category in self.categories]
        return names + [f"{self.name} is missing"] * self.missing

    def encode(self, frame: pd.DataFrame) -> list[Floats]:
        """Give the columns it becomes, with a warning that counts what is new."""
        values = labels(find_column(frame, self.name))
        known: list[str | None] = [*self.categories, *([None] if self.missing else [])]
        place = {category: i for i, category in enumerate(known)}
        codes = np.array([place.get(value, -1) for value in values])
        unseen = codes < 0
        if unseen.any():
            example = values[int(np.argmax(unseen))]
            what = "missing values" if example is None else f'values such as "{example}"'
            warnings.warn(
                f'Column "{self.name}": {what} were never seen in training and count as none of the known '
                f"categories ({int(unseen.sum())} of {len(values)} rows).",
                TableWarning,
                stacklevel=3,
            )
        return [(codes == i).astype(np.float64) for i in range(len(known))]

    @classmethod
    def from_json(cls, fields: Fields) -> CategoricalColumn:
        """Read a column's description."""
        fields.only("name", "categories", "missing")
        return cls(fields.text("name"), fields.texts("categories"), fields.flag("missing"))


@dataclass(frozen=True)
class TargetColumn:
    """A column to predict; for regression with its mean and standard deviation over the training rows."""

    name: str
    mean: float = 0.0
    std: float = 1.0

    @classmethod
    def from_json(cls, fields: Fields) -> TargetColumn:
        """Read a target's description."""
        fields.only("name", "mean", "std")
        target = cls(fields.text("name"), fields.number("mean"), fields.number("std", least=0.0))
        if target.std == 0:
            raise fields.error("std", "is 0")
        return target


@dataclass(frozen=True)
class TableSchema:
    """Which column is what, and how each becomes numbers.

    Made by :func:`elmesh.tables.fit_schema` from training data; :meth:`encode` treats any other table alike.

    Attributes
    ----------
    task
        The column that says which task a row belongs to.
    kind
        ``"classification"`` or ``"regression"``.
    target_columns
        What is predicted.
    whole_labels
        For classification, whether classes are whole numbers, and not text.
    numeric, categorical
        The columns to learn from.
    """

    task: str
    kind: Kind
    target_columns: tuple[TargetColumn, ...]
    whole_labels: bool
    numeric: tuple[NumericColumn, ...]
    categorical: tuple[CategoricalColumn, ...]

    @property
    def columns(self) -> list[str]:
        """Names of the columns of the encoded table."""
        return [name for column in self._features for name in column.outputs]

    @property
    def _features(self) -> tuple[NumericColumn | CategoricalColumn, ...]:
        return (*self.numeric, *self.categorical)

    def encode(self, frame: pd.DataFrame) -> tuple[Floats, npt.NDArray[np.str_]]:
        """Turn a table into numbers.

        Parameters
        ----------
        frame
            A table with the columns of the training data; others, the targets too, are not looked at.

        Returns
        -------
        tuple
            The numbers, a row for each row of the table, and the task of each row as text.
        """
        tasks = task_labels(frame, self.task)
        parts = [part for column in self._features for part in column.encode(frame)]
        return np.column_stack(parts), tasks

    def targets(self, frame: pd.DataFrame) -> npt.NDArray[Any]:
        """Give the targets to learn.

        Parameters
        ----------
        frame
            A table with the target columns.

        Returns
        -------
        numpy.ndarray
            Classes, as whole numbers or text; or standardised numbers, one column for each target if several.
        """
        if self.kind == "classification":
            name = self.target_columns[0].name
            if self.whole_labels:
                return complete(frame, name, _whole_numbers(frame, name), "target").astype(np.int64)
            return complete(frame, name, labels(find_column(frame, name)), "target").astype(np.str_)
        standard = [
            (complete(frame, target.name, finite_numbers(frame, target.name), "target") - target.mean) / target.std
            for target in self.target_columns
        ]
        return standard[0] if len(standard) == 1 else np.column_stack(standard)

    def in_units(self, predicted: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Turn standardised predictions of a regression into the user's units; leave classes as they are.

        Parameters
        ----------
        predicted
            Shaped as what :meth:`targets` gives.
        """
        if self.kind == "classification":
            return predicted
        means = np.array([target.mean for target in self.target_columns])
        stds = np.array([target.std for target in self.target_columns])
        values = np.asarray(predicted, dtype=np.float64).reshape(-1, len(means)) * stds + means
        return np.ravel(values) if len(means) == 1 else values

    def to_json(self) -> dict[str, Any]:
        """Describe the schema in what JSON can hold; :meth:`from_json` reads it."""
        data = asdict(self)
        data["categorical"] = [asdict(c) | {"categories": list(c.categories)} for c in self.categorical]
        data["numeric"], data["target_columns"] = list(data["numeric"]), list(data["target_columns"])
        return {"version": _VERSION, **data}

    @classmethod
    def from_json(cls, data: object) -> TableSchema:
        """Read what :meth:`to_json` gave, trusting nothing in it.

        Parameters
        ----------
        data
            What a JSON parser gave.

        Raises
        ------
        ElmeshError
            If anything is missing, of the wrong type or out of range, or the version is newer than known.
        """
        fields = Fields.of(data, "table")
        version = fields.number("version", least=1.0)
        if version > _VERSION:
            raise ElmeshError("The table description in the model is of a newer version; update elmesh to read it.")
        fields.only("version", "task", "kind", "target_columns", "whole_labels", "numeric", "categorical")
        kind = fields.text("kind")
        if kind not in ("classification", "regression"):
            raise fields.error("kind", "is neither classification nor regression")
        schema = cls(
            fields.text("task"),
            "classification" if kind == "classification" else "regression",
            tuple(map(TargetColumn.from_json, fields.objects("target_columns"))),
            fields.flag("whole_labels"),
            tuple(map(NumericColumn.from_json, fields.objects("numeric"))),
            tuple(map(CategoricalColumn.from_json, fields.objects("categorical"))),
        )
        used = (schema.target_columns, schema.numeric, schema.categorical)
        unique((schema.task, *(column.name for group in used for column in group)), fields, "columns")
        if not schema.columns:
            raise fields.error("columns", "are none")
        if not schema.target_columns or (kind == "classification" and len(schema.target_columns) > 1):
            raise fields.error("target_columns", "is of the wrong length")
        return schema


def _whole_numbers(frame: pd.DataFrame, name: str) -> Floats:
    values = finite_numbers(frame, name)
    uneven = ~np.isnan(values) & (values != np.round(values))
    if uneven.any():
        first = int(np.argmax(uneven))
        raise ElmeshError(
            f'The classes in column "{name}" are whole numbers, but {where(frame, first)} has '
            f"{values[first]:g}; correct it."
        )
    return values
