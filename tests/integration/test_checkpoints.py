"""Runs that are interrupted, killed or short of disk resume from their last good checkpoint, to the bit."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import signal
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from elmesh import CheckpointConfig, MeshELM, MultiTaskELMClassifier, MultiTaskELMRegressor, RunConfig
from elmesh.data.statistics import Task
from elmesh.errors import ElmeshError
from elmesh.run import CheckpointWarning, RunResult, StopReason
from helpers.checkpoint_cases import FEW_RUNS, RUNS, data_of, run, run_until_killed
from helpers.examples import examples


@cache
def uninterrupted(name: str) -> RunResult:
    return run(name)


def assert_same_end(one: RunResult, other: RunResult) -> None:
    assert one.solution.A.tobytes() == other.solution.A.tobytes()
    assert (one.solution.U is None) == (other.solution.U is None)
    if one.solution.U is not None:
        assert one.solution.U.tobytes() == other.solution.U.tobytes()
    assert one.solution.certificate == other.solution.certificate
    assert one.history.equals(other.history)
    assert one.traffic.counts().tobytes() == other.traffic.counts().tobytes()
    assert (one.stop, one.n_iter, one.n_exchanges) == (other.stop, other.n_iter, other.n_exchanges)


class Interrupted(Exception):  # noqa: N818  (not an error of the run)
    """Something that has nothing to do with the run."""


def interrupt_at(k: int) -> Callable[[object], None]:
    def callback(progress) -> None:
        if progress.round == k:
            raise Interrupted

    return callback


def saving(folder: Path, every: int = 2, callback=None, on_saved=None) -> RunConfig:
    return RunConfig(callback=callback, checkpoint=CheckpointConfig(folder, every, on_saved))


def interrupt(name: str, folder: Path, at: int, every: int = 2) -> None:
    with pytest.raises(Interrupted):
        run(name, saving(folder, every, interrupt_at(at)))


def resume(name: str, folder: Path, every: int = 2, callback=None, **changes) -> tuple[RunResult, list[int]]:
    """Return the result, and the rounds of the checkpoint it resumed from and of those it wrote."""
    saved: list[int] = []
    return run(name, saving(folder, every, callback, saved.append), **changes), saved


def document(folder: Path) -> dict:
    return json.loads((folder / "checkpoint.json").read_text())


# Resuming ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in FEW_RUNS else pytest.mark.slow) for name in RUNS]
)
def test_a_resumed_run_ends_as_if_never_interrupted(name, tmp_path):
    whole = uninterrupted(name)
    last = int(whole.history["round"].iloc[-1])
    stops = range(1, last, max(1, last // 3))
    for at in stops:
        interrupt(name, tmp_path, at, every=1)
    result, saved = resume(name, tmp_path, every=1)
    assert saved[0] == stops[-1] - 1
    assert_same_end(whole, result)


@examples(10, suppress=(HealthCheck.function_scoped_fixture,))
@given(every=st.integers(1, 9), stops=st.lists(st.integers(0, 12), min_size=1, max_size=4))
def test_the_result_does_not_depend_on_how_often_checkpoints_are_written_or_runs_interrupted(
    tmp_path_factory, every, stops
):
    name, folder = "mesh with 2 bits, random", tmp_path_factory.mktemp("checkpoints")
    start = 0
    for at in stops:
        # A resumed run does not repeat earlier rounds.
        if at >= start:
            interrupt(name, folder, at, every)
            start = document(folder)["round"] if (folder / "checkpoint.json").exists() else 0
    result, saved = resume(name, folder, every)
    assert all(k % every == 0 for k in saved)
    assert_same_end(uninterrupted(name), result)


def test_a_run_that_the_callback_stopped_can_be_resumed(tmp_path):
    name = "admm, random"
    stopped = run(name, saving(tmp_path, 3, lambda progress: progress.round == 7))
    assert stopped.stop is StopReason.INTERRUPTED
    result, saved = resume(name, tmp_path, every=3)
    assert saved[0] == 6
    assert_same_end(uninterrupted(name), result)


def test_a_finished_run_repeats_the_rounds_after_its_last_checkpoint_only(tmp_path):
    name, rounds = "admm, random", []
    resume(name, tmp_path, every=4)
    result, _ = resume(name, tmp_path, every=4, callback=lambda progress: rounds.append(progress.round))
    assert rounds == [24, 25]
    assert_same_end(uninterrupted(name), result)


def test_a_fit_of_an_estimator_is_resumed(tmp_path):
    rng = np.random.default_rng(0)
    X, tasks = rng.normal(size=(60, 3)), np.repeat(["a", "b", "c"], 20)
    y = np.sin(X @ [1.0, 2.0, -1.0])
    model = MultiTaskELMRegressor(20, solver=MeshELM(common=False, private=False, tol=1e-4), random_state=0)
    whole = model.fit(X, y, tasks).predict(X, tasks)
    with pytest.raises(Interrupted):
        model.fit(X, y, tasks, run=saving(tmp_path, 2, interrupt_at(5)))
    rounds = []
    run = saving(tmp_path, 2, lambda progress: rounds.append(progress.round))
    again = model.fit(X, y, tasks, run=run).predict(X, tasks)
    assert rounds[0] == 4
    assert whole.tobytes() == again.tobytes()


@pytest.mark.parametrize("classes", [False, True], ids=["regression", "classes"])
def test_a_fit_with_a_shared_part_beside_the_others_is_resumed(tmp_path, classes):
    rng = np.random.default_rng(1)
    X, sites = rng.normal(size=(240, 6)), np.repeat([f"site{t}" for t in range(8)], 30)
    weights = np.repeat(rng.normal(size=(8, 1)) * rng.normal(size=6) + rng.normal(size=6), 30, axis=0)
    y = np.sum(X * weights, axis=1) + rng.normal(size=240)
    y = np.digitize(y, [-1.0, 1.0]) if classes else y

    def make():
        solver = MeshELM(common="auto", private="auto", mu1=1.0, mu2=1.0, tol=1e-4)
        return (MultiTaskELMClassifier if classes else MultiTaskELMRegressor)(12, solver=solver, random_state=0)

    whole = make().fit(X, y, sites)
    assert whole.U_.shape[1] > 0
    with pytest.raises(Interrupted):
        make().fit(X, y, sites, run=saving(tmp_path, 2, interrupt_at(3)))
    rounds = []
    again = make().fit(X, y, sites, run=saving(tmp_path, 2, lambda progress: rounds.append(progress.round)))
    assert rounds[0] == 2
    assert rounds[-1] == whole.n_iter_
    for part in ("U_", "W_", "variances_", "history_"):
        assert np.asarray(getattr(whole, part)).tobytes() == np.asarray(getattr(again, part)).tobytes(), part
    for site in np.unique(sites):
        assert whole.V_[site].tobytes() == again.V_[site].tobytes()
        assert whole.model_.heads[site].A.tobytes() == again.model_.heads[site].A.tobytes()
    assert whole.certificate_ == again.certificate_


def test_only_the_newest_checkpoint_is_kept(tmp_path):
    resume("admm, random", tmp_path, every=4)
    assert {path.name for path in tmp_path.iterdir()} == {"checkpoint.json", "round-00000024"}


def test_only_the_owner_may_read_the_files(tmp_path):
    before = os.umask(0)
    try:
        interrupt("admm, random", tmp_path / "here", 5)
    finally:
        os.umask(before)
    files = list((tmp_path / "here").glob("*/*"))
    assert [file.stat().st_mode & 0o777 for file in files] == [0o600]
    assert [file.parent.stat().st_mode & 0o777 for file in files] == [0o700]


@pytest.mark.parametrize("every", [0, -1, 2.0, True, "10", None])
def test_an_invalid_interval_of_checkpoints_is_refused(tmp_path, every):
    with pytest.raises(ElmeshError, match="every must be a whole number of at least 1; got"):
        CheckpointConfig(tmp_path, every)


# Checkpoints of other fits -------------------------------------------------------------------------------------------


def assert_refused(folder: Path, match: str, name: str = "admm, random", **changes) -> None:
    before = contents(folder)
    with pytest.raises(ElmeshError, match=match) as error:
        resume(name, folder, **changes)
    assert "\n" not in str(error.value)
    assert before == contents(folder)


def contents(folder: Path) -> dict[Path, bytes | None]:
    """Return all files below a folder, and all folders."""
    return {path.relative_to(folder): path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


@pytest.fixture(scope="module")
def whole_checkpoint(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    interrupt("admm, random", folder, 5)
    return folder


@pytest.fixture
def checkpoint(whole_checkpoint, tmp_path) -> Path:
    return shutil.copytree(whole_checkpoint, tmp_path, dirs_exist_ok=True)


def test_a_checkpoint_of_another_seed_is_refused(checkpoint):
    assert_refused(
        checkpoint,
        r"holds a checkpoint of another fit: its seed is 3, but this fit's is 4; choose another fold",
        seed=4,
    )


def test_a_checkpoint_of_another_solver_is_refused(checkpoint):
    assert_refused(
        checkpoint, r"of another fit: its solver is .*max_iter=25.*, but this fit's is .*", name="fo, random"
    )


def test_a_checkpoint_of_another_rank_is_refused(checkpoint):
    content = document(checkpoint)
    content["fields"]["rank"] = 5
    (checkpoint / "checkpoint.json").write_text(json.dumps(content))
    assert_refused(
        checkpoint, r"of another fit: its rank is 5, but this fit's is 6; choose another folder, or empty that one"
    )


def test_a_checkpoint_without_a_field_is_refused(checkpoint):
    assert_refused(checkpoint, r"its kind is null, but this fit's is .regression.", fields={"kind": "regression"})


@pytest.mark.parametrize("part", ["V", "s", "Y", "rest", "rows"])
def test_a_checkpoint_of_other_data_is_refused_with_the_task(checkpoint, part):
    task = data_of("admm, random")
    changed = np.array(getattr(task, part))
    changed[4] = np.nextafter(changed[4], np.inf)
    other = Task(**{name: changed if name == part else getattr(task, name) for name in ("V", "s", "Y", "rest", "rows")})
    assert_refused(
        checkpoint, r"The data of task 4 differ from those of the checkpoint in .*; choose another", data=other
    )


@pytest.mark.parametrize("part", ["Phi", "T", "rest", "rows"])
def test_a_checkpoint_of_other_rows_of_a_site_is_refused_with_the_task(tmp_path, part):
    name = "mesh with three parts, random"
    interrupt(name, tmp_path, 5)
    sites = list(data_of(name))
    sites[4] = replace(sites[4], **{part: np.nextafter(getattr(sites[4], part), np.inf)})
    match = r"The data of task 4 differ from those of the checkpoint in .*; choose another"
    assert_refused(tmp_path, match, name, data=sites)


# What 0.4 wrote for a fit of three tasks, without most of its fields.
DOCUMENT_OF_0_4 = {
    "format": "elmesh-checkpoint",
    "format_version": 1,
    "round": 4,
    "fields": {"version": "0.4.0", "kind": "regression", "solver": "dmtl-elm", "runtime": "stacked", "rank": 3},
    "files": [{"file": "round-00000004/rank-0000-of-0001.safetensors", "agents": [0, 1, 2]}],
}


def test_a_checkpoint_of_0_4_is_refused_with_advice(tmp_path):
    (tmp_path / "checkpoint.json").write_text(json.dumps(DOCUMENT_OF_0_4))
    assert_refused(
        tmp_path,
        r"checkpoint\.json is a checkpoint of another version of elmesh, which this one cannot resume; finish the fit "
        r"with that version, or empty the folder to start again\.$",
    )


# Damage --------------------------------------------------------------------------------------------------------------


def only(folder: Path) -> Path:
    (file,) = folder.glob("*/*.safetensors")
    return file


@pytest.mark.parametrize(
    "harm",
    [
        Path.unlink,
        lambda file: file.write_bytes(b""),
        lambda file: file.write_bytes(file.read_bytes()[:-8]),
        lambda file: file.write_bytes(file.read_bytes() + b"\0"),
        lambda file: file.write_bytes(b"\xff" * 8 + file.read_bytes()[8:]),
        lambda file: file.write_bytes(file.read_bytes().replace(b'"agent/6/own/U"', b'"agent/7/own/U"')),
        lambda file: (file.unlink(), file.mkdir()),
    ],
    ids=["missing", "empty", "short", "long", "no header", "an array of an unknown agent", "a folder"],
)
def test_a_file_that_is_missing_or_damaged_is_named(checkpoint, harm):
    harm(only(checkpoint))
    assert_refused(
        checkpoint, r"rank-0000-of-0001\.safetensors is missing or damaged, so its checkpoint cannot be resumed"
    )


@examples(60, suppress=(HealthCheck.function_scoped_fixture,))
@given(data=st.data())
def test_a_flipped_bit_never_changes_a_result(whole_checkpoint, data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("flipped")
    shutil.copytree(whole_checkpoint, folder, dirs_exist_ok=True)
    file = data.draw(st.sampled_from([folder / "checkpoint.json", only(folder)]))
    content = bytearray(file.read_bytes())
    # Most of a large file is numbers; the header at the beginning matters most.
    place = data.draw(st.integers(0, min(len(content), 20_000) - 1) | st.integers(0, len(content) - 1))
    content[place] ^= 1 << data.draw(st.integers(0, 7))
    file.write_bytes(content)
    # Any other error, and any other result, is wrong.
    with contextlib.suppress(ElmeshError):
        assert_same_end(uninterrupted("admm, random"), resume("admm, random", folder)[0])


def changed(**entries) -> Callable[[Path], object]:
    def change(path: Path) -> None:
        path.write_text(json.dumps({**json.loads(path.read_text()), **entries}))

    return change


@pytest.mark.parametrize(
    "harm",
    [
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(b"\xff\xfe{}"),
        lambda path: path.write_text("[" * 100_000),
        lambda path: path.write_text("[1, 2]"),
        lambda path: path.write_text("null"),
        lambda path: (path.unlink(), path.mkdir()),
        changed(format="something else"),
        changed(format_version="two"),
        changed(round="four"),
        changed(round=float("inf")),
        changed(round=None),
        changed(fields=None),
        changed(files=None),
        changed(files=[]),
        changed(files=[3]),
        changed(files=[{"file": "round-00000004/x", "agents": "0"}]),
        changed(files=[{"file": "../elsewhere/x", "agents": [0]}]),
        changed(files=[{"file": "/etc/passwd", "agents": [0]}]),
        changed(files=[{"file": 4, "agents": [0]}]),
        changed(files=[{"file": "round-00000004/rank-0000-of-0001.safetensors", "agents": [1, 2, 3, 4, 5, 6]}]),
        changed(files=[{"file": "round-00000004/rank-0000-of-0001.safetensors", "agents": [0, 99]}]),
    ],
)
def test_an_invalid_document_is_refused(checkpoint, harm):
    harm(checkpoint / "checkpoint.json")
    assert_refused(checkpoint, "checkpoint.json is not a checkpoint of elmesh; choose another|is missing or damaged")


# Disks ---------------------------------------------------------------------------------------------------------------


def full_from(k: int, monkeypatch) -> Callable[[object], None]:
    """Make the disk full from a round on."""
    full, sync = False, os.fsync

    def callback(progress) -> None:
        nonlocal full
        full = progress.round >= k

    def fails(descriptor: int) -> None:
        if full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", fails)
    return callback


def test_a_full_disk_is_a_warning_and_the_previous_checkpoint_remains(tmp_path, monkeypatch):
    name, saved = "admm, random", []
    with pytest.warns(CheckpointWarning) as caught:
        result = run(name, saving(tmp_path, 10, full_from(15, monkeypatch), saved.append))
    assert_same_end(uninterrupted(name), result)
    assert [str(warning.message) for warning in caught] == [
        f"The checkpoint of round 20 could not be written to {tmp_path} (rank 0: no space left on device); round 10 is "
        "still there."
    ]
    assert saved == [0, 10]
    monkeypatch.undo()
    result, saved = resume(name, tmp_path, every=10)
    assert saved == [10, 20]
    assert_same_end(uninterrupted(name), result)


def test_an_incomplete_checkpoint_is_removed_from_a_full_disk(tmp_path, monkeypatch):
    with pytest.warns(CheckpointWarning):
        run("admm, random", saving(tmp_path, 2, full_from(6, monkeypatch)))
    assert [path.name for path in tmp_path.glob("round-*")] == ["round-00000004"]


@pytest.mark.parametrize("what", ["a file", "below a file"])
def test_an_impossible_folder_is_only_a_warning(tmp_path, what):
    name, place = "admm, random", tmp_path / "place"
    place.write_text("mine")
    config = saving(place if what == "a file" else place / "below", 20)
    message = r"round 2?0 could not be written .* \(rank 0: .*\); there is none before it"
    with pytest.warns(CheckpointWarning, match=message):
        assert_same_end(uninterrupted(name), run(name, config))
    assert place.read_text() == "mine"


# Kills ---------------------------------------------------------------------------------------------------------------


def test_at_every_moment_the_folder_holds_a_good_checkpoint_or_none_yet(tmp_path, monkeypatch):
    """Copies of the folder before and after every change are resumed from."""
    name, place, copies = "dif, random", tmp_path / "place", tmp_path / "copies"
    copies.mkdir()

    def copied(function: Callable) -> Callable:
        def wrapped(*arguments, **more):
            copy()
            result = function(*arguments, **more)
            copy()
            return result

        return wrapped

    def copy() -> None:
        if place.exists():
            shutil.copytree(place, copies / str(len(list(copies.iterdir()))))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", copied(os.fsync))
        patch.setattr(Path, "replace", copied(Path.replace))
        patch.setattr(shutil, "rmtree", copied(shutil.rmtree))
        interrupt(name, place, 7, every=3)
    folders = sorted(copies.iterdir(), key=lambda path: int(path.name))
    assert len(folders) > 20
    starts = []
    for before, folder in zip([None, *map(contents, folders)], folders, strict=False):
        # A copy that equals the one before it would be resumed in the same way.
        if contents(folder) == before:
            continue
        result, saved = resume(name, folder, every=3)
        starts.append(saved[0])
        assert_same_end(uninterrupted(name), result)
    assert starts == sorted(starts)
    assert set(starts) == {0, 3, 6}


def test_a_process_killed_before_it_publishes_a_checkpoint_leaves_the_previous_one(tmp_path):
    from helpers.forked import ForkedProcess  # the other tests do not need what agents need

    process = ForkedProcess("admm, random", str(tmp_path), 6, target=run_until_killed)
    assert process.wait(300) == -signal.SIGKILL
    assert {path.name for path in tmp_path.glob("round-*")} == {"round-00000003", "round-00000006"}
    result, saved = resume("admm, random", tmp_path, every=3)
    assert saved[0] == 3
    assert_same_end(uninterrupted("admm, random"), result)
    assert len(list(tmp_path.glob("round-*"))) == 1
