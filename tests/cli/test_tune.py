"""``elmesh tune``: the table of settings, the sentence about them, and the model that ``elmesh fit`` makes."""

from __future__ import annotations

import json
import os
import shlex
import signal
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner, Result

import elmesh
from elmesh import MultiTaskELMClassifierCV, MultiTaskELMRegressorCV
from elmesh.cli import app
from elmesh.cli.fit_options import FitOptions
from elmesh.estimators.feature_scores import FeatureScores

FILES = ("README.md", "report.html", "model.json", "weights.safetensors")
TABLE = ["--task", "site", "--target", "y", "--drop", "kind"]


def run(*args: object) -> Result:
    return CliRunner(env={"FORCE_COLOR": None, "NO_COLOR": "1"}).invoke(app, [str(arg) for arg in args])


def worked(*args: object) -> Result:
    result = run(*args)
    assert result.exit_code == 0, result.output
    return result


@pytest.fixture(scope="module")
def table(tmp_path_factory) -> Path:
    """Three sites with a target that waves too fast for the default scales of weights."""
    rng = np.random.default_rng(0)
    x, site = rng.uniform(-2, 2, 150), np.repeat(["leeds", "ripon", "york"], 50)
    y = np.sin(8 * x) + 0.2 * rng.normal(size=150)
    frame = pd.DataFrame({"site": site, "x": x, "y": y, "kind": np.where(y > 0, "high", "low")})
    path = tmp_path_factory.mktemp("tune") / "table.csv"
    frame.to_csv(path, index=False)
    return path


@pytest.fixture
def no_report(monkeypatch):
    """Fits without their page, which takes longer than all else."""
    monkeypatch.setattr("elmesh.cli.fit.write_model_report", lambda *_: None)


def same_model(result, folder, other):
    """Run the command that a result ends with, for another folder, and compare the models."""
    words = shlex.split(result.stdout.splitlines()[-1].removeprefix("The same model: "))
    assert words[:2] == ["elmesh", "fit"]
    worked(*[str(other) if word == str(folder) else word for word in words[1:]])
    for name in FILES:
        assert (folder / name).read_bytes() == (other / name).read_bytes(), name


def test_a_better_setting_is_found_and_the_printed_command_makes_the_same_model(table, tmp_path):
    out = tmp_path / "m"
    scales = ["--hidden", "60", "--weight-scale", "1,4", "--weight-scale", "20"]
    result = worked("tune", table, *TABLE, *scales, "--out", out)
    lines = result.stdout.splitlines()
    assert lines[0].split() == ["setting", "error", "standard", "error"]
    assert "The best of 2 settings on rows left out: --hidden 60 --weight-scale 20." in result.stdout
    assert lines[-1].endswith("--hidden 60 --weight-scale 20")
    (layer,) = elmesh.load(out).model_.layer.layers
    assert (layer.n_hidden, layer.weight_scale) == (60, 20.0)
    same_model(result, out, tmp_path / "again")


@pytest.mark.slow
def test_a_setting_that_is_clearly_better_than_the_default_is_taken(table, tmp_path):
    args = ["--hidden", "200", "--weight-scale", "20", "--weight-scale", "1,4", "--out", tmp_path / "m"]
    result = worked("tune", table, *TABLE, *args, "--json")
    found = json.loads(result.stdout)
    tuning = found["tuning"]
    assert (found["command"], tuning["default"], tuning["best"]) == ("tune", 0, 1)
    assert [row["options"] for row in tuning["settings"]] == [
        "--hidden 200 --weight-scale 1,4", "--hidden 200 --weight-scale 20"
    ]  # fmt: skip
    change, error = (tuning["settings"][1][name] for name in ("change", "change_standard_error"))
    assert change < -error < 0
    assert tuning["verdict"].startswith("--hidden 200 --weight-scale 20 is clearly better than the default")
    assert found["gains"]["overall"]["together"] < tuning["settings"][0]["error"] + change / 2


@pytest.mark.thorough
def test_the_default_is_kept_where_nothing_is_clearly_better(table, tmp_path):
    args = ["--task", "site", "--target", "kind", "--drop", "y", "--out", tmp_path / "m"]
    result = worked("tune", table, *args, "--hidden", "200", "--weight-scale", "1,4", "--weight-scale", "1,3")
    assert "The default is as good: kept." in result.stdout or "The default is the best of 2" in result.stdout
    assert "log loss" in result.stdout.splitlines()[0]
    assert "--hidden" not in result.stdout.splitlines()[-1]
    same_model(result, tmp_path / "m", tmp_path / "again")


def test_scores_are_those_of_the_estimators(table, tmp_path, no_report):
    args = ["--hidden", "10,30", "--weight-scale", "2", "--out", tmp_path / "m", "--json", "--quiet"]
    found = json.loads(worked("tune", table, *TABLE, *args).stdout)["tuning"]
    frame = pd.read_csv(table)
    model = MultiTaskELMRegressorCV(n_hidden=[10, 30], weight_scale=[2.0], task="site", random_state=0)
    model.fit(frame[["site", "x"]], frame["y"])
    expected = np.sqrt(-model.cv_results_["mean_test_score"])
    np.testing.assert_allclose([row["error"] for row in found["settings"]], expected)
    saved, alone = elmesh.load(tmp_path / "m"), model.best_estimator_
    np.testing.assert_array_equal(saved.predict(frame), alone.predict(frame[["site", "x"]]))


def test_penalties_and_ranks_of_the_papers_problem_are_tuned(table, tmp_path, no_report):
    args = ["--hidden", "20", "--parts", "shared", "--rank", "1,2", "--mu", "0.1,1,auto", "--folds", "3"]
    result = worked("tune", table, *TABLE, *args, "--out", tmp_path / "m", "--json")
    tuning = json.loads(result.stdout)["tuning"]
    assert len(tuning["settings"]) == 6
    assert tuning["default"] is None
    assert "--parts shared" in tuning["fit_command"]
    assert elmesh.load(tmp_path / "m").solver.private is False
    classes = ["--task", "site", "--target", "kind", "--drop", "y", "--solver", "local-elm", "--mu", "0.1,10"]
    result = worked("tune", table, *classes, "--hidden", "20", "--out", tmp_path / "c", "--json")
    errors = [row["error"] for row in json.loads(result.stdout)["tuning"]["settings"]]
    frame = pd.read_csv(table)
    model = MultiTaskELMClassifierCV(20, solver="local-elm", mu=[0.1, 10.0], task="site", random_state=0)
    model.fit(frame[["site", "x"]], frame["kind"])
    np.testing.assert_allclose(errors, -model.cv_results_["mean_test_score"])


def test_settings_that_were_not_tried_have_no_number(table, tmp_path, no_report):
    args = ["--hidden", "30", "--weight-scale", "20", "--parts", "shared", "--rank", "2", "--mu", "3,0.3,0.01,0.001"]
    result = worked("tune", table, *TABLE, *args, "--out", tmp_path / "m", "--json")
    settings = json.loads(result.stdout)["tuning"]["settings"]
    assert settings[-1]["error"] is None
    table_of = worked("tune", table, *TABLE, *args, "--out", tmp_path / "n").stdout
    assert "–" in table_of


def test_weights_of_rows_and_classes_count_in_scores_and_in_the_fit(table, tmp_path, no_report):
    frame = pd.read_csv(table).assign(times=lambda t: np.where(t["x"] > 0, 3, 1))
    frame.to_csv(tmp_path / "weighted.csv", index=False)
    frame.loc[frame.index.repeat(frame["times"])].drop(columns="times").to_csv(tmp_path / "repeated.csv", index=False)
    args = ["--task", "site", "--target", "kind", "--drop", "y", "--hidden", "5,15", "--weight-scale", "6", "--json"]
    weighted, tried = [tmp_path / "weighted.csv", *args, "--weight", "times"], {}
    for name, command in (
        ("weighted", weighted),
        ("repeated", [tmp_path / "repeated.csv", *args]),
        ("balanced", [*weighted, "--class-weight", "balanced"]),
    ):
        tuning = json.loads(worked("tune", *command, "--out", tmp_path / name).stdout)["tuning"]
        tried[name] = np.array([(row["error"], row["standard_error"]) for row in tuning["settings"]])
    np.testing.assert_allclose(tried["weighted"], tried["repeated"], rtol=1e-4)
    errors, others = tried["balanced"][:, 0], tried["weighted"][:, 0]
    assert np.all(np.abs(errors / others - 1.0) > 1e-3)
    assert "--weight times --class-weight balanced" in tuning["fit_command"]


def test_a_table_that_is_read_in_parts_is_refused(table, tmp_path, monkeypatch):
    pd.read_csv(table).to_parquet(tmp_path / "table.parquet")
    monkeypatch.setattr("elmesh.tables.source._LARGE", 10)
    result = run("tune", tmp_path / "table.parquet", *TABLE, "--out", tmp_path / "m")
    assert result.exit_code == 2
    assert "Settings are chosen by rows in memory" in result.stderr
    assert not (tmp_path / "m").exists()


def test_ctrl_c_ends_the_search_and_fits_the_best_so_far(table, tmp_path, monkeypatch, no_report):
    scores = FeatureScores.scores

    def interrupted(self, settings):
        for found in scores(self, settings):
            os.kill(os.getpid(), signal.SIGINT)
            yield found

    monkeypatch.setattr(FeatureScores, "scores", interrupted)
    args = ["--hidden", "5,10,20", "--weight-scale", "2", "--out", tmp_path / "m"]
    result = run("tune", table, *TABLE, *args)
    assert result.exit_code == 130
    assert "Stopped by Ctrl-C after 1 of 3 settings; the best of them is fitted." in result.stderr
    assert elmesh.load(tmp_path / "m").n_hidden == 5


def test_nothing_is_replaced_without_force_and_quiet_prints_nothing(table, tmp_path, no_report):
    args = [*TABLE, "--hidden", "5,8", "--weight-scale", "1", "--out", tmp_path / "m"]
    assert worked("tune", table, *args, "--quiet").stdout == ""
    before = (tmp_path / "m" / "model.json").read_bytes()
    result = run("tune", table, *args)
    assert result.exit_code == 2
    assert "exists; choose another name, or give --force" in result.stderr
    worked("tune", table, *args, "--force")
    assert (tmp_path / "m" / "model.json").read_bytes() == before


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--hidden", "5,many"], '--hidden must be a whole number or "auto"'),
        (["--weight-scale", "1;4"], "--weight-scale must be numbers"),
        (["--weight-scale", "-1"], "weight_scale must be"),
        (["--activation", "sigmoid,step"], "activation must be one of"),
        (["--mu", "1,x"], '--mu must be numbers or "auto"'),
        (["--rank", "1.5"], '--rank must be whole numbers or "auto"'),
        (["--rank", "1,2"], "rank is chosen for the shared part alone"),
        (["--parts", "common", "--parts", "shared"], "another problem"),
        (["--solver", "mtfl"], "Settings of mtfl cannot be chosen"),
        (["--solver", "local-elm"], "give mu a list"),
    ],
)
def test_a_bad_option_is_one_sentence_and_no_model(table, tmp_path, options, message):
    result = run("tune", table, *TABLE, "--out", tmp_path / "m", *options)
    assert result.exit_code == 2
    (line,) = result.stderr.strip().splitlines()
    assert message in line
    assert not (tmp_path / "m").exists()


def test_the_command_of_a_fit_has_what_is_not_the_default_and_quotes_names():
    table = {"data": "a b.csv", "target": ["y", "z"], "task": "site"}
    options = FitOptions(**table, out=Path("m"), hidden="50", mask=True, force=True)
    assert options.command() == "elmesh fit 'a b.csv' --target y --target z --task site --out m --hidden 50 --mask"
    options = FitOptions(data="-a.csv", target=["y"], out=Path("m"))
    assert options.command() == "elmesh fit --target y --out m -- -a.csv"


def test_fit_has_options_for_scales_and_activations(table, tmp_path, no_report):
    args = ["--hidden", "30", "--weight-scale", "0.5,2,8", "--activation", "tanh", "--out", tmp_path / "m"]
    worked("fit", table, *TABLE, *args)
    layers = elmesh.load(tmp_path / "m").model_.layer.layers
    assert [(layer.weight_scale, layer.activation) for layer in layers] == [(s, "tanh") for s in (0.5, 2.0, 8.0)]
