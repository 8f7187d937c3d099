"""Bad input to the public estimators: the message names what is wrong and what to do about it."""

from __future__ import annotations

import json
import warnings
from copy import copy
from functools import partial

import networkx as nx
import numpy as np
import pandas as pd
import polars as pl
import pytest
from sklearn.exceptions import NotFittedError

import elmesh
from elmesh import (
    DGSP,
    DMTLELM,
    DNSP,
    FODMTLELM,
    GOMTL,
    MTFL,
    MTLELM,
    ElmeshError,
    LocalELM,
    MeshELM,
    MultiTaskELMClassifier,
    MultiTaskELMRegressor,
)
from elmesh.errors import RankWarning
from elmesh.solvers import solver_classes

# Those of elmesh: other tests may have registered their own.
SOLVERS = [name for name, cls in solver_classes().items() if cls.__module__.startswith("elmesh.")]
TASKS = np.repeat(["leeds", "ripon", "york"], 10)
X = np.random.default_rng(0).normal(size=(30, 3))
LABELS = np.tile(["high", "low"], 15)
NUMBERS = X @ [1.0, -1.0, 0.5]
COLUMNS = ["age", "dose", "weight"]

ESTIMATORS = {"classification": (MultiTaskELMClassifier, LABELS), "regression": (MultiTaskELMRegressor, NUMBERS)}
both = pytest.mark.parametrize("kind", ESTIMATORS)


def estimator(kind="regression", **parameters):
    return ESTIMATORS[kind][0](**({"n_hidden": 8, "random_state": 0} | parameters))


def fit(kind="regression", X=X, y=None, tasks=TASKS, **parameters):
    return estimator(kind, **parameters).fit(X, ESTIMATORS[kind][1] if y is None else y, tasks)


@pytest.fixture(scope="module")
def models():
    return {kind: fit(kind) for kind in ESTIMATORS}


def changed(array, where, value):
    array = np.array(array, dtype=object if isinstance(value, str) else array.dtype)
    array[where] = value
    return array


# -------------------------------------------------------------------------------------------------------------- values


@both
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_an_input_that_is_not_finite_is_pointed_at(kind, value, models):
    bad = changed(X, (3, 1), value)
    message = r"X is NaN or infinite in row 3 \(counting from 0\), column {}; fill it in, .* or leave the row out"
    with pytest.raises(ElmeshError, match=message.format(1)):
        fit(kind, bad)
    if np.isinf(value):
        for table in (pd.DataFrame(bad, columns=COLUMNS), pl.DataFrame(bad, schema=COLUMNS)):
            with pytest.raises(ElmeshError, match=r'Column "dose" has an infinite value at row 4; correct it'):
                fit(kind, table)
    with pytest.raises(ElmeshError, match=message.format(1)):
        models[kind].predict(bad, TASKS)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("form", [np.asarray, list, pd.Series, pl.Series, lambda y: np.stack([y, y], axis=1)])
def test_a_number_to_predict_that_is_not_finite_is_pointed_at(value, form):
    with pytest.raises(
        ElmeshError, match=r"y is NaN or infinite in row 4 \(counting from 0\); leave that row out or fill"
    ):
        fit(y=form(changed(NUMBERS, 4, value)))


@pytest.mark.parametrize("form", [np.asarray, pd.Series, lambda y: pd.Series(y, dtype="str")])
@pytest.mark.parametrize("value", [None, np.nan])
def test_a_missing_class_is_pointed_at(value, form):
    labels = LABELS.astype(object)
    labels[7] = value
    with pytest.raises(ElmeshError, match=r"The class is missing in row 7 .*; fill it in or leave the row out"):
        fit("classification", y=form(labels))


def test_an_infinite_class_is_pointed_at():
    numbers = np.where(LABELS == "low", 1.0, 2.0)
    with pytest.raises(ElmeshError, match=r"y is infinite in row 2 .*; give a class or leave the row out"):
        fit("classification", y=changed(numbers, 2, np.inf))


@pytest.mark.parametrize("form", [list, np.asarray, pd.Series, pl.Series, lambda y: pd.Series(y, dtype="category")])
@pytest.mark.parametrize("text", ["high", "12"])
def test_text_to_predict_by_regression_is_refused_even_where_it_looks_like_a_number(form, text):
    with pytest.raises(
        ElmeshError, match=rf"'{text}'.* in row 0 .* not a number; .* convert it, or use classification"
    ):
        fit(y=form([text, "7"] * 15))


def test_continuous_numbers_are_not_classes():
    with pytest.raises(ValueError, match=r"Unknown label type: continuous\. Maybe you are trying to fit a classifier"):
        fit("classification", y=NUMBERS)


@both
def test_inputs_of_text_or_in_one_dimension_are_refused(kind):
    with pytest.raises(ValueError, match="could not convert string to float: 'tall'"):
        fit(kind, changed(X, (0, 0), "tall"))
    with pytest.raises(ValueError, match=r"(?s)Expected 2D array, got 1D array instead.*Reshape your data"):
        fit(kind, X[:, 0])


# --------------------------------------------------------------------------------------------------- rows and columns


@both
def test_an_error_about_lengths_names_both_lengths(kind, models):
    with pytest.raises(ElmeshError, match="y has 29 values for 30 rows; give one per row"):
        fit(kind, y=ESTIMATORS[kind][1][:-1])
    with pytest.raises(ElmeshError, match="y has 29 values for 30 rows; give one per row"):
        fit(kind, pd.DataFrame(X), y=ESTIMATORS[kind][1][:-1])
    with pytest.raises(ElmeshError, match="y has 1 value for 2 rows; give one per row"):
        models[kind].partial_fit(X[:2], ESTIMATORS[kind][1][:1], TASKS[:2])
    with pytest.raises(ElmeshError, match="tasks has 29 labels but the data have 30 rows; give one label per row"):
        fit(kind, tasks=TASKS[:-1])
    with pytest.raises(ElmeshError, match="tasks has 30 labels but the data have 5 rows; give one label per row"):
        models[kind].predict(X[:5], TASKS)


@both
def test_other_columns_than_at_fit_are_refused(kind, models):
    with pytest.raises(ValueError, match=r"X has 2 features, but MultiTaskELM\w+ is expecting 3 features"):
        models[kind].predict(X[:, :2], TASKS)


def test_tasks_of_unequal_width_are_named_with_their_widths():
    tables = {"leeds": (X[:10], LABELS[:10]), "ripon": (X[10:20, :2], LABELS[10:20]), "york": (X[20:], LABELS[20:])}
    message = "task 'leeds' has 3 columns, but task 'ripon' has 2; every task needs the same input columns"
    with pytest.raises(ElmeshError, match=message):
        elmesh.stack_tasks(tables)


def test_tables_that_stack_can_be_fitted():
    tables = {TASKS[i]: (X[i : i + 10], LABELS[i : i + 10]) for i in (0, 10, 20)}
    stacked_X, y, tasks = elmesh.stack_tasks(tables)
    np.testing.assert_array_equal(
        fit("classification", stacked_X, y, tasks).decision_function(X, TASKS),
        fit("classification").decision_function(X, TASKS),
    )


@both
def test_a_task_with_one_row_is_named(kind):
    with pytest.raises(
        ElmeshError, match=r"at least 2 rows, but task 'hull' has only one row .*; give more rows or leave"
    ):
        fit(kind, tasks=["hull", *TASKS[1:]], solver="mtl-elm")


@both
def test_no_rows_at_all_are_refused(kind):
    with pytest.raises(ValueError, match=r"0 sample\(s\).* a minimum of 2 is required"):
        fit(kind, X[:0], ESTIMATORS[kind][1][:0], TASKS[:0])


def test_a_task_with_one_class_is_named_with_it():
    message = r"at least two classes.* task 'ripon' has 'low'; give rows of another class or leave the task out"
    with pytest.raises(ElmeshError, match=message):
        fit("classification", y=np.where(TASKS == "ripon", "low", LABELS), solver="mtl-elm")


# --------------------------------------------------------------------------------------------------------------- tasks


def strict(model):
    """Return the model, refusing tasks that it does not know."""
    return copy(model).set_params(unknown_site="error")


@pytest.mark.parametrize(
    ("kind", "method"),
    [("classification", method) for method in ("predict", "score", "predict_proba", "decision_function")]
    + [("regression", method) for method in ("predict", "score")],
)
def test_an_error_about_an_unknown_task_names_the_known_ones(kind, method, models):
    y = [ESTIMATORS[kind][1]] if method == "score" else []
    message = r"Task 'hull' is not known; the model was fitted with 'leeds', 'ripon', 'york'"
    with pytest.raises(ElmeshError, match=message):
        getattr(strict(models[kind]), method)(X, *y, tasks=["hull", *TASKS[1:]])
    with pytest.raises(ElmeshError, match=r"holds 3 tasks \('leeds', 'ripon', 'york'\), so tasks must name"):
        getattr(models[kind], method)(X, *y)


@both
def test_a_label_of_another_type_has_its_own_error(kind, models):
    message = "which are text while these are whole numbers: give the labels as they were then"
    with pytest.raises(ElmeshError, match=message):
        strict(models[kind]).predict(X, np.zeros(30, dtype=int))


@both
def test_there_is_no_model_of_an_unknown_task(kind, models):
    with pytest.raises(
        ElmeshError, match=r"Task 'hull' is not known; the model was fitted with 'leeds', 'ripon', 'york'"
    ):
        models[kind].for_task("hull")


@pytest.mark.parametrize(
    ("tasks", "message"),
    [
        ([None, *TASKS[1:]], r"task label is missing in row 0 .*; give every row a task or leave the row out"),
        (np.linspace(0, 1, 30), r"task label 0\.0 in row 0 .* is a float; use text or whole numbers"),
        ("site", "tasks is the text 'site'; give one label per row"),
        (np.stack([TASKS, TASKS], axis=1), r"tasks has shape \(30, 2\); give one column"),
        ([1, *TASKS[1:]], "mixes types of label: .*; use only text or only whole numbers"),
    ],
)
def test_labels_that_cannot_name_tasks_are_refused(tasks, message):
    with pytest.raises(ElmeshError, match=message):
        fit(tasks=tasks)


# ---------------------------------------------------------------------------------------------------------- parameters


@both
@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"solver": "dmtl"}, f"The solver 'dmtl' is unknown; use one of {', '.join(SOLVERS)}"),
        ({"solver": None}, r"solver must be a name \(.*local-elm, .*\) or a solver such as MeshELM\(\), not NoneType"),
        ({"solver": MeshELM}, r"solver such as MeshELM\(\), not"),
        ({"n_hidden": 0}, 'n_hidden must be a whole number of at least 1, "auto", or None for no hidden layer; got 0'),
        ({"activation": "gelu"}, "activation must be one of sigmoid, tanh, relu, sine, none; got 'gelu'"),
        ({"weight_scale": -1.0}, "weight_scale must be a finite number, more than zero; got -1.0"),
        ({"random_state": -1}, r"random_state is -1; it must be a whole number from 0 to 2\*\*64 - 1, or None"),
        ({"random_state": 2**64}, r"random_state is 18446744073709551616; it must be"),
        ({"solver": LocalELM(mu=0.0)}, "mu must be a finite number, more than zero; got 0.0"),
        ({"solver": MTLELM(rank=0)}, "rank must be a whole number of at least 1; got 0"),
        ({"solver": DMTLELM(rank=0)}, "rank must be a whole number of at least 1; got 0"),
        ({"solver": FODMTLELM(rank=2.5)}, "rank must be a whole number of at least 1; got 2.5"),
        ({"solver": DMTLELM(mu1=np.nan)}, "mu1 must be a finite number, more than zero; got nan"),
        ({"solver": DMTLELM(max_iter=0)}, "max_iter must be a whole number of at least 1; got 0"),
        ({"solver": DMTLELM(tau=[1.0, 2.0])}, "has 2 values, but there are 3 agents"),
        ({"solver": DMTLELM(mu2="high")}, "mu2 must be a finite number, more than zero; got 'high'"),
        ({"solver": MeshELM(graph=7)}, r"graph must be a name \(ring, .*\) or a networkx.Graph, not int"),
        ({"solver": MeshELM(message_bits=5)}, "message_bits must be one of 2, 4, 8, 16, 32, 64, auto; got 5"),
        ({"solver": MTFL(eps=0.0)}, "eps must be a finite number, more than zero; got 0.0"),
        ({"solver": GOMTL(init="ones")}, "init must be one of spectral, random; got 'ones'"),
        ({"solver": DGSP(rank=0)}, "rank must be a whole number of at least 1; got 0"),
        ({"solver": DNSP(mu=-1.0)}, "mu must be a finite number, more than zero; got -1.0"),
    ],
)
def test_a_parameter_out_of_range_is_named_with_what_is_allowed(kind, parameters, message):
    with pytest.raises(ElmeshError, match=message):
        fit(kind, **parameters)


@pytest.mark.parametrize(
    "solver", [partial(MeshELM, common=False, private=False), MTLELM, DMTLELM, FODMTLELM, GOMTL, DNSP]
)
@pytest.mark.parametrize(("kind", "usable"), [("regression", 3), ("classification", 3)])
def test_a_rank_above_what_the_data_allow_warns_and_names_the_usable_one(solver, kind, usable):
    """Three tasks of one target column, or of two classes that are one less the other: three directions."""
    with pytest.warns(RankWarning, match=rf"rank=7 is more than these data can use: .* so rank {usable} is used"):
        model = fit(kind, solver=solver(rank=7))
    assert model.U_.shape[-1] == usable
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        exact = fit(kind, solver=solver(rank=usable))
    np.testing.assert_array_equal(model.predict(X, TASKS), exact.predict(X, TASKS))


def graph(*edges, nodes=("leeds", "ripon", "york")):
    made = nx.Graph()
    made.add_nodes_from(nodes)
    made.add_edges_from(edges)
    return made


@both
@pytest.mark.parametrize("solver", [MeshELM, DMTLELM, FODMTLELM])
@pytest.mark.parametrize(
    ("given_graph", "message"),
    [
        (
            graph(("leeds", "york")),
            r"not connected: it falls into 2 parts, \{leeds, york\}, \{ripon\}. Add edges between",
        ),
        (nx.path_graph(4), "has 4 nodes but there are 3 tasks; each task is one node"),
        (graph(("leeds", "ripon"), ("ripon", "york"), ("york", "york")), "self-loops at york; remove them"),
        (nx.path_graph(["leeds", "hull", "york"]), r"hull are unknown. Name the nodes by the task labels, or number"),
        ("torus", "'torus' is unknown; use one of ring, path, star, complete, random, grid"),
    ],
)
def test_an_impossible_graph_is_refused(kind, solver, given_graph, message):
    with pytest.raises(ElmeshError, match=message):
        fit(kind, solver=solver(graph=given_graph))


@both
def test_a_fit_that_fails_on_its_values_leaves_the_model_as_it_was(kind):
    model = fit(kind)
    before = model.predict(X, TASKS)
    with pytest.raises(ElmeshError):
        model.fit(changed(X, (0, 0), np.nan), ESTIMATORS[kind][1], TASKS)
    np.testing.assert_array_equal(model.predict(X, TASKS), before)


# -------------------------------------------------------------------------------------------------------------- folders


@pytest.fixture
def saved(models, tmp_path):
    models["classification"].save(tmp_path / "model")
    return tmp_path / "model"


@both
def test_an_estimator_that_is_not_fitted_raises(kind, tmp_path):
    calls = (
        lambda model: model.predict(X, TASKS),
        lambda model: model.for_task("leeds"),
        lambda model: model.save(tmp_path / "m"),
    )
    for call in calls:
        with pytest.raises(NotFittedError, match=r"not fitted yet\. Call 'fit'"):
            call(estimator(kind))
    assert not (tmp_path / "m").exists()


def test_an_output_path_that_exists_is_left_as_it_is(models, saved):
    before = {file: file.read_bytes() for file in saved.rglob("*") if file.is_file()}
    with pytest.raises(ElmeshError, match="exists already; choose another path, or set overwrite=True"):
        models["regression"].save(saved)
    assert {file: file.read_bytes() for file in saved.rglob("*") if file.is_file()} == before
    models["regression"].save(saved, overwrite=True)
    np.testing.assert_array_equal(elmesh.load(saved).predict(X, TASKS), models["regression"].predict(X, TASKS))


def test_a_folder_of_something_else_is_not_overwritten_even_when_asked(models, tmp_path):
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(ElmeshError, match="is not an elmesh model, so it is not overwritten; choose another path"):
        models["regression"].save(tmp_path, overwrite=True)
    assert (tmp_path / "thesis.txt").read_text() == "years of work"


@pytest.mark.parametrize("name", ["model.json", "weights.safetensors"])
def test_a_file_cut_short_is_named(saved, name):
    whole = (saved / name).read_bytes()
    (saved / name).write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ElmeshError, match=rf"{name}.* cut short or altered"):
        elmesh.load(saved)


def test_an_altered_weight_is_noticed(saved):
    data = bytearray((saved / "weights.safetensors").read_bytes())
    data[-3] ^= 1
    (saved / "weights.safetensors").write_bytes(bytes(data))
    with pytest.raises(
        ElmeshError, match=r"weights.safetensors has been altered: its checksum .* Use the file as it was"
    ):
        elmesh.load(saved)


def test_an_altered_description_is_noticed(saved):
    text = (saved / "model.json").read_text()
    (saved / "model.json").write_text(text.replace("leeds", "lewes"))
    with pytest.raises(ElmeshError, match=r"model.json has been altered: its checksum does not match"):
        elmesh.load(saved)


def test_a_model_of_a_newer_version_asks_for_an_upgrade(saved):
    document = json.loads((saved / "model.json").read_text())
    (saved / "model.json").write_text(json.dumps(document | {"format_version": 3}))
    with pytest.raises(ElmeshError, match=r"format version 3 .* upgrade elmesh to read it"):
        elmesh.load(saved)


def test_an_error_about_a_missing_model_names_the_path(saved, tmp_path):
    with pytest.raises(ElmeshError, match=r"There is no model at .*nowhere"):
        elmesh.load(tmp_path / "nowhere")
    (saved / "weights.safetensors").unlink()
    with pytest.raises(ElmeshError, match=r"has no file weights\.safetensors; it is not an elmesh model, or not all"):
        elmesh.load(saved)


@pytest.mark.parametrize("described", [{"n_hidden": 8, "depth": 3}, {"solver": {"nodes": ["a"]}}])
def test_a_folder_of_an_unknown_estimator_is_refused(models, tmp_path, described):
    models["regression"].model_.save(tmp_path / "model", estimator=described)
    with pytest.raises(ElmeshError, match="describes an estimator that this version does not know"):
        elmesh.load(tmp_path / "model")


@pytest.mark.parametrize(
    "solver", [{"solver": "gmtl", "parameters": {}}, {"solver": "dmtl-elm", "parameters": {"colour": 1}}]
)
def test_a_model_of_an_unknown_solver_predicts_and_cannot_be_fitted_again(models, tmp_path, solver):
    models["regression"].model_.save(tmp_path / "model", estimator={"solver": solver})
    model = elmesh.load(tmp_path / "model")
    np.testing.assert_array_equal(model.predict(X, TASKS), models["regression"].predict(X, TASKS))
    with pytest.raises(ElmeshError, match=f"{solver['solver']}.*not defined"):
        model.fit(X, NUMBERS, TASKS)


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize(("inputs", "outputs"), [(1e200, 1.0), (1.0, 1e200)])
def test_numbers_too_large_to_square_are_refused(solver, inputs, outputs):
    X = np.random.default_rng(0).normal(size=(20, 3))
    model = MultiTaskELMRegressor(None, solver=solver, random_state=0)
    with pytest.raises(ElmeshError, match="squares overflow; scale inputs and targets"):
        model.fit(inputs * X, outputs * X[:, 0])


def test_fit_intercept_must_be_true_or_false():
    X = np.random.default_rng(0).normal(size=(20, 3))
    with pytest.raises(ElmeshError, match="fit_intercept must be True or False; got 'no'"):
        MultiTaskELMRegressor(10, fit_intercept="no").fit(X, X[:, 0])
