"""TCP proxies between agents that can be paused, cut, slowed down and made to lose packets.

An agent's address in the config is that of its proxy, and the agent listens at another port. A proxy delays bytes, in
order, as a network does under TCP.
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
from helpers.network import LocalNetwork, free_ports, with_ports

# Most bytes that are delayed as one, and seconds that TCP takes to resend a lost packet.
_CHUNK, _RESEND = 16_384, (0.2, 0.4)


class Proxy:
    """Forwards connections to ``port`` of this machine to another port, ``target``.

    Attributes
    ----------
    delay : float
        Seconds that everything takes, each way.
    loss : float
        Share of the data that is delayed by the time it takes to resend it.
    """

    def __init__(self, port: int, target: int, seed: int = 0) -> None:
        self.port, self.target = port, target
        self.delay = self.loss = 0.0
        self._random = np.random.default_rng(seed)
        self._open = threading.Event()
        self._open.set()
        self._links: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._listener: socket.socket | None = None
        self.accept()

    def pause(self) -> None:
        """Forward nothing, and close nothing."""
        self._open.clear()

    def resume(self) -> None:
        """Forward again, in order."""
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

    def accept(self) -> None:
        """Accept connections."""
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", self.port))
        listener.listen(16)
        self._listener = listener
        threading.Thread(target=self._listen, args=(listener,), daemon=True).start()

    def _listen(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = listener.accept()
                threading.Thread(target=self._join, args=(near,), daemon=True).start()

    def _join(self, near: socket.socket) -> None:
        self._open.wait()
        try:
            far = socket.create_connection(("127.0.0.1", self.target), timeout=5)
            far.settimeout(None)
        except OSError:
            near.close()
            return
        with self._lock:
            self._links |= {near, far}
        for one, other in ((near, far), (far, near)):
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            waiting: queue.Queue[tuple[float, bytes]] = queue.Queue(4096)
            threading.Thread(target=self._read, args=(one, waiting), daemon=True).start()
            threading.Thread(target=self._write, args=(other, waiting), daemon=True).start()

    def _read(self, link: socket.socket, waiting: queue.Queue[tuple[float, bytes]]) -> None:
        while True:
            try:
                data = link.recv(_CHUNK)
            except OSError:
                data = b""
            lost = self._random.random() < self.loss
            waiting.put((time.monotonic() + self.delay + (self._random.uniform(*_RESEND) if lost else 0.0), data))
            if not data:
                return

    def _write(self, link: socket.socket, waiting: queue.Queue[tuple[float, bytes]]) -> None:
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


class ProxiedNetwork(LocalNetwork):
    """A network whose agents reach each other through proxies."""

    def __init__(self, folder: Path, config: NetworkConfig, data: dict[str, pd.DataFrame] | None = None) -> None:
        ports = free_ports(2 * len(config.agents))
        front, back = ports[: len(config.agents)], ports[len(config.agents) :]
        super().__init__(folder, with_ports(config, front), data)
        self.proxies: dict[str, Proxy] = {}
        for number, name in enumerate(self.config.agent_names):
            with open(self.agents[name].folder / "agent.toml", "a") as file:
                file.write(f'listen = "127.0.0.1:{back[number]}"\n')
            self.proxies[name] = Proxy(front[number], back[number], seed=number)

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        for proxy in self.proxies.values():
            proxy.resume()
            proxy.cut()
