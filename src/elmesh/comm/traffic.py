"""What was sent, along which edge: every byte of every message, from whom to whom."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from elmesh.comm.graph import Topology

__all__ = ["Ledger"]

Counts = NDArray[np.int64]


class Ledger:
    """Messages and bytes along both directions of every edge.

    A byte is one of a message's content as it goes out: the numbers in their bits, scales and marks included. What a
    transport adds to a message (addresses, checks, encryption) depends on the transport and is not counted, nor are the
    five numbers an agent and round by which a run is followed and stopped.
    """

    def __init__(self, topology: Topology, counts: Counts | None = None) -> None:
        self._hearer, self._speaker = topology.ends
        self._place = {(int(s), int(h)): k for k, (h, s) in enumerate(zip(self._hearer, self._speaker, strict=True))}
        self._messages, self._bytes = np.zeros((2, len(self._hearer)), np.int64) if counts is None else counts
        self.total = int(self._bytes.sum())
        #: Edges of groups of agents that have spoken; it is always the same ones that do.
        self._edges_of: dict[bytes, NDArray[np.intp]] = {}

    def everywhere(self, size: int, times: int = 1) -> None:
        """Book a message of this size along both directions of every edge, so many times."""
        self._messages += times
        self._bytes += size * times
        self.total += size * times * len(self._bytes)

    def beside(self, sizes: Counts) -> None:
        """Book bytes that go in messages booked already: so many along each direction of an edge."""
        self._bytes += sizes
        self.total += int(sizes.sum())

    def along(self, speaker: int, hearer: int, size: int, messages: int = 1) -> None:
        """Book one message, or bytes in one that is booked already."""
        edge = self._place[speaker, hearer]
        self._messages[edge] += messages
        self._bytes[edge] += size
        self.total += size

    def spoken(self, agents: NDArray[np.intp], size: int) -> None:
        """Book a message of this size from each of these agents to each of its neighbours."""
        key = agents.tobytes()
        if key not in self._edges_of:
            self._edges_of[key] = np.flatnonzero(np.isin(self._speaker, agents))
        edges = self._edges_of[key]
        self._messages[edges] += 1
        self._bytes[edges] += size
        self.total += size * len(edges)

    def counts(self) -> Counts:
        """Return messages and bytes along each direction of an edge."""
        return np.stack([self._messages, self._bytes])

    def kept_of(self, agent: int) -> dict[str, NDArray[np.float64]]:
        """Return what there is to remember of one agent's words."""
        edges = self._speaker == agent
        return {"messages": self._messages[edges].astype(np.float64), "bytes": self._bytes[edges].astype(np.float64)}

    def take_up_of(self, agent: int, kept: Mapping[str, NDArray[np.float64]]) -> None:
        """Be again, for one agent's words, as it was when ``kept`` was taken."""
        edges = self._speaker == agent
        self._messages[edges], self._bytes[edges] = kept["messages"], kept["bytes"]
        self.total = int(self._bytes.sum())

    def kept(self) -> dict[str, NDArray[np.float64]]:
        """Return what there is to remember."""
        return {"messages": self._messages.astype(np.float64), "bytes": self._bytes.astype(np.float64)}

    def take_up(self, kept: Mapping[str, NDArray[np.float64]]) -> None:
        """Be again as it was when ``kept`` was taken."""
        self._messages, self._bytes = kept["messages"].astype(np.int64), kept["bytes"].astype(np.int64)
        self.total = int(self._bytes.sum())

    def table(self, labels: Sequence[object]) -> pd.DataFrame:
        """Return a row for each direction of each edge: ``speaker``, ``hearer``, ``messages``, ``bytes``."""
        names = np.array(labels)
        order = np.lexsort((self._hearer, self._speaker))
        return pd.DataFrame(
            {
                "speaker": names[self._speaker[order]],
                "hearer": names[self._hearer[order]],
                "messages": self._messages[order],
                "bytes": self._bytes[order],
            }
        )
