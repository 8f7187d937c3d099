"""The columns of a network from an example table: made-up or public data will do, for what is taken becomes public.

What a column is, is decided by the same rules as for any table (:mod:`elmesh.tables.decisions`). Of numbers the
smallest and the largest are taken, rounded outwards to two digits of the width; of text the categories.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal

import numpy as np
import pandas as pd

from elmesh.errors import ElmeshError
from elmesh.netconfig.inputs import CategoricalInput, Input, NumericInput
from elmesh.tables import FILE_TASK, Kind, fit_schema, infer_kind
from elmesh.tables.columns import labels
from elmesh.tables.rows import finite_numbers

__all__ = ["Example", "outwards"]


@dataclass(frozen=True)
class Example:
    """What a network file takes from an example table.

    Attributes
    ----------
    kind, reason
        Classification or regression, and why in words.
    columns
        The columns to learn from, in the order of the table.
    target_range
        The range of the target of a regression.
    n_classes
        How many classes the target of a classification has; 0 where that is not known.
    """

    kind: Kind
    reason: str
    columns: tuple[Input, ...]
    target_range: tuple[float, float] | None
    n_classes: int = 0

    @classmethod
    def of(cls, frame: pd.DataFrame, target: str, kind: Kind | None = None, drop: Sequence[str] = ()) -> Example:
        """Look at a table.

        Parameters
        ----------
        frame
            The table, of one task.
        target
            The column to predict.
        kind
            What to take it for; by default as :func:`elmesh.tables.infer_kind` says.
        drop
            Columns to leave out.

        Examples
        --------
        >>> import pandas as pd
        >>> frame = pd.DataFrame({"age": [21, 67, None], "sex": ["f", "m", "f"], "y": ["no", "yes", "no"]})
        >>> example = Example.of(frame, "y")
        >>> example.kind, example.columns[0]
        ('classification', NumericInput(name='age', least=21.0, most=67.0, missing=True))
        """
        chosen, reason = (kind, "as asked") if kind is not None else infer_kind(frame, [target])
        if FILE_TASK in frame.columns:
            raise ElmeshError(f'The table has a column "{FILE_TASK}", a name that is taken; rename it.')
        schema = fit_schema(frame.assign(**{FILE_TASK: "example"}), FILE_TASK, [target], chosen, drop=drop)
        found: dict[str, Input] = {
            column.name: NumericInput(column.name, *_range(frame, column.name), column.indicator)
            for column in schema.numeric
        } | {
            column.name: CategoricalInput(column.name, column.categories, column.missing)
            for column in schema.categorical
        }
        columns = tuple(found[str(name)] for name in frame.columns if name in found)
        if chosen == "regression":
            return cls(chosen, reason, columns, _range(frame, target))
        return cls(chosen, reason, columns, None, len(set(labels(frame[target]))))


def _range(frame: pd.DataFrame, name: str) -> tuple[float, float]:
    values = finite_numbers(frame, name)
    return outwards(float(np.nanmin(values)), float(np.nanmax(values)))


def outwards(least: float, most: float) -> tuple[float, float]:
    """Round the ends of a range to two digits of its width, so that it only becomes wider.

    Examples
    --------
    >>> outwards(17.3, 103.7), outwards(1998, 2020), outwards(0.0, 0.0)
    ((17.0, 104.0), (1998.0, 2020.0), (-1.0, 1.0))
    """
    if least == most:  # a column of one value, which some rows lack
        away = abs(least) / 10.0 or 1.0
        return outwards(least - away, most + away)
    width = most - least
    if not math.isfinite(width):
        return least, most  # to be refused by whoever takes it
    unit = Decimal(1).scaleb(math.floor(math.log10(width)) - 1)
    low = (Decimal(repr(least)) / unit).to_integral_value(ROUND_FLOOR) * unit
    high = (Decimal(repr(most)) / unit).to_integral_value(ROUND_CEILING) * unit
    return min(float(low), least), max(float(high), most)
