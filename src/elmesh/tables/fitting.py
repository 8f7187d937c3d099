"""The schema of a table from the training rows of all tasks, in one process or distributed over several.

All processes decide from the same statistics (:mod:`elmesh.tables.stats`) by the same rules
(:mod:`elmesh.tables.inference`), so all of them return the same schema or raise the same error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from elmesh.comm.communicator import SERIAL, Communicator, raise_on_all
from elmesh.errors import ElmeshError
from elmesh.tables.access import FILE_TASK, check_column_names, find_column, task_labels
from elmesh.tables.columns import ColumnType
from elmesh.tables.inference import check_targets, choose_kind, has_whole_labels, infer_inputs, infer_schema
from elmesh.tables.schema import ProblemKind, TableSchema, TargetColumn
from elmesh.tables.stats import LocalRows, TableRows, TableStats
from elmesh.tables.stream import SelectedStream, TableStream
from elmesh.tables.stream_stats import StreamedTable
from elmesh.typing import FloatArray

__all__ = [
    "agree_targets",
    "fit_inputs",
    "fit_schema",
    "fit_stream_inputs",
    "infer_kind",
    "read_targets",
    "whole_labels",
]

# Types of columns, as users name them.
_TYPES = {"number": ColumnType.NUMBER, "category": ColumnType.TEXT, "date": ColumnType.DATE}


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


def agree_targets(
    frames: Mapping[str, pd.DataFrame] | TableStream,
    targets: Sequence[str],
    kind: ProblemKind | None = None,
    *,
    communicator: Communicator = SERIAL,
) -> tuple[ProblemKind, str, bool]:
    """Find what the targets of a table are whose rows are distributed over processes; raise if they cannot be learned.

    The call is collective.

    Parameters
    ----------
    frames
        The training rows of the tasks of this process, one table per task by its label; or all rows, read in parts.
    targets
        The columns to predict; several only for regression.
    kind
        ``"classification"`` or ``"regression"``; by default as :func:`infer_kind` chooses.
    communicator
        The processes.

    Returns
    -------
    tuple
        The kind, the reason for it in words, and whether classes are whole numbers instead of text.
    """
    with raise_on_all(communicator):
        rows: TableRows
        if isinstance(frames, TableStream):
            _check_target_names([pd.DataFrame(columns=frames.columns)], targets)
            rows = StreamedTable.scan(SelectedStream(frames, list(targets)))
        else:
            _check_target_names(list(frames.values()), targets)
            rows = LocalRows.concat({task: frame[list(targets)] for task, frame in frames.items()})
    stats = TableStats.gather(rows, communicator)
    chosen, reason = (kind, "as asked") if kind is not None else choose_kind(stats, targets)
    return chosen, reason, check_targets(stats, targets, chosen)


def _check_target_names(frames: Sequence[pd.DataFrame], targets: Sequence[str]) -> None:
    if not targets:
        raise ElmeshError("A target column is needed; name it with --target.")
    if len(set(targets)) < len(targets):
        raise ElmeshError("A target column is named twice; name each once.")
    for frame in frames:
        for name in targets:
            find_column(frame, name)


def read_targets(frame: pd.DataFrame, targets: Sequence[str], kind: ProblemKind, whole: bool) -> pd.DataFrame:
    """Return the targets of a table: numbers, or classes as whole numbers or text.

    Examples
    --------
    >>> import pandas as pd
    >>> read_targets(pd.DataFrame({"y": ["1", "2"]}), ["y"], "classification", True)["y"].tolist()
    [1, 2]
    """
    columns = tuple(TargetColumn(name) for name in targets)
    values = TableSchema("", kind, columns, whole, (), ()).targets(frame)
    return pd.DataFrame(values.reshape(len(frame), -1), columns=list(targets), index=frame.index)


def fit_inputs(
    frame: pd.DataFrame,
    tasks: Sequence[object],
    targets: pd.DataFrame,
    kind: ProblemKind,
    *,
    task: str = FILE_TASK,
    types: Mapping[str, str] | None = None,
    weights: FloatArray | None = None,
    communicator: Communicator = SERIAL,
) -> TableSchema:
    """Find how a table of inputs becomes numbers, where its rows may be distributed over processes.

    The call is collective: all processes return the same schema, or all raise the same error.

    Parameters
    ----------
    frame
        The columns to learn from, of the rows of this process.
    tasks
        The task of each row.
    targets
        The targets of these rows, by name; they are checked elsewhere, and used here to find columns that determine
        them.
    kind
        The kind of the targets.
    task
        The name of the column that the tasks come from; it must not be in ``frame``.
    types
        Types of columns that are not to be inferred: "number", "category" or "date".
    weights
        How often each row counts in means and standard deviations; once by default.
    communicator
        The processes.

    Examples
    --------
    >>> import pandas as pd
    >>> frame = pd.DataFrame({"dose": [1.0, 2.0, None], "code": [7, 8, 7]})
    >>> schema = fit_inputs(frame, ["a", "a", "b"], pd.DataFrame({"y": [1.5, 2.0, 4.0]}), "regression",
    ...                     types={"code": "category"})
    >>> schema.feature_names
    ['dose', 'dose is missing', 'code = 7', 'code = 8']
    """
    with raise_on_all(communicator):
        check_column_names("The table", [str(name) for name in frame.columns])
        given = _check_types(frame, types or {})
        whole = frame.rename(columns=str).assign(**{str(name): targets[name].to_numpy() for name in targets})
        rows = LocalRows.from_table(whole, np.array([str(label) for label in tasks], dtype=np.str_), weights=weights)
    stats = TableStats.gather(rows, communicator)
    columns = tuple(TargetColumn(str(name)) for name in targets)
    integers = all(pd.api.types.is_integer_dtype(dtype) for dtype in targets.dtypes)
    return infer_inputs(stats, task, kind, columns, given, whole_labels=kind == "classification" and integers)


def fit_stream_inputs(
    stream: TableStream,
    targets: Sequence[str],
    kind: ProblemKind,
    whole: bool,
    *,
    task: str | None,
    types: Mapping[str, str] | None = None,
    weight: str | None = None,
) -> tuple[TableSchema, dict[str, int], pd.DataFrame]:
    """Find how the inputs of a table become numbers that is read in parts; the rows of each task; and a sample.

    Parameters
    ----------
    stream
        The table, with its targets.
    targets
        The columns to predict, which are checked elsewhere.
    kind
        The kind of the targets.
    whole
        Whether classes are whole numbers instead of text.
    task
        The column with the task of each row; None if all rows are one.
    types
        Types of columns that are not to be inferred.
    weight
        The column with the weight of each row; None if all count once.
    """
    names = [name for name in stream.columns if name not in (task, weight)]
    check_column_names(stream.name, names)
    given = _check_types(pd.DataFrame(columns=names), types or {})
    rows = StreamedTable.scan(stream, task, weight)
    stats = TableStats.gather(rows, SERIAL)
    columns = tuple(TargetColumn(name) for name in targets)
    schema = infer_inputs(stats, task or FILE_TASK, kind, columns, given, whole_labels=whole)
    sizes = {label: next(iter(own.values())).n_rows for label, own in rows.stats.items()}
    return schema, sizes, rows.drawn


def _check_types(frame: pd.DataFrame, types: Mapping[str, str]) -> dict[str, ColumnType]:
    given = {}
    for name, text in types.items():
        find_column(frame, name)
        if text not in _TYPES:
            raise ElmeshError(f'The type of column "{name}" is {text!r}; it must be {", ".join(_TYPES)}.')
        given[name] = _TYPES[text]
    return given


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
