"""Ring failure detector: each rank monitors its predecessor over a TCP socket, beside MPI.

A rank that is killed closes its socket at once; one that ends normally sends a farewell first; one that is stopped or
stuck misses heartbeats. Exactly one rank detects it, the next in the ring: it reports the lost rank and the round, and
exits; the launcher of the job ends the other ranks.

A heartbeat is eight bytes: the round, or a marker for idle or farewell. A connection is accepted only with the secret
of the rank that it goes to, which MPI alone has distributed.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import secrets
import select
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

__all__ = ["IDLE", "LOST", "FailureDetector", "HeartbeatTiming", "RankFailure"]

#: Exit code of a rank that detected the loss of another.
LOST = 3
#: The round outside of a fit, where missed heartbeats mean nothing.
IDLE = -2
_FAREWELL = -3
_SECRET_BYTES = 32


@dataclass(frozen=True)
class HeartbeatTiming:
    """Timing of the detector, in seconds unless noted."""

    #: Between heartbeats.
    interval: float = 1.0
    #: Missed heartbeats after which a rank within rounds counts as hanging; and before the first round, where reading
    #: and decomposing large tables may block the interpreter.
    missed: int = 5
    missed_before: int = 120
    #: To connect.
    connect: float = 60.0


_TIMING = HeartbeatTiming()


@dataclass(frozen=True)
class RankFailure:
    """A lost rank, "died" or "hangs", and the round (-1 before the first)."""

    rank: int
    how: str
    round: int

    def __str__(self) -> str:
        when = f"in round {self.round}" if self.round >= 0 else "before the first round"
        return f"Rank {self.rank} {'died' if self.how == 'died' else 'stopped responding'} {when}."


class FailureDetector:
    """Sends heartbeats to the next of ``size`` ranks and monitors those of the previous one.

    ``allgather`` collects the JSON content of all ranks, and ``on_beat`` is called after each heartbeat that is sent.
    """

    def __init__(
        self,
        rank: int,
        size: int,
        allgather: Callable[[Any], list[Any]],
        timing: HeartbeatTiming = _TIMING,
        on_beat: Callable[[], None] = lambda: None,
    ) -> None:
        #: The round of this rank: -1 before the first, IDLE outside of a fit.
        self.round = IDLE
        self.on_failure: Callable[[RankFailure], None] = _print_failure
        self._timing, self._on_beat = timing, on_beat
        self._predecessor = (rank - 1) % size
        self._done = threading.Event()
        with socket.create_server(("", 0), backlog=4) as server:
            host, secret = socket.gethostname(), secrets.token_hex(_SECRET_BYTES)
            addresses = allgather([host, server.getsockname()[1], secret])
            successor, port, their_secret = addresses[(rank + 1) % size]
            address = "127.0.0.1" if successor == host else successor
            self._out = socket.create_connection((address, port), timing.connect)
            self._out.sendall(bytes.fromhex(their_secret))
            self._in = _accept(server, bytes.fromhex(secret), timing.connect)
        self._out.settimeout(timing.interval)
        self._terminated = _termination_socket()
        threading.Thread(target=self._monitor, name="elmesh-heartbeat", daemon=True).start()

    def stop(self) -> None:
        """Send a farewell and stop monitoring."""
        if not self._done.is_set():
            self._done.set()
            self._send(_FAREWELL)

    def _send(self, value: int) -> None:
        with contextlib.suppress(OSError):  # the successor is gone, which its own successor detects
            self._out.sendall(struct.pack("<q", value))
        self._on_beat()

    def _monitor(self) -> None:
        missed, theirs, received = 0, IDLE, b""
        sources, next_beat = [self._in, self._terminated], time.monotonic()
        while not self._done.is_set():
            now = time.monotonic()
            if now >= next_beat:
                self._send(self.round)
                # Counted in own heartbeats: if this rank was stopped itself, it blames no other.
                missed, next_beat = missed + 1, now + self._timing.interval
            ready, _, _ = select.select(sources, [], [], max(0.0, next_beat - time.monotonic()))
            if self._in in ready:
                try:
                    data = self._in.recv(4096)
                except OSError:
                    data = b""
                if not data:
                    return self._fail("died")
                received += data
                while len(received) >= 8:
                    theirs, received = struct.unpack("<q", received[:8])[0], received[8:]
                missed = 0
                if theirs == _FAREWELL:
                    sources.remove(self._in)
            elif self._terminated in ready and signal.SIGTERM in self._terminated.recv(64):
                # The job is being terminated, for a reason that another rank has reported.
                self.stop()
                os._exit(128 + signal.SIGTERM)
            if self.round >= 0:
                # All ranks are within rounds if this one is, even if a heartbeat from before is the last received.
                theirs = max(theirs, 0)
            allowed = self._timing.missed if theirs >= 0 else self._timing.missed_before
            if self._in in sources and theirs != IDLE and missed > allowed:
                return self._fail("hangs")
        return None

    def _fail(self, how: str) -> None:
        if self._done.is_set():
            return
        self.on_failure(RankFailure(self._predecessor, how, self.round))
        self.stop()
        os._exit(LOST)


def _accept(server: socket.socket, secret: bytes, seconds: float) -> socket.socket:
    """Wait for the connection that presents the secret."""
    deadline = time.monotonic() + seconds
    while True:
        server.settimeout(max(0.1, deadline - time.monotonic()))
        connection, _ = server.accept()
        connection.settimeout(5.0)
        presented = b""
        with contextlib.suppress(OSError):
            while len(presented) < len(secret) and (data := connection.recv(len(secret) - len(presented))):
                presented += data
        if hmac.compare_digest(presented, secret):
            return connection
        connection.close()


def _termination_socket() -> socket.socket:
    """Return a socket that becomes readable when the process receives SIGTERM.

    While a process waits inside MPI, Python runs no signal handlers in the main thread; the monitor thread can react.
    """
    read, write = socket.socketpair()
    if threading.current_thread() is threading.main_thread():
        write.setblocking(False)
        signal.signal(signal.SIGTERM, lambda *_: None)
        _open_sockets.append(write)
        signal.set_wakeup_fd(write.fileno(), warn_on_full_buffer=False)
    return read


#: Sockets that would close without a reference.
_open_sockets: list[socket.socket] = []


def _print_failure(failure: RankFailure) -> None:
    sys.stderr.write(f"elmesh: {failure}\n")
    sys.stderr.flush()
