"""The certificate: never better than the truth, exact with all tasks in one place, and the same over a graph."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elmesh import DMTLELM, FODMTLELM, MTLELM, MeshELM, TraceNorm
from elmesh.comm.graph import GRAPH_NAMES, make_topology
from elmesh.comm.requests import AllReduce, NeighborSum
from elmesh.math.certificate import (
    SLACK,
    USED_SHARE,
    Certificate,
    CertificateData,
    certificate_data,
    certify,
    count_missing,
    dual_bound,
    make_certificate,
    slack_for,
    used_columns,
)
from elmesh.math.kernels import project, residual, solve_A
from elmesh.math.objective import objective_of_U
from elmesh.run import StopReason
from elmesh.run.runner import agent_context
from elmesh.solvers.base import MESSAGE_BITS as BITS
from elmesh.solvers.base import Problem
from elmesh.solvers.graph_certificate import certificate_over_graph
from helpers.examples import examples
from helpers.marks import one_of
from helpers.peers import lockstep, requests_of
from helpers.problems import random_problem, ridge_of_rows, solve, stack, usable_rank

KINDS = ("planted", "noise", "zero targets", "rank-deficient", "some without features", "one row per task")


def problem_of(kind, seed, m, L, d=2):
    problem = random_problem(seed, m=m, L=L, d=d, planted=kind != "noise")
    if kind == "zero targets":
        return stack(problem.H, [np.zeros_like(T) for T in problem.T])
    if kind == "rank-deficient":
        return stack([H[:, :2] @ np.random.default_rng(seed).normal(size=(2, L)) for H in problem.H], problem.T)
    if kind == "some without features":
        return stack([H * (t % 2) for t, H in enumerate(problem.H)], problem.T)
    if kind == "one row per task":
        return stack([H[:1] for H in problem.H], [T[:1] for T in problem.T])
    return problem


def optimum(problem, mu1, mu2):
    """The convex problem's least value and its U, by proximal gradients, without a certificate."""
    result = solve(TraceNorm(mu1=mu1, mu2=mu2, tol=1e-10, max_iter=50_000), problem)
    assert result.stop is StopReason.CONVERGED
    return float(result.history["objective"].iloc[-1]), result.solution.U


def on_graph(solver, problem, graph, seed=1):
    return solve(solver, problem, graph, seed)


@pytest.mark.thorough
@examples(40)
@given(
    st.sampled_from(KINDS),
    st.integers(0, 10_000),
    st.integers(1, 6),
    st.integers(2, 12),
    st.integers(1, 5),
    st.floats(-1.5, 1),
    st.floats(-1, 1),
    st.floats(-2, 1),
)
def test_no_u_is_promised_more_than_the_truth(kind, seed, m, L, rank, size, balance, length):
    problem = problem_of(kind, seed, m, L)
    mu1, mu2 = 10 ** (size + balance), 10 ** (size - balance)
    best, _ = optimum(problem, mu1, mu2)
    U = 10**length * np.random.default_rng(seed).normal(size=(L, rank))
    made = certify(problem.task, U, mu1, mu2)
    room = 1e-9 * float(np.sum(problem.task.target_energy))
    assert made.objective == pytest.approx(objective_of_U(problem.task, U, mu1, mu2), rel=1e-12)
    assert made.lower_bound <= best + room
    assert made.objective >= best - room
    # The gap is a share of the bound, which is at most the optimum: in numbers it covers all that is left to gain.
    assert made.gap == np.inf or made.gap * made.lower_bound >= made.objective - best - room
    assert made.gap >= 0


@pytest.mark.thorough
@examples(40)
@given(st.sampled_from(KINDS), st.integers(0, 10_000), st.integers(1, 6), st.integers(2, 12), st.floats(-1.5, 1))
def test_at_the_optimum_the_gap_vanishes_and_the_rank_is_sufficient(kind, seed, m, L, size):
    problem = problem_of(kind, seed, m, L)
    best, U = optimum(problem, 10**size, 10**size)
    made = certify(problem.task, U, 10**size, 10**size)
    assert made.gap <= 1e-6
    assert made.rank_sufficient
    assert made.objective == pytest.approx(best, rel=1e-8)
    lengths = np.linalg.svd(U, compute_uv=False)
    assert made.suggested_rank == int(np.sum(lengths > 1e-2 * lengths.max(initial=0.0)))


@pytest.mark.thorough
@pytest.mark.parametrize("seed", one_of(6, range(12)))
def test_a_rank_that_is_too_small_is_detected_and_the_suggested_one_is_near_the_true_one(seed):
    problem = random_problem(seed, m=6, L=14, r=4, d=2)
    mu = 0.3
    _, U = optimum(problem, mu, mu)
    lengths = np.linalg.svd(U, compute_uv=False)
    true = int(np.sum(lengths > 1e-2 * lengths[0]))
    assert true >= 3
    for rank in range(1, true):
        made = solve(MeshELM(rank=rank, mu1=mu, mu2=mu, tol=1e-3), problem).solution.certificate
        assert not made.rank_sufficient
        assert made.gap > 1e-3
        assert rank < made.suggested_rank
        assert abs(made.suggested_rank - true) <= 3
    enough = solve(MeshELM(rank=true, mu1=mu, mu2=mu, tol=1e-3), problem).solution.certificate
    assert enough.rank_sufficient
    assert enough.suggested_rank == true
    assert enough.gap < 1e-2


@given(st.integers(0, 10_000), st.floats(0.01, 100), st.floats(0.01, 100))
def test_the_certificate_depends_on_the_span_of_u_and_on_no_unit(seed, unit, scale):
    problem = random_problem(seed % 50, m=3, L=8)
    rng = np.random.default_rng(seed)
    U, rotation = rng.normal(size=(8, 3)), np.linalg.qr(rng.normal(size=(3, 3)))[0]
    made = certify(problem.task, U, 0.5, 0.5)
    rotated = certify(problem.task, U @ rotation, 0.5, 0.5)
    # Targets in another unit and features in a third one: penalties have both units, and U that of the features.
    other = stack([scale * H for H in problem.H], [unit * T for T in problem.T])
    moved = certify(other.task, U * np.sqrt(unit / scale), 0.5 * scale * unit, 0.5 * scale * unit)
    for again in (rotated, moved):
        assert again.gap == pytest.approx(made.gap, rel=1e-6)
        assert (again.rank_sufficient, again.suggested_rank) == (made.rank_sufficient, made.suggested_rank)
    assert moved.lower_bound == pytest.approx(unit**2 * made.lower_bound, rel=1e-8)


@given(st.floats(0.01, 10), st.floats(0.01, 10), st.floats(0.01, 10), st.floats(-10, 10), st.floats(0, 5))
def test_the_bound_is_the_highest_that_any_scale_of_the_residuals_gives(norm, lam, R2, RY, rest):
    scales = np.linspace(0, lam / norm, 2001)
    dual = -(scales**2 * R2 / 2 + scales * RY) + rest / 2
    bound = dual_bound(norm, lam, R2, RY, rest)
    assert bound >= dual.max() - 1e-12
    assert bound <= dual.max() + R2 * (lam / norm / 2000) ** 2 + 1e-12


def test_without_residuals_or_without_a_norm_the_bound_is_what_it_can_be():
    assert dual_bound(1.0, 1.0, 0.0, 0.0, 3.0) == 1.5
    assert dual_bound(0.0, 1.0, 2.0, -2.0, 0.0) == 1.0  # free to take the top of the parabola


@pytest.mark.parametrize("slack", [1e-4, 1e-2])
@pytest.mark.parametrize("lam", [1e-3, 7.0])
def test_a_direction_is_missing_if_its_correlation_exceeds_lambda_by_more_than_the_slack(lam, slack):
    correlations = lam * np.array([0.0, 1 - slack / 2, 1.0, 1 + slack / 2, 1 + 2 * slack, 3.0])
    assert count_missing(correlations**2, lam, slack) == 2
    assert count_missing(correlations[:4] ** 2, lam, slack) == 0


def test_a_correlation_of_exactly_the_limit_is_not_missing():
    assert count_missing(np.array([9.0, 4.0, 1.0]), lam=2.0, slack=0.0) == 1


def test_the_slack_follows_the_tolerance_within_limits():
    assert [slack_for(tol) for tol in (0.0, 1e-9, 1e-3, 0.5)] == [1e-4, 1e-4, 1e-3, 1e-2]


def test_a_certificate_describes_itself():
    expected = "training objective within 10 % of the optimum over all ranks; rank 3 is enough"
    assert str(make_certificate(1.1, 1.0, 3, 0)) == expected
    assert str(make_certificate(1.1, 1.0, 3, 2)).endswith("the rank is too small, try 5")
    assert str(make_certificate(1.75, 1.0, 3, 0)).startswith("training objective within 75 % of")
    assert make_certificate(1.0, 1.0 + 1e-9, 1, 0).gap == 0.0  # a bound a little above, by rounding, is the optimum
    assert make_certificate(1.0, 1.0 + 1e-9, 1, 0).lower_bound == 1.0
    assert make_certificate(0.0, 0.0, 0, 0).gap == 0.0
    assert make_certificate(1.0, 0.0, 0, 0).gap == np.inf
    assert isinstance(make_certificate(1.0, 0.5, 1, 0), Certificate)


@pytest.mark.parametrize("n_missing", [0, 1, 2])
@pytest.mark.parametrize("rank", [2, 3, 4])
def test_other_columns_are_suggested_where_some_are_missing_or_unused(n_missing, rank):
    data = CertificateData(np.eye(5, 3), n_missing, np.zeros(0), np.zeros((5, 0)), 0.0)
    assert data.n_used == 3
    assert data.suggests_change(rank) == (n_missing != 0 or rank != 3)


@given(st.integers(0, 10_000), st.floats(1e-3, 1e3), st.floats(1e-3, 1e3))
def test_columns_in_use_are_long_or_have_a_correlation_of_lambda(seed, unit, lam):
    rng = np.random.default_rng(seed)
    # Lengths as shares of the longest, and correlations with the residuals as shares of lambda.
    lengths = np.array([1.0, 0.5, 0.02, 0.009, 0.008, 0.007, 1e-4, 1e-5, 3e-7, 2e-8])
    shares = np.array([0.0, 1.0, 0.5, 1.0, 0.995, 0.98, 0.0, 1.0, 0.0, 1.0])
    used = np.array([True, True, True, True, True, False, False, True, False, False])
    r = len(lengths)
    Q, rotation, W = (np.linalg.qr(rng.normal(size=(n, r)))[0] for n in (15, r, r + 3))
    U, E = (Q * (unit * lengths)) @ rotation.T, (Q * (lam * shares)) @ W.T
    found = used_columns(U, E, lam)
    assert found.shape == (r, used.sum())
    assert found.flags.c_contiguous
    np.testing.assert_allclose(found.T @ found, np.eye(used.sum()), atol=1e-12)
    # Orthogonal columns, longest first, each along its own direction.
    np.testing.assert_allclose(np.abs(Q[:, used].T @ (U @ found)), unit * np.diag(lengths[used]), atol=1e-9 * unit)


def test_columns_at_the_limits_of_use():
    just_short = np.diag([1.0, USED_SHARE, 0.0])
    assert used_columns(just_short, np.zeros((3, 1)), 1.0).shape == (3, 1)
    # A column of exactly the least correlation is in use.
    shorter, E = np.diag([1.0, 2.0**-8, 0.0]), np.zeros((3, 1))
    E[1] = (1 - SLACK) * 1.0
    assert used_columns(shorter, E, 1.0).shape == (3, 2)
    assert used_columns(np.zeros((3, 2)), E, 1.0).shape == (2, 0)
    assert used_columns(np.zeros((3, 0)), E, 1.0).shape == (0, 0)


def fits_of_rows(problem, U, mu2):
    """Return the tasks' residuals and targets within the column spaces of their features, correlations and the rest."""
    residuals, targets, correlations, rest = [], [], [], 0.0
    for H, T in zip(problem.H, problem.T, strict=True):
        A = ridge_of_rows(H @ U, T, mu2)
        inside = H @ np.linalg.pinv(H)
        residuals.append(inside @ (H @ U @ A - T))
        targets.append(inside @ T)
        correlations.append(H.T @ (H @ U @ A - T))
        rest += np.sum((T - inside @ T) ** 2)
    return residuals, targets, np.hstack(correlations), rest


def exact_residuals(task, U, mu2):
    HU = project(task, U)
    return residual(task, HU, solve_A(task, HU, np.zeros(1), mu2, 0.0))


@given(st.integers(0, 10_000), st.integers(1, 5), st.integers(3, 12), st.floats(0.05, 2.0))
def test_what_a_certificate_is_made_of_are_singular_values_of_all_rows(seed, m, L, share):
    problem = random_problem(seed % 100, m=m, L=L)
    U = np.random.default_rng(seed).normal(size=(L, 2))
    residuals, targets, E, rest = fits_of_rows(problem, U, 1.0)
    lam = share * np.linalg.norm(E, 2)
    data = certificate_data(problem.task, U, exact_residuals(problem.task, U, 1.0), lam, 1e-2)
    outside = E - U @ np.linalg.lstsq(U, E)[0]
    values = np.linalg.svd(outside, compute_uv=False)
    n = min(len(data.eigenvalues), len(values))
    size = np.linalg.norm(E, 2) ** 2
    np.testing.assert_allclose(data.eigenvalues[:n], values[:n] ** 2, atol=1e-9 * size)
    assert data.directions.shape == (L, len(data.eigenvalues))
    np.testing.assert_allclose(data.directions.T @ data.directions, np.eye(len(data.eigenvalues)), atol=1e-10)
    np.testing.assert_allclose(
        outside @ (outside.T @ data.directions), data.directions * data.eigenvalues, atol=1e-9 * size
    )
    assert data.n_missing == np.sum(values > 1.01 * lam)
    R2, RY = (sum(np.vdot(R, x) for R, x in zip(residuals, some, strict=True)) for some in (residuals, targets))
    bound = dual_bound(np.linalg.norm(E, 2), lam, R2, RY, rest)
    assert data.lower_bound == pytest.approx(bound, rel=1e-8, abs=1e-9 * float(np.sum(problem.task.target_energy)))
    assert data.n_used == 2


def agrees(found, exact):
    assert found.gap == pytest.approx(exact.gap, abs=1e-3, rel=1e-3)
    assert found.rank_sufficient == exact.rank_sufficient
    assert found.suggested_rank == exact.suggested_rank
    assert found.objective == pytest.approx(exact.objective, rel=1e-9)


@pytest.mark.thorough
@pytest.mark.parametrize(("graph", "bits"), one_of(8, GRAPH_NAMES, [8, 2, 64, "auto"]))
def test_over_every_graph_and_with_any_bits_the_certificate_is_that_of_one_place(graph, bits):
    problem = random_problem(3, m=7, L=15)
    for rank in (2, "auto"):
        solution = on_graph(MeshELM(rank=rank, mu1=0.3, mu2=0.3, message_bits=bits), problem, graph).solution
        agrees(solution.certificate, certify(problem.task, solution.U, 0.3, 0.3))
        assert solution.certificate.rank_sufficient == (rank == "auto")


@examples(40)
@given(st.sampled_from(KINDS), st.integers(0, 10_000), st.integers(1, 8), st.integers(2, 20), st.sampled_from(BITS))
def test_over_a_graph_the_certificate_is_that_of_one_place_whatever_the_problem(kind, seed, m, L, bits):
    problem = problem_of(kind, seed, m, L)
    solution = on_graph(MeshELM(message_bits=bits), problem, GRAPH_NAMES[seed % 6], seed).solution
    agrees(solution.certificate, certify(problem.task, solution.U, solution.mu1, solution.mu2))


@pytest.mark.parametrize(("seed", "tol"), one_of(3, [66, 95, 140, 145], [1e-3, 1e-5, 1e-7]))
def test_a_solution_near_the_optimum_is_certified_as_well_as_any(seed, tol):
    """There residuals span few directions: what remains of vectors after orthogonalisation is rounding."""
    rng = np.random.default_rng(seed)
    shape = {"m": int(rng.integers(2, 9)), "L": int(rng.integers(3, 25)), "d": int(rng.integers(1, 3))}
    problem = random_problem(seed, **shape)
    solution = on_graph(MeshELM(rank=min(3, usable_rank(problem)), tol=tol), problem, "ring").solution
    agrees(solution.certificate, certify(problem.task, solution.U, solution.mu1, solution.mu2))


def unequal_strengths():
    """Two tasks that share nothing, one of them 20,000 times as strong: the optimum is known, and has rank two."""
    strong, weak, lam = 100.0, 0.005, 1e-6
    H, T = np.eye(4), np.zeros((2, 4, 1))
    T[0, 0], T[1, 1] = strong, weak
    U = np.zeros((4, 2))
    U[0, 0], U[1, 1] = np.sqrt(strong - lam), np.sqrt(weak - lam)
    return stack([H, H], list(T)), U, lam


def test_a_rank_that_is_called_sufficient_is_sufficient():
    problem, U, lam = unequal_strengths()
    made = certify(problem.task, U, lam, lam)
    assert made.gap < 1e-6
    # The best with as many columns as are suggested: the strong task alone, or both.
    fewer = objective_of_U(problem.task, U[:, : made.suggested_rank], lam, lam)
    assert fewer <= 1.01 * made.objective


@pytest.mark.parametrize("graph", [None, "path"])
def test_an_automatic_rank_keeps_short_columns_that_carry_something(graph):
    problem, U, lam = unequal_strengths()
    result = solve(MeshELM(mu1=lam, mu2=lam), problem, graph)
    values = result.history["objective"].to_numpy()
    assert values[-1] <= 1.01 * objective_of_U(problem.task, U, lam, lam)
    assert np.all(np.diff(values) <= 1e-6 * values[:-1])


@pytest.mark.parametrize("seed", one_of(3, range(5)))
def test_over_a_graph_passes_continue_until_the_eigenvalues_no_longer_change(seed):
    """Far from the optimum, with many eigenvalues of similar size, a few passes are not enough."""
    rng = np.random.default_rng(seed)
    H = [rng.normal(size=(60, 50)) for _ in range(4)]
    problem = stack(H, [h @ rng.normal(size=(50, 12)) for h in H])
    U = 0.1 * rng.normal(size=(50, 2))
    lam = np.linalg.norm(np.hstack([h.T @ T for h, T in zip(problem.H, problem.T, strict=True)]), 2)
    task, topology = problem.task, make_topology("star", range(4))
    R = residual(task, project(task, U), solve_A(task, project(task, U), np.zeros(1), lam, 0.0))
    program = certificate_over_graph(Problem(task, agent_context(topology, seed), 2), U, R, lam, lam, 1e-2)
    (data,), requests = lockstep([program])
    exact = certificate_data(task, U, R, lam, slack_for(1e-2))
    assert len(requests) > 6  # two sums beside the passes
    assert data.eigenvalues[0] == pytest.approx(exact.eigenvalues[0], abs=2e-3 * lam**2)
    assert data.lower_bound == pytest.approx(exact.lower_bound, rel=1e-2)


@pytest.mark.thorough
@pytest.mark.parametrize(("graph", "solver"), one_of(12, GRAPH_NAMES, [DMTLELM(2, 0.3, 0.3), FODMTLELM(5, 0.3, 0.3)]))
def test_admm_certifies_the_mean_of_the_agents_bases(solver, graph):
    problem = random_problem(3, m=7, L=15)
    result = on_graph(solver, problem, graph)
    agrees(result.solution.certificate, certify(problem.task, result.solution.U.mean(axis=0), 0.3, 0.3))
    assert result.solution.certificate.rank_sufficient == (solver.rank == 5)


@pytest.mark.parametrize("solver", [MeshELM, MTLELM])
def test_in_one_place_both_methods_certify_the_same_optimum(solver):
    problem = random_problem(5, m=5, L=10)
    made = solve(solver(rank=6, mu1=0.2, mu2=0.8, tol=1e-4), problem)
    best, _ = optimum(problem, 0.2, 0.8)
    assert made.solution.certificate.gap < 1e-3
    assert made.solution.certificate.objective == pytest.approx(best, rel=1e-4)
    assert made.solution.certificate.lower_bound <= best * (1 + 1e-8)


def any_problem(seed):
    rng = np.random.default_rng(seed)
    return random_problem(
        seed,
        m=int(rng.integers(1, 13)),
        L=int(rng.integers(3, 30)),
        d=int(rng.integers(1, 4)),
        n_max=int(rng.integers(5, 40)),
        planted=seed % 3 > 0,
        h_scale=10 ** rng.uniform(-3, 3),
        t_scale=10 ** rng.uniform(-3, 3),
    )


@pytest.mark.thorough
@pytest.mark.parametrize("seed", one_of(5, range(21)))
def test_an_automatic_rank_ends_where_the_certificate_finds_no_direction_missing(seed):
    """With automatic penalties, all kinds of scales and any bits: exact singular values say the same."""
    problem = any_problem(seed)
    result = on_graph(MeshELM(message_bits=BITS[seed % 7]), problem, GRAPH_NAMES[seed % 6], seed)
    exact = certify(problem.task, result.solution.U, result.solution.mu1, result.solution.mu2)
    assert result.stop is StopReason.CONVERGED
    assert result.solution.certificate.rank_sufficient
    assert exact.rank_sufficient
    assert exact.gap < 0.02
    assert exact.suggested_rank == result.solution.U.shape[1]  # no column too many, either


def test_a_column_that_the_certificate_adds_is_not_dropped_again():
    result = on_graph(MeshELM(), any_problem(320), "ring", 0)
    assert result.solution.certificate.rank_sufficient
    assert result.n_exchanges < 200


@pytest.mark.parametrize("solver", [MeshELM(), MeshELM(rank=3, message_bits=4), DMTLELM(rank=3)])
def test_only_vectors_of_the_hidden_layers_width_and_a_few_sums_are_ever_sent(solver):
    problem = random_problem(2, m=5, L=23, d=2)
    sent = [request for request in requests_of(solver, problem, "ring") if isinstance(request, AllReduce | NeighborSum)]
    widest = max(request.value.shape[-1] for request in sent if not getattr(request, "topic", "").startswith("cert"))
    certificates = [request for request in sent if getattr(request, "topic", "").startswith("cert")]
    assert len(certificates) >= 3
    for request in sent:
        assert request.value.shape[-2:] == (1, 0) or request.value.shape[-2] == 23
    for request in certificates:
        # U's own directions and four more in the first pass, then no more than that.
        assert request.value.shape[-1] <= widest + 4
    # Exact numbers are sums, and products of a few vectors: their count does not depend on rows and targets.
    longer = random_problem(2, m=5, L=23, d=2, n_max=90)
    again = [request for request in requests_of(solver, longer, "ring") if isinstance(request, AllReduce)]
    sizes = [{r.exact.shape[-1] for r in some if isinstance(r, AllReduce)} for some in (sent, again)]
    assert max(map(max, sizes)) <= widest**2 + 3


@pytest.mark.parametrize("graph", [None, "star"])
def test_without_a_certificate_nothing_is_sent_for_it(graph):
    problem = random_problem(2, m=5)
    with_one = solve(MeshELM(rank=2), problem, graph)
    without = solve(MeshELM(rank=2, certify=False), problem, graph)
    assert without.solution.certificate is None
    assert with_one.solution.U.tobytes() == without.solution.U.tobytes()
    if graph is not None:
        passes = (with_one.n_exchanges - without.n_exchanges) / 2  # to the root and back
        assert 3 <= passes <= 18
        assert without.traffic.total < with_one.traffic.total
