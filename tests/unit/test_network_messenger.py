"""Reliable messages: whatever the session does to messages, neighbours receive the same values in the same order."""

from __future__ import annotations

import struct
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elmesh.comm.network.endpoint import Endpoint
from elmesh.comm.network.errors import FailedError, LostError, RefusedError, StoppedError
from elmesh.comm.network.messenger import ReliableMessenger
from elmesh.comm.network.peer import Timing
from elmesh.comm.network.wire import Kind, encode, parse
from elmesh.comm.network.worker import Worker
from helpers.examples import examples

NAMES = ("east", "north")
OTHER = {"east": "north", "north": "east"}
RUN_IDS = {"east": 11, "north": 22}
DIGEST = bytes(range(32))
QUICK = Timing(patience=60.0, first_request=0.001, longest_request=0.01, poll=0.02, grace=0.2, grace_unseen=0.2)


def endpoint(name: str) -> Endpoint:
    files = Path("key.pem"), Path("certificate.pem"), Path("ca.pem")
    addresses = dict.fromkeys(NAMES, "127.0.0.1:7000")
    neighbors = {other: (OTHER[other],) for other in NAMES}
    return Endpoint("pair", name, neighbors, addresses, (), addresses[name], *files, DIGEST)


def body_of(name: str, k: int) -> bytes:
    return struct.pack("<dd", NAMES.index(name), k)


class UnreliableNetwork:
    """Connects two messengers, and loses, duplicates, delays, reorders and replays messages."""

    def __init__(self, seed=0, drop=0.0, duplicate=0.0, delay=0.0, replay=0.0):
        self._random, self._change = np.random.default_rng(seed), threading.Condition()
        self._drop, self._duplicate, self._delay, self._replay = drop, duplicate, delay, replay
        self.messengers, self.left, self.kinds, self._delayed, self._past = {}, set(), [], [], []

    def session(self, sender: str):
        network = self

        class Session:
            def put(self, to, data):
                for message in network.transmitted((sender, to, data)):
                    network.deliver(*message)

        return Session()

    def transmitted(self, message):
        """Return what arrives when a message is sent: it, nothing, or others."""
        rng = self._random
        with self._change:
            self._past.append(message)
            self.kinds.append(parse(message[2]).kind)
            self._change.notify_all()
            messages = [] if rng.random() < self._drop else [message]
            if rng.random() < self._duplicate:
                messages *= 2
            if rng.random() < self._delay:
                messages, self._delayed = [], [*self._delayed, *messages]
            elif self._delayed and rng.random() < 0.5:
                messages = [*messages, *self._delayed]
                self._delayed = []
                rng.shuffle(messages)
            if rng.random() < self._replay:
                messages.append(self._past[rng.integers(len(self._past))])
            return messages

    def deliver(self, sender, to, data):
        if to in self.messengers:
            self.messengers[to].on_message(sender, data)

    def wait_for(self, condition, seconds):
        """Wait until the kinds of all messages sent so far satisfy a condition; return whether they do."""
        with self._change:
            return self._change.wait_for(lambda: condition(self.kinds), seconds)

    def join(self, name, timing=QUICK):
        """Return a new messenger of an agent."""
        self.messengers[name] = ReliableMessenger(endpoint(name), self.session(name), timing, RUN_IDS[name])
        return self.messengers[name]


class Walker(threading.Thread):
    """An agent that sends and receives one value per round; killed at times, it resumes from its last checkpoint."""

    def __init__(self, name, network, rounds, seed, kill, every):
        super().__init__(daemon=True)
        self.agent, self.peer, self._network, self._rounds = name, OTHER[name], network, rounds
        self._random, self._kill, self._every = np.random.default_rng(seed), kill, every
        self.received, self.most_buffered, self.problem, self.unconfirmed = [], 0, None, None
        self._start_messenger(None)

    def _start_messenger(self, links):
        self.messenger = self._network.join(self.agent)
        if links is not None:
            self.messenger.restore(links)
        self.messenger.on_presence(self.peer, self.peer not in self._network.left)

    def run(self):
        try:
            k, checkpoint = 0, (0, [], None)
            while k < self._rounds:
                if self._random.random() < self._kill:
                    self.messenger.close()
                    k, received, links = checkpoint
                    self.received = list(received)
                    self._start_messenger(links)
                if k % self._every == 0:
                    checkpoint = k, list(self.received), self.messenger.link_states()
                    self.messenger.mark_saved({self.peer: checkpoint[2][self.peer].received})
                self.messenger.send(self.peer, Kind.VALUE, body_of(self.agent, k), (1, 2))
                message = self.messenger.receive([self.peer], Kind.VALUE)[self.peer]
                self.received.append(bytes(message.body))
                self.most_buffered = max(self.most_buffered, self.messenger.status()[self.peer]["buffered"])
                k += 1
            self.unconfirmed = self.messenger.finish()
        except Exception as error:
            self.problem = error
        finally:
            self.messenger.close()
            self._network.left.add(self.agent)
            self._network.messengers[self.peer].on_presence(self.agent, False)


def walk(network, rounds, seed=0, kill=0.0, every=4):
    """Run both agents to their end."""
    walkers = [Walker(name, network, rounds, seed + k, kill, every) for k, name in enumerate(NAMES)]
    for walker in walkers:
        walker.start()
    for walker in walkers:
        walker.join(120)
        assert not walker.is_alive()
        assert walker.problem is None
        assert walker.unconfirmed == []
        assert walker.received == [body_of(walker.peer, k) for k in range(rounds)]
    return walkers


@pytest.mark.thorough
@examples(30)
@given(
    seed=st.integers(0, 2**32),
    drop=st.floats(0.0, 0.5),
    duplicate=st.floats(0.0, 0.5),
    delay=st.floats(0.0, 0.5),
    replay=st.floats(0.0, 0.5),
    kill=st.sampled_from([0.0, 0.05, 0.2]),
    every=st.integers(1, 9),
)
def test_both_ends_receive_the_same_values_in_order_whatever_happens_between_them(
    seed, drop, duplicate, delay, replay, kill, every
):
    network = UnreliableNetwork(seed, drop, duplicate, delay, replay)
    for walker in walk(network, 20, seed, kill, every):
        assert walker.most_buffered <= 20


def test_messages_are_buffered_until_the_other_end_has_saved_them_and_no_longer():
    for walker in walk(UnreliableNetwork(), 300):
        assert walker.most_buffered <= 10


@pytest.fixture
def pair():
    network = UnreliableNetwork()
    messengers = [network.join(name) for name in NAMES]
    for name, messenger in zip(NAMES, messengers, strict=True):
        messenger.on_presence(OTHER[name], True)
    yield messengers
    for messenger in messengers:
        messenger.close()


@pytest.fixture
def lonely():
    """Start agents whose messages reach no one."""
    messengers = []

    def start(**timing):
        messengers.append(UnreliableNetwork(drop=1.0).join("east", replace(QUICK, **timing)))
        return messengers[-1]

    yield start
    for messenger in messengers:
        messenger.close()


def send_many(messenger):
    for k in range(1000):
        messenger.send("north", Kind.VALUE, body_of("east", k), (1, 2))


def test_a_neighbour_that_acknowledges_nothing_is_lost_when_the_buffer_is_full(lonely):
    east = lonely(patience=0.3)
    with pytest.raises(LostError, match=r"north has acknowledged nothing for 0\.3 seconds"):
        send_many(east)
    assert east.status()["north"]["buffered"] == 512


def test_an_agent_that_waits_for_an_acknowledgement_can_be_stopped(lonely):
    east, problems = lonely(patience=600.0), []

    def wait():
        try:
            send_many(east)
        except StoppedError as error:
            problems.append(error)

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    east.stop()
    thread.join(60)
    assert len(problems) == 1


def test_an_absent_neighbour_is_lost_after_the_patience(lonely):
    east = lonely(patience=0.2)
    with pytest.raises(LostError, match=r"north has not come for more than 0\.2 seconds") as error:
        east.receive(["north"], Kind.VALUE)
    assert error.value.names == {"north"}


def test_a_present_neighbour_that_sends_nothing_due_is_lost_after_a_multiple_of_the_patience(lonely):
    east = lonely(patience=0.1, mute_factor=2.0)
    east.on_presence("north", True)
    with pytest.raises(LostError, match=r"north has sent nothing due for more than 0\.2 seconds"):
        east.receive(["north"], Kind.VALUE)


def test_a_neighbour_that_returns_in_time_is_not_lost(pair):
    east, north = pair
    east.on_presence("north", False)
    threading.Timer(0.2, lambda: (east.on_presence("north", True), north.send("east", Kind.VALUE, b""))).start()
    east.receive(["north"], Kind.VALUE)
    assert east.counters.reconnects == 1


def test_a_stop_request_survives_an_eviction(pair):
    east, _ = pair
    east.stop()
    east.evict({"north"}, [])
    with pytest.raises(StoppedError):
        east.receive([], Kind.VALUE)


def test_a_message_far_ahead_of_what_is_due_is_refused(pair):
    east, _ = pair
    data = encode(Kind.VALUE, "north", DIGEST, number=5000, run_id=22, shape=(1, 2), body=bytes(16))
    east.on_message("north", data)
    with pytest.raises(RefusedError, match="its number is 5000, when 0 is due"):
        east.receive(["north"], Kind.VALUE)


def test_a_message_to_an_earlier_run_of_the_agent_is_ignored(pair):
    east, north = pair
    old = encode(Kind.VALUE, "north", DIGEST, run_id=22, peer_run_id=7, shape=(1, 2), body=body_of("north", 99))
    east.on_message("north", old)
    north.send("east", Kind.VALUE, body_of("north", 0), (1, 2))
    assert bytes(east.receive(["north"], Kind.VALUE)["north"].body) == body_of("north", 0)


def test_messages_of_a_neighbours_earlier_run_are_discarded(pair):
    east, _ = pair
    for run_id, k in ((22, 5), (23, 6)):
        message = encode(Kind.VALUE, "north", DIGEST, run_id=run_id, shape=(1, 2), body=body_of("north", k))
        east.on_message("north", message)
    assert bytes(east.receive(["north"], Kind.VALUE)["north"].body) == body_of("north", 6)
    east.on_message("north", encode(Kind.RESEND, "north", DIGEST, run_id=24))
    with pytest.raises(FailedError, match="north has started again without its checkpoint"):
        east.receive(["north"], Kind.VALUE)


def test_two_agents_that_have_evicted_each_other_do_not_keep_informing_each_other():
    network = UnreliableNetwork()
    messengers = {name: network.join(name) for name in NAMES}
    network.messengers.clear()  # each evicts the other while they are apart
    for name, messenger in messengers.items():
        messenger.evict({OTHER[name]}, [])
    network.messengers.update(messengers)
    for name, messenger in messengers.items():
        messenger.on_presence(OTHER[name], True)
    assert not network.wait_for(lambda kinds: len(kinds) > 4, seconds=0.5)
    assert set(network.kinds) == {Kind.EVICTED}
    for messenger in messengers.values():
        messenger.receive([], Kind.VALUE)  # raises nothing
        messenger.close()


def test_the_worker_continues_after_a_job_that_fails():
    errors, done = [], []
    worker = Worker(errors.append)
    worker.submit("resend", "north", lambda: done.append(1 / 0))
    worker.flush()
    worker.submit("resend", "north", lambda: done.append(1))
    worker.flush()
    worker.close()
    assert [type(error) for error in errors] == [ZeroDivisionError]
    assert done == [1]


def test_the_worker_runs_the_last_of_equal_requests_once():
    started, release, done = threading.Event(), threading.Event(), []
    worker = Worker(lambda error: None)
    worker.submit("first", "north", lambda: (started.set(), release.wait(60)))
    assert started.wait(60)
    for k in range(100):
        worker.submit("resend", "north", lambda k=k: done.append(k))
    release.set()
    worker.flush()
    worker.close()
    assert done == [99]
