"""Lists with an entry of every agent, which all agents obtain by messages along the spanning tree."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from elmesh.comm.graph import Topology
from elmesh.comm.network.errors import RefusedError
from elmesh.comm.network.messenger import ReliableMessenger
from elmesh.comm.network.wire import NO_VIEW, Kind, Message, WireError

__all__ = ["TreeGather"]

_ENTRIES = dict[str, bytes]


class TreeGather:
    """Gathers entries of all agents; ``names`` are theirs, in the order of the graph."""

    def __init__(self, messenger: ReliableMessenger, names: Sequence[str], topology: Topology) -> None:
        self._messenger, self._names = messenger, list(names)
        tree, me = topology.tree, self._names.index(messenger.name)
        parent = int(tree.parent[me])
        self.parent = None if parent < 0 else self._names[parent]
        self.children = [self._names[k] for k in tree.order[::-1].tolist() if int(tree.parent[k]) == me]
        self._below = {name: self._subtree(topology, name) for name in self.children}
        #: Bytes that this agent has sent to each neighbour.
        self.sent: dict[str, int] = {}

    def _subtree(self, topology: Topology, name: str) -> set[str]:
        found = {self._names.index(name)}
        for agent in topology.tree.order.tolist():
            if int(topology.tree.parent[agent]) in found:
                found.add(agent)
        return {self._names[k] for k in found}

    def gather(
        self, entry: bytes, max_bytes: int, check: Callable[[str, bytes], None], view: bytes = NO_VIEW
    ) -> list[bytes]:
        """Return the entries of all agents, in their order.

        Parameters
        ----------
        entry : bytes
            This agent's own.
        max_bytes : int
            Bytes of the longest entry.
        check : callable
            Called with the name of an agent and its entry; raises :class:`WireError` if the entry is not its own.
        view : bytes
            What the header of messages carries, and must carry.
        """
        entries = {self._messenger.name: entry}
        if self.children:
            for name, message in self._messenger.receive(self.children, Kind.PARTIAL_LIST).items():
                entries |= self._read(name, message, self._below[name], max_bytes, view)
        if self.parent is None:
            whole = entries
        else:
            self._send(self.parent, Kind.PARTIAL_LIST, entries, view)
            message = self._messenger.receive([self.parent], Kind.LIST)[self.parent]
            whole = self._read(self.parent, message, set(self._names), max_bytes, view)
            if whole[self._messenger.name] != entry:
                raise self._messenger.refuse(self.parent, f"its list has another entry of {self._messenger.name}")
        for child in self.children:
            self._send(child, Kind.LIST, whole, view)
        for name in self._names:
            try:
                check(name, whole[name])
            except WireError as error:
                # Whoever has forwarded it could have changed it, so that only the entry is named.
                raise RefusedError([], f"The entry of {name} in a list of all sites was refused: {error}.") from None
        return [whole[name] for name in self._names]

    def _send(self, to: str, kind: Kind, entries: _ENTRIES, view: bytes) -> None:
        body = msgspec.msgpack.encode(entries, order="sorted")
        self.sent[to] = self.sent.get(to, 0) + len(body)
        self._messenger.send(to, kind, body, is_bytes=True, view=view)

    def _read(self, name: str, message: Message, expected: set[str], max_bytes: int, view: bytes) -> _ENTRIES:
        try:
            message.check_shape(0, 0, is_bytes=True)
            if message.view != view:
                raise WireError("it was sent other keys or other totals than this agent")
            if len(message.body) > len(expected) * (max_bytes + 64):
                raise WireError("its list is too long")
            try:
                entries = msgspec.msgpack.decode(message.body, type=_ENTRIES)
            except (ValueError, RecursionError):  # errors of msgspec, and text that is not UTF-8
                raise WireError("its list is not valid") from None
            if entries.keys() != expected or any(len(entry) > max_bytes for entry in entries.values()):
                raise WireError("its list has not one entry of each agent")
        except WireError as error:
            raise self._messenger.refuse(name, str(error)) from None
        return entries
