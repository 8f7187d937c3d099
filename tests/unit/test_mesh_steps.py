"""MeshELM, request after request: what is evaluated, which step is tried next, and when columns change."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from elmesh import MeshELM
from elmesh.comm.graph import make_topology
from elmesh.comm.local import LocalTransport
from elmesh.data.statistics import Task
from elmesh.math.certificate import CertificateData, certificate_data, slack_for
from elmesh.run.runner import agent_context
from elmesh.solvers.base import Decision, Problem
from elmesh.solvers.initialization import initialize
from helpers.peers import lockstep
from helpers.problems import random_problem, stack

MU1, MU2, M, L = 0.5, 0.2, 4, 10


class Case:
    """A solver on stacked agents after its start, and answers to its requests."""

    def __init__(self, rank=2, rows=None, seed=3, **setting):
        self.rows = random_problem(seed, m=M, L=L) if rows is None else rows
        topology = make_topology("star", range(M))
        self.solver = MeshELM(rank=rank, **{"mu1": MU1, "mu2": MU2, **setting})
        columns = self.solver.resolve_rank(self.rows.task)
        self.problem, self.transport = (
            Problem(self.rows.task, agent_context(topology, 0), columns),
            LocalTransport(topology),
        )
        self.state, _ = self.drive(self.solver.init_state(self.problem))

    def drive(self, program, change=lambda k, request, result: result):
        """Answer all requests, with results changed as a test asks; return the program's result, and its requests."""
        requests, answer = [], None
        while True:
            try:
                requests.append(program.send(answer))
            except StopIteration as end:
                return end.value, requests
            answer = change(len(requests) - 1, requests[-1], self.transport.allreduce(requests[-1]))

    def step(self, state=None, change=lambda k, request, result: result):
        return self.drive(self.solver.step(self.problem, self.state if state is None else state), change)

    def converged(self, state=None, change=lambda k, request, result: result):
        return self.drive(self.solver.on_converged(self.problem, self.state if state is None else state), change)


def fits_of_rows(rows, U, mu2):
    """The A_t of every task at U, its residual and what it fits, from rows."""
    for H, T in zip(rows.H, rows.T, strict=True):
        Z = H @ U
        A = np.linalg.solve(Z.T @ Z + mu2 * np.eye(U.shape[1]), Z.T @ T)
        yield H, T, A, Z @ A


def with_exact(result, *numbers):
    return replace(result, exact=np.array(numbers, dtype=float))


# --- The start, and evaluations ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("outputs", [1, 5, 20])
@pytest.mark.parametrize("width", [1, 10, 100])
@pytest.mark.parametrize("directions", [0, 7, 90])
def test_an_automatic_rank_starts_with_sixteen_columns_or_two_per_output_as_far_as_data_can_use(
    outputs, width, directions
):
    usable = max(1, min(width, directions))
    assert MeshELM().rank_for(outputs, width, directions) == min(max(16, 2 * outputs), usable)
    assert MeshELM(rank=1).rank_for(outputs, width, directions) == 1


@pytest.mark.parametrize("unit", [1.0, 1e-3])  # of the targets: U is longer than one, or shorter
def test_an_evaluation_has_the_value_the_gradient_and_the_curvature_of_the_rows(unit):
    rows = random_problem(3, m=M, L=L)
    case = Case(rows=stack(rows.H, [unit * T for T in rows.T]))
    here, U = case.state.here, case.state.here.U
    value, gradient, fitted, targets = MU1 / 2 * np.sum(U**2), MU1 * U, 0.0, 0.0
    for t, (H, T, A, fit) in enumerate(fits_of_rows(case.rows, U, MU2)):
        value += np.sum((fit - T) ** 2) / 2 + MU2 / 2 * np.sum(A**2)
        gradient = gradient + H.T @ (fit - T) @ A.T
        fitted += np.sum(fit**2)
        targets += np.sum(T**2)
        np.testing.assert_allclose(here.A[t][:, : T.shape[1]], A, rtol=1e-9)
    assert here.value == pytest.approx(value, rel=1e-12)
    assert float(here.share.sum()) == pytest.approx(value, rel=1e-12)
    np.testing.assert_allclose(here.gradient, gradient, rtol=1e-9, atol=1e-12)
    assert here.targets == pytest.approx(targets, rel=1e-12)
    assert here.curvature == pytest.approx(fitted / np.sum(U**2) ** 2, rel=1e-9)
    assert here.slope == 0.0
    state = case.state
    assert (state.round, state.mu1, state.mu2) == (0, MU1, MU2)
    assert (state.n_evaluations, state.n_changes, state.certified, state.data) == (1, 0, 0, None)


def test_the_start_is_spectral():
    case = Case()
    start, _ = case.drive(initialize(case.problem, MU1, MU2, "spectral"))
    assert case.state.here.U.tobytes() == start.U.tobytes()


def test_at_zero_there_is_no_curvature_and_no_step():
    case = Case(certify=False)
    zero = np.zeros_like(case.state.here.U)
    state = replace(case.state, here=replace(case.state.here, U=zero, gradient=zero))
    after, requests = case.step(state)
    assert len(requests) == 1 + 2 + 2  # both restarts evaluate at zero, and none descends
    assert after.round == state.round


def test_the_curvature_is_within_what_the_targets_allow():
    """Quantised sums may be far off: the share of the targets that is fitted is between none and all of them."""
    case = Case()
    U2, targets = float(np.sum(case.state.here.U**2)), case.state.here.targets
    for value, expected in ((1e9, 0.0), (-1e9, targets / U2**2)):

        def change(k, request, result, value=value):
            return with_exact(result, value, *result.exact[1:]) if request.topic == "gradient" else result

        state, _ = case.drive(case.solver.init_state(case.problem), change)
        assert state.here.curvature == pytest.approx(expected, rel=1e-12)


def test_of_zero_targets_the_start_is_zero_and_has_no_curvature():
    rows = random_problem(3, m=M, L=L)
    case = Case(rank=1, rows=stack(rows.H, [np.zeros_like(T) for T in rows.T]))
    here = case.state.here
    assert here.value == pytest.approx(MU1 / 2 * np.sum(here.U**2))
    assert here.curvature == 0.0


def test_the_first_request_of_the_gradient_also_asks_for_the_targets_squares():
    case = Case()
    _, requests = case.drive(case.solver.init_state(case.problem))
    first = [request for request in requests if request.topic == "gradient"]
    assert [request.exact.shape for request in first] == [(M, 3)]
    np.testing.assert_allclose(first[0].exact[:, 2], [np.sum(T**2) for T in case.rows.T])
    assert first[0].rotation is None
    assert first[0].skip_below == 0.0
    assert not first[0].relative_to_previous
    _, (request, *_) = case.step()
    assert request.exact.shape == (M, 2)


def test_a_report_compares_the_gradient_with_that_of_the_penalty():
    case = Case()
    here, report = case.state.here, case.solver.report(case.problem, case.state)
    assert report.residual[0].shape == report.scale[0].shape == (M,)
    assert report.residual[0].sum() == pytest.approx(np.sum(here.gradient**2))
    assert report.scale[0].sum() == pytest.approx(np.sum((MU1 * here.U) ** 2))
    assert report.residual[1].tolist() == [0.0] * M
    assert report.scale[1].sum() == pytest.approx(1.0)
    assert report.objective.tolist() == here.share.tolist()
    assert report.states == (case.state,)
    assert report.round == 0
    assert report.solution.U is here.U
    assert report.solution.A is here.A
    assert (report.solution.mu1, report.solution.mu2) == (MU1, MU2)


# --- The line search --------------------------------------------------------------------------------------------------


def first_step(case):
    """The step that is tried first: the whole of it is taken if the objective falls enough."""
    here = case.state.here
    after, requests = case.step(change=lambda k, request, result: with_exact(result, here.value - 1.0, -1.0))
    assert len(requests) == 1
    return after.here.U - here.U, after


def test_the_first_step_divides_the_gradient_by_the_curvature_along_U_and_the_penalty():
    case = Case()
    here = case.state.here
    step, after = first_step(case)
    hessian = here.curvature * here.U.T @ here.U + MU1 * np.eye(2)
    np.testing.assert_allclose(step @ hessian, -here.gradient, rtol=1e-9, atol=1e-12)
    assert (after.round, after.n_evaluations, after.data) == (1, 2, None)
    # The memory has the step and the change of the gradient.
    np.testing.assert_array_equal(after.memory.s[0], step)
    np.testing.assert_array_equal(after.memory.y[0], after.here.gradient - here.gradient)


def test_the_slope_of_a_trial_is_the_derivative_along_the_step():
    case = Case()
    step, _ = first_step(case)
    _, (request, *_) = case.step()
    assert request.exact[:, 1].sum() == pytest.approx(np.vdot(case.state.here.gradient, step))
    assert request.skip_below == pytest.approx(0.5 * np.linalg.norm(case.state.here.gradient) / M)


@pytest.mark.parametrize(
    ("rise", "share"),
    # The change of the objective over the predicted decrease; then the minimum of the parabola, from 0.1 to 0.5.
    [(-5e-5, 0.5), (0.0, 0.5), (1.0, 0.25), (3.0, 0.125), (20.0, 0.1), (np.inf, 0.1), (np.nan, 0.1)],
)
def test_after_a_rejected_step_the_minimum_of_a_parabola_is_tried(rise, share):
    case = Case()
    here, (step, _) = case.state.here, first_step(case)
    slope = -2.0

    def change(k, request, result):
        # The first trial rises, the second falls enough.
        return with_exact(result, here.value - rise * slope if k == 0 else here.value - 1.0, slope)

    after, requests = case.step(change=change)
    assert len(requests) == 2
    assert [request.relative_to_previous for request in requests] == [False, True]
    np.testing.assert_allclose(after.here.U - here.U, share * step, rtol=1e-3 if rise == -5e-5 else 1e-9, atol=1e-12)


def test_a_shorter_step_needs_less_of_a_decrease_and_its_parabola_is_its_own():
    """After half the step, a ten-thousandth of half the predicted decrease is enough, and no less."""
    case = Case()
    here, (step, _) = case.state.here, first_step(case)
    slope = -1.0
    for second, accepted in ((-0.6e-4, True), (-0.4e-4, False)):
        values = [here.value, here.value + second, here.value + 0.5 - 0.5 / 4, here.value - 1.0]

        def change(k, request, result, values=values):
            return with_exact(result, values[min(k, 3)], slope)

        after, requests = case.step(change=change)
        if accepted:
            assert len(requests) == 2
            np.testing.assert_allclose(after.here.U - here.U, step / 2, rtol=1e-9, atol=1e-12)
        else:
            # From a half, about a half again; from a quarter that rises by 0.375, a fifth of it.
            assert len(requests) == 4
            ratio = 0.25 / (2 * (0.375 + 0.25))
            np.testing.assert_allclose(after.here.U - here.U, ratio * step / 4, rtol=1e-3, atol=1e-12)


def test_a_step_of_exactly_the_least_decrease_is_accepted():
    case = Case()
    case.state = replace(case.state, here=replace(case.state.here, value=0.0))
    _, requests = case.step(change=lambda k, request, result: with_exact(result, -1e-4, -1.0))
    assert len(requests) == 1


@pytest.mark.parametrize("certify", [False, True])
def test_if_no_step_falls_the_search_starts_anew_twice_and_then_U_has_converged(certify):
    case = Case(certify=certify)
    state = first_step(case)[1]
    here = state.here

    def change(k, request, result):
        return with_exact(result, here.value, -1.0) if request.topic == "gradient" else result

    after, requests = case.step(state, change)
    trials = [request for request in requests if request.topic == "gradient"]
    # Twelve trials, each half as long; then the gradient again at the same U, without the memory, and twelve more.
    assert len(trials) == 3 * 12 + 2
    again = [k for k, request in enumerate(trials) if request.skip_below == 0.0]
    assert again == [12, 25]
    # Each value but the first after an accepted one is relative to the one before the rejected one.
    assert [request.relative_to_previous for request in trials] == [k not in (0, 13, 26) for k in range(38)]
    for k in again:
        np.testing.assert_allclose(trials[k].exact[:, 0], here.share, rtol=1e-9)
        assert trials[k].exact[:, 1].tolist() == [0.0] * M
    assert after.round == state.round
    assert after.n_evaluations == state.n_evaluations + 38
    assert after.memory.s == ()
    assert after.here is here
    assert (after.data is not None) == certify
    if certify:
        assert after.certified == after.round
        assert [request.topic for request in requests[38:40]] == ["columns", "certificate 0"]
    else:
        assert len(requests) == 38


@pytest.mark.parametrize("slope", [0.0, 1.0, np.nan])
def test_a_direction_that_does_not_descend_is_given_up_at_once(slope):
    case = Case(certify=False)
    value = case.state.here.value - 1.0
    after, requests = case.step(change=lambda k, request, result: with_exact(result, value, slope))
    assert len(requests) == 1 + 2 + 2  # per restart, one evaluation at the same U and one trial
    assert after.round == 0


@pytest.mark.parametrize(
    ("value", "slope", "last"),
    [(1e14, -1.0, True), (-1e14, -1.0, True), (1e11, -1.0, False), (1e11, -1e-3, True), (1.0, -1e-13, True)],
)
def test_a_step_within_rounding_of_the_objective_is_the_last_one_tried(value, slope, last):
    """The predicted decrease is at most 1e-13 of the objective, or more."""
    case = Case(certify=False)
    state = replace(case.state, here=replace(case.state.here, value=value))
    _, requests = case.step(state, lambda k, request, result: with_exact(result, value, slope))
    assert (len(requests) == 3 * 1 + 2) == last


# --- The certificate, and changes of columns --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changed", "setting", "due"),
    [
        ({"round": 40}, {}, True),
        ({"round": 39}, {}, False),
        ({"round": 90, "certified": 50}, {}, True),
        ({"round": 90, "certified": 51}, {}, False),
        ({"round": 40, "n_changes": 19}, {}, True),
        ({"round": 40, "n_changes": 20}, {}, False),
        ({"round": 40}, {"rank": 2}, False),
        ({"round": 40}, {"max_iter": 41}, True),
        ({"round": 40}, {"max_iter": 40}, False),
    ],
)
def test_an_automatic_rank_consults_the_certificate_every_forty_rounds(changed, setting, due):
    case = Case(**{"rank": "auto", **setting})
    request = next(case.solver.step(case.problem, replace(case.state, **changed)))
    assert request.topic == ("columns" if due else "gradient")


def after_some_rounds(case):
    """The state after a dozen rounds."""
    state = case.state
    for _ in range(12):
        state, _ = case.step(state)
    return state


def test_a_due_certificate_that_changes_nothing_is_followed_by_a_step():
    case = Case(rank="auto")
    state = replace(after_some_rounds(case), round=60, certified=20)
    # It is certified once for this round: then nothing is asked again.
    data = CertificateData(np.eye(state.here.U.shape[1]), 0, np.zeros(0), np.zeros((L, 0)), 0.0)
    after, requests = case.step(replace(state, data=data))
    assert {request.topic for request in requests} == {"gradient"}
    assert after.round == 61
    assert after.data is None


def test_a_due_certificate_without_a_step_after_it_still_ends_the_round():
    case = Case(rank="auto")
    data = CertificateData(np.eye(case.state.here.U.shape[1]), 0, np.zeros(0), np.zeros((L, 0)), 0.0)
    state = replace(case.state, round=60, certified=20, data=data)
    after, requests = case.step(state, lambda k, request, result: with_exact(result, state.here.value, 0.0))
    assert {request.topic for request in requests} == {"gradient"}
    assert after.here is state.here
    assert after.round == 61
    assert after.data is None


def test_a_fixed_rank_without_a_certificate_asks_for_none():
    case = Case(certify=False)
    after, requests = case.converged()
    assert after is case.state
    assert requests == []


def test_an_automatic_rank_needs_the_certificate():
    case = Case(rank="auto", certify=False)
    after, requests = case.converged()
    assert requests[0].topic == "columns"
    assert after.certified == 0


def test_a_step_leaves_the_certificate_behind():
    case = Case()
    certified, _ = case.converged()
    after, _ = case.step(certified)
    assert after.round == 1
    assert after.data is None


def test_a_certificate_is_asked_once_for_a_U():
    case = Case()
    certified, requests = case.converged()
    assert len(requests) >= 4
    assert certified.data is not None
    assert certified.round == case.state.round  # a fixed rank changes no columns
    again, requests = case.converged(certified)
    assert again is certified
    assert requests == []


def test_an_automatic_rank_with_nothing_missing_or_unused_is_certified_as_it_is():
    case = Case(rank="auto")
    state, n_changes = case.state, 0
    for _ in range(60):
        after, _ = case.converged(state)
        if after.n_changes == n_changes and after.data.n_missing == 0:
            break
        n_changes = after.n_changes
        state, _ = case.step(replace(after, data=None))
    assert after.n_changes <= 5  # far from the most changes: nothing else ended them
    assert after.data.n_used == after.here.U.shape[1]
    assert (after.round, after.certified) == (state.round, state.round)
    assert after.here is state.here


def context_of(m, *agents):
    return agent_context(make_topology("ring", range(m), 0), 0, *agents)


def first_certificate(task, context, by_sums):
    """Certify the start, by sums over agents or not, and compare with exact singular values."""
    problem, solver = Problem(task, context, 2), MeshELM(rank=2, mu1=MU1, mu2=MU2)
    start = solver.init_state(problem)
    (state,), _ = lockstep([start])
    (after,), requests = lockstep([solver.on_converged(problem, state)])
    assert (len(requests) > 0) == by_sums
    exact = certificate_data(
        task if task.s.ndim > 1 else Task.stack([task]),
        state.here.U,
        state.here.R if task.s.ndim > 1 else state.here.R[None],
        np.sqrt(MU1 * MU2),
        slack_for(solver.tol),
    )
    assert (after.data.n_used, after.data.n_missing) == (exact.n_used, exact.n_missing)
    assert after.data.lower_bound == pytest.approx(exact.lower_bound, rel=1e-6)


def test_tasks_in_one_place_are_certified_without_a_message_and_agents_by_sums():
    task = random_problem(3, m=2, L=6, d=3, unequal=False).task
    first_certificate(task, context_of(1), False)  # two tasks of one agent
    first_certificate(task, context_of(2), True)  # two agents
    first_certificate(task.agent(0), context_of(1, np.asarray(0)), True)  # one agent as one of many would be


@pytest.mark.parametrize("decision", [Decision.CONTINUE, Decision.CONVERGED, Decision.HALT])
def test_the_solution_has_the_certificate_unless_the_run_was_halted(decision):
    case = Case()
    certified, _ = case.converged()
    solution, requests = case.drive(case.solver.finish(case.problem, certified, decision))
    assert requests == []
    assert solution.U is certified.here.U
    assert (solution.certificate is None) == (decision is Decision.HALT)
    if decision is not Decision.HALT:
        assert solution.certificate.objective == certified.here.value
        assert solution.certificate.lower_bound == pytest.approx(certified.data.lower_bound)
    uncertified, _ = case.drive(case.solver.finish(case.problem, case.state, decision))
    assert uncertified.certificate is None


def one_column():
    """The state of a U with a single column, so that directions are missing."""
    return replace(after_some_rounds(Case(rank=1)), round=7)


@pytest.mark.parametrize("rejected", [0, 1, 3, 12])
def test_missing_directions_are_added_and_halved_until_the_objective_does_not_rise(rejected):
    case = Case(rank="auto")
    state = one_column()
    here, lam = state.here, np.sqrt(MU1 * MU2)
    seen = []

    def change(k, request, result):
        if request.topic != "gradient":
            return result
        seen.append(request)
        rise = 1.0 if len(seen) <= rejected else 0.0
        return with_exact(result, here.value + rise, 0.0)

    after, _ = case.converged(state, change)
    certified, _ = Case(rank=1).converged(state)
    data, n = certified.data, certified.data.n_missing
    assert n > 0
    assert (after.round, after.n_changes, after.certified, after.data) == (8, 1, 7, None)
    assert after.n_evaluations == state.n_evaluations + len(seen)
    np.testing.assert_array_equal(seen[0].rotation, np.eye(1, 1 + n))
    assert [request.relative_to_previous for request in seen] == [k > 0 for k in range(len(seen))]
    assert all(request.rotation is None for request in seen[1:])
    assert {request.value.shape for request in seen} == {(M, L, 1 + n)}
    if rejected == 12:
        assert len(seen) == 12
        assert after.here is here
        assert after.memory is state.memory
        return
    assert len(seen) == rejected + 1
    np.testing.assert_array_equal(after.here.U[:, :1], here.U)
    # How far the correlation exceeds lambda, over the curvature of the fit along U or of the penalty.
    curvature = max(here.curvature * np.sum(here.U**2), MU1)
    length = np.sqrt((np.sqrt(data.eigenvalues[:n]) - lam) / curvature) / 2**rejected
    np.testing.assert_allclose(after.here.U[:, 1:], data.directions[:, :n] * length, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(after.memory.s[-1], np.pad(state.memory.s[-1], ((0, 0), (0, n))))


@pytest.mark.parametrize(("cost", "dropped"), [(0.0, True), (1e-4, True), (1.1e-4, False)])
def test_unused_columns_are_dropped_if_that_costs_next_to_nothing(cost, dropped):
    case = Case(rank="auto", mu1=20.0, mu2=20.0)  # large penalties: few directions are of use
    state = case.state
    for _ in range(60):
        after, requests = case.converged(state)
        rotations = [request.rotation for request in requests if request.rotation is not None]
        if any(rotation.shape[0] > rotation.shape[1] for rotation in rotations):
            break
        state, _ = case.step(after)
        state = replace(state, data=None)
    else:
        pytest.fail("no column is unused")
    here = state.here

    def change(k, request, result):
        return with_exact(result, (1 + cost) * here.value, 0.0) if request.topic == "gradient" else result

    after, requests = case.converged(state, change)
    rotation = requests[-1].rotation
    assert rotation.shape[0] == here.U.shape[1] > rotation.shape[1]
    assert not requests[-1].relative_to_previous
    assert (after.round, after.n_changes, after.certified) == (state.round + 1, state.n_changes + 1, state.round)
    assert after.data is not None  # the bound still holds
    if dropped:
        np.testing.assert_array_equal(after.here.U, here.U @ rotation)
        assert after.here.value == (1 + cost) * here.value
        assert all(s.shape == after.here.U.shape for s in after.memory.s)
    else:
        assert after.here is here
        assert after.memory is state.memory
