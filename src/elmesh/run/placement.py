"""Placement of agents on processes: even, and neighbours together."""

from __future__ import annotations

import importlib.util
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elmesh.comm.graph import Topology
from elmesh.errors import ElmeshError
from elmesh.text import count

__all__ = ["check_ranks", "cut_edges", "place_agents"]

Ranks = NDArray[np.intp]

# Most agents per process, as a multiple of an even share.
_UNEVEN = 1.15


def place_agents(topology: Topology, n_ranks: int) -> Ranks:
    """Return the rank of each agent; each of ``n_ranks`` processes gets at least one agent.

    Agents in their order, cut into equal runs, are best for rings, paths and stars. Other graphs are partitioned by
    METIS where it is installed, and the cut that has fewer edges between ranks is taken.

    Examples
    --------
    >>> from elmesh.comm.graph import make_topology
    >>> place_agents(make_topology("ring", range(5)), 2)
    array([0, 0, 0, 1, 1])
    """
    m = topology.n_agents
    check_ranks(n_ranks, m)
    runs = np.repeat(np.arange(n_ranks), [len(part) for part in np.array_split(np.arange(m), n_ranks)])
    if n_ranks in (1, m):
        return runs
    parts = _partition(topology, n_ranks)
    return runs if parts is None or cut_edges(topology, parts) >= cut_edges(topology, runs) else parts


def check_ranks(n_ranks: int, n_tasks: int) -> None:
    """Raise unless there is a task for each rank."""
    if n_ranks < 1:
        raise ElmeshError(f"There must be at least one rank; got {n_ranks}.")
    if n_ranks > n_tasks:
        raise ElmeshError(
            f"There are {count(n_ranks, 'rank')} for {count(n_tasks, 'task')}; each rank needs at least one task, "
            f"so use at most {n_tasks}."
        )


def cut_edges(topology: Topology, ranks: Ranks) -> int:
    """Return the number of edges between agents of different ranks."""
    i, j = topology.edges.T
    return int(np.sum(ranks[i] != ranks[j]))


def _partition(topology: Topology, n_ranks: int) -> Ranks | None:
    """Partition the graph by METIS; None if METIS is not installed or the partition is uneven."""
    if importlib.util.find_spec("pymetis") is None:
        return None
    import pymetis  # noqa: PLC0415  (only where it is installed, with the extra "mpi")

    neighbors: Any = [topology.neighbors(agent).tolist() for agent in range(topology.n_agents)]
    ranks = np.asarray(pymetis.part_graph(n_ranks, adjacency=neighbors)[1], dtype=np.intp)
    sizes = np.bincount(ranks, minlength=n_ranks)
    if sizes.min() == 0 or sizes.max() > max(_UNEVEN * topology.n_agents / n_ranks, -(-topology.n_agents // n_ranks)):
        return None
    # Ranks in the order of their first agents, so that they do not depend on METIS's numbering.
    order = np.argsort([int(np.argmax(ranks == rank)) for rank in range(n_ranks)])
    return np.asarray(np.argsort(order)[ranks], dtype=np.intp)
