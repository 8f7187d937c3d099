"""The memory of L-BFGS against the BFGS formula written out."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from elmesh.math.lbfgs import LBFGSMemory
from helpers.examples import examples


@examples(50)
@given(st.integers(0, 10_000), st.integers(1, 6), st.integers(1, 3), st.integers(1, 8))
def test_the_step_is_that_of_the_bfgs_formula_written_out(seed, L, r, pairs):
    rng = np.random.default_rng(seed)
    C = rng.normal(size=(L * r, L * r))
    hessian, W = C @ C.T + np.eye(L * r), np.eye(r) + (D := rng.normal(size=(r, r))) @ D.T
    memory = LBFGSMemory()
    for _ in range(pairs):
        s = rng.normal(size=(L, r))
        y = (hessian @ s.ravel()).reshape(L, r)
        memory = memory.add(s, y)
    # H0 = scale W^-1 acting on rows, then one update per pair, oldest first (Nocedal and Wright, 6.17).
    inverse = np.kron(np.eye(L), np.linalg.inv(W))
    s, y = memory.s[-1], memory.y[-1]
    inverse = inverse * np.vdot(s, y) / (y.ravel() @ inverse @ y.ravel())
    for s, y in zip(memory.s, memory.y, strict=True):
        share = 1 / np.vdot(s, y)
        V = np.eye(L * r) - share * np.outer(s, y)
        inverse = V @ inverse @ V.T + share * np.outer(s, s)
    gradient = rng.normal(size=(L, r))
    expected = -(inverse @ gradient.ravel()).reshape(L, r)
    np.testing.assert_allclose(memory.step(gradient, W), expected, rtol=1e-6, atol=1e-8 * np.abs(expected).max())


def test_a_step_along_which_the_function_is_not_convex_is_not_remembered():
    memory = LBFGSMemory().add(np.array([[1.0]]), np.array([[-1.0]])).add(np.array([[1.0]]), np.array([[0.0]]))
    assert memory.s == memory.y == ()
    np.testing.assert_array_equal(memory.step(np.array([[4.0]]), np.array([[2.0]])), [[-2.0]])


def test_the_memory_holds_the_last_thirty_pairs_and_rotates_them():
    rng = np.random.default_rng(0)
    pairs = [rng.normal(size=(4, 2)) for _ in range(35)]
    memory = LBFGSMemory()
    for s in pairs:
        memory = memory.add(s, 2 * s)
    assert len(memory.s) == len(memory.y) == 30
    np.testing.assert_array_equal(memory.s[0], pairs[5])
    wider = np.eye(2, 3)
    rotated = memory.rotate(wider)
    np.testing.assert_array_equal(rotated.s[-1], pairs[-1] @ wider)
    np.testing.assert_array_equal(rotated.y[-1], 2 * pairs[-1] @ wider)


def test_a_pair_that_a_rotation_makes_degenerate_is_dropped():
    memory = (
        LBFGSMemory()
        .add(np.array([[1.0, 0.0]]), np.array([[3.0, 0.0]]))
        .add(np.array([[0.0, 1.0]]), np.array([[0.0, 5.0]]))
    )
    (s,) = memory.rotate(np.array([[1.0], [0.0]])).s
    np.testing.assert_array_equal(s, [[1.0]])
