"""The traffic log: messages and bytes along both directions of every edge."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from elmesh.comm.graph import Topology
from elmesh.typing import FloatArray, IndexArray

__all__ = ["TrafficLog"]

Counts = NDArray[np.int64]

_COUNTED = ("messages", "bytes", "metric_bytes")


class TrafficLog:
    """Messages and bytes along both directions of every edge.

    Bytes are those of a message's content as it is sent: the numbers in their bits, scales and markers included. They
    include the metrics of each round (objective, residuals, distance from consensus), which are summed along the
    spanning tree unless every agent knows them anyway; these are also counted by themselves. Not counted is what a
    transport adds (addresses, checks, encryption, requests to stop).
    """

    def __init__(self, topology: Topology, counts: Counts | None = None) -> None:
        self._receiver, self._sender = topology.ends
        self._index = {(int(s), int(r)): k for k, (r, s) in enumerate(zip(self._receiver, self._sender, strict=True))}
        zeros = np.zeros((3, len(self._receiver)), np.int64)
        self._messages, self._bytes, self._metric_bytes = zeros if counts is None else counts
        self.total = int(self._bytes.sum())
        # Edges sorted by sender and receiver, and where those of each sender begin.
        self._order = np.lexsort((self._receiver, self._sender))
        self._starts = np.searchsorted(self._sender[self._order], np.arange(topology.n_agents + 1)).tolist()
        self._edges_of: dict[bytes, IndexArray] = {}  # the edges of groups of senders, which recur

    def record_all(self, size: int, times: int = 1) -> None:
        """Record a message of this size along both directions of every edge, so many times."""
        self._messages += times
        self._bytes += size * times
        self.total += size * times * len(self._bytes)

    def record_extra(self, sizes: Counts) -> None:
        """Record bytes within messages that are recorded already, one number per direction of an edge."""
        self._bytes += sizes
        self.total += int(sizes.sum())

    def record(self, sender: int, receiver: int, size: int, messages: int = 1, *, metrics: bool = False) -> None:
        """Record one message, or with ``messages=0`` bytes within one that is recorded already."""
        edge = self._index[sender, receiver]
        self._messages[edge] += messages
        self._bytes[edge] += size
        self._metric_bytes[edge] += size * metrics
        self.total += size

    def record_senders(self, agents: IndexArray, size: int) -> None:
        """Record a message of this size from each of these agents to each of its neighbours."""
        key = agents.tobytes()
        if key not in self._edges_of:
            self._edges_of[key] = np.flatnonzero(np.isin(self._sender, agents))
        edges = self._edges_of[key]
        self._messages[edges] += 1
        self._bytes[edges] += size
        self.total += size * len(edges)

    def counts(self) -> Counts:
        """Return messages, bytes and bytes of metrics along each direction of an edge."""
        return np.stack([self._messages, self._bytes, self._metric_bytes])

    def state_dict(self, agents: IndexArray) -> dict[int, dict[str, FloatArray]]:
        """Return the counts of each of these senders as arrays."""
        counts = self.counts()[:, self._order].astype(np.float64)
        parts = {agent: slice(*self._starts[agent : agent + 2]) for agent in agents.tolist()}
        return {agent: dict(zip(_COUNTED, counts[:, part], strict=True)) for agent, part in parts.items()}

    def load_state_dict(self, state: Mapping[int, Mapping[str, FloatArray]]) -> None:
        """Set the counts of senders from :meth:`state_dict`."""
        for agent, arrays in state.items():
            edges = self._order[slice(*self._starts[agent : agent + 2])]
            self._messages[edges], self._bytes[edges], self._metric_bytes[edges] = (arrays[name] for name in _COUNTED)
        self.total = int(self._bytes.sum())

    def table(self, labels: Sequence[object]) -> pd.DataFrame:
        """Return a row per direction of an edge: sender, receiver, messages, bytes and ``metric_bytes``."""
        names, order = np.array(labels), self._order
        return pd.DataFrame(
            {
                "sender": names[self._sender[order]],
                "receiver": names[self._receiver[order]],
                **dict(zip(_COUNTED, self.counts()[:, order], strict=True)),
            }
        )
