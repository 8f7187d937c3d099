"""Tables of mixed columns, as users have them: read, turned into numbers by a rule fixed in training.

See :mod:`elmesh.tables.schema` for the rule.
"""

from elmesh.tables.files import FILE_TASK, MISSING, TableWarning, check_table_name, read_data, read_table, write_table
from elmesh.tables.fitting import fit_schema, infer_kind
from elmesh.tables.schema import CategoricalColumn, Kind, NumericColumn, TableSchema, TargetColumn

__all__ = [
    "FILE_TASK",
    "MISSING",
    "CategoricalColumn",
    "Kind",
    "NumericColumn",
    "TableSchema",
    "TableWarning",
    "TargetColumn",
    "check_table_name",
    "fit_schema",
    "infer_kind",
    "read_data",
    "read_table",
    "write_table",
]
