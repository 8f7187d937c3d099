"""The commands do from a shell what the estimators do in Python, and an error is one sentence."""

from __future__ import annotations

import gzip
import io
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import typer
from sklearn.metrics import confusion_matrix, log_loss, r2_score, roc_auc_score, root_mean_squared_error
from typer.testing import CliRunner, Result

import elmesh
from elmesh.cli import app, main
from elmesh.cli.console import Output
from elmesh.cli.signals import stop_on_interrupt
from elmesh.data.features import HiddenLayer, weight_scale
from elmesh.solvers import solver_classes
from elmesh.solvers.mixed_effects import estimate_effects
from elmesh.tables import TableSchema, read_table

QUICK = ["--hidden", "20", "--max-iter", "300", "--tol", "0.05"]
FIT_CLASSES = ["--task", "site", "--target", "outcome", "--drop", "days", *QUICK]
FIT_DAYS = ["--task", "site", "--target", "days", "--drop", "outcome", *QUICK]
# With a given penalty there is a shared part, whose fit takes rounds.
SHARED = ["--mu", "0.5"]


def run(*args: object) -> Result:
    # Colours are off even where the machine that runs the tests asks for them.
    return CliRunner(env={"FORCE_COLOR": None, "NO_COLOR": "1"}).invoke(app, [str(arg) for arg in args])


def worked(*args: object) -> Result:
    result = run(*args)
    assert result.exit_code == 0, result.output
    return result


def patients(rows: int, seed: int) -> pd.DataFrame:
    """Three sites whose outcomes follow from the same two columns, with some values missing."""
    rng = np.random.default_rng(seed)
    age, dose = rng.normal(60, 10, rows), rng.normal(3, 1, rows)
    ward = rng.choice(np.array(["east", "west", None], dtype=object), rows)
    score = (age - 60) / 10 + (dose - 3) + (ward == "east") + rng.normal(0, 0.1, rows)
    return pd.DataFrame(
        {
            "site": np.array(["007", "12", "b"])[np.arange(rows) % 3],
            "age": np.where(rng.random(rows) < 0.1, np.nan, age),
            "dose": dose,
            "ward": ward,
            "outcome": np.where(score > 0, "ill", "well"),
            "days": 1000 + 50 * score,
        }
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Tables, two models made from them, and what the fits printed."""
    folder = tmp_path_factory.mktemp("cli")
    patients(150, 0).to_csv(folder / "train.csv", index=False)
    patients(60, 1).to_csv(folder / "test.csv", index=False)
    patients(60, 1).to_parquet(folder / "test.parquet")
    patients(60, 1).drop(columns=["outcome", "days"]).to_csv(folder / "new.csv", index=False)
    for name, options in (("classes", FIT_CLASSES), ("regression", FIT_DAYS)):
        result = worked("fit", folder / "train.csv", *options, "--out", folder / name)
        (folder / f"{name}.txt").write_text(result.stdout, encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def two_targets(tmp_path_factory) -> Path:
    """Tables with a target in days and the same in weeks, and a model of both."""
    folder = tmp_path_factory.mktemp("targets")
    for name, frame in (("train.csv", patients(150, 0)), ("test.csv", patients(60, 1))):
        frame.assign(weeks=frame["days"] / 7).drop(columns="outcome").to_csv(folder / name, index=False)
    targets = ["--target", "days", "--target", "weeks"]
    worked("fit", folder / "train.csv", "--task", "site", *targets, *QUICK, "--out", folder / "m")
    return folder


def own_model(folder: Path, target: str) -> Path:
    """Save a model without a common part, and return its folder."""
    frame = read_table(folder / "train.csv")
    kind = elmesh.MultiTaskELMClassifier if target == "outcome" else elmesh.MultiTaskELMRegressor
    model = kind(20, solver=elmesh.DMTLELM(max_iter=300, tol=0.05), task="site", random_state=0)
    y = frame[target] if target == "outcome" else frame[target].astype(float)
    model.fit(patients(150, 0).drop(columns=["outcome", "days"]), y.to_numpy()).save(folder / f"own-{target}")
    return folder / f"own-{target}"


# fit


def own_solvers() -> list[str]:
    """Return the solvers of elmesh: other tests may have registered their own."""
    return [name for name, cls in solver_classes().items() if cls.__module__.startswith("elmesh.")]


def test_fit_saves_a_model_and_prints_the_inferred_kind(folder):
    shown = (folder / "classes.txt").read_text(encoding="utf-8")
    assert 'Classification of 2 classes: column "outcome" holds text.' in shown
    assert "150 rows of 3 sites" in shown
    model = elmesh.load(folder / "classes")
    assert list(model.tasks_) == ["007", "12", "b"]
    assert TableSchema.from_json(model.extra_["table"]).task == "site"


def test_fit_ends_with_who_gains_and_a_page_about_it(folder, tmp_path):
    result = worked("fit", folder / "train.csv", *FIT_DAYS, "--out", tmp_path / "m")
    assert "Over all rows learning together lowers the error clearly, from " in result.stdout
    assert " of 3 sites clearly gain" in result.stdout
    assert f"Open {tmp_path / 'm' / 'report.html'} in a browser" in result.stdout
    # What people ask comes before how the training went.
    assert result.stdout.index("Over all rows") < result.stdout.index("Certified")
    shutil.copytree(tmp_path / "m", tmp_path / "before")
    quiet = worked("fit", folder / "train.csv", *FIT_DAYS, "--out", tmp_path / "m", "--force", "--quiet", "--json")
    data = json.loads(quiet.stdout)
    assert [one["task"] for one in data["gains"]["tasks"]] == ["007", "12", "b"]
    assert data["gains"]["sentence"] in result.stdout
    assert data["explanation"]["sentence"] in result.stdout
    assert data["explanation"]["columns"][0]["column"] in ("age", "dose", "ward")
    page = (tmp_path / "m" / "report.html").read_text(encoding="utf-8")
    for sentence in data["gains"]["sentence"].split(". "):
        assert sentence in page
    assert "rows of the training table" in page
    for name in ("errors", "shares", "importance", "effect-1", "effect-2", "map"):
        assert f'<figure id="fig-{name}"' in page
    card = (tmp_path / "m" / "README.md").read_text(encoding="utf-8")
    assert data["gains"]["sentence"] in card
    for name in ("README.md", "report.html", "model.json", "weights.safetensors"):
        assert (tmp_path / "before" / name).read_bytes() == (tmp_path / "m" / name).read_bytes()


def test_where_nothing_is_common_there_is_nothing_to_gain(folder, tmp_path):
    result = worked("fit", folder / "train.csv", *FIT_DAYS, "--parts", "shared", "--out", tmp_path / "m", "--json")
    data = json.loads(result.stdout)
    assert data["gains"] is None
    page = (tmp_path / "m" / "report.html").read_text(encoding="utf-8")
    assert data["explanation"]["sentence"].partition(":")[0] in page
    assert "This method has none" in page
    # What predictions depend on is known of any model.
    assert {one["column"] for one in data["explanation"]["columns"]} == {"age", "dose", "ward"}


def test_fit_json_is_one_object_about_the_fit(folder, tmp_path):
    result = worked("fit", folder / "train.csv", *FIT_DAYS, *SHARED, "--out", tmp_path / "m", "--json")
    data = json.loads(result.stdout)
    assert data["kind"] == "regression"
    assert data["tasks"] == ["007", "12", "b"]
    assert data["shared_part"] == "kept"
    assert data["rank"] > 0
    assert data["variances"]["common"].keys() == data["variances"]["private"].keys() >= {"constant", "inputs"}
    assert data["noise"].keys() == set(data["tasks"])
    assert data["stop"] == "CONVERGED"
    assert data["rounds"] > 0
    assert data["bytes"] > 0
    assert result.stderr == ""


def test_quiet_prints_nothing_and_saves_the_model(folder, tmp_path):
    result = worked("fit", folder / "train.csv", *FIT_CLASSES, "--max-iter", 1, "--out", tmp_path / "m", "--quiet")
    assert result.output == ""
    assert (tmp_path / "m" / "model.json").exists()


def test_running_out_of_rounds_is_a_short_note(folder, tmp_path):
    args = ["fit", folder / "train.csv", *FIT_CLASSES, *SHARED, "--max-iter", 1]
    result = worked(*args, "--out", tmp_path / "m", "--json")
    assert result.stderr.startswith("note: ")
    assert "max_iter" in result.stderr
    assert "Warning" not in result.stderr
    assert result.stderr.count("\n") == 1
    assert any("max_iter" in note for note in json.loads(result.stdout)["notes"])


def test_options_reach_the_solver(folder, tmp_path):
    args = ["fit", folder / "train.csv", *FIT_CLASSES, "--out"]
    worked(*args, tmp_path / "a", "--rank", 1, "--graph", "star", "--mu", 0.5, "--seed", 3)
    model = elmesh.load(tmp_path / "a")
    assert model.U_.shape[-1] == 1
    assert (model.solver.mu1, model.solver.mu2, model.solver.graph) == (0.5, 0.5, "star")
    assert (model.random_state, model.n_hidden) == (3, 20)
    no_rounds = [arg for arg in args if arg not in QUICK]
    data = json.loads(worked(*no_rounds, tmp_path / "b", "--solver", "local-elm", "--mu", 2, "--json").stdout)
    assert (data["stop"], data["bytes"], data["objective"]) == ("DIRECT", 0, None)


@pytest.mark.parametrize(
    ("parts", "parameters"),
    [
        pytest.param("shared", (False, False, "auto"), marks=pytest.mark.slow),
        ("common,private", (True, True, 0)),
        pytest.param("common", (True, False, 0), marks=pytest.mark.slow),
        pytest.param("private", (False, True, 0), marks=pytest.mark.slow),
        pytest.param("private, shared", (False, True, "auto"), marks=pytest.mark.slow),
    ],
)
def test_parts_of_the_weights_can_be_chosen(folder, tmp_path, parts, parameters):
    worked("fit", folder / "train.csv", *FIT_DAYS, "--parts", parts, "--out", tmp_path / "m")
    solver = elmesh.load(tmp_path / "m").solver
    assert (solver.common, solver.private, solver.rank) == parameters


def test_the_shared_part_alone_is_the_papers_problem(folder, tmp_path):
    result = worked("fit", folder / "train.csv", *FIT_DAYS, "--parts", "shared", "--rank", 2, "--out", tmp_path / "m")
    assert "mesh-elm of rank 2, penalty " in result.stdout
    assert "Common to all sites" not in result.stdout
    model = elmesh.load(tmp_path / "m")
    frame = read_table(folder / "train.csv")
    X, tasks = model.table_.encode(frame)
    paper = elmesh.MeshELM(common=False, private=False, rank=2, max_iter=300, tol=0.05)
    again = elmesh.MultiTaskELMRegressor(20, weight_scale=weight_scale(X.shape[1]), solver=paper, random_state=0)
    again.fit(X, frame["days"].astype(float), tasks=tasks)
    np.testing.assert_array_equal(model.predict(frame), again.predict(X, tasks=tasks))


def test_bits_of_messages_that_have_no_effect_are_noted(folder, tmp_path):
    args = ["fit", folder / "train.csv", *FIT_DAYS, "--message-bits", 8, "--json"]
    notes = json.loads(worked(*args, "--out", tmp_path / "a").stdout)["notes"]
    assert notes == ["--message-bits 8 is for --parts shared; here sums of matrices have 32 bits."]
    assert json.loads(worked(*args, "--parts", "shared", "--out", tmp_path / "b").stdout)["notes"] == []


@pytest.mark.parametrize(
    ("name", "target"),
    [
        pytest.param(name, target, marks=() if name in ("dmtl-elm", "mtfl") else pytest.mark.slow)
        for name, target in zip(own_solvers(), itertools.cycle(["outcome", "days"]))
    ],
)
def test_every_solver_can_be_named(folder, tmp_path, name, target):
    args = ["--task", "site", "--target", target, "--hidden", 20, "--solver", name]
    if name in ("fed-avg-network", "fed-per"):
        # Their weights have a decay in the place of a penalty.
        failed = run("fit", folder / "train.csv", *args, "--mu", 2, "--out", tmp_path / "m")
        assert "--mu has no meaning for" in failed.output
    else:
        args += ["--mu", 2]
    result = worked("fit", folder / "train.csv", *args, "--out", tmp_path / "m", "--json")
    data = json.loads(result.stdout)
    assert (data["solver"], data["notes"], result.stderr) == (name, [], "")
    assert (data["rank"] is None) == (
        name in ("fed-avg", "fed-avg-network", "fed-per", "federated-ridge", "local-elm", "mtfl", "trace-norm")
    )
    assert data["pooled"] == (name in ("mtl-elm", "mtfl", "go-mtl", "trace-norm"))
    model = elmesh.load(tmp_path / "m")
    assert type(model.solver) is solver_classes()[name]
    given = {key: value for key, value in model.solver.get_params().items() if key in ("mu", "mu1", "mu2")}
    assert set(given.values()) == ({2} if "--mu" in args else set())
    worked("evaluate", tmp_path / "m", folder / "test.csv", "--quiet")


def test_mesh_elm_is_the_default_solver(folder):
    assert type(elmesh.load(folder / "classes").solver) is elmesh.MeshELM


def test_options_of_dmtl_elm_in_0_4_select_mesh_elm_with_a_note(folder, tmp_path):
    options = ["--solver", "dmtl-elm", "--message-bits", 8, "--max-bytes", 1e9]
    result = worked("fit", folder / "train.csv", *FIT_CLASSES, *options, "--out", tmp_path / "m", "--json")
    data = json.loads(result.stdout)
    assert data["solver"] == "mesh-elm"
    assert any("mesh-elm" in note for note in data["notes"])
    solver = elmesh.load(tmp_path / "m").solver
    assert (solver.message_bits, solver.common, solver.private) == (8, False, False)


def test_without_a_graph_all_data_are_in_one_place(folder, tmp_path):
    args = ["fit", folder / "train.csv", *FIT_CLASSES, "--graph", "none", "--out", tmp_path / "m"]
    data = json.loads(worked(*args, "--json").stdout)
    assert (data["pooled"], data["bytes"]) == (True, 0)
    shown = worked(*args, "--force").stdout
    assert "all data in one place" in shown


def test_the_help_names_every_solver():
    text = re.sub(r"[\s│]+", " ", worked("fit", "--help").stdout)
    assert all(name in text for name in own_solvers())


@pytest.mark.parametrize(
    "options",
    [
        [],
        # All parts are the default, and what was the runtime in 0.4 is the local one.
        ["--parts", "common,private,shared", "--runtime", "stacked"],
    ],
    ids=["", "the defaults"],
)
def test_the_same_seed_gives_the_same_model(folder, tmp_path, options):
    worked("fit", folder / "train.csv", *FIT_CLASSES, *options, "--out", tmp_path / "m")
    weights = [(path / "weights.safetensors").read_bytes() for path in (tmp_path / "m", folder / "classes")]
    assert weights[0] == weights[1]
    if not options:
        assert (tmp_path / "m" / "model.json").read_bytes() == (folder / "classes" / "model.json").read_bytes()


def test_a_folder_with_a_file_per_task_gives_the_same_model_as_one_file_with_a_task_column(folder, tmp_path):
    sites = tmp_path / "sites"
    sites.mkdir()
    for site, rows in patients(150, 0).groupby("site"):
        rows.drop(columns="site").to_csv(sites / f"{site}.csv", index=False)
    args = [arg for arg in FIT_CLASSES if arg not in ("--task", "site")]
    worked("fit", sites, *args, "--out", tmp_path / "m")
    new = patients(60, 1)
    expected = pd.read_csv(io.StringIO(worked("predict", folder / "classes", folder / "new.csv", "--proba").stdout))
    for site in ("007", "b"):
        new[new["site"] == site].drop(columns="site").to_csv(tmp_path / f"{site}.csv", index=False)
        table = read_table_text(worked("predict", tmp_path / "m", tmp_path / f"{site}.csv", "--proba").stdout)
        assert set(table["task"]) == {site}
        ours, theirs = table["probability_ill"], expected["probability_ill"][(new["site"] == site).to_numpy()]
        np.testing.assert_allclose(ours.astype(float), theirs, rtol=1e-6)
    table = read_table_text(worked("predict", tmp_path / "m", folder / "new.csv").stdout)
    assert set(table["task"]) == {"new"}
    assert set(table["known_site"]) == {"False"}


def test_columns_left_out_are_noted_and_dropped_columns_are_not_used(folder, tmp_path):
    patients(150, 0).assign(one=1).to_csv(tmp_path / "t.csv", index=False)
    args = ["fit", tmp_path / "t.csv", *FIT_CLASSES, "--drop", "dose", "--out", tmp_path / "m", "--json"]
    result = worked(*args)
    data = json.loads(result.stdout)
    assert "note: Left out because all rows have the same value: one." in result.stderr
    assert data["notes"] == ["Left out because all rows have the same value: one."]
    assert not {"dose", "days", "one"} & set(data["columns"])


def test_compressed_tables_give_the_same_model_and_predictions(folder, tmp_path):
    for name in ("train", "test"):
        (tmp_path / f"{name}.csv.gz").write_bytes(gzip.compress((folder / f"{name}.csv").read_bytes()))
    worked("fit", tmp_path / "train.csv.gz", *FIT_CLASSES, "--out", tmp_path / "m")
    weights = [(path / "weights.safetensors").read_bytes() for path in (tmp_path / "m", folder / "classes")]
    assert weights[0] == weights[1]
    for command in ("predict", "evaluate"):
        results = [
            worked(command, folder / "classes", path, "--quiet").stdout
            for path in (tmp_path / "test.csv.gz", folder / "test.csv")
        ]
        assert results[0] == results[1]


def as_written_in_germany(frame: pd.DataFrame, path: Path) -> Path:
    frame = frame.assign(ward=frame["ward"].replace({"east": "München"}))
    frame.to_csv(path, index=False, sep=";", decimal=",", encoding="cp1252")
    return path


def test_other_ways_to_write_csv_give_the_same_model_with_a_note(folder, tmp_path):
    tables = [
        as_written_in_germany(patients(*of), tmp_path / name) for of, name in [((150, 0), "a.csv"), ((60, 1), "b.csv")]
    ]
    note = "Read as CSV with semicolons between columns, decimal commas, Windows-1252 encoding; see --delimiter"
    result = worked("fit", tables[0], *FIT_DAYS, "--out", tmp_path / "m")
    assert result.stderr.count(note) == 1
    scores = [
        json.loads(worked("evaluate", *of, "--json").stdout)
        for of in [(tmp_path / "m", tables[1]), (folder / "regression", folder / "test.csv")]
    ]
    assert note in scores[0].pop("notes")[0]
    assert scores[0]["rmse"] == pytest.approx(scores[1]["rmse"], rel=1e-9)
    given = ["--delimiter", ";", "--decimal", "comma", "--encoding", "windows-1252"]
    for command in (
        ["fit", tables[0], *FIT_DAYS, *given, "--out", tmp_path / "n"],
        ["predict", tmp_path / "m", tables[1], *given],
        ["evaluate", tmp_path / "m", tables[1], *given],
    ):
        assert worked(*command).stderr == ""
    models = [(tmp_path / name / "model.json").read_bytes() for name in "mn"]
    assert models[0] == models[1]
    assert "--decimal must be point or comma" in failed(run("predict", tmp_path / "m", tables[1], "--decimal", "x"))


def test_row_names_as_r_and_pandas_write_them_make_no_difference(folder, tmp_path):
    patients(150, 0).to_csv(tmp_path / "train.csv")
    patients(60, 1).to_csv(tmp_path / "test.csv")
    result = worked("fit", tmp_path / "train.csv", *FIT_CLASSES, "--out", tmp_path / "m")
    assert 'note: Left out because they only number the rows: "Unnamed: 0"; --use keeps one.' in result.stderr
    weights = [(path / "weights.safetensors").read_bytes() for path in (tmp_path / "m", folder / "classes")]
    assert weights[0] == weights[1]
    tables = [worked("predict", tmp_path / "m", path / "test.csv").stdout for path in (tmp_path, folder)]
    assert tables[0] == tables[1]
    args = ["fit", tmp_path / "train.csv", *FIT_CLASSES, "--use", "Unnamed: 0", "--out", tmp_path / "n", "--json"]
    data = json.loads(worked(*args).stdout)
    assert data["notes"] == []
    assert "Unnamed: 0" in data["columns"]


@pytest.mark.parametrize("n_columns", [1, 3, 30, 300])
def test_the_weight_scale_keeps_hidden_units_from_saturating(n_columns):
    X = np.random.default_rng(0).normal(size=(200, n_columns))
    W, _ = HiddenLayer(n_columns, 400, weight_scale=weight_scale(n_columns)).weights
    spread = (X @ W).std()
    assert 0.4 < spread < 1.2


# predict


def read_table_text(text: str) -> pd.DataFrame:
    return pd.read_csv(io.StringIO(text), dtype=str)


def test_predictions_are_those_of_the_estimator_row_by_row(folder, tmp_path):
    model, new = elmesh.load(folder / "classes"), read_table(folder / "new.csv")
    table = read_table_text(worked("predict", folder / "classes", folder / "new.csv", "--proba").stdout)
    assert list(table) == ["site", "prediction", "probability_ill", "probability_well"]
    assert table["site"].tolist() == patients(60, 1)["site"].tolist()
    assert table["prediction"].tolist() == model.predict(new).tolist()
    probabilities = table[["probability_ill", "probability_well"]].astype(float)
    np.testing.assert_array_equal(probabilities, model.predict_proba(new))


def test_regression_is_predicted_in_the_users_units(folder):
    table = read_table_text(worked("predict", folder / "regression", folder / "new.csv").stdout)
    truth = patients(60, 1)["days"]
    assert np.abs(table["prediction"].astype(float) - truth).mean() < 0.5 * np.abs(truth - truth.mean()).mean()


@pytest.mark.parametrize("name", ["out.csv", "out.parquet", "out.csv.gz"])
def test_predictions_go_to_a_file_of_the_type_in_its_name(folder, tmp_path, name):
    result = worked("predict", folder / "classes", folder / "new.csv", "--out", tmp_path / name)
    assert result.stdout == f"60 predictions in {tmp_path / name}.\n"
    expected = read_table_text(worked("predict", folder / "classes", folder / "new.csv").stdout)
    pd.testing.assert_frame_equal(read_table(tmp_path / name).reset_index(drop=True), expected)


def test_csv_and_parquet_rows_are_predicted_alike_and_other_columns_are_ignored(folder):
    outputs = [
        worked("predict", folder / "classes", folder / f).stdout for f in ("new.csv", "test.csv", "test.parquet")
    ]
    assert outputs[0] == outputs[1] == outputs[2]


def test_rows_keep_their_order(folder, tmp_path):
    order = np.random.default_rng(2).permutation(60)
    patients(60, 1).iloc[order].to_csv(tmp_path / "shuffled.csv", index=False)
    straight = read_table_text(worked("predict", folder / "classes", folder / "test.csv").stdout)
    shuffled = read_table_text(worked("predict", folder / "classes", tmp_path / "shuffled.csv").stdout)
    pd.testing.assert_frame_equal(shuffled, straight.iloc[order].reset_index(drop=True))


def test_predict_json_contains_the_predictions_or_their_file(folder, tmp_path):
    data = json.loads(worked("predict", folder / "classes", folder / "new.csv", "--json", "--quiet").stdout)
    assert data["rows"] == 60
    assert [len(column) for column in data["predictions"].values()] == [60, 60]
    out = tmp_path / "p.csv"
    data = json.loads(worked("predict", folder / "classes", folder / "new.csv", "--out", out, "--json").stdout)
    assert data["out"] == str(out)
    assert "predictions" not in data


def test_columns_of_the_table_are_kept_beside_its_predictions(folder, tmp_path):
    frame = patients(60, 1).assign(patient=[f"p{i:02}" for i in range(60)], seen=pd.Timestamp("2024-01-31"))
    frame.to_csv(tmp_path / "t.csv", index=False)
    frame.to_parquet(tmp_path / "t.parquet")
    args = ["predict", folder / "classes", tmp_path / "t.csv"]
    plain = read_table_text(worked(*args).stdout)
    table = read_table_text(worked(*args, "--id", "patient", "--id", "ward", "--id", "patient", "--id", "site").stdout)
    assert list(table) == ["site", "patient", "ward", "prediction"]
    assert table["patient"].tolist() == frame["patient"].tolist()
    pd.testing.assert_frame_equal(table[list(plain)], plain)
    table = read_table_text(worked(*args, "--keep").stdout)
    assert list(table) == ["site", "age", "dose", "ward", "outcome", "days", "patient", "seen", "prediction"]
    for name in frame:
        written = read_table_text(frame[[name]].to_csv(index=False))
        pd.testing.assert_series_equal(table[name], written[name])
    worked("predict", folder / "classes", tmp_path / "t.parquet", "--keep", "--out", tmp_path / "p.parquet")
    kept = pd.read_parquet(tmp_path / "p.parquet")
    pd.testing.assert_frame_equal(kept[list(frame)], pd.read_parquet(tmp_path / "t.parquet"))
    data = json.loads(worked("predict", folder / "classes", tmp_path / "t.parquet", "--keep", "--json").stdout)
    assert data["predictions"]["seen"][0].startswith("2024-01-31")
    assert data["predictions"]["ward"].count(None) == frame["ward"].isna().sum()
    assert data["predictions"]["dose"] == frame["dose"].tolist()


def test_a_column_that_cannot_be_kept_is_refused(folder, tmp_path):
    args = ["predict", folder / "classes"]
    assert 'did you mean "dose"?' in failed(run(*args, folder / "new.csv", "--id", "dos"))
    worked(*args, folder / "new.csv", "--keep", "--out", tmp_path / "p.csv")
    message = 'has a column "prediction", which is also the name of a column of predictions; rename it'
    assert message in failed(run(*args, tmp_path / "p.csv", "--keep"))
    worked(*args, tmp_path / "p.csv", "--id", "dose")


def test_unknown_categories_are_counted_in_a_note(folder, tmp_path):
    patients(60, 1).assign(ward=["north"] * 2 + ["east"] * 58).to_csv(tmp_path / "t.csv", index=False)
    args = ["predict", folder / "classes", tmp_path / "t.csv"]
    assert "(2 of 60 rows)" in worked(*args).stderr
    assert worked(*args, "--quiet").stderr == ""
    assert "(2 of 60 rows)" in json.loads(worked(*args, "--json").stdout)["notes"][0]


def test_several_targets_are_predicted_and_scored_each_by_name(two_targets):
    args = [two_targets / "m", two_targets / "test.csv"]
    table = read_table_text(worked("predict", *args).stdout)
    assert list(table) == ["site", "prediction_days", "prediction_weeks"]
    data = json.loads(worked("evaluate", *args, "--json").stdout)
    found = data["tasks"]["007"]["targets"]
    # One is the other in different units, so R2 is the same and the errors differ by the unit.
    assert found["days"]["r2"] == pytest.approx(found["weeks"]["r2"], rel=1e-6)
    assert found["days"]["rmse"] == pytest.approx(7 * found["weeks"]["rmse"], rel=1e-6)
    shown = worked("evaluate", *args).stdout
    assert shown.split()[:5] == ["site", "target", "rows", "R2", "RMSE"]


# evaluate


def test_the_error_of_each_task_is_the_share_of_wrong_rows(folder):
    truth = patients(60, 1)
    predicted = read_table_text(worked("predict", folder / "classes", folder / "test.csv").stdout)["prediction"]
    wrong = predicted != truth["outcome"]
    most_frequent = patients(150, 0).groupby("site")["outcome"].agg(lambda own: own.mode()[0])
    data = json.loads(worked("evaluate", folder / "classes", folder / "test.csv", "--json").stdout)
    assert data["rows"] == 60
    assert data["error_percent"] == pytest.approx(100 * wrong.mean())
    assert data["error_percent"] < 25
    for site, share in wrong.groupby(truth["site"]).mean().items():
        baseline = 100 * (truth["outcome"][truth["site"] == site] != most_frequent[site]).mean()
        expected = {"error_percent": pytest.approx(100 * share), "baseline_error_percent": pytest.approx(baseline)}
        assert data["tasks"][site] == data["tasks"][site] | {"rows": 20} | expected


def test_the_model_of_a_site_that_lacks_a_class_is_compared_with_its_own_most_frequent_class(tmp_path):
    """The class that is first in the order of all is the one that the site lacks."""
    rng = np.random.default_rng(0)
    sites = np.repeat(["a", "b", "c"], 60)
    classes = np.where(
        sites == "b", rng.choice(["no", "yes"], 180, p=[0.3, 0.7]), rng.choice(["died", "no", "yes"], 180)
    )
    frame = pd.DataFrame({"site": sites, "x": rng.normal(size=180), "outcome": classes})
    frame.to_csv(tmp_path / "t.csv", index=False)
    worked("fit", tmp_path / "t.csv", "--task", "site", "--target", "outcome", "--out", tmp_path / "m")
    frame[sites == "b"].to_csv(tmp_path / "b.csv", index=False)
    model = elmesh.load(tmp_path / "m")
    model.for_task("b").save(tmp_path / "one")
    # As an agent of a network saves it: with what all sites share, and its own head.
    model.model_ = replace(model.model_, heads={"b": model.model_.heads["b"]})
    model.save(tmp_path / "agent")
    for name in ("one", "agent"):
        data = json.loads(worked("evaluate", tmp_path / name, tmp_path / "b.csv", "--json").stdout)
        assert data["baseline_error_percent"] == pytest.approx(100 * np.mean(classes[sites == "b"] != "yes"))


def test_r2_and_rmse_are_those_of_scikit_learn(folder):
    truth = patients(60, 1)
    table = read_table_text(worked("predict", folder / "regression", folder / "test.csv").stdout)
    data = json.loads(worked("evaluate", folder / "regression", folder / "test.csv", "--json").stdout)
    predicted = table["prediction"].astype(float)
    for found, rows in [(data, truth["site"] != ""), (data["tasks"]["12"], truth["site"] == "12")]:
        assert found["r2"] == pytest.approx(r2_score(truth["days"][rows], predicted[rows]))
        assert found["rmse"] == pytest.approx(root_mean_squared_error(truth["days"][rows], predicted[rows]))
        means = truth["site"][rows].map(patients(150, 0).groupby("site")["days"].mean())
        assert found["baseline_rmse"] == pytest.approx(root_mean_squared_error(truth["days"][rows], means))


def test_evaluate_prints_a_line_per_task_and_one_for_all(folder):
    shown = worked("evaluate", folder / "classes", folder / "test.csv").stdout
    *lines, sentence, page = [line.split() for line in shown.splitlines()]
    assert " ".join(sentence).endswith("The model is better at 3 of 3 sites.")
    assert " ".join(page) == "Open elmesh-evaluate/report.html in a browser."
    assert " ".join(lines[0]) == "site rows error % error % of the baseline"
    assert sorted(line[:2] for line in lines[1:]) == [["007", "20"], ["12", "20"], ["all", "60"], ["b", "20"]]
    assert lines[-1][0] == "all"
    errors = [float(line[2]) for line in lines[1:-1]]
    assert errors == sorted(errors, reverse=True)


def test_the_baseline_of_a_model_without_a_common_part_is_each_sites_own_mean_as_well(folder, tmp_path):
    worked("fit", folder / "train.csv", *FIT_DAYS, "--parts", "shared", "--rank", 1, "--out", tmp_path / "m")
    means = patients(150, 0).groupby("site")["days"].mean()
    truth = patients(60, 1)
    data = json.loads(worked("evaluate", tmp_path / "m", folder / "test.csv", "--json").stdout)
    expected = (truth["days"] - truth["site"].map(means)).pow(2).groupby(truth["site"]).mean().pow(0.5)
    assert {site: found["baseline_rmse"] for site, found in data["tasks"].items()} == pytest.approx(dict(expected))


def test_every_class_has_its_share_beside_its_mean_probability_and_how_many_of_its_rows_are_found(folder, tmp_path):
    truth, out = patients(60, 1), tmp_path / "scores"
    args = ["evaluate", folder / "classes", folder / "test.csv", "--out", out]
    data = json.loads(worked(*args, "--json").stdout)
    table = read_table_text(worked("predict", folder / "classes", folder / "new.csv", "--proba").stdout)
    assert [one["name"] for one in data["by_class"]] == ["ill", "well"]
    for one in data["by_class"]:
        rows, named = truth["outcome"] == one["name"], table["prediction"] == one["name"]
        assert (one["rows"], one["named"], one["found"]) == (rows.sum(), named.sum(), (rows & named.to_numpy()).sum())
        assert one["observed"] == pytest.approx(rows.mean())
        assert one["predicted"] == pytest.approx(table[f"probability_{one['name']}"].astype(float).mean())
    page = (out / "report.html").read_text(encoding="utf-8")
    assert "How often each class occurs, its mean predicted probability" in page


def test_a_class_of_which_no_row_is_found_is_named(folder, tmp_path):
    rows = patients(60, 1).assign(outcome=["well"] * 59 + ["dead"])
    rows.to_csv(tmp_path / "t.csv", index=False)
    shown = worked("evaluate", folder / "classes", tmp_path / "t.csv").stdout
    assert "No row is rightly predicted to be 'dead', which 1 is." in " ".join(shown.split())


def test_weights_of_classes_do_not_change_the_baseline(folder, tmp_path):
    options = [*FIT_CLASSES, "--class-weight", "balanced", "--out", tmp_path / "m"]
    worked("fit", folder / "train.csv", *options)
    found, expected = (
        json.loads(worked("evaluate", model, folder / "test.csv", "--json").stdout)
        for model in (tmp_path / "m", folder / "classes")
    )
    assert found["baseline_error_percent"] == expected["baseline_error_percent"]
    for site, scores in expected["tasks"].items():
        assert found["tasks"][site]["baseline_error_percent"] == scores["baseline_error_percent"]


def test_many_tasks_are_sorted_by_error_and_small_ones_are_one_line(tmp_path):
    rng = np.random.default_rng(0)
    train = pd.DataFrame({"site": np.repeat([f"s{i:02}" for i in range(14)], 20), "x": rng.normal(size=280)})
    noise = (1 + train["site"].str[1:].astype(int)) * rng.normal(size=280)
    train = train.assign(y=3 * train["x"] + noise)
    test = train[(train["site"] < "s11") | (train.groupby("site").cumcount() < 4)]
    train.to_csv(tmp_path / "train.csv", index=False)
    test.to_csv(tmp_path / "test.csv", index=False)
    worked("fit", tmp_path / "train.csv", "--task", "site", "--target", "y", *QUICK, "--out", tmp_path / "m")
    args = ["evaluate", tmp_path / "m", tmp_path / "test.csv"]
    data = json.loads(worked(*args, "--json").stdout)
    assert len(data["tasks"]) == 14
    lines = worked(*args).stdout.splitlines()[1:-2]
    large = [name for name, found in data["tasks"].items() if found["rows"] == 20]
    by_error = sorted(large, key=lambda name: -data["tasks"][name]["rmse"])
    assert [line.split()[0] for line in lines[:11]] == by_error
    assert lines[11].startswith("3 with fewer than 5 rows")
    assert lines[11].split()[6] == "12"
    together = np.sqrt(np.mean([data["tasks"][name]["rmse"] ** 2 for name in ("s11", "s12", "s13")]))
    assert float(lines[11].split()[8]) == pytest.approx(together, rel=1e-3)
    assert lines[12].split()[:2] == ["all", "232"]
    assert len(lines) == 13


def test_task_names_that_look_like_markup_are_shown_as_they_are(tmp_path):
    frame = patients(150, 0)
    frame["site"] = frame["site"].map({"007": "[red]7[/red]", "12": "x" * 120, "b": "b\x1b[2J"})
    frame.to_csv(tmp_path / "t.csv", index=False)
    worked("fit", tmp_path / "t.csv", *FIT_CLASSES, "--out", tmp_path / "m")
    shown = worked("evaluate", tmp_path / "m", tmp_path / "t.csv").stdout
    assert "[red]7[/red]" in shown
    assert "x" * 120 in shown
    assert "\x1b" not in shown


def test_a_task_of_one_row_has_no_r2_and_an_unknown_class_counts_as_an_error(folder, tmp_path):
    patients(60, 1).iloc[:1].to_csv(tmp_path / "one.csv", index=False)
    data = json.loads(worked("evaluate", folder / "regression", tmp_path / "one.csv", "--json").stdout)
    assert data["r2"] is None
    assert " - " in worked("evaluate", folder / "regression", tmp_path / "one.csv").stdout
    patients(60, 1).assign(outcome="dead").to_csv(tmp_path / "dead.csv", index=False)
    result = worked("evaluate", folder / "classes", tmp_path / "dead.csv", "--json")
    assert json.loads(result.stdout)["error_percent"] == 100
    assert "60 rows have a class that was not in training" in result.stderr


def contents(folder: Path) -> dict[str, bytes]:
    """Return the files of a folder and of those within it."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("model", ["classes", pytest.param("regression", marks=pytest.mark.slow)])
@pytest.mark.drawings
def test_an_evaluation_is_a_page_and_its_numbers_and_the_same_again_to_the_bit(folder, tmp_path, model):
    args = ["evaluate", folder / model, folder / "test.csv"]
    printed = json.loads(worked(*args, "--json").stdout)
    assert list(Path().iterdir()) == []
    worked(*args, "--out", tmp_path / "o")
    for name in ("elmesh-evaluate", "elmesh-evaluate-2"):
        assert name not in {path.name for path in Path().iterdir()}
        worked(*args, "--quiet")
        assert contents(Path(name)) == contents(tmp_path / "o")
    assert set(contents(tmp_path / "o")) == {"report.html", "results.json"}
    assert json.loads((tmp_path / "o" / "results.json").read_text()) == printed
    page = (tmp_path / "o" / "report.html").read_text()
    assert printed["sentence"].split(";")[0] in page.replace("\N{NO-BREAK SPACE}", " ")
    for name in ("fig-sites", "fig-reliability" if model == "classes" else "fig-truth"):
        assert f'<figure id="{name}"' in page


def test_an_evaluation_is_not_replaced_without_force(folder, tmp_path):
    args = ["evaluate", folder / "classes", folder / "test.csv", "--out", tmp_path]
    (tmp_path / "report.html").write_text("old")
    (tmp_path / "mine.txt").write_text("keep")
    assert "exists; choose another name, or give --force" in failed(run(*args))
    assert (tmp_path / "report.html").read_text() == "old"
    worked(*args, "--force")
    assert set(contents(tmp_path)) == {"mine.txt", "report.html", "results.json"}
    assert "is a file" in failed(run(*args[:-1], tmp_path / "mine.txt", "--force"))


def test_the_share_of_targets_within_intervals_is_that_of_predict(folder, tmp_path):
    data = json.loads(worked("evaluate", folder / "regression", folder / "test.csv", "--json").stdout)
    truth = patients(60, 1)["days"]
    for level, share in data["coverage"]["days"].items():
        args = ["predict", folder / "regression", folder / "test.csv", "--interval", level]
        found = read_table_text(worked(*args).stdout)
        inside = (found["lower"].astype(float) <= truth) & (truth <= found["upper"].astype(float))
        assert share == pytest.approx(inside.mean())
    assert list(data["coverage"]["days"]) == ["0.5", "0.8", "0.9", "0.95"]


def test_probabilities_are_scored_as_scikit_learn_does(folder):
    data = json.loads(worked("evaluate", folder / "classes", folder / "test.csv", "--json").stdout)
    truth = patients(60, 1)["outcome"]
    found = read_table_text(worked("predict", folder / "classes", folder / "test.csv", "--proba").stdout)
    well = found["probability_well"].astype(float)
    assert data["auc"] == pytest.approx(roc_auc_score(truth == "well", well))
    low = well.clip(0.001, 0.999)  # a probability counts as at least 0.001
    assert data["log_loss"] == pytest.approx(log_loss(truth, np.c_[1 - low, low]), abs=1e-3)
    assert data["confusion"]["classes"] == ["ill", "well"]
    assert data["confusion"]["rows"] == confusion_matrix(truth, found["prediction"]).tolist()
    bins = data["reliability"]
    assert sum(one["rows"] for one in bins) == 60
    assert sum(one["rows"] * one["share"] for one in bins) == pytest.approx((truth == "well").sum())
    assert [one["probability"] for one in bins] == sorted(one["probability"] for one in bins)
    assert all(one["low"] <= one["share"] <= one["high"] for one in bins)


def test_intervals_of_errors_need_five_rows_and_contain_the_error(folder, tmp_path):
    test = patients(60, 1)
    few = test[(test["site"] != "b") | (np.arange(60) < 12)]  # four rows of b
    few.to_csv(tmp_path / "t.csv", index=False)
    data = json.loads(worked("evaluate", folder / "regression", tmp_path / "t.csv", "--json").stdout)
    assert data["tasks"]["b"]["rows"] == 4
    assert data["tasks"]["b"]["error_low"] is None
    for found in (data, data["tasks"]["12"]):
        assert found["error_low"] < found["rmse"] < found["error_high"]


def test_the_page_of_several_targets_has_figures_of_each(two_targets, tmp_path):
    worked("evaluate", two_targets / "m", two_targets / "test.csv", "--out", tmp_path / "o")
    page = (tmp_path / "o" / "report.html").read_text()
    assert re.findall(r'<figure id="([^"]*)"', page) == ["fig-sites", "fig-truth", "fig-sites-2", "fig-truth-2"]
    data = json.loads((tmp_path / "o" / "results.json").read_text())
    assert set(data["coverage"]) == {"days", "weeks"}
    assert data["targets"]["days"]["rmse"] == pytest.approx(7 * data["targets"]["weeks"]["rmse"], rel=1e-6)


# What goes wrong


def failed(result: Result) -> str:
    """The sentence a command failed with."""
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert result.stderr.startswith("elmesh: ")
    assert result.stderr.count("\n") == 1
    assert "Traceback" not in result.stderr
    return result.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--task", "sit", "--target", "outcome"], 'no column "sit" in the table; did you mean "site"?'),
        (["--task", "site", "--target", "outcom"], 'did you mean "outcome"?'),
        (["--target", "outcome"], "--task must name the column"),
        (["--task", "site", "--target", "outcome", "--kind", "regression"], "Regression needs numbers"),
        (["--task", "site", "--target", "outcome", "--kind", "guess"], "classification or regression"),
        (["--task", "site", "--target", "outcome", "--target", "days"], "Regression needs numbers"),
        (["--task", "site", "--target", "outcome", "--solver", "magic"], "mesh-elm"),
        (["--task", "site", "--target", "outcome", "--runtime", "cloud"], "--runtime must be local or mpi"),
        (["--task", "site", "--target", "outcome", "--message-bits", "5"], "message_bits must be one of"),
        (["--task", "site", "--target", "outcome", "--graph", "tangle"], "ring"),
        (["--task", "site", "--target", "outcome", "--rank", "-1"], "rank"),
        (["--task", "site", "--target", "outcome", "--solver", "dmtl-elm", "--rank", "0"], "rank"),
        (["--task", "site", "--target", "outcome", "--parts", "own"], "some of common, private, shared"),
        (["--task", "site", "--target", "outcome", "--parts", ""], "some of common, private, shared"),
        (["--task", "site", "--target", "outcome", "--parts", "common,shared"], "add private to the parts"),
        (["--task", "site", "--target", "outcome", "--parts", "common", "--rank", "2"], "add shared to --parts"),
        (["--task", "site", "--target", "outcome", "--parts", "shared", "--rank", "0"], "--rank 0 means no shared"),
        (["--task", "site", "--target", "outcome", "--solver", "dmtl-elm", "--parts", "shared"], "has no meaning for"),
        (["--task", "site", "--target", "outcome", "--hidden", "0"], "hidden"),
        (["--task", "site", "--target", "outcome", "--mu", "-1"], "mu"),
        (["--task", "site", "--target", "outcome", "--solver", "local-elm", "--rank", "2"], "--rank has no meaning"),
        (["--task", "site", "--target", "outcome", "--solver", "mtl-elm", "--graph", "ring"], "--graph has no meaning"),
        (
            ["--task", "site", "--target", "outcome", "--solver", "mtfl", "--rank", "2"],
            "--rank has no meaning for mtfl",
        ),
        (["--task", "site", "--target", "outcome", "--solver", "go-mtl", "--graph", "ring"], "--graph has no meaning"),
        (["--task", "site", "--target", "outcome", "--solver", "dgsp", "--graph", "star"], "--graph has no meaning"),
        (["--task", "site", "--target", "outcome", "--solver", "dnsp", "--max-iter", "3"], "--max-iter has no meaning"),
    ],
)
def test_a_bad_option_of_fit_is_one_sentence_and_no_model(folder, tmp_path, options, message):
    assert message in failed(run("fit", folder / "train.csv", *options, "--out", tmp_path / "m"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "t.csv is empty"),
        ("site,x,outcome\na,1,ill\na,2\n", "t.csv, line 3: 2 values where the header has 3"),
        ("site,x,outcome\na,1,ill\n,2,well\n", '1 row has no task in column "site", at line 3'),
        ("site,x,outcome\na,1,ill\nb,2,\nb,3,NA\n", '2 rows have no target in column "outcome", the first at line 3'),
        ("site,x,outcome\na,inf,ill\na,2,well\n", 'Column "x" has an infinite value at line 2'),
        ("site,when,outcome\na,01/02/2024,ill\na,02/02/2024,well\n", '--drop "when"'),
        ("site,x,outcome\na,1,ill\na,2,ill\nb,3,ill\nb,4,ill\n", "All rows have the class 'ill': nothing to learn"),
        ('site,x,"out\ncome"\na,1,ill\n', 'did you mean "out come"?'),
    ],
)
def test_a_bad_table_is_one_sentence_and_no_model(tmp_path, text, message):
    (tmp_path / "t.csv").write_text(text)
    args = ["--task", "site", "--target", "outcome", "--out", tmp_path / "m"]
    assert message in failed(run("fit", tmp_path / "t.csv", *args))
    assert not (tmp_path / "m").exists()


def test_a_task_with_one_class_is_named_where_classes_are_each_tasks_own(tmp_path):
    (tmp_path / "t.csv").write_text("site,x,outcome\na,1,ill\na,2,well\nb,3,ill\nb,4,ill\n")
    args = ["fit", tmp_path / "t.csv", "--task", "site", "--target", "outcome"]
    assert "'b'" in failed(run(*args, "--solver", "dmtl-elm", "--out", tmp_path / "m"))
    assert not (tmp_path / "m").exists()
    worked(*args, "--out", tmp_path / "m")


def test_an_empty_file_in_a_folder_names_its_task(tmp_path):
    (tmp_path / "leeds.csv").write_text("x,y\n1,2\n")
    (tmp_path / "york.csv").write_text("")
    assert 'Task "york"' in failed(run("fit", tmp_path, "--target", "y", "--out", tmp_path / "m"))


def test_nothing_is_replaced_without_force(folder, tmp_path):
    model, out = shutil.copytree(folder / "classes", tmp_path / "m"), tmp_path / "p.csv"
    worked("predict", model, folder / "new.csv", "--out", out)
    before = (model / "model.json").read_bytes(), out.read_bytes()
    assert "--force" in failed(run("fit", folder / "train.csv", *FIT_DAYS, "--out", model))
    assert "--force" in failed(run("predict", folder / "regression", folder / "new.csv", "--out", out))
    assert before == ((model / "model.json").read_bytes(), out.read_bytes())
    worked("fit", folder / "train.csv", *FIT_DAYS, "--out", model, "--force")
    worked("predict", model, folder / "new.csv", "--out", out, "--force")
    assert before[0] != (model / "model.json").read_bytes()
    assert before[1] != out.read_bytes()


def test_force_replaces_neither_other_files_nor_the_table_itself(folder, tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    assert "is not an elmesh model" in failed(run("fit", folder / "train.csv", *FIT_DAYS, "--out", tmp_path, "--force"))
    table = tmp_path / "new.csv"
    table.write_bytes((folder / "new.csv").read_bytes())
    message = failed(run("predict", folder / "classes", table, "--out", table, "--force"))
    assert "is the table to predict" in message
    assert table.read_bytes() == (folder / "new.csv").read_bytes()


def test_an_impossible_output_path_is_refused_before_the_work(folder, tmp_path, monkeypatch):
    for module in ("elmesh.cli.fit", "elmesh.cli.predict"):
        monkeypatch.setattr(f"{module}.read_data", lambda *_, **__: pytest.fail("the work began"))
    file = tmp_path / "file"
    file.touch()
    assert "is a file, not a folder" in failed(run("fit", folder / "train.csv", *FIT_DAYS, "--out", file / "m"))
    args = ["predict", folder / "classes", folder / "new.csv", "--out"]
    assert "expected a name that ends in .csv" in failed(run(*args, tmp_path / "p.xlsx"))


def test_a_model_that_is_missing_altered_or_not_of_fit_has_its_own_error(folder, tmp_path):
    new = folder / "new.csv"
    assert "There is no model" in failed(run("predict", tmp_path / "absent", new))
    rng = np.random.default_rng(0)
    model = elmesh.MultiTaskELMRegressor(5, solver="local-elm", random_state=0)
    model.fit(rng.normal(size=(20, 2)), rng.normal(size=20), tasks=["a", "b"] * 10)
    model.save(tmp_path / "plain")
    for command in ("predict", "evaluate"):
        assert "was fitted on an array" in failed(run(command, tmp_path / "plain", new))
    schema = elmesh.load(folder / "classes").extra_["table"]
    model.save(tmp_path / "mixed", extra={"table": schema})
    assert "do not match" in failed(run("predict", tmp_path / "mixed", new))
    model.save(tmp_path / "damaged", extra={"table": {**schema, "numeric": "x"}})
    assert "table.numeric is not a list" in failed(run("predict", tmp_path / "damaged", new))


def test_the_summary_says_what_is_common_what_differs_and_what_the_certificate_is_about(folder, tmp_path):
    lines = (folder / "regression.txt").read_text(encoding="utf-8").splitlines()
    assert any(line.startswith("Common to all sites: constant; ") for line in lines)
    assert any(line.startswith("Different at each site: ") for line in lines)
    assert "No shared part: it did not lower the error on rows left out." in lines
    assert "The certificate is about the fit to the training rows, not about new rows." in lines
    assert not any("noise_" in line for line in lines)
    shared = worked("fit", folder / "train.csv", *FIT_DAYS, *SHARED, "--rank", 2, "--out", tmp_path / "b").stdout
    assert "Shared part of rank 2." in shared.splitlines()
    none = worked("fit", folder / "train.csv", *FIT_DAYS, "--rank", 0, "--out", tmp_path / "c").stdout
    assert "No shared part, as asked." in none.splitlines()


def test_noise_is_in_the_units_of_the_target(folder, tmp_path):
    frame = patients(150, 0)
    frame.assign(days=frame["days"] * 7).to_csv(tmp_path / "t.csv", index=False)
    noise = elmesh.load(folder / "regression").noise_
    found = json.loads(worked("fit", tmp_path / "t.csv", *FIT_DAYS, "--out", tmp_path / "m", "--json").stdout)
    for task in ("007", "12", "b"):
        assert found["noise"][task] == pytest.approx([7 * x for x in noise[task]], rel=1e-3)


def test_an_interval_of_ninety_percent_holds_most_true_values(folder):
    text = worked("predict", folder / "regression", folder / "test.csv", "--interval", 0.9).stdout
    table, truth = pd.read_csv(io.StringIO(text)), patients(60, 1)["days"]
    assert list(table.columns) == ["site", "prediction", "lower", "upper"]
    np.testing.assert_allclose(table["prediction"] - table["lower"], table["upper"] - table["prediction"], rtol=1e-6)
    assert np.mean((table["lower"] <= truth) & (truth <= table["upper"])) >= 0.75
    wide = pd.read_csv(
        io.StringIO(worked("predict", folder / "regression", folder / "test.csv", "--interval", 0.99).stdout)
    )
    assert (wide["upper"] > table["upper"]).all()


def test_an_interval_of_several_targets_has_columns_for_each(two_targets):
    text = worked("predict", two_targets / "m", two_targets / "test.csv", "--interval", 0.5).stdout
    names = [f"{what}_{target}" for what in ("prediction", "lower", "upper") for target in ("days", "weeks")]
    assert list(pd.read_csv(io.StringIO(text)).columns) == ["site", *names]


def test_an_interval_that_cannot_be_is_an_error(folder):
    assert "use --proba instead" in failed(run("predict", folder / "classes", folder / "new.csv", "--interval", 0.9))
    for share in ("0", "1", "90"):
        message = failed(run("predict", folder / "regression", folder / "new.csv", "--interval", share))
        assert "--interval must be above 0 and below 1" in message
    message = failed(run("predict", own_model(folder, "days"), folder / "new.csv", "--interval", 0.9))
    assert "This model has no intervals, because it has no common part" in message


def test_rows_of_unknown_tasks_are_counted_and_marked(folder, tmp_path):
    rows = patients(60, 1)
    rows["site"] = np.where(np.arange(60) < 4, "elsewhere", rows["site"])
    rows.to_csv(tmp_path / "t.csv", index=False)
    for model in ("classes", "regression"):
        result = worked("predict", folder / model, tmp_path / "t.csv")
        assert "note: 4 of 60 rows are of 'elsewhere', which was not in training" in result.stderr
        assert pd.read_csv(io.StringIO(result.stdout))["known_site"].tolist() == [False] * 4 + [True] * 56
        data = json.loads(worked("evaluate", folder / model, tmp_path / "t.csv", "--json").stdout)
        assert (data["rows"], data["unknown_rows"]) == (60, 4)
        assert sum(task["rows"] for task in data["tasks"].values()) == 56
        assert any("4 of 60 rows" in note for note in data["notes"])
    assert "known_site" not in worked("predict", folder / "classes", folder / "new.csv").stdout


def test_an_error_in_new_rows_names_the_column_line_or_task(folder, tmp_path):
    def message(**changes: object) -> str:
        patients(60, 1).assign(**changes).to_csv(tmp_path / "t.csv", index=False)
        return failed(run("predict", folder / "classes", tmp_path / "t.csv"))

    patients(60, 1).assign(site="elsewhere").to_csv(tmp_path / "t.csv", index=False)
    assert "'elsewhere'" in failed(run("predict", own_model(folder, "outcome"), tmp_path / "t.csv"))
    assert 'Column "dose" must hold numbers, but line 2 has "much"' in message(dose="much")
    patients(60, 1).drop(columns="ward").to_csv(tmp_path / "t.csv", index=False)
    assert 'no column "ward"' in failed(run("predict", folder / "classes", tmp_path / "t.csv"))
    assert "--proba is for classification" in failed(
        run("predict", folder / "regression", folder / "new.csv", "--proba")
    )
    assert 'no column "outcome"' in failed(run("evaluate", folder / "classes", folder / "new.csv"))


def test_a_file_that_cannot_be_read_is_a_plain_sentence(folder, monkeypatch):
    def refuse(path: Path, **_: object) -> pd.DataFrame:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("elmesh.cli.predict.read_data", refuse)
    assert "secret.csv: permission denied." in failed(run("predict", folder / "classes", "secret.csv"))


# Ctrl-C


def test_the_first_interrupt_is_recorded_and_the_second_aborts(capfd):
    before = signal.getsignal(signal.SIGINT)
    with stop_on_interrupt(Output()) as request:
        assert not request.asked
        signal.raise_signal(signal.SIGINT)
        assert request.asked
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before
    assert capfd.readouterr().err.count("press Ctrl-C again to abort") == 1


def interrupting(times: int):
    """Return a replacement of the progress bar that sends SIGINT in round 3."""

    @contextmanager
    def bar(self: Output, title: str) -> Iterator[object]:
        def show(done: int, total: int, text: str) -> None:
            if text.startswith("round 3 "):
                for _ in range(times):
                    signal.raise_signal(signal.SIGINT)

        yield show

    return bar


def test_ctrl_c_saves_the_rounds_so_far(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(Output, "bar", interrupting(1))
    args = ["fit", folder / "train.csv", *FIT_CLASSES, *SHARED, "--tol", 0]
    result = run(*args, "--out", tmp_path / "m", "--json")
    assert result.exit_code == 130
    data = json.loads(result.stdout)
    assert (data["stop"], data["rounds"]) == ("INTERRUPTED", 3)
    assert f"Stopped by Ctrl-C after round 3; the model so far is in {tmp_path / 'm'}." in result.stderr
    monkeypatch.undo()
    worked(*args, "--max-iter", 3, "--out", tmp_path / "three")
    outputs = [worked("predict", tmp_path / name, folder / "new.csv", "--proba").stdout for name in ("m", "three")]
    assert outputs[0] == outputs[1]


def test_a_second_ctrl_c_aborts_and_saves_nothing(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(Output, "bar", interrupting(2))
    result = run("fit", folder / "train.csv", *FIT_CLASSES, *SHARED, "--tol", 0, "--out", tmp_path / "m")
    assert (result.exit_code, result.stderr) == (130, "elmesh: Aborted.\n")
    assert re.fullmatch(
        r"Sites (will|in different places would) send about .*\n", result.stdout
    )  # before the first round
    assert list(tmp_path.iterdir()) == []


def interrupt_estimation(monkeypatch, times: int) -> None:
    """Send SIGINT while the variances are estimated, before the first round."""

    def interrupted(*args: object, **kwargs: object) -> object:
        for _ in range(times):
            signal.raise_signal(signal.SIGINT)
        return estimate_effects(*args, **kwargs)

    monkeypatch.setattr("elmesh.solvers.mesh_elm.estimate_effects", interrupted)


def test_ctrl_c_before_the_first_round_saves_what_is_estimated(folder, tmp_path, monkeypatch):
    interrupt_estimation(monkeypatch, 1)
    result = run("fit", folder / "train.csv", *FIT_DAYS, "--out", tmp_path / "m", "--json")
    assert result.exit_code == 130
    data = json.loads(result.stdout)
    assert (data["stop"], data["rounds"]) == ("INTERRUPTED", 0)
    assert result.stderr == f"note: Stopped by Ctrl-C after round 0; the model so far is in {tmp_path / 'm'}.\n"
    # Without a shared part the estimates are all there is.
    outputs = [worked("predict", path, folder / "new.csv").stdout for path in (tmp_path / "m", folder / "regression")]
    assert outputs[0] == outputs[1]


def test_a_second_ctrl_c_before_the_first_round_leaves_an_existing_model_as_it_is(folder, tmp_path, monkeypatch):
    shutil.copytree(folder / "classes", tmp_path / "m")
    interrupt_estimation(monkeypatch, 2)
    result = run("fit", folder / "train.csv", *FIT_DAYS, "--out", tmp_path / "m", "--force")
    assert (result.exit_code, result.stderr) == (130, "elmesh: Aborted.\n")
    assert re.fullmatch(
        r"Sites (will|in different places would) send about .*\n", result.stdout
    )  # before the first round
    assert [path.name for path in tmp_path.iterdir()] == ["m"]
    assert contents(tmp_path / "m") == contents(folder / "classes")


class Terminal:
    """A terminal as standard error of this process, where Ctrl-C is pressed once some text is shown."""

    def __init__(self, text: bytes) -> None:
        self._leader, follower = os.openpty()
        self._before = os.dup(2)
        os.dup2(follower, 2)
        self.stream = os.fdopen(follower, "w", encoding="utf-8")
        self.shown, self._text, self.pressed = b"", text, False
        self._thread = threading.Thread(target=self._read)
        self._thread.start()
        # A second one would abort.
        self._limit = threading.Timer(300, os.kill, [os.getpid(), signal.SIGINT])
        self._limit.start()

    def _read(self) -> None:
        try:
            while chunk := os.read(self._leader, 4096):
                self.shown += chunk
                if self._text in self.shown and not self.pressed:
                    self.pressed = True
                    os.kill(os.getpid(), signal.SIGINT)
        except OSError:  # Linux: the other end is closed
            pass

    def close(self) -> None:
        self._limit.cancel()
        self.stream.close()
        os.dup2(self._before, 2)
        os.close(self._before)
        self._thread.join()
        os.close(self._leader)


@pytest.mark.skipif(sys.platform == "win32", reason="there are no pseudo-terminals on Windows")
def test_on_a_terminal_there_is_a_progress_bar_and_a_real_ctrl_c_loses_nothing(folder, tmp_path, monkeypatch, capsys):
    # The default method would end before the signal.
    forever = ["--solver", "fo-dmtl-elm", "--max-iter", "100000000", "--tol", "0"]
    words = ["elmesh", "fit", folder / "train.csv", *FIT_CLASSES, *forever, "--out", tmp_path / "m", "--json"]
    monkeypatch.setattr(sys, "argv", [str(word) for word in words])
    monkeypatch.setenv("TERM", "xterm")
    terminal = Terminal(b"round")
    monkeypatch.setattr(sys, "stderr", terminal.stream)
    try:
        with pytest.raises(SystemExit) as stop:
            main()
    finally:
        monkeypatch.undo()
        terminal.close()
    assert terminal.pressed
    assert stop.value.code == 130, terminal.shown
    assert b"press Ctrl-C again to abort" in terminal.shown
    assert json.loads(capsys.readouterr().out)["stop"] == "INTERRUPTED"
    worked("evaluate", tmp_path / "m", folder / "test.csv", "--json")


# As a program


def shell(*args: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "elmesh", *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)


@pytest.mark.slow
def test_the_program_predicts_what_the_command_does_in_a_test(folder):
    done = shell("predict", folder / "classes", folder / "new.csv")
    assert (done.returncode, done.stderr) == (0, "")
    assert read_table_text(done.stdout)["site"].tolist() == patients(60, 1)["site"].tolist()
    assert done.stdout == worked("predict", folder / "classes", folder / "new.csv").stdout


@pytest.mark.parametrize(
    "args",
    [
        ["fit"],
        ["fit", "a.csv", "--task"],
        ["fit", "a.csv", "--target", "y", "--out", "m", "--hidden", "many"],
        ["frobnicate"],
        ["predict", "m", "new.csv", "--frobnicate"],
        ["predict", "absent", "new.csv"],
    ],
)
def test_a_usage_error_is_one_sentence_with_code_2(args, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["elmesh", *args])
    with pytest.raises(SystemExit) as stop:
        main()
    out, err = capsys.readouterr()
    assert stop.value.code == 2
    assert out == ""
    assert err.startswith("elmesh: ")
    assert err.count("\n") == 1


def test_bad_input_to_the_program_is_one_sentence_with_code_2(tmp_path, monkeypatch, capsys):
    (tmp_path / "t.csv").write_text("site,x,y\na,1,2\na,1\n")
    words = ["fit", tmp_path / "t.csv", "--task", "site", "--target", "y", "--out", tmp_path / "m"]
    monkeypatch.setattr(sys, "argv", ["elmesh", *map(str, words)])
    with pytest.raises(SystemExit) as stop:
        main()
    out, err = capsys.readouterr()
    assert (stop.value.code, out) == (2, "")
    assert err == "elmesh: t.csv, line 3: 2 values where the header has 3; correct that line.\n"


# Help and start-up


COMMANDS = [
    "demo",
    "sample",
    "fit",
    "predict",
    "evaluate",
    "compare",
    "add-site",
    "update",
    "forget",
    "export",
    "reproduce",
    "agent",
]
NETWORK_COMMANDS = [
    "create",
    "invite",
    "join",
    "csr",
    "sign",
    "check",
    "status",
    "audit",
    "confirm",
    "renew",
    "trust",
    "revoke",
    "rotate",
    "unit",
    "router",
]


@pytest.mark.parametrize("command", [*COMMANDS, *(f"network {name}" for name in NETWORK_COMMANDS)])
def test_every_command_has_help_with_examples(command):
    shown = re.sub(r"\x1b\[[0-9;]*m", "", worked(*command.split(), "--help").stdout)
    assert "Examples:" in shown
    assert f"elmesh {command}" in shown
    assert "--quiet" in shown
    assert ("--json" in shown) or command == "network router"
    known = options_of(*command.split())
    in_examples = re.findall(r"(?<!\S)--[a-z][\w-]*", shown[shown.index("Examples:") :])
    assert set(in_examples) <= known


def options_of(*words):
    """The long options of a command."""
    found = typer.main.get_command(app)
    for word in words:
        found = found.commands[word]
    found = getattr(found, "loaded", found)
    return {name for one in found.params for name in (*one.opts, *one.secondary_opts)} | {"--help"}


def test_without_a_command_the_commands_and_their_summaries_are_shown():
    shown = worked().stdout
    assert all(command in shown for command in [*COMMANDS, "network"])
    assert "Predict new rows with a saved model." in shown
    network = worked("network").stdout
    assert all(command in network for command in NETWORK_COMMANDS)


def test_the_version_is_printed():
    assert worked("--version").stdout == f"elmesh {elmesh.__version__}\n"


def test_no_numerical_library_is_imported_before_a_command_runs():
    code = (
        "import sys\n"
        "from elmesh.cli import main\n"
        "for words in ([], ['--help'], ['--version'], ['network', '--help'], ['frobnicate']):\n"
        "    sys.argv = ['elmesh', *words]\n"
        "    try:\n        main()\n    except SystemExit:\n        pass\n"
        "    heavy = {'numpy', 'pandas', 'sklearn', 'scipy', 'matplotlib', 'networkx', 'pyarrow'}\n"
        "    print('imported', words, sorted(heavy & set(sys.modules)), file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300)
    found = [line for line in done.stderr.splitlines() if line.startswith("imported")]
    assert len(found) == 5
    assert all(line.endswith(" []") for line in found), found
