"""End-to-end encryption between neighbours, over a session that a router may forward.

TLS ends at a router. So messages are encrypted and authenticated once more, by ChaCha20-Poly1305 under keys that only
the two neighbours have: a router can neither read nor invent one. The keys, one for each direction, come from the
neighbours' keys of the run (:mod:`elmesh.comm.network.keys`), whose bundles they send each other first, and again to a
neighbour that has lost them. Each frame has a random nonce. What cannot be opened is dropped: the reliable messenger
above asks again for what is missing.

A frame begins with four bytes: ``ELH1`` a key bundle, ``ELH2`` a key bundle that asks for the receiver's, ``ELS1`` a
sealed message. Pings of ``elmesh network check``, which has no run and no keys, pass as they are.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from elmesh.comm.network.keys import Credentials, PublicKeys, RunKeys, open_bundle
from elmesh.comm.network.messenger import Log, Session
from elmesh.comm.network.wire import Kind, WireError, kind_of
from elmesh.comm.network.worker import Worker

__all__ = ["SEALED_BYTES", "SealedSession"]

_KEYS, _KEYS_WANTED, _SEALED = b"ELH1", b"ELH2", b"ELS1"
_NONCE, _TAG = 12, 16
#: Bytes that sealing adds to a message.
SEALED_BYTES = len(_SEALED) + _NONCE + _TAG


@dataclass(frozen=True)
class _Link:
    """The keys of a neighbour, and the ciphers of both directions."""

    keys: PublicKeys
    outgoing: ChaCha20Poly1305
    incoming: ChaCha20Poly1305


class SealedSession:
    """A session whose messages only the neighbours themselves can read.

    Parameters
    ----------
    inner : Session
        What carries the frames.
    name, network : str, bytes
        This agent, and the digest of its network file.
    keys, bundle : RunKeys, bytes
        The agent's keys of the run, and its key bundle.
    credentials : Credentials
        Whom to trust.
    routed : bool
        Whether a router forwards frames. Then it may have made what is not valid, and no site is blamed for it.
    log : callable
        Receives the event "dropped".
    """

    def __init__(
        self,
        inner: Session,
        name: str,
        network: bytes,
        keys: RunKeys,
        bundle: bytes,
        credentials: Credentials,
        *,
        routed: bool = False,
        log: Log = lambda *_, **__: None,
    ) -> None:
        self._inner, self._name, self._network, self._routed = inner, name, network, routed
        self._keys, self.bundle, self._credentials, self._log = keys, bundle, credentials, log
        self._links: dict[str, _Link] = {}
        self._lock = threading.Lock()
        self._on_message: Callable[[str, bytes], None] = lambda *_: None
        self._on_link: Callable[[str], None] = lambda *_: None
        self._on_invalid: Callable[[str, str], None] = lambda *_: None
        self._worker = Worker(lambda error: log("worker", problem=type(error).__name__))

    def listen(
        self,
        on_message: Callable[[str, bytes], None],
        on_link: Callable[[str], None],
        on_invalid: Callable[[str, str], None],
    ) -> None:
        """Set whom to call: with opened messages, with a neighbour whose keys are new, and with invalid frames."""
        self._on_message, self._on_link, self._on_invalid = on_message, on_link, on_invalid

    def put(self, to: str, data: bytes) -> None:
        """Send a message to a neighbour; if its keys are not known yet, ask for them instead."""
        if _is_ping(data):
            self._inner.put(to, data)
            return
        with self._lock:
            link = self._links.get(to)
        if link is None:
            self._inner.put(to, _KEYS_WANTED + self.bundle)
            return
        nonce = os.urandom(_NONCE)
        self._inner.put(to, _SEALED + nonce + link.outgoing.encrypt(nonce, data, self._context(self._name, to)))

    def receive(self, sender: str, frame: bytes) -> None:
        """Process a frame from a neighbour, whose name the inner session has authenticated as far as a router can."""
        head, body = frame[:4], frame[4:]
        if head == _SEALED:
            data = self._open(sender, body)
            if data is not None:
                self._on_message(sender, data)
        elif head in (_KEYS, _KEYS_WANTED):
            self._on_keys(sender, body, wanted=head == _KEYS_WANTED)
        elif _is_ping(frame):
            self._on_message(sender, frame)
        else:
            self._invalid(sender, "it is not in the format of this version")

    def close(self) -> None:
        """Answer no more requests for keys."""
        self._worker.close()

    def keys_of(self, name: str) -> PublicKeys | None:
        """Return the keys of a neighbour, if they are known."""
        link = self._links.get(name)
        return None if link is None else link.keys

    def _open(self, sender: str, body: bytes) -> bytes | None:
        with self._lock:
            link = self._links.get(sender)
        if link is not None:
            try:
                return link.incoming.decrypt(body[:_NONCE], body[_NONCE:], self._context(sender, self._name))
            except (InvalidTag, ValueError):
                pass
        # It has keys of another run of this agent, or this agent has none of its own yet.
        self._worker.submit("keys", sender, lambda: self._inner.put(sender, _KEYS_WANTED + self.bundle))
        return None

    def _on_keys(self, sender: str, bundle: bytes, wanted: bool) -> None:
        try:
            keys = open_bundle(bundle, self._network, self._credentials)
            if keys.name != sender:
                raise WireError(f"the keys are those of {keys.name}")
            link = self._link(keys)
        except WireError as error:
            self._invalid(sender, str(error))
            return
        with self._lock:
            known = self._links.get(sender)
            is_new = known is None or known.keys != keys
            if is_new:
                self._links[sender] = link
        if wanted:
            self._worker.submit("keys", sender, lambda: self._inner.put(sender, _KEYS + self.bundle))
        if is_new:
            self._worker.submit("link", sender, lambda: self._on_link(sender))

    def _invalid(self, sender: str, reason: str) -> None:
        if self._routed:
            self._log("dropped", name=sender, reason=reason)
        else:
            self._on_invalid(sender, reason)

    def _link(self, keys: PublicKeys) -> _Link:
        own = self._keys.mask
        try:
            shared = own.key.exchange(X25519PublicKey.from_public_bytes(keys.agreement))
        except ValueError:
            # A point of low order gives the same secret with every key.
            raise WireError("the key for agreement is not valid") from None
        pair = b"".join(sorted([own.public, keys.agreement]))

        def cipher(sender: str, receiver: str) -> ChaCha20Poly1305:
            context = b"elmesh link " + self._context(sender, receiver)
            return ChaCha20Poly1305(HKDF(hashes.SHA256(), 32, pair, context).derive(shared))

        return _Link(keys, cipher(self._name, keys.name), cipher(keys.name, self._name))

    def _context(self, sender: str, receiver: str) -> bytes:
        return f"{sender}\n{receiver}\n".encode() + self._network


def _is_ping(frame: bytes) -> bool:
    """Return whether a frame is a message of ``elmesh network check``, or the answer to one."""
    try:
        return kind_of(frame) in (Kind.PING, Kind.PONG)
    except WireError:
        return False
