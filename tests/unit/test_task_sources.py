"""The tasks of a data set are found without reading it, and each is read without the others."""

from __future__ import annotations

import decimal
import warnings
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elmesh.errors import ElmeshError
from elmesh.tables import FILE_TASK, TableWarning, find_tasks, fit_schema, read_data
from elmesh.tables.access import task_labels
from helpers.examples import examples


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def clinic(rows: int = 60, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "site": rng.choice(["north", "south", "007"], rows),
            "dose": rng.normal(3.0, 2.0, rows),
            "ward": rng.choice(np.array(["east", "west", None], dtype=object), rows),
            "y": rng.choice(["ill", "well"], rows),
        }
    )


def check_same_as_in_one_process(path: Path, task: str | None) -> None:
    """Every task's rows, columns and index are those of the table read whole."""
    whole = read_data(path, file_task=task is None)
    labels = task_labels(whole, task or FILE_TASK)
    sources = find_tasks(path, task)
    assert list(sources) == sorted(set(labels.tolist()))
    for label, source in sources.items():
        frame, expected = source.read(), whole[labels == label]
        assert frame.index.equals(expected.index)
        assert frame.index.names == expected.index.names
        assert list(frame.columns) == list(expected.columns)
        for name in frame.columns:
            values, others = (column[name].astype(object) for column in (frame, expected))
            assert values.where(values.notna(), None).tolist() == others.where(others.notna(), None).tolist()


# A file for each task


@pytest.mark.parametrize("suffix", ["csv", "tsv", "parquet"])
def test_a_folder_with_a_file_for_each_task_is_found_by_the_files_names(tmp_path, suffix):
    for site, rows in clinic().groupby("site"):
        table = rows.drop(columns="site")
        if suffix == "parquet":
            table.to_parquet(tmp_path / f"{site}.parquet")
        else:
            table.to_csv(tmp_path / f"{site}.{suffix}", index=False, sep="\t" if suffix == "tsv" else ",")
    assert list(find_tasks(tmp_path)) == ["007", "north", "south"]
    assert set(find_tasks(tmp_path)["007"].read()[FILE_TASK]) == {"007"}
    check_same_as_in_one_process(tmp_path, None)


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_a_task_column_gives_the_labels(tmp_path, suffix):
    for i, (_, rows) in enumerate(clinic().groupby("site")):
        if suffix == "parquet":
            rows.to_parquet(tmp_path / f"{i}.parquet")
        else:
            rows.to_csv(tmp_path / f"{i}.csv", index=False)
    assert list(find_tasks(tmp_path, "site")) == ["007", "north", "south"]
    check_same_as_in_one_process(tmp_path, "site")


def test_columns_are_in_the_order_of_the_first_file(tmp_path):
    write(tmp_path / "a.csv", "x,y\n1,2\n")
    write(tmp_path / "b.csv", "y,x\n4,3\n")
    frame = find_tasks(tmp_path)["b"].read()
    assert frame.to_dict("list") == {"x": ["3"], "y": ["4"], FILE_TASK: ["b"]}
    assert frame.index.tolist() == [("b.csv", 2)]


def test_no_more_of_a_csv_file_than_its_first_row_is_read_to_find_its_task(tmp_path):
    start = "site,x\nnorth,1\n" + "north,2\n" * 20_000
    (tmp_path / "a.csv").write_bytes(start.encode() + "north,é\n".encode() + b"north,\xff\n")
    write(tmp_path / "b.csv", "site,x\nsouth,1\nsouth\n")
    sources = find_tasks(tmp_path, "site")
    assert list(sources) == ["north", "south"]
    with pytest.raises(ElmeshError, match=r"a\.csv, line 20004: not UTF-8"):
        sources["north"].read()
    with pytest.raises(ElmeshError, match=r"b\.csv, line 3: 1 value where the header has 2"):
        sources["south"].read()


def test_the_error_about_a_csv_file_of_two_tasks_names_file_line_and_both_labels(tmp_path):
    write(tmp_path / "a.csv", 'site,x\nnorth,"1\n"\nnorth,2\nsouth,3\n')
    source = find_tasks(tmp_path, "site")["north"]
    with pytest.raises(ElmeshError, match=r'^a\.csv, line 5: the task is "south", but the file begins with "north"'):
        source.read()


def test_the_error_about_a_row_without_a_task_names_file_and_line(tmp_path):
    path = write(tmp_path / "a.csv", "site,x\n,1\nnorth,2\n")
    message = r'^1 row has no task in column "site", at {} of {}'
    with pytest.raises(ElmeshError, match=message.format("line 2", r"a\.csv")):
        find_tasks(tmp_path, "site")
    write(path, "site,x\nnorth,1\nNA,2\n")
    with pytest.raises(ElmeshError, match=message.format("line 3", r"a\.csv")):
        find_tasks(tmp_path, "site")["north"].read()
    path.unlink()
    table = pa.table({"site": ["a", "b", "b", None], "x": [1, 2, 3, 4]})
    for size in (1, 2, 4):  # in a group of its own, beside one other task, and among several
        pq.write_table(table, tmp_path / "p.parquet", row_group_size=size)
        with pytest.raises(ElmeshError, match=message.format("row 4", r"p\.parquet")):
            find_tasks(tmp_path, "site")


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_two_files_for_one_task_are_both_named(tmp_path, suffix):
    frame = pd.DataFrame({"site": ["7"], "x": [1]})
    for name, site in (("a", "7"), ("b", "8"), ("c", " 7")):
        if suffix == "csv":
            frame.assign(site=site).to_csv(tmp_path / f"{name}.csv", index=False)
        else:
            frame.assign(site=site).to_parquet(tmp_path / f"{name}.parquet")
    with pytest.raises(ElmeshError, match=rf'^Task "7" has two files, a\.{suffix} and c\.{suffix}; keep one file'):
        find_tasks(tmp_path, "site")


def test_two_files_of_one_name_are_both_named(tmp_path):
    write(tmp_path / "a.csv", "x,y\n1,2\n")
    write(tmp_path / "a.tsv", "x\ty\n1\t2\n")
    for read in (find_tasks, read_data):
        with pytest.raises(ElmeshError, match=r"^a\.csv and a\.tsv in the folder .* differ only in their ending"):
            read(tmp_path)
    (tmp_path / "a.tsv").rename(tmp_path / "a .csv")
    with pytest.raises(ElmeshError, match=r'Task "a" has two files'):
        find_tasks(tmp_path)


# Folders that are no data set


def test_what_cannot_be_a_data_set_is_refused_with_what_to_do(tmp_path):
    with pytest.raises(ElmeshError, match=r"There is no file or folder .*absent"):
        find_tasks(tmp_path / "absent")
    with pytest.raises(ElmeshError, match=r"holds no file that ends in \.csv, \.tsv, \.parquet"):
        find_tasks(tmp_path)
    write(tmp_path / "a.csv", "x,y\n1,2\n")
    with pytest.raises(ElmeshError, match='no column "site" in the table; the columns are x, y'):
        find_tasks(tmp_path, "site")
    write(tmp_path / "b.csv", "x,z\n1,2\n")
    with pytest.raises(ElmeshError, match=r'a\.csv has a column "y" and b\.csv does not'):
        find_tasks(tmp_path)
    (tmp_path / "b.csv").unlink()
    clinic().to_parquet(tmp_path / "c.parquet")
    with pytest.raises(ElmeshError, match="both CSV and Parquet files; keep one kind"):
        find_tasks(tmp_path)


def test_a_file_that_cannot_be_read_names_its_task(tmp_path):
    clinic().to_parquet(tmp_path / "a.parquet")
    (tmp_path / "b.parquet").write_bytes(b"PAR1 and so on")
    with pytest.raises(ElmeshError, match=r'^Task "b": b\.parquet is not a readable Parquet file; write it again'):
        find_tasks(tmp_path)
    with pytest.raises(ElmeshError, match=r"^b\.parquet is not a readable Parquet file"):
        find_tasks(tmp_path, "site")
    (tmp_path / "b.parquet").write_bytes(b"")
    with pytest.raises(ElmeshError, match=r'^Task "b": b\.parquet is empty'):
        find_tasks(tmp_path)
    clinic().iloc[:0].to_parquet(tmp_path / "b.parquet")
    with pytest.raises(ElmeshError, match=r"^b\.parquet has a header but no rows"):
        find_tasks(tmp_path, "site")
    with pytest.raises(ElmeshError, match=r'^Task "b": b\.parquet has a header but no rows'):
        find_tasks(tmp_path)["b"].read()


def test_one_csv_file_is_refused_with_what_to_do(tmp_path):
    path = write(tmp_path / "t.csv", "site,x\na,1\nb,2\n")
    with pytest.raises(ElmeshError, match=r"t\.csv is one CSV file, .* in parts; give a folder .* or write .* Parquet"):
        find_tasks(path, "site")


# Parquet with the rows of many tasks


def chunks(path: Path, group: int, columns: list[str] | None = None) -> list[slice]:
    """Where in a file the columns of a row group are."""
    row_group, found = pq.ParquetFile(path).metadata.row_group(group), []
    for i in range(row_group.num_columns):
        chunk = row_group.column(i)
        start = chunk.data_page_offset if chunk.dictionary_page_offset is None else chunk.dictionary_page_offset
        if columns is None or chunk.path_in_schema in columns:
            found.append(slice(start, start + chunk.total_compressed_size))
    return found


def spoil(path: Path, places: list[slice]) -> None:
    data = bytearray(path.read_bytes())
    for place in places:
        data[place] = b"\xff" * (place.stop - place.start)
    path.write_bytes(bytes(data))


def test_only_the_row_groups_that_hold_a_task_are_read(tmp_path):
    path = tmp_path / "t.parquet"
    frame = clinic(90).assign(site=["007"] * 15 + ["north"] * 24 + ["south"] * 26 + ["west"] * 25)
    pq.write_table(pa.Table.from_pandas(frame), path, row_group_size=10)
    expected = find_tasks(path, "site")["north"].read()
    groups = [set(frame["site"][start : start + 10]) for start in range(0, 90, 10)]
    others = [i for i, held in enumerate(groups) if len(held) == 1 and held != {"north"}]
    # Where a row group holds several tasks its task column is needed to find them, but not the rest.
    mixed = [i for i, held in enumerate(groups) if len(held) > 1 and "north" not in held]
    assert (len(others), len(mixed)) == (5, 1)
    spoil(path, [place for i in others for place in chunks(path, i)])
    spoil(path, [place for i in mixed for place in chunks(path, i, ["dose", "ward", "y"])])
    sources = find_tasks(path, "site")
    assert list(sources) == ["007", "north", "south", "west"]
    pd.testing.assert_frame_equal(sources["north"].read(), expected)
    assert expected.index.tolist() == list(range(16, 40))
    with pytest.raises(ElmeshError, match=r"t\.parquet is not a readable Parquet file"):
        sources["south"].read()


def test_where_tasks_are_mixed_only_the_task_column_is_read_to_find_them(tmp_path):
    path = tmp_path / "t.parquet"
    pq.write_table(pa.Table.from_pandas(clinic()), path, row_group_size=20, write_statistics=False)
    spoil(path, [place for i in range(3) for place in chunks(path, i, ["dose", "ward", "y"])])
    assert list(find_tasks(path, "site")) == ["007", "north", "south"]


tables = st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 9)), min_size=1, max_size=30)


@examples(20)
@given(tables, st.integers(1, 8), st.booleans(), st.integers(1, 3))
def test_rows_in_any_order_and_row_groups_of_any_size_are_found(tmp_path_factory, rows, size, statistics, files):
    folder = tmp_path_factory.mktemp("data")
    cuts = np.linspace(0, len(rows), files + 1).astype(int)
    for i, (start, end) in enumerate(pairwise(cuts)):
        if end > start:
            table = pa.table({"site": [row[0] for row in rows[start:end]], "x": [row[1] for row in rows[start:end]]})
            pq.write_table(table, folder / f"{i}.parquet", row_group_size=size, write_statistics=statistics)
    held = [set(read_data(file)["site"]) for file in sorted(folder.iterdir())]
    if all(len(tasks) == 1 for tasks in held) and len(set.union(*held)) < len(held):
        with pytest.raises(ElmeshError, match="has two files"):
            find_tasks(folder, "site")
    else:
        check_same_as_in_one_process(folder, "site")
    if files == 1:
        check_same_as_in_one_process(folder / "0.parquet", "site")


@pytest.mark.parametrize(
    "labels",
    [
        pa.array([7, 8, 7, 8]),
        pa.array([7.0, 8.0, 7.0, 8.0]),
        pa.array(["7", " 8 ", "7 ", "8"]),
        pa.array(["7", "8", "7", "8"]).dictionary_encode(),
        pa.array([decimal.Decimal("7.00"), decimal.Decimal("8.00")] * 2),
        pa.array([7, 8, 7, 8], pa.uint8()),
        pa.array(["7", "8", "7", "8"], pa.large_string()),
    ],
    ids=lambda labels: str(labels.type),
)
@pytest.mark.parametrize("size", [1, 4])
def test_labels_are_one_text_however_they_are_stored(tmp_path, labels, size):
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table({"site": labels, "x": [1, 2, 3, 4]}), path, row_group_size=size)
    sources = find_tasks(path, "site")
    assert list(sources) == ["7", "8"]
    assert sources["8"].read()["x"].tolist() == [2, 4]
    check_same_as_in_one_process(path, "site")


def test_missing_floats_that_statistics_leave_out_are_found(tmp_path):
    path = tmp_path / "t.parquet"
    table = pa.table({"site": pa.array([7.0, float("nan")]), "x": [1, 2]})
    pq.write_table(table, path)
    assert pq.ParquetFile(path).metadata.row_group(0).column(0).statistics.null_count == 0
    with pytest.raises(ElmeshError, match=r'1 row has no task in column "site", at row 2 of t\.parquet'):
        find_tasks(path, "site")


def test_labels_that_are_lists_are_refused(tmp_path):
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table({"site": [[1], [2]], "x": [1, 2]}), path)
    with pytest.raises(ElmeshError, match='The task column "site" holds values that are neither numbers nor text'):
        find_tasks(path, "site")


def test_a_named_index_of_pandas_is_a_column_in_parts_too(tmp_path):
    path = tmp_path / "t.parquet"
    clinic().set_index("site").to_parquet(path, row_group_size=7)
    check_same_as_in_one_process(path, "site")
    clinic().rename_axis("row").to_parquet(path, row_group_size=7)  # it only counts the rows
    assert "row" not in read_data(path)
    check_same_as_in_one_process(path, "site")


# Partitioned in Hive style


def test_a_data_set_partitioned_by_task_is_read_by_its_folders(tmp_path):
    frame = clinic().assign(year=np.arange(60) % 2 + 2023)
    frame.to_parquet(tmp_path / "data", partition_cols=["site", "year"])
    frame.iloc[:3].drop(columns=["site", "year"]).to_parquet(tmp_path / "data/site=north/year=2023/zz.parquet")
    write(tmp_path / "data" / "_SUCCESS", "")
    sources = find_tasks(tmp_path / "data", "site")
    assert list(sources) == ["007", "north", "south"]
    north = sources["north"].read()
    assert set(north["site"]) == {"north"}
    assert len(north) == (frame["site"] == "north").sum() + 3
    assert sorted(set(north["year"])) == ["2023", "2024"]
    assert set(north.columns) == set(frame.columns)
    assert all(file.startswith("site=north/year=") for file, _ in north.index)
    check_same_as_in_one_process(tmp_path / "data", "site")
    check_same_as_in_one_process(tmp_path / "data", "year")


def test_a_task_column_inside_the_files_of_partitions_serves_as_well(tmp_path):
    frame = clinic().assign(year=np.arange(60) % 2 + 2023)
    frame.to_parquet(tmp_path / "data", partition_cols=["year"])
    assert list(find_tasks(tmp_path / "data", "site")) == ["007", "north", "south"]
    check_same_as_in_one_process(tmp_path / "data", "site")


def test_partition_values_are_decoded_and_trimmed_like_any_label(tmp_path):
    for folder in ("site=a%2Fb%20c", "site=%20 7", "site=x=y", "site=d%C3%A9j%C3%A0"):
        write(tmp_path / folder / "part.csv", "x,y\n1,2\n")
    assert list(find_tasks(tmp_path, "site")) == ["7", "a/b c", "déjà", "x=y"]
    check_same_as_in_one_process(tmp_path, "site")


def test_a_partition_without_a_value_is_refused_as_a_task_and_missing_elsewhere(tmp_path):
    write(tmp_path / "site=a/ward=__HIVE_DEFAULT_PARTITION__/p.csv", "x\n1\n")
    write(tmp_path / "site=b/ward=east/p.csv", "x\n1\n")
    assert find_tasks(tmp_path, "site")["a"].read()["ward"].isna().all()
    with pytest.raises(ElmeshError, match=r'^site=a/ward=\S+/p\.csv is in a partition without a value of "ward"'):
        find_tasks(tmp_path, "ward")


def test_linked_partitions_are_followed_and_names_that_are_not_utf8_are_refused(tmp_path):
    write(tmp_path / "elsewhere" / "p.csv", "x,y\n1,2\n")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "site=a").symlink_to(tmp_path / "elsewhere")
    assert list(find_tasks(tmp_path / "data", "site")) == ["a"]
    write(tmp_path / "data" / "site=%ff" / "p.csv", "x,y\n1,2\n")
    with pytest.raises(ElmeshError, match=r"^site=%ff/p\.csv: the name of a folder is not UTF-8 text; rename it"):
        find_tasks(tmp_path / "data", "site")


def test_the_value_of_a_partition_replaces_the_column_of_its_files(tmp_path):
    write(tmp_path / "site=a/p.csv", "site,x\nz,1\n")
    assert list(find_tasks(tmp_path, "site")) == ["a"]
    check_same_as_in_one_process(tmp_path, "site")


def test_partitions_that_make_no_table_are_refused(tmp_path):
    write(tmp_path / "site=a/p.csv", "x,y\n1,2\n")
    for read in (lambda: find_tasks(tmp_path), lambda: read_data(tmp_path, file_task=True)):
        with pytest.raises(ElmeshError, match=r"is partitioned by site, so its files are not tasks; .* --task site"):
            read()
    write(tmp_path / "site=b/year=1/p.csv", "x,y\n1,2\n")
    for read in (lambda: find_tasks(tmp_path, "site"), lambda: read_data(tmp_path)):
        with pytest.raises(ElmeshError, match=r'b/year=1/p\.csv has a column "year" and site=a/p\.csv does not'):
            read()
    (tmp_path / "site=b/year=1/p.csv").unlink()
    write(tmp_path / "site=b/site=c/p.csv", "x,y\n1,2\n")
    with pytest.raises(ElmeshError, match=r'site=c/p\.csv: the header has the column "site" more than once'):
        find_tasks(tmp_path, "site")
    clinic().to_parquet(tmp_path / "site=a/q.parquet")
    with pytest.raises(ElmeshError, match="both CSV and Parquet"):
        find_tasks(tmp_path, "site")


def test_what_is_no_table_in_a_partition_is_left_out_with_a_warning(tmp_path):
    write(tmp_path / "site=a/p.csv", "x,y\n1,2\n")
    write(tmp_path / "site=a/notes.txt", "")
    write(tmp_path / "old/p.csv", "x,y\n1,2\n")
    with pytest.warns(TableWarning, match=r"not tables: old/p\.csv, site=a/notes\.txt\.$"):
        assert list(find_tasks(tmp_path, "site")) == ["a"]


def test_partitions_and_a_task_column_give_one_schema(tmp_path):
    frame = clinic().sort_values("site", kind="stable")
    frame.to_parquet(tmp_path / "data", partition_cols=["site"])
    frame.to_parquet(tmp_path / "t.parquet")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        schemas = [fit_schema(read_data(tmp_path / name), "site", ["y"]) for name in ("data", "t.parquet")]
    assert schemas[0] == schemas[1]
