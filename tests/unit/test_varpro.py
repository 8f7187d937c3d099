"""Variable projection: where it ends, how it gets there, and that it is the same in one place and over a graph."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from elmesh import MultiTaskELMClassifier, MultiTaskELMRegressor
from elmesh.comm.allreduce import PRECISION, by_mixing
from elmesh.comm.graph import GRAPH_NAMES, make_topology
from elmesh.comm.requests import Answer, Report, Sum, Total
from elmesh.datasets import load_digits_tasks
from elmesh.errors import ElmeshError
from elmesh.math.lbfgs import Memory
from elmesh.math.objective import objective_of_U
from elmesh.run import Stop, run_stacked, watch
from elmesh.solvers import DMTLELM, MTLELM, make_solver
from helpers.peers import exact_sums, own_tasks, requests_of, run_peers
from helpers.problems import random_problem, stack

BITS = (2, 4, 8, 16, 32, 64, "auto")
MIXED = ("ring", "path", "complete")


def run(solver, problem, graph=None, seed=0):
    topology = make_topology(graph, range(len(problem.H)), seed) if graph else None
    return run_stacked(solver, problem.task, topology, seed)


def reached(result):
    return float(result.history["objective"].iloc[-1])


def value_and_gradient(problem, U, mu1, mu2):
    """f(U) and its gradient from rows and targets as they are: nothing reduced, stacked or shared with the package."""
    value, gradient = mu1 / 2 * np.sum(U**2), mu1 * U
    for H, T in zip(problem.H, problem.T, strict=True):
        A = np.linalg.solve((H @ U).T @ (H @ U) + mu2 * np.eye(U.shape[1]), (H @ U).T @ T)
        R = H @ U @ A - T
        value = value + np.sum(R**2) / 2 + mu2 / 2 * np.sum(A**2)
        gradient = gradient + H.T @ R @ A.T
    return value, gradient


def scipys(problem, U, mu1, mu2):
    """The least f that SciPy finds from U on."""

    def function(u):
        value, gradient = value_and_gradient(problem, u.reshape(U.shape), mu1, mu2)
        return value, gradient.ravel()

    options = {"maxiter": 5000, "maxfun": 20_000, "ftol": 1e-15, "gtol": 1e-11}
    return minimize(function, U.ravel(), jac=True, method="L-BFGS-B", options=options).fun


# --- Where it ends ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("init", ["spectral", "random"])
@pytest.mark.parametrize("seed", range(10))
def test_it_ends_at_a_minimum_that_neither_scipy_nor_alternation_from_the_same_start_gets_below(seed, init):
    rng = np.random.default_rng(seed)
    problem = random_problem(
        seed, m=int(rng.integers(1, 7)), L=int(rng.integers(4, 14)), d=int(rng.integers(1, 4)), planted=seed % 3 > 0
    )
    mu1, mu2 = 10 ** rng.uniform(-1, 0.5, 2)
    rank = min(int(rng.integers(1, 6)), problem.task.usable_rank)
    setting = {"rank": rank, "mu1": mu1, "mu2": mu2, "init": init, "max_iter": 5000, "tol": 1e-6}
    swift = run(MTLELM(**setting), problem)
    slow = run(MTLELM(**setting, method="alternating"), problem)
    assert swift.stop in (Stop.CONVERGED, Stop.SETTLED)
    assert reached(swift) == pytest.approx(scipys(problem, swift.state.U, mu1, mu2), rel=1e-9)
    assert reached(swift) <= reached(slow) * (1 + 1e-9)
    if swift.state.certificate.rank_sufficient:
        assert reached(swift) == pytest.approx(reached(slow), rel=1e-8)
    assert swift.n_iter <= slow.n_iter + 10


@settings(max_examples=12)
@given(st.integers(0, 10_000), st.sampled_from(GRAPH_NAMES), st.sampled_from(["auto", 1, 3]), st.sampled_from(BITS))
def test_what_agents_add_up_is_the_gradient_by_finite_differences(seed, graph, rank, bits):
    problem = random_problem(seed, m=4, L=7, d=2)
    told = requests_of(DMTLELM(rank=rank, mu1=0.3, mu2=0.6, message_bits=bits), problem, graph, seed)
    rng, last, looked = np.random.default_rng(seed), None, 0
    for request in told:
        if isinstance(request, Total) and request.topic == "gradient":
            last = request
        elif isinstance(request, Report) and request.state.U.size and looked < 5:
            U, looked = request.state.U, looked + 1
            gradient = last.value.sum(axis=0) + 0.3 * U
            way = rng.normal(size=U.shape)
            way, h = way / np.linalg.norm(way), 1e-5 * (1 + np.linalg.norm(U))
            there, back = (objective_of_U(problem.task, U + sign * h * way, 0.3, 0.6) for sign in (1, -1))
            scale = np.linalg.norm(gradient) + np.linalg.norm(0.3 * U)
            assert np.vdot(gradient, way) == pytest.approx((there - back) / (2 * h), abs=1e-5 * scale)
            assert request.residual[0].sum() >= 0
            assert request.objective.sum() == pytest.approx(value_and_gradient(problem, U, 0.3, 0.6)[0], rel=1e-9)
    assert looked


@settings(max_examples=15)
@given(
    st.integers(0, 10_000),
    st.sampled_from(GRAPH_NAMES),
    st.sampled_from(["auto", 1, 2, 4]),
    st.sampled_from(BITS),
    st.sampled_from(["spectral", "random", "ones"]),
    st.sampled_from(["auto", 0.1, 3.0]),
)
def test_the_objective_never_rises_however_coarse_the_messages(seed, graph, rank, bits, init, mu):
    problem = random_problem(seed, m=5, L=10, d=2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the rank may be more than these data can use
        result = run(DMTLELM(rank=rank, mu1=mu, mu2=mu, init=init, message_bits=bits), problem, graph, seed)
    values = result.history["objective"].to_numpy()
    assert np.all(np.diff(values) <= 1e-12 * values[:-1])
    assert values[-1] == pytest.approx(objective_of_U(problem.task, result.state.U, result.state.mu1, result.state.mu2))


@pytest.mark.parametrize("rank", [2, "auto"])
@pytest.mark.parametrize("graph", GRAPH_NAMES)
def test_over_every_graph_exact_messages_give_what_one_place_gives(graph, rank):
    problem = random_problem(6, m=8, L=14)
    central, agents = run(MTLELM(rank=rank), problem), run(DMTLELM(rank=rank), problem, graph)
    np.testing.assert_allclose(agents.state.U, central.state.U, rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(agents.state.A, central.state.A, rtol=1e-7, atol=1e-9)
    assert agents.n_iter == central.n_iter
    assert agents.stop is central.stop is Stop.CONVERGED
    assert (agents.state.mu1, agents.state.mu2) == (central.state.mu1, central.state.mu2)


@pytest.mark.parametrize("bits", [2, 4, 16, "auto"])
@pytest.mark.parametrize("graph", GRAPH_NAMES)
def test_the_optimum_is_the_same_however_coarse_the_messages(graph, bits):
    problem = random_problem(6, m=8, L=14)
    best = reached(run(MTLELM(tol=1e-6), problem))
    agents = run(DMTLELM(message_bits=bits), problem, graph)
    assert agents.stop is Stop.CONVERGED
    assert reached(agents) <= best * (1 + 1e-3)


@pytest.mark.parametrize("bits", BITS)
def test_the_optimum_is_the_same_to_the_last_digit_asked_however_coarse_the_messages(bits):
    problem = random_problem(6, m=8, L=14)
    best = reached(run(MTLELM(tol=1e-6), problem))
    assert reached(run(DMTLELM(message_bits=bits, tol=1e-4), problem, "random")) <= best * (1 + 1e-6)


@settings(max_examples=12)
@given(st.integers(0, 10_000), st.integers(2, 12), st.sampled_from(GRAPH_NAMES), st.sampled_from(BITS))
def test_whatever_the_problem_coarse_messages_end_within_a_thousandth(seed, m, graph, bits):
    problem = random_problem(seed, m=m, L=12, d=2, planted=seed % 3 > 0)
    agents = run(DMTLELM(message_bits=bits, tol=1e-3), problem, graph, seed)
    best = reached(run(MTLELM(mu1=agents.state.mu1, mu2=agents.state.mu2, tol=1e-6), problem))
    assert agents.stop in (Stop.CONVERGED, Stop.SETTLED)
    assert reached(agents) <= best * (1 + 1e-3)


# --- One agent at a time ---------------------------------------------------------------------------------------------


def until(tol):
    """What a driver makes of all agents' reports: settled where the gradient in U is within tol of the penalty's."""
    floors = []

    def verdict(reports):
        rest, scale = (sum(float(pair[0]) for pair in pairs) for pairs in zip(*_pairs(reports), strict=True))
        floors.append(1e-4 * scale)
        return Answer.SETTLED if np.sqrt(rest / max(scale, floors[0])) <= tol else Answer.GO_ON

    return verdict


def _pairs(reports):
    return [(report.residual, report.scale) for report in reports]


def mixing(topology):
    """Sums as agents come by them who average with their neighbours: no two have the same one, to the bit."""
    roots, m = topology.averaging_roots(PRECISION), topology.n_agents

    def average(held):
        for root in roots:
            around = [sum(held[j] for j in topology.neighbors(t)) for t in range(m)]
            held = [own - (topology.degree[t] * own - around[t]) / root for t, own in enumerate(held)]
        return held

    def add_up(totals):
        held = average([total.value for total in totals])
        alikes = [None] * m if totals[0].same is None else average([total.same for total in totals])
        exact = exact_sums(totals)
        return [
            Sum(m * own, alike.numbers, same, alike.settle)
            for own, alike, same in zip(held, exact, alikes, strict=True)
        ]

    return add_up


def rounds_of(told):
    return max(requests[0].round for requests in told if isinstance(requests[0], Report))


def together(states):
    """How far agents' U are from the first one's, as a share of it."""
    first = states[0].U
    assert {state.U.shape for state in states} == {first.shape}
    return max(np.linalg.norm(state.U - first) for state in states) / max(np.linalg.norm(first), 1e-300)


@pytest.mark.parametrize("rank", [2, "auto"])
@pytest.mark.parametrize("graph", GRAPH_NAMES)
def test_agents_apart_are_what_they_are_in_a_stack(graph, rank):
    problem, solver = random_problem(4, m=6, L=12), DMTLELM(rank=rank)
    topology = make_topology(graph, range(6), 2)
    stacked = run_stacked(solver, problem.task, topology, 3)
    states, told = run_peers(solver, problem.task, topology, 3, verdict=until(1e-2))
    assert together(states) == 0.0
    assert rounds_of(told) == stacked.n_iter
    np.testing.assert_allclose(states[0].U, stacked.state.U, rtol=1e-7, atol=1e-9)
    for t, state in enumerate(states):
        np.testing.assert_allclose(state.A, stacked.state.A[t], rtol=1e-6, atol=1e-8)
        assert (state.mu1, state.mu2) == (stacked.state.mu1, stacked.state.mu2)
        assert state.certificate.gap == pytest.approx(stacked.state.certificate.gap, rel=1e-6, abs=1e-9)


def test_agents_with_nothing_but_their_own_rows_and_outputs_are_what_they_are_in_a_stack():
    problem, solver = random_problem(8, m=6, L=12, d=3), DMTLELM(rank=3)
    assert len({T.shape for T in problem.T}) > 2  # unequal in rows and in outputs
    topology = make_topology("random", range(6), 2)
    stacked = run_stacked(solver, problem.task, topology, 3).state
    states, _ = run_peers(solver, own_tasks(problem.H, problem.T), topology, 3, rank=3, verdict=until(1e-2))
    for t, state in enumerate(states):
        assert (state.mu1, state.mu2) == (stacked.mu1, stacked.mu2)
        np.testing.assert_allclose(state.U, stacked.U, rtol=1e-7, atol=1e-9)
        np.testing.assert_allclose(state.A, stacked.A[t][:, : problem.T[t].shape[1]], rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("rank", [3, "auto"])
@pytest.mark.parametrize("seed", range(8))
def test_agents_whose_sums_differ_by_rounding_decide_alike_and_end_with_the_same_u(seed, rank):
    """With the default tolerance; the driver sees to it that all ask for the same at the same time."""
    m = 4 + 2 * (seed % 4)
    problem = random_problem(seed, m=m, L=4 + seed, d=1 + seed % 3, planted=seed % 3 > 0)
    topology = make_topology(MIXED[seed % 3], range(m))
    rank = rank if rank == "auto" else min(3, problem.task.usable_rank)
    assert by_mixing(topology, 64)
    solver = DMTLELM(rank=rank)
    stacked = run_stacked(solver, problem.task, topology, seed)
    states, told = run_peers(solver, problem.task, topology, seed, verdict=until(1e-2), add_up=mixing(topology))
    assert together(states) <= 1e-8
    assert rounds_of(told) == stacked.n_iter
    np.testing.assert_allclose(states[0].U, stacked.state.U, atol=1e-7 * np.abs(stacked.state.U).max())
    assert len({(state.mu1, state.mu2, state.certificate) for state in states}) == 1


@pytest.mark.parametrize(("seed", "graph", "rank", "tol"), [(33, "path", "auto", 1e-4), (33, "path", 3, 1e-6)])
def test_agents_whose_sums_differ_by_rounding_stay_together_to_the_last(seed, graph, rank, tol):
    rng = np.random.default_rng(seed)
    m = int(rng.integers(2, 12))
    shape = {"L": int(rng.integers(3, 20)), "d": int(rng.integers(1, 4)), "planted": seed % 3 > 0}
    units = {"h_scale": 10 ** rng.uniform(-3, 3), "t_scale": 10 ** rng.uniform(-3, 3)}
    problem, topology = random_problem(seed, m=m, **shape, **units), make_topology(graph, range(m), seed)
    solver = DMTLELM(rank=rank, tol=tol)
    states, _ = run_peers(solver, problem.task, topology, seed, verdict=until(tol), add_up=mixing(topology))
    assert together(states) <= 1e-8


# --- What it does not depend on --------------------------------------------------------------------------------------


def weights(result):
    """U A_t of every task, side by side."""
    return np.concatenate([result.state.U @ A for A in result.state.A], axis=1)


@pytest.mark.parametrize("bits", [64, 4])
@pytest.mark.parametrize("k", [-3, -2, -1, 1, 2, 3])
def test_units_of_features_and_targets_do_not_matter(k, bits):
    problem = random_problem(9, m=5, L=10)
    as_is = run(DMTLELM(message_bits=bits), problem, "ring")
    targets = run(DMTLELM(message_bits=bits), stack(problem.H, [10.0**k * T for T in problem.T]), "ring")
    features = run(DMTLELM(message_bits=bits), stack([10.0**k * H for H in problem.H], problem.T), "ring")
    scale = np.abs(weights(as_is)).max()
    np.testing.assert_allclose(weights(targets) / 10.0**k, weights(as_is), atol=1e-5 * scale)
    np.testing.assert_allclose(weights(features) * 10.0**k, weights(as_is), atol=1e-5 * scale)
    assert targets.state.mu1 == pytest.approx(10.0**k * as_is.state.mu1, rel=1e-12)
    assert features.n_iter == targets.n_iter == as_is.n_iter


@pytest.mark.parametrize(("k", "bits"), [(-20, 2), (-20, 4), (-20, 16), (-20, "auto"), (20, 4), (20, 32), (20, "auto")])
def test_units_however_far_from_one_do_not_matter_to_coarse_messages(k, bits):
    problem = random_problem(9, m=5, L=10)
    as_is = run(DMTLELM(message_bits=bits), problem, "ring")
    moved = run(DMTLELM(message_bits=bits), stack(problem.H, [10.0**k * T for T in problem.T]), "ring")
    assert moved.stop is Stop.CONVERGED
    assert reached(moved) / 100.0**k == pytest.approx(reached(as_is), rel=1e-3)


@settings(max_examples=15)
@given(st.integers(0, 10_000), st.sampled_from(["auto", 2]), st.sampled_from([None, "complete", "random"]))
def test_the_order_of_tasks_does_not_matter(seed, rank, graph):
    problem = random_problem(seed, m=6, L=8)
    order = np.random.default_rng(seed).permutation(6)
    moved = stack([problem.H[t] for t in order], [problem.T[t] for t in order])
    solver = MTLELM if graph is None else DMTLELM
    made = solver(rank=rank, mu1=0.4, mu2=0.4, tol=1e-6)
    one, other = run(made, problem, graph, seed), run(made, moved, graph, seed)
    assert reached(other) == pytest.approx(reached(one), rel=1e-9)
    scale = max(np.abs(weights(one)).max(), 1e-3)
    for k, t in enumerate(order):
        again, before = other.state.U @ other.state.A[k], one.state.U @ one.state.A[t]
        np.testing.assert_allclose(again, before, atol=1e-3 * scale)


@pytest.mark.parametrize("graph", [None, "ring"])
def test_the_papers_start_is_no_trap_where_the_rank_is_automatic(graph):
    problem = random_problem(0, r=3)
    solver = MTLELM if graph is None else DMTLELM
    alone = run(solver(rank=1, mu1=0.1, mu2=0.1, init="ones"), problem, graph)
    grown = run(solver(mu1=0.1, mu2=0.1, init="ones"), problem, graph)
    best = reached(run(MTLELM(mu1=0.1, mu2=0.1, tol=1e-6), problem))
    assert reached(alone) > 2 * best  # what one independent column would cost
    assert reached(grown) <= 1.001 * best
    assert grown.state.certificate.rank_sufficient


@pytest.mark.parametrize("bits", BITS)
def test_two_runs_are_alike_to_the_bit(bits):
    problem = random_problem(1, m=6)
    one, other = (run(DMTLELM(message_bits=bits, tol=1e-4), problem, "random", 5) for _ in range(2))
    assert one.state.U.tobytes() == other.state.U.tobytes()
    assert one.state.A.tobytes() == other.state.A.tobytes()
    assert one.history.equals(other.history)
    assert one.ledger.table(range(6)).equals(other.ledger.table(range(6)))


# --- When it stops, and what it has sent by then ---------------------------------------------------------------------


@pytest.mark.parametrize("bits", [64, 8, 2])
def test_without_a_tolerance_it_stops_where_no_step_lowers_the_objective(bits):
    problem = random_problem(2, m=5)
    result = run(DMTLELM(rank=3, tol=0.0, message_bits=bits), problem, "ring")
    assert result.stop is Stop.SETTLED
    assert result.n_iter < 1000
    _, gradient = value_and_gradient(problem, result.state.U, result.state.mu1, result.state.mu2)
    assert np.linalg.norm(gradient) <= 1e-4 * result.state.mu1 * np.linalg.norm(result.state.U)


def test_when_rounds_run_out_it_says_so_and_certifies_what_it_has():
    problem = random_problem(2, m=5)
    result = run(DMTLELM(rank=3, tol=0.0, max_iter=4), problem, "ring")
    assert result.stop is Stop.MAX_ITER
    assert result.n_iter == 4
    assert result.state.certificate.objective == pytest.approx(reached(result))
    longer = run(DMTLELM(rank=3, tol=0.0, max_iter=5), problem, "ring")
    assert longer.history["objective"].tolist()[:5] == result.history["objective"].tolist()


@settings(max_examples=20)
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
    free = run(DMTLELM(**setting), problem, graph)
    limit = share * free.ledger.total
    try:
        kept = run(DMTLELM(**setting, max_bytes=limit), problem, graph)
    except ElmeshError as error:
        assert "not enough to agree on a start" in str(error)  # noqa: PT017
        assert limit < 2 * free.history["bytes"].iloc[0] + 1000
        return
    assert kept.ledger.total <= limit
    assert kept.stop in (Stop.BUDGET, free.stop)
    # What there was room for is what it would have been anyway.
    rows = len(kept.history)
    assert kept.history["objective"].tolist() == free.history["objective"].tolist()[:rows]
    assert reached(kept) == pytest.approx(
        objective_of_U(problem.task, kept.state.U, kept.state.mu1, kept.state.mu2), rel=1e-9
    )
    if kept.stop is Stop.BUDGET:
        assert kept.state.certificate is None
        # It was not given up long before: the next rounds would not all have fitted.
        assert free.history["bytes"].iloc[min(rows + 1, len(free.history) - 1)] > 0.5 * limit


@pytest.mark.parametrize("bits", [64, 4])
@pytest.mark.parametrize("share", [1e-4, 0.5])
def test_a_limit_on_bytes_without_room_for_the_start_is_refused_in_words(bits, share):
    problem = random_problem(3, m=5, L=20)
    start = float(run(DMTLELM(message_bits=bits), problem, "ring").history["bytes"].iloc[0])
    with pytest.raises(ElmeshError, match="is not enough to agree on a start"):
        run(DMTLELM(message_bits=bits, max_bytes=share * start), problem, "ring")


@pytest.mark.parametrize("value", [0, -5.0, float("nan"), float("inf"), "much", True])
def test_a_limit_on_bytes_that_makes_no_sense_is_refused(value):
    with pytest.raises(ElmeshError, match="max_bytes must be a finite number, more than zero"):
        make_solver(DMTLELM(max_bytes=value))


@pytest.mark.parametrize("value", [0, 3, 64.5, True, "fine", None])
def test_bits_that_no_message_has_are_refused(value):
    with pytest.raises(ElmeshError, match="message_bits must be one of 2, 4, 8, 16, 32, 64, auto"):
        make_solver(DMTLELM(message_bits=value))


@pytest.mark.parametrize("bits", [64, 4])
def test_an_observer_can_stop_it_and_the_state_of_that_round_is_kept(bits):
    problem, seen = random_problem(0, m=5), []
    whole = run(DMTLELM(rank=2, tol=0.0, max_iter=30, message_bits=bits), problem, "ring")

    def observer(progress):
        seen.append(progress)
        return progress.round == 4

    with watch(observer):
        result = run(DMTLELM(rank=2, tol=0.0, max_iter=30, message_bits=bits), problem, "ring")
    assert [progress.round for progress in seen] == [0, 1, 2, 3, 4]
    assert result.stop is Stop.INTERRUPTED
    assert result.n_iter == 4
    assert result.state.U.tobytes() == seen[-1].state.U.tobytes()
    assert reached(result) == whole.history["objective"][4]
    assert result.ledger.total == whole.history["bytes"][4]  # nothing was sent after the word
    assert reached(result) == pytest.approx(
        objective_of_U(problem.task, result.state.U, result.state.mu1, result.state.mu2)
    )


def test_an_observer_can_stop_it_in_a_round_that_meets_the_tolerance_too():
    problem, rounds = random_problem(0, m=5, r=4), []

    def observer(progress):
        rounds.append(progress.round)
        return True

    with watch(observer):
        result = run(DMTLELM(mu1=0.1, mu2=0.1, init="ones", tol=1e6), problem, "ring")
    assert rounds == [0]
    assert result.stop is Stop.INTERRUPTED
    assert result.n_iter == 0
    assert result.state.certificate is None  # nothing was done after the word


@pytest.mark.parametrize("bits", [64, 4])
@pytest.mark.parametrize("graph", GRAPH_NAMES)
def test_history_and_traffic_tell_the_same_bytes(graph, bits):
    rng = np.random.default_rng(0)
    X, sites = rng.normal(size=(60, 3)), np.repeat(list("abcdef"), 10)
    y = X @ rng.normal(size=3) + 0.1 * rng.normal(size=60)
    solver = DMTLELM(graph=graph, message_bits=bits)
    model = MultiTaskELMRegressor(8, solver=solver, random_state=0).fit(X, y, tasks=sites)
    assert model.traffic_["bytes"].sum() == model.history_["bytes"].iloc[-1] > 0
    assert model.n_exchanges_ == model.history_["exchanges"].iloc[-1]
    assert (model.history_["bytes"].diff().dropna() > 0).all()
    assert (model.history_["exchanges"].diff().dropna() > 0).all()
    pairs = {frozenset(pair) for pair in zip(model.traffic_["speaker"], model.traffic_["hearer"], strict=True)}
    assert pairs == {frozenset(edge) for edge in model.graph_.edges}
    assert model.certificate_.gap >= 0
    assert len(model.penalties_) == 2


def test_coarse_messages_take_fewer_bytes_for_the_same_optimum():
    problem = random_problem(6, m=10, L=40)
    sent = {bits: run(DMTLELM(message_bits=bits), problem, "ring").ledger.total for bits in BITS}
    assert 4 * sent[16] < sent[64]
    assert 10 * sent[4] < sent[64]
    assert sent["auto"] < sent[16] < sent[32]


def test_in_one_place_nothing_is_sent():
    result = run(MTLELM(), random_problem(0))
    assert result.ledger.total == 0
    assert result.n_exchanges == 0
    assert result.history["bytes"].max() == 0


@pytest.mark.parametrize("bits", [64, 2])
def test_one_task_alone_sends_nothing_and_is_what_one_place_gives(bits):
    problem = random_problem(4, m=1, d=2, unequal=False)
    alone, central = run(DMTLELM(message_bits=bits), problem, "ring"), run(MTLELM(), problem)
    assert alone.ledger.total == 0
    np.testing.assert_allclose(alone.state.U, central.state.U, rtol=1e-10)


# --- What it remembers -----------------------------------------------------------------------------------------------


@settings(max_examples=50)
@given(st.integers(0, 10_000), st.integers(1, 6), st.integers(1, 3), st.integers(1, 8))
def test_the_step_is_that_of_the_bfgs_formula_written_out(seed, L, r, pairs):
    rng = np.random.default_rng(seed)
    C = rng.normal(size=(L * r, L * r))
    hessian, W = C @ C.T + np.eye(L * r), np.eye(r) + (D := rng.normal(size=(r, r))) @ D.T
    memory, inverse = Memory(), None
    for _ in range(pairs):
        s = rng.normal(size=(L, r))
        y = (hessian @ s.ravel()).reshape(L, r)
        memory.learn(s, y)
    # H0 = scale W^-1 acting on rows, then one update a pair, oldest first (Nocedal and Wright, 6.17).
    inverse = np.kron(np.eye(L), np.linalg.inv(W))
    kept = memory._pairs
    s, y, _ = kept[-1]
    inverse = inverse * np.vdot(s, y) / (y.ravel() @ inverse @ y.ravel())
    for s, y, _ in kept:
        share = 1 / np.vdot(s, y)
        V = np.eye(L * r) - share * np.outer(s, y)
        inverse = V @ inverse @ V.T + share * np.outer(s, s)
    gradient = rng.normal(size=(L, r))
    expected = -(inverse @ gradient.ravel()).reshape(L, r)
    np.testing.assert_allclose(memory.step(gradient, W), expected, rtol=1e-6, atol=1e-8 * np.abs(expected).max())


def test_a_step_along_which_the_function_is_not_convex_is_not_remembered():
    memory = Memory()
    memory.learn(np.array([[1.0]]), np.array([[-1.0]]))
    memory.learn(np.array([[1.0]]), np.array([[0.0]]))
    assert len(memory) == 0
    np.testing.assert_array_equal(memory.step(np.array([[4.0]]), np.array([[2.0]])), [[-2.0]])


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
    rank = "auto" if rng.random() < 0.5 else min(int(rng.integers(1, 21)), problem.task.usable_rank)
    mu2 = mu1 if rng.random() < 0.5 else "auto"
    init = "random" if rng.random() < 0.2 else "spectral"
    return problem, {"rank": rank, "mu1": mu1, "mu2": mu2, "init": init, "message_bits": BITS[seed % 7]}


def endure(seed, max_iter):
    problem, setting = harsh(seed)
    result = run(DMTLELM(**setting, max_iter=max_iter), problem, GRAPH_NAMES[seed % 6], seed)
    context = f"seed {seed}: {len(problem.H)} agents, {setting}, {result.stop.name} after {result.n_iter}"
    assert result.stop is not Stop.DIVERGED, context
    assert np.isfinite(result.state.U).all(), context
    assert np.isfinite(result.state.A).all(), context
    values = result.history["objective"].to_numpy()
    assert np.isfinite(values).all(), context
    assert values[-1] <= values[0], context
    if setting["rank"] != "auto":
        assert np.all(np.diff(values) <= 1e-10 * values[:-1]), context
    certificate = result.state.certificate
    assert certificate.gap >= 0, context
    assert certificate.lower_bound <= certificate.objective == pytest.approx(values[-1]), context
    return result


@pytest.mark.parametrize("chunk", range(6))
def test_harsh_problems_never_diverge(chunk):
    for seed in range(5000 + 10 * chunk, 5010 + 10 * chunk):
        endure(seed, 100)


@pytest.mark.slow
@pytest.mark.parametrize("chunk", range(20))
def test_a_thousand_harsh_problems_never_diverge(chunk):
    ends = [endure(seed, 1000).stop for seed in range(50 * chunk, 50 * (chunk + 1))]
    assert ends.count(Stop.CONVERGED) + ends.count(Stop.SETTLED) >= 45


@pytest.mark.parametrize("graph", ["star", "ring"])
@pytest.mark.parametrize("seed", range(3))
def test_ten_sites_with_nothing_set_come_within_a_thousandth_of_the_optimum_in_a_hundred_rounds(graph, seed):
    data = load_digits_tasks(seed=seed)
    rows = data.X_train, data.y_train
    seen = []
    with watch(lambda progress: seen.append((progress.exchanges, progress.objective))):
        agents = MultiTaskELMClassifier(solver=DMTLELM(graph=graph), random_state=seed).fit(*rows, data.tasks_train)
    mu1, mu2 = agents.penalties_
    centre = MultiTaskELMClassifier(solver=MTLELM(mu1=mu1, mu2=mu2, tol=1e-6), random_state=seed)
    proof = centre.fit(*rows, data.tasks_train).certificate_
    assert proof.gap < 1e-5
    assert [value for exchanges, value in seen if exchanges <= 100][-1] <= (1 + 1e-3) * proof.lower_bound
