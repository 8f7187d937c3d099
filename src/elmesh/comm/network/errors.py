"""What ends or interrupts a run of a network: lost, refused or failed peers, evictions, and stop requests."""

from __future__ import annotations

from collections.abc import Collection

from elmesh.errors import ElmeshError

__all__ = ["EvictionError", "FailedError", "LostError", "PeerError", "RefusedError", "StoppedError"]


class PeerError(ElmeshError):
    """A peer that a run cannot continue with.

    ``names`` are the peers concerned, and ``reason`` is what the others are sent.
    """

    def __init__(self, names: Collection[str], text: str, reason: str | None = None) -> None:
        super().__init__(text)
        self.names, self.reason = frozenset(names), text if reason is None else reason


class LostError(PeerError):
    """Neighbours were absent for longer than this agent's patience."""


class RefusedError(PeerError):
    """A neighbour sent an invalid message."""


class FailedError(PeerError):
    """A neighbour ended without a result, or continues without this agent."""


class StoppedError(ElmeshError):
    """The agent was asked to stop while it waited."""


class EvictionError(ElmeshError):
    """Other agents continue without some that were evicted."""

    def __init__(self, evicted: frozenset[str], by: str) -> None:
        super().__init__(f"{by} continues without {', '.join(sorted(evicted))}.")
        self.evicted, self.by = evicted, by
