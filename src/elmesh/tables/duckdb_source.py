"""Tables in DuckDB: ``duckdb://warehouse.db?table=visits``, or ``?query=SELECT ...``; nothing is written to them."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import pandas as pd

from elmesh.errors import ElmeshError
from elmesh.tables.access import check_column_names
from elmesh.tables.stream import TableStream, batches_to_pandas, chunk_rows

__all__ = ["SCHEME", "DuckDBStream", "is_duckdb"]

SCHEME = "duckdb://"


def is_duckdb(source: object) -> bool:
    """Return whether a source is a table of DuckDB, and not a file."""
    return isinstance(source, str) and source.startswith(SCHEME)


@dataclass(frozen=True)
class _Address:
    """A file of DuckDB, and what is read from it: a table or a query."""

    database: Path
    relation: str  # SQL that can follow FROM
    is_table: bool

    @classmethod
    def parse(cls, url: str) -> _Address:
        """Read an address; raise if it has not exactly one of table and query."""
        parts = urlsplit(url)
        database = unquote(parts.netloc + parts.path)
        fields = parse_qsl(parts.query, keep_blank_values=True)
        given = dict(fields)
        if not database or len(fields) != 1 or not given.keys() <= {"table", "query"} or not all(given.values()):
            raise ElmeshError(
                f"{url} is not the address of a table; expected duckdb://FILE?table=NAME, or "
                "duckdb://FILE?query=SELECT ..., with the file relative to this folder, or absolute with three slashes."
            )
        if "table" in given:
            return cls(Path(database), ".".join(map(_quoted, given["table"].split("."))), True)
        return cls(Path(database), f"({given['query'].rstrip().rstrip(';')})", False)


def _quoted(name: str) -> str:
    doubled = name.replace('"', '""')
    return f'"{doubled}"'


class DuckDBStream(TableStream):
    """A table of DuckDB, or the result of a query, read in parts.

    Parameters
    ----------
    url : str
        ``duckdb://FILE?table=NAME`` or ``duckdb://FILE?query=SELECT ...``.
    """

    def __init__(self, url: str) -> None:
        self.name, self._address = url, _Address.parse(url)
        check_column_names(url, self.columns)

    @cached_property
    def columns(self) -> list[str]:
        """The names of the columns."""
        with self._connect() as connection:
            return [str(row[0]) for row in connection.execute(f"DESCRIBE {self._select('*')}").fetchall()]

    @cached_property
    def n_rows(self) -> int:
        """The number of rows."""
        with self._connect() as connection:
            return int(connection.execute(self._select("count(*)")).fetchone()[0])

    @property
    def fingerprint(self) -> str:
        """The address, and size and time of change of the file; rows of a query may come in another order each time."""
        stat = self._address.database.stat()
        order = "" if self._address.is_table else secrets.token_hex(8)
        return f"{self.name} {stat.st_size} {stat.st_mtime_ns} {order}"

    def _select(self, what: str) -> str:
        # The connection can only read.
        return f"SELECT {what} FROM {self._address.relation}"  # noqa: S608  (names are quoted, a query is the user's own)

    def read(self, columns: Sequence[str]) -> Iterator[pd.DataFrame]:
        """Yield some columns of all rows, in parts."""
        with self._connect() as connection:
            result = connection.sql(self._select(", ".join(map(_quoted, columns))))
            yield from batches_to_pandas(result.to_arrow_reader(chunk_rows(len(self.columns))))

    @contextmanager
    def _connect(self) -> Iterator[Any]:
        try:
            import duckdb  # noqa: PLC0415 (optional)
        except ModuleNotFoundError as error:
            raise ElmeshError(
                'Tables of DuckDB need the package duckdb; install it with: pip install "elmesh[duckdb]"'
            ) from error
        if not self._address.database.is_file():
            raise ElmeshError(f"There is no file {self._address.database}; {self.name} names it.")
        try:
            connection = duckdb.connect(str(self._address.database), read_only=True)
            try:
                yield connection
            finally:
                connection.close()
        except duckdb.Error as error:
            reason = str(error).splitlines()[0]
            raise ElmeshError(f"{self.name} cannot be read: {reason}") from error
