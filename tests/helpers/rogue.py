"""A hostile session: it has a certificate, and sends anything under any name, sealed or not."""

from __future__ import annotations

import json
import os
import threading
import time
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import zenoh

from elmesh.comm.network.keys import RunKeys, make_bundle
from elmesh.comm.network.sealing import SealedSession
from elmesh.comm.network.wire import Kind, Message, encode, parse
from elmesh.comm.network.zenoh_session import session_configuration
from elmesh.netconfig.config import NetworkConfig
from elmesh.netconfig.identity import Identity
from helpers.network import LIMIT

HUGE = 1 << 40


class Rogue:
    """A hostile session.

    Parameters
    ----------
    folder
        An agent's folder, as the network made it or modified.
    name
        The name it claims, if it is not that of its certificate.
    change
        Changes zenoh's configuration before it is used.
    token
        Whether to be seen as present under its name.
    """

    def __init__(
        self,
        folder: Path,
        name: str | None = None,
        change: Callable[[dict[str, Any]], None] = lambda config: None,
        token: bool = True,
    ) -> None:
        # Not Identity.read, which would refuse invalid files.
        self.config = NetworkConfig.read(folder / "network.toml")
        self.name = name or tomllib.loads((folder / "agent.toml").read_text())["name"]
        files = {"key": "key.pem", "certificate": "certificate.pem", "authority": "ca.pem", "state": "state"}
        files |= {"log": "releases.jsonl", "gate": "gate.toml"}
        identity = Identity(self.name, self.config, folder, **{what: folder / file for what, file in files.items()})
        config = session_configuration(identity.endpoint(), HUGE, listening=False)
        config.pop("access_control")
        config["transport"].pop("shared_memory")  # the default of zenoh: on
        change(config)
        #: All frames, with their keys, and all messages that were opened.
        self.received: list[tuple[str, bytes]] = []
        self.opened: list[Message] = []
        self.run_id, self.keys = 0x5EED, RunKeys(os.urandom(32))
        credentials = identity.credentials()
        self.bundle = make_bundle(self.name, self.config.digest, self.run_id, self.keys, credentials)
        self.sealed = SealedSession(
            _Frames(self), self.name, self.config.digest, self.keys, self.bundle, credentials, routed=True
        )
        self.sealed.listen(self._on_message, lambda name: None, lambda *_: None)
        self._change = threading.Condition()
        self._session = zenoh.open(zenoh.Config.from_json5(json.dumps(config)))
        self._declared: list[Any] = []
        # Everything, which no agent grants, and what an agent of this name receives.
        for key in ["elmesh/**", *(self.key(other, "to", self.name) for other in self.config.agent_names)]:
            self.subscribe(key)
        if token:
            self.appear(self.name)

    def __enter__(self) -> Rogue:
        return self

    def __exit__(self, *_: object) -> None:
        self.sealed.close()
        self._session.close()

    def subscribe(self, key: str) -> None:
        """Subscribe to what others publish under a key."""
        self._declared.append(
            self._session.declare_subscriber(key, self._on_sample, allowed_origin=zenoh.Locality.REMOTE)
        )

    def appear(self, name: str) -> None:
        """Be seen as present under a name."""
        self._declared.append(self._session.liveliness().declare_token(self.key(name, "here")))

    def key(self, *parts: str) -> str:
        return "/".join(("elmesh", self.config.name, *parts))

    def _on_sample(self, sample: Any) -> None:
        key, data = str(sample.key_expr), sample.payload.to_bytes()
        with self._change:
            self.received.append((key, data))
            self._change.notify_all()
        sender = key.split("/")[2]
        if sender in self.config.agent_names:
            self.sealed.receive(sender, data)

    def _on_message(self, sender: str, data: bytes) -> None:
        with self._change:
            self.opened.append(parse(data))
            self._change.notify_all()

    def messages(self, *kinds: Kind) -> list[Message]:
        """Return the messages that were received and opened so far, of these kinds."""
        with self._change:
            return [message for message in self.opened if not kinds or message.kind in kinds]

    def until(self, condition: Callable[[], object], seconds: float = LIMIT) -> None:
        """Wait until something is true."""
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, f"{self.name} waited in vain"
            with self._change:
                self._change.wait(0.05)

    def until_linked(self) -> None:
        """Wait for a link to another session."""
        self.until(lambda: self.links >= 1)

    @property
    def links(self) -> int:
        return len(self._session.info.links())

    def put(self, key: str, data: bytes) -> None:
        """Publish anything anywhere."""
        self._session.put(key, data, congestion_control=zenoh.CongestionControl.BLOCK)

    def send_bytes(self, to: str, data: bytes, under: str | None = None) -> None:
        """Send bytes to an agent, under a name."""
        self.put(self.key(under or self.name, "to", to), data)

    def send(
        self, to: str, kind: Kind, *, sender: str | None = None, digest: bytes | None = None, **fields: Any
    ) -> None:
        """Send a sealed message as an agent would, except for the given fields; before keys are known, its own keys."""
        fields = {"run_id": self.run_id, **fields}
        self.sealed.put(to, encode(kind, sender or self.name, digest or self.config.digest, **fields))


class _Frames:
    """What carries the frames of a rogue's sealed session."""

    def __init__(self, rogue: Rogue) -> None:
        self._rogue = rogue

    def put(self, to: str, data: bytes) -> None:
        self._rogue.send_bytes(to, data)
