"""The transport of one agent of a network.

Neighbours are summed in sorted order, as with MPI: the numbers are the same to the bit. Sums go along the graph's
spanning tree, of masked integers (:mod:`elmesh.comm.masking`): neither a neighbour nor a router learns anything
of an agent's term. Before a value or a term is sent it is recorded, and may be withheld (:class:`ReleaseRecorder`).
Metrics are computed from what the agent has anyway; nothing is sent for them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import repeat
from typing import ClassVar, Protocol

import numpy as np

from elmesh.comm.allreduce import ROOT, Relay
from elmesh.comm.graph import Topology
from elmesh.comm.masking import MaskedSums, MaskError
from elmesh.comm.network.errors import RefusedError
from elmesh.comm.network.messenger import ReliableMessenger
from elmesh.comm.network.wire import NO_VIEW, Kind, Message, WireError
from elmesh.comm.requests import HubReduce, IntegerSum, NeighborMessages, NeighborSum, Topic
from elmesh.comm.transport import CommState, LocalMetrics, Noise, PendingMetrics, RoundMetrics, Transport
from elmesh.errors import ElmeshError
from elmesh.typing import FloatArray, IntArray

__all__ = ["NetworkTransport", "Release", "ReleaseRecorder"]

# Norms of correct values are far below this, and its square is still a finite number.
_MOST_NORM = 1e150


@dataclass(frozen=True)
class Release:
    """What is about to leave an agent.

    Parameters
    ----------
    what : str
        The topic of a sum, or "basis" for U_t.
    shape : tuple of int
        Its numbers: rows and columns, or how many.
    to : tuple of str
        The neighbours that it is sent to.
    number : int
        The number of the sum in its run, or of the round.
    bits : int
        Bits per number.
    label : bytes
        What identifies a masked sum; empty if there is no mask.
    rho : float
        Its cost in zero-concentrated differential privacy; 0 if it has no noise.
    """

    what: str
    shape: tuple[int, ...]
    to: tuple[str, ...]
    number: int
    bits: int = 64
    label: bytes = b""
    rho: float = 0.0


class ReleaseRecorder(Protocol):
    """Records what leaves an agent before it leaves, and may refuse it by raising an error."""

    def release(self, release: Release, make: Callable[[], bytes]) -> bytes:
        """Return the bytes to send: those of ``make``, or those of an earlier call for the same sum."""


class _NoRecord:
    """Records nothing."""

    def release(self, release: Release, make: Callable[[], bytes]) -> bytes:
        return make()


class NetworkTransport(Transport):
    """The transport of one agent; ``names`` are all agents in the order of the graph.

    Neighbours' values with a norm above ``max_norm`` are refused. Without ``sums`` integers are added without masks,
    for measurements of what masks cost. ``keys_sent`` are the bytes of keys that were sent to neighbours before.
    """

    global_metrics: ClassVar[bool] = False

    def __init__(
        self,
        messenger: ReliableMessenger,
        names: Sequence[str],
        topology: Topology,
        message_bits: int | str = 64,
        max_norm: float = math.inf,
        sums: MaskedSums | None = None,
        recorder: ReleaseRecorder | None = None,
        keys_sent: Mapping[str, int] | None = None,
        noise: Noise | None = None,
    ) -> None:
        self.agent = list(names).index(messenger.name)
        self._relay = _NetworkRelay(messenger, names, topology, self.agent, sums)
        super().__init__(topology, [self.agent], message_bits, self._relay, masked=True, noise=noise)
        self._messenger, self._max_norm, self._sums = messenger, max_norm, sums
        self._recorder: ReleaseRecorder = recorder or _NoRecord()
        self._neighbors = [names[k] for k in topology.neighbors(self.agent).tolist()]
        #: The last value sent to the neighbours, and the sum of theirs.
        self._last: tuple[FloatArray, FloatArray] | None = None
        for name, size in (keys_sent or {}).items():
            self._log.record(self.agent, list(names).index(name), size)

    def neighbor_sum(self, request: NeighborSum) -> FloatArray | NeighborMessages:
        """Send a value to every neighbour, and return their sum or each one's value."""
        value = np.ascontiguousarray(request.value[0], dtype="<f8")
        shape = (int(value.shape[0]), int(value.shape[1]))
        release = Release("basis", shape, tuple(self._neighbors), self.n_exchanges)
        body = self._recorder.release(release, value.tobytes)
        for name in self._neighbors:
            self._messenger.send(name, Kind.VALUE, body, shape)
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

    def integer_sum(self, request: IntegerSum) -> IntArray:
        """Return the sum of integers over all agents; nothing but this agent's masked term leaves it."""
        sums = self._sums
        if sums is None:
            return super().integer_sum(request)
        self._count_integer_sum(request)
        release = Release(
            request.topic,
            request.value.shape,
            self._relay.receivers,
            sums.counter,
            request.bits,
            sums.label(request),
            request.rho,
        )
        data = self._recorder.release(release, lambda: sums.mask(request).tobytes())
        masked = np.frombuffer(data, f"<u{request.bits // 8}")
        try:
            return sums.unmask(self._tree.integer_sum(masked), request)
        except MaskError as error:
            # It is not known whose mask it is.
            raise RefusedError([], str(error)) from None

    def _noise_label(self, value: IntArray) -> bytes:
        """Return what identifies the next sum: an agent that is restarted draws the same noise for it."""
        if self._sums is None:
            raise ElmeshError("Without masks nothing is released with noise.")
        return self._sums.label(IntegerSum(value, Topic.PRIVATE))

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

    def state(self) -> CommState:
        """Return what to resume from."""
        state = super().state()
        if self._sums is not None:
            state.common.update(self._sums.state_dict())
        return state

    def restore(self, state: CommState) -> None:
        """Resume from a state."""
        super().restore(state)
        if self._sums is not None:
            self._sums.load_state_dict(state.common)


class _NetworkRelay(Relay):
    """Partial sums as messages to the parent in the tree, totals as messages to the children.

    Every message carries the sender's view of all keys and totals so far, which must be this agent's own.
    """

    def __init__(
        self,
        messenger: ReliableMessenger,
        names: Sequence[str],
        topology: Topology,
        agent: int,
        sums: MaskedSums | None,
    ) -> None:
        self._messenger, self._names, self._sums = messenger, list(names), sums
        tree = topology.tree
        parent = int(tree.parent[agent])
        self._parent = None if parent < 0 else self._names[parent]
        self._children = [self._names[k] for k in tree.order[::-1].tolist() if int(tree.parent[k]) == agent]
        self._received: dict[str, Message] = {}

    @property
    def receivers(self) -> tuple[str, ...]:
        """Those who are sent this agent's partial sum: its parent or, from the root, its children as the total."""
        return tuple(self._children) if self._parent is None else (self._parent,)

    @property
    def _view(self) -> bytes:
        return NO_VIEW if self._sums is None else self._sums.view

    def _name(self, sender: int) -> str:
        """Return the neighbour that sent a message; the root's total comes from the parent."""
        return self._names[sender] if sender != ROOT else self._parent or self._messenger.name

    def send_partial(self, agent: int, parent: int, shape: tuple[int, int], data: bytes) -> None:
        self._messenger.send(self._names[parent], Kind.PARTIAL_SUM, data, shape, is_bytes=True, view=self._view)

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
            self._messenger.send(child, Kind.TOTAL, data, shape, is_bytes=True, view=self._view)

    def _body(self, sender: int, message: Message, shape: tuple[int, int]) -> bytes:
        with self.checking(sender):
            message.check_shape(*shape, is_bytes=True)
            if message.view != self._view:
                raise WireError("it was sent other keys or other totals than this agent")
        return bytes(message.body)

    @contextmanager
    def checking(self, sender: int) -> Iterator[None]:
        try:
            yield
        except WireError as error:
            raise self._messenger.refuse(self._name(sender), str(error)) from None
        except ElmeshError as error:
            reason = f"its body cannot be decoded ({str(error).rstrip('.')})"
            raise self._messenger.refuse(self._name(sender), reason) from None
