r"""Sums over all agents, by neighbours' messages alone, in one of two ways.

*Mixing*: every agent replaces its value by a mix of it and its neighbours', on a schedule that ends in the average
(:meth:`elmesh.comm.graph.Topology.averaging_roots`). On rings, paths and complete graphs that takes half the rounds
of a tree, for many more messages.

*A tree*: values go to the root of a spanning tree, added up on the way, and the sum comes back: one message each way
along each of its edges. All agents end with the same sum, to the bit. Coarse messages go this way.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from elmesh.comm.codec import Channel, message_size
from elmesh.comm.graph import Topology
from elmesh.comm.requests import Sum, Total
from elmesh.comm.traffic import Ledger
from elmesh.typing import FloatArray

__all__ = [
    "PRECISION",
    "Channels",
    "StackedSums",
    "by_mixing",
    "coarse_parts",
    "fine_bits",
    "split_message",
    "tree_bytes",
]


#: How closely mixed sums agree, as a share of how far the agents' own values were from their mean.
PRECISION = 1e-10
# Bits of what is to be told finely.
_FINE = 16
# Agents beyond which averages that are exact in few rounds are not planned, so that a tree is always faster.
_PLANNED = 2000


def by_mixing(topology: Topology, bits: int | str) -> bool:
    """Say whether sums are mixed: where messages are exact and it takes fewer rounds than a tree."""
    if bits != 64 or topology.n_agents > _PLANNED:
        return False
    return max(len(topology.averaging_roots(PRECISION)), topology.diameter) < topology.tree.rounds


class StackedSums:
    """Sums of values that are all in this process, as agents would come by them and booked as they would send them."""

    def __init__(self, topology: Topology, bits: int | str, ledger: Ledger) -> None:
        self._topology, self._bits, self._ledger = topology, bits, ledger
        self._mixing = topology.n_agents > 1 and by_mixing(topology, bits)
        self._channels: dict[tuple[str, int, int], Channel] = {}

    @property
    def rounds(self) -> int:
        """Rounds of messages that a sum takes."""
        if self._mixing:
            return max(len(self._topology.averaging_roots(PRECISION)), self._topology.diameter)
        return self._topology.tree.rounds

    def most_bytes(self, request: Total) -> int:
        """Return what a sum takes at most."""
        rows, columns = request.value.shape[-2:]
        numbers, same = request.numbers.shape[-1], 0 if request.same is None else request.same.size
        if self._topology.n_agents == 1:
            return 0
        if self._mixing:
            mixed = 2 * len(self._topology.edges) * len(self._topology.averaging_roots(PRECISION))
            settled = 0 if request.settle is None else request.settle.nbytes * (self._topology.n_agents - 1)
            return int(8 * mixed * (rows * columns + same) + 8 * numbers * int(self._topology.relays.sum())) + settled
        return tree_bytes(self._topology, request, self._bits)

    def kept(self) -> dict[str, FloatArray]:
        """Return what there is to remember: what every channel's hearers know."""
        named = {f"{topic}/{speaker}/{kind}": channel for (topic, speaker, kind), channel in self._channels.items()}
        return {f"channel/{name}/{part}": x for name, channel in named.items() for part, x in channel.kept().items()}

    def take_up(self, kept: Mapping[str, FloatArray]) -> None:
        """Be again as it was when ``kept`` was taken."""
        self._channels.clear()
        for name in kept:
            if name.startswith("channel/") and name.endswith("/known"):
                _, topic, speaker, kind, _ = name.split("/")
                channel = Channel(self._bits if kind == "0" else fine_bits(self._bits))
                channel.take_up(kept[name], kept[name.removesuffix("known") + "before"])
                self._channels[topic, int(speaker), int(kind)] = channel

    def add_up(self, request: Total) -> Sum:
        """Return the sum of all agents' values."""
        rows, columns = request.value.shape[-2:]
        n = math.prod(request.value.shape[:-2])
        values, numbers = request.value.reshape(n, rows, columns), request.numbers.reshape(n, request.numbers.shape[-1])
        communicator = numbers.sum(axis=0)
        if self._topology.n_agents == 1:
            return Sum(values.sum(axis=0), communicator, request.same, request.settle)
        if self._mixing:
            # The numbers are not mixed but passed on, each agent's to everybody, so that all add up the same ones.
            mixed = rows * columns + (0 if request.same is None else request.same.size)
            self._ledger.everywhere(8 * mixed, times=len(self._topology.averaging_roots(PRECISION)))
            self._ledger.beside(8 * numbers.shape[1] * self._topology.relays)
            if request.settle is not None:
                for agent in self._topology.tree.order[1:].tolist():
                    parent = int(self._topology.tree.parent[agent])
                    self._ledger.along(parent, agent, request.settle.nbytes, messages=0)
            return Sum(values.sum(axis=0), communicator, request.same, request.settle)
        if self._bits == 64:
            for agent in self._topology.tree.order[1:].tolist():
                parent = int(self._topology.tree.parent[agent])
                for speaker, hearer in ((agent, parent), (parent, agent)):
                    self._ledger.along(speaker, hearer, 8 * (rows * columns + numbers.shape[1]))
            return Sum(values.sum(axis=0), communicator, request.same, request.settle)
        return Sum(self._over_tree(request, values, 8 * numbers.shape[1]), communicator, request.same, request.settle)

    def _over_tree(self, request: Total, values: FloatArray, beside: int) -> FloatArray:
        tree, ledger = self._topology.tree, self._ledger
        partial = values.copy()
        for agent in tree.order[:0:-1].tolist():
            parent = int(tree.parent[agent])
            told, size = self._tell(request, partial[agent], agent)
            partial[parent] += told
            ledger.along(agent, parent, size + beside)
        total, size = self._tell(request, partial[tree.order[0]], -1)
        for agent in tree.order[1:].tolist():
            ledger.along(int(tree.parent[agent]), agent, size + beside)
        return total

    def _tell(self, request: Total, value: FloatArray, speaker: int) -> tuple[FloatArray, int]:
        """Return a value as its hearers come to know it, and the bytes of the message; -1 speaks to everybody."""
        heard, size = [], 0
        for kind, columns, bits in coarse_parts(value.shape[1], request.fine, self._bits):
            channel = self._channels.setdefault((request.topic, speaker, kind), Channel(bits))
            if request.undo:
                channel.undo()
            if request.turn is not None:
                channel.turn(request.turn)
            size += len(channel.tell(value[:, columns], request.ignore))
            heard.append(channel.known)
        return (np.hstack(heard) if heard else value), size


class Channels:
    """The coarse channels that one process speaks and listens on; the root of the tree speaks to everybody as -1.

    Parameters
    ----------
    bits : int or "auto"
        Bits a number.
    """

    def __init__(self, bits: int | str) -> None:
        self._bits = bits
        self._channels: dict[tuple[str, int, int], Channel] = {}

    def prepare(self, request: Total) -> None:
        """Undo or turn what is known on a topic, if the request says so."""
        for (topic, _, _), channel in self._channels.items():
            if topic == request.topic:
                if request.undo:
                    channel.undo()
                if request.turn is not None:
                    channel.turn(request.turn)

    def tell(self, request: Total, value: FloatArray, speaker: int) -> bytes:
        """Return the message that tells a value."""
        told = b""
        for kind, columns, bits in coarse_parts(value.shape[1], request.fine, self._bits):
            told += self._channel(request.topic, speaker, kind, bits).tell(value[:, columns], request.ignore)
        return told

    def hear(
        self, request: Total, speaker: int, message: bytes, shape: Sequence[int], k: int
    ) -> tuple[FloatArray, FloatArray]:
        """Return the value that a message tells, and the k numbers beside it."""
        body, numbers = message[: len(message) - 8 * k], np.frombuffer(message[len(message) - 8 * k :], "<f8")
        heard = []
        parts = list(coarse_parts(shape[1], request.fine, self._bits))
        sizes = [len(range(shape[1])[columns]) for _, columns, _ in parts]
        for (kind, _, bits), width, piece in zip(parts, sizes, split_message(body, shape[0], sizes), strict=True):
            heard.append(self._channel(request.topic, speaker, kind, bits).hear(piece, (shape[0], width)))
        return (np.hstack(heard) if heard else np.zeros((shape[0], shape[1]))), np.array(numbers, dtype=np.float64)

    def known(self, topic: str, speaker: int, value: FloatArray) -> FloatArray:
        """Return a value as those know it who were told of it last; without a channel, as it is."""
        known = [
            self._channels[topic, speaker, kind].known for kind in (0, 1) if (topic, speaker, kind) in self._channels
        ]
        return np.hstack(known) if known else value

    def kept(self) -> dict[int, dict[str, FloatArray]]:
        """Return what there is to remember, speaker by speaker."""
        kept: dict[int, dict[str, FloatArray]] = {}
        for (topic, speaker, kind), channel in self._channels.items():
            arrays = {f"channel/{topic}/{kind}/{part}": x for part, x in channel.kept().items()}
            kept[speaker] = {**kept.get(speaker, {}), **arrays}
        return kept

    def take_up(self, kept: Mapping[int, Mapping[str, FloatArray]]) -> None:
        """Be again as it was when ``kept`` was taken."""
        self._channels.clear()
        for speaker, arrays in kept.items():
            for name in arrays:
                if name.startswith("channel/") and name.endswith("/known"):
                    _, topic, kind, _ = name.split("/")
                    bits = self._bits if kind == "0" else fine_bits(self._bits)
                    channel = self._channel(topic, speaker, int(kind), bits)
                    channel.take_up(arrays[name], arrays[name.removesuffix("known") + "before"])

    def _channel(self, topic: str, speaker: int, kind: int, bits: int | str) -> Channel:
        return self._channels.setdefault((topic, speaker, kind), Channel(bits))


def tree_bytes(topology: Topology, request: Total, bits: int | str) -> int:
    """Return what a sum along the tree takes at most, over all agents."""
    rows, columns = request.value.shape[-2:]
    fine = min(request.fine, columns)
    coarse = message_size((rows, columns - fine), 16 if bits == "auto" else int(bits))
    finest = message_size((rows, fine), int(fine_bits(bits)))
    return int(2 * (topology.n_agents - 1) * (coarse + finest + 8 * request.numbers.shape[-1]))


def coarse_parts(columns: int, fine: int, bits: int | str) -> Iterator[tuple[int, slice, int | str]]:
    """Yield what a coarse message is made of: which part it is, its columns, and their bits."""
    parts = (0, slice(0, columns - fine), bits), (1, slice(columns - fine, columns), fine_bits(bits))
    return (part for part in parts if part[1].stop > part[1].start)


def split_message(message: bytes, rows: int, widths: Sequence[int]) -> Iterator[bytes]:
    """Yield the parts of a message, of so many columns each."""
    for width in widths:
        size = message_size((rows, width), message[0]) if message else 0
        yield message[:size]
        message = message[size:]


def fine_bits(bits: int | str) -> int | str:
    """Return the bits of what is to be told finely: sixteen at least."""
    return max(bits, _FINE) if isinstance(bits, int) else _FINE
