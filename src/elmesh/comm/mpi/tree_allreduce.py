"""Sums over all agents along the graph's spanning tree, by MPI: the same to the bit, however agents are spread.

Every agent adds its children's partial sums to its own in the order that the tree fixes, and passes them on; where
child and parent are in one process there is no message. The root's sum goes to everybody.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elmesh.comm.allreduce import Channels, tree_bytes
from elmesh.comm.graph import Topology
from elmesh.comm.requests import Sum, Total
from elmesh.comm.traffic import Ledger
from elmesh.typing import FloatArray

__all__ = ["TreeSums"]


class TreeSums:
    """Sums over the agents of all processes.

    Parameters
    ----------
    comm : mpi4py communicator
        All processes.
    topology : Topology
        All agents.
    ranks : ndarray of int of shape (m,)
        The process of each.
    bits : int or "auto"
        Bits a number.
    ledger : Ledger
        Where this process's agents book what they say.
    """

    def __init__(self, comm: Any, topology: Topology, ranks: NDArray[np.intp], bits: int | str, ledger: Ledger) -> None:
        self._comm, self._bits, self._ledger = comm, bits, ledger
        self._topology, self._tree = topology, topology.tree
        rank = comm.Get_rank()
        self._ranks = ranks.tolist()
        self._place = {agent: k for k, agent in enumerate(np.flatnonzero(ranks == rank).tolist())}
        parent = self._tree.parent.tolist()
        # From the leaves to the root: before an agent passes its sum on, its children have passed on theirs.
        inwards = self._tree.order[::-1].tolist()
        self._mine = [agent for agent in inwards if agent in self._place]
        self._parent = {agent: parent[agent] for agent in self._mine}
        self._children: dict[int, list[int]] = {agent: [] for agent in self._mine}
        for agent in inwards:
            if parent[agent] in self._children:
                self._children[parent[agent]].append(agent)
        self._root = inwards[-1]
        self._buffers: dict[int, _Exact] = {}
        self._channels = Channels(bits)

    @property
    def rounds(self) -> int:
        """Rounds of messages that a sum takes."""
        return self._tree.rounds

    def most_bytes(self, request: Total) -> int:
        """Return what a sum takes at most, over all agents."""
        return tree_bytes(self._topology, request, self._bits)

    def add_up(self, request: Total) -> Sum:
        """Return the sum of all agents' values."""
        values, numbers = request.value, request.numbers
        if self._topology.n_agents == 1:
            return Sum(values[0], numbers[0], request.same, request.settle)
        shape, k = values.shape[1:], numbers.shape[-1]
        if self._bits == 64:
            n = int(np.prod(shape))
            flat = np.concatenate([values.reshape(len(values), n), numbers], axis=-1)
            communicator = self.exact(flat)
            self._book(8 * (n + k))
            return Sum(communicator[:n].reshape(shape), communicator[n:], request.same, request.settle)
        value, sums = self._coarse(request)
        return Sum(value, sums, request.same, request.settle)

    def exact(self, rows: FloatArray) -> FloatArray:
        """Return the sum of a row an agent, in the order of the tree."""
        size = rows.shape[1]
        if size not in self._buffers:
            self._buffers[size] = _Exact(self._comm, size, self._mine, self._parent, self._children, self._ranks)
        partial = self._buffers[size].inwards(rows, self._place)
        total = np.empty(size) if partial is None else partial
        self._comm.Bcast(total, self._ranks[self._root])
        return total

    @property
    def far(self) -> list[int]:
        """Agents of other processes whose words this one remembers."""
        return sorted({child for children in self._children.values() for child in children if child not in self._place})

    def kept(self) -> dict[int, dict[str, FloatArray]]:
        """Return what there is to remember, speaker by speaker; the root speaks to everybody as -1."""
        return self._channels.kept()

    def take_up(self, kept: Mapping[int, Mapping[str, FloatArray]]) -> None:
        """Be again as it was when ``kept`` was taken."""
        self._channels.take_up(kept)

    def _book(self, size: int) -> None:
        for agent in self._mine:
            if agent != self._root:
                self._ledger.along(agent, self._parent[agent], size)
            for child in self._children[agent]:
                self._ledger.along(agent, child, size)

    def _coarse(self, request: Total) -> tuple[FloatArray, FloatArray]:
        """Add up values that are told in few bits; numbers go beside them as they are."""
        self._channels.prepare(request)
        partial, sending = self._inwards(request)
        told = self._outwards(request, partial)
        for message, _ in sending:
            message.Wait()
        return told

    def _inwards(self, request: Total) -> tuple[tuple[FloatArray, FloatArray] | None, list[tuple[Any, bytes]]]:
        """Pass partial sums on to the root; return the sum where it is, and messages that are on their way."""
        shape, k = request.value.shape[1:], request.numbers.shape[-1]
        heard: dict[int, tuple[FloatArray, FloatArray]] = {}
        sending: list[tuple[Any, bytes]] = []
        for agent in self._mine:
            value, numbers = request.value[self._place[agent]].copy(), request.numbers[self._place[agent]].copy()
            for child in self._children[agent]:
                if child not in heard:
                    heard[child] = self._channels.hear(request, child, self._receive(child), shape, k)
                value += heard[child][0]
                numbers += heard[child][1]
            if agent == self._root:
                return (value, numbers), sending
            parent = self._parent[agent]
            message = self._channels.tell(request, value, agent)
            self._ledger.along(agent, parent, len(message) + 8 * k)
            if parent in self._place:
                heard[agent] = self._channels.known(request.topic, agent, value), numbers
            else:
                data = message + numbers.tobytes()
                sending.append((self._comm.Isend(data, self._ranks[parent], agent), data))
        return None, sending

    def _outwards(self, request: Total, partial: tuple[FloatArray, FloatArray] | None) -> tuple[FloatArray, FloatArray]:
        """Tell everybody the root's sum."""
        comm, root = self._comm, self._ranks[self._root]
        message = b"" if partial is None else self._channels.tell(request, partial[0], -1) + partial[1].tobytes()
        size = np.array([len(message)])
        comm.Bcast(size, root)
        buffer = bytearray(int(size[0])) if partial is None else bytearray(message)
        comm.Bcast(buffer, root)
        for agent in self._mine:
            for child in self._children[agent]:
                self._ledger.along(agent, child, int(size[0]))
        if partial is not None:
            return self._channels.known(request.topic, -1, partial[0]), partial[1]
        return self._channels.hear(request, -1, bytes(buffer), request.value.shape[1:], request.numbers.shape[-1])

    def _receive(self, child: int) -> bytes:
        rank, status = self._ranks[child], self._status()
        self._comm.Probe(rank, child, status)
        buffer = bytearray(status.Get_count())
        self._comm.Recv(buffer, rank, child)
        return bytes(buffer)

    @staticmethod
    def _status() -> Any:
        from mpi4py import MPI  # noqa: PLC0415  (only where MPI runs)

        return MPI.Status()


class _Exact:
    """Buffers and persistent messages for partial sums of one size, made once."""

    def __init__(
        self,
        comm: Any,
        size: int,
        mine: Sequence[int],
        parent: dict[int, int],
        children: dict[int, list[int]],
        ranks: Sequence[int],
    ) -> None:
        rank = comm.Get_rank()
        self._mine, self._parent, self._children = mine, parent, children
        far = [child for agent in mine for child in children[agent] if ranks[child] != rank]
        up = [agent for agent in mine if parent[agent] >= 0 and ranks[parent[agent]] != rank]
        self._in = {child: np.empty(size) for child in far}
        self._out = {agent: np.empty(size) for agent in up}
        self._receive = {child: comm.Recv_init(x, ranks[child], child) for child, x in self._in.items()}
        self._send = {agent: comm.Send_init(x, ranks[parent[agent]], agent) for agent, x in self._out.items()}

    def inwards(self, rows: FloatArray, place: dict[int, int]) -> FloatArray | None:
        """Pass partial sums on to the root; return the sum where it is."""
        for message in self._receive.values():
            message.Start()
        partial: dict[int, FloatArray] = {}
        total: FloatArray | None = None
        for agent in self._mine:
            own = self._out.get(agent)
            own = np.empty(rows.shape[1]) if own is None else own
            own[:] = rows[place[agent]]
            for child in self._children[agent]:
                if child in self._receive:
                    self._receive[child].Wait()
                    own += self._in[child]
                else:
                    own += partial.pop(child)
            if agent in self._send:
                self._send[agent].Start()
            elif self._parent[agent] < 0:
                total = own
            else:
                partial[agent] = own
        for message in self._send.values():
            message.Wait()
        return total
