"""``elmesh compare``: a conclusion, a folder that an interrupt does not lose, and errors in one sentence."""

from __future__ import annotations

import json
import shutil
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner, Result

import elmesh
from elmesh.cli import app
from elmesh.evaluation.rivals import METHODS
from helpers.forked import ForkedProcess
from helpers.interrupted import run_hanging

OPTIONS = ["--task", "site", "--target", "dose", "--drop", "ill", "--methods", "elmesh-alone,linear-pooled",
           "--folds", "2", "--repeats", "1"]  # fmt: skip
FEW = ["--methods", "linear-pooled", "--folds", "2", "--repeats", "1"]
FILES = ["folds.jsonl", "report.html", "results.json"]


def run(*args: object) -> Result:
    return CliRunner(env={"FORCE_COLOR": None, "NO_COLOR": "1"}).invoke(app, ["compare", *map(str, args)])


def worked(*args: object) -> Result:
    result = run(*args)
    assert result.exit_code == 0, result.output
    return result


def refused(*args: object) -> str:
    result = run(*args)
    assert (result.exit_code, result.stdout) == (2, ""), result.output
    assert result.stderr.startswith("elmesh: ")
    assert result.stderr.count("\n") == 1
    return result.stderr


def patients(rows: int = 90) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    age = rng.normal(size=rows).round(3)
    dose = (age + 0.3 * rng.normal(size=rows)).round(3)
    site = np.array(["007", "12", "b"])[np.arange(rows) % 3]
    return pd.DataFrame({"site": site, "age": age, "dose": dose, "ill": np.where(dose > 0, "yes", "no")})


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("compare") / "patients.csv"
    patients().to_csv(path, index=False)
    return path


@pytest.fixture(scope="module")
def made(data) -> tuple[Path, Result]:
    """A folder of a finished comparison, and what was printed."""
    out = data.parent / "made"
    return out, worked(data, *OPTIONS, "--out", out)


def continued(made: Path, folder: Path) -> None:
    """Make the folder of a comparison that was stopped after its last fit, which the command continues."""
    folder.mkdir()
    shutil.copy(made / "folds.jsonl", folder)


def timeless(data: dict) -> dict:
    methods = [{key: x for key, x in row.items() if key != "seconds"} for row in data["methods"]]
    return {**data, "methods": methods}


def test_the_conclusion_comes_first_then_methods_sites_and_the_page(made):
    out, result = made
    lines = result.stdout.splitlines()
    data = json.loads((out / "results.json").read_text())
    assert lines[0] == data["sentence"]
    words = [line.split("  ")[0] for line in lines if line]
    assert {"elmesh together", "elmesh alone", "linear model pooled"} < set(words)
    assert {"007", "12", "b"} < set(words)
    assert lines[-1] == f"Open {out / 'report.html'} in a browser."
    assert sorted(path.name for path in out.iterdir()) == FILES
    page = (out / "report.html").read_text()
    assert '<figure id="fig-methods"' in page
    assert '<figure id="fig-sites"' in page


def test_the_command_is_the_function_of_the_package(made):
    frame = patients()
    found = elmesh.compare(
        frame[["age"]], frame["dose"], frame["site"], methods=["elmesh-alone", "linear-pooled"], folds=2, repeats=1
    )
    written = json.loads((made[0] / "results.json").read_text())
    expected = {"command": "compare", **json.loads(json.dumps(found.to_json()))}
    assert timeless(written) == timeless(expected)


def test_json_is_one_object_and_writes_nothing_unless_a_folder_is_named(data, made, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = worked(data, *OPTIONS, "--json")
    assert timeless(json.loads(result.stdout)) == timeless(json.loads((made[0] / "results.json").read_text()))
    assert list(tmp_path.iterdir()) == []
    continued(made[0], tmp_path / "o")
    printed = json.loads(worked(data, *OPTIONS, "--json", "--out", "o").stdout)
    assert printed == json.loads((tmp_path / "o" / "results.json").read_text())


def test_classes_have_log_loss_and_the_area_under_the_curve(data, tmp_path):
    options = ["--task", "site", "--target", "ill", "--drop", "dose", *FEW]
    shown = worked(data, *options, "--out", tmp_path / "o").stdout
    assert "Log loss" in shown
    assert "AUC" in shown
    page = (tmp_path / "o" / "report.html").read_text()
    assert "By log loss, which judges probabilities:" in page
    assert json.loads((tmp_path / "o" / "results.json").read_text())["kind"] == "classification"


def test_without_a_folder_a_new_one_is_made_each_time(data, made, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("elmesh-compare", "elmesh-compare-2"):
        continued(made[0], tmp_path / name)
        worked(data, *OPTIONS, "--quiet")
        assert sorted(path.name for path in (tmp_path / name).iterdir()) == FILES
    worked(data, *OPTIONS[:6], *FEW, "--quiet")
    assert sorted(path.name for path in (tmp_path / "elmesh-compare-3").iterdir()) == FILES


def test_a_finished_comparison_is_not_replaced_without_force(data, made, tmp_path):
    out, _ = made
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    assert "exists; choose another name, or give --force" in refused(data, *OPTIONS, "--out", out)
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "mine.txt").write_text("keep")
    refused(data, *OPTIONS, "--out", tmp_path / "other")
    (tmp_path / "other" / "results.json").write_text("old")
    refused(data, *OPTIONS, "--out", tmp_path / "other")
    worked(data, *OPTIONS[:6], *FEW, "--seed", 1, "--out", tmp_path / "other", "--force", "--quiet")
    assert json.loads((tmp_path / "other" / "results.json").read_text())["rows"] == 90
    assert (tmp_path / "other" / "mine.txt").read_text() == "keep"
    (tmp_path / "file").touch()
    assert "is a file" in refused(data, *OPTIONS, "--out", tmp_path / "file", "--force")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--methods", "best"], "There is no method 'best'"),
        (["--target", "age", "--target", "dose"], "compare takes one target"),
        (["--target", "height"], 'no column "height"'),
        (["--task", "town"], 'no column "town"'),
        (["--kind", "clusters"], "--kind must be classification or regression"),
        (["--folds", "80"], "too few for 80 folds"),
    ],
)
def test_a_bad_option_is_one_sentence_and_no_folder(data, tmp_path, options, message):
    given = [word for pair in zip(OPTIONS[::2], OPTIONS[1::2], strict=True) if pair[0] not in options for word in pair]
    assert message in refused(data, *given, *options, "--out", tmp_path / "o")
    assert not (tmp_path / "o").exists()


def test_rows_of_one_file_need_a_column_with_their_site(data):
    assert "--task must name the column" in refused(data, *OPTIONS[2:])


def test_columns_that_number_the_rows_are_noted_and_left_out_unless_they_are_asked_for(tmp_path):
    patients().assign(number=np.arange(90)).to_csv(tmp_path / "t.csv", index=False)
    args = [tmp_path / "t.csv", *OPTIONS[:6], *FEW, "--json"]
    assert 'only number the rows: "number"' in json.loads(worked(*args).stdout)["notes"][0]
    assert json.loads(worked(*args, "--use", "number").stdout)["notes"] == []


STOPPED = "elmesh: Stopped. Finished fits are in elmesh-compare; the same command continues.\n"


def test_ctrl_c_keeps_finished_fits_and_the_same_command_continues(data, made, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    alone, log = METHODS["elmesh-alone"], tmp_path / "elmesh-compare" / "folds.jsonl"
    with monkeypatch.context() as patch:
        patch.setitem(METHODS, "elmesh-alone", replace(alone, predict=lambda *_: signal.raise_signal(signal.SIGINT)))
        result = run(data, *OPTIONS)
    assert (result.exit_code, result.stdout, result.stderr) == (130, "", STOPPED)
    finished = log.read_text()
    assert len(finished.splitlines()) == 2  # a header, and elmesh on the first fold
    assert [path.name for path in log.parent.iterdir()] == ["folds.jsonl"]
    # Another comparison gets another folder, the same one continues.
    worked(data, *OPTIONS[:6], *FEW, "--seed", 1, "--quiet")
    worked(data, *OPTIONS, "--quiet")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["elmesh-compare", "elmesh-compare-2"]
    assert log.read_text().startswith(finished)
    written, expected = (json.loads((folder / "results.json").read_text()) for folder in (log.parent, made[0]))
    assert timeless(written) == timeless(expected)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGINT for a single process on Windows")
def test_ctrl_c_ends_a_process_within_a_fit_that_would_take_an_hour(data, tmp_path):
    files = [str(data.parent / name) for name in ("out", "err")]
    process = ForkedProcess(["compare", str(data), *OPTIONS], *files, str(tmp_path), target=run_hanging)
    try:
        end = time.monotonic() + 300
        while not (tmp_path / "hanging").exists():
            assert process.poll() is None, Path(files[1]).read_text()
            assert time.monotonic() < end
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        code = process.wait(300)
    finally:
        process.kill()
        process.wait()
    assert [code, *(Path(file).read_text() for file in files)] == [130, "", STOPPED]
    assert [path.name for path in (tmp_path / "elmesh-compare").iterdir()] == ["folds.jsonl"]
