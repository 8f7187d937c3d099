r"""Variable projection: with every A_t solved out, one smooth function of U, minimised by quasi-Newton steps.

.. math::
    f(U) = \sum_t \min_A \bigl\{\tfrac12|H_tUA - T_t|^2 + \tfrac{\mu_2}2|A|^2\bigr\} + \tfrac{\mu_1}2|U|^2 , \qquad
    \nabla f(U) = \sum_t H_t'R_tA_t' + \mu_1 U .

Each look at f is one sum over all agents of L x r blocks and a few numbers. Every agent holds the same U, takes the
same step and asks for the next sum: the method is the same in one place, where sums cost nothing, and over a graph. So
agents need no weight of agreement; where sums differ by rounding, U is averaged now and then beside them.

With ``grow``, a U that has settled is certified, and gets the directions it lacks and loses those it does not use
until there are none of either.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from elmesh.comm.requests import Answer, Kept, Place, Program, Report, State, Sum, Total
from elmesh.data.statistics import Task
from elmesh.math.certificate import Findings, find, slack_of
from elmesh.math.kernels import fit, fit_gradient, project, residual, solve_A, square
from elmesh.math.lbfgs import Memory
from elmesh.solvers.graph_certificate import certify_over_graph
from elmesh.solvers.initialization import even_shares, opening
from elmesh.typing import FloatArray

__all__ = ["varpro"]


# A step is taken if it brings this share of what its slope promised.
_PROMISED = 1e-4
# Shares of a step tried after one that does not, how often, and how often anew before the search is given up.
_SHORTEST, _LONGEST, _TRIES, _ATTEMPTS = 0.1, 0.5, 12, 3
# Share of the gradient that all agents' untold changes together may amount to.
_UNTOLD = 0.5
# How often the certificate may change the number of columns, and after how many steps without settling it is asked:
# too few columns make for many steps.
_RESHAPED, _PATIENCE = 20, 40
# What columns that are taken off may cost, as a share of f.
_PRICE = 1e-4
# Looks from one bringing together of what rounding has taken apart to the next.
_TOGETHER = 4
# What an objective can be told from.
_ROUNDING = 1e-13
# The numbers among what all agents see.
_SEEN = ("value", "curvature", "slope", "targets")


@dataclass(frozen=True, eq=False)
class Look:
    """What all agents together see at one U; beside it, one's own A, residual and share.

    ``curvature`` is the second derivative of the fit along U, spread over U: what a unit of U'U is worth.
    """

    U: FloatArray
    value: float
    gradient: FloatArray
    curvature: float
    slope: float
    targets: float
    A: FloatArray
    R: FloatArray
    share: FloatArray

    @classmethod
    def of(cls, kept: Kept) -> Look:
        """Return the look that was kept."""
        U, gradient = kept.common["U"], kept.common["gradient"]
        value, curvature, slope, targets = (float(kept.common[name]) for name in _SEEN)
        return cls(U, value, gradient, curvature, slope, targets, kept.own["A"], kept.own["R"], kept.own["share"])


def varpro(
    task: Task,
    place: Place,
    *,
    rank: int,
    grow: bool,
    mu1: float | str,
    mu2: float | str,
    init: str,
    max_iter: int,
    tol: float,
    certify: bool,
    kept: Kept | None,
) -> Program:
    """Return the steps of one agent, of all agents stacked, or of all tasks in one place.

    Parameters
    ----------
    task, place
        As for every program.
    rank : int
        Columns of U to begin with.
    grow : bool
        Whether the certificate decides how many it has in the end.
    mu1, mu2 : float or "auto"
        Penalties.
    init : {"spectral", "random", "seed", "ones"}
        Start.
    max_iter : int
        Most steps.
    tol : float
        What the gradient is to be brought below; the certificate is as strict.
    certify : bool
        Whether to certify the end.
    kept : Kept or None
        What to go on from.
    """
    findings: Findings | None = None
    if kept:
        k, reshaped, looked, looks = (int(kept.common[name]) for name in ("round", "reshaped", "looked", "looks"))
        scene = _Scene(task, place, float(kept.common["mu1"]), float(kept.common["mu2"]), tol, looks)
        here, memory = Look.of(kept), Memory.of(kept.common)
        findings = Findings.of(kept.common) if "bound" in kept.common else None
    else:
        start = yield from opening(task, place, rank, mu1, mu2, init)
        scene = _Scene(task, place, start.mu1, start.mu2, tol)
        here = yield from scene.look(start.U)
        memory, k, reshaped, looked = Memory(), 0, 0, 0
    while True:
        counts = {"round": k, "reshaped": reshaped, "looked": looked}
        answer = yield scene.report(k, here, {**counts, **memory.pairs, **(vars(findings) if findings else {})})
        if answer == Answer.HALT:
            return scene.state(here)
        settled = answer == Answer.SETTLED or k == max_iter
        may_grow = grow and k < max_iter and reshaped < _RESHAPED
        if not settled and not (may_grow and k - looked >= _PATIENCE):
            there = yield from _descend(scene, here, memory)
            if there is not None:
                here, k, findings = there, k + 1, None
                continue
            settled = True  # no step lowers f any more: as settled as rounding lets it be
        if not (certify or grow):
            return scene.state(here)
        if findings is None:
            findings = yield from scene.find(here)
            looked = k
            if may_grow and findings.change(here.U.shape[1]):
                here = yield from _reshape(scene, here, findings, memory)
                reshaped, k = reshaped + 1, k + 1
                # A bound is a bound for every U: having lost only what it did not use, this one has it already.
                findings = None if findings.lacking else findings
                continue
        if settled:
            return replace(scene.state(here), certificate=findings.certificate(here.value))
        here, k, findings = (yield from _descend(scene, here, memory)) or here, k + 1, None


@dataclass(eq=False)
class _Scene:
    """What does not change while U does."""

    task: Task
    place: Place
    mu1: float
    mu2: float
    tol: float
    looks: int = 0

    @cached_property
    def even(self) -> FloatArray:
        """Each task's even share of what belongs to all."""
        return even_shares(self.task, self.place)

    def find(self, here: Look) -> Generator[Total, Sum, Findings]:
        """Find what the certificate needs."""
        if self.place.n_agents == 1 and self.task.s.ndim > 1:
            return find(self.task, here.U, here.R, float(np.sqrt(self.mu1 * self.mu2)), slack_of(self.tol))
        return (yield from certify_over_graph(self.task, self.place, here.U, here.R, self.mu1, self.mu2, self.tol))

    def look(
        self,
        U: FloatArray,
        before: Look | None = None,
        slope: float = 0.0,
        ignore: float = 0.0,
        turn: FloatArray | None = None,
        undo: bool = False,
    ) -> Generator[Total, Sum, Look]:
        r"""Evaluate f at U; ``slope`` is the agent's own idea of how f falls on the way there from the look before.

        With A_t at its best, :math:`\langle\nabla f - \mu_1 U, U\rangle = -\mu_2\sum|A_t|^2`. So f, its gradient and
        the targets' squares, which are asked for once, tell :math:`\sum|H_tUA_t|^2` too.
        """
        task, mu1, mu2 = self.task, self.mu1, self.mu2
        HU = project(task, U)
        A = solve_A(task, HU, np.zeros(1), mu2, 0.0)
        R = residual(task, HU, A)
        U2 = float(square(U))
        share = fit(task, R) + mu2 / 2 * square(A) + mu1 / 2 * U2 * self.even
        told = [share, slope * self.even, *([task.target_energy] if before is None else [])]
        gradient = task.V @ fit_gradient(task, R, A)
        # What agents hold alike but for rounding is brought together now and then, or it would drift apart.
        same = U if self.looks % _TOGETHER == 0 else None
        self.looks += 1
        request = Total(gradient, np.stack(told, axis=-1), "gradient", ignore, turn=turn, undo=undo, same=same)
        answer = yield request
        U = U if answer.same is None else answer.same
        value, slope, *energy = answer.numbers.tolist()
        targets = energy[0] if before is None else before.targets
        fitted = targets - 2 * value + mu1 * U2 + float(np.vdot(answer.value, U))
        curvature = min(max(fitted, 0.0), targets) / (U2**2 if U2 > 0 else 1.0)
        return Look(U, value, answer.value + mu1 * U, curvature, slope, targets, A, R, share)

    def guess(self, here: Look) -> FloatArray:
        """Return the Hessian as far as one can tell from one look: a multiple of U'U, and the penalty."""
        UU = here.U.T @ here.U
        return np.asarray(here.curvature * UU + self.mu1 * np.eye(len(UU)))

    def state(self, here: Look) -> State:
        return State(here.U, here.A, mu1=self.mu1, mu2=self.mu2)

    def report(self, k: int, here: Look, beside: dict[str, Any]) -> Report:
        # U belongs to all: what is said of it is spread evenly, so that sums over tasks are what they should be.
        even = self.even
        left, whole = float(square(here.gradient)), float(square(self.mu1 * here.U))
        own = {"A": here.A, "R": here.R, "share": here.share}
        ours = {name: x for name, x in vars(here).items() if name not in own}
        kept = Kept.of(own, {"mu1": self.mu1, "mu2": self.mu2, "looks": self.looks, **ours, **beside})
        return Report(k, self.state(here), here.share, (left * even, 0.0 * even), (whole * even, even), (kept,))


def _descend(scene: _Scene, here: Look, memory: Memory) -> Generator[Total, Sum, Look | None]:
    """Take one step that lowers f as its slope promised; None if there is none."""
    astray = False
    for attempt in range(_ATTEMPTS):
        if attempt:
            # What was remembered misled, or the gradient was told too coarsely: look again, and start anew.
            memory.forget()
            here = yield from scene.look(here.U, here, undo=astray)
            astray = False
        ignore = _UNTOLD * float(np.linalg.norm(here.gradient)) / scene.place.n_agents
        step = memory.step(here.gradient, scene.guess(here))
        slope, length = float(np.vdot(here.gradient, step)), 1.0
        for _ in range(_TRIES):
            there = yield from scene.look(here.U + length * step, here, slope, ignore, undo=astray)
            # From here on the slope is what agents together make of it, so that all of them decide alike.
            gain = there.value - here.value
            if there.slope < 0 and gain <= _PROMISED * length * there.slope:
                memory.learn(there.U - here.U, there.gradient - here.gradient)
                return there
            astray = True
            if not there.slope < 0 or -length * there.slope <= _ROUNDING * abs(here.value):
                break
            curve = gain - length * there.slope
            best = -there.slope * length / (2 * curve) if curve > 0 and np.isfinite(curve) else 0.0
            length *= min(max(best, _SHORTEST), _LONGEST)
    return None


def _reshape(scene: _Scene, here: Look, findings: Findings, memory: Memory) -> Generator[Total, Sum, Look]:
    """Give U the directions that it lacks; if there are none, take off those that it does not use."""
    n, r = findings.lacking, here.U.shape[1]
    if not n:
        there = yield from scene.look(here.U @ findings.turn, here, turn=findings.turn)
        if there.value > (1 + _PRICE) * here.value:
            return here  # short, but not for nothing
        memory.turn(findings.turn)
        return there
    # Where the new columns are zero f is level, and falls on either side: how far to go is tried out.
    curvature = max(here.curvature * float(square(here.U)), scene.mu1)
    excess = np.sqrt(findings.strengths[:n]) - np.sqrt(scene.mu1 * scene.mu2)
    new = findings.directions[:, :n] * np.sqrt(excess / curvature)
    wider = np.eye(r, r + n)
    for trial in range(_TRIES):
        turn = None if trial else wider
        there = yield from scene.look(np.hstack([here.U, new]), here, turn=turn, undo=trial > 0)
        if there.value <= here.value:
            memory.turn(wider)
            return there
        new = new / 2
    return here
