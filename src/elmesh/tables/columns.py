"""Columns as numbers or labels, interpreted from all of their values at once.

CSV columns are read as text and interpreted here, by one rule for every file format. A reader that guesses a type from
the first rows, or file by file, turns site ``007`` into 7 in one file and leaves it text in the next.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from elmesh.tables.values import BOOLS, ZERO_PADDED, ColumnType, ValueType, parse_label, parse_number, value_type
from elmesh.typing import FloatArray, IndexArray

__all__ = ["Mask", "ParsedColumn", "concat_tables", "factorize", "parse_column", "to_labels"]

Mask = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class ParsedColumn:
    """The values of a column."""

    numbers: FloatArray  # NaN where the value is missing or not a number
    not_numeric: Mask  # where there is a value that is not a number
    value_types: NDArray[np.int64]  # the ValueType of each value; 0 where it is missing

    @property
    def column_type(self) -> ColumnType:
        """Type of the column; a column with only missing values counts as numbers."""
        return ValueType(int(np.bitwise_or.reduce(self.value_types, initial=0))).column_type


def parse_column(column: pd.Series[Any]) -> ParsedColumn:
    """Parse a column value by value.

    Examples
    --------
    >>> import pandas as pd
    >>> parsed = parse_column(pd.Series(["1.5", None, "many"]))
    >>> parsed.numbers.tolist(), parsed.not_numeric.tolist(), parsed.column_type.name
    ([1.5, nan, nan], [False, False, True], 'TEXT')
    """
    if _is_real(column.dtype):
        numbers = column.to_numpy(dtype=np.float64, na_value=np.nan)
        of_all = ValueType.BOOL if pd.api.types.is_bool_dtype(column.dtype) else ValueType.NUMBER
        return ParsedColumn(numbers, np.zeros(len(numbers), dtype=np.bool_), np.where(np.isnan(numbers), 0, of_all))
    parsed = _parse_number_text(column)
    if parsed is not None:
        return parsed
    try:
        codes, values = factorize(column)
    except TypeError:  # lists and dictionaries cannot be hashed
        present = column.notna().to_numpy()
        return ParsedColumn(np.full(len(column), np.nan), present, np.where(present, ValueType.OTHER, 0))
    categorical = ValueType.CATEGORICAL if isinstance(column.dtype, pd.CategoricalDtype) else ValueType(0)
    # A missing value has code -1 and so takes the last entry of each array.
    numbers = np.array([*map(parse_number, values), np.nan])
    not_numeric = np.append(np.isnan(numbers[:-1]), False)
    value_types = np.array([*(value_type(value) | categorical for value in values), 0], dtype=np.int64)
    return ParsedColumn(numbers[codes], not_numeric[codes], value_types[codes])


def _parse_number_text(column: pd.Series[Any]) -> ParsedColumn | None:
    """Parse a column of text whose values are all numbers in one Arrow call; return None for any other column."""
    try:
        text = pa.array(column, from_pandas=True)
        if not (pa.types.is_string(text.type) or pa.types.is_large_string(text.type)):
            return None
        numbers = np.asarray(pc.cast(text, pa.float64()).to_numpy(zero_copy_only=False), dtype=np.float64)
    except (pa.ArrowException, TypeError):
        return None
    missing = np.isnan(numbers)
    if int(missing.sum()) != text.null_count:  # Arrow reads "nan" as a number; here it is text
        return None
    padded = pc.fill_null(pc.match_substring_regex(text, f"^({ZERO_PADDED})$"), False).to_numpy(zero_copy_only=False)
    value_types = np.where(padded, ValueType.ZERO_PADDED_TEXT, ValueType.NUMBER_TEXT)
    return ParsedColumn(numbers, np.zeros(len(numbers), dtype=np.bool_), np.where(missing, 0, value_types))


def _is_real(dtype: Any) -> bool:
    return pd.api.types.is_numeric_dtype(dtype) and not pd.api.types.is_complex_dtype(dtype)


def to_labels(column: pd.Series[Any]) -> NDArray[np.object_]:
    """Read a column as text, ``None`` where missing.

    Surrounding spaces are removed, an empty text counts as missing, and a whole number has no decimals, so that the
    number 7, however stored, and the text ``7`` are the same label.

    Examples
    --------
    >>> import pandas as pd
    >>> to_labels(pd.Series([7.0, None, 8.5])).tolist(), to_labels(pd.Series(["007", " a "])).tolist()
    (['7', None, '8.5'], ['007', 'a'])
    """
    codes, values = factorize(column)
    # A missing value has code -1 and so takes the last entry.
    return np.array([*map(parse_label, values), None], dtype=np.object_)[codes]


def factorize(column: pd.Series[Any]) -> tuple[IndexArray, list[Any]]:
    """Return for each row the position of its value among the distinct values (-1 if missing), and these."""
    codes, values = pd.factorize(column)
    if column.dtype == object and any(isinstance(value, int | float) and value in (0, 1) for value in values):
        # pandas treats True, 1 and 1.0 as one value and returns whichever comes first.
        pairs = column.map(lambda value: (isinstance(value, BOOLS), value), na_action="ignore")
        codes, found = pd.factorize(pairs.to_numpy())
        return codes, [value for _, value in found]
    return codes, list(values)


def concat_tables(frames: Sequence[pd.DataFrame], names: Sequence[str]) -> pd.DataFrame:
    """Concatenate the named columns of one or more tables, and keep each value even where the column types differ."""
    names = list(names)
    # Selecting columns is slow for many small tables.
    tables = [frame if list(frame.columns) == names else frame[names] for frame in frames]
    types = zip(names, *(table.dtypes for table in tables), strict=True)
    mixed = {name: _concat_mixed([table[name] for table in tables]) for name, *found in types if len(set(found)) > 1}
    if not mixed:
        return pd.concat(tables, ignore_index=True)
    others = pd.concat([table.drop(columns=list(mixed)) for table in tables], ignore_index=True)
    return others.assign(**mixed)[names]


def _concat_mixed(columns: Sequence[pd.Series[Any]]) -> pd.Series[Any]:
    """Concatenate columns of different types."""
    whole: pd.Series[Any]
    if all(_is_real(column.dtype) and _fits_float(column) for column in columns):
        whole = pd.concat(columns, ignore_index=True)
        return whole
    whole = pd.concat([column.astype(object) for column in columns], ignore_index=True)
    value_types = parse_column(whole).value_types
    categorical = any(isinstance(column.dtype, pd.CategoricalDtype) for column in columns)
    if not categorical or (value_types[value_types != 0] == ValueType.DATE).all():
        return whole
    # A column that is categorical in one file is categorical in all, by label: True and 1 are one pandas category.
    return pd.Series(to_labels(whole), dtype="category")


def _fits_float(column: pd.Series[Any]) -> bool:
    """Whether pandas can convert a numeric column to float without loss."""
    if pd.api.types.is_integer_dtype(column.dtype):
        return not (column.max() >= 2**53 or column.min() <= -(2**53))
    return not pd.api.types.is_bool_dtype(column.dtype)
