"""Credentials without certificates, and agents in memory that seal, mask and gather with them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from datetime import datetime

from elmesh.errors import ElmeshError


class NamedCredentials:
    """Credentials whose certificate is a name: whoever has the name can sign."""

    def __init__(self, name: str) -> None:
        self._name = name

    @property
    def chain(self) -> list[bytes]:
        return [self._name.encode()]

    @property
    def former_chains(self) -> list[list[bytes]]:
        return []

    def sign(self, data: bytes) -> bytes:
        return hashlib.sha256(self._name.encode() + data).digest()

    def verify(
        self, name: str, chain: Sequence[bytes], data: bytes, signature: bytes, at: datetime | None = None
    ) -> bytes:
        if list(chain) != [name.encode()]:
            raise ElmeshError("the certificate is that of another")
        if signature != hashlib.sha256(name.encode() + data).digest():
            raise ElmeshError("they are not signed with the key of the certificate")
        return chain[0]
