"""Agents spread over the processes of an MPI job."""

from __future__ import annotations

import sys
import traceback
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

from elmesh.comm.graph import make_topology
from elmesh.comm.mpi import MPICommunicator, MPITransport, world_communicator
from elmesh.comm.requests import IntegerSum
from elmesh.data.statistics import Statistics
from elmesh.errors import ElmeshError
from elmesh.math.blas import limit_blas_threads
from elmesh.privacy.discrete_gaussian import NoiseSource
from elmesh.run.backend import Assignment, Backend, FitContext, checkpoint_store, decomposed, make_problem
from elmesh.run.batches import shape_batches
from elmesh.run.placement import place_agents
from elmesh.run.result import RunResult
from elmesh.run.runner import LocalAgents, agent_context, run_solver
from elmesh.solvers.base import Solver
from elmesh.typing import IndexArray, IntArray, Label

if TYPE_CHECKING:
    from elmesh.comm.mpi.masks import MaskedRanks

__all__ = ["MPIBackend"]


class MPIBackend(Backend):
    """Agents spread over the processes of an MPI job.

    Parameters
    ----------
    world : MPICommunicator, optional
        The processes; by default all of the job.
    mask : bool, default=False
        Whether sums are masked, so that no process learns anything of another's rows but totals. Labels of tasks and
        names of classes are exchanged as they are.
    """

    def __init__(self, world: MPICommunicator | None = None, mask: bool = False) -> None:
        self._given, self._mask = world, mask
        self._masks: MaskedRanks | None = None
        self.description = "an MPI job with masked sums" if mask else "an MPI job"

    @property
    def masked(self) -> bool:
        """Whether sums are masked."""
        return self._mask

    def _sum_integers(self, request: IntegerSum) -> IntArray:
        """Return a sum over all processes, outside of a run."""
        if not self._mask:
            return self.communicator.allreduce_sum(request.value)
        self._masks = self._masks or self.communicator.mask()
        return self._masks.sum(request)

    @property
    def communicator(self) -> MPICommunicator:
        """The processes that take part; MPI starts when they are first needed."""
        return self._given or world_communicator()

    def assign(self, solver: Solver, labels: Sequence[Label], seed: int) -> Assignment:
        """Place agents: each process has its own tasks, or all have all and share them out."""
        world = self.communicator
        by_rank = world.allgather(list(labels))
        if len({type(label) for part in by_rank for label in part}) > 1:
            raise ElmeshError(
                "Ranks have different types of task labels: some have text and some have numbers; use one of them."
            )
        holders: dict[Label, list[int]] = {}
        for rank, part in enumerate(by_rank):
            for label in part:
                holders.setdefault(label, []).append(rank)
        everything = sorted(holders)
        topology = make_topology(solver.graph, everything, seed) if solver.distributed else None
        if world.size == 1:
            ranks = np.zeros(len(everything), dtype=np.intp)
        elif all(len(found) == world.size for found in holders.values()):
            # Rank 0 decides, so that the result does not depend on what each process has installed.
            placed = place_agents(topology or make_topology("path", everything), world.size)
            ranks = np.array(world.allgather(placed.tolist())[0], dtype=np.intp)
        else:
            ranks = _ranks_of(holders, everything, world.size)
        own = [label for label, rank in zip(everything, ranks.tolist(), strict=True) if rank == world.rank]
        return Assignment(everything, own, topology, ranks, world.rank)

    def run(self, fit: FitContext, tasks: Sequence[Statistics]) -> RunResult:
        """Run a solver on this process's tasks, together with the other processes."""
        world, solver, assignment = self.communicator, fit.solver, fit.assignment
        topology = assignment.topology
        if topology is None:  # tasks that exchange no messages
            topology = make_topology("path", assignment.labels)
        rank = self._agree_on_rank(solver, dict(zip(assignment.own, tasks, strict=True)))
        noise = NoiseSource.fresh()
        masked = self._mask and not fit.alone
        transport = MPITransport(world, topology, assignment.ranks, solver.message_bits, masked, noise)
        # The numbers of sites do not depend on how many are in a batch; those of tasks that are stacked do.
        batches = [np.arange(len(tasks))] if fit.features else shape_batches(decomposed(tasks))
        problems = [
            make_problem(
                fit.features,
                [tasks[k] for k in batch.tolist()],
                agent_context(topology, fit.seed, transport.agents[batch], self.fewest_terms(topology.n_agents)),
                rank,
            )
            for batch in batches
        ]
        numbers = transport.agents.tolist()
        degree = topology.degree[transport.agents].tolist()
        agents = LocalAgents(numbers, assignment.own, tasks, degree, batches, problems)
        energy = self._energy(dict(zip(assignment.own, tasks, strict=True))) if solver.privacy is None else 0.0
        with _abort_on_error(world), world.monitored():
            return run_solver(
                solver,
                agents,
                transport,
                zero_objective=energy / 2,
                threads=limit_blas_threads(always=True),
                callback=fit.config.callback,
                alone=fit.alone,
                store=checkpoint_store(fit.config, {**fit.fields, "backend": "mpi", "rank": rank}, agents, world),
                lookahead=True,
            )

    def _energy(self, tasks: Mapping[Label, Statistics]) -> float:
        """Return the squared norm of all tasks' targets."""
        energies = {t: np.array([float(task.target_energy)]) for t, task in tasks.items()}
        return float(self.sum_over_tasks(energies)[0])

    def _agree_on_rank(self, solver: Solver, tasks: Mapping[Label, Statistics]) -> int:
        """Return the number of columns of U, from what all tasks together can use; only rank 0 warns."""
        if solver.privacy is not None:
            return 0
        outputs = max(self.communicator.allgather(max(task.outputs for task in tasks.values())))
        own = {label: np.array([float(solver.directions(task))]) for label, task in tasks.items()}
        directions = round(float(self.sum_over_tasks(own)[0]))
        with warnings.catch_warnings():
            if self.communicator.rank:
                warnings.simplefilter("ignore")
            return solver.rank_for(outputs, next(iter(tasks.values())).width, directions)


def _ranks_of(holders: Mapping[Label, Sequence[int]], labels: Sequence[Label], size: int) -> IndexArray:
    """Return the process of each task where every process has its own; raise if one has none or two have the same."""
    twice = next((label for label in labels if len(holders[label]) > 1), None)
    if twice is not None:
        first, second = holders[twice][:2]
        raise ElmeshError(
            f"Task {twice!r} is on ranks {first} and {second}; give each rank the rows of its own tasks, or all "
            "ranks all rows."
        )
    ranks = np.array([holders[label][0] for label in labels], dtype=np.intp)
    idle = sorted(set(range(size)) - set(ranks.tolist()))
    if idle:
        raise ElmeshError(f"Rank {idle[0]} has no tasks; each rank needs at least one of its own.")
    return ranks


@contextmanager
def _abort_on_error(world: MPICommunicator) -> Iterator[None]:
    """End the whole job if this process alone fails within a run: the others would wait for it endlessly."""
    try:
        yield
    except ElmeshError:
        raise  # what is wrong with the fit itself is raised in all processes
    except BaseException:
        if world.size > 1:
            traceback.print_exc(file=sys.stderr)
            sys.stderr.write(f"elmesh: rank {world.rank} failed, so all ranks end.\n")
            sys.stderr.flush()
            world.abort(1)
        raise
