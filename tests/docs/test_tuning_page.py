"""The page on settings: its figures are the committed ones, and its commands and its Python work."""

from __future__ import annotations

import re

import pytest
from typer.main import get_command

import pages
import tuning
from elmesh.cli import app
from elmesh.estimators.search import DEFAULT_GRID
from helpers.code_blocks import code_blocks, run_python

TEXT = tuning.PAGE.read_text(encoding="utf-8")
RESULT = pages.load(pages.RESULTS / "tune.json")


def test_its_figures_are_those_of_the_committed_results():
    assert tuning.filled(TEXT) == TEXT


def test_goals_follow_from_the_figures_and_missed_ones_are_listed():
    searched = [case for case in RESULT["cases"].values() if "seconds_ratio" in case]
    met = RESULT["goals"]
    behind = [case["over_grid_search"] for case in searched]
    assert met["score of grid search reached on every case, within a standard error"] == all(
        one["mean"] >= -one["standard_error"] for one in behind
    )
    ratios = sorted(case["seconds_ratio"] for case in searched)
    assert met["time at most a tenth of grid search's on every case"] == (ratios[-1] <= 0.1)
    assert met["time at most a tenth of grid search's, as a median"] == (ratios[len(ratios) // 2] <= 0.1)
    missed = [goal for goal, done in met.items() if not done]
    assert f"Goals not reached: {'; '.join(missed) or 'none'}." in TEXT


def test_at_least_five_tables_and_the_papers_problem_were_searched():
    searched = [name for name, case in RESULT["cases"].items() if "seconds_ratio" in case]
    assert len(searched) >= 6
    assert any("paper" in name for name in searched)


def test_the_grid_of_the_benchmark_is_the_default_one():
    assert RESULT["grid"] == {name: [str(value) for value in values] for name, values in DEFAULT_GRID.items()}


@pytest.mark.parametrize("line", [line for code in code_blocks(TEXT, "sh") for line in code.strip().splitlines()])
def test_every_option_of_a_command_exists(line):
    command = get_command(app).commands[line.split()[1]].loaded
    known = {option for parameter in command.params for option in parameter.opts}
    assert set(re.findall(r"--[a-z-]+", line)) <= known


def test_its_python_chooses_a_setting_that_predicts_new_rows(tmp_path):
    printed = run_python("\n".join(code_blocks(TEXT, "python")), tmp_path)
    default, score = printed.rsplit("}", 1)[1].split()
    assert default == "0"
    assert float(score) > 0.7
