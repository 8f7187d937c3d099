"""Agents are spread evenly over ranks, neighbours together, with no more cut edges than equal runs have."""

from __future__ import annotations

import importlib.util
import sys

import networkx as nx
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from elmesh.comm.graph import GRAPH_NAMES, Topology, make_topology
from elmesh.errors import ElmeshError
from elmesh.run.placement import check_ranks, cut_edges, place_agents

needs_metis = pytest.mark.skipif(
    importlib.util.find_spec("pymetis") is None, reason='needs pymetis: pip install "elmesh[mpi]"'
)


@st.composite
def topologies(draw, most: int = 40) -> Topology:
    """Draw any connected graph: a random tree, and further edges."""
    m = draw(st.integers(1, most))
    edges = {(draw(st.integers(0, t - 1)), t) for t in range(1, m)}
    ends = st.tuples(st.integers(0, m - 1), st.integers(0, m - 1))
    edges |= {(min(pair), max(pair)) for pair in draw(st.lists(ends, max_size=2 * m)) if pair[0] != pair[1]}
    return Topology(m, np.array(sorted(edges), dtype=np.intp).reshape(-1, 2))


def crossing(topology: Topology, ranks: np.ndarray) -> int:
    return sum(ranks[i] != ranks[j] for i, j in topology.edges.tolist())


@given(topologies(), st.data())
def test_every_rank_has_an_agent_and_none_has_many_more_than_its_share(topology, data):
    m = topology.n_agents
    n_ranks = data.draw(st.integers(1, m))
    sizes = np.bincount(place_agents(topology, n_ranks), minlength=n_ranks)
    assert len(sizes) == n_ranks
    assert sizes.min() >= 1
    assert sizes.sum() == m
    assert sizes.max() <= max(-(-m // n_ranks), 1.15 * m / n_ranks)


@pytest.mark.thorough
@given(topologies(), st.data())
def test_no_more_edges_are_cut_than_by_equal_runs(topology, data):
    m = topology.n_agents
    n_ranks = data.draw(st.integers(1, m))
    ranks = place_agents(topology, n_ranks)
    assert cut_edges(topology, ranks) == crossing(topology, ranks)
    # Runs whose lengths differ by one at most, wherever the longer ones are put first.
    lengths = [len(part) for part in np.array_split(np.arange(m), n_ranks)]
    assert crossing(topology, ranks) <= crossing(topology, np.repeat(np.arange(n_ranks), lengths))


@given(topologies(), st.data())
def test_the_placement_is_deterministic_and_ranks_are_in_the_order_of_their_first_agents(topology, data):
    n_ranks = data.draw(st.integers(1, topology.n_agents))
    ranks = place_agents(topology, n_ranks)
    assert ranks.tolist() == place_agents(topology, n_ranks).tolist()
    firsts = [ranks.tolist().index(rank) for rank in range(n_ranks)]
    assert firsts == sorted(firsts)
    assert firsts[0] == 0


@pytest.mark.parametrize("name", ["ring", "path"])
@given(m=st.integers(3, 60), n_ranks=st.integers(2, 12))
def test_rings_and_paths_are_cut_once_per_rank(name, m, n_ranks):
    assume(n_ranks < m)
    topology = make_topology(name, range(m))
    assert cut_edges(topology, place_agents(topology, n_ranks)) == n_ranks - (name == "path")


@needs_metis
def test_neighbours_are_placed_together_where_equal_runs_would_separate_them():
    # Four cliques whose members are far from each other in the order of agents.
    cliques = nx.disjoint_union_all([nx.complete_graph(6)] * 4)
    cliques.add_edges_from([(0, 6), (6, 12), (12, 18)])
    scattered = nx.relabel_nodes(cliques, {t: t % 6 * 4 + t // 6 for t in range(24)})
    topology = make_topology(scattered, range(24))
    ranks = place_agents(topology, 4)
    assert cut_edges(topology, ranks) == 3
    assert ranks.tolist() == [0, 1, 2, 3] * 6


@pytest.mark.parametrize("name", GRAPH_NAMES)
def test_without_a_partitioner_agents_are_in_equal_runs(name, monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "pymetis" else found(name))
    ranks = place_agents(make_topology(name, range(11)), 3)
    assert ranks.tolist() == [0] * 4 + [1] * 4 + [2] * 3


def test_a_partition_that_leaves_a_rank_idle_is_not_used(monkeypatch):
    class Idle:
        @staticmethod
        def part_graph(n_ranks, adjacency):
            return 0, [0] * len(adjacency)

    monkeypatch.setitem(sys.modules, "pymetis", Idle)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    assert place_agents(make_topology("grid", range(9)), 3).tolist() == [0] * 3 + [1] * 3 + [2] * 3


@pytest.mark.parametrize(
    ("n_ranks", "n_tasks", "message"),
    [
        (0, 3, r"^There must be at least one rank; got 0\.$"),
        (-2, 3, r"^There must be at least one rank; got -2\.$"),
        (4, 3, r"^There are 4 ranks for 3 tasks; each rank needs at least one task, so use at most 3\.$"),
        (2, 1, r"^There are 2 ranks for 1 task; .* so use at most 1\.$"),
    ],
)
def test_there_must_be_a_task_for_each_rank(n_ranks, n_tasks, message):
    with pytest.raises(ElmeshError, match=message):
        check_ranks(n_ranks, n_tasks)
    with pytest.raises(ElmeshError, match=message):
        place_agents(make_topology("ring", range(n_tasks)), n_ranks)
    check_ranks(n_tasks, n_tasks)
