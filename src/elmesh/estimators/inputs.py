"""Inputs of estimators: arrays of numbers, or tables with columns of any type, the task in one of them.

A table may be of pandas, polars or Arrow. How its columns become numbers is found from the training rows
(:mod:`elmesh.tables`), and kept with the model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator
from sklearn.utils import Tags, _safe_indexing
from sklearn.utils.validation import check_array, check_consistent_length, validate_data

from elmesh.comm.communicator import raise_on_all
from elmesh.data.labels import plain_type
from elmesh.data.tasks import Groups, check_length, group_rows
from elmesh.errors import ElmeshError
from elmesh.estimators.model import MultiTaskModel
from elmesh.estimators.rows import ArrayRows, Chunk
from elmesh.run.backend import Backend
from elmesh.solvers import Solver, make_solver
from elmesh.tables import FILE_TASK, TableSchema, fit_inputs
from elmesh.tables.access import find_column, task_labels
from elmesh.tables.stream import TableStream
from elmesh.text import row
from elmesh.typing import FloatArray, Label

__all__ = ["InputReader", "array_rows", "as_frame", "check_weights", "drop_column", "labels_of_column", "target_frame"]


class InputReader(BaseEstimator):
    """What estimators share that take arrays or tables.

    Attributes
    ----------
    table_ : TableSchema or None
        How the columns of a table become numbers; None after a fit of an array.
    """

    _kind: Literal["classification", "regression"]
    model_: MultiTaskModel
    solver: str | Solver
    task: str | None
    column_types: Mapping[str, str] | None
    table_: TableSchema | None
    n_features_in_: int
    feature_names_in_: NDArray[Any]
    # Whether columns of a table are found by their names: in any order, and among others.
    _by_name: bool

    def __sklearn_tags__(self) -> Tags:
        """Return what the estimator takes: text and gaps in tables, but not in arrays.

        Inputs are a table if parameters are about its columns, or after a fit of one. A private fit takes numbers
        alone, and its noise differs from fit to fit.
        """
        tags = super().__sklearn_tags__()
        private = isinstance(self.solver, Solver) and self.solver.privacy is not None
        of_columns = self.task is not None or self.column_types is not None or getattr(self, "table_", None) is not None
        takes_tables = of_columns and not private
        tags.input_tags.categorical = tags.input_tags.string = tags.input_tags.allow_nan = takes_tables
        tags.non_deterministic = private
        return tags

    def _read(self, X: Any, y: Any, tasks: object, sample_weight: ArrayLike | None, backend: Backend) -> ArrayRows:
        """Return rows to learn from, inputs as numbers.

        :mod:`elmesh.data.tasks` checks targets, and names the row that is wrong.
        """
        frame = as_frame(X)
        self.table_, self._by_name = None, False
        with raise_on_all(backend.communicator):
            weights = None if sample_weight is None else check_weights(sample_weight, X if frame is None else frame)
        if weights is not None and np.any(weights == 0):
            # A row that does not count is not there.
            counts = weights > 0
            X, y, tasks, weights = _rows_of(X, counts), _rows_of(y, counts), _rows_of(tasks, counts), weights[counts]
            frame = as_frame(X)
        if frame is not None and make_solver(self.solver).privacy is None:
            return self._read_table(X, frame, y, tasks, weights, backend)
        if frame is not None:
            # Scales and categories of a table follow from its rows, which a private fit must not ask.
            X, tasks = self._numbers(frame), self._labels(frame, tasks)
        with raise_on_all(backend.communicator):
            if self.task is not None and tasks is None:
                raise ElmeshError(
                    f"task={self.task!r} names a column of a table, and X has no named columns; give a DataFrame, or "
                    "the task of each row with tasks=."
                )
            # A task of one row may be the only one of its process.
            least = 1 if make_solver(self.solver).grouped_features and not backend.in_one_place else 2
            inputs = {"dtype": np.float64, "ensure_all_finite": False, "ensure_min_samples": least}
            targets = {"dtype": None, "ensure_all_finite": False, "ensure_2d": False}
            X_checked, y_checked = validate_data(self, X, y, validate_separately=(inputs, targets))
            check_length(y_checked, len(X_checked))
            groups = group_rows(tasks, len(X_checked))
            return array_rows(self._finite(X_checked), self._shape_targets(y_checked), groups, weights)

    def _check_stream(
        self, stream: TableStream, y: Any, tasks: object, sample_weight: Any, backend: Backend
    ) -> tuple[list[str], str | None]:
        """Return the columns of a stream with the targets, and with the weights; raise unless they are names."""
        if not backend.in_one_place:
            raise ElmeshError("A stream is read by one process; leave the backend at its default, or give tables.")
        names = [y] if isinstance(y, str) else list(y) if isinstance(y, (list, tuple)) else []
        if not names or not all(isinstance(name, str) for name in names):
            raise ElmeshError('With a stream, y names the column with the targets, such as y="days", or several.')
        if tasks is not None or not isinstance(sample_weight, str | None):
            raise ElmeshError(
                "With a stream, tasks and weights are columns of it: task= of the estimator names that of the tasks, "
                "sample_weight that of the weights."
            )
        if make_solver(self.solver).privacy is not None:
            raise ElmeshError("A private fit takes a table in memory, not a stream; give a DataFrame or an array.")
        for name in names:
            if name in (self.task, sample_weight):
                raise ElmeshError(
                    f'Column "{name}" of {stream.name} is named as target, and as task or weight as well.'
                )
        return names, sample_weight

    def _set_table(self, schema: TableSchema) -> None:
        """Read tables by a schema from now on, whose columns are found by their names."""
        self.table_, self._by_name = schema, True
        self.feature_names_in_ = np.array([column.name for column in schema.features], dtype=object)
        self.n_features_in_ = len(self.feature_names_in_)

    def _labels(self, frame: pd.DataFrame, tasks: object, like: Sequence[Label] = ()) -> object:
        """Return the tasks that are given or, if the table has their column, in it."""
        if tasks is None and self.task is not None and self.task in frame.columns:
            return labels_of_column(frame, self.task, like)
        return tasks

    def _numbers(self, frame: pd.DataFrame) -> pd.DataFrame:
        """Return a table without its task column; raise if another column holds no numbers."""
        inputs = drop_column(frame, self.task)
        for name in inputs.columns:
            if not pd.api.types.is_numeric_dtype(inputs[name].dtype):
                raise ElmeshError(
                    f'Column "{name}" holds no numbers; a private fit takes numbers alone, because categories and '
                    "scales of other columns would be found from the rows: encode it by values that are known anyway."
                )
        return inputs

    def _read_table(
        self,
        X: ArrayLike,
        frame: pd.DataFrame,
        y: ArrayLike,
        tasks: object,
        weights: FloatArray | None,
        backend: Backend,
    ) -> ArrayRows:
        """Return the same of a table, and find how its columns become numbers."""
        communicator = backend.communicator
        with raise_on_all(communicator):
            validate_data(self, X, skip_check_array=True)
            y_checked = check_array(y, dtype=None, ensure_all_finite=False, ensure_2d=False, input_name="y")
            check_length(y_checked, len(frame))
            if not len(frame):
                raise ElmeshError("The table has no rows; at least one task with data is needed.")
            if tasks is None and self.task is not None:
                tasks = labels_of_column(frame, self.task)
            inputs = drop_column(frame, self.task)
            if not inputs.shape[1]:
                raise ElmeshError("The table has no column besides the task; at least one to learn from is needed.")
            groups = group_rows(tasks, len(frame))
            labels = np.empty(len(frame), dtype=object)
            for label, rows in groups.items():
                labels[rows] = label
            targets = target_frame(y, [str(name) for name in frame.columns])
        self.table_ = fit_inputs(
            inputs,
            labels.tolist(),
            targets,
            self._kind,
            task=self.task or FILE_TASK,
            types=self.column_types,
            weights=weights,
            communicator=communicator,
        )
        with raise_on_all(communicator):
            encoded = self.table_.encode_features(inputs.rename(columns=str))
            return array_rows(encoded, self._shape_targets(y_checked), groups, weights)

    def _read_by_name(self, table: TableSchema | None) -> None:
        """Find the columns of a table by their names from now on: in any order, and among others."""
        self.table_, self._by_name = table, table is not None
        if table is not None:
            if table.kind != self._kind or len(table.feature_names) != self.model_.layer.n_inputs:
                raise ElmeshError("The model and its table description do not match; fit the model again.")
            self._set_table(table)

    def _read_as(self, other: InputReader) -> None:
        """Read inputs as another estimator does."""
        self.table_, self._by_name, self.n_features_in_ = other.table_, other._by_name, other.n_features_in_
        if hasattr(other, "feature_names_in_"):
            self.feature_names_in_ = other.feature_names_in_

    def _in_fitted_units(self, y: ArrayLike) -> NDArray[Any]:
        """Return targets in the units that the model was fitted in, from those of its predictions."""
        values = self._shape_targets(np.asarray(y))
        return values if self.table_ is None else self.table_.in_fitted_units(values)

    def _shape_targets(self, y: NDArray[Any]) -> NDArray[Any]:
        """Return targets in the shape that a fit takes."""
        return y

    def _finite(self, X: FloatArray) -> FloatArray:
        bad = ~np.isfinite(X)
        if bad.any():
            i, j = np.argwhere(bad)[0].tolist()
            column = repr(self.feature_names_in_[j]) if hasattr(self, "feature_names_in_") else j
            raise ElmeshError(
                f"X is NaN or infinite {row(i)}, column {column}; fill it in, for instance with an imputer in a "
                "pipeline, or leave the row out."
            )
        return X

    def _encode(self, X: ArrayLike, tasks: object = None, least: int = 1) -> tuple[FloatArray, object]:
        """Return rows as numbers, and the tasks that are given or in their column, None if neither is there."""
        frame = as_frame(X)
        if self.table_ is None:
            if frame is not None:
                X, tasks = self._numbers(frame), self._labels(frame, tasks, list(self.model_.heads))
            options = {"dtype": np.float64, "ensure_all_finite": False, "ensure_min_samples": least}
            return self._finite(validate_data(self, X, reset=False, **options)), tasks
        if frame is None:
            array = validate_data(self, X, reset=False, dtype=None, ensure_all_finite=False, ensure_min_samples=least)
            frame = pd.DataFrame(array, columns=self.feature_names_in_)
        return self._encode_table(self.table_, X, frame, tasks)

    def _encode_table(
        self, table: TableSchema, X: ArrayLike, frame: pd.DataFrame, tasks: object
    ) -> tuple[FloatArray, object]:
        column, known = table.task if self.task is None else self.task, list(self.model_.heads)
        if not self._by_name and as_frame(X) is not None:
            # With tasks given, or a single one, the column that has them may be missing.
            names = [*self.feature_names_in_]
            if column in names and column not in frame.columns:
                place = names.index(column)
                X = pd.concat(
                    [frame.iloc[:, :place], pd.Series(0, frame.index, name=column), frame.iloc[:, place:]], axis=1
                )
            validate_data(self, X, reset=False, skip_check_array=True)
        if not len(frame):
            raise ElmeshError("The table has no rows; give at least one to predict.")
        if tasks is None and column in frame.columns:
            tasks = labels_of_column(frame, column, known)
        return table.encode_features(frame.rename(columns=str)), tasks


def check_weights(sample_weight: ArrayLike, X: Any) -> FloatArray:
    """Return weights of rows; raise unless there is one per row, none is negative and some are positive."""
    weights = check_array(sample_weight, ensure_2d=False, dtype=np.float64, input_name="sample_weight")
    if weights.ndim != 1:
        raise ElmeshError(
            f"Sample weights must be 1D: sample_weight has shape {weights.shape}; give one number per row."
        )
    check_consistent_length(X, weights)
    if np.any(weights < 0) or not np.any(weights > 0):
        raise ElmeshError("sample_weight must have no number below zero, and some above it.")
    return np.asarray(weights, dtype=np.float64)


def _rows_of(values: Any, chosen: NDArray[np.bool_]) -> Any:
    """Return some rows of an array, a table or a list; None of None."""
    return None if values is None else _safe_indexing(values, np.flatnonzero(chosen))


def array_rows(X: FloatArray, y: NDArray[Any], groups: Groups, weights: FloatArray | None = None) -> ArrayRows:
    """Return rows in memory, each of which counts once unless weights are given."""
    return ArrayRows(Chunk(X, y, groups, np.ones(len(X)) if weights is None else weights))


def as_frame(X: object) -> pd.DataFrame | None:
    """Return a table as pandas has it; None if something is no table.

    Examples
    --------
    >>> as_frame([[1.0, 2.0]]) is None
    True
    """
    if isinstance(X, pd.DataFrame):
        return X
    columns: Any = getattr(X, "columns", getattr(X, "column_names", None))
    convert = getattr(X, "to_pandas", None)
    if columns is None or convert is None:
        return None
    frame = convert()
    return frame if isinstance(frame, pd.DataFrame) else None


def labels_of_column(frame: pd.DataFrame, task: str, like: Sequence[Label] = ()) -> NDArray[Any]:
    """Return the task of each row from a column: whole numbers if it has such, otherwise text.

    The tasks that a model knows, ``like``, say what they must be: 7, 7.0 and "7" are the same task.
    """
    column = find_column(frame, task)
    kind = plain_type(type(like[0])) if len(like) else None
    if kind is int or (kind is None and pd.api.types.is_integer_dtype(column.dtype) and not column.isna().any()):
        labels = task_labels(frame, task)
        try:
            return np.array([int(label) for label in labels], dtype=np.int64)
        except ValueError:
            wrong = next(label for label in labels if not label.lstrip("-").isdecimal())
            raise ElmeshError(f'Column "{task}" has the task "{wrong}"; the tasks are whole numbers.') from None
    return task_labels(frame, task)


def drop_column(frame: pd.DataFrame, name: str | None) -> pd.DataFrame:
    """Return a table without a column, if there is one of that name."""
    names = [column for column in (name, FILE_TASK) if column is not None and column in frame.columns]
    return frame.drop(columns=names) if names else frame


def target_frame(y: Any, inputs: Sequence[str]) -> pd.DataFrame:
    """Return targets as a table; their names are their own, or y, and differ from those of the inputs.

    Examples
    --------
    >>> list(target_frame(np.array([1.0, 2.0]), ["x"])), list(target_frame(np.ones((2, 2)), ["y1"]))
    (['y'], ['y1 (target)', 'y2'])
    """
    frame = as_frame(y)
    if frame is None:
        values = np.asarray(y)
        name = getattr(y, "name", None)
        if values.ndim == 1:
            names = [str(name) if isinstance(name, str) and name else "y"]
        else:
            names = [f"y{k + 1}" for k in range(values.shape[1])]
        frame = pd.DataFrame(values.reshape(len(values), -1), columns=names)
    taken = set(map(str, inputs))
    return frame.set_axis([f"{name} (target)" if str(name) in taken else str(name) for name in frame.columns], axis=1)
