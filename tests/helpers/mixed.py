"""Random problems with a common and a private part, their dense Gaussian densities, and how to run their solvers.

Everything here is computed from rows, without whitening, sums or reduction: what the package computes must agree.
"""

from __future__ import annotations

import hashlib
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import scipy.linalg
from hypothesis import strategies as st
from scipy.stats import multivariate_normal

from elmesh import RunConfig, Solver
from elmesh.comm.graph import make_topology
from elmesh.comm.requests import IntegerSum
from elmesh.data.statistics import SiteRows
from elmesh.math.evidence import Totals
from elmesh.math.random_effects import SiteBatch, site_batches
from elmesh.run import RunResult, run_local
from elmesh.solvers.base import AgentContext, GroupedFeatures
from elmesh.typing import FloatArray, IndexArray


@dataclass(frozen=True, eq=False)
class MixedProblem:
    """The rows of sites, and the group of each feature."""

    Phi: list[FloatArray]
    T: list[FloatArray]
    groups: IndexArray

    @cached_property
    def sites(self) -> list[SiteRows]:
        return [SiteRows.from_rows(Phi, T) for Phi, T in zip(self.Phi, self.T, strict=True)]

    @property
    def n_groups(self) -> int:
        return int(self.groups.max()) + 1

    @property
    def rows(self) -> FloatArray:
        return np.array([float(len(T)) for T in self.T])

    def batches(self) -> list[SiteBatch]:
        return site_batches(self.sites, self.groups)

    def site(self, t: int) -> MixedProblem:
        """One site alone."""
        return MixedProblem([self.Phi[t]], [self.T[t]], self.groups)

    def in_order(self, order: Sequence[int]) -> MixedProblem:
        return MixedProblem([self.Phi[t] for t in order], [self.T[t] for t in order], self.groups)

    def private_covariance(self, t: int, log_v: FloatArray) -> FloatArray:
        """K of a site, from its rows."""
        Phi = self.Phi[t]
        return np.eye(len(Phi)) + Phi @ np.diag(np.exp(log_v)[self.groups]) @ Phi.T

    def covariance(self, log_c: FloatArray, log_v: FloatArray, log_w: FloatArray) -> FloatArray:
        """The covariance of all rows of a column of targets, in units of the common noise, W and V integrated out."""
        private = [np.exp(-log_w[t]) * self.private_covariance(t, log_v) for t in range(len(self.Phi))]
        Phi = np.vstack(self.Phi)
        return scipy.linalg.block_diag(*private) + Phi @ np.diag(np.exp(log_c)[self.groups]) @ Phi.T

    def minus_twice_log_density(self, log_c: FloatArray, log_v: FloatArray, log_w: FloatArray, s2: FloatArray) -> float:
        """-2 log density of all targets."""
        C, T = self.covariance(log_c, log_v, log_w), np.vstack(self.T)
        return -2 * sum(
            multivariate_normal(np.zeros(len(T)), variance * C).logpdf(column)
            for variance, column in zip(s2, T.T, strict=True)
        )

    def totals(self, log_v: FloatArray, log_w: FloatArray) -> Totals:
        """The totals over all sites, by solving with each site's K."""
        p, d = self.Phi[0].shape[1], self.T[0].shape[1]
        Q, b, squares = np.zeros((p, p)), np.zeros((p, d)), np.zeros(d)
        for t, (Phi, T) in enumerate(zip(self.Phi, self.T, strict=True)):
            K, w = self.private_covariance(t, log_v), np.exp(log_w[t])
            Q += w * Phi.T @ np.linalg.solve(K, Phi)
            b += w * Phi.T @ np.linalg.solve(K, T)
            squares += w * np.sum(T * np.linalg.solve(K, T), axis=0)
        return Totals(Q, b, squares, float(self.rows.sum()))


def make_problem(
    seed: int, rows: Sequence[int], widths: Sequence[int] = (1, 2, 3), d: int = 1, noise: float = 0.5
) -> MixedProblem:
    """Targets from common and private weights plus noise; the first group is a constant where it has one feature."""
    rng = np.random.default_rng(seed)
    groups = np.repeat(np.arange(len(widths)), widths)
    p = len(groups)
    W = rng.normal(size=(p, d))
    Phi, T = [], []
    for n in rows:
        features = rng.normal(size=(n, p)) / np.sqrt(np.maximum(widths, 1))[groups]
        if widths[0] == 1:
            features[:, 0] = 1.0
        own = W + 0.6 * rng.normal(size=(p, d))
        Phi.append(features)
        T.append(features @ own + noise * rng.normal(size=(n, d)))
    return MixedProblem(Phi, T, groups)


@st.composite
def mixed_problems(draw: st.DrawFn) -> MixedProblem:
    """Sites of one row and of more rows than features; groups that may be empty; several columns."""
    inner = draw(st.lists(st.integers(0, 3), min_size=0, max_size=3))
    widths = [*inner, draw(st.integers(1, 3))]
    rows = draw(st.lists(st.sampled_from([1, 1, 2, 3, 5, 9, 17, 30]), min_size=1, max_size=5))
    return make_problem(draw(st.integers(0, 10**6)), rows, widths, d=draw(st.integers(1, 3)))


def log_variances(seed: int, n: int) -> FloatArray:
    """Log-variances of a moderate range."""
    return np.random.default_rng(seed).uniform(-3.0, 2.0, size=n)


def central_difference(f: Any, x: FloatArray, step: float = 1e-5) -> FloatArray:
    """The gradient of a function of a vector; of shape (n, ...) for values of shape (...)."""
    steps = step * np.eye(len(x))
    return np.array([(f(x + h) - f(x - h)) / (2 * step) for h in steps])


def digest(*arrays: FloatArray) -> str:
    """A short text that differs where bits differ; pytest takes minutes to compare long bytes that differ."""
    return hashlib.sha256(b"".join(np.ascontiguousarray(array).tobytes() for array in arrays)).hexdigest()


def run_steps(steps: Generator[Any, Any, Any], requests: list[IntegerSum] | None = None) -> Any:
    """Run the steps of a process that has all sites: a sum over all sites is its own."""
    answer = None
    while True:
        try:
            request = steps.send(answer)
        except StopIteration as end:
            return end.value
        assert isinstance(request, IntegerSum), f"a sum of integers was expected, not {request}"
        if requests is not None:
            requests.append(request)
        answer = request.value


def only_context() -> AgentContext:
    """The context of a process that has all sites."""
    return AgentContext(1, np.zeros(1, np.intp), np.zeros(1), 1.0, lambda _: np.zeros(0), 0, 1)


def solve_mixed(solver: Solver, problem: MixedProblem, graph: str | None = None, noise_floor: float = 0.0) -> RunResult:
    """Run a solver in this process, over a graph or in one place."""
    topology = None if graph is None else make_topology(graph, range(len(problem.Phi)), 0)
    features = GroupedFeatures(problem.groups, noise_floor)
    return run_local(solver, problem.sites, topology, 0, RunConfig(), features=features)
