"""The transport of one process: all agents in one array; the neighbour sum is a product with the adjacency matrix.

The communication is simulated, and its traffic is recorded as it would be sent.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from elmesh.comm.allreduce import GOSSIP_PRECISION, ROOT, TreeAllReduce, TrustedRelay, uses_gossip
from elmesh.comm.graph import Topology
from elmesh.comm.requests import AllReduce, AllReduceResult, HubReduce, NeighborMessages, NeighborSum, Request
from elmesh.comm.traffic import TrafficLog
from elmesh.comm.transport import CommState, KnownMetrics, LocalMetrics, RoundMetrics, consensus_distance
from elmesh.errors import ElmeshError
from elmesh.typing import FloatArray

__all__ = ["LocalTransport", "check_hub", "trimmed_widths"]

# Up to this many agents a dense adjacency matrix is faster than a sparse one.
_DENSE = 64


class LocalTransport:
    """All agents of a graph in this process.

    Parameters
    ----------
    topology : Topology
        The graph.
    message_bits : int or "auto"
        Bits per number of sums over all agents.
    """

    single_process: ClassVar[bool] = True
    global_metrics: ClassVar[bool] = True

    def __init__(self, topology: Topology, message_bits: int | str = 64) -> None:
        self._topology = topology
        dense = topology.n_agents <= _DENSE
        self._adjacency = topology.adjacency.toarray() if dense else topology.adjacency
        self._traffic = TrafficLog(topology)
        self._tree = TreeAllReduce(topology, range(topology.n_agents), message_bits, self._traffic, TrustedRelay())
        self._exact = message_bits == 64
        self._gossip = topology.averaging_roots(GOSSIP_PRECISION) if uses_gossip(topology, message_bits) else None
        self.n_exchanges = 0

    def neighbor_sum(self, request: NeighborSum) -> FloatArray | NeighborMessages:
        """Return the neighbours' sum, or each neighbour's value."""
        value, m = request.value, self._topology.n_agents
        self.n_exchanges += 1
        self._traffic.record_all(value.nbytes // m)
        if request.each:
            receiver, sender = self._topology.ends
            return NeighborMessages(value[sender], receiver)
        return np.asarray(self._adjacency @ value.reshape(m, -1), dtype=np.float64).reshape(value.shape)

    def reduce_at_hub(self, request: HubReduce) -> FloatArray:
        """Return the hub's result; agent 0 sends itself no message."""
        check_hub(self._topology)
        value, m = request.value, self._topology.n_agents
        result = request.function(value)
        if m > 1:
            self.n_exchanges += 2  # to the hub and back
        sizes = trimmed_widths(value[1:m]) * value.shape[1] * value.itemsize
        for agent, size in enumerate(sizes.tolist(), start=1):
            self._traffic.record(agent, 0, size)
            self._traffic.record(0, agent, result.nbytes)
        return result

    def allreduce(self, request: AllReduce) -> AllReduceResult:
        """Return the sum over all agents, or over all tasks where one agent has all of them."""
        topology = self._topology
        if topology.n_agents > 1:
            self.n_exchanges += self._tree.rounds if self._gossip is None else self._gossip_rounds
            if not self._exact:
                return replace(self._tree.sum(request), exact=request.exact.sum(axis=0))
            self._record_exact(request)
        n = math.prod(request.value.shape[:-2])
        value = request.value.reshape(n, *request.value.shape[-2:]).sum(axis=0)
        exact = request.exact.reshape(n, request.exact.shape[-1]).sum(axis=0)
        return AllReduceResult(value, exact, request.average, request.broadcast)

    @property
    def _gossip_rounds(self) -> int:
        return max(len(self._gossip or ()), self._topology.diameter)

    def _record_exact(self, request: AllReduce) -> None:
        """Record an unquantised sum, by gossip or along the tree."""
        (rows, columns), k = request.value.shape[-2:], request.exact.shape[-1]
        tree = self._topology.tree
        edges = [(agent, int(tree.parent[agent])) for agent in tree.order[1:].tolist()]
        if self._gossip is None:
            for child, parent in edges:
                self._traffic.record(child, parent, 8 * (rows * columns + k))
                self._traffic.record(parent, child, 8 * (rows * columns + k))
            return
        mixed = rows * columns + (0 if request.average is None else request.average.size)
        self._traffic.record_all(8 * mixed, times=len(self._gossip))
        # The exact numbers are not mixed but forwarded, each agent's to all others, so that all sum the same ones.
        self._traffic.record_extra(8 * k * self._topology.relays)
        if request.broadcast is not None:
            for child, parent in edges:
                self._traffic.record(parent, child, request.broadcast.nbytes, messages=0)

    def max_request_bytes(self, request: Request) -> int:
        """Return an upper bound on what a request sends, over all agents."""
        topology = self._topology
        if not isinstance(request, AllReduce):
            size, m = request.value.nbytes, topology.n_agents
            return 2 * size if isinstance(request, HubReduce) else size // m * 2 * len(topology.edges)
        if topology.n_agents == 1:
            return 0
        if self._gossip is None:
            return self._tree.max_bytes(request)
        rows, columns = request.value.shape[-2:]
        numbers = rows * columns + (0 if request.average is None else request.average.size)
        mixed = 8 * 2 * len(topology.edges) * len(self._gossip) * numbers
        forwarded = 8 * request.exact.shape[-1] * int(topology.relays.sum())
        broadcast = 0 if request.broadcast is None else request.broadcast.nbytes * (topology.n_agents - 1)
        return int(mixed + forwarded + broadcast)

    def start_metrics(self, local: LocalMetrics, halt: bool) -> KnownMetrics:
        """Return a round's metrics, which need no communication."""
        distance, size = consensus_distance(local.U)
        sums = local.values.sum(axis=0)
        return KnownMetrics(RoundMetrics.from_sums(sums, distance, size, self._traffic.total, halt))

    def traffic(self) -> TrafficLog:
        """Return the traffic along every edge so far."""
        return self._traffic

    def state(self) -> CommState:
        """Return what to resume from."""
        channels = self._tree.state_dict()
        common = {"exchanges": np.array(float(self.n_exchanges)), **self._traffic.state_dict()}
        return CommState({k: x for k, x in channels.items() if k != ROOT}, {**common, **channels.get(ROOT, {})})

    def restore(self, state: CommState) -> None:
        """Resume from a state."""
        self.n_exchanges = int(state.common["exchanges"])
        self._traffic.load_state_dict(state.common)
        self._tree.load_state_dict({ROOT: state.common, **state.own})


def check_hub(topology: Topology) -> None:
    """Raise unless the first agent is every other agent's neighbour."""
    if topology.degree[0] != topology.n_agents - 1:
        raise ElmeshError("The graph has no hub: its first agent must be everybody's neighbour, as in a star.")


def trimmed_widths(values: FloatArray) -> NDArray[np.int64]:
    """Return the number of columns of each matrix without its trailing zero columns."""
    columns = values.shape[-1]
    return np.asarray(np.max(values.any(axis=1) * np.arange(1, columns + 1), axis=1, initial=0), dtype=np.int64)
