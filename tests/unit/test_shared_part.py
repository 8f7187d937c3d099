"""The shared part beside the others: where it starts, and whether rows left out call for it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from elmesh.comm.fixed_point import LIMBS, from_wide
from elmesh.comm.graph import make_topology
from elmesh.data.statistics import SiteRows
from elmesh.run.runner import agent_context
from elmesh.solvers.base import Problem
from elmesh.solvers.integer_sums import with_integer_sums
from elmesh.solvers.mixed_effects import estimate_effects
from elmesh.solvers.shared_part import choose_penalty, starting_basis, whitened_problem
from elmesh.solvers.variable_projection import rough_fit
from helpers.marks import one_of
from helpers.mixed import digest, run_steps
from helpers.peers import lockstep

GROUPS = np.repeat([0, 1, 2], [1, 9, 15])


def planted(seed, shared=2.0, private=0.3, rank=2, m=24, rows=16, d=1, sizes=None):
    """Sites whose weights are common, along a few directions that they share, and their own."""
    rng = np.random.default_rng(seed)
    p, scale = len(GROUPS), np.sqrt([1, 9, 15])[GROUPS]
    W, basis = rng.normal(size=(p, d)), np.linalg.qr(rng.normal(size=(p, rank)))[0] * np.sqrt(p / rank)
    drawn, Phi, T = [1, *rng.integers(rows - 6, rows + 7, size=m - 1).tolist()], [], []
    for n in drawn if sizes is None else sizes:
        features = rng.normal(size=(n, p)) / scale
        features[:, 0] = 1.0
        own = W + shared * basis @ rng.normal(size=(rank, d)) + private * rng.normal(size=(p, d))
        Phi.append(features)
        T.append(features @ own + 0.5 * rng.normal(size=(n, d)))
    return Phi, T


def problem_of(Phi, T, part=None):
    """The problem of a process with some of the sites, and halves of their rows."""
    chosen = list(range(len(T))) if part is None else part
    pairs = [(Phi[t], T[t]) for t in chosen]
    middles = [(len(own) + 1) // 2 for _, own in pairs]
    first = [SiteRows.from_rows(f[:k], t[:k]) for (f, t), k in zip(pairs, middles, strict=True)]
    second = [SiteRows.from_rows(f[k:], t[k:]) for (f, t), k in zip(pairs, middles, strict=True)]
    context = agent_context(make_topology("ring", range(len(T)), 0), 0, np.array(chosen))
    sites = [SiteRows.from_rows(f, t) for f, t in pairs]
    return Problem(sites, context, 2, GROUPS, halves=lambda: (first, second))


def effects_of(problem):
    return run_steps(estimate_effects(problem, common=True, private=True))


def dense_correlations(Phi, T, effects):
    """Each site's whitened features times what W leaves, in units of the private part, side by side."""
    root = np.exp(effects.log_v / 2)[GROUPS]
    blocks = []
    for t, (f, own) in enumerate(zip(Phi, T, strict=True)):
        K = np.eye(len(f)) + (f * root**2) @ f.T
        blocks.append(np.exp(effects.log_w[t]) * root[:, None] * (f.T @ np.linalg.solve(K, own - f @ effects.W)))
    return np.hstack(blocks)


@pytest.mark.parametrize("d", [1, 2])
@pytest.mark.parametrize("seed", one_of(3, range(3)))
def test_the_start_spans_the_leading_directions_of_the_correlations(seed, d):
    Phi, T = planted(seed, shared=4.0, d=d)
    problem = problem_of(Phi, T)
    effects = effects_of(problem)
    E = dense_correlations(Phi, T, effects)
    left, values, _ = np.linalg.svd(E)
    U, norm = run_steps(starting_basis(problem, effects, 2))
    assert U.shape == (25, 2)
    assert norm == pytest.approx(values[0], rel=1e-3)
    assert norm <= values[0] * (1 + 1e-9)
    # The share of the leading directions that lies within the span.
    Z = U / np.linalg.norm(U, axis=0)
    np.testing.assert_allclose(Z.T @ Z, np.eye(2), atol=1e-9)
    assert np.linalg.norm(Z.T @ left[:, :2]) ** 2 / 2 > 1 - (2 * values[2] / values[1]) ** 2
    assert np.linalg.norm(Z.T @ left[:, :1]) ** 2 > 0.99


@pytest.mark.parametrize("seed", one_of(3, range(3)))
def test_each_direction_is_as_long_as_the_coefficients_along_it(seed):
    Phi, T = planted(seed, d=2)
    problem = problem_of(Phi, T)
    effects = effects_of(problem)
    U, _ = run_steps(starting_basis(problem, effects, 2))
    lengths = np.linalg.norm(U, axis=0)
    Z, root, squares = U / lengths, np.exp(effects.log_v / 2)[GROUPS], np.zeros(2)
    for f, own in zip(Phi, T, strict=True):
        K = np.eye(len(f)) + (f * root**2) @ f.T
        features = (f * root) @ Z
        # Coefficients with a prior of variance one in units of the site's noise, V_t integrated out.
        C = K + features @ features.T
        squares += np.sum((features.T @ np.linalg.solve(C, own - f @ effects.W)) ** 2, axis=1)
    np.testing.assert_allclose(lengths**4, squares, rtol=1e-6)


def test_there_are_no_more_directions_than_features():
    Phi, T = planted(0)
    problem = problem_of(Phi, T)
    U, _ = run_steps(starting_basis(problem, effects_of(problem), 40))
    assert U.shape == (25, 25)


def test_residuals_of_zero_have_no_directions():
    Phi, T = planted(0)
    problem = problem_of(Phi, T)
    effects = effects_of(problem)
    exact = problem_of(Phi, [f @ effects.W for f in Phi])
    U, norm = run_steps(starting_basis(exact, effects, 2))
    assert norm <= 1e-10
    assert np.isfinite(U).all()


@pytest.mark.parametrize("sizes", [(3, 5, 1), (26, 3, 1), (27, 3, 1), (3, 40, 5), (52, 4, 2), (54, 4, 2), (200, 1, 3)])
def test_all_processes_pad_sites_and_halves_to_the_same_number_of_rows(sizes):
    """Also beside sites with a few more rows than features, which have them as they are."""
    Phi, T = planted(0, sizes=sizes, d=2)
    effects = effects_of(problem_of(Phi, T))
    found = set()
    for t in range(3):
        alone = problem_of(Phi, T, [t])
        own = replace(effects, log_w=effects.log_w[[t]])
        parts = [alone, *(replace(alone, data=half, halves=None) for half in alone.halves())]
        found |= {whitened_problem(part, own).task.V.shape for part in parts}
    assert len(found) == 1


# Whether U is looked for ---------------------------------------------------------------------------------------------


def choose(problem, effects, looked=None):
    """Choose the penalty; fits of U are counted."""

    def fit(half, lam, start):
        if looked is not None:
            looked.append(lam)
        return with_integer_sums(rough_fit(half, lam, start), half.context)

    return choose_penalty(problem, effects, fit, 2)


def verdict(seed, **planting):
    """Whether U was looked for, and whether it was kept."""
    problem, looked = problem_of(*planted(seed, **planting)), []
    found = run_steps(choose(problem, effects_of(problem), looked))
    return bool(looked), found is not None


SEEDS = range(12)


@pytest.mark.thorough
def test_a_strong_shared_part_is_looked_for_and_kept():
    assert [verdict(seed, shared=3.0, rank=1, private=0.2) for seed in SEEDS[::3]] == [(True, True)] * 4


@pytest.mark.thorough
def test_beside_a_private_part_alone_there_is_mostly_nothing_to_look_for():
    found = np.array([verdict(seed, shared=0.0, private=1.0) for seed in SEEDS])
    looked, kept = found.mean(axis=0)
    assert looked <= 0.5
    assert kept <= 0.25


def test_a_gain_of_less_than_its_standard_error_is_not_enough():
    """A shared part that helps one site only, and does a little harm to another."""
    problem = problem_of(*planted(0, shared=3.0, rank=1, private=0.2))
    effects, scale = effects_of(problem), np.zeros((24, 1, 1))
    scale[[5, 6], 0, 0] = 1.0, -0.05

    def fit(half, lam, start):
        U, A = yield from with_integer_sums(rough_fit(half, lam, start), half.context)
        return U, scale * A

    requests = []
    assert run_steps(choose_penalty(problem, effects, fit, 2), requests) is None
    pairs = [from_wide(request.value.reshape(-1, LIMBS)) for request in requests if request.value.size == 2 * LIMBS]
    assert min(change for change, _ in pairs) < -1.0, "no gain was found, so that nothing is tested"


def test_without_halves_or_private_variances_there_is_no_choice():
    problem = problem_of(*planted(0))
    effects = effects_of(problem)
    assert run_steps(choose(replace(problem, halves=None), effects)) is None
    none = replace(effects, log_v=np.full(3, -np.inf))
    assert run_steps(choose(problem, none)) is None


def test_where_the_common_part_leaves_nothing_there_is_no_shared_part():
    Phi, T = planted(0)
    zero = problem_of(Phi, [np.zeros_like(own) for own in T])
    effects = replace(effects_of(problem_of(Phi, T)), W=np.zeros((25, 1)))
    looked = []
    assert run_steps(choose(zero, effects, looked)) is None
    assert not looked


@pytest.mark.thorough
@pytest.mark.parametrize("parts", [[[t] for t in range(6)], [[0, 2, 4], [1, 3, 5]]])
def test_processes_choose_the_same_bits_however_sites_are_spread(parts):
    Phi, T = planted(1, shared=3.0, rank=1, private=0.2, m=6)
    whole = problem_of(Phi, T)
    effects = effects_of(whole)
    ((lam, U),) = lockstep([choose(whole, effects)])[0]
    programs = [choose(problem_of(Phi, T, part), replace(effects, log_w=effects.log_w[part])) for part in parts]
    for own_lam, own_U in lockstep(programs)[0]:
        assert own_lam == lam
        assert digest(own_U) == digest(U)
