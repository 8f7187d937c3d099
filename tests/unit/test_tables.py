"""Files of mixed columns become numbers by one rule, and bad ones are refused by name and line."""

from __future__ import annotations

import csv
import datetime
import gzip
import io
import json
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elmesh.errors import ElmeshError
from elmesh.tables import (
    FILE_TASK,
    CategoricalColumn,
    CSVFormat,
    NumericColumn,
    TableSchema,
    TableWarning,
    TargetColumn,
    find_tasks,
    fit_schema,
    infer_kind,
    read_data,
    read_table,
    to_labels,
    write_table,
)
from elmesh.tables.columns import ColumnType, parse_column
from elmesh.tables.csv_file import MISSING
from helpers.examples import examples


def write(path: Path, text: str) -> Path:
    path.write_bytes(text.encode())
    return path


def columns_of(path: Path) -> dict[str, list[object]]:
    frame = read_table(path)
    return {str(name): frame[name].astype(object).where(frame[name].notna(), None).tolist() for name in frame}


@contextmanager
def no_warning(unless: bool = False) -> Iterator[list[warnings.WarningMessage]]:
    """Nothing inside gives a warning, or with ``unless`` something gives one of a table."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield caught
    assert [warning.category for warning in caught[:1]] == [TableWarning] * unless


def clinic(rows: int = 60, seed: int = 0) -> pd.DataFrame:
    """A typed table with every sort of column."""
    rng = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "site": rng.choice(["001", "002", "b"], rows),
            "age": rng.integers(20, 90, rows),
            "dose": np.where(rng.random(rows) < 0.2, np.nan, rng.normal(3.0, 2.0, rows)),
            "smoker": rng.random(rows) < 0.3,
            "ward": rng.choice(np.array(["east", "west", None], dtype=object), rows),
            "outcome": rng.choice(["ill", "well"], rows),
            "days": rng.normal(10.0, 4.0, rows),
        }
    )


# Reading


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_the_delimiter_is_detected_from_the_header(tmp_path, delimiter):
    text = delimiter.join(["site", "x", "y"]) + "\n" + delimiter.join(["a", "1", "2"]) + "\n"
    path = write(tmp_path / "t.csv", text)
    if delimiter == ",":
        found = columns_of(path)
    else:
        with pytest.warns(TableWarning, match="Read as CSV with (semicolons|tabs) between columns; see --delimiter"):
            found = columns_of(path)
    assert found == {"site": ["a"], "x": ["1"], "y": ["2"]}
    path.rename(tmp_path / "t.tsv")
    with no_warning(unless=delimiter != "\t"):
        assert columns_of(tmp_path / "t.tsv") == found


def test_other_delimiters_inside_cells_and_names_do_not_mislead(tmp_path):
    text = '"a; b; c, in mg",y\n"1;2;3",4\n'
    assert columns_of(write(tmp_path / "t.csv", text)) == {"a; b; c, in mg": ["1;2;3"], "y": ["4"]}
    with pytest.warns(TableWarning, match="semicolons between columns, decimal commas;"):
        assert columns_of(write(tmp_path / "u.csv", "x;y\n1,5;2,5\n")) == {"x": ["1.5"], "y": ["2.5"]}
    with pytest.warns(TableWarning, match="semicolons"):
        assert columns_of(write(tmp_path / "v.csv", "dose, mg;y\n1;2\n")) == {"dose, mg": ["1"], "y": ["2"]}


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        (["1,5", "2", "-0,25", "1e3", None], ["1.5", "2", "-0.25", "1e3", None]),
        (["1.234,5", "1.234.567", ",5"], ["1234.5", "1234567", ".5"]),
        (["1,234", "5,6"], ["1.234", "5.6"]),
        (["1,5", "2,5", "unknown"], ["1.5", "2.5", "unknown"]),
        (["1,234", "5,678"], ["1,234", "5,678"]),  # perhaps thousands separators
        (["1,5", "2.5"], ["1,5", "2.5"]),
        (["1,5", "1,234,567"], ["1,5", "1,234,567"]),
        (["east", "west", "1,5"], ["east", "west", "1,5"]),
    ],
)
def test_decimal_commas_are_detected_where_they_can_be_nothing_else(tmp_path, cells, expected):
    path = write(tmp_path / "t.tsv", "site\tx\n" + "".join(f"a\t{cell or ''}\n" for cell in cells))
    with no_warning(unless=cells != expected):
        assert columns_of(path)["x"] == expected


def test_the_decimal_separator_can_be_given(tmp_path):
    path = write(tmp_path / "t.csv", 'site,x\na,"1,234"\nb,1.234\nc,1.5\n')
    assert read_table(path, CSVFormat(decimal="comma"))["x"].tolist() == ["1.234", "1234", "1.5"]
    path = write(tmp_path / "t.tsv", "site\tx\na\t1,5\n")
    assert read_table(path, CSVFormat(decimal="."))["x"].tolist() == ["1,5"]


def test_the_delimiter_can_be_given(tmp_path):
    path = write(tmp_path / "t.csv", "a;b,c|d\n1;2,3|4\n")
    for delimiter, expected in {";": ["a", "b,c|d"], "comma": ["a;b", "c|d"], "|": ["a;b,c", "d"]}.items():
        assert list(read_table(path, CSVFormat(delimiter=delimiter))) == expected


@pytest.mark.parametrize(
    ("encoding", "name"),
    [("cp1252", "Windows-1252"), ("latin-1", "Latin-1"), ("utf-16", "UTF-16"), ("utf-8-sig", None), ("utf-8", None)],
)
def test_the_encoding_is_detected_or_given(tmp_path, encoding, name):
    text = "größe,café\n1,naïve\n" if encoding != "latin-1" else "größe,café\n1,na\x81ve\n"
    path = tmp_path / "t.csv"
    path.write_bytes(text.encode(encoding))
    with no_warning(unless=name is not None) as caught:
        frame = read_table(path)
    assert [list(frame), frame.iloc[0].tolist()] == [line.split(",") for line in text.splitlines()]
    assert name is None or f"{name} encoding" in str(caught[0].message)
    pd.testing.assert_frame_equal(read_table(path, CSVFormat(encoding=encoding)), frame)


def test_a_character_of_another_encoding_far_down_the_file_is_read(tmp_path):
    path = tmp_path / "t.csv"
    path.write_bytes(b"site,x\n" + b"a,1\n" * 20_000 + "café,2\n".encode("cp1252"))
    with pytest.warns(TableWarning, match="Windows-1252 encoding"):
        assert read_table(path)["site"].iloc[-1] == "café"
    with pytest.raises(ElmeshError, match=r"t\.csv is not text in the encoding utf-8"):
        read_table(path, CSVFormat(encoding="utf-8"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"delimiter": "::"}, "--delimiter must be comma, semicolon, tab or another single character; got '::'"),
        ({"delimiter": ""}, "--delimiter must be"),
        ({"delimiter": "."}, "--delimiter must be"),
        ({"decimal": ";"}, "--decimal must be point or comma; got ';'"),
        ({"encoding": "klingon"}, "encoding 'klingon' is not known; expected utf-8"),
        ({"encoding": "base64"}, "encoding 'base64' is not known"),
    ],
)
def test_a_format_that_no_file_has_is_refused(options, message):
    with pytest.raises(ElmeshError, match=message):
        CSVFormat(**options)


def test_the_files_of_a_folder_may_be_written_differently(tmp_path):
    write(tmp_path / "a.csv", "dose,y\n1.5,2\n2.5,3\n")
    write(tmp_path / "b.csv", "dose;y\n1,5;2\n2,5;3\n")
    write(tmp_path / "c.csv", "dose;y\n3;2\n4;3\n")
    with pytest.warns(TableWarning) as caught:
        whole = read_data(tmp_path, file_task=True)
    assert len({str(warning.message) for warning in caught}) == 2
    assert whole["dose"].tolist() == ["1.5", "2.5", "1.5", "2.5", "3", "4"]
    with no_warning():
        sources = find_tasks(tmp_path)
    with pytest.warns(TableWarning, match="decimal commas"):
        assert sources["b"].read()["dose"].tolist() == ["1.5", "2.5"]
    (tmp_path / "a.csv").unlink()
    with no_warning():
        sources = find_tasks(tmp_path, csv_format=CSVFormat(";", "comma"))
        assert sources["c"].read()["dose"].tolist() == ["3", "4"]


def test_a_byte_order_mark_windows_line_ends_and_blank_lines_are_ignored(tmp_path):
    path = write(tmp_path / "t.csv", "\ufeffsite,x\r\na,1\r\n\r\nb,2\r\n  \r\n")
    assert columns_of(path) == {"site": ["a", "b"], "x": ["1", "2"]}
    assert read_table(path).index.tolist() == [2, 4]


def test_leading_zeros_and_every_other_text_survive_reading(tmp_path):
    path = write(tmp_path / "t.csv", "site,x\n007,1e3\n7,1.50\n")
    assert columns_of(path) == {"site": ["007", "7"], "x": ["1e3", "1.50"]}


# Without the carriage return, whose lines depend on what comes beside it; the ragged rows below have it.
cells = st.text(st.characters(codec="utf-8", exclude_characters="\x00\r"), max_size=8)


@pytest.mark.thorough
@examples(60)
@given(st.lists(st.tuples(cells, cells, cells), min_size=1, max_size=8), st.sampled_from(",;\t"))
def test_what_the_csv_module_writes_is_read_back(tmp_path_factory, rows, delimiter):
    stream = io.StringIO(newline="")
    writer = csv.writer(stream, delimiter=delimiter, quoting=csv.QUOTE_ALL)
    writer.writerows([("one", "two", "three"), *rows])
    path = write(tmp_path_factory.mktemp("csv") / "t.csv", stream.getvalue())
    with no_warning(unless=delimiter != ","):
        frame = read_table(path, CSVFormat(decimal="."))
    expected = [[None if cell.strip() in MISSING else cell.strip() for cell in row] for row in rows]
    assert frame.astype(object).where(frame.notna(), None).to_numpy().tolist() == expected
    # Where each row starts, counted by hand: the csv module ends every row with \r\n.
    starts = [2]
    for row in rows:
        starts.append(starts[-1] + 1 + "".join(row).count("\n"))
    assert frame.index.tolist() == starts[:-1]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a,b,c\n1,2,3\n1,2\n", 3),
        ("a,b,c\n1,2,3\n1,2,3,4\n", 3),
        ('a,b,c\n1,"two\nlines",3\n1,2\n', 4),
        ('a,"b\nb",c\n1,"x\n\ny",3\n1,2,3\n1,2\n', 7),
        ('a,b,c\r\n1,"x\r\n\r\ny",3\r\n1,2\r\n', 5),
        ("a,b,c\n\n\n1\n", 4),
        ("a,b,c\r1,2,3\r1,2\r", 3),
    ],
)
def test_a_ragged_row_is_an_error_that_names_file_and_line(tmp_path, text, line):
    with pytest.raises(ElmeshError, match=rf"^t\.csv, line {line}: \d values? where the header has 3"):
        read_table(write(tmp_path / "t.csv", text))


def test_a_ragged_row_far_down_a_long_file_is_named(tmp_path):
    rows = ["1,2"] * 45_000
    rows[40_321] = "1,2,3"
    with pytest.raises(ElmeshError, match=r"line 40323: 3 values where the header has 2"):
        read_table(write(tmp_path / "t.csv", "\n".join(["a,b", *rows])))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "t.csv is empty"),
        ("\n \n", "t.csv is empty"),
        ("a,b\n", "has a header but no rows"),
        ("a,b,a\n1,2,3\n", 'the column "a" more than once'),
        ("a,,b\n0,1,2\n", "column 2 has no name"),
        ('a,b\n1,2\n"3,4\n', r"line 3: cannot be read as CSV"),
    ],
)
def test_a_file_without_a_table_in_it_is_refused(tmp_path, text, message):
    with pytest.raises(ElmeshError, match=message):
        read_table(write(tmp_path / "t.csv", text))


def test_a_compressed_file_is_read_as_the_file_in_it(tmp_path):
    text = "site,x\n007,1\nb,2\n"
    plain = read_table(write(tmp_path / "t.csv", text))
    for name in ("t.csv.gz", "T.CSV.GZ", "t.tsv.gz"):
        (tmp_path / name).write_bytes(gzip.compress(text.replace(",", "\t" if "tsv" in name else ",").encode()))
        pd.testing.assert_frame_equal(read_table(tmp_path / name), plain)
    two_members = gzip.compress(text[:12].encode()) + gzip.compress(text[12:].encode())
    (tmp_path / "t.csv.gz").write_bytes(two_members)
    pd.testing.assert_frame_equal(read_table(tmp_path / "t.csv.gz"), plain)


@pytest.mark.parametrize(
    "damage", [lambda data: data[:-9], lambda data: b"site,x\na,1\n", lambda data: data[:12] + data[20:]]
)
def test_a_damaged_archive_is_refused(tmp_path, damage):
    path = tmp_path / "t.csv.gz"
    text = "".join(f"{i},{i * i}\n" for i in range(1000))
    path.write_bytes(damage(gzip.compress(f"site,x\n{text}".encode())))
    with pytest.raises(ElmeshError, match=r"t\.csv\.gz is damaged or not a gzip file; compress it again"):
        read_table(path)


@pytest.mark.parametrize("line", [b"a,1\n", b"0"], ids=["rows", "one line"])
def test_an_archive_that_unpacks_to_far_more_than_its_size_is_refused(tmp_path, monkeypatch, line):
    monkeypatch.setattr("elmesh.tables.gzip_file._ALWAYS_ALLOWED", 20_000)
    path = tmp_path / "t.csv.gz"
    path.write_bytes(gzip.compress(b"site,x\n" + line * (200_000 // len(line))))
    assert path.stat().st_size < 1_000
    with pytest.raises(ElmeshError, match="unpacks to more than 100 times its size"):
        read_table(path)
    monkeypatch.setattr("elmesh.tables.gzip_file._ALWAYS_ALLOWED", 1_000_000)
    if line == b"a,1\n":
        assert len(read_table(path)) == 50_000


def test_a_first_column_without_a_name_has_the_name_that_pandas_gives_it(tmp_path):
    assert columns_of(write(tmp_path / "t.csv", ",a\n0,1\n")) == {"Unnamed: 0": ["0"], "a": ["1"]}
    twice = write(tmp_path / "u.csv", '"",Unnamed: 0,a\n0,1,2\n')
    assert columns_of(twice) == {"Unnamed: 0.1": ["0"], "Unnamed: 0": ["1"], "a": ["2"]}


def test_bytes_that_are_not_utf8_in_a_file_that_is_are_named_by_line(tmp_path):
    path = tmp_path / "t.csv"
    path.write_bytes("site,x\ncafé,1\n".encode() + "café,2\n".encode("latin-1"))
    with pytest.raises(ElmeshError, match=r"t\.csv, line 3: not UTF-8 text, although other .* --encoding"):
        read_table(path)
    assert read_table(path, CSVFormat(encoding="latin-1"))["site"].tolist() == ["cafÃ©", "café"]


def test_a_file_that_is_not_text_is_refused(tmp_path):
    path = tmp_path / "t.csv"
    path.write_bytes(b"PK\x03\x04\x00\x00\xff\xfe,1\n")
    with pytest.raises(ElmeshError, match=r"t\.csv is not a text file; expected CSV"):
        read_table(path)


def test_an_unknown_suffix_a_folder_and_an_absent_file_are_refused(tmp_path):
    with pytest.raises(ElmeshError, match="neither CSV nor Parquet"):
        read_table(write(tmp_path / "t.xlsx", "x"))
    with pytest.raises(ElmeshError, match="There is no file"):
        read_table(tmp_path / "absent.csv")
    with pytest.raises(ElmeshError, match="no file or folder"):
        read_data(tmp_path / "absent")
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(ElmeshError, match="is a folder"):
        read_table(tmp_path / "folder.csv")


def test_parquet_keeps_types_and_named_indexes_and_numbers_its_rows(tmp_path):
    frame = clinic()
    frame.set_index("site").to_parquet(tmp_path / "t.parquet")
    back = read_table(tmp_path / "t.parquet")
    assert back["site"].tolist() == frame["site"].tolist()
    assert back["smoker"].dtype == bool
    assert back.index.tolist() == list(range(1, len(frame) + 1))
    frame.iloc[5:].to_parquet(tmp_path / "u.parquet")
    assert sorted(read_table(tmp_path / "u.parquet").columns) == sorted(frame.columns)


def test_a_parquet_file_cut_short_or_empty_is_refused(tmp_path):
    path = tmp_path / "t.parquet"
    clinic().to_parquet(path)
    path.write_bytes(path.read_bytes()[:-50])
    with pytest.raises(ElmeshError, match="not a readable Parquet file"):
        read_table(path)
    path.write_bytes(b"")
    with pytest.raises(ElmeshError, match=r"t\.parquet is empty"):
        read_table(path)
    clinic().iloc[:0].to_parquet(path)
    with pytest.raises(ElmeshError, match="no rows"):
        read_table(path)


# Folders


def test_each_file_of_a_folder_is_a_task(tmp_path):
    write(tmp_path / "007.csv", "x,y\n1,2\n")
    write(tmp_path / "b.csv", "y,x\n4,3\n6,5\n")
    frame = read_data(tmp_path, file_task=True)
    assert frame[FILE_TASK].tolist() == ["007", "b", "b"]
    assert frame["x"].tolist() == ["1", "3", "5"]
    assert FILE_TASK not in read_data(tmp_path)
    assert read_data(tmp_path / "b.csv", file_task=True)[FILE_TASK].tolist() == ["b", "b"]


def test_compressed_files_of_a_folder_are_tasks_of_the_same_names(tmp_path):
    for name in ("007.csv", "b.csv", "c.csv.gz"):
        write_table(pd.DataFrame({"x": [1, 2], "y": [3, 4]}), tmp_path / name)
    assert set(read_data(tmp_path, file_task=True)[FILE_TASK]) == {"007", "b", "c"}
    assert list(find_tasks(tmp_path)) == ["007", "b", "c"]
    assert set(find_tasks(tmp_path)["c"].read()[FILE_TASK]) == {"c"}
    write_table(pd.DataFrame({"x": [1, 2], "y": [3, 4]}), tmp_path / "b.csv.gz")
    with pytest.raises(ElmeshError, match=r"b\.csv and b\.csv\.gz in the folder .* differ only in their ending"):
        read_data(tmp_path)


def test_the_types_of_a_folder_are_decided_over_all_of_its_files(tmp_path):
    write(tmp_path / "a.csv", "code,y\n12,1\n13,2\n12,3\n")
    write(tmp_path / "b.csv", "code,y\n007,4\n12,5\n")
    schema = fit_schema(read_data(tmp_path, file_task=True), FILE_TASK, ["y"])
    assert schema.categorical == (CategoricalColumn("code", ("007", "12", "13"), False),)


def test_an_empty_file_in_a_folder_names_its_task(tmp_path):
    write(tmp_path / "a.csv", "x,y\n1,2\n")
    write(tmp_path / "b.csv", "")
    with pytest.raises(ElmeshError, match=r'^Task "b": b\.csv is empty'):
        read_data(tmp_path, file_task=True)


def test_errors_about_a_folder_name_file_and_line(tmp_path):
    write(tmp_path / "a.csv", "x,y\n1,2\n")
    write(tmp_path / "b.csv", "x,y\n1,2\ninf,2\n")
    with pytest.raises(ElmeshError, match=r'"x" has an infinite value at line 3 of b\.csv'):
        fit_schema(read_data(tmp_path, file_task=True), FILE_TASK, ["y"], "classification")


def test_a_folder_of_unlike_files_is_refused(tmp_path):
    with pytest.raises(ElmeshError, match="holds no file"):
        read_data(tmp_path)
    write(tmp_path / "a.csv", "x,y\n1,2\n")
    write(tmp_path / "b.csv", "x,z\n1,2\n")
    with pytest.raises(ElmeshError, match=r'a\.csv has a column "y" and b\.csv does not'):
        read_data(tmp_path)
    write(tmp_path / "b.csv", "x,y,z\n1,2,3\n")
    with pytest.raises(ElmeshError, match=r'b\.csv has a column "z" and a\.csv does not'):
        read_data(tmp_path)
    (tmp_path / "b.csv").rename(tmp_path / "a.tsv")
    with pytest.raises(ElmeshError, match="differ only in their ending"):
        read_data(tmp_path)
    (tmp_path / "a.tsv").unlink()
    clinic().to_parquet(tmp_path / "c.parquet")
    with pytest.raises(ElmeshError, match="both CSV and Parquet"):
        read_data(tmp_path)


def test_files_that_are_no_tables_are_left_out_with_a_warning(tmp_path):
    write(tmp_path / "a.csv", "x,y\n1,2\n")
    write(tmp_path / "notes.txt", "")
    write(tmp_path / ".hidden", "")
    with pytest.warns(TableWarning, match=r"not tables: notes\.txt\.$"):
        read_data(tmp_path)


# What a column holds


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (["1", "-2.5e3", ".5", "+4", None], ColumnType.NUMBER),
        ([None, None], ColumnType.NUMBER),
        (["0", "10", "0.5"], ColumnType.NUMBER),
        (["inf", "1"], ColumnType.NUMBER),
        (["007", "12"], ColumnType.TEXT),
        (["1_000", "2"], ColumnType.TEXT),
        (["0x10", "2"], ColumnType.TEXT),
        (["True", "false", None], ColumnType.BOOLEAN),
        ([True, None, False], ColumnType.BOOLEAN),
        (["2024-01-31", "2024-02-01"], ColumnType.DATE),
        (["2024-01-31T10:00:00Z", None], ColumnType.DATE),
        (["31/01/2024", "1/2/24"], ColumnType.DATE),
        (["31.01.2024"], ColumnType.DATE),
        (["10:30", "11:45:10"], ColumnType.DATE),
        (["2024-01-31", "later"], ColumnType.TEXT),
        ([datetime.date(2024, 1, 31), None], ColumnType.DATE),
        ([[1, 2], [3]], ColumnType.OTHER),
        ([b"a", b"b"], ColumnType.OTHER),
    ],
)
def test_the_type_of_a_column_follows_from_all_its_values(values, expected):
    assert parse_column(pd.Series(values, dtype=object)).column_type is expected


def test_the_type_of_a_typed_column_follows_from_its_dtype():
    assert parse_column(pd.Series([1, 2])).column_type is ColumnType.NUMBER
    assert parse_column(pd.Series([True, False])).column_type is ColumnType.BOOLEAN
    assert parse_column(pd.Series([1, 2], dtype="category")).column_type is ColumnType.TEXT
    assert parse_column(pd.Series(pd.to_datetime(["2024-01-31"]))).column_type is ColumnType.DATE
    assert parse_column(pd.Series(pd.to_timedelta(["1 day"]))).column_type is ColumnType.DATE
    assert parse_column(pd.Series([1, None], dtype="Int64")).column_type is ColumnType.NUMBER
    assert parse_column(pd.Series([1j])).column_type is ColumnType.OTHER


@given(st.lists(st.one_of(st.none(), st.floats(allow_nan=False)), min_size=1))
def test_numbers_written_as_text_are_read_back_to_the_bit(values):
    column = pd.Series([None if value is None else repr(value) for value in values], dtype=object)
    parsed = parse_column(column)
    assert not parsed.not_numeric.any()
    np.testing.assert_array_equal(parsed.numbers, np.array(values, dtype=float))


def test_a_label_is_the_same_from_numbers_and_from_text():
    expected = ["7", "8", None]
    for column in (
        pd.Series([7, 8, None], dtype="Int64"),
        pd.Series([7.0, 8.0, np.nan]),
        pd.Series(["7", " 8 ", ""]),
    ):
        assert to_labels(column).tolist() == expected


# Classification or regression


@pytest.mark.parametrize(
    ("target", "kind"),
    [
        (["yes", "no"] * 20, "classification"),
        ([True, False] * 20, "classification"),
        (["true", "false"] * 20, "classification"),
        (pd.Categorical([1, 2] * 20), "classification"),
        ([0, 1] * 20, "classification"),  # 2 of 40 is 5 %
        ([0, 1] * 19, "regression"),  # 2 of 38 is more
        ([str(i % 20) for i in range(400)], "classification"),
        ([i % 21 for i in range(4000)], "regression"),
        ([0.5, 1.0] * 40, "regression"),
        (["1.0", "2.0"] * 40, "classification"),
        (["01", "02"], "classification"),
    ],
)
def test_the_kind_follows_from_the_target(target, kind):
    assert infer_kind(pd.DataFrame({"y": target}), ["y"])[0] == kind


def test_several_targets_are_regression_and_nothing_else():
    frame = clinic()
    assert infer_kind(frame, ["dose", "days"])[0] == "regression"
    with pytest.raises(ElmeshError, match="one target column"):
        fit_schema(frame, "site", ["outcome", "ward"], "classification")


def test_regression_on_text_names_the_first_line(tmp_path):
    path = write(tmp_path / "t.csv", "site,x,y\na,1,2\na,2,many\n")
    with pytest.raises(ElmeshError, match=r'Regression needs numbers, but .* "y" has "many" at line 3'):
        fit_schema(read_table(path), "site", ["y"], "regression")


def test_a_kind_given_overrides_the_rule():
    frame = pd.DataFrame({"site": ["a"] * 40, "x": range(40), "y": ["0", "1"] * 20})
    assert fit_schema(frame, "site", ["y"]).kind == "classification"
    assert fit_schema(frame, "site", ["y"], "regression").kind == "regression"


def test_classes_are_whole_numbers_or_text_as_written():
    frame = pd.DataFrame({"site": ["a"] * 4, "x": range(4), "whole": ["1.0", "2", "1", "2"]})
    frame = frame.assign(code=["01", "2", "01", "2"], flag=["true", "false"] * 2, part=[0.5, 1.5] * 2)
    expected = {"whole": [1, 2, 1, 2], "code": ["01", "2", "01", "2"], "flag": ["true", "false"] * 2}
    for name, classes in (expected | {"part": ["0.5", "1.5"] * 2}).items():
        y = fit_schema(frame[["site", "x", name]], "site", [name], "classification").targets(frame)
        assert y.tolist() == classes


def test_a_target_with_as_many_classes_as_rows_is_refused():
    frame = pd.DataFrame({"site": ["a"] * 60, "x": range(60), "y": [f"p{i}" for i in range(60)]})
    with pytest.raises(ElmeshError, match="60 different values in 60 rows"):
        fit_schema(frame, "site", ["y"])


# The rule


def test_numbers_are_standardised_over_all_rows_and_missing_ones_take_the_mean():
    frame = clinic()
    schema = fit_schema(frame, "site", ["outcome"], drop=["days"])
    X, tasks = schema.encode(frame)
    assert tasks.tolist() == frame["site"].tolist()
    at = {name: X[:, i] for i, name in enumerate(schema.feature_names)}
    assert set(at) == {
        "age",
        "dose",
        "dose is missing",
        "smoker",
        "ward = east",
        "ward = west",
        "ward is missing",
    }
    for name in ("age", "smoker"):
        assert at[name].mean() == pytest.approx(0, abs=1e-12)
        assert at[name].std() == pytest.approx(1)
    missing = frame["dose"].isna().to_numpy()
    assert missing.any()
    np.testing.assert_array_equal(at["dose is missing"], missing)
    expected = (frame["dose"].fillna(frame["dose"].mean()) - frame["dose"].mean()) / frame["dose"].std(ddof=0)
    np.testing.assert_allclose(at["dose"], expected, atol=1e-12)


def test_categories_are_one_hot_with_missing_as_one_of_them():
    frame = clinic()
    schema = fit_schema(frame, "site", ["outcome"])
    X, _ = schema.encode(frame)
    one_hot = X[:, [i for i, name in enumerate(schema.feature_names) if name.startswith("ward")]]
    reference = pd.get_dummies(frame["ward"], dummy_na=True).to_numpy(dtype=float)
    np.testing.assert_array_equal(one_hot, reference)


def test_a_missing_number_where_training_had_none_takes_the_mean_without_a_further_column():
    frame = pd.DataFrame({"site": ["a"] * 3, "x": [1.0, 2.0, 6.0], "y": ["p", "q", "p"]})
    schema = fit_schema(frame, "site", ["y"])
    X, _ = schema.encode(pd.DataFrame({"site": ["a"], "x": [np.nan]}))
    assert schema.numeric[0].fill_value == schema.numeric[0].mean == 3.0
    assert X.tolist() == [[0.0]]


def test_a_category_never_seen_is_all_zeros_and_counted():
    frame = pd.DataFrame({"site": ["a"] * 4, "c": ["u", "v", "u", "v"], "y": ["p", "q", "p", "q"]})
    schema = fit_schema(frame, "site", ["y"])
    with pytest.warns(TableWarning, match=r'Column "c": values such as "w" .*\(2 of 3 rows\)'):
        X, _ = schema.encode(pd.DataFrame({"site": ["a"] * 3, "c": ["u", "w", None]}))
    assert X.tolist() == [[1, 0], [0, 0], [0, 0]]


def test_columns_of_one_value_are_left_out_with_a_warning_unless_some_are_missing():
    frame = pd.DataFrame({"site": ["a"] * 3, "x": [1.0, 2.0, 3.0], "n": [0.1] * 3, "c": ["u"] * 3, "e": [None] * 3})
    frame = frame.assign(y=["p", "q", "p"], flag=["1", None, "1"])
    with pytest.warns(TableWarning, match=r"same value: n, c, e\.$"):
        schema = fit_schema(frame, "site", ["y"])
    assert schema.feature_names == ["x", "flag is missing"]
    X, _ = schema.encode(frame.assign(flag=["5", "1", None]))
    assert X[:, 1].tolist() == [0, 0, 1]


@pytest.mark.parametrize("start", [0, 1])
def test_a_column_that_only_numbers_the_rows_is_left_out_unless_it_is_asked_for(start):
    frame = clinic().assign(patient=np.arange(start, start + 60))
    expected = fit_schema(clinic(), "site", ["outcome"])
    with pytest.warns(TableWarning, match=r'^Left out because they only number the rows: "patient"; --use keeps one'):
        assert fit_schema(frame, "site", ["outcome"]) == expected
    kept = fit_schema(frame, "site", ["outcome"], use=["patient"])
    assert set(kept.feature_names) - set(expected.feature_names) == {"patient"}


@pytest.mark.parametrize(
    "values",
    [
        np.arange(2, 62),
        np.arange(60)[::-1],
        np.r_[0:30, 0:30],
        np.r_[0:58, 58.5, 59],
        [*map(str, range(59)), None],
        np.r_[0, 1, 1, 3:60],
    ],
    ids=["starts at 2", "descends", "starts again", "is not whole", "has a gap", "repeats a value"],
)
@pytest.mark.filterwarnings("ignore:.* has a different whole number in every row")
def test_a_column_that_does_not_quite_number_the_rows_is_used(values):
    assert "x" in fit_schema(clinic().assign(site="a", x=values), "site", ["outcome"]).feature_names


def test_a_counter_within_each_task_and_the_only_column_are_used():
    frame = clinic().assign(day=lambda t: t.groupby("site").cumcount())
    assert "day" in fit_schema(frame, "site", ["outcome"]).feature_names
    only = clinic()[["site", "outcome"]].assign(t=range(60))
    assert fit_schema(only, "site", ["outcome"]).feature_names == ["t"]


@pytest.mark.parametrize("name", ["Unnamed: 0", "rownames", "row.names", "row_names"])
def test_names_of_rows_are_left_out_whatever_they_are(name):
    frame = clinic().assign(**{name: [f"p{i}" for i in range(60)]})
    with pytest.warns(TableWarning, match="number the rows"):
        assert fit_schema(frame, "site", ["outcome"]) == fit_schema(clinic(), "site", ["outcome"])


def test_a_column_to_use_must_be_free_to_be_learned_from():
    for options in ({"use": ["site"]}, {"use": ["outcome"]}, {"use": ["age"], "drop": ["age"]}):
        with pytest.raises(ElmeshError, match="is to be learned from, and named as"):
            fit_schema(clinic(), "site", ["outcome"], **options)
    with pytest.raises(ElmeshError, match='no column "agee"'):
        fit_schema(clinic(), "site", ["outcome"], use=["agee"])


@examples(30)
@given(st.integers(0, 1000), st.permutations(range(25)))
def test_encoding_is_row_by_row_whatever_the_order_of_rows_and_columns(seed, order):
    frame = clinic(seed=seed)
    schema = fit_schema(frame, "site", ["outcome"])
    X, tasks = schema.encode(frame)
    part = frame.iloc[order][sorted(frame.columns)]
    part_X, part_tasks = schema.encode(part)
    np.testing.assert_array_equal(part_X, X[order])
    assert part_tasks.tolist() == tasks[order].tolist()


def test_csv_and_parquet_of_one_table_encode_the_same(tmp_path):
    frame = clinic()
    write_table(frame, tmp_path / "t.csv")
    write_table(frame, tmp_path / "t.parquet")
    from_csv, from_parquet = read_table(tmp_path / "t.csv"), read_table(tmp_path / "t.parquet")
    schema = fit_schema(from_csv, "site", ["outcome"])
    assert schema == fit_schema(from_parquet, "site", ["outcome"])
    for a, b in zip(schema.encode(from_csv), schema.encode(from_parquet), strict=True):
        np.testing.assert_array_equal(a, b)
    assert set(schema.encode(from_csv)[1]) == {"001", "002", "b"}


def test_regression_targets_are_standardised_and_come_back_in_units():
    frame = clinic()
    frame["two"] = frame["days"] * 1000 + 5
    one = fit_schema(frame, "site", ["days"], drop=["two"])
    assert one.targets(frame).std() == pytest.approx(1)
    np.testing.assert_allclose(one.in_units(one.targets(frame)), frame["days"])
    both = fit_schema(frame, "site", ["days", "two"])
    assert both.targets(frame).shape == (len(frame), 2)
    np.testing.assert_allclose(both.in_units(both.targets(frame)), frame[["days", "two"]])


def test_new_rows_need_no_target_and_may_have_other_columns():
    frame = clinic()
    schema = fit_schema(frame, "site", ["outcome"])
    X, _ = schema.encode(frame)
    np.testing.assert_array_equal(schema.encode(frame.drop(columns="outcome").assign(extra="?"))[0], X)


# Columns that tell the target


def leaks(target: str, **columns: object) -> list[str]:
    """The warnings about a table with further columns."""
    frame = clinic(200).assign(**columns)
    unused = [name for name in ("days", "outcome") if name != target]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fit_schema(frame, "site", [target], drop=unused)
    return [str(warning.message) for warning in caught]


def test_the_target_in_another_unit_is_warned_of():
    days = clinic(200)["days"]
    (message,) = leaks("days", hours=lambda t: (24 * t["days"] + 3).round(1))
    assert 'Column "hours" alone determines the target: it is "days" in another unit, up to rounding' in message
    assert '--drop "hours"' in message
    assert len(leaks("days", hours=(-days).where(np.arange(200) % 3 > 0))) == 1
    noise = np.random.default_rng(1).normal(size=200)
    assert leaks("days", close=days + 0.1 * days.std() * noise) == []


def test_values_that_tell_the_class_are_warned_of():
    (message,) = leaks("outcome", code=lambda t: t["outcome"].map({"ill": "I20", "well": "Z00"}))
    assert (
        'Column "code" alone determines the target: each value of the column has one class of "outcome" only' in message
    )
    rng = np.random.default_rng(2)
    assert len(leaks("outcome", score=lambda t: 10 * (t["outcome"] == "ill") + rng.integers(0, 5, 200))) == 1
    assert (
        leaks(
            "outcome", code=lambda t: t["outcome"].where(t.index != 7, "ill" if t["outcome"][7] == "well" else "well")
        )
        == []
    )
    assert leaks("outcome", x=rng.normal(size=200)) == []
    # Here all rows but eight are well, and the values of these eight are theirs alone: perhaps by chance.
    rare = np.where(np.arange(200) < 8, "ill", "well")
    assert leaks("outcome", outcome=rare, ward_of_the_eight=np.where(rare == "ill", "north", "south")) == []


def test_values_that_explain_the_quantity_are_warned_of():
    (message,) = leaks("days", level=lambda t: t["days"].round().map(lambda x: f"level {x:.0f}"))
    assert "its values explain more than 99 % of the variance" in message
    assert leaks("days", level=lambda t: (t["days"] > 10).map({True: "long", False: "short"})) == []


def test_a_number_for_gaps_is_noted():
    rng = np.random.default_rng(0)
    sensor = rng.normal(60, 10, size=200).round(1)
    for gap, n, noted in ((-999.0, 3, True), (9999.0, 10, True), (-999.0, 2, False), (20.0, 10, False)):
        found = leaks("outcome", sensor=np.where(np.arange(200) < n, gap, sensor))
        words = f'Column "sensor" is {gap:g} in {n} rows, far from its other values'
        assert any(words in text for text in found) is noted, (gap, n)
    both = np.where(np.arange(200) < 5, -999.0, np.where(np.arange(200) < 9, -998.0, sensor))
    (message,) = leaks("outcome", sensor=both)
    assert 'Column "sensor" is -999 in 5 rows and -998 in 4 rows, far from its other values' in message
    # A count that is nearly always small, and a yes or no, have no such numbers.
    assert leaks("outcome", visits=rng.poisson(1.0, size=200)) == []
    assert leaks("outcome", flag=np.where(np.arange(200) < 5, 1, 0)) == []


def test_numbers_that_identify_rows_are_noted():
    ids = np.random.default_rng(3).permutation(200) + 1000
    (message,) = leaks("outcome", patient=ids)
    assert 'Column "patient" has a different whole number in every row of each site; if it is an identifier' in message
    assert leaks("outcome", patient=np.r_[ids[:199], ids[0]] // 2) == []
    assert leaks("outcome", patient=ids + 0.5) == []


def test_a_few_rows_are_too_few_to_warn():
    frame = clinic(18).assign(twice=lambda t: 2 * t["days"])
    with no_warning():
        fit_schema(frame, "site", ["days"])


# Bad tables


def bad(**changes: object) -> pd.DataFrame:
    frame = pd.DataFrame({"site": ["a", "b"] * 15, "x": np.arange(30.0), "y": ["p", "q", "r"] * 10})
    return frame.assign(**changes)


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (bad(site=[None, "b"] * 15), r'15 rows have no task in column "site", the first at row 1;'),
        (bad(y=["p", "q", None] * 10), r'10 rows have no target in column "y", the first at row 3;'),
        (bad(y=[*"pq" * 14, "p", None]), r'1 row has no target in column "y", at row 30;'),
        (bad(x=[*range(29), np.inf]), r'Column "x" has an infinite value at row 30'),
        (bad(x=[*["1", "2"] * 14, "3", "1e999"]), r'Column "x" has an infinite value at row 30'),
        (
            bad(when=["03/04/2024", "03/05/2024"] * 15),
            r'"when" has "03/04/2024" at row 1, of which day.* --drop "when"',
        ),
        (bad(when=["10:30", "11:30"] * 15), r'"when" has "10:30" at row 1, .* a time without a date'),
        (bad(y=pd.to_datetime(["2024-01-31"] * 30)), r'The target column "y" holds dates'),
        (bad(c=["1,5", "2,5"] * 15), r'Column "c" has numbers with commas, such as "1,5"'),
        (bad(y=["1,000", "2"] * 15), r'Column "y" has numbers with commas, such as "1,000"'),
        (
            bad(id=[f"p{i}" for i in range(30)]),
            r'"id" is text with 30 different values in 30 rows.* --drop "id"',
        ),
        (bad(id=[*map(str, range(29)), "?"]), r'the first that is not a number is "\?" at row 30'),
        (bad(id=[f"{i:03}" for i in range(30)]), r"leading zeros are taken as text"),
        (bad(c=[[1], [2]] * 15), r'Column "c" holds values that are neither numbers nor text'),
        (bad()[["site", "y"]], r"No column is left to learn from"),
        (bad(x=[1e308, -1e308] * 15), r'The values of column "x" are too large'),
    ],
)
def test_a_table_that_cannot_be_used_is_refused_by_column_and_row(frame, message):
    with pytest.raises(ElmeshError, match=message):
        fit_schema(frame, "site", ["y"])


def test_of_more_than_fifty_categories_the_most_frequent_are_kept():
    def table(n: int) -> pd.DataFrame:
        # c0 is the most frequent one, c1 the next, and so on.
        values = [f"c{k}" for k in range(n) for _ in range(2 + (n - k) // 10)]
        return pd.DataFrame({"site": "a", "c": values, "y": np.where(np.arange(len(values)) % 2, "p", "q")})

    assert len(fit_schema(table(50), "site", ["y"]).feature_names) == 50
    with pytest.warns(TableWarning, match='Column "c" has 60 different values; the 50 most frequent are categories'):
        schema = fit_schema(table(60), "site", ["y"])
    (column,) = schema.categorical
    assert set(column.categories) == {f"c{k}" for k in range(50)}
    # The others, and what was never seen, are none of them, and nothing is noted about that.
    again = TableSchema.from_json(json.loads(json.dumps(schema.to_json())))
    assert again == schema
    encoded = np.stack(again.categorical[0].encode(pd.DataFrame({"c": ["c3", "c55", "new"]})), axis=1)
    assert encoded.sum(axis=1).tolist() == [1, 0, 0]


def test_as_many_categories_as_half_of_the_rows_are_an_identifier():
    frame = pd.DataFrame({"site": "a", "c": [f"c{i % 101}" for i in range(200)], "y": ["p"] * 100 + ["q"] * 100})
    with pytest.raises(ElmeshError, match=r'101 different values in 200 rows.* --drop "c"'):
        fit_schema(frame, "site", ["y"])
    numbers = [f"{0.37 * i:.2f}" for i in range(190)] + ["k.A."] * 10
    with pytest.raises(ElmeshError, match="or empty the cells that are not numbers"):
        fit_schema(frame.assign(c=numbers), "site", ["y"])


@pytest.mark.parametrize(
    ("task", "targets", "drop", "message"),
    [
        ("sitee", ["y"], [], r'no column "sitee" in the table; did you mean "site"\?'),
        ("site", ["Y"], [], r'no column "Y" in the table; did you mean "y"\?'),
        ("site", ["quantity"], [], r'no column "quantity" in the table; the columns are site, x, y\.'),
        ("site", ["y"], ["xx"], r'no column "xx"'),
        ("site", [], [], r"A target column is needed"),
        ("site", ["y", "y"], [], r"named twice"),
        ("site", ["site"], [], r"both task and target"),
        ("site", ["y"], ["y"], r"to be dropped as well"),
    ],
)
def test_a_wrong_name_is_refused_with_the_close_matches(task, targets, drop, message):
    with pytest.raises(ElmeshError, match=message):
        fit_schema(bad(), task, targets, drop=drop)


def test_a_target_of_one_value_is_nothing_to_regress_on():
    with pytest.raises(ElmeshError, match="the value 2 in all rows"):
        fit_schema(bad(y=2.0), "site", ["y"], "regression")


def test_new_rows_are_checked_as_training_rows_are(tmp_path):
    schema = fit_schema(bad(y=np.arange(30.0) ** 2 * 0.5), "site", ["y"])
    path = write(tmp_path / "t.csv", 'site,x,y\na,"1\n",2\nb,many,2.5\n')
    with pytest.raises(ElmeshError, match=r'Column "x" must hold numbers, but line 4 has "many"'):
        schema.encode(read_table(path))
    with pytest.raises(ElmeshError, match=r'Column "x" must hold numbers, but it holds dates'):
        schema.encode(pd.DataFrame({"site": ["a"], "x": ["2024-01-31"]}))
    with pytest.raises(ElmeshError, match=r'no column "x" in the table; did you mean "X"'):
        schema.encode(pd.DataFrame({"site": ["a"], "X": [1]}))
    with pytest.raises(ElmeshError, match=r"1 row has no task"):
        schema.encode(pd.DataFrame({"site": [None], "x": [1]}))
    with pytest.raises(ElmeshError, match=r"1 row has no target"):
        schema.targets(pd.DataFrame({"y": [1.5, None]}))


def test_classes_of_whole_numbers_stay_so():
    schema = fit_schema(bad(y=[0, 1] * 15), "site", ["y"], "classification")
    assert schema.targets(pd.DataFrame({"y": ["1.0", "0"]})).tolist() == [1, 0]
    with pytest.raises(ElmeshError, match=r"whole numbers, but row 2 has 0\.5"):
        schema.targets(pd.DataFrame({"y": [1, 0.5]}))


# As JSON


PLAIN = TableSchema("site", "regression", (TargetColumn("y"),), False, (NumericColumn("x", 0.0, 1.0, 0.0, False),), ())

finite = st.floats(allow_nan=False, allow_infinity=False)
names = st.text(min_size=1, max_size=5)


@st.composite
def schemas(draw: st.DrawFn) -> TableSchema:
    task, target, *rest = draw(st.lists(names, min_size=3, max_size=8, unique=True))
    numeric, categorical = [], []
    for name in rest:
        if draw(st.booleans()):
            std = draw(st.floats(min_value=1e-300, allow_infinity=False))
            numeric.append(NumericColumn(name, draw(finite), std, draw(finite), draw(st.booleans())))
        else:
            known = tuple(draw(st.lists(names, min_size=1, max_size=4, unique=True)))
            categorical.append(CategoricalColumn(name, known, draw(st.booleans())))
    targets = (TargetColumn(target, draw(finite), draw(st.floats(min_value=1e-300, allow_infinity=False))),)
    kind = draw(st.sampled_from(["classification", "regression"]))
    return TableSchema(task, kind, targets, draw(st.booleans()), tuple(numeric), tuple(categorical))


@given(schemas())
def test_a_schema_survives_json_to_the_bit(schema):
    assert TableSchema.from_json(json.loads(json.dumps(schema.to_json()))) == schema


def test_a_schema_that_version_0_4_saved_fills_with_its_median():
    saved = {
        "version": 1,
        "task": "site",
        "kind": "regression",
        "target_columns": [{"name": "y", "mean": 0.5, "std": 2.0}],
        "whole_labels": False,
        "numeric": [{"name": "x", "mean": 3.0, "std": 2.1602468994692865, "median": 2.0, "indicator": True}],
        "categorical": [{"name": "c", "categories": ["u", "v"], "missing": False}],
    }
    schema = TableSchema.from_json(saved)
    X, tasks = schema.encode(pd.DataFrame({"site": ["a", "b"], "x": [6.0, None], "c": ["v", "u"]}))
    assert X.tolist() == [[3.0 / 2.1602468994692865, 0, 0, 1], [-1.0 / 2.1602468994692865, 1, 1, 0]]
    assert tasks.tolist() == ["a", "b"]
    assert schema.to_json() == saved


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)


def places(value: object, path: tuple[object, ...] = ()) -> list[tuple[object, ...]]:
    """Every place in a JSON value."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, item in inner for place in places(item, (*path, key)))]


@pytest.mark.thorough
@examples(300)
@given(schemas(), st.data())
def test_hostile_json_gives_a_sound_schema_or_an_error(schema, data):
    hostile = schema.to_json()
    path = data.draw(st.sampled_from(places(hostile)))
    value = data.draw(json_values)
    if not path:
        hostile = value
    else:
        holder = hostile
        for key in path[:-1]:
            holder = holder[key]
        holder[path[-1]] = value
    try:
        read = TableSchema.from_json(hostile)
    except ElmeshError:
        return
    assert TableSchema.from_json(json.loads(json.dumps(read.to_json(), allow_nan=False))) == read


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 99}, "newer version"),
        ({"version": True}, "table.version is not a finite number"),
        ({"task": ""}, "table.task is not a text"),
        ({"task": "x"}, "has a name twice"),
        ({"kind": "clustering"}, "neither classification nor regression"),
        ({"numeric": []}, "table.columns are none"),
        ({"target_columns": []}, "table.target_columns has the wrong length"),
        ({"target_columns": [{"name": "y", "mean": 0, "std": 0}]}, r"target_columns\[0\]\.std is not positive"),
        ({"numeric": [{"name": "x"}]}, r"table\.numeric\[0\]\.mean is missing"),
        ({"numeric": [[]]}, r"table\.numeric\[0\] is not an object"),
        ({"code": "x"}, "unknown values"),
        ({"whole_labels": 1}, "neither true nor false"),
    ],
)
def test_the_error_about_damaged_json_names_the_value(change, message):
    with pytest.raises(ElmeshError, match=message):
        TableSchema.from_json(PLAIN.to_json() | change)


@pytest.mark.parametrize("number", [float("nan"), float("inf"), 10**400, "1", None, True])
def test_numbers_in_json_must_be_finite_numbers(number):
    data = replace(PLAIN, numeric=(NumericColumn("x", number, 1.0, 0.0, False),)).to_json()
    with pytest.raises(ElmeshError, match=r"numeric\[0\]\.mean is not a finite number"):
        TableSchema.from_json(data)


# Writing


@pytest.mark.parametrize("name", ["out.csv", "out.tsv", "out.parquet", "out.csv.gz", "out.tsv.gz"])
def test_a_table_is_written_whole_and_replaces_another_only_with_force(tmp_path, name):
    path = tmp_path / "new" / name
    frame = pd.DataFrame({"site": ["007", "b"], "prediction": [0.1 + 0.2, 1e-300]})
    write_table(frame, path)
    back = read_table(path)
    assert back["site"].tolist() == ["007", "b"]
    assert parse_column(back["prediction"]).numbers.tolist() == frame["prediction"].tolist()
    before = path.read_bytes()
    with pytest.raises(ElmeshError, match="exists"):
        write_table(frame.iloc[:1], path)
    assert path.read_bytes() == before
    write_table(frame.iloc[:1], path, force=True)
    assert len(read_table(path)) == 1
    assert [entry.name for entry in path.parent.iterdir()] == [name]


def test_a_failed_write_leaves_the_old_file_and_no_other(tmp_path):
    path = tmp_path / "out.parquet"
    write_table(clinic(), path)
    before = path.read_bytes()
    with pytest.raises(Exception, match="Conversion failed"):
        write_table(pd.DataFrame({"x": [[1], "a"]}), path, force=True)
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["out.parquet"]
    with pytest.raises(ElmeshError, match="Cannot write out"):
        write_table(clinic(), tmp_path / "out.xlsx")


def test_reading_and_encoding_a_clean_table_warns_of_nothing(tmp_path):
    write_table(clinic(), tmp_path / "t.csv")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        frame = read_table(tmp_path / "t.csv")
        fit_schema(frame, "site", ["outcome"]).encode(frame)
