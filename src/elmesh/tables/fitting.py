"""The schema of a table, found from its training rows.

Each column that is neither task nor target becomes numeric or categorical by what it holds. Columns nobody
could learn from (dates as they stand, identifiers, numbers with commas) are errors that say what to do, for
guessing would give a model that works in training and nowhere else.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from elmesh.errors import ElmeshError
from elmesh.tables.columns import Nature, distinct, is_decimal_comma, labels, nature, numbers
from elmesh.tables.files import FILE_TASK, TableWarning
from elmesh.tables.rows import complete, find_column, finite_numbers, task_labels, where
from elmesh.tables.schema import CategoricalColumn, Kind, NumericColumn, TableSchema, TargetColumn

__all__ = ["fit_schema", "infer_kind"]

_MAX_CATEGORIES = 50
_MAX_CLASSES = 20
_MAX_CLASS_SHARE = 0.05
_ID_SHARE, _ID_ROWS = (
    0.9,
    20,
)  # this many of the values differ: an identifier, once there are enough rows to tell


def infer_kind(frame: pd.DataFrame, targets: Sequence[str]) -> tuple[Kind, str]:
    """Choose classification or regression by the target.

    Text, categories and booleans are classes, and so are whole numbers of at most 20 different values that
    are at most 5 % of the rows. Anything else, and several targets, is regression.

    Parameters
    ----------
    frame
        The training rows.
    targets
        The target columns.

    Returns
    -------
    tuple
        ``"classification"`` or ``"regression"``, and the reason in words.

    Examples
    --------
    >>> import pandas as pd
    >>> infer_kind(pd.DataFrame({"y": ["yes", "no"]}), ["y"])
    ('classification', 'column "y" holds text')
    """
    if len(targets) > 1:
        return "regression", "there are several targets"
    name = targets[0]
    column = find_column(frame, name)
    held = nature(column)
    if held in (Nature.TEXT, Nature.BOOLEAN):
        _reject_commas(column, name)
        return "classification", f'column "{name}" holds {held.value}'
    _reject_unusable(held, f'The target column "{name}"')
    values = finite_numbers(frame, name)
    values = values[~np.isnan(values)]
    different = len(np.unique(values))
    if (values != np.round(values)).any():
        return "regression", f'column "{name}" holds numbers that are not whole'
    counted = f'column "{name}" holds whole numbers, {different} different ones in {len(values)} rows'
    few = different <= min(_MAX_CLASSES, _MAX_CLASS_SHARE * len(values))
    return ("classification" if few else "regression"), counted


def fit_schema(
    frame: pd.DataFrame,
    task: str,
    targets: Sequence[str],
    kind: Kind | None = None,
    *,
    drop: Sequence[str] = (),
) -> TableSchema:
    """Find how a table becomes numbers.

    Parameters
    ----------
    frame
        The training rows of all tasks.
    task
        The column that says which task a row belongs to.
    targets
        The columns to predict; several only for regression.
    kind
        ``"classification"`` or ``"regression"``; by default as :func:`infer_kind` says.
    drop
        Columns to leave out.

    Returns
    -------
    TableSchema
        With the mean, standard deviation, median and categories of the training rows.

    Raises
    ------
    ElmeshError
        If a column is not there or cannot be used, or a row has no task or no target.

    Examples
    --------
    >>> import pandas as pd
    >>> frame = pd.DataFrame({"site": ["a", "a", "b"], "dose": [1.0, 2.0, 3.0], "sex": ["f", "m", "f"],
    ...                       "y": ["no", "yes", "yes"]})
    >>> schema = fit_schema(frame, "site", ["y"])
    >>> schema.kind, schema.columns
    ('classification', ['dose', 'sex = f', 'sex = m'])
    >>> X, tasks = schema.encode(frame)
    >>> X[1].tolist(), tasks.tolist()
    ([0.0, 0.0, 1.0], ['a', 'a', 'b'])
    """
    _check_roles(frame, task, targets, drop)
    task_labels(frame, task)
    if kind is None:
        kind, _ = infer_kind(frame, targets)
    target_columns: tuple[TargetColumn, ...]
    if kind == "classification":
        target_columns, whole = (TargetColumn(targets[0]),), _has_whole_labels(frame, targets)
    else:
        target_columns, whole = tuple(_regression_target(frame, name) for name in targets), False

    numeric: list[NumericColumn] = []
    categorical: list[CategoricalColumn] = []
    constant: list[str] = []
    for name in (str(name) for name in frame.columns if name not in {task, FILE_TASK, *targets, *drop}):
        held = nature(frame[name])
        _reject_unusable(held, f'Column "{name}"', name)
        column = _categorical(frame, name) if held is Nature.TEXT else _numeric(frame, name)
        if column is None:
            constant.append(name)
        elif isinstance(column, NumericColumn):
            numeric.append(column)
        else:
            categorical.append(column)
    if constant:
        warnings.warn(f"Left out, for all rows have the same value: {', '.join(constant)}.", TableWarning, stacklevel=2)
    if not numeric and not categorical:
        raise ElmeshError("No column is left to learn from; the table needs one besides the task and the target.")
    return TableSchema(task, kind, target_columns, whole, tuple(numeric), tuple(categorical))


def _check_roles(frame: pd.DataFrame, task: str, targets: Sequence[str], drop: Sequence[str]) -> None:
    if not targets:
        raise ElmeshError("A target column is needed; name it with --target.")
    for name in (task, *targets, *drop):
        find_column(frame, name)
    if len(set(targets)) < len(targets):
        raise ElmeshError("A target column is named twice; name each once.")
    if task in targets:
        raise ElmeshError(f'Column "{task}" is named as both task and target; they must differ.')
    for name in drop:
        if name == task or name in targets:
            raise ElmeshError(f'Column "{name}" is named as task or target, and to be dropped as well.')


def _reject_unusable(held: Nature, subject: str, name: str | None = None) -> None:
    drop = f', or leave the column out with --drop "{name}"' if name else ""
    if held is Nature.DATE:
        raise ElmeshError(f"{subject} holds dates or times; convert them to numbers, such as days since a start{drop}.")
    if held is Nature.OTHER:
        raise ElmeshError(f"{subject} holds {held.value}; convert them{drop}.")


def _reject_commas(column: pd.Series[Any], name: str) -> None:
    values = distinct(column)[1]
    if is_decimal_comma(values):
        example = next(value for value in values if "," in str(value))
        raise ElmeshError(
            f'Column "{name}" has numbers with commas, such as "{example}"; write them with a decimal point '
            "and nothing between the thousands."
        )


def _has_whole_labels(frame: pd.DataFrame, targets: Sequence[str]) -> bool:
    """Whether the classes are whole numbers; on the way, whether they are classes at all."""
    if len(targets) > 1:
        raise ElmeshError("Classification takes one target column; give one --target, or --kind regression.")
    name = targets[0]
    column = find_column(frame, name)
    held = nature(column)
    _reject_unusable(held, f'The target column "{name}"')
    classes = complete(frame, name, labels(column), "target")
    different = len(set(classes))
    if different > _MAX_CATEGORIES and different > 0.5 * len(classes):
        raise ElmeshError(
            f'The target column "{name}" has {different} different values in {len(classes)} rows'
            f"{_stray_text(frame, name)}, too many for classes; choose another column, or "
            "--kind regression if it is a number to predict."
        )
    if held is not Nature.NUMBER:
        return False
    values = finite_numbers(frame, name)
    # Beyond 2^53 a float no longer holds every whole number, so such labels are kept as text.
    return bool((values == np.round(values)).all() and (np.abs(values) < 2**53).all())


def _regression_target(frame: pd.DataFrame, name: str) -> TargetColumn:
    column = find_column(frame, name)
    held = nature(column)
    _reject_unusable(held, f'The target column "{name}"')
    if held is Nature.TEXT:
        _reject_commas(column, name)
        wrong = numbers(column)[1]
        if wrong.any():
            first = int(np.argmax(wrong))
            raise ElmeshError(
                f'Regression needs numbers, but the target column "{name}" has "{column.iloc[first]}" at '
                f"{where(frame, first)}; correct it, or use --kind classification."
            )
    values = complete(frame, name, finite_numbers(frame, name), "target")
    if values.min() == values.max():
        raise ElmeshError(f'The target column "{name}" has the value {values[0]:g} in all rows: nothing to learn.')
    mean, std, _ = _moments(values, name)
    return TargetColumn(name, mean, std)


def _numeric(frame: pd.DataFrame, name: str) -> NumericColumn | None:
    values = finite_numbers(frame, name)
    missing = np.isnan(values)
    seen = values[~missing]
    if not len(seen):
        return None
    if seen.min() == seen.max():
        only = float(seen[0])
        return NumericColumn(name, only, 0.0, only, True) if missing.any() else None
    mean, std, median = _moments(seen, name)
    return NumericColumn(name, mean, std, median, bool(missing.any()))


def _moments(values: np.ndarray[Any, np.dtype[np.float64]], name: str) -> tuple[float, float, float]:
    with np.errstate(over="ignore", invalid="ignore"):
        moments = float(values.mean()), float(values.std()), float(np.median(values))
    if not np.isfinite(moments).all() or moments[1] == 0:
        raise ElmeshError(f'The values of column "{name}" are too large or too close together to scale.')
    return moments


def _categorical(frame: pd.DataFrame, name: str) -> CategoricalColumn | None:
    _reject_commas(frame[name], name)
    values = labels(frame[name])
    categories = sorted(set(values) - {None})
    missing = None in values
    seen = sum(value is not None for value in values)
    if len(categories) > _MAX_CATEGORIES or (seen >= _ID_ROWS and len(categories) >= _ID_SHARE * seen):
        raise ElmeshError(
            f'Column "{name}" is text with {len(categories)} different values in {len(values)} rows'
            f"{_stray_text(frame, name)}, more like an identifier than a category; leave it out with "
            f'--drop "{name}".'
        )
    if len(categories) + missing < 2:
        return None
    return CategoricalColumn(name, tuple(categories), missing)


def _stray_text(frame: pd.DataFrame, name: str) -> str:
    """Point at the cell that makes text of a column which is otherwise numbers."""
    wrong = numbers(frame[name])[1]
    if not wrong.any():
        leading = nature(frame[name]) is Nature.TEXT
        return " (numbers with leading zeros are taken as text)" if leading else ""
    if wrong.mean() < 0.5:
        first = int(np.argmax(wrong))
        return f' (the first that is not a number is "{frame[name].iloc[first]}" at {where(frame, first)})'
    return ""
