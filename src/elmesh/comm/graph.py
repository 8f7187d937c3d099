"""The graph of agents: named graphs, graphs of the user, and what agents derive from them.

The graph is public: every agent knows it. What agents derive from it (the spread of the Laplacian's eigenvalues, an
averaging schedule that is exact in finitely many rounds) needs no message.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations, pairwise
from typing import Any

import networkx as nx
import numpy as np
import scipy.linalg
import scipy.sparse as sp
import scipy.sparse.linalg
from numpy.typing import NDArray

from elmesh.errors import ElmeshError
from elmesh.typing import FloatArray

__all__ = ["DENSE_LIMIT", "GRAPH_NAMES", "SpanningTree", "Topology", "make_topology"]

Edges = list[tuple[int, int]]

#: Up to this many agents the whole Laplacian spectrum and all distances are computed; above it, only bounds.
DENSE_LIMIT = 2000


@dataclass(frozen=True, eq=False)
class Topology:
    """A connected, undirected, simple graph over agents ``0 .. n_agents - 1``.

    Parameters
    ----------
    n_agents : int
        Number of agents.
    edges : ndarray of shape (n_edges, 2)
        Each edge once, smaller agent first, sorted.

    Examples
    --------
    >>> ring = make_topology("ring", ["a", "b", "c", "d"])
    >>> ring.degree.tolist(), [round(x, 3) for x in ring.spread]
    ([2, 2, 2, 2], [2.0, 4.0])
    """

    n_agents: int
    edges: NDArray[np.intp]

    @cached_property
    def degree(self) -> NDArray[np.intp]:
        """Number of neighbours of each agent."""
        return np.bincount(self.edges.ravel(), minlength=self.n_agents).astype(np.intp)

    @cached_property
    def ends(self) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Both directions of every edge as (receiver, sender), sorted by receiver and then by sender."""
        i, j = self.edges.T
        receiver, sender = np.concatenate([i, j]), np.concatenate([j, i])
        order = np.lexsort((sender, receiver))
        return receiver[order], sender[order]

    @cached_property
    def adjacency(self) -> sp.csr_array:
        """Sparse 0/1 adjacency matrix."""
        receiver, sender = self.ends
        ones = np.ones(len(receiver))
        return sp.csr_array((ones, (receiver, sender)), shape=(self.n_agents, self.n_agents))

    def neighbors(self, agent: int) -> NDArray[np.intp]:
        """Return the neighbours of one agent, in increasing order."""
        receiver, sender = self.ends
        return sender[np.searchsorted(receiver, agent) : np.searchsorted(receiver, agent, side="right")]

    @cached_property
    def spread(self) -> tuple[float, float]:
        """Smallest non-zero and largest eigenvalue of the graph's Laplacian."""
        if self.n_agents == 1:
            return (1.0, 1.0)
        if self.n_agents <= DENSE_LIMIT:
            return float(self._eigenvalues[0]), float(self._eigenvalues[-1])
        laplacian = self._laplacian().tocsc()
        start = np.cos(np.arange(self.n_agents, dtype=float))  # eigsh is deterministic given a start
        smallest = scipy.sparse.linalg.eigsh(
            laplacian, 2, sigma=-1e-6, which="LM", v0=start, tol=1e-9, return_eigenvectors=False
        )
        # The upper end is crowded and slow to find exactly; its bound by degrees is attained on rings and stars.
        return float(smallest.max()), float(min(2 * self.degree.max(), self.n_agents))

    @cached_property
    def _eigenvalues(self) -> FloatArray:
        return np.asarray(scipy.linalg.eigvalsh(self._laplacian().toarray())[1:], dtype=np.float64)

    def _laplacian(self) -> sp.csr_array:
        return sp.csr_array(sp.diags_array(self.degree.astype(np.float64)) - self.adjacency)

    @cached_property
    def tree(self) -> SpanningTree:
        """A spanning tree of least height, or near it: breadth first from a centre of the graph."""
        if self.n_agents <= DENSE_LIMIT:
            centre = int(np.argmin(self._hops().max(axis=1)))
        else:
            # The middle of a longest path, which two searches from an end find approximately.
            far = int(np.argmax(self._hops(indices=0)))
            there, before = self._hops(indices=far, return_predecessors=True)
            centre = int(np.argmax(there))
            for _ in range(int(there.max()) // 2):
                centre = int(before[centre])
        order, parent = sp.csgraph.breadth_first_order(self.adjacency, centre, directed=False)
        parent[centre] = -1
        height = int(self._hops(indices=centre).max())
        return SpanningTree(parent.astype(np.intp), np.asarray(order, dtype=np.intp), height)

    def _hops(self, **options: Any) -> Any:
        """Return the steps between agents."""
        return sp.csgraph.shortest_path(self.adjacency, unweighted=True, directed=False, **options)

    @cached_property
    def diameter(self) -> int:
        """Most steps between any two agents; for large graphs, a bound by the spanning tree."""
        if self.n_agents > DENSE_LIMIT:
            return 2 * self.tree.height
        return int(self._hops().max())

    @cached_property
    def relays(self) -> NDArray[np.int64]:
        """How many agents' messages pass each of :attr:`ends` if all reach all agents by shortest paths."""
        hops, (receiver, sender) = self._hops(), self.ends
        # Of several neighbours that are nearer to an agent, the first one forwards.
        chosen = np.full(hops.shape, -1)
        for edge in range(len(receiver))[::-1]:
            nearer = hops[:, sender[edge]] < hops[:, receiver[edge]]
            chosen[nearer, receiver[edge]] = edge
        return np.bincount(chosen[chosen >= 0], minlength=len(receiver)).astype(np.int64)

    def averaging_roots(self, precision: float) -> tuple[float, ...]:
        r"""Return numbers :math:`\theta_k` that turn neighbour sums into the average over the whole graph.

        After :math:`x \leftarrow x - (d x - S)/\theta_k` for every k, with S the sum over neighbours, each agent holds
        the average of all initial values up to ``precision`` times how far they were from it (in the norm over all
        agents). The factors vanish at the Laplacian's eigenvalues: at each distinct one, which is exact, or at
        Chebyshev's nodes between the extreme ones, whichever takes fewer rounds.
        """
        if precision not in self._schedules:
            self._schedules[precision] = self._plan(precision)
        return self._schedules[precision]

    @cached_property
    def _schedules(self) -> dict[float, tuple[float, ...]]:
        return {}

    def _plan(self, precision: float) -> tuple[float, ...]:
        if self.n_agents == 1:
            return ()
        low, high = self.spread
        if high - low <= 1e-9 * high:
            return (high,)
        n_rounds = int(np.ceil(np.arccosh(1.0 / precision) / np.arccosh((high + low) / (high - low))))
        nodes = np.cos((2 * np.arange(n_rounds) + 1) * np.pi / (2 * n_rounds))
        roots = (high + low) / 2 + (high - low) / 2 * nodes
        if self.n_agents <= DENSE_LIMIT:
            values = self._eigenvalues
            distinct = values[np.concatenate([[True], np.diff(values) > 1e-9 * high])]
            # Eigenvalues that nearly coincide make the exact product sensitive to rounding, so it is tested first.
            if len(distinct) <= n_rounds and self._error_of(exact := _leja_order(distinct)) <= precision:
                return tuple(exact.tolist())
        return tuple(_leja_order(roots).tolist())

    def _error_of(self, roots: FloatArray) -> float:
        """Return an upper estimate of the share of a deviation from the average that is left in the end."""
        # The root mean square over 64 random probes of unit variance is within a factor of two of the norm.
        n_probes = 64
        bits = np.random.PCG64(0).random_raw(n_probes * self.n_agents).reshape(self.n_agents, n_probes)
        probes = np.sqrt(3.0) * ((bits >> np.uint64(11)) * 2.0**-52 - 1.0)
        x = probes
        with np.errstate(over="ignore", invalid="ignore"):  # an infinite error, or NaN, is a valid result
            for root in roots:
                x = x - (self.degree[:, None] * x - self.adjacency @ x) / root
            return float(1.5 * np.linalg.norm(x - probes.mean(axis=0)) / np.sqrt(n_probes))

    def to_networkx(self, labels: Sequence[Hashable]) -> nx.Graph:
        """Return the graph over the given labels."""
        graph = nx.Graph()
        graph.add_nodes_from(labels)
        graph.add_edges_from((labels[i], labels[j]) for i, j in self.edges)
        return graph


@dataclass(frozen=True, eq=False)
class SpanningTree:
    """A spanning tree of a graph."""

    parent: NDArray[np.intp]  # of each agent; -1 for the root
    order: NDArray[np.intp]  # agents from the root outwards
    height: int  # steps from the farthest agent to the root

    @property
    def rounds(self) -> int:
        """Rounds that a sum takes: to the root and back."""
        return 2 * self.height


def _leja_order(points: FloatArray) -> FloatArray:
    """Order roots so that partial products stay small: without it, rounding errors grow without bound."""
    ordered = np.empty_like(points)
    # Logarithm of the product of distances to the points already taken; a point taken is at distance zero.
    distance = np.log(points)
    with np.errstate(divide="ignore"):
        for k in range(len(points)):
            ordered[k] = points[np.argmax(distance)]
            distance += np.log(np.abs(points - ordered[k]))
    return ordered


def _grid(m: int) -> Edges:
    """Arrange the agents in rows of a near-square; the last row may be short."""
    width = int(np.ceil(np.sqrt(m)))
    right = [(i, i + 1) for i in range(m - 1) if (i + 1) % width]
    return right + [(i, i + width) for i in range(m - width)]


def _random(m: int, seed: int) -> Edges:
    """Draw a random tree, which connects all agents, and about half as many edges again."""
    rng = np.random.Generator(np.random.PCG64(seed))
    tree = [(int(rng.integers(i)), i) for i in range(1, m)]
    extra = [(int(i), int(j)) for i, j in rng.integers(m, size=(m // 2, 2)) if i != j]
    return tree + extra


#: Edges of named graphs from the number of agents and a seed.
_NAMED: dict[str, Callable[[int, int], Edges]] = {
    "ring": lambda m, seed: list(pairwise([*range(m), *([0] if m > 2 else [])])),
    "path": lambda m, seed: list(pairwise(range(m))),
    "star": lambda m, seed: [(0, i) for i in range(1, m)],
    "complete": lambda m, seed: list(combinations(range(m), 2)),
    "random": _random,
    "grid": lambda m, seed: _grid(m),
}
GRAPH_NAMES = tuple(_NAMED)


def make_topology(graph: str | nx.Graph, labels: Sequence[Hashable], seed: int = 0) -> Topology:
    """Build the graph of agents from a name or from a networkx graph.

    Parameters
    ----------
    graph : {"ring", "path", "star", "complete", "random", "grid"} or networkx.Graph
        A networkx graph has the task labels as nodes, or the numbers 0 .. m-1 in the order of the sorted labels.
    labels : sequence
        The task labels, one agent each.
    seed : int
        Seed of the graph called "random".

    Returns
    -------
    Topology

    Raises
    ------
    ElmeshError
        If the graph is unknown, directed, disconnected, has self-loops or other nodes than there are tasks.
    """
    m = len(labels)
    if isinstance(graph, str):
        if graph not in _NAMED:
            raise ElmeshError(
                f"The graph {graph!r} is unknown; use one of {', '.join(GRAPH_NAMES)}, or a networkx graph."
            )
        pairs = _NAMED[graph](m, seed)
    elif isinstance(graph, nx.Graph):
        pairs = _pairs_of(graph, labels)
    else:
        raise ElmeshError(
            f"graph must be a name ({', '.join(GRAPH_NAMES)}) or a networkx.Graph, not {type(graph).__name__}."
        )
    unique = sorted({(min(i, j), max(i, j)) for i, j in pairs})
    topology = Topology(m, np.array(unique, dtype=np.intp).reshape(-1, 2))
    _check_connected(topology, labels)
    return topology


def _pairs_of(graph: nx.Graph, labels: Sequence[Hashable]) -> Edges:
    if graph.is_directed():
        raise ElmeshError(
            "The graph is directed; agents exchange messages in both directions, so pass an undirected networkx.Graph."
        )
    if graph.number_of_nodes() != len(labels):
        raise ElmeshError(
            f"The graph has {graph.number_of_nodes()} nodes but there are {len(labels)} tasks; each task is one node."
        )
    loops = sorted({str(node) for node in nx.nodes_with_selfloops(graph)})
    if loops:
        raise ElmeshError(f"The graph has self-loops at {', '.join(loops)}; remove them.")
    index: dict[Hashable, int] = {label: i for i, label in enumerate(labels)}
    if set(graph.nodes) != set(index):
        if set(graph.nodes) != set(range(len(labels))):
            unknown = sorted(str(node) for node in set(graph.nodes) - set(index))[:5]
            raise ElmeshError(
                f"The graph's nodes are not the tasks: {', '.join(unknown)} are unknown. Name the nodes by the "
                f"task labels, or number them 0 to {len(labels) - 1}."
            )
        index = {i: i for i in range(len(labels))}
    return [(index[i], index[j]) for i, j in graph.edges()]  # called, a multigraph's edges are pairs too


def _check_connected(topology: Topology, labels: Sequence[Hashable]) -> None:
    n_parts, part = sp.csgraph.connected_components(topology.adjacency, directed=False)
    if n_parts == 1:
        return
    names = []
    for k in range(min(n_parts, 5)):
        members = [str(labels[i]) for i in np.flatnonzero(part == k).tolist()]
        names.append("{" + ", ".join(members[:8]) + (", ..." if len(members) > 8 else "") + "}")
    more = f" and {n_parts - 5} more" if n_parts > 5 else ""
    raise ElmeshError(
        f"The graph is not connected: it falls into {n_parts} parts, {', '.join(names)}{more}. Add edges between them."
    )
