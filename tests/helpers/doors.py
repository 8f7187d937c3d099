"""Doors: forwarders of TCP connections between agents that can be held shut, cut, slowed down and made to lose.

An agent's address in the config is its door's, and behind the door it listens at a port of its own. Nothing is known of
what goes through: a door holds up bytes, in order, as a network does to whoever uses TCP.
"""

from __future__ import annotations

import contextlib
import queue
import socket
import threading
import time
from pathlib import Path

import numpy as np
import pandas as pd

from elmesh.netconfig.config import NetworkConfig
from helpers.network import Trial, free_ports, with_ports

# Bytes at most of what is held up as one, and seconds that TCP takes to send again what was lost.
_CHUNK, _AGAIN = 16_384, (0.2, 0.4)


class Door:
    """A door: what comes to ``port`` of this machine goes on to ``behind``.

    Attributes
    ----------
    delay : float
        Seconds that everything takes, each way.
    loss : float
        Share of what goes through that is held up for as long as it takes to send it again.
    """

    def __init__(self, port: int, behind: int, seed: int = 0) -> None:
        self.port, self.behind = port, behind
        self.delay = self.loss = 0.0
        self._random = np.random.default_rng(seed)
        self._open = threading.Event()
        self._open.set()
        self._links: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._listener: socket.socket | None = None
        self.mend()

    def hold(self) -> None:
        """Forward nothing, and close nothing."""
        self._open.clear()

    def release(self) -> None:
        """Forward again, what was held first."""
        self._open.set()

    def cut(self) -> None:
        """Close all connections, and refuse new ones."""
        listener, self._listener = self._listener, None
        if listener is not None:
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()
        with self._lock:
            links, self._links = self._links, set()
        for link in links:
            with contextlib.suppress(OSError):
                link.shutdown(socket.SHUT_RDWR)
            link.close()

    def mend(self) -> None:
        """Take connections again."""
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", self.port))
        listener.listen(16)
        self._listener = listener
        threading.Thread(target=self._accept, args=(listener,), daemon=True).start()

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = listener.accept()
                threading.Thread(target=self._join, args=(near,), daemon=True).start()

    def _join(self, near: socket.socket) -> None:
        self._open.wait()
        try:
            far = socket.create_connection(("127.0.0.1", self.behind), timeout=5)
            far.settimeout(None)
        except OSError:
            near.close()
            return
        with self._lock:
            self._links |= {near, far}
        for one, other in ((near, far), (far, near)):
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            waiting: queue.Queue[tuple[float, bytes]] = queue.Queue(4096)
            threading.Thread(target=self._take, args=(one, waiting), daemon=True).start()
            threading.Thread(target=self._give, args=(other, waiting), daemon=True).start()

    def _take(self, link: socket.socket, waiting: queue.Queue[tuple[float, bytes]]) -> None:
        while True:
            try:
                data = link.recv(_CHUNK)
            except OSError:
                data = b""
            lost = self._random.random() < self.loss
            waiting.put((time.monotonic() + self.delay + (self._random.uniform(*_AGAIN) if lost else 0.0), data))
            if not data:
                return

    def _give(self, link: socket.socket, waiting: queue.Queue[tuple[float, bytes]]) -> None:
        while True:
            due, data = waiting.get()
            time.sleep(max(due - time.monotonic(), 0.0))
            self._open.wait()
            try:
                if not data:
                    link.shutdown(socket.SHUT_WR)
                    return
                link.sendall(data)
            except OSError:
                with contextlib.suppress(OSError):
                    link.shutdown(socket.SHUT_RDWR)
                return


class DoorTrial(Trial):
    """A network whose agents are reached through doors."""

    def __init__(self, folder: Path, config: NetworkConfig, data: dict[str, pd.DataFrame] | None = None) -> None:
        front, back = free_ports(2 * len(config.agents)), []
        front, back = front[: len(config.agents)], front[len(config.agents) :]
        super().__init__(folder, with_ports(config, front), data)
        self.doors: dict[str, Door] = {}
        for number, name in enumerate(self.config.agent_names):
            with open(self.agents[name].folder / "agent.toml", "a") as file:
                file.write(f'listen = "127.0.0.1:{back[number]}"\n')
            self.doors[name] = Door(front[number], back[number], seed=number)

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        for door in self.doors.values():
            door.release()
            door.cut()
