"""What can come between agents: neighbours that are lost, refused or have ended, and agents that are asked to stop."""

from __future__ import annotations

from collections.abc import Collection

from elmesh.errors import ElmeshError

__all__ = ["FailedError", "LostError", "PeerError", "RefusedError", "RegroupedError", "StoppedError"]


class PeerError(ElmeshError):
    """Something that a run cannot go on with as it was.

    ``names`` says whose doing it is, and ``reason`` what others are told.
    """

    def __init__(self, names: Collection[str], text: str, reason: str | None = None) -> None:
        super().__init__(text)
        self.names, self.reason = frozenset(names), text if reason is None else reason


class LostError(PeerError):
    """Neighbours have been away for longer than this agent's patience."""


class RefusedError(PeerError):
    """A neighbour has said something that is not acceptable."""


class FailedError(PeerError):
    """A neighbour has ended without a result, or goes on without this agent."""


class StoppedError(ElmeshError):
    """The agent was asked to stop while it waited."""


class RegroupedError(ElmeshError):
    """Agents are gone for good, and the others go on without them."""

    def __init__(self, gone: frozenset[str], by: str) -> None:
        super().__init__(f"{by} goes on without {', '.join(sorted(gone))}.")
        self.gone, self.by = gone, by
