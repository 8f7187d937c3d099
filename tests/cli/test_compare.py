"""``elmesh compare``: a conclusion, a folder that an interrupt does not lose, and errors in one sentence."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner, Result

import elmesh
from elmesh.cli import app

OPTIONS = ["--task", "site", "--target", "dose", "--drop", "ill", "--methods", "elmesh-alone,linear-pooled",
           "--folds", "2", "--repeats", "1"]  # fmt: skip
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
    printed = json.loads(worked(data, *OPTIONS, "--json", "--out", "o").stdout)
    assert printed == json.loads((tmp_path / "o" / "results.json").read_text())


def test_classes_have_log_loss_and_the_area_under_the_curve(data, tmp_path):
    options = [*OPTIONS[:2], "--target", "ill", "--drop", "dose", *OPTIONS[6:]]
    shown = worked(data, *options, "--out", tmp_path / "o").stdout
    assert "Log loss" in shown
    assert "AUC" in shown
    page = (tmp_path / "o" / "report.html").read_text()
    assert "By log loss, which judges probabilities:" in page
    assert json.loads((tmp_path / "o" / "results.json").read_text())["kind"] == "classification"


def test_without_a_folder_a_new_one_is_made_each_time(data, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("elmesh-compare", "elmesh-compare-2"):
        worked(data, *OPTIONS, "--quiet")
        assert sorted(path.name for path in (tmp_path / name).iterdir()) == FILES


def test_a_finished_comparison_is_not_replaced_without_force(data, made, tmp_path):
    out, _ = made
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    assert "exists; choose another name, or give --force" in refused(data, *OPTIONS, "--out", out)
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "mine.txt").write_text("keep")
    refused(data, *OPTIONS, "--out", tmp_path / "other")
    worked(data, *OPTIONS, "--out", tmp_path / "other", "--force", "--quiet")
    (tmp_path / "other" / "results.json").write_text("old")
    worked(data, *OPTIONS, "--seed", 1, "--out", tmp_path / "other", "--force", "--quiet")
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
    noted = worked(tmp_path / "t.csv", *OPTIONS, "--json")
    assert 'only number the rows: "number"' in json.loads(noted.stdout)["notes"][0]
    assert json.loads(worked(tmp_path / "t.csv", *OPTIONS, "--use", "number", "--json").stdout)["notes"] == []


@pytest.mark.thorough
@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGINT for a single process on Windows")
def test_ctrl_c_keeps_finished_fits_and_the_same_command_continues(data, made, tmp_path, monkeypatch):
    """The process is interrupted within a fit that would take an hour."""
    code = (
        "import signal, time\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a shell may have it ignored
        "from elmesh.evaluation.rivals import METHODS\n"
        "from pathlib import Path\n"
        "def hang(train, new):\n"
        "    Path('hanging').touch()\n"
        "    time.sleep(3600)\n"
        "object.__setattr__(METHODS['elmesh-alone'], 'predict', hang)\n"
        "from elmesh.cli import main\n"
        "main()\n"
    )
    log = tmp_path / "elmesh-compare" / "folds.jsonl"
    process = subprocess.Popen(
        [sys.executable, "-c", code, "compare", str(data), *OPTIONS],
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        end = time.monotonic() + 300
        while not (tmp_path / "hanging").exists():
            assert process.poll() is None, process.stderr.read()
            assert time.monotonic() < end
            time.sleep(0.05)
        (tmp_path / "hanging").unlink()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=300)
    finally:
        process.kill()
        process.communicate()
    assert (process.returncode, out) == (130, "")
    assert err == "elmesh: Stopped. Finished fits are in elmesh-compare; the same command continues.\n"
    finished = log.read_text()
    assert len(finished.splitlines()) == 2  # a header, and elmesh on the first fold
    assert [path.name for path in log.parent.iterdir()] == ["folds.jsonl"]
    # Another comparison gets another folder, the same one continues.
    monkeypatch.chdir(tmp_path)
    worked(data, *OPTIONS, "--seed", 1, "--quiet")
    worked(data, *OPTIONS, "--quiet")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["elmesh-compare", "elmesh-compare-2"]
    assert log.read_text().startswith(finished)
    written, expected = (json.loads((folder / "results.json").read_text()) for folder in (log.parent, made[0]))
    assert timeless(written) == timeless(expected)
