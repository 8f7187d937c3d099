"""Rules for the names of agents, networks, columns and categories.

The name of an agent is also a folder, the common name of a certificate and a part of the keys of its messages. It is
therefore short and has few different characters.
"""

from __future__ import annotations

import unicodedata

from elmesh.comm.network.wire import is_agent_name
from elmesh.errors import ElmeshError

__all__ = ["ROUTER", "check_label", "check_name"]

#: The name of a router, which no agent may have.
ROUTER = "router"

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
