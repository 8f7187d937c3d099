"""Sums over a graph: what agents with nothing but their neighbours' messages come by, and every byte of it."""

from __future__ import annotations

from itertools import pairwise

import networkx as nx
import numpy as np
import pytest
from elmesh.run.local import StackedLink
from hypothesis import given, settings
from hypothesis import strategies as st

from elmesh.comm.allreduce import PRECISION, StackedSums, by_mixing
from elmesh.comm.codec import Channel
from elmesh.comm.graph import GRAPH_NAMES, make_topology
from elmesh.comm.requests import Total
from elmesh.comm.traffic import Ledger

COARSE = (2, 4, 8, 16, 32, "auto")


def request(seed, m, L=6, r=3, k=2, **other):
    rng = np.random.default_rng(seed)
    return Total(rng.normal(size=(m, L, r)), rng.normal(size=(m, k)), other.pop("topic", "gradient"), **other)


def summing(graph, m, bits, seed=0):
    topology = make_topology(graph, range(m), seed)
    ledger = Ledger(topology)
    return topology, ledger, StackedSums(topology, bits, ledger)


def graph_of(topology):
    return topology.to_networkx(range(topology.n_agents))


def booked(ledger, topology, column="bytes"):
    """What the ledger holds, as {(speaker, hearer): count}."""
    table = ledger.table(range(topology.n_agents))
    return dict(zip(zip(table["speaker"].tolist(), table["hearer"].tolist(), strict=True), table[column], strict=True))


class Wire:
    """Both directions of every edge of a networkx graph, and what went along them."""

    def __init__(self, graph):
        self.graph = graph
        self.bytes = {pair: 0 for i, j in graph.edges for pair in ((i, j), (j, i))}
        self.messages = dict.fromkeys(self.bytes, 0)

    def send(self, speaker, hearer, size):
        self.bytes[speaker, hearer] += size  # a KeyError is a message between strangers
        self.messages[speaker, hearer] += 1


def mix(values, wire, roots):
    """Agents that know their degree and the schedule average their values; returns one sum an agent."""
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
    """Agents pass on what they hear in the messages they send anyway, each piece of news once to everybody.

    The graph is public, so all know who tells whom: of the neighbours nearer to where it comes from, the first.
    """
    known = {i: {i: numbers[i]} for i in wire.graph}
    hops = dict(nx.all_pairs_shortest_path_length(wire.graph))
    for distance in range(1, nx.diameter(wire.graph) + 1):
        for source in wire.graph:
            for hearer in (i for i in wire.graph if hops[source][i] == distance):
                speaker = min(j for j in wire.graph[hearer] if hops[source][j] < distance)
                known[hearer][source] = known[speaker][source]
                wire.bytes[speaker, hearer] += numbers[source].nbytes
    return [sum(own[k] for k in sorted(own)) for own in known.values()]


def prepare(channel, total):
    """What both ends do before a message: take back the last one, and give what is known other columns."""
    if total.undo:
        channel.undo()
    if total.turn is not None:
        channel.turn(total.turn)


class TreeAgent:
    """One agent of a tree: channels to and from its parent and its children, told and heard by topic."""

    def __init__(self, number, parent, bits):
        self.number, self.parent, self.children = number, parent, []
        self._bits, self._channels = bits, {}

    def channel(self, topic, direction, peer, fine):
        bits = (max(self._bits, 16) if isinstance(self._bits, int) else 16) if fine else self._bits
        return self._channels.setdefault((topic, direction, peer, fine), Channel(bits))

    def parts(self, value, total, direction, peer):
        """The coarse and the fine columns, each with the channel it goes through; what is empty is not told."""
        coarse = value.shape[1] - total.fine
        for part, fine in ((value[:, :coarse], False), (value[:, coarse:], True)):
            if part.size:
                yield part, self.channel(total.topic, direction, peer, fine)

    def say(self, value, total, direction, peer):
        messages = []
        for part, channel in self.parts(value, total, direction, peer):
            prepare(channel, total)
            messages.append(channel.tell(part, total.ignore))
        return messages

    def hear(self, messages, like, total, direction, peer):
        heard = []
        for message, (part, channel) in zip(messages, self.parts(like, total, direction, peer), strict=True):
            prepare(channel, total)
            heard.append(channel.hear(message, part.shape))
        return np.hstack(heard) if heard else like


class Tree:
    """Agents that add up along the tree of a topology, one message up and the root's own words down."""

    def __init__(self, topology, bits):
        self.order = topology.tree.order.tolist()
        self.agents = [TreeAgent(t, int(topology.tree.parent[t]), bits) for t in range(topology.n_agents)]
        for agent in self.agents:
            if agent.parent >= 0:
                self.agents[agent.parent].children.append(agent.number)
        self.wire = Wire(graph_of(topology))

    def add_up(self, total):
        beside = 8 * total.numbers.shape[1]
        partial, words = list(total.value), {}
        for t in reversed(self.order):
            agent = self.agents[t]
            for child in sorted(agent.children, key=self.order.index, reverse=True):
                heard = agent.hear(words[child], total.value[t], total, "up", child)
                partial[t] = partial[t] + heard
            if agent.parent >= 0:
                words[t] = agent.say(partial[t], total, "up", agent.parent)
                self.wire.send(t, agent.parent, sum(map(len, words[t])) + beside)
        root = self.agents[self.order[0]]
        spoken = root.say(partial[root.number], total, "down", "all")
        told = [channel.known for _, channel in root.parts(total.value[0], total, "down", "all")]
        sums = {root.number: np.hstack(told)} if spoken else dict.fromkeys(self.order, partial[root.number])
        for t in self.order[1:]:
            # Every agent passes on the bytes it heard, as they are.
            self.wire.send(self.agents[t].parent, t, sum(map(len, spoken)) + beside)
            if spoken:
                sums[t] = self.agents[t].hear(spoken, total.value[t], total, "down", "all")
        return [sums[t] for t in range(len(self.agents))]


@settings(max_examples=30)
@given(st.sampled_from(["ring", "path", "complete", "grid"]), st.integers(2, 14), st.integers(0, 1000))
def test_mixed_sums_are_what_agents_come_by_with_their_neighbours_alone(graph, m, seed):
    topology, ledger, sums = summing(graph, m, 64)
    if not by_mixing(topology, 64):
        return
    total = request(seed, m)
    answer = sums.add_up(total)
    wire = Wire(graph_of(topology))
    roots = topology.averaging_roots(PRECISION)
    apart = np.linalg.norm(total.value - total.value.mean(axis=0))
    for own in mix(total.value, wire, roots):
        # To within the precision of the average, m times for the sum, and rounding.
        assert np.linalg.norm(own - answer.value) <= 2 * m * (PRECISION * apart + 1e-14)
    everybody = flood(total.numbers, wire)
    assert len({own.tobytes() for own in everybody}) == 1
    np.testing.assert_allclose(answer.numbers, everybody[0], rtol=1e-13, atol=1e-13)
    assert booked(ledger, topology) == wire.bytes
    assert booked(ledger, topology, "messages") == wire.messages
    assert sums.rounds == len(roots) >= topology.diameter


def test_where_everybody_is_everybodys_neighbour_a_sum_takes_one_message_to_each():
    topology, ledger, sums = summing("complete", 6, 64)
    total = request(0, 6)
    sums.add_up(total)
    # One round: each agent tells each other its block and its own two numbers, and that is all.
    assert set(booked(ledger, topology, "messages").values()) == {1}
    assert set(booked(ledger, topology).values()) == {8 * (6 * 3 + 2)}


@settings(max_examples=40)
@given(
    st.sampled_from(GRAPH_NAMES),
    st.integers(2, 12),
    st.sampled_from(COARSE),
    st.integers(0, 1000),
    st.integers(0, 3),
    st.sampled_from([0.0, 0.3, 3.0]),
)
def test_coarse_sums_over_a_tree_are_bit_for_bit_what_agents_with_channels_come_by(graph, m, bits, seed, fine, ignore):
    topology, ledger, sums = summing(graph, m, bits, seed)
    tree, rng = Tree(topology, bits), np.random.default_rng(seed)
    value, width = rng.normal(size=(m, 6, 3)), 3
    for k in range(6):
        turn = None
        if k == 3 and fine == 0:
            turn = rng.normal(size=(width, 2))
            value = value @ turn
        value = value + 0.5**k * rng.normal(size=value.shape)
        topic = "other" if k == 2 else "gradient"
        total = Total(value, rng.normal(size=(m, 4)), topic, ignore, min(fine, value.shape[2]), turn, undo=k == 5)
        answer, everybody = sums.add_up(total), tree.add_up(total)
        for own in everybody:
            assert own.tobytes() == np.ascontiguousarray(answer.value).tobytes()
        np.testing.assert_allclose(answer.numbers, total.numbers.sum(axis=0), rtol=1e-13, atol=1e-13)
    assert booked(ledger, topology) == tree.wire.bytes
    assert booked(ledger, topology, "messages") == tree.wire.messages
    assert ledger.total == sum(tree.wire.bytes.values())


@pytest.mark.parametrize("bits", [64, *COARSE])
@pytest.mark.parametrize("graph", GRAPH_NAMES)
def test_a_sum_of_nothing_but_numbers_is_exact_and_costs_the_numbers_alone(graph, bits):
    topology, ledger, sums = summing(graph, 7, bits)
    total = Total(np.zeros((7, 1, 0)), np.arange(21.0).reshape(7, 3), "agreement")
    answer = sums.add_up(total)
    assert answer.numbers.tolist() == [63.0, 70.0, 77.0]
    assert answer.value.shape == (1, 0)
    if not by_mixing(topology, bits):
        assert ledger.total == 2 * 6 * 3 * 8


@settings(max_examples=25)
@given(st.sampled_from(GRAPH_NAMES), st.integers(1, 20), st.integers(0, 1000))
def test_sums_of_64_bits_are_exact_whichever_way_they_go(graph, m, seed):
    total = request(seed, m)
    answer = summing(graph, m, 64, seed)[2].add_up(total)
    np.testing.assert_allclose(answer.value, sum(total.value), rtol=1e-13, atol=1e-13)
    np.testing.assert_allclose(answer.numbers, sum(total.numbers), rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("bits", COARSE)
@pytest.mark.parametrize("graph", ["ring", "star", "random"])
def test_coarse_sums_of_values_that_settle_settle_on_the_exact_sum(graph, bits):
    sums = summing(graph, 9, bits, 4)[2]
    limit, way = np.random.default_rng(1).normal(size=(2, 9, 12, 3))
    for k in range(90):
        answer = sums.add_up(Total(limit + 0.8**k * way, np.zeros((9, 0)), "gradient"))
    exact = limit.sum(axis=0)
    assert np.linalg.norm(answer.value - exact) <= 1e-8 * np.linalg.norm(exact)


@pytest.mark.parametrize("bits", COARSE)
def test_fine_columns_are_known_after_one_message_as_if_they_had_sixteen_bits(bits):
    total = request(3, 8, L=40, r=4, fine=2)
    answer = summing("path", 8, bits)[2].add_up(total)
    error = np.abs(answer.value - total.value.sum(axis=0))
    assert error[:, 2:].max() < 1e-3
    if bits in (2, 4):
        assert error[:, :2].max() > 1e-2


@pytest.mark.parametrize("bits", COARSE)
def test_a_value_that_led_nowhere_leaves_no_trace_where_it_is_taken_back(bits):
    straight, astray = summing("random", 6, bits)[2], summing("random", 6, bits)[2]
    straight.add_up(request(0, 6))
    astray.add_up(request(0, 6))
    astray.add_up(request(1, 6))
    one, other = straight.add_up(request(2, 6)), astray.add_up(request(2, 6, undo=True))
    assert one.value.tobytes() == other.value.tobytes()


def test_topics_do_not_disturb_each_other():
    alone, beside = summing("random", 6, 4)[2], summing("random", 6, 4)[2]
    for k in range(6):
        beside.add_up(request(100 + k, 6, topic="certificate 0"))
        one, other = alone.add_up(request(k, 6)), beside.add_up(request(k, 6))
        assert one.value.tobytes() == other.value.tobytes()


@pytest.mark.parametrize("bits", [64, *COARSE])
def test_values_in_one_place_are_added_up_exactly_and_for_nothing(bits):
    _, ledger, sums = summing("ring", 1, bits)
    total = request(0, 5)  # five tasks, one place
    answer = sums.add_up(total)
    np.testing.assert_allclose(answer.value, total.value.sum(axis=0), rtol=1e-14)
    assert sums.rounds == 0
    assert ledger.total == 0


def test_bytes_of_exact_sums_counted_by_hand():
    block, number = 8 * 6 * 3, 8 * 2

    # A star of five: a block and two numbers, up and down along each of four edges.
    topology, ledger, sums = summing("star", 5, 64)
    sums.add_up(request(0, 5))
    assert set(booked(ledger, topology).values()) == {block + number}
    assert ledger.total == 8 * (block + number)
    assert sums.rounds == 2

    # A path of four: 0-1-2-3 has a tree of height two, four rounds; mixing takes three.
    topology, ledger, sums = summing("path", 4, 64)
    sums.add_up(request(0, 4))
    assert sums.rounds == 3
    # Along an edge go the numbers of all that are behind it: one, two or three of them.
    assert booked(ledger, topology)[0, 1] == booked(ledger, topology)[3, 2] == 3 * block + number
    assert booked(ledger, topology)[2, 3] == booked(ledger, topology)[1, 0] == 3 * block + 3 * number
    assert ledger.total == 6 * 3 * block + 4 * 3 * number

    # A ring of six has three distinct eigenvalues other than zero, 1, 3 and 4, and a diameter of three.
    topology, ledger, sums = summing("ring", 6, 64)
    sums.add_up(request(0, 6))
    assert sums.rounds == 3
    assert set(booked(ledger, topology, "messages").values()) == {3}
    assert ledger.total == 12 * 3 * block + 6 * 5 * number


@pytest.mark.parametrize("graph", GRAPH_NAMES)
def test_bytes_of_coarse_sums_counted_by_hand(graph):
    """Ring, path, random: whatever the graph, two messages along each of m - 1 edges, and nothing along others."""
    topology, ledger, sums = summing(graph, 9, 4, 2)
    for k in range(3):
        sums.add_up(request(k, 9, L=11, r=3))
    # A mark, a power, three scales, 33 numbers of four bits; beside them two numbers, exactly.
    size = 1 + 2 + 3 * 4 + 17 + 2 * 8
    parent = topology.tree.parent
    along = {pair for t in range(9) if parent[t] >= 0 for pair in ((t, int(parent[t])), (int(parent[t]), t))}
    assert booked(ledger, topology) == {
        pair: 3 * size if pair in along else 0 for pair in Wire(graph_of(topology)).bytes
    }
    assert ledger.total == 3 * size * 2 * 8


def test_what_need_not_be_told_costs_a_byte_a_message_and_the_numbers():
    _, ledger, sums = summing("random", 9, 4, 2)
    total = request(0, 9)
    sums.add_up(total)
    before, known = ledger.total, sums.add_up(Total(total.value, total.numbers, "gradient", 1e9)).value
    assert ledger.total - before == 2 * 8 * (1 + 16)
    again = sums.add_up(Total(2 * total.value, total.numbers, "gradient", 1e9)).value
    assert again.tobytes() == known.tobytes()


@pytest.mark.parametrize("bits", [64, 4])
@pytest.mark.parametrize("graph", GRAPH_NAMES)
def test_the_link_counts_rounds_and_bytes_and_the_table_adds_up(graph, bits):
    topology = make_topology(graph, range(8), 1)
    link = StackedLink(topology, bits)
    for k in range(3):
        link.add_up(request(k, 8))
    table = link.ledger.table([f"site {t}" for t in range(8)])
    assert table["bytes"].sum() == link.bytes_sent > 0
    assert len(table) == 2 * len(topology.edges)
    names = {frozenset((f"site {i}", f"site {j}")) for i, j in topology.edges}
    assert {frozenset(pair) for pair in zip(table["speaker"], table["hearer"], strict=True)} == names
    if not by_mixing(topology, bits):
        assert link.n_exchanges == 3 * topology.tree.rounds


@settings(max_examples=60)
@given(
    st.sampled_from(GRAPH_NAMES),
    st.integers(1, 9),
    st.sampled_from((64, *COARSE)),
    st.integers(0, 3),
    st.integers(0, 4),
    st.booleans(),
    st.floats(-200, 200),
)
def test_no_sum_takes_more_than_was_foretold(graph, m, bits, fine, k, same, size):
    _, ledger, sums = summing(graph, m, bits)
    for seed in range(3):
        total = request(seed, m, k=k, fine=fine, same=np.ones((6, 3)) if same else None)
        total = Total(10.0**size * total.value, total.numbers, total.topic, fine=total.fine, same=total.same)
        before, most = ledger.total, sums.most_bytes(total)
        with np.errstate(all="ignore"):  # as whoever drives a solver does
            sums.add_up(total)
        assert ledger.total - before <= most
    assert most == 0 or m > 1


@pytest.mark.parametrize("bits", [64, 4])
@pytest.mark.parametrize("graph", GRAPH_NAMES)
def test_what_all_agents_hold_alike_comes_back_and_costs_something_only_where_sums_are_mixed(graph, bits):
    topology, ledger, sums = summing(graph, 6, bits)
    same = np.arange(18.0).reshape(6, 3)
    assert sums.add_up(request(0, 6, same=same)).same.tobytes() == same.tobytes()
    with_it, (_, alone, others) = ledger.total, summing(graph, 6, bits)
    assert others.add_up(request(0, 6)).same is None
    mixes = len(topology.averaging_roots(PRECISION)) if by_mixing(topology, bits) else 0
    assert with_it - alone.total == 2 * len(topology.edges) * mixes * same.nbytes


@pytest.mark.parametrize("bits", COARSE)
@pytest.mark.parametrize("graph", GRAPH_NAMES)
def test_coarse_sums_never_mix(graph, bits):
    assert not by_mixing(make_topology(graph, range(10)), bits)


@settings(max_examples=60)
@given(st.sampled_from(GRAPH_NAMES), st.integers(2, 40), st.integers(0, 1000))
def test_sums_are_mixed_only_where_that_takes_fewer_rounds(graph, m, seed):
    topology = make_topology(graph, range(m), seed)
    mixing = max(len(topology.averaging_roots(PRECISION)), nx.diameter(graph_of(topology)))
    along_a_tree = 2 * nx.radius(graph_of(topology))
    assert by_mixing(topology, 64) == (mixing < along_a_tree)
    assert summing(graph, m, 64, seed)[2].rounds == min(mixing, along_a_tree)


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


@settings(max_examples=60)
@given(st.integers(1, 40), st.floats(0.02, 0.6), st.integers(0, 10_000))
def test_the_tree_spans_the_graph_from_a_centre_of_it_and_none_is_lower(m, density, seed):
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
def test_the_tree_of_every_named_graph_is_one(graph, m):
    topology = make_topology(graph, range(m))
    check_tree(topology, graph_of(topology))


@pytest.mark.parametrize(("graph", "height"), [("path", 1250), ("ring", 1250), ("star", 1)])
def test_the_tree_of_thousands_of_agents_is_as_low(graph, height):
    topology = make_topology(graph, range(2501))
    check_tree(topology, graph_of(topology))
    assert topology.tree.height == height


def test_the_tree_of_thousands_of_agents_at_random_is_hardly_higher_than_the_lowest():
    topology = make_topology("random", range(2200), 5)
    graph = graph_of(topology)
    check_tree(topology, graph)
    far = max(nx.single_source_shortest_path_length(graph, 0).items(), key=lambda item: item[1])[0]
    span = max(nx.single_source_shortest_path_length(graph, far).values())  # no more than the diameter
    assert -(-span // 2) <= topology.tree.height <= span
    assert topology.diameter >= span
