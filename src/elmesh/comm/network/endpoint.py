"""What a transport must know of a network and of one of its agents."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Endpoint"]


@dataclass(frozen=True)
class Endpoint:
    """One agent, or a router, and how it reaches the others."""

    network: str  # its name
    name: str  # of the agent, also the common name of its certificate
    neighbors: Mapping[str, tuple[str, ...]]  # of every agent, sorted
    addresses: Mapping[str, str]  # of every agent, "host:port"
    routers: tuple[str, ...]  # their addresses; without them agents connect to each other
    listen: str  # the address to listen at
    key: Path
    certificate: Path
    authority: Path  # the certificates of the authorities that are trusted
    digest: bytes  # SHA-256 of the network file
