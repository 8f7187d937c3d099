"""The schema by which every agent encodes its own table, made from the columns that the network declares."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence

from elmesh.errors import ElmeshError
from elmesh.netconfig.columns import InputColumn, uniform_scale
from elmesh.netconfig.config import NetworkConfig
from elmesh.tables import CategoricalColumn, NumericColumn, TableSchema, TargetColumn

__all__ = ["make_schema"]


def make_schema(
    config: NetworkConfig,
    task_column: str,
    targets: Sequence[str],
    whole_labels: bool,
    statistics: Mapping[str, tuple[float, float]] | None = None,
) -> TableSchema:
    """Return the schema that encodes an agent's table.

    Parameters
    ----------
    config
        The network, which declares columns and ranges.
    task_column, targets
        The column that contains the agent's name, and those to predict: exactly one for a classification.
    whole_labels
        Whether the classes of a classification are whole numbers, and not text.
    statistics
        Mean and standard deviation over all agents' rows of each column of ``config.unscaled_columns``.
    """
    if not config.columns:
        raise ElmeshError(
            f"The network file of {config.name} declares no columns to learn from; add a section [[columns]] for each, "
            "the same at every agent, or make the file with elmesh network create --like table.csv."
        )
    _check_roles(config, task_column, targets)
    mean, std = (0.0, 1.0) if config.target_range is None else uniform_scale(config.target_range)
    schema = TableSchema(
        task_column,
        config.kind,
        tuple(TargetColumn(name, mean, std) for name in targets),
        whole_labels and config.kind == "classification",
        tuple(_numeric(column, (statistics or {}).get(column.name)) for column in config.columns if column.is_numeric),
        tuple(
            CategoricalColumn(column.name, column.categories, column.missing)
            for column in config.columns
            if column.categories is not None
        ),
    )
    if not schema.feature_names:
        raise ElmeshError("No column is left to learn from: each has the same value in all rows of all agents.")
    return schema


def _numeric(column: InputColumn, statistics: tuple[float, float] | None) -> NumericColumn:
    """Scale a column by its range, or by mean and standard deviation if it has none; missing values become the mean."""
    scale = statistics if column.range is None else uniform_scale(column.range)
    if scale is None:
        raise ElmeshError(
            f'Column "{column.name}" has no range in the network file, so its mean and standard deviation must be '
            "exchanged first; or declare a range, such as range = [0.0, 100.0]."
        )
    mean, std = map(float, scale)
    if not (math.isfinite(mean) and math.isfinite(std) and std >= 0):
        raise ElmeshError(f'The statistics of column "{column.name}" are not finite; check its values.')
    return NumericColumn(column.name, mean, std, mean, column.missing)


def _check_roles(config: NetworkConfig, task_column: str, targets: Sequence[str]) -> None:
    if not targets or (config.kind == "classification" and len(targets) > 1):
        raise ElmeshError(f"A {config.kind} in this network was given {len(targets)} targets; name one.")
    uses = Counter([task_column, *targets, *(column.name for column in config.columns)])
    for name in (name for name, count in uses.items() if count > 1):
        raise ElmeshError(f'Column "{name}" is used twice; use it as the task, a target or a column to learn from.')
