"""The wire format: encoded messages are read back, and all other bytes are refused without further effect."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import threading
import tracemalloc

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from elmesh.comm.network.edge_queue import EdgeQueue
from elmesh.comm.network.errors import EvictionError, FailedError, LostError, RefusedError
from elmesh.comm.network.messenger import ReliableMessenger
from elmesh.comm.network.peer import Timing
from elmesh.comm.network.wire import HEADER_BYTES, Kind, WireError, encode, epoch_of, parse
from elmesh.comm.requests import IntegerSum, NeighborSum
from helpers.examples import examples
from helpers.fuzz_wire import (
    DIGEST,
    ENDPOINT,
    MALLORY_RUN,
    READERS,
    REQUESTS,
    SHAPE,
    Discard,
    Victim,
    feed,
    partial_sum,
    seeds,
)
from helpers.network import ROOT

NAMES = st.from_regex(r"[a-z0-9][a-z0-9_-]{0,31}", fullmatch=True)
U4, U8, COUNT = st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1), st.integers(0, 2**60)
FIELDS = st.fixed_dictionaries(
    {
        "epoch": U4,
        "number": COUNT,
        "acked": COUNT,
        "run_id": U8,
        "peer_run_id": U8,
        "shape": st.tuples(U4, U4),
        "is_bytes": st.booleans(),
        "view": st.binary(min_size=32, max_size=32),
        "body": st.binary(max_size=200),
    }
)


@pytest.fixture
def victim():
    one = Victim()
    yield one
    one.close()


# Encoded messages are read back.


@given(st.sampled_from(Kind), NAMES, st.binary(min_size=32, max_size=32), FIELDS)
def test_an_encoded_message_is_parsed_to_the_same_fields(kind, sender, digest, fields):
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
    read, square = parse(data).matrix(*value.shape)
    assert read.tobytes() == value.tobytes()
    assert square == np.vdot(value, value)


def test_the_header_has_the_documented_layout():
    data = encode(
        *(Kind.RESEND, "north", bytes(range(32))),
        **{"epoch": 1, "number": 2, "acked": 3, "run_id": 4, "peer_run_id": 5, "shape": (6, 7), "body": b"!"},
        view=bytes(range(32, 64)),
    )
    fields = struct.unpack("<4sBBHIIIIQQQQ32s32s32s", data[:-1])
    texts = b"north".ljust(32, b"\0"), bytes(range(32)), bytes(range(32, 64))
    assert fields == (b"ELM3", 4, 0, 0, 1, 6, 7, 0, 2, 3, 4, 5, *texts)
    assert HEADER_BYTES % 8 == 0  # so that the numbers after it are aligned


# All other bytes are refused.

GOOD = encode(Kind.VALUE, "north", bytes(32), shape=(1, 1), body=bytes(8))


@pytest.mark.parametrize(
    ("where", "what", "why"),
    [
        (0, b"ELM1", "not in the format"),
        (0, b"\x80\x04\x95\x00", "not in the format"),
        (4, b"\x00", "unknown field"),
        (4, b"\x0d", "unknown field"),
        (4, b"\xff", "unknown field"),
        (5, b"\x02", "unknown field"),
        (6, b"\x01", "unknown field"),
        (7, b"\x01", "unknown field"),
        (20, b"\x01", "unknown field"),
        (24, struct.pack("<Q", 2**60 + 1), "too large"),
        (32, struct.pack("<Q", 2**64 - 1), "too large"),
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


def test_a_truncated_message_is_refused_at_any_length():
    for length in range(HEADER_BYTES):
        with pytest.raises(WireError, match="fewer than a header"):
            parse(GOOD[:length])
    for length in range(HEADER_BYTES, len(GOOD)):
        with pytest.raises(WireError, match="bytes, not 8"):
            parse(GOOD[:length]).matrix(1, 1)


def value(number: int, body: bytes | None = None, **fields) -> bytes:
    fields = {"run_id": MALLORY_RUN, "shape": SHAPE} | fields
    return encode(Kind.VALUE, "mallory", DIGEST, number=number, body=bytes(96) if body is None else body, **fields)


@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("rest", [1.0, 1e300])
def test_a_value_that_is_not_finite_is_refused_in_any_place(odd, rest):
    for place in range(12):
        numbers = np.full(SHAPE, rest)
        numbers.flat[place] = odd
        with pytest.raises(WireError, match="not a finite number"):
            parse(value(0, numbers.tobytes())).matrix(*SHAPE)
    assert parse(value(0, np.full(SHAPE, rest).tobytes())).matrix(*SHAPE)[0].tolist() == np.full(SHAPE, rest).tolist()
    assert parse(value(0, b"", shape=(0, 0))).matrix(0, 0)[0].shape == (0, 0)


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"shape": (3, 4)}, "3 x 4, not 4 x 3"),
        ({"shape": (2**32 - 1, 2**32 - 1)}, "not 4 x 3"),
        ({"is_bytes": True}, "it holds no doubles"),
        ({"body": bytes(8 * 13)}, "104 bytes, not 96"),
        ({"body": bytes(95)}, "95 bytes, not 96"),
        ({"body": b""}, "0 bytes, not 96"),
    ],
)
def test_a_value_of_another_shape_type_or_length_is_refused(fields, why):
    fields = {"shape": SHAPE, "body": bytes(8 * 12)} | fields
    with pytest.raises(WireError, match=why):
        parse(encode(Kind.VALUE, "north", bytes(32), **fields)).matrix(*SHAPE)


def test_a_declared_size_allocates_no_memory():
    claims = encode(Kind.VALUE, "north", bytes(32), shape=(2**32 - 1, 2**32 - 1), body=bytes(8))
    tracemalloc.start()
    try:
        for _ in range(100):
            with pytest.raises(WireError):
                parse(claims).matrix(*SHAPE)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


# The messenger.


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "fewer than a header"),
        (b"GET / HTTP/1.1\r\n\r\n" * 20, "not in the format"),
        (encode(Kind.VALUE, "south", DIGEST, run_id=1), 'header names the sender "south"'),
        (encode(Kind.VALUE, "mallory", bytes(32), run_id=1), "network file differs"),
        (value(1026), "number is 1026, when 0 is due"),
        (value(2**60), "when 0 is due"),
        (encode(Kind.EVICTED, "mallory", DIGEST, run_id=1), "unknown names"),
        (encode(Kind.EVICTED, "mallory", DIGEST, run_id=1, body=b"eve"), "unknown names"),
        (encode(Kind.EVICTED, "mallory", DIGEST, run_id=1, body=b"south\n" * 99), "too long"),
        (
            encode(Kind.EVICTED, "mallory", DIGEST, epoch=epoch_of(["mallory"]), run_id=1, body=b"mallory"),
            "includes its sender",
        ),
        (encode(Kind.EVICTED, "mallory", DIGEST, epoch=1, run_id=1, body=b"south"), "epoch"),
    ],
)
def test_the_messenger_refuses_a_message_and_names_its_sender(victim, data, why):
    victim.messenger.on_message("mallory", data)
    with pytest.raises(RefusedError, match=f"message from mallory was refused.*{why}") as error:
        victim.messenger.receive(["mallory"], Kind.VALUE)
    assert error.value.names == {"mallory"}
    assert victim.messenger.counters.refused == 1
    assert victim.logged == [f"refused mallory {str(error.value).partition('refused: ')[2][:-1]}"]


def test_a_message_from_an_unknown_sender_is_ignored(victim):
    victim.messenger.on_message("eve", value(0))
    victim.messenger.receive([], Kind.VALUE)  # raises nothing
    assert victim.logged == []


def test_an_eviction_is_reported_with_its_sender(victim):
    victim.messenger.on_message(
        "mallory", encode(Kind.EVICTED, "mallory", DIGEST, epoch=epoch_of(["south"]), run_id=1, body=b"south")
    )
    with pytest.raises(EvictionError, match="mallory continues without south"):
        victim.messenger.receive(["mallory"], Kind.VALUE)
    assert victim.logged == ["evicted mallory ['south']"]


def test_a_reason_from_a_neighbour_cannot_control_a_terminal(victim):
    body = b"\x1b]0;owned\x07\x1b[2J\r\n\xc2\x9b31m\xe2\x80\xae\x00[/bold]" + b"x" * 100_000
    victim.messenger.on_message("mallory", encode(Kind.FAILED, "mallory", DIGEST, run_id=1, body=body))
    with pytest.raises(FailedError, match="mallory has ended the run") as error:
        victim.messenger.receive(["mallory"], Kind.VALUE)
    assert str(error.value).isprintable()
    assert len(str(error.value)) < 500


def test_a_message_of_a_kind_that_is_not_due_is_refused(victim):
    victim.messenger.on_message("mallory", partial_sum(bytes(96)))
    with pytest.raises(RefusedError, match="mallory was refused: it is of kind PARTIAL_SUM, when VALUE is due"):
        victim.messenger.receive(["mallory"], Kind.VALUE)


def test_a_neighbour_that_starts_again_in_the_middle_of_a_run_is_named(victim):
    victim.messenger.on_message("mallory", value(0))
    victim.messenger.receive(["mallory"], Kind.VALUE)
    victim.messenger.on_message("mallory", value(0, run_id=2))
    with pytest.raises(FailedError, match="mallory has started again without its checkpoint") as error:
        victim.messenger.receive(["mallory"], Kind.VALUE)
    assert error.value.names == {"mallory"}


class Blocked(Discard):
    """A session to a neighbour that reads nothing until it is released."""

    def __init__(self) -> None:
        self.sent, self.released, self.began = [], threading.Event(), threading.Event()

    def put(self, to: str, data: bytes) -> None:
        self.began.set()
        self.released.wait()
        self.sent.append(data)


@pytest.mark.thorough
def test_thousands_of_requests_from_a_neighbour_that_reads_no_answer_take_no_memory():
    session = Blocked()
    messenger = ReliableMessenger(ENDPOINT, session, Timing(patience=5.0), 7)
    requests = [encode(kind, "mallory", DIGEST, run_id=1, number=3) for kind in (Kind.RESEND, Kind.DONE, Kind.ACK)]
    requests.append(encode(Kind.PING, "mallory", bytes(32)))
    messenger.on_message("mallory", requests[0])
    messenger.on_message("mallory", requests[-1])
    assert session.began.wait(60)
    try:
        for request in requests:
            messenger.on_message("mallory", request)
        tracemalloc.start()
        for _ in range(1000):
            for request in requests:
                messenger.on_message("mallory", request)
        grown = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
        session.released.set()
        messenger.close()
    assert grown < 50_000
    assert len(session.sent) < 20


@pytest.mark.thorough
@pytest.mark.parametrize("acked", [0, 2**60])
def test_messages_that_wait_for_delivery_are_bounded(acked):
    edge = EdgeQueue()
    for number in range(1, 1025):
        edge.put(parse(value(number, b"", acked=acked)))
    with pytest.raises(WireError):
        edge.put(parse(value(1025, b"")))


@pytest.mark.thorough
def test_the_bytes_that_wait_for_delivery_are_bounded():
    large, edge = bytes(32 << 20), EdgeQueue()
    body = value(1, large)
    stored = sum(edge.put(parse(body[:24] + struct.pack("<Q", number) + body[32:])) for number in range(1, 12))
    assert stored * len(large) <= (256 << 20) + 2 * len(large)
    assert edge.put(parse(value(0)))  # what is due is always stored


# Values and sums.


@pytest.mark.parametrize("kind", [Kind.PARTIAL_SUM, Kind.TOTAL])
@pytest.mark.parametrize("bits", REQUESTS)
def test_a_sum_whose_masks_do_not_cancel_is_refused_and_nobody_is_named(victim, kind, bits):
    victim.deliver(partial_sum(b"\x01" * (12 * bits // 8 + 8), kind=kind))
    transport = victim.transport("north" if kind is Kind.PARTIAL_SUM else "mallory")
    with pytest.raises(RefusedError, match="masks of a sum do not cancel") as error:
        transport.integer_sum(REQUESTS[bits])
    assert error.value.names == set()


def test_a_sum_of_integers_without_masks_is_added(victim):
    value = np.arange(12)
    victim.deliver(partial_sum(value.astype("<i8").tobytes(), bytes(32)))
    assert victim.transport(masked=False).integer_sum(IntegerSum(value)).tolist() == (2 * value).tolist()


def test_a_sum_of_an_agent_with_another_view_is_refused(victim):
    victim.deliver(partial_sum(bytes(8 * 13), bytes(range(32))))
    with pytest.raises(RefusedError, match="mallory was refused: it was sent other keys or other totals"):
        victim.transport().integer_sum(REQUESTS[64])


@pytest.mark.parametrize(
    ("message", "why"),
    [
        (partial_sum(bytes(8 * 12)), "a message of 96 bytes is not a sum of 13 integers"),
        (partial_sum(bytes(8 * 13), length=12), "1 x 12, not 1 x 13"),
        (encode(Kind.PARTIAL_SUM, "mallory", DIGEST, run_id=MALLORY_RUN, shape=(1, 13)), "holds doubles"),
    ],
)
def test_a_sum_of_another_size_is_refused(victim, message, why):
    victim.deliver(message)
    with pytest.raises(RefusedError, match=rf"(?i)mallory was refused: .*{why}"):
        victim.transport().integer_sum(REQUESTS[64])


def test_a_value_whose_norm_overflows_is_refused_even_without_a_bound(victim):
    victim.deliver(value(0, np.full(SHAPE, 1e200).tobytes()))
    with pytest.raises(RefusedError, match="norm is inf"):
        victim.transport().neighbor_sum(NeighborSum(np.zeros((1, *SHAPE))))


def test_a_value_above_the_bound_is_refused(victim):
    for size, refused in ((99.9, False), (100.1, True)):
        content = np.zeros(SHAPE)
        content[1, 1] = size
        victim.deliver(value(0, content.tobytes()))
        transport = victim.transport(max_norm=100.0)
        if refused:
            with pytest.raises(RefusedError, match=r"norm is 100, above 100"):
                transport.neighbor_sum(NeighborSum(np.zeros((1, *SHAPE))))
        else:
            assert transport.neighbor_sum(NeighborSum(np.zeros((1, *SHAPE))))[0].tolist() == content.tolist()


def test_a_message_that_never_arrives_is_not_waited_for_without_patience(victim):
    with pytest.raises(LostError, match="mallory has not come"):
        victim.transport().integer_sum(REQUESTS[64])


# Arbitrary bytes.


@pytest.mark.parametrize("number", range(len(READERS)), ids=[reader.__name__ for reader in READERS])
def test_valid_inputs_are_accepted_by_every_reader(number):
    mine = [seed for seed in seeds() if seed[0] == number]
    assert mine
    for seed in mine:
        feed(seed)


@examples(200)
@given(st.integers(0, len(READERS) - 1), st.binary(max_size=400))
@example(4, b"\x1b[2J")
def test_any_bytes_are_accepted_or_refused(reader, data):
    feed(bytes([reader]) + data)


@pytest.mark.thorough
@examples(200)
@given(st.sampled_from(seeds()), st.data())
def test_a_valid_message_with_bytes_changed_is_accepted_or_refused(seed, data):
    changed = bytearray(seed)
    for place in data.draw(st.lists(st.integers(1, len(seed) - 1), max_size=4)) if len(seed) > 1 else ():
        changed[place] = data.draw(st.integers(0, 255))
    feed(bytes(changed[: data.draw(st.integers(1, len(changed)))]))


@pytest.mark.slow
@pytest.mark.parametrize("runs", [2_000, 1_000_000])
def test_a_fuzzer_finds_no_crash_and_no_leak(tmp_path, runs):
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
        env=os.environ
        | {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests")]), "OPENBLAS_NUM_THREADS": "1"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert f"Done {runs} runs" in done.stderr
