"""The schema of a table, found from the training rows of all tasks, wherever they are.

The rows may be spread over processes, those of a task all in one. The processes survey the table together
(:mod:`elmesh.tables.survey` says what they tell each other) and decide from that alone what becomes of each column
(:mod:`elmesh.tables.decisions` has the rules), so all of them decide alike, errors included. A table in one process
is the same with nobody else to tell.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd

from elmesh.comm.communicator import SERIAL, Communicator, raise_on_all
from elmesh.errors import ElmeshError
from elmesh.tables.decisions import choose_features, choose_kind, has_whole_labels, regression_target
from elmesh.tables.headers import FILE_TASK
from elmesh.tables.rows import find_column, task_labels
from elmesh.tables.schema import Kind, TableSchema, TargetColumn
from elmesh.tables.survey import Shares, Survey

__all__ = ["agree_schema", "fit_schema", "infer_kind", "whole_labels"]


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
    target = find_column(frame, targets[0]).to_frame()
    return choose_kind(Survey.take(Shares.of({"": target}), SERIAL), targets)


def whole_labels(frame: pd.DataFrame, target: str) -> bool:
    """Tell whether the classes in a column are whole numbers, and not text; raise if they are no classes.

    Examples
    --------
    >>> import pandas as pd
    >>> whole_labels(pd.DataFrame({"y": ["1", "2"]}), "y"), whole_labels(pd.DataFrame({"y": ["a", "2"]}), "y")
    (True, False)
    """
    column = find_column(frame, target).to_frame()
    return has_whole_labels(Survey.take(Shares.of({"": column}), SERIAL), [target])


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
    shares = Shares.split(frame, task_labels(frame, task))
    return _agree(shares, task, targets, kind, drop, SERIAL)[2]


def agree_schema(
    frames: Mapping[str, pd.DataFrame],
    task: str,
    targets: Sequence[str],
    kind: Kind | None = None,
    *,
    drop: Sequence[str] = (),
    communicator: Communicator = SERIAL,
) -> tuple[Kind, str, TableSchema]:
    """Find how a table becomes numbers whose rows are spread over processes.

    All processes call this at the same time, and all return the same, to the bit, as :func:`fit_schema` would of all
    rows in one table; or all raise the same error. See :mod:`elmesh.tables.survey` for what they tell each other.

    Parameters
    ----------
    frames
        The training rows of this process's tasks, a table for each task by its label.
    task, targets, kind, drop
        As for :func:`fit_schema`.
    together
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
    >>> kind, reason, schema.columns, schema.numeric[0].median
    ('classification', 'column "y" holds text', ['dose', 'dose is missing'], 2.0)
    """
    with raise_on_all(communicator):
        for frame in frames.values():
            _check_roles(frame, task, targets, drop)
        shares = Shares.of(frames)
    return _agree(shares, task, targets, kind, drop, communicator)


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


def _agree(
    shares: Shares,
    task: str,
    targets: Sequence[str],
    kind: Kind | None,
    drop: Sequence[str],
    communicator: Communicator,
) -> tuple[Kind, str, TableSchema]:
    survey = Survey.take(shares, communicator, leave_out={task, FILE_TASK, *drop})
    chosen, reason = (kind, "as asked") if kind is not None else choose_kind(survey, targets)
    target_columns: tuple[TargetColumn, ...]
    if chosen == "classification":
        target_columns, whole = (TargetColumn(targets[0]),), has_whole_labels(survey, targets)
    else:
        target_columns, whole = tuple(regression_target(survey, name) for name in targets), False
    numeric, categorical = choose_features(survey, [name for name in survey.facts if name not in targets])
    return chosen, reason, TableSchema(task, chosen, target_columns, whole, numeric, categorical)
