"""The contract of a transport: how requests of agents are answered, and how a run's metrics are collected.

There are three transports: :mod:`elmesh.comm.local` (one process), :mod:`elmesh.comm.mpi` and
:mod:`elmesh.comm.network`. All of them produce the same numbers.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from elmesh.comm.allreduce import ROOT, Relay, TreeAllReduce, gathered_bytes
from elmesh.comm.codec import most_bytes
from elmesh.comm.fixed_point import LIMBS
from elmesh.comm.graph import Topology
from elmesh.comm.integer_sums import IntegerAllReduce
from elmesh.comm.requests import (
    AllReduce,
    AllReduceResult,
    HubReduce,
    IntegerSum,
    NeighborMessages,
    NeighborSum,
    NoisySum,
    Request,
    Topic,
)
from elmesh.comm.traffic import TrafficLog
from elmesh.errors import ElmeshError
from elmesh.typing import FloatArray, IndexArray, IntArray

__all__ = [
    "MASKED_BITS",
    "CommState",
    "LocalMetrics",
    "Noise",
    "PendingMetrics",
    "RoundMetrics",
    "Transport",
    "key_bytes",
]

#: Bits per number that masked sums may have, and zero bits at the end of every masked message.
MASKED_BITS, CHECK_BITS = (16, 32, 64), 64
#: Bytes that stand for the keys, the certificate and the run number of one agent where communication is simulated.
KEY_BYTES = 1000


@dataclass(frozen=True, eq=False)
class LocalMetrics:
    """What the n agents of this process contribute to a round's metrics."""

    round: int  # rounds done
    values: FloatArray  # (n, 5): objective, squared residuals in U and in A, and what these are compared with
    U: FloatArray | None  # (n, L, r), where each agent has a basis of its own; None if they share one
    totals: FloatArray | None = None  # (5,): the sums of values over all agents that every agent knows, others NaN

    @property
    def unknown(self) -> NDArray[np.bool_]:
        """Which sums the agents do not know."""
        return np.ones(self.values.shape[1], dtype=bool) if self.totals is None else np.isnan(self.totals)

    def complete(self, sums: FloatArray) -> FloatArray:
        """Return the sums over all agents, with those that every agent knows in their place."""
        return sums if self.totals is None else np.where(self.unknown, sums, self.totals)


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


class Noise(Protocol):
    """A source of noise (:class:`elmesh.privacy.discrete_gaussian.NoiseSource`)."""

    def draw(self, label: bytes, sigma: IntArray) -> IntArray:
        """Return discrete Gaussian numbers; the same for the same label."""


def key_bytes(topology: Topology) -> int:
    """Return what all agents send for keys and run numbers, before their first masked sum."""
    return gathered_bytes(topology, KEY_BYTES)


class Transport(ABC):
    """How the agents of this process reach the others. All processes call every method in the same order.

    Sums go along the spanning tree of ``topology``, the graph of all agents, with ``message_bits`` per number.
    ``agents`` are those of this process, in increasing order. If sums are ``masked``
    (:mod:`elmesh.comm.masking`), all of them are of integers. ``noise`` is where the agents here draw noise from.
    """

    #: Whether metrics are of all agents, and so the same in every process.
    global_metrics: ClassVar[bool] = True

    def __init__(
        self,
        topology: Topology,
        agents: Sequence[int],
        message_bits: int | str,
        relay: Relay,
        masked: bool = False,
        noise: Noise | None = None,
    ) -> None:
        self._topology, self._bits, self._noise = topology, message_bits, noise
        self.agents: IndexArray = np.asarray(agents, dtype=np.intp)
        self._log = TrafficLog(topology)
        self._tree = TreeAllReduce(topology, self.agents.tolist(), message_bits, self._log, relay)
        #: Whether sums are masked.
        self.masked = masked
        self._integers: IntegerAllReduce | None = None
        if masked:
            if message_bits not in MASKED_BITS:
                raise ElmeshError(
                    f"message_bits is {message_bits!r}; masked sums have 16, 32 or 64 bits per number, because they "
                    "are of whole numbers modulo a power of two."
                )
            self._integers = IntegerAllReduce(int(message_bits), self.agents.tolist())
        #: Rounds of messages so far.
        self.n_exchanges = 0
        self._n_noisy = 0

    @property
    def single_process(self) -> bool:
        """Whether all agents are in this process."""
        return len(self.agents) == self._topology.n_agents

    @property
    def remote_senders(self) -> list[int]:
        """Agents of other processes whose channels end in this one."""
        own = set(self.agents.tolist())
        neighbors = {j for agent in own for j in self._topology.neighbors(agent).tolist()}
        return sorted({*self._tree.remote_senders, *neighbors} - own)

    @abstractmethod
    def neighbor_sum(self, request: NeighborSum) -> FloatArray | NeighborMessages:
        """Send a value to the neighbours; return their sum, or each neighbour's value."""

    @abstractmethod
    def reduce_at_hub(self, request: HubReduce) -> FloatArray:
        """Send a value to the hub and return its result."""

    @abstractmethod
    def start_metrics(self, local: LocalMetrics, halt: bool) -> PendingMetrics:
        """Start to collect a round's metrics; ``halt`` asks all processes to stop."""

    def record_metrics(self, local: LocalMetrics) -> None:
        """Record what the agents here send for a round's metrics, as sums along the tree."""
        if size := self._metrics_size(local):
            self._tree.record(size, metrics=True)

    def metrics_bytes(self, local: LocalMetrics) -> int:
        """Return what all agents send for a round's metrics."""
        return 2 * (self._topology.n_agents - 1) * self._metrics_size(local)

    def _metrics_size(self, local: LocalMetrics) -> int:
        """Return the bytes of one message with metrics; 0 if there is none."""
        # Where each agent has a U of its own: the mean of all, and the squared distance from it.
        basis = 0 if local.U is None else local.U[0].size + 1
        unknown = int(local.unknown.sum())
        if not (unknown or basis) or not self.global_metrics:
            return 0
        return 8 * LIMBS * unknown + CHECK_BITS // 8 if self.masked else 8 * (unknown + basis)

    def _encode(self, topic: str, value: FloatArray) -> tuple[list[bytes], FloatArray]:
        """Return the messages of the agents here, and the values that their neighbours decode."""
        send, agents = self._tree.channels.send, self.agents.tolist()
        coded = [send(topic, own, agent) for own, agent in zip(value, agents, strict=True)]
        for k, (message, _) in enumerate(coded):
            self._log.record_senders(self.agents[k : k + 1], len(message))
        return [message for message, _ in coded], np.stack([decoded for _, decoded in coded])

    def allreduce(self, request: AllReduce) -> AllReduceResult:
        """Return the sum over all agents."""
        if self._integers is not None:
            return self._integers.sum(request, self.integer_sum)
        self.n_exchanges += self._topology.tree.rounds
        return self._tree.sum(request)

    def integer_sum(self, request: IntegerSum) -> IntArray:
        """Return the sum of integers over all agents."""
        self._count_integer_sum(request)
        return self._tree.integer_sum(request.value)

    def noisy_sum(self, request: NoisySum) -> IntArray:
        """Return the sum of integers over all agents, with the noise that each of them adds to its own term."""
        if self._noise is None:
            raise ElmeshError("This run has no source of noise, so that nothing can be released with noise.")
        terms = []
        for agent, value in zip(self.agents.tolist(), request.value, strict=True):
            label = b"%d " % agent + self._noise_label(value)
            terms.append(value + self._noise.draw(label, request.sigma))
        self._n_noisy += 1
        return self.integer_sum(IntegerSum(np.sum(terms, axis=0), Topic.PRIVATE, rho=request.rho))

    def _noise_label(self, value: IntArray) -> bytes:
        """Return what identifies the noise of the next sum."""
        return b"sum %d" % self._n_noisy

    def _count_integer_sum(self, request: IntegerSum) -> None:
        """Record the messages of the agents here along the tree."""
        if self._topology.n_agents > 1:
            self.n_exchanges += self._topology.tree.rounds
        self._tree.record(self._message_bytes(request))

    def _message_bytes(self, request: IntegerSum) -> int:
        """Return the bytes of a message of integers; a masked one ends with words to check the total by."""
        return (len(request.value) * request.bits + (CHECK_BITS if self.masked else 0)) // 8

    def _count_keys(self) -> None:
        """Record the exchange of all agents' keys and run numbers, by messages along the tree."""
        if self._topology.n_agents > 1:
            self.n_exchanges += 2 * self._topology.tree.rounds
        self._tree.record_gather(KEY_BYTES)

    def max_request_bytes(self, request: Request) -> int:
        """Return an upper bound on what a request sends, over all agents."""
        if isinstance(request, NoisySum):
            request = IntegerSum(request.value[0])
        if isinstance(request, IntegerSum):
            return 2 * (self._topology.n_agents - 1) * self._message_bytes(request)
        if isinstance(request, AllReduce):
            if self._integers is None:
                return self._tree.max_bytes(request)
            return 2 * (self._topology.n_agents - 1) * self._integers.max_bytes(request)
        size = self._most_bytes(request.value.shape[1:])
        if not isinstance(request, HubReduce):
            return 2 * len(self._topology.edges) * size
        rows, columns = request.value.shape[1:]
        answer = self._most_bytes((rows, request.result_columns or columns))
        return (self._topology.n_agents - 1) * (size + answer)

    def _most_bytes(self, shape: tuple[int, ...]) -> int:
        """Return the most bytes of a message with an array of this shape."""
        return 8 * math.prod(shape) if self._bits == 64 else most_bytes((1, *shape), self._bits)

    def traffic(self) -> TrafficLog:
        """Return the traffic along every edge so far."""
        return self._log

    def state(self) -> CommState:
        """Return what to resume from."""
        channels = self._tree.channels.state_dict()
        common = {"exchanges": np.array(float(self.n_exchanges)), **channels.pop(ROOT, {})}
        own = self._log.state_dict(self.agents)
        if self._integers is not None:
            values, totals = self._integers.state_dict()
            own, common = {t: {**own[t], **values[t]} for t in own}, {**common, **totals}
        return CommState({t: {**own.get(t, {}), **channels.get(t, {})} for t in {*own, *channels}}, common)

    def restore(self, state: CommState) -> None:
        """Resume from a state."""
        self.n_exchanges = int(state.common["exchanges"])
        self._log.load_state_dict({t: state.own[t] for t in self.agents.tolist()})
        self._tree.channels.load_state_dict({ROOT: state.common, **state.own})
        if self._integers is not None:
            self._integers.load_state_dict(state.own, state.common)
