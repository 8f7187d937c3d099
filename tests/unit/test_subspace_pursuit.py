"""DGSP and DNSP: the paper's rounds, what they recover, where they end, and the messages to the hub and back."""

from __future__ import annotations

import warnings

import networkx as nx
import numpy as np
import pytest
import scipy.sparse.linalg
from hypothesis import assume, given
from hypothesis import strategies as st
from sklearn.base import clone

import elmesh
from elmesh import DGSP, DNSP, MultiTaskELMClassifier, MultiTaskELMRegressor, RunConfig
from elmesh.comm.graph import make_topology
from elmesh.comm.requests import HubReduce
from elmesh.errors import ElmeshError, RankWarning
from elmesh.math.kernels import ridge
from elmesh.run import StopReason
from elmesh.run.runner import agent_context
from elmesh.solvers import make_solver
from elmesh.solvers.base import Problem, rounds
from elmesh.solvers.subspace_pursuit import new_direction
from helpers.examples import examples
from helpers.marks import one_of
from helpers.peers import lockstep, own_tasks, requests_of, run_peers
from helpers.problems import followed, random_problem, ridge_of_rows, solve, stack, task_weights

SOLVERS = [DGSP, DNSP]


def usable_rank(solver, task):
    return max(1, min(task.V.shape[-2], solver.directions(task)))


def run(solver, problem, graph="star"):
    return solve(solver, problem, graph)


def whitened(seed, m=6, L=9, d=2, n=20, *, r=None):
    """Tasks whose features are orthonormal; targets from a planted basis of r columns without noise, or random."""
    rng = np.random.default_rng(seed)
    H = [np.linalg.qr(rng.normal(size=(n, L)))[0] for _ in range(m)]
    basis = np.linalg.qr(rng.normal(size=(L, r or L)))[0]
    return stack(H, [h @ basis @ rng.normal(size=(basis.shape[1], d)) for h in H]), basis


def largest_angle_sine(one, other):
    """Sine of the largest principal angle between the spans of two orthonormal bases with as many columns."""
    return float(np.linalg.norm(other - one @ (one.T @ other), 2))


# --------------------------------------------------------------------------------------------- the paper's description


def reference(problem, rank, mu, newton):
    """The rounds task by task with explicit rows, and how clear-cut each of them was."""
    L = problem.H[0].shape[1]
    U, W, clear = np.zeros((L, 0)), [np.zeros((L, T.shape[1])) for T in problem.T], []
    A = [np.zeros((0, T.shape[1])) for T in problem.T]
    for _ in range(rank):
        directions = []
        for H, T, w in zip(problem.H, problem.T, W, strict=True):
            gradient = H.T @ (H @ w - T) + mu * w
            directions.append(np.linalg.solve(H.T @ H + mu * np.eye(L), gradient) if newton else gradient)
        left, values, _ = np.linalg.svd(np.hstack(directions))
        u = left[:, 0]
        for column in U.T:
            u = u - column * (column @ u)
        clear += [values[0], 1 - (values[1] / values[0] if len(values) > 1 else 0.0), np.linalg.norm(u)]
        U = np.column_stack([U, u / np.linalg.norm(u)])
        Z = [H @ U for H in problem.H]
        A = [ridge_of_rows(z, T, mu) for z, T in zip(Z, problem.T, strict=True)]
        W = [U @ a for a in A]
    return U, A, clear


@pytest.mark.thorough
@examples(60)
@given(
    st.integers(0, 10_000),
    st.sampled_from(SOLVERS),
    st.integers(1, 5),
    st.integers(2, 9),
    st.integers(1, 3),
    st.integers(4, 14),
    st.floats(0.01, 10.0),
    st.integers(1, 5),
)
def test_the_rounds_are_those_of_the_paper_task_by_task(seed, solver, m, L, d, n, mu, rank):
    problem = random_problem(seed, m, L, 3, d, n)
    rank = min(rank, usable_rank(solver(), problem.task))
    U, A, clear = reference(problem, rank, mu, solver is DNSP)
    # Where two singular values nearly meet, or next to nothing is left, rounding chooses the vector.
    assume(min(clear) > 1e-3)
    solution = run(solver(rank=rank, mu=mu), problem).solution
    signs = np.sign(np.sum(U * solution.U, axis=0))
    np.testing.assert_allclose(solution.U * signs, U, atol=1e-8)
    for t, a in enumerate(A):
        np.testing.assert_allclose(
            solution.A[t][:, : a.shape[1]] * signs[:, None], a, atol=1e-7 * (1 + np.abs(a).max())
        )
        assert not solution.A[t][:, a.shape[1] :].any()


@pytest.mark.parametrize("m", [3, 40])  # fewer and more directions than features: both sides of the Gram matrix
def test_the_new_direction_is_the_leading_left_singular_vector(m):
    rng = np.random.default_rng(m)
    directions = rng.normal(size=(m, 10, 2))
    left = np.linalg.svd(np.hstack(list(directions)))[0]
    u = new_direction(np.zeros((10, 0)), directions)
    assert abs(u @ left[:, 0]) == pytest.approx(1.0, abs=1e-12)
    assert np.linalg.norm(u) == pytest.approx(1.0, abs=1e-15)
    assert u[np.argmax(np.abs(u))] > 0
    for size in (1e-160, -1e160):
        np.testing.assert_allclose(new_direction(np.zeros((10, 0)), size * directions), u, atol=1e-12)


@given(st.integers(0, 10_000), st.integers(1, 8), st.floats(-10.0, 3.0))
def test_the_new_direction_is_orthonormal_to_U_even_if_U_has_nearly_all_of_the_directions(seed, k, log_size):
    rng = np.random.default_rng(seed)
    U = np.linalg.qr(rng.normal(size=(9, k)))[0]
    inside = rng.normal(size=(4, k, 2))
    u = new_direction(U, U @ inside + 10.0**log_size * rng.normal(size=(4, 9, 2)))
    assert np.linalg.norm(u) == pytest.approx(1.0, abs=1e-14)
    assert np.abs(U.T @ u).max() < 1e-14


def test_directions_that_agree_most_on_what_U_has_still_give_a_new_one():
    U = np.eye(2)[:, :1]
    directions = np.array([[[2.0], [1.0]], [[-2.0], [1.0]]])  # their leading vector is U itself
    np.testing.assert_allclose(new_direction(U, directions), [0.0, 1.0], atol=1e-15)


def test_there_is_no_new_direction_where_all_vanish_or_lie_in_U():
    U = np.linalg.qr(np.random.default_rng(0).normal(size=(5, 2)))[0]
    assert not new_direction(U, np.zeros((3, 5, 2))).any()
    assert not new_direction(U, (U @ np.ones((2, 1)))[None]).any()


# ------------------------------------------------------------------------------------------------- a planted subspace


def test_newton_directions_recover_a_planted_subspace_in_as_many_rounds_as_it_has_dimensions():
    rng = np.random.default_rng(1)
    basis = np.linalg.qr(rng.normal(size=(12, 3)))[0]
    H = [rng.normal(size=(30, 12)) * rng.uniform(0.2, 2.0, size=12) for _ in range(8)]
    truth = [basis @ rng.normal(size=(3, 2)) for _ in H]
    problem = stack(H, [h @ w for h, w in zip(H, truth, strict=True)])
    solution = run(DNSP(rank=3, mu=1e-9), problem).solution
    assert largest_angle_sine(solution.U, basis) < 1e-7
    np.testing.assert_allclose(task_weights(problem, solution), truth, atol=1e-7)
    # Gradients are bent by each task's own covariance, so as many of them do not find it.
    assert largest_angle_sine(run(DGSP(rank=3, mu=1e-9), problem).solution.U, basis) > 1e-2


@pytest.mark.parametrize("solver", SOLVERS)
def test_with_uncorrelated_features_both_recover_a_planted_subspace_and_then_stop(solver):
    problem, basis = whitened(0, r=3)
    result = run(solver(rank=7), problem)
    assert result.solution.U.shape == (9, 3)
    assert largest_angle_sine(result.solution.U, basis) < 1e-10
    assert result.stop is StopReason.COMPLETED
    # In the fourth round tasks send zeros, because they have no direction left: empty messages to the hub.
    assert result.n_iter == result.history["round"].iloc[-1] == 4
    assert result.history["bytes"].diff().iloc[-1] == 5 * 9 * 8 + followed(6)
    assert result.history["objective"].iloc[-1] == result.history["objective"].iloc[-2]


def test_with_uncorrelated_features_gradients_and_newton_directions_are_the_same():
    problem, _ = whitened(2)
    one, other = (run(solver(rank=5, mu=0.3), problem).solution for solver in SOLVERS)
    np.testing.assert_allclose(one.U, other.U, atol=1e-10)
    np.testing.assert_allclose(one.A, other.A, atol=1e-10)


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("seed", one_of(3, range(3)))
def test_tasks_with_few_noisy_rows_learn_from_each_other(solver, seed):
    rng = np.random.default_rng(seed)
    basis = np.linalg.qr(rng.normal(size=(20, 2)))[0]
    truth = [basis @ rng.normal(size=(2, 1)) for _ in range(30)]
    H = [rng.normal(size=(15, 20)) for _ in truth]
    problem = stack(H, [h @ w + 0.3 * rng.normal(size=(15, 1)) for h, w in zip(H, truth, strict=True)])

    def error(found):
        """Mean square of what is predicted wrongly on new rows, features being standard normal."""
        return float(np.mean([np.sum((b - w) ** 2) for b, w in zip(found, truth, strict=True)]))

    alone = min(error(ridge(problem.task, mu)) for mu in 10.0 ** np.arange(-3, 4, 0.5))  # at its very best
    assert error(task_weights(problem, run(solver(rank=2), problem).solution)) < 0.8 * alone


# ---------------------------------------------------------------------------------------------------------- the limits


@examples(30)
@given(st.integers(0, 10_000), st.integers(1, 4), st.integers(1, 3), st.floats(0.1, 10.0))
def test_newton_directions_end_at_separate_ridge_after_as_many_rounds_as_its_weights_span(seed, m, d, mu):
    problem = random_problem(seed, m, 10, 3, d, 12)
    alone = [ridge_of_rows(H, T, mu) for H, T in zip(problem.H, problem.T, strict=True)]
    span = np.linalg.svd(np.hstack(alone))[1]
    assume(span[-1] > 1e-4 * span[0])
    rank = len(span)
    assert usable_rank(DNSP(), problem.task) == rank
    for t, found in enumerate(task_weights(problem, run(DNSP(rank=rank, mu=mu), problem).solution)):
        np.testing.assert_allclose(found, alone[t], atol=1e-8 * np.abs(span[0]))
    if rank > 1:  # and not before
        before = task_weights(problem, run(DNSP(rank=rank - 1, mu=mu), problem).solution)
        assert max(np.abs(b - w).max() for b, w in zip(before, alone, strict=True)) > 1e-6 * span[0]


@pytest.mark.parametrize("mu", [0.1, 5.0])
def test_gradients_end_at_separate_ridge_when_they_span_all_features(mu):
    problem = random_problem(3, m=4, L=8, n_max=30)
    solution = run(DGSP(rank=8, mu=mu), problem).solution
    assert solution.U.shape == (8, 8)
    for H, T, found in zip(problem.H, problem.T, task_weights(problem, solution), strict=True):
        np.testing.assert_allclose(found, ridge_of_rows(H, T, mu), atol=1e-9)


def test_newton_directions_of_tasks_that_differ_in_two_ways_only_are_two():
    rng = np.random.default_rng(4)
    H, two = rng.normal(size=(25, 10)), rng.normal(size=(25, 2))
    problem = stack([H] * 6, [two @ rng.normal(size=(2, 1)) for _ in range(6)])
    result = run(DNSP(rank=5, mu=0.5), problem)
    assert result.solution.U.shape == (10, 2)
    np.testing.assert_allclose(result.solution.U @ result.solution.A, ridge(problem.task, 0.5), atol=1e-12)


@pytest.mark.parametrize("rounds", [1, 3, 6])
def test_gradients_of_one_task_with_one_output_are_conjugate_gradients(rounds):
    problem = random_problem(8, m=1, L=10, d=1, n_max=25, unequal=False)
    (H,), (T,), mu = problem.H, problem.T, 0.7
    iterate, _ = scipy.sparse.linalg.cg(H.T @ H + mu * np.eye(10), H.T @ T[:, 0], rtol=0.0, maxiter=rounds)
    solution = run(DGSP(rank=rounds, mu=mu), problem).solution
    np.testing.assert_allclose((solution.U @ solution.A[0])[:, 0], iterate, atol=1e-9)


@pytest.mark.thorough
@examples(30)
@given(st.integers(0, 10_000), st.sampled_from(SOLVERS), st.floats(1e-3, 100.0), st.floats(-2.0, 2.0))
def test_every_round_lowers_the_objective_and_keeps_U_orthonormal(seed, solver, mu, log_scale):
    problem = random_problem(seed, h_scale=10.0**log_scale, t_scale=10.0**-log_scale)
    rank = usable_rank(solver(), problem.task)
    result = run(solver(rank=rank, mu=mu), problem)
    history, solution = result.history, result.solution
    assert np.all(np.diff(history["objective"]) <= 1e-12 * history["objective"].iloc[0])
    np.testing.assert_allclose(solution.U.T @ solution.U, np.eye(solution.U.shape[1]), atol=1e-12)
    by_hand = sum(
        0.5 * np.sum((H @ W - T) ** 2) + 0.5 * mu * np.sum(W**2)
        for H, T, W in zip(problem.H, problem.T, task_weights(problem, solution), strict=True)
    )
    assert history["objective"].iloc[-1] == pytest.approx(by_hand, rel=1e-9)
    assert history["objective"].iloc[0] == pytest.approx(0.5 * sum(np.sum(T**2) for T in problem.T), rel=1e-12)
    assert history["consensus_gap"].max() == 0.0
    assert history["dual_residual"].iloc[0] == 1.0


def test_the_residual_is_how_much_of_the_first_directions_is_left():
    problem = random_problem(5)
    alone = [ridge_of_rows(H, T, 1.0) for H, T in zip(problem.H, problem.T, strict=True)]
    result = run(DNSP(rank=2), problem)
    found = task_weights(problem, result.solution)
    left = np.sqrt(sum(np.sum((w - b) ** 2) for w, b in zip(found, alone, strict=True)))
    assert result.history["dual_residual"].iloc[-1] == pytest.approx(left / np.linalg.norm(np.hstack(alone)), rel=1e-9)


@pytest.mark.parametrize("solver", SOLVERS)
def test_targets_of_zero_give_a_basis_without_columns(solver):
    problem = random_problem(0)
    result = run(solver(), stack(problem.H, [np.zeros_like(T) for T in problem.T]))
    assert result.solution.U.shape == (12, 0)
    assert result.stop is StopReason.COMPLETED
    assert result.n_iter == 1


@pytest.mark.parametrize("solver", SOLVERS)
def test_another_order_of_tasks_and_another_hub_give_the_same_models(solver):
    problem = random_problem(11, m=5)
    order = [3, 0, 4, 2, 1]
    moved = stack([problem.H[t] for t in order], [problem.T[t] for t in order])
    one, other = (task_weights(p, run(solver(rank=4), p).solution) for p in (problem, moved))
    for k, t in enumerate(order):
        np.testing.assert_allclose(other[k], one[t], atol=1e-9)


# -------------------------------------------------------------------------------------------------- the rank and checks


def test_a_rank_above_what_the_data_can_use_is_reduced_with_a_warning():
    problem = random_problem(0, m=2, d=1, unequal=False)
    with pytest.warns(RankWarning, match="all targets together span 2 directions, so rank 2 is used"):
        assert DNSP(rank=9).resolve_rank(problem.task) == 2
    with pytest.warns(RankWarning, match="the features of all tasks together span 12 directions, so rank 12 is used"):
        assert DGSP(rank=13).resolve_rank(problem.task) == 12
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert DNSP().resolve_rank(problem.task) == DGSP().resolve_rank(problem.task) == 2
        assert DGSP(rank=9).resolve_rank(problem.task) == 9
        assert DGSP().resolve_rank(random_problem(0, m=1, d=3, unequal=False).task) == 6


def test_gradients_span_no_more_than_the_rows_of_all_tasks():
    problem = random_problem(0, m=2, L=12, n_max=5, d=2, unequal=False)  # centred: four independent rows per task
    assert usable_rank(DGSP(), problem.task) == 8
    result = run(DGSP(rank=8, mu=0.01), problem)
    np.testing.assert_allclose(result.solution.U @ result.solution.A, ridge(problem.task, 0.01), atol=1e-8)


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"rank": 0}, "rank must be a whole number of at least 1"),
        ({"rank": "most"}, "rank must be"),
        ({"mu": 0.0}, "mu must be a finite number, more than zero"),
        ({"mu": float("nan")}, "mu must be"),
    ],
)
def test_an_invalid_parameter_is_refused_by_name(solver, parameters, message):
    with pytest.raises(ElmeshError, match=message):
        make_solver(solver(**parameters))


# ------------------------------------------------------------------------------------------------- messages and the hub


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize(("m", "d"), [(2, 1), (5, 3)])
def test_bytes_are_a_matrix_from_all_but_the_hub_and_a_vector_back(solver, m, d):
    problem = random_problem(0, m=m, L=12, d=d, unequal=False)
    result = run(solver(rank=2), problem)
    assert result.history["bytes"].tolist() == [
        (m - 1) * (12 * d + 12) * 8 * k + (k + 1) * followed(m) for k in range(3)
    ]
    assert result.n_exchanges == 2 * 2


@pytest.mark.parametrize("solver", SOLVERS)
def test_a_task_sends_columns_for_its_own_outputs_and_none_for_the_padding(solver):
    problem = random_problem(2, m=6, L=12, d=4)
    outputs = [T.shape[1] for T in problem.T]
    assert len(set(outputs)) == 2
    result = run(solver(rank=3), problem)
    sent = (sum(outputs[1:]) * 12 + 5 * 12) * 8 + followed(6)
    assert result.history["bytes"].diff().iloc[1:].tolist() == [sent] * 3


@pytest.mark.parametrize("solver", SOLVERS)
def test_one_task_or_one_place_sends_nothing(solver):
    alone = run(solver(rank=1), random_problem(0, m=1, d=2, unequal=False))
    together = solve(solver(rank=2), random_problem(0))
    for result in (alone, together):
        assert result.history["bytes"].max() == result.n_exchanges == 0
    np.testing.assert_array_equal(together.solution.U, run(solver(rank=2), random_problem(0)).solution.U)


def test_a_graph_without_a_hub_is_refused():
    with pytest.raises(ElmeshError, match="no hub: its first agent must be a neighbour of all others"):
        run(DNSP(rank=2), random_problem(0), "ring")


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("rank", [1, 4])
def test_one_generator_per_agent_gives_what_the_stack_gives(solver, rank):
    """Agents that hold their own rows and outputs only, without any padding, and one of which is the hub."""
    problem = random_problem(2, m=6, d=3)
    topology = make_topology("star", range(6))
    stacked = run(solver(rank=rank), problem).solution
    solutions, _ = run_peers(solver(), own_tasks(problem.H, problem.T), topology, rank=rank)
    for t, solution in enumerate(solutions):
        np.testing.assert_array_equal(solution.U, solutions[0].U)  # every agent holds the same basis, to the bit
        np.testing.assert_allclose(solution.U, stacked.U, atol=1e-10)
        np.testing.assert_allclose(solution.A, stacked.A[t][:, : problem.T[t].shape[1]], atol=1e-10)


@pytest.mark.parametrize("solver", SOLVERS)
def test_batches_of_agents_give_what_the_stack_gives(solver):
    problem = random_problem(2, m=6, d=3)
    topology = make_topology("star", range(6))
    stacked = run(solver(rank=4), problem).solution
    bounds = [(0, 2), (2, 5), (5, 6)]
    parts = [Problem(problem.task.agents(*ab), agent_context(topology, 0, np.arange(*ab)), 4) for ab in bounds]
    programs = [rounds(solver(), part) for part in parts]
    for (a, b), solution in zip(bounds, lockstep(programs)[0], strict=True):
        np.testing.assert_allclose(solution.U, stacked.U, atol=1e-10)
        np.testing.assert_allclose(solution.A, stacked.A[a:b], atol=1e-10)


@pytest.mark.parametrize("solver", SOLVERS)
def test_agents_that_run_out_of_directions_do_so_together(solver):
    problem, _ = whitened(0, r=2)
    topology = make_topology("star", range(6))
    solutions, _ = run_peers(solver(), problem.task, topology, rank=5)
    assert {solution.U.shape for solution in solutions} == {(9, 2)}


def test_only_directions_are_ever_sent():
    problem = random_problem(2, m=5, L=12, d=2, unequal=False)
    requests = requests_of(DGSP(rank=3), problem, "star")
    sent = [request.value for request in requests if isinstance(request, HubReduce)]
    U = requests[-1].solution.U
    assert [value.shape for value in sent] == [(5, 12, 2)] * 3
    # A gradient where the A step is exact has nothing in the span of U.
    for k, value in enumerate(sent):
        assert np.abs(U[:, :k].T @ value).max(initial=0.0) < 1e-9 * np.abs(sent[0]).max()


# ----------------------------------------------------------------------------------------------- through the estimators


def classification(seed=0):
    rng = np.random.default_rng(seed)
    X, tasks = rng.normal(size=(120, 5)), rng.permutation(np.repeat(["ayr", "bute", "cupar"], [50, 40, 30]))
    y = np.array(["larch", "maple", "oak"])[np.argmax(X @ rng.normal(size=(5, 3)), axis=1)]
    y[(tasks == "bute") & (y == "oak")] = "larch"  # a task with fewer classes than the others
    return X, y, tasks


def regression(seed=0):
    rng = np.random.default_rng(seed)
    X, _, tasks = classification(seed)
    slopes = {t: rng.normal(size=(2, 2)) for t in np.unique(tasks)}
    basis = rng.normal(size=(5, 2))
    return X, np.array([x @ basis @ slopes[t] for x, t in zip(X, tasks, strict=True)]), tasks


KINDS = {
    "classification": (MultiTaskELMClassifier, classification, 3),
    "regression": (MultiTaskELMRegressor, regression, 2),
}


@pytest.mark.thorough
@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("n_hidden", [None, 40])
@pytest.mark.parametrize("kind", KINDS)
def test_an_estimator_learns_and_is_loaded_from_its_folder(kind, n_hidden, solver, tmp_path):
    estimator, data, outputs = KINDS[kind]
    X, y, tasks = data()
    model = estimator(n_hidden, solver=solver(rank=4, mu=0.1), weight_scale=0.5, random_state=0).fit(X, y, tasks)
    L = n_hidden or 5
    assert model.score(X, y, tasks) > 0.9
    assert model.U_.shape == (L, 4)
    assert model.A_["ayr"].shape == (4, outputs)
    assert model.stop_ is StopReason.COMPLETED
    assert (model.n_iter_, model.n_exchanges_) == (4, 8)
    assert model.history_["round"].tolist() == [0, 1, 2, 3, 4]
    # The hub is the first task; of the two others one may have a class less.
    columns = outputs + model.A_["bute"].shape[1]
    assert model.history_["bytes"].tolist() == [8 * L * (columns + 2) * k + (k + 1) * followed(3) for k in range(5)]
    assert nx.utils.graphs_equal(nx.Graph(model.graph_.edges), nx.Graph([("ayr", "bute"), ("ayr", "cupar")]))
    assert model.conditions_ is None

    model.save(tmp_path / "model")
    loaded = elmesh.load(tmp_path / "model")
    assert type(loaded.solver) is solver
    assert (loaded.solver.rank, loaded.solver.mu) == (4, 0.1)
    np.testing.assert_array_equal(loaded.predict(X, tasks), model.predict(X, tasks))
    np.testing.assert_array_equal(clone(loaded).fit(X, y, tasks).predict(X, tasks), model.predict(X, tasks))
    mine = tasks == "bute"
    np.testing.assert_array_equal(loaded.for_task("bute").predict(X[mine]), model.predict(X[mine], tasks[mine]))


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("kind", KINDS)
def test_with_as_many_rounds_as_inputs_the_scores_are_those_of_the_task_alone(kind, solver):
    estimator, data, _ = KINDS[kind]
    X, y, tasks = data()
    one, other = (
        estimator(None, solver=how, random_state=0).fit(X, y, tasks)
        for how in (solver(rank=5), elmesh.LocalELM(mu=1.0))
    )
    if kind == "classification":
        np.testing.assert_allclose(one.predict_proba(X, tasks), other.predict_proba(X, tasks), atol=1e-6)
    else:
        np.testing.assert_allclose(one.predict(X, tasks), other.predict(X, tasks), atol=1e-9)


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("after", [0, 2])
def test_a_fit_that_is_interrupted_is_one_of_fewer_rounds(kind, solver, after, tmp_path):
    estimator, data, _ = KINDS[kind]
    X, y, tasks = data()
    model, seen = estimator(30, solver=solver(rank=5), random_state=0), []
    model.fit(X, y, tasks, run=RunConfig(callback=lambda progress: seen.append(progress) or progress.round == after))
    assert model.stop_ is StopReason.INTERRUPTED
    assert model.n_iter_ == after
    assert model.U_.shape == (30, after)
    assert [(progress.round, progress.max_iter) for progress in seen] == [(k, 5) for k in range(after + 1)]
    if after:
        shorter = clone(model).set_params(solver__rank=after).fit(X, y, tasks)
        np.testing.assert_array_equal(shorter.predict(X, tasks), model.predict(X, tasks))
        assert shorter.history_.equals(model.history_)
    # Even before the first round there is a model: each task's mean.
    model.save(tmp_path / "model")
    np.testing.assert_array_equal(elmesh.load(tmp_path / "model").predict(X, tasks), model.predict(X, tasks))


@pytest.mark.parametrize("solver", SOLVERS)
def test_fitting_again_gives_the_same_bits(solver):
    X, y, tasks = regression()
    one, other = (MultiTaskELMRegressor(30, solver=solver(), random_state=0).fit(X, y, tasks) for _ in range(2))
    np.testing.assert_array_equal(one.U_, other.U_)
    np.testing.assert_array_equal(one.predict(X, tasks), other.predict(X, tasks))
