"""The page on new rows and large tables: its commands work, and its numbers are those of the committed run."""

from __future__ import annotations

import pages
import updates
from elmesh import load
from helpers.code_blocks import code_blocks, run_commands, run_python, small_sample

TEXT = updates.PAGE.read_text(encoding="utf-8")


def test_its_numbers_are_those_of_the_committed_run():
    assert pages.fill(TEXT, "stream", updates.block()) == TEXT


def test_its_commands_work(tmp_path):
    (commands,) = code_blocks(TEXT, "sh")
    with small_sample():
        shown = run_commands(commands, tmp_path)
    assert "rows added" in shown
    assert "rows forgotten" in shown
    assert "Truro" in load(tmp_path / "model").tasks_


def test_its_python_prints_what_it_states(tmp_path):
    with small_sample():
        assert run_python("\n".join(code_blocks(TEXT, "python")), tmp_path).split() == ["0.0", "True"]
