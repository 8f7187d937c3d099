"""One agent of the network benchmark: bare exchanges, exchanges of the runtime, computation and whole rounds, in turns.

All agents run this at the same time; the exchanges themselves keep them in step.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measure import random_task
from elmesh.agent import Site
from elmesh.comm.network.messenger import Post
from elmesh.comm.requests import Neighbours, Report
from elmesh.data.statistics import Task
from elmesh.netconfig.identity import Identity
from elmesh.run.local import place_of

BARE = b"BARE"


class Bare:
    """Messages of the same size by the same links, with nothing made of them but that they have come."""

    transport: Any

    def __init__(self, identity: Identity, size: int) -> None:
        self._neighbours = identity.config.neighbors(identity.name)
        self._data = BARE + bytes(size - len(BARE))
        self._change, self._come = threading.Condition(), dict.fromkeys(self._neighbours, 0)

    def arrive(self, sender: str, data: bytes) -> None:
        with self._change:
            self._come[sender] += 1
            self._change.notify_all()

    def round(self) -> None:
        for name in self._neighbours:
            self.transport.put(name, self._data)
        with self._change:
            self._change.wait_for(lambda: all(self._come.values()))
            for name in self._neighbours:
                self._come[name] -= 1


@dataclass(frozen=True)
class _As:
    """The runtime's own way to take a message in."""

    take: Any
    post: Post

    def arrive(self, sender: str, data: bytes) -> None:
        self.take(self.post, sender, data)


def main(agent: str, plan: str) -> None:
    settings = json.loads(plan)
    identity = Identity.read(agent)
    L, r, rounds = identity.config.n_hidden, int(identity.config.rank), settings["rounds"]
    number = identity.config.index(identity.name)
    task = random_task(1, L, settings["rows"], seed=number)
    single = Task(task.V[0], task.s[0], task.Y[0], task.rest[0], task.rows[0])
    solver = identity.config.make_solver()
    taken: dict[str, list[float]] = {
        "bare": [],
        "exchange": [],
        "computation": [],
        "computation_and_bare": [],
        "full": [],
    }
    with Site(identity, patience=60, fresh=True) as site:
        bare = Bare(identity, settings["size"])
        taking = Post.arrive
        Post.arrive = lambda post, sender, data: (bare if data[:4] == BARE else _As(taking, post)).arrive(sender, data)
        site.open({})
        bare.transport = site._transport
        link = site._link(64)
        value = np.random.default_rng(number).normal(size=(1, L, r))
        link.exchange(Neighbours(value))  # everybody is there

        def timed(name: str, work) -> None:
            begin = time.perf_counter()
            work()
            taken[name].append((time.perf_counter() - begin) / rounds)

        def repeat(work) -> None:
            for _ in range(rounds):
                work()

        def compute(beside: Callable[[], None] = lambda: None) -> None:
            place = place_of(identity.config.topology, 0, np.array([number]))
            program = solver.program(Task.stack([single]), place, r)
            answer, done = None, 0
            while done < rounds:
                request = program.send(answer)
                if isinstance(request, Neighbours):
                    beside()
                answer = 0 if isinstance(request, Report) else request.value * float(place.degree[0])
                done += isinstance(request, Report)
            program.close()

        for turn in range(settings["repeats"] + 1):
            timed("bare", lambda: repeat(bare.round))
            timed("exchange", lambda: repeat(lambda: link.exchange(Neighbours(value))))
            timed("computation", compute)
            timed("computation_and_bare", lambda: compute(bare.round))
            link.exchange(Neighbours(value))
            site.journal.regroup(frozenset())
            timed("full", lambda: site.run(solver, single, 0))
            if turn == 0:
                taken = {name: [] for name in taken}  # the first is for warming up
        Path(settings["out"], f"{identity.name}.json").write_text(json.dumps(taken))
        site.finish()


if __name__ == "__main__":
    main(*sys.argv[1:])
