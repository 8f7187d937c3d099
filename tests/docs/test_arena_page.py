"""The page about the arena: it says what the committed runs found, what was aimed at and missed included."""

from __future__ import annotations

import importlib.util
import re

import pages

# `arena` is also a module of the benchmarks, so the tool is loaded from its file.
_SPEC = importlib.util.spec_from_file_location("arena_page", pages.ROOT / "tools" / "arena.py")
arena_page = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(arena_page)

TEXT = arena_page.PAGE.read_text(encoding="utf-8")
NAMES = ("arena", "adversarial", "fit_growth", "digits", "federated")
RESULTS = [pages.load(pages.RESULTS / f"{name}.json") for name in NAMES]
ARENA, ADVERSARIAL, GROWTH, _, FEDERATED = RESULTS
GAINS = pages.load(pages.RESULTS / "gains.json")


def test_it_is_what_the_committed_runs_give():
    assert arena_page.page() == TEXT


def test_every_goal_that_was_missed_is_listed_and_no_other():
    listed = set(re.findall(r"^- (.+)$", TEXT.split("not reached")[-1], re.MULTILINE))
    assert listed == {goal for result in RESULTS for goal, met in result["goals"].items() if not met}


def test_verdicts_follow_from_the_differences():
    for one in (*ARENA["tables"].values(), *FEDERATED["tables"].values()):
        low, high = one["best_other"]["low"], one["best_other"]["high"]
        assert low < one["best_other"]["mean"] < high
        assert one["verdict"] == ("level" if low <= 0 <= high else "best" if low > 0 else "below")


def test_goals_follow_from_the_figures():
    ahead = sum(one["best_other"]["mean"] > 0 for one in ARENA["tables"].values())
    assert ARENA["goals"]["the highest mean on at least eleven tables"] == (ahead >= 11)
    ratio = ARENA["seconds_ratio"]["gradient boosting and site"]
    assert ARENA["goals"]["time at most twice that of gradient boosting, as a median"] == (ratio["median"] <= 2)
    assert list(GROWTH["goals"].values()) == [v <= 1.3 for both in GROWTH["growth"].values() for v in both.values()]


def test_goals_of_cases_follow_from_the_ratios():
    met = [case["ratio"] <= ADVERSARIAL["goal"] for case in ADVERSARIAL["cases"].values()]
    assert list(ADVERSARIAL["goals"].values()) == met


def test_errors_on_rows_left_out_are_those_on_new_rows_and_no_local_model_is_better():
    assert all(GAINS["goals"].values())
    for name, row in GAINS["figures"].items():
        for way in ("together", "alone"):
            assert abs(row["left_out"][way] / row["new"][way] - 1) < 0.12, (name, way)
        assert (row["left_out"]["together"] < row["left_out"]["alone"]) == (
            row["new"]["together"] < row["new"]["alone"]
        )
