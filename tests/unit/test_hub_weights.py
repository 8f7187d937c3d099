"""Exchanges of weights with a hub, against dense formulas of reweighted least squares."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elmesh import MeshELM
from elmesh.comm.codec import message_size
from elmesh.errors import ElmeshError
from elmesh.math.kernels import orthonormal
from elmesh.solvers import make_solver
from helpers.examples import examples
from helpers.problems import followed, random_problem, ridge_of_rows, solve

PAPER = {"common": False, "private": False}


def own_weights(problem):
    """Each task's ridge regression, with a tenth of the largest eigenvalue as its penalty."""
    return [ridge_of_rows(H, T, 0.1 * np.linalg.norm(H, 2) ** 2) for H, T in zip(problem.H, problem.T, strict=True)]


def leading(weights, r):
    """The leading singular vectors of all weights, times the roots of their values."""
    Q, D, _ = np.linalg.svd(np.hstack(weights), full_matrices=False)
    return Q[:, :r] * np.sqrt(D[:r])


def bases(problem, **parameters):
    """U after every round of a start from weights."""
    seen = []
    solver = MeshELM(**PAPER, graph="star", start="weights", certify=False, tol=0.0, **parameters)
    result = solve(solver, problem, "star", callback=lambda progress: seen.append(progress.solution.U))
    return seen, result


@pytest.mark.thorough
@examples(25)
@given(st.integers(0, 10_000), st.integers(2, 6), st.integers(1, 3), st.floats(0.05, 5.0), st.floats(0.05, 5.0))
def test_rounds_are_least_squares_reweighted_by_the_root_of_the_covariance_of_all_weights(seed, m, r, mu1, mu2):
    problem = random_problem(seed, m=m, L=8, d=2, unequal=False)
    seen, _ = bases(problem, rank=r, mu1=mu1, mu2=mu2, max_iter=3)
    weights, lam = own_weights(problem), np.sqrt(mu1 * mu2)
    for U in seen:
        expected = leading(weights, r)
        # U U' is the metric, in which the arbitrary rotation of U does not show.
        np.testing.assert_allclose(
            U @ U.T * np.sqrt(mu1 / mu2), expected @ expected.T, atol=1e-7 * np.abs(U @ U.T).max()
        )
        smallest = np.linalg.eigvalsh(expected.T @ expected)[0]
        metric = np.linalg.inv(expected @ expected.T + 0.5 * smallest * np.eye(8))
        weights = [np.linalg.solve(H.T @ H + lam * metric, H.T @ T) for H, T in zip(problem.H, problem.T, strict=True)]


def test_columns_are_rotated_towards_those_of_the_round_before():
    seen, _ = bases(random_problem(3, m=6, L=12, d=2, unequal=False), rank=3, mu1=1.0, mu2=1.0, max_iter=3)
    for before, U in pairwise(seen):
        # No rotation is closer if and only if the product is symmetric and positive semidefinite.
        product = before.T @ U
        np.testing.assert_allclose(product, product.T, atol=1e-10 * np.abs(product).max())
        assert np.linalg.eigvalsh(product)[0] > 0


@pytest.mark.parametrize("bits", [4, 8])
def test_every_exchange_takes_the_bytes_of_weights_and_of_a_basis(bits):
    m, L, r, d = 5, 12, 3, 2
    problem = random_problem(0, m=m, L=L, d=d, unequal=False)
    _, result = bases(problem, rank=r, mu1=1.0, mu2=1.0, max_iter=3, message_bits=bits)
    exchange = (m - 1) * (message_size((L, d), bits) + message_size((L, r), bits)) + followed(m, numbers=1)
    assert result.history["bytes"].tolist() == [exchange * k for k in (1, 2, 3, 4)]


def test_exchanges_of_weights_come_closer_to_the_optimum_than_the_start():
    nearer = 0
    for seed in range(20):
        problem = random_problem(seed, m=8, L=12, r=2, d=2, unequal=False)
        setting = {"rank": 4, "mu1": 0.5, "mu2": 0.5}
        _, result = bases(problem, **setting, max_iter=3)
        first, *_, last = result.history["objective"]
        nearer += last < first
    assert nearer >= 18


def test_a_start_from_weights_has_the_leading_directions_of_all_weights_by_one_exchange():
    problem, m, L, r = random_problem(4, m=5, L=12, d=2, unequal=False), 5, 12, 3
    setting = {**PAPER, "rank": r, "mu1": 1.0, "mu2": 4.0, "graph": "star", "certify": False, "tol": 1e-6}
    seen = []
    weights = solve(
        MeshELM(**setting, start="weights"), problem, "star", callback=lambda p: seen.append((p.bytes, p.solution.U))
    )
    expected = 2**0.5 * leading(own_weights(problem), r)  # (mu2 / mu1)^(1/4) is the root of 2
    np.testing.assert_allclose(np.abs(seen[0][1]), np.abs(expected), atol=1e-8)
    assert seen[0][0] == (m - 1) * 8 * (L * 2 + L * r) + followed(m, numbers=1)
    sums = solve(MeshELM(**setting), problem, "star")
    assert weights.history["objective"].iloc[-1] == pytest.approx(sums.history["objective"].iloc[-1], rel=1e-6)


def test_weights_of_few_directions_leave_a_start_of_full_rank():
    problem = random_problem(0, m=4, L=9, d=1, unequal=False)
    for T in problem.T:
        T[:] = 0.0
    seen = []
    setting = {**PAPER, "rank": 1, "mu1": 1.0, "mu2": 1.0, "graph": "star", "start": "weights", "max_iter": 1}
    solve(MeshELM(**setting), problem, "star", callback=lambda p: seen.append(p.solution.U))
    np.testing.assert_allclose(orthonormal(seen[0]).T @ orthonormal(seen[0]), np.eye(1), atol=1e-12)


@pytest.mark.parametrize("parameters", [{}, {"common": False}, {**PAPER, "graph": None}])
def test_a_start_from_weights_needs_the_shared_part_alone_and_a_graph(parameters):
    with pytest.raises(ElmeshError, match='start="weights" is for the shared part alone, on a graph with a hub'):
        make_solver(MeshELM(start="weights", **parameters))
