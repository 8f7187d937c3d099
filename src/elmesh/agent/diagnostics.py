"""Is the network sound? What one site can find out about its neighbours before a run, or beside one.

A neighbour is dialled twice: by TLS alone, which shows its certificate; and as agents do, to be asked for the time,
whose answer also tells which network file it goes by. Its run takes no notice.
"""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from elmesh.comm.network.wire import Kind, WireError, encode, parse
from elmesh.comm.network.zenoh_session import Transport
from elmesh.errors import ElmeshError
from elmesh.netconfig.identity import Identity

__all__ = ["Finding", "inquire"]

# Seconds for a connection, and to stay for others once all is known.
_DIAL, _POLITE = 3.0, 2.0
_LARGEST = 4096


@dataclass
class Finding:
    """What was found out about a neighbour.

    Attributes
    ----------
    name, address
        Which one.
    reachable
        Whether something at its address speaks TLS and lets this agent in.
    certificate
        The name in the certificate that it shows.
    valid_until
        Until when that certificate is good.
    answers
        Whether an agent, or a check, answers there.
    same_file
        Whether it has the same network file; None if it did not answer.
    clock
        Seconds that its clock is ahead of the one here; None if it did not answer.
    problem
        What is wrong, in words.
    """

    name: str
    address: str
    reachable: bool = False
    certificate: str | None = None
    valid_until: datetime | None = None
    answers: bool = False
    same_file: bool | None = None
    clock: float | None = None
    problem: str | None = None


def inquire(identity: Identity, seconds: float, listening: bool) -> list[Finding]:
    """Find out about every neighbour.

    Parameters
    ----------
    identity
        Who asks.
    seconds
        How long to wait for neighbours that are not there yet.
    listening
        Whether to be there for neighbours that check at the same time; not if this agent runs already.
    """
    plan = identity.plan
    address = {member.name: member.address for member in plan.members}
    found = {name: Finding(name, address[name]) for name in plan.neighbours(identity.name)}
    with _Asking(identity, found, listening) as asking:
        end = time.monotonic() + seconds
        while True:
            for finding in found.values():
                if not finding.reachable and not plan.routers:
                    _dial(identity, finding)
            asking.ask()
            if asking.wait(0.5):
                # Somebody who checks at the same time may be about to ask.
                asking.wait_to_be_asked(min(_POLITE, max(end - time.monotonic(), 0.0)))
                break
            if time.monotonic() >= end:
                break
    for finding in found.values():
        finding.problem = finding.problem or _problem(finding)
    return list(found.values())


def _problem(finding: Finding) -> str | None:
    if finding.same_file is False:
        return "it has another network file"
    if finding.certificate is not None and finding.certificate != finding.name:
        return f'it shows the certificate of "{finding.certificate}"'
    if not finding.answers:
        return "nobody answers, so neither its agent nor its check is running"
    return None


def _dial(identity: Identity, finding: Finding) -> None:
    """Connect by TLS alone and look at the certificate."""
    host, _, port = finding.address.rpartition(":")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_verify_locations(identity.authority)
        context.load_cert_chain(identity.certificate, identity.key)
        with (
            socket.create_connection((host.strip("[]"), int(port)), timeout=_DIAL) as plain,
            context.wrap_socket(plain, server_hostname=host.strip("[]")) as link,
        ):
            shown = link.getpeercert() or {}
    except ssl.SSLCertVerificationError as error:
        finding.problem = f"its certificate is not good: {error.verify_message}"
        return
    except ssl.SSLError as error:
        finding.problem = f"TLS fails: {(error.reason or 'no reason given').lower().replace('_', ' ')}"
        return
    except OSError as error:
        finding.problem = f"it cannot be reached: {(error.strerror or str(error)).lower()}"
        return
    finding.reachable, finding.problem = True, None
    subject: Sequence[Sequence[tuple[str, str]]] = shown.get("subject", ())  # type: ignore[assignment]
    finding.certificate = next((value for part in subject for key, value in part if key == "commonName"), None)
    ends = shown.get("notAfter")
    if isinstance(ends, str):
        finding.valid_until = datetime.fromtimestamp(ssl.cert_time_to_seconds(ends), UTC)


class _Asking:
    """A session that asks for the time, and tells it."""

    def __init__(self, identity: Identity, found: dict[str, Finding], listening: bool) -> None:
        self._me, self._digest, self._found = identity.name, identity.plan.digest, found
        self._change, self._asked = threading.Condition(), set[str]()
        try:
            self._transport = Transport(identity, _LARGEST, listening=listening)
        except ElmeshError:
            if not listening:
                raise
            # The agent itself is there: its neighbours are asked all the same.
            self._transport = Transport(identity, _LARGEST, listening=False)

    def __enter__(self) -> _Asking:
        self._transport.listen(self._arrive, lambda *_: None, present=False)
        return self

    def __exit__(self, *_: object) -> None:
        self._transport.close()

    def ask(self) -> None:
        """Ask everybody who has not answered yet."""
        for name, finding in self._found.items():
            if not finding.answers:
                asked = int(time.time() * 1e6)
                self._transport.put(name, encode(Kind.ASK, self._me, self._digest, number=asked))

    def wait(self, seconds: float) -> bool:
        """Wait until everybody has answered; say whether everybody has."""
        with self._change:
            return self._change.wait_for(lambda: all(f.answers for f in self._found.values()), seconds)

    def wait_to_be_asked(self, seconds: float) -> None:
        """Wait until everybody has asked as well, for so long."""
        with self._change:
            self._change.wait_for(lambda: self._asked >= self._found.keys(), seconds)

    def _arrive(self, sender: str, data: bytes) -> None:
        try:
            message = parse(data)
        except WireError:
            return
        if message.sender != sender:
            return
        if message.kind is Kind.ASK:
            body = int(time.time() * 1e6).to_bytes(8, "little")
            self._transport.put(sender, encode(Kind.CLOCK, self._me, self._digest, number=message.number, body=body))
            with self._change:
                self._asked.add(sender)
                self._change.notify_all()
        elif message.kind is Kind.CLOCK and len(message.body) == 8:
            with self._change:
                finding = self._found[sender]
                middle = (message.number / 1e6 + time.time()) / 2
                finding.clock = int.from_bytes(message.body, "little") / 1e6 - middle
                finding.answers, finding.same_file = True, message.digest == self._digest
                self._change.notify_all()
