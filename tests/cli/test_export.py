"""``elmesh export``: a file that other programs run, with words on how, and nothing else of the model."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import onnx
import pandas as pd
import pytest
from typer.testing import CliRunner

import elmesh
from elmesh.cli import app
from elmesh.datasets import simulate_visits
from helpers.onnx_files import properties, session


def run(*args: object, code: int = 0):
    result = CliRunner(env={"FORCE_COLOR": None, "NO_COLOR": "1"}).invoke(app, [str(arg) for arg in args])
    assert result.exit_code == code, result.output + result.stderr
    return result


def failed(*args: object) -> str:
    """Return the one sentence of a command that fails."""
    result = run(*args, code=2)
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert line.startswith("elmesh: ")
    return line


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Tables, a regression and a classification."""
    folder = tmp_path_factory.mktemp("export")
    train, new, _ = simulate_visits(seed=0)
    new[new["clinic"] == "York"].to_csv(folder / "new.csv", index=False)
    kinds = {"days": elmesh.MultiTaskELMRegressor, "complication": elmesh.MultiTaskELMClassifier}
    for target, kind in kinds.items():
        model = kind(10, task="clinic", random_state=0)
        model.fit(train.drop(columns=list(kinds)), train[target]).save(folder / target)
    return folder


def execute(script: str, place: Path, monkeypatch) -> list[np.ndarray]:
    """Return what a script prints, run where the tables are."""
    printed = []
    monkeypatch.chdir(place)
    exec(script, {"print": printed.append})  # noqa: S102  (the script that the command shows)
    return printed[0]


def shown_script(stdout: str) -> str:
    return stdout[stdout.index("import onnxruntime") :]


@pytest.mark.parametrize("target", ["days", "complication"])
def test_the_script_that_is_shown_predicts_as_the_command_does(folder, tmp_path, target, monkeypatch):
    result = run("export", folder / target, "--site", "York", "--onnx", tmp_path / "new" / "york.onnx")
    run("predict", folder / target, folder / "new.csv", "--proba" if target == "complication" else "--keep",
        "--out", tmp_path / "p.csv")  # fmt: skip
    expected = pd.read_csv(tmp_path / "p.csv")
    first, *rest = execute(shown_script(result.stdout), folder, monkeypatch)
    if target == "days":
        np.testing.assert_allclose(first, expected["prediction"], rtol=1e-9)
        assert rest == []
    else:
        assert first.tolist() == expected["prediction"].tolist()
        np.testing.assert_allclose(rest[0], expected[["probability_no", "probability_yes"]], atol=1e-9)
    assert "keep it as confidential as the rows" in result.stderr
    for words in ("The model of York is in", "haemoglobin", "days since 1970", "(rows, 1)"):
        assert words in result.stdout


def test_columns_of_any_name_of_a_model_that_fit_has_saved_are_in_the_script(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    names = ["prediction", "a'b", 'a"b', "x\ty", "{x}"]
    table = pd.DataFrame(rng.normal(size=(40, 5)), columns=names).assign(site=[1, 2] * 20)
    table.assign(y=table["a'b"] + rng.normal(size=40)).to_csv(tmp_path / "new.csv", index=False)
    run("fit", tmp_path / "new.csv", "--task", "site", "--target", "y", "--hidden", "5", "--out", tmp_path / "m", "-q")
    result = run("export", tmp_path / "m", "--site", "2", "--onnx", tmp_path / "m.onnx")
    (found,) = execute(shown_script(result.stdout), tmp_path, monkeypatch)
    model = elmesh.load(tmp_path / "m")
    rows = pd.read_csv(tmp_path / "new.csv")
    np.testing.assert_allclose(found, model.predict(rows, tasks=["2"] * 40), rtol=1e-9)


def test_json_describes_the_file(folder, tmp_path):
    words = ("export", folder / "days", "--site", "Leeds", "--std", "--onnx", tmp_path / "m.onnx", "--json")
    result = run(*words, "--quiet")
    assert result.stderr == ""
    shown = json.loads(result.stdout)
    assert (shown["command"], shown["format"], shown["site"], shown["kind"]) == (
        "export",
        "onnx",
        "Leeds",
        "regression",
    )
    assert shown["bytes"] == (tmp_path / "m.onnx").stat().st_size
    assert [(value["name"], value["type"]) for value in shown["outputs"]] == [
        ("prediction", "double"),
        ("std", "double"),
    ]
    assert {"name": "ward", "type": "string", "shape": "(rows, 1)"}.items() <= shown["inputs"][5].items()
    loaded = session(onnx.load(tmp_path / "m.onnx"))
    assert [value["name"] for value in shown["inputs"]] == [value.name for value in loaded.get_inputs()]
    assert any("confidential" in note for note in shown["notes"])


def test_quiet_prints_nothing(folder, tmp_path):
    result = run("export", folder / "days", "--site", "Ely", "--onnx", tmp_path / "m.onnx", "--quiet")
    assert (result.stdout, result.stderr) == ("", "")
    assert properties(onnx.load(tmp_path / "m.onnx"))["site"] == "Ely"


def test_the_common_part_is_exported_for_a_site_that_was_not_in_the_fit(folder, tmp_path):
    result = run("export", folder / "days", "--common", "--onnx", tmp_path / "m.onnx")
    assert "What all sites have in common is in" in result.stdout
    assert "site" not in properties(onnx.load(tmp_path / "m.onnx"))


def test_a_model_of_an_array_and_of_one_task_needs_no_site(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(30, 2))
    model = elmesh.MultiTaskELMRegressor(5, solver="local-elm", random_state=0).fit(X, X[:, 0])
    model.save(tmp_path / "m")
    result = run("export", tmp_path / "m", "--onnx", tmp_path / "m.onnx")
    pd.DataFrame(X).to_csv(tmp_path / "new.csv", index=False)
    (found,) = execute(shown_script(result.stdout), tmp_path, monkeypatch)
    np.testing.assert_allclose(found, model.predict(X), rtol=1e-9)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "The model holds 8 sites ('Bath', 'Derby', "),
        (["--site", "Truro"], "The model has no site 'Truro'; it has 'Bath', "),
        (["--site", "York", "--common"], "--site and --common exclude each other"),
        (["--site", "York", "--std"], "is for regressions with a common or a private part"),
    ],
)
def test_what_cannot_be_exported_is_one_sentence_and_no_file(folder, tmp_path, options, message):
    assert message in failed("export", folder / "complication", *options, "--onnx", tmp_path / "m.onnx")
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_replaced_without_force_and_never_the_model(folder, tmp_path):
    file = tmp_path / "m.onnx"
    file.write_text("mine")
    words = ("export", folder / "days", "--site", "York", "--onnx")
    assert "m.onnx exists; choose another name, or give --force" in failed(*words, file)
    assert file.read_text() == "mine"
    run(*words, file, "--force", "--quiet")
    assert onnx.load(file).producer_name == "elmesh"
    before = {path: path.read_bytes() for path in (folder / "days").rglob("*") if path.is_file()}
    assert "is in the folder of the model" in failed(*words, folder / "days" / "model.json", "--force")
    assert "is a folder; give the name of a file" in failed(*words, folder / "days", "--force")
    assert {path: path.read_bytes() for path in (folder / "days").rglob("*") if path.is_file()} == before
    assert "m.onnx is a file, not a folder" in failed(*words, file / "m.onnx")
    assert "There is no model at" in failed("export", folder / "none", "--onnx", tmp_path / "n.onnx")


def test_without_the_package_the_sentence_names_the_command_to_install_it(folder, tmp_path, monkeypatch):
    for name in ("elmesh.estimators.onnx_graph", "elmesh.estimators.onnx_export"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, "onnx", None)
    message = failed("export", folder / "days", "--site", "York", "--onnx", tmp_path / "m.onnx")
    assert 'run pip install "elmesh[onnx]"' in message
    assert not (tmp_path / "m.onnx").exists()
