"""Rows that come later and rows that must go, by the command: in one place, and at a site of a network."""

from __future__ import annotations

import json
import shutil
import stat
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import elmesh
from elmesh.cli import app
from elmesh.datasets import simulate_visits
from helpers.forked import ForkedNetwork
from helpers.network import make_config, rows_of


def run(*args: object, code: int = 0):
    result = CliRunner(env={"FORCE_COLOR": None, "NO_COLOR": "1"}).invoke(app, [str(arg) for arg in args])
    assert result.exit_code == code, result.output + result.stderr
    return result


def visits() -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return rows to fit, and rows that come later."""
    train, new = (
        rows[rows["clinic"].isin(["Bath", "Ely", "York"])].drop(columns="complication")
        for rows in simulate_visits(seed=1)[:2]
    )
    return train, new[:30]


@pytest.fixture(scope="module")
def fitted(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("update")
    train, new = visits()
    train.to_csv(folder / "train.csv", index=False)
    new.to_csv(folder / "new.csv", index=False)
    run("fit", folder / "train.csv", "--task", "clinic", "--target", "days", "--hidden", 20, "--out", folder / "model",
        "--quiet")  # fmt: skip
    return folder


@pytest.fixture
def model(fitted, tmp_path) -> Path:
    return Path(shutil.copytree(fitted / "model", tmp_path / "model"))


def predictions(folder: Path) -> np.ndarray:
    return elmesh.load(folder).predict(visits()[1])


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_rows_that_are_added_and_forgotten_leave_the_folder_as_it_was(fitted, model):
    before = files(model)
    shown = json.loads(run("update", model, fitted / "new.csv", "--json").stdout)
    assert (shown["command"], shown["changed_rows"]) == ("update", 30)
    assert shown["rows"] == len(visits()[0]) + 30
    assert not np.allclose(predictions(model), predictions(fitted / "model"))
    shown = json.loads(run("forget", model, fitted / "new.csv", "--json").stdout)
    assert (shown["command"], shown["rows"]) == ("forget", len(visits()[0]))
    assert files(model) == before


def test_a_model_is_kept_if_the_changed_one_is_saved_elsewhere(fitted, model, tmp_path):
    before = files(model)
    text = run("update", model, fitted / "new.csv", "--out", tmp_path / "other").stdout
    assert "30 rows added" in text
    assert files(model) == before
    assert (
        "exists; choose another name"
        in run("update", model, fitted / "new.csv", "--out", tmp_path / "other", code=2).stderr
    )
    assert {"report.html", "README.md", "statistics/rows.safetensors"} <= files(tmp_path / "other").keys()
    assert stat.S_IMODE((tmp_path / "other" / "statistics").stat().st_mode) == 0o700
    card = (tmp_path / "other" / "README.md").read_text()
    assert f"on {len(visits()[0]) + 30} rows left out" in card


def test_rows_that_the_model_has_are_noted(fitted, model, tmp_path):
    train, new = visits()
    pd.concat([train[:2], new[:3]]).to_csv(tmp_path / "rows.csv", index=False)
    assert (
        "2 of 5 rows are equal to rows that the model has learned from"
        in run("update", model, tmp_path / "rows.csv").stderr
    )


def test_rows_that_the_model_has_all_are_added_again_only_if_that_is_asked_for(fitted, model, tmp_path):
    """A job that runs every night with the same file would make the model worse."""
    run("update", model, fitted / "new.csv")
    before = files(model)
    assert "give --again if that is meant" in run("update", model, fitted / "new.csv", "--quiet", code=2).stderr
    assert files(model) == before
    assert "30 rows added" in run("update", model, fitted / "new.csv", "--again").stdout


def test_rows_of_one_site_need_no_column_for_it(fitted, model, tmp_path):
    new = visits()[1]
    own = new[new["clinic"] == "Bath"]
    own.to_csv(tmp_path / "own.csv", index=False)
    run("update", model, tmp_path / "own.csv", "--out", tmp_path / "by-column")
    own.drop(columns="clinic").to_csv(tmp_path / "bare.csv", index=False)
    run("update", model, tmp_path / "bare.csv", "--site", "Bath", "--out", tmp_path / "by-option")
    assert files(tmp_path / "by-option") == files(tmp_path / "by-column")


def test_a_site_without_rows_is_no_longer_in_the_model(fitted, model, tmp_path):
    train = visits()[0]
    train[train["clinic"] == "Ely"].to_csv(tmp_path / "ely.csv", index=False)
    assert "Ely" in run("forget", model, tmp_path / "ely.csv").stderr
    assert "Ely" not in elmesh.load(model).tasks_


def test_a_new_site_may_replace_the_model(fitted, model, tmp_path):
    _, _, truro = simulate_visits(seed=1)
    truro.to_csv(tmp_path / "truro.csv", index=False)
    shown = json.loads(run("add-site", model, tmp_path / "truro.csv", "--site", "Truro", "--json").stdout)
    assert "Truro" in shown["tasks"]
    assert "Truro" in (model / "report.html").read_text()
    np.testing.assert_array_equal(predictions(model), predictions(fitted / "model"))


@pytest.mark.parametrize("command", ["update", "forget"])
def test_rows_that_cannot_be_used_are_one_sentence_and_change_nothing(fitted, model, tmp_path, command):
    train, new = visits()
    before = files(model)
    new.assign(days="many").to_csv(tmp_path / "words.csv", index=False)
    assert "days" in run(command, model, tmp_path / "words.csv", code=2).stderr
    assert "There is no file" in run(command, model, tmp_path / "absent.csv", code=2).stderr
    new.drop(columns="clinic").to_csv(tmp_path / "bare.csv", index=False)
    assert "clinic" in run(command, model, tmp_path / "bare.csv", code=2).stderr
    train[:0].to_csv(tmp_path / "empty.csv", index=False)
    assert "no rows" in run(command, model, tmp_path / "empty.csv", code=2).stderr
    if command == "forget":
        stderr = run(command, model, fitted / "new.csv", code=2).stderr
        assert "not among those that the model was learned from" in stderr
    shutil.rmtree(model / "statistics")
    assert "no statistics of the rows" in run(command, model, fitted / "new.csv", code=2).stderr
    assert files(model) == {name: data for name, data in before.items() if not name.startswith("statistics")}


def test_weights_of_rows_are_those_of_repeated_rows(fitted, tmp_path):
    train, new = visits()
    train.assign(n=1).to_csv(tmp_path / "train.csv", index=False)
    new.assign(n=2).to_csv(tmp_path / "twice.csv", index=False)
    pd.concat([new, new]).assign(n=1).to_csv(tmp_path / "repeated.csv", index=False)
    run("fit", tmp_path / "train.csv", "--task", "clinic", "--target", "days", "--weight", "n", "--hidden", 20,
        "--out", tmp_path / "m", "--quiet")  # fmt: skip
    for name in ("twice", "repeated"):
        run("update", tmp_path / "m", tmp_path / f"{name}.csv", "--weight", "n", "--out", tmp_path / name)
    np.testing.assert_allclose(predictions(tmp_path / "twice"), predictions(tmp_path / "repeated"), rtol=1e-6)
    assert "n" not in elmesh.load(tmp_path / "m").feature_names_in_


def test_at_a_site_of_a_network_only_its_own_part_changes(tmp_path):
    parts = {"common": "auto", "private": "auto"}
    config = make_config(("left", "right"), graph="path", kind="regression", target_range=(-6.0, 6.0),
        exchange="sums", solver="mesh-elm", rank=0, rounds=20, parameters=parts)  # fmt: skip
    with ForkedNetwork(tmp_path, config) as network:
        network.start_all()
        assert set(network.wait("left", "right").values()) == {0}, network.logs()
        out = network.agents["left"].out
    assert any("Sites will send about" in line for line in network.agents["left"].errors.splitlines())
    before, first = files(out), elmesh.load(out)
    new = rows_of("left", n=90, kind="regression")[-30:]
    new.to_csv(tmp_path / "new.csv", index=False)
    text = run("update", out, tmp_path / "new.csv", "--site", "left").stdout
    assert "stays as it is" in text
    after = elmesh.load(out)
    np.testing.assert_array_equal(after.W_, first.W_)
    rows = rows_of("left", kind="regression").drop(columns="y")
    assert not np.allclose(after.predict(rows, tasks=["left"] * len(rows)), first.predict(rows, ["left"] * len(rows)))
    run("forget", out, tmp_path / "new.csv", "--site", "left")
    again = elmesh.load(out).predict(rows, tasks=["left"] * len(rows))
    np.testing.assert_allclose(again, first.predict(rows, ["left"] * len(rows)), rtol=1e-12)
    assert files(out)["statistics/rows.safetensors"] == before["statistics/rows.safetensors"]
    assert "add-site" in run("update", out, tmp_path / "new.csv", "--site", "other", code=2).stderr
