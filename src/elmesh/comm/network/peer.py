"""A neighbour, as far as one can tell from here, and what has gone to and fro."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from elmesh.comm.network.edge_queue import Edge, Said
from elmesh.comm.network.errors import LostError

__all__ = ["Counters", "Neighbour", "Stand", "check_patience"]

# A neighbour that is there and says nothing that is due for so many patiences is given up as well.
_MUTE = 3.0
# Seconds to stay for a neighbour that has its model, and went before it said that it knows of this one's; and for one
# that was not seen since this agent has started again.
_GRACE, _GRACE_UNSEEN = 30.0, 5.0


@dataclass
class Counters:
    """What has gone through the post, before encryption: for logs and metrics."""

    sent_messages: int = 0
    sent_bytes: int = 0
    heard_messages: int = 0
    heard_bytes: int = 0
    again: int = 0
    duplicates: int = 0
    refused: int = 0
    returns: int = 0


@dataclass(eq=False)
class Neighbour:
    """A neighbour, as far as one can tell from here."""

    edge: Edge = field(default_factory=Edge)
    here: bool = False
    seen: bool = False
    since: float = 0.0  # when it came or went
    spoke: float = 0.0  # when it last said something that was due
    life: int = 0  # the run that it is in, if it is known
    done: bool = False  # it has its model
    knows: bool = False  # it knows that this agent has

    def is_away(self, patience: float, now: float) -> bool:
        """Say whether it has been away for longer than that."""
        return not self.here and now - self.since > patience

    def is_late(self, patience: float, now: float) -> bool:
        """Say whether there is no use in waiting for it any longer: it is away, or there and mute."""
        return self.is_away(patience, now) or now - self.spoke > _MUTE * patience

    def may_be_left(self, patience: float, now: float) -> bool:
        """Say whether it needs nothing more: it has its model, and knows of this agent's, or is gone for good."""
        # One that went may be back before long, and would wait for one that has left.
        return self.done and (self.knows or self.is_away(min(_GRACE if self.seen else _GRACE_UNSEEN, patience), now))


def check_patience(awaited: Mapping[str, Neighbour], patience: float, now: float) -> None:
    """Raise if some of those that are waited for have been away for too long, or there and mute."""
    lost = [name for name, other in awaited.items() if other.is_away(patience, now)]
    if lost:
        was = "has been away" if awaited[lost[0]].seen else "has not come"
        raise LostError(
            lost,
            f"{' and '.join(lost)} {was if len(lost) == 1 else 'have been away'} for more than {patience:g} seconds.",
        )
    mute = [name for name, other in awaited.items() if other.is_late(patience, now)]
    if mute:
        have = "has" if len(mute) == 1 else "have"
        raise LostError(mute, f"{' and '.join(mute)} {have} said nothing for more than {_MUTE * patience:g} seconds.")


@dataclass(frozen=True, eq=False)
class Stand:
    """Where an agent stands with a neighbour: its run, messages said and heard, and what was said and is kept."""

    life: int
    said: int
    heard: int
    kept: tuple[Said, ...]
