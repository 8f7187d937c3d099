"""The schema of a table from the training rows of all tasks, in one process or distributed over several.

All processes decide from the same statistics (:mod:`elmesh.tables.stats`) by the same rules
(:mod:`elmesh.tables.inference`), so all of them return the same schema or raise the same error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd

from elmesh.comm.communicator import SERIAL, Communicator, raise_on_all
from elmesh.errors import ElmeshError
from elmesh.tables.access import FILE_TASK, find_column, task_labels
from elmesh.tables.inference import choose_kind, has_whole_labels, infer_schema
from elmesh.tables.schema import ProblemKind, TableSchema
from elmesh.tables.stats import LocalRows, TableStats

__all__ = ["agree_schema", "fit_schema", "infer_kind", "whole_labels"]


def infer_kind(frame: pd.DataFrame, targets: Sequence[str]) -> tuple[ProblemKind, str]:
    """Choose classification or regression by the target.

    Text, categories and booleans are classes, and so are whole numbers of at most 20 different values that are at most
    5 % of the rows. Any other target, and several targets, mean regression.

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
    return choose_kind(_target_stats(frame, targets[0]), targets)


def whole_labels(frame: pd.DataFrame, target: str) -> bool:
    """Return whether the classes in a column are whole numbers instead of text; raise if they are not classes.

    Examples
    --------
    >>> import pandas as pd
    >>> whole_labels(pd.DataFrame({"y": ["1", "2"]}), "y"), whole_labels(pd.DataFrame({"y": ["a", "2"]}), "y")
    (True, False)
    """
    return has_whole_labels(_target_stats(frame, target), target)


def _target_stats(frame: pd.DataFrame, name: str) -> TableStats:
    return TableStats.gather(LocalRows.concat({"": find_column(frame, name).to_frame()}), SERIAL)


def fit_schema(
    frame: pd.DataFrame,
    task: str,
    targets: Sequence[str],
    kind: ProblemKind | None = None,
    *,
    drop: Sequence[str] = (),
    use: Sequence[str] = (),
) -> TableSchema:
    """Find how a table becomes numbers.

    Parameters
    ----------
    frame
        The training rows of all tasks.
    task
        The column with the task of each row.
    targets
        The columns to predict; several only for regression.
    kind
        ``"classification"`` or ``"regression"``; by default as :func:`infer_kind` chooses.
    drop
        Columns to leave out.
    use
        Columns to learn from even if they only number the rows (0, 1, 2, ... or 1, 2, 3, ... in order) or are named as
        R and pandas name such columns. Others like this are left out with a warning, unless there is no other column.

    Returns
    -------
    TableSchema
        With the means, standard deviations and categories of the training rows.

    Examples
    --------
    >>> import pandas as pd
    >>> frame = pd.DataFrame({"site": ["a", "a", "b"], "dose": [1.0, 2.0, 3.0], "sex": ["f", "m", "f"],
    ...                       "y": ["no", "yes", "yes"]})
    >>> schema = fit_schema(frame, "site", ["y"])
    >>> schema.kind, schema.feature_names
    ('classification', ['dose', 'sex = f', 'sex = m'])
    >>> X, tasks = schema.encode(frame)
    >>> X[1].tolist(), tasks.tolist()
    ([0.0, 0.0, 1.0], ['a', 'a', 'b'])
    """
    _check_roles(frame, task, targets, drop, use)
    rows = LocalRows.from_table(frame, task_labels(frame, task), exclude={task, FILE_TASK, *drop})
    stats = TableStats.gather(rows, SERIAL)
    return infer_schema(stats, task, targets, kind or choose_kind(stats, targets)[0], use)


def agree_schema(
    frames: Mapping[str, pd.DataFrame],
    task: str,
    targets: Sequence[str],
    kind: ProblemKind | None = None,
    *,
    drop: Sequence[str] = (),
    use: Sequence[str] = (),
    communicator: Communicator = SERIAL,
) -> tuple[ProblemKind, str, TableSchema]:
    """Find how a table whose rows are distributed over processes becomes numbers.

    The call is collective. All processes return, to the bit, what :func:`fit_schema` returns for one table of all
    rows, or all raise the same error. :mod:`elmesh.tables.stats` lists what they exchange.

    Parameters
    ----------
    frames
        The training rows of the tasks of this process, one table per task by its label.
    task, targets, kind, drop, use
        As for :func:`fit_schema`.
    communicator
        The processes.

    Returns
    -------
    tuple
        The kind, the reason for it in words, and the schema.

    Examples
    --------
    >>> import pandas as pd
    >>> north = pd.DataFrame({"site": "north", "dose": ["1", "2"], "y": ["no", "yes"]})
    >>> south = pd.DataFrame({"site": "south", "dose": ["3", None], "y": ["yes", "yes"]})
    >>> kind, reason, schema = agree_schema({"north": north, "south": south}, "site", ["y"])
    >>> kind, reason, schema.feature_names, schema.numeric[0].fill_value
    ('classification', 'column "y" holds text', ['dose', 'dose is missing'], 2.0)
    """
    with raise_on_all(communicator):
        for frame in frames.values():
            _check_roles(frame, task, targets, drop, use)
        rows = LocalRows.concat(frames, exclude={task, FILE_TASK, *drop})
    stats = TableStats.gather(rows, communicator)
    chosen, reason = (kind, "as asked") if kind is not None else choose_kind(stats, targets)
    return chosen, reason, infer_schema(stats, task, targets, chosen, use)


def _check_roles(
    frame: pd.DataFrame, task: str, targets: Sequence[str], drop: Sequence[str], use: Sequence[str]
) -> None:
    if not targets:
        raise ElmeshError("A target column is needed; name it with --target.")
    for name in (task, *targets, *drop, *use):
        find_column(frame, name)
    if len(set(targets)) < len(targets):
        raise ElmeshError("A target column is named twice; name each once.")
    if task in targets:
        raise ElmeshError(f'Column "{task}" is named as both task and target; they must differ.')
    for name in drop:
        if name == task or name in targets:
            raise ElmeshError(f'Column "{name}" is named as task or target, and to be dropped as well.')
    for name in use:
        if name == task or name in (*targets, *drop):
            raise ElmeshError(f'Column "{name}" is to be learned from, and named as task, target or to be dropped.')
