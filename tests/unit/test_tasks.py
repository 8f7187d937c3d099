import re

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elmesh.data.stacking import stack_tasks
from elmesh.data.tasks import check_task_sizes, check_two_classes, group_rows, match_tasks, one_hot, regression_targets
from elmesh.errors import ElmeshError

TEXT = ["york", "leeds", "york", "hull", "leeds", "york"]
NUMBERS = [3, -1, 3, 10, -1, 3]
TRUTHS = [True, False, True, True, False, True]

label_lists = st.one_of(
    st.lists(st.text(max_size=3), min_size=1, max_size=40),
    st.lists(st.integers(-5, 5) | st.integers(-(2**62), 2**62), min_size=1, max_size=40),
    st.lists(st.booleans(), min_size=1, max_size=40),
)


def refusal(call, *args, **kwargs):
    """The one message with which a call refuses its arguments."""
    with pytest.raises(ElmeshError) as caught:
        call(*args, **kwargs)
    return str(caught.value)


# group_rows


@given(label_lists)
def test_every_row_is_in_the_group_of_its_own_label_and_in_order(labels):
    groups = group_rows(labels, len(labels))
    assert list(groups) == sorted(set(labels))
    assert sorted(np.concatenate(list(groups.values())).tolist()) == list(range(len(labels)))
    for label, rows in groups.items():
        assert all(labels[i] == label for i in rows)
        assert (np.diff(rows) > 0).all()


FORMS = {
    "list": lambda v: v,
    "tuple": tuple,
    "generator": lambda v: (x for x in v),
    "array": np.array,
    "object array": lambda v: np.array(v, dtype=object),
    "array of NumPy scalars": lambda v: np.array([np.array(x)[()] for x in v], dtype=object),
    "pandas": pd.Series,
    "pandas with another index": lambda v: pd.Series(v, index=range(100, 100 + len(v))),
    "pandas object": lambda v: pd.Series(v, dtype=object),
    "pandas nullable": lambda v: pd.Series(v).convert_dtypes(),
    "pandas index": pd.Index,
    "pandas categorical": pd.Categorical,
    "pandas column of categories": lambda v: pd.Series(v, dtype="category"),
    "polars": pl.Series,
    "Arrow": pa.array,
    "Arrow in chunks": lambda v: pa.chunked_array([v[:2], v[2:]]),
}


@pytest.mark.parametrize("labels", [TEXT, NUMBERS, TRUTHS], ids=["text", "numbers", "truths"])
@pytest.mark.parametrize("form", FORMS)
def test_any_kind_of_column_gives_the_same_groups_with_plain_labels(form, labels):
    expected = group_rows(labels, len(labels))
    groups = group_rows(FORMS[form](labels), len(labels))
    assert list(groups) == list(expected)
    assert {type(label) for label in groups} == {type(labels[0])}
    for label, rows in groups.items():
        np.testing.assert_array_equal(rows, expected[label])


def test_polars_categories_are_text():
    assert list(group_rows(pl.Series(TEXT, dtype=pl.Categorical), 6)) == ["hull", "leeds", "york"]


def test_categories_that_no_row_has_are_not_tasks():
    column = pd.Categorical(["a", "b", "a"], categories=["a", "b", "unused"])
    assert list(group_rows(column, 3)) == ["a", "b"]


def test_without_labels_all_rows_are_one_task():
    groups = group_rows(None, 4)
    assert list(groups) == ["all"]
    assert groups["all"].tolist() == [0, 1, 2, 3]


def test_no_labels_for_no_rows_make_no_tasks():
    assert group_rows([], 0) == {}


def test_a_different_number_of_labels_and_rows_is_refused_with_both_numbers():
    assert re.search("1 label .*3 rows", refusal(group_rows, ["a"], 3))
    assert re.search("2 labels .*1 row;", refusal(group_rows, ["a", "b"], 1))


@pytest.mark.parametrize(
    "column",
    [
        ["a", None, "b", None],
        ["a", float("nan"), "b", "c"],
        [1, None, 2, 3],
        np.array([1.0, np.nan, 2.0, 3.0]),
        np.array(["a", np.nan, "b", "c"], dtype=object),
        np.ma.array([1, 2, 3, 4], mask=[0, 1, 0, 0]),
        pd.Series(["a", None, "b", "c"]),
        pd.Series([1, None, 2, 3]),
        pd.Series([1, None, 2, 3], dtype="Int64"),
        pd.Series(["a", None, "b", "c"], dtype="category"),
        pd.Series([pd.Timestamp(0), pd.NaT, pd.Timestamp(0), pd.Timestamp(0)]).astype(object),
        pl.Series(["a", None, "b", "c"]),
        pl.Series([1, None, 2, 3]),
        pa.array([1, None, 2, 3]),
    ],
)
def test_the_first_missing_label_is_named_by_its_row(column):
    assert "missing in row 1 " in refusal(group_rows, column, 4)


@pytest.mark.parametrize("column", [[2, 1.0], np.array([2, 1], dtype=object) * 1.0, pd.Series([0.5, 1.0])])
def test_float_labels_are_refused_with_advice(column):
    message = refusal(group_rows, column, 2)
    assert "float" in message
    assert "text or whole numbers" in message


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        (["a", "a", 1], ["'a' in row 0", "1 in row 2"]),
        ([1, True], ["1 in row 0", "True in row 1"]),
        (np.array([0, False], dtype=object), ["0 in row 0", "False in row 1"]),
    ],
)
def test_labels_of_mixed_types_are_refused_with_an_example_of_each(column, expected):
    message = refusal(group_rows, column, len(column))
    assert all(part in message for part in expected)


@pytest.mark.parametrize(
    "column",
    [
        np.array([["a"], ["b"]]),
        np.array("a"),
        pd.DataFrame({"site": ["a", "b"]}),
        pl.DataFrame({"site": ["a", "b"]}),
    ],
)
def test_labels_in_any_other_than_one_dimension_are_refused(column):
    assert "shape" in refusal(group_rows, column, 2)


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        ([["a"], ["b"]], "list"),
        ([b"a", b"b"], "bytes"),
        (np.array(["2020-01-01", "2020-01-02"], dtype="datetime64[ns]"), "dates"),
        (pd.to_datetime(pd.Series(["2020-01-01", "2020-01-02"])), "dates"),
        ([1j, 2j], "complex"),
        (5, "int"),
        ({"a": 0, "b": 1}, "dict"),
        ({"a", "b"}, "set"),
    ],
)
def test_what_cannot_be_a_column_of_labels_is_refused_by_its_type(column, expected):
    assert expected in refusal(group_rows, column, 2)


def test_a_column_name_in_place_of_the_column_is_recognised():
    assert "'site'" in refusal(group_rows, "site", 4)


# match_tasks


@given(label_lists, st.data())
def test_known_tasks_are_grouped_as_at_fit(labels, data):
    chosen = data.draw(st.lists(st.sampled_from(labels), min_size=1))
    groups = match_tasks(chosen, len(chosen), sorted(set(labels)))
    expected = group_rows(chosen, len(chosen))
    assert list(groups) == list(expected)
    for label, rows in groups.items():
        np.testing.assert_array_equal(rows, expected[label])


def test_an_unknown_task_is_named_together_with_the_known_ones():
    message = refusal(match_tasks, ["hull", "bath", "hull"], 3, ["hull", "york"])
    assert "Task 'bath' is not known" in message
    assert "'hull', 'york'" in message


def test_at_most_ten_known_tasks_are_named():
    message = refusal(match_tasks, [-1], 1, list(range(139)))
    assert "0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 129 more" in message


def test_at_most_ten_unknown_tasks_are_named():
    message = refusal(match_tasks, list(range(100, 112)), 12, [1])
    assert "109 and 2 more are not known" in message


@pytest.mark.parametrize(
    ("given_label", "known", "expected"),
    [
        ("3", [3, 4], "whole numbers while these are text"),
        (3, ["3", "4"], "text while these are whole numbers"),
        (True, [0, 1], "whole numbers while these are True and False"),
        (1, [False, True], "True and False while these are whole numbers"),
    ],
)
def test_a_label_of_another_type_than_at_fit_is_refused_with_both_types(given_label, known, expected):
    message = refusal(match_tasks, [given_label], 1, known)
    assert expected in message
    assert repr(given_label) in message


def test_labels_may_be_left_out_where_one_task_is_known():
    groups = match_tasks(None, 3, ["york"])
    assert list(groups) == ["york"]
    assert groups["york"].tolist() == [0, 1, 2]


def test_labels_may_not_be_left_out_where_several_tasks_are_known():
    assert re.search("2 tasks .*'hull', 'york'", refusal(match_tasks, None, 3, ["hull", "york"]))


# check_task_sizes


def sizes_of(groups):
    return {label: len(rows) for label, rows in groups.items()}


def test_tasks_with_too_few_rows_are_all_named():
    groups = group_rows(["a", "b", "b", "c"], 4)
    message = refusal(check_task_sizes, sizes_of(groups))
    assert "task 'a' has only one row" in message
    assert "task 'c' has only one row" in message
    assert "'b'" not in message
    assert "at least 2 rows" in message


def test_tasks_with_enough_rows_pass():
    check_task_sizes(sizes_of(group_rows(["a", "b", "b", "a"], 4)))
    check_task_sizes(sizes_of(group_rows(["a"], 1)), minimum=1)


def test_a_task_without_rows_and_no_tasks_at_all_are_refused():
    assert "task 'all' has no rows" in refusal(check_task_sizes, sizes_of(group_rows(None, 0)))
    assert "no tasks" in refusal(check_task_sizes, {})


def test_at_most_ten_small_tasks_are_named():
    assert "task 9 has only one row (one sample) and 4 more" in refusal(
        check_task_sizes, sizes_of(group_rows(list(range(14)), 14))
    )


# one_hot


CLASS_COLUMNS = {
    "integers": [2, 0, 2, 1, 0, 1],
    "floats": [0.5, 1.5, 0.5, -1.0, 1.5, -1.0],
    "text": ["cat", "dog", "cat", "ant", "dog", "bee"],
    "truths": [True, False, True, True, False, False],
}
TWO_TASKS = ["a", "a", "a", "b", "b", "b"]


@pytest.mark.parametrize("column", CLASS_COLUMNS.values(), ids=CLASS_COLUMNS.keys())
@pytest.mark.parametrize("form", ["list", "array", "object array", "pandas", "pandas column of categories", "polars"])
def test_targets_are_one_in_the_column_of_the_row_s_class_and_zero_elsewhere(form, column):
    groups = group_rows(TWO_TASKS, 6)
    targets, classes = one_hot(FORMS[form](column), groups)
    assert list(targets) == list(classes) == ["a", "b"]
    for label, rows in groups.items():
        own = sorted({column[i] for i in rows})
        assert classes[label].tolist() == own
        assert targets[label].tolist() == [[float(column[i] == c) for c in own] for i in rows]


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 4)), min_size=1, max_size=60))
def test_the_classes_come_back_from_the_targets(pairs):
    tasks, y = [t for t, _ in pairs], np.array([c for _, c in pairs])
    groups = group_rows(tasks, len(tasks))
    targets, classes = one_hot(y, groups)
    if any(len(set(y[rows])) < 2 for rows in groups.values()):
        assert "two classes" in refusal(check_two_classes, classes, together=False)
    else:
        check_two_classes(classes, together=False)
    if len(set(y)) < 2:
        assert "two classes" in refusal(check_two_classes, classes, together=True)
    else:
        check_two_classes(classes, together=True)
    for label, rows in groups.items():
        assert (targets[label].sum(axis=1) == 1).all()
        np.testing.assert_array_equal(classes[label][targets[label].argmax(axis=1)], y[rows])


def test_every_task_with_a_single_class_is_named_with_it():
    groups = group_rows(["a", "a", "b", "b", "c", "c"], 6)
    _, classes = one_hot(["x", "x", "x", "y", "z", "z"], groups)
    message = refusal(check_two_classes, classes, together=False)
    assert "task 'a' has 'x'" in message
    assert "task 'c' has 'z'" in message
    assert "'b'" not in message


@pytest.mark.parametrize(
    "column",
    [
        [0.0, 1.0, np.nan],
        ["a", "b", None],
        pd.Series(["a", "b", None]),
        pd.Series([1, 0, None], dtype="Int64"),
    ],
)
def test_a_missing_class_is_named_by_its_row(column):
    assert "missing in row 2 " in refusal(one_hot, column, group_rows(None, 3))


def test_class_labels_of_mixed_types_are_refused():
    assert "mixes types" in refusal(one_hot, np.array(["a", 1, "b"], dtype=object), group_rows(None, 3))
    assert "mixes types" in refusal(one_hot, np.array([1, True], dtype=object), group_rows(None, 2))
    assert "mixes types" in refusal(one_hot, np.array([(1,), (2,), 3], dtype=object), group_rows(None, 3))


@pytest.mark.parametrize(
    "column", [np.array([b"a", b"b"]), np.array([1j, 2j]), np.array([0, 1], dtype="datetime64[s]")]
)
def test_class_labels_of_a_strange_type_are_refused(column):
    assert "type" in refusal(one_hot, column, group_rows(None, 2))


def test_class_labels_in_two_dimensions_are_refused():
    assert "(2, 1)" in refusal(one_hot, [[0], [1]], group_rows(None, 2))


@pytest.mark.parametrize("convert", [one_hot, regression_targets])
def test_targets_of_another_length_than_the_rows_are_refused_with_both_numbers(convert):
    assert re.search("2 values .*3 rows", refusal(convert, [0, 1], group_rows(None, 3)))


# regression_targets


@given(st.lists(st.tuples(st.integers(0, 3), st.floats(allow_nan=False, allow_infinity=False)), min_size=1))
def test_each_task_gets_the_numbers_of_its_own_rows(pairs):
    tasks, y = [t for t, _ in pairs], [v for _, v in pairs]
    for label, T in regression_targets(y, group_rows(tasks, len(y))).items():
        assert T.shape[1] == 1
        assert T[:, 0].tolist() == [v for t, v in pairs if t == label]


@pytest.mark.parametrize(
    "y",
    [
        [1, 2, 3],
        np.array([1, 2, 3], dtype=np.float32),
        np.array([1, 2.0, np.int8(3)], dtype=object),
        pd.Series([1, 2, 3], dtype="Int64"),
        pl.Series([1, 2, 3]),
    ],
)
def test_numbers_of_any_type_become_floats(y):
    T = regression_targets(y, group_rows(None, 3))["all"]
    assert T.dtype == np.float64
    assert T.tolist() == [[1.0], [2.0], [3.0]]


def test_several_outputs_keep_their_columns():
    Y = np.arange(8.0).reshape(4, 2)
    targets = regression_targets(pd.DataFrame(Y), group_rows(["b", "a", "b", "a"], 4))
    np.testing.assert_array_equal(targets["a"], Y[[1, 3]])
    np.testing.assert_array_equal(targets["b"], Y[[0, 2]])


def test_targets_do_not_share_memory_with_the_user_s_array():
    y = np.zeros(3)
    T = regression_targets(y, group_rows(None, 3))["all"]
    T[:] = 1.0
    assert not y.any()


@pytest.mark.parametrize("y", [["1.5", "2"], np.array([1.5, "high"], dtype=object), pd.Series(["1", "high"])])
def test_text_is_never_taken_for_a_number(y):
    message = refusal(regression_targets, y, group_rows(None, 2))
    assert "not a number" in message
    assert "in row" in message


@pytest.mark.parametrize(
    "y",
    [
        [0.0, np.nan],
        [0.0, np.inf],
        [[1, 2], [3, -np.inf]],
        np.array([0, None], dtype=object),
        [0, pd.NA],
    ],
)
def test_a_target_that_is_not_finite_is_named_by_its_row(y):
    assert "NaN or infinite in row 1 " in refusal(regression_targets, y, group_rows(None, 2))


@pytest.mark.parametrize(
    ("y", "expected"),
    [
        (np.zeros((2, 0)), "(2, 0)"),
        (np.zeros((2, 1, 1)), "(2, 1, 1)"),
        (np.zeros(2, dtype=complex), "complex"),
        (np.array([{}, {}], dtype=object), "not a number"),
        (np.array([0, 1], dtype="datetime64[s]"), "datetime64"),
    ],
)
def test_what_cannot_be_a_numeric_target_is_refused(y, expected):
    assert expected in refusal(regression_targets, y, group_rows(None, 2))


# stack_tasks


@given(st.dictionaries(st.text(max_size=3).filter(lambda s: "\0" not in s), st.integers(1, 5), min_size=1, max_size=6))
def test_stacked_tables_fall_apart_into_the_tables_again(sizes):
    rng = np.random.default_rng(0)
    tables = {label: (rng.normal(size=(n, 3)), rng.normal(size=n)) for label, n in sizes.items()}
    X, y, tasks = stack_tasks(tables)
    for label, rows in group_rows(tasks, len(X)).items():
        np.testing.assert_array_equal(X[rows], tables[label][0])
        np.testing.assert_array_equal(y[rows], tables[label][1])


@pytest.mark.parametrize("frame", [pd.DataFrame, pl.DataFrame])
def test_frames_are_stacked_as_a_frame_with_the_same_columns(frame):
    tables = {t: (frame({"age": [t, t + 1], "size": [0.5, 1.5 * t]}), [0, 1]) for t in (1, 2, 3)}
    tables[4] = (frame({"age": [4.5], "size": [0.0]}), [1])
    X, y, tasks = stack_tasks(tables)
    assert isinstance(X, frame)
    assert list(X.columns) == ["age", "size"]
    np.testing.assert_array_equal(np.asarray(X)[:, 0], [1, 2, 2, 3, 3, 4, 4.5])
    assert tasks.tolist() == [1, 1, 2, 2, 3, 3, 4]
    assert y.tolist() == [0, 1, 0, 1, 0, 1, 1]


def test_one_table_alone_can_be_stacked():
    X, y, tasks = stack_tasks({True: (pl.DataFrame({"a": [1, 2]}), ["x", "y"])})
    assert X.shape == (2, 1)
    assert y.tolist() == ["x", "y"]
    assert tasks.tolist() == [True, True]


X2, X3 = np.zeros((2, 2)), np.zeros((2, 3))


@pytest.mark.parametrize(
    ("tables", "expected"),
    [
        ({}, ["at least one task"]),
        ([(X2, [0, 1])], ["dict"]),
        ({"a": X2}, ["'a'", "pair (X, y)"]),
        ({"a": (X2, [0, 1]), "b": (X3, [0, 1])}, ["'a' has 2 columns", "'b' has 3"]),
        ({"a": (X2, [0, 1]), "b": (X2[:0], [])}, ["'b' has no rows"]),
        ({"a": (X2, [0, 1, 1])}, ["'a' has 2 rows in X but 3 in y"]),
        ({"a": (np.zeros(2), [0, 1])}, ["'a'", "(2,)"]),
        ({"a": (X2, np.zeros((2, 1, 1)))}, ["'a'", "(2, 1, 1)"]),
        ({"a": (X2, 5)}, ["'a'", "()"]),
        ({"a": (X2, [0, 1]), 1: (X2, [0, 1])}, ["mixes types"]),
        ({0.5: (X2, [0, 1])}, ["float"]),
        ({None: (X2, [0, 1])}, ["missing"]),
        ({"a": (X2, [0, 1]), "b": (X2, ["x", "y"])}, ["text in task 'b'", "not in task 'a'"]),
        ({"a": (X2, ["x", "y"]), "b": (X2, [0, 1])}, ["text in task 'a'", "not in task 'b'"]),
        ({"a": (X2, np.zeros((2, 1))), "b": (X2, np.zeros((2, 2)))}, ["(2, 1)", "(2, 2)"]),
        ({"a": (X2, np.zeros(2)), "b": (X2, np.zeros((2, 1)))}, ["(2,)", "(2, 1)"]),
    ],
)
def test_tables_that_do_not_fit_together_are_refused_by_name(tables, expected):
    message = refusal(stack_tasks, tables)
    assert all(part in message for part in expected)


@pytest.mark.parametrize("frame", [pd.DataFrame, pl.DataFrame])
@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        (["age", "years"], ["only 'a' has 'size'", "only 'b' has 'years'"]),
        (["age"], ["only 'a' has 'size'"]),
        (["age", "size", "more"], ["only 'b' has 'more'"]),
        (["size", "age"], ["another order", "column 0", "'age' in 'a'", "'size' in 'b'"]),
    ],
)
def test_frames_with_other_columns_are_refused_with_the_difference(frame, columns, expected):
    a, b = frame({"age": [1], "size": [2]}), frame({name: [1] for name in columns})
    message = refusal(stack_tasks, {"a": (a, [0]), "b": (b, [0])})
    assert all(part in message for part in expected)


def test_column_names_that_occur_twice_do_not_hide_a_difference():
    a, b = pd.DataFrame([[1, 2]], columns=["x", "y"]), pd.DataFrame([[1, 2, 3]], columns=["x", "y", "y"])
    assert "more than once" in refusal(stack_tasks, {"a": (a, [0]), "b": (b, [0])})


@pytest.mark.parametrize("other", [np.zeros((1, 1)), pl.DataFrame({"x": [1]})])
def test_tables_of_different_forms_are_not_stacked(other):
    message = refusal(stack_tasks, {"a": (pd.DataFrame({"x": [1]}), [0]), "b": (other, [0])})
    assert "'a' is given as a pandas frame" in message
    assert "'b' as a p" in message
