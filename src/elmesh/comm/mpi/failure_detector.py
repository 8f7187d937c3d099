"""Who has died and who hangs: every process listens to the heart of the one before it.

Ranks form a ring of sockets, beside MPI. A process that is killed closes its socket at once; one that goes in peace
says so first; one that is stopped, or stuck, falls silent. Exactly one process notices, the next in the ring: it says
which rank was lost and in which round, once, and ends; whoever started the job ends the rest.

A beat is eight bytes: the round, or a word of rest or farewell. Nobody else can join the ring: whoever connects must
know the secret of the one it connects to, which MPI alone has passed on.
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

__all__ = ["LOST", "RESTING", "Heartbeat", "Loss"]

#: Exit code of a process that has lost another one.
LOST = 3

# Seconds from beat to beat; silent beats before a process counts as hanging, within rounds and before the first one,
# where reading and decomposing large tables may hold up the interpreter; seconds to connect.
_BEAT, _SILENT, _PATIENT, _CONNECT = 1.0, 5, 120, 60.0
_FAREWELL, RESTING = -3, -2
_SECRET = 32


@dataclass(frozen=True)
class Loss:
    """A process that is lost: its rank, "died" or "hangs", and the round (-1 before the first)."""

    rank: int
    how: str
    round: int

    def __str__(self) -> str:
        when = f"in round {self.round}" if self.round >= 0 else "before the first round"
        return f"Rank {self.rank} {'died' if self.how == 'died' else 'does not answer any more'} {when}."


class Heartbeat:
    """A process's heart, and its ear at that of the rank before it.

    Parameters
    ----------
    rank, size : int
        Which process this is, and of how many.
    gather : callable
        Collects every process's notes.
    """

    def __init__(self, rank: int, size: int, gather: Callable[[Any], list[Any]]) -> None:
        #: The round this process is in: -1 before the first, RESTING outside of a fit, where silence means nothing.
        self.round = RESTING
        self.tell: Callable[[Loss], None] = _say
        self._before = (rank - 1) % size
        self._done = threading.Event()
        with socket.create_server(("", 0), backlog=4) as server:
            host, secret = socket.gethostname(), secrets.token_hex(_SECRET)
            notes = gather([host, server.getsockname()[1], secret])
            # Everybody has its own secret, and tells it to MPI alone.
            after, port, theirs = notes[(rank + 1) % size]
            self._out = socket.create_connection(("127.0.0.1" if after == host else after, port), _CONNECT)
            self._out.sendall(bytes.fromhex(theirs))
            self._in = _accept(server, bytes.fromhex(secret))
        self._out.settimeout(_BEAT)
        self._ended = _on_end()
        threading.Thread(target=self._listen, name="elmesh-heartbeat", daemon=True).start()

    def stop(self) -> None:
        """Go in peace."""
        if not self._done.is_set():
            self._done.set()
            self._beat(_FAREWELL)

    def _beat(self, value: int) -> None:
        with contextlib.suppress(OSError):  # whoever listened is gone, which others will notice
            self._out.sendall(struct.pack("<q", value))

    def _listen(self) -> None:
        silent, theirs, received = 0, RESTING, b""
        watched, next_beat = [self._in, self._ended], time.monotonic()
        while not self._done.is_set():
            now = time.monotonic()
            if now >= next_beat:
                self._beat(self.round)
                # Beats of this process's own: those that it slept through itself count for nobody.
                silent, next_beat = silent + 1, now + _BEAT
            ready, _, _ = select.select(watched, [], [], max(0.0, next_beat - time.monotonic()))
            if self._in in ready:
                try:
                    data = self._in.recv(4096)
                except OSError:
                    data = b""
                if not data:
                    return self._lost("died")
                received += data
                while len(received) >= 8:
                    theirs, received = struct.unpack("<q", received[:8])[0], received[8:]
                silent = 0
                if theirs == _FAREWELL:
                    watched.remove(self._in)
            elif self._ended in ready and signal.SIGTERM in self._ended.recv(64):
                # The job is being ended: not for what was lost here, or it would have been heard.
                self.stop()
                os._exit(128 + signal.SIGTERM)
            if self.round >= 0:
                # Whoever is in a round knows that all are, though their last beat may be from before the first.
                theirs = max(theirs, 0)
            patience = _SILENT if theirs >= 0 else _PATIENT
            if self._in in watched and theirs != RESTING and silent > patience:
                return self._lost("hangs")
        return None

    def _lost(self, how: str) -> None:
        if self._done.is_set():
            return
        self.tell(Loss(self._before, how, self.round))
        self.stop()
        os._exit(LOST)


def _accept(server: socket.socket, secret: bytes) -> socket.socket:
    """Wait for the one that knows the secret."""
    deadline = time.monotonic() + _CONNECT
    while True:
        server.settimeout(max(0.1, deadline - time.monotonic()))
        connection, _ = server.accept()
        connection.settimeout(5.0)
        said = b""
        with contextlib.suppress(OSError):
            while len(said) < len(secret) and (data := connection.recv(len(secret) - len(said))):
                said += data
        if hmac.compare_digest(said, secret):
            return connection
        connection.close()


def _on_end() -> socket.socket:
    """Return what can be read from once somebody wants the process to end (SIGTERM).

    While a process waits inside MPI Python runs no handler; but the thread that listens can.
    """
    ear, mouth = socket.socketpair()
    if threading.current_thread() is threading.main_thread():
        mouth.setblocking(False)
        signal.signal(signal.SIGTERM, lambda *_: None)
        _mouths.append(mouth)
        signal.set_wakeup_fd(mouth.fileno(), warn_on_full_buffer=False)
    return ear


#: Sockets that would close if nobody held them.
_mouths: list[socket.socket] = []


def _say(loss: Loss) -> None:
    sys.stderr.write(f"elmesh: {loss}\n")
    sys.stderr.flush()
