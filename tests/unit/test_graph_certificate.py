"""The certificate over a graph, sum after sum: what agents send, when passes end, and what the results satisfy."""

from __future__ import annotations

import numpy as np
import pytest

from elmesh.comm.graph import make_topology
from elmesh.comm.requests import AllReduceResult
from elmesh.math.certificate import certificate_data, slack_for
from elmesh.math.kernels import project, residual, solve_A
from elmesh.run.runner import agent_context
from elmesh.solvers.base import Problem
from elmesh.solvers.graph_certificate import certificate_over_graph
from helpers.marks import one_of
from helpers.peers import lockstep
from helpers.problems import random_problem, stack

WIDTH = 4  # vectors per pass, beside the columns of U in the first one


def residuals(task, U, mu2):
    HU = project(task, U)
    return residual(task, HU, solve_A(task, HU, np.zeros(1), mu2, 0.0))


def programs(problem, U, mu, tol=1e-2, seed=0):
    """One program per agent, and the residuals of all."""
    m = len(problem.H)
    topology, R = make_topology("ring", range(m), 0), residuals(problem.task, U, mu)
    contexts = [agent_context(topology, seed, np.asarray(t)) for t in range(m)]
    own = [Problem(problem.task.agent(t), context, U.shape[1]) for t, context in enumerate(contexts)]
    return [certificate_over_graph(part, U, R[t], mu, mu, tol) for t, part in enumerate(own)], R


def correlation_matrix(problem, U, mu):
    """The sum over tasks of E_t E_t', from rows."""
    M = 0.0
    for H, T in zip(problem.H, problem.T, strict=True):
        Z = H @ U
        A = np.linalg.solve(Z.T @ Z + mu * np.eye(U.shape[1]), Z.T @ T)
        E = H.T @ (Z @ A - T)
        M = M + E @ E.T
    return M


def random_U(seed, L, r, scale=1.0):
    return scale * np.random.default_rng(seed).normal(size=(L, r))


@pytest.mark.parametrize("mu", [0.05, 0.5, 5.0])
@pytest.mark.parametrize("seed", one_of(3, range(4)))
def test_a_block_of_all_directions_gives_the_certificate_of_one_place(seed, mu):
    L, r = 6, 2  # the columns of U and four vectors span everything
    problem, U = random_problem(seed, m=4, L=L), random_U(seed, L, r)
    agents, R = programs(problem, U, mu)
    found, _ = lockstep(agents)
    exact = certificate_data(problem.task, U, R, mu, slack_for(1e-2))
    for data in found:
        assert (data.n_used, data.n_missing) == (exact.n_used, exact.n_missing)
        assert data.lower_bound == pytest.approx(exact.lower_bound, rel=1e-9)
        size = exact.eigenvalues[0]
        np.testing.assert_allclose(data.eigenvalues[:WIDTH], exact.eigenvalues[:WIDTH], atol=1e-9 * size)


@pytest.mark.parametrize("seed", one_of(3, range(4)))
def test_directions_are_orthonormal_and_outside_U_and_diagonalise_the_correlations(seed):
    L, r, mu = 18, 2, 0.1
    problem, U = random_problem(seed, m=4, L=L, d=3), random_U(seed, L, r)
    (data, *_), _ = lockstep(programs(problem, U, mu)[0])
    M, D = correlation_matrix(problem, U, mu), data.directions
    size = float(data.eigenvalues[0])
    assert D.shape == (L, len(data.eigenvalues))
    assert np.all(np.diff(data.eigenvalues) <= 0)
    np.testing.assert_allclose(D.T @ M @ D, np.diag(data.eigenvalues), atol=1e-9 * size)
    np.testing.assert_allclose(U.T @ D, 0.0, atol=1e-12)
    # Vectors that add nothing to those before are zero, all others are orthonormal.
    gram = D.T @ D
    np.testing.assert_allclose(gram @ gram, gram, atol=1e-11)


def test_columns_in_use_are_made_orthogonal_longest_first():
    L, lengths = 9, np.array([1e-3, 5e-5, 5e-6])  # shares of 1, of 0.05, and of less than 0.01
    problem = random_problem(1, m=3, L=L)
    basis, turn = np.linalg.qr(random_U(1, L, 3))[0], np.linalg.qr(random_U(2, 3, 3))[0]
    (data, *_), _ = lockstep(programs(problem, (basis * lengths) @ turn.T, 0.3)[0])
    columns = (basis * lengths) @ turn.T @ data.rotation
    assert data.n_used == 2
    np.testing.assert_allclose(np.abs(basis[:, :2].T @ columns), np.diag(lengths[:2]), atol=1e-12)


def test_a_U_without_columns_is_certified():
    problem, U = random_problem(1, m=3, L=4), np.zeros((4, 0))
    agents, R = programs(problem, U, 0.3)
    (data, *_), _ = lockstep(agents)
    exact = certificate_data(problem.task, U, R, 0.3, slack_for(1e-2))
    assert (data.n_used, data.n_missing) == (0, exact.n_missing)
    assert data.lower_bound == pytest.approx(exact.lower_bound, rel=1e-9)
    np.testing.assert_allclose(data.eigenvalues[:4], exact.eigenvalues, atol=1e-9 * exact.eigenvalues[0])


@pytest.mark.parametrize("L", [3, 18])
@pytest.mark.parametrize("stacked", [False, True])
def test_agents_send_three_numbers_then_blocks_of_vectors_and_topics_are_never_used_twice(L, stacked):
    r, mu = 2, 0.1
    problem, U = random_problem(2, m=4, L=L), random_U(2, L, r)
    agents, R = programs(problem, U, mu)
    if stacked:
        whole = Problem(problem.task, agent_context(make_topology("ring", range(4), 0), 0), r)
        agents = [certificate_over_graph(whole, U, R, mu, mu, 1e-2)]
    lead = (4,) if stacked else ()
    _, steps = lockstep(agents)
    first, *passes, last = [step[0] for step in steps]
    topics = ["columns", *(f"certificate {k}" for k in range(len(passes))), "certificate"]
    assert [step[0].topic for step in steps] == topics
    assert first.value.shape == last.value.shape == (*lead, L, 0)
    assert first.exact.shape == (*lead, 3)
    assert last.exact.shape == (*lead, 0)
    for k, request in enumerate(passes):
        assert request.value.shape == (*lead, L, min(L, WIDTH) + (r if k == 0 else 0))
        assert request.fine_columns == request.value.shape[-1]
        assert request.exact.shape == (*lead, 0)
        assert request.broadcast.shape == (1,)


@pytest.mark.parametrize("share", [0.02, 0.1, 0.3, 1.0, 30.0])
@pytest.mark.parametrize("seed", one_of(3, range(3)))
def test_passes_end_once_the_largest_eigenvalue_outside_U_has_settled(seed, share):
    rng, L, r = np.random.default_rng(seed), 40, 2
    H = [rng.normal(size=(50, L)) for _ in range(3)]
    problem, U = stack(H, [h @ rng.normal(size=(L, 10)) for h in H]), random_U(seed, L, r, 0.1)
    mu = share * np.sqrt(np.linalg.eigvalsh(correlation_matrix(problem, U, 1.0))[-1])
    _, steps = lockstep(programs(problem, U, mu)[0])
    _, *passes, last = [step[0] for step in steps]
    widths = np.cumsum([request.value.shape[-1] for request in passes])
    inner = last.broadcast.reshape(widths[-1], widths[-1])
    # Before pass k the eigenvalue is that of the vectors of all passes before it; the first pass has none yet.
    tops = [0.0, *(np.linalg.eigvalsh(inner[r:n, r:n])[-1] for n in widths[:-1])]
    np.testing.assert_allclose([request.broadcast[0] for request in passes], tops, rtol=1e-9)
    settled = np.diff(tops)[1:] <= 1e-3 * mu**2
    assert not settled[:-1].any()
    assert settled[-1] or len(passes) == 16


def test_passes_without_residuals_end_as_soon_as_they_can():
    problem = stack([np.eye(5)] * 3, [np.zeros((5, 1))] * 3)
    (data, *_), steps = lockstep(programs(problem, np.eye(5, 1), 1e-200)[0])  # lambda squared is zero
    assert len(steps) == 1 + 3 + 1
    assert data.n_missing == 0
    assert data.lower_bound == 0.0


def test_a_certificate_does_not_depend_on_the_unit_of_the_targets():
    L, mu, unit = 18, 0.1, 2.0**-160
    problem, U = random_problem(3, m=4, L=L), random_U(3, L, 2)
    small = stack(problem.H, [unit * T for T in problem.T])
    (data, *_), _ = lockstep(programs(problem, U, mu)[0])
    (other, *_), _ = lockstep(programs(small, np.sqrt(unit) * U, unit * mu)[0])
    assert (other.n_used, other.n_missing) == (data.n_used, data.n_missing)
    assert other.lower_bound == pytest.approx(unit**2 * data.lower_bound, rel=1e-6)
    np.testing.assert_allclose(other.eigenvalues[:4], unit**2 * data.eigenvalues[:4], rtol=1e-6)


def test_a_transport_that_does_not_broadcast_is_refused():
    problem, U = random_problem(1, m=3, L=4), random_U(1, 4, 1)
    (program, *_), _ = programs(problem, U, 0.3)
    request = next(program)
    with pytest.raises(TypeError, match=r"^The result of a sum lacks the numbers that were to be broadcast\.$"):
        program.send(AllReduceResult(request.value, request.exact))
