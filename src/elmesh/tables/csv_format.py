"""How a CSV file is written: delimiter, decimal separator and encoding.

Each of these is given or detected from the file. It is a property of the file and not of the data, so that a model does
not depend on it. The rules of detection:

- The delimiter is the one of comma, semicolon and tab that splits the header and the first row into equally many
  columns; if several do, the one with most columns.
- Numbers have decimal commas if the delimiter is not a comma, most cells of some column are numbers with one comma,
  one of which cannot be a thousands separator, and no cell of the file is a number with a decimal point.
- The encoding is UTF-8 unless the file has other bytes and no character that only UTF-8 writes like this. Then it is
  Windows-1252, or Latin-1 if the file has bytes that Windows-1252 does not define, or UTF-16 if it begins so.
"""

from __future__ import annotations

import codecs
import csv
import io
import re
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, TextIO

import pyarrow.compute as pc

from elmesh.errors import ElmeshError
from elmesh.tables.gzip_file import open_bytes

__all__ = [
    "DETECT",
    "CSVFormat",
    "convert_decimal_commas",
    "find_delimiter",
    "find_encoding",
    "has_decimal_commas",
    "open_text",
]

_NAMES = {"comma": ",", "semicolon": ";", "tab": "\t", "\\t": "\t", "point": "."}
_DELIMITERS = ",;\t"
_BLOCK = 1 << 20

_EXPONENT = "([eE][+-]?[0-9]+)?"
_WHOLE = f"^[+-]?[0-9]+{_EXPONENT}$"
_COMMA = rf"^[+-]?([0-9]*|[0-9]{{1,3}}(\.[0-9]{{3}})+),[0-9]+{_EXPONENT}$"
_MAYBE_GROUPED = "^[+-]?[0-9]{1,3},[0-9]{3}$"  # 1,234: a decimal comma or a thousands separator
_POINT = rf"^[+-]?[0-9]*\.[0-9]+{_EXPONENT}$|^[+-]?[0-9]{{1,3}}(,[0-9]{{3}})+\.[0-9]+$|^[+-]?[0-9]+(,[0-9]+){{2,}}$"
_GROUPED_BY_POINTS = r"^[+-]?[0-9]{1,3}(\.[0-9]{3})+$"


@dataclass(frozen=True)
class CSVFormat:
    """How CSV files are written; what is None is detected in each file.

    Parameters
    ----------
    delimiter
        A single character, or its name: comma, semicolon or tab.
    decimal
        Decimal separator: a point or a comma, as a character or by name.
    encoding
        An encoding that Python knows.

    Examples
    --------
    >>> CSVFormat(delimiter="semicolon", encoding="latin-1")
    CSVFormat(delimiter=';', decimal=None, encoding='iso8859-1')
    """

    delimiter: str | None = None
    decimal: str | None = None
    encoding: str | None = None

    def __post_init__(self) -> None:
        assign = object.__setattr__
        for name in ("delimiter", "decimal"):
            value = getattr(self, name)
            assign(self, name, _NAMES.get(value, value))
        if self.delimiter is not None and (len(self.delimiter) != 1 or self.delimiter in '"\r\n.'):
            raise ElmeshError(
                f"--delimiter must be comma, semicolon, tab or another single character; got {self.delimiter!r}."
            )
        if self.decimal not in (None, ".", ","):
            raise ElmeshError(f"--decimal must be point or comma; got {self.decimal!r}.")
        if self.encoding is not None:
            assign(self, "encoding", _known_encoding(self.encoding))


#: Everything is detected.
DETECT = CSVFormat()


def _known_encoding(name: str) -> str:
    """Return the name of an encoding as Python has it; UTF-8 includes a byte order mark."""
    try:
        found = codecs.lookup(name).name
        "".encode(found)  # some codecs are not for text
    except LookupError:
        raise ElmeshError(
            f"The encoding {name!r} is not known; expected utf-8, windows-1252, latin-1, utf-16 or another of Python's."
        ) from None
    return "utf-8-sig" if found == "utf-8" else found


def open_text(path: Path, encoding: str) -> TextIO:
    """Open a file, which may be compressed, as text with its own line ends."""
    return io.TextIOWrapper(open_bytes(path), encoding=encoding, newline="")


def find_delimiter(path: Path, encoding: str) -> str:
    """Prefer delimiters that split the header and the first row equally; among these, the one with most columns."""

    def score(delimiter: str) -> tuple[bool, int]:
        try:
            with open_text(path, encoding) as stream:
                reader = csv.reader(stream, delimiter=delimiter, strict=True, skipinitialspace=True)
                widths = [len(record) for record in islice(filter(None, reader), 2)]
        except csv.Error:
            return False, 0
        return len(widths) == 2 and widths[0] == widths[1] > 1, max(widths[:1], default=0)

    return max(_DELIMITERS, key=score)


def find_encoding(path: Path) -> str:
    """Return the encoding of a file that is not UTF-8; raise if it is UTF-8 with errors, or not text."""
    decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")
    encoding = "cp1252"
    with open_bytes(path) as stream:
        block = stream.read(_BLOCK)
        if block.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            return "utf-16"
        while block:
            if 0 in block:
                raise ElmeshError(f"{path.name} is not a text file; expected CSV.")
            if re.search("[^\x00-\x7f\udc80-\udcff]", decoder.decode(block)):
                raise ElmeshError(
                    f"{path.name}, line {_undecodable_line(path)}: not UTF-8 text, although other characters of the "
                    "file are; correct that line, or name the encoding of the file with --encoding."
                )
            if re.search(rb"[\x81\x8d\x8f\x90\x9d]", block):
                encoding = "latin-1"
            block = stream.read(_BLOCK)
    return encoding


def _undecodable_line(path: Path) -> int:
    with open_bytes(path) as stream:
        for number, line in enumerate(stream, 1):
            try:
                line.decode("utf-8")
            except UnicodeDecodeError:
                return number
    return 1


def has_decimal_commas(columns: Iterable[Any]) -> bool:
    """Return whether the columns of a file, as Arrow arrays of text, have numbers with decimal commas."""
    found = False
    for column in columns:
        if _count(column, _POINT):
            return False
        commas = _count(column, _COMMA)
        if commas > _count(column, _MAYBE_GROUPED):
            found |= 2 * (commas + _count(column, _WHOLE)) > len(column) - column.null_count
    return found


def convert_decimal_commas(column: Any) -> Any:
    """Write the numbers in a column with a decimal point and without thousands separators."""
    plain = pc.replace_substring(column, ".", "")
    column = pc.if_else(pc.match_substring_regex(column, _GROUPED_BY_POINTS), plain, column)
    return pc.if_else(pc.match_substring_regex(column, _COMMA), pc.replace_substring(plain, ",", "."), column)


def _count(column: Any, pattern: str) -> int:
    return pc.sum(pc.match_substring_regex(column, pattern)).as_py() or 0
