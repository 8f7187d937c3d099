"""Checks of a network from one site: its neighbours' certificates, clocks and network files.

A neighbour is connected to twice: by TLS alone, which shows its certificate; and as agents do, to be pinged for its
time, and its answer also shows its network file. A run of its agent is not affected.
"""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import cast

from cryptography import x509

from elmesh.comm.network.endpoint import Endpoint
from elmesh.comm.network.messenger import Session
from elmesh.comm.network.wire import Kind, WireError, encode, parse
from elmesh.comm.network.zenoh_session import ZenohSession
from elmesh.errors import ElmeshError
from elmesh.netconfig.pki.revocation import Revocations

__all__ = ["PeerCheck", "Pinger", "check_neighbors"]

# Seconds for a connection, and to stay for others that check at the same time.
_CONNECT, _STAY = 3.0, 2.0
_MAX_MESSAGE = 4096


@dataclass
class PeerCheck:
    """What was found out about a neighbour; None where it is not known."""

    name: str
    address: str
    reachable: bool = False  # something at its address answers by TLS and accepts this agent
    certificate: str | None = None  # the name in its certificate
    valid_until: datetime | None = None  # the end of the certificate's validity
    answers: bool = False  # its agent, or its own check, answers
    same_file: bool | None = None  # it has the same network file
    clock: float | None = None  # seconds by which its clock is ahead
    problem: str | None = None


def check_neighbors(endpoint: Endpoint, seconds: float, listening: bool, revocations: Revocations) -> list[PeerCheck]:
    """Check every neighbour, and wait so many seconds for those that do not answer yet.

    With ``listening`` neighbours that check at the same time can connect; not if this agent runs already.
    """
    neighbors = endpoint.neighbors[endpoint.name]
    checks = {name: PeerCheck(name, endpoint.addresses[name]) for name in neighbors}
    session = _open_session(endpoint, listening)
    try:
        pinger = Pinger(endpoint, checks, session)
        session.listen(pinger.on_message, lambda *_: None, present=False)
        end = time.monotonic() + seconds
        while True:
            for check in checks.values():
                if not check.reachable and not endpoint.routers:
                    _connect(endpoint, check, revocations)
            pinger.ping()
            if pinger.wait_for_answers(0.5):
                # Others that check at the same time may be about to ping.
                pinger.wait_for_pings(min(_STAY, max(end - time.monotonic(), 0.0)))
                break
            if time.monotonic() >= end:
                break
    finally:
        session.close()
    for check in checks.values():
        check.problem = check.problem or _problem(check)
    return list(checks.values())


def _problem(check: PeerCheck) -> str | None:
    if check.same_file is False:
        return "its network file differs"
    if check.certificate is not None and check.certificate != check.name:
        return f'it presents the certificate of "{check.certificate}"'
    if not check.answers:
        return "no answer: neither its agent nor its check is running"
    return None


def _connect(endpoint: Endpoint, check: PeerCheck, revocations: Revocations) -> None:
    """Connect by TLS alone and inspect the certificate."""
    host, _, port = check.address.rpartition(":")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_verify_locations(endpoint.authority)
        context.load_cert_chain(endpoint.certificate, endpoint.key)
        with (
            socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT) as plain,
            context.wrap_socket(plain, server_hostname=host.strip("[]")) as link,
        ):
            shown, certificate = link.getpeercert() or {}, link.getpeercert(binary_form=True)
    except ssl.SSLCertVerificationError as error:
        check.problem = f"its certificate is not valid: {error.verify_message}"
        return
    except ssl.SSLError as error:
        check.problem = f"TLS fails: {(error.reason or 'no reason given').lower().replace('_', ' ')}"
        return
    except OSError as error:
        check.problem = f"it cannot be reached: {(error.strerror or str(error)).lower()}"
        return
    check.reachable, check.problem = True, None
    # The stub of ssl has a wider type than what getpeercert() returns.
    subject = cast("Sequence[Sequence[tuple[str, str]]]", shown.get("subject", ()))
    check.certificate = next((value for part in subject for key, value in part if key == "commonName"), None)
    ends = shown.get("notAfter")
    if isinstance(ends, str):
        check.valid_until = datetime.fromtimestamp(ssl.cert_time_to_seconds(ends), UTC)
    try:
        revocations.check(x509.load_der_x509_certificate(certificate or b""), "its certificate")
    except ElmeshError as error:
        check.problem = str(error).rstrip(".")


def _open_session(endpoint: Endpoint, listening: bool) -> ZenohSession:
    try:
        return ZenohSession(endpoint, _MAX_MESSAGE, listening=listening)
    except ElmeshError:
        if not listening:
            raise
        # The agent itself is running: its neighbours are pinged nevertheless.
        return ZenohSession(endpoint, _MAX_MESSAGE, listening=False)


class Pinger:
    """Pings neighbours, answers their pings, and notes their answers in ``checks``."""

    def __init__(self, endpoint: Endpoint, checks: dict[str, PeerCheck], session: Session) -> None:
        self._endpoint, self._checks, self._session = endpoint, checks, session
        self._change, self._pinged_by = threading.Condition(), set[str]()

    def ping(self) -> None:
        """Ping all neighbours that have not answered yet."""
        for name, check in self._checks.items():
            if not check.answers:
                self._send(name, Kind.PING, int(time.time() * 1e6))

    def _send(self, to: str, kind: Kind, number: int, body: bytes = b"") -> None:
        self._session.put(to, encode(kind, self._endpoint.name, self._endpoint.digest, number=number, body=body))

    def wait_for_answers(self, seconds: float) -> bool:
        """Wait until all neighbours have answered; return whether they have."""
        with self._change:
            return self._change.wait_for(lambda: all(check.answers for check in self._checks.values()), seconds)

    def wait_for_pings(self, seconds: float) -> None:
        """Wait until all neighbours have pinged as well."""
        with self._change:
            self._change.wait_for(lambda: self._pinged_by >= self._checks.keys(), seconds)

    def on_message(self, sender: str, data: bytes) -> None:
        """Process a neighbour's ping, or its answer; anything else is ignored."""
        try:
            message = parse(data)
        except WireError:
            return
        if message.sender != sender:
            return
        if message.kind is Kind.PING:
            self._send(sender, Kind.PONG, message.number, int(time.time() * 1e6).to_bytes(8, "little"))
            with self._change:
                self._pinged_by.add(sender)
                self._change.notify_all()
        elif message.kind is Kind.PONG and len(message.body) == 8:
            with self._change:
                check = self._checks[sender]
                middle = (message.number / 1e6 + time.time()) / 2
                check.clock = int.from_bytes(message.body, "little") / 1e6 - middle
                check.answers, check.same_file = True, message.digest == self._endpoint.digest
                self._change.notify_all()
