"""Reader of CSV files: each cell as text, each row as wide as the header.

A reader that pads short rows turns an error in one line into missing values without any message. The index of the
table is the line on which each row starts, so that later messages can name it. The text is interpreted later, over all
rows (see :mod:`elmesh.tables.columns`); only decimal commas become points here (:mod:`elmesh.tables.csv_format`).
"""

from __future__ import annotations

import csv
import warnings
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, TextIO

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from elmesh.errors import ElmeshError
from elmesh.tables.access import TableWarning, check_column_names
from elmesh.tables.csv_format import (
    DETECT,
    CSVFormat,
    convert_decimal_commas,
    find_delimiter,
    find_encoding,
    has_decimal_commas,
    open_text,
)
from elmesh.text import count

__all__ = ["MISSING", "read_csv"]

#: Cells of a CSV file that count as missing.
MISSING = ("", "NA", "N/A", "NaN", "nan", "NULL", "null")

_CHUNK = 20_000
_DELIMITER_NAMES = {",": "commas", ";": "semicolons", "\t": "tabs"}
_ENCODING_NAMES = {"cp1252": "Windows-1252", "latin-1": "Latin-1", "utf-16": "UTF-16"}


def read_csv(path: Path, n_rows: int | None = None, csv_format: CSVFormat = DETECT) -> pd.DataFrame:
    """Read a CSV file, or only its first rows; see :func:`elmesh.tables.read_table`.

    A warning states what was detected if it is not the default, but not if only the first rows are read.
    """
    if csv_format.encoding is not None:
        try:
            return _read(path, n_rows, csv_format, csv_format.encoding)
        except UnicodeError as error:
            raise ElmeshError(
                f"{path.name} is not text in the encoding {csv_format.encoding}; give another --encoding, or leave it "
                "out to have it detected."
            ) from error
    try:
        return _read(path, n_rows, csv_format, "utf-8-sig")
    except UnicodeDecodeError:
        return _read(path, n_rows, csv_format, find_encoding(path))


def _read(path: Path, n_rows: int | None, csv_format: CSVFormat, encoding: str) -> pd.DataFrame:
    delimiter = csv_format.delimiter or find_delimiter(path, encoding)
    with open_text(path, encoding) as stream:
        records = _read_records(path, stream, delimiter)
        lines, table = _to_table(path, islice(records, None if n_rows is None else n_rows + 1))
    decimal = csv_format.decimal
    if decimal is None and n_rows is None and delimiter != ",":
        decimal = "," if has_decimal_commas(table.columns) else "."
    if decimal == ",":
        table = pa.table([convert_decimal_commas(column) for column in table.columns], names=table.column_names)
    if n_rows is None:
        _warn_of_format(
            None if csv_format.delimiter or delimiter == _default_delimiter(path) else delimiter,
            csv_format.decimal is None and decimal == ",",
            None if csv_format.encoding or encoding == "utf-8-sig" else encoding,
        )
    frame: pd.DataFrame = table.to_pandas()
    frame.index = pd.Index(lines, name="line")
    return frame


def _default_delimiter(path: Path) -> str:
    return "\t" if path.name.lower().endswith((".tsv", ".tsv.gz")) else ","


def _warn_of_format(delimiter: str | None, decimal_commas: bool, encoding: str | None) -> None:
    """Warn of what was detected and is not the default, in the same words for all files that are written alike."""
    words = []
    if delimiter is not None:
        words.append(f"{_DELIMITER_NAMES[delimiter]} between columns")
    if decimal_commas:
        words.append("decimal commas")
    if encoding is not None:
        words.append(f"{_ENCODING_NAMES[encoding]} encoding")
    if words:
        message = f"Read as CSV with {', '.join(words)}; see --delimiter, --decimal and --encoding if this is wrong."
        warnings.warn(message, TableWarning, stacklevel=4)


def _read_records(path: Path, stream: TextIO, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the records that are not blank, each with its first line; a quoted cell may span lines."""
    reader = csv.reader(stream, delimiter=delimiter, strict=True, skipinitialspace=True)
    start = 1
    try:
        for record in reader:
            if record and not (len(record) == 1 and not record[0].strip()):
                yield start, record
            start = reader.line_num + 1
    except csv.Error as error:
        raise ElmeshError(
            f"{path.name}, line {start}: cannot be read as CSV ({error}); look for a quotation mark that is not closed."
        ) from error


def _to_table(path: Path, records: Iterator[tuple[int, list[str]]]) -> tuple[list[int], pa.Table]:
    """Return the line on which each row starts, and the rows."""
    _, header = next(records, (0, []))
    if not header:
        raise ElmeshError(f"{path.name} is empty; expected a header and rows.")
    names = _name_first([name.strip() for name in header])
    check_column_names(path.name, names)
    lines: list[int] = []
    tables: list[pa.Table] = []
    while chunk := list(islice(records, _CHUNK)):
        for line, record in chunk:
            if len(record) != len(names):
                raise ElmeshError(
                    f"{path.name}, line {line}: {count(len(record), 'value')} where the header has {len(names)}; "
                    "correct that line."
                )
        lines += [line for line, _ in chunk]
        columns = zip(*(record for _, record in chunk), strict=True)
        tables.append(pa.table([_to_array(column) for column in columns], names=names))
    if not tables:
        raise ElmeshError(f"{path.name} has a header but no rows; add some, or leave the file out.")
    return lines, pa.concat_tables(tables)


def _name_first(names: list[str]) -> list[str]:
    """Name the first column if it has no name, as R and pandas write the names or numbers of rows."""
    if names[0] or len(names) == 1:
        return names
    name, i = "Unnamed: 0", 0
    while name in names:
        i += 1
        name = f"Unnamed: 0.{i}"
    return [name, *names[1:]]


def _to_array(column: tuple[str, ...]) -> Any:
    trimmed = pc.utf8_trim_whitespace(pa.array(column, pa.string()))
    missing = pc.is_in(trimmed, pa.array(MISSING))
    return pc.if_else(missing, pa.scalar(None, pa.string()), trimmed)
