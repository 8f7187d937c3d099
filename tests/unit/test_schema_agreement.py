"""Processes that each hold the rows of some tasks agree on the schema that one table of all rows would have."""

from __future__ import annotations

import decimal
import json
import threading
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from elmesh.errors import ElmeshError
from elmesh.tables import (
    FILE_TASK,
    TableWarning,
    find_tasks,
    fit_schema,
    infer_kind,
    read_data,
    to_labels,
)
from elmesh.tables.columns import ColumnType, concat_tables
from elmesh.tables.dataset import concat_files
from elmesh.tables.stats import column_stats
from helpers.examples import examples

# Threads in place of processes
from helpers.schemas import agree_schema, unscaled


class Exchange:
    """The state that the threads share; contents pass through JSON."""

    def __init__(self, size: int):
        self.barrier = threading.Barrier(size, timeout=60)
        self.board: list[str] = [""] * size
        self.sent: list[str] = []
        self.rounds = 0

    def exchange(self, rank: int, notes: Any) -> list[Any]:
        self.board[rank] = json.dumps(notes, allow_nan=False)
        if self.barrier.wait() == 0:
            self.sent += self.board
            self.rounds += 1
        found = [json.loads(text) for text in self.board]
        self.barrier.wait()
        return found


class ThreadCommunicator:
    """The communicator of one thread."""

    def __init__(self, exchange: Exchange, rank: int):
        self.shared, self.rank, self.size = exchange, rank, len(exchange.board)

    def allgather(self, notes: Any) -> list[Any]:
        return self.shared.exchange(self.rank, notes)


def in_processes(size: int, work: Callable[[ThreadCommunicator], Any]) -> tuple[list[Any], Exchange]:
    """What each process returns, or the error it raises."""
    exchange, results = Exchange(size), [None] * size

    def run(rank: int) -> None:
        try:
            results[rank] = work(ThreadCommunicator(exchange, rank))
        except ElmeshError as error:
            results[rank] = f"{type(error).__name__}: {error}"
        except BaseException:
            exchange.barrier.abort()
            raise

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not exchange.barrier.broken
    return results, exchange


def shared(spread: Sequence[dict[str, pd.DataFrame]], *args: Any, **options: Any) -> tuple[Any, Exchange, list[str]]:
    """What all processes agree on, or the error they all raise; and the warnings that each of them gave."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        results, exchange = in_processes(
            len(spread), lambda process: agree_schema(spread[process.rank], *args, communicator=process, **options)
        )
    assert all(result == results[0] for result in results)
    messages = [str(warning.message) for warning in caught if issubclass(warning.category, TableWarning)]
    assert len(messages) == len(caught)
    assert len(set(messages)) * len(spread) == len(messages)
    return results[0], exchange, messages[: len(set(messages))]


def alone(frames: dict[str, pd.DataFrame], *args: Any, **options: Any) -> tuple[Any, list[str]]:
    """The same of one table with all rows."""
    frame = concat_files(frames, list(next(iter(frames.values())).columns))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            schema = unscaled(fit_schema(frame, *args, **options))
        except ElmeshError as error:
            return f"ElmeshError: {error}", [str(warning.message) for warning in caught]
    return schema, [str(warning.message) for warning in caught]


def numbered(frame: pd.DataFrame) -> pd.DataFrame:
    """With the index of a table that was read from a file."""
    return frame.set_axis(pd.RangeIndex(2, len(frame) + 2, name="line"))


def as_read(frames: dict[str, pd.DataFrame]) -> dict[str, pd.DataFrame]:
    return {task: pd.concat({task: frame}, names=["file"]) for task, frame in frames.items()}


def spread_over(frames: dict[str, pd.DataFrame], ranks: Sequence[int]) -> list[dict[str, pd.DataFrame]]:
    spread: list[dict[str, pd.DataFrame]] = [{} for _ in range(max(ranks) + 1)]
    for (task, frame), rank in zip(as_read(frames).items(), ranks, strict=True):
        spread[rank][task] = frame
    return spread


# Any table in any places

numerals = st.one_of(
    st.integers(-20, 20).map(str), st.floats(-1e6, 1e6, allow_nan=False).map(repr), st.sampled_from(["1e300", "+4"])
)
texts = {
    "numerals": numerals,
    "infinite": st.one_of(numerals, st.just("inf")),
    "codes": st.sampled_from(["007", "012", "7"]),
    "zero or one": st.sampled_from(["0", "1"]),
    "true or false": st.sampled_from(["true", "False"]),
    "words": st.sampled_from(["east", "west", "n/a?"]),
    "dates": st.sampled_from(["2024-01-31", "31/01/2024"]),
    "commas": st.sampled_from(["1,5", "2,000"]),
}
typed = {
    "floats": st.floats(-1e6, 1e6),
    "whole": st.integers(-5, 5),
    "large": st.sampled_from([2**53, 2**53 + 1, -(2**60) - 1]),
    "bools": st.booleans(),
    "words": st.sampled_from(["east", "1", "True"]),
    "decimals": st.sampled_from([decimal.Decimal("1.50"), decimal.Decimal("2.00")]),
    "dates": st.sampled_from([pd.Timestamp("2024-01-31"), pd.Timestamp("2024-02-01")]),
    "categories": st.sampled_from(["u", "v"]),
    "numbered categories": st.sampled_from([1, 2]),
}
good = {"numerals", "codes", "zero or one", "true or false", "words", "floats", "whole", "bools", "categories"}


@st.composite
def columns(draw: st.DrawFn, rows: int, kind: str, cells: dict[str, Any], missing: str) -> pd.Series:
    """One task's column: of one kind, with none of it missing, or some, or all."""
    values = draw(st.lists(cells[kind], min_size=rows, max_size=rows))
    if missing == "all":
        return pd.Series([None] * rows, dtype=object)
    if missing == "some":
        gone = draw(st.lists(st.booleans(), min_size=rows, max_size=rows))
        values = [None if flag else value for value, flag in zip(values, gone, strict=True)]
        return pd.Series(values, dtype=object if cells is typed else None)
    return pd.Series(values, dtype="category" if kind.endswith("categories") else None)


@st.composite
def data_sets(draw: st.DrawFn) -> dict[str, pd.DataFrame]:
    """A table for each task; mostly with a target and usable columns of like kind in all tasks, and sometimes not."""
    cells = draw(st.sampled_from([texts, typed]))
    usable, any_kind = sorted(good & set(cells)), sorted(cells)
    kinds = {name: draw(st.sampled_from(usable * 3 + any_kind)) for name in ("p", "q", "y", "z")}
    bad = draw(st.sampled_from([(), (), (), ("y",), ("z",), ("p", "q", "y", "z")]))
    frames = {}
    tasks = draw(st.lists(st.sampled_from(["a", "b", "c", "é", "10", "9"]), min_size=1, max_size=5, unique=True))
    for task in sorted(tasks):
        rows, made = draw(st.integers(1, 6)), {}
        for name, kind in kinds.items():
            odd = draw(st.sampled_from([kind] * 5 + (any_kind if name in bad else usable if name in "pq" else [])))
            gaps = ["none", "some", "all"] if name in ("p", "q", *bad) else ["none"]
            made[name] = draw(columns(rows, odd, cells, draw(st.sampled_from(gaps))))
        frames[task] = numbered(pd.DataFrame({"site": task, **made}))
    return frames


def test_a_target_with_dates_in_one_process_alone_has_the_error_of_one_table():
    tables = {"a": ("007", 3), "b": ("2024-01-31", 2)}
    frames = {
        site: numbered(pd.DataFrame({"site": site, "p": ["1", "2", "3"][:n], "y": value}))
        for site, (value, n) in tables.items()
    }
    expected, _ = alone(frames, "site", ["y"], "regression")
    assert '"y" has "2024-01-31" at line 2 of b; correct it' in expected
    for ranks in ([0, 0], [0, 1], [1, 0]):
        assert shared(spread_over(frames, ranks), "site", ["y"], "regression")[0] == expected


@pytest.mark.thorough
@examples(60)
@given(data_sets(), st.data())
def test_any_spread_of_any_tasks_gives_the_schema_of_one_table_or_its_error(frames, data):
    ranks = data.draw(st.lists(st.integers(0, 3), min_size=len(frames), max_size=len(frames)))
    asked = [(["y"], None), (["y"], None), (["y"], "classification"), (["y"], "regression"), (["y", "z"], None)]
    targets, kind = data.draw(st.sampled_from(asked))
    drop = data.draw(st.sampled_from([[], ["q"]]))
    expected, expected_warnings = alone(frames, "site", targets, kind, drop=drop)
    found, _, warned = shared(spread_over(frames, ranks), "site", targets, kind, drop=drop)
    if isinstance(expected, str):
        assert found == expected
    else:
        assert found[2] == expected
        # Equality does not tell 0 from -0 nor 1 from True; what is saved does.
        assert json.dumps(found[2].to_json()) == json.dumps(expected.to_json())
        assert found[0] == expected.kind
        assert warned == expected_warnings


@pytest.mark.thorough
@examples(30)
@given(data_sets())
def test_labels_do_not_depend_on_how_files_are_concatenated(frames):
    """Labels and numbers of a column put together from unlike files are those of the files one by one."""
    for name in ("p", "q"):
        whole = concat_tables(list(frames.values()), [name])[name]
        one_by_one = [to_labels(frame[name]).tolist() for frame in frames.values()]
        assert to_labels(whole).tolist() == [label for some in one_by_one for label in some]


def reference(column: pd.Series) -> tuple[float, float]:
    values = column.dropna().astype(float).to_numpy()
    return values.mean(), values.std()


@examples(30)
@given(
    st.lists(st.lists(st.one_of(st.none(), st.floats(-1e9, 1e9)), min_size=1, max_size=12), min_size=1, max_size=8),
    st.data(),
)
def test_means_and_standard_deviations_are_those_of_all_rows(tasks, data):
    frames = {
        f"t{i}": pd.DataFrame({"site": f"t{i}", "x": pd.Series(x, dtype=float), "c": ["u", "v"][i % 2], "y": "p"})
        for i, x in enumerate(tasks)
    }
    pooled = pd.concat(frames.values())
    assume(pooled["x"].min() < pooled["x"].max())
    ranks = data.draw(st.lists(st.integers(0, 3), min_size=len(frames), max_size=len(frames)))
    found, _, _ = shared(spread_over(frames, ranks), "site", ["y"], "classification")
    assume(not isinstance(found, str))  # too close together to scale
    (column,) = found[2].numeric
    mean, std = reference(pooled["x"])
    assume(std > 1e-3 * pooled["x"].abs().max())  # else the reference is not good to as many digits
    assert column.mean == pytest.approx(mean, rel=1e-12, abs=1e-12 * std)
    assert column.std == pytest.approx(std, rel=1e-12)
    assert column.fill_value == column.mean
    assert column.indicator == pooled["x"].isna().any()
    assert [c.categories for c in found[2].categorical] == ([("u", "v")] if len(tasks) > 1 else [])


# Statistics of columns


def starts(parts: list[np.ndarray]) -> np.ndarray:
    return np.cumsum([0, *map(len, parts)])[:-1]


@examples(30)
@given(st.integers(0, 10_000), st.lists(st.integers(1, 300), min_size=2, max_size=6))
def test_the_statistics_of_a_task_do_not_depend_on_other_tasks(seed, rows):
    rng = np.random.default_rng(seed)
    parts = [rng.normal(size=n) * 10.0 ** rng.integers(-8, 8, n) for n in rows]
    for part in parts:
        part[rng.random(len(part)) < 0.2] = np.nan
    together = column_stats(pd.Series(np.concatenate(parts)), starts(parts))
    for part, stats in zip(parts, together, strict=True):
        assert column_stats(pd.Series(part), starts([part])) == [stats]


def test_statistics_count_values_by_type():
    column = pd.Series(["1", "2.5", "inf", "x", None, "9007199254740992"])
    (stats,) = column_stats(column, np.array([0]))
    assert (stats.n_rows, stats.n_missing, stats.n_not_numeric, stats.n_infinite) == (6, 1, 1, 1)
    assert (stats.n_finite, stats.n_fractional, stats.n_large) == (3, 1, 1)
    assert (stats.min, stats.max) == (1.0, 2.0**53)
    assert stats.column_type is ColumnType.TEXT


def test_whole_numbers_too_large_for_a_float_survive_beside_floats():
    frames = [pd.DataFrame({"x": [2**53 + 1]}), pd.DataFrame({"x": [0.5, None]}), pd.DataFrame({"x": [True, False]})]
    assert to_labels(concat_tables(frames[:2], ["x"])["x"]).tolist() == [str(2**53 + 1), "0.5", None]
    assert to_labels(concat_tables(frames, ["x"])["x"]).tolist() == [str(2**53 + 1), "0.5", None, "True", "False"]


def test_a_column_of_zeros_of_either_sign_has_one_value():
    for first, second in ((0.0, -0.0), (-0.0, 0.0), (-0.0, -0.0)):
        x = {"a": [first, None], "b": [second, 0.0]}
        frames = {task: table(task, x=values, z=[1.0, 2.0], y=["p", "q"]) for task, values in x.items()}
        described = agreed(frames).to_json()["numeric"][0]
        assert json.dumps([described["mean"], described["std"], described["median"]]) == "[0.0, 0.0, 0.0]"


@examples(20)
@given(st.integers(0, 1000))
def test_the_order_of_tasks_in_a_table_does_not_change_the_schema(seed):
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {"site": rng.choice(list("abc"), 60), "x": rng.normal(size=60) * 10.0 ** rng.integers(-8, 8, 60)}
    )
    frame = frame.assign(c=rng.choice(["u", "v", None], 60), y=rng.normal(size=60))
    by_task = frame.sort_values("site", kind="stable")
    assert fit_schema(frame, "site", ["y"]) == fit_schema(by_task, "site", ["y"])


def test_the_first_missing_target_of_a_table_is_named_by_row_whatever_its_task():
    frame = pd.DataFrame({"site": ["b", "b", "a"], "x": [1.0, 2.0, 3.0], "y": [1.5, None, None]})
    with pytest.raises(ElmeshError, match=r'2 rows have no target in column "y", the first at row 2;'):
        fit_schema(frame, "site", ["y"])


# Columns that differ between tasks


def table(task: str, **columns: Any) -> pd.DataFrame:
    return numbered(pd.DataFrame({"site": task, **columns}))


def agreed(frames: dict[str, pd.DataFrame], targets: Sequence[str] = ("y",), kind: Any = None, **options: Any) -> Any:
    """What a process for each task agrees on, checked against one table; an error as its text."""
    expected, expected_warnings = alone(frames, "site", list(targets), kind, **options)
    found, _, warned = shared(spread_over(frames, range(len(frames))), "site", list(targets), kind, **options)
    if isinstance(expected, str):
        assert found == expected
        return found
    assert (found[2], warned) == (expected, expected_warnings)
    return found[2]


def test_leading_zeros_in_one_task_make_the_column_text_in_all():
    schema = agreed(
        {
            "a": table("a", code=["12", "13", "12"], y=["p", "q", "p"]),
            "b": table("b", code=["007", "12"], y=["p", "q"]),
        }
    )
    assert [(c.name, c.categories) for c in schema.categorical] == [("code", ("007", "12", "13"))]
    X, _ = schema.encode(table("a", code=["12", "13"]))
    assert X.tolist() == [[0, 1, 0], [0, 0, 1]]


@pytest.mark.parametrize(
    ("one", "other"), [(["true", "false"], ["0", "1"]), ([True, False], [0, 1]), ([True, False], [0.0, 1.0])]
)
def test_true_and_false_in_one_task_and_0_and_1_in_another_are_numbers(one, other):
    schema = agreed({"a": table("a", flag=one, y=["p", "q"]), "b": table("b", flag=other, y=["p", "q"])})
    assert [(c.name, c.mean, c.std, c.fill_value) for c in schema.numeric] == [("flag", 0.5, 0.5, 0.5)]


@pytest.mark.parametrize("empty", [[None, None], [np.nan, np.nan], [pd.NaT, pd.NaT]])
def test_a_column_that_is_empty_in_one_task_is_what_it_is_elsewhere(empty):
    def frames(values: list[Any]) -> dict[str, pd.DataFrame]:
        return {"a": table("a", x=empty, y=["p", "q"]), "b": table("b", x=values, y=["p", "q"])}

    assert agreed(frames(["u", "v"])).feature_names == ["x = u", "x = v", "x is missing"]
    assert agreed(frames(["1", "3"])).numeric[0].mean == 2.0
    assert agreed(frames([1, 3])).feature_names == ["x", "x is missing"]


def test_a_task_with_text_makes_text_of_the_numbers_of_others():
    schema = agreed({"a": table("a", x=[1, 2], y=["p", "q"]), "b": table("b", x=["?", "2"], y=["p", "q"])})
    assert schema.categorical[0].categories == ("1", "2", "?")
    message = agreed({"a": table("a", x=[1, 2], y=["p", "q"]), "b": table("b", x=[pd.Timestamp(0)] * 2, y=["p", "q"])})
    assert 'Column "x" holds values that are neither numbers nor text' in message
    message = agreed({"a": table("a", x=["1", "2"], y=["p", "q"]), "b": table("b", x=["1,5", "2"], y=["p", "q"])})
    assert 'Column "x" has numbers with commas, such as "1,5"' in message


def test_dates_in_all_tasks_are_dates_and_beside_words_they_are_text():
    def frames(words: list[str]) -> dict[str, pd.DataFrame]:
        return {"a": table("a", x=["2024-01-31"] * 2, y=["p", "q"]), "b": table("b", x=words, y=["p", "q"])}

    assert 'Column "x" has "10:30" at line 2 of b, of which day' in agreed(frames(["10:30", "31.01.2024"]))
    (column,) = agreed(frames(["2024-02-03", "31.01.2024"])).dates
    assert (column.name, column.cycles) == ("x", ())
    assert agreed(frames(["later", "later"])).feature_names == ["x = 2024-01-31", "x = later"]


def test_parquet_files_whose_types_differ_give_one_schema_in_one_process_and_in_many(tmp_path):
    columns: dict[str, list[pa.Array]] = {
        "numbers": [pa.array([1, 2, 3]), pa.array([1.5, None, 2.0]), pa.array([7, 8, 9], pa.uint8())],
        "flags": [pa.array([True, False, True]), pa.array([0, 1, 1]), pa.array([True, None, False])],
        "words": [pa.array(["1", "x", None]), pa.array([1, 2, 2]), pa.array([True, False, True])],
        "sorts": [pa.array(["u", "v", "u"]).dictionary_encode(), pa.array(["w", "u", None]), pa.array(["u", "v", "v"])],
        "money": [pa.array([decimal.Decimal("1.50")] * 3), pa.array([2.5, 1.5, 1.5]), pa.array([1, 2, 3])],
        "empty": [pa.nulls(3), pa.array(["1", "2", "3"]), pa.array([None, None, None], pa.float64())],
        "y": [pa.array([1, 0, 1]), pa.array([1.0, 0.0, 1.0]), pa.array([0, 1, 0], pa.int8())],
    }
    for i, name in enumerate("abc"):
        pq.write_table(
            pa.table({column: arrays[i] for column, arrays in columns.items()}), tmp_path / f"{name}.parquet"
        )
    sources = find_tasks(tmp_path)
    frames = {name: sources[name].read() for name in "abc"}
    whole = read_data(tmp_path, file_task=True)
    for kind in ("classification", "regression"):
        expected = unscaled(fit_schema(whole, FILE_TASK, ["y"], kind))
        (_, _, schema), _, _ = shared(
            [{"b": frames["b"]}, {"a": frames["a"], "c": frames["c"]}], FILE_TASK, ["y"], kind
        )
        assert json.dumps(schema.to_json()) == json.dumps(expected.to_json())
        assert [column.name for column in schema.numeric] == ["numbers", "flags", "money", "empty"]
        assert [column.categories for column in schema.categorical] == [
            ("1", "2", "False", "True", "x"),
            ("u", "v", "w"),
        ]
        X, _ = expected.encode(whole)
        np.testing.assert_array_equal(np.concatenate([schema.encode(frames[name])[0] for name in "abc"]), X)
        y = np.concatenate([schema.targets(frames[name]) for name in "abc"])
        np.testing.assert_array_equal(y, expected.targets(whole))


def test_numbers_that_one_task_calls_categories_are_categories_in_all():
    schema = agreed(
        {
            "a": table("a", x=pd.Categorical([1, 2]), y=["p", "q"]),
            "b": table("b", x=[3, 1], y=["p", "q"]),
            "c": table("c", x=pd.Categorical([4, 1]), y=["p", "q"]),
        }
    )
    assert schema.categorical[0].categories == ("1", "2", "3", "4")


# Roles


def test_identifiers_are_refused_in_all_processes_without_counting_them():
    few = {name: table(name, id=[f"{name}{i}" for i in range(15)], y=["p", "q", "r"] * 5) for name in "ab"}
    assert '"id" is text with 30 different values in 30 rows' in agreed(few)
    stray = {
        "a": table("a", id=[str(i) for i in range(40)], y=["p", "q"] * 20),
        "b": table("b", id=[*(str(i) for i in range(40, 79)), "?"], y=["p", "q"] * 20),
    }
    expected, _ = alone(stray, "site", ["y"])
    found, _, _ = shared(spread_over(stray, [0, 1]), "site", ["y"])
    assert 'the first that is not a number is "?" at line 41 of b)' in found
    more = " Under MPI a column has at most 50 categories."
    assert found == expected.replace("80 different", "more than 50 different") + more


def test_a_category_beyond_the_fiftieth_is_refused_wherever_it_is():
    def frames(n: int) -> list[dict[str, pd.DataFrame]]:
        names = np.array_split([f"c{i}" for i in range(n)] * 4, 2)
        return spread_over({t: table(t, c=c, y="p") for t, c in zip("ab", names, strict=True)}, [0, 1])

    found, _, _ = shared(frames(50), "site", ["y"], "classification")
    assert len(found[2].feature_names) == 50
    found, _, _ = shared(frames(51), "site", ["y"], "classification")
    assert "more than 50 different values in 204 rows" in found


def test_row_numbers_of_a_table_that_was_split_into_tasks_are_left_out_everywhere():
    whole = table("", x=[0.5, 2.5, 1.5] * 8, y=["p", "q"] * 12).assign(number=range(1, 25))
    frames = {name: numbered(whole.iloc[i::2].assign(site=name)) for i, name in enumerate("ab")}
    expected, expected_warnings = alone(frames, "site", ["y"])
    found, _, warned = shared(spread_over(frames, [0, 1]), "site", ["y"])
    assert warned == expected_warnings
    assert "only number the rows" in warned[0]
    assert found[2] == expected
    assert expected.feature_names == ["x"]


@pytest.mark.parametrize("target", ["y", "days"])
def test_leaks_and_identifiers_are_found_everywhere_in_the_same_words(target):
    rng = np.random.default_rng(0)
    frames = {}
    for i, name in enumerate("abc"):
        days = rng.integers(0, 8, 30) + rng.normal(0, 0.05, 30)
        frames[name] = table(name, days=days, y=np.where(days > 3.5, "long", "short"))
        frames[name] = frames[name].assign(hours=24 * days, code=(days > 3.5).astype(int), level=np.round(days))
        frames[name] = frames[name].assign(patient=rng.permutation(30) + 1000 * i, x=rng.normal(size=30))
        frames[name] = frames[name].drop(columns={"y": "days", "days": "y"}[target])
    _, expected = alone(frames, "site", [target])
    _, _, warned = shared(spread_over(frames, [0, 1, 2]), "site", [target])
    assert warned == expected
    leaks = {"y": ["code", "level", "patient"], "days": ["hours", "level", "patient"]}[target]
    assert [message.split('"')[1] for message in warned if message.startswith("Column")] == leaks


def test_constant_columns_are_left_out_everywhere_with_the_same_warning():
    frames = {
        name: table(name, one=[1, 1], same=[n, n], word=["u", "u"], x=[1.0, n], gone=[1.0, None], y=["p", "q"])
        for n, name in enumerate("ab", start=2)
    }
    expected, expected_warnings = alone(frames, "site", ["y"])
    found, _, warned = shared(spread_over(frames, [0, 1]), "site", ["y"])
    assert warned == expected_warnings == ["Left out because all rows have the same value: one, word."]
    assert found[2] == expected
    assert found[2].feature_names == ["same", "x", "gone is missing"]


@pytest.mark.parametrize(
    ("one", "other", "whole"),
    [
        (["1", "2"], ["1.0", "3"], True),
        ([1, 2], [1.0, 3.0], True),
        ([1, 2], [1.5, 3.0], False),
        (["1", "2"], ["01", "3"], False),
        ([2**53, 1], [1, 2], False),
        ([True, False], [1, 0], True),
        (["yes", "no"], ["yes", "no"], False),
    ],
)
def test_classes_are_whole_numbers_if_they_are_in_all_tasks(one, other, whole):
    x = np.arange(2.0)
    frames = {"a": table("a", x=x, y=one), "b": table("b", x=x, y=other)}
    assert agreed(frames, kind="classification").whole_labels is whole


@pytest.mark.parametrize(
    ("values", "kind", "reason"),
    [
        (lambda rng: rng.integers(0, 3, 60), "classification", "whole numbers, 3 different ones in 120 rows"),
        (lambda rng: rng.permutation(60), "regression", "whole numbers, more than 20 different ones in 120 rows"),
        (lambda rng: rng.normal(size=60), "regression", "numbers that are not whole"),
        (lambda rng: rng.choice(["u", "v"], 60), "classification", "text"),
        (lambda rng: rng.random(60) < 0.5, "classification", "true or false"),
    ],
)
def test_the_kind_follows_from_the_targets_of_all_tasks(values, kind, reason):
    frames = {name: table(name, x=np.arange(60.0), y=values(np.random.default_rng(0))) for name in "ab"}
    (found, why, schema), _, _ = shared(spread_over(frames, [0, 1]), "site", ["y"])
    assert (found, schema.kind, why) == (kind, kind, f'column "y" holds {reason}')
    expected, expected_reason = infer_kind(concat_files(frames, ["site", "x", "y"]), ["y"])
    assert (expected, expected_reason.replace("60 different", "more than 20 different")) == (found, why)


def test_a_kind_asked_for_is_the_kind():
    frames = {"a": table("a", x=[1.0, 2.0], y=["1", "2"])}
    for kind in ("classification", "regression"):
        assert agree_schema(frames, "site", ["y"], kind)[:2] == (kind, "as asked")


def test_several_targets_are_a_regression():
    rng = np.random.default_rng(0)
    frames = {name: table(name, x=rng.normal(size=9), y=rng.normal(size=9), z=rng.normal(9, 2, 9)) for name in "abc"}
    schema = agreed(frames, ["y", "z"])
    assert [column.name for column in schema.target_columns] == ["y", "z"]
    assert schema.kind == "regression"
    assert "Classification takes one target column" in agreed(frames, ["y", "z"], "classification")


def test_a_target_with_too_many_classes_is_refused_at_the_same_number_wherever_they_are():
    def outcome(classes: int) -> Any:
        y = np.array([f"p{i % classes}" for i in range(200)])
        frames = {name: table(name, x=np.arange(50.0), y=y[50 * i : 50 * i + 50]) for i, name in enumerate("abcd")}
        expected, _ = alone(frames, "site", ["y"])
        found, _, _ = shared(spread_over(frames, [0, 1, 1, 2]), "site", ["y"])
        assert isinstance(expected, str) == isinstance(found, str)
        return found

    assert outcome(100)[0] == "classification"
    assert 'The target column "y" has more than 100 different values in 200 rows, too many for classes' in outcome(101)


# Errors


@pytest.mark.parametrize(
    ("column", "values", "kind", "message"),
    [
        ("x", ["1", "inf"], None, 'Column "x" has an infinite value at line 3 of b; correct it'),
        ("y", ["p", None], None, '1 row has no target in column "y", at line 3 of b; fill it'),
        ("y", ["7", "p"], "regression", 'Regression needs numbers, but the target column "y" has "p" at line 2 of a'),
        ("w", [[1], [2]], None, 'Column "w" holds values that are neither numbers nor text'),
        ("x", ["1e200", "-1e200"], None, 'The values of column "x" are too large'),
    ],
)
def test_all_processes_raise_an_error_about_one_with_file_and_line(column, values, kind, message):
    frames = {name: table(name, x=["1", "2"], y=["p", "q"], w=["u", "v"]) for name in "abc"}
    frames["b"][column] = values
    assert message in agreed(frames, kind=kind)


def test_an_error_names_the_first_of_several_cells_for_any_spread_of_tasks():
    frames = {name: table(name, x=["1", "2", "3"], y=["p", "q", "p"]) for name in "abc"}
    frames["b"]["y"] = ["p", None, None]
    frames["c"]["y"] = [None, "p", "q"]
    message = agreed(frames)
    assert '3 rows have no target in column "y", the first at line 3 of b;' in message
    for ranks in ([2, 1, 0], [0, 1, 0], [1, 1, 0]):
        assert shared(spread_over(frames, ranks), "site", ["y"])[0] == message


def test_all_processes_raise_the_error_about_a_wrong_name():
    frames = {name: table(name, x=["1", "2"], y=["p", "q"]) for name in "ab"}
    assert 'no column "Y" in the table; did you mean "y"?' in agreed(frames, ["Y"])
    assert "No column is left to learn from" in agreed(frames, drop=["x"])


def test_tasks_of_unlike_columns_or_no_rows_are_refused_by_all():
    good, other = table("a", x=["1", "2"], y=["p", "q"]), table("b", y=["p", "q"], z=["1", "2"])
    message = 'Every task must have the same columns, but task "a" has a column "x" and task "b" does not.'
    for spread in ([{"a": good}, {"b": other}], [{"a": good, "b": other}, {}]):
        assert message in shared(spread, "site", ["y"])[0]
    assert 'Task "b" has no rows' in shared([{"a": good}, {"b": good.iloc[:0]}], "site", ["y"])[0]
    assert "There are no tasks" in shared([{}, {}], "site", ["y"])[0]


def test_a_process_without_tasks_gets_the_schema_from_the_others():
    frames = {name: table(name, x=["1", "2"], w=["u", None], y=["p", "q"]) for name in "ab"}
    schema = agreed(frames)
    found, _, _ = shared([{}, as_read(frames), {}], "site", ["y"])
    assert found[2] == schema
    message = agreed({**frames, "b": frames["b"].assign(x=["1", "inf"])})
    found, _, _ = shared([{}, as_read({**frames, "b": frames["b"].assign(x=["1", "inf"])}), {}], "site", ["y"])
    assert found == message


# What leaves a process


def test_nothing_leaves_a_process_but_counts_moments_extremes_categories_and_classes():
    rng = np.random.default_rng(0)
    dose = [np.round(rng.normal(500, 100, 40), 6) for _ in range(3)]
    frames = {
        name: table(
            name,
            dose=dose[i],
            ward=rng.choice(["east", "west"], 40),
            secret=[f"{name}-patient-{j}" for j in range(40)],
            y=rng.choice(["ill", "well"], 40),
        )
        for i, name in enumerate("abc")
    }
    found, exchange, _ = shared(spread_over(frames, [0, 1, 2]), "site", ["y"], drop=["secret"])
    sent = " ".join(exchange.sent)
    assert "patient" not in sent
    assert all(word in sent for word in ("east", "west", "ill", "well"))
    leaked = {value for values in dose for value in values.tolist() if repr(value) in sent}
    assert leaked == {edge(values).item() for values in dose for edge in (np.min, np.max)}
    assert found[2].numeric[0].fill_value == pytest.approx(np.mean(dose), rel=1e-12)


@pytest.mark.parametrize("target", ["y", "dose"])
def test_a_schema_takes_at_most_seven_collective_calls(target):
    frames = {name: table(name, dose=[1, 2, 3], ward=["east", "west", None], y=["p", "q", "p"]) for name in "abc"}
    found, exchange, _ = shared(spread_over(frames, [0, 1, 2]), "site", [target])
    assert not isinstance(found, str)
    assert exchange.rounds <= 7


def test_the_values_of_a_target_that_is_no_class_stay_where_they_are():
    income = np.arange(40) * 37 + 100_003
    frames = {name: table(name, x=np.arange(40.0), y=income + i) for i, name in enumerate("ab")}
    found, exchange, _ = shared(spread_over(frames, [0, 1]), "site", ["y"])
    assert found[0] == "regression"
    inner = (set((income + i).tolist()) for i in range(2))
    edges = {edge(income + i).item() for i in range(2) for edge in (np.min, np.max)}
    assert not [value for value in set.union(*inner) - edges if str(value) in " ".join(exchange.sent)]


def test_names_that_are_too_many_to_be_categories_stay_where_they_are():
    frames = {name: table(name, who=[f"{name}-{i}" for i in range(60)], y=["p", "q"] * 30) for name in "ab"}
    found, exchange, _ = shared(spread_over(frames, [0, 1]), "site", ["y"])
    assert "more like an identifier" in found
    assert "Under MPI a column has at most 50 categories." in found
    assert "a-1" not in " ".join(exchange.sent)
