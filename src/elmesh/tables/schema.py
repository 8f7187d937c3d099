"""How a table becomes numbers: fixed by the training data and saved with the model.

The rules for the columns to learn from:

- A number is standardised by the mean and the standard deviation of the training rows. A missing number takes that
  mean. If the training rows had missing values in the column, a further column indicates which values are missing.
- A date is its number of days, standardised in the same way, and, if the training rows span enough of them, its place
  in the year, in the week and in the day, each as a sine and a cosine. A missing date is treated as a missing number.
- A category is one-hot encoded. Missing is a category of its own if the training rows had missing values. A category
  that the training rows did not have is encoded as zeros, with a warning. Of very many categories the most frequent
  ones are kept, and all others are encoded as zeros.
- An infinite value is an error.

Regression targets are standardised too, and predictions are converted back to the units of the table.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, is_dataclass
from typing import Any, Literal, get_args, get_origin, get_type_hints

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from elmesh.errors import ElmeshError
from elmesh.tables.access import (
    TableWarning,
    date_numbers,
    describe_row,
    find_column,
    finite_numbers,
    require_complete,
    task_labels,
)
from elmesh.tables.columns import to_labels
from elmesh.tables.dates import CYCLES, cycle_angles
from elmesh.typing import FloatArray

__all__ = ["CategoricalColumn", "DateColumn", "NumericColumn", "ProblemKind", "TableSchema", "TargetColumn"]

ProblemKind = Literal["classification", "regression"]

_VERSION = 2
# Names of fields in JSON where they differ, so that version 0.4 reads models of this one.
_JSON_NAMES = {"fill_value": "median"}


@dataclass(frozen=True)
class NumericColumn:
    """A column of numbers with the statistics of the training rows that have a value."""

    name: str
    mean: float
    std: float  # 0 if the column has one value; then only the indicator is encoded
    fill_value: float  # replaces a missing number: the mean, in models of version 0.4 the median
    indicator: bool  # whether a further column indicates which values are missing

    @property
    def feature_names(self) -> list[str]:
        """Names of the encoded columns."""
        return [self.name] * (self.std > 0) + [f"{self.name} is missing"] * self.indicator

    def encode(self, frame: pd.DataFrame) -> list[FloatArray]:
        """Return the encoded columns."""
        values = finite_numbers(frame, self.name)
        missing = np.isnan(values)
        encoded = []
        if self.std > 0:
            filled = np.where(missing, self.fill_value, values) if missing.any() else values
            encoded.append((filled - self.mean) / self.std)
        if self.indicator:
            encoded.append(missing.astype(np.float64))
        return encoded


@dataclass(frozen=True)
class DateColumn:
    """A column of dates or times with the statistics of the training rows that have a value, in days since 1970."""

    name: str
    mean: float
    std: float  # 0 if the column has one value
    indicator: bool  # whether a further column indicates which values are missing
    cycles: tuple[str, ...]  # some of "year", "week" and "day"

    @property
    def feature_names(self) -> list[str]:
        """Names of the encoded columns."""
        waves = [f"{self.name}, {wave} of {cycle}" for cycle in self.cycles for wave in ("sine", "cosine")]
        return [self.name] * (self.std > 0) + waves + [f"{self.name} is missing"] * self.indicator

    def encode(self, frame: pd.DataFrame) -> list[FloatArray]:
        """Return the encoded columns."""
        days = date_numbers(frame, self.name)
        missing = np.isnan(days)
        days = np.where(missing, self.mean, days)
        encoded = [(days - self.mean) / self.std] if self.std > 0 else []
        for cycle in self.cycles:
            angles = cycle_angles(days, cycle)
            # A missing date is nowhere in a cycle.
            encoded += [np.where(missing, 0.0, wave(angles)) for wave in (np.sin, np.cos)]
        return [*encoded, missing.astype(np.float64)] if self.indicator else encoded


@dataclass(frozen=True)
class CategoricalColumn:
    """A column of categories."""

    name: str
    categories: tuple[str, ...]  # of the training rows, sorted
    missing: bool  # whether missing is a category too
    others: bool = False  # whether rows had further, rare categories, which count as none of these

    @property
    def feature_names(self) -> list[str]:
        """Names of the encoded columns."""
        names = [f"{self.name} = {category}" for category in self.categories]
        return names + [f"{self.name} is missing"] * self.missing

    def encode(self, frame: pd.DataFrame) -> list[FloatArray]:
        """Return the encoded columns; warn of categories that the training rows did not have."""
        values = to_labels(find_column(frame, self.name))
        known: list[str | None] = [*self.categories, *([None] if self.missing else [])]
        code = {category: i for i, category in enumerate(known)}
        codes = np.array([code.get(value, -1) for value in values])
        unseen = codes < 0
        if unseen.any() and not self.others:
            example = values[int(np.argmax(unseen))]
            what = "missing values" if example is None else f'values such as "{example}"'
            warnings.warn(
                f'Column "{self.name}": {what} were never seen in training and count as none of the known '
                f"categories ({int(unseen.sum())} of {len(values)} rows).",
                TableWarning,
                stacklevel=3,
            )
        return [(codes == i).astype(np.float64) for i in range(len(known))]


@dataclass(frozen=True)
class TargetColumn:
    """A column to predict; for regression with the mean and the standard deviation of the training rows."""

    name: str
    mean: float = 0.0
    std: float = 1.0


@dataclass(frozen=True)
class TableSchema:
    """The role of each column and how it becomes numbers.

    :func:`elmesh.tables.fit_schema` makes it from training rows; :meth:`encode` applies it to any table.
    """

    task: str  # the column with the task of each row
    kind: ProblemKind
    target_columns: tuple[TargetColumn, ...]
    whole_labels: bool  # for classification: whether the classes are whole numbers instead of text
    numeric: tuple[NumericColumn, ...]
    categorical: tuple[CategoricalColumn, ...]
    dates: tuple[DateColumn, ...] = ()

    @property
    def features(self) -> tuple[NumericColumn | CategoricalColumn | DateColumn, ...]:
        """The columns to learn from, in the order in which they are encoded."""
        return (*self.numeric, *self.categorical, *self.dates)

    @property
    def feature_names(self) -> list[str]:
        """Names of the columns of the encoded table."""
        return [name for column in self.features for name in column.feature_names]

    def encode(self, frame: pd.DataFrame) -> tuple[FloatArray, NDArray[np.str_]]:
        """Encode a table as numbers; return them and the task of each row as text.

        The table needs the columns to learn from; any others, such as the targets, are ignored.
        """
        return self.encode_features(frame), task_labels(frame, self.task)

    def encode_features(self, frame: pd.DataFrame) -> FloatArray:
        """Encode the columns to learn from as numbers."""
        for column in self.features:
            try:
                find_column(frame, column.name)
            except ElmeshError as error:
                raise ElmeshError(
                    f"{error} The model needs it: add it, with empty cells where values are missing."
                ) from error
        return np.column_stack([values for column in self.features for values in column.encode(frame)])

    def targets(self, frame: pd.DataFrame) -> NDArray[Any]:
        """Return the targets of a table: classes, or standardised numbers, one column per target if there are several.

        Classes are whole numbers or text.
        """
        return self.in_fitted_units(self.true_targets(frame))

    def true_targets(self, frame: pd.DataFrame) -> NDArray[Any]:
        """Return the targets of a table: classes, or numbers in the units of the table."""
        if self.kind == "classification":
            name = self.target_columns[0].name
            if self.whole_labels:
                return require_complete(frame, name, _whole_numbers(frame, name), "target").astype(np.int64)
            return require_complete(frame, name, to_labels(find_column(frame, name)), "target").astype(np.str_)
        numbers = [
            require_complete(frame, t.name, finite_numbers(frame, t.name), "target") for t in self.target_columns
        ]
        return numbers[0] if len(numbers) == 1 else np.column_stack(numbers)

    def in_units(self, predicted: NDArray[Any]) -> NDArray[Any]:
        """Convert standardised predictions of a regression to the units of the table; return classes unchanged."""
        if self.kind == "classification":
            return predicted
        means = np.array([target.mean for target in self.target_columns])
        stds = np.array([target.std for target in self.target_columns])
        standardised = np.asarray(predicted, dtype=np.float64)
        values = standardised.reshape(-1, len(means)) * stds + means
        return np.reshape(values, standardised.shape)

    def in_fitted_units(self, y: NDArray[Any]) -> NDArray[Any]:
        """Standardise the targets of a regression, which are in the units of the table; return classes unchanged."""
        means = np.array([target.mean for target in self.target_columns])
        stds = np.array([target.std for target in self.target_columns])
        if self.kind == "classification" or (np.all(means == 0) and np.all(stds == 1)):
            return y
        return np.asarray((y - (means if y.ndim > 1 else means[0])) / (stds if y.ndim > 1 else stds[0]))

    @property
    def target_units(self) -> FloatArray | float:
        """What a standard deviation of standardised predictions is multiplied by, for the units of the table."""
        units = np.array([target.std for target in self.target_columns])
        return float(units[0]) if len(units) == 1 else units

    def noise_in_units(self, noise: Mapping[str, Sequence[float]] | None) -> dict[str, list[float]] | None:
        """Convert standard deviations of each task's standardised targets to the units of the table."""
        if noise is None:
            return None
        stds = [target.std for target in self.target_columns] if self.kind == "regression" else []
        return {
            task: [x * std for x, std in zip(own, stds, strict=True)] if stds else [*own] for task, own in noise.items()
        }

    def to_json(self) -> dict[str, Any]:
        """Return the content of the schema as JSON values; :meth:`from_json` reads it."""
        data = asdict(self, dict_factory=lambda items: {_JSON_NAMES.get(field, field): x for field, x in items})
        columns = {key: list(data[key]) for key in ("target_columns", "numeric", "categorical", "dates")}
        for key, values in (("categorical", "categories"), ("dates", "cycles")):
            for column in columns[key]:
                column[values] = list(column[values])
        for column in columns["categorical"]:
            if not column["others"]:
                del column["others"]  # so that earlier versions can read it
        if not self.dates:
            # Without dates earlier versions can read it.
            del data["dates"], columns["dates"]
            return {"version": 1, **data, **columns}
        return {"version": _VERSION, **data, **columns}

    @classmethod
    def from_json(cls, data: object) -> TableSchema:
        """Read the result of :meth:`to_json` from an untrusted file; raise if any value is not as expected."""
        if isinstance(data, dict):
            version = _read_json(float, data.get("version"), "table.version")
            if version > _VERSION:
                raise ElmeshError("The table description in the model is of a newer version; update elmesh to read it.")
            if version < 1:
                raise _damaged("table.version", "is less than 1")
            # Version 1 had no dates.
            data = {"dates": [], **data} if version == 1 else data
            data = {key: value for key, value in data.items() if key != "version"}
            if isinstance(data.get("categorical"), list):
                columns = [{"others": False, **one} if isinstance(one, dict) else one for one in data["categorical"]]
                data["categorical"] = columns
        schema: TableSchema = _read_json(cls, data, "table")
        targets = schema.target_columns
        if not targets or (schema.kind == "classification" and len(targets) > 1):
            raise _damaged("table.target_columns", "has the wrong length")
        for i, target in enumerate(targets):
            if target.std <= 0:
                raise _damaged(f"table.target_columns[{i}].std", "is not positive")
        _check_columns(schema)
        names = {"table.columns": (schema.task, *(column.name for column in (*targets, *schema.features)))}
        names |= {f"table.categorical[{i}].categories": c.categories for i, c in enumerate(schema.categorical)}
        for path, group in names.items():
            if len(set(group)) < len(group):
                raise _damaged(path, "has a name twice")
        if not schema.feature_names:
            raise _damaged("table.columns", "are none")
        return schema


def _check_columns(schema: TableSchema) -> None:
    """Raise if the columns of a schema from a file have values that no fit gives them."""
    deviations = {f"numeric[{i}]": column.std for i, column in enumerate(schema.numeric)}
    deviations |= {f"dates[{i}]": column.std for i, column in enumerate(schema.dates)}
    for path, std in deviations.items():
        if std < 0:
            raise _damaged(f"table.{path}.std", "is negative")
    for i, date in enumerate(schema.dates):
        if not set(date.cycles) <= CYCLES.keys() or len(set(date.cycles)) < len(date.cycles):
            raise _damaged(f"table.dates[{i}].cycles", "are not different cycles")


def _whole_numbers(frame: pd.DataFrame, name: str) -> FloatArray:
    values = finite_numbers(frame, name)
    fractional = ~np.isnan(values) & (values != np.round(values))
    if fractional.any():
        first = int(np.argmax(fractional))
        raise ElmeshError(
            f'The classes in column "{name}" are whole numbers, but {describe_row(frame, first)} has '
            f"{values[first]:g}; correct it."
        )
    return values


def _damaged(path: str, problem: str) -> ElmeshError:
    """Return the error about the value at a path."""
    return ElmeshError(f"The table description in the model is damaged: {path} {problem}. Fit the model again.")


def _read_json(kind: Any, value: object, path: str) -> Any:
    """Return a JSON value as a type: a dataclass, a tuple of one type, a Literal of two, bool, float or str.

    A model folder may come from anywhere, so each value is checked by the type of its field: a text must not be empty,
    a number must be finite, and an object has exactly the fields of the dataclass.
    """
    if get_origin(kind) is tuple:
        if not isinstance(value, list):
            raise _damaged(path, "is not a list")
        return tuple(_read_json(get_args(kind)[0], item, f"{path}[{i}]") for i, item in enumerate(value))
    if isinstance(kind, type) and is_dataclass(kind):
        return kind(*_read_fields(kind, value, path))
    if kind is float:
        try:
            number = float(value) if isinstance(value, int | float) and not isinstance(value, bool) else math.nan
        except OverflowError:
            number = math.inf
        if not math.isfinite(number):
            raise _damaged(path, "is not a finite number")
        return number
    if get_args(kind):
        if value not in get_args(kind):
            raise _damaged(path, f"is neither {' nor '.join(get_args(kind))}")
    elif not isinstance(value, kind) or value == "":
        raise _damaged(path, "is neither true nor false" if kind is bool else "is not a text")
    return value


def _read_fields(kind: Any, value: object, path: str) -> list[Any]:
    if not isinstance(value, dict):
        raise _damaged(path, "is not an object")
    types = {_JSON_NAMES.get(field, field): kind for field, kind in get_type_hints(kind).items()}
    for key in types:
        if key not in value:
            raise _damaged(f"{path}.{key}", "is missing")
    if len(value) > len(types):
        raise _damaged(path, "has unknown values")
    return [_read_json(kind, value[key], f"{path}.{key}") for key, kind in types.items()]
