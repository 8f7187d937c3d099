"""Graphs compared with networkx, their spectra with NumPy, and their averaging schedules carried out."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest
import scipy.linalg
from hypothesis import example, given
from hypothesis import strategies as st

from elmesh.comm import graph as graph_module
from elmesh.comm.graph import GRAPH_NAMES, make_topology
from elmesh.errors import ElmeshError
from helpers.examples import examples
from helpers.marks import one_of

SIZES = range(1, 31)

# networkx's generators; for one or two nodes they differ from ours in the ring alone.
GENERATORS = {
    "ring": lambda m: nx.cycle_graph(m) if m > 2 else nx.path_graph(m),
    "path": nx.path_graph,
    "star": lambda m: nx.star_graph(m - 1),
    "complete": nx.complete_graph,
}


def as_networkx(topology):
    return topology.to_networkx(range(topology.n_agents))


def remaining_error(topology, roots, dtype=np.float64):
    """Return the norm of the schedule's effect on deviations from the average, by networkx's Laplacian."""
    m = topology.n_agents
    laplacian = nx.laplacian_matrix(as_networkx(topology), nodelist=range(m)).toarray().astype(dtype)
    x = np.eye(m, dtype=dtype)
    for root in roots:
        x = x - laplacian @ x / dtype(root)
    return np.linalg.norm((x - dtype(1) / m).astype(float), ord=2)


def assert_precise(topology, precision):
    """Check the schedule itself, and that rounding to doubles adds no more than an epsilon per agent and round."""
    roots = topology.averaging_roots(precision)
    assert remaining_error(topology, roots, np.longdouble) <= precision * (1 + 1e-6)
    rounding = topology.n_agents * len(roots) * np.finfo(float).eps
    assert remaining_error(topology, roots) <= precision * (1 + 1e-6) + rounding


@st.composite
def connected_graphs(draw, most=25):
    """Draw a random tree, which connects all nodes, and further edges."""
    m = draw(st.integers(2, most))
    tree = [(draw(st.integers(0, i - 1)), i) for i in range(1, m)]
    node = st.integers(0, m - 1)
    more = draw(st.lists(st.tuples(node, node).filter(lambda pair: pair[0] != pair[1]), max_size=2 * m))
    graph = nx.Graph(tree + more)
    graph.add_nodes_from(range(m))
    return graph


@pytest.mark.parametrize("m", SIZES)
@pytest.mark.parametrize("name", GRAPH_NAMES)
def test_a_named_graph_is_connected_and_simple_and_agrees_with_networkx(name, m):
    topology = make_topology(name, range(m), seed=m)
    edges = topology.edges.tolist()
    assert edges == sorted(edges)
    assert len({tuple(edge) for edge in edges}) == len(edges)
    assert all(0 <= i < j < m for i, j in edges)
    graph = nx.Graph(edges)
    graph.add_nodes_from(range(m))
    assert nx.is_connected(graph)
    assert topology.degree.tolist() == [graph.degree[i] for i in range(m)]
    assert [topology.neighbors(i).tolist() for i in range(m)] == [sorted(graph[i]) for i in range(m)]
    np.testing.assert_array_equal(topology.adjacency.toarray(), nx.to_numpy_array(graph, nodelist=range(m)))
    receiver, sender = topology.ends
    assert list(zip(receiver.tolist(), sender.tolist(), strict=True)) == [
        (i, j) for i in range(m) for j in sorted(graph[i])
    ]


@pytest.mark.parametrize("m", SIZES)
@pytest.mark.parametrize("name", GENERATORS)
def test_a_named_graph_has_the_edges_of_networkx_s_generator(name, m):
    assert nx.utils.graphs_equal(as_networkx(make_topology(name, range(m))), nx.Graph(GENERATORS[name](m)))


@pytest.mark.parametrize("side", range(1, 6))
def test_a_grid_of_a_square_number_is_a_square_lattice(side):
    lattice = nx.convert_node_labels_to_integers(nx.grid_2d_graph(side, side), ordering="sorted")
    assert nx.utils.graphs_equal(as_networkx(make_topology("grid", range(side**2))), lattice)


def test_the_random_graph_depends_on_its_seed():
    edges = [make_topology("random", range(20), seed=seed).edges.tolist() for seed in (1, 1, 2)]
    assert edges[0] == edges[1] != edges[2]


@pytest.mark.parametrize("name", GRAPH_NAMES)
def test_agents_are_connected_in_the_order_of_their_labels(name):
    labels = ["york", "leeds", "hull", "ripon", "bath"]
    numbered = make_topology(name, range(5), seed=3)
    expected = {frozenset((labels[i], labels[j])) for i, j in numbered.edges}
    assert {frozenset(edge) for edge in make_topology(name, labels, seed=3).to_networkx(labels).edges} == expected


# ------------------------------------------------------------------------------------------------ graphs of the user


@pytest.mark.thorough
@given(graph=connected_graphs(), order=st.randoms(use_true_random=False))
def test_the_nodes_of_a_graph_are_labels_or_numbers(graph, order):
    m = len(graph)
    labels = [f"site {i}" for i in range(m)]
    named = nx.relabel_nodes(graph, dict(enumerate(labels)))
    # The order of nodes, of edges and of the ends of an edge has no meaning.
    edges = [edge if order.random() < 0.5 else edge[::-1] for edge in named.edges]
    order.shuffle(edges)
    shuffled = nx.Graph(edges)
    topologies = [make_topology(g, labels) for g in (graph, named, shuffled)]
    for topology in topologies:
        np.testing.assert_array_equal(topology.edges, topologies[0].edges)
        assert nx.utils.graphs_equal(topology.to_networkx(labels), named)


def test_integers_that_are_labels_are_read_as_labels():
    # Read as places in the list, 1 would be the task 2.
    topology = make_topology(nx.path_graph([1, 2, 0]), [2, 1, 0])
    assert topology.edges.tolist() == [[0, 1], [0, 2]]


def test_a_multigraph_counts_a_repeated_edge_once():
    graph = nx.MultiGraph([("a", "b"), ("b", "a"), ("b", "c")])
    assert make_topology(graph, ["a", "b", "c"]).edges.tolist() == [[0, 1], [1, 2]]


def broken(*edges, nodes=()):
    graph = nx.Graph(edges)
    graph.add_nodes_from(nodes)
    return graph


@pytest.mark.parametrize(
    ("graph", "message"),
    [
        ("torus", r"'torus' is unknown; use one of ring, path, star, complete, random, grid, or a networkx graph"),
        (nx.DiGraph([("a", "b"), ("b", "c")]), r"directed; .* pass an undirected networkx.Graph"),
        (broken(("a", "b"), nodes="c"), r"not connected: .* 2 parts, \{a, b\}, \{c\}. Add edges"),
        (nx.path_graph(4), r"has 4 nodes but there are 3 tasks; each task is one node"),
        (broken(("a", "b")), r"has 2 nodes but there are 3 tasks"),
        (nx.Graph(), r"has 0 nodes but there are 3 tasks"),
        (broken(("a", "b"), ("b", "c"), ("c", "c"), ("a", "a")), r"self-loops at a, c; remove them"),
        (nx.path_graph(["a", "b", "z"]), r"nodes are not the tasks: z are unknown. .* number them 0 to 2"),
        (nx.path_graph([1, 2, 3]), r"nodes are not the tasks: 1, 2, 3 are unknown"),
        ([("a", "b"), ("b", "c")], r"graph must be a name \(ring, .*\) or a networkx.Graph, not list"),
        (None, r"not NoneType"),
        (np.ones((3, 3)), r"not ndarray"),
    ],
)
def test_an_invalid_graph_is_refused_with_advice(graph, message):
    with pytest.raises(ElmeshError, match=message):
        make_topology(graph, ["a", "b", "c"])


def test_a_message_names_the_first_parts_and_members_only():
    graph = nx.disjoint_union_all([nx.path_graph(12)] + [nx.path_graph(1)] * 7)
    with pytest.raises(ElmeshError, match=r"8 parts, \{0, 1, 2, 3, 4, 5, 6, 7, \.\.\.\}, \{12\}, .* and 3 more\. Add"):
        make_topology(graph, range(19))


# ---------------------------------------------------------------------------------------------------------- spectrum


@pytest.mark.parametrize("m", [2, 3, 4, 9, 16, 30])
@pytest.mark.parametrize("name", GRAPH_NAMES)
def test_the_spread_is_the_smallest_and_the_largest_eigenvalue_of_the_laplacian(name, m):
    topology = make_topology(name, range(m), seed=1)
    laplacian = nx.laplacian_matrix(as_networkx(topology)).toarray().astype(float)
    values = np.sort(np.linalg.eigvalsh(laplacian))
    assert topology.spread == pytest.approx((values[1], values[-1]), rel=1e-10)


@pytest.mark.parametrize("m", [5, 12, 30, 100])
@pytest.mark.parametrize("name", GRAPH_NAMES)
def test_above_the_dense_limit_the_spread_has_an_upper_bound(name, m, monkeypatch):
    dense = make_topology(name, range(m)).spread
    monkeypatch.setattr(graph_module, "DENSE_LIMIT", 3)
    sparse = make_topology(name, range(m))
    monkeypatch.setattr(scipy.linalg, "eigvalsh", lambda _: pytest.fail("the dense spectrum was computed"))
    assert sparse.spread[0] == pytest.approx(dense[0], rel=1e-7)
    assert dense[1] * (1 - 1e-12) <= sparse.spread[1] <= 2 * dense[1]


# --------------------------------------------------------------------------------------------------------- averaging


@pytest.mark.thorough
@pytest.mark.parametrize("name", one_of(2, GRAPH_NAMES))
@pytest.mark.parametrize("sizes", [SIZES, pytest.param((60, 200), marks=pytest.mark.slow)], ids=["small", "large"])
def test_the_schedule_averages_to_the_given_precision_on_every_named_graph(name, sizes):
    for m in sizes:
        topology = make_topology(name, range(m), seed=m)
        for precision in (1e-3, 1e-6, 1e-10):
            error = remaining_error(topology, topology.averaging_roots(precision))
            assert error <= precision * (1 + 1e-6), (m, precision)


@pytest.mark.thorough
@given(graph=connected_graphs(), precision=st.sampled_from([1e-3, 1e-6, 1e-10]))
def test_the_schedule_averages_to_the_given_precision_on_any_connected_graph(graph, precision):
    topology = make_topology(graph, range(len(graph)))
    assert_precise(topology, precision)


@examples(30)
@given(seed=st.integers(0, 10_000), m=st.integers(15, 60))
@example(seed=2571, m=51)
def test_eigenvalues_that_nearly_coincide_leave_the_average_precise(seed, m):
    topology = make_topology(nx.random_labeled_tree(m, seed=seed), range(m))
    assert_precise(topology, 1e-10)


@pytest.mark.parametrize("name", GRAPH_NAMES)
def test_above_the_dense_limit_the_schedule_averages_too(name, monkeypatch):
    monkeypatch.setattr(graph_module, "DENSE_LIMIT", 3)
    topology = make_topology(name, range(24), seed=5)
    assert remaining_error(topology, topology.averaging_roots(1e-6)) <= 1e-6 * (1 + 1e-6)


@pytest.mark.parametrize("m", range(3, 31))
def test_the_schedule_has_one_round_per_distinct_eigenvalue(m):
    rounds = {name: len(make_topology(name, range(m)).averaging_roots(1e-8)) for name in ("star", "complete", "ring")}
    assert rounds == {"star": 2, "complete": 1, "ring": m // 2}


def test_no_schedule_takes_more_rounds_than_chebyshev_s():
    for name in GRAPH_NAMES:
        topology = make_topology(name, range(50), seed=2)
        low, high = topology.spread
        if high > low * (1 + 1e-9):
            most = np.arccosh(1e6) / np.arccosh((high + low) / (high - low))
            assert len(topology.averaging_roots(1e-6)) <= np.ceil(most), name


def test_a_single_agent_has_an_empty_schedule():
    assert make_topology("ring", ["only"]).averaging_roots(1e-6) == ()


@pytest.mark.thorough
def test_a_schedule_that_overflows_is_discarded_without_a_warning():
    topology = make_topology(nx.random_labeled_tree(300, seed=0), range(300))
    assert remaining_error(topology, topology.averaging_roots(1e-6)) <= 1e-6 * (1 + 1e-6)
