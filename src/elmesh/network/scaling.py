"""From the columns that a network declares to the schema by which every agent turns its own table into numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from elmesh.errors import ElmeshError
from elmesh.network.inputs import CategoricalInput, Input, NumericInput, scale_of
from elmesh.tables.schema import Kind, TableSchema, TargetColumn

__all__ = ["Declared", "make_schema"]


class Declared(Protocol):
    """What a network says of its tables."""

    @property
    def name(self) -> str:
        """The network's name."""

    @property
    def kind(self) -> Kind:
        """What is learned."""

    @property
    def columns(self) -> tuple[Input, ...]:
        """The columns to learn from."""

    @property
    def target_range(self) -> tuple[float, float] | None:
        """The range of what a regression predicts."""


def make_schema(
    declared: Declared,
    stats: Mapping[str, tuple[float, float]],
    task_column: str,
    targets: Sequence[str],
    whole_labels: bool,
) -> TableSchema:
    """Say how a table becomes numbers.

    Parameters
    ----------
    declared
        What the network says of its tables.
    stats
        Mean and standard deviation of columns without a declared range.
    task_column
        The column that names the agent.
    targets
        What is predicted; one column for a classification.
    whole_labels
        For classification, whether classes are whole numbers, and not text.
    """
    if not declared.columns:
        raise ElmeshError(
            f"The network file of {declared.name} names no columns to learn from; add a section [[columns]] for each, "
            "the same at every agent, or make the file with elmesh network create --like table.csv."
        )
    _check_roles(declared, task_column, targets)
    mean, std = (0.0, 1.0) if declared.target_range is None else scale_of(declared.target_range)
    schema = TableSchema(
        task_column,
        declared.kind,
        tuple(TargetColumn(name, mean, std) for name in targets),
        whole_labels and declared.kind == "classification",
        tuple(c.column(stats.get(c.name)) for c in declared.columns if isinstance(c, NumericInput)),
        tuple(c.column() for c in declared.columns if isinstance(c, CategoricalInput)),
    )
    if not schema.columns:
        raise ElmeshError("No column is left to learn from: each has the same value in all rows of all agents.")
    return schema


def _check_roles(declared: Declared, task_column: str, targets: Sequence[str]) -> None:
    if not targets or (declared.kind == "classification" and len(targets) > 1):
        raise ElmeshError(f"A {declared.kind} in this network was given {len(targets)} targets; name one.")
    used = [task_column, *targets, *(column.name for column in declared.columns)]
    twice = sorted({name for name in used if used.count(name) > 1}) if len(set(used)) < len(used) else []
    if twice:
        raise ElmeshError(
            f'Column "{twice[0]}" is used twice: it is the task or a target, or a column to learn from, not both.'
        )
