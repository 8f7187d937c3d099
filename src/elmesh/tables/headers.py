"""The names of columns: sound in one table, and the same in all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from elmesh.errors import ElmeshError

__all__ = ["FILE_TASK", "OddColumn", "check_header", "odd_column"]

FILE_TASK = "(file)"
"""The column that holds the task where each task has a file of its own; its value is the file's name."""


def check_header(file: str, names: Sequence[str]) -> None:
    """Refuse columns without a name, and two of one name.

    Parameters
    ----------
    file
        What the table is called in errors.
    names
        Its columns.
    """
    if "" in names:
        raise ElmeshError(
            f"{file}: column {names.index('') + 1} has no name in the header; name it, or leave it out "
            "of the file (pandas writes its index so, unless told index=False)."
        )
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ElmeshError(f'{file}: the header has the column "{twice[0]}" more than once; rename one.')


class OddColumn(NamedTuple):
    """A column that one table has and another lacks."""

    name: str
    has: str
    lacks: str


def odd_column(headers: Mapping[str, Sequence[str]]) -> OddColumn | None:
    """Find a column that not all tables have; the order of columns is no matter.

    Parameters
    ----------
    headers
        The columns of each table, by the name it is called in errors.

    Examples
    --------
    >>> odd_column({"a.csv": ["x", "y"], "b.csv": ["y"]})
    OddColumn(name='x', has='a.csv', lacks='b.csv')
    """
    for table, columns in headers.items():
        first = next(iter(headers))
        for name in sorted(set(headers[first]) ^ set(columns)):
            return OddColumn(name, table, first) if name in columns else OddColumn(name, first, table)
    return None
