"""Masks: they cancel in the total, hide everything else, are used once, and a missing one is found."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import combinations

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("cryptography", reason="masks need cryptography, of elmesh[network]")

from elmesh.comm.masking import (
    MaskedSums,
    MaskError,
    MaskSecret,
    PairwiseMasks,
    commitment_of,
    number_digest,
)
from elmesh.comm.mpi.masks import MaskedRanks
from elmesh.comm.partners import (
    ALL_PAIRS,
    colluders_withstood,
    draw_partners,
    draws_per_party,
    isolation_bound,
)
from elmesh.comm.requests import IntegerSum, Topic
from elmesh.errors import ElmeshError
from helpers.examples import examples

VIEW = bytes(32)
BITS = (16, 32, 64)
#: Points of X25519 whose product with any key is zero.
LOW_ORDER = [
    bytes(32),
    b"\x01" + bytes(31),
    bytes.fromhex("e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800"),
    bytes.fromhex("5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157"),
    bytes.fromhex("ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f"),
]


def stream_of(key: bytes, label: bytes, size: int) -> bytes:
    out = bytearray(size)
    PairwiseMasks.stream(key, label, memoryview(bytes(size)), memoryview(out))
    return bytes(out)


def parties(m: int, context: bytes = b"test", view: bytes = VIEW) -> list[MaskedSums]:
    """Return the masked sums of m parties that have agreed on keys."""
    secrets = [MaskSecret.from_seed(bytes([k, m]) * 16) for k in range(m)]
    public, numbers = [s.public for s in secrets], [s.number for s in secrets]
    return [
        MaskedSums(PairwiseMasks.agree(k, secret, public, numbers, context), view) for k, secret in enumerate(secrets)
    ]


def requests(m: int, bits: int = 64, n: int = 9, seed: int = 0) -> list[IntegerSum]:
    most = {16: 2**14, 32: 2**30, 64: 2**46}[bits] // m
    values = np.random.default_rng(seed).integers(-most, most, size=(m, n))
    return [IntegerSum(value, Topic.BLOCK, bits) for value in values]


def total_of(words: list[np.ndarray]) -> np.ndarray:
    total = words[0].copy()
    for word in words[1:]:
        total += word
    return total


@examples(40)
@given(st.integers(1, 7), st.sampled_from(BITS), st.integers(0, 20), st.integers(0, 99), st.integers(1, 3))
def test_masks_cancel_in_the_total_of_all_parties(m, bits, n, seed, rounds):
    everyone = parties(m)
    for k in range(rounds):
        asked = requests(m, bits, n, seed + k)
        total = total_of([party.mask(request) for party, request in zip(everyone, asked, strict=True)])
        for party, request in zip(everyone, asked, strict=True):
            found = party.unmask(total, request)
            assert found.tolist() == np.sum([r.value for r in asked], axis=0).tolist()
        assert len({party.view for party in everyone}) == 1
    assert all(party.counter == rounds for party in everyone)


def test_masks_of_a_random_graph_of_partners_cancel_as_well():
    m = ALL_PAIRS + 6
    everyone, asked = parties(m), requests(m)
    assert all(len(party._masks.partners) < m - 1 for party in everyone)
    total = total_of([party.mask(request) for party, request in zip(everyone, asked, strict=True)])
    assert everyone[0].unmask(total, asked[0]).tolist() == np.sum([r.value for r in asked], axis=0).tolist()


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("change", ["no mask", "one partner left out", "another sign", "a bit"])
def test_a_mask_that_is_missing_or_wrong_is_found(bits, change):
    everyone, asked = parties(4), requests(4, bits)
    words = [party.mask(request) for party, request in zip(everyone, asked, strict=True)]
    padded = np.concatenate([asked[1].value, np.zeros(64 // bits, np.int64)]).astype(words[1].dtype)
    if change == "no mask":
        words[1] = padded
    elif change == "one partner left out":
        label, (key, *_) = everyone[1].label(asked[1]), everyone[1]._masks._keys.values()
        words[1] = words[1] + np.frombuffer(stream_of(key, label, padded.nbytes), padded.dtype)
    elif change == "another sign":
        words[1] = padded - (words[1] - padded)
    else:
        words[1][-1] ^= 1
    with pytest.raises(MaskError, match="masks of a sum do not cancel"):
        everyone[0].unmask(total_of(words), asked[0])
    # Nothing of it counts.
    assert (everyone[0].counter, everyone[0].view) == (0, VIEW)


def test_a_total_of_64_bits_whose_high_bits_are_used_is_refused():
    everyone = parties(3)
    request = IntegerSum(np.array([0]), Topic.MATRIX)
    for value, refused in ((2**47 - 1, False), (2**47, True), (-(2**47) + 1, False), (-(2**62), True)):
        words = np.array([value, 0]).astype(np.uint64)
        if refused:
            with pytest.raises(MaskError):
                everyone[0].unmask(words, request)
        else:
            assert everyone[0].unmask(words, request).tolist() == [value]


@pytest.mark.parametrize(("bits", "most"), [(16, 2**15), (32, 2**31), (64, 2**47)])
def test_a_term_beyond_its_bound_is_not_masked(bits, most):
    (party,) = parties(1)
    party.mask(IntegerSum(np.array([most - 1, 1 - most]), Topic.BLOCK, bits))
    for value in (most, -most):
        with pytest.raises(MaskError, match=f"not within its bound of {most}"):
            party.mask(IntegerSum(np.array([value]), Topic.BLOCK, bits))


@pytest.mark.parametrize("bits", BITS)
def test_to_whoever_lacks_one_stream_a_masked_term_says_nothing(bits):
    """All others but one collude: what they can compute is the term plus one stream, which fits any term."""
    everyone, request = parties(4), IntegerSum(np.zeros(4000, np.int64), Topic.BLOCK, bits)
    words, label = everyone[0].mask(request), everyone[0].label(request)
    keys = everyone[0]._masks._keys
    left = words.copy()
    for j in (1, 2):  # colluders know the keys that they share with the party
        left -= np.frombuffer(stream_of(keys[j], label, words.nbytes), words.dtype)
    ones = np.unpackbits(left.view(np.uint8)).mean()
    n = 8 * left.nbytes
    assert abs(ones - 0.5) < 5 * 0.5 / math.sqrt(n)
    # With the last one, everything is known.
    left -= np.frombuffer(stream_of(keys[3], label, words.nbytes), words.dtype)
    assert not left.any()


def streams(sums: MaskedSums, request: IntegerSum) -> set[bytes]:
    label = sums.label(request)
    return {stream_of(key, label, 64) for key in sums._masks._keys.values()}


def test_no_two_sums_have_a_stream_in_common():
    base = IntegerSum(np.zeros(8, np.int64), Topic.BLOCK, 64)
    others = [
        replace(base, topic=Topic.NUMBERS),
        replace(base, bits=32),
        replace(base, value=np.zeros(9, np.int64)),
    ]
    found = [streams(parties(3)[0], request) for request in (base, *others)]
    later = parties(3)[0]
    later.counter = 1
    found.append(streams(later, base))
    # After another total, with other parties evicted, in another network, and in another run.
    found.append(streams(parties(3, view=b"\x01" * 32)[0], base))
    found.append(streams(parties(3, context=b"without west")[0], base))
    found.append(streams(parties(4)[0], base))
    assert all(not one & other for one, other in combinations(found, 2))
    assert len(found[0]) == 2


def test_both_run_numbers_enter_the_key_of_a_pair():
    one, other = MaskSecret.from_seed(bytes(32)), MaskSecret.from_seed(b"\x01" * 32)
    key = one.agree(other.public, other.number, b"")
    assert key == other.agree(one.public, one.number, b"")
    fresh = MaskSecret(one.key, b"\x02" * 32)
    assert fresh.agree(other.public, other.number, b"") != key
    assert one.agree(other.public, b"\x02" * 32, b"") != key
    assert one.agree(other.public, other.number, b"another network") != key


def test_parties_that_were_sent_different_totals_cannot_continue():
    everyone, asked = parties(4), requests(4)
    total = total_of([party.mask(request) for party, request in zip(everyone, asked, strict=True)])
    for k, party in enumerate(everyone):
        wrong = total.copy()
        wrong[0] += k >= 2
        party.unmask(wrong, asked[k])
    words = [party.mask(request) for party, request in zip(everyone, asked, strict=True)]
    with pytest.raises(MaskError):
        everyone[0].unmask(total_of(words), asked[0])


def test_a_party_that_resumes_goes_on_with_the_same_masks():
    everyone, asked = parties(3), requests(3)
    total = total_of([party.mask(request) for party, request in zip(everyone, asked, strict=True)])
    everyone[0].unmask(total, asked[0])
    again = parties(3)[0]
    again.load_state_dict(everyone[0].state_dict())
    assert (again.counter, again.view) == (1, everyone[0].view)
    assert again.mask(asked[0]).tobytes() == everyone[0].mask(asked[0]).tobytes()


@pytest.mark.parametrize("point", LOW_ORDER)
def test_a_public_key_of_low_order_is_refused(point):
    with pytest.raises(ElmeshError, match="its key for agreement is not valid"):
        MaskSecret.generate().agree(point, bytes(32), b"")


def test_secrets_come_from_the_system_and_are_never_shown():
    one, other = MaskSecret.generate(), MaskSecret.generate()
    assert one.public != other.public
    assert one.number != other.number
    assert len(one.number) == 32
    assert one.number.hex() not in repr(one)
    assert commitment_of(one.number) != commitment_of(other.number)


# Who masks with whom.


@pytest.mark.parametrize("m", [2, 3, ALL_PAIRS])
def test_up_to_64_parties_all_are_partners(m):
    assert draw_partners(m, b"any") == [[j for j in range(m) if j != i] for i in range(m)]
    assert colluders_withstood(m) == m - 2


@pytest.mark.parametrize("m", [ALL_PAIRS + 1, 300, 2000])
def test_of_more_parties_each_has_some_partners_and_a_third_of_colluders_separates_nobody(m):
    partners, n = draw_partners(m, number_digest([bytes([k % 256]) * 32 for k in range(m)])), draws_per_party(m)
    graph = nx.Graph([(i, j) for i, own in enumerate(partners) for j in own])
    assert all(i in partners[j] for i, own in enumerate(partners) for j in own)
    assert min(map(len, partners)) >= n
    assert n <= 4 * math.log2(m)
    assert np.mean([len(own) for own in partners]) <= 2 * n
    assert colluders_withstood(m) == m // 3
    rng = np.random.default_rng(0)
    for _ in range(20):
        honest = rng.permutation(m)[m // 3 :].tolist()
        assert nx.is_connected(graph.subgraph(honest))


def test_partners_depend_on_every_run_number():
    numbers = [bytes([k]) * 32 for k in range(100)]
    changed = [*numbers[:-1], bytes(32)]
    assert draw_partners(100, number_digest(numbers)) != draw_partners(100, number_digest(changed))
    assert draw_partners(100, number_digest(numbers)) == draw_partners(100, number_digest(list(numbers)))


def test_the_bound_on_isolation_holds_where_it_can_be_measured():
    m, colluders, n = 12, 4, 2
    bound = isolation_bound(m, colluders, n)
    rng, apart, trials = np.random.default_rng(1), 0, 4000
    for _ in range(trials):
        graph = nx.Graph()
        graph.add_nodes_from(range(m))
        for i in range(m):
            graph.add_edges_from((i, j) for j in rng.permutation([j for j in range(m) if j != i])[:n].tolist())
        apart += not nx.is_connected(graph.subgraph(range(colluders, m)))
    assert 0.01 < apart / trials <= bound <= 1.0


# The ranks of an MPI job.


class World:
    """All ranks at once, each with its own view of what all gather."""

    def __init__(self, size: int) -> None:
        self.size, self.rank, self.contents = size, 0, []

    def allgather(self, content: object) -> list[object]:
        return [self.contents.pop(0) if rank else content for rank in range(self.size)]


def rank_keys(seed: int) -> tuple[list[str], str]:
    secret = MaskSecret.from_seed(bytes([seed]) * 32)
    return [secret.public.hex(), commitment_of(secret.number).hex()], secret.number.hex()


def test_a_rank_whose_number_is_not_the_one_it_has_committed_to_is_found():
    world = World(3)
    (one, number), (other, _) = rank_keys(1), rank_keys(2)
    world.contents = [one, other, number, bytes(32).hex()]
    with pytest.raises(ElmeshError, match="number of rank 2 is not the one it has committed to"):
        MaskedRanks(world)


def test_ranks_with_the_same_key_are_found():
    world = World(3)
    one, number = rank_keys(1)
    world.contents = [one, one, number, number]
    with pytest.raises(ElmeshError, match="Two ranks have the same key"):
        MaskedRanks(world)
