"""Variances by expectation-maximisation: the evidence rises, ends at its maximum, and few matrices are summed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import scipy.optimize
from hypothesis import assume, given
from hypothesis import strategies as st

from elmesh import MeshELM
from elmesh.comm.graph import make_topology
from elmesh.comm.requests import Topic
from elmesh.data.statistics import SiteRows
from elmesh.errors import ElmeshError
from elmesh.math.evidence import HYPERPRIOR
from elmesh.run.batches import join_programs
from elmesh.run.runner import agent_context
from elmesh.solvers import variance_components
from elmesh.solvers.base import Decision, Problem, RoundReport, rounds
from elmesh.solvers.variance_components import MATRIX_SUMS, estimate_components, released_features, sum_wide
from helpers.marks import one_of
from helpers.mixed import MixedProblem, digest, make_problem, only_context, run_steps, solve_mixed
from helpers.peers import lockstep

pytestmark = pytest.mark.thorough

ROWS = (6, 9, 4, 12, 7, 1, 10)


@pytest.fixture
def equal_noise(monkeypatch):
    """All sites have the same noise: the prior of their weights allows for nothing else."""
    monkeypatch.setattr(variance_components, "FIRST_SPREAD", 1e-6)


def estimate(problem, *, common=True, private=True, weigh=True, noise_floor=0.0, requests=None, most_features=None):
    steps = estimate_components(
        problem.batches(),
        only_context(),
        common=common,
        private=private,
        weigh=weigh,
        noise_floor=noise_floor,
        most_features=most_features,
    )
    return run_steps(steps, requests)


def penalised(problem, log_c, log_v):
    """-2 log evidence of all rows, up to a constant, with the noise profiled out, and the hyperprior."""
    L = np.linalg.cholesky(problem.covariance(log_c, log_v, np.zeros(len(problem.T))))
    T = np.vstack(problem.T)
    q = np.sum(np.linalg.solve(L, T) ** 2, axis=0)
    evidence = len(T) * np.sum(np.log(q)) + 2 * T.shape[1] * np.sum(np.log(np.diag(L)))
    return evidence + HYPERPRIOR * (log_c[1:] @ log_c[1:] + log_v @ log_v)


def after_sums(problem, n_sums, monkeypatch):
    """The estimate with so many sums of matrices."""
    monkeypatch.setattr(variance_components, "MATRIX_SUMS", n_sums)
    return estimate(problem)


@pytest.mark.parametrize("seed", one_of(3, range(4)))
def test_the_evidence_rises_from_round_to_round_to_the_maximum_of_a_direct_search(seed, equal_noise, monkeypatch):
    problem = make_problem(seed, ROWS, widths=(1, 2, 3), d=1 + seed % 2)
    as_is = after_sums(problem, MATRIX_SUMS, monkeypatch)
    monkeypatch.setattr(variance_components, "_SETTLED", 1e-3)
    found = {k: after_sums(problem, k, monkeypatch) for k in (1, 2, 3, 4, 8)}
    values = [penalised(problem, one.log_c, one.log_v) for one in found.values()]
    assert np.all(np.diff(values) <= 1e-4)
    last = found[8]

    def loss(x):
        return penalised(problem, np.array([last.log_c[0], *x[:2]]), x[2:])

    start = np.concatenate([last.log_c[1:], last.log_v])
    best = scipy.optimize.minimize(loss, start, bounds=[(-25.0, 12.0)] * 5, method="L-BFGS-B").fun
    # In units of -2 log evidence. The constant is a fixed effect to one step and a random one to the other, which
    # makes a difference of about one row.
    assert values[-1] - best <= 0.05
    assert values[2] - best <= 0.5
    assert penalised(problem, as_is.log_c, as_is.log_v) - best <= 1.0, "the search ends too early"
    assert values[0] - best > 1.0, "the start is the maximum, so that nothing is tested"


def test_the_estimate_is_the_posterior_of_the_dense_model_at_its_variances():
    problem = make_problem(1, ROWS, d=2)
    found = estimate(problem)
    assert np.ptp(found.log_w) > 0.1
    C = problem.covariance(found.log_c, found.log_v, found.log_w)
    Phi, T = np.vstack(problem.Phi), np.vstack(problem.T)
    prior = np.diag(np.exp(found.log_c)[problem.groups])
    np.testing.assert_allclose(found.W, prior @ Phi.T @ np.linalg.solve(C, T), rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(found.s2, np.sum(T * np.linalg.solve(C, T), axis=0) / len(T), rtol=1e-8)
    expected = np.linalg.inv(np.diag(1 / np.diag(prior)) + problem.totals(found.log_v, found.log_w).Q)
    np.testing.assert_allclose(found.S, expected, rtol=1e-6, atol=1e-9)


def loud_and_quiet():
    """Sites of which some have ten times the noise of others, and the deviation of each."""
    rng = np.random.default_rng(0)
    noise = np.array([0.1, 0.1, 1.0, 1.0, 0.1, 1.0])
    Phi = [np.column_stack([np.ones(60), rng.normal(size=(60, 2))]) for _ in noise]
    errors = [loud * rng.normal(size=(60, 1)) for loud in noise]
    T = [f @ np.ones((3, 1)) + error for f, error in zip(Phi, errors, strict=True)]
    return MixedProblem(Phi, T, np.array([0, 1, 1])), np.array([np.std(error) for error in errors])


def deviations_of(effects):
    return np.sqrt(effects.s2 * np.exp(-effects.log_w))


def test_louder_sites_weigh_less():
    problem, expected = loud_and_quiet()
    np.testing.assert_allclose(deviations_of(estimate(problem)), expected, rtol=0.15)


def test_without_weights_all_sites_count_alike_whatever_others_send():
    """Whoever steers W cannot make the terms of other sites small, to be left with those of one."""
    problem, _ = loud_and_quiet()
    terms = {}
    for weigh in (False, True):
        steps = estimate_components(problem.batches(), only_context(), common=True, private=True, weigh=weigh)
        answer, matrices = None, []
        while len(matrices) < 2:
            request = steps.send(answer)
            answer = request.value.copy()
            if request.topic == Topic.MATRIX:
                matrices.append(request.value)
                answer[6:9] = 2000 * answer[[0, 3, 5]]  # products with the targets: of weights as large as this
        terms[weigh] = matrices[1][0] / matrices[0][0]
    assert terms[False] > 1e-3
    assert terms[True] < 1e-4


def test_without_weights_each_site_finds_its_own_noise_for_itself():
    """Towards that of all sites, as 60 rows say much but not everything."""
    problem, expected = loud_and_quiet()
    found = deviations_of(solve_mixed(MeshELM(weigh_sites=False, rank=0, graph=None), problem).solution.effects)
    loud = expected > 0.5
    np.testing.assert_allclose(found[loud], expected[loud], rtol=0.2)
    assert np.all((expected[~loud] < found[~loud]) & (found[~loud] < 2 * expected[~loud]))


@pytest.mark.parametrize("liar", [0, 3])
def test_other_variances_than_follow_from_the_totals_are_refused(liar):
    """All take the variances of the first agent, and each has computed them as well."""
    problem, sent = make_problem(5, ROWS), []

    def lying(program, turn):
        answer = None
        while True:
            try:
                request = program.send(answer)
            except StopIteration as end:
                return end.value
            if getattr(request, "topic", None) == Topic.MATRIX:
                sent.append(turn)
            elif sent.count(turn) == 1 and not isinstance(request, RoundReport):
                # The next sum after the first matrix total is that of the common variances.
                sent.append(turn)
                wrong = request.value.copy()
                wrong[..., 0] += 1 << 40
                request = replace(request, value=wrong)
            answer = yield request

    programs = list(programs_of(problem, [[t] for t in range(len(ROWS))]))
    programs[liar] = lying(programs[liar], liar)
    with pytest.raises(ElmeshError, match="other numbers than those that follow from the totals"):
        run_together(programs)


def test_a_floor_is_the_least_noise():
    problem = make_problem(2, [9, 8, 9, 10], widths=(1, 2, 20), noise=0.0)
    squares = np.sum(np.vstack(problem.T) ** 2) / problem.rows.sum()
    assert estimate(problem).s2[0] < 0.05 * squares
    floored = estimate(problem, noise_floor=0.1)
    assert np.all(floored.s2 * np.exp(-floored.log_w) >= 0.05 * squares)


@pytest.mark.parametrize("value", [0.0, 1e-200])
def test_targets_without_any_spread_do_no_harm(value):
    problem = make_problem(2, [9, 8, 1])
    flat = MixedProblem(problem.Phi, [np.full_like(T, value) for T in problem.T], problem.groups)
    found = estimate(flat)
    for name in ("log_c", "log_v", "W", "S", "s2", "log_w"):
        assert np.isfinite(getattr(found, name)).all(), name
    np.testing.assert_allclose(found.W, 0.0, atol=1e-12)


# Few features where there are few rows -----------------------------------------------------------------------------


@given(st.lists(st.integers(0, 6), min_size=1, max_size=4), st.integers(0, 40))
def test_features_with_common_weights_are_as_many_as_allowed_and_never_some_of_the_inputs(widths, most):
    groups = np.repeat(np.arange(len(widths)), widths)
    assume(len(groups))
    released = released_features(groups, most) > 0
    constant, inputs = (np.flatnonzero(groups == g) for g in (0, 1))
    assert released[constant].all()
    assert released[inputs].all() == (len(constant) + len(inputs) <= most or not len(inputs))
    assert released[inputs].all() or not released[inputs].any()
    available = len(groups) - len(inputs) * (not released[inputs].all())
    assert released.sum() == max(len(constant), min(most, available))
    hidden = [released[groups == g] for g in range(2, len(widths))]
    for own in hidden:
        assert not np.any(np.diff(own.astype(int)) > 0)  # the first ones
    # No group has fewer than another that it has units left for.
    for own in hidden:
        if not own.all():
            assert own.sum() >= max(other.sum() for other in hidden) - 1


def test_with_few_features_the_estimate_is_the_posterior_of_a_dense_model_in_which_the_others_are_private():
    problem = make_problem(3, ROWS, widths=(1, 2, 6, 6), d=2)
    found = estimate(problem, most_features=7)
    features = found.features
    assert features.tolist() == [0, 1, 2, 3, 4, 9, 10]
    prior = np.zeros(15)
    prior[features] = np.exp(found.log_c)[problem.groups[features]]
    Phi, T = np.vstack(problem.Phi), np.vstack(problem.T)
    absent = np.full(len(found.log_c), -np.inf)
    C = problem.covariance(absent, found.log_v, found.log_w) + Phi @ np.diag(prior) @ Phi.T
    np.testing.assert_allclose(found.W, np.diag(prior) @ Phi.T @ np.linalg.solve(C, T), rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(found.s2, np.sum(T * np.linalg.solve(C, T), axis=0) / len(T), rtol=1e-8)
    others = np.setdiff1d(np.arange(15), features)
    assert not found.W[others].any()
    assert not found.S[others].any()
    assert not found.S[:, others].any()
    assert np.all(found.log_v > -20)  # private weights have all features


def test_a_group_without_common_weights_has_no_common_variance():
    problem = make_problem(3, ROWS, widths=(1, 2, 6))
    found = estimate(problem, most_features=3)
    assert found.features.tolist() == [0, 1, 2]
    assert np.exp(found.log_c[2]) == pytest.approx(0.0, abs=1e-200)


def test_only_the_totals_of_released_features_are_summed():
    requests = []
    problem = make_problem(3, [20, 30, 25], widths=(1, 2, 40), d=2)
    estimate(problem, most_features=8, requests=requests)
    matrices = [request for request in requests if request.topic is Topic.MATRIX]
    assert [request.value.size for request in matrices] == [8 * 9 // 2 + 8 * 2 + 2] * MATRIX_SUMS


@pytest.mark.parametrize("mu", ["auto", 1.0])
def test_neither_a_fit_nor_its_certificate_sums_anything_of_other_features(mu):
    problem = make_problem(5, [40, 30, 35, 30], widths=(1, 2, 30), d=1, noise=0.1)
    agents = agent_context(make_topology("ring", range(4), 0), 0)
    halves = tuple(
        [SiteRows.from_rows(F[k::2], T[k::2]) for F, T in zip(problem.Phi, problem.T, strict=True)] for k in (0, 1)
    )
    solver = MeshELM(mu1=mu, mu2=mu)
    whole = Problem(problem.sites, agents, 2, problem.groups, halves=lambda: halves, most_features=10)
    program, answer, seen = rounds(solver, whole), None, []
    try:
        while True:
            request = program.send(answer)
            reported = isinstance(request, RoundReport)
            answer = Decision.CONTINUE if reported else request.value
            seen += [] if reported else [request]
    except StopIteration as end:
        solution = end.value
    assert solution.certificate is not None
    features = solution.effects.features
    assert len(features) == 10
    blocks = [request.value for request in seen if request.topic is Topic.BLOCK]
    assert blocks
    for block in blocks:
        if block.size >= 33:
            # A block of all features: those that are not released are zero, whatever else follows it.
            columns = block.size // 33
            rest = np.setdiff1d(np.arange(33), features)
            assert not block[: 33 * columns].reshape(33, columns)[rest].any()
    assert np.abs(solution.V).sum() > 0
    if mu == 1.0:
        assert solution.U.shape[1] > 0
        assert not solution.U[np.setdiff1d(np.arange(33), features)].any()


def test_singular_totals_do_no_harm():
    """Rows that repeat, so that totals are of low rank: rounding must not make them indefinite."""
    rng = np.random.default_rng(0)
    base = np.column_stack([np.ones(4), rng.normal(size=(4, 60))])
    Phi = [1e3 * base[rng.integers(4, size=200)] for _ in range(8)]
    T = [rng.normal(size=(200, 1)) for _ in Phi]
    found = estimate(MixedProblem(Phi, T, np.repeat([0, 1, 2], [1, 30, 30])))
    assert np.isfinite(found.W).all()


# Messages ------------------------------------------------------------------------------------------------------------


def large_requests(requests, p):
    return [request for request in requests if request.value.size >= p * (p + 1) // 2]


@pytest.mark.parametrize(("private", "expected"), [(True, MATRIX_SUMS), (False, 1)])
def test_a_fit_sums_at_most_three_matrices(private, expected):
    problem = make_problem(4, [5, 30, 8, 60], widths=(1, 4, 30), d=2)
    agents = agent_context(make_topology("ring", range(4), 0), 0)
    program, answer, requests = (
        rounds(MeshELM(private=private), Problem(problem.sites, agents, 1, problem.groups)),
        None,
        [],
    )
    while True:
        try:
            request = program.send(answer)
        except StopIteration:
            break
        reported = isinstance(request, RoundReport)
        answer = Decision.CONVERGED if reported else request.value
        requests += [] if reported else [request]
    assert MATRIX_SUMS == 3
    assert len(large_requests(requests, 35)) == expected
    assert len(requests) < 60


def programs_of(problem, parts):
    """The rounds of processes, or of batches, of which each has some sites."""
    topology = make_topology("ring", range(len(problem.T)), 0)
    for part in parts:
        context = agent_context(topology, 0, np.array(part))
        yield rounds(MeshELM(), Problem([problem.sites[t] for t in part], context, 1, problem.groups))


def run_together(programs):
    return lockstep(list(programs), decide=lambda _: Decision.CONVERGED)[0]


@pytest.mark.parametrize("joined", [False, True], ids=["processes", "batches"])
@pytest.mark.parametrize("parts", [[[t] for t in range(7)], [[1, 4], [0, 2, 6], [3, 5]]])
def test_processes_and_batches_find_the_same_bits_however_sites_are_spread(parts, joined):
    problem = make_problem(5, ROWS, d=2)
    (expected,) = run_together(programs_of(problem, [list(range(7))]))
    programs = programs_of(problem, parts)
    if joined:
        programs, parts = [join_programs(list(programs), [np.array(part) for part in parts])], [list(range(7))]
    for part, solution in zip(parts, run_together(programs), strict=True):
        assert digest(solution.W) == digest(expected.W)
        assert digest(solution.V) == digest(expected.V[part])
        for name in ("log_c", "log_v", "S", "s2"):
            assert digest(getattr(solution.effects, name)) == digest(getattr(expected.effects, name)), name
        assert digest(solution.effects.log_w) == digest(expected.effects.log_w[part])
        assert solution.effects.tau2 == expected.effects.tau2
        assert solution.certificate == expected.certificate


def test_a_sum_of_a_few_numbers_is_over_all_sites():
    values = np.array([[1.5, -2.0], [0.25, 1e9]])
    assert run_steps(sum_wide(values)).tolist() == [1.75, 1e9 - 2]


# A mixed model by REML -----------------------------------------------------------------------------------------------


def test_a_random_intercept_has_the_variances_of_reml(equal_noise, monkeypatch):
    mixed_lm = pytest.importorskip(
        "statsmodels.regression.mixed_linear_model", reason="compares with statsmodels: pip install statsmodels"
    )
    rng = np.random.default_rng(0)
    m, rows = 40, rng.integers(8, 40, size=40)
    Phi = [np.column_stack([np.ones(n), rng.normal(size=(n, 2))]) for n in rows]
    T = [f @ [[0.5], [1.0], [-2.0]] + 0.7 * rng.normal() + 1.3 * rng.normal(size=(len(f), 1)) for f in Phi]
    # Common weights of all features are as good as unpenalised, as that of the constant; private is the constant's
    # alone: the other features are in no group of private weights.
    problem = MixedProblem(Phi, T, np.zeros(3, dtype=np.intp))
    batches = [replace(batch, groups=np.array([0, -1, -1])) for batch in problem.batches()]
    monkeypatch.setattr(variance_components, "HYPERPRIOR", 0.0)
    monkeypatch.setattr(variance_components, "MATRIX_SUMS", 12)
    monkeypatch.setattr(variance_components, "_SETTLED", 1e-9)
    found = run_steps(estimate_components(batches, only_context(), common=True, private=True))
    site = np.repeat(np.arange(m), rows)
    reml = mixed_lm.MixedLM(np.vstack(T)[:, 0], np.vstack(Phi), site).fit(reml=True)
    assert np.exp(found.log_v[0]) == pytest.approx(reml.cov_re.item() / reml.scale, rel=1e-3)
    np.testing.assert_allclose(found.W[:, 0], reml.fe_params, rtol=1e-4)
    # REML divides by the rows less the fixed effects.
    n = len(site)
    assert found.s2[0] * n / (n - 3) == pytest.approx(reml.scale, rel=1e-3)
