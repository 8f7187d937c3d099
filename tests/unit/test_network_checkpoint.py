"""The checkpoint of an agent: one run per folder, refused if it is damaged, of another run or of another version."""

from __future__ import annotations

import json
import os
import stat
import threading
from types import SimpleNamespace

import numpy as np
import pytest

from elmesh.agent.checkpoint import AgentCheckpoint, CheckpointTiming, is_locked
from elmesh.agent.status import read_status
from elmesh.comm.transport import CommState
from elmesh.errors import ElmeshError
from elmesh.run.monitor import RoundSnapshot
from elmesh.run.result import RunHistory
from elmesh.solvers.base import RoundReport, Solution
from elmesh.solvers.state import SolverState

FIELDS = {"network file": "ab" * 32, "agent": "north", "target": ["y"], "data": "cd" * 32}
#: Seconds for what takes moments.
LIMIT = 60
#: As version 0.4 wrote it.
OLD_RUN = {"version": 1, "life": 1234567, "gone": ["west"], "notes": {}, "fields": FIELDS}


def run_file(**changes: object) -> str:
    """Return a run file with some fields changed."""
    fields = {"version": 3, "run_id": 1, "seed": "ab" * 32, "evicted": [], "notes": {}, "fields": {}}
    return json.dumps(fields | changes)


@pytest.fixture
def make(tmp_path):
    """Open checkpoints of one folder, one after another."""
    opened = []

    def start() -> AgentCheckpoint:
        for checkpoint in opened:
            checkpoint.close()
        opened[:] = [AgentCheckpoint(tmp_path, CheckpointTiming(patience=0.0, retry=0.0), lambda *_, **__: None)]
        return opened[0]

    yield start
    for checkpoint in opened:
        checkpoint.close()


def test_a_run_is_found_again_with_its_number_its_notes_and_its_evictions(make):
    first = make()
    assert not first.exists
    assert not first.open(FIELDS, fresh=False)
    assert first.run_id > 0
    assert len(first.seed) == 32
    first.note("bundle", "ab")
    first.note("statistics", {"x": [1.0, 2.0]})
    first.remember("south", "done")
    again = make()
    assert again.exists
    assert again.open(FIELDS, fresh=False)
    assert (again.run_id, again.seed, again.evicted) == (first.run_id, first.seed, frozenset())
    assert again.notes == {"bundle": "ab", "statistics": {"x": [1.0, 2.0]}, "done": ["south"]}
    again.evict(frozenset({"west"}))
    third = make()
    assert third.open(FIELDS, fresh=False)
    # Without an agent the others start again, with the same keys, and agree on everything else anew.
    assert (third.evicted, third.notes, third.latest()) == (frozenset({"west"}), {"bundle": "ab"}, None)
    assert third.seed == first.seed


def test_a_fresh_start_is_another_run(make):
    first = make()
    first.open(FIELDS, fresh=False)
    again = make()
    assert not again.open(FIELDS, fresh=True)
    assert again.run_id != first.run_id
    assert again.seed != first.seed


def test_only_the_owner_can_read_the_seed_of_a_run(make, tmp_path):
    make().open(FIELDS, fresh=False)
    assert stat.S_IMODE((tmp_path / "run.json").stat().st_mode) == 0o600


@pytest.mark.parametrize("name", FIELDS)
def test_the_checkpoint_of_another_run_is_refused(make, name):
    make().open(FIELDS, fresh=False)
    shown = {"target": "--target", "out": "--out", "data": r"table \(--data\)"}.get(name, name)
    with pytest.raises(ElmeshError, match=f"another run: its {shown} differs; finish that run .*--fresh"):
        make().open({**FIELDS, name: "other"}, fresh=False)


def test_a_journal_of_version_0_4_is_refused_with_a_sentence(make, tmp_path):
    (tmp_path / "run.json").write_text(json.dumps(OLD_RUN))
    (tmp_path / "journal.safetensors").write_bytes(bytes(100))
    with pytest.raises(ElmeshError, match=r"another version of elmesh.*finish the run with that version.*--fresh"):
        make().open(FIELDS, fresh=False)
    assert json.loads((tmp_path / "run.json").read_text()) == OLD_RUN
    assert not make().open(FIELDS, fresh=True)
    assert not (tmp_path / "journal.safetensors").exists()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "{}",
        '{"version": 3}',
        run_file(version="2"),
        run_file(run_id=0),
        run_file(run_id=True),
        run_file(seed=""),
        run_file(seed="AB" * 32),
        run_file(seed=[1, 2]),
        run_file(evicted=[3]),
        run_file(notes=[]),
        "[" * 100_000,
    ],
)
def test_a_damaged_run_file_is_refused(make, tmp_path, text):
    (tmp_path / "run.json").write_text(text)
    with pytest.raises(ElmeshError, match=r"run\.json is damaged; start again with --fresh"):
        make().open(FIELDS, fresh=False)


def test_a_damaged_state_is_refused(make, tmp_path):
    checkpoint = make()
    checkpoint.open(FIELDS, fresh=False)
    assert checkpoint.latest_state() is None
    (tmp_path / "checkpoint.safetensors").write_bytes(b"\x08" + bytes(100))
    with pytest.raises(ElmeshError, match=r"checkpoint\.safetensors is damaged"):
        checkpoint.latest_state()


def test_a_folder_has_one_agent_at_a_time(make, tmp_path):
    make()
    with pytest.raises(ElmeshError, match="Another process runs this agent already"):
        AgentCheckpoint(tmp_path, CheckpointTiming(), lambda *_, **__: None)


def test_a_folder_is_locked_from_the_start_of_an_agent_to_its_end(tmp_path):
    assert not is_locked(tmp_path)
    checkpoint = AgentCheckpoint(tmp_path, CheckpointTiming(), lambda *_, **__: None)
    assert is_locked(tmp_path)
    checkpoint.close()
    assert not is_locked(tmp_path)


@pytest.fixture
def slow_disk(monkeypatch):
    """A disk that takes nothing until it is asked to go on."""
    disk = SimpleNamespace(asked=threading.Event(), go_on=threading.Event())
    sync = os.fsync

    def wait_and_sync(descriptor: int) -> None:
        disk.asked.set()
        disk.go_on.wait(LIMIT)
        sync(descriptor)

    disk.stall = lambda: monkeypatch.setattr(os, "fsync", wait_and_sync)
    yield disk
    disk.go_on.set()


def save_first_round(folder, disk, **timing: float) -> AgentCheckpoint:
    """Return a checkpoint that is writing its first state to a disk that does not respond."""
    checkpoint = AgentCheckpoint(folder, CheckpointTiming(**timing), lambda *_, **__: None)
    checkpoint.open(FIELDS, fresh=False)
    checkpoint.about = {"agent": 0, "rank": 1, "data": "cd"}
    # No neighbours, and no messages.
    checkpoint.attach(
        SimpleNamespace(buffered_bytes=0, link_states=dict, mark_saved=lambda _: None, check_stop=lambda: None)
    )
    disk.stall()
    nothing = np.zeros(1)
    report = RoundReport(Solution(None, nothing), nothing, (nothing, nothing), (nothing, nothing), (SolverState(0),))
    checkpoint.save(RoundSnapshot(report, CommState(), 0, None), RunHistory)
    assert disk.asked.wait(LIMIT)
    return checkpoint


def test_the_end_of_an_agent_waits_for_its_last_checkpoint(tmp_path, slow_disk):
    checkpoint = save_first_round(tmp_path, slow_disk)
    threading.Timer(0.1, slow_disk.go_on.set).start()
    checkpoint.close()
    assert (tmp_path / "checkpoint.safetensors").exists()
    assert not is_locked(tmp_path)


def test_the_end_of_an_agent_does_not_wait_for_ever_for_a_disk_that_does_not_respond(tmp_path, slow_disk):
    checkpoint = save_first_round(tmp_path, slow_disk, close=0.01)
    with pytest.raises(ElmeshError, match=r"disk does not respond: .*0\.01 seconds.*start the agent again"):
        checkpoint.close()
    assert is_locked(tmp_path)  # so no other process writes to it meanwhile


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ElmeshError, match=r"folder .*file/state cannot be used: not a directory"):
        AgentCheckpoint(tmp_path / "file" / "state", CheckpointTiming(), lambda *_, **__: None)


def test_a_finished_run_leaves_nothing(make, tmp_path):
    checkpoint = make()
    checkpoint.open(FIELDS, fresh=False)
    checkpoint.clear()
    assert {path.name for path in tmp_path.iterdir()} == {"lock"}


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"version": 1, "pid": 1, "phase": "ended"}'])
def test_a_status_file_of_another_version_is_refused(tmp_path, text):
    assert read_status(tmp_path) is None
    (tmp_path / "status.json").write_text(text)
    with pytest.raises(ElmeshError, match="not a status file of this version"):
        read_status(tmp_path)
