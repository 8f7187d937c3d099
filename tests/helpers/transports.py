"""Invariants that hold for every transport.

A check is run by all processes of a transport at the same time. It opens transports of its own, compares this process's
results with what all agents' values give, and returns bytes that must be equal in all processes.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Lock

import numpy as np
import pytest

from elmesh.comm.fixed_point import LIMBS
from elmesh.comm.graph import Topology, make_topology
from elmesh.comm.local import LocalTransport
from elmesh.comm.masking import MaskedSums, PairwiseMasks
from elmesh.comm.network.endpoint import Endpoint
from elmesh.comm.network.messenger import ReliableMessenger
from elmesh.comm.network.peer import Timing
from elmesh.comm.network.transport import NetworkTransport
from elmesh.comm.requests import AllReduce, AllReduceResult, HubReduce, IntegerSum, NeighborMessages, NeighborSum, Topic
from elmesh.comm.transport import LocalMetrics, RoundMetrics, Transport
from elmesh.errors import ElmeshError

M, ROWS, COLUMNS = 7, 4, 3
GRAPHS = ("ring", "star", "random")
#: Graphs on which no transport uses gossip, so that all send the same messages along a tree.
TREES = ("star", "random")


@dataclass(frozen=True)
class Member:
    """A process's transport, and its agents."""

    transport: Transport
    topology: Topology
    agents: np.ndarray


#: Opens a new transport over a graph with these message bits, in all processes at once.
Open = Callable[[Topology, int | str], Member]
Check = Callable[[Open], bytes]
CHECKS: dict[str, Check] = {}


def invariant(check: Check) -> Check:
    CHECKS[check.__name__] = check
    return check


def values(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(M, *shape))


def graph(name: str) -> Topology:
    return make_topology(name, range(M), 1)


def sum_request(member: Member, seed: int, **options: object) -> AllReduce:
    value, exact = values(seed, ROWS, COLUMNS), values(seed + 1000, 2)
    return AllReduce(value[member.agents], exact[member.agents], "topic", **options)


def integer_request(member: Member, seed: int) -> IntegerSum:
    """The sum of the integers of the agents here."""
    return IntegerSum(integers(member, seed)[member.agents].sum(axis=0))


def integers(member: Member, seed: int) -> np.ndarray:
    """Integers of all agents; some are so large that a sum of doubles would lose bits, unless sums are masked."""
    most = 2**43 if member.transport.masked else 2**59
    return np.random.default_rng(seed).integers(-most, most, size=(M, 5))


def bits_to_try(open_: Open) -> tuple[int | str, ...]:
    """Bits per number that are fewer than 64 and that a transport allows."""
    return (16, 32) if open_(graph("ring"), 64).transport.masked else (2, 8, 32, "auto")


def close(found: np.ndarray, expected: np.ndarray) -> None:
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)


# Requests ------------------------------------------------------------------------------------------------------------


@invariant
def a_neighbor_sum_equals_the_dense_sum(open_: Open) -> bytes:
    for name in GRAPHS:
        member = open_(graph(name), 64)
        before = member.transport.n_exchanges  # for keys
        for seed, shape in enumerate([(ROWS, COLUMNS), (2, 2), (ROWS, COLUMNS)]):
            value = values(seed, *shape)
            found = member.transport.neighbor_sum(NeighborSum(value[member.agents]))
            expected = np.einsum("ij,j...->i...", member.topology.adjacency.toarray(), value)
            close(found, expected[member.agents])
        assert member.transport.n_exchanges == before + 3
    return b""


@invariant
def each_neighbor_s_message_arrives_unchanged_and_in_order(open_: Open) -> bytes:
    for name in GRAPHS:
        member, value = open_(graph(name), 64), values(0, ROWS, COLUMNS)
        found = member.transport.neighbor_sum(NeighborSum(value[member.agents], each=True))
        assert isinstance(found, NeighborMessages)
        expected = [(k, j) for k, i in enumerate(member.agents) for j in member.topology.neighbors(i)]
        assert found.receiver.tolist() == [k for k, _ in expected]
        assert found.values.tobytes() == value[[j for _, j in expected]].tobytes()
        total = member.transport.neighbor_sum(NeighborSum(value[member.agents]))
        close(found.sum(found.values, value[member.agents]), total)
    return b""


@invariant
def a_sum_over_all_agents_equals_the_dense_sum_and_exact_numbers_are_equal_to_the_bit(open_: Open) -> bytes:
    equal = b""
    for name in GRAPHS:
        member = open_(graph(name), 64)
        for seed in range(3):
            average, broadcast = values(seed + 50, COLUMNS)[0], values(seed + 60, 2)[0]
            request = sum_request(member, seed, average=average, broadcast=broadcast)
            result = member.transport.allreduce(request)
            close(result.value, values(seed, ROWS, COLUMNS).sum(axis=0))
            close(result.exact, values(seed + 1000, 2).sum(axis=0))
            assert result.average.tobytes() == average.tobytes()
            assert result.broadcast.tobytes() == broadcast.tobytes()
            equal += result.exact.tobytes()
    return equal


@invariant
def quantised_sums_are_equal_to_the_bit_and_converge_to_the_exact_sum(open_: Open) -> bytes:
    equal = b""
    for bits in bits_to_try(open_):
        member, exact = open_(graph("random"), bits), values(5, ROWS, COLUMNS).sum(axis=0)
        for _ in range(12):
            result = member.transport.allreduce(sum_request(member, 5))
        assert np.linalg.norm(result.value - exact) <= 0.05 * np.linalg.norm(exact), bits
        close(result.exact, values(1005, 2).sum(axis=0))
        equal += result.value.tobytes() + result.exact.tobytes()
    return equal


@invariant
def quantised_messages_to_neighbors_and_the_hub_are_those_of_one_process(open_: Open) -> bytes:
    found = b""
    for bits in () if open_(graph("star"), 64).transport.masked else (2, 8, "auto"):
        for name in GRAPHS:
            member, alone = open_(graph(name), bits), LocalTransport(graph(name), bits)
            for seed, each in ((0, False), (1, True), (2, False)):
                value = values(seed, ROWS, COLUMNS)
                here = member.transport.neighbor_sum(NeighborSum(value[member.agents], each))
                everywhere = alone.neighbor_sum(NeighborSum(value, each))
                if isinstance(here, NeighborMessages) and isinstance(everywhere, NeighborMessages):
                    own = np.isin(everywhere.receiver, member.agents)
                    assert here.values.tobytes() == everywhere.values[own].tobytes()
                else:
                    assert here.tobytes() == everywhere[member.agents].tobytes()
            if name == "star":
                value[2, :, -1] = 0.0
                here, everywhere = (
                    transport.reduce_at_hub(HubReduce(own, lambda stack: stack.sum(axis=0)))
                    for transport, own in ((member.transport, value[member.agents]), (alone, value))
                )
                assert here.tobytes() == everywhere.tobytes()
                found += here.tobytes()
            assert member.transport.traffic().counts().tolist() == alone.traffic().counts().tolist()
    return found


@invariant
def integers_are_summed_exactly_over_every_graph_and_with_any_message_bits(open_: Open) -> bytes:
    equal = b""
    for name in (*GRAPHS, "path"):
        for bits in (64, *bits_to_try(open_)):
            member = open_(graph(name), bits)
            for seed in range(2):
                found = member.transport.integer_sum(integer_request(member, seed))
                assert found.dtype == np.int64
                assert found.tolist() == integers(member, seed).sum(axis=0).tolist()
                equal += found.tobytes()
                # Other requests in between do not get in the way.
                close(member.transport.allreduce(sum_request(member, seed)).exact, values(seed + 1000, 2).sum(axis=0))
            if name == "path" and not member.transport.masked:
                # The largest sums wrap around everywhere alike.
                large = np.full((M, 2), 2**62)
                wrapped = member.transport.integer_sum(IntegerSum(large[member.agents].sum(axis=0)))
                assert wrapped.tolist() == large.sum(axis=0).tolist()
    return equal


@invariant
def masked_integers_of_every_width_are_summed_exactly(open_: Open) -> bytes:
    member = open_(graph("random"), 64)
    if not member.transport.masked:
        return b""
    equal = b""
    for bits, most in ((16, 2**11), (32, 2**27), (64, 2**43)):
        value = np.random.default_rng(bits).integers(-most, most, size=(M, 6))
        own = value[member.agents].sum(axis=0)
        found = member.transport.integer_sum(IntegerSum(own, Topic.BLOCK, bits))
        assert found.tolist() == value.sum(axis=0).tolist()
        equal += found.tobytes()
    return equal


@invariant
def a_hub_applies_its_function_to_all_values_or_is_refused(open_: Open) -> bytes:
    value = values(3, ROWS, COLUMNS)
    value[1::2, :, -1] = 0.0  # padding, which is not sent

    def function(stack: np.ndarray) -> np.ndarray:
        return np.stack([stack.sum(axis=0), np.cumsum(stack, axis=0)[-2]])

    member = open_(graph("star"), 64)
    request, keys, before = HubReduce(value[member.agents], function), sent_by(member), member.transport.n_exchanges
    if isinstance(member.transport, NetworkTransport):
        with pytest.raises(ElmeshError, match="has no hub; use a solver that needs none"):
            member.transport.reduce_at_hub(request)
        return b""
    result = member.transport.reduce_at_hub(request)
    assert result.tobytes() == function(value).tobytes()
    assert member.transport.n_exchanges == before + 2
    sizes = sent_by(member)
    for agent in member.agents:
        widths = [COLUMNS - agent % 2] if agent else []
        expected = [8 * ROWS * width for width in widths] or [result.nbytes] * (M - 1)
        assert sizes[agent] == keys[agent] + sum(expected)
    no_star = open_(graph("ring"), 64)
    with pytest.raises(ElmeshError, match="no hub"):
        no_star.transport.reduce_at_hub(HubReduce(value[no_star.agents], function))
    return result.tobytes()


# Traffic -------------------------------------------------------------------------------------------------------------


def sent_by(member: Member) -> dict[int, int]:
    """Return the bytes that each agent of this process has sent."""
    table = member.transport.traffic().table(range(M))
    return {int(agent): int(table.loc[table["sender"] == agent, "bytes"].sum()) for agent in member.agents}


@invariant
def every_byte_is_counted_for_its_sender(open_: Open) -> bytes:
    for name in TREES:
        topology = graph(name)
        tree = topology.tree
        edges = np.bincount(tree.parent[tree.parent >= 0], minlength=M) + (tree.parent >= 0)
        member = open_(topology, 64)
        keys, before = sent_by(member), member.transport.n_exchanges
        assert all(keys.values()) == (before > 0)
        member.transport.neighbor_sum(NeighborSum(values(0, ROWS, COLUMNS)[member.agents]))
        member.transport.allreduce(sum_request(member, 1))
        member.transport.integer_sum(integer_request(member, 2))
        numbers, sums = ROWS * COLUMNS + 2 + 5, 2
        if member.transport.masked:
            # A bound of both parts comes before a sum, and every sum has a word to check its total by.
            numbers, sums = numbers + 2 * LIMBS + 3, 3
        for agent, sent in sent_by(member).items():
            along_tree = 8 * numbers * int(edges[agent])
            assert sent == 8 * ROWS * COLUMNS * int(topology.degree[agent]) + along_tree + keys[agent]
        assert member.transport.n_exchanges == before + 1 + sums * tree.rounds
    return b""


@invariant
def no_request_sends_more_than_its_bound(open_: Open) -> bytes:
    for bits in (64, *bits_to_try(open_)):
        member = open_(graph("random"), bits)
        requests = (
            NeighborSum(values(0, ROWS, COLUMNS)[member.agents]),
            sum_request(member, 1),
            sum_request(member, 2, fine_columns=1),
            integer_request(member, 3),
        )
        for request in requests:
            before = sum(sent_by(member).values())
            bound = member.transport.max_request_bytes(request)
            answer(member.transport, request)
            assert 0 < sum(sent_by(member).values()) - before <= bound
    return b""


def answer(transport: Transport, request: NeighborSum | AllReduce | IntegerSum) -> bytes:
    """Answer a request and return the result as bytes."""
    if isinstance(request, IntegerSum):
        return transport.integer_sum(request).tobytes()
    result = transport.neighbor_sum(request) if isinstance(request, NeighborSum) else transport.allreduce(request)
    return result.value.tobytes() + result.exact.tobytes() if isinstance(result, AllReduceResult) else result.tobytes()


# Resuming ------------------------------------------------------------------------------------------------------------


@invariant
def a_restored_transport_sends_the_same_messages_again(open_: Open) -> bytes:
    for bits in (64, *bits_to_try(open_)):
        member = open_(graph("random"), bits)

        def requests(member: Member, start: int) -> list[NeighborSum | AllReduce | IntegerSum]:
            base = [sum_request(member, seed, fine_columns=1, skip_below=0.5) for seed in range(start, start + 3)]
            base[1] = replace(base[1], relative_to_previous=True)
            rotation = values(start, COLUMNS, COLUMNS)[0]
            first = [NeighborSum(values(start, 2, 2)[member.agents]), integer_request(member, start)]
            return [*first, *base, replace(base[2], rotation=rotation)]

        for request in requests(member, 0):
            answer(member.transport, request)
        state = member.transport.state()
        expected = [answer(member.transport, request) for request in requests(member, 10)]
        other = open_(graph("random"), bits)
        other.transport.restore(state)
        assert [answer(other.transport, request) for request in requests(other, 10)] == expected
        assert other.transport.n_exchanges == member.transport.n_exchanges
        assert other.transport.traffic().counts().tolist() == member.transport.traffic().counts().tolist()
        # A transport can also be taken back to its own earlier state.
        member.transport.restore(state)
        assert [answer(member.transport, request) for request in requests(member, 10)] == expected
    return b""


# Metrics -------------------------------------------------------------------------------------------------------------


def complete(member: Member, local: LocalMetrics, halt: bool = False) -> RoundMetrics:
    pending = member.transport.start_metrics(local, halt)
    for _ in range(5):
        metrics = next(pending)
        if metrics is not None:
            return metrics
    raise AssertionError("metrics are never complete")


@invariant
def metrics_are_the_sums_over_all_agents_and_equal_to_the_bit(open_: Open) -> bytes:
    member = open_(graph("ring"), 64)
    figures, U = np.abs(values(1, 5)), values(2, ROWS, COLUMNS)
    # The largest U grows by far from round to round, as in a run that diverges. Where sums are masked there is no U.
    rounds = [None] * 5 if member.transport.masked else [None, U, 1e6 * U, None, 1e300 * U]
    found = []
    for k, basis in enumerate(rounds):
        local = None if basis is None else basis[member.agents]
        found.append(complete(member, LocalMetrics(k, figures[member.agents], local)))
    if not member.transport.global_metrics:
        assert [metrics.objective for metrics in found] == [figures[member.agents[0], 0]] * len(rounds)
        return b""
    for metrics, basis in zip(found[:4], rounds[:4], strict=True):
        close(np.array([metrics.objective, *metrics.residual, *metrics.scale]), figures.sum(axis=0))
        if basis is None:
            assert (metrics.distance, metrics.size) == (0.0, 1.0)
        else:
            mean = basis.mean(axis=0)
            close(
                np.array(metrics.distance) / np.linalg.norm(U),
                np.linalg.norm(basis - mean) / np.sqrt(M) / np.linalg.norm(U),
            )
            close(np.array(metrics.size), np.linalg.norm(mean))
    return repr(found).encode()


@invariant
def a_request_to_halt_reaches_all_processes(open_: Open) -> bytes:
    member, figures = open_(graph("ring"), 64), values(1, 5)
    last = M - 1 in member.agents.tolist()
    metrics = complete(member, LocalMetrics(0, figures[member.agents], None), halt=last)
    assert metrics.halt == (last or member.transport.global_metrics)
    return b""


# Transports ----------------------------------------------------------------------------------------------------------


def check_local(check: Check) -> list[bytes]:
    """Run a check with all agents in one process."""
    return [check(lambda topology, bits: Member(LocalTransport(topology, bits), topology, np.arange(M)))]


def check_local_masked(check: Check) -> list[bytes]:
    """Run a check with all agents in one process and the traffic of masked sums."""
    return [check(lambda topology, bits: Member(LocalTransport(topology, bits, masked=True), topology, np.arange(M)))]


class _Switch:
    """Sessions of agents in one process: what one sends, the others receive at once."""

    def __init__(self, topology: Topology) -> None:
        names = [f"agent{k}" for k in range(M)]
        neighbors = {name: tuple(names[j] for j in topology.neighbors(k)) for k, name in enumerate(names)}
        self.names, self.messengers = names, dict[str, ReliableMessenger]()
        for k, name in enumerate(names):
            nowhere = Path("unused")
            endpoint = Endpoint("test", name, neighbors, {}, (), "", nowhere, nowhere, nowhere, bytes(32))
            self.messengers[name] = ReliableMessenger(
                endpoint, _Session(self, name), Timing(patience=60.0, mute_factor=1.0), run_id=k + 1
            )
        for name in names:
            for other in neighbors[name]:
                self.messengers[name].on_presence(other, True)


@dataclass(frozen=True)
class _Session:
    switch: _Switch
    name: str

    def put(self, to: str, data: bytes) -> None:
        self.switch.messengers[to].on_message(self.name, data)


def check_network(check: Check) -> list[bytes]:
    """Run a check with one agent per thread, and messages in memory."""
    switches: list[_Switch] = []

    def run(agent: int) -> bytes:
        opened = 0

        def open_(topology: Topology, bits: int | str) -> Member:
            nonlocal opened
            with lock:
                if opened == len(switches):
                    switches.append(_Switch(topology))
                switch = switches[opened]
            opened += 1
            messenger = switch.messengers[switch.names[agent]]
            # Keys are those of the pair, whenever a transport is opened.
            keys = {other: bytes(sorted([agent, other])) * 16 for other in range(M) if other != agent}
            sums = MaskedSums(PairwiseMasks(agent, keys), bytes(32))
            transport = NetworkTransport(messenger, switch.names, topology, bits, sums=sums)
            return Member(transport, topology, np.array([agent]))

        return check(open_)

    lock = Lock()
    try:
        with ThreadPoolExecutor(M) as threads:
            return [future.result() for future in [threads.submit(run, agent) for agent in range(M)]]
    finally:
        for switch in switches:
            for messenger in switch.messengers.values():
                messenger.close()
