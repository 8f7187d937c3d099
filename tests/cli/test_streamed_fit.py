"""``elmesh fit`` of tables that are read in parts: Parquet and DuckDB, stopped and continued."""

from __future__ import annotations

import json
import os
import signal
import stat
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import elmesh
from elmesh.cli import app
from elmesh.estimators.streams import StreamedRows

duckdb = pytest.importorskip("duckdb", reason="tables of DuckDB need the extra duckdb")

OPTIONS = ("--task", "site", "--target", "y", "--hidden", 10)


def run(*args: object, code: int = 0):
    result = CliRunner(env={"FORCE_COLOR": None, "NO_COLOR": "1"}).invoke(app, [str(arg) for arg in args])
    assert result.exit_code == code, result.output + result.stderr
    return result


def rows(n: int = 400) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    site, x = rng.integers(4, size=n), rng.normal(size=(n, 2))
    y = x @ [1.0, -1.0] + 0.5 * site * x[:, 0] + 0.3 * rng.normal(size=n)
    ward = rng.choice(["red", "blue"], n)
    return pd.DataFrame({"site": [f"s{k}" for k in site], "a": x[:, 0], "b": x[:, 1], "ward": ward, "n": 1, "y": y})


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A folder with the same rows as Parquet and in DuckDB, and the model of a fit in memory."""
    folder, frame = tmp_path_factory.mktemp("stream"), rows()
    frame.to_parquet(folder / "rows.parquet", row_group_size=50)
    frame.to_csv(folder / "rows.csv", index=False)
    with duckdb.connect(str(folder / "warehouse.db")) as connection:
        connection.execute("CREATE TABLE visits AS SELECT * FROM frame")
    run("fit", folder / "rows.parquet", *OPTIONS, "--drop", "n", "--out", folder / "model", "--quiet")
    return folder


@pytest.fixture
def in_parts(monkeypatch) -> None:
    """Read every table in parts of 50 rows."""
    monkeypatch.setattr("elmesh.tables.source._LARGE", 0)
    monkeypatch.setattr("elmesh.tables.stream._CELLS", 300)


def predictions(model: Path) -> np.ndarray:
    return elmesh.load(model).predict(rows())


@pytest.mark.parametrize(
    "source",
    [pytest.param("{}/rows.parquet", marks=pytest.mark.slow), "duckdb://{}/warehouse.db?table=visits"],
)
def test_a_table_that_is_read_in_parts_gives_the_same_model(folder, tmp_path, in_parts, source):
    result = run("fit", source.format(folder), *OPTIONS, "--drop", "n", "--out", tmp_path / "m")
    assert "has 400 rows; it is read in parts" in result.stderr
    assert "400 rows of 4 sites" in result.stdout
    np.testing.assert_allclose(predictions(tmp_path / "m"), predictions(folder / "model"), rtol=1e-9)
    assert (tmp_path / "m" / "report.html").is_file()
    assert [path.name for path in tmp_path.iterdir()] == ["m"]


def test_a_small_table_of_duckdb_is_read_as_a_whole(folder, tmp_path):
    source = f"duckdb://{folder}/warehouse.db?table=visits"
    result = run("fit", source, *OPTIONS, "--drop", "n", "--out", tmp_path / "m")
    assert "in parts" not in result.stderr
    np.testing.assert_array_equal(predictions(tmp_path / "m"), predictions(folder / "model"))
    run("predict", tmp_path / "m", source, "--out", tmp_path / "p.csv")
    predicted = pd.read_csv(tmp_path / "p.csv").iloc[:, -1]
    np.testing.assert_allclose(predicted, predictions(folder / "model"), rtol=1e-12)
    query = source.replace("table=visits", "query=FROM visits WHERE site = 's1'")
    assert json.loads(run("evaluate", tmp_path / "m", query, "--json").stdout)["rows"] == sum(rows()["site"] == "s1")


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("duckdb://{}/absent.db?table=visits", "There is no file"),
        ("duckdb://{}/warehouse.db?table=absent", "absent"),
        ("duckdb://{}/warehouse.db", "is not the address of a table"),
    ],
)
def test_an_address_that_leads_nowhere_is_one_sentence(folder, tmp_path, source, words):
    result = run("fit", source.format(folder), *OPTIONS, "--out", tmp_path / "m", code=2)
    assert words in result.stderr
    assert not (tmp_path / "m").exists()


def test_a_table_of_duckdb_needs_a_column_of_tasks(folder, tmp_path):
    source = f"duckdb://{folder}/warehouse.db?table=visits"
    assert "--task" in run("fit", source, "--target", "y", "--out", tmp_path / "m", code=2).stderr


def test_a_reading_that_is_stopped_continues_where_it_was(folder, tmp_path, in_parts, monkeypatch):
    read, made = [], StreamedRows._chunk

    def stop_in_the_fourth_part(self, frame, targets, inputs):
        if inputs:
            read.append(len(frame))
            if len(read) == 4:
                os.kill(os.getpid(), signal.SIGINT)
        return made(self, frame, targets, inputs)

    words = ("fit", folder / "rows.parquet", *OPTIONS, "--drop", "n", "--out", tmp_path / "m")
    with monkeypatch.context() as patch:
        patch.setattr(StreamedRows, "_chunk", stop_in_the_fourth_part)
        result = run(*words, code=130)
    assert "the same command continues from there" in result.stderr
    partial = tmp_path / "m.partial"
    assert stat.S_IMODE(partial.stat().st_mode) == 0o700
    assert not (tmp_path / "m").exists()
    # Another fit does not take what is of this one.
    assert "of another fit" in run(*words, "--seed", 1, code=2).stderr
    before = len(read)
    with monkeypatch.context() as patch:
        patch.setattr(StreamedRows, "_chunk", lambda *args: read.append(0) or made(*args) if args[3] else made(*args))
        run(*words)
    assert 0 < len(read) - before < 8
    assert not partial.exists()
    np.testing.assert_allclose(predictions(tmp_path / "m"), predictions(folder / "model"), rtol=1e-9)


def test_weights_of_rows_are_those_of_repeated_rows_in_parts_too(folder, tmp_path, in_parts):
    frame = rows().assign(n=np.arange(400) % 3)
    frame.to_parquet(tmp_path / "weighted.parquet", row_group_size=50)
    frame.loc[frame.index.repeat(frame["n"])].assign(n=1).to_parquet(tmp_path / "repeated.parquet", row_group_size=50)
    for name in ("weighted", "repeated"):
        run("fit", tmp_path / f"{name}.parquet", *OPTIONS, "--weight", "n", "--out", tmp_path / name)
    np.testing.assert_allclose(predictions(tmp_path / "weighted"), predictions(tmp_path / "repeated"), rtol=1e-6)
    frame.to_csv(tmp_path / "weighted.csv", index=False)
    run("fit", tmp_path / "weighted.csv", *OPTIONS, "--weight", "n", "--out", tmp_path / "memory")
    np.testing.assert_allclose(predictions(tmp_path / "weighted"), predictions(tmp_path / "memory"), rtol=1e-9)


def test_a_column_of_weights_has_no_other_role_and_no_negative_numbers(folder, tmp_path):
    words = ("fit", folder / "rows.csv", *OPTIONS, "--out", tmp_path / "m")
    assert "named as something else too" in run(*words, "--weight", "y", code=2).stderr
    assert "no column" in run(*words, "--weight", "absent", code=2).stderr
    assert "must not be negative" in run(*words, "--weight", "a", code=2).stderr


def test_weights_of_classes_are_for_classes(folder, tmp_path):
    frame = rows().assign(y=lambda table: np.where(table["y"] > 2, "rare", "usual"))
    frame.to_csv(tmp_path / "classes.csv", index=False)
    words = (*OPTIONS, "--drop", "n", "--class-weight", "balanced", "--out", tmp_path / "m")
    assert "is for classes" in run("fit", folder / "rows.csv", *words, code=2).stderr
    run("fit", tmp_path / "classes.csv", *words)
    expected = elmesh.MultiTaskELMClassifier(10, task="site", class_weight="balanced", random_state=0)
    expected.fit(frame.drop(columns=["y", "n"]), frame["y"])
    inputs = frame.drop(columns=["y", "n"])
    np.testing.assert_allclose(elmesh.load(tmp_path / "m").predict_proba(frame), expected.predict_proba(inputs))
