"""What a transport must know of a network and of one of its agents."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Endpoint"]


@dataclass(frozen=True)
class Endpoint:
    """One agent, or a router, and how it reaches the others.

    Parameters
    ----------
    network : str
        The network's name.
    name : str
        The agent's name, also the common name of its certificate.
    neighbors : mapping
        Every agent's neighbours, sorted.
    addresses : mapping
        Every agent's address, "host:port".
    routers : tuple of str
        Addresses of routers; without them agents connect to each other.
    listen : str
        The address to listen at.
    key, certificate, authority : Path
        The private key, its certificate, and the certificates of the authorities that are trusted.
    digest : bytes
        SHA-256 of the network file.
    """

    network: str
    name: str
    neighbors: Mapping[str, tuple[str, ...]]
    addresses: Mapping[str, str]
    routers: tuple[str, ...]
    listen: str
    key: Path
    certificate: Path
    authority: Path
    digest: bytes
