"""A sample to try, and a site that comes later: commands and what they show."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import elmesh
from elmesh import MultiTaskELMRegressor
from elmesh.cli import app
from elmesh.datasets import simulate_clinics, simulate_visits
from elmesh.errors import ElmeshError, UnknownSiteWarning
from helpers.code_blocks import small_sample


def run(*args: object, code: int = 0):
    result = CliRunner(env={"FORCE_COLOR": None, "NO_COLOR": "1"}).invoke(app, [str(arg) for arg in args])
    assert result.exit_code == code, result.output + result.stderr
    return result


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("sample")
    run("sample", folder / "clinics", "--quiet")
    run("fit", folder / "clinics" / "visits.csv", "--task", "clinic", "--target", "days", "--drop", "complication",
        "--hidden", "20", "--out", folder / "model", "--quiet")  # fmt: skip
    return folder


# The sample.


def test_the_sample_is_as_real_tables_are(folder):
    table = pd.read_csv(folder / "clinics" / "visits.csv")
    sizes = table["clinic"].value_counts()
    assert sizes.max() > 20 * sizes.min()
    assert 0.05 < table["haemoglobin"].isna().mean() < 0.2
    assert 0.03 < (table["complication"] == "yes").mean() < 0.2
    by_site = {path.stem: len(pd.read_csv(path)) for path in (folder / "clinics" / "sites").iterdir()}
    assert by_site == {name.lower(): n for name, n in sizes.items()}
    assert "clinic" not in pd.read_csv(folder / "clinics" / "truro.csv")


def test_one_clinic_of_the_sample_differs_from_the_others():
    train, _, _ = simulate_visits(seed=0)
    slopes = {
        name: np.polyfit(own["walking"], own["days"], 1)[0] for name, own in train.groupby("clinic") if len(own) > 20
    }
    assert slopes.pop("Stroud") > 0 > max(slopes.values())


def test_a_seed_determines_the_sample():
    one, other, again = simulate_visits(seed=1)[0], simulate_visits(seed=2)[0], simulate_visits(seed=1)[0]
    pd.testing.assert_frame_equal(one, again)
    assert not one["days"].equals(other["days"])


def test_nothing_is_overwritten_by_a_sample(folder, tmp_path):
    before = {path: path.stat().st_mtime_ns for path in (folder / "clinics").rglob("*.csv")}
    assert "Try:" in run("sample", folder / "clinics").stdout  # the same tables are there already
    assert {path: path.stat().st_mtime_ns for path in before} == before
    result = run("sample", folder / "clinics", "--seed", 1, code=2)
    assert "exists; choose another name" in result.stderr
    (tmp_path / "file").touch()
    assert "is a file" in run("sample", tmp_path / "file", "--force", code=2).stderr
    before = (folder / "clinics" / "visits.csv").read_bytes()
    shown = json.loads(run("sample", folder / "clinics", "--force", "--json").stdout)
    assert shown["clinics"] == 8
    assert (folder / "clinics" / "visits.csv").read_bytes() == before


def test_every_command_that_the_sample_suggests_works(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with small_sample():
        lines = run("sample", "clinics").stdout.splitlines()
    suggested = [line.split()[1:] for line in lines if line.startswith("elmesh ")]
    assert [words[0] for words in suggested] == ["fit", "evaluate", "add-site"]
    for words in suggested:
        run(*words)


# A site that comes later.


def test_a_new_site_has_its_own_part_and_the_others_stay_as_they_are(folder, tmp_path):
    result = run(
        "add-site", folder / "model", folder / "clinics" / "truro.csv", "--site", "Truro", "--out", tmp_path / "m"
    )
    assert "rows learned from" in result.stdout
    assert "Truro is in the model with 40 rows, beside 8 sites" in result.stdout
    before, after = elmesh.load(folder / "model"), elmesh.load(tmp_path / "m")
    new = pd.read_csv(folder / "clinics" / "new-visits.csv")
    np.testing.assert_array_equal(before.predict(new), after.predict(new))
    rows = pd.read_csv(folder / "clinics" / "truro.csv")
    own = after.predict(rows, tasks=["Truro"] * len(rows))
    with pytest.warns(UnknownSiteWarning):
        common = before.predict(rows, tasks=["other"] * len(rows))
    errors = [np.sqrt(np.mean((rows["days"] - found) ** 2)) for found in (own, common)]
    assert errors[0] < errors[1]


def test_a_learning_curve_falls_where_a_site_differs(folder):
    model = elmesh.load(folder / "model")
    train, new, _ = simulate_visits(seed=5)
    odd = pd.concat([train, new]).query("clinic == 'Stroud'")
    curve = model.site_learning_curve(odd, odd["days"])
    assert curve.rows == (0, 2, 5, 10, 20, 50)
    assert curve.errors[-1] < 0.75 * curve.errors[0]
    assert list(curve.table.columns) == ["rows", "error", "standard_error"]
    assert "rows" in curve.sentence()


def test_a_learning_curve_starts_at_the_error_of_the_common_part_and_ends_at_that_of_the_new_site(folder):
    rows, rng = pd.read_csv(folder / "clinics" / "truro.csv"), np.random.default_rng(3)
    curve = elmesh.load(folder / "model").site_learning_curve(rows, rows["days"])
    model, first, last = elmesh.load(folder / "model"), [], []
    with pytest.warns(UnknownSiteWarning):
        common = model.predict(rows, tasks=["other"] * len(rows))
    for k in range(20):
        own = np.sort(rng.permutation(len(rows))[: len(rows) // 2])
        new = np.setdiff1d(np.arange(len(rows)), own)
        first.append(np.sqrt(np.mean((rows["days"] - common)[new] ** 2)))
        size = curve.rows[-1]
        model.add_site(f"new {k}", rows.iloc[own[:size]], rows["days"].iloc[own[:size]])
        found = model.predict(rows.iloc[new], tasks=[f"new {k}"] * len(new))
        last.append(np.sqrt(np.mean((rows["days"].iloc[new] - found) ** 2)))
    for error, deviation, own in (
        (curve.errors[0], curve.deviations[0], first),
        (curve.errors[-1], curve.deviations[-1], last),
    ):
        assert abs(error - np.mean(own)) < 4 * np.hypot(deviation, np.std(own) / np.sqrt(20))


@pytest.mark.parametrize("offset", [-40.0, 1000.0])
def test_a_learning_curve_does_not_depend_on_an_offset_of_the_target(offset):
    d = simulate_clinics(seed=0)
    new = d.tasks_train == "Hazel"
    curves = []
    for shift in (0.0, offset):
        model = MultiTaskELMRegressor(n_hidden=20, random_state=0)
        model.fit(d.X_train[~new], d.y_train[~new] + shift, tasks=d.tasks_train[~new])
        curves.append(model.site_learning_curve(d.X_train[new], d.y_train[new] + shift))
    np.testing.assert_allclose(curves[1].errors, curves[0].errors, rtol=1e-3)


def test_classes_have_a_learning_curve_of_wrong_ones(folder, tmp_path):
    visits = pd.read_csv(folder / "clinics" / "visits.csv")
    visits[visits["clinic"].isin(["Bath", "York"])].to_csv(tmp_path / "visits.csv", index=False)
    run("fit", tmp_path / "visits.csv", "--task", "clinic", "--target", "complication", "--drop", "days",
        "--hidden", "5", "--out", tmp_path / "m", "--quiet")  # fmt: skip
    words = ("add-site", tmp_path / "m", folder / "clinics" / "truro.csv", "--site", "Truro", "--out", tmp_path / "n")
    shown = json.loads(run(*words, "--json").stdout)
    assert shown["curve"]["unit"] == "share of wrong classes"
    assert all(0 <= point["error"] < 0.5 for point in shown["curve"]["points"])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"--site": "Leeds"}, "has a site 'Leeds' already"),
        ({"--out": "other"}, "exists; choose another name"),
        ({"rows": "nothing.csv"}, "There is no file"),
        ({"rows": "no-target.csv"}, "days"),
    ],
)
def test_what_cannot_be_added_is_one_sentence_and_no_model(folder, tmp_path, change, words):
    rows = pd.read_csv(folder / "clinics" / "truro.csv")
    rows.drop(columns="days").to_csv(tmp_path / "no-target.csv", index=False)
    rows.to_csv(tmp_path / "rows.csv", index=False)
    out = tmp_path / change.get("--out", "m")
    if "--out" in change:
        shutil.copytree(folder / "model", out)
    table = tmp_path / change.get("rows", "rows.csv")
    result = run("add-site", folder / "model", table, "--site", change.get("--site", "Truro"), "--out", out, code=2)
    assert words in result.stderr
    assert not (tmp_path / "m").exists()


@pytest.mark.parametrize("named", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_without_another_folder_the_model_is_replaced_by_itself_with_the_site(folder, tmp_path, named):
    model = shutil.copytree(folder / "model", tmp_path / "model")
    out = ["--out", model] if named else []
    shown = run("add-site", model, folder / "clinics" / "truro.csv", "--site", "Truro", *out).stdout
    assert "Truro is in the model with 40 rows, beside 8 sites; the model is replaced." in shown
    assert elmesh.load(model).tasks_.tolist() == sorted([*elmesh.load(folder / "model").tasks_, "Truro"])
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_few_rows_have_no_curve(folder, tmp_path):
    rows = pd.read_csv(folder / "clinics" / "truro.csv")[:3]
    with pytest.raises(ElmeshError, match="at least 4 rows, and there are 3"):
        elmesh.load(folder / "model").site_learning_curve(rows, rows["days"])
    rows.to_csv(tmp_path / "few.csv", index=False)
    shown = json.loads(
        run("add-site", folder / "model", tmp_path / "few.csv", "--site", "T", "--out", tmp_path / "m", "--json").stdout
    )
    assert shown["curve"] is None
