"""Quantised messages: their content, how hostile bytes are refused, and the values at both ends of a channel."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from elmesh.comm.codec import BITS, DeltaChannel, decode, encode, message_size
from elmesh.errors import ElmeshError
from helpers.examples import examples

QUANTISED = (2, 4, 8, 16)
SHAPES = st.tuples(st.integers(1, 9), st.integers(1, 5))
# Neither end of the range of single precision, in which scales are sent.
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
    codes = np.array(codes, dtype=float).reshape(shape)
    # Four levels without zero have a negative scale.
    return power * np.where(scale < 0, (codes - half + 0.5) / half, (codes - half) / (half - 1)) * np.abs(scale)


def levels_of(message, columns):
    """Return all numbers that a column of this message can encode."""
    half = 2 ** (message[0] - 1)
    power = float(2) ** int.from_bytes(message[1:3], "little", signed=True)
    scale = np.frombuffer(message[3 : 3 + 4 * columns], "<f4").astype(float)
    levels = (np.arange(1 - half, half) / (half - 1))[:, None] * np.ones(columns)
    if message[0] == 2:
        levels = np.where(scale < 0, (np.arange(4)[:, None] - 1.5) / 2, np.vstack([levels, np.zeros(columns)]))
    return power * levels * np.abs(scale)


def normal(seed, shape=(40, 3)):
    return np.random.default_rng(seed).normal(size=shape)


@given(matrices(), st.sampled_from(BITS))
def test_a_message_has_the_size_and_the_content_of_its_description(value, bits):
    message = encode(value, bits)
    assert len(message) == message_size(value.shape, bits)
    np.testing.assert_allclose(decode(message, value.shape), read_by_hand(message, value.shape), rtol=1e-15)


@pytest.mark.parametrize(
    ("bits", "size"),
    [(0, 1), (2, 3 + 8 + 2), (4, 3 + 8 + 3), (8, 3 + 8 + 6), (16, 3 + 8 + 12), (32, 3 + 24), (64, 1 + 48)],
)
def test_a_message_is_the_number_of_bits_a_power_a_scale_per_column_and_packed_numbers(bits, size):
    assert message_size((3, 2), bits) == size == len(encode(np.ones((3, 2)), bits))
    assert isinstance(message_size((3, 2), bits), int)


@given(matrices(), st.sampled_from(QUANTISED))
def test_every_number_is_rounded_to_the_nearest_level_of_its_column(value, bits):
    message = encode(value, bits)
    decoded, levels = decode(message, value.shape), levels_of(message, value.shape[1])
    nearest = np.abs(value[None] - levels[:, None]).min(axis=0)
    assert np.all(np.abs(decoded - value) <= nearest + 1e-6 * np.abs(value).max())


def test_numbers_are_rounded_by_the_scale_that_is_sent():
    """The scale is rounded to single precision: with 16 bits, rounding by any other one is often a level off."""
    value = np.sort(normal(2, (20_000, 1)), axis=0)[1:-1]  # the largest may be clipped
    message = encode(np.vstack([2 * value[:1], value]), 16)
    width = np.diff(levels_of(message, 1), axis=0).max()
    error = np.abs(decode(message, (len(value) + 1, 1))[1:] - value)
    assert error.max() <= width / 2 * (1 + 1e-9)


@given(matrices(), st.sampled_from((8, 16)))
def test_from_eight_bits_on_the_error_is_at_most_half_a_level(value, bits):
    error = np.abs(decode(encode(value, bits), value.shape) - value)
    assert np.all(error <= (0.5 / (2.0 ** (bits - 1) - 1) + 1e-7) * np.abs(value).max(axis=0))


@pytest.mark.parametrize(("bits", "least"), [(2, 0.1188), (4, 0.01289)])
def test_two_and_four_bits_have_the_error_of_the_best_uniform_levels_on_normal_columns(bits, least):
    """Max (1960): 0.1188 and 0.01289 of the variance, with 4 and 15 uniform levels."""
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
def test_zeros_are_decoded_as_zeros(shape, bits):
    assert not decode(encode(np.zeros(shape), bits), shape).any()


@given(st.sampled_from([(3, 0), (0, 0)]), st.sampled_from((8, 16, 32, 64)))
def test_a_matrix_without_columns_has_a_header_alone(shape, bits):
    message = encode(np.zeros(shape), bits)
    assert len(message) == message_size(shape, bits) <= 3
    assert decode(message, shape).shape == shape


@pytest.mark.parametrize("bits", BITS)
def test_a_matrix_without_rows_is_encoded_without_a_warning(bits):
    message = encode(np.zeros((0, 3)), bits)
    assert len(message) == message_size((0, 3), bits)
    assert decode(message, (0, 3)).shape == (0, 3)


@given(matrices(), st.sampled_from(QUANTISED))
def test_a_zero_among_other_numbers_stays_zero_unless_the_column_has_levels_without_zero(value, bits):
    message = encode(value, bits)
    scale = np.frombuffer(message[3 : 3 + 4 * value.shape[1]], "<f4")
    assert bits == 2 or np.all(scale >= 0)
    assert not decode(message, value.shape)[(value == 0) & (scale >= 0)].any()


@given(matrices(), st.sampled_from((2, 4)))
def test_the_scale_of_few_bits_loses_no_more_than_any_other_that_is_tried(value, bits):
    """Nor than the largest number as the scale, with zero or without."""
    lost = np.sum((decode(encode(value, bits), value.shape) - value) ** 2, axis=0)
    largest = np.abs(value).max(axis=0)
    for part in 0.85 ** np.arange(14):
        half, unit = 2 ** (bits - 1), np.where(largest > 0, part * largest, 1.0)
        ways = [np.clip(np.rint(value / unit * (half - 1)), 1 - half, half - 1) / (half - 1)]
        if bits == 2:
            ways.append((np.clip(np.floor(value / unit * half), -half, half - 1) + 0.5) / half)
        for levels in ways:
            assert np.all(lost <= np.sum((levels * unit - value) ** 2, axis=0) + 1e-5 * largest**2)


@pytest.mark.parametrize("bits", [2, 4])
def test_a_few_large_numbers_are_sent_at_once(bits):
    value = np.zeros((500, 2))
    value[[3, 77], [0, 1]] = 2.0, -0.25
    np.testing.assert_array_equal(decode(encode(value, bits), value.shape), value)


@given(matrices(), st.sampled_from(QUANTISED), st.integers(0, 2**32 - 1))
def test_rounding_errors_in_the_place_of_zeros_change_nothing(value, bits, seed):
    noise = np.random.default_rng(seed).uniform(-1e-15, 1e-15, value.shape) * np.abs(value).max(axis=0)
    noisy = np.where(value == 0, noise, value)
    scales = slice(3, 3 + 4 * value.shape[1])
    if encode(noisy, bits)[scales] == encode(value, bits)[scales]:
        assert encode(noisy, bits) == encode(value, bits)


def test_a_message_does_not_depend_on_the_memory_layout():
    value = normal(1, (7, 4))
    for bits in BITS:
        assert encode(np.asfortranarray(value), bits) == encode(value, bits)
        assert encode(np.repeat(value, 2, axis=1)[:, ::2], bits) == encode(value, bits)
        assert encode(value.astype(">f8"), bits) == encode(value, bits)


@examples(300)
@given(st.binary(max_size=80), st.tuples(st.integers(0, 6), st.integers(0, 6)))
@example(b"", (0, 0))
@example(b"\x20\x00\x00\x01\x00\x80\x7f", (1, 1))  # a signalling NaN in single precision
@example(b"\x02\x00\x00\xff\xff\x80\x7f\x00", (1, 1))  # and as a scale
@example(b"\x20\xff\x7f\x00\x00\x80\x3f", (1, 1))  # the largest power of two that fits, and no double
def test_hostile_bytes_are_decoded_to_the_right_shape_or_refused_with_a_message(message, shape):
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
def test_a_truncated_or_extended_message_is_refused(value, bits, data):
    message = encode(value, bits)
    cut = data.draw(st.integers(0, len(message) - 1))
    longer = message + data.draw(st.binary(min_size=1, max_size=9))
    for wrong in (message[:cut], longer):
        # A single byte is a message with 0 bits only.
        with pytest.raises(ElmeshError, match=r"is not a \d+ x \d+ matrix"):
            decode(wrong, value.shape)


@given(st.integers(1, 255).filter(lambda b: b not in BITS), st.binary(max_size=40), SHAPES)
def test_an_unknown_number_of_bits_is_refused(bits, body, shape):
    with pytest.raises(ElmeshError, match=f"with {bits} bits per number"):
        decode(bytes([bits]) + body, shape)


def test_no_bytes_are_no_message():
    with pytest.raises(ElmeshError, match=r"^A message of 0 bytes with -1 bits per number is not a 2 x 3 matrix\.$"):
        decode(b"", (2, 3))


@pytest.mark.parametrize(
    ("scale", "valid"),
    [(0.0, True), (0.5, True), (1.0, True), (1.001, False), (2.0, False), (-0.5, False), (np.nan, False)],
)
def test_a_scale_is_between_zero_and_one(scale, valid):
    """With two bits a negative one is that of levels without zero."""
    negative = bytes([2, 0, 0]) + np.array([scale], "<f4").tobytes() + bytes([3])
    if -1 <= scale <= 1:
        assert decode(negative, (1, 1)).tolist() == [[0.75 * -scale if scale < 0 else scale]]
    else:
        with pytest.raises(ElmeshError, match=r"outside \[-1, 1\]"):
            decode(negative, (1, 1))
    message = bytes([8, 0, 0]) + np.array([0.5, scale], "<f4").tobytes() + bytes([255, 255])
    if valid:
        assert decode(message, (1, 2)).tolist() == [[0.5, scale]]
        return
    refusal = r"^A message of 13 bytes has scales outside \[0, 1\]; a valid message has none\.$"
    with pytest.raises(ElmeshError, match=refusal):
        decode(message, (1, 2))


def test_a_channel_decodes_what_is_not_a_number_without_a_warning():
    signalling = b"\x20\x00\x00\x01\x00\x80\x7f"
    assert np.isnan(DeltaChannel(32).decode(signalling, (1, 1))).all()


@given(matrices(), st.sampled_from(BITS), SHAPES)
@example(np.zeros((7, 3)), 4, (1, 5))  # numbers of the one shape are scales of the other, and negative
def test_a_message_of_another_shape_is_refused_unless_it_takes_the_same_bytes_and_has_valid_scales(value, bits, shape):
    message = encode(value, bits)
    if message_size(shape, bits) != len(message):
        with pytest.raises(ElmeshError, match=f"{shape[0]} x {shape[1]} matrix"):
            decode(message, shape)
        return
    scales = np.frombuffer(message[3 : 3 + 4 * shape[1]], "<f4") if bits in QUANTISED else np.zeros(0)
    with np.errstate(invalid="ignore"):  # a scale may be a signalling NaN
        if np.all((scales >= (-1 if bits == 2 else 0)) & (scales <= 1)):
            assert decode(message, shape).shape == shape
        else:
            with pytest.raises(ElmeshError, match="scales outside"):
                decode(message, shape)


@given(st.sampled_from((*BITS, "auto")), st.integers(0, 2**32), st.integers(1, 12), st.integers(1, 4), st.data())
def test_both_ends_of_a_channel_have_the_same_value_to_the_bit(bits, seed, rows, columns, data):
    sender, receiver, rng = DeltaChannel(bits), DeltaChannel(bits), np.random.default_rng(seed)
    value = rng.normal(size=(rows, columns))
    for _ in range(6):
        what = data.draw(st.sampled_from(["change", "rotate", "widen", "same", "revert"]))
        if what == "change":
            value = value + 10 ** rng.uniform(-6, 2) * rng.normal(size=value.shape)
        elif what == "rotate":
            matrix = rng.normal(size=(value.shape[1], int(rng.integers(1, 5))))
            value = value @ matrix
            sender.rotate(matrix)
            receiver.rotate(matrix)
        elif what == "revert":
            sender.revert()
            receiver.revert()
        elif what == "widen":
            value = np.hstack([value, rng.normal(size=(rows, 1))])
        message = sender.encode(value, skip_below=data.draw(st.sampled_from([0.0, 0.1, 10.0])))
        decoded = receiver.decode(message, value.shape)
        assert decoded.tobytes() == sender.value.tobytes() == receiver.value.tobytes()
        assert decoded.shape == value.shape


@given(st.sampled_from((*BITS, "auto")), matrices(), st.integers(0, 3), st.integers(1, 3))
def test_reverting_a_message_restores_the_value_before_it(bits, value, before, times):
    channel = DeltaChannel(bits)
    for k in range(before):
        channel.encode(value + k)
    known = channel.value
    channel.encode(3 * value - 1)
    for _ in range(times):  # only the last message is reverted, however often
        channel.revert()
    if before:
        assert channel.value.tobytes() == known.tobytes()
    assert channel.encode(value) == (DeltaChannel(bits) if not before else restored(bits, known)).encode(value)


def test_a_new_channel_has_no_value():
    assert DeltaChannel(4).value.shape == (0, 0)


@given(st.sampled_from((*BITS, "auto")), st.integers(0, 2**32), st.booleans())
def test_a_channel_that_resumes_continues_as_the_one_it_was_saved_from(bits, seed, revert):
    channel, resumed, rng = DeltaChannel(bits), DeltaChannel(bits), np.random.default_rng(seed)
    for _ in range(2):
        channel.encode(rng.normal(size=(12, 2)))
    resumed.load_state_dict(channel.state_dict())
    if revert:
        channel.revert()
        resumed.revert()
    assert resumed.value.tobytes() == channel.value.tobytes()
    value = rng.normal(size=(12, 2))
    assert resumed.encode(value) == channel.encode(value)


def restored(bits, value):
    channel = DeltaChannel(bits)
    channel.load_state_dict({"value": value, "previous": value})
    return channel


@pytest.mark.parametrize(("bits", "rate"), [(2, 0.6), (4, 0.5), (8, 5e-3), (16, 3e-5), (32, 1e-7), ("auto", 0.3)])
def test_the_error_of_a_repeated_value_shrinks_at_the_rate_of_its_bits(bits, rate):
    for seed in range(10):
        value, channel = normal(seed), DeltaChannel(bits)
        errors = [np.linalg.norm(value)]
        while len(errors) < 120 and errors[-1] > 1e-12:
            channel.encode(value)
            errors.append(float(np.linalg.norm(channel.value - value)))
        assert errors[-1] <= 1e-10
        mean = (max(errors[-1], 1e-16) / errors[0]) ** (1 / (len(errors) - 1))
        assert mean <= rate


@pytest.mark.thorough
@examples(60)
@given(matrices(shapes=st.tuples(st.integers(1, 20), st.integers(1, 3))), st.sampled_from((*QUANTISED, "auto")))
@example(np.eye(20)[:, :2], 2)  # two bits are slowest for a single outlier
@example(np.array([[1e12], [1e-12]]), 2)
def test_the_error_of_any_repeated_value_vanishes(value, bits):
    channel = DeltaChannel(bits)
    with np.errstate(all="ignore"):  # as the monitor does: the error of a zero becomes denormal
        for _ in range(150):
            channel.encode(value)
    assert np.abs(channel.value - value).max() <= 1e-10 * np.abs(value).max()


@pytest.mark.parametrize("bits", [*QUANTISED, "auto"])
def test_the_decoded_values_of_a_converging_sequence_converge_to_its_limit(bits):
    limit, way = normal(3), normal(4)
    channel = DeltaChannel(bits)
    errors = []
    for k in range(80):
        channel.encode(limit + 0.8**k * way)
        errors.append(np.linalg.norm(channel.value - limit))
    # No slower than the sequence itself, up to what rounding leaves behind of one step.
    assert errors[-1] <= 3 * 0.8**79 * np.linalg.norm(way)
    assert np.all(np.array(errors[20:]) <= 3 * 0.8 ** np.arange(20, 80) * np.linalg.norm(way))


def test_errors_do_not_accumulate_over_messages():
    """The sum of all decoded differences differs from the value by the last rounding alone."""
    rng, channel = np.random.default_rng(5), DeltaChannel(2)
    value, decoded = np.zeros((30, 2)), np.zeros((30, 2))
    for _ in range(500):
        value = value + rng.normal(size=value.shape)
        decoded = decoded + decode(channel.encode(value), value.shape)
    assert np.linalg.norm(decoded - value) < 2 * np.sqrt(value.size)
    assert np.linalg.norm(value) > 10 * np.sqrt(value.size)


@given(matrices(), st.sampled_from((*BITS, "auto")), st.floats(0, 3))
def test_a_skipped_change_costs_a_byte_and_leaves_the_value(value, bits, share):
    channel = DeltaChannel(bits)
    channel.encode(value)
    known = channel.value.copy()
    moved = value + np.ones_like(value)
    size = float(np.linalg.norm(moved - known))
    message = channel.encode(moved, skip_below=share * size)
    if share >= 1:
        assert message == b"\x00"
        assert channel.value.tobytes() == known.tobytes()
    elif share < 0.999:
        assert len(message) == message_size(value.shape, message[0]) > 1


def test_a_change_of_exactly_the_limit_is_skipped():
    value = np.array([[3.0], [4.0]])
    assert DeltaChannel(8).encode(value, skip_below=5.0) == b"\x00"
    assert DeltaChannel(8).encode(value, skip_below=4.999) == DeltaChannel(8).encode(value)


def test_skipped_changes_are_sent_once_their_sum_is_large():
    channel, value, sizes = DeltaChannel(8), np.zeros((5, 2)), []
    channel.encode(value)
    for _ in range(10):
        value = value + 0.1
        sizes.append(len(channel.encode(value, skip_below=1.0)))
    assert sizes.count(1) >= 6
    assert max(sizes) > 1
    assert np.linalg.norm(channel.value - value) <= 1.0


def by_the_rule(difference):
    rows, columns = difference.shape
    if rows * columns == 1:
        return 64 if difference.any() else 0
    for bits in (2, 4, 8):
        left = difference - read_by_hand(encode(difference, bits), difference.shape)
        worth_it = rows * columns * bits / 8 >= 4 * columns + 19  # the numbers take no less than the overhead
        if worth_it and np.linalg.norm(left) <= 0.4 * np.linalg.norm(difference):
            return bits
    return 16


@given(st.integers(0, 10_000), st.integers(1, 80), st.integers(1, 4), st.sampled_from([0.0, 1.0, 4.0]))
@example(0, 92, 1, 0.0)  # two bits take exactly as many bytes as the overhead
@example(0, 91, 1, 0.0)
def test_auto_takes_the_fewest_bits_with_an_error_of_two_fifths_at_most(seed, rows, columns, tail):
    rng = np.random.default_rng(seed)
    value = rng.normal(size=(rows, columns)) * np.exp(tail * rng.normal(size=(rows, columns)))
    channel = DeltaChannel("auto")
    for _ in range(3):
        difference = value - (channel.value if channel.value.size else 0.0)
        assert channel.encode(value)[0] == by_the_rule(difference)


def test_auto_takes_two_bits_for_even_columns_and_more_for_outliers():
    alone = np.zeros((2000, 1))
    alone[7] = 1.0
    assert DeltaChannel("auto").encode(normal(6, (60, 3)))[0] == 2
    assert DeltaChannel("auto").encode(normal(6, (4, 3)))[0] == 16  # fewer numbers than the overhead
    assert DeltaChannel("auto").encode(alone)[0] == 2  # a level of its own
    assert DeltaChannel("auto").encode(np.exp(2 * normal(6, (500, 1))))[0] in (4, 8)
    assert DeltaChannel("auto").encode(np.zeros((4, 4))) == b"\x00"


@pytest.mark.parametrize("bits", [*BITS, "auto"])
def test_messages_are_deterministic(bits):
    def messages():
        channel, rng = DeltaChannel(bits), np.random.default_rng(8)
        return [channel.encode(rng.normal(size=(9, 4)), skip_below=0.5) for _ in range(20)]

    assert messages() == messages()


def test_a_value_of_another_shape_starts_from_zero():
    for bits, (one, other) in itertools.product(BITS, itertools.permutations([(3, 2), (2, 3), (3, 4)], 2)):
        channel = DeltaChannel(bits)
        channel.encode(normal(1, one))
        message = channel.encode(normal(2, other))
        assert message == DeltaChannel(bits).encode(normal(2, other))


def value_after(value, bits, times=40):
    channel = DeltaChannel(bits)
    with np.errstate(all="ignore"):  # as the monitor does
        for _ in range(times):
            channel.encode(value)
    return channel.value


@pytest.mark.parametrize("bits", [*BITS, "auto"])
@pytest.mark.parametrize("exponent", [-150, -44, -12, 12, 39, 150, 300])
def test_values_of_any_unit_are_encoded(bits, exponent):
    value = 10.0**exponent * normal(9, (20, 3))
    value[0, 0] = 0.0
    assert np.abs(value_after(value, bits) - value).max() <= 1e-6 * np.abs(value).max()


@pytest.mark.parametrize("bits", [2, 64])
def test_the_smallest_values_are_not_taken_for_zero(bits):
    value = 1e-200 * normal(9)
    assert np.abs(value_after(value, bits, 80) - value).max() <= 1e-6 * np.abs(value).max()


@pytest.mark.parametrize("bits", [*BITS, "auto"])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite_are_sent_as_they_are(bits, bad):
    value = np.array([[1.0, 2.0], [bad, 3.0]])
    channel, receiver = DeltaChannel(bits), DeltaChannel(bits)
    receiver.decode(channel.encode(value), (2, 2))
    np.testing.assert_array_equal(receiver.value, value)


@pytest.mark.parametrize("bits", [2, 32, 64, "auto"])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_channel_recovers_from_values_that_are_not_finite(bits, bad):
    """A step that overflows is rejected; later messages are not affected."""
    channel, receiver, value = DeltaChannel(bits), DeltaChannel(bits), normal(10, (6, 2))
    broken = np.where(np.eye(6, 2) > 0, bad, value)
    with np.errstate(all="ignore"):
        for now in (broken, *[value] * 60):
            receiver.decode(channel.encode(now), value.shape)
    np.testing.assert_allclose(receiver.value, value, atol=1e-6)
