"""Tables of mixed columns: read from files and encoded as numbers by a schema that the training rows fix.

:mod:`elmesh.tables.schema` states the rules of the encoding.
"""

from elmesh.tables.access import FILE_TASK, TableWarning, find_column, finite_numbers
from elmesh.tables.columns import to_labels
from elmesh.tables.csv_format import CSVFormat
from elmesh.tables.dataset import find_tasks
from elmesh.tables.files import check_table_name, read_table, write_table
from elmesh.tables.fitting import (
    agree_targets,
    fit_inputs,
    fit_schema,
    fit_stream_inputs,
    infer_kind,
    read_targets,
    whole_labels,
)
from elmesh.tables.schema import CategoricalColumn, DateColumn, NumericColumn, ProblemKind, TableSchema, TargetColumn
from elmesh.tables.source import open_large, read_data

__all__ = [
    "FILE_TASK",
    "CSVFormat",
    "CategoricalColumn",
    "DateColumn",
    "NumericColumn",
    "ProblemKind",
    "TableSchema",
    "TableWarning",
    "TargetColumn",
    "agree_targets",
    "check_table_name",
    "find_column",
    "find_tasks",
    "finite_numbers",
    "fit_inputs",
    "fit_schema",
    "fit_stream_inputs",
    "infer_kind",
    "open_large",
    "read_data",
    "read_table",
    "read_targets",
    "to_labels",
    "whole_labels",
    "write_table",
]
