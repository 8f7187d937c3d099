"""Maps of sites, and groups only where distances show some."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import pdist, squareform
from sklearn.metrics import adjusted_rand_score, silhouette_score

from elmesh.math.site_groups import classical_scaling, find_groups
from helpers.marks import one_of


def distances(points):
    return squareform(pdist(points))


@given(st.integers(0, 10**6), st.integers(2, 12), st.integers(1, 3))
def test_a_map_recovers_points_up_to_a_rotation(seed, n, dimensions):
    points = np.random.default_rng(seed).normal(size=(n, dimensions)) * [3.0, 2.0, 1.0][:dimensions]
    coordinates, squares = classical_scaling(distances(points))
    np.testing.assert_allclose(distances(coordinates), distances(points), atol=1e-6)
    np.testing.assert_allclose(np.sum(coordinates**2, axis=0), squares, rtol=1e-6)
    assert np.all(np.diff(squares) <= 0)
    assert coordinates.shape[1] <= min(dimensions, n - 1)


def test_the_same_distances_give_the_same_map_whatever_the_order_of_the_sites():
    D = distances(np.random.default_rng(0).normal(size=(9, 2)))
    order = np.random.default_rng(1).permutation(9)
    np.testing.assert_allclose(classical_scaling(D[order][:, order])[0], classical_scaling(D)[0][order], atol=1e-9)


def test_sites_at_one_place_have_no_coordinates():
    coordinates, squares = classical_scaling(np.zeros((3, 3)))
    assert coordinates.shape == (3, 0)
    assert len(squares) == 0


@pytest.mark.parametrize(("n", "k"), [(8, 2), (12, 3), pytest.param(30, 4, marks=pytest.mark.slow), (30, 5)])
def test_planted_groups_are_found_and_are_those_of_the_best_silhouette(n, k):
    rng = np.random.default_rng(n + k)
    truth = np.arange(n) % k
    points = 8.0 * np.eye(k)[truth] + rng.normal(scale=0.3, size=(n, k))
    D = distances(points)
    found = find_groups(D, seed=0)
    assert adjusted_rand_score(truth, found) == 1.0
    # Groups are numbered in the order of their first sites.
    assert list(dict.fromkeys(found.tolist())) == list(range(k))
    tree = linkage(pdist(points), "ward")
    cuts = [fcluster(tree, j, "maxclust") for j in range(2, min(8, n // 2) + 1)]
    best = max(cuts, key=lambda cut: silhouette_score(D, cut, metric="precomputed"))
    assert adjusted_rand_score(best, found) == 1.0


CLOUDS = {
    "normal on a line": lambda rng, n: rng.normal(size=(n, 1)),
    "uniform on a line": lambda rng, n: rng.uniform(size=(n, 1)),
    "normal": lambda rng, n: rng.normal(size=(n, 4)) * [2.0, 1.0, 1.0, 0.5],
    "skewed": lambda rng, n: rng.exponential(size=(n, 2)),
    "heavy-tailed": lambda rng, n: rng.standard_t(3, size=(n, 3)),
    "of different sizes": lambda rng, n: rng.normal(size=(n, 4)) * rng.choice([0.2, 0.6, 1.0], size=(n, 1)),
}


@pytest.mark.parametrize("name", one_of(2, CLOUDS))
def test_a_cloud_without_groups_has_none_as_a_rule(name):
    rng = np.random.default_rng(0)
    found = [find_groups(distances(CLOUDS[name](rng, n)), seed=n) for n in [5, 8, 12, 25, 40] * 4]
    assert sum(groups is not None for groups in found) <= 2
    # Without the comparison with clouds these would count: the silhouette of a long cloud is high.
    if name == "normal on a line":
        D = distances(rng.normal(size=(40, 1)))
        halves = fcluster(linkage(squareform(D), "ward"), 2, "maxclust")
        assert silhouette_score(D, halves, metric="precomputed") > 0.5


@pytest.mark.thorough
def test_two_groups_far_apart_in_five_dimensions_are_found_among_forty_sites_but_not_among_a_dozen():
    def found(n, seed):
        points = np.random.default_rng(seed).normal(size=(n, 5))
        points[::2, 0] += 8.0
        return find_groups(distances(points), seed) is not None

    assert all(found(40, seed) for seed in range(3))
    assert sum(found(12, seed) for seed in range(10)) <= 5


@pytest.mark.slow
def test_a_skewed_cloud_is_compared_with_skewed_ones():
    rng = np.random.default_rng(0)
    found = [find_groups(distances(rng.exponential(size=(40, 2))), seed) for seed in range(20)]
    assert sum(groups is not None for groups in found) <= 2


def test_groups_that_are_wide_beside_their_distances_are_not_reported_however_many_sites_show_them():
    points = np.random.default_rng(0).normal(size=(60, 12))
    points[:, :4] += 6.0 * np.eye(4)[np.arange(60) % 4]
    assert silhouette_score(distances(points), np.arange(60) % 4, metric="precomputed") < 0.5
    assert find_groups(distances(points), seed=0) is None


@pytest.mark.parametrize("n", [1, 2])
def test_a_few_sites_that_differ_are_no_second_group(n):
    points = np.random.default_rng(0).normal(size=(40, 2))
    points[:n] += 100.0
    assert find_groups(distances(points), seed=0) is None


@pytest.mark.parametrize("n", [1, 2, 3])
def test_fewer_than_four_sites_have_no_groups(n):
    assert find_groups(distances(np.array([[0.0], [0.1], [9.0]])[:n]), seed=0) is None
