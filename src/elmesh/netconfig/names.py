"""Rules for the names of agents, networks, columns and categories, and for network addresses.

The name of an agent is also a folder, the common name of a certificate and a part of the keys of its messages. It is
therefore short and has few different characters. An address is ``host:port``, with brackets around a host that is an
IPv6 address.
"""

from __future__ import annotations

import ipaddress
import re
import unicodedata
from typing import NamedTuple

from elmesh.comm.network.wire import is_agent_name
from elmesh.errors import ElmeshError

__all__ = ["LAST_PORT", "ROUTER", "Address", "check_label", "check_name", "parse_address"]

#: The name of a router, which no agent may have.
ROUTER = "router"

LAST_PORT = 65535
_HOST_LABEL = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)")
_ADDRESS = re.compile(r"(?:\[(?P<ipv6>[0-9A-Fa-f:.]+)\]|(?P<host>[A-Za-z0-9._-]{1,253})):(?P<port>[0-9]{1,5})")

_LABEL_LENGTH = 200
# Control characters, surrogates, and line and paragraph separators.
_REFUSED_CATEGORIES = ("Cc", "Cs", "Zl", "Zp")


def check_name(what: str, text: str) -> str:
    """Return the name of an agent or of a network, or raise."""
    if not is_agent_name(text):
        raise ElmeshError(
            f"{what} is {text!r}; expected 1 to 32 of the characters a-z, 0-9, _ and -, the first a letter or a digit."
        )
    return text


def check_label(what: str, text: str) -> str:
    """Return the name of a column or of a category, or raise."""
    right_length = 0 < len(text) <= _LABEL_LENGTH and text == text.strip()
    if not right_length or any(unicodedata.category(letter) in _REFUSED_CATEGORIES for letter in text):
        raise ElmeshError(
            f"{what} is {text[:60]!r}{'...' * (len(text) > 60)}; expected 1 to {_LABEL_LENGTH} characters on one line, "
            "without spaces at either end."
        )
    return text


class Address(NamedTuple):
    """The host, in its canonical spelling, and the port of an agent or a router."""

    host: str
    port: int

    @property
    def ip(self) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
        """The host as an IP address; None if it is a name."""
        try:
            return ipaddress.ip_address(self.host)
        except ValueError:
            return None

    @property
    def is_unspecified(self) -> bool:
        """Whether the host stands for all addresses of a machine, such as 0.0.0.0; nothing can connect to it."""
        return self.ip is not None and self.ip.is_unspecified

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can connect to the host."""
        return self.host == "localhost" or (self.ip is not None and self.ip.is_loopback)

    @property
    def hosts(self) -> list[str]:
        """The hosts that a certificate must contain: this one, and all loopback names if it is one of them."""
        if self.is_loopback:
            return list(dict.fromkeys([self.host, "localhost", "127.0.0.1", "::1"]))
        return [self.host]

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(what: str, text: object) -> Address:
    """Parse ``host:port`` or ``[ipv6]:port``; ``what`` names the address in errors.

    Examples
    --------
    >>> parse_address("address", "North.Example.org:7451")
    Address(host='north.example.org', port=7451)
    >>> parse_address("address", "[0:0::1]:7451").hosts
    ['::1', 'localhost', '127.0.0.1']
    """
    found = _ADDRESS.fullmatch(text) if isinstance(text, str) else None
    port = int(found["port"]) if found else 0
    host = _canonical_host(found["ipv6"], found["host"]) if found else None
    if host is None or not 1 <= port <= LAST_PORT:
        raise ElmeshError(
            f"{what} is {text!r}; expected a host and a port from 1 to {LAST_PORT}, such as north.example.org:7451, "
            "192.0.2.7:7451 or [2001:db8::7]:7451."
        )
    return Address(host, port)


def _canonical_host(ipv6: str | None, host: str | None) -> str | None:
    """Return a host in its only accepted spelling, or None if it is invalid."""
    try:
        if ipv6 is not None:
            return str(ipaddress.IPv6Address(ipv6))
        labels = (host or "").lower().split(".")
        # Resolvers read abbreviated numeric hosts such as 127.1 in different ways, so only four numbers are accepted.
        if labels[-1].isdecimal():
            return str(ipaddress.IPv4Address(host))
    except ValueError:
        return None
    return ".".join(labels) if all(map(_HOST_LABEL.fullmatch, labels)) else None
