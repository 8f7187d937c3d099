"""What colluding sites can infer about another one from masked sums and from totals with differential privacy.

Sites hold digits of scikit-learn, as in :mod:`benchmarks.eavesdrop`: is a digit at least five? One label in five is
wrong on purpose: no model can predict those. The fit is the one of networks, common and private parts by masked sums.
Attackers are k of m sites. They know all totals, subtract their own parts, and know all parameters. Every figure is a
mean over draws; where there is a choice (which total, which score), the best in hindsight is taken.

Attacks that take totals apart are in :mod:`benchmarks.separation`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import norm
from sklearn.datasets import load_digits
from threadpoolctl import threadpool_limits

from benchmarks.attacks import auc
from benchmarks.measure import machine
from benchmarks.scores import Row, mean, short
from benchmarks.separation import fit_grams, gradient_total, matched_error, rounded, steer_basis, whitened
from elmesh import MeshELM, MultiTaskELMRegressor, Privacy, RunConfig
from elmesh.comm.fixed_point import LIMBS, exponent_for, from_wide, to_scaled, to_wide
from elmesh.comm.graph import make_topology
from elmesh.comm.requests import Topic
from elmesh.comm.row_counts import round_down, sure_rows
from elmesh.data.statistics import SiteRows
from elmesh.math.random_effects import site_batches, whiten
from elmesh.privacy.accounting import rho_for
from elmesh.privacy.discrete_gaussian import NoiseSource
from elmesh.privacy.release import make_mechanism
from elmesh.run import LocalBackend, run_local
from elmesh.run.runner import agent_context
from elmesh.solvers import variance_components
from elmesh.solvers.private_part import private_features
from elmesh.solvers.variance_components import estimate_components

SEEDS = range(20)
WRONG, ROWS_PER_FEATURE, EPSILON, DELTA = 0.2, 20.0, 1.0, 1e-5
# Sites, colluders and rows per site.
SETTINGS = ((3, 1, 50), (3, 1, 300), (5, 1, 50), (5, 3, 50), (5, 1, 300), (20, 1, 50), (20, 6, 50), (20, 18, 50))
FloatArray = np.ndarray


@dataclass(frozen=True, eq=False)
class Case:
    """Sites, of which the last ones collude and the first one is under attack, and rows of nobody."""

    X: list[FloatArray]
    y: list[FloatArray]
    wrong: list[FloatArray]
    fresh: FloatArray
    fresh_y: FloatArray
    colluders: int

    @property
    def honest(self) -> int:
        return len(self.X) - self.colluders


def digits(m: int, colluders: int, N: int, seed: int) -> Case:
    """Deal the digits out to sites; labels are -1 and 1."""
    pixels, digit = load_digits(return_X_y=True)
    rng = np.random.default_rng(seed)
    X, y = (pixels - 8.0) / (16.0 / np.sqrt(12.0)), np.where(digit >= 5, 1.0, -1.0)
    wrong = rng.random(len(y)) < WRONG
    order = rng.permutation(len(y))
    sites, rest = order[: m * N].reshape(m, N), order[m * N :]
    given = np.where(wrong, -y, y)
    own = ([values[rows] for rows in sites] for values in (X, given, wrong))
    return Case(*own, X[rest], given[rest], colluders)


@dataclass(frozen=True, eq=False)
class Fit:
    """A fit of all sites by masked sums, with what it is made of."""

    case: Case
    limit: float  # rows per feature

    @cached_property
    def model(self) -> MultiTaskELMRegressor:
        case = self.case
        sites = np.repeat([f"{t:02d}" for t in range(len(case.X))], [len(X) for X in case.X])
        solver = MeshELM(rank=0, rows_per_feature=self.limit, weigh_sites=False)
        model = MultiTaskELMRegressor(solver=solver, clip=None, random_state=0)
        run = RunConfig(backend=LocalBackend(mask=True))
        return model.fit(np.vstack(case.X), np.concatenate(case.y), tasks=sites, run=run)

    def features(self, X: FloatArray) -> FloatArray:
        """All features of rows."""
        return np.asarray(self.model.model_.layer(X))

    @cached_property
    def released(self) -> FloatArray:
        """The features whose totals are summed."""
        groups = self.model.model_.layer.groups
        if not self.limit:
            return np.arange(len(groups))
        rows = sure_rows([round_down(len(X)) for X in self.case.X])
        return np.flatnonzero(variance_components.released_features(groups, int(rows / self.limit)))

    @cached_property
    def targets(self) -> list[FloatArray]:
        every = np.concatenate(self.case.y)
        return [((y - every.mean()) / every.std())[:, None] for y in self.case.y]

    @cached_property
    def totals(self) -> list[tuple[FloatArray, FloatArray]]:
        """The matrix totals of the honest sites, Q and b, at each of the variances of the fit."""
        groups = self.model.model_.layer.groups
        sites = [SiteRows.from_rows(self.features(X), T) for X, T in zip(self.case.X, self.targets, strict=True)]
        batches, found = site_batches(sites, groups), []
        for log_v in self.steps:
            Q, b = np.zeros((len(self.released),) * 2), np.zeros((len(self.released), 1))
            for batch in batches:
                (X, Y), _ = whiten(batch, np.exp(log_v), batch.Phi, batch.T)
                for k, t in enumerate(batch.index.tolist()):
                    if t < self.case.honest:
                        Z = X[k][:, self.released]
                        Q, b = Q + Z.T @ Z, b + Z.T @ Y[k]
            found.append((rounded(Q), rounded(b)))
        return found

    @cached_property
    def steps(self) -> list[FloatArray]:
        """The private variances at each sum of matrices."""
        layer = self.model.model_.layer
        sites = [SiteRows.from_rows(self.features(X), T) for X, T in zip(self.case.X, self.targets, strict=True)]
        found, usual = [], variance_components.MATRIX_SUMS
        try:
            for k in range(1, usual + 1):
                # The search ends with the variances of its last sum.
                variance_components.MATRIX_SUMS = k
                effects = _effects(sites, layer.groups, len(self.released) if self.limit else None)
                found.append(effects.log_v)
        finally:
            variance_components.MATRIX_SUMS = usual
        return found


def _effects(sites: list[SiteRows], groups: FloatArray, most: int | None) -> Any:
    from elmesh.solvers.base import GroupedFeatures  # noqa: PLC0415

    features = GroupedFeatures(groups, most_features=most)
    return run_local(
        MeshELM(rank=0, certify=False, weigh_sites=False), sites, None, 0, features=features
    ).solution.effects


# Membership and labels, from totals as they are.


def masked(case: Case, limit: float) -> Row:
    """Attack the first site by what masked sums release."""
    fit = Fit(case, limit)
    members, fresh = fit.features(case.X[0]), fit.features(case.fresh)
    others = np.vstack([fit.features(X) for X in case.X[1 : case.honest]]) if case.honest > 1 else fresh
    T, F = fit.targets[0][:, 0], (case.fresh_y - np.concatenate(case.y).mean()) / np.concatenate(case.y).std()
    other_T = np.concatenate([T[:, 0] for T in fit.targets[1 : case.honest]]) if case.honest > 1 else F
    scores = [score for Q, b in fit.totals for score in _scores(Q, b, fit.released)]
    auc_all = [auc(score(members, T), score(fresh, F)) for score in scores]
    auc_site = [auc(score(members, T), score(others, other_T)) for score in scores]
    own = (
        fit.model.predict(case.X[0], tasks=["00"] * len(case.X[0])),
        fit.model.predict(case.fresh, tasks=["00"] * len(case.fresh)),
    )
    read = [np.sign(members[:, fit.released] @ np.linalg.lstsq(Q, b, rcond=1e-12)[0][:, 0]) for Q, b in fit.totals]
    y, wrong = case.y[0], case.wrong[0]
    labels = [_share(found, y, wrong) for found in read]
    rank = int(np.linalg.matrix_rank(fit.totals[0][0], tol=1e-9 * np.linalg.norm(fit.totals[0][0])))
    return {
        "features": len(fit.released),
        "rank": rank,
        "auc": auc_all,
        "auc_site": auc_site,
        "auc_own_model": auc(np.abs(y - own[0]), np.abs(case.fresh_y - own[1])),
        "labels": {name: [found[name] for found in labels] for name in labels[0]},
        "labels_own_model": _share(np.sign(own[0]), y, wrong),
    }


def _scores(Q: FloatArray, b: FloatArray, released: FloatArray) -> list[Any]:
    """Return scores of candidates, lower for members: leverage, distance from the span, and the residual."""
    values, vectors = np.linalg.eigh(Q)
    kept = values > 1e-10 * values[-1]
    inverse = (vectors[:, kept] / values[kept]) @ vectors[:, kept].T
    weights = inverse @ b[:, 0]

    def leverage(Phi: FloatArray, T: FloatArray) -> FloatArray:
        Z = Phi[:, released]
        return np.asarray(np.einsum("ij,jk,ik->i", Z, inverse, Z))

    def outside(Phi: FloatArray, T: FloatArray) -> FloatArray:
        Z = Phi[:, released]
        return np.asarray(np.linalg.norm(Z - (Z @ vectors[:, kept]) @ vectors[:, kept].T, axis=1))

    def residual(Phi: FloatArray, T: FloatArray) -> FloatArray:
        return np.abs(T - Phi[:, released] @ weights)

    return [leverage, outside, residual]


def _share(found: FloatArray, y: FloatArray, wrong: FloatArray) -> dict[str, float]:
    right = found == y
    return {"all": float(right.mean()), "wrong": float(right[wrong].mean())}


# The same with differential privacy.


def private(case: Case) -> Row:
    """Attack the first site by what a private fit releases: one total with noise."""
    m, N, rng = len(case.X), len(case.X[0]), np.random.default_rng(0)
    privacy = Privacy(EPSILON, DELTA, input_range=(-1.8, 1.8), target_range=(-1.8, 1.8))
    colluders = privacy.colluders(m)
    layer = Fit(case, ROWS_PER_FEATURE).model.model_.layer
    features, units = private_features(layer.groups)
    mechanism = make_mechanism(len(features), 1, rho_for(EPSILON, DELTA), m * N, m - colluders)

    def terms(X: FloatArray, y: FloatArray) -> FloatArray:
        """What each row adds to the totals."""
        Phi = np.asarray(layer(X))[:, features] * units
        return np.array([mechanism.totals(Phi[k : k + 1], y[k : k + 1, None]) for k in range(len(X))], dtype=float)

    honest = [terms(X, y) for X, y in zip(case.X[: case.honest], case.y, strict=False)]
    fresh = terms(case.fresh, case.fresh_y)
    source, sigma = NoiseSource.fresh(), mechanism.sigma
    noise = sum(source.draw(b"%d" % t, sigma) for t in range(case.honest))
    total = sum(own.sum(axis=0) for own in honest) + noise
    spread = sigma * np.sqrt(case.honest)
    members = honest[0]
    # Knows nothing but its own rows: how much of the total, less what rows like its own would give, is the candidate's.
    own = np.vstack([terms(X, y) for X, y in zip(case.X[case.honest :], case.y[case.honest :], strict=True)])
    expected = case.honest * N * own.mean(axis=0)
    filtered = [-((rows / spread) @ ((total - expected) / spread)) for rows in (members, fresh)]
    others = np.vstack(honest[1:]) if case.honest > 1 else fresh
    rest = -((others / spread) @ ((total - expected) / spread))
    G, b = mechanism.split(total)
    weights = np.linalg.lstsq(G + 1e-6 * np.trace(G) * np.eye(len(G)), b, rcond=1e-6)[0][:, 0]
    Z = np.asarray(layer(case.X[0]))[:, features] * units
    read = np.sign(Z @ weights)
    # Knows everything but whether this row or that one was there: the best test of two Gaussians.
    pairs = members[rng.integers(len(members), size=400)] - fresh[rng.integers(len(fresh), size=400)]
    distance = np.linalg.norm(pairs / spread, axis=1)
    flipped = np.linalg.norm((members - terms(case.X[0], -case.y[0])) / spread, axis=1)
    return {
        "features": len(features),
        "auc": [auc(*filtered)],
        "auc_site": [auc(filtered[0], rest)],
        "auc_all_else_known": float(np.mean(norm.cdf(distance / np.sqrt(2)))),
        "auc_label_all_else_known": float(np.mean(norm.cdf(flipped / np.sqrt(2)))),
        "labels": {name: [value] for name, value in _share(read, case.y[0], case.wrong[0]).items()},
    }


def hindsight(row: Row) -> Row:
    """Choose the best score and total, on the mean over draws; of labels the best total."""
    best = int(np.argmax(row["labels"]["all"]))
    labels = {name: values[best] for name, values in row["labels"].items()}
    return {**row, "auc": max(row["auc"]), "auc_site": max(row["auc_site"]), "labels": labels}


def attacked(way: str, seeds: Iterable[int]) -> list[Row]:
    rows = []
    for m, k, N in SETTINGS:
        print(f"  {way}: {m} sites, {k} collude, {N} rows", file=sys.stderr)
        draws = []
        for seed in seeds:
            case = digits(m, k, N, seed)
            draws.append(private(case) if way == "private" else masked(case, ROWS_PER_FEATURE * (way == "masked")))
        rows.append({"sites": m, "colluders": k, "rows": N, **hindsight(mean(draws))})
    return rows


# Totals taken apart.


def similar_sites(h: int, p: int, N: int, rng: np.random.Generator) -> list[tuple[FloatArray, FloatArray]]:
    """Return features and targets of sites whose columns are correlated alike, each in its own way."""
    mix = 0.7 * rng.standard_normal((p - 1, p - 1)) / np.sqrt(p - 1)
    found = []
    for _ in range(h):
        own = np.eye(p - 1) + mix + 0.3 * rng.standard_normal((p - 1, p - 1)) / np.sqrt(p - 1)
        Phi = np.c_[np.ones(N), rng.standard_normal((N, p - 1)) @ own / np.sqrt(p - 1)]
        found.append((Phi, Phi @ rng.standard_normal(p) + rng.standard_normal(N)))
    return found


def grams(seeds: Iterable[int], p: int = 5, N: int = 50) -> list[Row]:
    """Fit the Gram matrices of h honest sites to totals at all v of a fit, and at v that the attacker chose."""
    rows = []
    for h in (2, 3, 4, 9):
        for way, n_sums in (("as in a fit", 2), ("as in a fit", 3), ("chosen", 2), ("chosen", 3), ("chosen", 30)):
            print(f"  Gram matrices of {h} sites, {n_sums} totals, {way}", file=sys.stderr)
            draws = [gram_errors(h, p, N, way, n_sums, seed) for seed in seeds]
            errors, guesses = np.array(draws).T
            rows.append(
                {"honest": h, "features": p, "totals": n_sums, "v": way, "found": int(np.sum(errors < 0.01))}
                | {"draws": len(draws), "error": float(np.median(errors)), "guess": float(np.median(guesses))}
            )
    return rows


def gram_errors(h: int, p: int, N: int, way: str, n_sums: int, seed: int) -> tuple[float, float]:
    rng = np.random.default_rng(seed)
    sites = similar_sites(h, p, N, rng)
    G = np.array([Phi.T @ Phi for Phi, _ in sites])
    # Variances of a fit, from its start on; and different ones for every feature.
    v = np.array([[0.3, *[0.1] * (p - 1)], [0.2, *[0.03] * (p - 1)], [0.19, *[0.028] * (p - 1)]])[:n_sums]
    if way == "chosen":
        v = 10.0 ** rng.uniform(-3, 1, (n_sums, p))
    totals = [rounded(whitened(G, one).sum(axis=0)) for one in v]
    starts = [np.array([Phi.T @ Phi for Phi, _ in similar_sites(h, p, N, rng)]) for _ in range(6)]
    found, _ = fit_grams(totals, v, starts)
    # Whoever knows one total can guess that all sites are alike.
    return matched_error(found, G), matched_error(np.broadcast_to(G.mean(axis=0), G.shape), G)


def steered(seeds: Iterable[int], N: int = 50, mu: float = 1.0) -> list[Row]:
    """Find the correlations of h honest sites from totals of gradients at U that the attacker chose."""
    rows = []
    for p, h in ((6, 2), (12, 4), (12, 9)):
        cosines, rounds = [], 0
        for seed in seeds:
            rng = np.random.default_rng(seed)
            data = similar_sites(h, p, N, rng)
            sites = [(Phi.T @ Phi, Phi.T @ T) for Phi, T in data]
            length = 0.12 / np.sqrt(max(np.linalg.eigvalsh(G)[-1] for G, _ in sites))
            found = steer_basis(lambda u, own=sites: rounded(gradient_total(own, u, mu)), p, h, mu, length, seed)
            true = np.array([c / np.linalg.norm(c) for _, c in sites])
            unit = found.correlations / np.linalg.norm(found.correlations, axis=0)
            cosines.append(np.max(np.abs(true @ unit), axis=1).min())
            rounds = found.rounds
        rows.append({"honest": h, "features": p, "rounds": rounds, "worst_cosine": float(np.median(cosines))})
    return rows


def weights(seeds: Iterable[int], h: int = 4, p: int = 6, N: int = 50) -> list[Row]:
    """Steer W so that all sites but one weigh nothing, where sites have weights, and take the next total."""
    return [
        {"weights": weigh, "honest": h, "features": p,
         "error": float(np.median([total_of_victim(h, p, N, weigh, seed) for seed in seeds]))}
        for weigh in (True, False)
    ]  # fmt: skip


def total_of_victim(h: int, p: int, N: int, weigh: bool, seed: int) -> float:
    """Return how far the second matrix total of honest sites is from the term of one site that is under attack.

    In all rows of that site, and in no others, the last feature is one. The attacker's terms in the first total give
    W a size that predicts zero for the victim and 10^5 for all others, and then end the search for variances.
    """
    rng = np.random.default_rng(seed)
    sites = [
        (np.c_[Phi[:, :-1], np.full(N, float(t == 0))], T) for t, (Phi, T) in enumerate(similar_sites(h, p, N, rng))
    ]
    rows = [SiteRows.from_rows(Phi, T[:, None]) for Phi, T in sites]
    topology, groups = make_topology("complete", range(h), 0), np.array([0, *[1] * (p - 1)])
    honest = [
        estimate_components(site_batches(own, groups), agent_context(topology, 0, np.array(index)), common=True,
                            private=True, weigh=weigh)
        for own, index in ((rows[:1], [0]), (rows[1:], list(range(1, h))))
    ]  # fmt: skip
    large, size, bounds, matrices = 1e7, 1e5, np.zeros(2), 0
    answer: Any = None
    while True:
        victim, others = (program.send(answer) for program in honest)
        answer = victim.value + others.value
        if victim.topic == Topic.MATRIX:
            matrices += 1
            if matrices == 2:
                n = p * (p + 1) // 2 + p
                return float(np.linalg.norm(others.value[:n]) / np.linalg.norm(victim.value[:n]))
            W = np.zeros(p)
            W[[0, -1]] = size, -size
            e = [exponent_for(bound) for bound in (bounds[0], np.sqrt(bounds[0] * bounds[1]), bounds[1])]
            Q = (large * np.eye(p))[np.triu_indices(p)]
            parts = (Q, large * W, np.array([2 * large * size**2]))
            answer += np.concatenate([to_scaled(part, k) for part, k in zip(parts, e, strict=True)])
        elif matrices == 0 and len(answer) == 2 * LIMBS:  # bounds of the matrices
            answer += to_wide(np.array([large, 10 * large * size**2])).ravel()
            bounds = from_wide(answer.reshape(-1, LIMBS))
        elif matrices == 1 and len(answer) == (1 + 3 + 6) * LIMBS:  # value, gradient and Hessian of three variances
            flat = np.zeros(10)
            flat[[4, 7, 9]] = 1e18
            answer += to_wide(flat).ravel()


def differences(seeds: Iterable[int], N: int = 50) -> list[Row]:
    """Compare the totals of two runs between which one site has added a row, or has left."""
    cosines, ranks, sites = [], [], []
    for seed in seeds:
        case = digits(5, 1, N, seed)
        fit = Fit(case, ROWS_PER_FEATURE)
        v = np.exp(fit.steps[0])[fit.model.model_.layer.groups]

        def total(rows: list[FloatArray], fit: Fit = fit, v: FloatArray = v) -> FloatArray:
            Q = np.zeros((len(fit.released),) * 2)
            for X in rows:
                Phi = fit.features(X)
                K = np.eye(len(Phi)) + (Phi * v) @ Phi.T
                Q += Phi[:, fit.released].T @ np.linalg.solve(K, Phi[:, fit.released])
            return rounded(Q)

        honest = case.X[: case.honest]
        before, after = total([honest[0][1:], *honest[1:]]), total(honest)
        vectors = np.linalg.eigh(after - before)[1]
        candidates = fit.features(np.vstack([honest[0][:1], case.fresh]))[:, fit.released]
        # What every site knows of features in general takes off most of what the private part has changed.
        unlike = np.abs(candidates @ vectors[:, -1]) / np.linalg.norm(candidates, axis=1)
        cosines.append(unlike[0])
        ranks.append(np.sum(unlike > unlike[0]) + 1)
        gone = after - total(honest[1:])
        own = total(honest[:1])
        sites.append(np.linalg.norm(gone - own) / np.linalg.norm(own))
    return [
        {"change": "one row more", "cosine": float(np.median(cosines)), "rank": float(np.median(ranks)),
         "candidates": len(case.fresh) + 1},
        {"change": "one site less", "error": float(np.median(sites))},
    ]  # fmt: skip


def run(results: Path) -> dict[str, Any]:
    with threadpool_limits(1, user_api="blas"):
        figures = {
            "masked": attacked("masked", SEEDS),
            "masked, all features": attacked("masked, all features", SEEDS),
            "private": attacked("private", SEEDS),
            "Gram matrices": grams(range(6)),
            "steered": steered(SEEDS),
            "weights": weights(SEEDS),
            "differences": differences(SEEDS),
        }
    # Networks protect against a third of the sites.
    many = [row for row in figures["masked"] if row["sites"] >= 5 and 3 * row["colluders"] <= row["sites"]]
    noisy = [row for row in figures["private"] if 3 * row["colluders"] <= row["sites"]]
    return {
        "benchmark": "totals",
        "unit": "AUC of telling rows of a site from others; shares of labels; relative errors",
        "machine": machine(),
        "settings": {"draws": len(SEEDS), "wrong": WRONG, "epsilon": EPSILON, "delta": DELTA,
                     "rows_per_feature": ROWS_PER_FEATURE},
        "figures": short(figures),
        "goals": {
            "masked, at least five sites, at most a third collude: labels found only as by the site's own model": all(
                row["labels"]["wrong"] <= row["labels_own_model"]["wrong"] + 0.02 for row in many
            ),
            "masked, at least five sites, at most a third collude: no row attributed (AUC at most 0.55)": all(
                row["auc_site"] <= 0.55 for row in many
            ),
            "epsilon 1, at most a third collude: AUC at most 0.55 in every setting": all(
                max(row["auc"], row["auc_site"], row["auc_all_else_known"]) <= 0.55 for row in noisy
            ),
        },
    }  # fmt: skip
