"""The transport of one process: all agents in one array; the neighbour sum is a product with the adjacency matrix.

The communication is simulated, and its traffic is recorded as it would be sent.
"""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import repeat

import numpy as np
from numpy.typing import NDArray

from elmesh.comm.allreduce import GOSSIP_PRECISION, ROOT, Relay, uses_gossip
from elmesh.comm.graph import Topology
from elmesh.comm.requests import AllReduce, AllReduceResult, HubReduce, NeighborMessages, NeighborSum, Request
from elmesh.comm.traffic import TrafficLog
from elmesh.comm.transport import LocalMetrics, Noise, PendingMetrics, RoundMetrics, Transport
from elmesh.errors import ElmeshError
from elmesh.typing import FloatArray

__all__ = ["LocalTransport", "check_hub", "trimmed_widths"]

# Up to this many agents a dense adjacency matrix is faster than a sparse one.
_DENSE = 64


class LocalTransport(Transport):
    """All agents of a graph in this process.

    If sums are ``masked``, they are of integers and their traffic is that of masked messages and of keys. Masks have no
    effect on totals, and are not computed.
    """

    def __init__(
        self, topology: Topology, message_bits: int | str = 64, masked: bool = False, noise: Noise | None = None
    ) -> None:
        super().__init__(topology, range(topology.n_agents), message_bits, Relay(), masked, noise)
        if masked:
            self._count_keys()
        dense = topology.n_agents <= _DENSE
        self._adjacency = topology.adjacency.toarray() if dense else topology.adjacency
        self._exact = message_bits == 64
        self._gossip = topology.averaging_roots(GOSSIP_PRECISION) if uses_gossip(topology, message_bits) else None

    def neighbor_sum(self, request: NeighborSum) -> FloatArray | NeighborMessages:
        """Return the neighbours' sum, or each neighbour's value."""
        value, m = request.value, self._topology.n_agents
        self.n_exchanges += 1
        if not self._exact:
            _, sent = self._encode(request.topic, value)
            receiver, sender = self._topology.ends
            messages = NeighborMessages.decoded(value, sent, sent[sender], receiver)
            return messages if request.each else messages.sum(messages.values, value)
        self._log.record_all(value.nbytes // m)
        if request.each:
            receiver, sender = self._topology.ends
            return NeighborMessages(value[sender], receiver)
        return np.asarray(self._adjacency @ value.reshape(m, -1), dtype=np.float64).reshape(value.shape)

    def reduce_at_hub(self, request: HubReduce) -> FloatArray:
        """Return the hub's result; agent 0 sends itself no message."""
        check_hub(self._topology)
        value, m, channels = request.value, self._topology.n_agents, self._tree.channels
        sizes = trimmed_widths(value[1:m]) * value.shape[1] * value.itemsize
        if m > 1:
            self.n_exchanges += 2  # to the hub and back
        if self._exact or m == 1:
            result = request.function(value)
            back = result.nbytes
        else:
            value, received = value.copy(), value
            for agent, width in enumerate(trimmed_widths(value[1:m]).tolist(), start=1):
                message, decoded = channels.send(request.topic, received[agent][:, :width], agent)
                value[agent, :, :width], sizes[agent - 1] = decoded, len(message)
            result = request.function(value)
            message, decoded = channels.send(request.topic, result.reshape(len(result), -1), ROOT)
            result, back = decoded.reshape(result.shape), len(message)
        for agent, size in enumerate(sizes.tolist(), start=1):
            self._log.record(agent, 0, size)
            self._log.record(0, agent, back)
        return result

    def allreduce(self, request: AllReduce) -> AllReduceResult:
        """Return the sum over all agents, or over all tasks where one agent has all of them."""
        if self.masked:
            return super().allreduce(request)
        topology = self._topology
        if topology.n_agents > 1:
            self.n_exchanges += topology.tree.rounds if self._gossip is None else self._gossip_rounds
            if not self._exact:
                return replace(self._tree.sum(request), exact=request.exact.sum(axis=0))
            self._record_exact(request, self._log)
        n = math.prod(request.value.shape[:-2])
        value = request.value.reshape(n, *request.value.shape[-2:]).sum(axis=0)
        exact = request.exact.reshape(n, request.exact.shape[-1]).sum(axis=0)
        return AllReduceResult(value, exact, request.average, request.broadcast)

    @property
    def _gossip_rounds(self) -> int:
        return max(len(self._gossip or ()), self._topology.diameter)

    def _record_exact(self, request: AllReduce, log: TrafficLog) -> None:
        """Record an unquantised sum, by gossip or along the tree."""
        (rows, columns), k = request.value.shape[-2:], request.exact.shape[-1]
        tree = self._topology.tree
        edges = [(agent, int(tree.parent[agent])) for agent in tree.order[1:].tolist()]
        if self._gossip is None:
            for child, parent in edges:
                log.record(child, parent, 8 * (rows * columns + k))
                log.record(parent, child, 8 * (rows * columns + k))
            return
        mixed = rows * columns + (0 if request.average is None else request.average.size)
        log.record_all(8 * mixed, times=len(self._gossip))
        # The exact numbers are not mixed but forwarded, each agent's to all others, so that all sum the same ones.
        log.record_extra(8 * k * self._topology.relays)
        if request.broadcast is not None:
            for child, parent in edges:
                log.record(parent, child, request.broadcast.nbytes, messages=0)

    def max_request_bytes(self, request: Request) -> int:
        """Return an upper bound on what a request sends, over all agents."""
        if self._topology.n_agents == 1:
            return 0
        if self.masked or self._gossip is None or not isinstance(request, AllReduce):
            return super().max_request_bytes(request)
        log = TrafficLog(self._topology)
        self._record_exact(request, log)
        return log.total

    def start_metrics(self, local: LocalMetrics, halt: bool) -> PendingMetrics:
        """Return a round's metrics, which need no communication."""
        distance, size, sums = 0.0, 1.0, local.complete(local.values.sum(axis=0))
        if local.U is not None:
            m, U = self._topology.n_agents, local.U.reshape(len(local.U), -1)
            mean = np.full(m, 1.0 / m) @ U
            apart = U - mean
            distance, size = float(np.sqrt(np.vdot(apart, apart) / m)), float(np.sqrt(np.vdot(mean, mean)))
        return repeat(RoundMetrics.from_sums(sums, distance, size, self._log.total, halt))


def check_hub(topology: Topology) -> None:
    """Raise unless the first agent is every other agent's neighbour."""
    if topology.degree[0] != topology.n_agents - 1:
        raise ElmeshError("The graph has no hub: its first agent must be a neighbour of all others, as in a star.")


def trimmed_widths(values: FloatArray) -> NDArray[np.int64]:
    """Return the number of columns of each matrix without its trailing zero columns."""
    columns = values.shape[-1]
    return np.asarray(np.max(values.any(axis=1) * np.arange(1, columns + 1), axis=1, initial=0), dtype=np.int64)
