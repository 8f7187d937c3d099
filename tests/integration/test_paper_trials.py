"""Trials run exactly once in spite of interruptions, and their numbers depend only on their seeds."""

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
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elmesh.errors import ElmeshError
from elmesh.paper.trials import make_trials, run_trials
from elmesh.trial_log import Trial, TrialLog, code_fingerprint
from helpers import paper_measures as measures
from helpers.paper_measures import alive, until

THREADS = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")


run_inline = partial(run_trials, workers=measures.inline_workers)


def trials_in(folder: Path, runs: int, seed: int = 0) -> list[Trial]:
    return make_trials("t", [str(folder)], runs, seed)


def ran(folder: Path) -> Counter[int]:
    """How often each run was measured."""
    path = folder / "ran"
    return Counter(map(int, path.read_text().split())) if path.exists() else Counter()


def log_in(folder: Path, seed: int = 0, **options) -> TrialLog:
    return TrialLog(folder / "trials.jsonl", seed, **options)


# Trials and their seeds


@given(st.integers(0, 2**40), st.integers(1, 6), st.integers(0, 6), st.integers(1, 3))
def test_more_runs_start_with_the_same_runs(seed, runs, more, cases):
    names = [f"case {i}" for i in range(cases)]
    few, many = make_trials("e", names, runs, seed), make_trials("e", names, runs + more, seed)
    assert many[: len(few)] == few
    assert len(set(many)) == (runs + more) * cases


@given(st.integers(0, 2**40), st.integers(0, 2**40))
def test_every_run_has_its_own_seed_that_all_cases_share(seed, other):
    trials = make_trials("e", ["a", "b"], 5, seed)
    seeds = {trial.run: trial.seed for trial in trials}
    assert len(set(seeds.values())) == 5
    assert all(trial.seed == seeds[trial.run] for trial in trials)
    assert all(0 <= s < 2**32 for s in seeds.values())
    if other != seed:
        assert [t.seed for t in make_trials("e", ["a", "b"], 5, other)] != [t.seed for t in trials]


# Worker processes


@pytest.mark.slow
def test_numbers_do_not_depend_on_the_number_of_processes_or_on_the_order(tmp_path):
    results = []
    for processes in (1, 2, 3):
        folder = tmp_path / f"{processes}"
        folder.mkdir()
        # The folder is part of a trial here, but its numbers depend on the seed alone.
        trials = trials_in(folder, 5, seed=7)
        trials = trials if processes != 2 else trials[::-1]
        seen = []
        done = run_trials(trials, measures.note, log_in(folder, 7), processes=processes, on_trial=seen.append)
        assert list(done) == trials
        assert Counter(seen) == Counter(trials)
        assert ran(folder) == dict.fromkeys(range(5), 1)
        results.append({trial.run: numbers for trial, numbers in done.items()})
    assert results[0] == results[1] == results[2]
    assert results[0][0] != results[0][1]


def test_workers_have_one_thread_and_ignore_ctrl_c_and_the_environment_is_unchanged(tmp_path, monkeypatch):
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "2")
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    monkeypatch.delenv("MKL_NUM_THREADS", raising=False)
    done = run_trials(trials_in(tmp_path, 1), measures.process_state, log_in(tmp_path))
    (numbers,) = done.values()
    assert numbers["threads"]
    assert set(numbers["threads"]) == {1}
    assert numbers["ignores"]
    assert [os.environ.get(name) for name in THREADS] == ["2", "2", None]


def test_a_killed_worker_costs_only_its_own_trial_and_the_error_is_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    trials = trials_in(tmp_path, 4)
    with pytest.raises(ElmeshError, match=r"worker process was killed .* saved") as caught:
        run_trials(trials, measures.die_once, log_in(tmp_path), processes=1)
    assert "\n" not in str(caught.value)
    assert os.environ["OMP_NUM_THREADS"] == "2"
    again = log_in(tmp_path)
    assert [trial in again for trial in trials] == [True, True, False, False]
    done = run_trials(trials, measures.die_once, again, processes=1)
    assert ran(tmp_path) == dict.fromkeys(range(4), 1)
    assert done == {trial: measures.note(trial) for trial in trials}


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc").is_dir(), reason="processes are looked for in /proc")
def test_workers_exit_when_their_parent_is_killed(tmp_path):
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


def test_after_a_request_to_stop_finished_trials_are_saved_and_not_run_again(tmp_path):
    trials = trials_in(tmp_path, 6)
    finished: list[Trial] = []
    with pytest.raises(KeyboardInterrupt):
        run_inline(
            trials, measures.note, log_in(tmp_path), processes=1,
            on_trial=finished.append, should_stop=lambda: len(finished) >= 2,
        )  # fmt: skip
    assert finished == trials[:2]
    done = run_inline(trials, measures.note, log_in(tmp_path), processes=1)
    assert ran(tmp_path) == dict.fromkeys(range(6), 1)
    assert list(done) == trials


def test_trials_that_run_at_a_request_to_stop_are_finished_and_saved(tmp_path):
    trials = trials_in(tmp_path, 6)
    begun: list[int] = []

    def measure(trial):
        begun.append(trial.run)
        return measures.note(trial)

    with pytest.raises(KeyboardInterrupt):
        run_inline(trials, measure, log_in(tmp_path), processes=3, should_stop=lambda: len(begun) >= 2)
    assert begun == [0, 1]
    log = log_in(tmp_path)
    assert [trial in log for trial in trials] == [True] * 2 + [False] * 4


def test_a_request_to_stop_during_the_last_trial_has_no_effect(tmp_path):
    done = run_inline(
        trials_in(tmp_path, 3),
        measures.note,
        log_in(tmp_path),
        processes=3,
        should_stop=lambda: bool(ran(tmp_path)[2]),
    )
    assert len(done) == 3


def test_an_error_of_a_measurement_is_raised_and_finished_trials_are_saved(tmp_path):
    with pytest.raises(ZeroDivisionError, match="raised by the measurement"):
        run_inline(trials_in(tmp_path, 3), measures.fail, log_in(tmp_path), processes=1)
    assert trials_in(tmp_path, 3)[0] in log_in(tmp_path)


def test_trials_that_finish_at_the_moment_a_worker_is_killed_are_saved(tmp_path):
    class Breaking(measures.Inline):
        def submit(self, function, /, measure, trial):
            if trial.run == 7:
                future: Future = Future()
                future.set_exception(BrokenProcessPool("gone"))
                return future
            return super().submit(function, measure, trial)

    @contextmanager
    def workers(processes):
        yield Breaking()

    # The order of finished trials is not defined, so this is tried a few times.
    for attempt in range(5):
        folder = tmp_path / f"{attempt}"
        folder.mkdir()
        trials = trials_in(folder, 15)
        with pytest.raises(ElmeshError, match="worker process was killed"):
            run_trials(trials, lambda trial: {"run": trial.run}, log_in(folder), processes=15, workers=workers)
        log = log_in(folder)
        assert [trial.run for trial in trials if trial not in log] == [7]


# The log


def test_only_missing_trials_are_run(tmp_path):
    trials = trials_in(tmp_path, 5)
    first = run_inline(trials[1:3], measures.note, log_in(tmp_path))
    seen: list[Trial] = []
    done = run_inline(trials, measures.note, log_in(tmp_path), on_trial=seen.append, processes=1)
    assert seen == [trials[0], trials[3], trials[4]]
    assert ran(tmp_path) == dict.fromkeys(range(5), 1)
    assert {trial: done[trial] for trial in trials[1:3]} == first


def test_no_worker_is_started_if_no_trial_is_missing(tmp_path):
    done = run_inline(trials_in(tmp_path, 2), measures.note, log_in(tmp_path))
    assert run_trials(trials_in(tmp_path, 2), measures.note, log_in(tmp_path), workers=None) == done
    assert run_trials([], measures.note, log_in(tmp_path), workers=None) == {}


def test_a_resumed_run_uses_exactly_the_same_numbers(tmp_path):
    values = [0.1, 1 / 3, 2.0**-1074, 1.7976931348623157e308, -0.0, 12345678901234567]

    def measure(trial):
        return {"values": values, 3: "a key that is no text"}

    (trial,) = trials_in(tmp_path, 1)
    now, later = (run_inline([trial], measure, log_in(tmp_path))[trial] for _ in range(2))
    assert repr(now) == repr(later)
    assert now["values"] == values


@pytest.mark.parametrize("cut", [1, 10, -2])
def test_a_trial_whose_line_was_cut_by_a_crash_runs_again_and_the_others_do_not(tmp_path, cut):
    trials = trials_in(tmp_path, 4)
    run_inline(trials, measures.note, log_in(tmp_path), processes=1)
    path = tmp_path / "trials.jsonl"
    *lines, last = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines) + last[:cut])
    done = run_inline(trials, measures.note, log_in(tmp_path), processes=1)
    assert ran(tmp_path) == {0: 1, 1: 1, 2: 1, 3: 2}
    assert done == {trial: measures.note(trial) for trial in trials}
    # The partial line is removed, because the next line would be appended to it.
    assert all(json.loads(line) for line in path.read_text().splitlines())


@pytest.mark.parametrize("lines", [2, 1])
def test_a_log_cut_to_a_few_lines_is_continued(tmp_path, lines):
    trials = trials_in(tmp_path, 3)
    run_inline(trials, measures.note, log_in(tmp_path), processes=1)
    path = tmp_path / "trials.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:lines]))
    again = log_in(tmp_path)
    assert [trial in again for trial in trials] == [i < lines - 1 for i in range(3)]


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
def test_a_file_that_is_not_a_log_is_refused_and_named(tmp_path, text):
    (tmp_path / "trials.jsonl").write_text(text)
    with pytest.raises(ElmeshError, match=r"trials\.jsonl"):
        log_in(tmp_path)
    assert (tmp_path / "trials.jsonl").read_text() == text


@pytest.mark.parametrize(
    ("other", "named"),
    [
        ({"seed": 1}, "seed"),
        ({"fingerprint": "other"}, "version of elmesh"),
        ({"seed": 1, "fingerprint": "other"}, "version of elmesh"),
    ],
)
def test_trials_of_another_seed_or_other_code_are_refused_and_not_changed(tmp_path, other, named):
    run_inline(trials_in(tmp_path, 2), measures.note, log_in(tmp_path))
    before = (tmp_path / "trials.jsonl").read_bytes()
    with pytest.raises(ElmeshError, match=f"another {named}.*--force") as caught:
        log_in(tmp_path, **other)
    assert "\n" not in str(caught.value)
    assert (tmp_path / "trials.jsonl").read_bytes() == before


def test_a_fresh_log_has_no_trials(tmp_path):
    trials = trials_in(tmp_path, 2)
    run_inline(trials, measures.note, log_in(tmp_path))
    fresh = log_in(tmp_path, seed=5, fresh=True)
    assert not any(trial in fresh for trial in trials)
    run_inline(trials, measures.note, fresh)
    assert ran(tmp_path) == {0: 2, 1: 2}
    assert all(trial in log_in(tmp_path, seed=5) for trial in trials)


def test_the_fingerprint_depends_on_the_code_that_computes_numbers_and_not_on_their_presentation(tmp_path):
    root = tmp_path / "elmesh"
    numerical = ("kernels.py", "solvers/mtfl.py", "paper/convergence.py")
    others = ("paper/analysis/convergence.py", "trial_log.py", "report/page.py", "cli/fit.py", "tables/rows.py")
    for name in numerical + others:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("x = 1\n")
    before = code_fingerprint(root)
    for name in others:
        (root / name).write_text("x = 2\n")
    assert code_fingerprint(root) == before
    seen = {before}
    for name in numerical:
        (root / name).write_text("x = 2\n")
        seen.add(code_fingerprint(root))
    assert len(seen) == 4
