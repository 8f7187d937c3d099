"""Run a solver's agents in many processes."""

from __future__ import annotations

import sys
import traceback
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from elmesh.comm.graph import Topology
from elmesh.comm.mpi.communicator import MPICommunicator
from elmesh.comm.mpi.transport import MPILink
from elmesh.comm.requests import Kept, Program
from elmesh.data.statistics import Task
from elmesh.errors import ElmeshError
from elmesh.run.base import Result
from elmesh.run.batches import lockstep, same_shapes
from elmesh.run.checkpoints import Checkpoints, Crew, chosen
from elmesh.run.driver import drive
from elmesh.run.local import place_of
from elmesh.solvers.base import Solver

__all__ = ["run_mpi"]


def run_mpi(
    solver: Solver,
    tasks: Sequence[Task],
    topology: Topology,
    ranks: NDArray[np.intp],
    seed: int,
    world: MPICommunicator,
    *,
    labels: Sequence[object],
    fields: Mapping[str, Any] | None = None,
) -> Result:
    """Run a solver on the tasks of this process, together with those of the others.

    Parameters
    ----------
    solver : Solver
        What to run.
    tasks : sequence of Task
        The tasks of this process's agents, in the order of agents.
    topology : Topology
        Who talks to whom, of all agents.
    ranks : ndarray of int of shape (m,)
        The process of each agent.
    seed : int
        The seed that agents share.
    world : World
        All processes.
    labels : sequence
        Names of this process's tasks.
    fields : mapping, optional
        What the run is of, by name, for its checkpoints.

    Returns
    -------
    Result
        Its state is that of this process's agents; all else is the same in every process.
    """
    rank = _rank(solver, tasks, world)
    parts = same_shapes(tasks)
    stacks = [Task.stack([tasks[k] for k in part.tolist()]) for part in parts]
    link = MPILink(world, topology, ranks, solver.message_bits)
    places = [place_of(topology, seed, link.agents[part]) for part in parts]

    def start(kept: Sequence[Kept | None]) -> Program:
        own = zip(stacks, places, kept, strict=True)
        return lockstep([solver.program(stack, place, rank, k) for stack, place, k in own], parts)

    checkpoints, saved, wanted = None, None, chosen()
    if wanted is not None:
        crew = Crew(link.agents.tolist(), labels, tasks, topology.degree[link.agents].tolist(), parts)
        checkpoints = Checkpoints(wanted, {**(fields or {}), "runtime": "mpi", "rank": rank}, crew, world)
        saved = checkpoints.latest(link.others)
    if saved is not None:
        link.rewind(saved.link)
    energies = {int(agent): float(task.target_energy) for agent, task in zip(link.agents, tasks, strict=True)}
    # One thread: with more, products would be added up in an order that hangs on how many cores a process has.
    with threadpool_limits(1, user_api="blas"), _all_or_nothing(world), world.working():
        return drive(
            start([None] * len(parts) if saved is None else [saved.of(part) for part in parts]),
            link,
            max_iter=rank if solver.max_iter is None else solver.max_iter,
            tol=solver.tol,
            start_energy=sum(_in_order(world, energies)) / 2,
            max_bytes=solver.max_bytes,
            take_up=start,
            past=None if saved is None else saved.past,
            keep=None if checkpoints is None else checkpoints.keep,
        )


def _rank(solver: Solver, tasks: Sequence[Task], world: MPICommunicator) -> int:
    """Return the number of columns of U, from what all tasks together can use; only the first process warns."""
    own = [[int(task.Y.shape[-1]), int(solver.directions(task))] for task in tasks]
    counts = [pair for notes in world.allgather(own) for pair in notes]
    widest, directions = max(width for width, _ in counts), sum(n for _, n in counts)
    with warnings.catch_warnings():
        if world.rank:
            warnings.simplefilter("ignore")
        return solver.rank_for(widest, int(tasks[0].V.shape[-2]), directions)


def _in_order(world: MPICommunicator, own: Mapping[int, float]) -> list[float]:
    """Return every agent's number in the order of agents."""
    pairs = [pair for notes in world.allgather(list(own.items())) for pair in notes]
    return [value for _, value in sorted(pairs)]


class _all_or_nothing:  # noqa: N801  (a context manager reads as a phrase)
    """End the whole job when this process alone fails within a run: the others wait for what it will not say."""

    def __init__(self, world: MPICommunicator) -> None:
        self._world = world

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        # What is wrong with the fit itself is raised by all processes alike.
        if error is None or isinstance(error, ElmeshError) or self._world.size == 1:
            return
        traceback.print_exception(kind, error, trace, file=sys.stderr)
        sys.stderr.write(f"elmesh: rank {self._world.rank} failed, so all of them end.\n")
        sys.stderr.flush()
        self._world.abort(1)
