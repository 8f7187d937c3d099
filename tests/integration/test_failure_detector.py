"""The ring failure detector between real processes that are killed and stopped, without MPI."""

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

from elmesh.comm.mpi import failure_detector
from elmesh.comm.mpi.failure_detector import IDLE, LOST, HeartbeatTiming, RankFailure
from helpers import failure_detector_worker

LIMIT = 60.0  # seconds that no event here may take
# Seconds between heartbeats. On a busy machine a process may miss a few, so only the process that is to detect a
# failure is within a round.
INTERVAL = 0.05
# Heartbeats after which a silent process would have been detected.
ENOUGH = HeartbeatTiming().missed + 3

pytestmark = pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="needs signals that stop a process")


class Process:
    """One process of a ring."""

    def __init__(self, rank: int, size: int, interval: float, prints: bool = False) -> None:
        worker = Path(failure_detector_worker.__file__)
        arguments = [failure_detector.__file__, str(rank), str(size), str(interval), "yes" if prints else "no"]
        self._process = subprocess.Popen(
            [sys.executable, "-S", str(worker), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self._received = b""
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._process.stdout, selectors.EVENT_READ)

    def send(self, text: str) -> None:
        self._process.stdin.write(text.encode() + b"\n")
        self._process.stdin.flush()

    def receive(self) -> dict[str, Any] | None:
        """Return its next report; None if there is none within the limit, or never again."""
        deadline = time.monotonic() + LIMIT
        while b"\n" not in self._received:
            if not self._selector.select(max(0.0, deadline - time.monotonic())):
                return None
            data = os.read(self._process.stdout.fileno(), 4096)
            if not data:
                return None
            self._received += data
        line, _, self._received = self._received.partition(b"\n")
        return json.loads(line)

    def do(self, *commands: str) -> None:
        """Have it complete commands; it must report nothing else."""
        for command in commands:
            self.send(command)
        for command in commands:
            assert self.receive() == {"done": command}

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def exit_code(self) -> int:
        return self._process.wait(LIMIT)

    def errors(self) -> str:
        return self._process.stderr.read().decode()

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        self._selector.close()
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            stream.close()


class Ring:
    """Several processes; it gathers their addresses, as MPI does."""

    def __init__(self, size: int, interval: float = INTERVAL, prints: bool = False) -> None:
        self.processes = [Process(rank, size, interval, prints) for rank in range(size)]
        self.addresses = [process.receive()["content"] for process in self.processes]

    def start(self) -> list[Process]:
        for process in self.processes:
            process.send(json.dumps(self.addresses))
        for process in self.processes:
            assert process.receive() == {"started": True}
        return self.processes

    def end(self) -> None:
        for process in self.processes:
            process.end()


@pytest.fixture
def ring() -> Iterator[Any]:
    rings: list[Ring] = []

    def make(size: int, **options: Any) -> Ring:
        rings.append(Ring(size, **options))
        return rings[-1]

    yield make
    for each in rings:
        each.end()


def assert_no_failure(*processes: Process) -> None:
    """Check that none of them detects a failure for many of its own heartbeats."""
    command = f"beats {ENOUGH}"
    for process in processes:
        process.send(command)
    for process in processes:
        assert process.receive() == {"done": command}
        assert process.alive


@pytest.mark.parametrize("size", [pytest.param(2, marks=pytest.mark.slow), 3])
def test_a_killed_process_is_reported_by_its_successor_alone_with_the_round(ring, size):
    *others, first, second = ring(size).start()
    second.do("round 7")
    first.signal(signal.SIGKILL)
    assert second.receive() == {"lost": [size - 2, "died", 7]}
    assert second.exit_code() == LOST
    # The process that has reported it sends a farewell.
    assert_no_failure(*others)


def test_the_first_process_monitors_the_last(ring):
    first, second, last = ring(3).start()
    first.do("round 2")
    last.signal(signal.SIGKILL)
    assert first.receive() == {"lost": [2, "died", 2]}
    assert_no_failure(second)


def test_a_process_that_is_stopped_within_rounds_is_reported_as_hanging(ring):
    first, second, third = ring(3).start()
    third.do("round 3")
    second.signal(signal.SIGSTOP)
    assert third.receive() == {"lost": [1, "hangs", 3]}
    assert third.exit_code() == LOST
    assert_no_failure(first)


def test_the_default_timing_detects_a_hanging_process_within_ten_seconds():
    timing = HeartbeatTiming()
    assert timing.interval * (timing.missed + 2) <= 8


def test_more_heartbeats_may_be_missed_before_the_first_round(ring):
    first, second = ring(2, interval=0.02).start()
    first.do("round -1", "beats 2")
    second.do("round -1")
    first.signal(signal.SIGSTOP)
    second.do(f"beats {ENOUGH}")
    assert second.receive() == {"lost": [0, "hangs", -1]}


def test_an_idle_process_may_miss_heartbeats(ring):
    first, second = ring(2).start()
    # With the second heartbeat the round before it has been sent.
    first.do("round 5", "beats 2", f"round {IDLE}", "beats 2")
    second.do(f"round {IDLE}")
    first.signal(signal.SIGSTOP)
    second.do(f"beats {ENOUGH}")
    first.signal(signal.SIGCONT)
    assert_no_failure(first, second)


def test_an_idle_process_that_is_killed_is_reported(ring):
    first, second = ring(2).start()
    first.do(f"round {IDLE}")
    second.do("round 5")
    first.signal(signal.SIGKILL)
    assert second.receive() == {"lost": [0, "died", 5]}


def test_a_process_that_sent_a_farewell_is_not_reported(ring):
    first, second, third = ring(3).start()
    third.do("round 5")
    second.do("stop")
    second.signal(signal.SIGKILL)
    second.exit_code()
    assert_no_failure(first, third)


def test_a_process_that_was_stopped_itself_reports_no_other(ring):
    # The first ignores that the third is stopped, because both are idle; the third monitors the second.
    first, second, third = ring(3, interval=0.15).start()
    second.do("round 5", "beats 2")
    third.signal(signal.SIGSTOP)
    second.do(f"beats {ENOUGH}")
    third.signal(signal.SIGCONT)
    assert_no_failure(first, second, third)


def test_a_process_within_a_round_expects_its_predecessor_to_be_within_one(ring):
    first, second = ring(2).start()
    first.do("round -1", "beats 2")
    second.do("round 0")
    first.signal(signal.SIGSTOP)
    assert second.receive() == {"lost": [0, "hangs", 0]}


def test_a_terminated_process_sends_a_farewell(ring):
    first, second, third = ring(3).start()
    third.do("round 5")
    second.signal(signal.SIGTERM)
    assert second.exit_code() == 128 + signal.SIGTERM
    assert_no_failure(first, third)


@pytest.mark.parametrize(
    "secret", [b"", bytes(32), *(pytest.param(x, marks=pytest.mark.slow) for x in (b"open sesame", b"x" * 100))]
)
def test_a_connection_without_the_secret_is_refused(ring, secret):
    group = ring(2)
    _, port, right = group.addresses[1]
    assert secret != bytes.fromhex(right)
    with socket.create_connection(("127.0.0.1", port), LIMIT) as stranger:
        stranger.sendall(secret)
        stranger.shutdown(socket.SHUT_WR)
        first, second = group.start()
        # It receives nothing, whether its connection is closed or reset.
        with contextlib.suppress(ConnectionResetError):
            assert stranger.recv(1) == b""
        second.do("round 4")
        first.signal(signal.SIGKILL)
        assert second.receive() == {"lost": [0, "died", 4]}


def test_every_process_has_its_own_secret(ring):
    secrets = [bytes.fromhex(secret) for _, _, secret in ring(3).addresses]
    assert len(set(secrets)) == 3
    assert all(len(secret) == 32 for secret in secrets)


def test_a_failure_is_printed_as_one_sentence(ring):
    first, second = ring(2, prints=True).start()
    second.do("round 9")
    first.signal(signal.SIGKILL)
    assert second.exit_code() == LOST
    assert second.errors() == "elmesh: Rank 0 died in round 9.\n"


@pytest.mark.parametrize(
    ("failure", "sentence"),
    [
        (RankFailure(3, "died", 57), "Rank 3 died in round 57."),
        (RankFailure(0, "hangs", 0), "Rank 0 stopped responding in round 0."),
        (RankFailure(1, "died", -1), "Rank 1 died before the first round."),
        (RankFailure(1, "died", IDLE), "Rank 1 died before the first round."),
    ],
)
def test_a_failure_is_described_in_a_sentence(failure, sentence):
    assert str(failure) == sentence
