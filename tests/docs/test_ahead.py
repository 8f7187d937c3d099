"""The page about the comparisons: it says what the committed runs found, what was aimed at and missed included."""

from __future__ import annotations

import re

import ahead
import readme

TEXT = ahead.PAGE.read_text(encoding="utf-8")
NAMES = ("optimum", "bytes", "ways", "diffusion", "judge")
RESULTS = {name: readme.load(readme.RESULTS / f"{name}.json") for name in NAMES}


def test_it_is_what_the_committed_runs_give():
    assert ahead.page() == TEXT


def test_every_goal_that_was_missed_is_listed_and_no_other():
    listed = set(re.findall(r"^- (.+)$", TEXT.split("not reached")[-1], re.MULTILINE))
    missed = {goal for result in RESULTS.values() for goal, met in result["goals"].items() if not met}
    assert listed == missed


def test_what_the_optimum_is_held_to_was_met():
    assert all(RESULTS["optimum"]["goals"].values()), RESULTS["optimum"]["goals"]
    assert all(RESULTS["ways"]["goals"].values())


def test_every_picture_it_shows_is_there():
    pictures = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", TEXT)
    assert len(pictures) == 2
    assert all((ahead.PAGE.parent / picture).is_file() for picture in pictures)
