"""Tables that are read in parts give the models of tables in memory."""

from __future__ import annotations

import warnings

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from sklearn.base import clone

from elmesh import (
    DMTLELM,
    CheckpointConfig,
    ElmeshError,
    LocalELM,
    MeshELM,
    MultiTaskELMClassifier,
    MultiTaskELMRegressor,
    Privacy,
    RunConfig,
)
from elmesh.data import site_statistics
from elmesh.tables import FILE_TASK, TableWarning, stream
from elmesh.tables.duckdb_source import DuckDBStream
from elmesh.tables.stream import ArrowStream, ParquetStream, SelectedStream, StreamStopped
from helpers.examples import examples
from helpers.marks import one_of


def table(n=240, seed=0, sites=4):
    """A table with numbers, gaps, words, dates and truth values; targets of both kinds, and weights."""
    rng = np.random.default_rng(seed)
    X, site = rng.normal(size=(n, 2)), rng.integers(0, sites, size=n)
    word = rng.choice(["red", "green", "blue"], size=n)
    frame = pd.DataFrame(
        {
            "a": X[:, 0],
            "b": np.where(rng.random(n) < 0.1, np.nan, X[:, 1]),
            "count": rng.integers(0, 9, size=n),
            "word": np.where(rng.random(n) < 0.1, None, word),
            "flag": rng.random(n) < 0.5,
            "day": pd.Timestamp("2023-01-01") + pd.to_timedelta(rng.integers(0, 700, size=n), unit="D"),
            "site": np.char.add("s", site.astype(str)),
        }
    )
    y = X @ [1.0, -0.5] + 0.5 * (word == "red") + 0.3 * site + 0.3 * rng.normal(size=n)
    return frame.assign(
        y=y, z=-2.0 * y + rng.normal(size=n), kind=np.where(y > 0.3, "high", "low"), w=rng.integers(0, 3, n)
    )


INPUTS = ["a", "b", "count", "word", "flag", "day", "site"]


@pytest.fixture
def small_parts(monkeypatch):
    """Parts of fewer rows than a small table has."""
    monkeypatch.setattr(stream, "_MOST_ROWS", 150)


@pytest.fixture
def many_parts(monkeypatch):
    """Parts of a few dozen rows."""
    monkeypatch.setattr(stream, "_MOST_ROWS", 50)


def written(tmp_path, frame, rows=130, name="table.parquet"):
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pandas(frame, preserve_index=False), path, row_group_size=rows)
    return path


def estimator(kind=MultiTaskELMRegressor, **options):
    """An estimator of a few hidden units, by default with the solver that is fast."""
    return kind(**{"n_hidden": 12, "task": "site", "solver": "local-elm", "random_state": 0, **options})


CASES = {
    "a regression": (MultiTaskELMRegressor, "y", {"solver": "mesh-elm"}),
    "two outputs": (MultiTaskELMRegressor, ["y", "z"], {}),
    "classes": (MultiTaskELMClassifier, "kind", {"solver": "mesh-elm"}),
    "classes that weigh": (MultiTaskELMClassifier, "kind", {"class_weight": "balanced"}),
    "two outputs together": (MultiTaskELMRegressor, ["y", "z"], {"solver": "mesh-elm"}),
    "classes that weigh together": (
        MultiTaskELMClassifier,
        "kind",
        {"class_weight": "balanced", "solver": "mesh-elm"},
    ),
    "each site alone": (MultiTaskELMRegressor, "y", {"solver": LocalELM()}),
    "the paper's": (MultiTaskELMRegressor, "y", {"solver": DMTLELM(rank=2, mu1=0.3, mu2=0.3, max_iter=10, tol=0.0)}),
}


@pytest.mark.parametrize(
    ("kind", "target", "options"),
    [
        pytest.param(*case, id=name, marks=pytest.mark.slow if "together" in name else ())
        for name, case in CASES.items()
    ],
)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_a_stream_gives_the_model_of_the_table(small_parts, tmp_path, kind, target, options):
    frame = table()
    columns = [*INPUTS, *(target if isinstance(target, list) else [target])]
    streamed = estimator(kind, **options).fit(ParquetStream(written(tmp_path, frame[columns])), target)
    expected = estimator(kind, **options).fit(frame[INPUTS], frame[target])
    assert streamed.table_.feature_names == expected.table_.feature_names
    method = "predict" if kind is MultiTaskELMRegressor else "predict_proba"
    found = getattr(streamed, method)(frame[INPUTS])
    np.testing.assert_allclose(found, getattr(expected, method)(frame[INPUTS]), atol=1e-8)
    assert {t: site.n_rows for t, site in streamed.statistics_.sites.items()} == frame["site"].value_counts().to_dict()
    # Columns are found by their names.
    np.testing.assert_array_equal(getattr(streamed, method)(frame[["y", *INPUTS[::-1]]]), found)


def test_weights_of_a_stream_are_a_column(small_parts, tmp_path):
    frame = table()
    path = written(tmp_path, frame[[*INPUTS, "y", "w"]])
    together = estimator(solver="mesh-elm")
    streamed = clone(together).fit(ParquetStream(path), "y", sample_weight="w")
    expected = together.fit(frame[INPUTS], frame["y"], sample_weight=frame["w"])
    np.testing.assert_allclose(streamed.predict(frame[INPUTS]), expected.predict(frame[INPUTS]), atol=1e-6)


@examples(20, suppress=(HealthCheck.function_scoped_fixture,))
@given(st.integers(5, 300), st.integers(1, 100))
def test_the_size_of_parts_does_not_matter(tmp_path, monkeypatch, most, group):
    frame = table()
    monkeypatch.setattr(stream, "_MOST_ROWS", most)
    path = written(tmp_path, frame[[*INPUTS, "y"]], rows=group)
    source = ParquetStream(path)
    parts = list(source.chunks())
    assert sum(map(len, parts)) == source.n_rows == len(frame)
    assert max(map(len, parts)) <= 1.5 * most + 1
    whole = pd.concat(parts)
    assert whole.index.tolist() == list(range(1, len(frame) + 1))
    for name in ("a", "b", "count", "flag"):
        np.testing.assert_array_equal(whole[name].to_numpy(), frame[name].to_numpy())
    assert whole["word"].fillna("?").tolist() == frame["word"].fillna("?").tolist()


def test_many_rows_of_a_site_are_kept_as_sums(small_parts, tmp_path, monkeypatch):
    frame = table(600, sites=3)
    expected = estimator(solver=MeshELM(rank=0)).fit(frame[INPUTS], frame["y"])
    monkeypatch.setattr(site_statistics, "KEPT", 60)
    source = ParquetStream(written(tmp_path, frame[[*INPUTS, "y"]]))
    streamed = estimator(solver=MeshELM(rank=0)).fit(source, "y")
    assert not any(site.is_complete for site in streamed.statistics_.sites.values())
    np.testing.assert_allclose(streamed.predict(frame[INPUTS]), expected.predict(frame[INPUTS]), atol=1e-6)


def test_rows_can_be_added_to_the_model_of_a_stream(small_parts, tmp_path):
    frame = table()
    old, new = frame.iloc[:200], frame.iloc[200:]
    model = estimator(solver="mesh-elm").fit(ParquetStream(written(tmp_path, old[[*INPUTS, "y"]])), "y")
    before = model.predict(frame[INPUTS])
    model.partial_fit(new[INPUTS], new["y"])
    assert np.abs(model.predict(frame[INPUTS]) - before).max() > 1e-3
    model.forget(new[INPUTS], new["y"])
    np.testing.assert_array_equal(model.predict(frame[INPUTS]), before)


# Sources -------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def fitted_like():
    """Compare the model of a source with that of the same table in memory, which is fitted once."""
    frame = table()[[*INPUTS, "y"]]
    expected = estimator().fit(frame[INPUTS], frame["y"]).predict(frame[INPUTS])

    def compare(source, task="site"):
        model = estimator(task=task).fit(source, "y")
        found = model.predict(frame[INPUTS].rename(columns={"site": task}))
        np.testing.assert_allclose(found, expected, atol=1e-8)

    return compare


def test_arrow_streams_are_read_once_and_data_sets_each_time(small_parts, tmp_path, fitted_like):
    frame = table()[[*INPUTS, "y"]]
    arrow = pa.Table.from_pandas(frame, preserve_index=False)
    fitted_like(arrow.to_reader(max_chunksize=130))
    fitted_like(ds.dataset(written(tmp_path, frame)))

    class Stream:
        """Any object with Arrow's interface for streams."""

        def __arrow_c_stream__(self, requested_schema=None):
            return arrow.to_reader(max_chunksize=130).__arrow_c_stream__(requested_schema)

    fitted_like(Stream())


def test_tables_and_queries_of_duckdb_are_read(small_parts, tmp_path, fitted_like):
    duckdb = pytest.importorskip("duckdb", reason='reads DuckDB: pip install "elmesh[duckdb]"')
    frame = table()[[*INPUTS, "y"]]
    path = tmp_path / "ware house.db"
    with duckdb.connect(str(path)) as connection:
        connection.register("frame", frame)
        connection.execute('CREATE TABLE "my visits" AS SELECT * FROM frame')
    address = f"duckdb://{str(path).replace(' ', '%20')}"
    source = DuckDBStream(f"{address}?table=my%20visits")
    assert (source.columns, source.n_rows) == ([*INPUTS, "y"], len(frame))
    fitted_like(source)
    fitted_like(DuckDBStream(f'{address}?query=FROM "my visits" WHERE TRUE;'))
    same = DuckDBStream(f"{address}?table=main.my visits")
    pd.testing.assert_frame_equal(pd.concat(same.chunks()), pd.concat(source.chunks()))


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("duckdb://", "not the address"),
        ("duckdb://w.db", "not the address"),
        ("duckdb://w.db?table=a&query=b", "not the address"),
        ("duckdb://w.db?view=a", "not the address"),
        ("duckdb://missing.db?table=a", "no file missing.db"),
    ],
)
def test_other_addresses_of_duckdb_are_refused(url, message):
    with pytest.raises(ElmeshError, match=message):
        DuckDBStream(url)


def test_a_query_cannot_change_the_database(tmp_path):
    duckdb = pytest.importorskip("duckdb", reason='reads DuckDB: pip install "elmesh[duckdb]"')
    path = tmp_path / "w.db"
    with duckdb.connect(str(path)) as connection:
        connection.execute("CREATE TABLE t AS SELECT 1 AS a")
    for query in ("SELECT 1); DROP TABLE t; SELECT (1", "DROP TABLE t"):
        with pytest.raises(ElmeshError, match="cannot be read"):
            DuckDBStream(f"duckdb://{path}?query={query}")
    with duckdb.connect(str(path)) as connection:
        assert connection.execute("SELECT a FROM t").fetchall() == [(1,)]


def test_a_folder_may_have_a_file_for_each_site_or_partitions(small_parts, tmp_path, fitted_like):
    frame = table()[[*INPUTS, "y"]]
    for name, own in frame.groupby("site"):
        written(tmp_path, own.drop(columns="site"), name=f"files/{name}.parquet")
        written(tmp_path, own.drop(columns="site"), name=f"parts/site={name}/part-0.parquet")
    fitted_like(ParquetStream(tmp_path / "parts"))
    by_file = ParquetStream(tmp_path / "files", file_task=True)
    assert by_file.columns[-1] == FILE_TASK
    fitted_like(by_file, task=FILE_TASK)
    assert next(by_file.chunks()).index[0] == ("s0.parquet", 1)


def test_sites_may_be_whole_numbers_and_are_text_on_request(small_parts, tmp_path):
    frame = table()[[*INPUTS, "y"]].assign(site=lambda t: t["site"].str[1:].astype(int))
    source = ParquetStream(written(tmp_path, frame))
    assert estimator().fit(source, "y").tasks_.tolist() == [0, 1, 2, 3]
    as_text = SelectedStream(source, source.columns, text="site")
    assert estimator().fit(as_text, "y").tasks_.tolist() == ["0", "1", "2", "3"]


def test_without_a_column_of_tasks_all_rows_are_one(small_parts, tmp_path):
    frame = table()[["a", "b", "y"]]
    model = estimator(task=None).fit(ParquetStream(written(tmp_path, frame)), "y")
    assert model.tasks_.tolist() == ["all"]
    expected = estimator(task=None).fit(frame[["a", "b"]], frame["y"])
    np.testing.assert_allclose(model.predict(frame), expected.predict(frame[["a", "b"]]), atol=1e-8)


# Stopped, and on again -----------------------------------------------------------------------------------------------


class StopAfter:
    """Stops the last reading, that of the sums, after some parts."""

    def __init__(self, parts):
        self.parts, self.read, self.columns = parts, 0, []

    def start(self, columns, n_rows):
        assert n_rows == 240
        self.read, self.columns = 0, list(columns)

    def add(self, n_rows):
        self.read += 1
        # The reading of inputs that has no sums yet comes first.
        self.passes = getattr(self, "passes", 0) + (self.read == 1 and {"a", "y"} <= set(self.columns))
        if self.read == self.parts and self.passes >= PASSES:
            raise StreamStopped


# Readings of all columns in a fit; the last one adds up sums.
PASSES = 2


@pytest.mark.parametrize(("stops", "place"), one_of(2, [[3], [1, 1, 2]], ["the stream", "the run"]))
def test_a_reading_that_is_stopped_goes_on_to_the_same_model(many_parts, tmp_path, place, stops):
    frame = table()
    path = written(tmp_path, frame[[*INPUTS, "y"]], rows=50)
    expected = estimator().fit(ParquetStream(path), "y")
    folder = tmp_path / "state"

    def fit(monitor=None):
        source = ParquetStream(path)
        source.monitor = monitor
        if place == "the stream":
            source.checkpoint = folder
            return estimator().fit(source, "y")
        return estimator().fit(source, "y", run=RunConfig(checkpoint=CheckpointConfig(folder)))

    first = True
    for parts in stops:
        monitor = StopAfter(parts)
        # Once sums are saved, nothing else is read again.
        monitor.passes = 0 if first else PASSES - 1
        with pytest.raises(StreamStopped):
            fit(monitor)
        first = False
    saved = folder if place == "the stream" else folder / "stream"
    assert sorted(file.name for file in saved.iterdir()) == ["rows.safetensors", "statistics.json"]
    assert all(file.stat().st_mode & 0o077 == 0 for file in (saved, *saved.iterdir()))
    model = fit()
    np.testing.assert_array_equal(model.predict(frame[INPUTS]), expected.predict(frame[INPUTS]))
    assert not saved.exists()


def test_a_checkpoint_of_another_fit_or_table_is_refused(many_parts, tmp_path):
    frame = table()
    source = ParquetStream(written(tmp_path, frame[[*INPUTS, "y"]], rows=50))
    source.monitor, source.checkpoint = StopAfter(2), tmp_path / "state"
    with pytest.raises(StreamStopped):
        estimator().fit(source, "y")
    source.monitor = None
    with pytest.raises(ElmeshError, match="another fit, or the table has changed"):
        estimator(n_hidden=13).fit(source, "y")
    changed = ParquetStream(written(tmp_path, frame[[*INPUTS, "y"]].assign(a=0.5 * frame["a"]), rows=50))
    changed.checkpoint = tmp_path / "state"
    with pytest.raises(ElmeshError, match="another fit, or the table has changed"):
        estimator().fit(changed, "y")


# Errors --------------------------------------------------------------------------------------------------------------


def test_what_is_wrong_in_a_stream_is_named_with_its_row(small_parts, tmp_path):
    frame = table()[[*INPUTS, "y"]]

    def refusal(target="y", **changed):
        source = ParquetStream(written(tmp_path, frame.assign(**changed)))
        with warnings.catch_warnings(), pytest.raises(ElmeshError) as caught:
            estimator().fit(source, target)
        return str(caught.value)

    rows = np.arange(len(frame))
    assert "infinite value at row 121" in refusal(a=np.where(rows == 120, np.inf, frame["a"]))
    assert "no target" in (message := refusal(y=np.where(rows == 120, np.nan, frame["y"])))
    assert "row 121" in message
    assert "row 122" in refusal(site=np.where(rows == 121, None, frame["site"]))
    assert "identifier" in refusal(word=[f"id{i}" for i in rows])
    assert '"yy"' in refusal("yy")
    assert "no rows" in _empty_refusal(tmp_path, frame)


def test_of_values_that_are_too_many_to_be_counted_none_are_the_most_frequent(small_parts, tmp_path, monkeypatch):
    monkeypatch.setattr("elmesh.tables.stats.MOST_VALUES", 70)
    monkeypatch.setattr("elmesh.tables.stream_stats.MOST_VALUES", 70)
    frame = table()[[*INPUTS, "y"]]
    rows = np.arange(len(frame))
    source = ParquetStream(written(tmp_path, frame.assign(word=[f"id{i}" for i in rows])))
    with pytest.raises(ElmeshError, match="more like an identifier"):
        estimator().fit(source, "y")


def _empty_refusal(tmp_path, frame):
    with pytest.raises(ElmeshError) as caught:
        estimator().fit(ParquetStream(written(tmp_path, frame.iloc[:0])), "y")
    return str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"y": np.zeros(3)}, "y names the column"),
        ({"y": "y", "tasks": ["a"]}, "columns of it"),
        ({"y": "y", "sample_weight": np.ones(3)}, "columns of it"),
        ({"y": "site"}, "as target, and as task"),
        ({"y": "y", "run": RunConfig(backend="mpi")}, "one process"),
    ],
)
def test_a_stream_takes_names_of_columns(tmp_path, arguments, message):
    source = ParquetStream(written(tmp_path, table()[[*INPUTS, "y"]]))
    with pytest.raises(ElmeshError, match=message):
        estimator().fit(source, **arguments)


def test_a_private_fit_takes_no_stream(tmp_path):
    source = ParquetStream(written(tmp_path, table()[["a", "site", "y"]]))
    with pytest.raises(ElmeshError, match="in memory"):
        estimator(solver=MeshELM(privacy=Privacy(epsilon=1.0))).fit(source, "y")


def test_a_column_that_tells_the_target_is_noted_in_a_sample(small_parts, tmp_path):
    frame = table()[[*INPUTS, "y"]].assign(same=lambda t: 3.0 * t["y"] - 1.0)
    with pytest.warns(TableWarning, match='Column "same" alone determines the target'):
        estimator().fit(ParquetStream(written(tmp_path, frame)), "y")
    with pytest.warns(TableWarning, match="only number the rows"):
        estimator().fit(ParquetStream(written(tmp_path, frame.drop(columns="same").assign(n=range(1, 241)))), "y")


def test_an_arrow_stream_is_not_a_table_in_memory():
    frame = table()[["a", "y"]]
    assert stream.as_stream(frame) is None
    assert stream.as_stream(pa.Table.from_pandas(frame)) is None
    assert isinstance(stream.as_stream(pa.Table.from_pandas(frame).to_reader()), ArrowStream)
