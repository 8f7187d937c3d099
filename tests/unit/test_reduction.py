"""Halves of each task's rows: by what is in a row, not by where it is."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elmesh import DMTLELM, LocalELM, MeshELM
from elmesh.estimators.reduction import reduce_tasks
from helpers.mixed import digest

seeds = st.integers(0, 10**6)


class Constant:
    """Features: a constant, the inputs, and so many zeros that rows stay as they are."""

    def __call__(self, X):
        return np.column_stack([np.ones(len(X)), X, np.zeros((len(X), 200))])


def halves_of(X, y, seed=0):
    """The rows (inputs and target) of the two halves of one task, and their statistics."""
    _, halves = reduce_tasks(MeshELM(), Constant(), X, {"a": np.arange(len(X))}, {"a": y[:, None]}, False, seed)
    (pair,) = halves
    return [np.hstack([half.Phi[:, 1 : 1 + X.shape[1]], half.T]) for half in pair], pair


def table(seed, n, columns=3):
    """Rows of small whole numbers, of which many are equal, or of real numbers."""
    rng = np.random.default_rng(seed)
    X = rng.integers(-1, 2, size=(n, columns)).astype(float) if seed % 2 else rng.normal(size=(n, columns))
    return X, X[:, 0] + (0.0 if seed % 2 else rng.normal(size=n))


@given(seeds, st.integers(1, 60))
def test_halves_have_equal_sizes_up_to_one_and_together_all_rows(seed, n):
    X, y = table(seed, n)
    (first, second), statistics = halves_of(X, y)
    assert len(first) - len(second) == n % 2
    assert [half.rows for half in statistics] == [len(first), len(second)]
    found, expected = np.vstack([first, second]), np.column_stack([X, y])
    np.testing.assert_array_equal(found[np.lexsort(found.T)], expected[np.lexsort(expected.T)])


@given(seeds, st.integers(1, 60))
def test_the_order_of_rows_does_not_matter(seed, n):
    X, y = table(seed, n)
    order = np.random.default_rng(seed).permutation(n)
    for one, other in zip(halves_of(X, y)[1], halves_of(X[order], y[order])[1], strict=True):
        assert digest(*one.arrays) == digest(*other.arrays)


@pytest.mark.parametrize("n", [2, 7, 50])
def test_equal_rows_are_divided_too(n):
    (first, second), _ = halves_of(np.ones((n, 3)), np.ones(n))
    assert (len(first), len(second)) == ((n + 1) // 2, n // 2)


def test_the_second_half_of_one_row_is_empty():
    (first, second), (_, empty) = halves_of(np.ones((1, 3)), np.ones(1))
    assert (len(first), len(second)) == (1, 0)
    assert empty.rows == 0.0


def test_the_two_zeros_are_one():
    X, y = table(0, 30)
    X[:20, 1] = 0.0
    negative = X.copy()
    negative[:20:2, 1] = -0.0
    for one, other in zip(halves_of(X, y)[0], halves_of(negative, y)[0], strict=True):
        np.testing.assert_array_equal(one, other)


@given(seeds, st.integers(0, 2**64 - 2))
def test_another_seed_gives_other_halves(table_seed, seed):
    X, y = table(2 * table_seed, 40)
    firsts = [{row.tobytes() for row in halves_of(X, y, one)[0][0]} for one in (seed, seed + 1)]
    # Of 20 rows about 10 are in both.
    assert 1 <= len(firsts[0] & firsts[1]) <= 19


def test_every_input_and_the_target_count():
    """Rows that differ in one of them only are in halves of their own."""
    for column in range(4):
        rows = np.zeros((64, 4))
        rows[:, column] = np.arange(64)
        (first, _), _ = halves_of(rows[:, :3], rows[:, 3])
        chosen = np.sort(first[:, column])
        assert not np.array_equal(chosen, np.arange(32))
        assert not np.array_equal(chosen, np.arange(32, 64))


@pytest.mark.parametrize("kind", ["whole numbers", "classes", "small steps"])
def test_halves_have_nothing_to_do_with_what_is_in_a_row(kind):
    """Over many seeds the mean of the first half is as far from that of all rows as chance has it."""
    n = 400
    column = {
        "whole numbers": np.arange(n, dtype=float),
        "classes": np.repeat([0.0, 1.0], n // 2),
        "small steps": 1.0 + 1e-9 * np.arange(n),
    }[kind]
    X = np.column_stack([np.random.default_rng(0).normal(size=n) if kind == "classes" else np.zeros(n), column])
    deviations = []
    for seed in range(60):
        (first, _), _ = halves_of(X, np.zeros(n), seed)
        # A half of all rows without replacement: its mean has a quarter of the variance that 100 rows have.
        deviations.append((first[:, 1].mean() - column.mean()) / (column.std() * np.sqrt(1 / (n - 1))))
    assert abs(np.mean(deviations)) < 4 / np.sqrt(60)
    assert 0.6 < np.std(deviations) < 1.4


def test_reduced_rows_are_those_of_each_task_in_its_order():
    X, y = table(0, 12)
    groups = {"a": np.array([0, 2, 4]), "b": np.array([1, 3, 5, 7])}
    targets = {t: y[rows][:, None] for t, rows in groups.items()}
    reduced, halves = reduce_tasks(MeshELM(), Constant(), X, groups, targets, False, 0)
    assert [one.n_rows for one in reduced] == [3, 4]
    np.testing.assert_array_equal(reduced[1].factor[:, 1:4], X[groups["b"]])
    np.testing.assert_array_equal(reduced[1].factor[:, -1:], targets["b"])
    assert [[half.rows for half in pair] for pair in halves] == [[2, 1], [2, 2]]


@pytest.mark.parametrize(
    "solver", [MeshELM(rank=0), MeshELM(private=False), MeshELM(mu1=1.0, mu2=1.0), LocalELM(), DMTLELM()]
)
def test_solvers_that_decide_nothing_by_rows_left_out_have_no_halves(solver):
    X, y = table(0, 12)
    assert reduce_tasks(solver, Constant(), X, {"a": np.arange(12)}, {"a": y[:, None]}, False, 0)[1] is None
