"""Agents that start at once: forked from a process that has imported everything already."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from multiprocessing import forkserver
from pathlib import Path

import numpy as np

from elmesh.agent import NetworkAgent
from elmesh.netconfig.config import NetworkConfig
from helpers.network import ROOT, Agent, LocalNetwork, free_ports, with_ports

_CONTEXT = multiprocessing.get_context("forkserver")


def run_command(argv: list[str], out: str, errors: str, folder: str) -> None:
    """Run ``elmesh`` with arguments in a new process."""
    os.chdir(folder)
    for path, flags, descriptor in ((out, os.O_TRUNC, 1), (errors, os.O_APPEND, 2)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | flags, 0o600), descriptor)
    # As in a new process, whatever pytest has set.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    sys.argv = ["elmesh", *argv]
    from elmesh.cli import main

    sys.exit(main())


def run_script(config: str, data: str, model: str, out: str) -> None:
    """Fit as a user's script does, in a new process, and write what it would print."""
    with NetworkAgent(config) as agent:
        result = agent.fit(data, target="y", out=model)
    Path(out).write_text(f"{result.summary['stop']} {result.evicted} {result.unconfirmed}")


class ForkedProcess:
    """A forked agent, with the few methods of a ``subprocess.Popen`` that tests use."""

    def __init__(self, *args: object, target: Callable[..., None] = run_command) -> None:
        start_forkserver()
        self._process = _CONTEXT.Process(target=target, args=args, daemon=True)
        self._process.start()
        self.pid = self._process.pid

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired("elmesh agent", timeout or 0.0)
        return self._process.exitcode

    def kill(self) -> None:
        self._process.kill()

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)


def start_forkserver() -> None:
    """Start the process that agents are forked from."""
    before = dict(os.environ)
    paths = [str(ROOT / "src"), str(ROOT / "tests"), before.get("PYTHONPATH", "")]
    os.environ.update(PYTHONPATH=os.pathsep.join(filter(None, paths)), OPENBLAS_NUM_THREADS="1")
    # Only a check of scikit-learn needs it, and every call of SciPy takes longer.
    os.environ.pop("SCIPY_ARRAY_API", None)
    try:
        modules = ["pytest", "helpers.forked", "elmesh.cli", "elmesh.cli.agent", "zenoh", "dp_accounting"]
        _CONTEXT.set_forkserver_preload([*modules, "helpers.preloaded"])
        forkserver.ensure_running()
    finally:
        os.environ.clear()
        os.environ.update(before)


class ForkedNetwork(LocalNetwork):
    """A network whose agents start at once."""

    def start(self, name: str, *more: str, **new: object) -> Agent:
        """Start an agent by forking; with an environment or a command before it, as a new process."""
        if new:
            return super().start(name, *more, **new)
        agent, net = self.agents[name], self.folder / "net"
        agent.extra = list(more) or agent.extra
        argv = self.command(name, *agent.extra)[3:]
        agent.process = self.fork(name, argv, str(net / f"{name}.out"), str(net / f"{name}.err"), str(self.folder))
        agent.starts += 1
        return agent

    def fork(self, name: str, *args: object) -> ForkedProcess:
        """Fork the process of an agent."""
        return ForkedProcess(*args)


def undisturbed(folder: Path, config: NetworkConfig) -> dict[str, dict[str, np.ndarray]]:
    """Run a network to its end and return every agent's weights; at other ports, which changes no bit."""
    folder.mkdir(exist_ok=True)
    with ForkedNetwork(folder, with_ports(config, free_ports(len(config.agents)))) as network:
        network.start_all()
        assert set(network.wait().values()) == {0}, network.logs()
        return network.weights()
