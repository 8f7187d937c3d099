r"""MeshELM, the default: a common, a shared and a private part, over a graph or in one place.

.. math:: T_t = \Phi_t(W + UA_t + V_t) + \text{noise}

The variances of the common part W and of the private parts :math:`V_t` are estimated by evidence
(:mod:`elmesh.solvers.mixed_effects`); the shared part :math:`UA_t` is the paper's, fitted to what they leave by
variable projection (:mod:`elmesh.solvers.variable_projection`) if rows left out within tasks call for it
(:mod:`elmesh.solvers.shared_part`). With both other parts switched off it is the paper's problem.

With an automatic rank, a U that has converged is certified, gets the directions that are missing and loses columns that
are unused, until there are none of either.
"""

from __future__ import annotations

from collections.abc import Callable, Set
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from elmesh.checks import check_choice, check_number
from elmesh.comm.integer_sums import sum_wide
from elmesh.comm.requests import AllReduce, HubReduce, IntegerSum, NoisySum, Request
from elmesh.errors import ElmeshError
from elmesh.math.certificate import Certificate, CertificateData, certificate_without_basis
from elmesh.math.kernels import fit, project, residual, square
from elmesh.math.lbfgs import LBFGSMemory
from elmesh.privacy.budget import Privacy
from elmesh.solvers.base import Decision, Fallback, LowRankSolver, Problem, RoundReport, Solution, Steps
from elmesh.solvers.hub_weights import WEIGHT_ROUNDS, exchange_own_weights, exchange_weights
from elmesh.solvers.initialization import PASSES, Start, even_shares, initialize
from elmesh.solvers.integer_sums import with_integer_sums
from elmesh.solvers.mixed_effects import (
    common_penalty,
    effects_bound,
    estimate_effects,
    groups_of,
    objective_shares,
    private_weights,
    refit_common,
    with_site_noise,
)
from elmesh.solvers.private_part import release_common, site_weights
from elmesh.solvers.shared_part import choose_penalty, starting_basis, whitened_problem
from elmesh.solvers.state import MixedEffects, SolverState
from elmesh.solvers.variable_projection import Evaluation, ReducedProblem, change_columns, line_search, rough_fit
from elmesh.solvers.variance_components import matrix_bits, matrix_sums
from elmesh.typing import FloatArray

__all__ = ["Evaluation", "MeshELM", "MeshState"]

# Most changes of the number of columns, and rounds without convergence after which the certificate is asked: too few
# columns make for many rounds.
_MOST_CHANGES, _CERTIFY_EVERY = 20, 40
# Columns that an automatic rank starts with, and beside a common and a private part. Too many cost bytes, too few cost
# another certificate.
_FIRST_RANK, _FIRST_SHARED = 16, 2
# Beside U the common part has settled if it moves by at most this share of itself.
_SETTLED = 1e-3


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
    mixed: MixedEffects | None = None

    @property
    def has_basis(self) -> bool:
        """Whether U has columns."""
        return bool(self.here.U.shape[1] > 0)


@dataclass(repr=False, eq=False)
class MeshELM(LowRankSolver):
    r"""Common, shared and private weights over a graph of agents, or in one place; the default solver.

    .. math:: T_t = \Phi_t(W + UA_t + V_t) + \text{noise of variance } \sigma_t^2

    Every task is an agent of a connected graph, with its own rows and targets. W is common to all tasks,
    :math:`V_t` is the task's own and never leaves it (a random intercept and random slopes), and both have variances by
    evidence, one per group of features. :math:`UA_t` is the paper's shared subspace,

    .. math:: \min_{U, A}\; \sum_t \tfrac12|H_tUA_t - T_t|^2 + \tfrac{\mu_1}{2}|U|^2 + \tfrac{\mu_2}{2}\sum_t|A_t|^2 ,

    fitted to what the others leave, if rows left out within tasks call for it. With ``common=False, private=False`` it
    is the only part, and the problem is that of :class:`MTLELM` and :class:`DMTLELM`. Agents exchange sums over all of
    them: three of a p x p matrix, and others of p x r blocks and of a few numbers.

    Parameters
    ----------
    common, private : bool or "auto", default="auto"
        Whether weights have a part W that all tasks share, and a part V_t that is a task's own and never leaves it,
        with variances by evidence. "auto": where features come in groups, as the estimators make them. With both
        switched off the problem is the paper's.
    rank : int or "auto", default="auto"
        Number of columns of U; 0 for no shared part. "auto" adds columns until, by the certificate, no further one
        would help, and drops unused ones.
    mu1, mu2 : float or "auto", default="auto"
        Penalties on U and on the A_t; the solution depends on their product. "auto" beside a private part: the penalty
        at which left-out rows are predicted best, and no U if none is better than no U by a standard error. "auto"
        without one: a share of the features' correlation with noise (:mod:`elmesh.math.noise`).
    rows_per_feature : float, default=0.0
        Least number of rows for each feature of the common and the shared part; 0 for no limit. Totals of nearly as
        many features as rows determine single rows. What counts are the rows of all tasks but the largest third
        (:mod:`elmesh.comm.row_counts`). Features beyond the limit belong to the private part only. Without common and
        private parts it has no effect.
    weigh_sites : bool, default=True
        Whether each task has a noise of its own, by which its rows are weighed in the totals of all. A site that sends
        wrong terms could steer such weights, and so obtain a total of one site alone: networks do without them.
    privacy : Privacy or None, default=None
        Differential privacy of what leaves a site: one total with noise, from which the common part follows; private
        parts are found at home. There is no shared part then, and no certificate.
    graph : str, networkx.Graph or None, default="ring"
        "ring", "path", "star", "complete", "random", "grid", or a graph whose nodes are the task labels. None: all
        data in one place.
    message_bits : {2, 4, 8, 16, 32, 64, "auto"}, default=64
        Bits per number in messages. Of the paper's problem alone: up to 32, a message encodes the change of its
        content, rounded, and rounding errors are part of the next message; sums then go along a spanning tree, which
        takes the fewest bytes. 64 is exact, and takes the fewest rounds. "auto" takes the fewest bits whose error is
        within two fifths of the change, and more where a message is short anyway. The solution is the same. With a
        common part: sums are of integers, equal to the bit for any graph; those of matrices, nearly all that is sent,
        have 32 bits with any value below 64, because fewer would not keep them positive definite, and others have 64.
        Then predictions differ by rounding.
    max_bytes : float or None, default=None
        Bytes that all agents together may send; the run ends before a message that might exceed it, without a
        certificate if there is no room for one. If there is no room for a first common model, every task has the model
        of its own rows alone.
    start : {"sums", "weights"}, default="sums"
        How the first U of the paper's problem alone is found. "sums": by two sums over all agents. "weights": every
        task sends its own weights to the first one, the hub of a star, which sends back their leading directions, and
        the first three rounds repeat it with weights that are fitted again (:mod:`elmesh.solvers.hub_weights`): a
        fraction of the bytes, but the hub sees the weights of each task.
    max_iter : int, default=1000
        Most rounds; a round takes as many rounds of messages as a sum over the graph.
    tol : float, default=1e-2
        Stop when the gradient is within ``tol`` of the penalty's.
    certify : bool, default=True
        Whether to bound, in the end, how far the objective is from the best of any rank.

    Examples
    --------
    >>> from elmesh import MeshELM, MultiTaskELMClassifier
    >>> model = MultiTaskELMClassifier(n_hidden=50, solver=MeshELM(rank=4, graph="star"))
    >>> paper = MeshELM(common=False, private=False, rank=6, mu1=3.16, mu2=3.16, message_bits=4)
    """

    name: ClassVar[str] = "mesh-elm"
    summary: ClassVar[str] = "common, shared and private parts by sums over the graph; the default"
    state_type = MeshState
    least_rank: ClassVar[int] = 0
    common: bool | str = "auto"
    private: bool | str = "auto"
    rank: int | str = "auto"
    mu1: float | str = "auto"
    mu2: float | str = "auto"
    rows_per_feature: float = 0.0
    weigh_sites: bool = True
    privacy: Privacy | None = None
    graph: Any = "ring"
    message_bits: int | str = 64
    max_bytes: float | None = None
    max_iter: int = 1000
    tol: float = 1e-2
    certify: bool = True
    start: str = "sums"

    def check(self) -> None:
        """Check every parameter."""
        super().check()
        for name in ("common", "private"):
            check_choice(name, getattr(self, name), (True, False, "auto"))
        check_choice("weigh_sites", self.weigh_sites, (True, False))
        check_choice("start", self.start, ("sums", "weights"))
        if self.start == "weights" and (self.grouped_features or self.graph is None):
            raise ElmeshError(
                'start="weights" is for the shared part alone, on a graph with a hub; set common=False, private=False '
                'and graph="star", or leave start at "sums".'
            )
        check_number("rows_per_feature", self.rows_per_feature, zero=True)
        if self.max_bytes is not None:
            check_number("max_bytes", self.max_bytes)
        if self.rank == 0 and not self.grouped_features:
            raise ElmeshError("rank=0 without a common and a private part leaves no weights; switch one of them on.")
        if self.private is False and self.common is not False and self.rank not in (0, "auto"):
            raise ElmeshError(
                f"rank={self.rank} has no meaning with a common part and no private one, beside which U is fitted; "
                'leave rank at "auto" or set it to 0, or switch the private part on.'
            )
        if self.privacy is not None:
            self._check_privacy(self.privacy)

    def _check_privacy(self, privacy: Privacy) -> None:
        if not isinstance(privacy, Privacy):
            raise ElmeshError(f"privacy must be a Privacy, such as Privacy(epsilon=1.0), or None; got {privacy!r}.")
        privacy.check()
        if False in (self.common, self.private):
            raise ElmeshError(
                "A private fit has a common and a private part; leave common and private at their defaults."
            )
        if self.rank not in (0, "auto") or {self.mu1, self.mu2} != {"auto"}:
            raise ElmeshError(
                "A private fit has no shared part, which would take many releases; leave rank, mu1 and mu2 at their "
                "defaults."
            )
        if self.graph is None:
            raise ElmeshError('A private fit is of sites that exchange messages; give a graph, such as graph="ring".')

    @property
    def requires(self) -> Set[type[Request]]:
        """Sums over all agents, or one with noise; a hub for a start from weights."""
        if self.privacy is not None:
            return frozenset({NoisySum})
        return frozenset({AllReduce, IntegerSum, HubReduce} if self.start == "weights" else {AllReduce, IntegerSum})

    def rank_for(self, outputs: int, width: int, directions: int) -> int:
        """Return the rank to start with; an automatic one starts with a moderate number of columns."""
        if self.rank == 0 or self.privacy is not None:
            return 0
        if self.rank == "auto":
            return min(max(_FIRST_RANK, 2 * outputs), max(1, min(width, directions)))
        return super().rank_for(outputs, width, directions)

    @property
    def grouped_features(self) -> bool:
        """Whether weights have a common or a private part, for which features come in groups."""
        return self.common is not False or self.private is not False

    @property
    def learns_from_halves(self) -> bool:
        """Whether the penalty of U is chosen by rows left out within tasks."""
        automatic = self.private is not False and "auto" in (self.mu1, self.mu2)
        return self.rank != 0 and automatic and self.privacy is None

    @property
    def has_common_part(self) -> bool:
        """Whether weights have a common or a private part."""
        return self.grouped_features

    @property
    def matrix_sums(self) -> int:
        """How many sums of a matrix of all features a fit takes: none without a common part."""
        return matrix_sums(common=self.common is not False, private=self.private is not False)

    def least_start(self, width: int, outputs: int, rank: int, n_agents: int) -> float:
        """Return how many numbers a start over a graph certainly takes, beside sums of matrices.

        Without a common and a private part these are the weights to the hub and U back, or sums of as many numbers as U
        has: those of the spectral start, and one to evaluate it.
        """
        if self.grouped_features:
            return 0.0
        if self.start == "weights":
            return float((n_agents - 1) * width * (min(outputs, rank) + rank))
        return float(2 * (n_agents - 1) * (PASSES + 1) * width * rank)

    def without_common_targets(self) -> MeshELM:
        """Return a copy in which automatic parts are off: there is no common part, and U is what tasks share."""
        if self.privacy is not None:
            raise ElmeshError(
                "A private fit is for classes that tasks share; give them the same names at every task, or set "
                "shared_classes."
            )
        off = {name: False for name in ("common", "private") if getattr(self, name) == "auto"}
        return MeshELM(**{**self.get_params(deep=False), **off})

    def _has(self, part: str, problem: Problem) -> bool:
        """Return whether weights have the common or the private part."""
        switch = getattr(self, part)
        return problem.groups is not None if switch == "auto" else bool(switch)

    def init_state(self, problem: Problem) -> Steps[MeshState]:
        """Estimate the common and the private part, if any, and evaluate f at the start of U."""
        if self.privacy is not None:
            effects = yield from release_common(problem)
            return MeshState(0, 1.0, 1.0, 0, 0, 0, _no_evaluation(problem), LBFGSMemory(), None, effects)
        common, private = self._has("common", problem), self._has("private", problem)
        if not (common or private) and self.start == "weights":
            start = yield from exchange_own_weights(problem, self.mu1, self.mu2)
            here = ReducedProblem(problem, start.mu1, start.mu2).local(start.U)
            return MeshState(0, start.mu1, start.mu2, 0, 0, 0, here, LBFGSMemory())
        if not (common or private):
            start = yield from initialize(problem, self.mu1, self.mu2, "spectral")
            return (yield from self._evaluate(problem, start))
        bits = 64 if self.graph is None else matrix_bits(self.message_bits)
        mixed = yield from estimate_effects(problem, common=common, private=private, weigh=self.weigh_sites, bits=bits)
        if self.max_bytes is not None:
            # What follows may not be sent any more; without a shared part this is the model.
            plain = MeshState(0, 1.0, 1.0, 0, 0, 0, _no_evaluation(problem), LBFGSMemory(), None, mixed)
            yield Fallback(self.complete(problem, plain))
        found: tuple[float, FloatArray] | None = None
        if self.rank != 0 and private:
            columns = min(_FIRST_SHARED, problem.rank) if self.rank == "auto" else problem.rank
            if "auto" in (self.mu1, self.mu2):
                found = yield from choose_penalty(problem, mixed, self._fit_half, columns)
            else:
                U, _ = yield from starting_basis(problem, mixed, columns)
                found = float(np.sqrt(float(self.mu1) * float(self.mu2))), U
        if found is None:
            here = yield from _without_basis(problem, mixed)
            return MeshState(0, 1.0, 1.0, 0, 0, 0, here, LBFGSMemory(), None, mixed)
        lam, U = found
        inner = whitened_problem(problem, mixed)
        state = yield from with_integer_sums(self._evaluate(inner, Start(U, lam, lam)), problem.context)
        return replace(state, mixed=mixed)

    def _evaluate(self, problem: Problem, start: Start) -> Steps[MeshState]:
        """Evaluate f at a start."""
        f = ReducedProblem(problem, start.mu1, start.mu2)
        here = yield from f.evaluate(start.U)
        return MeshState(0, start.mu1, start.mu2, f.n_evaluations, 0, 0, here, LBFGSMemory())

    def _fit_half(self, problem: Problem, lam: float, start: FloatArray) -> Steps[tuple[FloatArray, FloatArray]]:
        """Return a rough fit of U and A with a given penalty, for the choice among penalties."""
        return (yield from with_integer_sums(rough_fit(problem, lam, start), problem.context))

    def step(self, problem: Problem, state: MeshState) -> Steps[MeshState]:
        """Take a quasi-Newton step; where there is none, or it is time, consult the certificate."""
        if state.mixed is None and self.start == "weights" and state.round < WEIGHT_ROUNDS:
            U = yield from exchange_weights(problem, Start(state.here.U, state.mu1, state.mu2))
            here = ReducedProblem(problem, state.mu1, state.mu2).local(U)
            return replace(state, round=state.round + 1, here=here)
        return (yield from self._beside_others(problem, state, self._step))

    def _step(self, problem: Problem, state: MeshState) -> Steps[MeshState]:
        due = self._may_change(state) and state.round - state.certified >= _CERTIFY_EVERY
        if not due:
            after = yield from self._descend(problem, state)
            # If no step lowers f any more, U has converged as far as rounding allows.
            return after if after.round > state.round else (yield from self._change(problem, after))
        after = yield from self._certify(problem, state)
        if after.round > state.round:
            return after
        descended = yield from self._descend(problem, after)
        return replace(descended, round=state.round + 1, data=None)

    def on_converged(self, problem: Problem, state: MeshState) -> Steps[MeshState]:
        """Certify U, and change its columns if the certificate suggests it; then fit the common part again."""
        if state.mixed is None and not self._asks_certificate:
            return state
        return (yield from self._beside_others(problem, state, self._change))

    def _beside_others(
        self, problem: Problem, state: MeshState, advance: Callable[[Problem, MeshState], Steps[MeshState]]
    ) -> Steps[MeshState]:
        """Advance U: alone, or on the whitened problem beside the other parts, with W fitted again where it stays."""
        if state.mixed is None:
            if not state.n_evaluations:
                start = yield from self._evaluate(problem, Start(state.here.U, state.mu1, state.mu2))
                state = replace(start, round=state.round)
            return (yield from advance(problem, state))
        if not state.has_basis:
            return state
        inner = whitened_problem(problem, state.mixed)
        after = yield from with_integer_sums(advance(inner, state), problem.context)
        return after if after.round > state.round else (yield from self._refit(problem, after))

    def _change(self, problem: Problem, state: MeshState) -> Steps[MeshState]:
        if not self._asks_certificate:
            return state
        return (yield from self._certify(problem, state))

    def _refit(self, problem: Problem, state: MeshState) -> Steps[MeshState]:
        """Fit W beside the shared part; unless it stays as it is, go on with U."""
        if state.mixed is None or state.round >= self.max_iter:
            return state
        mixed = yield from refit_common(problem, state.mixed, self._shared(problem, state))
        moved, size = float(np.linalg.norm(mixed.W - state.mixed.W)), float(np.linalg.norm(mixed.W))
        if moved <= _SETTLED * size:
            return state
        f = ReducedProblem(whitened_problem(problem, mixed), state.mu1, state.mu2, state.n_evaluations)
        here = yield from with_integer_sums(f.evaluate(state.here.U), problem.context)
        return replace(
            state, round=state.round + 1, n_evaluations=f.n_evaluations, here=here, memory=LBFGSMemory(), data=None,
            mixed=mixed,
        )  # fmt: skip

    def _shared(self, problem: Problem, state: MeshState) -> FloatArray:
        """Return the shared weights of each site in units of the features, of shape (m, p, d)."""
        return np.asarray(self._basis(problem, state) @ state.here.A)

    def _basis(self, problem: Problem, state: MeshState) -> FloatArray:
        """Return U in units of the features."""
        if state.mixed is None:
            return state.here.U
        return np.asarray(np.exp(state.mixed.log_v / 2)[groups_of(problem)][:, None] * state.here.U)

    def finish(self, problem: Problem, state: MeshState, decision: Decision) -> Steps[Solution]:
        """Return the solution with its certificate, unless the run was halted."""
        solution, data = self.complete(problem, state), state.data
        if decision is Decision.HALT or self.privacy is not None:
            return solution
        if state.mixed is None:
            proven = problem.context.n_agents == 1
            return (
                solution
                if data is None
                else replace(solution, certificate=data.certificate(state.here.value, proven=proven))
            )
        if not self.certify:
            return solution
        return replace(solution, certificate=(yield from self._certificate(problem, state, state.mixed)))

    def complete(self, problem: Problem, state: MeshState) -> Solution:
        """Return the variables with the private part, which each site finds by itself."""
        solution = self.solution(problem, state)
        if state.mixed is None:
            return solution
        if self.privacy is not None:
            V, effects = site_weights(problem, state.mixed)
            return replace(solution, V=V, effects=effects)
        solution = replace(solution, V=private_weights(problem, state.mixed, self._shared(problem, state)))
        if self.weigh_sites or state.has_basis or not self._has("private", problem):
            return solution
        return replace(solution, effects=with_site_noise(problem, state.mixed))

    def _certificate(self, problem: Problem, state: MeshState, mixed: MixedEffects) -> Steps[Certificate]:
        """Certify W and U together: W is fitted once more beside U A, so that its gradient is zero."""
        if not state.has_basis:
            bound = yield from effects_bound(problem, mixed)
            return certificate_without_basis(state.here.value, bound)
        mixed = yield from refit_common(problem, mixed, self._shared(problem, state))
        inner, U, A = whitened_problem(problem, mixed), state.here.U, state.here.A
        R = residual(inner.task, project(inner.task, U), A)
        penalty = common_penalty(problem, mixed)
        shares = fit(inner.task, R) + state.mu2 / 2 * square(A)
        value = float((yield from sum_wide(shares[:, None]))[0]) + state.mu1 / 2 * float(square(U)) + penalty / 2
        f = ReducedProblem(inner, state.mu1, state.mu2)
        steps = f.certificate_data(replace(state.here, R=R), self.tol, penalty)
        data = yield from with_integer_sums(steps, problem.context)
        return data.certificate(value, proven=problem.context.n_agents == 1)

    def solution(self, problem: Problem, state: MeshState) -> Solution:
        """Return U and A_t, and the common part."""
        solution = Solution(self._basis(problem, state), state.here.A, mu1=state.mu1, mu2=state.mu2)
        return solution if state.mixed is None else replace(solution, W=state.mixed.W, effects=state.mixed)

    def report(self, problem: Problem, state: MeshState) -> RoundReport:
        """Compare the gradient of f with that of the penalty."""
        here, even = state.here, even_shares(state.here.share.shape, problem.context)
        # U belongs to all: its norms are spread evenly, so that sums over tasks are right.
        gradient2, penalty2 = float(square(here.gradient)), float(square(state.mu1 * here.U))
        solution, share, value = self.solution(problem, state), here.share, here.value
        if state.mixed is not None and state.has_basis:
            penalty = 0.5 * common_penalty(problem, state.mixed)
            share, value = share + penalty * even, value + penalty
        totals = np.array([value, gradient2, 0.0, penalty2, 1.0])
        if state.mixed is None and not state.n_evaluations:
            # Where weights are exchanged, only the objective is summed; the gradient, not known, counts as large.
            gradient2, totals = penalty2, np.array([np.nan, penalty2, 0.0, penalty2, 1.0])
        return RoundReport(solution, share, (gradient2 * even, 0.0 * even), (penalty2 * even, even), (state,), totals)

    @property
    def pooled(self) -> bool:
        """Whether all data are in one place: without a graph."""
        return self.graph is None

    @property
    def _asks_certificate(self) -> bool:
        """Whether the certificate is needed: for its own sake, or to choose the rank."""
        return self.certify or self.rank == "auto"

    def _may_change(self, state: MeshState) -> bool:
        """Return whether the number of columns may still change."""
        return self.rank == "auto" and state.round < self.max_iter and state.n_changes < _MOST_CHANGES

    def _descend(self, problem: Problem, state: MeshState) -> Steps[MeshState]:
        """Take one step; return the same state, up to the count of evaluations, if there is none."""
        f = ReducedProblem(problem, state.mu1, state.mu2, state.n_evaluations)
        found = yield from line_search(f, state.here, state.memory)
        if found is None:
            return replace(state, n_evaluations=f.n_evaluations, memory=LBFGSMemory())
        here, memory = found
        return replace(state, round=state.round + 1, n_evaluations=f.n_evaluations, here=here, memory=memory, data=None)

    def _certify(self, problem: Problem, state: MeshState) -> Steps[MeshState]:
        """Certify U unless it is; change its columns if the certificate suggests it and they may change."""
        if state.data is not None:
            return state
        f = ReducedProblem(problem, state.mu1, state.mu2, state.n_evaluations)
        data = yield from f.certificate_data(state.here, self.tol)
        state = replace(state, certified=state.round, data=data)
        if not (self._may_change(state) and data.suggests_change(state.here.U.shape[1])):
            return state
        here, memory = yield from change_columns(f, state.here, data, state.memory)
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


def _without_basis(problem: Problem, mixed: MixedEffects) -> Steps[Evaluation]:
    """Return the evaluation of a U without columns."""
    share = objective_shares(problem, mixed)
    value = float((yield from sum_wide(share[:, None]))[0])
    return replace(_no_evaluation(problem), value=value, share=share)


def _no_evaluation(problem: Problem) -> Evaluation:
    """Return the evaluation of a U without columns, whose value is not known."""
    m, p, d = problem.shape
    nothing, coefficients = np.zeros((p, 0)), np.zeros((m, 0, d))
    return Evaluation(nothing, 0.0, nothing, 0.0, 0.0, 0.0, coefficients, coefficients, np.zeros(m))
