"""The state of a neighbour as seen from one agent, and the timing of the protocol."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from elmesh.comm.network.edge_queue import EdgeQueue, SentMessage
from elmesh.comm.network.errors import LostError

__all__ = ["Counters", "LinkState", "Peer", "Timing", "check_patience"]


@dataclass(frozen=True)
class Timing:
    """Timing of the protocol, in seconds unless noted."""

    #: How long a neighbour may be absent before it is lost.
    patience: float = 600.0
    #: First and longest interval between requests for a message that is due.
    first_request: float = 0.2
    longest_request: float = 2.0
    #: Longest wait without checking for a request to stop.
    poll: float = 0.5
    #: A neighbour that is present but sends nothing due for so many times the patience is lost as well.
    mute_factor: float = 3.0
    #: How long to stay for a neighbour that is done and left before it acknowledged this agent's model; and for one
    #: that was not seen since this agent was restarted.
    grace: float = 30.0
    grace_unseen: float = 5.0
    #: At its end an agent waits longer than its patience, by this factor and these seconds: others may have to continue
    #: without an absent agent first.
    finish_factor: float = 1.25
    finish_extra: float = 2.0


@dataclass
class Counters:
    """Messages and bytes before encryption, for logs and metrics."""

    sent_messages: int = 0
    sent_bytes: int = 0
    received_messages: int = 0
    received_bytes: int = 0
    resent: int = 0
    duplicates: int = 0
    refused: int = 0
    reconnects: int = 0


@dataclass(eq=False)
class Peer:
    """A neighbour, as seen from here."""

    edge: EdgeQueue = field(default_factory=EdgeQueue)
    present: bool = False
    seen: bool = False
    changed: float = 0.0  # when it came or left
    delivered: float = 0.0  # when its last message that was due arrived
    run_id: int = 0  # its run, if it is known
    done: bool = False  # it has its model
    acknowledged: bool = False  # it knows that this agent has its model

    def is_absent(self, seconds: float, now: float) -> bool:
        """Return whether it has been absent for longer than that."""
        return not self.present and now - self.changed > seconds

    def is_lost(self, patience: float, mute_factor: float, now: float) -> bool:
        """Return whether waiting for it is useless: it is absent, or present and mute."""
        return self.is_absent(patience, now) or now - self.delivered > mute_factor * patience

    def needs_nothing(self, timing: Timing, now: float) -> bool:
        """Return whether it has its model, and has acknowledged this agent's or left for good."""
        # A neighbour that left may return soon, and would wait for this agent.
        grace = min(timing.grace if self.seen else timing.grace_unseen, timing.patience)
        return self.done and (self.acknowledged or self.is_absent(grace, now))


def check_patience(awaited: Mapping[str, Peer], timing: Timing, now: float) -> None:
    """Raise if neighbours that are waited for have been absent, or mute, for too long."""
    lost = [name for name, peer in awaited.items() if peer.is_absent(timing.patience, now)]
    if lost:
        seen = any(awaited[name].seen for name in lost)
        verb = f"{'has' if len(lost) == 1 else 'have'} {'been absent' if seen else 'not come'}"
        raise LostError(lost, f"{' and '.join(lost)} {verb} for more than {timing.patience:g} seconds.")
    mute = [name for name, peer in awaited.items() if peer.is_lost(timing.patience, timing.mute_factor, now)]
    if mute:
        verb, seconds = "has" if len(mute) == 1 else "have", timing.mute_factor * timing.patience
        raise LostError(mute, f"{' and '.join(mute)} {verb} sent nothing due for more than {seconds:g} seconds.")


@dataclass(frozen=True, eq=False)
class LinkState:
    """What a checkpoint holds of the link to a neighbour: its run, messages sent and received, and buffered ones."""

    run_id: int
    sent: int
    received: int
    buffered: tuple[SentMessage, ...]
