"""One agent of the network benchmark: bare messages, the transport, computation and whole rounds, in turns.

All agents run this at the same time; the messages themselves keep them in step.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measure import random_task
from elmesh.agent import NetworkAgent
from elmesh.agent.backend import NetworkBackend
from elmesh.comm.network.zenoh_session import ZenohSession
from elmesh.comm.requests import NeighborSum
from elmesh.data.statistics import Task
from elmesh.netconfig.identity import Identity
from elmesh.run import RunConfig
from elmesh.run.backend import FitContext
from elmesh.run.runner import agent_context
from elmesh.solvers.base import Decision, Problem, RoundReport, rounds

BARE = b"BARE"
KINDS = ("bare", "exchange", "computation", "computation_and_bare", "full")


class BareMessages:
    """Messages of the same size over the agent's own session, which are counted and otherwise ignored."""

    session: ZenohSession

    def __init__(self, identity: Identity, size: int) -> None:
        self._neighbors = identity.config.neighbors(identity.name)
        self._data = BARE + bytes(size - len(BARE))
        self._change, self._arrived = threading.Condition(), dict.fromkeys(self._neighbors, 0)

    def install(self) -> None:
        """Take bare messages out of those of the next session that listens."""
        listen = ZenohSession.listen

        def listen_to_both(session: ZenohSession, on_message: Any, on_presence: Any, **options: Any) -> None:
            self.session = session

            def receive(sender: str, data: bytes) -> None:
                (self.on_message if data[:4] == BARE else on_message)(sender, data)

            listen(session, receive, on_presence, **options)

        ZenohSession.listen = listen_to_both

    def on_message(self, sender: str, data: bytes) -> None:
        with self._change:
            self._arrived[sender] += 1
            self._change.notify_all()

    def round(self) -> None:
        for name in self._neighbors:
            self.session.put(name, self._data)
        with self._change:
            self._change.wait_for(lambda: all(self._arrived.values()))
            for name in self._neighbors:
                self._arrived[name] -= 1


def main(file: str, options: str) -> None:
    settings = json.loads(options)
    identity = Identity.read(file)
    config, n_rounds = identity.config, settings["rounds"]
    L, r, number = config.n_hidden, int(config.rank), config.index(identity.name)
    task = random_task(1, L, settings["rows"], seed=number)
    single = Task(task.V[0], task.s[0], task.Y[0], task.rest[0], task.rows[0])
    solver = config.make_solver()
    taken: dict[str, list[float]] = {kind: [] for kind in KINDS}
    bare = BareMessages(identity, settings["size"])
    bare.install()
    with NetworkAgent(identity, patience=60, fresh=True) as agent:
        agent.open({})
        backend = NetworkBackend(agent)
        transport = backend.transport(sums_needed=False)
        request = NeighborSum(np.random.default_rng(number).normal(size=(1, L, r)))
        fit = FitContext(solver, backend.assign(solver, [agent.name], 0), 0, {}, RunConfig())
        transport.neighbor_sum(request)  # all agents are present

        def timed(name: str, work: Callable[[], object]) -> None:
            begin = time.perf_counter()
            work()
            taken[name].append((time.perf_counter() - begin) / n_rounds)

        def repeat(work: Callable[[], object]) -> None:
            for _ in range(n_rounds):
                work()

        def compute(send: Callable[[], None] = lambda: None) -> None:
            context = agent_context(config.topology, 0, np.array([number]))
            program = rounds(solver, Problem(Task.stack([single]), context, r))
            answer, done = None, 0
            while done < n_rounds:
                step = program.send(answer)
                if isinstance(step, RoundReport):
                    answer, done = Decision.CONTINUE, done + 1
                else:
                    send()
                    answer = step.value * float(context.degree[0])
            program.close()

        for turn in range(settings["repeats"] + 1):
            timed("bare", lambda: repeat(bare.round))
            timed("exchange", lambda: repeat(lambda: transport.neighbor_sum(request)))
            timed("computation", compute)
            timed("computation_and_bare", lambda: compute(bare.round))
            transport.neighbor_sum(request)
            agent.checkpoint.evict(frozenset())  # forgets the last run
            timed("full", lambda: backend.run(fit, [single]))
            if turn == 0:
                taken = {name: [] for name in taken}  # the first turn is a warm-up
        Path(settings["out"], f"{identity.name}.json").write_text(json.dumps(taken))
        agent.finish()


if __name__ == "__main__":
    main(*sys.argv[1:])
