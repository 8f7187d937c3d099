"""Trials run once each, whatever happens in between, and their numbers depend on nothing but their seeds."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elmesh.errors import ElmeshError
from elmesh.paper import trials as module
from elmesh.paper.trials import Journal, Trial, Trials, repeat, run_trials
from helpers import paper_measures as measures
from helpers.paper_measures import alive, until

THREADS = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")


@pytest.fixture
def inline(monkeypatch):
    monkeypatch.setattr(module, "_pool", measures.inline_pool)


def asked_for(folder: Path, runs: int, seed: int = 0) -> list[Trial]:
    return repeat("t", [str(folder)], runs, seed)


def ran(folder: Path) -> Counter[int]:
    """How often each run was measured."""
    path = folder / "ran"
    return Counter(map(int, path.read_text().split())) if path.exists() else Counter()


def journal_of(folder: Path, seed: int = 0, **options) -> Journal:
    return Journal(folder / "trials.jsonl", seed, **options)


# What is asked for


@given(st.integers(0, 2**40), st.integers(1, 6), st.integers(0, 6), st.integers(1, 3))
def test_more_runs_are_the_same_runs_and_more(seed, runs, more, cases):
    names = [f"case {i}" for i in range(cases)]
    few, many = repeat("e", names, runs, seed), repeat("e", names, runs + more, seed)
    assert many[: len(few)] == few
    assert len(set(many)) == (runs + more) * cases


@given(st.integers(0, 2**40), st.integers(0, 2**40))
def test_runs_have_seeds_of_their_own_that_all_cases_share(seed, other):
    trials = repeat("e", ["a", "b"], 5, seed)
    seeds = {trial.run: trial.seed for trial in trials}
    assert len(set(seeds.values())) == 5
    assert all(trial.seed == seeds[trial.run] for trial in trials)
    assert all(0 <= s < 2**32 for s in seeds.values())
    if other != seed:
        assert [t.seed for t in repeat("e", ["a", "b"], 5, other)] != [t.seed for t in trials]


def test_numbers_are_found_by_case_in_the_order_of_runs():
    done = [(trial, {"n": (trial.case, trial.run)}) for trial in repeat("e", ["a", "b"], 3, 0)]
    assert Trials(done).of("b") == [{"n": ("b", 0)}, {"n": ("b", 1)}, {"n": ("b", 2)}]
    assert Trials(done).of("c") == []


# Processes


@pytest.mark.slow
def test_numbers_depend_neither_on_the_number_of_processes_nor_on_the_order(tmp_path):
    results = []
    for processes in (1, 2, 3):
        folder = tmp_path / f"{processes}"
        folder.mkdir()
        # The folder is part of a trial here, but its numbers come from the seed alone.
        asked = asked_for(folder, 5, seed=7)
        asked = asked if processes != 2 else asked[::-1]
        told = []
        done = run_trials(asked, measures.note, journal_of(folder, 7), processes=processes, advance=told.append)
        assert [trial for trial, _ in done.done] == asked
        assert Counter(told) == Counter(asked)
        assert ran(folder) == dict.fromkeys(range(5), 1)
        results.append({trial.run: numbers for trial, numbers in done.done})
    assert results[0] == results[1] == results[2]
    assert results[0][0] != results[0][1]


def test_workers_have_one_thread_and_leave_ctrl_c_to_the_parent_whose_environment_is_as_before(tmp_path, monkeypatch):
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "2")
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    monkeypatch.delenv("MKL_NUM_THREADS", raising=False)
    done = run_trials(asked_for(tmp_path, 1), measures.surroundings, journal_of(tmp_path))
    (numbers,) = done.of(str(tmp_path))
    assert numbers["threads"]
    assert set(numbers["threads"]) == {1}
    assert numbers["ignores"]
    assert [os.environ.get(name) for name in THREADS] == ["2", "2", None]


def test_a_worker_that_is_killed_gives_a_sentence_and_costs_only_its_own_trial(tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    asked = asked_for(tmp_path, 4)
    with pytest.raises(ElmeshError, match=r"process died .* kept") as caught:
        run_trials(asked, measures.die_once, journal_of(tmp_path), processes=1)
    assert "\n" not in str(caught.value)
    assert os.environ["OMP_NUM_THREADS"] == "2"
    again = journal_of(tmp_path)
    assert [trial in again for trial in asked] == [True, True, False, False]
    done = run_trials(asked, measures.die_once, again, processes=1)
    assert ran(tmp_path) == dict.fromkeys(range(4), 1)
    assert [numbers for _, numbers in done.done] == [measures.note(trial) for trial in asked]


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc").is_dir(), reason="processes are looked for in /proc")
def test_workers_do_not_outlive_a_parent_that_is_killed(tmp_path):
    parent = subprocess.Popen([sys.executable, measures.__file__, str(tmp_path)], stderr=subprocess.DEVNULL)
    workers: list[int] = []
    try:
        until(lambda: len(list(tmp_path.glob("*.pid"))) == 2, "start of two workers")
        workers = [int(file.stem) for file in tmp_path.glob("*.pid")]
        assert all(map(alive, workers))
        parent.kill()
        assert parent.wait(measures.PATIENCE) == -signal.SIGKILL
        until(lambda: not any(map(alive, workers)), "end of the workers")
    finally:
        parent.kill()
        parent.wait()
        for worker in filter(alive, workers):
            os.kill(worker, signal.SIGKILL)


# Stopping and failing


def test_asked_to_stop_it_keeps_what_is_finished_and_goes_on_from_there(tmp_path, inline):
    asked = asked_for(tmp_path, 6)
    finished: list[Trial] = []
    with pytest.raises(KeyboardInterrupt):
        run_trials(
            asked, measures.note, journal_of(tmp_path), processes=1,
            advance=finished.append, stopping=lambda: len(finished) >= 2,
        )  # fmt: skip
    assert finished == asked[:2]
    done = run_trials(asked, measures.note, journal_of(tmp_path), processes=1)
    assert ran(tmp_path) == dict.fromkeys(range(6), 1)
    assert [trial for trial, _ in done.done] == asked


def test_what_runs_when_asked_to_stop_is_finished_and_kept(tmp_path, inline):
    asked = asked_for(tmp_path, 6)
    begun: list[int] = []

    def measure(trial):
        begun.append(trial.run)
        return measures.note(trial)

    with pytest.raises(KeyboardInterrupt):
        run_trials(asked, measure, journal_of(tmp_path), processes=3, stopping=lambda: len(begun) >= 2)
    assert begun == [0, 1]
    kept = journal_of(tmp_path)
    assert [trial in kept for trial in asked] == [True] * 2 + [False] * 4


def test_asked_to_stop_after_the_last_trial_was_begun_it_simply_ends(tmp_path, inline):
    done = run_trials(
        asked_for(tmp_path, 3),
        measures.note,
        journal_of(tmp_path),
        processes=3,
        stopping=lambda: bool(ran(tmp_path)[2]),
    )
    assert len(done.done) == 3


def test_a_measurement_that_fails_is_no_dead_process_and_costs_nothing_that_was_finished(tmp_path, inline):
    with pytest.raises(ZeroDivisionError, match="own"):
        run_trials(asked_for(tmp_path, 3), measures.fail, journal_of(tmp_path), processes=1)
    assert asked_for(tmp_path, 3)[0] in journal_of(tmp_path)


def test_trials_that_finish_at_the_moment_a_process_dies_are_kept(tmp_path, monkeypatch):
    class Breaking(measures.Inline):
        def submit(self, function, trial):
            if trial.run == 7:
                future: Future = Future()
                future.set_exception(BrokenProcessPool("gone"))
                return future
            return super().submit(function, trial)

    @contextmanager
    def pool(processes):
        yield Breaking(), processes

    monkeypatch.setattr(module, "_pool", pool)
    # In which order finished ones are seen is not ours to say; it is tried a few times.
    for attempt in range(5):
        folder = tmp_path / f"{attempt}"
        folder.mkdir()
        asked = asked_for(folder, 15)
        with pytest.raises(ElmeshError, match="process died"):
            run_trials(asked, measures.note, journal_of(folder), processes=15)
        kept = journal_of(folder)
        assert [trial.run for trial in asked if trial not in kept] == [7]


# The journal


def test_only_what_is_missing_is_run(tmp_path, inline):
    asked = asked_for(tmp_path, 5)
    first = run_trials(asked[1:3], measures.note, journal_of(tmp_path))
    told: list[Trial] = []
    done = run_trials(asked, measures.note, journal_of(tmp_path), advance=told.append, processes=1)
    assert told == [asked[0], asked[3], asked[4]]
    assert ran(tmp_path) == dict.fromkeys(range(5), 1)
    assert done.done[1:3] == list(first.done)


def test_nothing_is_started_where_nothing_is_missing(tmp_path, inline, monkeypatch):
    done = run_trials(asked_for(tmp_path, 2), measures.note, journal_of(tmp_path))
    monkeypatch.setattr(module, "_pool", None)
    assert run_trials(asked_for(tmp_path, 2), measures.note, journal_of(tmp_path)) == done
    assert run_trials([], measures.note, journal_of(tmp_path)) == Trials([])


def test_a_resumed_run_computes_with_the_same_numbers_to_the_bit(tmp_path, inline):
    values = [0.1, 1 / 3, 2.0**-1074, 1.7976931348623157e308, -0.0, 12345678901234567]

    def measure(trial):
        return {"values": values, 3: "a key that is no text"}

    now = run_trials(asked_for(tmp_path, 1), measure, journal_of(tmp_path)).of(str(tmp_path))
    later = run_trials(asked_for(tmp_path, 1), measure, journal_of(tmp_path)).of(str(tmp_path))
    assert repr(now) == repr(later)
    assert now[0]["values"] == values


@pytest.mark.parametrize("cut", [1, 10, -2])
def test_a_last_line_cut_by_a_crash_is_run_again_and_all_else_is_kept(tmp_path, inline, cut):
    asked = asked_for(tmp_path, 4)
    run_trials(asked, measures.note, journal_of(tmp_path), processes=1)
    path = tmp_path / "trials.jsonl"
    *lines, last = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines) + last[:cut])
    done = run_trials(asked, measures.note, journal_of(tmp_path), processes=1)
    assert ran(tmp_path) == {0: 1, 1: 1, 2: 1, 3: 2}
    assert [numbers for _, numbers in done.done] == [measures.note(trial) for trial in asked]
    # The stump is gone, or it would spoil the line that was written after it.
    assert all(json.loads(line) for line in path.read_text().splitlines())


@pytest.mark.parametrize("lines", [2, 1])
def test_a_journal_cut_to_a_few_lines_is_gone_on_with(tmp_path, inline, lines):
    asked = asked_for(tmp_path, 3)
    run_trials(asked, measures.note, journal_of(tmp_path), processes=1)
    path = tmp_path / "trials.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:lines]))
    again = journal_of(tmp_path)
    assert [trial in again for trial in asked] == [i < lines - 1 for i in range(3)]


@pytest.mark.parametrize(
    "text",
    [
        '{"trial": 1}\n',
        '{"elmesh": "x", "seed": "y"}\n',
        "",
        "{",
        "something else\n",
        '["a list"]\n',
    ],
)
def test_a_file_that_is_no_journal_is_refused_in_words(tmp_path, text):
    (tmp_path / "trials.jsonl").write_text(text)
    with pytest.raises(ElmeshError, match=r"trials\.jsonl"):
        journal_of(tmp_path)
    assert (tmp_path / "trials.jsonl").read_text() == text


def test_trials_of_another_seed_are_refused_and_left_alone(tmp_path, inline):
    run_trials(asked_for(tmp_path, 2), measures.note, journal_of(tmp_path))
    before = (tmp_path / "trials.jsonl").read_bytes()
    with pytest.raises(ElmeshError, match=r"another seed.*--force") as caught:
        journal_of(tmp_path, seed=1)
    assert "\n" not in str(caught.value)
    assert (tmp_path / "trials.jsonl").read_bytes() == before


@pytest.mark.parametrize("seed", [0, 1])
def test_trials_of_other_code_are_refused_and_left_alone(tmp_path, inline, monkeypatch, seed):
    run_trials(asked_for(tmp_path, 2), measures.note, journal_of(tmp_path))
    before = (tmp_path / "trials.jsonl").read_bytes()
    monkeypatch.setattr(module, "_fingerprint", lambda: "other")
    with pytest.raises(ElmeshError, match=r"another version of elmesh.*--force"):
        journal_of(tmp_path, seed=seed)
    assert (tmp_path / "trials.jsonl").read_bytes() == before


def test_begun_anew_nothing_is_remembered(tmp_path, inline):
    asked = asked_for(tmp_path, 2)
    run_trials(asked, measures.note, journal_of(tmp_path))
    fresh = journal_of(tmp_path, seed=5, fresh=True)
    assert not any(trial in fresh for trial in asked)
    run_trials(asked, measures.note, fresh)
    assert ran(tmp_path) == {0: 2, 1: 2}
    assert all(trial in journal_of(tmp_path, seed=5) for trial in asked)


def test_the_fingerprint_follows_what_numbers_come_from_and_not_how_they_are_told(tmp_path, monkeypatch):
    root = tmp_path / "elmesh"
    for name in ("kernels.py", "solvers/mtfl.py", "paper/fig3.py", "paper/findings/fig3.py", "report/page.py",
                 "cli/fit.py", "tables/rows.py"):  # fmt: skip
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("x = 1\n")
    monkeypatch.setattr(module.resources, "files", lambda _: root)
    digest = module._fingerprint.__wrapped__
    before = digest()
    for name in ("paper/findings/fig3.py", "report/page.py", "cli/fit.py", "tables/rows.py"):
        (root / name).write_text("x = 2\n")
    assert digest() == before
    seen = {before}
    for name in ("kernels.py", "solvers/mtfl.py", "paper/fig3.py"):
        (root / name).write_text("x = 2\n")
        seen.add(digest())
    assert len(seen) == 4
