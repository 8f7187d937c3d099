"""The same agents on any number of real ranks: the same bits, nothing private on the way, and one error for all.

Python takes its time to start on many ranks, so there is one job a number of ranks, which does everything there is to
do (see :mod:`mpi_worker`); the tests look at what it has found.
"""

from __future__ import annotations

import os
import re
import warnings
from functools import cache
from pathlib import Path

import numpy as np
import pytest

import elmesh
from elmesh.comm.allreduce import by_mixing
from elmesh.data.statistics import Task
from elmesh.errors import ElmeshError
from elmesh.run import Result, checkpointing, run_stacked
from helpers.mpi import Found, needs_mpi, once, run_ranks
from helpers.mpi_cases import (
    CASES,
    CHAIN,
    DATA,
    ENDING_ROUNDS,
    ENDINGS,
    FITS,
    HALTED,
    HALTS_AT,
    RANKS,
    SEED,
    placements,
    rows_of,
)

pytestmark = needs_mpi

_PARTS = {n: ["solvers", "halting", "chain"] for n in RANKS}
_PARTS[3] += ["full_disk", "estimators", "errors", "privacy"]


@pytest.fixture(scope="module")
def jobs(tmp_path_factory) -> Path:
    """Where every job has left what it found, in a folder named after its number of ranks."""
    base = tmp_path_factory.getbasetemp()
    # Workers of pytest-xdist have a folder each, side by side.
    return once((base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "mpi-jobs", run_all)


def run_all(folder: Path) -> None:
    for n in RANKS:
        (folder / str(n)).mkdir()
        ended = run_ranks(n, folder / str(n), *_PARTS[n])
        if ended.code:
            raise RuntimeError(f"{n} ranks ended with code {ended.code}; they said:\n{ended.out}{ended.err}")


@cache
def found(folder: Path, n_ranks: int, part: str) -> Found:
    return Found.load(folder / str(n_ranks), part)


def outcome(folder: Path, n_ranks: int, part: str, name: str) -> tuple[dict[str, np.ndarray], dict]:
    """What a job found about one thing."""
    everything = found(folder, n_ranks, part)
    arrays = {key.rpartition("/")[2]: x for key, x in everything.arrays.items() if key.rpartition("/")[0] == name}
    return arrays, everything.notes[name]


def assert_same_bits(one: tuple[dict, dict], other: tuple[dict, dict]) -> None:
    assert one[0].keys() == other[0].keys()
    for key, x in one[0].items():
        assert x.shape == other[0][key].shape, key
        assert x.tobytes() == other[0][key].tobytes(), f"{key} differs by {np.abs(x - other[0][key]).max()}"
    assert one[1] == other[1]


def in_one_process(name: str) -> Result:
    case = CASES[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", elmesh.errors.RankWarning)
        return run_stacked(case.make(), Task.stack(case.tasks), case.topology, SEED)


# The same results ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CASES)
def test_results_are_the_same_bits_however_many_ranks_there_are_and_whoever_is_where(jobs, name):
    alone = outcome(jobs, 1, "solvers", f"{name}/even")
    assert alone[1]["alike"]
    for n in RANKS:
        for placement in placements(name, n):
            assert_same_bits(alone, outcome(jobs, n, "solvers", f"{name}/{placement}"))


@pytest.mark.parametrize("name", CASES)
def test_ranks_agree_with_one_process(jobs, name):
    case, one = CASES[name], in_one_process(name)
    arrays, notes = outcome(jobs, 1, "solvers", f"{name}/even")
    state = one.state
    assert notes["stop"] == one.stop.name
    # How many steps there are to the last digit is a matter of rounding.
    to_the_last_digit = one.stop.name == "SETTLED"
    if not to_the_last_digit:
        assert notes["n_iter"] == one.n_iter
    column = 0
    for t, task in enumerate(case.tasks):
        d = task.Y.shape[1]
        theirs = arrays["U"][t] @ arrays["A"][:, column : column + d]
        ours = (state.U if state.U.ndim == 2 else state.U[t]) @ state.A[t, :, :d]
        column += d
        assert np.linalg.norm(theirs - ours) <= (1e-6 if to_the_last_digit else 1e-10) * np.linalg.norm(ours)
    if state.certificate is not None:
        assert notes["certificate"]["objective"] == pytest.approx(state.certificate.objective, rel=1e-10)
        assert notes["certificate"]["gap"] == pytest.approx(state.certificate.gap, rel=1e-6, abs=1e-9)
        assert notes["certificate"]["suggested_rank"] == state.certificate.suggested_rank
    if to_the_last_digit:
        return
    figures = one.history[["round", "objective", "consensus_gap", "dual_residual"]].to_numpy()
    np.testing.assert_allclose(arrays["history"][:, :4], figures, rtol=1e-6, atol=1e-9)
    if not by_mixing(case.topology, case.make().message_bits):
        assert arrays["traffic"].tolist() == one.ledger.counts().tolist()
        assert notes["n_exchanges"] == one.n_exchanges
        assert arrays["history"][:, 4:].tolist() == one.history[["exchanges", "bytes"]].to_numpy().tolist()


@pytest.mark.parametrize("name", ENDINGS)
def test_a_run_ends_as_it_should(jobs, name):
    arrays, notes = outcome(jobs, 3, "solvers", f"ends {name}/even")
    assert notes["stop"] == name.split()[0]
    solver, history, n_iter = ENDINGS[name].make(), arrays["history"], notes["n_iter"]
    assert np.isfinite(arrays["U"]).all()
    assert np.isfinite(arrays["A"]).all()
    assert np.isfinite(history[:, 1:3]).all()
    assert history[:, 0].tolist() == list(range(n_iter + 1))
    assert history[-1, 5] == arrays["traffic"][1].sum()
    if name.startswith("CONVERGED"):
        # Ranks were a round or two farther when they heard of it, and went back.
        assert n_iter < solver.max_iter - 2
        within = history[:, 2:4].max(axis=1) <= solver.tol
        assert within.tolist() == [False] * n_iter + [True]
    if name.startswith("BUDGET"):
        assert history[-1, 5] <= solver.max_bytes
        assert n_iter > 0


def test_a_run_ends_well_before_its_last_round_somewhere(jobs):
    assert outcome(jobs, 3, "solvers", "ends CONVERGED/even")[1]["n_iter"] > 10


# One rank wants to stop ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_ranks", RANKS)
@pytest.mark.parametrize("name", HALTED)
def test_one_rank_that_wants_to_stop_stops_all_after_the_same_round(jobs, name, n_ranks):
    halted, notes = outcome(jobs, n_ranks, "halting", f"{name}/halted")
    assert notes["stop"] == "INTERRUPTED"
    assert notes["alike"]
    assert notes["certificate"] is None
    # The others hear of it with the next round's figures, which take a round or two to come.
    assert HALTS_AT <= notes["n_iter"] <= HALTS_AT + 3
    limited, _ = outcome(jobs, n_ranks, "halting", f"{name}/limited")
    for key in ("U", "A", "weights"):
        assert halted[key].tobytes() == limited[key].tobytes(), key
    assert halted["history"][:-1].tobytes() == limited["history"][:-1].tobytes()
    # What follows the last round, such as a certificate, is in its row.
    assert halted["history"][-1, :4].tobytes() == limited["history"][-1, :4].tobytes()


# Checkpoints ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CHAIN)
def test_runs_that_go_on_again_and_again_with_other_ranks_end_as_if_never_stopped(jobs, name):
    begun = [0]
    for n in RANKS[:-1]:
        notes = found(jobs, n, "chain").notes[name]
        stopped = ENDING_ROUNDS[n]
        assert notes["error"] == "Interrupted."
        assert notes["told"] == [begun[-1], *range(begun[-1] + 2, stopped, 2)]
        begun.append(notes["told"][-1])
    assert begun == [0, 2, 4, 6]
    arrays, notes = outcome(jobs, RANKS[-1], "chain", name)
    assert notes.pop("told")[0] == 6
    assert_same_bits(outcome(jobs, 1, "solvers", f"{name}/even"), (arrays, notes))


def test_files_of_all_ranks_are_their_owners_alone(jobs):
    files = list((jobs / "3" / "full").glob("*/*"))
    assert len(files) == 3
    assert {file.stat().st_mode & 0o777 for file in files} == {0o600}


def test_a_full_disk_of_one_rank_warns_all_of_them_and_the_run_goes_on(jobs):
    notes = found(jobs, 3, "full_disk").notes
    said = [
        f"The checkpoint of round {k} could not be written to FOLDER/full (rank 2: no space left on device); round 3 "
        "is still there."
        for k in range(6, 26, 3)
    ]
    assert notes["warnings"] == [said] * 3
    assert notes["told"] == [[0, 3]] * 3
    assert_same_bits(outcome(jobs, 1, "solvers", "admm, ring/even"), outcome(jobs, 3, "full_disk", "full"))


def test_after_a_full_disk_a_run_goes_on_from_the_checkpoint_before(jobs):
    assert found(jobs, 3, "full_disk").notes["from"] == 3
    assert_same_bits(outcome(jobs, 1, "solvers", "admm, ring/even"), outcome(jobs, 3, "full_disk", "after"))


def test_one_process_does_not_go_on_with_what_ranks_have_left(jobs):
    name = CHAIN[0]
    case = CASES[name]
    solver = case.make()
    fields = {"solver": repr(solver), "seed": SEED}
    with (
        checkpointing(jobs / "chain" / "0"),
        pytest.raises(ElmeshError, match=r'holds a checkpoint of another fit: its runtime is "mpi", and here'),
    ):
        run_stacked(solver, Task.stack(case.tasks), case.topology, SEED, fields=fields)


# Estimators ----------------------------------------------------------------------------------------------------------

WAYS = ("all rows", "own rows")


@cache
def stacked_fit(name: str):
    kind, make = FITS[name]
    X, y, tasks = DATA[kind]()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return make(runtime="stacked").fit(X, y, tasks=tasks)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", FITS)
def test_each_rank_predicts_for_its_own_tasks_what_one_process_would(jobs, name, way):
    kind, _ = FITS[name]
    X, _, tasks = DATA[kind]()
    one, notes = stacked_fit(name), found(jobs, 3, "estimators").notes[f"{name}/{way}"]
    assert sorted(task for own in notes["tasks"] for task in own) == one.tasks_.tolist()
    assert (notes["stop"], notes["n_iter"]) == (one.stop_.name, one.n_iter_)
    assert {frozenset(edge) for edge in notes["graph"]} == {frozenset(edge) for edge in one.graph_.edges}
    assert notes["histories"] == 1
    # They say it once.
    assert notes["warnings"] == [int(one.stop_.name == "MAX_ITER"), 0, 0]
    for rank, own in enumerate(notes["tasks"]):
        arrays, _ = outcome(jobs, 3, "estimators", f"{name}/{way}/{rank}")
        rows = np.isin(tasks, own)
        assert arrays["rows"].tolist() == np.flatnonzero(rows).tolist()
        if way == "own rows":
            assert rows.tolist() == rows_of(tasks, rank, 3).tolist()
        predicted = one.predict(X[rows], tasks=tasks[rows])
        if kind == "regressor":
            np.testing.assert_allclose(arrays["predicted"], predicted, rtol=1e-8, atol=1e-8)
            continue
        assert arrays["predicted"].tolist() == predicted.tolist()
        proba = one.predict_proba(X[rows], tasks=tasks[rows])
        np.testing.assert_allclose(arrays["proba"], proba[:, arrays["classes"]], atol=1e-8)
        if notes["conditions"][rank] is not None:
            places = np.flatnonzero(np.isin(one.tasks_, own))
            ours = np.stack([one.conditions_.tau, one.conditions_.required])
            np.testing.assert_allclose(notes["conditions"][rank], ours[:, places], rtol=1e-8)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", FITS)
def test_the_first_rank_gathers_an_estimator_of_all_tasks(jobs, name, way):
    kind, _ = FITS[name]
    X, _, tasks = DATA[kind]()
    one, notes = stacked_fit(name), found(jobs, 3, "estimators").notes[f"{name}/{way}"]
    assert notes["gathered"] == [True, False, False]
    assert notes["whole"] == [one.n_iter_, one.stop_.name, one.tasks_.tolist()]
    whole = elmesh.load(jobs / "3" / f"{name}, {way}")
    assert whole.tasks_.tolist() == one.tasks_.tolist()
    assert whole.U_.shape == one.U_.shape
    assert {t: A.shape for t, A in whole.A_.items()} == {t: A.shape for t, A in one.A_.items()}
    if kind == "classifier":
        assert whole.classes_.tolist() == one.classes_.tolist()
        assert {t: c.tolist() for t, c in whole.task_classes_.items()} == {
            t: c.tolist() for t, c in one.task_classes_.items()
        }
        theirs, ours = (model.decision_function(X, tasks=tasks) for model in (whole, one))
    else:
        theirs, ours = (model.predict(X, tasks=tasks) for model in (whole, one))
    np.testing.assert_allclose(theirs, ours, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("name", FITS)
def test_it_makes_no_difference_to_a_bit_whether_ranks_have_all_rows_or_their_own(jobs, name):
    one, other = ((jobs / "3" / f"{name}, {way}" / "weights.safetensors").read_bytes() for way in WAYS)
    assert one == other


def test_without_a_seed_all_ranks_take_the_one_that_the_first_has_drawn(jobs):
    notes = found(jobs, 3, "estimators").notes
    assert len(set(notes["any seed"])) == 1
    assert notes["own state"] == [int(np.random.RandomState(0).randint(2**31 - 1))] * 3


# What goes wrong -----------------------------------------------------------------------------------------------------

WRONGS = {
    "two ranks have a task": r"Task '\w+' is on ranks 0 and 1; give each rank the rows of its own tasks, or all",
    "a rank has no rows": r"0 sample",
    "a rank has no tasks": r"Rank 1 has no tasks",
    "labels of two kinds": r"some have text for labels and some have numbers",
    "more ranks than tasks": r"3 ranks for 2 tasks; .* use at most 2",
    "another seed": r"Rank 1 differs from rank 0 in random_state: 7 there, 0 here",
    "another rank": r"Rank 1 differs from rank 0 in .*rank.*: .*3.* there, .*2.* here",
    "another width": r"Rank 1 differs from rank 0 in n_hidden: 11 there, 10 here",
    "another intercept": r"Rank 1 differs from rank 0 in fit_intercept: false there, true here",
    "other columns": r'Rank 1 differs from rank 0 in columns: \["a", "b", "c", "z"\] there',
    "fewer columns": r"Rank 1 differs from rank 0 in columns: 3 there, 4 here",
    "another version": rf'Rank 1 differs from rank 0 in version: "0.0.1" there, "{re.escape(elmesh.__version__)}" here',
    "another estimator": r'Rank 1 differs from rank 0 in kind: "classification" there, "regression" here',
    "not a number": r"X is NaN or infinite in row 1 \(counting from 0\), column 1",
    "too large a number": r"numbers as large as 1e\+200, whose squares overflow",
    "a row alone": r"task 'alone' has only one row",
    "a seed that is none": r"random_state is -1; it must be a whole number from 0",
    "a parameter that makes no sense": r"rank must be a whole number of at least 1; got -1",
    "an intercept that makes no sense": r"fit_intercept must be True or False; got 'yes'",
    "no such runtime": r"runtime must be one of stacked, mpi; got 'nonsense'",
    "no such activation": r"activation is 'nonsense'; it must be one of",
    "too few bytes": r"max_bytes=1,000 is not enough to agree on a start",
    "a checkpoint of another seed": r"FOLDER/wrong/seed holds .* another fit: its random_state is 0, and here it is 1",
    "a checkpoint of another rank": r"FOLDER/wrong/rank holds a checkpoint of another fit: its .*rank.* and here it is",
    "a checkpoint of other data": r"The data of task '\w+' are not those that the checkpoint in FOLDER/wrong/data",
    "a checkpoint without a file": r"FOLDER/wrong/missing/round-00000001/rank-0001-of-0003.safetensors is not there",
    "a checkpoint with a damaged file": r"FOLDER/wrong/damaged/round-00000001/rank-0001-of-0003.* damaged",
    "a checkpoint that is none": r"FOLDER/wrong/none/checkpoint.json is not a checkpoint",
}


@pytest.mark.parametrize("name", WRONGS)
def test_all_ranks_raise_the_same_error_with_a_plain_message(jobs, name):
    said = found(jobs, 3, "errors").notes[name]
    assert len(said) == 3
    assert len(set(said)) == 1
    kind, _, text = said[0].partition(": ")
    assert kind == "ElmeshError"
    assert re.search(WRONGS[name], text)


def test_nothing_that_went_wrong_is_left_out_and_ranks_are_in_step_after_it(jobs):
    notes = found(jobs, 3, "errors").notes
    assert set(notes) == {*WRONGS, "after"}
    assert notes["after"] == "CONVERGED"


def test_a_rank_that_fails_alone_within_a_run_ends_all_of_them(tmp_path):
    ended = run_ranks(2, tmp_path, "failing", timeout=120)
    assert ended.code != 0
    assert "RuntimeError: A slip of one rank." in ended.err
    assert "elmesh: rank 1 failed, so all of them end." in ended.err
    # It is no loss: nobody has to look for a rank that died.
    assert "elmesh: Rank" not in ended.err


# What crosses --------------------------------------------------------------------------------------------------------

RECORDED = ("varpro", "varpro in 2 bits", "admm", "dgsp")


@pytest.mark.parametrize("name", RECORDED)
def test_no_rows_targets_coefficients_or_statistics_leave_a_rank(jobs, name):
    for own in found(jobs, 3, "privacy").notes[name]:
        assert {what: seen for what, (seen, _) in own["private"].items()} == dict.fromkeys(own["private"], 0)
        # Each of them was looked for, and none as text either.
        assert all(several > 10 for _, several in own["private"].values())
        assert own["told"] == dict.fromkeys(own["private"], 0)


def test_what_does_cross_is_seen_by_the_recorder(jobs):
    notes = found(jobs, 3, "privacy").notes
    for own in notes["admm"]:
        seen, several = own["public"]["U"]
        assert seen == several > 0
    for name in ("varpro", "admm"):
        # The root of the tree tells all sums to everybody.
        assert any(seen == several > 0 for seen, several in (own["public"]["sums"] for own in notes[name]))
    # The hub tells each column of U as it finds it.
    seen, several = notes["dgsp"][0]["public"]["columns"]
    assert seen == several > 0
    assert all(own["bytes"] > 2000 for name in RECORDED for own in notes[name])


def test_coarse_messages_are_a_fraction_of_exact_ones_on_the_wire(jobs):
    notes = found(jobs, 3, "privacy").notes
    coarse, exact = (sum(own["bytes"] for own in notes[name]) for name in ("varpro in 2 bits", "varpro"))
    assert coarse < exact / 3
