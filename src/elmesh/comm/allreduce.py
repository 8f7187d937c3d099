r"""Sums over all agents along a spanning tree, by messages between neighbours.

Every agent adds its children's partial sums to its own term, in the order that the tree fixes, and passes the result
to its parent; the root's sum goes back along the same edges. So all agents end with the same sum, to the bit, and the
bits do not depend on how agents are spread over processes. With fewer than 64 bits per number, messages are quantised
differences (:mod:`elmesh.comm.codec`).

*Gossip* is the other way: every agent replaces its value by a mix of it and its neighbours', on a schedule that ends in
the average (:meth:`elmesh.comm.graph.Topology.averaging_roots`). On rings, paths and complete graphs that takes half
the rounds of a tree, and many more messages. Agents' results then differ by rounding.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elmesh.comm.codec import DeltaChannel, message_size, most_bytes
from elmesh.comm.graph import DENSE_LIMIT, Topology
from elmesh.comm.requests import AllReduce, AllReduceResult
from elmesh.comm.traffic import TrafficLog
from elmesh.errors import ElmeshError
from elmesh.typing import FloatArray

__all__ = [
    "GOSSIP_PRECISION",
    "ROOT",
    "ChannelSet",
    "Content",
    "Integers",
    "Relay",
    "TreeAllReduce",
    "fine_bits",
    "gathered_bytes",
    "uses_gossip",
]

#: How closely gossip agrees, as a share of how far the agents' own values were from their mean.
GOSSIP_PRECISION = 1e-10
#: The sender of the root's sum, which goes to all agents.
ROOT = -1
# Least bits of finely quantised columns.
_FINE = 16

#: The value of a sum, and its exact numbers.
Content = tuple[FloatArray, FloatArray]
#: Integers of any width.
Integers = NDArray[Any]


def uses_gossip(topology: Topology, bits: int | str) -> bool:
    """Return whether sums are by gossip: if messages are exact and it takes fewer rounds than a tree."""
    # Above the limit no exact averaging schedule is computed, so that a tree is faster.
    if bits != 64 or not 1 < topology.n_agents <= DENSE_LIMIT:
        return False
    return max(len(topology.averaging_roots(GOSSIP_PRECISION)), topology.diameter) < topology.tree.rounds


def fine_bits(bits: int | str) -> int | str:
    """Return the bits of finely quantised columns: at least 16."""
    return max(bits, _FINE) if isinstance(bits, int) else _FINE


class ChannelSet:
    """The quantised channels of one process, by topic, sender and part of the columns (coarse or fine)."""

    def __init__(self, bits: int | str) -> None:
        self._bits = bits
        self._channels: dict[tuple[str, int, int], DeltaChannel] = {}

    def prepare(self, request: AllReduce) -> None:
        """Revert or rotate the channels of a topic, as a request asks."""
        for (topic, _, _), channel in self._channels.items():
            if topic == request.topic:
                if request.relative_to_previous:
                    channel.revert()
                if request.rotation is not None:
                    channel.rotate(request.rotation)

    def encode(self, request: AllReduce, value: FloatArray, sender: int) -> tuple[bytes, FloatArray]:
        """Return the message for a value, and the value that its receivers decode."""
        message, decoded = b"", []
        for part, columns, bits in self._parts(value.shape[1], request.fine_columns):
            channel = self._channel(request.topic, sender, part, bits)
            message += channel.encode(value[:, columns], request.skip_below)
            decoded.append(channel.value)
        return message, np.hstack(decoded) if decoded else value

    def decode(self, request: AllReduce, message: bytes, sender: int, shape: Sequence[int]) -> FloatArray:
        """Return the value that a message encodes; raise if it is not one of that shape."""
        rows, pieces, rest = shape[0], [], message
        for part, columns, bits in self._parts(shape[1], request.fine_columns):
            width = columns.stop - columns.start
            size = message_size((rows, width), rest[0]) if rest else 0
            pieces.append((part, bits, width, rest[:size]))
            rest = rest[size:]
        if rest:
            raise ElmeshError(f"A message of {len(message)} bytes is longer than one of a {rows} x {shape[1]} matrix.")
        values = [
            self._channel(request.topic, sender, part, bits).decode(piece, (rows, width))
            for part, bits, width, piece in pieces
        ]
        return np.hstack(values) if values else np.zeros((rows, shape[1]))

    def send(self, topic: str, value: FloatArray, sender: int) -> tuple[bytes, FloatArray]:
        """Return the message for a matrix to neighbours or a hub, and the matrix that its receivers decode."""
        channel = self._channel(topic, sender, 0, self._bits)
        return channel.encode(value), channel.value

    def receive(self, topic: str, message: bytes, sender: int, shape: tuple[int, ...]) -> FloatArray:
        """Return the matrix that a message from another process encodes."""
        return self._channel(topic, sender, 0, self._bits).decode(message, shape)

    def state_dict(self) -> dict[int, dict[str, FloatArray]]:
        """Return what to resume from, per sender."""
        state: dict[int, dict[str, FloatArray]] = {}
        for (topic, sender, part), channel in self._channels.items():
            arrays = {f"channel/{topic}/{part}/{name}": x for name, x in channel.state_dict().items()}
            state.setdefault(sender, {}).update(arrays)
        return state

    def load_state_dict(self, state: Mapping[int, Mapping[str, FloatArray]]) -> None:
        """Resume from :meth:`state_dict`, among whatever other arrays there are."""
        self._channels.clear()
        for sender, arrays in state.items():
            for name in arrays:
                if name.startswith("channel/") and name.endswith("/value"):
                    _, topic, part, _ = name.split("/")
                    bits = fine_bits(self._bits) if int(part) else self._bits
                    channel = self._channel(topic, sender, int(part), bits)
                    head = name.removesuffix("value")
                    channel.load_state_dict({"value": arrays[name], "previous": arrays[f"{head}previous"]})

    def _parts(self, columns: int, fine: int) -> Iterator[tuple[int, slice, int | str]]:
        """Yield the parts of a message: coarse (0) and fine (1) columns, with their bits."""
        parts = (0, slice(0, columns - fine), self._bits), (1, slice(columns - fine, columns), fine_bits(self._bits))
        return (part for part in parts if part[1].stop > part[1].start)

    def _channel(self, topic: str, sender: int, part: int, bits: int | str) -> DeltaChannel:
        return self._channels.setdefault((topic, sender, part), DeltaChannel(bits))


class Relay:
    """How partial sums cross between processes, which trust each other; by itself, for agents of a single process."""

    def send_partial(self, agent: int, parent: int, shape: tuple[int, int], data: bytes) -> None:
        """Send an agent's partial sum to its parent in another process."""
        raise TypeError(f"Agent {parent} is not in this process.")

    def receive_partial(self, child: int, shape: tuple[int, int], size: int | None) -> bytes:
        """Return the partial sum of a child in another process; ``size`` is its number of bytes, if known."""
        raise TypeError(f"Agent {child} is not in this process.")

    def share_total(self, data: bytes | None, shape: tuple[int, int], size: int | None) -> bytes:
        """Return the root's total, which the root's process gives."""
        return data or b""

    def forward_total(self, data: bytes, shape: tuple[int, int]) -> None:
        """Pass the total on, once it is checked; not needed where all processes have it."""

    def checking(self, sender: int) -> AbstractContextManager[None]:
        """Return a context in which a sender's message is decoded and checked."""
        return nullcontext()


class TreeAllReduce:
    """Sums over the agents of all processes along the spanning tree of a graph.

    ``own`` are the agents of this process, in increasing order; their messages are recorded in ``traffic``.
    """

    def __init__(
        self, topology: Topology, own: Sequence[int], bits: int | str, traffic: TrafficLog, relay: Relay
    ) -> None:
        self._topology, self._bits, self._traffic, self._relay = topology, bits, traffic, relay
        self._place = {agent: k for k, agent in enumerate(own)}
        parent = topology.tree.parent.tolist()
        # From the leaves to the root, so that an agent's children come before it.
        inwards = topology.tree.order[::-1].tolist()
        self._root = inwards[-1]
        self._own = [agent for agent in inwards if agent in self._place]
        self._parent = {agent: parent[agent] for agent in self._own}
        self._children: dict[int, list[int]] = {agent: [] for agent in self._own}
        for agent in inwards:
            if parent[agent] in self._children:
                self._children[parent[agent]].append(agent)
        self.channels = ChannelSet(bits)

    @property
    def remote_senders(self) -> list[int]:
        """Agents of other processes whose channels end in this one."""
        return sorted({child for children in self._children.values() for child in children if child not in self._place})

    def max_bytes(self, request: AllReduce) -> int:
        """Return an upper bound on what a sum sends, over all agents."""
        rows, columns = request.value.shape[-2:]
        fine = min(request.fine_columns, columns)
        coarse, finest = most_bytes((rows, columns - fine), self._bits), most_bytes((rows, fine), fine_bits(self._bits))
        return int(2 * (self._topology.n_agents - 1) * (coarse + finest + 8 * request.exact.shape[-1]))

    def sum(self, request: AllReduce) -> AllReduceResult:
        """Return the sum over all agents; request arrays have one row per agent of this process."""
        if self._topology.n_agents == 1:
            return AllReduceResult(request.value[0], request.exact[0], request.average, request.broadcast)
        self.channels.prepare(request)
        total = self._inwards(request)
        value, exact = self._outwards(request, total)
        return AllReduceResult(value, exact, request.average, request.broadcast)

    def _inwards(self, request: AllReduce) -> Content | None:
        """Pass partial sums on to the root; return the total in the root's process."""
        shape, received = _shape(request), dict[int, Content]()
        for agent in self._own:
            k = self._place[agent]
            value, exact = request.value[k].copy(), request.exact[k].copy()
            for child in self._children[agent]:
                if child not in self._place:
                    data = self._relay.receive_partial(child, shape, self._size(request))
                    received[child] = self._decode(request, data, child)
                their_value, their_exact = received.pop(child)
                value += their_value
                exact += their_exact
            if agent == self._root:
                return value, exact
            data, decoded = self._encode(request, (value, exact), agent)
            self._traffic.record(agent, self._parent[agent], len(data))
            if self._parent[agent] in self._place:
                received[agent] = decoded
            else:
                self._relay.send_partial(agent, self._parent[agent], shape, data)
        return None

    def _outwards(self, request: AllReduce, total: Content | None) -> Content:
        """Send the root's total to all agents."""
        data, decoded = (None, None) if total is None else self._encode(request, total, ROOT)
        data = self._relay.share_total(data, _shape(request), self._size(request))
        decoded = self._decode(request, data, ROOT) if decoded is None else decoded
        self._relay.forward_total(data, _shape(request))
        for agent in self._own:
            for child in self._children[agent]:
                self._traffic.record(agent, child, len(data))
        return decoded

    def _size(self, request: AllReduce) -> int | None:
        """Return the bytes of a message if they are known beforehand."""
        rows, columns = _shape(request)
        return 8 * (rows * columns + request.exact.shape[-1]) if self._bits == 64 else None

    def _encode(self, request: AllReduce, content: Content, sender: int) -> tuple[bytes, Content]:
        value, exact = content
        if self._bits == 64:
            return _to_bytes(value) + _to_bytes(exact), content
        message, decoded = self.channels.encode(request, value, sender)
        return message + _to_bytes(exact), (decoded, exact)

    def _decode(self, request: AllReduce, data: bytes, sender: int) -> Content:
        shape, k = _shape(request), request.exact.shape[-1]
        with self._relay.checking(sender):
            end = len(data) - 8 * k
            if end < 0 or (self._bits == 64 and len(data) != self._size(request)):
                raise ElmeshError(f"A message of {len(data)} bytes is not a sum of a {shape[0]} x {shape[1]} matrix.")
            exact = _from_bytes(data[end:])
            if self._bits == 64:
                value = _from_bytes(data[:end]).reshape(shape)
            else:
                value = self.channels.decode(request, data[:end], sender, shape)
        return value, exact

    def integer_sum(self, value: Integers) -> Integers:
        """Return the sum of integers over all agents; ``value`` is that of the agents here: all of them, or one.

        Integers wrap around, so that the sum is one modulo a power of two.
        """
        if len(self._own) == self._topology.n_agents:
            return value
        (agent,), shape = self._own, (1, len(value))
        total = value.copy()
        for child in self._children[agent]:
            data = self._relay.receive_partial(child, shape, value.nbytes)
            total += self._integers(data, child, value)
        own: bytes | None = _little_endian(total).tobytes()
        if agent != self._root and own is not None:
            self._relay.send_partial(agent, self._parent[agent], shape, own)
            own = None
        received = self._relay.share_total(own, shape, value.nbytes)
        total = self._integers(received, ROOT, value)
        self._relay.forward_total(received, shape)
        return total

    def record(self, size: int, *, metrics: bool = False) -> None:
        """Record a message of some bytes from each agent here to its parent, and to each of its children."""
        for agent in self._own:
            others = self._children[agent] if agent == self._root else [*self._children[agent], self._parent[agent]]
            for other in others:
                self._traffic.record(agent, other, size, metrics=metrics)

    def record_gather(self, size: int) -> None:
        """Record that some bytes of every agent reach all others: inwards those of a subtree, outwards all of them."""
        n, below = self._topology.n_agents, subtree_sizes(self._topology)
        for agent in self._own:
            if agent != self._root:
                self._traffic.record(agent, self._parent[agent], int(below[agent]) * size)
            for child in self._children[agent]:
                self._traffic.record(agent, child, n * size)

    def _integers(self, data: bytes, sender: int, like: Integers) -> Integers:
        with self._relay.checking(sender):
            if len(data) != like.nbytes:
                raise ElmeshError(f"A message of {len(data)} bytes is not a sum of {len(like)} integers.")
        return np.frombuffer(data, like.dtype.newbyteorder("<")).astype(like.dtype, copy=False)


def subtree_sizes(topology: Topology) -> NDArray[np.int64]:
    """Return for each agent the number of agents in its subtree of the spanning tree, itself among them."""
    tree, below = topology.tree, np.ones(topology.n_agents, dtype=np.int64)
    for agent in tree.order[:0:-1].tolist():
        below[tree.parent[agent]] += below[agent]
    return below


def gathered_bytes(topology: Topology, size: int) -> int:
    """Return what all agents send so that some bytes of every agent reach all others."""
    n = topology.n_agents
    return size * (int(subtree_sizes(topology).sum()) - n + n * (n - 1))


def _little_endian(integers: Integers) -> Integers:
    return integers.astype(integers.dtype.newbyteorder("<"), copy=False)


def _shape(request: AllReduce) -> tuple[int, int]:
    return int(request.value.shape[-2]), int(request.value.shape[-1])


def _to_bytes(numbers: FloatArray) -> bytes:
    return numbers.astype("<f8").tobytes()


def _from_bytes(data: bytes) -> FloatArray:
    return np.frombuffer(data, "<f8").astype(np.float64)
