"""Where a fit takes place: which processes take part, which tasks there are, and who has which.

Processes may each hold the rows of their own tasks, and nobody else's; or all hold everything, as when every process
runs the same script, and then each takes its share.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from elmesh.comm.communicator import SERIAL, Communicator
from elmesh.comm.graph import Topology, make_topology
from elmesh.comm.mpi.communicator import MPICommunicator, world_communicator
from elmesh.data.statistics import Task
from elmesh.errors import ElmeshError
from elmesh.run.base import Result
from elmesh.run.host import Host, current_host
from elmesh.run.local import run_stacked
from elmesh.run.mpi import run_mpi
from elmesh.run.placement import place_agents
from elmesh.solvers.base import Solver
from elmesh.typing import Label

__all__ = ["Venue", "assemble", "check_alike", "processes_of"]


class Venue(Protocol):
    """A fit's processes and tasks, seen from one of the processes."""

    @property
    def communicator(self) -> Communicator:
        """The processes that compare notes."""

    @property
    def labels(self) -> list[Label]:
        """All tasks, sorted."""

    @property
    def mine(self) -> list[Label]:
        """Those of this process, sorted."""

    @property
    def topology(self) -> Topology | None:
        """Who talks to whom; None where all tasks are in one place."""

    @property
    def degree(self) -> NDArray[np.float64]:
        """How many neighbours each of this process's agents has."""

    @property
    def one_thread(self) -> bool:
        """Whether BLAS must keep to one thread, lest sums hang on how many cores a process has."""

    @property
    def declared(self) -> bool:
        """Whether targets have been scaled by what was declared of them, and not by what they are."""

    def run(self, solver: Solver, tasks: Sequence[Task], seed: int, fields: Mapping[str, Any]) -> Result:
        """Run a solver on this process's tasks, in their order, together with the other processes."""


@dataclass(frozen=True, eq=False)
class Processes:
    """A fit in one process, or in those of an MPI job; ``ranks`` says which process has each task."""

    communicator: Communicator
    labels: list[Label]
    mine: list[Label]
    topology: Topology | None
    ranks: NDArray[np.intp]
    declared: bool = False

    def run(self, solver: Solver, tasks: Sequence[Task], seed: int, fields: Mapping[str, Any]) -> Result:
        """Run a solver on this process's tasks, in their order, together with the other processes."""
        if isinstance(self.communicator, MPICommunicator) and self.topology is not None:
            topology, ranks, world = self.topology, self.ranks, self.communicator
            return run_mpi(solver, tasks, topology, ranks, seed, world, labels=self.mine, fields=fields)
        return run_stacked(solver, Task.stack(tasks), self.topology, seed, labels=self.labels, fields=fields)

    @property
    def one_thread(self) -> bool:
        """Whether BLAS must keep to one thread, lest sums hang on how many cores a process has."""
        return isinstance(self.communicator, MPICommunicator)

    @property
    def degree(self) -> NDArray[np.float64]:
        """How many neighbours each of this process's agents has."""
        if self.topology is None:
            return np.zeros(len(self.mine))
        return np.asarray(self.topology.degree[self.ranks == self.communicator.rank], dtype=np.float64)


@dataclass(frozen=True, eq=False)
class AtSite:
    """A fit at one site of a network: the other tasks are elsewhere, and it may go on with fewer of them."""

    host: Host
    communicator: Communicator = SERIAL
    one_thread: bool = True
    declared: bool = True

    @property
    def labels(self) -> list[Label]:
        """The agents that take part."""
        return list(self.host.names)

    @property
    def mine(self) -> list[Label]:
        """The agent that is here."""
        return [self.host.name]

    @property
    def topology(self) -> Topology:
        """Who talks to whom."""
        return self.host.topology

    @property
    def degree(self) -> NDArray[np.float64]:
        """How many neighbours this site has."""
        number = self.host.names.index(self.host.name)
        return np.array([float(self.topology.degree[number])])

    def run(self, solver: Solver, tasks: Sequence[Task], seed: int, fields: Mapping[str, Any]) -> Result:
        """Run this site's part of a solver."""
        return self.host.run(solver, tasks[0], seed)


def processes_of(solver: str | Solver) -> Communicator:
    """Return the processes that a solver runs in; one that is given by its name runs in this process."""
    return world_communicator() if getattr(solver, "runtime", None) == "mpi" else SERIAL


def assemble(communicator: Communicator, solver: Solver, own: Sequence[Label], seed: int) -> Venue:
    """Find out which tasks there are and who has which.

    Parameters
    ----------
    together : Together
        The processes.
    solver : Solver
        Says who talks to whom.
    own : sequence of labels
        The tasks that this process has rows of, sorted.
    seed : int
        Seed of the graph called "random".

    Returns
    -------
    Venue
    """
    host = current_host()
    if host is not None:
        if list(own) != [host.name]:
            raise ElmeshError(f"A site of a network has one task, named as its agent: {host.name}.")
        if not solver.distributed:
            raise ElmeshError("A network of sites needs a solver whose agents talk to each other, such as dmtl-elm.")
        return AtSite(host)
    everybody = communicator.allgather(list(own))
    kinds = {type(label) for labels in everybody for label in labels}
    if len(kinds) > 1:
        raise ElmeshError(
            "Ranks disagree on what tasks are: some have text for labels and some have numbers; use one of them."
        )
    holders: dict[Label, list[int]] = {}
    for rank, labels in enumerate(everybody):
        for label in labels:
            holders.setdefault(label, []).append(rank)
    labels = sorted(holders)
    replicated = all(len(ranks) == communicator.size for ranks in holders.values())
    topology = make_topology(solver.graph, labels, seed) if solver.distributed else None
    if communicator.size == 1:
        ranks = np.zeros(len(labels), dtype=np.intp)
    elif replicated and topology is not None:
        # One process decides, so that nothing hangs on what each of them has installed.
        decided = communicator.allgather(place_agents(topology, communicator.size).tolist())[0]
        ranks = np.array(decided, dtype=np.intp)
    else:
        twice = next((label for label in labels if len(holders[label]) > 1), None)
        if twice is not None:
            first, second = holders[twice][:2]
            raise ElmeshError(
                f"Task {twice!r} is on ranks {first} and {second}; give each rank the rows of its own tasks, or all "
                "ranks all rows."
            )
        ranks = np.array([holders[label][0] for label in labels], dtype=np.intp)
        if len(set(ranks.tolist())) < communicator.size:
            idle = min(set(range(communicator.size)) - set(ranks.tolist()))
            raise ElmeshError(f"Rank {idle} has no tasks; each rank needs one of its own at least.")
    mine = [label for label, rank in zip(labels, ranks.tolist(), strict=True) if rank == communicator.rank]
    return Processes(communicator, labels, mine, topology, ranks)


def check_alike(communicator: Communicator, fields: Mapping[str, Any]) -> None:
    """Raise, in all processes alike, if one of them differs in a field; the message says which rank and in what.

    Parameters
    ----------
    together : Together
        The processes.
    fields : mapping
        What must be the same everywhere, by name, in plain JSON.

    Examples
    --------
    >>> check_alike(ALONE, {"seed": 0})
    """
    text = json.dumps(fields, sort_keys=True)
    digests = communicator.allgather(hashlib.sha256(text.encode()).hexdigest())
    if len(set(digests)) == 1:
        return
    everybody: list[dict[str, Any]] = communicator.allgather(json.loads(text))
    usual = max(digests, key=digests.count)
    rank = next(rank for rank, digest in enumerate(digests) if digest != usual)
    other = digests.index(usual)
    name = next(name for name in everybody[other] if everybody[rank].get(name) != everybody[other][name])
    raise ElmeshError(
        f"Rank {rank} differs from rank {other} in {name}: {_short(everybody[rank].get(name))} there, "
        f"{_short(everybody[other][name])} here; start all ranks with the same data columns, parameters and version."
    )


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."
