"""From the columns that a network declares to the schema by which every agent turns its own table into numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from elmesh.errors import ElmeshError
from elmesh.netconfig.inputs import CategoricalInput, NumericInput, scale_of
from elmesh.tables.schema import TableSchema, TargetColumn

if TYPE_CHECKING:
    from elmesh.netconfig.config import Plan

__all__ = ["make_schema"]


def make_schema(
    plan: Plan,
    task_column: str,
    targets: Sequence[str],
    whole_labels: bool,
    stats: Mapping[str, tuple[float, float]],
) -> TableSchema:
    """Say how a table becomes numbers.

    Parameters
    ----------
    plan
        What the network says of its tables: by declared ranges, where there are any.
    task_column
        The column that names the agent.
    targets
        What is predicted; one column for a classification.
    whole_labels
        For classification, whether classes are whole numbers, and not text.
    stats
        Mean and standard deviation over all agents' rows of each column in :attr:`Plan.unscaled`.

    Raises
    ------
    ElmeshError
        If the file has no columns yet, a column has neither range nor statistics, or is a target as well.
    """
    if not plan.columns:
        raise ElmeshError(
            f"The network file of {plan.name} names no columns to learn from; add a section [[columns]] for each, "
            "the same at every agent, or make the file with elmesh network create --like table.csv."
        )
    _check_roles(plan, task_column, targets)
    mean, std = (0.0, 1.0) if plan.target_range is None else scale_of(plan.target_range)
    schema = TableSchema(
        task_column,
        plan.kind,
        tuple(TargetColumn(name, mean, std) for name in targets),
        whole_labels and plan.kind == "classification",
        tuple(c.column(stats.get(c.name)) for c in plan.columns if isinstance(c, NumericInput)),
        tuple(c.column() for c in plan.columns if isinstance(c, CategoricalInput)),
    )
    if not schema.columns:
        raise ElmeshError("No column is left to learn from: each has the same value in all rows of all agents.")
    return schema


def _check_roles(plan: Plan, task_column: str, targets: Sequence[str]) -> None:
    if not targets or (plan.kind == "classification" and len(targets) > 1):
        raise ElmeshError(f"A {plan.kind} in this network was given {len(targets)} targets; name one.")
    used = [task_column, *targets, *(column.name for column in plan.columns)]
    twice = sorted({name for name in used if used.count(name) > 1}) if len(set(used)) < len(used) else []
    if twice:
        raise ElmeshError(
            f'Column "{twice[0]}" is used twice: it is the task or a target, or a column to learn from, not both.'
        )
