"""Quantised messages of every solver that exchanges: one codec, one parameter, and every byte counted."""

from __future__ import annotations

import numpy as np
import pytest

from elmesh import DGSP, DMTLELM, DNSP, DifAltGDmin, FedAvg, FederatedRidge, FedRep, MeshELM
from elmesh.comm.codec import BITS, DeltaChannel, message_size, most_bytes
from elmesh.comm.graph import make_topology
from elmesh.comm.local import LocalTransport
from elmesh.comm.requests import HubReduce, NeighborSum
from elmesh.errors import ElmeshError
from elmesh.solvers import make_solver, solver_classes
from helpers.problems import followed, random_problem, solve, task_weights

SENDERS = [
    cls
    for cls in solver_classes().values()
    if cls.__module__.startswith("elmesh.") and cls().requires and not cls().pooled
]
PAPER = {"common": False, "private": False}


@pytest.mark.parametrize("cls", SENDERS)
def test_every_solver_that_sends_messages_takes_message_bits(cls):
    assert make_solver(cls(message_bits=4)).message_bits == 4
    with pytest.raises(ElmeshError, match="message_bits must be one of 2, 4, 8, 16, 32, 64, auto; got 5"):
        make_solver(cls(message_bits=5))


@pytest.mark.parametrize(
    ("solver", "graph"),
    [
        (DNSP(rank=3), "star"),
        (DGSP(rank=3), "star"),
        (FedRep(rank=3, max_iter=20, tol=0.0), "star"),
        (FedAvg(max_iter=20, tol=0.0), "star"),
        (FederatedRidge(mu=1.0), "star"),
        (DifAltGDmin(rank=3, graph="ring", max_iter=20, tol=0.0), "ring"),
        (DMTLELM(rank=3, mu1=1.0, mu2=1.0, max_iter=20, tol=0.0, certify=False), "ring"),
        (MeshELM(**PAPER, rank=3, mu1=1.0, mu2=1.0, graph="star", start="weights", tol=1e-5, certify=False), "star"),
    ],
    ids=lambda value: value if isinstance(value, str) else value.name,
)
def test_sixteen_bits_give_nearly_the_weights_of_doubles_for_fewer_bytes(solver, graph):
    problem = random_problem(1, m=5, L=12, d=2, unequal=False)
    exact = solve(solver, problem, graph)
    coded = solve(solver.set_params(message_bits=16), problem, graph)
    for one, other in zip(*(task_weights(problem, run.solution) for run in (exact, coded)), strict=True):
        np.testing.assert_allclose(one, other, atol=5e-3 * np.abs(one).max())
    assert 0 < coded.traffic.total < exact.traffic.total


@pytest.mark.parametrize("bits", [4, 8, "auto"])
def test_rounding_errors_of_admm_feed_back_so_that_the_optimum_is_that_of_doubles(bits):
    problem = random_problem(2, m=5, L=10)
    setting = {"rank": 2, "mu1": 1.0, "mu2": 1.0, "rho": 1.0, "max_iter": 4000, "tol": 1e-7, "certify": False}
    exact, coded = (
        solve(DMTLELM(**setting, message_bits=b), problem, "ring").history["objective"].iloc[-1] for b in (64, bits)
    )
    assert coded == pytest.approx(exact, rel=1e-5)


@pytest.mark.parametrize("bits", [2, 8, "auto"])
@pytest.mark.parametrize("graph", ["ring", "star", "random"])
def test_differences_of_quantised_neighbours_cancel_over_all_agents(graph, bits):
    topology = make_topology(graph, range(6), 1)
    transport, value = LocalTransport(topology, bits), np.random.default_rng(0).normal(size=(6, 7, 2))
    for _ in range(3):
        S = transport.neighbor_sum(NeighborSum(value))
        apart = topology.degree[:, None, None] * value - S
        np.testing.assert_allclose(apart.sum(axis=0), 0.0, atol=1e-12)
        messages = transport.neighbor_sum(NeighborSum(value, each=True))
        assert messages.values.shape == (2 * len(topology.edges), 7, 2)
        value = value - 0.1 * apart
    # The same value again and again: what is lost in rounding vanishes.
    for _ in range(25):
        S = transport.neighbor_sum(NeighborSum(value))
    exact = np.einsum("ij,j...->i...", topology.adjacency.toarray(), value)
    np.testing.assert_allclose(S, exact, atol=1e-6)


@pytest.mark.parametrize("bits", [2, 4, 8, 16, 32])
def test_bytes_to_the_hub_and_back_are_those_of_the_messages_and_of_what_follows_the_run(bits):
    m, L, d = 5, 12, 3
    problem = random_problem(0, m=m, L=L, d=d, unequal=False)
    sent = solve(DNSP(rank=2, message_bits=bits), problem, "star").history["bytes"].tolist()
    per_round = (m - 1) * (message_size((L, d), bits) + message_size((L, 1), bits))
    assert sent == [per_round * k + (k + 1) * followed(m) for k in range(3)]


@pytest.mark.parametrize("bits", [2, 8])
def test_the_hub_applies_its_function_to_what_it_decodes_and_all_have_its_decoded_result(bits):
    topology, value = make_topology("star", range(4)), np.random.default_rng(1).normal(size=(4, 5, 2))
    transport, channels = LocalTransport(topology, bits), [DeltaChannel(bits) for _ in range(5)]
    for _ in range(3):
        for channel, own in zip(channels[1:4], value[1:], strict=True):
            channel.encode(own)
        stack = np.stack([value[0], *(channel.value for channel in channels[1:4])])
        channels[4].encode(stack.sum(axis=0))
        found = transport.reduce_at_hub(HubReduce(value, lambda values: values.sum(axis=0)))
        assert found.tobytes() == channels[4].value.tobytes()
        value = value + 0.1


@pytest.mark.parametrize("bits", [*BITS, "auto"])
def test_a_single_number_is_sent_exactly_and_no_message_exceeds_its_bound(bits):
    rng, channel = np.random.default_rng(0), DeltaChannel(bits)
    assert len(channel.encode(np.array([[np.pi]]))) == 9
    assert channel.value.item() == np.pi
    for shape in ((1, 1), (2, 1), (1, 3), (20, 4)):
        channel = DeltaChannel(bits)
        for _ in range(4):
            assert len(channel.encode(rng.normal(size=shape))) <= most_bytes(shape, bits)


def test_what_every_agent_knows_is_not_sent_to_follow_a_run():
    problem, m, L, r = random_problem(0, m=5, L=12, d=2, unequal=False), 5, 12, 3
    setting = {**PAPER, "rank": r, "mu1": 1.0, "mu2": 1.0, "graph": "star", "max_iter": 3, "tol": 0.0, "certify": False}
    result = solve(MeshELM(**setting, message_bits=32), problem, "star")
    block = message_size((L, r), 32)
    # Two passes of the start, and an evaluation with three numbers; an evaluation of a step has two.
    first = 2 * (m - 1) * (3 * block + 3 * 8)
    sent = result.history["bytes"].to_numpy()
    assert sent[0] == first
    assert (np.diff(sent) % (2 * (m - 1) * (block + 2 * 8)) == 0).all()
