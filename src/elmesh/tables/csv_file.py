"""One CSV file: cell by cell as text, every row as wide as the header.

A reader that pads short rows turns a slip in one line into a missing value nobody hears about. What the text means is
decided later, over all rows (see :mod:`elmesh.tables.columns`). The index of a table is the line each row starts on,
so that a later complaint can name it.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import IO, Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from elmesh.errors import ElmeshError
from elmesh.tables.headers import check_header

__all__ = ["MISSING", "read_csv"]

MISSING = ("", "NA", "N/A", "NaN", "nan", "NULL", "null")
"""Cells of a CSV file that count as missing."""

_DELIMITERS = ",;\t"
_CHUNK = 20_000

Records = Iterator[tuple[int, list[str]]]


def read_csv(path: Path, rows: int | None = None) -> pd.DataFrame:
    """Read a CSV file; see :func:`elmesh.tables.read_table`.

    Parameters
    ----------
    path
        The file.
    rows
        How many rows to read at most, and no more of the file than that takes; by default all.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as stream:
            delimiter = _delimiter(stream)
            stream.seek(0)
            records = _records(path, stream, delimiter)
            return _parse(path, islice(records, None if rows is None else rows + 1))
    except UnicodeDecodeError as error:
        raise ElmeshError(
            f"{path.name}, line {_undecodable_line(path)}: not UTF-8 text; save the file with UTF-8 encoding."
        ) from error


def _undecodable_line(path: Path) -> int:
    with path.open("rb") as stream:
        for number, line in enumerate(stream, 1):
            try:
                line.decode("utf-8")
            except UnicodeDecodeError:
                return number
    return 1


def _delimiter(stream: IO[str]) -> str:
    """Choose the delimiter that splits the header most, first among those that split row 1 as widely."""

    def merit(delimiter: str) -> tuple[bool, int]:
        stream.seek(0)
        reader = csv.reader(stream, delimiter=delimiter, strict=True, skipinitialspace=True)
        try:
            records = list(islice(filter(None, reader), 2))
        except csv.Error:
            return False, 0
        widths = [len(record) for record in records]
        return len(widths) == 2 and widths[0] == widths[1] > 1, max(widths[:1], default=0)

    return max(_DELIMITERS, key=merit)


def _records(path: Path, stream: IO[str], delimiter: str) -> Records:
    """Yield the records that are not blank, each with the line it starts on; a quoted cell may span lines."""
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


def _parse(path: Path, records: Records) -> pd.DataFrame:
    _, header = next(records, (0, []))
    if not header:
        raise ElmeshError(f"{path.name} is empty; expected a header and rows.")
    header = [name.strip() for name in header]
    check_header(path.name, header)
    lines: list[int] = []
    parts: list[pa.Table] = []
    while chunk := list(islice(records, _CHUNK)):
        for line, record in chunk:
            if len(record) != len(header):
                values = "1 value" if len(record) == 1 else f"{len(record)} values"
                raise ElmeshError(
                    f"{path.name}, line {line}: {values} where the header has {len(header)}; correct that line."
                )
        lines += [line for line, _ in chunk]
        columns = zip(*(record for _, record in chunk), strict=True)
        parts.append(pa.table([_cells(column) for column in columns], names=header))
    if not parts:
        raise ElmeshError(f"{path.name} has a header but no rows.")
    frame: pd.DataFrame = pa.concat_tables(parts).to_pandas()
    frame.index = pd.Index(lines, name="line")
    return frame


def _cells(column: tuple[str, ...]) -> Any:
    trimmed = pc.utf8_trim_whitespace(pa.array(column, pa.string()))
    missing = pc.is_in(trimmed, pa.array(MISSING))
    return pc.if_else(missing, pa.scalar(None, pa.string()), trimmed)
