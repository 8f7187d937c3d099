"""Noise of whole numbers: its distribution, that it is the same for the same label, and the rare exact decisions."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import chisquare, kstest, norm

import elmesh.privacy.discrete_gaussian as module
from elmesh.privacy.discrete_gaussian import NoiseSource

N = 100_000


def draw(sigma: int, n: int = N, label: bytes = b"test") -> np.ndarray:
    return NoiseSource(bytes(32)).draw(label, np.full(n, sigma))


@pytest.mark.parametrize("sigma", [1, 2, 3, 7])
def test_small_noise_has_the_probabilities_of_the_formula(sigma):
    z = np.arange(-5 * sigma, 5 * sigma + 1)
    expected = np.exp(-(z**2) / (2 * sigma**2))
    found = np.bincount(draw(sigma) + 20 * sigma, minlength=40 * sigma + 1)
    inside, expected = found[z + 20 * sigma], expected / expected.sum()
    assert inside.sum() > 0.9999 * N
    enough = expected * N > 10
    assert chisquare(inside[enough], expected[enough] / expected[enough].sum() * inside[enough].sum()).pvalue > 1e-6


@pytest.mark.parametrize("sigma", [1000, 2**20, 3 * 10**9])
def test_large_noise_is_as_good_as_gaussian(sigma):
    assert kstest(draw(sigma) / sigma, norm.cdf).pvalue > 1e-6


def test_noise_of_several_standard_deviations_keeps_them_apart():
    sigma = np.tile([10, 1000, 10**6], N // 3)
    z = NoiseSource(bytes(32)).draw(b"test", sigma)
    for s in (10, 1000, 10**6):
        assert np.std(z[sigma == s]) == pytest.approx(s, rel=5 / np.sqrt(2 * N / 3))


def test_the_same_seed_and_label_give_the_same_noise_and_others_give_other_noise():
    first = draw(1000)
    np.testing.assert_array_equal(draw(1000), first)
    others = [draw(1000, label=b"other"), NoiseSource(bytes(31) + b"1").draw(b"test", np.full(N, 1000))]
    for other in others:
        assert abs(np.corrcoef(first, other)[0, 1]) < 5 / np.sqrt(N)
    fresh = [NoiseSource.fresh().draw(b"test", np.full(10, 1000)).tolist() for _ in range(2)]
    assert fresh[0] != fresh[1]


def test_words_are_of_chacha20_under_a_key_derived_for_one_use(monkeypatch):
    """A mutation that ignores the seed or the label would give one stream for all."""
    words = [module._Bits(seed, label).words(8).tobytes() for seed in (bytes(32), b"1" * 32) for label in (b"a", b"b")]
    assert len(set(words)) == 4


def test_decisions_of_doubles_are_those_of_a_hundred_digits(monkeypatch):
    rng = np.random.default_rng(0)
    sigma = rng.integers(1, 10**6, size=300)
    x, y = rng.integers(0, 5, size=300), (sigma * rng.uniform(size=300)).astype(np.int64)
    words = rng.integers(0, 2**63, size=300, dtype=np.uint64) * 2
    bits = module._Bits(bytes(32), b"test")
    fast = module._accept(bits, words, x, y, sigma)
    assert 0.1 < fast.mean() < 0.9
    # With an error as large as the probabilities themselves every decision is made exactly.
    monkeypatch.setattr(module, "_ERROR", 1.0)
    np.testing.assert_array_equal(module._accept(bits, words, x, y, sigma), fast)


def test_a_word_at_the_edge_of_a_probability_is_decided_by_further_bits():
    exact = module._cumulative()
    edge = np.array([exact[0] >> 192], dtype=np.uint64)
    found = {int(module._half_gaussian(module._Bits(bytes(32), b"%d" % k), edge)[0]) for k in range(40)}
    assert found == {0, 1}
    # One word below it is x = 0, and one above is x = 1.
    bits = module._Bits(bytes(32), b"test")
    assert module._half_gaussian(bits, edge - np.uint64(1)).tolist() == [0]
    assert module._half_gaussian(bits, edge + np.uint64(1)).tolist() == [1]


def test_whole_sampling_with_exact_decisions_has_the_same_distribution(monkeypatch):
    monkeypatch.setattr(module, "_ERROR", 1.0)
    z = NoiseSource(bytes(32)).draw(b"test", np.full(2000, 50))
    assert kstest(z / 50, norm.cdf).pvalue > 1e-6
