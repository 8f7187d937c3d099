"""Warnings of a column of tasks that may be the wrong one, or has one name written in two ways."""

from __future__ import annotations

import warnings
from typing import Any

import pandas as pd

from elmesh.tables.access import TableWarning
from elmesh.text import count, listed

__all__ = ["warn_of_tasks"]

# With fewer rows at the median of so many tasks, the column may identify rows.
_FEWEST_ROWS, _MANY_TASKS = 3, 20
# Most names that are compared.
_MOST_NAMES = 100_000


def warn_of_tasks(labels: pd.Series[Any], column: str) -> None:
    """Warn if half of the tasks have next to no rows, and of names that differ in case or blanks alone."""
    rows = labels.value_counts()
    if len(rows) >= _MANY_TASKS and rows.median() < _FEWEST_ROWS:
        warnings.warn(
            f'Half of the {count(len(rows), "site")} in column "{column}" have fewer than {_FEWEST_ROWS} rows; check '
            "that it is the column with the sites and not one that identifies rows.",
            TableWarning,
            stacklevel=2,
        )
    names = pd.Series(rows.index[:_MOST_NAMES].astype(str))
    plain = names.str.split().str.join(" ").str.casefold()
    for _, same in names.groupby(plain[plain.duplicated(keep=False)]):
        warnings.warn(
            f"The sites {listed(sorted(same))} have names that differ only in case or blanks; they are taken as "
            "different sites.",
            TableWarning,
            stacklevel=2,
        )
