"""Reliable messages between neighbours, through kills, broken connections and stopped processes.

Losses are not inferred from timeouts of single messages. An agent that waits requests what is due, by its number, at
intervals and whenever the neighbour returns; the neighbour resends it. A neighbour counts as absent while its
liveliness token is gone, and is lost only when it has been absent for longer than the agent's patience.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

from elmesh.comm.network.edge_queue import SentMessage
from elmesh.comm.network.endpoint import Endpoint
from elmesh.comm.network.errors import EvictionError, FailedError, LostError, RefusedError, StoppedError
from elmesh.comm.network.peer import Counters, LinkState, Peer, Timing, check_patience
from elmesh.comm.network.wire import (
    HEADER_BYTES,
    NO_VIEW,
    NUMBERED,
    Kind,
    Message,
    WireError,
    encode,
    epoch_of,
    eviction_body,
    parse,
)
from elmesh.comm.network.worker import Worker
from elmesh.errors import ElmeshError

__all__ = ["Log", "ReliableMessenger", "Session"]

# How much is buffered for a neighbour that does not acknowledge, in messages and bytes.
_MOST_BUFFERED, _MOST_BYTES = 512, 256 << 20
# Bytes of the reason that an agent sends when it fails.
_REASON_BYTES = 400

#: Receives events: a name, and fields.
Log = Callable[..., None]


class Session(Protocol):
    """Sends bytes to neighbours."""

    def put(self, to: str, data: bytes) -> None:
        """Send, in order, and not necessarily with success."""


class ReliableMessenger:
    """The messages of one agent; ``run_id`` is the random number of its run."""

    def __init__(
        self, endpoint: Endpoint, session: Session, timing: Timing, run_id: int, log: Log = lambda *_, **__: None
    ) -> None:
        self.name, self.counters = endpoint.name, Counters()
        self._endpoint, self._session, self._timing, self._run_id, self._log = endpoint, session, timing, run_id, log
        self._agents = frozenset(endpoint.neighbors)
        self.neighbors: tuple[str, ...] = tuple(endpoint.neighbors[endpoint.name])
        now = time.monotonic()
        self._peers = {name: Peer(changed=now, delivered=now) for name in self.neighbors}
        self._change = threading.Condition()
        #: Agents that are evicted.
        self.evicted: frozenset[str] = frozenset()
        self._epoch = 0
        self._awaited: tuple[str, ...] = ()
        self._problem: ElmeshError | None = None
        self._finished = self._stopping = False
        #: Called with a neighbour and "done" or "acknowledged", which a restarted agent should know.
        self.remember: Callable[[str, str], None] = lambda *_: None
        self._worker = Worker(lambda error: log("worker", problem=type(error).__name__))

    # Incoming: called by the session's threads.

    def on_message(self, sender: str, data: bytes) -> None:
        """Process a message from a neighbour, whose name the session has authenticated."""
        with self._change:
            self.counters.received_messages += 1
            self.counters.received_bytes += len(data)
            if sender not in self._peers:
                self._turn_away(sender, data)
                return
            try:
                message = parse(data)
                if message.sender != sender:
                    raise WireError(f'its header names the sender "{message.sender}"')
                if message.kind is Kind.PING:
                    self._answer_ping(sender, message.number)  # with any file: the answer shows which one is here
                    return
                if message.digest != self._endpoint.digest:
                    raise WireError(
                        f"its network file differs (SHA-256 {message.digest.hex()[:12]}..., here "
                        f"{self._endpoint.digest.hex()[:12]}...)"
                    )
                self._process(sender, message)
            except WireError as error:
                self._set_problem(self.refuse(sender, str(error)))

    def on_invalid(self, sender: str, reason: str) -> None:
        """Refuse something that a neighbour sent and that is no message."""
        with self._change:
            if sender in self._peers:
                self._set_problem(self.refuse(sender, reason))

    def on_link(self, name: str) -> None:
        """Note that messages to and from a neighbour can be opened from now on."""
        with self._change:
            if name in self._peers:
                self._worker.submit("greet", name, lambda: self._greet(name))
            elif name in self.evicted:
                self._worker.submit("evicted", name, lambda: self._send_evicted(name))

    def on_presence(self, name: str, present: bool) -> None:
        """Note that a neighbour has come or left."""
        with self._change:
            peer = self._peers.get(name)
            if peer is None or peer.present == present:
                if present and name in self.evicted:
                    self._worker.submit("evicted", name, lambda: self._send_evicted(name))
                return
            now = time.monotonic()
            if present and peer.seen:
                self.counters.reconnects += 1
            peer.present, peer.seen, peer.changed = present, peer.seen or present, now
            peer.delivered = now
            self._log("neighbor", name=name, present=present)
            if present:
                # Messages on their way when the link broke may be lost, either way.
                self._worker.submit("greet", name, lambda: self._greet(name))
            self._change.notify_all()

    def _turn_away(self, sender: str, data: bytes) -> None:
        """Inform an evicted agent that has returned that the others continue without it."""
        with contextlib.suppress(WireError):
            # Two agents that have evicted each other do not keep informing each other.
            if sender in self.evicted and parse(data).kind not in (Kind.EVICTED, Kind.PING):
                self._worker.submit("evicted", sender, lambda: self._send_evicted(sender))

    def _process(self, sender: str, message: Message) -> None:
        peer = self._peers[sender]
        if message.kind is Kind.PONG:
            return  # agents do not ping; a check from this machine did
        if not self._same_run(sender, message):
            return
        if message.kind is Kind.EVICTED:
            self._on_evicted(sender, message)
            return
        if message.epoch != self._epoch:
            # One of the two does not know yet who is evicted.
            if self.evicted:
                self._worker.submit("evicted", sender, lambda: self._send_evicted(sender))
            return
        peer.edge.release(message.acked)
        if message.kind in NUMBERED:
            if not peer.edge.put(message):
                self.counters.duplicates += 1
                return
            peer.delivered = time.monotonic()
            # The waiting thread is not woken before all it waits for is here.
            if not all(self._peers[name].edge.has_next for name in self._awaited):
                return
        elif message.kind is Kind.RESEND:
            self._worker.submit("resend", sender, partial(self._resend, sender, message.number))
        elif message.kind is Kind.DONE:
            peer.done = True
            peer.edge.release(peer.edge.sent)
            self._worker.submit("ack", sender, lambda: self._acknowledge(sender))
        elif message.kind is Kind.ACK:
            peer.acknowledged = True
            self._worker.submit("acknowledged", sender, lambda: self.remember(sender, "acknowledged"))
        elif message.kind is Kind.FAILED:
            text = _printable(bytes(message.body[:_REASON_BYTES]).decode("utf-8", "replace"))
            self._set_problem(FailedError([sender], f"{sender} has ended the run. {text}", text))
        self._change.notify_all()

    def _same_run(self, sender: str, message: Message) -> bool:
        """Return whether a message is of this agent's run, and note the neighbour's run."""
        peer = self._peers[sender]
        if message.peer_run_id not in (0, self._run_id):
            self.counters.duplicates += 1
            return False  # to an earlier run of this agent
        if peer.run_id in (0, message.run_id):
            peer.run_id = message.run_id
        elif self._finished:
            # It is in its next run, so it has what it needed of this one.
            peer.done = peer.acknowledged = True
            self._change.notify_all()
            return False
        elif peer.edge.received == 0:
            peer.run_id = message.run_id
            peer.edge.discard()
        else:
            peer.run_id = message.run_id  # so that it can be informed
            # With the name: agents that continue without lost ones can continue without this one, true or not.
            self._set_problem(
                FailedError(
                    [sender],
                    f"{sender} has started again without its checkpoint, so this run cannot continue; start again "
                    "everywhere, with --fresh.",
                )
            )
            return False
        return True

    def _set_problem(self, problem: ElmeshError) -> None:
        """Have the waiting thread raise a problem, unless there is an earlier one."""
        self._problem = self._problem or problem
        self._change.notify_all()

    def refuse(self, sender: str, reason: str) -> RefusedError:
        """Return the error to raise for an invalid message."""
        with self._change:
            self.counters.refused += 1
            self._log("refused", name=sender, reason=reason)
        return RefusedError([sender], f"A message from {sender} was refused: {reason}.")

    # Outgoing.

    def send(
        self,
        to: str,
        kind: Kind,
        body: bytes,
        shape: tuple[int, int] = (0, 0),
        *,
        is_bytes: bool = False,
        view: bytes = NO_VIEW,
    ) -> None:
        """Send a message to a neighbour; it is buffered until the neighbour acknowledges it."""
        with self._change:
            edge = self._peers[to].edge
            since, least = time.monotonic(), edge.buffered
            while edge.buffered >= _MOST_BUFFERED or edge.buffered_bytes > _MOST_BYTES:
                self._raise_problem()
                now = time.monotonic()
                if edge.buffered < least:
                    since, least = now, edge.buffered
                if now - since > self._timing.patience:
                    raise LostError([to], f"{to} has acknowledged nothing for {self._timing.patience:g} seconds.")
                self._change.wait(self._timing.poll)
            data = self._encode(to, edge.push(SentMessage(0, kind, shape, is_bytes, view, body)))
        self._session.put(to, data)

    def _send_control(self, to: str, kind: Kind, number: int = 0, body: bytes = b"") -> None:
        """Send a message that is not buffered."""
        self._session.put(to, self._encode(to, SentMessage(number, kind, body=body)))

    def _encode(self, to: str, message: SentMessage) -> bytes:
        """Return a message with the header that it has now."""
        with self._change:
            peer = self._peers[to]
            self.counters.sent_messages += 1
            self.counters.sent_bytes += HEADER_BYTES + len(message.body)
            return encode(
                message.kind,
                self.name,
                self._endpoint.digest,
                epoch=self._epoch,
                number=message.number,
                acked=peer.edge.acked,
                run_id=self._run_id,
                peer_run_id=peer.run_id,
                shape=message.shape,
                is_bytes=message.is_bytes,
                view=message.view,
                body=message.body,
            )

    def _resend(self, to: str, number: int) -> None:
        with self._change:
            wanted = self._peers[to].edge.since(number)
            self.counters.resent += len(wanted)
        for message in wanted:
            self._session.put(to, self._encode(to, message))
        if self._finished:
            self._send_control(to, Kind.DONE)

    def _acknowledge(self, to: str) -> None:
        """Acknowledge that a neighbour has its model."""
        self.remember(to, "done")
        self._send_control(to, Kind.ACK)

    def _greet(self, to: str) -> None:
        """Request what is due from a neighbour that has come, so that it also learns what it may have missed."""
        if self.evicted:
            self._send_evicted(to)
        with self._change:
            number = self._peers[to].edge.received
        self._send_control(to, Kind.RESEND, number)
        if self._finished:
            self._send_control(to, Kind.DONE)

    # Waiting.

    def receive(self, names: Sequence[str], kind: Kind) -> dict[str, Message]:
        """Wait for the next message of each of these neighbours."""
        timing = self._timing
        with self._change:
            interval, requested = timing.first_request, time.monotonic()
            while True:
                self._raise_problem()
                missing = [name for name in names if not self._peers[name].edge.has_next]
                if not missing:
                    break
                self._awaited = tuple(missing)
                now = time.monotonic()
                if now - requested >= interval:
                    requested, interval = now, min(2 * interval, timing.longest_request)
                    for name in missing:
                        number = self._peers[name].edge.received
                        self._worker.submit("request", name, partial(self._send_control, name, Kind.RESEND, number))
                check_patience({name: self._peers[name] for name in missing}, timing, now)
                # Never for long: a signal cannot interrupt the wait.
                self._change.wait(max(min(requested + interval - now, timing.poll), 0.01))
            received = {name: self._peers[name].edge.pop() for name in names}
        for name, message in received.items():
            if message.kind is not kind:
                raise self.refuse(name, f"it is of kind {message.kind.name}, when {kind.name} is due")
        return received

    def check_stop(self) -> None:
        """Raise if the agent was asked to stop."""
        if self._stopping:
            raise StoppedError("The agent was asked to stop.")

    def _raise_problem(self) -> None:
        self.check_stop()
        if self._problem is not None:
            problem, self._problem = self._problem, None
            raise problem

    def stop(self) -> None:
        """Have the thread that waits, now or next, stop waiting."""
        # No lock: this is called by signal handlers, which may have interrupted the thread that holds it.
        self._stopping = True

    # Checkpoints.

    def link_states(self) -> dict[str, LinkState]:
        """Return what a checkpoint holds of each link."""
        with self._change:
            return {
                name: LinkState(peer.run_id, peer.edge.sent, peer.edge.received, tuple(peer.edge.since(0)))
                for name, peer in self._peers.items()
            }

    def restore(self, links: Mapping[str, LinkState]) -> None:
        """Resume from a checkpoint."""
        with self._change:
            for name, link in links.items():
                self._peers[name].run_id = link.run_id
                self._peers[name].edge.restore(link.sent, link.received, link.buffered)

    def mark_saved(self, received: Mapping[str, int]) -> None:
        """Acknowledge so many messages of each neighbour: what follows from them is on disk."""
        with self._change:
            for name, number in received.items():
                if name in self._peers:
                    self._peers[name].edge.acked = max(self._peers[name].edge.acked, number)

    @property
    def buffered_bytes(self) -> int:
        """Bytes that are buffered for neighbours."""
        return sum(peer.edge.buffered_bytes for peer in self._peers.values())

    def status(self) -> dict[str, dict[str, Any]]:
        """Return the state of each link, for status files."""
        now, clock = time.monotonic(), time.time()
        with self._change:
            return {
                name: {
                    "present": peer.present,
                    "since": clock - (now - peer.changed),
                    "sent": peer.edge.sent,
                    "received": peer.edge.received,
                    "buffered": peer.edge.buffered,
                    "done": peer.done,
                }
                for name, peer in self._peers.items()
            }

    # Evictions.

    def evict(self, evicted: Collection[str], neighbors: Sequence[str]) -> None:
        """Continue without some agents: a new epoch, without any message yet, with the neighbours that are left."""
        with self._change:
            self.evicted = self.evicted | frozenset(evicted)
            self._epoch = epoch_of(self.evicted)
            now = time.monotonic()
            before, self._peers, self._awaited = self._peers, {}, ()
            self.neighbors = tuple(neighbors)
            for name in self.neighbors:
                old = before[name]
                self._peers[name] = Peer(
                    present=old.present, seen=old.seen, changed=now, delivered=now, run_id=old.run_id
                )
            self._problem, self._finished = None, False
        for name in self._endpoint.neighbors[self.name]:
            self._send_evicted(name)

    def _send_evicted(self, to: str) -> None:
        with self._change:
            body = eviction_body(self.evicted)
            data = encode(
                Kind.EVICTED, self.name, self._endpoint.digest, epoch=self._epoch, run_id=self._run_id, body=body
            )
            self.counters.sent_messages += 1
            self.counters.sent_bytes += len(data)
        self._session.put(to, data)

    def _on_evicted(self, sender: str, message: Message) -> None:
        evicted = message.evicted(self._agents)
        if self.name in evicted:
            self._set_problem(
                FailedError([self.name], f"{sender} and others continue without {self.name}, absent for too long.")
            )
        elif not evicted <= self.evicted:
            self._log("evicted", name=sender, names=sorted(evicted - self.evicted))
            self._set_problem(EvictionError(evicted | self.evicted, sender))
        elif self.evicted - evicted:
            self._worker.submit("evicted", sender, lambda: self._send_evicted(sender))
        self._change.notify_all()

    # The end.

    def recall(self, done: Collection[str], acknowledged: Collection[str]) -> None:
        """Set which neighbours were done, and which had acknowledged, before a restart."""
        with self._change:
            for name, peer in self._peers.items():
                peer.done, peer.acknowledged = name in done, name in acknowledged

    def finish(self) -> list[str]:
        """Stay until the neighbours have all they need of this agent; return those that never confirmed it."""
        timing = self._timing
        patience = timing.finish_factor * timing.patience + timing.finish_extra
        self._finished = True
        interval, sent = timing.first_request, 0.0
        with self._change:
            while True:
                self.check_stop()
                if isinstance(self._problem, EvictionError):
                    self._raise_problem()
                if isinstance(self._problem, RefusedError):
                    self._problem = None  # nothing is needed of that neighbour
                now = time.monotonic()
                open_ = [name for name, peer in self._peers.items() if not peer.needs_nothing(timing, now)]
                if all(self._peers[name].is_lost(patience, timing.mute_factor, now) for name in open_):
                    break
                if isinstance(self._problem, FailedError):
                    break
                if now - sent >= interval:
                    sent, interval = now, min(2 * interval, timing.longest_request)
                    for name in open_:
                        self._worker.submit("done", name, partial(self._send_control, name, Kind.DONE))
                self._change.wait(max(min(sent + interval - now, timing.poll), 0.01))
        self._worker.flush()
        return open_

    def fail(self, reason: str) -> None:
        """Inform the neighbours that this agent ends without a result, and why."""
        for name in self.neighbors:
            self._send_control(name, Kind.FAILED, body=reason.encode()[:_REASON_BYTES])

    def close(self) -> None:
        """Stop the worker."""
        self._worker.close()

    def _answer_ping(self, to: str, number: int) -> None:
        """Answer a check from a neighbour's machine with the time."""
        body = int(time.time() * 1e6).to_bytes(8, "little")
        self._worker.submit("pong", to, partial(self._send_control, to, Kind.PONG, number, body=body))


def _printable(text: str) -> str:
    """Return a peer's text without control characters for terminals and logs."""
    return "".join(c if c.isprintable() else " " for c in text).strip()
