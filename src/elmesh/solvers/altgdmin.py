r"""Gradient steps on an orthonormal basis with private coefficients at their best: what Dif-AltGDmin and FedRep share.

Task t has :math:`W_t = U A_t` with orthonormal U, and

.. math:: A_t = \arg\min_A f_t(UA), \qquad f_t(W) = \tfrac12 |H_t W - T_t|^2 + \tfrac\mu2 |W|^2 .

A step goes down the gradient of :math:`f_t` in U,

.. math:: g_t = \bigl(H_t'(H_t U A_t - T_t) + \mu U A_t\bigr) A_t' ,

and QR makes the columns orthonormal again. Both papers have no penalty, and there :math:`U'g_t = 0` because A_t is at
its best: a step turns the subspace, and never the basis within it. With :math:`\mu|W|^2` this stays so.

Both papers take steps in inverse proportion to :math:`\sigma_{\max}^2`, the square of the largest singular value of all
weights side by side, and to the size of features, which they assume to be uncorrelated and alike in all tasks: to the
curvature of the mean of all :math:`f_t` in U. For any features that is at most

.. math:: \lambda_{\max}\Bigl(\tfrac1m \sum_t (|H_t|^2 + \mu) A_t A_t'\Bigr) ,

and that of a single :math:`f_t` at most the same of its own term. Steps are one over such a bound, with the A_t of the
start. Should the A_t outgrow these many times over, as they do where penalties are tiny and features nearly dependent,
such steps are too long: bases stay orthonormal but do not converge until ``step_scale`` is lowered.
"""

from __future__ import annotations

import numpy as np

from elmesh.checks import check_number
from elmesh.data.statistics import Task
from elmesh.math.kernels import fit, fit_gradient, project, residual, solve_A, square
from elmesh.solvers.base import EXACT_A, LowRankSolver, RoundReport, Solution
from elmesh.solvers.state import SolverState
from elmesh.typing import FloatArray

__all__ = ["AltGDmin", "gradient", "sharpness", "solve_heads", "step_length"]


class AltGDmin(LowRankSolver, abstract=True):
    """Base of Dif-AltGDmin and FedRep, which differ in how tasks agree on U."""

    mu: float
    step_scale: float
    max_iter: int
    tol: float

    def check(self) -> None:
        """Check the parameters that both have."""
        super().check()
        check_number("step_scale", self.step_scale)

    def _report(
        self, task: Task, U: FloatArray, A: FloatArray, R: FloatArray, slope2: FloatArray | None, state: SolverState
    ) -> RoundReport:
        """Report a round; ``slope2`` is the square of how far U moved in it, divided by the step, if it did."""
        lead = task.s.shape[:-1]
        # At the optimum the mean of all gradients vanishes: the force of the targets balances that of the rest.
        force = square(task.sY @ A.mT)
        left = force if slope2 is None else np.broadcast_to(slope2, lead)
        objective = fit(task, R) + self.mu / 2 * square(A)
        solution = Solution(U, A, mu2=float(self.mu))
        return RoundReport(solution, objective, (left, np.zeros(lead)), (force, np.ones(lead)), (state,), EXACT_A)


def solve_heads(task: Task, U: FloatArray, mu: float) -> tuple[FloatArray, FloatArray]:
    """Return the best A for given U, and the residual R there."""
    HU = project(task, U)
    A = solve_A(task, HU, np.zeros(1), mu, 0.0)
    return A, residual(task, HU, A)


def gradient(task: Task, U: FloatArray, A: FloatArray, R: FloatArray, mu: float) -> FloatArray:
    """Return the gradient of each task's objective in U, for its residual R."""
    return np.asarray(task.V @ fit_gradient(task, R, A) + mu * (U @ (A @ A.mT)))


def sharpness(task: Task, A: FloatArray, mu: float) -> FloatArray:
    r"""Return :math:`(|H_t|^2 + \mu) A_t A_t'`, whose largest eigenvalue bounds the curvature of each task in U."""
    size = np.square(task.s.max(axis=-1)) + mu
    return np.asarray(size[..., None, None] * (A @ A.mT))


def step_length(bound: FloatArray) -> FloatArray:
    """Return one over a bound of the curvature, and zero where the bound is zero."""
    return np.where(bound > 0, 1.0 / np.where(bound > 0, bound, 1.0), 0.0)
