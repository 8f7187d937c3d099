"""What agents, networks, columns and addresses may be called.

A name becomes a folder, the common name of a certificate and a part of the key that messages go under, so it is short
and of few characters. An address is ``host:port``, with brackets around the numbers of IPv6.
"""

from __future__ import annotations

import ipaddress
import re
import unicodedata
from typing import NamedTuple

from elmesh.errors import ElmeshError

__all__ = ["ROUTER", "Address", "check_name", "check_text", "is_name", "parse_address"]

#: The name of a router, which no agent has.
ROUTER = "router"

_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,31}")
_LABEL = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)")
_ADDRESS = re.compile(r"(?:\[(?P<six>[0-9A-Fa-f:.]+)\]|(?P<host>[A-Za-z0-9._-]{1,253})):(?P<port>[0-9]{1,5})")
_LONGEST_TEXT = 200
# Control characters, halves of characters, and ends of lines and paragraphs.
_UNFIT = ("Cc", "Cs", "Zl", "Zp")


class Address(NamedTuple):
    """Where an agent or a router is reached; two are equal if they are the same place by name or number."""

    host: str
    port: int

    @property
    def number(self) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
        """The host as an IP address; None if it is a name."""
        try:
            return ipaddress.ip_address(self.host)
        except ValueError:
            return None

    @property
    def is_everywhere(self) -> bool:
        """Whether it stands for all addresses of the machine, such as 0.0.0.0: to listen at, not to connect to."""
        return self.number is not None and self.number.is_unspecified

    @property
    def hosts(self) -> list[str]:
        """What a certificate must name for it: the host, and all names of this machine if it is this machine."""
        number = self.number
        if self.host == "localhost" or (number is not None and number.is_loopback):
            return list(dict.fromkeys([self.host, "localhost", "127.0.0.1", "::1"]))
        return [self.host]

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: object, what: str) -> Address:
    """Read an address.

    Parameters
    ----------
    text
        ``host:port`` or ``[v6]:port``, as somebody wrote it.
    what
        What it is called in errors.

    Examples
    --------
    >>> parse_address("North.Example.org:7451", "address")
    Address(host='north.example.org', port=7451)
    >>> parse_address("[0:0::1]:7451", "address").hosts
    ['::1', 'localhost', '127.0.0.1']
    """
    found = _ADDRESS.fullmatch(text) if isinstance(text, str) else None
    port = int(found["port"]) if found else 0
    host = _host(found["six"], found["host"]) if found else None
    if host is None or not 1 <= port <= 65535:
        raise ElmeshError(
            f"{what} is {text!r}; expected a host and a port from 1 to 65535, such as north.example.org:7451, "
            "192.0.2.7:7451 or [2001:db8::7]:7451."
        )
    return Address(host, port)


def _host(six: str | None, host: str | None) -> str | None:
    """Give a host in the one way it is written here, None if it is none."""
    try:
        if six is not None:
            return str(ipaddress.IPv6Address(six))
        labels = (host or "").lower().split(".")
        # Whatever ends in a number must be four of them, or a resolver would make what it likes of it.
        if labels[-1].isdecimal():
            return str(ipaddress.IPv4Address(host))
    except ValueError:
        return None
    return ".".join(labels) if all(map(_LABEL.fullmatch, labels)) else None


def is_name(text: object) -> bool:
    """Tell whether something may be the name of an agent or of a network.

    Examples
    --------
    >>> is_name("north-2"), is_name("North")
    (True, False)
    """
    return isinstance(text, str) and _NAME.fullmatch(text) is not None


def check_name(text: object, what: str) -> str:
    """Give a name back, or say what is wrong with it.

    Parameters
    ----------
    text
        The name.
    what
        What it is called in errors.
    """
    if not isinstance(text, str) or not is_name(text):
        raise ElmeshError(
            f"{what} is {text!r}; expected 1 to 32 of the characters a-z, 0-9, _ and -, the first a letter or a digit."
        )
    return text


def check_text(text: object, what: str) -> str:
    """Give the name of a column or a category back, or say what is wrong with it.

    Parameters
    ----------
    text
        The name.
    what
        What it is called in errors.
    """
    fit = isinstance(text, str) and 0 < len(text) <= _LONGEST_TEXT and text == text.strip()
    if not isinstance(text, str) or not fit or any(unicodedata.category(letter) in _UNFIT for letter in text):
        shown = repr(text)
        raise ElmeshError(
            f"{what} is {shown[:60]}{'...' * (len(shown) > 60)}; expected 1 to {_LONGEST_TEXT} characters on one line, "
            "without spaces around them."
        )
    return text
