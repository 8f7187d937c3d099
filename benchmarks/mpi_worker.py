"""One rank of the benchmark of many ranks: every rank measures the same things in the same turns, the first one tells.

A round of agents that talk is taken apart: the whole run as users have it, what they say with nothing worked out, what
they work out with nothing said, and the figures that a run is followed by. For the third a run is recorded and its
answers are played back, so that agents do the same work to the bit without waiting for each other.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from benchmarks.measure import interleaved, random_task, seconds
from elmesh.comm.graph import Topology, make_topology
from elmesh.comm.mpi.communicator import MPICommunicator, world_communicator
from elmesh.comm.mpi.transport import MPILink
from elmesh.comm.requests import Answer, Neighbours, Report, State, Total
from elmesh.data.statistics import Task
from elmesh.run.local import place_of, run_stacked
from elmesh.run.mpi import run_mpi
from elmesh.run.placement import place_agents
from elmesh.solvers import DMTLELM

WAYS: dict[str, dict[str, Any]] = {
    "admm": {"method": "admm", "rho": 1.0, "init": "ones"},
    "varpro": {"method": "varpro", "init": "random"},
}
Works = dict[str, Callable[[], float]]


def solver(way: str, rank: int, max_iter: int) -> DMTLELM:
    return DMTLELM(rank, 1.0, 1.0, max_iter=max_iter, tol=0.0, certify=False, **WAYS[way])


@dataclass(frozen=True, eq=False)
class Site:
    """The agents of this rank, their tasks, and the others."""

    world: MPICommunicator
    topology: Topology
    ranks: np.ndarray
    tasks: list[Task]
    rank: int

    @classmethod
    def build(cls, world: MPICommunicator, graph: str, size: dict[str, int]) -> Site:
        """Place agents; each draws its own task, the same wherever it is."""
        topology = make_topology(graph, range(size["agents"]))
        ranks = place_agents(topology, world.size)
        mine = np.flatnonzero(ranks == world.rank).tolist()
        made = [random_task(1, size["hidden"], size["rows"], size["outputs"], seed=agent).agent(0) for agent in mine]
        return cls(world, topology, ranks, made, size["rank"])

    def link(self) -> MPILink:
        return MPILink(self.world, self.topology, self.ranks)

    def timed(self, work: Callable[[], Any]) -> float:
        """Return how long all ranks take that begin together."""
        self.world.comm.Barrier()

        def all_of_them() -> None:
            work()
            self.world.comm.Barrier()

        return seconds(all_of_them)

    def full(self, way: str, rounds: int) -> Works:
        """Return measurements of a long and of a short run as users have them."""
        labels = np.flatnonzero(self.ranks == self.world.rank).tolist()

        def run(max_iter: int) -> float:
            made, where = solver(way, self.rank, max_iter), (self.topology, self.ranks, 0, self.world)
            return self.timed(lambda: whole(run_mpi(made, self.tasks, *where, labels=labels), max_iter))

        return {f"{way} long": lambda: run(1 + rounds), f"{way} short": lambda: run(1)}

    def computation(self, way: str, rounds: int) -> Script:
        """Record a run, to be played back."""
        stack, link = Task.stack(self.tasks), self.link()
        place = place_of(self.topology, 0, link.agents)
        return Script.record(lambda n: solver(way, self.rank, n).program(stack, place, self.rank), link, rounds)

    def exchange(self, shape: Sequence[int], times: int) -> Callable[[], float]:
        """Return a measurement of one exchange with neighbours, of a value of this shape an agent."""
        link, request = self.link(), Neighbours(np.ones((len(self.tasks), *shape)))
        link.exchange(request)  # buffers are made once
        return lambda: self.timed(lambda: [link.exchange(request) for _ in range(times)]) / times

    def sum(self, shape: Sequence[int], times: int) -> Callable[[], float]:
        """Return a measurement of one sum over all agents, of a value of this shape an agent and two numbers."""
        n = len(self.tasks)
        link, request = self.link(), Total(np.ones((n, *shape)), np.ones((n, 2)), "benchmark")
        link.add_up(request)
        return lambda: self.timed(lambda: [link.add_up(request) for _ in range(times)]) / times

    def figures(self, report: Report, times: int) -> Callable[[], float]:
        """Return a measurement of how long it takes to follow a round, if one waits for its figures."""
        link = self.link()

        def follow() -> None:
            following = link.follow(report, False)
            link.mark()  # of every round, for the run may have to go back to it
            while following.advance() is None:
                pass

        follow()
        return lambda: self.timed(lambda: [follow() for _ in range(times)]) / times


@dataclass(frozen=True, eq=False)
class Script:
    """A run's answers, in their order, and what asks for them."""

    program: Callable[[], Any]
    answers: list[Any]
    before: int
    last: Report
    requests: int
    rounds: int

    @classmethod
    def record(cls, program: Callable[[int], Any], link: MPILink, rounds: int) -> Script:
        """Run to round 1 and so many rounds more, by real messages."""
        running, answers, answer, before = program(1 + rounds), [], None, 0
        while True:
            request = running.send(answer)
            if isinstance(request, Report):
                answer = Answer.GO_ON
                before = len(answers) if request.round == 1 else before
                if request.round == 1 + rounds:
                    asked = sum(given is not Answer.GO_ON for given in answers[before:])
                    return cls(lambda: program(1 + rounds), answers, before, request, asked, rounds)
            else:
                answer = link.add_up(request) if isinstance(request, Total) else link.exchange(request)
            answers.append(answer)

    def play(self, site: Site) -> float:
        """Return the seconds a round from round 1 on, all ranks at once and none waiting for another."""
        running = self.program()
        running.send(None)
        for answer in self.answers[: self.before]:
            running.send(answer)
        return site.timed(lambda: [running.send(answer) for answer in self.answers[self.before :]]) / self.rounds


def whole(result: Any, max_iter: int) -> None:
    if result.n_iter != max_iter:
        raise RuntimeError(f"The run ended after {result.n_iter} of {max_iter} rounds: {result.stop.value}")


def parts(site: Site, plan: dict[str, Any]) -> dict[str, Any]:
    """Measure whole rounds and what they are made of."""
    size = plan["size"]
    shape = size["hidden"], size["rank"]
    works: Works = {}
    for way, rounds in plan["rounds"].items():
        script = site.computation(way, rounds)
        said = site.exchange if way == "admm" else site.sum
        works |= {
            **site.full(way, rounds),
            f"{way} exchange": said(shape, rounds),
            f"{way} computation": lambda script=script: script.play(site),
            f"{way} figures": site.figures(script.last, rounds),
            f"{way} requests": lambda script=script: script.requests / script.rounds,
        }
    return sorted_out(interleaved(works, plan["repeats"]), plan["rounds"])


def rounds(site: Site, plan: dict[str, Any]) -> dict[str, Any]:
    """Measure whole rounds alone."""
    works: Works = {}
    for way, n in plan["rounds"].items():
        asked = site.computation(way, n).requests / n
        works |= {**site.full(way, n), f"{way} requests": lambda asked=asked: asked}
    return sorted_out(interleaved(works, plan["repeats"]), plan["rounds"])


def stacked(site: Site, plan: dict[str, Any]) -> dict[str, Any]:
    """Measure whole rounds of the stacked runtime, and what its agents work out, in this process alone."""
    stack = Task.stack(site.tasks)
    works: Works = {}
    for way, n in plan["rounds"].items():
        script = site.computation(way, n)

        def full(max_iter: int, way: str = way) -> float:
            made = solver(way, site.rank, max_iter)
            return seconds(lambda: whole(run_stacked(made, stack, site.topology, 0), max_iter))

        works |= {
            f"{way} long": lambda full=full, n=n: full(1 + n),
            f"{way} short": lambda full=full: full(1),
            f"{way} computation": lambda script=script: script.play(site),
        }
    return sorted_out(interleaved(works, plan["repeats"]), plan["rounds"])


def sorted_out(best: dict[str, float], rounds: dict[str, int]) -> dict[str, dict[str, float]]:
    """Return measurements by way and name; a long run less a short one leaves out set-up and start."""
    found: dict[str, dict[str, float]] = {way: {} for way in rounds}
    for name, value in best.items():
        way, part = name.split()
        found[way][part] = value
    for way, n in rounds.items():
        found[way]["full"] = (found[way].pop("long") - found[way].pop("short")) / n
    return found


def messages(site: Site, plan: dict[str, Any]) -> dict[str, Any]:
    """Measure exchanges, sums and figures with values of several sizes, in bytes, on several graphs."""
    works: Works = {}
    for graph in plan["graphs"]:
        here = Site.build(site.world, graph, plan["size"])
        for size, times in plan["bytes"].items():
            shape = int(size) // 8, 1
            works[f"{graph} neighbours {size}"] = here.exchange(shape, times)
            works[f"{graph} sum {size}"] = here.sum(shape, times)
            # Following a run is the same on every graph.
            if graph == plan["graphs"][0]:
                works[f"{graph} figures {size}"] = here.figures(made_up(len(here.tasks), shape), times)
    return interleaved(works, plan["repeats"])


def made_up(agents: int, shape: tuple[int, int]) -> Report:
    """Return a report of agents whose U has this shape."""
    ones = np.ones(agents)
    return Report(1, State(np.ones((agents, *shape)), np.ones((agents, 1, 1))), ones, (ones, ones), (ones, ones), ())


MEASURES = {"parts": parts, "rounds": rounds, "stacked": stacked, "messages": messages}


def main(argument: str) -> None:
    plan, world = json.loads(argument), world_communicator()
    with threadpool_limits(1), world.working():
        site = Site.build(world, plan.get("graph", "ring"), plan["size"])
        found = MEASURES[plan["measure"]](site, plan)
    if world.rank == 0:
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
