r"""A cost model of a round of agents on processes: counts of work, messages and bytes times a few fitted constants.

.. math::
    T_{\text{round}} = T_{\text{work}} + k\,T_{\text{exchange}} + T_{\text{figures}}

Work is counted in rounds of the interpreter, agents, multiplications and numbers that elementwise steps read or write.
Messages are counted where there are most: one after another along the longest path, or all that one core handles.
Where x processes share a core, each of them waits for its turn, and the core does the work of all.

The constants are those of one machine, in which every message goes through memory. Between nodes a message also takes
the wire's latency, and messages that leave or enter a node at the same time share its bandwidth.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from scipy.optimize import nnls

from elmesh.comm.graph import Topology, make_topology
from elmesh.run.placement import place_agents

# Open MPI sums smaller values as a whole, to a root and back, and larger ones in pieces, one per process.
WHOLE = 65_536
# Bytes of metrics per agent, and per process.
AGENT_METRICS, PROCESS_METRICS = 48, 16
# Most pairs in the memory of the quasi-Newton method.
PAIRS = 30

#: What each constant multiplies.
COUNTS = {
    "work": ("processes", "agents", "multiplications", "numbers"),
    "neighbours": ("turns", "messages", "bytes", "agents", "agent bytes"),
    "sum": ("turns", "messages", "bytes", "agents", "agent bytes"),
    "figures": ("turns", "messages", "bytes", "agents", "agent bytes"),
}


@dataclass(frozen=True)
class Wire:
    """The network between nodes: seconds per message, and bytes per second in and out of each."""

    latency: float = 0.0
    bandwidth: float = math.inf


@dataclass(frozen=True)
class Problem:
    """The size of one task and of U."""

    hidden: int
    rank: int
    rows: int
    outputs: int

    @property
    def block(self) -> int:
        """Bytes of one U."""
        return 8 * self.hidden * self.rank

    def work(self, way: str, requests: float = 1.0, pairs: float = PAIRS) -> tuple[np.ndarray, np.ndarray]:
        """Return multiplications and numbers read or written: per agent, and per process."""
        L, r, q, d = self.hidden, self.rank, min(self.rows, self.hidden), self.outputs
        if way == "admm":
            return np.array([2 * L * q * r + 3 * q * r * r + 4 * q * r * d, 16 * L * r]), np.zeros(2)
        evaluation = np.array([2 * L * q * r + q * r * r + 3 * q * r * d, L * r])
        return requests * evaluation, np.array([2 * L * r * r, (4 * pairs + 12) * L * r])


@dataclass(frozen=True, eq=False)
class Layout:
    """Agents on processes, and processes on nodes, evenly and in their order.

    Parameters
    ----------
    topology : Topology
        All agents.
    processes : int
        Number of processes.
    cores : int
        Cores per node.
    nodes : int
        Number of nodes.
    """

    topology: Topology
    processes: int
    cores: int
    nodes: int = 1

    @classmethod
    def of(cls, graph: str, agents: int, processes: int, cores: int, nodes: int = 1) -> Layout:
        return cls(make_topology(graph, range(agents)), processes, cores, nodes)

    @cached_property
    def ranks(self) -> np.ndarray:
        """The process of each agent."""
        return place_agents(self.topology, self.processes)

    @property
    def node(self) -> np.ndarray:
        """The node of each process."""
        return np.arange(self.processes) * self.nodes // self.processes

    @property
    def on_node(self) -> int:
        return -(-self.processes // self.nodes)

    @property
    def share(self) -> float:
        """Processes per core, at least one."""
        return max(1.0, self.on_node / self.cores)

    @property
    def agents(self) -> int:
        """Most agents of a process."""
        return int(np.bincount(self.ranks).max())

    @property
    def levels(self) -> int:
        """Levels of a binary tree over all processes."""
        return math.ceil(math.log2(self.processes))

    @property
    def node_levels(self) -> int:
        """Levels of it between nodes."""
        return math.ceil(math.log2(self.nodes))

    @cached_property
    def traffic(self) -> tuple[float, float, int]:
        """Messages and values that a core handles in an exchange, and most values in or out of a node."""
        receiver, sender = self.topology.ends
        # A value goes to a process once, for all its receivers there.
        sent = np.unique(np.stack([sender, self.ranks[receiver]], axis=1), axis=0)
        source, target = self.ranks[sent[:, 0]], sent[:, 1]
        far = source != target
        source, target = source[far], target[far]
        pairs = np.unique(np.stack([source, target], axis=1), axis=0)
        messages = max((np.bincount(end, minlength=1).max(initial=0) for end in pairs.T), default=0)
        values = max(np.bincount(end, minlength=1).max(initial=0) for end in (source, target))
        cores = self.nodes * min(self.cores, self.on_node)
        ends = self.node[source], self.node[target]
        across = ends[0] != ends[1]
        wire = max(int(np.bincount(end[across], minlength=1).max(initial=0)) for end in ends)
        return max(float(messages), len(pairs) / cores), max(float(values), len(source) / cores), wire

    @property
    def depth(self) -> int:
        """Most processes, one after another, that a partial sum passes."""
        tree, depth = self.topology.tree, np.zeros(self.topology.n_agents, int)
        for agent in tree.order[1:].tolist():
            parent = tree.parent[agent]
            depth[agent] = depth[parent] + (self.ranks[parent] != self.ranks[agent])
        return int(depth.max())

    def climb(self, hop: float, wire: float) -> float:
        """Return when the root of the tree has the sum, if it takes ``hop`` to receive a message."""
        tree, ready = self.topology.tree, np.zeros(self.topology.n_agents)
        process, node = self.ranks, self.node[self.ranks]
        for agent in tree.order[:0:-1].tolist():
            parent = int(tree.parent[agent])
            far = process[agent] != process[parent]
            come = ready[agent] + (wire if node[agent] != node[parent] else 0.0)
            ready[parent] = max(ready[parent], come) + hop * far
        return float(ready[tree.order[0]])


def counts(kind: str, layout: Layout, size: int) -> np.ndarray:
    """Return what the constants of one kind of communication multiply, for values of ``size`` bytes.

    ``size`` 0 is for metrics of agents that share one U, which need no mean.
    """
    x, agents = layout.share, layout.agents * layout.share
    if kind == "neighbours":
        messages, values, _ = layout.traffic
        return np.array([x, messages, values * size, agents, agents * size])
    if kind == "sum":
        messages = layout.climb(1.0, 0.0) + layout.levels
        return np.array([(layout.depth + layout.levels) * x, messages, messages * size, agents, agents * size])
    steps = 2 * layout.levels if size else 0
    passed = size * (steps if _whole(layout, size) else 2)
    others = layout.processes - 1
    return np.array([(1 + steps) * x, (others + steps) * x, passed * x, agents, agents * size])


def on_wire(kind: str, layout: Layout, size: int, wire: Wire, hop: float = 0.0) -> float:
    """Return the additional seconds between nodes; ``hop`` is the time to receive a message within a node."""
    if layout.nodes == 1:
        return 0.0
    one = wire.latency + size / wire.bandwidth
    if kind == "neighbours":
        return wire.latency + layout.traffic[2] * size / wire.bandwidth
    if kind == "sum":
        return layout.climb(hop, one) - layout.climb(hop, 0.0) + layout.node_levels * one
    gathered = layout.on_node * (layout.processes - layout.on_node) * (AGENT_METRICS * layout.agents + PROCESS_METRICS)
    seconds = wire.latency + gathered / wire.bandwidth
    if size:
        steps = 2 * layout.node_levels
        passed = layout.on_node * size * (steps if _whole(layout, size) else 2)
        seconds += steps * wire.latency + passed / wire.bandwidth
    return seconds


def _whole(layout: Layout, size: int) -> bool:
    return size < WHOLE or layout.processes < 4


def work_counts(way: str, problem: Problem, layout: Layout, requests: float, pairs: float) -> np.ndarray:
    """Return what the constants of work multiply."""
    each, once = problem.work(way, requests, pairs)
    return layout.share * np.array([1.0, layout.agents, *(layout.agents * each + once)])


def fit(rows: Sequence[np.ndarray], seconds: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
    """Return the non-negative constants with the least squares of relative errors, and these errors.

    Examples
    --------
    >>> constants, errors = fit([np.array([1.0, 10.0]), np.array([1.0, 1000.0])], [2.0, 101.0])
    >>> constants.round(6).tolist(), bool(abs(errors).max() < 1e-9)
    ([1.0, 0.1], True)
    """
    times = np.asarray(seconds, dtype=np.float64)
    relative = np.stack(rows) / times[:, None]
    # Counts go from one to billions: columns of equal norm are solved more accurately.
    scale = np.linalg.norm(relative, axis=0)
    scale[scale == 0] = 1.0
    constants = nnls(relative / scale, np.ones(len(times)))[0] / scale
    return constants, relative @ constants - 1


@dataclass(frozen=True)
class Model:
    """Constants by kind: seconds per unit of what they multiply."""

    constants: dict[str, np.ndarray]
    errors: dict[str, np.ndarray] = field(default_factory=dict)

    @classmethod
    def fitted(cls, rows: dict[str, list[tuple[np.ndarray, float]]]) -> Model:
        """Fit each kind's constants to its measurements: counts, and seconds."""
        found = {kind: fit([row for row, _ in pairs], [t for _, t in pairs]) for kind, pairs in rows.items()}
        return cls({kind: c for kind, (c, _) in found.items()}, {kind: e for kind, (_, e) in found.items()})

    def communication(self, kind: str, layout: Layout, size: int, wire: Wire | None = None) -> float:
        """Return the seconds of one exchange, of one sum, or of the metrics of a round."""
        constants = self.constants[kind]
        hop = float(constants[1] + constants[2] * size)
        return float(constants @ counts(kind, layout, size)) + on_wire(kind, layout, size, wire or Wire(), hop)

    def round(
        self,
        way: str,
        problem: Problem,
        layout: Layout,
        wire: Wire | None = None,
        *,
        requests: float = 1.0,
        pairs: float = PAIRS,
    ) -> dict[str, float]:
        """Return the seconds of a round and of its parts; ``requests`` is the number of sums per step."""
        admm = way == "admm"
        parts = {
            "computation": float(self.constants["work"] @ work_counts(way, problem, layout, requests, pairs)),
            "exchange": requests * self.communication("neighbours" if admm else "sum", layout, problem.block, wire),
            "figures": self.communication("figures", layout, problem.block if admm else 0, wire),
        }
        return {"full": sum(parts.values()), **parts}

    def described(self) -> dict[str, Any]:
        """Return constants by name and the errors of the fit, for a file."""
        spread: Callable[[np.ndarray], dict[str, float]] = lambda e: {  # noqa: E731
            "median": float(np.median(np.abs(e))),
            "worst": float(np.max(np.abs(e))),
            "measurements": len(e),
        }
        return {
            "seconds for one": {
                kind: dict(zip(COUNTS[kind], c.tolist(), strict=True)) for kind, c in self.constants.items()
            },
            "relative errors": {kind: spread(e) for kind, e in self.errors.items()},
        }
