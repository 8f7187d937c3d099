r"""Proximal ADMM over a graph: the rounds that DMTL-ELM and FO-DMTL-ELM share (Algorithms 2 and 3).

Agent t holds its own :math:`U_t`, a private :math:`A_t`, and the multiplier :math:`p_t = C_t'\lambda`. A round is

.. math::
    U_t^+ &= \arg\min F_t(U, A_t) + \langle p_t, U\rangle + \tfrac\rho2\sum_{j\sim t}|U - U_j|^2
             + \tfrac12|U - U_t|^2_{P_t} \\
    p_t^+ &= p_t + \gamma\rho\,(d_t U_t^+ - \textstyle\sum_{j \sim t} U_j^+) \\
    A_t^+ &= \arg\min F_t(U_t^+, A) + \tfrac{\zeta_t}2|A - A_t|^2

with :math:`F_t` linearised at :math:`U_t` in the first-order method. Printed in the paper, the multiplier pushes
neighbours apart; here the Lagrangian carries :math:`+\lambda'CU` and the multiplier ascends.

Automatic parameters
--------------------
- ``tau``: :math:`P_t = \rho d_t I` (prox-linear :math:`\tau_t = 2\rho d_t`). With A held, the problem is convex and
the rounds
  are then decentralised consensus ADMM, which converges for every rho on every connected graph. The first-order
  method adds the fit's curvature :math:`|H_t|^2|A_t|^2`, which bounds what the linearisation leaves out.
- ``zeta``: what can go wrong is A running after its own U faster than neighbours can hold it: through A the fit has
  curvature down to :math:`-|E_t|^2/(\mu_2 + \zeta_t)` in U, with :math:`E_t = H_t'(H_tU_tA_t - T_t)`. So
  :math:`\zeta_t \propto |E_t|^2/\rho`, which fades as the fit improves. Should an agent still see its disagreement not
  fall over a window of rounds, it doubles its own factor; a slower A always ends in the convex case. Purely local.
- ``gamma``: 1, which reaches consensus. The paper's rule lets the multiplier freeze before neighbours agree.
- ``rho``: see :func:`elmesh.solvers.admm_start.auto_rho`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar

import numpy as np

from elmesh.checks import check_choice, check_number
from elmesh.comm.requests import Answer, Heard, Kept, Neighbours, Place, Program, Report, State, Sum, Total
from elmesh.data.statistics import Task
from elmesh.math.kernels import curvature, exact_U, first_order_U, fit_gradient, project, residual, solve_A, square
from elmesh.math.objective import Margins, agent_objective, theorem_margins
from elmesh.solvers.admm_start import Start, begin, wide
from elmesh.solvers.base import SharedBasisSolver
from elmesh.solvers.graph_certificate import certify_over_graph
from elmesh.solvers.weights import Caution, always, check_weight, per_agent
from elmesh.typing import FloatArray

__all__ = ["ProximalADMM"]


class ProximalADMM(SharedBasisSolver):
    """Base of the two decentralised solvers; they differ in the U step alone."""

    graph: Any
    rho: float | str
    tau: Any
    zeta: Any
    gamma: float | str
    delta: float
    proximal: str

    distributed: ClassVar[bool] = True
    first_order: bool

    def __init__(
        self,
        rank: int | str = "auto",
        mu1: float | str = "auto",
        mu2: float | str = "auto",
        graph: Any = "ring",
        rho: float | str = "auto",
        tau: Any = "auto",
        zeta: Any = "auto",
        gamma: float | str = "auto",
        delta: float = 10.0,
        proximal: str = "linear",
        init: str = "spectral",
        max_iter: int = 1000,
        tol: float = 1e-2,
        certify: bool = True,
        runtime: str = "stacked",
    ) -> None:
        self.rank = rank
        self.mu1 = mu1
        self.mu2 = mu2
        self.graph = graph
        self.rho = rho
        self.tau = tau
        self.zeta = zeta
        self.gamma = gamma
        self.delta = delta
        self.proximal = proximal
        self.init = init
        self.max_iter = max_iter
        self.tol = tol
        self.certify = certify
        self.runtime = runtime

    @property
    def own_basis(self) -> bool:
        """Whether every agent holds a U of its own: here they do."""
        return True

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

    def program(self, task: Task, place: Place, rank: int, kept: Kept | None = None) -> Program:
        """Return the rounds of one agent, or of all agents stacked."""
        m, d, first_order = place.n_agents, wide(place.degree), self.first_order
        if kept:
            start = Start.of(kept)
        else:
            start = yield from begin(task, place, rank, self.mu1, self.mu2, self.init, self.rho)
        rho, mu1, mu2 = start.rho, start.mu1, start.mu2
        share = mu1 / m
        weight_P = self._proximal_weight(task, place, rho, share)
        caution = Caution(task, place, rho, kept) if _is_auto(self.zeta) else None
        weight_zeta = caution or always(per_agent(self.zeta, place))

        def report(k: int) -> Report:
            state = State(now.U, now.A, now.dual, rho, (now.P + rho * d)[..., 0, 0], now.zeta[..., 0, 0], mu1, mu2)
            objective = agent_objective(task, now.R, now.U2, now.A, mu1, mu2, m)
            # In U, compared with the fit's and the penalty's gradients, which the multiplier balances; in A, with the
            # pull of the targets.
            scale = square(now.gradient) + share**2 * now.U2, square(now.HU.mT @ task.Y)
            own = {**vars(now), **(caution.own if caution else {})}
            edges = {"lean": own.pop("lean")}
            keep = Kept.of(own, {"round": k, "rho": rho, "mu1": mu1, "mu2": mu2}, edges)
            return Report(k, state, objective, (now.moved2, now.slid2), scale, (keep,))

        k = int(kept.common["round"]) if kept else 0
        now = _Stand.of(kept) if kept else (yield from self._enter(task, place, start, weight_P, weight_zeta))
        while True:
            here = report(k)
            answer = yield here
            if answer or k == self.max_iter:
                return (yield from self._closing(task, place, here, answer))
            U, A, P, pull = now.U, now.A, now.P, now.pull
            if first_order:
                P = weight_P(A)
                pull = pull + (P - now.P) * U
                U_new, HU = first_order_U(task, now.gradient, pull - share * U, rho * d + P)
                used = now.gradient
            else:
                U_new, HU, used = exact_U(task, A, pull, share + rho * d + P)

            S, push, ascent, lean = yield from self._listen(U_new, d, rho, now.lean)
            U2 = square(U_new)
            zeta = weight_zeta(k + 1, residual(task, HU, A), square(push) / rho**2, U2)
            A_new = solve_A(task, HU, A, mu2, zeta)
            dual = now.dual + ascent
            pull_new = P * U_new
            pull_new += rho * S
            pull_new -= dual

            # The Lagrangian's gradient in U, from the optimality of the step just taken; in A, zeta times the move.
            moved = pull_new - pull
            moved += push
            if first_order:
                moved -= share * (U_new - U)
            slid2 = square(zeta * (A_new - A))
            R = residual(task, HU, A_new)
            gradient = fit_gradient(task, R, A_new)
            moved2 = np.square(np.sqrt(square(moved)) + np.sqrt(square(gradient - used)))
            k, now = k + 1, _Stand(U_new, A_new, dual, pull_new, HU, R, gradient, P, zeta, U2, moved2, slid2, lean)

    def _enter(
        self,
        task: Task,
        place: Place,
        start: Start,
        weight_P: Callable[..., FloatArray],
        weight_zeta: Callable[..., FloatArray],
    ) -> Generator[Neighbours, Any, _Stand]:
        """Tell neighbours of the start; the multiplier is zero."""
        U, A, rho = start.U, start.A, start.rho
        HU = project(task, U)
        R = residual(task, HU, A)
        S, push, _, lean = yield from self._listen(U, wide(place.degree), rho, None)
        U2, P, unknown = square(U), weight_P(A), np.full(np.shape(place.degree), np.inf)
        zeta = weight_zeta(0, R, square(push) / rho**2, U2)
        pull, gradient = rho * S + P * U, fit_gradient(task, R, A)
        return _Stand(U, A, np.zeros_like(U), pull, HU, R, gradient, P, zeta, U2, unknown, unknown, lean)

    def _closing(self, task: Task, place: Place, last: Report, answer: Answer) -> Generator[Total, Sum, State]:
        """Certify the mean of the agents' U."""
        state = last.state
        if not self.certify or answer == Answer.HALT or state.U is None or state.mu1 is None or state.mu2 is None:
            return state
        mu1, mu2 = state.mu1, state.mu2
        U = (yield Total(state.U / place.n_agents, np.zeros((*task.s.shape[:-1], 0)), "mean")).value
        HU = project(task, U)
        A = solve_A(task, HU, np.zeros(1), mu2, 0.0)
        R = residual(task, HU, A)
        found = yield from certify_over_graph(task, place, U, R, mu1, mu2, self.tol)
        own = agent_objective(task, R, square(U), A, mu1, mu2, place.n_agents)
        objective = (yield Total(np.zeros((*own.shape, 1, 0)), own[..., None], "objective")).numbers[0]
        return replace(state, certificate=found.certificate(float(objective)))

    def _listen(
        self, U: FloatArray, d: FloatArray, rho: float, before: FloatArray | None
    ) -> Generator[Neighbours, Any, tuple[FloatArray, FloatArray, FloatArray, FloatArray | None]]:
        r"""Tell U; return S, rho (d U - S), the multiplier's step, and the differences along each edge.

        The paper's rule is :math:`\gamma_i = \min(1, \delta|\hat C_i(U^k - U^{k+1})|^2 / |\hat C_i U^{k+1}|^2)` on
        edge i.
        """
        if self.gamma != "paper":
            S = yield Neighbours(U)
            push = rho * d * U
            push -= rho * S
            return S, push, push if self.gamma == "auto" else float(self.gamma) * push, None
        heard: Heard = yield Neighbours(U, each=True)
        lean = heard.mine(U) - heard.values
        change, apart = (square(lean - before) if before is not None else np.zeros(len(lean))), square(lean)
        gamma = np.minimum(1.0, self.delta * change / np.where(apart > 0, apart, 1.0))
        S = heard.total(heard.values, U)
        return S, rho * (d * U - S), rho * heard.total(wide(gamma) * lean, U), lean

    def margins(self, task: Task, state: State, degree: FloatArray, n_agents: int | None = None) -> Margins:
        """Say by how much each agent meets the condition of its convergence theorem.

        ``degree`` is that of the agents in ``task``, and ``n_agents`` how many there are beside them and in all.
        """
        mu1 = state.mu1 or 0.0
        m = n_agents or len(degree)
        lipschitz = curvature(task, state.A) + mu1 / m if self.first_order else 0.0
        tau = np.asarray(state.tau, dtype=np.float64)
        return theorem_margins(tau, state.rho, degree, self.delta, mu1, lipschitz, self.gamma == "paper", m)

    def _proximal_weight(
        self, task: Task, place: Place, rho: float, share: float
    ) -> Callable[[FloatArray], FloatArray]:
        """Return P_t as a function of A_t."""
        d = wide(place.degree)
        if _is_auto(self.tau):
            if self.first_order:
                return lambda A: rho * d + wide(curvature(task, A)) + share
            return always(rho * d)
        tau = per_agent(self.tau, place)
        return always(tau if self.proximal == "standard" else tau - rho * d)


@dataclass(frozen=True, eq=False)
class _Stand:
    """Where an agent stands after a round, and what the next one begins with.

    ``pull`` is what draws U: neighbours, multiplier and proximal term. ``moved2`` and ``slid2`` are the residuals,
    ``lean`` the differences along each edge, if they matter.
    """

    U: FloatArray
    A: FloatArray
    dual: FloatArray
    pull: FloatArray
    HU: FloatArray
    R: FloatArray
    gradient: FloatArray
    P: FloatArray
    zeta: FloatArray
    U2: FloatArray
    moved2: FloatArray
    slid2: FloatArray
    lean: FloatArray | None

    @classmethod
    def of(cls, kept: Kept) -> _Stand:
        own = {field.name: kept.own[field.name] for field in fields(cls) if field.name != "lean"}
        return cls(**own, lean=kept.edges.get("lean"))


def _is_auto(value: Any) -> bool:
    return isinstance(value, str) and value == "auto"
