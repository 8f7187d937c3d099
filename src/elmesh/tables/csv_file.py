"""Reader of CSV files: each cell as text, each row as wide as the header.

A reader that pads short rows turns an error in one line into missing values without any message. The index of the
table is the line on which each row starts, so that later messages can name it. The text is interpreted later, over all
rows (see :mod:`elmesh.tables.columns`).
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
from elmesh.tables.access import check_column_names
from elmesh.text import count

__all__ = ["MISSING", "read_csv"]

#: Cells of a CSV file that count as missing.
MISSING = ("", "NA", "N/A", "NaN", "nan", "NULL", "null")

_DELIMITERS = ",;\t"
_CHUNK = 20_000


def read_csv(path: Path, n_rows: int | None = None) -> pd.DataFrame:
    """Read a CSV file, or only its first rows; see :func:`elmesh.tables.read_table`."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as stream:
            delimiter = _find_delimiter(stream)
            stream.seek(0)
            records = _read_records(path, stream, delimiter)
            return _to_frame(path, islice(records, None if n_rows is None else n_rows + 1))
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


def _find_delimiter(stream: IO[str]) -> str:
    """Prefer delimiters that split the header and the first row equally; among these, the one with most columns."""

    def score(delimiter: str) -> tuple[bool, int]:
        stream.seek(0)
        reader = csv.reader(stream, delimiter=delimiter, strict=True, skipinitialspace=True)
        try:
            widths = [len(record) for record in islice(filter(None, reader), 2)]
        except csv.Error:
            return False, 0
        return len(widths) == 2 and widths[0] == widths[1] > 1, max(widths[:1], default=0)

    return max(_DELIMITERS, key=score)


def _read_records(path: Path, stream: IO[str], delimiter: str) -> Iterator[tuple[int, list[str]]]:
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


def _to_frame(path: Path, records: Iterator[tuple[int, list[str]]]) -> pd.DataFrame:
    _, header = next(records, (0, []))
    if not header:
        raise ElmeshError(f"{path.name} is empty; expected a header and rows.")
    names = [name.strip() for name in header]
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
        raise ElmeshError(f"{path.name} has a header but no rows.")
    frame: pd.DataFrame = pa.concat_tables(tables).to_pandas()
    frame.index = pd.Index(lines, name="line")
    return frame


def _to_array(column: tuple[str, ...]) -> Any:
    trimmed = pc.utf8_trim_whitespace(pa.array(column, pa.string()))
    missing = pc.is_in(trimmed, pa.array(MISSING))
    return pc.if_else(missing, pa.scalar(None, pa.string()), trimmed)
