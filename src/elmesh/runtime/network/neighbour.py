"""A neighbour, as far as one can tell from here, and what has gone to and fro."""

from __future__ import annotations

from dataclasses import dataclass, field

from elmesh.runtime.network.edges import Edge, Said

__all__ = ["Counters", "Neighbour", "Stand"]


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


@dataclass(frozen=True, eq=False)
class Stand:
    """Where an agent stands with a neighbour: its run, messages said and heard, and what was said and is kept."""

    life: int
    said: int
    heard: int
    kept: tuple[Said, ...]
