"""The page on comparisons: its commands work, and its numbers are those of the committed run."""

from __future__ import annotations

import json
import re

import comparison
import pages
from elmesh.evaluation.rivals import METHODS
from helpers.code_blocks import code_blocks, run_commands, run_python, small_sample

TEXT = comparison.PAGE.read_text(encoding="utf-8")
RESULT = pages.load(pages.RESULTS / "compare.json")


def test_its_numbers_are_those_of_the_committed_run():
    assert pages.fill(TEXT, "compare", comparison.block()) == TEXT


def test_its_conclusions_follow_from_the_committed_numbers():
    for found in RESULT["targets"].values():
        own = next(row for row in found["methods"] if row["method"] == "elmesh")
        for row in found["methods"]:
            assert abs(row["error"] - own["error"] - row["error_difference"]) < 1e-3 * own["error"]
        clear = [row for row in found["methods"] if row["error_high"] < 0]
        assert ("is clearly better than elmesh (error" in found["sentences"]["error"]) == bool(clear)


def test_it_lists_every_method_and_whether_rows_stay_at_sites():
    listed = dict(re.findall(r"^\| `([a-z-]+)` \|.*\| ([a-z ]+) \|$", TEXT, re.MULTILINE))
    places = {True: "in one place", False: "stay at sites"}
    assert listed == {name: places[method.pooled] for name, method in METHODS.items() if name != "elmesh"}


def test_its_commands_work(tmp_path):
    (commands,) = code_blocks(TEXT, "sh")
    fast = "--methods linear-pooled --folds 2 --repeats 1"
    with small_sample():
        shown = run_commands(commands.replace("--out comparison/", f"{fast} --out comparison/"), tmp_path)
    data = json.loads((tmp_path / "comparison" / "results.json").read_text())
    assert data["sentence"] in shown
    assert (tmp_path / "comparison" / "report.html").is_file()


def test_its_python_works(tmp_path):
    (code,) = code_blocks(TEXT, "python")
    with small_sample():
        shown = run_python(code, tmp_path)
    assert "elmesh alone" in shown.splitlines()[0]
    assert {"linear-pooled", "Leeds"} <= set(shown.split())
