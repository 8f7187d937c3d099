"""The same agents on any number of real MPI ranks: the same bits, no private data in messages, and common errors.

Python starts slowly on many ranks, so one job does everything (see :mod:`helpers.mpi_worker`), and the tests examine
what it has found. `make test` has one job of three ranks, which runs a few of the cases; `make test-all` has one more
per number of ranks, which run all of them.
"""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import elmesh
from elmesh import CheckpointConfig, RunConfig
from elmesh.comm.allreduce import uses_gossip
from elmesh.errors import ElmeshError
from elmesh.run import RunResult, run_local
from helpers.mpi import Findings, job_folder, needs_mpi, run_ranks
from helpers.mpi_cases import (
    CASES,
    CHAIN,
    DATA,
    ENDING_ROUNDS,
    ENDINGS,
    FEW_CASES,
    FEW_CHAIN,
    FEW_FITS,
    FEW_HALTED,
    FEW_SITES,
    FITS,
    HALTED,
    HALTS_AT,
    RANKS,
    RECORDED,
    SEED,
    SITES,
    WAYS,
    check_placements,
    placements,
    rows_of,
    site_placements,
    ways,
)
from helpers.parts import found_parts, gathered_parts, known_noise
from helpers.transports import CHECKS

pytestmark = needs_mpi

ALL = pytest.mark.slow
_ON_RANKS = ["solvers", "halting", "chain", "parts"]
_ON_THREE = ["full_disk", "estimators", "errors", "privacy", "beside_the_release", "transports"]


@pytest.fixture(scope="module")
def jobs(tmp_path_factory) -> Path:
    """A folder with what the job of a few cases has found, in folders named after the number of ranks."""
    return job_folder(tmp_path_factory, "mpi-jobs", run_few)


@pytest.fixture(scope="module")
def all_jobs(tmp_path_factory) -> Path:
    """The same of the jobs of all cases."""
    return job_folder(tmp_path_factory, "all-mpi-jobs", run_all)


@pytest.fixture
def found(request) -> Callable[[str], Path]:
    """Return the folder of the jobs of an amount."""
    return lambda amount: request.getfixturevalue({"few": "jobs", "all": "all_jobs"}[amount])


def run_few(folder: Path) -> None:
    (folder / "3").mkdir()
    # The last part ends all ranks.
    parts = [*_ON_RANKS, "alone", *_ON_THREE]
    job = run_ranks(3, folder / "3", "few", *parts, "failing", forked=True)
    if not all((folder / "3" / f"{part}.json").exists() for part in parts):
        raise RuntimeError(f"3 ranks ended with code {job.code}; their output:\n{job.out}{job.err}")
    (folder / "failing.json").write_text(json.dumps([job.code, job.err]))


def run_all(folder: Path) -> None:
    for n in RANKS["all"]:
        (folder / str(n)).mkdir()
        parts = {1: ["solvers", "chain"], 3: [*_ON_RANKS, *_ON_THREE]}.get(n, _ON_RANKS)
        job = run_ranks(n, folder / str(n), "all", *parts)
        if job.code:
            raise RuntimeError(f"{n} ranks ended with code {job.code}; their output:\n{job.out}{job.err}")


def amounts(few: Iterable[str], every: Iterable[str]) -> list[Any]:
    """Return the parameters of a test: a few names in `make test`, and all of them in `make test-all` as well."""
    return [*(("few", name) for name in few), *(pytest.param("all", name, marks=ALL) for name in every)]


@cache
def findings(folder: Path, n_ranks: int, part: str) -> Findings:
    return Findings.load(folder / str(n_ranks), part)


def outcome(folder: Path, n_ranks: int, part: str, name: str) -> tuple[dict[str, np.ndarray], dict]:
    """Return what a job found about one thing."""
    return findings(folder, n_ranks, part).of(name)


def assert_same_bits(one: tuple[dict, dict], other: tuple[dict, dict]) -> None:
    assert one[0].keys() == other[0].keys()
    for key, x in one[0].items():
        assert x.shape == other[0][key].shape, key
        assert x.tobytes() == other[0][key].tobytes(), f"{key} differs by {np.abs(x - other[0][key]).max()}"
    assert one[1] == other[1]


def in_one_process(name: str) -> RunResult:
    case = CASES[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", elmesh.errors.RankWarning)
        return run_local(case.make(), case.data, case.topology, SEED, features=case.features)


# The same results ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("amount", "name"), amounts(FEW_CASES, CASES))
def test_results_have_the_same_bits_for_every_number_of_ranks_and_every_placement(found, amount, name):
    jobs = found(amount)
    alone = outcome(jobs, 1, "solvers", f"{name}/even")
    assert alone[1]["equal"]
    for n in RANKS[amount]:
        for placement in placements(amount, name, n):
            assert_same_bits(alone, outcome(jobs, n, "solvers", f"{name}/{placement}"))


@pytest.mark.parametrize(("amount", "name"), amounts(FEW_CASES, [name for name in CASES if name not in FEW_CASES]))
def test_ranks_agree_with_one_process(found, amount, name):
    case, one = CASES[name], in_one_process(name)
    arrays, notes = outcome(found(amount), 1, "solvers", f"{name}/even")
    solution = one.solution
    assert notes["stop"] == one.stop.name
    # The number of steps to the last digit depends on rounding.
    settled = one.stop.name == "SETTLED"
    if not settled:
        assert notes["n_iter"] == one.n_iter
    column = 0
    for t, task in enumerate(case.tasks):
        d = task.outputs
        theirs = arrays["U"][t] @ arrays["A"][:, column : column + d]
        ours = (solution.U if solution.U.ndim == 2 else solution.U[t]) @ solution.A[t, :, :d]
        column += d
        assert np.linalg.norm(theirs - ours) <= (1e-6 if settled else 1e-10) * np.linalg.norm(ours)
    if solution.certificate is not None:
        assert notes["certificate"]["objective"] == pytest.approx(solution.certificate.objective, rel=1e-10)
        assert notes["certificate"]["gap"] == pytest.approx(solution.certificate.gap, rel=1e-6, abs=1e-9)
        assert notes["certificate"]["suggested_rank"] == solution.certificate.suggested_rank
    if settled:
        return
    expected = one.history[["round", "objective", "consensus_gap", "dual_residual"]].to_numpy()
    np.testing.assert_allclose(arrays["history"][:, :4], expected, rtol=1e-6, atol=1e-9)
    if not uses_gossip(case.topology, case.make().message_bits):
        assert arrays["traffic"].tolist() == one.traffic.counts().tolist()
        assert notes["n_exchanges"] == one.n_exchanges
        assert arrays["history"][:, 4:].tolist() == one.history[["exchanges", "bytes"]].to_numpy().tolist()


@pytest.mark.parametrize(
    ("amount", "name"), amounts([name for name in ENDINGS if f"ends {name}" in FEW_CASES], ENDINGS)
)
def test_a_run_ends_for_the_expected_reason(found, amount, name):
    arrays, notes = outcome(found(amount), 3, "solvers", f"ends {name}/uneven")
    assert notes["stop"] == name.split()[0]
    solver, history, n_iter = ENDINGS[name].make(), arrays["history"], notes["n_iter"]
    assert np.isfinite(arrays["U"]).all()
    assert np.isfinite(arrays["A"]).all()
    assert np.isfinite(history[:, 1:3]).all()
    assert history[:, 0].tolist() == list(range(n_iter + 1))
    assert history[-1, 5] == arrays["traffic"][1].sum()
    if name.startswith("CONVERGED"):
        # Ranks were a round or two ahead when the metrics arrived, and were rolled back.
        assert n_iter < solver.max_iter - 2
        within = history[:, 2:4].max(axis=1) <= solver.tol
        assert within.tolist() == [False] * n_iter + [True]
    if name.startswith("BUDGET"):
        assert history[-1, 5] <= solver.max_bytes
        assert n_iter > 0


def test_a_run_converges_after_more_than_ten_rounds(jobs):
    assert outcome(jobs, 3, "solvers", "ends CONVERGED/uneven")[1]["n_iter"] > 10


# Halting -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("amount", "n_ranks", "name"),
    [
        *(("few", 3, name) for name in FEW_HALTED),
        *(pytest.param("all", n, name, marks=ALL) for n in RANKS["all"][:-1] for name in HALTED),
    ],
)
def test_a_rank_that_asks_to_stop_stops_all_ranks_after_the_same_round(found, amount, n_ranks, name):
    jobs = found(amount)
    halted, notes = outcome(jobs, n_ranks, "halting", f"{name}/halted")
    assert notes["stop"] == "INTERRUPTED"
    assert notes["equal"]
    assert notes["certificate"] is None
    # The request travels with the next round's metrics, which take a round or two.
    assert HALTS_AT <= notes["n_iter"] <= HALTS_AT + 3
    limited, _ = outcome(jobs, n_ranks, "halting", f"{name}/limited")
    for key in ("U", "A", "weights"):
        assert halted[key].tobytes() == limited[key].tobytes(), key
    assert halted["history"][:-1].tobytes() == limited["history"][:-1].tobytes()
    # The last row includes the messages that follow the last round, such as those of a certificate.
    assert halted["history"][-1, :4].tobytes() == limited["history"][-1, :4].tobytes()


# Checkpoints ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("amount", "name"), amounts(FEW_CHAIN, CHAIN))
def test_runs_resumed_repeatedly_with_other_ranks_end_as_if_never_interrupted(found, amount, name):
    folder, ranks, resumed = found(amount), RANKS[amount], [0]
    for n in ranks[:-1]:
        notes = findings(folder, n, "chain").notes[name]
        assert notes["error"] == "Interrupted."
        assert notes["saved"] == [resumed[-1], *range(resumed[-1] + 2, ENDING_ROUNDS[n], 2)]
        resumed.append(notes["saved"][-1])
    assert resumed == {"few": [0, 2], "all": [0, 2, 4, 6]}[amount]
    arrays, notes = outcome(folder, ranks[-1], "chain", name)
    notes = dict(notes)
    assert notes.pop("saved")[0] == resumed[-1]
    assert_same_bits(outcome(folder, 1, "solvers", f"{name}/even"), (arrays, notes))


def test_only_the_owner_may_read_the_files_of_all_ranks(jobs):
    files = list((jobs / "3" / "full").glob("*/*"))
    assert len(files) == 3
    assert {file.stat().st_mode & 0o777 for file in files} == {0o600}


def test_a_full_disk_of_one_rank_warns_all_ranks_and_the_run_continues(jobs):
    notes = findings(jobs, 3, "full_disk").notes
    expected = [
        f"The checkpoint of round {k} could not be written to FOLDER/full (rank 2: no space left on device); round 3 "
        "is still there."
        for k in range(6, 26, 3)
    ]
    assert notes["warnings"] == [expected] * 3
    assert notes["saved"] == [[0, 3]] * 3
    assert_same_bits(outcome(jobs, 1, "solvers", "admm, random/even"), outcome(jobs, 3, "full_disk", "full"))


def test_after_a_full_disk_a_run_resumes_from_the_previous_checkpoint(jobs):
    assert findings(jobs, 3, "full_disk").notes["resumed from"] == 3
    assert_same_bits(outcome(jobs, 1, "solvers", "admm, random/even"), outcome(jobs, 3, "full_disk", "resumed"))


def test_one_process_refuses_a_checkpoint_of_ranks(jobs):
    name = FEW_CHAIN[0]
    case = CASES[name]
    solver = case.make()
    fields = {"solver": repr(solver), "seed": SEED}
    config = RunConfig(checkpoint=CheckpointConfig(jobs / "chain" / "0"))
    with pytest.raises(ElmeshError, match=r'holds a checkpoint of another fit: its backend is "mpi", but this'):
        run_local(solver, case.data, case.topology, SEED, config, fields={**fields, "backend": "local"})


# Estimators ----------------------------------------------------------------------------------------------------------

FITTED = [
    pytest.param(amount, name, way, marks=() if amount == "few" else ALL)
    for amount, some in (("few", FEW_FITS), ("all", FITS))
    for name in some
    for way in ways(amount, name)
]


@cache
def local_fit(name: str):
    kind, make = FITS[name]
    X, y, tasks = DATA[kind]()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return make().fit(X, y, tasks=tasks)


@pytest.mark.parametrize(("amount", "name", "way"), FITTED)
def test_each_rank_predicts_for_its_own_tasks_what_one_process_predicts(found, amount, name, way):
    jobs, (kind, _) = found(amount), FITS[name]
    X, _, tasks = DATA[kind]()
    one, notes = local_fit(name), findings(jobs, 3, "estimators").notes[f"{name}/{way}"]
    assert sorted(task for own in notes["tasks"] for task in own) == one.tasks_.tolist()
    assert (notes["stop"], notes["n_iter"]) == (one.stop_.name, one.n_iter_)
    assert {frozenset(edge) for edge in notes["graph"]} == {frozenset(edge) for edge in one.graph_.edges}
    assert notes["histories"] == 1
    # Rank 0 alone warns.
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


@pytest.mark.parametrize(("amount", "name", "way"), FITTED)
def test_the_first_rank_gathers_an_estimator_of_all_tasks(found, amount, name, way):
    jobs, (kind, _) = found(amount), FITS[name]
    X, _, tasks = DATA[kind]()
    one, notes = local_fit(name), findings(jobs, 3, "estimators").notes[f"{name}/{way}"]
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


@pytest.mark.parametrize(("amount", "name"), amounts([name for name in FEW_FITS if FEW_FITS[name] == WAYS], FITS))
def test_results_have_the_same_bits_if_ranks_have_all_rows_or_only_their_own(found, amount, name):
    one, other = ((found(amount) / "3" / f"{name}, {way}" / "weights.safetensors").read_bytes() for way in WAYS)
    assert one == other


def test_without_a_seed_all_ranks_use_the_one_that_rank_0_draws(jobs):
    notes = findings(jobs, 3, "estimators").notes
    assert len(set(notes["drawn seed"])) == 1
    assert notes["generator of each rank"] == [int(np.random.RandomState(0).randint(2**31 - 1))] * 3


# Errors --------------------------------------------------------------------------------------------------------------

MESSAGES = {
    "two ranks have a task": r"Task '\w+' is on ranks 0 and 1; give each rank the rows of its own tasks, or all",
    "a rank has no rows": r"0 sample",
    "a rank has no tasks": r"Rank 1 has no tasks",
    "labels of two types": r"some have text and some have numbers",
    "more ranks than tasks": r"3 ranks for 2 tasks; .* use at most 2",
    "another seed": r"Rank 1 differs from rank 0 in random_state: 7 and 0",
    "another rank": r"Rank 1 differs from rank 0 in .*rank.*: .*3.* and .*2.*",
    "another width": r"Rank 1 differs from rank 0 in n_hidden: 11 and 10",
    "another intercept": r"Rank 1 differs from rank 0 in fit_intercept: false and true",
    "other columns": r'Every task must have the same columns, but task "\w+" has a column "[dz]" and task',
    "fewer columns": r"Rank 1 differs from rank 0 in columns: 3 and 4",
    "another version": rf'Rank 1 differs from rank 0 in version: "0.0.1" and "{re.escape(elmesh.__version__)}"',
    "another estimator": r'Rank 1 differs from rank 0 in kind: "classification" and "regression"',
    "not a number": r"X is NaN or infinite in row 1 \(counting from 0\), column 1",
    "too large a number": r"numbers as large as 1e\+200, whose squares overflow",
    "a task with a single row": r"'single' has only one row",
    "an invalid seed": r"random_state is -1; it must be a whole number from 0",
    "an invalid rank": r"rank must be a whole number of at least 0; got -1",
    "an invalid intercept": r"fit_intercept must be True or False; got 'yes'",
    "an unknown backend": r'backend must be "local", "mpi" or a Backend; got .nonsense.',
    "a solver that needs all data": r"trace-norm needs all data in one place, which an MPI job does not offer",
    "an unknown activation": r"activation must be one of .*; got 'nonsense'",
    "a checkpoint of another seed": r"invalid/seed holds .* another fit: its random_state is 0, but this fit's is 1",
    "a checkpoint of another rank": r"invalid/rank holds a checkpoint of another fit: its .*rank.* but this fit's is",
    "a checkpoint of other data": r"The data of task '\w+' differ from those of the checkpoint in FOLDER/invalid/data",
    "a checkpoint without a file": r"missing/round-00000001/rank-0001-of-0003.safetensors is missing or damaged",
    "a checkpoint with a damaged file": r"FOLDER/invalid/damaged/round-00000001/rank-0001-of-0003.* damaged",
    "an invalid checkpoint": r"FOLDER/invalid/none/checkpoint.json is not a checkpoint",
}


@pytest.mark.parametrize("name", MESSAGES)
def test_all_ranks_raise_the_same_error(jobs, name):
    messages = findings(jobs, 3, "errors").notes[name]
    assert len(messages) == 3
    assert len(set(messages)) == 1
    kind, _, text = messages[0].partition(": ")
    assert kind == "ElmeshError"
    assert re.search(MESSAGES[name], text)


def test_every_error_is_checked_and_ranks_are_in_step_afterwards(jobs):
    notes = findings(jobs, 3, "errors").notes
    assert set(notes) == {*MESSAGES, "after"}
    assert notes["after"] == "CONVERGED"


def test_a_rank_that_fails_within_a_run_ends_all_ranks(jobs):
    code, err = json.loads((jobs / "failing.json").read_text())
    assert code != 0
    assert "RuntimeError: An error of one rank." in err
    assert "elmesh: rank 2 failed, so all ranks end." in err
    # The failure detector reports no lost rank.
    assert "elmesh: Rank" not in err


# Transports ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("amount", "name", "placement"),
    [
        pytest.param(amount, name, placement, marks=() if amount == "few" else ALL)
        for amount in ("few", "all")
        for name in CHECKS
        for placement in check_placements(amount, name)
    ],
)
def test_ranks_have_the_invariants_of_a_transport(found, amount, name, placement):
    by_rank = findings(found(amount), 3, "transports").notes[f"{name}/{placement}"]
    assert [error for error, _ in by_rank] == [""] * 3
    assert len({result for _, result in by_rank}) == 1


# Messages ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", RECORDED)
def test_no_rows_targets_coefficients_or_statistics_leave_a_rank(jobs, name):
    for own in findings(jobs, 3, "privacy").notes[name]:
        assert {what: seen for what, (seen, _) in own["private"].items()} == dict.fromkeys(own["private"], 0)
        # Each of them was searched for, also as integers and as text.
        assert all(several > 10 for _, several in own["private"].values())
        assert {what: seen for what, (seen, _) in own["as integers"].items()} == dict.fromkeys(own["private"], 0)
        assert all(several > 100 for _, several in own["as integers"].values())
        assert own["as text"] == dict.fromkeys(own["private"], 0)


def test_the_recorder_finds_what_is_sent(jobs):
    notes = findings(jobs, 3, "privacy").notes
    for own in notes["admm"]:
        seen, several = own["public"]["U"]
        assert seen == several > 0
    for name in ("mesh", "admm"):
        # The root of the tree sends all sums to all agents.
        assert any(seen == several > 0 for seen, several in (own["public"]["sums"] for own in notes[name]))
    for own in notes["mesh with three parts"]:
        seen, several = own["public"]["integers"]
        assert seen == several > 100
    # The hub sends each column of U as it finds it.
    seen, several = notes["dgsp"][0]["public"]["columns"]
    assert seen == several > 0
    assert all(own["bytes"] > 2000 for name in RECORDED for own in notes[name])


def test_in_a_private_fit_nothing_that_depends_on_rows_leaves_a_rank_but_the_release(jobs):
    for plain, other, masked, other_masked in findings(jobs, 3, "beside_the_release").notes["found"]:
        assert [found["releases"] for found in (plain, other, masked, other_masked)] == [1, 1, 1, 1]
        assert plain["rest"] == other["rest"]
        assert masked["rest"] == other_masked["rest"]


def test_quantised_messages_take_a_fraction_of_the_bytes_of_exact_ones(jobs):
    notes = findings(jobs, 3, "privacy").notes
    quantised, exact = (sum(own["bytes"] for own in notes[name]) for name in ("mesh with 2 bits", "mesh"))
    assert quantised < exact / 3


# Common, shared and private weights ----------------------------------------------------------------------------------


@cache
def one_process(name: str) -> dict[str, np.ndarray]:
    data, make, _ = SITES[name]
    X, y, sites = data()
    with known_noise():
        model = make().fit(X, y, tasks=sites)
    labels = np.unique(sites)
    own = {"V": np.stack([model.V_[t] for t in labels]), "noise": np.stack([model.noise_[t] for t in labels])}
    return found_parts(model) | own | gathered_parts(model, X, sites)


def test_some_fits_keep_a_shared_part_and_some_have_none():
    ranks = {name: one_process(name)["U"].shape[1] for name in FEW_SITES}
    assert ranks["regression"] > 0
    assert ranks["classes with a shared part"] > 0
    assert ranks["no shared part"] == 0


@pytest.mark.parametrize(
    ("amount", "n_ranks", "name", "placement"),
    [
        pytest.param(amount, n, name, placement, marks=() if amount == "few" else ALL)
        for amount, some in (("few", FEW_SITES), ("all", SITES))
        for n in RANKS[amount][:-1]
        for name in some
        for placement in site_placements(amount, name)
    ],
)
def test_every_part_has_the_bits_of_one_process(found, amount, n_ranks, name, placement):
    arrays, notes = outcome(found(amount), n_ranks, "parts", f"{name}/{placement}")
    assert notes["equal"]
    expected = one_process(name)
    assert arrays.keys() == expected.keys()
    for what, value in expected.items():
        assert np.array_equal(arrays[what], value), what
