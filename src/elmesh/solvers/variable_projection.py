r"""Variable projection: the paper's problem as a function of U alone.

.. math::
    f(U) = \sum_t \min_A \bigl\{\tfrac12|H_tUA - T_t|^2 + \tfrac{\mu_2}2|A|^2\bigr\} + \tfrac{\mu_1}2|U|^2 , \qquad
    \nabla f(U) = \sum_t H_t'R_tA_t' + \mu_1 U .

An evaluation of f is one sum over all agents of L x r blocks and a few numbers. Every agent holds the same U and takes
the same L-BFGS step, so there is no consensus to reach and no penalty for disagreement to choose; where sums differ
by rounding, U is averaged now and then beside them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from elmesh.comm.requests import AllReduce, AllReduceResult
from elmesh.math.certificate import CertificateData, certificate_data, slack_for
from elmesh.math.kernels import fit, fit_gradient, project, residual, solve_A, square
from elmesh.math.lbfgs import LBFGSMemory
from elmesh.solvers.base import Problem, Steps
from elmesh.solvers.graph_certificate import certificate_over_graph
from elmesh.solvers.initialization import even_shares
from elmesh.solvers.state import PerAgent
from elmesh.typing import FloatArray

__all__ = ["Evaluation", "ReducedProblem", "change_columns", "line_search", "rough_fit"]

# Armijo's condition: the share of the decrease that the slope predicts.
_ARMIJO = 1e-4
# Shortest and longest step tried after a rejected one, as a share of it; most trials, and most restarts of the search.
_SHORTEST, _LONGEST, _TRIALS, _RESTARTS = 0.1, 0.5, 12, 3
# Share of the gradient that all agents' skipped changes together may amount to.
_SKIPPED = 0.5
# Share of f that dropping unused columns may cost.
_DROP_COST = 1e-4
# Evaluations between two averages of U over agents whose copies differ by rounding.
_AVERAGE_EVERY = 4
# Relative precision of an objective.
_ROUNDING = 1e-13
# Steps of a rough fit, and the share of f by which a step must lower it for another one.
_ROUGH_STEPS, _ROUGH = 12, 1e-4


@dataclass(frozen=True, eq=False)
class Evaluation:
    """The value of f, its gradient and more at one U, and each agent's A, residual and share of the value.

    ``curvature`` is the second derivative of the fit along U, per unit of U'U; ``slope`` the derivative along the step
    that led here; ``targets`` the squared norm of all targets.
    """

    U: FloatArray
    value: float
    gradient: FloatArray
    curvature: float
    slope: float
    targets: float
    A: PerAgent
    R: PerAgent
    share: PerAgent


def rough_fit(
    problem: Problem, lam: float, start: FloatArray, most: int = _ROUGH_STEPS, settled: float = _ROUGH
) -> Steps[tuple[FloatArray, FloatArray]]:
    """Return U and A after some steps from a start, until one lowers f by no more than the share ``settled``."""
    f, memory = ReducedProblem(problem, lam, lam), LBFGSMemory()
    here = yield from f.evaluate(start)
    for _ in range(most):
        found = yield from line_search(f, here, memory)
        if found is None:
            break
        fall, (here, memory) = here.value - found[0].value, found
        if fall <= settled * here.value:
            break
    return here.U, here.A


@dataclass(eq=False)
class ReducedProblem:
    """The function f of U alone, and how often it was evaluated."""

    problem: Problem
    mu1: float
    mu2: float
    n_evaluations: int = 0

    @cached_property
    def even(self) -> FloatArray:
        """Each task's even share of what belongs to all."""
        return even_shares(self.problem.task.s.shape[:-1], self.problem.context)

    def certificate_data(self, here: Evaluation, tol: float, common: float = 0.0) -> Steps[CertificateData]:
        """Return what the certificate needs: exact in one place, over a graph by sums of vectors.

        ``common`` is the square of common weights beside U A_t, in units of their prior.
        """
        task, context = self.problem.task, self.problem.context
        if context.n_agents == 1 and task.s.ndim > 1:
            lam = float(np.sqrt(self.mu1 * self.mu2))
            return certificate_data(task, here.U, here.R, lam, slack_for(tol), common)
        return (yield from certificate_over_graph(self.problem, here.U, here.R, self.mu1, self.mu2, tol, common))

    def local(self, U: FloatArray) -> Evaluation:
        """Return what each agent knows of U by itself; value and gradient are not known."""
        task = self.problem.task
        HU = project(task, U)
        A = solve_A(task, HU, np.zeros(1), self.mu2, 0.0)
        R = residual(task, HU, A)
        share = fit(task, R) + self.mu2 / 2 * square(A) + self.mu1 / 2 * float(square(U)) * self.even
        return Evaluation(U, 0.0, np.zeros_like(U), 0.0, 0.0, 0.0, A, R, share)

    def evaluate(
        self,
        U: FloatArray,
        before: Evaluation | None = None,
        slope: float = 0.0,
        skip_below: float = 0.0,
        rotation: FloatArray | None = None,
        rejected: bool = False,
    ) -> Steps[Evaluation]:
        r"""Evaluate f at U; ``slope`` is this agent's value of the derivative on the way from the evaluation before.

        With A_t at its best, :math:`\langle\nabla f - \mu_1 U, U\rangle = -\mu_2\sum|A_t|^2`. So f, its gradient and
        the targets' squares, which are asked for once, give :math:`\sum|H_tUA_t|^2` too.
        """
        task, mu1 = self.problem.task, self.mu1
        own, U2 = self.local(U), float(square(U))
        A, R, share = own.A, own.R, own.share
        exact = [share, slope * self.even, *([task.target_energy] if before is None else [])]
        average = U if self.n_evaluations % _AVERAGE_EVERY == 0 else None
        self.n_evaluations += 1
        request = AllReduce(
            task.V @ fit_gradient(task, R, A),
            np.stack(exact, axis=-1),
            "gradient",
            skip_below,
            rotation=rotation,
            relative_to_previous=rejected,
            average=average,
        )
        result: AllReduceResult = yield request
        U = U if result.average is None else result.average
        value, slope, *energy = result.exact.tolist()
        targets = energy[0] if before is None else before.targets
        fitted = targets - 2 * value + mu1 * U2 + float(np.vdot(result.value, U))
        curvature = min(max(fitted, 0.0), targets) / (U2**2 if U2 > 0 else 1.0)
        return Evaluation(U, value, result.value + mu1 * U, curvature, slope, targets, A, R, share)

    def hessian(self, here: Evaluation) -> FloatArray:
        """Return an initial Hessian from one evaluation: a multiple of U'U, and the penalty."""
        UU = here.U.T @ here.U
        return np.asarray(here.curvature * UU + self.mu1 * np.eye(len(UU)))


def line_search(
    f: ReducedProblem, here: Evaluation, memory: LBFGSMemory
) -> Steps[tuple[Evaluation, LBFGSMemory] | None]:
    """Return the first step that meets Armijo's condition, and the memory with it; None if there is none."""
    rejected = False
    for restart in range(_RESTARTS):
        if restart:
            # The memory misled, or the gradient was quantised too coarsely: evaluate again, and start anew.
            memory = LBFGSMemory()
            here = yield from f.evaluate(here.U, here, rejected=rejected)
            rejected = False
        skip_below = _SKIPPED * float(np.linalg.norm(here.gradient)) / f.problem.context.n_agents
        step = memory.step(here.gradient, f.hessian(here))
        slope, length = float(np.vdot(here.gradient, step)), 1.0
        for _ in range(_TRIALS):
            there = yield from f.evaluate(here.U + length * step, here, slope, skip_below, rejected=rejected)
            # From here on the slope is the sum over all agents, so that all of them decide alike.
            change = there.value - here.value
            if there.slope < 0 and change <= _ARMIJO * length * there.slope:
                return there, memory.add(there.U - here.U, there.gradient - here.gradient)
            rejected = True
            if not -length * there.slope > _ROUNDING * abs(here.value):
                break
            # The minimum of the parabola through both values and the slope.
            bend = change - length * there.slope
            best = -there.slope * length / (2 * bend) if bend > 0 and np.isfinite(bend) else 0.0
            length *= min(max(best, _SHORTEST), _LONGEST)
    return None


def change_columns(
    f: ReducedProblem, here: Evaluation, data: CertificateData, memory: LBFGSMemory
) -> Steps[tuple[Evaluation, LBFGSMemory]]:
    """Give U its missing directions; if there are none, drop unused columns."""
    n, r = data.n_missing, here.U.shape[1]
    if not n:
        there = yield from f.evaluate(here.U @ data.rotation, here, rotation=data.rotation)
        if there.value > (1 + _DROP_COST) * here.value:
            return here, memory  # short columns, but not unused
        return there, memory.rotate(data.rotation)
    # Where the new columns are zero f is flat, and it decreases on either side: the length is found by trial.
    curvature = max(here.curvature * float(square(here.U)), f.mu1)
    excess = np.sqrt(data.eigenvalues[:n]) - np.sqrt(f.mu1 * f.mu2)
    new = data.directions[:, :n] * np.sqrt(excess / curvature)
    wider = np.eye(r, r + n)
    for trial in range(_TRIALS):
        rotation = None if trial else wider
        there = yield from f.evaluate(np.hstack([here.U, new]), here, rotation=rotation, rejected=trial > 0)
        if there.value <= here.value:
            return there, memory.rotate(wider)
        new = new / 2
    return here, memory
