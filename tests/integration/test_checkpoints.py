"""Runs that are stopped, killed or short of disk go on from their last good checkpoint, to the bit, or say why not."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from elmesh import DMTLELM, GOMTL, MTFL, MTLELM, MultiTaskELMRegressor, TraceNorm
from elmesh.comm.graph import Topology
from elmesh.data.statistics import Task
from elmesh.errors import ElmeshError, RankWarning
from elmesh.run import CheckpointWarning, Result, Stop, checkpointing, run_stacked, watch
from elmesh.solvers import Solver
from helpers.mpi_cases import CASES, SEED, make_tasks

Run = Callable[[], Result]

_POOLED: dict[str, Callable[[], Solver]] = {
    "mtl-elm": partial(MTLELM, max_iter=40),
    "mtl-elm by alternation": partial(MTLELM, rank=2, method="alternating", max_iter=8),
    "mtfl": partial(MTFL, max_iter=8),
    "go-mtl": partial(GOMTL, rank=3, mu2=0.1, max_iter=8),
    "trace-norm": partial(TraceNorm, mu1=0.1, max_iter=12),
}
# On one graph each, and none that is over before there is anything to go on from.
_SHORT = ("ends CONVERGED at the start", "ends DIVERGED from one round to the next")
_SPREAD = [name for name in CASES if name.endswith("random") or ("," not in name and name not in _SHORT)]
RUNS = [name for name in (*_SPREAD, *_POOLED) if "beyond" not in name]


def run(name: str, *, seed: int = SEED, task: Task | None = None, fields: dict | None = None) -> Result:
    """Run a case, or a solver of pooled tasks, in this process."""
    solver, topology = _of(name)
    fields = {"solver": repr(solver), "seed": seed, **(fields or {})}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RankWarning)
        return run_stacked(solver, task or _stack(name), topology, seed, fields=fields)


def _of(name: str) -> tuple[Solver, Topology | None]:
    if name in _POOLED:
        return _POOLED[name](), None
    return CASES[name].make(), CASES[name].topology


def _stack(name: str) -> Task:
    return Task.stack(make_tasks(16, 1.0) if name in _POOLED else CASES[name].tasks)


@cache
def never_stopped(name: str) -> Result:
    return run(name)


def assert_same_end(one: Result, other: Result) -> None:
    assert one.state.A.tobytes() == other.state.A.tobytes()
    assert (one.state.U is None) == (other.state.U is None)
    if one.state.U is not None:
        assert one.state.U.tobytes() == other.state.U.tobytes()
    assert one.state.certificate == other.state.certificate
    assert one.history.equals(other.history)
    assert one.ledger.counts().tobytes() == other.ledger.counts().tobytes()
    assert (one.stop, one.n_iter, one.n_exchanges) == (other.stop, other.n_iter, other.n_exchanges)


class Interrupted(Exception):  # noqa: N818  (nobody's error)
    """Something that has nothing to do with the run."""


def stop_at(k: int) -> Callable[[object], None]:
    def callback(progress) -> None:
        if progress.round == k:
            raise Interrupted

    return callback


def interrupt(name: str, folder: Path, at: int, every: int = 2) -> None:
    with checkpointing(folder, every=every), watch(stop_at(at)), pytest.raises(Interrupted):
        run(name)


def go_on(name: str, folder: Path, every: int = 2, **changes) -> tuple[Result, list[int]]:
    told: list[int] = []
    with checkpointing(folder, every=every, tell=told.append):
        return run(name, **changes), told


def named(folder: Path) -> dict:
    return json.loads((folder / "checkpoint.json").read_text())


# Going on ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", RUNS)
def test_a_run_that_goes_on_ends_as_if_it_had_never_stopped(name, tmp_path):
    whole = never_stopped(name)
    last = int(whole.history["round"].iloc[-1])
    # Again and again, each time from where it was.
    stops = range(1, last, max(1, last // 3))
    for at in stops:
        interrupt(name, tmp_path, at, every=1)
    result, told = go_on(name, tmp_path, every=1)
    assert told[0] == stops[-1] - 1
    assert_same_end(whole, result)


@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(every=st.integers(1, 9), stops=st.lists(st.integers(0, 12), min_size=1, max_size=4))
def test_it_makes_no_difference_how_often_checkpoints_are_kept_or_runs_are_stopped(tmp_path_factory, every, stops):
    name, folder = "varpro in 2 bits, random", tmp_path_factory.mktemp("checkpoints")
    begun = 0
    for at in stops:
        # Runs that go on have no rounds before that one any more.
        if at >= begun:
            interrupt(name, folder, at, every)
            begun = named(folder)["round"] if (folder / "checkpoint.json").exists() else 0
    result, told = go_on(name, folder, every)
    assert all(k % every == 0 for k in told)
    assert_same_end(never_stopped(name), result)


def test_a_run_that_was_asked_to_stop_can_be_gone_on_with(tmp_path):
    name = "admm, random"
    with checkpointing(tmp_path, every=3), watch(lambda progress: progress.round == 7):
        assert run(name).stop is Stop.INTERRUPTED
    result, told = go_on(name, tmp_path, every=3)
    assert told[0] == 6
    assert_same_end(never_stopped(name), result)


def test_a_run_that_is_over_only_repeats_what_came_after_its_last_checkpoint(tmp_path):
    name, rounds = "admm, random", []
    go_on(name, tmp_path, every=4)
    with watch(lambda progress: rounds.append(progress.round)):
        result, _ = go_on(name, tmp_path, every=4)
    assert rounds == [24, 25]
    assert_same_end(never_stopped(name), result)


def test_estimators_go_on_too(tmp_path):
    rng = np.random.default_rng(0)
    X, tasks = rng.normal(size=(60, 3)), np.repeat(["a", "b", "c"], 20)
    y = np.sin(X @ [1.0, 2.0, -1.0])
    model = MultiTaskELMRegressor(20, solver=DMTLELM(tol=1e-4), random_state=0)
    whole = model.fit(X, y, tasks).predict(X, tasks)
    with checkpointing(tmp_path, every=2), watch(stop_at(5)), pytest.raises(Interrupted):
        model.fit(X, y, tasks)
    rounds = []
    with checkpointing(tmp_path, every=2), watch(lambda progress: rounds.append(progress.round)):
        again = model.fit(X, y, tasks).predict(X, tasks)
    assert rounds[0] == 4
    assert whole.tobytes() == again.tobytes()


def test_only_the_newest_checkpoint_is_kept(tmp_path):
    go_on("admm, random", tmp_path, every=4)
    assert {path.name for path in tmp_path.iterdir()} == {"checkpoint.json", "round-00000024"}


def test_the_files_are_their_owners_alone(tmp_path):
    before = os.umask(0)
    try:
        interrupt("admm, random", tmp_path / "here", 5)
    finally:
        os.umask(before)
    files = list((tmp_path / "here").glob("*/*"))
    assert [file.stat().st_mode & 0o777 for file in files] == [0o600]
    assert [file.parent.stat().st_mode & 0o777 for file in files] == [0o700]


@pytest.mark.parametrize("every", [0, -1, 2.0, True, "10", None])
def test_checkpoints_are_kept_every_so_many_rounds_and_nothing_else(tmp_path, every):
    with (
        pytest.raises(ElmeshError, match="every must be a whole number of at least 1; got"),
        checkpointing(tmp_path, every),
    ):
        pass


# What does not belong together ---------------------------------------------------------------------------------------


def refuses(folder: Path, match: str, name: str = "admm, random", **changes) -> None:
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with pytest.raises(ElmeshError, match=match) as error:
        go_on(name, folder, **changes)
    assert "\n" not in str(error.value)
    assert before == {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def checkpoint(tmp_path) -> Path:
    interrupt("admm, random", tmp_path, 5)
    return tmp_path


def test_a_checkpoint_of_another_seed_is_refused_by_name(checkpoint):
    refuses(
        checkpoint, r"holds a checkpoint of another fit: its seed is 3, and here it is 4; choose another fold", seed=4
    )


def test_a_checkpoint_of_another_solver_is_refused_by_name(checkpoint):
    refuses(checkpoint, r"of another fit: its solver is .*max_iter=25.*, and here it is .*", name="fo, random")


def test_a_checkpoint_of_another_rank_is_refused_by_name(checkpoint):
    document = named(checkpoint)
    document["fields"]["rank"] = 5
    (checkpoint / "checkpoint.json").write_text(json.dumps(document))
    refuses(checkpoint, r"of another fit: its rank is 5, and here it is 6; choose another folder, or empty that one")


def test_a_checkpoint_of_something_that_knew_fewer_fields_is_refused_by_name(checkpoint):
    refuses(checkpoint, r"its kind is null, and here it is .regression.", fields={"kind": "regression"})


@pytest.mark.parametrize("part", ["V", "s", "Y", "rest", "rows"])
def test_a_checkpoint_of_other_data_is_refused_and_names_the_task(checkpoint, part):
    task = _stack("admm, random")
    changed = np.array(getattr(task, part))
    changed[4] = np.nextafter(changed[4], np.inf)
    other = Task(**{name: changed if name == part else getattr(task, name) for name in ("V", "s", "Y", "rest", "rows")})
    refuses(checkpoint, r"The data of task 4 are not those that the checkpoint in .* is of; choose another", task=other)


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
        lambda file: file.write_bytes(file.read_bytes().replace(b'"6/own/before"', b'"7/own/before"')),
        lambda file: (file.unlink(), file.mkdir()),
    ],
    ids=["missing", "empty", "short", "long", "no header", "an array of an agent that is none", "a folder"],
)
def test_a_file_that_is_missing_or_damaged_is_named(checkpoint, harm):
    harm(only(checkpoint))
    refuses(checkpoint, r"rank-0000-of-0001\.safetensors is not there, or damaged, so there is no going on")


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_bit_that_has_flipped_changes_a_result(whole_checkpoint, data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("flipped")
    shutil.copytree(whole_checkpoint, folder, dirs_exist_ok=True)
    file = data.draw(st.sampled_from([folder / "checkpoint.json", only(folder)]))
    content = bytearray(file.read_bytes())
    # Most of a large file is numbers, all of which are the same to it; what is at the beginning is not.
    place = data.draw(st.integers(0, min(len(content), 20_000) - 1) | st.integers(0, len(content) - 1))
    content[place] ^= 1 << data.draw(st.integers(0, 7))
    file.write_bytes(content)
    # Whatever else is raised, or comes out, is wrong.
    with contextlib.suppress(ElmeshError):
        assert_same_end(never_stopped("admm, random"), go_on("admm, random", folder)[0])


@pytest.fixture(scope="module")
def whole_checkpoint(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    interrupt("admm, random", folder, 5)
    return folder


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
        changed(format_version=2),
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
def test_a_document_that_is_none_is_refused_plainly(checkpoint, harm):
    harm(checkpoint / "checkpoint.json")
    refuses(checkpoint, "checkpoint.json is not a checkpoint as this elmesh writes it; choose another|is not there, or")


# Disks ---------------------------------------------------------------------------------------------------------------


def full_from(k: int, monkeypatch) -> Callable[[object], None]:
    """Have the disk be full from a round on."""
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


def test_a_full_disk_is_a_warning_and_the_checkpoint_before_stays_good(tmp_path, monkeypatch):
    name, told = "admm, random", []
    with (
        checkpointing(tmp_path, every=10, tell=told.append),
        watch(full_from(15, monkeypatch)),
        pytest.warns(CheckpointWarning) as caught,
    ):
        result = run(name)
    assert_same_end(never_stopped(name), result)
    assert [str(warning.message) for warning in caught] == [
        f"The checkpoint of round 20 could not be written to {tmp_path} (rank 0: no space left on device); round 10 is "
        "still there."
    ]
    assert told == [0, 10]
    monkeypatch.undo()
    result, told = go_on(name, tmp_path, every=10)
    assert told == [10, 20]
    assert_same_end(never_stopped(name), result)


def test_what_did_not_fit_on_the_disk_does_not_stay_there(tmp_path, monkeypatch):
    with checkpointing(tmp_path, every=2), watch(full_from(6, monkeypatch)), pytest.warns(CheckpointWarning):
        run("admm, random")
    assert [path.name for path in tmp_path.glob("round-*")] == ["round-00000004"]


@pytest.mark.parametrize("what", ["a file", "below a file"])
def test_a_folder_that_cannot_be_is_a_warning_and_no_more(tmp_path, what):
    name, place = "admm, random", tmp_path / "place"
    place.write_text("mine")
    with (
        checkpointing(place if what == "a file" else place / "below", every=20),
        pytest.warns(
            CheckpointWarning, match=r"round 2?0 could not be written .* \(rank 0: .*\); there is none before it"
        ),
    ):
        assert_same_end(never_stopped(name), run(name))
    assert place.read_text() == "mine"


# Kills ---------------------------------------------------------------------------------------------------------------


def test_whenever_a_process_is_killed_the_folder_holds_a_good_checkpoint_or_none_yet(tmp_path, monkeypatch):
    """What is on disk before and after everything that changes it is kept, and gone on from."""
    name, place, kept = "admm, random", tmp_path / "place", tmp_path / "kept"
    kept.mkdir()

    def photographed(function: Callable) -> Callable:
        def wrapped(*arguments, **more):
            photograph()
            result = function(*arguments, **more)
            photograph()
            return result

        return wrapped

    def photograph() -> None:
        if place.exists():
            shutil.copytree(place, kept / str(len(list(kept.iterdir()))))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", photographed(os.fsync))
        patch.setattr(Path, "replace", photographed(Path.replace))
        patch.setattr(shutil, "rmtree", photographed(shutil.rmtree))
        with checkpointing(place, every=3), watch(stop_at(7)), pytest.raises(Interrupted):
            run(name)
    pictures = sorted(kept.iterdir(), key=lambda path: int(path.name))
    assert len(pictures) > 20
    begun = []
    for picture in pictures:
        result, told = go_on(name, picture, every=3)
        begun.append(told[0])
        assert_same_end(never_stopped(name), result)
    assert begun == sorted(begun)
    assert set(begun) == {0, 3, 6}


KILLED = """
import os, signal, sys
sys.path[:0] = {path!r}
import test_checkpoints as here
from elmesh.run.checkpoints import Checkpoints

publish = Checkpoints._publish

def killed(self, content):
    if content["round"] == 6:
        os.kill(os.getpid(), signal.SIGKILL)
    publish(self, content)

Checkpoints._publish = killed
with here.checkpointing({folder!r}, every=3):
    here.run("admm, random")
"""


def test_a_process_killed_before_it_could_publish_leaves_the_checkpoint_before(tmp_path):
    code = KILLED.format(path=sys.path, folder=str(tmp_path))
    ended = subprocess.run([sys.executable, "-c", code], timeout=120, check=False)
    assert ended.returncode == -signal.SIGKILL
    assert {path.name for path in tmp_path.glob("round-*")} == {"round-00000003", "round-00000006"}
    result, told = go_on("admm, random", tmp_path, every=3)
    assert told[0] == 3
    assert_same_end(never_stopped("admm, random"), result)
    assert len(list(tmp_path.glob("round-*"))) == 1
