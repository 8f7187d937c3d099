"""The contract of a transport: how requests of agents are answered, and how a run's metrics are collected.

There are three transports: :mod:`elmesh.comm.local` (one process), :mod:`elmesh.comm.mpi` and
:mod:`elmesh.comm.network`. All of them produce the same numbers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from elmesh.comm.allreduce import ROOT, Relay, TreeAllReduce
from elmesh.comm.graph import Topology
from elmesh.comm.requests import (
    AllReduce,
    AllReduceResult,
    HubReduce,
    IntegerSum,
    NeighborMessages,
    NeighborSum,
    Request,
)
from elmesh.comm.traffic import TrafficLog
from elmesh.typing import FloatArray, IndexArray, IntArray

__all__ = ["CommState", "LocalMetrics", "PendingMetrics", "RoundMetrics", "Transport"]


@dataclass(frozen=True, eq=False)
class LocalMetrics:
    """What the n agents of this process contribute to a round's metrics."""

    round: int  # rounds done
    values: FloatArray  # (n, 5): objective, squared residuals in U and in A, and what these are compared with
    U: FloatArray | None  # (n, L, r), where each agent has a basis of its own; None if they share one


@dataclass(frozen=True)
class RoundMetrics:
    """Metrics of one round over all agents."""

    objective: float
    residual: tuple[float, float]  # squared, in U and in A
    scale: tuple[float, float]  # what they are compared with
    distance: float  # root mean square distance of the agents' U from their mean
    size: float  # the norm of the mean
    bytes: int  # sent so far
    halt: bool = False  # whether another process asks to stop

    @classmethod
    def from_sums(cls, sums: FloatArray, distance: float, size: float, sent: int, halt: bool) -> RoundMetrics:
        """Return metrics from the sums of :attr:`LocalMetrics.values` over all agents."""
        objective, U_residual, A_residual, U_scale, A_scale = sums.tolist()
        return cls(objective, (U_residual, A_residual), (U_scale, A_scale), distance, size, sent, halt)


#: Metrics that are being collected. A step completes the pending collective and starts the next; it gives None, and the
#: metrics, as often as they are asked for, once they are complete.
PendingMetrics = Iterator[RoundMetrics | None]


@dataclass(frozen=True, eq=False)
class CommState:
    """What a transport resumes from: per agent, and common to all."""

    own: dict[int, dict[str, FloatArray]] = field(default_factory=dict)
    common: dict[str, FloatArray] = field(default_factory=dict)


class Transport(ABC):
    """How the agents of this process reach the others. All processes call every method in the same order.

    Sums go along the spanning tree of ``topology``, the graph of all agents, with ``message_bits`` per number.
    ``agents`` are those of this process, in increasing order.
    """

    #: Whether metrics are of all agents, and so the same in every process.
    global_metrics: ClassVar[bool] = True

    def __init__(self, topology: Topology, agents: Sequence[int], message_bits: int | str, relay: Relay) -> None:
        self._topology = topology
        self.agents: IndexArray = np.asarray(agents, dtype=np.intp)
        self._log = TrafficLog(topology)
        self._tree = TreeAllReduce(topology, self.agents.tolist(), message_bits, self._log, relay)
        #: Rounds of messages so far.
        self.n_exchanges = 0

    @property
    def single_process(self) -> bool:
        """Whether all agents are in this process."""
        return len(self.agents) == self._topology.n_agents

    @property
    def remote_senders(self) -> list[int]:
        """Agents of other processes whose channels end in this one."""
        return self._tree.remote_senders

    @abstractmethod
    def neighbor_sum(self, request: NeighborSum) -> FloatArray | NeighborMessages:
        """Send a value to the neighbours; return their sum, or each neighbour's value."""

    @abstractmethod
    def reduce_at_hub(self, request: HubReduce) -> FloatArray:
        """Send a value to the hub and return its result."""

    @abstractmethod
    def start_metrics(self, local: LocalMetrics, halt: bool) -> PendingMetrics:
        """Start to collect a round's metrics; ``halt`` asks all processes to stop."""

    def allreduce(self, request: AllReduce) -> AllReduceResult:
        """Return the sum over all agents."""
        self.n_exchanges += self._topology.tree.rounds
        return self._tree.sum(request)

    def integer_sum(self, request: IntegerSum) -> IntArray:
        """Return the sum of integers over all agents."""
        self._count_integer_sum(request)
        return self._tree.integer_sum(request.value)

    def _count_integer_sum(self, request: IntegerSum) -> None:
        """Record the messages of the agents here along the tree."""
        if self._topology.n_agents > 1:
            self.n_exchanges += self._topology.tree.rounds
        self._tree.record(request.value.nbytes)

    def max_request_bytes(self, request: Request) -> int:
        """Return an upper bound on what a request sends, over all agents."""
        if isinstance(request, AllReduce | IntegerSum):
            return self._tree.max_bytes(request)
        size = request.value[0].nbytes
        copies = self._topology.n_agents if isinstance(request, HubReduce) else len(self._topology.edges)
        return int(2 * copies * size)

    def traffic(self) -> TrafficLog:
        """Return the traffic along every edge so far."""
        return self._log

    def state(self) -> CommState:
        """Return what to resume from."""
        channels = self._tree.channels.state_dict()
        common = {"exchanges": np.array(float(self.n_exchanges)), **channels.pop(ROOT, {})}
        own = self._log.state_dict(self.agents)
        return CommState({t: {**own.get(t, {}), **channels.get(t, {})} for t in {*own, *channels}}, common)

    def restore(self, state: CommState) -> None:
        """Resume from a state."""
        self.n_exchanges = int(state.common["exchanges"])
        self._log.load_state_dict({t: state.own[t] for t in self.agents.tolist()})
        self._tree.channels.load_state_dict({ROOT: state.common, **state.own})
