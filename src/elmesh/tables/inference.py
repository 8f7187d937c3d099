"""Rules that decide from the statistics of a table how each column is used.

A column that is neither task nor target is numeric, categorical or dates by its type. A column that cannot be learned
from (identifiers, ambiguous dates, numbers with decimal commas) is an error that states how to correct it, because a
guess would give a model that works only on the training data.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from elmesh.errors import ElmeshError
from elmesh.tables.access import TableWarning, infinite_error, missing_error
from elmesh.tables.columns import ColumnType, Mask, ValueType, parse_column, to_labels
from elmesh.tables.dates import choose_cycles
from elmesh.tables.leaks import warn_of_leaks
from elmesh.tables.schema import CategoricalColumn, DateColumn, NumericColumn, ProblemKind, TableSchema, TargetColumn
from elmesh.tables.stats import ColumnStats, DistinctValues, TableStats
from elmesh.text import count

__all__ = ["check_targets", "choose_kind", "has_whole_labels", "infer_inputs", "infer_schema"]

_MAX_CATEGORIES = 50
_MAX_CLASSES = 20
_MAX_CLASS_SHARE = 0.05
# A column of text is an identifier if it has at least this many values and this share of them differ.
_ID_ROWS, _ID_SHARE = 20, 0.9
# Of more values than categories may have, those that are not frequent are taken together, if there are fewer than this
# share of the rows.
_OTHERS_SHARE = 0.5
# With at most this share of words among numbers, a column of categories may have been meant as numbers.
_FEW_WORDS = 0.1
_DATES = ValueType.DATE | ValueType.DATE_TEXT
# Names that R and pandas give to the names or numbers of rows.
_ROW_NAMES = re.compile(r"Unnamed: 0(\.\d+)*|row[._]?names")


def infer_schema(
    stats: TableStats, task: str, targets: Sequence[str], kind: ProblemKind, use: Collection[str] = ()
) -> TableSchema:
    """Return the schema of a table; all columns with statistics are targets or columns to learn from.

    Columns that only number the rows are left out, except those to use in any case.
    """
    if kind == "regression":
        target_columns, whole = tuple(_regression_target(stats, name) for name in targets), False
    else:
        target = targets[0]
        classes = stats.distinct({target: _class_limit(stats, targets)}, to_labels)[target]
        target_columns, whole = (TargetColumn(target),), _check_classes(stats, target, classes)
    return infer_inputs(stats, task, kind, target_columns, dict.fromkeys(use, ColumnType.NUMBER), whole_labels=whole)


def infer_inputs(
    stats: TableStats,
    task: str,
    kind: ProblemKind,
    targets: tuple[TargetColumn, ...],
    types: Mapping[str, ColumnType],
    *,
    whole_labels: bool,
) -> TableSchema:
    """Return the schema of a table whose targets are known; all other columns with statistics are to learn from.

    ``types`` has the types of columns that are given; others follow from their values, and columns that only number
    the rows are left out.
    """
    inputs = [name for name in stats.columns if name not in {target.name for target in targets}]
    row_numbers = _find_row_numbers(stats, inputs, types)
    features = [name for name in inputs if name not in row_numbers]
    chosen = {name: types.get(name, stats.columns[name].column_type) for name in features}
    limits = {name: _MAX_CATEGORIES for name in features if chosen[name] is ColumnType.TEXT}
    labels = stats.distinct(limits, to_labels)
    numeric: list[NumericColumn] = []
    categorical: list[CategoricalColumn] = []
    dates: list[DateColumn] = []
    constant: list[str] = []
    for name in features:
        column = _describe(stats, name, chosen[name], labels)
        if isinstance(column, NumericColumn):
            numeric.append(column)
        elif isinstance(column, CategoricalColumn):
            categorical.append(column)
        elif isinstance(column, DateColumn):
            dates.append(column)
        else:
            constant.append(name)
    if row_numbers:
        names = ", ".join(f'"{name}"' for name in row_numbers)
        message = f"Left out because they only number the rows: {names}; --use keeps one."
        warnings.warn(message, TableWarning, stacklevel=3)
    if constant:
        warnings.warn(
            f"Left out because all rows have the same value: {', '.join(constant)}.", TableWarning, stacklevel=3
        )
    if not numeric and not categorical and not dates:
        raise ElmeshError("No column is left to learn from; the table needs one besides the task and the target.")
    schema = TableSchema(task, kind, targets, whole_labels, tuple(numeric), tuple(categorical), tuple(dates))
    warn_of_leaks(stats, schema)
    return schema


def _describe(
    stats: TableStats, name: str, column_type: ColumnType, labels: Mapping[str, DistinctValues]
) -> NumericColumn | CategoricalColumn | DateColumn | None:
    """Describe a column to learn from; return None if all rows have the same value."""
    column = stats.columns[name]
    if name in labels:
        return _categorical(stats, name, labels[name])
    if column_type is ColumnType.DATE:
        return _date(stats, name)
    _reject_other(column, f'Column "{name}"', f', or leave the column out with --drop "{name}"')
    if _has_other_values(column):
        row, text = stats.first_cell(name, _is_not_a_number)
        raise ElmeshError(f'Column "{name}" is to be numbers, but has "{text}" at {row}; correct it.')
    return _numeric(stats, name)


def _has_other_values(column: ColumnStats) -> bool:
    """Return whether a column has values that are not numbers; dates count as numbers in a process with dates alone."""
    return column.n_not_numeric > 0 or bool(column.value_types & _DATES)


def _is_not_a_number(values: pd.Series[Any]) -> Mask:
    parsed = parse_column(values)
    dates = (parsed.value_types & _DATES) != 0
    return np.asarray(parsed.not_numeric | dates)


def check_targets(stats: TableStats, targets: Sequence[str], kind: ProblemKind) -> bool:
    """Raise if targets cannot be learned; return whether they are classes that are whole numbers."""
    if kind == "classification":
        return has_whole_labels(stats, targets[0]) if len(targets) == 1 else bool(_class_limit(stats, targets))
    for name in targets:
        _regression_target(stats, name)
    return False


def _find_row_numbers(stats: TableStats, inputs: Sequence[str], use: Collection[str]) -> list[str]:
    """Return the columns that only number or name the rows; none if there is no other column."""
    found = [name for name in inputs if name not in use and _numbers_rows(name, stats.columns[name])]
    return found if len(found) < len(inputs) else []


def _numbers_rows(name: str, column: ColumnStats) -> bool:
    return _ROW_NAMES.fullmatch(name) is not None or (column.n_rows >= _ID_ROWS and column.numbers_rows)


def choose_kind(stats: TableStats, targets: Sequence[str]) -> tuple[ProblemKind, str]:
    """Choose classification or regression by the target; see :func:`elmesh.tables.infer_kind`."""
    if len(targets) > 1:
        return "regression", "there are several targets"
    name = targets[0]
    column = stats.columns[name]
    if column.column_type in (ColumnType.TEXT, ColumnType.BOOLEAN):
        _reject_decimal_commas(stats, name)
        return "classification", f'column "{name}" holds {column.column_type.value}'
    _reject_unusable(column, f'The target column "{name}"')
    _reject_infinite(stats, name)
    if column.n_fractional:
        return "regression", f'column "{name}" holds numbers that are not whole'
    found = stats.distinct({name: _MAX_CLASSES}, lambda values: parse_column(values).numbers)[name]
    few = not found.too_many and len(found.values) <= _MAX_CLASS_SHARE * column.n_finite
    reason = f'column "{name}" holds whole numbers, {found.count} different ones in {column.n_finite} rows'
    return ("classification" if few else "regression"), reason


def has_whole_labels(stats: TableStats, target: str) -> bool:
    """Return whether the classes of a target are whole numbers; raise if it does not hold classes."""
    return _check_classes(stats, target, stats.distinct({target: _class_limit(stats, [target])}, to_labels)[target])


def _class_limit(stats: TableStats, targets: Sequence[str]) -> int:
    """Return how many classes a target may have."""
    if len(targets) > 1:
        raise ElmeshError("Classification takes one target column; give one --target, or --kind regression.")
    column = stats.columns[targets[0]]
    _reject_unusable(column, f'The target column "{targets[0]}"')
    return max(_MAX_CATEGORIES, column.n_rows // 2)


def _check_classes(stats: TableStats, name: str, classes: DistinctValues) -> bool:
    """Check the classes of a target and return whether they are whole numbers."""
    column = stats.columns[name]
    if classes.n_missing:
        row, _ = stats.first_cell(name, lambda values: np.asarray(pd.isna(to_labels(values))))
        raise missing_error(classes.n_missing, "target", name, row)
    if classes.too_many:
        raise ElmeshError(
            f'The target column "{name}" has {classes.count} different values in {column.n_rows} rows'
            f"{_explain_text(stats, name)}, too many for classes; choose another column, or "
            "--kind regression if it is a number to predict."
        )
    if column.column_type is not ColumnType.NUMBER:
        return False
    _reject_infinite(stats, name)
    # Labels of 2^53 and more stay text, because a double does not represent every whole number there.
    return not column.n_fractional and not column.n_large


def _regression_target(stats: TableStats, name: str) -> TargetColumn:
    column = stats.columns[name]
    _reject_unusable(column, f'The target column "{name}"')
    if column.column_type is ColumnType.TEXT:
        _reject_decimal_commas(stats, name)
        if _has_other_values(column):
            row, text = stats.first_cell(name, _is_not_a_number)
            raise ElmeshError(
                f'Regression needs numbers, but the target column "{name}" has "{text}" at '
                f"{row}; correct it, or use --kind classification."
            )
    _reject_infinite(stats, name)
    if column.n_missing:
        row, _ = stats.first_cell(name, lambda values: values.isna().to_numpy())
        raise missing_error(column.n_missing, "target", name, row)
    if column.min == column.max:
        raise ElmeshError(
            f'The target column "{name}" has the value {column.min:g} in all rows: nothing to learn. Choose another '
            "column, or add rows with other values."
        )
    return TargetColumn(name, *_scale(column, name))


def _numeric(stats: TableStats, name: str) -> NumericColumn | None:
    """Describe a column of numbers; return None if all rows have the same value."""
    _reject_infinite(stats, name)
    column = stats.columns[name]
    if not column.n_finite:
        return None
    if column.min == column.max:
        return NumericColumn(name, column.min, 0.0, column.min, True) if column.n_missing else None
    mean, std = _scale(column, name)
    return NumericColumn(name, mean, std, mean, column.n_missing > 0)


def _date(stats: TableStats, name: str) -> DateColumn | None:
    """Describe a column of dates; return None if all rows have the same one."""
    column = stats.columns[name]
    if column.n_not_numeric:
        row, text = stats.first_cell(name, _is_not_numeric)
        raise ElmeshError(
            f'Column "{name}" has "{text}" at {row}, of which day, month and year are not certain, or which is a time '
            f'without a date; write dates as 2024-03-31, or leave the column out with --drop "{name}".'
        )
    if column.min == column.max:
        return DateColumn(name, column.min, 0.0, True, ()) if column.n_missing else None
    mean, std = _scale(column, name)
    cycles = choose_cycles(column.min, column.max, has_times=column.n_fractional > 0)
    return DateColumn(name, mean, std, column.n_missing > 0, cycles)


def _scale(column: ColumnStats, name: str) -> tuple[float, float]:
    if column.scale is None:
        raise ElmeshError(
            f'The values of column "{name}" are too large or too close together to scale; use another unit.'
        )
    return column.scale


def _categorical(stats: TableStats, name: str, found: DistinctValues) -> CategoricalColumn | None:
    """Describe a column of categories; return None if all rows have the same value."""
    _reject_decimal_commas(stats, name)
    n_rows = stats.columns[name].n_rows
    n_present = n_rows - found.n_missing
    if found.frequent and int(found.count) < _OTHERS_SHARE * n_present:
        warnings.warn(
            f'Column "{name}" has {found.count} different values; the {len(found.frequent)} most frequent are '
            "categories of their own, and all others together are none of them.",
            TableWarning,
            stacklevel=5,
        )
        _warn_of_words(stats, name, n_present)
        return CategoricalColumn(name, found.frequent, found.n_missing > 0, others=True)
    if found.too_many or (n_present >= _ID_ROWS and len(found.values) >= _ID_SHARE * n_present):
        raise ElmeshError(
            f'Column "{name}" is text with {found.count} different values in {n_rows} rows'
            f"{_explain_text(stats, name)}, more like an identifier than a category; leave it out with "
            f'--drop "{name}"{_or_correct(stats, name)}.{_of_processes(stats, found)}'
        )
    if len(found.values) + bool(found.n_missing) < 2:
        return None
    _warn_of_words(stats, name, n_present)
    return CategoricalColumn(name, found.values, found.n_missing > 0)


def _of_processes(stats: TableStats, found: DistinctValues) -> str:
    """Return what is different where rows are spread over processes: no process sends many values to the others."""
    if stats.communicator.size == 1 or not found.too_many:
        return ""
    return f" Under MPI a column has at most {_MAX_CATEGORIES} categories."


def _warn_of_words(stats: TableStats, name: str, n_present: int) -> None:
    """Warn of a column of numbers that a few words make a column of categories."""
    words = stats.columns[name].n_not_numeric
    if 0 < words <= _FEW_WORDS * n_present and n_present >= _ID_ROWS:
        row, text = stats.first_cell(name, _is_not_numeric)
        warnings.warn(
            f'Column "{name}" has numbers except in {count(words, "row")}, such as "{text}" at {row}, and is used as '
            "categories; correct these cells, or leave them empty, if it is to be numbers.",
            TableWarning,
            stacklevel=5,
        )


def _reject_unusable(column: ColumnStats, subject: str) -> None:
    if column.column_type is ColumnType.DATE:
        raise ElmeshError(f"{subject} holds dates or times; convert them to numbers, such as days since a start.")
    _reject_other(column, subject)


def _reject_other(column: ColumnStats, subject: str, alternative: str = "") -> None:
    if column.column_type is ColumnType.OTHER:
        raise ElmeshError(f"{subject} holds {column.column_type.value}; convert them{alternative}.")


def _reject_decimal_commas(stats: TableStats, name: str) -> None:
    if ValueType(stats.columns[name].value_types).has_decimal_commas:
        has_comma = ValueType.DECIMAL_COMMA_TEXT
        _, text = stats.first_cell(name, lambda values: (parse_column(values).value_types & has_comma) != 0)
        raise ElmeshError(
            f'Column "{name}" has numbers with commas, such as "{text}"; write them with a decimal point '
            "and without thousands separators, or give --decimal comma if these are decimal commas."
        )


def _reject_infinite(stats: TableStats, name: str) -> None:
    if stats.columns[name].n_infinite:
        row, _ = stats.first_cell(name, lambda values: np.isinf(parse_column(values).numbers))
        raise infinite_error(name, row)


def _explain_text(stats: TableStats, name: str) -> str:
    """Explain in a message why a column that consists mostly of numbers is text."""
    column = stats.columns[name]
    if not column.n_not_numeric:
        return " (numbers with leading zeros are taken as text)" if column.column_type is ColumnType.TEXT else ""
    if column.n_not_numeric < 0.5 * column.n_rows:
        row, text = stats.first_cell(name, _is_not_numeric)
        return f' (the first that is not a number is "{text}" at {row})'
    return ""


def _or_correct(stats: TableStats, name: str) -> str:
    """Return what else can be done about a column that is numbers but for some words."""
    column = stats.columns[name]
    return ", or empty the cells that are not numbers" if 0 < column.n_not_numeric < 0.5 * column.n_rows else ""


def _is_not_numeric(values: pd.Series[Any]) -> Mask:
    return parse_column(values).not_numeric
