"""MTFL: the optimum of its convex objective, its metric, its limits, and the value of sharing."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.linalg import sqrtm, subspace_angles
from scipy.optimize import brentq, minimize
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import Ridge

import elmesh
from elmesh import MTFL, LocalELM, MultiTaskELMClassifier, MultiTaskELMRegressor
from elmesh.errors import ElmeshError
from elmesh.run import StopReason
from elmesh.solvers import make_solver
from helpers.examples import examples
from helpers.marks import one_of
from helpers.problems import random_problem, solve, stack, task_weights


def run(problem, **parameters):
    return solve(MTFL(**parameters), problem)


def weights(result, problem):
    return task_weights(problem, result.solution)


def fit_of(problem, W):
    return sum(0.5 * np.sum((H @ w - T) ** 2) for H, T, w in zip(problem.H, problem.T, W, strict=True))


def smooth(problem, W, mu, eps):
    """The objective with D solved out, and its gradient: from its definition, with nothing of the solver's."""
    joined = np.hstack(W)
    e, E = np.linalg.eigh(joined @ joined.T + eps * np.eye(len(joined)))
    trace = np.sqrt(e).sum()
    slopes = [
        H.T @ (H @ w - T) + mu * trace * (E / np.sqrt(e)) @ (E.T @ w)
        for H, T, w in zip(problem.H, problem.T, W, strict=True)
    ]
    return fit_of(problem, W) + mu / 2 * trace**2, slopes


def optimum(problem, mu, eps):
    """Minimise it by SciPy."""
    L = problem.H[0].shape[1]
    ends = np.cumsum([T.shape[1] for T in problem.T])[:-1]

    def function(x):
        value, slopes = smooth(problem, np.split(x.reshape(L, -1), ends, axis=1), mu, eps)
        return value, np.hstack(slopes).ravel()

    start = np.zeros(L * sum(T.shape[1] for T in problem.T))
    options = {"maxiter": 20_000, "maxfun": 50_000, "ftol": 1e-16, "gtol": 1e-10, "maxcor": 50}
    found = minimize(function, start, jac=True, method="L-BFGS-B", options=options)
    return found.fun, np.split(found.x.reshape(L, -1), ends, axis=1)


# --------------------------------------------------------------------------------------------------------- the optimum


@pytest.mark.thorough
@examples(25)
@given(
    seed=st.integers(0, 10_000),
    m=st.integers(1, 5),
    L=st.integers(2, 8),
    d=st.integers(1, 3),
    mu=st.floats(0.05, 5.0),
    eps=st.floats(1e-2, 5.0),
    planted=st.booleans(),
)
def test_it_reaches_the_optimum_that_scipy_finds_from_the_definition(seed, m, L, d, mu, eps, planted):
    problem = random_problem(seed, m=m, L=L, r=2, d=d, n_max=12, planted=planted)
    result = run(problem, mu=mu, eps=eps, tol=1e-7, max_iter=20_000)
    assert result.stop is StopReason.CONVERGED
    best, W = optimum(problem, mu, eps)
    assert result.history["objective"].iloc[-1] == pytest.approx(best, rel=1e-9)
    np.testing.assert_allclose(
        np.hstack(weights(result, problem)), np.hstack(W), atol=1e-4 * np.abs(np.hstack(W)).max()
    )


@examples(25)
@given(
    seed=st.integers(0, 10_000),
    m=st.integers(1, 8),
    mu=st.floats(1e-3, 1e2),
    eps=st.floats(1e-8, 1e2),
    h_scale=st.floats(0.1, 10.0),
    t_scale=st.floats(0.1, 10.0),
)
def test_no_round_increases_the_objective(seed, m, mu, eps, h_scale, t_scale):
    problem = random_problem(seed, m=m, L=10, d=3, h_scale=h_scale, t_scale=t_scale)
    history = run(problem, mu=mu, eps=eps, tol=0.0, max_iter=30).history
    assert history["round"].tolist() == list(range(31))
    assert np.all(np.diff(history["objective"]) <= 1e-12 * history["objective"].iloc[0])


def test_the_reported_objective_is_that_of_the_weights_and_the_residual_that_of_its_gradient():
    problem = random_problem(5, m=4, L=9, d=2)
    for rounds in (1, 2, 7):
        result = run(problem, mu=0.3, eps=0.01, tol=0.0, max_iter=rounds)
        W = weights(result, problem)
        value, slopes = smooth(problem, W, 0.3, 0.01)
        last = result.history.iloc[-1]
        assert last["objective"] == pytest.approx(value, rel=1e-12)
        pulls = [s - H.T @ (H @ w - T) for s, H, T, w in zip(slopes, problem.H, problem.T, W, strict=True)]
        ratio = np.linalg.norm(np.hstack(slopes)) / np.linalg.norm(np.hstack(pulls))
        assert last["dual_residual"] == pytest.approx(ratio, rel=1e-9)


def test_the_basis_is_the_root_of_the_best_metric_and_its_trace_is_one():
    problem = random_problem(1, m=6, L=7, d=2)
    result = run(problem, mu=0.5, eps=0.05, tol=1e-10, max_iter=20_000)
    W = np.hstack(weights(result, problem))
    S = np.real(sqrtm(W @ W.T + 0.05 * np.eye(7)))
    np.testing.assert_allclose(result.solution.U @ result.solution.U.T, S / np.trace(S), atol=1e-8)
    np.testing.assert_allclose(result.solution.U, result.solution.U.T, atol=1e-14)


def test_no_other_metric_of_trace_one_does_better():
    """The problem in both W and D: the reported objective is its value at the best D; no other D has a lower one."""
    problem = random_problem(2, m=5, L=6, d=2)
    mu, eps = 0.4, 0.1
    result = run(problem, mu=mu, eps=eps, tol=1e-10, max_iter=20_000)
    W = weights(result, problem)
    scatter = sum(w @ w.T for w in W) + eps * np.eye(6)

    def joint(D):
        return fit_of(problem, W) + mu / 2 * np.trace(np.linalg.solve(D, scatter))

    reported, D = result.history["objective"].iloc[-1], result.solution.U @ result.solution.U.T
    assert joint(D) == pytest.approx(reported, rel=1e-9)
    rng = np.random.default_rng(0)
    for size in (1e-3, 1e-2, 0.1, 1.0):
        for _ in range(20):
            X = rng.normal(size=(6, 6))
            other = D + size * np.linalg.norm(D) * X @ X.T
            assert joint(other / np.trace(other)) > reported


@pytest.mark.parametrize("rounds", [1, 5, 50])
def test_at_every_round_a_task_s_coefficients_are_a_ridge_regression_on_the_features_it_is_given(rounds):
    problem = random_problem(3, m=4, L=8, d=2)
    solution = run(problem, mu=0.7, eps=1e-3, tol=0.0, max_iter=rounds).solution
    for A, H, T in zip(solution.A, problem.H, problem.T, strict=True):
        expected = Ridge(alpha=0.7, fit_intercept=False).fit(H @ solution.U, T).coef_.reshape(T.shape[1], -1).T
        np.testing.assert_allclose(A[:, : T.shape[1]], expected, atol=1e-10)
        assert not A[:, T.shape[1] :].any()


# -------------------------------------------------------------------------------------------------------------- limits


def test_with_a_huge_eps_every_task_is_a_ridge_regression_with_penalty_mu_times_L():
    problem = random_problem(4, m=5, L=12, d=2)
    result = run(problem, mu=0.02, eps=1e9)
    alone = solve(LocalELM(mu=0.02 * 12), problem).solution.A
    assert result.stop is StopReason.CONVERGED
    assert result.n_iter == 0  # which is where it starts
    np.testing.assert_allclose(result.solution.U @ result.solution.A, alone, rtol=1e-8, atol=1e-12)


def radial(problem, mu, eps, copies):
    """Ridge with the penalty that the trace norm amounts to where all weights are one vector: a scalar equation."""
    H, y, L = problem.H[0], problem.T[0], problem.H[0].shape[1]

    def ridge(penalty):
        return np.linalg.solve(H.T @ H + penalty * np.eye(L), H.T @ y)

    def excess(log_penalty):
        size = np.sqrt(copies * np.sum(ridge(np.exp(log_penalty)) ** 2) + eps)
        return np.exp(log_penalty) - mu * (size + (L - 1) * np.sqrt(eps)) / size

    penalty = np.exp(brentq(excess, np.log(mu / 2), np.log(2 * mu * L), xtol=1e-14))
    return penalty, ridge(penalty)


@pytest.mark.parametrize("copies", [1, 3])
@pytest.mark.parametrize("eps", [1e-3, 0.1, 10.0])
def test_one_task_of_one_output_or_copies_of_it_are_a_ridge_regression_of_known_penalty(copies, eps):
    """With WW' of rank one, tr S = sqrt(c|w|^2 + eps) + (L - 1) sqrt(eps): a penalty on |w| alone."""
    alone = random_problem(6, m=1, L=6, d=1, unequal=False)
    problem = stack(alone.H * copies, alone.T * copies)
    result = run(problem, mu=0.5, eps=eps, tol=1e-9, max_iter=50_000)
    penalty, expected = radial(alone, 0.5, eps, copies)
    assert penalty > 0.5
    for w in weights(result, problem):
        np.testing.assert_allclose(w, expected, rtol=1e-6)


@pytest.mark.thorough
def test_as_eps_vanishes_a_single_output_s_penalty_becomes_mu_itself():
    problem = random_problem(6, m=1, L=6, d=1, unequal=False)
    plain = solve(LocalELM(mu=0.5), problem).solution.A[0]
    distances = []
    for eps in (1e-1, 1e-2, 1e-3, 1e-4, 1e-5):
        w = weights(run(problem, mu=0.5, eps=eps, tol=1e-7, max_iter=50_000), problem)[0]
        distances.append(np.linalg.norm(w - plain) / np.linalg.norm(plain))
    assert np.all(np.diff(distances) < 0)
    assert distances[-1] < 0.02


def test_targets_of_zero_are_learned_at_once():
    problem = random_problem(0)
    zero = stack(problem.H, [np.zeros_like(T) for T in problem.T])
    result = run(zero)
    assert result.stop is StopReason.CONVERGED
    assert result.n_iter == 0
    assert not result.solution.A.any()


@pytest.mark.parametrize("eps", [1e-300, 1e-30, 1e-12])
def test_a_metric_that_is_all_but_singular_does_no_harm(eps):
    problem = random_problem(0, m=3, L=10, d=1)
    result = run(problem, mu=1e-3, eps=eps, tol=0.0, max_iter=50)
    objective = result.history["objective"]
    assert np.isfinite(result.solution.U).all()
    assert np.isfinite(result.solution.A).all()
    assert np.all(np.diff(objective) <= 1e-10 * objective.iloc[0])
    assert objective.iloc[-1] == pytest.approx(smooth_value(problem, result, 1e-3), rel=1e-6)


def smooth_value(problem, result, mu):
    """The objective for eps = 0, by the trace norm as NumPy has it."""
    W = weights(result, problem)
    return fit_of(problem, W) + mu / 2 * np.linalg.norm(np.hstack(W), "nuc") ** 2


# --------------------------------------------------------------------------------------------------------- invariances


def test_reordered_tasks_and_shuffled_rows_give_the_same_models():
    problem = random_problem(11, m=5)
    rng = np.random.default_rng(0)
    order, shuffles = rng.permutation(5), [rng.permutation(len(H)) for H in problem.H]
    moved = stack([problem.H[t][shuffles[t]] for t in order], [problem.T[t][shuffles[t]] for t in order])
    one, other = run(problem, max_iter=20, tol=0.0), run(moved, max_iter=20, tol=0.0)
    np.testing.assert_allclose(other.solution.U, one.solution.U, atol=1e-9)
    for k, t in enumerate(order):
        np.testing.assert_allclose(weights(other, moved)[k], weights(one, problem)[t], atol=1e-9)


def test_rotated_features_give_the_rotated_weights():
    problem = random_problem(12, m=4, L=8)
    Q = np.linalg.qr(np.random.default_rng(1).normal(size=(8, 8)))[0]
    turned = stack([H @ Q for H in problem.H], problem.T)
    one, other = run(problem, max_iter=30, tol=0.0), run(turned, max_iter=30, tol=0.0)
    np.testing.assert_allclose(np.hstack(weights(other, turned)), Q.T @ np.hstack(weights(one, problem)), atol=1e-9)
    np.testing.assert_allclose(other.solution.U, Q.T @ one.solution.U @ Q, atol=1e-9)


# ------------------------------------------------------------------------------------------------------ what it is for


def planted(seed, m=30, L=25, k=2, n=12, noise=0.05):
    """Tasks of fewer rows than features, whose weights all lie in the same k dimensions; the same again to test on."""
    rng = np.random.default_rng(seed)
    basis = np.linalg.qr(rng.normal(size=(L, k)))[0]
    betas = [basis @ rng.normal(size=(k, 1)) for _ in range(m)]

    def draw():
        H = [rng.normal(size=(n, L)) for _ in betas]
        return H, [h @ b + noise * rng.normal(size=(n, 1)) for h, b in zip(H, betas, strict=True)]

    return basis, stack(*draw()), draw()


@pytest.mark.parametrize("seed", one_of(3, range(3)))
def test_it_finds_a_subspace_that_no_task_could_find_alone_and_predicts_the_better_for_it(seed):
    basis, problem, (H_new, T_new) = planted(seed)

    def error(betas):
        return np.mean([np.mean((H @ b - T) ** 2) for H, b, T in zip(H_new, betas, T_new, strict=True)])

    result = run(problem, mu=0.01, eps=1e-4, max_iter=2000)
    values, vectors = np.linalg.eigh(result.solution.U)
    assert np.rad2deg(subspace_angles(vectors[:, -2:], basis).max()) < 5
    assert values[-2] > 3 * values[-3]
    ridges = [solve(LocalELM(mu=mu), problem).solution.A for mu in (0.001, 0.01, 0.1, 1.0, 10.0)]
    assert error(weights(result, problem)) < 0.1 * min(map(error, ridges))


# ------------------------------------------------------------------------------------------------- parameters, and runs


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"mu": 0.0}, "mu must be a finite number, more than zero; got 0.0"),
        ({"eps": 0.0}, "eps must be a finite number, more than zero; got 0.0"),
        ({"eps": "small"}, "eps must be a finite number"),
        ({"max_iter": 0}, "max_iter must be a whole number of at least 1; got 0"),
        ({"tol": -1.0}, "tol must be a finite number, zero or more; got -1.0"),
    ],
)
def test_a_parameter_that_makes_no_sense_is_refused_by_name(parameters, message):
    with pytest.raises(ElmeshError, match=message):
        make_solver(MTFL(**parameters))


def test_a_callback_sees_every_round_and_can_stop_the_fit():
    problem, seen = random_problem(0), []

    def callback(progress):
        seen.append((progress.round, progress.max_iter))
        return progress.round == 3

    stopped = solve(MTFL(tol=0.0, max_iter=40), problem, callback=callback)
    assert seen == [(0, 40), (1, 40), (2, 40), (3, 40)]
    assert (stopped.stop, stopped.n_iter) == (StopReason.INTERRUPTED, 3)
    short = run(problem, tol=0.0, max_iter=3)
    assert short.stop is StopReason.MAX_ITER
    np.testing.assert_array_equal(short.solution.A, stopped.solution.A)
    assert short.history["bytes"].max() == short.n_exchanges == 0


def rows(seed=0, m=4, n=20):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(m * n, 5))
    tasks = np.repeat([f"site {t}" for t in range(m)], n)
    slopes = np.repeat(rng.normal(size=(m, 2)), n, axis=0)
    return X, np.sum(X[:, :2] * slopes, axis=1) + 0.1 * rng.normal(size=m * n), tasks


@pytest.mark.parametrize("hidden", [None, 30])
@pytest.mark.parametrize("kind", ["regression", "classification"])
def test_it_works_through_the_estimators_on_inputs_and_on_hidden_units(kind, hidden, tmp_path):
    X, y, tasks = rows()
    if kind == "regression":
        model = MultiTaskELMRegressor(hidden, solver="mtfl", random_state=0)
    else:
        model, y = MultiTaskELMClassifier(hidden, solver="mtfl", random_state=0), np.where(y > 0, "high", "low")
    model.fit(X, y, tasks)
    assert model.stop_ is StopReason.CONVERGED
    assert model.n_iter_ == model.history_["round"].iloc[-1] > 0
    assert model.graph_ is None
    assert model.U_.shape == (hidden or 5,) * 2
    assert model.score(X, y, tasks) > (0.7 if kind == "regression" else 0.85)
    model.set_params(solver=MTFL(mu=0.3)).fit(X, y, tasks).save(tmp_path / "model")
    loaded = elmesh.load(tmp_path / "model")
    assert repr(loaded.solver) == "MTFL(mu=0.3)"
    np.testing.assert_array_equal(loaded.predict(X, tasks), model.predict(X, tasks))
    alone = loaded.for_task("site 2")
    np.testing.assert_array_equal(alone.predict(X[40:60]), model.predict(X, tasks)[40:60])


def test_too_few_rounds_warn():
    X, y, tasks = rows()
    with pytest.warns(ConvergenceWarning, match="After 1 rounds: .* raise max_iter"):
        MultiTaskELMRegressor(None, solver=MTFL(eps=1e-6, max_iter=1)).fit(X, y, tasks)
