"""Files to tables and back: CSV and Parquet, one file or a folder with a file a task.

CSV is read as text, cell by cell, and every row must be as wide as the header: a reader that pads short rows
turns a slip in one line into a missing value nobody hears about. What the text means is decided later, over
all rows (see :mod:`elmesh.tables.columns`). The index of a table is the line each row starts on, so that a
later complaint can name it.
"""

from __future__ import annotations

import csv
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import IO, Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from elmesh.errors import ElmeshError

__all__ = ["FILE_TASK", "MISSING", "TableWarning", "check_table_name", "read_data", "read_table", "write_table"]

MISSING = ("", "NA", "N/A", "NaN", "nan", "NULL", "null")
"""Cells of a CSV file that count as missing."""

FILE_TASK = "(file)"
"""The column that holds the task where each task has a file of its own; its value is the file's name."""

_SUFFIXES = (".csv", ".tsv", ".parquet")
_DELIMITERS = ",;\t"
_CHUNK = 20_000


class TableWarning(UserWarning):
    """Something about a table that is handled by a stated rule, and worth a note."""


def read_table(path: str | Path) -> pd.DataFrame:
    r"""Read one CSV or Parquet file.

    Parameters
    ----------
    path
        A ``.csv``, ``.tsv`` or ``.parquet`` file. CSV is UTF-8 with a header; commas, semicolons and tabs are
        told apart by the header. The cells named in :data:`MISSING` are missing.

    Returns
    -------
    pandas.DataFrame
        Columns of a CSV file are text, as written; those of Parquet keep their types. The index, named
        ``line`` or ``row``, says where in the file a row starts.

    Raises
    ------
    ElmeshError
        If the file is empty, has no rows, a row of another width than the header, a column without a name or
        two of one name, is not UTF-8, or is of another kind.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "a.csv"
    ...     _ = path.write_text("site;dose\n007;1.5\n")
    ...     frame = read_table(path)
    >>> frame.to_dict("list"), frame.index.tolist()
    ({'site': ['007'], 'dose': ['1.5']}, [2])
    """
    path = Path(path)
    if path.suffix.lower() not in _SUFFIXES:
        raise ElmeshError(
            f"{path.name} is neither CSV nor Parquet by its name; expected one that ends in {', '.join(_SUFFIXES)}."
        )
    if path.is_dir():
        raise ElmeshError(f"{path} is a folder; expected a file.")
    if not path.exists():
        raise ElmeshError(f"There is no file {path}.")
    if path.stat().st_size == 0:
        raise ElmeshError(f"{path.name} is empty; expected a header and rows.")
    frame = _read_parquet(path) if path.suffix.lower() == ".parquet" else _read_csv(path)
    if frame.empty:
        raise ElmeshError(f"{path.name} has a header but no rows.")
    return frame


def read_data(path: str | Path, *, file_task: bool = False) -> pd.DataFrame:
    """Read a file, or every table in a folder as one.

    Parameters
    ----------
    path
        A file as for :func:`read_table`, or a folder of such files, all of the same columns.
    file_task
        Whether each file is a task, named as the file without its suffix; the tasks go to column
        :data:`FILE_TASK`.

    Returns
    -------
    pandas.DataFrame
        As from :func:`read_table`; for a folder the index is the file and the line or row in it.
    """
    path = Path(path)
    if path.is_dir():
        frame = _read_folder(path, file_task)
        stems = [Path(name).stem for name in frame.index.get_level_values("file")]
    elif path.exists() or path.suffix:
        frame = read_table(path)
        stems = [path.stem] * len(frame)
    else:
        raise ElmeshError(f"There is no file or folder {path}.")
    return frame.assign(**{FILE_TASK: stems}) if file_task else frame


def _read_folder(folder: Path, file_task: bool) -> pd.DataFrame:
    entries = sorted(entry for entry in folder.iterdir() if not entry.name.startswith("."))
    files = [entry for entry in entries if entry.is_file() and entry.suffix.lower() in _SUFFIXES]
    if not files:
        raise ElmeshError(f"The folder {folder} holds no file that ends in {', '.join(_SUFFIXES)}.")
    if len({file.suffix.lower() == ".parquet" for file in files}) > 1:
        raise ElmeshError(f"The folder {folder} holds both CSV and Parquet files; keep one kind.")
    if len({file.stem for file in files}) < len(files):
        raise ElmeshError(f"Two files in the folder {folder} differ only in their ending; keep one for each task.")
    ignored = [entry.name for entry in entries if entry not in files]
    if ignored:
        warnings.warn(
            f"Left out of the folder {folder}, for they are not tables: {', '.join(ignored)}.",
            TableWarning,
            stacklevel=4,
        )
    frames = {}
    for file in files:
        try:
            frames[file.name] = read_table(file)
        except ElmeshError as error:
            raise ElmeshError(f'Task "{file.stem}": {error}') if file_task else error from None
    first, columns = files[0].name, list(frames[files[0].name].columns)
    for name, frame in frames.items():
        odd = sorted(set(columns) ^ set(frame.columns))
        if odd:
            has, lacks = (name, first) if odd[0] in frame.columns else (first, name)
            raise ElmeshError(
                f'Files of a folder must have the same columns, but {has} has a column "{odd[0]}" and {lacks} does not.'
            )
    return pd.concat(frames, names=["file"])[columns]


def _read_parquet(path: Path) -> pd.DataFrame:
    try:
        frame = pd.read_parquet(path, engine="pyarrow")
    except (pa.ArrowException, OSError) as error:
        raise ElmeshError(f"{path.name} is not a readable Parquet file; write it again.") from error
    # pandas keeps an index in the file: one with a name is a column to the user, one without is not.
    named = [name for name in frame.index.names if name is not None and name not in frame.columns]
    frame = frame.reset_index(level=named).reset_index(drop=True)
    frame.columns = pd.Index([str(name) for name in frame.columns])
    _check_header(path, list(frame.columns))
    frame.index = pd.RangeIndex(1, len(frame) + 1, name="row")
    return frame


def _read_csv(path: Path) -> pd.DataFrame:
    try:
        with path.open(encoding="utf-8-sig", newline="") as stream:
            delimiter = _delimiter(stream)
            stream.seek(0)
            return _parse_csv(path, _records(path, stream, delimiter))
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


def _records(path: Path, stream: IO[str], delimiter: str) -> Iterator[tuple[int, list[str]]]:
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


def _parse_csv(path: Path, records: Iterator[tuple[int, list[str]]]) -> pd.DataFrame:
    _, header = next(records, (0, []))
    if not header:
        raise ElmeshError(f"{path.name} is empty; expected a header and rows.")
    header = [name.strip() for name in header]
    _check_header(path, header)
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


def _check_header(path: Path, names: list[str]) -> None:
    if "" in names:
        raise ElmeshError(
            f"{path.name}: column {names.index('') + 1} has no name in the header; name it, or leave it out "
            "of the file (pandas writes its index so, unless told index=False)."
        )
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ElmeshError(f'{path.name}: the header has the column "{twice[0]}" more than once; rename one.')


def check_table_name(path: Path) -> None:
    """Refuse a file that no table is written to.

    Parameters
    ----------
    path
        The file.
    """
    if path.suffix.lower() not in _SUFFIXES:
        raise ElmeshError(f"Cannot write {path.name}; expected a name that ends in {', '.join(_SUFFIXES)}.")
    if path.is_dir():
        raise ElmeshError(f"Cannot write {path}; it is a folder.")


def write_table(frame: pd.DataFrame, path: str | Path, *, force: bool = False) -> None:
    """Write a table without its index, as CSV or Parquet by the suffix, whole or not at all.

    Parameters
    ----------
    frame
        The table.
    path
        A ``.csv``, ``.tsv`` or ``.parquet`` file; its folder is made if need be.
    force
        Whether an existing file may be replaced.
    """
    path = Path(path)
    check_table_name(path)
    if path.exists() and not force:
        raise ElmeshError(f"{path} exists; choose another name, or give --force to replace it.")
    suffix = path.suffix.lower()
    path.parent.mkdir(parents=True, exist_ok=True)
    with _replacing(path) as partial:
        if suffix == ".parquet":
            frame.to_parquet(partial, index=False)
        else:
            frame.to_csv(partial, index=False, sep="\t" if suffix == ".tsv" else ",")


@contextmanager
def _replacing(path: Path) -> Iterator[Path]:
    """Name a file to write to, which takes the place of ``path`` only once it is complete."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        yield partial
        partial.replace(path)
    except OSError as error:  # the user knows the file by its proper name
        raise OSError(error.errno, error.strerror, str(path)) from error
    finally:
        partial.unlink(missing_ok=True)
