"""The transport of one agent of a network.

Neighbours are summed in sorted order and sums go along the graph's spanning tree in its order, as with MPI: the numbers
are the same to the bit. Metrics are computed from what the agent has anyway; nothing is sent for them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import repeat
from typing import ClassVar

import numpy as np

from elmesh.comm.allreduce import ROOT, Content, Relay
from elmesh.comm.graph import Topology
from elmesh.comm.network.messenger import ReliableMessenger
from elmesh.comm.network.wire import Kind, Message, WireError
from elmesh.comm.requests import HubReduce, NeighborMessages, NeighborSum
from elmesh.comm.transport import LocalMetrics, PendingMetrics, RoundMetrics, Transport
from elmesh.errors import ElmeshError
from elmesh.typing import FloatArray

__all__ = ["NetworkTransport"]

# Norms of correct sums are far below this, and its square is still a finite number.
_MOST_NORM = 1e150


class NetworkTransport(Transport):
    """The transport of one agent; ``names`` are all agents in the order of the graph.

    Neighbours' values with a norm above ``max_norm`` are refused.
    """

    global_metrics: ClassVar[bool] = False

    def __init__(
        self,
        messenger: ReliableMessenger,
        names: Sequence[str],
        topology: Topology,
        message_bits: int | str = 64,
        max_norm: float = math.inf,
    ) -> None:
        self.agent = list(names).index(messenger.name)
        relay = _NetworkRelay(messenger, names, topology, self.agent, quantized=message_bits != 64)
        super().__init__(topology, [self.agent], message_bits, relay)
        self._messenger, self._max_norm = messenger, max_norm
        self._neighbors = [names[k] for k in topology.neighbors(self.agent).tolist()]
        #: The last value sent to the neighbours, and the sum of theirs.
        self._last: tuple[FloatArray, FloatArray] | None = None

    def neighbor_sum(self, request: NeighborSum) -> FloatArray | NeighborMessages:
        """Send a value to every neighbour, and return their sum or each one's value."""
        value = np.ascontiguousarray(request.value[0], dtype="<f8")
        shape, body = (int(value.shape[0]), int(value.shape[1])), value.tobytes()
        for name in self._neighbors:
            self._messenger.send(name, Kind.VALUE, shape, body)
        self.n_exchanges += 1
        self._log.record_senders(self.agents, len(body))
        messages = self._messenger.receive(self._neighbors, Kind.VALUE)
        values = [self._value(name, messages[name], shape) for name in self._neighbors]
        # Starting from zero, as everywhere: the sum of a single negative zero is zero.
        total = values[0] + 0.0 if values else np.zeros_like(value)
        for theirs in values[1:]:
            total += theirs
        self._last = value, total
        if request.each:
            return NeighborMessages(np.stack(values), np.zeros(len(values), dtype=np.intp))
        return total[None]

    def _value(self, name: str, message: Message, shape: tuple[int, int]) -> FloatArray:
        """Return a neighbour's value, or refuse it."""
        try:
            value, square = message.matrix(*shape)
            norm = math.sqrt(square)
            if not norm <= self._max_norm or math.isinf(norm):
                raise WireError(f"its norm is {norm:.3g}, above {min(self._max_norm, _MOST_NORM):.3g}")
        except WireError as error:
            raise self._messenger.refuse(name, str(error)) from None
        return value

    def reduce_at_hub(self, request: HubReduce) -> FloatArray:
        """Raise: a network has no hub that all sites trust."""
        raise ElmeshError("A network of sites has no hub; use a solver that needs none, such as mesh-elm.")

    def start_metrics(self, local: LocalMetrics, halt: bool) -> PendingMetrics:
        """Return this agent's metrics.

        What belongs to all agents is reported in even shares, so one share gives the whole. Where every agent has a U
        of its own, these are its residuals and its distance from its neighbours' mean; the objective is its share.
        """
        if local.U is None:
            sums = np.repeat(local.values, self._topology.n_agents, axis=0).sum(axis=0)
            distance, size = 0.0, 1.0
        else:
            sums, (distance, size) = local.values[0].copy(), self._distance()
        sums[0] = local.values[0, 0]
        return repeat(RoundMetrics.from_sums(sums, distance, size, self._log.total, halt))

    def _distance(self) -> tuple[float, float]:
        """Return the distance of this agent's value from its neighbours' mean, and its norm."""
        if self._last is None:
            return 0.0, 1.0
        value, total = self._last
        apart = total * (1.0 / max(len(self._neighbors), 1))
        apart -= value
        return math.sqrt(float(np.vdot(apart, apart))), math.sqrt(float(np.vdot(value, value)))


class _NetworkRelay(Relay):
    """Partial sums as messages to the parent in the tree, totals as messages to the children; both are checked."""

    def __init__(
        self, messenger: ReliableMessenger, names: Sequence[str], topology: Topology, agent: int, quantized: bool
    ) -> None:
        self._messenger, self._names, self._quantized = messenger, list(names), quantized
        tree = topology.tree
        self._root, parent = int(tree.order[0]), int(tree.parent[agent])
        self._parent = None if parent < 0 else self._names[parent]
        inwards = tree.order[::-1].tolist()
        self._children = [self._names[k] for k in inwards if int(tree.parent[k]) == agent]
        # The number of agents whose terms are in each agent's partial sum.
        self._terms = dict.fromkeys(range(len(self._names)), 1)
        for k in inwards[:-1]:
            self._terms[int(tree.parent[k])] += self._terms[k]
        self._received: dict[str, Message] = {}

    def _name(self, sender: int) -> str:
        """Return the neighbour that sent a message; the root's total comes from the parent."""
        return self._names[sender] if sender != ROOT else self._parent or self._messenger.name

    def send_partial(self, agent: int, parent: int, shape: tuple[int, int], data: bytes) -> None:
        self._messenger.send(self._names[parent], Kind.PARTIAL_SUM, shape, data, self._quantized)

    def receive_partial(self, child: int, shape: tuple[int, int], size: int | None) -> bytes:
        if not self._received:
            self._received = self._messenger.receive(self._children, Kind.PARTIAL_SUM)
        return self._body(child, self._received.pop(self._names[child]), shape)

    def share_total(self, data: bytes | None, shape: tuple[int, int], size: int | None) -> bytes:
        if self._parent is None or data is not None:
            return data or b""
        message = self._messenger.receive([self._parent], Kind.TOTAL)[self._parent]
        return self._body(ROOT, message, shape)

    def forward_total(self, data: bytes, shape: tuple[int, int]) -> None:
        for child in self._children:
            self._messenger.send(child, Kind.TOTAL, shape, data, self._quantized)

    def _body(self, sender: int, message: Message, shape: tuple[int, int]) -> bytes:
        with self.checking(sender):
            message.check_shape(*shape, self._quantized)
        return bytes(message.body)

    @contextmanager
    def checking(self, sender: int) -> Iterator[None]:
        try:
            with np.errstate(over="ignore", invalid="ignore"):
                yield
        except WireError as error:
            raise self._messenger.refuse(self._name(sender), str(error)) from None
        except ElmeshError as error:
            reason = f"its body cannot be decoded ({str(error).rstrip('.')})"
            raise self._messenger.refuse(self._name(sender), reason) from None

    def check(self, sender: int, content: Content) -> None:
        """Raise unless numbers are finite and within the bound of their number of terms.

        Each term has an equal share of the bound, so an agent that adds its own to valid sums stays within it, and is
        not refused for what it received.
        """
        value, exact = content
        if not (np.isfinite(value).all() and np.isfinite(exact).all()):
            raise WireError("it has a value that is not a finite number")
        norm = math.sqrt(float(np.vdot(value, value)) + float(np.vdot(exact, exact)))
        most = _MOST_NORM * self._terms[self._root if sender == ROOT else sender] / len(self._names)
        if not norm <= most:
            raise WireError(f"its norm is {norm:.3g}, above {most:.3g}")
