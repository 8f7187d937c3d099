"""The post of an agent: whatever the carrier does to messages, neighbours hear the same values in the same order."""

import struct
import threading
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elmesh.comm.network import messenger as post_module
from elmesh.comm.network import peer as neighbour_module
from elmesh.comm.network.errors import FailedError, LostError, RefusedError, StoppedError
from elmesh.comm.network.messenger import Post
from elmesh.comm.network.wire import Kind, encode, parse
from helpers.network import make_config

NAMES = ("east", "north")
CONFIG = make_config(NAMES, "path")
OTHER = {"east": "north", "north": "east"}
LIVES = {"east": 11, "north": 22}


@pytest.fixture(autouse=True)
def in_a_hurry(monkeypatch):
    for name, seconds in {"_FIRST": 0.001, "_MOST": 0.01, "_BREATH": 0.02}.items():
        monkeypatch.setattr(post_module, name, seconds)
    for name in ("_GRACE", "_GRACE_UNSEEN"):
        monkeypatch.setattr(neighbour_module, name, 0.2)


def body_of(name, k):
    return struct.pack("<dd", NAMES.index(name), k)


class Mail:
    """Takes messages between two posts, and loses, doubles, delays, reorders and replays them."""

    def __init__(self, seed=0, drop=0.0, twice=0.0, late=0.0, replay=0.0):
        self._random, self._lock = np.random.default_rng(seed), threading.Lock()
        self._drop, self._twice, self._late, self._replay = drop, twice, late, replay
        self.posts, self.left, self._waiting, self._past = {}, set(), [], []

    def carrier(self, sender):
        mail = self

        class Carrier:
            def put(self, to, data):
                for letter in mail.delivered((sender, to, data)):
                    mail.hand_over(*letter)

        return Carrier()

    def delivered(self, letter):
        """What comes of a letter now: it, or nothing, or others."""
        rng = self._random
        with self._lock:
            self._past.append(letter)
            letters = [] if rng.random() < self._drop else [letter]
            if rng.random() < self._twice:
                letters *= 2
            if rng.random() < self._late:
                letters, self._waiting = [], [*self._waiting, *letters]
            elif self._waiting and rng.random() < 0.5:
                letters = [*letters, *self._waiting]
                self._waiting = []
                rng.shuffle(letters)
            if rng.random() < self._replay:
                letters.append(self._past[rng.integers(len(self._past))])
            return letters

    def hand_over(self, sender, to, data):
        if to in self.posts:
            self.posts[to].arrive(sender, data)


class Walker(threading.Thread):
    """An agent that says a value a round and hears one, is killed at times, and goes on from where it last wrote."""

    def __init__(self, name, mail, rounds, seed, kill, every):
        super().__init__(daemon=True)
        self.me, self.peer, self._mail, self._rounds = name, OTHER[name], mail, rounds
        self._random, self._kill, self._every = np.random.default_rng(seed), kill, every
        self.heard, self.most, self.problem, self.late, self.kills = [], 0, None, None, 0
        self._begin(None)

    def _begin(self, stands):
        self.post = Post(self.me, CONFIG, self._mail.carrier(self.me), 20.0, LIVES[self.me])
        if stands is not None:
            self.post.restore(stands)
        self._mail.posts[self.me] = self.post
        self.post.presence(self.peer, self.peer not in self._mail.left)

    def run(self):
        try:
            k, written = 0, (0, [], None)
            while k < self._rounds:
                if self._random.random() < self._kill:
                    self.post.close()
                    self.kills += 1
                    k, heard, stands = written
                    self.heard = list(heard)
                    self._begin(stands)
                if k % self._every == 0:
                    written = k, list(self.heard), self.post.snapshot()
                    self.post.settle({self.peer: written[2][self.peer].heard})
                self.post.say(self.peer, Kind.VALUE, (1, 2), body_of(self.me, k))
                message = self.post.hear([self.peer], Kind.VALUE)[self.peer]
                self.heard.append(bytes(message.body))
                self.most = max(self.most, self.post.look()[self.peer]["kept"])
                k += 1
            self.late = self.post.finish()
        except Exception as error:
            self.problem = error
        finally:
            self.post.close()
            self._mail.left.add(self.me)
            self._mail.posts[self.peer].presence(self.me, False)


@settings(max_examples=30)
@given(
    seed=st.integers(0, 2**32),
    drop=st.floats(0.0, 0.5),
    twice=st.floats(0.0, 0.5),
    late=st.floats(0.0, 0.5),
    replay=st.floats(0.0, 0.5),
    kill=st.sampled_from([0.0, 0.05, 0.2]),
    every=st.integers(1, 9),
)
def test_both_sides_hear_the_same_values_in_order_whatever_happens_on_the_way(
    seed, drop, twice, late, replay, kill, every
):
    mail = Mail(seed, drop, twice, late, replay)
    walkers = [Walker(name, mail, 20, seed + k, kill, every) for k, name in enumerate(NAMES)]
    for walker in walkers:
        walker.start()
    for walker in walkers:
        walker.join(30)
        assert not walker.is_alive()
        assert walker.problem is None
        assert walker.late == []
        assert walker.heard == [body_of(walker.peer, k) for k in range(20)]
        # Nothing is kept for longer than until the other side has written it down, and word of that has come.
        assert walker.most <= 20


def test_what_was_written_down_by_the_other_side_is_kept_no_longer():
    mail = Mail()
    walkers = [Walker(name, mail, 300, k, 0.0, 4) for k, name in enumerate(NAMES)]
    for walker in walkers:
        walker.start()
    for walker in walkers:
        walker.join(30)
        assert walker.problem is None
        assert walker.most <= 10


@pytest.fixture
def pair():
    mail = Mail()
    posts = {name: Post(name, CONFIG, mail.carrier(name), 0.3, LIVES[name]) for name in NAMES}
    mail.posts.update(posts)
    for name, post in posts.items():
        post.presence(OTHER[name], True)
    yield posts["east"], posts["north"]
    for post in posts.values():
        post.close()


def say_much(east):
    for k in range(1000):
        east.say("north", Kind.VALUE, (1, 2), body_of("east", k))


def test_no_more_is_kept_for_a_neighbour_than_it_may_be_behind(pair):
    east, _ = pair
    with pytest.raises(LostError, match=r"north has not confirmed what it was told for 0\.3 seconds"):
        say_much(east)
    assert east.look()["north"]["kept"] == 512


def test_an_agent_that_waits_for_a_confirmation_can_be_stopped():
    post = Post("east", CONFIG, Mail().carrier("east"), 600.0, 1)
    threading.Timer(0.2, post.stop).start()
    with pytest.raises(StoppedError):
        say_much(post)
    post.close()


def test_being_stopped_is_not_forgotten_when_others_are_left_out(pair):
    east, _ = pair
    east.stop()
    east.regroup({"north"})
    with pytest.raises(StoppedError):
        east.hear([], Kind.VALUE)


def test_a_message_far_ahead_of_what_is_due_is_refused(pair):
    east, _ = pair
    east.arrive("north", encode(Kind.VALUE, "north", CONFIG.digest, number=5000, life=22, shape=(1, 2), body=bytes(16)))
    with pytest.raises(RefusedError, match="its number is 5000, when 0 is due"):
        east.hear(["north"], Kind.VALUE)


def test_what_was_meant_for_an_earlier_run_of_the_agent_is_not_heard(pair):
    east, north = pair
    old = encode(Kind.VALUE, "north", CONFIG.digest, life=22, yours=7, shape=(1, 2), body=body_of("north", 99))
    east.arrive("north", old)
    north.say("east", Kind.VALUE, (1, 2), body_of("north", 0))
    assert bytes(east.hear(["north"], Kind.VALUE)["north"].body) == body_of("north", 0)


def test_what_a_neighbour_said_before_it_began_anew_does_not_count(pair):
    east, _ = pair
    for life, k in ((22, 5), (23, 6)):
        message = encode(Kind.VALUE, "north", CONFIG.digest, life=life, shape=(1, 2), body=body_of("north", k))
        east.arrive("north", message)
    assert bytes(east.hear(["north"], Kind.VALUE)["north"].body) == body_of("north", 6)
    east.arrive("north", encode(Kind.WANT, "north", CONFIG.digest, life=24))
    with pytest.raises(FailedError, match="north has begun anew"):
        east.hear(["north"], Kind.VALUE)


def test_two_parts_that_have_gone_on_without_each_other_leave_each_other_alone():
    sent = []
    mail = Mail()
    posts = {name: Post(name, CONFIG, mail.carrier(name), 5.0, LIVES[name]) for name in NAMES}
    handing = mail.hand_over

    def count(sender, to, data):
        sent.append(parse(data).kind)
        handing(sender, to, data)

    mail.hand_over = count
    for name, post in posts.items():
        post.regroup({OTHER[name]})
    mail.posts.update(posts)
    for name, post in posts.items():
        post.presence(OTHER[name], True)
    time.sleep(0.1)
    for post in posts.values():
        post.hear([], Kind.VALUE)  # nobody is in trouble
        post.close()
    assert len(sent) <= 4
