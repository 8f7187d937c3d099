import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elmesh.data.features import ACTIVATIONS, HiddenLayer, uniform
from elmesh.errors import ElmeshError

MASK32, MASK64, MASK128 = 2**32 - 1, 2**64 - 1, 2**128 - 1


def seed_words(seed):
    """Four 64-bit words from a seed: NumPy's SeedSequence, after O'Neill's seed_seq_fe, in plain Python."""
    numbers = seed if isinstance(seed, tuple) else (seed,)
    entropy = [word for n in numbers for word in ([n & MASK32, n >> 32] if n >> 32 else [n])]
    constant = 0x43B0D7E5

    def hashed(value):
        nonlocal constant
        value ^= constant
        constant = constant * 0x931E8875 & MASK32
        value = value * constant & MASK32
        return value ^ value >> 16

    pool = [hashed(entropy[i] if i < len(entropy) else 0) for i in range(4)]
    for source in range(4):
        for target in range(4):
            if source != target:
                mixed = (0xCA01F9DD * pool[target] - 0x4973F715 * hashed(pool[source])) & MASK32
                pool[target] = mixed ^ mixed >> 16
    constant, words = 0x8B51F9DD, []
    for i in range(8):
        value = pool[i % 4] ^ constant
        constant = constant * 0x58F38DED & MASK32
        value = value * constant & MASK32
        words.append(value ^ value >> 16)
    return [low | high << 32 for low, high in zip(words[::2], words[1::2], strict=True)]


def pcg64(seed):
    """The PCG XSL RR 128/64 stream of a seed, in plain Python."""
    multiplier = 0x2360ED051FC65DA44385DF649FCCF645
    a, b, c, d = seed_words(seed)
    increment = ((c << 64 | d) << 1 | 1) & MASK128
    state = (increment + (a << 64 | b)) & MASK128
    state = (state * multiplier + increment) & MASK128
    while True:
        state = (state * multiplier + increment) & MASK128
        folded, turn = (state >> 64 ^ state) & MASK64, state >> 122
        yield (folded >> turn | folded << (64 - turn)) & MASK64


def expected_weights(n, L, scale, seed):
    stream = pcg64(seed)
    values = [scale * (2 * (next(stream) >> 11) / 2**53 - 1) for _ in range((n + 1) * L)]
    return np.array(values[: n * L]).reshape(n, L), np.array(values[n * L :])


@given(
    n=st.integers(1, 6),
    L=st.integers(1, 12),
    scale=st.floats(1e-6, 1e6),
    seed=st.integers(0, 2**64 - 1),
)
def test_weights_are_the_pcg64_stream_row_by_row_then_the_biases(n, L, scale, seed):
    W, b = HiddenLayer(n, L, weight_scale=scale, seed=seed).weights
    W_expected, b_expected = expected_weights(n, L, scale, seed)
    assert W.tobytes() == W_expected.tobytes()
    assert b.tobytes() == b_expected.tobytes()


@given(seed=st.integers(0, 2**64 - 1), part=st.integers(0, 2**32 - 1), count=st.integers(0, 20))
def test_uniform_numbers_follow_a_seed_of_several_parts(seed, part, count):
    stream = pcg64((seed, part))
    expected = [2 * (next(stream) >> 11) / 2**53 - 1 for _ in range(count)]
    assert uniform((seed, part), count).tolist() == expected


def test_weights_of_seed_42_never_change():
    # from the plain-Python generator above; a change here makes every saved model predict something else
    expected = """
         0x1.1887ef345b648p-1 -0x1.f4b533cb0dc10p-4  0x1.6f344b09bb684p-1
         0x1.9435b070b0044p-2 -0x1.9f8ff92b31b20p-1  0x1.e7098bb61b1d4p-1
         0x1.0b6834bef1690p-1  0x1.24ee0a8edeb24p-1 -0x1.7ccfc7a5f274cp-1"""
    W, b = HiddenLayer(2, 3, seed=42).weights
    assert [*W.ravel().tolist(), *b.tolist()] == [float.fromhex(value) for value in expected.split()]


@pytest.mark.parametrize("n_hidden", [1, 9, 10, 11, 300])
def test_a_layer_of_another_size_reads_the_same_stream_in_its_own_shape(n_hidden):
    W, b = HiddenLayer(3, n_hidden, seed=5).weights
    largest = np.concatenate([part.ravel() for part in HiddenLayer(3, 300, seed=5).weights])
    np.testing.assert_array_equal(np.concatenate([W.ravel(), b]), largest[: 4 * n_hidden])
    assert W.shape == (3, n_hidden)
    assert b.shape == (n_hidden,)


@given(st.floats(1e-300, 1e300), st.integers(0, 1000))
def test_weights_lie_in_the_half_open_interval_of_the_scale(scale, seed):
    for part in HiddenLayer(5, 8, weight_scale=scale, seed=seed).weights:
        assert (part >= -scale).all()
        assert (part < scale).all()


def test_the_global_random_state_plays_no_part():
    np.random.seed(1)  # noqa: NPY002  (the legacy state is what must not matter)
    W_before = HiddenLayer(3, 4).weights[0]
    np.random.seed(2)  # noqa: NPY002  (as above)
    np.testing.assert_array_equal(W_before, HiddenLayer(3, 4).weights[0])


def test_weights_are_drawn_once_and_cannot_be_written():
    layer = HiddenLayer(3, 4)
    assert layer.weights is layer.weights
    for part in layer.weights:
        with pytest.raises(ValueError, match="read-only"):
            part[0] = 1.0


SCALAR = {
    "sigmoid": lambda z: 1 / (1 + math.exp(-z)),
    "tanh": math.tanh,
    "relu": lambda z: max(z, 0.0),
    "sine": math.sin,
    "none": lambda z: z,
}


def test_every_activation_has_a_reference_here():
    assert set(ACTIVATIONS) == set(SCALAR)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_features_are_the_activation_of_the_weighted_sum(activation):
    layer = HiddenLayer(3, 10, activation=activation, weight_scale=2.0, seed=3)
    X = np.random.default_rng(0).normal(size=(6, 3))
    W, b = layer.weights
    expected = [
        [SCALAR[activation](sum(X[i, k] * W[k, j] for k in range(3)) + b[j]) for j in range(10)] for i in range(6)
    ]
    H = layer(X)
    assert H.dtype == np.float64
    np.testing.assert_allclose(H, expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("activation", ["sigmoid", "tanh"])
def test_huge_inputs_saturate_without_a_warning(activation):
    H = HiddenLayer(2, 5, activation=activation)(np.array([[1e300, 1e300], [-1e300, -1e300]]))
    assert np.isfinite(H).all()
    assert set(np.unique(np.abs(H))) <= {0.0, 1.0}


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_inputs_are_left_as_they_were(activation):
    X = np.random.default_rng(0).normal(size=(4, 3))
    before = X.copy()
    HiddenLayer(3, 3, activation=activation)(X)
    np.testing.assert_array_equal(X, before)


def test_without_hidden_units_the_inputs_themselves_come_out():
    layer = HiddenLayer(3, None)
    X = np.arange(6).reshape(2, 3)
    assert layer.width == 3
    assert layer(X).dtype == np.float64
    np.testing.assert_array_equal(layer(X), X)
    with pytest.raises(ElmeshError, match="no weights"):
        _ = layer.weights


def test_width_is_the_number_of_features_that_come_out():
    assert HiddenLayer(3, 10).width == 10
    assert HiddenLayer(3, 10)(np.zeros((1, 3))).shape == (1, 10)


@pytest.mark.parametrize("X", [np.zeros((2, 4)), np.zeros(3), np.zeros((1, 2, 3))])
def test_inputs_of_another_width_are_refused(X):
    with pytest.raises(ElmeshError, match="3 columns"):
        HiddenLayer(3, 5)(X)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"n_inputs": 0}, "^n_inputs must be .*; got 0"),
        ({"n_inputs": 2.0}, "^n_inputs must be .*; got 2.0"),
        ({"n_hidden": 0}, "^n_hidden must be .*, or None for no hidden layer; got 0"),
        ({"n_hidden": -3}, "^n_hidden must be .*; got -3"),
        ({"n_hidden": True}, "^n_hidden must be .*; got True"),
        ({"n_hidden": "10"}, "^n_hidden must be .*; got '10'"),
        ({"activation": "softplus"}, "^activation must be one of sigmoid, tanh, relu, sine, none; got 'softplus'"),
        ({"activation": ["sigmoid"]}, "^activation must be one of"),
        ({"weight_scale": 0.0}, "^weight_scale must be .*; got 0.0"),
        ({"weight_scale": -1}, "^weight_scale must be .*; got -1"),
        ({"weight_scale": math.inf}, "^weight_scale must be .*; got inf"),
        ({"weight_scale": math.nan}, "^weight_scale must be .*; got nan"),
        ({"weight_scale": 10**400}, "^weight_scale must be .*; got 1000"),
        ({"weight_scale": "1"}, "^weight_scale must be .*; got '1'"),
        ({"weight_scale": True}, "^weight_scale must be .*; got True"),
        ({"seed": -1}, "^seed must be .*; got -1"),
        ({"seed": 1.5}, "^seed must be .*; got 1.5"),
        ({"seed": None}, "^seed must be .*; got None"),
        ({"seed": 2**64}, "^seed must be .*; got 18446744073709551616"),
    ],
)
def test_a_bad_parameter_is_named_with_its_value(change, match):
    fields = {"n_inputs": 2, "n_hidden": 3} | change
    with pytest.raises(ElmeshError, match=match):
        HiddenLayer(**fields)


def test_numpy_numbers_are_taken_as_plain_ones():
    layer = HiddenLayer(np.int64(2), np.int32(3), weight_scale=np.float32(0.5), seed=np.uint64(4))
    assert layer == HiddenLayer(2, 3, weight_scale=0.5, seed=4)
    assert json.loads(json.dumps(layer.to_json())) == layer.to_json()


@given(
    n=st.integers(1, 10**9),
    L=st.none() | st.integers(1, 10**9),
    activation=st.sampled_from(ACTIVATIONS),
    scale=st.floats(min_value=0, exclude_min=True, allow_infinity=False),
    seed=st.integers(0, 2**64 - 1),
)
def test_a_layer_comes_back_from_json_as_it_was(n, L, activation, scale, seed):
    layer = HiddenLayer(n, L, activation, scale, seed)
    assert HiddenLayer.from_json(json.loads(json.dumps(layer.to_json()))) == layer


@pytest.mark.parametrize(
    "fields",
    [
        None,
        [],
        {},
        {"n_inputs": 2, "n_hidden": 3},
        HiddenLayer(2, 3).to_json() | {"more": 1},
        HiddenLayer(2, 3).to_json() | {"seed": "0"},
        HiddenLayer(2, 3).to_json() | {"n_inputs": None},
    ],
)
def test_json_that_is_not_exactly_a_layer_is_refused(fields):
    with pytest.raises(ElmeshError):
        HiddenLayer.from_json(fields)
