"""How the command finds a schema for a table whose rows are distributed over processes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from elmesh.comm.communicator import SERIAL, Communicator, raise_on_all
from elmesh.tables import TableSchema, TargetColumn, agree_targets, fit_inputs, read_targets
from elmesh.tables.access import check_same_columns
from elmesh.tables.columns import concat_tables


def agree_schema(
    frames: Mapping[str, pd.DataFrame],
    task: str,
    targets: Sequence[str],
    kind: str | None = None,
    *,
    drop: Sequence[str] = (),
    use: Sequence[str] = (),
    communicator: Communicator = SERIAL,
) -> tuple[str, str, TableSchema]:
    """Return the kind of the targets, the reason for it, and the schema."""
    kind, reason, whole = agree_targets(frames, targets, kind, communicator=communicator)
    with raise_on_all(communicator):
        inputs = {name: frame.drop(columns=[task, *targets, *drop]) for name, frame in frames.items()}
        X, y = pd.DataFrame(), pd.DataFrame()
        if inputs:
            tables = {f'task "{name}"': list(frame.columns) for name, frame in inputs.items()}
            columns = check_same_columns("Every task must have the same columns", tables)
            index = pd.concat([frame[[]] for frame in inputs.values()]).index
            X = concat_tables(list(inputs.values()), columns).set_axis(index)
            y = pd.concat([read_targets(frame, targets, kind, whole) for frame in frames.values()])
        labels = [name for name, frame in frames.items() for _ in range(len(frame))]
    if not len(y):
        y = pd.DataFrame(columns=list(targets), dtype=np.int64 if whole else object)
    types = dict.fromkeys(use, "number")
    return kind, reason, fit_inputs(X, labels, y, kind, task=task, types=types, communicator=communicator)


def unscaled(schema: TableSchema) -> TableSchema:
    """Return a schema whose targets are in their own units."""
    return replace(schema, target_columns=tuple(TargetColumn(column.name) for column in schema.target_columns))
