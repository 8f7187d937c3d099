"""GO-MTL: stationary points of its objective, codes that are the Lasso's, its limits, and the groups it finds."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.linalg import subspace_angles
from scipy.optimize import minimize
from sklearn.exceptions import ConvergenceWarning

import elmesh
from elmesh import GOMTL, LocalELM, MultiTaskELMClassifier, MultiTaskELMRegressor
from elmesh.errors import ElmeshError, RankWarning
from elmesh.math.kernels import project
from elmesh.run import StopReason
from elmesh.solvers import make_solver
from elmesh.solvers.go_mtl import lasso_codes
from helpers.examples import examples
from helpers.marks import one_of
from helpers.problems import random_problem, solve, stack, usable_rank


def run(problem, seed=0, **parameters):
    return solve(GOMTL(**parameters), problem, seed=seed)


def codes(result, problem):
    """Each task's codes, without the columns that pad tasks with few outputs."""
    return [A[:, : T.shape[1]] for A, T in zip(result.solution.A, problem.T, strict=True)]


def objective(problem, U, codes, mu1, mu2):
    fits = sum(0.5 * np.sum((H @ U @ A - T) ** 2) for H, T, A in zip(problem.H, problem.T, codes, strict=True))
    return fits + mu1 / 2 * np.sum(U**2) + mu2 * sum(np.abs(A).sum() for A in codes)


def lasso(X, y, mu2):
    """Minimise 1/2|Xa - y|^2 + mu2 |a|_1 by SciPy, as a smooth problem in the positive and the negative parts."""
    r = X.shape[1]

    def function(parts):
        residual = X @ (parts[:r] - parts[r:]) - y
        slope = X.T @ residual
        return 0.5 * residual @ residual + mu2 * parts.sum(), np.concatenate([slope, -slope]) + mu2

    options = {"maxiter": 50_000, "maxfun": 50_000, "ftol": 1e-17, "gtol": 1e-11}
    bounds = [(0, None)] * (2 * r)
    found = minimize(function, np.zeros(2 * r), jac=True, method="L-BFGS-B", bounds=bounds, options=options)
    return found.x[:r] - found.x[r:]


# ------------------------------------------------------------------------------------------------ the point it ends at


@examples(15)
@given(
    seed=st.integers(0, 10_000),
    m=st.integers(1, 6),
    rank=st.integers(1, 4),
    mu1=st.floats(0.5, 5.0),
    mu2=st.floats(0.5, 5.0),
    init=st.sampled_from(["spectral", "random"]),
)
def test_it_ends_where_no_derivative_is_left(seed, m, rank, mu1, mu2, init):
    problem = random_problem(seed, m=m, L=8, r=2, d=2, n_max=15)
    rank = min(rank, usable_rank(problem))
    result = run(problem, seed, rank=rank, mu1=mu1, mu2=mu2, init=init, tol=1e-6, max_iter=50_000)
    assert result.stop is StopReason.CONVERGED
    U, A = result.solution.U, codes(result, problem)
    in_U, pull = mu1 * U, 0.0
    for H, T, a in zip(problem.H, problem.T, A, strict=True):
        in_U = in_U + H.T @ (H @ U @ a - T) @ a.T
        slope = U.T @ H.T @ (H @ U @ a - T)
        size = 1e-5 * max(mu2, np.abs(U.T @ H.T @ T).max())
        np.testing.assert_allclose(slope[a != 0], -mu2 * np.sign(a[a != 0]), atol=size)
        assert np.all(np.abs(slope[a == 0]) <= mu2 + size)
        pull += np.linalg.norm(H.T @ T) * np.linalg.norm(a)
    assert np.linalg.norm(in_U) <= 1e-5 * pull


@pytest.mark.parametrize("seed", one_of(3, range(5)))
def test_scipy_finds_nothing_better_nearby_in_basis_and_codes_together(seed):
    problem = random_problem(seed, m=4, L=7, r=2, d=2, n_max=15)
    result = run(problem, rank=2, mu1=0.7, mu2=0.4, tol=1e-7, max_iter=50_000)
    U, A = result.solution.U, codes(result, problem)
    ends = np.cumsum([a.shape[1] for a in A])[:-1]
    joined, size = np.hstack(A), U.size

    def function(x):
        U_, (plus, minus) = x[:size].reshape(U.shape), x[size:].reshape(2, *joined.shape)
        A_ = np.split(plus - minus, ends, axis=1)
        residuals = [H @ U_ @ a - T for H, T, a in zip(problem.H, problem.T, A_, strict=True)]
        in_U = sum(H.T @ R @ a.T for H, R, a in zip(problem.H, residuals, A_, strict=True)) + 0.7 * U_
        in_A = np.hstack([U_.T @ H.T @ R for H, R in zip(problem.H, residuals, strict=True)])
        value = 0.5 * sum(np.sum(R**2) for R in residuals) + 0.35 * np.sum(U_**2) + 0.4 * (plus + minus).sum()
        return value, np.concatenate([in_U.ravel(), (in_A + 0.4).ravel(), (0.4 - in_A).ravel()])

    start = np.concatenate([U.ravel(), np.maximum(joined, 0).ravel(), np.maximum(-joined, 0).ravel()])
    bounds = [(None, None)] * size + [(0, None)] * (2 * joined.size)
    options = {"maxiter": 20_000, "maxfun": 50_000, "ftol": 1e-16, "gtol": 1e-10}
    best = minimize(function, start, jac=True, method="L-BFGS-B", bounds=bounds, options=options).fun
    assert result.history["objective"].iloc[-1] == pytest.approx(best, rel=1e-8)


@examples(25)
@given(
    seed=st.integers(0, 10_000),
    m=st.integers(1, 5),
    rank=st.integers(1, 6),
    mu2=st.floats(1e-2, 10.0),
    n=st.integers(3, 15),
    warm=st.booleans(),
)
def test_codes_are_those_of_an_independent_solver_of_the_lasso(seed, m, rank, mu2, n, warm):
    """Of more columns than rows as well, from a start at zero and from any other."""
    problem = random_problem(seed, m=m, L=9, d=2, n_max=n)
    rng = np.random.default_rng(seed)
    U = rng.normal(size=(9, rank))
    shape = (m, rank, problem.task.Y.shape[-1])
    start = rng.normal(size=shape) if warm else np.zeros(shape)
    before = start.copy()
    found = lasso_codes(problem.task, project(problem.task, U), start, mu2)
    assert found.shape == shape
    np.testing.assert_array_equal(start, before)
    for H, T, A in zip(problem.H, problem.T, found, strict=True):
        for j, y in enumerate(T.T):
            expected = lasso(H @ U, y, mu2)
            # Where columns depend on each other codes are not unique; what they predict and cost is.
            scale = np.linalg.norm(y) + 1e-3
            np.testing.assert_allclose(H @ U @ A[:, j], H @ U @ expected, atol=1e-4 * scale)
            assert np.abs(A[:, j]).sum() == pytest.approx(np.abs(expected).sum(), rel=1e-4, abs=1e-4 * scale)
        assert not A[:, T.shape[1] :].any()


@examples(20)
@given(
    seed=st.integers(0, 10_000),
    m=st.integers(1, 6),
    mu1=st.floats(1e-2, 10.0),
    mu2=st.floats(1e-3, 100.0),
    init=st.sampled_from(["spectral", "random"]),
    h_scale=st.floats(0.1, 10.0),
    t_scale=st.floats(0.1, 10.0),
)
def test_no_round_increases_the_objective_which_is_that_of_the_basis_and_the_codes(
    seed, m, mu1, mu2, init, h_scale, t_scale
):
    problem = random_problem(seed, m=m, L=10, d=2, h_scale=h_scale, t_scale=t_scale)
    rank = min(3, usable_rank(problem))
    result = run(problem, seed, rank=rank, mu1=mu1, mu2=mu2, init=init, tol=0.0, max_iter=25)
    values = result.history["objective"]
    assert np.all(np.diff(values) <= 1e-12 * values.iloc[0])
    expected = objective(problem, result.solution.U, codes(result, problem), mu1, mu2)
    assert values.iloc[-1] == pytest.approx(expected, rel=1e-10)


def test_columns_and_their_codes_share_the_penalty_at_the_end():
    """At a stationary point no scaling helps, so mu1 |u_j|^2 = mu2 |a_j|_1 column by column."""
    problem = random_problem(3, m=6, L=10, d=2)
    result = run(problem, rank=3, mu1=2.0, mu2=0.3, tol=1e-6, max_iter=50_000)
    use = sum(np.abs(A).sum(axis=1) for A in codes(result, problem))
    assert use.all()
    np.testing.assert_allclose(2.0 * np.sum(result.solution.U**2, axis=0), 0.3 * use, rtol=1e-4)


# -------------------------------------------------------------------------------------------------------------- limits


@pytest.mark.parametrize("init", ["spectral", "random"])
def test_a_large_penalty_on_codes_leaves_nothing(init):
    problem = random_problem(0)
    result = run(problem, mu2=1e4, init=init)
    assert result.stop is StopReason.CONVERGED
    assert not result.solution.A.any()
    assert not result.solution.U.any()
    assert result.history["objective"].iloc[-1] == pytest.approx(sum(np.sum(T**2) for T in problem.T) / 2)


@pytest.mark.parametrize("kind", ["regression", "classification"])
def test_without_a_code_left_the_estimators_predict_by_the_means(kind):
    X, y, tasks = rows()
    solver = GOMTL(mu2=1e6)
    if kind == "regression":
        model = MultiTaskELMRegressor(None, solver=solver, random_state=0).fit(X, y, tasks)
        np.testing.assert_allclose(model.predict(X, tasks), np.repeat(y.reshape(4, 20).mean(axis=1), 20))
    else:
        labels = np.where(y > 0.3, "high", "low")
        model = MultiTaskELMClassifier(None, solver=solver, random_state=0).fit(X, labels, tasks)
        usual = np.repeat((labels == "high").reshape(4, 20).mean(axis=1) > 0.5, 20)
        np.testing.assert_array_equal(model.predict(X, tasks) == "high", usual)
        assert np.isfinite(model.predict_proba(X, tasks)).all()


def test_targets_of_zero_are_learned_at_once():
    problem = random_problem(0)
    zero = stack(problem.H, [np.zeros_like(T) for T in problem.T])
    result = run(zero)
    assert result.stop is StopReason.CONVERGED
    assert not result.solution.A.any()


@pytest.mark.thorough
def test_as_the_penalty_on_codes_vanishes_so_does_that_on_the_basis_and_each_task_is_least_squares():
    """U may be small where codes are free to be large: the two penalties together go to zero as mu2^(2/3)."""
    problem = random_problem(1, m=3, L=6, d=1, n_max=20, unequal=False)
    least = sum(
        0.5 * np.sum((H @ np.linalg.lstsq(H, T, rcond=None)[0] - T) ** 2)
        for H, T in zip(problem.H, problem.T, strict=True)
    )
    excess = []
    for mu2 in (1e-1, 1e-3, 1e-5):
        result = run(problem, rank=3, mu2=mu2, max_iter=300)
        excess.append(result.history["objective"].iloc[-1] / least - 1)
    assert 0 < excess[2] < 0.01
    assert 10 < excess[1] / excess[2] < 30  # 100^(2/3) is 21.5
    assert excess[0] > excess[1]


@pytest.mark.parametrize(("mu1", "mu2"), [(1.0, 1.0), (0.3, 2.0), (5.0, 0.01)])
def test_one_column_for_one_output_is_a_ridge_regression_of_known_penalty(mu1, mu2):
    """Minimised over how b = u a is split, the penalty is 3/2 mu1^(1/3) (mu2 |b|)^(2/3)."""
    problem = random_problem(2, m=1, L=6, d=1, n_max=20, unequal=False)
    result = run(problem, rank=1, mu1=mu1, mu2=mu2, tol=1e-8, max_iter=50_000)
    b, H, y = result.solution.U @ result.solution.A[0], problem.H[0], problem.T[0]
    assert b.any()
    penalty = mu1 ** (1 / 3) * mu2 ** (2 / 3) * np.linalg.norm(b) ** (-4 / 3)
    np.testing.assert_allclose(b, np.linalg.solve(H.T @ H + penalty * np.eye(6), H.T @ y), rtol=1e-5)
    fit = 0.5 * np.sum((H @ b - y) ** 2)
    expected = fit + 1.5 * mu1 ** (1 / 3) * (mu2 * np.linalg.norm(b)) ** (2 / 3)
    assert result.history["objective"].iloc[-1] == pytest.approx(expected, rel=1e-9)


def test_reordered_tasks_and_shuffled_rows_give_the_same_models():
    problem = random_problem(11, m=5)
    rng = np.random.default_rng(0)
    order, shuffles = rng.permutation(5), [rng.permutation(len(H)) for H in problem.H]
    moved = stack([problem.H[t][shuffles[t]] for t in order], [problem.T[t][shuffles[t]] for t in order])
    settings = {"rank": 3, "mu2": 0.5, "max_iter": 20, "tol": 0.0}
    one, other = run(problem, **settings), run(moved, **settings)
    for k, t in enumerate(order):
        expected = one.solution.U @ codes(one, problem)[t]
        np.testing.assert_allclose(
            other.solution.U @ codes(other, moved)[k], expected, atol=1e-7 * np.abs(expected).max()
        )


# ------------------------------------------------------------------------------------------------------ what it is for


def planted(seed, codes, L=25, n=12, noise=0.05):
    """Tasks of fewer rows than features, mixed by the given codes from orthonormal columns; the same again to test."""
    rng = np.random.default_rng(seed)
    basis = np.linalg.qr(rng.normal(size=(L, codes.shape[1])))[0]
    betas = [basis @ code[:, None] for code in codes]

    def draw():
        H = [rng.normal(size=(n, L)) for _ in betas]
        return H, [h @ b + noise * rng.normal(size=(n, 1)) for h, b in zip(H, betas, strict=True)]

    return basis, stack(*draw()), draw()


@pytest.mark.thorough
@pytest.mark.parametrize("seed", one_of(3, [1, 0, 2]))
def test_it_finds_a_subspace_that_no_task_could_find_alone_and_predicts_the_better_for_it(seed):
    basis, problem, (H_new, T_new) = planted(seed, np.random.default_rng(seed).normal(size=(30, 2)))

    def error(betas):
        return np.mean([np.mean((H @ b - T) ** 2) for H, b, T in zip(H_new, betas, T_new, strict=True)])

    result = run(problem, rank=2, mu1=0.1, mu2=0.1, max_iter=2000)
    assert np.rad2deg(subspace_angles(result.solution.U, basis).max()) < 5
    ridges = [solve(LocalELM(mu=mu), problem).solution.A for mu in (0.001, 0.01, 0.1, 1.0, 10.0)]
    assert error(result.solution.U @ result.solution.A) < 0.1 * min(map(error, ridges))


@pytest.mark.parametrize("seed", one_of(3, range(3)))
def test_it_finds_which_tasks_belong_together(seed):
    """Two groups, each of one column, and a few tasks that use both: the overlap the method is named for."""
    rng = np.random.default_rng(seed)
    membership = np.repeat([[1, 0], [0, 1], [1, 1]], [12, 12, 4], axis=0)
    signs = rng.choice([-1.0, 1.0], size=membership.shape)
    basis, problem, _ = planted(seed, membership * signs * rng.uniform(1, 2, size=membership.shape), noise=0.02)
    result = run(problem, rank=2, mu1=1.0, mu2=1.0, tol=1e-3, max_iter=5000)
    used = np.hstack(codes(result, problem)).T != 0
    which = np.argmax(np.abs(basis.T @ result.solution.U), axis=1)  # the learned column nearest each planted one
    assert sorted(which) == [0, 1]
    np.testing.assert_array_equal(used[:, which], membership.astype(bool))


def test_columns_that_no_task_needs_end_as_zeros():
    _, problem, _ = planted(0, np.random.default_rng(0).normal(size=(20, 1)))
    result = run(problem, rank=5, mu1=1.0, mu2=5.0, max_iter=5000)
    assert result.stop is StopReason.CONVERGED
    assert np.sum(result.solution.U.any(axis=0)) == 1
    np.testing.assert_array_equal(result.solution.U.any(axis=0), result.solution.A.any(axis=(0, 2)))


# ------------------------------------------------------------------------------------------------- parameters, and runs


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"rank": 0}, "rank must be a whole number of at least 1; got 0"),
        ({"mu1": 0.0}, "mu1 must be a finite number, more than zero; got 0.0"),
        ({"mu2": 0.0}, "mu2 must be a finite number, more than zero; got 0.0"),
        ({"init": "ones"}, "init must be one of spectral, random; got 'ones'"),
        ({"max_iter": 0}, "max_iter must be a whole number of at least 1; got 0"),
        ({"tol": -1.0}, "tol must be a finite number, zero or more; got -1.0"),
    ],
)
def test_a_parameter_that_makes_no_sense_is_refused_by_name(parameters, message):
    with pytest.raises(ElmeshError, match=message):
        make_solver(GOMTL(**parameters))


def test_a_rank_above_what_the_data_can_use_is_cut_with_a_warning():
    with pytest.warns(RankWarning, match="rank 2 is used"):
        result = run(random_problem(0, m=2, d=1, unequal=False), rank=9)
    assert result.solution.U.shape[-1] == 2


def test_a_callback_sees_every_round_and_can_stop_the_fit():
    problem, seen = random_problem(0), []

    def callback(progress):
        seen.append((progress.round, progress.max_iter))
        return progress.round == 3

    stopped = solve(GOMTL(rank=2, mu2=0.1, tol=0.0, max_iter=40), problem, callback=callback)
    assert seen == [(0, 40), (1, 40), (2, 40), (3, 40)]
    assert (stopped.stop, stopped.n_iter) == (StopReason.INTERRUPTED, 3)
    short = run(problem, rank=2, mu2=0.1, tol=0.0, max_iter=3)
    assert short.stop is StopReason.MAX_ITER
    np.testing.assert_array_equal(short.solution.A, stopped.solution.A)
    assert short.history["bytes"].max() == short.n_exchanges == 0


def rows(seed=0, m=4, n=20):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(m * n, 5))
    tasks = np.repeat([f"site {t}" for t in range(m)], n)
    slopes = np.repeat(rng.normal(size=(m, 2)), n, axis=0)
    return X, np.sum(X[:, :2] * slopes, axis=1) + 0.1 * rng.normal(size=m * n), tasks


@pytest.mark.thorough
@pytest.mark.parametrize(("kind", "hidden"), one_of(2, ["regression", "classification"], [None, 30]))
def test_it_works_through_the_estimators_on_inputs_and_on_hidden_units(kind, hidden, tmp_path):
    X, y, tasks = rows()
    if kind == "regression":
        model = MultiTaskELMRegressor(hidden, solver="go-mtl", random_state=0)
    else:
        model, y = MultiTaskELMClassifier(hidden, solver="go-mtl", random_state=0), np.where(y > 0, "high", "low")
    model.fit(X, y, tasks)
    assert model.stop_ is StopReason.CONVERGED
    assert model.n_iter_ == model.history_["round"].iloc[-1] > 0
    assert model.graph_ is None
    assert model.U_.shape == (hidden or 5, 2 if kind == "regression" else 4)
    assert model.score(X, y, tasks) > (0.7 if kind == "regression" else 0.85)
    model.set_params(solver=GOMTL(rank=2, mu2=0.3)).fit(X, y, tasks).save(tmp_path / "model")
    loaded = elmesh.load(tmp_path / "model")
    assert repr(loaded.solver) == "GOMTL(mu2=0.3, rank=2)"
    np.testing.assert_array_equal(loaded.predict(X, tasks), model.predict(X, tasks))
    alone = loaded.for_task("site 2")
    np.testing.assert_array_equal(alone.predict(X[40:60]), model.predict(X, tasks)[40:60])


def test_too_few_rounds_warn():
    X, y, tasks = rows()
    with pytest.warns(ConvergenceWarning, match="After 1 rounds: .* raise max_iter"):
        MultiTaskELMRegressor(None, solver=GOMTL(tol=1e-6, max_iter=1)).fit(X, y, tasks)
