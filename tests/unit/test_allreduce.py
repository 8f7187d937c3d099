"""Sums over a graph: what agents obtain from their neighbours' messages alone, and every byte of it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from queue import Queue

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elmesh.comm.allreduce import GOSSIP_PRECISION, ROOT, ChannelSet, Relay, TreeAllReduce, fine_bits, uses_gossip
from elmesh.comm.codec import DeltaChannel, message_size
from elmesh.comm.graph import GRAPH_NAMES, make_topology
from elmesh.comm.local import LocalTransport
from elmesh.comm.requests import AllReduce
from elmesh.comm.traffic import TrafficLog
from elmesh.errors import ElmeshError
from helpers.examples import examples
from helpers.marks import one_of

QUANTISED = (2, 4, 8, 16, 32, "auto")


def make_request(seed, m, L=6, r=3, k=2, topic="gradient", **options):
    rng = np.random.default_rng(seed)
    return AllReduce(rng.normal(size=(m, L, r)), rng.normal(size=(m, k)), topic, **options)


def make_transport(graph, m, bits, seed=0):
    topology = make_topology(graph, range(m), seed)
    return topology, LocalTransport(topology, bits)


def graph_of(topology):
    return topology.to_networkx(range(topology.n_agents))


def recorded(transport, topology, column="bytes"):
    """Return the traffic log as {(sender, receiver): count}."""
    table = transport.traffic().table(range(topology.n_agents))
    edges = zip(table["sender"].tolist(), table["receiver"].tolist(), strict=True)
    return dict(zip(edges, table[column], strict=True))


class Wire:
    """Both directions of every edge of a networkx graph, and what was sent along them."""

    def __init__(self, graph):
        self.graph = graph
        self.bytes = {pair: 0 for i, j in graph.edges for pair in ((i, j), (j, i))}
        self.messages = dict.fromkeys(self.bytes, 0)

    def send(self, sender, receiver, size):
        self.bytes[sender, receiver] += size  # a KeyError is a message between agents that are not neighbours
        self.messages[sender, receiver] += 1


def gossip(values, wire, roots):
    """Average by agents that know their degree and the schedule; return one sum per agent."""
    held = {i: values[i].copy() for i in wire.graph}
    for root in roots:
        for i in wire.graph:
            for j in wire.graph[i]:
                wire.send(i, j, held[i].nbytes)
        held = {
            i: own - (wire.graph.degree(i) * own - sum(held[j] for j in wire.graph[i])) / root
            for i, own in held.items()
        }
    return [len(values) * held[i] for i in wire.graph]


def flood(numbers, wire):
    """Forward every agent's numbers to all others within the messages of gossip, to each agent once.

    The graph is public, so all agents know who forwards to whom: the first of the neighbours nearer to the source.
    """
    known = {i: {i: numbers[i]} for i in wire.graph}
    hops = dict(nx.all_pairs_shortest_path_length(wire.graph))
    for distance in range(1, nx.diameter(wire.graph) + 1):
        for source in wire.graph:
            for receiver in (i for i in wire.graph if hops[source][i] == distance):
                sender = min(j for j in wire.graph[receiver] if hops[source][j] < distance)
                known[receiver][source] = known[sender][source]
                wire.bytes[sender, receiver] += numbers[source].nbytes
    return [sum(own[k] for k in sorted(own)) for own in known.values()]


def prepare(channel, request):
    """Do what both ends do before a message: revert the last one, and rotate the columns."""
    if request.relative_to_previous:
        channel.revert()
    if request.rotation is not None:
        channel.rotate(request.rotation)


class TreeAgent:
    """One agent of a tree, with a channel per topic and direction to its parent and to each child."""

    def __init__(self, number, parent, bits):
        self.number, self.parent, self.children = number, parent, []
        self._bits, self._channels = bits, {}

    def channel(self, topic, direction, peer, fine):
        bits = (max(self._bits, 16) if isinstance(self._bits, int) else 16) if fine else self._bits
        return self._channels.setdefault((topic, direction, peer, fine), DeltaChannel(bits))

    def parts(self, value, request, direction, peer):
        """Yield the coarse and the fine columns, each with its channel; an empty part is not sent."""
        coarse = value.shape[1] - request.fine_columns
        for part, fine in ((value[:, :coarse], False), (value[:, coarse:], True)):
            if part.size:
                yield part, self.channel(request.topic, direction, peer, fine)

    def encode(self, value, request, direction, peer):
        messages = []
        for part, channel in self.parts(value, request, direction, peer):
            prepare(channel, request)
            messages.append(channel.encode(part, request.skip_below))
        return messages

    def decode(self, messages, like, request, direction, peer):
        decoded = []
        for message, (part, channel) in zip(messages, self.parts(like, request, direction, peer), strict=True):
            prepare(channel, request)
            decoded.append(channel.decode(message, part.shape))
        return np.hstack(decoded) if decoded else like


class Tree:
    """Agents that sum along the tree of a topology: one message up, and the root's message down."""

    def __init__(self, topology, bits):
        self.order = topology.tree.order.tolist()
        self.agents = [TreeAgent(t, int(topology.tree.parent[t]), bits) for t in range(topology.n_agents)]
        for agent in self.agents:
            if agent.parent >= 0:
                self.agents[agent.parent].children.append(agent.number)
        self.wire = Wire(graph_of(topology))

    def sum(self, request):
        """Return one sum per agent."""
        exact = 8 * request.exact.shape[1]
        partial, messages = list(request.value), {}
        for t in reversed(self.order):
            agent = self.agents[t]
            for child in sorted(agent.children, key=self.order.index, reverse=True):
                partial[t] = partial[t] + agent.decode(messages[child], request.value[t], request, "up", child)
            if agent.parent >= 0:
                messages[t] = agent.encode(partial[t], request, "up", agent.parent)
                self.wire.send(t, agent.parent, sum(map(len, messages[t])) + exact)
        root = self.agents[self.order[0]]
        total = root.encode(partial[root.number], request, "down", "all")
        values = [channel.value for _, channel in root.parts(request.value[0], request, "down", "all")]
        sums = {root.number: np.hstack(values)} if total else dict.fromkeys(self.order, partial[root.number])
        for t in self.order[1:]:
            # Every agent forwards the bytes that it has received, unchanged.
            self.wire.send(self.agents[t].parent, t, sum(map(len, total)) + exact)
            if total:
                sums[t] = self.agents[t].decode(total, request.value[t], request, "down", "all")
        return [sums[t] for t in range(len(self.agents))]


@examples(40)
@given(st.sampled_from(["ring", "path", "complete", "grid"]), st.integers(2, 14), st.integers(0, 1000))
def test_gossip_gives_what_agents_obtain_from_their_neighbours_alone(graph, m, seed):
    topology, transport = make_transport(graph, m, 64)
    if not uses_gossip(topology, 64):
        return
    request = make_request(seed, m)
    result = transport.allreduce(request)
    wire = Wire(graph_of(topology))
    roots = topology.averaging_roots(GOSSIP_PRECISION)
    apart = np.linalg.norm(request.value - request.value.mean(axis=0))
    for own in gossip(request.value, wire, roots):
        # To within the precision of the average, m times for the sum, and rounding.
        assert np.linalg.norm(own - result.value) <= 2 * m * (GOSSIP_PRECISION * apart + 1e-14)
    exact = flood(request.exact, wire)
    assert len({own.tobytes() for own in exact}) == 1
    np.testing.assert_allclose(result.exact, exact[0], rtol=1e-13, atol=1e-13)
    assert recorded(transport, topology) == wire.bytes
    assert recorded(transport, topology, "messages") == wire.messages
    assert transport.n_exchanges == len(roots) >= topology.diameter


def test_a_sum_over_a_complete_graph_takes_one_message_per_pair_of_agents():
    topology, transport = make_transport("complete", 6, 64)
    transport.allreduce(make_request(0, 6))
    # One round: each agent sends each other its block and its own two numbers.
    assert set(recorded(transport, topology, "messages").values()) == {1}
    assert set(recorded(transport, topology).values()) == {8 * (6 * 3 + 2)}


@examples(40)
@given(
    st.sampled_from(GRAPH_NAMES),
    st.integers(2, 12),
    st.sampled_from(QUANTISED),
    st.integers(0, 1000),
    st.integers(0, 3),
    st.sampled_from([0.0, 0.3, 3.0]),
)
def test_quantised_sums_are_to_the_bit_what_agents_with_channels_obtain(graph, m, bits, seed, fine, skip_below):
    topology, transport = make_transport(graph, m, bits, seed)
    tree, rng = Tree(topology, bits), np.random.default_rng(seed)
    value, width = rng.normal(size=(m, 6, 3)), 3
    for k in range(6):
        rotation = None
        if k == 3 and fine == 0:
            rotation = rng.normal(size=(width, 2))
            value = value @ rotation
        value = value + 0.5**k * rng.normal(size=value.shape)
        topic = "other" if k == 2 else "gradient"
        request = AllReduce(
            value,
            rng.normal(size=(m, 4)),
            topic,
            skip_below,
            min(fine, value.shape[2]),
            rotation,
            relative_to_previous=k == 5,
        )
        result, sums = transport.allreduce(request), tree.sum(request)
        for own in sums:
            assert own.tobytes() == np.ascontiguousarray(result.value).tobytes()
        np.testing.assert_allclose(result.exact, request.exact.sum(axis=0), rtol=1e-13, atol=1e-13)
    assert recorded(transport, topology) == tree.wire.bytes
    assert recorded(transport, topology, "messages") == tree.wire.messages
    assert transport.traffic().total == sum(tree.wire.bytes.values())


@pytest.mark.parametrize("bits", [64, *QUANTISED])
@pytest.mark.parametrize("graph", GRAPH_NAMES)
def test_a_sum_of_exact_numbers_alone_sends_only_those(graph, bits):
    topology, transport = make_transport(graph, 7, bits)
    result = transport.allreduce(AllReduce(np.zeros((7, 1, 0)), np.arange(21.0).reshape(7, 3), "agreement"))
    assert result.exact.tolist() == [63.0, 70.0, 77.0]
    assert result.value.shape == (1, 0)
    if not uses_gossip(topology, bits):
        assert transport.traffic().total == 2 * 6 * 3 * 8


@examples(40)
@given(st.sampled_from(GRAPH_NAMES), st.integers(1, 20), st.integers(0, 1000))
def test_sums_of_64_bits_are_exact_by_gossip_and_along_a_tree(graph, m, seed):
    request = make_request(seed, m)
    result = make_transport(graph, m, 64, seed)[1].allreduce(request)
    np.testing.assert_allclose(result.value, sum(request.value), rtol=1e-13, atol=1e-13)
    np.testing.assert_allclose(result.exact, sum(request.exact), rtol=1e-13, atol=1e-13)


@pytest.mark.thorough
@pytest.mark.parametrize(("graph", "bits"), one_of(6, ["ring", "star", "random"], QUANTISED))
def test_quantised_sums_of_values_that_converge_converge_to_the_exact_sum(graph, bits):
    transport = make_transport(graph, 9, bits, 4)[1]
    limit, difference = np.random.default_rng(1).normal(size=(2, 9, 12, 3))
    for k in range(90):
        result = transport.allreduce(AllReduce(limit + 0.8**k * difference, np.zeros((9, 0)), "gradient"))
    exact = limit.sum(axis=0)
    assert np.linalg.norm(result.value - exact) <= 1e-8 * np.linalg.norm(exact)


@pytest.mark.parametrize("bits", QUANTISED)
def test_fine_columns_have_sixteen_bits_at_least(bits):
    request = make_request(3, 8, L=40, r=4, fine_columns=2)
    result = make_transport("path", 8, bits)[1].allreduce(request)
    error = np.abs(result.value - request.value.sum(axis=0))
    assert error[:, 2:].max() < 1e-3
    if bits in (2, 4):
        assert error[:, :2].max() > 1e-2


@pytest.mark.parametrize("bits", QUANTISED)
def test_a_reverted_value_has_no_effect_on_the_next(bits):
    straight, reverted = make_transport("random", 6, bits)[1], make_transport("random", 6, bits)[1]
    straight.allreduce(make_request(0, 6))
    reverted.allreduce(make_request(0, 6))
    reverted.allreduce(make_request(1, 6))
    one, other = (
        straight.allreduce(make_request(2, 6)),
        reverted.allreduce(make_request(2, 6, relative_to_previous=True)),
    )
    assert one.value.tobytes() == other.value.tobytes()


def test_topics_do_not_affect_each_other():
    alone, beside = make_transport("random", 6, 4)[1], make_transport("random", 6, 4)[1]
    for k in range(6):
        beside.allreduce(make_request(100 + k, 6, topic="certificate 0"))
        one, other = alone.allreduce(make_request(k, 6)), beside.allreduce(make_request(k, 6))
        assert one.value.tobytes() == other.value.tobytes()


@pytest.mark.parametrize("bits", [64, *QUANTISED])
def test_tasks_of_a_single_agent_are_summed_exactly_and_without_messages(bits):
    _, transport = make_transport("ring", 1, bits)
    request = make_request(0, 5)  # five tasks, one agent
    result = transport.allreduce(request)
    np.testing.assert_allclose(result.value, request.value.sum(axis=0), rtol=1e-14)
    assert transport.n_exchanges == 0
    assert transport.traffic().total == 0


def test_bytes_of_exact_sums_counted_by_hand():
    block, number = 8 * 6 * 3, 8 * 2

    # A star of five: a block and two numbers, up and down along each of four edges.
    topology, transport = make_transport("star", 5, 64)
    transport.allreduce(make_request(0, 5))
    assert set(recorded(transport, topology).values()) == {block + number}
    assert transport.traffic().total == 8 * (block + number)
    assert transport.n_exchanges == 2

    # A path of four: 0-1-2-3 has a tree of height two, four rounds; gossip takes three.
    topology, transport = make_transport("path", 4, 64)
    transport.allreduce(make_request(0, 4))
    assert transport.n_exchanges == 3
    # Along an edge go the numbers of all agents behind it: one, two or three of them.
    sizes = recorded(transport, topology)
    assert sizes[0, 1] == sizes[3, 2] == 3 * block + number
    assert sizes[2, 3] == sizes[1, 0] == 3 * block + 3 * number
    assert transport.traffic().total == 6 * 3 * block + 4 * 3 * number

    # A ring of six has three distinct eigenvalues other than zero, 1, 3 and 4, and a diameter of three.
    topology, transport = make_transport("ring", 6, 64)
    transport.allreduce(make_request(0, 6))
    assert transport.n_exchanges == 3
    assert set(recorded(transport, topology, "messages").values()) == {3}
    assert transport.traffic().total == 12 * 3 * block + 6 * 5 * number


@pytest.mark.parametrize("graph", GRAPH_NAMES)
def test_bytes_of_quantised_sums_counted_by_hand(graph):
    """On any graph, two messages along each of m - 1 edges, and nothing along the others."""
    topology, transport = make_transport(graph, 9, 4, 2)
    for k in range(3):
        transport.allreduce(make_request(k, 9, L=11, r=3))
    # Number of bits, power, three scales, 33 numbers of four bits, and two exact numbers.
    size = 1 + 2 + 3 * 4 + 17 + 2 * 8
    parent = topology.tree.parent
    along = {pair for t in range(9) if parent[t] >= 0 for pair in ((t, int(parent[t])), (int(parent[t]), t))}
    assert recorded(transport, topology) == {
        pair: 3 * size if pair in along else 0 for pair in Wire(graph_of(topology)).bytes
    }
    assert transport.traffic().total == 3 * size * 2 * 8


def test_a_skipped_change_costs_one_byte_per_message_and_the_exact_numbers():
    _, transport = make_transport("random", 9, 4, 2)
    request = make_request(0, 9)
    transport.allreduce(request)
    before = transport.traffic().total
    known = transport.allreduce(AllReduce(request.value, request.exact, "gradient", 1e9)).value
    assert transport.traffic().total - before == 2 * 8 * (1 + 16)
    again = transport.allreduce(AllReduce(2 * request.value, request.exact, "gradient", 1e9)).value
    assert again.tobytes() == known.tobytes()


@pytest.mark.parametrize(("skip_below", "skipped"), [(0.99, False), (1.01, True)])
def test_a_change_is_skipped_exactly_if_its_norm_is_within_skip_below(skip_below, skipped):
    topology, transport = make_transport("path", 2, 16)
    value = np.zeros((2, 5, 2))
    value[topology.tree.order[1]] = 1 / np.sqrt(10)  # the change that goes to the root and back has norm 1
    transport.allreduce(AllReduce(value, np.zeros((2, 0)), "gradient", skip_below))
    assert (transport.traffic().total == 2) == skipped


@pytest.mark.parametrize("bits", [64, 4])
@pytest.mark.parametrize("graph", GRAPH_NAMES)
def test_the_transport_counts_rounds_and_its_table_has_every_edge(graph, bits):
    topology, transport = make_transport(graph, 8, bits, 1)
    for k in range(3):
        transport.allreduce(make_request(k, 8))
    table = transport.traffic().table([f"site {t}" for t in range(8)])
    assert table["bytes"].sum() == transport.traffic().total > 0
    assert len(table) == 2 * len(topology.edges)
    names = {frozenset((f"site {i}", f"site {j}")) for i, j in topology.edges}
    assert {frozenset(pair) for pair in zip(table["sender"], table["receiver"], strict=True)} == names
    if not uses_gossip(topology, bits):
        assert transport.n_exchanges == 3 * topology.tree.rounds


@examples(60)
@given(
    st.sampled_from(GRAPH_NAMES),
    st.integers(1, 9),
    st.sampled_from((64, *QUANTISED)),
    st.integers(0, 3),
    st.integers(0, 4),
    st.booleans(),
    st.floats(-200, 200),
)
def test_no_sum_sends_more_than_the_bound(graph, m, bits, fine, k, average, size):
    _, transport = make_transport(graph, m, bits)
    for seed in range(3):
        request = make_request(seed, m, k=k)
        request = AllReduce(
            10.0**size * request.value,
            request.exact,
            request.topic,
            fine_columns=fine,
            average=np.ones((6, 3)) if average else None,
        )
        before, most = transport.traffic().total, transport.max_request_bytes(request)
        with np.errstate(all="ignore"):  # as the monitor does
            transport.allreduce(request)
        assert transport.traffic().total - before <= most
    assert most == 0 or m > 1


@pytest.mark.parametrize("bits", [64, 4])
@pytest.mark.parametrize("graph", GRAPH_NAMES)
def test_an_average_is_returned_and_costs_bytes_only_with_gossip(graph, bits):
    topology, transport = make_transport(graph, 6, bits)
    average = np.arange(18.0).reshape(6, 3)
    assert transport.allreduce(make_request(0, 6, average=average)).average.tobytes() == average.tobytes()
    _, other = make_transport(graph, 6, bits)
    assert other.allreduce(make_request(0, 6)).average is None
    rounds = len(topology.averaging_roots(GOSSIP_PRECISION)) if uses_gossip(topology, bits) else 0
    extra = transport.traffic().total - other.traffic().total
    assert extra == 2 * len(topology.edges) * rounds * average.nbytes


@pytest.mark.parametrize("bits", [64, 4])
@pytest.mark.parametrize("graph", GRAPH_NAMES)
def test_a_broadcast_is_returned_and_costs_bytes_only_with_gossip(graph, bits):
    topology, transport = make_transport(graph, 6, bits)
    numbers = np.arange(5.0)
    assert transport.allreduce(make_request(0, 6, broadcast=numbers)).broadcast.tobytes() == numbers.tobytes()
    _, other = make_transport(graph, 6, bits)
    assert other.allreduce(make_request(0, 6)).broadcast is None
    extra = transport.traffic().total - other.traffic().total
    assert extra == (5 * numbers.nbytes if uses_gossip(topology, bits) else 0)
    assert recorded(transport, topology, "messages") == recorded(other, topology, "messages")


@pytest.mark.parametrize("bits", QUANTISED)
@pytest.mark.parametrize("graph", GRAPH_NAMES)
def test_quantised_sums_never_use_gossip(graph, bits):
    assert not uses_gossip(make_topology(graph, range(10)), bits)


@examples(60)
@given(st.sampled_from(GRAPH_NAMES), st.integers(2, 40), st.integers(0, 1000))
def test_gossip_is_used_only_where_it_takes_fewer_rounds(graph, m, seed):
    topology, transport = make_transport(graph, m, 64, seed)
    by_gossip = max(len(topology.averaging_roots(GOSSIP_PRECISION)), nx.diameter(graph_of(topology)))
    along_a_tree = 2 * nx.radius(graph_of(topology))
    assert uses_gossip(topology, 64) == (by_gossip < along_a_tree)
    transport.allreduce(make_request(seed, m))
    assert transport.n_exchanges == min(by_gossip, along_a_tree)


@pytest.mark.parametrize("fine", [0, 1, 3])
@pytest.mark.parametrize("bits", QUANTISED)
def test_a_receiver_decodes_what_a_sender_encodes(bits, fine):
    sender, receiver = ChannelSet(bits), ChannelSet(bits)
    for k in range(4):
        request = make_request(k, 1, L=7, fine_columns=fine, relative_to_previous=k == 2)
        sender.prepare(request)
        receiver.prepare(request)
        message, value = sender.encode(request, request.value[0], ROOT)
        assert receiver.decode(request, message, ROOT, (7, 3)).tobytes() == value.tobytes()
        if k == 1:  # both ends may be interrupted
            states = sender.state_dict(), receiver.state_dict()
            sender, receiver = ChannelSet(bits), ChannelSet(bits)
            for end, state in zip((sender, receiver), states, strict=True):
                end.load_state_dict(state)


@pytest.mark.parametrize("fine", [0, 1, 3])
@pytest.mark.parametrize("change", [lambda data: data[:-1], lambda data: data + b"\0", lambda data: b""])
def test_a_message_of_another_size_is_refused(change, fine):
    request = make_request(0, 1, fine_columns=fine)
    message, _ = ChannelSet(4).encode(request, request.value[0], ROOT)
    with pytest.raises(ElmeshError, match="matrix"):
        ChannelSet(4).decode(request, change(message), ROOT, (6, 3))


def test_a_message_with_more_than_its_columns_says_how_long_it_is():
    request = make_request(0, 1, fine_columns=1)
    message, _ = ChannelSet(4).encode(request, request.value[0], ROOT)
    longer = f"^A message of {len(message) + 2} bytes is longer than one of a 6 x 3 matrix\\.$"
    with pytest.raises(ElmeshError, match=longer):
        ChannelSet(4).decode(request, message + b"\0\0", ROOT, (6, 3))


@pytest.mark.parametrize("bits", QUANTISED)
def test_channels_that_resume_continue_as_those_they_were_saved_from(bits):
    """Several senders and topics, coarse and fine columns, and arrays of others in the same state."""
    requests = [make_request(k, 3, fine_columns=1, topic=f"topic {k % 2}") for k in range(4)]
    channels, resumed = ChannelSet(bits), ChannelSet(bits)
    resumed.encode(requests[0], 7 * requests[0].value[0], 5)  # forgotten on resuming
    for request in requests[:2]:
        for sender in (ROOT, 0, 5):
            channels.encode(request, request.value[sender % 3], sender)
            channels.encode(request, request.value[(sender + 1) % 3], sender)
    saved = channels.state_dict()
    assert sorted(saved) == [ROOT, 0, 5]
    # Checkpoints have these names: the topic, coarse (0) or fine (1) columns, and an array of the channel.
    names = [f"channel/topic {k}/{part}/{x}" for k in (0, 1) for part in (0, 1) for x in ("previous", "value")]
    assert sorted(saved[5]) == names
    others = {"U": np.ones(3), "other/x/value": np.ones(1), "channel/previous": np.ones(1)}
    resumed.load_state_dict({sender: {**arrays, **others} for sender, arrays in saved.items()})
    assert {sender: sorted(arrays) for sender, arrays in resumed.state_dict().items()} == {
        sender: sorted(arrays) for sender, arrays in saved.items()
    }
    for request in [replace(request, relative_to_previous=k < 2) for k, request in enumerate(requests)]:
        channels.prepare(request)
        resumed.prepare(request)
        for sender in (ROOT, 0, 5):
            expected, value = channels.encode(request, 2 * request.value[sender % 3], sender)
            message, again = resumed.encode(request, 2 * request.value[sender % 3], sender)
            assert message == expected
            assert again.tobytes() == value.tobytes()


class QueueRelay(Relay):
    """Carries partial sums between threads that stand for processes, and records what was decoded and forwarded."""

    def __init__(self, process, partials, totals, exact_size):
        self._process, self._partials, self._totals, self._exact_size = process, partials, totals, exact_size
        self.sent, self.shared, self.opened, self.forwarded = [], [], [], []

    def send_partial(self, agent, parent, shape, data):
        self.sent.append((agent, parent))
        self._partials[agent].put((shape, data))

    def receive_partial(self, child, shape, size):
        sent_shape, data = self._partials[child].get(timeout=60)
        assert sent_shape == shape
        assert size == (len(data) if self._exact_size else None)
        return data

    def share_total(self, data, shape, size):
        self.shared.append(shape)
        for total in self._totals if data is not None else ():
            total.put(data)
        data = self._totals[self._process].get(timeout=60)
        assert size == (len(data) if self._exact_size else None)
        return data

    def forward_total(self, data, shape):
        self.forwarded.append((data, shape))

    @contextmanager
    def checking(self, sender):
        self.opened.append(sender)
        yield


def requests_in_turn(m):
    """Sums of several kinds: fine columns, a rotation, a rejected value, numbers alone, and one without numbers."""
    first = make_request(0, m, fine_columns=1)
    second = replace(make_request(1, m, fine_columns=1), skip_below=0.5)
    rotation = np.random.default_rng(9).normal(size=(3, 3))
    return [
        first,
        second,
        replace(make_request(2, m, fine_columns=1), relative_to_previous=True),
        make_request(3, m, fine_columns=3, rotation=rotation),
        AllReduce(np.zeros((m, 6, 0)), np.arange(2.0 * m).reshape(m, 2), "numbers"),
        AllReduce(first.value, np.zeros((m, 0)), "gradient"),
        AllReduce(np.zeros((m, 6, 0)), np.zeros((m, 0)), "nothing"),
    ]


@pytest.mark.parametrize("resume", [False, True])
@pytest.mark.parametrize("bits", [64, 2, 8, "auto"])
def test_sums_do_not_depend_to_the_bit_on_how_agents_are_spread_over_processes(bits, resume):
    m, groups = 7, ([0, 3], [1, 4, 6], [2, 5])
    topology = make_topology("random", range(m), 3)
    parent, root = topology.tree.parent.tolist(), int(topology.tree.order[0])
    sent = TrafficLog(topology)
    whole = TreeAllReduce(topology, range(m), bits, sent, Relay())
    requests = requests_in_turn(m)
    expected = [whole.sum(request) for request in requests]
    partials, totals = [Queue() for _ in range(m)], [Queue() for _ in groups]
    relays = [QueueRelay(process, partials, totals, bits == 64) for process in range(len(groups))]

    def run(process):
        own, relay, traffic = groups[process], relays[process], TrafficLog(topology)
        tree, results = TreeAllReduce(topology, own, bits, traffic, relay), []
        try:
            for k, request in enumerate(requests):
                if resume and k == 2:
                    state, tree = tree.channels.state_dict(), TreeAllReduce(topology, own, bits, traffic, relay)
                    tree.channels.load_state_dict(state)
                results.append(tree.sum(replace(request, value=request.value[own], exact=request.exact[own])))
        except Exception:
            for queue in (*partials, *totals):
                queue.put(None)  # so that the others do not wait for this one
            raise
        return tree, results, traffic

    with ThreadPoolExecutor(len(groups)) as threads:
        found = list(threads.map(run, range(len(groups))))
    for own, relay, (tree, results, _) in zip(groups, relays, found, strict=True):
        for result, reference in zip(results, expected, strict=True):
            assert result.value.tobytes() == np.ascontiguousarray(reference.value).tobytes()
            assert result.value.shape == reference.value.shape
            assert result.exact.tobytes() == reference.exact.tobytes()
        remote = sorted(t for t in range(m) if t not in own and parent[t] in own)
        assert tree.remote_senders == remote
        # Every message is decoded in the context of its sender.
        assert sorted(relay.opened) == sorted((remote if root in own else [*remote, ROOT]) * len(requests))
        assert relay.sent == [(t, parent[t]) for t, _ in relay.sent]
        assert sorted({t for t, _ in relay.sent}) == [t for t in own if t != root and parent[t] not in own]
        assert relay.shared == [request.value.shape[1:] for request in requests]
        # All processes forward the same bytes, those of the root.
        assert relay.forwarded == relays[0].forwarded
        assert [shape for _, shape in relay.forwarded] == relay.shared
        assert all(isinstance(data, bytes) for data, _ in relay.forwarded)
        ends = {ROOT, *remote, *(t for t in own if t != root)}
        assert set(tree.channels.state_dict()) == (set() if bits == 64 else ends)
    assert sum(traffic.counts() for *_, traffic in found).tolist() == sent.counts().tolist()


@pytest.mark.parametrize("fine", [0, 2])
@pytest.mark.parametrize("bits", [64, *QUANTISED])
def test_the_bound_on_bytes_is_what_a_sum_sends_where_no_change_is_skipped(bits, fine):
    topology = make_topology("star", range(5))
    traffic = TrafficLog(topology)
    tree = TreeAllReduce(topology, range(5), bits, traffic, Relay())
    request = make_request(0, 5, L=4, r=5, k=3, fine_columns=fine)  # few numbers: an automatic choice is 16 bits
    tree.sum(request)
    # A part without columns still has a header in the bound; exact messages have no header at all.
    coarse, finest = (
        message_size((4, 5 - fine), 16 if bits == "auto" else bits),
        message_size((4, fine), fine_bits(bits)),
    )
    assert tree.max_bytes(request) == 2 * 4 * (coarse + finest + 8 * 3)
    empty = message_size((4, 0), fine_bits(bits)) if not fine else 0
    assert tree.max_bytes(request) - traffic.total == 2 * 4 * (2 if bits == 64 else empty)


@pytest.mark.parametrize("bits", [64, 4])
def test_the_sum_of_one_agent_is_its_own_term(bits):
    topology = make_topology("ring", range(1))
    tree = TreeAllReduce(topology, [0], bits, TrafficLog(topology), Relay())
    request = make_request(0, 1, average=np.ones((6, 3)), broadcast=np.arange(2.0))
    result = tree.sum(request)
    assert result.value.tobytes() == request.value[0].tobytes()
    assert result.exact.tobytes() == request.exact[0].tobytes()
    assert result.average is request.average
    assert result.broadcast is request.broadcast
    assert topology.tree.rounds == tree.max_bytes(request) == 0
    assert tree.remote_senders == []


def test_finely_quantised_columns_have_at_least_sixteen_bits():
    assert [fine_bits(bits) for bits in (2, 4, 8, 16, 32, 64, "auto")] == [16, 16, 16, 16, 32, 64, 16]


def test_agents_of_a_single_process_have_no_relay_to_others():
    with pytest.raises(TypeError, match=r"^Agent 3 is not in this process\.$"):
        Relay().send_partial(1, 3, (2, 2), b"")
    with pytest.raises(TypeError, match=r"^Agent 4 is not in this process\.$"):
        Relay().receive_partial(4, (2, 2), None)


class FixedRelay(Relay):
    """Delivers a fixed message from the child."""

    def __init__(self, message):
        self._message = message

    def receive_partial(self, child, shape, size):
        return self._message


def sum_at_root(message):
    """Return the sum at the root of two agents, the other of which has sent a message."""
    topology = make_topology("path", range(2))
    root = int(topology.tree.order[0])
    tree = TreeAllReduce(topology, [root], 64, TrafficLog(topology), FixedRelay(message))
    return tree.sum(AllReduce(np.ones((1, 4, 3)), np.ones((1, 2)), "topic"))


def test_the_root_adds_the_partial_sum_of_another_process():
    value, exact = np.arange(12.0).reshape(4, 3), np.array([5.0, 7.0])
    result = sum_at_root(value.tobytes() + exact.tobytes())
    assert result.value.tolist() == (1 + value).tolist()
    assert result.exact.tolist() == [6.0, 8.0]


@pytest.mark.parametrize("size", [0, 8, 8 * 13, 8 * 14 - 1, 8 * 15])
def test_a_partial_sum_of_another_size_is_refused(size):
    with pytest.raises(ElmeshError, match=f"{size} bytes is not a sum of a 4 x 3 matrix"):
        sum_at_root(bytes(size))


def check_tree(topology, graph):
    tree = topology.tree
    root = int(tree.order[0])
    assert sorted(tree.order.tolist()) == list(range(topology.n_agents))
    edges = [(t, int(tree.parent[t])) for t in range(topology.n_agents) if t != root]
    assert tree.parent[root] == -1
    assert all(graph.has_edge(*edge) for edge in edges)
    branches = nx.Graph(edges)
    branches.add_node(root)
    assert nx.is_tree(branches)
    place = np.argsort(tree.order)
    assert all(place[parent] < place[t] for t, parent in edges)  # a parent comes before its children
    assert tree.height == max(nx.single_source_shortest_path_length(branches, root).values())
    assert tree.rounds == 2 * tree.height
    return root


@examples(60)
@given(st.integers(1, 40), st.floats(0.02, 0.6), st.integers(0, 10_000))
def test_the_tree_spans_the_graph_from_its_centre_with_the_least_height(m, density, seed):
    graph = nx.gnp_random_graph(m, density, seed)
    parts = [min(part) for part in nx.connected_components(graph)]
    graph.add_edges_from(pairwise(parts))
    topology = make_topology(graph, range(m))
    root = check_tree(topology, graph)
    assert root in nx.center(graph)
    assert topology.tree.height == nx.radius(graph)
    assert topology.diameter == nx.diameter(graph)


@pytest.mark.parametrize("graph", GRAPH_NAMES)
@pytest.mark.parametrize("m", [1, 2, 3, 10])
def test_every_named_graph_has_a_spanning_tree(graph, m):
    topology = make_topology(graph, range(m))
    check_tree(topology, graph_of(topology))


@pytest.mark.parametrize(("graph", "height"), [("path", 1250), ("ring", 1250), ("star", 1)])
def test_the_tree_of_thousands_of_agents_has_the_least_height(graph, height):
    topology = make_topology(graph, range(2501))
    check_tree(topology, graph_of(topology))
    assert topology.tree.height == height


def test_the_tree_of_a_large_random_graph_is_no_higher_than_its_diameter():
    topology = make_topology("random", range(2200), 5)
    graph = graph_of(topology)
    check_tree(topology, graph)
    far = max(nx.single_source_shortest_path_length(graph, 0).items(), key=lambda item: item[1])[0]
    span = max(nx.single_source_shortest_path_length(graph, far).values())  # no more than the diameter
    assert -(-span // 2) <= topology.tree.height <= span
    assert topology.diameter >= span
