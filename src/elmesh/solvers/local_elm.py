r"""Local ELM (equation (4)): every task by itself.

With a given penalty it is the paper's ridge regression. By default the weights have a prior variance of their own in
each group of features (:mod:`elmesh.math.random_effects`), at the maximum of the task's evidence.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from elmesh.data.statistics import Task
from elmesh.math.evidence import HYPERPRIOR
from elmesh.math.kernels import ridge
from elmesh.math.noise import own_penalty
from elmesh.math.random_effects import SiteBatch, site_evidence, whiten
from elmesh.solvers.base import Problem, Solution, Solver, Steps
from elmesh.solvers.state import PerAgent, SolverState
from elmesh.typing import FloatArray

__all__ = ["LocalELM", "LocalState", "local_variances", "local_weights", "solve_alone"]

# Variance of the constant's weight in units of the noise: as good as unpenalised; and where the others start.
_CONSTANT, _FIRST = 1e4, 1.0
# Newton steps, the change of -2 log evidence at which they end, the longest step in log-variances, and their bounds.
_STEPS, _SETTLED, _LONGEST, _BOUND = 40, 1e-3, 2.0, 16.0
_DAMPING, _EASE, _TIGHTEN = 1e-2, 0.2, 8.0


@dataclass(frozen=True, eq=False)
class LocalState(SolverState):
    """The weights of each task, and the root of their prior variance."""

    A: PerAgent
    prior: PerAgent | None = None


@dataclass(repr=False, eq=False)
class LocalELM(Solver):
    r"""Ridge regression of each task alone, :math:`\beta_t = (H_t'H_t + \mu I)^{-1}H_t'T_t`.

    Parameters
    ----------
    mu : float or "auto", default="auto"
        Penalty on the weights. "auto": each task finds one for every group of its features, by its own evidence.

    Examples
    --------
    >>> from elmesh import LocalELM
    >>> LocalELM(mu=10.0).mu
    10.0
    """

    name: ClassVar[str] = "local-elm"
    summary: ClassVar[str] = "each task alone, by ridge regression"
    state_type = LocalState
    iterative: ClassVar[bool] = False

    mu: float | str = "auto"

    @property
    def grouped_features(self) -> bool:
        """Whether the penalties are by group."""
        return self.mu == "auto"

    def init_state(self, problem: Problem) -> Steps[LocalState]:
        """Solve at once."""
        yield from ()
        if self.mu != "auto":
            return LocalState(0, ridge(problem.task, float(self.mu)))
        return LocalState(0, *_by_evidence(problem))

    def solution(self, problem: Problem, state: LocalState) -> Solution:
        """Return the weights, with the identity as basis."""
        return Solution(None, state.A, mu2=1.0 if self.mu == "auto" else float(self.mu), prior=state.prior)


def solve_alone(problem: Problem) -> Solution:
    """Return each task's own ridge regression, without a message: penalties are by evidence where features have groups.

    Where they have none, each task's penalty has the least generalised cross-validation.
    """
    if not isinstance(problem.data, Task):
        A, prior = _by_evidence(problem)
        return Solution(None, A, mu2=1.0, prior=prior)
    mu = np.asarray(own_penalty(problem.data))[..., None]
    A = ridge(problem.data, mu[..., None])
    return Solution(None, A, mu2=1.0, prior=np.broadcast_to(mu**-0.5, A.shape[:-1]).copy())


def _by_evidence(problem: Problem) -> tuple[FloatArray, FloatArray]:
    """Return each site's weights, and the root of their prior variances at the maximum of its evidence."""
    A, prior = np.zeros(problem.shape), np.ones(problem.shape[:-1])
    for batch in problem.sites:
        log_v = local_variances(batch, problem.noise_floor)
        A[batch.index] = local_weights(batch, log_v)
        prior[batch.index] = np.exp(log_v / 2)[:, batch.groups]
    return A, prior


def local_weights(batch: SiteBatch, log_v: FloatArray) -> FloatArray:
    """Return the weights of each site alone, of shape (m, p, d), at log-variances of its own, of shape (m, G)."""
    v = np.exp(log_v)
    (X, Y), _ = whiten(batch, v, batch.Phi, batch.T)
    return np.asarray(v[:, batch.groups][..., None] * (X.mT @ Y))


def local_variances(batch: SiteBatch, noise_floor: float, settled: float = _SETTLED) -> FloatArray:
    """Return the log-variances at the maximum of each site's evidence, by damped Newton steps of all sites at once.

    The steps end when -2 log evidence changes by at most ``settled``.
    """
    m, G = batch.B.shape[:2]
    floor = (noise_floor + 1e-9) * batch.squares
    fixed = np.arange(G) == 0
    x = np.full((m, G), np.log(_FIRST))
    x[:, 0] = np.log(_CONSTANT)

    def evaluate(x: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        value, gradient, hessian = site_evidence(batch, x, floor)
        value = value + HYPERPRIOR * np.sum(x[:, ~fixed] ** 2, axis=-1)
        gradient = np.where(fixed, 0.0, gradient + 2 * HYPERPRIOR * x)
        hessian = np.where(fixed[:, None] | fixed, 0.0, hessian)
        hessian[:, np.arange(G), np.arange(G)] += np.where(fixed, 1.0, 2 * HYPERPRIOR)
        return value, gradient, hessian

    value, gradient, hessian = evaluate(x)
    damping, active = np.full(m, _DAMPING), np.ones(m, dtype=bool)
    for _ in range(_STEPS):
        diagonal = np.einsum("mgg->mg", hessian)
        damped = hessian + damping[:, None, None] * (np.eye(G) * diagonal[:, None])
        step = -np.linalg.solve(damped, gradient[..., None])[..., 0]
        trial = np.clip(x + np.clip(step, -_LONGEST, _LONGEST), -_BOUND, _BOUND)
        found = evaluate(trial)
        better = active & (found[0] < value)
        fall = np.where(better, value - found[0], np.inf)
        # Sites that have ended stay as they are, so that a site's result does not depend on the others of its stack.
        x = np.where(better[:, None], trial, x)
        value = np.where(better, found[0], value)
        gradient = np.where(better[:, None], found[1], gradient)
        hessian = np.where(better[:, None, None], found[2], hessian)
        damping = np.where(better, damping * _EASE, damping * _TIGHTEN)
        active &= (fall > settled) & (damping < 1e8)
        if not active.any():
            break
    return x
