"""MeshELM: where it ends, how it gets there, and that it is the same in one place and over a graph."""

from __future__ import annotations

import warnings
from dataclasses import replace
from functools import cache, partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize

from elmesh import MTLELM, MeshELM, MultiTaskELMClassifier, MultiTaskELMRegressor, RunConfig
from elmesh.comm.allreduce import uses_gossip
from elmesh.comm.graph import GRAPH_NAMES, make_topology
from elmesh.comm.local import LocalTransport
from elmesh.comm.requests import AllReduce
from elmesh.datasets import load_digits_tasks
from elmesh.errors import ElmeshError
from elmesh.math.objective import objective_of_U
from elmesh.run import StopReason, run_local
from elmesh.run.runner import agent_context
from elmesh.solvers import make_solver
from elmesh.solvers.base import MESSAGE_BITS as BITS
from elmesh.solvers.base import Decision, Problem, RoundReport
from helpers.examples import examples
from helpers.marks import one_of
from helpers.peers import gossip_sums, lockstep, own_tasks, peer_program, requests_of, run_peers
from helpers.problems import random_problem, ridge_of_rows, solve, stack, usable_rank

GOSSIP = ("ring", "path", "complete")


def run(solver, problem, graph=None, seed=0, callback=None):
    return solve(solver, problem, graph, seed, callback)


def reached(result):
    return float(result.history["objective"].iloc[-1])


def value_and_gradient(problem, U, mu1, mu2):
    """f(U) and its gradient from plain rows and targets, by code that shares nothing with the package."""
    value, gradient = mu1 / 2 * np.sum(U**2), mu1 * U
    for H, T in zip(problem.H, problem.T, strict=True):
        A = np.linalg.solve((H @ U).T @ (H @ U) + mu2 * np.eye(U.shape[1]), (H @ U).T @ T)
        R = H @ U @ A - T
        value = value + np.sum(R**2) / 2 + mu2 / 2 * np.sum(A**2)
        gradient = gradient + H.T @ R @ A.T
    return value, gradient


def least_by_scipy(problem, U, mu1, mu2):
    """The least f that SciPy finds from U on."""

    def function(u):
        value, gradient = value_and_gradient(problem, u.reshape(U.shape), mu1, mu2)
        return value, gradient.ravel()

    options = {"maxiter": 5000, "maxfun": 20_000, "ftol": 1e-15, "gtol": 1e-11}
    return minimize(function, U.ravel(), jac=True, method="L-BFGS-B", options=options).fun


# --- Where it ends ---------------------------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize("seed", one_of(5, range(15)))
def test_it_ends_at_a_minimum_that_neither_scipy_nor_alternation_gets_below(seed):
    rng = np.random.default_rng(seed)
    problem = random_problem(
        seed, m=int(rng.integers(1, 7)), L=int(rng.integers(4, 14)), d=int(rng.integers(1, 4)), planted=seed % 3 > 0
    )
    mu1, mu2 = 10 ** rng.uniform(-1, 0.5, 2)
    rank = min(int(rng.integers(1, 6)), usable_rank(problem))
    setting = {"rank": rank, "mu1": mu1, "mu2": mu2, "max_iter": 5000, "tol": 1e-6}
    swift, slow = run(MeshELM(**setting), problem), run(MTLELM(**setting), problem)
    assert swift.stop in (StopReason.CONVERGED, StopReason.SETTLED)
    assert reached(swift) == pytest.approx(least_by_scipy(problem, swift.solution.U, mu1, mu2), rel=1e-9)
    assert reached(swift) <= reached(slow) * (1 + 1e-9)
    if swift.solution.certificate.rank_sufficient:
        assert reached(swift) == pytest.approx(reached(slow), rel=1e-8)
    assert swift.n_iter <= slow.n_iter + 10


@examples(40)
@given(st.integers(0, 10_000), st.sampled_from(GRAPH_NAMES), st.sampled_from(["auto", 1, 3]), st.sampled_from(BITS))
def test_the_sum_over_agents_is_the_gradient_by_finite_differences(seed, graph, rank, bits):
    problem = random_problem(seed, m=4, L=7, d=2)
    requests = requests_of(MeshELM(rank=rank, mu1=0.3, mu2=0.6, message_bits=bits), problem, graph, seed)
    rng, last, checked = np.random.default_rng(seed), None, 0
    for request in requests:
        if isinstance(request, AllReduce) and request.topic == "gradient":
            last = request
        elif isinstance(request, RoundReport) and request.solution.U.size and checked < 5:
            U, checked = request.solution.U, checked + 1
            gradient = last.value.sum(axis=0) + 0.3 * U
            way = rng.normal(size=U.shape)
            way, h = way / np.linalg.norm(way), 1e-5 * (1 + np.linalg.norm(U))
            there, back = (objective_of_U(problem.task, U + sign * h * way, 0.3, 0.6) for sign in (1, -1))
            scale = np.linalg.norm(gradient) + np.linalg.norm(0.3 * U)
            assert np.vdot(gradient, way) == pytest.approx((there - back) / (2 * h), abs=1e-5 * scale)
            assert request.residual[0].sum() >= 0
            assert request.objective.sum() == pytest.approx(value_and_gradient(problem, U, 0.3, 0.6)[0], rel=1e-9)
    assert checked


@pytest.mark.thorough
@examples(40)
@given(
    st.integers(0, 10_000),
    st.sampled_from(GRAPH_NAMES),
    st.sampled_from(["auto", 1, 2, 4]),
    st.sampled_from(BITS),
    st.sampled_from(["auto", 0.1, 3.0]),
)
def test_the_objective_never_rises_however_coarse_the_messages(seed, graph, rank, bits, mu):
    problem = random_problem(seed, m=5, L=10, d=2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the rank may be more than these data can use
        result = run(MeshELM(rank=rank, mu1=mu, mu2=mu, message_bits=bits), problem, graph, seed)
    values = result.history["objective"].to_numpy()
    assert np.all(np.diff(values) <= 1e-12 * values[:-1])
    assert values[-1] == pytest.approx(
        objective_of_U(problem.task, result.solution.U, result.solution.mu1, result.solution.mu2)
    )


@pytest.fixture(scope="module")
def in_one_place():
    """Solve one problem with all tasks in one place, once for each setting."""

    @cache
    def solved(**setting):
        return run(MeshELM(**setting), random_problem(6, m=8, L=14))

    return solved


@pytest.mark.thorough
@pytest.mark.parametrize(("graph", "rank"), one_of(2, GRAPH_NAMES, [2, "auto"]))
def test_over_every_graph_exact_messages_give_what_one_place_gives(in_one_place, graph, rank):
    problem = random_problem(6, m=8, L=14)
    central, agents = in_one_place(rank=rank), run(MeshELM(rank=rank), problem, graph)
    np.testing.assert_allclose(agents.solution.U, central.solution.U, rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(agents.solution.A, central.solution.A, rtol=1e-7, atol=1e-9)
    assert agents.n_iter == central.n_iter
    assert agents.stop is central.stop is StopReason.CONVERGED
    assert (agents.solution.mu1, agents.solution.mu2) == (central.solution.mu1, central.solution.mu2)


@pytest.mark.thorough
@pytest.mark.parametrize(("graph", "bits"), one_of(8, GRAPH_NAMES, [2, 4, 16, "auto"]))
def test_the_optimum_is_the_same_however_coarse_the_messages(in_one_place, graph, bits):
    problem = random_problem(6, m=8, L=14)
    best = reached(in_one_place(tol=1e-6))
    agents = run(MeshELM(message_bits=bits), problem, graph)
    assert agents.stop is StopReason.CONVERGED
    assert reached(agents) <= best * (1 + 1e-3)


@pytest.mark.parametrize("bits", one_of(2, BITS))
def test_the_optimum_is_the_same_to_the_last_digit_asked_however_coarse_the_messages(in_one_place, bits):
    problem = random_problem(6, m=8, L=14)
    best = reached(in_one_place(tol=1e-6))
    assert reached(run(MeshELM(message_bits=bits, tol=1e-4), problem, "random")) <= best * (1 + 1e-6)


@examples(40)
@given(st.integers(0, 10_000), st.integers(2, 12), st.sampled_from(GRAPH_NAMES), st.sampled_from(BITS))
def test_whatever_the_problem_coarse_messages_end_within_a_thousandth(seed, m, graph, bits):
    problem = random_problem(seed, m=m, L=12, d=2, planted=seed % 3 > 0)
    agents = run(MeshELM(message_bits=bits, tol=1e-3), problem, graph, seed)
    best = reached(run(MeshELM(mu1=agents.solution.mu1, mu2=agents.solution.mu2, tol=1e-6), problem))
    assert agents.stop in (StopReason.CONVERGED, StopReason.SETTLED)
    assert reached(agents) <= best * (1 + 1e-3)


# --- One agent at a time ---------------------------------------------------------------------------------------------


def until(tol):
    """Decide as the monitor does: converged if the gradient in U is within tol of the penalty's."""
    floors = []

    def decide(reports):
        rest = sum(float(report.residual[0]) for report in reports)
        scale = sum(float(report.scale[0]) for report in reports)
        floors.append(1e-4 * scale)
        return Decision.CONVERGED if np.sqrt(rest / max(scale, floors[0])) <= tol else Decision.CONTINUE

    return decide


def last_round(steps):
    return max(requests[0].round for requests in steps if isinstance(requests[0], RoundReport))


def largest_distance(solutions):
    """The largest distance of an agent's U from the first agent's, relative to it."""
    first = solutions[0].U
    assert {solution.U.shape for solution in solutions} == {first.shape}
    return max(np.linalg.norm(solution.U - first) for solution in solutions) / max(np.linalg.norm(first), 1e-300)


@pytest.mark.parametrize(("graph", "rank"), one_of(4, GRAPH_NAMES, [2, "auto"]))
def test_separate_agents_compute_what_a_stack_of_agents_computes(graph, rank):
    problem, solver = random_problem(4, m=6, L=12), MeshELM(rank=rank)
    topology = make_topology(graph, range(6), 2)
    stacked = run_local(solver, problem.task, topology, 3)
    solutions, steps = run_peers(solver, problem.task, topology, 3, decide=until(1e-2))
    assert largest_distance(solutions) == 0.0
    assert last_round(steps) == stacked.n_iter
    np.testing.assert_allclose(solutions[0].U, stacked.solution.U, rtol=1e-7, atol=1e-9)
    for t, solution in enumerate(solutions):
        np.testing.assert_allclose(solution.A, stacked.solution.A[t], rtol=1e-6, atol=1e-8)
        assert (solution.mu1, solution.mu2) == (stacked.solution.mu1, stacked.solution.mu2)
        assert solution.certificate.gap == pytest.approx(stacked.solution.certificate.gap, rel=1e-6, abs=1e-9)


def test_agents_with_only_their_own_rows_and_outputs_compute_what_a_stack_computes():
    problem, solver = random_problem(8, m=6, L=12, d=3), MeshELM(rank=3)
    assert len({T.shape for T in problem.T}) > 2  # unequal in rows and in outputs
    topology = make_topology("random", range(6), 2)
    stacked = run_local(solver, problem.task, topology, 3).solution
    solutions, _ = run_peers(solver, own_tasks(problem.H, problem.T), topology, 3, rank=3, decide=until(1e-2))
    for t, solution in enumerate(solutions):
        assert (solution.mu1, solution.mu2) == (stacked.mu1, stacked.mu2)
        np.testing.assert_allclose(solution.U, stacked.U, rtol=1e-7, atol=1e-9)
        np.testing.assert_allclose(solution.A, stacked.A[t][:, : problem.T[t].shape[1]], rtol=1e-6, atol=1e-8)


@pytest.mark.thorough
@pytest.mark.parametrize(("seed", "rank"), one_of(4, range(8), [3, "auto"]))
def test_agents_whose_sums_differ_by_rounding_decide_alike_and_end_with_the_same_u(seed, rank):
    """With the default tolerance; run_peers asserts that all agents make the same requests at the same time."""
    m = 4 + 2 * (seed % 4)
    problem = random_problem(seed, m=m, L=4 + seed, d=1 + seed % 3, planted=seed % 3 > 0)
    topology = make_topology(GOSSIP[seed % 3], range(m))
    rank = rank if rank == "auto" else min(3, usable_rank(problem))
    assert uses_gossip(topology, 64)
    solver = MeshELM(rank=rank)
    stacked = run_local(solver, problem.task, topology, seed)
    sums = gossip_sums(topology)
    solutions, steps = run_peers(solver, problem.task, topology, seed, decide=until(1e-2), allreduce=sums)
    assert largest_distance(solutions) <= 1e-8
    assert last_round(steps) == stacked.n_iter
    np.testing.assert_allclose(solutions[0].U, stacked.solution.U, atol=1e-7 * np.abs(stacked.solution.U).max())
    assert len({(solution.mu1, solution.mu2, solution.certificate) for solution in solutions}) == 1


@pytest.mark.parametrize(("seed", "graph", "rank", "tol"), [(33, "path", "auto", 1e-4), (33, "path", 3, 1e-6)])
def test_agents_whose_sums_differ_by_rounding_do_not_drift_apart(seed, graph, rank, tol):
    rng = np.random.default_rng(seed)
    m = int(rng.integers(2, 12))
    shape = {"L": int(rng.integers(3, 20)), "d": int(rng.integers(1, 4)), "planted": seed % 3 > 0}
    units = {"h_scale": 10 ** rng.uniform(-3, 3), "t_scale": 10 ** rng.uniform(-3, 3)}
    problem, topology = random_problem(seed, m=m, **shape, **units), make_topology(graph, range(m), seed)
    solver = MeshELM(rank=rank, tol=tol)
    solutions, _ = run_peers(solver, problem.task, topology, seed, decide=until(tol), allreduce=gossip_sums(topology))
    assert largest_distance(solutions) <= 1e-8


# --- The line search -------------------------------------------------------------------------------------------------


def trial(change):
    """Answer the first trial of a step by a change of f, as a multiple of the slope's prediction; return what follows.

    Returns the two requests for the trials, the second None if the first trial was accepted, and the state after it.
    """
    problem, topology = random_problem(3, m=4), make_topology("star", range(4))
    own, transport = Problem(problem.task, agent_context(topology, 0), 2), LocalTransport(topology)
    solver = MeshELM(rank=2, mu1=0.5, mu2=0.5)
    (state,), _ = lockstep([solver.init_state(own)])
    program = solver.step(own, state)
    first = next(program)
    result = transport.allreduce(first)
    slope = result.exact[1]
    assert slope < 0
    exact = np.array([state.here.value + change * slope, slope])
    try:
        return first, program.send(replace(result, exact=exact)), None
    except StopIteration as end:
        return first, None, end.value


@pytest.mark.parametrize("change", [1.0, 0.5, 2e-4])
def test_a_step_that_lowers_the_objective_by_a_ten_thousandth_of_the_prediction_is_accepted(change):
    first, second, after = trial(change)
    assert second is None
    assert after.round == 1
    assert not first.relative_to_previous


@pytest.mark.parametrize("change", [5e-5, 0.0, -5e-5, -1.0])
def test_a_step_that_lowers_the_objective_by_less_is_rejected_and_a_shorter_one_is_tried(change):
    first, second, after = trial(change)
    assert after is None
    assert second.topic == first.topic == "gradient"
    assert second.relative_to_previous
    # With a shorter step the objective's own share is nearer to that at the start.
    assert not np.array_equal(second.exact, first.exact)


def test_every_fourth_evaluation_averages_U_and_the_average_is_used():
    problem, topology = random_problem(3, m=5), make_topology("ring", range(5))
    solver, transport = MeshELM(rank=2, tol=0.0, max_iter=12, certify=False), LocalTransport(topology)
    program = peer_program(solver, problem.task, topology, None, 2)
    averaged, answers, reply, last = [], [], None, None
    while True:
        try:
            request = program.send(reply)
        except StopIteration:
            break
        if isinstance(request, RoundReport):
            if last is not None:
                np.testing.assert_array_equal(request.solution.U, last)
            reply = Decision.CONTINUE
            continue
        reply, last = transport.allreduce(request), None
        if request.topic == "gradient":
            averaged.append(request.average is not None)
            if request.average is not None:
                # The mean of the agents' U, up to rounding.
                last = request.average * (1 + 1e-12)
                reply = replace(reply, average=last)
                answers.append(request.average.shape)
    assert averaged == [k % 4 == 0 for k in range(len(averaged))]
    assert set(answers) == {(12, 2)}


def test_all_agents_together_may_skip_changes_of_half_the_gradient():
    problem = random_problem(3, m=5)
    requests = requests_of(MeshELM(rank=2, mu1=0.5, mu2=0.5, message_bits=4), problem, "ring")
    gradient, checked = None, 0
    for request in requests:
        if isinstance(request, RoundReport):
            gradient = np.sqrt(request.residual[0].sum())
        elif request.topic == "gradient" and request.skip_below and not request.relative_to_previous:
            assert request.skip_below * 5 == pytest.approx(0.5 * gradient)
            checked += 1
    assert checked > 3


# --- What it does not depend on --------------------------------------------------------------------------------------


def weights(result):
    """U A_t of every task, side by side."""
    return np.concatenate([result.solution.U @ A for A in result.solution.A], axis=1)


@pytest.mark.thorough
@pytest.mark.parametrize(("k", "bits"), one_of(4, [-3, -2, -1, 1, 2, 3], [64, 4]))
def test_units_of_features_and_targets_do_not_matter(k, bits):
    problem = random_problem(9, m=5, L=10)
    as_is = run(MeshELM(message_bits=bits), problem, "ring")
    targets = run(MeshELM(message_bits=bits), stack(problem.H, [10.0**k * T for T in problem.T]), "ring")
    features = run(MeshELM(message_bits=bits), stack([10.0**k * H for H in problem.H], problem.T), "ring")
    scale = np.abs(weights(as_is)).max()
    np.testing.assert_allclose(weights(targets) / 10.0**k, weights(as_is), atol=1e-5 * scale)
    np.testing.assert_allclose(weights(features) * 10.0**k, weights(as_is), atol=1e-5 * scale)
    assert targets.solution.mu1 == pytest.approx(10.0**k * as_is.solution.mu1, rel=1e-12)
    assert features.n_iter == targets.n_iter == as_is.n_iter


@pytest.mark.thorough
@pytest.mark.parametrize(("k", "bits"), one_of(3, [-20, 20], [4, 2, "auto", 16, 32]))
def test_units_however_far_from_one_do_not_matter_to_coarse_messages(k, bits):
    problem = random_problem(9, m=5, L=10)
    as_is = run(MeshELM(message_bits=bits), problem, "ring")
    moved = run(MeshELM(message_bits=bits), stack(problem.H, [10.0**k * T for T in problem.T]), "ring")
    assert moved.stop is StopReason.CONVERGED
    assert reached(moved) / 100.0**k == pytest.approx(reached(as_is), rel=1e-3)


@pytest.mark.thorough
@examples(40)
@given(st.integers(0, 10_000), st.sampled_from(["auto", 2]), st.sampled_from([None, "complete", "random"]))
def test_the_order_of_tasks_does_not_matter(seed, rank, graph):
    problem = random_problem(seed, m=6, L=8)
    order = np.random.default_rng(seed).permutation(6)
    moved = stack([problem.H[t] for t in order], [problem.T[t] for t in order])
    made = MeshELM(rank=rank, mu1=0.4, mu2=0.4, graph=graph, tol=1e-6)
    one, other = run(made, problem, graph, seed), run(made, moved, graph, seed)
    assert reached(other) == pytest.approx(reached(one), rel=1e-9)
    scale = max(np.abs(weights(one)).max(), 1e-3)
    for k, t in enumerate(order):
        again, before = other.solution.U @ other.solution.A[k], one.solution.U @ one.solution.A[t]
        np.testing.assert_allclose(again, before, atol=1e-3 * scale)


@pytest.mark.parametrize("graph", [None, "ring"])
def test_an_automatic_rank_reaches_the_optimum_that_one_column_misses(graph):
    problem = random_problem(0, r=3)
    one = run(MeshELM(rank=1, mu1=0.1, mu2=0.1, graph=graph), problem, graph)
    automatic = run(MeshELM(mu1=0.1, mu2=0.1, graph=graph), problem, graph)
    best = reached(run(MeshELM(mu1=0.1, mu2=0.1, tol=1e-6), problem))
    assert reached(one) > 2 * best
    assert reached(automatic) <= 1.001 * best
    assert automatic.solution.certificate.rank_sufficient


@pytest.mark.thorough
@pytest.mark.parametrize("bits", one_of(3, BITS))
def test_two_runs_are_equal_to_the_bit(bits):
    problem = random_problem(1, m=6)
    one, other = (run(MeshELM(message_bits=bits, tol=1e-4), problem, "random", 5) for _ in range(2))
    assert one.solution.U.tobytes() == other.solution.U.tobytes()
    assert one.solution.A.tobytes() == other.solution.A.tobytes()
    assert one.history.equals(other.history)
    assert one.traffic.table(range(6)).equals(other.traffic.table(range(6)))


# --- When it stops, and what it has sent by then ---------------------------------------------------------------------


@pytest.mark.parametrize("bits", [64, 8, 2])
def test_without_a_tolerance_it_stops_where_no_step_lowers_the_objective(bits):
    problem = random_problem(2, m=5)
    result = run(MeshELM(rank=3, tol=0.0, message_bits=bits), problem, "ring")
    assert result.stop is StopReason.SETTLED
    assert result.n_iter < 1000
    _, gradient = value_and_gradient(problem, result.solution.U, result.solution.mu1, result.solution.mu2)
    assert np.linalg.norm(gradient) <= 1e-4 * result.solution.mu1 * np.linalg.norm(result.solution.U)


def test_when_rounds_run_out_the_last_u_is_certified():
    problem = random_problem(2, m=5)
    result = run(MeshELM(rank=3, tol=0.0, max_iter=4), problem, "ring")
    assert result.stop is StopReason.MAX_ITER
    assert result.n_iter == 4
    assert result.solution.certificate.objective == pytest.approx(reached(result))
    longer = run(MeshELM(rank=3, tol=0.0, max_iter=5), problem, "ring")
    assert longer.history["objective"].tolist()[:5] == result.history["objective"].tolist()


@pytest.mark.thorough
@examples(40)
@given(
    st.integers(0, 200),
    st.sampled_from(GRAPH_NAMES),
    st.sampled_from(BITS),
    st.sampled_from([2, "auto"]),
    st.booleans(),
    st.floats(0.001, 1.2),
)
def test_a_limit_on_bytes_is_kept_to_the_byte(seed, graph, bits, rank, certify, share):
    problem = random_problem(seed, m=5, L=10)
    setting = {"rank": rank, "mu1": 0.3, "mu2": 0.3, "message_bits": bits, "tol": 1e-4, "certify": certify}
    free = run(MeshELM(**setting), problem, graph)
    limit = share * free.traffic.total
    kept = run(MeshELM(**setting, max_bytes=limit), problem, graph)
    assert kept.traffic.total <= limit
    if kept.stop is StopReason.ALONE:
        assert limit < 2 * free.history["bytes"].iloc[0] + 1000
        return
    assert kept.stop in (StopReason.BUDGET, free.stop)
    # The rounds within the limit are those of a run without it.
    rows = len(kept.history)
    assert kept.history["objective"].tolist() == free.history["objective"].tolist()[:rows]
    assert reached(kept) == pytest.approx(
        objective_of_U(problem.task, kept.solution.U, kept.solution.mu1, kept.solution.mu2), rel=1e-9
    )
    if kept.stop is StopReason.BUDGET:
        assert kept.solution.certificate is None
        # The run does not end long before the limit: the next rounds would not all have fitted.
        assert free.history["bytes"].iloc[min(rows + 1, len(free.history) - 1)] > 0.5 * limit


@pytest.mark.parametrize("bits", [64, 4])
@pytest.mark.parametrize("share", [1e-4, 0.5])
def test_a_limit_on_bytes_without_room_for_the_start_gives_each_tasks_own_model(bits, share):
    problem = random_problem(3, m=5, L=20)
    start = float(run(MeshELM(message_bits=bits), problem, "ring").history["bytes"].iloc[0])
    result = run(MeshELM(message_bits=bits, max_bytes=share * start), problem, "ring")
    assert result.stop is StopReason.ALONE
    assert result.traffic.total <= share * start
    assert (len(result.history), result.n_iter, result.solution.U) == (0, 0, None)
    # A ridge regression of each task, whose penalty no other one tried beats in generalised cross-validation.
    for H, T, A, prior in zip(problem.H, problem.T, result.solution.A, result.solution.prior, strict=True):
        mu = float(prior[0] ** -2)
        np.testing.assert_allclose(A[:, : T.shape[1]], ridge_of_rows(H, T, mu), atol=1e-8)
        found = own_score(H, T, mu)
        assert found <= min(own_score(H, T, mu * 10**k) for k in (-0.25, 0.25)) * (1 + 1e-9)


def own_score(H, T, mu):
    """Generalised cross-validation of a ridge regression; infinite if it nearly interpolates."""
    hat = H @ np.linalg.solve(H.T @ H + mu * np.eye(H.shape[1]), H.T)
    free = len(H) - np.trace(hat)
    return len(H) * np.sum((T - hat @ T) ** 2) / free**2 if free >= 0.3 * len(H) else np.inf


@pytest.mark.parametrize("value", [0, -5.0, float("nan"), float("inf"), "much", True])
def test_an_invalid_limit_on_bytes_is_refused(value):
    with pytest.raises(ElmeshError, match="max_bytes must be a finite number, more than zero"):
        make_solver(MeshELM(max_bytes=value))


@pytest.mark.parametrize("value", [1, 2.5e6, None])
def test_any_positive_limit_on_bytes_or_none_is_accepted(value):
    assert make_solver(MeshELM(max_bytes=value)).max_bytes == value


@pytest.mark.parametrize("value", [0, 3, 64.5, True, "fine", None])
def test_invalid_message_bits_are_refused(value):
    with pytest.raises(ElmeshError, match="message_bits must be one of 2, 4, 8, 16, 32, 64, auto"):
        make_solver(MeshELM(message_bits=value))


@pytest.mark.parametrize("bits", [64, 4])
def test_a_callback_can_stop_it_and_the_state_of_that_round_is_the_result(bits):
    problem, seen = random_problem(0, m=5), []
    whole = run(MeshELM(rank=2, tol=0.0, max_iter=30, message_bits=bits), problem, "ring")

    def callback(progress):
        seen.append(progress)
        return progress.round == 4

    result = run(MeshELM(rank=2, tol=0.0, max_iter=30, message_bits=bits), problem, "ring", callback=callback)
    assert [progress.round for progress in seen] == [0, 1, 2, 3, 4]
    assert result.stop is StopReason.INTERRUPTED
    assert result.n_iter == 4
    assert result.solution.U.tobytes() == seen[-1].solution.U.tobytes()
    assert reached(result) == whole.history["objective"][4]
    assert result.traffic.total == whole.history["bytes"][4]  # nothing was sent afterwards
    assert reached(result) == pytest.approx(
        objective_of_U(problem.task, result.solution.U, result.solution.mu1, result.solution.mu2)
    )


def test_a_callback_can_stop_it_in_a_round_that_meets_the_tolerance():
    problem, rounds = random_problem(0, m=5, r=4), []

    def callback(progress):
        rounds.append(progress.round)
        return True

    result = run(MeshELM(mu1=0.1, mu2=0.1, tol=1e6), problem, "ring", callback=callback)
    assert rounds == [0]
    assert result.stop is StopReason.INTERRUPTED
    assert result.n_iter == 0
    assert result.solution.certificate is None  # nothing was computed afterwards


@pytest.mark.thorough
@pytest.mark.parametrize(("graph", "bits"), one_of(4, GRAPH_NAMES, [64, 4]))
def test_history_and_traffic_have_the_same_bytes(graph, bits):
    rng = np.random.default_rng(0)
    X, sites = rng.normal(size=(60, 3)), np.repeat(list("abcdef"), 10)
    y = X @ rng.normal(size=3) + 0.1 * rng.normal(size=60)
    solver = MeshELM(graph=graph, message_bits=bits)
    model = MultiTaskELMRegressor(8, solver=solver, random_state=0).fit(X, y, tasks=sites)
    assert model.traffic_["bytes"].sum() == model.history_["bytes"].iloc[-1] > 0
    assert model.n_exchanges_ == model.history_["exchanges"].iloc[-1]
    assert (model.history_["bytes"].diff().dropna() > 0).all()
    assert (model.history_["exchanges"].diff().dropna() > 0).all()
    pairs = {frozenset(pair) for pair in zip(model.traffic_["sender"], model.traffic_["receiver"], strict=True)}
    assert pairs == {frozenset(edge) for edge in model.graph_.edges}
    assert model.certificate_.gap >= 0
    assert len(model.penalties_) == 2


def test_coarse_messages_take_fewer_bytes_for_the_same_optimum():
    problem = random_problem(6, m=10, L=40)
    sent = {bits: run(MeshELM(message_bits=bits), problem, "ring").traffic.total for bits in (4, 16, 32, 64, "auto")}
    assert 4 * sent[16] < sent[64]
    assert 10 * sent[4] < sent[64]
    assert sent["auto"] < sent[16] < sent[32]


def test_in_one_place_nothing_is_sent():
    result = run(MeshELM(), random_problem(0))
    assert result.traffic.total == 0
    assert result.n_exchanges == 0
    assert result.history["bytes"].max() == 0


@pytest.mark.parametrize("bits", [64, 2])
def test_one_task_alone_sends_nothing_and_is_what_one_place_gives(bits):
    problem = random_problem(4, m=1, d=2, unequal=False)
    alone, central = run(MeshELM(message_bits=bits), problem, "ring"), run(MeshELM(), problem)
    assert alone.traffic.total == 0
    np.testing.assert_allclose(alone.solution.U, central.solution.U, rtol=1e-10)


# --- Harsh problems --------------------------------------------------------------------------------------------------


def harsh(seed):
    """Two to 100 agents, scales of 1e-3 to 1e3, ranks of 1 to 20, planted or pure noise, any bits and graph."""
    rng = np.random.default_rng(seed)
    m, L = int(np.exp(rng.uniform(np.log(2), np.log(101)))), int(rng.integers(1 if seed % 10 == 0 else 5, 60))
    problem = random_problem(
        seed,
        m=m,
        L=L,
        r=int(rng.integers(1, min(L, 20) + 1)),
        d=int(rng.integers(1, 4)),
        n_max=int(rng.integers(5, 60)),
        planted=bool(rng.random() < 0.7),
        h_scale=10 ** rng.uniform(-3, 3),
        t_scale=10 ** rng.uniform(-3, 3),
    )
    mu1 = "auto" if rng.random() < 0.5 else 10 ** rng.uniform(-3, 3)
    rank = "auto" if rng.random() < 0.5 else min(int(rng.integers(1, 21)), usable_rank(problem))
    mu2 = mu1 if rng.random() < 0.5 else "auto"
    return problem, {"rank": rank, "mu1": mu1, "mu2": mu2, "message_bits": BITS[seed % 7]}


def solve_harsh(seed, max_iter):
    problem, setting = harsh(seed)
    result = run(MeshELM(**setting, max_iter=max_iter), problem, GRAPH_NAMES[seed % 6], seed)
    context = f"seed {seed}: {len(problem.H)} agents, {setting}, {result.stop.name} after {result.n_iter}"
    assert result.stop is not StopReason.DIVERGED, context
    assert np.isfinite(result.solution.U).all(), context
    assert np.isfinite(result.solution.A).all(), context
    values = result.history["objective"].to_numpy()
    assert np.isfinite(values).all(), context
    assert values[-1] <= values[0], context
    if setting["rank"] != "auto":
        assert np.all(np.diff(values) <= 1e-10 * values[:-1]), context
    certificate = result.solution.certificate
    assert certificate.gap >= 0, context
    assert certificate.lower_bound <= certificate.objective == pytest.approx(values[-1]), context
    return result


@pytest.mark.thorough
@pytest.mark.parametrize("chunk", one_of(6, range(6)))
def test_harsh_problems_never_diverge(chunk):
    for seed in range(5000 + 10 * chunk, 5010 + 10 * chunk):
        solve_harsh(seed, 100)


@pytest.mark.slow
@pytest.mark.parametrize("chunk", range(20))
def test_a_thousand_harsh_problems_never_diverge(chunk):
    ends = [solve_harsh(seed, 1000).stop for seed in range(50 * chunk, 50 * (chunk + 1))]
    assert ends.count(StopReason.CONVERGED) + ends.count(StopReason.SETTLED) >= 45


@pytest.mark.thorough
@pytest.mark.parametrize(("graph", "seed"), one_of(6, ["ring", "star"], range(3)))
def test_ten_sites_come_within_a_thousandth_of_the_optimum_of_the_papers_problem_in_a_hundred_rounds(graph, seed):
    data = load_digits_tasks(seed=seed)
    rows = data.X_train, data.y_train
    seen = []
    run = RunConfig(callback=lambda progress: seen.append((progress.exchanges, progress.objective)))
    paper = partial(MeshELM, common=False, private=False)
    agents = MultiTaskELMClassifier(solver=paper(graph=graph), random_state=seed)
    mu1, mu2 = agents.fit(*rows, data.tasks_train, run=run).penalties_
    central = MultiTaskELMClassifier(solver=paper(mu1=mu1, mu2=mu2, graph=None, tol=1e-6), random_state=seed)
    proof = central.fit(*rows, data.tasks_train).certificate_
    assert proof.gap < 1e-5
    assert [value for exchanges, value in seen if exchanges <= 100][-1] <= (1 + 1e-3) * proof.lower_bound
