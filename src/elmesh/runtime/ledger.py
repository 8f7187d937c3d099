"""What was sent, along which edge: every byte of every message, from whom to whom."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from elmesh.graph import Topology

__all__ = ["Ledger"]

Counts = NDArray[np.int64]


class Ledger:
    """Messages and bytes along both directions of every edge.

    A byte is one of a message's content as it goes out: the numbers in their bits, scales and marks included. What a
    transport adds to a message (addresses, checks, encryption) depends on the transport and is not counted, nor are the
    five numbers an agent and round by which a run is followed and stopped.
    """

    def __init__(self, topology: Topology) -> None:
        self._hearer, self._speaker = topology.ends
        self._place = {(int(s), int(h)): k for k, (h, s) in enumerate(zip(self._hearer, self._speaker, strict=True))}
        self._messages: Counts = np.zeros(len(self._hearer), np.int64)
        self._bytes: Counts = np.zeros(len(self._hearer), np.int64)
        self.total = 0

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
