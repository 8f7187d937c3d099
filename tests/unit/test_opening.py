"""Before the first round: where U starts, how strong the noise is, and the penalties that follow from it."""

from __future__ import annotations

import numpy as np
import pytest
from elmesh.run.local import StackedLink, place_of
from hypothesis import given, settings
from hypothesis import strategies as st

from elmesh.comm.graph import GRAPH_NAMES, Topology, make_topology
from elmesh.data.statistics import Reduced, Task
from elmesh.math.noise import noise_image, noise_variance, noise_within
from elmesh.solvers.initialization import opening, random_block
from helpers.peers import exact_sums, own_tasks
from helpers.problems import random_problem, stack

BITS = (2, 4, 8, 16, 32, 64, "auto")
ONE_PLACE = Topology(1, np.empty((0, 2), dtype=np.intp))


def begin(problem, rank=2, mu1="auto", mu2="auto", init="spectral", graph=None, bits=64, seed=0):
    """Drive the opening alone; return what it ends with, and the link with all that was sent."""
    topology = make_topology(graph, range(len(problem.H)), seed) if graph else ONE_PLACE
    program, link = opening(problem.task, place_of(topology, seed), rank, mu1, mu2, init), StackedLink(topology, bits)
    answer = None
    while True:
        try:
            answer = link.add_up(program.send(answer))
        except StopIteration as end:
            return end.value, link


def noise_norm(problem):
    """The root of the norm of what noise makes of all tasks' features together."""
    L = problem.H[0].shape[1]
    return np.sqrt(np.linalg.norm(noise_image(problem.task, np.eye(L)).sum(axis=0), 2))


# --- Noise -----------------------------------------------------------------------------------------------------------


def gcv(H, T, rows):
    """Generalised cross-validation of a ridge, from its hat matrix, over the penalties that leave freedom."""
    largest = np.linalg.norm(H, 2) ** 2
    scores = [np.sum(T**2) / rows]
    for share in 10.0 ** np.arange(-6.0, 1.01, 0.25):
        hat = H @ np.linalg.solve(H.T @ H + share * largest * np.eye(H.shape[1]), H.T)
        free = rows - np.trace(hat)
        if free >= 0.3 * rows:
            scores.append(rows * np.sum((T - hat @ T) ** 2) / free**2)
    return min(scores)


@settings(max_examples=40)
@given(st.integers(0, 10_000), st.integers(1, 15), st.integers(3, 40), st.booleans(), st.booleans())
def test_the_variance_of_noise_is_the_least_cross_validation_of_a_plain_loop(seed, L, n, planted, centre):
    problem = random_problem(seed, m=3, L=L, n_max=n, planted=planted)
    pairs = list(zip(problem.H, problem.T, strict=True))
    task = Task.stack([Task.from_reduced(Reduced.from_rows(H, T, centre=centre)) for H, T in pairs])
    for t, (H, T) in enumerate(pairs):
        # These features and targets are centred already: an intercept takes a row's worth of freedom, no more.
        assert noise_variance(task)[t] == pytest.approx(gcv(H, T, len(H) - centre), rel=1e-7)


def test_the_variance_of_noise_is_found_where_there_are_rows_enough():
    rng = np.random.default_rng(0)
    H = rng.normal(size=(3, 2000, 10))
    sizes = np.array([0.1, 1.0, 10.0])
    T = H @ rng.normal(size=(10, 2)) + sizes[:, None, None] * rng.normal(size=(3, 2000, 2))
    found = noise_variance(stack(list(H), list(T)).task)
    np.testing.assert_allclose(found, 2 * sizes**2, rtol=0.1)  # summed over two outputs


def test_pure_noise_is_all_noise_and_no_targets_are_none():
    rng = np.random.default_rng(1)
    H = rng.normal(size=(40, 8))
    found = noise_variance(stack([H, H], [rng.normal(size=(40, 1)), np.zeros((40, 1))]).task)
    assert found[0] == pytest.approx(1.0, rel=0.4)
    assert found[1] == 0.0


@pytest.mark.parametrize("n", [1, 2, 3])
def test_a_handful_of_rows_gives_a_finite_variance(n):
    problem = random_problem(0, m=3, L=20)
    few = stack([H[:n] for H in problem.H], [T[:n] for T in problem.T])
    found = noise_variance(few.task)
    assert np.all(np.isfinite(found))
    assert np.all(found > 0)


def test_the_image_of_noise_is_its_variance_times_the_gram_matrix_of_the_features():
    problem = random_problem(2, m=3, L=6, d=3)
    probe = np.random.default_rng(0).normal(size=(6, 2))
    image, variance = noise_image(problem.task, probe), noise_variance(problem.task)
    for t, H in enumerate(problem.H):
        np.testing.assert_allclose(image[t], variance[t] * (H.T @ (H @ probe)), rtol=1e-9)


def test_drawn_noise_correlates_with_the_features_about_as_strongly_as_expected():
    """The norm of [H'e_1 ... H'e_m] over draws of noise lies around the root of the norm that stands for it."""
    problem = random_problem(3, m=8, L=10, d=2, n_max=60)
    rng, norms = np.random.default_rng(0), []
    sizes = np.sqrt(noise_variance(problem.task) / [T.shape[1] for T in problem.T])
    for _ in range(200):
        drawn = [
            H.T @ (size * rng.normal(size=T.shape)) for H, T, size in zip(problem.H, problem.T, sizes, strict=True)
        ]
        norms.append(np.linalg.norm(np.hstack(drawn), 2))
    assert np.quantile(norms, 0.05) < noise_norm(problem) < np.quantile(norms, 0.95) * 1.2


@settings(max_examples=25)
@given(st.integers(0, 10_000), st.integers(2, 6), st.integers(1, 12))
def test_a_task_guesses_the_same_alone_as_in_a_stack_of_wider_and_longer_ones(seed, m, L):
    problem = random_problem(seed, m=m, L=L, d=3)
    probe = random_block(L, min(2, L), seed)
    together, within = noise_image(problem.task, probe), noise_within(problem.task, probe)
    for t, own in enumerate(own_tasks(problem.H, problem.T)):
        np.testing.assert_allclose(noise_image(own, probe), together[t], rtol=1e-7, atol=1e-12)
        np.testing.assert_allclose(noise_within(own, probe), within[t], rtol=1e-6, atol=1e-12)


def test_noise_within_the_true_directions_is_found_where_a_task_alone_has_too_few_rows():
    rng = np.random.default_rng(4)
    H = rng.normal(size=(30, 12, 20))
    basis = np.linalg.qr(rng.normal(size=(20, 2)))[0]
    T = 3 * H @ basis @ rng.normal(size=(30, 2, 1)) + 0.3 * rng.normal(size=(30, 12, 1))
    task = stack(list(H), list(T)).task
    assert noise_variance(task).mean() > 10 * 0.09
    found = noise_within(task, basis)
    assert found.shape == (30, 2)  # within one of the directions, and within both
    assert found[:, 1].mean() == pytest.approx(0.09, rel=0.3)
    assert found[:, 0].mean() > found[:, 1].mean()


def test_the_automatic_penalty_does_not_depend_on_the_order_of_tasks():
    problem = random_problem(1, m=6, d=2)
    turned = stack(problem.H[::-1], problem.T[::-1])
    assert begin(problem)[0].mu1 == begin(turned)[0].mu1


# --- Penalties -------------------------------------------------------------------------------------------------------


@settings(max_examples=15)
@given(st.integers(0, 10_000), st.integers(2, 12), st.integers(1, 15), st.sampled_from(GRAPH_NAMES))
def test_automatic_penalties_are_the_same_in_one_place_over_every_graph_and_with_any_bits(seed, m, L, graph):
    problem = random_problem(seed, m=m, L=L, planted=seed % 3 > 0)
    rank = min(2, L)
    central, _ = begin(problem, rank, seed=seed)
    for bits in BITS:
        start, link = begin(problem, rank, graph=graph, bits=bits, seed=seed)
        assert link.bytes_sent > 0
        # To the two digits that they have; where the third one is a five, coarse messages may tip it.
        assert start.mu1 == start.mu2 == pytest.approx(central.mu1, rel=0 if bits == 64 else 0.11)


def test_automatic_penalties_are_alike_to_the_bit_for_nearly_all_problems_with_any_bits():
    unlike = 0
    for seed in range(25):
        problem = random_problem(seed, m=4, L=8)
        central = begin(problem, seed=seed)[0].mu1
        unlike += any(begin(problem, graph="star", bits=bits, seed=seed)[0].mu1 != central for bits in (2, 4, "auto"))
    assert unlike <= 1


def test_the_automatic_penalty_is_the_same_share_of_the_norm_of_noise_whatever_the_problem():
    shares, less = [], []
    for seed in range(30):
        rng = np.random.default_rng(seed)
        units = {"h_scale": 10 ** rng.uniform(-3, 3), "t_scale": 10 ** rng.uniform(-3, 3)}
        problem = random_problem(seed, m=int(rng.integers(1, 12)), L=int(rng.integers(2, 40)), **units)
        norm = noise_norm(problem)
        shares.append(begin(problem, rank=1, init="random")[0].mu1 / norm)
        less.append(begin(problem, rank=1)[0].mu1 / norm)
    # A few passes find the norm to within some percent, never too large, and two digits of it are kept.
    assert max(shares) < 1.3 * min(shares)
    assert 0.1 < min(shares) < 1
    # What tasks can learn within the directions of the start is not noise; there cannot be more of it for that.
    assert max(less) < 1.05 * max(shares)
    assert min(less) > 0


@pytest.mark.parametrize("unit", [1e-3, 1e-1, 1e2, 1e3])
def test_the_automatic_penalty_has_the_unit_of_features_times_targets(unit):
    problem = random_problem(7)
    as_is = begin(problem)[0].mu1
    assert begin(stack([unit * H for H in problem.H], problem.T))[0].mu1 == pytest.approx(unit * as_is, rel=1e-9)
    assert begin(stack(problem.H, [unit * T for T in problem.T]))[0].mu1 == pytest.approx(unit * as_is, rel=1e-9)


@pytest.mark.parametrize("graph", [None, "ring"])
@pytest.mark.parametrize("given_", [1e-3, 0.7, 50.0])
def test_a_penalty_that_is_given_stays_and_the_other_one_makes_up_for_it(given_, graph):
    problem = random_problem(8, m=5)
    lam = begin(problem, graph=graph)[0].mu1
    first, _ = begin(problem, mu1=given_, graph=graph)
    second, _ = begin(problem, mu2=given_, graph=graph)
    assert first.mu1 == second.mu2 == given_
    assert first.mu2 == pytest.approx(lam**2 / given_, rel=1e-12)
    assert second.mu1 == pytest.approx(lam**2 / given_, rel=1e-12)


def test_penalties_that_are_both_given_are_taken_as_they_are():
    start, _ = begin(random_problem(8), mu1=0.25, mu2=4)
    assert (start.mu1, start.mu2) == (0.25, 4.0)


@pytest.mark.parametrize("init", ["random", "seed", "ones"])
def test_where_nothing_has_to_be_agreed_on_nothing_is_sent(init):
    _, link = begin(random_problem(8), mu1=1.0, mu2=1.0, init=init, graph="star")
    assert link.bytes_sent == 0
    assert link.n_exchanges == 0


def test_targets_without_noise_get_a_penalty_that_is_small_but_not_nothing():
    rng = np.random.default_rng(0)
    H = [rng.normal(size=(60, 6)) for _ in range(4)]
    problem = stack(H, [h @ rng.normal(size=(6, 2)) for h in H])
    pull = np.linalg.norm(np.hstack([h.T @ T for h, T in zip(problem.H, problem.T, strict=True)]))
    assert 1e-6 * pull < begin(problem)[0].mu1 < 1e-3 * pull


@pytest.mark.parametrize("graph", [None, "path"])
def test_targets_of_zero_and_features_of_zero_get_some_penalty(graph):
    problem = random_problem(9)
    for H, T in ((1, 0), (0, 1), (0, 0)):
        nothing = stack([H * h for h in problem.H], [T * t for t in problem.T])
        start, _ = begin(nothing, graph=graph)
        assert start.mu1 > 0
        assert np.isfinite(start.mu1)
        assert np.isfinite(start.U).all()


def test_more_noise_gets_more_penalty():
    rng = np.random.default_rng(3)
    problem = random_problem(10, m=5, n_max=60)
    noise = [rng.normal(size=T.shape) for T in problem.T]
    made = [
        begin(stack(problem.H, [T + size * e for T, e in zip(problem.T, noise, strict=True)]))[0].mu1
        for size in (0.0, 1.0, 10.0)
    ]
    assert made[0] < made[1] < made[2]
    assert made[2] > 5 * made[1]


# --- The start -------------------------------------------------------------------------------------------------------


def ridge_weights(problem):
    """Each task's own weights, with a tenth of the largest eigenvalue as penalty, side by side."""
    weights = []
    for H, T in zip(problem.H, problem.T, strict=True):
        G = H.T @ H
        weights.append(np.linalg.solve(G + 0.1 * np.linalg.norm(G, 2) * np.eye(len(G)), H.T @ T))
    return np.hstack(weights)


@settings(max_examples=30)
@given(st.integers(0, 10_000), st.integers(1, 3), st.integers(4, 12), st.floats(-1, 1), st.floats(-1, 1))
def test_with_columns_enough_the_start_is_the_square_root_of_the_singular_values(seed, m, L, one, other):
    """U U' = (mu2/mu1)^(1/2) P S P' where P S Q' are all tasks' own weights: no sign or order in it."""
    problem = random_problem(seed, m=m, L=L, d=1)
    mu1, mu2 = 10**one, 10**other
    U = begin(problem, rank=min(L, 5), mu1=mu1, mu2=mu2)[0].U
    P, S, _ = np.linalg.svd(ridge_weights(problem), full_matrices=False)
    expected = np.sqrt(mu2 / mu1) * (P * S) @ P.T
    # Directions that no weights have are kept alive, a thousandth as long.
    assert np.linalg.norm(U @ U.T - expected, 2) <= 5e-3 * np.linalg.norm(expected, 2)


def test_with_fewer_columns_the_start_is_near_the_leading_singular_vectors():
    for seed in range(10):
        problem = random_problem(seed, m=8, L=15, r=2, d=2)
        P, S, _ = np.linalg.svd(ridge_weights(problem))
        U = begin(problem, rank=2, mu1=1.0, mu2=1.0)[0].U
        overlap = np.linalg.svd(np.linalg.qr(U)[0].T @ P[:, :2])[1]
        # A pass leaves the ratio of neighbouring singular values squared, and the last one only measures.
        assert 1 - overlap.min() ** 2 <= 30 * (S[2] / S[1]) ** 4
        assert np.linalg.norm(U, 2) ** 2 == pytest.approx(S[0], rel=0.05)


@settings(max_examples=30)
@given(
    st.integers(0, 10_000),
    st.integers(1, 8),
    st.integers(1, 6),
    st.sampled_from(GRAPH_NAMES),
    st.sampled_from(BITS),
    st.sampled_from(["targets", "zero", "one task only"]),
    st.sampled_from(["spectral", "random"]),
)
def test_the_start_has_full_rank_whatever_the_targets(seed, m, rank, graph, bits, kind, init):
    problem = random_problem(seed, m=m, L=9, d=1)
    keep = {"targets": m, "zero": 0, "one task only": 1}[kind]
    problem = stack(problem.H, [T * (t < keep) for t, T in enumerate(problem.T)])
    U = begin(problem, rank, graph=graph, bits=bits, seed=seed, init=init)[0].U
    assert np.isfinite(U).all()
    lengths = np.linalg.svd(U, compute_uv=False)
    assert lengths[-1] > 1e-3 * lengths[0]


@pytest.mark.parametrize("mu", ["auto", 0.5])
@pytest.mark.parametrize("graph", GRAPH_NAMES)
def test_every_agent_comes_to_the_same_start_to_the_bit(graph, mu):
    problem, topology = random_problem(11, m=7), make_topology(graph, range(7), 3)
    programs = [opening(problem.task.agent(t), place_of(topology, 3, t), 3, mu, mu, "spectral") for t in range(7)]
    answers, ends = [None] * 7, []
    while not ends:
        totals = []
        for program, answer in zip(programs, answers, strict=True):
            try:
                totals.append(program.send(answer))
            except StopIteration as end:
                ends.append(end.value)
        answers = exact_sums(totals) if totals else answers
    assert len({(end.U.tobytes(), end.mu1, end.mu2) for end in ends}) == 1
    stacked, _ = begin(problem, 3, mu, mu, graph=graph, seed=3)
    np.testing.assert_allclose(ends[0].U, stacked.U, rtol=1e-9, atol=1e-12)
    assert ends[0].mu1 == stacked.mu1


@pytest.mark.parametrize("graph", GRAPH_NAMES)
def test_exact_messages_give_the_start_of_one_place_and_coarse_ones_nearly(graph):
    problem = random_problem(12, m=6)
    central = begin(problem, 3)[0].U
    np.testing.assert_allclose(begin(problem, 3, graph=graph)[0].U, central, rtol=1e-9, atol=1e-12)
    for bits, near in ((16, 1e-2), (8, 0.1), (4, 0.5)):
        U = begin(problem, 3, graph=graph, bits=bits)[0].U
        assert np.linalg.norm(U - central) <= near * np.linalg.norm(central)


@given(st.integers(1, 20), st.integers(1, 20), st.integers(0, 2**63))
def test_the_random_start_is_orthonormal_and_anybodys_from_the_seed(L, r, seed):
    r = min(L, r)
    block = random_block(L, r, seed)
    np.testing.assert_allclose(block.T @ block, np.eye(r), atol=1e-12)
    assert block.tobytes() == random_block(L, r, seed).tobytes()


def test_the_ones_start_is_ones():
    start, _ = begin(random_problem(0), 3, mu1=0.1, mu2=10.0, init="ones")
    np.testing.assert_array_equal(start.U, np.ones((12, 3)))
