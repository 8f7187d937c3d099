"""Processes that listen to each other's hearts: real ones, killed and stopped, without MPI."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import elmesh.comm.mpi.failure_detector as module
from elmesh.comm.mpi.failure_detector import LOST, RESTING, Loss
from helpers import heartbeat_worker

PATIENCE = 60.0  # seconds that nothing here may take
# Seconds from beat to beat. On a busy machine a process may miss a few of them, so none but the one that is to find
# something out is in a round.
BEAT = 0.05
# Beats after which a silence would have been noticed.
ENOUGH = module._SILENT + 3

pytestmark = pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="needs signals that stop a process")


class Process:
    """One of several processes."""

    def __init__(self, rank: int, size: int, beat: float, words: bool = False) -> None:
        worker = Path(heartbeat_worker.__file__)
        command = [sys.executable, "-S", str(worker), module.__file__, str(rank), str(size), str(beat)]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, **({"ELMESH_TEST_WORDS": "1"} if words else {})},
        )
        self._received = b""
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._process.stdout, selectors.EVENT_READ)

    def hears(self, text: str) -> None:
        self._process.stdin.write(text.encode() + b"\n")
        self._process.stdin.flush()

    def says(self, wait: float = PATIENCE) -> dict[str, Any] | None:
        """What it says next; None if it has nothing to say for a while, or any more."""
        deadline = time.monotonic() + wait
        while b"\n" not in self._received:
            if not self._selector.select(max(0.0, deadline - time.monotonic())):
                return None
            data = os.read(self._process.stdout.fileno(), 4096)
            if not data:
                return None
            self._received += data
        line, _, self._received = self._received.partition(b"\n")
        return json.loads(line)

    def does(self, *orders: str) -> None:
        """Have it do something to the end; it must have nothing else to say."""
        for order in orders:
            self.hears(order)
        for order in orders:
            assert self.says() == {"done": order}

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def code(self) -> int:
        return self._process.wait(PATIENCE)

    def errors(self) -> str:
        return self._process.stderr.read().decode()

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        self._selector.close()
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            stream.close()


class Ring:
    """Several processes, and what MPI does for them."""

    def __init__(self, size: int, beat: float = BEAT, words: bool = False) -> None:
        self.processes = [Process(rank, size, beat, words) for rank in range(size)]
        self.notes = [process.says()["notes"] for process in self.processes]

    def up(self) -> list[Process]:
        for process in self.processes:
            process.hears(json.dumps(self.notes))
        for process in self.processes:
            assert process.says() == {"up": True}
        return self.processes

    def end(self) -> None:
        for process in self.processes:
            process.end()


@pytest.fixture
def ring() -> Iterator[Any]:
    rings: list[Ring] = []

    def make(size: int, **more: Any) -> Ring:
        rings.append(Ring(size, **more))
        return rings[-1]

    yield make
    for each in rings:
        each.end()


def all_quiet(*processes: Process) -> None:
    """None of them has lost anybody for many beats of its own."""
    order = f"count {ENOUGH}"
    for process in processes:
        process.hears(order)
    for process in processes:
        assert process.says() == {"done": order}
        assert process.alive


@pytest.mark.parametrize("size", [2, 3])
def test_who_dies_is_named_at_once_by_the_next_one_alone_with_its_round(ring, size):
    *others, first, second = ring(size).up()
    second.does("round 7")
    first.signal(signal.SIGKILL)
    assert second.says() == {"lost": [size - 2, "died", 7]}
    assert second.code() == LOST
    # The one that has told of it goes in peace.
    all_quiet(*others)


def test_the_ring_is_closed_the_last_one_is_listened_to_by_the_first(ring):
    first, second, last = ring(3).up()
    first.does("round 2")
    last.signal(signal.SIGKILL)
    assert first.says() == {"lost": [2, "died", 2]}
    all_quiet(second)


def test_who_is_stopped_within_rounds_hangs(ring):
    first, second, third = ring(3).up()
    third.does("round 3")
    second.signal(signal.SIGSTOP)
    assert third.says() == {"lost": [1, "hangs", 3]}
    assert third.code() == LOST
    all_quiet(first)


@pytest.mark.slow
def test_who_is_stopped_is_found_within_ten_seconds(ring):
    first, second = ring(2, beat=module._BEAT).up()
    first.does("round 1", "count 2")
    second.does("round 1")
    stopped = time.monotonic()
    first.signal(signal.SIGSTOP)
    assert second.says() == {"lost": [0, "hangs", 1]}
    assert time.monotonic() - stopped < 10


def test_as_configured_a_hang_is_found_within_ten_seconds_with_some_to_spare():
    assert module._BEAT * (module._SILENT + 2) <= 8


def test_before_the_first_round_there_is_more_patience(ring):
    first, second = ring(2, beat=0.02).up()
    first.does("round -1", "count 2")
    second.does("round -1")
    first.signal(signal.SIGSTOP)
    second.does(f"count {ENOUGH}")
    assert second.says() == {"lost": [0, "hangs", -1]}


def test_while_all_rest_anybody_may_be_silent(ring):
    first, second = ring(2).up()
    # With the second beat, what was said since is known to have been told.
    first.does("round 5", "count 2", f"round {RESTING}", "count 2")
    second.does(f"round {RESTING}")
    first.signal(signal.SIGSTOP)
    second.does(f"count {ENOUGH}")
    first.signal(signal.SIGCONT)
    all_quiet(first, second)


def test_but_even_who_rests_may_not_die(ring):
    first, second = ring(2).up()
    first.does(f"round {RESTING}")
    second.does("round 5")
    first.signal(signal.SIGKILL)
    assert second.says() == {"lost": [0, "died", 5]}


def test_who_goes_in_peace_is_not_missed(ring):
    first, second, third = ring(3).up()
    third.does("round 5")
    second.does("stop")
    second.signal(signal.SIGKILL)
    second.code()
    all_quiet(first, third)


def test_who_was_stopped_itself_blames_nobody_for_the_beats_it_slept_through(ring):
    # The first does not mind that the third is stopped, for both rest; the third listens to the second.
    first, second, third = ring(3, beat=0.15).up()
    second.does("round 5", "count 2")
    third.signal(signal.SIGSTOP)
    second.does(f"count {ENOUGH}")
    third.signal(signal.SIGCONT)
    all_quiet(first, second, third)


def test_who_is_in_a_round_expects_the_same_of_all(ring):
    first, second = ring(2).up()
    first.does("round -1", "count 2")
    second.does("round 0")
    first.signal(signal.SIGSTOP)
    assert second.says() == {"lost": [0, "hangs", 0]}


def test_who_is_asked_to_end_does_so_in_peace(ring):
    first, second, third = ring(3).up()
    third.does("round 5")
    second.signal(signal.SIGTERM)
    assert second.code() == 128 + signal.SIGTERM
    all_quiet(first, third)


@pytest.mark.parametrize("words", [b"", b"open sesame", b"\0" * module._SECRET, b"x" * 100])
def test_a_stranger_who_does_not_know_the_secret_is_refused(ring, words):
    group = ring(2)
    _, port, secret = group.notes[1]
    assert words != bytes.fromhex(secret)
    with socket.create_connection(("127.0.0.1", port), PATIENCE) as stranger:
        stranger.sendall(words)
        stranger.shutdown(socket.SHUT_WR)
        first, second = group.up()
        # Whether it was told so, or cut off in the middle of its words, nobody talks to it.
        with contextlib.suppress(ConnectionResetError):
            assert stranger.recv(1) == b""
        second.does("round 4")
        first.signal(signal.SIGKILL)
        assert second.says() == {"lost": [0, "died", 4]}


def test_everybody_has_a_secret_of_its_own(ring):
    secrets = [bytes.fromhex(secret) for _, _, secret in ring(3).notes]
    assert len(set(secrets)) == 3
    assert all(len(secret) == 32 for secret in secrets)


def test_a_loss_is_one_sentence_on_standard_error(ring):
    first, second = ring(2, words=True).up()
    second.does("round 9")
    first.signal(signal.SIGKILL)
    assert second.code() == LOST
    assert second.errors() == "elmesh: Rank 0 died in round 9.\n"


@pytest.mark.parametrize(
    ("loss", "words"),
    [
        (Loss(3, "died", 57), "Rank 3 died in round 57."),
        (Loss(0, "hangs", 0), "Rank 0 does not answer any more in round 0."),
        (Loss(1, "died", -1), "Rank 1 died before the first round."),
        (Loss(1, "died", RESTING), "Rank 1 died before the first round."),
    ],
)
def test_a_loss_is_told_in_words(loss, words):
    assert str(loss) == words
