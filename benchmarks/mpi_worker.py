"""One rank of the benchmark of many ranks: all ranks take the same measurements in the same order, and rank 0 prints.

A round is taken apart: the whole run as users have it, the messages without computation, the computation without
messages, and the metrics of a round. For the third a run is recorded and its answers are replayed, so that agents do
the same computation to the bit without waiting for each other.
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
from elmesh import DMTLELM, MeshELM
from elmesh.comm.graph import Topology, make_topology
from elmesh.comm.mpi import MPICommunicator, MPITransport, world_communicator
from elmesh.comm.requests import AllReduce, NeighborSum
from elmesh.comm.transport import LocalMetrics
from elmesh.data.statistics import Task
from elmesh.run import MPIBackend, RunConfig, run_local
from elmesh.run.backend import Assignment, FitContext
from elmesh.run.monitor import local_metrics
from elmesh.run.placement import place_agents
from elmesh.run.runner import agent_context
from elmesh.solvers import Solver
from elmesh.solvers.base import Decision, Problem, RoundReport, rounds

Measurements = dict[str, Callable[[], float]]


def make_solver(way: str, rank: int, max_iter: int) -> Solver:
    """Return ADMM, or MeshELM under the name of its method."""
    if way == "admm":
        return DMTLELM(rank, 1.0, 1.0, rho=1.0, init="ones", max_iter=max_iter, tol=0.0, certify=False)
    return MeshELM(rank=rank, mu1=1.0, mu2=1.0, max_iter=max_iter, tol=0.0, certify=False)


@dataclass(frozen=True, eq=False)
class Setup:
    """The agents of this rank, their tasks, and the other ranks."""

    world: MPICommunicator
    topology: Topology
    ranks: np.ndarray
    tasks: list[Task]
    rank: int

    @classmethod
    def build(cls, world: MPICommunicator, graph: str, size: dict[str, int]) -> Setup:
        """Place agents; each draws its own task, the same on any rank."""
        topology = make_topology(graph, range(size["agents"]))
        ranks = place_agents(topology, world.size)
        own = np.flatnonzero(ranks == world.rank).tolist()
        tasks = [random_task(1, size["hidden"], size["rows"], size["outputs"], seed=agent).agent(0) for agent in own]
        return cls(world, topology, ranks, tasks, size["rank"])

    def transport(self) -> MPITransport:
        return MPITransport(self.world, self.topology, self.ranks)

    def timed(self, work: Callable[[], Any]) -> float:
        """Return how long all ranks take that start together."""
        self.world.comm.Barrier()

        def until_all_are_done() -> None:
            work()
            self.world.comm.Barrier()

        return seconds(until_all_are_done)

    def full(self, way: str, n_rounds: int) -> Measurements:
        """Return measurements of a long and of a short run as users have them."""
        own = np.flatnonzero(self.ranks == self.world.rank).tolist()
        assignment = Assignment(list(range(len(self.ranks))), own, self.topology, self.ranks, self.world.rank)

        def run(max_iter: int) -> float:
            fit = FitContext(make_solver(way, self.rank, max_iter), assignment, 0, {}, RunConfig())
            return self.timed(lambda: check_rounds(MPIBackend(self.world).run(fit, self.tasks), max_iter))

        return {f"{way} long": lambda: run(1 + n_rounds), f"{way} short": lambda: run(1)}

    def computation(self, way: str, n_rounds: int) -> Recording:
        """Record a run, to be replayed."""
        transport = self.transport()
        problem = Problem(Task.stack(self.tasks), agent_context(self.topology, 0, transport.agents), self.rank)
        return Recording.make(lambda n: rounds(make_solver(way, self.rank, n), problem), transport, n_rounds)

    def exchange(self, shape: Sequence[int], times: int) -> Callable[[], float]:
        """Return a measurement of one exchange with neighbours, of a value of this shape per agent."""
        transport, request = self.transport(), NeighborSum(np.ones((len(self.tasks), *shape)))
        transport.neighbor_sum(request)  # which allocates the buffers
        return lambda: self.timed(lambda: [transport.neighbor_sum(request) for _ in range(times)]) / times

    def sum(self, shape: Sequence[int], times: int) -> Callable[[], float]:
        """Return a measurement of one sum over all agents, of a value of this shape per agent and two numbers."""
        n = len(self.tasks)
        transport, request = self.transport(), AllReduce(np.ones((n, *shape)), np.ones((n, 2)), "benchmark")
        transport.allreduce(request)
        return lambda: self.timed(lambda: [transport.allreduce(request) for _ in range(times)]) / times

    def metrics(self, local: LocalMetrics, times: int) -> Callable[[], float]:
        """Return a measurement of a round's metrics, waited for."""
        transport = self.transport()

        def collect() -> None:
            pending = transport.start_metrics(local, False)
            transport.state()  # of every round, because the run may be rolled back to it
            while next(pending) is None:
                pass

        collect()
        return lambda: self.timed(lambda: [collect() for _ in range(times)]) / times


@dataclass(frozen=True, eq=False)
class Recording:
    """The answers to a run's requests, in their order, and the program that makes the requests."""

    program: Callable[[], Any]
    answers: list[Any]
    before: int
    metrics: LocalMetrics
    requests: int
    n_rounds: int

    @classmethod
    def make(cls, program: Callable[[int], Any], transport: MPITransport, n_rounds: int) -> Recording:
        """Run to round 1 and so many rounds more, by real messages."""
        running, answers, answer, before = program(1 + n_rounds), [], None, 0
        while True:
            request = running.send(answer)
            if isinstance(request, RoundReport):
                answer = Decision.CONTINUE
                before = len(answers) if request.round == 1 else before
                if request.round == 1 + n_rounds:
                    n_requests = sum(given is not Decision.CONTINUE for given in answers[before:])
                    metrics = local_metrics(request)
                    return cls(lambda: program(1 + n_rounds), answers, before, metrics, n_requests, n_rounds)
            elif isinstance(request, AllReduce):
                answer = transport.allreduce(request)
            else:
                answer = transport.neighbor_sum(request)
            answers.append(answer)

    def replay(self, setup: Setup) -> float:
        """Return the seconds per round from round 1 on, on all ranks at once and without waiting."""
        running = self.program()
        running.send(None)
        for answer in self.answers[: self.before]:
            running.send(answer)
        return setup.timed(lambda: [running.send(answer) for answer in self.answers[self.before :]]) / self.n_rounds


def check_rounds(result: Any, max_iter: int) -> None:
    if result.n_iter != max_iter:
        raise RuntimeError(f"The run ended after {result.n_iter} of {max_iter} rounds: {result.stop.value}")


def measure_parts(setup: Setup, plan: dict[str, Any]) -> dict[str, Any]:
    """Measure whole rounds and their parts."""
    size = plan["size"]
    shape = size["hidden"], size["rank"]
    works: Measurements = {}
    for way, n in plan["rounds"].items():
        recording = setup.computation(way, n)
        communication = setup.exchange if way == "admm" else setup.sum
        works |= {
            **setup.full(way, n),
            f"{way} exchange": communication(shape, n),
            f"{way} computation": lambda recording=recording: recording.replay(setup),
            f"{way} figures": setup.metrics(recording.metrics, n),
            f"{way} requests": lambda recording=recording: recording.requests / recording.n_rounds,
        }
    return by_way(interleaved(works, plan["repeats"]), plan["rounds"])


def measure_rounds(setup: Setup, plan: dict[str, Any]) -> dict[str, Any]:
    """Measure whole rounds alone."""
    works: Measurements = {}
    for way, n in plan["rounds"].items():
        requests = setup.computation(way, n).requests / n
        works |= {**setup.full(way, n), f"{way} requests": lambda requests=requests: requests}
    return by_way(interleaved(works, plan["repeats"]), plan["rounds"])


def measure_stacked(setup: Setup, plan: dict[str, Any]) -> dict[str, Any]:
    """Measure whole rounds of all agents in one process, and their computation."""
    task = Task.stack(setup.tasks)
    works: Measurements = {}
    for way, n in plan["rounds"].items():
        recording = setup.computation(way, n)

        def full(max_iter: int, way: str = way) -> float:
            solver = make_solver(way, setup.rank, max_iter)
            return seconds(lambda: check_rounds(run_local(solver, task, setup.topology, 0), max_iter))

        works |= {
            f"{way} long": lambda full=full, n=n: full(1 + n),
            f"{way} short": lambda full=full: full(1),
            f"{way} computation": lambda recording=recording: recording.replay(setup),
        }
    return by_way(interleaved(works, plan["repeats"]), plan["rounds"])


def by_way(best: dict[str, float], n_rounds: dict[str, int]) -> dict[str, dict[str, float]]:
    """Return measurements by way and name; a long run less a short one excludes set-up and start."""
    found: dict[str, dict[str, float]] = {way: {} for way in n_rounds}
    for name, value in best.items():
        way, part = name.split()
        found[way][part] = value
    for way, n in n_rounds.items():
        found[way]["full"] = (found[way].pop("long") - found[way].pop("short")) / n
    return found


def measure_messages(setup: Setup, plan: dict[str, Any]) -> dict[str, Any]:
    """Measure exchanges, sums and metrics with values of several sizes, in bytes, on several graphs."""
    works: Measurements = {}
    for graph in plan["graphs"]:
        here = Setup.build(setup.world, graph, plan["size"])
        for size, times in plan["bytes"].items():
            shape = int(size) // 8, 1
            works[f"{graph} neighbours {size}"] = here.exchange(shape, times)
            works[f"{graph} sum {size}"] = here.sum(shape, times)
            # Metrics are the same on every graph.
            if graph == plan["graphs"][0]:
                n = len(here.tasks)
                local = LocalMetrics(1, np.ones((n, 5)), np.ones((n, *shape)))
                works[f"{graph} figures {size}"] = here.metrics(local, times)
    return interleaved(works, plan["repeats"])


MEASURES = {
    "parts": measure_parts,
    "rounds": measure_rounds,
    "stacked": measure_stacked,
    "messages": measure_messages,
}


def main(argument: str) -> None:
    plan, world = json.loads(argument), world_communicator()
    with threadpool_limits(1), world.monitored():
        setup = Setup.build(world, plan.get("graph", "ring"), plan["size"])
        found = MEASURES[plan["measure"]](setup, plan)
    if world.rank == 0:
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
