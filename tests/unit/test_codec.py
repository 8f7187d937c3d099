"""Coarse messages: what a message holds, what becomes of hostile bytes, and what both ends of a channel know."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from elmesh.comm.codec import BITS, Channel, decode, encode, message_size
from elmesh.errors import ElmeshError

COARSE = (2, 4, 8, 16)
SHAPES = st.tuples(st.integers(1, 9), st.integers(1, 5))
# Neither end of the range of single precision, in which scales are told.
ORDINARY = st.floats(-1e12, 1e12).map(lambda x: 0.0 if abs(x) < 1e-12 else x)


def matrices(elements=ORDINARY, shapes=SHAPES):
    return hnp.arrays(np.float64, shapes, elements=elements)


def read_by_hand(message, shape):
    """Read a message as its description says, with Python's whole numbers: code k is the k-th group of bits."""
    rows, columns = shape
    bits, body = message[0], message[1:]
    if bits == 64:
        return np.frombuffer(body, "<f8").reshape(shape)
    power, body = float(2) ** int.from_bytes(body[:2], "little", signed=True), body[2:]
    if bits == 32:
        return power * np.frombuffer(body, "<f4").reshape(shape).astype(float)
    scale = np.frombuffer(body[: 4 * columns], "<f4").astype(float)
    packed, half = int.from_bytes(body[4 * columns :], "little"), 2 ** (bits - 1)
    codes = [(packed >> (bits * k)) % 2**bits for k in range(rows * columns)]
    return power * (np.array(codes, dtype=float).reshape(shape) - half + 0.5) * scale / half


def levels_of(message, columns):
    """All numbers that a column of this message could have been told as."""
    bits, half = message[0], 2 ** (message[0] - 1)
    power = float(2) ** int.from_bytes(message[1:3], "little", signed=True)
    scale = np.frombuffer(message[3 : 3 + 4 * columns], "<f4").astype(float)
    return power * (np.arange(2**bits) - half + 0.5)[:, None] * scale / half


def normal(seed, shape=(40, 3)):
    return np.random.default_rng(seed).normal(size=shape)


@given(matrices(), st.sampled_from(BITS))
def test_a_message_is_as_long_as_foretold_and_reads_as_its_description_says(value, bits):
    message = encode(value, bits)
    assert len(message) == message_size(value.shape, bits)
    np.testing.assert_allclose(decode(message, value.shape), read_by_hand(message, value.shape), rtol=1e-15)


@pytest.mark.parametrize(
    ("bits", "size"),
    [(0, 1), (2, 3 + 8 + 2), (4, 3 + 8 + 3), (8, 3 + 8 + 6), (16, 3 + 8 + 12), (32, 3 + 24), (64, 1 + 48)],
)
def test_the_bytes_of_a_message_are_a_mark_a_power_a_scale_a_column_and_the_numbers_packed(bits, size):
    assert message_size((3, 2), bits) == size == len(encode(np.ones((3, 2)), bits))


@given(matrices(), st.sampled_from(COARSE))
def test_every_number_is_told_as_the_nearest_of_its_columns_levels(value, bits):
    message = encode(value, bits)
    told, levels = decode(message, value.shape), levels_of(message, value.shape[1])
    nearest = np.abs(value[None] - levels[:, None]).min(axis=0)
    assert np.all(np.abs(told - value) <= nearest + 1e-6 * np.abs(value).max())


@given(matrices(), st.sampled_from((8, 16)))
def test_eight_bits_and_more_leave_out_at_most_half_a_level_of_the_largest_number_of_a_column(value, bits):
    error = np.abs(decode(encode(value, bits), value.shape) - value)
    assert np.all(error <= (2.0**-bits + 1e-7) * np.abs(value).max(axis=0))


@pytest.mark.parametrize(("bits", "least"), [(2, 0.118), (4, 0.0116)])
def test_two_and_four_bits_lose_no_more_of_a_normal_column_than_the_best_uniform_levels_do(bits, least):
    """Max (1960): 0.1188 and 0.01154 of the variance, with 4 and 16 uniform levels."""
    value = normal(0, (200_000, 1))
    lost = np.mean((decode(encode(value, bits), value.shape) - value) ** 2)
    assert lost == pytest.approx(least, rel=0.02)


@given(matrices(st.floats(allow_nan=False)))
def test_64_bits_are_exact_to_the_bit_whatever_the_numbers(value):
    assert decode(encode(value, 64), value.shape).tobytes() == value.tobytes()


@given(matrices(st.floats(-(2.0**60), 2.0**60, width=32).map(lambda x: x if abs(x) > 2.0**-60 else 0.0)))
def test_32_bits_are_exact_for_what_single_precision_holds(value):
    np.testing.assert_array_equal(decode(encode(value, 32), value.shape), value)


@given(SHAPES, st.sampled_from(BITS))
def test_zeros_are_told_as_zeros(shape, bits):
    assert not decode(encode(np.zeros(shape), bits), shape).any()


@given(st.sampled_from([(3, 0), (0, 0)]), st.sampled_from((8, 16, 32, 64)))
def test_a_matrix_without_numbers_is_told_in_its_head_alone(shape, bits):
    message = encode(np.zeros(shape), bits)
    assert len(message) == message_size(shape, bits) <= 3
    assert decode(message, shape).shape == shape


@pytest.mark.parametrize("bits", BITS)
def test_a_matrix_without_rows_is_told_without_a_murmur(bits):
    message = encode(np.zeros((0, 3)), bits)
    assert len(message) == message_size((0, 3), bits)
    assert decode(message, (0, 3)).shape == (0, 3)


def test_values_laid_out_in_columns_or_in_steps_are_told_as_any_others():
    value = normal(1, (7, 4))
    for bits in BITS:
        assert encode(np.asfortranarray(value), bits) == encode(value, bits)
        assert encode(np.repeat(value, 2, axis=1)[:, ::2], bits) == encode(value, bits)


@settings(max_examples=300)
@given(st.binary(max_size=80), st.tuples(st.integers(0, 6), st.integers(0, 6)))
@example(b"", (0, 0))
@example(b"\x20\x00\x00\x01\x00\x80\x7f", (1, 1))  # a signalling NaN in single precision
@example(b"\x02\x00\x00\xff\xff\x80\x7f\x00", (1, 1))  # and as a scale
@example(b"\x20\xff\x7f\x00\x00\x80\x3f", (1, 1))  # the largest power of two that fits, and no double
def test_hostile_bytes_are_a_matrix_of_the_right_shape_or_refused_in_words(message, shape):
    refusal = ""
    try:
        with np.errstate(invalid="ignore", over="ignore", under="ignore"):
            value = decode(message, shape)
    except ElmeshError as error:
        refusal = str(error)
    if refusal:
        assert f"{len(message)} bytes" in refusal
        return
    assert value.shape == shape
    assert value.dtype == np.float64
    assert len(message) == message_size(shape, message[0])


@given(matrices(), st.sampled_from(BITS), st.data())
def test_a_message_cut_short_or_made_longer_is_refused(value, bits, data):
    message = encode(value, bits)
    cut = data.draw(st.integers(0, len(message) - 1))
    longer = message + data.draw(st.binary(min_size=1, max_size=9))
    for wrong in (message[:cut], longer):
        # Cut to its first byte it is still no message of that many bits; only a mark of 0 stands alone.
        with pytest.raises(ElmeshError, match="is not that of a"):
            decode(wrong, value.shape)


@given(st.integers(1, 255).filter(lambda b: b not in BITS), st.binary(max_size=40), SHAPES)
def test_a_mark_that_means_nothing_is_refused(mark, body, shape):
    with pytest.raises(ElmeshError, match=f"marked as of {mark} bits"):
        decode(bytes([mark]) + body, shape)


@given(matrices(), st.sampled_from(BITS), SHAPES)
def test_a_message_of_another_shape_is_refused_unless_it_takes_the_same_bytes(value, bits, shape):
    message = encode(value, bits)
    if message_size(shape, bits) == len(message):
        assert decode(message, shape).shape == shape
    else:
        with pytest.raises(ElmeshError, match=f"{shape[0]} x {shape[1]} matrix"):
            decode(message, shape)


@given(st.sampled_from((*BITS, "auto")), st.integers(0, 2**32), st.integers(1, 12), st.integers(1, 4), st.data())
def test_both_ends_of_a_channel_know_the_same_to_the_bit(bits, seed, rows, columns, data):
    speaker, hearer, rng = Channel(bits), Channel(bits), np.random.default_rng(seed)
    value = rng.normal(size=(rows, columns))
    for _ in range(6):
        what = data.draw(st.sampled_from(["change", "turn", "widen", "same", "undo"]))
        if what == "change":
            value = value + 10 ** rng.uniform(-6, 2) * rng.normal(size=value.shape)
        elif what == "turn":
            matrix = rng.normal(size=(value.shape[1], int(rng.integers(1, 5))))
            value = value @ matrix
            speaker.turn(matrix)
            hearer.turn(matrix)
        elif what == "undo":
            speaker.undo()
            hearer.undo()
        elif what == "widen":
            value = np.hstack([value, rng.normal(size=(rows, 1))])
        message = speaker.tell(value, ignore=data.draw(st.sampled_from([0.0, 0.1, 10.0])))
        heard = hearer.hear(message, value.shape)
        assert heard.tobytes() == speaker.known.tobytes() == hearer.known.tobytes()
        assert heard.shape == value.shape


@given(st.sampled_from((*BITS, "auto")), matrices(), st.integers(0, 3), st.integers(1, 3))
def test_a_message_that_is_taken_back_leaves_what_was_known_before(bits, value, before, times):
    channel = Channel(bits)
    for k in range(before):
        channel.tell(value + k)
    known = channel.known
    channel.tell(3 * value - 1)
    for _ in range(times):  # once or more: only the last message is forgotten
        channel.undo()
    if before:
        assert channel.known.tobytes() == known.tobytes()
    assert channel.tell(value) == (Channel(bits) if not before else restored(bits, known)).tell(value)


def restored(bits, known):
    channel = Channel(bits)
    channel.known = known
    return channel


@pytest.mark.parametrize(("bits", "rate"), [(2, 0.75), (4, 0.65), (8, 5e-3), (16, 3e-5), (32, 1e-7), ("auto", 0.3)])
def test_a_value_told_again_and_again_becomes_known_at_a_rate_that_its_bits_give(bits, rate):
    for seed in range(10):
        value, channel = normal(seed), Channel(bits)
        errors = [np.linalg.norm(value)]
        while len(errors) < 120 and errors[-1] > 1e-12:
            channel.tell(value)
            errors.append(float(np.linalg.norm(channel.known - value)))
        assert errors[-1] <= 1e-10
        mean = (max(errors[-1], 1e-16) / errors[0]) ** (1 / (len(errors) - 1))
        assert mean <= rate


@settings(max_examples=60)
@given(matrices(shapes=st.tuples(st.integers(1, 20), st.integers(1, 3))), st.sampled_from((*COARSE, "auto")))
@example(np.eye(20)[:, :2], 2)  # a single number that stands out is what two bits are slowest at
@example(np.array([[1e12], [1e-12]]), 2)
def test_whatever_the_value_it_becomes_known_in_the_end(value, bits):
    channel = Channel(bits)
    with np.errstate(all="ignore"):  # as whoever drives a solver does: the error of a zero shrinks without end
        for _ in range(150):
            channel.tell(value)
    assert np.abs(channel.known - value).max() <= 1e-10 * np.abs(value).max()


@pytest.mark.parametrize("bits", [*COARSE, "auto"])
def test_what_is_known_of_a_sequence_that_converges_converges_to_its_limit(bits):
    limit, way = normal(3), normal(4)
    channel = Channel(bits)
    errors = []
    for k in range(80):
        channel.tell(limit + 0.8**k * way)
        errors.append(np.linalg.norm(channel.known - limit))
    # No slower than the sequence itself, up to what rounding leaves behind of one step.
    assert errors[-1] <= 3 * 0.8**79 * np.linalg.norm(way)
    assert np.all(np.array(errors[20:]) <= 3 * 0.8 ** np.arange(20, 80) * np.linalg.norm(way))


def test_an_error_is_told_with_the_next_message_and_does_not_add_up():
    """Summed over rounds, what was told and what was meant differ by the last rounding alone."""
    rng, channel = np.random.default_rng(5), Channel(2)
    value, told = np.zeros((30, 2)), np.zeros((30, 2))
    for _ in range(500):
        value = value + rng.normal(size=value.shape)
        told = told + decode(channel.tell(value), value.shape)
    assert np.linalg.norm(told - value) < 2 * np.sqrt(value.size)
    assert np.linalg.norm(value) > 10 * np.sqrt(value.size)


@given(matrices(), st.sampled_from((*BITS, "auto")), st.floats(0, 3))
def test_silence_costs_a_byte_and_changes_nothing(value, bits, share):
    channel = Channel(bits)
    channel.tell(value)
    known = channel.known.copy()
    moved = value + np.ones_like(value)
    size = float(np.linalg.norm(moved - known))
    message = channel.tell(moved, ignore=share * size)
    if share >= 1:
        assert message == b"\x00"
        assert channel.known.tobytes() == known.tobytes()
    elif share < 0.999:
        assert len(message) == message_size(value.shape, message[0]) > 1


def test_what_was_not_told_is_told_once_it_adds_up():
    channel, value, sizes = Channel(8), np.zeros((5, 2)), []
    channel.tell(value)
    for _ in range(10):
        value = value + 0.1
        sizes.append(len(channel.tell(value, ignore=1.0)))
    assert sizes.count(1) >= 6
    assert max(sizes) > 1
    assert np.linalg.norm(channel.known - value) <= 1.0


def by_the_rule(difference):
    rows, columns = difference.shape
    for bits in (2, 4, 8):
        left = difference - read_by_hand(encode(difference, bits), difference.shape)
        worth_it = rows * columns * bits / 8 >= 4 * columns + 19  # the numbers outweigh the scales and what goes along
        if worth_it and np.linalg.norm(left) <= 0.4 * np.linalg.norm(difference):
            return bits
    return 16


@given(st.integers(0, 10_000), st.integers(1, 80), st.integers(1, 4), st.sampled_from([0.0, 1.0, 4.0]))
def test_automatic_bits_are_the_fewest_that_pay_and_leave_out_two_fifths_or_less(seed, rows, columns, tail):
    rng = np.random.default_rng(seed)
    value = rng.normal(size=(rows, columns)) * np.exp(tail * rng.normal(size=(rows, columns)))
    channel = Channel("auto")
    for _ in range(3):
        difference = value - (channel.known if channel.known.size else 0.0)
        assert channel.tell(value)[0] == by_the_rule(difference)


def test_automatic_bits_are_two_for_what_is_spread_evenly_and_more_for_what_stands_out():
    alone = np.zeros((2000, 1))
    alone[7] = 1.0
    assert Channel("auto").tell(normal(6, (60, 3)))[0] == 2
    assert Channel("auto").tell(normal(6, (4, 3)))[0] == 16  # too little to be worth it
    assert Channel("auto").tell(alone)[0] in (8, 16)
    assert Channel("auto").tell(np.zeros((4, 4))) == b"\x00"


@pytest.mark.parametrize("bits", [*BITS, "auto"])
def test_the_same_values_are_told_in_the_same_bytes(bits):
    def conversation():
        channel, rng = Channel(bits), np.random.default_rng(8)
        return [channel.tell(rng.normal(size=(9, 4)), ignore=0.5) for _ in range(20)]

    assert conversation() == conversation()


def test_a_value_of_another_shape_begins_the_conversation_anew():
    for bits, (one, other) in itertools.product(BITS, itertools.permutations([(3, 2), (2, 3), (3, 4)], 2)):
        channel = Channel(bits)
        channel.tell(normal(1, one))
        message = channel.tell(normal(2, other))
        assert message == Channel(bits).tell(normal(2, other))


def known_after(value, bits, times=40):
    channel = Channel(bits)
    with np.errstate(all="ignore"):  # as whoever drives a solver does
        for _ in range(times):
            channel.tell(value)
    return channel.known


@pytest.mark.parametrize("bits", [*BITS, "auto"])
@pytest.mark.parametrize("exponent", [-150, -44, -12, 12, 39, 150, 300])
def test_values_become_known_whatever_their_unit(bits, exponent):
    value = 10.0**exponent * normal(9, (20, 3))
    value[0, 0] = 0.0
    assert np.abs(known_after(value, bits) - value).max() <= 1e-6 * np.abs(value).max()


@pytest.mark.parametrize("bits", [2, 64])
def test_the_smallest_values_are_not_taken_for_nothing(bits):
    value = 1e-200 * normal(9)
    assert np.abs(known_after(value, bits, 80) - value).max() <= 1e-6 * np.abs(value).max()


@pytest.mark.parametrize("bits", [*BITS, "auto"])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_told_as_it_is(bits, bad):
    value = np.array([[1.0, 2.0], [bad, 3.0]])
    channel, hearer = Channel(bits), Channel(bits)
    hearer.hear(channel.tell(value), (2, 2))
    np.testing.assert_array_equal(hearer.known, value)


@pytest.mark.parametrize("bits", [2, 32, 64, "auto"])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_channel_recovers_from_what_is_not_finite(bits, bad):
    """A step that overflowed is taken back: what is told after it must not suffer."""
    channel, hearer, value = Channel(bits), Channel(bits), normal(10, (6, 2))
    broken = np.where(np.eye(6, 2) > 0, bad, value)
    with np.errstate(all="ignore"):
        for told in (broken, *[value] * 60):
            hearer.hear(channel.tell(told), value.shape)
    np.testing.assert_allclose(hearer.known, value, atol=1e-6)
