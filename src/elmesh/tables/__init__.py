"""Tables of mixed columns, as users have them: read, turned into numbers by a rule fixed in training.

See :mod:`elmesh.tables.schema` for the rule.
"""

from elmesh.tables.csv_file import MISSING
from elmesh.tables.files import TableWarning, check_table_name, read_table, write_table
from elmesh.tables.fitting import agree_schema, fit_schema, infer_kind, whole_labels
from elmesh.tables.headers import FILE_TASK
from elmesh.tables.parts import read_data
from elmesh.tables.schema import CategoricalColumn, Kind, NumericColumn, TableSchema, TargetColumn
from elmesh.tables.sources import Source, find_tasks

__all__ = [
    "FILE_TASK",
    "MISSING",
    "CategoricalColumn",
    "Kind",
    "NumericColumn",
    "Source",
    "TableSchema",
    "TableWarning",
    "TargetColumn",
    "agree_schema",
    "check_table_name",
    "find_tasks",
    "fit_schema",
    "infer_kind",
    "read_data",
    "read_table",
    "whole_labels",
    "write_table",
]
