"""An agent's post: says things to neighbours and waits for theirs, through kills, cuts and freezes.

Losses are not guessed by timeouts of single messages. Whoever waits asks again for what is due, by its number, now and
then and whenever the neighbour comes back; whoever is asked says it again. A neighbour counts as absent while its
liveliness token is gone, and is given up only when it has been absent for longer than the agent's patience, in all.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

from elmesh.comm.network.errors import FailedError, LostError, RefusedError, RegroupedError, StoppedError
from elmesh.comm.network.peer import Counters, Neighbour, Stand, check_patience
from elmesh.comm.network.wire import (
    CARRIES,
    HEADER_BYTES,
    Kind,
    Message,
    WireError,
    encode,
    epoch_of,
    list_of,
    parse,
)
from elmesh.comm.network.worker import Errands
from elmesh.errors import ElmeshError
from elmesh.netconfig.config import Plan

__all__ = ["Carrier", "Post"]

# Seconds from one request for what is due to the next: at first, and at most.
_FIRST, _MOST = 0.2, 2.0
# Longest wait without looking whether the agent is to stop.
_BREATH = 0.5
# How much may be kept for a neighbour that does not say what it has for good, in messages and bytes.
_KEPT, _KEPT_BYTES = 512, 256 << 20
# An agent at its end waits a little longer than its patience: those that are not may have to go on without the absent.
_MARGIN, _MARGIN_SECONDS = 1.25, 2.0
# Bytes of the reason that an agent gives for its end.
_REASON = 400


class Carrier(Protocol):
    """What takes messages to a neighbour."""

    def put(self, to: str, data: bytes) -> None:
        """Send, in order, and not necessarily with success."""


class Post:
    """The post of one agent.

    Parameters
    ----------
    me : str
        The agent.
    plan : Plan
        The network, as its file has it.
    carrier : Carrier
        What takes messages.
    patience : float
        Seconds that a neighbour may be absent.
    life : int
        The random number that stands for this run of the agent.
    log : callable
        Is told what is worth telling: a name for the event, and fields.
    """

    def __init__(
        self,
        me: str,
        plan: Plan,
        carrier: Carrier,
        patience: float,
        life: int,
        log: Callable[..., None] = lambda *_, **__: None,
    ) -> None:
        self.me, self.counters, self._life = me, Counters(), life
        self._plan, self._carrier, self._patience, self._log = plan, carrier, patience, log
        self._digest = plan.digest
        self._names = frozenset(plan.names)
        self.neighbours: tuple[str, ...] = tuple(plan.neighbours(me))
        now = time.monotonic()
        self._of = {name: Neighbour(since=now, spoke=now) for name in self.neighbours}
        self._change = threading.Condition()
        self._gone: frozenset[str] = frozenset()
        self._epoch = 0
        self._awaited: tuple[str, ...] = ()
        self._trouble: ElmeshError | None = None
        self._finished = self._stopping = False
        #: Is told of a neighbour that it is "done", or "knows" that this agent is: worth knowing after a restart.
        self.remember: Callable[[str, str], None] = lambda *_: None
        self._errands = Errands(lambda error: log("errand", problem=type(error).__name__))

    # What comes in: called by the transport's threads.

    def arrive(self, sender: str, data: bytes) -> None:
        """Take in a message that came from a neighbour, as the transport has made sure."""
        with self._change:
            self.counters.heard_messages += 1
            self.counters.heard_bytes += len(data)
            if sender not in self._of:
                self._turn_down(sender, data)
                return
            try:
                message = parse(data)
                if message.sender != sender:
                    raise WireError(f'it says that it is from "{message.sender}"')
                if message.kind is Kind.ASK:
                    self._tell_time(sender, message.number)  # whatever file it has: the answer tells which one is here
                    return
                if message.digest != self._digest:
                    raise WireError(
                        f"it goes by another network file (its SHA-256 begins with {message.digest.hex()[:12]}, ours "
                        f"with {self._digest.hex()[:12]})"
                    )
                self._take_in(sender, message)
            except WireError as error:
                self._refuse(sender, str(error))

    def presence(self, name: str, here: bool) -> None:
        """Learn that a neighbour has come or gone."""
        with self._change:
            other = self._of.get(name)
            if other is None or other.here == here:
                if here and name in self._gone:
                    self._errands.soon("gone", name, lambda: self._tell_gone(name))
                return
            now = time.monotonic()
            if here and other.seen:
                self.counters.returns += 1
            other.here, other.seen, other.since = here, other.seen or here, now
            other.spoke = now
            self._log("neighbour", name=name, here=here)
            if here:
                # What was on its way when the link broke may be lost, either way.
                self._errands.soon("greet", name, lambda: self._greet(name))
            self._change.notify_all()

    def _turn_down(self, sender: str, data: bytes) -> None:
        """Tell an agent that is back, and was gone for good, that the others have gone on without it."""
        with contextlib.suppress(WireError):
            # Two that have gone on without each other do not keep telling each other so.
            if sender in self._gone and parse(data).kind not in (Kind.GONE, Kind.ASK):
                self._errands.soon("gone", sender, lambda: self._tell_gone(sender))

    def _take_in(self, sender: str, message: Message) -> None:
        other = self._of[sender]
        if message.kind is Kind.CLOCK:
            return  # agents do not ask; somebody who looked after this one did
        if not self._same_run(sender, message):
            return
        if message.kind is Kind.GONE:
            self._hear_of_gone(sender, message)
            return
        if message.epoch != self._epoch:
            # One of the two does not know yet who is gone.
            if self._gone:
                self._errands.soon("gone", sender, lambda: self._tell_gone(sender))
            return
        other.edge.release(message.settled)
        if message.kind in CARRIES:
            if not other.edge.take_in(message):
                self.counters.duplicates += 1
                return
            other.spoke = time.monotonic()
            # Nobody is woken up for less than what is waited for.
            if not all(self._of[name].edge.has_next for name in self._awaited):
                return
        elif message.kind is Kind.WANT:
            self._errands.soon("again", sender, partial(self._say_again, sender, message.number))
        elif message.kind is Kind.DONE:
            other.done = True
            other.edge.release(other.edge.said)
            self._errands.soon("heard", sender, lambda: self._acknowledge(sender))
        elif message.kind is Kind.HEARD:
            other.knows = True
            self._errands.soon("knows", sender, lambda: self.remember(sender, "knows"))
        elif message.kind is Kind.FAILED:
            text = _printable(bytes(message.body[:_REASON]).decode("utf-8", "replace"))
            self._trouble = self._trouble or FailedError([sender], f"{sender} has ended the run. {text}", text)
        self._change.notify_all()

    def _same_run(self, sender: str, message: Message) -> bool:
        """Say whether a message is of the run that this agent is in, and learn which one the neighbour is in."""
        other = self._of[sender]
        if message.yours not in (0, self._life):
            self.counters.duplicates += 1
            return False  # to one that was here before
        if other.life in (0, message.life):
            other.life = message.life
        elif self._finished:
            # It is in the next run already, so it has what it needed of this one.
            other.done = other.knows = True
            self._change.notify_all()
            return False
        elif other.edge.heard == 0:
            other.life = message.life
            other.edge.forget()
        else:
            other.life = message.life  # so that it can be told
            # By name: whoever goes on without those that are lost can go on without one that says this, true or not.
            self._trouble = self._trouble or FailedError(
                [sender],
                f"{sender} has begun anew and lost its journal, so this run cannot go on; begin anew everywhere, with "
                "--fresh.",
            )
            self._change.notify_all()
            return False
        return True

    def _refuse(self, sender: str, reason: str) -> None:
        self.counters.refused += 1
        self._log("refused", name=sender, reason=reason)
        self._trouble = self._trouble or RefusedError([sender], f"A message from {sender} was refused: {reason}.")
        self._change.notify_all()

    def refuse(self, sender: str, reason: str) -> RefusedError:
        """Return what to raise when a message that was taken turns out to be unacceptable."""
        with self._change:
            self.counters.refused += 1
        self._log("refused", name=sender, reason=reason)
        return RefusedError([sender], f"A message from {sender} was refused: {reason}.")

    # What goes out.

    def say(self, to: str, kind: Kind, shape: tuple[int, int], body: bytes, coarse: bool = False) -> None:
        """Say something to a neighbour; it is kept until the neighbour has it for good."""
        with self._change:
            edge = self._of[to].edge
            begun, least = time.monotonic(), edge.kept
            while edge.kept >= _KEPT or edge.kept_bytes > _KEPT_BYTES:
                self._raise_trouble()
                now = time.monotonic()
                if edge.kept < least:
                    begun, least = now, edge.kept
                if now - begun > self._patience:
                    raise LostError([to], f"{to} has not confirmed what it was told for {self._patience:g} seconds.")
                self._change.wait(_BREATH)
            said = edge.say(kind, shape, coarse, body)
            data = self._written(to, said.kind, said.number, said.shape, said.coarse, said.body)
        self._carrier.put(to, data)

    def _send(self, to: str, kind: Kind, number: int = 0, body: bytes = b"") -> None:
        """Say something that nobody needs to keep."""
        self._carrier.put(to, self._written(to, kind, number, body=body))

    def _written(
        self,
        to: str,
        kind: Kind,
        number: int,
        shape: tuple[int, int] = (0, 0),
        coarse: bool = False,
        body: bytes = b"",
    ) -> bytes:
        """Write a message as of now, and count it."""
        with self._change:
            other = self._of[to]
            self.counters.sent_messages += 1
            self.counters.sent_bytes += HEADER_BYTES + len(body)
            return encode(
                kind,
                self.me,
                self._digest,
                epoch=self._epoch,
                number=number,
                settled=other.edge.settled,
                life=self._life,
                yours=other.life,
                shape=shape,
                coarse=coarse,
                body=body,
            )

    def _say_again(self, to: str, number: int) -> None:
        with self._change:
            wanted = self._of[to].edge.since(number)
            self.counters.again += len(wanted)
        for said in wanted:
            self._carrier.put(to, self._written(to, said.kind, said.number, said.shape, said.coarse, said.body))
        if self._finished:
            self._send(to, Kind.DONE)

    def _acknowledge(self, to: str) -> None:
        """Tell a neighbour that it is known here to have its model."""
        self.remember(to, "done")
        self._send(to, Kind.HEARD)

    def _greet(self, to: str) -> None:
        """Ask a neighbour that has just come for what is due, so that it learns what it may have missed as well."""
        if self._gone:
            self._tell_gone(to)
        with self._change:
            number = self._of[to].edge.heard
        self._send(to, Kind.WANT, number)
        if self._finished:
            self._send(to, Kind.DONE)

    # Waiting.

    def hear(self, names: Sequence[str], kind: Kind) -> dict[str, Message]:
        """Wait for the next message of each of these neighbours."""
        with self._change:
            wait, asked = _FIRST, time.monotonic()
            while True:
                self._raise_trouble()
                missing = [name for name in names if not self._of[name].edge.has_next]
                if not missing:
                    break
                self._awaited = tuple(missing)
                now = time.monotonic()
                if now - asked >= wait:
                    asked, wait = now, min(2 * wait, _MOST)
                    for name in missing:
                        number = self._of[name].edge.heard
                        self._errands.soon("want", name, partial(self._send, name, Kind.WANT, number))
                check_patience({name: self._of[name] for name in missing}, self._patience, now)
                # Never for long: a signal cannot wake it up.
                self._change.wait(max(min(asked + wait - now, _BREATH), 0.01))
            heard = {name: self._of[name].edge.take() for name in names}
        for name, message in heard.items():
            if message.kind is not kind:
                raise self.refuse(name, f"it is of kind {message.kind.name}, when {kind.name} is due")
        return heard

    def check_stop(self) -> None:
        """Raise if the agent was asked to stop."""
        if self._stopping:
            raise StoppedError("The agent was asked to stop.")

    def _raise_trouble(self) -> None:
        self.check_stop()
        if self._trouble is not None:
            trouble, self._trouble = self._trouble, None
            raise trouble

    # What the journal keeps.

    def snapshot(self) -> dict[str, Stand]:
        """Return where it stands with each neighbour."""
        with self._change:
            return {
                name: Stand(other.life, other.edge.said, other.edge.heard, tuple(other.edge.since(0)))
                for name, other in self._of.items()
            }

    def restore(self, stands: Mapping[str, Stand]) -> None:
        """Be again as it was when a snapshot was taken."""
        with self._change:
            for name, stand in stands.items():
                self._of[name].life = stand.life
                self._of[name].edge.restore(stand.said, stand.heard, stand.kept)

    def settle(self, heard: Mapping[str, int]) -> None:
        """Note that what so many messages of each neighbour led to is on disk."""
        with self._change:
            for name, number in heard.items():
                if name in self._of:
                    self._of[name].edge.settled = max(self._of[name].edge.settled, number)

    def stop(self) -> None:
        """Have whoever waits, now or next, stop waiting."""
        # No lock: this is called from a signal's handler, which may have interrupted whoever holds it.
        self._stopping = True

    def look(self) -> dict[str, dict[str, Any]]:
        """Return how things stand with each neighbour."""
        with self._change:
            return {
                name: {
                    "here": other.here,
                    "said": other.edge.said,
                    "heard": other.edge.heard,
                    "kept": other.edge.kept,
                    "done": other.done,
                }
                for name, other in self._of.items()
            }

    # Who is there.

    @property
    def kept_bytes(self) -> int:
        """Bytes of what was said and is kept for neighbours."""
        return sum(other.edge.kept_bytes for other in self._of.values())

    # Going on without some.

    @property
    def gone(self) -> frozenset[str]:
        """Agents that are gone for good."""
        return self._gone

    def regroup(self, gone: Collection[str]) -> None:
        """Go on without some agents: a new epoch, in which nothing has been said yet."""
        with self._change:
            self._gone = self._gone | frozenset(gone)
            self._epoch = epoch_of(self._gone)
            now = time.monotonic()
            before, self._of, self._awaited = self._of, {}, ()
            part = self._plan.without(self._gone, self.me)
            self.neighbours = tuple(part.neighbours(self.me))
            for name in self.neighbours:
                old = before[name]
                self._of[name] = Neighbour(here=old.here, seen=old.seen, since=now, spoke=now, life=old.life)
            self._trouble, self._finished = None, False
        for name in self._plan.neighbours(self.me):
            self._tell_gone(name)

    def _tell_gone(self, to: str) -> None:
        with self._change:
            data = encode(
                Kind.GONE, self.me, self._digest, epoch=self._epoch, life=self._life, body=list_of(self._gone)
            )
            self.counters.sent_messages += 1
            self.counters.sent_bytes += len(data)
        self._carrier.put(to, data)

    def _hear_of_gone(self, sender: str, message: Message) -> None:
        told = message.gone(self._names)
        if self.me in told:
            self._trouble = self._trouble or FailedError(
                [self.me], f"{sender} and others have gone on without {self.me}, which was away for too long."
            )
        elif not told <= self._gone:
            self._log("gone", name=sender, names=sorted(told - self._gone))
            self._trouble = self._trouble or RegroupedError(told | self._gone, sender)
        elif self._gone - told:
            self._errands.soon("gone", sender, lambda: self._tell_gone(sender))
        self._change.notify_all()

    # The end.

    def recall(self, done: Collection[str], knows: Collection[str]) -> None:
        """Learn which neighbours were done, and which knew that this agent is, from what was remembered."""
        with self._change:
            for name, other in self._of.items():
                other.done, other.knows = name in done, name in knows

    def finish(self) -> list[str]:
        """Stay until the neighbours have all they need of this agent; return those that never said so."""
        patience = _MARGIN * self._patience + _MARGIN_SECONDS
        self._finished = True
        wait, said = _FIRST, 0.0
        with self._change:
            while True:
                self.check_stop()
                if isinstance(self._trouble, RegroupedError):
                    self._raise_trouble()
                if isinstance(self._trouble, RefusedError):
                    self._trouble = None  # nothing is needed of whoever it is
                now = time.monotonic()
                open_ = [name for name, other in self._of.items() if not other.may_be_left(self._patience, now)]
                if all(self._of[name].is_late(patience, now) for name in open_):
                    break
                if isinstance(self._trouble, FailedError):
                    break
                if now - said >= wait:
                    said, wait = now, min(2 * wait, _MOST)
                    for name in open_:
                        self._errands.soon("done", name, partial(self._send, name, Kind.DONE))
                self._change.wait(max(min(said + wait - now, _BREATH), 0.01))
        self._errands.wait()  # what is to be said yet is said
        return open_

    def fail(self, reason: str) -> None:
        """Tell the neighbours that this agent ends without a result, and why."""
        for name in self.neighbours:
            self._send(name, Kind.FAILED, body=reason.encode()[:_REASON])

    def close(self) -> None:
        """Run no more errands."""
        self._errands.close()

    def _tell_time(self, to: str, asked: int) -> None:
        """Answer whoever checks the network from a neighbour's machine."""
        body = int(time.time() * 1e6).to_bytes(8, "little")
        self._errands.soon("clock", to, partial(self._send, to, Kind.CLOCK, asked, body=body))


def _printable(text: str) -> str:
    """Return what a neighbour says without what could lead a terminal or a log astray."""
    return "".join(c if c.isprintable() else " " for c in text).strip()
