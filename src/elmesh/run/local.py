"""The embedded runtime: one process, all agents in one array, the neighbour sum one product with the adjacency."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elmesh.comm.allreduce import StackedSums
from elmesh.comm.communicator import SERIAL
from elmesh.comm.graph import Topology
from elmesh.comm.requests import Heard, Hub, Kept, Neighbours, Place, Program, Report, State, Sum, Total
from elmesh.comm.traffic import Ledger
from elmesh.data.statistics import Task
from elmesh.errors import ElmeshError
from elmesh.math.blas import calm_blas
from elmesh.run.base import Figures, Mark, Result
from elmesh.run.batches import blocks_of, lockstep
from elmesh.run.checkpoints import Checkpoints, Crew, chosen
from elmesh.run.driver import drive
from elmesh.solvers.base import Solver
from elmesh.typing import FloatArray

__all__ = ["StackedLink", "place_of", "run_stacked"]


# Up to this many agents a dense adjacency is faster than a sparse one.
_DENSE = 64


class StackedLink:
    """All agents of a topology, in one array with a leading agent axis."""

    def __init__(self, topology: Topology, message_bits: int | str = 64) -> None:
        self._topology = topology
        dense = topology.n_agents <= _DENSE
        self._adjacency = topology.adjacency.toarray() if dense else topology.adjacency
        self.ledger = Ledger(topology)
        self._sums = StackedSums(topology, message_bits, self.ledger)
        self.n_exchanges = 0

    @property
    def bytes_sent(self) -> int:
        """Bytes sent so far, over all agents."""
        return self.ledger.total

    @property
    def alone(self) -> bool:
        """Whether there is no other process: there is none."""
        return True

    def books(self) -> Ledger:
        """Return the bytes along every edge so far."""
        return self.ledger

    def mark(self) -> Mark:
        """Return where the link stands."""
        said = {**self.ledger.kept(), **self._sums.kept()}
        return Mark(common={"exchanges": np.array(float(self.n_exchanges)), **said})

    def rewind(self, mark: Mark) -> None:
        """Go back to where the mark was taken."""
        self.n_exchanges = int(mark.common["exchanges"])
        self.ledger.take_up(mark.common)
        self._sums.take_up(mark.common)

    def exchange(self, request: Neighbours) -> FloatArray | Heard:
        """Return the neighbours' sum, or each neighbour's value."""
        value, m = request.value, self._topology.n_agents
        self.n_exchanges += 1
        self.ledger.everywhere(value.nbytes // m)
        if request.each:
            hearer, speaker = self._topology.ends
            return Heard(value[speaker], hearer)
        return np.asarray(self._adjacency @ value.reshape(m, -1), dtype=np.float64).reshape(value.shape)

    def consult(self, request: Hub) -> FloatArray:
        """Return the hub's answer; what agent 0 tells itself is no message."""
        value, m = request.value, self._topology.n_agents
        if self._topology.degree[0] != m - 1:
            raise ElmeshError("The graph has no hub: its first agent must be everybody's neighbour, as in a star.")
        answer = request.function(value)
        if m > 1:
            self.n_exchanges += 2  # up and down
        for agent, size in enumerate(_wire_bytes(value[1:m]).tolist(), start=1):
            self.ledger.along(agent, 0, size)
            self.ledger.along(0, agent, answer.nbytes)
        return answer

    def add_up(self, request: Total) -> Sum:
        """Return the sum over all agents."""
        self.n_exchanges += self._sums.rounds
        return self._sums.add_up(request)

    def most_bytes(self, request: Neighbours | Hub | Total) -> int:
        """Return what a request takes at most, over all agents."""
        if isinstance(request, Total):
            return self._sums.most_bytes(request)
        size, m = request.value.nbytes, self._topology.n_agents
        return 2 * size if isinstance(request, Hub) else size // m * 2 * len(self._topology.edges)

    def follow(self, report: Report, halt: bool) -> Known:
        """Return a round's figures, which are all here."""
        own = np.stack([report.objective, *report.residual, *report.scale], axis=-1)
        objective, U_rest, A_rest, U_scale, A_scale = own.sum(axis=0).tolist()
        apart = _consensus(report.state)
        return Known(Figures(objective, (U_rest, A_rest), (U_scale, A_scale), *apart, self.ledger.total, halt))


@dataclass(frozen=True)
class Known:
    """Figures that are there already."""

    figures: Figures

    def advance(self) -> Figures:
        """Return them."""
        return self.figures


def _consensus(state: State) -> tuple[float, float]:
    """Return how far agents are from their mean, and its norm; the distance is zero where they share one U."""
    U = state.U
    if U is None or U.ndim == 2:
        return 0.0, 1.0
    flat = U.reshape(len(U), -1)
    mean = np.full(len(U), 1.0 / len(U)) @ flat
    apart = flat - mean
    return float(np.sqrt(np.vdot(apart, apart) / len(U))), float(np.sqrt(np.vdot(mean, mean)))


def _wire_bytes(values: FloatArray) -> NDArray[np.int64]:
    """Return what each message to the hub takes, cut after its last column that is not zero."""
    _, rows, columns = values.shape
    widths = np.max(values.any(axis=1) * np.arange(1, columns + 1), axis=1, initial=0)
    return np.asarray(widths * rows * values.itemsize, dtype=np.int64)


def place_of(topology: Topology, seed: int, number: int | NDArray[np.intp] | None = None) -> Place:
    """Return what all agents, or some or one of them, know of the network."""
    chosen = np.arange(topology.n_agents) if number is None else np.asarray(number, dtype=np.intp)
    low, high = topology.spread
    return Place(
        topology.n_agents,
        chosen,
        topology.degree.astype(np.float64)[chosen],
        float(np.sqrt(low * high)),
        topology.averaging_roots,
        seed,
    )


def run_stacked(
    solver: Solver,
    task: Task,
    topology: Topology | None,
    seed: int,
    *,
    labels: Sequence[object] | None = None,
    fields: Mapping[str, Any] | None = None,
) -> Result:
    """Run a solver on stacked tasks in this process.

    Parameters
    ----------
    solver : Solver
        What to run.
    task : Task
        All tasks, stacked.
    topology : Topology or None
        Who talks to whom; without it, all tasks are in one place.
    seed : int
        The seed that agents share.
    labels : sequence, optional
        Names of the tasks.
    fields : mapping, optional
        What the run is of, by name, for its checkpoints.

    Returns
    -------
    Result
    """
    rank, m = solver.resolve_rank(task), len(task.s)
    network = topology or Topology(1, np.empty((0, 2), dtype=np.intp))
    parts = blocks_of(task) if solver.own_basis else [np.arange(m)]
    tasks = [task.agents(part[0], part[-1] + 1) for part in parts]
    places = [place_of(network, seed, part if topology else None) for part in parts]
    link = StackedLink(network, solver.message_bits)

    def start(kept: Sequence[Kept | None]) -> Program:
        own = zip(tasks, places, kept, strict=True)
        return lockstep([solver.program(data, place, rank, k) for data, place, k in own], parts)

    checkpoints, saved, wanted = None, None, chosen()
    if wanted is not None:
        degree = topology.degree.tolist() if topology else [0] * m
        crew = Crew(range(m), labels or range(m), [task.agent(t) for t in range(m)], degree, parts)
        checkpoints = Checkpoints(wanted, {**(fields or {}), "runtime": "stacked", "rank": rank}, crew, SERIAL)
        saved = checkpoints.latest()
    if saved is not None:
        link.rewind(saved.link)
    with calm_blas(*task.V.shape[-2:], max(rank, 1)):
        return drive(
            start([None] * len(parts) if saved is None else [saved.of(part) for part in parts]),
            link,
            # A method without a limit takes a round a column of U, or none, and is done.
            max_iter=rank if solver.max_iter is None else solver.max_iter,
            tol=solver.tol,
            start_energy=float(np.sum(task.target_energy)) / 2,
            max_bytes=solver.max_bytes,
            past=None if saved is None else saved.past,
            keep=None if checkpoints is None else checkpoints.keep,
        )
