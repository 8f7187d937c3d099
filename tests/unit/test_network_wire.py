"""The wire format: what is written is read again, and whatever else comes is refused and nothing more."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import threading
import tracemalloc

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from elmesh.comm.allreduce import Channels
from elmesh.comm.network.edge_queue import Edge
from elmesh.comm.network.errors import FailedError, RefusedError, RegroupedError
from elmesh.comm.network.messenger import Post
from elmesh.comm.network.transport import NetworkLink
from elmesh.comm.network.wire import HEADER_BYTES, Kind, WireError, doubles, encode, epoch_of, parse
from helpers.fuzz_wire import BESIDE, CONFIG, READERS, SHAPE, TOTAL, Mailbox, Victim, feed, seeds
from helpers.network import ROOT

NAMES = st.from_regex(r"[a-z0-9][a-z0-9_-]{0,31}", fullmatch=True)
U4, U8, COUNT = st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1), st.integers(0, 2**60)
FIELDS = st.fixed_dictionaries(
    {
        "epoch": U4,
        "number": COUNT,
        "settled": COUNT,
        "life": U8,
        "yours": U8,
        "shape": st.tuples(U4, U4),
        "coarse": st.booleans(),
        "body": st.binary(max_size=200),
    }
)


@pytest.fixture
def victim():
    one = Victim()
    yield one
    one.close()


# What is written is read again.


@given(st.sampled_from(Kind), NAMES, st.binary(min_size=32, max_size=32), FIELDS)
def test_a_message_is_read_as_it_was_written(kind, sender, digest, fields):
    data = encode(kind, sender, digest, **fields)
    message = parse(data)
    rows, columns = fields.pop("shape")
    assert (message.kind, message.sender, message.digest, message.rows, message.columns) == (
        *(kind, sender, digest, rows, columns),
    )
    assert {name: getattr(message, name) for name in fields} == fields
    assert len(data) == HEADER_BYTES + len(fields["body"])


@given(hnp.arrays(np.float64, hnp.array_shapes(min_dims=2, max_dims=2, max_side=6), elements=st.floats(-1e300, 1e300)))
def test_a_value_is_read_to_the_bit(value):
    data = encode(Kind.VALUE, "north", bytes(32), shape=value.shape, body=value.astype("<f8").tobytes())
    assert parse(data).value(*value.shape).tobytes() == value.tobytes()


def test_the_header_is_as_long_and_laid_out_as_its_description_says():
    data = encode(
        *(Kind.WANT, "north", bytes(range(32))), epoch=1, number=2, settled=3, life=4, yours=5, shape=(6, 7), body=b"!"
    )
    said = struct.unpack("<4sBBHIIIIQQQQ32s32s", data[:-1])
    assert said == (b"ELM1", 4, 0, 0, 1, 6, 7, 0, 2, 3, 4, 5, b"north".ljust(32, b"\0"), bytes(range(32)))
    assert HEADER_BYTES % 8 == 0  # numbers behind it are where a double may be


# Whatever else is refused.

GOOD = encode(Kind.VALUE, "north", bytes(32), shape=(1, 1), body=bytes(8))


@pytest.mark.parametrize(
    ("where", "what", "why"),
    [
        (0, b"ELM2", "not in the format"),
        (0, b"\x80\x04\x95\x00", "not in the format"),
        (4, b"\x00", "not known"),
        (4, b"\x0b", "not known"),
        (4, b"\xff", "not known"),
        (5, b"\x02", "not known"),
        (6, b"\x01", "not known"),
        (7, b"\x01", "not known"),
        (20, b"\x01", "not known"),
        (24, struct.pack("<Q", 2**60 + 1), "out of all proportion"),
        (32, struct.pack("<Q", 2**64 - 1), "out of all proportion"),
        (56, bytes(32), "name"),
        (56, b"North", "name"),
        (56, b"n\x1b[2J", "name"),
        (56, b"n\0rth", "name"),
        (56, "nörth".encode(), "name"),
        (56, b"../north", "name"),
        (56, b"north ", "name"),
    ],
)
def test_a_header_with_one_bad_field_is_refused(where, what, why):
    data = bytearray(GOOD)
    data[where : where + len(what)] = what
    with pytest.raises(WireError, match=why) as error:
        parse(bytes(data))
    assert str(error.value).isprintable()


def test_a_message_cut_short_is_refused_wherever_it_is_cut():
    for length in range(HEADER_BYTES):
        with pytest.raises(WireError, match="fewer than a header"):
            parse(GOOD[:length])
    for length in range(HEADER_BYTES, len(GOOD)):
        with pytest.raises(WireError, match="bytes, not 8"):
            parse(GOOD[:length]).value(1, 1)


@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("beside", [1.0, 1e300])
def test_a_value_that_is_no_number_is_refused_whatever_else_there_is(odd, beside):
    for place in range(6):
        numbers = np.full(6, beside)
        numbers[place] = odd
        with pytest.raises(WireError, match="not a finite number"):
            doubles(numbers.astype("<f8").tobytes(), 6)
    assert doubles(np.full(6, beside).tobytes(), 6).tolist() == [beside] * 6
    assert doubles(b"", 0).shape == (0,)


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"shape": (3, 4)}, "3 x 4, not 4 x 3"),
        ({"shape": (2**32 - 1, 2**32 - 1)}, "not 4 x 3"),
        ({"coarse": True}, "double precision"),
        ({"body": bytes(8 * 13)}, "104 bytes, not 96"),
        ({"body": bytes(95)}, "95 bytes, not 96"),
        ({"body": b""}, "0 bytes, not 96"),
    ],
)
def test_a_value_of_another_shape_type_or_length_is_refused(fields, why):
    fields = {"shape": SHAPE, "body": bytes(8 * 12)} | fields
    with pytest.raises(WireError, match=why):
        parse(encode(Kind.VALUE, "north", bytes(32), **fields)).value(*SHAPE)


def test_what_a_message_claims_to_hold_takes_no_memory():
    claims = encode(Kind.VALUE, "north", bytes(32), shape=(2**32 - 1, 2**32 - 1), body=bytes(8))
    tracemalloc.start()
    try:
        for _ in range(100):
            with pytest.raises(WireError):
                parse(claims).value(*SHAPE)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


# The post.


def value(number: int, body: bytes | None = None, **fields) -> bytes:
    fields = {"life": 1, "shape": SHAPE} | fields
    return encode(
        Kind.VALUE, "mallory", CONFIG.digest, number=number, body=bytes(96) if body is None else body, **fields
    )


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "fewer than a header"),
        (b"GET / HTTP/1.1\r\n\r\n" * 20, "not in the format"),
        (encode(Kind.VALUE, "south", CONFIG.digest, life=1), 'from "south"'),
        (encode(Kind.VALUE, "mallory", bytes(32), life=1), "another network file"),
        (value(1026), "number is 1026, when 0 is due"),
        (value(2**60), "when 0 is due"),
        (encode(Kind.GONE, "mallory", CONFIG.digest, life=1), "nobody knows"),
        (encode(Kind.GONE, "mallory", CONFIG.digest, life=1, body=b"eve"), "nobody knows"),
        (encode(Kind.GONE, "mallory", CONFIG.digest, life=1, body=b"south\n" * 99), "too long"),
        (encode(Kind.GONE, "mallory", CONFIG.digest, epoch=epoch_of(["mallory"]), life=1, body=b"mallory"), "itself"),
        (encode(Kind.GONE, "mallory", CONFIG.digest, epoch=1, life=1, body=b"south"), "epoch"),
    ],
)
def test_the_post_refuses_a_message_and_names_its_sender(victim, data, why):
    victim.post.arrive("mallory", data)
    with pytest.raises(RefusedError, match=f"message from mallory was refused.*{why}") as error:
        victim.post.hear(["mallory"], Kind.VALUE)
    assert error.value.names == {"mallory"}
    assert victim.post.counters.refused == 1
    assert victim.logged == [f"refused mallory {str(error.value).partition('refused: ')[2][:-1]}"]


def test_what_comes_from_nobody_known_is_not_even_read(victim):
    victim.post.arrive("eve", value(0))
    assert victim.post._trouble is None
    assert victim.logged == []


def test_a_neighbour_that_says_who_is_gone_is_named_with_it(victim):
    victim.post.arrive(
        "mallory", encode(Kind.GONE, "mallory", CONFIG.digest, epoch=epoch_of(["south"]), life=1, body=b"south")
    )
    with pytest.raises(RegroupedError, match="mallory goes on without south"):
        victim.post.hear(["mallory"], Kind.VALUE)
    assert victim.logged == ["gone mallory ['south']"]


def test_a_reason_from_a_neighbour_cannot_lead_a_terminal_astray(victim):
    body = b"\x1b]0;owned\x07\x1b[2J\r\n\xc2\x9b31m\xe2\x80\xae\x00[/bold]" + b"x" * 100_000
    victim.post.arrive("mallory", encode(Kind.FAILED, "mallory", CONFIG.digest, life=1, body=body))
    with pytest.raises(FailedError, match="mallory has ended the run") as error:
        victim.post.hear(["mallory"], Kind.VALUE)
    assert str(error.value).isprintable()
    assert len(str(error.value)) < 500


def test_a_value_of_a_kind_that_is_not_due_is_refused(victim):
    data = encode(Kind.INWARDS, "mallory", CONFIG.digest, life=1, shape=SHAPE, body=bytes(96))
    victim.post.arrive("mallory", data)
    with pytest.raises(RefusedError, match="mallory was refused: it is of kind INWARDS, when VALUE is due"):
        victim.post.hear(["mallory"], Kind.VALUE)


def test_a_neighbour_that_says_in_the_middle_that_it_has_begun_anew_is_named_for_it(victim):
    victim.post.arrive("mallory", value(0))
    victim.post.hear(["mallory"], Kind.VALUE)
    victim.post.arrive("mallory", value(0, life=2))
    with pytest.raises(FailedError, match="mallory has begun anew") as error:
        victim.post.hear(["mallory"], Kind.VALUE)
    assert error.value.names == {"mallory"}


class Stuck(Mailbox):
    """A carrier to a neighbour that reads nothing, for as long as it is not let go."""

    def __init__(self) -> None:
        self.sent, self.go, self.began = [], threading.Event(), threading.Event()

    def put(self, to: str, data: bytes) -> None:
        self.began.set()
        self.go.wait()
        self.sent.append(data)


def test_a_neighbour_that_asks_thousands_of_things_and_reads_no_answer_takes_no_memory():
    carrier = Stuck()
    post = Post("north", CONFIG, carrier, 5.0, 7)
    questions = [
        encode(kind, "mallory", CONFIG.digest, life=1, number=3) for kind in (Kind.WANT, Kind.DONE, Kind.HEARD)
    ]
    questions.append(encode(Kind.ASK, "mallory", bytes(32)))
    post.arrive("mallory", questions[0])
    post.arrive("mallory", questions[-1])
    assert carrier.began.wait(10)
    try:
        for question in questions:
            post.arrive("mallory", question)
        tracemalloc.start()
        for _ in range(3000):
            for question in questions:
                post.arrive("mallory", question)
        grown = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
        carrier.go.set()
        post.close()
    assert grown < 50_000
    assert len(carrier.sent) < 20


@pytest.mark.parametrize("settled", [0, 2**60])
def test_messages_that_wait_to_be_taken_are_bounded(settled):
    edge = Edge()
    for number in range(1, 1025):
        edge.take_in(parse(value(number, b"", settled=settled)))
    with pytest.raises(WireError):
        edge.take_in(parse(value(1025, b"")))
    large, edge = bytes(32 << 20), Edge()
    body = value(1, large)
    taken = sum(edge.take_in(parse(body[:24] + struct.pack("<Q", number) + body[32:])) for number in range(1, 12))
    assert taken * len(large) <= (256 << 20) + 2 * len(large)
    assert edge.take_in(parse(value(0)))  # what is due is always taken


# Sums.


@pytest.mark.parametrize(("bits", "size"), [(64, 1e151), (64, 1e308), (8, 1e151)])
def test_a_sum_so_large_that_adding_to_it_would_overflow_is_refused_where_it_comes_from(victim, bits, size):
    link = NetworkLink(victim.post, CONFIG.agent_names, CONFIG.topology, bits)
    told = np.zeros(SHAPE)
    told[0] = size
    body = told.tobytes() if bits == 64 else Channels(bits).tell(TOTAL, told, 0)
    data = encode(
        *(Kind.INWARDS, "mallory", CONFIG.digest), shape=SHAPE, coarse=bits != 64, body=body + bytes(8 * BESIDE)
    )
    with pytest.raises(RefusedError, match="message from mallory was refused: its norm is"):
        link._partial(TOTAL, "mallory", parse(data), SHAPE, BESIDE, 0)


def test_a_value_whose_norm_overflows_is_refused_even_where_there_is_no_bound(victim):
    link = NetworkLink(victim.post, CONFIG.agent_names, CONFIG.topology)
    data = value(0, np.full(SHAPE, 1e200).tobytes())
    with pytest.raises(RefusedError, match="norm is inf"):
        link._value("mallory", parse(data), SHAPE)


def test_a_coarse_sum_with_something_behind_it_is_refused(victim):
    link = NetworkLink(victim.post, CONFIG.agent_names, CONFIG.topology, 8)
    body = Channels(8).tell(TOTAL, np.ones(SHAPE), 0)
    for more, refused in ((b"", False), (b"a", True), (bytes(100), True)):
        told = body + more + bytes(8 * BESIDE)
        message = parse(encode(Kind.INWARDS, "mallory", CONFIG.digest, shape=SHAPE, coarse=True, body=told))
        if refused:
            with pytest.raises(RefusedError, match="longer than"):
                link._partial(TOTAL, "mallory", message, SHAPE, BESIDE, 0)
        else:
            link._partial(TOTAL, "mallory", message, SHAPE, BESIDE, 0)


# Anything at all.


@pytest.mark.parametrize("number", range(len(READERS)), ids=[reader.__name__ for reader in READERS])
def test_what_is_right_is_read_by_everybody_who_reads(number):
    mine = [seed for seed in seeds() if seed[0] == number]
    assert mine
    for seed in mine:
        feed(seed)


@settings(max_examples=200)
@given(st.integers(0, len(READERS) - 1), st.binary(max_size=400))
@example(5, b"\x1b[2J")
@example(6, b"\x20\xff\x7f" + np.full(8, 1e38, "<f4").tobytes() + b"\x10\xff\x7f" + bytes(28))
def test_any_bytes_are_read_or_refused(reader, data):
    feed(bytes([reader]) + data)


@settings(max_examples=200)
@given(st.sampled_from(seeds()), st.data())
def test_a_good_message_with_bytes_changed_is_read_or_refused(seed, data):
    changed = bytearray(seed)
    for place in data.draw(st.lists(st.integers(1, len(seed) - 1), max_size=4)) if len(seed) > 1 else ():
        changed[place] = data.draw(st.integers(0, 255))
    feed(bytes(changed[: data.draw(st.integers(1, len(changed)))]))


@pytest.mark.parametrize("runs", [100_000, pytest.param(1_000_000, marks=pytest.mark.slow)])
def test_a_fuzzer_finds_nothing_that_crashes_a_reader_or_fills_the_memory(tmp_path, runs):
    pytest.importorskip("atheris", reason="atheris is not installed")
    command = [
        sys.executable,
        str(ROOT / "tests" / "helpers" / "fuzz_wire.py"),
        f"-runs={runs}",
        "-max_len=600",
        "-seed=1",
    ]
    done = subprocess.run(
        [*command, "-rss_limit_mb=0", "-malloc_limit_mb=256", "-timeout=10", str(tmp_path / "corpus")],
        env=os.environ | {"PYTHONPATH": str(ROOT / "src"), "OPENBLAS_NUM_THREADS": "1"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert f"Done {runs} runs" in done.stderr
