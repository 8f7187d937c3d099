"""What becomes of each column, decided from a survey of the table.

A column that is neither task nor target becomes numeric or categorical by what it holds. Columns nobody could learn
from (dates as they stand, identifiers, numbers with commas) are errors that say what to do, for guessing would give a
model that works in training and nowhere else.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from elmesh.errors import ElmeshError
from elmesh.tables.cells import Nature, Sort
from elmesh.tables.columns import Flags, labels, read_cells
from elmesh.tables.files import TableWarning
from elmesh.tables.rows import infinite_error, missing_error
from elmesh.tables.schema import CategoricalColumn, Kind, NumericColumn, TargetColumn
from elmesh.tables.survey import Different, Survey

__all__ = ["choose_features", "choose_kind", "has_whole_labels", "regression_target"]

_MAX_CATEGORIES = 50
_MAX_CLASSES = 20
_MAX_CLASS_SHARE = 0.05
# This many of the values differ: an identifier, once there are enough rows to tell.
_ID_SHARE, _ID_ROWS = 0.9, 20


def choose_kind(survey: Survey, targets: Sequence[str]) -> tuple[Kind, str]:
    """Choose classification or regression by the target; see :func:`elmesh.tables.infer_kind`."""
    if len(targets) > 1:
        return "regression", "there are several targets"
    name = targets[0]
    facts = survey.facts[name]
    if facts.nature in (Nature.TEXT, Nature.BOOLEAN):
        _reject_commas(survey, name)
        return "classification", f'column "{name}" holds {facts.nature.value}'
    _reject_unusable(facts.nature, f'The target column "{name}"')
    _reject_infinite(survey, name)
    if facts.uneven:
        return "regression", f'column "{name}" holds numbers that are not whole'
    different = survey.numbers(name, _MAX_CLASSES)
    counted = f'column "{name}" holds whole numbers, {different.count} different ones in {facts.numbers} rows'
    few = not different.too_many and len(different.values) <= _MAX_CLASS_SHARE * facts.numbers
    return ("classification" if few else "regression"), counted


def has_whole_labels(survey: Survey, targets: Sequence[str]) -> bool:
    """Tell whether the classes are whole numbers; on the way, whether they are classes at all."""
    if len(targets) > 1:
        raise ElmeshError("Classification takes one target column; give one --target, or --kind regression.")
    name = targets[0]
    facts = survey.facts[name]
    _reject_unusable(facts.nature, f'The target column "{name}"')
    # Up to the limit they are classes; beyond it nobody needs to know what they are.
    classes = survey.labels([name], max(_MAX_CATEGORIES, facts.rows // 2))[name]
    if classes.missing:
        spot = survey.first(name, _has_no_label)
        raise missing_error(classes.missing, "target", name, spot.where)
    if classes.too_many:
        raise ElmeshError(
            f'The target column "{name}" has {classes.count} different values in {facts.rows} rows'
            f"{_stray_text(survey, name)}, too many for classes; choose another column, or "
            "--kind regression if it is a number to predict."
        )
    if facts.nature is not Nature.NUMBER:
        return False
    _reject_infinite(survey, name)
    # Beyond 2^53 a float no longer holds every whole number, so such labels are kept as text.
    return not facts.uneven and not facts.large


def regression_target(survey: Survey, name: str) -> TargetColumn:
    """Find the scale of a number to predict."""
    facts = survey.facts[name]
    _reject_unusable(facts.nature, f'The target column "{name}"')
    if facts.nature is Nature.TEXT:
        _reject_commas(survey, name)
        if facts.wrong:
            spot = survey.first(name, _is_no_number)
            raise ElmeshError(
                f'Regression needs numbers, but the target column "{name}" has "{spot.text}" at '
                f"{spot.where}; correct it, or use --kind classification."
            )
    _reject_infinite(survey, name)
    if facts.missing:
        raise missing_error(facts.missing, "target", name, survey.first(name, _is_missing).where)
    if facts.least == facts.most:
        raise ElmeshError(f'The target column "{name}" has the value {facts.least:g} in all rows: nothing to learn.')
    return TargetColumn(name, *_scale(survey, name))


def choose_features(
    survey: Survey, names: Sequence[str]
) -> tuple[tuple[NumericColumn, ...], tuple[CategoricalColumn, ...]]:
    """Find what the columns to learn from become, with a warning that names those left out."""
    texts = [name for name in names if survey.facts[name].nature is Nature.TEXT]
    categories = survey.labels(texts, _MAX_CATEGORIES)
    numeric: list[NumericColumn] = []
    categorical: list[CategoricalColumn] = []
    constant: list[str] = []
    for name in names:
        _reject_unusable(survey.facts[name].nature, f'Column "{name}"', name)
        column = _categorical(survey, name, categories[name]) if name in categories else _numeric(survey, name)
        if column is None:
            constant.append(name)
        elif isinstance(column, NumericColumn):
            numeric.append(column)
        else:
            categorical.append(column)
    if constant:
        warnings.warn(f"Left out, for all rows have the same value: {', '.join(constant)}.", TableWarning, stacklevel=4)
    if not numeric and not categorical:
        raise ElmeshError("No column is left to learn from; the table needs one besides the task and the target.")
    medians = survey.medians([column.name for column in numeric])
    return tuple(replace(column, median=medians[column.name]) for column in numeric), tuple(categorical)


def _numeric(survey: Survey, name: str) -> NumericColumn | None:
    """Describe a column of numbers but for the median; None if it has one value."""
    _reject_infinite(survey, name)
    facts = survey.facts[name]
    if not facts.numbers:
        return None
    if facts.least == facts.most:
        return NumericColumn(name, facts.least, 0.0, facts.least, True) if facts.missing else None
    return NumericColumn(name, *_scale(survey, name), math.nan, facts.missing > 0)


def _scale(survey: Survey, name: str) -> tuple[float, float]:
    scale = survey.facts[name].scale
    if scale is None:
        raise ElmeshError(f'The values of column "{name}" are too large or too close together to scale.')
    return scale


def _categorical(survey: Survey, name: str, found: Different) -> CategoricalColumn | None:
    _reject_commas(survey, name)
    rows = survey.facts[name].rows
    seen = rows - found.missing
    if found.too_many or (seen >= _ID_ROWS and len(found.values) >= _ID_SHARE * seen):
        raise ElmeshError(
            f'Column "{name}" is text with {found.count} different values in {rows} rows'
            f"{_stray_text(survey, name)}, more like an identifier than a category; leave it out with "
            f'--drop "{name}".'
        )
    if len(found.values) + bool(found.missing) < 2:
        return None
    return CategoricalColumn(name, found.values, found.missing > 0)


def _reject_unusable(held: Nature, subject: str, name: str | None = None) -> None:
    drop = f', or leave the column out with --drop "{name}"' if name else ""
    if held is Nature.DATE:
        raise ElmeshError(f"{subject} holds dates or times; convert them to numbers, such as days since a start{drop}.")
    if held is Nature.OTHER:
        raise ElmeshError(f"{subject} holds {held.value}; convert them{drop}.")


def _reject_commas(survey: Survey, name: str) -> None:
    if Sort(survey.facts[name].sorts).spoilt:
        spot = survey.first(name, lambda column: (read_cells(column).sorts & Sort.COMMA) != 0)
        raise ElmeshError(
            f'Column "{name}" has numbers with commas, such as "{spot.text}"; write them with a decimal point '
            "and nothing between the thousands."
        )


def _reject_infinite(survey: Survey, name: str) -> None:
    if survey.facts[name].infinite:
        spot = survey.first(name, lambda column: np.isinf(read_cells(column).numbers))
        raise infinite_error(name, spot.where)


def _stray_text(survey: Survey, name: str) -> str:
    """Point at the cell that makes text of a column which is otherwise numbers."""
    facts = survey.facts[name]
    if not facts.wrong:
        return " (numbers with leading zeros are taken as text)" if facts.nature is Nature.TEXT else ""
    if facts.wrong < 0.5 * facts.rows:
        spot = survey.first(name, _is_no_number)
        return f' (the first that is not a number is "{spot.text}" at {spot.where})'
    return ""


def _is_no_number(column: pd.Series[Any]) -> Flags:
    return read_cells(column).wrong


def _is_missing(column: pd.Series[Any]) -> Flags:
    return column.isna().to_numpy()


def _has_no_label(column: pd.Series[Any]) -> Flags:
    return np.asarray(pd.isna(labels(column)))
