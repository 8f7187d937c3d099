r"""Proximal ADMM over a graph: the rounds that DMTL-ELM and FO-DMTL-ELM share (Algorithms 2 and 3).

Agent t holds its own :math:`U_t`, a private :math:`A_t`, and the multiplier :math:`p_t = C_t'\lambda`. A round is

.. math::
    U_t^+ &= \arg\min F_t(U, A_t) + \langle p_t, U\rangle + \tfrac\rho2\sum_{j\sim t}|U - U_j|^2
             + \tfrac12|U - U_t|^2_{P_t} \\
    p_t^+ &= p_t + \gamma\rho\,(d_t U_t^+ - \textstyle\sum_{j \sim t} U_j^+) \\
    A_t^+ &= \arg\min F_t(U_t^+, A) + \tfrac{\zeta_t}2|A - A_t|^2

with :math:`F_t` linearised at :math:`U_t` in the first-order method. As printed in the paper, the multiplier pushes
neighbours apart; here the Lagrangian has :math:`+\lambda'CU` and the multiplier ascends.

Automatic parameters
--------------------
- ``tau``: :math:`P_t = \rho d_t I` (prox-linear :math:`\tau_t = 2\rho d_t`). With A held, the problem is convex and the
  rounds are decentralised consensus ADMM, which converges for every rho on every connected graph. The first-order
  method adds the fit's curvature :math:`|H_t|^2|A_t|^2`, which bounds what the linearisation leaves out.
- ``zeta``: the risk is that A follows its own U faster than neighbours can hold it: through A the fit has curvature
  down to :math:`-|E_t|^2/(\mu_2 + \zeta_t)` in U, with :math:`E_t = H_t'(H_tU_tA_t - T_t)`. So
  :math:`\zeta_t \propto |E_t|^2/\rho`, which vanishes as the fit improves. Should an agent still see its disagreement
  not decrease over a window of rounds, it doubles its own factor; a slower A always ends in the convex case. The rule
  is local.
- ``gamma``: 1, which reaches consensus. With the paper's rule the multiplier can freeze before neighbours agree.
- ``rho``: see :func:`elmesh.solvers.admm_weights.auto_rho`.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from elmesh.checks import check_choice, check_number
from elmesh.comm.requests import AllReduce, NeighborMessages, NeighborSum, Request
from elmesh.data.statistics import Task
from elmesh.math.kernels import curvature, exact_U, first_order_U, fit_gradient, project, residual, solve_A, square
from elmesh.math.objective import Margins, agent_objective, theorem_margins
from elmesh.solvers.admm_weights import AdaptiveZeta, auto_rho, check_weight, per_agent, per_matrix
from elmesh.solvers.base import Decision, LowRankSolver, Problem, RoundReport, Solution, Steps
from elmesh.solvers.graph_certificate import certificate_over_graph
from elmesh.solvers.initialization import INITS, initialize, ones_A
from elmesh.solvers.state import PerAgent, PerEdge, SolverState
from elmesh.typing import FloatArray

__all__ = ["ADMMState", "ProximalADMM"]


@dataclass(frozen=True, eq=False)
class ADMMState(SolverState):
    """Where an agent is after a round.

    ``linear_term`` is the linear term of the next U step: neighbours, multiplier and proximal term. ``gradient`` is
    that of the fit, ``P`` the proximal weight, ``U2`` the square of U; ``U_residual2`` and ``A_residual2`` are squared
    residuals of the Lagrangian's gradient. ``edge_difference`` is U less each neighbour's, if gamma depends on it.
    """

    rho: float
    mu1: float
    mu2: float
    U: PerAgent
    A: PerAgent
    dual: PerAgent
    linear_term: PerAgent
    HU: PerAgent
    R: PerAgent
    gradient: PerAgent
    P: PerAgent
    zeta: PerAgent
    U2: PerAgent
    U_residual2: PerAgent
    A_residual2: PerAgent
    adaptive: AdaptiveZeta | None
    edge_difference: PerEdge | None


@dataclass(frozen=True, eq=False)
class _Start:
    """Each agent's copy of the common start, and the penalty parameter."""

    U: FloatArray
    A: FloatArray
    rho: float
    mu1: float
    mu2: float


@dataclass(frozen=True, eq=False)
class _Exchange:
    """The neighbours' sum S, rho (d U - S), the multiplier's step, and the differences along each edge."""

    S: FloatArray
    consensus_gradient: FloatArray
    dual_step: FloatArray
    edge_difference: FloatArray | None


@dataclass(repr=False, eq=False)
class ProximalADMM(LowRankSolver, abstract=True):
    """Base of DMTL-ELM and FO-DMTL-ELM, which differ in the U step."""

    state_type = ADMMState
    per_agent_basis: ClassVar[bool] = True
    sends_only_basis: ClassVar[bool] = True
    first_order: ClassVar[bool]

    rank: int | str = "auto"
    mu1: float | str = "auto"
    mu2: float | str = "auto"
    graph: Any = "ring"
    rho: float | str = "auto"
    tau: Any = "auto"
    zeta: Any = "auto"
    gamma: float | str = "auto"
    delta: float = 10.0
    proximal: str = "linear"
    init: str = "spectral"
    max_iter: int = 1000
    tol: float = 1e-2
    certify: bool = True
    message_bits: int | str = 64

    @property
    def requires(self) -> Set[type[Request]]:
        """Neighbours' sums; and sums over all agents if something automatic, or the certificate, needs them."""
        automatic = "auto" in (self.rank, self.mu1, self.mu2, self.rho) or self.init not in ("seed", "ones")
        return frozenset({NeighborSum, AllReduce} if automatic or self.certify else {NeighborSum})

    def check(self) -> None:
        """Check every parameter."""
        super().check()
        if self.rho != "auto":
            check_number("rho", self.rho)
        if self.gamma not in ("auto", "paper"):
            check_number("gamma", self.gamma)
        check_number("delta", self.delta)
        check_choice("proximal", self.proximal, ("linear", "standard"))
        check_weight("tau", self.tau, zero=self.proximal == "standard", degrees=True)
        check_weight("zeta", self.zeta, zero=True, degrees=False)
        check_choice("init", self.init, INITS)

    def init_state(self, problem: Problem) -> Steps[ADMMState]:
        """Exchange the start with the neighbours; the multiplier is zero."""
        task, context = problem.task, problem.context
        start = yield from self._start(problem)
        U, A, rho = start.U, start.A, start.rho
        HU = project(task, U)
        R = residual(task, HU, A)
        exchange = yield from self._exchange(problem, U, rho, None)
        U2, P = square(U), self._proximal_weight(problem, A, rho, start.mu1)
        adaptive = AdaptiveZeta.start(context, rho) if _is_auto(self.zeta) else None
        adaptive, zeta = self._next_zeta(problem, 0, adaptive, R, square(exchange.consensus_gradient) / rho**2, U2)
        unknown = np.full(np.shape(context.degree), np.inf)
        return ADMMState(
            round=0,
            rho=rho,
            mu1=start.mu1,
            mu2=start.mu2,
            U=U,
            A=A,
            dual=np.zeros_like(U),
            linear_term=rho * exchange.S + P * U,
            HU=HU,
            R=R,
            gradient=fit_gradient(task, R, A),
            P=P,
            zeta=zeta,
            U2=U2,
            U_residual2=unknown,
            A_residual2=unknown,
            adaptive=adaptive,
            edge_difference=exchange.edge_difference,
        )

    def step(self, problem: Problem, state: ADMMState) -> Steps[ADMMState]:
        """Update U, exchange it with the neighbours, and update the multiplier and A."""
        task, context = problem.task, problem.context
        k, rho, mu1, mu2, U, A = state.round + 1, state.rho, state.mu1, state.mu2, state.U, state.A
        d, share, P, C = per_matrix(context.degree), mu1 / context.n_agents, state.P, state.linear_term
        if self.first_order:
            P = self._proximal_weight(problem, A, rho, mu1)
            C = C + (P - state.P) * U
            U_new, HU = first_order_U(task, state.gradient, C - share * U, rho * d + P)
            used = state.gradient
        else:
            U_new, HU, used = exact_U(task, A, C, share + rho * d + P)

        exchange = yield from self._exchange(problem, U_new, rho, state.edge_difference)
        U2 = square(U_new)
        gap2 = square(exchange.consensus_gradient) / rho**2
        adaptive, zeta = self._next_zeta(problem, k, state.adaptive, residual(task, HU, A), gap2, U2)
        A_new = solve_A(task, HU, A, mu2, zeta)
        dual = state.dual + exchange.dual_step
        C_new = P * U_new
        C_new += rho * exchange.S
        C_new -= dual

        # The Lagrangian's gradient in U follows from the optimality of the step just taken; in A it is zeta times the
        # change.
        U_residual = C_new - C
        U_residual += exchange.consensus_gradient
        if self.first_order:
            U_residual -= share * (U_new - U)
        R = residual(task, HU, A_new)
        gradient = fit_gradient(task, R, A_new)
        U_residual2 = np.square(np.sqrt(square(U_residual)) + np.sqrt(square(gradient - used)))
        return replace(
            state,
            round=k,
            U=U_new,
            A=A_new,
            dual=dual,
            linear_term=C_new,
            HU=HU,
            R=R,
            gradient=gradient,
            P=P,
            zeta=zeta,
            U2=U2,
            U_residual2=U_residual2,
            A_residual2=square(zeta * (A_new - A)),
            adaptive=adaptive,
            edge_difference=exchange.edge_difference,
        )

    def finish(self, problem: Problem, state: ADMMState, decision: Decision) -> Steps[Solution]:
        """Certify the mean of the agents' U."""
        solution = self.solution(problem, state)
        if not self.certify or decision is Decision.HALT:
            return solution
        task, m, mu1, mu2 = problem.task, problem.context.n_agents, state.mu1, state.mu2
        U = (yield AllReduce(state.U / m, np.zeros((*task.s.shape[:-1], 0)), "mean")).value
        HU = project(task, U)
        A = solve_A(task, HU, np.zeros(1), mu2, 0.0)
        R = residual(task, HU, A)
        data = yield from certificate_over_graph(problem, U, R, mu1, mu2, self.tol)
        own = agent_objective(task, R, square(U), A, mu1, mu2, m)
        objective = (yield AllReduce(np.zeros((*own.shape, 1, 0)), own[..., None], "objective")).exact[0]
        return replace(solution, certificate=data.certificate(float(objective), proven=False))

    def solution(self, problem: Problem, state: ADMMState) -> Solution:
        """Return each agent's variables, and the weights in use."""
        tau = (state.P + state.rho * per_matrix(problem.context.degree))[..., 0, 0]
        weights = state.rho, tau, state.zeta[..., 0, 0], state.mu1, state.mu2
        return Solution(state.U, state.A, state.dual, *weights)

    def report(self, problem: Problem, state: ADMMState) -> RoundReport:
        """Compare the Lagrangian's gradient with the forces that the multiplier and the targets exert."""
        task, m, mu1 = problem.task, problem.context.n_agents, state.mu1
        objective = agent_objective(task, state.R, state.U2, state.A, mu1, state.mu2, m)
        scale = square(state.gradient) + (mu1 / m) ** 2 * state.U2, square(state.HU.mT @ task.Y)
        residuals = state.U_residual2, state.A_residual2
        return RoundReport(self.solution(problem, state), objective, residuals, scale, (state,))

    def margins(self, task: Task, solution: Solution, degree: FloatArray, n_agents: int) -> Margins:
        """Return by how much each agent meets the condition of its convergence theorem.

        ``degree`` is that of the agents in ``task``, and ``n_agents`` the number of all agents.
        """
        mu1, tau = solution.mu1 or 0.0, np.asarray(solution.tau, dtype=np.float64)
        lipschitz = curvature(task, solution.A) + mu1 / n_agents if self.first_order else 0.0
        return theorem_margins(tau, solution.rho, degree, self.delta, mu1, lipschitz, self.gamma == "paper", n_agents)

    def _start(self, problem: Problem) -> Steps[_Start]:
        """Agree on a start, on penalties and on rho."""
        task, context, rho = problem.task, problem.context, self.rho
        # An earlier U is as near the optimum as the rows of then are to those of now. The multiplier starts at zero all
        # the same: those of all agents sum to zero, which earlier ones need not do once an agent has lost its own.
        init = self.init if problem.start is None else "seed"
        start = yield from initialize(problem, self.mu1, self.mu2, init)
        mu1, mu2, lead = start.mu1, start.mu2, task.s.shape[:-1]
        U = np.broadcast_to(start.U if problem.start is None else problem.start, (*lead, *start.U.shape)).copy()
        HU = project(task, U)
        A = ones_A(task, problem.rank) if init == "ones" else solve_A(task, HU, np.zeros(1), mu2, 0.0)
        unscaled = init in ("ones", "seed")
        if unscaled and not isinstance(rho, str):
            return _Start(U, A, float(rho), mu1, mu2)

        # Three sums over all tasks: how U and A are balanced, how curved the fit is, and how much tasks differ.
        gradient = fit_gradient(task, residual(task, HU, A), A)
        sums = [square(A), square(HU @ A), square(gradient), *([] if problem.start is None else [square(U)])]
        result = yield AllReduce(np.zeros((*lead, 1, 0)), np.stack(sums, axis=-1), "rho")
        A2, fit2, gradient2, *earlier = (result.exact / context.n_agents).tolist()
        U2, balance = earlier[0] if earlier else float(square(start.U)), 1.0
        if not unscaled and A2 > 0:
            # At a stationary point mu1 |U|^2 = mu2 sum |A_t|^2; starting there makes the curvature below meaningful.
            balance = (mu2 * context.n_agents * A2 / (mu1 * U2)) ** 0.25
            U = balance * U
            A = solve_A(task, balance * HU, np.zeros(1), mu2, 0.0)
        if not isinstance(rho, str):
            return _Start(U, A, float(rho), mu1, mu2)
        fit_curvature = fit2 / (balance**2 * U2)
        heterogeneity = np.sqrt(gradient2 / U2) / balance**2
        rho = auto_rho(fit_curvature, heterogeneity, context.laplacian_scale, mu1 / context.n_agents)
        return _Start(U, A, rho, mu1, mu2)

    def _exchange(self, problem: Problem, U: FloatArray, rho: float, before: FloatArray | None) -> Steps[_Exchange]:
        r"""Exchange U with the neighbours.

        The paper's rule is :math:`\gamma_i = \min(1, \delta|\hat C_i(U^k - U^{k+1})|^2 / |\hat C_i U^{k+1}|^2)` on
        edge i.
        """
        d = per_matrix(problem.context.degree)
        if self.gamma != "paper":
            S = yield NeighborSum(U)
            consensus_gradient = rho * d * U
            consensus_gradient -= rho * S
            dual_step = consensus_gradient if self.gamma == "auto" else float(self.gamma) * consensus_gradient
            return _Exchange(S, consensus_gradient, dual_step, None)
        messages: NeighborMessages = yield NeighborSum(U, each=True)
        difference = messages.own(U) - messages.values
        change = square(difference - before) if before is not None else np.zeros(len(difference))
        apart = square(difference)
        gammas = np.minimum(1.0, self.delta * change / np.where(apart > 0, apart, 1.0))
        S = messages.sum(messages.values, U)
        return _Exchange(S, rho * (d * U - S), rho * messages.sum(per_matrix(gammas) * difference, U), difference)

    def _next_zeta(
        self,
        problem: Problem,
        k: int,
        adaptive: AdaptiveZeta | None,
        R: FloatArray,
        gap2: FloatArray,
        U2: FloatArray,
    ) -> tuple[AdaptiveZeta | None, FloatArray]:
        """Return zeta after U step k, and the rule that gave it."""
        if adaptive is None:
            return None, per_agent(self.zeta, problem.context)
        adaptive = adaptive.update(k, gap2, U2)
        return adaptive, adaptive.zeta(problem.task, R)

    def _proximal_weight(self, problem: Problem, A: FloatArray, rho: float, mu1: float) -> FloatArray:
        """Return P_t."""
        task, context = problem.task, problem.context
        d = per_matrix(context.degree)
        if not _is_auto(self.tau):
            tau = per_agent(self.tau, context)
            return tau if self.proximal == "standard" else tau - rho * d
        if self.first_order:
            return rho * d + per_matrix(curvature(task, A)) + mu1 / context.n_agents
        return rho * d


def _is_auto(value: Any) -> bool:
    return isinstance(value, str) and value == "auto"
