"""Warnings of columns that alone determine the target, of numbers that are identifiers, and of numbers for gaps.

A column that is computed from the target, or recorded after it, gives a model that is excellent on the training rows
and useless on new ones. Such a column is

- a number x with y = a + b x up to rounding: their squared correlation over all rows is almost 1;
- with classes, a column each value of which occurs with one class only;
- with a quantity y, a column whose values explain almost all of the variance of y, of rows whose value occurs more than
  once: each of these is compared with the mean of the other rows of the same value.

The last two are about columns with fewer different values than half of the rows. An identifier is a column of whole
numbers that are all different. A number such as -999, which occurs several times and is far from all others, stands for
a gap; it is looked for where all rows are in one process. Values are compared within tasks, and no value leaves a
process: the processes exchange counts, means, and sums of squares and products of each task. Of a table that is read in
parts, a sample is examined.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from elmesh.comm.communicator import merge_by_task
from elmesh.tables.access import TableWarning
from elmesh.tables.columns import parse_column, to_labels
from elmesh.tables.schema import CategoricalColumn, DateColumn, NumericColumn, TableSchema
from elmesh.tables.stats import LocalRows, TableStats
from elmesh.text import count
from elmesh.typing import FloatArray, IndexArray

__all__ = ["warn_of_leaks"]

# With fewer rows a relation may be chance.
_MIN_ROWS = 20
# Shares of the variance of the target that a column may leave unexplained: as a line, and by its values.
_LINE_REST, _VALUES_REST = 1e-4, 0.01
# Rows with a number that stands for a gap, at least, and its distance from all others, as a multiple of their range.
_MIN_GAPS, _FAR = 3, 2.0
# Different values that there are beside such numbers.
_FEWEST_OTHERS = 3
# Rows of other classes than the most frequent one of their task that must be explained.
_MIN_EXPLAINED = 10


def warn_of_leaks(stats: TableStats, schema: TableSchema) -> None:
    """Warn of each column of a schema that alone determines a target, and of identifiers. The call is collective."""
    if stats.columns[schema.target_columns[0].name].n_rows < _MIN_ROWS:
        return
    by_task, n_rows = merge_by_task(stats.communicator, _measure_tasks(stats, schema)), stats.n_sampled
    for i, column in enumerate(schema.features):
        # The first axis is the task, the second one the target.
        n_distinct, *measures = np.moveaxis(np.array([task[i] for task in by_task.values()]), -1, 0)
        few = 2 * n_distinct[:, 0].sum() < n_rows
        for target, *found in zip(schema.target_columns, *(measure.T for measure in measures), strict=True):
            if schema.kind == "classification":
                leak = few and _tells_class(*found)
                words = f'each value of the column has one class of "{target.name}" only'
            elif _is_line(*found[2:]):
                leak, words = True, f'it is "{target.name}" in another unit, up to rounding'
            else:
                leak = few and bool(0 < found[1].sum() >= found[0].sum() / _VALUES_REST)
                words = (
                    f'its values explain more than {100 * (1 - _VALUES_REST):g} % of the variance of "{target.name}"'
                )
            if leak:
                _warn(
                    f'Column "{column.name}" alone determines the target: {words}; if it is not known before the '
                    f'target is, leave it out with --drop "{column.name}".'
                )
                break
        else:
            if not isinstance(column, DateColumn) and _is_identifier(stats, column.name, int(n_distinct[:, 0].sum())):
                _warn(
                    f'Column "{column.name}" has a different whole number in every row of each site; if it is an '
                    f'identifier, leave it out with --drop "{column.name}".'
                )
            if isinstance(column, NumericColumn) and stats.communicator.size == 1:
                _warn_of_gaps(column.name, parse_column(stats.rows.sample.column(column.name)).numbers)


def _warn(message: str) -> None:
    warnings.warn(message, TableWarning, stacklevel=5)


def _warn_of_gaps(name: str, values: FloatArray) -> None:
    """Warn of a number that occurs several times, far from all others: it may stand for a missing value."""
    x = np.sort(values[np.isfinite(values)])
    different = np.unique(x)
    for ends in (different, different[::-1]):
        found = _far_values(x, ends)
        if found:
            named = " and ".join(f"{value:g} in {count(n, 'row')}" for value, n in found)
            what = "that stands for a missing value" if len(found) == 1 else "these stand for missing values"
            warnings.warn(
                f'Column "{name}" is {named}, far from its other values; if {what}, leave these cells empty.',
                TableWarning,
                stacklevel=6,
            )


def _far_values(x: FloatArray, different: FloatArray) -> list[tuple[float, int]]:
    """Return the first of the different values, or the first two, if they are far from all others and not rare.

    Codes such as -998 and -999 come together.
    """
    for n in (1, 2):
        codes, others = different[:n], different[n:]
        if len(others) < _FEWEST_OTHERS:
            return []
        with np.errstate(over="ignore"):
            distance = float(np.min(np.abs(codes[-1] - others[0])))
            spread = max(float(np.ptp(others)), float(np.ptp(codes)))
        counts = [int(np.sum(x == code)) for code in codes]
        if min(counts) >= _MIN_GAPS and 2 * sum(counts) < len(x) and _FAR * spread < distance < math.inf:
            return list(zip(codes.tolist(), counts, strict=True))
    return []


def _tells_class(mixed: FloatArray, explained: FloatArray, others: FloatArray) -> bool:
    """Return whether no value has several classes, and values determine most rows of rare classes."""
    return not mixed.any() and bool(explained.sum() >= max(_MIN_EXPLAINED, others.sum() / 2))


def _is_line(*moments: FloatArray) -> bool:
    """Return whether two columns are on a line, from the moments of each task."""
    n, x, y, xx, yy, xy = 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
    for m, task_x, task_y, task_xx, task_yy, task_xy in zip(*(values.tolist() for values in moments), strict=True):
        if m > 0:
            dx, dy, weight = task_x - x, task_y - y, n * m / (n + m)
            xx += task_xx + dx * dx * weight
            yy += task_yy + dy * dy * weight
            xy += task_xy + dx * dy * weight
            n += m
            x, y = x + dx * m / n, y + dy * m / n
    product = xx * yy
    return n >= _MIN_ROWS and 0 < product < math.inf and 1 - xy * xy / product <= _LINE_REST


def _is_identifier(stats: TableStats, name: str, n_distinct: int) -> bool:
    """Return whether a column has whole numbers that differ within tasks, and are enough to differ over all rows."""
    column = stats.columns[name]
    if column.n_finite < column.n_rows or column.n_fractional or column.numbers_rows:
        return False
    return n_distinct == stats.n_sampled and column.n_rows <= column.max - column.min + 1


def _measure_tasks(stats: TableStats, schema: TableSchema) -> dict[str, list[Any]]:
    """Return what is needed of each own task, by column and target.

    This is the number of different values of the column, followed by the counts of :func:`_count_classes`, or by the
    results of :func:`_sum_squares` and :func:`_sum_products`.
    """
    rows = stats.rows.sample
    sizes = [next(iter(columns.values())).n_rows for columns in rows.stats.values()]
    if not sizes:
        return {}
    task = np.repeat(np.arange(len(sizes)), sizes)
    series = [rows.column(target.name) for target in schema.target_columns]
    if schema.kind == "classification":
        targets: list[NDArray[Any]] = [pd.factorize(to_labels(column))[0] for column in series]
    else:
        targets = [parse_column(column).numbers for column in series]
    by_column = [np.stack(list(_measure(rows, column, task, targets, schema)), axis=1) for column in schema.features]
    return {name: [measured[i].tolist() for measured in by_column] for i, name in enumerate(rows.stats)}


def _measure(
    rows: LocalRows,
    column: NumericColumn | CategoricalColumn | DateColumn,
    task: IndexArray,
    targets: Sequence[NDArray[Any]],
    schema: TableSchema,
) -> Iterator[FloatArray]:
    """Yield for each target an array with a row for each task."""
    series = rows.column(column.name)
    is_number = not isinstance(column, CategoricalColumn)
    values: NDArray[Any] = parse_column(series).numbers if is_number else to_labels(series)
    codes, different = pd.factorize(values)  # missing has code -1
    # A group is the rows of a task with the same value.
    if len(different) == len(values):  # each group is a row
        group, group_task = codes, task
    else:
        n_codes = len(different) + 1
        group, keys = pd.factorize(task * n_codes + codes + 1)
        group_task = keys // n_codes
    for y in targets:
        parts = [np.bincount(group_task)]
        if schema.kind == "classification":
            parts += _count_classes(group, group_task, task, y)
        else:
            parts += _sum_squares(group, group_task, task, y)
            parts += _sum_products(values if is_number else np.full(len(y), np.nan), y, task)
        measured = np.column_stack(parts).astype(np.float64)
        # JSON has no infinite numbers; a task whose squares overflow counts as nothing.
        measured[~np.isfinite(measured).all(axis=1), 1:] = 0.0
        yield measured


def _count_classes(
    group: IndexArray, group_task: IndexArray, task: IndexArray, classes: IndexArray
) -> list[NDArray[Any]]:
    """Count for each task: values of several classes; rows whose value determines a rare class; rows of rare classes.

    A class is rare if it is not the most frequent one of the task. A value that occurs once is no evidence.
    """
    n_tasks, n_classes = int(task[-1]) + 1, int(classes.max()) + 1
    of_class = np.bincount(task * n_classes + classes, minlength=n_tasks * n_classes).reshape(n_tasks, n_classes)
    lowest, highest = np.full(len(group_task), n_classes), np.full(len(group_task), -1)
    np.minimum.at(lowest, group, classes)
    np.maximum.at(highest, group, classes)
    sizes = np.bincount(group)
    decisive = (sizes > 1) & (lowest == highest) & (lowest != of_class.argmax(axis=1)[group_task])
    return [
        np.bincount(group_task, lowest != highest),
        np.bincount(group_task, np.where(decisive, sizes, 0)),
        of_class.sum(axis=1) - of_class.max(axis=1),
    ]


def _sum_squares(group: IndexArray, group_task: IndexArray, task: IndexArray, y: FloatArray) -> list[NDArray[Any]]:
    """Return for each task the squares of y that values leave unexplained, and those from the mean of the task.

    Both are of the rows whose value occurs more than once in the task.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        deviations = y - (np.bincount(task, y) / np.bincount(task))[task]
        n, total = np.bincount(group), np.bincount(group, deviations)
        squares = np.bincount(group, deviations * deviations)
        within = np.maximum(squares - total * total / n, 0.0)
        # The mean of the other rows is n / (n - 1) times as far from a row as the mean of all.
        rest = np.where(n > 1, within * (n / np.maximum(n - 1, 1)) ** 2, 0.0)
        return [np.bincount(group_task, rest), np.bincount(group_task, np.where(n > 1, squares, 0.0))]


def _sum_products(x: FloatArray, y: FloatArray, task: IndexArray) -> list[NDArray[Any]]:
    """Return for each task: the number of rows with both numbers, their means, squares (twice) and products."""
    both = np.isfinite(x) & np.isfinite(y)

    def sums(values: FloatArray) -> FloatArray:
        return np.asarray(np.bincount(task, np.where(both, values, 0.0)), dtype=np.float64)

    with np.errstate(over="ignore", invalid="ignore"):
        n = np.bincount(task, both)
        mean_x, mean_y = sums(x) / np.maximum(n, 1), sums(y) / np.maximum(n, 1)
        dx, dy = x - mean_x[task], y - mean_y[task]
        return [n, mean_x, mean_y, sums(dx * dx), sums(dy * dy), sums(dx * dy)]
