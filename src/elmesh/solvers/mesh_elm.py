r"""MeshELM: variable projection over a graph, or in one place.

.. math::
    f(U) = \sum_t \min_A \bigl\{\tfrac12|H_tUA - T_t|^2 + \tfrac{\mu_2}2|A|^2\bigr\} + \tfrac{\mu_1}2|U|^2 , \qquad
    \nabla f(U) = \sum_t H_t'R_tA_t' + \mu_1 U .

An evaluation of f is one sum over all agents of L x r blocks and a few numbers. Every agent holds the same U and takes
the same L-BFGS step, so there is no consensus to reach and no penalty for disagreement to choose; where sums differ
by rounding, U is averaged now and then beside them.

With an automatic rank, a U that has converged is certified, gets the directions that are missing and loses columns that
are unused, until there are none of either.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from elmesh.checks import check_choice, check_number
from elmesh.comm.requests import AllReduce, AllReduceResult, Request
from elmesh.math.certificate import CertificateData, certificate_data, slack_for
from elmesh.math.kernels import fit, fit_gradient, project, residual, solve_A, square
from elmesh.math.lbfgs import LBFGSMemory
from elmesh.solvers.base import Decision, LowRankSolver, Problem, RoundReport, Solution, Steps
from elmesh.solvers.graph_certificate import certificate_over_graph
from elmesh.solvers.initialization import even_shares, initialize
from elmesh.solvers.state import PerAgent, SolverState
from elmesh.typing import FloatArray

__all__ = ["BITS", "Evaluation", "MeshELM", "MeshState"]

#: Bits per number that ``message_bits`` may be.
BITS = (2, 4, 8, 16, 32, 64, "auto")

# Armijo's condition: the share of the decrease that the slope predicts.
_ARMIJO = 1e-4
# Shortest and longest step tried after a rejected one, as a share of it; most trials, and most restarts of the search.
_SHORTEST, _LONGEST, _TRIALS, _RESTARTS = 0.1, 0.5, 12, 3
# Share of the gradient that all agents' skipped changes together may amount to.
_SKIPPED = 0.5
# Most changes of the number of columns, and rounds without convergence after which the certificate is asked: too few
# columns make for many rounds.
_MOST_CHANGES, _CERTIFY_EVERY = 20, 40
# Share of f that dropping unused columns may cost.
_DROP_COST = 1e-4
# Evaluations between two averages of U over agents whose copies differ by rounding.
_AVERAGE_EVERY = 4
# Relative precision of an objective.
_ROUNDING = 1e-13
# Columns that an automatic rank starts with. Too many cost bytes, too few cost another certificate.
_FIRST_RANK = 16


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


@dataclass(frozen=True, eq=False)
class MeshState(SolverState):
    """An evaluation, the memory of L-BFGS, and the certificate of this U if it is known.

    ``n_evaluations`` counts evaluations, ``n_changes`` changes of the number of columns, and ``certified`` is the round
    of the last certificate.
    """

    mu1: float
    mu2: float
    n_evaluations: int
    n_changes: int
    certified: int
    here: Evaluation
    memory: LBFGSMemory
    data: CertificateData | None = None


@dataclass(repr=False, eq=False)
class MeshELM(LowRankSolver):
    r"""Multi-task ELM by variable projection, over a graph of agents or in one place; the default solver.

    .. math:: \min_{U, A}\; \sum_t \tfrac12 |H_t U A_t - T_t|^2 + \tfrac{\mu_1}{2}|U|^2 + \tfrac{\mu_2}{2}\sum_t |A_t|^2

    Every task is an agent of a connected graph, with its own rows, targets and A_t; agents exchange L x r blocks and a
    few numbers, as sums over all agents. The problem is that of :class:`MTLELM` and :class:`DMTLELM`.

    Parameters
    ----------
    rank : int or "auto", default="auto"
        Number of columns of U. "auto" adds columns until, by the certificate, no further one would help, and drops
        unused ones.
    mu1, mu2 : float or "auto", default="auto"
        Penalties on U and on the A_t. "auto" compares the features' correlation with the targets and with noise of the
        variance that the tasks' own fits suggest (:mod:`elmesh.math.noise`). The solution depends on their product.
    graph : str, networkx.Graph or None, default="ring"
        "ring", "path", "star", "complete", "random", "grid", or a graph whose nodes are the task labels. None: all
        data in one place.
    message_bits : {2, 4, 8, 16, 32, 64, "auto"}, default=64
        Bits per number in messages. Up to 32, a message encodes the change of its content, rounded, and rounding
        errors are part of the next message; sums then go along a spanning tree, which takes the fewest bytes. 64 is
        exact, and takes the fewest rounds. "auto" takes the fewest bits whose error is within two fifths of the change,
        and more where a message is short anyway. The solution is the same.
    max_bytes : float or None, default=None
        Bytes that all agents together may send; the run ends before a message that might exceed it, without a
        certificate if there is no room for one.
    max_iter : int, default=1000
        Most rounds; a round takes as many rounds of messages as a sum over the graph.
    tol : float, default=1e-2
        Stop when the gradient is within ``tol`` of the penalty's.
    certify : bool, default=True
        Whether to bound, in the end, how far the objective is from the best of any rank.

    Examples
    --------
    >>> from elmesh import MeshELM, MultiTaskELMClassifier
    >>> model = MultiTaskELMClassifier(n_hidden=50, solver=MeshELM(rank=4, graph="star", message_bits=4))
    """

    name: ClassVar[str] = "mesh-elm"
    summary: ClassVar[str] = "variable projection by sums over the graph; the default"
    state_type = MeshState
    requires: ClassVar[Set[type[Request]]] = frozenset({AllReduce})

    rank: int | str = "auto"
    mu1: float | str = "auto"
    mu2: float | str = "auto"
    graph: Any = "ring"
    message_bits: int | str = 64
    max_bytes: float | None = None
    max_iter: int = 1000
    tol: float = 1e-2
    certify: bool = True

    def check(self) -> None:
        """Check every parameter."""
        super().check()
        check_choice("message_bits", self.message_bits, BITS)
        if self.max_bytes is not None:
            check_number("max_bytes", self.max_bytes)

    def rank_for(self, outputs: int, width: int, directions: int) -> int:
        """Return the rank to start with; an automatic one starts with a moderate number of columns."""
        if self.rank == "auto":
            return min(max(_FIRST_RANK, 2 * outputs), max(1, min(width, directions)))
        return super().rank_for(outputs, width, directions)

    def init_state(self, problem: Problem) -> Steps[MeshState]:
        """Evaluate f at the spectral start."""
        start = yield from initialize(problem, self.mu1, self.mu2, "spectral")
        f = _ReducedProblem(problem, start.mu1, start.mu2)
        here = yield from f.evaluate(start.U)
        return MeshState(0, start.mu1, start.mu2, f.n_evaluations, 0, 0, here, LBFGSMemory())

    def step(self, problem: Problem, state: MeshState) -> Steps[MeshState]:
        """Take a quasi-Newton step; where there is none, or it is time, consult the certificate."""
        due = self._may_change(state) and state.round - state.certified >= _CERTIFY_EVERY
        if not due:
            after = yield from self._descend(problem, state)
            # If no step lowers f any more, U has converged as far as rounding allows.
            return after if after.round > state.round else (yield from self.on_converged(problem, after))
        after = yield from self._certify(problem, state)
        if after.round > state.round:
            return after
        descended = yield from self._descend(problem, after)
        return replace(descended, round=state.round + 1, data=None)

    def on_converged(self, problem: Problem, state: MeshState) -> Steps[MeshState]:
        """Certify U, and change its columns if the certificate suggests it."""
        if not (self.certify or self.rank == "auto"):
            return state
        return (yield from self._certify(problem, state))

    def finish(self, problem: Problem, state: MeshState, decision: Decision) -> Steps[Solution]:
        """Return the solution with its certificate, unless the run was halted."""
        yield from ()
        solution = self.solution(problem, state)
        if decision is Decision.HALT or state.data is None:
            return solution
        return replace(solution, certificate=state.data.certificate(state.here.value))

    def solution(self, problem: Problem, state: MeshState) -> Solution:
        """Return U and A_t."""
        return Solution(state.here.U, state.here.A, mu1=state.mu1, mu2=state.mu2)

    def report(self, problem: Problem, state: MeshState) -> RoundReport:
        """Compare the gradient of f with that of the penalty."""
        here, even = state.here, even_shares(problem.task, problem.context)
        # U belongs to all: its norms are spread evenly, so that sums over tasks are right.
        gradient2, penalty2 = float(square(here.gradient)), float(square(state.mu1 * here.U))
        solution = self.solution(problem, state)
        return RoundReport(solution, here.share, (gradient2 * even, 0.0 * even), (penalty2 * even, even), (state,))

    @property
    def pooled(self) -> bool:
        """Whether all data are in one place: without a graph."""
        return self.graph is None

    def _may_change(self, state: MeshState) -> bool:
        """Return whether the number of columns may still change."""
        return self.rank == "auto" and state.round < self.max_iter and state.n_changes < _MOST_CHANGES

    def _descend(self, problem: Problem, state: MeshState) -> Steps[MeshState]:
        """Take one step; return the same state, up to the count of evaluations, if there is none."""
        f = _ReducedProblem(problem, state.mu1, state.mu2, state.n_evaluations)
        found = yield from _line_search(f, state.here, state.memory)
        if found is None:
            return replace(state, n_evaluations=f.n_evaluations, memory=LBFGSMemory())
        here, memory = found
        return replace(state, round=state.round + 1, n_evaluations=f.n_evaluations, here=here, memory=memory, data=None)

    def _certify(self, problem: Problem, state: MeshState) -> Steps[MeshState]:
        """Certify U unless it is; change its columns if the certificate suggests it and they may change."""
        if state.data is not None:
            return state
        f = _ReducedProblem(problem, state.mu1, state.mu2, state.n_evaluations)
        data = yield from f.certificate_data(state.here, self.tol)
        state = replace(state, certified=state.round, data=data)
        if not (self._may_change(state) and data.suggests_change(state.here.U.shape[1])):
            return state
        here, memory = yield from _change_columns(f, state.here, data, state.memory)
        return replace(
            state,
            round=state.round + 1,
            n_evaluations=f.n_evaluations,
            n_changes=state.n_changes + 1,
            here=here,
            memory=memory,
            # A bound holds for every U: one that has lost only unused columns keeps it.
            data=None if data.n_missing else data,
        )


@dataclass(eq=False)
class _ReducedProblem:
    """The function f of U alone, and how often it was evaluated."""

    problem: Problem
    mu1: float
    mu2: float
    n_evaluations: int = 0

    @cached_property
    def even(self) -> FloatArray:
        """Each task's even share of what belongs to all."""
        return even_shares(self.problem.task, self.problem.context)

    def certificate_data(self, here: Evaluation, tol: float) -> Steps[CertificateData]:
        """Return what the certificate needs."""
        task, context = self.problem.task, self.problem.context
        if context.n_agents == 1 and task.s.ndim > 1:
            return certificate_data(task, here.U, here.R, float(np.sqrt(self.mu1 * self.mu2)), slack_for(tol))
        return (yield from certificate_over_graph(self.problem, here.U, here.R, self.mu1, self.mu2, tol))

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
        task, mu1, mu2 = self.problem.task, self.mu1, self.mu2
        HU = project(task, U)
        A = solve_A(task, HU, np.zeros(1), mu2, 0.0)
        R = residual(task, HU, A)
        U2 = float(square(U))
        share = fit(task, R) + mu2 / 2 * square(A) + mu1 / 2 * U2 * self.even
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


def _line_search(
    f: _ReducedProblem, here: Evaluation, memory: LBFGSMemory
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


def _change_columns(
    f: _ReducedProblem, here: Evaluation, data: CertificateData, memory: LBFGSMemory
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
