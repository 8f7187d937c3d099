"""Models as ONNX files: onnxruntime predicts what the estimator predicts, and a file has one site's model alone."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.exceptions import NotFittedError

import elmesh
from elmesh import LocalELM, MeshELM, MultiTaskELMClassifier, MultiTaskELMRegressor, Privacy
from elmesh.data.features import ACTIVATIONS
from elmesh.errors import ElmeshError, RankWarning, UnknownSiteWarning
from elmesh.estimators.onnx_graph import Graph
from elmesh.solvers import make_solver, solver_classes
from elmesh.tables.access import TableWarning
from elmesh.tables.schema import TargetColumn
from helpers.examples import examples
from helpers.marks import one_of
from helpers.onnx_files import columns, constants, feeds, properties, run, session

pytestmark = pytest.mark.filterwarnings(
    *(f"ignore::{kind.__module__}.{kind.__name__}" for kind in (TableWarning, RankWarning, UnknownSiteWarning)),
    "ignore::sklearn.exceptions.ConvergenceWarning",
)

SITES = ["north", "south", "west"]
#: Solvers of elmesh, in few rounds; other tests may have registered their own.
SOLVERS = [name for name, cls in solver_classes().items() if cls.__module__.startswith("elmesh.")]
MODELS_OF_0_4 = Path(__file__).parent.parent / "data" / "model-0.4"
KINDS = {"regression": MultiTaskELMRegressor, "classification": MultiTaskELMClassifier}


def make_table(rng, rows: int, numbers: int = 2, words: int = 1, dates: int = 1, gaps: bool = True, new: bool = False):
    """Numbers of several scales, words and dates with gaps; new rows have outliers, and words that were never seen."""
    table = {"site": np.array(SITES)[np.arange(rows) % 3]}
    for j in range(numbers):
        table[f"number {j}"] = rng.normal(10.0 * j, 10.0**j, rows) * (1.0 + 20.0 * (new and rng.random(rows) < 0.1))
    for j in range(words):
        known = ["east", "w ést", "南", "", "unseen"][: 5 if new else 4]
        table[f"word {j}"] = rng.choice(np.array([None if word == "" else word for word in known], dtype=object), rows)
    for j in range(dates):
        minutes = rng.integers(0, 3 * 365 * 24 * 60, rows) + (10**6 if new else 0)
        table[f"date {j}"] = pd.Timestamp("2019-03-01") + pd.to_timedelta(minutes, unit="min")
    frame = pd.DataFrame(table)
    for name in frame.columns[1:]:
        if gaps and rng.random() < 0.7:
            frame.loc[rng.random(rows) < 0.2, name] = None
    return frame


def signal(frame: pd.DataFrame) -> np.ndarray:
    """A number of order one that depends on the columns and the site."""
    total = np.zeros(len(frame)) + 0.3 * np.arange(len(frame)) % 3
    for name in frame.columns[1:]:
        codes = pd.factorize(frame[name])[0] if name.startswith("word") else frame[name].rank().fillna(0).to_numpy()
        total += codes / (1.0 + np.abs(codes).max())
    return total


def make_targets(kind: str, value: np.ndarray, form: str) -> np.ndarray:
    if kind == "regression":
        return {"one": 1e3 * value - 50, "two": np.column_stack([value, -1e-3 * value]), "column": value[:, None]}[form]
    ranks = np.digitize(value, np.quantile(value, [0.4, 0.7]))
    return np.array({"one": [2, 5, 7], "two": ["no", "maybe", "ça"], "column": [-1.0, 1.0, 2.0]}[form])[ranks]


def compare(model, proto: onnx.ModelProto, rows, tasks=None, *, within: float = 1e-9) -> None:
    """Compare what onnxruntime predicts with what the estimator predicts, relative to the scale of predictions."""
    found = run(proto, rows)
    if isinstance(model, MultiTaskELMClassifier):
        classes = json.loads(properties(proto)["classes"])
        chosen = np.searchsorted(model.classes_, np.array(classes, dtype=model.classes_.dtype))
        shares = model.predict_proba(rows, tasks)
        np.testing.assert_allclose(found["probabilities"], shares[:, chosen], rtol=0, atol=within)
        # Which class wins is not determined where two have the same score.
        top = np.sort(shares, axis=1)
        clear = top[:, -1] - top[:, -2] > 1e-9
        # With dead hidden units the model may be a constant.
        assert clear.any() or np.ptp(shares, axis=0).max() < 1e-9
        np.testing.assert_array_equal(found["label"][clear], model.predict(rows, tasks)[clear])
        return
    predicted, *std = model.predict(rows, tasks, return_std=True) if "std" in found else (model.predict(rows, tasks),)
    assert found["prediction"].shape == predicted.shape
    scale = np.abs(predicted).max() + 1e-300
    np.testing.assert_allclose(found["prediction"], predicted, rtol=0, atol=within * scale)
    if std:
        np.testing.assert_allclose(found["std"], std[0], rtol=1e-7, atol=1e-9 * scale)


# ------------------------------------------------------------------------------------- onnxruntime and the estimator


@given(
    seed=st.integers(0, 10**6),
    kind=st.sampled_from(list(KINDS)),
    form=st.sampled_from(["one", "two", "column"]),
    shape=st.tuples(st.integers(0, 3), st.integers(0, 2), st.integers(0, 2)).filter(any),
    gaps=st.booleans(),
    options=st.fixed_dictionaries(
        {
            "activation": st.sampled_from(ACTIVATIONS),
            "n_hidden": st.sampled_from([None, 1, 6]),
            "fit_intercept": st.booleans(),
            "solver": st.sampled_from(
                [MeshELM(), MeshELM(rank=2, mu1=0.1, mu2=0.1), LocalELM(), LocalELM(mu=1.0), "mtl-elm"]
            ),
        }
    ),
    grouped=st.fixed_dictionaries(
        {"clip": st.sampled_from([None, 2.0]), "direct_links": st.sampled_from([True, "auto"])}
    ),
)
@examples(50)
def test_a_file_predicts_as_the_estimator_does(seed, kind, form, shape, gaps, options, grouped):
    rng = np.random.default_rng(seed)
    train, new = (make_table(rng, 36, *shape, gaps=gaps, new=new) for new in (False, True))
    if not make_solver(options["solver"]).grouped_features:
        grouped = {}
    elif options["n_hidden"] == 1:
        grouped = grouped | {"weight_scale": 2.0}
    y = make_targets(kind, signal(train), form)
    model = KINDS[kind](task="site", random_state=0, **options, **grouped).fit(train, y)
    site = SITES[seed % 3]
    own = new[new["site"] == site]
    std = kind == "regression" and model.model_.common is not None
    compare(model, model.to_onnx(site, return_std=std), own)
    if model.model_.common is not None:
        compare(model, model.to_onnx(common=True, return_std=std), new, ["elsewhere"] * len(new))


def array_problem(kind: str, seed: int = 0):
    rng = np.random.default_rng(seed)
    X, tasks = rng.normal(size=(45, 3)) * [1.0, 300.0, 0.01] + [0, 5, 1], np.arange(45) % 3
    y = X[:, 0] + np.tanh(X[:, 1] / 300) * (1 + tasks)
    return X, y if kind == "regression" else np.where(y > np.median(y), 4, 1), tasks


@pytest.mark.parametrize(("kind", "solver"), one_of(2, KINDS, SOLVERS))
def test_every_solver_can_be_exported_also_after_it_was_saved(solver, kind, tmp_path):
    X, y, tasks = array_problem(kind)
    chosen = solver_classes()[solver]()
    if "max_iter" in chosen.get_params():
        chosen.set_params(max_iter=5)
    model = KINDS[kind](8, solver=chosen, random_state=0).fit(X / [1.0, 300.0, 0.01], y, tasks)
    model.save(tmp_path / "model")
    loaded = elmesh.load(tmp_path / "model")
    own = X[tasks == 1] / [1.0, 300.0, 0.01]
    compare(loaded, loaded.to_onnx(1), own, [1] * len(own))
    assert model.to_onnx(1).SerializeToString() == loaded.to_onnx(1).SerializeToString()


@pytest.mark.parametrize(("activation", "scale"), one_of(4, ACTIVATIONS, ["auto", "columns", "common", None]))
def test_arrays_of_any_scale_are_one_input(activation, scale):
    X, y, tasks = array_problem("regression")
    model = MultiTaskELMRegressor(8, activation=activation, scale=scale, random_state=0).fit(X, y, tasks)
    proto = model.to_onnx(2, return_std=True)
    assert [(one.name, one.type.tensor_type.shape.dim[1].dim_value) for one in proto.graph.input] == [("X", 3)]
    compare(model, proto, 2 * X, [2] * len(X))


@pytest.mark.parametrize(
    "classes",
    [np.array([1, 3], dtype=np.int8), np.array([False, True]), np.array([1, 2**63 + 1], dtype=np.uint64), ["a", "é"]],
)
def test_labels_are_of_the_type_of_the_classes(classes):
    X, y, tasks = array_problem("classification")
    labels = np.asarray(classes)[(y > 1).astype(int)]
    model = MultiTaskELMClassifier(8, random_state=0).fit(X, labels, tasks)
    found = run(model.to_onnx(0), X)["label"]
    expected = {"i": np.int64, "U": object}
    assert found.dtype == expected.get(labels.dtype.kind, labels.dtype)
    np.testing.assert_array_equal(found, model.predict(X, [0] * len(X)))


def test_a_site_with_fewer_classes_has_only_these():
    X, _, tasks = array_problem("classification")
    y = np.where(X[:, 0] > 0, "a", np.where(tasks == 1, "b", "secret"))
    model = MultiTaskELMClassifier(8, random_state=0).fit(X, y, tasks)
    proto = model.to_onnx(1)
    assert json.loads(properties(proto)["classes"]) == ["a", "b"]
    assert b"secret" not in proto.SerializeToString()
    compare(model, proto, X, [1] * len(X))


def test_a_site_that_was_added_and_a_private_fit_have_standard_deviations_too():
    X, y, tasks = array_problem("regression")
    model = MultiTaskELMRegressor(8, random_state=0).fit(X[:30], y[:30], tasks[:30]).add_site(7, X[30:], y[30:])
    compare(model, model.to_onnx(7, return_std=True), X, [7] * len(X))
    noisy = MeshELM(privacy=Privacy(epsilon=1.0, delta=1e-5, input_range=(-3, 3), target_range=(-3, 3)))
    hidden = MultiTaskELMRegressor(8, solver=noisy, random_state=0).fit(X, y, tasks)
    for arguments, task in (({"site": 0}, 0), ({"common": True}, 9)):
        compare(hidden, hidden.to_onnx(**arguments, return_std=True), X, [task] * len(X))
    assert "differential privacy" in properties(hidden.to_onnx(0))["confidentiality"]


@pytest.mark.parametrize("name", ["default-classifier", "default-regressor", "mtfl", "go-mtl"])
def test_models_of_version_0_4_can_be_exported(name):
    model = elmesh.load(MODELS_OF_0_4 / name)
    X = np.random.default_rng(0).normal(size=(20, model.n_features_in_))
    task = model.tasks_.tolist()[1]
    compare(model, model.to_onnx(task), X, [task] * len(X))


@pytest.mark.parametrize("kind", KINDS)
def test_a_table_of_version_0_4_has_gaps_filled_with_its_medians(kind):
    model = elmesh.load(MODELS_OF_0_4 / "command" / kind)
    rows = pd.read_csv(MODELS_OF_0_4 / "command" / "new.csv")
    rows.loc[::2, ["age", "bmi"]] = np.nan
    compare(model, model.to_onnx("york"), rows, ["york"] * len(rows))


def test_standard_deviations_are_in_the_units_of_the_table():
    train, model = three_sites()
    before = run(model.to_onnx("west", return_std=True), train)["std"]
    model.table_ = replace(model.table_, target_columns=(TargetColumn("y", mean=7.0, std=20.0),))
    proto = model.to_onnx("west", return_std=True)
    compare(model, proto, train, ["west"] * len(train))
    np.testing.assert_allclose(run(proto, train)["std"], 20.0 * before)


def test_one_row_many_rows_and_no_rows_are_predicted():
    X, y, tasks = array_problem("regression")
    model = MultiTaskELMRegressor(8, random_state=0).fit(X, y, tasks)
    loaded = session(model.to_onnx(0))
    whole = loaded.run(None, {"X": X})[0]
    assert loaded.run(None, {"X": X[:1]})[0] == pytest.approx(whole[:1])
    assert loaded.run(None, {"X": X[:0]})[0].shape == (0,)


# ------------------------------------------------------------------------------------------------ what predict refuses


def test_a_value_that_predict_refuses_makes_the_prediction_nan():
    rng = np.random.default_rng(0)
    train = make_table(rng, 36)
    model = MultiTaskELMRegressor(8, task="site", random_state=0).fit(train, signal(train))
    proto = model.to_onnx("west", return_std=True)
    inputs = {name: values.copy() for name, values in feeds(proto, train).items()}
    inputs["number 1"][4] = -np.inf
    inputs["date 0"][7] = np.inf
    found = session(proto).run(None, inputs)
    for values in found:
        assert np.flatnonzero(np.isnan(values)).tolist() == [4, 7]
    X, y, tasks = array_problem("classification")
    X[3, 1], X[5, 0] = np.nan, np.inf
    for options in ({}, {"fit_intercept": False}, {"solver": "mtl-elm"}):
        proto = MultiTaskELMClassifier(8, random_state=0, **options).fit(X[9:], y[9:], tasks[9:]).to_onnx(1)
        shares = run(proto, X)["probabilities"]
        assert np.flatnonzero(np.isnan(shares).all(axis=1)).tolist() == [3, 5]


# ----------------------------------------------------------------------------------------------- one site and no other


def three_sites(kind: str = "regression"):
    rng = np.random.default_rng(3)
    train = make_table(rng, 45)
    return train, KINDS[kind](8, task="site", random_state=0).fit(train, make_targets(kind, signal(train), "one"))


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_has_nothing_of_another_site(kind):
    _, model = three_sites(kind)
    proto = model.to_onnx("north", return_std=kind == "regression")
    data = proto.SerializeToString()
    assert b"north" in data
    assert b"south" not in data
    assert b"west" not in data
    stored = {value for array in constants(proto) if array.dtype.kind == "f" for value in array.ravel().tolist()}
    for site in ("south", "west"):
        head = model.model_.heads[site]
        for values in (head.A, model.V_[site], head.X):
            own = set(values.ravel().tolist()) - {0.0}
            assert own
            assert not own & stored


def test_the_file_of_a_site_depends_on_no_other_site():
    _, model = three_sites()
    before = model.to_onnx("north", return_std=True).SerializeToString()
    heads = model.model_.heads
    others = {
        name: head if name == "north" else replace(head, A=2 * head.A, log_w=1.0, temperature=3.0)
        for name, head in heads.items()
    }
    model.model_ = replace(model.model_, heads=others | {"a further one": heads["south"]})
    assert model.to_onnx("north", return_std=True).SerializeToString() == before
    assert model.for_task("north").to_onnx(return_std=True).SerializeToString() == before


def test_only_a_file_with_standard_deviations_has_the_covariance_of_the_weights():
    _, model = three_sites()
    p = model.model_.layer.width
    shapes = [{array.shape for array in constants(model.to_onnx("north", return_std=std))} for std in (False, True)]
    assert (p, p) not in shapes[0]
    assert (p, p) in shapes[1]
    assert model.model_.heads["north"].X.shape not in shapes[1]


@pytest.mark.slow
def test_the_same_model_gives_the_same_bytes_in_another_process(tmp_path):
    train, model = three_sites()
    model.save(tmp_path / "model")
    model.to_onnx("south", tmp_path / "here.onnx")
    code = "import sys, elmesh; elmesh.load(sys.argv[1]).to_onnx('south', sys.argv[2])"
    there = tmp_path / "there.onnx"
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "model"), str(there)], check=True)
    assert (tmp_path / "here.onnx").read_bytes() == there.read_bytes()
    compare(model, onnx.load(there), train, ["south"] * len(train))


def test_a_file_describes_itself():
    _, model = three_sites()
    proto = model.to_onnx("north", return_std=True)
    assert (proto.producer_name, proto.producer_version) == ("elmesh", elmesh.__version__)
    about = properties(proto)
    assert (about["site"], about["kind"], json.loads(about["targets"])) == ("north", "regression", ["y"])
    assert "keep it as confidential as the rows" in about["confidentiality"]
    assert about["confidentiality"] in proto.doc_string
    assert about["confidentiality"] in model.model_card()
    assert {one["name"]: one["type"] for one in columns(proto)} == {
        "number 0": "number", "number 1": "number", "word 0": "category", "date 0": "date"
    }  # fmt: skip
    assert [one.get("categories") for one in columns(proto)] == [None, None, ["east", "w ést", "南"], None]
    assert all(value.doc_string for value in (*proto.graph.input, *proto.graph.output))
    assert "site" not in properties(model.to_onnx(common=True))


# --------------------------------------------------------------------------------------------------------------- names


@pytest.mark.parametrize("site", ["a/b", '"', "🏥", "common", "", "\u0627\u0644\u0645\u0633\u062a\u0634\u0641\u0649"])
def test_sites_of_any_name_can_be_exported(site, tmp_path):
    X, y, tasks = array_problem("regression")
    names = np.where(tasks == 1, site, "another")
    model = MultiTaskELMRegressor(8, random_state=0).fit(X, y, names)
    proto = model.to_onnx(site, tmp_path / "file.onnx")
    assert properties(onnx.load(tmp_path / "file.onnx"))["site"] == site
    compare(model, proto, X, [site] * len(X))


def test_columns_of_any_name_are_inputs_of_that_name():
    names = ["prediction", "std", "prediction (input)", "a b", "a_b", "a-b", "constant_3", "Add_9", "عمر", "e\u0301",
             "é", "X", "🏥" * 200, "a\nb", "N"]  # fmt: skip
    rng = np.random.default_rng(0)
    train = pd.DataFrame(rng.normal(size=(40, len(names))), columns=names).assign(
        **{"Where_4": rng.choice(["u", "v"], 40)}
    )
    y = train["a b"] - train["a_b"] + (train["Where_4"] == "u")
    model = MultiTaskELMRegressor(8, random_state=0).fit(train, y, [1, 2] * 20)
    proto = model.to_onnx(1, return_std=True)
    inputs = {one["name"]: one["input"] for one in columns(proto)}
    assert [name for name in inputs if inputs[name] != name] == ["prediction", "std", "prediction (input)"]
    assert len(set(inputs.values())) == len(names) + 1
    compare(model, proto, train, [1] * 40)


def test_text_that_is_not_unicode_is_an_error():
    X, y, tasks = array_problem("regression")
    model = MultiTaskELMClassifier(8, random_state=0).fit(X, np.where(y > 0, "\udc80", "b"), tasks)
    with pytest.raises(ElmeshError, match=r"not valid Unicode, which an ONNX file cannot hold; replace them"):
        model.to_onnx(1)


def test_a_column_that_says_nothing_is_no_input():
    train, _ = three_sites()
    model = MultiTaskELMRegressor(8, task="site", random_state=0)
    model.fit(train.assign(same=1.0, gaps=np.where(np.arange(45) % 2, 3.0, np.nan)), signal(train))
    assert {one["name"] for one in columns(model.to_onnx("west"))} == {
        "number 0",
        "number 1",
        "gaps",
        "word 0",
        "date 0",
    }


# -------------------------------------------------------------------------------------------------------------- errors


def test_which_site_must_be_clear():
    X, y, tasks = array_problem("regression")
    model = MultiTaskELMRegressor(8, random_state=0).fit(X, y, tasks)
    with pytest.raises(ElmeshError, match=r"holds 3 tasks \(0, 1, 2\); name one with site=, or set common=True"):
        model.to_onnx()
    with pytest.raises(ElmeshError, match=r"Task 'leeds' is not known; the model was fitted with 0, 1, 2"):
        model.to_onnx("leeds")
    with pytest.raises(ElmeshError, match=r"site is 1 and common is True; give one of them"):
        model.to_onnx(1, common=True)
    with pytest.raises(NotFittedError):
        MultiTaskELMRegressor().to_onnx()
    alone = MultiTaskELMRegressor(8, solver="mtl-elm", random_state=0).fit(X, y)
    compare(alone, alone.to_onnx(), X)
    with pytest.raises(
        ElmeshError, match="no common part: export the model of a site, or fit with mesh-elm's defaults"
    ):
        alone.to_onnx(common=True)


def test_standard_deviations_are_of_regressions_with_a_common_part():
    for kind, solver in (("classification", "mesh-elm"), ("regression", "mtl-elm")):
        X, y, tasks = array_problem(kind)
        model = KINDS[kind](8, solver=solver, random_state=0).fit(X, y, tasks)
        with pytest.raises(
            ElmeshError, match="is for regressions with a common or a private part; leave it out, or fit"
        ):
            model.to_onnx(1, return_std=True)


def test_nothing_is_overwritten_unless_asked(tmp_path):
    X, y, _ = array_problem("regression")
    model = MultiTaskELMRegressor(8, random_state=0).fit(X, y)
    path = tmp_path / "new" / "model.onnx"
    model.to_onnx(path=path)
    path.write_bytes(b"mine")
    with pytest.raises(ElmeshError, match="exists already; choose another path, or set overwrite=True"):
        model.to_onnx(path=path)
    assert path.read_bytes() == b"mine"
    assert model.to_onnx(path=path, overwrite=True) == onnx.load(path)
    with pytest.raises(ElmeshError, match=r"new could not be written: Is a directory\."):
        model.to_onnx(path=path.parent, overwrite=True)
    assert [one.name for one in tmp_path.rglob("*")] == ["new", "model.onnx"]


def test_without_the_package_the_error_names_the_command_to_install_it(monkeypatch):
    X, y, _ = array_problem("regression")
    model = MultiTaskELMRegressor(8, random_state=0).fit(X, y)
    for name in ("elmesh.estimators.onnx_graph", "elmesh.estimators.onnx_export"):
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(ElmeshError, match=r'package onnx, which is not installed; run pip install "elmesh\[onnx\]"'):
        model.to_onnx()


def test_values_of_a_graph_have_different_names():
    graph = Graph(["y"])
    x = graph.input("Add_1", np.float64, 1, "an input")
    graph.output("y", x + 1.0 + x + 2.0, np.float64, [1], "an output")
    model = graph.model("", {})
    assert session(model).run(None, {"Add_1": np.array([[4.0]])})[0] == 11.0
