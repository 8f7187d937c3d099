"""The paper's algorithms: what they converge to, from where, on which graphs, and how they fail."""

from __future__ import annotations

import warnings
from functools import cache

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize

from elmesh import DMTLELM, FODMTLELM, MTLELM, LocalELM, MeshELM, MultiTaskELMRegressor
from elmesh.comm.graph import GRAPH_NAMES, make_topology
from elmesh.comm.local import LocalTransport
from elmesh.comm.requests import AllReduce, NeighborSum
from elmesh.data.statistics import Task
from elmesh.errors import ElmeshError, RankWarning
from elmesh.math.kernels import curvature, fit_gradient, project, residual, solve_A
from elmesh.math.objective import agent_objective, objective, objective_of_U
from elmesh.run import StopReason, run_local
from elmesh.run.batches import join_programs
from elmesh.run.runner import agent_context
from elmesh.solvers import make_solver
from elmesh.solvers.admm_weights import AdaptiveZeta
from elmesh.solvers.base import Decision, Problem, RoundReport, rounds
from elmesh.solvers.initialization import random_block
from helpers.examples import examples
from helpers.marks import one_of
from helpers.peers import gossip_sums, peer_program, run_peers
from helpers.problems import (
    figure_three,
    followed,
    random_problem,
    ridge_of_rows,
    solve,
    stack,
    task_weights,
    usable_rank,
)

# The paper's three algorithms; messages are counted by hand, so there is no certificate.
PLAIN = {"mu1": 1.0, "mu2": 1.0, "certify": False}


def alternating(**parameters):
    return MTLELM(**(PLAIN | parameters))


def admm(**parameters):
    return DMTLELM(**(PLAIN | parameters))


def first_order(**parameters):
    return FODMTLELM(**(PLAIN | parameters))


def central_optimum(task, U, mu1, mu2):
    """Minimise the objective over U with A solved out, by SciPy: independent of every solver here."""

    def function(u):
        U_ = u.reshape(U.shape)
        HU = project(task, U_)
        A = solve_A(task, HU, np.zeros(1), mu2, 0.0)
        gradient = np.sum(task.V @ fit_gradient(task, residual(task, HU, A), A), axis=0) + mu1 * U_
        return objective(task, U_, A, mu1, mu2), gradient.ravel()

    options = {"maxiter": 5000, "maxfun": 20_000, "ftol": 1e-15, "gtol": 1e-11}
    return minimize(function, U.ravel(), jac=True, method="L-BFGS-B", options=options).fun


def run(solver, problem, graph="ring", seed=0, callback=None):
    return solve(solver, problem, graph, seed, callback)


def answer(transport, request):
    """Answer any request of a stack of agents."""
    if isinstance(request, RoundReport):
        return Decision.CONTINUE
    return transport.allreduce(request) if isinstance(request, AllReduce) else transport.neighbor_sum(request)


@pytest.fixture(scope="module")
def central_objective():
    """The objective that alternation reaches in one place, computed once for each size of the problem."""

    @cache
    def reached(L=5, n=10):
        made = alternating(rank=2, mu1=2.0, mu2=2.0, init="random", max_iter=5000, tol=1e-9)
        return run(made, figure_three(L=L, n=n), None).history["objective"].iloc[-1]

    return reached


@pytest.mark.thorough
@pytest.mark.parametrize(("graph", "size"), one_of(2, GRAPH_NAMES, [(5, 10), (10, 100)]))
def test_dmtl_elm_reaches_the_objective_of_mtl_elm_and_consensus_on_every_graph(central_objective, graph, size):
    problem = figure_three(0, *size)
    agents = run(admm(rank=2, mu1=2.0, mu2=2.0, init="random", max_iter=20_000, tol=1e-9), problem, graph)
    assert agents.stop is StopReason.CONVERGED
    assert agents.history["consensus_gap"].iloc[-1] <= 1e-8
    assert agents.history["objective"].iloc[-1] == pytest.approx(central_objective(*size), rel=1e-6)


@pytest.mark.parametrize("graph", one_of(2, GRAPH_NAMES))
def test_fo_dmtl_elm_reaches_the_same_objective(central_objective, graph):
    problem = figure_three()
    agents = run(first_order(rank=2, mu1=2.0, mu2=2.0, init="random", max_iter=50_000, tol=1e-8), problem, graph)
    assert agents.stop is StopReason.CONVERGED
    assert agents.history["objective"].iloc[-1] == pytest.approx(central_objective(), rel=1e-6)


@pytest.mark.parametrize("solver", [admm, first_order])
def test_from_the_seed_and_with_given_parameters_only_U_is_sent_once_per_round(central_objective, solver):
    problem = figure_three()
    fixed = solver(rank=2, mu1=2.0, mu2=2.0, rho=1.0, init="seed", max_iter=20_000, tol=1e-8, certify=False)
    agents = run(fixed, problem, "star")
    assert agents.history["objective"].iloc[-1] == pytest.approx(central_objective(), rel=1e-6)
    assert agents.n_exchanges == agents.n_iter + 1  # one message per round, and one at the start
    edges, size = len(make_topology("star", range(len(problem.H))).edges), agents.solution.U[0].nbytes
    per_round = 2 * edges * size + followed(len(problem.H), agents.solution.U[0].size, numbers=5)
    assert agents.traffic.total == per_round * agents.n_exchanges


IN_THE_PAPER = {"rank": 2, "mu1": 2.0, "mu2": 2.0, "rho": 1.0, "tau": "1 + d", "zeta": 1.0, "init": "ones"}


@pytest.fixture(scope="module")
def in_the_paper():
    """DMTL-ELM with the paper's parameters in the paper's setting."""
    return run(admm(**IN_THE_PAPER, gamma=1.0, max_iter=400, tol=0.0), figure_three())


@pytest.mark.thorough
def test_dmtl_elm_with_the_papers_parameters_reaches_the_objective_of_mtl_elm_in_its_own_setting(in_the_paper):
    problem, agents = figure_three(), in_the_paper
    central = run(alternating(rank=2, mu1=2.0, mu2=2.0, init="ones", max_iter=500, tol=0.0), problem, None)
    assert agents.history["objective"].iloc[-1] == pytest.approx(central.history["objective"].iloc[-1], rel=1e-6)
    assert agents.history["consensus_gap"].iloc[-1] <= 1e-8


def test_mtl_elm_never_increases_the_objective_and_ends_stationary():
    problem = random_problem(1)
    result = run(alternating(rank=3, init="random", max_iter=3000, tol=1e-7), problem, None)
    assert result.stop is StopReason.CONVERGED
    assert np.all(np.diff(result.history["objective"]) <= 1e-10 * result.history["objective"].iloc[0])
    best = central_optimum(problem.task, result.solution.U, 1.0, 1.0)
    assert result.history["objective"].iloc[-1] == pytest.approx(best, rel=1e-9)


@pytest.mark.thorough
@examples(20)
@given(
    st.integers(0, 10_000),
    st.sampled_from(GRAPH_NAMES),
    st.integers(2, 20),
    st.integers(1, 4),
    st.sampled_from(["spectral", "random"]),
)
def test_automatic_parameters_converge_to_a_stationary_point(seed, graph, m, rank, init):
    problem = random_problem(seed, m=m, L=10, r=rank, n_max=25)
    rank = min(rank, usable_rank(problem))
    # The default tol may stop where the objective is flat, some percent above its least value.
    result = run(admm(rank=rank, init=init, max_iter=20_000, tol=3e-3), problem, graph, seed)
    assert result.stop is StopReason.CONVERGED
    mean = result.solution.U.mean(axis=0)
    reached = objective_of_U(problem.task, mean, 1.0, 1.0)
    assert reached <= central_optimum(problem.task, mean, 1.0, 1.0) * 1.01


@pytest.mark.slow
@pytest.mark.parametrize("solver", [admm, first_order])
@pytest.mark.parametrize("chunk", range(10))
def test_automatic_parameters_are_safe_on_hundreds_of_harsh_problems(solver, chunk):
    """Two to 200 agents, scales of 1e-2 to 1e2, planted and pure noise: agents agree, and nothing diverges."""
    for seed in range(30 * chunk, 30 * (chunk + 1)):
        rng = np.random.default_rng(seed)
        m = int(np.exp(rng.uniform(np.log(2), np.log(200 if seed % 10 == 0 else 50))))
        L = int(rng.integers(5, 30))
        problem = random_problem(
            seed,
            m=m,
            L=L,
            r=int(rng.integers(1, min(L, 6) + 1)),
            d=int(rng.integers(1, 4)),
            n_max=int(rng.integers(5, 50)),
            planted=bool(rng.random() < 0.7),
            h_scale=10 ** rng.uniform(-2, 2),
            t_scale=10 ** rng.uniform(-2, 2),
        )
        mu1 = 10 ** rng.uniform(-2, 1)
        mu2 = mu1 * 10 ** rng.uniform(-1, 1)
        made = solver(rank=min(4, usable_rank(problem)), mu1=mu1, mu2=mu2, max_iter=2000)
        result = run(made, problem, GRAPH_NAMES[seed % 6], seed)
        context = f"seed {seed}, {GRAPH_NAMES[seed % 6]} of {m}"
        assert result.stop in (StopReason.CONVERGED, StopReason.MAX_ITER), context
        assert result.history["consensus_gap"].iloc[-1] < 0.1, context
        assert result.history["objective"].iloc[-1] <= 1.001 * np.sum(problem.task.target_energy) / 2, context


@pytest.mark.thorough
@pytest.mark.parametrize("graph", one_of(6, GRAPH_NAMES))
def test_automatic_parameters_converge_with_200_agents(graph):
    problem = random_problem(7, m=200, L=8, r=2, d=1, n_max=12)
    result = run(admm(rank=2, max_iter=10_000), problem, graph)
    assert result.stop is StopReason.CONVERGED
    mean = result.solution.U.mean(axis=0)
    assert objective_of_U(problem.task, mean, 1.0, 1.0) <= 1.001 * central_optimum(problem.task, mean, 1.0, 1.0)


@pytest.mark.thorough
def test_the_ones_start_traps_U_at_rank_one_and_the_default_start_does_not():
    setting = {"rank": 2, "mu1": 2.0, "mu2": 2.0, "max_iter": 500, "tol": 0.0}
    trapped = run(alternating(**setting, init="ones"), figure_three(), None).solution.U
    agents = run(admm(**setting, init="ones"), figure_three()).solution.U
    problem = random_problem(0, r=3)
    assert np.linalg.svd(trapped)[1][1] < 1e-12
    assert np.linalg.svd(agents)[1][:, 1].max() < 1e-12
    for solver, graph in (
        (alternating(rank=3, max_iter=50, tol=0.0), None),
        (admm(rank=3, max_iter=50, tol=0.0), "ring"),
        (MeshELM(rank=3, mu1=1.0, mu2=1.0, max_iter=50, tol=0.0), None),
        (MeshELM(rank=3, mu1=1.0, mu2=1.0, max_iter=50, tol=0.0), "ring"),
    ):
        values = np.linalg.svd(run(solver, problem, graph).solution.U)[1]
        assert np.min(values[..., 2] / values[..., 0]) > 1e-3


def first_reports(steps):
    """The agents' reports before the first round."""
    return next(requests for requests in steps if isinstance(requests[0], RoundReport))


@pytest.mark.thorough
@pytest.mark.parametrize("solver", [MeshELM, admm])
@examples(25)
@given(st.integers(0, 10_000), st.integers(1, 8), st.integers(1, 6), st.sampled_from(GRAPH_NAMES))
def test_the_default_start_has_full_rank_and_is_the_same_at_every_agent(solver, seed, m, rank, graph):
    problem, topology = random_problem(seed, m=m, L=9, r=2, d=1), make_topology(graph, range(m), seed)
    made = solver(rank=rank, max_iter=1)
    # With more columns than the data can use, too.
    _, steps = run_peers(made, problem.task, topology, seed, rank, allreduce=gossip_sums(topology))
    starts = np.stack([report.solution.U for report in first_reports(steps)])
    assert np.linalg.matrix_rank(starts[0]) == rank
    np.testing.assert_allclose(starts, np.broadcast_to(starts[0], starts.shape), atol=1e-8 * np.abs(starts).max())


@pytest.mark.parametrize("solver", [MeshELM, admm])
def test_the_spectral_start_is_an_orthogonal_iteration_on_the_weights_of_all_tasks(solver):
    problem = random_problem(5, m=6, r=2, unequal=False)
    # Each task's own weights, with a penalty that makes those of all tasks count alike, whatever their scale.
    pairs = zip(problem.H, problem.T, strict=True)
    weights = np.hstack([ridge_of_rows(H, T, 0.1 * np.linalg.norm(H, 2) ** 2) for H, T in pairs])
    iterated = np.linalg.qr(weights @ (weights.T @ random_block(12, 2, 0)))[0]
    _, steps = run_peers(solver(rank=2, max_iter=1), problem.task, make_topology("ring", range(6)))
    for report in first_reports(steps):
        overlap = np.linalg.svd(np.linalg.qr(report.solution.U)[0].T @ iterated)[1]
        assert overlap.min() > 1 - 1e-9


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("solver", "gamma", "graph"), one_of(4, [admm, first_order], ["auto", "paper"], ["ring", "star", "random"])
)
def test_one_generator_per_agent_gives_what_the_stack_gives(solver, gamma, graph):
    """Drive m generators without an agent axis, each receiving from its neighbours only, beside the stacked one."""
    problem = random_problem(2, m=6)
    topology = make_topology(graph, range(6), 3)
    made = solver(rank=3, gamma=gamma, max_iter=60, tol=0.0)
    stacked = run_local(made, problem.task, topology, 3).solution
    solutions, _ = run_peers(made, problem.task, topology, 3, 3)
    for t in range(6):
        np.testing.assert_allclose(solutions[t].U, stacked.U[t], rtol=1e-8, atol=1e-10)
        np.testing.assert_allclose(solutions[t].A, stacked.A[t], rtol=1e-7, atol=1e-9)


def test_only_blocks_of_U_and_a_few_sums_are_ever_sent():
    problem = random_problem(2, m=5, L=12)
    _, steps = run_peers(admm(rank=3, max_iter=5), problem.task, make_topology("ring", range(5)), rank=3)
    shapes, numbers = set(), set()
    for request in (request for requests in steps for request in requests):
        if isinstance(request, AllReduce):
            shapes.add(request.value.shape)
            numbers.add(request.exact.shape)
        elif not isinstance(request, RoundReport):
            assert isinstance(request, NeighborSum)
            assert request.value.shape == (12, 3)
    # Blocks of the start, and three numbers from which rho follows.
    assert shapes == {(12, 3), (1, 0)}
    assert numbers == {(0,), (3,)}


@pytest.mark.thorough
@pytest.mark.parametrize(("graph", "solver"), one_of(2, ["ring", "star", "complete"], [admm, first_order]))
def test_the_augmented_lagrangian_does_not_increase_under_the_conditions_of_the_lemmas(solver, graph):
    problem = figure_three()
    topology = make_topology(graph, range(5))
    degree, delta, rho = topology.degree, 0.5, 1.0
    bound = rho * 5 * (delta + 0.5) * degree
    if solver is first_order:
        # The Lipschitz constant of Theorem 2 along the whole run; A stays below its start here, checked at the end.
        bound = bound + 40.0
    made = solver(
        rank=2, mu1=2.0, mu2=2.0, rho=rho, tau=bound, zeta=0.5, gamma="paper", delta=delta, init="random",
        max_iter=200, tol=0.0,
    )  # fmt: skip
    program, transport, values = peer_program(made, problem.task, topology, None, 2), LocalTransport(topology), []
    request = next(program)
    while True:
        if isinstance(request, RoundReport):
            U, A, dual = request.solution.U, request.solution.A, request.solution.dual
            R = residual(problem.task, project(problem.task, U), A)
            F = agent_objective(problem.task, R, np.sum(U**2, axis=(1, 2)), A, 2.0, 2.0, 5)
            disagreement = degree[:, None, None] * U - transport.neighbor_sum(NeighborSum(U))
            # The augmented Lagrangian (13), with the sign of the multiplier that its update needs.
            values.append(np.sum(F) + np.vdot(dual, U) + rho / 2 * np.vdot(U, disagreement))
            assert solver is admm or curvature(problem.task, A).max() + 2.0 / 5 <= 40.0
            margins = made.margins(problem.task, request.solution, degree.astype(float), 5)
            assert margins.hold
        try:
            request = program.send(answer(transport, request))
        except StopIteration:
            break
    assert len(values) == 201
    assert np.all(np.diff(values) <= 1e-10 * abs(values[0]))


def test_the_theorems_margins_are_computed_agent_by_agent():
    problem = figure_three(m=10)
    made = admm(rank=2, mu1=2.0, mu2=2.0, rho=1.0, tau="20 + d", gamma="paper", delta=10.0, max_iter=2)
    result = run(made, problem, "star")
    margins = made.margins(problem.task, result.solution, make_topology("star", range(10)).degree.astype(float), 10)
    degrees = np.array([9] + [1] * 9)
    np.testing.assert_allclose(margins.required, 10 * 10.5 * degrees - 0.1)
    np.testing.assert_allclose(margins.margin, 20 + degrees - margins.required)
    assert margins.required[0] > 900
    assert not margins.hold


@pytest.mark.thorough
def test_the_papers_gamma_rule_can_freeze_consensus_where_one_reaches_it(in_the_paper):
    free = in_the_paper
    frozen = run(admm(**IN_THE_PAPER, gamma="paper", delta=10.0, max_iter=400, tol=0.0), figure_three())
    assert frozen.history["consensus_gap"].iloc[-1] > 1e3 * free.history["consensus_gap"].iloc[-1]
    assert free.history["consensus_gap"].iloc[-1] < 1e-8


@pytest.mark.thorough
@pytest.mark.parametrize(
    "solver",
    [
        LocalELM(mu=1.0),
        alternating(rank=3, tol=1e-8, max_iter=2000),
        pytest.param(admm(rank=3, tol=1e-6, max_iter=20_000), marks=pytest.mark.slow),
        MeshELM(rank=3, mu1=1.0, mu2=1.0, graph=None, tol=1e-8),
        MeshELM(rank=3, mu1=1.0, mu2=1.0, tol=1e-8),
    ],
)
def test_reordered_tasks_and_shuffled_rows_give_the_same_models(solver):
    problem = random_problem(11, m=5)
    rng = np.random.default_rng(0)
    order = rng.permutation(5)
    shuffles = [rng.permutation(len(H)) for H in problem.H]
    moved = stack([problem.H[t][shuffles[t]] for t in order], [problem.T[t][shuffles[t]] for t in order])
    graph = "complete" if solver.distributed else None  # the same neighbours whatever the order
    one, other = run(solver, problem, graph).solution, run(solver, moved, graph).solution
    before, after = task_weights(problem, one), task_weights(moved, other)
    for k, t in enumerate(order):
        np.testing.assert_allclose(after[k], before[t], atol=1e-4 * np.abs(before[t]).max())


def test_renumbered_agents_of_the_same_graph_give_the_same_models():
    problem = random_problem(12, m=6)
    graph = nx.Graph([(0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (5, 0), (1, 4)])
    order = np.random.default_rng(1).permutation(6)  # new number k is old number order[k]
    renamed = nx.relabel_nodes(graph, {int(t): k for k, t in enumerate(order)})
    moved = stack([problem.H[t] for t in order], [problem.T[t] for t in order])
    solver = admm(rank=3, max_iter=40, tol=0.0)
    one, other = run(solver, problem, graph).solution, run(solver, moved, renamed).solution
    np.testing.assert_allclose(other.U, one.U[order], rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(other.A, one.A[order], rtol=1e-6, atol=1e-8)


def test_a_run_that_diverges_stops_and_keeps_the_last_finite_state():
    problem = random_problem(0, m=8, h_scale=30.0)
    wild = first_order(rank=3, rho=1.0, tau=0.5, zeta=0.0, init="random", max_iter=5000)
    result = run(wild, problem, "star")
    assert result.stop is StopReason.DIVERGED
    assert result.n_iter < 5000
    assert np.isfinite(result.solution.U).all()
    assert np.isfinite(result.solution.A).all()
    assert np.isfinite(result.history["objective"]).all()


@pytest.mark.parametrize("solver", [MeshELM, admm])
def test_a_run_reports_whether_it_converged_or_ran_out_of_rounds(solver):
    problem = random_problem(0)
    assert run(solver(rank=2, max_iter=3), problem).stop is StopReason.MAX_ITER
    done = run(solver(rank=2, max_iter=5000, tol=1e-3), problem)
    assert done.stop is StopReason.CONVERGED
    last = done.history.iloc[-1]
    assert max(last["consensus_gap"], last["dual_residual"]) <= 1e-3
    assert done.n_iter == last["round"] < 5000
    assert run(LocalELM(mu=1.0), problem, None).stop is StopReason.DIRECT


@pytest.mark.parametrize("solver", [MeshELM, admm])
def test_targets_of_zero_are_learned_at_once(solver):
    problem = random_problem(0)
    zero = stack(problem.H, [np.zeros_like(T) for T in problem.T])
    result = run(solver(rank=1, max_iter=2000), zero)
    assert result.stop is StopReason.CONVERGED
    assert not result.solution.A.any()


@pytest.mark.parametrize("solver", [MeshELM, admm])
def test_a_penalty_that_wipes_out_the_solution_still_converges(solver):
    result = run(solver(rank=2, mu1=1e4, mu2=1e4, max_iter=5000), random_problem(3))
    assert result.stop is StopReason.CONVERGED
    U = result.solution.U
    assert np.linalg.norm((U if U.ndim == 2 else U[0]) @ result.solution.A[0]) < 1e-3


def test_bytes_are_what_every_agent_sends_to_every_neighbour():
    problem = random_problem(0, m=5, L=12)
    topology = make_topology("star", range(5))
    result = run(admm(rank=3, rho=1.0, init="ones", max_iter=7, tol=0.0), problem, "star")
    # With everything given, only U travels: once before the first round and once in each.
    assert result.n_exchanges == 8
    per_round = 12 * 3 * 8 * 2 * len(topology.edges) + followed(5, 12 * 3, numbers=5)
    assert result.history["bytes"].tolist() == [per_round * (k + 1) for k in range(8)]
    assert run(alternating(rank=2, max_iter=2, tol=0.0), problem, None).history["bytes"].max() == 0


@pytest.mark.parametrize("solver", [MeshELM, admm])
def test_a_callback_sees_every_round_and_can_stop_the_fit(solver):
    problem, seen = random_problem(0), []

    def callback(progress):
        seen.append(progress.round)
        return progress.round == 4

    result = run(solver(rank=2, max_iter=50, tol=0.0), problem, callback=callback)
    assert seen == [0, 1, 2, 3, 4]
    assert result.stop is StopReason.INTERRUPTED
    assert result.n_iter == 4


def test_a_single_task_needs_no_neighbours_and_equals_alternation():
    problem = random_problem(4, m=1, d=2, unequal=False)
    central = run(alternating(rank=2, tol=1e-8, max_iter=5000), problem, None)
    for solver in (admm(rank=2, tol=1e-8, max_iter=5000), MeshELM(rank=2, mu1=1.0, mu2=1.0, tol=1e-8)):
        alone = run(solver, problem, "ring")
        assert alone.history["bytes"].max() == alone.traffic.total == 0
        assert alone.history["objective"].iloc[-1] == pytest.approx(central.history["objective"].iloc[-1], rel=1e-7)


def test_a_rank_above_what_the_data_can_use_is_reduced_with_a_warning():
    problem = random_problem(0, m=2, d=1, unequal=False)
    for solver in (MeshELM, DMTLELM, FODMTLELM, MTLELM):
        with pytest.warns(RankWarning, match="rank 2 is used"):
            assert solver(rank=9).resolve_rank(problem.task) == 2
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert solver(rank="auto").resolve_rank(problem.task) == 2


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"rank": 0}, "rank must be a whole number of at least 1"),
        ({"rank": 2.5}, "rank must be"),
        ({"mu1": 0.0}, "mu1 must be a finite number, more than zero"),
        ({"mu2": float("nan")}, "mu2"),
        ({"rho": -1.0}, "rho"),
        ({"rho": "large"}, "rho"),
        ({"tau": "d + 20"}, 'text like "20 \\+ d"'),
        ({"tau": 0.0}, "tau"),
        ({"zeta": -1.0}, "zeta"),
        ({"zeta": "1 + d"}, "zeta must be"),
        ({"gamma": "rule"}, "gamma"),
        ({"delta": 0.0}, "delta"),
        ({"proximal": "quadratic"}, "linear, standard"),
        ({"init": "zeros"}, "spectral, random, seed, ones"),
        ({"max_iter": 0}, "max_iter"),
        ({"tol": -1e-3}, "tol"),
        ({"mu1": "large"}, "mu1 must be a finite number"),
        ({"certify": "yes"}, "certify must be True or False"),
    ],
)
@pytest.mark.parametrize("solver", [DMTLELM, FODMTLELM])
def test_an_invalid_parameter_is_refused_by_name(parameters, message, solver):
    with pytest.raises(ElmeshError, match=message):
        make_solver(solver(**parameters))


@pytest.mark.parametrize("parameters", [{"zeta": [1.0, 2.0]}, {"zeta": np.ones(2)}, {"tau": "20 + d"}, {"tau": 3}])
def test_weights_may_be_numbers_arrays_or_text(parameters):
    make_solver(DMTLELM(**parameters))


@pytest.mark.parametrize(
    ("solver", "foreign"),
    [(MeshELM, "rho"), (MeshELM, "init"), (DMTLELM, "max_bytes"), (MTLELM, "graph")],
)
def test_a_solver_has_no_parameter_of_another_method(solver, foreign):
    with pytest.raises(TypeError, match=foreign):
        solver(**{foreign: 1.0})


def test_weights_given_agent_by_agent_must_be_one_per_agent():
    with pytest.raises(ElmeshError, match="3 values, but there are 4 agents"):
        run(admm(rank=2, tau=[1.0, 2.0, 3.0]), random_problem(0, m=4))


@pytest.mark.parametrize("solver", [DMTLELM, FODMTLELM])
def test_agents_without_a_graph_are_refused(solver):
    X, y = np.arange(24.0).reshape(12, 2), np.arange(12.0)
    with pytest.raises(ElmeshError, match="graph must be a name"):
        MultiTaskELMRegressor(None, solver=solver(graph=None), random_state=0).fit(X, y, tasks=list("ab" * 6))


def test_an_unknown_solver_is_refused_with_the_known_ones():
    with pytest.raises(ElmeshError, match=r"unknown; use one of .*dmtl-elm"):
        make_solver("elm")
    with pytest.raises(ElmeshError, match="not int"):
        make_solver(3)


@pytest.mark.parametrize("gamma", ["auto", "paper"])
def test_agents_in_batches_give_what_one_array_gives(gamma):
    problem, topology = random_problem(6, m=9), make_topology("random", range(9))
    weights = np.linspace(5.0, 9.0, 9)  # agent by agent, so that a batch must take its own part
    solver = admm(rank=3, rho=1.0, tau=weights, gamma=gamma, max_iter=40, tol=0.0, certify=True)
    whole = run(solver, problem, "random")
    batches = [np.arange(0, 2), np.array([2, 5, 6]), np.array([3, 4, 7, 8])]
    problems = [
        Problem(Task.stack([problem.task.agent(t) for t in batch]), agent_context(topology, 0, batch), 3)
        for batch in batches
    ]
    program, transport = join_programs([rounds(solver, part) for part in problems], batches), LocalTransport(topology)
    objectives, request = [], next(program)
    while True:
        if isinstance(request, RoundReport):
            objectives.append(request.objective.sum())
        try:
            request = program.send(answer(transport, request))
        except StopIteration as end:
            joined = end.value
            break
    np.testing.assert_allclose(joined.U, whole.solution.U, rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(joined.A, whole.solution.A, rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(joined.dual, whole.solution.dual, rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(objectives, whole.history["objective"], rtol=1e-6)
    # What follows the run is sent beside it.
    assert transport.traffic().total == whole.traffic.total - 41 * followed(9, joined.U[0].size, numbers=5)
    assert joined.certificate.gap == pytest.approx(whole.solution.certificate.gap, rel=1e-6)


# --- From the basis of an earlier fit ---------------------------------------------------------------------------------


def mean_objectives(solver, problem, n_rounds, start=None):
    """The objective at the mean U before the first round and after each, with A solved out; and the last U."""
    topology = make_topology("ring", range(len(problem.H)))
    transport = LocalTransport(topology)
    whole = Problem(problem.task, agent_context(topology, 0), solver.rank, start=start)
    found, U = [], None
    program, reply = rounds(solver, whole), None
    while len(found) <= n_rounds:
        request = program.send(reply)
        reply = answer(transport, request)
        if isinstance(request, RoundReport):
            U = request.solution.U
            found.append(objective_of_U(problem.task, U.mean(axis=0), solver.mu1, solver.mu2))
    return np.array(found), U


def grown(problem, seed, share=0.1):
    """The same problem with a few more rows of every task, which are noisy copies."""
    rng = np.random.default_rng(seed)
    more = [rng.integers(len(H), size=max(1, round(share * len(H)))) for H in problem.H]
    H = [np.vstack([H, H[k] + 0.05 * rng.normal(size=H[k].shape)]) for H, k in zip(problem.H, more, strict=True)]
    return stack(H, [np.vstack([T, T[k]]) for T, k in zip(problem.T, more, strict=True)])


@pytest.mark.parametrize("solver", [admm, first_order])
@pytest.mark.parametrize("rho", [1.0, "auto"])
def test_from_an_earlier_U_the_same_rounds_come_closer_to_the_optimum(solver, rho):
    before = random_problem(3, m=6, L=20, n_max=40)
    made = solver(rank=3, rho=rho, init="seed", zeta="auto")
    _, U = mean_objectives(made, before, 300)
    now = grown(before, 4)
    cold, _ = mean_objectives(made, now, 20)
    warm, _ = mean_objectives(made, now, 20, start=U)
    optimum = central_optimum(now.task, U.mean(axis=0), 1.0, 1.0)
    assert warm[20] - optimum < 0.2 * (cold[20] - optimum)
    assert warm[0] - optimum < cold[20] - optimum


@pytest.mark.parametrize("solver", [admm, first_order])
def test_agents_that_start_from_different_bases_come_to_agree_on_the_optimum(solver):
    problem = random_problem(5, m=4, L=8)
    rng = np.random.default_rng(6)
    made = solver(rank=8, rho=1.0, init="seed", max_iter=1500)
    found, U = mean_objectives(made, problem, 1500, start=rng.normal(size=(4, 8, 8)))
    optimum = central_optimum(problem.task, rng.normal(size=(8, 8)), 1.0, 1.0)
    assert found[-1] == pytest.approx(optimum, rel=1e-4)
    assert np.linalg.norm(U - U.mean(axis=0)) < 1e-3 * np.linalg.norm(U)


# --- The adaptive zeta ------------------------------------------------------------------------------------------------


def after_windows(disagreements, U2=1.0):
    """The rule of one agent after windows of 100 rounds with these squared disagreements."""
    rule = AdaptiveZeta(np.array([3.0]), np.array([np.inf]), np.array([0.0]))
    for k in range(100 * len(disagreements)):
        rule = rule.update(k, np.array([disagreements[k // 100]]), np.array([U2]))
    return rule.factor.item()


def test_an_agent_doubles_its_factor_if_its_disagreement_has_not_decreased_over_a_window():
    assert after_windows([1.0]) == 3.0
    assert after_windows([1.0, 0.5, 0.1]) == 3.0
    assert after_windows([1.0, 1.0, 0.1]) == 6.0
    assert after_windows([1.0, 1.5, 2.0]) == 12.0


def test_a_disagreement_of_rounding_does_not_double_the_factor():
    assert after_windows([1e-17, 1e-17]) == 6.0
    assert after_windows([1e-19, 1e-19]) == 3.0
    # Relative to the square of U.
    assert after_windows([1e-17, 1e-17], U2=100.0) == 3.0


def test_the_largest_disagreement_of_a_window_counts():
    rule = AdaptiveZeta(np.array([3.0]), np.array([np.inf]), np.array([0.0]))
    for k in range(200):
        rule = rule.update(k, np.array([1.0 if k in (5, 105) else 1e-3]), np.array([1.0]))
    assert rule.factor.item() == 6.0


def test_an_agent_without_neighbours_has_no_zeta():
    context = agent_context(make_topology("ring", [0]), 0)
    assert AdaptiveZeta.start(context, 1.0).factor.tolist() == [0.0]
