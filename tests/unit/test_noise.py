"""The variance of noise that tasks estimate, and the strength of the features' correlation with it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elmesh.data.statistics import Reduced, Task
from elmesh.math.noise import noise_image, noise_variance, noise_within
from elmesh.solvers.initialization import random_block
from helpers.examples import examples
from helpers.peers import own_tasks
from helpers.problems import random_problem, stack


def noise_norm(problem):
    """The root of the norm of what noise makes of all tasks' features together."""
    L = problem.H[0].shape[1]
    return np.sqrt(np.linalg.norm(noise_image(problem.task, np.eye(L)).sum(axis=0), 2))


def gcv(H, T, rows):
    """Least generalised cross-validation of a ridge, from its hat matrix, over penalties that leave freedom."""
    largest = np.linalg.norm(H, 2) ** 2
    scores = [np.sum(T**2) / rows]
    for share in 10.0 ** np.arange(-6.0, 1.01, 0.25):
        hat = H @ np.linalg.solve(H.T @ H + share * largest * np.eye(H.shape[1]), H.T)
        free = rows - np.trace(hat)
        if free >= 0.3 * rows:
            scores.append(rows * np.sum((T - hat @ T) ** 2) / free**2)
    return min(scores)


@pytest.mark.thorough
@examples(40)
@given(st.integers(0, 10_000), st.integers(1, 15), st.integers(3, 40), st.booleans(), st.booleans())
def test_the_variance_of_noise_is_the_least_cross_validation_of_a_plain_loop(seed, L, n, planted, centre):
    problem = random_problem(seed, m=3, L=L, n_max=n, planted=planted)
    pairs = list(zip(problem.H, problem.T, strict=True))
    task = Task.stack([Task.from_reduced(Reduced.from_rows(H, T, centre=centre)) for H, T in pairs])
    for t, (H, T) in enumerate(pairs):
        # These features and targets are centred already: an intercept takes one degree of freedom, no more.
        assert noise_variance(task)[t] == pytest.approx(gcv(H, T, len(H) - centre), rel=1e-7)


def test_the_variance_of_noise_is_found_where_there_are_rows_enough():
    rng = np.random.default_rng(0)
    H = rng.normal(size=(3, 2000, 10))
    sizes = np.array([0.1, 1.0, 10.0])
    T = H @ rng.normal(size=(10, 2)) + sizes[:, None, None] * rng.normal(size=(3, 2000, 2))
    found = noise_variance(stack(list(H), list(T)).task)
    np.testing.assert_allclose(found, 2 * sizes**2, rtol=0.1)  # summed over two outputs


def test_the_variance_of_pure_noise_is_its_own_and_that_of_zero_targets_is_zero():
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
    """The norm of [H'e_1 ... H'e_m] over draws of noise is near the root of the norm of its second moment."""
    problem = random_problem(3, m=8, L=10, d=2, n_max=60)
    rng, norms = np.random.default_rng(0), []
    sizes = np.sqrt(noise_variance(problem.task) / [T.shape[1] for T in problem.T])
    for _ in range(200):
        drawn = [
            H.T @ (size * rng.normal(size=T.shape)) for H, T, size in zip(problem.H, problem.T, sizes, strict=True)
        ]
        norms.append(np.linalg.norm(np.hstack(drawn), 2))
    assert np.quantile(norms, 0.05) < noise_norm(problem) < np.quantile(norms, 0.95) * 1.2


@pytest.mark.thorough
@examples(25)
@given(st.integers(0, 10_000), st.integers(2, 6), st.integers(1, 12))
def test_a_task_estimates_the_same_alone_as_in_a_stack_of_wider_and_longer_ones(seed, m, L):
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
