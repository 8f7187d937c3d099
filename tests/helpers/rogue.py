"""Somebody with a certificate who says what it likes: a zenoh session of its own, with none of an agent's manners."""

from __future__ import annotations

import json
import threading
import time
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import zenoh

from elmesh.comm.network.wire import Kind, Message, encode, parse
from elmesh.comm.network.zenoh_session import configuration
from elmesh.netconfig.config import NetworkConfig
from elmesh.netconfig.identity import Identity

HUGE = 1 << 40


class Rogue:
    """A session with somebody's files.

    Parameters
    ----------
    folder
        Whose: an agent's folder, as the network made it, or one that was tampered with.
    name
        Who it says that it is, if not the one that its certificate is of.
    change
        Changes zenoh's configuration before it is used.
    token
        Whether to be seen as there, under its name.
    """

    def __init__(
        self,
        folder: Path,
        name: str | None = None,
        change: Callable[[dict[str, Any]], None] = lambda config: None,
        token: bool = True,
    ) -> None:
        # Not Identity.read, which would refuse what is wrong with it.
        self.config = NetworkConfig.read(folder / "network.toml")
        self.name = name or tomllib.loads((folder / "agent.toml").read_text())["name"]
        files = {"key": "key.pem", "certificate": "certificate.pem", "authority": "ca.pem", "state": "state"}
        identity = Identity(self.name, self.config, folder, **{what: folder / file for what, file in files.items()})
        config = configuration(identity, HUGE, listening=False)
        config.pop("access_control")
        config["transport"].pop("shared_memory")  # as zenoh has it: on
        change(config)
        self.heard: list[tuple[str, bytes]] = []
        self.life = 0x5EED
        self._change = threading.Condition()
        self._session = zenoh.open(zenoh.Config.from_json5(json.dumps(config)))
        # All that there is, which nobody gives, and what an agent of this name is given.
        asked = ["elmesh/**", *(self.key(other, "to", self.name) for other in self.config.agent_names)]
        self._held: list[Any] = []
        for key in asked:
            self.ask(key)
        if token:
            self._held.append(self._session.liveliness().declare_token(self.key(self.name, "here")))

    def __enter__(self) -> Rogue:
        return self

    def __exit__(self, *_: object) -> None:
        self._session.close()

    def ask(self, key: str) -> None:
        """Ask for everything under a key that others say."""
        held = self._session.declare_subscriber(key, self._hear, allowed_origin=zenoh.Locality.REMOTE)
        self._held.append(held)

    def key(self, *parts: str) -> str:
        return "/".join(("elmesh", self.config.name, *parts))

    def _hear(self, sample: Any) -> None:
        with self._change:
            self.heard.append((str(sample.key_expr), sample.payload.to_bytes()))
            self._change.notify_all()

    def messages(self, *kinds: Kind) -> list[Message]:
        """What was heard so far of these kinds."""
        with self._change:
            found = [parse(data) for _, data in self.heard]
        return [message for message in found if not kinds or message.kind in kinds]

    def until(self, condition: Callable[[], bool], seconds: float = 60) -> None:
        """Wait for what comes to make something true."""
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, f"{self.name} waited in vain"
            with self._change:
                self._change.wait(0.05)

    def until_linked(self, count: int = 1, seconds: float = 60) -> None:
        self.until(lambda: len(self._session.info.links()) >= count, seconds)

    @property
    def links(self) -> int:
        return len(self._session.info.links())

    def put(self, key: str, data: bytes) -> None:
        """Publish anything anywhere."""
        self._session.put(key, data, congestion_control=zenoh.CongestionControl.BLOCK)

    def tell(self, to: str, data: bytes, under: str | None = None) -> None:
        """Say bytes to an agent, under a name."""
        self.put(self.key(under or self.name, "to", to), data)

    def say(
        self, to: str, kind: Kind, *, sender: str | None = None, digest: bytes | None = None, **fields: Any
    ) -> None:
        """Say a message as an agent would, but for what is given."""
        fields = {"life": self.life, **fields}
        self.tell(to, encode(kind, sender or self.name, digest or self.config.digest, **fields))
